//! Ways in which a domain's writes can outlive its process. docs/safety.md says what was measured of each.

use serde::{Deserialize, Serialize};

/// One way for one domain's writes to arrive after its process is dead.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LateWrite {
    /// Which way.
    pub way: Way,
    /// Through what: a path, a connection, a device and its kind.
    pub what: String,
}

/// Which way a write can go after its process is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Dirty pages of the host.
    PageCache,
    /// The send queue of the process's own TCP connection.
    Tcp,
    /// Requests of an io_uring.
    IoUring,
    /// Requests of an io_uring on a file that is not locked, so that nobody sees when they are over.
    IoUringUnseen,
    /// A block device that the host's kernel serves from elsewhere by itself: rbd, nbd, iSCSI, NVMe over a network, a loop.
    KernelBlockClient,
    /// A file system whose client is in this host's kernel.
    NetworkFileSystem,
    /// A file system that a process outside the domain serves (FUSE).
    FileServer,
}

impl Way {
    /// What it is, for people.
    pub fn name(self) -> &'static str {
        match self {
            Way::PageCache => "the host's page cache",
            Way::Tcp => "a TCP connection of its own",
            Way::IoUring | Way::IoUringUnseen => "requests of its io_uring",
            Way::KernelBlockClient => "a block device that the host's kernel serves from elsewhere",
            Way::NetworkFileSystem => "a network file system of the host's kernel",
            Way::FileServer => "a file system served by another process",
        }
    }

    /// What ends it, for people.
    pub fn ended_by(self) -> &'static str {
        match self {
            Way::PageCache => "a flush; leasehold waits for it",
            Way::Tcp => "a reset of the connection; leasehold brings it about",
            Way::IoUring => "the last request's end; leasehold waits for it",
            Way::IoUringUnseen => "the last request's end, which leasehold cannot see: let QEMU lock its images",
            Way::KernelBlockClient => {
                "an answer of the storage, which leasehold waits for; if the kernel gave up on it: unmapping or logging out here, or a blocklist at the storage"
            }
            Way::NetworkFileSystem => {
                "a flush, which leasehold waits for; if the kernel gave up on it: unmounting here, or an eviction at the server"
            }
            Way::FileServer => "a flush, which leasehold waits for and its server must honour; or that server's end",
        }
    }

    /// Whether leasehold's own proof covers it whatever the host's kernel does.
    pub fn is_covered(self) -> bool {
        matches!(self, Way::PageCache | Way::Tcp | Way::IoUring)
    }
}
