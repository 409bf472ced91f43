//! A QEMU that no signal ends: one thread waits in the kernel for storage that does not answer.

use crate::harness::{Domain, Node, Site, Storage, World, wait_until};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// L and P of the `fast` profile, and a second for a loaded machine.
const LAPSED: Duration = Duration::from_secs(6);

/// What the status of the node says as a whole.
fn status(node: &Node) -> serde_json::Value {
    serde_json::from_str(&node.host.leasehold(&["status", "--json"]).expect_ok()).expect("--json prints JSON")
}

/// Whether the guard says which thread of it waits where, and for what.
fn is_told_as_stuck(node: &Node, domain: &Domain, pid: i32) -> bool {
    let known = node.status(domain).unwrap_or_default();
    let process = &known["not_gone"][0];
    let thread = &process["stuck"][0];
    // The pid is the one in the host's own namespace.
    let outside = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let inside = outside.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    inside.split_whitespace().last().is_some_and(|inside| inside.parse().ok() == process["pid"].as_i64())
        && thread["comm"] == "worker"
        && thread["waits_in"].as_str().is_some_and(|function| !function.is_empty())
        && thread["files"][0]["path"] == "/run/store/disk.raw"
        && thread["files"][0]["storage"].as_str().is_some_and(|storage| {
            storage.starts_with("ext4 on /dev/loop") && storage.ends_with(", mounted at /run/store")
        })
}

/// A write that its storage does not take, in a thread of QEMU's.
fn hang_a_write(node: &Node, domain: &Domain) {
    node.host.qemu_io(domain, "aio_write -P 0xaa 0 64k");
    let pid = node.host.qemu(domain).expect("it runs");
    wait_until("a thread of it was in state D", SOON, || threads(pid).any(|state| state == 'D'));
}

fn threads(pid: i32) -> impl Iterator<Item = char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        stat[stat.rfind(')')? + 2..].chars().next()
    })
}

#[test]
fn a_revoked_domain_whose_storage_is_away_is_never_called_gone_and_status_says_what_it_waits_for() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    let domain = Domain::new("web-1").with_disk(&storage.disk("disk.raw"));
    node.run_leased(&site, "n1", &domain);
    let pid = node.host.qemu(&domain).expect("it runs");
    let frozen = storage.freeze();
    hang_a_write(&node, &domain);

    site.lease(&["revoke", &domain.uuid]).expect_ok();
    wait_until("status told the thread, and what it waits for", SOON, || is_told_as_stuck(&node, &domain, pid));
    wait_until("the permit was withheld", LAPSED, || status(&node)["permit_left_ms"] == 0);
    wait_until("SIGKILL was sent, and its leader is dead", SOON, || threads(pid).any(|state| state == 'Z'));
    let text = node.host.leasehold(&["status"]).expect_ok();
    let line = text.lines().find(|line| line.starts_with("NOT GONE")).unwrap_or_else(|| panic!("no line:\n{text}"));
    for told in [
        "web-1 (",
        &domain.uuid,
        "cannot be killed: thread ",
        " (worker) is in state D in ",
        "at /run/store/disk.raw (ext4 on /dev/loop",
    ] {
        assert!(line.contains(told), "'{told}' is not in: {line}");
    }
    node.guard.as_mut().unwrap().wait_for_log("is not proven gone: pid", SOON);

    // A guard that is killed meanwhile knows it again, by its living thread.
    node.kill_guard();
    node.start_guard();
    wait_until("the next guard told it too", SOON, || is_told_as_stuck(&node, &domain, pid));
    assert!(!site.lease(&["wait", &domain.uuid, "--timeout", "2"]).ok(), "a receipt for what lives");
    assert_eq!(site.show(&domain)["state"], "revoking");
    assert_eq!(status(&node)["permit_left_ms"], 0);
    assert!(Path::new(&format!("/proc/{pid}")).exists());

    frozen.thaw();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert!(!Path::new(&format!("/proc/{pid}/task")).exists(), "a receipt before its death");
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
    wait_until("the permit was back", SOON, || status(&node)["permit_left_ms"] != 0);
    assert_eq!(node.status(&domain).map_or(0, |known| known["pids"].as_array().map_or(0, Vec::len)), 0);
}

/// libvirt 9.0 sends SIGTERM, SIGKILL after 10 s, gives up after 40 s, twice, and then reports success
/// (virProcessKillPainfullyDelay returns 0 on its timeout).
#[test]
fn a_domain_that_libvirt_calls_destroyed_while_it_lives_is_not_gone_and_is_not_started_again() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    let domain = Domain::new("web-1").with_disk(&storage.disk("disk.raw"));
    node.run_leased(&site, "n1", &domain);
    let pid = node.host.qemu(&domain).expect("it runs");
    let frozen = storage.freeze();
    hang_a_write(&node, &domain);

    node.host.virsh(&["destroy", &domain.name]).expect_ok();
    assert_eq!(node.host.state(&domain), "shut off (destroyed)");
    for file in ["web-1.pid", "web-1.xml"] {
        let path = format!("/proc/{}/root/run/libvirt/qemu/{file}", node.host.init());
        assert!(!Path::new(&path).exists(), "libvirt has let go of it");
    }
    assert!(threads(pid).any(|state| state == 'D'), "and it lives");
    assert!(is_told_as_stuck(&node, &domain, pid), "{:?}", node.status(&domain));
    assert_eq!(status(&node)["domains"][0]["lease"], "held", "nothing was revoked");

    let said = node.start(&domain).expect_failure();
    for told in
        ["its earlier process ", "is not proven gone on this host", "(worker) is in state D in", "disk.raw (ext4"]
    {
        assert!(said.contains(told), "'{told}' is not in: {said}");
    }
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    assert!(!site.lease(&["wait", &domain.uuid, "--timeout", "3"]).ok(), "a receipt for what lives");
    assert_eq!(site.show(&domain)["state"], "revoking");

    frozen.thaw();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert!(!Path::new(&format!("/proc/{pid}/task")).exists(), "a receipt before its death");
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.start(&domain).expect_ok();
}
