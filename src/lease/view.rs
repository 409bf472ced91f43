//! What `leasehold status` shows: the ledger as an operator reads it. The JSON is stable: keys are only added.

use super::guard::Guard;
use super::id::{BootId, DomainId, Epoch, NodeId};
use super::late_write::LateWrite;
use super::ledger::{Entry, Right, denial};
use super::time::BootTime;
use crate::protocol::{Mode, NamedState};
use serde::{Deserialize, Serialize};

/// The state of a node's guard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StatusView {
    /// This node.
    pub node: NodeId,
    /// Whether it enforces.
    pub mode: Mode,
    /// This boot.
    pub boot_id: BootId,
    /// Since the newest answered question was sent; null: none was answered in this boot.
    pub contact_age_ms: Option<u64>,
    /// Why the last question was not answered, if it was not.
    pub contact_failure: Option<String>,
    /// The lease ttl.
    pub ttl_ms: u64,
    /// The bound this node promises; null: receipts only.
    pub bound_ms: Option<u64>,
    /// For how much longer feeding a watchdog would be proven safe; zero: it is not.
    pub permit_left_ms: u64,
    /// Since the last whole scan began; null: none yet.
    pub scan_age_ms: Option<u64>,
    /// True: this boot's ledger was lost, and nothing is admitted before it is made good.
    pub ledger_lost: bool,
    /// Faults of the installation the guard noticed, each with its remedy.
    #[serde(default)]
    pub faults: Vec<String>,
    /// Drained for planned work: nothing starts here, and whether anything enforced is left. Null: not drained.
    #[serde(default)]
    pub drained: Option<DrainView>,
    /// The watchdog, where one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<WatchdogView>,
    /// Every domain known here.
    pub domains: Vec<DomainView>,
}

/// How far a drained node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainView {
    /// Something enforced is not proven gone.
    Draining,
    /// Nothing enforced is left.
    Empty,
}

/// The watchdog as the feed thread last left it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WatchdogView {
    /// Its device file and identity.
    pub device: String,
    /// `waiting`, `armed`, `starving`, `abandoned`, `fencing`, `disarmed`, `refused` or `failing`.
    pub state: String,
    /// Its timeout as read back, in seconds; zero before it was armed.
    pub timeout_s: u32,
    /// From its last feed to the reset, as it is counted: as set, as the device is known or as it was measured to need.
    #[serde(default)]
    pub resets_after_ms: u64,
    /// Who keeps it open when the guard dies: `fd store` or `nobody`.
    pub keeper: String,
    /// The bound that follows for a guard that first hangs and is then killed: the node's own where the fd store keeps the
    /// device, one W more where nobody does (rule 5). Null: none.
    #[serde(default)]
    pub hung_then_killed_bound_ms: Option<u64>,
    /// Since the last feed; null: none yet.
    pub fed_ms_ago: Option<u64>,
    /// The longest time between two feeds under one permit.
    pub longest_gap_ms: u64,
    /// Beats that came late.
    pub missed_beats: u64,
    /// What failed last.
    pub error: Option<String>,
}

/// One domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DomainView {
    /// The domain.
    pub domain: DomainId,
    /// Its name.
    pub name: String,
    /// Its lease.
    pub lease: LeaseView,
    /// The epoch of the lease, or of the denial.
    pub epoch: Option<Epoch>,
    /// Until the lease runs out; zero: it has, or there is none.
    pub left_ms: u64,
    /// What of it is here.
    pub state: NamedState,
    /// Its processes that are not proven gone.
    pub pids: Vec<i32>,
    /// Those of them that are to be gone, or have ended, and what keeps each from being called gone.
    #[serde(default)]
    pub not_gone: Vec<NotGoneView>,
    /// Why it is as it is, for people.
    pub why: String,
    /// In which ways its writes could arrive after its death.
    #[serde(default)]
    pub late_writes: Vec<LateWrite>,
}

/// One process that should be gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NotGoneView {
    /// Its pid.
    pub pid: i32,
    /// Why it counts as running, for people.
    pub why: String,
    /// The threads, its own or its helpers', that no signal reaches.
    pub stuck: Vec<StuckView>,
}

/// One thread in state D.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StuckView {
    /// Its process.
    pub pid: i32,
    /// Its thread id.
    pub tid: i32,
    /// Its short name.
    pub comm: String,
    /// The kernel function it waits in; empty when the kernel does not tell.
    pub waits_in: String,
    /// The file it waits for, or files it may be.
    pub files: Vec<FileView>,
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileView {
    /// As its process sees it.
    pub path: String,
    /// What is behind it: file system, device and mount point; empty when that cannot be told.
    pub storage: String,
}

/// Where a domain's lease stands on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseView {
    /// It may start and run.
    Held,
    /// It may arrive by live migration.
    Incoming,
    /// It may run on.
    Hold,
    /// It was not renewed in time.
    Expired,
    /// Denied by the authority.
    Denied,
    /// Nothing was said yet.
    None,
}

impl Guard {
    /// The state at `now`.
    pub fn view(&self, now: BootTime) -> StatusView {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let unanswered = self.failed.as_ref().filter(|(question, _)| *question > self.folded);
        StatusView {
            node: self.policy.node.clone(),
            mode: if self.policy.observe { Mode::Observe } else { Mode::Enforce },
            boot_id: self.ledger.boot,
            contact_age_ms: self.ledger.contact.map(|contact| millis(now.since(contact))),
            contact_failure: unanswered.map(|(_, why)| why.clone()),
            ttl_ms: millis(self.policy.timing.ttl),
            bound_ms: self.policy.bound.map(millis),
            permit_left_ms: millis(self.permit().left(now)),
            scan_age_ms: self.last_scan().map(|began| millis(now.since(began))),
            ledger_lost: self.amnesia.is_some(),
            faults: self.conflict.iter().cloned().collect(),
            drained: self.ledger.drained.map(|_| match self.all_gone() {
                Some(_) => DrainView::Empty,
                None => DrainView::Draining,
            }),
            watchdog: None,
            domains: self.ledger.domains.iter().map(|(&id, entry)| self.domain_view(id, entry, now)).collect(),
        }
    }

    fn domain_view(&self, domain: DomainId, entry: &Entry, now: BootTime) -> DomainView {
        let node = &self.policy.node;
        let dying = entry.copies.iter().find_map(|copy| copy.dying.as_ref());
        let lease = match (&entry.lease, &entry.seal) {
            (Some(lease), _) if now >= lease.expires => LeaseView::Expired,
            (Some(lease), _) => match lease.right {
                Right::Own => LeaseView::Held,
                Right::Incoming => LeaseView::Incoming,
                Right::Hold => LeaseView::Hold,
            },
            (None, Some(_)) => LeaseView::Denied,
            (None, None) => LeaseView::None,
        };
        let why = match (dying, &entry.lease, &entry.seal) {
            (Some(dying), ..) => {
                format!("condemned {:.1} s ago: {}", now.since(dying.since).as_secs_f64(), dying.why)
            }
            (None, Some(lease), _) if now >= lease.expires => {
                format!("not renewed in time: it ran out {:.1} s ago", now.since(lease.expires).as_secs_f64())
            }
            (None, Some(_), _) if entry.is_held() => "renewed by the authority; held, not killed, on lapse".to_owned(),
            (None, Some(lease), _) if lease.right == Right::Incoming => {
                "may come by live migration; one that comes paused is resumed once the source's copy is proven gone"
                    .to_owned()
            }
            (None, Some(_), _) => "renewed by the authority".to_owned(),
            (None, None, Some(seal)) => denial(&seal.reason, seal.epoch, node),
            (None, None, None) => "found running without a lease; the authority is being asked".to_owned(),
        };
        let sealed = entry.seal.as_ref().map(|seal| seal.epoch);
        DomainView {
            domain,
            name: entry.name.clone(),
            lease,
            epoch: entry.lease.as_ref().map(|lease| lease.epoch).or(sealed),
            left_ms: entry.valid_lease(now).map_or(0, |lease| lease.expires.left(now).as_millis() as u64),
            state: entry.named(domain).state,
            pids: entry.copies.iter().map(|copy| copy.process.pid).collect(),
            not_gone: Vec::new(),
            why,
            late_writes: Vec::new(),
        }
    }
}
