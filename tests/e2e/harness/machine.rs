//! A node that can lose everything a machine can lose: its network, its storage's room, its power. It has a stand-in for a
//! hardware watchdog that really resets it, and somebody between it and its authority.

use super::process::Process;
use super::{Domain, Node, Site, wait_until};
use leasehold::lease::time::BootTime;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// L = 2 s, R = 0.5 s, D = 0.4 s, W = 2 s, m = 0.5 s: the fast profile's proportions, so that a matrix of them takes a minute.
const CONFIG: &str = "[lease]\nttl = \"2s\"\nrenew = \"500ms\"\npolite = \"400ms\"\n\
                      [watchdog]\nidentity = \"stand-in\"\ntimeout = \"2s\"\nlast_resort = false\n";
/// L + W + m.
pub const BOUND: Duration = Duration::from_millis(4500);
/// R.
pub const RENEW: Duration = Duration::from_millis(500);
/// P.
pub const FEED: Duration = Duration::from_millis(500);

/// A node with a watchdog.
pub struct Machine {
    // Dropped before the host whose processes they are.
    between: Option<Process>,
    device: Option<Process>,
    pub node: Node,
    pub name: String,
    /// Its number in the journal.
    pub number: u32,
    boots: u32,
    dir: PathBuf,
    word: PathBuf,
}

impl Machine {
    /// Up and running, its guard too.
    pub fn start(site: &Site<'_>, number: u32) -> Machine {
        let name = format!("n{number}");
        let node = site.node_without_guard(&name, CONFIG);
        node.configure(&name, "127.0.0.1", 7471, CONFIG);
        let dir = node.host.home().to_owned();
        let word = dir.join("word");
        // The terminal is put where no machine misses anything (/dev is all hosts' own): /dev/full is a device that
        // nothing here opens. What could reset the machine that runs the test is out of reach first.
        let prepare = "{ [ ! -e /proc/sysrq-trigger ] || mount --bind /dev/null /proc/sysrq-trigger; } && \
            mount -t tmpfs sys /sys/class/watchdog && mkdir /sys/class/watchdog/full && cd /sys/class/watchdog/full && echo stand-in >identity && \
            echo 0x8180 >options && echo 0 >nowayout && mkdir -p /run/leasehold && \
            mount -t tmpfs -o size=1m run /run/leasehold && mount -t tmpfs -o size=1m var /var/lib/leasehold";
        node.host.run("sh", &["-c", prepare]).expect_ok();
        let mut machine = Machine { between: None, device: None, node, name, number, boots: 1, dir, word };
        machine.power_up();
        machine
    }

    fn power_up(&mut self) {
        self.between("plain");
        let _ = std::fs::remove_file(self.dir.join("watchdog.sock"));
        let dir = self.dir.display().to_string();
        let (device, terminal) = self.stand_in("watchdog", &["device", &dir], "terminal ");
        self.node.host.run("mount", &["--bind", &terminal, "/dev/full"]).expect_ok();
        self.device = Some(device);
        self.start_guard();
        // An authority that was ever told of no bound counts with none for a minute more: so it is told of none before.
        wait_until("the device was armed", SOON, || self.promises());
        let (far, word) = (self.node.link.far.to_string(), self.word.display().to_string());
        self.between = Some(self.stand_in("between", &[&far, &word], "listening").0);
    }

    /// Starts one, and waits for its first line, which begins like this; what follows there.
    fn stand_in(&self, name: &str, args: &[&str], begins: &str) -> (Process, String) {
        let script = format!("{}/tests/e2e/stand_ins/{name}.py", env!("CARGO_MANIFEST_DIR"));
        let named = format!("{name}-in-boot-{}", self.boots);
        let process = self.node.host.start(&named, "python3", &[&["-u", &script], args].concat());
        let mut said = None;
        wait_until(&format!("{name} was ready"), SOON, || {
            let log = process.log();
            said = log.strip_suffix('\n').and_then(|line| line.strip_prefix(begins)).map(str::to_owned);
            said.is_some()
        });
        (process, said.expect("waited for"))
    }

    /// Starts the guard, which sees the device.
    pub fn start_guard(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/stand_ins/watchdog.py");
        let wrapper = self.dir.join("guard-with-device");
        let line = format!(
            "#!/bin/sh\nexec python3 '{}' run '{}' '{}' \"$@\"\n",
            script.display(),
            self.dir.display(),
            super::leasehold().display()
        );
        if !wrapper.exists() {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(&wrapper, line).expect("the host's directory is writable");
            std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        // One that an earlier guard left would be taken for this one's.
        let socket = self.node.host.run_dir().join("guard.sock");
        let _ = std::fs::remove_file(&socket);
        let guard = self.node.host.start("guard", wrapper, &["guard"]);
        wait_until("the guard listened, or its host was reset meanwhile", SOON, || socket.exists() || self.was_reset());
        self.node.guard = Some(guard);
    }

    /// What stands between it and its authority does this from now on: see tests/e2e/stand_ins/between.py.
    pub fn between(&self, word: &str) {
        let new = self.word.with_extension("new");
        std::fs::write(&new, word).and_then(|()| std::fs::rename(&new, &self.word)).expect("the directory is writable");
    }

    /// Whether the watchdog has reset it, in this boot.
    pub fn was_reset(&mut self) -> bool {
        let Some(device) = &mut self.device else { return true };
        let over = device.has_ended();
        assert!(!over || device.log().ends_with("\nreset\n"), "the device failed:\n{}", device.log());
        over
    }

    /// Boots it again after a reset, as another boot of the same machine: empty /run, its network up, its guard, and last
    /// libvirtd with whatever is to start by itself.
    pub fn boot(&mut self) {
        assert!(self.was_reset());
        (self.device, self.between, self.node.guard) = (None, None, None);
        let script = "umount /dev/full; rm -rf /run/leasehold/* /run/libvirt /run/*.pid; mkdir -p /run/libvirt; \
            for at in $(ip -o link | cut -d: -f2 | cut -d@ -f1 | grep '^ *c'); do ip link set $at up; done; \
            if [ -d /sys/fs/cgroup/init ]; then echo $$ >/sys/fs/cgroup/init/cgroup.procs; fi; virtlogd -d";
        self.node.host.run("sh", &["-c", script]).expect_ok();
        self.node.boot_anew();
        self.boots += 1;
        self.power_up();
        self.node.host.start_libvirtd();
    }

    /// Whether its guard promises the bound, which takes an armed device: by the ledger on /run.
    pub fn promises(&self) -> bool {
        let bound = serde_json::json!({ "secs": BOUND.as_secs(), "nanos": BOUND.subsec_nanos() });
        self.node.ledger().is_some_and(|ledger| ledger["promise"]["bound"] == bound)
    }

    /// When the domain's lease runs out unless it is renewed, by the ledger on /run.
    pub fn expires(&self, domain: &Domain) -> Option<BootTime> {
        self.node.ledger()?["domains"][&domain.uuid]["lease"]["expires"].as_u64().map(BootTime::from_nanos)
    }
}
