//! libvirt's hook files, as libvirt's daemon sees them: in a container or behind a bind mount it has another /etc.

use super::clock;
use super::hook_audit::{HOOK_NAME, HookFault};
use super::process::{is_vanished, started};
use crate::lease::id::ProcessKey;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The path of the running binary, also once another has taken its place.
pub(super) fn own_path() -> io::Result<PathBuf> {
    let path = fs::read_link("/proc/self/exe")?;
    let replaced = path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.unwrap_or(path))
}

/// Files as a process sees them.
pub(super) struct View(Option<PathBuf>);

impl View {
    /// As this process sees them. Without one, or when it has ended: as we do.
    pub fn of(process: Option<ProcessKey>) -> io::Result<View> {
        let Some(process) = process else { return Ok(View(None)) };
        let space = match fs::read_link(format!("/proc/{}/ns/mnt", process.pid)) {
            Err(error) if is_vanished(&error) => return Ok(View(None)),
            space => space?,
        };
        let another = space != fs::read_link("/proc/self/ns/mnt")?;
        Ok(View(another.then(|| format!("/proc/{}/root", process.pid).into())))
    }

    /// A path of that process's as it can be used from here.
    pub fn shown(&self, path: &Path) -> PathBuf {
        let Some(root) = &self.0 else { return path.to_owned() };
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// What a path leads to in the end, and where that is. Links are followed as that process would: below its own root.
    fn follow(&self, path: &Path) -> io::Result<(Metadata, PathBuf)> {
        let Some(root) = &self.0 else { return Ok((fs::metadata(path)?, fs::canonicalize(path)?)) };
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        let end = File::from(openat2(File::open(root)?, path, how)?);
        Ok((end.metadata()?, fs::read_link(format!("/proc/self/fd/{}", end.as_raw_fd()))?))
    }
}

struct Hook {
    /// As the daemon names it.
    path: PathBuf,
    /// As it can be used from here.
    shown: PathBuf,
    /// Of the directory entry itself.
    entry: Metadata,
    /// Of what it leads to, and where that is; `None`: nowhere.
    target: Option<(Metadata, PathBuf)>,
}

/// Everything that libvirt would run at a domain's start.
pub(super) struct Hooks(Vec<Hook>);

impl Hooks {
    /// `qemu` and `qemu.d/*` in the directory.
    pub fn read(view: &View, hooks_dir: &Path) -> Result<Hooks, HookFault> {
        let mut paths = vec![hooks_dir.join("qemu")];
        let directory = hooks_dir.join("qemu.d");
        let shown = view.shown(&directory);
        match fs::read_dir(&shown) {
            Err(error) if is_vanished(&error) => {}
            entries => {
                for entry in entries.map_err(HookFault::unreadable(&shown))? {
                    paths.push(directory.join(entry.map_err(HookFault::unreadable(&shown))?.file_name()));
                }
            }
        }
        paths.sort();
        let mut hooks = Vec::new();
        for path in paths {
            let shown = view.shown(&path);
            let entry = match fs::symlink_metadata(&shown) {
                Err(error) if is_vanished(&error) => continue,
                entry => entry.map_err(HookFault::unreadable(&shown))?,
            };
            let target = match view.follow(&path) {
                Err(error) if is_vanished(&error) => None,
                target => Some(target.map_err(HookFault::unreadable(&shown))?),
            };
            hooks.push(Hook { path, shown, entry, target });
        }
        Ok(Hooks(hooks))
    }

    /// Our hook, if it can run. An error if it is there and cannot.
    pub fn ours(&self) -> Result<Option<PathBuf>, HookFault> {
        let own = own_path().and_then(|path| Ok((path, fs::metadata("/proc/self/exe")?)));
        let (path, binary) = own.map_err(HookFault::unreadable(Path::new("/proc/self/exe")))?;
        self.find(&path, &binary)
    }

    fn find(&self, own_path: &Path, own_binary: &Metadata) -> Result<Option<PathBuf>, HookFault> {
        let mut fault = Ok(None);
        for hook in &self.0 {
            match &hook.target {
                None if hook.path.ends_with(HOOK_NAME) || hook.links_to(own_path) => {
                    fault = Err(HookFault::Dangling(hook.shown.clone()));
                }
                Some((target, end)) if is_same(target, own_binary) || end == own_path => {
                    if is_executable(target) {
                        return Ok(Some(hook.shown.clone()));
                    }
                    fault = Err(HookFault::NotExecutable(hook.shown.clone()));
                }
                _ => {}
            }
        }
        fault
    }

    /// Whether there is any hook that libvirt would run.
    pub fn any_executable(&self) -> bool {
        self.0.iter().any(Hook::is_executable)
    }

    /// Whether any hook was there before this process.
    pub fn any_older_than(&self, daemon: ProcessKey) -> bool {
        let age = clock::now().since(started(daemon));
        let Some(daemon_started) = SystemTime::now().checked_sub(age) else { return true };
        self.0.iter().filter(|hook| hook.is_executable()).any(|hook| {
            let changed = Duration::new(
                hook.entry.ctime().max(0).unsigned_abs(),
                hook.entry.ctime_nsec().max(0).unsigned_abs() as u32,
            );
            SystemTime::UNIX_EPOCH + changed <= daemon_started
        })
    }
}

impl Hook {
    fn is_executable(&self) -> bool {
        self.target.as_ref().is_some_and(|(target, _)| is_executable(target))
    }

    /// Whether it is a link that names this path, whatever is there.
    fn links_to(&self, own_path: &Path) -> bool {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        fs::read_link(&self.shown).is_ok_and(|target| parent.join(target) == own_path)
    }
}

/// As libvirt tests it: a regular file, and somebody may execute it.
fn is_executable(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_hook_that_nobody_may_execute_is_told_and_a_new_binary_in_the_old_place_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("qemu.d")).unwrap();
        let binary = dir.path().join("leasehold-binary");
        fs::write(&binary, "old").unwrap();
        let running = fs::metadata(&binary).unwrap();
        symlink(&binary, dir.path().join("qemu.d/x")).unwrap();
        let find = || Hooks::read(&View(None), dir.path()).unwrap().find(&binary, &running);
        let text = find().unwrap_err().to_string();
        assert!(text.contains("not executable; run 'chmod +x"), "{text}");
        fs::write(dir.path().join("new"), "new").unwrap();
        fs::set_permissions(dir.path().join("new"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(dir.path().join("new"), &binary).unwrap();
        assert_eq!(find().unwrap(), Some(dir.path().join("qemu.d/x")));
    }

    #[test]
    fn links_are_followed_below_the_root_of_the_process_that_follows_them() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("hooks/qemu.d")).unwrap();
        fs::write(root.path().join("binary"), "").unwrap();
        symlink("/binary", root.path().join("hooks/qemu.d/x")).unwrap();
        let view = View(Some(root.path().to_owned()));
        let hooks = Hooks::read(&view, Path::new("/hooks")).unwrap();
        let running = fs::metadata(root.path().join("binary")).unwrap();
        let fault = hooks.find(Path::new("/usr/sbin/leasehold"), &running).unwrap_err();
        assert_eq!(fault, HookFault::NotExecutable(root.path().join("hooks/qemu.d/x")));
    }
}
