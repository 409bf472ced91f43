//! Notices at once when libvirt's state files change, so that a new domain need not wait for the next scan.

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// How often arming starts again when directories appear while it looks.
const ATTEMPTS: usize = 16;

/// A watch on a directory that need not exist yet. A hint: what it misses, the next scan finds.
#[derive(Debug)]
pub struct ChangeWatch {
    inotify: Inotify,
    directory: PathBuf,
    watched: Option<(WatchDescriptor, PathBuf)>,
}

impl ChangeWatch {
    /// Watches for files created, written, moved in and deleted in `directory`; while it does not exist, for its coming
    /// into being.
    ///
    /// # Errors
    /// No inotify instance or watch left (fs.inotify.max_user_instances, max_user_watches).
    pub fn new(directory: impl Into<PathBuf>) -> io::Result<ChangeWatch> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let mut watch = ChangeWatch { inotify, directory: directory.into(), watched: None };
        watch.arm()?;
        Ok(watch)
    }

    /// Takes all that is waiting; true if the directory may have changed. Call it when the descriptor is readable.
    ///
    /// # Errors
    /// Those of inotify(7). The watch may then be blind; scan by the clock.
    pub fn drain(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in events {
                let lost = AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_MOVE_SELF;
                let of_present = self.watched.as_ref().is_some_and(|(descriptor, _)| *descriptor == event.wd);
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    changed = true;
                } else if of_present {
                    changed |= self.is_on_directory();
                    if event.mask.intersects(lost) {
                        self.watched = None;
                    }
                }
            }
        }
        if !self.is_on_directory() {
            changed |= self.arm()?;
        }
        Ok(changed)
    }

    fn is_on_directory(&self) -> bool {
        self.watched.as_ref().is_some_and(|(_, path)| *path == self.directory)
    }

    /// Watches the directory, or its nearest ancestor that exists. True if it is now the directory.
    fn arm(&mut self) -> io::Result<bool> {
        for _ in 0..ATTEMPTS {
            let (descriptor, path) = self.watch_nearest()?;
            if let Some((old, old_path)) = self.watched.replace((descriptor, path.clone()))
                && old_path != path
            {
                // Gone with its directory, or no longer wanted.
                let _ = self.inotify.rm_watch(old);
            }
            if path == self.directory {
                return Ok(true);
            }
            // What came between the look and the watch made no event.
            let next = self.directory.ancestors().find(|ancestor| ancestor.parent() == Some(&path));
            if !next.is_some_and(Path::exists) {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn watch_nearest(&self) -> io::Result<(WatchDescriptor, PathBuf)> {
        use AddWatchFlags as F;
        let changes =
            F::IN_CREATE | F::IN_DELETE | F::IN_MOVED_TO | F::IN_MOVED_FROM | F::IN_CLOSE_WRITE | F::IN_MOVE_SELF;
        for path in self.directory.ancestors() {
            match self.inotify.add_watch(path, changes | F::IN_ONLYDIR) {
                Ok(descriptor) => return Ok((descriptor, path.to_owned())),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

impl AsFd for ChangeWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::fs;

    /// Waits for an event, at most 10 s, and takes it.
    fn next(watch: &mut ChangeWatch) -> bool {
        let ready = poll(&mut [PollFd::new(watch.as_fd(), PollFlags::POLLIN)], PollTimeout::from(10_000u16));
        assert_eq!(ready, Ok(1), "an event comes");
        watch.drain().unwrap()
    }

    #[test]
    fn each_change_of_the_directory_is_noticed_and_quiet_is_quiet() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = ChangeWatch::new(dir.path()).unwrap();
        assert!(!watch.drain().unwrap());
        fs::write(dir.path().join("a.pid"), "1").unwrap();
        assert!(next(&mut watch));
        fs::rename(dir.path().join("a.pid"), dir.path().join("b.pid")).unwrap();
        assert!(next(&mut watch));
        fs::remove_file(dir.path().join("b.pid")).unwrap();
        assert!(next(&mut watch));
        assert!(!watch.drain().unwrap());
    }

    #[test]
    fn a_directory_that_comes_goes_and_comes_again_is_watched_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("libvirt/qemu");
        let mut watch = ChangeWatch::new(&run).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        assert!(!next(&mut watch), "a neighbour's file is no change");
        for _ in 0..2 {
            fs::create_dir_all(&run).unwrap();
            assert!(next(&mut watch), "it came, and may have files already");
            fs::write(run.join("a.pid"), "1").unwrap();
            assert!(next(&mut watch));
            fs::remove_dir_all(dir.path().join("libvirt")).unwrap();
            next(&mut watch);
        }
    }
}
