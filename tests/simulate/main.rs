//! The shipped core, source client, feed thread and authority in virtual time: random schedules, what must hold under some
//! faults and not under others, and the scenarios under tests/scenarios.

mod properties;
mod scenarios;
mod schedules;

use std::io::Write;

/// Past the test harness's own capture: figures are for whoever reads the log.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
