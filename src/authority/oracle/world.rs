//! The authority, its disk, the ideal hosts and the network between them, and what may happen to each.

use super::host::{DOMAINS, Flight, HOSTS, Host, Known, Running, Setup, domain, node};
use crate::authority::book::{Book, Now, Outcome};
use crate::authority::boots::LONGEST_WAY;
use crate::authority::records::{Durable, Key, Write};
use crate::lease::id::{BootId, Epoch, Incarnation, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::*;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
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
    Mend,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Trouble {
    CrashBeforeCommit,
    CrashAfterCommit,
    /// From now on, until it is mended or the authority restarts.
    Disk(Broken),
    NoProgress,
    MachineReboot,
}

/// A disk whose every commit fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Broken {
    Unwritten,
    /// And yet is there.
    Written,
}

pub(super) struct World {
    pub(super) now: BootTime,
    book: Book,
    disk: Durable,
    suspect: BTreeMap<Key, Write>,
    broken: Option<Broken>,
    hosts: Vec<Host>,
    flights: Vec<Flight>,
    trouble: Option<Trouble>,
    heard: BootTime,
    lives: u8,
    names: u8,
    pub(super) seen: BTreeMap<String, u32>,
}

impl World {
    pub(super) fn new() -> World {
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
            suspect: BTreeMap::new(),
            broken: None,
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

    /// As the driver does it: nothing but a renewal while something is in doubt.
    fn operate<T>(&mut self, op: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T>) -> Option<T> {
        self.settle().then(|| self.try_operate(op)).flatten()
    }

    fn settle(&mut self) -> bool {
        if self.suspect.is_empty() {
            return true;
        }
        let writes: Vec<Write> = self.suspect.values().cloned().collect();
        if self.broken != Some(Broken::Unwritten) {
            writes.into_iter().for_each(|write| self.disk.apply(write));
        }
        if self.broken.is_none() {
            self.suspect.clear();
            self.book.settled();
        }
        self.broken.is_none()
    }

    fn try_operate<T>(&mut self, op: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T>) -> Option<T> {
        let trouble = self.trouble.take();
        let now = Now { at: self.now, wall: "then" };
        if trouble != Some(Trouble::NoProgress) && self.suspect.is_empty() {
            let outcome = self.book.progress(now);
            self.commit(outcome)?;
        }
        let outcome = op(&mut self.book, now);
        match trouble {
            None | Some(Trouble::NoProgress) => return self.commit(outcome),
            Some(Trouble::CrashBeforeCommit) => self.reopen(self.now),
            Some(Trouble::CrashAfterCommit) => {
                self.commit(outcome);
                self.reopen(self.now);
            }
            // Its clock would begin anew; what matters is that nothing was heard after its zero.
            Some(Trouble::MachineReboot) => self.reopen(self.heard),
            Some(Trouble::Disk(broken)) => {
                self.broken = Some(broken);
                return self.commit(outcome);
            }
        }
        None
    }

    fn commit<T>(&mut self, outcome: Outcome<T>) -> Option<T> {
        if !outcome.writes.is_empty() {
            let all: Vec<Write> = self.suspect.values().cloned().chain(outcome.writes).collect();
            if self.broken != Some(Broken::Unwritten) {
                all.into_iter().for_each(|write| self.disk.apply(write));
            }
            if self.broken.is_some() {
                let restore = self.book.undo(outcome.undo).into_iter();
                self.suspect.extend(restore.map(|write| (write.key(), write)));
                self.count("not written");
                return None;
            }
            if !self.suspect.is_empty() {
                self.suspect.clear();
                self.book.settled();
            }
        } else if !self.suspect.is_empty() {
            self.count("in doubt");
        }
        for line in &outcome.log {
            let what = line.split([' ', '=']).next().unwrap_or_default();
            let proof = line.split_once("proof=").map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
            self.count(format!("{what}{proof}"));
        }
        Some(outcome.answer)
    }

    fn reopen(&mut self, heard_before: BootTime) {
        self.lives += 1;
        self.suspect.clear();
        self.broken = None;
        let authority = Incarnation::from_bytes([200_u8.wrapping_add(self.lives); 16]);
        self.book = Book::open(self.disk.clone(), authority, self.now, heard_before);
    }

    fn arrive(&mut self, mut flight: Flight) {
        // A question may be under way for ever as long as its boot lasts; after that, only so long.
        if flight.boot != self.hosts[flight.host].boot && self.now.since(flight.sent) > LONGEST_WAY {
            return;
        }
        let (id, question) = (node(flight.host), flight.question.clone());
        self.heard = self.now;
        if let Some(Ok(answer)) = self.try_operate(|book, now| book.renew(now, &id, question)) {
            self.count(if answer.conflict.is_some() { "conflict" } else { "answered" });
            flight.answer = Some(answer);
            self.flights.push(flight);
        }
    }

    pub(super) fn step(&mut self, op: Op) {
        match op {
            Op::Tick(seconds) => {
                self.now = self.now + Duration::from_secs(seconds.into());
                for known in self.hosts.iter_mut().flat_map(|host| &mut host.known) {
                    known.copy = known.copy.filter(|copy| copy.dies > self.now);
                }
                self.operate(|book, now| book.progress(now));
            }
            Op::Ask { host, named, brief } => {
                let flight = self.hosts[host].ask(host, self.now, named, brief);
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
                        self.hosts[flight.host].fold(self.now, flight);
                    }
                }
            }
            Op::Exchange { host, named, brief } => {
                let flight = self.hosts[host].ask(host, self.now, named, brief);
                let before = self.flights.len();
                self.arrive(flight);
                if self.flights.len() > before {
                    let flight = self.flights.remove(before);
                    self.hosts[flight.host].fold(self.now, flight);
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
                    host.adopt(self.now, host.wanted);
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
            Op::Mend => self.broken = None,
            Op::Trouble(trouble) => {
                self.count(format!("{trouble:?}"));
                self.trouble = Some(trouble);
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
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
