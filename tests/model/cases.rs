//! What is searched. Times are small, so that much happens within them: L = 3 s, R = 1 s, W = 2 s and so P = 0.5 s.

use crate::world::{Budget, Case, Keeper};
use leasehold::lease::policy::{Lapse, Unkillable};
use leasehold::lease::timing::Timing;
use std::time::Duration;

/// With the smallest margin there can be: slack would hide what is off by a feed period.
const TIMING: Timing = Timing {
    ttl: Duration::from_secs(3),
    renew: Duration::from_secs(1),
    polite: Duration::ZERO,
    watchdog: Duration::from_secs(2),
    drift_ppm: 1,
    margin: Duration::from_millis(1),
};
/// Clocks that differ as much as any may, which takes a margin.
const DRIFTING: Timing = Timing { drift_ppm: 100_000, margin: Duration::from_millis(1000), ..TIMING };

/// Everything is raised; the other way round, lowered.
const RAISED: Timing = Timing {
    ttl: Duration::from_secs(5),
    watchdog: Duration::from_secs(4),
    margin: Duration::from_millis(1),
    ..TIMING
};

const NONE: Budget = Budget {
    guard_dies: 0,
    guard_hangs: 0,
    core_hangs: 0,
    ledger_lost: 0,
    authority_dies: 0,
    duplicates: 0,
    emptied: 0,
    guest_exits: 0,
    starts: 0,
    forgets: 0,
    moves: 0,
    feed_stops: 0,
    late: 0,
    cuts: 0,
    retimes: 0,
    clones: 0,
    migrations: 0,
    sleeps: 0,
};

const fn case(name: &'static str, budget: Budget) -> Case {
    Case {
        name,
        budget,
        keeper: Keeper::FdStore,
        timing: TIMING,
        other: TIMING,
        strict: false,
        lapse: Lapse::Kill,
        unkillable: Unkillable::Reset,
        bounded: true,
        slow_ppm: 0,
        runs: true,
        prompt: false,
        healthy: false,
        arrives: false,
        horizon: 12,
    }
}

/// The same faults in a network that is prompt until it is cut.
const fn cut(name: &'static str, budget: Budget) -> Case {
    Case { prompt: true, ..case(name, Budget { late: 1, cuts: 1, moves: 1, ..budget }) }
}

pub const CASES: &[Case] = &[
    cut("cut off", Budget { guest_exits: 1, ..NONE }),
    cut("cut off, and a start", Budget { starts: 1, guest_exits: 1, ..NONE }),
    cut("cut off, and the guard dies", Budget { guard_dies: 1, ..NONE }),
    Case {
        keeper: Keeper::Nobody,
        ..cut("cut off, the guard dies, and nobody keeps its device", Budget { guard_dies: 1, ..NONE })
    },
    Case {
        other: RAISED,
        keeper: Keeper::Nobody,
        ..cut(
            "cut off, and the guard is restarted with a larger ttl and W",
            Budget { guard_dies: 1, retimes: 1, ..NONE },
        )
    },
    Case { other: RAISED, ..cut("the same, and the device is kept", Budget { guard_dies: 2, retimes: 2, ..NONE }) },
    Case {
        timing: RAISED,
        other: TIMING,
        keeper: Keeper::Nobody,
        horizon: 16,
        ..cut(
            "cut off, and the guard is restarted with a smaller ttl and W",
            Budget { guard_dies: 1, retimes: 1, ..NONE },
        )
    },
    cut("cut off, and the guard hangs", Budget { guard_hangs: 1, guard_dies: 1, ..NONE }),
    Case {
        strict: true,
        keeper: Keeper::Nobody,
        ..cut(
            "cut off, hung, killed, nobody keeps its device, L + 2W",
            Budget { guard_hangs: 1, guard_dies: 1, ..NONE },
        )
    },
    Case { strict: true, ..cut("cut off, and the feed thread stops, L + 2W", Budget { feed_stops: 1, ..NONE }) },
    cut("cut off, and the authority dies", Budget { authority_dies: 1, ..NONE }),
    cut("cut off, and the ledger is lost", Budget { guard_dies: 1, ledger_lost: 1, ..NONE }),
    Case {
        lapse: Lapse::Hold,
        bounded: false,
        ..cut("cut off, and held on lapse", Budget { starts: 1, guest_exits: 1, ..NONE })
    },
    Case {
        timing: DRIFTING,
        slow_ppm: 100_000,
        ..cut("cut off, with a slow clock", Budget { guest_exits: 1, ..NONE })
    },
    Case {
        timing: DRIFTING,
        slow_ppm: -100_000,
        ..cut("cut off, with a fast clock", Budget { guest_exits: 1, ..NONE })
    },
    case("a move, a guest that exits, a start", Budget { moves: 1, guest_exits: 1, starts: 1, ..NONE }),
    case("a move and a duplicate", Budget { moves: 1, guest_exits: 1, starts: 1, duplicates: 1, ..NONE }),
    case("there and back", Budget { moves: 3, guest_exits: 1, starts: 1, ..NONE }),
    case("the guard dies, twice", Budget { moves: 1, guard_dies: 2, starts: 1, guest_exits: 1, ..NONE }),
    Case {
        keeper: Keeper::Nobody,
        ..case("the guard dies, and nobody keeps its device", Budget { moves: 1, guard_dies: 2, ..NONE })
    },
    case("the ledger is lost", Budget { moves: 1, guard_dies: 1, ledger_lost: 1, starts: 1, ..NONE }),
    Case {
        runs: false,
        ..case(
            "the ledger is lost in the middle of a start",
            Budget { moves: 1, guard_dies: 1, ledger_lost: 1, starts: 1, ..NONE },
        )
    },
    case("the guard hangs, and is killed", Budget { moves: 1, guard_hangs: 1, guard_dies: 1, ..NONE }),
    case("the core hangs", Budget { moves: 1, core_hangs: 1, guard_dies: 1, starts: 1, guest_exits: 1, ..NONE }),
    Case {
        strict: true,
        keeper: Keeper::Nobody,
        ..case(
            "hung, then killed, nobody keeps its device, L + 2W",
            Budget { moves: 1, guard_hangs: 1, guard_dies: 1, ..NONE },
        )
    },
    Case {
        strict: true,
        ..case("the feed thread stops between permit and feed, L + 2W", Budget { moves: 1, feed_stops: 1, ..NONE })
    },
    case("the authority dies, twice", Budget { moves: 1, authority_dies: 2, starts: 1, guest_exits: 1, ..NONE }),
    case("the authority and the guard die", Budget { moves: 1, authority_dies: 1, guard_dies: 1, ..NONE }),
    Case {
        runs: false,
        ..case("starts that stall between any two steps", Budget { moves: 1, starts: 2, guest_exits: 1, ..NONE })
    },
    Case { runs: false, ..case("a start while the guard dies", Budget { moves: 1, starts: 1, guard_dies: 1, ..NONE }) },
    case(
        "libvirt starts it over a process in state D",
        Budget { moves: 1, starts: 1, forgets: 1, guest_exits: 1, ..NONE },
    ),
    case("answers that say nothing", Budget { moves: 1, emptied: 2, starts: 1, ..NONE }),
    Case {
        lapse: Lapse::Hold,
        bounded: false,
        ..case("held on lapse", Budget { moves: 1, guest_exits: 1, starts: 1, guard_dies: 1, ..NONE })
    },
    Case {
        unkillable: Unkillable::Report,
        bounded: false,
        ..case("reported, not reset", Budget { moves: 1, guest_exits: 1, starts: 1, ..NONE })
    },
    Case {
        timing: DRIFTING,
        slow_ppm: 100_000,
        ..case("a clock that is slow", Budget { moves: 1, guest_exits: 1, starts: 1, ..NONE })
    },
    Case {
        timing: DRIFTING,
        slow_ppm: -100_000,
        ..case("a clock that is fast", Budget { moves: 1, guest_exits: 1, starts: 1, ..NONE })
    },
    case("two machines with one name", Budget { moves: 1, clones: 2, starts: 1, guest_exits: 1, ..NONE }),
    cut("cut off, and a machine with its name asks", Budget { clones: 2, ..NONE }),
    case("migrated away", Budget { migrations: 2, guest_exits: 1, starts: 1, ..NONE }),
    cut("migrated away and cut off, and the guard dies", Budget { migrations: 1, guard_dies: 1, moves: 0, ..NONE }),
    Case {
        arrives: true,
        runs: false,
        ..case("it arrives by migration", Budget { migrations: 2, starts: 2, guest_exits: 1, ..NONE })
    },
    Case {
        arrives: true,
        runs: false,
        ..cut("it arrives by migration, and the guard dies", Budget { migrations: 1, starts: 2, guard_dies: 1, ..NONE })
    },
    Case {
        healthy: true,
        horizon: 30,
        ..case("unbroken contact, and the guard is restarted", Budget { guard_dies: 3, ..NONE })
    },
    Case {
        healthy: true,
        horizon: 14,
        ..case("unbroken contact and a move", Budget { moves: 2, guard_dies: 1, starts: 1, ..NONE })
    },
];

/// Each claims more than its world keeps.
pub const MUST_FAIL: &[Case] = &[
    cut("the feed thread stops, and L + W + m is claimed", Budget { feed_stops: 1, ..NONE }),
    Case {
        keeper: Keeper::Nobody,
        ..cut(
            "hung, then killed, nobody keeps its device, and L + W + m is claimed",
            Budget { guard_hangs: 1, guard_dies: 1, ..NONE },
        )
    },
    Case { strict: true, ..cut("a host that sleeps, and a bound is claimed", Budget { sleeps: 1, ..NONE }) },
    // So that the authority's clock in an answer does not show it yet.
    Case { slow_ppm: 200_000, ..cut("a clock that is slower than the drift allowed", NONE) },
];
