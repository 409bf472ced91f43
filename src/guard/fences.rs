//! Keeps the fence record on the disk. Nobody waits for it: a disk that hangs costs the record, and nothing else.

use super::copies::Copies;
use super::record::Record;
use crate::lease::event::Severity;
use crate::lease::fence::{Line, Mark, VERSION, What};
use crate::lease::id::{BootId, Incarnation, NodeId};
use crate::node::fence_journal;
use crate::node::wall::wall;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Marks that may wait; more are lost and counted.
const WAITING: usize = 1024;
/// Marks that are written at once.
const AT_ONCE: usize = 256;

/// The way into the record. Cheap to copy, never blocks.
#[derive(Clone)]
pub struct Fences {
    marks: SyncSender<Mark>,
    lost: Arc<AtomicU64>,
}

/// Whose record it is.
pub struct Place {
    /// Where it is kept.
    pub state_dir: PathBuf,
    /// This node.
    pub node: NodeId,
    /// This boot.
    pub boot_id: BootId,
    /// This guard.
    pub incarnation: Incarnation,
}

impl Fences {
    /// Starts the thread.
    pub fn start(place: Place, copies: &Copies, record: &Record) -> io::Result<Fences> {
        let (marks, receiver) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let writer =
            Writer { place, copies: copies.clone(), record: record.clone(), lost: lost.clone(), failed: false };
        std::thread::Builder::new().name("fences".into()).stack_size(256 << 10).spawn(move || writer.run(&receiver))?;
        Ok(Fences { marks, lost })
    }

    /// Passes a mark on.
    pub fn mark(&self, mark: Mark) {
        if self.marks.try_send(mark).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Writer {
    place: Place,
    copies: Copies,
    record: Record,
    lost: Arc<AtomicU64>,
    failed: bool,
}

impl Writer {
    fn run(mut self, marks: &Receiver<Mark>) {
        while let Ok(first) = marks.recv() {
            let batch: Vec<Mark> = std::iter::once(first).chain(marks.try_iter().take(AT_ONCE - 1)).collect();
            let lines: Vec<u8> = batch.into_iter().flat_map(|mark| self.line(mark)).collect();
            self.tell(fence_journal::append(&self.place.state_dir, &lines));
        }
    }

    fn line(&self, mut mark: Mark) -> Vec<u8> {
        if mark.event == What::GivenUp {
            for victim in &mut mark.domains {
                let reasons = self.copies.reasons(victim.domain, true);
                victim.waits_for =
                    reasons.into_iter().find(|(pid, _)| *pid == victim.pid).map(|(_, reason)| reason.why);
            }
        }
        let Place { node, boot_id, incarnation, .. } = &self.place;
        let line = Line {
            version: VERSION,
            node: node.clone(),
            boot_id: *boot_id,
            incarnation: *incarnation,
            wall: wall(),
            lost_marks: self.lost.swap(0, Ordering::Relaxed),
            mark,
        };
        let mut bytes = serde_json::to_vec(&line).expect("a line is plain data");
        bytes.push(b'\n');
        bytes
    }

    /// Says when writing begins to fail and when it goes again, not every time.
    fn tell(&mut self, written: io::Result<()>) {
        let failed = written.is_err();
        match written {
            Err(error) if !self.failed => self.record.say(
                Severity::Error,
                format!("the fence record is not kept: {error}. Kills and resets go on; `leasehold why` will know nothing of them"),
            ),
            Ok(()) if self.failed => self.record.say(Severity::Info, "the fence record is kept again".into()),
            _ => {}
        }
        self.failed = failed;
    }
}
