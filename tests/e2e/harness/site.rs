//! A site: one authority in a space of its own, and nodes connected to it by cables that can be cut.

use super::process::{Finished, Process};
use super::{Domain, Host, Link, Space, World, wait_until};
use leasehold::lease::time::BootTime;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// An authority and the means to talk to it as a controller.
pub struct Site<'w> {
    world: &'w World,
    // Dropped first: a space is empty only when the test has reaped what it started there.
    authority: Option<Process>,
    space: Space,
    dir: PathBuf,
}

/// A libvirt host with our hook, our guard and a cable to the authority.
pub struct Node {
    pub guard: Option<Process>,
    pub link: Link,
    pub host: Host,
}

impl<'w> Site<'w> {
    /// With its authority running.
    pub fn new(world: &'w World) -> Site<'w> {
        let dir = world.dir().join("authority");
        std::fs::create_dir(&dir).expect("the world's directory is new");
        secret(&dir.join("node-tokens"), "n1 token-of-node-n1-for-tests\nn2 token-of-node-n2-for-tests\n");
        secret(&dir.join("controller-token"), "token-of-the-controller-for-tests\n");
        let mut site = Site { world, space: world.space("authority"), authority: None, dir };
        site.start_authority();
        site
    }

    /// Starts the authority, again on the same data.
    pub fn start_authority(&mut self) {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let program = std::env::var_os("LEASEHOLD_AUTHORITY_BIN")
            .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_leasehold-authority")), PathBuf::from);
        let arguments = [
            "--listen",
            "0.0.0.0:7470",
            "--insecure-plain-http",
            "--data",
            &path("data"),
            "--node-tokens",
            &path("node-tokens"),
            "--controller-token-file",
            &path("controller-token"),
        ];
        let authority = self.space.start("authority", program, &arguments);
        self.authority = Some(authority);
        wait_until("the authority answered", SOON, || self.lease(&["list"]).ok());
    }

    /// The authority's process.
    pub fn authority(&self) -> &Process {
        self.authority.as_ref().expect("the authority runs")
    }

    /// SIGKILL.
    pub fn kill_authority(&mut self) {
        self.authority.take().expect("the authority runs").kill();
    }

    /// As a controller: `leasehold ARGS`.
    pub fn control(&self, args: &[&str]) -> Finished {
        self.space.run(super::world::leasehold(), &[args, &self.controller()].concat())
    }

    /// As a controller, in the background.
    pub fn control_meanwhile(&self, name: &str, args: &[&str]) -> Process {
        self.space.start(name, super::world::leasehold(), &[args, &self.controller()].concat())
    }

    fn controller(&self) -> [&'static str; 4] {
        // A leak of a few bytes a test, so that callers can pass plain slices.
        let token = Box::leak(self.controller_token().into_boxed_str());
        ["--endpoint", "http://127.0.0.1:7470", "--token-file", token]
    }

    /// The file with the controller's token, which every host of this world sees.
    pub fn controller_token(&self) -> String {
        self.dir.join("controller-token").display().to_string()
    }

    /// `leasehold lease ARGS`.
    pub fn lease(&self, args: &[&str]) -> Finished {
        self.control(&[&["lease"], args].concat())
    }

    /// The lease as the authority sees it.
    pub fn show(&self, domain: &Domain) -> serde_json::Value {
        let text = self.lease(&["show", &domain.uuid, "--json"]).expect_ok();
        serde_json::from_str(&text).expect("--json prints JSON")
    }

    /// Whether the authority has every revoked copy of the domain proven gone before so many seconds are over.
    #[track_caller]
    pub fn gone_within(&self, domain: &Domain, seconds: u32) -> bool {
        let waited = self.lease(&["wait", &domain.uuid, "--timeout", &seconds.to_string()]);
        match waited.status.code() {
            Some(0) => true,
            Some(3) => false,
            _ => panic!("no wait: {waited:?}"),
        }
    }

    /// A connected node whose guard runs. `more` is appended to its configuration.
    pub fn node(&self, name: &str, more: &str) -> Node {
        let mut node = self.node_without_guard(name, more);
        node.guard = Some(node.host.guard());
        node
    }

    /// The same on a host with these cgroup hierarchies: "v2", "v1", "hybrid".
    pub fn node_on(&self, name: &str, more: &str, cgroups: &str) -> Node {
        let host = Host::start_with(self.world, name, Some(&super::world::leasehold()), cgroups);
        let mut node = self.connect(host, name, more);
        node.guard = Some(node.host.guard());
        node
    }

    /// The same before its guard was ever started.
    pub fn node_without_guard(&self, name: &str, more: &str) -> Node {
        self.connect(self.world.host_with_hook(name, &super::world::leasehold()), name, more)
    }

    fn connect(&self, host: Host, name: &str, more: &str) -> Node {
        let link = self.world.connect(&host, &self.space);
        let node = Node { guard: None, link, host };
        node.host.write_config("token", &format!("token-of-node-{name}-for-tests\n"));
        secret(&node.host.home().join("leasehold/token"), &format!("token-of-node-{name}-for-tests\n"));
        node.configure(name, &node.link.far.to_string(), 7470, more);
        node
    }

    /// A second host with the id, the token and the state directory of a node, as a cloned image makes it; its guard
    /// does not run yet. It is in the same boot, like every host of this machine, until [`Node::boot_anew`].
    pub fn twin(&self, of: &Node, id: &str) -> Node {
        let twin = self.node_without_guard("twin", "");
        for (from, to) in [("leasehold/token", "leasehold/token"), ("state", "state")] {
            let (from, to) = (of.host.home().join(from), twin.host.home().join(to));
            let copied = std::process::Command::new("cp").args(["-aT"]).arg(from).arg(to).status();
            assert!(copied.expect("cp can be run").success(), "the image is not cloned");
        }
        twin.configure(id, &twin.link.far.to_string(), 7470, "");
        twin
    }

    /// The authority's space.
    pub fn space(&self) -> &Space {
        &self.space
    }
}

impl Node {
    /// Writes the node's configuration.
    pub fn configure(&self, name: &str, address: &str, port: u16, more: &str) {
        let text = format!(
            "node = \"{name}\"\nprofile = \"fast\"\n{more}\n[contact]\nkind = \"native\"\n\
             endpoints = [\"http://{address}:{port}\"]\nallow_plain_http = true\n\
             token_file = \"/etc/leasehold/token\"\n"
        );
        self.host.write_config("leasehold.toml", &text);
    }

    /// Gives the host a boot id of its own, as if it had been booted by itself. Before its guard starts.
    pub fn boot_anew(&self) {
        let file = self.host.home().join("boot_id");
        std::fs::copy("/proc/sys/kernel/random/uuid", &file).expect("Linux has random uuids");
        let mount = ["--bind", &file.display().to_string(), "/proc/sys/kernel/random/boot_id"];
        self.host.run("mount", &mount).expect_ok();
    }

    /// From now on the authority's answers come late by `seconds`, less than an interval. Configure before the guard
    /// starts. What it prints: `asked` and `answered`, question by question.
    pub fn delay_answers(&self, world: &World, name: &str, seconds: &str, more: &str) -> Process {
        let script = world.dir().join("delay.py");
        std::fs::write(&script, DELAYING_FORWARDER).expect("the directory is writable");
        let (script, far) = (script.display().to_string(), self.link.far.to_string());
        let forwarder = self.host.start("forwarder", "python3", &["-u", &script, &far, seconds]);
        self.configure(name, "127.0.0.1", 7471, more);
        let reachable = || self.host.run("bash", &["-c", ": <>/dev/tcp/127.0.0.1/7471"]).ok();
        wait_until("the forwarder listened", SOON, reachable);
        forwarder
    }

    /// SIGKILL for the guard.
    pub fn kill_guard(&mut self) {
        self.guard.take().expect("the guard runs").kill();
    }

    /// Starts the guard anew.
    pub fn start_guard(&mut self) {
        self.guard = Some(self.host.guard());
    }

    /// What `leasehold status --json` says; `None` while no guard listens.
    pub fn view(&self) -> Option<serde_json::Value> {
        let asked = self.host.leasehold(&["status", "--json"]);
        asked.ok().then(|| serde_json::from_str(&asked.out).expect("--json prints JSON"))
    }

    /// What it says of a domain.
    pub fn status(&self, domain: &Domain) -> Option<serde_json::Value> {
        let domains = self.view()?["domains"].as_array().expect("a list of domains").clone();
        domains.into_iter().find(|known| known["domain"] == domain.uuid.as_str())
    }

    /// The faults it tells.
    pub fn faults(&self) -> Option<Vec<String>> {
        let status = self.view()?;
        serde_json::from_value(status["faults"].clone()).ok()
    }

    /// Waits until the guard knows the domain as running under a lease that is held.
    #[track_caller]
    pub fn wait_until_held(&self, domain: &Domain) {
        wait_until(&format!("{} ran under its lease", domain.name), SOON, || {
            self.status(domain).is_some_and(|known| known["state"] == "running" && known["lease"] == "held")
        });
    }

    /// The guard's ledger as it is on /run.
    pub fn ledger(&self) -> Option<serde_json::Value> {
        let bytes = std::fs::read(self.host.run_dir().join("ledger.json")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// The domains with a start that was let through and is not over, by the ledger.
    pub fn admitted(&self) -> Option<Vec<String>> {
        let ledger = self.ledger()?;
        let open = ledger["domains"].as_object()?.iter().filter(|(_, entry)| !entry["admission"].is_null());
        Some(open.map(|(uuid, _)| uuid.clone()).collect())
    }

    /// When the right of the domain's process to live runs out, by the guard's ledger. Ask when nothing renews it.
    pub fn expires(&self, domain: &Domain) -> BootTime {
        let mut expires = None;
        wait_until("the ledger knew its process", SOON, || {
            expires = self.ledger().and_then(|ledger| expiry(&ledger, domain));
            expires.is_some()
        });
        expires.expect("waited for")
    }

    /// `virsh start`.
    pub fn start(&self, domain: &Domain) -> Finished {
        self.host.virsh(&["start", "--", &domain.name])
    }

    /// Defines, and starts under a lease granted to this node.
    pub fn run_leased(&self, site: &Site<'_>, name: &str, domain: &Domain) {
        self.host.define(domain);
        site.lease(&["grant", &domain.uuid, name]).expect_ok();
        self.start(domain).expect_ok();
    }
}

/// When the right of the domain's process to live runs out, by a guard's ledger.
pub fn expiry(ledger: &serde_json::Value, domain: &Domain) -> Option<BootTime> {
    ledger["domains"][&domain.uuid]["copies"][0]["expires"].as_u64().map(BootTime::from_nanos)
}

fn secret(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).expect("the directory is writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// Forwards TCP from 127.0.0.1:7471 to ADDRESS:7470 and holds each answer back; prints a line when a question goes in
/// and one when its answer comes out.
const DELAYING_FORWARDER: &str = "import socket, sys, threading, time
address, delay = sys.argv[1], float(sys.argv[2])
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 7471))
server.listen(16)
def pump(source, sink, held):
    while True:
        data = source.recv(65536)
        if not data:
            break
        if held:
            if b'claims' in data:
                time.sleep(delay)
                print('answered')
        elif b'/renew' in data:
            print('asked')
        sink.sendall(data)
while True:
    near, _ = server.accept()
    far = socket.create_connection((address, 7470))
    threading.Thread(target=pump, args=(near, far, False), daemon=True).start()
    threading.Thread(target=pump, args=(far, near, True), daemon=True).start()
";
