//! `leasehold why`: why this host was last reset, or a domain last died here.

use super::{Exit, Terminal, finish};
use crate::config::{self, Config};
use crate::lease::fence::Line;
use crate::lease::fence_story::{Present, Story, tell};
use crate::lease::id::{BootId, DomainId};
use crate::node::fence_journal::{self, Kept};
use crate::node::{clock, host, watchdog_list};
use crate::{note, out};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Say why this host was last reset or a domain last died here, with what led to it. Needs no guard
#[derive(Debug, Args)]
pub struct Why {
    /// Of this domain alone: its uuid, or its name
    domain: Option<String>,
    /// The configuration file, for the state directory
    #[arg(long, value_name = "PATH", default_value = config::PATH)]
    config: PathBuf,
    /// As JSON, with stable keys
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    boot_id: BootId,
    /// The newest first.
    stories: Vec<Story>,
    /// Lines of the record that could not be understood.
    damaged_lines: usize,
    /// Files of the record that could not be read, and why.
    unreadable: Vec<String>,
}

/// Exit status: 0, or 1 when no part of the record can be read, or it knows no such domain.
pub(super) fn run(why: &Why, terminal: &mut Terminal<'_>) -> Exit {
    let said = say(why, terminal);
    finish(terminal, said)
}

fn say(why: &Why, terminal: &mut Terminal<'_>) -> Result<Exit, String> {
    let config = Config::load(&why.config).map_err(|diagnosis| diagnosis.to_string())?;
    let boot_id = host::boot_id().map_err(|error| format!("cannot read this boot's id: {error}"))?;
    let Kept { lines: record, damaged, unreadable } = fence_journal::read(&config.state_dir);
    if record.is_empty() && !unreadable.is_empty() {
        return Err(unreadable.join("; "));
    }
    let domain = why.domain.as_deref().map(|wanted| named(&record, wanted)).transpose()?;
    let present = Present { boot: boot_id, now: clock::now(), boot_status: watchdog_list::boot_status() };
    let report = Report { boot_id, stories: tell(&record, &present, domain), damaged_lines: damaged, unreadable };
    if why.json {
        terminal.json(&report);
    } else {
        show(&report, terminal);
    }
    if damaged > 0 {
        let (what, place) = (plural(damaged), config.state_dir.display());
        note!(
            terminal,
            "leasehold: {what} of the fence record in {place} could not be understood; a reset tears the last one"
        );
    }
    for why in &report.unreadable {
        note!(terminal, "leasehold: a part of the fence record is missing here: {why}");
    }
    Ok(Exit::Done)
}

fn named(record: &[Line], wanted: &str) -> Result<DomainId, String> {
    if let Ok(domain) = wanted.parse() {
        return Ok(domain);
    }
    let mut victims = record.iter().rev().flat_map(|line| &line.mark.domains);
    victims.find(|victim| victim.name == wanted).map(|victim| victim.domain).ok_or_else(|| {
        format!(
            "the fence record knows no domain named '{}'; name it by its uuid, if it had to die here",
            wanted.escape_debug()
        )
    })
}

fn show(report: &Report, terminal: &mut Terminal<'_>) {
    for (number, story) in report.stories.iter().enumerate() {
        if number > 0 {
            out!(terminal, "");
        }
        out!(terminal, "{}", story.headline);
        if story.timeline.is_empty() {
            continue;
        }
        out!(terminal, "\n  {:>10}  {}", "T+0", story.t_zero);
        for instant in &story.timeline {
            out!(terminal, "  {:>10}  {}", format!("T+{:.3}s", instant.t_ms as f64 / 1000.0), instant.what);
        }
    }
}

fn plural(lines: usize) -> String {
    if lines == 1 { "one line".to_owned() } else { format!("{lines} lines") }
}
