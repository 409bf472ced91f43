//! `leasehold simulate`: what would happen if, as a timeline.

use crate::simulate::campaign;
use crate::simulate::script::{MAX_SCRIPT, Script};
use crate::simulate::simulate;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a scenario in virtual time and show what would happen
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The scenario: a script, a directory with a file `script`, or `-` for standard input
    #[arg(value_name = "SCENARIO", required_unless_present = "random")]
    scenario: Option<PathBuf>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// Run this many schedules of drawn faults instead, by all processors
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "json"])]
    random: Option<u64>,
    /// The seed of the first of them
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "random")]
    seed: u64,
}

/// What would happen if: a scenario's timeline and verdict, or those of a great many drawn ones.
///
/// Exit status: 0: no promise was broken and all is as the script expects; 1: not so; 2: there is no such scenario, or its
/// script is not understood.
///
/// # Errors
/// Only what writing to `out` or `err` gives.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    if let Some(schedules) = args.random {
        return random(args.seed, schedules, out);
    }
    let path = args.scenario.as_deref().unwrap_or(Path::new("-"));
    let done = read(path)
        .map_err(|error| format!("cannot read the scenario {}: {error}", path.display()))
        .and_then(|text| Script::parse(&text).map_err(|error| format!("{}: {error}", path.display())))
        .and_then(|script| simulate(&script).map_err(|error| format!("{}: {error}", path.display())));
    let report = match done {
        Ok(report) => report,
        Err(sentence) => {
            writeln!(err, "leasehold: {sentence}")?;
            return Ok(ExitCode::from(2));
        }
    };
    if args.json {
        writeln!(out, "{}", report.json()?)?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    Ok(if report.is_safe() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn random(seed: u64, schedules: u64, out: &mut dyn Write) -> io::Result<ExitCode> {
    let (figures, broken) = campaign::run(seed, schedules);
    out.write_all(figures.text().as_bytes())?;
    match broken {
        None => {
            writeln!(out, "safe: no promise was broken")?;
            Ok(ExitCode::SUCCESS)
        }
        Some(broken) => {
            writeln!(out, "\nNOT SAFE: {broken}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One more than is taken, so that too long is noticed.
    let most = MAX_SCRIPT as u64 + 1;
    if path == Path::new("-") {
        io::stdin().lock().take(most).read_to_string(&mut text)?;
    } else {
        let script = if path.is_dir() { path.join("script") } else { path.to_owned() };
        File::open(script)?.take(most).read_to_string(&mut text)?;
    }
    Ok(text)
}
