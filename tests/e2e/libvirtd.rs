//! libvirtd hung, killed and restarted, and what may hold its locks: a hook of ours never longer than its deadline.

use crate::harness::{Domain, Node, Process, Site, Stopwatch, World, leasehold, wait_until};
use leasehold::node::clock;
use nix::sys::signal::Signal;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// L of the `fast` profile.
const TTL: Duration = Duration::from_secs(5);

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
fn a_restart_of_libvirtd_keeps_what_is_leased_and_with_the_guard_away_what_its_ledger_does_not_end() {
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let mut node = site.node("n1", "");
    let (leased, unknown) = (Domain::new("leased"), Domain::new("unknown"));
    node.run_leased(&site, "n1", &leased);
    wait_until("the guard knew it", SOON, || node.status(&leased).is_some_and(|known| known["state"] == "running"));
    let pid = node.host.qemu(&leased);
    node.host.restart_libvirtd();
    assert_eq!(node.host.qemu(&leased), pid, "leased, by the guard");
    node.kill_guard();
    let hook = node.host.home().join("etc/hooks/qemu.d");
    let link = std::fs::read_dir(&hook).unwrap().flatten().next().expect("our hook").path();
    let program = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    node.host.define(&unknown);
    node.start(&unknown).expect_ok();
    std::os::unix::fs::symlink(program, &link).unwrap();
    node.host.restart_libvirtd();
    assert_eq!(node.host.qemu(&leased), pid, "leased, by the ledger alone");
    assert!(node.host.qemu(&unknown).is_some(), "unknown: the guard owns that job");
    // The lease ends while no guard is there to kill: then libvirtd's restart is the one who asks.
    site.kill_authority();
    let end = node.expires(&leased);
    wait_until("its lease had ended", SOON, || clock::now() > end);
    node.host.restart_libvirtd();
    node.host.wait_until_gone(&leased, SOON);
    assert!(node.host.qemu(&unknown).is_some());
}

#[test]
fn a_killed_libvirtd_loses_nothing_that_is_leased_and_keeps_nothing_that_is_not() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let (leased, unknown) = (Domain::new("leased"), Domain::new("unknown"));
    node.run_leased(&site, "n1", &leased);
    node.wait_until_held(&leased);
    let pid = node.host.qemu(&leased);
    node.host.define(&unknown);
    node.host.remove_hook();
    let starting = node.host.start("start", "virsh", &["-q", "start", "unknown"]);
    wait_until("it ran", SOON, || node.host.qemu(&unknown).is_some());
    node.host.end_libvirtd(Signal::SIGKILL);
    drop(starting);
    node.host.wait_until_gone(&unknown, SOON);
    node.host.install_hook(&leasehold());
    node.host.start_libvirtd();
    assert_eq!(node.host.qemu(&leased), pid);
    assert!(node.host.state(&leased).starts_with("running"), "libvirt has it again");
    assert!(node.host.state(&unknown).starts_with("shut off"));
    // Its lease ends while the guard hangs and libvirtd is dead: then the hook finds it expired, by the ledger.
    let guard = node.guard.as_ref().unwrap();
    guard.signal(Signal::SIGSTOP);
    node.host.end_libvirtd(Signal::SIGKILL);
    let end = node.expires(&leased);
    wait_until("its lease had ended", SOON, || clock::now() > end);
    assert_eq!(node.host.qemu(&leased), pid, "nobody is there to kill it");
    node.host.start_libvirtd();
    node.host.wait_until_gone(&leased, SOON);
    guard.signal(Signal::SIGCONT);
}

#[test]
fn a_libvirtd_killed_in_the_middle_of_a_start_leaves_no_admission_behind() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.host.define(&domain);
    site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    for operation in ["prepare", "start"] {
        let here = world.dir().join(operation);
        node.host.neighbour(
            "zz-neighbour",
            &format!("[ $2 = {operation} ] || exit 0; touch '{}'; exec sleep 1000", here.display()),
        );
        let starting = node.host.start("start", "virsh", &["-q", "start", "web-1"]);
        wait_until("ours had said yes", SOON, || here.exists());
        assert_eq!(node.admitted(), Some(vec![domain.uuid.clone()]), "{operation}");
        node.host.end_libvirtd(Signal::SIGKILL);
        drop(starting);
        wait_until("the admission was closed", SOON, || node.admitted().is_some_and(|open| open.is_empty()));
        node.host.neighbour("zz-neighbour", "exit 0");
        node.host.start_libvirtd();
    }
    node.start(&domain).expect_ok();
    node.wait_until_held(&domain);
}

#[test]
fn a_neighbours_hook_that_hangs_with_libvirts_lock_holds_up_neither_the_kill_nor_the_receipt() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let domain = Domain::new("web-1");
    let here = world.dir().join("here");
    // Before ours, so that ours is not even called.
    node.host
        .neighbour("00-neighbour", &format!("[ $2 = stopped ] || exit 0; touch '{}'; exec sleep 1000", here.display()));
    node.run_leased(&site, "n1", &domain);
    node.wait_until_held(&domain);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid, "--timeout", "15"]).expect_ok();
    assert_eq!(node.host.qemu(&domain), None);
    wait_until("the neighbour hung", SOON, || here.exists());
}

#[test]
fn autostart_at_boot_starts_what_is_leased_and_a_refused_domain_keeps_its_definition() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let (leased, other) = (Domain::new("leased"), Domain::new("other"));
    for domain in [&leased, &other] {
        node.host.define(domain);
        node.host.virsh(&["autostart", &domain.name]).expect_ok();
    }
    site.lease(&["grant", &leased.uuid, "n1"]).expect_ok();
    node.host.end_libvirtd(Signal::SIGTERM);
    node.host.run("rm", &["-f", "/run/libvirt/qemu/autostarted"]).expect_ok();
    node.host.start_libvirtd();
    wait_until("the leased one was started", SOON, || node.host.qemu(&leased).is_some());
    node.wait_until_held(&leased);
    node.guard
        .as_mut()
        .unwrap()
        .wait_for_log(&format!("refused Prepare: no lease for domain other ({})", other.uuid), SOON);
    // libvirt took the refusal for one: a domain that ran and was killed would look the same a second later.
    let libvirts = node.host.home().join("log/libvirtd.log");
    wait_until("libvirt gave the autostart up", SOON, || {
        std::fs::read_to_string(&libvirts).is_ok_and(|log| log.contains("Failed to autostart VM 'other'"))
    });
    assert_eq!(node.host.qemu(&other), None);
    let info = node.host.virsh(&["dominfo", "other"]).expect_ok();
    assert!(info.lines().any(|line| line.starts_with("Autostart:") && line.ends_with("enable")), "{info}");
}

/// What may be wrong with the guard or with the place it writes to.
enum Wrong {
    Stopped,
    /// Somebody else at its socket, in Python.
    Server(&'static str),
    Frozen,
}

/// The hook's sentence names the trouble.
const WRONGS: &[(&str, Wrong, &str)] = &[
    ("a guard that is stopped", Wrong::Stopped, "nothing within"),
    ("a socket at which nobody accepts", Wrong::Server("stuff()"), "no verdict in time"),
    ("half an answer and silence", Wrong::Server("answer(b'\"al', kept.append)"), "nothing within"),
    ("half an answer and its end", Wrong::Server("answer(b'\"al', socket.socket.close)"), "the message has no end"),
    ("a file system that is frozen", Wrong::Frozen, "it did not decide in time"),
];

const SERVER: &str = "import socket, time
path, kept = '/run/leasehold/guard.sock', []
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(0)
def stuff():
    for _ in range(4):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        client.connect_ex(path)
        kept.append(client)
    print('ready', flush=True)
    time.sleep(1000)
def answer(text, then):
    print('ready', flush=True)
    while True:
        peer = server.accept()[0]
        peer.recv(65536)
        peer.send(text)
        then(peer)
";

/// What has to be undone, also when a test fails: a frozen file system would hold its processes, and so its host, for ever.
enum Undo {
    Wake,
    Server(Process),
    Thaw(Thaw),
}

/// A child that holds the directory and thaws it when its input ends: also when this process is killed.
struct Thaw(Child);

impl Thaw {
    fn of(frozen: &Path) -> Thaw {
        let script = "exec 3<\"$0\"; echo ready; read -r _; fsfreeze -u /proc/self/fd/3";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(frozen).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh can be run");
        let ready = child.stdout.as_mut().expect("stdout is piped").read_exact(&mut [0; 6]);
        ready.expect("the directory can be opened");
        Thaw(child)
    }
}

impl Drop for Thaw {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn go_wrong(node: &mut Node, wrong: &Wrong) -> Undo {
    match wrong {
        Wrong::Stopped => {
            node.guard.as_ref().unwrap().signal(Signal::SIGSTOP);
            Undo::Wake
        }
        Wrong::Server(body) => {
            node.kill_guard();
            node.host.run("rm", &["/run/leasehold/guard.sock"]).expect_ok();
            let mut server =
                node.host.start(&format!("server-{}", body.len()), "python3", &["-c", &format!("{SERVER}{body}")]);
            server.wait_for_log("ready", SOON);
            Undo::Server(server)
        }
        Wrong::Frozen => {
            let thaw = Thaw::of(&node.host.run_dir());
            node.host.run("fsfreeze", &["-f", "/run/leasehold"]).expect_ok();
            Undo::Thaw(thaw)
        }
    }
}

fn put_right(node: &mut Node, undo: Undo) {
    match undo {
        Undo::Wake => node.guard.as_ref().unwrap().signal(Signal::SIGCONT),
        Undo::Server(server) => {
            server.kill();
            node.start_guard();
        }
        Undo::Thaw(thaw) => drop(thaw),
    }
}

#[test]
fn whatever_the_guard_or_its_disk_does_the_hook_ends_by_its_deadline_and_nothing_leased_is_lost() {
    const DEADLINE: Duration = Duration::from_secs(1);
    const END_DEADLINE: Duration = Duration::from_millis(500);
    /// For a process to start and end on a loaded machine.
    const SLACK: Duration = Duration::from_millis(800);
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let more = "[hook]\ndeadline = \"1s\"\n[lease]\nttl = \"20s\"\nrenew = \"1s\"\npolite = \"1s\"";
    let mut node = site.node_without_guard("n1", more);
    let image = world.dir().join("run.ext4").display().to_string();
    let mount = format!(
        "truncate -s 8M {image} && mkfs.ext4 -q {image} && mkdir -p /run/leasehold && mount -o loop {image} /run/leasehold"
    );
    node.host.run("sh", &["-c", &mount]).expect_ok();
    node.start_guard();
    let (running, starting) = (Domain::new("running"), Domain::new("starting"));
    node.run_leased(&site, "n1", &running);
    node.wait_until_held(&running);
    let pid = node.host.qemu(&running);
    node.host.define(&starting);
    site.lease(&["grant", &starting.uuid, "n1"]).expect_ok();
    let xml = starting.xml();
    for (what, wrong, why) in WRONGS {
        let undo = go_wrong(&mut node, wrong);
        let hook = |op: &str, subop: &str, limit: Duration| {
            let watch = Stopwatch::start();
            let ended = node.host.run_with(leasehold(), &["hook", "starting", op, subop, "-"], &xml);
            watch.assert_within(limit + SLACK, &format!("{op} with {what}"));
            ended
        };
        let refused = hook("prepare", "begin", DEADLINE);
        assert!(!refused.ok(), "a start was let through with {what}");
        let said = refused.expect_failure();
        assert!(said.contains("domain starting") && said.contains("is not started"), "{what}: {said}");
        assert!(said.contains(why), "{what}: {said}");
        for op in ["stopped", "release"] {
            hook(op, "end", END_DEADLINE).expect_ok();
        }
        // `reconnect` asks for what runs, and a refusal would kill it.
        node.host.restart_libvirtd();
        assert_eq!(node.host.qemu(&running), pid, "{what}");
        assert!(node.host.state(&running).starts_with("running"), "{what}");
        put_right(&mut node, undo);
        wait_until("the guard served again", SOON, || node.start(&starting).ok());
        node.host.virsh(&["destroy", "starting"]).expect_ok();
        assert_eq!(node.host.qemu(&running), pid, "{what}");
    }
}
