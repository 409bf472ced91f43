//! Rule 7 over a network: what a dead domain still had to send to its storage must not arrive when the way there
//! is open again.

use crate::harness::{Domain, Site, Storage, World, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// Longer than the kernel waits between two of an orphan's attempts here (14 s were measured after 40 s of silence).
const NEXT_ATTEMPT: Duration = Duration::from_secs(40);

/// The danger itself, so that the tests below are seen to look at the right place.
#[test]
fn without_leasehold_a_killed_qemus_write_lands_after_its_death() {
    let Some(world) = World::new() else { return };
    let host = world.host("n1");
    let storage = Storage::new(&world, &host);
    let domain = storage.attached(Domain::new("web-1"));
    host.define(&domain);
    host.virsh(&["start", &domain.name]).expect_ok();
    storage.catch_a_write(&host, &domain);
    kill(Pid::from_raw(host.qemu(&domain).expect("it runs")), Signal::SIGKILL).unwrap();
    host.wait_until_gone(&domain, SOON);
    assert!(storage.queued(&host) >= 64 << 10 && !storage.landed());
    storage.heal();
    wait_until("the write of the dead landed", NEXT_ATTEMPT, || storage.landed());
}

#[test]
fn what_an_expired_domain_had_queued_never_lands() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = Storage::new(&world, &node.host);
    let domain = storage.attached(Domain::new("web-1"));
    node.run_leased(&site, "n1", &domain);
    storage.catch_a_write(&node.host, &domain);
    // Nothing but SIGKILL ends it.
    node.host.hang_libvirtd();
    site.kill_authority();
    node.host.wait_until_gone(&domain, SOON);
    storage.assert_silent(&node.host);
    node.host.wake_libvirtd();
}

#[test]
fn what_a_revoked_domain_had_queued_never_lands_though_libvirt_destroyed_it() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = Storage::new(&world, &node.host);
    let domain = storage.attached(Domain::new("web-1"));
    node.run_leased(&site, "n1", &domain);
    storage.catch_a_write(&node.host, &domain);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    storage.assert_silent(&node.host);
}

/// Its queue lives on in the kernel, and the guard could not prepare its connections: it resets what is left.
#[test]
fn a_domain_that_somebody_else_killed_is_not_gone_before_its_connections_are() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = Storage::new(&world, &node.host);
    let domain = storage.attached(Domain::new("web-1"));
    node.run_leased(&site, "n1", &domain);
    storage.catch_a_write(&node.host, &domain);
    kill(Pid::from_raw(node.host.qemu(&domain).expect("it runs")), Signal::SIGKILL).unwrap();
    node.host.wait_until_gone(&domain, SOON);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    storage.assert_silent(&node.host);
}
