//! What of a process outlives it: data in the host's page cache, in the send queues of its TCP connections, and in requests
//! of its io_urings.
//!
//! Measured (kernel 6.18): dirty pages of a killed QEMU reached the storage 20-36 s after its death, requests in an orphaned
//! socket's queue up to 54 s after, an io_uring's whenever the block device went on. So they are noted while it lives and
//! looked after when it is dead (rule 7; docs/safety.md).

use super::descriptors::{self, Writable};
use super::domains::DomainProcess;
use super::locks::{self, LockedFile};
use super::mounts;
use super::process::{Process, is_vanished};
use super::sock_diag;
use super::tcp_table::{self, Connection};
use nix::sys::socket::{SockType, getsockopt, setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a file is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FileId {
    /// A file of a file system: its device and inode numbers.
    File {
        /// `st_dev`.
        device: u64,
        /// `st_ino`.
        inode: u64,
    },
    /// A block device, by its number (`st_rdev`).
    BlockDevice(u64),
}

impl FileId {
    /// `None` for what has no pages to write back: directories, pipes, character devices. Of a file that is *not* a
    /// domain's: the metadata were asked of its storage.
    pub(super) fn of(metadata: &fs::Metadata) -> Option<FileId> {
        if metadata.is_file() {
            Some(FileId::File { device: metadata.dev(), inode: metadata.ino() })
        } else if metadata.file_type().is_block_device() {
            Some(FileId::BlockDevice(metadata.rdev()))
        } else {
            None
        }
    }
}

/// What was noted of one process, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traces {
    /// Open for writing through the host's page cache or on a server's file system, and where.
    #[serde(with = "pairs")]
    pub(super) files: BTreeMap<FileId, PathBuf>,
    pub(super) connections: BTreeSet<Connection>,
    /// Open for writing and locked by a process with an io_uring, so that the kernel's table of locks tells when the last
    /// request is done.
    #[serde(default, with = "pairs")]
    pub(super) locked: BTreeMap<LockedFile, PathBuf>,
}

/// JSON has no keys but text, so a map of files is a list of pairs there.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    pub fn serialize<K: Serialize, S: Serializer>(files: &BTreeMap<K, PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        files.iter().collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'de, K, D>(from: D) -> Result<BTreeMap<K, PathBuf>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        D: Deserializer<'de>,
    {
        Vec::<(K, PathBuf)>::deserialize(from).map(|pairs| pairs.into_iter().collect())
    }
}

impl Traces {
    /// Notes what a living process holds open. A process that ends meanwhile leaves what was noted until then; ask before
    /// the kill, and again whenever its disks may have changed.
    ///
    /// # Errors
    /// An unreadable /proc, or no descriptors left: what was noted is then not all.
    pub fn of(process: &Process) -> io::Result<Traces> {
        let mut traces = Traces::default();
        let mut unopened = BTreeSet::new();
        let descriptors = descriptors::of(process)?;
        // Every other way to wait for a request keeps the process alive until that is done.
        let rings = descriptors.iter().any(descriptors::Descriptor::is_io_uring);
        for descriptor in descriptors {
            if let Some(inode) = descriptor.socket() {
                match take_tcp(process, descriptor.number) {
                    Ok(Some(socket)) => traces.connections.extend(connection_of(&socket)),
                    Ok(None) => {}
                    // Yama may forbid it even to root, and a dead leader has no descriptors to take though its threads have;
                    // the kernel's table says the same at more cost.
                    Err(error) if is_refused(&error) => drop(unopened.insert(inode)),
                    Err(error) if is_vanished(&error) => {}
                    Err(error) => return Err(error),
                }
            } else if descriptor.target.is_absolute() {
                match descriptor.writable() {
                    Err(error) if is_vanished(&error) => {}
                    file => traces.note_file(process.pid(), file?, rings, descriptor.target),
                }
            }
        }
        if !unopened.is_empty() {
            match tcp_table::read(Path::new(&format!("/proc/{}/net", process.pid()))) {
                // The whole process has ended meanwhile, or its leader, whose view of the network is ours as well.
                Err(error) if is_vanished(&error) || error.kind() == io::ErrorKind::InvalidInput => {
                    traces.note_sockets(&unopened, tcp_table::read(Path::new("/proc/self/net"))?);
                }
                table => traces.note_sockets(&unopened, table?),
            }
        }
        Ok(traces)
    }

    /// Notes what the whole domain holds open: its QEMU, and its helpers as far as its cgroup tells them.
    ///
    /// # Errors
    /// As [`Traces::of`].
    pub fn of_domain(domain: &DomainProcess) -> io::Result<Traces> {
        let mut traces = Traces::of(&domain.process)?;
        for member in domain.cgroup.members()? {
            if member.pid == domain.process.pid() || member.pid <= 0 {
                continue;
            }
            match Process::open(member.pid) {
                Err(error) if is_vanished(&error) => {}
                helper => traces.merge(Traces::of(&helper?)?),
            }
        }
        Ok(traces)
    }

    fn note_file(&mut self, pid: i32, file: Option<Writable>, rings: bool, path: PathBuf) {
        let Some(Writable { id, direct, mount, locked }) = file else { return };
        if let Some(locked) = locked.filter(|_| rings) {
            self.locked.insert(locked, path.clone());
        }
        if !direct || matches!(id, FileId::File { .. }) && is_served(pid, mount) {
            self.files.insert(id, path);
        }
    }

    fn note_sockets(&mut self, inodes: &BTreeSet<u64>, table: Vec<tcp_table::Row>) {
        self.connections.extend(table.into_iter().filter(|row| inodes.contains(&row.inode)).map(|row| row.connection));
    }

    /// Adds what another look, or a look at another process, has noted.
    pub fn merge(&mut self, other: Traces) {
        self.files.extend(other.files);
        self.connections.extend(other.connections);
        self.locked.extend(other.locked);
    }

    /// The files and block devices that were open for writing through the page cache.
    pub fn buffered_files(&self) -> impl Iterator<Item = &Path> {
        self.files.values().map(PathBuf::as_path)
    }

    /// The TCP connections.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter()
    }
}

/// Makes the death of this process reset its TCP connections and drop their queues (SO_LINGER {on, 0}, socket(7)), instead of leaving
/// orphans that go on sending. Needs nothing but the kernel. Returns how many connections were prepared; what cannot be
/// prepared is left, and [`orphans`] will see it.
pub fn reset_on_close(process: &Process) -> usize {
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    descriptors::of(process)
        .unwrap_or_default()
        .into_iter()
        .filter(|descriptor| descriptor.socket().is_some())
        .filter_map(|descriptor| take_tcp(process, descriptor.number).ok().flatten())
        .filter(|socket| setsockopt(socket, sockopt::Linger, &reset).is_ok())
        .count()
}

/// Connections of the dead that still hold data to send: in the kernel's table without an inode, that is without an owner.
/// They are looked for in this process's own network namespace, which is the one libvirt starts QEMUs in.
///
/// A connection that nobody noted, because it was younger than the last look, goes in all likelihood where a noted one went:
/// an orphan with the far end of a noted connection counts as well.
///
/// # Errors
/// /proc/self/net/tcp or tcp6 cannot be read.
pub fn orphans(traces: &Traces) -> io::Result<Vec<Connection>> {
    if traces.connections.is_empty() {
        return Ok(Vec::new());
    }
    let far: BTreeSet<_> = traces.connections.iter().map(|connection| connection.ends().1).collect();
    let table = tcp_table::read(Path::new("/proc/self/net"))?;
    let orphans = table.into_iter().filter(|row| row.is_orphan_with_data() && far.contains(&row.connection.ends().1));
    // The table is read in pieces while it changes, and may show one connection twice.
    let orphans: BTreeSet<Connection> = orphans.map(|row| row.connection).collect();
    Ok(orphans.into_iter().collect())
}

/// Files of the dead that the kernel still holds open for them: requests are under way.
///
/// # Errors
/// /proc cannot be read.
pub fn under_way(traces: &Traces) -> io::Result<Vec<PathBuf>> {
    locks::still_open(&traces.locked)
}

/// Ends those of the orphans that were noted, and drops their queues: what a dead process had left to send is never wanted.
/// What is not surely its own, and where the kernel cannot do it, is left to run out (a minute or two).
pub fn end_noted(orphans: &[Connection], traces: &Traces) {
    for orphan in orphans.iter().filter(|orphan| traces.connections.contains(orphan)) {
        // An orphan that is left keeps its process from being called gone, so the error needs no telling.
        let _ = sock_diag::end_orphan(orphan);
    }
}

/// A duplicate of a descriptor if it is a TCP socket (or another stream over IP: MPTCP, SCTP).
fn take_tcp(process: &Process, number: RawFd) -> io::Result<Option<TcpStream>> {
    let socket = TcpStream::from(process.take_fd(number)?);
    // Only an IP socket has an IP address.
    let over_ip = match socket.local_addr() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => false,
        address => address.map(|_| true)?,
    };
    Ok((over_ip && getsockopt(&socket, sockopt::SockType)? == SockType::Stream).then_some(socket))
}

/// `None` for a socket that listens or is not connected.
fn connection_of(socket: &TcpStream) -> Option<Connection> {
    Some(Connection::new(socket.local_addr().ok()?, socket.peer_addr().ok()?))
}

/// Whether a file is behind a server, which may keep back what the process believes written. When in doubt, it is.
fn is_served(pid: i32, mount: Option<u32>) -> bool {
    let mounts = mounts::of(pid).unwrap_or_default();
    let found = mounts.iter().find(|known| Some(known.id) == mount);
    found.is_none_or(|mount| mount.is_network() || mount.is_fuse())
}

/// Whether an error means that the descriptor cannot be had, though there may be one.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EBADF))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::Child;
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::{Command, Stdio};

    /// A child whose standard output is this, and which does nothing.
    fn holding(what: impl Into<Stdio>) -> (Child, Process) {
        let mut command = Command::new("cat");
        // What this test writes to is nothing of the child's.
        command.stdout(what).stderr(Stdio::null());
        let child = Child::spawn(command);
        let process = Process::open(child.pid()).unwrap();
        (child, process)
    }

    #[test]
    fn a_file_open_for_writing_through_the_page_cache_is_noted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str, write: bool, flags: i32| {
            let path = dir.path().join(name);
            fs::write(&path, "").unwrap();
            OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)
        };
        let noted = |file: File| {
            let (_child, process) = holding(file);
            Traces::of(&process).unwrap().buffered_files().map(Path::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(noted(open("disk", true, 0).unwrap()), [dir.path().join("disk")]);
        assert!(noted(open("base", false, 0).unwrap()).is_empty());
        // Not every file system can do O_DIRECT.
        if let Ok(direct) = open("direct", true, libc::O_DIRECT) {
            assert!(noted(direct).is_empty());
        }
        assert!(noted(OpenOptions::new().write(true).open("/dev/null").unwrap()).is_empty());
    }

    /// A connection with more written than the other end takes, held by a child alone; and the other end.
    fn stuffed() -> (Child, Process, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0xaa; 65536]).is_ok() {}
        let (child, process) = holding(OwnedFd::from(stream));
        (child, process, far)
    }

    #[test]
    fn a_killed_process_leaves_an_orphan_that_goes_on_sending() {
        let (mut child, process, far) = stuffed();
        let traces = Traces::of(&process).unwrap();
        assert_eq!(traces.connections().count(), 1);
        assert!(orphans(&traces).unwrap().is_empty(), "it has an owner yet");
        process.kill().unwrap();
        child.wait_exited(&process);
        child.reap();
        let left = orphans(&traces).unwrap();
        assert_eq!(left, traces.connections().copied().collect::<Vec<_>>());
        // Once it is taken, there is nothing to wait for: reads to the end.
        io::copy(&mut &far, &mut io::sink()).unwrap();
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !orphans(&traces).unwrap().is_empty() {
            assert!(std::time::Instant::now() < give_up, "the last acknowledgement comes");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_orphan_that_was_noted_is_ended_with_its_queue_and_one_to_the_same_place_is_waited_for() {
        let (mut child, process, far) = stuffed();
        let traces = Traces::of(&process).unwrap();
        process.kill().unwrap();
        child.wait_exited(&process);
        child.reap();
        let left = orphans(&traces).unwrap();
        let elsewhere = |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let (_, (_, port)) = left[0].ends();
        let younger = Connection::new(elsewhere(1), elsewhere(port));
        let unnoted = Traces { connections: [younger].into(), ..Traces::default() };
        assert_eq!(orphans(&unnoted).unwrap(), left, "it may be its own");
        end_noted(&left, &unnoted);
        assert_eq!(orphans(&traces).unwrap(), left, "and may be not");
        end_noted(&left, &traces);
        assert!(orphans(&traces).unwrap().is_empty());
        let end = io::copy(&mut &far, &mut io::sink()).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_connection_told_to_reset_dies_with_its_process_and_its_queue() {
        let (child, process, far) = stuffed();
        let traces = Traces::of(&process).unwrap();
        assert_eq!(reset_on_close(&process), 1);
        process.kill().unwrap();
        child.wait_exited(&process);
        assert!(orphans(&traces).unwrap().is_empty());
        let end = io::copy(&mut &far, &mut io::sink()).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_listening_socket_and_a_local_one_are_no_connections() {
        let (_child, process) = holding(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()));
        assert_eq!(Traces::of(&process).unwrap().connections().count(), 0);
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (_child, process) = holding(OwnedFd::from(near));
        assert_eq!(Traces::of(&process).unwrap(), Traces::default());
        assert_eq!(reset_on_close(&process), 0);
    }

    #[test]
    fn the_dead_leave_nothing_to_note() {
        let (child, process, _far) = stuffed();
        process.kill().unwrap();
        child.wait_exited(&process);
        assert_eq!(Traces::of(&process).unwrap(), Traces::default());
        assert_eq!(reset_on_close(&process), 0);
    }
}
