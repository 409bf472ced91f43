//! A world in virtual time: the shipped lease core on two nodes, the shipped authority, a network that loses, delays,
//! duplicates and reorders, libvirt, QEMUs that may not die, and watchdogs that fire. Everything is drawn from a seed.

use leasehold::authority::book::{Book, Now};
use leasehold::authority::records::Durable;
use leasehold::lease::event::*;
use leasehold::lease::guard::{Guard, Memory};
use leasehold::lease::id::*;
use leasehold::lease::ledger::{Ledger, Recovered};
use leasehold::lease::policy::{Lapse, Policy, Unkillable};
use leasehold::lease::time::BootTime;
use leasehold::lease::timing::{Profile, Timing, Watchdog};
use leasehold::protocol::*;
use std::time::Duration;

pub const STEP: Duration = Duration::from_millis(10);
pub const DOMAIN: DomainId = DomainId::from_bytes([1; 16]);

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, good enough to draw schedules from.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }
}

/// Which faults there are: one in so many steps, or never.
#[derive(Clone, Copy)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub slow: u64,
    pub cut: u64,
    pub guard_dies: u64,
    /// How long a dead guard stays away at most, in milliseconds.
    pub guard_away: u64,
    pub authority_dies: u64,
    pub guest_exits: u64,
    pub unkillable: u64,
    pub controller: u64,
}

pub const NEVER: u64 = u64::MAX;

impl Faults {
    pub const NONE: Faults = Faults {
        loss: NEVER,
        duplicate: NEVER,
        slow: NEVER,
        cut: NEVER,
        guard_dies: NEVER,
        guard_away: 1500,
        authority_dies: NEVER,
        guest_exits: NEVER,
        unkillable: NEVER,
        controller: NEVER,
    };
    pub const ALL: Faults = Faults {
        loss: 10,
        duplicate: 10,
        slow: 3,
        cut: 4000,
        guard_dies: 3000,
        guard_away: 6000,
        authority_dies: 4000,
        guest_exits: 2500,
        unkillable: 4,
        controller: 700,
    };
}

struct Process {
    key: ProcessKey,
    /// Its virtual CPUs do not run: it came by live migration.
    paused: bool,
    /// libvirt was asked to resume it and will by then, if it lives.
    resumes_at: Option<BootTime>,
    started: BootTime,
    alive: bool,
    dies_at: Option<BootTime>,
    unkillable: bool,
    /// libvirt believes it dead though it lives on in state D (libvirt 9.0: `virsh destroy` succeeded over one after 80 s).
    forgotten: bool,
    told_gone: bool,
}

/// How far libvirt is with a start.
enum Start {
    Idle,
    Waiting(HookOp, HookId, BootTime),
    Passed(HookOp, BootTime),
}

pub struct Node {
    id: NodeId,
    number: u8,
    guard: Option<Guard>,
    ledger: Option<Vec<u8>>,
    incarnation: u8,
    boot: u8,
    booted: BootTime,
    /// Parts per million by which its clock runs fast.
    drift: i64,
    up_at: BootTime,
    guard_up_at: BootTime,
    cut_until: BootTime,
    processes: Vec<Process>,
    start: Start,
    /// The start under way is the destination's half of a live migration.
    incoming: bool,
    scan_at: Option<(BootTime, BootTime)>,
    next_scan: BootTime,
    fed: Option<BootTime>,
    hooks: u64,
    pids: i32,
    pub resets: u32,
    pub kills: u32,
}

enum Message {
    Question(usize, Box<RenewRequest>),
    Answer(usize, Box<RenewAnswer>),
}

pub struct World {
    pub random: Random,
    pub faults: Faults,
    pub now: BootTime,
    pub nodes: Vec<Node>,
    durable: Durable,
    book: Option<Book>,
    authority_up_at: BootTime,
    authorities: u8,
    wire: Vec<(BootTime, Message)>,
    timing: Timing,
    /// The last instant at which an answer that could have renewed was issued to each node.
    pub trace: Vec<String>,
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> World {
        let mut random = Random(seed);
        // Nearly no margin: the faults of this world take effect in steps of 10 ms, and slack would hide what is off by
        // a feed period or a late answer.
        let timing = Timing { margin: Duration::from_millis(60), ..Timing::profile(Profile::Fast) };
        let now = BootTime::ZERO + Duration::from_secs(1000);
        let node = |number: u8, random: &mut Random| Node {
            id: format!("n{number}").parse().unwrap(),
            number,
            guard: None,
            ledger: None,
            incarnation: 0,
            boot: 0,
            booted: now - Duration::from_secs(50),
            drift: random.below(801) as i64 - 400,
            up_at: now,
            guard_up_at: now,
            cut_until: BootTime::ZERO,
            processes: vec![],
            start: Start::Idle,
            incoming: false,
            scan_at: None,
            next_scan: BootTime::ZERO,
            fed: None,
            hooks: 0,
            pids: 100,
            resets: 0,
            kills: 0,
        };
        let nodes = vec![node(1, &mut random), node(2, &mut random)];
        let mut world = World {
            random,
            faults,
            now,
            nodes,
            durable: Durable::default(),
            book: None,
            authority_up_at: now,
            authorities: 0,
            wire: vec![],
            timing,
            trace: vec![],
        };
        world.run_for(Duration::from_secs(2), false);
        world
    }

    /// Advances virtual time; with `chaos` the faults strike and a controller and an operator act at random.
    pub fn run_for(&mut self, span: Duration, chaos: bool) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + STEP;
            if chaos {
                self.strike();
            }
            self.authority_step();
            self.deliver();
            for at in 0..self.nodes.len() {
                self.node_step(at);
            }
            self.never_two();
        }
    }

    fn say(&mut self, text: String) {
        self.trace.push(format!("{:?} {text}", self.now));
    }

    // --- the property ---------------------------------------------------------------------------------------

    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&at| self.nodes[at].processes.iter().any(|p| p.alive && !p.paused)).collect()
    }

    /// Whether a copy that came by live migration waits there.
    pub fn waits(&self, at: usize) -> bool {
        self.nodes[at].processes.iter().any(|p| p.alive && p.paused)
    }

    fn never_two(&mut self) {
        let alive: usize = self.nodes.iter().map(|n| n.processes.iter().filter(|p| p.alive && !p.paused).count()).sum();
        // Stricter than two copies: whoever is told "yours" could start in that very instant.
        let elsewhere = self.owner().is_some_and(|owner| self.running().iter().any(|&at| at != owner));
        if alive > 1 || elsewhere {
            let tail = self.trace.len().saturating_sub(60);
            panic!("two copies at {:?}\n{}", self.now, self.trace[tail..].join("\n"));
        }
    }

    // --- the authority --------------------------------------------------------------------------------------

    fn authority_step(&mut self) {
        if self.book.is_none() && self.now >= self.authority_up_at {
            self.authorities += 1;
            let incarnation = Incarnation::from_bytes([100 + self.authorities; 16]);
            self.book = Some(Book::open(self.durable.clone(), incarnation, self.now, self.now));
            self.say("the authority starts".into());
        }
        let Some(book) = &mut self.book else { return };
        if book.next_wake().is_some_and(|at| at <= self.now) {
            let outcome = book.progress(Now { at: self.now, wall: "" });
            for write in outcome.writes {
                self.durable.apply(write);
            }
            for line in outcome.log {
                self.say(line);
            }
        }
    }

    /// One operation: committed unless the authority dies first, answered unless it dies between.
    pub fn operate<T>(
        &mut self,
        operation: impl FnOnce(&mut Book, Now) -> (T, Vec<leasehold::authority::records::Write>, Vec<String>),
    ) -> Option<T> {
        let book = self.book.as_mut()?;
        let (answer, writes, log) = operation(book, Now { at: self.now, wall: "" });
        let dies = self.faults.authority_dies != NEVER && self.random.one_in(60);
        let committed = !dies || self.random.one_in(2);
        if committed {
            for write in writes {
                self.durable.apply(write);
            }
            for line in log {
                self.say(line);
            }
        }
        if dies {
            self.book = None;
            self.authority_up_at = self.now + self.random.millis(0, 3000);
            self.say(format!("the authority dies, committed: {committed}"));
            return None;
        }
        Some(answer)
    }

    pub fn grant(&mut self, to: usize) -> bool {
        let request = GrantRequest { node: self.nodes[to].id.clone(), incoming: None, name: None };
        let done = self.operate(|book, now| {
            let o = book.grant(now, DOMAIN, &request);
            (o.answer.is_ok(), o.writes, o.log)
        });
        done == Some(true)
    }

    pub fn move_to(&mut self, to: usize) -> bool {
        let id = self.nodes[to].id.clone();
        let done = self.operate(|book, now| {
            let o = book.move_to(now, DOMAIN, &id);
            (o.answer.is_ok(), o.writes, o.log)
        });
        done == Some(true)
    }

    /// Opens a migration from the owner.
    pub fn migrate(&mut self, to: usize) -> bool {
        let Some(owner) = self.owner() else { return false };
        let (node, incoming) = (self.nodes[owner].id.clone(), Some(self.nodes[to].id.clone()));
        let request = GrantRequest { node, incoming, name: None };
        let done = self.operate(|book, now| {
            let o = book.grant(now, DOMAIN, &request);
            (o.answer.is_ok(), o.writes, o.log)
        });
        done == Some(true)
    }

    pub fn moved(&mut self) {
        self.operate(|book, now| {
            let o = book.moved(now, DOMAIN);
            ((), o.writes, o.log)
        });
    }

    fn abort(&mut self) {
        self.operate(|book, now| {
            let o = book.abort(now, DOMAIN);
            ((), o.writes, o.log)
        });
    }

    pub fn revoke(&mut self) {
        self.operate(|book, now| {
            let o = book.revoke(now, DOMAIN);
            ((), o.writes, o.log)
        });
    }

    fn fence(&mut self, at: usize, lift: bool) {
        let id = self.nodes[at].id.clone();
        self.operate(|book, now| {
            let o = if lift { book.unfence(now, &id) } else { book.fence(now, &id) };
            ((), o.writes, o.log)
        });
    }

    pub fn owner(&self) -> Option<usize> {
        let owner = self.durable.leases.get(&DOMAIN)?.owner.as_ref()?;
        self.nodes.iter().position(|node| node.id == owner.node)
    }

    // --- the network ----------------------------------------------------------------------------------------

    fn post(&mut self, node: usize, message: impl Fn() -> Message) {
        let lost = self.random.one_in(self.faults.loss) || self.now < self.nodes[node].cut_until;
        let copies = if lost { 0 } else { 1 + u64::from(self.random.one_in(self.faults.duplicate)) };
        for _ in 0..copies {
            let delay = if self.random.one_in(self.faults.slow) {
                let longest = if self.random.one_in(2) { 950 } else { 9000 };
                self.random.millis(0, longest)
            } else {
                self.random.millis(0, 30)
            };
            self.wire.push((self.now + delay, message()));
        }
    }

    fn deliver(&mut self) {
        let mut due = Vec::new();
        let now = self.now;
        self.wire.retain_mut(|(at, message)| {
            if *at > now {
                return true;
            }
            let taken = std::mem::replace(message, Message::Answer(usize::MAX, Box::new(no_answer())));
            due.push(taken);
            false
        });
        for message in due {
            match message {
                Message::Question(node, request) => {
                    let id = self.nodes[node].id.clone();
                    let answer = self.operate(|book, now| {
                        let o = book.renew(now, &id, (*request).clone());
                        (o.answer.ok(), o.writes, o.log)
                    });
                    if let Some(Some(answer)) = answer {
                        self.post(node, || Message::Answer(node, Box::new(answer.clone())));
                    }
                }
                Message::Answer(node, answer) => self.event(node, Event::Answered(answer)),
            }
        }
    }

    // --- a node ---------------------------------------------------------------------------------------------

    fn policy(&self, at: usize) -> Policy {
        Policy {
            node: self.nodes[at].id.clone(),
            observe: false,
            timing: self.timing,
            rules: vec![],
            lapse: Lapse::Kill,
            unkillable: Unkillable::Reset,
            bound: self.timing.bound(Watchdog::Armed),
        }
    }

    /// A node's own BOOTTIME: it began at its boot and runs at its own rate.
    fn clock(&self, at: usize) -> BootTime {
        let node = &self.nodes[at];
        let real = self.now.since(node.booted).as_nanos() as i128;
        BootTime::from_nanos((real + real * node.drift as i128 / 1_000_000) as u64)
    }

    fn node_step(&mut self, at: usize) {
        if self.now < self.nodes[at].up_at {
            return;
        }
        let now = self.clock(at);
        if self.nodes[at].guard.is_none() && self.now >= self.nodes[at].guard_up_at {
            self.start_guard(at);
        }
        self.die_and_prove(at, now);
        self.scan_if_due(at, now);
        self.libvirt_step(at, now);
        let wakes = self.nodes[at].guard.as_ref().is_some_and(|guard| guard.wake_at(now) <= now + STEP);
        if wakes {
            self.event(at, Event::Tick);
        }
        self.watchdog_step(at, now);
    }

    fn start_guard(&mut self, at: usize) {
        let policy = self.policy(at);
        let node = &mut self.nodes[at];
        node.incarnation += 1;
        let boot = BootId::from_bytes([node.number * 16 + node.boot; 16]);
        let incarnation =
            Incarnation::from_bytes([node.incarnation, node.number, node.boot, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let memory = match node.ledger.as_deref().map(|bytes| Ledger::recover(bytes, boot)) {
            Some(Recovered::Restored(ledger)) => Memory::Restored(ledger),
            None => Memory::First(boot),
            Some(other) => panic!("{other:?}"),
        };
        node.guard = Some(Guard::new(policy, incarnation, memory));
        for process in &mut node.processes {
            process.told_gone = false;
        }
        node.next_scan = BootTime::ZERO;
        let text = format!("guard of n{} starts, incarnation {}", node.number, node.incarnation);
        self.say(text);
        self.event(at, Event::Tick);
    }

    fn event(&mut self, at: usize, event: Event) {
        let now = self.clock(at);
        let Some(guard) = &mut self.nodes[at].guard else { return };
        let turn = guard.step(now, event);
        if turn.ledger_changed {
            let bytes = guard.ledger().to_bytes();
            self.nodes[at].ledger = Some(bytes);
        }
        // The guard may die between the ledger and what leaves behind it.
        if self.faults.guard_dies != NEVER && self.random.one_in(4000) {
            return self.kill_guard(at);
        }
        for action in turn.actions {
            self.act(at, now, action);
        }
    }

    fn act(&mut self, at: usize, now: BootTime, action: Action) {
        match action {
            Action::Ask(question) => {
                let request = self.request(at, &question);
                self.post(at, || Message::Question(at, Box::new(request.clone())));
            }
            Action::Reply { hook, verdict } => {
                let refused = match &self.nodes[at].start {
                    Start::Waiting(op, waiting, _) if *waiting == hook => Some((*op, verdict != Verdict::Allow)),
                    _ => None,
                };
                if let Some((op, refused)) = refused {
                    // libvirtd may stall between the hook's yes and the next step.
                    let longest = if self.random.one_in(4) { 9000 } else { 500 };
                    let after = now + self.random.millis(0, longest);
                    if refused {
                        self.nodes[at].start = Start::Idle;
                        self.hook(at, HookOp::Release);
                    } else {
                        self.say(format!("n{} lets {op:?} through", self.nodes[at].number));
                        self.nodes[at].start = Start::Passed(op, after);
                    }
                }
            }
            Action::Scan { .. } => {
                let end = now + self.random.millis(0, 30);
                self.nodes[at].scan_at.get_or_insert((now, end));
            }
            Action::Kill { process, .. } => {
                self.nodes[at].kills += 1;
                self.wound(at, now, process);
            }
            Action::Destroy { .. } => {
                let keys: Vec<_> = self.nodes[at].processes.iter().map(|p| p.key).collect();
                if self.random.one_in(2) {
                    self.nodes[at].kills += 1;
                    keys.into_iter().for_each(|key| self.wound(at, now, key));
                }
            }
            Action::Resume { .. } => {
                // libvirtd may stall, and then resume when the guard has long thought better of it.
                let longest = if self.random.one_in(4) { 9000 } else { 300 };
                let resumes_at = now + self.random.millis(0, longest);
                for process in self.nodes[at].processes.iter_mut().filter(|p| p.alive && p.paused) {
                    process.resumes_at.get_or_insert(resumes_at);
                }
            }
            Action::AskStarts => {
                let domains = match self.nodes[at].start {
                    Start::Idle => vec![],
                    _ => vec![DOMAIN],
                };
                self.event(at, Event::StartsInFlight { asked: now, domains });
            }
            Action::Mark(_) => {}
            Action::Tell(notice) => {
                let text = format!("n{}: {}", self.nodes[at].number, notice.text);
                self.say(text);
            }
        }
    }

    fn wound(&mut self, at: usize, now: BootTime, key: ProcessKey) {
        let dies_at = now + self.random.millis(0, 400);
        for process in self.nodes[at].processes.iter_mut().filter(|p| p.key == key && p.alive) {
            if process.unkillable {
                process.forgotten = true;
            } else {
                process.dies_at.get_or_insert(dies_at);
            }
        }
    }

    fn request(&self, at: usize, question: &Question) -> RenewRequest {
        let node = &self.nodes[at];
        RenewRequest {
            protocol: VERSION,
            incarnation: Incarnation::from_bytes([
                node.incarnation,
                node.number,
                node.boot,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                1,
            ]),
            question: question.number,
            boot_id: BootId::from_bytes([node.number * 16 + node.boot; 16]),
            machine: Machine { hardware: format!("hw{}", node.number), key: format!("key{}", node.number) },
            uptime_ms: question.sent.as_nanos() / 1_000_000,
            ttl_ms: self.timing.ttl.as_millis() as u64,
            bound_ms: self.timing.bound(Watchdog::Armed).map(|bound| bound.as_millis() as u64),
            mode: Mode::Enforce,
            list: QuestionList {
                digest: format!("{:?}", question.number),
                domains: Some(question.domains.clone()),
                claims_tag: None,
            },
            receipts: question.receipts.clone(),
        }
    }

    fn die_and_prove(&mut self, at: usize, now: BootTime) {
        let mut gone = vec![];
        for process in &mut self.nodes[at].processes {
            if process.dies_at.is_some_and(|dies| now >= dies) {
                process.alive = false;
            }
            process.paused &= process.resumes_at.is_none_or(|at| now < at);
            if !process.alive && !process.told_gone {
                process.told_gone = true;
                gone.push(process.key);
            }
        }
        if self.nodes[at].guard.is_some() {
            for process in gone {
                self.event(at, Event::Gone { domain: DOMAIN, process });
            }
        }
    }

    fn scan_if_due(&mut self, at: usize, now: BootTime) {
        if self.nodes[at].guard.is_none() {
            self.nodes[at].scan_at = None;
            return;
        }
        if self.nodes[at].scan_at.is_none() && now >= self.nodes[at].next_scan {
            let end = now + self.random.millis(0, 30);
            self.nodes[at].scan_at = Some((now, end));
            self.nodes[at].next_scan = now + Duration::from_secs(1);
        }
        let Some((began, end)) = self.nodes[at].scan_at else { return };
        if now >= end {
            self.nodes[at].scan_at = None;
            // It speaks for what lived when it began; what started meanwhile may be in it too.
            let copies =
                self.nodes[at].processes.iter().filter(|p| p.alive && (p.started < began || began.as_nanos() % 2 == 0));
            let seen = |p: &Process| SeenCopy {
                domain: DOMAIN,
                name: "web".into(),
                process: p.key,
                started: p.started,
                // The status file comes a moment after the process.
                state: match p.paused {
                    true if began < p.started + Duration::from_millis(200) => CopyState::Unknown,
                    true => CopyState::Paused,
                    false => CopyState::Running,
                },
            };
            let copies = copies.map(seen).collect();
            self.event(at, Event::Scanned(Scan { began, copies, dead_daemons: vec![] }));
        }
    }

    // --- libvirt ----------------------------------------------------------------------------------------------

    pub fn operator_starts(&mut self, at: usize) {
        let free = matches!(self.nodes[at].start, Start::Idle)
            && self.nodes[at].processes.iter().all(|p| !p.alive || p.forgotten);
        if free && self.now >= self.nodes[at].up_at {
            self.nodes[at].incoming = false;
            self.hook(at, HookOp::Prepare);
        }
    }

    /// `virsh migrate --suspend` from wherever it runs: the destination's half, which ends in a paused process.
    pub fn operator_migrates(&mut self, to: usize) {
        let free = matches!(self.nodes[to].start, Start::Idle) && self.nodes[to].processes.iter().all(|p| !p.alive);
        if free && self.now >= self.nodes[to].up_at && !self.running().is_empty() {
            self.nodes[to].incoming = true;
            self.hook(to, HookOp::Migrate);
        }
    }

    fn hook(&mut self, at: usize, op: HookOp) {
        let now = self.clock(at);
        let node = &mut self.nodes[at];
        node.hooks += 1;
        let id = HookId(node.hooks);
        let answer_by = now + Duration::from_millis(2700);
        if op.can_refuse() {
            node.start = Start::Waiting(op, id, now + Duration::from_secs(3));
        }
        let daemon = Some(ProcessKey { pid: 1, started: 1 });
        let call = HookCall { id, domain: DOMAIN, name: "web".into(), op, daemon, run: None, answer_by };
        if node.guard.is_none() && op.can_refuse() {
            node.start = Start::Idle;
        }
        self.event(at, Event::Hook(call));
    }

    fn libvirt_step(&mut self, at: usize, now: BootTime) {
        match self.nodes[at].start {
            Start::Waiting(_, _, until) if now >= until || self.nodes[at].guard.is_none() => {
                self.nodes[at].start = Start::Idle;
                self.hook(at, HookOp::Release);
            }
            // A start may fail between the steps for reasons of its own.
            Start::Passed(_, after) if now >= after && self.random.one_in(12) => {
                self.nodes[at].start = Start::Idle;
                self.hook(at, HookOp::Release);
            }
            Start::Passed(HookOp::Migrate, after) if now >= after => self.hook(at, HookOp::Prepare),
            Start::Passed(HookOp::Prepare, after) if now >= after => self.hook(at, HookOp::Start),
            Start::Passed(HookOp::Start, after) if now >= after => {
                let unkillable = self.random.one_in(self.faults.unkillable);
                let node = &mut self.nodes[at];
                node.pids += 1;
                let key = ProcessKey { pid: node.pids, started: now.as_nanos() / 10_000_000 };
                let text = format!("n{}: process {} executes, unkillable: {unkillable}", node.number, key.pid);
                node.processes.retain(|p| p.alive || !p.told_gone);
                node.processes.push(Process {
                    key,
                    paused: node.incoming,
                    resumes_at: None,
                    started: now,
                    alive: true,
                    dies_at: None,
                    unkillable,
                    forgotten: false,
                    told_gone: false,
                });
                node.start = Start::Idle;
                self.say(text);
                self.hook_started(at);
            }
            _ => {}
        }
    }

    fn hook_started(&mut self, at: usize) {
        self.hook(at, HookOp::Started);
        self.nodes[at].start = Start::Idle;
    }

    // --- the watchdog -------------------------------------------------------------------------------------------

    fn watchdog_step(&mut self, at: usize, now: BootTime) {
        let permit = self.nodes[at].guard.as_ref().map(|guard| guard.permit());
        // The device stays open in the fd store when the guard dies: nobody feeds it.
        if permit.is_some_and(|permit| now < permit) {
            self.nodes[at].fed = Some(now);
        }
        if self.nodes[at].fed.is_some_and(|fed| now.since(fed) >= self.timing.watchdog) {
            self.reset(at);
        }
    }

    fn reset(&mut self, at: usize) {
        let up_at = self.now + self.random.millis(1000, 8000);
        let node = &mut self.nodes[at];
        node.resets += 1;
        node.guard = None;
        node.ledger = None;
        node.boot += 1;
        node.processes.clear();
        node.start = Start::Idle;
        node.scan_at = None;
        node.fed = None;
        node.booted = up_at;
        node.up_at = up_at;
        node.guard_up_at = up_at;
        let text = format!("n{} is reset by its watchdog", node.number);
        self.say(text);
    }

    // --- faults ---------------------------------------------------------------------------------------------------

    fn kill_guard(&mut self, at: usize) {
        let up_at = self.now + self.random.millis(0, self.faults.guard_away);
        let node = &mut self.nodes[at];
        node.guard = None;
        node.guard_up_at = up_at;
        let text = format!("guard of n{} is killed", node.number);
        self.say(text);
    }

    fn strike(&mut self) {
        let at = self.random.below(2) as usize;
        if self.random.one_in(self.faults.cut) {
            self.nodes[at].cut_until = self.now + self.random.millis(1000, 20_000);
            self.say(format!("n{} is cut off until {:?}", at + 1, self.nodes[at].cut_until));
        }
        if self.random.one_in(self.faults.guard_dies) && self.nodes[at].guard.is_some() {
            self.kill_guard(at);
        }
        if self.random.one_in(self.faults.guest_exits) {
            let now = self.clock(at);
            for process in self.nodes[at].processes.iter_mut().filter(|p| p.alive && !p.unkillable) {
                process.dies_at.get_or_insert(now);
            }
        }
        if self.random.one_in(self.faults.controller) {
            match self.random.below(16) {
                10 | 11 => drop(self.migrate(at)),
                12 | 13 => self.moved(),
                14 => self.abort(),
                0..=4 => drop(self.move_to(at)),
                5 | 6 => drop(self.grant(at)),
                7 => self.revoke(),
                8 => self.fence(at, false),
                _ => self.fence(at, true),
            }
        }
        if self.random.one_in(80) {
            self.operator_starts(at);
        }
        if self.random.one_in(80) {
            self.operator_migrates(at);
        }
    }
}

fn no_answer() -> RenewAnswer {
    RenewAnswer {
        protocol: 0,
        node: "nobody".parse().unwrap(),
        incarnation: Incarnation::from_bytes([0; 16]),
        question: QuestionNumber(0),
        ttl_ms: 0,
        authority: Incarnation::from_bytes([0; 16]),
        clock_ms: 0,
        list_wanted: false,
        claims: Claims::default(),
        name_next: vec![],
        bound_ms: None,
        conflict: None,
    }
}

impl World {
    /// Cuts a node off from the authority.
    pub fn cut(&mut self, at: usize, span: Duration) {
        self.nodes[at].cut_until = self.now + span;
    }

    pub fn random_span(&mut self) -> Duration {
        self.random.millis(0, 3000)
    }

    /// Ends every cut and every fence.
    pub fn lift_all(&mut self) {
        for at in 0..self.nodes.len() {
            self.nodes[at].cut_until = self.now;
        }
        self.run_for(Duration::from_secs(5), false);
        for at in 0..self.nodes.len() {
            self.fence(at, true);
        }
    }
}
