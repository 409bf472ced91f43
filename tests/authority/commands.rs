//! The commands against a real authority: what they print, and what their exit status promises.

use super::harness::*;
use clap::Parser;
use leasehold::cli::{Exit, Terminal, fence, lease, node};
use leasehold::protocol::*;
use std::time::{Duration, Instant};

#[derive(Parser)]
enum Commands {
    Lease(lease::Lease),
    Fence(fence::Fence),
    Unfence(fence::Unfence),
    Node(node::Node),
}

/// Runs a command line; its exit, standard output and standard error.
fn run(authority: &Authority, line: &str) -> (Exit, String, String) {
    let url = authority.url();
    let words = ["leasehold"].into_iter().chain(line.split(' ')).chain(["--endpoint", &url]);
    let command = Commands::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut terminal = Terminal::new(&mut out, &mut err);
    let exit = match &command {
        Commands::Lease(command) => lease::run(command, &mut terminal),
        Commands::Fence(command) => fence::run(command, &mut terminal),
        Commands::Unfence(command) => fence::run_unfence(command, &mut terminal),
        Commands::Node(command) => node::run(command, &mut terminal),
    };
    drop(terminal);
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn done(authority: &Authority, line: &str) -> String {
    let (exit, out, err) = run(authority, line);
    assert_eq!(exit, Exit::Done, "{line}: {out}{err}");
    out
}

#[test]
fn the_command_lines_are_sound() {
    <Commands as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn a_domain_is_granted_shown_listed_and_revoked_by_uuid_or_by_its_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let uuid = domain(1);
    assert!(done(&authority, &format!("lease grant {uuid} n1 --name web-1")).contains("owned by n1 since "));
    assert!(done(&authority, "lease show web-1").starts_with(&format!("web-1 ({uuid}): held\n")));
    let list = done(&authority, "lease list");
    assert!(list.lines().nth(1).unwrap().starts_with(&format!("{uuid}  web-1  held   n1     1      ")), "{list}");
    let json: serde_json::Value = serde_json::from_str(&done(&authority, "lease list --json")).unwrap();
    assert_eq!(json["leases"][0]["owner"]["node"], "n1");

    let (exit, _, err) = run(&authority, "lease grant web-1 n2");
    assert_eq!(exit, Exit::Refused);
    assert!(err.contains(" is owned by node n1 since ") && err.ends_with("(status 409)\n"), "{err}");
    let (exit, _, err) = run(&authority, "lease show nobody");
    assert_eq!(
        (exit, err.as_str()),
        (Exit::Refused, "leasehold: no lease is of a domain named 'nobody'; name its uuid\n")
    );
    done(&authority, &format!("lease grant {} n1 --name web-1", domain(2)));
    assert!(run(&authority, "lease show web-1").2.contains("2 domains are named 'web-1'"));

    assert!(done(&authority, &format!("lease revoke {uuid}")).contains(": free"));
    assert!(done(&authority, &format!("lease forget {uuid}")).contains(": forgotten"));
    assert_eq!(run(&authority, &format!("lease show {uuid}")).0, Exit::Refused);
}

#[test]
fn a_move_says_whom_it_waits_for_and_ends_when_the_new_owner_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    done(&authority, &format!("lease grant {} n1", domain(1)));
    let mut n1 = authority.node("n1");
    n1.name(domain(1), "web-1", NamedState::Running);
    n1.ask();
    let start = Instant::now();
    let (exit, out, err) = run(&authority, "lease move web-1 n2");
    assert_eq!(exit, Exit::Done, "{err}");
    assert!(start.elapsed() > Duration::from_millis(1000));
    assert!(out.contains("owned by n2"), "{out}");
    assert!(err.contains("n1 ") && err.contains(": web-1 (") && err.contains(" safe in "), "{err}");
    assert!(err.contains("n1: its bound passed, "), "{err}");
}

#[test]
fn a_healthy_node_is_not_waited_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    done(&authority, &format!("lease grant {} n1", domain(1)));
    let mut n1 = authority.node("n1");
    n1.name(domain(1), "web-1", NamedState::Running);
    let seen = n1.ask();
    assert!(seen.ttl_ms > 0);
    let healthy = std::thread::spawn(move || {
        // A guard: asks when its watch says so, obeys, and says that it has.
        let watch: WatchAnswer = n1.client.json("GET", "/v1/nodes/n1/watch", None, PATIENCE).unwrap();
        let path = format!("/v1/nodes/n1/watch?seen={}", watch.version);
        let mut denial = n1.claim(domain(1));
        if denial.claim != ClaimKind::Deny {
            n1.client.json::<WatchAnswer>("GET", &path, None, Duration::from_secs(40)).unwrap();
            denial = n1.claim(domain(1));
        }
        n1.receipt(&denial);
        n1.ask();
    });
    let (exit, _, err) = run(&authority, "lease move web-1 n2");
    healthy.join().unwrap();
    assert_eq!(exit, Exit::Done);
    assert!(err.starts_with("n1: receipt in 0.") && err.lines().count() == 1, "{err}");
}

#[test]
fn a_wait_that_is_not_long_enough_ends_with_3_and_says_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    done(&authority, &format!("lease grant {} n1", domain(1)));
    let mut n1 = authority.node("n1");
    n1.bound_ms = None;
    n1.name(domain(1), "web-1", NamedState::Running);
    n1.ask();
    for line in ["lease move web-1 n2 --timeout 1", "lease wait web-1 --timeout 0", "fence n1 --wait --timeout 0"] {
        let (exit, _, err) = run(&authority, line);
        assert_eq!(exit, Exit::NotYet, "{line}: {err}");
        let left = "promises no bound: waiting for its receipt of web-1 (01010101-0101-0101-0101-010101010101)";
        assert!(err.contains("not proven gone in the time given: n1 ") && err.contains(left), "{err}");
    }
    let (_, out, _) = run(&authority, "lease wait web-1 --timeout 0 --json");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["safe"], &json["leaving"][0]["node"]), (&false.into(), &"n1".into()));
}

#[test]
fn a_fence_that_waits_ends_with_0_only_when_the_node_may_be_evacuated() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let mut n1 = authority.node("n1");
    for n in 1..=3 {
        done(&authority, &format!("lease grant {} n1", domain(n)));
        n1.name(domain(n), &format!("web-{n}"), NamedState::Running);
    }
    n1.ask();
    let asked = Instant::now();
    let (exit, out, err) = run(&authority, "fence n1 --wait");
    assert_eq!(exit, Exit::Done, "{err}");
    assert!(asked.elapsed() > Duration::from_millis(1000));
    assert!(out.contains("it may be evacuated"), "{out}");
    assert!(err.contains(": 3 domains safe in "), "{err}");
    let view: NodeView = serde_json::from_str(&done(&authority, "node show n1 --json")).unwrap();
    assert_eq!((view.fenced, view.leaving), (true, 0));
    assert!(done(&authority, "node list").contains("n1    enforcing, fenced"));
    assert_eq!(done(&authority, "unfence n1"), "n1: not fenced\n");
    let (exit, _, err) = run(&authority, "node accept n1");
    assert!(exit == Exit::Refused && err.contains("nothing is to be accepted"), "{err}");
}

#[test]
fn a_migration_is_opened_and_closed_by_command() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let uuid = domain(1);
    done(&authority, &format!("lease grant {uuid} n1 --name web-1"));
    assert!(done(&authority, "lease grant web-1 n1 --incoming n2").contains("migrating to n2"));
    assert!(!done(&authority, "lease abort web-1").contains("migrating"));
    done(&authority, "lease grant web-1 n1 --incoming n2");
    assert!(done(&authority, "lease moved web-1").contains("owned by n2"));
    assert_eq!(run(&authority, "lease moved web-1").0, Exit::Refused);
}

#[test]
fn an_authority_that_is_away_is_said_to_be_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = Authority::start(dir.path());
    authority.kill();
    let (exit, _, err) = run(&authority, "lease list");
    assert_eq!(exit, Exit::Refused);
    assert!(err.starts_with(&format!("leasehold: no answer from {}: ", authority.url())), "{err}");
}
