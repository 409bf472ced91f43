//! End-to-end tests on real libvirt and real QEMU, without KVM and without touching the machine's own libvirt.

mod harness;

mod authority_crash;
mod helpers;
mod hook_matrix;
mod host_cached;
mod lifecycle;
mod testbed;
mod two_hosts;
mod unkillable;
