//! Rule 7: what a receipt needs.

use super::*;

#[test]
fn a_receipt_follows_denial_death_and_a_later_whole_scan_and_is_repeated_until_answered() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.answer(&[deny(WEB, 2)]);
    let denial = node.guard.ledger().domains[&WEB].seal.clone().unwrap();
    node.scan(&[]);
    assert_eq!(node.ask().receipts, [], "it is not proven gone");
    let actions = node.step(Event::Gone { domain: WEB, process });
    assert!(actions.iter().any(|a| matches!(a, Action::Scan { .. })));
    node.question = None;
    assert_eq!(node.ask().receipts, [], "no scan has begun since");
    node.scan(&[]);
    let receipt = Receipt { domain: WEB, epoch: Epoch(2), denied_incarnation: ME, denied_question: denial.question };
    for _ in 0..3 {
        assert_eq!(node.ask().receipts, std::slice::from_ref(&receipt), "until a question that carried it is answered");
    }
    node.question = None;
    node.answer(&[]);
    assert_eq!(node.ask().receipts, []);
}

#[test]
fn what_ended_without_a_denial_gets_no_receipt() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.step(Event::Gone { domain: WEB, process });
    node.scan(&[]);
    node.scan(&[]);
    assert_eq!(node.ask().receipts, []);
}

#[test]
fn a_domain_that_never_ran_here_is_receipted_after_its_denial_and_a_scan() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    assert_eq!(node.ask().receipts.len(), 1);
}

#[test]
fn a_node_in_conflict_keeps_its_receipts_and_renews_nothing() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    let question = node.ask();
    let answer = node.answer_to(&question, &[]);
    let answer = RenewAnswer { ttl_ms: 0, conflict: Some("two hosts".into()), ..answer };
    node.step(Event::Answered(Box::new(answer)));
    assert_eq!(node.ask().receipts.len(), 1);
}

#[test]
fn a_conflict_is_told_when_it_begins_and_ends_and_shown_meanwhile() {
    let mut node = Node::leased(1010.0);
    let mut told = Vec::new();
    for conflict in [Some("two hosts"), Some("two hosts"), None, None] {
        let question = node.ask();
        let answer = node.answer_to(&question, &[allow(WEB, 1)]);
        let answer = RenewAnswer { conflict: conflict.map(str::to_owned), ..answer };
        let actions = node.step(Event::Answered(Box::new(answer)));
        told.push(actions.iter().filter(|action| matches!(action, Action::Tell(_))).count());
        assert_eq!(node.guard.view(node.now).faults.len(), usize::from(conflict.is_some()));
    }
    assert_eq!(told, [1, 0, 1, 0]);
}

#[test]
fn a_receipt_that_was_withheld_is_not_acknowledged_by_its_questions_answer() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    let question = node.ask();
    assert_eq!(question.receipts.len(), 1);
    node.step(Event::ReceiptsWithheld(question.number));
    let answer = node.answer_to(&question, &[]);
    node.step(Event::Answered(Box::new(answer)));
    node.question = None;
    assert_eq!(node.ask().receipts.len(), 1, "it never left");
}

#[test]
fn a_scan_that_comes_after_a_later_one_brings_nothing_back() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    let (seen, began) = (SeenCopy { process, ..node.copy(WEB, 41) }, node.now - Duration::from_millis(500));
    node.step(Event::Gone { domain: WEB, process });
    node.step(Event::Scanned(Scan { began, copies: vec![seen], dead_daemons: vec![] }));
    assert_eq!(node.guard.ledger().domains[&WEB].copies, []);
}
