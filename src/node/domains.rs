//! Which domains run here, found without libvirtd.
//!
//! Three ways, each for what the others miss: a sweep of /proc finds what libvirt has forgotten; libvirt's state files find a
//! QEMU whose binary has another name; and what was found once stays found until its pidfd says that it exited, since a
//! QEMU with one thread in state D loses its command line, and libvirt removes its files, long before it is dead.

use super::cgroup::{DomainCgroup, Mounts};
use super::command_line::{self, NamedByArguments};
use super::process::{self, Process, is_vanished};
use super::state_files::StateFiles;
use crate::lease::id::{DomainId, ProcessKey};
use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

pub use super::state_files::RunState;

/// Where the system's libvirt keeps its state files.
pub const RUN_DIR: &str = "/run/libvirt/qemu";

/// One process of a domain. A domain may have several: one that will not die and its successor.
#[derive(Debug, Clone)]
pub struct DomainProcess {
    /// The domain.
    pub domain: DomainId,
    /// Its libvirt name, for people.
    pub name: String,
    /// Its QEMU.
    pub process: Arc<Process>,
    /// Whether its virtual CPUs run, as libvirt last wrote it.
    pub run_state: RunState,
    /// Its own cgroup, where QEMU's helpers are too.
    pub cgroup: DomainCgroup,
}

/// Why a scan is not whole. What it would have found is not known; nothing may be concluded from what it misses.
#[derive(Debug)]
pub struct ScanError {
    object: PathBuf,
    cause: io::Error,
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot tell which domains run here: {}: {}", self.object.display(), self.cause)?;
        match self.cause.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => write!(f, "; the guard needs root"),
            Some(libc::EMFILE) => write!(f, "; raise LimitNOFILE= in the guard's unit"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ScanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

fn at(object: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ScanError {
    let object = object.into();
    |cause| ScanError { object, cause }
}

/// Finds domains, and remembers what it found until it is dead.
#[derive(Debug)]
pub struct Finder {
    files: StateFiles,
    run_dir: PathBuf,
    found: HashMap<i32, DomainProcess>,
}

impl Finder {
    /// `run_dir`: libvirt's directory of state files, [`RUN_DIR`] for the system's. It need not exist.
    pub fn new(run_dir: impl Into<PathBuf>) -> Finder {
        let run_dir = run_dir.into();
        Finder { files: StateFiles::new(run_dir.clone()), run_dir, found: HashMap::new() }
    }

    /// Goes on holding a process that an earlier guard knew. A leader that is dead with a living thread has no command
    /// line any more, so no scan would find it. False: there is no such process any more.
    pub fn remember(&mut self, domain: DomainId, name: &str, key: ProcessKey) -> bool {
        let Ok(process) = Process::open(key.pid) else { return false };
        if process.key() != key {
            return false;
        }
        // Its group is read again by every scan; what cannot be read now may be readable then.
        let cgroup = cgroup_of(key.pid, &mut None).unwrap_or_default();
        let (name, process, run_state) = (name.to_owned(), Arc::new(process), RunState::Unknown);
        self.found.insert(key.pid, DomainProcess { domain, name, process, run_state, cgroup });
        true
    }

    /// A whole scan: every domain's process that lives now, by uuid and pid.
    ///
    /// # Errors
    /// The scan is not whole: /proc or the state files cannot be read. What vanishes meanwhile is no error.
    pub fn scan(&mut self) -> Result<Vec<DomainProcess>, ScanError> {
        self.found.retain(|_, domain| !domain.process.has_exited());
        self.files.refresh().map_err(at(&self.run_dir))?;
        let mut mounts = None;
        for pid in pids()? {
            if !self.found.contains_key(&pid) && may_be_qemu(pid)? {
                self.identify(pid, &mut mounts)?;
            }
        }
        for pid in self.files.pids().collect::<Vec<_>>() {
            if !self.found.contains_key(&pid) {
                self.identify(pid, &mut mounts)?;
            }
        }
        self.refresh_found(&mut mounts)?;
        let mut domains: Vec<DomainProcess> = self.found.values().cloned().collect();
        domains.sort_unstable_by_key(|domain| (domain.domain, domain.process.pid()));
        Ok(domains)
    }

    /// Takes a process into `found` if it is a domain's.
    fn identify(&mut self, pid: i32, mounts: &mut Option<Mounts>) -> Result<(), ScanError> {
        let process = match Process::open(pid) {
            Err(error) if is_vanished(&error) => return Ok(()),
            process => process.map_err(at(format!("/proc/{pid}")))?,
        };
        let arguments = command_line::read(pid).map_err(at(format!("/proc/{pid}/cmdline")))?;
        let named = match command_line::parse(&arguments) {
            Some(named) => named,
            // Its arguments do not tell. A pid in a file is no identity: the process must be a QEMU by its name as well.
            None => match self.files.domain_of(pid).map_err(at(&self.run_dir))? {
                Some((domain, name)) if may_be_qemu(pid)? => NamedByArguments { domain, name },
                _ => return Ok(()),
            },
        };
        let cgroup = cgroup_of(pid, mounts)?;
        // All this was read by pid; it is of this process only if it still holds the pid.
        if !process.has_exited() {
            let process = Arc::new(process);
            let run_state = RunState::Unknown;
            self.found
                .insert(pid, DomainProcess { domain: named.domain, name: named.name, process, run_state, cgroup });
        }
        Ok(())
    }

    /// What may change while a process runs.
    fn refresh_found(&mut self, mounts: &mut Option<Mounts>) -> Result<(), ScanError> {
        let states = self.files.run_states();
        for (pid, domain) in &mut self.found {
            domain.run_state = states.get(pid).copied().unwrap_or(RunState::Unknown);
            // libvirt moves QEMU into its cgroup before it runs; an empty answer costs little to ask again.
            if domain.cgroup.is_none() {
                domain.cgroup = cgroup_of(*pid, mounts)?;
            }
        }
        Ok(())
    }
}

fn cgroup_of(pid: i32, mounts: &mut Option<Mounts>) -> Result<DomainCgroup, ScanError> {
    let mounts = match mounts {
        Some(mounts) => mounts,
        None => mounts.insert(Mounts::read().map_err(at("/proc/self/mountinfo"))?),
    };
    match DomainCgroup::within(pid, mounts) {
        Err(error) if is_vanished(&error) => Ok(DomainCgroup::default()),
        cgroup => cgroup.map_err(at(format!("/proc/{pid}/cgroup"))),
    }
}

/// Every pid in /proc.
fn pids() -> Result<Vec<i32>, ScanError> {
    let mut pids = Vec::with_capacity(512);
    for entry in fs::read_dir("/proc").map_err(at("/proc"))? {
        let name = entry.map_err(at("/proc"))?.file_name();
        if name.as_bytes().first().is_some_and(u8::is_ascii_digit) {
            pids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    Ok(pids)
}

/// Whether a process's name or binary is like a QEMU's: a cheap sieve, and one that takes no lock of the process. Reading the
/// command line of every process would hang the scan on any one that is stuck in a page fault.
fn may_be_qemu(pid: i32) -> Result<bool, ScanError> {
    let like =
        |name: &[u8]| [b"qemu".as_slice(), b"kvm"].iter().any(|part| name.windows(part.len()).any(|w| w == *part));
    match process::comm_of(pid) {
        Ok(comm) if like(comm.as_bytes()) => return Ok(true),
        Err(error) if !is_vanished(&error) => return Err(at(format!("/proc/{pid}/comm"))(error)),
        Err(_) => return Ok(false),
        Ok(_) => {}
    }
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(binary) => Ok(like(name_of(&binary))),
        // A kernel thread, or dead.
        Err(error) if is_vanished(&error) => Ok(false),
        // Forbidden, by a security module or without CAP_SYS_PTRACE; the name has told already.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        // Too long to tell: look closer.
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(true),
        Err(error) => Err(at(format!("/proc/{pid}/exe"))(error)),
    }
}

fn name_of(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{Child, skipped, thread_cpu_time};

    const LIBVIRTS: &[&str] = &["-S", "-no-user-config", "-uuid"];

    fn arguments<'a>(name: &'a str, uuid: &'a str) -> Vec<&'a str> {
        [&["-name", name], LIBVIRTS, &[uuid]].concat()
    }

    fn found(finder: &mut Finder, uuid: &str) -> Option<DomainProcess> {
        let domain: DomainId = uuid.parse().unwrap();
        finder.scan().unwrap().into_iter().find(|process| process.domain == domain)
    }

    fn root() -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            skipped("scanning needs root");
        }
        root
    }

    #[test]
    fn a_libvirt_qemu_is_found_without_any_state_file_and_lost_only_by_its_death() {
        if !root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let uuid = "7d1f3f0a-0000-4000-8000-000000000001";
        let mut child = Child::posing_as_qemu(dir.path(), "qemu-system-x86_64", &arguments("guest=a,,b & 'q'", uuid));
        let mut finder = Finder::new(dir.path().join("none"));
        let domain = found(&mut finder, uuid).expect("found");
        assert_eq!((domain.name.as_str(), domain.process.pid()), ("a,b & 'q'", child.pid()));
        assert_eq!(domain.run_state, RunState::Unknown);
        domain.process.kill().unwrap();
        child.wait_exited(&domain.process);
        assert!(found(&mut finder, uuid).is_none(), "a zombie that exited whole is not a running domain");
        child.reap();
    }

    #[test]
    fn a_binary_of_another_name_is_found_by_the_pid_file() {
        if !root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let uuid = "7d1f3f0a-0000-4000-8000-000000000002";
        let child = Child::posing_as_qemu(dir.path(), "emulator", &arguments("guest=x", uuid));
        let mut finder = Finder::new(dir.path());
        assert!(found(&mut finder, uuid).is_none());
        fs::write(dir.path().join("x.pid"), child.pid().to_string()).unwrap();
        fs::write(dir.path().join("x.xml"), format!("<domstatus state='running' pid='{}'>", child.pid())).unwrap();
        assert_eq!(found(&mut finder, uuid).expect("found").run_state, RunState::Running);
        fs::remove_file(dir.path().join("x.pid")).unwrap();
        fs::remove_file(dir.path().join("x.xml")).unwrap();
        assert_eq!(found(&mut finder, uuid).expect("still there").run_state, RunState::Unknown);
    }

    #[test]
    fn a_pid_file_that_names_somebody_else_makes_nobody_a_domain() {
        if !root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let uuid = "7d1f3f0a-0000-4000-8000-000000000003";
        let child = Child::posing_as_qemu(dir.path(), "qemu-kvm", &["-hda", "mine.img"]);
        fs::write(dir.path().join("x.pid"), child.pid().to_string()).unwrap();
        let status = format!("<domstatus state='running' pid='{}'><domain><uuid>{uuid}</uuid>", child.pid());
        fs::write(dir.path().join("x.xml"), status).unwrap();
        assert!(found(&mut Finder::new(dir.path()), uuid).is_none(), "it holds no lock on x.pid");
    }

    #[test]
    fn a_scan_of_three_hundred_processes_takes_less_than_ten_milliseconds() {
        if !root() {
            return;
        }
        let children: Vec<Child> = (0..300).map(|_| Child::sleeping()).collect();
        let mut finder = Finder::new("/nonexistent");
        finder.scan().unwrap();
        let fastest = (0..10)
            .map(|_| {
                let start = thread_cpu_time();
                finder.scan().unwrap();
                thread_cpu_time() - start
            })
            .min()
            .unwrap();
        assert!(fastest.as_millis() < 10, "{fastest:?} for {} processes and more", children.len());
    }
}
