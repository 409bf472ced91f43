//! leasehold: a libvirt domain may run on a host only while that host holds the domain's ownership lease.
//!
//! | module | room |
//! |---|---|
//! | [`lease`] | the pure core: what may run, what must die, until when a watchdog may be fed |
//! | [`protocol`] | what travels between guard, authority and controller |
//! | [`sources`] | where contact and claims come from |
//! | [`node`] | this machine: clock, processes, cgroups, libvirt's files; the only `unsafe` |
//! | [`guard`] | the daemon: threads and their wiring |
//! | [`hook`], [`disks`] | libvirt's qemu hook, and which disks go through the page cache by its XML |
//! | [`local`] | the guard's unix socket |
//! | [`config`], [`cli`] | the configuration, the commands |
//! | [`authority`] | the reference authority: its book is pure, its server and store are behind a feature |
//! | [`simulate`] | all of the above that decides, in virtual time: what would happen if |
//!
//! Data flows one way: *sources and node → events → lease core → actions → node*.

pub mod authority;
#[cfg(feature = "node")]
pub mod cli;
#[cfg(feature = "node")]
pub mod config;
#[cfg(feature = "node")]
pub mod disks;
#[cfg(feature = "node")]
pub mod guard;
#[cfg(feature = "node")]
pub mod hook;
pub mod lease;
#[cfg(feature = "node")]
pub mod local;
#[cfg(feature = "node")]
pub mod node;
pub mod protocol;
#[cfg(feature = "node")]
pub mod simulate;
#[cfg(feature = "node")]
pub mod sources;
