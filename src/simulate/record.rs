//! What happened: the timeline, every process's life, every revocation and its proof, and every broken promise.

use super::phrase::{DomainIx, HostIx};
use super::script::Setup;
use crate::lease::id::Epoch;
use crate::lease::time::BootTime;
use crate::protocol::Proof;
use std::collections::{BTreeMap, BTreeSet};

/// From this many machines on, what happens to many is told of one.
pub(super) const MASS: usize = 10;
/// The most lines of a timeline.
const MOST_LINES: usize = 5_000;
/// How often one machine says the same between two lines of the script.
const ALIKE: usize = 2;

/// What a line of the timeline is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A line of the script.
    Script,
    /// A command of the controller's, or its refusal.
    Operator,
    /// The authority's log.
    Authority,
    /// The guard process.
    Guard,
    /// What the guard says.
    Says,
    /// A process begins, goes on or waits.
    Start,
    /// A process ends.
    Ended,
    /// A start is refused.
    Refused,
    /// The guard strikes.
    Killed,
    /// The watchdog.
    Watchdog,
    /// It resets the machine.
    Reset,
    /// Power and boots.
    Power,
    /// When the next steps would come.
    Timers,
    /// A promise is broken.
    Violation,
}

/// One line of the timeline.
#[derive(Debug, Clone)]
pub struct Entry {
    pub at: BootTime,
    pub host: Option<HostIx>,
    pub kind: Kind,
    pub text: String,
    /// How many more like it followed, and when the last.
    pub more: usize,
    pub last: BootTime,
    /// On how many machines.
    pub hosts: BTreeSet<HostIx>,
}

/// One process.
#[derive(Debug, Clone)]
pub struct Life {
    pub domain: DomainIx,
    pub host: HostIx,
    pub from: BootTime,
    pub until: Option<BootTime>,
    /// When its virtual CPUs ran.
    pub ran: Vec<(BootTime, Option<BootTime>)>,
    /// When the guard struck it first.
    pub struck: Option<BootTime>,
    /// It ended with its machine.
    pub with_the_machine: bool,
}

/// A revoked right, and how it ended.
#[derive(Debug, Clone)]
pub struct Revoked {
    pub domain: DomainIx,
    pub host: Option<HostIx>,
    pub epoch: Epoch,
    pub at: BootTime,
    /// The last answer that could have renewed it, and the bound.
    pub bound_at: Option<BootTime>,
    pub safe: Option<(BootTime, Proof)>,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub at: BootTime,
    pub what: Broken,
    pub text: String,
}

/// Which promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Broken {
    /// Two copies of a domain live.
    TwoCopies,
    /// A node was told that a domain is its own, or its controller that it is safe, while a copy lives elsewhere.
    TooEarly,
    /// A copy was gone later than the bound.
    Bound,
    /// Something was killed to whose contact and claim nothing was done.
    Needless,
}

pub(super) struct Record {
    t: BootTime,
    pub quiet: bool,
    mass: bool,
    pub entries: Vec<Entry>,
    window: BTreeMap<(Kind, String, Option<HostIx>), (usize, usize)>,
    pub lives: Vec<Life>,
    pub revoked: Vec<Revoked>,
    pub violations: Vec<Violation>,
    pub resets: Vec<(HostIx, BootTime)>,
    pub refused: Vec<(DomainIx, HostIx, BootTime)>,
    pub authority_starts: Vec<BootTime>,
    /// Domains whose copies or owner changed since the last look.
    pub stirred: BTreeSet<DomainIx>,
    /// Domains to whose claim something was done.
    pub touched: BTreeSet<DomainIx>,
    /// Domains that plain libvirt migrates: two may run until both were reported (docs/design.md).
    pub unpaused: BTreeSet<DomainIx>,
    /// Spans in which two copies lived.
    pub doubles: BTreeMap<DomainIx, Vec<(BootTime, Option<BootTime>)>>,
    names: super::phrase::Names,
}

impl Record {
    pub fn new(setup: &Setup, t: BootTime, quiet: bool) -> Record {
        Record {
            t,
            quiet,
            mass: setup.hosts.len() > MASS,
            entries: Vec::new(),
            window: BTreeMap::new(),
            lives: Vec::new(),
            revoked: Vec::new(),
            violations: Vec::new(),
            resets: Vec::new(),
            refused: Vec::new(),
            authority_starts: Vec::new(),
            stirred: BTreeSet::new(),
            touched: BTreeSet::new(),
            unpaused: BTreeSet::new(),
            doubles: BTreeMap::new(),
            names: setup.names.clone(),
        }
    }

    /// An instant as people read it: `T+12.992`, rounded down to the millisecond.
    pub fn t(&self, at: BootTime) -> String {
        t(self.t, at)
    }

    /// A line of the timeline. What happened before T is left out, and of what is said alike again and again only how
    /// often.
    pub fn say(&mut self, now: BootTime, host: Option<HostIx>, kind: Kind, text: impl FnOnce() -> String) {
        if self.quiet || now < self.t {
            return;
        }
        let text = self.plain(&text());
        if kind == Kind::Script {
            self.window.clear();
        }
        let shape = shape(&text);
        let (key, most) = if self.mass { ((kind, shape, None), 1) } else { ((kind, shape, host), ALIKE) };
        let (at, count) = *self.window.entry(key.clone()).or_insert((self.entries.len(), 0));
        if count >= most || self.entries.len() >= MOST_LINES {
            if let Some(entry) = self.entries.get_mut(at) {
                entry.more += 1;
                entry.last = now;
                entry.hosts.extend(host);
            }
            return;
        }
        self.window.insert(key, (self.entries.len(), count + 1));
        self.entries.push(Entry { at: now, host, kind, text, more: 0, last: now, hosts: host.into_iter().collect() });
    }

    /// Domains by their names alone: of this scenario's uuids nobody needs to know.
    fn plain(&self, text: &str) -> String {
        const HEAD: &str = "00000000-0000-0000-0000-";
        let mut plain = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(HEAD) {
            let (before, from) = rest.split_at(at);
            let (uuid, after) = from.split_at(36.min(from.len()));
            let number = u64::from_str_radix(&uuid[HEAD.len()..], 16).unwrap_or(0) as usize;
            let name = number.checked_sub(1).and_then(|at| self.names.domains.get(at)).map_or(uuid, String::as_str);
            rest = after;
            if let Some(before) = before.strip_suffix(" (") {
                plain.push_str(before);
                rest = after.strip_prefix(')').unwrap_or(after);
            } else if let Some(before) = before.strip_suffix("domain=") {
                plain.push_str(before);
                rest = after.strip_prefix(' ').unwrap_or(after);
            } else {
                plain.push_str(before);
                plain.push_str(name);
            }
        }
        plain.push_str(rest);
        plain
    }

    pub fn begin_life(&mut self, domain: DomainIx, host: HostIx, now: BootTime) -> usize {
        let (ran, struck, with_the_machine) = (Vec::new(), None, false);
        self.lives.push(Life { domain, host, from: now, until: None, ran, struck, with_the_machine });
        self.stirred.insert(domain);
        self.lives.len() - 1
    }

    pub fn end_life(&mut self, life: usize, now: BootTime, with_the_machine: bool) {
        self.runs(life, now, false);
        let life = &mut self.lives[life];
        life.until = Some(now);
        life.with_the_machine = with_the_machine;
    }

    pub fn runs(&mut self, life: usize, now: BootTime, runs: bool) {
        let ran = &mut self.lives[life].ran;
        match ran.last_mut() {
            Some((_, until @ None)) if !runs => *until = Some(now),
            Some((_, None)) => {}
            _ if runs => ran.push((now, None)),
            _ => {}
        }
    }

    pub fn revoked(
        &mut self,
        domain: DomainIx,
        host: Option<HostIx>,
        epoch: Epoch,
        at: BootTime,
        bound_at: Option<BootTime>,
    ) {
        self.revoked.push(Revoked { domain, host, epoch, at, bound_at, safe: None });
    }

    /// The node's word on its bound changed while the share was leaving.
    pub fn rebound(&mut self, domain: DomainIx, epoch: Epoch, bound_at: Option<BootTime>) {
        let of = |one: &&mut Revoked| one.domain == domain && one.epoch == epoch;
        if let Some(one) = self.revoked.iter_mut().find(of) {
            one.bound_at = bound_at;
        }
    }

    pub fn safe(&mut self, domain: DomainIx, epoch: Epoch, now: BootTime, proof: Proof) {
        let Some(at) = self.revoked.iter().position(|one| one.domain == domain && one.epoch == epoch) else { return };
        self.revoked[at].safe = Some((now, proof));
        let alive = self
            .lives
            .iter()
            .any(|life| life.domain == domain && Some(life.host) == self.revoked[at].host && life.until.is_none());
        if alive && proof != Proof::Operator && !self.unpaused.contains(&domain) {
            let (name, host) = (self.names.domains[domain.0].clone(), self.revoked[at].host);
            let host = host.map_or(String::new(), |host| self.names.hosts[host.0].clone());
            self.broken(
                now,
                Broken::TooEarly,
                format!("{name} is called gone on {host} while a process of it lives there"),
            );
        }
    }

    pub fn broken(&mut self, at: BootTime, what: Broken, text: String) {
        if self.violations.iter().any(|known| known.what == what && known.text == text) {
            return;
        }
        self.violations.push(Violation { at, what, text: text.clone() });
        self.say(at, None, Kind::Violation, || format!("BROKEN: {text}"));
    }

    /// Nothing comes after this.
    pub fn end(&mut self, now: BootTime) {
        self.entries.retain(|entry| entry.at <= now);
    }
}

/// Text with every number taken out: what is said of one is said of another.
fn shape(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' | '.' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            _ => shape.push(c),
        }
    }
    shape
}

pub(super) fn t(from: BootTime, at: BootTime) -> String {
    if at == BootTime::NEVER {
        return "never".into();
    }
    let (sign, span) = if at >= from { ('+', at.since(from)) } else { ('-', from.since(at)) };
    format!("T{sign}{}.{:03}", span.as_secs(), span.subsec_millis())
}
