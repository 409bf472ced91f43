//! A guard process as the daemon wires it: the shipped core, source client and feed thread, with the world for their
//! threads, their network and their machine.

use super::client::Client;
use super::device::{Board, Model};
use super::host::machine;
use super::libvirt::Job;
use super::noise::Delay;
use super::phrase::{DomainIx, HostIx};
use super::record::Kind;
use super::world::{Happening, World, domain_of, uuid};
use crate::guard::armament::{LOOK, bound, promised_timeout};
use crate::guard::core::{Permit, allow_feeding};
use crate::guard::feed::{FeedReport, FeedState, Feeder, Keeper, Orders};
use crate::lease::event::{Action, Event, Verdict};
use crate::lease::gone::DisarmOrder;
use crate::lease::guard::{Guard, Memory};
use crate::lease::id::{Incarnation, ProcessKey, QuestionNumber};
use crate::lease::ledger::{Ledger, Recovered};
use crate::lease::policy::{Lapse, Policy, Rule, Unkillable};
use crate::lease::time::BootTime;
use crate::lease::timing::Timing;
use crate::node::watchdog::SHORT_TIMEOUTS;
use crate::protocol::{Mode, WatchAnswer};
use crate::sources::native::{Conversation, NodeFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

type Feed = Feeder<Model, Box<dyn Fn() -> BootTime>, Box<dyn FnMut()>>;

/// Stopped processes do nothing, and find everything done to them when they go on.
pub(super) enum Missed {
    Event(Event),
    Happening(Happening),
}

pub(super) struct GuardProcess {
    pub number: u32,
    pub guard: Guard,
    pub permit: Permit,
    pub disarm: DisarmOrder,
    pub report: FeedReport,
    pub feed: Option<Feed>,
    pub timing: Timing,
    pub clients: Vec<Client>,
    pub exchanges: u32,
    pub failures: BTreeMap<QuestionNumber, usize>,
    /// Of the watch.
    pub seen: u64,
    /// Processes it holds a pidfd of.
    pub known: BTreeSet<ProcessKey>,
    pub scanning: bool,
    pub scan_again: bool,
    /// libvirt's daemons that it wants to know the end of, and those that had ended when the scan under way began.
    pub daemons: Vec<ProcessKey>,
    pub dead_daemons: Vec<ProcessKey>,
    pub tick_at: BootTime,
    /// The earliest of its ticks and looks under way, so that each waits in the queue once.
    pub ticks_at: BootTime,
    pub looks: bool,
    pub told: (FeedState, i32, u32),
    pub stopped: bool,
    pub missed: Vec<Missed>,
}

impl World<'_> {
    fn policy(&self, host: HostIx) -> Policy {
        let setup = &self.setup.hosts[host.0];
        let held = (0..self.setup.domains.len()).filter(|&at| self.setup.domains[at].hold);
        let rule = |at| Rule { name: None, domain: Some(uuid(DomainIx(at))), lapse: Lapse::Hold };
        Policy {
            node: setup.node.clone(),
            observe: setup.observe,
            timing: self.hosts[host.0].timing,
            rules: held.map(rule).collect(),
            lapse: Lapse::Kill,
            unkillable: if setup.report { Unkillable::Report } else { Unkillable::Reset },
            bound: None,
        }
    }

    pub fn start_guard(&mut self, host: HostIx) {
        if self.hosts[host.0].guard.is_some() {
            return;
        }
        let (setup, timing, mut policy) = (&self.setup.hosts[host.0], self.hosts[host.0].timing, self.policy(host));
        let machine_now = &mut self.hosts[host.0];
        machine_now.processes += 1;
        let (number, boot) = (machine_now.processes, machine_now.boot_id(host));
        let memory = match machine_now.ledger.as_ref().map(|ledger| Ledger::recover(&ledger.to_bytes(), boot)) {
            Some(Recovered::Restored(ledger)) => Memory::Restored(ledger),
            None if !machine_now.guarded => Memory::First(boot),
            _ => Memory::Lost(boot),
        };
        machine_now.guarded = true;
        let armed = setup.watchdog && !setup.observe;
        let mut restraint = None;
        if let (true, Memory::Restored(ledger)) = (armed, &memory) {
            let promised = ledger.promise.and_then(|promise| promise.still_holds(&timing, false, timing.watchdog));
            policy.bound = promised.filter(|_| policy.unkillable == Unkillable::Reset);
            let needs = |seconds: u32| Duration::from_secs(seconds.into());
            restraint = ledger.counted.restrain(machine_now.clock(self.now), &timing, false, needs);
        }
        let remembered: BTreeSet<ProcessKey> = match &memory {
            Memory::Restored(ledger) => {
                ledger.domains.values().flat_map(|e| e.copies.iter().map(|c| c.process)).collect()
            }
            _ => BTreeSet::new(),
        };
        let mut bytes = [0; 16];
        bytes[0] = host.0 as u8 + 1;
        bytes[12..].copy_from_slice(&number.to_be_bytes());
        let incarnation = Incarnation::from_bytes(bytes);
        let facts = NodeFacts {
            node: setup.node.clone(),
            boot,
            machine: machine(self.setup, host),
            incarnation,
            mode: if setup.observe { Mode::Observe } else { Mode::Enforce },
            ttl: timing.ttl,
        };
        let client = || Client { conversation: Conversation::new(facts.clone()), busy: None, waiting: None };
        let report = FeedReport::default();
        if machine_now.board.device.borrow().kept {
            report.kept_by(Keeper::FdStore);
        }
        let feed = armed.then(|| {
            let orders = Orders {
                timeout: timing.watchdog.as_secs() as u32,
                restraint,
                period: timing.feed(),
                shortened: SHORT_TIMEOUTS.map(|seconds| (seconds, Duration::from_secs(seconds.into()))),
                last_resort: setup.last_resort.then(|| timing.watchdog + timing.margin),
            };
            feeder(&machine_now.board, orders, &report)
        });
        let guard = Guard::new(policy, incarnation, memory);
        let guard = if armed { guard.awaiting_watchdog() } else { guard };
        machine_now.guard = Some(GuardProcess {
            number,
            guard,
            permit: Permit::default(),
            disarm: DisarmOrder::default(),
            report,
            feed,
            timing,
            clients: (0..self.setup.endpoints).map(|_| client()).collect(),
            exchanges: 0,
            failures: BTreeMap::new(),
            seen: 0,
            known: BTreeSet::new(),
            scanning: false,
            scan_again: false,
            daemons: Vec::new(),
            dead_daemons: Vec::new(),
            tick_at: BootTime::NEVER,
            ticks_at: BootTime::NEVER,
            looks: false,
            told: (FeedState::Waiting, 0, 0),
            stopped: false,
            missed: Vec::new(),
        });
        self.say(host, Kind::Guard, || "its guard starts".to_owned());
        self.event(host, Event::Tick);
        for key in remembered {
            self.know(host, key);
        }
        self.after(Duration::ZERO, Happening::Beat(host, number));
        self.after(Duration::ZERO, Happening::Scan(host, number));
        self.after(Duration::from_millis(20), Happening::Watch(host));
    }

    pub fn kill_guard(&mut self, host: HostIx) {
        let now = self.now;
        let machine = &mut self.hosts[host.0];
        if machine.guard.take().is_none() {
            return;
        }
        let clock = machine.clock(now);
        machine.board.device.borrow_mut().orphan(clock);
        let hooks: Vec<_> = machine.hooks.keys().copied().collect();
        let boot = machine.boot;
        self.watch_device(host);
        // The connection breaks, and a hook without a guard refuses.
        for hook in hooks {
            self.after(Duration::ZERO, Happening::Verdict(host, boot, hook, false));
        }
    }

    pub fn stop_guard(&mut self, host: HostIx) {
        if let Some(process) = &mut self.hosts[host.0].guard {
            process.stopped = true;
        }
    }

    pub fn continue_guard(&mut self, host: HostIx) {
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        process.stopped = false;
        for missed in std::mem::take(&mut process.missed) {
            match missed {
                Missed::Event(event) => self.event(host, event),
                Missed::Happening(what) => self.after(Duration::ZERO, what),
            }
        }
        self.event(host, Event::Tick);
    }

    /// The guard process of this number, if it is there and not stopped; if it is stopped it misses this.
    pub fn process(
        &mut self,
        host: HostIx,
        number: u32,
        what: impl FnOnce() -> Happening,
    ) -> Option<&mut GuardProcess> {
        let process = self.hosts[host.0].guard.as_mut().filter(|process| process.number == number)?;
        if process.stopped {
            process.missed.push(Missed::Happening(what()));
            return None;
        }
        Some(process)
    }

    // --- the core -----------------------------------------------------------------------------------------------

    pub fn tick(&mut self, host: HostIx, number: u32) {
        let now = self.now;
        let Some(process) = self.process(host, number, || Happening::Tick(host, number)) else { return };
        if process.ticks_at > now {
            return;
        }
        process.ticks_at = BootTime::NEVER;
        match process.tick_at {
            at if at <= now => self.event(host, Event::Tick),
            at => self.tick_by(host, at),
        }
    }

    /// The core wants to be woken then.
    fn tick_by(&mut self, host: HostIx, at: BootTime) {
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        process.tick_at = at;
        if at < process.ticks_at {
            process.ticks_at = at;
            let number = process.number;
            self.at(at, Happening::Tick(host, number));
        }
    }

    /// One event through the core, and everything that follows from it.
    pub fn event(&mut self, host: HostIx, event: Event) {
        let now = self.now;
        let machine = &mut self.hosts[host.0];
        let clock = machine.clock(now);
        let Some(process) = &mut machine.guard else { return };
        if process.stopped {
            return process.missed.push(Missed::Event(event));
        }
        let turn = process.guard.step(clock, event);
        allow_feeding(&process.guard, process.feed.is_some().then_some(&process.disarm), &process.permit);
        let wake = process.guard.wake_at(clock);
        if turn.ledger_changed {
            machine.ledger = Some(process.guard.ledger().clone());
        }
        let dies = turn.ledger_changed && machine.die_after_ledger;
        let wake = machine.real(wake);
        self.tick_by(host, wake);
        let mut outward = Vec::new();
        for action in turn.actions {
            match action {
                Action::Ask(_) | Action::Reply { .. } => outward.push(action),
                action => self.act(host, clock, action),
            }
        }
        if dies {
            self.hosts[host.0].die_after_ledger = false;
            self.say(host, Kind::Guard, || "its guard dies with the ledger written and nothing sent".to_owned());
            return self.kill_guard(host);
        }
        for action in outward {
            self.act(host, clock, action);
        }
    }

    fn act(&mut self, host: HostIx, clock: BootTime, action: Action) {
        let boot = self.hosts[host.0].boot;
        let number = self.hosts[host.0].guard.as_ref().map_or(0, |process| process.number);
        match action {
            Action::Ask(question) => {
                for endpoint in 0..self.setup.endpoints {
                    self.ask(host, endpoint, question.clone());
                }
            }
            Action::Reply { hook, verdict } => {
                if let Verdict::Refuse(why) = &verdict {
                    self.refused(host, hook, why);
                }
                let way = Duration::from_millis(1);
                self.after(way, Happening::Verdict(host, boot, hook, verdict == Verdict::Allow));
            }
            Action::Scan { daemons } => {
                if let Some(process) = &mut self.hosts[host.0].guard {
                    process.daemons = daemons;
                    process.scan_again = true;
                }
                self.begin_scan(host, number);
            }
            Action::Kill { domain, process } => {
                let Some(domain) = domain_of(domain, self.setup) else { return };
                self.struck(host, domain, process, "SIGKILL");
                self.wound(host, process, Delay::Death);
            }
            Action::Destroy { domain, .. } => {
                if let Some(domain) = domain_of(domain, self.setup) {
                    self.soon(host, Delay::Destroy, Happening::Libvirt(host, boot, Job::Destroy(domain)));
                }
            }
            Action::Resume { domain, .. } => {
                if let Some(domain) = domain_of(domain, self.setup) {
                    self.soon(host, Delay::Resume, Happening::Libvirt(host, boot, Job::Resume(domain)));
                }
            }
            Action::AskStarts => {
                self.soon(host, Delay::Proof, Happening::Libvirt(host, boot, Job::AskStarts(number, clock)));
            }
            // The fence record is for afterwards; here there is the timeline.
            Action::Mark(_) => {}
            Action::Tell(notice) => self.told(host, &notice),
        }
    }

    // --- its feed thread and the device's watcher -------------------------------------------------------------------

    pub fn beat(&mut self, host: HostIx, number: u32) {
        self.hosts[host.0].set_board(self.now);
        let (stored, board) = (self.setup.hosts[host.0].fd_store, self.hosts[host.0].board.clone());
        let Some(process) = self.process(host, number, || Happening::Beat(host, number)) else { return };
        let Some(feed) = &mut process.feed else { return };
        let due = feed.beat(&process.permit, &process.disarm, &process.report);
        if stored && board.device.borrow().open {
            // A duplicate of what was armed is on its way to the service manager.
            process.report.kept_by(Keeper::FdStore);
        }
        let due = self.hosts[host.0].real(due);
        let late = self.noise.span(host, Delay::Beat);
        self.at(due + late, Happening::Beat(host, number));
        self.look_soon(host);
        self.watch_device(host);
        if self.hosts[host.0].board.sysrq.replace(false) {
            self.reset(host, Kind::Reset, "the device did not fire: the kernel resets it (the last resort)");
        }
    }

    /// The watcher looks four times a second; what matters is that it sees a change within that time.
    fn look_soon(&mut self, host: HostIx) {
        let machine = &mut self.hosts[host.0];
        let Some(process) = &mut machine.guard else { return };
        let device = machine.board.device.borrow();
        let unkept = device.open && !device.kept && self.setup.hosts[host.0].fd_store;
        drop(device);
        let news = unkept || (process.report.state(), process.report.errno(), process.report.timeout()) != process.told;
        if news && !std::mem::replace(&mut process.looks, true) {
            let number = process.number;
            self.after(LOOK, Happening::Look(host, number));
        }
    }

    pub fn look(&mut self, host: HostIx, number: u32) {
        let Some(process) = self.process(host, number, || Happening::Look(host, number)) else { return };
        process.looks = false;
        let now = (process.report.state(), process.report.errno(), process.report.timeout());
        let changed = now != process.told;
        process.told = now;
        let timing = process.timing;
        let timeout = promised_timeout(&process.report, &timing);
        let mut device = self.hosts[host.0].board.device.borrow_mut();
        device.kept = device.open && self.setup.hosts[host.0].fd_store;
        drop(device);
        if changed {
            let bound = bound(now.0, &timing, Duration::from_secs(timeout.into()), timeout, false);
            self.say(host, Kind::Watchdog, || {
                let worth =
                    bound.map_or("no bound".to_owned(), |bound| format!("a bound of {} s", bound.as_secs_f64()));
                format!("its watchdog is {}; the node promises {worth}", now.0.as_str())
            });
            self.event(host, Event::Watchdog { bound });
        }
    }

    pub fn seen_version(&self, host: HostIx) -> Option<(u32, u64)> {
        self.hosts[host.0].guard.as_ref().map(|process| (process.number, process.seen))
    }

    pub fn hinted(&mut self, host: HostIx, number: u32, hint: WatchAnswer) {
        let again = hint.clone();
        let Some(process) = self.process(host, number, || Happening::Hint(host, number, again)) else { return };
        if process.seen != hint.version {
            process.seen = hint.version;
            self.event(host, Event::Hinted(hint.name_next));
        }
    }

    /// The end of the right to run a domain here, in real time, as its guard or its ledger has it.
    pub fn expiry(&self, domain: DomainIx, host: HostIx) -> Option<BootTime> {
        let machine = &self.hosts[host.0];
        let ledger = machine.guard.as_ref().map(|process| process.guard.ledger()).or(machine.ledger.as_ref())?;
        let entry = ledger.domains.get(&uuid(domain))?;
        let copies = entry.copies.iter().map(|copy| copy.expires).max();
        Some(machine.real(copies.or(entry.lease.as_ref().map(|lease| lease.expires))?))
    }
}

/// The shipped feed thread over the machine's own device, open already if the service manager kept it.
fn feeder(board: &Rc<Board>, orders: Orders, report: &FeedReport) -> Feed {
    let (clock, reset) = (board.clone(), board.clone());
    let now: Box<dyn Fn() -> BootTime> = Box::new(move || clock.now.get().0);
    let reset: Box<dyn FnMut()> = Box::new(move || reset.sysrq.set(true));
    let (open, seconds) = (board.device.borrow().open, board.device.borrow().timeout.as_secs() as u32);
    let model = Model(board.clone());
    match open {
        true => Feeder::adopting((model, seconds), orders, report, now, reset),
        false => Feeder::new(model, orders, now, reset),
    }
}
