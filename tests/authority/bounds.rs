//! A silent node's copies are gone when its bound has passed, and not a moment before.

use super::harness::*;
use leasehold::cli::controller::{LeaseAction, NodeAction};
use leasehold::protocol::*;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_millis(1500);

/// An authority, a controller's view of it, and a node that was allowed to run domain 1 just now and is silent.
fn silent(dir: &std::path::Path) -> (Authority, Instant) {
    let authority = Authority::start(dir);
    let mut n1 = authority.node("n1");
    n1.name(domain(1), "web-1", NamedState::Running);
    authority.controller().grant(domain(1), &grant("n1")).unwrap();
    // The answer is issued after this instant, so the bound cannot pass before it and the bound.
    let asked = Instant::now();
    assert_eq!(n1.claim(domain(1)).claim, ClaimKind::Allow);
    (authority, asked)
}

#[test]
fn a_silent_node_is_safe_at_its_bound_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, asked) = silent(dir.path());
    let controller = authority.controller();
    let lease = controller.move_to(domain(1), id("n2")).unwrap();
    let safe_in = lease.leaving[0].safe_in_ms.unwrap();
    assert!(safe_in > 0 && safe_in <= 1500, "{safe_in}");
    assert!(!controller.wait_lease(domain(1), Duration::from_millis(50)).unwrap().safe);
    let wait = controller.wait_lease(domain(1), PATIENCE).unwrap();
    let took = asked.elapsed();
    assert!(wait.safe && took >= BOUND, "{took:?}");
    assert!(took < BOUND + Duration::from_millis(800), "{took:?}: told late");
    let lease = controller.lease(domain(1)).unwrap();
    assert_eq!((lease.owner.unwrap().node, lease.last_proof.unwrap().proof), (id("n2"), Proof::Bound));
}

#[test]
fn a_restart_of_the_authority_counts_the_bound_from_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut authority, asked) = silent(dir.path());
    authority.controller().act(domain(1), LeaseAction::Revoke).unwrap();
    while asked.elapsed() < BOUND / 2 {
        assert!(!authority.controller().wait_lease(domain(1), Duration::from_millis(100)).unwrap().safe);
    }
    let restarted = Instant::now();
    authority.restart(dir.path());
    let wait = authority.controller().wait_lease(domain(1), PATIENCE).unwrap();
    assert!(wait.safe && restarted.elapsed() >= BOUND, "{:?}", restarted.elapsed());
}

#[test]
fn a_node_without_a_bound_is_waited_for_until_its_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let controller = authority.controller();
    let mut n1 = authority.node("n1");
    n1.bound_ms = None;
    n1.name(domain(1), "web-1", NamedState::Running);
    controller.grant(domain(1), &grant("n1")).unwrap();
    n1.ask();
    controller.act(domain(1), LeaseAction::Revoke).unwrap();
    let wait = controller.wait_lease(domain(1), Duration::from_millis(2000)).unwrap();
    assert_eq!((wait.safe, wait.safe_in_ms, wait.leaving.len()), (false, None, 1));
}

#[test]
fn a_fenced_node_is_renewed_nothing_and_is_clear_at_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, _) = silent(dir.path());
    let controller = authority.controller();
    let mut n1 = authority.node("n1");
    n1.boot = 1;
    n1.name(domain(1), "web-1", NamedState::Running);
    let view = controller.act_on_node(&id("n1"), NodeAction::Fence).unwrap();
    assert_eq!((view.fenced, view.owns, view.leaving), (true, 0, 1));
    assert!(controller.grant(domain(2), &grant("n1")).unwrap_err().to_string().contains("node n1 is fenced since "));
    // It goes on asking, which must not put its bound off.
    let start = Instant::now();
    let mut answers = 0;
    while !controller.wait_node(&id("n1"), Duration::from_millis(100)).unwrap().safe {
        if let Ok(answer) = n1.try_ask() {
            assert_eq!(answer.ttl_ms, 0);
            let claims = answer.claims.domains.unwrap();
            assert_eq!((claims[0].claim, claims[0].reason.as_deref()), (ClaimKind::Deny, Some("node is fenced")));
            answers += 1;
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(answers > 3 && start.elapsed() < BOUND + Duration::from_millis(800), "{answers} {:?}", start.elapsed());
    assert!(!controller.act_on_node(&id("n1"), NodeAction::Unfence).unwrap().fenced);
    assert!(controller.grant(domain(1), &grant("n1")).is_ok());
}

#[test]
fn a_watch_is_answered_within_the_call_that_changes_something() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, _) = silent(dir.path());
    let client = authority.client();
    let first: WatchAnswer = client.json("GET", "/v1/nodes/n1/watch", None, PATIENCE).unwrap();
    let path = format!("/v1/nodes/n1/watch?seen={}", first.version);
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let answer = client.json::<WatchAnswer>("GET", &path, None, Duration::from_secs(40));
        say.send((answer.unwrap(), Instant::now())).unwrap();
    });
    // Nothing about it has changed, so it is held; another node's affairs are none of it.
    let controller = authority.controller();
    controller.grant(domain(2), &grant("n2")).unwrap();
    assert!(said.recv_timeout(Duration::from_millis(300)).is_err());
    controller.grant(domain(3), &grant("n1")).unwrap();
    let granted = Instant::now();
    let (answer, woken) = said.recv_timeout(PATIENCE).unwrap();
    assert_ne!(answer.version, first.version);
    assert_eq!(answer.name_next, [domain(3)]);
    assert!(woken.saturating_duration_since(granted) < Duration::from_secs(1), "not at the end of its 30 s");
}

#[test]
fn a_quiet_node_is_answered_with_a_tag_and_an_unknown_list_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, _) = silent(dir.path());
    let mut n1 = authority.node("n1");
    n1.boot = 1;
    let path = "/v1/nodes/n1/renew";
    let client = authority.client();
    let ask = |question: &RenewRequest| client.json::<RenewAnswer>("POST", path, Some(question), PATIENCE).unwrap();
    n1.name(domain(1), "web-1", NamedState::Running);
    n1.question();
    let full = n1.question();
    let answer = ask(&full);
    let mut brief = n1.question();
    brief.list = QuestionList { digest: full.list.digest, domains: None, claims_tag: Some(answer.claims.tag.clone()) };
    let quiet = ask(&brief);
    assert_eq!((quiet.ttl_ms, quiet.claims), (1000, Claims { tag: answer.claims.tag, domains: None }));
    let mut other = n1.question();
    other.list = QuestionList { digest: "another".to_owned(), domains: None, claims_tag: None };
    let unknown = ask(&other);
    assert_eq!((unknown.ttl_ms, unknown.list_wanted), (0, true));
}

#[test]
fn a_second_machine_with_a_nodes_id_is_renewed_nothing_until_an_operator_accepts_it() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let controller = authority.controller();
    let mut first = authority.node("n1");
    first.bound_ms = None;
    first.name(domain(1), "web-1", NamedState::Wanted);
    controller.grant(domain(1), &grant("n1")).unwrap();
    assert_eq!(first.claim(domain(1)).claim, ClaimKind::Allow);
    let mut second = authority.node("n1");
    (second.boot, second.machine) = (2, "a clone".to_owned());
    second.name(domain(1), "web-1", NamedState::Wanted);
    let answer = second.ask();
    assert_eq!((answer.ttl_ms, answer.claims.domains), (0, Some(Vec::new())));
    assert!(answer.conflict.unwrap().starts_with("another machine asks as node n1"));
    // The first one keeps what runs, and starts nothing.
    let answer = first.ask();
    assert!(answer.ttl_ms > 0 && answer.conflict.is_some());
    assert_eq!(answer.claims.domains.unwrap()[0].claim, ClaimKind::Hold);
    let view = controller.act_on_node(&id("n1"), NodeAction::Accept).unwrap();
    assert_eq!(view.conflict, None);
    assert_eq!(second.claim(domain(1)).claim, ClaimKind::Allow);
}
