//! A whole host's leases end at once.

use crate::harness::{Domain, SigkillTrace, Site, World, all_qemus, expiry, fill_the_machine, wait_until};
use leasehold::lease::time::BootTime;
use serde_json::Value;
use std::fmt::Write;
use std::time::Duration;

const DOMAINS: usize = 200;
/// A QEMU of 32 MiB that has executed its firmware, with room to spare.
const KIB_EACH: usize = 100 << 10;

#[test]
fn two_hundred_domains_whose_leases_end_at_once_are_struck_within_50_ms_and_all_proven_gone() {
    let _filled = fill_the_machine();
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    let domains: Vec<Domain> = (0..affordable()).map(|number| Domain::new(&format!("web-{number}"))).collect();
    let mut names = String::new();
    for domain in &domains {
        node.host.define(domain);
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        writeln!(names, "{}", domain.name).expect("a String takes everything");
    }
    node.host.run_with("xargs", &["-P4", "-n1", "virsh", "-q", "start"], &names).expect_ok();
    let running = all_qemus();
    let pid = |domain: &Domain| running.iter().find(|(_, line)| line.contains(&domain.uuid)).map(|(pid, _)| *pid);
    let pids: Vec<i32> = domains.iter().map(|domain| pid(domain).expect("it was started")).collect();

    // Nothing but our own SIGKILL may end them.
    node.host.hang_libvirtd();
    let trace = SigkillTrace::start(&world);
    site.kill_authority();
    // From then on, D before its end, nothing renews it any more.
    let condemned =
        |ledger: &Value| domains.iter().all(|domain| ledger["domains"][&domain.uuid]["copies"][0]["dying"].is_object());
    let mut ledger = Value::Null;
    wait_until("all were condemned", Duration::from_secs(10), || {
        ledger = node.ledger().expect("the guard writes it");
        condemned(&ledger)
    });
    let ends: Vec<BootTime> = domains.iter().map(|domain| expiry(&ledger, domain).expect("it runs")).collect();
    wait_until("all were proven gone", Duration::from_secs(60), || {
        let view = node.view().expect("the guard runs");
        view["domains"].as_array().expect("a list").iter().all(|known| known["pids"] == serde_json::json!([]))
    });
    let struck = trace.first_of_each();
    for ((domain, pid), end) in domains.iter().zip(&pids).zip(&ends) {
        let at = struck[pid];
        assert!(at >= *end, "{} was struck {:?} early", domain.name, at.left(*end));
        assert!(at.since(*end) <= Duration::from_millis(50), "{} was struck {:?} late", domain.name, at.since(*end));
    }
    node.host.wake_libvirtd();
}

/// How many domains fit into this machine's memory; at most [`DOMAINS`].
fn affordable() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux has /proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("Linux 3.14");
    let kib: usize = line.trim_end_matches("kB").trim().parse().expect("a number of KiB");
    (kib / KIB_EACH).min(DOMAINS)
}
