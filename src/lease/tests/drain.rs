//! Planned work: a drained node starts nothing, and only an empty one may stop its watchdog.

use super::*;

#[test]
fn a_drained_node_refuses_starts_with_what_ends_that_and_renews_what_runs() {
    let mut node = Node::running(1010.0);
    node.step(Event::Drain(true));
    let sentence = refusal(node.hook(DB, HookOp::Prepare));
    assert!(sentence.contains("node n1 is drained") && sentence.contains("leasehold undrain"), "{sentence}");
    for _ in 0..10 {
        node.answer(&[allow(WEB, 1)]);
    }
    assert!(killed(&node.actions).is_empty(), "what runs is not driven out");
    node.step(Event::Drain(false));
    node.step(Event::Hinted(vec![DB]));
    node.answer(&[allow(WEB, 1), allow(DB, 2)]);
    assert_eq!(node.hook(DB, HookOp::Prepare), Some(Verdict::Allow));
}

#[test]
fn the_proof_that_all_is_gone_needs_a_drain_and_a_whole_scan_begun_after_it_that_found_nothing() {
    let mut node = Node::running(1010.0);
    let copy = node.guard.ledger().domains[&WEB].copies[0].process;
    assert!(node.guard.all_gone().is_none());
    node.step(Event::Drain(true));
    node.step(Event::Gone { domain: WEB, process: copy });
    assert!(node.guard.all_gone().is_none(), "no scan since");
    node.scan(&[]);
    assert!(node.guard.all_gone().is_some());
    // Started past the hook: the proof is over.
    let found = node.copy(WEB, 77);
    node.scan(&[found]);
    assert!(node.guard.all_gone().is_none());
}

#[test]
fn nothing_is_proven_without_a_drain_nor_while_a_start_is_admitted() {
    let mut node = Node::leased(1010.0);
    node.scan(&[]);
    assert!(node.guard.all_gone().is_none(), "the next start would meet a stopped watchdog");
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.step(Event::Drain(true));
    node.scan(&[]);
    assert!(node.guard.all_gone().is_none(), "an admission is a copy (rule 8)");
}

#[test]
fn a_drain_outlives_the_guard_and_asking_twice_does_not_begin_it_anew() {
    let mut node = Node::leased(1010.0);
    node.step(Event::Drain(true));
    let since = node.guard.ledger().drained;
    node.at(1011.0).step(Event::Drain(true));
    assert_eq!(node.guard.ledger().drained, since);
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    assert_eq!(ledger.drained, since);
}

#[test]
fn the_bound_is_stated_from_when_the_watchdog_is_armed_until_it_can_no_more_be_relied_on() {
    let mut node = Node::leased(1010.0);
    let bound = Some(Duration::from_secs(26));
    for bound in [bound, None] {
        node.step(Event::Watchdog { bound });
        assert_eq!(node.ask().bound, bound);
        assert_eq!(node.guard.view(node.now).bound_ms, bound.map(|bound| bound.as_millis() as u64));
    }
}
