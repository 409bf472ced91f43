//! What the authority must never forget: the records that [`super::store`] keeps, as they lie on disk.
//!
//! No instant is among them: BOOTTIME means nothing after a reboot, so a restarted authority counts every bound from
//! its own start.

use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId, QuestionNumber};
use crate::protocol::{Machine, Mode, Proof};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything durable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Durable {
    /// The newest epoch issued, from the one counter for all domains.
    pub epoch: Epoch,
    /// The leases.
    pub leases: BTreeMap<DomainId, LeaseRecord>,
    /// The nodes that were ever fenced or answered.
    pub nodes: BTreeMap<NodeId, NodeRecord>,
}

impl Default for Durable {
    fn default() -> Self {
        Durable { epoch: Epoch(0), leases: BTreeMap::new(), nodes: BTreeMap::new() }
    }
}

impl Durable {
    /// Folds one write in, as the store does.
    pub fn apply(&mut self, write: Write) {
        match write {
            Write::Epoch(epoch) => self.epoch = epoch,
            Write::Lease(domain, Some(record)) => drop(self.leases.insert(domain, *record)),
            Write::Lease(domain, None) => drop(self.leases.remove(&domain)),
            Write::Node(node, record) => drop(self.nodes.insert(node, *record)),
        }
    }
}

/// One record to make durable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    /// The newest epoch issued.
    Epoch(Epoch),
    /// A lease as it is now; `None`: its record is gone.
    Lease(DomainId, Option<Box<LeaseRecord>>),
    /// A node as it is now.
    Node(NodeId, Box<NodeRecord>),
}

impl Write {
    /// Which record it is.
    pub fn key(&self) -> Key {
        match self {
            Write::Epoch(_) => Key::Epoch,
            Write::Lease(domain, _) => Key::Lease(*domain),
            Write::Node(id, _) => Key::Node(id.clone()),
        }
    }
}

/// Names a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The counter.
    Epoch,
    /// A domain's lease.
    Lease(DomainId),
    /// A node.
    Node(NodeId),
}

/// One domain's lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// For people.
    #[serde(default)]
    pub name: String,
    /// The owner.
    #[serde(default)]
    pub owner: Option<ShareRecord>,
    /// The destination of an open migration. Without an owner beside it: becomes the owner when nothing is leaving.
    #[serde(default)]
    pub incoming: Option<ShareRecord>,
    /// Revoked and not proven gone.
    #[serde(default)]
    pub leaving: Vec<LeavingRecord>,
    /// Who is granted it when nothing is leaving.
    #[serde(default)]
    pub then: Option<NodeId>,
    /// The record goes when nothing is leaving.
    #[serde(default)]
    pub forget: bool,
    /// How the last revoked copy was proven gone.
    #[serde(default)]
    pub last_proof: Option<ProofRecord>,
}

impl LeaseRecord {
    /// The nodes where a copy may run or a claim is owed.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        let shares = self.owner.iter().chain(&self.incoming).map(|share| &share.node);
        shares.chain(self.leaving.iter().map(|leaving| &leaving.node))
    }
}

/// A node's right to a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShareRecord {
    /// The node.
    pub node: NodeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Wall clock, for people.
    pub since: String,
    /// An answer may have gone to a node that holds this domain on lapse: no bound covers it.
    #[serde(default)]
    pub held: bool,
}

/// A revoked share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeavingRecord {
    /// The node.
    pub node: NodeId,
    /// The revoked epoch.
    pub epoch: Epoch,
    /// Wall clock of the revocation, for people.
    pub since: String,
    /// Why, in a clause for people.
    pub reason: String,
    /// The bound to count from a restart of the authority, in milliseconds; `None`: only a receipt frees it.
    #[serde(default)]
    pub bound_ms: Option<u64>,
}

/// How a revoked copy was proven gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProofRecord {
    /// Where it ran.
    pub node: NodeId,
    /// The epoch that is over.
    pub epoch: Epoch,
    /// Why it counts as gone.
    pub proof: Proof,
    /// Milliseconds from the revocation to the proof, as far as the authority process that saw the proof knows.
    pub after_ms: u64,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Fenced, and since when by the wall clock.
    #[serde(default)]
    pub fenced: Option<String>,
    /// The machine behind it; `None`: no question of it was ever answered.
    #[serde(default)]
    pub seen: Option<Seen>,
    /// Boots it had before, newest last. They never come back by claiming to be a reboot.
    #[serde(default)]
    pub retired: Vec<BootId>,
}

/// What a node said of itself, durable before the first answer that relied on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seen {
    /// The boot accepted as this node's.
    pub boot: BootId,
    /// The machine.
    pub machine: Machine,
    /// As last stated.
    pub mode: Mode,
    /// The bound counted with, in milliseconds; `None`: there is none.
    pub bound_ms: Option<u64>,
    /// How long after a lease's end its copy may live, as last stated (bound less ttl); `None`: for ever.
    pub lag_ms: Option<u64>,
    /// The question that stated it.
    pub stamp: Stamp,
}

/// A question's place among those of one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The guard process.
    pub incarnation: Incarnation,
    /// Its number.
    pub question: QuestionNumber,
    /// BOOTTIME at which it was asked, in milliseconds: orders the incarnations of one boot.
    pub uptime_ms: u64,
}
