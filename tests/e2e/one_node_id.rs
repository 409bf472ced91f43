//! Two hosts that claim one node id, as cloned images do.

use crate::harness::{Domain, Site, World, wait_until};
use leasehold::node::clock;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_cloned_host_starts_nothing_proves_nothing_gone_and_kills_nothing_on_the_real_one() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (real, two) = (site.node("n1", ""), site.node("n2", ""));
    let (running, wanted) = (Domain::new("running"), Domain::new("wanted"));
    real.run_leased(&site, "n1", &running);
    let mut clone = site.twin(&real, "n1");
    clone.boot_anew();
    clone.start_guard();
    for node in [&real, &clone] {
        wait_until("the conflict was told", SOON, || {
            node.guard.as_ref().expect("it runs").log().contains("does not believe this is the one node n1")
        });
    }
    let status = real.host.leasehold(&["status"]).expect_ok();
    assert!(status.contains("does not believe this is the one node n1"), "{status}");
    let told = site.control(&["node", "show", "n1"]).expect_ok();
    assert!(told.contains("accept n1"), "the operator is told what to do: {told}");

    // The clone starts nothing, neither what its node owns nor anything else.
    clone.host.define(&running);
    let said = clone.start(&running).expect_failure();
    assert!(said.contains(&running.uuid), "{said}");
    // Not even the real one starts anything while it is not known which of the two is real.
    site.lease(&["grant", &wanted.uuid, "n1"]).expect_ok();
    real.host.define(&wanted);
    let said = real.start(&wanted).expect_failure();
    assert!(said.contains(&wanted.uuid), "{said}");

    // What runs on the real one is not taken for gone by the clone's being another boot.
    two.host.define(&running);
    site.lease(&["revoke", &running.uuid]).expect_ok();
    assert!(two.start(&running).expect_failure().contains("no lease for domain running"));
    assert!(site.gone_within(&running, 15), "the real one gives its receipt");
    assert_eq!(site.show(&running)["last_proof"]["proof"], "receipt");
    assert_eq!(real.host.qemu(&running), None);
}

#[test]
fn a_real_host_keeps_what_it_runs_for_as_long_as_a_clone_asks_beside_it() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let real = site.node("n1", "");
    let domain = Domain::new("web-1");
    real.run_leased(&site, "n1", &domain);
    let pid = real.host.qemu(&domain).expect("it runs");
    let mut clone = site.twin(&real, "n1");
    clone.boot_anew();
    clone.start_guard();
    wait_until("the conflict reached the real one", SOON, || {
        real.status(&domain).is_some_and(|known| known["lease"] == "hold")
    });
    // Over two whole leases in conflict it is held, not lost.
    let end = clock::now() + Duration::from_secs(10);
    while clock::now() < end {
        assert!(real.status(&domain).is_some_and(|known| known["left_ms"].as_u64() > Some(1000)), "renewed as ever");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(real.host.qemu(&domain), Some(pid));
}
