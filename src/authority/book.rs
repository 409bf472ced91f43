//! The book of leases: fully deterministic, with no clock, no input or output and no thread.
//!
//! Every operation takes the present instant and returns an [`Outcome`]: the answer, and what must be durable before
//! that answer may leave. The driver's loop is **one operation, then commit, then answer**; if the commit fails, it
//! gives the outcome's [`Undo`] back and answers nothing. Before every operation, and at [`Book::next_wake`], it calls
//! [`Book::progress`] in a commit of its own: leaving it out (a disk that takes no writes) delays, and is never unsafe,
//! and a renewal that changes nothing needs no disk.
//!
//! What keeps two nodes from owning one domain is in three files: `leaving` (from when a revoked copy is gone; nothing
//! is granted before), `renew` (which answers renew, and until when the copies they allow may live), `boots` (whose
//! word counts as the node's).

use super::records::{Durable, LeavingRecord, NodeRecord, Stamp, Write};
use super::state::{Clock, Heard, Lease, Node};
use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::{MAX_DOMAINS, Proof};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The longest ttl an answer grants: what a node may hold when nothing else is known of it.
pub const MAX_TTL: Duration = Duration::from_secs(60);
/// The most leases kept.
pub const MAX_LEASES: usize = 100_000;
/// The most nodes kept.
pub const MAX_NODES: usize = 10_000;

/// The present, as the driver sees it.
#[derive(Debug, Clone, Copy)]
pub struct Now<'a> {
    /// The authority's own BOOTTIME: the only clock that decides anything.
    pub at: BootTime,
    /// The wall clock (RFC 3339), shown to people and compared with nothing.
    pub wall: &'a str,
}

/// What an operation came to.
#[derive(Debug)]
#[must_use = "the writes must be durable before the answer leaves"]
pub struct Outcome<T> {
    /// The answer. It may leave only when `writes` are durable.
    pub answer: T,
    /// To be made durable in one commit.
    pub writes: Vec<Write>,
    /// One line each for the log.
    pub log: Vec<String>,
    /// What to give to [`Book::undo`] if the commit fails.
    pub undo: Undo,
}

/// A refusal, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The kind, for the HTTP status.
    pub kind: RefusalKind,
    /// The sentence.
    pub text: String,
}

/// Why something is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The request makes no sense (400).
    Bad,
    /// It cannot be answered before the disk takes writes again (503).
    InDoubt,
    /// There is no such lease or node (404).
    Unknown,
    /// It would break a promise, or is out of order (409).
    Conflict,
    /// A limit of size is reached (507).
    Full,
}

impl Refusal {
    pub(super) fn new<T>(kind: RefusalKind, text: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal { kind, text: text.into() })
    }
}

/// The state before an operation, of what it changed.
#[derive(Debug, Default, Clone, Hash)]
pub struct Undo {
    epoch: Option<Epoch>,
    leases: BTreeMap<DomainId, Option<Lease>>,
    nodes: BTreeMap<NodeId, NodeBefore>,
}

#[derive(Debug, Clone, Hash)]
struct NodeBefore {
    record: NodeRecord,
    last: Option<Heard>,
    stamp: Option<Stamp>,
    deadline: Option<BootTime>,
}

/// The authority's state.
#[derive(Debug, Clone, Hash)]
pub struct Book {
    pub(super) authority: Incarnation,
    pub(super) epoch: Epoch,
    pub(super) leases: BTreeMap<DomainId, Lease>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// When bounds pass, of leaving shares.
    wakes: BTreeSet<(BootTime, DomainId, Epoch)>,
    /// No question of any node was heard later than this before this process began.
    pub(super) heard_before: BootTime,
    counter: u64,
    undo: Undo,
    /// What a failed commit may or may not have changed on disk: nothing is said of it until that is put right.
    pub(super) doubtful_leases: BTreeSet<DomainId>,
    pub(super) doubtful_nodes: BTreeSet<NodeId>,
    pub(super) log: Vec<String>,
}

impl Book {
    /// A book as it was kept, opened at `now` by the authority process `authority`. Every lease counts as renewed at
    /// this instant. `heard_before` is the latest instant at which an earlier process can have heard a question: now,
    /// or [`BootTime::ZERO`] when this machine was booted since.
    pub fn open(durable: Durable, authority: Incarnation, now: BootTime, heard_before: BootTime) -> Book {
        let mut book = Book {
            authority,
            epoch: durable.epoch,
            leases: BTreeMap::new(),
            nodes: BTreeMap::new(),
            wakes: BTreeSet::new(),
            heard_before,
            // A version of an earlier process must not look like one of this one, or a watch would sleep over it.
            counter: now.as_nanos() / 1000,
            undo: Undo::default(),
            doubtful_leases: BTreeSet::new(),
            doubtful_nodes: BTreeSet::new(),
            log: Vec::new(),
        };
        for (id, record) in durable.nodes {
            let node = book.node_mut(&id);
            let seen = record.seen.as_ref();
            node.deadline = seen.and_then(|seen| seen.bound_ms).map(|bound| now + Duration::from_millis(bound));
            node.stamp = seen.map(|seen| seen.stamp);
            node.record = record;
        }
        for (domain, record) in durable.leases {
            let clock = |leaving: &LeavingRecord| Clock {
                revoked: now,
                safe_at: leaving.bound_ms.map(|bound| now + Duration::from_millis(bound)),
            };
            let clocks = record.leaving.iter().map(|leaving| (leaving.epoch, clock(leaving))).collect();
            book.leases.insert(domain, Lease { record, clocks, ..Lease::default() });
            book.index(domain, &Lease::default());
        }
        book
    }

    /// This process, as answers name it.
    pub fn authority(&self) -> Incarnation {
        self.authority
    }

    /// Completes what time completes: bounds that have passed, and what waited for them.
    pub fn progress(&mut self, now: Now) -> Outcome<()> {
        self.pass(now);
        self.finish(())
    }

    /// When to call [`Book::progress`] next. Poll again after every operation.
    #[must_use]
    pub fn next_wake(&self) -> Option<BootTime> {
        self.wakes.first().map(|(at, ..)| *at)
    }

    /// Takes back an operation whose writes could not be committed. What it cost in caution (a deadline that moved
    /// on) stays. The failed commit may have reached the disk all the same, so what it was about is in doubt: it is
    /// renewed nothing until the writes returned here are committed and [`Book::settled`] says so. Until then only
    /// [`Book::renew`] and what reads may be asked.
    #[must_use]
    pub fn undo(&mut self, undo: Undo) -> Vec<Write> {
        let mut writes = Vec::new();
        writes.extend(undo.epoch.map(Write::Epoch));
        let nodes = undo.nodes.iter().map(|(id, before)| Write::Node(id.clone(), Box::new(before.record.clone())));
        writes.extend(nodes);
        let record = |lease: &Lease| Box::new(lease.record.clone());
        let leases = undo.leases.iter().map(|(id, before)| Write::Lease(*id, before.as_ref().map(record)));
        writes.extend(leases);
        self.doubtful_nodes.extend(undo.nodes.keys().cloned());
        self.doubtful_leases.extend(undo.leases.keys());
        if let Some(epoch) = undo.epoch {
            self.epoch = epoch;
        }
        for (id, before) in undo.nodes {
            let version = self.tick();
            let node = self.node_mut(&id);
            node.record = before.record;
            (node.last, node.stamp) = (before.last, before.stamp);
            node.deadline = node.deadline.max(before.deadline);
            node.version = version;
            // What was learnt from the question that could not be kept must be learnt again.
            node.list = None;
        }
        for (domain, before) in undo.leases {
            let now = match before {
                Some(lease) => self.leases.insert(domain, lease),
                None => self.leases.remove(&domain),
            };
            self.index(domain, &now.unwrap_or_default());
        }
        writes
    }

    /// What was in doubt is on disk as it is here.
    pub fn settled(&mut self) {
        self.doubtful_nodes.clear();
        for domain in std::mem::take(&mut self.doubtful_leases) {
            let nodes = self.leases.get(&domain).map(|lease| lease.record.nodes().cloned().collect::<Vec<_>>());
            nodes.into_iter().flatten().for_each(|id| self.bump(&id));
        }
    }

    /// Changes whenever something changed that a watch or a wait could be about.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.counter
    }

    /// An outcome without writes: what is read.
    pub fn read<T>(&mut self, answer: T) -> Outcome<T> {
        self.finish(answer)
    }

    fn pass(&mut self, now: Now) {
        while let Some((at, domain, epoch)) = self.wakes.first().copied().filter(|(at, ..)| *at <= now.at) {
            self.wakes.remove(&(at, domain, epoch));
            self.gone(now, domain, epoch, Proof::Bound);
        }
    }

    pub(super) fn finish<T>(&mut self, answer: T) -> Outcome<T> {
        let undo = std::mem::take(&mut self.undo);
        let mut writes = Vec::new();
        if undo.epoch.is_some() {
            writes.push(Write::Epoch(self.epoch));
        }
        for (id, before) in &undo.nodes {
            let record = &self.nodes[id].record;
            if *record != before.record {
                writes.push(Write::Node(id.clone(), Box::new(record.clone())));
            }
        }
        for (domain, before) in &undo.leases {
            let record = self.leases.get(domain).map(|lease| &lease.record);
            if record != before.as_ref().map(|lease| &lease.record) {
                writes.push(Write::Lease(*domain, record.cloned().map(Box::new)));
            }
        }
        Outcome { answer, writes, log: std::mem::take(&mut self.log), undo }
    }

    /// Changes a lease, remembering what it was and keeping the indexes right.
    pub(super) fn change(&mut self, domain: DomainId, change: impl FnOnce(&mut Lease)) {
        let before = self.leases.get(&domain).cloned();
        self.undo.leases.entry(domain).or_insert_with(|| before.clone());
        change(self.leases.entry(domain).or_default());
        self.index(domain, &before.unwrap_or_default());
    }

    pub(super) fn remove(&mut self, domain: DomainId) {
        if let Some(before) = self.leases.remove(&domain) {
            self.index(domain, &before);
            self.undo.leases.entry(domain).or_insert(Some(before));
        }
    }

    /// Changes what is durable of a node. Called before what only this process knows of it is changed too.
    pub(super) fn change_node(&mut self, id: &NodeId, change: impl FnOnce(&mut NodeRecord)) {
        let Node { record, last, stamp, deadline, .. } = self.node_mut(id);
        let (last, stamp, deadline) = (*last, *stamp, *deadline);
        let before = NodeBefore { record: record.clone(), last, stamp, deadline };
        change(record);
        self.undo.nodes.entry(id.clone()).or_insert(before);
    }

    pub(super) fn node_mut(&mut self, id: &NodeId) -> &mut Node {
        if !self.nodes.contains_key(id) {
            let version = self.tick();
            self.nodes.insert(id.clone(), Node::new(version, self.heard_before));
        }
        self.nodes.get_mut(id).expect("inserted above")
    }

    /// A number this process has not used before, for versions and lists.
    pub(super) fn tick(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(super) fn bump(&mut self, id: &NodeId) {
        let version = self.tick();
        self.node_mut(id).version = version;
    }

    fn index(&mut self, domain: DomainId, before: &Lease) {
        for (epoch, clock) in &before.clocks {
            if let Some(at) = clock.safe_at {
                self.wakes.remove(&(at, domain, *epoch));
            }
        }
        for id in before.record.nodes() {
            let version = self.tick();
            let node = self.node_mut(id);
            node.version = version;
            node.domains.remove(&domain);
            node.watched.remove(&domain);
        }
        let Some(lease) = self.leases.get(&domain) else { return };
        let nodes: Vec<NodeId> = lease.record.nodes().cloned().collect();
        let open = lease.record.incoming.is_some();
        let owner = lease.record.owner.as_ref().filter(|_| open).map(|share| share.node.clone());
        let clocks = lease.clocks.iter().filter_map(|(epoch, clock)| Some((clock.safe_at?, domain, *epoch)));
        self.wakes.extend(clocks);
        for id in nodes {
            let version = self.tick();
            let node = self.node_mut(&id);
            node.version = version;
            node.domains.insert(domain);
            if owner.as_ref() == Some(&id) {
                node.watched.insert(domain);
            }
        }
    }

    /// The next epoch of the one counter.
    pub(super) fn draw(&mut self) -> Epoch {
        let newest = self.epoch;
        self.raise(Epoch(newest.0 + 1));
        self.epoch
    }

    pub(super) fn raise(&mut self, to: Epoch) {
        if to > self.epoch {
            self.undo.epoch.get_or_insert(self.epoch);
            self.epoch = to;
        }
    }

    /// The domain's name as a node last reported it, else as it was granted.
    pub(super) fn name_of(&self, domain: DomainId) -> String {
        let Some(lease) = self.leases.get(&domain) else { return String::new() };
        let reported = lease.record.nodes().find_map(|id| {
            let named = self.nodes.get(id)?.list.as_ref()?.domains.get(&domain)?;
            (!named.name.is_empty()).then(|| named.name.clone())
        });
        reported.unwrap_or_else(|| lease.record.name.clone())
    }

    /// Refuses what would put more on a node than one question can name.
    pub(super) fn room_on(&self, id: &NodeId) -> Result<(), Refusal> {
        match self.nodes.get(id) {
            Some(node) if node.domains.len() >= MAX_DOMAINS => Refusal::new(
                RefusalKind::Full,
                format!("node {id} has {MAX_DOMAINS} domains already, the most that one question can name"),
            ),
            None if self.nodes.len() >= MAX_NODES => Refusal::new(
                RefusalKind::Full,
                format!("{MAX_NODES} nodes are known already, the most this authority keeps; node {id} is not added"),
            ),
            _ => Ok(()),
        }
    }
}

/// For log lines.
pub(super) fn short(boot: BootId) -> String {
    boot.to_string().chars().take(8).collect()
}
