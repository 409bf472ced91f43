//! The promises, looked at after everything that happens: never two copies; nobody is told that a domain is its own
//! while a copy lives elsewhere; nothing dies to whose contact and claim nothing was done.

use super::host::Power;
use super::phrase::{DomainIx, HostIx};
use super::record::{Broken, Kind};
use super::world::World;
use crate::lease::event::Notice;
use crate::lease::id::{NodeId, ProcessKey};

impl World<'_> {
    pub fn say(&mut self, host: HostIx, kind: Kind, text: impl FnOnce() -> String) {
        self.record.say(self.now, Some(host), kind, text);
    }

    pub fn say_of(&mut self, host: HostIx, domain: DomainIx, kind: Kind, text: impl FnOnce() -> String) {
        let name = &self.setup.names.domains[domain.0];
        self.record.say(self.now, Some(host), kind, || format!("{name}: {}", text()));
    }

    pub fn told(&mut self, host: HostIx, notice: &Notice) {
        self.say(host, Kind::Says, || format!("says: {}", notice.text));
    }

    /// The guard strikes.
    pub fn struck(&mut self, host: HostIx, domain: DomainIx, key: ProcessKey, how: &str) {
        self.say_of(host, domain, Kind::Killed, || format!("{how} to process {}", key.pid));
        let now = self.now;
        let machine = &self.hosts[host.0];
        let struck: Vec<usize> =
            machine.qemus.iter().filter(|qemu| qemu.domain == domain && qemu.alive).map(|qemu| qemu.life).collect();
        let needless = !machine.touched && !self.record.touched.contains(&domain);
        for &life in &struck {
            self.record.lives[life].struck.get_or_insert(now);
        }
        if needless && !struck.is_empty() && now >= self.t {
            let (name, host) = (&self.setup.names.domains[domain.0], &self.setup.names.hosts[host.0]);
            let text = format!("{name} is killed on {host}, to whose contact and claim nothing was done");
            self.record.broken(now, Broken::Needless, text);
        }
    }

    /// A clone goes by the node id of the machine it was made from.
    fn node(&self, host: HostIx) -> &NodeId {
        &self.setup.hosts[host.0].node
    }

    /// What runs on a machine, after something changed there.
    pub fn refresh(&mut self, host: HostIx) {
        let machine = &self.hosts[host.0];
        let on = machine.power == Power::On;
        for qemu in &machine.qemus {
            if qemu.alive {
                self.record.runs(qemu.life, self.now, on && qemu.runs);
            }
            self.record.stirred.insert(qemu.domain);
        }
    }

    /// Looks at every domain that something happened to.
    pub fn check(&mut self) {
        while let Some(domain) = self.record.stirred.pop_first() {
            let mut copies: Vec<HostIx> = Vec::new();
            for (at, machine) in self.hosts.iter().enumerate() {
                // What came by migration and waits is no copy that runs, nor is what stands still with its machine.
                let lives = |qemu: &&super::libvirt::Qemu| qemu.domain == domain && qemu.alive && !qemu.incoming;
                if machine.power == Power::On {
                    copies.extend(machine.qemus.iter().filter(lives).map(|_| HostIx(at)));
                }
            }
            let now = self.now;
            let spans = self.record.doubles.entry(domain).or_default();
            match spans.last_mut() {
                Some((_, until @ None)) if copies.len() < 2 => *until = Some(now),
                Some((_, None)) => {}
                _ if copies.len() > 1 => spans.push((now, None)),
                _ => {}
            }
            if self.record.unpaused.contains(&domain) {
                continue;
            }
            let (name, hosts) = (&self.setup.names.domains[domain.0], &self.setup.names.hosts);
            let of = |host: HostIx| hosts[host.0].as_str();
            if let [first, second, ..] = copies[..] {
                let text = format!("two copies of {name} live: on {} and on {}", of(first), of(second));
                self.record.broken(now, Broken::TwoCopies, text);
            }
            if let Some(owner) = self.owner(domain)
                && let Some(&other) = copies.iter().find(|other| self.node(**other) != self.node(owner))
            {
                let text = format!("{} owns {name} while a copy of it lives on {}", of(owner), of(other));
                self.record.broken(now, Broken::TooEarly, text);
            }
        }
    }
}
