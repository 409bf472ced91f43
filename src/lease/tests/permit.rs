//! Rule 4: until when a watchdog may be fed.

use super::*;

#[test]
fn the_permit_ends_a_feed_period_before_the_earliest_lease_of_a_living_domain() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    // Scans and turns go on; nothing is renewed.
    for s in 1011..1018 {
        node.at(s as f64);
        node.scan(&[]);
    }
    assert_eq!(node.guard.permit(), expires - Duration::from_secs(1));
}

#[test]
fn a_lease_with_nothing_running_under_it_does_not_limit_the_permit() {
    let mut node = Node::leased(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.at(1020.0);
    node.scan(&[]);
    assert!(node.guard.permit() > expires);
}

#[test]
fn an_open_admission_limits_the_permit_like_a_running_domain() {
    let mut node = Node::leased(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.hook(WEB, HookOp::Prepare);
    node.at(1020.0);
    node.scan(&[]);
    assert_eq!(node.guard.permit(), expires - Duration::from_secs(1));
}

#[test]
fn a_domain_found_running_stops_the_permit_until_an_answer_has_named_it() {
    let mut node = Node::new();
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    assert!(node.guard.permit() <= node.now);
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    assert!(node.guard.permit() > node.now);
}

#[test]
fn what_was_found_running_and_never_allowed_is_not_fed_for_whether_it_is_denied_or_nobody_answers() {
    for denied in [true, false] {
        let mut node = Node::new();
        let copy = node.copy(WEB, 41);
        node.scan(std::slice::from_ref(&copy));
        let seen = node.now;
        if denied {
            node.question = None;
            node.answer(&[deny(WEB, 1)]);
        }
        for s in 1001..1012 {
            node.run_dry(f64::from(s));
            node.scan(std::slice::from_ref(&copy));
            assert!(node.guard.permit() <= seen, "at {s}, denied: {denied}");
        }
        assert_eq!(killed(&node.actions), [41]);
    }
}

#[test]
fn what_is_found_running_while_nobody_answers_is_killed_before_the_device_that_is_not_fed_fires() {
    for profile in [Profile::Default, Profile::Fast] {
        let timing = Timing::profile(profile);
        let mut node = Node::with(Policy { timing, ..policy() }, Memory::First(BOOT));
        let copy = node.copy(WEB, 41);
        node.scan(&[copy]);
        let fires = node.now + timing.watchdog - timing.feed();
        let killed_at = node.run_dry(1020.0)[0].0;
        // A third of what it grants is left for the process to end in.
        assert!(killed_at <= fires - (timing.watchdog - timing.feed()) / 3, "{profile:?}");
    }
}

#[test]
fn a_scan_that_hangs_makes_the_permit_pass_whatever_the_leases_say() {
    let mut node = Node::new();
    let scanned = node.now;
    for _ in 0..8 {
        node.answer(&[]);
    }
    assert!(node.guard.permit() <= scanned + Duration::from_secs(15));
}

#[test]
fn a_condemned_process_keeps_its_old_limit_though_the_domain_is_renewed() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.run_dry(expires.as_nanos() as f64 / 1e9 - 1.5);
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    node.scan(&[]);
    assert_eq!(node.guard.permit(), expires - Duration::from_secs(1));
}

#[test]
fn what_cannot_be_killed_resets_the_host_or_is_reported_for_as_long_as_contact_lasts() {
    for (unkillable, fed_on) in [(Unkillable::Reset, false), (Unkillable::Report, true)] {
        let mut node = Node::with(Policy { unkillable, ..policy() }, Memory::First(BOOT));
        node.step(Event::Watchdog { bound: Some(Duration::from_secs(26)) });
        let copy = node.copy(WEB, 41);
        node.scan(std::slice::from_ref(&copy));
        node.answer(&[allow(WEB, 1)]);
        // Over two whole leases it is denied, struck and lives on, and every question is answered.
        for round in 1..=10 {
            node.at(1000.0 + 3.0 * f64::from(round));
            node.answer(&[deny(WEB, 1)]);
            node.scan(std::slice::from_ref(&copy));
        }
        assert_eq!(killed(&node.actions), [41]);
        assert_eq!(node.guard.permit() > node.now, fed_on, "{unkillable:?}");
        assert_eq!(node.ask().bound.is_some(), !fed_on, "a bound would be a lie");
        let end = node.now + Duration::from_secs(15);
        node.run_dry(end.as_nanos() as f64 / 1e9);
        node.scan(&[copy]);
        assert!(node.guard.permit() <= node.now, "without contact nobody hears that it lives: {unkillable:?}");
    }
}

#[test]
fn a_bound_outlives_the_guard_that_promised_it_but_not_its_timeline() {
    let mut node = Node::new();
    let bound = Duration::from_secs(26);
    node.step(Event::Watchdog { bound: Some(bound) });
    let bytes = node.guard.ledger().to_bytes();
    let Recovered::Restored(ledger) = Ledger::recover(&bytes, BOOT) else { panic!("it is of this boot") };
    let (promise, timing) = (ledger.promise.unwrap(), policy().timing);
    let needs = timing.watchdog;
    assert_eq!(promise.still_holds(&timing, false, needs), Some(bound));
    let slower = Timing { ttl: Duration::from_secs(16), ..timing };
    assert_eq!(promise.still_holds(&slower, false, needs), None);
    assert_eq!(promise.still_holds(&timing, false, needs * 2), None, "another device, that needs longer");
    // What the device turned out not to be good for is promised by nobody any more.
    node.step(Event::Watchdog { bound: None });
    assert_eq!(node.guard.ledger().promise, None);
}

/// Struck and alive: WEB runs under a lease of 1010, is denied at 1011 and killed at 1013.
fn struck(policy: Policy) -> (Node, SeenCopy) {
    let mut node = Node::with(policy, Memory::First(BOOT));
    node.step(Event::Watchdog { bound: Some(Duration::from_secs(26)) });
    let said = |node: &mut Node, s: f64, claim: ClaimEntry| {
        node.at(s);
        node.question = None;
        node.step(Event::Hinted(vec![WEB]));
        node.answer(&[claim]);
    };
    said(&mut node, 1010.0, allow(WEB, 1));
    assert_eq!(node.hook(WEB, HookOp::Prepare), Some(Verdict::Allow));
    assert_eq!(node.hook(WEB, HookOp::Start), Some(Verdict::Allow));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    said(&mut node, 1011.0, deny(WEB, 1));
    node.at(1013.5);
    node.step(Event::Tick);
    assert_eq!(killed(&node.actions), [41]);
    (node, copy)
}

#[test]
fn the_reset_is_decided_on_half_way_from_e_to_it_and_not_while_feeding_is_allowed() {
    let (mut node, _) = struck(policy());
    let copy = node.guard.ledger().domains[&WEB].copies[0].clone();
    let decided = policy().timing.given_up(copy.expires);
    assert_eq!(decided, secs(1029.4925), "E, which the denial left as it was, and half of 10 s - 1 s");
    let mut wakes = vec![];
    while node.now < decided {
        assert!(!node.guard.fences(), "not before: {:?}", node.now);
        node.now = node.guard.wake_at(node.now).max(node.now + Duration::from_nanos(1));
        node.step(Event::Tick);
        wakes.push(node.now);
    }
    assert_eq!(node.now, decided, "it wakes for it: {wakes:?}");
    assert!(node.guard.fences() && node.guard.permit() < node.now);
    let told = |node: &Node| {
        node.actions.iter().filter(|a| matches!(a, Action::Tell(n) if n.text.contains("given up"))).count()
    };
    node.at(1040.0);
    node.step(Event::Tick);
    assert_eq!(told(&node), 1, "said once");
}

#[test]
fn what_is_gone_after_all_is_no_reason_for_a_reset_any_more() {
    let (mut node, copy) = struck(policy());
    node.run_dry(1035.0);
    assert!(node.guard.fences());
    node.step(Event::Gone { domain: WEB, process: copy.process });
    assert!(!node.guard.fences());
}

#[test]
fn no_reset_is_decided_on_where_none_would_come() {
    for policy in [Policy { unkillable: Unkillable::Report, ..policy() }, Policy { lapse: Lapse::Hold, ..policy() }] {
        let (mut node, _) = struck(policy);
        node.run_dry(1060.0);
        assert!(!node.guard.fences());
        let given_up = |action: &Action| matches!(action, Action::Tell(notice) if notice.text.contains("given up"));
        assert!(!node.actions.iter().any(given_up), "nor is it said");
    }
}

#[test]
fn what_is_held_on_lapse_ends_no_permit() {
    let mut node = Node::with(Policy { lapse: Lapse::Hold, ..policy() }, Memory::First(BOOT));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    node.at(1060.0);
    node.scan(&[copy]);
    assert!(node.guard.permit() > node.now, "its lease is long over, and it is to run on");
}
