//! Which of the files that went through the page cache are on storage.

use super::traces::{FileId, Traces};
use nix::sys::stat::makedev;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

impl Traces {
    /// The files and block devices on storage that were open for writing through the host's page cache: what may be
    /// written after the process is dead, until it is flushed. Files in memory, and files that have no name any more
    /// (a memfd, a removed disk), leave nothing to read back.
    pub fn host_cached(&self) -> Vec<&Path> {
        let in_memory = in_memory(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
        let stored = |id: &FileId| match id {
            FileId::File { device, .. } => !in_memory.contains(device),
            FileId::BlockDevice(_) => true,
        };
        let named = |path: &Path| !path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)");
        self.files.iter().filter(|(id, path)| stored(id) && named(path)).map(|(_, path)| path.as_path()).collect()
    }
}

/// The device numbers of the file systems in memory. proc_pid_mountinfo(5): `ID PARENT MAJ:MIN ... - TYPE SOURCE OPTIONS`.
fn in_memory(mounts: &str) -> BTreeSet<u64> {
    let device = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let kind = filesystem.split(' ').next()?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        let memory = ["tmpfs", "devtmpfs", "ramfs", "hugetlbfs"].contains(&kind);
        memory.then(|| Some(makedev(major.parse().ok()?, minor.parse().ok()?))).flatten()
    };
    mounts.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_disk_on_storage_is_told_and_what_is_in_memory_or_removed_is_not() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:26 / /run rw shared:1 - tmpfs run rw\n";
        assert_eq!(in_memory(mounts), [makedev(0, 26)].into());
        let file = |device, inode| FileId::File { device, inode };
        // No mount has this device, so it is nowhere said to be in memory.
        let elsewhere = makedev(4095, 7);
        let files = [
            (file(elsewhere, 1), "/srv/disk.raw"),
            (file(elsewhere, 2), "/memfd:pc.ram (deleted)"),
            (FileId::BlockDevice(makedev(7, 0)), "/dev/loop0"),
        ];
        let files = files.into_iter().map(|(id, path)| (id, PathBuf::from(path))).collect();
        let traces = Traces { files, ..Traces::default() };
        assert_eq!(traces.host_cached(), [Path::new("/srv/disk.raw"), Path::new("/dev/loop0")]);
    }
}
