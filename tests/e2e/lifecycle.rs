//! One host, one authority: what ends a domain, and what must not.

use crate::harness::{Direction, Domain, Site, World, wait_until};
use leasehold::node::clock;
use nix::sys::signal::Signal;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// L of the `fast` profile.
const TTL: Duration = Duration::from_secs(5);

#[test]
fn a_start_without_a_lease_is_refused_and_with_one_it_runs() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    let said = node.start(&domain).expect_failure();
    assert!(said.contains(&format!("no lease for domain web-1 ({}): never granted", domain.uuid)), "{said}");
    assert_eq!(node.host.qemu(&domain), None);
    // A controller that granted a moment ago must not be told no.
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.start(&domain).expect_ok();
    wait_until("the guard knew it as running", SOON, || {
        node.status(&domain).is_some_and(|known| known["state"] == "running" && known["lease"] == "held")
    });
}

#[test]
fn a_revoked_domain_is_destroyed_and_the_receipt_follows_its_death() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    // The moment it is said to be gone it must be.
    assert_eq!(node.host.qemu(&domain), None);
    let lease = site.show(&domain);
    assert_eq!((&lease["state"], &lease["last_proof"]["proof"]), (&"free".into(), &"receipt".into()), "{lease}");
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&domain).starts_with("shut off"));
    assert_eq!(node.host.state(&domain), "shut off (destroyed)", "or Masakari would restart it elsewhere");
    let said = node.start(&domain).expect_failure();
    assert!(said.contains("no lease for domain web-1"), "{said}");
}

#[test]
fn with_the_authority_gone_a_domain_runs_until_its_lease_ends_and_no_longer() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    site.kill_authority();
    let end = node.expires(&domain);
    // D (1 s) before its end libvirt is asked to destroy it; nothing may touch it earlier.
    while clock::now() < end - Duration::from_millis(1000) {
        let alive = node.host.qemu(&domain).is_some();
        // Looked at first, so that what was seen was before.
        assert!(alive || clock::now() >= end - Duration::from_millis(1000), "dead {:?} early", end.left(clock::now()));
        std::thread::sleep(Duration::from_millis(20));
    }
    node.host.wait_until_gone(&domain, SOON);
    // SIGKILL within 20 ms of E; the rest is for QEMU's own exit on a loaded machine.
    assert!(clock::now().since(end) < Duration::from_secs(1), "dead {:?} late", clock::now().since(end));
    // And when the authority is back, it runs again, under the same lease.
    site.start_authority();
    wait_until("the lease was renewed", SOON, || {
        node.status(&domain).is_some_and(|known| known["lease"] == "held" && known["state"] == "wanted")
    });
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&domain).starts_with("shut off"));
    node.start(&domain).expect_ok();
}

#[test]
fn a_cut_link_in_either_direction_ends_it_and_the_receipt_comes_when_it_heals() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    for (name, direction) in [("out", Direction::Outgoing), ("in", Direction::Incoming)] {
        let domain = Domain::new(name);
        node.run_leased(&site, "n1", &domain);
        node.link.cut(&node.host, direction);
        site.lease(&["revoke", &domain.uuid]).expect_ok();
        node.host.wait_until_gone(&domain, SOON);
        assert_eq!(site.show(&domain)["state"], "revoking", "nobody has told the authority");
        node.link.heal(&node.host);
        wait_until("the receipt came", SOON, || site.show(&domain)["state"] == "free");
    }
}

/// The CloudStack story (#14206), first half: a report collected before a start and processed after it.
#[test]
fn a_question_sent_before_the_start_and_answered_after_it_changes_nothing_for_that_domain() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node_without_guard("n1", "");
    // Every answer is held back for most of an interval, so each start overtakes answers to earlier questions.
    let forwarder = node.delay_answers(&world, "n1", "0.6", "");
    node.start_guard();
    for name in ["a", "b", "c"] {
        let domain = Domain::new(name);
        node.host.define(&domain);
        wait_until("a question was under way", SOON, || {
            let before = forwarder.log().lines().count();
            before % 2 == 1
        });
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        node.start(&domain).expect_ok();
        let pid = node.host.qemu(&domain).expect("it runs");
        std::thread::sleep(TTL + Duration::from_secs(1));
        assert_eq!(node.host.qemu(&domain), Some(pid), "{}", node.guard.as_ref().unwrap().log());
    }
}

/// The second half: a domain its controller has forgotten runs on for ever. Here it dies, and only then is it gone.
#[test]
fn a_domain_the_controller_has_forgotten_is_killed_and_only_then_is_the_receipt_out() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("i-2-3-VM");
    node.run_leased(&site, "n1", &domain);
    let pid = node.host.qemu(&domain).expect("it runs");
    // It does not die at once: stopped, it handles no SIGTERM, so libvirt's destroy takes long and SIGKILL ends it.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    site.lease(&["forget", &domain.uuid]).expect_ok();
    while node.host.qemu(&domain).is_some() {
        let shown = site.lease(&["show", &domain.uuid, "--json"]);
        // Asked before looking again: as long as it lives, the authority must not have let go.
        if node.host.qemu(&domain).is_some() {
            assert!(shown.ok(), "the authority let go of a domain that runs");
        }
    }
    wait_until("the record was gone", SOON, || !site.lease(&["show", &domain.uuid]).ok());
}

#[test]
fn an_observing_node_refuses_and_kills_nothing_and_says_what_it_would_have_done() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "mode = \"observe\"");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    node.start(&domain).expect_ok();
    let guard = node.guard.as_mut().unwrap();
    guard.wait_for_log("observing: would refuse", SOON);
    guard.wait_for_log("observing: would kill", SOON);
    std::thread::sleep(TTL);
    assert!(node.host.qemu(&domain).is_some());
    // With the guard away it refuses nothing either.
    node.kill_guard();
    let other = Domain::new("web-2");
    node.host.define(&other);
    node.start(&other).expect_ok();
}

#[test]
fn a_fenced_node_loses_everything_and_the_command_returns_when_it_is_gone() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let (one, two) = (Domain::new("one"), Domain::new("two"));
    node.run_leased(&site, "n1", &one);
    node.run_leased(&site, "n1", &two);
    site.control(&["fence", "n1", "--wait"]).expect_ok();
    assert_eq!((node.host.qemu(&one), node.host.qemu(&two)), (None, None));
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&one).starts_with("shut off"));
    let said = node.start(&one).expect_failure();
    assert!(said.contains("no lease for domain one"), "{said}");
    site.control(&["unfence", "n1"]).expect_ok();
    site.lease(&["grant", &one.uuid, "n1"]).expect_ok();
    node.start(&one).expect_ok();
}
