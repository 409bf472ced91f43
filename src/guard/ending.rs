//! Why an end is not proven, for the log and for `leasehold status`.

use crate::lease::time::BootTime;
use crate::lease::view::{FileView, NotGoneView, StuckView};
use crate::node::clock;
use crate::node::gone::NotGone;
use crate::node::stuck::StuckThread;
use std::sync::{Mutex, MutexGuard};

/// How far the proof of an end has come. A flush to storage that is away does not return, so what is being written back
/// is kept here before it is.
#[derive(Default)]
pub struct Progress(Mutex<Option<Stage>>);

enum Stage {
    Flushing { what: String, since: BootTime },
    Failed { why: String, stuck: Vec<StuckThread> },
}

/// Why one process counts as running.
pub struct Reason {
    /// A sentence about it.
    pub why: String,
    /// The threads that no signal reaches.
    pub stuck: Vec<StuckThread>,
}

impl Progress {
    /// This is about to be written back.
    pub fn flushes(&self, what: String) {
        *self.stage() = Some(Stage::Flushing { what, since: clock::now() });
    }

    /// An attempt failed.
    pub fn failed(&self, refused: &NotGone) {
        let Reason { why, stuck } = refused.into();
        *self.stage() = Some(Stage::Failed { why, stuck });
    }

    /// What stands in the way now, if that is known.
    pub fn reason(&self) -> Option<Reason> {
        self.stage().as_ref().map(|stage| match stage {
            Stage::Flushing { what, since } => {
                let waited = clock::now().since(*since).as_secs_f64();
                let why = format!("it has ended, and {what} is being written back for {waited:.1} s");
                Reason { why, stuck: Vec::new() }
            }
            Stage::Failed { why, stuck } => Reason { why: why.clone(), stuck: stuck.clone() },
        })
    }

    fn stage(&self) -> MutexGuard<'_, Option<Stage>> {
        self.0.lock().expect("no holder panics")
    }
}

impl From<&NotGone> for Reason {
    fn from(refused: &NotGone) -> Reason {
        let why = refused.to_string();
        let stuck = match refused {
            NotGone::Alive { stuck, .. } | NotGone::CgroupPopulated { stuck, .. } => stuck.clone(),
            _ => Vec::new(),
        };
        Reason { why, stuck }
    }
}

impl Reason {
    /// As `leasehold status` shows it.
    pub fn view(self, pid: i32) -> NotGoneView {
        let thread = |thread: StuckThread| StuckView {
            pid: thread.pid,
            tid: thread.tid,
            comm: thread.comm,
            waits_in: thread.waits_in,
            files: thread
                .files
                .into_iter()
                .map(|file| FileView { path: file.path.display().to_string(), storage: file.storage })
                .collect(),
        };
        NotGoneView { pid, why: self.why, stuck: self.stuck.into_iter().map(thread).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_hangs_is_told_with_its_file_and_a_failed_attempt_with_its_reason() {
        let progress = Progress::default();
        assert!(progress.reason().is_none());
        progress.flushes("/srv/disk.raw".into());
        let why = progress.reason().unwrap().why;
        assert!(why.starts_with("it has ended, and /srv/disk.raw is being written back for 0."), "{why}");
        progress.failed(&NotGone::Alive { pid: 7, stuck: Vec::new() });
        assert_eq!(progress.reason().unwrap().why, "pid 7 has not exited");
    }
}
