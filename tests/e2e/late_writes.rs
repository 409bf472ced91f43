//! Rule 7, where the writes of a domain outlive its process: what it still had to send to its storage must not arrive when
//! the way there is open again, and what is under way keeps it from being gone.

use crate::harness::{Domain, FileServer, Host, NetworkStorage, Node, Site, World, wait_until};
use leasehold::node::process::Process;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// Longer than the kernel waits between two of an orphan's attempts here (14 s were measured after 40 s of silence).
const NEXT_ATTEMPT: Duration = Duration::from_secs(40);

/// The ways in which `leasehold status` says the domain's writes could arrive late, as soon as there is any.
fn shown(node: &Node, domain: &Domain) -> Vec<(String, String)> {
    let mut ways = Vec::new();
    wait_until("status told of late writes", SOON, || {
        let known = node.status(domain).unwrap_or_default();
        let text = |late: &serde_json::Value, key: &str| late[key].as_str().unwrap_or_default().to_owned();
        let late = known["late_writes"].as_array().cloned().unwrap_or_default();
        ways = late.iter().map(|late| (text(late, "way"), text(late, "what"))).collect();
        !ways.is_empty()
    });
    ways
}

/// The domain's QEMU, held by its pidfd: readable means that every thread has exited and every file was closed.
fn qemu(host: &Host, domain: &Domain) -> Process {
    Process::open(host.qemu(domain).expect("it runs")).expect("it runs")
}

/// The danger itself, so that the tests below are seen to look at the right place.
#[test]
fn without_leasehold_a_killed_qemus_write_lands_after_its_death() {
    let Some(world) = World::new() else { return };
    let host = world.host("n1");
    let storage = NetworkStorage::new(&world, &host);
    let domain = storage.attached(Domain::new("web-1"));
    host.define(&domain);
    host.virsh(&["start", &domain.name]).expect_ok();
    storage.catch_a_write(&host, &domain);
    let qemu = qemu(&host, &domain);
    qemu.kill().unwrap();
    wait_until("it was dead", SOON, || qemu.has_exited());
    assert!(storage.queued(&host) >= 64 << 10 && !storage.landed());
    storage.heal();
    wait_until("the write of the dead landed", NEXT_ATTEMPT, || storage.landed());
}

#[test]
fn what_an_expired_domain_had_queued_never_lands() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = NetworkStorage::new(&world, &node.host);
    let domain = storage.attached(Domain::new("web-1"));
    node.run_leased(&site, "n1", &domain);
    let ways = shown(&node, &domain);
    assert!(ways.iter().any(|(way, what)| way == "tcp" && what.ends_with("10.77.2.1:10809")), "{ways:?}");
    storage.catch_a_write(&node.host, &domain);
    let qemu = qemu(&node.host, &domain);
    // Nothing but SIGKILL ends it.
    node.host.hang_libvirtd();
    site.kill_authority();
    wait_until("it was dead", SOON, || qemu.has_exited());
    storage.assert_silent(&node.host);
    node.host.wake_libvirtd();
}

#[test]
fn what_a_revoked_domain_had_queued_never_lands_though_libvirt_destroyed_it() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = NetworkStorage::new(&world, &node.host);
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
    let storage = NetworkStorage::new(&world, &node.host);
    let domain = storage.attached(Domain::new("web-1"));
    node.run_leased(&site, "n1", &domain);
    storage.catch_a_write(&node.host, &domain);
    let qemu = qemu(&node.host, &domain);
    qemu.kill().unwrap();
    wait_until("it was dead", SOON, || qemu.has_exited());
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    // The kernel alone would have gone on for one to two minutes.
    wait_until("it was gone", Duration::from_secs(20), || site.show(&domain)["state"] == "free");
    storage.assert_silent(&node.host);
}

/// A process that used io_uring is reaped while its requests are still in the kernel.
#[test]
fn a_dead_domain_is_not_gone_while_a_request_of_its_io_uring_is_under_way() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let mut server = FileServer::new(&world, &node.host);
    let device = server.block_device();
    let disk = format!(
        "<disk type='block'><driver name='qemu' type='raw' cache='none' io='io_uring'/><source dev='{device}'/>\
         <target dev='vda' bus='virtio'/></disk>"
    );
    let domain = Domain { devices: disk, ..Domain::new("web-1") };
    node.run_leased(&site, "n1", &domain);
    node.host.qemu_io(&domain, "write -P 0x11 0 4k");
    assert_eq!(server.byte(0), 0x11);
    let ways = shown(&node, &domain);
    assert!(ways.contains(&("io_uring".to_owned(), device.clone())), "{ways:?}");
    assert!(ways.iter().any(|(way, what)| way == "kernel_block_client" && what.contains("loop over")), "{ways:?}");
    server.hang();
    node.host.qemu_io(&domain, "aio_write -P 0xaa 64k 64k");
    let qemu = qemu(&node.host, &domain);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    wait_until("it was dead", SOON, || qemu.has_exited());
    // And the write is still to come.
    wait_until("the guard knew why it is not gone", SOON, || {
        node.guard.as_ref().unwrap().log().contains("requests of its io_uring are under way")
    });
    assert_eq!((server.byte(64 << 10), &site.show(&domain)["state"]), (0, &"revoking".into()));
    server.go_on();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert_eq!(server.byte(64 << 10), 0xaa, "what was under way had landed before it was called gone");
}

#[test]
fn a_storage_that_does_not_answer_keeps_no_other_domain_from_being_looked_at() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let server = FileServer::new(&world, &node.host);
    let (hung, other) =
        (Domain { cache: "writeback", ..Domain::new("hung").with_disk(server.path()) }, Domain::new("other"));
    node.run_leased(&site, "n1", &hung);
    node.run_leased(&site, "n1", &other);
    let (path, ways) = (server.path().display(), shown(&node, &hung));
    assert!(ways.contains(&("page_cache".to_owned(), path.to_string())), "{ways:?}");
    assert!(ways.contains(&("file_server".to_owned(), format!("{path}: fuse"))), "{ways:?}");
    let said = node.host.leasehold(&["status"]).expect_ok();
    assert!(
        said.contains("served by another process, could still be written after its death; ended by a flush"),
        "{said}"
    );
    server.hang();
    // Longer than the kernel keeps what it knows of the file (1 s), and than the guard goes without looking (5 s).
    std::thread::sleep(Duration::from_secs(7));
    site.lease(&["revoke", &other.uuid]).expect_ok();
    wait_until("the other was gone", SOON, || site.show(&other)["state"] == "free");
}

/// What a server keeps back is nobody's to see: it is asked to write, whatever the cache mode.
#[test]
fn a_file_behind_a_server_is_flushed_though_the_domain_wrote_past_the_page_cache() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let server = FileServer::new(&world, &node.host);
    let domain = Domain::new("web-1").with_disk(server.path());
    node.run_leased(&site, "n1", &domain);
    let notes = format!("/proc/{}/root/run/leasehold/copies.json", node.host.init());
    wait_until("its disk was noted to be flushed", SOON, || {
        let notes: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&notes).unwrap_or_default()).unwrap_or_default();
        notes[0]["noted"]["traces"]["files"].to_string().contains("served-")
    });
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    wait_until("it was gone", SOON, || site.show(&domain)["state"] == "free");
}
