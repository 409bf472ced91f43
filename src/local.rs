//! What travels over the guard's unix socket: one JSON line each way, then the connection ends.

use crate::disks::HostCached;
use crate::lease::event::HookOp;
use crate::lease::id::{DomainId, ProcessKey};
use crate::lease::time::BootTime;
use crate::lease::view::StatusView;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the guard keeps what must not outlive the boot: a tmpfs on every current distribution (file-hierarchy(7)).
pub const RUN_DIR: &str = "/run/leasehold";
/// The longest request line, in bytes.
pub const MAX_REQUEST: u64 = 64 << 10;
/// The longest reply line, in bytes: the status of 10 000 domains.
pub const MAX_REPLY: u64 = 16 << 20;

/// The guard's socket.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("guard.sock")
}

/// The ledger's file.
pub fn ledger_path(run_dir: &Path) -> PathBuf {
    run_dir.join("ledger.json")
}

/// Held by the guard, of which there is one.
pub fn lock_path(run_dir: &Path) -> PathBuf {
    run_dir.join("guard.lock")
}

/// What each process would leave behind, for the next guard.
pub fn notes_path(run_dir: &Path) -> PathBuf {
    run_dir.join("copies.json")
}

/// What the hook must know before, or without, the guard.
pub fn hook_settings_path(run_dir: &Path) -> PathBuf {
    run_dir.join("hook.json")
}

/// Left by the guard for the hook, which reads no configuration on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookSettings {
    /// How long libvirt is kept waiting at most.
    pub deadline_ms: u64,
    /// The guard observes: nothing is refused, with the guard away either.
    pub observe: bool,
    /// The node, for messages.
    pub node: String,
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// From our hook.
    Hook(HookRequest),
    /// From `leasehold status`.
    Status,
    /// From `leasehold drain` (`true`) and `leasehold undrain`; answered with the status after it.
    Drain(bool),
    /// From `leasehold drain --force-disarm`, with the node's name typed in.
    ForceDisarm,
}

/// What libvirt told the hook.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HookRequest {
    /// `<uuid>` of the XML.
    pub domain: DomainId,
    /// libvirt's first argument.
    pub name: String,
    /// libvirt's second and third argument.
    pub op: HookOp,
    /// The libvirt daemon, if it is an ancestor of the hook.
    pub daemon: Option<ProcessKey>,
    /// `<domain id=...>` of the XML.
    pub run: Option<i64>,
    /// When libvirt ran the hook. A guard that was stopped reads the questions of hooks that have long given up.
    #[serde(default)]
    pub asked: Option<BootTime>,
    /// At `prepare`: the disks that go through the host's page cache.
    #[serde(default)]
    pub host_cached: HostCached,
    /// The hook gives up this many milliseconds later.
    pub within_ms: u64,
}

/// A reply.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The hook exits 0.
    Allow,
    /// The hook prints this and exits 1.
    Refuse(String),
    /// The state.
    Status(Box<StatusView>),
    /// The request was not understood; why.
    Bad(String),
}

/// Asks the guard, waiting at most `timeout` for each of its steps.
pub fn ask(run_dir: &Path, request: &Request, timeout: Duration) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket_path(run_dir))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write_line(&mut stream, request)?;
    await_reply(&stream, timeout)?;
    read_line(&stream, MAX_REPLY)
}

/// Waits as long as it was told to: SO_RCVTIMEO alone comes up to an eighth late (seen: 2.9 s became more than 3.0), since
/// the kernel's timer wheel rounds long waits up (kernel/time/timer.c), and poll(2) does not.
fn await_reply(stream: &UnixStream, timeout: Duration) -> io::Result<()> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], wait) {
            Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes one message.
pub fn write_line(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one message of at most `limit` bytes.
pub fn read_line<T: for<'de> Deserialize<'de>>(from: impl Read, limit: u64) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(from.take(limit)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the message has no end"));
    }
    serde_json::from_slice(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_line_whatever_the_name_holds() {
        let sent = Request::Hook(HookRequest {
            domain: DomainId::from_bytes([3; 16]),
            name: "a\nb \"c\" é -".into(),
            op: HookOp::Prepare,
            daemon: None,
            run: Some(4),
            asked: None,
            host_cached: HostCached::default(),
            within_ms: 2700,
        });
        let mut line = Vec::new();
        write_line(&mut line, &sent).unwrap();
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let Request::Hook(read) = read_line(&line[..], MAX_REQUEST).unwrap() else { panic!() };
        assert_eq!(read.name, "a\nb \"c\" é -");
    }

    #[test]
    fn an_endless_message_is_refused_at_its_limit() {
        let error = read_line::<Request>(io::repeat(b'x'), 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
