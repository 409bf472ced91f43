//! The core by its rules, one sentence each, under virtual time. The default profile: ttl 15 s, renewed every 3 s,
//! 2 s of politeness, 500 ppm.

mod alarms;
mod answers;
mod arming;
mod arrivals;
mod drain;
mod memory;
mod permit;
mod receipts;
mod starts;
mod stories;
mod timeline;

use super::event::*;
use super::guard::{Guard, Memory, Turn};
use super::id::*;
use super::ledger::{Ledger, Recovered};
use super::policy::{Lapse, Policy, Rule, Unkillable};
use super::time::BootTime;
use super::timing::{Profile, Timing};
use crate::protocol::*;
use std::time::Duration;

const WEB: DomainId = DomainId::from_bytes([1; 16]);
const DB: DomainId = DomainId::from_bytes([2; 16]);
const BOOT: BootId = BootId::from_bytes([7; 16]);
const ME: Incarnation = Incarnation::from_bytes([9; 16]);
const LIBVIRTD: ProcessKey = ProcessKey { pid: 900, started: 100 };

fn secs(s: f64) -> BootTime {
    BootTime::from_nanos((s * 1e9) as u64)
}

fn policy() -> Policy {
    Policy {
        node: "n1".parse().unwrap(),
        observe: false,
        timing: Timing::profile(Profile::Default),
        rules: vec![],
        lapse: Lapse::Kill,
        unkillable: Unkillable::Reset,
        bound: None,
    }
}

/// A guard, the time it lives in, and what it last asked.
struct Node {
    guard: Guard,
    now: BootTime,
    question: Option<Question>,
    actions: Vec<Action>,
    hooks: u64,
    authority_clock: u64,
}

impl Node {
    fn new() -> Node {
        Node::with(policy(), Memory::First(BOOT))
    }

    fn with(policy: Policy, memory: Memory) -> Node {
        let guard = Guard::new(policy, ME, memory);
        let mut node = Node { guard, now: secs(1000.0), question: None, actions: vec![], hooks: 0, authority_clock: 0 };
        node.step(Event::Tick);
        node.scan(&[]);
        node.answer(&[]);
        node
    }

    fn at(&mut self, s: f64) -> &mut Node {
        assert!(secs(s) >= self.now, "virtual time runs forward");
        self.authority_clock += secs(s).since(self.now).as_millis() as u64;
        self.now = secs(s);
        self
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let Turn { actions, .. } = self.guard.step(self.now, event);
        for action in &actions {
            if let Action::Ask(question) = action {
                self.question = Some(question.clone());
            }
        }
        self.actions.extend(actions.iter().cloned());
        actions
    }

    /// A whole scan that began a moment ago and saw these.
    fn scan(&mut self, copies: &[SeenCopy]) -> Vec<Action> {
        self.scan_with(copies, &[])
    }

    fn scan_with(&mut self, copies: &[SeenCopy], dead_daemons: &[ProcessKey]) -> Vec<Action> {
        self.at(self.now.as_nanos() as f64 / 1e9 + 0.002);
        let began = self.now - Duration::from_millis(1);
        self.step(Event::Scanned(Scan { began, copies: copies.to_vec(), dead_daemons: dead_daemons.to_vec() }))
    }

    fn hook(&mut self, domain: DomainId, op: HookOp) -> Option<Verdict> {
        self.hooks += 1;
        let id = HookId(self.hooks);
        let answer_by = self.now + Duration::from_millis(2700);
        let call = HookCall { id, domain, name: "web-1".into(), op, daemon: Some(LIBVIRTD), run: None, answer_by };
        let actions = self.step(Event::Hook(call));
        verdict(&actions, id)
    }

    /// The verdict on the newest hook, as soon as this event brings it.
    fn verdict_after(&mut self, event: Event) -> Option<Verdict> {
        let id = HookId(self.hooks);
        let actions = self.step(event);
        verdict(&actions, id)
    }

    fn answer_to(&self, question: &Question, claims: &[ClaimEntry]) -> RenewAnswer {
        RenewAnswer {
            protocol: VERSION,
            node: "n1".parse().unwrap(),
            incarnation: ME,
            question: question.number,
            ttl_ms: 15_000,
            authority: Incarnation::from_bytes([5; 16]),
            clock_ms: self.authority_clock,
            list_wanted: false,
            claims: Claims { tag: String::new(), domains: Some(claims.to_vec()) },
            name_next: vec![],
            bound_ms: None,
            conflict: None,
        }
    }

    /// Asks (at the next interval if need be) and answers.
    fn answer(&mut self, claims: &[ClaimEntry]) -> Vec<Action> {
        let question = self.ask();
        let answer = self.answer_to(&question, claims);
        self.step(Event::Answered(Box::new(answer)))
    }

    /// The open question, or the next one.
    fn ask(&mut self) -> Question {
        if self.question.is_none() {
            self.step(Event::Tick);
        }
        while self.question.is_none() {
            let at = self.guard.wake_at(self.now).max(self.now + Duration::from_millis(1));
            self.authority_clock += at.since(self.now).as_millis() as u64;
            self.now = at;
            self.step(Event::Tick);
        }
        self.question.take().unwrap()
    }

    /// A node with a lease for WEB of epoch 1 from a question sent at `s`.
    fn leased(s: f64) -> Node {
        let mut node = Node::new();
        node.at(s);
        node.question = None;
        node.step(Event::Hinted(vec![WEB]));
        node.answer(&[allow(WEB, 1)]);
        node
    }

    /// The same, with WEB running as process 41, let through by the hook.
    fn running(s: f64) -> Node {
        let mut node = Node::leased(s);
        assert_eq!(node.hook(WEB, HookOp::Prepare), Some(Verdict::Allow));
        assert_eq!(node.hook(WEB, HookOp::Start), Some(Verdict::Allow));
        let copy = node.copy(WEB, 41);
        node.scan(&[copy]);
        node.actions.clear();
        node
    }

    fn copy(&self, domain: DomainId, pid: i32) -> SeenCopy {
        let process = ProcessKey { pid, started: self.now.as_nanos() / 10_000_000 };
        SeenCopy { domain, name: "web-1".into(), process, started: self.now, state: CopyState::Running }
    }

    /// Runs virtual time to `s`, waking whenever the core wants; nothing is answered. When each kill was ordered.
    fn run_dry(&mut self, s: f64) -> Vec<(BootTime, i32)> {
        let mut kills = vec![];
        for _ in 0..10_000 {
            let wake = self.guard.wake_at(self.now).max(self.now + Duration::from_nanos(1)).min(secs(s));
            self.at(wake.as_nanos() as f64 / 1e9);
            self.now = wake;
            let actions = self.step(Event::Tick);
            kills.extend(killed(&actions).into_iter().map(|pid| (wake, pid)));
            if wake == secs(s) {
                return kills;
            }
        }
        panic!("the core wants to be woken for ever");
    }
}

fn verdict(actions: &[Action], id: HookId) -> Option<Verdict> {
    actions.iter().find_map(|action| match action {
        Action::Reply { hook, verdict } if *hook == id => Some(verdict.clone()),
        _ => None,
    })
}

fn killed(actions: &[Action]) -> Vec<i32> {
    let kill = |action: &Action| match action {
        Action::Kill { process, .. } => Some(process.pid),
        _ => None,
    };
    actions.iter().filter_map(kill).collect()
}

fn destroyed(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Destroy { .. })).count()
}

fn claim(domain: DomainId, claim: ClaimKind, epoch: u64) -> ClaimEntry {
    ClaimEntry { domain, claim, epoch: Epoch(epoch), owner: None, since: None, reason: None }
}

fn allow(domain: DomainId, epoch: u64) -> ClaimEntry {
    claim(domain, ClaimKind::Allow, epoch)
}

fn deny(domain: DomainId, epoch: u64) -> ClaimEntry {
    ClaimEntry { owner: Some("n2".parse().unwrap()), ..claim(domain, ClaimKind::Deny, epoch) }
}

fn refusal(verdict: Option<Verdict>) -> String {
    match verdict {
        Some(Verdict::Refuse(sentence)) => sentence,
        other => panic!("not a refusal: {other:?}"),
    }
}
