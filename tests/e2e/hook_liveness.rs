//! libvirt fails open without a word when its hook is missing, cannot run or is looked for elsewhere. The guard notices,
//! says so once with the remedy, treats what started meanwhile like any domain it finds, and takes it back.

use crate::harness::{Domain, Node, Site, World, leasehold, wait_until};
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

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

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// A node whose guard and hook are a copy of the binary, which a test may spoil.
fn node_of_a_copy<'w>(world: &'w World, site: &Site<'w>, more: &str) -> (Node, std::path::PathBuf) {
    let binary = world.dir().join("leasehold");
    std::fs::copy(leasehold(), &binary).expect("there is room for a copy");
    let mut node = site.node_without_guard("n1", more);
    node.host.install_hook(&binary);
    node.host.restart_libvirtd();
    node.guard = Some(node.host.guard_of(&binary));
    (node, binary)
}

/// The fault is shown, what starts unasked lives only under a lease, and the log has the fault once.
fn assert_noticed(site: &Site<'_>, node: &Node, fault: &str) {
    wait_until(&format!("'{fault}' was shown"), SOON, || {
        node.faults().is_some_and(|faults| faults.iter().any(|shown| shown.contains(fault)))
    });
    let text = node.host.leasehold(&["status"]).expect_ok();
    assert!(text.lines().any(|line| line.starts_with("FAULT ") && line.contains(fault)), "{text}");
    let (leased, other) = (Domain::new("leased"), Domain::new("other"));
    for domain in [&leased, &other] {
        node.host.define(domain);
    }
    site.lease(&["grant", &leased.uuid, "n1"]).expect_ok();
    for domain in [&leased, &other] {
        node.start(domain).expect_ok();
    }
    node.host.wait_until_gone(&other, SOON);
    node.wait_until_held(&leased);
    let log = node.guard.as_ref().unwrap().log();
    assert_eq!(log.lines().filter(|line| line.contains(fault)).count(), 1, "{log}");
    node.host.virsh(&["destroy", "leased"]).expect_ok();
    site.lease(&["revoke", &leased.uuid]).expect_ok();
    for domain in [&leased, &other] {
        wait_until("libvirt had cleaned up", SOON, || node.host.state(domain).starts_with("shut off"));
        node.host.virsh(&["undefine", &domain.name]).expect_ok();
    }
}

/// The fault is taken back, and an unleased start is refused again.
fn assert_healed(node: &Node) {
    wait_until("no fault was left", SOON, || node.faults().is_some_and(|faults| faults.is_empty()));
    assert_in_force(node);
}

fn assert_in_force(node: &Node) {
    let domain = Domain::new("unleased");
    node.host.define(&domain);
    assert!(node.start(&domain).expect_failure().contains("no lease for domain unleased"));
    node.host.virsh(&["undefine", "unleased"]).expect_ok();
    wait_until("no fault was left", SOON, || node.faults().is_some_and(|faults| faults.is_empty()));
}

#[test]
fn a_hook_that_is_missing_or_dangling_or_cannot_be_executed_is_noticed_and_taken_back() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (node, binary) = node_of_a_copy(&world, &site, "");
    let link = node.host.hook_link();
    assert_healed(&node);
    node.host.remove_hook();
    assert_noticed(&site, &node, "no hook in");
    node.host.install_hook(&binary);
    assert_healed(&node);
    node.host.install_hook(Path::new("/nonexistent/leasehold"));
    assert_noticed(&site, &node, "leads nowhere");
    node.host.install_hook(&binary);
    assert_healed(&node);
    chmod(&binary, 0o644);
    assert_noticed(&site, &node, &format!("run 'chmod +x {}'", "/etc/libvirt/hooks/qemu.d/leasehold-hook"));
    chmod(&binary, 0o755);
    assert_healed(&node);
    assert!(link.exists());
}

/// libvirt looks once, when it starts, whether there is any hook at all.
#[test]
fn a_hook_that_could_not_run_when_libvirtd_started_is_in_force_only_after_a_reload_and_that_is_noticed() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (node, binary) = node_of_a_copy(&world, &site, "");
    // A link as old as can be: only whoever saw that it could not be executed knows.
    chmod(&binary, 0o644);
    wait_until("it was noticed", SOON, || node.faults().is_some_and(|faults| !faults.is_empty()));
    node.host.restart_libvirtd();
    chmod(&binary, 0o755);
    assert_noticed(&site, &node, "which has not called it yet; run 'systemctl reload libvirtd'");
    reload(&node);
    assert_in_force(&node);
    // The same for a new link.
    node.host.remove_hook();
    node.host.restart_libvirtd();
    node.host.install_hook(&binary);
    wait_until("it was noticed", SOON, || {
        node.faults().is_some_and(|faults| faults.iter().any(|fault| fault.contains("systemctl reload libvirtd")))
    });
    reload(&node);
    assert_in_force(&node);
}

/// Waits until it has happened: the reload looks for hooks at its end.
fn reload(node: &Node) {
    node.host.neighbour("../daemon", "[ $2 = reload ] && touch /run/reloaded");
    node.host.reload_libvirtd();
    let reloaded = format!("/proc/{}/root/run/reloaded", node.host.init());
    wait_until("libvirtd was reloaded", SOON, || std::fs::remove_file(&reloaded).is_ok());
    std::fs::remove_file(node.host.hook_link().with_file_name("../daemon")).unwrap();
}

#[test]
fn a_libvirtd_with_another_etc_is_looked_at_with_its_own_eyes() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    node.host.end_libvirtd(Signal::SIGTERM);
    node.host.start_libvirtd_elsewhere("mount -t tmpfs shadow /etc/libvirt/hooks");
    assert_noticed(&site, &node, "/root/etc/libvirt/hooks/qemu.d; run");
    // The same namespace with a hook in it, behind a link that has to be followed there.
    node.host.end_libvirtd(Signal::SIGTERM);
    let program = leasehold().display().to_string();
    node.host.start_libvirtd_elsewhere(&format!(
        "mount -t tmpfs shadow /etc/libvirt/hooks; mkdir /etc/libvirt/hooks/qemu.d; \
         ln -s {program} /etc/libvirt/hooks/program; ln -s /etc/libvirt/hooks/program /etc/libvirt/hooks/qemu.d/x"
    ));
    assert_in_force(&node);
    // And with state files of its own, so that only /proc tells where it is.
    node.host.end_libvirtd(Signal::SIGTERM);
    node.host.start_libvirtd_elsewhere("mount -t tmpfs shadow /etc/libvirt/hooks; rm -f /run/libvirt/qemu/driver.pid");
    node.host.run("sh", &["-c", "rm -f /run/libvirt/qemu/driver.pid; mv /run/libvirtd.pid /run/aside"]).expect_ok();
    wait_until("it was noticed all the same", SOON, || {
        node.faults().is_some_and(|faults| faults.iter().any(|fault| fault.contains("/root/etc/libvirt/hooks/qemu.d")))
    });
    node.host.run("mv", &["/run/aside", "/run/libvirtd.pid"]).expect_ok();
}

#[test]
fn a_libvirtd_that_looks_for_hooks_elsewhere_is_found_out_by_the_first_domain_it_starts_unasked() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    // As a libvirt with another compiled-in directory: the hook that the guard sees is in order, and is not called.
    let mut node = site.node_without_guard("n1", "");
    let elsewhere = node.host.home().join("leasehold/hooks/qemu.d");
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::os::unix::fs::symlink(leasehold(), elsewhere.join("leasehold-hook")).unwrap();
    node.host.remove_hook();
    node.host.restart_libvirtd();
    node.configure("n1", &node.link.far.to_string(), 7470, "libvirt.hooks_dir = \"/etc/leasehold/hooks\"");
    node.start_guard();
    assert_eq!(node.faults().as_deref(), Some(&[][..]), "nothing has shown yet");
    let domain = Domain::new("first");
    node.host.define(&domain);
    node.start(&domain).expect_ok();
    node.host.wait_until_gone(&domain, SOON);
    assert_noticed(&site, &node, "has never called the hook");
    node.host.install_hook(&leasehold());
    reload(&node);
    assert_in_force(&node);
}
