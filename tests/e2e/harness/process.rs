//! One program that a test started: its output in files, its end by pid.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use super::wait_until;

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Finished {
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// Fails the test with everything the program said, unless it succeeded.
    #[track_caller]
    pub fn expect_ok(self) -> String {
        assert!(self.ok(), "{} and said:\n{}{}", self.status, self.out, self.err);
        self.out
    }

    /// Fails the test unless it did not succeed; gives what it said on stderr.
    #[track_caller]
    pub fn expect_failure(self) -> String {
        assert!(!self.ok(), "it succeeded, and said:\n{}{}", self.out, self.err);
        self.err
    }
}

/// A program that runs. Dropping it kills it, and shows its log if the test is failing.
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    pub(super) fn new(child: Child, name: &str, log: PathBuf) -> Process {
        Process { child, name: name.to_owned(), log }
    }

    /// Its pid in the test's own pid namespace.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Everything it wrote so far, stdout and stderr together.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the process of this handle is not yet waited for");
    }

    /// Ends it as an operator would, and fails the test if it does not go.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_for_end(Duration::from_secs(10))
    }

    /// SIGKILL: it gets no chance to say goodbye.
    pub fn kill(mut self) {
        self.end();
    }

    pub fn wait_for_end(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} ended", self.name);
        wait_until(&what, limit, || self.has_ended());
        self.child.wait().expect("it has ended")
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits until its log holds `text`.
    #[track_caller]
    pub fn wait_for_log(&mut self, text: &str, limit: Duration) {
        let start = std::time::Instant::now();
        while !self.log().contains(text) {
            let ended = self.has_ended();
            let waited = start.elapsed();
            assert!(!ended && waited < limit, "{} never said '{text}' (ended: {ended}):\n{}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(&mut self) {
        // SIGKILL works on a stopped process too; an error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            super::world::tell(&format!("--- log of {}:\n{}", self.name, self.log()));
        }
    }
}
