//! Waiting for events: never for luck.

use std::time::{Duration, Instant};

/// Polls until `done` says so. `limit` is a limit for a broken run, not an expectation.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "waited {limit:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Measures how long something takes, for assertions that name their limit.
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    #[track_caller]
    pub fn assert_within(&self, limit: Duration, what: &str) {
        assert!(self.elapsed() <= limit, "{what} took {:?}, more than {limit:?}", self.elapsed());
    }
}
