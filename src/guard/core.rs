//! The core thread: one channel in, the lease core decides, actions out. It blocks on nothing but its channel.

use super::armament::Armament;
use super::fences::Fences;
use super::killer::Killer;
use super::outbox::{Outbox, Outward};
use super::polite::Polite;
use super::record::Record;
use super::scan::Scanner;
use crate::lease::event::{Action, Event, Severity};
use crate::lease::gone::DisarmOrder;
use crate::lease::guard::Guard;
use crate::lease::time::BootTime;
use crate::lease::view::StatusView;
use crate::node::clock::{self, BootTimer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

/// What the core thread is told.
pub enum Input {
    /// An event for the lease core.
    Event(Event),
    /// The operator stops the watchdog, whatever runs.
    ForceDisarm,
    /// Somebody wants to see the state.
    Status(SyncSender<StatusView>),
}

/// The permit, published after every turn: the BOOTTIME nanosecond until which feeding a watchdog is proven safe, and
/// whether the reset is decided on since it passed.
#[derive(Debug, Default)]
pub struct Permit {
    until: AtomicU64,
    fences: AtomicBool,
}

impl Permit {
    /// The instant.
    pub fn until(&self) -> BootTime {
        BootTime::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(crate) fn publish(&self, until: BootTime) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }

    /// Whether the reset of this host is decided on.
    pub fn fences(&self) -> bool {
        self.fences.load(Ordering::Acquire)
    }

    pub(crate) fn publish_fence(&self, fences: bool) {
        self.fences.store(fences, Ordering::Release);
    }
}

/// Where the core's actions go.
pub struct Hands {
    /// Questions and verdicts, behind the ledger.
    pub outbox: Outbox,
    /// Scans.
    pub scanner: Scanner,
    /// SIGKILL.
    pub killer: Killer,
    /// libvirt's own destroy and resume, and its word on starts in flight.
    pub polite: Polite,
    /// The watchdog, where one is used.
    pub watchdog: Option<Armament>,
    /// What was refused to this guard when it started, for the status.
    pub faults: Vec<String>,
    /// The operator.
    pub record: Record,
    /// What led to a kill or a reset, for afterwards.
    pub fences: Fences,
}

/// Runs until the process ends. Hooks come last: a host that starts hundreds of domains at once must not let the answers
/// that renew what runs grow old in the queue behind them.
pub fn run(mut guard: Guard, inputs: Receiver<Input>, hands: &Hands, timer: &BootTimer, permit: &Arc<Permit>) {
    carry_out(&mut guard, Event::Tick, hands, timer, permit);
    let mut hooks = VecDeque::new();
    loop {
        let first = if hooks.is_empty() { inputs.recv().ok() } else { None };
        if first.is_none() && hooks.is_empty() {
            return;
        }
        let mut next = None;
        for input in first.into_iter().chain(inputs.try_iter()) {
            match input {
                Input::Event(Event::Hook(_)) => hooks.push_back(input),
                _ => {
                    next = Some(input);
                    break;
                }
            }
        }
        let Some(input) = next.or_else(|| hooks.pop_front()) else { continue };
        match input {
            Input::Event(event) => {
                if let (Event::Drain(false), Some(watchdog)) = (&event, &hands.watchdog) {
                    watchdog.disarm.end_force();
                }
                carry_out(&mut guard, event, hands, timer, permit);
            }
            Input::ForceDisarm => {
                carry_out(&mut guard, Event::Drain(true), hands, timer, permit);
                if let Some(watchdog) = &hands.watchdog {
                    // safety: the operator has typed this node's name; the bound is taken back as soon as it is stopped.
                    watchdog.disarm.force();
                }
            }
            Input::Status(reply) => {
                let mut view = guard.view(clock::now());
                view.faults.extend(hands.scanner.faults());
                view.faults.extend(hands.faults.iter().cloned());
                view.watchdog = hands.watchdog.as_ref().map(Armament::view);
                for domain in &mut view.domains {
                    domain.late_writes = hands.scanner.late_writes(domain.domain);
                }
                // Whoever asked may have gone; the status is lost with it.
                let _ = reply.try_send(view);
            }
        }
    }
}

/// The feed thread learns what it may do: to feed until the permit, to cut short what is left, or to stop the watchdog.
pub(crate) fn allow_feeding(guard: &Guard, disarm: Option<&DisarmOrder>, permit: &Permit) {
    permit.publish_fence(guard.fences());
    match (guard.all_gone(), disarm) {
        (Some(proof), Some(disarm)) => {
            permit.publish(guard.permit());
            disarm.give(proof);
        }
        (None, Some(disarm)) => {
            // Before the permit: what was found running must not meet a watchdog that may still be stopped.
            disarm.take_back();
            permit.publish(guard.permit());
        }
        (_, None) => permit.publish(guard.permit()),
    }
}

fn carry_out(guard: &mut Guard, event: Event, hands: &Hands, timer: &BootTimer, permit: &Permit) {
    let turn = guard.step(clock::now(), event);
    allow_feeding(guard, hands.watchdog.as_ref().map(|watchdog| watchdog.disarm.as_ref()), permit);
    // rule 6: what kills goes first and waits for nothing
    let mut outward = Vec::new();
    for action in turn.actions {
        match action {
            Action::Kill { domain, process } => hands.killer.kill(domain, process),
            Action::Destroy { domain, name, by } => hands.polite.destroy(domain, name, by),
            Action::Resume { domain, name, by } => hands.polite.resume(domain, name, by),
            Action::Scan { daemons } => hands.scanner.scan_now(daemons),
            Action::AskStarts => hands.polite.ask_starts(),
            Action::Mark(mark) => hands.fences.mark(mark),
            Action::Tell(notice) => hands.record.tell(notice),
            Action::Ask(question) => outward.push(Outward::Ask(question)),
            Action::Reply { hook, verdict } => outward.push(Outward::Reply(hook, verdict)),
        }
    }
    let ledger = turn.ledger_changed.then(|| guard.ledger().to_bytes());
    if ledger.is_some() || !outward.is_empty() {
        hands.outbox.send(ledger, outward);
    }
    if let Err(error) = timer.set(guard.wake_at(clock::now())) {
        hands.record.say(
            Severity::Error,
            format!("cannot set the timer on CLOCK_BOOTTIME: {error}. The guard ends and is to be restarted"),
        );
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::event::Scan;
    use crate::lease::guard::Memory;
    use crate::lease::id::{BootId, Incarnation};
    use crate::lease::policy::{Lapse, Policy, Unkillable};
    use crate::lease::timing::{Profile, Timing};
    use std::time::Duration;

    /// What the feed thread may do after these events, a second apart.
    fn after(events: &[fn(BootTime) -> Event]) -> (Guard, DisarmOrder, Permit) {
        let policy = Policy {
            node: "n1".parse().unwrap(),
            observe: false,
            timing: Timing::profile(Profile::Default),
            rules: vec![],
            lapse: Lapse::Kill,
            unkillable: Unkillable::Reset,
            bound: None,
        };
        let (boot, incarnation) = (BootId::from_bytes([7; 16]), Incarnation::from_bytes([9; 16]));
        let mut guard = Guard::new(policy, incarnation, Memory::First(boot));
        let (disarm, permit) = (DisarmOrder::default(), Permit::default());
        let mut now = BootTime::ZERO + Duration::from_secs(100);
        for event in events {
            now = now + Duration::from_secs(1);
            let _ = guard.step(now, event(now));
            allow_feeding(&guard, Some(&disarm), &permit);
        }
        (guard, disarm, permit)
    }

    fn scanned(now: BootTime) -> Event {
        Event::Scanned(Scan { began: now - Duration::from_millis(1), copies: vec![], dead_daemons: vec![] })
    }

    #[test]
    fn the_permit_is_published_after_every_turn() {
        let (guard, _, permit) = after(&[|_| Event::Tick, scanned]);
        assert_eq!(permit.until(), guard.permit());
        assert!(permit.until() > BootTime::ZERO);
        assert!(!permit.fences());
    }

    #[test]
    fn the_proof_is_given_when_a_drained_node_is_empty_and_taken_back_before_anything_starts_again() {
        let drained: [fn(BootTime) -> Event; 4] = [|_| Event::Tick, scanned, |_| Event::Drain(true), scanned];
        let (guard, disarm, permit) = after(&drained);
        assert!(disarm.proof().is_some());
        assert_eq!(permit.until(), guard.permit());
        let undrained = [&drained[..], &[|_| Event::Drain(false)]].concat();
        assert!(after(&undrained).1.proof().is_none());
    }
}
