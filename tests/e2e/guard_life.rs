//! The guard's own life: killed, restarted, without memory, with a wrong one, under load.

use crate::harness::{Domain, Node, Site, World, leasehold, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_domain_that_ends_while_no_guard_runs_is_proven_gone_by_the_next_one() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let disk = world.dir().join("disk.raw");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let domain = Domain { cache: "writeback", ..Domain::new("web-1").with_disk(&disk) };
    node.run_leased(&site, "n1", &domain);
    let notes = node.host.run_dir().join("copies.json");
    wait_until("its disk was noted", SOON, || {
        std::fs::read_to_string(&notes).is_ok_and(|text| text.contains("disk.raw"))
    });
    let pid = node.host.qemu(&domain).expect("it runs");
    node.kill_guard();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    node.host.wait_until_gone(&domain, SOON);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    assert!(!site.lease(&["wait", &domain.uuid, "--timeout", "1"]).ok(), "nobody has proven it");
    node.start_guard();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
}

#[test]
fn a_second_guard_is_refused_and_names_the_first() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let said = node.host.leasehold(&["guard"]).expect_failure();
    assert!(said.contains("guard.lock") && said.contains("pid"), "{said}");
}

#[test]
fn a_guard_killed_ten_times_under_load_loses_no_domain_and_misses_no_revocation() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let kept = ["kept-1", "kept-2", "kept-3"].map(Domain::new);
    kept.iter().for_each(|domain| node.run_leased(&site, "n1", domain));
    let pids = || kept.iter().map(|domain| node.host.qemu(domain)).collect::<Vec<_>>();
    let before = pids();
    // Two controllers that grant, start and revoke all the time, whatever becomes of the guard.
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let Node { guard, host, .. } = &mut node;
    let host = &*host;
    let busy = |name: &str| {
        while !over.load(Ordering::Relaxed) {
            let domain = Domain::new(name);
            host.define(&domain);
            site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
            wait_until("a start was let through", SOON, || {
                let started = host.virsh(&["start", name]);
                // Refused while the guard is away: with its own words, or not at all.
                assert!(started.ok() || started.err.contains("leasehold: "), "{}", started.err);
                started.ok()
            });
            site.lease(&["revoke", &domain.uuid]).expect_ok();
            site.lease(&["wait", &domain.uuid, "--timeout", "30"]).expect_ok();
            assert_eq!(host.qemu(&domain), None, "said to be gone");
            wait_until("libvirt had cleaned up", SOON, || host.state(&domain).starts_with("shut off"));
            host.virsh(&["undefine", name]).expect_ok();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let controllers = ["busy-1", "busy-2"].map(|name| scope.spawn(move || busy(name)));
        for turn in 0..10 {
            guard.take().expect("it runs").kill();
            *guard = Some(host.guard());
            // Not all at the same point of a controller's round.
            let (done, at) = (rounds.load(Ordering::Relaxed), std::time::Instant::now());
            let enough = Duration::from_millis(40 * turn);
            wait_until("something had happened", SOON, || {
                at.elapsed() >= enough || rounds.load(Ordering::Relaxed) > done
            });
        }
        over.store(true, Ordering::Relaxed);
        controllers.into_iter().for_each(|thread| thread.join().expect("a controller's round went well"));
    });
    assert!(rounds.load(Ordering::Relaxed) > 0);
    let pids: Vec<_> = kept.iter().map(|domain| node.host.qemu(domain)).collect();
    assert_eq!(pids, before);
    kept.iter().for_each(|domain| node.wait_until_held(domain));
    assert_eq!(node.admitted(), Some(vec![]));
}

#[test]
fn a_ledger_that_is_lost_cut_garbled_foreign_or_of_another_version_costs_no_domain_and_no_revocation() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    node.wait_until_held(&domain);
    let pid = node.host.qemu(&domain);
    let ledger = "/run/leasehold/ledger.json";
    let damages = [
        ("rm", format!("rm {ledger}"), "No such file"),
        ("empty", format!(": >{ledger}"), "does not parse"),
        ("cut", format!("truncate -s 200 {ledger}"), "does not parse"),
        ("garbage", format!("head -c 4096 /dev/urandom >{ledger}"), "does not parse"),
        ("other boot", format!("sed -i 's/\"boot\":\"......../\"boot\":\"00000000/' {ledger}"), "is of another boot"),
        ("future", format!("sed -i 's/\"version\":1/\"version\":99/' {ledger}"), "it has format 99"),
        ("other shape", format!("sed -i 's/\"copies\":/\"copied\":/' {ledger}"), "does not parse"),
        ("too large", format!("truncate -s 65M {ledger}"), "larger than"),
    ];
    for (what, damage, why) in damages {
        let revoked = Domain::new(&format!("revoked {what}"));
        node.run_leased(&site, "n1", &revoked);
        node.kill_guard();
        site.lease(&["revoke", &revoked.uuid]).expect_ok();
        node.host.run("sh", &["-c", &damage]).expect_ok();
        let told = node_log_lines(&node);
        node.start_guard();
        let guard = node.guard.as_mut().unwrap();
        guard.wait_for_log("the lost ledger is made good", SOON);
        let said: Vec<String> = guard.log().lines().skip(told).map(str::to_owned).collect();
        assert!(said.iter().any(|line| line.contains("is lost: ") && line.contains(why)), "{what}: {said:?}");
        site.lease(&["wait", &revoked.uuid, "--timeout", "15"]).expect_ok();
        assert_eq!(node.host.qemu(&revoked), None, "{what}");
        node.wait_until_held(&domain);
        assert_eq!(node.host.qemu(&domain), pid, "{what}");
        // And it admits again.
        let next = Domain::new(&format!("next {what}"));
        node.run_leased(&site, "n1", &next);
        node.host.virsh(&["destroy", &next.name]).expect_ok();
    }
}

fn node_log_lines(node: &Node) -> usize {
    let log = node.host.home().ancestors().nth(2).expect("the world").join("logs");
    let log = log.join(format!("{}-guard.log", node.host.name()));
    std::fs::read_to_string(log).unwrap_or_default().lines().count()
}

#[test]
fn a_guard_restarted_where_no_room_is_left_still_kills_and_refuses_with_the_reason() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node_without_guard("n1", "");
    let mount = "mkdir -p /run/leasehold && mount -t tmpfs -o size=256k leasehold /run/leasehold";
    node.host.run("sh", &["-c", mount]).expect_ok();
    node.start_guard();
    let (revoked, kept, new) = (Domain::new("revoked"), Domain::new("kept"), Domain::new("new"));
    node.run_leased(&site, "n1", &revoked);
    node.run_leased(&site, "n1", &kept);
    node.wait_until_held(&kept);
    let pid = node.host.qemu(&kept);
    node.host.define(&new);
    node.kill_guard();
    node.host.run("dd", &["if=/dev/zero", "of=/run/leasehold/filler", "bs=4k", "status=none"]).expect_failure();
    site.lease(&["revoke", &revoked.uuid]).expect_ok();
    site.lease(&["grant", &new.uuid, "n1"]).expect_ok();
    node.start_guard();
    node.host.wait_until_gone(&revoked, SOON);
    let said = node.start(&new).expect_failure();
    assert!(said.contains(&format!("domain new ({}) is not started", new.uuid)), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    // A restarted libvirtd asks about what runs, and a no would kill it.
    node.host.restart_libvirtd();
    assert_eq!(node.host.qemu(&kept), pid);
    // rule 7: its denial is not in the ledger, so no receipt has left.
    assert_eq!(site.show(&revoked)["state"], "revoking");
    node.wait_until_held(&kept);
    node.host.run("rm", &["/run/leasehold/filler"]).expect_ok();
    wait_until("starts were let through again", SOON, || node.start(&new).ok());
    site.lease(&["wait", &revoked.uuid, "--timeout", "15"]).expect_ok();
    assert_eq!(node.host.qemu(&kept), pid);
}

/// The pid inside the host of a process, by its pid out here.
fn inside(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("NSpid:")).expect("Linux has pid namespaces");
    line.split_whitespace().last().and_then(|pid| pid.parse().ok()).expect("a pid")
}

#[test]
fn a_pid_that_belongs_to_another_process_by_now_is_never_killed_and_never_counted() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node("n1", "");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    node.wait_until_held(&domain);
    let qemu = node.host.qemu(&domain).expect("it runs");
    let pid = inside(qemu);
    let noted = std::fs::read_to_string(node.host.run_dir().join("copies.json")).unwrap_or_default();
    assert!(noted.contains(&format!("\"pid\":{pid}")), "{noted}");
    node.kill_guard();
    // libvirtd's files stay, too: it is dead when the domain dies.
    node.host.end_libvirtd(Signal::SIGKILL);
    kill(Pid::from_raw(qemu), Signal::SIGKILL).unwrap();
    node.host.wait_until_gone(&domain, SOON);
    let sleeper = "while :; do echo $(($1 - 1)) >/proc/sys/kernel/ns_last_pid; sleep 1000 & \
                   [ $! = $1 ] && break; kill $!; done; echo taken; wait";
    let script = node.host.home().join("reuse.sh");
    std::fs::write(&script, sleeper).unwrap();
    let mut reuser = node.host.start("reuse", "sh", &[&script.display().to_string(), &pid.to_string()]);
    reuser.wait_for_log("taken", SOON);
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    node.start_guard();
    site.lease(&["wait", &domain.uuid, "--timeout", "15"]).expect_ok();
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
    let known = node.view().expect("a guard answers");
    let counted = known["domains"].as_array().unwrap().iter().any(|entry| entry["pids"] == serde_json::json!([pid]));
    assert!(!counted, "{known}");
    let alive = node.host.run("cat", &[&format!("/proc/{pid}/comm")]).expect_ok();
    assert_eq!((alive.trim(), reuser.has_ended()), ("sleep", false));
}

/// Many hooks at once, as children of something that is called libvirtd: started together, each answer with its time.
/// Stays until its input ends, as a daemon that holds its admissions does.
const STORM: &str = "import json, os, subprocess, sys, threading, time
program, folder = sys.argv[1:]
def call(names, op, subop):
    answers = {}
    def one(name):
        with open(folder + '/' + name) as xml:
            start = time.monotonic()
            done = subprocess.run([program, 'hook', name, op, subop, '-'], stdin=xml, capture_output=True, text=True)
        answers[name] = [done.returncode, time.monotonic() - start, done.stderr]
    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return answers
while True:
    try:
        with open(folder + '/order') as order:
            text = json.load(order)
    except (FileNotFoundError, ValueError):
        time.sleep(0.01)
        continue
    os.remove(folder + '/order')
    answers = call(text['names'], text['op'], text['subop'])
    with open(folder + '/answers.new', 'w') as file:
        json.dump(answers, file)
    os.rename(folder + '/answers.new', folder + '/answers')
";

/// A stand-in for a libvirt daemon that runs hooks, real ones with real XML, and no QEMU.
struct Storm {
    folder: std::path::PathBuf,
    _process: crate::harness::Process,
}

type Answers = std::collections::BTreeMap<String, (i32, f64, String)>;

impl Storm {
    fn start(world: &World, node: &Node, name: &str, domains: &[Domain]) -> Storm {
        let folder = world.dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        for domain in domains {
            std::fs::write(folder.join(&domain.name), domain.xml()).unwrap();
        }
        // The hook tells a daemon by its name.
        let python = node.host.run("python3", &["-c", "import sys; print(sys.executable)"]).expect_ok();
        let daemon = folder.join("libvirtd");
        std::os::unix::fs::symlink(python.trim(), &daemon).unwrap();
        std::fs::write(folder.join("storm.py"), STORM).unwrap();
        let arguments = [folder.join("storm.py"), leasehold(), folder.clone()].map(|path| path.display().to_string());
        let process = node.host.start(name, &daemon, &arguments);
        Storm { folder, _process: process }
    }

    fn order<'n>(&self, names: impl Iterator<Item = &'n str>, op: &str, subop: &str) {
        let names: Vec<&str> = names.collect();
        let order = serde_json::json!({ "names": names, "op": op, "subop": subop }).to_string();
        std::fs::write(self.folder.join("order.new"), order).unwrap();
        std::fs::rename(self.folder.join("order.new"), self.folder.join("order")).unwrap();
    }

    fn answers(&self) -> Answers {
        let path = self.folder.join("answers");
        wait_until("all hooks had ended", Duration::from_secs(60), || path.exists());
        let answers = serde_json::from_slice(&std::fs::read(&path).unwrap()).expect("written whole");
        std::fs::remove_file(path).unwrap();
        answers
    }
}

#[test]
fn two_hundred_starts_at_once_against_a_slow_authority_each_get_one_yes_or_a_refusal_in_time() {
    const DEADLINE: f64 = 3.0;
    /// For two hundred processes to start and end on a loaded machine.
    const SLACK: f64 = 2.0;
    const REAL: usize = 6;
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node_without_guard("n1", "");
    let _forwarder = node.delay_answers(&world, "n1", "0.6", "");
    node.start_guard();
    let running = Domain::new("running");
    node.run_leased(&site, "n1", &running);
    let pid = node.host.qemu(&running);
    let domains: Vec<Domain> = (0..200).map(|number| Domain::new(&format!("storm-{number}"))).collect();
    let (granted, denied) = domains.split_at(150);
    let (real, granted) = granted.split_at(REAL);
    for domain in real.iter().chain(granted) {
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
    }
    real.iter().for_each(|domain| node.host.define(domain));
    let (one, two) = (Storm::start(&world, &node, "one", &domains), Storm::start(&world, &node, "two", &domains));

    // Real ones through libvirt and all the others at the same time.
    one.order(granted.iter().chain(denied).map(|domain| domain.name.as_str()), "prepare", "begin");
    std::thread::scope(|scope| {
        for domain in real {
            scope.spawn(|| wait_until("a real one started", Duration::from_secs(60), || node.start(domain).ok()));
        }
    });
    let mut yes = std::collections::BTreeSet::new();
    let mut answers = one.answers();
    for round in 0..20 {
        for (name, (code, took, said)) in &answers {
            assert!(*took <= DEADLINE + SLACK, "{name} took {took} s");
            match code {
                0 => assert!(yes.insert(name.clone()), "{name} was let through twice"),
                _ => assert!(said.contains("leasehold: ") && said.contains(name.as_str()), "{name}: {said}"),
            }
        }
        let waiting: Vec<_> =
            granted.iter().map(|domain| domain.name.as_str()).filter(|name| !yes.contains(*name)).collect();
        if waiting.is_empty() {
            crate::harness::tell(&format!("{} starts let through after {} rounds", yes.len(), round + 1));
            break;
        }
        one.order(waiting.into_iter(), "prepare", "begin");
        answers = one.answers();
    }
    let expected: std::collections::BTreeSet<String> = granted.iter().map(|domain| domain.name.clone()).collect();
    assert_eq!(yes, expected, "every granted one and no other");

    // Another daemon cannot start what this one is starting, nor can its `release` end that.
    let contested = || granted.iter().take(20).map(|domain| domain.name.as_str());
    two.order(contested(), "prepare", "begin");
    let refused = two.answers();
    for (name, (code, took, said)) in &refused {
        assert!(*code == 1 && *took <= DEADLINE + SLACK && said.contains("is not started"), "{name}: {said}");
    }
    assert!(refused.values().any(|(.., said)| said.contains("an earlier start of it")), "{refused:?}");
    two.order(contested(), "release", "end");
    two.answers();
    one.order(granted.iter().map(|domain| domain.name.as_str()), "start", "begin");
    let started = one.answers();
    // Those that were late on a loaded machine are refused; what they leave ends with the others.
    let passed = started.values().filter(|(code, ..)| *code == 0).count();
    assert!(passed * 2 > granted.len(), "{started:?}");
    one.order(granted.iter().map(|domain| domain.name.as_str()), "release", "end");
    one.answers();
    wait_until("no admission was left", SOON, || node.admitted().is_some_and(|open| open.is_empty()));
    for domain in real.iter().chain([&running]) {
        node.wait_until_held(domain);
    }
    assert_eq!(node.host.qemu(&running), pid);
}
