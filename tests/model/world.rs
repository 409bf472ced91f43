//! The shipped guard and the shipped authority in a world where everything that may happen is listed.
//!
//! One node, `a`, in full, and an ideal one, `b`, which runs the domain in the very instant in which the authority gives it
//! away: nothing is worse for "never two". Time goes in ticks of a second; messages wait until somebody delivers them, in any
//! order, or for ever. Nothing on `a` is ever forced to happen: a kill may never succeed, a scan never come, libvirt stall
//! between any two steps. So what is shown rests on the watchdog and on the receipts alone. A feed takes effect as late
//! as it can, a whole P after the permit was read.

use crate::checker::Model;
use leasehold::authority::book::{Book, Now, Outcome};
use leasehold::authority::records::Durable;
use leasehold::lease::event::*;
use leasehold::lease::guard::{Guard, Memory};
use leasehold::lease::id::*;
use leasehold::lease::ledger::{Ledger, Recovered};
use leasehold::lease::policy::{Lapse, Policy, Unkillable};
use leasehold::lease::promise::Restraint;
use leasehold::lease::time::BootTime;
use leasehold::lease::timing::{Timing, Watchdog};
use leasehold::protocol::*;
use std::time::Duration;

pub const TICK: Duration = Duration::from_secs(1);
pub const DOMAIN: DomainId = DomainId::from_bytes([1; 16]);
/// Messages under way in one direction; more push out the oldest.
const UNDER_WAY: usize = 2;

/// How often each fault, and each wish of somebody, may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Budget {
    pub guard_dies: u8,
    pub guard_hangs: u8,
    pub core_hangs: u8,
    pub ledger_lost: u8,
    pub authority_dies: u8,
    pub duplicates: u8,
    /// An answer says nothing of any domain.
    pub emptied: u8,
    pub guest_exits: u8,
    pub starts: u8,
    /// libvirt starts a domain over a process of it that it takes for dead.
    pub forgets: u8,
    pub moves: u8,
    pub feed_stops: u8,
    /// In a prompt network: a tick passes over messages under way.
    pub late: u8,
    /// In a prompt network: from now on nothing arrives.
    pub cuts: u8,
    /// While no guard runs, the other timing of the case is configured.
    pub retimes: u8,
    /// A machine made from the disk of `a` asks as the node `a`.
    pub clones: u8,
    /// A live migration is opened, from `a` or to it.
    pub migrations: u8,
    /// The node sleeps; its device stands still meanwhile, and is started anew when it wakes.
    pub sleeps: u8,
}

/// Who keeps the device open when the guard dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keeper {
    FdStore,
    Nobody,
}

/// What one search is about.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub budget: Budget,
    pub keeper: Keeper,
    pub timing: Timing,
    /// What may be configured instead.
    pub other: Timing,
    /// The bound that the node states counts with the double faults of rule 5.
    pub strict: bool,
    pub lapse: Lapse,
    pub unkillable: Unkillable,
    /// Its domain is covered by a bound.
    pub bounded: bool,
    /// The node's clock goes this much slower (positive) or faster, in parts per million.
    pub slow_ppm: i64,
    /// The domain runs on `a` at the beginning.
    pub runs: bool,
    /// Messages arrive within their tick, but for `late` and `cuts`: so longer stretches can be searched.
    pub prompt: bool,
    /// Contact is unbroken: messages come at once, the guard is back at once, scans are made.
    pub healthy: bool,
    /// At the beginning `b` has it, and `a` is to receive it.
    pub arrives: bool,
    /// Ticks after the beginning.
    pub horizon: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    Question { at: usize, again: bool },
    Answer { at: usize, again: bool },
    Emptied { at: usize },
    MoveToB,
    MoveToA,
    Exits,
    Dies,
    Proven,
    Scan,
    Prepare,
    Start,
    Exec,
    GivesUp,
    GuardDies,
    GuardDiesInTurn { written: bool },
    GuardStarts { ledger: bool },
    Retimed,
    CloneAsks,
    OpenToB,
    OpenToA,
    Moved,
    Aborted,
    Migrate,
    Sleeps,
    Wakes,
    GuardHangs,
    CoreHangs,
    Cut,
    AuthorityDies,
    AuthorityStarts,
    FeedStops,
    FeedGoesOn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hang {
    No,
    Core,
    All,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    key: ProcessKey,
    started: BootTime,
    pub alive: bool,
    /// Its virtual CPUs run: not those of a migration's destination before it is resumed.
    runs: bool,
    struck: bool,
    told: bool,
}

/// How far libvirt is with a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Starting {
    No,
    Asks(HookOp, HookId),
    Let(HookOp),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Device {
    Closed,
    /// The last feed took effect then, on the node's clock, and this is its timeout.
    Fed(BootTime, Duration),
}

#[derive(Clone, Hash)]
pub struct World {
    #[allow(clippy::struct_field_names)]
    pub case: Shared,
    pub now: BootTime,
    ticks: u8,
    pub horizon: u8,
    pub left: Budget,
    // The node.
    booted: BootTime,
    boot: u8,
    incarnation: u8,
    guard: Option<Guard>,
    /// As it is configured.
    timing: Timing,
    restraint: Option<Restraint>,
    /// A guard ran in this boot.
    guarded: bool,
    pub hang: Hang,
    ledger: Option<Ledger>,
    pub processes: Vec<Process>,
    starting: Starting,
    /// What is being started is a migration's destination.
    receives: bool,
    hooks: u64,
    pids: i32,
    scanned: bool,
    device: Device,
    /// Nobody's device was closed when the permit passed.
    abandoned: bool,
    told_armed: bool,
    feed_stopped: bool,
    asleep: bool,
    // The authority.
    book: Option<Book>,
    pub durable: Durable,
    authorities: u8,
    // The network.
    cut: bool,
    /// A question came after its machine had been reset and was up again: that looks like two machines with one name, and
    /// an operator has to say that it is none.
    pub belated: bool,
    questions: Vec<RenewRequest>,
    answers: Vec<RenewAnswer>,
    /// The end of the bound of every answer that could have renewed the domain on `a`.
    bound_ends: BootTime,
    /// Until when the clone may run the domain.
    clone_until: BootTime,
    /// The guard is killed in its next turn: before its ledger is written, or after it and before what relies on it.
    dies_in_turn: Option<bool>,
    /// What a step has broken.
    broken: Option<String>,
}

/// The case is the same in every state of a search: it is no part of one.
#[derive(Clone, Copy)]
pub struct Shared(pub &'static Case);

impl std::hash::Hash for Shared {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl World {
    /// The node is up and armed and holds the lease.
    pub fn new(case: &'static Case) -> World {
        let now = BootTime::ZERO + Duration::from_secs(1000);
        let mut world = World {
            case: Shared(case),
            now,
            ticks: 0,
            horizon: case.horizon,
            left: case.budget,
            booted: BootTime::ZERO,
            boot: 0,
            incarnation: 0,
            guard: None,
            timing: case.timing,
            restraint: None,
            guarded: false,
            hang: Hang::No,
            ledger: None,
            processes: vec![],
            starting: Starting::No,
            receives: false,
            hooks: 0,
            pids: 100,
            scanned: false,
            device: Device::Closed,
            abandoned: false,
            told_armed: false,
            feed_stopped: false,
            asleep: false,
            book: None,
            durable: Durable::default(),
            authorities: 0,
            cut: false,
            belated: false,
            questions: vec![],
            answers: vec![],
            bound_ends: BootTime::NEVER,
            clone_until: BootTime::ZERO,
            dies_in_turn: None,
            broken: None,
        };
        world.start_authority();
        let owner = node(if case.arrives { "b" } else { "a" });
        let request = GrantRequest { node: owner, incoming: None, name: None };
        world.operate(|book, now| book.grant(now, DOMAIN, &request));
        world.start_guard(true);
        world.scan();
        world.pass_a_tick();
        world.settle_messages();
        world.pass_a_tick();
        world.settle_messages();
        if case.runs {
            for step in [Step::Prepare, Step::Start, Step::Exec, Step::Scan] {
                world.left.starts += u8::from(step == Step::Prepare);
                world.do_step(step);
                world.settle_messages();
            }
            assert!(world.alive() == 1, "{}: it must run at the beginning", case.name);
        }
        world.ticks = 0;
        world.left = case.budget;
        world
    }

    fn policy(&self) -> Policy {
        let Case { lapse, unkillable, .. } = *self.case.0;
        let timing = self.timing;
        Policy { node: node("a"), observe: false, timing, rules: vec![], lapse, unkillable, bound: None }
    }

    fn bound(&self) -> Duration {
        self.timing.promises(Watchdog::Armed, self.case.0.strict).expect("it is armed")
    }

    fn boot_id(&self) -> BootId {
        BootId::from_bytes([self.boot + 1; 16])
    }

    /// The node's BOOTTIME.
    fn clock(&self, at: BootTime) -> BootTime {
        let real = at.since(self.booted).as_nanos() as i128;
        BootTime::from_nanos((real - real * i128::from(self.case.0.slow_ppm) / 1_000_000) as u64)
    }

    pub fn alive(&self) -> usize {
        self.processes.iter().filter(|process| process.alive).count()
    }

    /// Those that may write now.
    fn running(&self) -> usize {
        self.processes.iter().filter(|process| process.alive && process.runs && !self.asleep).count()
    }

    /// A migration is open.
    pub fn migrates(&self) -> bool {
        self.durable.leases.get(&DOMAIN).is_some_and(|lease| lease.incoming.is_some())
    }

    /// Who may start it now, by what is durable.
    pub fn owner(&self) -> Option<&NodeId> {
        self.durable.leases.get(&DOMAIN)?.owner.as_ref().map(|owner| &owner.node)
    }

    // --- time ---------------------------------------------------------------------------------------------------

    fn pass_a_tick(&mut self) {
        let end = self.now + TICK;
        self.now = end;
        if !self.asleep {
            self.feed();
        }
        // What happens between two ticks happens in its order; at the same instant the machine is reset first.
        loop {
            let fires = self.fires().filter(|&at| at <= end && !self.asleep);
            let wakes = self.book.as_ref().and_then(Book::next_wake).filter(|&at| at <= end);
            match (fires, wakes) {
                (Some(at), wakes) if wakes.is_none_or(|wakes| at <= wakes) => {
                    self.now = at;
                    self.reset();
                }
                (_, Some(at)) => {
                    self.now = at;
                    self.operate(|book, now| book.progress(now));
                    self.check();
                }
                _ => break,
            }
        }
        self.now = end;
        self.ticks += 1;
        self.scanned = false;
        if self.asleep {
            return;
        }
        let armed = self.device != Device::Closed && !self.abandoned;
        if armed && !self.told_armed && self.hang == Hang::No && self.guard.is_some() {
            self.told_armed = true;
            let bound = Some(self.bound());
            self.event(Event::Watchdog { bound });
        }
        let now = self.clock(self.now);
        if self.guard.as_ref().is_some_and(|guard| guard.wake_at(now) <= now) {
            self.event(Event::Tick);
        }
    }

    /// Everything under way arrives.
    fn settle_messages(&mut self) {
        for _ in 0..8 {
            while !self.questions.is_empty() {
                self.question(0, false);
            }
            while !self.answers.is_empty() {
                self.answer(0, false, false);
            }
        }
    }

    // --- the properties -----------------------------------------------------------------------------------------

    fn check(&mut self) {
        let elsewhere = self.owner().is_some_and(|owner| *owner == node("b"));
        if elsewhere && self.running() > 0 {
            self.broken = Some("two copies: b owns it, and it lives on a".to_owned());
        }
        if self.now < self.clone_until && (elsewhere || self.running() > 0) {
            self.broken = Some("two copies: a clone of a may run it".to_owned());
        }
        if self.alive() > 1 {
            self.broken = Some("two copies on a".to_owned());
        }
        if self.case.0.bounded && self.running() > 0 && self.now > self.bound_ends {
            self.broken =
                Some("the bound is broken: it lives longer after the last answer that could renew it".to_owned());
        }
    }
}

fn push<T>(under_way: &mut Vec<T>, message: T) {
    if under_way.len() >= UNDER_WAY {
        under_way.remove(0);
    }
    under_way.push(message);
}

fn node(name: &str) -> NodeId {
    name.parse().expect("a short name")
}

mod authority;
mod node;
mod steps;
