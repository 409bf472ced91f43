//! Planned work on a host: drain, stop, undrain.

use crate::harness::{Domain, Site, World, wait_until};
use nix::sys::signal::Signal;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_drained_host_starts_nothing_and_is_empty_when_its_last_domain_has_ended() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let (running, waiting) = (Domain::new("running"), Domain::new("waiting"));
    node.run_leased(&site, "n1", &running);
    node.host.define(&waiting);
    site.lease(&["grant", &waiting.uuid, "n1"]).expect_ok();

    let mut draining = node.host.start("drain", crate::harness::leasehold(), &["drain", "--wait"]);
    draining.wait_for_log("nothing starts here until", SOON);
    let said = node.start(&waiting).expect_failure();
    assert!(said.contains("is not started: node n1 is drained"), "{said}");
    assert!(!draining.has_ended() && node.host.qemu(&running).is_some(), "what runs is not driven out");
    // The drain is the node's, not its guard's.
    node.kill_guard();
    // Whoever waits looks twice a second, and finds nobody.
    std::thread::sleep(Duration::from_millis(1200));
    assert!(!draining.has_ended(), "{}", draining.log());
    node.start_guard();
    assert!(node.start(&waiting).expect_failure().contains("node n1 is drained"));
    node.host.virsh(&["destroy", "running"]).expect_ok();
    assert!(draining.wait_for_end(SOON).success(), "{}", draining.log());
    assert!(draining.log().contains("node n1: empty"), "{}", draining.log());

    node.host.leasehold(&["undrain"]).expect_ok();
    node.start(&waiting).expect_ok();
}

#[test]
fn a_guard_that_is_stopped_says_what_that_means_and_takes_nothing_with_it() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    wait_until("the guard knew it", SOON, || node.status(&domain).is_some_and(|known| known["state"] == "running"));
    let mut guard = node.guard.take().expect("it runs");
    guard.signal(Signal::SIGTERM);
    assert!(guard.wait_for_end(SOON).success());
    assert!(guard.log().contains("the guard stops; one domain runs on"), "{}", guard.log());
    assert!(node.host.qemu(&domain).is_some());
}
