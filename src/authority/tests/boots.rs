//! Whose word counts as a node's.

use super::*;

#[test]
fn the_same_machine_booted_again_is_a_receipt_for_all_its_old_boot_had() {
    let (mut desk, mut n1) = running();
    n1.bound_ms = Some(60_000);
    desk.ask(&mut n1);
    desk.revoke();
    desk.pass(secs(30));
    n1.reboot(desk.now - secs(2));
    desk.ask(&mut n1);
    let proof = desk.lease().last_proof.unwrap();
    assert_eq!((proof.proof, proof.after_ms), (Proof::Reboot, 30_000));
}

#[test]
fn what_a_node_still_owns_when_it_boots_again_stays_its_own() {
    let (mut desk, mut n1) = running();
    desk.pass(secs(30));
    n1.reboot(desk.now - secs(2));
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Allow);
    assert_eq!(desk.owner(), Some((n("n1"), Epoch(1))));
}

#[test]
fn a_boot_that_began_before_the_old_one_was_last_heard_is_another_machine() {
    let (mut desk, mut n1) = running();
    n1.bound_ms = Some(60_000);
    desk.pass(secs(30));
    desk.ask(&mut n1);
    desk.revoke();
    desk.pass(secs(5));
    n1.reboot(desk.now - secs(6));
    let answer = desk.ask(&mut n1);
    assert_eq!((answer.ttl_ms, answer.claims.domains), (0, Some(Vec::new())));
    assert!(
        answer.conflict.unwrap().starts_with("a boot that began before boot 01010101 was last heard asks as node n1")
    );
    assert_eq!(desk.lease().state, LeaseState::Revoking);
}

#[test]
fn two_hosts_with_one_id_start_nothing_until_one_is_silent_for_its_bound() {
    let (mut desk, mut first) = running();
    let mut second = Guard { boot: 7, incarnation: 7, machine: "clone", ..Guard::new("n1") };
    desk.pass(secs(10));
    second.booted = desk.now;
    assert!(desk.ask(&mut second).conflict.is_some());
    let answer = desk.ask(&mut first);
    assert!(answer.conflict.is_some() && answer.ttl_ms > 0);
    assert_eq!(answer.claims.domains.unwrap()[0].claim, ClaimKind::Hold);
    desk.pass(Duration::from_millis(BOUND - 1));
    assert_eq!(desk.ask(&mut second).ttl_ms, 0);
    desk.pass(Duration::from_millis(1));
    let answer = desk.ask(&mut second);
    assert_eq!((answer.conflict, answer.claims.domains.unwrap()[0].claim), (None, ClaimKind::Allow));
    // The first one is the stranger now, whatever its machine.
    assert!(desk.ask(&mut first).conflict.unwrap().contains("asks as node n1 (boot 01010101) beside boot 07070707"));
}

#[test]
fn a_conflict_ends_when_the_other_host_falls_silent() {
    let (mut desk, mut first) = running();
    let mut second = Guard { boot: 7, incarnation: 7, machine: "clone", ..Guard::new("n1") };
    desk.ask(&mut second);
    for _ in 0..20 {
        desk.pass(secs(3));
        desk.ask(&mut first);
    }
    let answer = desk.ask(&mut first);
    assert_eq!((answer.conflict, answer.claims.domains.unwrap()[0].claim), (None, ClaimKind::Allow));
}

#[test]
fn a_machine_that_cannot_show_which_it_is_waits_for_its_old_boots_bound() {
    let (mut desk, mut n1) = (Desk::new(), Guard { machine: "", ..Guard::new("n1") });
    desk.grant("n1").unwrap();
    desk.ask(&mut n1);
    desk.pass(secs(20));
    n1.reboot(desk.now - secs(5));
    assert!(desk.ask(&mut n1).conflict.unwrap().contains("cannot show which it is"));
    desk.pass(secs(6));
    assert_eq!(desk.ask(&mut n1).conflict, None);
}

#[test]
fn such_a_machine_is_no_more_itself_for_having_been_served_long() {
    let (mut desk, mut n1) = (Desk::new(), Guard { machine: "", ..Guard::new("n1") });
    desk.grant("n1").unwrap();
    for _ in 0..4 {
        desk.ask(&mut n1);
        desk.pass(secs(10));
    }
    n1.reboot(desk.now - secs(5));
    assert!(desk.ask(&mut n1).conflict.unwrap().contains("cannot show which it is"));
}

#[test]
fn no_silence_frees_what_was_held_on_lapse_when_it_was_revoked() {
    let (mut desk, mut first) = running();
    first.held = true;
    desk.ask(&mut first);
    desk.revoke();
    desk.pass(secs(600));
    let booted = desk.now - secs(5);
    let mut second = Guard { boot: 7, incarnation: 7, machine: "clone", booted, ..Guard::new("n1") };
    assert!(desk.ask(&mut second).conflict.is_some(), "its receipt would be for what the first one still holds");
}

#[test]
fn a_delayed_question_of_the_old_boot_raises_no_alarm() {
    let (mut desk, mut n1) = running();
    desk.pass(secs(30));
    let again = n1.question(desk.now);
    desk.try_ask("n1", again.clone()).unwrap();
    desk.pass(secs(1));
    let delayed = n1.question(desk.now);
    desk.pass(secs(5));
    n1.reboot(desk.now - secs(3));
    desk.ask(&mut n1);
    assert_eq!(desk.try_ask("n1", again).unwrap_err().kind, RefusalKind::Conflict);
    assert_eq!(desk.try_ask("n1", delayed).unwrap_err().kind, RefusalKind::Conflict);
    assert_eq!(desk.ask(&mut n1).conflict, None);
}

#[test]
fn an_old_boot_that_goes_on_asking_was_another_machine_after_all() {
    let (mut desk, mut n1) = running();
    let mut old = n1.clone();
    desk.pass(secs(30));
    n1.reboot(desk.now - secs(3));
    desk.ask(&mut n1);
    desk.pass(secs(1));
    assert!(desk.ask(&mut old).conflict.is_some());
    assert!(desk.ask(&mut n1).conflict.is_some());
}

#[test]
fn an_operators_word_frees_what_an_unbounded_machine_had() {
    let (mut desk, mut n1) = running();
    n1.bound_ms = None;
    desk.ask(&mut n1);
    desk.revoke();
    let mut new = Guard { boot: 7, incarnation: 7, machine: "new board", ..Guard::new("n1") };
    desk.pass(secs(10_000));
    assert!(desk.ask(&mut new).conflict.is_some());
    desk.apply(|book, now| book.accept(now, &n("n1"))).unwrap();
    assert_eq!(desk.lease().last_proof.unwrap().proof, Proof::Operator);
    assert_eq!(desk.ask(&mut new).conflict, None);
    assert!(desk.apply(|book, now| book.accept(now, &n("n1"))).is_err());
}

#[test]
fn a_boot_right_after_another_waits_until_no_question_of_an_older_one_can_be_under_way() {
    let (mut desk, mut n1) = running();
    desk.pass(secs(30));
    n1.reboot(desk.now - secs(10));
    let mut lost = n1.clone();
    let delayed = lost.question(desk.now - secs(8));
    n1.reboot(desk.now - secs(5));
    desk.ask(&mut n1);
    desk.pass(secs(3));
    assert!(
        desk.try_ask("n1", delayed).unwrap().conflict.unwrap().starts_with("another boot within 30 s asks as node n1")
    );
    assert_eq!(desk.owner(), Some((n("n1"), Epoch(1))));
}

#[test]
fn silence_proves_nothing_of_a_domain_that_is_held_on_lapse() {
    let (mut desk, mut first) = running();
    first.held = true;
    desk.ask(&mut first);
    let mut second = Guard { boot: 7, incarnation: 7, machine: "clone", ..Guard::new("n1") };
    desk.pass(secs(10_000));
    assert!(desk.ask(&mut second).conflict.is_some());
}

#[test]
fn a_boot_that_ended_does_not_come_back_by_a_late_question() {
    let (mut desk, mut n1) = running();
    let mut old = n1.clone();
    old.booted = desk.now - secs(1);
    let late = old.question(desk.now);
    desk.pass(secs(30));
    n1.reboot(desk.now - secs(10));
    n1.bound_ms = Some(100_000);
    desk.ask(&mut n1);
    desk.restart();
    desk.pass(secs(40));
    assert!(desk.try_ask("n1", late).unwrap().conflict.unwrap().starts_with("a boot that this node had before"));
}
