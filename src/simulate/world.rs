//! Virtual time: a queue of what is due, and one thing after another. Nothing here waits, and nothing is left to chance
//! that the scenario's seed does not say.

use super::authority::Authority;
use super::client::Exchange;
use super::host::{Host, Power};
use super::libvirt::Job;
use super::migration::Migration;
use super::network::Direction;
use super::noise::Noise;
use super::phrase::{DomainIx, HostIx};
use super::record::Record;
use super::script::{Script, ScriptError, Setup};
use super::when::Base;
use crate::lease::event::HookId;
use crate::lease::id::{DomainId, ProcessKey};
use crate::lease::time::BootTime;
use crate::protocol::{RenewAnswer, RenewRequest, WatchAnswer};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// When the world begins.
pub(super) const BEGIN: BootTime = BootTime::from_nanos(100_000 * 1_000_000_000);
/// More than this at one instant, or in all, is a scenario that does not come to an end.
const MOST_AT_ONCE: u32 = 200_000;
const MOST_IN_ALL: u64 = 50_000_000;

/// Something that is due.
pub(super) enum Happening {
    /// The next line of the script.
    Step,
    /// A guard's timer, feed thread, watcher, scanner: of the guard process with this number.
    Tick(HostIx, u32),
    Beat(HostIx, u32),
    Look(HostIx, u32),
    Scan(HostIx, u32),
    Scanned(HostIx, u32, BootTime),
    /// A process is proven gone.
    Gone(HostIx, u32, DomainIx, ProcessKey),
    /// A question's time is over.
    Overdue(HostIx, u32, Exchange),
    /// A message arrives, unless its link was cut since.
    Question(HostIx, u32, Exchange, u32, Box<RenewRequest>),
    Answer(HostIx, u32, Exchange, u32, Result<Box<RenewAnswer>, String>),
    Hint(HostIx, u32, WatchAnswer),
    /// The watch is taken up again.
    Watch(HostIx),
    GuardUp(HostIx, u32),
    Boot(HostIx),
    Fire(HostIx, u32),
    /// libvirt's work, a hook's verdict or its deadline, a process's end: of the boot with this number.
    Libvirt(HostIx, u32, Job),
    Verdict(HostIx, u32, HookId, bool),
    HookDeadline(HostIx, u32, HookId),
    Dies(HostIx, u32, i32),
    KeepStarting(usize),
    Book,
    AuthorityUp(u32),
}

impl Happening {
    /// The machine it happens on, where it waits while that machine stands still.
    fn host(&self) -> Option<HostIx> {
        use Happening::*;
        match self {
            Tick(host, _) | Beat(host, _) | Look(host, _) | Scan(host, _) | Scanned(host, ..) => Some(*host),
            Gone(host, ..) | Overdue(host, ..) | Answer(host, ..) | Hint(host, ..) | Watch(host) => Some(*host),
            GuardUp(host, _) | Fire(host, _) | Libvirt(host, ..) | Verdict(host, ..) => Some(*host),
            HookDeadline(host, ..) | Dies(host, ..) => Some(*host),
            Step | Question(..) | Boot(_) | KeepStarting(_) | Book | AuthorityUp(_) => None,
        }
    }
}

struct Due {
    at: BootTime,
    order: u64,
    what: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
/// The earliest is the greatest: the heap gives the greatest first.
impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Everything there is.
pub(super) struct World<'a> {
    pub script: &'a Script,
    pub setup: &'a Setup,
    pub now: BootTime,
    /// T.
    pub t: BootTime,
    pub noise: Noise,
    pub hosts: Vec<Host>,
    pub authority: Authority,
    pub migrations: Vec<Migration>,
    /// Operators who do not give up.
    pub keepers: Vec<(DomainIx, HostIx)>,
    pub record: Record,
    queue: BinaryHeap<Due>,
    order: u64,
    next_step: usize,
    /// The line that waits for its time.
    armed: Option<usize>,
    last_step: BootTime,
    end: BootTime,
    /// A line whose time is past is done at once, and one whose timer is not there is left out, instead of either being
    /// an error: random schedules name timers blindly.
    lenient: bool,
    /// Which lines came to be done, and when.
    pub done: Vec<Option<BootTime>>,
    failed: Option<ScriptError>,
}

impl<'a> World<'a> {
    pub fn new(script: &'a Script, quiet: bool, lenient: bool) -> World<'a> {
        let setup = &script.setup;
        let hosts = (0..setup.hosts.len()).map(|at| Host::new(setup, HostIx(at))).collect();
        let t = BEGIN + setup.warm_up;
        World {
            script,
            setup,
            now: BEGIN,
            t,
            noise: Noise::new(setup.seed, setup.hosts.len()),
            hosts,
            authority: Authority::default(),
            migrations: Vec::new(),
            keepers: Vec::new(),
            record: Record::new(setup, t, quiet),
            queue: BinaryHeap::new(),
            order: 0,
            next_step: 0,
            armed: None,
            last_step: t,
            end: BootTime::NEVER,
            lenient,
            done: vec![None; script.steps.len()],
            failed: None,
        }
    }

    /// Runs it to its end, or with `stop_early` to the first violation.
    ///
    /// # Errors
    /// A line of the script that cannot be done.
    pub fn run(&mut self, stop_early: bool) -> Result<(), ScriptError> {
        self.warm_up();
        let (mut at_once, mut in_all) = (0u32, 0u64);
        while let Some(due) = self.queue.pop() {
            if due.at > self.end || (stop_early && !self.record.violations.is_empty()) {
                break;
            }
            at_once = if due.at > self.now { 0 } else { at_once + 1 };
            in_all += 1;
            if at_once > MOST_AT_ONCE || in_all > MOST_IN_ALL {
                let text = format!("the scenario does not come to an end: stopped at {}", self.record.t(self.now));
                return Err(ScriptError { line: 0, text });
            }
            self.now = self.now.max(due.at);
            self.dispatch(due.what);
            if let Some(failed) = self.failed.take() {
                return Err(failed);
            }
            self.check();
        }
        self.now = self.now.max(self.end.min(self.now + Duration::from_secs(1)));
        self.record.end(self.now);
        Ok(())
    }

    /// The cluster as it has been for long: guards up, leases granted, domains running where they belong.
    fn warm_up(&mut self) {
        self.start_authority();
        for at in 0..self.hosts.len() {
            if self.hosts[at].power == Power::On {
                // Not all at one instant: nobody's timers are.
                let stagger = Duration::from_micros(37_137 * at as u64 % 1_000_000);
                self.after(stagger, Happening::GuardUp(HostIx(at), 0));
            }
        }
        for (at, domain) in self.setup.domains.iter().enumerate() {
            self.grant(DomainIx(at), domain.on);
            // Again and again: libvirt's own starts may fail.
            let mut start = Duration::from_millis(1500);
            while start + Duration::from_secs(1) < self.setup.warm_up {
                self.after(start, Happening::Libvirt(domain.on, 0, Job::Begin(DomainIx(at))));
                start += Duration::from_secs(7);
            }
        }
        self.at(self.t, Happening::Step);
    }

    pub fn after(&mut self, span: Duration, what: Happening) {
        self.at(self.now + span, what);
    }

    pub fn at(&mut self, at: BootTime, what: Happening) {
        if at != BootTime::NEVER {
            self.order += 1;
            self.queue.push(Due { at: at.max(self.now), order: self.order, what });
        }
    }

    /// A small delay of this kind on this machine, from now on.
    pub fn soon(&mut self, host: HostIx, kind: super::noise::Delay, what: Happening) {
        let span = self.noise.span(host, kind);
        self.after(span, what);
    }

    fn dispatch(&mut self, what: Happening) {
        if let Some(host) = what.host() {
            match self.hosts[host.0].power {
                Power::On => {}
                Power::Off => return,
                Power::Paused(_) | Power::Asleep => return self.hosts[host.0].deferred.push(what),
            }
        }
        use Happening::*;
        match what {
            Step => self.step(),
            Tick(host, process) => self.tick(host, process),
            Beat(host, process) => self.beat(host, process),
            Look(host, process) => self.look(host, process),
            Scan(host, process) => self.begin_scan(host, process),
            Scanned(host, process, began) => self.end_scan(host, process, began),
            Gone(host, process, domain, key) => self.proven_gone(host, process, domain, key),
            Overdue(host, process, exchange) => self.overdue(host, process, exchange),
            Question(host, process, exchange, cuts, request) => self.question(host, process, exchange, cuts, request),
            Answer(host, process, exchange, cuts, answer) => {
                if self.passes(host, exchange.endpoint, Direction::Answers, cuts) {
                    self.answer(host, process, exchange, answer);
                }
            }
            Hint(host, process, hint) => self.hinted(host, process, hint),
            Watch(host) => self.hint(host),
            GuardUp(host, boot) if self.hosts[host.0].boot == boot => self.start_guard(host),
            GuardUp(..) => {}
            Boot(host) => self.boot(host),
            Fire(host, boot) => self.fire(host, boot),
            Libvirt(host, boot, job) => self.libvirt(host, boot, job),
            Verdict(host, boot, hook, allowed) => self.verdict(host, boot, hook, allowed),
            HookDeadline(host, boot, hook) => self.verdict(host, boot, hook, false),
            Dies(host, boot, pid) => self.dies(host, boot, pid),
            KeepStarting(at) => self.keep_starting(at),
            Book => self.book_wakes(),
            AuthorityUp(count) => {
                if self.authority.count == count {
                    self.start_authority();
                }
            }
        }
    }

    // --- the script -------------------------------------------------------------------------------------------

    /// Does the line that is due, and arms the next.
    fn step(&mut self) {
        match self.armed.take() {
            Some(line) => self.do_line(line),
            // At T itself nothing is done yet.
            None => self.failed = self.all_run().err(),
        }
        self.last_step = self.now;
        while let Some(step) = self.script.steps.get(self.next_step) {
            self.next_step += 1;
            match self.resolve(&step.at) {
                Ok(at) if at >= self.now => {
                    self.armed = Some(self.next_step - 1);
                    return self.at(at, Happening::Step);
                }
                Ok(_) if self.lenient => {
                    self.armed = Some(self.next_step - 1);
                    return self.after(Duration::ZERO, Happening::Step);
                }
                Err(_) if self.lenient => {}
                Ok(at) => {
                    let (when, at, now) = (step.at.show(&self.setup.names), self.record.t(at), self.record.t(self.now));
                    return self.fail(
                        step.line,
                        format!("{when} is {at}, and that is past: the line before was done at {now}"),
                    );
                }
                Err(why) => return self.fail(step.line, why),
            }
        }
        let timing = &self.setup.timing;
        let rest = timing.ttl + timing.watchdog + timing.margin + Duration::from_secs(10);
        let latest = self.script.expects.iter().map(|expect| self.t + expect.what.span).max();
        self.end = match self.setup.run_for {
            Some(span) => self.t + span,
            None => latest.unwrap_or(self.now).max(self.now + rest),
        };
    }

    fn do_line(&mut self, at: usize) {
        let script = self.script;
        let Some(step) = script.steps.get(at) else { return };
        self.done[at] = Some(self.now);
        if let Err(why) = self.carry_out(&step.what)
            && !self.lenient
        {
            self.fail(step.line, why);
        }
    }

    fn fail(&mut self, line: usize, text: String) {
        self.failed = Some(ScriptError { line, text });
    }

    fn resolve(&self, when: &super::when::When) -> Result<BootTime, String> {
        let base = match when.base {
            Base::T => self.t,
            Base::Then => self.last_step,
            Base::Expiry(domain, host) => self.expiry(domain, host).ok_or_else(|| {
                let Setup { names, .. } = self.setup;
                let (host, domain) = (&names.hosts[host.0], &names.domains[domain.0]);
                format!(
                    "there is no E({domain}@{host}) at {}: {host} has neither a lease nor a copy of {domain}",
                    self.record.t(self.now)
                )
            })?,
            Base::Bound(host) => self.bound_of(host).ok_or_else(|| {
                let host = &self.setup.names.hosts[host.0];
                format!("there is no bound({host}) at {}: the node states none", self.record.t(self.now))
            })?,
        };
        let plus = Duration::from_micros(when.plus.unsigned_abs());
        Ok(if when.plus < 0 { base - plus } else { base + plus })
    }

    fn all_run(&mut self) -> Result<(), ScriptError> {
        for (at, domain) in self.setup.domains.iter().enumerate() {
            let runs = self.hosts[domain.on.0].qemus.iter().any(|qemu| qemu.domain == DomainIx(at) && qemu.alive);
            // What is expected is expected of domains that run; a drawn schedule may begin with one that failed to start.
            if !runs && !self.lenient && !self.script.expects.is_empty() {
                let (host, name) = (&self.setup.names.hosts[domain.on.0], &self.setup.names.domains[at]);
                let text =
                    format!("{name} does not run on {host} at T: give it a longer 'warm up', or another machine");
                return Err(ScriptError { line: 0, text });
            }
        }
        Ok(())
    }
}

/// The domain's uuid in this scenario: its place, from 1.
pub(super) fn uuid(domain: DomainIx) -> DomainId {
    let mut bytes = [0; 16];
    bytes[14..].copy_from_slice(&(domain.0 as u16 + 1).to_be_bytes());
    DomainId::from_bytes(bytes)
}

/// The domain with this uuid.
pub(super) fn domain_of(id: DomainId, setup: &Setup) -> Option<DomainIx> {
    (0..setup.domains.len()).map(DomainIx).find(|&domain| uuid(domain) == id)
}
