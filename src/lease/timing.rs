//! Every formula of the timeline, in one place, with worked examples second by second.
//!
//! ```text
//!  sent       lapse = E-D            E-P            E                       E-P+W
//!   |-- renewed every R -- ... ------|---------------|-----------------------|
//!   lease runs   | polite destroy    | no more feeds | SIGKILL + cgroup.kill | hardware reset
//!                | through libvirt   | if any alive  | until proven gone     | at the latest
//! ```
//!
//! With the default profile, a node that is cut off from everything right after an answer, times in seconds after the
//! answered question was sent:
//!
//! ```text
//!   0      question sent, and answered: the lease counts from here (rule 1)
//!   3, 6   questions that nobody answers
//!  12.99   lapse: libvirt is asked to destroy the domain                    E - D, D = 2
//!  13.99   the last instant at which the watchdog may be fed                E - P, P = 1
//!  14.99   E: SIGKILL, and again until proven gone                          L·(1 - 500 ppm), L = 15
//!  19.49   the kill budget is over: the reset is decided on                 E + (W - P)/2
//!  23.99   the machine is reset if anything of the domain lives             E - P + W, W = 10
//!  26      the bound: whoever moves the domain may start it elsewhere       L + W + m, m = 1
//! ```
//!
//! With the fast profile:
//!
//! ```text
//!   0      question sent and answered
//!   3.99   lapse                                                            D = 1
//!   4.24   last feed                                                        P = 0.75
//!   4.99   E                                                                L = 5
//!   6.12   the reset is decided on
//!   7.24   reset                                                            W = 3
//!   8.5    the bound                                                        m = 0.5
//! ```
//!
//! The bound counts L and not L·(1 - drift): it is measured on the controller's clock, from the instant the answer was
//! issued, which is never before the question was sent. The margin m pays for the difference of the two clocks' rates
//! in either direction and for the scheduling of whoever acts last: `m >= 2·drift·(L + W) + SCHEDULING`.
//!
//! A device that needs W' > W from its last feed to the reset is paid out of the margin as far as that is more than what
//! clocks and scheduling need: `max(L + W + m, L + W' + 2·drift·(L + W') + SCHEDULING)`. With the default profile:
//!
//! ```text
//!   i6300ESB  W' = 10.169   max(26, 15 + 10.169 + 0.025169 + 0.2 = 25.394169) = 26          (fast: 8.5)
//!   iTCO_wdt  W' = 20       max(26, 15 + 20 + 0.035 + 0.2)                    = 35.235      (fast: 11.211)
//! ```

use super::time::BootTime;
use std::fmt;
use std::time::Duration;

/// The smallest value of any span of the timeline but D, which may be zero.
pub const SHORTEST: Duration = Duration::from_millis(100);
/// The largest value of any span of the timeline.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The largest clock-rate error that can be allowed for, in parts per million: what adjtimex(2) lets anybody set
/// (`tick` between 9000 and 11000, 10 %).
pub const MOST_DRIFT_PPM: u32 = 100_000;
/// The part of the margin that is no clock error: the time a thread that acts at an instant may come late.
pub const SCHEDULING: Duration = Duration::from_millis(200);

/// The two sets of values that are tested and documented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Bound 26 s: survives a controller's restart and one lost answer without noticing.
    Default,
    /// Bound 8.5 s: for a management network that loses nothing and watchdogs that accept 3 s.
    Fast,
}

/// Whether the hardware ends what cannot be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Watchdog {
    /// Nothing does: there is no bound, only receipts.
    None,
    /// A device is armed and fed only under a permit (rule 4), and resets the host W after its last feed.
    Armed,
    /// The same, and it needs W', this long, from its last feed to the reset.
    Needs(Duration),
}

/// The values of one node's timeline. Every instant in the system is computed by the methods below and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// L: how long a lease lives, from before its question was sent.
    pub ttl: Duration,
    /// R: how often the node asks.
    pub renew: Duration,
    /// D: how long before E libvirt is asked to destroy the domain politely; zero: never.
    pub polite: Duration,
    /// W: the watchdog's timeout as read back from the device. Whole seconds, as WDIOC_SETTIMEOUT takes them.
    pub watchdog: Duration,
    /// The clock-rate error allowed between this node and the controller, in parts per million.
    pub drift_ppm: u32,
    /// m: the scheduling margin inside the bound.
    pub margin: Duration,
}

impl Timing {
    /// The values of a profile.
    pub const fn profile(profile: Profile) -> Timing {
        match profile {
            Profile::Default => Timing {
                ttl: Duration::from_secs(15),
                renew: Duration::from_secs(3),
                polite: Duration::from_secs(2),
                watchdog: Duration::from_secs(10),
                drift_ppm: 500,
                margin: Duration::from_secs(1),
            },
            Profile::Fast => Timing {
                ttl: Duration::from_secs(5),
                renew: Duration::from_secs(1),
                polite: Duration::from_secs(1),
                watchdog: Duration::from_secs(3),
                drift_ppm: 500,
                margin: Duration::from_millis(500),
            },
        }
    }

    /// P: how often the watchdog is fed, `min(W/4, 1 s)`. Four feeds fit in one timeout, so that three may come late.
    pub fn feed(&self) -> Duration {
        (self.watchdog / 4).min(Duration::from_secs(1))
    }

    /// How long a lease of `ttl` lives on this node's clock: `ttl·(1 - drift)`, rounded down to the nanosecond. A ttl
    /// larger than L counts as L, since the bound was stated with L.
    pub fn lifetime(&self, ttl: Duration) -> Duration {
        let ttl = ttl.min(self.ttl);
        ttl.saturating_sub(share(ttl, self.drift_ppm))
    }

    /// E: when a lease of `ttl` ends whose question was sent at `sent` (rule 1: before the question, not when the
    /// answer came).
    pub fn expires(&self, sent: BootTime, ttl: Duration) -> BootTime {
        sent + self.lifetime(ttl)
    }

    /// E - D: from here on libvirt is asked to destroy the domain.
    pub fn lapse(&self, expires: BootTime) -> BootTime {
        expires - self.polite
    }

    /// E - P: the last instant at which the watchdog may be fed while anything under this lease is alive (rule 4). A
    /// feed that was decided before it takes effect before E.
    pub fn last_feed(&self, expires: BootTime) -> BootTime {
        expires - self.feed()
    }

    /// E - P + W: the machine is reset by then, if anything under this lease is alive.
    pub fn reset_by(&self, expires: BootTime) -> BootTime {
        self.last_feed(expires) + self.watchdog
    }

    /// The kill budget is over: half-way from SIGKILL, due at `killed`, to what E - P + W makes of it. What lives then is
    /// not going to end in time, and the reset is decided on.
    pub fn given_up(&self, killed: BootTime) -> BootTime {
        killed + self.watchdog.saturating_sub(self.feed()) / 2
    }

    /// How long one question may take: R, so that a question that hangs delays the next by nothing.
    pub fn request_timeout(&self) -> Duration {
        self.renew
    }

    /// L + W + m, or what a slow device needs if that is more: after the last answer that could have renewed, the old
    /// copy is gone, whatever failed. None without a watchdog: then only a receipt proves anything.
    pub fn bound(&self, watchdog: Watchdog) -> Option<Duration> {
        self.bound_after(1, watchdog)
    }

    /// L + 2W + m, or what a slow device needs: the bound under either double fault of rule 5 (a feed thread stopped
    /// exactly between reading the permit and feeding; a guard first hung and then killed where nobody keeps its device
    /// open). Each is one late feed, which grants one more W.
    pub fn bound_if_feed_stops(&self, watchdog: Watchdog) -> Option<Duration> {
        self.bound_after(2, watchdog)
    }

    /// The bound that a node states: `strict`, if it is to hold under the double faults of rule 5 too.
    pub fn promises(&self, watchdog: Watchdog, strict: bool) -> Option<Duration> {
        if strict { self.bound_if_feed_stops(watchdog) } else { self.bound(watchdog) }
    }

    /// The bound when the device may run down this many times.
    fn bound_after(&self, runs: u32, watchdog: Watchdog) -> Option<Duration> {
        let needed = match watchdog {
            Watchdog::None => return None,
            Watchdog::Armed => self.watchdog,
            Watchdog::Needs(needed) => needed.max(self.watchdog),
        };
        let set = self.ttl + self.watchdog * runs + self.margin;
        let silent = self.ttl + needed * runs;
        // That m covers L and one W is what `validate` is for.
        let covered = silent == self.ttl + self.watchdog;
        Some(if covered { set } else { set.max(silent + self.margin_over(silent)) })
    }

    /// The smallest margin these values need: `2·drift·(L + W) + SCHEDULING`, the clock part rounded up.
    pub fn margin_needed(&self) -> Duration {
        self.margin_over(self.ttl + self.watchdog)
    }

    /// What two clocks may come to differ by over a span, and the scheduling of whoever acts at its end.
    fn margin_over(&self, span: Duration) -> Duration {
        share(span, self.drift_ppm) * 2 + SCHEDULING
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// The first that does not, as a sentence with the numbers and what to change.
    pub fn validate(&self) -> Result<(), TimingFault> {
        use TimingFault::*;
        let spans =
            [("ttl", self.ttl), ("renew", self.renew), ("watchdog timeout", self.watchdog), ("margin", self.margin)];
        for (what, value) in spans {
            if !(SHORTEST..=LONGEST).contains(&value) {
                return Err(OutOfRange { what, value });
            }
        }
        if self.polite > LONGEST {
            return Err(OutOfRange { what: "polite", value: self.polite });
        }
        if self.drift_ppm == 0 || self.drift_ppm > MOST_DRIFT_PPM {
            return Err(Drift(self.drift_ppm));
        }
        if self.watchdog.subsec_nanos() != 0 {
            return Err(WatchdogFraction(self.watchdog));
        }
        if self.renew >= self.ttl {
            return Err(RenewNotBelowTtl { renew: self.renew, ttl: self.ttl });
        }
        if self.polite >= self.ttl - self.renew {
            return Err(PoliteTooLong { polite: self.polite, most: self.ttl - self.renew });
        }
        // One lost answer must cost no domain. Last good question at 0; the next, at R, is lost and given up at 2R;
        // the one after it may take until 3R to be answered. With less room every dropped packet is an outage.
        let room = self.lifetime(self.ttl).saturating_sub(self.polite);
        if self.renew * 3 > room {
            return Err(NoRoomForALostAnswer { renew: self.renew, room });
        }
        // The last feed comes after the last useful question, or the watchdog starves while the lease is good.
        if self.feed() >= self.lifetime(self.ttl).saturating_sub(self.renew) {
            return Err(FeedTooLong { feed: self.feed(), ttl: self.ttl });
        }
        if self.margin < self.margin_needed() {
            return Err(MarginTooSmall { margin: self.margin, needed: self.margin_needed() });
        }
        Ok(())
    }
}

/// `drift_ppm` millionths of a span, rounded up to the nanosecond: whatever is subtracted is never too little.
fn share(span: Duration, ppm: u32) -> Duration {
    let nanos = (span.as_nanos() * u128::from(ppm)).div_ceil(1_000_000);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Why a set of values is no timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimingFault {
    /// Outside [`SHORTEST`] to [`LONGEST`].
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// The value.
        value: Duration,
    },
    /// Zero, or more than [`MOST_DRIFT_PPM`].
    Drift(u32),
    /// The kernel takes watchdog timeouts in whole seconds only.
    WatchdogFraction(Duration),
    /// A lease would end before it is renewed.
    RenewNotBelowTtl {
        /// R.
        renew: Duration,
        /// L.
        ttl: Duration,
    },
    /// The polite kill would begin before the first renewal.
    PoliteTooLong {
        /// D.
        polite: Duration,
        /// L - R.
        most: Duration,
    },
    /// One lost answer would kill.
    NoRoomForALostAnswer {
        /// R.
        renew: Duration,
        /// L·(1 - drift) - D.
        room: Duration,
    },
    /// The feed period eats the lease.
    FeedTooLong {
        /// P.
        feed: Duration,
        /// L.
        ttl: Duration,
    },
    /// The clocks' difference alone would break the bound.
    MarginTooSmall {
        /// m.
        margin: Duration,
        /// The least that would do.
        needed: Duration,
    },
}

impl fmt::Display for TimingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TimingFault::*;
        match *self {
            OutOfRange { what, value } => {
                write!(f, "{what} of {value:?} is out of range; set it between {SHORTEST:?} and 24h")
            }
            Drift(ppm) => write!(
                f,
                "drift_ppm of {ppm} is out of range; set it between 1 and {MOST_DRIFT_PPM} (500 is what an \
                 undisciplined PC clock may need)"
            ),
            WatchdogFraction(value) => {
                write!(f, "watchdog timeout of {value:?} is no whole number of seconds, and the kernel takes no other")
            }
            RenewNotBelowTtl { renew, ttl } => write!(
                f,
                "renew of {renew:?} is not below the ttl of {ttl:?}, so every lease would end before it is renewed; \
                 set renew to a fifth of the ttl"
            ),
            PoliteTooLong { polite, most } => write!(
                f,
                "polite of {polite:?} leaves no time to renew; set it below ttl - renew = {most:?}, or to \"0s\" for no \
                 polite destroy at all"
            ),
            NoRoomForALostAnswer { renew, room } => write!(
                f,
                "renew of {renew:?} lets one lost answer kill every domain: three times renew must fit in the {room:?} \
                 before the lapse; set renew to {:?} or less, or the ttl higher",
                Duration::from_millis(u64::try_from(room.as_millis() / 3).unwrap_or(u64::MAX))
            ),
            FeedTooLong { feed, ttl } => write!(
                f,
                "a watchdog fed every {feed:?} starves under a ttl of {ttl:?}; set a shorter watchdog timeout, or the \
                 ttl higher"
            ),
            MarginTooSmall { margin, needed } => write!(
                f,
                "margin of {margin:?} does not cover the clocks' drift over ttl and watchdog and {SCHEDULING:?} of \
                 scheduling; set it to {needed:?} or more"
            ),
        }
    }
}

impl std::error::Error for TimingFault {}

#[cfg(test)]
#[path = "timing_tests.rs"]
mod tests;
