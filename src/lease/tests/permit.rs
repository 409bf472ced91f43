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
    assert_eq!(ledger.promised(&policy().timing), Some(bound));
    let slower = Timing { ttl: Duration::from_secs(16), ..policy().timing };
    assert_eq!(ledger.promised(&slower), None);
    // What the device turned out not to be good for is promised by nobody any more.
    node.step(Event::Watchdog { bound: None });
    assert_eq!(node.guard.ledger().promised(&policy().timing), None);
}
