//! `leasehold watchdog test`: resets this host by its watchdog, to see that it does, and how long it takes.
//!
//! The device is armed, fed a few times, and then no more, while the host writes signs of life that survive the reset
//! (src/node/watchdog_marks.rs). The next guard, or `leasehold watchdog query`, concludes by them.

use crate::cli::{Exit, Terminal, finish};
use crate::config::{self, Config};
use crate::lease::gone::DisarmOrder;
use crate::lease::id::BootId;
use crate::lease::ledger::label;
use crate::local;
use crate::node::domains::Finder;
use crate::node::lock::OnlyOne;
use crate::node::watchdog::{ArmError, LinuxWatchdog, Watchdog, time_to_reset};
use crate::node::watchdog_list::{self, Found};
use crate::node::watchdog_marks::{self, Fed, MOST, Marks, Tested};
use crate::node::watchdog_measured::{self, Measured, Outcome};
use crate::node::{clock, host, realtime};
use crate::{note, out};
use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use std::fs;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

/// Between two signs of life, where the device is not so slow that there would be more than [`MOST`].
const INTERVAL: Duration = Duration::from_millis(50);
/// Feeds before the last one.
const FEEDS: u32 = 3;
/// The device is given up when it has not fired in this many times what it is known to need.
const PATIENCE: u32 = 3;
/// The longest name typed in.
const MAX_NAME: u64 = 256;

/// RESET THIS HOST by its watchdog, to see that it does and how long that takes. Refused while any domain or the guard
/// runs; asks for the node's name on standard input.
#[derive(Debug, Args)]
pub struct Test {
    /// The configuration file
    #[arg(long, value_name = "PATH", default_value = config::PATH)]
    config: PathBuf,
    /// Do not ask: this is the node's name
    #[arg(long, value_name = "NODE")]
    yes_reset: Option<String>,
}

/// It returns only if the host was not reset: 1.
pub(super) fn run(test: &Test, terminal: &mut Terminal<'_>, typed: impl BufRead) -> Exit {
    let done = tested(test, terminal, typed);
    finish(terminal, done.map(|never| match never {}))
}

enum Never {}

fn tested(test: &Test, terminal: &mut Terminal<'_>, typed: impl BufRead) -> Result<Never, String> {
    let config = Config::load(&test.config).map_err(|diagnosis| diagnosis.to_string())?;
    for directory in [&config.run_dir, &config.state_dir] {
        fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    // Held to the end: no guard starts meanwhile, and without one the hook refuses every start.
    let _no_guard = OnlyOne::take(&local::lock_path(&config.run_dir)).map_err(|error| {
        format!(
            "no test while a guard runs: {error} (`leasehold drain --wait` before, or its watchdog resets this host)"
        )
    })?;
    let boot = host::boot_id().map_err(|error| format!("cannot read this boot's id: {error}"))?;
    let concluded = watchdog_marks::conclude(&config.state_dir, boot);
    if let Some(concluded) = concluded.map_err(|error| format!("the last test cannot be concluded: {error}"))? {
        note!(terminal, "{concluded}");
    }
    let devices = watchdog_list::list().map_err(|error| format!("the watchdogs cannot be listed: {error}"))?;
    let device = allowed(&config, &devices, &running(&config)?)?;
    confirm(test, &config, &device, terminal, typed)?;
    // What other programs have not written is lost by the reset.
    nix::unistd::sync();
    reset_by(&config, &device, boot, terminal)
}

/// The domains that run here, whatever their leases say.
fn running(config: &Config) -> Result<Vec<String>, String> {
    let domains = Finder::new(&config.libvirt.run_dir).scan().map_err(|error| error.to_string())?;
    Ok(domains.iter().map(|domain| label(&domain.name, domain.domain)).collect())
}

/// The device to test.
fn allowed(config: &Config, devices: &[Found], running: &[String]) -> Result<Found, String> {
    if let [first, rest @ ..] = running {
        let others = if rest.is_empty() { String::new() } else { format!(" and {} more run", rest.len()) };
        return Err(format!(
            "no test while a domain runs here: {first}{others}. The test resets this host; move or stop it first"
        ));
    }
    let wanted =
        config.watchdog.wanted().ok_or("no device to test: the configuration names none ([watchdog] device)")?;
    let device = watchdog_list::choose(devices, &wanted, config.watchdog.allow_softdog)?;
    match device.holders.first() {
        Some(holder) => Err(format!(
            "{} is held by {} (pid {}); have it let go first (systemd: RuntimeWatchdogSec=off, and `systemctl stop leasehold` after a drain)",
            device.title(),
            holder.name.escape_debug(),
            holder.pid
        )),
        None => Ok(device),
    }
}

fn confirm(
    test: &Test,
    config: &Config,
    device: &Found,
    terminal: &mut Terminal<'_>,
    typed: impl BufRead,
) -> Result<(), String> {
    let node = config.node.to_string();
    let name = match &test.yes_reset {
        Some(name) => name.clone(),
        None => {
            note!(
                terminal,
                "This RESETS {node}, the host you are on, by {}. No domain runs here. Type the node's name to go on:",
                device.title()
            );
            let mut line = String::new();
            typed.take(MAX_NAME).read_line(&mut line).map_err(|error| format!("no name could be read: {error}"))?;
            line
        }
    };
    match name.trim() {
        typed if typed == node => Ok(()),
        other => Err(format!("'{}' is not this node's name; nothing was done", other.escape_debug())),
    }
}

fn reset_by(config: &Config, device: &Found, boot: BootId, terminal: &mut Terminal<'_>) -> Result<Never, String> {
    // The end of this process would close the device, which feeds it, and nobody would see how long it takes from there.
    let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    ends.thread_block().map_err(|error| format!("signals cannot be held back: {error}"))?;
    // Without it the signs of life are only less dense.
    let _ = realtime::run_this_thread_first();
    let title = device.title();
    let mut watchdog = LinuxWatchdog::new(&device.path, device.nowayout);
    let wanted = u32::try_from(config.timing.watchdog.as_secs()).unwrap_or(u32::MAX);
    let timeout_s = watchdog.arm(wanted).map_err(|why| match why {
        ArmError::Timeout(_) => {
            format!("{title} cannot be armed: {why}. It runs, and may reset this host all the same")
        }
        _ => format!("{title} cannot be armed: {why}"),
    })?;
    let identity = device.identity.clone().unwrap_or_default();
    let patience = time_to_reset(&identity, timeout_s, None) * PATIENCE;
    let interval = INTERVAL.max(patience / MOST);
    let tested = Tested { boot, identity, timeout_s, interval_ms: interval.as_millis() as u64 };
    let waited = unfed(config, &mut watchdog, &tested, patience, terminal);
    // From here on the host was not reset.
    let forgotten = watchdog_marks::forget(&config.state_dir);
    let order = DisarmOrder::default();
    order.force();
    let proof = order.proof().expect("it was just given");
    // safety: no domain runs, as two scans have shown, no guard that promised anything, and no start is let through
    // without one; the operator has typed the node's name.
    let stopped = match watchdog.disarm(proof) {
        Ok(()) if device.nowayout => " It runs on: its driver lets nothing stop it (nowayout).".to_owned(),
        Ok(()) => String::new(),
        Err(error) => format!(" It runs on, and cannot be stopped: {error}."),
    };
    let waited_ms = waited.map_err(|why| format!("{why}.{stopped}"))?.as_millis() as u64;
    forgotten.map_err(|error| format!("the signs of life cannot be removed: {error}.{stopped}"))?;
    let test = watchdog_measured::Test { outcome: Outcome::Never { waited_ms }, identity: tested.identity, timeout_s };
    let told = test.to_string();
    let mut measured = Measured::load(&config.state_dir).map_err(|error| error.to_string())?;
    measured.take_in(test)?;
    measured.save(&config.state_dir).map_err(|error| error.to_string())?;
    Err(format!(
        "{title} does NOT reset this host: {told}.{stopped} The guard will not use it, and so promises no bound. In a virtual machine the hypervisor has to be told to reset it; otherwise look into the firmware, or use another device"
    ))
}

/// Feeds it, then no more, and writes that the host lives until it does not. How long that went on, at last.
fn unfed(
    config: &Config,
    watchdog: &mut impl Watchdog,
    tested: &Tested,
    patience: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<Duration, String> {
    let failed = |error: std::io::Error| format!("it cannot be fed: {error}");
    let period = config.timing.feed().min(Duration::from_secs(tested.timeout_s.into()) / 4);
    let mut feed = || watchdog.feed().map_err(failed);
    for _ in 0..FEEDS {
        clock::sleep_until(clock::now() + period);
        feed()?;
    }
    let lost = |error: std::io::Error| format!("the signs of life cannot be written: {error}");
    let mut marks = Marks::begin(&config.state_dir, tested).map_err(lost)?;
    let again = running(config)?;
    if let [first, ..] = again.as_slice() {
        return Err(format!("a domain was started meanwhile: {first}; nothing was reset"));
    }
    feed()?;
    out!(
        terminal,
        "armed with {} s and fed; fed no more from now on. This host is reset in {:.1} s or so; after that `leasehold watchdog query` says how long it took",
        tested.timeout_s,
        (patience / PATIENCE).as_secs_f64()
    );
    let before = clock::now();
    feed()?;
    let fed = Fed { before, after: clock::now() };
    while clock::now() < fed.after + patience {
        marks.mark(fed, clock::now).map_err(lost)?;
        clock::sleep_until(clock::now() + Duration::from_millis(tested.interval_ms));
    }
    Ok(clock::now().since(fed.after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::watchdog_list::Holder;
    use std::path::Path;

    fn config(dir: &Path) -> PathBuf {
        let path = dir.join("leasehold.toml");
        let text = format!(
            "node='n1'\nrun_dir='{0}/run'\nstate_dir='{0}/state'\n[watchdog]\ndevice='auto'\n[libvirt]\nrun_dir='{0}/qemu'\n[contact]\nendpoints=['https://10.0.0.1']\n",
            dir.display()
        );
        fs::write(&path, text).unwrap();
        path
    }

    fn esb() -> Found {
        Found {
            identity: Some("i6300ESB timer".to_owned()),
            options: Some(0x8180),
            ..Found::unknown("/dev/watchdog0".into())
        }
    }

    fn loaded() -> Config {
        let dir = tempfile::tempdir().unwrap();
        Config::load(&config(dir.path())).unwrap()
    }

    #[test]
    fn a_domain_that_runs_forbids_it_whatever_else_is_so() {
        let one = allowed(&loaded(), &[esb()], &["web-1".to_owned()]).unwrap_err();
        assert!(one.contains("no test while a domain runs here: web-1."), "{one}");
        let two = allowed(&loaded(), &[esb()], &["web-1".to_owned(), "db-1".to_owned()]).unwrap_err();
        assert!(two.contains("web-1 and 1 more run"), "{two}");
    }

    #[test]
    fn a_device_that_somebody_holds_or_that_would_not_be_used_is_not_tested() {
        assert!(allowed(&loaded(), &[esb()], &[]).is_ok());
        let held = Found { holders: vec![Holder { pid: 1, name: "systemd".into() }], ..esb() };
        let said = allowed(&loaded(), &[held], &[]).unwrap_err();
        assert!(said.contains("/dev/watchdog0 (i6300ESB timer) is held by systemd (pid 1)"), "{said}");
        assert!(allowed(&loaded(), &[], &[]).unwrap_err().contains("no hardware watchdog"));
    }

    #[test]
    fn while_a_guard_runs_nothing_is_even_asked() {
        let dir = tempfile::tempdir().unwrap();
        let test = Test { config: config(dir.path()), yes_reset: Some("n1".into()) };
        let run_dir = dir.path().join("run");
        fs::create_dir_all(&run_dir).unwrap();
        let _guard = OnlyOne::take(&local::lock_path(&run_dir)).unwrap();
        let mut said = Vec::new();
        let exit = run(&test, &mut Terminal::new(std::io::sink(), &mut said), &b""[..]);
        let said = String::from_utf8(said).unwrap();
        assert_eq!(exit, Exit::Refused);
        assert!(said.contains("no test while a guard runs: already running: pid"), "{said}");
    }

    #[test]
    fn only_the_nodes_own_name_resets_it() {
        let name = |yes_reset: Option<&str>, typed: &str| {
            let test = Test { config: PathBuf::new(), yes_reset: yes_reset.map(str::to_owned) };
            let mut terminal = Terminal::new(std::io::sink(), std::io::sink());
            confirm(&test, &loaded(), &esb(), &mut terminal, typed.as_bytes())
        };
        assert!(name(None, "n1\n").is_ok() && name(Some("n1"), "").is_ok());
        for (given, typed) in [(None, "n2\n"), (None, ""), (None, "y\n"), (Some("n2"), "n1\n"), (Some(""), "n1\n")] {
            let said = name(given, typed).unwrap_err();
            assert!(said.contains("is not this node's name; nothing was done"), "{said}");
        }
    }
}
