//! Two hosts, one disk, leases, and every fault of the design's last table at several offsets: nobody ever writes at the
//! same time as another, and whoever takes over waits no longer than the bound.
//!
//! The network is cut at the node or its link taken down, packets are dropped one way, processes are stopped and killed,
//! exchanges delayed, repeated and forged; hosts are really reset by their watchdog, which here is a stand-in. Who wrote
//! when is told by the shared disk alone.

mod fault;
mod lane;

use crate::harness::{World, tell};
use fault::{Begins, Ends, Fault};
use lane::{Lane, Line};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// So many pairs of hosts work the cases off side by side; mostly they wait.
const LANES: usize = 6;

/// When a fault begins, by the node's own renewals, and when it ends, by the lease that it had then.
const OFFSETS: [(Begins, Ends); 6] = [
    (Begins::AfterRenewal, Ends::BeforeLastFeed),
    (Begins::BeforeRenewal, Ends::AtLastFeed),
    (Begins::AfterRenewal, Ends::AtExpiry),
    (Begins::BeforeRenewal, Ends::AfterExpiry),
    (Begins::AfterRenewal, Ends::AfterTakeover),
    (Begins::BeforeRenewal, Ends::AfterTakeover),
];

#[test]
fn whatever_fails_at_whatever_offset_no_two_hosts_write_at_once_and_the_bound_holds() {
    let Some(world) = World::new() else { return };
    // The long ones first, so that no lane is left with one at the end.
    let mut cases: Vec<_> =
        Fault::ALL.iter().flat_map(|fault| fault.offsets().iter().map(move |at| (*fault, *at))).collect();
    cases.sort_by_key(|(_, (_, ends))| *ends != Ends::AfterTakeover);
    cases.reverse();
    let only = std::env::var("LEASEHOLD_ROW").ok();
    cases.retain(|(fault, _)| only.as_ref().is_none_or(|only| fault.row().contains(only.as_str())));
    let (cases, lines, broken) = (Mutex::new(cases), Mutex::new(Vec::<Line>::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                let world = world.beside();
                let mut lane = Lane::new(&world);
                loop {
                    let Some((fault, offset)) = cases.lock().expect("no panic holds it").pop() else { return };
                    let done = catch_unwind(AssertUnwindSafe(|| lane.case(fault, offset)));
                    match done {
                        Ok(line) => lines.lock().expect("no panic holds it").push(line),
                        Err(_) => {
                            broken.lock().expect("no panic holds it").push(format!("{} {offset:?}", fault.row()));
                            tell(&lane.logs());
                            return;
                        }
                    }
                }
            });
        }
    });
    let mut lines = lines.into_inner().expect("no panic holds it");
    lines.sort();
    lines.iter().for_each(|line| tell(&line.to_string()));
    let worst = lines.iter().map(Line::freed).max().unwrap_or_default();
    tell(&format!("{} cases, worst takeover allowed after {worst:?}, bound {:?}", lines.len(), lane::BOUND));
    let broken = broken.into_inner().expect("no panic holds it");
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!(cases.into_inner().expect("no panic holds it").len(), 0, "all lanes broke");
}
