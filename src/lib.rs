//! leasehold: a libvirt domain may run on a host only while that host holds the domain's ownership lease.

pub mod lease;
pub mod node;
pub mod protocol;
