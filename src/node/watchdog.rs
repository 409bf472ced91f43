//! The hardware watchdog: what may be done to it, and Linux's own (Documentation/watchdog/watchdog-api.rst).
//!
//! Three things feed a watchdog that do not look like it (drivers/watchdog/watchdog_dev.c): opening it, setting its
//! timeout, and closing it without the magic 'V'. Whoever holds one must know when it does any of them.

use super::sys;
use crate::lease::gone::AllGone;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

/// WDIOF_SETTIMEOUT (include/uapi/linux/watchdog.h): the timeout can be set.
pub const SETTIMEOUT: u32 = 0x0080;
/// WDIOF_MAGICCLOSE: only a close after 'V' stops it. Without it every close does.
pub const MAGICCLOSE: u32 = 0x0100;
/// WDIOF_KEEPALIVEPING: it can be fed by ioctl.
pub const KEEPALIVEPING: u32 = 0x8000;
/// WDIOF_CARDRESET, in the boot status: the last boot was this device's doing.
pub const CARDRESET: u32 = 0x0020;

/// Timeouts tried, in seconds, to find the least that a driver takes.
pub const SHORT_TIMEOUTS: [u32; 4] = [1, 2, 4, 8];

/// What the feed thread may do to a watchdog. No call but [`Watchdog::disarm`] can stop one.
pub trait Watchdog {
    /// Opens it, which starts and feeds it, sets its timeout to this many seconds and reads it back.
    ///
    /// # Errors
    /// It cannot be opened, or is not one that can be relied on; then it is left as it was found.
    fn arm(&mut self, seconds: u32) -> Result<u32, ArmError>;

    /// Sets the timeout of an open one to this many seconds, which feeds it, and reads it back.
    ///
    /// # Errors
    /// The driver's; then it may have either timeout.
    fn set_timeout(&mut self, seconds: u32) -> io::Result<u32>;

    /// Feeds it.
    ///
    /// # Errors
    /// The driver's, `ENODEV` when it is gone.
    fn feed(&mut self) -> io::Result<()>;

    /// The least timeout that the driver takes, in seconds; `None`: it is not open, or none less than its timeout is known.
    fn shortest(&self) -> Option<u32>;

    /// Shortens its timeout to the least that the driver takes, which feeds it once more; nothing when that is no less.
    ///
    /// # Errors
    /// The driver's.
    fn shorten(&mut self) -> io::Result<()>;

    /// Closes it without the magic 'V', which feeds it once more. It runs on, and fires when its timeout has passed.
    fn abandon(&mut self);

    /// A duplicate of the open device, for the service manager to keep; `None` where it is not open, or no more can be
    /// opened. Feeds nothing.
    fn duplicate(&self) -> Option<OwnedFd>;

    /// Stops it and closes it. The only call that lowers protection, hence the proof.
    ///
    /// # Errors
    /// The 'V' could not be written; then it runs on.
    fn disarm(&mut self, proof: AllGone) -> io::Result<()>;
}

/// Why a watchdog cannot be armed.
#[derive(Debug)]
pub enum ArmError {
    /// It cannot be opened; `EBUSY`: somebody else holds it.
    Open(io::Error),
    /// The path names something else.
    NoWatchdog,
    /// Any close would stop it, so that the guard's death would disarm it silently.
    StoppedByAnyClose,
    /// Its timeout cannot be set.
    Timeout(io::Error),
}

impl ArmError {
    /// Whether trying again can help.
    pub fn may_pass(&self) -> bool {
        matches!(self, ArmError::Open(_))
    }
}

impl fmt::Display for ArmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArmError::Open(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                write!(f, "another process holds it (see `leasehold watchdog query`)")
            }
            ArmError::Open(error) => write!(f, "it cannot be opened: {error}"),
            ArmError::NoWatchdog => write!(f, "it is no watchdog device: is its driver loaded?"),
            ArmError::StoppedByAnyClose => write!(
                f,
                "its driver stops it at any close (no WDIOF_MAGICCLOSE), so the guard's death would disarm it; load the driver with nowayout=1 or use another device"
            ),
            ArmError::Timeout(error) => write!(f, "its timeout cannot be set: {error}"),
        }
    }
}

/// How long this device really takes from its last feed to the reset, if it is known or was measured to need another
/// time than it reads back (docs/watchdog.md). iTCO_wdt: its counter runs twice. ib700: even seconds, rounded up.
/// i6300ESB: its driver takes 1024 ticks for a second (drivers/watchdog/i6300esb.c, `esb_timer_set_heartbeat`), and a tick
/// is 2^15 clocks of a 33 MHz bus: 1.7 % longer. A driver that tells no identity (empty) counts as the slowest known. In
/// whole milliseconds, rounded up: bounds are stated in them.
///
/// What was measured only ever raises it. A host that somebody switched off while its watchdog was tested looks like one
/// that was reset early: nothing that a test says may lower a promise.
pub fn time_to_reset(identity: &str, seconds: u32, measured: Option<Duration>) -> Duration {
    let seconds = Duration::from_secs(seconds.into());
    let known = match identity {
        "iTCO_wdt" | "" => seconds * 2,
        "IB700 WDT" => Duration::from_secs(seconds.as_secs().next_multiple_of(2)),
        "i6300ESB timer" => Duration::from_millis((seconds.as_secs() * (1024 << 15)).div_ceil(33_000)),
        _ => seconds,
    };
    known.max(measured.unwrap_or_default())
}

/// Linux's watchdog behind a path.
#[derive(Debug)]
pub struct LinuxWatchdog {
    path: PathBuf,
    /// Loaded with nowayout=1: no close stops it, whatever the driver.
    nowayout: bool,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    device: File,
    by_ioctl: bool,
    /// An earlier guard may have written 'V', which KEEPALIVE does not take back: the next feed is a write.
    unsay: bool,
    timeout: u32,
    shortest: u32,
}

impl Open {
    /// Of an earlier guard. The least timeout it takes was found by that one; asking for it again would feed it.
    fn kept(device: File, options: u32, timeout: u32) -> Open {
        Open { device, by_ioctl: options & KEEPALIVEPING != 0, unsay: true, timeout, shortest: timeout }
    }
}

impl LinuxWatchdog {
    /// Opens nothing yet.
    pub fn new(path: &Path, nowayout: bool) -> LinuxWatchdog {
        LinuxWatchdog { path: path.to_owned(), nowayout, open: None }
    }

    /// One that the service manager kept open over the death of an earlier guard, and its timeout in seconds. Touched by WDIOC_GETTIMEOUT and
    /// WDIOC_GETSUPPORT only, which do not feed it.
    ///
    /// # Errors
    /// It is no watchdog.
    pub fn adopt(path: &Path, nowayout: bool, kept: OwnedFd) -> io::Result<(LinuxWatchdog, u32)> {
        let device = File::from(kept);
        let options = sys::watchdog_support(device.as_fd())?.options;
        let timeout = sys::watchdog_timeout(device.as_fd())?;
        let open = Some(Open::kept(device, options, timeout));
        Ok((LinuxWatchdog { path: path.to_owned(), nowayout, open }, timeout))
    }
}

impl Watchdog for LinuxWatchdog {
    fn arm(&mut self, seconds: u32) -> Result<u32, ArmError> {
        // Before anything is opened: a shell's redirection leaves a plain file there, and feeding it "works".
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.file_type().is_char_device() => {}
            Ok(_) => return Err(ArmError::NoWatchdog),
            Err(error) => return Err(ArmError::Open(error)),
        }
        let device =
            OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(&self.path).map_err(ArmError::Open)?;
        let fd = device.as_fd();
        let options = sys::watchdog_support(fd).map_err(|_| ArmError::NoWatchdog)?.options;
        if options & MAGICCLOSE == 0 && !self.nowayout {
            // Closing it here stops it, which is how it was found.
            return Err(ArmError::StoppedByAnyClose);
        }
        // From here on it runs. An error leaves it running, closed and unfed: on the safe side of wrong.
        let shortest = SHORT_TIMEOUTS
            .into_iter()
            .find(|&short| short < seconds && sys::set_watchdog_timeout(fd, short).is_ok_and(|set| set <= short));
        let timeout = sys::set_watchdog_timeout(fd, seconds)
            .and_then(|_| sys::watchdog_timeout(fd))
            .map_err(ArmError::Timeout)?;
        let shortest = shortest.unwrap_or(timeout);
        self.open = Some(Open { by_ioctl: options & KEEPALIVEPING != 0, unsay: false, device, timeout, shortest });
        Ok(timeout)
    }

    fn set_timeout(&mut self, seconds: u32) -> io::Result<u32> {
        let Some(open) = &mut self.open else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        sys::set_watchdog_timeout(open.device.as_fd(), seconds)?;
        open.timeout = sys::watchdog_timeout(open.device.as_fd())?;
        Ok(open.timeout)
    }

    fn feed(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        if open.by_ioctl && !std::mem::take(&mut open.unsay) {
            match sys::feed_watchdog(open.device.as_fd()) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY)) => {
                    open.by_ioctl = false;
                }
                fed => return fed,
            }
        }
        // Any byte but 'V' (watchdog_write, drivers/watchdog/watchdog_dev.c).
        open.device.write_all(b"\0")
    }

    fn shortest(&self) -> Option<u32> {
        self.open.as_ref().filter(|open| open.shortest < open.timeout).map(|open| open.shortest)
    }

    fn shorten(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.shortest < open.timeout {
            open.timeout = sys::set_watchdog_timeout(open.device.as_fd(), open.shortest)?;
        }
        Ok(())
    }

    fn duplicate(&self) -> Option<OwnedFd> {
        self.open.as_ref()?.device.as_fd().try_clone_to_owned().ok()
    }

    fn abandon(&mut self) {
        self.open = None;
    }

    fn disarm(&mut self, _proof: AllGone) -> io::Result<()> {
        if let Some(open) = &mut self.open {
            open.unsay = true;
            // safety: every process of every enforced domain is proven gone and no start is admitted, says the proof.
            open.device.write_all(b"V")?;
        }
        self.open = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_watchdog_is_not_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (path, expected) in [
            (file.path(), "no watchdog device"),
            (Path::new("/dev/null"), "no watchdog device"),
            (Path::new("/nonexistent"), "cannot be opened"),
        ] {
            let error = LinuxWatchdog::new(path, false).arm(10).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(file.path().metadata().unwrap().len(), 0);
    }

    /// One taken over from an earlier guard, and what stands for its device: it takes the writes of one and no ioctl.
    fn kept() -> (LinuxWatchdog, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = Some(Open::kept(file.reopen().unwrap(), KEEPALIVEPING, 10));
        (LinuxWatchdog { path: file.path().to_owned(), nowayout: false, open }, file)
    }

    fn written(file: &tempfile::NamedTempFile) -> Vec<u8> {
        fs::read(file.path()).unwrap()
    }

    #[test]
    fn no_close_says_goodbye_but_the_one_with_the_proof() {
        let (mut abandoned, file) = kept();
        abandoned.abandon();
        assert_eq!(written(&file), b"");
        let (dropped, file) = kept();
        drop(dropped);
        assert_eq!(written(&file), b"");
        let (mut disarmed, file) = kept();
        disarmed.disarm(AllGone::for_tests()).unwrap();
        assert_eq!(written(&file), b"V");
    }

    #[test]
    fn the_first_feed_of_one_that_was_taken_over_is_a_write_which_takes_back_a_goodbye() {
        let (mut device, file) = kept();
        let open = device.open.as_mut().unwrap();
        open.device.write_all(b"V").unwrap();
        device.feed().unwrap();
        assert_eq!(written(&file), b"V\0");
        let open = device.open.as_ref().unwrap();
        assert!(open.by_ioctl && !open.unsay, "the ioctl was not tried, and the next feed is one");
    }

    #[test]
    fn devices_known_to_need_longer_count_as_longer_and_a_measured_time_counts_if_it_is_longer_still() {
        let secs = Duration::from_secs;
        assert_eq!(time_to_reset("Software Watchdog", 10, None), secs(10));
        assert_eq!(time_to_reset("i6300ESB timer", 10, None).as_nanos(), 10_169_000_000);
        assert_eq!(time_to_reset("iTCO_wdt", 10, None), secs(20));
        assert_eq!(time_to_reset("IB700 WDT", 9, None), secs(10));
        assert_eq!(time_to_reset("iTCO_wdt", 10, Some(secs(19))), secs(20));
        assert_eq!(time_to_reset("ipmi", 10, Some(secs(12))), secs(12));
        assert_eq!(time_to_reset("ipmi", 10, Some(secs(8))), secs(10), "a shorter one lowers nothing");
        assert_eq!(time_to_reset("", 10, Some(secs(11))), secs(20), "it may be an iTCO that somebody switched off");
    }
}
