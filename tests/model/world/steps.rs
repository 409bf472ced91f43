//! What may happen next, and what it does.

use super::*;

/// A boot id that follows another within so many seconds is believed only after them (authority/boots.rs).
const LONGEST_WAY: u64 = 30;

impl Model for World {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.ticks >= self.horizon {
            return steps;
        }
        if self.may_tick() {
            steps.push(Step::Tick);
        }
        if self.asleep {
            steps.push(Step::Wakes);
        } else {
            self.network(&mut steps);
            self.life(&mut steps);
            self.faults(&mut steps);
        }
        self.controller(&mut steps);
        steps
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        self.do_step(step);
        self.check();
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Progress: once the faults stop, a move ends.
    fn examine(&self) -> Result<(), String> {
        let mut world = self.clone();
        let moving = world.durable.leases.get(&DOMAIN).is_some_and(|lease| lease.then.is_some());
        if !moving || world.belated {
            return Ok(());
        }
        // Of a healthy node by its receipt, long before time alone would.
        let by_time = (world.bound().as_secs() + world.timing.ttl.as_secs() + LONGEST_WAY + 8) as usize;
        let longest = if world.case.0.healthy { 6 } else { by_time };
        for _ in 0..longest {
            world.heal();
            world.check();
            if let Some(broken) = world.broken {
                return Err(broken);
            }
            if world.durable.leases.get(&DOMAIN).is_some_and(|lease| lease.then.is_none()) {
                return Ok(());
            }
        }
        Err("no progress: the faults stopped, and the move does not end".to_owned())
    }
}

impl World {
    /// In a prompt network messages do not wait over a tick, and in a healthy world nothing does.
    fn may_tick(&self) -> bool {
        let quiet = self.questions.is_empty() && self.answers.is_empty();
        let deaf = self.book.is_none() || self.guard.is_none() || self.hang != Hang::No;
        let prompt = !self.case.0.prompt || quiet || deaf || self.left.late > 0;
        prompt && (!self.case.0.healthy || (quiet && self.guard.is_some() && self.scanned))
    }

    fn network(&self, steps: &mut Vec<Step>) {
        if self.book.is_some() {
            for at in 0..self.questions.len() {
                steps.push(Step::Question { at, again: false });
                if self.left.duplicates > 0 {
                    steps.push(Step::Question { at, again: true });
                }
            }
        }
        if self.guard.is_some() && self.hang == Hang::No {
            for at in 0..self.answers.len() {
                steps.push(Step::Answer { at, again: false });
                if self.left.duplicates > 0 {
                    steps.push(Step::Answer { at, again: true });
                }
                if self.left.emptied > 0 {
                    steps.push(Step::Emptied { at });
                }
            }
        }
    }

    fn controller(&self, steps: &mut Vec<Step>) {
        if self.book.is_none() {
            return;
        }
        let to_b = self.owner().map(|owner| *owner != node("b"));
        if let (Some(to_b), true) = (to_b, self.left.moves > 0) {
            steps.push(if to_b { Step::MoveToB } else { Step::MoveToA });
        }
        if let (Some(to_b), true, false) = (to_b, self.left.migrations > 0, self.migrates()) {
            steps.push(if to_b { Step::OpenToB } else { Step::OpenToA });
        }
        if self.migrates() {
            steps.extend([Step::Moved, Step::Aborted]);
        }
        if self.left.clones > 0 {
            steps.push(Step::CloneAsks);
        }
    }

    fn life(&self, steps: &mut Vec<Step>) {
        if self.alive() > 0 && self.left.guest_exits > 0 {
            steps.push(Step::Exits);
        }
        if self.processes.iter().any(|process| process.alive && process.struck) {
            steps.push(Step::Dies);
        }
        if self.guard.is_some() && self.hang == Hang::No {
            if self.processes.iter().any(|process| !process.alive && !process.told) {
                steps.push(Step::Proven);
            }
            if !self.scanned {
                steps.push(Step::Scan);
            }
        }
        match self.starting {
            Starting::No if self.left.starts > 0 && (self.alive() == 0 || self.left.forgets > 0) => {
                steps.push(Step::Prepare);
                if self.case.0.arrives {
                    steps.push(Step::Migrate);
                }
            }
            Starting::Let(HookOp::Migrate) => steps.extend([Step::Prepare, Step::GivesUp]),
            Starting::Let(HookOp::Prepare) => steps.extend([Step::Start, Step::GivesUp]),
            Starting::Let(_) => steps.extend([Step::Exec, Step::GivesUp]),
            Starting::Asks(..) if self.guard.is_none() => steps.push(Step::GivesUp),
            _ => {}
        }
    }

    fn faults(&self, steps: &mut Vec<Step>) {
        match &self.guard {
            Some(_) if self.left.guard_dies > 0 => {
                steps.push(Step::GuardDies);
                if self.hang == Hang::No && self.dies_in_turn.is_none() && !self.case.0.healthy {
                    steps.extend([true, false].map(|written| Step::GuardDiesInTurn { written }));
                }
            }
            // The device may fire first: a guard is back when it is back.
            None => {
                steps.push(Step::GuardStarts { ledger: true });
                if self.left.ledger_lost > 0 && self.ledger.is_some() {
                    steps.push(Step::GuardStarts { ledger: false });
                }
                if self.left.retimes > 0 {
                    steps.push(Step::Retimed);
                }
            }
            _ => {}
        }
        if self.guard.is_some() && self.hang == Hang::No {
            if self.left.guard_hangs > 0 {
                steps.push(Step::GuardHangs);
            }
            if self.left.core_hangs > 0 {
                steps.push(Step::CoreHangs);
            }
        }
        if self.left.feed_stops > 0 && self.feeds() && self.device != Device::Closed {
            let permit = self.guard.as_ref().map(Guard::permit);
            if permit.is_some_and(|permit| permit > self.clock(self.now)) {
                steps.push(Step::FeedStops);
            }
        }
        if self.feed_stopped && self.guard.is_some() {
            steps.push(Step::FeedGoesOn);
        }
        if self.left.cuts > 0 {
            steps.push(Step::Cut);
        }
        if self.left.sleeps > 0 {
            steps.push(Step::Sleeps);
        }
        match &self.book {
            Some(_) if self.left.authority_dies > 0 => steps.push(Step::AuthorityDies),
            None => steps.push(Step::AuthorityStarts),
            _ => {}
        }
    }

    pub(super) fn do_step(&mut self, step: Step) {
        match step {
            Step::Tick => {
                let waits = !self.questions.is_empty() || !self.answers.is_empty();
                self.left.late -= u8::from(self.case.0.prompt && waits && self.left.late > 0);
                self.pass_a_tick();
            }
            Step::Cut => {
                self.left.cuts -= 1;
                self.cut = true;
                self.questions.clear();
                self.answers.clear();
            }
            Step::Question { at, again } => {
                self.left.duplicates -= u8::from(again);
                self.question(at, again);
            }
            Step::Answer { at, again } => {
                self.left.duplicates -= u8::from(again);
                self.answer(at, again, false);
            }
            Step::Emptied { at } => {
                self.left.emptied -= 1;
                self.answer(at, false, true);
            }
            Step::MoveToB | Step::MoveToA => {
                self.left.moves -= 1;
                self.move_to(if step == Step::MoveToB { "b" } else { "a" });
            }
            Step::Exits | Step::Dies => {
                self.left.guest_exits -= u8::from(step == Step::Exits);
                let dies = |process: &&mut Process| process.alive && (step == Step::Exits || process.struck);
                if let Some(process) = self.processes.iter_mut().find(dies) {
                    process.alive = false;
                }
            }
            Step::Proven => self.prove(),
            Step::Scan => self.scan(),
            Step::Prepare | Step::Migrate => {
                if self.starting == Starting::No {
                    self.left.starts -= 1;
                    self.left.forgets -= u8::from(self.alive() > 0);
                    self.receives = step == Step::Migrate;
                }
                self.hook(if step == Step::Migrate { HookOp::Migrate } else { HookOp::Prepare });
            }
            Step::CloneAsks => {
                self.left.clones -= 1;
                self.clone_asks();
            }
            Step::OpenToA | Step::OpenToB => {
                self.left.migrations -= 1;
                let (from, to) = if step == Step::OpenToA { ("b", "a") } else { ("a", "b") };
                self.open(from, to);
            }
            Step::Moved => drop(self.operate(|book, now| book.moved(now, DOMAIN))),
            Step::Aborted => drop(self.operate(|book, now| book.abort(now, DOMAIN))),
            Step::Sleeps => {
                self.left.sleeps -= 1;
                self.asleep = true;
            }
            Step::Wakes => {
                self.asleep = false;
                if let Device::Fed(_, timeout) = self.device {
                    self.device = Device::Fed(self.clock(self.now), timeout);
                }
            }
            Step::Start => self.hook(HookOp::Start),
            Step::Exec => self.exec(),
            Step::GivesUp => {
                self.starting = Starting::No;
                self.hook(HookOp::Release);
            }
            Step::GuardDies => {
                self.left.guard_dies -= 1;
                self.guard_ends();
            }
            Step::GuardDiesInTurn { written } => {
                self.left.guard_dies -= 1;
                self.dies_in_turn = Some(written);
            }
            Step::GuardStarts { ledger } => {
                self.left.ledger_lost -= u8::from(!ledger);
                self.start_guard(ledger);
            }
            Step::Retimed => {
                self.left.retimes -= 1;
                let Case { timing, other, .. } = *self.case.0;
                self.timing = if self.timing == timing { other } else { timing };
            }
            Step::GuardHangs => {
                self.left.guard_hangs -= 1;
                self.hang = Hang::All;
            }
            Step::CoreHangs => {
                self.left.core_hangs -= 1;
                self.hang = Hang::Core;
            }
            Step::AuthorityDies => {
                self.left.authority_dies -= 1;
                self.book = None;
            }
            Step::AuthorityStarts => self.start_authority(),
            Step::FeedStops => {
                self.left.feed_stops -= 1;
                self.feed_stopped = true;
            }
            Step::FeedGoesOn => {
                let now = self.clock(self.now);
                self.fed(now, now);
                self.feed_stopped = false;
            }
        }
    }

    /// A tick in which everything does what it should.
    fn heal(&mut self) {
        if self.book.is_none() {
            self.start_authority();
        }
        if self.hang != Hang::No {
            self.guard_ends();
        }
        (self.feed_stopped, self.dies_in_turn, self.cut) = (false, None, false);
        if self.guard.is_none() {
            self.start_guard(true);
        }
        if self.starting != Starting::No {
            self.starting = Starting::No;
            self.hook(HookOp::Release);
        }
        self.pass_a_tick();
        let boot = self.boot_id();
        self.questions.retain(|question| question.boot_id == boot);
        if self.guard.is_none() {
            self.start_guard(true);
        }
        self.settle_messages();
        for process in self.processes.iter_mut().filter(|process| process.struck) {
            process.alive = false;
        }
        for _ in 0..self.processes.len() {
            self.prove();
        }
        self.scan();
        self.settle_messages();
    }
}
