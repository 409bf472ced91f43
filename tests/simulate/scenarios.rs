//! Every scenario under tests/scenarios: a script that tells a story and what must hold in it, and the timeline it gives.
//!
//! `LEASEHOLD_WRITE_SCENARIOS=1` writes the timelines anew. Read the difference before it is kept: what a script expects
//! is the specification, and the timeline is only what it looks like.

use leasehold::simulate::script::Script;
use leasehold::simulate::simulate;
use std::fs;
use std::path::PathBuf;

fn all() -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut all: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn every_scenario_ends_as_its_script_expects_and_as_it_did_before() {
    let write = std::env::var_os("LEASEHOLD_WRITE_SCENARIOS").is_some();
    let mut wrong = Vec::new();
    for dir in all() {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(dir.join("script")).unwrap();
        let done = Script::parse(&text).and_then(|script| Ok((simulate(&script)?, script)));
        let (report, script) = match done {
            Ok(done) => done,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let timeline = report.text();
        if script.story.is_empty() || script.expects.is_empty() {
            wrong.push(format!("{name}: tells no story, or expects nothing"));
        }
        if !report.is_as_expected() {
            let tail: Vec<_> = timeline.lines().rev().take(40).collect();
            wrong.push(format!("{name}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n")));
        }
        let expected = dir.join("expected");
        if write {
            fs::write(&expected, &timeline).unwrap();
        }
        let before = fs::read_to_string(&expected).unwrap_or_default();
        if before != timeline {
            wrong.push(format!(
                "{name}: the timeline is another than in its file 'expected'\n{}",
                difference(&before, &timeline)
            ));
        }
    }
    assert!(wrong.is_empty(), "{} scenarios\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// The lines that differ, each with a few around it: `-` was expected, `+` came.
fn difference(before: &str, now: &str) -> String {
    let (before, now): (Vec<_>, Vec<_>) = (before.lines().collect(), now.lines().collect());
    let same = before.iter().zip(&now).take_while(|(a, b)| a == b).count();
    let rest = before[same..].iter().rev().zip(now[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    let mut show = |sign: &str, lines: &[&str]| {
        lines.iter().take(12).for_each(|line| text.push_str(&format!("{sign} {line}\n")));
        if lines.len() > 12 {
            text.push_str(&format!("{sign} ... and {} lines more\n", lines.len() - 12));
        }
    };
    show(" ", &before[same.saturating_sub(2)..same]);
    show("-", &before[same..before.len() - rest]);
    show("+", &now[same..now.len() - rest]);
    text
}

#[test]
fn there_are_scenarios_enough_and_each_name_is_a_sentence() {
    let all = all();
    assert!(all.len() >= 40, "{}", all.len());
    for dir in all {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(name.chars().all(good) && name.split('-').count() > 3, "{name}");
    }
}
