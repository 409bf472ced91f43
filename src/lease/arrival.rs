//! The end of a strict live migration: a copy that came paused is resumed by its own guard, once this node owns it.
//!
//! No hook fires at cut-over, and libvirt resumes the source by itself when the destination's last word is lost. So the
//! order is not libvirt's: the destination waits, paused, until the authority says `allow` under its epoch, which it
//! says only when the source's copy is proven gone (docs/protocol.md, `moved`).

use super::event::{Action, CopyState, Severity};
use super::guard::Guard;
use super::ledger::{Copy, Entry, Right, label};
use super::time::BootTime;

impl Guard {
    /// Resumes every arrived copy that this node owns by now, again after an interval if it still does not run.
    pub(super) fn resume_arrived(&mut self, now: BootTime) {
        let timing = &self.policy.timing;
        let mut due = Vec::new();
        for (&id, entry) in &mut self.ledger.domains {
            let Some(until) = may_run(entry).map(|expires| timing.lapse(expires)).filter(|&until| now < until) else {
                continue;
            };
            for copy in entry.copies.iter_mut().filter(|copy| waits(copy)) {
                let Some(arriving) = &mut copy.arriving else { continue };
                if arriving.resume_asked.is_none_or(|asked| now >= asked + timing.renew) {
                    let first = arriving.resume_asked.replace(now).is_none();
                    due.push((id, entry.name.clone(), copy.process.pid, first, until.min(now + timing.renew)));
                }
            }
        }
        for (domain, name, pid, first, by) in due {
            if first {
                let who = label(&name, domain);
                let text = format!(
                    "domain {who}, process {pid}, came by live migration and is this node's now: libvirt is asked to resume it"
                );
                self.tell(Severity::Info, text);
            }
            // safety: `allow` under the epoch this copy came under: the source's copy is proven gone.
            self.actions.push(Action::Resume { domain, name, by });
        }
    }

    /// When the next resume of this domain is due.
    pub(super) fn resume_at(&self, entry: &Entry) -> Option<BootTime> {
        may_run(entry)?;
        let asked = entry.copies.iter().filter(|copy| waits(copy)).filter_map(|copy| copy.arriving.as_ref());
        asked.filter_map(|arriving| Some(arriving.resume_asked? + self.policy.timing.renew)).min()
    }
}

/// The end of the lease under which a copy may run, and not only come.
fn may_run(entry: &Entry) -> Option<BootTime> {
    entry.lease.as_ref().filter(|lease| lease.right == Right::Own).map(|lease| lease.expires)
}

/// Only a copy that came by live migration and has never run here: what an operator paused stays paused.
fn waits(copy: &Copy) -> bool {
    copy.arriving.is_some() && copy.state == CopyState::Paused && copy.dying.is_none()
}
