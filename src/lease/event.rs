//! What goes into the lease core and what comes out of it.

use super::fence::Mark;
use super::id::{DomainId, NodeId, ProcessKey, QuestionNumber};
use super::time::BootTime;
use crate::protocol::{NamedDomain, Receipt, RenewAnswer};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Something happened. Every event is stepped with the instant at which the guard learned of it.
#[derive(Debug, Clone, Hash)]
pub enum Event {
    /// Nothing but time passed.
    Tick,
    /// A whole scan ended: everything that lives is in it.
    Scanned(Scan),
    /// A process is proven gone and silent (rule 7); the guard's node layer holds the proof.
    Gone {
        /// Whose process it was.
        domain: DomainId,
        /// Which process.
        process: ProcessKey,
    },
    /// libvirt runs our hook and waits.
    Hook(HookCall),
    /// An answer came in.
    Answered(Box<RenewAnswer>),
    /// Every endpoint failed to answer this question; why, as a clause for people.
    Unanswered {
        /// The question.
        question: QuestionNumber,
        /// What each endpoint said.
        why: String,
    },
    /// This question left without its receipts: the ledger that they rely on could not be written.
    ReceiptsWithheld(QuestionNumber),
    /// The watch says to ask now and to name these domains.
    Hinted(Vec<DomainId>),
    /// What the watchdog is worth now: the bound that holds with it armed; `None`: it is not armed, or cannot be relied on.
    Watchdog {
        /// The bound to promise.
        bound: Option<Duration>,
    },
    /// The operator wants this node empty: nothing starts any more (`true`), or starts are let through again.
    Drain(bool),
    /// libvirt's own word on which starts it has in flight.
    StartsInFlight {
        /// When libvirt was asked.
        asked: BootTime,
        /// Domains it is starting.
        domains: Vec<DomainId>,
    },
}

/// A whole scan of the machine.
#[derive(Debug, Clone, Hash)]
pub struct Scan {
    /// When it began: it speaks for every process that existed then and still does.
    pub began: BootTime,
    /// Every QEMU of libvirt's, the dead that are not proven gone among them.
    pub copies: Vec<SeenCopy>,
    /// Those of the libvirt daemons asked about ([`Action::Scan`]) that no longer lived when it began.
    pub dead_daemons: Vec<ProcessKey>,
}

/// One process of a domain.
#[derive(Debug, Clone, Hash)]
pub struct SeenCopy {
    /// Its domain.
    pub domain: DomainId,
    /// The domain's name, for people.
    pub name: String,
    /// The process.
    pub process: ProcessKey,
    /// When the process started.
    pub started: BootTime,
    /// Whether its virtual CPUs run.
    pub state: CopyState,
}

/// Whether a process's virtual CPUs run, by libvirt's status file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// They run.
    Running,
    /// They do not.
    Paused,
    /// Nothing tells: it is taken for running, since a status file that cannot be read makes no process harmless. Only
    /// of an incoming migration, whose first status is written after its process is there, is it known not to have begun.
    Unknown,
}

/// Names one hook process that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub u64);

/// What libvirt told our hook.
#[derive(Debug, Clone, Hash)]
pub struct HookCall {
    /// Where the verdict goes.
    pub id: HookId,
    /// `<uuid>` of the XML on stdin.
    pub domain: DomainId,
    /// The domain's name, for people.
    pub name: String,
    /// Which of libvirt's operations.
    pub op: HookOp,
    /// The libvirt daemon that runs the hook.
    pub daemon: Option<ProcessKey>,
    /// libvirt's number of this run of the domain (`<domain id=...>`), where its XML has one.
    pub run: Option<i64>,
    /// The verdict must be out by then; libvirt holds the domain's lock meanwhile.
    pub answer_by: BootTime,
}

/// libvirt's hook operations (src/util/virhook.c), as far as they differ to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookOp {
    /// `prepare begin`: nothing of the domain exists yet. The gate.
    Prepare,
    /// `start begin`: helpers run, QEMU is about to be executed.
    Start,
    /// `started begin`: the virtual CPUs run (cold start) or wait (incoming migration).
    Started,
    /// `migrate begin`, on the destination.
    Migrate,
    /// `restore begin`.
    Restore,
    /// `reconnect begin`: a restarted libvirt daemon found the domain running. Refusing kills it.
    Reconnect,
    /// Any other `begin`.
    OtherBegin,
    /// `stopped end`: libvirt believes QEMU dead. It proves nothing.
    Stopped,
    /// `release end`: libvirt is through with this run.
    Release,
    /// Any other `end`, and whatever is not a `begin`.
    OtherEnd,
}

impl HookOp {
    /// From libvirt's second and third argument.
    pub fn parse(op: &str, subop: &str) -> HookOp {
        match (op, subop) {
            ("prepare", "begin") => HookOp::Prepare,
            ("start", "begin") => HookOp::Start,
            ("started", "begin") => HookOp::Started,
            ("migrate", "begin") => HookOp::Migrate,
            ("restore", "begin") => HookOp::Restore,
            ("reconnect", "begin") => HookOp::Reconnect,
            (_, "begin") => HookOp::OtherBegin,
            ("stopped", _) => HookOp::Stopped,
            ("release", _) => HookOp::Release,
            _ => HookOp::OtherEnd,
        }
    }

    /// Whether its yes lets something start, and so relies on the ledger. The yes to `reconnect` and `started` changes
    /// nothing: the process is there already.
    pub fn admits(self) -> bool {
        matches!(self, HookOp::Prepare | HookOp::Start | HookOp::Migrate | HookOp::Restore | HookOp::OtherBegin)
    }

    /// Whether libvirt lets this operation be refused.
    pub fn can_refuse(self) -> bool {
        !matches!(self, HookOp::Stopped | HookOp::Release | HookOp::OtherEnd)
    }
}

/// The answer to a hook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Exit 0.
    Allow,
    /// Exit 1 with this sentence on stderr, which `virsh start` shows whole.
    Refuse(String),
}

/// What the core wants done. Order matters: an action may rely on the ones before it.
#[derive(Debug, Clone, Hash)]
pub enum Action {
    /// Send this question to every endpoint, once the ledger of this turn is durable.
    Ask(Question),
    /// Answer a hook, once the ledger of this turn is durable.
    Reply {
        /// The hook.
        hook: HookId,
        /// Its answer.
        verdict: Verdict,
    },
    /// Scan the machine now, and say which of these libvirt daemons no longer live.
    Scan {
        /// The daemons that hold open admissions.
        daemons: Vec<ProcessKey>,
    },
    /// Ask libvirt which starts it has in flight.
    AskStarts,
    /// Have libvirt destroy the domain, so that its state reads "destroyed"; give up at `by`.
    Destroy {
        /// The domain.
        domain: DomainId,
        /// Its name.
        name: String,
        /// The deadline.
        by: BootTime,
    },
    /// Have libvirt resume a domain that came by live migration and has waited for the source's copy to be gone; give up
    /// at `by`.
    Resume {
        /// The domain.
        domain: DomainId,
        /// Its name.
        name: String,
        /// The deadline.
        by: BootTime,
    },
    /// Kill this process and all that its domain's cgroup holds, now and until it is proven gone.
    Kill {
        /// The domain.
        domain: DomainId,
        /// The process.
        process: ProcessKey,
    },
    /// Keep this in the fence record.
    Mark(Mark),
    /// Tell the operator.
    Tell(Notice),
}

/// A question as the core asks it; the source adds what never changes in a guard's life.
#[derive(Debug, Clone, Hash)]
pub struct Question {
    /// Its number.
    pub number: QuestionNumber,
    /// Leases renewed by its answer count from here (rule 1).
    pub sent: BootTime,
    /// The bound this node promises from now on.
    pub bound: Option<Duration>,
    /// No answer is of use after this long.
    pub timeout: Duration,
    /// The domains seen running or wanted before it was sent (rule 2).
    pub domains: Vec<NamedDomain>,
    /// What is proven gone.
    pub receipts: Vec<Receipt>,
}

/// A line for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// How bad it is.
    pub severity: Severity,
    /// One or two sentences.
    pub text: String,
}

/// Syslog's severities (RFC 5424 section 6.2.1), as far as they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As planned.
    Info,
    /// An operator should look today.
    Warning,
    /// Something was refused or killed, or must be.
    Error,
    /// Leases end here because nobody answers, or this host is about to be reset.
    Emergency,
}

/// Who owns a domain instead of this node, as far as the authority said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DenialReason {
    /// The owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<NodeId>,
    /// Since when, by the authority's wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Why, as a clause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
