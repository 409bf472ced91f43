//! A disk that all hosts share, and a guest that keeps a journal on it: see [`writers`] for what the journal proves.

use super::writers::{self, BLOCK, Run, TwoWriters};
use super::{Domain, Host, World, wait_until};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Where every host has its own boot disk, so that the domain's definition is the same on all.
const BOOT: &str = "/run/journal.boot";
/// Where the boot sector has the owner, the epoch and the run.
const IDENTITY: usize = 12;
/// What is read at once.
const PART: usize = 64 << 10;
/// Of the disk.
pub const SIZE: u64 = 64 << 20;
const SOON: Duration = Duration::from_secs(20);

/// The shared disk.
pub struct Journal {
    disk: PathBuf,
    guest: Vec<u8>,
    run: AtomicU32,
    /// Whatever is before it was written before the last start.
    old: AtomicU64,
}

impl Journal {
    /// An empty one, for five minutes of records.
    pub fn new(world: &World) -> Journal {
        let journal = Journal {
            disk: world.dir().join("journal.raw"),
            guest: assembled(world.dir()),
            run: AtomicU32::new(1),
            old: AtomicU64::new(0),
        };
        journal.clear();
        journal
    }

    /// Empties it. While nobody writes.
    pub fn clear(&self) {
        let made = File::create(&self.disk).and_then(|file| file.set_len(SIZE));
        made.expect("the world's directory is writable");
        self.old.store(0, Ordering::Relaxed);
    }

    /// The disk.
    pub fn path(&self) -> &Path {
        &self.disk
    }

    /// A domain that keeps this journal.
    pub fn domain(&self, name: &str) -> Domain {
        self.domain_through(name, &self.disk)
    }

    /// The same, through another way to the disk than its own path.
    pub fn domain_through(&self, name: &str, disk: &Path) -> Domain {
        let driver = "<driver name='qemu' type='raw' cache='none'/>";
        self.domain_on(name, &format!("<disk type='file'>{driver}<source file='{}'/>", disk.display()))
    }

    /// The same, on a disk in libvirt's XML, up to its source.
    pub fn domain_on(&self, name: &str, disk: &str) -> Domain {
        // SeaBIOS leaves a disk alone that has no place in the order. On virtio-blk it takes no flushes, and QEMU then flushes
        // every write; on IDE it writes sector by sector.
        let devices = format!(
            "<disk type='file'><driver name='qemu' type='raw'/><source file='{BOOT}'/><target dev='vda' bus='virtio'/>\
             <readonly/><boot order='1'/></disk>\
             {disk}<target dev='sda' bus='scsi'/><shareable/><boot order='2'/></disk>\
             <controller type='scsi' model='virtio-scsi'/>"
        );
        Domain { devices, ..Domain::new(name) }
    }

    /// Writes the host's boot disk: whatever starts from it from now on is this owner's, under this epoch. The run's
    /// number.
    pub fn load(&self, host: &Host, owner: u32, epoch: u32) -> u32 {
        let run = self.run.fetch_add(1, Ordering::Relaxed);
        self.old.store((self.bytes(0).len() as u64).saturating_sub(PART as u64), Ordering::Relaxed);
        let mut image = self.guest.clone();
        for (index, word) in [owner, epoch, run].into_iter().enumerate() {
            image[IDENTITY + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
        }
        // SeaBIOS boots from no disk of less than a cylinder, 504 KiB.
        image.resize(1 << 20, 0);
        let path = format!("/proc/{}/root{BOOT}", host.init());
        std::fs::write(path, image).expect("the host's /run is writable");
        run
    }

    /// Who wrote when. A record that is half there is looked at again: somebody is just writing it.
    ///
    /// # Errors
    /// Two wrote at the same time.
    pub fn runs(&self) -> Result<Vec<Run>, TwoWriters> {
        let mut verdict = writers::runs(&self.bytes(0));
        for _ in 0..100 {
            if !verdict.as_ref().is_err_and(TwoWriters::is_torn) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            verdict = writers::runs(&self.bytes(0));
        }
        verdict
    }

    /// How many records a run has written since the last start, whoever else writes.
    fn records(&self, run: u32) -> usize {
        self.bytes(self.old.load(Ordering::Relaxed))
            .chunks_exact(BLOCK)
            .filter(|block| block[12..16] == run.to_le_bytes())
            .count()
    }

    /// Waits until a run has written so many records more than when this was called.
    #[track_caller]
    pub fn wait_for(&self, run: u32, more: usize) {
        let wanted = self.records(run) + more;
        wait_until(&format!("run {run} had written {more} more records"), SOON, || self.records(run) >= wanted);
    }

    /// From there as far as anything is written. No guest leaves as much free as is read at once.
    fn bytes(&self, from: u64) -> Vec<u8> {
        let mut file = File::open(&self.disk).expect("the disk is there");
        file.seek(SeekFrom::Start(from)).expect("it is a file");
        let (mut written, mut part) = (Vec::new(), [0; PART]);
        while file.read_exact(&mut part).is_ok() && part.chunks_exact(BLOCK).any(|block| block[..4] != [0; 4]) {
            written.extend_from_slice(&part);
        }
        written
    }
}

/// The guest's boot sector, by GNU binutils.
fn assembled(dir: &Path) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/payload/journal.S");
    let (object, binary) = (dir.join("journal.o"), dir.join("journal.bin"));
    let make = |program: &str, args: &[&str], from: &Path, to: &Path| {
        let made = Command::new(program).args(args).arg("-o").args([to, from]).status();
        assert!(made.expect("GNU binutils are installed").success(), "{program} failed");
    };
    make("as", &["--32"], &source, &object);
    make("ld", &["-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary"], &object, &binary);
    std::fs::read(&binary).expect("ld made it")
}
