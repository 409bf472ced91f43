//! A real libvirt host in namespaces, by tests/testbed/libvirt-node.sh.

use super::process::{Finished, Process};
use super::space::HOLD;
use super::{Domain, Space, World, qemus, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A host with virtlogd and libvirtd running. It is a [`Space`], so programs can be run and started inside.
pub struct Host {
    // Dropped first: the groups are empty and can be removed only when the space is gone.
    space: Option<Space>,
    groups: Groups,
    home: PathBuf,
}

impl Deref for Host {
    type Target = Space;
    fn deref(&self) -> &Space {
        self.space.as_ref().expect("a host has its space until it is dropped")
    }
}

impl Host {
    /// Starts a host without a hook.
    pub fn start(world: &World, name: &str) -> Host {
        Host::start_with(world, name, None, "v2")
    }

    /// Starts a host whose libvirtd finds `hook` (a program) from its first moment on. `cgroups`: "v2", "v1", "hybrid".
    pub fn start_with(world: &World, name: &str, hook: Option<&Path>, cgroups: &str) -> Host {
        let unique = world.unique(name);
        let mut command = Command::new("bash");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testbed/libvirt-node.sh"));
        command.arg(&unique).arg(world.dir()).args(["--", "sh", "-c", HOLD]).env_remove("HOOK").env("CGROUP", cgroups);
        // libvirt hands it to the hook and shows it with every refusal.
        command.env_remove("LD_LIBRARY_PATH");
        if let Some(hook) = hook {
            command.env("HOOK", hook);
        }
        let groups = Groups(format!("host-{unique}"));
        let space = Space::hold(&unique, command, &world.logs());
        Host { space: Some(space), groups, home: world.dir().join("hosts").join(&unique) }
    }

    /// Runs virsh inside.
    pub fn virsh(&self, args: &[&str]) -> Finished {
        self.run("virsh", &[&["-q"][..], args].concat())
    }

    /// Defines a domain, so that it can be started by name.
    pub fn define(&self, domain: &Domain) {
        self.run_with("virsh", &["-q", "define", "/dev/stdin"], &domain.xml()).expect_ok();
    }

    /// The domain's state as libvirt tells it, like "running" or "shut off (destroyed)".
    pub fn state(&self, domain: &Domain) -> String {
        self.virsh(&["domstate", "--reason", &domain.name]).expect_ok().trim().to_owned()
    }

    /// Has the domain's QEMU do something with its first disk, as its guest would: `write -P 0xaa 0 64k`.
    pub fn qemu_io(&self, domain: &Domain, command: &str) {
        let command = format!("qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend \"{command}\"");
        let said = self.virsh(&["qemu-monitor-command", &domain.name, "--hmp", &command]).expect_ok();
        // The monitor reports a failed command as its output.
        assert!(!said.contains("failed") && !said.contains("Error"), "{command}: {said}");
    }

    /// The pid, out here, of the domain's QEMU on this host.
    pub fn qemu(&self, domain: &Domain) -> Option<i32> {
        let mine = inhabitants(self.init());
        qemus(&domain.uuid).into_iter().find(|pid| mine.contains(pid))
    }

    /// Waits until no QEMU of the domain is left on this host.
    #[track_caller]
    pub fn wait_until_gone(&self, domain: &Domain, limit: Duration) {
        wait_until(&format!("{} was gone from {}", domain.name, self.name()), limit, || self.qemu(domain).is_none());
    }

    /// The host's private directory: `etc` is its /etc/libvirt, `leasehold` its /etc/leasehold, `lib` its
    /// /var/lib/libvirt, `state` its /var/lib/leasehold.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Puts a file into the host's /etc/leasehold.
    pub fn write_config(&self, name: &str, text: &str) {
        std::fs::write(self.home.join("leasehold").join(name), text).expect("the host's directory is writable");
    }

    /// Links `program` into the running host's hooks. libvirtd does not look for hooks again until it is reloaded
    /// ([`Host::reload_libvirtd`]) or restarted.
    pub fn install_hook(&self, program: &Path) {
        let link = self.hook_link();
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(program, link).expect("the host's directory is writable");
    }

    /// Takes the hook away; libvirt then lets everything start, silently.
    pub fn remove_hook(&self) {
        std::fs::remove_file(self.hook_link()).expect("a hook is installed");
    }

    /// The link under which our hook is installed.
    pub fn hook_link(&self) -> PathBuf {
        self.home.join("etc/hooks/qemu.d/leasehold-hook")
    }

    /// A neighbour's hook beside ours; `zz` in front of its name lets ours go first.
    pub fn neighbour(&self, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.home.join("etc/hooks/qemu.d").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("the host's directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// The guard's run directory, out here.
    pub fn run_dir(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/run/leasehold", self.init()))
    }

    /// libvirtd's pid, out here.
    pub fn libvirtd(&self) -> Pid {
        let inside = self.run("cat", &["/run/libvirtd.pid"]).expect_ok();
        let inside: i32 = inside.trim().parse().expect("libvirtd has written its pid");
        Pid::from_raw(outer(self.init(), inside).expect("libvirtd runs"))
    }

    /// SIGHUP: libvirtd looks for its hooks again. Returns when it has run the hook `daemon`'s place in the reload.
    pub fn reload_libvirtd(&self) {
        kill(self.libvirtd(), Signal::SIGHUP).expect("libvirtd runs");
    }

    /// Ends libvirtd (its QEMUs live on) and starts it again; returns when it answers and has taken up every domain.
    pub fn restart_libvirtd(&self) {
        self.end_libvirtd(Signal::SIGTERM);
        self.start_libvirtd();
    }

    /// SIGKILL: libvirtd leaves everything as it is.
    pub fn kill_libvirtd(&self) {
        self.end_libvirtd(Signal::SIGKILL);
    }

    /// Ends libvirtd by a signal.
    pub fn end_libvirtd(&self, signal: Signal) {
        let pid = self.libvirtd();
        kill(pid, signal).expect("libvirtd runs");
        let gone = || !Path::new(&format!("/proc/{pid}")).exists();
        wait_until("libvirtd ended", Duration::from_secs(10), gone);
    }

    /// Starts libvirtd after [`Host::end_libvirtd`]; returns when it answers and has taken up every domain.
    pub fn start_libvirtd(&self) {
        self.start_libvirtd_after("true");
    }

    /// The same in a mount namespace of its own, in which `script` has run before.
    pub fn start_libvirtd_elsewhere(&self, script: &str) {
        self.start_libvirtd_after(&format!("[ -n \"$1\" ] || exec unshare --mount sh -c \"$0\" \"$0\" x; {script}"));
    }

    fn start_libvirtd_after(&self, script: &str) {
        // In the same group as the first one, not in the test's.
        let start = format!(
            "if [ -d /sys/fs/cgroup/init ]; then echo $$ >/sys/fs/cgroup/init/cgroup.procs; fi; {script}; \
             exec $(cat /run/libvirtd.path) -d --listen"
        );
        self.run("sh", &["-c", &start, &start]).expect_ok();
        wait_until("libvirtd answered", Duration::from_secs(10), || self.virsh(&["list"]).ok());
        // It answers before its reconnect threads, and the hooks they run, are done. They hold each domain's job, and
        // this asks for it; whether the domain is still there after that is for the test to find out.
        for name in self.virsh(&["list", "--name"]).expect_ok().lines().filter(|name| !name.is_empty()) {
            let _ = self.virsh(&["dommemstat", "--", name]);
        }
    }

    /// Stops libvirtd as if it hung (SIGSTOP), until [`Host::wake_libvirtd`].
    pub fn hang_libvirtd(&self) {
        kill(self.libvirtd(), Signal::SIGSTOP).expect("libvirtd runs");
    }

    /// Ends [`Host::hang_libvirtd`].
    pub fn wake_libvirtd(&self) {
        kill(self.libvirtd(), Signal::SIGCONT).expect("libvirtd runs");
    }

    /// Stops every process of the host, as when its own hypervisor pauses it, until what is returned is dropped.
    pub fn freeze(&self) -> Frozen {
        let mut frozen = Frozen(Vec::new());
        wait_until("the host stood still", Duration::from_secs(10), || {
            // Again for what was born meanwhile.
            let fresh: Vec<i32> = inhabitants(self.init()).into_iter().filter(|pid| !frozen.0.contains(pid)).collect();
            for &pid in &fresh {
                // It may have ended by itself.
                let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
            }
            frozen.0.extend(&fresh);
            fresh.is_empty()
        });
        frozen
    }

    /// Starts the guard of the binary under test with the host's /etc/leasehold/leasehold.toml, and waits for its
    /// socket.
    pub fn guard(&self) -> Process {
        self.guard_of(&super::world::leasehold())
    }

    /// The same of another copy of the binary.
    pub fn guard_of(&self, program: &Path) -> Process {
        // One that an earlier guard left would be taken for this one's.
        let socket = self.run_dir().join("guard.sock");
        let _ = std::fs::remove_file(&socket);
        let mut guard = self.start("guard", program, &["guard"]);
        let start = std::time::Instant::now();
        while !socket.exists() {
            let waited = start.elapsed();
            assert!(!guard.has_ended() && waited < Duration::from_secs(10), "no guard:\n{}", guard.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        guard
    }

    /// Runs the binary under test inside.
    pub fn leasehold(&self, args: &[&str]) -> Finished {
        self.run(super::world::leasehold(), args)
    }
}

/// The processes of a host that stands still.
pub struct Frozen(Vec<i32>);

impl Drop for Frozen {
    fn drop(&mut self) {
        for &pid in &self.0 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.home.join("log/libvirtd.log")).unwrap_or_default();
            // libvirtd asks every machine's odd interfaces for their features, and complains about each.
            let wanted: Vec<&str> = log.lines().filter(|line| !line.contains("EthtoolIoctl")).collect();
            let tail = &wanted[wanted.len().saturating_sub(15)..];
            super::world::tell(&format!("--- libvirtd of {}:\n{}", self.name(), tail.join("\n")));
        }
        self.space = None;
        self.groups.remove();
    }
}

/// The pids out here of all processes in the pid namespace of `init`.
fn inhabitants(init: i32) -> Vec<i32> {
    let space = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(wanted) = space(init) else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| space(*pid).as_ref() == Some(&wanted)).collect()
}

/// The pid out here of the process that is `inside` in the pid namespace of `init`.
fn outer(init: i32, inside: i32) -> Option<i32> {
    inhabitants(init).into_iter().find(|pid| {
        // The last number is the pid in the innermost namespace (proc_pid_status(5)).
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()) == Some(inside)
    })
}

/// The control groups that the testbed made for a host, in every hierarchy.
struct Groups(String);

impl Groups {
    fn remove(&self) {
        let root = Path::new("/sys/fs/cgroup");
        let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        for group in hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(&self.0)) {
            // A dead process leaves its group an instant after it leaves /proc.
            for _ in 0..200 {
                if !group.exists() || remove_tree(&group).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn remove_tree(group: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(group)
}
