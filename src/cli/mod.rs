//! One file per command. Each has its arguments and a `run` that writes to what it is given.

pub mod check_config;
pub mod timing;
