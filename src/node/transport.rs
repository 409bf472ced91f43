//! How a block device reaches its storage, by sysfs alone.

use std::fs;
use std::path::{Path, PathBuf};

/// How deep devices may be stacked: deeper than anybody stacks them, and an end for a loop.
const DEPTH: usize = 10;

/// Names the network client that is below a block device, if there is one: below device mapper and partitions too, and
/// below a loop device by its file's name. `number` is `MAJOR:MINOR`; `sys` is /sys.
///
/// Sources: drivers/block/rbd.c and nbd.c (names), drbd's; Documentation/ABI/testing/sysfs-class-iscsi (`sessionN`),
/// drivers/nvme/host/sysfs.c (`transport`), drivers/scsi/scsi_transport_fc.c (`rport-`).
pub(super) fn network_client(sys: &Path, number: &str) -> Option<String> {
    client_at(&fs::canonicalize(sys.join("dev/block").join(number)).ok()?, DEPTH)
}

fn client_at(device: &Path, depth: usize) -> Option<String> {
    let names: Vec<&str> = device.components().filter_map(|part| part.as_os_str().to_str()).collect();
    let numbered = |name: &&str, kind: &str| {
        name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    let has = |kind: &str| names.iter().any(|name| numbered(name, kind));
    let name = names.last()?;
    for (kind, called) in [("rbd", "rbd"), ("nbd", "nbd"), ("drbd", "drbd"), ("session", "iSCSI")] {
        if has(kind) {
            return Some(format!("{called} ({name})"));
        }
    }
    if names.iter().any(|name| name.starts_with("rport-")) {
        return Some(format!("fibre channel ({name})"));
    }
    if let Some(transport) = nvme_transport(device).filter(|transport| transport != "pcie" && transport != "loop") {
        return Some(format!("NVMe over {transport} ({name})"));
    }
    if let Ok(file) = fs::read_to_string(device.join("loop/backing_file")) {
        return Some(format!("loop over {} ({name})", file.trim()));
    }
    let below = depth.checked_sub(1)?;
    let slaves = fs::read_dir(device.join("slaves")).ok()?.flatten();
    let mut slaves: Vec<PathBuf> = slaves.filter_map(|slave| fs::canonicalize(slave.path()).ok()).collect();
    slaves.sort();
    slaves.iter().find_map(|slave| client_at(slave, below)).map(|client| format!("{client} below {name}"))
}

/// A controller's, or with native multipath its subsystem's first controller's.
fn nvme_transport(device: &Path) -> Option<String> {
    let read = |directory: &Path| Some(fs::read_to_string(directory.join("transport")).ok()?.trim().to_owned());
    device.ancestors().take(4).find_map(|ancestor| {
        read(ancestor).or_else(|| {
            let subsystem = ancestor.file_name()?.to_str()?.starts_with("nvme-subsys");
            let controllers = subsystem.then(|| fs::read_dir(ancestor).ok())??.flatten();
            controllers.filter_map(|entry| fs::canonicalize(entry.path()).ok()).find_map(|path| read(&path))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// sysfs as the kernel lays it out: devices below `devices`, a link to each in `dev/block`.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn with(devices: &[(&str, &str)]) -> Sys {
            let sys = Sys(tempfile::tempdir().unwrap());
            fs::create_dir_all(sys.0.path().join("dev/block")).unwrap();
            for (number, device) in devices {
                let path = sys.0.path().join("devices").join(device);
                fs::create_dir_all(path.join("slaves")).unwrap();
                symlink(&path, sys.0.path().join("dev/block").join(number)).unwrap();
            }
            sys
        }

        fn stack(&self, upper: &str, lower: &str) {
            let at = |device: &str| self.0.path().join("devices").join(device);
            symlink(at(lower), at(upper).join("slaves").join(lower.rsplit('/').next().unwrap())).unwrap();
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join("devices").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn client(&self, number: &str) -> Option<String> {
            network_client(self.0.path(), number)
        }
    }

    #[test]
    fn each_kind_of_network_block_device_is_told_from_a_local_one() {
        let sys = Sys::with(&[
            ("8:0", "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda"),
            ("8:16", "platform/host3/session1/target3:0:0/3:0:0:1/block/sdb"),
            ("8:17", "platform/host3/session1/target3:0:0/3:0:0:1/block/sdb/sdb1"),
            ("8:32", "pci0000:00/0000:03:00.0/host4/rport-4:0-1/target4:0:0/4:0:0:0/block/sdc"),
            ("251:0", "rbd/0/block/rbd0"),
            ("43:0", "virtual/block/nbd0"),
            ("259:0", "pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1"),
            ("259:1", "virtual/nvme-fabrics/ctl/nvme1/nvme1n1"),
        ]);
        sys.file("pci0000:00/0000:01:00.0/nvme/nvme0/transport", "pcie\n");
        sys.file("virtual/nvme-fabrics/ctl/nvme1/transport", "tcp\n");
        for (number, client) in [
            ("8:0", None),
            ("8:16", Some("iSCSI (sdb)")),
            ("8:17", Some("iSCSI (sdb1)")),
            ("8:32", Some("fibre channel (sdc)")),
            ("251:0", Some("rbd (rbd0)")),
            ("43:0", Some("nbd (nbd0)")),
            ("259:0", None),
            ("259:1", Some("NVMe over tcp (nvme1n1)")),
            ("9:9", None),
        ] {
            assert_eq!(sys.client(number).as_deref(), client, "{number}");
        }
    }

    #[test]
    fn stacked_devices_are_followed_to_what_is_below_them() {
        let (volume, path) = ("virtual/block/dm-1", "virtual/block/dm-0");
        let (disk, iscsi) = ("pci0/ata1/host0/block/sda", "platform/host3/session1/target3:0:0/3:0:0:1/block/sdb");
        let sys = Sys::with(&[("253:1", volume), ("253:0", path), ("8:0", disk), ("8:16", iscsi)]);
        sys.stack(volume, path);
        sys.stack(path, disk);
        assert_eq!(sys.client("253:1"), None);
        sys.stack(path, iscsi);
        assert_eq!(sys.client("253:1").as_deref(), Some("iSCSI (sdb) below dm-0 below dm-1"));
        // Nothing the kernel would build, and an end all the same.
        sys.stack(path, volume);
        fs::remove_file(sys.0.path().join("devices").join(path).join("slaves/sdb")).unwrap();
        assert_eq!(sys.client("253:1"), None);
    }

    #[test]
    fn a_multipath_namespace_is_found_by_its_subsystems_controllers() {
        let sys = Sys::with(&[
            ("259:2", "virtual/nvme-subsystem/nvme-subsys0/nvme0n1"),
            ("259:3", "virtual/nvme-fabrics/ctl/nvme0/nvme0c0n1"),
        ]);
        sys.file("virtual/nvme-fabrics/ctl/nvme0/transport", "rdma\n");
        let devices = sys.0.path().join("devices/virtual");
        symlink(devices.join("nvme-fabrics/ctl/nvme0"), devices.join("nvme-subsystem/nvme-subsys0/nvme0")).unwrap();
        assert_eq!(sys.client("259:2").as_deref(), Some("NVMe over rdma (nvme0n1)"));
    }
}
