//! Schedules drawn from a seed: machines, faults and an operator who tries everything, as an ordinary script.

pub use super::noise::Random;
use super::phrase::{DomainIx, HostIx, Phrase};
use super::script::{Script, Setting, Setup, Step, Verb};
use super::when::{Base, When};
use std::time::Duration;

/// For how long after T faults are drawn.
pub const FAULTS: Duration = Duration::from_secs(25);

/// A schedule in the making.
pub struct Draft {
    random: Random,
    script: Script,
    clone: Option<HostIx>,
}

impl Draft {
    /// A world of two or three machines with nearly no margin: slack would hide what is off by a feed period or a late
    /// answer. Clocks differ in rate; every small delay is drawn.
    pub fn new(seed: u64) -> Draft {
        let script =
            Script { story: vec![], settings: vec![], setup: Setup::default(), steps: vec![], expects: vec![] };
        let mut draft = Draft { random: Random(seed), script, clone: None };
        let span = |span| move |phrase: &mut Phrase<Setting>| phrase.span = span;
        draft.set(Setting::Profile, |phrase| phrase.text = "fast".into());
        draft.set(Setting::Margin, span(Duration::from_millis(10)));
        draft.set(Setting::Seed, |phrase| phrase.number = seed);
        draft.set(Setting::WarmUp, span(Duration::from_secs(5)));
        let boot = draft.millis(1000, 8000);
        draft.set(Setting::Boot, span(boot));
        let hosts = if draft.random.one_in(4) { 3 } else { 2 };
        draft.set(Setting::Nodes, |phrase| phrase.text = format!("n1..n{hosts}"));
        if hosts == 3 && draft.random.one_in(4) {
            draft.clone = Some(HostIx(2));
            draft.set(Setting::CloneOf, |phrase| phrase.hosts = vec![HostIx(2), HostIx(0)]);
        }
        if draft.random.one_in(3) {
            draft.set(Setting::Endpoints, |phrase| phrase.number = 2);
        }
        for at in (0..hosts).map(HostIx) {
            if draft.random.one_in(4) {
                draft.set(Setting::NoFdStore, |phrase| phrase.hosts = vec![at]);
            }
            let (ppm, fast) = (draft.random.below(401), draft.random.one_in(2));
            draft.set(if fast { Setting::Fast } else { Setting::Slow }, |phrase| {
                (phrase.hosts, phrase.number) = (vec![at], ppm);
            });
        }
        draft.domain("web", HostIx(0));
        if draft.random.one_in(4) {
            draft.domain("db", HostIx(1));
        }
        draft
    }

    fn domain(&mut self, name: &str, on: HostIx) {
        self.set(Setting::Domain, |phrase| (phrase.text, phrase.hosts) = (name.into(), vec![on]));
    }

    /// Adds a setting.
    pub fn set(&mut self, verb: Setting, fill: impl FnOnce(&mut Phrase<Setting>)) {
        let mut phrase = Phrase::new(verb);
        fill(&mut phrase);
        self.script.set(phrase).expect("a drawn setting is a good one");
    }

    /// A span of so many milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.random.below(to - from + 1))
    }

    /// Adds a line at a time after T.
    pub fn at(&mut self, after: Duration, what: Phrase<Verb>) {
        let at = When { base: Base::T, plus: after.as_micros() as i64 };
        self.script.steps.push(Step { line: 0, at, what });
    }

    /// A phrase about one machine, one domain, or both.
    pub fn phrase(verb: Verb, host: Option<HostIx>, domain: Option<DomainIx>) -> Phrase<Verb> {
        Phrase { hosts: host.into_iter().collect(), domains: domain.into_iter().collect(), ..Phrase::new(verb) }
    }

    fn hosts(&self) -> usize {
        self.script.setup.hosts.len()
    }

    fn a_host(&mut self) -> HostIx {
        HostIx(self.random.below(self.hosts() as u64) as usize)
    }

    fn a_domain(&mut self) -> DomainIx {
        DomainIx(self.random.below(self.script.setup.domains.len() as u64) as usize)
    }

    /// A network that loses, doubles and delays, and operators who try to start everything everywhere.
    pub fn weather(&mut self) {
        for at in (0..self.hosts()).map(HostIx) {
            for verb in [Verb::Lose, Verb::Duplicate] {
                if self.random.one_in(2) {
                    self.at(Duration::ZERO, Phrase { number: 10, ..Self::phrase(verb, Some(at), None) });
                }
            }
            let delayed = [Verb::Delay, Verb::DelayQuestions, Verb::DelayAnswers][self.random.below(3) as usize];
            if self.random.one_in(3) {
                let span = self.millis(100, 950);
                self.at(Duration::ZERO, Phrase { span, ..Self::phrase(delayed, Some(at), None) });
            }
            for domain in (0..self.script.setup.domains.len()).map(DomainIx) {
                self.at(Duration::ZERO, Self::phrase(Verb::KeepStarting, Some(at), Some(domain)));
            }
        }
    }

    /// Everything that can go wrong, at any time, and much of it just before or after a timer.
    pub fn chaos(&mut self) {
        let mut lines: Vec<(Duration, When, Phrase<Verb>)> = Vec::new();
        let most = FAULTS.as_millis() as u64;
        for _ in 0..self.random.below(11) + 6 {
            let at = self.millis(0, most);
            let lasts = self.millis(50, 12_000);
            let (what, undo) = self.fault();
            let when = |after: Duration| When { base: Base::T, plus: after.as_micros() as i64 };
            let (host, domain) = (what.hosts.first().copied(), self.a_domain());
            lines.push((at, when(at), what));
            // A second blow by a timer that the first has set running.
            if let Some(host) = host.filter(|_| self.random.one_in(3)) {
                let (blow, _) = self.blow(host, domain);
                lines.push((at, self.by_timer(host, domain), blow));
            }
            if let Some(undo) = undo {
                lines.push((at + lasts, when(at + lasts), undo));
            }
        }
        // Stable: what was drawn later at the same time is done later.
        lines.sort_by_key(|(at, ..)| *at);
        let lines = lines.into_iter().map(|(_, at, what)| Step { line: 0, at, what });
        self.script.steps.extend(lines);
    }

    fn by_timer(&mut self, host: HostIx, domain: DomainIx) -> When {
        let timing = self.script.setup.timing;
        let [polite, feed, watchdog] =
            [timing.polite, timing.feed(), timing.watchdog].map(|span| span.as_micros() as i64);
        let timers = [-polite, -feed, 0, watchdog - feed];
        let timer = timers[self.random.below(4) as usize];
        let aside = [0, 1_000, 20_000, 300_000][self.random.below(4) as usize];
        let aside = if self.random.one_in(2) { aside } else { -aside };
        match self.random.below(8) {
            0 => When { base: Base::Bound(host), plus: aside },
            _ => When { base: Base::Expiry(domain, host), plus: timer + aside },
        }
    }

    /// What strikes one machine, and what makes it good again.
    fn blow(&mut self, host: HostIx, domain: DomainIx) -> (Phrase<Verb>, Option<Phrase<Verb>>) {
        use Verb::*;
        // A guard first stopped and then killed where nobody keeps its device is a double fault of its own (rule 5).
        let kept = self.script.setup.hosts[host.0].fd_store;
        let of_host = |verb, undo| (Self::phrase(verb, Some(host), None), Some(Self::phrase(undo, Some(host), None)));
        let of_domain =
            |verb, undo| (Self::phrase(verb, None, Some(domain)), Some(Self::phrase(undo, None, Some(domain))));
        match self.random.below(20) {
            0..=2 => of_host(KillGuard, StartGuard),
            3 => of_host(KillGuardAfterLedger, StartGuard),
            4 | 5 => (Self::phrase(RestartGuard, Some(host), None), None),
            6 | 7 if kept => of_host(StopGuard, ContinueGuard),
            6..=8 => of_host(Cut, Heal),
            9 => of_host(CutAnswers, Heal),
            10 => of_host(CutQuestions, Heal),
            11 => of_host(HangScan, MendScan),
            12 => of_host(StopLibvirt, ContinueLibvirt),
            13 => of_host(KillLibvirt, StartLibvirt),
            14 if self.random.one_in(2) => of_host(PowerOff, PowerOn),
            14 => (Self::phrase(Reset, Some(host), None), None),
            15 => (Self::phrase(DropLedger, Some(host), None), Some(Self::phrase(RestartGuard, Some(host), None))),
            16 | 17 => of_domain(Unkillable, Killable),
            18 => {
                let span = self.millis(500, 9000);
                (Phrase { span, ..Self::phrase(Slow, None, Some(domain)) }, None)
            }
            _ => (Self::phrase(Exit, None, Some(domain)), None),
        }
    }

    fn fault(&mut self) -> (Phrase<Verb>, Option<Phrase<Verb>>) {
        use Verb::*;
        let (host, domain) = (self.a_host(), self.a_domain());
        let once = |verb| (Self::phrase(verb, Some(host), Some(domain)), None);
        let authority = |verb, undo| (Self::phrase(verb, None, None), Some(Self::phrase(undo, None, None)));
        let configured = |verb, span| {
            let what = Phrase { span, ..Self::phrase(verb, Some(host), None) };
            (what, Some(Self::phrase(RestartGuard, Some(host), None)))
        };
        match self.random.below(56) {
            54 => configured(SetWatchdog, Duration::from_secs(1 + self.random.below(9))),
            55 => configured(SetTtl, Duration::from_secs(4 + self.random.below(6))),
            0..=7 | 48.. => once(Move),
            8..=10 => once(Grant),
            11 => (Self::phrase(Revoke, None, Some(domain)), None),
            12 | 13 => (Self::phrase(Fence, Some(host), None), Some(Self::phrase(Unfence, Some(host), None))),
            14 | 15 => once(Open),
            16 | 17 => once(Receive),
            18 => (Self::phrase(Moved, None, Some(domain)), None),
            19 => (Self::phrase(Abort, None, Some(domain)), None),
            20 | 21 => once(if self.random.one_in(3) { MigrateLosing } else { Migrate }),
            22 => authority(KillAuthority, StartAuthority),
            23 => authority(KillAuthorityUncommitted, StartAuthority),
            24 => authority(KillAuthorityCommitted, StartAuthority),
            25 => authority(StopAuthority, ContinueAuthority),
            26 => authority(PauseAuthority, ContinueAuthority),
            27 => (Self::phrase(Suspend, None, Some(domain)), Some(Self::phrase(Resume, None, Some(domain)))),
            28 => (Self::phrase(Drain, Some(host), None), Some(Self::phrase(Undrain, Some(host), None))),
            29 | 30 if self.clone.is_some() => (Self::phrase(PowerOn, self.clone, None), None),
            29..=31 => (Self::phrase(Exit, None, Some(domain)), None),
            _ => self.blow(host, domain),
        }
    }

    /// The finished script, which runs for so long after T.
    pub fn finish(mut self, run_for: Duration) -> Script {
        self.set(Setting::RunFor, |phrase| phrase.span = run_for);
        for (at, step) in self.script.steps.iter_mut().enumerate() {
            step.line = at + 1;
        }
        self.script
    }
}

/// The schedule of a seed.
pub fn draw(seed: u64) -> Script {
    draw_for(seed, FAULTS.as_secs() + 8)
}

/// The same, run for so many seconds after T.
pub fn draw_for(seed: u64, seconds: u64) -> Script {
    let mut draft = Draft::new(seed);
    draft.weather();
    draft.chaos();
    draft.finish(Duration::from_secs(seconds))
}
