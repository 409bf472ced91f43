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
        let token = Box::leak(self.dir.join("controller-token").display().to_string().into_boxed_str());
        ["--endpoint", "http://127.0.0.1:7470", "--token-file", token]
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

    /// SIGKILL for the guard.
    pub fn kill_guard(&mut self) {
        self.guard.take().expect("the guard runs").kill();
    }

    /// Starts the guard anew.
    pub fn start_guard(&mut self) {
        self.guard = Some(self.host.guard());
    }

    /// What `leasehold status --json` says of a domain.
    pub fn status(&self, domain: &Domain) -> Option<serde_json::Value> {
        let asked = self.host.leasehold(&["status", "--json"]);
        // A guard that was just started may not listen yet.
        if !asked.ok() {
            return None;
        }
        let text = asked.expect_ok();
        let status: serde_json::Value = serde_json::from_str(&text).expect("--json prints JSON");
        let domains = status["domains"].as_array().expect("a list of domains").clone();
        domains.into_iter().find(|known| known["domain"] == domain.uuid.as_str())
    }

    /// When the right of the domain's process to live runs out, by the guard's ledger. Ask when nothing renews it.
    pub fn expires(&self, domain: &Domain) -> BootTime {
        let path = format!("/proc/{}/root/run/leasehold/ledger.json", self.host.init());
        let mut expires = None;
        wait_until("the ledger knew its process", SOON, || {
            let ledger =
                std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
            expires = ledger.and_then(|ledger| ledger["domains"][&domain.uuid]["copies"][0]["expires"].as_u64());
            expires.is_some()
        });
        BootTime::from_nanos(expires.expect("waited for"))
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

fn secret(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).expect("the directory is writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
}
