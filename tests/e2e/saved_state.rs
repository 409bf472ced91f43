//! Saved state outlives a refusal: managed saves, saved files, snapshots. And what changes a guest's life without any
//! hook keeps its lease.

use crate::harness::{Domain, Node, Site, World, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

fn revoke(site: &Site<'_>, node: &Node, domain: &Domain) {
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    wait_until("libvirt had cleaned up", SOON, || node.host.state(domain).starts_with("shut off"));
}

#[test]
fn a_refused_restore_keeps_the_saved_state_and_a_later_one_takes_it_up() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    let file = world.dir().join("web-1.saved").display().to_string();
    let managed = node.host.home().join("lib/qemu/save/web-1.save").display().to_string();
    node.run_leased(&site, "n1", &domain);
    let ways: [(&[&str], &[&str], &str); 2] = [
        (&["managedsave", "web-1"], &["start", "web-1"], &managed),
        (&["save", "web-1", &file], &["restore", &file], &file),
    ];
    for (save, restore, image) in ways {
        node.wait_until_held(&domain);
        node.host.virsh(save).expect_ok();
        let saved = std::fs::read(image).expect("libvirt has saved it");
        revoke(&site, &node, &domain);
        let said = node.host.virsh(restore).expect_failure();
        assert!(said.contains("no lease for domain web-1"), "{said}");
        assert!(std::fs::read(image).expect("it is kept") == saved, "{restore:?} was refused and changed {image}");
        assert_eq!(node.host.qemu(&domain), None);
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        node.host.virsh(restore).expect_ok();
    }
    node.wait_until_held(&domain);
    assert!(!std::path::Path::new(&managed).exists(), "a managed save is used once");
}

#[test]
fn a_snapshot_is_reverted_to_under_the_lease_and_a_refused_revert_loses_neither_it_nor_the_domain() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let disk = world.dir().join("disk.qcow2");
    let domain = Domain::new("web-1").with_qcow2(&disk);
    node.run_leased(&site, "n1", &domain);
    node.wait_until_held(&domain);
    node.host.virsh(&["snapshot-create-as", "web-1", "live"]).expect_ok();
    let before = node.host.qemu(&domain);
    // A new process where the domain ran: the old one must be proven gone first, within the hook's deadline.
    node.host.virsh(&["snapshot-revert", "web-1", "live"]).expect_ok();
    assert_ne!(node.host.qemu(&domain).expect("it runs"), before.expect("it ran"));
    node.wait_until_held(&domain);
    revoke(&site, &node, &domain);

    let definition = || node.host.virsh(&["dumpxml", "--inactive", "web-1"]).expect_ok();
    let disk = disk.display().to_string();
    let inside = || node.host.run("qemu-img", &["snapshot", "-l", &disk]).expect_ok();
    let (defined, kept) = (definition(), inside());
    let said = node.host.virsh(&["snapshot-revert", "web-1", "live"]).expect_failure();
    assert!(said.contains("no lease for domain web-1"), "{said}");
    assert_eq!(node.host.qemu(&domain), None);
    assert_eq!((definition(), inside()), (defined, kept));
    assert_eq!(node.host.virsh(&["snapshot-list", "web-1", "--name"]).expect_ok().trim(), "live");
    node.host.run("qemu-img", &["check", "-q", &disk]).expect_ok();

    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.host.virsh(&["snapshot-revert", "web-1", "live"]).expect_ok();
    node.wait_until_held(&domain);
}

/// libvirt merges the overlay of a domain that is shut off by a paused QEMU of its own.
#[test]
fn deleting_an_external_snapshot_of_a_stopped_domain_needs_its_lease_and_a_refusal_keeps_the_chain() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let base = world.dir().join("disk.qcow2");
    let domain = Domain::new("web-1").with_qcow2(&base);
    node.host.define(&domain);
    node.host.virsh(&["snapshot-create-as", "web-1", "outer", "--disk-only"]).expect_ok();
    let source = || node.host.virsh(&["domblklist", "web-1", "--inactive"]).expect_ok();
    let overlay = world.dir().join("disk.outer").display().to_string();
    assert!(source().contains(&overlay), "{}", source());
    let chain = || node.host.run("qemu-img", &["info", "--backing-chain", &overlay]).expect_ok();
    let before = (source(), chain());

    let said = node.host.virsh(&["snapshot-delete", "web-1", "outer"]).expect_failure();
    assert!(said.contains("no lease for domain web-1"), "{said}");
    assert_eq!((source(), chain()), before);
    assert_eq!(node.host.virsh(&["snapshot-list", "web-1", "--name"]).expect_ok().trim(), "outer");

    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    node.host.virsh(&["snapshot-delete", "web-1", "outer"]).expect_ok();
    assert!(source().contains(&base.display().to_string()), "{}", source());
    wait_until("the merge's start was over", SOON, || node.admitted().is_some_and(|open| open.is_empty()));
    revoke(&site, &node, &domain);
}

/// No hook runs for any of these, and none is needed: the process stays, and so does its lease.
#[test]
fn a_guest_that_is_reset_reboots_or_crashes_keeps_its_process_and_its_lease_until_it_is_revoked() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain {
        elements: "<features><acpi/></features><on_crash>restart</on_crash>".to_owned(),
        devices: "<panic model='isa'/>".to_owned(),
        ..Domain::new("web-1")
    };
    node.run_leased(&site, "n1", &domain);
    node.wait_until_held(&domain);
    let pid = node.host.qemu(&domain);
    let epoch = node.status(&domain).expect("it is known")["epoch"].clone();
    let write_port = |what: &str| {
        node.host.virsh(&["qemu-monitor-command", "web-1", "--hmp", what]).expect_ok();
    };
    // By QEMU's monitor, for want of a guest: ACPI's soft off, which libvirt turns into a reboot, and a panic.
    let ways: [(&str, &dyn Fn()); 3] = [
        ("reset", &|| drop(node.host.virsh(&["reset", "web-1"]).expect_ok())),
        ("reboot", &|| {
            node.host.virsh(&["reboot", "web-1", "--mode", "acpi"]).expect_ok();
            write_port("o /h 0x604 0x2000");
        }),
        ("crash", &|| write_port("o /b 0x505 1")),
    ];
    for (name, happen) in ways {
        let mut heard = node.host.start(name, "virsh", &["event", "web-1", "reboot", "--timeout", "20"]);
        wait_until(&format!("the guest's {name} was heard of"), SOON, || {
            // Again and again: the listener and the firmware come up when they do.
            happen();
            std::thread::sleep(Duration::from_millis(100));
            heard.has_ended()
        });
        assert!(heard.log().contains("event 'reboot' for domain"), "{name}: {}", heard.log());
        wait_until("it ran again", SOON, || node.host.state(&domain).starts_with("running"));
        assert_eq!(node.host.qemu(&domain), pid, "{name}");
    }
    let known = node.status(&domain).expect("it is known");
    assert_eq!((&known["lease"], &known["epoch"]), (&"held".into(), &epoch), "{known}");
    revoke(&site, &node, &domain);
    assert_eq!(node.host.qemu(&domain), None);
}
