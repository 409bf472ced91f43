//! One file per command. Each has its arguments and a `run` that writes to what it is given.
