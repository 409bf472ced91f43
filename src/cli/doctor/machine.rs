//! What the machine and its kernel must offer.

use super::Finding;
use crate::lease::time::BootTime;
use crate::node::{clock, features, host};
use std::io;
use std::time::Duration;

/// Uuids that firmware carries when nobody gave it one (systemd's list, src/shared/id128-dmi; dmidecode's "Not Settable").
const NOBODYS: [&str; 4] = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
    "4c4c4544-0000-2010-8020-80c04f202020",
];

pub(super) fn look() -> Vec<Finding> {
    let mut findings = vec![identity(), hardware(), pidfds(), cgroups(), orphans()];
    if features::is_virtual() {
        findings.push(Finding::warn(
            "machine",
            "this host is itself a virtual machine: time that its own hypervisor takes from it (a pause, a snapshot) is in no bound",
            "do not pause, snapshot or restore it while it runs domains",
        ));
    } else {
        findings.push(Finding::ok("machine", "no virtual machine, as far as its processor tells"));
    }
    findings.push(panic());
    findings
}

fn identity() -> Finding {
    let now = clock::now();
    match host::boot_id() {
        Ok(boot) => Finding::ok("boot", format!("{boot}, {:.0} s ago", now.since(BootTime::ZERO).as_secs_f64())),
        Err(error) => Finding::fail("boot", format!("this boot's id cannot be read: {error}"), "mount /proc as usual"),
    }
}

fn hardware() -> Finding {
    let told_apart = "a cloned image under the same node id is told apart by its key alone";
    match host::hardware() {
        Ok(uuid) if uuid.is_empty() => {
            Finding::warn("hardware", format!("no uuid: {told_apart}"), "give each host a node id of its own")
        }
        Ok(uuid) if NOBODYS.contains(&uuid.to_ascii_lowercase().as_str()) => Finding::warn(
            "hardware",
            format!(
                "its uuid {uuid} is what firmware has that nobody gave one, so other hosts have the same: {told_apart}"
            ),
            "have the firmware's vendor tool set it, or give each host a node id of its own",
        ),
        Ok(uuid) => Finding::ok("hardware", uuid),
        Err(error) => Finding::fail("hardware", format!("its uuid cannot be read: {error}"), "run as root"),
    }
}

fn pidfds() -> Finding {
    match (features::pidfds(), features::ptrace_scope()) {
        (Err(error), _) => Finding::fail(
            "pidfd",
            format!("pidfd_open or pidfd_getfd cannot be called ({error}): no end can be proven"),
            "Linux 5.6 or later, and no filter of system calls around the guard",
        ),
        (Ok(()), Some(3)) => Finding::warn(
            "pidfd",
            "kernel.yama.ptrace_scope is 3: connections of a domain cannot be prepared before its death, only ended after it",
            "set it to 2 at most (it takes a reboot)",
        ),
        (Ok(()), _) => Finding::ok("pidfd", "pidfd_open and pidfd_getfd work"),
    }
}

fn cgroups() -> Finding {
    match features::cgroup_kill() {
        Ok(Some(true)) => Finding::ok("cgroup", "unified, with cgroup.kill"),
        Ok(Some(false)) => Finding::warn(
            "cgroup",
            "unified, without cgroup.kill (Linux 5.14): a domain's helpers are killed one by one",
            "nothing, or a newer kernel",
        ),
        Ok(None) => Finding::warn(
            "cgroup",
            "no unified hierarchy with groups in it: a domain's helpers are killed one by one",
            "nothing, or boot with systemd.unified_cgroup_hierarchy=1",
        ),
        Err(error) => Finding::fail(
            "cgroup",
            format!("the hierarchy cannot be read ({error}): a domain's helpers cannot be found"),
            "mount cgroups as usual",
        ),
    }
}

fn orphans() -> Finding {
    match features::ends_orphans() {
        Ok(()) => Finding::ok("tcp", "connections of the dead can be ended"),
        Err(error) => Finding::warn(
            "tcp",
            format!(
                "connections of the dead cannot be ended ({}): a domain that somebody else kills is gone only when the kernel gives up on them, in a minute or two",
                reason(&error)
            ),
            "run as root, on a kernel with CONFIG_INET_DIAG_DESTROY",
        ),
    }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOENT) => "this kernel has no CONFIG_INET_DIAG_DESTROY".to_owned(),
        _ => error.to_string(),
    }
}

fn panic() -> Finding {
    let dump = if features::crash_kernel() { "; a crash kernel dumps first, which may take minutes" } else { "" };
    match features::panic_reboots_after() {
        Some(0) => Finding::warn(
            "panic",
            format!(
                "a panicked kernel stays as it is (kernel.panic = 0): it runs no domain, and nobody is told so{dump}"
            ),
            "sysctl kernel.panic=10, so that its next boot is the proof",
        ),
        Some(seconds) => {
            let when = Duration::from_secs(seconds.max(0).unsigned_abs()).as_secs();
            Finding::ok("panic", format!("a panicked kernel reboots after {when} s{dump}"))
        }
        None => Finding::warn("panic", "kernel.panic cannot be read", "mount /proc as usual"),
    }
}
