//! The proof that nothing enforced is left on this node, without which no watchdog is stopped.

use super::guard::Guard;
use super::time::BootTime;
use std::sync::atomic::{AtomicBool, Ordering};

/// Every process of every enforced domain is proven gone and no start is admitted or will be: only
/// [`Guard::all_gone`] makes one, or an operator who has typed the node's name.
#[derive(Debug)]
pub struct AllGone(());

#[cfg(test)]
impl AllGone {
    /// For tests of who needs one.
    pub fn for_tests() -> AllGone {
        AllGone(())
    }
}

/// Where the proof waits for the thread that holds the watchdog: two flags, so that neither side ever waits.
#[derive(Debug, Default)]
pub struct DisarmOrder {
    proven: AtomicBool,
    forced: AtomicBool,
}

impl DisarmOrder {
    /// From now on the watchdog may be stopped.
    pub fn give(&self, _proof: AllGone) {
        self.proven.store(true, Ordering::Release);
    }

    /// From now on it may not. To be called before anything may start again.
    pub fn take_back(&self) {
        self.proven.store(false, Ordering::Release);
    }

    /// The operator's word instead of the proof: whatever runs is then protected by nothing but the kill.
    pub fn force(&self) {
        self.forced.store(true, Ordering::Release);
    }

    /// The operator's word is over.
    pub fn end_force(&self) {
        self.forced.store(false, Ordering::Release);
    }

    /// The proof, or the operator's word for it, as long as neither was taken back.
    pub fn proof(&self) -> Option<AllGone> {
        (self.proven.load(Ordering::Acquire) || self.forced.load(Ordering::Acquire)).then_some(AllGone(()))
    }
}

impl Guard {
    pub(super) fn drain(&mut self, now: BootTime, wanted: bool) {
        self.ledger.drained = wanted.then(|| self.ledger.drained.unwrap_or(now));
        self.scan_soon();
    }

    /// The proof, once this node is drained: a whole scan begun after the drain found nothing enforced.
    pub fn all_gone(&self) -> Option<AllGone> {
        let drained = self.ledger.drained?;
        let enforced = self.ledger.domains.values().filter(|entry| !entry.is_held());
        let empty = enforced.into_iter().all(|entry| entry.copies.is_empty() && entry.admission.is_none());
        let seen = self.last_scan().is_some_and(|began| began > drained);
        // safety: starts are refused since the drain, and what was started before it is proven gone (rule 7).
        (self.amnesia.is_none() && seen && empty).then_some(AllGone(()))
    }
}
