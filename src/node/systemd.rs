//! The service manager's side of the contract: sd_notify(3) and its file descriptor store (systemd.service(5)). Without
//! systemd all of it does nothing.

use super::sys;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket};
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// The first descriptor that the manager passes (sd_listen_fds(3), SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;
/// The most that are taken: this guard ever stored one.
const MOST: RawFd = 16;

/// The manager that started this process, if it wants to hear from it.
#[derive(Debug, Clone)]
pub struct Manager {
    socket: OsString,
    stores: bool,
}

impl Manager {
    /// By `$NOTIFY_SOCKET`; `$FDSTORE` (systemd 254) says that it keeps descriptors, over a stop of the unit too.
    pub fn from_environment() -> Option<Manager> {
        let socket = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())?;
        let stores = std::env::var("FDSTORE").is_ok_and(|most| most.parse::<u32>().is_ok_and(|most| most > 0));
        Some(Manager { socket, stores })
    }

    /// Whether it keeps what is given to [`Manager::store`].
    pub fn stores(&self) -> bool {
        self.stores
    }

    /// Tells it something like `READY=1`.
    ///
    /// # Errors
    /// Its socket does not take it; never waits for it.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.send(state, None)
    }

    /// Has it keep a duplicate of this descriptor under a name, without watching it for hang-ups (FDPOLL=0: a watchdog
    /// polls as broken, and would be dropped).
    ///
    /// # Errors
    /// As [`Manager::notify`]. That it was sent does not prove that it is kept.
    pub fn store(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), Some(descriptor.as_raw_fd()))
    }

    /// Has it close what it keeps under this name.
    ///
    /// # Errors
    /// As [`Manager::notify`].
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None)
    }

    fn send(&self, state: &str, descriptor: Option<RawFd>) -> io::Result<()> {
        let bytes = self.socket.as_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => UnixAddr::new_abstract(name)?,
            None => UnixAddr::new(bytes)?,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        let descriptors: Vec<RawFd> = descriptor.into_iter().collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control = if descriptors.is_empty() { &[][..] } else { &rights[..] };
        let message = [IoSlice::new(state.as_bytes())];
        sendmsg(socket.as_raw_fd(), &message, control, MsgFlags::MSG_NOSIGNAL, Some(&address))?;
        Ok(())
    }
}

/// The descriptors that the manager kept for this process, with their names. To be called once, before anything else is
/// opened: it takes them from the process's table.
pub fn kept() -> Vec<(String, OwnedFd)> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let numbers = passed(&variable("LISTEN_PID"), &variable("LISTEN_FDS"), std::process::id());
    let names = variable("LISTEN_FDNAMES");
    let mut names = names.split(':').map(str::to_owned);
    numbers.filter_map(|number| Some((names.next().unwrap_or_default(), sys::take_passed(number).ok()?))).collect()
}

/// The numbers of the descriptors passed: none if they are another process's.
fn passed(pid: &str, count: &str, own: u32) -> std::ops::Range<RawFd> {
    let count: RawFd = if pid.parse() == Ok(own) { count.parse().unwrap_or(0) } else { 0 };
    FIRST..FIRST + count.clamp(0, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    use std::fs::File;
    use std::io::{IoSliceMut, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_descriptor_is_stored_by_its_name_and_arrives_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = Manager { socket: path.clone().into(), stores: true };
        let end = UnixDatagram::bind(&path).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        manager.store("watchdog", file.as_fd()).unwrap();
        let mut bytes = [0; 128];
        let mut control = nix::cmsg_space!([RawFd; 2]);
        let (state, received) = {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let got = recvmsg::<()>(end.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty()).unwrap();
            let Some(ControlMessageOwned::ScmRights(received)) = got.cmsgs().unwrap().next() else { panic!() };
            (got.bytes, received)
        };
        assert_eq!(&bytes[..state], b"FDSTORE=1\nFDNAME=watchdog\nFDPOLL=0");
        let theirs = File::from(sys::take_passed(received[0]).unwrap());
        file.write_all(b"x").unwrap();
        assert_eq!(theirs.metadata().unwrap().len(), 1, "it is the same file");
        manager.remove("watchdog").unwrap();
        assert_eq!(end.recv(&mut bytes).unwrap(), b"FDSTOREREMOVE=1\nFDNAME=watchdog".len());
    }

    #[test]
    fn nobody_listening_is_an_error_and_no_wait() {
        let manager = Manager { socket: "/nonexistent/notify".into(), stores: false };
        assert!(manager.notify("READY=1").is_err());
    }

    #[test]
    fn descriptors_meant_for_another_process_are_left_alone() {
        assert_eq!(passed("41", "1", 41), 3..4);
        for (pid, count) in [("40", "1"), ("", ""), ("41", "-1"), ("41", "x")] {
            assert_eq!(passed(pid, count, 41), 3..3);
        }
        assert_eq!(passed("41", "4000000", 41), 3..19);
    }
}
