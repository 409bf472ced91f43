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
    /// How many other processes in the domain's cgroup were told to die.
    pub cgroup: io::Result<usize>,
}

/// Kills a domain's QEMU and everything in its cgroup. May be called again for as long as it is not gone.
pub fn kill(domain: &DomainProcess) -> Killed {
    // Before the signal: afterwards there is no descriptor left to take (rule 7).
    let resets = reset_on_close(&domain.process);
    let signal = domain.process.kill();
    let told = signal.is_ok().then(|| domain.process.pid());
    Killed { resets, signal, cgroup: domain.cgroup.kill_all_beside(told) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{Child, TestCgroup, domain, thread_cpu_time};

    #[test]
    fn two_hundred_domains_are_killed_within_fifty_milliseconds_of_processor_time() {
        let children: Vec<Child> = (0..200).map(|_| Child::sleeping()).collect();
        let cgroups: Vec<TestCgroup> = children
            .iter()
            .map_while(|child| {
                let cgroup = TestCgroup::new("")?;
                TestCgroup::admit(&cgroup.below("emulator"), child);
                Some(cgroup)
            })
            .collect();
        let domains: Vec<DomainProcess> = children.iter().map(domain).collect();
        let start = thread_cpu_time();
        let killed: Vec<Killed> = domains.iter().map(kill).collect();
        let took = thread_cpu_time() - start;
        for (index, (killed, (child, domain))) in killed.iter().zip(children.iter().zip(&domains)).enumerate() {
            assert!(killed.signal.is_ok() && killed.cgroup.is_ok(), "{killed:?}");
            child.wait_exited(&domain.process);
            assert!(domain.cgroup.is_empty().unwrap());
            assert_eq!(domain.cgroup.is_none(), index >= cgroups.len());
        }
        assert!(took.as_millis() < 50, "{took:?}");
    }
}
