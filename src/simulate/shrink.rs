//! From a schedule that breaks a promise to the shortest that still does, as a script anybody can read.

use super::report::Report;
use super::script::{Script, Setting, Step};
use super::try_out;
use super::when::{Base, When};

/// Drops lines, in ever smaller pieces, and then settings, for as long as it still fails.
pub fn shrink(script: &Script, fails: &dyn Fn(&Script) -> bool) -> Script {
    let mut best = script.clone();
    let mut piece = best.steps.len().div_ceil(2);
    while piece > 0 {
        let (mut at, mut less) = (0, false);
        while at < best.steps.len() {
            let mut tried = best.clone();
            tried.steps.drain(at..(at + piece).min(tried.steps.len()));
            if fails(&tried) {
                (best, less) = (tried, true);
            } else {
                at += piece;
            }
        }
        if piece > 1 || !less {
            piece /= 2;
        }
    }
    for line in (0..best.settings.len()).rev() {
        let needed =
            matches!(best.settings[line].verb, Setting::Profile | Setting::Nodes | Setting::Domain | Setting::RunFor);
        if !needed && let Some(tried) = without(&best, line).filter(|tried| fails(tried)) {
            best = tried;
        }
    }
    best
}

fn without(script: &Script, line: usize) -> Option<Script> {
    let mut settings = script.settings.clone();
    settings.remove(line);
    let (steps, expects) = (script.steps.clone(), script.expects.clone());
    let mut tried = Script { story: vec![], settings: vec![], setup: Default::default(), steps, expects };
    settings.into_iter().try_for_each(|setting| tried.set(setting)).ok()?;
    Some(tried)
}

/// The same with every line at the time after T at which it was done, so that it runs as strictly as any other script.
/// `None`: it fails that way no more.
pub fn settle(script: &Script, fails: &dyn Fn(&Script) -> bool) -> Option<Script> {
    let report: Report = try_out(script).ok()?;
    let mut settled = script.clone();
    let timed = script.steps.iter().zip(&report.done).filter_map(|(step, done)| {
        let at = When { base: Base::T, plus: done.as_ref()?.as_nanos().div_ceil(1000) as i64 };
        Some(Step { at, ..step.clone() })
    });
    settled.steps = timed.collect();
    fails(&settled).then_some(settled)
}
