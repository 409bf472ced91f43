//! Domains small enough to start in a third of a second without KVM.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A domain to define: 32 MiB, no devices, a disk if one is given.
#[derive(Debug, Clone)]
pub struct Domain {
    pub name: String,
    pub uuid: String,
    pub disk: Option<PathBuf>,
    pub cache: &'static str,
    /// "raw", shareable between hosts, or "qcow2", which can have snapshots.
    pub format: &'static str,
    /// More of libvirt's XML: elements of `<domain>` and of `<devices>`.
    pub elements: String,
    pub devices: String,
    /// A monitor of its own for [`super::Watch`].
    pub watched: bool,
}

/// A guest that never ends and dirties 512 KiB at every tick of its clock: a boot sector, in 16-bit code. Each round
/// changes CR0.WP, which flushes the TLB: QEMU 7.2's TCG does not do so when a migration looks for dirty pages, and does
/// not see further writes to those it has seen.
const BUSY_GUEST: &[u8] = &[
    0xfc, // cld
    0x31, 0xdb, // xor bx, bx
    0x43, // again: inc bx
    0xba, 0x00, 0x10, // mov dx, 0x1000
    0x8e, 0xc2, // segment: mov es, dx
    0x31, 0xff, // xor di, di
    0xb9, 0x00, 0x80, // mov cx, 0x8000
    0x89, 0xd8, // mov ax, bx
    0xf3, 0xab, // rep stosw
    0x80, 0xc6, 0x10, // add dh, 0x10
    0x80, 0xfe, 0x90, // cmp dh, 0x90
    0x72, 0xed, // jb segment
    0x0f, 0x20, 0xc0, // mov eax, cr0
    0x66, 0x35, 0x00, 0x00, 0x01, 0x00, // xor eax, WP
    0x0f, 0x22, 0xc0, // mov cr0, eax
    0xfb, 0xf4, // sti; hlt
    0xeb, 0xd9, // jmp again
];

impl Domain {
    /// A domain with a uuid of its own.
    pub fn new(name: &str) -> Domain {
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("Linux has random uuids");
        let (name, uuid) = (name.to_owned(), uuid.trim().to_owned());
        Domain {
            name,
            uuid,
            disk: None,
            cache: "none",
            format: "raw",
            elements: String::new(),
            devices: String::new(),
            watched: false,
        }
    }

    /// With a new qcow2 disk.
    pub fn with_qcow2(self, disk: &Path) -> Domain {
        let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(disk).arg("16M").status();
        assert!(made.expect("qemu-img can be run").success());
        Domain { format: "qcow2", cache: "writethrough", ..self.with_disk(disk) }
    }

    /// With a guest that works without end, on a disk in `dir` which all hosts share, and a monitor for [`super::Watch`].
    pub fn busy(name: &str, dir: &Path) -> Domain {
        let disk = dir.join(format!("{name}.raw"));
        let mut sectors = vec![0; 1 << 20];
        sectors[..BUSY_GUEST.len()].copy_from_slice(BUSY_GUEST);
        sectors[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&disk, sectors).expect("the directory is writable");
        Domain { watched: true, ..Domain::new(name).with_disk(&disk) }
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
                "<disk type='{kind}'><driver name='qemu' type='{}' cache='{}'/><source {source}='{path}'/>\
                 <target dev='vda' bus='virtio'/>{}</disk>",
                self.format,
                self.cache,
                if self.format == "raw" { "<shareable/>" } else { "" }
            )
            .expect("a String takes everything");
        }
        let mut monitor = String::new();
        if self.watched {
            let path = super::qmp::monitor(&escape(&self.name));
            write!(
                monitor,
                "<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'><arg value='-qmp'/>\
                 <arg value='unix:{path},server=on,wait=off'/></commandline>"
            )
            .expect("a String takes everything");
        }
        format!(
            "<domain type='qemu'><name>{}</name><uuid>{}</uuid><memory unit='MiB'>32</memory>\
             <os><type arch='x86_64'>hvm</type></os>{}<devices>{disk}{}<controller type='usb' model='none'/>\
             <memballoon model='none'/></devices>{monitor}</domain>",
            escape(&self.name),
            self.uuid,
            self.elements,
            self.devices
        )
    }
}

/// The pids, out here, of all QEMUs of a domain on this machine, whichever host they are in: the oracle for two
/// copies. Zombies and dying threads do not count as running: they have no command line any more.
pub fn qemus(uuid: &str) -> Vec<i32> {
    all_qemus().into_iter().filter(|(_, line)| line.contains(uuid)).map(|(pid, _)| pid).collect()
}

/// The pid and the command line of every QEMU of libvirt's on this machine.
pub fn all_qemus() -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split('\0');
        if words.next().is_some_and(|program| program.contains("qemu-")) && words.any(|word| word == "-uuid") {
            found.push((pid, line.into_owned()));
        }
    }
    found
}
