//! Real hosts for the end-to-end tests: libvirtd and QEMU in namespaces, links that can be cut, an authority.
//!
//! A test makes a [`World`] and everything else from it. Dropping it, also by a panic, ends every process by its
//! namespace and removes its groups and files.

#![allow(dead_code, unused_imports, reason = "a harness offers what some of its users leave unused")]

mod domain;
mod host;
mod link;
mod process;
mod site;
mod space;
mod storage;
mod wait;
mod world;

pub use domain::{Domain, qemus};
pub use host::Host;
pub use link::{Direction, Link};
pub use process::{Finished, Process};
pub use site::{Node, Site};
pub use space::Space;
pub use storage::{Frozen, LoopDevice, Storage, stored};
pub use wait::{Stopwatch, wait_until};
pub use world::{World, leasehold, tell};
