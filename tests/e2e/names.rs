//! A domain may be called almost anything. Its uuid is what counts, and its name must break neither a line nor JSON.

use crate::harness::{Domain, Node, Site, World, qemus, wait_until};
use nix::sys::signal::Signal;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

fn odd_names() -> Vec<String> {
    let odd = [
        "-",
        "--help",
        "a b",
        "a&b 'q' \"r\" <s>",
        "ü-ß-名前-\u{202e}txt",
        "tab\there",
        "line\nFAULT    forged\nleasehold: forged",
        "%s%n $(reboot) `x` ; \\",
    ];
    odd.iter().map(|name| (*name).to_owned()).chain(["x".repeat(200)]).collect()
}

/// `virsh create`: a name with a newline cannot be defined, but run.
fn create(node: &Node, domain: &Domain) {
    node.host.run_with("virsh", &["-q", "create", "/dev/stdin"], &domain.xml()).expect_ok();
}

/// Every line of the log and of the status is one that leasehold wrote whole.
fn assert_lines_whole(node: &Node, domains: &[Domain]) {
    let log = node.guard.as_ref().unwrap().log();
    for line in log.lines() {
        assert!(line.starts_with("leasehold: ") && !line.starts_with("leasehold: forged"), "{line:?}");
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
    }
    let text = node.host.leasehold(&["status"]).expect_ok();
    assert!(!text.contains("\nFAULT") && !text.contains('\t') && !text.contains('\u{202e}'), "{text}");
    for domain in domains {
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(&domain.uuid)).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert!(lines[0].contains(&domain.name.escape_debug().to_string()), "{}", lines[0]);
        let known = node.status(domain).expect("it is known");
        assert_eq!(known["name"], domain.name.as_str(), "JSON has the name as it is");
    }
}

#[test]
fn domains_of_any_name_are_refused_started_shown_and_killed_with_libvirts_help() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domains: Vec<Domain> = odd_names().iter().map(|name| Domain::new(name)).collect();
    for domain in &domains {
        let said = node.host.run_with("virsh", &["-q", "create", "/dev/stdin"], &domain.xml()).expect_failure();
        let label = format!("no lease for domain {} ({})", domain.name.escape_debug(), domain.uuid);
        assert!(said.contains(&label), "{said}");
        site.lease(&["grant", &domain.uuid, "n1", &format!("--name={}", domain.name)]).expect_ok();
        create(&node, domain);
        node.wait_until_held(domain);
    }
    assert_lines_whole(&node, &domains);
    let list = site.lease(&["list"]).expect_ok();
    for domain in &domains {
        assert_eq!(list.lines().filter(|line| line.contains(&domain.uuid)).count(), 1, "{list}");
        site.lease(&["revoke", &domain.uuid]).expect_ok();
    }
    for domain in &domains {
        site.lease(&["wait", &domain.uuid]).expect_ok();
        assert_eq!(node.host.qemu(domain), None, "{:?}", domain.name);
    }
    let log = node.guard.as_ref().unwrap().log();
    assert!(!log.contains("libvirt did not destroy"), "{log}");
    assert_lines_whole(&node, &[]);
}

#[test]
fn domains_of_any_name_are_found_and_killed_without_libvirtd() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domains: Vec<Domain> = odd_names().iter().map(|name| Domain::new(name)).collect();
    for domain in &domains {
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        create(&node, domain);
    }
    node.host.hang_libvirtd();
    // A guard that knows nothing and can ask nobody: it finds them by their processes alone.
    node.kill_guard();
    node.host.run("sh", &["-c", "rm /run/leasehold/*"]).expect_ok();
    node.start_guard();
    domains.iter().for_each(|domain| node.wait_until_held(domain));
    assert_lines_whole(&node, &domains);
    for domain in &domains {
        site.lease(&["revoke", &domain.uuid]).expect_ok();
    }
    for domain in &domains {
        site.lease(&["wait", &domain.uuid]).expect_ok();
        assert_eq!(node.host.qemu(domain), None, "{:?}", domain.name);
    }
    assert_lines_whole(&node, &[]);
    node.host.wake_libvirtd();
}

#[test]
fn two_domains_of_one_name_on_two_hosts_are_two_domains() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let (first, second) = (site.node("n1", ""), site.node("n2", ""));
    let (one, two) = (Domain::new("web 1"), Domain::new("web 1"));
    first.run_leased(&site, "n1", &one);
    second.run_leased(&site, "n2", &two);
    first.wait_until_held(&one);
    second.wait_until_held(&two);
    // Their leases are not each other's.
    second.host.virsh(&["destroy", "web 1"]).expect_ok();
    second.host.virsh(&["undefine", "web 1"]).expect_ok();
    second.host.define(&one);
    let said = second.start(&one).expect_failure();
    assert!(said.contains(&format!("no lease for domain web 1 ({}): owned by node n1", one.uuid)), "{said}");
    second.host.virsh(&["undefine", "web 1"]).expect_ok();
    second.host.define(&two);
    second.start(&two).expect_ok();
    let kept = second.host.qemu(&two);
    site.lease(&["revoke", &one.uuid]).expect_ok();
    site.lease(&["wait", &one.uuid]).expect_ok();
    assert_eq!((first.host.qemu(&one), second.host.qemu(&two)), (None, kept));
    second.wait_until_held(&two);
}

/// virsh takes what is no uuid it knows for a name.
#[test]
fn a_domain_that_has_anothers_uuid_for_a_name_is_not_destroyed_in_its_place() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let lost = Domain::new("lost");
    let namesake = Domain::new(&lost.uuid);
    for domain in [&lost, &namesake] {
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    }
    create(&node, &lost);
    node.wait_until_held(&lost);
    // libvirtd forgets it: its files are lost while it is away.
    node.host.end_libvirtd(Signal::SIGKILL);
    node.host.run("sh", &["-c", "rm /run/libvirt/qemu/lost.*"]).expect_ok();
    node.host.start_libvirtd();
    let lost_pid = qemus(&lost.uuid);
    assert_eq!(lost_pid.len(), 1, "libvirt has forgotten it, and it runs");
    create(&node, &namesake);
    node.wait_until_held(&namesake);
    let pid = node.host.qemu(&namesake);
    site.lease(&["revoke", &lost.uuid]).expect_ok();
    site.lease(&["wait", &lost.uuid]).expect_ok();
    assert_eq!(qemus(&lost.uuid), pid.into_iter().collect::<Vec<_>>(), "only the one with its uuid for a name");
    wait_until("it ran on", SOON, || node.status(&namesake).is_some_and(|known| known["state"] == "running"));
}
