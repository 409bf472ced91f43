//! The book's rules, one by one.

mod boots;
mod moves;

use super::book::{Book, MAX_TTL, Now, Outcome, Refusal, RefusalKind};
use super::records::Durable;
use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId, QuestionNumber};
use crate::lease::time::BootTime;
use crate::protocol::*;
use std::time::Duration;

const D: DomainId = DomainId::from_bytes([1; 16]);
const BOUND: u64 = 26_000;

struct Desk {
    book: Book,
    disk: Durable,
    now: BootTime,
    lives: u8,
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn n(node: &str) -> NodeId {
    node.parse().unwrap()
}

impl Desk {
    fn new() -> Desk {
        let now = BootTime::ZERO + secs(1000);
        let book = Book::open(Durable::default(), Incarnation::from_bytes([200; 16]), now, now);
        Desk { book, disk: Durable::default(), now, lives: 200 }
    }

    fn apply<T>(&mut self, op: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T>) -> T {
        let now = Now { at: self.now, wall: "then" };
        let progress = self.book.progress(now);
        progress.writes.into_iter().for_each(|write| self.disk.apply(write));
        let outcome = op(&mut self.book, now);
        outcome.writes.into_iter().for_each(|write| self.disk.apply(write));
        outcome.answer
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.apply(|book, now| book.progress(now));
    }

    fn restart(&mut self) {
        self.lives += 1;
        self.book = Book::open(self.disk.clone(), Incarnation::from_bytes([self.lives; 16]), self.now, self.now);
    }

    fn grant(&mut self, node: &str) -> Result<LeaseView, Refusal> {
        self.apply(|book, now| book.grant(now, D, &GrantRequest { node: n(node), incoming: None, name: None }))
    }

    fn migrate(&mut self, from: &str, to: &str) -> LeaseView {
        let request = GrantRequest { node: n(from), incoming: Some(n(to)), name: None };
        self.apply(|book, now| book.grant(now, D, &request)).unwrap()
    }

    fn revoke(&mut self) -> LeaseView {
        self.apply(|book, now| book.revoke(now, D)).unwrap()
    }

    fn lease(&mut self) -> LeaseView {
        let now = Now { at: self.now, wall: "then" };
        self.book.lease(now, D).unwrap()
    }

    fn try_ask(&mut self, node: &str, question: RenewRequest) -> Result<RenewAnswer, Refusal> {
        self.apply(|book, now| book.renew(now, &n(node), question))
    }

    fn ask(&mut self, guard: &mut Guard) -> RenewAnswer {
        let question = guard.question(self.now);
        self.try_ask(guard.node, question).unwrap()
    }

    fn claim(&mut self, guard: &mut Guard) -> ClaimEntry {
        self.ask(guard).claims.domains.unwrap().remove(0)
    }

    fn safe_in(&mut self) -> Option<u64> {
        self.lease().leaving[0].safe_in_ms
    }

    fn owner(&mut self) -> Option<(NodeId, Epoch)> {
        self.lease().owner.map(|owner| (owner.node, owner.epoch))
    }
}

/// A guard that names D and asks what it is told to ask.
#[derive(Clone)]
struct Guard {
    node: &'static str,
    boot: u8,
    booted: BootTime,
    incarnation: u8,
    asked: u64,
    machine: &'static str,
    bound_ms: Option<u64>,
    mode: Mode,
    state: NamedState,
    epoch: Option<Epoch>,
    held: bool,
    receipt: Option<Epoch>,
}

impl Guard {
    fn new(node: &'static str) -> Guard {
        Guard {
            node,
            boot: 1,
            booted: BootTime::ZERO + secs(900),
            incarnation: 1,
            asked: 0,
            machine: node,
            bound_ms: Some(BOUND),
            mode: Mode::Enforce,
            state: NamedState::Running,
            epoch: None,
            held: false,
            receipt: None,
        }
    }

    fn question(&mut self, now: BootTime) -> RenewRequest {
        self.asked += 1;
        let incarnation = Incarnation::from_bytes([self.incarnation; 16]);
        let named = NamedDomain {
            domain: D,
            name: "web-1".to_owned(),
            epoch: self.epoch,
            state: self.state,
            held_on_lapse: self.held,
        };
        let receipts = self.receipt.map(|epoch| Receipt {
            domain: D,
            epoch,
            denied_incarnation: incarnation,
            denied_question: QuestionNumber(self.asked),
        });
        RenewRequest {
            protocol: VERSION,
            incarnation,
            question: QuestionNumber(self.asked),
            boot_id: BootId::from_bytes([self.boot; 16]),
            machine: Machine { hardware: self.machine.to_owned(), key: self.machine.to_owned() },
            uptime_ms: now.since(self.booted).as_millis() as u64,
            ttl_ms: 15_000,
            bound_ms: self.bound_ms,
            mode: self.mode,
            list: QuestionList {
                digest: format!("{:?}{}{:?}", self.state, self.held, self.epoch),
                domains: Some(vec![named]),
                claims_tag: None,
            },
            receipts: receipts.into_iter().collect(),
        }
    }

    fn reboot(&mut self, now: BootTime) {
        (self.boot, self.incarnation, self.asked, self.booted) = (self.boot + 1, self.incarnation + 1, 0, now);
    }
}

/// n1 owns D under epoch 1 and was allowed to run it just now.
fn running() -> (Desk, Guard) {
    let (mut desk, mut n1) = (Desk::new(), Guard::new("n1"));
    desk.grant("n1").unwrap();
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Allow);
    (desk, n1)
}

#[test]
fn a_grant_to_the_present_owner_changes_nothing_and_to_another_is_refused() {
    let mut desk = Desk::new();
    assert_eq!(desk.grant("n1").unwrap().owner.unwrap().epoch, Epoch(1));
    let before = desk.disk.clone();
    assert_eq!(desk.grant("n1").unwrap().owner.unwrap().epoch, Epoch(1));
    assert_eq!(desk.disk, before);
    let refusal = desk.grant("n2").unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    assert!(refusal.text.contains("owned by node n1 since then, epoch 1"), "{}", refusal.text);
}

#[test]
fn nothing_is_granted_while_a_revoked_copy_may_live_not_even_to_the_node_that_had_it() {
    let (mut desk, _) = running();
    desk.revoke();
    for node in ["n1", "n2"] {
        assert!(desk.grant(node).unwrap_err().text.contains("is not proven gone there"));
    }
    desk.pass(Duration::from_millis(BOUND));
    // Going back to the old owner is a new epoch.
    assert_eq!(desk.grant("n1").unwrap().owner.unwrap().epoch, Epoch(2));
}

#[test]
fn the_safe_instant_is_fixed_by_the_last_answer_before_the_revocation() {
    let (mut desk, mut n1) = running();
    desk.pass(secs(3));
    desk.ask(&mut n1);
    desk.pass(secs(1));
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(BOUND - 1000));
    // Later answers deny, and what denies does not renew.
    desk.pass(secs(2));
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Deny);
    assert_eq!(desk.safe_in(), Some(BOUND - 3000));
    desk.pass(Duration::from_millis(BOUND - 3001));
    assert_eq!(desk.lease().state, LeaseState::Revoking);
    desk.pass(Duration::from_millis(1));
    assert_eq!(desk.lease().last_proof.unwrap().proof, Proof::Bound);
}

#[test]
fn an_answer_counts_when_it_is_issued_whether_it_arrives_or_not() {
    let (mut desk, mut n1) = running();
    desk.pass(secs(10));
    let _lost = desk.ask(&mut n1);
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(BOUND));
}

#[test]
fn a_share_that_no_answer_carried_is_gone_at_once_but_not_after_a_restart() {
    let (mut desk, mut n1) = running();
    desk.revoke();
    desk.pass(Duration::from_millis(BOUND));
    desk.grant("n1").unwrap();
    assert_eq!(desk.revoke().last_proof.unwrap().proof, Proof::NeverClaimed);
    desk.grant("n1").unwrap();
    desk.restart();
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(BOUND));
    let _ = &mut n1;
}

#[test]
fn a_node_that_never_asked_has_nothing_even_after_a_restart() {
    let mut desk = Desk::new();
    desk.grant("n1").unwrap();
    desk.restart();
    assert_eq!(desk.revoke().state, LeaseState::Free);
}

#[test]
fn a_restart_takes_every_lease_as_renewed_at_that_instant() {
    let (mut desk, _) = running();
    desk.revoke();
    desk.pass(secs(20));
    desk.restart();
    assert_eq!(desk.safe_in(), Some(BOUND));
}

#[test]
fn a_denial_names_the_newest_epoch_and_says_why() {
    let (mut desk, mut n1) = running();
    let other = DomainId::from_bytes([9; 16]);
    desk.apply(|book, now| book.grant(now, other, &GrantRequest { node: n("n2"), incoming: None, name: None }))
        .unwrap();
    desk.revoke();
    let denial = desk.claim(&mut n1);
    assert_eq!((denial.claim, denial.epoch, denial.owner), (ClaimKind::Deny, Epoch(2), None));
    assert_eq!((denial.since.as_deref(), denial.reason.as_deref()), (Some("then"), Some("revoked")));
    let mut n2 = Guard::new("n2");
    desk.pass(Duration::from_millis(BOUND));
    desk.grant("n1").unwrap();
    let denial = desk.claim(&mut n2);
    assert_eq!((denial.owner, denial.reason.as_deref()), (Some(n("n1")), Some("owned by node n1")));
    desk.revoke();
    desk.apply(|book, now| book.forget(now, D)).unwrap();
    let denial = desk.claim(&mut n2);
    assert_eq!((denial.epoch, denial.reason.as_deref()), (Epoch(3), Some("never granted")));
}

#[test]
fn a_receipt_frees_what_was_revoked_under_its_epoch_or_an_older_one_and_nothing_else() {
    let (mut desk, mut n1) = running();
    // Still held: a receipt answers a revocation.
    n1.receipt = Some(Epoch(1));
    desk.ask(&mut n1);
    assert_eq!(desk.owner(), Some((n("n1"), Epoch(1))));
    desk.revoke();
    n1.receipt = Some(Epoch(0));
    desk.ask(&mut n1);
    assert_eq!(desk.lease().state, LeaseState::Revoking);
    // Another node's receipt says nothing of this one.
    let mut n2 = Guard::new("n2");
    n2.receipt = Some(Epoch(1));
    desk.ask(&mut n2);
    assert_eq!(desk.lease().state, LeaseState::Revoking);
    n1.receipt = Some(Epoch(1));
    desk.ask(&mut n1);
    assert_eq!(desk.disk.leases[&D].leaving, []);
    // Said again, about a domain that has moved on, it frees nothing.
    desk.grant("n1").unwrap();
    desk.ask(&mut n1);
    desk.revoke();
    desk.ask(&mut n1);
    assert_eq!(desk.lease().state, LeaseState::Revoking);
}

#[test]
fn an_epoch_that_a_node_has_seen_is_never_issued_again() {
    let (mut desk, mut n1) = (Desk::new(), Guard::new("n1"));
    n1.epoch = Some(Epoch(41));
    desk.ask(&mut n1);
    assert_eq!(desk.disk.epoch, Epoch(41));
    assert_eq!(desk.grant("n1").unwrap().owner.unwrap().epoch, Epoch(42));
}

#[test]
fn a_larger_bound_counts_at_once_and_a_smaller_one_when_nothing_under_the_larger_lives() {
    let (mut desk, mut n1) = running();
    n1.bound_ms = Some(40_000);
    // What the node holds from before ends within 26 s by its ttl, and may be killed as late as the new figure says.
    assert_eq!(desk.ask(&mut n1).bound_ms, Some(26_000 + 40_000 - 15_000));
    n1.bound_ms = Some(20_000);
    desk.pass(secs(5));
    assert_eq!(desk.ask(&mut n1).bound_ms, Some(51_000));
    // The copy may still live under the answer of five seconds ago.
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(46_000));
    desk.pass(secs(46));
    assert_eq!(desk.ask(&mut n1).bound_ms, Some(20_000));
    desk.grant("n1").unwrap();
    desk.ask(&mut n1);
    desk.restart();
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(20_000));
}

#[test]
fn a_larger_bound_counts_for_a_revocation_that_the_node_has_not_heard_of() {
    let (mut desk, mut n1) = running();
    desk.revoke();
    desk.pass(secs(1));
    n1.bound_ms = Some(30_000);
    desk.ask(&mut n1);
    assert_eq!(desk.safe_in(), Some(25_000 + 15_000));
    n1.mode = Mode::Observe;
    desk.ask(&mut n1);
    assert_eq!(desk.safe_in(), None);
    desk.restart();
    assert_eq!(desk.safe_in(), None);
}

#[test]
fn a_smaller_bound_said_twice_is_no_more_true_than_said_once() {
    let (mut desk, mut n1) = running();
    n1.bound_ms = Some(20_000);
    desk.ask(&mut n1);
    desk.pass(secs(1));
    desk.ask(&mut n1);
    desk.restart();
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(BOUND));
}

#[test]
fn a_node_that_observes_has_no_bound_until_everything_it_held_then_has_ended() {
    let (mut desk, mut n1) = running();
    n1.mode = Mode::Observe;
    assert_eq!(desk.ask(&mut n1).bound_ms, None);
    n1.mode = Mode::Enforce;
    desk.ask(&mut n1);
    desk.revoke();
    assert_eq!(desk.safe_in(), None);
    desk.pass(secs(10_000));
    assert_eq!(desk.lease().state, LeaseState::Revoking);
    n1.receipt = Some(Epoch(1));
    desk.ask(&mut n1);
    n1.receipt = None;
    n1.mode = Mode::Observe;
    desk.ask(&mut n1);
    n1.mode = Mode::Enforce;
    desk.ask(&mut n1);
    desk.pass(MAX_TTL + Duration::from_millis(BOUND - 1));
    assert_eq!(desk.ask(&mut n1).bound_ms, None);
    desk.pass(Duration::from_millis(1));
    assert_eq!(desk.ask(&mut n1).bound_ms, Some(BOUND));
}

#[test]
fn a_domain_held_on_lapse_is_freed_by_its_receipt_alone() {
    let (mut desk, mut n1) = running();
    n1.held = true;
    desk.ask(&mut n1);
    assert!(desk.disk.leases[&D].owner.as_ref().unwrap().held);
    // Taken back by a newer question, and believed only when what was answered before cannot live any more.
    n1.held = false;
    desk.ask(&mut n1);
    assert!(desk.disk.leases[&D].owner.as_ref().unwrap().held);
    desk.pass(MAX_TTL + Duration::from_millis(BOUND));
    desk.ask(&mut n1);
    assert!(!desk.disk.leases[&D].owner.as_ref().unwrap().held);
    n1.held = true;
    desk.ask(&mut n1);
    desk.revoke();
    assert_eq!(desk.safe_in(), None);
}

#[test]
fn a_domain_that_is_being_revoked_and_turns_out_to_be_held_needs_its_receipt() {
    let (mut desk, mut n1) = running();
    desk.revoke();
    n1.held = true;
    desk.ask(&mut n1);
    assert_eq!(desk.safe_in(), None);
    desk.restart();
    assert_eq!(desk.safe_in(), None);
}

#[test]
fn a_longer_ttl_alone_raises_the_bound_by_no_more_than_itself() {
    let (mut desk, mut n1) = running();
    let mut question = n1.question(desk.now);
    (question.ttl_ms, question.bound_ms) = (30_000, Some(41_000));
    assert_eq!(desk.try_ask("n1", question).unwrap().bound_ms, Some(41_000));
    desk.restart();
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(41_000));
}

#[test]
fn an_older_question_relaxes_nothing_and_is_not_answered() {
    let (mut desk, mut n1) = running();
    let delayed = n1.question(desk.now);
    n1.bound_ms = None;
    desk.ask(&mut n1);
    assert_eq!(desk.try_ask("n1", delayed).unwrap_err().kind, RefusalKind::Conflict);
    // Nor is one of the guard process before, even if this authority never met it.
    let mut before = n1.clone();
    (before.bound_ms, before.asked) = (Some(BOUND), 100);
    let delayed = before.question(desk.now);
    desk.pass(secs(1));
    (n1.incarnation, n1.asked) = (2, 0);
    desk.ask(&mut n1);
    assert!(desk.try_ask("n1", delayed.clone()).is_err());
    desk.restart();
    assert!(desk.try_ask("n1", delayed).is_err());
    assert_eq!(desk.ask(&mut n1).bound_ms, None);
}

#[test]
fn the_same_question_by_a_second_path_gets_the_same_answer() {
    let (mut desk, mut n1) = running();
    let question = n1.question(desk.now);
    let first = desk.try_ask("n1", question.clone()).unwrap();
    assert_eq!(desk.try_ask("n1", question).unwrap(), first);
}

#[test]
fn a_domain_that_a_node_has_and_does_not_name_is_hinted_at() {
    let (mut desk, mut n1) = running();
    let other = DomainId::from_bytes([9; 16]);
    desk.apply(|book, now| book.grant(now, other, &GrantRequest { node: n("n1"), incoming: None, name: None }))
        .unwrap();
    assert_eq!(desk.ask(&mut n1).name_next, [other]);
    assert_eq!(desk.book.watch(&n("n1")).name_next, [other]);
}

#[test]
fn what_could_not_be_written_did_not_happen() {
    let (mut desk, _) = running();
    let now = Now { at: desk.now, wall: "then" };
    let outcome = desk.book.revoke(now, D);
    assert!(!outcome.writes.is_empty());
    let restore = desk.book.undo(outcome.undo);
    assert_eq!(desk.owner(), Some((n("n1"), Epoch(1))));
    // The failed commit may be on disk: the next one puts right what it says.
    outcome.writes.into_iter().chain(restore).for_each(|write| desk.disk.apply(write));
    assert_eq!(desk.disk.leases[&D].owner.as_ref().unwrap().node, n("n1"));
    assert_eq!(desk.disk.leases[&D].leaving, []);
}

#[test]
fn what_an_operation_that_could_not_be_written_cost_in_caution_stays() {
    let (mut desk, mut n1) = running();
    desk.pass(secs(5));
    // The next guard's first question changes what is kept of the node.
    n1.incarnation += 1;
    let question = n1.question(desk.now);
    let outcome = desk.book.renew(Now { at: desk.now, wall: "then" }, &n("n1"), question);
    assert!(!outcome.writes.is_empty());
    let _restore = desk.book.undo(outcome.undo);
    desk.book.settled();
    desk.revoke();
    assert_eq!(desk.safe_in(), Some(BOUND), "as if that answer had left");
}

#[test]
fn what_a_failed_commit_was_about_is_renewed_nothing_until_it_is_settled() {
    let (mut desk, mut n1) = running();
    let now = Now { at: desk.now, wall: "then" };
    let outcome = desk.book.revoke(now, D);
    let _restore = desk.book.undo(outcome.undo);
    let answer = desk.ask(&mut n1);
    assert_eq!((answer.ttl_ms, answer.claims.domains), (15_000, Some(Vec::new())));
    desk.book.settled();
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Allow);

    n1.bound_ms = Some(40_000);
    let question = n1.question(desk.now);
    let outcome = desk.book.renew(now, &n("n1"), question);
    let _restore = desk.book.undo(outcome.undo);
    let question = n1.question(desk.now);
    assert_eq!(desk.try_ask("n1", question).unwrap_err().kind, RefusalKind::InDoubt);
    desk.book.settled();
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Allow);
}

#[test]
fn a_quiet_nodes_answer_does_not_grow_with_its_domains() {
    let mut desk = Desk::new();
    let mut question = Guard::new("n1").question(desk.now);
    let domains = (0..MAX_DOMAINS as u64).map(|number| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        NamedDomain {
            domain: DomainId::from_bytes(bytes),
            name: String::new(),
            epoch: None,
            state: NamedState::Running,
            held_on_lapse: false,
        }
    });
    question.list.domains = Some(domains.collect());
    let full = desk.try_ask("n1", question.clone()).unwrap();
    assert_eq!(full.claims.domains.map(|claims| claims.len()), Some(MAX_DOMAINS));
    (question.list.domains, question.list.claims_tag) = (None, Some(full.claims.tag.clone()));
    for _ in 0..10_000 {
        question.question.0 += 1;
        let quiet = desk.try_ask("n1", question.clone()).unwrap();
        assert_eq!((quiet.claims.domains, quiet.ttl_ms), (None, 15_000));
    }
}
