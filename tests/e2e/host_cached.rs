//! Disks written through the host's page cache: what a dead domain left there is on the storage before it is called
//! gone, and such disks are named, or refused, before they are started.

use crate::harness::{Domain, LoopDevice, Node, Site, Storage, World, stored, wait_until};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// SIGKILL alone: a QEMU that is asked to end flushes its disks itself.
const AT_ONCE: &str = "[lease]\npolite = \"0s\"";
const WRITTEN: usize = 64 << 10;

/// Has the domain write 64 KiB of a byte that are in the page cache alone afterwards; which byte.
fn leave_in_page_cache(node: &Node, domain: &Domain, image: &Path) -> u8 {
    // Somebody else on this machine may sync just then; then another byte.
    let unstored = (0xa1..0xa9).find(|byte| {
        node.host.qemu_io(domain, &format!("write -P {byte} 0 64k"));
        stored(image, *byte) < WRITTEN
    });
    unstored.expect("a write stays in the page cache for a moment")
}

fn cached(name: &str, disk: &Path) -> Domain {
    Domain { cache: "writeback", ..Domain::new(name).with_disk(disk) }
}

/// As a guest between two of its flushes: the firmware here knows of none, so with writeback QEMU syncs each write for it.
fn unflushed(name: &str, disk: &Path) -> Domain {
    Domain { cache: "unsafe", ..cached(name, disk) }
}

/// What status names as gone only once it is written back.
fn shown(node: &Node, domain: &Domain) -> Vec<String> {
    let known = node.status(domain).unwrap_or_default();
    let list = known["late_writes"].as_array().cloned().unwrap_or_default();
    let cached = list.iter().filter(|late| late["way"] == "page_cache");
    cached.map(|late| late["what"].as_str().expect("it is text").to_owned()).collect()
}

#[test]
fn what_a_dead_domain_left_in_the_page_cache_is_on_the_storage_when_its_receipt_comes() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", AT_ONCE);
    let image = world.dir().join("store.img");
    let storage = Storage::mount(&node.host, &image);
    let domain = unflushed("web-1", &storage.disk("disk.raw"));
    node.run_leased(&site, "n1", &domain);
    let byte = leave_in_page_cache(&node, &domain, &image);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    while site.show(&domain)["state"] != "free" {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(stored(&image, byte) >= WRITTEN, "a receipt before its writes: {} bytes", stored(&image, byte));
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
}

/// With a second opener (LVM, a backup, the next host's QEMU) the last close flushes nothing.
#[test]
fn a_block_device_that_cannot_be_flushed_keeps_its_dead_domain_from_being_called_gone() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", AT_ONCE);
    let image = world.dir().join("store.img");
    let storage = Storage::mount(&node.host, &image);
    let device = LoopDevice::over(&node.host, &storage.disk("disk.raw"));
    let domain = unflushed("web-1", &device.device);
    node.run_leased(&site, "n1", &domain);
    let path = device.device.display().to_string();
    wait_until("status named the device", SOON, || shown(&node, &domain) == [path.as_str()]);
    let byte = leave_in_page_cache(&node, &domain, &image);
    let frozen = storage.freeze();
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    node.host.wait_until_gone(&domain, SOON);

    let why = |node: &Node| node.status(&domain).unwrap_or_default()["not_gone"][0]["why"].to_string();
    let hangs = format!("it has ended, and {path} is being written back for ");
    wait_until("status told the flush", SOON, || why(&node).contains(&hangs));
    // What waits for the storage is in state D; the guard itself is not, and the next one takes its place.
    node.kill_guard();
    node.start_guard();
    wait_until("the next guard told it too", SOON, || why(&node).contains(&hangs));
    assert!(!site.gone_within(&domain, 3), "a receipt before its writes");
    assert_eq!(site.show(&domain)["state"], "revoking");
    assert!(why(&node).contains(&hangs), "{}", why(&node));
    let text = node.host.leasehold(&["status"]).expect_ok();
    assert!(text.lines().any(|line| line.starts_with("NOT GONE") && line.contains(&hangs)), "{text}");

    frozen.thaw();
    while site.show(&domain)["state"] != "free" {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(stored(&image, byte) >= WRITTEN, "a receipt before its writes: {} bytes", stored(&image, byte));
}

#[test]
fn a_host_cached_disk_is_let_through_logged_once_and_shown() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    let (domain, direct) =
        (cached("web-1", &storage.disk("disk.raw")), Domain::new("web-2").with_disk(&storage.disk("direct.raw")));
    node.run_leased(&site, "n1", &direct);
    node.run_leased(&site, "n1", &domain);
    wait_until("status named the disk", SOON, || shown(&node, &domain) == ["/run/store/disk.raw"]);
    assert_eq!(shown(&node, &direct), [""; 0]);
    let text = node.host.leasehold(&["status"]).expect_ok();
    let line = format!("LATE      web-1 ({}): /run/store/disk.raw, the host's page cache", domain.uuid);
    assert!(text.contains(&line), "{text}");
    node.host.virsh(&["destroy", &domain.name]).expect_ok();
    wait_until("its first process was proven gone", SOON, || {
        node.status(&domain).is_some_and(|known| known["pids"].as_array().is_some_and(Vec::is_empty))
    });
    node.start(&domain).expect_ok();
    let log = node.guard.as_ref().unwrap().log();
    let warned: Vec<&str> = log.lines().filter(|line| line.contains("page cache")).collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
    let expected =
        format!("domain web-1 ({}) starts with disk vda (/run/store/disk.raw, cache='writeback')", domain.uuid);
    assert!(warned[0].contains(&expected), "{warned:?}");
}

#[test]
fn a_node_that_refuses_host_cached_disks_names_the_disk_and_what_to_do() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "[admission]\nhost_cached_disks = \"refuse\"");
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    let domain = cached("web-1", &storage.disk("disk.raw"));
    node.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    let said = node.start(&domain).expect_failure();
    for told in [
        "domain web-1 (",
        &domain.uuid,
        "disk vda (/run/store/disk.raw, cache='writeback')",
        "Set cache='none'",
        "host_cached_disks",
    ] {
        assert!(said.contains(told), "'{told}' is not in: {said}");
    }
    assert_eq!(node.host.qemu(&domain), None);
    // Read-only it is not written; with O_DIRECT it leaves nothing behind.
    let readonly = domain.xml().replace("<shareable/>", "<readonly/>");
    node.host.run_with("virsh", &["-q", "define", "/dev/stdin"], &readonly).expect_ok();
    node.start(&domain).expect_ok();
    let direct = Domain::new("web-2").with_disk(&storage.disk("direct.raw"));
    node.run_leased(&site, "n1", &direct);

    // What starts past the hook is not refused; it is shown like the others.
    let found = cached("web-3", &storage.disk("found.raw"));
    node.host.define(&found);
    site.lease(&["grant", &found.uuid, "n1"]).expect_ok();
    node.host.remove_hook();
    node.start(&found).expect_ok();
    wait_until("status named the disk", SOON, || shown(&node, &found) == ["/run/store/found.raw"]);
}

#[test]
fn a_disk_below_megabytes_of_xml_is_judged_in_time() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "[admission]\nhost_cached_disks = \"refuse\"");
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    // libvirt takes 4 MiB and hands each of these quotes on as an entity of six bytes.
    let elements = format!("<description>{}</description>", "'".repeat(4_000_000));
    let domain = Domain { elements, ..cached("web-1", &storage.disk("disk.raw")) };
    node.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    let said = node.start(&domain).expect_failure();
    assert!(said.contains("disk vda (/run/store/disk.raw, cache='writeback')"), "{said}");
    let direct = Domain { cache: "none", ..domain };
    node.host.define(&direct);
    node.start(&direct).expect_ok();
}

#[test]
fn where_host_cached_disks_are_allowed_nothing_is_said_of_them_and_an_observing_node_refuses_none() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let allow = "[admission]\nhost_cached_disks = \"allow\"";
    let mut node = site.node("n1", allow);
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    let domain = cached("web-1", &storage.disk("disk.raw"));
    node.run_leased(&site, "n1", &domain);
    wait_until("its disk was noted", SOON, || {
        let notes = format!("/proc/{}/root/run/leasehold/copies.json", node.host.init());
        std::fs::read_to_string(notes).is_ok_and(|text| text.contains("disk.raw"))
    });
    assert_eq!(shown(&node, &domain), [""; 0]);
    assert!(!node.guard.as_ref().unwrap().log().contains("page cache"));

    node.kill_guard();
    let observe = "mode = \"observe\"\n[admission]\nhost_cached_disks = \"refuse\"";
    node.configure("n1", &node.link.far.to_string(), 7470, observe);
    node.start_guard();
    let other = cached("web-2", &storage.disk("other.raw"));
    node.host.define(&other);
    node.start(&other).expect_ok();
    let guard = node.guard.as_mut().unwrap();
    guard.wait_for_log(
        &format!("observing: would refuse: domain web-2 ({}) is not started: disk vda", other.uuid),
        SOON,
    );
}
