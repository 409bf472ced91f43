//! The kill of last resort: needs memory and the kernel, no libvirtd, no disk, no network (rule 6).

use super::domains::DomainProcess;
use super::traces::reset_on_close;
use std::io;

/// What a kill has set going. Nothing here is proof of death: see [`super::gone`].
#[derive(Debug)]
pub struct Killed {
    /// TCP connections that will be reset instead of going on alone.
    pub resets: usize,
    /// Whether SIGKILL was delivered to the QEMU.
    pub signal: io::Result<()>,
    /// How many processes in the domain's cgroup were told to die, the QEMU among them unless it was dead already.
    pub cgroup: io::Result<usize>,
}

/// Kills a domain's QEMU and everything in its cgroup. May be called again for as long as it is not gone.
pub fn kill(domain: &DomainProcess) -> Killed {
    // Before the signal: afterwards there is no descriptor left to take (rule 7).
    let resets = reset_on_close(&domain.process);
    let signal = domain.process.kill();
    Killed { resets, signal, cgroup: domain.cgroup.kill_all() }
}
