//! The watchdog of this guard: chosen, fed by its thread, and watched by another that may block, which tells the core
//! what it is worth and the operator what became of it.

use super::core::{Input, Permit};
use super::feed::{FeedReport, FeedState, Feeder, Keeper, Orders};
use super::fences::Fences;
use super::keeping::Keeping;
use super::record::Record;
use crate::config::Config;
use crate::lease::event::{Event, Severity};
use crate::lease::fence::{Mark, Unfed, What};
use crate::lease::gone::DisarmOrder;
use crate::lease::ledger::{Ledger, label};
use crate::lease::promise::{CountedBounds, Restraint};
use crate::lease::time::BootTime;
use crate::lease::timing::{Timing, Watchdog as Assured};
use crate::lease::view::WatchdogView;
use crate::node::last_resort::LastResort;
use crate::node::systemd::Manager;
use crate::node::watchdog::{LinuxWatchdog, SHORT_TIMEOUTS};
use crate::node::watchdog_list::{self, Found};
use crate::node::watchdog_marks::{self, Concluded};
use crate::node::watchdog_measured::TimeToReset;
use crate::node::{clock, host, realtime};
use crate::protocol::NamedState;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, sync_channel};
use std::time::Duration;

/// How long one that was taken over from an earlier guard may wait for its first permit before that is an alarm.
const TAKING_OVER: Duration = Duration::from_secs(2);
/// What the core gets to say what lives.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks at what the feed thread reports.
pub(crate) const LOOK: Duration = Duration::from_millis(250);
/// The same until it was armed or refused, which the first question waits for.
const FIRST_LOOK: Duration = Duration::from_millis(25);

/// A watchdog in use.
pub struct Armament {
    /// Where the proof goes that it may be stopped.
    pub disarm: Arc<DisarmOrder>,
    report: Arc<FeedReport>,
    device: Found,
    needs: TimeToReset,
    /// The configuration asks for it; otherwise an earlier guard armed it, and it is fed until it can be stopped.
    asked_for: bool,
    timing: Timing,
    strict: bool,
    restraint: Option<Restraint>,
}

impl Armament {
    /// Chooses the device that the configuration asks for and starts its threads; opens nothing before the first permit.
    /// `None`: none is asked for. `kept` is what the service manager kept open over an earlier guard's death; `counted` is
    /// what the authority counts with for leases of an earlier guard.
    ///
    /// # Errors
    /// None can be used, with what to do; the guard then promises no bound.
    pub fn start(
        config: &Config,
        (manager, kept): (Option<Manager>, Option<OwnedFd>),
        counted: Option<&CountedBounds>,
        permit: &Arc<Permit>,
        core: &Sender<Input>,
        (record, fences): (&Record, &Fences),
    ) -> Result<Option<Armament>, String> {
        let wanted = config.watchdog.wanted().filter(|_| !config.policy().observe);
        if wanted.is_none() && kept.is_none() {
            return Ok(None);
        }
        conclude_test(config, record);
        let found = watchdog_list::list().map_err(|error| format!("the watchdogs cannot be listed: {error}"))?;
        let chosen = wanted.map(|wanted| watchdog_list::choose(&found, &wanted, config.watchdog.allow_softdog));
        let armed = kept.as_ref().map(|kept| watchdog_list::opened(&found, kept));
        let (device, asked_for) = match (armed, chosen) {
            (None, Some(chosen)) => (chosen?, true),
            (Some(armed), Some(Ok(chosen))) if chosen.path == armed.path => (chosen, true),
            // Left alone it would reset this host, and what stops it is the proof that nothing is left to protect.
            (Some(armed), _) => {
                record.say(Severity::Warning, runs_already(&armed.title()));
                (armed, false)
            }
            (None, None) => return Ok(None),
        };
        let needs = TimeToReset::of(&device, &config.state_dir)?;
        let (timing, strict) = (config.timing, config.watchdog.strict);
        let restraint = counted
            .filter(|_| asked_for)
            .and_then(|counted| counted.restrain(clock::now(), &timing, strict, |seconds| needs.after(seconds)));
        if let Some(restraint) = restraint {
            record.say(Severity::Info, restrained(&device.title(), restraint, &timing));
        }
        let (disarm, report) = (Arc::default(), Arc::default());
        let armament = Armament { disarm, report, needs, device, asked_for, timing, strict, restraint };
        let manager = manager.filter(Manager::stores);
        let handed_over = kept.is_some();
        if handed_over && manager.is_some() {
            armament.report.kept_by(Keeper::FdStore);
        }
        let duplicates = armament.feed(config, permit, kept, manager.is_some()).map_err(cannot_start)?;
        let watcher = Watcher {
            report: armament.report.clone(),
            title: armament.device.title(),
            needs: armament.needs.clone(),
            asked_for,
            timing: config.timing,
            strict: config.watchdog.strict,
            keeping: manager.map(|manager| Keeping::new(manager, duplicates, &armament.device, handed_over, record)),
            core: core.clone(),
            record: record.clone(),
            fences: fences.clone(),
        };
        watcher.start().map_err(cannot_start)?;
        Ok(Some(armament))
    }

    /// The bound that an earlier guard promised, if it holds for what this one is about to arm. The device that was armed
    /// runs on meanwhile.
    pub fn goes_on_promising(&self, ledger: &Ledger) -> Option<Duration> {
        let needs = self.needs.after(self.timing.watchdog.as_secs() as u32);
        ledger.promise.filter(|_| self.asked_for)?.still_holds(&self.timing, self.strict, needs)
    }

    /// For the status.
    pub fn view(&self) -> WatchdogView {
        let report = &self.report;
        let fed = report.last_feed();
        let late_feed = self.strict || report.keeper() == Keeper::Nobody;
        let needs = self.needs.after(report.timeout());
        let hung_then_killed = bound(report.state(), &self.timing, needs, report.timeout(), late_feed);
        WatchdogView {
            device: self.device.title(),
            state: report.state().as_str().to_owned(),
            timeout_s: report.timeout(),
            resets_after_ms: needs.as_millis() as u64,
            keeper: report.keeper().as_str().to_owned(),
            hung_then_killed_bound_ms: hung_then_killed.map(|bound| bound.as_millis() as u64),
            fed_ms_ago: (fed.as_nanos() > 0).then(|| clock::now().since(fed).as_millis() as u64),
            longest_gap_ms: report.longest_gap().as_millis() as u64,
            missed_beats: report.missed(),
            error: error(report),
        }
    }

    /// Starts the feed thread. A duplicate of the device comes out whenever it was armed, if it is to be `stored`.
    fn feed(
        &self,
        config: &Config,
        permit: &Arc<Permit>,
        kept: Option<OwnedFd>,
        stored: bool,
    ) -> io::Result<Receiver<OwnedFd>> {
        let timing = config.timing;
        let timeout = u32::try_from(timing.watchdog.as_secs()).unwrap_or(u32::MAX);
        let orders = Orders {
            // Not armed again once it was stopped, if nobody asks for it.
            timeout: if self.asked_for { timeout } else { 0 },
            restraint: self.restraint,
            period: timing.feed(),
            shortened: SHORT_TIMEOUTS.map(|seconds| (seconds, self.needs.after(seconds))),
            last_resort: config.watchdog.last_resort.then(|| self.needs.after(timeout) + timing.margin),
        };
        let (path, nowayout) = (&self.device.path, self.device.nowayout);
        let adopted = kept.map(|kept| LinuxWatchdog::adopt(path, nowayout, kept)).transpose()?;
        let (keep, duplicates) = sync_channel(1);
        let keep = stored.then_some(keep);
        let closed = LinuxWatchdog::new(path, nowayout);
        let (permit, disarm, report) = (permit.clone(), self.disarm.clone(), self.report.clone());
        let mut resort = LastResort::new();
        let run = move || {
            // Refused for this thread as for the core, which says so.
            let _ = realtime::run_this_thread_first();
            // An error leaves nothing to do that would not be tried at the next beat.
            let reset = move || drop(resort.reset());
            let mut feeder = match adopted {
                Some((device, seconds)) => Feeder::adopting((device, seconds), orders, &report, clock::now, reset),
                None => Feeder::new(closed, orders, clock::now, reset),
            };
            if let Some(keep) = keep {
                feeder = feeder.kept_by(keep);
            }
            loop {
                clock::sleep_until(feeder.beat(&permit, &disarm, &report));
            }
        };
        std::thread::Builder::new().name("feed".into()).stack_size(128 << 10).spawn(run)?;
        Ok(duplicates)
    }
}

/// Tells what became of the device. It may block.
struct Watcher {
    report: Arc<FeedReport>,
    title: String,
    needs: TimeToReset,
    asked_for: bool,
    timing: Timing,
    strict: bool,
    keeping: Option<Keeping>,
    core: Sender<Input>,
    record: Record,
    fences: Fences,
}

impl Watcher {
    fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("watchdog".into()).stack_size(128 << 10).spawn(move || self.run()).map(drop)
    }

    fn run(mut self) {
        const UNTRIED: (FeedState, Option<String>, u32) = (FeedState::Waiting, None, 0);
        let (mut told, began) = (UNTRIED, clock::now());
        loop {
            let now = (self.report.state(), error(&self.report), self.report.timeout());
            if let Some(keeping) = &mut self.keeping {
                keeping.turn(now.0, &self.report);
            }
            // One that was taken over waits for its first permit, which the first scan brings: that is no alarm yet.
            let taken_over = told == UNTRIED && now.0 == FeedState::Starving && clock::now().since(began) < TAKING_OVER;
            if now != told && !taken_over {
                let timeout = promised_timeout(&self.report, &self.timing);
                let bound = bound(now.0, &self.timing, self.needs.after(timeout), timeout, self.strict);
                let bound = bound.filter(|_| self.asked_for);
                self.core.send(Input::Event(Event::Watchdog { bound })).expect("the core lives as long as the process");
                let why = now.0.is_running_out().then(|| self.what_lives(now.0));
                let words = (now.1.as_deref(), why.as_deref());
                let (severity, text) = tale(now.0, words, &self.title, now.2, bound);
                self.record.say(severity, text);
                self.mark(now.0, why, began);
                told = now;
            }
            std::thread::sleep(if told == UNTRIED { FIRST_LOOK } else { LOOK });
        }
    }

    /// Keeps in the fence record that the device is fed no more; or again, or stopped, where that is news.
    fn mark(&self, now: FeedState, why: Option<String>, began: BootTime) {
        let event = match now {
            FeedState::Armed => What::FedAgain,
            FeedState::Disarmed => What::Stopped,
            state if state.is_running_out() => What::LastFeed,
            _ => return,
        };
        // Of one that was taken over nobody knows the last feed, but that it was before.
        let fed = Some(self.report.last_feed()).filter(|&fed| fed > BootTime::ZERO).unwrap_or(began);
        let (device, timeout_s) = (self.title.clone(), self.report.timeout());
        let watchdog = Some(Unfed { device, timeout_s, why, fed, reset_by: fed + self.needs.after(timeout_s) });
        self.fences.mark(Mark { at: clock::now(), event, last_answer: None, domains: Vec::new(), more: 0, watchdog });
    }

    /// What keeps the device from being fed, as far as the core tells in time.
    fn what_lives(&self, state: FeedState) -> String {
        if state == FeedState::Fencing {
            return "what was to be killed lives on".to_owned();
        }
        let (to, view) = sync_channel(1);
        self.core.send(Input::Status(to)).expect("the core lives as long as the process");
        let Ok(view) = view.recv_timeout(PATIENCE) else { return "the guard's core does not answer".to_owned() };
        let alive: Vec<_> = view.domains.iter().filter(|domain| !domain.pids.is_empty()).collect();
        let dying = alive.iter().filter(|domain| domain.state == NamedState::Dying);
        let names: Vec<_> = dying.map(|domain| label(&domain.name, domain.domain)).collect();
        match (names.as_slice(), alive.len()) {
            ([], 0) => "the guard's scan is late".to_owned(),
            ([], count) => format!("the leases of {count} domains end now"),
            ([one], _) => format!("domain {one} must die and is not proven gone"),
            ([first, ..], _) => format!("{} domains must die and are not proven gone, {first} among them", names.len()),
        }
    }
}

/// A test that ended with the last boot says what the device is good for in this one.
fn conclude_test(config: &Config, record: &Record) {
    let concluded = host::boot_id().and_then(|boot| watchdog_marks::conclude(&config.state_dir, boot));
    let (severity, text) = match concluded {
        Ok(None) => return,
        Ok(Some(concluded @ Concluded::Reset(_))) => (Severity::Info, concluded.to_string()),
        Ok(Some(unclear)) => (Severity::Warning, unclear.to_string()),
        Err(error) => (Severity::Error, format!("the watchdog test of the last boot cannot be concluded: {error}")),
    };
    record.say(severity, text);
}

/// The bound that a device in this state is good for: W as read back, or as the device is known or was measured to need.
pub(crate) fn bound(
    state: FeedState,
    timing: &Timing,
    needs: Duration,
    timeout: u32,
    strict: bool,
) -> Option<Duration> {
    use FeedState::*;
    let armed = matches!(state, Armed | Starving | Abandoned | Fencing);
    let timing = Timing { watchdog: Duration::from_secs(timeout.into()), ..*timing };
    let assured = if armed { Assured::Needs(needs) } else { Assured::None };
    timing.promises(assured, strict)
}

/// The timeout that the node promises by. A device that is yet to get a longer one will have it under leases of the answers
/// to come, so that is what they have to acknowledge.
pub(crate) fn promised_timeout(report: &FeedReport, timing: &Timing) -> u32 {
    let wanted = timing.watchdog.as_secs() as u32;
    // In this order: what was asked for is written last.
    match report.asked() {
        asked if asked == wanted => report.timeout(),
        _ => report.timeout().max(wanted),
    }
}

fn runs_already(title: &str) -> String {
    format!(
        "the watchdog {title} was armed by an earlier guard of this boot, and [watchdog] does not ask for it any more. It is fed under the permit until this node is drained and empty (`leasehold drain --wait`), which stops it; meanwhile this node promises receipts and no bound"
    )
}

fn restrained(title: &str, restraint: Restraint, timing: &Timing) -> String {
    let left = restraint.until.left(clock::now()).as_secs_f64();
    let meanwhile = match restraint.timeout {
        0 => "is not armed".to_owned(),
        seconds => format!("is armed with {seconds} s"),
    };
    format!(
        "the watchdog {title} {meanwhile} for {left:.1} s more, and with {} s from then on: the authority counts with a smaller bound for the leases held here, and no device may outlast that",
        timing.watchdog.as_secs()
    )
}

fn tale(
    state: FeedState,
    (error, why): (Option<&str>, Option<&str>),
    title: &str,
    timeout: u32,
    bound: Option<Duration>,
) -> (Severity, String) {
    let [error, why] = [error, why].map(|reason| reason.unwrap_or("no reason is known"));
    match state {
        FeedState::Waiting => (
            Severity::Error,
            format!(
                "the watchdog {title} cannot be armed: {error}. It is tried again; until then this node promises receipts and no bound"
            ),
        ),
        FeedState::Armed => {
            let worth = bound
                .map_or("receipts and no bound".to_owned(), |bound| format!("a bound of {} s", bound.as_secs_f64()));
            (
                Severity::Info,
                format!(
                    "the watchdog {title} is armed with {timeout} s and fed under the permit alone; this node promises {worth}"
                ),
            )
        }
        FeedState::Starving | FeedState::Abandoned => (
            Severity::Emergency,
            format!(
                "the watchdog {title} is fed no more: {why}. It resets this host {timeout} s after its last feed unless that ends before; see `leasehold status`"
            ),
        ),
        FeedState::Fencing => (
            Severity::Emergency,
            format!(
                "the watchdog {title} resets this host now: {why}, and its timeout was cut short. Nothing stops that any more"
            ),
        ),
        FeedState::Disarmed => (
            Severity::Info,
            format!("the watchdog {title} is stopped: this node is drained and everything enforced is proven gone"),
        ),
        FeedState::Refused => (
            Severity::Error,
            format!("the watchdog {title} is not used: {error}. This node promises receipts and no bound"),
        ),
        FeedState::Failing => (
            Severity::Error,
            format!(
                "the watchdog {title} does not take what it is fed: {error}. It may reset this host, or never; this node promises receipts and no bound"
            ),
        ),
    }
}

fn error(report: &FeedReport) -> Option<String> {
    (report.errno() != 0).then(|| match report.errno() {
        libc::EBUSY => "another process holds it (`leasehold watchdog query` says which)".to_owned(),
        libc::EPERM => "its driver stops it at any close, so the guard's death would disarm it".to_owned(),
        libc::ENOTTY => "it is no watchdog device".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    })
}

fn cannot_start(error: io::Error) -> String {
    format!("its threads cannot be started: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::timing::Profile;

    fn promised(state: FeedState, needs: f64, timeout: u32, strict: bool) -> Option<f64> {
        let timing = Timing::profile(Profile::Default);
        bound(state, &timing, Duration::from_secs_f64(needs), timeout, strict).map(|bound| bound.as_secs_f64())
    }

    #[test]
    fn a_bound_is_promised_exactly_while_the_device_is_armed_or_runs_out() {
        use FeedState::*;
        for state in [Armed, Starving, Abandoned, Fencing] {
            assert_eq!(promised(state, 10.0, 10, false), Some(26.0), "{state:?}");
        }
        for state in [Waiting, Disarmed, Refused, Failing] {
            assert_eq!(promised(state, 10.0, 10, false), None, "{state:?}");
        }
    }

    #[test]
    fn it_is_made_of_the_timeout_read_back_and_of_what_the_device_needs_and_a_strict_one_counts_a_late_feed() {
        assert_eq!(promised(FeedState::Armed, 8.0, 8, false), Some(24.0), "asked for 10 s, it took 8");
        assert_eq!(promised(FeedState::Armed, 20.0, 10, false), Some(35.235), "an iTCO_wdt");
        assert_eq!(promised(FeedState::Armed, 10.0, 10, true), Some(36.0));
    }
}
