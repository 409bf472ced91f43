//! The feed thread: it reads the permit and the clock, and feeds the watchdog or does not (rules 4 and 5). Nothing else
//! is decided here, and nothing that runs here allocates, locks or logs.

use super::core::Permit;
use crate::lease::gone::DisarmOrder;
use crate::lease::promise::Restraint;
use crate::lease::time::BootTime;
use crate::node::watchdog::{ArmError, SHORT_TIMEOUTS, Watchdog};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Between two looks for the first permit, which the first question of a guard waits for.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// Who keeps the device open when the guard dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Keeper {
    /// Nobody. The guard's death is a close, and a close feeds: so it is closed when the permit passes, before E.
    Nobody = 0,
    /// The service manager's fd store: no death of the guard closes it, so it is never closed on purpose either.
    FdStore = 1,
}

impl Keeper {
    /// As the status says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Keeper::Nobody => "nobody",
            Keeper::FdStore => "fd store",
        }
    }
}

/// What has become of the device, for whoever may block to tell of it.
#[derive(Debug, Default)]
pub struct FeedReport {
    state: AtomicU8,
    keeper: AtomicU8,
    timeout: AtomicU32,
    asked: AtomicU32,
    last_feed: AtomicU64,
    longest_gap: AtomicU64,
    missed: AtomicU64,
    errno: AtomicU32,
}

/// Where the device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FeedState {
    /// Not opened: there was no permit yet.
    Waiting = 0,
    /// Armed and fed.
    Armed = 1,
    /// The permit has passed: open and not fed.
    Starving = 2,
    /// The permit has passed: closed without a goodbye, and running out.
    Abandoned = 3,
    /// Stopped, with the proof that nothing is left to protect.
    Disarmed = 4,
    /// It cannot be armed.
    Refused = 5,
    /// It was armed and its driver fails.
    Failing = 6,
    /// The reset is decided on: open, with the shortest timeout. Nothing feeds or stops it any more.
    Fencing = 7,
}

impl FeedState {
    /// It is armed and nobody feeds it.
    pub fn is_running_out(self) -> bool {
        matches!(self, FeedState::Starving | FeedState::Abandoned | FeedState::Fencing)
    }

    /// As the status says it.
    pub fn as_str(self) -> &'static str {
        match self {
            FeedState::Waiting => "waiting",
            FeedState::Armed => "armed",
            FeedState::Starving => "starving",
            FeedState::Abandoned => "abandoned",
            FeedState::Disarmed => "disarmed",
            FeedState::Refused => "refused",
            FeedState::Failing => "failing",
            FeedState::Fencing => "fencing",
        }
    }
}

impl FeedReport {
    /// Where the device stands.
    pub fn state(&self) -> FeedState {
        match self.state.load(Ordering::Acquire) {
            1 => FeedState::Armed,
            2 => FeedState::Starving,
            3 => FeedState::Abandoned,
            4 => FeedState::Disarmed,
            5 => FeedState::Refused,
            6 => FeedState::Failing,
            7 => FeedState::Fencing,
            _ => FeedState::Waiting,
        }
    }

    /// Who keeps it open when the guard dies.
    pub fn keeper(&self) -> Keeper {
        match self.keeper.load(Ordering::Acquire) {
            1 => Keeper::FdStore,
            _ => Keeper::Nobody,
        }
    }

    /// Who does from now on.
    pub fn kept_by(&self, keeper: Keeper) {
        self.keeper.store(keeper as u8, Ordering::Release);
    }

    /// The timeout read back, in seconds; zero before it was ever armed.
    pub fn timeout(&self) -> u32 {
        self.timeout.load(Ordering::Acquire)
    }

    /// The timeout that the device was asked for last, in seconds, of which the other is what it took.
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// The last feed, on purpose or by a close; zero: none.
    pub fn last_feed(&self) -> BootTime {
        BootTime::from_nanos(self.last_feed.load(Ordering::Acquire))
    }

    /// The longest time between two feeds under one permit since the guard started.
    pub fn longest_gap(&self) -> Duration {
        Duration::from_nanos(self.longest_gap.load(Ordering::Acquire))
    }

    /// Beats that came later than half a period.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }

    /// The error number of what failed last; zero: nothing.
    pub fn errno(&self) -> i32 {
        self.errno.load(Ordering::Acquire).cast_signed()
    }
}

/// What a feeder is told once.
#[derive(Debug, Clone, Copy)]
pub struct Orders {
    /// W as asked for, in seconds.
    pub timeout: u32,
    /// A shorter one for the time being.
    pub restraint: Option<Restraint>,
    /// P.
    pub period: Duration,
    /// What the device needs from its last feed to the reset with each of these short timeouts, in seconds.
    pub shortened: [(u32, Duration); SHORT_TIMEOUTS.len()],
    /// After the last feed, this long: the device should have fired, and the second way down is taken. `None`: never.
    pub last_resort: Option<Duration>,
}

impl Orders {
    /// The timeout to be asked for at this instant, in seconds; zero: the device may not be armed yet.
    pub fn timeout_at(&self, now: BootTime) -> u32 {
        self.restraint.filter(|restraint| now < restraint.until).map_or(self.timeout, |restraint| restraint.timeout)
    }
}

/// The thread's state. `now` is CLOCK_BOOTTIME, or a test's; `reset` is the second way down, or a test's.
pub struct Feeder<W, N, R> {
    device: W,
    orders: Orders,
    /// Where a duplicate goes for the service manager to keep.
    keep: Option<SyncSender<OwnedFd>>,
    state: FeedState,
    due: BootTime,
    now: N,
    reset: R,
}

impl<W: Watchdog, N: Fn() -> BootTime, R: FnMut()> Feeder<W, N, R> {
    /// A feeder of a device that is closed.
    pub fn new(device: W, orders: Orders, now: N, reset: R) -> Feeder<W, N, R> {
        Feeder { device, orders, keep: None, state: FeedState::Waiting, due: BootTime::ZERO, now, reset }
    }

    /// Sends a duplicate of the device there whenever it was armed.
    pub fn kept_by(self, keep: SyncSender<OwnedFd>) -> Feeder<W, N, R> {
        Feeder { keep: Some(keep), ..self }
    }

    /// A feeder of a device that the service manager kept open over an earlier guard's death, with this timeout, in
    /// seconds, as read back: nobody knows when it was fed last, and nothing but a permit feeds it again.
    pub fn adopting(
        (device, seconds): (W, u32),
        orders: Orders,
        report: &FeedReport,
        now: N,
        reset: R,
    ) -> Feeder<W, N, R> {
        let mut feeder = Feeder { state: FeedState::Starving, ..Feeder::new(device, orders, now, reset) };
        feeder.set_to(seconds, seconds, report);
        feeder
    }

    /// Its timeout as read back is what the bound is made of. A device that took less than it was asked for wants to be fed
    /// more often.
    fn set_to(&mut self, asked: u32, seconds: u32, report: &FeedReport) {
        report.timeout.store(seconds, Ordering::Release);
        report.asked.store(asked, Ordering::Release);
        self.orders.period = self.orders.period.min(Duration::from_secs(seconds.into()) / 4);
    }

    /// One turn. The next is due at the instant returned.
    pub fn beat(&mut self, permit: &Permit, disarm: &DisarmOrder, report: &FeedReport) -> BootTime {
        let now = (self.now)();
        if self.due > BootTime::ZERO && now.since(self.due) > self.orders.period / 2 && self.state == FeedState::Armed {
            report.missed.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(proof) = disarm.proof() {
            if matches!(self.state, FeedState::Armed | FeedState::Starving | FeedState::Failing) {
                match self.device.disarm(proof) {
                    Ok(()) => self.state = FeedState::Disarmed,
                    Err(error) => self.failed(&error, report),
                }
            }
        } else if now < permit.until() {
            self.protect(self.orders.timeout_at(now), permit, report);
        } else {
            self.let_go(now, permit, report);
        }
        report.state.store(self.state as u8, Ordering::Release);
        let until = permit.until();
        let untried = self.state == FeedState::Waiting && report.errno() == 0;
        self.due = now + if untried { FIRST_LOOK } else { self.orders.period };
        if self.state == FeedState::Armed && until > now { self.due.min(until) } else { self.due }
    }

    fn protect(&mut self, timeout: u32, permit: &Permit, report: &FeedReport) {
        let fed = match self.state {
            FeedState::Armed | FeedState::Starving | FeedState::Failing => {
                if timeout != report.asked() && timeout > 0 {
                    // A driver that does not take it keeps what it has, which is what the bound is made of.
                    let seconds = self.device.set_timeout(timeout).unwrap_or(report.timeout());
                    self.set_to(timeout, seconds, report);
                }
                self.device.feed()
            }
            FeedState::Refused | FeedState::Fencing => return,
            FeedState::Waiting | FeedState::Abandoned | FeedState::Disarmed if timeout == 0 => return,
            FeedState::Waiting | FeedState::Abandoned | FeedState::Disarmed => {
                match self.device.arm(timeout) {
                    Ok(seconds) => {
                        self.set_to(timeout, seconds, report);
                        if let (Some(keep), Some(duplicate)) = (&self.keep, self.device.duplicate()) {
                            // One at a time: it is armed again only after the last one was taken out. From here on it
                            // is on its way, and may be kept before anybody knows.
                            if keep.try_send(duplicate).is_ok() {
                                report.kept_by(Keeper::FdStore);
                            }
                        }
                        Ok(())
                    }
                    Err(why) => return self.refused(&why, report),
                }
            }
        };
        let after = (self.now)();
        match fed {
            Ok(()) => {
                let last = report.last_feed();
                if self.state == FeedState::Armed {
                    report.longest_gap.fetch_max(after.since(last).as_nanos() as u64, Ordering::AcqRel);
                }
                report.last_feed.store(after.as_nanos(), Ordering::Release);
                report.errno.store(0, Ordering::Release);
                self.state = FeedState::Armed;
            }
            Err(error) => self.failed(&error, report),
        }
        // rule 5: stopped between reading the permit and feeding, this thread has fed too late
        if after >= permit.until() {
            let _ = self.device.shorten();
            report.last_feed.store((self.now)().as_nanos(), Ordering::Release);
        }
    }

    /// The permit has passed, so something may live that must not.
    fn let_go(&mut self, now: BootTime, permit: &Permit, report: &FeedReport) {
        if self.state != FeedState::Armed {
            if self.state == FeedState::Starving && permit.fences() {
                self.cut_short(report);
            }
            let fed = report.last_feed();
            let overdue = |after| fed > BootTime::ZERO && now >= fed + after;
            if matches!(self.state, FeedState::Starving | FeedState::Abandoned | FeedState::Fencing)
                && self.orders.last_resort.is_some_and(overdue)
            {
                (self.reset)();
            }
            return;
        }
        // rule 5: a close is a feed. P after the permit is E: a thread that comes later than that leaves it open.
        if report.keeper() == Keeper::Nobody && now.since(permit.until()) < self.orders.period {
            self.device.abandon();
            report.last_feed.store((self.now)().as_nanos(), Ordering::Release);
            self.state = FeedState::Abandoned;
        } else {
            self.state = FeedState::Starving;
        }
    }

    /// The reset is decided on: with the shortest timeout it comes sooner. Setting one is a feed, so it is done only where
    /// the reset comes sooner also if this thread is held for P before it (rule 5). Of a device that was taken over nobody
    /// knows the last feed: it counts as the boot, long over.
    fn cut_short(&mut self, report: &FeedReport) {
        let shortest = self.device.shortest();
        let needs = self.orders.shortened.iter().find(|(seconds, _)| Some(*seconds) == shortest);
        let (Some(&(_, needs)), fed) = (needs, report.last_feed()) else { return };
        let due = fed + Duration::from_secs(report.timeout().into());
        if (self.now)() + self.orders.period + needs <= due && self.device.shorten().is_ok() {
            // Not noted as a feed: the second way down stays due when it was.
            self.state = FeedState::Fencing;
        }
    }

    fn refused(&mut self, why: &ArmError, report: &FeedReport) {
        let errno = match why {
            ArmError::Open(error) | ArmError::Timeout(error) => error.raw_os_error().unwrap_or(libc::EIO),
            ArmError::NoWatchdog => libc::ENOTTY,
            ArmError::StoppedByAnyClose => libc::EPERM,
        };
        report.errno.store(errno.cast_unsigned(), Ordering::Release);
        if !why.may_pass() {
            self.state = FeedState::Refused;
        }
    }

    fn failed(&mut self, error: &std::io::Error, report: &FeedReport) {
        report.errno.store(error.raw_os_error().unwrap_or(libc::EIO).cast_unsigned(), Ordering::Release);
        self.state = FeedState::Failing;
    }
}

#[cfg(test)]
mod tests;
