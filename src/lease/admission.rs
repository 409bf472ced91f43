//! May this domain start? One question of libvirt's hook, decided from the ledger alone.

use super::event::{HookCall, HookOp};
use super::id::{DomainId, NodeId};
use super::ledger::{Admission, Entry, Lease, Right, Stage, denial, label};
use super::policy::Policy;
use super::time::BootTime;
use std::time::Duration;

/// How long a `migrate` speaks for the `prepare` that follows it: libvirt 9 takes 7 ms from one to the other
/// (qemuMigrationDstPrepareFresh). A migration that fails in between fires no hook, and an offline one has no `prepare`: a
/// `prepare` that comes later is a plain start.
pub const MIGRATE_TO_PREPARE: Duration = Duration::from_secs(5);

/// What the ledger says to a hook.
#[derive(Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Yes, and this admission is open from now on.
    Admit(Admission),
    /// Yes; nothing new is let through.
    Allow,
    /// No, and no answer can change that.
    Refuse(String),
    /// Not before the authority has answered a question asked after the hook came. The sentence is for the case that
    /// it does not.
    NeedsAnswer(String),
    /// Not before something on this host is proven over. The sentence is for the case that it is not in time.
    NeedsQuiet(String),
}

/// Decides one call. The caller enters the admission and waits for what is needed, within the hook's deadline.
pub fn decide(entry: Option<&Entry>, call: &HookCall, now: BootTime, policy: &Policy) -> Decision {
    let nothing = Entry::default();
    let entry = entry.unwrap_or(&nothing);
    match call.op {
        HookOp::Stopped | HookOp::Release | HookOp::OtherEnd => Decision::Allow,
        HookOp::Reconnect => match may_reconnect(entry, call.domain, &policy.node, now) {
            Ok(()) => Decision::Allow,
            Err(sentence) => Decision::Refuse(sentence),
        },
        HookOp::Prepare => gate(entry, call, now, policy, Stage::Prepared),
        HookOp::Migrate => gate(entry, call, now, policy, Stage::Migrating),
        HookOp::Restore => match gate(entry, call, now, policy, Stage::Prepared) {
            // `prepare` follows and opens the admission.
            Decision::Admit(_) => Decision::Allow,
            other => other,
        },
        HookOp::Start => start(entry, call, now, policy),
        HookOp::Started | HookOp::OtherBegin => match lease(entry, call, now, policy) {
            Ok(_) => Decision::Allow,
            Err(no) => no,
        },
    }
}

/// `reconnect begin`: refusing kills a running domain, so only a positively expired or revoked lease refuses. What is
/// unknown is allowed: the guard owns that job.
pub fn may_reconnect(entry: &Entry, domain: DomainId, node: &NodeId, now: BootTime) -> Result<(), String> {
    let who = label(&entry.name, domain);
    match (&entry.lease, &entry.seal) {
        (Some(lease), _) if now >= lease.expires && !entry.is_held() => Err(format!(
            "the lease of domain {who} ran out {:.1} s ago, epoch {}. leasehold kills it; see `leasehold status`",
            now.since(lease.expires).as_secs_f64(),
            lease.epoch
        )),
        (None, Some(seal)) => {
            Err(format!("the lease of domain {who} is over: {}", denial(&seal.reason, seal.epoch, node)))
        }
        // safety: with a lease that has not run out the domain may run; without any knowledge the guard decides
        // within one question, while a refusal here would kill every domain at a restart of libvirtd.
        _ => Ok(()),
    }
}

/// `prepare` and what fails fast before it.
fn gate(entry: &Entry, call: &HookCall, now: BootTime, policy: &Policy, stage: Stage) -> Decision {
    let who = label(&call.name, call.domain);
    if let Some(copy) = entry.copies.first() {
        return Decision::NeedsQuiet(format!(
            "domain {who} is not started: its earlier process {} is not proven gone on this host. See `leasehold status`",
            copy.process.pid
        ));
    }
    let lease = match lease(entry, call, now, policy) {
        Ok(lease) => lease,
        Err(no) => return no,
    };
    let announced = |open: &Admission| open.stage == Stage::Migrating && open.daemon == call.daemon;
    let migrating = stage == Stage::Migrating || entry.admission.as_ref().is_some_and(announced);
    if lease.right == Right::Incoming && !migrating {
        return Decision::NeedsAnswer(format!(
            "no lease for domain {who}: node {} may only receive it by live migration (epoch {}) until the controller says `moved`",
            policy.node, lease.epoch
        ));
    }
    if lease.right == Right::Hold {
        return Decision::NeedsAnswer(format!(
            "domain {who} is on hold at its controller (epoch {}): what runs may run on, but nothing is started",
            lease.epoch
        ));
    }
    let blocked = entry.admission.as_ref().filter(|open| match open.stage {
        Stage::Migrating => false,
        // One daemon serialises the starts of a domain, so its next `prepare` ends an attempt that cannot execute.
        Stage::Prepared => open.daemon != call.daemon,
        Stage::Started => true,
    });
    if let Some(open) = blocked {
        return Decision::NeedsQuiet(format!(
            "domain {who} is not started: an earlier start of it, let through {:.1} s ago, is not proven over. Try again in a few seconds",
            now.since(open.since).as_secs_f64()
        ));
    }
    let (epoch, expires, incoming) = (lease.epoch, lease.expires, lease.right == Right::Incoming);
    let (daemon, run) = (call.daemon, call.run);
    Decision::Admit(Admission { epoch, stage, since: now, daemon, run, expires, over: None, incoming })
}

/// `start`: the re-check, for the lease may have ended since `prepare`.
fn start(entry: &Entry, call: &HookCall, now: BootTime, policy: &Policy) -> Decision {
    let lease = match lease(entry, call, now, policy) {
        Ok(lease) => lease,
        Err(no) => return no,
    };
    match &entry.admission {
        Some(open) if open.stage == Stage::Prepared && open.epoch == lease.epoch && open.daemon == call.daemon => {
            Decision::Admit(Admission { stage: Stage::Started, since: now, ..open.clone() })
        }
        _ => Decision::Refuse(format!(
            "domain {} is not started: its start was let through under another lease, or not at all. Start it again",
            label(&call.name, call.domain)
        )),
    }
}

/// The lease that lets a domain start now, or the sentence why there is none.
fn lease<'a>(entry: &'a Entry, call: &HookCall, now: BootTime, policy: &Policy) -> Result<&'a Lease, Decision> {
    let who = label(&call.name, call.domain);
    match (&entry.lease, &entry.seal) {
        // From lapse on a running domain is destroyed, so none is started.
        (Some(lease), _) if now < policy.timing.lapse(lease.expires) && !entry.is_sealed(lease.epoch) => Ok(lease),
        (Some(lease), _) => Err(Decision::NeedsAnswer(format!(
            "no lease for domain {who}: the last one, epoch {}, was not renewed in time. See `leasehold status`",
            lease.epoch
        ))),
        (None, Some(seal)) => {
            let remedy = match &seal.reason.owner {
                Some(owner) if *owner != policy.node => "move",
                _ => "grant",
            };
            Err(Decision::NeedsAnswer(format!(
                "no lease for domain {who}: {}. To run it here: leasehold lease {remedy} {} {}",
                denial(&seal.reason, seal.epoch, &policy.node),
                call.domain,
                policy.node
            )))
        }
        (None, None) => {
            Err(Decision::NeedsAnswer(format!("no lease for domain {who}: the authority has said nothing of it")))
        }
    }
}
