//! Rule 8: an admission is a copy. A revocation meets a start at each of its steps, held open by a neighbour's hook,
//! while nobody dies, the guard dies, or libvirtd dies. No receipt while a copy can still come; no copy runs on.

use crate::harness::{Domain, Neighbour, Node, Place, Site, World, qemus, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Who dies while the start is held and the lease revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Nobody,
    /// The guard, and another one runs when the start goes on.
    Guard,
    /// The guard, and the start goes on before another one runs.
    GuardAndNoneUntilLater,
    /// libvirtd, with SIGKILL.
    Libvirtd,
}

const DEATHS: [Death; 4] = [Death::Nobody, Death::Guard, Death::GuardAndNoneUntilLater, Death::Libvirtd];

/// What can still come of a held start whose lease is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// `start` has not passed: it will be refused, so the receipt need not wait for it.
    Refusable,
    /// `start` has passed: a copy comes as soon as the neighbour lets go, and nothing says so before.
    ToBeExecuted,
    /// The copy is here.
    Running,
}

#[test]
fn a_revocation_before_our_hook_was_asked_frees_the_domain_and_refuses_the_start() {
    at(Place::BeforeOurs, "prepare", Step::Refusable);
}

#[test]
fn a_revocation_before_prepare_returned_frees_the_domain_and_refuses_the_start() {
    at(Place::AfterOurs, "prepare", Step::Refusable);
}

#[test]
fn a_revocation_between_prepare_and_start_frees_the_domain_and_refuses_the_start() {
    at(Place::BeforeOurs, "start", Step::Refusable);
}

#[test]
fn a_revocation_between_start_and_the_qemus_execution_waits_for_the_copy_and_kills_it() {
    at(Place::AfterOurs, "start", Step::ToBeExecuted);
}

#[test]
fn a_revocation_before_started_kills_the_copy_though_libvirt_holds_its_lock() {
    at(Place::BeforeOurs, "started", Step::Running);
}

fn at(place: Place, operation: &str, step: Step) {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    for death in DEATHS {
        one(&site, &mut node, (place, operation), step, death);
    }
}

fn one(site: &Site<'_>, node: &mut Node, (place, operation): (Place, &str), step: Step, death: Death) {
    let domain = Domain::new(&format!("{death:?}"));
    node.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    let neighbour = Neighbour::holding(&node.host, place, operation);
    let mut starting = node.host.start("start", "virsh", &["-q", "start", &domain.name]);
    neighbour.wait_until_held();

    match death {
        Death::Nobody => {}
        Death::Guard | Death::GuardAndNoneUntilLater => node.kill_guard(),
        Death::Libvirtd => node.host.kill_libvirtd(),
    }
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    if death == Death::Guard {
        node.start_guard();
    }
    let gone = |seconds| site.gone_within(&domain, seconds);
    match (step, death) {
        // Long enough for several questions and scans: neither silence nor a death may be taken for the copy's end.
        (_, Death::GuardAndNoneUntilLater) => assert!(!gone(1), "no guard has spoken"),
        (Step::ToBeExecuted, Death::Nobody | Death::Guard) => assert!(!gone(3), "a copy can still come"),
        // What only waits, is refused later, or died with its libvirtd, holds nothing up.
        _ => assert!(gone(15), "nothing can come of this start any more"),
    }

    neighbour.let_go();
    if death == Death::Libvirtd {
        node.host.start_libvirtd();
    }
    let started = starting.wait_for_end(SOON).success();
    if death == Death::GuardAndNoneUntilLater {
        node.start_guard();
    }
    assert!(gone(15), "{death:?}");
    assert_eq!(qemus(&domain.uuid), [0; 0], "{death:?}: gone means gone");
    if step == Step::Refusable {
        assert!(!started, "{death:?}: a start of a revoked domain succeeded");
    }
    // And nothing of the start is left that would keep its next owner waiting, or let it start again here.
    wait_until("libvirt was through with it", SOON, || node.host.state(&domain).starts_with("shut off"));
    let said = node.start(&domain).expect_failure();
    assert!(said.contains("no lease for domain"), "{death:?}: {said}");
    assert_eq!(site.show(&domain)["state"], "free", "{death:?}");
}
