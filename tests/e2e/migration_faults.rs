//! What fails in the middle of a live migration, or at its very last step. "Mid-way" is an event: the guest dirties its
//! memory faster than it may be transferred, and the source's libvirt reports an outgoing job.

use crate::harness::{Direction, Domain, Pair, Site, World, wait_until};
use nix::sys::signal::{Signal, kill};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
const AT_NO_INSTANT: Duration = Duration::ZERO;

#[test]
fn strict_the_last_reply_is_lost_libvirt_resumes_the_source_and_the_destinations_copy_never_runs() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    let mut migrating = pair.migrate_midway(&site, &domain);
    pair.mute_libvirt_of_two();
    pair.release(&domain);
    destination.wait_for("MIGRATION completed", SOON);
    // Nothing but the loss itself: the destination has everything and waits, the source was resumed by libvirt.
    source.wait_for("RESUME", SOON);
    pair.unmute_libvirt_of_two();
    assert!(!migrating.wait_for_end(SOON).success());
    let said = migrating.log();
    assert!(said.contains("It runs on node n1 as before. The destination's copy was revoked"), "{said}");
    assert!(source.runs_now() && pair.two.host.qemu(&domain).is_none(), "its guard has killed the paused copy");
    assert!(!destination.ever_ran());
    let lease = site.show(&domain);
    assert_eq!((&lease["owner"]["node"], &lease["incoming"]), (&"n1".into(), &serde_json::Value::Null), "{lease}");
    // And the next attempt succeeds, once libvirt there has cleaned up too. (A failed migration's own limits are back.)
    pair.release(&domain);
    wait_until("it had", SOON, || !pair.two.host.virsh(&["domstate", &domain.name]).ok());
    pair.migrate(&site, &domain, &[]).expect_ok();
}

#[test]
fn unpaused_the_last_reply_is_lost_two_copies_run_and_the_older_epochs_dies() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    pair.open(&site, &domain);
    pair.lose_finish(&domain, &source, &destination, &[]);
    pair.one.host.wait_until_gone(&domain, SOON);
    wait_until("the destination owned it", SOON, || site.show(&domain)["owner"]["node"] == "n2");
    assert!(destination.runs_now(), "the new copy is not the one that dies");
    let both = source.overlap(&destination);
    assert!(both > AT_NO_INSTANT, "then libvirt has become safe by itself, and this test tests nothing");
    crate::harness::tell(&format!("two copies ran for {both:?}"));
    wait_until("its guard knew", SOON, || pair.two.status(&domain).is_some_and(|known| known["lease"] == "held"));
}

#[test]
fn the_destinations_libvirtd_dies_midway_and_the_source_runs_on() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    let mut migrating = pair.migrate_midway(&site, &domain);
    kill(pair.two.host.libvirtd(), Signal::SIGKILL).expect("libvirtd runs");
    // Two QEMUs go on without it, and only the last step fails.
    pair.release(&domain);
    assert!(!migrating.wait_for_end(SOON).success());
    assert!(migrating.log().contains("It runs on node n1 as before"), "{}", migrating.log());
    // Its QEMU outlives its libvirtd; the guard kills it without.
    pair.two.host.wait_until_gone(&domain, SOON);
    assert!(source.runs_now() && !destination.ever_ran());
    wait_until("the receipt had come", SOON, || site.show(&domain)["leaving"] == serde_json::json!([]));
}

#[test]
fn the_source_is_cut_off_midway_and_dies_by_its_lease_and_nothing_runs_elsewhere() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    let mut migrating = pair.migrate_midway(&site, &domain);
    pair.one.link.cut(&pair.one.host, Direction::Both);
    pair.one.host.wait_until_gone(&domain, SOON);
    pair.two.host.wait_until_gone(&domain, SOON);
    migrating.wait_for_log("asking again", SOON);
    assert_eq!(site.show(&domain)["owner"]["node"], "n1", "nobody was told anything");
    pair.one.link.heal(&pair.one.host);
    assert!(!migrating.wait_for_end(SOON).success());
    assert!(migrating.log().contains("It does not run on node n1 any more, which owns it"), "{}", migrating.log());
    assert!(!destination.ever_ran());
    pair.one.start(&domain).expect_ok();
    assert_eq!(source.overlap(&destination), AT_NO_INSTANT);
}

#[test]
fn the_destination_is_cut_off_midway_and_kills_what_came_and_the_source_runs_on() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    let mut migrating = pair.migrate_midway(&site, &domain);
    pair.two.link.cut(&pair.two.host, Direction::Both);
    pair.two.host.wait_until_gone(&domain, SOON);
    assert!(!migrating.wait_for_end(SOON).success());
    assert!(migrating.log().contains("It runs on node n1 as before"), "{}", migrating.log());
    // Gone it is, but nobody there can say so.
    let said = pair.migrate(&site, &domain, &[]).expect_failure();
    assert!(said.contains("was revoked on node n2") && said.contains("not proven gone there"), "{said}");
    pair.two.link.heal(&pair.two.host);
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert!(source.runs_now() && !destination.ever_ran());
}

#[test]
fn revoked_midway_both_copies_die_and_the_command_says_that_its_lease_was_changed() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (_source, destination) = pair.run(&site, &domain);
    let mut migrating = pair.migrate_midway(&site, &domain);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert_eq!((pair.one.host.qemu(&domain), pair.two.host.qemu(&domain)), (None, None), "gone means gone on both");
    assert!(!migrating.wait_for_end(SOON).success());
    assert!(migrating.log().contains("Its lease was changed meanwhile"), "{}", migrating.log());
    assert!(!destination.ever_ran());
}

#[test]
fn the_authority_is_away_when_the_transfer_ends_and_the_handover_waits_for_it() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    let mut migrating = pair.migrate_midway(&site, &domain);
    // Restarted mid-way it has forgotten nothing.
    site.kill_authority();
    site.start_authority();
    wait_until("both were renewed", SOON, || {
        pair.one.status(&domain).is_some_and(|known| known["lease"] == "hold")
            && pair.two.status(&domain).is_some_and(|known| known["lease"] == "incoming")
    });
    site.kill_authority();
    pair.release(&domain);
    destination.wait_for("MIGRATION completed", SOON);
    migrating.wait_for_log("asking again", SOON);
    assert!(!destination.ever_ran());
    site.start_authority();
    assert!(migrating.wait_for_end(SOON).success(), "{}", migrating.log());
    assert!(destination.runs_now());
    assert_eq!(source.overlap(&destination), AT_NO_INSTANT);
}

#[test]
fn the_command_is_killed_midway_and_run_again_it_ends_what_it_began() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    let (source, destination) = pair.run(&site, &domain);
    pair.migrate_midway(&site, &domain).kill();
    let mut again = pair.migrate_meanwhile(&site, &domain, &[]);
    again.wait_for_log("is open already; going on from there", SOON);
    pair.release(&domain);
    assert!(again.wait_for_end(SOON).success(), "{}", again.log());
    assert!(destination.runs_now());
    assert_eq!(source.overlap(&destination), AT_NO_INSTANT);
}

#[test]
fn what_cannot_be_migrated_is_refused_before_anything_is_asked_of_anybody() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let pair = Pair::new(&world, &site);
    let domain = Domain::busy("web-1", world.dir());
    pair.one.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    let said = pair.migrate(&site, &domain, &[]).expect_failure();
    assert!(said.contains("does not run at qemu:///system") && said.contains("leasehold lease move"), "{said}");
    pair.one.start(&domain).expect_ok();
    pair.one.host.virsh(&["suspend", &domain.name]).expect_ok();
    let said = pair.migrate(&site, &domain, &[]).expect_failure();
    assert!(said.contains("is paused on node n1; resume it first"), "{said}");
    assert_eq!(site.show(&domain)["incoming"], serde_json::Value::Null);
}
