//! Every SIGKILL on this machine and its instant, as the kernel itself records them: no process under test can lie
//! about them, and watching costs it nothing.

use super::World;
use leasehold::lease::time::BootTime;
use nix::mount::{MsFlags, mount, umount};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A tracing instance of its own (Documentation/trace/ftrace.rst, "Instances"), stamped in CLOCK_BOOTTIME.
pub struct SigkillTrace {
    mounted: PathBuf,
    instance: PathBuf,
}

impl SigkillTrace {
    /// From now on.
    pub fn start(world: &World) -> SigkillTrace {
        let mounted = world.dir().join("tracefs");
        std::fs::create_dir(&mounted).expect("one trace in a world");
        mount(Some("tracefs"), &mounted, Some("tracefs"), MsFlags::empty(), None::<&str>).expect("Linux has tracefs");
        let instance = mounted.join("instances").join(world.unique("sigkill"));
        std::fs::create_dir(&instance).expect("tracefs makes instances");
        let trace = SigkillTrace { mounted, instance };
        for (file, value) in [
            ("trace_clock", "boot"),
            ("events/signal/signal_generate/filter", "sig==9"),
            ("events/signal/signal_generate/enable", "1"),
        ] {
            std::fs::write(trace.instance.join(file), value).expect("tracefs takes its settings");
        }
        trace
    }

    /// The first SIGKILL of each process.
    pub fn first_of_each(&self) -> BTreeMap<i32, BootTime> {
        let text = std::fs::read_to_string(self.instance.join("trace")).expect("a trace can be read");
        let mut first = BTreeMap::new();
        for (at, pid) in text.lines().filter_map(parse) {
            first.entry(pid).or_insert(at);
        }
        first
    }
}

/// `sleep-25721 [001] d..1. 11803.907569: signal_generate: sig=9 errno=0 code=0 comm=qemu pid=25722 grp=1 res=0`, where
/// the names may hold spaces.
fn parse(line: &str) -> Option<(BootTime, i32)> {
    let (head, event) = line.split_once(": signal_generate: ")?;
    let (seconds, micros) = head.rsplit(' ').next()?.split_once('.')?;
    let at = Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros.parse().ok()?);
    let pid = event.rsplit_once(" pid=")?.1.split(' ').next()?.parse().ok()?;
    Some((BootTime::ZERO + at, pid))
}

impl Drop for SigkillTrace {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.instance).and_then(|()| umount(&self.mounted).map_err(Into::into));
        if let Err(error) = removed {
            super::world::tell(&format!("a trace is left at {}: {error}", Path::display(&self.instance)));
        }
    }
}
