//! A guard process as the daemon wires it: the shipped core, source client and feed thread, with the world for their
//! threads, their network and their machine.

use super::device::{Board, Model};
use super::host::{Service, machine};
use super::libvirt::Job;
use super::noise::Delay;
use super::phrase::{DomainIx, HostIx};
use super::record::Kind;
use super::world::{Happening, World, domain_of, uuid};
use crate::guard::SCAN_INTERVAL;
use crate::guard::armament::{LOOK, bound, promised_timeout};
use crate::guard::core::{Permit, allow_feeding};
use crate::guard::feed::{FeedReport, FeedState, Feeder, Keeper, Orders};
use crate::lease::event::{Action, CopyState, Event, Question, Scan, SeenCopy, Verdict};
use crate::lease::gone::DisarmOrder;
use crate::lease::guard::{Guard, Memory};
use crate::lease::id::{Incarnation, ProcessKey, QuestionNumber};
use crate::lease::ledger::{Ledger, Recovered};
use crate::lease::policy::{Lapse, Policy, Rule, Unkillable};
use crate::lease::promise::Restraint;
use crate::lease::time::BootTime;
use crate::lease::timing::Timing;
use crate::node::watchdog::SHORT_TIMEOUTS;
use crate::protocol::{Mode, RenewAnswer, RenewRequest, WatchAnswer};
use crate::sources::native::{Conversation, Heard, NodeFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

type Feed = Feeder<Model, Box<dyn Fn() -> BootTime>, Box<dyn FnMut()>>;

/// One request to one endpoint and what comes back for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    pub endpoint: usize,
    pub number: u32,
}

/// One endpoint's thread: one question at a time, and the newest waits.
struct Client {
    conversation: Conversation,
    busy: Option<(Question, RenewRequest, u32)>,
    waiting: Option<Question>,
}

/// Stopped processes do nothing, and find everything done to them when they go on.
pub(super) enum Missed {
    Event(Event),
    Happening(Happening),
}

pub(super) struct GuardProcess {
    pub number: u32,
    pub guard: Guard,
    permit: Permit,
    disarm: DisarmOrder,
    report: FeedReport,
    feed: Option<Feed>,
    pub timing: Timing,
    restraint: Option<Restraint>,
    clients: Vec<Client>,
    exchanges: u32,
    failures: BTreeMap<QuestionNumber, usize>,
    /// Of the watch.
    seen: u64,
    /// Processes it holds a pidfd of.
    known: BTreeSet<ProcessKey>,
    scanning: bool,
    scan_again: bool,
    /// libvirt's daemons that it wants to know the end of, and those that had ended when the scan under way began.
    daemons: Vec<ProcessKey>,
    dead_daemons: Vec<ProcessKey>,
    tick_at: BootTime,
    /// The earliest of its ticks and looks under way, so that each waits in the queue once.
    ticks_at: BootTime,
    looks: bool,
    told: (FeedState, i32, u32),
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
            restraint,
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
    fn process(&mut self, host: HostIx, number: u32, what: impl FnOnce() -> Happening) -> Option<&mut GuardProcess> {
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
        let timeout = promised_timeout(now.2, process.restraint, &timing);
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

    // --- its scanner --------------------------------------------------------------------------------------------------

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
    fn know(&mut self, host: HostIx, key: ProcessKey) {
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

    // --- its source ---------------------------------------------------------------------------------------------------

    fn ask(&mut self, host: HostIx, endpoint: usize, question: Question) {
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        let client = &mut process.clients[endpoint];
        if client.busy.is_none() {
            let request = client.conversation.ask(&question);
            return self.send(host, endpoint, question, request);
        }
        if let Some(replaced) = client.waiting.replace(question) {
            self.unanswered(host, replaced.number, "an endpoint is still busy with an earlier question");
        }
    }

    fn send(&mut self, host: HostIx, endpoint: usize, question: Question, request: RenewRequest) {
        let clock = self.hosts[host.0].clock(self.now);
        let until = question.sent + question.timeout;
        if until <= clock {
            return self.unanswered(host, question.number, "no time is left for it");
        }
        let deadline = self.hosts[host.0].real(until);
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        process.exchanges += 1;
        let exchange = Exchange { endpoint, number: process.exchanges };
        let number = process.number;
        process.clients[endpoint].busy = Some((question, request.clone(), exchange.number));
        self.send_question(host, number, exchange, &request);
        self.at(deadline, Happening::Overdue(host, number, exchange));
    }

    pub fn answer(&mut self, host: HostIx, number: u32, exchange: Exchange, answer: Result<Box<RenewAnswer>, String>) {
        if self.hosts[host.0].guard.as_ref().is_some_and(|process| process.number == number && process.stopped) {
            let cuts = self.hosts[host.0].links[exchange.endpoint].cuts[super::network::Direction::Answers as usize];
            self.process(host, number, || Happening::Answer(host, number, exchange, cuts, answer));
            return;
        }
        let Some(process) = self.hosts[host.0].guard.as_mut().filter(|process| process.number == number) else {
            return;
        };
        let client = &mut process.clients[exchange.endpoint];
        let Some((question, request, _)) = client.busy.take_if(|(.., busy)| *busy == exchange.number) else { return };
        match answer.and_then(|answer| client.conversation.hear(&question, &request, *answer)) {
            Ok(Heard::Answer(answer)) => self.event(host, Event::Answered(Box::new(answer))),
            Ok(Heard::InFull(again)) => return self.send(host, exchange.endpoint, question, again),
            Err(why) => self.unanswered(host, question.number, &why),
        }
        self.next_question(host, exchange.endpoint);
    }

    pub fn overdue(&mut self, host: HostIx, number: u32, exchange: Exchange) {
        let Some(process) = self.process(host, number, || Happening::Overdue(host, number, exchange)) else { return };
        let client = &mut process.clients[exchange.endpoint];
        let Some((question, ..)) = client.busy.take_if(|(.., busy)| *busy == exchange.number) else { return };
        self.unanswered(host, question.number, "no answer in time");
        self.next_question(host, exchange.endpoint);
    }

    fn next_question(&mut self, host: HostIx, endpoint: usize) {
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        let client = &mut process.clients[endpoint];
        if client.busy.is_none()
            && let Some(question) = client.waiting.take()
        {
            let request = client.conversation.ask(&question);
            self.send(host, endpoint, question, request);
        }
    }

    /// The core hears of it when every endpoint has failed.
    fn unanswered(&mut self, host: HostIx, question: QuestionNumber, why: &str) {
        let endpoints = self.setup.endpoints;
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        let failed = process.failures.entry(question).or_default();
        *failed += 1;
        if *failed >= endpoints {
            process.failures.retain(|&number, _| number > question);
            self.event(host, Event::Unanswered { question, why: why.to_owned() });
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
