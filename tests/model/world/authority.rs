//! The authority, what its controller wants, and who asks it.

use super::*;

impl World {
    pub(super) fn start_authority(&mut self) {
        self.authorities += 1;
        let incarnation = Incarnation::from_bytes([100 + self.authorities; 16]);
        self.book = Some(Book::open(self.durable.clone(), incarnation, self.now, self.now));
    }

    /// One operation at `now`, committed.
    pub(super) fn operate<T>(&mut self, operation: impl FnOnce(&mut Book, Now) -> Outcome<T>) -> Option<T> {
        let book = self.book.as_mut()?;
        let outcome = operation(book, Now { at: self.now, wall: "" });
        for write in outcome.writes {
            self.durable.apply(write);
        }
        Some(outcome.answer)
    }

    pub(super) fn move_to(&mut self, to: &str) {
        self.operate(|book, now| book.move_to(now, DOMAIN, &node(to)));
    }

    /// libvirt may migrate it: the controller opens that first.
    pub(super) fn open(&mut self, from: &str, to: &str) {
        let request = GrantRequest { node: node(from), incoming: Some(node(to)), name: None };
        self.operate(|book, now| book.grant(now, DOMAIN, &request));
    }

    /// A machine made from the disk of `a`, with hardware of its own, runs the domain as soon as it is allowed to.
    pub(super) fn clone_asks(&mut self) {
        let named = NamedDomain {
            domain: DOMAIN,
            name: String::new(),
            epoch: None,
            state: NamedState::Wanted,
            held_on_lapse: false,
        };
        let list = QuestionList {
            digest: format!("clone {}", self.left.clones),
            domains: Some(vec![named]),
            claims_tag: None,
        };
        let request = RenewRequest {
            incarnation: Incarnation::from_bytes([200; 16]),
            question: QuestionNumber(u64::from(100 - self.left.clones)),
            boot_id: BootId::from_bytes([200; 16]),
            machine: Machine { hardware: "another".into(), key: "key".into() },
            uptime_ms: self.now.as_nanos() / 1_000_000,
            list,
            ..self.request(Question {
                number: QuestionNumber(0),
                sent: self.now,
                bound: Some(self.bound()),
                timeout: TICK,
                domains: vec![],
                receipts: vec![],
            })
        };
        let Some(Ok(answer)) = self.operate(|book, now| book.renew(now, &node("a"), request)) else { return };
        let allowed = |claim: &ClaimEntry| claim.domain == DOMAIN && claim.claim == ClaimKind::Allow;
        if answer.claims.domains.iter().flatten().any(allowed) {
            self.clone_until = self.now + Duration::from_millis(answer.ttl_ms);
        }
    }

    pub(super) fn question(&mut self, at: usize, again: bool) {
        let request = if again { self.questions[at].clone() } else { self.questions.remove(at) };
        self.belated |= request.boot_id != self.boot_id();
        let bound = request.bound_ms.map_or(self.bound(), Duration::from_millis);
        let answer = self.operate(|book, now| book.renew(now, &node("a"), request));
        let Some(Ok(answer)) = answer else { return };
        let allows = |claim: &ClaimEntry| claim.domain == DOMAIN && claim.claim != ClaimKind::Deny;
        if answer.claims.domains.iter().flatten().any(allows) && answer.ttl_ms > 0 {
            let ends = self.now + bound;
            self.bound_ends = if self.bound_ends == BootTime::NEVER { ends } else { self.bound_ends.max(ends) };
        }
        push(&mut self.answers, answer);
    }

    pub(super) fn answer(&mut self, at: usize, again: bool, emptied: bool) {
        let mut answer = if again || emptied { self.answers[at].clone() } else { self.answers.remove(at) };
        if emptied {
            answer.claims.domains = Some(vec![]);
        }
        let denies = answer.claims.domains.iter().flatten().any(|claim| claim.claim == ClaimKind::Deny);
        let condemned = |world: &World| -> usize {
            let copies = world.guard.iter().flat_map(|guard| guard.ledger().domains.values()).flat_map(|e| &e.copies);
            copies.filter(|copy| copy.dying.is_some()).count()
        };
        let before = condemned(self);
        self.event(Event::Answered(Box::new(answer.clone())));
        let newer = answer.claims.domains.iter().flatten().any(|claim| claim.claim != ClaimKind::Deny);
        if condemned(self) > before && !denies && !newer {
            self.broken = Some("evidence from silence: an answer without a denial condemned a process".to_owned());
        }
    }
}
