//! The node's configuration: `/etc/leasehold/leasehold.toml`. docs/operating.md is the reference for people.
//!
//! Nothing unknown, misspelt or out of range is passed over: a safety setting that is silently not in force is worse
//! than a daemon that does not start.

mod diagnosis;
mod endpoint;
mod secret;
mod section;
pub mod span;
mod watchdog;

pub use diagnosis::ConfigError;
pub use endpoint::Endpoint;
pub use secret::read_token;
pub use section::KEYS;
pub use watchdog::Device;

use crate::lease::id::{DomainId, NodeId};
use crate::lease::policy::{Lapse, Policy, Rule, Unkillable};
use crate::lease::timing::{Profile, Timing, TimingFault, Watchdog};
use crate::node::host::host_name;
use crate::protocol::Mode;
use diagnosis::Source;
use section::{Placed, Section};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is unless `--config` says otherwise.
pub const PATH: &str = "/etc/leasehold/leasehold.toml";
/// The largest file read, in bytes.
pub const MAX_SIZE: u64 = 1 << 20;
/// The most endpoints: each is asked side by side, and eight is more than any cluster of controllers needs.
pub const MAX_ENDPOINTS: usize = 8;
/// The most `[[rule]]` tables.
pub const MAX_RULES: usize = 1000;

/// A node's whole configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This node's id; the host's name where the file says nothing.
    pub node: NodeId,
    /// Whether the guard acts on what it decides.
    pub mode: Mode,
    /// The profile that [`Config::timing`] started from.
    pub profile: Profile,
    /// The timeline, valid by [`Timing::validate`].
    pub timing: Timing,
    /// `[unkillable] action`.
    pub unkillable: Unkillable,
    /// `[watchdog]`.
    pub watchdog: watchdog::Watchdog,
    /// Where leases come from.
    pub contact: Contact,
    /// What becomes of a domain whose lease ran out, unless a rule says otherwise.
    pub lapse: Lapse,
    /// In the file's order: the first that matches wins.
    pub rules: Vec<Rule>,
    /// What becomes of a start with a disk that goes through the host's page cache.
    pub host_cached_disks: HostCachedDisks,
    /// How long the hook may take before it refuses, 200 ms to 60 s. libvirt itself has no limit (virProcessWait).
    pub hook_deadline: Duration,
    /// Where libvirt is.
    pub libvirt: Libvirt,
    /// Ledger and socket; a tmpfs, so that nothing in it survives a reboot.
    pub run_dir: PathBuf,
    /// Fence records and the machine's key.
    pub state_dir: PathBuf,
}

/// `[admission] host_cached_disks`. Which disks these are: [`crate::disks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostCachedDisks {
    /// They start, and nothing is said of them.
    Allow,
    /// They start; the log and `leasehold status` name them.
    Warn,
    /// They do not start.
    Refuse,
}

/// `[contact]`, kind `native`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// 1 to [`MAX_ENDPOINTS`] controllers, tried side by side.
    pub endpoints: Vec<Endpoint>,
    /// The file with this node's bearer token ([`read_token`]).
    pub token_file: Option<PathBuf>,
    /// The certificate authority that signed the controllers' certificates, PEM.
    pub ca_file: Option<PathBuf>,
}

/// `[libvirt]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libvirt {
    /// For the polite destroy, by virsh.
    pub uri: String,
    /// Where libvirt keeps its domains' pid and status files.
    pub run_dir: PathBuf,
    /// Where libvirt looks for hooks.
    pub hooks_dir: PathBuf,
}

impl Config {
    /// Reads and checks a file. The host's name comes from the kernel where the file names no node.
    ///
    /// # Errors
    /// The whole diagnosis: place, line, caret, remedy.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let fail = |why: String| Err(ConfigError::whole(format!("cannot read {}: {why}", path.display())));
        let mut bytes = Vec::new();
        match File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut bytes)) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return fail("there is no such file; docs/operating.md shows one to start from".to_owned());
            }
            Err(cause) => return fail(cause.to_string()),
            Ok(_) if bytes.len() as u64 > MAX_SIZE => return fail(format!("it is larger than {MAX_SIZE} bytes")),
            Ok(_) => {}
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Config::parse(text, path, host_name),
            Err(wrong) => {
                let line = bytes[..wrong.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
                fail(format!("line {line} is no UTF-8 text"))
            }
        }
    }

    /// Checks the text of a file; `path` is only for messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path, host_name: impl FnOnce() -> Option<String>) -> Result<Config, ConfigError> {
        let source = Source { path, text };
        let table = toml::de::DeTable::parse(text).map_err(|error| {
            let first = error.message().lines().next().unwrap_or("no TOML").to_owned();
            source.at(error.span().unwrap_or(0..0), first)
        })?;
        let root = Section::root(source, table.get_ref())?;
        let profiles = [("default", Profile::Default), ("fast", Profile::Fast)];
        let profile = root.choice("profile", &profiles)?.map_or(Profile::Default, |placed| placed.value);
        let contact = contact(&root)?;
        claims(&root)?;
        let libvirt = root.table("libvirt")?;
        Ok(Config {
            node: node(&root, host_name)?,
            mode: root
                .choice("mode", &[("enforce", Mode::Enforce), ("observe", Mode::Observe)])?
                .map_or(Mode::Enforce, |placed| placed.value),
            profile,
            timing: timing(&root, profile)?,
            unkillable: root
                .table("unkillable")?
                .choice("action", &[("reset", Unkillable::Reset), ("report", Unkillable::Report)])?
                .map_or(Unkillable::Reset, |placed| placed.value),
            watchdog: watchdog::watchdog(&root)?,
            contact,
            lapse: root.table("lapse")?.choice("action", LAPSES)?.map_or(Lapse::Kill, |placed| placed.value),
            rules: root.tables("rule", MAX_RULES)?.iter().map(rule).collect::<Result<_, _>>()?,
            host_cached_disks: root
                .table("admission")?
                .choice("host_cached_disks", HOST_CACHED_DISKS)?
                .map_or(HostCachedDisks::Warn, |placed| placed.value),
            hook_deadline: hook_deadline(&root)?,
            libvirt: Libvirt {
                uri: uri(&libvirt)?,
                run_dir: libvirt.path("run_dir")?.unwrap_or_else(|| "/run/libvirt/qemu".into()),
                hooks_dir: libvirt.path("hooks_dir")?.unwrap_or_else(|| "/etc/libvirt/hooks".into()),
            },
            run_dir: root.path("run_dir")?.unwrap_or_else(|| "/run/leasehold".into()),
            state_dir: root.path("state_dir")?.unwrap_or_else(|| "/var/lib/leasehold".into()),
        })
    }

    /// The lease core's part of it. It promises a bound only once the watchdog is armed.
    pub fn policy(&self) -> Policy {
        Policy {
            node: self.node.clone(),
            observe: self.mode == Mode::Observe,
            timing: self.timing,
            rules: self.rules.clone(),
            lapse: self.lapse,
            unkillable: self.unkillable,
            bound: None,
        }
    }

    /// Whether a watchdog is asked for, and so a bound will be promised.
    pub fn watchdog_wanted(&self) -> Watchdog {
        match self.watchdog.device {
            _ if self.mode == Mode::Observe => Watchdog::None,
            Device::None => Watchdog::None,
            Device::Auto | Device::Path(_) | Device::Identity(_) => Watchdog::Armed,
        }
    }
}

impl Config {
    /// The bound this node will promise with W as configured and so much to be relied on; `None`: receipts only.
    pub fn bound(&self, assured: Watchdog) -> Option<Duration> {
        let assured = if self.unkillable == Unkillable::Report { Watchdog::None } else { assured };
        if self.watchdog.strict { self.timing.bound_if_feed_stops(assured) } else { self.timing.bound(assured) }
    }
}
const HOST_CACHED_DISKS: &[(&str, HostCachedDisks)] =
    &[("warn", HostCachedDisks::Warn), ("refuse", HostCachedDisks::Refuse), ("allow", HostCachedDisks::Allow)];

const LAPSES: &[(&str, Lapse)] = &[("kill", Lapse::Kill), ("hold", Lapse::Hold)];

fn node(root: &Section<'_>, host_name: impl FnOnce() -> Option<String>) -> Result<NodeId, ConfigError> {
    if let Some(placed) = root.parsed("node", str::parse::<NodeId>)? {
        return Ok(placed.value);
    }
    let host = host_name().unwrap_or_default();
    match host.parse() {
        // Cloned images all answer to this: two of them would be one node to the controller.
        Ok(_) if host == "localhost" => {
            Err(root.missing("node", "the host is called localhost, as many are; name this node"))
        }
        Ok(node) => Ok(node),
        Err(why) => Err(root.missing("node", &format!("and the host's name will not do ({why}); name this node"))),
    }
}

fn timing(root: &Section<'_>, profile: Profile) -> Result<Timing, ConfigError> {
    let (lease, watchdog) = (root.table("lease")?, root.table("watchdog")?);
    let base = Timing::profile(profile);
    let timing = Timing {
        ttl: lease.span("ttl")?.unwrap_or(base.ttl),
        renew: lease.span("renew")?.unwrap_or(base.renew),
        polite: lease.span("polite")?.unwrap_or(base.polite),
        watchdog: watchdog.span("timeout")?.unwrap_or(base.watchdog),
        drift_ppm: lease.number("drift_ppm")?.unwrap_or(base.drift_ppm),
        margin: lease.span("margin")?.unwrap_or(base.margin),
    };
    timing.validate().map_err(|fault| {
        // The value most likely meant stands first; one that the profile gave has no place in the file.
        use TimingFault::*;
        let guilty: &[&str] = match fault {
            OutOfRange { what: "watchdog timeout", .. } | WatchdogFraction(_) => &["timeout"],
            OutOfRange { what, .. } => &[what],
            Drift(_) => &["drift_ppm"],
            RenewNotBelowTtl { .. } | NoRoomForALostAnswer { .. } => &["renew", "ttl", "polite"],
            PoliteTooLong { .. } => &["polite", "ttl", "renew"],
            FeedTooLong { .. } => &["timeout", "ttl"],
            MarginTooSmall { .. } => &["margin", "drift_ppm", "ttl", "timeout"],
        };
        let places = [
            ("ttl", &lease),
            ("renew", &lease),
            ("polite", &lease),
            ("drift_ppm", &lease),
            ("margin", &lease),
            ("timeout", &watchdog),
        ];
        let place = guilty.iter().find_map(|key| {
            let (key, section) = places.iter().find(|(name, _)| name == key)?;
            section.place(key)
        });
        root.refuse(place.or(root.place("profile")).unwrap_or(0..0), fault)
    })?;
    Ok(timing)
}

fn native(section: &Section<'_>) -> Result<(), ConfigError> {
    let parse = |text: &str| match text {
        "native" => Ok(()),
        other => Err(format!("'{}' is not in this version, which has \"native\" only", other.escape_debug())),
    };
    section.parsed("kind", parse).map(|_| ())
}

fn contact(root: &Section<'_>) -> Result<Contact, ConfigError> {
    let section = root.table("contact")?;
    let example = "endpoints = [\"https://10.0.0.5:7470\"]";
    if !section.is_present() {
        return Err(root.missing("contact", &format!("say who renews the leases: [contact], and in it {example}")));
    }
    native(&section)?;
    let plain_allowed = section.flag("allow_plain_http")?.unwrap_or(false);
    let Some(list) = section.strings("endpoints")? else {
        return Err(section.missing("endpoints", &format!("say who renews the leases: {example}")));
    };
    if list.value.is_empty() || list.value.len() > MAX_ENDPOINTS {
        let said = format!("{} endpoints; there must be 1 to {MAX_ENDPOINTS}", list.value.len());
        return Err(section.refuse(list.at, said));
    }
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for Placed { value, at } in list.value {
        let endpoint = Endpoint::parse(&value).map_err(|why| section.refuse(at.clone(), why))?;
        if !endpoint.tls && !endpoint.is_loopback() && !plain_allowed {
            return Err(section.refuse(
                at,
                "plain http would carry this node's token readable, and anybody on the way could renew or end leases; \
                 use https, or say allow_plain_http = true on a network that only the cluster is on",
            ));
        }
        if endpoints.contains(&endpoint) {
            return Err(section.refuse(at, "the same endpoint twice; each must be another way to the controllers"));
        }
        endpoints.push(endpoint);
    }
    Ok(Contact { endpoints, token_file: section.path("token_file")?, ca_file: section.path("ca_file")? })
}

/// `[claims]` is accepted where it says what is so without it: that claims come from the contact's source.
fn claims(root: &Section<'_>) -> Result<(), ConfigError> {
    native(&root.table("claims")?)
}

fn rule(section: &Section<'_>) -> Result<Rule, ConfigError> {
    let name = section.parsed("name", |text| {
        let good = !text.is_empty() && text.chars().count() <= 256;
        if good { Ok(text.to_owned()) } else { Err("a name pattern has 1 to 256 characters") }
    })?;
    let uuid = section.parsed("uuid", str::parse::<DomainId>)?;
    if name.is_none() && uuid.is_none() {
        return Err(
            section.missing("name", "say which domains the rule is for: name = \"scratch-*\", or uuid = \"...\"")
        );
    }
    let Some(lapse) = section.choice("lapse", LAPSES)? else {
        return Err(section.missing("lapse", "say what the rule does: lapse = \"hold\", or \"kill\""));
    };
    Ok(Rule { name: name.map(|placed| placed.value), domain: uuid.map(|placed| placed.value), lapse: lapse.value })
}

fn hook_deadline(root: &Section<'_>) -> Result<Duration, ConfigError> {
    let section = root.table("hook")?;
    let deadline = section.span("deadline")?.unwrap_or(Duration::from_secs(3));
    let (least, most) = (Duration::from_millis(200), Duration::from_secs(60));
    if !(least..=most).contains(&deadline) {
        let said = format!("deadline of {} is out of range; set it between 200ms and 60s", span::show(deadline));
        return Err(section.refuse(section.place("deadline").unwrap_or(0..0), said));
    }
    Ok(deadline)
}

fn uri(section: &Section<'_>) -> Result<String, ConfigError> {
    let parse = |text: &str| {
        let good = text.contains(':')
            && text.len() <= 512
            && text.chars().all(|c| c.is_ascii_graphic())
            && !text.starts_with('-');
        if good {
            Ok(text.to_owned())
        } else {
            Err(format!("'{}' is no libvirt URI, like qemu:///system", text.escape_debug()))
        }
    };
    Ok(section.parsed("uri", parse)?.map_or_else(|| "qemu:///system".to_owned(), |placed| placed.value))
}

#[cfg(test)]
mod tests;
