//! The shipped lease core, ledger, source client, feed thread and authority under virtual time: what would happen if.
//!
//! | file | what is there |
//! |---|---|
//! | `script`, `words`, `phrase`, `when` | a scenario as an operator writes it (docs/simulate.md) |
//! | `world` | virtual time: a queue of what is due |
//! | `faults` | what each line of a script does |
//! | `host`, `device`, `libvirt`, `migration`, `guard`, `scan`, `client` | a machine, its watchdog, its libvirt and QEMUs, its guard process |
//! | `network`, `authority` | the way to the authority, and the authority |
//! | `noise` | every small delay, by the seed |
//! | `random`, `shrink`, `campaign` | schedules drawn from a seed, a great many of them, and the shortest that still breaks a promise |
//! | `check`, `record`, `expect`, `report` | the promises, what happened, what was expected, the verdict |
//!
//! What is simulated is the world; what decides is what ships. Nothing here reads a clock, a file or a network, and one
//! script gives one timeline, to the nanosecond.

#![allow(missing_docs, reason = "the names of a scenario's words are the words; docs/simulate.md says what each means")]

mod authority;
pub mod campaign;
mod check;
mod client;
mod device;
mod expect;
mod faults;
mod guard;
mod host;
mod libvirt;
mod migration;
mod network;
mod noise;
pub mod phrase;
pub mod random;
mod record;
pub mod report;
mod scan;
pub mod script;
pub mod shrink;
pub mod when;
mod words;
mod world;

use report::Report;
use script::{Script, ScriptError};

/// Runs a scenario to its end.
///
/// # Errors
/// A line that cannot be done: a timer that does not exist, a time that is past.
pub fn simulate(script: &Script) -> Result<Report, ScriptError> {
    let mut world = world::World::new(script, false, false);
    world.run(false)?;
    Ok(Report::of(&world))
}

/// Runs a schedule that names timers blindly: a line whose time is past is done at once, one whose timer is not there is
/// left out. Keeps no timeline and stops at the first broken promise.
///
/// # Errors
/// It does not come to an end.
pub fn try_out(script: &Script) -> Result<Report, ScriptError> {
    let mut world = world::World::new(script, true, true);
    world.run(true)?;
    Ok(Report::of(&world))
}
