//! A guard's looks at what lives on its machine, and what is proven gone.

use super::host::Service;
use super::noise::Delay;
use super::phrase::{DomainIx, HostIx};
use super::world::{Happening, World, uuid};
use crate::guard::SCAN_INTERVAL;
use crate::lease::event::{CopyState, Event, Scan, SeenCopy};
use crate::lease::id::ProcessKey;
use crate::lease::time::BootTime;
use std::time::Duration;

impl World<'_> {
    pub fn begin_scan(&mut self, host: HostIx, number: u32) {
        let machine = &self.hosts[host.0];
        let (clock, hangs) = (machine.clock(self.now), machine.scan_hangs);
        let living = (machine.libvirt != Service::Dead).then(|| machine.daemon());
        let Some(process) = self.process(host, number, || Happening::Scan(host, number)) else { return };
        if process.scanning || hangs {
            return;
        }
        (process.scanning, process.scan_again) = (true, false);
        // Before anything is looked for: what a daemon started while it lived is then found.
        process.dead_daemons = process.daemons.extract_if(.., |daemon| Some(*daemon) != living).collect();
        self.soon(host, Delay::Scan, Happening::Scanned(host, number, clock));
    }

    pub fn end_scan(&mut self, host: HostIx, number: u32, began: BootTime) {
        let halfway = self.noise.one_in(host, 2);
        let Some(process) = self.process(host, number, || Happening::Scanned(host, number, began)) else { return };
        let interval = SCAN_INTERVAL.min(process.timing.renew);
        process.scanning = false;
        let again = std::mem::take(&mut process.scan_again);
        let dead_daemons = std::mem::take(&mut process.dead_daemons);
        let known = process.known.clone();
        let machine = &self.hosts[host.0];
        // It speaks for what lived when it began; what started meanwhile may be in it too.
        let here = machine.qemus.iter().filter(|qemu| {
            (qemu.alive && (qemu.started < began || !halfway)) || (!qemu.alive && known.contains(&qemu.key))
        });
        let seen = |qemu: &super::libvirt::Qemu| SeenCopy {
            domain: uuid(qemu.domain),
            name: self.setup.names.domains[qemu.domain.0].clone(),
            process: qemu.key,
            started: qemu.started,
            state: match qemu.runs {
                // The status file comes a moment after the process.
                false if began < qemu.started + Duration::from_millis(200) => CopyState::Unknown,
                false => CopyState::Paused,
                true => CopyState::Running,
            },
        };
        let copies: Vec<SeenCopy> = here.map(seen).collect();
        for key in Vec::from_iter(copies.iter().map(|copy| copy.process)) {
            self.know(host, key);
        }
        if again {
            self.begin_scan(host, number)
        } else {
            self.after(interval, Happening::Scan(host, number))
        }
        self.event(host, Event::Scanned(Scan { began, copies, dead_daemons }));
    }

    /// From now on its end is noticed.
    pub fn know(&mut self, host: HostIx, key: ProcessKey) {
        let machine = &mut self.hosts[host.0];
        let Some(process) = &mut machine.guard else { return };
        let new = process.known.insert(key);
        let number = process.number;
        if let Some(qemu) = machine.qemus.iter().find(|qemu| qemu.key == key && !qemu.alive).filter(|_| new) {
            let domain = qemu.domain;
            self.soon(host, Delay::Proof, Happening::Gone(host, number, domain, key));
        }
    }

    pub fn notice_end(&mut self, host: HostIx, domain: DomainIx, key: ProcessKey) {
        if let Some(process) = self.hosts[host.0].guard.as_ref().filter(|process| process.known.contains(&key)) {
            let number = process.number;
            self.soon(host, Delay::Proof, Happening::Gone(host, number, domain, key));
        }
    }

    pub fn proven_gone(&mut self, host: HostIx, number: u32, domain: DomainIx, key: ProcessKey) {
        let Some(process) = self.process(host, number, || Happening::Gone(host, number, domain, key)) else { return };
        process.known.remove(&key);
        self.event(host, Event::Gone { domain: uuid(domain), process: key });
    }
}
