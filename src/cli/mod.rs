//! The commands, one file each. A command gets its parsed arguments and a [`Terminal`], and returns an [`Exit`].

pub mod check_config;
pub mod controller;
pub mod doctor;
pub mod drain;
pub mod fence;
pub mod flush;
pub mod guard;
pub mod lease;
pub mod migrate;
pub mod node;
pub mod simulate;
pub mod status;
pub mod timing;
mod waiting;
pub mod watchdog;
pub mod why;

use crate::hook;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::fmt;
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
    Doctor(doctor::Args),
    Timing(timing::Args),
    Simulate(simulate::Args),
    CheckConfig(check_config::Args),
    Lease(lease::Lease),
    Migrate(migrate::Migrate),
    Fence(fence::Fence),
    Unfence(fence::Unfence),
    Node(node::Node),
    Drain(drain::Drain),
    Undrain(drain::Undrain),
    Watchdog(watchdog::Watchdog),
    Why(why::Why),
    #[command(hide = true)]
    Flush(flush::Flush),
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
            return end(guard::run(args, &mut io::stderr()));
        }
        Command::Status(args) => status::run(args, &mut out, &mut err),
        Command::Doctor(args) => return doctor::run(args, &mut Terminal::stdio()).into(),
        Command::Timing(args) => timing::run(args, &mut out, &mut err),
        Command::Simulate(args) => {
            // Nothing held: what runs beside this thread may have to say why it panics.
            drop((out, err));
            return end(simulate::run(args, &mut io::stdout(), &mut io::stderr()));
        }
        Command::CheckConfig(args) => check_config::run(args, &mut out, &mut err),
        Command::Lease(args) => return lease::run(args, &mut Terminal::stdio()).into(),
        Command::Migrate(args) => return migrate::run(args, &mut Terminal::stdio()).into(),
        Command::Fence(args) => return fence::run(args, &mut Terminal::stdio()).into(),
        Command::Unfence(args) => return fence::run_unfence(args, &mut Terminal::stdio()).into(),
        Command::Node(args) => return node::run(args, &mut Terminal::stdio()).into(),
        Command::Drain(args) => return drain::run(args, &mut Terminal::stdio(), io::stdin().lock()).into(),
        Command::Undrain(args) => return drain::run_undrain(args, &mut Terminal::stdio()).into(),
        Command::Watchdog(args) => return watchdog::run(args, &mut Terminal::stdio(), io::stdin().lock()).into(),
        Command::Why(args) => return why::run(args, &mut Terminal::stdio()).into(),
        Command::Flush(args) => return flush::run(args, &mut Terminal::stdio()).into(),
        Command::Hook { arguments } => return hook::run(arguments),
    };
    let done = done.and_then(|code| out.flush().map(|()| code));
    end(done)
}

/// A reader that closed its pipe has seen enough.
fn end(done: io::Result<ExitCode>) -> ExitCode {
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

/// Where a command writes. A closed pipe is nobody's error: what cannot be written is dropped.
pub struct Terminal<'a> {
    out: Box<dyn Write + 'a>,
    err: Box<dyn Write + 'a>,
}

impl<'a> Terminal<'a> {
    /// Standard output and standard error.
    pub fn stdio() -> Terminal<'static> {
        Terminal::new(io::stdout(), io::stderr())
    }

    /// Any two writers, for tests.
    pub fn new(out: impl Write + 'a, err: impl Write + 'a) -> Terminal<'a> {
        Terminal { out: Box::new(out), err: Box::new(err) }
    }

    /// One line of the result.
    pub fn out(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
    }

    /// One line beside the result: progress, errors.
    pub fn note(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(self.err, "{line}").and_then(|()| self.err.flush());
    }

    /// A value as one JSON document.
    pub fn json(&mut self, value: &impl serde::Serialize) {
        match serde_json::to_string_pretty(value) {
            Ok(text) => self.out(format_args!("{text}")),
            Err(e) => self.note(format_args!("leasehold: cannot write JSON: {e}")),
        }
    }

    /// Columns as wide as their widest cell; the first row is the head.
    pub fn table<const N: usize>(&mut self, rows: &[[String; N]]) {
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..N).map(width).collect();
        for row in rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            self.out(format_args!("{}", line.trim_end()));
        }
    }
}

/// Prints a line of the result, and never panics on a closed pipe.
#[macro_export]
macro_rules! out {
    ($terminal:expr, $($arg:tt)*) => { $terminal.out(format_args!($($arg)*)) };
}

/// Prints a line of progress or an error on standard error, and never panics on a closed pipe.
#[macro_export]
macro_rules! note {
    ($terminal:expr, $($arg:tt)*) => { $terminal.note(format_args!($($arg)*)) };
}

/// How a command ended. Wrong arguments end with 2, which is clap's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, and where a command waits: safe.
    Done,
    /// 1: refused, or there was no answer.
    Refused,
    /// 3: the time given was over before it was safe.
    NotYet,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Refused => 1,
            Exit::NotYet => 3,
        })
    }
}

/// Runs a command and prints the sentence of its failure.
fn finish(terminal: &mut Terminal<'_>, done: Result<Exit, String>) -> Exit {
    done.unwrap_or_else(|sentence| {
        note!(terminal, "leasehold: {sentence}");
        Exit::Refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_nobodys_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut terminal = Terminal::new(writer, io::sink());
        out!(terminal, "nobody reads {}", "this");
        terminal.json(&1);
    }

    #[test]
    fn a_table_is_as_wide_as_its_widest_cell() {
        let mut bytes = Vec::new();
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        Terminal::new(&mut bytes, io::sink()).table(&[row("NODE", "STATE"), row("n1.example", "held"), row("ü", "")]);
        assert_eq!(String::from_utf8(bytes).unwrap(), "NODE        STATE\nn1.example  held\nü\n");
    }
}
