//! Time as the lease core sees it: instants of CLOCK_BOOTTIME, handed in as values.
//!
//! CLOCK_BOOTTIME runs through suspend and is never stepped (clock_gettime(2)); CLOCK_MONOTONIC, and with it
//! `std::time::Instant`, stops in suspend and would make a lease look younger than it is.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant of CLOCK_BOOTTIME in nanoseconds since boot. Comparable only within one boot of one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(u64);

impl BootTime {
    /// The instant of boot: before everything.
    pub const ZERO: BootTime = BootTime(0);
    /// Later than everything: 584 years after boot.
    pub const NEVER: BootTime = BootTime(u64::MAX);

    /// An instant `nanos` nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        BootTime(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long `earlier` is past at this instant; zero if it is not past.
    pub fn since(self, earlier: BootTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long this instant is still to come at `now`; zero if it has come.
    pub fn left(self, now: BootTime) -> Duration {
        self.since(now)
    }
}

/// Saturates: an instant too far to express is [`BootTime::NEVER`].
impl Add<Duration> for BootTime {
    type Output = BootTime;
    fn add(self, span: Duration) -> BootTime {
        BootTime(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Saturates at boot.
impl Sub<Duration> for BootTime {
    type Output = BootTime;
    fn sub(self, span: Duration) -> BootTime {
        BootTime(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == BootTime::NEVER { write!(f, "never") } else { write!(f, "{:.3}s", self.0 as f64 / 1e9) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_at_both_ends() {
        assert_eq!(BootTime::NEVER + Duration::from_secs(1), BootTime::NEVER);
        assert_eq!(BootTime::from_nanos(5) - Duration::from_secs(1), BootTime::ZERO);
        assert_eq!(BootTime::ZERO + Duration::MAX, BootTime::NEVER);
    }

    #[test]
    fn what_has_come_has_nothing_left() {
        let (early, late) = (BootTime::from_nanos(1), BootTime::from_nanos(4));
        assert_eq!(late.left(early), Duration::from_nanos(3));
        assert_eq!(early.left(late), Duration::ZERO);
    }
}
