//! What the fence record tells a person: why this host was reset, or why a domain died here.

use super::fence::{Cause, Line, MOST_LISTED, Unfed, Victim, What};
use super::id::{BootId, DomainId};
use super::ledger::label;
use super::time::BootTime;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// A reset that was due is not coming any more when the host still runs so long after it.
const GRACE: Duration = Duration::from_secs(2);

/// Domains of one mark that the timeline names; it counts the others.
const MOST_NAMED: usize = 3;

/// What a watchdog's driver says of the last reset (WDIOC_GETBOOTSTATUS, as sysfs shows it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BootStatus {
    /// The device caused it (WDIOF_CARDRESET).
    ResetByWatchdog,
    /// Nothing: many drivers never tell, and many machines forget it.
    Silent,
}

/// How the last that is known of ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The host was reset.
    Reset,
    /// A domain was killed.
    Death,
    /// The watchdog runs out in this very boot.
    ResetIsDue,
    /// It should have reset the host in this very boot, and did not.
    ResetIsOverdue,
    /// Nothing was.
    Nothing,
}

/// One instant of the story.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Instant {
    /// Milliseconds after the story's beginning.
    pub t_ms: u64,
    /// What happened, as a clause.
    pub what: String,
}

/// Why it ended. The JSON is stable: keys are only added.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Story {
    /// What ended.
    pub ending: Ending,
    /// What the driver says of the last reset.
    pub boot_status: BootStatus,
    /// The whole in a sentence or two.
    pub headline: String,
    /// What T+0 is; empty where there is no timeline.
    pub t_zero: String,
    /// The instants in their order.
    pub timeline: Vec<Instant>,
    /// The lines of the record that it is told from.
    pub lines: Vec<Line>,
}

/// When the story is told, and of what is known then.
#[derive(Debug, Clone, Copy)]
pub struct Present {
    /// This boot.
    pub boot: BootId,
    /// CLOCK_BOOTTIME.
    pub now: BootTime,
    /// What the watchdog's driver says.
    pub boot_status: BootStatus,
}

/// The newest stories of the record, the newest first: the reset that ended the last boot, or is due in this one, and
/// what died since, or else what died last. Of the whole host, or of this domain alone. Never empty.
pub fn tell(record: &[Line], present: &Present, domain: Option<DomainId>) -> Vec<Story> {
    let &Present { boot, now, boot_status } = present;
    let about = |at: usize| domain.is_none_or(|domain| open_before(record, at).contains(&domain));
    let unfed = last_unfed(record).filter(|&(at, unfed)| {
        about(at) && is_last_boot_before(record, at, boot) && !outlived(record, at, unfed, boot)
    });
    let death = last_death(record, domain);
    let newer = death
        .filter(|&(at, _)| unfed.is_none_or(|(reset, _)| at > reset && record[at].boot_id != record[reset].boot_id));
    let newer = newer.map(|(at, victim)| {
        let line = &record[at];
        let headline =
            format!("domain {} had to die here, {}: {}", label(&victim.name, victim.domain), line.wall, victim.why);
        story(record, at, Ending::Death, boot_status, headline)
    });
    let reset = unfed.map(|(at, unfed)| {
        let (ending, headline) = match record[at].boot_id == boot {
            true if now > unfed.reset_by + GRACE => (Ending::ResetIsOverdue, overdue(unfed, now)),
            true => (
                Ending::ResetIsDue,
                format!(
                    "{} is fed no more and resets this host, unless what it waits for ends before{}",
                    unfed.device,
                    since_why(unfed)
                ),
            ),
            false => (Ending::Reset, reset_headline(&record[at], unfed, boot_status)),
        };
        story(record, at, ending, boot_status, headline)
    });
    let told: Vec<Story> = newer.into_iter().chain(reset).collect();
    if told.is_empty() { vec![nothing(boot_status, domain)] } else { told }
}

/// Whether the record of this boot says that a watchdog is fed no more, and not that it was fed again or stopped since.
pub fn is_unfed(record: &[Line], boot: BootId) -> bool {
    last_unfed(record).is_some_and(|(at, _)| record[at].boot_id == boot)
}

fn nothing(boot_status: BootStatus, domain: Option<DomainId>) -> Story {
    let headline = match (domain, boot_status) {
        (None, BootStatus::ResetByWatchdog) => {
            "a watchdog of this host says that it caused the last reset, and leasehold has no record of that: another program let it go, or the disk was not to be written on".to_owned()
        }
        (None, BootStatus::Silent) => "leasehold has killed nothing here and reset nothing, as far as its record goes".to_owned(),
        (Some(domain), _) => format!("leasehold has not killed domain {domain} here, as far as its record goes"),
    };
    Story { ending: Ending::Nothing, boot_status, headline, t_zero: String::new(), timeline: vec![], lines: vec![] }
}

fn reset_headline(line: &Line, unfed: &Unfed, boot_status: BootStatus) -> String {
    let sure = match boot_status {
        BootStatus::ResetByWatchdog => "was reset by its watchdog",
        BootStatus::Silent => "was most likely reset by its watchdog (its driver does not say, as many never do)",
    };
    let after = unfed.reset_by.since(line.mark.at).as_secs_f64();
    format!(
        "host {} {sure} {}, within {after:.1} s after {}: it was fed no more{}",
        line.node,
        unfed.device,
        line.wall,
        since_why(unfed)
    )
}

fn overdue(unfed: &Unfed, now: BootTime) -> String {
    format!(
        "{} should have reset this host {:.0} s ago and did not{}; nothing says that it was fed again or stopped. Do not rely on it: drain this host, and see what `leasehold watchdog test` says of it",
        unfed.device,
        now.since(unfed.reset_by).as_secs_f64(),
        since_why(unfed)
    )
}

fn since_why(unfed: &Unfed) -> String {
    unfed.why.as_ref().map_or(String::new(), |why| format!(", because {why}"))
}

/// The last line that says that the watchdog is fed no more, unless it was fed again or stopped after it.
fn last_unfed(record: &[Line]) -> Option<(usize, &Unfed)> {
    let of_the_device = |line: &Line| matches!(line.mark.event, What::LastFeed | What::FedAgain | What::Stopped);
    let at = record.iter().rposition(of_the_device)?;
    let line = &record[at];
    line.mark.watchdog.as_ref().filter(|_| line.mark.event == What::LastFeed).map(|unfed| (at, unfed))
}

/// Whether an earlier boot went on after the reset was due: what ended it then was something else.
fn outlived(record: &[Line], at: usize, unfed: &Unfed, boot: BootId) -> bool {
    let its = record[at..].iter().filter(|line| line.boot_id == record[at].boot_id);
    record[at].boot_id != boot && its.map(|line| line.mark.at).any(|later| later > unfed.reset_by + GRACE)
}

/// Whether nothing was marked in a boot between that one and this: otherwise the reset is not the last that happened.
fn is_last_boot_before(record: &[Line], at: usize, boot: BootId) -> bool {
    record[at..].iter().all(|line| line.boot_id == record[at].boot_id || line.boot_id == boot)
}

fn last_death(record: &[Line], domain: Option<DomainId>) -> Option<(usize, &Victim)> {
    let killed = |line: &Line| matches!(line.mark.event, What::Condemned | What::Killed | What::GivenUp | What::Gone);
    record.iter().enumerate().rev().filter(|(_, line)| killed(line)).find_map(|(at, line)| {
        let victim = line.mark.domains.iter().find(|victim| domain.is_none_or(|domain| victim.domain == domain))?;
        Some((at, victim))
    })
}

/// The domains condemned and not gone before this line, in its boot.
fn open_before(record: &[Line], end: usize) -> BTreeSet<DomainId> {
    let mut open = BTreeSet::new();
    for line in record[..=end].iter().filter(|line| line.boot_id == record[end].boot_id) {
        for victim in &line.mark.domains {
            match line.mark.event {
                What::Gone => open.remove(&victim.domain),
                What::Silence => false,
                _ => open.insert(victim.domain),
            };
        }
    }
    open
}

/// From the condemnation that led to line `end`, through it, to the last line of that boot about the same.
fn story(record: &[Line], end: usize, ending: Ending, boot_status: BootStatus, headline: String) -> Story {
    let boot = record[end].boot_id;
    let about: BTreeSet<DomainId> = match &record[end].mark.domains {
        none if none.is_empty() => open_before(record, end),
        some => some.iter().map(|victim| victim.domain).collect(),
    };
    let concerns = |line: &Line| {
        line.boot_id == boot
            && (line.mark.watchdog.is_some() || line.mark.domains.iter().any(|victim| about.contains(&victim.domain)))
    };
    let condemns = |line: &Line| line.mark.event == What::Condemned && concerns(line);
    let begin = record[..=end].iter().rposition(condemns).unwrap_or(end);
    // The silence that it came of.
    let warned = |line: &Line| {
        line.mark.event == What::Silence && concerns(line) && line.mark.last_answer == record[begin].mark.last_answer
    };
    let begin = record[..begin].iter().rposition(warned).unwrap_or(begin);
    let lines: Vec<Line> = record[begin..].iter().filter(|line| concerns(line)).take(MOST_LISTED).cloned().collect();
    let first = &lines[0].mark;
    let lapsed = first.domains.iter().any(|victim| victim.cause == Cause::Lapsed);
    let (zero, t_zero) = match first.last_answer.filter(|_| lapsed) {
        Some(answer) => (answer, "the question was sent whose answer was the last".to_owned()),
        None => (first.at, "the first of it".to_owned()),
    };
    let mut timeline: Vec<Instant> = lines.iter().flat_map(|line| instants(line, zero)).collect();
    if ending == Ending::Reset
        && let Some(unfed) = lines.iter().rev().find_map(|line| line.mark.watchdog.as_ref())
    {
        timeline.push(Instant { t_ms: since(unfed.reset_by, zero), what: "the reset was due by then".to_owned() });
    }
    timeline.sort_by_key(|instant| instant.t_ms);
    Story { ending, boot_status, headline, t_zero, timeline, lines }
}

fn instants(line: &Line, zero: BootTime) -> Vec<Instant> {
    let mark = &line.mark;
    let one = |at: BootTime, what: String| Instant { t_ms: since(at, zero), what };
    let more = mark.more + mark.domains.len().saturating_sub(MOST_NAMED) as u64;
    let named: Vec<String> = mark.domains.iter().take(MOST_NAMED).map(|victim| clause(mark.event, victim)).collect();
    let tail = if more > 0 { vec![format!("and {more} more domains likewise")] } else { vec![] };
    let mut all: Vec<Instant> = named.into_iter().chain(tail).map(|what| one(mark.at, what)).collect();
    if let Some(unfed) = &mark.watchdog {
        all.push(match mark.event {
            What::FedAgain => one(mark.at, format!("{} is fed again", unfed.device)),
            What::Stopped => one(mark.at, format!("{} is stopped", unfed.device)),
            _ => one(unfed.fed, format!("{} was fed for the last time ({} s)", unfed.device, unfed.timeout_s)),
        });
    }
    all
}

fn clause(event: What, victim: &Victim) -> String {
    let (who, pid) = (label(&victim.name, victim.domain), victim.pid);
    match event {
        What::Silence => format!("for half of the ttl no answer has renewed the lease of domain {who}, process {pid}"),
        What::Condemned => format!("domain {who}, process {pid}, must die: {}", victim.why),
        What::Killed => format!("SIGKILL for domain {who}, process {pid}"),
        What::GivenUp => {
            let waits = victim.waits_for.as_deref().unwrap_or("what keeps it is not known");
            format!("domain {who}, process {pid}, is still not gone, and this host was given up: {waits}")
        }
        What::Gone => format!("domain {who}, process {pid}, is proven gone"),
        What::LastFeed | What::FedAgain | What::Stopped => format!("domain {who}"),
    }
}

fn since(at: BootTime, zero: BootTime) -> u64 {
    at.since(zero).as_millis() as u64
}
