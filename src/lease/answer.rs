//! How an answer is folded into the ledger: rules 1 to 3.

use super::event::{CopyState, DenialReason, Severity};
use super::guard::Guard;
use super::ledger::{Arriving, AuthorityClock, Right, Seal, Stage, label};
use super::questions::Asked;
use super::time::BootTime;
use crate::protocol::{ClaimEntry, ClaimKind, MAX_DOMAINS, RenewAnswer, VERSION};
use std::time::Duration;

/// How much faster than allowed the authority's clock may seem to run before it counts as time stolen from this
/// host: the resolution of its clock and the scheduling of both ends.
const CLOCK_SLACK: Duration = Duration::from_millis(250);

impl Guard {
    pub(super) fn answered(&mut self, now: BootTime, answer: &RenewAnswer) {
        // rule 3: what is not an answer to an open question of this very process changes nothing
        if answer.protocol != VERSION || answer.node != self.policy.node || answer.incarnation != self.incarnation {
            let (node, version) = (&answer.node, answer.protocol);
            let text =
                format!("an answer for node {node}, protocol {version}, to another guard's question was ignored");
            return self.tell(Severity::Warning, text);
        }
        if answer.question <= self.folded || answer.list_wanted {
            return;
        }
        let Some(asked) = self.asked.remove(&answer.question) else { return };
        self.asked.retain(|&number, _| number > answer.question);
        self.folded = answer.question;
        if self.time_was_stolen(now, answer, &asked) {
            return;
        }
        self.ledger.contact = self.ledger.contact.max(Some(asked.sent));
        let ttl = Duration::from_millis(answer.ttl_ms).min(self.policy.timing.ttl);
        // rule 1: from before the question was sent
        let expires = self.policy.timing.expires(asked.sent, ttl);
        self.ledger.counted.add(now, asked.promise, expires);
        for claim in answer.claims.domains.iter().flatten() {
            // rule 2: nothing is said of what the question did not name
            if asked.named.contains(&claim.domain) {
                let held = asked.held.contains(&claim.domain);
                self.claimed(now, claim, answer, held, (ttl > Duration::ZERO).then_some(expires));
            }
        }
        self.hear_of_conflict(answer);
        if answer.conflict.is_some() {
            // What a node in conflict says proves nothing there, so its receipts stay due.
            return;
        }
        for receipt in &asked.receipts {
            if let Some(seal) = self.ledger.domains.get_mut(&receipt.domain).and_then(|entry| entry.seal.as_mut())
                && seal.epoch == receipt.epoch
            {
                seal.receipted = true;
            }
        }
        for &domain in answer.name_next.iter().take(MAX_DOMAINS).filter(|domain| !asked.named.contains(domain)) {
            self.name_soon(domain);
        }
    }

    /// Told when it begins and when it is over, not at every answer; the status shows it meanwhile.
    fn hear_of_conflict(&mut self, answer: &RenewAnswer) {
        let node = &answer.node;
        let doubt = answer
            .conflict
            .as_ref()
            .map(|conflict| format!("the authority does not believe this is the one node {node}: {conflict}"));
        match (std::mem::replace(&mut self.conflict, doubt.clone()), doubt) {
            (None, Some(doubt)) => self.tell(Severity::Error, doubt),
            (Some(_), None) => {
                self.tell(Severity::Info, format!("the authority believes again that this is the one node {node}"));
            }
            _ => {}
        }
    }

    /// `held`: its question said that the domain is held on lapse.
    fn claimed(
        &mut self,
        now: BootTime,
        claim: &ClaimEntry,
        answer: &RenewAnswer,
        held: bool,
        expires: Option<BootTime>,
    ) {
        let right = match claim.claim {
            ClaimKind::Allow => Right::Own,
            ClaimKind::Incoming => Right::Incoming,
            ClaimKind::Hold => Right::Hold,
            ClaimKind::Deny => return self.denied(now, claim, answer),
        };
        let entry = self.ledger.domains.entry(claim.domain).or_default();
        let older = entry.lease.as_ref().is_some_and(|lease| claim.epoch < lease.epoch);
        // rule 3: an older epoch changes nothing; and a denial is never undone under its epoch
        if older || entry.is_sealed(claim.epoch) {
            let who = label(&entry.name, claim.domain);
            let text =
                format!("the authority allows domain {who} under epoch {}, which is over here: ignored", claim.epoch);
            return self.tell(Severity::Warning, text);
        }
        let Some(expires) = expires else { return };
        if entry.lease.as_ref().is_some_and(|lease| lease.epoch < claim.epoch) {
            // A newer epoch ends the old one here: a start under it that cannot have executed is cancelled, and its
            // processes are stale (rule 9).
            entry.admission.take_if(|open| open.stage != Stage::Started);
            entry.lease = None;
        }
        for copy in entry.copies.iter_mut() {
            if copy.epoch.is_none() && copy.asked_from <= answer.question && copy.dying.is_none() {
                // safety: found running, named in this question, and its owner says it is ours: adopted (docs/design.md, State).
                copy.epoch = Some(claim.epoch);
                let comes = right == Right::Incoming && copy.state != CopyState::Running;
                copy.arriving = comes.then(Arriving::default);
            }
            if self.policy.observe && copy.epoch == Some(claim.epoch) {
                // safety: an observing node kills nothing, so what it would have killed may be as good as new.
                copy.dying = None;
            }
        }
        entry.renew(claim.epoch, right, expires);
        entry.hold_known = held;
    }

    fn denied(&mut self, now: BootTime, claim: &ClaimEntry, answer: &RenewAnswer) {
        let entry = self.ledger.domains.entry(claim.domain).or_default();
        let newer = entry.lease.as_ref().is_some_and(|lease| claim.epoch < lease.epoch);
        if newer || entry.seal.as_ref().is_some_and(|seal| claim.epoch < seal.epoch) {
            return;
        }
        let short = |text: &Option<String>| text.as_ref().map(|text| text.chars().take(256).collect());
        let reason =
            DenialReason { owner: claim.owner.clone(), since: short(&claim.since), reason: short(&claim.reason) };
        let seal = Seal {
            epoch: claim.epoch,
            question: answer.question,
            incarnation: answer.incarnation,
            at: now,
            reason,
            receipted: false,
        };
        entry.deny(seal);
        // The receipt, if one is due, needs a scan begun after the denial.
        if entry.seal.as_ref().is_some_and(|seal| !seal.receipted) {
            self.scan_soon();
        }
    }

    /// Whether more time passed at the authority than this host's clock knows of: the host was paused or restored from
    /// a snapshot. Then every lease held across it has ended, this answer's own among them.
    fn time_was_stolen(&mut self, now: BootTime, answer: &RenewAnswer, asked: &Asked) -> bool {
        let clock = Duration::from_millis(answer.clock_ms);
        let this = AuthorityClock { authority: answer.authority, clock, sent: asked.sent };
        let Some(last) = self.ledger.authority_clock.replace(this).filter(|last| last.authority == answer.authority)
        else {
            return false;
        };
        let there = clock.saturating_sub(last.clock);
        let here = now.since(last.sent);
        let allowed = here + here * 2 * self.policy.timing.drift_ppm / 1_000_000 + CLOCK_SLACK;
        if there <= allowed {
            return false;
        }
        for entry in self.ledger.domains.values_mut() {
            entry.end_all(now);
        }
        self.ask_soon();
        let missing = (there - here).as_secs_f64();
        self.tell(
            Severity::Error,
            format!("this host lost {missing:.1} s against the authority's clock: it was paused or restored by its own hypervisor, so every lease held across that has ended"),
        );
        true
    }
}
