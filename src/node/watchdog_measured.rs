//! What `leasehold watchdog test` has shown of this machine's watchdogs, kept in the state directory, and how long each
//! takes from its last feed to the reset by all that is known of it.

use super::files::{Durability, read_bounded, write_atomically};
use super::host;
use super::watchdog::time_to_reset;
use super::watchdog_list::Found;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The name of the file in the state directory.
pub const FILE: &str = "watchdog.json";
/// The format this build writes and reads.
const VERSION: u32 = 1;
/// The most tests kept, one of each identity and timeout.
const MOST: usize = 32;
/// The largest file read, in bytes.
const MAX_SIZE: usize = 64 << 10;
/// No device takes longer than this many times its timeout: a test is given up before.
const SLOWEST: u32 = 8;
/// The longest timeout, in seconds (src/lease/timing.rs, `LONGEST`).
const LONGEST: u32 = 24 * 3600;

/// All tests made on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    version: u32,
    /// What was measured on other hardware, whose disk this was copied from, says nothing here.
    hardware: String,
    tests: Vec<Test>,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// The driver's name for the device; empty: it tells none.
    pub identity: String,
    /// Its timeout as read back, in seconds.
    pub timeout_s: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a test ended. Milliseconds since the last feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The host was reset between these two.
    Reset {
        /// It was still alive then.
        at_least_ms: u64,
        /// A later sign of life would have been found.
        at_most_ms: u64,
    },
    /// Nothing happened for so long: this device does not reset this host.
    Never {
        /// How long was waited for it.
        waited_ms: u64,
    },
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = if self.identity.is_empty() { "a watchdog of unknown identity" } else { &self.identity };
        let seconds = |millis: u64| millis as f64 / 1000.0;
        match self.outcome {
            Outcome::Reset { at_least_ms, at_most_ms } => write!(
                f,
                "{identity}, set to {} s, reset this host between {} and {} s after its last feed",
                self.timeout_s,
                seconds(at_least_ms),
                seconds(at_most_ms)
            ),
            Outcome::Never { waited_ms } => write!(
                f,
                "{identity}, set to {} s, did not reset this host in {} s after its last feed",
                self.timeout_s,
                seconds(waited_ms)
            ),
        }
    }
}

impl Test {
    fn is_sound(&self) -> bool {
        let most = u64::from(self.timeout_s) * 1000 * u64::from(SLOWEST);
        let times = match self.outcome {
            Outcome::Reset { at_least_ms, at_most_ms } => at_least_ms <= at_most_ms && at_most_ms <= most,
            Outcome::Never { waited_ms } => waited_ms <= most,
        };
        self.identity.len() <= 64 && (1..=LONGEST).contains(&self.timeout_s) && times
    }
}

impl Measured {
    /// What is kept in this directory of this machine; nothing where no test was made.
    ///
    /// # Errors
    /// It cannot be read or is damaged, with what to do. It may have said that a device never fires, so it is not taken
    /// for nothing.
    pub fn load(state_dir: &Path) -> io::Result<Measured> {
        Measured::load_on(host::hardware()?, state_dir)
    }

    fn load_on(hardware: String, state_dir: &Path) -> io::Result<Measured> {
        let path = state_dir.join(FILE);
        let none = Measured { version: VERSION, hardware, tests: Vec::new() };
        let bytes = match read_bounded(&path, MAX_SIZE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(none),
            bytes => bytes?,
        };
        match serde_json::from_slice::<Measured>(&bytes) {
            Ok(kept)
                if kept.version == VERSION && kept.tests.len() <= MOST && kept.tests.iter().all(Test::is_sound) =>
            {
                Ok(if kept.hardware == none.hardware { kept } else { none })
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} is damaged: what was measured of this host's watchdogs is lost; remove it and run `leasehold watchdog test` again",
                    path.display()
                ),
            )),
        }
    }

    /// Takes a test in. A newer one of the same device and timeout replaces the older; one after which the host was reset
    /// takes back that the device never fires, and the other way round.
    ///
    /// # Errors
    /// It is no possible test, as a sentence.
    pub fn take_in(&mut self, test: Test) -> Result<(), String> {
        if !test.is_sound() {
            return Err(format!("{:?} after a timeout of {} s is no possible time", test.outcome, test.timeout_s));
        }
        let never = |outcome: &Outcome| matches!(outcome, Outcome::Never { .. });
        self.tests.retain(|kept| {
            kept.identity != test.identity
                || kept.timeout_s != test.timeout_s && never(&kept.outcome) == never(&test.outcome)
        });
        self.tests.push(test);
        let over = self.tests.len().saturating_sub(MOST);
        self.tests.drain(..over);
        Ok(())
    }

    /// Writes it, to survive a reset.
    ///
    /// # Errors
    /// Those of writing; the message names the file.
    pub fn save(&self, state_dir: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        write_atomically(&state_dir.join(FILE), &bytes, 0o600, Durability::Disk)
    }

    /// How long it was waited for a reset by this device that never came.
    pub fn never(&self, identity: &str) -> Option<Duration> {
        self.tests.iter().filter(|test| test.identity == identity).find_map(|test| match test.outcome {
            Outcome::Never { waited_ms } => Some(Duration::from_millis(waited_ms)),
            Outcome::Reset { .. } => None,
        })
    }

    /// How long this device took at most with this timeout, or would by its slowest test with another.
    pub fn time(&self, identity: &str, seconds: u32) -> Option<Duration> {
        let took = |test: &Test| match test.outcome {
            Outcome::Reset { at_most_ms, .. } if test.identity == identity => Some((test.timeout_s, at_most_ms)),
            _ => None,
        };
        let mut exact = self.tests.iter().filter_map(took).filter(|&(timeout, _)| timeout == seconds);
        let scaled = |(timeout, millis): (u32, u64)| (millis * u64::from(seconds)).div_ceil(timeout.into());
        let millis = exact.next().map(|(_, millis)| millis);
        millis.or_else(|| self.tests.iter().filter_map(took).map(scaled).max()).map(Duration::from_millis)
    }
}

/// What one device needs from its last feed to the reset.
#[derive(Debug, Clone)]
pub struct TimeToReset {
    identity: String,
    measured: Measured,
}

impl TimeToReset {
    /// By what is known of the device and was measured of it on this machine.
    ///
    /// # Errors
    /// It was tested and never fires, or what was measured cannot be read: it cannot be relied on, and what to do.
    pub fn of(device: &Found, state_dir: &Path) -> Result<TimeToReset, String> {
        let measured = Measured::load(state_dir).map_err(|error| error.to_string())?;
        let identity = device.identity.clone().unwrap_or_default();
        match measured.never(&identity) {
            Some(waited) => Err(format!(
                "{} does not reset this host: in a test it was not fed for {:.1} s and nothing happened. Use another device, or mend what it should reset and run `leasehold watchdog test` again",
                device.title(),
                waited.as_secs_f64()
            )),
            None => Ok(TimeToReset { identity, measured }),
        }
    }

    /// What it took in a test, at most.
    pub fn measured(&self, seconds: u32) -> Option<Duration> {
        self.measured.time(&self.identity, seconds)
    }

    /// W' for a timeout of this many seconds as read back.
    pub fn after(&self, seconds: u32) -> Duration {
        time_to_reset(&self.identity, seconds, self.measured(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(identity: &str, timeout_s: u32, at_most_ms: u64) -> Test {
        Test {
            identity: identity.into(),
            timeout_s,
            outcome: Outcome::Reset { at_least_ms: at_most_ms - 60, at_most_ms },
        }
    }

    fn never(identity: &str) -> Test {
        Test { identity: identity.into(), timeout_s: 10, outcome: Outcome::Never { waited_ms: 30_000 } }
    }

    fn none() -> Measured {
        Measured { version: VERSION, ..Measured::default() }
    }

    fn millis(span: Option<Duration>) -> Option<u128> {
        span.map(|span| span.as_millis())
    }

    #[test]
    fn what_was_measured_is_kept_and_is_of_this_hardware_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut measured = Measured::load_on("uuid-1".into(), dir.path()).unwrap();
        measured.take_in(reset("ipmi", 10, 12_100)).unwrap();
        measured.save(dir.path()).unwrap();
        let again = Measured::load_on("uuid-1".into(), dir.path()).unwrap();
        assert_eq!(millis(again.time("ipmi", 10)), Some(12_100));
        assert_eq!(again.time("other", 10), None);
        let cloned = Measured::load_on("uuid-2".into(), dir.path()).unwrap();
        assert_eq!(cloned.time("ipmi", 10), None);
    }

    #[test]
    fn a_damaged_file_is_told_and_never_taken_for_no_test() {
        let dir = tempfile::tempdir().unwrap();
        let kept = |text: &str| {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            Measured::load_on(String::new(), dir.path()).map_err(|error| error.to_string())
        };
        let one = |test: &str| format!(r#"{{"version":1,"hardware":"","tests":[{test}]}}"#);
        let test = |outcome: &str| one(&format!(r#"{{"identity":"x","timeout_s":10,"outcome":{outcome}}}"#));
        assert!(kept(&test(r#"{"reset":{"at_least_ms":9950,"at_most_ms":10050}}"#)).is_ok());
        for damaged in [
            "",
            "{}",
            r#"{"version":2,"hardware":"","tests":[]}"#,
            &test(r#"{"reset":{"at_least_ms":10051,"at_most_ms":10050}}"#),
            &test(r#"{"reset":{"at_least_ms":1,"at_most_ms":80001}}"#),
            &test(r#"{"never":{"waited_ms":18446744073709551615}}"#),
            &one(r#"{"identity":"x","timeout_s":0,"outcome":{"never":{"waited_ms":0}}}"#),
        ] {
            let said = kept(damaged).expect_err(damaged);
            assert!(said.contains("watchdog.json is damaged") && said.contains("watchdog test"), "{said}");
        }
    }

    #[test]
    fn a_timeout_that_was_not_tested_counts_by_the_slowest_that_was() {
        let mut measured = none();
        measured.take_in(reset("x", 10, 12_000)).unwrap();
        measured.take_in(reset("x", 5, 5_100)).unwrap();
        assert_eq!(millis(measured.time("x", 5)), Some(5_100));
        assert_eq!(millis(measured.time("x", 3)), Some(3_600));
        assert_eq!(millis(measured.time("x", 30)), Some(36_000));
    }

    #[test]
    fn that_a_device_never_fires_holds_for_every_timeout_until_a_test_shows_that_it_does() {
        let mut measured = none();
        measured.take_in(reset("x", 3, 3_050)).unwrap();
        measured.take_in(never("x")).unwrap();
        assert_eq!((millis(measured.never("x")), measured.time("x", 3)), (Some(30_000), None));
        assert_eq!(measured.never("y"), None);
        measured.take_in(reset("x", 3, 3_050)).unwrap();
        assert_eq!((measured.never("x"), millis(measured.time("x", 3))), (None, Some(3_050)));
    }

    #[test]
    fn no_number_of_tests_makes_a_file_that_is_not_read_again() {
        let mut measured = none();
        for timeout in 1..=100 {
            measured.take_in(reset("x", timeout, u64::from(timeout) * 1000)).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        measured.save(dir.path()).unwrap();
        let again = Measured::load_on(String::new(), dir.path()).unwrap();
        assert_eq!((again.tests.len(), millis(again.time("x", 100))), (MOST, Some(100_000)));
        assert!(measured.take_in(reset("x", 1, 8_001)).is_err());
    }
}
