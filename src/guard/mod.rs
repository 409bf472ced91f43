//! The daemon: threads and their wiring. Data flows one way: sources and node → events → lease core → actions → node.
//!
//! | thread | does | may block on |
//! |---|---|---|
//! | core | decides, publishes the permit | its channel |
//! | ticker | wakes the core when time has come | CLOCK_BOOTTIME |
//! | outbox | writes the ledger, then lets questions and verdicts go | tmpfs |
//! | renew, watch | ask each endpoint, hold each endpoint's hint | the network |
//! | scan | finds domains, holds pidfds | /proc |
//! | feed | feeds the watchdog under the permit, or does not | nothing |
//! | watchdog | tells the core and the operator what became of it | anything |
//! | prove | proves one end | a flush |
//! | kill | SIGKILL until gone | nothing |
//! | polite | has libvirt destroy | libvirt, with a deadline |
//! | socket, peer | hooks and status | their peers, with a deadline |
//! | record | log | anything |
//! | fences | keeps the fence record | the disk |
//! | farewell | says what a stop means, and ends the process | a signal |
//!
//! The guard is built to be killed at any instant: there is no shutdown, only the ledger.

pub(crate) mod armament;
mod copies;
pub(crate) mod core;
mod disks;
mod ending;
mod farewell;
pub(crate) mod feed;
mod fences;
mod keeping;
mod killer;
mod outbox;
mod polite;
mod record;
mod renew;
mod scan;
mod socket;

use self::core::{Hands, Input, Permit};
use crate::config::{Config, read_token};
use crate::lease::event::{Event, Severity};
use crate::lease::fence_story::{self, Ending, Present};
use crate::lease::guard::{Guard, Memory};
use crate::lease::id::BootId;
use crate::lease::ledger::{Ledger, Recovered};
use crate::lease::policy::Unkillable;
use crate::local::{self, HookSettings};
use crate::node::clock::{self, BootTimer};
use crate::node::fence_journal;
use crate::node::files::{self, Durability};
use crate::node::host;
use crate::node::libvirt::Libvirt;
use crate::node::lock::OnlyOne;
use crate::node::realtime;
use crate::node::systemd;
use crate::node::watchdog_list;
use crate::sources::Source;
use crate::sources::http::{Client, Settings};
use crate::sources::native::{Native, NodeFacts};
use copies::Copies;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use record::Record;
use scan::{Callers, Places, Scanner};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The most often that the host is scanned without a reason.
pub(crate) const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// The largest ledger read: 10 000 domains take about 8 MiB.
const MAX_LEDGER: usize = 64 << 20;

/// A guard without a watchdog follows one that had armed it, and nobody kept the device for this one.
const UNFED: &str = "an earlier guard of this boot had armed a watchdog, and this one has none: nobody feeds it any more, and it resets this host within its timeout. Put [watchdog] back as it was and restart the guard; `leasehold drain --wait` stops a watchdog for good";

/// Runs the guard; it returns only if it could not start.
pub fn run(config: &Config) -> String {
    match start(config) {
        Ok(never) => match never {},
        Err(why) => why,
    }
}

enum Never {}

fn start(config: &Config) -> Result<Never, String> {
    // Before anything else is opened: they are numbers of this process's own table.
    let kept = systemd::kept().into_iter().find(|(name, _)| name == keeping::STORED).map(|(_, kept)| kept);
    let manager = systemd::Manager::from_environment();
    // A thread that panics must not leave the others behind with half a guard: the process ends and is restarted.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let run_dir = &config.run_dir;
    std::fs::create_dir_all(run_dir).map_err(|error| format!("cannot create {}: {error}", run_dir.display()))?;
    let _only_one = OnlyOne::take(&local::lock_path(run_dir)).map_err(|error| error.to_string())?;
    let boot = host::boot_id().map_err(|error| format!("cannot read this boot's id: {error}"))?;
    // Every thread started from here on inherits these.
    let signals = farewell::prepare().map_err(cannot_start)?;
    let favoured = realtime::favour_this_thread().and_then(|()| realtime::stay_in_memory());
    // Where the kernel has no such priority (CONFIG_BLOCK unset) there is no disk either.
    let _ = realtime::favour_this_threads_disk_access();
    // Where it is refused an unprivileged guard goes on, as likely as anybody to be killed.
    let _ = realtime::survive_lack_of_memory();
    let record = Record::start().map_err(cannot_start)?;
    let memory = recover(run_dir, boot, &record)?;
    let remembered = match &memory {
        Memory::Restored(ledger) => processes(ledger),
        _ => Vec::new(),
    };
    leave_hook_settings(config)?;

    let facts = NodeFacts {
        node: config.node.clone(),
        boot,
        machine: host::machine(&config.state_dir)
            .map_err(|error| format!("cannot tell which machine this is: {error}"))?,
        incarnation: host::incarnation(),
        mode: config.mode,
        ttl: config.timing.ttl,
    };
    let incarnation = facts.incarnation;
    let sources = sources(config, &facts)?;

    let (core, inputs) = channel();
    let (copies, waiting) = (Copies::default(), outbox::Waiting::default());
    let place =
        fences::Place { state_dir: config.state_dir.clone(), node: config.node.clone(), boot_id: boot, incarnation };
    let fences = fences::Fences::start(place, &copies, &record).map_err(cannot_start)?;
    let timer = BootTimer::new().map_err(cannot_start)?;
    let timer = Arc::new(timer);
    start_ticker(timer.clone(), core.clone()).map_err(cannot_start)?;
    let libvirt = Libvirt::new(&config.libvirt.uri);
    let callers = Arc::<Mutex<Callers>>::default();
    let places = Places {
        callers: callers.clone(),
        notes: local::notes_path(run_dir),
        libvirt_run_dir: config.libvirt.run_dir.clone(),
        hooks_dir: config.libvirt.hooks_dir.clone(),
        interval: SCAN_INTERVAL.min(config.timing.renew),
    };
    let renewer = renew::Renewer::start(sources, &core, &record).map_err(cannot_start)?;
    let mut hands = Hands {
        outbox: outbox::Outbox::start(
            local::ledger_path(run_dir),
            renewer,
            waiting.clone(),
            core.clone(),
            record.clone(),
        )
        .map_err(cannot_start)?,
        killer: killer::Killer::start(&copies, &record).map_err(cannot_start)?,
        polite: polite::Polite::start(libvirt, &config.libvirt.run_dir, &copies, &core, &record)
            .map_err(cannot_start)?,
        scanner: Scanner::start(places, remembered, &copies, &core, &record).map_err(cannot_start)?,
        watchdog: None,
        faults: Vec::new(),
        record: record.clone(),
        fences: fences.clone(),
    };
    farewell::start(signals, core.clone(), record.clone()).map_err(cannot_start)?;
    let socket = local::socket_path(run_dir);
    let disks = disks::DiskRule::new(config.host_cached_disks, config.policy().observe, &record);
    socket::start(&socket, &core, &waiting, &callers, (copies, disks), &record)
        .map_err(|error| format!("cannot listen on {}: {error}", socket.display()))?;
    record.say(Severity::Info, started(config));
    say_last_reset(config, boot, &record);
    let permit = Arc::new(Permit::default());
    let earlier = match &memory {
        Memory::Restored(ledger) => Some(ledger),
        _ => None,
    };
    let counted = earlier.map(|ledger| &ledger.counted);
    match armament::Armament::start(config, (manager.clone(), kept), counted, &permit, &core, (&record, &fences)) {
        Ok(watchdog) => hands.watchdog = watchdog,
        Err(why) => {
            let fault = format!("no watchdog is used: {why}. This node promises receipts and no bound");
            record.say(Severity::Error, fault.clone());
            hands.faults.push(fault);
        }
    }
    if let Some(Err(error)) = manager.map(|manager| manager.notify("READY=1")) {
        record.say(Severity::Warning, format!("the service manager cannot be told that the guard is ready: {error}"));
    }
    // The core is this thread, and it starts no other from here on: none would inherit what favours it.
    if let Err(error) = favoured.and_then(|()| realtime::run_this_thread_first()) {
        let fault = waits_its_turn(&error);
        record.say(Severity::Warning, fault.clone());
        hands.faults.push(fault);
    }

    let mut policy = config.policy();
    if let (Some(watchdog), Some(ledger)) = (&hands.watchdog, earlier) {
        policy.bound = watchdog.goes_on_promising(ledger).filter(|_| policy.unkillable == Unkillable::Reset);
    }
    let memory = match memory {
        Memory::Restored(mut ledger) if hands.watchdog.is_none() => {
            if ledger.promise.take().is_some() {
                record.say(Severity::Emergency, UNFED.to_owned());
            }
            Memory::Restored(ledger)
        }
        memory => memory,
    };
    let mut guard = Guard::new(policy, incarnation, memory);
    if hands.watchdog.is_some() {
        guard = guard.awaiting_watchdog();
    }
    self::core::run(guard, inputs, &hands, &timer, &permit);
    Err("the core thread ended".into())
}

fn started(config: &Config) -> String {
    let (node, mode) = (&config.node, if config.policy().observe { "observing" } else { "enforcing" });
    format!("the guard of node {node} runs, {mode}; until a watchdog is armed it promises receipts and no bound")
}

/// What ended the last boot, if this host's watchdog did.
fn say_last_reset(config: &Config, boot: BootId, record: &Record) {
    let kept = fence_journal::read(&config.state_dir);
    let present = Present { boot, now: clock::now(), boot_status: watchdog_list::boot_status() };
    let stories = fence_story::tell(&kept.lines, &present, None);
    for story in stories.into_iter().filter(|story| story.ending == Ending::Reset) {
        record.say(Severity::Warning, format!("{}. `leasehold why` tells how it came to that", story.headline));
    }
    for why in kept.unreadable {
        record.say(Severity::Warning, format!("why the last boot ended may not be known: {why}"));
    }
}

fn waits_its_turn(error: &io::Error) -> String {
    format!(
        "the guard may not run ahead of this host's guests: {error}. When every processor is busy it may renew or kill late; \
         give it CAP_SYS_NICE, and its cgroup real-time runtime where the kernel has CONFIG_RT_GROUP_SCHED"
    )
}

/// What an earlier guard of this boot left. A marker tells a first guard from one whose predecessor's ledger is lost.
fn recover(run_dir: &Path, boot: BootId, record: &Record) -> Result<Memory, String> {
    let (path, marker) = (local::ledger_path(run_dir), run_dir.join("guarded-boot"));
    let guarded = files::read_bounded(&marker, 64).is_ok_and(|bytes| bytes == boot.to_string().as_bytes());
    leave(&marker, boot.to_string().as_bytes(), 0o600)?;
    let lost = |why: String| {
        let text = format!(
            "the ledger {} is lost: {why}. Nothing is let through before libvirt has said that no start is in flight and a later scan is whole",
            path.display()
        );
        record.say(Severity::Error, text);
        Memory::Lost(boot)
    };
    Ok(match files::read_bounded(&path, MAX_LEDGER) {
        Ok(bytes) => match Ledger::recover(&bytes, boot) {
            Recovered::Restored(ledger) => Memory::Restored(ledger),
            Recovered::OtherBoot if guarded => lost("it is of another boot".into()),
            Recovered::OtherBoot => Memory::First(boot),
            Recovered::Unusable(why) => lost(why),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound && !guarded => Memory::First(boot),
        Err(error) => lost(error.to_string()),
    })
}

fn processes(ledger: &Ledger) -> Vec<(crate::lease::id::DomainId, String, crate::lease::id::ProcessKey)> {
    let of = |(&id, entry): (&crate::lease::id::DomainId, &crate::lease::ledger::Entry)| {
        entry.copies.iter().map(|copy| (id, entry.name.clone(), copy.process)).collect::<Vec<_>>()
    };
    ledger.domains.iter().flat_map(of).collect()
}

fn leave_hook_settings(config: &Config) -> Result<(), String> {
    let settings = HookSettings {
        deadline_ms: config.hook_deadline.as_millis() as u64,
        observe: config.policy().observe,
        node: config.node.to_string(),
    };
    let path = local::hook_settings_path(&config.run_dir);
    let bytes = serde_json::to_vec(&settings).expect("settings are plain data");
    leave(&path, &bytes, 0o644)
}

/// Writes a file unless it is there already: a guard that is restarted while /run is full must still come up, to kill.
fn leave(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    if files::read_bounded(path, bytes.len()).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    files::write_atomically(path, bytes, mode, Durability::Kernel).map_err(|error| error.to_string())
}

fn sources(config: &Config, facts: &NodeFacts) -> Result<Vec<renew::Endpoint>, String> {
    let contact = &config.contact;
    let token = contact.token_file.as_deref().map(read_token).transpose().map_err(|error| error.to_string())?;
    let native = |url: &str| -> Result<Box<dyn Source>, String> {
        let settings = Settings { url: url.to_owned(), token: token.clone(), ca_file: contact.ca_file.clone() };
        let client = Client::new(&settings).map_err(|error| error.to_string())?;
        Ok(Box::new(Native::new(client, facts.clone())))
    };
    let urls = contact.endpoints.iter().map(|endpoint| endpoint.to_string());
    urls.map(|url| Ok(renew::Endpoint { asking: native(&url)?, watching: native(&url)? })).collect()
}

fn start_ticker(timer: Arc<BootTimer>, core: Sender<Input>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("ticker".into())
        .stack_size(128 << 10)
        .spawn(move || {
            // Refused for this thread as for the core, which says so.
            let _ = realtime::run_this_thread_first();
            loop {
                let mut fds = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
                if poll(&mut fds, PollTimeout::NONE).is_err() {
                    continue;
                }
                // Before the tick, not after: the core sets it anew while it handles the tick.
                timer.clear().expect("a timerfd can be set");
                core.send(Input::Event(Event::Tick)).expect("the core lives as long as the process");
            }
        })
        .map(drop)
}

fn cannot_start(error: io::Error) -> String {
    format!("cannot start a thread of the guard: {error}")
}
