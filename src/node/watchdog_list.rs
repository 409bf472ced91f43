//! Which watchdogs this machine has, and which one is used. Opens none of them: sysfs and /proc tell all that can be
//! told without starting one (Documentation/ABI/testing/sysfs-class-watchdog). What sysfs does not list (a driver without
//! the watchdog core) or does not describe (a kernel without WATCHDOG_SYSFS) has no identity here.

use super::files;
use super::process;
use super::watchdog::{CARDRESET, MAGICCLOSE};
use crate::lease::fence_story::BootStatus;
use serde::Serialize;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// softdog's identity (drivers/watchdog/softdog.c): a timer of this very kernel, which dies with it.
pub const SOFTDOG: &str = "Software Watchdog";
/// The device number of /dev/watchdog (misc device, Documentation/admin-guide/devices.txt): the old name of the core's
/// first device, or a driver without the core.
const LEGACY: (u64, u64) = (10, 130);

/// One watchdog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its device file.
    pub path: PathBuf,
    /// The driver's name for it; `None`: its driver tells sysfs nothing.
    pub identity: Option<String>,
    /// `active` or `inactive`.
    pub state: Option<String>,
    /// Seconds.
    pub timeout: Option<u32>,
    /// Seconds until it fires, where the driver can tell.
    pub timeleft: Option<u32>,
    /// Whether no close stops it.
    pub nowayout: bool,
    /// WDIOF_* flags of what it can do.
    pub options: Option<u32>,
    /// WDIOF_* flags of why the machine was last reset.
    pub bootstatus: Option<u32>,
    /// Who has it open.
    pub holders: Vec<Holder>,
}

/// A process that has a watchdog open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its pid.
    pub pid: i32,
    /// Its short name.
    pub name: String,
}

impl Found {
    /// A device of which nothing but its node is known.
    pub fn unknown(path: PathBuf) -> Found {
        Found {
            path,
            identity: None,
            state: None,
            timeout: None,
            timeleft: None,
            nowayout: false,
            options: None,
            bootstatus: None,
            holders: Vec::new(),
        }
    }

    fn is_softdog(&self) -> bool {
        self.identity.as_deref() == Some(SOFTDOG)
    }

    /// Its path and what it is, for people.
    pub fn title(&self) -> String {
        format!("{} ({})", self.path.display(), self.identity.as_deref().unwrap_or("identity unknown"))
    }
}

/// What the configuration asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The only hardware device.
    Auto,
    /// The device with this path.
    Path(PathBuf),
    /// The only device with this identity.
    Identity(String),
}

/// All watchdogs of this machine.
///
/// # Errors
/// /sys/class/watchdog is there and cannot be read.
pub fn list() -> io::Result<Vec<Found>> {
    list_in(Path::new("/sys/class/watchdog"), Path::new("/dev"))
}

fn list_in(class: &Path, dev: &Path) -> io::Result<Vec<Found>> {
    let (mut found, mut listed) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(class) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        entries => Some(entries?),
    };
    for entry in entries.into_iter().flatten() {
        let entry = entry?;
        let attribute = |name: &str| {
            let bytes = files::read_bounded(&entry.path().join(name), 256).ok()?;
            Some(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        let number = |name: &str| parse(&attribute(name)?);
        listed.extend(attribute("dev").and_then(|text| {
            let (major, minor) = text.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        }));
        found.push(Found {
            path: dev.join(entry.file_name()),
            identity: attribute("identity"),
            state: attribute("state"),
            timeout: number("timeout"),
            timeleft: number("timeleft"),
            nowayout: number("nowayout") == Some(1),
            options: number("options"),
            bootstatus: number("bootstatus"),
            holders: Vec::new(),
        });
    }
    if found.iter().any(|device: &Found| device.path.ends_with("watchdog0")) {
        listed.push(LEGACY);
    }
    for entry in fs::read_dir(dev)?.flatten() {
        let path = entry.path();
        let named = entry.file_name().to_str().and_then(|name| name.strip_prefix("watchdog")).is_some_and(is_number);
        let unlisted = || device_number(&path).is_some_and(|number| !listed.contains(&number));
        if named && unlisted() && found.iter().all(|device: &Found| device.path != path) {
            found.push(Found::unknown(path));
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    for device in &mut found {
        device.holders = holders(&device.path);
    }
    Ok(found)
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What the devices of this host say of its last reset: any of them.
pub fn boot_status() -> BootStatus {
    let found = list().unwrap_or_default();
    match found.iter().any(|device| device.bootstatus.is_some_and(|flags| flags & CARDRESET != 0)) {
        true => BootStatus::ResetByWatchdog,
        false => BootStatus::Silent,
    }
}

/// Decimal, or hexadecimal with 0x as `options` and `bootstatus` print it.
fn parse(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn device_number(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    let number = metadata.rdev();
    metadata.file_type().is_char_device().then(|| (nix::sys::stat::major(number), nix::sys::stat::minor(number)))
}

/// By their open files.
fn holders(path: &Path) -> Vec<Holder> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holding = pids.filter(|&pid| has_open(pid, path));
    holding.map(|pid| Holder { pid, name: process::comm_of(pid).unwrap_or_default() }).collect()
}

/// Whether a process is seen to have this device open; /dev/watchdog and /dev/watchdog0 are one under two numbers. A device
/// is opened by one at a time (drivers/watchdog/watchdog_dev.c, WDOG_HW_OPEN), so two that have it share one open file.
pub fn has_open(pid: i32, path: &Path) -> bool {
    let names = [Some(path.to_owned()), (path.ends_with("watchdog0")).then(|| path.with_file_name("watchdog"))];
    let is_it = |link: PathBuf| names.iter().flatten().any(|name| *name == link);
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(is_it))
}

/// The device that is behind an open descriptor, by its device number.
pub fn opened(found: &[Found], open: &OwnedFd) -> Found {
    let number = |path: &Path| fs::metadata(path).map(|node| node.rdev()).ok();
    let its = number(&PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())));
    let is_it = |device: &&Found| its.is_some() && number(&device.path) == its;
    found.iter().find(is_it).cloned().unwrap_or_else(|| Found::unknown(PathBuf::from("/dev/watchdog")))
}

/// The device to use: the one asked for, otherwise the only hardware device. Never a guess.
///
/// # Errors
/// None fits, or more than one does; which there are and what to write into the configuration.
pub fn choose(found: &[Found], wanted: &Wanted, allow_softdog: bool) -> Result<Found, String> {
    let fits = |device: &&Found| match wanted {
        Wanted::Auto => !device.is_softdog(),
        Wanted::Path(path) => device.path == *path,
        Wanted::Identity(identity) => device.identity.as_ref() == Some(identity),
    };
    let fitting: Vec<&Found> = found.iter().filter(fits).collect();
    let all = || match found {
        [] => "this machine shows none; is its driver loaded?".to_owned(),
        found => format!("there are {}", found.iter().map(Found::title).collect::<Vec<_>>().join(", ")),
    };
    let device = match (fitting.as_slice(), wanted) {
        ([device], _) => *device,
        ([], Wanted::Auto) if allow_softdog && found.len() == 1 => &found[0],
        ([], Wanted::Auto) => return Err(format!("no hardware watchdog: {}", all())),
        ([], Wanted::Path(path)) => return Err(format!("no watchdog {}: {}", path.display(), all())),
        ([], Wanted::Identity(identity)) => {
            return Err(format!("no watchdog with the identity '{}': {}", identity.escape_debug(), all()));
        }
        (_, _) => return Err(format!("more than one watchdog: {}; name one in [watchdog] device", all())),
    };
    if device.is_softdog() && !allow_softdog {
        return Err(format!(
            "{} is a timer of this very kernel and dies with it; [watchdog] allow_softdog = true uses it all the same",
            device.title()
        ));
    }
    if device.options.is_some_and(|options| options & MAGICCLOSE == 0) && !device.nowayout {
        return Err(format!(
            "{} is stopped by any close, so the guard's death would disarm it; load its driver with nowayout=1 or use another",
            device.title()
        ));
    }
    Ok(device.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, identity: &str, options: u32) -> Found {
        Found {
            path: Path::new("/dev").join(name),
            identity: Some(identity.to_owned()),
            state: Some("inactive".to_owned()),
            timeout: Some(30),
            timeleft: None,
            nowayout: false,
            options: Some(options),
            bootstatus: Some(0),
            holders: vec![],
        }
    }

    #[test]
    fn the_only_hardware_device_is_chosen_and_nothing_is_ever_guessed() {
        let (esb, ipmi, soft) = (
            device("watchdog0", "i6300ESB timer", 0x8180),
            device("watchdog1", "IPMI", 0x8180),
            device("watchdog2", SOFTDOG, 0x8180),
        );
        let choose = |found: &[&Found], wanted, softdog| {
            choose(&found.iter().map(|found| (*found).clone()).collect::<Vec<_>>(), &wanted, softdog)
                .map(|found| found.path)
        };
        assert_eq!(choose(&[&esb, &soft], Wanted::Auto, false), Ok(esb.path.clone()));
        assert_eq!(choose(&[&soft], Wanted::Auto, true), Ok(soft.path.clone()));
        assert_eq!(choose(&[&esb, &ipmi], Wanted::Identity("IPMI".into()), false), Ok(ipmi.path.clone()));
        assert_eq!(choose(&[&esb, &ipmi], Wanted::Path(esb.path.clone()), false), Ok(esb.path.clone()));
        for (found, wanted, said) in [
            (
                vec![&esb, &ipmi],
                Wanted::Auto,
                "more than one watchdog: there are /dev/watchdog0 (i6300ESB timer), /dev/watchdog1 (IPMI)",
            ),
            (vec![&soft], Wanted::Auto, "no hardware watchdog"),
            (vec![&soft], Wanted::Path(soft.path.clone()), "allow_softdog"),
            (vec![], Wanted::Auto, "is its driver loaded?"),
            (vec![&esb], Wanted::Path("/dev/watchdog7".into()), "no watchdog /dev/watchdog7"),
        ] {
            let error = choose(&found, wanted, false).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_driver_that_any_close_stops_is_refused_unless_nothing_stops_it() {
        let bad = device("watchdog0", "ancient", 0x8080);
        assert!(choose(std::slice::from_ref(&bad), &Wanted::Auto, false).unwrap_err().contains("any close"));
        assert!(choose(&[Found { nowayout: true, ..bad }], &Wanted::Auto, false).is_ok());
    }

    #[test]
    fn what_sysfs_says_is_read_and_what_it_does_not_say_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let class = dir.path().join("class");
        fs::create_dir_all(class.join("watchdog0")).unwrap();
        for (name, value) in [
            ("identity", "i6300ESB timer\n"),
            ("timeout", "30\n"),
            ("options", "0x8180\n"),
            ("bootstatus", "32\n"),
            ("nowayout", "0\n"),
            ("state", "active\n"),
        ] {
            fs::write(class.join("watchdog0").join(name), value).unwrap();
        }
        let found = list_in(&class, dir.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].options, found[0].bootstatus, found[0].timeleft), (Some(0x8180), Some(32), None));
        assert_eq!(found[0].state.as_deref(), Some("active"));
        assert_eq!(list_in(&dir.path().join("none"), dir.path()).unwrap(), []);
    }

    #[test]
    fn the_device_behind_a_descriptor_is_told_by_its_number_and_not_by_what_is_configured() {
        let open = |path: &str| OwnedFd::from(fs::File::open(path).unwrap());
        let found = ["/dev/null", "/dev/zero"].map(|path| Found::unknown(path.into()));
        assert_eq!(opened(&found, &open("/dev/zero")).path, Path::new("/dev/zero"));
        assert_eq!(opened(&found, &open("/dev/full")).path, Path::new("/dev/watchdog"), "none that is listed");
    }

    #[test]
    fn who_has_a_device_open_is_seen_by_its_descriptors() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = std::process::id() as i32;
        assert!(has_open(own, file.path()));
        let path = file.into_temp_path();
        assert!(!has_open(own, &path), "it is closed");
    }

    #[test]
    fn a_device_that_sysfs_does_not_list_is_there_without_an_identity_and_none_is_there_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (class, dev) = (dir.path().join("class"), dir.path().join("dev"));
        fs::create_dir_all(class.join("watchdog1")).unwrap();
        fs::create_dir_all(&dev).unwrap();
        // /dev/null is (1, 3) and /dev/zero (1, 5).
        fs::write(class.join("watchdog1/dev"), "1:5\n").unwrap();
        for (name, target) in [
            ("watchdog", "/dev/null"),
            ("watchdog1", "/dev/zero"),
            ("watchdog7", "/dev/zero"),
            ("watchdogd", "/dev/null"),
        ] {
            std::os::unix::fs::symlink(target, dev.join(name)).unwrap();
        }
        fs::write(dev.join("watchdog3"), "no device").unwrap();
        let found = list_in(&class, &dev).unwrap();
        let shown: Vec<_> =
            found.iter().map(|device| device.path.strip_prefix(&dev).unwrap().to_str().unwrap()).collect();
        assert_eq!(shown, ["watchdog", "watchdog1"]);
        assert!(found.iter().all(|device| device.identity.is_none()));
    }
}
