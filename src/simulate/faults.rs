//! What a line of the script does.

use super::authority::Death;
use super::host::Power;
use super::network::Direction;
use super::phrase::{HostIx, Phrase};
use super::record::Kind;
use super::script::{VERBS, Verb};
use super::world::{Happening, World};
use crate::lease::event::Event;
use crate::lease::timing::{Timing, TimingFault};
use std::time::Duration;

/// How long a guard or an authority is away that is restarted.
const RESTART: Duration = Duration::from_millis(300);

impl World<'_> {
    /// # Errors
    /// Why it cannot be done.
    pub fn carry_out(&mut self, what: &Phrase<Verb>) -> Result<(), String> {
        let line = || what.show(VERBS, &self.setup.names);
        self.record.say(self.now, None, Kind::Script, line);
        self.note_touched(what);
        for &host in &what.hosts {
            self.on_host(what, host)?;
        }
        for &domain in &what.domains {
            match (what.verb, what.hosts.first()) {
                (Verb::Grant, Some(&to)) => drop(self.grant(domain, to)),
                (Verb::Move, Some(&to)) => self.move_to(domain, to),
                (Verb::Migrate, Some(&to)) => self.migrate(domain, to, false, false)?,
                (Verb::MigrateLosing, Some(&to)) => self.migrate(domain, to, false, true)?,
                (Verb::MigrateUnpaused, Some(&to)) => self.migrate(domain, to, true, false)?,
                (Verb::MigrateUnpausedLosing, Some(&to)) => self.migrate(domain, to, true, true)?,
                (Verb::Open, Some(&to)) => {
                    if let Some(from) = self.owner(domain) {
                        self.open_migration(domain, from, to);
                    }
                }
                (Verb::Receive, Some(&to)) => self.begin_start(to, domain, true),
                (Verb::Start, Some(&to)) => self.begin_start(to, domain, false),
                (Verb::KeepStarting, Some(&to)) => {
                    self.keepers.push((domain, to));
                    self.after(Duration::ZERO, Happening::KeepStarting(self.keepers.len() - 1));
                }
                (Verb::RunUnhooked, Some(&to)) => self.new_process(to, domain, false, 0),
                (Verb::Revoke, _) => self.revoke(domain),
                (Verb::Forget, _) => self.forget(domain),
                (Verb::Moved, _) => self.moved(domain),
                (Verb::Abort, _) => self.abort(domain),
                (Verb::Exit, _) => self.end_by_hand(domain, true),
                (Verb::Destroy, _) => self.end_by_hand(domain, false),
                (Verb::Unkillable, _) => self.set_unkillable(domain, true),
                (Verb::Killable, _) => self.set_unkillable(domain, false),
                (Verb::Slow, _) => self.set_slow(domain, what.span),
                (Verb::Suspend | Verb::Resume, _) => {
                    for host in (0..self.hosts.len()).map(HostIx) {
                        // What waits at the end of a migration is its guard's to resume.
                        let waits = |qemu: &super::libvirt::Qemu| qemu.domain == domain && qemu.incoming;
                        if !self.hosts[host.0].qemus.iter().any(waits) {
                            self.run_vcpus(host, domain, what.verb == Verb::Resume);
                        }
                    }
                }
                _ => {}
            }
        }
        match what.verb {
            Verb::KillAuthority => self.kill_authority(),
            Verb::KillAuthorityUncommitted => self.authority.dies = Some(Death::Uncommitted),
            Verb::KillAuthorityCommitted => self.authority.dies = Some(Death::Committed),
            Verb::StartAuthority => {
                self.authority.dies = None;
                self.after(Duration::ZERO, Happening::AuthorityUp(self.authority.count));
            }
            Verb::StopAuthority => self.stop_authority(),
            Verb::PauseAuthority => self.pause_authority(),
            Verb::ContinueAuthority => self.continue_authority(),
            _ => {}
        }
        Ok(())
    }

    fn on_host(&mut self, what: &Phrase<Verb>, host: HostIx) -> Result<(), String> {
        let at = host.0;
        let boot = self.hosts[at].boot;
        let mut each = |change: &dyn Fn(&mut super::network::Link)| self.hosts[at].links.iter_mut().for_each(change);
        match what.verb {
            Verb::Cut => {
                each(&|link| {
                    link.cut(Direction::Questions);
                    link.cut(Direction::Answers);
                });
                self.explain(host);
            }
            Verb::CutQuestions => {
                each(&|link| link.cut(Direction::Questions));
                self.explain(host);
            }
            Verb::CutAnswers => {
                each(&|link| link.cut(Direction::Answers));
                self.explain(host);
            }
            Verb::CutPath | Verb::DelayPath => {
                let path = (what.number as usize).checked_sub(1).and_then(|path| self.hosts[at].links.get_mut(path));
                let link = path.ok_or_else(|| format!("there is no path {} (see 'endpoints')", what.number))?;
                if what.verb == Verb::DelayPath {
                    link.delay = [what.span; 2];
                } else {
                    link.cut(Direction::Questions);
                    link.cut(Direction::Answers);
                }
            }
            Verb::Heal => {
                each(&|link| link.heal());
                self.after(Duration::from_secs(1), Happening::Watch(host));
            }
            Verb::Delay => each(&|link| link.delay = [what.span; 2]),
            Verb::DelayQuestions => each(&|link| link.delay[0] = what.span),
            Verb::DelayAnswers => each(&|link| link.delay[1] = what.span),
            Verb::Lose => each(&|link| link.lose = what.number),
            Verb::Duplicate => each(&|link| link.duplicate = what.number),
            Verb::KillGuard => {
                self.explain(host);
                self.kill_guard(host);
            }
            Verb::KillGuardAfterLedger => self.hosts[at].die_after_ledger = true,
            Verb::StartGuard => {
                self.hosts[at].die_after_ledger = false;
                self.after(Duration::ZERO, Happening::GuardUp(host, boot));
            }
            Verb::RestartGuard => {
                self.kill_guard(host);
                self.after(RESTART, Happening::GuardUp(host, boot));
            }
            Verb::StopGuard => {
                self.explain(host);
                self.stop_guard(host);
            }
            Verb::ContinueGuard => self.continue_guard(host),
            Verb::SetWatchdog => self.configure(host, Timing { watchdog: what.span, ..self.hosts[at].timing })?,
            Verb::SetTtl => self.configure(host, Timing { ttl: what.span, ..self.hosts[at].timing })?,
            Verb::HangScan => self.hosts[at].scan_hangs = true,
            Verb::MendScan => {
                self.hosts[at].scan_hangs = false;
                if let Some((process, _)) = self.seen_version(host) {
                    self.after(Duration::ZERO, Happening::Scan(host, process));
                }
            }
            Verb::DropLedger => self.hosts[at].ledger = None,
            Verb::Drain => self.event(host, Event::Drain(true)),
            Verb::Undrain => self.event(host, Event::Drain(false)),
            Verb::StopLibvirt => self.stop_libvirt(host),
            Verb::ContinueLibvirt | Verb::StartLibvirt => self.up_libvirt(host),
            Verb::KillLibvirt => self.kill_libvirt(host),
            Verb::PauseHost => {
                self.explain(host);
                self.freeze(host, Power::Paused(self.now));
            }
            Verb::SleepHost => {
                self.explain(host);
                self.freeze(host, Power::Asleep);
            }
            Verb::ContinueHost => self.thaw(host),
            Verb::Reset => self.reset(host, Kind::Power, "is reset by hand"),
            Verb::PowerOff => self.power_off(host),
            Verb::PowerOn => self.boot(host),
            Verb::BreakWatchdog => self.hosts[at].board.device.borrow_mut().broken = true,
            Verb::Fence => self.fence(host, false),
            Verb::Unfence => self.fence(host, true),
            Verb::Accept => self.accept(host),
            _ => {}
        }
        Ok(())
    }

    /// Remembers to whose contact or claim something was done: nothing else may lose a domain.
    fn note_touched(&mut self, what: &Phrase<Verb>) {
        use Verb::*;
        match what.verb {
            Cut | CutQuestions | CutAnswers | CutPath | DelayPath | Delay | DelayQuestions | DelayAnswers | Lose
            | KillGuard | KillGuardAfterLedger | StopGuard | HangScan | DropLedger | PauseHost | SleepHost | Reset
            | PowerOff | Fence => {
                // A clone goes by the node id of the machine it was made from.
                let nodes: Vec<_> = what.hosts.iter().map(|host| &self.setup.hosts[host.0].node).collect();
                for (at, host) in self.setup.hosts.iter().enumerate() {
                    self.hosts[at].touched |= nodes.contains(&&host.node);
                }
            }
            Grant
            | Move
            | Revoke
            | Forget
            | Migrate
            | MigrateLosing
            | MigrateUnpaused
            | MigrateUnpausedLosing
            | Open
            | Receive
            | Moved
            | Abort
            | RunUnhooked
            | Destroy => self.record.touched.extend(&what.domains),
            KillAuthority | KillAuthorityUncommitted | KillAuthorityCommitted | StopAuthority | PauseAuthority => {
                self.hosts.iter_mut().for_each(|host| host.touched = true);
            }
            _ => {}
        }
    }

    /// What its guard reads when it starts next.
    fn configure(&mut self, host: HostIx, timing: Timing) -> Result<(), String> {
        match timing.validate() {
            // The scenario's own margin is its author's business.
            Ok(()) | Err(TimingFault::MarginTooSmall { .. }) => {}
            Err(fault) => return Err(fault.to_string()),
        }
        self.hosts[host.0].timing = timing;
        Ok(())
    }

    /// When each step would come from here on, if nothing is answered any more.
    fn explain(&mut self, host: HostIx) {
        if self.record.quiet || self.setup.hosts.len() > super::record::MASS {
            return;
        }
        let machine = &self.hosts[host.0];
        let timing = machine.guard.as_ref().map_or(machine.timing, |guard| guard.timing);
        for domain in (0..self.setup.domains.len()).map(super::phrase::DomainIx) {
            if let Some(at) = self.expiry(domain, host) {
                let t = |at| self.record.t(at);
                let setup = &self.setup.hosts[host.0];
                let mut text = format!("unless it is renewed: lapse {}", t(timing.lapse(at)));
                if setup.watchdog && !setup.observe {
                    text += &format!(", last feed {}, reset by {}", t(timing.last_feed(at)), t(timing.reset_by(at)));
                }
                text += &format!(", E {}", t(at));
                self.say_of(host, domain, Kind::Timers, || text);
            }
        }
    }
}
