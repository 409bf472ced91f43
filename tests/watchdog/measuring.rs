//! `leasehold watchdog test`: the device really resets its machine, and the next boot knows how long that took.

use crate::machine::{Device, Machine, PULSE};
use std::io::Write;

const TEST: &str = r#"
try() {
  configure
  leasehold watchdog test --config /etc/leasehold.toml --yes-reset n1 2>&1 | while read -r line; do say "$line"; done
  say "tested"
}
"#;

fn machine(script: &str) -> Machine {
    // Scripts are constants; a leak of a few hundred bytes a test keeps them so.
    Machine::new(Device::I6300esb, Box::leak(format!("{TEST}\n{script}").into_boxed_str()))
}

#[test]
fn the_time_to_the_reset_is_measured_across_it_and_counted_with_from_then_on() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = dir.path().join("disk");
    let Some(before) = machine("STATE=/disk\ntry").run_on(&disk) else { return };
    let fed = before.when("armed with 3 s and fed");
    before.assert_reset(fed + before.least() - PULSE..fed + before.w() + PULSE);
    let took = before.reset() - fed;

    let script = "
STATE=/disk
empty_node
say counted $(field resets_after_ms)
leasehold watchdog query --config /etc/leasehold.toml
say measured $(leasehold watchdog query --json --config /etc/leasehold.toml | sed -n 's/.*\"measured_ms\": \\([0-9]*\\).*/\\1/p')
over
";
    let after = machine(script).run_on(&disk).expect("the first could be run");
    after.assert_not_reset();
    let console = after.console();
    let told = "the watchdog test of the last boot: i6300ESB timer, set to 3 s, reset this host between ";
    let (_, times) = console.split_once(told).unwrap_or_else(|| panic!("it is not told:\n{console}"));
    let mut times = times.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).map(|s| (s * 1000.0) as u64);
    let (least, most) = (times.next().expect("a least time"), times.next().expect("and a most"));
    let _ = writeln!(
        std::io::stderr(),
        "measured: reset {took} ms after the last feed; by the marks in {least}..{most} ms"
    );
    assert!(least <= took + PULSE && took <= most, "it took {took} ms, and not {least} to {most}:\n{console}");
    assert!(least * 2 > took, "there were signs of life until the reset:\n{console}");
    assert_eq!(after.number("measured"), most, "{console}");
    assert_eq!(after.number("counted"), most.max(after.w()), "{console}");
}

#[test]
fn a_device_that_never_fires_is_told_stopped_and_used_no_more() {
    let script = "
try
authority
guard
until_ok leasehold status
leasehold status --json | grep -q '\"watchdog\"' || say no watchdog is used
leasehold doctor --config /etc/leasehold.toml
over
";
    let machine = Machine { environment: &[("NEVER_FIRES", "1")], ..machine(script) };
    let Some(story) = machine.run() else { return };
    story.assert_not_reset();
    let (fed, told) = (story.when("armed with 3 s and fed"), story.when("leasehold: /dev/watchdog0"));
    assert!(told >= fed + 3 * story.w(), "{}", story.console());
    story.when("no watchdog is used");
    let console = story.console();
    for said in
        ["does NOT reset this host", "FAIL  watchdog      /dev/watchdog0 (i6300ESB timer) does not reset this host"]
    {
        assert!(console.contains(said), "{said}: {console}");
    }
}
