//! What a person is told when nobody answers, and what the fence record keeps.

use super::*;
use crate::lease::fence::{Cause, Mark, What};

fn told(actions: &[Action], severity: Severity) -> Vec<String> {
    let notice = |action: &Action| match action {
        Action::Tell(notice) if notice.severity == severity => Some(notice.text.clone()),
        _ => None,
    };
    actions.iter().filter_map(notice).collect()
}

fn marks(actions: &[Action]) -> Vec<Mark> {
    let mark = |action: &Action| match action {
        Action::Mark(mark) => Some(mark.clone()),
        _ => None,
    };
    actions.iter().filter_map(mark).collect()
}

/// So many domains run under leases answered at 1000 s.
fn running(count: u8) -> Node {
    let mut node = Node::new();
    let id = |n: u8| DomainId::from_bytes([n + 10; 16]);
    let seen: Vec<SeenCopy> = (0..count).map(|n| node.copy(id(n), 100 + i32::from(n))).collect();
    node.scan(&seen);
    let claims: Vec<ClaimEntry> = (0..count).map(|n| allow(id(n), 1)).collect();
    node.answer(&claims);
    node.actions.clear();
    node
}

/// When the question was sent whose answer was the last, in seconds.
fn answered(node: &Node) -> f64 {
    node.guard.ledger().contact.unwrap().as_nanos() as f64 / 1e9
}

#[test]
fn half_a_ttl_of_silence_is_said_once_while_there_is_time_to_act() {
    let mut node = running(1);
    let sent = answered(&node);
    assert!(told(&node.at(sent + 7.4).step(Event::Tick), Severity::Warning).is_empty());
    assert!(node.guard.wake_at(node.now) <= secs(sent + 7.5), "it wakes for that alone");
    let said = told(&node.at(sent + 7.5).step(Event::Tick), Severity::Warning);
    assert_eq!(said.len(), 1);
    assert!(
        said[0].contains("no answer from the authority for 7.5 s") && said[0].contains("ends in 7.5 s"),
        "{said:?}"
    );
    assert_eq!(marks(&node.actions).iter().map(|mark| mark.event).collect::<Vec<_>>(), [What::Silence]);
    assert!(told(&node.at(sent + 9.0).step(Event::Tick), Severity::Warning).is_empty(), "once");
    node.answer(&[allow(DomainId::from_bytes([10; 16]), 1)]);
    let sent = answered(&node);
    assert_eq!(told(&node.at(sent + 7.5).step(Event::Tick), Severity::Warning).len(), 1, "a new spell is told anew");
}

#[test]
fn silence_over_a_host_on_which_nothing_runs_is_not_worth_a_line() {
    let mut node = Node::new();
    let sent = answered(&node);
    assert!(told(&node.at(sent + 8.0).step(Event::Tick), Severity::Warning).is_empty());
}

#[test]
fn two_hundred_leases_that_lapse_at_once_wake_a_person_with_one_line_at_lapse_and_one_at_the_kill() {
    let mut node = running(200);
    let sent = answered(&node);
    let lapse = node.at(sent + 13.0).step(Event::Tick);
    let said = told(&lapse, Severity::Emergency);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("200 domains must die") && said[0].contains("SIGKILL follows in 2.0 s"), "{said:?}");
    let kept = marks(&lapse).into_iter().find(|mark| mark.event == What::Condemned).unwrap();
    assert_eq!((kept.domains.len(), kept.more), (200, 0));
    assert_eq!((kept.last_answer, kept.domains[0].cause), (Some(secs(sent)), Cause::Lapsed));
    let kill = node.at(sent + 15.0).step(Event::Tick);
    assert_eq!(told(&kill, Severity::Emergency).len(), 1);
    assert_eq!(marks(&kill)[0].event, What::Killed);
}

#[test]
fn leases_that_end_one_after_the_other_in_one_silence_wake_a_person_once_and_are_all_in_the_record() {
    let mut node = running(3);
    let id = |n: u8| DomainId::from_bytes([n + 10; 16]);
    // Each is named by one answer less than the next.
    node.answer(&[allow(id(1), 1), allow(id(2), 1)]);
    node.answer(&[allow(id(2), 1)]);
    node.actions.clear();
    let sent = answered(&node);
    node.run_dry(sent + 16.0);
    let said = told(&node.actions, Severity::Emergency);
    assert_eq!(said.len(), 2, "one for the lapse and one for the kill: {said:?}");
    let condemned = marks(&node.actions).into_iter().filter(|mark| mark.event == What::Condemned);
    assert_eq!(condemned.flat_map(|mark| mark.domains).count(), 3);
    // The next silence is another spell.
    node.question = None;
    let copy = node.copy(id(5), 200);
    node.scan(&[copy]);
    node.answer(&[allow(id(5), 1)]);
    node.actions.clear();
    let sent = answered(&node);
    node.run_dry(sent + 16.0);
    assert_eq!(told(&node.actions, Severity::Emergency).len(), 2);
}

#[test]
fn a_revocation_is_kept_in_the_record_and_wakes_nobody() {
    let mut node = running(1);
    let id = DomainId::from_bytes([10; 16]);
    let denied = node.answer(&[deny(id, 1)]);
    assert_eq!(told(&denied, Severity::Emergency), Vec::<String>::new());
    assert_eq!(marks(&denied)[0].domains[0].cause, Cause::Denied);
    let process = node.guard.ledger().domains[&id].copies[0].process;
    let gone = node.step(Event::Gone { domain: id, process });
    assert_eq!(marks(&gone)[0].event, What::Gone);
}

#[test]
fn a_guest_that_shuts_down_by_itself_leaves_no_mark_and_neither_does_a_site_that_observes() {
    let mut node = running(1);
    let id = DomainId::from_bytes([10; 16]);
    let process = node.guard.ledger().domains[&id].copies[0].process;
    assert!(marks(&node.step(Event::Gone { domain: id, process })).is_empty());

    let mut node = Node::with(Policy { observe: true, ..policy() }, Memory::First(BOOT));
    let copy = node.copy(id, 100);
    node.scan(&[copy]);
    node.answer(&[allow(id, 1)]);
    let sent = answered(&node);
    let lapse = node.at(sent + 15.0).step(Event::Tick);
    assert!(marks(&lapse).is_empty() && told(&lapse, Severity::Emergency).is_empty());
}
