//! Domains small enough to start in a third of a second without KVM.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A domain to define: 32 MiB, no devices, a disk if one is given.
#[derive(Debug, Clone)]
pub struct Domain {
    pub name: String,
    pub uuid: String,
    pub disk: Option<PathBuf>,
    pub cache: &'static str,
    /// More of the XML: elements of the domain, and devices.
    pub elements: String,
    pub devices: String,
}

impl Domain {
    /// A domain with a uuid of its own.
    pub fn new(name: &str) -> Domain {
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("Linux has random uuids");
        Domain {
            name: name.to_owned(),
            uuid: uuid.trim().to_owned(),
            disk: None,
            cache: "none",
            elements: String::new(),
            devices: String::new(),
        }
    }

    /// With a raw disk.
    pub fn with_disk(mut self, disk: &Path) -> Domain {
        self.disk = Some(disk.to_owned());
        self
    }

    pub fn xml(&self) -> String {
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let mut disk = String::new();
        if let Some(path) = &self.disk {
            let path = escape(&path.display().to_string());
            let (kind, source) = if path.starts_with("/dev/") { ("block", "dev") } else { ("file", "file") };
            write!(
                disk,
                "<disk type='{kind}'><driver name='qemu' type='raw' cache='{}'/><source {source}='{path}'/>\
                 <target dev='vda' bus='virtio'/><shareable/></disk>",
                self.cache
            )
            .expect("a String takes everything");
        }
        format!(
            "<domain type='qemu'><name>{}</name><uuid>{}</uuid><memory unit='MiB'>32</memory>\
             <os><type arch='x86_64'>hvm</type></os>{}<devices>{disk}{}<controller type='usb' model='none'/>\
             <memballoon model='none'/></devices></domain>",
            escape(&self.name),
            self.uuid,
            self.elements,
            self.devices,
        )
    }
}

/// The pids, out here, of all QEMUs of a domain on this machine, whichever host they are in: the oracle for two
/// copies. Zombies and dying threads do not count as running: they have no command line any more.
pub fn qemus(uuid: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let mut words = line.split(|byte| *byte == 0);
        let qemu = words.next().is_some_and(|program| program.windows(5).any(|part| part == b"qemu-"));
        if qemu && words.any(|word| word == b"-uuid") && line.windows(uuid.len()).any(|part| part == uuid.as_bytes()) {
            found.push(pid);
        }
    }
    found
}
