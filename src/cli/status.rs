//! `leasehold status`: what the guard of this host knows, domain by domain.

use crate::lease::ledger::label;
use crate::lease::view::{DomainView, DrainView, LeaseView, StatusView, WatchdogView};
use crate::local::{self, Reply, Request};
use crate::protocol::{Mode, NamedState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The core answers within a turn; a guard that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// Show what the guard of this host knows.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// As JSON, with stable keys.
    #[arg(long)]
    pub json: bool,
    /// The guard's run directory.
    #[arg(long, value_name = "DIR", default_value = local::RUN_DIR)]
    pub run_dir: PathBuf,
}

/// Exit code 0: shown; 1: there is no guard to ask.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let view = match local::ask(&args.run_dir, &Request::Status, PATIENCE) {
        Ok(Reply::Status(view)) => view,
        Ok(Reply::Bad(why)) => return complain(err, &why),
        Ok(_) => return complain(err, "the guard answered something else: is it of another version?"),
        Err(error) => {
            let path = local::socket_path(&args.run_dir);
            return complain(
                err,
                &format!("no guard answers on {} ({error}). Start it: systemctl start leasehold", path.display()),
            );
        }
    };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &view)?;
        writeln!(out)?;
    } else {
        out.write_all(show(&view).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn complain(err: &mut dyn Write, sentence: &str) -> io::Result<ExitCode> {
    writeln!(err, "leasehold: {sentence}")?;
    Ok(ExitCode::FAILURE)
}

fn show(view: &StatusView) -> String {
    let mode = match view.mode {
        Mode::Enforce => "enforcing",
        Mode::Observe => "observing: nothing is refused or killed",
    };
    let contact = match (view.contact_age_ms, &view.contact_failure) {
        (Some(age), None) => format!("{} ago", seconds(age)),
        (Some(age), Some(why)) => format!("{} ago; the last question failed: {why}", seconds(age)),
        (None, Some(why)) => format!("none in this boot: {why}"),
        (None, None) => "none yet".to_owned(),
    };
    let bound = view.bound_ms.map_or("none, receipts only".to_owned(), seconds);
    let mut text = format!(
        "node     {}, {mode}\ncontact  {contact}\nttl      {}, bound {bound}\npermit   {}\n",
        view.node,
        seconds(view.ttl_ms),
        if view.permit_left_ms > 0 { format!("{} left", seconds(view.permit_left_ms)) } else { "none".to_owned() },
    );
    if let Some(watchdog) = &view.watchdog {
        text.push_str(&format!("watchdog {}\n", show_watchdog(watchdog)));
    }
    match view.drained {
        Some(DrainView::Draining) => text.push_str("drained  nothing starts here; something enforced still runs\n"),
        Some(DrainView::Empty) => text.push_str("drained  nothing starts here, and nothing enforced is left\n"),
        None => {}
    }
    if view.ledger_lost {
        text.push_str("ledger   LOST: nothing is let through until libvirt is quiet and a scan is whole\n");
    }
    for fault in &view.faults {
        text.push_str(&format!("FAULT    {fault}\n"));
    }
    if view.domains.is_empty() {
        text.push_str("\nno domain is known here\n");
        return text;
    }
    let width = view.domains.iter().map(|domain| shown_name(domain).chars().count()).max().unwrap_or(0).clamp(4, 32);
    text.push_str(&format!(
        "\n{:36}  {:width$}  {:8}  {:>7}  {:>7}  {:8}  WHY\n",
        "DOMAIN", "NAME", "LEASE", "EPOCH", "LEFT", "STATE"
    ));
    for domain in &view.domains {
        text.push_str(&format!(
            "{}  {:width$}  {:8}  {:>7}  {:>7}  {:8}  {}\n",
            domain.domain,
            shown_name(domain),
            lease(domain.lease),
            domain.epoch.map_or("-".to_owned(), |epoch| epoch.to_string()),
            if domain.left_ms > 0 { seconds(domain.left_ms) } else { "-".to_owned() },
            state(domain.state),
            domain.why,
        ));
    }
    text.push_str(&details(view));
    text
}

fn show_watchdog(watchdog: &WatchdogView) -> String {
    let mut text = format!("{}, {}", watchdog.device, watchdog.state);
    if watchdog.timeout_s > 0 {
        let needs = watchdog.resets_after_ms as f64 / 1000.0;
        text.push_str(&format!(", timeout {} s ({needs} s to the reset)", watchdog.timeout_s));
    }
    if let Some(ago) = watchdog.fed_ms_ago {
        text.push_str(&format!(", fed {} ago, longest gap {}", seconds(ago), seconds(watchdog.longest_gap_ms)));
    }
    if let Some(error) = &watchdog.error {
        text.push_str(&format!("; {error}"));
    }
    let Some(bound) = watchdog.hung_then_killed_bound_ms else { return text };
    let keeper = match watchdog.keeper.as_str() {
        "nobody" => "nobody, so it is closed when the permit passes".to_owned(),
        keeper => format!("the {keeper}, so no death of the guard feeds it"),
    };
    format!("{text}\nkeeper   {keeper}; bound {} for a guard that hangs and is killed later", seconds(bound))
}

/// What does not fit into a table: what keeps a process from being called gone, and what would outlive the running.
fn details(view: &StatusView) -> String {
    let mut text = String::new();
    for domain in &view.domains {
        let who = label(&domain.name, domain.domain);
        for process in &domain.not_gone {
            text.push_str(&format!("NOT GONE  {who}, process {}: {}\n", process.pid, process.why));
        }
        for late in &domain.late_writes {
            let (what, way) = (late.what.escape_debug(), late.way);
            text.push_str(&format!(
                "LATE      {who}: {what}, {}, could still be written after its death; ended by {}\n",
                way.name(),
                way.ended_by()
            ));
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn shown_name(domain: &DomainView) -> String {
    domain.name.escape_debug().to_string()
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

fn lease(lease: LeaseView) -> &'static str {
    match lease {
        LeaseView::Held => "held",
        LeaseView::Incoming => "incoming",
        LeaseView::Hold => "hold",
        LeaseView::Expired => "EXPIRED",
        LeaseView::Denied => "denied",
        LeaseView::None => "none",
    }
}

fn state(state: NamedState) -> &'static str {
    match state {
        NamedState::Wanted => "-",
        NamedState::Starting => "starting",
        NamedState::Paused => "paused",
        NamedState::Running => "running",
        NamedState::Dying => "DYING",
    }
}
