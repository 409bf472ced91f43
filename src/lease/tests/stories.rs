//! What the fence record tells afterwards.

use super::*;
use crate::lease::fence::{Cause, Line, Mark, Unfed, VERSION as FORMAT, Victim, What};
use crate::lease::fence_story::{BootStatus, Ending, Present, Story, is_unfed, tell};

const LATER_BOOT: BootId = BootId::from_bytes([8; 16]);

fn victim(domain: DomainId, cause: Cause) -> Victim {
    let waits_for = Some("thread 41 is in state D".to_owned());
    let why = "its lease was not renewed".to_owned();
    Victim {
        domain,
        name: "web-1".into(),
        pid: 41,
        epoch: Some(Epoch(3)),
        cause,
        why,
        expires: secs(1015.0),
        waits_for,
    }
}

fn line(boot_id: BootId, at: f64, event: What, domains: Vec<Victim>) -> Line {
    let (device, why) = ("/dev/watchdog0".into(), Some("the guard's scan is late".into()));
    let unfed = Unfed { device, timeout_s: 10, why, fed: secs(1014.0), reset_by: secs(1024.0) };
    let watchdog = matches!(event, What::LastFeed | What::FedAgain | What::Stopped).then_some(unfed);
    let mark = Mark { at: secs(at), event, last_answer: Some(secs(1000.0)), domains, more: 0, watchdog };
    let wall = "2026-12-01T03:12:09Z".to_owned();
    Line { version: FORMAT, node: "n1".parse().unwrap(), boot_id, incarnation: ME, wall, lost_marks: 0, mark }
}

/// Contact lost, WEB unkillable.
fn unkillable() -> Vec<Line> {
    let web = || vec![victim(WEB, Cause::Lapsed)];
    vec![
        line(BOOT, 1013.0, What::Condemned, web()),
        line(BOOT, 1014.2, What::LastFeed, vec![]),
        line(BOOT, 1015.0, What::Killed, web()),
        line(BOOT, 1019.5, What::GivenUp, web()),
    ]
}

fn killable() -> Vec<Line> {
    let web = || vec![victim(WEB, Cause::Lapsed)];
    let mut record = unkillable();
    record.truncate(3);
    record.extend([line(BOOT, 1015.1, What::Gone, web()), line(BOOT, 1015.3, What::FedAgain, vec![])]);
    record
}

/// In this boot: before the reset is due in the boot of the record, and some time after the start of any other.
fn present(boot: BootId, boot_status: BootStatus) -> Present {
    Present { boot, now: secs(if boot == BOOT { 1020.0 } else { 60.0 }), boot_status }
}

fn only(record: &[Line], boot: BootId, boot_status: BootStatus, domain: Option<DomainId>) -> Story {
    let mut stories = tell(record, &present(boot, boot_status), domain);
    assert_eq!(stories.len(), 1, "{stories:?}");
    stories.remove(0)
}

#[test]
fn a_line_of_the_record_reads_back_as_it_was_written_with_units_in_its_names() {
    for line in unkillable() {
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }
    let json = serde_json::to_value(&unkillable()[1]).unwrap();
    assert_eq!((&json["event"], &json["at_ms"]), (&"last_feed".into(), &1_014_200.into()));
    assert_eq!((&json["watchdog"]["fed_ms"], &json["last_answer_ms"]), (&1_014_000.into(), &1_000_000.into()));
}

#[test]
fn after_a_reset_the_next_boot_tells_what_could_not_be_killed_and_when_each_step_was() {
    let story = only(&unkillable(), LATER_BOOT, BootStatus::ResetByWatchdog, None);
    assert_eq!(story.ending, Ending::Reset);
    assert!(story.headline.contains("host n1 was reset by its watchdog /dev/watchdog0"), "{}", story.headline);
    let instants: Vec<(u64, bool)> =
        story.timeline.iter().map(|instant| (instant.t_ms, instant.what.contains("web-1"))).collect();
    assert_eq!(instants, [(13_000, true), (14_000, false), (15_000, true), (19_500, true), (24_000, false)]);
    assert!(story.timeline[3].what.contains("thread 41 is in state D"));
}

#[test]
fn where_the_driver_does_not_say_that_it_was_a_reset_neither_does_the_story() {
    let story = only(&unkillable(), LATER_BOOT, BootStatus::Silent, None);
    assert!(story.headline.contains("was most likely reset"), "{}", story.headline);
}

#[test]
fn in_the_boot_of_the_last_feed_the_reset_is_still_to_come() {
    assert_eq!(
        tell(&unkillable(), &present(BOOT, BootStatus::Silent), None).last().unwrap().ending,
        Ending::ResetIsDue
    );
}

#[test]
fn a_reset_that_was_due_long_ago_in_this_very_boot_is_told_as_one_that_did_not_come() {
    let late = Present { now: secs(1100.0), ..present(BOOT, BootStatus::Silent) };
    let story = tell(&unkillable(), &late, None).pop().unwrap();
    assert_eq!(story.ending, Ending::ResetIsOverdue);
    assert!(story.headline.contains("should have reset this host 76 s ago and did not"), "{}", story.headline);
}

#[test]
fn a_device_that_was_stopped_or_fed_again_by_whatever_guard_has_reset_nothing() {
    for end in [What::Stopped, What::FedAgain] {
        let mut record = unkillable();
        assert!(is_unfed(&record, BOOT) && !is_unfed(&record, LATER_BOOT));
        record.push(line(BOOT, 1020.0, end, vec![]));
        assert!(!is_unfed(&record, BOOT));
        for boot in [BOOT, LATER_BOOT] {
            assert_eq!(only(&record, boot, BootStatus::Silent, None).ending, Ending::Death, "{end:?}");
        }
    }
}

#[test]
fn a_boot_that_went_on_after_the_reset_was_due_was_not_ended_by_it() {
    let mut record = unkillable();
    record.push(line(BOOT, 1027.0, What::Gone, vec![victim(WEB, Cause::Lapsed)]));
    assert_eq!(only(&record, LATER_BOOT, BootStatus::Silent, None).ending, Ending::Death);
}

#[test]
fn the_story_says_what_the_device_was_not_fed_for() {
    for (boot, record) in [(BOOT, unkillable()), (LATER_BOOT, unkillable())] {
        let story = tell(&record, &present(boot, BootStatus::Silent), None).pop().unwrap();
        assert!(story.headline.contains("fed no more") && story.headline.contains("the guard's scan is late"));
    }
}

#[test]
fn the_story_begins_with_the_silence_that_it_came_of() {
    let mut record = unkillable();
    record.insert(0, line(BOOT, 1007.5, What::Silence, vec![victim(WEB, Cause::Lapsed)]));
    // An earlier silence that an answer ended is another story.
    let mut earlier = line(BOOT, 900.0, What::Silence, vec![victim(WEB, Cause::Lapsed)]);
    earlier.mark.last_answer = Some(secs(892.5));
    record.insert(0, earlier);
    let story = only(&record, LATER_BOOT, BootStatus::Silent, None);
    assert_eq!((story.timeline[0].t_ms, story.lines.len()), (7_500, 5));
    assert!(story.timeline[0].what.contains("no answer"), "{}", story.timeline[0].what);
    assert_eq!(only(&record[..2], LATER_BOOT, BootStatus::Silent, None).ending, Ending::Nothing, "nothing came of it");
}

#[test]
fn what_was_killed_in_time_is_a_death_and_no_reset_whatever_came_after() {
    for boot in [BOOT, LATER_BOOT] {
        let story = only(&killable(), boot, BootStatus::Silent, None);
        assert_eq!(story.ending, Ending::Death);
        assert!(story.headline.contains("web-1") && story.headline.contains("not renewed"), "{}", story.headline);
        assert_eq!(story.timeline.last().unwrap().t_ms, 15_300);
    }
}

#[test]
fn a_reset_two_boots_ago_is_not_told_as_the_last() {
    let mut record = unkillable();
    record.push(line(BootId::from_bytes([9; 16]), 50.0, What::Condemned, vec![victim(DB, Cause::Denied)]));
    let story = only(&record, LATER_BOOT, BootStatus::Silent, None);
    assert_eq!(story.ending, Ending::Death);
}

#[test]
fn what_died_since_the_reset_is_told_before_it() {
    let mut record = unkillable();
    record.push(line(LATER_BOOT, 50.0, What::Condemned, vec![victim(DB, Cause::Denied)]));
    let endings: Vec<_> =
        tell(&record, &present(LATER_BOOT, BootStatus::Silent), None).iter().map(|story| story.ending).collect();
    assert_eq!(endings, [Ending::Death, Ending::Reset]);
    let denied = &tell(&record, &present(LATER_BOOT, BootStatus::Silent), Some(DB))[0];
    assert_eq!((denied.timeline[0].t_ms, denied.lines.len()), (0, 1), "a revocation begins with itself");
}

#[test]
fn one_domain_alone_is_told_only_of_what_it_was_part_of() {
    assert_eq!(only(&unkillable(), LATER_BOOT, BootStatus::Silent, Some(WEB)).ending, Ending::Reset);
    assert_eq!(only(&unkillable(), LATER_BOOT, BootStatus::Silent, Some(DB)).ending, Ending::Nothing);
}

#[test]
fn without_a_record_only_the_driver_speaks() {
    let silent = only(&[], BOOT, BootStatus::Silent, None);
    assert!(silent.headline.contains("killed nothing here"), "{}", silent.headline);
    let reset = only(&[], BOOT, BootStatus::ResetByWatchdog, None);
    assert!(reset.headline.contains("has no record of that"), "{}", reset.headline);
}
