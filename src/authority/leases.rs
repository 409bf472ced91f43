//! The controller's side of the book: grant, revoke, move, and what a migration needs.

use super::book::{Book, MAX_LEASES, Now, Outcome, Refusal, RefusalKind};
use super::records::LeaseRecord;
use crate::lease::id::{DomainId, Epoch, NodeId};
use crate::protocol::{GrantRequest, LeaseView, MAX_NAME};

type Answer = Outcome<Result<LeaseView, Refusal>>;

impl Book {
    /// Grants a domain to a node, or opens a migration of a domain the node owns. Refused while another node owns
    /// it or anything is leaving. To the present owner again: nothing changes, and it succeeds under the same epoch.
    pub fn grant(&mut self, now: Now, domain: DomainId, request: &GrantRequest) -> Answer {
        let answer = self.grant_inner(now, domain, request).and_then(|()| self.lease(now, domain));
        self.finish(answer)
    }

    fn grant_inner(&mut self, now: Now, domain: DomainId, request: &GrantRequest) -> Result<(), Refusal> {
        let GrantRequest { node, incoming, name } = request;
        if incoming.as_ref() == Some(node) {
            return bad(format!("node {node} cannot be both owner and destination of the migration of {domain}"));
        }
        for id in incoming.iter().chain([node]) {
            self.not_fenced(id)?;
        }
        let record = match self.leases.get(&domain) {
            Some(lease) => lease.record.clone(),
            None if self.leases.len() >= MAX_LEASES => {
                return Refusal::new(
                    RefusalKind::Full,
                    format!("{MAX_LEASES} leases are kept already, the most this authority keeps; forget some"),
                );
            }
            None => LeaseRecord::default(),
        };
        let owned = match &record.owner {
            Some(owner) if owner.node == *node => true,
            Some(owner) => {
                return conflict(format!(
                    "{domain} is owned by node {} since {}, epoch {}; move it, or revoke it and wait",
                    owner.node, owner.since, owner.epoch
                ));
            }
            None => false,
        };
        let same = |share: &Option<_>, id: &NodeId| {
            share.as_ref().is_some_and(|share: &super::records::ShareRecord| share.node == *id)
        };
        let opens = incoming.as_ref().filter(|to| !same(&record.incoming, to));
        if !owned || opens.is_some() {
            self.nothing_leaves(domain, &record)?;
        }
        if let (Some(to), Some(open)) = (opens, &record.incoming) {
            return conflict(format!(
                "{domain} is being migrated to node {} already; abort that before naming node {to}",
                open.node
            ));
        }
        if !owned {
            self.room_on(node)?;
        }
        if let Some(to) = opens {
            self.room_on(to)?;
        }
        self.change(domain, |lease| {
            if let Some(name) = name {
                lease.record.name = name.chars().take(MAX_NAME).collect();
            }
        });
        let owner = (!owned).then(|| self.share(now, domain, node, "grant"));
        let open = opens.map(|to| self.share(now, domain, to, "incoming"));
        self.change(domain, |lease| {
            lease.record.forget = false;
            lease.record.then = None;
            lease.unclaimed.extend(owner.iter().chain(&open).map(|share| share.epoch));
            lease.record.owner = owner.or(lease.record.owner.take());
            lease.record.incoming = open.or(lease.record.incoming.take());
        });
        Ok(())
    }

    /// Revokes a domain everywhere: while a migration is open, gone means gone on both nodes. Cancels a move.
    pub fn revoke(&mut self, now: Now, domain: DomainId) -> Answer {
        let answer = self.known(domain).and_then(|record| {
            if record.then.is_some() {
                self.change(domain, |lease| lease.record.then = None);
            }
            self.leave(now, domain, &epochs(&record), "revoked");
            self.lease(now, domain)
        });
        self.finish(answer)
    }

    /// Revokes a domain everywhere and grants it to `to` as soon as every copy is gone, across restarts. To the
    /// present owner: nothing changes.
    pub fn move_to(&mut self, now: Now, domain: DomainId, to: &NodeId) -> Answer {
        let answer = self.move_inner(now, domain, to).and_then(|()| self.lease(now, domain));
        self.finish(answer)
    }

    fn move_inner(&mut self, now: Now, domain: DomainId, to: &NodeId) -> Result<(), Refusal> {
        let record = self.known(domain)?;
        self.not_fenced(to)?;
        if let Some(owner) = record.owner.as_ref().filter(|owner| owner.node == *to) {
            return match &record.incoming {
                None => Ok(()),
                Some(open) => conflict(format!(
                    "{domain} is owned by node {} and being migrated to node {}; say moved or abort first",
                    owner.node, open.node
                )),
            };
        }
        // A finished migration on its way to the same node needs no second revocation.
        if record.owner.is_none() && record.incoming.as_ref().is_some_and(|open| open.node == *to) {
            return Ok(());
        }
        self.room_on(to)?;
        self.change(domain, |lease| {
            lease.record.then = Some(to.clone());
            lease.record.forget = false;
        });
        self.log.push(format!("move domain={domain} name={:?} to={to}", record.name));
        self.leave(now, domain, &epochs(&record), &format!("moving to node {to}"));
        self.settle(now, domain);
        Ok(())
    }

    /// The migration finished: the source's share is revoked, and the destination owns the domain under its own
    /// epoch once the source's copy is gone. Saying it again while that lasts changes nothing.
    pub fn moved(&mut self, now: Now, domain: DomainId) -> Answer {
        let answer = self.known(domain).and_then(|record| match (&record.owner, &record.incoming) {
            (Some(owner), Some(open)) => {
                let (epoch, reason) = (owner.epoch, format!("migrated to node {}", open.node));
                self.leave(now, domain, &[epoch], &reason);
                self.lease(now, domain)
            }
            (None, Some(_)) => self.lease(now, domain),
            (Some(owner), None) => conflict(format!(
                "no migration of {domain} is open; node {} owns it, epoch {}",
                owner.node, owner.epoch
            )),
            (None, None) => conflict(format!("no migration of {domain} is open; no node owns it")),
        });
        self.finish(answer)
    }

    /// The migration failed: the destination's share is revoked, the source keeps what it has.
    pub fn abort(&mut self, now: Now, domain: DomainId) -> Answer {
        let answer = self.known(domain).and_then(|record| match (&record.owner, &record.incoming) {
            (Some(_), Some(open)) => {
                self.leave(now, domain, &[open.epoch], "migration aborted");
                self.lease(now, domain)
            }
            // The source was revoked already, and a revocation is never undone.
            (None, Some(open)) => {
                conflict(format!("{domain} is on its way to node {} already; revoke it to stop that", open.node))
            }
            (_, None) => conflict(format!("no migration of {domain} is open")),
        });
        self.finish(answer)
    }

    /// Revokes a domain and removes its record once nothing is leaving. `None`: the record is gone already.
    pub fn forget(&mut self, now: Now, domain: DomainId) -> Outcome<Result<Option<LeaseView>, Refusal>> {
        let answer = self.known(domain).map(|record| {
            self.change(domain, |lease| {
                lease.record.then = None;
                lease.record.forget = true;
            });
            self.leave(now, domain, &epochs(&record), "forgotten by its controller");
            self.settle(now, domain);
            self.lease(now, domain).ok()
        });
        self.finish(answer)
    }

    /// Revokes everything a node has and grants it nothing until [`Book::unfence`]. A domain it owns whose migration
    /// is open is revoked on both nodes; one it is only the destination of stays with its owner.
    pub fn fence(&mut self, now: Now, id: &NodeId) -> Outcome<Result<crate::protocol::NodeView, Refusal>> {
        let answer = self.fence_inner(now, id).and_then(|()| self.node(now, id));
        self.finish(answer)
    }

    fn fence_inner(&mut self, now: Now, id: &NodeId) -> Result<(), Refusal> {
        if !self.nodes.contains_key(id) {
            self.room_on(id)?;
        }
        if self.node_mut(id).record.fenced.is_none() {
            self.log.push(format!("fence node={id}"));
            self.change_node(id, |record| record.fenced = Some(now.wall.to_owned()));
        }
        self.bump(id);
        for domain in Vec::from_iter(self.node_mut(id).domains.iter().copied()) {
            let record = self.known(domain)?;
            let epochs = match &record.owner {
                Some(owner) if owner.node == *id => epochs(&record),
                _ => record.incoming.iter().filter(|share| share.node == *id).map(|share| share.epoch).collect(),
            };
            if !epochs.is_empty() {
                self.leave(now, domain, &epochs, &format!("node {id} is fenced"));
            }
        }
        Ok(())
    }

    /// Ends a fence. What was revoked stays revoked.
    pub fn unfence(&mut self, now: Now, id: &NodeId) -> Outcome<Result<crate::protocol::NodeView, Refusal>> {
        let known = self.nodes.contains_key(id);
        if known && self.node_mut(id).record.fenced.is_some() {
            self.log.push(format!("unfence node={id}"));
            self.change_node(id, |record| record.fenced = None);
            self.bump(id);
            // Moves to it were waiting.
            let waiting = self.leases.iter().filter(|(_, lease)| lease.record.then.as_ref() == Some(id));
            for domain in Vec::from_iter(waiting.map(|(domain, _)| *domain)) {
                self.settle(now, domain);
            }
        }
        let answer = self.node(now, id);
        self.finish(answer)
    }

    fn known(&self, domain: DomainId) -> Result<LeaseRecord, Refusal> {
        match self.leases.get(&domain) {
            Some(lease) => Ok(lease.record.clone()),
            None => Refusal::new(
                RefusalKind::Unknown,
                format!("no lease of {domain} is kept here: it was never granted, or forgotten"),
            ),
        }
    }

    fn not_fenced(&self, id: &NodeId) -> Result<(), Refusal> {
        match self.nodes.get(id).and_then(|node| node.record.fenced.as_ref()) {
            Some(since) => conflict(format!("node {id} is fenced since {since}; unfence it first")),
            None => Ok(()),
        }
    }

    fn nothing_leaves(&self, domain: DomainId, record: &LeaseRecord) -> Result<(), Refusal> {
        if let Some(leaving) = record.leaving.first() {
            return conflict(format!(
                "{domain} was revoked on node {} at {} (epoch {}) and is not proven gone there; wait for it",
                leaving.node, leaving.since, leaving.epoch
            ));
        }
        match (&record.owner, &record.incoming) {
            (None, Some(open)) => conflict(format!("{domain} is about to be owned by node {}", open.node)),
            _ => Ok(()),
        }
    }
}

fn epochs(record: &LeaseRecord) -> Vec<Epoch> {
    record.owner.iter().chain(&record.incoming).map(|share| share.epoch).collect()
}

fn bad<T>(text: String) -> Result<T, Refusal> {
    Refusal::new(RefusalKind::Bad, text)
}

fn conflict<T>(text: String) -> Result<T, Refusal> {
    Refusal::new(RefusalKind::Conflict, text)
}
