//! What a process holds open, as /proc tells it. Nothing here asks a storage, which may not answer.

use super::locks::{self, LockedFile};
use super::process::{self, Process, is_vanished};
use super::sys;
use super::traces::FileId;
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// One of a process's descriptors.
pub(super) struct Descriptor {
    pub number: RawFd,
    /// What its link in /proc says it is.
    pub target: PathBuf,
    /// The thread's directory in /proc it was found in.
    pub task: Rc<str>,
}

/// A process's descriptors, by a thread that lives: a dead leader has none.
pub(super) fn of(process: &Process) -> io::Result<Vec<Descriptor>> {
    let pid = process.pid();
    let listed = (|| {
        let Some(tid) = process::living_task(pid)? else { return Ok(Vec::new()) };
        let task: Rc<str> = format!("/proc/{pid}/task/{tid}").into();
        let mut descriptors = Vec::with_capacity(64);
        for entry in fs::read_dir(format!("{task}/fd"))? {
            let entry = entry?;
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match fs::read_link(entry.path()) {
                Ok(target) => descriptors.push(Descriptor { number, target, task: task.clone() }),
                Err(error) if is_vanished(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(descriptors)
    })();
    match listed {
        Err(error) if is_vanished(&error) => Ok(Vec::new()),
        // Read by pid: worth nothing if the pid may be somebody else's by now.
        listed if process.has_exited() => listed.map(|_| Vec::new()),
        listed => listed,
    }
}

/// A regular file or block device that is open for writing.
pub(super) struct Writable {
    pub id: FileId,
    /// Writes do not go through the host's page cache.
    pub direct: bool,
    /// Which mount of the process's mount table it was opened through.
    pub mount: Option<u32>,
    pub locked: Option<LockedFile>,
}

impl Descriptor {
    /// Whether it is an io_uring. QEMU makes one for disks with `aio=io_uring`, and (as of 7.2) for nothing else.
    pub fn is_io_uring(&self) -> bool {
        self.target == Path::new("anon_inode:[io_uring]")
    }

    /// The inode of a socket.
    pub fn socket(&self) -> Option<u64> {
        self.target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }

    /// `None` for what is no file or block device, or cannot be written through it.
    pub fn writable(&self) -> io::Result<Option<Writable>> {
        let (task, number) = (&self.task, self.number);
        let Some(id) = sys::stat_from_memory(&format!("{task}/fd/{number}"))?.file_id() else { return Ok(None) };
        let info = super::files::read_all_of(File::open(format!("{task}/fdinfo/{number}"))?, 1 << 20)?;
        let info = String::from_utf8_lossy(&info);
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = field("flags:")
            .and_then(|flags| i32::from_str_radix(flags, 8).ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{task}/fdinfo/{number}: no flags")))?;
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
        Ok(writable.then(|| Writable {
            id,
            direct: flags & libc::O_DIRECT != 0,
            mount: field("mnt_id:").and_then(|mount| mount.parse().ok()),
            locked: locks::locked(&info),
        }))
    }
}
