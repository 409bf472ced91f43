//! A machine: its power, its clock, its boots, and what runs on it.

use super::device::{Board, BootTimeOrZero};
use super::guard::GuardProcess;
use super::libvirt::{Attempt, Job, Qemu};
use super::network::Link;
use super::phrase::{DomainIx, HostIx};
use super::record::Kind;
use super::script::Setup;
use super::world::{BEGIN, Happening, World};
use crate::lease::event::HookId;
use crate::lease::event::HookOp;
use crate::lease::id::{BootId, ProcessKey};
use crate::lease::ledger::Ledger;
use crate::lease::time::BootTime;
use crate::lease::timing::Timing;
use crate::protocol::Machine;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// From power to the guard's start.
const GUARD_AFTER_BOOT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    On,
    Off,
    /// A virtual machine, paused since then by its own hypervisor: its clocks stand still.
    Paused(BootTime),
    /// Asleep: CLOCK_BOOTTIME goes on.
    Asleep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Up,
    Stopped,
    Dead,
}

pub(super) struct Host {
    pub power: Power,
    pub boot: u32,
    booted: BootTime,
    drift_ppm: i64,
    /// What its clocks did not see.
    lost: Duration,
    /// What waits for it to go on.
    pub deferred: Vec<Happening>,
    /// Guard processes so far, over all boots.
    pub processes: u32,
    pub guard: Option<GuardProcess>,
    /// As it is configured, for its guard's next start.
    pub timing: Timing,
    /// The ledger as it lies in /run.
    pub ledger: Option<Ledger>,
    /// A guard has run in this boot.
    pub guarded: bool,
    pub die_after_ledger: bool,
    pub scan_hangs: bool,
    pub board: Rc<Board>,
    pub qemus: Vec<Qemu>,
    pub pids: i32,
    pub attempts: BTreeMap<DomainIx, Attempt>,
    pub runs: i64,
    pub libvirt: Service,
    pub daemons: i32,
    pub backlog: Vec<Job>,
    pub hooks: BTreeMap<HookId, (DomainIx, HookOp, i64)>,
    pub hook_count: u64,
    pub links: Vec<Link>,
    /// The authority's last answer to it that could have renewed, and the bound that counted then.
    pub issued: Option<BootTime>,
    /// When the device is looked at next.
    fires_at: BootTime,
    /// Something was done to its contact.
    pub touched: bool,
}

impl Host {
    pub fn new(setup: &Setup, at: HostIx) -> Host {
        let host = &setup.hosts[at.0];
        Host {
            // A clone is made of a running machine, and turned on later.
            power: if host.clone_of.is_some() { Power::Off } else { Power::On },
            boot: 0,
            booted: BEGIN - Duration::from_secs(3600),
            drift_ppm: host.drift_ppm,
            lost: Duration::ZERO,
            deferred: Vec::new(),
            processes: 0,
            guard: None,
            timing: setup.timing,
            ledger: None,
            guarded: false,
            die_after_ledger: false,
            scan_hangs: false,
            board: Rc::default(),
            qemus: Vec::new(),
            pids: 1000 * (at.0 as i32 + 1),
            attempts: BTreeMap::new(),
            runs: 0,
            libvirt: Service::Up,
            daemons: 1,
            backlog: Vec::new(),
            hooks: BTreeMap::new(),
            hook_count: 0,
            links: vec![Link::default(); setup.endpoints],
            issued: None,
            fires_at: BootTime::ZERO,
            touched: false,
        }
    }

    /// Its own BOOTTIME: it began at its boot, runs at its own rate and misses what it did not see.
    pub fn clock(&self, now: BootTime) -> BootTime {
        let now = if let Power::Paused(since) = self.power { since } else { now };
        let real = i128::from(now.since(self.booted + self.lost).as_nanos() as u64);
        BootTime::from_nanos((real + real * i128::from(self.drift_ppm) / 1_000_000) as u64)
    }

    /// The first instant at which its clock shows `at`.
    pub fn real(&self, at: BootTime) -> BootTime {
        if at == BootTime::NEVER {
            return at;
        }
        let (shown, rate) = (i128::from(at.as_nanos()), 1_000_000 + i128::from(self.drift_ppm));
        let elapsed = (shown * 1_000_000).div_euclid(rate) as u64;
        let mut real = self.booted + self.lost + Duration::from_nanos(elapsed);
        while self.clock(real) < at {
            real = real + Duration::from_nanos(1);
        }
        real
    }

    pub fn boot_id(&self, at: HostIx) -> BootId {
        BootId::from_bytes([at.0 as u8 + 1, self.boot as u8 + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    }

    pub fn daemon(&self) -> ProcessKey {
        ProcessKey { pid: self.daemons, started: u64::from(self.boot) }
    }

    pub fn set_board(&self, now: BootTime) {
        self.board.now.set(BootTimeOrZero(self.clock(now)));
    }
}

/// Which machine it is: a clone has the key of the disk it was made from, and hardware of its own.
pub(super) fn machine(setup: &Setup, at: HostIx) -> Machine {
    let disk = setup.hosts[at.0].clone_of.unwrap_or(at);
    Machine { hardware: format!("hardware-{}", at.0), key: format!("key-{}", disk.0) }
}

impl World<'_> {
    /// All power is gone from it, at once: no process ends in order and no file is closed.
    fn stop_machine(&mut self, host: HostIx, kind: Kind, why: &str) {
        self.say(host, kind, || why.to_owned());
        for at in 0..self.hosts[host.0].qemus.len() {
            if self.hosts[host.0].qemus[at].alive {
                self.hosts[host.0].qemus[at].alive = false;
                self.ended(host, at, true);
            }
        }
        let now = self.now;
        let machine = &mut self.hosts[host.0];
        machine.power = Power::Off;
        machine.boot += 1;
        machine.booted = now;
        machine.lost = Duration::ZERO;
        machine.deferred.clear();
        machine.guard = None;
        // /run is memory.
        machine.ledger = None;
        (machine.guarded, machine.die_after_ledger, machine.scan_hangs) = (false, false, false);
        machine.board.device.borrow_mut().reset();
        machine.board.sysrq.set(false);
        machine.qemus.clear();
        machine.attempts.clear();
        machine.backlog.clear();
        machine.hooks.clear();
        machine.libvirt = Service::Dead;
        machine.fires_at = BootTime::ZERO;
        self.migration_lost(host);
    }

    pub fn power_off(&mut self, host: HostIx) {
        if self.hosts[host.0].power != Power::Off {
            self.stop_machine(host, Kind::Power, "the power is off");
        }
    }

    pub fn reset(&mut self, host: HostIx, kind: Kind, why: &str) {
        if self.hosts[host.0].power == Power::Off {
            return;
        }
        self.record.resets.push((host, self.now));
        self.stop_machine(host, kind, why);
        self.after(self.setup.boot, Happening::Boot(host));
    }

    pub fn boot(&mut self, host: HostIx) {
        let now = self.now;
        let machine = &mut self.hosts[host.0];
        if machine.power != Power::Off {
            return;
        }
        machine.power = Power::On;
        machine.booted = now;
        machine.libvirt = Service::Up;
        machine.daemons += 1;
        let boot = machine.boot;
        self.say(host, Kind::Power, || "boots".to_owned());
        self.after(GUARD_AFTER_BOOT, Happening::GuardUp(host, boot));
        for (at, domain) in self.setup.domains.iter().enumerate() {
            if domain.autostart && domain.on == host {
                // libvirt tries once, as soon as it is up, guard or no guard.
                self.after(GUARD_AFTER_BOOT * 3 / 2, Happening::Libvirt(host, boot, Job::Begin(DomainIx(at))));
            }
        }
    }

    /// It stands still, and everything on it.
    pub fn freeze(&mut self, host: HostIx, power: Power) {
        if self.hosts[host.0].power == Power::On {
            self.hosts[host.0].power = power;
            self.refresh(host);
        }
    }

    pub fn thaw(&mut self, host: HostIx) {
        let now = self.now;
        let machine = &mut self.hosts[host.0];
        match machine.power {
            Power::On | Power::Off => return,
            Power::Paused(since) => {
                machine.power = Power::On;
                machine.lost += now.since(since);
            }
            Power::Asleep => {
                machine.power = Power::On;
                let clock = machine.clock(now);
                machine.board.device.borrow_mut().woken(clock);
            }
        }
        for what in std::mem::take(&mut self.hosts[host.0].deferred) {
            self.after(Duration::ZERO, what);
        }
        self.watch_device(host);
        self.refresh(host);
    }

    /// The device fires when its counter has run out, unless it is fed before.
    pub fn watch_device(&mut self, host: HostIx) {
        let machine = &mut self.hosts[host.0];
        let Some(at) = machine.board.device.borrow().fires.map(|at| machine.real(at)) else { return };
        // Fed again and again, it waits in the queue once.
        if machine.fires_at <= self.now || at < machine.fires_at {
            machine.fires_at = at;
            let boot = machine.boot;
            self.at(at, Happening::Fire(host, boot));
        }
    }

    pub fn fire(&mut self, host: HostIx, boot: u32) {
        let machine = &self.hosts[host.0];
        let device = machine.board.device.borrow();
        let fires = machine.boot == boot && device.fires.is_some_and(|at| at <= machine.clock(self.now));
        let broken = device.broken;
        drop(device);
        match fires {
            true if !broken => self.reset(host, Kind::Reset, "the watchdog resets it"),
            true => {}
            false => self.watch_device(host),
        }
    }
}
