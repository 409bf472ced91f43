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
        self.network(&mut steps);
        self.life(&mut steps);
        self.faults(&mut steps);
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
        let longest = (world.bound().as_secs() + world.timing.ttl.as_secs() + LONGEST_WAY + 8) as usize;
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

    fn life(&self, steps: &mut Vec<Step>) {
        if self.left.moves > 0 && self.book.is_some() {
            match self.owner() {
                Some(owner) if *owner == node("b") => steps.push(Step::MoveToA),
                Some(_) => steps.push(Step::MoveToB),
                None => {}
            }
        }
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
            }
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
            Step::Prepare => {
                self.left.starts -= 1;
                self.left.forgets -= u8::from(self.alive() > 0);
                self.hook(HookOp::Prepare);
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
