//! What a person is woken for: nobody answers, and what comes of it. One line for all domains at once, and a mark in the
//! fence record for each step.

use super::event::{Action, Severity};
use super::fence::{Cause, MOST_LISTED, Mark, Victim, What};
use super::guard::Guard;
use super::id::DomainId;
use super::ladder::Due;
use super::ledger::{Copy, Entry, label};
use super::time::BootTime;

/// Domains that a line for people names; it counts the others.
const MOST_NAMED: usize = 3;

/// What was said in this spell of silence. A spell is named by the answer that it began with.
#[derive(Debug, Default, Clone, Hash)]
pub(super) struct Told {
    half: Option<BootTime>,
    lapse: Option<BootTime>,
    kill: Option<BootTime>,
}

impl Guard {
    /// Half of the ttl went by without an answer: it is said once, while there is time to do something about it.
    pub(super) fn hear_silence(&mut self, now: BootTime) {
        let Some(half) = self.silence_heard_at().filter(|&half| now >= half) else { return };
        self.told.half = self.ledger.contact;
        let running = self.expiring();
        let Some(first) = running.iter().map(|(_, _, copy)| copy.expires).min() else { return };
        let silent = now.since(half) + self.policy.timing.ttl / 2;
        let (timing, left) = (&self.policy.timing, first.left(now));
        let text = format!(
            "no answer from the authority for {:.1} s{}: {} on leases of which the first ends in {:.1} s. From {:.1} s on libvirt is asked to destroy them, and at their end they are killed, unless an answer comes before. Look at the network to the authority, and at the authority",
            silent.as_secs_f64(),
            self.why_unanswered(),
            run_here(&names(running.iter().map(|&(id, entry, _)| (id, entry.name.as_str())))),
            left.as_secs_f64(),
            timing.lapse(first).left(now).as_secs_f64(),
        );
        let victims = running.iter().map(|&(id, entry, copy)| victim(id, entry, copy)).collect();
        self.tell(Severity::Warning, text);
        self.mark(now, What::Silence, victims);
    }

    /// When half of the ttl will have gone by without an answer, if that was not said yet.
    pub(super) fn silence_heard_at(&self) -> Option<BootTime> {
        let silent = self.ledger.contact.filter(|_| self.told.half != self.ledger.contact && !self.policy.observe)?;
        Some(silent + self.policy.timing.ttl / 2)
    }

    /// Marks the steps that the ladder took in this turn, and wakes a person where leases ended because nobody answered.
    pub(super) fn mark_steps(&mut self, now: BootTime, due: &[Due]) {
        if self.policy.observe {
            return;
        }
        let took = |wanted: fn(&Due) -> Option<(DomainId, usize)>| -> Vec<Victim> {
            let victim = |(id, at): (DomainId, usize)| {
                let entry = &self.ledger.domains[&id];
                victim(id, entry, &entry.copies[at])
            };
            due.iter().filter_map(wanted).map(victim).collect()
        };
        let condemned = took(|step| match *step {
            Due::Condemned(id, at) => Some((id, at)),
            _ => None,
        });
        let killed = took(|step| match *step {
            Due::Kill(id, at) => Some((id, at)),
            _ => None,
        });
        let given_up = took(|step| match *step {
            Due::GiveUp(id, at) => Some((id, at)),
            _ => None,
        });
        let lapsed = |victims: &[Victim]| -> Vec<Victim> {
            victims.iter().filter(|victim| victim.cause == Cause::Lapsed).cloned().collect()
        };
        let (lapse, kill) = (lapsed(&condemned), lapsed(&killed));
        let spell = self.ledger.contact.unwrap_or(BootTime::ZERO);
        if !lapse.is_empty() && self.told.lapse != Some(spell) {
            self.told.lapse = Some(spell);
            self.wake_for_lapse(now, &lapse);
        }
        if !kill.is_empty() && self.told.kill != Some(spell) {
            self.told.kill = Some(spell);
            self.wake_for_kill(&kill);
        }
        for (event, victims) in [(What::Condemned, condemned), (What::Killed, killed), (What::GivenUp, given_up)] {
            self.mark(now, event, victims);
        }
    }

    /// Keeps a step in the fence record.
    pub(super) fn mark(&mut self, at: BootTime, event: What, mut domains: Vec<Victim>) {
        if domains.is_empty() {
            return;
        }
        let more = domains.len().saturating_sub(MOST_LISTED) as u64;
        domains.truncate(MOST_LISTED);
        let last_answer = self.ledger.contact;
        self.actions.push(Action::Mark(Mark { at, event, last_answer, domains, more, watchdog: None }));
    }

    fn wake_for_lapse(&mut self, now: BootTime, lapsed: &[Victim]) {
        let silent = self.ledger.contact.map_or("no answer from the authority in this boot".to_owned(), |contact| {
            format!("no answer has renewed leases here for {:.1} s", now.since(contact).as_secs_f64())
        });
        let left = lapsed.iter().map(|victim| victim.expires.left(now)).min().unwrap_or_default();
        let reset = match self.policy.bound {
            Some(_) => "what lives on after that has this host reset by its watchdog",
            None => "no watchdog ends what lives on after that",
        };
        let text = format!(
            "{silent}{}: {}. libvirt is asked to destroy them now; SIGKILL follows in {:.1} s, and {reset}",
            self.why_unanswered(),
            must_die(&names(lapsed.iter().map(|victim| (victim.domain, victim.name.as_str())))),
            left.as_secs_f64(),
        );
        self.tell(Severity::Emergency, text);
    }

    fn wake_for_kill(&mut self, killed: &[Victim]) {
        let named = names(killed.iter().map(|victim| (victim.domain, victim.name.as_str())));
        let text = format!("SIGKILL, for leases ended here that no answer has renewed: {}", must_die(&named));
        self.tell(Severity::Emergency, text);
    }

    fn why_unanswered(&self) -> String {
        let failed = self.failed.as_ref().filter(|(question, _)| *question > self.folded);
        failed.map_or(String::new(), |(_, why)| format!(" ({why})"))
    }

    /// What lives here under a lease that kills at its end.
    fn expiring(&self) -> Vec<(DomainId, &Entry, &Copy)> {
        let enforced = self.ledger.domains.iter().filter(|(_, entry)| !entry.is_held());
        enforced
            .flat_map(|(&id, entry)| entry.copies.iter().map(move |copy| (id, entry, copy)))
            .filter(|(_, _, copy)| copy.dying.is_none())
            .collect()
    }
}

/// A process that is to die, as the fence record names it.
pub(super) fn victim(domain: DomainId, entry: &Entry, copy: &Copy) -> Victim {
    let (cause, why) = copy.dying.as_ref().map(|dying| (dying.cause, dying.why.clone())).unwrap_or_default();
    Victim {
        domain,
        name: entry.name.clone(),
        pid: copy.process.pid,
        epoch: copy.epoch,
        cause,
        why,
        expires: copy.expires,
        waits_for: None,
    }
}

/// The first few, and how many there are.
struct Named {
    first: String,
    count: usize,
}

fn names<'a>(domains: impl Iterator<Item = (DomainId, &'a str)>) -> Named {
    let mut count = 0;
    let mut first = Vec::new();
    for (id, name) in domains {
        count += 1;
        if first.len() < MOST_NAMED {
            first.push(label(name, id));
        }
    }
    Named { first: first.join(", "), count }
}

fn run_here(named: &Named) -> String {
    match named.count {
        1 => format!("domain {} runs here", named.first),
        count if count <= MOST_NAMED => format!("domains {} run here", named.first),
        count => format!("{count} domains run here, {} among them,", named.first),
    }
}

fn must_die(named: &Named) -> String {
    match named.count {
        1 => format!("domain {} must die", named.first),
        count if count <= MOST_NAMED => format!("domains {} must die", named.first),
        count => format!("{count} domains must die, {} among them", named.first),
    }
}
