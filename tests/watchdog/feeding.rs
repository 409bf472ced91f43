//! What the feed thread does while all is well, and how well it does it under pressure.

use crate::machine::{Device, Machine, Profile, Story, millis};
use std::io::Write;

#[test]
fn the_feed_thread_feeds_and_sleeps_and_calls_nothing_else() {
    let script = "
node
strace -qq -o /tmp/trace -p $(thread feed) &
STRACE=$!
pause 60000
kill $STRACE
wait $STRACE
say calls $(sed 's/(.*//' /tmp/trace | sort -u | tr '\\n' ' ')
say feeds $(grep -c WDIOC_KEEPALIVE /tmp/trace)
say ioctls $(grep -c '^ioctl' /tmp/trace)
head -4 /tmp/trace
over
";
    let machine = Machine { programs: &["/usr/bin/strace"], ..Machine::new(Device::I6300esb, script) };
    let Some(story) = machine.run() else { return };
    let mut calls: Vec<&str> = story.value("calls").split_whitespace().collect();
    // clock_gettime(2) is answered without a system call where the kernel's vdso can.
    calls.retain(|&call| !matches!(call, "clock_gettime" | "restart_syscall"));
    assert_eq!(calls, ["clock_nanosleep", "ioctl"], "{}", story.console());
    let feeds = story.number("feeds");
    assert_eq!(feeds, story.number("ioctls"), "{}", story.console());
    assert!((79..=82).contains(&feeds), "a feed every 0.75 s for a minute, not {feeds}:\n{}", story.console());
}

/// Favoured by the scheduler: computing, using memory up, and writing with an fsync(2) each; a filesystem
/// in memory that is filled to its end and emptied; and nothing but sync(1).
const PRESSURE: &str = r#"
pressure() {
  mkdir /full
  mount -t tmpfs -o size=32m full /full
  nice -n -5 stress-ng --quiet --temp-path /mnt --cpu 4 --vm 2 --vm-bytes 64M --hdd 2 --hdd-bytes 1M --hdd-opts fsync &
  nice -n -5 sh -c 'while :; do dd if=/dev/zero of=/full/fill bs=1M 2>/dev/null || echo >>/run/filled; rm /full/fill; done' &
  nice -n -5 sh -c 'while :; do echo x >/mnt/sync; sync && echo >>/run/synced; done' &
  until_ok test -s /run/filled
  before=$(idle)
  pause 15000
  say gap $(field longest_gap_ms)
  say idle $((($(idle) - before) * 10))
  say stressors $(pidof stress-ng | wc -w)
  say filled $(wc -l </run/filled)
  say synced $(wc -l </run/synced)
}
# In ticks of 10 ms.
idle() { sed -n 's/^cpu  *[0-9]* [0-9]* [0-9]* \([0-9]*\).*/\1/p' /proc/stat; }
"#;

fn longest_gap(script: &str, programs: &'static [&'static str], said: &str) -> Option<(u64, Story)> {
    let script = Box::leak(format!("{PRESSURE}\n{script}").into_boxed_str());
    // A slow machine, whose processor is all used up. It has but one: QEMU 7.2 counts instructions (`-icount`) of a second
    // only in turns of seconds, and no thread of the guard has another processor to go to.
    let environment = &[("FILESYSTEM", "1"), ("SHIFT", "3")];
    let story = Machine { programs, environment, ..Machine::new(Device::I6300esb, script) }.run()?;
    let console = story.console();
    assert!(console.contains(said), "{console}");
    assert!(story.number("idle") < 150, "the processor was idle for 1 %: {console}");
    assert!(story.number("stressors") > 8 && story.number("filled") > 1 && story.number("synced") > 1, "{console}");
    Some((story.number("gap"), story))
}

#[test]
fn under_pressure_no_feed_is_more_than_50_ms_late() {
    // Started as what is to wait its turn, it goes ahead all the same. Without that it is starved until it is reset.
    let script = "PREFIX='nice -n 19'\nnode\npressure\nover";
    let Some((gap, story)) =
        longest_gap(script, &["/usr/bin/nice", "/usr/bin/stress-ng"], "fed under the permit alone")
    else {
        return;
    };
    let _ = writeln!(std::io::stderr(), "measured: longest time between two feeds under pressure: {gap} ms");
    let period = millis(Profile::Fast.timing().feed());
    assert!((period..=period + 50).contains(&gap), "{gap} ms:\n{}", story.console());
}

#[test]
fn without_the_right_to_go_ahead_feeds_come_late_and_in_time() {
    // The path: busybox has a setpriv of its own, which knows no bounding set.
    let script = "
PREFIX='/bin/setpriv --bounding-set -sys_nice --inh-caps -sys_nice'
node
pressure
over
";
    let refused = "may not run ahead of this host's guests";
    let Some((gap, story)) = longest_gap(script, &["/usr/bin/nice", "/usr/bin/setpriv", "/usr/bin/stress-ng"], refused)
    else {
        return;
    };
    let _ = writeln!(std::io::stderr(), "measured: the same without CAP_SYS_NICE: {gap} ms");
    assert!(gap < millis(Profile::Fast.timing().watchdog), "{gap} ms:\n{}", story.console());
}
