//! Getting the processor and the memory when everything else on the host wants them too: a guard that waits its turn
//! behind two hundred busy guests renews late and kills late.

use super::sys;
use nix::sys::mman::{MlockAllFlags, mlockall};
use std::io;

/// The lowest of the real-time priorities: ahead of every ordinary thread, behind the kernel's own (sched(7)).
const LOWEST_REAL_TIME: u32 = 1;
/// IOPRIO_CLASS_BE (include/uapi/linux/ioprio.h), of every process that asks for nothing else.
const BEST_EFFORT: u16 = 2;
/// The most favourable nice value (setpriority(2)).
const MOST_FAVOURED: i32 = -20;

/// Puts the calling thread, and every thread and child it starts from now on, ahead of ordinary ones: in a contest it
/// gets 88 times the share of a process of nice 0 (`sched_prio_to_weight`, kernel/sched/core.c).
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE and with an RLIMIT_NICE that forbids it.
pub fn favour_this_thread() -> io::Result<()> {
    sys::set_scheduling(libc::SCHED_OTHER, MOST_FAVOURED, 0, 0)
}

/// Has disks serve the calling thread, and every thread and child it starts from now on, first among ordinary ones
/// (IOPRIO_CLASS_BE, level 0), where their scheduler looks at that (bfq, mq-deadline). Good for what is written to disk: the
/// fence record, what was measured of the watchdog, the flush of dead domains' disks. The feed thread does no such thing, and
/// the ledger is in memory. The kernel takes the same from a nice value of -20 by itself; this needs no right, so a guard
/// that may not be favoured has it too. Not the real-time class: a flush of gigabytes would starve the guests.
///
/// # Errors
/// None that these values can give.
pub fn favour_this_threads_disk_access() -> io::Result<()> {
    sys::set_io_priority(BEST_EFFORT, 0)
}

/// Lets the calling thread, and nothing it starts, run as soon as it can run at all: SCHED_RR, the lowest real-time
/// priority, with SCHED_RESET_ON_FORK. For threads that do little and must not wait.
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE, and in a cgroup without real-time runtime (CONFIG_RT_GROUP_SCHED).
pub fn run_this_thread_first() -> io::Result<()> {
    sys::set_scheduling(libc::SCHED_RR, 0, LOWEST_REAL_TIME, libc::SCHED_FLAG_RESET_ON_FORK as u64)
}

/// Keeps everything this process has and will have in memory: a thread that waits for a page to be read from a disk that
/// hangs feeds no watchdog (mlockall(2), MCL_CURRENT and MCL_FUTURE).
///
/// # Errors
/// `EPERM` or `ENOMEM` without CAP_IPC_LOCK and with an RLIMIT_MEMLOCK that is too small.
pub fn stay_in_memory() -> io::Result<()> {
    Ok(mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)?)
}

/// Keeps the kernel from killing this process for memory: a guest that eats it all must not take the guard along
/// (proc_pid_oom_score_adj(5)). Children inherit it.
///
/// # Errors
/// `EACCES` without CAP_SYS_RESOURCE.
pub fn survive_lack_of_memory() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "-1000")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields 19 (nice), 40 (rt_priority) and 41 (policy) of /proc/thread-self/stat (proc_pid_stat(5)).
    fn scheduling_of_this_thread() -> (i32, u32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        (fields[16].parse().unwrap(), fields[37].parse().unwrap(), fields[38].trim().parse().unwrap())
    }

    /// Runs in a thread of its own, so that the test's is left as it was; nothing where that is not allowed.
    fn in_a_thread(set: fn() -> io::Result<()>, look: fn()) {
        std::thread::spawn(move || match set() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            done => {
                done.unwrap();
                look();
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_favoured_threads_threads_are_favoured_too() {
        in_a_thread(favour_this_thread, || {
            std::thread::spawn(|| assert_eq!(scheduling_of_this_thread(), (-20, 0, libc::SCHED_OTHER))).join().unwrap();
        });
    }

    #[test]
    fn a_thread_that_is_served_first_by_disks_hands_that_on() {
        in_a_thread(favour_this_threads_disk_access, || {
            let of_this_thread = || sys::io_priority().unwrap();
            assert_eq!(of_this_thread(), (BEST_EFFORT, 0));
            assert_eq!(std::thread::spawn(of_this_thread).join().unwrap(), (BEST_EFFORT, 0));
        });
    }

    #[test]
    fn a_real_time_thread_does_not_hand_its_priority_on() {
        in_a_thread(run_this_thread_first, || {
            assert_eq!(scheduling_of_this_thread().1, LOWEST_REAL_TIME);
            std::thread::spawn(|| assert_eq!(scheduling_of_this_thread(), (0, 0, libc::SCHED_OTHER))).join().unwrap();
        });
    }
}
