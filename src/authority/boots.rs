//! Whose word counts as a node's: one boot of one machine at a time.
//!
//! A new boot id is a receipt for all the old boot had only if it is the same machine; two hosts with one node id
//! (cloned images) would otherwise free each other's domains. Until that is shown, or the old boot has been silent
//! for its bound, or an operator says so, the newcomer is renewed nothing and the old boot starts nothing.

use super::book::{Book, Now, Outcome, Refusal, RefusalKind, short};
use super::records::{Seen, Stamp};
use super::state::Heard;
use crate::lease::id::{BootId, Epoch, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::{Machine, Mode, NodeView, Proof, RenewRequest};
use std::cmp::Ordering;
use std::time::Duration;

/// How long a conflict lasts after its last question: the other host was turned off, or there was none and the
/// question was an old one delayed.
pub const CONFLICT_MEMORY: Duration = Duration::from_secs(60);
/// The longest that a question is under way: the server gives a connection three times 10 s to say it. A question of
/// the boot before the accepted one, never heard before, would otherwise pass for a newer boot's.
pub const LONGEST_WAY: Duration = Duration::from_secs(30);
/// Boots remembered per node.
const RETIRED: usize = 8;
/// Guard processes remembered per boot.
const FORMER: usize = 16;

/// A boot that asks as a node and is not accepted as it.
#[derive(Debug, Clone, Hash)]
pub(super) struct Rival {
    pub seen: Seen,
    pub at: BootTime,
    pub why: String,
}

/// The boot before the accepted one, as far as this process heard it.
#[derive(Debug, Clone, Hash)]
pub(super) struct Retired {
    boot: BootId,
    last: Heard,
    stamp: Stamp,
    /// What it asked before this instant was asked before it ended.
    ended: BootTime,
}

/// Who asks.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Asker {
    /// The node, with a question newer than any before.
    Newer,
    /// The node, with the newest question once more.
    Again,
    /// The node, or what it was before its last boot, with an older question.
    Older,
    /// Another boot. The clause says why it is not believed.
    Rival(String),
}

impl Seen {
    /// What a question says of its node.
    pub(super) fn of(q: &RenewRequest) -> Seen {
        Seen {
            boot: q.boot_id,
            machine: q.machine.clone(),
            mode: q.mode,
            bound_ms: stated_bound(q),
            lag_ms: stated_bound(q).map(|bound| bound.saturating_sub(q.ttl_ms)),
            stamp: Stamp::of(q),
        }
    }
}

impl Stamp {
    pub(super) fn of(q: &RenewRequest) -> Stamp {
        Stamp { incarnation: q.incarnation, question: q.question, uptime_ms: q.uptime_ms }
    }
}

/// The bound a question promises; an observing node kills nothing and promises none.
pub(super) fn stated_bound(q: &RenewRequest) -> Option<u64> {
    q.bound_ms.filter(|_| q.mode == Mode::Enforce)
}

impl Book {
    /// Decides who asks, and takes a new boot or guard process in if it is proven.
    pub(super) fn admit(&mut self, now: Now, id: &NodeId, q: &RenewRequest) -> Asker {
        let Some(seen) = self.node_mut(id).record.seen.clone() else {
            self.log.push(format!("node={id} boot={} asks for the first time", short(q.boot_id)));
            self.change_node(id, |record| record.seen = Some(Seen::of(q)));
            self.node_mut(id).accepted = now.at;
            self.take_in(now, id, q);
            return Asker::Newer;
        };
        if seen.boot == q.boot_id {
            return match self.order(id, q) {
                Ordering::Less => Asker::Older,
                Ordering::Equal => Asker::Again,
                Ordering::Greater => {
                    self.take_in(now, id, q);
                    Asker::Newer
                }
            };
        }
        let heard = self.node_mut(id).last.map_or(self.heard_before, |last| last.at);
        let retired = self.node_mut(id).record.retired.contains(&q.boot_id);
        if retired && self.asked_before_it_ended(now, id, q) {
            return Asker::Older;
        }
        let began_after = Duration::from_millis(q.uptime_ms) <= now.at.since(heard);
        let settled = now.at.since(self.node_mut(id).accepted) >= LONGEST_WAY;
        if !retired && settled && began_after && shown(&seen.machine, &q.machine) {
            self.accept_boot(now, id, Seen::of(q), Some(Proof::Reboot));
        } else if self.silent_for_its_bound(now, id) {
            self.accept_boot(now, id, Seen::of(q), None);
        } else {
            let why = self.why_not(id, &seen, q, began_after, now.at.since(heard));
            self.note_rival(now, id, q, &why);
            return Asker::Rival(why);
        }
        self.take_in(now, id, q);
        Asker::Newer
    }

    /// The conflict in force, if any, for the accepted boot's own answers.
    pub(super) fn conflict(&mut self, now: Now, id: &NodeId) -> Option<String> {
        let node = self.node_mut(id);
        if node.rival.take_if(|rival| now.at.since(rival.at) >= CONFLICT_MEMORY).is_some() {
            self.log.push(format!("conflict over node={id}: the other boot fell silent"));
            self.bump(id);
        }
        self.node_mut(id).rival.as_ref().map(|rival| rival.why.clone())
    }

    /// An operator's word that the boot accepted so far is off: the one that asks is the node from now on, and
    /// nothing of the old one runs any more.
    pub fn accept(&mut self, now: Now, id: &NodeId) -> Outcome<Result<NodeView, Refusal>> {
        let rival = self.nodes.get_mut(id).and_then(|node| node.rival.take());
        let answer = match rival {
            Some(rival) if now.at.since(rival.at) < CONFLICT_MEMORY => {
                self.accept_boot(now, id, rival.seen, Some(Proof::Operator));
                self.node(now, id)
            }
            _ => Refusal::new(
                RefusalKind::Conflict,
                format!("nothing is to be accepted: no second machine asked as node {id} in the last minute"),
            ),
        };
        self.finish(answer)
    }

    fn order(&mut self, id: &NodeId, q: &RenewRequest) -> Ordering {
        let node = self.node_mut(id);
        let Some(stamp) = node.stamp else { return Ordering::Greater };
        if stamp.incarnation == q.incarnation {
            q.question.cmp(&stamp.question)
        } else if node.former.contains(&q.incarnation) || q.uptime_ms < stamp.uptime_ms {
            // BOOTTIME orders the guard processes of one boot, also across this process's own restart.
            Ordering::Less
        } else {
            Ordering::Greater
        }
    }

    fn take_in(&mut self, now: Now, id: &NodeId, q: &RenewRequest) {
        let node = self.node_mut(id);
        if let Some(before) = node.stamp.filter(|stamp| stamp.incarnation != q.incarnation) {
            node.former.push_back(before.incarnation);
            if node.former.len() > FORMER {
                node.former.pop_front();
            }
            node.list = None;
        }
        node.stamp = Some(Stamp::of(q));
        node.last = Some(Heard { at: now.at, uptime_ms: q.uptime_ms });
    }

    /// True: nothing the accepted boot was ever answered can keep a copy alive at `now`.
    fn silent_for_its_bound(&self, now: Now, id: &NodeId) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        let bounded = node.record.seen.as_ref().is_some_and(|seen| seen.bound_ms.is_some());
        bounded
            && node.deadline.is_none_or(|deadline| deadline <= now.at)
            && node.domains.iter().filter_map(|domain| self.leases.get(domain)).all(|lease| {
                let held = lease.record.owner.iter().chain(&lease.record.incoming);
                held.filter(|share| share.node == *id).all(|share| !share.held)
                    && lease.record.leaving.iter().all(|leaving| leaving.node != *id)
            })
    }

    fn accept_boot(&mut self, now: Now, id: &NodeId, seen: Seen, proof: Option<Proof>) {
        let began = now.at - Duration::from_millis(seen.stamp.uptime_ms);
        self.log.push(format!(
            "node={id} boot={} accepted: {}",
            short(seen.boot),
            match proof {
                Some(Proof::Reboot) => "the same machine, booted again",
                Some(_) => "by an operator, who says that the old boot is off",
                None => "the old boot was silent for its bound",
            }
        ));
        let old = self.node_mut(id).record.seen.as_ref().map(|seen| seen.boot);
        self.change_node(id, |record| {
            record.retired.retain(|boot| *boot != seen.boot);
            record.retired.extend(old);
            let excess = record.retired.len().saturating_sub(RETIRED);
            record.retired.drain(..excess);
            record.seen = Some(seen);
        });
        let node = self.node_mut(id);
        // By reboot the old boot ended where the new one began; else only what was asked before it fell silent is old.
        node.retired = old.zip(node.last).zip(node.stamp).map(|((boot, last), stamp)| Retired {
            boot,
            last,
            stamp,
            ended: if proof == Some(Proof::Reboot) { began } else { last.at },
        });
        node.accepted = now.at;
        node.last = None;
        node.stamp = None;
        node.former.clear();
        node.list = None;
        node.deadline = None;
        node.lowering = None;
        node.relaxing.clear();
        node.rival = None;
        let domains: Vec<_> = node.domains.iter().copied().collect();
        self.bump(id);
        for domain in domains {
            self.change(domain, |lease| {
                let shares = lease.record.owner.iter_mut().chain(&mut lease.record.incoming);
                shares.filter(|share| share.node == *id).for_each(|share| share.held = false);
            });
            let leaving = self.leases[&domain].record.leaving.iter().filter(|leaving| leaving.node == *id);
            for epoch in Vec::<Epoch>::from_iter(leaving.map(|leaving| leaving.epoch)) {
                if let Some(proof) = proof {
                    self.gone(now, domain, epoch, proof);
                }
            }
        }
    }

    fn asked_before_it_ended(&mut self, now: Now, id: &NodeId, q: &RenewRequest) -> bool {
        let Some(retired) = self.node_mut(id).retired.as_ref().filter(|retired| retired.boot == q.boot_id) else {
            return false;
        };
        if retired.stamp.incarnation == q.incarnation && q.question <= retired.stamp.question {
            return true;
        }
        let later = Duration::from_millis(q.uptime_ms.saturating_sub(retired.last.uptime_ms));
        (retired.last.at + later).min(now.at) <= retired.ended
    }

    fn note_rival(&mut self, now: Now, id: &NodeId, q: &RenewRequest, why: &str) {
        let node = self.node_mut(id);
        let known = node.rival.as_ref().is_some_and(|rival| rival.seen.boot == q.boot_id);
        node.rival = Some(Rival { seen: Seen::of(q), at: now.at, why: why.to_owned() });
        if !known {
            self.log.push(format!("conflict over node={id}: {why}"));
            self.bump(id);
        }
    }

    fn why_not(&self, id: &NodeId, seen: &Seen, q: &RenewRequest, began_after: bool, silent: Duration) -> String {
        let (old, new) = (short(seen.boot), short(q.boot_id));
        let cause = if seen.machine != q.machine {
            "another machine".to_owned()
        } else if q.machine.hardware.is_empty() || q.machine.key.is_empty() {
            "a machine that cannot show which it is (no hardware uuid, or no key)".to_owned()
        } else if !began_after {
            format!("a boot that began before boot {old} was last heard")
        } else if self.nodes.get(id).is_some_and(|node| node.record.retired.contains(&q.boot_id)) {
            "a boot that this node had before".to_owned()
        } else {
            format!("another boot within {} s", LONGEST_WAY.as_secs())
        };
        let last = silent.as_secs();
        format!(
            "{cause} asks as node {id} (boot {new}) beside boot {old}, last heard {last} s ago: turn one of them off, \
             or give it a node id of its own; if boot {old} is off for good, 'leasehold node accept {id}'"
        )
    }
}

/// True: proven to be the same machine.
fn shown(old: &Machine, new: &Machine) -> bool {
    old == new && !new.hardware.is_empty() && !new.key.is_empty()
}
