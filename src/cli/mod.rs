//! One file per command. Each has its arguments and a `run` that writes to what it is given.

pub mod check_config;
pub mod guard;
pub mod status;
pub mod timing;

use crate::hook;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// A libvirt domain runs on a host only while that host holds the domain's ownership lease.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Guard(guard::Args),
    Status(status::Args),
    Timing(timing::Args),
    CheckConfig(check_config::Args),
    /// Be libvirt's qemu hook: NAME OPERATION SUB-OPERATION EXTRA, the domain's XML on stdin.
    Hook {
        /// libvirt's four arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The whole program.
pub fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // Before anything else is read or parsed: libvirt holds the domain's lock while it waits.
    if called_as_hook(&arguments) {
        return hook::run(&arguments[1..]);
    }
    if arguments.get(1).is_some_and(|first| first == "hook") && arguments.len() > 2 {
        return hook::run(&arguments.split_off(2));
    }
    let cli = Cli::parse();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    let done = match &cli.command {
        Command::Guard(args) => {
            drop((out, err));
            return finish(guard::run(args, &mut io::stderr()));
        }
        Command::Status(args) => status::run(args, &mut out, &mut err),
        Command::Timing(args) => timing::run(args, &mut out, &mut err),
        Command::CheckConfig(args) => check_config::run(args, &mut out, &mut err),
        Command::Hook { arguments } => return hook::run(arguments),
    };
    let done = done.and_then(|code| out.flush().map(|()| code));
    finish(done)
}

/// A reader that closed its pipe has seen enough.
fn finish(done: io::Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// By the hook's name, or by whatever name from libvirt's directory of hooks: an operator may call the link there as
/// the order of the hooks needs it, and a hook that took its arguments for a command line would refuse every start.
fn called_as_hook(arguments: &[OsString]) -> bool {
    let path = arguments.first().map(Path::new);
    let name = path.and_then(Path::file_name);
    let directory = path.and_then(Path::parent).and_then(Path::file_name);
    name.is_some_and(|name| name == "leasehold-hook") || directory.is_some_and(|directory| directory == "qemu.d")
}
