//! Signs of life of a host that waits for its watchdog to reset it, written so that the last one survives the reset. By
//! them the next boot knows how long the device took.

use super::files::{Durability, read_bounded, write_atomically};
use super::watchdog_measured::{Measured, Outcome, Test};
use crate::lease::id::BootId;
use crate::lease::time::BootTime;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// The name of the file in the state directory. One JSON line says what is tested, then each mark is a line.
pub const FILE: &str = "watchdog-test";
/// The most marks: about 64 bytes each.
pub const MOST: u32 = 2000;
/// The largest file read, in bytes.
const MAX_SIZE: usize = 256 << 10;

/// What is tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// The boot in which it is.
    pub boot: BootId,
    /// The driver's name for the device; empty: it tells none.
    pub identity: String,
    /// Its timeout as read back, in seconds.
    pub timeout_s: u32,
    /// Between two marks.
    pub interval_ms: u64,
}

/// The last feed took effect between these two instants.
#[derive(Debug, Clone, Copy)]
pub struct Fed {
    /// Just before it.
    pub before: BootTime,
    /// Just after it.
    pub after: BootTime,
}

/// The file being written.
#[derive(Debug)]
pub struct Marks {
    file: File,
    /// The longest that a mark took to be on the disk.
    slowest: Duration,
}

impl Marks {
    /// Begins, on the disk.
    ///
    /// # Errors
    /// Those of writing; the message names the file.
    pub fn begin(state_dir: &Path, tested: &Tested) -> io::Result<Marks> {
        let path = state_dir.join(FILE);
        let mut header = serde_json::to_vec(tested).map_err(io::Error::other)?;
        header.push(b'\n');
        write_atomically(&path, &header, 0o600, Durability::Disk)?;
        let file = OpenOptions::new().append(true).open(&path)?;
        Ok(Marks { file, slowest: Duration::ZERO })
    }

    /// The host lives at `now()`, and that is on the disk when this returns.
    ///
    /// # Errors
    /// Those of writing.
    pub fn mark(&mut self, fed: Fed, now: impl Fn() -> BootTime) -> io::Result<()> {
        let at = now();
        let (least, most) = (at.since(fed.after).as_nanos(), at.since(fed.before).as_nanos());
        let line = format!("{least} {most} {}\n", self.slowest.as_nanos());
        self.file.write_all(line.as_bytes())?;
        self.file.sync_data()?;
        self.slowest = self.slowest.max(now().since(at));
        Ok(())
    }
}

/// No reset came: there is nothing to conclude.
///
/// # Errors
/// Those of removing the file.
pub fn forget(state_dir: &Path) -> io::Result<()> {
    match fs::remove_file(state_dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What a test of an earlier boot has shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Concluded {
    /// The device reset the host. It is among what is measured now.
    Reset(Test),
    /// The host went down, and not by this device or not for sure; why, as a sentence.
    Unclear(String),
}

impl fmt::Display for Concluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Concluded::Reset(test) => write!(f, "the watchdog test of the last boot: {test}"),
            Concluded::Unclear(why) => write!(f, "the watchdog test of the last boot has shown nothing: {why}"),
        }
    }
}

/// Concludes the test that ended with the last boot, if there is one, and keeps what it has shown.
///
/// # Errors
/// What was measured cannot be read or written.
pub fn conclude(state_dir: &Path, boot: BootId) -> io::Result<Option<Concluded>> {
    let path = state_dir.join(FILE);
    let bytes = match read_bounded(&path, MAX_SIZE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    let concluded = match read(&bytes) {
        // In this very boot it goes on, or was broken off: nothing was reset.
        Some((tested, _)) if tested.boot == boot => return Ok(None),
        Some((tested, marks)) => by(&tested, marks.as_deref()),
        None => Concluded::Unclear(format!("{} is damaged", path.display())),
    };
    let concluded = match concluded {
        Concluded::Reset(test) => {
            let mut measured = Measured::load(state_dir)?;
            match measured.take_in(test.clone()) {
                Ok(()) => measured.save(state_dir).map(|()| Concluded::Reset(test))?,
                Err(why) => Concluded::Unclear(why),
            }
        }
        unclear => unclear,
    };
    forget(state_dir)?;
    Ok(Some(concluded))
}

/// The header, and the last whole mark: at least, at most, the slowest write before it. A torn last line is none.
fn read(bytes: &[u8]) -> Option<(Tested, Option<Vec<u64>>)> {
    let whole = &bytes[..=bytes.iter().rposition(|&byte| byte == b'\n')?];
    let text = std::str::from_utf8(whole).ok()?;
    let mut lines = text.lines();
    let tested = serde_json::from_str(lines.next()?).ok()?;
    let numbers = |line: &str| line.split(' ').map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
    let last = match lines.last() {
        Some(line) => Some(numbers(line).filter(|numbers| numbers.len() == 3)?),
        None => None,
    };
    Some((tested, last))
}

/// The host lived at the last mark. The next was due an interval after that one was on the disk, and would be there too:
/// each takes at most what the slowest took.
fn by(tested: &Tested, last: Option<&[u64]>) -> Concluded {
    let Some(&[least, most, slowest]) = last else {
        return Concluded::Unclear("the host went down before its first sign of life after the last feed".to_owned());
    };
    let timeout = Duration::from_secs(tested.timeout_s.into());
    let at_most = u128::from(most) + u128::from(slowest) * 2 + u128::from(tested.interval_ms) * 1_000_000;
    if at_most < timeout.as_nanos() / 2 {
        return Concluded::Unclear(format!(
            "the host went down {:.1} s after the last feed, with a timeout of {} s: something else reset it. Test again",
            least as f64 / 1e9,
            tested.timeout_s
        ));
    }
    let outcome = Outcome::Reset {
        at_least_ms: least / 1_000_000,
        at_most_ms: u64::try_from(at_most.div_ceil(1_000_000)).unwrap_or(u64::MAX),
    };
    Concluded::Reset(Test { identity: tested.identity.clone(), timeout_s: tested.timeout_s, outcome })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const THEN: BootId = BootId::from_bytes([1; 16]);
    const NOW: BootId = BootId::from_bytes([2; 16]);

    fn tested() -> Tested {
        Tested { boot: THEN, identity: "i6300ESB timer".into(), timeout_s: 10, interval_ms: 50 }
    }

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(millis * 1_000_000)
    }

    /// Fed at second 100, and marked every 50 ms, each mark taking 3 ms to the disk, until `last` milliseconds later.
    fn marked(dir: &Path, last: u64) {
        let mut marks = Marks::begin(dir, &tested()).unwrap();
        let fed = Fed { before: at(99_990), after: at(100_000) };
        for millis in (0..=last).step_by(50) {
            let looks = Cell::new(0);
            let clock = || at(100_000 + millis + 3 * looks.replace(looks.get() + 1));
            marks.mark(fed, clock).unwrap();
        }
    }

    #[test]
    fn the_last_mark_before_the_reset_and_the_next_that_never_came_are_the_limits_of_its_time() {
        let dir = tempfile::tempdir().unwrap();
        marked(dir.path(), 10_050);
        let Ok(Some(Concluded::Reset(test))) = conclude(dir.path(), NOW) else { panic!() };
        // From before the feed, and an interval and two of the slowest writes after the mark.
        let outcome = Outcome::Reset { at_least_ms: 10_050, at_most_ms: 10_050 + 10 + 50 + 2 * 3 };
        assert_eq!((test.timeout_s, test.outcome), (10, outcome));
        let measured = Measured::load(dir.path()).unwrap();
        assert_eq!(measured.time("i6300ESB timer", 10), Some(Duration::from_millis(10_116)));
        assert_eq!(conclude(dir.path(), NOW).unwrap(), None, "once");
    }

    #[test]
    fn in_the_boot_of_the_test_itself_nothing_is_concluded() {
        let dir = tempfile::tempdir().unwrap();
        marked(dir.path(), 10_050);
        assert_eq!(conclude(dir.path(), THEN).unwrap(), None);
        assert!(dir.path().join(FILE).exists());
    }

    #[test]
    fn a_mark_that_was_torn_by_the_reset_is_none() {
        let dir = tempfile::tempdir().unwrap();
        marked(dir.path(), 10_050);
        let path = dir.path().join(FILE);
        let bytes = fs::read(&path).unwrap();
        for lost in 1..20 {
            let (_, last) = read(&bytes[..bytes.len() - lost]).unwrap();
            assert_eq!(last.unwrap()[0], 10_000_000_000, "{lost} bytes are lost");
        }
    }

    #[test]
    fn a_reset_long_before_the_timeout_was_another_and_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        marked(dir.path(), 4_000);
        let Ok(Some(Concluded::Unclear(why))) = conclude(dir.path(), NOW) else { panic!() };
        assert!(why.contains("4.0 s after the last feed") && why.contains("Test again"), "{why}");
        assert_eq!(Measured::load(dir.path()).unwrap().time("i6300ESB timer", 10), None);
        assert!(!dir.path().join(FILE).exists());
    }

    #[test]
    fn a_damaged_file_and_one_without_a_mark_conclude_nothing_and_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let header = serde_json::to_string(&tested()).unwrap();
        for text in ["", "no newline", "{}\n", &format!("{header}\n"), &format!("{header}\n1 2\n"), "\n\n"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert!(matches!(conclude(dir.path(), NOW), Ok(Some(Concluded::Unclear(_)))), "{text}");
            assert!(!dir.path().join(FILE).exists());
        }
    }
}
