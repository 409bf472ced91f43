//! What is asked of the authority, and when.

use super::event::{Action, Question};
use super::guard::Guard;
use super::id::{DomainId, QuestionNumber};
use super::ledger::Entry;
use super::policy::{Lapse, Unkillable};
use super::promise::Promise;
use super::time::BootTime;
use crate::protocol::{MAX_DOMAINS, Receipt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Two questions are at least this far apart, so that no hint can make a guard flood its authority.
pub(super) const LEAST_GAP: Duration = Duration::from_millis(10);
/// The longest that the first question waits for the watchdog's word. A device that has its permit is armed within 100 ms.
const ARMING: Duration = Duration::from_millis(1500);
/// Questions whose answers may still come in.
const MOST_IN_FLIGHT: usize = 8;

/// A question whose answer has not come in.
#[derive(Debug, Clone, Hash)]
pub(super) struct Asked {
    pub(super) sent: BootTime,
    pub(super) named: BTreeSet<DomainId>,
    /// Those of them that it said are held on lapse.
    pub(super) held: BTreeSet<DomainId>,
    pub(super) receipts: Vec<Receipt>,
    pub(super) timeout: Duration,
    /// What it promised.
    pub(super) promise: Option<Promise>,
}

impl Guard {
    /// Has the first question wait for [`Event::Watchdog`]: an answer to one that states no bound counts for as long as
    /// the longest lease and its bound, 69 s with the fast profile, although the device is armed a moment later. It waits
    /// no longer than R and [`ARMING`], than half of what a waiting hook has, or than it can become clear that nothing
    /// will be armed before an answer; and not at all where no bound would be stated.
    pub fn awaiting_watchdog(mut self) -> Guard {
        let states = !self.policy.observe && self.policy.unkillable == Unkillable::Reset && self.policy.bound.is_none();
        self.watchdog_awaited = states.then(|| self.policy.timing.renew.min(ARMING));
        self
    }

    /// Until when no question is asked, for the watchdog's word.
    pub(super) fn silent_until(&self) -> BootTime {
        let first = self.hooks.iter().map(|hook| hook.came + hook.call.answer_by.left(hook.came) / 2).min();
        match (self.watchdog_awaited, self.began) {
            (Some(longest), Some(began)) => (began + longest).min(first.unwrap_or(BootTime::NEVER)),
            _ => BootTime::ZERO,
        }
    }

    /// Says that a question should not wait for its turn.
    pub(super) fn ask_soon(&mut self) {
        self.ask_soon = true;
    }

    /// Says that the next question names this domain, and should not wait for its turn.
    pub(super) fn name_soon(&mut self, domain: DomainId) {
        self.hinted.insert(domain);
        self.ask_soon = true;
    }

    /// The number of the next question to be asked.
    pub(super) fn next_question(&self) -> QuestionNumber {
        self.next_question
    }

    pub(super) fn unanswered(&mut self, question: QuestionNumber, why: String) {
        if let Some(asked) = self.asked.remove(&question) {
            self.hinted.extend(asked.named.into_iter().filter(|id| !self.ledger.domains.contains_key(id)));
            if self.failed.as_ref().is_none_or(|(last, _)| *last < question) {
                self.failed = Some((question, why));
            }
        }
    }

    pub(super) fn give_up_overdue_questions(&mut self, now: BootTime) {
        let overdue: Vec<_> =
            self.asked.iter().filter(|(_, asked)| now >= asked.sent + asked.timeout).map(|(&n, _)| n).collect();
        for question in overdue {
            self.unanswered(question, "no answer in time".into());
        }
    }

    pub(super) fn ask_if_due(&mut self, now: BootTime) {
        let receipts = self.receipts_due();
        let news = receipts.iter().any(|r| !self.announced.contains(&(r.domain, r.epoch)));
        self.ask_soon |= news;
        let (gap, renew) = (LEAST_GAP, self.policy.timing.renew);
        let regular = self.last_asked.is_none_or(|last| now >= last + renew);
        let soon = self.ask_soon && self.asked.is_empty() && self.last_asked.is_none_or(|last| now >= last + gap);
        if !(regular || soon) || now < self.silent_until() {
            return;
        }
        self.watchdog_awaited = None;
        let mut wanted: BTreeMap<DomainId, String> =
            std::mem::take(&mut self.hinted).into_iter().map(|id| (id, String::new())).collect();
        wanted.extend(self.hooks.iter().map(|hook| (hook.call.domain, hook.call.name.clone())));
        // rule 2: only what was seen running or wanted before the question is sent
        let here = self.ledger.domains.iter().filter(|(id, entry)| entry.is_here() || wanted.contains_key(id));
        let mut domains: Vec<_> = here.map(|(&id, entry)| entry.named(id)).collect();
        wanted.retain(|id, _| !self.ledger.domains.contains_key(id));
        domains.extend(wanted.into_iter().map(|(id, name)| {
            let held_on_lapse = self.policy.lapse_of(id, &name) == Lapse::Hold;
            Entry { name, held_on_lapse, ..Entry::default() }.named(id)
        }));
        domains.truncate(MAX_DOMAINS);
        let number = self.next_question;
        self.next_question = QuestionNumber(number.0 + 1);
        self.announced = receipts.iter().map(|r| (r.domain, r.epoch)).collect();
        let named = domains.iter().map(|named| named.domain).collect();
        let held = domains.iter().filter(|named| named.held_on_lapse).map(|named| named.domain).collect();
        let timeout = self.policy.timing.request_timeout();
        let bound = self.policy.bound;
        let promise = bound.map(|bound| Promise::new(bound, &self.policy.timing));
        self.asked.insert(number, Asked { sent: now, named, held, receipts: receipts.clone(), timeout, promise });
        while self.asked.len() > MOST_IN_FLIGHT {
            self.asked.pop_first();
        }
        self.last_asked = Some(now);
        self.ask_soon = false;
        self.actions.push(Action::Ask(Question { number, sent: now, bound, timeout, domains, receipts }));
    }

    pub(super) fn receipts_due(&self) -> Vec<Receipt> {
        // One without memory knows nothing. One that observes says what really ended, and its questions say that it
        // promises nothing.
        if self.amnesia.is_some() {
            return Vec::new();
        }
        self.ledger.domains.iter().filter_map(|(&id, entry)| entry.receipt(id, self.scanned)).collect()
    }
}
