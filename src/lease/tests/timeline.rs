//! The timeline: from lapse to SIGKILL, and what is never killed.

use super::*;

#[test]
fn on_lapse_libvirt_is_asked_first_and_at_the_end_of_the_lease_comes_sigkill() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    let lapse = expires - Duration::from_secs(2);
    node.run_dry((lapse.as_nanos() - 1) as f64 / 1e9);
    assert_eq!(destroyed(&node.actions), 0, "a nanosecond before lapse");
    node.now = lapse;
    let actions = node.step(Event::Tick);
    assert_eq!((destroyed(&actions), killed(&actions).len()), (1, 0));
    assert_eq!(node.run_dry(1030.0), [(expires, 41)]);
}

#[test]
fn a_renewal_after_lapse_does_not_bring_a_condemned_process_back() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.run_dry(expires.as_nanos() as f64 / 1e9 - 1.0);
    node.answer(&[allow(WEB, 1)]);
    assert!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires > expires);
    assert_eq!(node.run_dry(expires.as_nanos() as f64 / 1e9 + 1.0), [(expires, 41)]);
}

#[test]
fn a_revoked_domain_is_destroyed_at_once_and_killed_after_the_polite_time() {
    let mut node = Node::running(1010.0);
    let actions = node.answer(&[deny(WEB, 2)]);
    assert_eq!(destroyed(&actions), 1);
    let denied = node.now;
    assert_eq!(node.run_dry(1020.0), [(denied + Duration::from_secs(2), 41)]);
}

#[test]
fn a_revocation_never_lets_a_domain_outlive_its_lease() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.run_dry(expires.as_nanos() as f64 / 1e9 - 2.001);
    node.at(expires.as_nanos() as f64 / 1e9 - 1.9);
    // The last question is denied a moment after lapse: 2 s of politeness from now would be too long.
    node.answer(&[deny(WEB, 2)]);
    assert_eq!(node.run_dry(1030.0), [(expires, 41)]);
}

#[test]
fn a_domain_held_on_lapse_runs_on_and_dies_only_when_revoked() {
    let rules = vec![Rule { name: Some("web-*".into()), domain: None, lapse: Lapse::Hold }];
    let mut node = Node::with(Policy { rules, ..policy() }, Memory::First(BOOT));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    assert!(node.ask().domains[0].held_on_lapse, "so the authority knows that no bound covers it");
    assert_eq!(node.run_dry(1300.0), []);
    node.question = None;
    let actions = node.answer(&[deny(WEB, 2)]);
    assert_eq!(destroyed(&actions), 1);
}

/// Found by the model: b was given it by the bound, six seconds after it had lapsed here and was held.
#[test]
fn what_the_authority_was_not_told_to_be_held_dies_at_its_lapse() {
    let rules = vec![Rule { name: Some("web-*".into()), domain: None, lapse: Lapse::Hold }];
    let mut node = Node::with(Policy { rules, ..policy() }, Memory::First(BOOT));
    node.step(Event::Hinted(vec![WEB]));
    assert!(!node.ask().domains[0].held_on_lapse, "nobody has told its name yet");
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    assert_eq!(node.hook(WEB, HookOp::Prepare), Some(Verdict::Allow));
    assert_eq!(node.hook(WEB, HookOp::Start), Some(Verdict::Allow));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    assert_eq!(
        node.run_dry(1300.0).len(),
        1,
        "the authority counts the bound until it has answered to `held_on_lapse`"
    );
}

#[test]
fn a_start_of_what_is_held_says_so_in_its_first_question() {
    let mut node = Node::with(Policy { lapse: Lapse::Hold, ..policy() }, Memory::First(BOOT));
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    assert!(node.ask().domains[0].held_on_lapse);
}

#[test]
fn an_observing_node_kills_nothing_refuses_nothing_and_receipts_only_what_really_ended() {
    let mut node = Node::with(Policy { observe: true, ..policy() }, Memory::First(BOOT));
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let question = node.ask();
    let answer = node.answer_to(&question, &[deny(WEB, 7)]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), Some(Verdict::Allow));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    node.answer(&[deny(WEB, 7)]);
    assert_eq!(node.run_dry(1100.0), []);
    assert_eq!(destroyed(&node.actions), 0);
    let would =
        |a: &&Action| matches!(a, Action::Tell(n) if n.text.contains("would refuse") || n.text.contains("would kill"));
    assert_eq!(node.actions.iter().filter(would).count(), 2);
    node.scan(&[]);
    assert_eq!(node.ask().receipts, []);
    node.step(Event::Gone { domain: WEB, process: copy.process });
    node.scan(&[]);
    node.question = None;
    assert_eq!(node.ask().receipts.len(), 1);
}
