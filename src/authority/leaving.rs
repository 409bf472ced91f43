//! From when a revoked copy is gone, and what waits for that.

use super::book::{Book, Now};
use super::records::{LeavingRecord, ProofRecord, ShareRecord};
use super::state::{Clock, Exit};
use crate::lease::id::{DomainId, Epoch, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::Proof;
use std::time::Duration;

impl Book {
    /// From when a share counts as gone if it is revoked now: answers before this instant may have renewed it, later
    /// ones do not. `unclaimed`: this very process granted it, and no answer has carried it.
    pub(super) fn exit_of(&self, share: &ShareRecord, unclaimed: bool, now: BootTime) -> Exit {
        let Some(node) = self.nodes.get(&share.node) else { return Exit::Gone(Proof::NeverClaimed) };
        // The machine is durable before the first answer to it: where none is, there was no answer.
        let Some(seen) = &node.record.seen else { return Exit::Gone(Proof::NeverClaimed) };
        match seen.bound_ms {
            _ if unclaimed => Exit::Gone(Proof::NeverClaimed),
            Some(bound_ms) if !share.held => Exit::Bound { at: node.deadline.unwrap_or(now).max(now), bound_ms },
            _ => Exit::Receipt,
        }
    }

    /// Revokes shares of a lease, all in one step: they are leaving from now on, and what they are proven by is fixed.
    pub(super) fn leave(&mut self, now: Now, domain: DomainId, epochs: &[Epoch], reason: &str) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let shares = lease.record.owner.iter().chain(&lease.record.incoming);
        let exits: Vec<(ShareRecord, Exit)> = shares
            .filter(|share| epochs.contains(&share.epoch))
            .map(|share| (share.clone(), self.exit_of(share, lease.unclaimed.contains(&share.epoch), now.at)))
            .collect();
        let name = self.name_of(domain);
        for (share, exit) in &exits {
            let ShareRecord { node, epoch, .. } = share;
            let safe = match exit {
                Exit::Gone(_) => "safe at once".to_owned(),
                Exit::Bound { at, .. } => format!("safe in {} ms", at.left(now.at).as_millis()),
                Exit::Receipt => "no bound covers it, only a receipt".to_owned(),
            };
            self.log.push(format!("revoke domain={domain} name={name:?} node={node} epoch={epoch}: {reason}; {safe}"));
        }
        self.change(domain, |lease| {
            lease.record.name = name;
            lease.both_since = None;
            for side in [&mut lease.record.owner, &mut lease.record.incoming] {
                side.take_if(|share| epochs.contains(&share.epoch));
            }
            for (ShareRecord { node, epoch, .. }, exit) in &exits {
                let (safe_at, bound_ms) = match *exit {
                    Exit::Bound { at, bound_ms } => (Some(at), Some(bound_ms)),
                    Exit::Gone(_) => (Some(now.at), Some(0)),
                    Exit::Receipt => (None, None),
                };
                lease.unclaimed.retain(|unclaimed| unclaimed != epoch);
                lease.clocks.insert(*epoch, Clock { revoked: now.at, safe_at });
                lease.record.leaving.push(LeavingRecord {
                    node: node.clone(),
                    epoch: *epoch,
                    since: now.wall.to_owned(),
                    reason: reason.to_owned(),
                    bound_ms,
                });
            }
        });
        for (share, exit) in exits {
            if let Exit::Gone(proof) = exit {
                self.gone(now, domain, share.epoch, proof);
            }
        }
    }

    /// A leaving share is proven gone.
    pub(super) fn gone(&mut self, now: Now, domain: DomainId, epoch: Epoch, proof: Proof) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let Some(leaving) = lease.record.leaving.iter().find(|leaving| leaving.epoch == epoch) else { return };
        let after = lease.clocks.get(&epoch).map_or(Duration::ZERO, |clock| now.at.since(clock.revoked));
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let node = leaving.node.clone();
        self.log.push(format!(
            "gone domain={domain} name={:?} node={node} epoch={epoch} proof={proof:?} after_ms={after_ms}",
            lease.record.name
        ));
        self.change(domain, |lease| {
            lease.record.leaving.retain(|leaving| leaving.epoch != epoch);
            lease.clocks.remove(&epoch);
            lease.record.last_proof = Some(ProofRecord { node, epoch, proof, after_ms });
        });
        self.settle(now, domain);
    }

    /// Completes what waits for the last revoked copy: a finished migration, a move, a removal. Nothing is granted
    /// here while anything is leaving.
    pub(super) fn settle(&mut self, now: Now, domain: DomainId) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let record = &lease.record;
        if !record.leaving.is_empty() || record.owner.is_some() {
            return;
        }
        if let Some(share) = &record.incoming {
            self.log.push(format!(
                "moved domain={domain} name={:?} node={} epoch={}",
                record.name, share.node, share.epoch
            ));
            self.change(domain, |lease| {
                lease.record.owner = lease.record.incoming.take();
                lease.both_since = None;
            });
        } else if let Some(to) = record.then.clone() {
            // A fenced node is granted nothing: the move waits for `unfence`, or for another decision.
            if self.nodes.get(&to).is_none_or(|node| node.record.fenced.is_none()) {
                let share = self.share(now, domain, &to, "grant");
                self.change(domain, |lease| {
                    lease.unclaimed.push(share.epoch);
                    lease.record.owner = Some(share);
                    lease.record.then = None;
                });
            }
        } else if record.forget {
            self.log.push(format!("forget domain={domain} name={:?}", record.name));
            self.remove(domain);
        }
    }

    /// A new share under a new epoch, not yet in the lease.
    pub(super) fn share(&mut self, now: Now, domain: DomainId, node: &NodeId, what: &str) -> ShareRecord {
        let epoch = self.draw();
        let name = self.leases.get(&domain).map_or("", |lease| &lease.record.name);
        self.log.push(format!("{what} domain={domain} name={name:?} node={node} epoch={epoch}"));
        ShareRecord { node: node.clone(), epoch, since: now.wall.to_owned(), held: false }
    }
}
