//! A timeout that was configured anew is set under the permit, and no sooner than every lease held allows.

use super::*;
use crate::guard::armament::promised_timeout;
use crate::lease::timing::{Profile, Timing};

fn restrained(timeout: u32, until: f64) -> Bench {
    let mut bench = Bench::new(GOOD, Keeper::FdStore);
    bench.feeder.orders.restraint = Some(Restraint { timeout, until: secs(until) });
    bench.permit(1000.0);
    bench
}

#[test]
fn a_longer_timeout_is_set_when_the_restraint_ends_and_the_device_never_stops() {
    let mut bench = restrained(4, 120.0);
    bench.run(119.9);
    assert_eq!((bench.report.timeout(), bench.machine().timeout), (4, Duration::from_secs(4)));
    bench.run(121.5);
    assert_eq!((bench.report.timeout(), bench.machine().timeout), (10, Duration::from_secs(10)));
    bench.run(500.0);
    assert_eq!((bench.report.state(), bench.machine().fired, bench.machine().stopped), (FeedState::Armed, None, 0));
}

#[test]
fn a_permit_that_passes_under_the_restraint_is_followed_by_the_short_timeout() {
    let mut bench = restrained(4, 120.0);
    bench.permit(110.4).run(200.0);
    let fired = bench.machine().fired.expect("it fires");
    assert!(fired <= secs(114.4) && fired > secs(113.4), "{fired:?}");
    assert_eq!(bench.report.timeout(), 4, "without a permit nothing sets another");
}

#[test]
fn a_device_that_has_no_timeout_short_enough_is_not_opened_before_the_restraint_ends() {
    let mut bench = restrained(0, 120.0);
    bench.run(119.9);
    assert!(bench.machine().fed.is_empty());
    bench.run(121.0);
    assert_eq!((bench.report.state(), bench.report.timeout()), (FeedState::Armed, 10));
}

#[test]
fn one_that_was_taken_over_gets_the_timeout_configured_now_under_a_permit_alone() {
    for settable in [true, false] {
        let mut bench = Bench::new(GOOD, Keeper::FdStore);
        bench.permit(1000.0).run(110.0);
        bench.model.0.borrow_mut().timeout = Duration::from_secs(20);
        bench.model.0.borrow_mut().driver.settable = settable;
        let (clock, orders) = (bench.model.clone(), orders(None));
        let now: Box<dyn Fn() -> BootTime> = Box::new(move || clock.0.borrow().now);
        bench.feeder = Feeder::adopting((bench.model.clone(), 20), orders, &bench.report, now, Box::new(|| {}));
        bench.permit(0.0).run(112.0);
        assert_eq!(bench.report.timeout(), 20);
        bench.permit(1000.0).run(200.0);
        assert_eq!(bench.report.timeout(), if settable { 10 } else { 20 });
        assert_eq!((bench.report.state(), bench.machine().fired), (FeedState::Armed, None));
    }
}

#[test]
fn what_is_promised_is_the_longer_timeout_until_the_device_has_taken_or_refused_it() {
    let timing = Timing::profile(Profile::Default);
    let mut bench = restrained(4, 120.0);
    bench.run(110.0);
    assert_eq!((bench.report.timeout(), promised_timeout(&bench.report, &timing)), (4, 10));
    bench.run(121.5);
    assert_eq!(promised_timeout(&bench.report, &timing), 10);

    // It is clamped: that is all it will ever have.
    let mut bench = Bench::new(Driver { clamp: (1, 8), ..GOOD }, Keeper::FdStore);
    bench.permit(1000.0).run(110.0);
    assert_eq!(promised_timeout(&bench.report, &timing), 8);

    // Taken over with an older and shorter one, and no permit to set it yet.
    let (clock, orders) = (bench.model.clone(), orders(None));
    let now: Box<dyn Fn() -> BootTime> = Box::new(move || clock.0.borrow().now);
    bench.feeder = Feeder::adopting((bench.model.clone(), 4), orders, &bench.report, now, Box::new(|| {}));
    assert_eq!((bench.report.timeout(), promised_timeout(&bench.report, &timing)), (4, 10));
}
