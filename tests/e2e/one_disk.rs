//! Two hosts, one disk, and no lease: that the oracle for two writers sees them, in whatever order they come and go.

use crate::harness::{Domain, Host, Journal, World, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
/// How long two write at once where the overlap is short: three ticks of the guest's clock.
const A_FEW: usize = 3;
const MANY: usize = 6;

/// Two hosts without a hook and one domain on both, its image lock off as on block storage.
struct Unleased {
    // Dropped before the world whose directory they use.
    hosts: [Host; 2],
    journal: Journal,
    domain: Domain,
    _world: World,
}

impl Unleased {
    fn new() -> Option<Unleased> {
        let world = World::new()?;
        let (hosts, journal) = (["n1", "n2"].map(|name| world.host(name)), Journal::new(&world));
        let domain = journal.domain("web-1");
        hosts.iter().for_each(|host| host.define(&domain));
        Some(Unleased { hosts, journal, domain, _world: world })
    }

    /// Starts it on a host; returns when it writes.
    fn start(&self, host: usize, epoch: u32) -> u32 {
        let run = self.journal.load(&self.hosts[host], host as u32 + 1, epoch);
        let shut_off = || self.hosts[host].state(&self.domain).starts_with("shut off");
        wait_until("libvirt had cleaned up", SOON, shut_off);
        self.hosts[host].virsh(&["start", "web-1"]).expect_ok();
        self.journal.wait_for(run, 1);
        run
    }

    /// SIGKILL; returns when it is gone.
    fn end(&self, host: usize) {
        let qemu = self.hosts[host].qemu(&self.domain).expect("it runs");
        kill(Pid::from_raw(qemu), Signal::SIGKILL).expect("it runs");
        self.hosts[host].wait_until_gone(&self.domain, SOON);
    }
}

#[test]
fn runs_on_two_hosts_one_after_the_other_are_no_overlap() {
    let Some(site) = Unleased::new() else { return };
    let first = site.start(0, 1);
    site.journal.wait_for(first, MANY);
    site.end(0);
    let second = site.start(1, 2);
    site.journal.wait_for(second, MANY);
    let runs = site.journal.runs().unwrap_or_else(|two| panic!("{two}"));
    assert_eq!(runs.iter().map(|run| (run.owner, run.epoch)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
}

#[test]
fn without_a_lease_two_hosts_write_at_once_and_the_disk_shows_it_whoever_ends_first() {
    let Some(site) = Unleased::new() else { return };
    for (together, the_newcomer_ends) in [(A_FEW, false), (A_FEW, true), (MANY, true)] {
        site.journal.clear();
        let (old, newcomer) = (0, 1);
        let first = site.start(old, 1);
        site.journal.wait_for(first, MANY);
        let second = site.start(newcomer, 2);
        // From the newcomer's first record on, both are seen to write.
        site.journal.wait_for(first, together);
        site.journal.wait_for(second, together);
        let (ends, stays, run) = if the_newcomer_ends { (newcomer, old, first) } else { (old, newcomer, second) };
        site.end(ends);
        site.journal.wait_for(run, MANY);
        site.end(stays);
        let verdict = site.journal.runs();
        assert!(verdict.is_err(), "{together} records together, the newcomer ends: {the_newcomer_ends}: {verdict:?}");
    }
}
