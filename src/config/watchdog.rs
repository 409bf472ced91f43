//! `[watchdog]`: which device, and what may be done with it.

use super::ConfigError;
use super::section::Section;
use crate::node::watchdog_list::Wanted;
use std::path::PathBuf;

/// `[watchdog]` but for its timeout, which is part of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watchdog {
    /// `device` or `identity`.
    pub device: Device,
    /// `allow_softdog`: a timer of this very kernel may do.
    pub allow_softdog: bool,
    /// `last_resort`: the kernel resets the host when the device should have and did not.
    pub last_resort: bool,
    /// `bound = "strict"`: the bound covers the two double faults of rule 5 too.
    pub strict: bool,
}

/// `[watchdog] device`, or `identity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// `"none"`: no bound, only receipts.
    None,
    /// `"auto"`: the only hardware device.
    Auto,
    /// A device file.
    Path(PathBuf),
    /// The driver's name for it (/sys/class/watchdog/*/identity).
    Identity(String),
}

impl Watchdog {
    /// The device asked for; `None`: none.
    pub fn wanted(&self) -> Option<Wanted> {
        match &self.device {
            Device::None => None,
            Device::Auto => Some(Wanted::Auto),
            Device::Path(path) => Some(Wanted::Path(path.clone())),
            Device::Identity(identity) => Some(Wanted::Identity(identity.clone())),
        }
    }
}

pub(super) fn watchdog(root: &Section<'_>) -> Result<Watchdog, ConfigError> {
    let section = root.table("watchdog")?;
    let parse = |text: &str| match text {
        "none" => Ok(Device::None),
        "auto" => Ok(Device::Auto),
        path if path.starts_with("/dev/") => Ok(Device::Path(path.into())),
        other => Err(format!(
            "'{}' is neither \"auto\", \"none\" nor a path under /dev; a device by its driver's name is [watchdog] identity",
            other.escape_debug()
        )),
    };
    let device = section.parsed("device", parse)?;
    let identity = section.string("identity")?;
    let device = match (device, identity) {
        (Some(_), Some(identity)) => {
            return Err(root.refuse(identity.at, "[watchdog] device and identity both name a device: give one"));
        }
        (Some(device), None) => device.value,
        (None, Some(identity)) => Device::Identity(identity.value),
        (None, None) => Device::None,
    };
    Ok(Watchdog {
        device,
        allow_softdog: section.flag("allow_softdog")?.unwrap_or(false),
        last_resort: section.flag("last_resort")?.unwrap_or(true),
        strict: section.choice("bound", &[("normal", false), ("strict", true)])?.is_some_and(|placed| placed.value),
    })
}
