//! Keeps the fence record on the disk. Nobody waits for it: a disk that hangs costs the record, and nothing else.

use super::copies::Copies;
use super::record::Record;
use crate::lease::event::Severity;
use crate::lease::fence::{Line, Mark, VERSION, What};
use crate::lease::fence_story::is_unfed;
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
        let (copies, record) = (copies.clone(), record.clone());
        let writer = Writer { place, copies, record, lost: lost.clone(), failed: false, unfed: None };
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
    /// The record's last word on the watchdog is that it is fed no more; `None`: an earlier guard's words were not read yet.
    unfed: Option<bool>,
}

impl Writer {
    fn run(mut self, marks: &Receiver<Mark>) {
        while let Ok(first) = marks.recv() {
            let mut batch: Vec<Mark> = std::iter::once(first).chain(marks.try_iter().take(AT_ONCE - 1)).collect();
            batch.retain(|mark| self.is_news(mark.event));
            let lines: Vec<u8> = batch.into_iter().flat_map(|mark| self.line(mark)).collect();
            self.tell(fence_journal::append(&self.place.state_dir, &lines));
        }
    }

    /// That the watchdog is fed, or stopped, is news only where the record says that it is fed no more, by this guard's
    /// word or by an earlier one's.
    fn is_news(&mut self, event: What) -> bool {
        match event {
            What::LastFeed => self.unfed = Some(true),
            What::FedAgain | What::Stopped => {
                let Place { state_dir, boot_id, .. } = &self.place;
                let earlier = || is_unfed(&fence_journal::read(state_dir).lines, *boot_id);
                return self.unfed.replace(false).unwrap_or_else(earlier);
            }
            _ => {}
        }
        true
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::fence::Unfed;
    use crate::lease::time::BootTime;
    use nix::sys::stat::Mode;
    use std::fs::OpenOptions;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    fn fences(state_dir: &Path) -> Fences {
        let place = Place {
            state_dir: state_dir.to_owned(),
            node: "n1".parse().unwrap(),
            boot_id: BootId::from_bytes([1; 16]),
            incarnation: Incarnation::from_bytes([2; 16]),
        };
        Fences::start(place, &Copies::default(), &Record::start().unwrap()).unwrap()
    }

    fn mark(event: What) -> Mark {
        let (at, device) = (BootTime::ZERO, "/dev/watchdog0".to_owned());
        let watchdog = Some(Unfed { device, timeout_s: 10, why: None, fed: at, reset_by: at });
        Mark { at, event, last_answer: None, domains: vec![], more: 0, watchdog }
    }

    /// The events in the record, once there are so many.
    fn kept(state_dir: &Path, count: usize) -> Vec<What> {
        for _ in 0..1000 {
            let lines = fence_journal::read(state_dir).lines;
            if lines.len() >= count {
                return lines.into_iter().map(|line| line.mark.event).collect();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the record never has {count} lines");
    }

    #[test]
    fn a_disk_that_hangs_holds_nobody_up_and_what_it_cost_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        // A full pipe for a disk that hangs: writing to it waits until somebody reads.
        let path = dir.path().join("fence-record.jsonl");
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
        let mut pipe = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        while pipe.write(&[b'\n'; 4096]).is_ok() {}
        let fences = fences(dir.path());
        let sent = 2 * (WAITING + AT_ONCE);
        for _ in 0..sent {
            // It never waits: this test would not end.
            fences.mark(mark(What::Killed));
        }
        assert!(fences.lost.load(Ordering::Relaxed) > 0);
        // The disk is back.
        let disk = OpenOptions::new().read(true).open(&path).unwrap();
        let lines = BufReader::new(disk).lines().map_while(Result::ok).filter(|line| !line.is_empty());
        let (mut written, mut lost) = (0, 0);
        for line in lines.map(|line| serde_json::from_str::<Line>(&line).unwrap()) {
            (written, lost) = (written + 1, lost + line.lost_marks);
            if written + lost == sent as u64 {
                return;
            }
        }
        panic!("{written} written and {lost} lost of {sent}");
    }

    #[test]
    fn that_the_device_is_fed_or_stopped_is_kept_where_the_record_says_that_it_is_not() {
        for end in [What::FedAgain, What::Stopped] {
            let dir = tempfile::tempdir().unwrap();
            let first = fences(dir.path());
            for event in [What::FedAgain, What::LastFeed] {
                first.mark(mark(event));
            }
            assert_eq!(kept(dir.path(), 1), [What::LastFeed], "a guard that begins to feed is no news");
            // It is killed; the next one takes the device over and feeds or stops it.
            let next = fences(dir.path());
            for event in [end, end, What::Killed] {
                next.mark(mark(event));
            }
            assert_eq!(kept(dir.path(), 3), [What::LastFeed, end, What::Killed]);
        }
    }
}
