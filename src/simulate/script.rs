//! A scenario as an operator writes it: what there is, what happens, what must hold. docs/simulate.md has the grammar.

use super::phrase::{DomainIx, HostIx, MOST, Names, Phrase, spread};
use super::when::{LONGEST, When};
pub use super::words::{CLAIMS, Claim, SETTINGS, Setting, VERBS, Verb};
use crate::lease::id::NodeId;
use crate::lease::timing::{Profile, Timing};
use std::fmt::{self, Write};
use std::time::Duration;

/// The longest script read, in bytes.
pub const MAX_SCRIPT: usize = 256 << 10;
const MOST_LINES: usize = 2_000;

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSetup {
    /// How it is configured.
    pub node: NodeId,
    /// It has this machine's key and node id: its disk was cloned.
    pub clone_of: Option<HostIx>,
    pub observe: bool,
    pub watchdog: bool,
    pub fd_store: bool,
    pub last_resort: bool,
    pub report: bool,
    /// By how many millionths its clock runs fast.
    pub drift_ppm: i64,
}

/// One domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainSetup {
    /// Where it runs at T; `None`: its lease was never granted.
    pub on: HostIx,
    pub hold: bool,
    pub autostart: bool,
}

/// What there is.
#[derive(Debug, Clone)]
pub struct Setup {
    pub names: Names,
    pub timing: Timing,
    /// Every small delay is drawn from it; `None`: each is always the same.
    pub seed: Option<u64>,
    pub endpoints: usize,
    pub warm_up: Duration,
    pub boot: Duration,
    /// How long it runs after T; `None`: until nothing more can come of the last line.
    pub run_for: Option<Duration>,
    pub hosts: Vec<HostSetup>,
    pub domains: Vec<DomainSetup>,
    /// It shows what is not promised.
    pub limit: bool,
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its line in the script, from 1.
    pub line: usize,
    pub at: When,
    pub what: Phrase<Verb>,
}

/// One thing that must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// Its line in the script, from 1.
    pub line: usize,
    pub what: Phrase<Claim>,
}

/// A whole scenario.
#[derive(Debug, Clone)]
pub struct Script {
    /// The story, from the comments at its head.
    pub story: Vec<String>,
    /// The settings as they were written.
    pub settings: Vec<Phrase<Setting>>,
    pub setup: Setup,
    pub steps: Vec<Step>,
    pub expects: Vec<Expect>,
}

/// What is wrong with a script, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// From 1; zero: the whole.
    pub line: usize,
    /// A sentence.
    pub text: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "line {line}: {}", self.text),
        }
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            names: Names::default(),
            timing: Timing::profile(Profile::Default),
            seed: None,
            endpoints: 1,
            warm_up: Duration::from_secs(40),
            boot: Duration::from_secs(60),
            run_for: None,
            hosts: Vec::new(),
            domains: Vec::new(),
            limit: false,
        }
    }
}

impl Setup {
    fn set(&mut self, line: &Phrase<Setting>) -> Result<(), String> {
        let two = |what: &str| Err(format!("more than {MOST} {what}"));
        let each = line.hosts.iter().map(|at| at.0);
        match line.verb {
            Setting::Profile => {
                let margin = self.timing.margin != Timing::profile(Profile::Default).margin;
                if margin {
                    return Err("the profile stands before the margin".into());
                }
                self.timing = match line.text.as_str() {
                    "default" => Timing::profile(Profile::Default),
                    "fast" => Timing::profile(Profile::Fast),
                    other => return Err(format!("'{}' is no profile: default or fast", other.escape_debug())),
                }
            }
            Setting::Margin => self.timing.margin = line.span,
            Setting::Seed => self.seed = Some(line.number),
            Setting::WarmUp => self.warm_up = line.span.max(Duration::from_secs(3)),
            Setting::Boot => self.boot = line.span.max(Duration::from_secs(1)),
            Setting::RunFor => self.run_for = Some(line.span),
            Setting::Endpoints => match line.number {
                1..=8 => self.endpoints = line.number as usize,
                _ => return Err("a node has 1 to 8 endpoints".into()),
            },
            Setting::Nodes => {
                for name in spread(&line.text)? {
                    let node = name.parse().map_err(|error: crate::lease::id::BadId| error.to_string())?;
                    if self.names.hosts.contains(&name) || name == "all" {
                        return Err(format!("there are two machines '{name}'"));
                    }
                    self.names.hosts.push(name);
                    self.hosts.push(HostSetup {
                        node,
                        clone_of: None,
                        observe: false,
                        watchdog: true,
                        fd_store: true,
                        last_resort: true,
                        report: false,
                        drift_ppm: 0,
                    });
                }
                if self.hosts.len() > MOST {
                    return two("machines");
                }
            }
            Setting::Domain => {
                for (at, name) in spread(&line.text)?.into_iter().enumerate() {
                    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                    if self.names.domains.contains(&name) || name == "all" || !name.chars().all(good) {
                        return Err(format!("'{}' cannot be one more domain's name", name.escape_debug()));
                    }
                    let on = line.hosts[at % line.hosts.len()];
                    self.names.domains.push(name);
                    self.domains.push(DomainSetup { on, hold: false, autostart: false });
                }
                if self.domains.len() > MOST {
                    return two("domains");
                }
            }
            Setting::CloneOf => {
                let (copy, of) = (line.hosts[0], line.hosts[1]);
                self.hosts[copy.0].node = self.hosts[of.0].node.clone();
                self.hosts[copy.0].clone_of = Some(of);
            }
            Setting::Observe => each.for_each(|at| self.hosts[at].observe = true),
            Setting::NoWatchdog => each.for_each(|at| self.hosts[at].watchdog = false),
            Setting::NoFdStore => each.for_each(|at| self.hosts[at].fd_store = false),
            Setting::NoLastResort => each.for_each(|at| self.hosts[at].last_resort = false),
            Setting::Report => each.for_each(|at| self.hosts[at].report = true),
            Setting::Fast | Setting::Slow => {
                let ppm = i64::try_from(line.number.min(100_000)).unwrap_or(100_000);
                let ppm = if line.verb == Setting::Fast { ppm } else { -ppm };
                each.for_each(|at| self.hosts[at].drift_ppm = ppm);
            }
            Setting::Hold => line.domains.iter().for_each(|&DomainIx(at)| self.domains[at].hold = true),
            Setting::Autostart => line.domains.iter().for_each(|&DomainIx(at)| self.domains[at].autostart = true),
            Setting::Limit => self.limit = true,
        }
        Ok(())
    }
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// The first line that is wrong, why, and what is allowed there.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let whole = |text: String| ScriptError { line: 0, text };
        if text.len() > MAX_SCRIPT || text.lines().count() > MOST_LINES {
            return Err(whole(format!("the script is longer than {MOST_LINES} lines or {MAX_SCRIPT} bytes")));
        }
        let mut script = Script {
            story: Vec::new(),
            settings: Vec::new(),
            setup: Setup::default(),
            steps: Vec::new(),
            expects: Vec::new(),
        };
        for (number, raw) in text.lines().enumerate() {
            let at_line = |text: String| ScriptError { line: number + 1, text };
            let line = raw.split_once('#').map_or(raw, |(line, _)| line).trim();
            match line.split_once(' ') {
                _ if line.is_empty() => {
                    if let Some(story) = raw.trim().strip_prefix('#').filter(|_| script.settings.is_empty()) {
                        script.story.push(story.trim().to_owned());
                    }
                }
                Some(("at", rest)) => {
                    let (when, what) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
                    let Setup { names, timing, .. } = &script.setup;
                    let at = When::parse(when, names, timing).map_err(at_line)?;
                    let what = Phrase::parse(what, VERBS, names).map_err(at_line)?;
                    script.steps.push(Step { line: number + 1, at, what });
                }
                Some(("expect", rest)) => {
                    let what = Phrase::parse(rest, CLAIMS, &script.setup.names).map_err(at_line)?;
                    script.expects.push(Expect { line: number + 1, what });
                }
                _ if script.steps.is_empty() => {
                    let phrase = Phrase::parse(line, SETTINGS, &script.setup.names)
                        .map_err(|why| at_line(format!("{why} | at TIME ... | expect ...")))?;
                    script.set(phrase).map_err(at_line)?;
                }
                _ => {
                    return Err(at_line(format!(
                        "'{}' is not understood; after the first 'at' every line is 'at TIME ...' or 'expect ...'",
                        line.escape_debug()
                    )));
                }
            }
        }
        if script.setup.hosts.is_empty() {
            return Err(whole(
                "the script names no machine: begin with a line like 'nodes n1 n2' as 'nodes n1,n2'".into(),
            ));
        }
        if script.setup.run_for.is_some_and(|span| span > LONGEST) {
            return Err(whole("the script runs for longer than a day".into()));
        }
        Ok(script)
    }

    /// Adds a setting.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn set(&mut self, phrase: Phrase<Setting>) -> Result<(), String> {
        self.setup.set(&phrase)?;
        self.settings.push(phrase);
        Ok(())
    }
}

/// The text that reads as this script.
impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = &self.setup.names;
        let mut text = String::new();
        for story in &self.story {
            writeln!(text, "# {story}")?;
        }
        for setting in &self.settings {
            writeln!(text, "{}", setting.show(SETTINGS, names))?;
        }
        for step in &self.steps {
            writeln!(text, "at {} {}", step.at.show(names), step.what.show(VERBS, names))?;
        }
        for expect in &self.expects {
            writeln!(text, "expect {}", expect.what.show(CLAIMS, names))?;
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Script::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_understood_is_told_with_its_line_and_what_is_allowed() {
        let head = "nodes n1,n2\ndomain web on n1\n";
        for (line, told) in [
            ("at T+1s explode n1", "line 3: 'explode n1' is not understood; allowed is: cut HOSTS | "),
            ("at T+1s kill n1", "allowed is: kill guard HOSTS | "),
            ("at T+1s cut n9", "line 3: 'n9' is no machine of this scenario (there are: n1, n2)"),
            ("at T+1s move db to n2", "'db' is no domain of this scenario (there are: web)"),
            ("at T+1s move web to n1,n2", "'n1,n2' is more than one machine"),
            ("at noon cut n1", "'noon' is no time; allowed is T, then, E(DOMAIN@HOST), lapse(DOMAIN@HOST)"),
            ("at E(db@n1) cut n1", "'db' is no domain of this scenario"),
            ("at T+1s delay n1 soon", "'soon' is no span of time; write it like 750ms, 12.5s or 2m"),
            ("expect web flies", "allowed is: DOMAINS runs on HOST by TIME | "),
            ("profile slow", "'slow' is no profile: default or fast"),
            ("nodes n1", "there are two machines 'n1'"),
            ("domain /x on n1", "'/x' cannot be one more domain's name"),
            ("domain ../x on n1", "'../x' is no range; write it like n1..n20"),
            ("nodes m1..m999", "more than 200"),
            ("hello", "line 3: 'hello' is not understood; allowed is: profile NAMES | "),
        ] {
            let said = refused(&format!("{head}{line}\n"));
            assert!(said.contains(told), "{line}: {said}");
        }
        assert!(refused("at T cut n1").contains("no machine of this scenario"));
        assert!(refused("# nothing\n").contains("names no machine"));
        assert!(refused(&"#\n".repeat(3_000)).contains("longer than"));
        let late = refused(&format!("{head}at T+1s cut n1\nseed 5\n"));
        assert!(late.contains("line 4") && late.contains("after the first 'at'"), "{late}");
    }

    #[test]
    fn a_script_reads_as_it_is_written_out() {
        for seed in 0..300 {
            let drawn = crate::simulate::random::draw(seed).to_string();
            assert_eq!(Script::parse(&drawn).unwrap().to_string(), drawn);
        }
    }

    #[test]
    fn every_word_of_the_language_is_in_its_document() {
        let document = include_str!("../../docs/simulate.md");
        let patterns = SETTINGS.iter().map(|(_, pattern)| pattern);
        let all =
            patterns.chain(VERBS.iter().map(|(_, pattern)| pattern)).chain(CLAIMS.iter().map(|(_, pattern)| pattern));
        for pattern in all {
            assert!(document.contains(&format!("`{pattern}`")), "{pattern}");
        }
    }
}
