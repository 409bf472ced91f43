//! Real hosts for the end-to-end tests: libvirtd and QEMU in namespaces, links that can be cut, an authority.
//!
//! A test makes a [`World`] and everything else from it. Dropping it, also by a panic, ends every process by its
//! namespace and removes its groups and files.

#![allow(dead_code, unused_imports, reason = "a harness offers what some of its users leave unused")]

mod domain;
mod file_server;
mod host;
mod journal;
mod link;
mod machine;
mod neighbour;
mod network_storage;
mod pair;
mod process;
mod qmp;
mod served;
mod signals;
mod site;
mod space;
mod storage;
mod wait;
mod world;
mod writers;

pub use domain::{Domain, all_qemus, qemus};
pub use file_server::FileServer;
pub use host::{Frozen as FrozenHost, Host};
pub use journal::Journal;
pub use link::{Direction, Link};
pub use machine::{BOUND, FEED, Machine, RENEW};
pub use neighbour::{Neighbour, Place};
pub use network_storage::NetworkStorage;
pub use pair::Pair;
pub use process::{Finished, Process};
pub use qmp::Watch;
pub use served::{Served, Way};
pub use signals::SigkillTrace;
pub use site::{Node, Site, expiry};
pub use space::Space;
pub use storage::{Frozen, LoopDevice, Storage, stored};
pub use wait::{Stopwatch, wait_until};
pub use world::{World, fill_the_machine, leasehold, tell};
