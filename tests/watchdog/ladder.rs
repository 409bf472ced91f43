//! What fails, when, and by when the machine is reset for it.

use crate::machine::{Device, Machine, PULSE, Profile, Story, millis};

/// ext4 on a loop device, which can be frozen: a process that writes to it is then in state D and cannot be killed.
const STORAGE: &[(&str, &str)] = &[("FILESYSTEM", "1")];
/// Stops one thread of the guard alone, for ever: at its next system call, as a thread that hangs would be.
const STICK: &str = r#"
stick() {
  t=$(thread $1)
  strace -qq -o /dev/null -p $t -e inject=all:delay_enter=1000s &
  until_ok grep -q '^State:.t' /proc/$GUARD/task/$t/status
  say "stuck $1"
}
"#;

/// Each rung on both devices.
macro_rules! on_both {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        mod i6300esb { $(#[test] fn $name() { super::$name(super::Device::I6300esb); })* }
        mod softdog { $(#[test] fn $name() { super::$name(super::Device::Softdog); })* }
    };
}

on_both!(
    contact_lost_and_killable,
    contact_lost_and_unkillable,
    guard_killed_before_the_permits_end,
    guard_killed_at_the_permits_end,
    guard_killed_at_e,
    guard_killed_after_e,
    guard_stopped_before_the_permits_end,
    guard_stopped_then_killed,
    core_stuck,
    scan_stuck,
    feed_stuck,
    guard_restarted_within_the_permit,
    guard_restarted_after_the_permit_and_all_gone,
    guard_restarted_after_the_permit_and_unkillable,
    guard_killed_with_nothing_enforced,
);

const KILLABLE: &str = r#"
node
lose_contact
at $((E + 3 * W))
guest_is R || guest_is S || say gone
state_is armed && say fed
kill -CONT $AUTHORITY
leasehold lease revoke $U $CONTROL
leasehold lease wait $U --timeout 20 $CONTROL && say receipt $(leasehold lease show $U --json $CONTROL | grep -c '"receipt"')
over
"#;

fn contact_lost_and_killable(device: Device) {
    killable(Machine::new(device, KILLABLE));
}

#[test]
fn contact_lost_and_killable_with_the_default_timeline() {
    killable(Machine { profile: Profile::Default, ..Machine::new(Device::I6300esb, KILLABLE) });
}

fn killable(machine: Machine) {
    let Some(story) = machine.run() else { return };
    story.assert_not_reset();
    story.when("gone");
    story.when("fed");
    assert!(story.number("receipt") > 0, "the receipt is the proof: {}", story.console());
}

const UNKILLABLE: &str = "
node
freeze
lose_contact
";

fn contact_lost_and_unkillable(device: Device) {
    unkillable(Machine { environment: STORAGE, ..Machine::new(device, UNKILLABLE) });
}

#[test]
fn contact_lost_and_unkillable_with_the_default_timeline() {
    let machine = Machine::new(Device::I6300esb, UNKILLABLE);
    unkillable(Machine { profile: Profile::Default, environment: STORAGE, ..machine });
}

fn unkillable(machine: Machine) {
    let Some(story) = machine.run() else { return };
    let last_feed = story.number("E-P");
    story.assert_reset(last_feed + story.least()..last_feed + story.w());
}

#[test]
fn contact_lost_and_unkillable_and_the_device_never_fires() {
    let script = "LAST_RESORT=true\nnode\nfreeze\nlose_contact";
    let machine = Machine::new(Device::I6300esb, script);
    let environment = &[("FILESYSTEM", "1"), ("NEVER_FIRES", "1")];
    let Some(story) = (Machine { environment, ..machine }).run() else { return };
    let due = story.number("E-P") + story.w() + millis(machine.profile.timing().margin);
    story.assert_reset(due..due + millis(machine.profile.timing().feed()));
}

/// SIGKILL at an instant, nobody to restart it, and a domain that nothing can kill.
fn killed(device: Device, script: &'static str) -> Option<(Story, u64, u64)> {
    let story = Machine { environment: STORAGE, ..Machine::new(device, script) }.run()?;
    let (killed, last_feed) = (story.when("killed"), story.number("E-P"));
    Some((story, killed, last_feed))
}

fn guard_killed_before_the_permits_end(device: Device) {
    let script = "node\nfreeze\nlose_contact\nat $((E - P - 100))\nkill_guard";
    let Some((story, killed, last_feed)) = killed(device, script) else { return };
    assert!(killed < last_feed);
    // Its death is a close, and the close a feed.
    story.assert_reset(killed + story.least()..last_feed + story.w());
}

fn guard_killed_at_the_permits_end(device: Device) {
    let script = "node\nfreeze\nlose_contact\nat $((E - P))\nkill_guard";
    let Some((story, _, last_feed)) = killed(device, script) else { return };
    story.assert_reset(last_feed + story.least() - PULSE..story.number("E") + story.w());
}

fn guard_killed_at_e(device: Device) {
    let script = "node\nfreeze\nlose_contact\nat $E\nkill_guard";
    let Some((story, _, last_feed)) = killed(device, script) else { return };
    // It had let the device go before: its death feeds nothing.
    story.assert_reset(last_feed + story.least()..last_feed + story.w());
}

fn guard_killed_after_e(device: Device) {
    let script = "node\nfreeze\nlose_contact\nat $((E + 1000))\nkill_guard";
    let Some((story, _, last_feed)) = killed(device, script) else { return };
    story.assert_reset(last_feed + story.least()..last_feed + story.w());
}

fn guard_stopped_before_the_permits_end(device: Device) {
    let script = "node\nlose_contact\nat $((E - P - 100))\nkill -STOP $GUARD\nsay stopped";
    let Some(story) = Machine::new(device, script).run() else { return };
    let period = millis(Profile::Fast.timing().feed());
    let stopped = story.when("stopped");
    story.assert_reset(stopped - period + story.least()..stopped + story.w());
}

/// The double fault of rule 5 without an fd store: one more W, and no more.
fn guard_stopped_then_killed(device: Device) {
    let script = "node\nlose_contact\nat $((E - P - 100))\nkill -STOP $GUARD\nat $((E - 2 * P - 200 + W))\nkill_guard";
    let Some(story) = Machine::new(device, script).run() else { return };
    let killed = story.when("killed");
    story.assert_reset(killed + story.least()..story.number("E") + 2 * story.w());
}

fn core_stuck(device: Device) {
    // What it has renewed when it sticks is what the permit was made of.
    let script = "node\nstick leasehold\npause 300\nE=$(ledger_end); E=$((E / 1000000))\nsay E $E\nsay E-P $((E - P))";
    let Some(story) = with_strace(device, script).run() else { return };
    let last_feed = story.number("E-P");
    story.assert_reset(last_feed + story.least() - PULSE..last_feed + story.w());
}

fn scan_stuck(device: Device) {
    let Some(story) = with_strace(device, "node\nstick scan").run() else { return };
    let (timing, stuck) = (Profile::Fast.timing(), story.when("stuck"));
    let permit = stuck + millis(timing.ttl);
    story.assert_reset(permit - millis(timing.renew) + story.least() - PULSE..permit + story.w());
}

fn feed_stuck(device: Device) {
    let Some(story) = with_strace(device, "node\nstick feed").run() else { return };
    let (period, stuck) = (millis(Profile::Fast.timing().feed()), story.when("stuck"));
    story.assert_reset(stuck - period + story.least() - PULSE..stuck + story.w());
}

fn with_strace(device: Device, script: &str) -> Machine {
    // Scripts are constants; a leak of a few hundred bytes a test keeps them so.
    let script = Box::leak(format!("{STICK}\n{script}").into_boxed_str());
    Machine { programs: &["/usr/bin/strace"], ..Machine::new(device, script) }
}

fn guard_restarted_within_the_permit(device: Device) {
    let script = "
node
lose_contact
at $((E - 1500))
kill_guard
kill -CONT $AUTHORITY
guard
until_ok held
until_ok state_is armed
say armed again
pause $((3 * W))
kill -0 $GUEST && say the guest lives
over
";
    let Some(story) = Machine::new(device, script).run() else { return };
    story.assert_not_reset();
    story.when("the guest lives");
    assert!(story.when("armed again") < story.when("killed") + story.w());
}

/// A question without a bound counts at once, and a bound only when all that was answered without one has ended: for more
/// than a minute only receipts would free anything. So the first guard of a boot asks when its device is armed, and a
/// restarted one goes on promising what the first did.
#[test]
fn the_bound_is_counted_with_from_the_first_answer_on_and_over_a_restart() {
    let script = r#"
bounded() { leasehold node list --json $CONTROL | grep -q '"bound_ms": *[0-9]'; }
empty_node
bounded && say bounded from the first answer
kill_guard
guard
until_ok state_is armed
bounded && say bounded over a restart
over
"#;
    let Some(story) = Machine::new(Device::I6300esb, script).run() else { return };
    story.assert_not_reset();
    story.when("bounded from the first answer");
    story.when("bounded over a restart");
}

fn guard_restarted_after_the_permit_and_all_gone(device: Device) {
    let script = "
node
lose_contact
at $((E - P - 100))
kill_guard
at $((E + 500))
guard
say restarted
pause $((3 * W))
kill -0 $GUEST || say gone
state_is armed && say fed
over
";
    let Some(story) = Machine::new(device, script).run() else { return };
    // What the lease was of is proven gone before the device fires, so nothing is left to reset for.
    story.assert_not_reset();
    story.when("gone");
    story.when("fed");
}

fn guard_restarted_after_the_permit_and_unkillable(device: Device) {
    let script = "node\nfreeze\nlose_contact\nat $((E - P - 100))\nkill_guard\nat $((E + 500))\nguard";
    let Some((story, killed, last_feed)) = killed(device, script) else { return };
    story.assert_reset(killed + story.least()..last_feed + story.w());
}

/// The authority counts with the bound that it was told; a longer timeout would outlast that.
#[test]
fn guard_restarted_with_a_longer_timeout_and_unkillable() {
    let script = r#"
node
freeze
lose_contact
kill_guard
sed -i 's/^last_resort/timeout = "9s"\n&/' /etc/leasehold.toml
guard
until_ok state_is armed
say armed with $(field timeout_s) s
"#;
    let Some((story, killed, last_feed)) = killed(Device::I6300esb, script) else { return };
    assert_eq!(story.value("armed with"), "3 s");
    story.assert_reset(killed + story.least()..last_feed + story.w());
}

fn guard_killed_with_nothing_enforced(device: Device) {
    let Some(story) = Machine::new(device, "empty_node\nkill_guard").run() else { return };
    let killed = story.when("killed");
    story.assert_reset(killed + story.least()..killed + story.w());
}
