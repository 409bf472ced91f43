//! What survives the guard.

use super::*;

#[test]
fn a_restarted_guard_goes_on_from_its_ledger() {
    let node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    let copy = node.guard.ledger().domains[&WEB].copies[0].process;
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    assert_eq!(ledger.to_bytes(), node.guard.ledger().to_bytes());
    let mut next = Node::with(policy(), Memory::Restored(ledger));
    next.at(1012.0);
    let started = secs(1010.0);
    let seen = SeenCopy { domain: WEB, name: "web-1".into(), process: copy, started, state: CopyState::Running };
    next.scan(&[seen]);
    assert_eq!(next.run_dry(1030.0), [(expires, 41)], "neither sooner nor later than its lease");
}

#[test]
fn a_kill_ordered_by_an_earlier_guard_is_ordered_again() {
    let mut node = Node::running(1010.0);
    node.run_dry(1026.0);
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    let mut next = Guard::new(policy(), ME, Memory::Restored(ledger));
    let turn = next.step(secs(1026.5), Event::Tick);
    assert_eq!(killed(&turn.actions), [41]);
}

#[test]
fn a_ledger_of_another_boot_is_forgotten_and_a_broken_one_is_lost() {
    let bytes = Node::running(1010.0).guard.ledger().to_bytes();
    assert!(matches!(Ledger::recover(&bytes, BootId::from_bytes([8; 16])), Recovered::OtherBoot));
    assert!(matches!(Ledger::recover(&bytes[..bytes.len() - 1], BOOT), Recovered::Unusable(_)));
    assert!(matches!(Ledger::recover(b"", BOOT), Recovered::Unusable(_)));
    let future = String::from_utf8(bytes).unwrap().replacen("\"version\":1", "\"version\":2", 1);
    let Recovered::Unusable(why) = Ledger::recover(future.as_bytes(), BOOT) else { panic!() };
    assert!(why.contains("format 2"), "{why}");
}

#[test]
fn a_guard_without_memory_permits_admits_and_receipts_nothing_until_libvirt_is_quiet_and_a_later_scan_is_whole() {
    let mut node = Node::with(policy(), Memory::Lost(BOOT));
    assert_eq!(node.guard.permit(), BootTime::ZERO);
    assert!(node.actions.iter().any(|action| matches!(action, Action::AskStarts)));
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[allow(WEB, 1)]);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let asked = node.now;
    assert_eq!(node.verdict_after(Event::StartsInFlight { asked, domains: vec![DB] }), None, "one is in flight");
    let asked = node.now;
    node.at(1000.2);
    assert_eq!(node.verdict_after(Event::StartsInFlight { asked, domains: vec![] }), None, "no scan since");
    let early = Scan { began: asked + Duration::from_millis(5), copies: vec![], dead_daemons: vec![] };
    assert_eq!(node.verdict_after(Event::Scanned(early)), None, "it had begun before libvirt answered");
    let actions = node.scan(&[]);
    assert_eq!(verdict(&actions, HookId(node.hooks)), Some(Verdict::Allow));
    assert!(node.guard.permit() > node.now);
}

#[test]
fn denials_are_remembered_and_the_ledger_stays_small() {
    let mut node = Node::new();
    let ids: Vec<_> =
        (0..2500u16).map(|i| DomainId::from_bytes([i.to_be_bytes(); 8].concat().try_into().unwrap())).collect();
    for chunk in ids.chunks(500) {
        node.step(Event::Hinted(chunk.to_vec()));
        node.question = None;
        let denials: Vec<_> = chunk.iter().map(|&id| deny(id, 3)).collect();
        node.answer(&denials);
        node.scan(&[]);
        node.answer(&[]);
    }
    node.step(Event::Tick);
    assert_eq!(node.guard.ledger().domains.len(), 1000);
    assert!(node.guard.ledger().domains.contains_key(ids.last().unwrap()), "the newest are kept");
}

#[test]
fn a_lost_ledger_is_not_made_good_by_a_scan_begun_before_libvirt_was_quiet_nor_while_a_start_is_in_flight() {
    let mut node = Node::with(policy(), Memory::Lost(BOOT));
    node.step(Event::StartsInFlight { asked: node.now, domains: vec![DB] });
    node.scan(&[]);
    assert_eq!(node.guard.permit(), BootTime::ZERO, "one is in flight");
    let began = node.now + Duration::from_millis(10);
    node.at(began.as_nanos() as f64 / 1e9 + 0.1);
    node.step(Event::StartsInFlight { asked: node.now, domains: vec![] });
    node.step(Event::Scanned(Scan { began, copies: vec![], dead_daemons: vec![] }));
    assert_eq!(node.guard.permit(), BootTime::ZERO, "that scan may have missed it");
    node.scan(&[]);
    assert!(node.guard.permit() > node.now);
}

#[test]
fn a_guard_that_lost_its_ledger_gives_no_receipt() {
    let mut node = Node::with(policy(), Memory::Lost(BOOT));
    node.question = None;
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    node.question = None;
    assert_eq!(node.ask().receipts, [], "a start may be in flight that nobody remembers");
}
