//! The reset is decided on: what is left of the timeout is cut short, and never made longer.

use super::*;

/// Starving since 123.4, and the reset decided on at `s`.
fn fencing(driver: Driver, keeper: Keeper, s: f64) -> Bench {
    let mut bench = Bench::new(driver, keeper);
    bench.permit(123.4).run(s);
    bench.permit.publish_fence(true);
    bench
}

#[test]
fn once_the_reset_is_decided_on_what_is_left_of_the_timeout_is_cut_short() {
    let mut bench = fencing(GOOD, Keeper::FdStore, 127.0);
    bench.run(128.0);
    assert_eq!(bench.report.state(), FeedState::Fencing);
    bench.run(140.0);
    let fired = bench.machine().fired.expect("it fires");
    assert!(fired <= secs(127.0) + P + Duration::from_secs(1), "{fired:?}: within a beat and the shortest timeout");
}

#[test]
fn a_reset_that_is_decided_on_is_not_taken_back_by_a_permit_or_a_proof() {
    for proof in [false, true] {
        let mut bench = fencing(GOOD, Keeper::FdStore, 127.0);
        bench.run(128.0);
        let fed = bench.machine().fed.len();
        bench.permit.publish_fence(false);
        bench.permit(1000.0);
        if proof {
            bench.disarm.give(AllGone::for_tests());
        }
        bench.run(140.0);
        let machine = bench.machine();
        assert!(machine.fired.is_some() && machine.stopped == 0, "with a proof: {proof}");
        assert_eq!(machine.fed.len(), fed, "with a proof: {proof}");
    }
}

#[test]
fn what_is_left_is_not_cut_short_where_that_could_make_it_longer() {
    let all = |driver, at, s| {
        let mut bench = fencing(driver, Keeper::FdStore, s);
        bench.run(at);
        (bench.report.state(), bench.machine().fed.last().copied())
    };
    // Fed last at 123: of 10 s, less than P and the driver's least of 4 s are left after 128.
    let slow = Driver { clamp: (4, 60), ..GOOD };
    assert_eq!(all(slow, 130.0, 128.5), (FeedState::Starving, Some(secs(123.0))));
    assert_eq!(all(slow, 130.0, 126.5).0, FeedState::Fencing);
    // No timeout that it is known to need less with.
    assert_eq!(all(Driver { clamp: (5, 60), ..GOOD }, 130.0, 124.0).0, FeedState::Starving);
}

#[test]
fn a_device_that_was_let_go_or_taken_over_unfed_is_not_touched_again() {
    let mut bench = fencing(GOOD, Keeper::Nobody, 127.0);
    let fed = bench.machine().fed.len();
    bench.run(140.0);
    assert_eq!((bench.report.state(), bench.machine().fed.len()), (FeedState::Abandoned, fed));
    let mut bench = Bench::new(GOOD, Keeper::FdStore);
    let clock = bench.model.clone();
    let adopted = orders(None);
    bench.feeder = Feeder::adopting(
        (bench.model.clone(), 10),
        adopted,
        &bench.report,
        Box::new(move || clock.0.borrow().now),
        Box::new(|| {}),
    );
    bench.permit.publish_fence(true);
    bench.run(140.0);
    assert_eq!(
        (bench.report.state(), bench.machine().fed.len()),
        (FeedState::Starving, 0),
        "nobody knows when it was fed"
    );
}

proptest! {
    /// Whenever the reset is decided on, on whatever driver: never later than it would have come, also for a thread that is
    /// held for up to P just before it sets the timeout; held for longer, the double fault of rule 5, by less than W more.
    #[test]
    fn a_decided_reset_never_comes_later_than_it_would_have(
        permit in 110.0..130.0f64,
        // Around the last instant at which the least timeout still ends sooner.
        spare in -1.0..3.0f64,
        held in 0.0..1.5f64,
        least in proptest::sample::select(SHORT_TIMEOUTS.to_vec()),
        keeper in proptest::sample::select(vec![Keeper::FdStore, Keeper::FdStore, Keeper::Nobody]),
    ) {
        let decided = (W.as_secs_f64() - f64::from(least) - spare).max(0.0);
        let run = |fences: bool| {
            let mut bench = Bench::new(Driver { clamp: (least, 60), ..GOOD }, keeper);
            bench.permit(permit).run(permit + decided);
            bench.permit.publish_fence(fences);
            if fences {
                bench.model.0.borrow_mut().hold = Duration::from_secs_f64(held);
            }
            bench.run(permit + 40.0);
            bench.machine().fired.expect("it fires")
        };
        let (with, without) = (run(true), run(false));
        if Duration::from_secs_f64(held) <= P {
            prop_assert!(with <= without, "{with:?}, and {without:?} by itself");
        } else {
            prop_assert!(with < without + W, "{with:?}, and {without:?} by itself");
        }
    }
}
