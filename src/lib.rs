//! leasehold: a libvirt domain may run on a host only while that host holds the domain's ownership lease.

pub mod cli;
pub mod config;
pub mod lease;
pub mod protocol;
