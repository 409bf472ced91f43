//! One guard per node.

use super::process::comm_of;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

/// How long what a dead holder left behind is waited for.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// Held for as long as this value lives, and by the kernel no longer than this process does.
#[derive(Debug)]
pub struct OnlyOne {
    /// flock(2) belongs to the open file: closing it gives it back.
    _file: File,
}

/// Why this process is not the only one, or cannot know it.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it.
    Held {
        /// The lock file.
        path: PathBuf,
        /// The pid it has written there, and its name.
        holder: Option<(i32, String)>,
    },
    /// The file cannot be opened, locked or written.
    Failed {
        /// The lock file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held { path, holder: Some((pid, comm)) } => {
                write!(f, "already running: pid {pid} ({comm}) holds {}; stop it first", path.display())
            }
            LockError::Held { path, holder: None } => {
                write!(f, "already running: another process holds {} (lslocks tells which)", path.display())
            }
            LockError::Failed { path, cause } => write!(f, "cannot lock {}: {cause}", path.display()),
        }
    }
}

impl std::error::Error for LockError {}

impl OnlyOne {
    /// Takes the lock and writes this process's pid into the file. The file stays when the lock is gone: removing it would
    /// let two processes hold two files of one name. Waits only for what a dead holder left behind, at most
    /// [`LEFT_BEHIND`]: a child that it had forked and that has not executed its own program yet holds the lock, too.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn take(path: &Path) -> Result<OnlyOne, LockError> {
        let failed = |cause| LockError::Failed { path: path.to_owned(), cause };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o644).open(path).map_err(failed)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = holder(&mut file).map_err(failed)?;
            if holder.is_some() || start.elapsed() >= LEFT_BEHIND {
                return Err(LockError::Held { path: path.to_owned(), holder });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        file.rewind().map_err(failed)?;
        // Over what is there and then cut, which takes no new block of a file system that is full.
        let pid = format!("{}\n", std::process::id());
        file.write_all(pid.as_bytes()).and_then(|()| file.set_len(pid.len() as u64)).map_err(failed)?;
        Ok(OnlyOne { _file: file })
    }
}

/// Who has written a pid into the file and still lives.
fn holder(file: &mut File) -> io::Result<Option<(i32, String)>> {
    let mut text = String::new();
    file.rewind()?;
    file.take(32).read_to_string(&mut text)?;
    let living = |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok();
    Ok(text.trim().parse().ok().filter(living).map(|pid| (pid, comm_of(pid).unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guard.lock");
        fs::write(&path, "999999999 left over\n").unwrap();
        let first = OnlyOne::take(&path).unwrap();
        let refused = OnlyOne::take(&path).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("already running: pid {} (", std::process::id())), "{refused}");
        drop(first);
        OnlyOne::take(&path).expect("free again");
    }

    #[test]
    fn what_a_dead_holders_child_still_holds_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guard.lock");
        // By a pid that cannot live: a guard was killed between forking a child and the child's exec.
        let left = File::create(&path).unwrap();
        left.try_lock().unwrap();
        fs::write(&path, "999999999\n").unwrap();
        let taking = std::thread::spawn({
            let path = path.clone();
            move || OnlyOne::take(&path).map(drop)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!taking.is_finished(), "it is held");
        drop(left);
        taking.join().unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_lock_that_cannot_be_made_says_where() {
        let error = OnlyOne::take(Path::new("/nonexistent/guard.lock")).unwrap_err().to_string();
        assert!(error.starts_with("cannot lock /nonexistent/guard.lock: "), "{error}");
    }
}
