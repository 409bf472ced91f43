//! Network storage: one disk served over NBD from a space of its own, behind a cable that can be cut.

use super::process::Process;
use super::{Direction, Domain, Host, Link, Space, World, wait_until};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const PORT: u16 = 10809;
/// Where the write that is caught by a cut goes, and how long it is.
const AT: u64 = 64 << 10;

/// A storage server and its one disk.
pub struct NetworkStorage {
    /// The host's cable to it.
    pub link: Link,
    // Dropped first: a space is empty only when the test has reaped what it started there.
    _server: Process,
    space: Space,
    disk: PathBuf,
}

impl NetworkStorage {
    /// An 8 MiB disk, reached from `host` by a cable of its own.
    pub fn new(world: &World, host: &Host) -> NetworkStorage {
        let disk = world.dir().join(format!("served-to-{}.raw", host.name()));
        std::fs::write(&disk, vec![0; 8 << 20]).expect("the world's directory is writable");
        let space = world.space(&format!("storage-of-{}", host.name()));
        let link = world.connect(host, &space);
        let (address, port, path) = (link.far.to_string(), PORT.to_string(), disk.display().to_string());
        let arguments =
            ["-f", "raw", "--persistent", "--shared", "8", "-b", &address, "-p", &port, "--cache", "none", &path];
        let server = space.start("qemu-nbd", "qemu-nbd", &arguments);
        wait_until("the storage served", SOON, || !space.run("ss", &["-Htln"]).expect_ok().is_empty());
        NetworkStorage { link, _server: server, space, disk }
    }

    /// The domain, with this disk.
    pub fn attached(&self, domain: Domain) -> Domain {
        let devices = format!(
            "<disk type='network'><driver name='qemu' type='raw' cache='none'/><source protocol='nbd' name=''>\
             <host name='{}' port='{PORT}'/></source><target dev='vda' bus='virtio'/><shareable/></disk>",
            self.link.far
        );
        Domain { devices, ..domain }
    }

    /// Cuts the cable at the storage and has the domain write: the request stays in the host's kernel.
    pub fn catch_a_write(&self, host: &Host, domain: &Domain) {
        // A request of the guest's in front of the write would be answered first, and the answer to a dead process resets
        // the connection.
        host.virsh(&["suspend", &domain.name]).expect_ok();
        host.qemu_io(domain, "write -P 0x11 0 4k");
        assert_eq!(self.byte(0), 0x11, "the domain writes through this cable");
        self.link.cut(&self.space, Direction::Both);
        host.qemu_io(domain, "aio_write -P 0xaa 64k 64k");
        wait_until("the write was queued", SOON, || self.queued(host) >= 64 << 10);
        assert!(!self.landed());
    }

    /// Mends the cable.
    pub fn heal(&self) {
        self.link.heal(&self.space);
    }

    /// Whether the caught write has reached the disk.
    pub fn landed(&self) -> bool {
        self.byte(AT) == 0xaa
    }

    /// Bytes that the host still has to send here, and have not been acknowledged.
    pub fn queued(&self, host: &Host) -> u64 {
        let queue = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
        self.sockets(host).lines().filter_map(queue).sum()
    }

    /// The host's TCP sockets that have anything to do with this storage, as ss(8) shows them.
    pub fn sockets(&self, host: &Host) -> String {
        let to = format!("{}:{PORT}", self.link.far);
        let all = host.run("ss", &["-Htan", "dst", &to]).expect_ok();
        // What is over is only remembered.
        all.lines().filter(|line| !line.starts_with("TIME-WAIT")).map(|line| format!("{line}\n")).collect()
    }

    /// Fails the test if the caught write can still land: heals the cable, and looks at everything between the dead
    /// and the disk. Nothing is left to send, nothing is on its way, nothing waits to be read by the server.
    #[track_caller]
    pub fn assert_silent(&self, host: &Host) {
        assert_eq!(self.sockets(host), "", "sockets of the dead are left");
        self.heal();
        let unread = |line: &str| line.split_whitespace().nth(1).is_some_and(|queue| queue != "0");
        wait_until("the server had read all it got", SOON, || {
            !self.space.run("ss", &["-Htn"]).expect_ok().lines().any(unread)
        });
        // Through the same server, behind whatever it was still at.
        let export = format!("nbd://{}:{PORT}", self.link.far);
        let read = self.space.run("qemu-io", &["-f", "raw", &export, "-c", "read -P 0 64k 64k", "-c", "flush"]);
        let said = read.expect_ok();
        assert!(!self.landed() && !said.contains("verification failed"), "the write of the dead landed: {said}");
    }

    fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        let file = std::fs::File::open(&self.disk).expect("the disk is there");
        file.read_exact_at(&mut byte, at).expect("the disk is larger");
        byte[0]
    }
}
