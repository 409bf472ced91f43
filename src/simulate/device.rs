//! A watchdog as Linux presents one (drivers/watchdog/watchdog_dev.c): opening it, setting its timeout and closing it
//! without the magic 'V' all feed it. Its counter runs on the machine's own clock.

use crate::lease::gone::AllGone;
use crate::lease::time::BootTime;
use crate::node::watchdog::{ArmError, Watchdog};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

/// The least timeout it takes.
const SHORTEST: Duration = Duration::from_secs(1);

/// What the feed thread of one machine sees and does: its clock, the device, and the way around the device.
#[derive(Default)]
pub(super) struct Board {
    /// The machine's BOOTTIME as the feed thread reads it.
    pub now: Cell<BootTimeOrZero>,
    pub device: RefCell<Device>,
    /// The last resort was taken.
    pub sysrq: Cell<bool>,
}

/// [`BootTime`] with a default.
#[derive(Clone, Copy)]
pub(super) struct BootTimeOrZero(pub BootTime);

impl Default for BootTimeOrZero {
    fn default() -> Self {
        BootTimeOrZero(BootTime::ZERO)
    }
}

#[derive(Default)]
pub(super) struct Device {
    pub open: bool,
    /// The service manager has a duplicate.
    pub kept: bool,
    /// It fires then, unless it is fed before. `None`: it does not run.
    pub fires: Option<BootTime>,
    /// It counts and never resets anything.
    pub broken: bool,
    pub timeout: Duration,
    /// A guard that took it over does not know how short a timeout it takes.
    taken_over: bool,
}

impl Device {
    /// Every feed there is.
    fn feed(&mut self, now: BootTime) {
        self.fires = Some(now + self.timeout);
    }

    /// Its holder died. Whoever keeps a duplicate keeps it open; else the kernel closes it, and a close feeds.
    pub fn orphan(&mut self, now: BootTime) {
        if self.open && !self.kept {
            self.open = false;
            self.feed(now);
        }
        self.taken_over = self.open;
    }

    /// As after power-on.
    pub fn reset(&mut self) {
        *self = Device { broken: self.broken, ..Device::default() };
    }

    /// The machine slept, and its counter with it: the kernel starts it anew.
    pub fn woken(&mut self, now: BootTime) {
        if self.fires.is_some() {
            self.feed(now);
        }
    }
}

/// The model behind the feed thread's trait.
pub(super) struct Model(pub Rc<Board>);

impl Model {
    fn now(&self) -> BootTime {
        self.0.now.get().0
    }
}

impl Watchdog for Model {
    fn arm(&mut self, seconds: u32) -> Result<u32, ArmError> {
        let mut device = self.0.device.borrow_mut();
        (device.open, device.taken_over) = (true, false);
        device.timeout = Duration::from_secs(seconds.into());
        device.feed(self.now());
        Ok(seconds)
    }

    fn set_timeout(&mut self, seconds: u32) -> io::Result<u32> {
        let mut device = self.0.device.borrow_mut();
        device.timeout = Duration::from_secs(seconds.into());
        device.feed(self.now());
        Ok(seconds)
    }

    fn feed(&mut self) -> io::Result<()> {
        self.0.device.borrow_mut().feed(self.now());
        Ok(())
    }

    fn shortest(&self) -> Option<u32> {
        let device = self.0.device.borrow();
        (device.open && !device.taken_over && device.timeout > SHORTEST).then_some(SHORTEST.as_secs() as u32)
    }

    fn shorten(&mut self) -> io::Result<()> {
        let mut device = self.0.device.borrow_mut();
        if !device.taken_over && device.timeout > SHORTEST {
            device.timeout = SHORTEST;
            device.feed(self.now());
        }
        Ok(())
    }

    fn abandon(&mut self) {
        let mut device = self.0.device.borrow_mut();
        device.open = false;
        device.feed(self.now());
    }

    fn duplicate(&self) -> Option<OwnedFd> {
        None
    }

    fn disarm(&mut self, _proof: AllGone) -> io::Result<()> {
        let mut device = self.0.device.borrow_mut();
        (device.open, device.kept, device.fires) = (false, false, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_feeds_and_a_device_that_somebody_keeps_is_not_closed() {
        let at = |seconds| BootTime::ZERO + Duration::from_secs(seconds);
        let board = Rc::new(Board::default());
        let mut model = Model(board.clone());
        assert!(model.arm(10).is_ok());
        assert_eq!(board.device.borrow().fires, Some(at(10)));
        board.device.borrow_mut().kept = true;
        board.device.borrow_mut().orphan(at(4));
        assert_eq!(board.device.borrow().fires, Some(at(10)));
        board.device.borrow_mut().kept = false;
        board.device.borrow_mut().orphan(at(4));
        assert_eq!(board.device.borrow().fires, Some(at(14)));
    }
}
