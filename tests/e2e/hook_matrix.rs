//! Every row of the hook's matrix that a single host can show.

use crate::harness::{Domain, Node, Site, Stopwatch, World, wait_until};
use leasehold::node::clock;
use nix::sys::signal::Signal;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(3);

#[test]
fn a_refused_restore_keeps_the_saved_state() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    node.host.virsh(&["managedsave", "web-1"]).expect_ok();
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    let said = node.start(&domain).expect_failure();
    assert!(said.contains("no lease for domain web-1"), "{said}");
    let saved = || node.host.virsh(&["dominfo", "web-1"]).expect_ok();
    assert!(saved().lines().any(|line| line.starts_with("Managed save:") && line.ends_with("yes")), "{}", saved());
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.start(&domain).expect_ok();
    assert!(saved().lines().any(|line| line.starts_with("Managed save:") && line.ends_with("no")), "{}", saved());
}

#[test]
fn a_restart_of_libvirtd_keeps_what_is_leased_and_with_the_guard_away_what_its_ledger_does_not_end() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let mut node = site.node("n1", "");
    let (leased, unknown) = (Domain::new("leased"), Domain::new("unknown"));
    node.run_leased(&site, "n1", &leased);
    wait_until("the guard knew it", SOON, || node.status(&leased).is_some_and(|known| known["state"] == "running"));
    let pid = node.host.qemu(&leased);
    node.host.restart_libvirtd();
    assert_eq!(node.host.qemu(&leased), pid, "leased, by the guard");
    node.kill_guard();
    let hook = node.host.home().join("etc/hooks/qemu.d");
    let link = std::fs::read_dir(&hook).unwrap().flatten().next().expect("our hook").path();
    let program = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    node.host.define(&unknown);
    node.start(&unknown).expect_ok();
    std::os::unix::fs::symlink(program, &link).unwrap();
    node.host.restart_libvirtd();
    assert_eq!(node.host.qemu(&leased), pid, "leased, by the ledger alone");
    assert!(node.host.qemu(&unknown).is_some(), "unknown: the guard owns that job");
    // The lease ends while no guard is there to kill: then libvirtd's restart is the one who asks.
    site.kill_authority();
    let end = node.expires(&leased);
    wait_until("its lease had ended", SOON, || clock::now() > end);
    node.host.restart_libvirtd();
    node.host.wait_until_gone(&leased, SOON);
    assert!(node.host.qemu(&unknown).is_some());
}

#[test]
fn with_the_guard_away_a_start_is_refused_with_what_to_do() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.kill_guard();
    let said = node.start(&domain).expect_failure();
    assert!(
        said.contains("the guard on this host does not answer") && said.contains("systemctl start leasehold"),
        "{said}"
    );
}

#[test]
fn a_hung_guard_and_a_hung_authority_hold_libvirt_no_longer_than_the_deadline() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    site.authority().signal(Signal::SIGSTOP);
    let watch = Stopwatch::start();
    let said = node.start(&domain).expect_failure();
    watch.assert_within(DEADLINE + Duration::from_secs(1), "a start with a hung authority");
    assert!(said.contains("the authority was asked and did not answer"), "{said}");
    site.authority().signal(Signal::SIGCONT);
    node.guard.as_ref().unwrap().signal(Signal::SIGSTOP);
    let watch = Stopwatch::start();
    let said = node.start(&domain).expect_failure();
    // `stopped` and `release` follow the refusal, half a second each at most.
    watch.assert_within(DEADLINE + Duration::from_secs(2), "a start with a hung guard");
    assert!(said.contains("web-1"), "{said}");
    node.guard.as_ref().unwrap().signal(Signal::SIGCONT);
}

#[test]
fn every_end_exits_0_and_nothing_ever_goes_to_stdout() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domain = Domain::new("web-1");
    let call = |node: &Node, op: &str, subop: &str, xml: &str| {
        let program = std::env::var("LEASEHOLD_BIN").unwrap_or(env!("CARGO_BIN_EXE_leasehold").into());
        // Only what libvirt would see as the hook's stdout is printed.
        let line =
            format!("out=$('{program}' hook web-1 {op} {subop} - 2>/dev/null); code=$?; printf '%s|%s' \"$out\" $code");
        node.host.run_with("sh", &["-c", &line], xml).expect_ok()
    };
    for away in [false, true] {
        if away {
            node.kill_guard();
        }
        for xml in [domain.xml().as_str(), "", "<domain", "no xml"] {
            for (op, subop) in [("stopped", "end"), ("release", "end"), ("future", "end")] {
                assert_eq!(call(&node, op, subop, xml), "|0", "{op} {subop}, guard away: {away}");
            }
        }
        for op in ["prepare", "start", "started", "migrate", "restore", "attach", "future"] {
            assert_eq!(call(&node, op, "begin", &domain.xml()), "|1", "{op}, guard away: {away}");
        }
        assert_eq!(call(&node, "prepare", "begin", "no xml"), "|1");
        assert_eq!(call(&node, "reconnect", "begin", &Domain::new("unknown").xml()), "|0", "unknown is allowed there");
    }
}

#[test]
fn odd_names_are_no_trouble() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    for name in ["-", "a b", "a&b 'q' \"r\"", "ü-ß", &"x".repeat(200)] {
        let domain = Domain::new(name);
        node.host.define(&domain);
        let said = node.start(&domain).expect_failure();
        assert!(said.contains(&domain.uuid), "{said}");
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        node.start(&domain).expect_ok();
        site.lease(&["revoke", &domain.uuid]).expect_ok();
        site.lease(&["wait", &domain.uuid]).expect_ok();
        assert_eq!(node.host.qemu(&domain), None, "{name}");
    }
}
