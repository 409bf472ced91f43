//! Live migrations, as `leasehold migrate` or plain libvirt does them.

use super::host::Service;
use super::libvirt::Job;
use super::noise::Delay;
use super::phrase::{DomainIx, HostIx};
use super::record::Kind;
use super::world::{Happening, World};
use std::time::Duration;

/// libvirt kills the source's process this long after the cut-over.
const SOURCE_ENDS: Duration = Duration::from_millis(100);

/// A migration as `leasehold migrate`, or plain libvirt, does it.
pub(super) struct Migration {
    pub domain: DomainIx,
    pub from: HostIx,
    pub to: HostIx,
    pub unpaused: bool,
    pub losing: bool,
    pub over: bool,
}

impl World<'_> {
    pub fn migrate(&mut self, domain: DomainIx, to: HostIx, unpaused: bool, losing: bool) -> Result<(), String> {
        let from = (0..self.hosts.len()).map(HostIx).find(|&host| !self.of(host, domain).is_empty());
        let name = &self.setup.names.domains[domain.0];
        let from = from.ok_or_else(|| format!("{name} runs nowhere, so it cannot be migrated"))?;
        if !self.open_migration(domain, from, to) {
            return Ok(());
        }
        if unpaused {
            self.record.unpaused.insert(domain);
        }
        self.migrations.push(Migration { domain, from, to, unpaused, losing, over: false });
        self.job(to, Delay::Step, Job::Receive(domain));
        Ok(())
    }

    pub fn cut_over(&mut self, at: usize) {
        let Migration { domain, from, to, unpaused, over, .. } = self.migrations[at];
        if over {
            return;
        }
        if self.of(from, domain).is_empty() || self.of(to, domain).is_empty() {
            return self.give_up_migration(at);
        }
        self.run_vcpus(from, domain, false);
        if unpaused {
            self.run_vcpus(to, domain, true);
        }
        let boot = self.hosts[from.0].boot;
        self.after(SOURCE_ENDS, Happening::Libvirt(from, boot, Job::Finish(at)));
    }

    /// What the source's libvirt does with the last reply, or without it.
    pub fn finish_migration(&mut self, at: usize) {
        let Migration { domain, from, unpaused, losing, over, .. } = self.migrations[at];
        if over {
            return;
        }
        self.migrations[at].over = true;
        if losing {
            self.say_of(from, domain, Kind::Start, || "the last reply of its migration is lost".to_owned());
            self.run_vcpus(from, domain, true);
            if !unpaused {
                self.abort(domain);
            }
            return;
        }
        for qemu in self.of(from, domain) {
            let key = self.hosts[from.0].qemus[qemu].key;
            self.wound(from, key, Delay::Proof);
        }
        self.moved(domain);
    }

    pub fn give_up_migration(&mut self, at: usize) {
        self.migrations[at].over = true;
        let Migration { domain, to, .. } = self.migrations[at];
        for qemu in self.of(to, domain) {
            let key = self.hosts[to.0].qemus[qemu].key;
            self.wound(to, key, Delay::Proof);
        }
        self.abort(domain);
    }

    /// An end of it is lost: the other end gives up, and the source's libvirt lets its guest run on.
    pub fn migration_lost(&mut self, host: HostIx) {
        for at in 0..self.migrations.len() {
            let Migration { domain, from, to, over, .. } = self.migrations[at];
            if !over && (from == host || to == host) {
                self.give_up_migration(at);
                if to == host && self.hosts[from.0].libvirt == Service::Up {
                    self.run_vcpus(from, domain, true);
                }
            }
        }
    }
}
