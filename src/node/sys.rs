//! The system calls that neither std nor nix wraps, each behind a safe function.

use super::traces::FileId;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A libc result as `io::Result`: -1 becomes the error in `errno`.
fn cerr(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A new file descriptor out of a system call's result.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(cerr(result)?).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel has just returned this descriptor to us, so it is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// pidfd_open(2), Linux 5.3. The descriptor is close-on-exec.
pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: both arguments are plain numbers; no memory is passed.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// pidfd_send_signal(2), Linux 5.1: reaches the process the pidfd was opened for, or nobody.
pub(super) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed (the kernel fills in its own); the other arguments are plain numbers.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    cerr(result).map(drop)
}

/// pidfd_getfd(2), Linux 5.6: a duplicate of another process's descriptor. Needs CAP_SYS_PTRACE, or the same user and
/// a lenient Yama. The descriptor is close-on-exec.
pub(super) fn pidfd_getfd(pidfd: BorrowedFd<'_>, theirs: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: all arguments are plain numbers; no memory is passed.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), theirs, 0) })
}

/// sched_setattr(2) for the calling thread, Linux 3.14: policy, nice value, real-time priority and SCHED_FLAG_* flags.
pub(super) fn set_scheduling(policy: i32, nice: i32, priority: u32, flags: u64) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy.cast_unsigned(),
        sched_flags: flags,
        sched_nice: nice,
        sched_priority: priority,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of the structure, which lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    cerr(result).map(drop)
}

/// What the kernel knows of a file without asking its storage, which may not answer.
pub(super) struct Stat {
    mode: u32,
    device: u64,
    inode: u64,
    number: u64,
}

impl Stat {
    /// `None` for what has no pages to write back: directories, pipes, character devices.
    pub(super) fn file_id(&self) -> Option<FileId> {
        match self.mode & libc::S_IFMT {
            libc::S_IFREG => Some(FileId::File { device: self.device, inode: self.inode }),
            libc::S_IFBLK => Some(FileId::BlockDevice(self.number)),
            _ => None,
        }
    }
}

/// statx(2), Linux 4.11, with AT_STATX_DONT_SYNC: stat(2) of a file on NFS or FUSE waits for the server, for ever if it is gone.
pub(super) fn stat_from_memory(path: &str) -> io::Result<Stat> {
    let path = CString::new(path)?;
    // SAFETY: statx is plain numbers, for which all zeros is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, `found` is a statx to be written to, and both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_STATX_DONT_SYNC,
            libc::STATX_TYPE | libc::STATX_INO,
            &raw mut found,
        )
    };
    cerr(result)?;
    Ok(Stat {
        mode: u32::from(found.stx_mode),
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        number: libc::makedev(found.stx_rdev_major, found.stx_rdev_minor),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_failed_call_tells_its_errno() {
        assert_eq!(pidfd_open(-1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let me = pidfd_open(std::process::id() as i32).unwrap();
        assert_eq!(pidfd_getfd(me.as_fd(), 1_000_000).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
