//! Files that the kernel still holds open for a process that is dead. A request that an io_uring has submitted keeps its file
//! open until it is done, and the process is reaped long before: measured (kernel 6.18), 4 ms after SIGKILL, with the write to
//! a block device still to come. What shows it are QEMU's locks: an open file description lock (fcntl_locking(2)) lives as
//! long as the open file, and QEMU takes some on every image and block device (block/file-posix.c, `raw_handle_perm_lock`).

use super::process::is_vanished;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The largest table of locks read: some 200 000.
const MAX_TABLE: usize = 16 << 20;

/// A file as the kernel's table of locks names it: `MAJOR:MINOR:INODE` of its file system.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockedFile(String);

/// An open file description lock in /proc/locks or in a descriptor's fdinfo (proc_locks(5)): its file, and the whole line
/// without its number. Other locks end with their process; one that is waited for (`->`) is none yet.
fn parse(line: &str) -> Option<(LockedFile, String)> {
    let (_, lock) = line.split_once(": ")?;
    let mut fields = lock.split_ascii_whitespace();
    (fields.next()? == "OFDLCK").then_some(())?;
    let file = fields.nth(3)?;
    Some((LockedFile(file.to_owned()), lock.split_ascii_whitespace().collect::<Vec<_>>().join(" ")))
}

/// The file that a descriptor has locked, by its fdinfo.
pub(super) fn locked(fdinfo: &str) -> Option<LockedFile> {
    fdinfo.lines().find_map(|line| Some(parse(line.strip_prefix("lock:")?)?.0))
}

/// Which of these files of dead processes are still open: they are locked more often than the living account for.
///
/// # Errors
/// /proc cannot be read.
pub(super) fn still_open(files: &BTreeMap<LockedFile, PathBuf>) -> io::Result<Vec<PathBuf>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let table = super::files::read_all_of(File::open("/proc/locks")?, MAX_TABLE)?;
    let mut unaccounted: BTreeMap<String, (LockedFile, usize)> = BTreeMap::new();
    for (file, lock) in String::from_utf8_lossy(&table).lines().filter_map(parse) {
        if files.contains_key(&file) {
            unaccounted.entry(lock).or_insert((file, 0)).1 += 1;
        }
    }
    if !unaccounted.is_empty() {
        // Rare: another process here has it open too, or the dead have. Whatever vanishes meanwhile accounts for less.
        for entry in fs::read_dir("/proc")?.flatten() {
            for lock in locks_of(&entry.path()) {
                if let Some((_, count)) = unaccounted.get_mut(&lock) {
                    *count = count.saturating_sub(1);
                }
            }
        }
    }
    let mut left: Vec<PathBuf> =
        unaccounted.into_values().filter(|(_, count)| *count > 0).map(|(file, _)| files[&file].clone()).collect();
    left.dedup();
    Ok(left)
}

/// The locks of one living process, each once: two descriptors of one open file show the same.
fn locks_of(process: &Path) -> std::collections::BTreeSet<String> {
    let numeric = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
    if !numeric(process) {
        return Default::default();
    }
    let infos = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| match fs::read_to_string(entry.path()) {
        Err(error) if is_vanished(&error) => None,
        text => text.ok(),
    };
    let locks = |text: String| {
        let lock = |line: &str| Some(parse(line.strip_prefix("lock:")?)?.1);
        text.lines().filter_map(lock).collect::<Vec<_>>()
    };
    infos.filter_map(read).flat_map(locks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn lock(file: &File) -> LockedFile {
        let range = libc::flock { l_type: libc::F_WRLCK as _, l_whence: 0, l_start: 100, l_len: 1, l_pid: 0 };
        nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&range)).unwrap();
        locked(&fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap()).expect("it is locked")
    }

    #[test]
    fn a_file_that_only_the_kernel_holds_is_still_open_and_one_of_the_living_is_accounted_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.raw");
        let file = File::create(&path).unwrap();
        let files = BTreeMap::from([(lock(&file), path.clone())]);
        assert!(still_open(&files).unwrap().is_empty(), "this process has it open");
        // A file in a socket's queue is open and belongs to no process, like that of a request.
        let (near, far) = UnixStream::pair().unwrap();
        let rights = [file.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(near.as_raw_fd(), &[io::IoSlice::new(b"x")], &message, MsgFlags::empty(), None).unwrap();
        drop(file);
        assert_eq!(still_open(&files).unwrap(), [path]);
        drop((near, far));
        assert!(still_open(&files).unwrap().is_empty());
    }

    #[test]
    fn only_open_file_description_locks_that_are_held_count() {
        for line in [
            "1: POSIX  ADVISORY  WRITE 15125 fe:00:5457024 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 15125 fe:00:5457024 0 EOF",
            "1: -> OFDLCK ADVISORY  WRITE -1 fe:00:5457024 0 EOF",
            "",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
        let (file, _) = parse("12: OFDLCK ADVISORY  READ -1 fe:00:77 100 101").unwrap();
        assert_eq!(file, LockedFile("fe:00:77".into()));
    }
}
