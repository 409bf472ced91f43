//! The bound that this node promises, and the bounds that the authority counts with meanwhile. A bound that was raised
//! holds for leases of answers that acknowledged it, and for no older one: until the last of those has ended, no device
//! may be armed with a longer timeout than their bound has room for (docs/design.md, "The authority's half").

use super::time::BootTime;
use super::timing::{Timing, Watchdog};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bounds kept apart; more are counted as the smallest of them.
const MOST_KEPT: usize = 4;

/// A bound, and what of the timeline it was computed from. A guard's death keeps it: the device it had armed runs on, and fires
/// unless a later guard feeds it under the permit. So the next guard goes on promising it before its device is armed, or
/// each restart would leave the node without a bound until everything answered meanwhile has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Promise {
    bound: Duration,
    ttl: Duration,
    margin: Duration,
}

impl Promise {
    /// With an armed watchdog.
    pub fn new(bound: Duration, timing: &Timing) -> Promise {
        Promise { bound, ttl: timing.ttl, margin: timing.margin }
    }

    /// The bound, if this timeline and the device about to be armed keep it too: `needs` is what that takes from its last
    /// feed to the reset.
    pub fn still_holds(&self, timing: &Timing, strict: bool, needs: Duration) -> Option<Duration> {
        timing.promises(Watchdog::Needs(needs), strict).filter(|bound| *bound <= self.bound).map(|_| self.bound)
    }

    /// Whether a device with this timeout, which then needs so long, keeps it.
    fn has_room_for(&self, timing: &Timing, strict: bool, seconds: u32, needs: Duration) -> bool {
        let watchdog = Duration::from_secs(seconds.into());
        let timing = Timing { ttl: self.ttl, watchdog, margin: self.margin, ..*timing };
        timing.promises(Watchdog::Needs(needs), strict).is_some_and(|bound| bound <= self.bound)
    }
}

/// What the authority counts with: the bound that each answered question stated, until the leases of its answer end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CountedBounds(Vec<Counted>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Counted {
    promise: Promise,
    until: BootTime,
}

/// With how long a timeout a device is armed at first, so that it keeps the bounds that leases held here are counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Restraint {
    /// In whole seconds; zero: none is short enough, and it is not armed.
    pub timeout: u32,
    /// From then on the timeout that is configured keeps every bound.
    pub until: BootTime,
}

impl CountedBounds {
    /// An answer's leases end at `expires`; its question promised this, or nothing: then no bound is counted for them.
    pub fn add(&mut self, now: BootTime, promise: Option<Promise>, expires: BootTime) {
        self.0.retain(|counted| now < counted.until);
        let Some(promise) = promise else { return };
        self.0.retain(|counted| counted.promise != promise || expires < counted.until);
        self.0.push(Counted { promise, until: expires });
        if self.0.len() > MOST_KEPT {
            let until = self.0.iter().map(|counted| counted.until).max().unwrap_or(expires);
            let room = |counted: &Counted| counted.promise.bound.saturating_sub(counted.promise.ttl);
            let least = self.0.iter().copied().min_by_key(room);
            self.0 = least.into_iter().map(|least| Counted { until, ..least }).collect();
        }
    }

    /// What they restrain a device to whose configured timeout is so long; `None`: that one keeps them all. `needs` is
    /// what the device needs from its last feed to the reset, by its timeout in seconds.
    pub fn restrain(
        &self,
        now: BootTime,
        timing: &Timing,
        strict: bool,
        needs: impl Fn(u32) -> Duration,
    ) -> Option<Restraint> {
        let wanted = timing.watchdog.as_secs() as u32;
        let broken_until = |seconds: u32| {
            let held = self.0.iter().filter(|counted| now < counted.until);
            let broken = held.filter(|counted| !counted.promise.has_room_for(timing, strict, seconds, needs(seconds)));
            broken.map(|counted| counted.until).max()
        };
        let until = broken_until(wanted)?;
        let timeout = (1..wanted).rev().find(|&seconds| broken_until(seconds).is_none()).unwrap_or(0);
        Some(Restraint { timeout, until })
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::Profile;
    use super::*;

    const OLD: Timing = Timing::profile(Profile::Default);
    /// A device that needs what it is set to.
    const EXACT: fn(u32) -> Duration = |seconds| Duration::from_secs(seconds as u64);

    fn secs(seconds: u64) -> BootTime {
        BootTime::ZERO + Duration::from_secs(seconds)
    }

    fn promise(timing: &Timing) -> Option<Promise> {
        timing.bound(Watchdog::Armed).map(|bound| Promise::new(bound, timing))
    }

    fn raised(seconds: u64) -> Timing {
        Timing { watchdog: Duration::from_secs(seconds), ..OLD }
    }

    fn restrained(counted: &CountedBounds, now: u64, timing: &Timing) -> Option<(u32, BootTime)> {
        counted.restrain(secs(now), timing, false, EXACT).map(|restraint| (restraint.timeout, restraint.until))
    }

    #[test]
    fn a_longer_timeout_waits_for_the_end_of_every_lease_of_the_smaller_bound() {
        let mut counted = CountedBounds::default();
        counted.add(secs(100), promise(&OLD), secs(115));
        assert_eq!(restrained(&counted, 101, &OLD), None);
        assert_eq!(restrained(&counted, 101, &raised(20)), Some((10, secs(115))));
        // The larger bound is acknowledged; what was not renewed since is counted with the smaller.
        counted.add(secs(103), promise(&raised(20)), secs(118));
        assert_eq!(restrained(&counted, 104, &raised(20)), Some((10, secs(115))));
        assert_eq!(restrained(&counted, 115, &raised(20)), None);
        assert_eq!(restrained(&counted, 104, &raised(30)), Some((10, secs(118))));
        assert_eq!(restrained(&counted, 116, &raised(30)), Some((20, secs(118))));
    }

    #[test]
    fn a_device_that_needs_longer_is_set_shorter_and_one_that_cannot_keep_the_bound_is_not_armed() {
        let mut counted = CountedBounds::default();
        counted.add(secs(100), promise(&OLD), secs(115));
        let doubled = |seconds: u32| EXACT(2 * seconds);
        // 15 + 2·5 + 1, and 2·6 is already more than 26 has room for.
        assert_eq!(counted.restrain(secs(101), &OLD, false, doubled).unwrap().timeout, 5);
        let slow = |seconds: u32| EXACT(seconds.max(12));
        assert_eq!(counted.restrain(secs(101), &OLD, false, slow).unwrap().timeout, 0);
        // With the double faults of rule 5 counted: 15 + 2·5 + 1.
        assert_eq!(counted.restrain(secs(101), &OLD, true, EXACT).unwrap().timeout, 5);
    }

    #[test]
    fn a_longer_ttl_and_a_question_without_a_bound_restrain_no_device() {
        let mut counted = CountedBounds::default();
        counted.add(secs(100), promise(&OLD), secs(115));
        let longer = Timing { ttl: Duration::from_secs(60), ..OLD };
        assert_eq!(restrained(&counted, 101, &longer), None, "the old leases end when they ended");
        counted.add(secs(116), None, secs(131));
        assert_eq!(restrained(&counted, 117, &raised(60)), None);
    }

    #[test]
    fn however_many_bounds_are_counted_few_are_kept_and_none_is_forgotten() {
        let mut counted = CountedBounds::default();
        for more in 0..20 {
            counted.add(secs(100), promise(&raised(10 + more)), secs(115 + more));
        }
        assert!(counted.0.len() <= MOST_KEPT);
        assert_eq!(restrained(&counted, 101, &raised(40)), Some((10, secs(134))));
    }
}
