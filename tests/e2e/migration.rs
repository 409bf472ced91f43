//! Live migration between two real hosts: what lets it in, and how the domain changes hands. `virsh migrate` alone
//! leaves the order at cut-over to libvirt; `leasehold migrate` never lets two copies run.

use crate::harness::{Domain, Pair, Site, World, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const AT_NO_INSTANT: Duration = Duration::ZERO;

#[test]
fn a_migration_nobody_told_the_authority_of_is_refused_and_the_source_runs_on_under_its_lease() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, _) = pair.run(&site, &domain);
    let before = site.show(&domain);
    let said = pair.virsh_migrate(&domain, &[]).expect_failure();
    assert!(said.contains(&format!("no lease for domain web-1 ({}): owned by node n1", domain.uuid)), "{said}");
    assert!(source.runs_now() && pair.two.host.qemu(&domain).is_none());
    let after = site.show(&domain);
    assert_eq!((&before["owner"]["epoch"], &before["state"]), (&after["owner"]["epoch"], &after["state"]));
    assert_eq!(pair.one.status(&domain).unwrap()["lease"], "held");
}

#[test]
fn unpaused_libvirt_cuts_over_by_itself_and_the_new_copy_runs_on_under_its_own_epoch() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    pair.open(&site, &domain);
    pair.virsh_migrate(&domain, &["--persistent"]).expect_ok();
    wait_until("it ran at its destination", SOON, || destination.runs_now());
    let pid = pair.two.host.qemu(&domain);
    // Nobody has said `moved`: the source owns it still, and must not start it again.
    wait_until("the source had cleaned up", SOON, || pair.one.host.qemu(&domain).is_none());
    wait_until("the source was told to hold", SOON, || {
        pair.one.status(&domain).is_some_and(|it| it["lease"] == "hold")
    });
    let said = pair.one.start(&domain).expect_failure();
    assert!(said.contains("is on hold at its controller"), "{said}");
    site.lease(&["moved", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert_eq!(site.show(&domain)["owner"]["node"], "n2");
    wait_until("its guard knew", SOON, || pair.two.status(&domain).is_some_and(|known| known["lease"] == "held"));
    assert!(destination.runs_now() && pair.two.host.qemu(&domain) == pid, "the new copy is not the one that dies");
    assert_eq!(source.overlap(&destination), AT_NO_INSTANT);
}

#[test]
fn leasehold_migrate_hands_over_once_the_source_is_proven_gone_and_said_twice_is_done_once() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    let said = pair.migrate(&site, &domain, &[]).expect_ok();
    assert!(said.contains("owned by n2") && said.contains("running there"), "{said}");
    assert!(destination.runs_now(), "done means that it runs");
    assert_eq!((pair.one.host.qemu(&domain), source.overlap(&destination)), (None, AT_NO_INSTANT));
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
    // Said twice is done once.
    pair.migrate(&site, &domain, &[]).expect_ok();
    assert_eq!(pair.two.host.state(&domain), "running (unpaused)");
}

#[test]
fn a_copy_that_has_come_stays_paused_until_the_handover_and_a_new_guard_resumes_it_too() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    pair.open(&site, &domain);
    // With the source's guard away nobody proves the source gone.
    pair.one.kill_guard();
    pair.virsh_migrate(&domain, &["--suspend"]).expect_ok();
    site.lease(&["moved", &domain.uuid]).expect_ok();
    wait_until("it was reported paused", SOON, || site.show(&domain)["incoming"]["reported"] == "paused");
    assert!(!site.lease(&["wait", &domain.uuid, "--timeout", "3"]).ok(), "no receipt, no proof");
    assert!(!destination.ever_ran());
    pair.two.kill_guard();
    pair.one.start_guard();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert!(!destination.ever_ran(), "its guard alone resumes it");
    pair.two.start_guard();
    wait_until("it ran", SOON, || destination.runs_now());
    assert_eq!(source.overlap(&destination), AT_NO_INSTANT);
}

#[test]
fn a_paused_domain_dies_with_its_lease_like_one_that_runs_and_no_resume_revives_it() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::busy("web-1", world.dir());
    node.run_leased(&site, "n1", &domain);
    node.host.virsh(&["suspend", &domain.name]).expect_ok();
    wait_until("its guard saw it paused", SOON, || node.status(&domain).is_some_and(|it| it["state"] == "paused"));
    site.kill_authority();
    node.host.wait_until_gone(&domain, SOON);
    let said = node.host.virsh(&["resume", &domain.name]).expect_failure();
    assert!(said.contains("not running"), "{said}");
}

#[test]
fn a_copy_resumed_by_hand_while_the_source_runs_is_noticed_without_a_hook_and_the_older_epoch_dies() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    pair.open(&site, &domain);
    pair.lose_finish(&domain, &source, &destination, &["--suspend"]);
    assert!(source.runs_now() && !destination.ever_ran(), "libvirt resumed the source");
    pair.two.host.virsh(&["resume", &domain.name]).expect_ok();
    pair.one.host.wait_until_gone(&domain, SOON);
    wait_until("the destination owned it", SOON, || site.show(&domain)["owner"]["node"] == "n2");
    assert!(destination.runs_now());
}
