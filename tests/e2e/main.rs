//! End-to-end tests on real libvirt and real QEMU, without KVM and without touching the machine's own libvirt.

mod harness;

mod authority_crash;
mod hook_matrix;
mod lifecycle;
mod mass_kill;
mod one_node_id;
mod planned_work;
mod revoked_while_starting;
mod stale;
mod stolen_time;
mod testbed;
mod two_hosts;
