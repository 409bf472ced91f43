//! `leasehold doctor`: what would keep leasehold from protecting this host. It changes nothing, and needs no guard.

mod installation;
mod machine;
mod watchdog;

use super::{Exit, Terminal};
use crate::{config, out};
use serde::Serialize;
use std::path::PathBuf;

/// Say what would keep leasehold from protecting this host, and what to do about it. Changes nothing
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "PATH", default_value = config::PATH)]
    config: PathBuf,
    /// As JSON, with stable keys
    #[arg(long)]
    json: bool,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// As it should be.
    Ok,
    /// It protects, with a limit that its operator should know.
    Warn,
    /// It does not protect.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    /// What was found, and why it matters.
    what: String,
    /// What to do; null: nothing.
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, what: impl Into<String>) -> Finding {
        Finding { check, verdict: Verdict::Ok, what: what.into(), remedy: None }
    }

    fn warn(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { check, verdict: Verdict::Warn, what: what.into(), remedy: Some(remedy.into()) }
    }

    fn fail(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Fail, ..Finding::warn(check, what, remedy) }
    }
}

#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    findings: Vec<Finding>,
}

/// Exit status 0: nothing fails, though there may be warnings (`--json` tells); 1: something fails.
pub fn run(args: &Args, terminal: &mut Terminal<'_>) -> Exit {
    let mut findings = installation::look(&args.config);
    findings.extend(machine::look());
    let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    let report = Report { verdict, findings };
    if args.json {
        terminal.json(&report);
    } else {
        show(&report, terminal);
    }
    if verdict == Verdict::Fail { Exit::Refused } else { Exit::Done }
}

fn show(report: &Report, terminal: &mut Terminal<'_>) {
    for finding in &report.findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        out!(terminal, "{mark:4}  {:12}  {}", finding.check, finding.what);
        if let Some(remedy) = &finding.remedy {
            out!(terminal, "      {:12}  -> {remedy}", "");
        }
    }
    let count = |verdict| report.findings.iter().filter(|finding| finding.verdict == verdict).count();
    out!(terminal, "\n{} failures, {} warnings", count(Verdict::Fail), count(Verdict::Warn));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_verdict_and_each_remedy_stands_below_its_finding() {
        let findings = vec![Finding::ok("boot", "it is"), Finding::warn("machine", "it limps", "mend it")];
        let report = Report { verdict: Verdict::Warn, findings };
        let mut text = Vec::new();
        show(&report, &mut Terminal::new(&mut text, std::io::sink()));
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("ok    boot          it is\nwarn  machine       it limps\n"), "{text}");
        assert!(text.contains("  -> mend it\n\n0 failures, 1 warnings"), "{text}");
        assert!(Verdict::Fail > Verdict::Warn && Verdict::Warn > Verdict::Ok);
    }
}
