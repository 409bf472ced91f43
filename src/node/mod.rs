//! Everything leasehold knows of this machine, and everything it does to it. The only place with `unsafe`.
//!
//! | file | room |
//! |---|---|
//! | [`clock`] | CLOCK_BOOTTIME, and a timer on it that `poll` can wait for |
//! | [`host`] | boot id, host name, which machine this is |
//! | [`process`] | one process, immune to reused pids |
//! | [`domains`] | which domains run here, found without libvirtd |
//! | [`command_line`], [`state_files`] | what a QEMU's arguments and libvirt's files say of it |
//! | [`cgroup`] | a domain's own cgroup: kill all in it, is it empty |
//! | [`kill`] | the kill of last resort: memory and kernel only (rule 6) |
//! | [`traces`] | what of a process outlives it: page cache, TCP queues, requests of io_urings |
//! | [`late_writes`] | the same told beforehand, and the kernel's own clients |
//! | [`gone`] | the proof that a process is gone and silent (rule 7) |
//! | [`stuck`] | what a process that will not die waits for |
//! | [`libvirt`] | the polite way, through a `virsh` child with a deadline |
//! | [`realtime`] | running when every processor is busy |
//! | [`watchdog`], [`watchdog_list`] | the hardware's own reset, fed only under a permit (rules 4 and 5) |
//! | [`watchdog_marks`], [`watchdog_measured`] | how long it really takes, measured across the reset |
//! | [`last_resort`] | the kernel's own reset, where the watchdog's did not come |
//! | [`systemd`] | sd_notify, and the descriptors a service manager keeps |
//! | [`hook_audit`] | is libvirt's hook ours and in force (rule 10) |
//! | [`watch`], [`lock`], [`files`] | inotify, one guard per node, whole files or none |

pub mod cgroup;
mod cgroup_mounts;
pub mod clock;
pub mod command_line;
mod descriptors;
pub mod domains;
pub mod features;
pub mod fence_journal;
pub mod files;
pub mod flush;
pub mod gone;
pub mod hook_audit;
mod hook_files;
pub mod host;
pub mod kill;
pub mod kmsg;
pub mod last_resort;
pub mod late_writes;
pub mod libvirt;
pub mod lock;
mod locks;
mod mounts;
pub mod process;
pub mod realtime;
mod sock_diag;
pub mod state_files;
pub mod stuck;
mod sys;
pub mod systemd;
mod tcp_table;
pub mod traces;
mod transport;
pub mod wall;
pub mod watch;
pub mod watchdog;
pub mod watchdog_list;
pub mod watchdog_marks;
pub mod watchdog_measured;

#[cfg(test)]
mod testing;
