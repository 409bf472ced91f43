//! One host, one authority: what ends a domain, and what must not.

use crate::harness::{Direction, Domain, Site, World, wait_until};
use leasehold::node::clock;
use nix::sys::signal::Signal;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// L of the `fast` profile.
const TTL: Duration = Duration::from_secs(5);

#[test]
fn a_start_without_a_lease_is_refused_and_with_one_it_runs() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    let said = node.start(&domain).expect_failure();
    assert!(said.contains(&format!("no lease for domain web-1 ({}): never granted", domain.uuid)), "{said}");
    assert_eq!(node.host.qemu(&domain), None);
    // A controller that granted a moment ago must not be told no.
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.start(&domain).expect_ok();
    wait_until("the guard knew it as running", SOON, || {
        node.status(&domain).is_some_and(|known| known["state"] == "running" && known["lease"] == "held")
    });
}

#[test]
fn a_revoked_domain_is_destroyed_and_the_receipt_follows_its_death() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    // The moment it is said to be gone it must be.
    assert_eq!(node.host.qemu(&domain), None);
    let lease = site.show(&domain);
    assert_eq!((&lease["state"], &lease["last_proof"]["proof"]), (&"free".into(), &"receipt".into()), "{lease}");
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&domain).starts_with("shut off"));
    assert_eq!(node.host.state(&domain), "shut off (destroyed)", "or Masakari would restart it elsewhere");
    let said = node.start(&domain).expect_failure();
    assert!(said.contains("no lease for domain web-1"), "{said}");
}

#[test]
fn with_the_authority_gone_a_domain_runs_until_its_lease_ends_and_no_longer() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    site.kill_authority();
    let end = node.expires(&domain);
    // D (1 s) before its end libvirt is asked to destroy it; nothing may touch it earlier.
    while clock::now() < end - Duration::from_millis(1000) {
        let alive = node.host.qemu(&domain).is_some();
        // Looked at first, so that what was seen was before.
        assert!(alive || clock::now() >= end - Duration::from_millis(1000), "dead {:?} early", end.left(clock::now()));
        std::thread::sleep(Duration::from_millis(20));
    }
    node.host.wait_until_gone(&domain, SOON);
    // SIGKILL within 20 ms of E; the rest is for QEMU's own exit on a loaded machine.
    assert!(clock::now().since(end) < Duration::from_secs(1), "dead {:?} late", clock::now().since(end));
    // And when the authority is back, it runs again, under the same lease.
    site.start_authority();
    wait_until("the lease was renewed", SOON, || {
        node.status(&domain).is_some_and(|known| known["lease"] == "held" && known["state"] == "wanted")
    });
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&domain).starts_with("shut off"));
    node.start(&domain).expect_ok();
}

#[test]
fn a_cut_link_in_either_direction_ends_it_and_the_receipt_comes_when_it_heals() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    for (name, direction) in [("out", Direction::Outgoing), ("in", Direction::Incoming)] {
        let domain = Domain::new(name);
        node.run_leased(&site, "n1", &domain);
        node.link.cut(&node.host, direction);
        site.lease(&["revoke", &domain.uuid]).expect_ok();
        node.host.wait_until_gone(&domain, SOON);
        assert_eq!(site.show(&domain)["state"], "revoking", "nobody has told the authority");
        node.link.heal(&node.host);
        wait_until("the receipt came", SOON, || site.show(&domain)["state"] == "free");
    }
}

#[test]
fn a_hung_libvirtd_does_not_keep_a_domain_alive() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    node.host.hang_libvirtd();
    site.kill_authority();
    node.host.wait_until_gone(&domain, TTL + Duration::from_secs(2));
    node.host.wake_libvirtd();
}

#[test]
fn a_domain_that_started_past_the_hook_is_found_and_killed() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    node.host.remove_hook();
    node.start(&domain).expect_ok();
    node.host.wait_until_gone(&domain, SOON);
    wait_until("the missing hook was shown", SOON, || node.host.leasehold(&["status"]).expect_ok().contains("FAULT"));
}

#[test]
fn a_domain_that_started_past_the_hook_is_adopted_when_it_is_this_nodes() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node_without_guard("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    node.host.remove_hook();
    node.start(&domain).expect_ok();
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.start_guard();
    wait_until("it was adopted", SOON, || node.status(&domain).is_some_and(|known| known["lease"] == "held"));
    assert!(node.host.qemu(&domain).is_some());
}

/// The CloudStack story (#14206), first half: a report collected before a start and processed after it.
#[test]
fn a_question_sent_before_the_start_and_answered_after_it_changes_nothing_for_that_domain() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node_without_guard("n1", "");
    // Every answer is held back for most of an interval, so each start overtakes answers to earlier questions.
    let delay = world.dir().join("delay.py");
    std::fs::write(&delay, DELAYING_FORWARDER).unwrap();
    let forwarder = node.host.start(
        "forwarder",
        "python3",
        &["-u", &delay.display().to_string(), &node.link.far.to_string(), "0.6"],
    );
    node.configure("n1", "127.0.0.1", 7471, "");
    node.start_guard();
    for name in ["a", "b", "c"] {
        let domain = Domain::new(name);
        node.host.define(&domain);
        wait_until("a question was under way", SOON, || {
            let before = forwarder.log().lines().count();
            before % 2 == 1
        });
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        node.start(&domain).expect_ok();
        let pid = node.host.qemu(&domain).expect("it runs");
        std::thread::sleep(TTL + Duration::from_secs(1));
        assert_eq!(node.host.qemu(&domain), Some(pid), "{}", node.guard.as_ref().unwrap().log());
    }
}

/// The second half: a domain its controller has forgotten runs on for ever. Here it dies, and only then is it gone.
#[test]
fn a_domain_the_controller_has_forgotten_is_killed_and_only_then_is_the_receipt_out() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("i-2-3-VM");
    node.run_leased(&site, "n1", &domain);
    let pid = node.host.qemu(&domain).expect("it runs");
    // It does not die at once: stopped, it handles no SIGTERM, so libvirt's destroy takes long and SIGKILL ends it.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    site.lease(&["forget", &domain.uuid]).expect_ok();
    while node.host.qemu(&domain).is_some() {
        let shown = site.lease(&["show", &domain.uuid, "--json"]);
        // Asked before looking again: as long as it lives, the authority must not have let go.
        if node.host.qemu(&domain).is_some() {
            assert!(shown.ok(), "the authority let go of a domain that runs");
        }
    }
    wait_until("the record was gone", SOON, || !site.lease(&["show", &domain.uuid]).ok());
}

#[test]
fn an_observing_node_refuses_and_kills_nothing_and_says_what_it_would_have_done() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "mode = \"observe\"");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    node.start(&domain).expect_ok();
    let guard = node.guard.as_mut().unwrap();
    guard.wait_for_log("observing: would refuse", SOON);
    guard.wait_for_log("observing: would kill", SOON);
    std::thread::sleep(TTL);
    assert!(node.host.qemu(&domain).is_some());
    // With the guard away it refuses nothing either.
    node.kill_guard();
    let other = Domain::new("web-2");
    node.host.define(&other);
    node.start(&other).expect_ok();
}

#[test]
fn a_guard_killed_and_restarted_loses_no_domain_and_misses_no_revocation() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let (kept, revoked) = (Domain::new("kept"), Domain::new("revoked"));
    node.run_leased(&site, "n1", &kept);
    node.run_leased(&site, "n1", &revoked);
    let pid = node.host.qemu(&kept);
    for _ in 0..3 {
        node.kill_guard();
        node.start_guard();
    }
    assert_eq!(node.host.qemu(&kept), pid);
    node.kill_guard();
    site.lease(&["revoke", &revoked.uuid]).expect_ok();
    node.start_guard();
    site.lease(&["wait", &revoked.uuid]).expect_ok();
    assert_eq!((node.host.qemu(&revoked), node.host.qemu(&kept)), (None, pid));
}

#[test]
fn a_domain_that_ends_while_no_guard_runs_is_proven_gone_by_the_next_one() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let disk = world.dir().join("disk.raw");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let domain = Domain { cache: "writeback", ..Domain::new("web-1").with_disk(&disk) };
    node.run_leased(&site, "n1", &domain);
    let notes = format!("/proc/{}/root/run/leasehold/copies.json", node.host.init());
    wait_until("its disk was noted", SOON, || {
        std::fs::read_to_string(&notes).is_ok_and(|text| text.contains("disk.raw"))
    });
    let pid = node.host.qemu(&domain).expect("it runs");
    node.kill_guard();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    node.host.wait_until_gone(&domain, SOON);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    assert!(!site.lease(&["wait", &domain.uuid, "--timeout", "1"]).ok(), "nobody has proven it");
    node.start_guard();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
}

#[test]
fn a_second_guard_is_refused_and_names_the_first() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let said = node.host.leasehold(&["guard"]).expect_failure();
    assert!(said.contains("guard.lock") && said.contains("pid"), "{said}");
}

#[test]
fn a_guard_whose_ledger_is_lost_or_damaged_admits_again_once_it_has_proven_what_runs() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    let pid = node.host.qemu(&domain);
    for damage in ["rm /run/leasehold/ledger.json", "echo garbage >/run/leasehold/ledger.json"] {
        node.kill_guard();
        node.host.run("sh", &["-c", damage]).expect_ok();
        node.start_guard();
        node.guard.as_mut().unwrap().wait_for_log("the lost ledger is made good", SOON);
        wait_until("it was adopted", SOON, || node.status(&domain).is_some_and(|known| known["lease"] == "held"));
        assert_eq!(node.host.qemu(&domain), pid);
    }
}

#[test]
fn a_fenced_node_loses_everything_and_the_command_returns_when_it_is_gone() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let (one, two) = (Domain::new("one"), Domain::new("two"));
    node.run_leased(&site, "n1", &one);
    node.run_leased(&site, "n1", &two);
    site.control(&["fence", "n1", "--wait"]).expect_ok();
    assert_eq!((node.host.qemu(&one), node.host.qemu(&two)), (None, None));
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&one).starts_with("shut off"));
    let said = node.start(&one).expect_failure();
    assert!(said.contains("no lease for domain one"), "{said}");
    site.control(&["unfence", "n1"]).expect_ok();
    site.lease(&["grant", &one.uuid, "n1"]).expect_ok();
    node.start(&one).expect_ok();
}

/// Forwards TCP from 127.0.0.1:7471 to ADDRESS:7470 and holds each answer back; prints a line when a question goes in
/// and one when its answer comes out.
const DELAYING_FORWARDER: &str = "import socket, sys, threading, time
address, delay = sys.argv[1], float(sys.argv[2])
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 7471))
server.listen(16)
def pump(source, sink, held):
    while True:
        data = source.recv(65536)
        if not data:
            break
        if held:
            if b'claims' in data:
                time.sleep(delay)
                print('answered')
        elif b'/renew' in data:
            print('asked')
        sink.sendall(data)
while True:
    near, _ = server.accept()
    far = socket.create_connection((address, 7470))
    threading.Thread(target=pump, args=(near, far, False), daemon=True).start()
    threading.Thread(target=pump, args=(far, near, True), daemon=True).start()
";
