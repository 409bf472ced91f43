//! Random histories of the book against ideal nodes: no two copies of a domain may ever be able to run.
//!
//! The nodes obey the protocol and nothing more: a copy is killed as late as its bound allows, questions and answers
//! are lost, doubled and reordered, guards restart, nodes reboot, a second host uses a node's id, timings change, and
//! the authority crashes before or after a commit, or cannot write. The check is by the durable records alone: every
//! copy that may be alive is a share of its own node and epoch there, and no two hosts have one unless a migration
//! is open.

use super::book::{Book, MAX_TTL, Now, Outcome};
use super::records::Durable;
use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId, QuestionNumber};
use crate::lease::time::BootTime;
use crate::protocol::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

const DOMAINS: usize = 2;
/// The last one claims the node id of the first.
const HOSTS: usize = 4;

fn domain(n: usize) -> DomainId {
    DomainId::from_bytes([n as u8 + 1; 16])
}

fn node(n: usize) -> NodeId {
    format!("n{}", n % (HOSTS - 1)).parse().unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Setup {
    ttl: u64,
    watchdog: u64,
    observe: bool,
    hold: [bool; DOMAINS],
}

impl Setup {
    fn bound(&self) -> Option<u64> {
        (!self.observe).then_some((self.ttl + self.watchdog) * 1000)
    }

    fn ends(&self, domain: usize, expiry: BootTime) -> BootTime {
        if self.observe || self.hold[domain] { BootTime::NEVER } else { expiry + Duration::from_secs(self.watchdog) }
    }

    fn widens(&self, to: &Setup) -> bool {
        let held = (0..DOMAINS).any(|d| to.hold[d] && !self.hold[d]);
        held || to.observe && !self.observe || to.ttl > self.ttl || to.watchdog > self.watchdog
    }
}

#[derive(Debug, Clone, Copy)]
struct Running {
    epoch: Epoch,
    dies: BootTime,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    lease: Option<(Epoch, BootTime, bool)>,
    sealed: Option<(Epoch, Incarnation, QuestionNumber)>,
    copy: Option<Running>,
}

impl Known {
    fn over(&self, epoch: Epoch) -> bool {
        self.sealed.is_some_and(|(sealed, ..)| epoch <= sealed)
    }
}

#[derive(Debug)]
struct Host {
    booted: BootTime,
    boot: u8,
    incarnation: u8,
    asked: u64,
    folded: u64,
    setup: Setup,
    wanted: Setup,
    known: [Known; DOMAINS],
    /// The list and tag of the last claims folded in, with those claims.
    claims: Option<(String, String, Vec<ClaimEntry>)>,
}

#[derive(Debug, Clone)]
struct Flight {
    host: usize,
    boot: u8,
    sent: BootTime,
    stated: Setup,
    question: RenewRequest,
    answer: Option<RenewAnswer>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Tick(u8),
    Ask {
        host: usize,
        named: u8,
        brief: bool,
    },
    /// A question arrives; a copy of it may stay in flight.
    Arrive {
        which: usize,
        twice: bool,
    },
    /// An answer arrives, or is lost.
    Answer {
        which: usize,
        lost: bool,
    },
    /// Ask, arrive, answer in one instant: most of life.
    Exchange {
        host: usize,
        named: u8,
        brief: bool,
    },
    Start {
        host: usize,
        domain: usize,
    },
    Kill {
        host: usize,
        domain: usize,
    },
    GuardRestart(usize),
    Reboot(usize),
    Setup {
        host: usize,
        ttl: u64,
        watchdog: u64,
        observe: bool,
        hold: [bool; DOMAINS],
    },
    Grant {
        domain: usize,
        node: usize,
        incoming: Option<usize>,
    },
    Revoke(usize),
    Move {
        domain: usize,
        node: usize,
    },
    Moved(usize),
    Abort(usize),
    Forget(usize),
    Fence(usize),
    Unfence(usize),
    Accept(usize),
    /// What befalls the authority's next operation.
    Trouble(Trouble),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    CrashBeforeCommit,
    CrashAfterCommit,
    CannotWrite,
    WroteButSaysNot,
    NoProgress,
    MachineReboot,
}

struct World {
    now: BootTime,
    book: Book,
    disk: Durable,
    suspect: Vec<super::records::Write>,
    hosts: Vec<Host>,
    flights: Vec<Flight>,
    trouble: Option<Trouble>,
    heard: BootTime,
    lives: u8,
    names: u8,
    seen: BTreeMap<String, u32>,
}

impl World {
    fn new() -> World {
        let now = BootTime::ZERO + Duration::from_secs(1000);
        let setup = Setup { ttl: 5, watchdog: 2, observe: false, hold: [false; DOMAINS] };
        let host = |n: usize| Host {
            booted: now - Duration::from_secs(100),
            boot: n as u8 + 1,
            incarnation: n as u8 + 1,
            asked: 0,
            folded: 0,
            setup,
            wanted: setup,
            known: [Known::default(); DOMAINS],
            claims: None,
        };
        World {
            now,
            book: Book::open(Durable::default(), Incarnation::from_bytes([200; 16]), now, now),
            disk: Durable::default(),
            suspect: Vec::new(),
            hosts: (0..HOSTS).map(host).collect(),
            flights: Vec::new(),
            trouble: None,
            heard: now,
            lives: 0,
            names: HOSTS as u8 + 1,
            seen: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    fn operate<T>(&mut self, op: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T>) -> Option<T> {
        let trouble = self.trouble.take();
        let now = Now { at: self.now, wall: "then" };
        if trouble != Some(Trouble::NoProgress) {
            let outcome = self.book.progress(now);
            self.commit(outcome.writes, &outcome.log);
        }
        let outcome = op(&mut self.book, now);
        match trouble {
            None | Some(Trouble::NoProgress) => {
                self.commit(outcome.writes, &outcome.log);
                return Some(outcome.answer);
            }
            Some(Trouble::CrashBeforeCommit) => self.reopen(self.now),
            Some(Trouble::CrashAfterCommit) => {
                self.commit(outcome.writes, &outcome.log);
                self.reopen(self.now);
            }
            Some(Trouble::MachineReboot) => {
                // Its clock would begin anew; what matters is that nothing was heard after its zero.
                self.reopen(self.heard);
            }
            Some(Trouble::CannotWrite) => self.suspect = self.book.undo(outcome.undo),
            Some(Trouble::WroteButSaysNot) => {
                self.commit(outcome.writes, &[]);
                self.suspect = self.book.undo(outcome.undo);
            }
        }
        None
    }

    fn commit(&mut self, writes: Vec<super::records::Write>, log: &[String]) {
        if !writes.is_empty() {
            let all = std::mem::take(&mut self.suspect).into_iter().chain(writes);
            all.for_each(|write| self.disk.apply(write));
        }
        for line in log {
            let what = line.split([' ', '=']).next().unwrap_or_default();
            let proof = line.split_once("proof=").map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
            self.count(format!("{what}{proof}"));
        }
    }

    fn reopen(&mut self, heard_before: BootTime) {
        self.lives += 1;
        self.suspect.clear();
        let authority = Incarnation::from_bytes([200_u8.wrapping_add(self.lives); 16]);
        self.book = Book::open(self.disk.clone(), authority, self.now, heard_before);
    }

    fn ask(&mut self, n: usize, named: u8, brief: bool) -> Flight {
        let now = self.now;
        let host = &mut self.hosts[n];
        host.asked += 1;
        // A wider promise is stated until it is acknowledged, a narrower one is in force already.
        let (is, to) = (host.setup, host.wanted);
        let stated = Setup {
            ttl: is.ttl.max(to.ttl),
            watchdog: is.watchdog.max(to.watchdog),
            observe: is.observe || to.observe,
            hold: std::array::from_fn(|d| is.hold[d] || to.hold[d]),
        };
        let listed = (0..DOMAINS).filter(|d| named & (1 << d) != 0);
        let domains: Vec<NamedDomain> = listed
            .map(|d| NamedDomain {
                domain: domain(d),
                name: String::new(),
                epoch: host.known[d].copy.map(|copy| copy.epoch),
                state: if host.known[d].copy.is_some() { NamedState::Running } else { NamedState::Wanted },
                held_on_lapse: stated.hold[d],
            })
            .collect();
        let digest = {
            let mut hasher = DefaultHasher::new();
            format!("{domains:?}").hash(&mut hasher);
            format!("{:x}", hasher.finish())
        };
        let receipts = host.known.iter().enumerate().filter_map(|(d, known)| {
            let (epoch, denied_incarnation, denied_question) = known.sealed?;
            let gone = known.copy.is_none_or(|copy| copy.epoch > epoch);
            gone.then_some(Receipt { domain: domain(d), epoch, denied_incarnation, denied_question })
        });
        let claims_tag = host.claims.as_ref().filter(|(list, ..)| *list == digest).map(|(_, tag, _)| tag.clone());
        let question = RenewRequest {
            protocol: VERSION,
            incarnation: Incarnation::from_bytes([host.incarnation; 16]),
            question: QuestionNumber(host.asked),
            boot_id: BootId::from_bytes([host.boot; 16]),
            // Host 1 cannot show which machine it is.
            machine: Machine {
                hardware: if n == 1 { String::new() } else { format!("hw{n}") },
                key: format!("key{n}"),
            },
            uptime_ms: now.since(host.booted).as_millis() as u64,
            ttl_ms: is.ttl * 1000,
            bound_ms: stated.bound(),
            mode: if stated.observe { Mode::Observe } else { Mode::Enforce },
            list: QuestionList { digest, domains: (!brief || claims_tag.is_none()).then_some(domains), claims_tag },
            receipts: receipts.collect(),
        };
        Flight { host: n, boot: host.boot, sent: now, stated, question, answer: None }
    }

    fn arrive(&mut self, mut flight: Flight) {
        let (id, question) = (node(flight.host), flight.question.clone());
        self.heard = self.now;
        if let Some(Ok(answer)) = self.operate(|book, now| book.renew(now, &id, question)) {
            self.count(if answer.conflict.is_some() { "conflict" } else { "answered" });
            flight.answer = Some(answer);
            self.flights.push(flight);
        }
    }

    fn fold(&mut self, flight: Flight) {
        let Some(answer) = flight.answer else { return };
        let now = self.now;
        let host = &mut self.hosts[flight.host];
        let current = flight.boot == host.boot && answer.incarnation == Incarnation::from_bytes([host.incarnation; 16]);
        if !current || answer.question.0 <= host.folded || answer.list_wanted {
            return;
        }
        host.folded = answer.question.0;
        let covers =
            |setup: &Setup| answer.bound_ms.is_none() || setup.bound().is_some_and(|b| Some(b) <= answer.bound_ms);
        if flight.stated == host.wanted || !flight.stated.widens(&host.wanted) && covers(&host.wanted) {
            host.setup = host.wanted;
        }
        let digest = flight.question.list.digest;
        let claims = match (answer.claims.domains, &host.claims) {
            (Some(claims), _) => claims,
            (None, Some((list, tag, claims))) if *list == digest && *tag == answer.claims.tag => claims.clone(),
            (None, _) => return,
        };
        host.claims = Some((digest, answer.claims.tag, claims.clone()));
        let expiry = flight.sent + Duration::from_millis(answer.ttl_ms);
        for claim in claims {
            let d = (0..DOMAINS).find(|d| domain(*d) == claim.domain).unwrap();
            let setup = host.setup;
            let known = &mut host.known[d];
            match claim.claim {
                ClaimKind::Deny => {
                    if !known.over(claim.epoch) {
                        known.sealed = Some((claim.epoch, answer.incarnation, answer.question));
                    }
                    known.lease = known.lease.filter(|(epoch, ..)| *epoch > claim.epoch);
                }
                kind => {
                    let older = known.lease.is_some_and(|(epoch, ..)| claim.epoch < epoch);
                    if answer.ttl_ms == 0 || known.over(claim.epoch) || older {
                        continue;
                    }
                    let expiry = known
                        .lease
                        .filter(|(epoch, ..)| *epoch == claim.epoch)
                        .map_or(expiry, |(_, e, _)| e.max(expiry));
                    known.lease = Some((claim.epoch, expiry, kind != ClaimKind::Hold));
                    if let Some(copy) = known.copy.as_mut().filter(|copy| copy.epoch == claim.epoch) {
                        copy.dies = copy.dies.max(setup.ends(d, expiry));
                    }
                }
            }
        }
        let _ = now;
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Tick(seconds) => {
                self.now = self.now + Duration::from_secs(seconds.into());
                for known in self.hosts.iter_mut().flat_map(|host| &mut host.known) {
                    known.copy = known.copy.filter(|copy| copy.dies > self.now);
                }
                self.operate(|book, now| book.progress(now));
            }
            Op::Ask { host, named, brief } => {
                let flight = self.ask(host, named, brief);
                self.flights.push(flight);
                if self.flights.len() > 12 {
                    self.flights.remove(0);
                }
            }
            Op::Arrive { which, twice } => {
                let asked = self.flights.iter().enumerate().filter(|(_, flight)| flight.answer.is_none());
                let asked: Vec<usize> = asked.map(|(at, _)| at).collect();
                if !asked.is_empty() {
                    let at = asked[which % asked.len()];
                    let flight = if twice { self.flights[at].clone() } else { self.flights.remove(at) };
                    self.arrive(flight);
                }
            }
            Op::Answer { which, lost } => {
                let answered = self.flights.iter().enumerate().filter(|(_, flight)| flight.answer.is_some());
                let answered: Vec<usize> = answered.map(|(at, _)| at).collect();
                if !answered.is_empty() {
                    let flight = self.flights.remove(answered[which % answered.len()]);
                    if !lost {
                        self.fold(flight);
                    }
                }
            }
            Op::Exchange { host, named, brief } => {
                let flight = self.ask(host, named, brief);
                let before = self.flights.len();
                self.arrive(flight);
                if self.flights.len() > before {
                    let flight = self.flights.remove(before);
                    self.fold(flight);
                }
            }
            Op::Start { host, domain } => {
                let host = &mut self.hosts[host];
                let known = &mut host.known[domain];
                if let (Some((epoch, expiry, true)), None) = (known.lease, known.copy)
                    && expiry > self.now
                    && !known.over(epoch)
                {
                    known.copy = Some(Running { epoch, dies: host.setup.ends(domain, expiry) });
                    self.count("start");
                }
            }
            Op::Kill { host, domain } => self.hosts[host].known[domain].copy = None,
            Op::GuardRestart(host) => {
                self.names = self.names.wrapping_add(1);
                let host = &mut self.hosts[host];
                (host.incarnation, host.asked, host.folded, host.claims) = (self.names, 0, 0, None);
            }
            Op::Reboot(host) => {
                self.names = self.names.wrapping_add(1);
                let host = &mut self.hosts[host];
                (host.booted, host.boot, host.incarnation) = (self.now, self.names, self.names);
                (host.asked, host.folded, host.claims) = (0, 0, None);
                host.known = [Known::default(); DOMAINS];
                host.setup = host.wanted;
            }
            Op::Setup { host, ttl, watchdog, observe, hold } => {
                let host = &mut self.hosts[host];
                host.wanted = Setup { ttl, watchdog, observe, hold };
                if !host.setup.widens(&host.wanted) {
                    host.setup = host.wanted;
                    for (d, known) in host.known.iter_mut().enumerate() {
                        let expiry = known.lease.map_or(self.now, |(_, expiry, _)| expiry.max(self.now));
                        if let Some(copy) = &mut known.copy {
                            copy.dies =
                                copy.dies.min(host.setup.ends(d, expiry).max(self.now + Duration::from_secs(1)));
                        }
                    }
                }
            }
            Op::Grant { domain: d, node: n, incoming } => {
                let request = GrantRequest { node: node(n), incoming: incoming.map(node), name: None };
                self.operate(|book, now| book.grant(now, domain(d), &request));
            }
            Op::Revoke(d) => drop(self.operate(|book, now| book.revoke(now, domain(d)))),
            Op::Move { domain: d, node: n } => drop(self.operate(|book, now| book.move_to(now, domain(d), &node(n)))),
            Op::Moved(d) => drop(self.operate(|book, now| book.moved(now, domain(d)))),
            Op::Abort(d) => drop(self.operate(|book, now| book.abort(now, domain(d)))),
            Op::Forget(d) => drop(self.operate(|book, now| book.forget(now, domain(d)))),
            Op::Fence(n) => drop(self.operate(|book, now| book.fence(now, &node(n)))),
            Op::Unfence(n) => drop(self.operate(|book, now| book.unfence(now, &node(n)))),
            Op::Accept(n) => {
                // The operator is right: it is the host's present boot that asks, and the id's other host is off.
                let id = node(n);
                let rival = self.book.nodes.get(&id).and_then(|node| node.rival.as_ref()).map(|rival| rival.seen.boot);
                let right = rival == Some(BootId::from_bytes([self.hosts[n].boot; 16]));
                let off = (0..HOSTS).filter(|other| *other != n && node(*other) == id);
                let off = off.flat_map(|other| self.hosts[other].known).all(|known| known.copy.is_none());
                if right && off {
                    for other in (0..HOSTS).filter(|other| *other != n && node(*other) == id) {
                        self.step(Op::Reboot(other));
                    }
                    self.operate(|book, now| book.accept(now, &id));
                }
            }
            Op::Trouble(trouble) => {
                self.count(format!("{trouble:?}"));
                self.trouble = Some(trouble);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        for d in 0..DOMAINS {
            let record = self.disk.leases.get(&domain(d));
            let mut shares: HashMap<Epoch, NodeId> = HashMap::new();
            let held = record.into_iter().flat_map(|record| record.owner.iter().chain(&record.incoming));
            shares.extend(held.map(|share| (share.epoch, share.node.clone())));
            let leaving = record.into_iter().flat_map(|record| &record.leaving);
            shares.extend(leaving.map(|leaving| (leaving.epoch, leaving.node.clone())));
            let mut hosts = Vec::new();
            for (n, host) in self.hosts.iter().enumerate() {
                let Some(copy) = host.known[d].copy else { continue };
                if shares.get(&copy.epoch) != Some(&node(n)) {
                    return Err(format!(
                        "a copy of domain {d} runs on host {n} under epoch {}; the record is {record:?}",
                        copy.epoch
                    ));
                }
                hosts.push((node(n), copy.epoch));
            }
            hosts.sort_by_key(|(_, epoch)| *epoch);
            hosts.dedup_by_key(|(_, epoch)| *epoch);
            let copies = self.hosts.iter().filter(|host| host.known[d].copy.is_some()).count();
            if copies > hosts.len() {
                return Err(format!("two hosts run domain {d} under one epoch: {hosts:?}"));
            }
            if let Some(record) = record {
                let all = record.nodes().collect::<Vec<_>>();
                let distinct = all.iter().collect::<std::collections::BTreeSet<_>>().len();
                // Two shares at most, the two ends of one migration, on two nodes.
                if all.len() > 2 || distinct != all.len() {
                    return Err(format!("shares of domain {d}: {record:?}"));
                }
            }
        }
        Ok(())
    }
}

fn op() -> impl Strategy<Value = Op> {
    let (host, dom) = (0..HOSTS, 0..DOMAINS);
    let nod = 0..HOSTS - 1;
    let usual = 0..HOSTS - 1;
    prop_oneof![
        20 => prop_oneof![6 => 0_u8..4, 2 => 4_u8..9, 1 => 60_u8..75].prop_map(Op::Tick),
        12 => (host.clone(), 0_u8..4, any::<bool>()).prop_map(|(host, named, brief)| Op::Ask { host, named, brief }),
        10 => (0_usize..12, prop::bool::weighted(0.3)).prop_map(|(which, twice)| Op::Arrive { which, twice }),
        10 => (0_usize..12, prop::bool::weighted(0.2)).prop_map(|(which, lost)| Op::Answer { which, lost }),
        30 => (prop_oneof![8 => usual.clone(), 1 => host.clone()], prop_oneof![4 => Just(3_u8), 1 => 0_u8..4], any::<bool>())
            .prop_map(|(host, named, brief)| Op::Exchange { host, named, brief }),
        20 => (host.clone(), dom.clone()).prop_map(|(host, domain)| Op::Start { host, domain }),
        6 => (host.clone(), dom.clone()).prop_map(|(host, domain)| Op::Kill { host, domain }),
        2 => host.clone().prop_map(Op::GuardRestart),
        2 => host.clone().prop_map(Op::Reboot),
        3 => (usual, 2_u64..7, 1_u64..4, prop::bool::weighted(0.2), any::<[bool; DOMAINS]>(), prop::bool::weighted(0.3))
            .prop_map(|(host, ttl, watchdog, observe, hold, any)| Op::Setup {
                host, ttl, watchdog, observe, hold: hold.map(|hold| hold && any)
            }),
        10 => (dom.clone(), nod.clone(), prop::option::weighted(0.3, nod.clone()))
            .prop_map(|(domain, node, incoming)| Op::Grant { domain, node, incoming }),
        4 => dom.clone().prop_map(Op::Revoke),
        6 => (dom.clone(), nod.clone()).prop_map(|(domain, node)| Op::Move { domain, node }),
        3 => dom.clone().prop_map(Op::Moved),
        2 => dom.clone().prop_map(Op::Abort),
        1 => dom.prop_map(Op::Forget),
        1 => nod.clone().prop_map(Op::Fence),
        3 => nod.prop_map(Op::Unfence),
        1 => host.prop_map(Op::Accept),
        4 => prop_oneof![
            Just(Trouble::CrashBeforeCommit), Just(Trouble::CrashAfterCommit), Just(Trouble::CannotWrite),
            Just(Trouble::WroteButSaysNot), Just(Trouble::NoProgress), Just(Trouble::MachineReboot),
        ].prop_map(Op::Trouble),
    ]
}

fn history(ops: &[Op], seen: &mut BTreeMap<String, u32>) -> Result<(), String> {
    let mut world = World::new();
    for (at, op) in ops.iter().enumerate() {
        world.step(*op);
        world.check().map_err(|why| format!("after step {at} ({op:?}) at {:?}: {why}", world.now))?;
    }
    for (what, times) in world.seen {
        *seen.entry(what).or_default() += times;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn no_history_lets_two_copies_of_a_domain_run(ops in prop::collection::vec(op(), 1..160)) {
        if let Err(why) = history(&ops, &mut BTreeMap::new()) {
            prop_assert!(false, "{}", why);
        }
    }
}

fn cases() -> u32 {
    std::env::var("LEASEHOLD_ORACLE_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000)
}

/// A check that nothing reaches proves nothing.
#[test]
fn the_histories_reach_every_proof_and_every_trouble() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 100..160);
    let mut seen = BTreeMap::new();
    for _ in 0..400 {
        let ops = strategy.new_tree(&mut runner).unwrap().current();
        history(&ops, &mut seen).unwrap();
    }
    for what in [
        "goneReceipt",
        "goneBound",
        "goneReboot",
        "goneNeverClaimed",
        "moved",
        "move",
        "grant",
        "incoming",
        "fence",
        "forget",
        "start",
        "conflict",
        "bound",
        "CrashBeforeCommit",
        "CrashAfterCommit",
        "CannotWrite",
        "WroteButSaysNot",
        "NoProgress",
        "MachineReboot",
    ] {
        assert!(seen.get(what).copied().unwrap_or(0) >= 10, "{what} in {seen:#?}");
    }
    assert!(MAX_TTL > Duration::from_secs(7), "the model's leases are within what an answer grants");
}
