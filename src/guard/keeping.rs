//! The armed device in the service manager's fd store, so that no death of the guard closes it (rule 5): given away, looked
//! for where it should be, and taken back once it is stopped.
//!
//! That a descriptor was sent proves nothing. The manager may have no room for it, may not listen to this process, may be
//! another one than pid 1. What the kernel shows of pid 1's descriptors is the proof: a watchdog is opened by one at a time,
//! so who else has it open has this very open file.

use super::feed::{FeedReport, FeedState, Keeper};
use super::record::Record;
use crate::lease::event::Severity;
use crate::lease::time::BootTime;
use crate::node::clock;
use crate::node::systemd::Manager;
use crate::node::watchdog_list::{self, Found};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The name under which the service manager keeps the device.
pub const STORED: &str = "watchdog";

/// What the manager gets to put away what it was given.
const PATIENCE: Duration = Duration::from_secs(2);

/// The manager's part in keeping the device open. It may block.
pub struct Keeping {
    manager: Manager,
    duplicates: Receiver<OwnedFd>,
    device: Found,
    custody: Custody,
    record: Record,
}

/// Where the duplicate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Custody {
    /// The manager has none.
    Nothing,
    /// Given to it at this instant, or handed over by it, and not seen to be kept yet.
    Given(BootTime),
    /// Pid 1 is seen to have it open.
    Kept,
    /// Given, and not kept.
    Lost,
}

impl Custody {
    /// After another look at pid 1's descriptors.
    fn looked(self, open: bool, now: BootTime) -> Custody {
        match self {
            Custody::Nothing => Custody::Nothing,
            _ if open => Custody::Kept,
            Custody::Given(at) if now.since(at) < PATIENCE => self,
            _ => Custody::Lost,
        }
    }

    /// What is on its way counts as kept: closed now, it would be nobody's to feed once it is there.
    fn keeper(self) -> Keeper {
        match self {
            Custody::Given(_) | Custody::Kept => Keeper::FdStore,
            Custody::Nothing | Custody::Lost => Keeper::Nobody,
        }
    }
}

impl Keeping {
    /// With a manager that keeps what it is given over a stop of the unit too. `handed_over`: it has the device already,
    /// from an earlier guard.
    pub fn new(
        manager: Manager,
        duplicates: Receiver<OwnedFd>,
        device: &Found,
        handed_over: bool,
        record: &Record,
    ) -> Keeping {
        let custody = if handed_over { Custody::Given(clock::now()) } else { Custody::Nothing };
        Keeping { manager, duplicates, device: device.clone(), custody, record: record.clone() }
    }

    /// Gives away what was armed, looks whether it is kept, and takes back what was stopped: it runs on, unfed, for as long
    /// as anybody has it open.
    pub fn turn(&mut self, state: FeedState, report: &FeedReport) {
        let before = self.custody;
        if let Ok(duplicate) = self.duplicates.try_recv() {
            self.custody = Custody::Given(clock::now());
            if let Err(error) = self.manager.store(STORED, duplicate.as_fd()) {
                let title = self.device.title();
                let text = format!("the watchdog {title} cannot be given to the service manager: {error}");
                self.record.say(Severity::Warning, text);
                self.custody = Custody::Lost;
            }
        }
        if self.custody == Custody::Nothing {
            return;
        }
        let open = watchdog_list::has_open(1, &self.device.path);
        self.custody = self.custody.looked(open, clock::now());
        if state == FeedState::Disarmed {
            match open {
                // Full, its socket is tried again at the next turn.
                true => drop(self.manager.remove(STORED)),
                false => self.custody = Custody::Nothing,
            }
        }
        if self.custody != before {
            report.kept_by(self.custody.keeper());
            self.tell();
        }
    }

    fn tell(&self) {
        let title = self.device.title();
        let (severity, text) = match self.custody {
            Custody::Kept => (
                Severity::Info,
                format!("the service manager keeps the watchdog {title} open, so the guard's death feeds it no more"),
            ),
            Custody::Lost => (
                Severity::Warning,
                format!(
                    "the service manager (pid 1) does not keep the watchdog {title} open: the guard closes it at the end of every permit instead. `leasehold timing` says what that means; `systemctl show -p FileDescriptorStoreMax,NFileDescriptorStore leasehold` must say 1 twice"
                ),
            ),
            Custody::Nothing | Custody::Given(_) => return,
        };
        self.record.say(severity, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> BootTime {
        BootTime::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn what_was_given_is_kept_only_once_pid_1_is_seen_to_have_it() {
        let given = Custody::Given(at(100));
        assert_eq!(given.looked(false, at(101)), given, "it may be on its way");
        assert_eq!(given.looked(true, at(101)), Custody::Kept);
        assert_eq!(given.looked(false, at(102)), Custody::Lost);
    }

    #[test]
    fn what_pid_1_no_longer_has_is_kept_by_nobody_from_then_on() {
        assert_eq!(Custody::Kept.looked(false, at(101)), Custody::Lost);
        assert_eq!(Custody::Lost.looked(true, at(102)), Custody::Kept, "it was late");
        assert_eq!((Custody::Lost.keeper(), Custody::Kept.keeper()), (Keeper::Nobody, Keeper::FdStore));
    }

    #[test]
    fn what_is_on_its_way_is_not_closed_for_it_could_never_be_opened_again() {
        assert_eq!(Custody::Given(at(100)).keeper(), Keeper::FdStore);
    }

    #[test]
    fn who_has_a_device_open_without_having_been_given_it_does_not_keep_it() {
        assert_eq!(Custody::Nothing.looked(true, at(100)), Custody::Nothing);
    }
}
