//! The oracle for two running copies: QEMU's own word on whether its virtual CPUs run, past libvirt.

use super::{Host, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The monitor that [`super::Domain::watched`] gives a domain besides libvirt's own.
pub fn monitor(name: &str) -> String {
    format!("/run/oracle-{name}.sock")
}

/// What one QEMU said of itself, from when it opened its monitor until its end. Events, not samples: QEMU stamps each
/// change of its state itself, in microseconds of this machine's clock.
pub struct Watch {
    host: String,
    told: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    /// From when and until when its virtual CPUs ran, in microseconds; none: they run.
    runs: Vec<(u64, Option<u64>)>,
    events: Vec<String>,
    connected: bool,
    ended: bool,
}

impl Watch {
    /// Watches the next QEMU of this name on `host`, or the one that is there.
    pub fn over(host: &Host, name: &str) -> Watch {
        let path = PathBuf::from(format!("/proc/{}/root{}", host.init(), monitor(name)));
        let told = Arc::<Mutex<Told>>::default();
        let watch = Watch { host: host.name().to_owned(), told: told.clone() };
        std::thread::spawn(move || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(120) && Arc::strong_count(&told) > 1 {
                if let Ok(stream) = UnixStream::connect(&path) {
                    listen(&stream, &told);
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        watch
    }

    /// Waits until QEMU said so.
    #[track_caller]
    pub fn wait_for(&self, event: &str, limit: Duration) {
        wait_until(&format!("the QEMU on {} said {event}: {:?}", self.host, self.told().events), limit, || {
            self.told().events.iter().any(|told| told == event)
        });
    }

    /// Waits until QEMU's monitor is open.
    #[track_caller]
    pub fn wait_connected(&self, limit: Duration) {
        wait_until(&format!("there was a QEMU on {}", self.host), limit, || self.told().connected);
    }

    /// Whether its virtual CPUs run.
    pub fn runs_now(&self) -> bool {
        self.told().runs.last().is_some_and(|(_, end)| end.is_none())
    }

    /// Whether they ever ran.
    pub fn ever_ran(&self) -> bool {
        !self.told().runs.is_empty()
    }

    /// For how long two QEMUs ran at once.
    pub fn overlap(&self, other: &Watch) -> Duration {
        let (mine, others) = (self.told().runs.clone(), other.told().runs.clone());
        let both = |(a, b): (u64, Option<u64>), (c, d): (u64, Option<u64>)| {
            let end = b.unwrap_or(u64::MAX).min(d.unwrap_or(u64::MAX));
            end.saturating_sub(a.max(c))
        };
        let all = mine.iter().flat_map(|one| others.iter().map(|other| both(*one, *other)));
        Duration::from_micros(all.fold(0, u64::saturating_add))
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().expect("no holder panics")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let told = self.told();
            super::world::tell(&format!("--- QEMU on {}: ran {:?}, said {:?}", self.host, told.runs, told.events));
        }
    }
}

fn listen(mut stream: &UnixStream, told: &Mutex<Told>) {
    let asked = b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-status\"}\n";
    let ok = stream.write_all(asked);
    for line in BufReader::new(stream).lines().map_while(Result::ok).take_while(|_| ok.is_ok()) {
        let Ok(said) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
        let mut told = told.lock().expect("no holder panics");
        if let Some(running) = said["return"]["running"].as_bool() {
            told.connected = true;
            if running && told.runs.is_empty() {
                told.runs.push((now(), None));
            }
        }
        let Some(event) = said["event"].as_str() else { continue };
        let at = &said["timestamp"];
        let at = at["seconds"].as_u64().unwrap_or(0) * 1_000_000 + at["microseconds"].as_u64().unwrap_or(0);
        match event {
            "RESUME" => told.runs.push((at, None)),
            "STOP" => end(&mut told, at),
            _ => {}
        }
        told.events.push(match said["data"]["status"].as_str() {
            Some(status) => format!("{event} {status}"),
            None => event.to_owned(),
        });
    }
    let mut told = told.lock().expect("no holder panics");
    end(&mut told, now());
    told.ended = true;
}

fn end(told: &mut Told, at: u64) {
    if let Some((_, end @ None)) = told.runs.last_mut() {
        *end = Some(at);
    }
}

/// The clock QEMU stamps its events with.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("the clock is past 1970").as_micros() as u64
}
