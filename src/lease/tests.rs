//! The core by its rules, one sentence each, under virtual time. The default profile: ttl 15 s, renewed every 3 s,
//! 2 s of politeness, 500 ppm.

use super::event::*;
use super::guard::{Guard, Memory, Turn};
use super::id::*;
use super::ledger::{Ledger, Recovered};
use super::policy::{Lapse, Policy, Rule};
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

// --- rule 1 ---------------------------------------------------------------------------------------------------

#[test]
fn a_lease_counts_from_before_the_question_was_sent_however_late_its_answer() {
    let mut node = Node::leased(1010.0);
    let question = node.ask();
    let sent = question.sent;
    node.at(sent.as_nanos() as f64 / 1e9 + 2.9);
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    node.step(Event::Answered(Box::new(answer)));
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    assert_eq!(expires, sent + Duration::from_micros(15_000_000 - 7_500), "15 s less 500 ppm");
}

#[test]
fn an_answer_may_shorten_the_ttl_and_never_lengthen_it() {
    for (answered_ms, expected) in [(5_000, 4_997_500), (3_600_000, 14_992_500)] {
        let mut node = Node::new();
        node.step(Event::Hinted(vec![WEB]));
        let question = node.ask();
        let answer = RenewAnswer { ttl_ms: answered_ms, ..node.answer_to(&question, &[allow(WEB, 1)]) };
        node.step(Event::Answered(Box::new(answer)));
        let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
        assert_eq!(expires, question.sent + Duration::from_micros(expected));
    }
}

// --- rule 2 ---------------------------------------------------------------------------------------------------

#[test]
fn a_question_sent_before_the_start_says_nothing_about_it() {
    let mut node = Node::leased(1010.0);
    // A question that does not name DB is under way while DB is granted and started.
    let early = node.ask();
    assert!(early.domains.iter().all(|named| named.domain != DB));
    let late = node.answer_to(&early, &[allow(WEB, 1), deny(DB, 9)]);
    node.step(Event::Answered(Box::new(late)));
    assert!(!node.guard.ledger().domains.contains_key(&DB), "what was not named is not touched");
}

#[test]
fn absence_from_an_answer_fails_to_renew_and_kills_nothing_before_the_lease_ends() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    while node.now + Duration::from_secs(4) < expires {
        let actions = node.answer(&[]);
        assert_eq!((killed(&actions).len(), destroyed(&actions)), (0, 0));
    }
    assert_eq!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires, expires);
    let kills = node.run_dry(1030.0);
    assert_eq!(kills, [(expires, 41)]);
}

// --- rule 3 ---------------------------------------------------------------------------------------------------

#[test]
fn an_older_questions_answer_changes_nothing() {
    let mut node = Node::running(1010.0);
    let first = node.ask();
    // It is given up, asked again and denied; then the first answer comes in after all.
    node.at(first.sent.as_nanos() as f64 / 1e9 + 3.1);
    node.step(Event::Tick);
    node.answer(&[deny(WEB, 2)]);
    let stale = node.answer_to(&first, &[allow(WEB, 1)]);
    node.step(Event::Answered(Box::new(stale)));
    assert!(node.guard.ledger().domains[&WEB].lease.is_none());
}

#[test]
fn another_guards_answer_another_nodes_answer_and_another_protocol_change_nothing() {
    for spoil in [
        |a: &mut RenewAnswer| a.incarnation = Incarnation::from_bytes([8; 16]),
        |a: &mut RenewAnswer| a.node = "n2".parse().unwrap(),
        |a: &mut RenewAnswer| a.protocol = VERSION + 1,
        |a: &mut RenewAnswer| a.question = QuestionNumber(4711),
    ] {
        let mut node = Node::running(1010.0);
        let question = node.ask();
        let mut answer = node.answer_to(&question, &[deny(WEB, 2)]);
        spoil(&mut answer);
        let before = node.guard.ledger().clone();
        node.step(Event::Answered(Box::new(answer)));
        assert_eq!(*node.guard.ledger(), before);
    }
}

#[test]
fn a_denial_is_never_undone_under_its_epoch() {
    let mut node = Node::running(1010.0);
    node.answer(&[deny(WEB, 3)]);
    for epoch in [1, 2, 3] {
        node.answer(&[allow(WEB, epoch)]);
        assert!(node.guard.ledger().domains[&WEB].lease.is_none(), "epoch {epoch}");
    }
    node.answer(&[allow(WEB, 4)]);
    assert_eq!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().epoch, Epoch(4));
}

#[test]
fn a_denial_of_an_older_epoch_does_not_touch_a_newer_lease() {
    let mut node = Node::leased(1010.0);
    node.answer(&[allow(WEB, 5)]);
    node.answer(&[deny(WEB, 4)]);
    assert_eq!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().epoch, Epoch(5));
}

// --- the timeline ---------------------------------------------------------------------------------------------

#[test]
fn on_lapse_libvirt_is_asked_first_and_at_the_end_of_the_lease_comes_sigkill() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    let lapse = expires - Duration::from_secs(2);
    node.run_dry((lapse.as_nanos() - 1) as f64 / 1e9);
    assert_eq!(destroyed(&node.actions), 0, "a nanosecond before lapse");
    node.now = lapse;
    let actions = node.step(Event::Tick);
    assert_eq!((destroyed(&actions), killed(&actions).len()), (1, 0));
    assert_eq!(node.run_dry(1030.0), [(expires, 41)]);
}

#[test]
fn a_renewal_after_lapse_does_not_bring_a_condemned_process_back() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.run_dry(expires.as_nanos() as f64 / 1e9 - 1.0);
    node.answer(&[allow(WEB, 1)]);
    assert!(node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires > expires);
    assert_eq!(node.run_dry(expires.as_nanos() as f64 / 1e9 + 1.0), [(expires, 41)]);
}

#[test]
fn a_revoked_domain_is_destroyed_at_once_and_killed_after_the_polite_time() {
    let mut node = Node::running(1010.0);
    let actions = node.answer(&[deny(WEB, 2)]);
    assert_eq!(destroyed(&actions), 1);
    let denied = node.now;
    assert_eq!(node.run_dry(1020.0), [(denied + Duration::from_secs(2), 41)]);
}

#[test]
fn a_revocation_never_lets_a_domain_outlive_its_lease() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.run_dry(expires.as_nanos() as f64 / 1e9 - 2.001);
    node.at(expires.as_nanos() as f64 / 1e9 - 1.9);
    // The last question is denied a moment after lapse: 2 s of politeness from now would be too long.
    node.answer(&[deny(WEB, 2)]);
    assert_eq!(node.run_dry(1030.0), [(expires, 41)]);
}

#[test]
fn a_domain_held_on_lapse_runs_on_and_dies_only_when_revoked() {
    let rules = vec![Rule { name: Some("web-*".into()), domain: None, lapse: Lapse::Hold }];
    let mut node = Node::with(Policy { rules, ..policy() }, Memory::First(BOOT));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    assert!(node.ask().domains[0].held_on_lapse, "so the authority knows that no bound covers it");
    assert_eq!(node.run_dry(1300.0), []);
    node.question = None;
    let actions = node.answer(&[deny(WEB, 2)]);
    assert_eq!(destroyed(&actions), 1);
}

#[test]
fn an_observing_node_kills_nothing_refuses_nothing_and_gives_no_receipt() {
    let mut node = Node::with(Policy { observe: true, ..policy() }, Memory::First(BOOT));
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let question = node.ask();
    let answer = node.answer_to(&question, &[deny(WEB, 7)]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), Some(Verdict::Allow));
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    node.answer(&[deny(WEB, 7)]);
    assert_eq!(node.run_dry(1100.0), []);
    assert_eq!(destroyed(&node.actions), 0);
    let would =
        |a: &&Action| matches!(a, Action::Tell(n) if n.text.contains("would refuse") || n.text.contains("would kill"));
    assert_eq!(node.actions.iter().filter(would).count(), 2);
    node.step(Event::Gone { domain: WEB, process: copy.process });
    node.scan(&[]);
    node.question = None;
    assert_eq!(node.ask().receipts, []);
}

// --- rule 4 ---------------------------------------------------------------------------------------------------

#[test]
fn the_permit_ends_a_feed_period_before_the_earliest_lease_of_a_living_domain() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    // Scans and turns go on; nothing is renewed.
    for s in 1011..1018 {
        node.at(s as f64);
        node.scan(&[]);
    }
    assert_eq!(node.guard.permit(), expires - Duration::from_secs(1));
}

#[test]
fn a_lease_with_nothing_running_under_it_does_not_limit_the_permit() {
    let mut node = Node::leased(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.at(1020.0);
    node.scan(&[]);
    assert!(node.guard.permit() > expires);
}

#[test]
fn an_open_admission_limits_the_permit_like_a_running_domain() {
    let mut node = Node::leased(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.hook(WEB, HookOp::Prepare);
    node.at(1020.0);
    node.scan(&[]);
    assert_eq!(node.guard.permit(), expires - Duration::from_secs(1));
}

#[test]
fn a_domain_found_running_stops_the_permit_until_an_answer_has_named_it() {
    let mut node = Node::new();
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    assert!(node.guard.permit() <= node.now);
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    assert!(node.guard.permit() > node.now);
}

#[test]
fn a_scan_that_hangs_makes_the_permit_pass_whatever_the_leases_say() {
    let mut node = Node::new();
    let scanned = node.now;
    for _ in 0..8 {
        node.answer(&[]);
    }
    assert!(node.guard.permit() <= scanned + Duration::from_secs(15));
}

#[test]
fn a_condemned_process_keeps_its_old_limit_though_the_domain_is_renewed() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    node.run_dry(expires.as_nanos() as f64 / 1e9 - 1.5);
    node.question = None;
    node.answer(&[allow(WEB, 1)]);
    node.scan(&[]);
    assert_eq!(node.guard.permit(), expires - Duration::from_secs(1));
}

// --- rule 7 ---------------------------------------------------------------------------------------------------

#[test]
fn a_receipt_follows_denial_death_and_a_later_whole_scan_and_is_repeated_until_answered() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.answer(&[deny(WEB, 2)]);
    let denial = node.guard.ledger().domains[&WEB].seal.clone().unwrap();
    node.scan(&[]);
    assert_eq!(node.ask().receipts, [], "it is not proven gone");
    let actions = node.step(Event::Gone { domain: WEB, process });
    assert!(actions.iter().any(|a| matches!(a, Action::Scan { .. })));
    node.question = None;
    assert_eq!(node.ask().receipts, [], "no scan has begun since");
    node.scan(&[]);
    let receipt = Receipt { domain: WEB, epoch: Epoch(2), denied_incarnation: ME, denied_question: denial.question };
    for _ in 0..3 {
        assert_eq!(node.ask().receipts, [receipt.clone()], "until a question that carried it is answered");
    }
    node.question = None;
    node.answer(&[]);
    assert_eq!(node.ask().receipts, []);
}

#[test]
fn what_ended_without_a_denial_gets_no_receipt() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.step(Event::Gone { domain: WEB, process });
    node.scan(&[]);
    node.scan(&[]);
    assert_eq!(node.ask().receipts, []);
}

#[test]
fn a_domain_that_never_ran_here_is_receipted_after_its_denial_and_a_scan() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    assert_eq!(node.ask().receipts.len(), 1);
}

#[test]
fn a_node_in_conflict_keeps_its_receipts_and_renews_nothing() {
    let mut node = Node::leased(1010.0);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    let question = node.ask();
    let answer = node.answer_to(&question, &[]);
    let answer = RenewAnswer { ttl_ms: 0, conflict: Some("two hosts".into()), ..answer };
    node.step(Event::Answered(Box::new(answer)));
    assert_eq!(node.ask().receipts.len(), 1);
}

// --- rule 8 ---------------------------------------------------------------------------------------------------

#[test]
fn a_start_is_let_through_at_once_under_a_lease_and_written_down_first() {
    let mut node = Node::leased(1010.0);
    node.hooks += 1;
    let answer_by = node.now + Duration::from_secs(2);
    let (id, op) = (HookId(node.hooks), HookOp::Prepare);
    let call = HookCall { id, domain: WEB, name: "w".into(), op, daemon: Some(LIBVIRTD), run: Some(3), answer_by };
    let turn = node.guard.step(node.now, Event::Hook(call));
    assert!(turn.ledger_changed);
    assert_eq!(verdict(&turn.actions, id), Some(Verdict::Allow));
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
}

#[test]
fn a_start_without_a_lease_waits_for_the_answer_to_a_question_asked_after_it() {
    let mut node = Node::new();
    node.answer(&[]);
    // Under way when the hook comes: its answer decides nothing.
    let early = node.ask();
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let answer = node.answer_to(&early, &[]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), None);
    let question = node.ask();
    assert!(question.domains.iter().any(|named| named.domain == WEB && named.name == "web-1"));
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    assert_eq!(node.verdict_after(Event::Answered(Box::new(answer))), Some(Verdict::Allow));
}

#[test]
fn a_refusal_names_the_owner_since_when_and_the_epoch() {
    let mut node = Node::new();
    node.hook(WEB, HookOp::Prepare);
    let question = node.ask();
    let since = Some("2026-12-01T02:00:00Z".into());
    let answer = node.answer_to(&question, &[ClaimEntry { since, ..deny(WEB, 7) }]);
    let sentence = refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    let expected = format!("no lease for domain web-1 ({WEB}): owned by node n2 since 2026-12-01T02:00:00Z, epoch 7");
    assert!(sentence.starts_with(&expected), "{sentence}");
    assert!(sentence.contains(&format!("leasehold lease move {WEB} n1")), "{sentence}");
}

#[test]
fn a_start_is_refused_when_nobody_answers_and_says_so() {
    let mut node = Node::new();
    node.hook(WEB, HookOp::Prepare);
    let question = node.ask().number;
    let event = Event::Unanswered { question, why: "connection refused".into() };
    let sentence = refusal(node.verdict_after(event));
    assert!(sentence.contains("did not answer (connection refused)"), "{sentence}");
}

#[test]
fn a_hook_gets_its_verdict_by_its_deadline_whatever_hangs() {
    let mut node = Node::new();
    node.hook(WEB, HookOp::Prepare);
    let by = node.now + Duration::from_millis(2700);
    assert!(node.guard.wake_at(node.now) <= by);
    node.now = by;
    refusal(node.verdict_after(Event::Tick));
}

#[test]
fn a_revocation_between_prepare_and_start_refuses_the_start_and_frees_the_domain() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.answer(&[deny(WEB, 2)]);
    assert_eq!(node.hook(WEB, HookOp::Start), None, "it is asked once more");
    let question = node.ask();
    let answer = node.answer_to(&question, &[deny(WEB, 2)]);
    refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    node.scan(&[]);
    assert_eq!(node.ask().receipts.len(), 1, "nothing can have executed");
}

#[test]
fn after_start_has_passed_no_receipt_before_release_and_a_later_scan() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.answer(&[deny(WEB, 2)]);
    node.scan(&[]);
    node.scan(&[]);
    assert_eq!(node.ask().receipts, [], "QEMU may be about to execute");
    assert_eq!(node.hook(WEB, HookOp::Release), Some(Verdict::Allow));
    node.question = None;
    assert_eq!(node.ask().receipts, [], "release fires over a QEMU in D too");
    node.scan(&[]);
    assert_eq!(node.ask().receipts.len(), 1);
}

#[test]
fn a_late_release_of_an_earlier_run_does_not_close_a_later_start() {
    let mut node = Node::leased(1010.0);
    let mut call = |op, run| {
        node.hooks += 1;
        let (id, answer_by) = (HookId(node.hooks), node.now + Duration::from_secs(2));
        let call =
            HookCall { id, domain: WEB, name: "w".into(), op, daemon: Some(LIBVIRTD), run: Some(run), answer_by };
        node.guard.step(node.now, Event::Hook(call))
    };
    let _ = call(HookOp::Prepare, 2);
    let _ = call(HookOp::Start, 2);
    let _ = call(HookOp::Release, 1);
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
}

#[test]
fn the_death_of_the_libvirt_that_held_a_start_closes_it_with_a_later_scan() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some());
    node.scan_with(&[], &[LIBVIRTD]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn a_start_that_shows_no_process_for_long_is_asked_about_and_closed_by_libvirts_word_and_a_scan() {
    let mut node = Node::leased(1010.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.actions.clear();
    node.run_dry(1035.0);
    assert!(node.actions.iter().any(|action| matches!(action, Action::AskStarts)));
    let asked = node.now;
    node.step(Event::StartsInFlight { asked, domains: vec![WEB] });
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_some(), "it is in flight");
    let asked = node.now;
    node.step(Event::StartsInFlight { asked, domains: vec![] });
    node.scan(&[]);
    assert!(node.guard.ledger().domains[&WEB].admission.is_none());
}

#[test]
fn no_start_while_an_earlier_process_is_not_proven_gone() {
    let mut node = Node::running(1010.0);
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    assert_eq!(node.hook(WEB, HookOp::Prepare), None, "it may be proven gone within the hook's time");
    node.at(1012.8);
    let sentence = refusal(node.verdict_after(Event::Tick));
    assert!(sentence.contains("process 41 is not proven gone"), "{sentence}");
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    assert_eq!(node.verdict_after(Event::Gone { domain: WEB, process }), Some(Verdict::Allow));
}

#[test]
fn an_incoming_claim_admits_a_migration_and_not_a_plain_start() {
    let mut node = Node::new();
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[claim(WEB, ClaimKind::Incoming, 3)]);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let question = node.ask();
    let answer = node.answer_to(&question, &[claim(WEB, ClaimKind::Incoming, 3)]);
    let sentence = refusal(node.verdict_after(Event::Answered(Box::new(answer))));
    assert!(sentence.contains("by live migration"), "{sentence}");
    for op in [HookOp::Migrate, HookOp::Prepare, HookOp::Start, HookOp::Started] {
        assert_eq!(node.hook(WEB, op), Some(Verdict::Allow), "{op:?}");
    }
}

#[test]
fn a_hold_runs_on_and_starts_nothing() {
    let mut node = Node::running(1010.0);
    for _ in 0..10 {
        node.answer(&[claim(WEB, ClaimKind::Hold, 1)]);
    }
    assert!(killed(&node.actions).is_empty());
    let process = node.guard.ledger().domains[&WEB].copies[0].process;
    node.step(Event::Gone { domain: WEB, process });
    node.question = None;
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let question = node.ask();
    let answer = node.answer_to(&question, &[claim(WEB, ClaimKind::Hold, 1)]);
    assert!(refusal(node.verdict_after(Event::Answered(Box::new(answer)))).contains("on hold"));
}

#[test]
fn reconnect_refuses_only_what_is_positively_over() {
    let mut node = Node::running(1010.0);
    assert_eq!(node.hook(DB, HookOp::Reconnect), Some(Verdict::Allow), "unknown");
    assert_eq!(node.hook(WEB, HookOp::Reconnect), Some(Verdict::Allow), "leased");
    node.run_dry(1026.0);
    assert!(refusal(node.hook(WEB, HookOp::Reconnect)).contains("ran out"));
    node.question = None;
    node.answer(&[deny(WEB, 2)]);
    assert!(refusal(node.hook(WEB, HookOp::Reconnect)).contains("revoked"));
}

#[test]
fn every_end_is_allowed_whatever_is_known() {
    let mut node = Node::new();
    for op in [HookOp::Stopped, HookOp::Release, HookOp::OtherEnd] {
        assert_eq!(node.hook(WEB, op), Some(Verdict::Allow));
    }
}

// --- rule 9 ---------------------------------------------------------------------------------------------------

#[test]
fn a_lease_of_a_newer_epoch_does_not_renew_the_process_of_an_older_one() {
    let mut node = Node::running(1010.0);
    let actions = node.answer(&[allow(WEB, 9)]);
    assert_eq!(destroyed(&actions), 1);
    assert!(killed(&node.actions).is_empty());
    let condemned = node.now;
    assert_eq!(node.run_dry(1020.0), [(condemned + Duration::from_secs(2), 41)]);
}

#[test]
fn a_process_that_started_before_its_admission_was_not_admitted_by_it() {
    let mut node = Node::leased(1010.0);
    let mut old = node.copy(WEB, 40);
    old.started = secs(1009.0);
    node.hook(WEB, HookOp::Prepare);
    node.hook(WEB, HookOp::Start);
    node.scan(&[old]);
    let entry = &node.guard.ledger().domains[&WEB];
    assert_eq!((entry.copies[0].epoch, entry.admission.is_some()), (None, true));
}

// --- rule 10 --------------------------------------------------------------------------------------------------

#[test]
fn a_domain_found_running_is_asked_about_adopted_if_allowed_and_killed_if_denied() {
    for (answer, kills) in [(allow(WEB, 4), 0), (deny(WEB, 4), 1)] {
        let mut node = Node::new();
        node.answer(&[]);
        let copy = node.copy(WEB, 41);
        node.scan(std::slice::from_ref(&copy));
        node.answer(&[answer]);
        assert_eq!(node.run_dry(node.now.as_nanos() as f64 / 1e9 + 3.0).len(), kills);
    }
}

#[test]
fn a_denial_does_not_reach_a_process_that_appeared_after_its_question_was_sent() {
    let mut node = Node::new();
    node.answer(&[]);
    node.step(Event::Hinted(vec![WEB]));
    let question = node.ask();
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    let answer = node.answer_to(&question, &[deny(WEB, 4)]);
    node.step(Event::Answered(Box::new(answer)));
    assert!(node.guard.ledger().domains[&WEB].copies[0].dying.is_none(), "its own question is still to come");
    node.question = None;
    node.answer(&[deny(WEB, 4)]);
    assert!(node.guard.ledger().domains[&WEB].copies[0].dying.is_some());
}

#[test]
fn a_domain_found_running_with_nobody_answering_gets_its_chance_and_dies() {
    let mut node = Node::new();
    let copy = node.copy(WEB, 41);
    node.scan(std::slice::from_ref(&copy));
    let found = node.now;
    assert_eq!(node.run_dry(1030.0), [(found + Duration::from_secs(6), 41)]);
}

// --- memory ---------------------------------------------------------------------------------------------------

#[test]
fn a_restarted_guard_goes_on_from_its_ledger() {
    let mut node = Node::running(1010.0);
    let expires = node.guard.ledger().domains[&WEB].lease.as_ref().unwrap().expires;
    let copy = node.guard.ledger().domains[&WEB].copies[0].process;
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    assert_eq!(ledger, *node.guard.ledger());
    let mut next = Node::with(policy(), Memory::Restored(ledger));
    next.at(1012.0);
    let started = secs(1010.0);
    let seen = SeenCopy { domain: WEB, name: "web-1".into(), process: copy, started, state: CopyState::Running };
    next.scan(&[seen]);
    assert_eq!(next.run_dry(1030.0), [(expires, 41)], "neither sooner nor later than its lease");
}

#[test]
fn a_kill_ordered_by_an_earlier_guard_is_ordered_again() {
    let mut node = Node::running(1010.0);
    node.run_dry(1026.0);
    let Recovered::Restored(ledger) = Ledger::recover(&node.guard.ledger().to_bytes(), BOOT) else { panic!() };
    let mut next = Guard::new(policy(), ME, Memory::Restored(ledger));
    let turn = next.step(secs(1026.5), Event::Tick);
    assert_eq!(killed(&turn.actions), [41]);
}

#[test]
fn a_ledger_of_another_boot_is_forgotten_and_a_broken_one_is_lost() {
    let bytes = Node::running(1010.0).guard.ledger().to_bytes();
    assert!(matches!(Ledger::recover(&bytes, BootId::from_bytes([8; 16])), Recovered::OtherBoot));
    assert!(matches!(Ledger::recover(&bytes[..bytes.len() - 1], BOOT), Recovered::Unusable(_)));
    assert!(matches!(Ledger::recover(b"", BOOT), Recovered::Unusable(_)));
    let future = String::from_utf8(bytes).unwrap().replacen("\"version\":1", "\"version\":2", 1);
    let Recovered::Unusable(why) = Ledger::recover(future.as_bytes(), BOOT) else { panic!() };
    assert!(why.contains("format 2"), "{why}");
}

#[test]
fn a_guard_without_memory_permits_admits_and_receipts_nothing_until_libvirt_is_quiet_and_a_later_scan_is_whole() {
    let mut node = Node::with(policy(), Memory::Lost(BOOT));
    assert_eq!(node.guard.permit(), BootTime::ZERO);
    assert!(node.actions.iter().any(|action| matches!(action, Action::AskStarts)));
    node.step(Event::Hinted(vec![WEB]));
    node.answer(&[allow(WEB, 1)]);
    assert_eq!(node.hook(WEB, HookOp::Prepare), None);
    let asked = node.now;
    assert_eq!(node.verdict_after(Event::StartsInFlight { asked, domains: vec![DB] }), None, "one is in flight");
    let asked = node.now;
    assert_eq!(node.verdict_after(Event::StartsInFlight { asked, domains: vec![] }), None, "no scan since");
    let actions = node.scan(&[]);
    assert_eq!(verdict(&actions, HookId(node.hooks)), Some(Verdict::Allow));
    assert!(node.guard.permit() > node.now);
}

#[test]
fn denials_are_remembered_and_the_ledger_stays_small() {
    let mut node = Node::new();
    let ids: Vec<_> =
        (0..2500u16).map(|i| DomainId::from_bytes([i.to_be_bytes(); 8].concat().try_into().unwrap())).collect();
    for chunk in ids.chunks(500) {
        node.step(Event::Hinted(chunk.to_vec()));
        node.question = None;
        let denials: Vec<_> = chunk.iter().map(|&id| deny(id, 3)).collect();
        node.answer(&denials);
        node.scan(&[]);
        node.answer(&[]);
    }
    node.step(Event::Tick);
    assert_eq!(node.guard.ledger().domains.len(), 1000);
    assert!(node.guard.ledger().domains.contains_key(ids.last().unwrap()), "the newest are kept");
}

// --- stolen time ----------------------------------------------------------------------------------------------

#[test]
fn leases_held_across_stolen_time_end_at_the_first_answer_after_it() {
    let mut node = Node::running(1010.0);
    node.answer(&[allow(WEB, 1)]);
    node.authority_clock += 40_000;
    let actions = node.answer(&[allow(WEB, 1)]);
    assert_eq!(killed(&actions), [41], "this answer's own lease is no better");
}

#[test]
fn an_authority_clock_within_the_allowed_drift_steals_nothing() {
    let mut node = Node::running(1010.0);
    for _ in 0..20 {
        node.authority_clock += 3;
        node.answer(&[allow(WEB, 1)]);
    }
    assert!(killed(&node.actions).is_empty());
}

#[test]
fn a_restarted_authoritys_clock_is_not_compared_with_its_predecessors() {
    let mut node = Node::running(1010.0);
    node.answer(&[allow(WEB, 1)]);
    let question = node.ask();
    let answer = node.answer_to(&question, &[allow(WEB, 1)]);
    let answer = RenewAnswer { authority: Incarnation::from_bytes([6; 16]), clock_ms: 99_000_000, ..answer };
    node.step(Event::Answered(Box::new(answer)));
    assert_eq!(node.run_dry(node.now.as_nanos() as f64 / 1e9 + 5.0), []);
}
