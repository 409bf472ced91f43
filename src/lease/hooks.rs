//! Hooks that wait for their verdict, and what libvirt's own reports change.

use super::admission::{self, Decision};
use super::event::{Action, HookCall, HookOp, Severity, Verdict};
use super::guard::{Guard, WaitingHook};
use super::ledger::{Stage, label};
use super::time::BootTime;

impl Guard {
    pub(super) fn hook(&mut self, now: BootTime, call: HookCall) {
        if let Some(entry) = self.ledger.domains.get_mut(&call.domain) {
            entry.name.clone_from(&call.name);
            let own = |open: &super::ledger::Admission| {
                open.daemon == call.daemon && (open.run.is_none() || call.run.is_none() || open.run == call.run)
            };
            match (call.op, &mut entry.admission) {
                (HookOp::Release, Some(open)) if own(open) && open.stage != Stage::Started => {
                    // rule 8: `start` has not passed, so nothing can have executed
                    entry.admission = None;
                }
                // rule 8: `release` fires over a QEMU in state D too: only a later scan closes the admission
                (HookOp::Release, Some(open)) if own(open) => open.over = Some(now),
                // One daemon serialises a domain's starts: when it prepares again, the last attempt is over.
                (HookOp::Prepare | HookOp::Migrate | HookOp::Restore, Some(open))
                    if open.daemon == call.daemon && open.stage == Stage::Started =>
                {
                    open.over = Some(open.over.unwrap_or(now));
                }
                _ => {}
            }
        }
        if matches!(call.op, HookOp::Release | HookOp::Stopped | HookOp::Started | HookOp::Reconnect) {
            self.scan_soon();
        }
        let question = self.next_question();
        self.hooks.push(WaitingHook { call, came: now, question, scan_asked: false });
    }

    /// Gives every hook its verdict that can have one now.
    pub(super) fn settle_hooks(&mut self, now: BootTime) {
        for mut hook in std::mem::take(&mut self.hooks) {
            match self.verdict(now, &mut hook) {
                None => self.hooks.push(hook),
                Some(verdict) => {
                    let verdict = self.allow_if_observing(&hook.call, verdict);
                    self.actions.push(Action::Reply { hook: hook.call.id, verdict });
                }
            }
        }
    }

    fn verdict(&mut self, now: BootTime, hook: &mut WaitingHook) -> Option<Verdict> {
        let call = &hook.call;
        let late = now >= call.answer_by;
        if self.amnesia.is_some() && call.op.admits() {
            let who = label(&call.name, call.domain);
            return late.then(|| Verdict::Refuse(format!(
                "domain {who} is not started: the guard lost its ledger and has not yet proven what runs here. Try again in a few seconds; see `leasehold status`"
            )));
        }
        if self.ledger.drained.is_some() && call.op.admits() {
            let who = label(&call.name, call.domain);
            let node = &self.policy.node;
            return Some(Verdict::Refuse(format!(
                "domain {who} is not started: node {node} is drained for planned work. `leasehold undrain` on it ends that"
            )));
        }
        let decision = admission::decide(self.ledger.domains.get(&call.domain), call, now, &self.policy);
        match decision {
            // It has given up: nobody would take this yes, and nothing would end the admission.
            Decision::Admit(_) if late => Some(Verdict::Refuse(format!(
                "domain {} is not started: no verdict in time. Start it again",
                label(&call.name, call.domain)
            ))),
            Decision::Admit(admission) => {
                let entry = self.ledger.domains.entry(call.domain).or_default();
                entry.name.clone_from(&call.name);
                entry.admission = Some(admission);
                // safety: a valid lease of an epoch never denied, nothing of the domain alive, and the admission is
                // in the ledger before this leaves (rule 8).
                Some(Verdict::Allow)
            }
            Decision::Allow => Some(Verdict::Allow),
            Decision::Refuse(sentence) => Some(Verdict::Refuse(sentence)),
            Decision::NeedsQuiet(sentence) => {
                if !std::mem::replace(&mut hook.scan_asked, true) {
                    self.scan_soon();
                }
                late.then_some(Verdict::Refuse(sentence))
            }
            Decision::NeedsAnswer(sentence) => {
                let failure = self.failed.as_ref().filter(|(failed, _)| *failed >= hook.question);
                let unheard = |why: &str| {
                    let who = label(&call.name, call.domain);
                    Verdict::Refuse(format!(
                        "no lease for domain {who}: the authority was asked and did not answer ({why}). Check `leasehold status` and the network to the authority"
                    ))
                };
                if self.folded >= hook.question {
                    Some(Verdict::Refuse(sentence))
                } else if let Some((_, why)) = failure {
                    Some(unheard(why))
                } else if late {
                    Some(unheard("no answer in time"))
                } else {
                    self.ask_soon();
                    None
                }
            }
        }
    }

    fn allow_if_observing(&mut self, call: &HookCall, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Refuse(sentence) if self.policy.observe => {
                self.tell(Severity::Warning, format!("observing: would refuse: {sentence}"));
                // safety: an observing node promises nothing, so nobody relies on a refusal.
                Verdict::Allow
            }
            Verdict::Refuse(sentence) => {
                self.tell(Severity::Error, format!("refused {:?}: {sentence}", call.op));
                Verdict::Refuse(sentence)
            }
            Verdict::Allow => Verdict::Allow,
        }
    }
}
