//! The guard's decisions: one event in, actions out.
//!
//! **Mutate once, then drain**: call [`Guard::step`] with one event, carry out all its actions in order, publish
//! [`Guard::permit`], then wait for the next event or until [`Guard::wake_at`], whichever comes first. When
//! [`Turn::ledger_changed`] is set, `Ask` and `Reply` may leave only after the ledger is written; `Kill` and
//! `Destroy` never wait for anything (rule 6).

use super::admission::MIGRATE_TO_PREPARE;
use super::alarm::{Told, victim};
use super::event::{Action, CopyState, Event, HookCall, Notice, Scan, SeenCopy, Severity};
use super::fence::What;
use super::id::{BootId, DomainId, Epoch, Incarnation, ProcessKey, QuestionNumber};
use super::ledger::{Arriving, Copy, Entry, Ledger, Stage, label};
use super::policy::{Lapse, Policy, Unkillable};
use super::promise::Promise;
use super::questions::{Asked, LEAST_GAP};
use super::time::BootTime;
use crate::protocol::MAX_DOMAINS;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A start that has shown no process for this long is asked about at libvirt.
const LONG_START: Duration = Duration::from_secs(20);
/// Process start times are kept in ticks of 10 ms and rounded down (proc_pid_stat(5), field 22).
const START_TICK: Duration = Duration::from_millis(20);

/// The state of one guard process.
#[derive(Clone, Hash)]
pub struct Guard {
    pub(super) policy: Policy,
    pub(super) incarnation: Incarnation,
    pub(super) ledger: Ledger,
    /// This boot had a ledger and it is lost: starts may be in flight that nobody remembers. Until libvirt says it
    /// has none and a later scan has shown what lives, no permit, receipt or admission (docs/design.md, State).
    pub(super) amnesia: Option<Amnesia>,
    /// Questions asked and neither folded in nor overtaken.
    pub(super) asked: BTreeMap<QuestionNumber, Asked>,
    /// The newest question whose answer was folded in.
    pub(super) folded: QuestionNumber,
    /// The newest question that every endpoint failed to answer, and why.
    pub(super) failed: Option<(QuestionNumber, String)>,
    /// Why the authority does not believe that this is the one node of its name, since the last answer.
    pub(super) conflict: Option<String>,
    pub(super) hooks: Vec<WaitingHook>,
    pub(super) next_question: QuestionNumber,
    pub(super) last_asked: Option<BootTime>,
    pub(super) ask_soon: bool,
    /// How long the first question waits for the watchdog's word, if it does.
    pub(super) watchdog_awaited: Option<Duration>,
    pub(super) hinted: BTreeSet<DomainId>,
    pub(super) announced: BTreeSet<(DomainId, Epoch)>,
    pub(super) scanned: BootTime,
    scan_due: bool,
    starts_asked: Option<BootTime>,
    /// The first turn. How a start went that an earlier guard let through, only libvirt and a scan can say.
    pub(super) began: Option<BootTime>,
    turned: BootTime,
    pub(super) told: Told,
    pub(super) actions: Vec<Action>,
}

/// How far a guard without memory has come to know what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Amnesia {
    /// Nothing is known.
    Fresh,
    /// libvirt has said that it has no start in flight; heard at this instant.
    QuietSince(BootTime),
}

/// A hook that waits for its verdict.
#[derive(Clone, Hash)]
pub(super) struct WaitingHook {
    pub(super) call: HookCall,
    pub(super) came: BootTime,
    /// The first question asked after it came: only an answer to this one or a later one decides against it.
    pub(super) question: QuestionNumber,
    pub(super) scan_asked: bool,
}

/// What one event led to.
#[must_use]
#[derive(Debug)]
pub struct Turn {
    /// The ledger must be written before any `Ask` or `Reply` of this turn or a later one leaves.
    pub ledger_changed: bool,
    /// To be carried out in order.
    pub actions: Vec<Action>,
}

/// What a guard starts with.
#[derive(Debug)]
pub enum Memory {
    /// The first guard of this boot.
    First(BootId),
    /// The ledger of an earlier guard of this boot.
    Restored(Ledger),
    /// An earlier guard of this boot left no usable ledger.
    Lost(BootId),
}

impl Guard {
    /// A guard process at its start. Nothing is permitted before its first whole scan.
    pub fn new(policy: Policy, incarnation: Incarnation, memory: Memory) -> Guard {
        let amnesia = matches!(memory, Memory::Lost(_)).then_some(Amnesia::Fresh);
        let ledger = match memory {
            Memory::Restored(mut ledger) => {
                for entry in ledger.domains.values_mut() {
                    // rule 8: nothing can have executed, and the `release` that ended it may have found no guard
                    entry.admission.take_if(|open| open.stage == Stage::Migrating);
                }
                ledger
            }
            Memory::First(boot) | Memory::Lost(boot) => Ledger::new(boot),
        };
        Guard {
            policy,
            incarnation,
            ledger,
            amnesia,
            asked: BTreeMap::new(),
            folded: QuestionNumber(0),
            failed: None,
            conflict: None,
            hooks: Vec::new(),
            next_question: QuestionNumber(1),
            last_asked: None,
            ask_soon: true,
            watchdog_awaited: None,
            hinted: BTreeSet::new(),
            announced: BTreeSet::new(),
            scanned: BootTime::ZERO,
            scan_due: true,
            starts_asked: None,
            began: None,
            turned: BootTime::ZERO,
            told: Told::default(),
            actions: Vec::new(),
        }
    }

    /// One event. See the module's contract.
    pub fn step(&mut self, now: BootTime, event: Event) -> Turn {
        let before = self.ledger.clone();
        self.turned = now;
        self.began.get_or_insert(now);
        match event {
            Event::Tick => {}
            Event::Scanned(scan) => self.scanned(now, scan),
            Event::Gone { domain, process } => self.gone(now, domain, process),
            Event::Hook(call) => self.hook(now, call),
            Event::Answered(answer) => self.answered(now, &answer),
            Event::Unanswered { question, why } => self.unanswered(question, why),
            Event::ReceiptsWithheld(question) => {
                // Its answer acknowledges nothing, so they stay due.
                if let Some(asked) = self.asked.get_mut(&question) {
                    asked.receipts.clear();
                }
            }
            Event::Hinted(domains) => {
                self.hinted.extend(domains.into_iter().take(MAX_DOMAINS));
                self.ask_soon = true;
            }
            Event::Watchdog { bound } => {
                // A host that stays up over what cannot be killed has no bound to promise.
                let bound = bound.filter(|_| self.policy.unkillable == Unkillable::Reset);
                self.ask_soon |= self.policy.bound != bound;
                self.watchdog_awaited = None;
                self.policy.bound = bound;
                self.ledger.promise = bound.map(|bound| Promise::new(bound, &self.policy.timing));
            }
            Event::Drain(wanted) => self.drain(now, wanted),
            Event::StartsInFlight { asked, domains } => self.starts_in_flight(now, asked, &domains),
        }
        self.give_up_overdue_questions(now);
        for (&id, entry) in &mut self.ledger.domains {
            entry.held_on_lapse = self.policy.lapse_of(id, &entry.name) == Lapse::Hold;
            entry.hold_known &= entry.held_on_lapse;
            // rule 8: nothing can have executed
            entry
                .admission
                .take_if(|open| open.stage == Stage::Migrating && now.since(open.since) >= MIGRATE_TO_PREPARE);
        }
        self.hear_silence(now);
        self.enforce(now);
        self.resume_arrived(now);
        self.settle_hooks(now);
        self.ask_if_due(now);
        self.look_if_due(now);
        self.ledger.prune();
        Turn { ledger_changed: self.ledger != before, actions: std::mem::take(&mut self.actions) }
    }

    /// The instant until which feeding the watchdog is proven safe (rule 4). Publish it after every step.
    pub fn permit(&self) -> BootTime {
        if self.amnesia.is_some() {
            return BootTime::ZERO;
        }
        let timing = &self.policy.timing;
        // A hung scan or a hung core makes the permit pass, whatever the leases say.
        let cap = (self.scanned + timing.ttl).min(self.turned + timing.ttl);
        if self.policy.observe {
            return cap;
        }
        let enforced = self.ledger.domains.values().filter(|entry| !entry.is_held());
        enforced.flat_map(|entry| self.limits(entry)).fold(cap, BootTime::min)
    }

    /// The instant at which [`Event::Tick`] is due if nothing happens before.
    pub fn wake_at(&self, now: BootTime) -> BootTime {
        let asking = if self.ask_soon && self.asked.is_empty() {
            self.last_asked.map_or(now, |last| last + LEAST_GAP)
        } else {
            self.last_asked.map_or(now, |last| last + self.policy.timing.renew)
        }
        .max(self.silent_until());
        let overdue = self.asked.values().map(|asked| asked.sent + asked.timeout);
        let hooks = self.hooks.iter().map(|hook| hook.call.answer_by);
        let deadlines = self
            .ledger
            .domains
            .values()
            .flat_map(|entry| self.deadlines(entry).into_iter().chain(self.resume_at(entry)));
        let silence = self.silence_heard_at();
        overdue.chain(hooks).chain(deadlines).chain(silence).filter(|&at| at > now).fold(asking.max(now), BootTime::min)
    }

    /// The ledger, to be written.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// When the last whole scan began.
    pub(super) fn last_scan(&self) -> Option<BootTime> {
        (self.scanned > BootTime::ZERO).then_some(self.scanned)
    }

    // --- what lives ---------------------------------------------------------------------------------------------

    fn scanned(&mut self, now: BootTime, scan: Scan) {
        if scan.began <= self.scanned {
            return;
        }
        self.scanned = scan.began;
        for seen in &scan.copies {
            self.seen(now, seen);
        }
        if self.permit() <= now {
            // Nothing is armed before an answer has named what was found running, which should not wait for that.
            self.watchdog_awaited = None;
        }
        for entry in self.ledger.domains.values_mut() {
            let Some(open) = &entry.admission else { continue };
            // rule 8: libvirt's word, or its death, closes an admission only with a scan begun later that found nothing
            let dead = open.daemon.is_some_and(|daemon| scan.dead_daemons.contains(&daemon));
            if open.over.is_some_and(|over| scan.began > over) || dead {
                entry.stirred = entry.stirred.max(Some(open.over.unwrap_or(open.since)));
                entry.admission = None;
            }
        }
        if let Some(Amnesia::QuietSince(told)) = self.amnesia
            && scan.began > told
        {
            self.amnesia = None;
            self.tell(
                Severity::Warning,
                "the lost ledger is made good: libvirt has no start in flight and every running domain is known again"
                    .into(),
            );
        }
    }

    fn seen(&mut self, now: BootTime, seen: &SeenCopy) {
        let asked_from = self.next_question();
        let entry = self.ledger.domains.entry(seen.domain).or_default();
        entry.name.clone_from(&seen.name);
        if let Some(known) = entry.copies.iter_mut().find(|copy| copy.process == seen.process) {
            known.state = seen.state;
            if seen.state == CopyState::Running && known.arriving.take().is_some() {
                // No hook fires at cut-over: this is the first that anybody hears of it, and if the source's copy runs
                // too, the authority has to know.
                self.ask_soon = true;
            }
            return;
        }
        // rule 9: a process belongs to the epoch under which its own start was let through
        let admitted =
            entry.admission.take_if(|open| open.stage == Stage::Started && seen.started + START_TICK >= open.since);
        let arriving = admitted
            .as_ref()
            .and_then(|open| (open.incoming && seen.state != CopyState::Running).then(Arriving::default));
        let expires = admitted.as_ref().map_or(now + self.policy.chance(), |open| open.expires);
        let epoch = admitted.as_ref().map(|open| open.epoch);
        let (process, state) = (seen.process, seen.state);
        entry.copies.push(Copy { process, epoch, seen: now, asked_from, state, expires, dying: None, arriving });
        if admitted.is_none() {
            let (who, pid) = (label(&seen.name, seen.domain), seen.process.pid);
            self.ask_soon = true;
            self.tell(
                Severity::Warning,
                format!("domain {who} runs (process {pid}) and no start of it was let through here: it is asked about now, and dies unless the authority allows it"),
            );
        }
    }

    fn gone(&mut self, now: BootTime, domain: DomainId, process: ProcessKey) {
        let Some(entry) = self.ledger.domains.get_mut(&domain) else { return };
        let Some(at) = entry.copies.iter().position(|copy| copy.process == process) else { return };
        let copy = entry.copies.remove(at);
        entry.stirred = Some(now);
        let who = label(&entry.name, domain);
        let died = copy.dying.is_some().then(|| victim(domain, entry, &copy));
        // A receipt, or a start that waits, needs a scan begun after this.
        self.scan_due = true;
        let text = match &copy.dying {
            Some(dying) => format!(
                "domain {who}, process {}, is gone {:.3} s after it was condemned ({})",
                process.pid,
                now.since(dying.since).as_secs_f64(),
                dying.why
            ),
            None => format!("domain {who}, process {}, ended by itself and is gone", process.pid),
        };
        self.tell(Severity::Info, text);
        if let Some(victim) = died {
            self.mark(now, What::Gone, vec![victim]);
        }
    }

    /// rule 8: what was let through before libvirt was `asked` and is not in flight now has failed, or has become a process
    /// at any instant up to now: only a scan begun after now can say which.
    fn starts_in_flight(&mut self, now: BootTime, asked: BootTime, domains: &[DomainId]) {
        for (id, entry) in &mut self.ledger.domains {
            if let Some(open) = &mut entry.admission
                && open.since < asked
                && !domains.contains(id)
            {
                open.over = open.over.max(Some(now));
                self.scan_due = true;
            }
        }
        if self.amnesia == Some(Amnesia::Fresh) && domains.is_empty() {
            self.amnesia = Some(Amnesia::QuietSince(now));
            self.scan_due = true;
        }
    }

    fn look_if_due(&mut self, now: BootTime) {
        let began = self.began.unwrap_or(now);
        let unclear = |entry: &Entry| {
            let overdue = |since: BootTime| since < began || now.since(since) >= LONG_START;
            entry.admission.as_ref().is_some_and(|open| open.over.is_none() && overdue(open.since))
        };
        let unsure = self.amnesia == Some(Amnesia::Fresh) || self.ledger.domains.values().any(unclear);
        if unsure && self.starts_asked.is_none_or(|last| now.since(last) >= self.policy.timing.renew) {
            self.starts_asked = Some(now);
            self.actions.push(Action::AskStarts);
        }
        if std::mem::take(&mut self.scan_due) {
            let open = self.ledger.domains.values().filter_map(|entry| entry.admission.as_ref());
            let daemons = open.filter_map(|admission| admission.daemon).collect();
            self.actions.push(Action::Scan { daemons });
        }
    }

    /// Says that a scan should not wait for its turn.
    pub(super) fn scan_soon(&mut self) {
        self.scan_due = true;
    }

    /// Says it to the operator.
    pub(super) fn tell(&mut self, severity: Severity, text: String) {
        self.actions.push(Action::Tell(Notice { severity, text }));
    }
}
