//! Is our hook installed, and does libvirt run it? Libvirt itself fails open: a hook that is missing, dangling or not
//! executable is passed over without a word, and one installed while the daemon runs is not seen before a reload (rule 10).

use super::clock;
use super::hook_files::{Hooks, View, own_path};
use super::process::started;
use crate::lease::id::ProcessKey;
use crate::lease::time::BootTime;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

/// Where libvirt looks for hooks. Compiled into it; NixOS has /var/lib/libvirt/hooks.
pub const HOOKS_DIR: &str = "/etc/libvirt/hooks";
/// The name under which we install the hook, in `qemu.d`.
pub const HOOK_NAME: &str = "leasehold-hook";
/// Process start times are rounded down to 10 ms (proc_pid_stat(5), field 22).
const START_TICK: Duration = Duration::from_millis(10);

/// Why domains may start without leasehold being asked. Paths are as libvirt's daemon sees them: where that is another
/// mount namespace they begin with `/proc/PID/root`, and commands work on them all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookFault {
    /// None of libvirt's hooks is this binary.
    Missing(PathBuf),
    /// The link leads nowhere.
    Dangling(PathBuf),
    /// Nobody may execute it.
    NotExecutable(PathBuf),
    /// It came, or became executable, after the daemon, which has not called it yet. A reload since then cannot be seen;
    /// the hook's first call can.
    NotInForce {
        /// The hook.
        hook: PathBuf,
        /// The daemon's pid.
        daemon: i32,
    },
    /// The files are in order, and a domain was started all the same by a daemon that has never called the hook.
    PassedBy {
        /// The hook.
        hook: PathBuf,
        /// The daemon's pid.
        daemon: i32,
        /// The domain that was started, for people.
        domain: String,
        /// Its process.
        process: i32,
    },
    /// The directory or a hook cannot be looked at.
    Unreadable {
        /// What.
        path: PathBuf,
        /// Why.
        cause: String,
    },
}

impl HookFault {
    pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> HookFault {
        let path = path.to_owned();
        |cause| HookFault::Unreadable { path, cause: cause.to_string() }
    }
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
                "libvirt may start domains without asking leasehold: the hook {} is newer than libvirt's daemon (pid {daemon}), which has not called it yet; run 'systemctl reload libvirtd' (or virtqemud). The next start of a domain then clears this",
                hook.display()
            ),
            HookFault::PassedBy { hook, daemon, domain, process } => write!(
                f,
                "libvirt starts domains without asking leasehold: domain {domain} (process {process}) was started, and libvirt's daemon (pid {daemon}) has never called the hook {}, which is in order. Reload the daemon; if that does not help it looks for hooks elsewhere: find out where and set hooks_dir under [libvirt] in leasehold.toml",
                hook.display()
            ),
            HookFault::Unreadable { path, cause } => {
                write!(f, "cannot tell whether libvirt asks leasehold: {}: {cause}", path.display())
            }
        }
    }
}

impl std::error::Error for HookFault {}

/// A domain's process that a scan found.
#[derive(Debug, Clone)]
pub struct Newcomer {
    /// The process.
    pub process: ProcessKey,
    /// Its domain, for people.
    pub domain: String,
}

/// Looks again and again, and remembers what a single look cannot see.
#[derive(Debug)]
pub struct Auditor {
    hooks_dir: PathBuf,
    /// Since when the files have been in order, as far as was looked.
    in_order: Option<BootTime>,
    /// Since when there has been no hook at all that can run: a daemon that starts meanwhile calls none before a reload.
    none_since: Option<BootTime>,
    /// A daemon that started while there was none.
    blind: Option<ProcessKey>,
    /// A daemon that has called our hook.
    heard: Option<ProcessKey>,
    passed_by: Option<(ProcessKey, Newcomer)>,
}

impl Auditor {
    /// `hooks_dir`: where libvirt looks for hooks, [`HOOKS_DIR`].
    pub fn new(hooks_dir: impl Into<PathBuf>) -> Auditor {
        Auditor {
            hooks_dir: hooks_dir.into(),
            in_order: None,
            none_since: None,
            blind: None,
            heard: None,
            passed_by: None,
        }
    }

    /// Looks whether one of libvirt's QEMU hooks (`qemu` and `qemu.d/*`) is the running binary, or what has replaced it in its
    /// place since it started, and is executable and in force, as libvirt's daemon sees it.
    ///
    /// `daemon`: libvirt's daemon, if one runs. `caller`: the daemon that called our hook last, if any did. `youngest`: the
    /// domain's process that started last.
    ///
    /// # Errors
    /// The fault that is nearest to being none.
    pub fn audit(
        &mut self,
        daemon: Option<ProcessKey>,
        caller: Option<ProcessKey>,
        youngest: Option<&Newcomer>,
    ) -> Result<(), HookFault> {
        if daemon.is_some() && caller == daemon {
            self.heard = daemon;
        }
        let now = clock::now();
        let found = self.look(now, daemon);
        let in_order = if found.is_ok() { *self.in_order.get_or_insert(now) } else { now };
        if found.is_err() {
            self.in_order = None;
        }
        let (hook, older) = found?;
        let Some(daemon) = daemon else { return Ok(()) };
        if self.heard == Some(daemon) {
            return Ok(());
        }
        // The daemon looks once whether there is any hook, and each time which there are.
        if !older || self.blind == Some(daemon) {
            return Err(HookFault::NotInForce { hook, daemon: daemon.pid });
        }
        let asked_nobody = youngest.filter(|new| started(new.process) > in_order.max(started(daemon)));
        if let Some(new) = asked_nobody {
            self.passed_by.get_or_insert((daemon, new.clone()));
        }
        match &self.passed_by {
            Some((by, new)) if *by == daemon => Err(HookFault::PassedBy {
                hook,
                daemon: daemon.pid,
                domain: new.domain.clone(),
                process: new.process.pid,
            }),
            _ => Ok(()),
        }
    }

    /// Our hook, and whether any hook is older than the daemon.
    fn look(&mut self, now: BootTime, daemon: Option<ProcessKey>) -> Result<(PathBuf, bool), HookFault> {
        let view = View::of(daemon).map_err(HookFault::unreadable(&self.hooks_dir))?;
        let hooks = Hooks::read(&view, &self.hooks_dir)?;
        let none = !hooks.any_executable();
        let since = if none { Some(*self.none_since.get_or_insert(now)) } else { self.none_since.take() };
        if let (Some(daemon), Some(since)) = (daemon, since)
            && started(daemon) + START_TICK >= since
        {
            self.blind = Some(daemon);
        }
        let hook = hooks.ours()?.ok_or_else(|| HookFault::Missing(view.shown(&self.hooks_dir.join("qemu.d"))))?;
        Ok((hook, daemon.is_none_or(|daemon| hooks.any_older_than(daemon))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::process::key_of;
    use crate::node::testing::Child;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn audit(dir: &Path, daemon: Option<ProcessKey>, caller: Option<ProcessKey>) -> Result<(), HookFault> {
        Auditor::new(dir).audit(daemon, caller, None)
    }

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

    #[test]
    fn a_hook_that_could_not_run_when_the_daemon_started_is_not_in_force_when_it_can_again() {
        let dir = hooks();
        let hook = dir.path().join("qemu.d/leasehold-hook");
        // Its time says nothing: the link is older than the daemon.
        symlink("/proc/self/exe", &hook).unwrap();
        let aside = dir.path().join("aside");
        let mut auditor = Auditor::new(dir.path());
        auditor.audit(None, None, None).unwrap();
        fs::rename(&hook, &aside).unwrap();
        assert!(matches!(auditor.audit(None, None, None), Err(HookFault::Missing(_))));
        let daemon = Child::sleeping();
        let daemon = key_of(daemon.pid()).unwrap();
        let earlier = ProcessKey { started: daemon.started - 1_000, ..daemon };
        let later = ProcessKey { started: daemon.started + 1_000, ..daemon };
        assert!(matches!(auditor.audit(Some(later), None, None), Err(HookFault::Missing(_))));
        fs::rename(&aside, &hook).unwrap();
        assert!(matches!(auditor.audit(Some(later), None, None), Err(HookFault::NotInForce { .. })));
        auditor.audit(Some(later), Some(later), None).expect("it has called it");
        auditor.audit(Some(later), Some(earlier), None).expect("and that stays true when another calls");
    }

    #[test]
    fn a_domain_started_by_a_daemon_that_never_called_the_hook_was_started_past_it() {
        let dir = hooks();
        symlink("/proc/self/exe", dir.path().join("qemu.d/x")).unwrap();
        let child = Child::sleeping();
        let daemon = key_of(child.pid()).unwrap();
        // Younger than the hook, so that the hook was there when it started.
        let daemon = ProcessKey { started: daemon.started + 100, ..daemon };
        let newcomer = |after: u64| Newcomer {
            process: ProcessKey { pid: 7, started: daemon.started + after },
            domain: "web-1".into(),
        };
        let mut auditor = Auditor::new(dir.path());
        auditor.audit(Some(daemon), None, Some(&newcomer(0))).expect("it may have started before us");
        let fault = auditor.audit(Some(daemon), None, Some(&newcomer(10_000))).unwrap_err().to_string();
        assert!(fault.contains("web-1 (process 7)") && fault.contains("hooks_dir"), "{fault}");
        auditor.audit(Some(daemon), None, None).expect_err("also once that domain is dead");
        auditor.audit(Some(daemon), Some(daemon), Some(&newcomer(10_000))).expect("it calls");
    }
}
