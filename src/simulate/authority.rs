//! The shipped book of leases, as its driver runs it: one operation, then its commit, then its answer. What is durable
//! survives the process; its clock is its own.

use super::client::Exchange;
use super::network::Direction;
use super::phrase::{DomainIx, HostIx};
use super::record::Kind;
use super::world::{Happening, World, uuid};
use crate::authority::book::{Book, Now, Outcome, Refusal};
use crate::authority::records::{Durable, Write};
use crate::lease::id::Incarnation;
use crate::lease::time::BootTime;
use crate::protocol::{GrantRequest, LeaseView, NodeView, Proof, RenewRequest};
use std::time::Duration;

/// A watch that was lost is taken up again after this.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// What happens to the process at its next commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Uncommitted,
    Committed,
}

#[derive(Default)]
pub(super) struct Authority {
    pub durable: Durable,
    book: Option<Book>,
    /// Its processes so far.
    pub count: u32,
    /// Stopped, or paused with its machine since then; and what waits for it.
    stopped: bool,
    paused: Option<BootTime>,
    waiting: Vec<Happening>,
    /// What its machine's clock did not see.
    lost: Duration,
    pub dies: Option<Death>,
    generation: u64,
    wake: Option<BootTime>,
}

impl Authority {
    fn clock(&self, now: BootTime) -> BootTime {
        self.paused.unwrap_or(now) - self.lost
    }

    fn still(&self) -> bool {
        self.stopped || self.paused.is_some()
    }
}

impl World<'_> {
    pub fn start_authority(&mut self) {
        if self.authority.book.is_some() {
            return;
        }
        self.authority.count += 1;
        let mut bytes = [0xaa; 16];
        bytes[12..].copy_from_slice(&self.authority.count.to_be_bytes());
        let clock = self.authority.clock(self.now);
        // Another boot of another cluster's age: nothing asked before the world began.
        let heard_before = if self.authority.count == 1 { clock - Duration::from_secs(3600) } else { clock };
        let durable = self.authority.durable.clone();
        self.authority.book = Some(Book::open(durable, Incarnation::from_bytes(bytes), clock, heard_before));
        self.authority.generation = 0;
        self.record.authority_starts.push(self.now);
        self.say_authority(|| "starts".to_owned());
        self.wake_book();
        for host in 0..self.hosts.len() {
            self.after(WATCH_PAUSE, Happening::Watch(HostIx(host)));
        }
    }

    pub fn kill_authority(&mut self) {
        if self.authority.book.take().is_some() {
            (self.authority.stopped, self.authority.dies) = (false, None);
            self.authority.waiting.clear();
            self.say_authority(|| "is killed".to_owned());
        }
    }

    pub fn stop_authority(&mut self) {
        self.authority.stopped = self.authority.book.is_some();
    }

    pub fn pause_authority(&mut self) {
        self.authority.paused.get_or_insert(self.now);
    }

    pub fn continue_authority(&mut self) {
        if self.authority.still() {
            self.record.authority_starts.push(self.now);
        }
        self.authority.stopped = false;
        if let Some(since) = self.authority.paused.take() {
            self.authority.lost += self.now.since(since);
        }
        for what in std::mem::take(&mut self.authority.waiting) {
            self.after(Duration::ZERO, what);
        }
        self.authority.wake = None;
        self.wake_book();
    }

    fn wake_book(&mut self) {
        let Some(at) = self.authority.book.as_ref().and_then(Book::next_wake) else { return };
        if self.authority.wake.is_none_or(|wake| wake > at || wake <= self.authority.clock(self.now))
            && !self.authority.still()
        {
            self.authority.wake = Some(at);
            self.at(at + self.authority.lost, Happening::Book);
        }
    }

    pub fn book_wakes(&mut self) {
        if !self.authority.still() {
            self.progress();
            self.wake_book();
        }
    }

    /// What time completes, in a commit of its own.
    fn progress(&mut self) {
        let clock = self.authority.clock(self.now);
        if self.authority.book.as_ref().and_then(Book::next_wake).is_some_and(|at| at <= clock) {
            self.operate(|book, now| book.progress(now));
        }
    }

    /// One operation: committed unless the authority dies first, answered unless it dies then. `None`: nobody answers.
    fn operate<T>(&mut self, operation: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T>) -> Option<T> {
        let wall = if self.record.quiet { String::new() } else { self.record.t(self.now) };
        let at = self.authority.clock(self.now);
        let book = self.authority.book.as_mut()?;
        let outcome = operation(book, Now { at, wall: &wall });
        let generation = book.generation();
        let dies = if outcome.writes.is_empty() { None } else { self.authority.dies.take() };
        if dies != Some(Death::Uncommitted) {
            for write in outcome.writes {
                self.commit(write);
            }
            for line in outcome.log {
                self.say_authority(|| line);
            }
        }
        if dies.is_some() {
            self.kill_authority();
            return None;
        }
        if std::mem::replace(&mut self.authority.generation, generation) != generation {
            for host in 0..self.hosts.len() {
                self.hint(HostIx(host));
            }
        }
        self.wake_book();
        Some(outcome.answer)
    }

    fn commit(&mut self, write: Write) {
        if let Write::Lease(id, record) = &write
            && let Some(domain) = super::world::domain_of(*id, self.setup)
        {
            self.record.stirred.insert(domain);
            let before = self.authority.durable.leases.get(id);
            let leaving = |record: Option<&crate::authority::records::LeaseRecord>| {
                record.map(|record| record.leaving.clone()).unwrap_or_default()
            };
            let (was, is) = (leaving(before), leaving(record.as_deref()));
            let bound = |host: Option<HostIx>| {
                let issued = self.hosts[host?.0].issued?;
                Some(issued)
            };
            for revoked in is.iter().filter(|share| !was.iter().any(|old| old.epoch == share.epoch)) {
                let host = self.node_at(revoked.node.as_str());
                let bound_at = revoked.bound_ms.and_then(|ms| Some(bound(host)? + Duration::from_millis(ms)));
                self.record.revoked(domain, host, revoked.epoch, self.now, bound_at);
            }
            for known in is
                .iter()
                .filter(|share| was.iter().any(|old| old.epoch == share.epoch && old.bound_ms != share.bound_ms))
            {
                let host = self.node_at(known.node.as_str());
                let bound_at = known.bound_ms.and_then(|ms| Some(bound(host)? + Duration::from_millis(ms)));
                self.record.rebound(domain, known.epoch, bound_at);
            }
            for gone in was.iter().filter(|share| !is.iter().any(|now| now.epoch == share.epoch)) {
                // The record goes with its last copy when it is forgotten.
                let proof = record
                    .as_ref()
                    .and_then(|record| record.last_proof.as_ref())
                    .filter(|last| last.epoch == gone.epoch);
                self.record.safe(domain, gone.epoch, self.now, proof.map_or(Proof::Receipt, |proof| proof.proof));
            }
        }
        self.authority.durable.apply(write);
    }

    fn node_at(&self, node: &str) -> Option<HostIx> {
        self.setup.hosts.iter().position(|host| host.node.as_str() == node && host.clone_of.is_none()).map(HostIx)
    }

    /// A hint goes out when a node's version is another than the one it saw. It proves nothing, and may be lost.
    pub fn hint(&mut self, host: HostIx) {
        if self.authority.still() {
            return;
        }
        let Some((process, seen)) = self.seen_version(host) else { return };
        let Some(book) = &mut self.authority.book else { return };
        let link = &self.hosts[host.0].links[0];
        if link.cut != [false; 2] {
            return;
        }
        let watch = book.watch(&self.setup.hosts[host.0].node);
        if watch.version != seen {
            let way = self.noise.span(host, super::noise::Delay::Message);
            self.after(way, Happening::Hint(host, process, watch));
        }
    }

    pub fn question(&mut self, host: HostIx, process: u32, exchange: Exchange, cuts: u32, request: Box<RenewRequest>) {
        if !self.passes(host, exchange.endpoint, Direction::Questions, cuts) {
            return;
        }
        if self.authority.still() {
            return self.authority.waiting.push(Happening::Question(host, process, exchange, cuts, request));
        }
        if self.authority.book.is_none() {
            return self.send_answer(host, process, exchange, Err("connection refused".into()));
        }
        self.progress();
        let node = &self.setup.hosts[host.0].node;
        let answer = self.operate(|book, now| book.renew(now, node, *request));
        let Some(answer) = answer else { return };
        if answer.as_ref().is_ok_and(|answer| answer.ttl_ms > 0) {
            self.hosts[host.0].issued = Some(self.now);
        }
        self.send_answer(host, process, exchange, answer.map_err(|refusal| refusal.text));
    }

    /// When the node's copies are gone by arithmetic, as the authority counts.
    pub fn bound_of(&self, host: HostIx) -> Option<BootTime> {
        let seen = self.authority.durable.nodes.get(&self.setup.hosts[host.0].node)?.seen.as_ref()?;
        Some(self.hosts[host.0].issued? + Duration::from_millis(seen.bound_ms?))
    }

    pub fn owner(&self, domain: DomainIx) -> Option<HostIx> {
        let owner = self.authority.durable.leases.get(&uuid(domain))?.owner.as_ref()?;
        self.node_at(owner.node.as_str())
    }

    // --- the controller ---------------------------------------------------------------------------------------------

    fn controller<T>(
        &mut self,
        what: &str,
        operation: impl FnOnce(&mut Book, Now<'_>) -> Outcome<Result<T, Refusal>>,
    ) -> bool {
        if self.authority.book.is_none() || self.authority.still() {
            self.say_operator(|| format!("{what}: the authority does not answer"));
            return false;
        }
        self.progress();
        match self.operate(operation) {
            Some(Ok(_)) => true,
            Some(Err(refusal)) => {
                self.say_operator(|| format!("{what}: refused: {}", refusal.text));
                false
            }
            None => {
                self.say_operator(|| format!("{what}: no answer, the authority died over it"));
                false
            }
        }
    }

    pub fn grant(&mut self, domain: DomainIx, to: HostIx) -> bool {
        let name = Some(self.setup.names.domains[domain.0].clone());
        let request = GrantRequest { node: self.setup.hosts[to.0].node.clone(), incoming: None, name };
        self.controller::<LeaseView>("grant", |book, now| book.grant(now, uuid(domain), &request))
    }

    pub fn open_migration(&mut self, domain: DomainIx, from: HostIx, to: HostIx) -> bool {
        let node = |host: HostIx| self.setup.hosts[host.0].node.clone();
        let request = GrantRequest { node: node(from), incoming: Some(node(to)), name: None };
        self.controller::<LeaseView>("open migration", |book, now| book.grant(now, uuid(domain), &request))
    }

    pub fn move_to(&mut self, domain: DomainIx, to: HostIx) {
        let to = self.setup.hosts[to.0].node.clone();
        self.controller::<LeaseView>("move", |book, now| book.move_to(now, uuid(domain), &to));
    }

    pub fn revoke(&mut self, domain: DomainIx) {
        self.controller::<LeaseView>("revoke", |book, now| book.revoke(now, uuid(domain)));
    }

    pub fn forget(&mut self, domain: DomainIx) {
        self.controller::<Option<LeaseView>>("forget", |book, now| book.forget(now, uuid(domain)));
    }

    pub fn moved(&mut self, domain: DomainIx) {
        self.controller::<LeaseView>("moved", |book, now| book.moved(now, uuid(domain)));
    }

    pub fn abort(&mut self, domain: DomainIx) {
        self.controller::<LeaseView>("abort", |book, now| book.abort(now, uuid(domain)));
    }

    pub fn fence(&mut self, host: HostIx, lift: bool) {
        let node = self.setup.hosts[host.0].node.clone();
        self.controller::<NodeView>(if lift { "unfence" } else { "fence" }, |book, now| match lift {
            true => book.unfence(now, &node),
            false => book.fence(now, &node),
        });
    }

    pub fn accept(&mut self, host: HostIx) {
        let node = self.setup.hosts[host.0].node.clone();
        self.controller::<NodeView>("accept", |book, now| book.accept(now, &node));
    }

    /// Says it in the timeline.
    fn say_authority(&mut self, text: impl FnOnce() -> String) {
        self.record.say(self.now, None, Kind::Authority, text);
    }

    pub fn say_operator(&mut self, text: impl FnOnce() -> String) {
        self.record.say(self.now, None, Kind::Operator, text);
    }
}
