//! From lapse to SIGKILL: which processes must die, when each step is due, and what all that means for the permit.

use super::event::{Action, Severity};
use super::fence::Cause;
use super::guard::Guard;
use super::id::DomainId;
use super::ledger::{Copy, Dying, Entry, denial, label};
use super::policy::{Policy, Unkillable};
use super::time::BootTime;

impl Guard {
    /// Takes every step that is due at `now`.
    pub(super) fn enforce(&mut self, now: BootTime) {
        let mut due = Vec::new();
        for (&id, entry) in &mut self.ledger.domains {
            for at in 0..entry.copies.len() {
                if entry.copies[at].dying.is_none()
                    && let Some(dying) = condemn(&self.policy, entry, &entry.copies[at], now)
                {
                    entry.copies[at].dying = Some(dying);
                    due.push(Due::Condemned(id, at));
                }
                if let Some(dying) = &mut entry.copies[at].dying
                    && !dying.killed
                    && now >= dying.kill_at
                {
                    dying.killed = true;
                    due.push(Due::Kill(id, at));
                }
                if let Some(give_up_at) = give_up_at(&self.policy, entry, at)
                    && now >= give_up_at
                    && let Some(dying) = &mut entry.copies[at].dying
                    && !std::mem::replace(&mut dying.given_up, true)
                {
                    due.push(Due::GiveUp(id, at));
                }
            }
        }
        for &step in &due {
            self.act(now, step);
        }
        self.mark_steps(now, &due);
    }

    fn act(&mut self, now: BootTime, step: Due) {
        let (Due::Condemned(domain, at) | Due::Kill(domain, at) | Due::GiveUp(domain, at)) = step;
        let entry = &self.ledger.domains[&domain];
        let copy = &entry.copies[at];
        let Some(dying) = &copy.dying else { return };
        let (name, process) = (entry.name.clone(), copy.process);
        let who = label(&name, domain);
        let (why, kill_at) = (dying.why.clone(), dying.kill_at);
        match step {
            Due::Condemned(..) if self.policy.observe => {
                self.tell(
                    Severity::Warning,
                    format!("observing: would kill domain {who}, process {}: {why}", process.pid),
                );
            }
            Due::Condemned(..) => {
                let left = kill_at.left(now).as_secs_f64();
                let next = if left > 0.0 {
                    format!("libvirt is asked to destroy it; SIGKILL follows in {left:.1} s")
                } else {
                    "SIGKILL follows at once".to_owned()
                };
                self.tell(Severity::Error, format!("domain {who}, process {}, must die: {why}. {next}", process.pid));
                if kill_at > now {
                    self.actions.push(Action::Destroy { domain, name, by: kill_at });
                }
            }
            // safety: an observing node promised nothing, so nobody relies on this kill.
            Due::Kill(..) if self.policy.observe => {}
            Due::Kill(..) => self.actions.push(Action::Kill { domain, process }),
            // Without a bound no watchdog is armed, and nothing follows.
            Due::GiveUp(..) if self.policy.bound.is_none() => {}
            Due::GiveUp(..) => {
                let since = now.since(kill_at).as_secs_f64();
                let text = format!(
                    "domain {who}, process {}, is not proven gone {since:.1} s after SIGKILL ({why}): this host is given up. Its watchdog, fed no more, resets it; sooner than it would where its timeout can be cut short",
                    process.pid
                );
                self.tell(Severity::Error, text);
            }
        }
    }

    /// Whether the reset of this host is decided on: something enforced lived on after its kill budget. Its watchdog is
    /// fed no more since E - P; what it still grants is of no use to anybody.
    pub fn fences(&self) -> bool {
        let enforced = self.ledger.domains.values().filter(|entry| !entry.is_held());
        let mut dying = enforced.flat_map(|entry| &entry.copies).filter_map(|copy| copy.dying.as_ref());
        self.amnesia.is_none() && dying.any(|dying| dying.given_up)
    }

    /// The instants at which this domain needs a step.
    pub(super) fn deadlines(&self, entry: &Entry) -> Vec<BootTime> {
        let step = |at: usize| match &entry.copies[at].dying {
            Some(dying) => give_up_at(&self.policy, entry, at).unwrap_or(dying.kill_at),
            None if entry.is_held() => BootTime::NEVER,
            None => lapse(&self.policy, &entry.copies[at]),
        };
        (0..entry.copies.len()).map(step).collect()
    }

    /// The instants past which this domain forbids feeding the watchdog (rule 4): its living processes, the dead that
    /// are not yet silent among them, and its open admission.
    pub(super) fn limits(&self, entry: &Entry) -> Vec<BootTime> {
        let timing = &self.policy.timing;
        let contact = self.ledger.contact.map(|sent| timing.expires(sent, timing.ttl));
        let copy = |copy: &Copy| match copy.epoch {
            // safety: it was struck and does not die, this node promised no bound, and the authority hears from it at
            // every answer that it lives; without contact this limit passes like any other.
            _ if self.policy.unkillable == Unkillable::Report
                && copy.dying.as_ref().is_some_and(|dying| dying.killed) =>
            {
                timing.last_feed(copy.expires.max(contact.unwrap_or(BootTime::ZERO)))
            }
            // Found running: nothing says that it may live for an instant more, or how long ago an answer last did.
            None => copy.seen,
            _ => timing.last_feed(copy.expires),
        };
        let admission = entry.admission.iter().map(|open| timing.last_feed(open.expires));
        entry.copies.iter().map(copy).chain(admission).collect()
    }
}

/// A step of the ladder that is due for the copy at this place of its entry.
#[derive(Clone, Copy)]
pub(super) enum Due {
    Condemned(DomainId, usize),
    Kill(DomainId, usize),
    GiveUp(DomainId, usize),
}

/// When the host is given up for this copy, which was struck: never before E, for until E - P its watchdog is fed. `None`:
/// no reset comes for it.
fn give_up_at(policy: &Policy, entry: &Entry, at: usize) -> Option<BootTime> {
    let copy = &entry.copies[at];
    let struck = copy.dying.as_ref().filter(|dying| dying.killed)?;
    let resets = !policy.observe && !entry.is_held() && policy.unkillable == Unkillable::Reset;
    resets.then(|| policy.timing.given_up(struck.kill_at.max(copy.expires)))
}

/// From when on its end is under way. What was found running has all its time to be allowed in, and none to end in order:
/// the watchdog is not fed meanwhile.
fn lapse(policy: &Policy, copy: &Copy) -> BootTime {
    if copy.epoch.is_none() { copy.expires } else { policy.timing.lapse(copy.expires) }
}

/// Whether this process must die, and by when.
fn condemn(policy: &Policy, entry: &Entry, copy: &Copy, now: BootTime) -> Option<Dying> {
    let timing = &policy.timing;
    let expires = copy.expires;
    let sealed = copy.epoch.is_some_and(|epoch| entry.is_sealed(epoch));
    let newer =
        entry.lease.as_ref().map(|lease| lease.epoch).filter(|&epoch| copy.epoch.is_some_and(|own| own < epoch));
    let soon = now + timing.polite;
    let (cause, why, kill_at) = if let (true, Some(seal)) = (sealed, &entry.seal) {
        let denial = denial(&seal.reason, seal.epoch, &policy.node);
        (Cause::Denied, format!("its lease is over: {denial}"), soon)
    } else if let Some(epoch) = newer {
        (Cause::Stale, format!("it started under an older epoch than the lease, {epoch}: it is stale"), soon)
    } else if entry.is_held() || now < lapse(policy, copy) {
        return None;
    } else if copy.epoch.is_none() {
        (Cause::Unleased, "it runs without a lease, and no answer has allowed it".to_owned(), expires)
    } else {
        let why = "its lease was not renewed in time: no answer from the authority renewed it";
        (Cause::Lapsed, why.to_owned(), expires)
    };
    // A revocation never lets a domain live longer than its lease would have.
    let kill_at = if expires > now { kill_at.min(expires) } else { kill_at };
    Some(Dying { why, cause, since: now, kill_at, killed: false, given_up: false })
}
