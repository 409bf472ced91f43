//! `leasehold guard`: the daemon, in the foreground.

use crate::config::{self, Config};
use crate::guard;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the guard of this node, in the foreground.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[arg(long, value_name = "PATH", default_value = config::PATH)]
    pub config: PathBuf,
}

/// Returns only if the guard could not start.
pub fn run(args: &Args, err: &mut dyn Write) -> io::Result<ExitCode> {
    let why = match Config::load(&args.config) {
        Ok(config) => guard::run(&config),
        Err(error) => error.to_string(),
    };
    writeln!(err, "leasehold: the guard cannot start: {why}")?;
    Ok(ExitCode::FAILURE)
}
