//! Is our hook installed, and does libvirt run it? Libvirt itself fails open: a hook that is missing, dangling or not
//! executable is passed over without a word, and one installed while the daemon runs is not seen before a reload (rule 10).

use super::clock;
use super::process::started;
use crate::lease::id::ProcessKey;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, io};

/// Where libvirt looks for hooks. Compiled into it; NixOS has /var/lib/libvirt/hooks.
pub const HOOKS_DIR: &str = "/etc/libvirt/hooks";
/// The name under which we install the hook, in `qemu.d`.
pub const HOOK_NAME: &str = "leasehold-hook";

/// Why domains may start without leasehold being asked.
#[derive(Debug)]
pub enum HookFault {
    /// None of libvirt's hooks is this binary.
    Missing(PathBuf),
    /// The link leads nowhere.
    Dangling(PathBuf),
    /// Nobody may execute it.
    NotExecutable(PathBuf),
    /// It came after the daemon, which has not called it yet. A reload since then cannot be seen; the hook's first call can.
    NotInForce {
        /// The hook.
        hook: PathBuf,
        /// The daemon's pid.
        daemon: i32,
    },
    /// The directory or a hook cannot be looked at.
    Unreadable {
        /// What.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl fmt::Display for HookFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookFault::Missing(directory) => write!(
                f,
                "libvirt starts domains without asking leasehold: no hook in {0}; run 'ln -s {1} {0}/{HOOK_NAME}' and reload libvirt's daemon",
                directory.display(),
                own_path().unwrap_or_else(|_| "leasehold".into()).display(),
            ),
            HookFault::Dangling(hook) => write!(
                f,
                "libvirt starts domains without asking leasehold: the hook {} is a link that leads nowhere; install the package again",
                hook.display()
            ),
            HookFault::NotExecutable(hook) => write!(
                f,
                "libvirt starts domains without asking leasehold: the hook {0} is not executable; run 'chmod +x {0}'",
                hook.display()
            ),
            HookFault::NotInForce { hook, daemon } => write!(
                f,
                "libvirt may start domains without asking leasehold: the hook {} is newer than libvirt's daemon (pid {daemon}), which has not called it yet; run 'systemctl reload libvirtd' (or virtqemud)",
                hook.display()
            ),
            HookFault::Unreadable { path, cause } => {
                write!(f, "cannot tell whether libvirt asks leasehold: {}: {cause}", path.display())
            }
        }
    }
}

impl std::error::Error for HookFault {}

/// Looks whether one of libvirt's QEMU hooks (`qemu` and `qemu.d/*` in `hooks_dir`) is the running binary, or what has replaced it
/// in its place since it started, and is executable and in force.
///
/// `daemon`: libvirt's daemon, if one runs. `caller`: the daemon that called our hook last, if any did.
///
/// # Errors
/// The fault that is nearest to being none.
pub fn audit(hooks_dir: &Path, daemon: Option<ProcessKey>, caller: Option<ProcessKey>) -> Result<(), HookFault> {
    let own = own_path().and_then(|path| Ok((path, fs::metadata("/proc/self/exe")?)));
    let (path, binary) = own.map_err(|cause| HookFault::Unreadable { path: "/proc/self/exe".into(), cause })?;
    let hooks = Hooks::read(hooks_dir)?;
    let hook = hooks.find(&path, &binary)?.ok_or_else(|| HookFault::Missing(hooks_dir.join("qemu.d")))?;
    match daemon {
        // It has called the hook: proof enough.
        Some(daemon) if caller == Some(daemon) => Ok(()),
        // The daemon looks once whether there is any hook, and each time which there are.
        Some(daemon) if !hooks.any_older_than(daemon) => Err(HookFault::NotInForce { hook, daemon: daemon.pid }),
        _ => Ok(()),
    }
}

/// The path of the running binary, also once another has taken its place.
fn own_path() -> io::Result<PathBuf> {
    let path = fs::read_link("/proc/self/exe")?;
    let replaced = path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.unwrap_or(path))
}

struct Hook {
    path: PathBuf,
    /// Of the directory entry itself.
    entry: Metadata,
    /// Of what it leads to; `None`: nowhere.
    target: Option<Metadata>,
}

struct Hooks(Vec<Hook>);

impl Hooks {
    fn read(hooks_dir: &Path) -> Result<Hooks, HookFault> {
        let mut paths = vec![hooks_dir.join("qemu")];
        let directory = hooks_dir.join("qemu.d");
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            |cause| HookFault::Unreadable { path, cause }
        };
        match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entries => {
                for entry in entries.map_err(unreadable(&directory))? {
                    paths.push(entry.map_err(unreadable(&directory))?.path());
                }
            }
        }
        paths.sort();
        let mut hooks = Vec::new();
        for path in paths {
            let entry = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entry => entry.map_err(unreadable(&path))?,
            };
            let target = match fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                target => Some(target.map_err(unreadable(&path))?),
            };
            hooks.push(Hook { path, entry, target });
        }
        Ok(Hooks(hooks))
    }

    /// Our hook, if it can run. An error if it is there and cannot.
    fn find(&self, own_path: &Path, own_binary: &Metadata) -> Result<Option<PathBuf>, HookFault> {
        let mut fault = Ok(None);
        for hook in &self.0 {
            match &hook.target {
                None if hook.path.ends_with(HOOK_NAME) || leads_to(&hook.path, own_path) => {
                    fault = Err(HookFault::Dangling(hook.path.clone()));
                }
                Some(target) if is_same(target, own_binary) || leads_to(&hook.path, own_path) => {
                    if is_executable(target) {
                        return Ok(Some(hook.path.clone()));
                    }
                    fault = Err(HookFault::NotExecutable(hook.path.clone()));
                }
                _ => {}
            }
        }
        fault
    }

    fn any_older_than(&self, daemon: ProcessKey) -> bool {
        let age = clock::now().since(started(daemon));
        let Some(daemon_started) = SystemTime::now().checked_sub(age) else { return true };
        self.0.iter().filter(|hook| hook.target.as_ref().is_some_and(is_executable)).any(|hook| {
            let changed = Duration::new(
                hook.entry.ctime().max(0).unsigned_abs(),
                hook.entry.ctime_nsec().max(0).unsigned_abs() as u32,
            );
            SystemTime::UNIX_EPOCH + changed <= daemon_started
        })
    }
}

/// As libvirt tests it: a regular file, and somebody may execute it.
fn is_executable(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Whether a path is, in the end, `own_path`: also when that is a new file under the old name, or none.
fn leads_to(hook: &Path, own_path: &Path) -> bool {
    if let Ok(end) = fs::canonicalize(hook) {
        return end == own_path;
    }
    fs::read_link(hook).is_ok_and(|target| hook.parent().unwrap_or(Path::new("/")).join(target) == own_path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::process::key_of;
    use crate::node::testing::Child;
    use std::os::unix::fs::symlink;

    fn hooks() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("qemu.d")).unwrap();
        dir
    }

    fn fault(dir: &tempfile::TempDir) -> String {
        audit(dir.path(), None, None).unwrap_err().to_string()
    }

    #[test]
    fn a_link_to_the_running_binary_is_our_hook_in_either_place() {
        for place in ["qemu", "qemu.d/leasehold-hook", "qemu.d/50-anything"] {
            let dir = hooks();
            symlink("/proc/self/exe", dir.path().join(place)).unwrap();
            audit(dir.path(), None, None).expect(place);
        }
    }

    #[test]
    fn without_a_hook_the_fault_says_how_to_make_one() {
        let dir = hooks();
        fs::write(dir.path().join("qemu"), "#!/bin/sh\n").unwrap();
        let text = fault(&dir);
        assert!(text.contains("no hook in") && text.contains("qemu.d/leasehold-hook' and reload"), "{text}");
        assert!(matches!(audit(Path::new("/nonexistent"), None, None), Err(HookFault::Missing(_))));
    }

    #[test]
    fn a_hook_that_nobody_may_execute_is_told_and_a_new_binary_in_the_old_place_is_ours() {
        let dir = hooks();
        let binary = dir.path().join("leasehold-binary");
        fs::write(&binary, "old").unwrap();
        let running = fs::metadata(&binary).unwrap();
        symlink(&binary, dir.path().join("qemu.d/x")).unwrap();
        let find = || Hooks::read(dir.path()).unwrap().find(&binary, &running);
        let text = find().unwrap_err().to_string();
        assert!(text.contains("not executable; run 'chmod +x"), "{text}");
        fs::write(dir.path().join("new"), "new").unwrap();
        fs::set_permissions(dir.path().join("new"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(dir.path().join("new"), &binary).unwrap();
        assert_eq!(find().unwrap(), Some(dir.path().join("qemu.d/x")));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_told() {
        let dir = hooks();
        symlink("/nonexistent/leasehold", dir.path().join("qemu.d/leasehold-hook")).unwrap();
        assert!(fault(&dir).contains("leads nowhere"));
        // What does not dangle decides.
        symlink("/proc/self/exe", dir.path().join("qemu.d/b")).unwrap();
        audit(dir.path(), None, None).unwrap();
    }

    #[test]
    fn a_hook_that_came_after_the_daemon_is_not_in_force_until_the_daemon_calls_it() {
        let dir = hooks();
        let daemon = Child::sleeping();
        let daemon = key_of(daemon.pid()).unwrap();
        // The file system's clock ticks in jiffies: install it until its time is later than the daemon's.
        let hook = dir.path().join("qemu.d/leasehold-hook");
        let later = clock::now() + Duration::from_secs(10);
        let verdict = loop {
            let _ = fs::remove_file(&hook);
            symlink("/proc/self/exe", &hook).unwrap();
            let verdict = audit(dir.path(), Some(daemon), None);
            if verdict.is_err() || clock::now() > later {
                break verdict;
            }
        };
        assert!(verdict.unwrap_err().to_string().contains("systemctl reload"));
        audit(dir.path(), Some(daemon), Some(daemon)).expect("the daemon has called it");
        let younger = ProcessKey { started: daemon.started + 1_000, ..daemon };
        audit(dir.path(), Some(younger), None).expect("the daemon is younger");
        audit(dir.path(), None, None).expect("no daemon");
    }
}
