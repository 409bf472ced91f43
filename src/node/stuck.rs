//! What a process that will not die waits for: its threads in state D, and the files and storage behind them.
//!
//! Everything comes from /proc, and nothing of it asks the storage: a stat(2) or an open(2) of a file on storage that is
//! away would hang whoever wants to tell that it is.

use super::cgroup_mounts::unescape;
use super::files;
use super::process::{self, stat_at};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// The most of a process's open files that are named when its system call does not tell which one it waits for.
const NAMED: usize = 3;

/// A thread in state D: no signal reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckThread {
    /// Its process.
    pub pid: i32,
    /// Its thread id.
    pub tid: i32,
    /// Its short name.
    pub comm: String,
    /// The kernel function it waits in (/proc/PID/task/TID/wchan), empty when the kernel does not tell.
    pub waits_in: String,
    /// The file its system call is about; where that does not tell (io_uring, a page fault, an exit), files it may be:
    /// those that its process has open on storage.
    pub files: Vec<OpenFile>,
}

/// A file that a process has open, and what is behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    /// As the process sees it.
    pub path: PathBuf,
    /// Its file system, or the file that a loop device is made of; empty when that cannot be told.
    pub storage: String,
}

impl fmt::Display for StuckThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} ({}) is in state D", self.tid, self.comm.escape_debug())?;
        if !self.waits_in.is_empty() {
            write!(f, " in {}", self.waits_in)?;
        }
        for (at, file) in self.files.iter().enumerate() {
            write!(f, "{}{file}", if at == 0 { ", at " } else { " or " })?;
        }
        Ok(())
    }
}

impl fmt::Display for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.storage.is_empty() { Ok(()) } else { write!(f, " ({})", self.storage) }
    }
}

/// The threads of a process that are in state D now. Empty when that cannot be seen: it is for a message.
pub fn stuck_threads(pid: i32) -> Vec<StuckThread> {
    let mut stuck = Vec::new();
    for tid in process::tasks_of(pid).unwrap_or_default() {
        let task = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        if stat_at(&task.join("stat")).is_ok_and(|stat| stat.state == 'D') {
            let text = |name| read(&task.join(name)).unwrap_or_default();
            stuck.push(StuckThread {
                pid,
                tid,
                comm: text("comm").trim_end().to_owned(),
                // The kernel writes "0" when it does not tell.
                waits_in: text("wchan").trim_matches('0').to_owned(),
                files: waited_for(&task),
            });
        }
    }
    stuck
}

/// Whether the process's leader is dead: it was told to die, and only threads that no signal reaches keep it.
pub fn has_dead_leader(pid: i32) -> bool {
    stat_at(Path::new(&format!("/proc/{pid}/stat"))).is_ok_and(|stat| matches!(stat.state, 'Z' | 'X'))
}

fn waited_for(task: &Path) -> Vec<OpenFile> {
    let mounts = read(&task.join("mountinfo")).unwrap_or_default();
    let of_call = read(&task.join("syscall")).ok().and_then(|text| descriptor_of_call(&text));
    if let Some(file) = of_call.and_then(|number| open_file(task, number, &mounts)) {
        return vec![file];
    }
    let entries = fs::read_dir(task.join("fd")).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut files: Vec<OpenFile> = numbers.filter_map(|number| open_file(task, number, &mounts)).collect();
    files.retain(|file| !file.storage.is_empty());
    files.dedup();
    files.truncate(NAMED);
    files
}

/// The descriptor a blocked system call is about. proc_pid_syscall(5): its number, then its arguments in hexadecimal.
fn descriptor_of_call(text: &str) -> Option<i32> {
    use libc::*;
    const FIRST_IS_A_DESCRIPTOR: &[c_long] = &[
        SYS_read,
        SYS_write,
        SYS_pread64,
        SYS_pwrite64,
        SYS_readv,
        SYS_writev,
        SYS_preadv,
        SYS_pwritev,
        SYS_preadv2,
        SYS_pwritev2,
        SYS_fsync,
        SYS_fdatasync,
        SYS_sync_file_range,
        SYS_syncfs,
        SYS_fallocate,
        SYS_ftruncate,
        SYS_ioctl,
        SYS_lseek,
        SYS_fstat,
        SYS_fcntl,
        SYS_flock,
    ];
    let mut words = text.split_ascii_whitespace();
    let number: c_long = words.next()?.parse().ok()?;
    let first = words.next()?.strip_prefix("0x")?;
    FIRST_IS_A_DESCRIPTOR.contains(&number).then(|| i32::from_str_radix(first, 16).ok()).flatten()
}

/// `None` for what is no file: sockets, pipes, and what has no path.
fn open_file(task: &Path, number: i32, mounts: &str) -> Option<OpenFile> {
    let link = task.join(format!("fd/{number}"));
    let path = fs::read_link(&link).ok().filter(|path| path.is_absolute())?;
    let info = read(&task.join(format!("fdinfo/{number}"))).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    Some(OpenFile { path, storage: storage(&link, mount, mounts) })
}

/// What is behind an open file, by the number of its mount. proc_pid_mountinfo(5): `ID PARENT MAJ:MIN ROOT POINT OPTIONS
/// [TAG...] - TYPE SOURCE SUPER-OPTIONS`.
fn storage(link: &Path, mount: &str, mounts: &str) -> String {
    let Some((before, after)) =
        mounts.lines().find(|line| line.split(' ').next() == Some(mount)).and_then(|line| line.split_once(" - "))
    else {
        return String::new();
    };
    let (mut before, mut after) = (before.split(' ').skip(4), after.split(' '));
    let point = unescape(before.next().unwrap_or_default());
    let (kind, source) = (after.next().unwrap_or_default(), unescape(after.next().unwrap_or_default()));
    match kind {
        "devtmpfs" | "tmpfs" | "ramfs" | "hugetlbfs" => loop_behind(link).unwrap_or_default(),
        "proc" | "sysfs" | "devpts" | "cgroup" | "cgroup2" => String::new(),
        _ => format!("{kind} on {source}, mounted at {point}"),
    }
}

/// Only for a file in memory, such as a device node: a stat of it asks no storage.
fn loop_behind(link: &Path) -> Option<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = fs::metadata(link).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = metadata.rdev();
    let device = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
    Some(match read(Path::new(&format!("/sys/dev/block/{device}/loop/backing_file"))) {
        Ok(file) => format!("a loop device on {}", file.trim_end()),
        Err(_) => format!("block device {device}"),
    })
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = files::read_all_of(File::open(path)?, 1 << 20)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_call_tells_its_descriptor_and_one_that_is_about_none_does_not() {
        let call = |number: libc::c_long| format!("{number} 0x1b 0x7f00 0x1000 0x0 0x0 0x0 0x7ffe 0x7ff0\n");
        assert_eq!(descriptor_of_call(&call(libc::SYS_pwrite64)), Some(27));
        assert_eq!(descriptor_of_call(&call(libc::SYS_fdatasync)), Some(27));
        assert_eq!(descriptor_of_call(&call(libc::SYS_exit_group)), None);
        for other in ["running\n", "-1 0x7ffe 0x7ff0\n", ""] {
            assert_eq!(descriptor_of_call(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_open_file_is_told_with_its_file_system() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("disk image");
        let file = File::create(&path).unwrap();
        let task = PathBuf::from("/proc/thread-self");
        let mounts = read(&task.join("mountinfo")).unwrap();
        let told = open_file(&task, std::os::fd::AsRawFd::as_raw_fd(&file), &mounts).unwrap();
        assert_eq!(told.path, path);
        assert!(told.storage.contains(" on ") && told.storage.contains(", mounted at /"), "{told}");
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert_eq!(open_file(&task, std::os::fd::AsRawFd::as_raw_fd(&pipe), &mounts), None);
    }

    #[test]
    fn the_sentence_names_thread_function_file_and_storage() {
        let file = OpenFile { path: "/srv/web-1.raw".into(), storage: "ext4 on /dev/sdb, mounted at /srv".into() };
        let thread = StuckThread {
            pid: 7,
            tid: 9,
            comm: "worker".into(),
            waits_in: "percpu_rwsem_wait".into(),
            files: vec![file],
        };
        assert_eq!(
            thread.to_string(),
            "thread 9 (worker) is in state D in percpu_rwsem_wait, at /srv/web-1.raw (ext4 on /dev/sdb, mounted at /srv)"
        );
    }
}
