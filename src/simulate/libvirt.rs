//! libvirt and its QEMUs: starts with their hooks, destroys, migrations, and processes that die at once, slowly or not.

use super::host::{Power, Service};
use super::noise::Delay;
use super::phrase::{DomainIx, HostIx};
use super::record::Kind;
use super::world::{Happening, World, uuid};
use crate::lease::event::{Event, HookCall, HookId, HookOp};
use crate::lease::id::ProcessKey;
use crate::lease::time::BootTime;
use std::time::Duration;

/// The hook's default deadline, and what of it the guard has.
const HOOK_DEADLINE: Duration = Duration::from_secs(3);
const ANSWER_WITHIN: Duration = Duration::from_millis(2850);

pub(super) struct Qemu {
    pub key: ProcessKey,
    pub domain: DomainIx,
    /// On the machine's own clock.
    pub started: BootTime,
    pub alive: bool,
    /// Its virtual CPUs run.
    pub runs: bool,
    /// It came by migration and has not run here.
    pub incoming: bool,
    unkillable: bool,
    /// It was told to die, and did not.
    struck: bool,
    dying: bool,
    slow: Option<Duration>,
    /// libvirt takes it for dead (libvirt 9.0: `virsh destroy` succeeded over one in state D after 80 s).
    forgotten: bool,
    run: i64,
    pub life: usize,
}

/// A start under way.
pub(super) struct Attempt {
    incoming: bool,
    stage: usize,
    run: i64,
}

impl Attempt {
    fn op(&self) -> Option<HookOp> {
        let ops: &[HookOp] = match self.incoming {
            true => &[HookOp::Migrate, HookOp::Prepare, HookOp::Start],
            false => &[HookOp::Prepare, HookOp::Start],
        };
        ops.get(self.stage).copied()
    }
}

/// What libvirt does when its time has come.
pub(super) enum Job {
    Begin(DomainIx),
    Receive(DomainIx),
    Next(DomainIx, i64),
    Destroy(DomainIx),
    Resume(DomainIx),
    AskStarts(u32, BootTime),
    /// It notices that a process has ended.
    Ended(DomainIx, i64),
    CutOver(usize),
    Finish(usize),
}

impl World<'_> {
    pub fn libvirt(&mut self, host: HostIx, boot: u32, job: Job) {
        let machine = &mut self.hosts[host.0];
        if machine.boot != boot {
            return;
        }
        match machine.libvirt {
            Service::Up => {}
            Service::Stopped => return machine.backlog.push(job),
            Service::Dead => return,
        }
        match job {
            Job::Begin(domain) => self.begin_start(host, domain, false),
            Job::Receive(domain) => self.begin_start(host, domain, true),
            Job::Next(domain, run) => self.next_stage(host, domain, run),
            Job::Destroy(domain) => self.destroy(host, domain),
            Job::Resume(domain) => self.run_vcpus(host, domain, true),
            Job::AskStarts(number, asked) => {
                if self.hosts[host.0].guard.as_ref().is_some_and(|process| process.number == number) {
                    let domains = self.hosts[host.0].attempts.keys().map(|&domain| uuid(domain)).collect();
                    self.event(host, Event::StartsInFlight { asked, domains });
                }
            }
            Job::Ended(domain, run) => {
                self.hook(host, domain, HookOp::Stopped, run);
                self.hook(host, domain, HookOp::Release, run);
            }
            Job::CutOver(at) => self.cut_over(at),
            Job::Finish(at) => self.finish_migration(at),
        }
    }

    pub fn job(&mut self, host: HostIx, delay: Delay, job: Job) {
        let boot = self.hosts[host.0].boot;
        self.soon(host, delay, Happening::Libvirt(host, boot, job));
    }

    pub fn stop_libvirt(&mut self, host: HostIx) {
        if self.hosts[host.0].libvirt == Service::Up {
            self.hosts[host.0].libvirt = Service::Stopped;
        }
    }

    pub fn kill_libvirt(&mut self, host: HostIx) {
        let machine = &mut self.hosts[host.0];
        machine.libvirt = Service::Dead;
        machine.attempts.clear();
        machine.backlog.clear();
        self.migration_lost(host);
    }

    pub fn up_libvirt(&mut self, host: HostIx) {
        let machine = &mut self.hosts[host.0];
        if machine.power == Power::Off {
            return;
        }
        let was = std::mem::replace(&mut machine.libvirt, Service::Up);
        let boot = machine.boot;
        for job in std::mem::take(&mut machine.backlog) {
            self.after(Duration::ZERO, Happening::Libvirt(host, boot, job));
        }
        if was == Service::Dead {
            self.hosts[host.0].daemons += 1;
            // It finds what runs, and asks for each.
            let here = self.hosts[host.0].qemus.iter().filter(|qemu| qemu.alive).map(|qemu| (qemu.domain, qemu.run));
            for (domain, run) in Vec::from_iter(here) {
                self.hook(host, domain, HookOp::Reconnect, run);
            }
        }
    }

    // --- starts -----------------------------------------------------------------------------------------------------

    pub fn begin_start(&mut self, host: HostIx, domain: DomainIx, incoming: bool) {
        let machine = &mut self.hosts[host.0];
        let busy = machine.qemus.iter().any(|qemu| qemu.domain == domain && qemu.alive && !qemu.forgotten);
        if machine.power != Power::On
            || machine.libvirt != Service::Up
            || busy
            || machine.attempts.contains_key(&domain)
        {
            return;
        }
        machine.runs += 1;
        let attempt = Attempt { incoming, stage: 0, run: machine.runs };
        let run = attempt.run;
        machine.attempts.insert(domain, attempt);
        self.next_stage(host, domain, run);
    }

    fn next_stage(&mut self, host: HostIx, domain: DomainIx, run: i64) {
        let machine = &mut self.hosts[host.0];
        let Some(attempt) = machine.attempts.get(&domain).filter(|attempt| attempt.run == run) else { return };
        let op = attempt.op();
        // A start may fail between the steps for reasons of its own.
        if attempt.stage > 0 && self.noise.one_in(host, 12) {
            return self.end_attempt(host, domain, run);
        }
        match op {
            Some(op) => self.hook(host, domain, op, run),
            None => self.execute(host, domain),
        }
    }

    fn end_attempt(&mut self, host: HostIx, domain: DomainIx, run: i64) {
        self.hosts[host.0].attempts.remove(&domain);
        self.hook(host, domain, HookOp::Release, run);
        if let Some(at) = self.migrations.iter().position(|m| !m.over && m.domain == domain && m.to == host) {
            self.give_up_migration(at);
        }
    }

    /// QEMU is executed.
    fn execute(&mut self, host: HostIx, domain: DomainIx) {
        let Some(attempt) = self.hosts[host.0].attempts.remove(&domain) else { return };
        self.new_process(host, domain, attempt.incoming, attempt.run);
        self.hook(host, domain, HookOp::Started, attempt.run);
        if let Some(at) = self.migrations.iter().position(|m| !m.over && m.domain == domain && m.to == host) {
            let from = self.migrations[at].from;
            self.job(from, Delay::Copying, Job::CutOver(at));
        }
    }

    pub fn new_process(&mut self, host: HostIx, domain: DomainIx, incoming: bool, run: i64) {
        let now = self.now;
        let life = self.record.begin_life(domain, host, now);
        let machine = &mut self.hosts[host.0];
        let started = machine.clock(now);
        machine.pids += 1;
        let key = ProcessKey { pid: machine.pids, started: started.as_nanos() / 10_000_000 };
        machine.qemus.push(Qemu {
            key,
            domain,
            started,
            alive: true,
            runs: !incoming,
            incoming,
            unkillable: false,
            struck: false,
            dying: false,
            slow: None,
            forgotten: false,
            run,
            life,
        });
        self.say_of(host, domain, Kind::Start, || match incoming {
            true => format!("process {} waits for its memory, paused", key.pid),
            false => format!("runs, process {}", key.pid),
        });
        self.refresh(host);
    }

    fn hook(&mut self, host: HostIx, domain: DomainIx, op: HookOp, run: i64) {
        let now = self.now;
        let machine = &mut self.hosts[host.0];
        machine.hook_count += 1;
        let id = HookId(machine.hook_count);
        machine.hooks.insert(id, (domain, op, run));
        let (boot, clock) = (machine.boot, machine.clock(now));
        if machine.guard.is_none() {
            return self.after(Duration::ZERO, Happening::Verdict(host, boot, id, false));
        }
        let call = HookCall {
            id,
            domain: uuid(domain),
            name: self.setup.names.domains[domain.0].clone(),
            op,
            daemon: Some(machine.daemon()),
            run: Some(run),
            answer_by: clock + ANSWER_WITHIN,
        };
        self.after(HOOK_DEADLINE, Happening::HookDeadline(host, boot, id));
        self.event(host, Event::Hook(call));
    }

    /// The core says why; for people.
    pub fn refused(&mut self, host: HostIx, hook: HookId, _why: &str) {
        if let Some((domain, HookOp::Prepare | HookOp::Start | HookOp::Migrate, _)) =
            self.hosts[host.0].hooks.get(&hook)
        {
            self.record.refused.push((*domain, host, self.now));
        }
    }

    pub fn verdict(&mut self, host: HostIx, boot: u32, hook: HookId, allowed: bool) {
        let machine = &mut self.hosts[host.0];
        if machine.boot != boot {
            return;
        }
        let Some((domain, op, run)) = machine.hooks.remove(&hook) else { return };
        match op {
            HookOp::Migrate | HookOp::Prepare | HookOp::Start => {
                let Some(attempt) = machine.attempts.get_mut(&domain).filter(|attempt| attempt.run == run) else {
                    return;
                };
                if allowed {
                    attempt.stage += 1;
                    self.job(host, Delay::Step, Job::Next(domain, run));
                } else {
                    self.say_of(host, domain, Kind::Refused, || {
                        format!("libvirt's {op:?} hook says no: it is not started")
                    });
                    self.end_attempt(host, domain, run);
                }
            }
            // A refusal kills what runs.
            HookOp::Started | HookOp::Reconnect if !allowed => self.destroy(host, domain),
            _ => {}
        }
    }

    pub fn keep_starting(&mut self, at: usize) {
        let (domain, host) = self.keepers[at];
        self.begin_start(host, domain, false);
        self.soon(host, Delay::Retry, Happening::KeepStarting(at));
    }

    // --- ends -------------------------------------------------------------------------------------------------------

    pub fn of(&self, host: HostIx, domain: DomainIx) -> Vec<usize> {
        let qemus = self.hosts[host.0].qemus.iter().enumerate();
        qemus.filter(|(_, qemu)| qemu.domain == domain && qemu.alive).map(|(at, _)| at).collect()
    }

    fn destroy(&mut self, host: HostIx, domain: DomainIx) {
        for at in self.of(host, domain) {
            // A guest's storage may keep QEMU from ending in order.
            if !self.noise.one_in(host, 2) {
                let key = self.hosts[host.0].qemus[at].key;
                self.wound(host, key, Delay::Death);
            }
        }
    }

    /// Somebody destroys it on purpose, or it ends by itself.
    pub fn end_by_hand(&mut self, domain: DomainIx, by_itself: bool) {
        for host in 0..self.hosts.len() {
            for at in self.of(HostIx(host), domain) {
                let qemu = &self.hosts[host].qemus[at];
                let (key, how) = (qemu.key, if by_itself { "its guest shuts down" } else { "somebody destroys it" });
                if !by_itself || !qemu.unkillable {
                    self.say_of(HostIx(host), domain, Kind::Ended, || how.to_owned());
                    self.wound(HostIx(host), key, Delay::Proof);
                }
            }
        }
    }

    pub fn wound(&mut self, host: HostIx, key: ProcessKey, delay: Delay) {
        let boot = self.hosts[host.0].boot;
        let Some(qemu) = self.hosts[host.0].qemus.iter_mut().find(|qemu| qemu.key == key && qemu.alive) else { return };
        qemu.struck = true;
        if qemu.unkillable {
            qemu.forgotten = true;
        } else if !std::mem::replace(&mut qemu.dying, true) {
            let (slow, pid) = (qemu.slow, key.pid);
            let usual = self.noise.span(host, delay);
            self.after(slow.unwrap_or(usual), Happening::Dies(host, boot, pid));
        }
    }

    pub fn dies(&mut self, host: HostIx, boot: u32, pid: i32) {
        let machine = &mut self.hosts[host.0];
        let Some(at) = machine.qemus.iter().position(|qemu| qemu.key.pid == pid && qemu.alive) else { return };
        if machine.boot != boot || machine.qemus[at].unkillable {
            machine.qemus[at].dying = false;
            return;
        }
        machine.qemus[at].alive = false;
        let (domain, key, run) = (machine.qemus[at].domain, machine.qemus[at].key, machine.qemus[at].run);
        self.ended(host, at, false);
        self.notice_end(host, domain, key);
        self.job(host, Delay::Proof, Job::Ended(domain, run));
    }

    pub fn ended(&mut self, host: HostIx, at: usize, with_the_machine: bool) {
        let qemu = &self.hosts[host.0].qemus[at];
        let (life, domain, pid) = (qemu.life, qemu.domain, qemu.key.pid);
        self.record.end_life(life, self.now, with_the_machine);
        self.say_of(host, domain, Kind::Ended, || match with_the_machine {
            true => format!("process {pid} is gone with the machine"),
            false => format!("process {pid} is dead"),
        });
        self.record.stirred.insert(domain);
    }

    /// A storage that does not answer: nothing ends its processes until it does.
    pub fn set_unkillable(&mut self, domain: DomainIx, unkillable: bool) {
        for host in 0..self.hosts.len() {
            for at in self.of(HostIx(host), domain) {
                let qemu = &mut self.hosts[host].qemus[at];
                qemu.unkillable = unkillable;
                let (struck, key) = (qemu.struck, qemu.key);
                if struck && !unkillable {
                    self.wound(HostIx(host), key, Delay::Proof);
                }
            }
        }
    }

    pub fn set_slow(&mut self, domain: DomainIx, span: Duration) {
        for machine in &mut self.hosts {
            machine.qemus.iter_mut().filter(|qemu| qemu.domain == domain).for_each(|qemu| qemu.slow = Some(span));
        }
    }

    /// Its virtual CPUs run, or do not.
    pub fn run_vcpus(&mut self, host: HostIx, domain: DomainIx, runs: bool) {
        for at in self.of(host, domain) {
            let qemu = &mut self.hosts[host.0].qemus[at];
            if qemu.runs != runs {
                qemu.runs = runs;
                qemu.incoming &= !runs;
                let what = if runs { "libvirt resumes it" } else { "libvirt pauses it" };
                self.say_of(host, domain, Kind::Start, || what.to_owned());
            }
        }
        self.refresh(host);
    }
}
