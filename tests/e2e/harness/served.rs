//! The journal on network storage: one NBD server in a space of its own, a cable to each host, and two ways to use it.

use super::journal::SIZE;
use super::process::Process;
use super::writers::BLOCK;
use super::{Direction, Domain, Host, Journal, Link, Space, World, wait_until};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const PORT: u16 = 10809;
/// Where a host sees the disk as a file.
const FILE: &str = "/run/journal.raw";

/// How a host comes to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// QEMU itself speaks to the storage: what it has sent is in the kernel's hands when it dies.
    ByQemu,
    /// The kernel waits for the storage, in behalf of a QEMU that no signal ends meanwhile (state D): a file system (FUSE)
    /// whose server speaks to the storage.
    ByKernel,
}

/// The storage and its cables, one for each host.
pub struct Served {
    pub way: Way,
    links: Vec<Link>,
    // Dropped first: a space is empty only when the test has reaped what it started there.
    mounts: Vec<Option<Process>>,
    _server: Process,
    space: Space,
}

impl Served {
    /// Serves the journal to these hosts.
    pub fn new(world: &World, journal: &Journal, hosts: &[&Host], way: Way) -> Served {
        let space = world.space("storage");
        let links = hosts.iter().map(|host| world.connect(host, &space)).collect();
        let (port, path) = (PORT.to_string(), journal.path().display().to_string());
        let arguments = ["-f", "raw", "--persistent", "--shared", "8", "-p", &port, "--cache", "none", &path];
        let server = space.start("qemu-nbd", "qemu-nbd", &arguments);
        wait_until("the storage served", SOON, || !space.run("ss", &["-Htln"]).expect_ok().is_empty());
        let mut served = Served { way, links, mounts: hosts.iter().map(|_| None).collect(), _server: server, space };
        (0..hosts.len()).for_each(|index| served.mount(index, hosts[index]));
        served
    }

    /// The domain as this host defines it.
    pub fn domain(&self, journal: &Journal, host: usize, name: &str) -> Domain {
        match self.way {
            Way::ByKernel => journal.domain_through(name, Path::new(FILE)),
            Way::ByQemu => {
                let source = format!(
                    "<disk type='network'><driver name='qemu' type='raw' cache='none'/><source protocol='nbd' name=''>\
                     <host name='{}' port='{PORT}'/></source>",
                    self.links[host].far
                );
                journal.domain_on(name, &source)
            }
        }
    }

    /// Makes the disk a file of the host, again after a reset.
    pub fn mount(&mut self, index: usize, host: &Host) {
        if self.way != Way::ByKernel {
            return;
        }
        self.mounts[index] = None;
        host.run("sh", &["-c", &format!("umount -l {FILE} 2>/dev/null; : >{FILE}")]).expect_ok();
        let disk = format!(
            "driver=nbd,node-name=disk,server.type=inet,server.host={},server.port={PORT}",
            self.links[index].far
        );
        let export = format!("type=fuse,id=x,node-name=disk,mountpoint={FILE},writable=on");
        let arguments = ["--blockdev", &disk, "--export", &export];
        self.mounts[index] = Some(host.start("file-server", "qemu-storage-daemon", &arguments));
        let size = || host.run("stat", &["-c", "%s", FILE]).out.trim() == SIZE.to_string();
        wait_until("the storage was mounted", SOON, size);
    }

    /// Nothing that this host sends reaches the storage any more, and a write of its guest's waits for that: where a look
    /// was caught instead, once more.
    pub fn cut(&self, index: usize, host: &Host) {
        for _ in 0..20 {
            self.links[index].cut(&self.space, Direction::Incoming);
            wait_until("the guest had asked for something", SOON, || queued(host) > 0);
            if queued(host) >= BLOCK {
                return;
            }
            self.heal(index);
            self.wait_until_quiet(host);
        }
        panic!("no write was caught on its way to the storage");
    }

    /// Undoes [`Served::cut`].
    pub fn heal(&self, index: usize) {
        self.links[index].heal(&self.space);
    }

    /// Waits until nothing is left in the host that could still reach the storage: a connection that was cut off for
    /// seconds takes as long to try again.
    pub fn wait_until_quiet(&self, host: &Host) {
        wait_until("all had been sent", Duration::from_secs(30), || queued(host) == 0);
    }
}

/// Bytes that the host still has to send to a storage, or that were not acknowledged.
fn queued(host: &Host) -> usize {
    let all = host.run("ss", &["-Htan", &format!("dport = :{PORT}")]).expect_ok();
    all.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<usize>().ok()).sum()
}
