//! End-to-end tests on real libvirt and real QEMU, without KVM and without touching the machine's own libvirt.

mod harness;

mod authority_crash;
mod d_state;
mod doctor;
mod guard_life;
mod helpers;
mod hook_liveness;
mod hook_matrix;
mod host_cached;
mod late_writes;
mod libvirtd;
mod lifecycle;
mod mass_kill;
mod matrix;
mod migration;
mod migration_faults;
mod names;
mod one_disk;
mod one_node_id;
mod planned_work;
mod revoked_while_starting;
mod saved_state;
mod stale;
mod stolen_time;
mod testbed;
mod two_hosts;
