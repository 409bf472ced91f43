//! One process, immune to reused pids: a pidfd beside the pid and the start time.

use super::{files, sys};
use crate::lease::id::ProcessKey;
use crate::lease::time::BootTime;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Clock ticks per second in /proc. The kernel's ABI on every architecture Rust's std supports but alpha.
const USER_HZ: u64 = 100;

/// A process that was alive when it was opened. Signals reach this process or nobody, whatever its pid is used for later.
#[derive(Debug)]
pub struct Process {
    key: ProcessKey,
    pidfd: OwnedFd,
}

impl Process {
    /// The process that has this pid now.
    ///
    /// # Errors
    /// `ESRCH` when there is none or it has exited; a lack of descriptors; an unreadable /proc.
    pub fn open(pid: i32) -> io::Result<Process> {
        let pidfd = sys::pidfd_open(pid)?;
        let key = key_of(pid).map_err(vanished)?;
        let process = Process { key, pidfd };
        // The start time was read by pid: it is this process's only if this process still holds the pid.
        if process.has_exited() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(process) }
    }

    /// Its pid and start time.
    pub fn key(&self) -> ProcessKey {
        self.key
    }

    /// Its pid. Anything read from /proc by it counts only if [`Process::has_exited`] is false *afterwards*.
    pub fn pid(&self) -> i32 {
        self.key.pid
    }

    /// SIGKILL. A process that has already exited is no error.
    ///
    /// # Errors
    /// `EPERM`, when this process may not signal that one.
    pub fn kill(&self) -> io::Result<()> {
        match sys::pidfd_send_signal(self.pidfd.as_fd(), libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result,
        }
    }

    /// True once every thread of it has exited (the pidfd is readable, pidfd_open(2)); then its files are closed too. A
    /// process whose leader is dead and which has a thread left in state D shows `Z` in /proc and is still false here.
    pub fn has_exited(&self) -> bool {
        loop {
            match poll(&mut [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) {
                Err(nix::errno::Errno::EINTR) => continue,
                // An error proves nothing.
                Err(_) => return false,
                Ok(ready) => return ready == 1,
            }
        }
    }

    /// When it started; up to one clock tick (10 ms) early.
    pub fn started(&self) -> BootTime {
        started(self.key)
    }

    /// A duplicate of its descriptor `theirs`, for sockets only: a duplicate of a file would hold its locks.
    pub(super) fn take_fd(&self, theirs: i32) -> io::Result<OwnedFd> {
        sys::pidfd_getfd(self.pidfd.as_fd(), theirs)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// When a process started; up to one clock tick (10 ms) early. /proc counts it in CLOCK_BOOTTIME (proc_pid_stat(5)).
pub fn started(key: ProcessKey) -> BootTime {
    BootTime::ZERO + Duration::from_millis(key.started.saturating_mul(1000 / USER_HZ))
}

/// What /proc/PID/stat says of a process or a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// `R`, `S`, `D`, `Z` and so on.
    pub state: char,
    pub parent: i32,
    pub started: u64,
}

/// Reads a stat file: /proc/PID/stat or /proc/PID/task/TID/stat.
pub(super) fn stat_at(path: &Path) -> io::Result<Stat> {
    let text = files::read_all_of(File::open(path)?, 4096)?;
    parse_stat(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{}: not understood", path.display())))
}

/// The name stands in parentheses and may hold any byte, `)` and spaces too: the fields begin after the last `)`.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, started })
}

/// The pid and start time of the process that has this pid now, dead leaders and zombies included.
///
/// # Errors
/// `NotFound` when there is none; an unreadable /proc.
pub fn key_of(pid: i32) -> io::Result<ProcessKey> {
    Ok(ProcessKey { pid, started: stat_at(Path::new(&format!("/proc/{pid}/stat")))?.started })
}

/// Whether this very process is still there and not merely waiting to be reaped.
pub fn exists(key: ProcessKey) -> bool {
    Process::open(key.pid).is_ok_and(|process| process.key() == key)
}

/// The pid of the parent of the process that has this pid now; `None` when it is gone or has none.
pub fn parent_of(pid: i32) -> Option<i32> {
    let parent = stat_at(Path::new(&format!("/proc/{pid}/stat"))).ok()?.parent;
    (parent > 0).then_some(parent)
}

/// The kernel's short name of a process: at most 15 bytes, changeable by the process. For people and as a hint.
pub fn comm_of(pid: i32) -> io::Result<String> {
    let text = files::read_all_of(File::open(format!("/proc/{pid}/comm"))?, 256)?;
    Ok(String::from_utf8_lossy(text.trim_ascii_end()).into_owned())
}

/// The threads of a process.
pub(super) fn tasks_of(pid: i32) -> io::Result<Vec<i32>> {
    let mut tasks = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            tasks.push(tid);
        }
    }
    Ok(tasks)
}

/// A thread through which /proc still tells what the process is: its leader, or, once that is a zombie, one that lives.
pub(super) fn living_task(pid: i32) -> io::Result<Option<i32>> {
    for tid in std::iter::once(pid).chain(tasks_of(pid)?) {
        match stat_at(Path::new(&format!("/proc/{pid}/task/{tid}/stat"))) {
            Ok(stat) if !matches!(stat.state, 'Z' | 'X') => return Ok(Some(tid)),
            Err(error) if !is_vanished(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}

/// Whether an error of /proc means only that the process ended meanwhile.
pub(super) fn is_vanished(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// `NotFound` of a /proc file as the `ESRCH` it means.
fn vanished(error: io::Error) -> io::Error {
    if is_vanished(&error) { io::Error::from_raw_os_error(libc::ESRCH) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::clock;
    use crate::node::testing::Child;

    #[test]
    fn a_name_cannot_forge_the_fields_behind_it() {
        let line = b"42 (a) S 1 ) R 9) D 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 1\n";
        assert_eq!(parse_stat(line), Some(Stat { state: 'D', parent: 7, started: 98765 }));
        for broken in ["", "42 (a", "42 (a) S", "42 (a) S x 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8"] {
            assert_eq!(parse_stat(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn a_killed_process_has_exited_and_its_pidfd_tells_before_it_is_reaped() {
        let mut child = Child::sleeping();
        let process = Process::open(child.pid()).unwrap();
        assert!(!process.has_exited() && exists(process.key()));
        assert_eq!(parent_of(child.pid()), Some(std::process::id() as i32));
        process.kill().unwrap();
        child.wait_exited(&process);
        assert!(process.has_exited());
        assert!(!exists(process.key()), "a zombie is not alive");
        assert_eq!(Process::open(child.pid()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        child.reap();
        process.kill().expect("killing the dead is no error");
    }

    #[test]
    fn another_start_time_is_another_process() {
        let child = Child::sleeping();
        let key = key_of(child.pid()).unwrap();
        assert!(exists(key));
        assert!(!exists(ProcessKey { started: key.started + 1, ..key }));
    }

    #[test]
    fn a_start_time_is_an_instant_of_our_clock() {
        let before = clock::now();
        let child = Child::sleeping();
        let started = Process::open(child.pid()).unwrap().started();
        assert!(started + Duration::from_millis(10) >= before && started <= clock::now());
    }

    #[test]
    fn the_living_task_of_a_living_process_is_its_leader() {
        let child = Child::sleeping();
        assert_eq!(living_task(child.pid()).unwrap(), Some(child.pid()));
    }
}
