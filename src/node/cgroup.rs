//! A domain's own cgroup: QEMU is in it, and the helpers that libvirt started for it (virtiofsd, swtpm, pr-helper), which
//! write too and are not QEMU's children.

use super::cgroup_mounts::{Kind, domains_own, hierarchies};
use super::process::{self, Process, is_vanished};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use super::cgroup_mounts::Mounts;

/// How often a legacy hierarchy is read again for processes that were born while the others were killed.
const ROUNDS: usize = 16;
/// How deep below a domain's cgroup is looked. libvirt makes two levels.
const DEPTH: usize = 8;

/// A domain's own cgroup in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    kind: Kind,
    /// As /proc/PID/cgroup names it.
    controllers: String,
    path: String,
    directory: PathBuf,
    /// Kernfs does not use a number again: a directory of the same name made later, for another start, has another.
    inode: u64,
}

/// A domain's own cgroup in every hierarchy that has one. Empty when QEMU stays in libvirtd's own cgroup
/// (`cgroup_controllers = []`): then its helpers are not known and nothing is killed or waited for here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainCgroup {
    places: Vec<Place>,
    /// Cgroups that exist and are not visible from here.
    hidden: Vec<String>,
}

/// A process found in a domain's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its pid; 0 for one that is not visible from here (another pid namespace).
    pub pid: i32,
    /// Its short name, empty when it has just vanished.
    pub comm: String,
}

impl DomainCgroup {
    /// The domain's cgroup that this process is in. One call reads the mount table; [`DomainCgroup::within`] saves that.
    ///
    /// # Errors
    /// `NotFound` when there is no such process; an unreadable /proc.
    pub fn of(pid: i32) -> io::Result<DomainCgroup> {
        DomainCgroup::within(pid, &Mounts::read()?)
    }

    /// The domain's cgroup that this process is in.
    ///
    /// # Errors
    /// `NotFound` when there is no such process; an unreadable /proc.
    pub fn within(pid: i32, mounts: &Mounts) -> io::Result<DomainCgroup> {
        let mut cgroup = DomainCgroup::default();
        for (controllers, path) in hierarchies(&cgroup_file(pid)?) {
            let Some(own) = domains_own(path) else { continue };
            match mounts.directory(controllers, own) {
                Some(directory) => match fs::metadata(&directory) {
                    Ok(metadata) => cgroup.places.push(Place {
                        kind: if controllers.is_empty() { Kind::Unified } else { Kind::Legacy },
                        controllers: controllers.to_owned(),
                        path: own.to_owned(),
                        directory,
                        inode: metadata.ino(),
                    }),
                    Err(error) if is_vanished(&error) => {}
                    Err(error) => return Err(error),
                },
                // A hierarchy that nobody mounted holds nothing that matters: cgroup v2 beside a pure v1 set-up.
                None if !mounts.has(controllers) => {}
                None => cgroup.hidden.push(own.to_owned()),
            }
        }
        Ok(cgroup)
    }

    /// Whether the domain has no cgroup of its own.
    pub fn is_none(&self) -> bool {
        self.places.is_empty() && self.hidden.is_empty()
    }

    /// SIGKILL for everything in the domain's cgroup: at once through `cgroup.kill` where that exists (cgroup v2, Linux
    /// 5.14), and one by one until nothing new turns up. Never pid 1, never this process, never libvirt's daemon: if one
    /// of these is in there, the others are killed one by one. Returns how many processes were told to die.
    ///
    /// # Errors
    /// The first of what went wrong, after everything else was tried. A cgroup that is gone is no error.
    pub fn kill_all(&self) -> io::Result<usize> {
        self.kill_all_beside(None)
    }

    /// As [`DomainCgroup::kill_all`], after this process was told to die already, which saves looking at it again.
    pub(super) fn kill_all_beside(&self, told_already: Option<i32>) -> io::Result<usize> {
        let mut told: BTreeSet<i32> = told_already.into_iter().collect();
        let mut first_error = Ok(());
        for place in &self.places {
            if let Err(error) = place.kill_all(&mut told) {
                first_error = first_error.and(Err(error));
            }
        }
        first_error.map(|()| told.len() - usize::from(told_already.is_some()))
    }

    /// Whether nothing lives in the domain's cgroup any more, down to the last thread in state D. A cgroup that is gone is
    /// empty, and so is none.
    ///
    /// # Errors
    /// It cannot be told: a file cannot be read, or the cgroup is not visible from here.
    pub fn is_empty(&self) -> io::Result<bool> {
        if let Some(hidden) = self.hidden.first() {
            return Err(io::Error::other(format!(
                "the cgroup {hidden} is not visible from the guard's mount namespace"
            )));
        }
        for place in &self.places {
            if !place.is_empty()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The processes in it, for a message and for their traces. At most a few: libvirt puts QEMU and its helpers there.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn members(&self) -> io::Result<Vec<Member>> {
        let mut members = BTreeMap::new();
        for place in &self.places {
            let Some(root) = place.pin()? else { continue };
            for file in ["cgroup.procs", if place.kind == Kind::Unified { "cgroup.threads" } else { "tasks" }] {
                for pid in numbers_below(&root.path(), file)? {
                    // A thread's number names its process only through the process's own entry.
                    let leader = leader_of(pid);
                    members.entry(leader).or_insert_with(|| process::comm_of(leader).unwrap_or_default());
                }
            }
        }
        Ok(members.into_iter().map(|(pid, comm)| Member { pid, comm }).collect())
    }
}

/// /proc/PID/cgroup, by a thread that lives: a dead leader is shown in the root.
fn cgroup_file(pid: i32) -> io::Result<String> {
    let tid = process::living_task(pid)?.unwrap_or(pid);
    let text = super::files::read_all_of(File::open(format!("/proc/{pid}/task/{tid}/cgroup"))?, 1 << 20)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The process that a thread belongs to; itself when that cannot be told.
fn leader_of(tid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok()).unwrap_or(tid)
}

/// An open cgroup directory: what is done below it is done to this cgroup, not to a later one of the same name.
struct Pinned(File);

impl Pinned {
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

impl Place {
    /// `None` when the cgroup is gone.
    fn pin(&self) -> io::Result<Option<Pinned>> {
        match File::open(&self.directory) {
            Ok(directory) => Ok((directory.metadata()?.ino() == self.inode).then_some(Pinned(directory))),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_empty(&self) -> io::Result<bool> {
        let Some(root) = self.pin()? else { return Ok(true) };
        match self.kind {
            Kind::Unified => match read_file(&root.path().join("cgroup.events"))? {
                Some(events) => Ok(events.lines().any(|line| line == "populated 0")),
                None => Ok(true),
            },
            // `cgroup.procs` does not show a dead leader with a living thread, `tasks` shows the thread.
            Kind::Legacy => Ok(numbers_below(&root.path(), "cgroup.procs")?.is_empty()
                && numbers_below(&root.path(), "tasks")?.is_empty()),
        }
    }

    /// Tells everything here to die that `told` does not name yet, and adds it.
    fn kill_all(&self, told: &mut BTreeSet<i32>) -> io::Result<()> {
        let Some(root) = self.pin()? else { return Ok(()) };
        let root_path = root.path();
        let mut present = numbers_below(&root_path, "cgroup.procs")?;
        let mut first_error = Ok(());
        let mut at_once = false;
        if self.kind == Kind::Unified && !present.iter().any(|pid| !told.contains(pid) && is_spared(*pid)) {
            match kill_at_once(&root_path) {
                Ok(killed) => at_once = killed,
                Err(error) => first_error = Err(error),
            }
        }
        // Each one is told by itself too: `cgroup.kill` misses a process whose leader has ended while another thread runs on
        // (seen on Linux 6.18).
        for _ in 0..ROUNDS {
            if present.is_empty() {
                present = self.leaders_by_thread(&root_path)?;
            }
            let fresh: Vec<i32> =
                present.into_iter().filter(|&pid| pid > 0 && !told.contains(&pid) && !is_spared(pid)).collect();
            for &pid in &fresh {
                told.insert(pid);
                first_error = first_error.and(self.kill_member(pid));
            }
            // What was killed at once has no children born meanwhile.
            if fresh.is_empty() || at_once {
                break;
            }
            present = numbers_below(&root_path, "cgroup.procs")?;
        }
        if self.kind == Kind::Legacy {
            thaw(&root_path);
        }
        first_error
    }

    /// `cgroup.procs` does not show a process whose leader has ended while another thread runs on.
    fn leaders_by_thread(&self, root: &Path) -> io::Result<Vec<i32>> {
        let threads = if self.kind == Kind::Unified { "cgroup.threads" } else { "tasks" };
        Ok(numbers_below(root, threads)?.into_iter().map(leader_of).collect())
    }

    /// Kills by pidfd, once it is sure that the pid is still the process that was listed.
    fn kill_member(&self, pid: i32) -> io::Result<()> {
        let process = match Process::open(pid) {
            Err(error) if is_vanished(&error) => return Ok(()),
            process => process?,
        };
        let inside = match cgroup_file(pid) {
            Err(error) if is_vanished(&error) => return Ok(()),
            text => hierarchies(&text?).any(|(controllers, path)| {
                controllers == self.controllers
                    && path.strip_prefix(&self.path).is_some_and(|below| below.is_empty() || below.starts_with('/'))
            }),
        };
        if inside { process.kill() } else { Ok(()) }
    }
}

/// Kills all below through `cgroup.kill`; false when this kernel has no such file, or the cgroup is gone.
fn kill_at_once(root: &Path) -> io::Result<bool> {
    // Not `fs::write`: creating a file in a cgroup is refused with another error than its absence.
    match OpenOptions::new().write(true).open(root.join("cgroup.kill")).and_then(|mut file| file.write_all(b"1")) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whom no kill of a cgroup may reach, whoever put them there.
fn is_spared(pid: i32) -> bool {
    pid == 1
        || pid == std::process::id() as i32
        || process::comm_of(pid).is_ok_and(|comm| super::libvirt::is_daemon_name(&comm))
}

/// A frozen process of a legacy hierarchy does not die before it is thawed; in cgroup v2 it does.
fn thaw(directory: &Path) {
    let state = directory.join("freezer.state");
    if fs::read_to_string(&state).is_ok_and(|state| state.trim() != "THAWED") {
        // Failing leaves it alive, which the pidfd will tell.
        let _ = fs::write(state, "THAWED");
    }
}

/// The numbers in this file of a cgroup and of all below it.
fn numbers_below(directory: &Path, file: &str) -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    collect_numbers(directory, file, DEPTH, &mut numbers)?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

fn collect_numbers(directory: &Path, file: &str, depth: usize, numbers: &mut Vec<i32>) -> io::Result<()> {
    if let Some(text) = read_file(&directory.join(file))? {
        numbers.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    // The processes of a threaded subtree are all listed at its top, and cannot be read below.
    if file == "cgroup.procs"
        && read_file(&directory.join("cgroup.type"))?.is_some_and(|kind| kind.trim() == "domain threaded")
    {
        return Ok(());
    }
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if depth == 0 {
                return Err(io::Error::other(format!("{}: cgroups nested too deep", directory.display())));
            }
            collect_numbers(&entry.path(), file, depth - 1, numbers)?;
        }
    }
    Ok(())
}

/// `None` when the cgroup is gone.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(1 << 20).read_to_string(&mut text)) {
        Err(error) if is_gone(&error) => Ok(None),
        // A threaded cgroup lists its processes at the top of the threaded subtree only.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
        Ok(_) => Ok(Some(text)),
    }
}

/// Whether an error of a cgroup file means only that the cgroup was removed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests;
