//! Writing back what a dead process left in the host's page cache.

use super::process::is_vanished;
use super::traces::{FileId, Traces};
use nix::sys::stat::{major, minor};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fmt, io};

/// Data of the dead that is still in the page cache, and may be written at any time until it is not.
#[derive(Debug)]
pub struct FlushError {
    path: PathBuf,
    cause: io::Error,
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write back what it left in the page cache for {}: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for FlushError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Writes back every buffered file of the traces by `write_back` ([`here`] or [`in_a_child`]), all of them even if one
/// fails. **May block for ever** on storage that is gone: give it a thread.
///
/// # Errors
/// The first file that could not be written back.
pub fn flush(traces: &Traces, mut write_back: impl FnMut(FileId, &Path) -> io::Result<()>) -> Result<(), FlushError> {
    let mut first_error = Ok(());
    for (&id, path) in &traces.files {
        if let Err(cause) = write_back(id, path) {
            first_error = first_error.and(Err(FlushError { path: path.clone(), cause }));
        }
    }
    first_error
}

/// By a child of this very program (`leasehold flush`): a thread that waits for storage that is gone is in state D, and
/// with one of those in it no signal would end this process, and no other could take its place. `None`: everything that
/// this host has to write back.
///
/// # Errors
/// The child's, as it tells them, or it could not be started.
pub fn in_a_child(file: Option<(FileId, &Path)>) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("flush");
    if let Some((id, path)) = file {
        command.arg(serde_json::to_string(&id)?).arg(path);
    }
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}

/// In this thread.
///
/// A file that is no longer where it was is written back with its whole file system, a removed file or an unmounted file
/// system has nothing left: the kernel writes back when it unmounts.
///
/// # Errors
/// It cannot be opened, read or written back.
pub fn here(id: FileId, path: &Path) -> io::Result<()> {
    match id {
        FileId::File { device, .. } => flush_file(id, device, path),
        FileId::BlockDevice(number) => flush_block_device(id, number, path),
    }
}

fn flush_file(id: FileId, device: u64, path: &Path) -> io::Result<()> {
    if let Some(file) = open_as(id, path)? {
        // An O_DIRECT write to NFS does not keep its process alive (fs/nfs/direct.c, `nfs_direct_wait` is killable), and fsync
        // does not wait for it; an ordinary read does (fs/nfs/io.c, `nfs_start_io_read`).
        let _ = file.read_at(&mut [0], 0)?;
        return file.sync_all();
    }
    // Renamed, perhaps: its pages are as dirty under the new name. The nearest directory that is left tells the file system.
    for directory in path.ancestors().skip(1) {
        match fs::metadata(directory) {
            Ok(metadata) if metadata.dev() == device => return Ok(nix::unistd::syncfs(File::open(directory)?)?),
            // Above a mount point are other file systems.
            Ok(_) => return Ok(()),
            Err(error) if is_elsewhere(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// libvirt gives QEMU a /dev of its own, so the path may not be ours; the number is the same.
fn flush_block_device(id: FileId, number: u64, path: &Path) -> io::Result<()> {
    if let Some(device) = open_as(id, path)? {
        return device.sync_all();
    }
    let numbers = format!("{}:{}", major(number), minor(number));
    let events = match fs::read_to_string(format!("/sys/dev/block/{numbers}/uevent")) {
        // The device was removed, and its pages with it.
        Err(error) if is_elsewhere(&error) => return Ok(()),
        events => events?,
    };
    let name = events.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    match name.map(|name| open_as(id, &Path::new("/dev").join(name))).transpose()?.flatten() {
        Some(device) => device.sync_all(),
        None => Err(io::Error::new(io::ErrorKind::NotFound, format!("block device {numbers} has no node in /dev"))),
    }
}

/// The file at `path`, if it is the one that is meant.
fn open_as(id: FileId, path: &Path) -> io::Result<Option<File>> {
    // Looked at before it is opened: opening a pipe put in its place would block.
    match fs::metadata(path) {
        Ok(metadata) if FileId::of(&metadata) == Some(id) => {}
        Ok(_) => return Ok(None),
        Err(error) if is_elsewhere(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
        Err(error) if is_elsewhere(&error) => return Ok(None),
        file => file?,
    };
    Ok((FileId::of(&file.metadata()?) == Some(id)).then_some(file))
}

/// Whether an error means that there is no such file.
fn is_elsewhere(error: &io::Error) -> bool {
    is_vanished(error) || matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ENXIO | libc::ENODEV))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::process::Process;
    use nix::sys::stat::{Mode, makedev};

    /// The traces of this very process, which has `file` open, cut to that file.
    fn traces_with(path: &Path) -> Traces {
        let id = FileId::of(&fs::metadata(path).unwrap()).unwrap();
        let me = Process::open(std::process::id() as i32).unwrap();
        let mut traces = Traces::of(&me).unwrap();
        traces.files.retain(|noted, _| *noted == id);
        assert_eq!(traces.files.len(), 1, "noted");
        traces
    }

    #[test]
    fn a_file_is_written_back_where_it_is_renamed_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/disk.raw");
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(&path, [0xaa; 4096]).unwrap();
        let _open = OpenOptions::new().write(true).open(&path).unwrap();
        let traces = traces_with(&path);
        flush(&traces, here).unwrap();
        fs::rename(&path, dir.path().join("renamed")).unwrap();
        flush(&traces, here).unwrap();
        // A pipe in its place: opening it would block.
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        flush(&traces, here).unwrap();
        fs::remove_dir_all(dir.path().join("sub")).unwrap();
        flush(&traces, here).unwrap();
    }

    #[test]
    fn a_block_device_that_was_removed_has_nothing_left() {
        let number = makedev(4095, 1_048_575);
        let traces = Traces {
            files: [(FileId::BlockDevice(number), PathBuf::from("/dev/nonexistent"))].into(),
            ..Traces::default()
        };
        flush(&traces, here).unwrap();
    }

    #[test]
    fn a_block_device_is_found_by_its_number_when_its_path_is_not_ours() {
        let Some((name, number)) =
            fs::read_dir("/sys/dev/block").ok().into_iter().flatten().flatten().find_map(|entry| {
                let number = entry.file_name().into_string().ok()?;
                let events = fs::read_to_string(entry.path().join("uevent")).ok()?;
                let name = events.lines().find_map(|line| line.strip_prefix("DEVNAME="))?.to_owned();
                // An empty loop device opens and syncs like any other.
                (name.starts_with("loop") && File::open(Path::new("/dev").join(&name)).is_ok())
                    .then_some((name, number))
            })
        else {
            return crate::node::testing::skipped("no loop device here that may be opened");
        };
        let (major, minor) = number.split_once(':').unwrap();
        let id = FileId::BlockDevice(makedev(major.parse().unwrap(), minor.parse().unwrap()));
        flush_block_device(id, makedev(major.parse().unwrap(), minor.parse().unwrap()), Path::new("/elsewhere/vda"))
            .expect(&name);
    }
}
