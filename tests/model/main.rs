//! Every state that the shipped lease core and the shipped authority can reach together, within bounds.
//!
//! `LEASEHOLD_MODEL=quick` visits few states of each case, for runs over many mutants; `large` visits fifty times as many
//! as usual; `LEASEHOLD_CASE=TEXT` takes the cases alone whose names contain it. Each case is searched within longer and longer horizons until there are too many states, and the table says until
//! when all of them were visited. The world is in `world`, what is searched in `cases`.

mod cases;
mod checker;
mod world;

use cases::{CASES, MUST_FAIL};
use checker::{Found, Model, search, shortest};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;
use world::{Case, Step, World};

/// Past the test harness's own capture, which shows nothing of a test that passes.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The most states of one case.
fn cap() -> u64 {
    match std::env::var("LEASEHOLD_MODEL").as_deref() {
        Ok("quick") => 50_000,
        Ok("large") => 20_000_000,
        Ok(number) if number.parse::<u64>().is_ok() => number.parse().unwrap_or_default(),
        _ => 240_000,
    }
}

/// What was searched of a case.
struct Searched {
    case: &'static Case,
    /// The longest horizon within which every state was visited.
    whole: u8,
    /// Of the last horizon tried.
    found: Found<Step>,
}

/// Longer and longer horizons, until one has more states than may be visited: then the one before it was searched whole.
fn deepen(case: &'static Case, most: u64) -> Searched {
    let (mut whole, mut least) = (0, case.horizon.min(3));
    loop {
        let mut world = World::new(case);
        world.horizon = least;
        let found = search(&world, most);
        let ends = !found.complete || found.violation.is_some();
        if !ends {
            whole = least;
        }
        if ends || least >= case.horizon {
            return Searched { case, whole, found };
        }
        least += 1;
    }
}

/// Each case once, on as many threads as there are processors.
fn each(cases: &'static [Case], most: u64) -> Vec<Searched> {
    let wanted = std::env::var("LEASEHOLD_CASE").unwrap_or_default();
    let left = Mutex::new(cases.iter().rev().filter(|case| case.name.contains(&wanted)).collect::<Vec<_>>());
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(case) = left.lock().unwrap().pop() else { return };
                    let searched = deepen(case, most);
                    done.lock().unwrap().push(searched);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

/// The way to a violation, a line for each step.
fn told(case: &'static Case, steps: &[Step]) -> String {
    let mut world = World::new(case);
    let mut text = String::new();
    let began = world.now;
    for &step in steps {
        let held = world.take(step);
        let after = world.now.since(began).as_secs_f64();
        let _ = writeln!(text, "  T+{after:<6} {step:?}{}", held.err().map_or(String::new(), |why| format!(": {why}")));
    }
    text
}

#[test]
fn no_reachable_state_has_two_copies_or_a_broken_bound_or_a_needless_kill() {
    let searched = each(CASES, cap());
    let mut states = 0;
    let mut broken = String::new();
    say("| case | all states until | states visited | steps deep | seconds |");
    for Searched { case, whole, found } in &searched {
        let Found { states: visited, deepest, took, .. } = found;
        say(&format!("| {} | T+{whole} s | {visited} | {deepest} | {:.1} |", case.name, took.as_secs_f64()));
        states += visited;
        if let Some((why, steps)) = &found.violation {
            let (why, steps) = shortest(&World::new(case), 300_000).unwrap_or((why.clone(), steps.clone()));
            let _ = writeln!(broken, "{}: {why}\n{}", case.name, told(case, &steps));
        }
    }
    say(&format!("{states} distinct states in {} cases", searched.len()));
    assert!(broken.is_empty(), "{broken}");
}

/// Something that may be seen in a world.
type Seen = fn(&World) -> bool;

/// A world with one more broken property: that something is never seen.
#[derive(Clone)]
struct Reaching(World, Seen);

impl std::hash::Hash for Reaching {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.0.hash(hasher);
    }
}

impl Model for Reaching {
    type Step = Step;
    fn steps(&self) -> Vec<Step> {
        self.0.steps()
    }
    fn take(&mut self, step: Step) -> Result<(), String> {
        self.0.take(step)?;
        if (self.1)(&self.0) { Err("reached".into()) } else { Ok(()) }
    }
    fn examine(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Nor does a world in which nothing of what it is about ever happens.
#[test]
fn what_a_case_is_about_does_happen_in_it() {
    let reached: [(&str, Seen); 6] = [
        ("it arrives by migration", World::has_arrived),
        ("it arrives by migration, and the guard dies", World::has_arrived),
        ("migrated away", World::has_left),
        ("two machines with one name", World::is_doubted),
        ("cut off, and the guard is restarted with a larger ttl and W", World::is_restrained),
        ("the ledger is lost", World::has_recovered),
    ];
    for (name, reached) in reached {
        let case = CASES.iter().find(|case| case.name == name).expect(name);
        let within = |horizon| {
            let mut world = World::new(case);
            world.horizon = horizon;
            search(&Reaching(world, reached), cap()).violation
        };
        assert!((1..=case.horizon).any(|horizon| within(horizon).is_some()), "{name}: it never does");
    }
}

/// A world that can only be found sound proves nothing.
#[test]
fn a_promise_that_is_too_small_is_found_broken() {
    for Searched { case, found, .. } in each(MUST_FAIL, 3_000_000) {
        let Some((why, _)) = found.violation else { panic!("{}: nothing was found", case.name) };
        say(&format!("{}: found after {} states: {why}", case.name, found.states));
    }
}
