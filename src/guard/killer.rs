//! SIGKILL, at once and again until the process is proven gone. It needs nothing but memory and the kernel (rule 6).

use super::copies::Copies;
use super::record::Record;
use crate::lease::event::Severity;
use crate::lease::id::{DomainId, ProcessKey};
use crate::lease::ledger::label;
use crate::lease::time::BootTime;
use crate::node::{clock, kill, realtime};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Between two rounds of killing what will not die, or what a dying domain's cgroup still starts.
const ROUND: Duration = Duration::from_millis(100);
/// An operator hears of what will not die after this long, and every so often from then on.
const COMPLAINT: Duration = Duration::from_secs(5);

/// Kills.
pub struct Killer(Sender<(DomainId, ProcessKey)>);

impl Killer {
    /// Starts the thread.
    pub fn start(copies: &Copies, record: &Record) -> std::io::Result<Killer> {
        let (sender, receiver) = channel();
        let (copies, record) = (copies.clone(), record.clone());
        std::thread::Builder::new()
            .name("kill".into())
            .stack_size(256 << 10)
            .spawn(move || run(&receiver, &copies, &record))?;
        Ok(Killer(sender))
    }

    /// Never blocks.
    pub fn kill(&self, domain: DomainId, process: ProcessKey) {
        self.0.send((domain, process)).expect("the killer lives as long as the process");
    }
}

struct Condemned {
    domain: DomainId,
    process: ProcessKey,
    complain_at: BootTime,
}

fn run(orders: &Receiver<(DomainId, ProcessKey)>, copies: &Copies, record: &Record) {
    // Refused for this thread as for the core, which says so.
    let _ = realtime::run_this_thread_first();
    let mut condemned: Vec<Condemned> = Vec::new();
    loop {
        let order = if condemned.is_empty() {
            orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            orders.recv_timeout(ROUND)
        };
        match order {
            Ok((domain, process)) => {
                strike(domain, process, copies);
                condemned.push(Condemned { domain, process, complain_at: clock::now() + COMPLAINT });
                // More orders first: two hundred domains that lapse together are all struck before any is struck again.
                while let Ok((domain, process)) = orders.try_recv() {
                    strike(domain, process, copies);
                    condemned.push(Condemned { domain, process, complain_at: clock::now() + COMPLAINT });
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                condemned.retain(|copy| !copies.is_gone(copy.process));
                for copy in &mut condemned {
                    strike(copy.domain, copy.process, copies);
                    complain(copy, copies, record);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn strike(domain: DomainId, process: ProcessKey, copies: &Copies) {
    // What the scan does not know yet is in its next one: the order stays.
    if let Some(copy) = copies.get(domain, process) {
        kill::kill(&copy.process);
    }
}

fn complain(copy: &mut Condemned, copies: &Copies, record: &Record) {
    let now = clock::now();
    if now < copy.complain_at {
        return;
    }
    copy.complain_at = now + COMPLAINT;
    let why = copies.get(copy.domain, copy.process);
    let name = why.as_ref().map(|known| known.process.name.clone()).unwrap_or_default();
    let why = why.and_then(|known| known.why_not_gone()).unwrap_or_else(|| "no scan has found it yet".into());
    let who = label(&name, copy.domain);
    record.say(
        Severity::Error,
        format!("domain {who}, process {}, was sent SIGKILL and is not proven gone: {why}. It counts as running; no start of it elsewhere is safe", copy.process.pid),
    );
}
