//! Moves, migrations, fences, and what is forgotten.

use super::*;

#[test]
fn a_move_completes_by_itself_and_after_a_restart() {
    let (mut desk, _) = running();
    desk.apply(|book, now| book.move_to(now, D, &n("n2"))).unwrap();
    desk.restart();
    assert_eq!(desk.lease().then, Some(n("n2")));
    desk.pass(Duration::from_millis(BOUND));
    assert_eq!(desk.owner(), Some((n("n2"), Epoch(2))));
    // To the present owner: nothing to do.
    assert_eq!(desk.apply(|book, now| book.move_to(now, D, &n("n2"))).unwrap().owner.unwrap().epoch, Epoch(2));
}

#[test]
fn a_move_to_a_node_that_was_fenced_meanwhile_waits_for_its_unfence() {
    let (mut desk, _) = running();
    desk.apply(|book, now| book.move_to(now, D, &n("n2"))).unwrap();
    desk.apply(|book, now| book.fence(now, &n("n2"))).unwrap();
    desk.pass(Duration::from_millis(BOUND));
    assert_eq!(desk.owner(), None);
    desk.apply(|book, now| book.unfence(now, &n("n2"))).unwrap();
    assert_eq!(desk.owner(), Some((n("n2"), Epoch(2))));
}

#[test]
fn a_finished_migration_makes_the_destination_owner_when_the_source_is_gone() {
    let (mut desk, mut n1) = running();
    let view = desk.migrate("n1", "n2");
    assert_eq!((view.owner.unwrap().epoch, view.incoming.unwrap().epoch), (Epoch(1), Epoch(2)));
    let mut n2 = Guard::new("n2");
    assert_eq!(desk.claim(&mut n2).claim, ClaimKind::Incoming);
    // After the cut-over a start at the source would be a second copy.
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Hold);
    desk.apply(|book, now| book.moved(now, D)).unwrap();
    assert_eq!(desk.claim(&mut n2).claim, ClaimKind::Incoming);
    let denial = desk.claim(&mut n1);
    assert_eq!(denial.reason.as_deref(), Some("migrated to node n2"));
    n1.receipt = Some(denial.epoch);
    desk.ask(&mut n1);
    assert_eq!(desk.owner(), Some((n("n2"), Epoch(2))));
    assert_eq!(desk.claim(&mut n2).claim, ClaimKind::Allow);
}

#[test]
fn an_aborted_migration_leaves_the_source_alone_and_a_revoked_one_takes_both() {
    let (mut desk, mut n1) = running();
    let mut n2 = Guard::new("n2");
    desk.migrate("n1", "n2");
    desk.claim(&mut n2);
    let view = desk.apply(|book, now| book.abort(now, D)).unwrap();
    assert_eq!((view.owner.unwrap().node, view.leaving[0].node.clone()), (n("n1"), n("n2")));
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Allow);
    assert_eq!(desk.claim(&mut n2).reason.as_deref(), Some("migration aborted"));
    desk.pass(Duration::from_millis(BOUND));
    desk.ask(&mut n1);
    desk.migrate("n1", "n2");
    desk.claim(&mut n2);
    let view = desk.revoke();
    assert_eq!((view.owner, view.incoming, view.leaving.len()), (None, None, 2));
}

#[test]
fn a_destination_that_was_never_told_is_gone_at_once_and_the_source_is_still_waited_for() {
    let (mut desk, _) = running();
    desk.migrate("n1", "n2");
    let view = desk.apply(|book, now| book.move_to(now, D, &n("n3"))).unwrap();
    assert_eq!((view.owner, view.leaving.len(), view.leaving[0].node.clone()), (None, 1, n("n1")));
}

#[test]
fn when_both_ends_report_it_running_the_older_epochs_copy_dies() {
    let (mut desk, mut n1) = running();
    let mut n2 = Guard::new("n2");
    desk.migrate("n1", "n2");
    desk.ask(&mut n1);
    (n2.state, n2.epoch) = (NamedState::Paused, Some(Epoch(2)));
    desk.ask(&mut n2);
    desk.ask(&mut n1);
    desk.ask(&mut n1);
    assert_eq!(desk.owner(), Some((n("n1"), Epoch(1))), "a paused destination is what a migration looks like");
    n2.state = NamedState::Running;
    desk.ask(&mut n2);
    // This one may have been asked before the destination ran.
    let seen = desk.book.watch(&n("n1")).version;
    assert_eq!(desk.claim(&mut n1).claim, ClaimKind::Hold);
    assert_ne!(desk.book.watch(&n("n1")).version, seen, "its watch says to ask again at once");
    let denial = desk.claim(&mut n1);
    assert_eq!(denial.reason.as_deref(), Some("it runs on node n2 too, under a newer epoch"));
    assert_eq!(desk.owner(), None);
}

#[test]
fn a_fence_revokes_everything_on_a_node_and_grants_it_nothing() {
    let (mut desk, mut n1) = running();
    let view = desk.apply(|book, now| book.fence(now, &n("n1"))).unwrap();
    assert_eq!((view.fenced, view.owns, view.leaving), (true, 0, 1));
    let answer = desk.ask(&mut n1);
    assert_eq!((answer.ttl_ms, answer.claims.domains.unwrap()[0].reason.as_deref()), (0, Some("node is fenced")));
    desk.restart();
    assert!(desk.grant("n1").unwrap_err().text.contains("node n1 is fenced since then"));
    desk.pass(Duration::from_millis(BOUND));
    assert!(desk.book.is_clear(&n("n1")));
    desk.apply(|book, now| book.unfence(now, &n("n1"))).unwrap();
    desk.grant("n1").unwrap();
}

#[test]
fn fencing_the_source_revokes_a_migration_and_fencing_the_destination_aborts_it() {
    let (mut desk, _) = running();
    let mut n2 = Guard::new("n2");
    desk.migrate("n1", "n2");
    desk.ask(&mut n2);
    desk.apply(|book, now| book.fence(now, &n("n2"))).unwrap();
    let view = desk.lease();
    assert_eq!((view.owner.unwrap().node, view.leaving.len()), (n("n1"), 1));
    let (mut desk, _) = running();
    desk.migrate("n1", "n2");
    desk.ask(&mut n2);
    desk.apply(|book, now| book.fence(now, &n("n1"))).unwrap();
    let view = desk.lease();
    assert_eq!((view.owner, view.incoming, view.leaving.len()), (None, None, 2));
}

#[test]
fn a_forgotten_domain_leaves_the_book_when_it_is_gone() {
    let (mut desk, mut n1) = running();
    assert!(desk.apply(|book, now| book.forget(now, D)).unwrap().is_some());
    assert_eq!(desk.claim(&mut n1).reason.as_deref(), Some("forgotten by its controller"));
    desk.pass(Duration::from_millis(BOUND));
    assert_eq!(desk.disk.leases.len(), 0);
    assert_eq!(desk.claim(&mut n1).reason.as_deref(), Some("never granted"));
}
