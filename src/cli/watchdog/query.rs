//! `leasehold watchdog query`: every watchdog of this host, who holds it, and which one leasehold would use. Opens none.

use super::chosen;
use crate::cli::{Exit, Terminal, finish};
use crate::config::{self, Config};
use crate::node::host;
use crate::node::watchdog::CARDRESET;
use crate::node::watchdog_list::{self, Found};
use crate::node::watchdog_marks;
use crate::{note, out};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Show every watchdog of this host, who holds it, and which one the guard uses. Opens none of them; concludes a test
/// that ended with the last boot.
#[derive(Debug, Args)]
pub struct Query {
    /// The configuration file
    #[arg(long, value_name = "PATH", default_value = config::PATH)]
    config: PathBuf,
    /// As JSON, with stable keys
    #[arg(long)]
    json: bool,
}

/// A device and what leasehold makes of it.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    device: Found,
    /// The guard uses it.
    chosen: bool,
    /// Why, or why not, or what keeps it from being armed: for people.
    why: String,
    /// From its last feed to the reset, as it is counted for the configured timeout; null: it is not chosen.
    resets_after_ms: Option<u64>,
    /// The same as a test has shown it, at most; null: no test was made.
    measured_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Report {
    devices: Vec<Row>,
    /// What the test that ended with the last boot has shown; null: there was none.
    concluded: Option<String>,
}

/// Exit status: 0, or 1 when the devices cannot be listed.
pub(super) fn run(query: &Query, terminal: &mut Terminal<'_>) -> Exit {
    let shown = look(query, terminal);
    finish(terminal, shown)
}

fn look(query: &Query, terminal: &mut Terminal<'_>) -> Result<Exit, String> {
    let found = watchdog_list::list().map_err(|error| format!("the watchdogs cannot be listed: {error}"))?;
    let config = Config::load(&query.config);
    let concluded = config.as_ref().ok().and_then(|config| {
        let concluded = host::boot_id().and_then(|boot| watchdog_marks::conclude(&config.state_dir, boot));
        concluded.unwrap_or_else(|error| {
            note!(terminal, "leasehold: a watchdog test of the last boot cannot be concluded: {error}");
            None
        })
    });
    let config = config.map_err(|diagnosis| {
        let first = diagnosis.to_string();
        format!("the configuration cannot be used: {}", first.lines().next().unwrap_or_default())
    });
    let report =
        Report { devices: judge(&found, &config), concluded: concluded.map(|concluded| concluded.to_string()) };
    if query.json {
        terminal.json(&report);
    } else {
        show(&report, terminal);
    }
    Ok(Exit::Done)
}

fn judge(found: &[Found], config: &Result<Config, String>) -> Vec<Row> {
    let chosen = config.as_ref().map_err(String::clone).and_then(|config| Ok((chosen(found, config)?, config)));
    let row = |device: &Found| {
        let other =
            |why: String| Row { device: device.clone(), chosen: false, why, resets_after_ms: None, measured_ms: None };
        match &chosen {
            Ok(((taken, Ok(needs)), config)) if taken.path == device.path => {
                let seconds = u32::try_from(config.timing.watchdog.as_secs()).unwrap_or(u32::MAX);
                let millis = |span: std::time::Duration| span.as_millis() as u64;
                Row {
                    chosen: true,
                    resets_after_ms: Some(millis(needs.after(seconds))),
                    measured_ms: needs.measured(seconds).map(millis),
                    ..other(held(device))
                }
            }
            Ok(((taken, Err(why)), _)) if taken.path == device.path => other(format!("not used: {why}")),
            Ok(((taken, _), _)) => other(format!("not used: the configuration takes {}", taken.title())),
            Err(why) => other(format!("not used: {why}")),
        }
    };
    found.iter().map(row).collect()
}

/// One opener at a time (drivers/watchdog/watchdog_dev.c, WDOG_HW_OPEN): the guard, its fd store, or somebody else.
fn held(device: &Found) -> String {
    match device.holders.as_slice() {
        [] => "chosen".to_owned(),
        holders if holders.iter().any(|holder| holder.name == "leasehold") => {
            "chosen, and held by the guard".to_owned()
        }
        [first, ..] if first.pid == 1 => format!(
            "chosen, and held by {} (pid 1): for the guard, or (RuntimeWatchdogSec) for itself, and then it cannot be armed",
            first.name.escape_debug()
        ),
        [first, ..] => {
            format!("chosen, and cannot be armed while {} (pid {}) holds it", first.name.escape_debug(), first.pid)
        }
    }
}

fn show(report: &Report, terminal: &mut Terminal<'_>) {
    if let Some(concluded) = &report.concluded {
        out!(terminal, "{concluded}\n");
    }
    if report.devices.is_empty() {
        return out!(terminal, "this host shows no watchdog: is its driver loaded?");
    }
    let head =
        ["DEVICE", "IDENTITY", "STATE", "TIMEOUT", "LEFT", "NOWAYOUT", "LAST RESET", "HELD BY"].map(str::to_owned);
    let rows: Vec<[String; 8]> =
        std::iter::once(head).chain(report.devices.iter().map(|row| cells(&row.device))).collect();
    terminal.table(&rows);
    out!(terminal, "");
    for row in &report.devices {
        let time = |millis: u64| format!("{} s", millis as f64 / 1000.0);
        let needs = row.resets_after_ms.map_or(String::new(), |counted| {
            let measured =
                row.measured_ms.map_or("not tested".to_owned(), |millis| format!("measured: at most {}", time(millis)));
            format!(". From its last feed to the reset it counts as {} ({measured})", time(counted))
        });
        out!(terminal, "{}: {}{needs}", row.device.path.display(), row.why);
    }
}

fn cells(device: &Found) -> [String; 8] {
    let unknown = || "-".to_owned();
    let seconds = |value: Option<u32>| value.map_or_else(unknown, |seconds| format!("{seconds} s"));
    let holders: Vec<String> =
        device.holders.iter().map(|holder| format!("{} ({})", holder.name.escape_debug(), holder.pid)).collect();
    [
        device.path.display().to_string(),
        device.identity.clone().unwrap_or_else(|| "unknown".to_owned()),
        device.state.clone().unwrap_or_else(unknown),
        seconds(device.timeout),
        seconds(device.timeleft),
        if device.nowayout { "yes" } else { "no" }.to_owned(),
        match device.bootstatus {
            Some(flags) if flags & CARDRESET != 0 => "by it".to_owned(),
            Some(0) => "not by it".to_owned(),
            Some(flags) => format!("{flags:#x}"),
            None => unknown(),
        },
        if holders.is_empty() { unknown() } else { holders.join(", ") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::watchdog_list::Holder;
    use std::path::Path;

    fn device(name: &str, identity: &str) -> Found {
        Found {
            identity: Some(identity.to_owned()),
            options: Some(0x8180),
            timeout: Some(30),
            bootstatus: Some(CARDRESET),
            ..Found::unknown(Path::new("/dev").join(name))
        }
    }

    fn with(text: &str) -> Result<Config, String> {
        let text = format!("node='n1'\nstate_dir='/nonexistent'\n{text}\n[contact]\nendpoints=['https://10.0.0.1']\n");
        Ok(Config::parse(&text, Path::new("x"), || None).unwrap())
    }

    fn whys(found: &[Found], config: &Result<Config, String>) -> Vec<String> {
        judge(found, config).into_iter().map(|row| row.why).collect()
    }

    #[test]
    fn each_device_says_whether_it_is_used_and_why_not() {
        let both = [device("watchdog0", "iTCO_wdt"), device("watchdog1", "IPMI")];
        let itco = with("[watchdog]\nidentity='iTCO_wdt'");
        assert_eq!(whys(&both, &itco), ["chosen", "not used: the configuration takes /dev/watchdog0 (iTCO_wdt)"]);
        let rows = judge(&both, &itco);
        assert_eq!((rows[0].resets_after_ms, rows[0].measured_ms, rows[1].resets_after_ms), (Some(20_000), None, None));
        for (config, said) in [
            (with(""), "names none"),
            (with("[watchdog]\ndevice='auto'"), "more than one"),
            (with("mode='observe'\n[watchdog]\ndevice='/dev/watchdog0'"), "observe"),
            (Err("the configuration cannot be used: x".to_owned()), "cannot be used"),
        ] {
            assert!(whys(&both, &config).iter().all(|why| why.contains(said)), "{said}");
        }
    }

    #[test]
    fn who_else_holds_the_chosen_device_is_told() {
        let holder = |pid: i32, name: &str| Holder { pid, name: name.to_owned() };
        let mut esb = device("watchdog0", "i6300ESB timer");
        let auto = with("[watchdog]\ndevice='auto'");
        esb.holders = vec![holder(7, "wd_keepalive")];
        assert_eq!(whys(&[esb.clone()], &auto), ["chosen, and cannot be armed while wd_keepalive (pid 7) holds it"]);
        esb.holders = vec![holder(1, "systemd")];
        assert!(whys(&[esb.clone()], &auto)[0].contains("RuntimeWatchdogSec"));
        esb.holders.push(holder(8, "leasehold"));
        assert_eq!(whys(&[esb], &auto), ["chosen, and held by the guard"], "systemd keeps it for the guard");
    }

    #[test]
    fn the_table_shows_what_is_known_and_a_dash_for_what_is_not() {
        let found = [device("watchdog0", "iTCO_wdt"), Found::unknown("/dev/watchdog".into())];
        let report = Report { devices: judge(&found, &with("")), concluded: Some("it did".to_owned()) };
        let mut text = Vec::new();
        show(&report, &mut Terminal::new(&mut text, std::io::sink()));
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("it did\n\nDEVICE          IDENTITY"), "{text}");
        let row = |path: &str| {
            text.lines().find(|line| line.starts_with(path)).unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(row("/dev/watchdog0 "), ["/dev/watchdog0", "iTCO_wdt", "-", "30", "s", "-", "no", "by", "it", "-"]);
        assert_eq!(row("/dev/watchdog "), ["/dev/watchdog", "unknown", "-", "-", "-", "no", "-", "-"]);
    }
}
