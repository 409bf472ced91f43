//! That the harness itself works, and that libvirt behaves as the project relies on.

use crate::harness::{Direction, Domain, Stopwatch, World, qemus, wait_until};
use nix::sys::signal::Signal;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_domain_starts_and_is_destroyed() {
    let Some(world) = World::new() else { return };
    let host = world.host("n1");
    let domain = Domain::new("web & 'co'");
    host.define(&domain);
    host.virsh(&["start", &domain.name]).expect_ok();
    assert_eq!(host.state(&domain), "running (booted)");
    assert!(host.qemu(&domain).is_some());
    host.virsh(&["destroy", &domain.name]).expect_ok();
    host.wait_until_gone(&domain, SOON);
    assert_eq!(host.state(&domain), "shut off (destroyed)");
}

#[test]
fn a_hook_that_refuses_is_heard_with_its_sentence_and_nothing_starts() {
    let Some(world) = World::new() else { return };
    let sentence = "no lease for domain web-1: owned by node n2";
    let hook =
        world.script("hook", &format!("[ \"$2 $3\" != 'prepare begin' ] || {{ echo \"{sentence}\" >&2; exit 1; }}"));
    let host = world.host_with_hook("n1", &hook);
    let domain = Domain::new("web-1");
    host.define(&domain);
    let said = host.virsh(&["start", "web-1"]).expect_failure();
    assert!(said.contains(sentence), "{said}");
    assert_eq!(host.qemu(&domain), None);
}

#[test]
fn a_hook_put_in_place_later_is_ignored_until_libvirtd_is_reloaded() {
    let Some(world) = World::new() else { return };
    let host = world.host("n1");
    let domain = Domain::new("web-1");
    host.define(&domain);
    host.install_hook(&world.script("hook", "exit 1"));
    host.virsh(&["start", "web-1"]).expect_ok();
    host.virsh(&["destroy", "web-1"]).expect_ok();
    host.reload_libvirtd();
    wait_until("the reload was done", SOON, || {
        let started = host.virsh(&["start", "web-1"]).ok();
        let _ = started && host.virsh(&["destroy", "web-1"]).ok();
        !started
    });
    host.remove_hook();
    host.virsh(&["start", "web-1"]).expect_ok();
}

#[test]
fn two_hosts_run_the_same_uuid_at_once_and_the_oracle_sees_both() {
    let Some(world) = World::new() else { return };
    let (one, two) = (world.host("n1"), world.host("n2"));
    let domain = Domain::new("web-1");
    for host in [&one, &two] {
        host.define(&domain);
        host.virsh(&["start", "web-1"]).expect_ok();
    }
    assert_eq!(qemus(&domain.uuid).len(), 2);
    one.virsh(&["destroy", "web-1"]).expect_ok();
    one.wait_until_gone(&domain, SOON);
    assert_eq!(qemus(&domain.uuid), Vec::from_iter(two.qemu(&domain)));
}

#[test]
fn a_domain_outlives_a_restart_of_libvirtd_and_its_reconnect_is_over_when_that_returns() {
    let Some(world) = World::new() else { return };
    let asked = world.dir().join("asked");
    let hook = format!("[ \"$2\" != reconnect ] || {{ sleep 1; touch {}; }}", asked.display());
    let host = world.host_with_hook("n1", &world.script("hook", &hook));
    let domain = Domain::new("web-1");
    host.define(&domain);
    host.virsh(&["start", "web-1"]).expect_ok();
    let before = host.qemu(&domain);
    host.restart_libvirtd();
    assert!(asked.exists(), "the hook is still running");
    assert_eq!(host.qemu(&domain), before);
    assert!(host.state(&domain).starts_with("running"));
}

#[test]
fn libvirtd_can_be_made_to_hang_and_to_wake() {
    let Some(world) = World::new() else { return };
    let host = world.host("n1");
    host.hang_libvirtd();
    assert!(!host.run("timeout", &["0.5", "virsh", "-q", "list"]).ok(), "a hung libvirtd answered");
    host.wake_libvirtd();
    host.virsh(&["list"]).expect_ok();
}

#[test]
fn a_cut_link_is_silent_in_the_direction_that_was_cut_and_heals() {
    let Some(world) = World::new() else { return };
    let (near, far) = (world.space("near"), world.space("far"));
    let link = world.connect(&near, &far);
    let address = link.far.to_string();
    let ping = || near.run("python3", &["-c", ECHO_CLIENT, &address]).ok();
    let server = far.start("echo", "python3", &["-u", "-c", ECHO_SERVER]);
    wait_until("the server answered", SOON, ping);
    for direction in [Direction::Both, Direction::Outgoing, Direction::Incoming] {
        let heard = server.log().lines().count();
        link.cut(&near, direction);
        assert!(!ping(), "an answer came through a link cut {direction:?}");
        let arrived = server.log().lines().count() > heard;
        assert_eq!(arrived, direction == Direction::Incoming, "whether the question arrived, cut {direction:?}");
        link.heal(&near);
        assert!(ping(), "no answer through a healed link");
    }
}

/// UDP, so that "the question arrived" and "the answer came" are separate facts.
const ECHO_SERVER: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 7))
while True:
    data, peer = s.recvfrom(64)
    print('heard')
    s.sendto(data, peer)
";
const ECHO_CLIENT: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.3)
s.sendto(b'x', (sys.argv[1], 7))
s.recv(64)
";

#[test]
fn a_signal_reaches_the_very_process_that_was_started() {
    let Some(world) = World::new() else { return };
    let space = world.space("s");
    let mut process =
        space.start("sleeper", "sh", &["-c", "trap 'echo told; exit 7' TERM; echo up; while :; do sleep 0.01; done"]);
    process.wait_for_log("up", SOON);
    process.signal(Signal::SIGSTOP);
    process.signal(Signal::SIGTERM);
    assert!(!process.has_ended(), "a stopped process handles nothing");
    process.signal(Signal::SIGCONT);
    assert_eq!(process.wait_for_end(SOON).code(), Some(7));
    assert!(process.log().contains("told"));
}

#[test]
fn nothing_of_a_world_is_left_when_it_ends_not_even_by_a_panic() {
    let Some(world) = World::new() else { return };
    let domain = Domain::new("web-1");
    let (uuid, unique) = (domain.uuid.clone(), world.unique("n1"));
    let dir = world.dir().to_owned();
    let watch = Stopwatch::start();
    let panicked = std::thread::Builder::new()
        .name("a test that panics on purpose".to_owned())
        .spawn(move || {
            let host = world.host("n1");
            host.define(&domain);
            host.virsh(&["start", "web-1"]).expect_ok();
            let _sleeper = host.start("sleeper", "sleep", &["1000"]);
            assert_eq!(qemus(&domain.uuid).len(), 1);
            std::panic::resume_unwind(Box::new("on purpose"));
        })
        .expect("a thread")
        .join();
    assert_eq!(panicked.expect_err("it panics").downcast_ref::<&str>(), Some(&"on purpose"));
    watch.assert_within(Duration::from_secs(30), "a world with one host");
    assert!(qemus(&uuid).is_empty(), "a QEMU was left");
    assert!(!dir.exists(), "the directory was left");
    let groups = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "2", "-name", &format!("host-{unique}")])
        .output()
        .expect("find can be run");
    assert_eq!(String::from_utf8_lossy(&groups.stdout), "", "groups were left");
}
