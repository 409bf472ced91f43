//! The first question of a guard waits for its watchdog, so that no answer is given that relies on no bound.

use super::*;

const BOUND: Duration = Duration::from_secs(26);

/// A guard whose watchdog is not armed yet, in its first turn at second 1000.
fn arming(memory: Memory, policy: Policy) -> Node {
    let guard = Guard::new(policy, ME, memory).awaiting_watchdog();
    let mut node = Node { guard, now: secs(1000.0), question: None, actions: vec![], hooks: 0, authority_clock: 0 };
    node.step(Event::Tick);
    node
}

fn first() -> Node {
    arming(Memory::First(BOOT), policy())
}

/// When the first question leaves if nothing more happens.
fn asks_by_itself(node: &mut Node) -> BootTime {
    node.ask();
    node.now
}

#[test]
fn the_first_question_waits_for_the_arming_and_states_the_bound() {
    let mut node = first();
    node.scan(&[]);
    assert!(node.question.is_none(), "the device has its permit only now");
    node.at(1000.1);
    node.step(Event::Watchdog { bound: Some(BOUND) });
    assert_eq!(node.question.map(|question| question.bound), Some(Some(BOUND)));
}

#[test]
fn a_watchdog_that_is_refused_is_not_waited_for_longer() {
    let mut node = first();
    node.scan(&[]);
    node.at(1000.1);
    node.step(Event::Watchdog { bound: None });
    assert_eq!(node.question.map(|question| question.bound), Some(None));
}

#[test]
fn one_that_says_nothing_is_waited_for_a_second_and_a_half_or_one_interval() {
    assert_eq!(asks_by_itself(&mut first()), secs(1001.5));
    let mut fast = arming(Memory::First(BOOT), Policy { timing: Timing::profile(Profile::Fast), ..policy() });
    fast.scan(&[]);
    assert_eq!(asks_by_itself(&mut fast), secs(1001.0));
}

#[test]
fn what_is_found_running_is_asked_about_at_once_for_nothing_is_armed_before_the_answer() {
    let mut node = first();
    let copy = node.copy(WEB, 41);
    node.scan(&[copy]);
    let question = node.question.take().expect("it leaves in the very turn in which the domain was found");
    assert_eq!(question.domains.len(), 1);
    let answer = node.answer_to(&question, &[allow(WEB, 4)]);
    node.step(Event::Answered(Box::new(answer)));
    let copy = &node.guard.ledger().domains[&WEB].copies[0];
    assert_eq!(
        (copy.epoch, copy.expires),
        (Some(Epoch(4)), node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires)
    );
}

#[test]
fn a_hook_that_waits_meanwhile_has_half_of_its_time_left_for_the_answer() {
    let mut node = first();
    node.scan(&[]);
    node.at(1000.1);
    let asked = node.now + Duration::from_millis(2700) / 2;
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    assert_eq!(asks_by_itself(&mut node), asked);
    let question = Question {
        number: QuestionNumber(1),
        sent: asked,
        bound: None,
        timeout: Duration::ZERO,
        domains: vec![],
        receipts: vec![],
    };
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), Some(Verdict::Allow));
}

#[test]
fn where_no_bound_would_be_stated_or_it_is_promised_already_nothing_is_waited_for() {
    for policy in [
        Policy { observe: true, ..policy() },
        Policy { unkillable: Unkillable::Report, ..policy() },
        Policy { bound: Some(BOUND), ..policy() },
    ] {
        assert!(arming(Memory::First(BOOT), policy).question.is_some());
    }
    let mut lost = arming(Memory::Lost(BOOT), policy());
    lost.scan(&[]);
    assert!(lost.question.is_some(), "without its ledger it has no permit to arm under");
}
