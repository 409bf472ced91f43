//! Child processes for the tests of this folder: killed and reaped when they go out of scope.

use super::process::Process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) struct Child(std::process::Child);

impl Child {
    /// A child that does nothing until it is killed.
    pub(crate) fn sleeping() -> Child {
        Child::spawn(Command::new("cat"))
    }

    /// Runs `command` with a pipe as its standard input that stays open.
    pub(crate) fn spawn(mut command: Command) -> Child {
        Child(command.stdin(Stdio::piped()).spawn().expect("the test's child starts"))
    }

    /// A real process under QEMU's name with these arguments: a copy of the shell in `dir`, waiting for its standard input.
    pub(crate) fn posing_as_qemu(dir: &Path, binary: &str, arguments: &[&str]) -> Child {
        let path = dir.join(binary);
        std::fs::copy("/bin/sh", &path).expect("the shell can be copied");
        let mut command = Command::new(&path);
        command.args(["-c", "echo up; read x; :"]).args(arguments).stdout(Stdio::piped());
        let mut child = Child::spawn(command);
        let mut up = [0; 3];
        std::io::Read::read_exact(child.0.stdout.as_mut().expect("piped"), &mut up).expect("the child runs");
        child
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Waits for the pidfd, at most 10 s.
    pub(crate) fn wait_exited(&self, process: &Process) {
        let ready = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::from(10_000u16));
        assert_eq!(ready, Ok(1), "pid {} exits", self.pid());
    }

    pub(crate) fn write_line(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{line}").expect("the child reads");
    }

    pub(crate) fn reap(&mut self) {
        self.0.wait().expect("our child");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says loudly why a test proves nothing here.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub(crate) fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}
