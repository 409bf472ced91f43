//! A great many random schedules, by all processors: whether any breaks a promise, and how long it took to be safe.

use super::random::draw;
use super::report::Report;
use super::script::{Script, Verb};
use super::shrink::{settle, shrink};
use super::try_out;
use crate::protocol::Proof;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// What many schedules came to.
#[derive(Debug, Default, Clone)]
pub struct Figures {
    /// How many were run to their end.
    pub schedules: u64,
    /// In how many the first domain ran on several machines in turn.
    pub moved: u64,
    /// Processes that a guard struck.
    pub kills: usize,
    /// Resets of machines.
    pub resets: usize,
    /// Revoked copies known to be gone by receipt, bound, reboot, or otherwise.
    pub by: [u64; 4],
    /// From a revocation to safe, in milliseconds, where one bound covered it and the authority was there all the
    /// time.
    pub waits: Vec<f64>,
    /// What was left of the bound when the old copy's last process had ended, in milliseconds.
    pub left: Vec<f64>,
}

/// A schedule that breaks a promise.
#[derive(Debug, Clone)]
pub struct Broken {
    /// What it was drawn from.
    pub seed: u64,
    /// What it breaks.
    pub why: String,
    /// How many lines it had.
    pub lines: usize,
    /// The shortest that still breaks one.
    pub short: Script,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { seed, why, lines, short } = self;
        write!(
            f,
            "the schedule of seed {seed} breaks a promise: {why}\nshrunk from {lines} to {} lines; give this to `leasehold simulate -`:\n\n{short}",
            short.steps.len()
        )
    }
}

/// Runs the schedules of so many seeds from the first on, up to the first that breaks a promise.
pub fn run(first: u64, schedules: u64) -> (Figures, Option<Broken>) {
    let (next, end) = (AtomicU64::new(first), first.saturating_add(schedules));
    let work = || {
        let mut figures = Figures::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return (figures, None);
            }
            let script = draw(seed);
            match outcome(&script) {
                Ok(report) if report.violations.is_empty() => figures.add(&script, &report),
                other => {
                    next.store(end, Ordering::Relaxed);
                    return (figures, Some(broken(seed, &script, &other)));
                }
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let (mut figures, mut first_broken) = (Figures::default(), None);
    for (part, broken) in parts {
        figures.join(part);
        first_broken = first_broken.or(broken);
    }
    (figures, first_broken)
}

/// A panic of what ships is as much of a failure as a broken promise.
fn outcome(script: &Script) -> Result<Report, String> {
    match catch_unwind(AssertUnwindSafe(|| try_out(script))) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("it panics".to_owned()),
    }
}

fn fails(script: &Script) -> bool {
    outcome(script).map_or(true, |report| !report.violations.is_empty())
}

fn broken(seed: u64, script: &Script, outcome: &Result<Report, String>) -> Broken {
    let why = match outcome {
        Ok(report) => report.violations.iter().map(|one| one.text.clone()).collect::<Vec<_>>().join("; "),
        Err(why) => why.clone(),
    };
    let short = shrink(script, &fails);
    let short = settle(&short, &fails).unwrap_or(short);
    Broken { seed, why, lines: script.steps.len(), short }
}

impl Figures {
    fn add(&mut self, script: &Script, report: &Report) {
        self.schedules += 1;
        self.moved += u64::from(report.ran_on[0] > 1);
        self.kills += report.kills;
        self.resets += report.resets;
        // Where a larger bound was configured midway there is not one bound to compare with.
        let one_bound = !script.steps.iter().any(|step| matches!(step.what.verb, Verb::SetWatchdog | Verb::SetTtl));
        for one in report.revoked.iter().filter(|one| one_bound && !one.authority_away) {
            let (Some(safe), Some(bound)) = (one.safe_at_ms, one.bound_at_ms) else { continue };
            let way = match one.proof {
                Some(Proof::Receipt) => 0,
                Some(Proof::Bound) => 1,
                Some(Proof::Reboot) => 2,
                _ => 3,
            };
            self.by[way] += 1;
            self.waits.push(safe - one.revoked_at_ms);
            self.left.extend(one.dead_at_ms.map(|dead| bound - dead));
        }
    }

    fn join(&mut self, other: Figures) {
        self.schedules += other.schedules;
        self.moved += other.moved;
        self.kills += other.kills;
        self.resets += other.resets;
        self.by.iter_mut().zip(other.by).for_each(|(sum, more)| *sum += more);
        self.waits.extend(other.waits);
        self.left.extend(other.left);
    }

    /// For a person.
    pub fn text(&self) -> String {
        let Figures { schedules, moved, kills, resets, by: [receipt, bound, reboot, other], .. } = self;
        let mut text = format!(
            "{schedules} schedules: in {moved} the domain ran on several machines in turn; {kills} kills, {resets} resets\n\
             safe to start elsewhere by receipt {receipt}, by bound {bound}, by reboot {reboot}, otherwise {other}\n"
        );
        let mut line = |what: &str, values: &[f64], worst_is_least: bool| {
            let mut sorted = values.to_vec();
            sorted.sort_unstable_by(f64::total_cmp);
            if worst_is_least {
                sorted.reverse();
            }
            let at = |part: f64| {
                sorted.get((sorted.len().saturating_sub(1) as f64 * part) as usize).map_or(0.0, |ms| ms / 1000.0)
            };
            let _ = writeln!(text, "{what}: median {:.3} s, 99 % {:.3} s, worst {:.3} s", at(0.5), at(0.99), at(1.0));
        };
        line("from the revocation to safe, of a bound of 8.010 s", &self.waits, false);
        line("left of the bound when the old copy had ended", &self.left, true);
        text
    }
}
