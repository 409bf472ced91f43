//! Rule 9: a lease renews only the process that started under its epoch.

use crate::harness::{Domain, Site, World, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// The domain is given away by mistake and comes back to the host, whose process of it never died.
#[test]
fn a_domain_that_comes_back_to_its_host_does_not_renew_the_process_it_left_there() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (mut one, two) = (site.node("n1", ""), site.node("n2", ""));
    let domain = Domain::new("web-1");
    one.run_leased(&site, "n1", &domain);
    let stale = one.host.qemu(&domain).expect("it runs");
    let first = site.show(&domain)["owner"]["epoch"].as_u64().expect("an epoch");
    wait_until("the ledger knew its process", SOON, || {
        one.ledger().is_some_and(|ledger| ledger["domains"][&domain.uuid]["copies"][0]["epoch"] == first)
    });
    one.kill_guard();
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    assert!(!site.gone_within(&domain, 1), "nothing has proven it gone");
    // A guard run by mistake where it cannot see the host's processes, in a container say: its receipt is a lie.
    let mut blind = site.twin(&one, "n1");
    blind.start_guard();
    assert!(site.gone_within(&domain, 15));
    blind.kill_guard();
    for node in ["n2", "n1"] {
        site.lease(&["move", &domain.uuid, node]).expect_ok();
    }
    let second = site.show(&domain)["owner"]["epoch"].as_u64().expect("an epoch");
    assert!(second > first + 1);
    assert_eq!(two.host.qemu(&domain), None);
    one.start_guard();
    wait_until("the stale process was gone", SOON, || !std::fs::exists(format!("/proc/{stale}")).unwrap_or(true));
    let log = one.guard.as_ref().expect("it runs").log();
    assert!(log.contains(&format!("older epoch than the lease, {second}: it is stale")), "{log}");
    wait_until("libvirt had cleaned up", SOON, || one.host.state(&domain).starts_with("shut off"));
    one.start(&domain).expect_ok();
    wait_until("the new process was renewed", SOON, || {
        let ledger = one.ledger().expect("the guard writes it");
        let copies = ledger["domains"][&domain.uuid]["copies"].as_array().cloned().unwrap_or_default();
        copies.len() == 1 && copies[0]["epoch"] == second && copies[0]["dying"].is_null()
    });
}

/// The process ends, the lease goes away and comes back, and the domain starts again, all before the guard looks.
#[test]
fn a_domain_that_went_and_came_back_between_two_looks_lives_on_under_its_new_epoch_alone() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (one, two) = (site.node("n1", ""), site.node("n2", ""));
    let domain = Domain::new("web-1");
    one.run_leased(&site, "n1", &domain);
    let old = one.host.qemu(&domain).expect("it runs");
    // Nothing of what follows waits for a scan of the old state: SIGKILL, and at once the way out and back.
    kill(Pid::from_raw(old), Signal::SIGKILL).expect("it runs");
    for node in ["n2", "n1"] {
        site.lease(&["move", &domain.uuid, node]).expect_ok();
    }
    let epoch = site.show(&domain)["owner"]["epoch"].as_u64().expect("an epoch");
    wait_until("libvirt had cleaned up", SOON, || one.host.state(&domain).starts_with("shut off"));
    one.start(&domain).expect_ok();
    let new = one.host.qemu(&domain).expect("it runs");
    wait_until("it was renewed under its own epoch", SOON, || {
        let ledger = one.ledger().expect("the guard writes it");
        let copies = ledger["domains"][&domain.uuid]["copies"].as_array().cloned().unwrap_or_default();
        copies.len() == 1 && copies[0]["epoch"] == epoch
    });
    // Revoking the epoch it left means nothing to it; revoking its own kills it.
    assert_eq!((one.host.qemu(&domain), two.host.qemu(&domain)), (Some(new), None));
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    assert!(site.gone_within(&domain, 15));
    assert_eq!(one.host.qemu(&domain), None);
}
