//! What this node knows: leases, denials, open admissions and living processes, domain by domain, and how an answer
//! is folded in. The ledger is the guard's whole memory: it is written to /run before any promise leaves.

use super::event::{CopyState, DenialReason};
use super::fence::Cause;
use super::id::{BootId, DomainId, Epoch, Incarnation, NodeId, ProcessKey, QuestionNumber};
use super::promise::{CountedBounds, Promise};
use super::time::BootTime;
use crate::protocol::{NamedDomain, NamedState, Receipt};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The format this build writes and reads.
const VERSION: u32 = 1;

/// Everything a guard must not forget while the machine is up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ledger {
    version: u32,
    /// The boot all its instants belong to.
    pub boot: BootId,
    /// The newest question whose answer was folded in, by when it was sent.
    pub contact: Option<BootTime>,
    /// The newest answer's clock, so that time stolen from this host is noticed over a restart of the guard too.
    #[serde(default)]
    pub authority_clock: Option<AuthorityClock>,
    /// Since when nothing may start here, by the operator's wish.
    #[serde(default)]
    pub drained: Option<BootTime>,
    /// The bound that this node promises.
    #[serde(default)]
    pub promise: Option<Promise>,
    /// The bounds that the authority counts with.
    #[serde(default)]
    pub counted: CountedBounds,
    /// What is known of each domain.
    pub domains: BTreeMap<DomainId, Entry>,
}

/// The authority's clock in an answer, and this node's when it asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AuthorityClock {
    /// Which process of the authority: another one's clock has another origin.
    pub authority: Incarnation,
    /// Its BOOTTIME, to the millisecond.
    pub clock: Duration,
    /// When the question was sent.
    pub sent: BootTime,
}

/// What is known of one domain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its libvirt name, for people.
    pub name: String,
    /// The operator's rule for it: on lapse it is held, not killed.
    pub held_on_lapse: bool,
    /// The answer that renewed it last was given to a question that said so. Until then the authority counts the bound.
    #[serde(default)]
    pub hold_known: bool,
    /// The right to run it here, current or run out; a denial takes it away.
    pub lease: Option<Lease>,
    /// The newest denial.
    pub seal: Option<Seal>,
    /// A start that was let through and whose process is not seen yet.
    pub admission: Option<Admission>,
    /// Its processes that are not proven gone.
    pub copies: Vec<Copy>,
    /// The last change that a scan must have begun after before a receipt may say "nothing here".
    pub stirred: Option<BootTime>,
}

/// Contact and claim: the right to run one domain here until a deadline on this node's own clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The fencing token.
    pub epoch: Epoch,
    /// What it allows.
    pub right: Right,
    /// When it runs out.
    pub expires: BootTime,
}

/// What a lease allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Starting and running.
    Own,
    /// Starting as the destination of a live migration.
    Incoming,
    /// Running on, not starting.
    Hold,
}

/// A denial seen. No answer brings its epoch, or an older one, back, and no start is admitted under them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seal {
    /// Over, with everything older.
    pub epoch: Epoch,
    /// The answered question that brought it.
    pub question: QuestionNumber,
    /// The guard process that asked it.
    pub incarnation: Incarnation,
    /// When it was folded in.
    pub at: BootTime,
    /// What the authority said.
    pub reason: DenialReason,
    /// Whether the authority knows that nothing of it is left here.
    pub receipted: bool,
}

/// A start let through: between the hook's yes and QEMU's first instruction the domain is already here (rule 8).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Admission {
    /// The epoch it was let through under.
    pub epoch: Epoch,
    /// How far it came.
    pub stage: Stage,
    /// When it came there.
    pub since: BootTime,
    /// The libvirt daemon that holds it.
    pub daemon: Option<ProcessKey>,
    /// libvirt's number of this run (`<domain id=...>`), where its XML had one.
    pub run: Option<i64>,
    /// When the lease it was let through under runs out.
    pub expires: BootTime,
    /// When libvirt said that this start is over. A scan begun later that finds nothing closes it.
    pub over: Option<BootTime>,
    /// It is the destination's half of a live migration.
    #[serde(default)]
    pub incoming: bool,
}

/// How far a start came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// `migrate begin` passed: the next `prepare` is an incoming migration. Nothing can execute yet.
    Migrating,
    /// `prepare` passed. Nothing can execute before `start` has passed too.
    Prepared,
    /// `start` passed: QEMU may be executing.
    Started,
}

/// One process that is not proven gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Copy {
    /// Which process.
    pub process: ProcessKey,
    /// The epoch it started under; none: found running, and no answer has named it yet.
    pub epoch: Option<Epoch>,
    /// When it was first seen.
    pub seen: BootTime,
    /// The first question asked after that, by this guard process: the first one whose answer is about it (rule 2).
    #[serde(skip)]
    pub asked_from: QuestionNumber,
    /// Whether its virtual CPUs run.
    pub state: CopyState,
    /// When its right to live runs out. Only answers that name its epoch move it on (rule 9), and none once it is
    /// denied or condemned.
    pub expires: BootTime,
    /// It is to die.
    pub dying: Option<Dying>,
    /// It comes by live migration and has not run here yet.
    #[serde(default)]
    pub arriving: Option<Arriving>,
}

/// A process that came by live migration and has not run here yet: it waits for the source's copy to be gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Arriving {
    /// When libvirt was asked last to resume it. Another guard process asks anew: asking twice does no harm.
    #[serde(skip)]
    pub resume_asked: Option<BootTime>,
}

impl Copy {
    /// How it is named to the authority. An arriving process without a status is not running: libvirt writes the first
    /// one, `paused`, just after its process is there, and a report of two running copies kills the source's.
    fn named(&self) -> NamedState {
        match self.state {
            _ if self.dying.is_some() => NamedState::Dying,
            CopyState::Paused => NamedState::Paused,
            CopyState::Unknown if self.arriving.is_some() => NamedState::Starting,
            CopyState::Running | CopyState::Unknown => NamedState::Running,
        }
    }
}

/// A process that is to die. There is no way back: what lapsed and came back is a new start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dying {
    /// Why, as a clause.
    pub why: String,
    /// The same, of few.
    #[serde(default)]
    pub cause: Cause,
    /// Since when.
    pub since: BootTime,
    /// SIGKILL is due then.
    pub kill_at: BootTime,
    /// SIGKILL was ordered by this guard process.
    #[serde(skip)]
    pub killed: bool,
    /// It lived on after its kill budget: the reset of this host is decided on.
    #[serde(skip)]
    pub given_up: bool,
}

/// What a ledger file held.
#[derive(Debug)]
pub enum Recovered {
    /// This boot's ledger.
    Restored(Ledger),
    /// Another boot's: nothing in it is alive.
    OtherBoot,
    /// Not usable; why.
    Unusable(String),
}

impl Ledger {
    /// Nothing known.
    pub fn new(boot: BootId) -> Ledger {
        Ledger {
            version: VERSION,
            boot,
            contact: None,
            authority_clock: None,
            drained: None,
            promise: None,
            counted: CountedBounds::default(),
            domains: BTreeMap::new(),
        }
    }

    /// Reads what [`Ledger::to_bytes`] wrote.
    pub fn recover(bytes: &[u8], boot: BootId) -> Recovered {
        #[derive(Deserialize)]
        struct Header {
            version: u32,
            boot: BootId,
        }
        let header: Header = match serde_json::from_slice(bytes) {
            Ok(header) => header,
            Err(error) => return Recovered::Unusable(format!("it does not parse ({error})")),
        };
        if header.boot != boot {
            return Recovered::OtherBoot;
        }
        if header.version != VERSION {
            let version = header.version;
            return Recovered::Unusable(format!("it has format {version}, and this leasehold knows format {VERSION}"));
        }
        match serde_json::from_slice(bytes) {
            Ok(ledger) => Recovered::Restored(ledger),
            Err(error) => Recovered::Unusable(format!("it does not parse ({error})")),
        }
    }

    /// As it is written to /run.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a ledger is plain data with string keys")
    }

    /// Forgets what nobody can ask about any more, so that the ledger of a node that sees many domains stays small.
    pub fn prune(&mut self) {
        const KEPT_DENIALS: usize = 1000;
        let idle = |entry: &Entry| {
            entry.lease.is_none()
                && entry.admission.is_none()
                && entry.copies.is_empty()
                && entry.seal.as_ref().is_none_or(|seal| seal.receipted)
        };
        let mut denied: Vec<(BootTime, DomainId)> = Vec::new();
        self.domains.retain(|&id, entry| {
            if idle(entry)
                && let Some(seal) = &entry.seal
            {
                denied.push((seal.at, id));
            }
            !idle(entry) || entry.seal.is_some()
        });
        denied.sort_unstable();
        for &(_, id) in denied.iter().take(denied.len().saturating_sub(KEPT_DENIALS)) {
            self.domains.remove(&id);
        }
    }
}

impl Entry {
    /// The lease, if it has not run out.
    pub fn valid_lease(&self, now: BootTime) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.expires)
    }

    /// Whether this epoch was denied.
    pub fn is_sealed(&self, epoch: Epoch) -> bool {
        self.seal.as_ref().is_some_and(|seal| epoch <= seal.epoch)
    }

    /// Whether the next question must name this domain without being asked to.
    pub fn is_here(&self) -> bool {
        self.lease.is_some() || self.admission.is_some() || !self.copies.is_empty()
    }

    /// Renews the right to run this domain, and with it the start and the processes let through under its epoch.
    pub fn renew(&mut self, epoch: Epoch, right: Right, expires: BootTime) {
        let lease = self.lease.get_or_insert(Lease { epoch, right, expires });
        lease.right = right;
        // A renewal never shortens: this answer and the last were both true.
        lease.expires = lease.expires.max(expires);
        for open in self.admission.iter_mut().filter(|open| open.epoch == epoch) {
            open.expires = lease.expires;
        }
        // rule 9: only what started under this epoch
        for copy in self.copies.iter_mut().filter(|copy| copy.epoch == Some(epoch) && copy.dying.is_none()) {
            copy.expires = lease.expires;
        }
    }

    /// Every right held here has ended.
    pub fn end_all(&mut self, now: BootTime) {
        let leases = self.lease.iter_mut().map(|lease| &mut lease.expires);
        let starts = self.admission.iter_mut().map(|open| &mut open.expires);
        let copies = self.copies.iter_mut().map(|copy| &mut copy.expires);
        leases.chain(starts).chain(copies).for_each(|expires| *expires = now.min(*expires));
    }

    /// Whether its lapse kills nothing: the operator wants it held, and the authority has answered to that.
    pub fn is_held(&self) -> bool {
        self.held_on_lapse && self.hold_known
    }

    /// How the next question names it.
    pub fn named(&self, domain: DomainId) -> NamedDomain {
        let epochs = [self.lease.as_ref().map(|l| l.epoch), self.admission.as_ref().map(|a| a.epoch)];
        let starting = self.admission.iter().map(|_| NamedState::Starting);
        // The liveliest of all: the states are declared in that order.
        let state = self.copies.iter().map(Copy::named).chain(starting).max().unwrap_or(NamedState::Wanted);
        NamedDomain {
            domain,
            name: self.name.chars().take(crate::protocol::MAX_NAME).collect(),
            epoch: epochs.into_iter().flatten().chain(self.copies.iter().filter_map(|copy| copy.epoch)).max(),
            state,
            held_on_lapse: self.held_on_lapse,
        }
    }

    /// The receipt this domain owes, if everything it must say is true by a whole scan that began at `scanned`.
    ///
    /// rule 7: nothing of the sealed epoch lives; rule 8: no admission under it is open; and the denial itself was
    /// seen first, so the receipt answers a revocation and no later `allow` can overtake it (docs/design.md, rule 7).
    pub fn receipt(&self, domain: DomainId, scanned: BootTime) -> Option<Receipt> {
        let seal = self.seal.as_ref().filter(|seal| !seal.receipted)?;
        let over = |epoch: Option<Epoch>| epoch.is_none_or(|epoch| epoch <= seal.epoch);
        let alive = self.copies.iter().any(|copy| over(copy.epoch))
            || self.admission.as_ref().is_some_and(|admission| over(Some(admission.epoch)));
        let proven = !alive && scanned > seal.at && self.stirred.is_none_or(|stirred| scanned > stirred);
        proven.then_some(Receipt {
            domain,
            epoch: seal.epoch,
            denied_incarnation: seal.incarnation,
            denied_question: seal.question,
        })
    }

    /// A denial of `epoch` and everything older takes the lease, cancels a start that cannot have executed yet, and
    /// covers every process that the denied question could have named.
    pub fn deny(&mut self, seal: Seal) {
        if self.lease.as_ref().is_some_and(|lease| lease.epoch <= seal.epoch) {
            self.lease = None;
        }
        // rule 8: before `start` has passed nothing can have executed, and `start` will now be refused
        if self.admission.as_ref().is_some_and(|a| a.stage != Stage::Started && a.epoch <= seal.epoch) {
            self.admission = None;
        }
        for copy in self.copies.iter_mut().filter(|copy| copy.epoch.is_none() && copy.asked_from <= seal.question) {
            // Named without an epoch and denied: whatever it started under, the denial covers it. It was never allowed to
            // this guard's knowledge, so the watchdog may not be fed for it (rule 4).
            (copy.epoch, copy.expires) = (Some(seal.epoch), copy.seen);
        }
        match &mut self.seal {
            Some(old) if old.epoch > seal.epoch => {}
            // The same denial again: its receipt, given or due, stays as it is.
            Some(old) if old.epoch == seal.epoch => old.reason = seal.reason,
            slot => *slot = Some(seal),
        }
    }
}

/// Who a domain is, for people: its name with control characters made visible, and its uuid.
pub fn label(name: &str, domain: DomainId) -> String {
    match name {
        "" => domain.to_string(),
        _ => format!("{} ({domain})", name.escape_debug()),
    }
}

/// Why a domain has no lease here, as a clause: `owned by node n2 since 2026-12-01T02:00:00Z, epoch 7`.
pub fn denial(reason: &DenialReason, epoch: Epoch, node: &NodeId) -> String {
    let since = reason.since.as_deref().map(|since| format!(" since {since}")).unwrap_or_default();
    match (&reason.owner, &reason.reason) {
        (Some(owner), _) if owner == node => format!("this node's claim was replaced{since}, epoch {epoch}"),
        (Some(owner), _) => format!("owned by node {owner}{since}, epoch {epoch}"),
        (None, Some(reason)) => format!("{reason}{since}, epoch {epoch}"),
        (None, None) => format!("the authority denies it{since}, epoch {epoch}"),
    }
}
