//! Files that are whole or not there, and reads that end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How far a write has to have got when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the death of this process: the kernel has it. Right for tmpfs.
    Kernel,
    /// Survives a reset: the file and its directory are synced. May block on the disk.
    Disk,
}

/// Replaces `path` by a file with these bytes and this mode: a reader sees the old file or the new one, never a part.
/// The temporary file stands beside it, named `.NAME.new`, so one path must not be written by two at once.
///
/// # Errors
/// Those of creating, writing, syncing and renaming; the message names the path. `path` is then as it was.
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    replace(path, bytes, mode, durability).map_err(|error| named("cannot write", path, error))
}

fn replace(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(".new");
    let temporary: PathBuf = directory.join(temporary_name);
    // A leftover may belong to somebody else or be a link: never write through it.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        // The umask may have taken bits away that were asked for.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        if durability == Durability::Disk {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    if durability == Durability::Disk {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// The whole file, if it has at most `max` bytes.
///
/// # Errors
/// Those of opening and reading, and `FileTooLarge`; the message names the path.
pub fn read_bounded(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let read = File::open(path).and_then(|file| read_all_of(file, max));
    read.map_err(|error| named("cannot read", path, error))
}

/// What is left of an open file, if that is at most `max` bytes.
pub(super) fn read_all_of(file: impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
    }
    Ok(bytes)
}

fn named(what: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_with_the_mode_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        for (bytes, durability) in [(b"old".as_slice(), Durability::Kernel), (b"newer", Durability::Disk)] {
            write_atomically(&path, bytes, 0o666, durability).unwrap();
            assert_eq!(read_bounded(&path, 100).unwrap(), bytes);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary file is gone");
    }

    #[test]
    fn a_planted_link_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("f"), dir.path().join("elsewhere"));
        fs::write(&elsewhere, "theirs").unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.path().join(".f.new")).unwrap();
        write_atomically(&path, b"ours", 0o600, Durability::Kernel).unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"theirs");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_rubbish() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in-the-way");
        fs::create_dir(&path).unwrap();
        let error = write_atomically(&path, b"x", 0o600, Durability::Kernel).unwrap_err();
        assert!(error.to_string().contains("in-the-way"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_over_the_limit_is_refused_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        fs::write(&path, [0; 11]).unwrap();
        assert_eq!(read_bounded(&path, 11).unwrap().len(), 11);
        assert_eq!(read_bounded(&path, 10).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_bounded(Path::new("/dev/zero"), 10).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
