//! Measurements on real libvirt, printed and never asserted.
//!
//!     LEASEHOLD_BIN=target/tested/leasehold LEASEHOLD_AUTHORITY_BIN=target/tested/leasehold-authority \
//!         cargo bench --all-features --profile dev --bench main_job

#[path = "harness/mod.rs"]
mod harness;

use harness::{Domain, Node, Site, World, wait_until};
use leasehold::node::clock;
use leasehold::node::process::Process;
use std::io::Write;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(15);
const ROUNDS: usize = 10;

macro_rules! say {
    ($($text:tt)*) => { let _ = writeln!(std::io::stdout(), $($text)*); };
}

fn main() {
    // `cargo test --benches` only asks whether it can be run.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let Some(world) = World::new() else { return };
    let mut site = Site::new(&world);
    let node = site.node("n1", "");
    revocation(&site, &node);
    hook(&world, &site, &node);
    expiry(&mut site, &node);
}

/// From the revocation, durably written, to the receipt, against the exit that libvirt alone brings about.
fn revocation(site: &Site<'_>, node: &Node) {
    let (mut alone, mut revoked) = (vec![], vec![]);
    for round in 0..ROUNDS {
        let domain = Domain::new(&format!("r{round}"));
        node.run_leased(site, "n1", &domain);
        let begun = Instant::now();
        let destroy = node.host.start("destroy", "virsh", &["-q", "destroy", &domain.name]);
        while node.host.qemu(&domain).is_some() {}
        alone.push(begun.elapsed());
        drop(destroy);
        wait_until("it can be started again", SOON, || node.start(&domain).ok());
        site.lease(&["revoke", &domain.uuid]).expect_ok();
        wait_until("it was gone", SOON, || site.show(&domain)["state"] == "free");
        let after = site.show(&domain)["last_proof"]["after_ms"].as_u64().expect("a proof");
        revoked.push(Duration::from_millis(after));
        site.lease(&["forget", &domain.uuid]);
    }
    report("virsh destroy to no process (libvirt alone)", &mut alone);
    report("revocation to proven gone (receipt in)", &mut revoked);
}

/// From the end of the lease to the death by SIGKILL, libvirtd hung so that nothing else ends it.
fn expiry(site: &mut Site<'_>, node: &Node) {
    let domains: Vec<Domain> = (0..ROUNDS).map(|at| Domain::new(&format!("e{at}"))).collect();
    let mut alone = vec![];
    for round in 0..ROUNDS {
        let domain = Domain::new(&format!("k{round}"));
        node.run_leased(site, "n1", &domain);
        let process = process(node, &domain);
        let begun = Instant::now();
        process.kill().expect("it runs");
        while !process.has_exited() {}
        alone.push(begun.elapsed());
    }
    report("SIGKILL to no process (the kernel alone)", &mut alone);
    for domain in &domains {
        node.run_leased(site, "n1", domain);
    }
    node.host.hang_libvirtd();
    site.kill_authority();
    let ends: std::collections::BTreeMap<_, _> =
        domains.iter().map(|domain| (&domain.uuid, node.expires(domain))).collect();
    let mut late = vec![];
    let mut waiting: Vec<_> = domains.iter().map(|domain| (ends[&domain.uuid], process(node, domain))).collect();
    while !waiting.is_empty() {
        waiting.retain(|(end, process)| {
            let ended = process.has_exited();
            if ended {
                late.push(clock::now().since(*end));
            }
            !ended
        });
    }
    node.host.wake_libvirtd();
    report("end of the lease to the process dead by SIGKILL", &mut late);
}

/// The domain's QEMU, held by its pidfd: to ask whether it has ended costs nothing.
fn process(node: &Node, domain: &Domain) -> Process {
    Process::open(node.host.qemu(domain).expect("it runs")).expect("it runs")
}

/// What the hook adds to a start, against /bin/true executed the same way.
fn hook(world: &World, site: &Site<'_>, node: &Node) {
    let (stopped, running) = (Domain::new("stopped"), Domain::new("running"));
    node.host.define(&stopped);
    site.lease(&["grant", &stopped.uuid, "n1"]).expect_ok();
    node.run_leased(site, "n1", &running);
    wait_until("both leases were held", SOON, || {
        [&stopped, &running].iter().all(|domain| node.status(domain).is_some_and(|known| known["lease"] == "held"))
    });
    let program = harness::leasehold().display().to_string();
    for (what, domain, line) in [
        ("/bin/true", &stopped, "/bin/true".to_owned()),
        ("hook prepare, lease held", &stopped, format!("{program} hook stopped prepare begin -")),
        ("hook started, lease held", &running, format!("{program} hook running started begin -")),
    ] {
        let xml = world.dir().join("domain.xml");
        std::fs::write(&xml, node.host.virsh(&["dumpxml", &domain.name]).expect_ok()).expect("the world's directory");
        let times = node.host.run("python3", &["-c", SPAWN, &xml.display().to_string(), &line]).expect_ok();
        let mut times: Vec<Duration> =
            times.split_whitespace().filter_map(|nanos| nanos.parse().ok()).map(Duration::from_nanos).collect();
        report(what, &mut times);
    }
}

/// Executes a command 300 times with a file on its stdin, as libvirt does, and prints each one's nanoseconds.
const SPAWN: &str = "import os, sys, time
args = sys.argv[2].split()
null = os.open('/dev/null', os.O_RDWR)
for _ in range(300):
    xml = os.open(sys.argv[1], os.O_RDONLY)
    begun = time.perf_counter_ns()
    pid = os.posix_spawn(args[0], args, {}, file_actions=[(os.POSIX_SPAWN_DUP2, xml, 0), (os.POSIX_SPAWN_DUP2, null, 1)])
    status = os.waitpid(pid, 0)[1]
    print(time.perf_counter_ns() - begun)
    os.close(xml)
    assert status == 0, status
";

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let (least, median, p99, worst) = (at(0), at(50), at(99), at(100));
    say!(
        "{what:50}  least {least:>9.2?}  median {median:>9.2?}  p99 {p99:>9.2?}  worst {worst:>9.2?}  ({})",
        times.len()
    );
}
