//! Random histories of the book against ideal nodes: no two copies of a domain may ever be able to run.
//!
//! The nodes obey the protocol and nothing more: a copy is killed as late as its bound allows, questions and answers
//! are lost, doubled and reordered, guards restart, nodes reboot, a second host uses a node's id, timings change, and
//! the authority crashes before or after a commit, or cannot write. The check is by the durable records alone: every
//! copy that may be alive is a share of its own node and epoch there, and no two hosts have one unless a migration
//! is open.

mod host;
mod world;

use super::book::MAX_TTL;
use host::{DOMAINS, HOSTS};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::BTreeMap;
use std::time::Duration;
use world::{Broken, Op, Trouble, World};

fn op() -> impl Strategy<Value = Op> {
    let (host, dom) = (0..HOSTS, 0..DOMAINS);
    let nod = 0..HOSTS - 1;
    let usual = 0..HOSTS - 1;
    prop_oneof![
        20 => prop_oneof![6 => 0_u8..4, 2 => 4_u8..9, 1 => 28_u8..36, 1 => 60_u8..75].prop_map(Op::Tick),
        12 => (host.clone(), 0_u8..4, any::<bool>()).prop_map(|(host, named, brief)| Op::Ask { host, named, brief }),
        10 => (0_usize..12, prop::bool::weighted(0.3)).prop_map(|(which, twice)| Op::Arrive { which, twice }),
        10 => (0_usize..12, prop::bool::weighted(0.2)).prop_map(|(which, lost)| Op::Answer { which, lost }),
        45 => (prop_oneof![8 => usual.clone(), 1 => host.clone()], prop_oneof![4 => Just(3_u8), 1 => 0_u8..4], any::<bool>())
            .prop_map(|(host, named, brief)| Op::Exchange { host, named, brief }),
        35 => (host.clone(), dom.clone()).prop_map(|(host, domain)| Op::Start { host, domain }),
        6 => (host.clone(), dom.clone()).prop_map(|(host, domain)| Op::Kill { host, domain }),
        2 => host.clone().prop_map(Op::GuardRestart),
        5 => host.clone().prop_map(Op::Reboot),
        3 => (usual, 2_u64..7, 1_u64..4, prop::bool::weighted(0.2), any::<[bool; DOMAINS]>(), prop::bool::weighted(0.3))
            .prop_map(|(host, ttl, watchdog, observe, hold, any)| Op::Setup {
                host, ttl, watchdog, observe, hold: hold.map(|hold| hold && any)
            }),
        16 => (dom.clone(), nod.clone(), prop::option::weighted(0.3, nod.clone()))
            .prop_map(|(domain, node, incoming)| Op::Grant { domain, node, incoming }),
        4 => dom.clone().prop_map(Op::Revoke),
        6 => (dom.clone(), nod.clone()).prop_map(|(domain, node)| Op::Move { domain, node }),
        3 => dom.clone().prop_map(Op::Moved),
        2 => dom.clone().prop_map(Op::Abort),
        1 => dom.prop_map(Op::Forget),
        1 => nod.clone().prop_map(Op::Fence),
        3 => nod.prop_map(Op::Unfence),
        1 => host.prop_map(Op::Accept),
        10 => Just(Op::Mend),
        4 => prop_oneof![
            Just(Trouble::CrashBeforeCommit), Just(Trouble::CrashAfterCommit), Just(Trouble::Disk(Broken::Unwritten)),
            Just(Trouble::Disk(Broken::Written)), Just(Trouble::NoProgress), Just(Trouble::MachineReboot),
        ].prop_map(Op::Trouble),
    ]
}

fn history(ops: &[Op], seen: &mut BTreeMap<String, u32>) -> Result<(), String> {
    let mut world = World::new();
    for (at, op) in ops.iter().enumerate() {
        world.step(*op);
        world.check().map_err(|why| format!("after step {at} ({op:?}) at {:?}: {why}", world.now))?;
    }
    for (what, times) in world.seen {
        *seen.entry(what).or_default() += times;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn no_history_lets_two_copies_of_a_domain_run(ops in prop::collection::vec(op(), 1..160)) {
        if let Err(why) = history(&ops, &mut BTreeMap::new()) {
            prop_assert!(false, "{}", why);
        }
    }
}

fn cases() -> u32 {
    std::env::var("LEASEHOLD_ORACLE_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(800)
}

/// A check that nothing reaches proves nothing.
#[test]
fn the_histories_reach_every_proof_and_every_trouble() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(op(), 100..160);
    let mut seen = BTreeMap::new();
    for _ in 0..400 {
        let ops = strategy.new_tree(&mut runner).unwrap().current();
        history(&ops, &mut seen).unwrap();
    }
    for what in [
        "goneReceipt",
        "goneBound",
        "goneReboot",
        "goneNeverClaimed",
        "moved",
        "move",
        "grant",
        "incoming",
        "fence",
        "forget",
        "start",
        "conflict",
        "bound",
        "CrashBeforeCommit",
        "CrashAfterCommit",
        "Disk(Unwritten)",
        "Disk(Written)",
        "not written",
        "in doubt",
        "NoProgress",
        "MachineReboot",
    ] {
        assert!(seen.get(what).copied().unwrap_or(0) >= 10, "{what} in {seen:#?}");
    }
    assert!(MAX_TTL > Duration::from_secs(7), "the model's leases are within what an answer grants");
}
