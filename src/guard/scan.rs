//! Finds libvirt's QEMUs without libvirt, holds them by pidfd, and proves their end. A hang here makes the permit
//! pass, since it is capped by the last whole scan.

use super::copies::{self, Copies, Known, Note};
use super::core::Input;
use super::record::Record;
use crate::lease::event::{CopyState, Event, Scan, SeenCopy, Severity};
use crate::lease::id::{DomainId, ProcessKey};
use crate::lease::late_write::LateWrite;
use crate::lease::ledger::label;
use crate::node::domains::{DomainProcess, Finder, RunState};
use crate::node::hook_audit::{Auditor, Newcomer};
use crate::node::libvirt;
use crate::node::watch::ChangeWatch;
use crate::node::{clock, process};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often what a process would leave behind is looked at anew.
const RECOUNT: Duration = Duration::from_secs(5);
/// The longest pause between two attempts to prove an end.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// An end that cannot be proven is told after this long.
const COMPLAINT: Duration = Duration::from_secs(5);

/// The libvirt daemons that called our hook.
#[derive(Default)]
pub struct Callers {
    /// The last one: proof that the hook is in force with it.
    last: Option<ProcessKey>,
    /// Those that may hold an admission and were not seen dead.
    watched: BTreeSet<ProcessKey>,
}

impl Callers {
    /// This one calls.
    pub fn call(&mut self, daemon: ProcessKey) {
        self.last = Some(daemon);
        self.watched.insert(daemon);
    }

    /// Takes out those that no longer live.
    fn take_dead(&mut self) -> Vec<ProcessKey> {
        let dead: Vec<_> = self.watched.iter().copied().filter(|&daemon| !process::exists(daemon)).collect();
        self.watched.retain(|daemon| !dead.contains(daemon));
        dead
    }
}

/// The scan thread, from outside.
pub struct Scanner {
    wake: Arc<EventFd>,
    callers: Arc<Mutex<Callers>>,
    faults: Arc<Mutex<Vec<String>>>,
    copies: Copies,
}

/// Where and how often to look.
pub struct Places {
    /// libvirt's state files.
    pub libvirt_run_dir: PathBuf,
    /// libvirt's hooks.
    pub hooks_dir: PathBuf,
    /// Between two scans, if nothing asks for one before.
    pub interval: Duration,
    /// Which libvirt daemons called our hook.
    pub callers: Arc<Mutex<Callers>>,
    /// Where the notes for the next guard are kept.
    pub notes: PathBuf,
}

impl Scanner {
    /// Starts the thread. `remembered` are processes of an earlier guard's ledger: a leader that is dead with a living
    /// thread shows no command line any more, and would not be found.
    pub fn start(
        places: Places,
        remembered: Vec<(DomainId, String, ProcessKey)>,
        copies: &Copies,
        core: &Sender<Input>,
        record: &Record,
    ) -> std::io::Result<Scanner> {
        let wake = Arc::new(EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (callers, faults) = (places.callers.clone(), Arc::<Mutex<_>>::default());
        let mut finder = Finder::new(&places.libvirt_run_dir);
        let notes = copies::read_notes(&places.notes);
        let mut ended = Vec::new();
        for (domain, name, process) in remembered {
            if !finder.remember(domain, &name, process) {
                let note = notes.iter().find(|note| note.process() == process).cloned();
                ended.push((domain, note.unwrap_or_else(|| Note::blank(domain, process))));
            }
        }
        let mut thread = Thread {
            finder,
            notes,
            auditor: Auditor::new(&places.hooks_dir),
            places,
            copies: copies.clone(),
            core: core.clone(),
            record: record.clone(),
            wake: wake.clone(),
            faults: Arc::clone(&faults),
            proving: BTreeSet::new(),
            recounted: None,
            failing: None,
            notes_failing: false,
        };
        std::thread::Builder::new().name("scan".into()).stack_size(512 << 10).spawn(move || {
            for (domain, note) in ended {
                thread.ended_before_us(domain, note);
            }
            thread.run();
        })?;
        Ok(Scanner { wake, callers, faults, copies: copies.clone() })
    }

    /// Scans now, and says which of these libvirt daemons no longer live. Never blocks.
    pub fn scan_now(&self, daemons: Vec<ProcessKey>) {
        self.callers.lock().expect("no holder panics").watched.extend(daemons);
        // Full means that a wake-up is already under way.
        let _ = self.wake.write(1);
    }

    /// In which ways a domain's writes could arrive after its death.
    pub fn late_writes(&self, domain: DomainId) -> Vec<LateWrite> {
        self.copies.late_writes(domain)
    }

    /// What is wrong with the installation, each with its remedy.
    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().expect("no holder panics").clone()
    }
}

struct Thread {
    finder: Finder,
    notes: Vec<Note>,
    places: Places,
    auditor: Auditor,
    copies: Copies,
    core: Sender<Input>,
    record: Record,
    wake: Arc<EventFd>,
    faults: Arc<Mutex<Vec<String>>>,
    proving: BTreeSet<ProcessKey>,
    recounted: Option<Instant>,
    failing: Option<String>,
    notes_failing: bool,
}

impl Thread {
    fn run(&mut self) {
        let mut changes = match ChangeWatch::new(&self.places.libvirt_run_dir) {
            Ok(changes) => Some(changes),
            Err(error) => {
                self.record.say(
                    Severity::Warning,
                    format!(
                        "cannot watch {}: {error}. Domains are found by scans alone",
                        self.places.libvirt_run_dir.display()
                    ),
                );
                None
            }
        };
        let mut next = Instant::now();
        loop {
            let copies = &self.copies;
            self.proving.retain(|&process| !copies.is_gone(process));
            let copies: Vec<_> = self
                .copies
                .all()
                .into_iter()
                .filter(|copy| !self.proving.contains(&copy.process.process.key()))
                .collect();
            let (woken, changed, ended) =
                self.wait(changes.as_ref(), &copies, next.saturating_duration_since(Instant::now()));
            for at in ended {
                self.prove(copies[at].clone());
            }
            // A watch that has gone blind has something to say, too.
            let changed = changed && changes.as_mut().is_some_and(|watch| watch.drain().unwrap_or(true));
            if woken {
                // Read to reset the counter; its value says nothing.
                let _ = self.wake.read();
            }
            if woken || changed || Instant::now() >= next {
                self.scan();
                next = Instant::now() + self.places.interval;
            }
        }
    }

    /// Waits for a reason to look: asked to, a change in libvirt's files, ended processes (by their place), or time.
    fn wait(
        &self,
        changes: Option<&ChangeWatch>,
        copies: &[Arc<Known>],
        at_most: Duration,
    ) -> (bool, bool, Vec<usize>) {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.wake.as_fd())];
        fds.extend(copies.iter().map(|copy| readable(copy.process.process.as_fd())));
        fds.extend(changes.map(|watch| readable(watch.as_fd())));
        // Rounded up, so that a wait of less than a millisecond is not a busy loop.
        let timeout = PollTimeout::try_from(at_most + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        // An interrupted poll is an early look.
        let _ = poll(&mut fds, timeout);
        let hit = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let ended = (0..copies.len()).filter(|&at| hit(&fds[at + 1])).collect();
        (hit(&fds[0]), fds.get(copies.len() + 1).is_some_and(hit), ended)
    }

    fn scan(&mut self) {
        let dead_daemons = self.places.callers.lock().expect("no holder panics").take_dead();
        let (began, mut youngest) = (clock::now(), None);
        match self.finder.scan() {
            Ok(found) => {
                let copies = found.iter().map(seen).collect();
                let last = found.iter().max_by_key(|found| found.process.key().started);
                youngest = last
                    .map(|found| Newcomer { process: found.process.key(), domain: label(&found.name, found.domain) });
                let mut news = self.copies.learn(found, &self.notes);
                if self.recounted.is_none_or(|last| last.elapsed() >= RECOUNT) {
                    self.recounted = Some(Instant::now());
                    self.copies.all().iter().for_each(|copy| copy.remember_traces());
                    news = true;
                }
                if news {
                    self.write_notes();
                }
                if self.failing.take().is_some() {
                    self.record.say(Severity::Warning, "scans of this host are whole again".into());
                }
                self.tell(Event::Scanned(Scan { began, copies, dead_daemons }));
            }
            Err(error) => {
                // Nobody was told of their death.
                self.places.callers.lock().expect("no holder panics").watched.extend(dead_daemons);
                let why = error.to_string();
                if self.failing.as_ref() != Some(&why) {
                    self.record.say(Severity::Error, format!("this host cannot be scanned: {why}. Until it can, the permit runs out and no receipt is sent"));
                    self.failing = Some(why);
                }
            }
        }
        self.audit(youngest.as_ref());
    }

    fn write_notes(&mut self) {
        let written = self.copies.write_notes(&self.places.notes);
        let failed = std::mem::replace(&mut self.notes_failing, written.is_err());
        match written {
            Err(error) if !failed => self.record.say(Severity::Warning, format!("cannot keep notes for the next guard: {error}. What ends while no guard runs is then proven gone the long way")),
            Ok(()) if failed => self.record.say(Severity::Warning, "the notes for the next guard can be kept again".into()),
            _ => {}
        }
    }

    fn audit(&mut self, youngest: Option<&Newcomer>) {
        let daemon = libvirt::daemon(&self.places.libvirt_run_dir);
        let caller = self.places.callers.lock().expect("no holder panics").last;
        let now: Vec<String> =
            self.auditor.audit(daemon, caller, youngest).err().map(|fault| fault.to_string()).into_iter().collect();
        let mut faults = self.faults.lock().expect("no holder panics");
        if *faults != now {
            match now.first() {
                Some(fault) => self.record.say(Severity::Error, fault.clone()),
                None => self.record.say(Severity::Info, "libvirt's hook is installed and in force".into()),
            }
            *faults = now;
        }
    }

    /// Proves the end in a thread of its own: a flush to a hung storage may never return.
    fn prove(&mut self, copy: Arc<Known>) {
        let key = copy.process.process.key();
        self.proving.insert(key);
        let (copies, core, record) = (self.copies.clone(), self.core.clone(), self.record.clone());
        let run = {
            let copy = copy.clone();
            move || prove(&copy, &copies, &core, &record)
        };
        let thread = std::thread::Builder::new().name("prove".into()).stack_size(256 << 10).spawn(run);
        if let Err(error) = thread {
            // It stays unproven, hence alive, and is tried again at the next wake-up.
            self.proving.remove(&key);
            self.record.say(
                Severity::Error,
                format!("cannot start a thread to prove that process {} is gone: {error}", key.pid),
            );
        }
    }

    /// A process of an earlier guard's ledger that ended while no guard ran.
    fn ended_before_us(&self, domain: DomainId, note: Note) {
        let (core, copies, process) = (self.core.clone(), self.copies.clone(), note.process());
        let ended = copies.ended(note);
        let run = move || {
            let mut pause = Duration::from_millis(2);
            while ended.prove_gone().is_err() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            copies.remove(process);
            tell(&core, Event::Gone { domain, process });
        };
        if let Err(error) = std::thread::Builder::new().name("prove".into()).stack_size(256 << 10).spawn(run) {
            self.record.say(
                Severity::Error,
                format!("cannot start a thread to prove that process {} is gone: {error}", process.pid),
            );
        }
    }

    fn tell(&self, event: Event) {
        tell(&self.core, event);
    }
}

fn prove(copy: &Known, copies: &Copies, core: &Sender<Input>, record: &Record) {
    let (started, mut pause, mut complained) = (Instant::now(), Duration::from_millis(2), false);
    loop {
        match copy.prove_gone() {
            Ok(_proof) => {
                let process = copy.process.process.key();
                copies.remove(process);
                return tell(core, Event::Gone { domain: copy.process.domain, process });
            }
            Err(why) => {
                copy.is_not_gone(&why);
                if !complained && started.elapsed() >= COMPLAINT {
                    complained = true;
                    let who = label(&copy.process.name, copy.process.domain);
                    record.say(
                        Severity::Warning,
                        format!(
                            "domain {who}, process {}, ended and is not proven gone: {why}. It counts as running",
                            copy.process.process.pid()
                        ),
                    );
                }
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn seen(found: &DomainProcess) -> SeenCopy {
    SeenCopy {
        domain: found.domain,
        name: found.name.clone(),
        process: found.process.key(),
        started: found.process.started(),
        state: match found.run_state {
            RunState::Running => CopyState::Running,
            RunState::Paused => CopyState::Paused,
            RunState::Unknown => CopyState::Unknown,
        },
    }
}

fn tell(core: &Sender<Input>, event: Event) {
    core.send(Input::Event(event)).expect("the core lives as long as the process");
}
