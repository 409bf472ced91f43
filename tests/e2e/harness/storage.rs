//! Storage that can be taken away: a file system on a loop device, frozen and thawed, and loop devices as disks.

use super::Host;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An ext4 of a host, on an image out here.
pub struct Storage {
    init: i32,
    /// Where it is mounted, inside.
    mount: PathBuf,
}

impl Storage {
    /// Made in `image` and mounted in the host under /run.
    pub fn mount(host: &Host, image: &Path) -> Storage {
        File::create(image).and_then(|file| file.set_len(64 << 20)).expect("the world's directory is writable");
        let mount = Path::new("/run").join(image.file_stem().expect("an image has a name"));
        let (image, point) = (image.display(), mount.display());
        let script = format!("mkdir {point} && mkfs.ext4 -q {image} && mount -o loop {image} {point}");
        host.run("sh", &["-c", &script]).expect_ok();
        Storage { init: host.init(), mount }
    }

    /// A file of 8 MiB on it; its path inside.
    pub fn disk(&self, name: &str) -> PathBuf {
        let path = self.mount.join(name);
        let outside = PathBuf::from(format!("/proc/{}/root{}", self.init, path.display()));
        File::create(outside).and_then(|file| file.set_len(8 << 20)).expect("the file system is new");
        path
    }

    /// Every write to it blocks from now on, in state D.
    pub fn freeze(&self) -> Frozen {
        // Not in the host's pid namespace: it must outlive that. It thaws also when the test is killed, and in any case
        // after three minutes: what waits for frozen storage can hold up every loop device of the machine.
        let script = "fsfreeze -f \"$0\" && echo frozen && timeout 180 cat >/dev/null; fsfreeze -u \"$0\"";
        let mut holder = Command::new("nsenter")
            .args(["--target", &self.init.to_string(), "--mount", "--", "sh", "-c", script])
            .arg(&self.mount)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter can be run");
        let pipe = holder.stdout.take().expect("stdout is piped");
        let said = BufReader::new(pipe).lines().map_while(Result::ok).next();
        assert_eq!(said.as_deref(), Some("frozen"), "{} was frozen", self.mount.display());
        Frozen(holder)
    }
}

/// A file system that takes no writes until this is dropped.
pub struct Frozen(Child);

impl Frozen {
    pub fn thaw(self) {}
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A loop device over a file, with somebody besides QEMU who has it open: the last close does not flush it.
pub struct LoopDevice {
    pub device: PathBuf,
    // Not the test itself: its end would hang in the close of a device whose storage is frozen, before it thaws.
    second_opener: Child,
}

impl LoopDevice {
    /// `file` is a path inside the host, buffered below the device too.
    pub fn over(host: &Host, file: &Path) -> LoopDevice {
        let made = host.run("losetup", &["--find", "--show", &file.display().to_string()]).expect_ok();
        let device = PathBuf::from(made.trim());
        let mut second_opener = Command::new("sh")
            .args(["-c", "exec 3<\"$0\" && echo open && cat >/dev/null"])
            .arg(&device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh can be run");
        let pipe = second_opener.stdout.take().expect("stdout is piped");
        let said = BufReader::new(pipe).lines().map_while(Result::ok).next();
        assert_eq!(said.as_deref(), Some("open"), "{} was opened", device.display());
        LoopDevice { device, second_opener }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        drop(self.second_opener.stdin.take());
        let _ = self.second_opener.wait();
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// How much of a file is this byte, read past the page cache: what is on the storage at this instant.
pub fn stored(path: &Path, byte: u8) -> usize {
    const BLOCK: usize = 4096;
    let mut file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_DIRECT)
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut memory = vec![0; BLOCK * 257];
    // O_DIRECT wants aligned memory.
    let from = memory.as_ptr().align_offset(BLOCK);
    let mut found = 0;
    loop {
        let read = file.read(&mut memory[from..from + BLOCK * 256]).expect("it can be read");
        found += memory[from..from + read].iter().filter(|&&stored| stored == byte).count();
        if read == 0 {
            return found;
        }
    }
}
