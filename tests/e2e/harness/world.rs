//! One test's world: its directory, its turn on this machine, its cables.

use super::{Host, Link, Space};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// How many worlds may be at once: each runs several daemons, mostly waiting for each other, and what is measured in one must
/// not wait for another. tests/run.sh has as many test threads.
const AT_ONCE: u32 = 5;

/// Everything of one test. Declare it first: it must be dropped last.
pub struct World {
    dir: TempDir,
    number: u32,
    cables: AtomicU8,
    _turn: Option<Turn>,
}

impl World {
    /// A world, or none on a machine that cannot have one: then the reason was said, and the test has nothing to do.
    pub fn new() -> Option<World> {
        if let Err(why) = possible() {
            tell(&format!("skipped: {why}"));
            return None;
        }
        Some(World::taking(Some(Turn::take())))
    }

    /// Another world in this one's turn, for a test of many that are idle most of the time. Drop it first.
    pub fn beside(&self) -> World {
        World::taking(None)
    }

    fn taking(turn: Option<Turn>) -> World {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::Builder::new().prefix("leasehold-e2e-").tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("logs")).expect("the directory is new");
        World { dir, number: NUMBER.fetch_add(1, Ordering::Relaxed), cables: AtomicU8::new(1), _turn: turn }
    }

    /// A directory that every host of this world sees: the place for shared storage.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.dir().join("logs")
    }

    /// A name that no other test and no other run on this machine has.
    pub fn unique(&self, name: &str) -> String {
        format!("{name}-{}-{}", std::process::id(), self.number)
    }

    /// A host without a hook.
    pub fn host(&self, name: &str) -> Host {
        Host::start(self, name)
    }

    /// A host with a hook from its first moment on.
    pub fn host_with_hook(&self, name: &str, hook: &Path) -> Host {
        Host::start_with(self, name, Some(hook), "v2")
    }

    /// A space without libvirt, with a network of its own: for an authority.
    pub fn space(&self, name: &str) -> Space {
        Space::plain(&self.unique(name), &self.logs())
    }

    /// A new cable between two spaces.
    pub fn connect(&self, near: &Space, far: &Space) -> Link {
        Link::between(near, far, self.cables.fetch_add(1, Ordering::Relaxed))
    }

    /// An executable script in this world's directory, for hooks that need no more.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("the directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }
}

/// The binary under test: the one cargo built, or LEASEHOLD_BIN (the release build, for what is measured).
pub fn leasehold() -> PathBuf {
    std::env::var_os("LEASEHOLD_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_leasehold")), PathBuf::from)
}

/// Says something past the test harness, which shows nothing of a test that passes: a skip must never be silent.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Whether this machine can run libvirt hosts in namespaces.
fn possible() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("end-to-end tests need root, for namespaces".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &&str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    for program in ["libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "ip", "nft", "unshare"] {
        if !found(&program) {
            return Err(format!("end-to-end tests need {program}; packaging/install-build-deps.sh installs it"));
        }
    }
    Ok(())
}

/// For tests that fill the machine with QEMUs: one after the other. To be taken before the test's world.
pub fn fill_the_machine() -> MutexGuard<'static, ()> {
    static FILLED: Mutex<()> = Mutex::new(());
    FILLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of [`AT_ONCE`] turns.
struct Turn;

static TURNS: Mutex<u32> = Mutex::new(AT_ONCE);
static FREED: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, u32> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turn {
    fn take() -> Turn {
        let mut free = FREED.wait_while(turns(), |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *turns() += 1;
        FREED.notify_one();
    }
}
