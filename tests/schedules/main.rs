//! The shipped lease core and the shipped authority against each other, under random schedules of faults.
//!
//! `LEASEHOLD_SCHEDULES=N` runs more of them; a failing seed is printed and `LEASEHOLD_SEED=N` runs it alone.

mod world;

use std::io::Write;
use std::time::Duration;
use world::{Faults, NEVER, World};

/// Past the test harness's own capture, which a panic in another thread would lose.
macro_rules! say {
    ($($text:tt)*) => { let _ = writeln!(std::io::stderr(), $($text)*); };
}

fn seeds(default: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("LEASEHOLD_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("LEASEHOLD_SCHEDULES").unwrap_or(default)).collect(),
    }
}

/// Each seed on its own, so that a failure names it.
fn each(default: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(default) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            say!("seed {seed} failed; run it alone with LEASEHOLD_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn never_two_copies_whatever_fails() {
    let mut ran = 0u64;
    let (mut resets, mut kills) = (0, 0);
    for seed in seeds(600) {
        let run = || {
            let mut world = World::new(seed, Faults::ALL);
            world.grant(0);
            let (mut both, mut before) = ([false; 2], 0);
            for _ in 0..60 {
                world.run_for(Duration::from_secs(2), true);
                for at in world.running() {
                    both[at] = true;
                    before += 1;
                }
            }
            let resets: u32 = world.nodes.iter().map(|node| node.resets).sum();
            let kills: u32 = world.nodes.iter().map(|node| node.kills).sum();
            (both == [true, true], before, resets, kills)
        };
        let (both, _, r, k) = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            say!("seed {seed} failed; run it alone with LEASEHOLD_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        ran += u64::from(both);
        resets += r;
        kills += k;
    }
    say!("{ran} schedules ran the domain on both nodes in turn, {resets} watchdog resets, {kills} kills");
    // A world in which nothing happens proves nothing.
    if seeds(600).len() > 100 {
        assert!(ran * 3 > seeds(600).len() as u64, "the domain must move often, or this tests nothing: {ran}");
        assert!(resets > 0 && kills > 0);
    }
}

#[test]
fn no_needless_kill_while_contact_and_claim_are_unbroken() {
    each(60, |seed| {
        let faults = Faults { guard_dies: 1500, ..Faults::NONE };
        let mut world = World::new(seed, faults);
        assert!(world.grant(0));
        world.run_for(Duration::from_secs(1), false);
        let mut started = false;
        for _ in 0..40 {
            if world.running().is_empty() {
                assert!(!started, "it ran and was lost\n{}", world.trace.join("\n"));
                world.operator_starts(0);
            }
            world.run_for(Duration::from_secs(4), true);
            started |= !world.running().is_empty();
        }
        assert!(started);
        let kills: u32 = world.nodes.iter().map(|node| node.kills + node.resets).sum();
        assert_eq!(kills, 0, "{}", world.trace.join("\n"));
    });
}

#[test]
fn a_move_from_a_healthy_node_ends_by_receipt_and_the_domain_starts_elsewhere() {
    each(60, |seed| {
        let mut world = World::new(seed, Faults::NONE);
        assert!(world.grant(0));
        world.run_for(Duration::from_secs(1), false);
        start(&mut world, 0);
        assert!(world.move_to(1));
        world.run_for(Duration::from_secs(4), false);
        assert_eq!(world.owner(), Some(1), "{}", world.trace.join("\n"));
        start(&mut world, 1);
    });
}

#[test]
fn a_finished_migration_runs_on_at_its_destination_once_the_source_is_gone_and_not_before() {
    each(60, |seed| {
        let mut world = World::new(seed, Faults::NONE);
        assert!(world.grant(0));
        world.run_for(Duration::from_secs(1), false);
        start(&mut world, 0);
        assert!(world.migrate(1));
        // libvirt's start of the destination may stall, or fail for reasons of its own.
        for _ in 0..20 {
            world.operator_migrates(1);
            world.run_for(Duration::from_secs(4), false);
            assert_eq!(world.running(), [0], "it waits, however long\n{}", world.trace.join("\n"));
        }
        assert!(world.waits(1), "{}", world.trace.join("\n"));
        world.moved();
        world.run_for(Duration::from_secs(20), false);
        assert_eq!((world.owner(), world.running()), (Some(1), vec![1]), "{}", world.trace.join("\n"));
    });
}

#[test]
fn a_move_from_a_node_that_is_cut_off_and_cannot_kill_ends_within_its_bound_and_not_before_its_reset() {
    each(300, |seed| {
        // Slow questions and answers: the last one before the cut may be an interval old when it is folded in.
        let mut world = World::new(seed, Faults { unkillable: 1, slow: 2, ..Faults::NONE });
        assert!(world.grant(0));
        world.run_for(Duration::from_secs(1), false);
        start(&mut world, 0);
        let span = world.random_span();
        world.run_for(span, false);
        world.cut(0, Duration::from_secs(60));
        assert!(world.move_to(1));
        let moved = world.now;
        // The instant it may start elsewhere it does; the world itself checks that no two copies ever live.
        while world.running() != [1] {
            let waited = world.now.since(moved);
            assert!(waited < Duration::from_secs(300), "{waited:?}\n{}", world.trace.join("\n"));
            if world.owner() == Some(1) {
                world.operator_starts(1);
            } else {
                assert!(waited <= Duration::from_millis(8060), "the bound is exceeded\n{}", world.trace.join("\n"));
            }
            world.run_for(world::STEP, false);
        }
    });
}

#[test]
fn after_the_faults_stop_a_move_completes() {
    each(100, |seed| {
        let mut world = World::new(seed, Faults::ALL);
        world.grant(0);
        world.run_for(Duration::from_secs(60), true);
        world.faults = Faults { unkillable: NEVER, ..Faults::NONE };
        world.lift_all();
        world.run_for(Duration::from_secs(30), false);
        world.move_to(1);
        world.grant(1);
        world.run_for(Duration::from_secs(30), false);
        assert_eq!(world.owner(), Some(1), "{}", world.trace.join("\n"));
    });
}

fn start(world: &mut World, at: usize) {
    for _ in 0..20 {
        if world.running() == [at] {
            return;
        }
        world.operator_starts(at);
        world.run_for(Duration::from_secs(4), false);
    }
    panic!("it does not start on n{}\n{}", at + 1, world.trace.join("\n"));
}
