//! An emulated machine with a watchdog that really resets it, and what it told until its end.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Machines at a time: each takes a processor for itself.
const AT_ONCE: usize = 2;
/// The reset comes after the last pulse: within the time between two (20 ms), /proc/uptime's 10 ms, and what the pulse itself takes.
pub const PULSE: u64 = 50;

/// Which watchdog the machine has; its driver's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    I6300esb,
    Softdog,
    Itco,
    Ib700,
}

impl Device {
    fn driver(self) -> &'static str {
        match self {
            Device::I6300esb => "i6300esb",
            Device::Softdog => "softdog",
            Device::Itco => "iTCO_wdt",
            Device::Ib700 => "ib700wdt",
        }
    }

    /// As the driver calls it, which is how leasehold knows it.
    pub fn identity(self) -> &'static str {
        match self {
            Device::I6300esb => "i6300ESB timer",
            Device::Softdog => "Software Watchdog",
            Device::Itco => "iTCO_wdt",
            Device::Ib700 => "IB700 WDT",
        }
    }
}

/// The two sets of values of docs/design.md.
#[derive(Debug, Clone, Copy)]
pub enum Profile {
    Default,
    Fast,
}

impl Profile {
    pub fn timing(self) -> leasehold::lease::timing::Timing {
        use leasehold::lease::timing;
        timing::Timing::profile(match self {
            Profile::Default => timing::Profile::Default,
            Profile::Fast => timing::Profile::Fast,
        })
    }
}

/// Whose systemd is its first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Systemd {
    /// Debian 12's, 252.
    Own,
    /// Of its backports, 254 or later.
    Backports,
}

/// One machine, as it is to be.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    pub device: Device,
    pub profile: Profile,
    /// What happens in it: after `tests/watchdog/inside.sh`, under busybox sh.
    pub script: &'static str,
    /// More environment for tests/testbed/watchdog-vm.sh.
    pub environment: &'static [(&'static str, &'static str)],
    /// Programs of this machine that it needs, with their libraries.
    pub programs: &'static [&'static str],
    /// `None`: the script is the first process. Otherwise it is a service, and the shipped unit is installed.
    pub systemd: Option<Systemd>,
}

impl Machine {
    /// With nothing but a device and a script, and the fast timeline.
    pub const fn new(device: Device, script: &'static str) -> Machine {
        Machine { device, profile: Profile::Fast, script, environment: &[], programs: &[], systemd: None }
    }

    /// Runs it to its end. `None`: it cannot be run here, which was said.
    pub fn run(&self) -> Option<Story> {
        self.run_with(&[])
    }

    /// The same with a disk that outlives it, on /disk: the next machine finds there what this one left.
    pub fn run_on(&self, disk: &Path) -> Option<Story> {
        self.run_with(&[("DISK", disk)])
    }

    fn run_with(&self, disk: &[(&str, &Path)]) -> Option<Story> {
        let thread = std::thread::current();
        let name = thread.name().expect("a test's thread has the test's name");
        let systemd = self.systemd.map(systemd_root).transpose();
        if let Some(why) = hindrance(self.programs).or(systemd.as_ref().err().cloned()) {
            // Past the test harness, which shows nothing of a test that passes: a skip must never be silent.
            let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
            return None;
        }
        let _slot = Slot::take();
        let work = tempfile::tempdir().expect("a temporary directory");
        let profile = match self.profile {
            Profile::Default => "default",
            Profile::Fast => "fast",
        };
        let script = work.path().join("script");
        let text = format!("PROFILE={profile}\n. /bin/inside.sh\npulse &\n{}\npause 60000\nover\n", self.script);
        std::fs::write(&script, text).expect("the directory is ours");
        let output = Command::new(testbed("watchdog-vm.sh"))
            .arg("run")
            .args([&kernel().clone().expect("looked at before"), &work.path().join("machine"), &script])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/watchdog/inside.sh"))
            .args([binary("LEASEHOLD_BIN", env!("CARGO_BIN_EXE_leasehold"))])
            .args([binary("LEASEHOLD_AUTHORITY_BIN", env!("CARGO_BIN_EXE_leasehold-authority"))])
            .args(self.programs.iter().flat_map(|program| with_libraries(program)))
            .args(self.systemd.iter().flat_map(|_| shipped_units()))
            .env("DEVICE", self.device.driver())
            .envs(systemd.expect("looked at before").map(|root| ("SYSTEMD", root)))
            .envs(self.environment.iter().copied())
            .envs(disk.iter().copied())
            .stdin(Stdio::null())
            .output()
            .expect("bash can be run");
        let console = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {}: {complaints}\n{}", output.status, told(&console));
        Some(Story { console, machine: *self })
    }
}

/// What a machine told on its console.
pub struct Story {
    console: String,
    machine: Machine,
}

impl Story {
    /// Everything said at an instant: milliseconds of its CLOCK_BOOTTIME, and the words.
    fn said(&self) -> impl Iterator<Item = (u64, &str)> {
        self.console.lines().filter_map(|line| {
            let (at, words) = line.trim_end().split_once(' ')?;
            Some((at.parse().ok()?, words))
        })
    }

    /// When something was said.
    #[track_caller]
    pub fn when(&self, words: &str) -> u64 {
        let found = self.said().find(|(_, said)| said.starts_with(words));
        found.unwrap_or_else(|| panic!("'{words}' was never said:\n{}", told(&self.console))).0
    }

    /// The rest of what was said, behind `words`.
    #[track_caller]
    pub fn value(&self, words: &str) -> &str {
        let found = self.said().find_map(|(_, said)| said.strip_prefix(words)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("'{words}' was never said:\n{}", told(&self.console)))
    }

    /// The same as a number.
    #[track_caller]
    pub fn number(&self, words: &str) -> u64 {
        let value = self.value(words);
        value.parse().unwrap_or_else(|_| panic!("'{words}' came with '{value}', which is no number"))
    }

    /// W as it is set, in milliseconds.
    pub fn least(&self) -> u64 {
        millis(self.machine.profile.timing().watchdog)
    }

    /// W as leasehold counts it for this device, in milliseconds: from the last feed to the reset.
    pub fn w(&self) -> u64 {
        let seconds = self.machine.profile.timing().watchdog.as_secs() as u32;
        millis(leasehold::node::watchdog::time_to_reset(self.machine.device.identity(), seconds, None))
    }

    /// The last sign of life before the reset.
    #[track_caller]
    pub fn reset(&self) -> u64 {
        assert!(self.said().all(|(_, said)| said != "over"), "it was never reset:\n{}", told(&self.console));
        self.said().filter(|(_, said)| *said == "alive").last().expect("it had a pulse").0
    }

    /// It was reset within these instants, and not a pulse outside.
    #[track_caller]
    pub fn assert_reset(&self, within: Range<u64>) {
        let reset = self.reset();
        self.note(Some((reset, within.end)));
        let fits = reset + PULSE >= within.start && reset <= within.end;
        assert!(fits, "reset at {reset}, not within {within:?}:\n{}", told(&self.console));
    }

    /// It ran to the end of its script.
    #[track_caller]
    pub fn assert_not_reset(&self) {
        self.note(None);
        assert!(self.said().any(|(_, said)| said == "over"), "it was reset:\n{}", told(&self.console));
    }

    /// The row of docs/watchdog.md.
    fn note(&self, reset: Option<(u64, u64)>) {
        let thread = std::thread::current();
        let rung = thread.name().unwrap_or_default().rsplit("::").next().unwrap_or_default().replace('_', " ");
        let seconds = |at: u64| format!("{}.{:02}", at / 1000, at % 1000 / 10);
        let find = |words: &str| {
            let found = self.said().find_map(|(_, said)| said.strip_prefix(words)?.strip_prefix(' ')?.parse().ok());
            found.map_or("-".to_owned(), seconds)
        };
        let (at, limit) = reset.map_or(("never".into(), "-".into()), |(at, by)| (seconds(at), seconds(by)));
        let row =
            format!("| {rung} | {} | {} | {} | {at} | {limit} |", self.machine.device.driver(), find("E-P"), find("E"));
        let _ = writeln!(std::io::stderr(), "measured: {row}");
    }

    /// Everything it told, and its last pulse.
    pub fn console(&self) -> String {
        told(&self.console)
    }
}

pub fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// Without its pulse, but for the last.
fn told(console: &str) -> String {
    let (pulse, mut told): (Vec<_>, Vec<_>) = console.lines().partition(|line| line.trim_end().ends_with(" alive"));
    told.extend(pulse.last());
    told.join("\n")
}

fn shipped_units() -> impl Iterator<Item = PathBuf> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    ["leasehold.service", "basic.target.d/leasehold.conf"].into_iter().map(move |file| packaging.join(file))
}

fn testbed(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testbed").join(script)
}

fn binary(variable: &str, built: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| built.into(), PathBuf::from)
}

/// Debian's kernel, fetched once.
fn kernel() -> &'static Result<PathBuf, String> {
    static KERNEL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("watchdog-kernel");
        let fetched = Command::new(testbed("watchdog-vm.sh")).arg("fetch").arg(&dir).output();
        fetched_or_why("kernel", fetched).map(|_| dir)
    })
}

/// What is to be copied over a machine's root for a systemd, fetched once.
fn systemd_root(systemd: Systemd) -> Result<PathBuf, String> {
    static ROOTS: Mutex<()> = Mutex::new(());
    let _one_at_a_time = ROOTS.lock().expect("no holder panics");
    let (name, from) = match systemd {
        Systemd::Own => ("watchdog-systemd", None),
        Systemd::Backports => ("watchdog-systemd-backports", Some("backports")),
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fetched_or_why("systemd", Command::new(testbed("systemd-root.sh")).arg(&dir).args(from).output())?;
    Ok(dir.join("root"))
}

fn fetched_or_why(what: &str, fetched: io::Result<Output>) -> Result<(), String> {
    let fetched = fetched.map_err(|error| error.to_string())?;
    let why = String::from_utf8_lossy(&fetched.stderr);
    if fetched.status.success() { Ok(()) } else { Err(format!("no {what} to run: {}", why.trim())) }
}

fn hindrance(programs: &[&str]) -> Option<String> {
    let searched = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let there = |program: &str| searched.iter().any(|directory| Path::new(directory).join(program).exists());
    let needed = ["qemu-system-x86_64", "busybox", "cpio", "mkfs.ext4", "python3"];
    let needed = needed.iter().chain(programs);
    let missing = needed.copied().find(|program| !there(program.rsplit('/').next().unwrap_or(program)));
    missing.map(|program| format!("{program} is not installed")).or_else(|| kernel().as_ref().err().cloned())
}

/// A dynamic program and the libraries that ldd(1) lists for it.
fn with_libraries(program: &str) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd is part of the C library");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    libraries.chain([program.into()]).collect()
}

/// The right to run a machine.
struct Slot;

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Slot {
    fn take() -> Slot {
        let running = RUNNING.0.lock().expect("no holder panics");
        *RUNNING.1.wait_while(running, |running| *running >= AT_ONCE).expect("no holder panics") += 1;
        Slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *RUNNING.0.lock().expect("no holder panics") -= 1;
        RUNNING.1.notify_one();
    }
}
