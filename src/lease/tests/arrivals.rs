//! Live migration, seen from the destination: a copy may come, and runs once it is this node's.

use super::*;

fn incoming(epoch: u64) -> ClaimEntry {
    claim(WEB, ClaimKind::Incoming, epoch)
}

/// WEB has come as process 41, under epoch 2, as a scan sees it: in this state.
fn arrived(state: CopyState) -> (Node, SeenCopy) {
    let mut node = Node::new();
    node.at(1010.0);
    node.question = None;
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[incoming(2)]);
    for op in [HookOp::Migrate, HookOp::Prepare, HookOp::Start] {
        assert_eq!(node.hook(WEB, op), Some(Verdict::Allow), "{op:?}");
    }
    let copy = SeenCopy { state, ..node.copy(WEB, 41) };
    node.scan(std::slice::from_ref(&copy));
    node.actions.clear();
    (node, copy)
}

fn resumes(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Resume { domain: WEB, .. })).count()
}

/// How the next question names it, which is answered with what it held before.
fn state(node: &mut Node) -> NamedState {
    let question = node.ask();
    let answer = node.answer_to(&question, &[]);
    node.step(Event::Answered(Box::new(answer)));
    question.domains.iter().find(|named| named.domain == WEB).unwrap().state
}

#[test]
fn it_waits_paused_while_it_may_only_come_and_is_resumed_when_it_is_this_nodes() {
    let (mut node, copy) = arrived(CopyState::Paused);
    for _ in 0..10 {
        assert_eq!(resumes(&node.answer(&[incoming(2)])), 0);
    }
    assert_eq!(resumes(&node.answer(&[allow(WEB, 2)])), 1);
    // Once it has run, what pauses it is somebody's will.
    node.scan(&[SeenCopy { state: CopyState::Running, ..copy.clone() }]);
    node.scan(std::slice::from_ref(&copy));
    node.actions.clear();
    for _ in 0..3 {
        node.answer(&[allow(WEB, 2)]);
    }
    assert_eq!(resumes(&node.actions), 0);
}

#[test]
fn a_stale_copy_is_not_resumed_by_the_newer_epochs_lease() {
    let (mut node, _) = arrived(CopyState::Paused);
    node.answer(&[allow(WEB, 3)]);
    assert_eq!((resumes(&node.actions), destroyed(&node.actions)), (0, 1));
}

#[test]
fn what_is_held_on_lapse_is_not_resumed_from_lapse_on() {
    let mut node = Node::with(Policy { lapse: Lapse::Hold, ..policy() }, Memory::First(BOOT));
    let copy = SeenCopy { state: CopyState::Paused, ..node.copy(WEB, 41) };
    node.scan(&[copy]);
    node.question = None;
    node.answer(&[incoming(2)]);
    node.answer(&[allow(WEB, 2)]);
    node.run_dry(node.now.as_nanos() as f64 / 1e9 + 13.0);
    assert!(resumes(&node.actions) > 1, "asked for again while it does not run");
    node.actions.clear();
    assert_eq!(node.run_dry(1060.0), [], "it is held");
    assert_eq!(resumes(&node.actions), 0);
}

#[test]
fn it_is_asked_for_again_while_it_does_not_run_and_by_the_next_guard_too() {
    let (mut node, copy) = arrived(CopyState::Paused);
    assert_eq!(resumes(&node.answer(&[allow(WEB, 2)])), 1);
    assert_eq!(resumes(&node.step(Event::Tick)), 0, "libvirt has been asked");
    let later = node.guard.wake_at(node.now).max(node.now + policy().timing.renew);
    assert_eq!(resumes(&node.at(later.as_nanos() as f64 / 1e9).step(Event::Tick)), 1, "an interval later");
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    let mut next = Node::with(policy(), Memory::Restored(ledger));
    next.now = node.now;
    next.actions.clear();
    next.scan(&[copy]);
    next.answer(&[allow(WEB, 2)]);
    assert_eq!(resumes(&next.actions), 1);
}

#[test]
fn nothing_resumes_what_was_denied_what_lapsed_or_what_started_here_and_was_paused() {
    let (mut node, _) = arrived(CopyState::Paused);
    node.answer(&[deny(WEB, 3)]);
    assert_eq!((resumes(&node.actions), destroyed(&node.actions)), (0, 1), "a paused copy is a copy");

    let (mut node, _) = arrived(CopyState::Paused);
    let kills = node.run_dry(1060.0);
    assert_eq!((resumes(&node.actions), kills.len()), (0, 1), "paused or not, it dies with its lease");

    let mut node = Node::running(1010.0);
    let paused = SeenCopy {
        state: CopyState::Paused,
        process: node.guard.ledger().domains[&WEB].copies[0].process,
        ..node.copy(WEB, 41)
    };
    node.scan(&[paused]);
    node.answer(&[allow(WEB, 1)]);
    assert_eq!(resumes(&node.actions), 0);
}

#[test]
fn one_whose_status_is_not_written_yet_is_not_reported_running() {
    let (mut node, copy) = arrived(CopyState::Unknown);
    assert_eq!(state(&mut node), NamedState::Starting);
    node.scan(&[SeenCopy { state: CopyState::Paused, ..copy.clone() }]);
    assert_eq!(state(&mut node), NamedState::Paused);
    // An unpaused migration: libvirt runs it by itself, and the authority hears of that at once.
    node.at(node.now.as_nanos() as f64 / 1e9 + 0.02);
    node.scan(&[SeenCopy { state: CopyState::Running, ..copy }]);
    assert!(node.question.is_some(), "no hook fires at cut-over");
    assert_eq!(state(&mut node), NamedState::Running);
    // Any other process without a status may be running.
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.scan(&[SeenCopy { state: CopyState::Unknown, process, ..node.copy(WEB, 41) }]);
    assert_eq!(state(&mut node), NamedState::Running);
}

#[test]
fn a_guard_that_lost_its_ledger_resumes_what_has_come_meanwhile() {
    let mut node = Node::new();
    let copy = SeenCopy { state: CopyState::Paused, ..node.copy(WEB, 41) };
    node.scan(&[copy]);
    node.question = None;
    node.answer(&[incoming(2)]);
    assert_eq!(resumes(&node.answer(&[allow(WEB, 2)])), 1);
}

#[test]
fn a_start_that_is_no_migration_is_refused_while_it_may_only_come() {
    let mut node = Node::new();
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[incoming(2)]);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None, "an answer could still make it this node's");
    let question = node.ask();
    let answer = node.answer_to(&question, &[incoming(2)]);
    let sentence = refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    assert!(sentence.contains("may only receive it by live migration (epoch 2)"), "{sentence}");
}
