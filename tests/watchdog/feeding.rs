//! What the feed thread does while all is well, and how well it does it under pressure.

use crate::machine::{Device, Machine, Profile, millis};
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

/// Busy loops that the scheduler favours, a filesystem in memory that is filled and emptied, and nothing but sync.
const PRESSURE: &str = r#"
pressure() {
  for i in 1 2 3 4 5 6; do nice -n -5 sh -c 'while :; do :; done' & done
  while :; do dd if=/dev/zero of=/tmp/fill bs=1M count=64 2>/dev/null; rm /tmp/fill; done &
  while :; do echo x >/mnt/sync; sync; done &
  pause 15000
  say gap $(field longest_gap_ms)
}
"#;

fn longest_gap(script: &str, programs: &'static [&'static str], said: &str) -> Option<u64> {
    let script = Box::leak(format!("{PRESSURE}\n{script}").into_boxed_str());
    // A slow machine, whose processor is all used up.
    let environment = &[("FILESYSTEM", "1"), ("SHIFT", "3")];
    let story = Machine { programs, environment, ..Machine::new(Device::I6300esb, script) }.run()?;
    assert!(story.console().contains(said), "{}", story.console());
    Some(story.number("gap"))
}

#[test]
fn under_pressure_no_feed_is_more_than_50_ms_late() {
    // Started as what is to wait its turn, it goes ahead all the same. Without that it is starved until it is reset.
    let script = "PREFIX='nice -n 19'\nnode\npressure\nover";
    let Some(gap) = longest_gap(script, &["/usr/bin/nice"], "fed under the permit alone") else { return };
    let _ = writeln!(std::io::stderr(), "measured: longest time between two feeds under pressure: {gap} ms");
    let period = millis(Profile::Fast.timing().feed());
    assert!((period..=period + 50).contains(&gap), "{gap} ms");
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
    let Some(gap) = longest_gap(script, &["/usr/bin/nice", "/usr/bin/setpriv"], refused) else { return };
    let _ = writeln!(std::io::stderr(), "measured: the same without CAP_SYS_NICE: {gap} ms");
    assert!(gap < millis(Profile::Fast.timing().watchdog), "{gap} ms");
}
