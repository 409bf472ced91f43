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

/// Takes a descriptor that this process was started with, and marks it close-on-exec.
pub(super) fn take_passed(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a plain number; an invalid one is an error.
    cerr(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    // SAFETY: it is open, as the call above has shown, and who passed it left it to this process alone; it is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
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

/// ioprio_set(2) for the calling thread, which has no wrapper in the C library: IOPRIO_CLASS_* (include/uapi/linux/ioprio.h)
/// and a level, 0 the most favoured.
pub(super) fn set_io_priority(class: u16, level: u16) -> io::Result<()> {
    const WHO_PROCESS: i32 = 1;
    let priority = i32::from(class) << 13 | i32::from(level);
    // SAFETY: all arguments are plain numbers; no memory is passed.
    cerr(unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority) }).map(drop)
}

/// ioprio_get(2): class and level of the calling thread; class 0: none of its own.
#[cfg(test)]
pub(super) fn io_priority() -> io::Result<(u16, u16)> {
    const WHO_PROCESS: i32 = 1;
    // SAFETY: both arguments are plain numbers.
    let priority = cerr(unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) })?;
    Ok(((priority >> 13) as u16, (priority & 0x1fff) as u16))
}

/// reboot(2), RB_AUTOBOOT: resets the machine without a sync. Needs CAP_SYS_BOOT; in a pid namespace of its own it ends
/// that namespace instead.
pub(super) fn reboot() -> io::Result<()> {
    // SAFETY: the argument is a plain number.
    cerr(unsafe { libc::reboot(libc::RB_AUTOBOOT) }.into()).map(drop)
}

/// `struct watchdog_info` (include/uapi/linux/watchdog.h).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchdogInfo {
    /// WDIOF_* flags.
    pub options: u32,
    /// The driver's or the firmware's version.
    pub firmware_version: u32,
    /// The driver's name for the device, ended by a zero byte.
    pub identity: [u8; 32],
}

/// WDIOC_* (include/uapi/linux/watchdog.h), base 'W'.
mod watchdog_ioctl {
    nix::ioctl_read!(get_support, b'W', 0, super::WatchdogInfo);
    nix::ioctl_read!(keepalive, b'W', 5, libc::c_int);
    nix::ioctl_readwrite!(set_timeout, b'W', 6, libc::c_int);
    nix::ioctl_read!(get_timeout, b'W', 7, libc::c_int);
}

/// WDIOC_GETSUPPORT: what the device is and can. Feeds nothing.
pub(super) fn watchdog_support(device: BorrowedFd<'_>) -> io::Result<WatchdogInfo> {
    let mut info = WatchdogInfo { options: 0, firmware_version: 0, identity: [0; 32] };
    // SAFETY: the kernel writes one `watchdog_info`, which this structure is, field by field.
    unsafe { watchdog_ioctl::get_support(device.as_raw_fd(), &raw mut info) }?;
    Ok(info)
}

/// WDIOC_GETTIMEOUT in seconds. Feeds nothing.
pub(super) fn watchdog_timeout(device: BorrowedFd<'_>) -> io::Result<u32> {
    let mut seconds = 0;
    // SAFETY: the kernel writes one int.
    unsafe { watchdog_ioctl::get_timeout(device.as_raw_fd(), &raw mut seconds) }?;
    Ok(seconds.cast_unsigned())
}

/// WDIOC_SETTIMEOUT in seconds, which also feeds; the kernel answers with what it has set.
pub(super) fn set_watchdog_timeout(device: BorrowedFd<'_>, seconds: u32) -> io::Result<u32> {
    let mut seconds = seconds.cast_signed();
    // SAFETY: the kernel reads one int and writes it again.
    unsafe { watchdog_ioctl::set_timeout(device.as_raw_fd(), &raw mut seconds) }?;
    Ok(seconds.cast_unsigned())
}

/// WDIOC_KEEPALIVE.
pub(super) fn feed_watchdog(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut unused = 0;
    // SAFETY: the kernel may write one int; it uses none (watchdog_ioctl, drivers/watchdog/watchdog_dev.c).
    unsafe { watchdog_ioctl::keepalive(device.as_raw_fd(), &raw mut unused) }?;
    Ok(())
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
