//! The timeline, second by second.

use super::*;
use proptest::prelude::*;

const DEFAULT: Timing = Timing::profile(Profile::Default);
const FAST: Timing = Timing::profile(Profile::Fast);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// `at(n)`: n microseconds after boot.
fn at(micros: u64) -> BootTime {
    BootTime::from_nanos(micros * 1000)
}

#[test]
fn the_default_timeline_second_by_second() {
    let t = DEFAULT;
    // The question of second 100 is answered; nothing after it is.
    let e = t.expires(at(100_000_000), t.ttl);
    assert_eq!(e, at(114_992_500), "15 s less 500 ppm = 7.5 ms");
    assert_eq!(t.lapse(e), at(112_992_500), "2 s before");
    assert_eq!(t.last_feed(e), at(113_992_500), "1 s before");
    assert_eq!(t.given_up(e), at(119_492_500), "half of 10 s - 1 s after E");
    assert_eq!(t.reset_by(e), at(123_992_500), "10 s after the last feed");
    assert_eq!(t.bound(Watchdog::Armed), Some(ms(26_000)), "15 + 10 + 1");
    assert_eq!(t.bound_if_feed_stops(Watchdog::Armed), Some(ms(36_000)), "15 + 2·10 + 1");
    assert_eq!(t.feed(), ms(1000), "a quarter of W is 2.5 s, and 1 s is less");
}

#[test]
fn the_fast_timeline_second_by_second() {
    let t = FAST;
    let e = t.expires(at(100_000_000), t.ttl);
    assert_eq!(e, at(104_997_500), "5 s less 500 ppm = 2.5 ms");
    assert_eq!(t.lapse(e), at(103_997_500));
    assert_eq!(t.last_feed(e), at(104_247_500), "P = 3 s / 4 = 0.75 s");
    assert_eq!(t.given_up(e), at(106_122_500));
    assert_eq!(t.reset_by(e), at(107_247_500));
    assert_eq!(t.bound(Watchdog::Armed), Some(ms(8500)));
    assert_eq!(t.bound_if_feed_stops(Watchdog::Armed), Some(ms(11_500)));
}

#[test]
fn a_slow_device_is_paid_out_of_the_margin_as_far_as_clocks_and_scheduling_leave_it() {
    let esb = |millis| Watchdog::Needs(ms(millis));
    assert_eq!(DEFAULT.bound(esb(10_169)), Some(ms(26_000)), "15 + 10.169 + 0.025169 + 0.2 is less");
    assert_eq!(FAST.bound(esb(3_051)), Some(ms(8500)), "5 + 3.051 + 0.008051 + 0.2 is less");
    let itco = Watchdog::Needs(ms(20_000));
    assert_eq!(DEFAULT.bound(itco), Some(ms(35_235)), "15 + 20, 2 · 500 ppm · 35 s = 35 ms, and 200 ms");
    assert_eq!(DEFAULT.bound_if_feed_stops(itco), Some(ms(55_255)), "15 + 2·20, 55 ms and 200 ms");
    assert_eq!(FAST.bound(Watchdog::Needs(ms(6000))), Some(ms(11_211)), "5 + 6, 11 ms and 200 ms");
    // The last millisecond that the margin pays for: 25.774 s, and 25.774 ms and 200 ms.
    assert_eq!(DEFAULT.bound(Watchdog::Needs(ms(10_774))), Some(ms(26_000)));
    assert!(DEFAULT.bound(Watchdog::Needs(ms(10_775))) > Some(ms(26_000)));
    assert_eq!(DEFAULT.bound(Watchdog::Needs(ms(1))), DEFAULT.bound(Watchdog::Armed), "never less than W as it is set");
}

#[test]
fn sanlocks_figures_come_out_when_its_values_go_in() {
    // sanlock, timeouts.h, io_timeout 10 s: a lease fails 80 s after the last renewal, the watchdog fires within 60 s
    // of that, another host may take over at host_dead_seconds = 140. Our one addition is the margin.
    let t = Timing { ttl: ms(80_000), renew: ms(20_000), watchdog: ms(60_000), margin: ms(1000), ..DEFAULT };
    assert_eq!(t.bound(Watchdog::Armed), Some(ms(140_000 + 1000)));
    t.validate().unwrap();
}

#[test]
fn without_a_watchdog_there_is_no_bound_of_any_kind() {
    assert_eq!(DEFAULT.bound(Watchdog::None), None);
    assert_eq!(DEFAULT.bound_if_feed_stops(Watchdog::None), None);
}

#[test]
fn both_profiles_are_valid() {
    DEFAULT.validate().unwrap();
    FAST.validate().unwrap();
}

#[test]
fn a_granted_ttl_may_be_shorter_than_asked_and_never_longer() {
    assert_eq!(DEFAULT.expires(at(0), ms(10_000)), at(9_995_000));
    assert_eq!(DEFAULT.expires(at(0), ms(60_000)), DEFAULT.expires(at(0), DEFAULT.ttl));
    assert_eq!(DEFAULT.expires(at(7), Duration::ZERO), at(7), "a ttl of zero renews nothing");
}

#[test]
fn an_expiry_rounds_down_and_a_needed_margin_up() {
    let t = Timing { drift_ppm: 1, ..DEFAULT };
    assert_eq!(t.lifetime(Duration::from_nanos(1)), Duration::ZERO, "a millionth of 1 ns costs a whole one");
    assert_eq!(t.lifetime(Duration::from_nanos(1_000_001)), Duration::from_nanos(999_999));
    assert_eq!(DEFAULT.margin_needed(), ms(225), "2 · 500 ppm · 25 s = 25 ms, and 200 ms");
    assert_eq!(FAST.margin_needed(), ms(208), "2 · 500 ppm · 8 s = 8 ms, and 200 ms");
}

#[test]
fn one_request_never_delays_the_next() {
    assert!(DEFAULT.request_timeout() <= DEFAULT.renew);
    assert!(FAST.request_timeout() <= FAST.renew);
}

#[test]
fn every_fault_says_what_to_change() {
    let cases = [
        (Timing { ttl: ms(99), ..DEFAULT }, "ttl of 99ms is out of range"),
        (Timing { ttl: ms(86_400_001), ..DEFAULT }, "set it between 100ms and 24h"),
        (Timing { polite: ms(86_400_001), ..DEFAULT }, "polite of 86400.001s is out of range"),
        (Timing { drift_ppm: 0, ..DEFAULT }, "drift_ppm of 0 is out of range"),
        (Timing { drift_ppm: 100_001, ..DEFAULT }, "set it between 1 and 100000"),
        (Timing { watchdog: ms(2500), ..DEFAULT }, "2.5s is no whole number of seconds"),
        (Timing { renew: ms(15_000), ..DEFAULT }, "renew of 15s is not below the ttl of 15s"),
        (Timing { polite: ms(12_000), ..DEFAULT }, "set it below ttl - renew = 12s"),
        (Timing { renew: ms(4331), ..DEFAULT }, "set renew to 4.33s or less"),
        (Timing { ttl: ms(900), renew: ms(100), polite: ms(0), ..DEFAULT }, "a watchdog fed every 1s starves"),
        (Timing { margin: ms(224), ..DEFAULT }, "set it to 225ms or more"),
    ];
    for (timing, expected) in cases {
        let said = timing.validate().unwrap_err().to_string();
        assert!(said.contains(expected), "{timing:?} said: {said}");
    }
}

#[test]
fn one_lost_answer_is_survived_and_the_limit_is_exact() {
    let fits = Timing { renew: ms(4330), ..DEFAULT };
    fits.validate().unwrap();
    // Sent at 0; the next, sent at R, is lost and given up at 2R; its successor is answered by 3R.
    let e = fits.expires(at(0), fits.ttl);
    assert!(at(3 * 4_330_000) <= fits.lapse(e));
}

proptest! {
    /// What the controller relies on, for every timeline that is accepted: a node whose clock is as slow as drift
    /// allows has reset itself, by the controller's true clock, before the bound has passed.
    #[test]
    fn the_slowest_allowed_clock_still_resets_within_the_bound(
        ttl in 100u64..100_000, renew in 100u64..30_000, polite in 0u64..10_000, watchdog in 1u64..60,
        ppm in 1u32..20_000, margin in 200u64..10_000,
    ) {
        let t = Timing {
            ttl: ms(ttl), renew: ms(renew), polite: ms(polite), watchdog: ms(watchdog * 1000), drift_ppm: ppm,
            margin: ms(margin),
        };
        prop_assume!(t.validate().is_ok());
        let sent = at(1_000_000);
        let e = t.expires(sent, t.ttl);
        prop_assert!(t.lapse(e) <= e && t.last_feed(e) < e && t.last_feed(e) > sent);
        // Node time x lasts x·(1 + drift) and a second-order sliver on the true clock when it ticks slow.
        let node = u128::from(t.reset_by(e).as_nanos() - sent.as_nanos());
        let real = node * 1_000_000 / u128::from(1_000_000 - ppm);
        prop_assert!(real + SCHEDULING.as_nanos() <= t.bound(Watchdog::Armed).unwrap().as_nanos());
    }

    /// Whatever a device needs: the bound is never less than the configured one, never less than what the slowest allowed
    /// clock and scheduling make of the device's own time, and never shrinks when the device needs more.
    #[test]
    fn a_bound_covers_the_device_and_the_configuration_and_grows_with_both(
        ttl in 100u64..100_000, watchdog in 1u64..60, ppm in 1u32..20_000, margin in 200u64..10_000,
        needs in 0u64..200_000, more in 0u64..50_000, runs in 1u32..=2,
    ) {
        let t = Timing { ttl: ms(ttl), watchdog: ms(watchdog * 1000), drift_ppm: ppm, margin: ms(margin), ..DEFAULT };
        prop_assume!(t.margin >= t.margin_needed());
        let bound = |t: Timing, needs| match runs {
            1 => t.bound(Watchdog::Needs(ms(needs))).unwrap(),
            _ => t.bound_if_feed_stops(Watchdog::Needs(ms(needs))).unwrap(),
        };
        let stated = bound(t, needs);
        prop_assert!(stated >= t.ttl + t.watchdog * runs + t.margin);
        // The node's own time until the reset, on a clock as slow as is allowed, by the controller's.
        let node = (t.lifetime(t.ttl) + ms(needs).max(t.watchdog) * runs).as_nanos();
        let real = node * 1_000_000 / u128::from(1_000_000 - ppm);
        prop_assert!(real + SCHEDULING.as_nanos() <= stated.as_nanos());
        prop_assert!(bound(t, needs + more) >= stated);
        prop_assert_eq!(t.bound(Watchdog::Armed), Some(t.ttl + t.watchdog + t.margin));
        let longer = Timing { ttl: t.ttl + ms(more), ..t };
        prop_assert!(bound(longer, needs) >= stated);
    }
}
