//! Two hosts and one uuid.

use crate::harness::{Direction, Domain, Site, World, qemus, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

#[test]
fn the_second_start_of_a_uuid_is_refused_and_allowed_by_move() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (one, two) = (site.node("n1", ""), site.node("n2", ""));
    let domain = Domain::new("web-1");
    one.run_leased(&site, "n1", &domain);
    two.host.define(&domain);
    let said = two.start(&domain).expect_failure();
    let expected = format!("no lease for domain web-1 ({}): owned by node n1 since ", domain.uuid);
    assert!(said.contains(&expected), "{said}");
    assert_eq!(qemus(&domain.uuid).len(), 1);

    site.lease(&["move", &domain.uuid, "n2"]).expect_ok();
    assert_eq!(one.host.qemu(&domain), None, "moved means gone from the old host");
    two.start(&domain).expect_ok();
    assert_eq!(qemus(&domain.uuid).len(), 1);
    let said = one.start(&domain).expect_failure();
    assert!(said.contains("owned by node n2 since "), "{said}");
}

#[test]
fn a_move_from_a_silent_node_without_a_bound_waits_for_its_receipt() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (one, two) = (site.node("n1", ""), site.node("n2", ""));
    let domain = Domain::new("web-1");
    one.run_leased(&site, "n1", &domain);
    two.host.define(&domain);
    one.link.cut(&one.host, Direction::Both);
    let mut moving = site.control_meanwhile("move", &["lease", "move", &domain.uuid, "n2"]);
    one.host.wait_until_gone(&domain, SOON);
    let said = two.start(&domain).expect_failure();
    assert!(said.contains("no lease for domain web-1"), "{said}");
    assert!(!moving.has_ended(), "nothing has proven it gone:\n{}", moving.log());
    one.link.heal(&one.host);
    assert!(moving.wait_for_end(SOON).success(), "{}", moving.log());
    two.start(&domain).expect_ok();
}

#[test]
fn the_same_name_with_another_uuid_is_another_domain() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (one, two) = (site.node("n1", ""), site.node("n2", ""));
    let (first, second) = (Domain::new("web-1"), Domain::new("web-1"));
    one.run_leased(&site, "n1", &first);
    two.run_leased(&site, "n2", &second);
    site.lease(&["revoke", &first.uuid]).expect_ok();
    site.lease(&["wait", &first.uuid]).expect_ok();
    assert!(one.host.qemu(&first).is_none() && two.host.qemu(&second).is_some());
    wait_until("the other is renewed", SOON, || two.status(&second).is_some_and(|known| known["lease"] == "held"));
}
