//! `leasehold timing`: the timeline of a configuration, and the bound, or that there is none.

use super::watchdog::{Needs, chosen};
use crate::config::{self, Config, span};
use crate::lease::time::BootTime;
use crate::lease::timing::{Timing, Watchdog};
use crate::node::watchdog_list::{self, Found};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show the timeline of a configuration and the bound it promises
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "PATH", default_value = config::PATH)]
    config: PathBuf,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// Writes the timeline to `out`, a diagnosis of the configuration to `err`.
///
/// Exit status: 0, or 1 when the configuration is not good.
///
/// # Errors
/// Only what writing to `out` or `err` gives.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let config = match Config::load(&args.config) {
        Ok(config) => config,
        Err(diagnosis) => {
            writeln!(err, "{diagnosis}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let report = Report::of(&config, here(&config));
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        picture(&config, &report, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What `--json` writes: stable names with their units, additions only. Instants count from the sending of the last
/// answered question.
#[derive(Debug, Serialize)]
struct Report {
    ttl_ms: f64,
    renew_ms: f64,
    request_timeout_ms: f64,
    polite_ms: f64,
    watchdog_ms: f64,
    feed_ms: f64,
    drift_ppm: u32,
    margin_ms: f64,
    margin_needed_ms: f64,
    lapse_at_ms: f64,
    last_feed_at_ms: f64,
    expires_at_ms: f64,
    reset_at_ms: f64,
    /// The bound this node states once its watchdog is armed. Null: it states none, only receipts prove anything.
    bound_ms: Option<f64>,
    /// The bound it would state with its watchdog armed: L + W + m, or what this machine's device needs.
    bound_with_watchdog_ms: f64,
    /// The same under a stopped feed thread: L + 2W + m.
    bound_feed_stopped_ms: f64,
    watchdog_configured: bool,
    /// The configured device, where this machine has it.
    device: Option<String>,
    /// What it needs from its last feed to the reset, as it is known or was measured.
    device_needs_ms: Option<f64>,
    /// Why it cannot be relied on; null: it can, or this machine has it not.
    device_fault: Option<String>,
}

/// The configured watchdog, where this machine has it: it may not be the one that the configuration is for.
fn here(config: &Config) -> Option<(Found, Needs)> {
    chosen(&watchdog_list::list().ok()?, config).ok()
}

impl Report {
    fn of(config: &Config, here: Option<(Found, Needs)>) -> Report {
        let timing = &config.timing;
        let expires = timing.expires(BootTime::ZERO, timing.ttl);
        let at = |instant: BootTime| millis(instant.since(BootTime::ZERO));
        let seconds = u32::try_from(timing.watchdog.as_secs()).unwrap_or(u32::MAX);
        let (device, needs) = here.unzip();
        let (needs, fault) = match needs {
            Some(Ok(needs)) => (Some(needs.after(seconds)), None),
            Some(Err(fault)) => (None, Some(fault)),
            None => (None, None),
        };
        let armed = needs.map_or(Watchdog::Armed, Watchdog::Needs);
        let armed_bounds = (timing.bound(armed), timing.bound_if_feed_stops(armed));
        let relied_on = config.watchdog_wanted() != Watchdog::None && fault.is_none();
        Report {
            ttl_ms: millis(timing.ttl),
            renew_ms: millis(timing.renew),
            request_timeout_ms: millis(timing.request_timeout()),
            polite_ms: millis(timing.polite),
            watchdog_ms: millis(timing.watchdog),
            feed_ms: millis(timing.feed()),
            drift_ppm: timing.drift_ppm,
            margin_ms: millis(timing.margin),
            margin_needed_ms: millis(timing.margin_needed()),
            lapse_at_ms: at(timing.lapse(expires)),
            last_feed_at_ms: at(timing.last_feed(expires)),
            expires_at_ms: at(expires),
            reset_at_ms: at(timing.reset_by(expires)),
            bound_ms: config.bound(if relied_on { armed } else { Watchdog::None }).map(millis),
            bound_with_watchdog_ms: armed_bounds.0.map_or(0.0, millis),
            bound_feed_stopped_ms: armed_bounds.1.map_or(0.0, millis),
            watchdog_configured: config.watchdog_wanted() == Watchdog::Armed,
            device: device.map(|device| device.title()),
            device_needs_ms: needs.map(millis),
            device_fault: fault,
        }
    }
}

fn millis(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e6
}

/// Milliseconds as seconds after T.
fn t(millis: f64) -> String {
    let text = format!("{:.4}", millis / 1000.0);
    format!("T+{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

fn picture(config: &Config, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let timing: &Timing = &config.timing;
    let shown = span::show;
    writeln!(out, "node {}. T: the last answered question was sent.\n", config.node)?;
    // Politeness and the last feed come in either order; the picture shows time, so it sorts them.
    let mut instants = vec![
        (0.0, "sent", "the lease counts from here, not from the answer".to_owned()),
        (report.last_feed_at_ms, "E-P", "the watchdog is fed no more, if anything of the domain is alive".to_owned()),
        (report.expires_at_ms, "E", "SIGKILL and cgroup.kill, until proven gone".to_owned()),
        (report.reset_at_ms, "E-P+W", "the machine is reset, if anything of the domain is alive".to_owned()),
        (report.bound_with_watchdog_ms, "bound", "the domain may be started elsewhere, whatever failed".to_owned()),
    ];
    if timing.polite > Duration::ZERO {
        instants.push((report.lapse_at_ms, "E-D", "lapse: libvirt is asked to destroy the domain".to_owned()));
    }
    for lost in 1..=2u32 {
        let said = "a question nobody answers".to_owned();
        instants.push((millis(timing.renew * lost), if lost == 1 { "R" } else { "2R" }, said));
    }
    instants.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (millis, name, what) in instants {
        let here = !report.watchdog_configured && matches!(name, "E-P" | "E-P+W" | "bound");
        let mark = if here { "  (only with an armed watchdog)" } else { "" };
        writeln!(out, "  {:>12}  {name:<6} {what}{mark}", t(millis))?;
    }
    writeln!(out, "\n  L  ttl               {:>9}", shown(timing.ttl))?;
    writeln!(out, "  R  renewed every     {:>9}   a request takes at most as long", shown(timing.renew))?;
    writeln!(out, "  D  polite destroy    {:>9}   before E", shown(timing.polite))?;
    writeln!(out, "  W  watchdog timeout  {:>9}", shown(timing.watchdog))?;
    writeln!(out, "  P  feed period       {:>9}   min(W/4, 1s)", shown(timing.feed()))?;
    writeln!(out, "     clock drift       {:>6}ppm   E = T + L·(1-drift)", timing.drift_ppm)?;
    writeln!(
        out,
        "  m  margin            {:>9}   at least {} of it is needed: 2·drift·(L+W) and 200ms of scheduling\n",
        shown(timing.margin),
        shown(Duration::from_millis(report.margin_needed_ms.ceil() as u64))
    )?;
    if let (Some(device), Some(needs)) = (&report.device, report.device_needs_ms) {
        let needs = needs / 1000.0;
        writeln!(
            out,
            "{device} on this host needs {needs} s from its last feed to the reset, and m pays for what it can."
        )?;
    }
    if let Some(fault) = &report.device_fault {
        return writeln!(out, "bound: none. {fault}.");
    }
    let (bound, stopped) = (report.bound_with_watchdog_ms / 1000.0, report.bound_feed_stopped_ms / 1000.0);
    if let Some(stated) = report.bound_ms {
        let stated = stated / 1000.0;
        return writeln!(
            out,
            "bound: {bound} s after the last answer that could have renewed, {stopped} s under a stopped feed thread: \
             L + W + m and L + 2W + m, or what a slow device needs.\n  \
             For a guard that hangs and is killed later it is the first where the service manager keeps the device open \
             (fd store, systemd 254 or later), and the second where nobody does.\n  \
             The node states {stated} s from when its watchdog is armed. W counts as read back from the device, and as \
             the device is known or was measured to need: `leasehold status` shows who keeps it open and what is promised now."
        );
    }
    writeln!(
        out,
        "bound: none, because no watchdog is configured.\n  \
         The guard kills by E, and nothing ends what cannot be killed: a hung guard, a process in state D.\n  \
         So time proves nothing about this node. Start its domains elsewhere on its receipts alone, or after the\n  \
         machine was switched off by other means; the node says so in every question.\n  \
         With an armed watchdog the bound would be {bound} s (L + W + m), and {stopped} s (L + 2W + m) under a stopped \
         feed thread."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::watchdog_measured::TimeToReset;

    fn show(text: &str, json: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("leasehold.toml");
        std::fs::write(&config, format!("node='n1'\n{text}\n[contact]\nendpoints=['https://10.0.0.1']\n")).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&Args { config, json }, &mut out, &mut err).unwrap();
        assert_eq!((code, err.len()), (ExitCode::SUCCESS, 0));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_picture_shows_every_instant_in_its_order() {
        let out = show("", false);
        let mut rest = out.as_str();
        for instant in ["T+0s", "T+3s", "T+6s", "T+12.9925s", "T+13.9925s", "T+14.9925s", "T+23.9925s", "T+26s"] {
            rest = &rest[rest.find(instant).unwrap_or_else(|| panic!("{instant} is missing or late in:\n{out}"))..];
        }
        assert!(out.contains("bound: none, because no watchdog is configured"), "{out}");
        assert!(out.contains("would be 26 s (L + W + m), and 36 s (L + 2W + m)"), "{out}");
    }

    #[test]
    fn with_a_watchdog_the_node_states_its_bound_or_the_strict_one() {
        let out = show("[watchdog]\ndevice = 'auto'", false);
        assert!(out.contains("The node states 26 s from when its watchdog is armed"), "{out}");
        let out = show("[watchdog]\ndevice = 'auto'\nbound = 'strict'", false);
        assert!(out.contains("The node states 36 s"), "{out}");
    }

    #[test]
    fn a_device_of_this_host_counts_as_it_needs_and_one_that_never_fires_is_no_bound() {
        let dir = tempfile::tempdir().unwrap();
        let text = "node='n1'\n[watchdog]\ndevice='auto'\n[contact]\nendpoints=['https://10.0.0.1']\n";
        let config = Config::parse(text, dir.path(), || None).unwrap();
        let itco = Found { identity: Some("iTCO_wdt".to_owned()), ..Found::unknown("/dev/watchdog0".into()) };
        let show = |needs| {
            let (report, mut text) = (Report::of(&config, Some((itco.clone(), needs))), Vec::new());
            picture(&config, &report, &mut text).unwrap();
            (report.bound_ms, String::from_utf8(text).unwrap())
        };
        let (bound, text) = show(TimeToReset::of(&itco, dir.path()));
        assert_eq!(bound, Some(35_235.0));
        assert!(text.contains("/dev/watchdog0 (iTCO_wdt) on this host needs 20 s"), "{text}");
        let (bound, text) = show(Err("it does not reset this host".to_owned()));
        assert_eq!(bound, None);
        assert!(text.contains("bound: none. it does not reset this host."), "{text}");
    }

    #[test]
    fn no_polite_destroy_is_no_line_in_the_picture() {
        assert!(!show("[lease]\npolite = '0s'", false).contains("E-D"));
    }

    #[test]
    fn the_json_has_units_in_its_names_and_null_for_no_bound() {
        let json: serde_json::Value = serde_json::from_str(&show("profile = 'fast'", true)).unwrap();
        assert_eq!(json["bound_ms"], serde_json::Value::Null);
        assert_eq!(json["bound_with_watchdog_ms"], 8500.0);
        assert_eq!(json["bound_feed_stopped_ms"], 11_500.0);
        assert_eq!(json["expires_at_ms"], 4997.5);
        assert_eq!(json["feed_ms"], 750.0);
        assert_eq!(json["watchdog_configured"], false);
    }
}
