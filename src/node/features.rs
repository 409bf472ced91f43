//! What this kernel and machine offer of what leasehold's promises rest on. Looking changes nothing.

use super::cgroup_mounts::Mounts;
use super::files::read_bounded;
use super::process::Process;
use super::sock_diag;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Tries pidfd_open(2) (Linux 5.3) and pidfd_getfd(2) (5.6) on this process itself.
///
/// # Errors
/// The kernel has it not, or a filter of system calls forbids it.
pub fn pidfds() -> io::Result<()> {
    let me = Process::open(std::process::id() as i32)?;
    me.take_fd(io::stderr().as_raw_fd()).map(drop)
}

/// Yama's `kernel.yama.ptrace_scope`; `None` without Yama. At 3 nobody may take another process's descriptors.
pub fn ptrace_scope() -> Option<u32> {
    number("/proc/sys/kernel/yama/ptrace_scope")
}

/// Whether orphaned TCP connections can be ended (CONFIG_INET_DIAG_DESTROY, CAP_NET_ADMIN).
///
/// # Errors
/// They cannot.
pub fn ends_orphans() -> io::Result<()> {
    sock_diag::can_end_orphans()
}

/// Whether a group of the unified hierarchy can be killed at once (cgroup.kill, Linux 5.14); `None`: there is no such
/// hierarchy, libvirt uses the old ones.
///
/// # Errors
/// The mount table or the hierarchy cannot be read.
pub fn cgroup_kill() -> io::Result<Option<bool>> {
    let mounts = Mounts::read()?;
    let Some(root) = mounts.unified() else { return Ok(None) };
    // The root group itself has none.
    let groups = fs::read_dir(root)?.flatten().map(|entry| entry.path());
    let mut groups = groups.filter(|path| path.join("cgroup.procs").exists()).peekable();
    Ok(groups.peek().is_some().then(|| groups.any(|group| group.join("cgroup.kill").exists())))
}

/// Whether the processor says that it is a hypervisor's (CPUID 1, ECX bit 31; arm64 does not tell).
pub fn is_virtual() -> bool {
    let text = read_bounded(Path::new("/proc/cpuinfo"), 64 << 20).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut flags = text.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// `kernel.panic`: after how many seconds a panicked kernel reboots; 0: never, negative: at once.
pub fn panic_reboots_after() -> Option<i64> {
    number("/proc/sys/kernel/panic")
}

/// Whether a crash kernel is loaded (kdump), which writes a dump before it reboots.
pub fn crash_kernel() -> bool {
    number::<u8>("/sys/kernel/kexec_crash_loaded") == Some(1)
}

/// Whether a directory is on a tmpfs, so that nothing in it survives a reboot.
///
/// # Errors
/// It cannot be looked at.
pub fn is_on_memory(directory: &Path) -> io::Result<bool> {
    use nix::sys::statfs::{TMPFS_MAGIC, statfs};
    let kind = statfs(directory)?.filesystem_type();
    Ok(kind == TMPFS_MAGIC)
}

fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
