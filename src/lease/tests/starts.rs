//! Rules 8 to 10: what may start, what a process belongs to, and what is found running.

use super::*;

#[test]
fn a_start_is_let_through_at_once_under_a_lease_and_written_down_first() {
    let mut node = Node::leased(1010.0);
    node.hooks += 1;
    let answer_by = node.now + Duration::from_secs(2);
    let (id, op) = (HookId(node.hooks), HookOp::Prepare);
    let call = HookCall { id, domain: WEB, name: "w".into(), op, daemon: Some(LIBVIRTD), run: Some(3), answer_by };
    let turn = node.guard.step(node.now, Event::Hook(call));
    assert!(turn.ledger_changed);
    assert_eq!(verdict(&turn.actions, id), Some(Verdict::Allow));
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
}

#[test]
fn a_start_without_a_lease_waits_for_the_answer_to_a_question_asked_after_it() {
    let mut node = Node::new();
    node.answer(&[]);
    // Under way when the hook comes: its answer decides nothing.
    let early = node.ask();
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let answer = node.answer_to(&early, &[]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), None);
    let question = node.ask();
    assert!(question.domains.iter().any(|named| named.domain == WEB && named.name == "web-1"));
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), Some(Verdict::Allow));
}

#[test]
fn a_refusal_names_the_owner_since_when_and_the_epoch() {
    let mut node = Node::new();
    node.hook(WEB, HookOp::Prepare);
    let question = node.ask();
    let since = Some("2026-12-01T02:00:00Z".into());
    let answer = node.answer_to(&question, &[ClaimEntry { since, ..deny(WEB, 7) }]);
    let sentence = refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    let expected = format!("no lease for domain web-1 ({WEB}): owned by node n2 since 2026-12-01T02:00:00Z, epoch 7");
    assert!(sentence.starts_with(&expected), "{sentence}");
    assert!(sentence.contains(&format!("leasehold lease move {WEB} n1")), "{sentence}");
}

#[test]
fn a_start_is_refused_when_nobody_answers_and_says_so() {
    let mut node = Node::new();
    node.hook(WEB, HookOp::Prepare);
    let question = node.ask().number;
    let event = Event::Unanswered { question, why: "connection refused".into() };
    let sentence = refusal(node.verdict_after(event));
    assert!(sentence.contains("did not answer (connection refused)"), "{sentence}");
}

#[test]
fn a_hook_gets_its_verdict_by_its_deadline_whatever_hangs() {
    let mut node = Node::new();
    node.hook(WEB, HookOp::Prepare);
    let by = node.now + Duration::from_millis(2700);
    assert!(node.guard.wake_at(node.now) <= by);
    node.now = by;
    refusal(node.verdict_after(Event::Tick));
}

#[test]
fn a_revocation_between_prepare_and_start_refuses_the_start_and_frees_the_domain() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.answer(&[deny(WEB, 2)]);
    assert_eq!(node.hook(WEB, HookOp::Start), None, "it is asked once more");
    let question = node.ask();
    let answer = node.answer_to(&question, &[deny(WEB, 2)]);
    refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    node.scan(&[]);
    assert_eq!(node.ask().receipts.len(), 1, "nothing can have executed");
}

#[test]
fn after_start_has_passed_no_receipt_before_release_and_a_later_scan() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    node.scan(&[]);
    assert_eq!(node.ask().receipts, [], "QEMU may be about to execute");
    assert_eq!(node.hook(WEB, HookOp::Release), Some(Verdict::Allow));
    node.question = None;
    assert_eq!(node.ask().receipts, [], "release fires over a QEMU in D too");
    node.scan(&[]);
    assert_eq!(node.ask().receipts.len(), 1);
}

#[test]
fn a_late_release_of_an_earlier_run_does_not_close_a_later_start() {
    let mut node = Node::leased(1010.0);
    let mut call = |op, run| {
        node.hooks += 1;
        let (id, answer_by) = (HookId(node.hooks), node.now + Duration::from_secs(2));
        let call =
            HookCall { id, domain: WEB, name: "w".into(), op, daemon: Some(LIBVIRTD), run: Some(run), answer_by };
        node.guard.step(node.now, Event::Hook(call))
    };
    let _ = call(HookOp::Prepare, 2);
    let _ = call(HookOp::Start, 2);
    let _ = call(HookOp::Release, 1);
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
}

#[test]
fn the_death_of_the_libvirt_that_held_a_start_closes_it_with_a_later_scan() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
    node.scan_with(&[], &[LIBVIRTD]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn a_start_that_shows_no_process_for_long_is_asked_about_and_closed_by_libvirts_word_and_a_scan() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.actions.clear();
    node.run_dry(1035.0);
    assert!(node.actions.iter().any(|action| matches!(action, Action::AskStarts)));
    let asked = node.now;
    node.step(Event::StartsInFlight { asked, domains: vec![WEB] });
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some(), "it is in flight");
    let asked = node.now;
    node.step(Event::StartsInFlight { asked, domains: vec![] });
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn what_libvirt_executed_while_it_was_asked_is_in_no_scan_that_had_begun_before_it_answered() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.run_dry(1035.0);
    let asked = node.now;
    // The start that was in flight when the question was sent becomes a QEMU before libvirt answers.
    let early = Scan { began: asked + Duration::from_millis(5), copies: vec![], dead_daemons: vec![] };
    node.at(1035.1);
    node.step(Event::StartsInFlight { asked, domains: vec![] });
    node.step(Event::Scanned(early));
    assert!(node.guard.ledger().domains[&WEB].admission.is_some(), "it had begun before QEMU was there");
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn a_start_that_an_earlier_guard_let_through_is_asked_about_at_once_for_its_release_may_have_been_missed() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    let mut next = Guard::new(policy(), ME, Memory::Restored(ledger));
    let turn = next.step(secs(1011.0), Event::Tick);
    assert!(turn.actions.iter().any(|action| matches!(action, Action::AskStarts)));
    let _ = next.step(secs(1011.1), Event::StartsInFlight { asked: secs(1011.0), domains: vec![] });
    assert!(next.ledger().domains[&WEB].admission.is_some(), "only a later scan shows that nothing came of it");
    let scan = Scan { began: secs(1011.2), copies: vec![], dead_daemons: vec![] };
    let _ = next.step(secs(1011.2), Event::Scanned(scan));
    assert!(next.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn no_start_while_an_earlier_process_is_not_proven_gone() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    assert_eq!(node.hook(WEB, HookOp::Prepare), None, "it may be proven gone within the hook's time");
    node.at(1012.8);
    let sentence = refusal(node.verdict_after(Event::Tick));
    assert!(sentence.contains("process 41 is not proven gone"), "{sentence}");
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    assert_eq!(node.verdict_after(Event::Gone { domain: WEB, process }), Some(Verdict::Allow));
}

#[test]
fn an_incoming_claim_admits_a_migration_and_not_a_plain_start() {
    let mut node = Node::new();
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[claim(WEB, ClaimKind::Incoming, 3)]);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let question = node.ask();
    let answer = node.answer_to(&question, &[claim(WEB, ClaimKind::Incoming, 3)]);
    let sentence = refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    assert!(sentence.contains("by live migration"), "{sentence}");
    for op in [HookOp::Migrate, HookOp::Prepare, HookOp::Start, HookOp::Started] {
        assert_eq!(node.hook(WEB, op), Some(Verdict::Allow), "{op:?}");
    }
}

/// `migrate` was let through, and nothing came of it that any hook told of.
fn announced() -> Node {
    let mut node = Node::new();
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[claim(WEB, ClaimKind::Incoming, 3)]);
    assert_eq!(node.hook(WEB, HookOp::Migrate), Some(Verdict::Allow));
    node
}

#[test]
fn a_migrate_speaks_for_the_prepare_that_follows_at_once_and_for_no_later_one() {
    let mut node = announced();
    node.at(1004.0);
    assert_eq!(node.hook(WEB, HookOp::Prepare), Some(Verdict::Allow));
    let mut node = announced();
    node.at(1003.0);
    node.answer(&[claim(WEB, ClaimKind::Incoming, 3)]);
    node.at(1005.5);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None, "a plain start, which waits for an answer that allows it");
    assert!(node.guard.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn a_migrate_does_not_outlive_the_guard_that_heard_it_for_its_release_may_have_been_missed() {
    let node = announced();
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    let mut next = Node::with(policy(), Memory::Restored(ledger));
    assert_eq!(next.hook(WEB, HookOp::Prepare), None, "a plain start, which waits for an answer that allows it");
}

#[test]
fn a_hold_runs_on_and_starts_nothing() {
    let mut node = Node::running(1010.0);
    for _ in 0..10 {
        node.answer(&[claim(WEB, ClaimKind::Hold, 1)]);
    }
    assert!(killed(&node.actions).is_empty());
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.step(Event::Gone { domain: WEB, process });
    node.question = None;
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let question = node.ask();
    let answer = node.answer_to(&question, &[claim(WEB, ClaimKind::Hold, 1)]);
    assert!(refusal(node.verdict_after(Event::Answered(Box::new(answer)))).contains("on hold"));
}

#[test]
fn reconnect_refuses_only_what_is_positively_over() {
    let mut node = Node::running(1010.0);
    assert_eq!(node.hook(DB, HookOp::Reconnect), Some(Verdict::Allow), "unknown");
    assert_eq!(node.hook(WEB, HookOp::Reconnect), Some(Verdict::Allow), "leased");
    node.run_dry(1026.0);
    assert!(refusal(node.hook(WEB, HookOp::Reconnect)).contains("ran out"));
    node.question = None;
    node.answer(&[deny(WEB, 2)]);
    assert!(refusal(node.hook(WEB, HookOp::Reconnect)).contains("is over"));
}

#[test]
fn every_end_is_allowed_whatever_is_known() {
    let mut node = Node::new();
    for op in [HookOp::Stopped, HookOp::Release, HookOp::OtherEnd] {
        assert_eq!(node.hook(WEB, op), Some(Verdict::Allow));
    }
}

#[test]
fn a_lease_of_a_newer_epoch_does_not_renew_the_process_of_an_older_one() {
    let mut node = Node::running(1010.0);
    let actions = node.answer(&[allow(WEB, 9)]);
    assert_eq!(destroyed(&actions), 1);
    assert!(killed(&node.actions).is_empty());
    let condemned = node.now;
    assert_eq!(node.run_dry(1020.0), [(condemned + Duration::from_secs(2), 41)]);
}

#[test]
fn a_process_that_started_before_its_admission_was_not_admitted_by_it() {
    let mut node = Node::leased(1010.0);
    let mut old = node.copy(WEB, 40);
    old.started = secs(1009.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.scan(&[old]);
    let entry = &node.guard.ledger().domains[&WEB];
    assert_eq!((entry.copies[0].epoch, entry.admission.is_some()), (None, true));
}

#[test]
fn a_domain_found_running_is_asked_about_adopted_if_allowed_and_killed_if_denied() {
    for (answer, kills) in [(allow(WEB, 4), 0), (deny(WEB, 4), 1)] {
        let mut node = Node::new();
        node.answer(&[]);
        let copy = node.copy(WEB, 41);
        node.scan(std::slice::from_ref(&copy));
        node.answer(&[answer]);
        assert_eq!(node.run_dry(node.now.as_nanos() as f64 / 1e9 + 3.0).len(), kills);
    }
}

#[test]
fn a_denial_does_not_reach_a_process_that_appeared_after_its_question_was_sent() {
    let mut node = Node::new();
    node.answer(&[]);
    node.step(Event::Hinted(vec![WEB]));
    let question = node.ask();
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    let answer = node.answer_to(&question, &[deny(WEB, 4)]);
    node.step(Event::Answered(Box::new(answer)));
    assert!(node.guard.ledger().domains[&WEB].copies[0].dying.is_none(), "its own question is still to come");
    node.question = None;
    node.answer(&[deny(WEB, 4)]);
    assert!(node.guard.ledger().domains[&WEB].copies[0].dying.is_some());
}

#[test]
fn a_domain_found_running_with_nobody_answering_gets_its_chance_and_dies() {
    let mut node = Node::new();
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    let found = node.now;
    assert_eq!(node.run_dry(1030.0), [(found + Duration::from_secs(6), 41)]);
}

#[test]
fn a_scan_begun_before_release_closes_no_start() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    let began = node.now;
    node.at(1011.0);
    node.hook(WEB, HookOp::Release);
    node.step(Event::Scanned(Scan { began, copies: vec![], dead_daemons: vec![] }));
    assert!(node.guard.ledger().domains[&WEB].admission.is_some(), "it may have looked before the process was there");
    node.scan(&[]);
    assert_eq!(node.guard.ledger().domains[&WEB].admission, None);
}

#[test]
fn libvirts_word_of_before_a_start_says_nothing_about_it() {
    let mut node = Node::leased(1010.0);
    let asked = node.now;
    node.at(1010.5);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.step(Event::StartsInFlight { asked, domains: vec![] });
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
}

#[test]
fn a_process_belongs_to_no_start_that_has_not_passed_start() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    let found = node.copy(WEB, 41);
    node.scan(&[found]);
    assert_eq!(node.guard.ledger().domains[&WEB].copies[0].epoch, None, "found running");
}

#[test]
fn a_hook_that_has_given_up_is_refused_though_its_lease_has_come() {
    let mut node = Node::new();
    node.question = None;
    node.hook(WEB, HookOp::Prepare);
    let question = node.ask();
    node.now = node.now + Duration::from_millis(2700);
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    let sentence = refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    assert!(sentence.contains("no verdict in time"), "{sentence}");
    assert_eq!(node.guard.ledger().domains[&WEB].admission, None, "nothing would end it");
}

#[test]
fn from_lapse_on_nothing_is_started_and_nothing_that_was_prepared() {
    let mut node = Node::leased(1010.0);
    node.at(1022.5);
    assert_eq!(node.hook(WEB, HookOp::Prepare), Some(Verdict::Allow));
    node.at(1023.1);
    assert_eq!(node.hook(WEB, HookOp::Start), None, "lapse was at 1022.99");
    let mut node = Node::leased(1010.0);
    node.at(1023.1);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
}

#[test]
fn no_second_start_while_one_may_be_executing() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None, "the first one's process may come yet");
    let sentence = refusal({
        node.now = node.now + Duration::from_millis(2700);
        node.verdict_after(Event::Tick)
    });
    assert!(sentence.contains("is not proven over"), "{sentence}");
}
