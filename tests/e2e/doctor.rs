//! `leasehold doctor`: a word for each thing that would keep leasehold from protecting the host, and none for the rest.

use crate::harness::{Domain, FileServer, Host, Site, World, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Whether it found nothing that fails, and its findings: check, verdict, text with remedy.
fn doctor(host: &Host) -> (bool, Vec<(String, String, String)>) {
    let asked = host.leasehold(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&asked.out).unwrap_or_else(|e| panic!("{e}: {asked:?}"));
    let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter().map(|finding| {
        let words = format!("{}; {}", text(finding, "what"), text(finding, "remedy"));
        (text(finding, "check"), text(finding, "verdict"), words)
    });
    let findings: Vec<_> = findings.collect();
    let failing = findings.iter().any(|(_, verdict, _)| verdict == "fail");
    assert_eq!(asked.ok(), !failing, "its status says the same");
    (asked.ok(), findings)
}

/// Waits for a finding: the guard learns of a fault with its next scan or question.
#[track_caller]
fn expect(host: &Host, check: &str, verdict: &str, words: &str) {
    let mut last = Vec::new();
    let found = |last: &mut Vec<_>| {
        *last = doctor(host).1;
        last.iter().any(|(c, v, w): &(String, String, String)| c == check && v == verdict && w.contains(words))
    };
    let begun = std::time::Instant::now();
    while !found(&mut last) {
        assert!(begun.elapsed() < SOON, "no {verdict} of {check} with '{words}':\n{last:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn on_a_healthy_host_nothing_fails_and_the_limits_are_named() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    wait_until("it had contact", SOON, || doctor(&node.host).0);
    for (check, verdict, words) in [
        ("config", "ok", "node n1"),
        ("guard", "ok", "enforcing"),
        ("run_dir", "ok", "on memory"),
        ("contact", "ok", "s ago"),
        ("ledger", "ok", "of this boot"),
        ("libvirt", "ok", "pid"),
        ("hook", "ok", "in force"),
        ("pidfd", "ok", "work"),
        ("boot", "ok", ""),
        ("watchdog", "warn", "only receipts"),
    ] {
        expect(&node.host, check, verdict, words);
    }
    let said = node.host.leasehold(&["doctor"]).expect_ok();
    assert!(said.contains("ok    hook          installed and in force") && said.contains("\n0 failures, "), "{said}");
}

#[test]
fn each_thing_that_breaks_is_named_with_what_to_do() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let mut node = site.node("n1", "");
    wait_until("it was well", SOON, || doctor(&node.host).0);
    node.host.hang_libvirtd();
    expect(&node.host, "libvirt", "fail", "does not answer");
    node.host.wake_libvirtd();
    node.host.remove_hook();
    expect(&node.host, "hook", "fail", "ln -s");
    site.kill_authority();
    expect(&node.host, "contact", "fail", "look at the network");
    node.kill_guard();
    expect(&node.host, "guard", "fail", "systemctl start leasehold");
    // And what needs no guard is told all the same.
    expect(&node.host, "hook", "fail", "ln -s");
    node.host.write_config("leasehold.toml", "node = 7\n");
    expect(&node.host, "config", "fail", "check-config");
}

#[test]
fn storage_that_may_write_after_a_domains_death_is_named_with_the_domain() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let server = FileServer::new(&world, &node.host);
    let domain = Domain { cache: "writeback", ..Domain::new("web-1").with_disk(server.path()) };
    node.run_leased(&site, "n1", &domain);
    expect(
        &node.host,
        "storage",
        "warn",
        &format!("domain web-1 ({}) writes to {}", domain.uuid, server.path().display()),
    );
    expect(&node.host, "storage", "ok", "1 domains; in 1 ways");
}
