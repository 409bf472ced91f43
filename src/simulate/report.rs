//! What a scenario came to, for a person and as JSON.

use super::expect::Met;
use super::phrase::Names;
use super::record::{Broken, Entry, Kind, t};
use super::world::World;
use crate::lease::time::BootTime;
use crate::protocol::Proof;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// What it came to.
#[derive(Debug, Clone)]
pub struct Report {
    t: BootTime,
    names: Names,
    entries: Vec<Entry>,
    /// Revoked rights and their proofs.
    pub revoked: Vec<Gone>,
    /// Broken promises.
    pub violations: Vec<Fault>,
    /// What the script expects.
    pub expectations: Vec<Met>,
    /// Guards' strikes at living processes.
    pub kills: usize,
    /// Resets by a watchdog or a last resort.
    pub resets: usize,
    /// On how many machines each domain ran.
    pub ran_on: Vec<usize>,
    /// When each line of the script was done, after T; `None`: never.
    pub done: Vec<Option<Duration>>,
    limit: bool,
}

/// A revoked right.
#[derive(Debug, Clone, Serialize)]
pub struct Gone {
    /// The domain.
    pub domain: String,
    /// Where it ran.
    pub host: String,
    /// Revoked, in milliseconds after T.
    pub revoked_at_ms: f64,
    /// From when it may start elsewhere, and by which proof; null: never.
    pub safe_at_ms: Option<f64>,
    /// How that was known.
    pub proof: Option<Proof>,
    /// When its bound is over; null: it has none.
    pub bound_at_ms: Option<f64>,
    /// When its last process ended; null: none ran then, or it lives.
    pub dead_at_ms: Option<f64>,
    /// The authority was away meanwhile, and counted again, or on, from when it was back.
    pub authority_away: bool,
}

/// A broken promise.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    /// In milliseconds after T.
    pub at_ms: f64,
    /// Which.
    pub promise: Broken,
    /// A sentence.
    pub text: String,
    /// It is what the scenario is there to show.
    pub expected: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    at_ms: f64,
    host: Option<&'a str>,
    kind: Kind,
    text: &'a str,
    more: usize,
}

#[derive(Serialize)]
struct Json<'a> {
    safe: bool,
    timeline: Vec<Line<'a>>,
    revoked: &'a [Gone],
    violations: &'a [Fault],
    expectations: &'a [Met],
}

impl Report {
    pub(super) fn of(world: &World<'_>) -> Report {
        let names = world.setup.names.clone();
        let ms = |at: BootTime| millis(world.t, at);
        let gone = |one: &super::record::Revoked| {
            let over = one.safe.map_or(BootTime::NEVER, |safe| safe.0);
            Gone {
                domain: names.domains[one.domain.0].clone(),
                host: one.host.map_or("a node without a machine".into(), |host| names.hosts[host.0].clone()),
                revoked_at_ms: ms(one.at),
                safe_at_ms: one.safe.map(|safe| ms(safe.0)),
                proof: one.safe.map(|safe| safe.1),
                bound_at_ms: one.bound_at.map(ms),
                dead_at_ms: world.outlived(one).map(ms),
                authority_away: world.record.authority_starts.iter().any(|&at| at > one.at && at <= over),
            }
        };
        let fault = |one: &super::record::Violation| Fault {
            at_ms: ms(one.at),
            promise: one.what,
            text: one.text.clone(),
            expected: world.is_expected(one.what),
        };
        let ran_on = |domain: usize| {
            let lives = world.record.lives.iter().filter(|life| life.domain.0 == domain && !life.ran.is_empty());
            lives.map(|life| life.host).collect::<std::collections::BTreeSet<_>>().len()
        };
        Report {
            t: world.t,
            entries: world.record.entries.clone(),
            revoked: world.record.revoked.iter().filter(|one| one.at >= world.t).map(gone).collect(),
            violations: world.record.violations.iter().map(fault).collect(),
            expectations: world.script.expects.iter().map(|expect| world.judge(expect)).collect(),
            kills: world.record.lives.iter().filter(|life| life.struck.is_some()).count(),
            resets: world.record.resets.len(),
            ran_on: (0..names.domains.len()).map(ran_on).collect(),
            done: world.done.iter().map(|done| done.map(|at| at.since(world.t))).collect(),
            limit: world.setup.limit,
            names,
        }
    }

    /// No promise was broken, and all that the script expects came true.
    pub fn is_safe(&self) -> bool {
        self.violations.is_empty() && self.is_as_expected()
    }

    /// All that the script expects came true, and nothing else was broken.
    pub fn is_as_expected(&self) -> bool {
        self.violations.iter().all(|one| one.expected) && self.expectations.iter().all(|met| met.why_not.is_none())
    }

    /// For a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let host = |entry: &Entry| entry.host.map_or("-", |host| self.names.hosts[host.0].as_str());
        let width = self.entries.iter().map(|entry| host(entry).len()).max().unwrap_or(1);
        for entry in &self.entries {
            let _ = write!(text, "{:<10} {:width$}  {}", t(self.t, entry.at), host(entry), entry.text);
            let last = t(self.t, entry.last);
            let _ = match (entry.more, entry.hosts.len()) {
                (0, _) => writeln!(text),
                (more, 0 | 1) => writeln!(text, " (and {more} more like it, the last at {last})"),
                (more, hosts) => writeln!(text, " (and {more} more like it on {hosts} machines, the last at {last})"),
            };
        }
        text.push('\n');
        self.verdict(&mut text);
        text
    }

    fn verdict(&self, text: &mut String) {
        let at = |ms: f64| format!("T+{:.3}", (ms.floor()) / 1000.0);
        let mut alike: Vec<(&Gone, usize)> = Vec::new();
        for one in &self.revoked {
            match alike.last_mut() {
                Some((first, count)) if first.proof == one.proof && self.revoked.len() > 10 => {
                    *count += 1;
                    if one.safe_at_ms > first.safe_at_ms {
                        *first = one;
                    }
                }
                _ => alike.push((one, 1)),
            }
        }
        for (one, count) in alike {
            let Gone { domain, host, .. } = one;
            let many = if count > 1 { format!(" (the last of {count})") } else { String::new() };
            let safe = match (one.safe_at_ms, one.proof) {
                (Some(ms), Some(proof)) => format!("safe to start elsewhere at {} by {}", at(ms), by(proof)),
                _ => "not safe to start elsewhere".to_owned(),
            };
            let bound = one.bound_at_ms.map_or("no bound covers it".to_owned(), |ms| format!("bound {}", at(ms)));
            let dead = one.dead_at_ms.map_or(String::new(), |ms| format!("; its process was gone at {}", at(ms)));
            let _ = writeln!(
                text,
                "{domain} on {host}, revoked at {}: {safe} ({bound}){dead}{many}",
                at(one.revoked_at_ms)
            );
        }
        let held = self.expectations.iter().filter(|met| met.why_not.is_none()).count();
        for met in self.expectations.iter().filter(|met| met.why_not.is_some()) {
            let why = met.why_not.as_deref().unwrap_or_default();
            let _ = writeln!(text, "line {}: expected, and not so: {}: {why}", met.line, met.text);
        }
        for one in &self.violations {
            let known = if one.expected { ", as this scenario is there to show" } else { "" };
            let _ = writeln!(text, "BROKEN at {}: {}{known}", at(one.at_ms), one.text);
        }
        let word = match (self.violations.is_empty(), self.is_as_expected()) {
            (true, true) => "safe: no promise was broken",
            (true, false) => "no promise was broken, but not all is as expected",
            (false, true) if self.limit => "NOT SAFE: this is a limit of what is promised",
            (false, _) => "NOT SAFE: a promise was broken",
        };
        let _ = writeln!(text, "{word}; {held} of {} expectations hold", self.expectations.len());
    }

    /// Stable names with their units, additions only.
    ///
    /// # Errors
    /// None that plain data can give.
    pub fn json(&self) -> serde_json::Result<String> {
        let line =
            |entry: &'_ Entry| -> (f64, Option<usize>) { (millis(self.t, entry.at), entry.host.map(|host| host.0)) };
        let lines = self.entries.iter().map(|entry| {
            let (at_ms, host) = line(entry);
            let host = host.map(|host| self.names.hosts[host].as_str());
            Line { at_ms, host, kind: entry.kind, text: &entry.text, more: entry.more }
        });
        serde_json::to_string_pretty(&Json {
            safe: self.is_safe(),
            timeline: lines.collect(),
            revoked: &self.revoked,
            violations: &self.violations,
            expectations: &self.expectations,
        })
    }
}

fn by(proof: Proof) -> &'static str {
    match proof {
        Proof::Receipt => "receipt",
        Proof::Bound => "its bound",
        Proof::Reboot => "the machine's reboot",
        Proof::NeverClaimed => "the fact that no answer ever gave it away",
        Proof::Operator => "an operator's word",
    }
}

fn millis(from: BootTime, at: BootTime) -> f64 {
    (at.as_nanos() as f64 - from.as_nanos() as f64) / 1e6
}
