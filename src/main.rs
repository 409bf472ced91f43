//! The node's binary: the hook, the guard and the command line in one file.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold::cli::main()
}
