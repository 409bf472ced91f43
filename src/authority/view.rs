//! What the book shows to a controller.

use super::book::{Book, Now, Refusal, RefusalKind};
use super::records::{LeavingRecord, ShareRecord};
use super::state::Node;
use crate::lease::id::{DomainId, Epoch, NodeId};
use crate::lease::time::BootTime;
use crate::protocol::{
    LeaseList, LeaseState, LeaseView, LeavingView, NodeList, NodeView, ProofView, ShareView, WaitAnswer, WaitedFor,
};
use std::ops::Bound;
use std::time::Duration;

impl Book {
    /// One lease.
    pub fn lease(&self, now: Now, domain: DomainId) -> Result<LeaseView, Refusal> {
        let Some(lease) = self.leases.get(&domain) else {
            return Refusal::new(
                RefusalKind::Unknown,
                format!("no lease of {domain} is kept here: it was never granted, or forgotten"),
            );
        };
        let record = &lease.record;
        let state = match (&record.owner, record.leaving.is_empty()) {
            (Some(_), _) => LeaseState::Held,
            (None, false) => LeaseState::Revoking,
            (None, true) => LeaseState::Free,
        };
        let share = |share: &ShareRecord| ShareView {
            node: share.node.clone(),
            epoch: share.epoch,
            since: share.since.clone(),
            reported: self
                .nodes
                .get(&share.node)
                .and_then(|node| node.list.as_ref()?.domains.get(&domain))
                .map(|named| named.state),
        };
        let leaving = record.leaving.iter().map(|leaving| self.leaving(now.at, domain, leaving));
        Ok(LeaseView {
            domain,
            name: self.name_of(domain),
            state,
            owner: record.owner.as_ref().map(share),
            incoming: record.incoming.as_ref().map(share),
            leaving: leaving.collect(),
            then: record.then.clone(),
            last_proof: record.last_proof.as_ref().map(|proof| ProofView {
                node: proof.node.clone(),
                epoch: proof.epoch,
                proof: proof.proof,
                after_ms: proof.after_ms,
            }),
        })
    }

    /// The leases after `after`, at most `limit`, those of one name only if a name is given.
    #[must_use]
    pub fn leases(&self, now: Now, after: Option<DomainId>, limit: usize, name: Option<&str>) -> LeaseList {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let ids = self.leases.range((from, Bound::Unbounded)).map(|(domain, _)| *domain);
        let mut ids = ids.filter(|domain| name.is_none_or(|name| self.name_of(*domain) == name)).peekable();
        let leases: Vec<_> = ids.by_ref().take(limit).filter_map(|domain| self.lease(now, domain).ok()).collect();
        let next = ids.peek().and(leases.last()).map(|lease| lease.domain);
        LeaseList { leases, next }
    }

    /// One node.
    pub fn node(&self, now: Now, id: &NodeId) -> Result<NodeView, Refusal> {
        match self.nodes.get(id) {
            Some(node) => Ok(self.node_view(now, id, node)),
            None => Refusal::new(
                RefusalKind::Unknown,
                format!("node {id} is not known here: it never asked, and nothing was granted to it"),
            ),
        }
    }

    /// The nodes after `after`, at most `limit`.
    #[must_use]
    pub fn nodes(&self, now: Now, after: Option<&NodeId>, limit: usize) -> NodeList {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut all = self.nodes.range::<NodeId, _>((from, Bound::Unbounded)).peekable();
        let nodes: Vec<_> = all.by_ref().take(limit).map(|(id, node)| self.node_view(now, id, node)).collect();
        let next = all.peek().and(nodes.last()).map(|node| node.node.clone());
        NodeList { nodes, next }
    }

    /// Whether every revoked copy of a domain is gone.
    pub fn wait_lease(&self, now: Now, domain: DomainId) -> Result<WaitAnswer, Refusal> {
        let lease = self.lease(now, domain)?;
        let leaving = lease.leaving.into_iter();
        Ok(waited(leaving.map(|share| WaitedFor { domain, name: lease.name.clone(), share }).collect()))
    }

    /// Whether every revoked copy on a node is gone.
    pub fn wait_node(&self, now: Now, id: &NodeId) -> Result<WaitAnswer, Refusal> {
        self.node(now, id)?;
        let shares = self.leaving_on(id).map(|(domain, leaving)| WaitedFor {
            domain,
            name: self.name_of(domain),
            share: self.leaving(now.at, domain, leaving),
        });
        Ok(waited(shares.collect()))
    }

    /// True: [`Book::wait_node`] would say safe. Costs less.
    #[must_use]
    pub fn is_clear(&self, id: &NodeId) -> bool {
        self.leaving_on(id).next().is_none()
    }

    fn leaving_on(&self, id: &NodeId) -> impl Iterator<Item = (DomainId, &LeavingRecord)> {
        let domains = self.nodes.get(id).into_iter().flat_map(|node| &node.domains);
        let leases = domains.filter_map(|domain| Some((*domain, self.leases.get(domain)?)));
        leases.flat_map(move |(domain, lease)| {
            let leaving = lease.record.leaving.iter().filter(move |leaving| leaving.node == *id);
            leaving.map(move |leaving| (domain, leaving))
        })
    }

    fn leaving(&self, now: BootTime, domain: DomainId, leaving: &LeavingRecord) -> LeavingView {
        LeavingView {
            node: leaving.node.clone(),
            epoch: leaving.epoch,
            since: leaving.since.clone(),
            safe_in_ms: self.safe_at(domain, leaving.epoch).map(|at| millis_up(at.left(now))),
            node_silent_ms: self.silent(now, &leaving.node).map(|span| span.as_millis() as u64),
        }
    }

    fn safe_at(&self, domain: DomainId, epoch: Epoch) -> Option<BootTime> {
        self.leases.get(&domain)?.clocks.get(&epoch)?.safe_at
    }

    fn silent(&self, now: BootTime, id: &NodeId) -> Option<Duration> {
        Some(now.since(self.nodes.get(id)?.last?.at))
    }

    fn node_view(&self, now: Now, id: &NodeId, node: &Node) -> NodeView {
        let owned = |domain: &&DomainId| {
            let owner = self.leases.get(domain).and_then(|lease| lease.record.owner.as_ref());
            owner.is_some_and(|share| share.node == *id)
        };
        let seen = node.record.seen.as_ref();
        NodeView {
            node: id.clone(),
            silent_ms: self.silent(now.at, id).map(|span| span.as_millis() as u64),
            bound_ms: seen.and_then(|seen| seen.bound_ms),
            mode: seen.map(|seen| seen.mode),
            boot_id: seen.map(|seen| seen.boot),
            fenced: node.record.fenced.is_some(),
            owns: node.domains.iter().filter(owned).count(),
            leaving: self.leaving_on(id).count(),
            conflict: node
                .rival
                .as_ref()
                .filter(|rival| now.at.since(rival.at) < super::boots::CONFLICT_MEMORY)
                .map(|rival| rival.why.clone()),
        }
    }
}

fn waited(leaving: Vec<WaitedFor>) -> WaitAnswer {
    let bounds: Option<Vec<u64>> = leaving.iter().map(|wait| wait.share.safe_in_ms).collect();
    WaitAnswer { safe: leaving.is_empty(), safe_in_ms: bounds.and_then(|all| all.into_iter().max()), leaving }
}

/// Rounded up: "in 0 ms" must mean now.
fn millis_up(span: Duration) -> u64 {
    span.as_nanos().div_ceil(1_000_000) as u64
}
