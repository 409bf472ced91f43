//! `leasehold watchdog`: this host's watchdogs as they are, and whether the chosen one really resets it.

mod query;
mod test;

use super::{Exit, Terminal};
use crate::config::Config;
use crate::lease::timing::Watchdog as Assured;
use crate::node::watchdog_list::{self, Found};
use crate::node::watchdog_measured::TimeToReset;
use clap::{Args, Subcommand};
use std::io::BufRead;

/// Look at this host's watchdogs, or test the one that is used.
#[derive(Debug, Args)]
pub struct Watchdog {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Query(query::Query),
    Test(test::Test),
}

/// What the device that was chosen needs from its last feed to the reset, or why it cannot be relied on.
pub(super) type Needs = Result<TimeToReset, String>;

/// The device that this configuration takes.
///
/// # Errors
/// It takes none of these, and why.
pub(super) fn chosen(found: &[Found], config: &Config) -> Result<(Found, Needs), String> {
    let wanted = config.watchdog.wanted().ok_or("the configuration names none ([watchdog] device)")?;
    if config.watchdog_wanted() == Assured::None {
        return Err("mode = \"observe\" arms none".to_owned());
    }
    let device = watchdog_list::choose(found, &wanted, config.watchdog.allow_softdog)?;
    let needs = TimeToReset::of(&device, &config.state_dir);
    Ok((device, needs))
}

/// Runs one of them. `typed` is where the node's name comes from.
pub fn run(watchdog: &Watchdog, terminal: &mut Terminal<'_>, typed: impl BufRead) -> Exit {
    match &watchdog.command {
        Command::Query(query) => query::run(query, terminal),
        Command::Test(test) => test::run(test, terminal, typed),
    }
}
