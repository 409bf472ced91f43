//! What the operator decided, as far as the lease core needs it.

use super::id::{DomainId, NodeId};
use super::timing::Timing;
use std::time::Duration;

/// The rules of one node. They change only with the configuration.
#[derive(Debug, Clone, Hash)]
pub struct Policy {
    /// This node.
    pub node: NodeId,
    /// Decide and report everything, and neither kill nor refuse.
    pub observe: bool,
    /// The timeline.
    pub timing: Timing,
    /// What happens to a domain whose lease runs out; the first rule that matches decides.
    pub rules: Vec<Rule>,
    /// Where no rule matches.
    pub lapse: Lapse,
    /// What happens to a domain that no signal ends while contact is healthy.
    pub unkillable: Unkillable,
    /// The bound this node promises; none without an armed watchdog.
    pub bound: Option<Duration>,
}

/// What happens to a domain whose lease runs out. A revocation kills it either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lapse {
    /// It is killed.
    Kill,
    /// It runs on. No bound covers it: only a receipt frees it.
    Hold,
}

/// `[unkillable] action`: a condemned process that SIGKILL does not end, while the authority is in contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unkillable {
    /// The permit passes, and the watchdog resets the host: the bound is a promise.
    Reset,
    /// The host stays up for as long as contact does, and reports that the domain lives. Receipts only: no bound.
    Report,
}

/// `[[rule]]`: an exception by name or uuid; one that gives both must match both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// A name pattern, where `*` is any text and `?` any one character.
    pub name: Option<String>,
    /// The domain.
    pub domain: Option<DomainId>,
    /// What its lapse does.
    pub lapse: Lapse,
}

impl Policy {
    /// What lapse does to this domain.
    pub fn lapse_of(&self, domain: DomainId, name: &str) -> Lapse {
        let matches = |rule: &&Rule| {
            rule.domain.is_none_or(|id| id == domain) && rule.name.as_deref().is_none_or(|pattern| glob(pattern, name))
        };
        self.rules.iter().find(matches).map_or(self.lapse, |rule| rule.lapse)
    }

    /// How long a domain found running without a lease may wait for the answer to the question that names it: two
    /// intervals, one to ask in and one to be answered in. The watchdog is not fed meanwhile: so two thirds of what it
    /// grants then at most, that the kill comes before the reset.
    pub fn chance(&self) -> Duration {
        let granted = self.timing.watchdog.saturating_sub(self.timing.feed());
        (self.timing.renew * 2).min(granted * 2 / 3)
    }
}

/// Matches a whole name against a pattern of literal text, `*` and `?`.
fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on when a literal does not match: after the last star, one more character swallowed by it.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                Some((after, swallowed)) => {
                    retry = Some((after, swallowed + 1));
                    p = after;
                    n = swallowed + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_name() {
        for (pattern, name, expected) in [
            ("scratch-*", "scratch-7", true),
            ("scratch-*", "my-scratch-7", false),
            ("*-db", "a-b-db", true),
            ("*-db", "a-db-1", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("*", "", true),
            ("ü?", "üß", true),
        ] {
            assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
        }
    }
}
