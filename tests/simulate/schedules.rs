//! Never two copies, whatever fails. Here some schedules of an unoptimised build; tests/run.sh runs 100 000 of the release
//! binary's (`leasehold simulate --random`).
//!
//! `LEASEHOLD_SCHEDULES=N` runs N of them; `LEASEHOLD_SEED=N` the one of a seed alone.

use crate::{number, say};
use leasehold::simulate::campaign;

const SCHEDULES: u64 = 300;

#[test]
fn never_two_copies_whatever_fails() {
    let (first, many) = match number("LEASEHOLD_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("LEASEHOLD_SCHEDULES").unwrap_or(SCHEDULES)),
    };
    let (figures, broken) = campaign::run(first, many);
    say(&figures.text());
    if let Some(broken) = broken {
        panic!("{broken}");
    }
    // A world in which nothing happens proves nothing.
    if many >= 100 {
        assert!(figures.moved * 3 > many, "the domain must move often: {}", figures.moved);
        assert!(figures.resets > 0 && figures.kills > 0 && figures.by[..2].iter().all(|&ways| ways > 0));
        // The bound, 5 s + 3 s + 10 ms, and the clock's millisecond.
        let worst = figures.waits.iter().copied().fold(0.0, f64::max);
        assert!(worst <= 8_011.0, "safe only {worst} ms after the revocation");
    }
}
