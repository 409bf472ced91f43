//! SIGKILL at any instant loses nothing that was answered, and makes no second owner.

use super::harness::*;
use leasehold::cli::controller::LeaseAction;
use leasehold::protocol::*;
use std::time::{Duration, Instant};

#[test]
fn a_grant_that_was_answered_outlives_sigkill_at_any_instant() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = Authority::start(dir.path());
    let mut answered = Vec::new();
    for round in 0..4_u8 {
        let controller = authority.controller();
        let (say, said) = std::sync::mpsc::channel();
        let granting = std::thread::spawn(move || {
            for n in 1..=60 {
                let domain = domain(round * 60 + n);
                match controller.grant(domain, &grant(if n % 2 == 0 { "n1" } else { "n2" })) {
                    Ok(lease) => say.send((domain, lease.owner.unwrap())).unwrap(),
                    Err(_) => return,
                }
            }
        });
        // In the middle of its grants: after some were answered, and while more are asked for.
        for _ in 0..5 + 7 * usize::from(round) {
            answered.extend(said.recv_timeout(PATIENCE));
        }
        authority.restart(dir.path());
        granting.join().unwrap();
        answered.extend(said.try_iter());
    }
    assert!(answered.len() >= 60, "{}", answered.len());
    let controller = authority.controller();
    let mut epochs = Vec::new();
    for (domain, owner) in answered {
        let kept = controller.lease(domain).unwrap().owner.unwrap();
        assert_eq!((&kept.node, kept.epoch), (&owner.node, owner.epoch), "{domain}");
        epochs.push(kept.epoch);
    }
    epochs.sort();
    epochs.dedup();
    assert_eq!(
        epochs.len(),
        controller.leases().unwrap().iter().filter(|l| epochs.contains(&l.owner.as_ref().unwrap().epoch)).count()
    );
}

#[test]
fn a_move_resumes_after_sigkill_and_waits_for_the_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = Authority::start(dir.path());
    let mut n1 = authority.node("n1");
    // No bound: time alone must not complete it.
    n1.bound_ms = None;
    n1.name(domain(1), "web-1", NamedState::Running);
    authority.controller().grant(domain(1), &grant("n1")).unwrap();
    assert_eq!(n1.claim(domain(1)).claim, ClaimKind::Allow);
    authority.controller().move_to(domain(1), id("n2")).unwrap();
    authority.restart(dir.path());
    let lease = authority.controller().lease(domain(1)).unwrap();
    assert_eq!((lease.state, lease.then, lease.owner), (LeaseState::Revoking, Some(id("n2")), None));
    assert!(authority.controller().grant(domain(1), &grant("n3")).is_err());

    let denial = n1.claim(domain(1));
    assert_eq!((denial.claim, denial.reason.as_deref()), (ClaimKind::Deny, Some("moving to node n2")));
    n1.receipt(&denial);
    n1.names.clear();
    n1.ask();
    let lease = authority.controller().lease(domain(1)).unwrap();
    assert_eq!((lease.owner.unwrap().node, lease.last_proof.unwrap().proof), (id("n2"), Proof::Receipt));
}

#[test]
fn an_acknowledged_receipt_is_not_lost_by_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = Authority::start(dir.path());
    let mut n1 = authority.node("n1");
    n1.bound_ms = None;
    n1.name(domain(1), "web-1", NamedState::Running);
    authority.controller().grant(domain(1), &grant("n1")).unwrap();
    n1.ask();
    authority.controller().act(domain(1), LeaseAction::Revoke).unwrap();
    let denial = n1.claim(domain(1));
    n1.receipt(&denial);
    n1.ask();
    authority.restart(dir.path());
    assert_eq!(authority.controller().lease(domain(1)).unwrap().state, LeaseState::Free);
}

#[test]
fn a_lease_is_taken_as_claimed_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = Authority::start(dir.path());
    let mut n1 = authority.node("n1");
    n1.ask();
    let controller = authority.controller();
    controller.grant(domain(1), &grant("n1")).unwrap();
    let lease = controller.act(domain(1), LeaseAction::Revoke).unwrap();
    assert_eq!((lease.state, lease.last_proof.unwrap().proof), (LeaseState::Free, Proof::NeverClaimed));

    controller.grant(domain(1), &grant("n1")).unwrap();
    authority.restart(dir.path());
    let lease = authority.controller().act(domain(1), LeaseAction::Revoke).unwrap();
    assert_eq!(lease.state, LeaseState::Revoking);
}

#[test]
fn a_second_authority_on_the_same_data_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Authority::start(dir.path());
    let second = command(dir.path(), "127.0.0.1:0", &[]).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && said.contains("another leasehold-authority has "), "{said}");
}

#[test]
fn sigterm_ends_it_at_once_with_status_0_even_while_a_watch_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = Authority::start(dir.path());
    let client = authority.client();
    let seen: WatchAnswer = client.json("GET", "/v1/nodes/n1/watch", None, PATIENCE).unwrap();
    let path = format!("/v1/nodes/n1/watch?seen={}", seen.version);
    let held = std::thread::spawn(move || client.json::<WatchAnswer>("GET", &path, None, PATIENCE).is_err());
    let start = Instant::now();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(authority.pid()), nix::sys::signal::SIGTERM).unwrap();
    assert!(authority.exit().success());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    held.join().unwrap();
}
