//! The node's side of the book: one question renews everything.

use super::book::{Book, MAX_NODES, MAX_TTL, Now, Outcome, Refusal, RefusalKind};
use super::boots::{Asker, stated_bound};
use super::records::{LeavingRecord, Seen, Stamp};
use super::state::{Lease, Listed, Node};
use crate::lease::id::{DomainId, Epoch, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::{
    ClaimEntry, ClaimKind, Claims, MAX_DOMAINS, MAX_NAME, NamedState, Proof, RenewAnswer, RenewRequest, VERSION,
    WatchAnswer,
};
use std::time::Duration;

/// How far above the newest epoch issued a question may name one: a restored backup is that far behind at most, and
/// no node can use the counter up.
const MAX_EPOCH_JUMP: u64 = 1 << 40;

impl Book {
    /// Answers a question. In steady state (known list, unchanged claims) the cost does not grow with the domains.
    pub fn renew(&mut self, now: Now, id: &NodeId, q: RenewRequest) -> Outcome<Result<RenewAnswer, Refusal>> {
        let answer = self.check(id, &q).and_then(|()| self.renew_inner(now, id, q));
        self.finish(answer)
    }

    fn check(&self, id: &NodeId, q: &RenewRequest) -> Result<(), Refusal> {
        let bad = |text: String| Refusal::new(RefusalKind::Bad, text);
        let named = q.list.domains.as_deref().unwrap_or_default();
        let epochs = named.iter().filter_map(|domain| domain.epoch).chain(q.receipts.iter().map(|r| r.epoch));
        let newest = epochs.max().unwrap_or(Epoch(0));
        if q.protocol != VERSION {
            bad(format!("protocol version {} is not spoken here; this authority speaks {VERSION}", q.protocol))
        } else if named.len() > MAX_DOMAINS || q.receipts.len() > MAX_DOMAINS {
            bad(format!("a question names at most {MAX_DOMAINS} domains and carries as many receipts"))
        } else if q.list.digest.is_empty() || q.list.digest.len() > 128 {
            bad("list.digest is 1 to 128 characters".to_owned())
        } else if q.machine.hardware.len() > 256 || q.machine.key.len() > 256 {
            bad("machine.hardware and machine.key are at most 256 characters".to_owned())
        } else if q.ttl_ms == 0 {
            bad("ttl_ms is zero: such a lease would never live".to_owned())
        } else if stated_bound(q).is_some_and(|bound| bound < q.ttl_ms) {
            bad("bound_ms is less than ttl_ms: no copy can be gone before its lease ends".to_owned())
        } else if newest.0 > self.epoch.0.saturating_add(MAX_EPOCH_JUMP) {
            bad(format!("epoch {newest} is not one this authority can have issued (the newest is {})", self.epoch))
        } else if self.doubtful_nodes.contains(id) {
            Refusal::new(
                RefusalKind::InDoubt,
                format!("the authority's disk takes no writes, and what it holds of node {id} is in doubt"),
            )
        } else if !self.nodes.contains_key(id) && self.nodes.len() >= MAX_NODES {
            Refusal::new(RefusalKind::Full, format!("{MAX_NODES} nodes are known already; node {id} is not added"))
        } else {
            Ok(())
        }
    }

    fn renew_inner(&mut self, now: Now, id: &NodeId, q: RenewRequest) -> Result<RenewAnswer, Refusal> {
        // A store restored from a backup must not issue an epoch again that a node has seen already.
        let named = q.list.domains.as_deref().unwrap_or_default();
        let epochs = named.iter().filter_map(|domain| domain.epoch).chain(q.receipts.iter().map(|r| r.epoch));
        self.raise(epochs.max().unwrap_or(Epoch(0)));
        let mut answer = RenewAnswer {
            protocol: VERSION,
            node: id.clone(),
            incarnation: q.incarnation,
            question: q.question,
            ttl_ms: 0,
            authority: self.authority,
            clock_ms: now.at.as_nanos() / 1_000_000,
            list_wanted: false,
            claims: Claims::default(),
            name_next: Vec::new(),
            bound_ms: None,
            conflict: None,
        };
        let newer = match self.admit(now, id, &q) {
            Asker::Newer => true,
            Asker::Again => false,
            // Its answer could reach the node after a newer one's and say less; a newer question is on its way.
            Asker::Older => {
                return Refusal::new(
                    RefusalKind::Conflict,
                    format!("question {} of node {id} is older than one answered already; ask a new one", q.question),
                );
            }
            Asker::Rival(why) => {
                answer.claims.domains = Some(Vec::new());
                answer.conflict = Some(why);
                return Ok(answer);
            }
        };
        self.state(now, id, &q, newer);
        for receipt in &q.receipts {
            self.receipt(now, id, receipt.domain, receipt.epoch);
        }
        let incarnation = q.incarnation;
        if let Some(domains) = q.list.domains {
            self.list(
                id,
                Listed {
                    incarnation,
                    digest: q.list.digest.clone(),
                    number: 0,
                    domains: domains
                        .into_iter()
                        .map(|mut named| {
                            if let Some((cut, _)) = named.name.char_indices().nth(MAX_NAME) {
                                named.name.truncate(cut);
                            }
                            (named.domain, named)
                        })
                        .collect(),
                },
            );
        }
        answer.conflict = self.conflict(now, id);
        let node = self.node_mut(id);
        answer.bound_ms = node.record.seen.as_ref().and_then(|seen| seen.bound_ms);
        let known = node.list.as_ref();
        let Some(list) = known.filter(|list| list.incarnation == incarnation && list.digest == q.list.digest) else {
            answer.list_wanted = true;
            answer.claims.domains = Some(Vec::new());
            answer.name_next = self.hints(id);
            return Ok(answer);
        };
        let (number, fenced) = (list.number, node.record.fenced.is_some());
        self.two_reports(now, id);
        self.hold(now, id, q.bound_ms);
        let version = self.node_mut(id).version;
        let authority = &self.authority.to_string()[..8];
        answer.claims.tag = format!("{authority}-{number}-{version}");
        if q.list.claims_tag.as_ref() != Some(&answer.claims.tag) {
            answer.claims.domains = Some(self.claims(id, answer.conflict.is_some()));
        }
        answer.name_next = self.hints(id);
        if !fenced {
            let ttl = Duration::from_millis(q.ttl_ms).min(MAX_TTL);
            answer.ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            let bound = Duration::from_millis(q.bound_ms.unwrap_or(0));
            let node = self.node_mut(id);
            // Issued counts, delivered or not. An unbounded node is one by its record, whatever stands here.
            node.deadline = node.deadline.max(Some(now.at + bound));
        }
        Ok(answer)
    }

    /// Takes in what the node promises: a larger bound counts at once, a smaller one when nothing under the larger
    /// can be alive any more, and only on a newer question's word.
    fn state(&mut self, now: Now, id: &NodeId, q: &RenewRequest, newer: bool) {
        let stated = stated_bound(q);
        let lag = stated.map(|bound| bound.saturating_sub(q.ttl_ms));
        let node = self.node_mut(id);
        let Some(mut seen) = node.record.seen.clone() else { return };
        let before = seen.bound_ms;
        if wider(lag, seen.lag_ms) {
            // Once this is answered, the node kills that late for every lease it holds, also for those from before,
            // which end by their own ttl no later than what counted so far.
            let counted = before.zip(lag).map(|(counted, lag)| counted.saturating_add(lag).max(lag + q.ttl_ms));
            seen = Seen { bound_ms: counted, ..Seen::of(q) };
            node.deadline = node.deadline.map(|at| at + Duration::from_millis(lag.unwrap_or(0)));
            node.lowering = None;
            self.widen_leaving(id, lag);
        } else if wider(stated, before) {
            seen = Seen::of(q);
            node.lowering = None;
        } else if newer {
            if stated == before {
                node.lowering = None;
            } else if let Some((to, _)) = node.lowering.filter(|(to, at)| *to == stated && *at <= now.at) {
                (seen.bound_ms, seen.stamp) = (to, Stamp::of(q));
                node.lowering = None;
            } else if node.lowering.is_none_or(|(to, _)| to != stated) {
                let at = match before {
                    Some(_) => node.deadline.unwrap_or(now.at),
                    None => full_lapse(now.at, stated),
                };
                node.lowering = Some((stated, at));
            }
            let said = Seen { bound_ms: seen.bound_ms, ..Seen::of(q) };
            // Not for every question: the stamp alone is not worth a write.
            if seen.stamp.incarnation != q.incarnation || seen != (Seen { stamp: seen.stamp, ..said.clone() }) {
                seen = said;
            }
        }
        let node = self.node_mut(id);
        if node.record.seen.as_ref() != Some(&seen) {
            if before != seen.bound_ms {
                let text = |bound: Option<u64>| bound.map_or("none".to_owned(), |ms| format!("{ms} ms"));
                self.log.push(format!("bound node={id} was {}, is {}", text(before), text(seen.bound_ms)));
            }
            self.change_node(id, |record| record.seen = Some(seen));
        }
    }

    /// A revocation that the node has not heard of does not keep it from counting with the larger bound.
    fn widen_leaving(&mut self, id: &NodeId, lag: Option<u64>) {
        for domain in Vec::from_iter(self.node_mut(id).domains.iter().copied()) {
            let leaves = |lease: &Lease| lease.record.leaving.iter().any(|leaving| leaving.node == *id);
            if !self.leases.get(&domain).is_some_and(leaves) {
                continue;
            }
            self.change(domain, |lease| {
                for leaving in lease.record.leaving.iter_mut().filter(|leaving| leaving.node == *id) {
                    let both = leaving.bound_ms.zip(lag);
                    leaving.bound_ms = both.map(|(counted, lag)| counted.saturating_add(lag));
                    if let Some(clock) = lease.clocks.get_mut(&leaving.epoch) {
                        clock.safe_at = clock.safe_at.zip(lag).map(|(at, lag)| at + Duration::from_millis(lag));
                    }
                }
            });
        }
    }

    /// A receipt frees the revoked share it seals, and nothing else: one that is still held stays held.
    fn receipt(&mut self, now: Now, id: &NodeId, domain: DomainId, sealed: Epoch) {
        let Some(lease) = self.leases.get(&domain) else { return };
        let freed = lease.record.leaving.iter().filter(|leaving| leaving.node == *id && leaving.epoch <= sealed);
        for epoch in Vec::from_iter(freed.map(|leaving| leaving.epoch)) {
            self.gone(now, domain, epoch, Proof::Receipt);
        }
    }

    fn list(&mut self, id: &NodeId, mut list: Listed) {
        let number = self.tick();
        let node = self.node_mut(id);
        list.number = match &node.list {
            Some(old) if old.digest == list.digest && old.domains == list.domains => old.number,
            _ => number,
        };
        node.list = Some(list);
    }

    /// Two copies of a migrating domain run when the destination reports it running under its own epoch and the
    /// owner goes on reporting it running. The owner's first question after that report may have been asked before
    /// it; its next one was not. Then the older epoch's copy dies.
    fn two_reports(&mut self, now: Now, id: &NodeId) {
        let Some(stamp) = self.node_mut(id).stamp else { return };
        for domain in Vec::from_iter(self.node_mut(id).watched.iter().copied()) {
            let Some(lease) = self.leases.get(&domain) else { continue };
            let (Some(owner), Some(open)) = (&lease.record.owner, &lease.record.incoming) else { continue };
            let runs = |id: &NodeId, epoch: Option<Epoch>| {
                let named = self.nodes.get(id).and_then(|node| node.list.as_ref()?.domains.get(&domain));
                named.is_some_and(|named| {
                    named.state == NamedState::Running && (epoch.is_none() || named.epoch == epoch)
                })
            };
            let both = runs(id, None) && runs(&open.node, Some(open.epoch));
            let second = lease
                .both_since
                .is_some_and(|first| first.incarnation == stamp.incarnation && first.question < stamp.question);
            if both && second {
                let epoch = owner.epoch;
                let reason = format!("it runs on node {} too, under a newer epoch", open.node);
                self.leave(now, domain, &[epoch], &reason);
            } else if let Some(lease) = self.leases.get_mut(&domain) {
                // Volatile, and in favour of nobody: losing it costs one more pair of reports.
                lease.both_since = both.then_some(stamp);
                if both {
                    // A hint to ask again now: two copies run.
                    self.bump(id);
                }
            }
        }
    }

    /// Which of the named domains no bound covers: true at once, no longer true only when nothing that was answered
    /// before can be alive any more.
    fn hold(&mut self, now: Now, id: &NodeId, bound_ms: Option<u64>) {
        let Book { nodes, leases, .. } = self;
        let Some(node) = nodes.get_mut(id) else { return };
        let Some(list) = &node.list else { return };
        let changed =
            node.hints.as_ref().is_none_or(|(number, version, _)| *number != list.number || *version != node.version);
        if !changed && node.relaxing.is_empty() {
            return;
        }
        let at = full_lapse(now.at, bound_ms);
        let (mut holds, mut frees, mut unbound) = (Vec::new(), Vec::new(), Vec::new());
        for domain in &node.domains {
            let Some(lease) = leases.get(domain) else { continue };
            let held = list.domains.get(domain).map(|named| named.held_on_lapse);
            let leaves = |leaving: &LeavingRecord| leaving.node == *id && leaving.bound_ms.is_some();
            if held == Some(true) && lease.record.leaving.iter().any(leaves) {
                unbound.push(*domain);
            }
            let mut shares = lease.record.owner.iter().chain(&lease.record.incoming);
            let Some(share) = shares.find(|share| share.node == *id) else { continue };
            match held {
                Some(true) => {
                    node.relaxing.remove(domain);
                    if !share.held {
                        holds.push((*domain, true));
                    }
                }
                Some(false) if share.held => {
                    if *node.relaxing.entry(*domain).or_insert(at) <= now.at {
                        frees.push((*domain, false));
                    }
                }
                _ => drop(node.relaxing.remove(domain)),
            }
        }
        // Its revocation may not reach the node, and then it is held there.
        for domain in unbound {
            self.change(domain, |lease| {
                for leaving in lease.record.leaving.iter_mut().filter(|leaving| leaving.node == *id) {
                    leaving.bound_ms = None;
                    if let Some(clock) = lease.clocks.get_mut(&leaving.epoch) {
                        clock.safe_at = None;
                    }
                }
            });
        }
        for (domain, held) in holds.into_iter().chain(frees) {
            self.node_mut(id).relaxing.remove(&domain);
            self.change(domain, |lease| {
                let shares = lease.record.owner.iter_mut().chain(&mut lease.record.incoming);
                shares.filter(|share| share.node == *id).for_each(|share| share.held = held);
            });
        }
    }

    fn claims(&mut self, id: &NodeId, conflict: bool) -> Vec<ClaimEntry> {
        let Some(node) = self.nodes.get(id) else { return Vec::new() };
        let Some(list) = &node.list else { return Vec::new() };
        let mut entries = Vec::with_capacity(list.domains.len());
        for domain in list.domains.keys().filter(|domain| !self.doubtful_leases.contains(domain)) {
            let entry = claim(id, node, *domain, self.leases.get(domain), self.epoch, conflict);
            // From here on the node may act on it, whether this answer arrives or not.
            if entry.claim != ClaimKind::Deny
                && let Some(lease) = self.leases.get_mut(domain)
            {
                lease.unclaimed.retain(|epoch| *epoch != entry.epoch);
            }
            entries.push(entry);
        }
        entries.sort_unstable_by_key(|entry| entry.domain);
        entries
    }

    /// The domains that a node has shares of and does not name.
    fn hints(&mut self, id: &NodeId) -> Vec<DomainId> {
        let Some(node) = self.nodes.get_mut(id) else { return Vec::new() };
        let key = (node.list.as_ref().map_or(0, |list| list.number), node.version);
        if let Some((number, version, hints)) = &node.hints
            && (*number, *version) == key
        {
            return hints.clone();
        }
        let named = |domain: &&DomainId| node.list.as_ref().is_some_and(|list| list.domains.contains_key(domain));
        let hints: Vec<_> = node.domains.iter().filter(|domain| !named(domain)).take(MAX_DOMAINS).copied().collect();
        node.hints = Some((key.0, key.1, hints.clone()));
        hints
    }

    /// Where a node's watch stands. The driver answers it when the version differs from the one the node has seen.
    pub fn watch(&mut self, id: &NodeId) -> WatchAnswer {
        let version = self.nodes.get(id).map_or(0, |node| node.version);
        WatchAnswer { version, name_next: self.hints(id) }
    }
}

/// When every lease given before `now`, by whatever answer, has ended and a node that promises `bound_ms` from now on
/// has killed what ran under it.
fn full_lapse(now: BootTime, bound_ms: Option<u64>) -> BootTime {
    bound_ms.map_or(BootTime::NEVER, |bound| now + MAX_TTL + Duration::from_millis(bound))
}

/// No bound is the widest.
fn wider(a: Option<u64>, b: Option<u64>) -> bool {
    match (a, b) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(a), Some(b)) => a > b,
    }
}

fn claim(id: &NodeId, node: &Node, domain: DomainId, lease: Option<&Lease>, newest: Epoch, hold: bool) -> ClaimEntry {
    let entry = |claim, epoch| ClaimEntry { domain, claim, epoch, owner: None, since: None, reason: None };
    // A denial names the newest epoch ever issued, so its receipt seals all there were.
    let deny = |owner: Option<NodeId>, since: Option<&String>, reason: String| ClaimEntry {
        owner,
        since: since.cloned(),
        reason: Some(reason),
        ..entry(ClaimKind::Deny, newest)
    };
    if let Some(since) = &node.record.fenced {
        return deny(None, Some(since), "node is fenced".to_owned());
    }
    let Some(lease) = lease else { return deny(None, None, "never granted".to_owned()) };
    let record = &lease.record;
    if let Some(share) = record.owner.as_ref().filter(|share| share.node == *id) {
        // While a migration is open the source runs on and starts nothing: after the cut-over its copy is gone, and a
        // start before `moved` would be a second one.
        let held = hold || record.incoming.is_some();
        return entry(if held { ClaimKind::Hold } else { ClaimKind::Allow }, share.epoch);
    }
    if let Some(share) = record.incoming.as_ref().filter(|share| share.node == *id) {
        return entry(if hold { ClaimKind::Hold } else { ClaimKind::Incoming }, share.epoch);
    }
    let owner = record.owner.as_ref().or(record.incoming.as_ref());
    if let Some(leaving) = record.leaving.iter().find(|leaving| leaving.node == *id) {
        return deny(owner.map(|share| share.node.clone()), Some(&leaving.since), leaving.reason.clone());
    }
    match (owner, record.leaving.first(), &record.then) {
        (Some(share), ..) => {
            deny(Some(share.node.clone()), Some(&share.since), format!("owned by node {}", share.node))
        }
        (None, Some(leaving), _) => {
            deny(None, Some(&leaving.since), format!("revoked on node {} and not proven gone there", leaving.node))
        }
        (None, None, Some(to)) => deny(None, None, format!("waiting for node {to} to be unfenced")),
        (None, None, None) => deny(None, None, "owned by no node".to_owned()),
    }
}
