//! What leaves the guard leaves in order and behind the ledger: a thread writes the ledger to /run and only then lets
//! the questions and verdicts of the same turn go.

use super::core::Input;
use super::record::Record;
use super::renew::Renewer;
use crate::lease::event::{Event, HookId, Question, Severity, Verdict};
use crate::node::files::{self, Durability};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex};

/// Something that may leave once the ledger is written.
pub enum Outward {
    /// A question, with its receipts.
    Ask(Question),
    /// A hook's verdict.
    Reply(HookId, Verdict),
}

/// A verdict, and why nothing may rely on the ledger if it could not be written.
pub struct Delivered {
    /// The verdict.
    pub verdict: Verdict,
    /// Why the ledger that it belongs to is not written.
    pub unwritten: Option<String>,
}

/// Hooks that wait, by their id.
#[derive(Clone, Default)]
pub struct Waiting(Arc<Mutex<HashMap<HookId, SyncSender<Delivered>>>>);

impl Waiting {
    /// From now on this hook's verdict goes there.
    pub fn enter(&self, hook: HookId, to: SyncSender<Delivered>) {
        self.0.lock().expect("no holder panics").insert(hook, to);
    }

    /// It waits no longer.
    pub fn leave(&self, hook: HookId) {
        self.0.lock().expect("no holder panics").remove(&hook);
    }

    fn reply(&self, hook: HookId, verdict: Delivered) {
        let waiting = self.0.lock().expect("no holder panics").remove(&hook);
        // A hook that has given up has been refused by its own deadline, and libvirt's `release` follows.
        waiting.map(|to| to.try_send(verdict));
    }
}

/// The way out.
pub struct Outbox(Sender<(Option<Vec<u8>>, Vec<Outward>)>);

impl Outbox {
    /// Starts the thread.
    pub fn start(
        ledger: PathBuf,
        renewer: Renewer,
        waiting: Waiting,
        core: Sender<Input>,
        record: Record,
    ) -> std::io::Result<Outbox> {
        let (sender, receiver) = channel();
        let run = move || run(&receiver, &ledger, &renewer, &waiting, &core, &record);
        std::thread::Builder::new().name("outbox".into()).stack_size(256 << 10).spawn(run)?;
        Ok(Outbox(sender))
    }

    /// Never blocks.
    pub fn send(&self, ledger: Option<Vec<u8>>, outward: Vec<Outward>) {
        self.0.send((ledger, outward)).expect("the outbox lives as long as the process");
    }
}

fn run(
    turns: &Receiver<(Option<Vec<u8>>, Vec<Outward>)>,
    path: &Path,
    renewer: &Renewer,
    waiting: &Waiting,
    core: &Sender<Input>,
    record: &Record,
) {
    // After a failed write nothing that relies on the ledger leaves until a later one succeeds.
    let mut unwritten: Option<String> = None;
    while let Ok((mut ledger, mut outward)) = turns.recv() {
        // Turns that wait go with the newest ledger: it holds all that theirs do and is not over yet.
        for (newer, more) in turns.try_iter() {
            ledger = newer.or(ledger);
            outward.extend(more);
        }
        if let Some(bytes) = ledger {
            match files::write_atomically(path, &bytes, 0o600, Durability::Kernel) {
                Ok(()) if unwritten.take().is_some() => {
                    record.say(Severity::Warning, "the ledger can be written again".into())
                }
                Ok(()) => {}
                Err(error) => {
                    let text = format!(
                        "the ledger: {error}. No start is let through and no receipt is sent until it can be written"
                    );
                    if unwritten.is_none() {
                        record.say(Severity::Error, text.clone());
                    }
                    unwritten = Some(text);
                }
            }
        }
        for item in outward {
            match (item, &unwritten) {
                (Outward::Ask(question), None) => renewer.ask(question),
                // rule 7: a receipt's denial must be in the ledger before it leaves
                (Outward::Ask(question), Some(_)) => {
                    // Told first, so that it is known before the answer is.
                    let withheld = Event::ReceiptsWithheld(question.number);
                    core.send(Input::Event(withheld)).expect("the core lives as long as the process");
                    renewer.ask(Question { receipts: Vec::new(), ..question });
                }
                (Outward::Reply(hook, verdict), why) => {
                    waiting.reply(hook, Delivered { verdict, unwritten: why.clone() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
