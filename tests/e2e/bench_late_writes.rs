//! What still writes after a QEMU's process is dead, without leasehold: the measurements of docs/safety.md.
//!
//!     cargo bench --all-features --profile dev --bench late_writes

#[path = "harness/mod.rs"]
mod harness;

use harness::{Domain, FileServer, Host, NetworkStorage, World};
use leasehold::node::process::Process;
use std::io::Write;
use std::time::{Duration, Instant};

macro_rules! say {
    ($($text:tt)*) => { let _ = writeln!(std::io::stdout(), $($text)*); };
}

fn main() {
    // `cargo test --benches` only asks whether it can be run.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let Some(world) = World::new() else { return };
    page_cache(&world.host("cache"), &world);
    for io in ["io_uring", "native", "threads"] {
        for block in [true, false] {
            under_way(&world, io, block);
        }
    }
    destroyed(&world);
    for silence in [3, 20, 40] {
        orphan(&world, silence);
    }
}

/// How long until something is so, or `None` after `limit`.
fn until(limit: Duration, mut done: impl FnMut() -> bool) -> Option<Duration> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(begun.elapsed())
}

fn shown(time: Option<Duration>, limit: Duration) -> String {
    time.map_or(format!("not within {limit:.0?}"), |time| format!("after {time:.1?}"))
}

fn start(host: &Host, domain: &Domain) -> Process {
    host.define(domain);
    host.virsh(&["start", &domain.name]).expect_ok();
    Process::open(host.qemu(domain).expect("it runs")).expect("it runs")
}

fn block(device: &str, cache: &str, io: &str) -> String {
    format!(
        "<disk type='block'><driver name='qemu' type='raw' cache='{cache}'{io}/><source dev='{device}'/>\
         <target dev='vda' bus='virtio'/></disk>"
    )
}

/// Dirty pages of a block device that somebody else has open too.
fn page_cache(host: &Host, world: &World) {
    let limit = Duration::from_secs(60);
    let mut server = FileServer::new(world, host);
    let device = server.block_device();
    let domain = Domain { devices: block(&device, "writeback", ""), ..Domain::new("cached") };
    let qemu = start(host, &domain);
    let _other = host.start("other", "sh", &["-c", &format!("exec sleep 600 <{device}")]);
    host.qemu_io(&domain, "write -P 0xaa 64k 64k");
    qemu.kill().expect("it runs");
    let dead = until(limit, || qemu.has_exited());
    let landed = until(limit, || server.byte(64 << 10) == 0xaa);
    say!("page cache, block device with a second opener: dead {}, landed {}", shown(dead, limit), shown(landed, limit));
}

/// One O_DIRECT write under way to a storage that does not answer.
fn under_way(world: &World, io: &str, device: bool) {
    let limit = Duration::from_secs(5);
    let host = world.host(&format!("{}-{device}", io.replace('_', "-")));
    let mut server = FileServer::new(world, &host);
    let (kind, disk) = if device {
        ("block device", block(&server.block_device(), "none", &format!(" io='{io}'")))
    } else {
        let disk = block("", "none", &format!(" io='{io}'")).replace("'block'", "'file'");
        ("file on FUSE", disk.replace("dev=''", &format!("file='{}'", server.path().display())))
    };
    let domain = Domain { devices: disk, ..Domain::new("direct") };
    let qemu = start(&host, &domain);
    server.hang();
    // A file's write may be carried out within the submission, and QEMU then answers nobody.
    let line = "qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend \"aio_write -P 0xaa 64k 64k\"";
    let _asked = host.start("asked", "virsh", &["-q", "qemu-monitor-command", &domain.name, "--hmp", line]);
    std::thread::sleep(Duration::from_secs(1));
    qemu.kill().expect("it runs");
    let dead = until(limit, || qemu.has_exited());
    let before = server.byte(64 << 10) == 0xaa;
    server.go_on();
    let landed = until(limit, || server.byte(64 << 10) == 0xaa);
    say!(
        "{io}, {kind}, hung: dead {}; landed before it went on: {before}, then {}",
        shown(dead, limit),
        shown(landed, limit)
    );
    let _ = until(limit, || qemu.has_exited());
}

/// `virsh destroy` of a domain whose NBD storage does not answer.
fn destroyed(world: &World) {
    let limit = Duration::from_secs(60);
    let host = world.host("destroy");
    let storage = NetworkStorage::new(world, &host);
    let domain = storage.attached(Domain::new("destroyed"));
    let qemu = start(&host, &domain);
    storage.catch_a_write(&host, &domain);
    let destroy = host.start("destroy", "virsh", &["-q", "destroy", &domain.name]);
    let dead = until(limit, || qemu.has_exited());
    let left = storage.queued(&host);
    storage.heal();
    let landed = until(limit, || storage.landed());
    drop(destroy);
    say!(
        "virsh destroy, NBD cut: dead {}, {left} bytes left to send, landed {}",
        shown(dead, limit),
        shown(landed, limit)
    );
}

/// A queue that an orphaned socket goes on sending.
fn orphan(world: &World, silence: u64) {
    let limit = Duration::from_secs(60);
    let host = world.host(&format!("orphan-{silence}"));
    let storage = NetworkStorage::new(world, &host);
    let domain = storage.attached(Domain::new("orphan"));
    let qemu = start(&host, &domain);
    storage.catch_a_write(&host, &domain);
    qemu.kill().expect("it runs");
    let _ = until(limit, || qemu.has_exited());
    std::thread::sleep(Duration::from_secs(silence));
    storage.heal();
    let landed = until(limit, || storage.landed());
    say!("SIGKILL, NBD cut, healed {silence} s after death: landed {} of healing", shown(landed, limit));
}
