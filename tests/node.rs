//! What `leasehold::node` does, shown on a real libvirtd with real QEMUs.
//!
//! Each test runs itself again inside a libvirt host of its own (tests/testbed/libvirt-node.sh), where a function under
//! `inside` does the work. Needs root and libvirt; says loudly when it cannot run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which cgroup hierarchies the host has.
#[derive(Clone, Copy)]
enum Cgroups {
    V2,
    Hybrid,
}

/// Past the test harness, which shows nothing of a test that passes: a skip must never be silent.
fn skipped(why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Why the test cannot run here.
fn hindrance(cgroups: Cgroups) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".into());
    }
    let searched = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    for program in ["libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "unshare", "setpriv"] {
        if !searched.iter().any(|directory| Path::new(directory).join(program).exists()) {
            return Some(format!("{program} is not installed"));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match cgroups {
        Cgroups::Hybrid if !mounts.contains(" - cgroup cgroup ") => {
            Some("this machine has no cgroup v1 hierarchies".into())
        }
        _ => None,
    }
}

/// Set inside a host: the directory that it shares with the test outside.
const WORK: &str = "LEASEHOLD_TEST_WORK";

/// Runs the calling test again in a host of its own, at most two minutes; there `inside` is what it does.
fn in_host(cgroups: Cgroups, hook: Option<&str>, inside: fn(PathBuf)) {
    if let Some(work) = std::env::var_os(WORK) {
        return inside(work.into());
    }
    let thread = std::thread::current();
    let name = thread.name().expect("a test's thread has the test's name");
    if let Some(why) = hindrance(cgroups) {
        return skipped(&format!("{name}: {why}"));
    }
    let kind = match cgroups {
        Cgroups::V2 => "v2",
        Cgroups::Hybrid => "hybrid",
    };
    let work = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testbed/libvirt-node.sh");
    static HOSTS: AtomicU32 = AtomicU32::new(1);
    let host = format!("t{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120"]).arg(script).arg(&host).arg(work.path()).arg("--");
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command.env("CGROUP", kind).env(WORK, work.path()).env_remove("HOOK");
    if let Some(hook) = hook {
        command.env("HOOK", write_hook(work.path(), hook));
    }
    let output = command.output().unwrap();
    remove_groups(&format!("host-{host}"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "in the {kind} host:\n{text}");
    for line in text.lines().filter(|line| line.starts_with("skipped: ")) {
        skipped(line.trim_start_matches("skipped: "));
    }
}

/// The host's cgroups are empty once its pid namespace is gone; nobody else removes them.
fn remove_groups(name: &str) {
    let roots = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for group in roots.chain(["/sys/fs/cgroup".into()]).map(|root| root.join(name)).filter(|group| group.exists()) {
        // What cannot be removed yet is empty, and the next run has another name.
        let _ = Command::new("find").arg(&group).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]).output();
    }
}

fn write_hook(work: &Path, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = work.join("hook");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn domains_of_any_name_are_found_whatever_happens_to_libvirt_and_its_files() {
    in_host(Cgroups::V2, None, inside::domains_of_any_name_are_found_whatever_happens_to_libvirt_and_its_files);
}

#[test]
fn a_killed_domain_and_its_helpers_are_proven_gone_on_cgroup_v2() {
    in_host(Cgroups::V2, None, inside::a_killed_domain_and_its_helpers_are_proven_gone);
}

#[test]
fn a_killed_domain_and_its_helpers_are_proven_gone_on_hybrid_cgroups() {
    in_host(Cgroups::Hybrid, None, inside::a_killed_domain_and_its_helpers_are_proven_gone);
}

#[test]
fn a_qemu_in_state_d_stays_found_and_is_not_gone_until_its_storage_answers() {
    in_host(Cgroups::V2, None, inside::a_qemu_in_state_d_stays_found_and_is_not_gone_until_its_storage_answers);
}

#[test]
fn what_a_killed_qemu_left_in_the_page_cache_is_on_the_storage_once_it_is_called_gone() {
    in_host(
        Cgroups::V2,
        None,
        inside::what_a_killed_qemu_left_in_the_page_cache_is_on_the_storage_once_it_is_called_gone,
    );
}

#[test]
fn libvirt_is_asked_with_a_deadline() {
    let hook = "#!/bin/sh\nexec >/dev/null 2>&1\n[ \"$2\" = start ] || exit 0\n\
        work=$(dirname \"$(readlink -f \"$0\")\")\n\
        touch \"$work/at-start\"; while [ ! -e \"$work/go\" ]; do sleep 0.05; done\n";
    in_host(Cgroups::V2, Some(hook), inside::libvirt_is_asked_with_a_deadline);
}

/// What runs inside a host.
mod inside {
    use super::skipped;
    use leasehold::lease::id::DomainId;
    use leasehold::node::clock;
    use leasehold::node::domains::{DomainProcess, Finder, RUN_DIR, RunState};
    use leasehold::node::gone::{NotGone, check_dead, prove_gone};
    use leasehold::node::kill::kill;
    use leasehold::node::libvirt::{Libvirt, PoliteError, daemon};
    use leasehold::node::process::Process;
    use leasehold::node::traces::Traces;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::signal::{Signal, kill as signal};
    use nix::unistd::Pid;
    use std::fs;
    use std::os::fd::AsFd;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Duration;

    fn id(number: u8) -> DomainId {
        format!("fc3be091-56d3-4c69-8adb-2fdb8b0a35{number:02x}").parse().unwrap()
    }

    fn virsh(arguments: &[&str]) -> String {
        let output = Command::new("virsh").arg("-q").args(arguments).output().unwrap();
        assert!(output.status.success(), "virsh {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn definition(work: &Path, number: u8, name: &str, devices: &str) -> String {
        let escaped = name.replace('&', "&amp;").replace('<', "&lt;");
        let xml = format!(
            "<domain type='qemu'><name>{escaped}</name><uuid>{}</uuid><memory unit='MiB'>32</memory>\
             <os><type arch='x86_64'>hvm</type></os><devices>{devices}</devices></domain>",
            id(number)
        );
        let path = work.join(format!("{number}.xml"));
        fs::write(&path, xml).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn create(work: &Path, number: u8, name: &str, devices: &str) {
        virsh(&["create", &definition(work, number, name, devices)]);
    }

    fn scan() -> Vec<DomainProcess> {
        Finder::new(RUN_DIR).scan().unwrap()
    }

    fn named(domains: &[DomainProcess]) -> Vec<(DomainId, String, i32)> {
        domains.iter().map(|domain| (domain.domain, domain.name.clone(), domain.process.pid())).collect()
    }

    fn exited_within(process: &Process, seconds: u16) -> bool {
        poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::from(seconds * 1000)) == Ok(1)
    }

    fn stop_libvirtd() {
        let daemon = daemon(Path::new(RUN_DIR)).expect("libvirtd runs");
        signal(Pid::from_raw(daemon.pid), Signal::SIGSTOP).unwrap();
    }

    /// Waits until a file is there, at most 20 s.
    fn wait_for(path: &Path) {
        let by = clock::now() + Duration::from_secs(20);
        while !path.exists() {
            assert!(clock::now() < by, "{} comes", path.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn domains_of_any_name_are_found_whatever_happens_to_libvirt_and_its_files(work: PathBuf) {
        let names = ["a&b 'q'", "a name with  spaces", "comma,separated,,name", "-", "guest=x,y", "tab\tand <b>"];
        for (number, name) in names.iter().enumerate() {
            create(&work, number as u8, name, "");
        }
        virsh(&["suspend", "a name with  spaces"]);
        let mut early = Finder::new(RUN_DIR);
        let found = early.scan().unwrap();
        let expected: Vec<_> =
            names.iter().enumerate().map(|(number, name)| (id(number as u8), name.to_string())).collect();
        assert_eq!(named(&found).into_iter().map(|(id, name, _)| (id, name)).collect::<Vec<_>>(), expected);
        for domain in &found {
            let paused = domain.name == "a name with  spaces";
            assert_eq!(domain.run_state, if paused { RunState::Paused } else { RunState::Running }, "{}", domain.name);
            assert!(!domain.cgroup.is_none() && !domain.cgroup.is_empty().unwrap());
        }

        stop_libvirtd();
        assert_eq!(named(&scan()), named(&found), "libvirtd hangs");
        for entry in fs::read_dir(RUN_DIR).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "pid" || kind == "xml") {
                fs::remove_file(path).unwrap();
            }
        }
        assert_eq!(named(&scan()), named(&found), "its files are gone");
        assert_eq!(named(&early.scan().unwrap()), named(&found), "and so for a finder that knew the files");
    }

    pub fn a_killed_domain_and_its_helpers_are_proven_gone(work: PathBuf) {
        create(&work, 1, "a&b 'q'", "");
        create(&work, 2, "bystander", "");
        let found = scan();
        let (domain, bystander) = (&found[0], &found[1]);
        let traces = Traces::of(&domain.process).unwrap();

        // As libvirt starts a virtiofsd: in the domain's cgroup and nobody's child.
        let helpers: Vec<_> = own_cgroups(domain.process.pid())
            .iter()
            .map(|directory| {
                let procs = directory.join("cgroup.procs");
                let script = format!("echo $$ >{}; echo $$; exec sleep 1000 >&- 2>&-", procs.display());
                let started = Command::new("sh").args(["-c", &format!("sh -c '{script}' &")]).output().unwrap();
                Process::open(String::from_utf8_lossy(&started.stdout).trim().parse().unwrap()).unwrap()
            })
            .collect();
        assert!(!helpers.is_empty());
        assert!(matches!(prove_gone(domain, &traces), Err(NotGone::Alive { .. })));

        stop_libvirtd();
        let killed = kill(domain);
        assert!(killed.signal.is_ok(), "{killed:?}");
        assert_eq!(killed.cgroup.unwrap(), helpers.len());
        assert!(exited_within(&domain.process, 10));
        assert!(helpers.iter().all(|helper| exited_within(helper, 10)));
        let gone = prove_gone(domain, &traces).unwrap();
        assert_eq!((gone.domain(), gone.process()), (id(1), domain.process.key()));
        assert_eq!(named(&scan()), named(&found[1..]));
        assert!(!bystander.process.has_exited());
    }

    /// The directories of libvirt's own cgroup for a domain, as an operator would look for them.
    fn own_cgroups(pid: i32) -> Vec<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let hybrid = Path::new("/sys/fs/cgroup/unified").exists();
        text.lines()
            .filter_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                let own = &path[..path.find(".libvirt-qemu")? + ".libvirt-qemu".len()];
                let hierarchy = match controllers {
                    "" if hybrid => "unified",
                    other => other,
                };
                // A cpuset takes processes only once it has processors and memory.
                (hierarchy != "cpuset").then(|| Path::new("/sys/fs/cgroup").join(hierarchy).join(&own[1..]))
            })
            .collect()
    }

    pub fn a_qemu_in_state_d_stays_found_and_is_not_gone_until_its_storage_answers(work: PathBuf) {
        let Some(storage) = Storage::mount(&work) else { return };
        create(&work, 1, "stuck", &storage.disk());
        let domain = scan().remove(0);
        let traces = Traces::of(&domain.process).unwrap();
        assert!(traces.buffered_files().any(|path| path == storage.disk_path()), "{traces:?}");

        assert!(shell(&format!("fsfreeze -f {}", storage.mount.display())));
        storage.qemu_io("stuck", "aio_write -P 0xaa 0 64k");
        wait_for_state_d(domain.process.pid());
        stop_libvirtd();
        let _ = kill(&domain);
        wait_for_leader_to_end(domain.process.pid());

        assert!(!domain.process.has_exited());
        match prove_gone(&domain, &traces) {
            Err(NotGone::Alive { stuck, .. }) => assert!(!stuck.is_empty()),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            named(&scan()),
            named(std::slice::from_ref(&domain)),
            "a guard that starts now finds it by its living thread"
        );
        let late = &scan()[0];
        assert!(!late.cgroup.is_none() && !late.cgroup.is_empty().unwrap());
        assert_eq!(Traces::of_domain(late).unwrap(), traces, "and what it has open");

        assert!(shell(&format!("fsfreeze -u {}", storage.mount.display())));
        assert!(exited_within(&domain.process, 10));
        check_dead(&domain, &traces).unwrap();
        prove_gone(&domain, &traces).unwrap();
        assert!(scan().is_empty());
    }

    pub fn what_a_killed_qemu_left_in_the_page_cache_is_on_the_storage_once_it_is_called_gone(work: PathBuf) {
        let Some(storage) = Storage::mount(&work) else { return };
        create(&work, 1, "dirty", &storage.disk());
        let domain = scan().remove(0);
        let traces = Traces::of(&domain.process).unwrap();
        storage.qemu_io("dirty", "write -P 0xaa 0 64k");
        let _ = kill(&domain);
        assert!(exited_within(&domain.process, 10));
        if storage.has_block_of(0xaa) {
            return skipped("something else has synced the disks meanwhile");
        }
        prove_gone(&domain, &traces).unwrap();
        assert!(storage.has_block_of(0xaa));
    }

    /// A file system on a loop device, with the disk of a domain on it.
    struct Storage {
        image: PathBuf,
        mount: PathBuf,
    }

    impl Storage {
        fn mount(work: &Path) -> Option<Storage> {
            let storage = Storage { image: work.join("fs.img"), mount: PathBuf::from("/run/storage") };
            fs::File::create(&storage.image).unwrap().set_len(64 << 20).unwrap();
            fs::create_dir(&storage.mount).unwrap();
            let (image, mount) = (storage.image.display(), storage.mount.display());
            if !shell(&format!("mkfs.ext4 -q {image} && mount -o loop {image} {mount}")) {
                skipped("cannot make and mount a loop file system");
                return None;
            }
            fs::File::create(storage.disk_path()).unwrap().set_len(8 << 20).unwrap();
            Some(storage)
        }

        fn disk_path(&self) -> PathBuf {
            self.mount.join("disk.raw")
        }

        fn disk(&self) -> String {
            format!(
                "<disk type='file'><driver name='qemu' type='raw' cache='writeback'/><source file='{}'/>\
                 <target dev='vda' bus='virtio'/></disk>",
                self.disk_path().display()
            )
        }

        fn qemu_io(&self, name: &str, command: &str) {
            let command = format!("qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend \"{command}\"");
            virsh(&["qemu-monitor-command", name, "--hmp", &command]);
        }

        /// Whether the storage below the file system holds 64 KiB of this byte, in the file system's blocks of 1 KiB.
        fn has_block_of(&self, byte: u8) -> bool {
            fs::read(&self.image).unwrap().chunks(1024).filter(|chunk| chunk.iter().all(|&read| read == byte)).count()
                >= 16
        }
    }

    fn shell(script: &str) -> bool {
        Command::new("sh").args(["-c", script]).output().is_ok_and(|output| output.status.success())
    }

    fn states(pid: i32) -> Vec<(i32, char)> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).ok()?;
                let state = stat[stat.rfind(')')? + 2..].chars().next()?;
                Some((task.file_name().to_str()?.parse().ok()?, state))
            })
            .collect()
    }

    /// No event tells either; looked at for at most 20 s.
    fn wait_until(what: &str, holds: impl Fn() -> bool) {
        let by = clock::now() + Duration::from_secs(20);
        while !holds() {
            assert!(clock::now() < by, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_for_state_d(pid: i32) {
        wait_until("a thread hangs", || states(pid).iter().any(|&(_, state)| state == 'D'));
    }

    fn wait_for_leader_to_end(pid: i32) {
        wait_until("the leader ends", || states(pid).contains(&(pid, 'Z')));
    }

    pub fn libvirt_is_asked_with_a_deadline(work: PathBuf) {
        let libvirt = Libvirt::new("qemu:///system");
        let soon = |millis| clock::now() + Duration::from_millis(millis);
        let started = daemon(Path::new(RUN_DIR)).expect("libvirtd runs");
        assert_eq!(libvirt.starts_in_flight(soon(10_000)).unwrap(), []);

        let definition = definition(&work, 1, "slow", "");
        let mut start = Command::new("virsh").args(["-q", "create", &definition]).spawn().unwrap();
        wait_for(&work.join("at-start"));
        match libvirt.starts_in_flight(soon(500)) {
            Err(PoliteError::TooLate { .. }) => {}
            other => panic!("a domain locked by its hook is not known about: {other:?}"),
        }
        fs::write(work.join("go"), "").unwrap();
        assert!(start.wait().unwrap().success());
        assert_eq!(libvirt.starts_in_flight(soon(10_000)).unwrap(), []);

        let domain = scan().remove(0);
        libvirt.destroy(id(1), soon(20_000)).unwrap();
        assert!(exited_within(&domain.process, 10));
        match libvirt.destroy(id(1), soon(10_000)) {
            Err(PoliteError::Refused { said, .. }) => assert!(said.contains("failed to get domain"), "{said}"),
            other => panic!("{other:?}"),
        }

        let process = Process::open(started.pid).unwrap();
        assert_eq!(process.key(), started);
        signal(Pid::from_raw(started.pid), Signal::SIGSTOP).unwrap();
        assert!(matches!(libvirt.destroy(id(1), soon(300)), Err(PoliteError::TooLate { .. })));
        process.kill().unwrap();
        assert!(exited_within(&process, 10));
        assert_eq!(daemon(Path::new(RUN_DIR)), None);
    }
}
