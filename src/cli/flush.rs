//! `leasehold flush`: the guard's own child, which waits for the storage in its place.

use super::{Exit, Terminal};
use crate::node::flush;
use crate::node::traces::FileId;
use crate::note;
use clap::Args;
use std::path::PathBuf;

/// Write back what a dead domain left in the page cache; all of this host's without arguments.
#[derive(Debug, Args)]
pub struct Flush {
    /// Which file, as the guard noted it.
    #[arg(requires = "path")]
    id: Option<String>,
    /// Where it was.
    path: Option<PathBuf>,
}

/// Runs the command: 0 when all is on the storage, 1 with why not. May take for ever.
pub fn run(flush: &Flush, terminal: &mut Terminal<'_>) -> Exit {
    let done = match (&flush.id, &flush.path) {
        (Some(id), Some(path)) => serde_json::from_str::<FileId>(id)
            .map_err(|error| format!("{id} names no file: {error}"))
            .and_then(|id| flush::here(id, path).map_err(|error| error.to_string())),
        _ => {
            nix::unistd::sync();
            Ok(())
        }
    };
    match done {
        Ok(()) => Exit::Done,
        Err(why) => {
            note!(terminal, "{why}");
            Exit::Refused
        }
    }
}
