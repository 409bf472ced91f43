//! Child processes for the tests of this folder: killed and reaped when they go out of scope.

use super::cgroup::{DomainCgroup, Mounts};
use super::command_line;
use super::domains::{DomainProcess, RunState};
use super::process::{Process, comm_of};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Child(std::process::Child);

impl Child {
    /// A child that does nothing until it is killed.
    pub(crate) fn sleeping() -> Child {
        Child::spawn(Command::new("cat"))
    }

    /// Runs `command` with a pipe as its standard input that stays open.
    pub(crate) fn spawn(mut command: Command) -> Child {
        let program = Path::new(command.get_program()).file_name().expect("a program has a name").to_string_lossy();
        // As the kernel keeps it (proc_pid_comm(5)).
        let name: String = program.chars().take(15).collect();
        let child = Child(command.stdin(Stdio::piped()).spawn().expect("the test's child starts"));
        // spawn(3) returns when the new program has its memory, a moment before it has its name.
        let begun = Instant::now();
        while comm_of(child.pid()).expect("our child is in /proc") != name {
            assert!(begun.elapsed() < Duration::from_secs(10), "pid {} is never called {name}", child.pid());
            std::thread::yield_now();
        }
        child
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

    /// Writes it a line, and reads one that must be `heard`.
    pub(crate) fn say_and_hear(&mut self, said: &str, heard: &str) {
        use std::io::{Read, Write};
        writeln!(self.0.stdin.as_mut().expect("piped"), "{said}").expect("the child reads");
        let mut answer = vec![0; heard.len() + 1];
        self.0.stdout.as_mut().expect("piped").read_exact(&mut answer).expect("the child answers");
        assert_eq!(answer, format!("{heard}\n").as_bytes());
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

/// A cgroup of the test's own that libvirt could have made for a domain; its processes are the test's to end before it.
pub(crate) struct TestCgroup(pub(crate) PathBuf);

impl TestCgroup {
    /// In the hierarchy with these controllers (none: cgroup v2), or `None`, said loudly.
    pub(crate) fn new(controllers: &str) -> Option<TestCgroup> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/qemu-{number}-leasehold-test-{}.libvirt-qemu", std::process::id());
        let Some(directory) = Mounts::read().expect("mountinfo").directory(controllers, &path) else {
            skipped(&format!("no cgroup hierarchy '{controllers}' is mounted here"));
            return None;
        };
        if let Err(error) = std::fs::create_dir(&directory) {
            skipped(&format!("cannot make the cgroup {}: {error}", directory.display()));
            return None;
        }
        Some(TestCgroup(directory))
    }

    /// A cgroup below it.
    pub(crate) fn below(&self, name: &str) -> PathBuf {
        let directory = self.0.join(name);
        std::fs::create_dir(&directory).expect("a cgroup in our own");
        directory
    }

    pub(crate) fn admit(directory: &Path, child: &Child) {
        std::fs::write(directory.join("cgroup.procs"), child.pid().to_string()).expect("our child, our cgroup");
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A child as a scan would give it.
pub(crate) fn domain(child: &Child) -> DomainProcess {
    let process = Arc::new(Process::open(child.pid()).expect("the child lives"));
    let cgroup = DomainCgroup::of(child.pid()).expect("the child lives");
    let line = format!("q\0-S\0-name\0guest=test\0-uuid\0{:08x}-0000-4000-8000-000000000000\0", child.pid());
    let named = command_line::parse(line.as_bytes()).expect("a domain's");
    DomainProcess { domain: named.domain, name: named.name, process, run_state: RunState::Unknown, cgroup }
}

/// Processor time that this thread has used: what a call costs, however busy the machine is.
pub(crate) fn thread_cpu_time() -> Duration {
    let time =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock");
    Duration::new(time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs() as u32)
}
