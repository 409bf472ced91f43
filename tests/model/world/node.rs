//! The node `a`: its guard, its libvirt and its watchdog.

use super::*;

impl World {
    // --- the guard ----------------------------------------------------------------------------------------------

    pub(super) fn start_guard(&mut self, with_ledger: bool) {
        self.incarnation += 1;
        let guarded = std::mem::replace(&mut self.guarded, true);
        let boot = self.boot_id();
        let memory = match self.ledger.as_ref().filter(|_| with_ledger) {
            Some(ledger) => match Ledger::recover(&ledger.to_bytes(), boot) {
                Recovered::Restored(ledger) => Memory::Restored(ledger),
                other => panic!("{other:?}"),
            },
            None if guarded => Memory::Lost(boot),
            None => Memory::First(boot),
        };
        let mut policy = self.policy();
        self.restraint = None;
        if let Memory::Restored(ledger) = &memory {
            let (timing, strict) = (&self.timing, self.case.0.strict);
            policy.bound = ledger.promise.and_then(|promise| promise.still_holds(timing, strict, timing.watchdog));
            let needs = |seconds: u32| Duration::from_secs(seconds.into());
            self.restraint = ledger.counted.restrain(self.clock(self.now), timing, strict, needs);
        }
        let incarnation = Incarnation::from_bytes([self.incarnation; 16]);
        self.guard = Some(Guard::new(policy, incarnation, memory).awaiting_watchdog());
        (self.told_armed, self.scanned) = (false, false);
        for process in &mut self.processes {
            process.told = false;
        }
        self.event(Event::Tick);
    }

    pub(super) fn event(&mut self, event: Event) {
        let now = self.clock(self.now);
        let Some(guard) = self.guard.as_mut().filter(|_| self.hang == Hang::No) else { return };
        let turn = guard.step(now, event);
        let ledger = turn.ledger_changed.then(|| guard.ledger().clone());
        let dies = self.dies_in_turn.take();
        if dies != Some(false) {
            self.ledger = ledger.or(self.ledger.take());
        }
        // rule 6: a kill waits for nothing; questions and verdicts wait for the ledger
        for action in turn.actions {
            if dies.is_none() || matches!(action, Action::Kill { .. }) {
                self.act(action);
            }
        }
        if dies.is_some() {
            self.guard_ends();
        }
    }

    pub(super) fn guard_ends(&mut self) {
        self.close();
        (self.guard, self.hang, self.feed_stopped, self.dies_in_turn) = (None, Hang::No, false, None);
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Ask(question) => {
                if question.bound.is_some() && self.case.0.unkillable == Unkillable::Report {
                    self.broken = Some("a bound is promised by a host that is not reset".to_owned());
                }
                let request = self.request(question);
                if !self.cut {
                    push(&mut self.questions, request);
                }
            }
            Action::Reply { hook, verdict } => {
                if let Starting::Asks(op, waiting) = self.starting
                    && waiting == hook
                {
                    self.starting = if verdict == Verdict::Allow { Starting::Let(op) } else { Starting::No };
                    if self.starting == Starting::No {
                        self.hook(HookOp::Release);
                    }
                }
            }
            Action::Kill { process, .. } => {
                if self.case.0.healthy && self.left.moves == self.case.0.budget.moves {
                    self.broken = Some("a needless kill: contact and claim are unbroken".to_owned());
                }
                for killed in self.processes.iter_mut().filter(|killed| killed.key == process) {
                    killed.struck = true;
                }
            }
            Action::AskStarts => {
                let asked = self.clock(self.now);
                let domains = if self.starting == Starting::No { vec![] } else { vec![DOMAIN] };
                self.event(Event::StartsInFlight { asked, domains });
            }
            Action::Resume { .. } => self.processes.iter_mut().for_each(|process| process.runs = true),
            Action::Scan { .. } | Action::Destroy { .. } | Action::Tell(_) | Action::Mark(_) => {}
        }
    }

    pub(super) fn request(&self, question: Question) -> RenewRequest {
        RenewRequest {
            protocol: VERSION,
            incarnation: Incarnation::from_bytes([self.incarnation; 16]),
            question: question.number,
            boot_id: self.boot_id(),
            machine: Machine { hardware: "hw".into(), key: "key".into() },
            // Two guard processes never ask within one millisecond: starting takes longer.
            uptime_ms: question.sent.as_nanos() / 1_000_000 + u64::from(self.incarnation),
            ttl_ms: self.timing.ttl.as_millis() as u64,
            bound_ms: question.bound.map(|bound| bound.as_nanos().div_ceil(1_000_000) as u64),
            mode: Mode::Enforce,
            list: QuestionList {
                digest: question.number.0.to_string(),
                domains: Some(question.domains),
                claims_tag: None,
            },
            receipts: question.receipts,
        }
    }

    pub(super) fn scan(&mut self) {
        self.scanned = true;
        let began = self.clock(self.now);
        let seen = |process: &Process| SeenCopy {
            domain: DOMAIN,
            name: String::new(),
            process: process.key,
            started: process.started,
            state: if process.runs { CopyState::Running } else { CopyState::Paused },
        };
        let copies = self.processes.iter().filter(|process| process.alive).map(seen).collect();
        self.event(Event::Scanned(Scan { began, copies, dead_daemons: vec![] }));
    }

    pub(super) fn prove(&mut self) {
        if let Some(gone) = self.processes.iter_mut().find(|process| !process.alive && !process.told) {
            gone.told = true;
            let process = gone.key;
            self.event(Event::Gone { domain: DOMAIN, process });
        }
    }

    // --- libvirt ------------------------------------------------------------------------------------------------

    pub(super) fn hook(&mut self, op: HookOp) {
        let now = self.clock(self.now);
        self.hooks += 1;
        let id = HookId(self.hooks);
        if op.can_refuse() && op != HookOp::Started {
            self.starting = Starting::Asks(op, id);
            if self.guard.is_none() || self.hang != Hang::No {
                // rule 10: a hook that cannot reach its guard refuses.
                self.starting = Starting::No;
                return;
            }
        }
        let daemon = Some(ProcessKey { pid: 1, started: 1 });
        let answer_by = now + Duration::from_millis(2700);
        self.event(Event::Hook(HookCall { id, domain: DOMAIN, name: String::new(), op, daemon, run: None, answer_by }));
    }

    pub(super) fn exec(&mut self) {
        let now = self.clock(self.now);
        self.pids += 1;
        let key = ProcessKey { pid: self.pids, started: now.as_nanos() / 10_000_000 };
        self.processes.retain(|process| process.alive || !process.told);
        let runs = !self.receives;
        self.processes.push(Process { key, started: now, alive: true, runs, struck: false, told: false });
        (self.starting, self.receives) = (Starting::No, false);
        self.hook(HookOp::Started);
    }

    // --- the watchdog -------------------------------------------------------------------------------------------

    /// Whether the feed thread runs.
    pub(super) fn feeds(&self) -> bool {
        self.guard.is_some() && self.hang != Hang::All && !self.feed_stopped
    }

    /// All feeds until now, of which the last takes effect as late as it can.
    pub(super) fn feed(&mut self) {
        let (was, now) = (self.clock(self.now - TICK), self.clock(self.now));
        let Some(permit) = self.guard.as_ref().map(Guard::permit).filter(|_| self.feeds()) else { return };
        let latest = permit.min(now) + self.timing.feed();
        if permit > was {
            self.fed(was, latest);
            self.abandoned = false;
        } else if self.case.0.keeper == Keeper::Nobody && !self.abandoned && self.device != Device::Closed {
            self.abandoned = true;
        }
    }

    /// By a thread that looked at the clock at `began`: the device is armed, or set to the timeout that is allowed by then.
    pub(super) fn fed(&mut self, began: BootTime, at: BootTime) {
        let restraint = self.restraint.filter(|restraint| began < restraint.until);
        let timeout = restraint.map_or(self.timing.watchdog, |restraint| Duration::from_secs(restraint.timeout.into()));
        self.device = match self.device {
            Device::Closed if timeout.is_zero() => Device::Closed,
            Device::Fed(before, timeout_before) if timeout.is_zero() => Device::Fed(before, timeout_before),
            Device::Fed(before, _) => Device::Fed(before.max(at), timeout),
            Device::Closed => Device::Fed(at, timeout),
        };
    }

    /// rule 5: what a dying guard has open is closed, and the close is a feed.
    pub(super) fn close(&mut self) {
        if let Device::Fed(before, timeout) = self.device
            && self.case.0.keeper == Keeper::Nobody
            && !self.abandoned
        {
            self.device = Device::Fed(before.max(self.clock(self.now)), timeout);
        }
        // It is kept open, or closed now.
        self.abandoned = true;
    }

    /// When it resets the machine, on the authority's clock.
    pub(super) fn fires(&self) -> Option<BootTime> {
        let Device::Fed(at, timeout) = self.device else { return None };
        let due = at + timeout;
        // The inverse of `clock`, rounded up.
        let (own, ppm) = (u128::from(due.as_nanos()), 1_000_000 - self.case.0.slow_ppm as i128);
        let real = (own * 1_000_000).div_ceil(ppm as u128);
        Some(self.booted + Duration::from_nanos(real as u64))
    }

    pub(super) fn reset(&mut self) {
        if self.case.0.healthy && self.left.moves == self.case.0.budget.moves {
            self.broken = Some("a needless reset: contact and claim are unbroken".to_owned());
        }
        // No firmware is faster.
        self.booted = self.now + Duration::from_millis(100);
        self.boot += 1;
        self.guard = None;
        self.guarded = false;
        self.dies_in_turn = None;
        self.hang = Hang::No;
        self.ledger = None;
        self.processes.clear();
        (self.starting, self.receives, self.asleep) = (Starting::No, false, false);
        self.device = Device::Closed;
        self.abandoned = false;
        self.feed_stopped = false;
    }

    // --- what a case is about -----------------------------------------------------------------------------------

    /// What came paused runs here, under the node's own lease.
    pub fn has_arrived(&self) -> bool {
        self.case.0.arrives && self.running() > 0 && self.owner().is_some_and(|owner| *owner == node("a"))
    }

    /// `b` has what was migrated.
    pub fn has_left(&self) -> bool {
        self.left.migrations < self.case.0.budget.migrations
            && self.left.moves == self.case.0.budget.moves
            && self.owner().is_some_and(|owner| *owner == node("b"))
    }

    /// The guard has been told that another machine has its name.
    pub fn is_doubted(&self) -> bool {
        self.answers.iter().any(|answer| answer.conflict.is_some())
    }

    /// The device is armed anew, with less than is configured.
    pub fn is_restrained(&self) -> bool {
        matches!(self.device, Device::Fed(_, timeout) if timeout < self.timing.watchdog) && self.incarnation > 1
    }

    /// A guard without memory is allowed what it found.
    pub fn has_recovered(&self) -> bool {
        let leased = |guard: &Guard| guard.ledger().domains.values().any(|entry| entry.lease.is_some());
        self.left.ledger_lost < self.case.0.budget.ledger_lost && self.guard.as_ref().is_some_and(leased)
    }
}
