//! The book of leases: fully deterministic, with no clock, no input or output and no thread.
//!
//! Every operation takes the present instant and returns an [`Outcome`]: the answer, and what must be durable before
//! that answer may leave. The driver's loop is **one operation, then commit, then answer**; if the commit fails, it
//! gives the outcome's [`Undo`] back and answers nothing. Before every operation, and at [`Book::next_wake`], it calls
//! [`Book::progress`] in a commit of its own: leaving it out (a disk that takes no writes) delays, and is never unsafe,
//! and a renewal that changes nothing needs no disk.
//!
//! What keeps two nodes from owning one domain is in four places: [`Book::exit_of`] (from when a revoked copy is
//! gone), `settle` (nothing is granted while anything is leaving), `renew` (which answers renew, and until when the
//! copies they allow may live), `boots` (whose word counts as the node's).

use super::records::{Durable, LeaseRecord, LeavingRecord, NodeRecord, ProofRecord, ShareRecord, Stamp, Write};
use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::{MAX_DOMAINS, NamedDomain, Proof};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind, for the HTTP status.
    pub kind: RefusalKind,
    /// The sentence.
    pub text: String,
}

/// Why something is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request makes no sense (400).
    Bad,
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
#[derive(Debug, Default)]
pub struct Undo {
    epoch: Option<Epoch>,
    leases: BTreeMap<DomainId, Option<Lease>>,
    nodes: BTreeMap<NodeId, NodeBefore>,
}

#[derive(Debug)]
struct NodeBefore {
    record: NodeRecord,
    last: Option<Heard>,
    stamp: Option<Stamp>,
    deadline: Option<BootTime>,
}

/// The authority's state.
#[derive(Debug)]
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
    pub(super) log: Vec<String>,
}

/// A lease with what only this process knows of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lease {
    pub record: LeaseRecord,
    /// Epochs granted by this process and never yet carried by an answer.
    pub unclaimed: Vec<Epoch>,
    /// Of the leaving shares.
    pub clocks: BTreeMap<Epoch, Clock>,
    /// The owner's last question when the destination was first seen running (two reports).
    pub both_since: Option<Stamp>,
}

/// When a leaving share was revoked, and from when it is gone by its bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub revoked: BootTime,
    pub safe_at: Option<BootTime>,
}

/// A node with what only this process knows of it.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub record: NodeRecord,
    /// The last accepted question.
    pub last: Option<Heard>,
    /// Where the next question has to be newer than: survives in part through [`super::records::Seen::stamp`].
    pub stamp: Option<Stamp>,
    /// Guard processes that were replaced, newest last.
    pub former: VecDeque<Incarnation>,
    /// The domains its current list names.
    pub list: Option<Listed>,
    /// Max over all answers issued of (instant issued + bound stated in the question). Never moves back in one boot.
    pub deadline: Option<BootTime>,
    /// A smaller bound than the one counted, and from when it may replace it.
    pub lowering: Option<(Option<u64>, BootTime)>,
    /// Domains said to be held no more, and from when that may be believed.
    pub relaxing: BTreeMap<DomainId, BootTime>,
    /// Changes with everything that touches the node.
    pub version: u64,
    /// Every domain with a share on it.
    pub domains: BTreeSet<DomainId>,
    /// Owned domains whose migration waits for two reports.
    pub watched: BTreeSet<DomainId>,
    pub hints: Option<(u64, u64, Vec<DomainId>)>,
    pub rival: Option<super::boots::Rival>,
    pub retired: Option<super::boots::Retired>,
}

/// An accepted question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    pub at: BootTime,
    pub uptime_ms: u64,
}

/// The list an answered question carried in full.
#[derive(Debug)]
pub(super) struct Listed {
    pub incarnation: Incarnation,
    pub digest: String,
    /// Names this list among all lists of this process.
    pub number: u64,
    pub domains: HashMap<DomainId, NamedDomain>,
}

/// From when a share that is revoked now counts as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// At once.
    Gone(Proof),
    /// At an instant of this process, by a bound that is counted again from a restart.
    Bound { at: BootTime, bound_ms: u64 },
    /// By a receipt only.
    Receipt,
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
    /// on) stays. Returns what to put before the next commit's writes, for a failed commit may have reached the disk.
    #[must_use]
    pub fn undo(&mut self, undo: Undo) -> Vec<Write> {
        let mut writes = Vec::new();
        writes.extend(undo.epoch.map(Write::Epoch));
        let nodes = undo.nodes.iter().map(|(id, before)| Write::Node(id.clone(), Box::new(before.record.clone())));
        writes.extend(nodes);
        let record = |lease: &Lease| Box::new(lease.record.clone());
        let leases = undo.leases.iter().map(|(id, before)| Write::Lease(*id, before.as_ref().map(record)));
        writes.extend(leases);
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
            self.nodes.insert(id.clone(), Node { version, ..Node::default() });
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

    /// From when a share counts as gone if it is revoked now: answers before this instant may have renewed it, later
    /// ones do not. `unclaimed`: this very process granted it, and no answer has carried it.
    pub(super) fn exit_of(&self, share: &ShareRecord, unclaimed: bool, now: BootTime) -> Exit {
        let Some(node) = self.nodes.get(&share.node) else { return Exit::Gone(Proof::NeverClaimed) };
        // The machine is durable before the first answer to it: where none is, there was no answer.
        let Some(seen) = &node.record.seen else { return Exit::Gone(Proof::NeverClaimed) };
        match seen.bound_ms {
            _ if unclaimed => Exit::Gone(Proof::NeverClaimed),
            Some(bound_ms) if !share.held => Exit::Bound { at: node.deadline.unwrap_or(now).max(now), bound_ms },
            _ => Exit::Receipt,
        }
    }

    /// Revokes shares of a lease, all in one step: they are leaving from now on, and what they are proven by is fixed.
    pub(super) fn leave(&mut self, now: Now, domain: DomainId, epochs: &[Epoch], reason: &str) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let shares = lease.record.owner.iter().chain(&lease.record.incoming);
        let exits: Vec<(ShareRecord, Exit)> = shares
            .filter(|share| epochs.contains(&share.epoch))
            .map(|share| (share.clone(), self.exit_of(share, lease.unclaimed.contains(&share.epoch), now.at)))
            .collect();
        let name = self.name_of(domain);
        for (share, exit) in &exits {
            let ShareRecord { node, epoch, .. } = share;
            let safe = match exit {
                Exit::Gone(_) => "safe at once".to_owned(),
                Exit::Bound { at, .. } => format!("safe in {} ms", at.left(now.at).as_millis()),
                Exit::Receipt => "no bound covers it, only a receipt".to_owned(),
            };
            self.log.push(format!("revoke domain={domain} name={name:?} node={node} epoch={epoch}: {reason}; {safe}"));
        }
        self.change(domain, |lease| {
            lease.record.name = name;
            lease.both_since = None;
            for side in [&mut lease.record.owner, &mut lease.record.incoming] {
                side.take_if(|share| epochs.contains(&share.epoch));
            }
            for (ShareRecord { node, epoch, .. }, exit) in &exits {
                let (safe_at, bound_ms) = match *exit {
                    Exit::Bound { at, bound_ms } => (Some(at), Some(bound_ms)),
                    Exit::Gone(_) => (Some(now.at), Some(0)),
                    Exit::Receipt => (None, None),
                };
                lease.unclaimed.retain(|unclaimed| unclaimed != epoch);
                lease.clocks.insert(*epoch, Clock { revoked: now.at, safe_at });
                lease.record.leaving.push(LeavingRecord {
                    node: node.clone(),
                    epoch: *epoch,
                    since: now.wall.to_owned(),
                    reason: reason.to_owned(),
                    bound_ms,
                });
            }
        });
        for (share, exit) in exits {
            if let Exit::Gone(proof) = exit {
                self.gone(now, domain, share.epoch, proof);
            }
        }
    }

    /// A leaving share is proven gone.
    pub(super) fn gone(&mut self, now: Now, domain: DomainId, epoch: Epoch, proof: Proof) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let Some(leaving) = lease.record.leaving.iter().find(|leaving| leaving.epoch == epoch) else { return };
        let after = lease.clocks.get(&epoch).map_or(Duration::ZERO, |clock| now.at.since(clock.revoked));
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let node = leaving.node.clone();
        self.log.push(format!(
            "gone domain={domain} name={:?} node={node} epoch={epoch} proof={proof:?} after_ms={after_ms}",
            lease.record.name
        ));
        self.change(domain, |lease| {
            lease.record.leaving.retain(|leaving| leaving.epoch != epoch);
            lease.clocks.remove(&epoch);
            lease.record.last_proof = Some(ProofRecord { node, epoch, proof, after_ms });
        });
        self.settle(now, domain);
    }

    /// Completes what waits for the last revoked copy: a finished migration, a move, a removal. Nothing is granted
    /// here while anything is leaving.
    pub(super) fn settle(&mut self, now: Now, domain: DomainId) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let record = &lease.record;
        if !record.leaving.is_empty() || record.owner.is_some() {
            return;
        }
        if let Some(share) = &record.incoming {
            self.log.push(format!(
                "moved domain={domain} name={:?} node={} epoch={}",
                record.name, share.node, share.epoch
            ));
            self.change(domain, |lease| {
                lease.record.owner = lease.record.incoming.take();
                lease.both_since = None;
            });
        } else if let Some(to) = record.then.clone() {
            // A fenced node is granted nothing: the move waits for `unfence`, or for another decision.
            if self.nodes.get(&to).is_none_or(|node| node.record.fenced.is_none()) {
                let share = self.share(now, domain, &to, "grant");
                self.change(domain, |lease| {
                    lease.unclaimed.push(share.epoch);
                    lease.record.owner = Some(share);
                    lease.record.then = None;
                });
            }
        } else if record.forget {
            self.log.push(format!("forget domain={domain} name={:?}", record.name));
            self.remove(domain);
        }
    }

    /// A new share under a new epoch, not yet in the lease.
    pub(super) fn share(&mut self, now: Now, domain: DomainId, node: &NodeId, what: &str) -> ShareRecord {
        let epoch = self.draw();
        let name = self.leases.get(&domain).map_or("", |lease| &lease.record.name);
        self.log.push(format!("{what} domain={domain} name={name:?} node={node} epoch={epoch}"));
        ShareRecord { node: node.clone(), epoch, since: now.wall.to_owned(), held: false }
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
