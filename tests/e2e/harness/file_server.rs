//! Storage that another process serves as a file system (FUSE), and that can hang: what is asked of it meanwhile waits,
//! in the kernel, as for a storage that went away.

use super::process::Process;
use super::{Host, World, wait_until};
use nix::sys::signal::Signal;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One file, served by qemu-storage-daemon on one host.
pub struct FileServer<'h> {
    host: &'h Host,
    daemon: Process,
    behind: PathBuf,
    served: PathBuf,
    device: Option<String>,
}

impl<'h> FileServer<'h> {
    /// 8 MiB.
    pub fn new(world: &World, host: &'h Host) -> FileServer<'h> {
        let file = |name: &str| world.dir().join(format!("{name}-{}.raw", host.name()));
        let (behind, served) = (file("behind"), file("served"));
        std::fs::write(&behind, vec![0; 8 << 20]).expect("the world's directory is writable");
        std::fs::write(&served, "").expect("the world's directory is writable");
        let disk = format!("driver=file,node-name=disk,filename={},locking=off", behind.display());
        let export = format!("type=fuse,id=x,node-name=disk,mountpoint={},writable=on", served.display());
        let daemon = host.start("file-server", "qemu-storage-daemon", &["--blockdev", &disk, "--export", &export]);
        let size = || host.run("stat", &["-c", "%s", &served.display().to_string()]).out.trim() == "8388608";
        wait_until("the file was served", Duration::from_secs(10), size);
        FileServer { host, daemon, behind, served, device: None }
    }

    /// The file, on the host.
    pub fn path(&self) -> &Path {
        &self.served
    }

    /// A block device of the kernel over it.
    pub fn block_device(&mut self) -> String {
        let made = self.host.run("losetup", &["--show", "-f", &self.served.display().to_string()]).expect_ok();
        self.device.insert(made.trim().to_owned()).clone()
    }

    /// It answers nothing from now on.
    pub fn hang(&self) {
        self.daemon.signal(Signal::SIGSTOP);
    }

    /// It goes on.
    pub fn go_on(&self) {
        self.daemon.signal(Signal::SIGCONT);
    }

    /// The byte that has really been written at this offset.
    pub fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        let file = std::fs::File::open(&self.behind).expect("the disk is there");
        file.read_exact_at(&mut byte, at).expect("the disk is larger");
        byte[0]
    }
}

impl Drop for FileServer<'_> {
    fn drop(&mut self) {
        // What waits for it could not be ended otherwise.
        self.go_on();
        if let Some(device) = &self.device {
            self.host.run("losetup", &["-d", device]);
        }
    }
}
