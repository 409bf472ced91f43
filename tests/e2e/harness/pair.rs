//! Two hosts of one site with a cable between them, for live migration.

use super::process::{Finished, Process};
use super::{Domain, Link, Node, Site, Watch, World, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// The port libvirtd listens on (remote_driver.h, LIBVIRTD_TCP_PORT).
const LIBVIRT: u16 = 16509;

/// libvirt does not believe that the world's directory is shared by its hosts, for both have it from one local disk.
const UNSAFE: &str = "--unsafe";

/// n1 and n2.
pub struct Pair {
    pub one: Node,
    pub two: Node,
    /// Near is n1.
    pub cable: Link,
}

impl Pair {
    pub fn new(world: &World, site: &Site<'_>) -> Pair {
        let (one, two) = (site.node("n1", ""), site.node("n2", ""));
        let cable = world.connect(&one.host, &two.host);
        Pair { one, two, cable }
    }

    /// Starts it on n1 under a lease. Watches it there, and whatever comes to n2.
    pub fn run(&self, site: &Site<'_>, domain: &Domain) -> (Watch, Watch) {
        self.one.run_leased(site, "n1", domain);
        let (source, destination) =
            (Watch::over(&self.one.host, &domain.name), Watch::over(&self.two.host, &domain.name));
        source.wait_connected(SOON);
        if domain.disk.is_some() {
            // The firmware before it leaves memory alone, and such a migration ends at once.
            wait_until("the guest worked", SOON, || {
                let peek = ["qemu-monitor-command", &domain.name, "--hmp", "xp /1xh 0x8fff0"];
                self.one.host.virsh(&peek).out.split("0x").nth(1).is_some_and(|word| word.trim() != "0000")
            });
        }
        (source, destination)
    }

    /// As a controller: n2 may receive it.
    pub fn open(&self, site: &Site<'_>, domain: &Domain) {
        site.lease(&["grant", &domain.uuid, "n1", "--incoming", "n2"]).expect_ok();
    }

    /// The libvirt of n2 as n1 reaches it.
    pub fn uri(&self) -> String {
        format!("qemu+tcp://{}/system", self.cable.far)
    }

    fn stream(&self) -> String {
        format!("tcp://{}", self.cable.far)
    }

    /// `virsh migrate --live` from n1 to n2, which gives a silent destination up after three seconds.
    pub fn virsh_migrate(&self, domain: &Domain, more: &[&str]) -> Finished {
        let (uri, stream) = (self.uri(), self.stream());
        self.one.host.run("virsh", &self.virsh_arguments(domain, more, &uri, &stream))
    }

    /// The same in the background.
    pub fn virsh_migrate_meanwhile(&self, domain: &Domain, more: &[&str]) -> Process {
        let (uri, stream) = (self.uri(), self.stream());
        self.one.host.start("virsh-migrate", "virsh", &self.virsh_arguments(domain, more, &uri, &stream))
    }

    fn virsh_arguments<'a>(&self, domain: &'a Domain, more: &[&'a str], uri: &'a str, stream: &'a str) -> Vec<&'a str> {
        let fixed = ["-q", "-k", "1", "-K", "3", "migrate", "--live", UNSAFE, "--migrateuri", stream];
        [&fixed[..], more, &["--domain", &domain.uuid, "--desturi", uri]].concat()
    }

    /// `leasehold migrate` on n1.
    pub fn migrate(&self, site: &Site<'_>, domain: &Domain, more: &[&str]) -> Finished {
        let arguments = self.arguments(site, domain, more);
        self.one.host.run(super::leasehold(), &arguments)
    }

    /// The same in the background.
    pub fn migrate_meanwhile(&self, site: &Site<'_>, domain: &Domain, more: &[&str]) -> Process {
        let arguments = self.arguments(site, domain, more);
        self.one.host.start("migrate", super::leasehold(), &arguments)
    }

    /// `leasehold migrate` in the background, held in the middle of its transfer until [`Pair::release`].
    pub fn migrate_midway(&self, site: &Site<'_>, domain: &Domain) -> Process {
        self.hold(domain);
        let migrating = self.migrate_meanwhile(site, domain, &[]);
        self.wait_midway(domain);
        migrating
    }

    fn arguments(&self, site: &Site<'_>, domain: &Domain, more: &[&str]) -> Vec<String> {
        let endpoint = format!("http://{}:7470", self.one.link.far);
        let token = site.controller_token();
        let mut all =
            vec!["migrate", &domain.uuid, "n2", "--endpoint", &endpoint, "--token-file", &token, "--timeout", "60"];
        let (uri, stream) = (self.uri(), self.stream());
        all.extend(more);
        all.extend(["--to", &uri, "--", UNSAFE, "--migrateuri", &stream]);
        all.into_iter().map(str::to_owned).collect()
    }

    /// Keeps migrations of this running domain from ever ending: at 1 MiB/s never less is left than a millisecond takes.
    pub fn hold(&self, domain: &Domain) {
        self.one.host.virsh(&["migrate-setspeed", &domain.name, "1"]).expect_ok();
        self.one.host.virsh(&["migrate-setmaxdowntime", &domain.name, "1"]).expect_ok();
    }

    /// Waits until a held migration transfers memory.
    #[track_caller]
    pub fn wait_midway(&self, domain: &Domain) {
        wait_until("memory was transferred", SOON, || {
            let job = self.one.host.virsh(&["domjobinfo", &domain.name]);
            let job = if job.ok() { job.out } else { String::new() };
            let moved = |line: &str| line.starts_with("Memory processed:") && !line.ends_with(" 0.000 B");
            job.contains("Outgoing migration") && job.lines().any(moved)
        });
    }

    /// Lets a held migration end.
    pub fn release(&self, domain: &Domain) {
        self.one.host.virsh(&["migrate-setspeed", &domain.name, "1000"]).expect_ok();
        // With the speed alone it may have ended already.
        let _ = self.one.host.virsh(&["migrate-setmaxdowntime", &domain.name, "2000"]);
    }

    /// Drops whatever n2's libvirtd answers from now on; what it is asked still reaches it.
    pub fn mute_libvirt_of_two(&self) {
        let drop = format!("type filter hook output priority 0; tcp sport {LIBVIRT} drop;");
        let rules = format!("table inet mute {{\nchain o {{ {drop} }}\n}}\n");
        self.two.host.run_with("nft", &["-f", "-"], &rules).expect_ok();
    }

    /// Ends that.
    pub fn unmute_libvirt_of_two(&self) {
        self.two.host.run("nft", &["delete", "table", "inet", "mute"]).expect_ok();
    }

    /// A `virsh migrate --live` whose last answer, of Finish, is lost: n2 has everything, and libvirt resumes n1's copy.
    pub fn lose_finish(&self, domain: &Domain, source: &Watch, destination: &Watch, more: &[&str]) {
        self.hold(domain);
        let mut migrating = self.virsh_migrate_meanwhile(domain, more);
        self.wait_midway(domain);
        self.mute_libvirt_of_two();
        self.release(domain);
        destination.wait_for("MIGRATION completed", SOON);
        assert!(!migrating.wait_for_end(SOON).success(), "{}", migrating.log());
        source.wait_for("RESUME", SOON);
        self.unmute_libvirt_of_two();
    }
}
