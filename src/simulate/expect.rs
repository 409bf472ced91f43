//! Whether what the script expects came true.

use super::phrase::{DomainIx, HostIx, Phrase};
use super::record::{Broken, Kind, Life};
use super::script::{CLAIMS, Claim, Expect};
use super::world::World;
use crate::lease::time::BootTime;
use crate::protocol::Proof;
use std::time::Duration;

/// One expectation and what became of it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Met {
    /// Its line in the script.
    pub line: usize,
    /// As it is written there.
    pub text: String,
    /// Why it does not hold; `None`: it holds.
    pub why_not: Option<String>,
}

impl World<'_> {
    pub fn judge(&self, expect: &Expect) -> Met {
        let text = expect.what.show(CLAIMS, &self.setup.names);
        let each = expect.what.domains.iter().map(|&domain| self.of_domain(&expect.what, domain));
        let hosts = expect.what.domains.is_empty().then_some(&expect.what.hosts).into_iter().flatten();
        let each = each.chain(hosts.map(|&host| self.of_host(&expect.what, host)));
        let all =
            if expect.what.verb == Claim::AuthoritySays { self.said(None, &expect.what.text, true) } else { Ok(()) };
        let why_not = each.chain([all]).find_map(Result::err);
        Met { line: expect.line, text, why_not }
    }

    fn of_domain(&self, what: &Phrase<Claim>, domain: DomainIx) -> Result<(), String> {
        let name = &self.setup.names.domains[domain.0];
        let time = self.t + what.span;
        let host = what.hosts.first().copied();
        let lives = || self.record.lives.iter().filter(move |life| life.domain == domain);
        let here =
            || lives().filter(move |life| Some(life.host) == host && life.until.is_none_or(|until| until >= self.t));
        let runs = |life: &Life, at: BootTime| {
            life.ran.iter().any(|&(from, until)| from <= at && until.is_none_or(|u| at < u))
        };
        let lived = |life: &Life, at: BootTime| life.from <= at && life.until.is_none_or(|until| at < until);
        let t = |at| self.record.t(at);
        let first_run = || here().flat_map(|life| &life.ran).map(|run| run.0).min();
        let must = |holds: bool, why: &dyn Fn() -> String| if holds { Ok(()) } else { Err(why()) };
        let ran =
            || first_run().map_or("it never runs there".to_owned(), |at| format!("it runs there from {} on", t(at)));
        let shares = || self.record.revoked.iter().filter(move |one| one.domain == domain && one.at >= self.t);
        match what.verb {
            Claim::RunsBy => must(
                here()
                    .any(|life| life.ran.iter().any(|&(from, until)| from <= time && until.is_none_or(|u| u > self.t))),
                &ran,
            ),
            Claim::RunsAt => must(here().any(|life| runs(life, time)), &ran),
            Claim::NotBefore => must(!here().any(|life| life.ran.iter().any(|&(from, _)| from < time)), &ran),
            Claim::NotStarted => match here().find(|life| life.from >= time) {
                Some(life) => Err(format!("it starts there at {}", t(life.from))),
                None => Ok(()),
            },
            Claim::Waits => must(here().any(|life| lived(life, time) && !runs(life, time)), &ran),
            Claim::NowhereAt => match lives().find(|life| runs(life, time)) {
                Some(life) => Err(format!("it runs on {}", self.setup.names.hosts[life.host.0])),
                None => Ok(()),
            },
            Claim::Never => {
                must(!here().any(|life| life.ran.iter().any(|&(_, until)| until.is_none_or(|u| u > self.t))), &ran)
            }
            // Its first life there: one that ends and is followed by another has ended.
            Claim::LivesUntil => match here().next().map(|life| life.until) {
                Some(Some(until)) if until < time => Err(format!("it ends at {}", t(until))),
                Some(_) => Ok(()),
                None => Err("it does not run there".to_owned()),
            },
            Claim::DeadBy => match here().filter(|life| life.from <= time).find(|life| lived(life, time)) {
                Some(life) => {
                    Err(life.until.map_or("it lives on".to_owned(), |until| format!("it lives until {}", t(until))))
                }
                None => Ok(()),
            },
            Claim::NeverKilled => {
                let struck = |life: &&Life| life.struck.is_some_and(|at| at >= self.t) || life.with_the_machine;
                match lives().find(struck) {
                    Some(life) => Err(format!("it is killed at {}", t(life.struck.or(life.until).unwrap_or(self.now)))),
                    None => Ok(()),
                }
            }
            Claim::ReceiptBy => {
                let at = shares()
                    .filter_map(|one| one.safe)
                    .filter(|(_, proof)| *proof == Proof::Receipt)
                    .map(|one| one.0)
                    .min();
                must(at.is_some_and(|at| at <= time), &|| {
                    at.map_or("none came".to_owned(), |at| format!("it came at {}", t(at)))
                })
            }
            Claim::NoReceipt => {
                must(!shares().any(|one| one.safe.is_some_and(|(_, proof)| proof == Proof::Receipt)), &|| {
                    "one came".to_owned()
                })
            }
            Claim::SafeBy | Claim::NotSafeBefore | Claim::NeverSafe => {
                if shares().next().is_none() {
                    return Err(format!("{name} was not revoked"));
                }
                let last = shares()
                    .map(|one| one.safe.map_or(BootTime::NEVER, |safe| safe.0))
                    .max()
                    .unwrap_or(BootTime::NEVER);
                let said = || format!("it was safe at {}", t(last));
                match what.verb {
                    Claim::SafeBy => must(last <= time, &said),
                    Claim::NotSafeBefore => must(last >= time, &said),
                    _ => must(last == BootTime::NEVER, &said),
                }
            }
            Claim::TwoCopies | Claim::TwoCopiesAtMost => {
                let spans = self.record.doubles.get(&domain).into_iter().flatten();
                let longest = spans.map(|&(from, until)| until.unwrap_or(self.now).since(from)).max();
                match longest {
                    None => Err("there never were two".to_owned()),
                    Some(span) if what.verb == Claim::TwoCopiesAtMost && span > what.span => {
                        Err(format!("they lived for {:.3} s", span.as_secs_f64()))
                    }
                    Some(_) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn of_host(&self, what: &Phrase<Claim>, host: HostIx) -> Result<(), String> {
        let name = &self.setup.names.hosts[host.0];
        let time = self.t + what.span;
        let mut resets = self.record.resets.iter().filter(|(at, _)| *at == host).map(|(_, at)| *at);
        let first = resets.next();
        let said = || {
            format!("{name} is reset {}", first.map_or("never".to_owned(), |at| format!("at {}", self.record.t(at))))
        };
        let holds = match what.verb {
            Claim::NotReset => first.is_none(),
            Claim::ResetBy => first.is_some_and(|at| at <= time),
            Claim::NotResetBefore => first.is_none_or(|at| at >= time),
            Claim::Says => return self.said(Some(host), &what.text, true),
            Claim::NeverSays => return self.said(Some(host), &what.text, false),
            _ => true,
        };
        if holds { Ok(()) } else { Err(said()) }
    }

    fn said(&self, host: Option<HostIx>, text: &str, wanted: bool) -> Result<(), String> {
        let of = |kind: Kind| if host.is_some() { kind == Kind::Says } else { kind == Kind::Authority };
        let mut lines = self.record.entries.iter().filter(|entry| of(entry.kind) && entry.text.contains(text));
        let found = lines.find(|entry| host.is_none_or(|host| entry.hosts.contains(&host)));
        match (found, wanted) {
            (Some(entry), false) => Err(format!("it was said at {}", self.record.t(entry.at))),
            (None, true) => Err("it was not said".to_owned()),
            _ => Ok(()),
        }
    }

    /// Whether a broken promise is what the scenario is there to show.
    pub fn is_expected(&self, broken: Broken) -> bool {
        let shows = |claim: Claim| matches!(claim, Claim::TwoCopies | Claim::TwoCopiesAtMost);
        let doubles = self.script.expects.iter().any(|expect| shows(expect.what.verb));
        self.setup.limit && doubles && matches!(broken, Broken::TwoCopies | Broken::TooEarly)
    }

    /// From the last answer that could have renewed to the end of the last process that ran under it.
    pub fn outlived(&self, revoked: &super::record::Revoked) -> Option<BootTime> {
        let here = self.record.lives.iter().filter(|life| {
            life.domain == revoked.domain && Some(life.host) == revoked.host && life.from <= revoked.at + Duration::ZERO
        });
        here.filter_map(|life| life.until).filter(|&until| until >= revoked.at).max()
    }
}
