//! End-to-end tests on real libvirt and real QEMU, without KVM and without touching the machine's own libvirt.

mod harness;

mod authority_crash;
mod guard_life;
mod hook_liveness;
mod hook_matrix;
mod libvirtd;
mod lifecycle;
mod names;
mod saved_state;
mod testbed;
mod two_hosts;
