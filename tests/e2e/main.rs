//! End-to-end tests on real libvirt and real QEMU, without KVM and without touching the machine's own libvirt.

mod doctor;
mod harness;

mod authority_crash;
mod hook_matrix;
mod late_writes;
mod lifecycle;
mod testbed;
mod two_hosts;
