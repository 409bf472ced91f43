//! Which disks of a domain are written through the host's page cache, by the XML that libvirt hands to its hook.
//!
//! Such writes outlive the process: they were measured to reach the storage 20-36 s after its death. So a domain with
//! such a disk is gone only when they are flushed, and not as long as its storage is away.
//!
//! The judgement, from libvirt's docs/formatdomain.rst ("Hard drives, floppy disks, CDROMs") and QEMU's block layer:
//! - `cache='none'` and `'directsync'` open with O_DIRECT (qemuDomainDiskCachemodeFlags, qemu_domain.c); `'writeback'`,
//!   `'writethrough'` and `'unsafe'` do not, and no `cache`, or `'default'`, is QEMU's own default, writeback.
//! - A cdrom, and whatever is `<readonly/>`, is not written; what has no source has no medium.
//! - `type='network'` (RBD, iSCSI, NBD, Gluster in QEMU itself) and `'nvme'` (VFIO) have no pages of the host's, and
//!   `'vhostuser'` and `'vhostvdpa'` are written by another process, of whose caches the XML says nothing.
//! - `device='lun'` is written by SG_IO, past the page cache (scsi_block_do_sgio, hw/scsi/scsi-disk.c).
//! - `file`, `block`, `volume` (a pool's file or block device) and `dir`, and types not known here, go by their `cache`.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead};
use std::time::Instant;

/// How many disks are named; the others are counted.
const NAMED: usize = 4;
/// How much of a source or a target is kept, in characters.
const KEPT: usize = 300;

/// The writable disks that go through the host's page cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCached {
    /// The first few.
    pub disks: Vec<Disk>,
    /// How many more there are.
    pub more: usize,
    /// Why the XML could not be read to the end of the disks, if it could not.
    pub unread: Option<String>,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// `<target dev=...>`: what the guest and virsh call it.
    pub target: String,
    /// `<source>`'s file, device, directory, or pool and volume.
    pub source: String,
    /// `<driver cache=...>`.
    pub cache: Option<String>,
}

impl HostCached {
    /// Whether no disk goes through the page cache, for certain.
    pub fn is_none(&self) -> bool {
        self.disks.is_empty() && self.unread.is_none()
    }

    /// Reads on to the end of `<devices>`, and no further, at most until `deadline`. `depth`: in how many elements the
    /// reader is already. Memory is bounded by the longest text or tag; the caller bounds what the reader may read.
    pub fn read(reader: &mut Reader<impl BufRead>, depth: usize, deadline: Instant) -> HostCached {
        let mut found = HostCached::default();
        if let Err(why) = found.read_devices(reader, depth, deadline) {
            found.unread = Some(why);
        }
        found
    }

    fn read_devices(
        &mut self,
        reader: &mut Reader<impl BufRead>,
        mut depth: usize,
        deadline: Instant,
    ) -> Result<(), String> {
        reader.config_mut().expand_empty_elements = true;
        let (mut buffer, mut in_devices, mut disk) = (Vec::new(), false, None::<Draft>);
        for events in 0_u64.. {
            // A clock read is dearer than an event.
            if events % 4096 == 4095 && Instant::now() >= deadline {
                return Err("it is too large to be read in time".into());
            }
            match reader.read_event_into(&mut buffer).map_err(|error| format!("it is not well formed ({error})"))? {
                Event::Start(element) => {
                    depth += 1;
                    match (depth, element.name().as_ref()) {
                        (2, name) => in_devices = name == "devices",
                        (3, "disk") if in_devices => disk = Some(Draft::of(&element)),
                        // <backingStore> and <mirror> have drivers and sources of their own, one level deeper.
                        (4, _) => disk.iter_mut().for_each(|disk| disk.take_in(&element)),
                        _ => {}
                    }
                }
                Event::End(_) => {
                    depth = depth.saturating_sub(1);
                    match depth {
                        2 => self.judge(disk.take()),
                        1 if in_devices => return Ok(()),
                        0 => return Ok(()),
                        _ => {}
                    }
                }
                // An entity in a text is an event of its own, and libvirt's XML may hold millions of them.
                Event::GeneralRef(_) => skip_text(reader.get_mut()).map_err(|error| format!("it stops ({error})"))?,
                Event::Eof => return Err("it has no end".into()),
                _ => {}
            }
            buffer.clear();
        }
        Ok(())
    }

    fn judge(&mut self, disk: Option<Draft>) {
        let Some(disk) = disk.and_then(Draft::host_cached) else { return };
        if self.disks.len() < NAMED {
            self.disks.push(disk);
        } else {
            self.more += 1;
        }
    }
}

/// Passes over the rest of a text: outside of tags, `<` stands only where one begins.
fn skip_text(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        let tag = bytes.iter().position(|byte| *byte == b'<');
        let (passed, ended) = (tag.unwrap_or(bytes.len()), tag.is_some() || bytes.is_empty());
        from.consume(passed);
        if ended {
            return Ok(());
        }
    }
}

/// `disk vda (/srv/a.raw, cache='writeback')`, or several.
impl fmt::Display for HostCached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.disks.is_empty() {
            let why = self.unread.as_deref().unwrap_or("nothing in it");
            return write!(f, "an unknown disk (libvirt's XML was not read to its end: {why})");
        }
        write!(f, "disk{} ", if self.disks.len() > 1 { "s" } else { "" })?;
        for (at, disk) in self.disks.iter().enumerate() {
            let source = disk.source.escape_debug();
            write!(f, "{}{} ({source}, ", if at > 0 { ", " } else { "" }, disk.target.escape_debug())?;
            match &disk.cache {
                Some(cache) => write!(f, "cache='{}')", cache.escape_debug())?,
                None => write!(f, "no cache= given, which means writeback)")?,
            }
        }
        if self.more > 0 { write!(f, " and {} more", self.more) } else { Ok(()) }
    }
}

/// A `<disk>` as far as it was read.
#[derive(Default)]
struct Draft {
    kind: String,
    device: String,
    cache: Option<String>,
    source: String,
    target: String,
    readonly: bool,
}

impl Draft {
    fn of(element: &BytesStart<'_>) -> Draft {
        let text = |name| attribute(element, name).unwrap_or_default();
        Draft { kind: text("type"), device: text("device"), ..Draft::default() }
    }

    fn take_in(&mut self, element: &BytesStart<'_>) {
        match element.name().as_ref() {
            "driver" => self.cache = attribute(element, "cache"),
            "source" => {
                let said = ["file", "dev", "dir", "pool", "volume"].map(|name| attribute(element, name));
                self.source = said.into_iter().flatten().collect::<Vec<_>>().join("/");
            }
            "target" => self.target = attribute(element, "dev").unwrap_or_default(),
            "readonly" => self.readonly = true,
            _ => {}
        }
    }

    fn host_cached(self) -> Option<Disk> {
        let elsewhere = ["network", "nvme", "vhostuser", "vhostvdpa"].contains(&self.kind.as_str());
        let not_written = self.readonly || self.device == "cdrom" || self.source.is_empty();
        let direct = matches!(self.cache.as_deref(), Some("none" | "directsync"));
        let cached = !(elsewhere || not_written || direct || self.device == "lun");
        cached.then_some(Disk {
            target: self.target,
            source: self.source,
            cache: self.cache.filter(|c| c != "default"),
        })
    }
}

/// An attribute's text, cut to what is shown. One that does not parse is shown as it stands.
fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let raw = element.try_get_attribute(name).ok().flatten()?;
    let text = quick_xml::escape::unescape(&raw.value).unwrap_or(raw.value.as_ref().into());
    Some(text.chars().take(KEPT).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(devices: &str) -> HostCached {
        let xml =
            format!("<domain type='kvm' id='1'><name>a</name><devices>{devices}</devices><x><disk/></x></domain>");
        HostCached::read(&mut Reader::from_reader(xml.as_bytes()), 0, soon())
    }

    fn soon() -> Instant {
        Instant::now() + std::time::Duration::from_secs(60)
    }

    fn disk(attributes: &str, inner: &str) -> String {
        format!("<disk {attributes}>{inner}<target dev='vda' bus='virtio'/></disk>")
    }

    #[test]
    fn each_cache_mode_is_judged_by_whether_qemu_opens_with_o_direct() {
        for (driver, cached) in [
            ("<driver name='qemu' type='raw' cache='none'/>", false),
            ("<driver name='qemu' cache='directsync' io='native'/>", false),
            ("<driver name='qemu' cache='writeback' discard='unmap'/>", true),
            ("<driver cache='writethrough'/>", true),
            ("<driver cache='unsafe'/>", true),
            ("<driver cache='default'/>", true),
            ("<driver name='qemu' type='qcow2' io='io_uring'/>", true),
            ("", true),
        ] {
            let found = read(&disk("type='file' device='disk'", &format!("{driver}<source file='/srv/a.raw'/>")));
            assert_eq!(!found.is_none(), cached, "{driver}: {found:?}");
        }
    }

    #[test]
    fn what_is_not_written_here_or_has_no_pages_of_the_hosts_is_exempt() {
        let file = "<source file='/srv/a'/>";
        for (attributes, inner, cached) in [
            ("type='file' device='cdrom'", file, false),
            ("type='file' device='floppy'", file, true),
            ("type='file' device='floppy'", "", false),
            ("type='file' device='disk'", "<source file='/srv/a'/><readonly/>", false),
            ("type='file' device='disk'", "<source file='/srv/a'/><shareable/>", true),
            ("type='file'", file, true),
            ("type='block' device='disk'", "<source dev='/dev/sdb'/>", true),
            ("type='block' device='lun'", "<source dev='/dev/sdb'/>", false),
            ("type='dir' device='floppy'", "<source dir='/srv/fat'/>", true),
            ("type='volume' device='disk'", "<source pool='p' volume='v'/>", true),
            ("type='network' device='disk'", "<driver cache='writeback'/><source protocol='rbd' name='p/i'/>", false),
            ("type='nvme' device='disk'", "<source type='pci' namespace='1'/>", false),
            ("type='vhostuser' device='disk'", "<source type='unix' path='/run/b.sock'/>", false),
        ] {
            assert_eq!(!read(&disk(attributes, inner)).is_none(), cached, "{attributes} {inner}");
        }
    }

    #[test]
    fn the_disks_own_driver_and_source_count_and_not_those_of_its_backing_files() {
        let chain = "<driver cache='none'/><source file='/srv/top'/>\
            <backingStore type='file'><driver cache='writeback'/><source file='/srv/base'/></backingStore>";
        assert!(read(&disk("type='file' device='disk'", chain)).is_none());
        let other = "<filesystem><driver type='virtiofs'/><source dir='/srv'/></filesystem><interface/>";
        assert!(read(other).is_none());
    }

    #[test]
    fn the_sentence_names_target_source_and_mode_and_counts_what_is_too_much() {
        let one = disk("type='file'", "<driver cache='unsafe'/><source file='/srv/a &amp; b&apos;s.raw'/>");
        assert_eq!(read(&one).to_string(), "disk vda (/srv/a & b\\'s.raw, cache='unsafe')");
        let volume = disk("type='volume'", "<source pool='p' volume='v'/>");
        assert_eq!(read(&volume).to_string(), "disk vda (p/v, no cache= given, which means writeback)");
        assert!(read(&one.repeat(6)).to_string().ends_with("cache='unsafe') and 2 more"));
    }

    #[test]
    fn texts_full_of_entities_are_passed_over_and_the_disk_below_them_is_found() {
        let text = format!(
            "<description>{0}x</description><metadata><a:devices b='{0}'>{0}<!-- < --></a:devices></metadata>",
            "&apos;".repeat(50_000)
        );
        let disk = disk("type='file'", "<driver cache='writeback'/>&amp; <source file='/srv/a&amp;b'/>");
        let xml = format!("<domain>{text}<devices>{disk}</devices></domain>");
        let found = HostCached::read(&mut Reader::from_reader(xml.as_bytes()), 0, soon());
        assert_eq!(found.to_string(), "disk vda (/srv/a&b, cache='writeback')");
    }

    #[test]
    fn xml_that_takes_too_long_is_left_unread_at_the_deadline() {
        let xml = format!("<domain>{}<devices/></domain>", "<title>it&apos;s</title>".repeat(2_000));
        let found = HostCached::read(&mut Reader::from_reader(xml.as_bytes()), 0, Instant::now());
        assert_eq!(found.unread.as_deref(), Some("it is too large to be read in time"));
        assert!(HostCached::read(&mut Reader::from_reader(xml.as_bytes()), 0, soon()).is_none());
    }

    #[test]
    fn xml_that_ends_early_is_said_to_be_unread_and_is_not_none() {
        let cut = HostCached::read(&mut Reader::from_reader("<domain><devices><disk".as_bytes()), 0, soon());
        assert!(!cut.is_none() && cut.unread.is_some(), "{cut:?}");
        let none = HostCached::read(&mut Reader::from_reader("<domain><name>a</name></domain>".as_bytes()), 0, soon());
        assert!(none.is_none(), "a domain without devices has no disks");
    }
}
