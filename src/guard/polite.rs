//! libvirt's own destroy, tried before SIGKILL so that the domain's state reads "destroyed": otherwise Masakari takes
//! the death for a crash and restarts the evacuated copy. Nothing waits for it.

use super::copies::Copies;
use super::core::Input;
use super::record::Record;
use crate::lease::event::{Event, Severity};
use crate::lease::id::DomainId;
use crate::lease::ledger::label;
use crate::lease::time::BootTime;
use crate::node::libvirt::{self, Libvirt};
use crate::node::{clock, traces};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Children of ours at once: enough to overlap QEMU's own exit, few enough not to starve the host they run on.
const WORKERS: usize = 4;
/// libvirt's answer on its starts in flight is waited for this long.
const STARTS_PATIENCE: Duration = Duration::from_secs(5);

enum Job {
    Destroy { domain: DomainId, name: String, by: BootTime },
    Resume { domain: DomainId, name: String, by: BootTime },
    AskStarts,
}

/// Asks libvirt.
pub struct Polite(Sender<Job>);

impl Polite {
    /// Starts the workers.
    pub fn start(
        libvirt: Libvirt,
        run_dir: &Path,
        copies: &Copies,
        core: &Sender<Input>,
        record: &Record,
    ) -> std::io::Result<Polite> {
        let (sender, receiver) = channel();
        let worker = Arc::new(Worker {
            jobs: Mutex::new(receiver),
            libvirt,
            run_dir: run_dir.to_owned(),
            copies: copies.clone(),
            core: core.clone(),
            record: record.clone(),
        });
        for _ in 0..WORKERS {
            let worker = worker.clone();
            std::thread::Builder::new().name("polite".into()).stack_size(256 << 10).spawn(move || worker.run())?;
        }
        Ok(Polite(sender))
    }

    /// Has libvirt destroy the domain, until `by`.
    pub fn destroy(&self, domain: DomainId, name: String, by: BootTime) {
        self.send(Job::Destroy { domain, name, by });
    }

    /// Has libvirt resume the domain, until `by`.
    pub fn resume(&self, domain: DomainId, name: String, by: BootTime) {
        self.send(Job::Resume { domain, name, by });
    }

    /// Has libvirt say which starts it has in flight.
    pub fn ask_starts(&self) {
        self.send(Job::AskStarts);
    }

    fn send(&self, job: Job) {
        self.0.send(job).expect("the workers live as long as the process");
    }
}

struct Worker {
    jobs: Mutex<Receiver<Job>>,
    libvirt: Libvirt,
    run_dir: PathBuf,
    copies: Copies,
    core: Sender<Input>,
    record: Record,
}

impl Worker {
    fn run(&self) {
        loop {
            let job = self.jobs.lock().expect("no holder panics").recv();
            match job {
                Ok(Job::Destroy { domain, name, by }) => self.destroy(domain, &name, by),
                Ok(Job::Resume { domain, name, by }) => self.resume(domain, &name, by),
                Ok(Job::AskStarts) => self.ask_starts(),
                Err(_) => return,
            }
        }
    }

    fn destroy(&self, domain: DomainId, name: &str, by: BootTime) {
        let alive: Vec<_> =
            self.copies.of(domain).into_iter().filter(|copy| !copy.process.process.has_exited()).collect();
        // What waited in the queue until its SIGKILL, or has died meanwhile, needs no politeness; and whoever started
        // the domain anew must not lose it.
        if alive.is_empty() || clock::now() >= by {
            return;
        }
        // virsh takes a uuid that libvirt does not know for a name, and would destroy whoever is called so.
        let namesake = self.copies.all().into_iter().find(|copy| copy.process.name == domain.to_string());
        if let Some(other) = namesake.filter(|other| other.process.domain != domain) {
            let (who, other) = (label(name, domain), other.process.domain);
            self.record.say(
                Severity::Warning,
                format!("libvirt is not asked to destroy domain {who}: domain {other} has its uuid for a name, and might be hit instead. SIGKILL does not need it"),
            );
            return;
        }
        for copy in &alive {
            copy.remember_traces();
            // rule 7: libvirt's SIGTERM must not leave sockets behind that go on retransmitting
            traces::reset_on_close(&copy.process.process);
        }
        if let Err(error) = self.libvirt.destroy(domain, by) {
            let who = label(name, domain);
            self.record.say(
                Severity::Warning,
                format!("libvirt did not destroy domain {who}: {error}. SIGKILL does not need it"),
            );
        }
    }

    fn resume(&self, domain: DomainId, name: &str, by: BootTime) {
        // An order that waited in the queue past its time is repeated by the core, if it still holds then.
        if clock::now() >= by {
            return;
        }
        if let Err(error) = self.libvirt.resume(domain, by) {
            let who = label(name, domain);
            self.record.say(
                Severity::Warning,
                format!(
                    "libvirt did not resume domain {who}, which came by live migration: {error}. It is asked again"
                ),
            );
        }
    }

    fn ask_starts(&self) {
        let asked = clock::now();
        let starts = match libvirt::daemon(&self.run_dir) {
            Some(_) => self.libvirt.starts_in_flight(asked + STARTS_PATIENCE),
            // Where no daemon runs none is starting anything.
            None => Ok(Vec::new()),
        };
        match starts {
            Ok(domains) => {
                let event = Event::StartsInFlight { asked, domains };
                self.core.send(Input::Event(event)).expect("the core lives as long as the process");
            }
            Err(error) => self
                .record
                .say(Severity::Warning, format!("libvirt does not say which starts it has in flight: {error}")),
        }
    }
}
