//! The authority dies in the middle of a grant and of a move: nothing answered is lost, and never two owners.

use crate::harness::{Direction, Domain, Site, World, qemus, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_grant_that_was_answered_survives_the_authoritys_death_and_the_domain_with_it() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    site.kill_authority();
    site.start_authority();
    assert_eq!(site.show(&domain)["owner"]["node"], "n1");
    node.start(&domain).expect_ok();
    let pid = node.host.qemu(&domain);
    // Away for less than a lease: nobody notices.
    site.kill_authority();
    site.start_authority();
    wait_until("contact was back", SOON, || {
        node.status(&domain).is_some_and(|known| known["left_ms"].as_u64() > Some(4000))
    });
    assert_eq!(node.host.qemu(&domain), pid);
}

#[test]
fn grants_cut_off_by_the_authoritys_death_are_whole_or_not_there_and_never_to_two() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let domains: Vec<Domain> = (0..8).map(|at| Domain::new(&format!("web-{at}"))).collect();
    for (at, domain) in domains.iter().enumerate() {
        let mut grants: Vec<_> = ["n1", "n2"]
            .iter()
            .map(|node| site.control_meanwhile(&format!("grant-{at}-{node}"), &["lease", "grant", &domain.uuid, node]))
            .collect();
        // Somewhere in the middle: each round a little later.
        std::thread::sleep(Duration::from_millis(2 * at as u64));
        site.kill_authority();
        let told: Vec<bool> = grants.iter_mut().map(|grant| grant.wait_for_end(SOON).success()).collect();
        assert!(told != [true, true], "two owners were told yes");
        site.start_authority();
        let owner = site.lease(&["show", &domain.uuid, "--json"]);
        let owner: serde_json::Value =
            if owner.ok() { serde_json::from_str(&owner.expect_ok()).unwrap() } else { serde_json::Value::Null };
        for (node, told) in ["n1", "n2"].iter().zip(told) {
            assert!(!told || owner["owner"]["node"] == *node, "a grant that was answered is lost: {owner}");
        }
    }
}

#[test]
fn a_move_goes_on_after_the_authoritys_death() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let (one, two) = (site.node("n1", ""), site.node("n2", ""));
    let domain = Domain::new("web-1");
    one.run_leased(&site, "n1", &domain);
    two.host.define(&domain);
    // In the middle: revoked, and the receipt cannot come.
    one.link.cut(&one.host, Direction::Both);
    let moving = site.control_meanwhile("move", &["lease", "move", &domain.uuid, "n2"]);
    wait_until("the move had begun", SOON, || site.show(&domain)["state"] == "revoking");
    drop(moving);
    site.kill_authority();
    one.host.wait_until_gone(&domain, SOON);
    site.start_authority();
    assert_eq!(site.show(&domain)["state"], "revoking");
    assert!(!two.start(&domain).ok(), "the old copy is not proven gone");
    one.link.heal(&one.host);
    wait_until("the move was done", SOON, || site.show(&domain)["owner"]["node"] == "n2");
    two.start(&domain).expect_ok();
    assert_eq!(qemus(&domain.uuid).len(), 1);
}
