//! The second way down: this kernel is told to reset the machine, when the watchdog should have and did not.

use super::sys;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// Opened beforehand, so that the reset itself needs no path, no memory and no disk.
#[derive(Debug)]
pub struct LastResort(Option<File>);

impl LastResort {
    /// Opens /proc/sysrq-trigger, which root may write whatever kernel.sysrq says (drivers/tty/sysrq.c,
    /// `write_sysrq_trigger` does not look at the mask). Without it reboot(2) is left.
    pub fn new() -> LastResort {
        LastResort(OpenOptions::new().write(true).open("/proc/sysrq-trigger").ok())
    }

    /// Resets the machine at once: sysrq `b`, then reboot(2) without a sync. What is in the page cache is lost, and is
    /// meant to be.
    ///
    /// # Errors
    /// Both failed; the error is reboot(2)'s.
    pub fn reset(&mut self) -> io::Result<()> {
        if let Some(trigger) = &mut self.0 {
            // It returns only if it failed.
            let _ = trigger.write(b"b");
        }
        sys::reboot()
    }
}

impl Default for LastResort {
    fn default() -> LastResort {
        LastResort::new()
    }
}
