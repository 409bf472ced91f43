//! What must make no difference: the wall clock stepped by hours, and a log that nobody reads.

use crate::machine::{Device, Machine};

/// The guard's standard error is a full pipe, so the thread that logs stands still; the clock jumps to and fro.
const DEAF_AND_DIZZY: &str = r#"
mkfifo /run/log
exec 8<>/run/log
dd if=/dev/zero of=/run/log bs=65536 count=1 2>/dev/null
guard() { leasehold guard --config /etc/leasehold.toml 2>&8 & GUARD=$!; }
step() { date -s @$(($(date +%s) + $1)) >/dev/null; say stepped by $1 s; }
"#;

fn machine(script: &str, environment: &'static [(&'static str, &'static str)]) -> Machine {
    // A leak of a few hundred bytes a test keeps scripts constant.
    let script = Box::leak(format!("{DEAF_AND_DIZZY}\n{script}").into_boxed_str());
    Machine { environment, ..Machine::new(Device::I6300esb, script) }
}

#[test]
fn by_a_stepped_clock_and_a_log_that_nobody_reads_nothing_is_killed_later_and_no_host_is_reset() {
    let script = "
node
step 36000
lose_contact
step -72000
at $((E - P))
guest_is R || guest_is S && say alive before E
at $((E + 300))
guest_is R || guest_is S || say gone
step 36000
at $((E + 3 * W))
state_is armed && say fed
over
";
    let Some(story) = machine(script, &[]).run() else { return };
    story.assert_not_reset();
    story.when("alive before E");
    story.when("gone");
    story.when("fed");
}

#[test]
fn by_a_stepped_clock_and_a_log_that_nobody_reads_no_reset_comes_later() {
    let script = "
node
freeze
step 36000
lose_contact
step -72000
at $((E - P))
step 36000
";
    let Some(story) = machine(script, &[("FILESYSTEM", "1")]).run() else { return };
    let last_feed = story.number("E-P");
    story.assert_reset(last_feed + story.least()..last_feed + story.w());
}
