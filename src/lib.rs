//! leasehold: a libvirt domain may run on a host only while that host holds the domain's ownership lease.

#[cfg(feature = "leasehold-authority")]
pub mod authority;
pub mod cli;
pub mod lease;
pub mod protocol;
pub mod sources;
