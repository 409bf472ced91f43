//! SIGTERM and SIGINT: the guard is built to be killed at any instant and has nothing to put in order. It says what its
//! end means for this host, and ends.

use super::core::Input;
use super::record::Record;
use crate::lease::event::Severity;
use crate::lease::view::{StatusView, WatchdogView};
use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::sync::mpsc::{Sender, sync_channel};
use std::time::Duration;

/// What the core gets to say what runs, and the record to have it written, before the end.
const PATIENCE: Duration = Duration::from_millis(500);

/// Blocks the signals, for this thread and every one it starts from now on.
///
/// # Errors
/// None that a valid set can give.
pub fn prepare() -> io::Result<SigSet> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    Ok(signals)
}

/// Starts the thread that waits for them.
pub fn start(signals: SigSet, core: Sender<Input>, record: Record) -> io::Result<()> {
    let run = move || {
        // An error, which a valid set never gives, would end a guard that nobody wants ended.
        while let Err(error) = signals.wait() {
            record.say(Severity::Warning, format!("cannot wait for signals: {error}"));
            std::thread::sleep(Duration::from_secs(1));
        }
        let (to, view) = sync_channel(1);
        let asked = core.send(Input::Status(to)).is_ok();
        let view = asked.then(|| view.recv_timeout(PATIENCE).ok()).flatten();
        let (severity, text) = last_words(view.as_ref());
        record.say(severity, text);
        record.settle(PATIENCE);
        std::process::exit(0);
    };
    std::thread::Builder::new().name("farewell".into()).stack_size(256 << 10).spawn(run).map(drop)
}

/// At most this many milliseconds to the reset. One that is fed may be fed once more meanwhile, and is by the close if
/// nobody else keeps it open.
fn left_ms(watchdog: &WatchdogView) -> u64 {
    let passed = if watchdog.state == "armed" { 0 } else { watchdog.fed_ms_ago.unwrap_or(0) };
    watchdog.resets_after_ms.saturating_sub(passed)
}

fn last_words(view: Option<&StatusView>) -> (Severity, String) {
    let Some(view) = view else {
        return (Severity::Error, "the guard is told to stop, and its core does not answer".to_owned());
    };
    let running = view.domains.iter().filter(|domain| !domain.pids.is_empty()).count();
    let left = match running {
        0 => "no domain runs here".to_owned(),
        1 => "one domain runs on".to_owned(),
        many => format!("{many} domains run on"),
    };
    let running_out = view
        .watchdog
        .as_ref()
        .filter(|dog| matches!(dog.state.as_str(), "armed" | "starving" | "abandoned" | "fencing"));
    match running_out {
        Some(watchdog) => (
            Severity::Error,
            format!(
                "the guard stops; {left}, and the watchdog {} stays armed: it resets this host in at most {:.1} s unless a guard runs here again before. `leasehold drain --wait` before a stop avoids that",
                watchdog.device,
                left_ms(watchdog) as f64 / 1000.0
            ),
        ),
        None if running == 0 => (Severity::Info, format!("the guard stops; {left}")),
        None => (
            Severity::Warning,
            format!(
                "the guard stops; {left}, and nothing renews, kills or refuses until a guard runs here again, but the hook, which refuses every start"
            ),
        ),
    }
}
