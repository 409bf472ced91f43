//! Two hosts, one disk, leases, and every fault of the design's last table at several offsets: nobody ever writes at the
//! same time as another, and whoever takes over waits no longer than the bound.
//!
//! The network is cut at the node or its link taken down, packets are dropped one way, processes are stopped and killed,
//! exchanges delayed, repeated and forged; hosts are really reset by their watchdog, which here is a stand-in. Who wrote
//! when is told by the shared disk alone.

mod fault;
mod lane;

use crate::harness::{BOUND, Way, World, fill_the_machine, tell};
use fault::{Begins, Ends, Fault};
use lane::{Lane, Line};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pairs of hosts that work the cases off side by side, by what their domain's disk is on; mostly they wait.
const LANES: [Option<Way>; 7] = [Some(Way::ByKernel), Some(Way::ByQemu), None, None, None, None, None];

/// When a fault begins, by the node's own renewals, and when it ends, by the lease that it had then.
type Offset = (Begins, Ends);
const OFFSETS: [Offset; 6] = [
    (Begins::AfterRenewal, Ends::BeforeLastFeed),
    (Begins::BeforeRenewal, Ends::AtLastFeed),
    (Begins::AfterRenewal, Ends::AtExpiry),
    (Begins::BeforeRenewal, Ends::AfterExpiry),
    (Begins::AfterRenewal, Ends::AfterTakeover),
    (Begins::BeforeRenewal, Ends::AfterTakeover),
];

#[test]
fn whatever_fails_at_whatever_offset_no_two_hosts_write_at_once_and_the_bound_holds() {
    if !Path::new("/sys/class/watchdog").exists() {
        return tell("skipped: this kernel has no watchdog core, so there is no place for a host's stand-in");
    }
    let _filled = fill_the_machine();
    let Some(world) = World::new() else { return };
    // For a look at one row: a part of its name.
    let only = std::env::var("LEASEHOLD_ROW").ok();
    let wanted = |fault: &&Fault| only.as_ref().is_none_or(|only| fault.row().contains(only.as_str()));
    let mut cases: Vec<_> = Fault::ALL.iter().filter(wanted).flat_map(|fault| fault.cases()).collect();
    // Taken from the end. The long ones first, so that no lane is left with one at the end.
    cases.sort_by_key(|(_, (_, ends))| *ends == Ends::AfterTakeover);
    let all = cases.len();
    let work = Work { cases: Mutex::new(cases), lines: Mutex::default(), broken: Mutex::default() };
    std::thread::scope(|scope| {
        for way in LANES {
            let (work, world) = (&work, &world);
            scope.spawn(move || work.off(&world.beside(), way));
        }
    });
    let (mut lines, broken) = (taken(work.lines), taken(work.broken));
    lines.sort();
    lines.iter().for_each(|line| tell(&line.to_string()));
    let worst = lines.iter().map(Line::freed).max().unwrap_or_default();
    tell(&format!("{} cases, the longest wait was {worst:?}, the bound is {BOUND:?}", lines.len()));
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!(lines.len(), all, "some were never tried");
}

/// What is to be done, and what was.
struct Work {
    cases: Mutex<Vec<(Fault, Offset)>>,
    lines: Mutex<Vec<Line>>,
    broken: Mutex<Vec<String>>,
}

impl Work {
    /// Works off what a pair of hosts on this kind of storage can, until one case fails.
    fn off(&self, world: &World, way: Option<Way>) {
        let mut lane = None;
        while let Some((fault, offset)) = self.next(way) {
            let case = || lane.get_or_insert_with(|| Lane::new(world, way)).case(fault, offset);
            match catch_unwind(AssertUnwindSafe(case)) {
                Ok(line) => locked(&self.lines).push(line),
                Err(_) => {
                    locked(&self.broken).push(format!("{} {offset:?}", fault.row()));
                    return tell(&lane.map(|lane| lane.logs()).unwrap_or_default());
                }
            }
        }
    }

    fn next(&self, way: Option<Way>) -> Option<(Fault, Offset)> {
        let mut cases = locked(&self.cases);
        let at = cases.iter().rposition(|(fault, _)| fault.way() == way)?;
        Some(cases.remove(at))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn taken<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
