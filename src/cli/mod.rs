//! The commands, one file each. A command gets its parsed arguments and a [`Terminal`], and returns an [`Exit`].

pub mod controller;
pub mod fence;
pub mod lease;
pub mod node;
mod waiting;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

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
