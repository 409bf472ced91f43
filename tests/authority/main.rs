//! The reference authority as a process, over real HTTP: crashes, bounds, strangers, and the commands against it.
#![cfg(feature = "leasehold-authority")]

mod bounds;
mod commands;
mod crashes;
mod harness;
mod strangers;
