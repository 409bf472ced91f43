//! What the book keeps in memory: the records, and beside them what only this process knows.

use super::boots::{Retired, Rival};
use super::records::{LeaseRecord, NodeRecord, Stamp};
use crate::lease::id::{DomainId, Epoch, Incarnation};
use crate::lease::time::BootTime;
use crate::protocol::{NamedDomain, Proof};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A lease with what only this process knows of it.
#[derive(Debug, Clone, Default, Hash)]
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
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct Clock {
    pub revoked: BootTime,
    pub safe_at: Option<BootTime>,
}

/// A node with what only this process knows of it.
#[derive(Debug, Clone, Hash)]
pub(super) struct Node {
    pub record: NodeRecord,
    /// When the present boot was accepted, at the latest.
    pub accepted: BootTime,
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
    pub rival: Option<Rival>,
    pub retired: Option<Retired>,
}

impl Node {
    pub fn new(version: u64, accepted: BootTime) -> Node {
        Node {
            record: NodeRecord::default(),
            accepted,
            last: None,
            stamp: None,
            former: VecDeque::new(),
            list: None,
            deadline: None,
            lowering: None,
            relaxing: BTreeMap::new(),
            version,
            domains: BTreeSet::new(),
            watched: BTreeSet::new(),
            hints: None,
            rival: None,
            retired: None,
        }
    }
}

/// An accepted question.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct Heard {
    pub at: BootTime,
    pub uptime_ms: u64,
}

/// The list an answered question carried in full.
#[derive(Debug, Clone, Hash)]
pub(super) struct Listed {
    pub incarnation: Incarnation,
    pub digest: String,
    /// Names this list among all lists of this process.
    pub number: u64,
    pub domains: BTreeMap<DomainId, NamedDomain>,
}

/// From when a share that is revoked now counts as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Exit {
    /// At once.
    Gone(Proof),
    /// At an instant of this process, by a bound that is counted again from a restart.
    Bound { at: BootTime, bound_ms: u64 },
    /// By a receipt only.
    Receipt,
}
