//! The watchdog: is there one, is it armed, and was it ever seen to reset this host.

use super::Finding;
use crate::cli::watchdog::chosen;
use crate::config::Config;
use crate::lease::timing::Watchdog;
use crate::lease::view::StatusView;
use crate::node::features;
use crate::node::watchdog_list::{self, Found};
use std::time::Duration;

pub(super) fn look(config: Option<&Config>, view: Option<&StatusView>) -> Vec<Finding> {
    let wanted = config.filter(|config| config.watchdog_wanted() != Watchdog::None);
    let found = match watchdog_list::list() {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::fail("watchdog", format!("none can be listed: {error}"), "mount /sys as usual")];
        }
    };
    let mut findings = vec![armed(wanted.is_some(), &found, view)];
    findings.extend(wanted.and_then(|config| tested(config, &found)));
    findings
}

fn armed(wanted: bool, found: &[Found], view: Option<&StatusView>) -> Finding {
    let here = match found {
        [] => "this host has none".to_owned(),
        found => format!("this host has {}", found.iter().map(Found::title).collect::<Vec<_>>().join(", ")),
    };
    let unbounded = "a host that hangs is not reset, so there is no bound, only receipts";
    match (wanted, view, view.and_then(|view| view.watchdog.as_ref())) {
        (false, ..) => Finding::warn(
            "watchdog",
            format!("none is configured ({here}): {unbounded}"),
            "[watchdog] device in the configuration; until then start elsewhere only on a receipt, or after this host was powered off",
        ),
        (true, None, _) => Finding::warn(
            "watchdog",
            format!("one is configured ({here}), and no guard runs that could arm it"),
            "systemctl start leasehold",
        ),
        (true, Some(view), Some(watchdog)) if watchdog.state == "armed" => {
            let bound =
                view.bound_ms.map_or("no bound".to_owned(), |bound| format!("a bound of {} s", bound as f64 / 1000.0));
            Finding::ok(
                "watchdog",
                format!("{} is armed with {} s; this node promises {bound}", watchdog.device, watchdog.timeout_s),
            )
        }
        (true, Some(_), Some(watchdog)) => Finding::warn(
            "watchdog",
            format!(
                "{} is {}{}: {unbounded}",
                watchdog.device,
                watchdog.state,
                watchdog.error.as_ref().map_or(String::new(), |error| format!(" ({error})"))
            ),
            "leasehold status says since when and why",
        ),
        (true, Some(_), None) => Finding::fail(
            "watchdog",
            format!("one is configured and cannot be used ({here}): {unbounded}"),
            "the guard's fault above says why",
        ),
    }
}

/// Whether the device that would be used has been seen to reset this host. None where none would be used: that was said.
fn tested(config: &Config, found: &[Found]) -> Option<Finding> {
    let again = "drain this host, stop the guard, and run `leasehold watchdog test`: it resets the host and measures how long that takes";
    let (device, needs) = chosen(found, config).ok()?;
    let needs = match needs {
        Ok(needs) => needs,
        Err(why) => return Some(Finding::fail("watchdog", why, again)),
    };
    let seconds = u32::try_from(config.timing.watchdog.as_secs()).unwrap_or(u32::MAX);
    let shown = |span: Duration| format!("{} s", span.as_secs_f64());
    Some(match needs.measured(seconds) {
        Some(measured) => Finding::ok(
            "watchdog",
            format!("{} was seen to reset this host, at most {} after its last feed", device.title(), shown(measured)),
        ),
        None if features::is_virtual() => Finding::warn(
            "watchdog",
            format!(
                "{} was never seen to reset this host, and a hypervisor may have been told to ignore it: the bound rests on it",
                device.title()
            ),
            again,
        ),
        None => Finding::warn(
            "watchdog",
            format!(
                "{} was never seen to reset this host: that it does, {} after its last feed, is what its driver says",
                device.title(),
                shown(needs.after(seconds))
            ),
            again,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Verdict;
    use crate::node::watchdog_measured::{Measured, Outcome, Test};

    #[test]
    fn a_device_fails_once_it_was_seen_not_to_fire_and_is_ok_once_it_was_seen_to() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "node='n1'\nstate_dir='{}'\n[watchdog]\ndevice='auto'\n[contact]\nendpoints=['https://10.0.0.1']\n",
            dir.path().display()
        );
        let config = Config::parse(&text, dir.path(), || None).unwrap();
        let ipmi = Found { identity: Some("IPMI".to_owned()), ..Found::unknown("/dev/watchdog0".into()) };
        let after = |outcome: Option<Outcome>| {
            if let Some(outcome) = outcome {
                let mut measured = Measured::load(dir.path()).unwrap();
                measured.take_in(Test { identity: "IPMI".to_owned(), timeout_s: 10, outcome }).unwrap();
                measured.save(dir.path()).unwrap();
            }
            let finding = tested(&config, std::slice::from_ref(&ipmi)).unwrap();
            (finding.verdict, finding.what)
        };
        assert_eq!(after(None).0, Verdict::Warn);
        let (verdict, what) = after(Some(Outcome::Never { waited_ms: 30_000 }));
        assert_eq!(verdict, Verdict::Fail);
        assert!(what.contains("does not reset this host: in a test it was not fed for 30.0 s"), "{what}");
        let (verdict, what) = after(Some(Outcome::Reset { at_least_ms: 10_900, at_most_ms: 11_000 }));
        assert_eq!(verdict, Verdict::Ok);
        assert!(what.contains("at most 11 s after its last feed"), "{what}");
    }
}
