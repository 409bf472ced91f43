//! The mount table of a process (proc_pid_mountinfo(5)). Reading it asks no storage.

use std::fs::File;
use std::io;

/// The largest table read.
const MAX_TABLE: usize = 16 << 20;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub id: u32,
    /// `MAJOR:MINOR`, as /sys/dev/block names it.
    pub device: String,
    /// `ext4`, `nfs4`, `fuse.glusterfs` and so on.
    pub kind: String,
}

impl Mount {
    pub fn is_memory(&self) -> bool {
        matches!(self.kind.as_str(), "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs" | "proc" | "sysfs" | "devpts")
    }

    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.") || self.kind == "fuseblk" || self.kind == "virtiofs"
    }

    /// A client of a network file system in this kernel: libvirt's list of shared ones (util/virfile.c,
    /// `virFileIsSharedFSType`), and those that it does not know, without those on a block device.
    pub fn is_network(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "nfs"
                | "nfs4"
                | "ceph"
                | "cifs"
                | "smb3"
                | "smbfs"
                | "9p"
                | "afs"
                | "gpfs"
                | "acfs"
                | "lustre"
                | "beegfs"
                | "orangefs"
                | "pvfs2"
                | "coda"
        )
    }
}

/// The mounts that a process sees.
pub(super) fn of(pid: i32) -> io::Result<Vec<Mount>> {
    let table = super::files::read_all_of(File::open(format!("/proc/{pid}/mountinfo"))?, MAX_TABLE)?;
    Ok(String::from_utf8_lossy(&table).lines().filter_map(parse).collect())
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [OPTIONAL...] - KIND SOURCE OPTIONS`.
fn parse(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let mut fields = head.split(' ');
    let id = fields.next()?.parse().ok()?;
    Some(Mount { id, device: fields.nth(1)?.to_owned(), kind: tail.split(' ').next()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_whatever_optional_fields_it_has() {
        let nfs = parse("77 20 0:45 / /srv/vm rw,noatime shared:9 master:2 - nfs4 10.0.0.1:/x rw,hard").unwrap();
        assert_eq!((nfs.id, nfs.device.as_str(), nfs.is_network()), (77, "0:45", true));
        assert!(parse("1 1 0:2 / /run rw - tmpfs run rw").unwrap().is_memory());
        assert!(parse("1 1 0:2 / /mnt rw - fuse.glusterfs g:/v rw").unwrap().is_fuse());
        assert_eq!(parse("1 1 0:2 / /mnt rw"), None);
    }

    #[test]
    fn this_process_has_a_mount_table() {
        assert!(!of(std::process::id() as i32).unwrap().is_empty());
    }
}
