//! The one clock: CLOCK_BOOTTIME, which runs through suspend and is never stepped (rule 1).

use crate::lease::time::BootTime;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The present instant.
///
/// # Panics
/// Never on Linux: clock_gettime(2) cannot fail for a clock that the kernel has, and CLOCK_BOOTTIME is there since 2.6.39.
pub fn now() -> BootTime {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has CLOCK_BOOTTIME");
    BootTime::ZERO + Duration::new(time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs() as u32)
}

/// Sleeps until an instant, also across suspend: one system call, no allocation. An instant that has passed is over at
/// once; a signal may end it early.
pub fn sleep_until(when: BootTime) {
    let at = TimeSpec::from_duration(Duration::from_nanos(when.as_nanos()));
    // Ended early is woken early: the caller looks at the clock in any case.
    let _ = clock_nanosleep(ClockId::CLOCK_BOOTTIME, ClockNanosleepFlags::TIMER_ABSTIME, &at);
}

/// A timer that `poll` can wait for: its descriptor becomes readable at an instant of CLOCK_BOOTTIME, also if the host
/// slept across it.
#[derive(Debug)]
pub struct BootTimer(TimerFd);

impl BootTimer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// No descriptors or memory left.
    pub fn new() -> io::Result<BootTimer> {
        Ok(BootTimer(TimerFd::new(TimerClock::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?))
    }

    /// Becomes readable at `when`, at once if that has passed, never for [`BootTime::NEVER`]. Replaces what was set.
    ///
    /// # Errors
    /// None that a valid timer can give.
    pub fn set(&self, when: BootTime) -> io::Result<()> {
        if when == BootTime::NEVER {
            return self.clear();
        }
        // Zero would mean "not set" to timerfd_settime(2).
        let nanos = when.as_nanos().max(1);
        let at = TimeSpec::from_duration(Duration::from_nanos(nanos));
        Ok(self.0.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
    }

    /// Takes back what was set, and what has already expired.
    ///
    /// # Errors
    /// None that a valid timer can give.
    pub fn clear(&self) -> io::Result<()> {
        Ok(self.0.unset()?)
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How long `poll` may wait for `until`: rounded up to whole milliseconds, so that it never wakes just before; `None`
/// (for ever) for [`BootTime::NEVER`]. Only for waits that need not survive suspend: poll(2) counts CLOCK_MONOTONIC.
pub fn poll_timeout(until: BootTime) -> nix::poll::PollTimeout {
    use nix::poll::PollTimeout;
    if until == BootTime::NEVER {
        return PollTimeout::NONE;
    }
    let millis = until.left(now()).as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(i32::try_from(millis).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn boottime_does_not_go_back() {
        let first = now();
        assert!(now() >= first);
    }

    fn readable(timer: &BootTimer, timeout: PollTimeout) -> bool {
        poll(&mut [PollFd::new(timer.as_fd(), PollFlags::POLLIN)], timeout).unwrap() == 1
    }

    #[test]
    fn the_clock_is_the_kernels_uptime() {
        let uptime: f64 = std::fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((now().as_nanos() as f64 / 1e9 - uptime).abs() < 1.0);
    }

    #[test]
    fn a_timer_fires_at_its_instant_and_not_before() {
        let timer = BootTimer::new().unwrap();
        let when = now() + Duration::from_millis(30);
        timer.set(when).unwrap();
        assert!(readable(&timer, PollTimeout::from(5000u16)));
        assert!(now() >= when);
    }

    #[test]
    fn an_instant_that_has_passed_fires_at_once_and_a_cleared_timer_never() {
        let timer = BootTimer::new().unwrap();
        for past in [BootTime::ZERO, now() - Duration::from_secs(1)] {
            timer.set(past).unwrap();
            assert!(readable(&timer, PollTimeout::from(5000u16)));
        }
        timer.clear().unwrap();
        assert!(!readable(&timer, PollTimeout::ZERO));
        timer.set(BootTime::NEVER).unwrap();
        assert!(!readable(&timer, PollTimeout::ZERO));
    }
}
