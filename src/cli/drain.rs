//! `leasehold drain` and `leasehold undrain`: planned work on this host.

use super::lease::Time;
use super::{Exit, Terminal};
use crate::lease::view::{DrainView, StatusView};
use crate::local::{self, Reply, Request};
use crate::{note, out};
use clap::Args;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The core answers within a turn; a guard that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at what still runs.
const PAUSE: Duration = Duration::from_millis(500);
/// What a guard that is restarted gets to answer again.
const RESTART: Duration = Duration::from_secs(30);
/// The longest name typed in.
const MAX_NAME: u64 = 256;

/// Let nothing start here any more; once nothing enforced runs, the watchdog is stopped.
#[derive(Debug, Args)]
pub struct Drain {
    /// Return only when nothing enforced runs any more and the watchdog, if there is one, is stopped
    #[arg(long)]
    wait: bool,
    /// Stop the watchdog now, although domains may run; asks for the node's name on standard input. Nothing then ends
    /// what cannot be killed, and this node's bound is no promise
    #[arg(long, conflicts_with = "wait")]
    force_disarm: bool,
    #[command(flatten)]
    time: Time,
    #[command(flatten)]
    guard: Guard,
}

/// Let domains start here again, and arm the watchdog again.
#[derive(Debug, Args)]
pub struct Undrain {
    #[command(flatten)]
    guard: Guard,
}

#[derive(Debug, Args)]
struct Guard {
    /// The guard's run directory
    #[arg(long, value_name = "DIR", default_value = local::RUN_DIR)]
    run_dir: PathBuf,
}

/// Runs `drain`: 0 when done, 1 when there is no guard or the name was not the node's, 3 when the time was over first.
pub fn run(drain: &Drain, terminal: &mut Terminal<'_>, typed: impl BufRead) -> Exit {
    match drained(drain, terminal, typed) {
        Ok(exit) => exit,
        Err(why) => {
            note!(terminal, "leasehold: {why}");
            Exit::Refused
        }
    }
}

/// Runs `undrain`: 0, or 1 when there is no guard.
pub fn run_undrain(undrain: &Undrain, terminal: &mut Terminal<'_>) -> Exit {
    match ask(&undrain.guard.run_dir, &Request::Drain(false)) {
        Ok(view) => {
            out!(terminal, "node {}: domains may start again", view.node);
            Exit::Done
        }
        Err(why) => {
            note!(terminal, "leasehold: {why}");
            Exit::Refused
        }
    }
}

fn drained(drain: &Drain, terminal: &mut Terminal<'_>, typed: impl BufRead) -> Result<Exit, String> {
    let run_dir = &drain.guard.run_dir;
    if drain.force_disarm {
        let view = ask(run_dir, &Request::Status)?;
        let node = view.node.to_string();
        note!(
            terminal,
            "{} Their bound will be no promise, and nothing will reset this host. Type the node's name to stop the watchdog:",
            running(&view)
        );
        let mut line = String::new();
        typed.take(MAX_NAME).read_line(&mut line).map_err(|error| format!("no name could be read: {error}"))?;
        if line.trim() != node {
            return Err(format!("'{}' is not this node's name; nothing was changed", line.trim().escape_debug()));
        }
        ask(run_dir, &Request::ForceDisarm)?;
        out!(
            terminal,
            "node {node}: drained, and its watchdog is being stopped by your word; `leasehold undrain` ends both"
        );
        return Ok(Exit::Done);
    }
    let mut view = ask(run_dir, &Request::Drain(true))?;
    out!(terminal, "node {}: nothing starts here until `leasehold undrain`. {}", view.node, running(&view));
    let (start, mut heard) = (Instant::now(), Instant::now());
    while drain.wait && !is_over(&view) {
        if start.elapsed() >= drain.time.span() {
            note!(terminal, "leasehold: not empty in the time given. {}", running(&view));
            return Ok(Exit::NotYet);
        }
        std::thread::sleep(PAUSE);
        // The drain is the node's: a guard that is restarted meanwhile goes on with it.
        match ask(run_dir, &Request::Status) {
            Ok(now) => (view, heard) = (now, Instant::now()),
            Err(why) if heard.elapsed() >= RESTART => return Err(why),
            Err(_) => {}
        }
    }
    if is_over(&view) {
        let stopped = if view.watchdog.is_some() { " and its watchdog is stopped" } else { "" };
        out!(terminal, "node {}: empty{stopped}. The guard may be stopped", view.node);
    }
    Ok(Exit::Done)
}

fn is_over(view: &StatusView) -> bool {
    view.drained == Some(DrainView::Empty)
        && view
            .watchdog
            .as_ref()
            .is_none_or(|watchdog| matches!(watchdog.state.as_str(), "disarmed" | "waiting" | "refused"))
}

fn running(view: &StatusView) -> String {
    let alive: Vec<String> = view
        .domains
        .iter()
        .filter(|domain| !domain.pids.is_empty())
        .map(|domain| format!("{} ({})", domain.name.escape_debug(), domain.domain))
        .collect();
    match alive.as_slice() {
        [] => "No domain runs.".to_owned(),
        [one] => format!("Domain {one} runs."),
        [first, ..] => format!("{} domains run, {first} among them.", alive.len()),
    }
}

fn ask(run_dir: &Path, request: &Request) -> Result<StatusView, String> {
    match local::ask(run_dir, request, PATIENCE) {
        Ok(Reply::Status(view)) => Ok(*view),
        Ok(Reply::Bad(why)) => Err(why),
        Ok(_) => Err("the guard answered something else: is it of another version?".to_owned()),
        Err(error) => {
            let path = local::socket_path(run_dir);
            Err(format!("no guard answers on {} ({error}). Start it: systemctl start leasehold", path.display()))
        }
    }
}
