//! Rules 1 to 3, and stolen time: what an answer may change.

use super::*;

#[test]
fn a_lease_counts_from_before_the_question_was_sent_however_late_its_answer() {
    let mut node = Node::leased(1010.0);
    let question = node.ask();
    let sent = question.sent;
    node.at(sent.as_nanos() as f64 / 1e9 + 2.9);
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    node.step(Event::Answered(Box::new(answer)));
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    assert_eq!(expires, sent + Duration::from_micros(15_000_000 - 7_500), "15 s less 500 ppm");
}

#[test]
fn an_answer_may_shorten_the_ttl_and_never_lengthen_it() {
    for (answered_ms, expected) in [(5_000, 4_997_500), (3_600_000, 14_992_500)] {
        let mut node = Node::new();
        node.step(Event::Hinted(vec![WEB]));
        let question = node.ask();
        let answer = RenewAnswer { ttl_ms: answered_ms, ..node.answer_to(&question, &[allow(WEB, 1)]) };
        node.step(Event::Answered(Box::new(answer)));
        let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
        assert_eq!(expires, question.sent + Duration::from_micros(expected));
    }
}

#[test]
fn a_question_sent_before_the_start_says_nothing_about_it() {
    let mut node = Node::leased(1010.0);
    // A question that does not name DB is under way while DB is granted and started.
    let early = node.ask();
    assert!(early.domains.iter().all(|named| named.domain != DB));
    let late = node.answer_to(&early, &[allow(WEB, 1), deny(DB, 9)]);
    node.step(Event::Answered(Box::new(late)));
    assert!(!node.guard.ledger().domains.contains_key(&DB), "what was not named is not touched");
}

#[test]
fn absence_from_an_answer_fails_to_renew_and_kills_nothing_before_the_lease_ends() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    while node.now + Duration::from_secs(4) < expires {
        let actions = node.answer(&[]);
        assert_eq!((killed(&actions).len(), destroyed(&actions)), (0, 0));
    }
    assert_eq!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires, expires);
    let kills = node.run_dry(1030.0);
    assert_eq!(kills, [(expires, 41)]);
}

#[test]
fn an_older_questions_answer_changes_nothing() {
    let mut node = Node::running(1010.0);
    let first = node.ask();
    // It is given up, asked again and denied; then the first answer comes in after all.
    node.at(first.sent.as_nanos() as f64 / 1e9 + 3.1);
    node.step(Event::Tick);
    node.answer(&[deny(WEB, 2)]);
    let stale = node.answer_to(&first, &[allow(WEB, 1)]);
    node.step(Event::Answered(Box::new(stale)));
    assert!(node.guard.ledger().domains[&WEB].lease.is_none());
}

#[test]
fn another_guards_answer_another_nodes_answer_and_another_protocol_change_nothing() {
    for spoil in [
        |a: &mut RenewAnswer| a.incarnation = Incarnation::from_bytes([8; 16]),
        |a: &mut RenewAnswer| a.node = "n2".parse().unwrap(),
        |a: &mut RenewAnswer| a.protocol = VERSION + 1,
        |a: &mut RenewAnswer| a.question = QuestionNumber(4711),
    ] {
        let mut node = Node::running(1010.0);
        let question = node.ask();
        let mut answer = node.answer_to(&question, &[deny(WEB, 2)]);
        spoil(&mut answer);
        let before = node.guard.ledger().clone();
        node.step(Event::Answered(Box::new(answer)));
        assert_eq!(*node.guard.ledger(), before);
    }
}

#[test]
fn a_denial_is_never_undone_under_its_epoch() {
    let mut node = Node::running(1010.0);
    node.answer(&[deny(WEB, 3)]);
    for epoch in [1, 2, 3] {
        node.answer(&[allow(WEB, epoch)]);
        assert!(node.guard.ledger().domains[&WEB].lease.is_none(), "epoch {epoch}");
    }
    node.answer(&[allow(WEB, 4)]);
    assert_eq!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().epoch, Epoch(4));
}

#[test]
fn a_denial_of_an_older_epoch_does_not_touch_a_newer_lease() {
    let mut node = Node::leased(1010.0);
    node.answer(&[allow(WEB, 5)]);
    node.answer(&[deny(WEB, 4)]);
    assert_eq!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().epoch, Epoch(5));
}

#[test]
fn leases_held_across_stolen_time_end_at_the_first_answer_after_it() {
    let mut node = Node::running(1010.0);
    node.answer(&[allow(WEB, 1)]);
    node.authority_clock += 40_000;
    let actions = node.answer(&[allow(WEB, 1)]);
    assert_eq!(killed(&actions), [41], "this answer's own lease is no better");
}

#[test]
fn time_stolen_around_a_restart_of_the_guard_is_noticed_too() {
    let mut node = Node::running(1010.0);
    node.answer(&[allow(WEB, 1)]);
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    (node.guard, node.question) = (Guard::new(policy(), ME, Memory::Restored(ledger)), None);
    node.authority_clock += 40_000;
    assert_eq!(killed(&node.answer(&[allow(WEB, 1)])), [41]);
}

#[test]
fn an_authority_clock_within_the_allowed_drift_steals_nothing() {
    let mut node = Node::running(1010.0);
    for _ in 0..20 {
        node.authority_clock += 3;
        node.answer(&[allow(WEB, 1)]);
    }
    assert!(killed(&node.actions).is_empty());
}

#[test]
fn a_restarted_authoritys_clock_is_not_compared_with_its_predecessors() {
    let mut node = Node::running(1010.0);
    node.answer(&[allow(WEB, 1)]);
    let question = node.ask();
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    let answer = RenewAnswer { authority: Incarnation::from_bytes([6; 16]), clock_ms: 99_000_000, ..answer };
    node.step(Event::Answered(Box::new(answer)));
    assert_eq!(node.run_dry(node.now.as_nanos() as f64 / 1e9 + 5.0), []);
}

#[test]
fn an_older_epoch_changes_nothing_allowed_or_denied() {
    let mut node = Node::new();
    node.question = None;
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[allow(WEB, 5)]);
    let before = node.guard.ledger().domains[&WEB].clone();
    for older in [allow(WEB, 4), deny(WEB, 4)] {
        node.answer(&[older]);
        assert_eq!(node.guard.ledger().domains[&WEB], before);
    }
}

#[test]
fn an_answer_that_wants_the_whole_list_renews_denies_and_acknowledges_nothing() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    let question = node.ask();
    assert_eq!(question.receipts.len(), 1);
    let before = node.guard.ledger().clone();
    let answer = RenewAnswer { list_wanted: true, ..node.answer_to(&question, &[allow(WEB, 3)]) };
    node.step(Event::Answered(Box::new(answer)));
    assert_eq!(*node.guard.ledger(), before);
}

#[test]
fn a_receipt_that_is_answered_with_a_newer_denial_is_none_for_that() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    node.question = None;
    node.step(Event::Hinted(vec![WEB]));
    let question = node.ask();
    assert_eq!((question.receipts[0].epoch, question.domains[0].domain), (Epoch(2), WEB));
    let answer = node.answer_to(&question, &[deny(WEB, 3)]);
    node.step(Event::Answered(Box::new(answer)));
    node.scan(&[]);
    node.question = None;
    assert_eq!(node.ask().receipts[0].epoch, Epoch(3), "due until it is answered itself");
}

#[test]
fn an_answer_that_grants_no_time_gives_no_lease() {
    let mut node = Node::new();
    node.question = None;
    node.step(Event::Hinted(vec![WEB]));
    let question = node.ask();
    let answer = RenewAnswer { ttl_ms: 0, ..node.answer_to(&question, &[allow(WEB, 1)]) };
    node.step(Event::Answered(Box::new(answer)));
    assert!(node.guard.ledger().domains.get(&WEB).is_none_or(|entry| entry.lease.is_none()));
}

#[test]
fn a_newer_epoch_cancels_a_start_let_through_under_the_older_and_renews_nothing_of_it() {
    let mut node = Node::leased(1010.0);
    assert_eq!(node.hook(WEB, HookOp::Prepare), Some(Verdict::Allow));
    node.answer(&[allow(WEB, 2)]);
    assert_eq!(node.guard.ledger().domains[&WEB].admission, None);
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].copies[0].expires;
    node.answer(&[allow(WEB, 2)]);
    assert_eq!(node.guard.ledger().domains[&WEB].copies[0].expires, expires, "rule 9");
}

#[test]
fn a_renewal_never_shortens_and_covers_a_start_that_is_under_way() {
    let mut node = Node::leased(1010.0);
    let ends = |node: &Node| {
        let entry = &node.guard.ledger().domains[&WEB];
        (entry.lease.as_ref().unwrap().expires, entry.admission.as_ref().unwrap().expires)
    };
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    let (before, _) = ends(&node);
    node.answer(&[allow(WEB, 1)]);
    let (renewed, start) = ends(&node);
    assert!(renewed > before && start == renewed, "{before:?} {renewed:?} {start:?}");
    let question = node.ask();
    let shorter = RenewAnswer { ttl_ms: 1000, ..node.answer_to(&question, &[allow(WEB, 1)]) };
    node.step(Event::Answered(Box::new(shorter)));
    assert_eq!(ends(&node), (renewed, renewed));
}

#[test]
fn a_start_under_way_ends_with_stolen_time_too() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.authority_clock += 60_000;
    node.answer(&[allow(WEB, 1)]);
    assert!(node.guard.ledger().domains[&WEB].admission.as_ref().unwrap().expires <= node.now);
    assert!(node.guard.permit() < node.now);
}

#[test]
fn what_was_found_running_after_a_question_is_not_adopted_by_its_answer() {
    let mut node = Node::leased(1010.0);
    let early = node.ask();
    assert!(early.domains.iter().any(|named| named.domain == WEB), "it is named, as a lease");
    let found = node.copy(WEB, 41);
    node.scan(&[found]);
    let answer = node.answer_to(&early, &[allow(WEB, 1)]);
    node.step(Event::Answered(Box::new(answer)));
    assert_eq!(node.guard.ledger().domains[&WEB].copies[0].epoch, None);
}
