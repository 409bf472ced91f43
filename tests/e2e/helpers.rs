//! What libvirt starts beside a QEMU writes too: it is killed with the domain and proven gone before any receipt.

use crate::harness::{Domain, Node, Site, Storage, World, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// QEMU's own, in Debian's qemu-system-common.
const VIRTIOFSD: &str = "/usr/lib/qemu/virtiofsd";

/// A domain with a TPM and a shared directory, each served by a process of its own.
fn with_helpers(name: &str, share: &Path) -> Domain {
    let devices = format!(
        "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>\
         <filesystem type='mount'><driver type='virtiofs'/><binary path='{VIRTIOFSD}'/><source dir='{}'/>\
         <target dir='share'/></filesystem>",
        share.display()
    );
    // virtiofsd reads the guest's memory.
    let elements = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>".to_owned();
    Domain { elements, devices, ..Domain::new(name) }
}

/// The living processes of this name on the node, by their pids out here.
fn helpers(node: &Node, name: &str) -> Vec<i32> {
    let host = format!("/host-{}/", node.host.name());
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_alive(*pid))
        .filter(|pid| text(*pid, "comm").trim() == name && text(*pid, "cgroup").contains(&host))
        .collect()
}

fn text(pid: i32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// A zombie that nobody reaps is dead.
fn is_alive(pid: i32) -> bool {
    !text(pid, "cmdline").is_empty()
}

/// SIGSTOP: they do not end by themselves when QEMU's end of their socket closes. libvirtd hangs and kills nobody.
fn helpers_that_outlive_qemu_are_gone_before_the_receipt(cgroups: &str) {
    if cgroups != "v2" && !text(1, "mountinfo").contains(" - cgroup cgroup ") {
        return crate::harness::tell(&format!(
            "skipped: this machine has no cgroup v1 hierarchies to make {cgroups} of"
        ));
    }
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node_on("n1", "", cgroups);
    let share = world.dir().join("share");
    std::fs::create_dir(&share).unwrap();
    let domain = with_helpers("web-1", &share);
    node.run_leased(&site, "n1", &domain);
    let (swtpm, virtiofsd) = (helpers(&node, "swtpm"), helpers(&node, "virtiofsd"));
    assert!(!swtpm.is_empty() && !virtiofsd.is_empty(), "swtpm {swtpm:?}, virtiofsd {virtiofsd:?}");
    let all = [swtpm, virtiofsd].concat();
    // Without a cpu or a cpuset controller libvirt leaves them in its own cgroup (qemuSetupCgroupForExtDevices), and on
    // a machine whose controllers are in v1 a v2 tree has none: then they are put where they would be.
    let qemu = node.host.qemu(&domain).expect("it runs");
    for pid in all.iter().filter(|pid| cgroups == "v2" && !text(**pid, "cgroup").contains(".libvirt-qemu")) {
        std::fs::write(own_cgroup(qemu).join("cgroup.procs"), pid.to_string()).unwrap();
    }
    node.host.hang_libvirtd();
    for pid in &all {
        kill(Pid::from_raw(*pid), Signal::SIGSTOP).unwrap();
    }
    site.lease(&["revoke", &domain.uuid]).expect_ok();
    site.lease(&["wait", &domain.uuid, "--timeout", "30"]).expect_ok();
    let left: Vec<_> = all.into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(left.is_empty(), "a receipt while {left:?} lived");
    assert_eq!(node.host.qemu(&domain), None);
    assert_eq!(site.show(&domain)["last_proof"]["proof"], "receipt");
    node.host.wake_libvirtd();
}

#[test]
fn helpers_that_outlive_qemu_are_gone_before_the_receipt_on_cgroup_v2() {
    helpers_that_outlive_qemu_are_gone_before_the_receipt("v2");
}

#[test]
fn helpers_that_outlive_qemu_are_gone_before_the_receipt_on_cgroup_v1() {
    helpers_that_outlive_qemu_are_gone_before_the_receipt("v1");
}

#[test]
fn helpers_that_outlive_qemu_are_gone_before_the_receipt_on_hybrid_cgroups() {
    helpers_that_outlive_qemu_are_gone_before_the_receipt("hybrid");
}

/// The directory of the domain's own cgroup, out here.
fn own_cgroup(qemu: i32) -> PathBuf {
    let all = text(qemu, "cgroup");
    let path = all.lines().find_map(|line| line.strip_prefix("0::/")).expect("there is a v2 hierarchy");
    let own = &path[..path.find(".libvirt-qemu").expect("libvirt made it") + ".libvirt-qemu".len()];
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.exists() { unified.join(own) } else { Path::new("/sys/fs/cgroup").join(own) }
}

#[test]
fn a_backend_in_state_d_keeps_its_dead_domain_from_being_called_gone_and_status_names_it() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let storage = Storage::mount(&node.host, &world.dir().join("store.img"));
    let disk = storage.disk("backend.raw");
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    let blockdev = format!("driver=file,node-name=disk,cache.direct=on,aio=threads,filename={}", disk.display());
    let backend = node.host.start(
        "backend",
        "qemu-storage-daemon",
        &[
            "--blockdev",
            &blockdev,
            "--nbd-server",
            "addr.type=unix,addr.path=/run/backend.sock",
            "--export",
            "type=nbd,id=disk,node-name=disk,writable=on",
        ],
    );
    wait_until("the backend listened", SOON, || node.host.run("test", &["-S", "/run/backend.sock"]).ok());
    let pid = backend.pid();
    std::fs::write(own_cgroup(node.host.qemu(&domain).expect("it runs")).join("cgroup.procs"), pid.to_string())
        .unwrap();
    let frozen = storage.freeze();
    let write = ["-f", "raw", "-c", "write -P 0xaa 0 64k", "nbd+unix:///disk?socket=/run/backend.sock"];
    let _writer = node.host.start("writer", "qemu-io", &write);
    let states = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default()).collect::<String>()
    };
    wait_until("the backend was in state D", SOON, || states().contains(") D "));

    site.lease(&["revoke", &domain.uuid]).expect_ok();
    node.host.wait_until_gone(&domain, SOON);
    let reason = || node.status(&domain).unwrap_or_default()["not_gone"][0].clone();
    wait_until("status named the backend", SOON, || {
        reason()["why"].as_str().is_some_and(|why| why.starts_with("left in its cgroup: pid "))
    });
    let told = reason();
    assert_eq!(told["stuck"][0]["files"][0]["path"], "/run/store/backend.raw", "{told}");
    assert!(!site.lease(&["wait", &domain.uuid, "--timeout", "2"]).ok(), "a receipt for a backend that writes");
    assert_eq!(site.show(&domain)["state"], "revoking");
    frozen.thaw();
    site.lease(&["wait", &domain.uuid]).expect_ok();
    assert!(states().chars().filter(|c| *c == 'D').count() == 0);
}
