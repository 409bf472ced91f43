//! The guard as a service of a real systemd, by the unit that is shipped: whose death and whose stop feeds the watchdog, and
//! whose does not (rule 5).

use crate::machine::{Device, Machine, PULSE, Profile, Story, Systemd, millis};

/// For `node` of inside.sh: the guard is the unit's, and is restarted by it alone.
const SERVICE: &str = r#"
mkdir /etc/leasehold
ln -s ../leasehold.toml /etc/leasehold/leasehold.toml
unit() { systemctl show --property $1 --value leasehold; }
main_process() { GUARD=$(unit MainPID); }
guard() { systemctl start leasehold; main_process; }
kill_guard() { kill -9 $GUARD; say killed; }
# Another process than before, and it answers.
another_guard() { [ $(unit MainPID) -gt $GUARD ] && leasehold status; }
restarted() { until_ok another_guard; main_process; say restarted; }
stop() { say stopping; systemctl stop leasehold; say stopped $(unit ActiveState); }
keeper() { say "$1 keeper $(field keeper)"; leasehold status | grep ^keeper; }
kept() { [ "$(field keeper)" = 'fd store' ] && [ $(unit NFileDescriptorStore) = 1 ]; }
"#;

/// `prelude` comes before anything is started.
fn machine(systemd: Systemd, environment: &'static [(&'static str, &'static str)], script: &str) -> Machine {
    // Scripts are constants; a leak of a few hundred bytes a test keeps them so.
    let script = Box::leak(format!("{SERVICE}\n{script}").into_boxed_str());
    Machine { systemd: Some(systemd), environment, ..Machine::new(Device::I6300esb, script) }
}

/// With a filesystem that can be frozen, so that its domain cannot be killed.
const UNKILLABLE: &[(&str, &str)] = &[("FILESYSTEM", "1")];

/// Reset by E - P + W, counted from the last feed on purpose: no later one was made.
#[track_caller]
fn assert_no_late_feed(story: &Story) {
    let (last_feed, period) = (story.number("E-P"), millis(Profile::Fast.timing().feed()));
    story.assert_reset(last_feed - period + story.least() - PULSE..last_feed + story.w());
}

#[test]
fn in_the_fd_store_neither_the_guards_death_nor_its_stop_feeds_the_device() {
    let script = "
node
until_ok kept
freeze
lose_contact
at $((E - P + 50))
keeper first
say first state $(field state)
kill_guard
restarted
say then $(field state)
keeper second
at $((E + 300))
stop
say stored $(unit NFileDescriptorStore)
";
    let Some(story) = machine(Systemd::Backports, UNKILLABLE, script).run() else { return };
    let console = story.console();
    assert_eq!(story.value("first keeper"), "fd store", "{console}");
    assert_eq!(story.value("first state"), "starving", "open, and fed no more: {console}");
    assert_eq!(story.value("second keeper"), "fd store", "{console}");
    assert_eq!(story.value("then"), "starving", "taken over, and not fed without a permit: {console}");
    assert_eq!((story.value("stopped"), story.value("stored")), ("inactive", "1"), "{console}");
    assert!(story.when("killed") > story.number("E-P") && story.when("stopping") > story.number("E"), "{console}");
    assert_no_late_feed(&story);
    assert!(console.contains("keeper   the fd store, so no death of the guard feeds it; bound 8.5 s"), "{console}");
}

#[test]
fn a_guard_that_is_back_within_the_permit_feeds_the_same_device_on_and_after_a_drain_its_stop_resets_nothing() {
    let script = "
node
until_ok kept
lose_contact
at $((E - 1500))
kill_guard
kill -CONT $AUTHORITY
restarted
until_ok held
until_ok state_is armed
until_ok kept
pause $((2 * W))
kill -0 $GUEST && say the guest lives
state_is armed && say fed
kill -9 $GUEST
leasehold lease revoke $U $CONTROL
leasehold drain --wait && say drained
until_ok state_is disarmed
stop
say stored $(unit NFileDescriptorStore)
pause $((3 * W))
over
";
    let Some(story) = machine(Systemd::Backports, &[], script).run() else { return };
    story.assert_not_reset();
    for words in ["the guest lives", "fed", "drained"] {
        story.when(words);
    }
    assert_eq!((story.value("stopped"), story.value("stored")), ("inactive", "0"), "{}", story.console());
    assert!(!story.console().contains("watchdog did not stop"), "it was closed armed: {}", story.console());
}

#[test]
fn a_device_that_the_configuration_asks_for_no_more_is_fed_until_a_drain_stops_it() {
    let script = r#"
node
until_ok kept
sed -i 's/^device = "auto"/device = "none"/' /etc/leasehold.toml
kill_guard
restarted
until_ok state_is armed
pause $((3 * W))
state_is armed && say fed
kill -9 $GUEST
leasehold lease revoke $U $CONTROL
leasehold drain --wait && say drained
until_ok state_is disarmed
leasehold undrain
pause $((3 * W))
state_is disarmed && say not armed again
over
"#;
    let Some(story) = machine(Systemd::Backports, &[], script).run() else { return };
    story.assert_not_reset();
    for words in ["fed", "drained", "not armed again"] {
        story.when(words);
    }
    let said = "was armed by an earlier guard of this boot, and [watchdog] does not ask for it any more";
    assert!(story.console().contains(said), "{}", story.console());
}

#[test]
fn a_stop_over_a_running_domain_leaves_the_device_armed_and_says_when_it_resets() {
    let script = "node\nuntil_ok kept\nstop";
    let Some(story) = machine(Systemd::Backports, &[], script).run() else { return };
    let (stopped, period) = (story.when("stopping"), millis(Profile::Fast.timing().feed()));
    let said = "one domain runs on, and the watchdog /dev/watchdog0 (i6300ESB timer) stays armed: it resets this host in at most 3.1 s";
    assert!(story.console().contains(said), "{}", story.console());
    assert_eq!(story.value("stopped"), "inactive");
    story.assert_reset(stopped - period + story.least() - PULSE..story.when("stopped") + story.w());
}

#[test]
fn before_systemd_254_nobody_keeps_the_device_and_it_is_closed_before_a_death_could_feed_it() {
    let script = "
node
freeze
lose_contact
at $((E - P + 50))
keeper first
say first state $(field state)
kill_guard
restarted
stop
";
    let Some(story) = machine(Systemd::Own, UNKILLABLE, script).run() else { return };
    let console = story.console();
    assert_eq!(story.value("first keeper"), "nobody", "{console}");
    assert!(story.when("killed") > story.number("E-P"), "{console}");
    let last_feed = story.number("E-P");
    story.assert_reset(last_feed + story.least() - PULSE..last_feed + story.w());
    let said = "keeper   nobody, so it is closed when the permit passes; bound 11.5 s";
    assert!(console.contains(said), "{console}");
}

/// Why the store of systemd 252 is not relied on: it holds over a death, and is emptied by a stop, whose close is a feed.
#[test]
fn before_systemd_254_a_stop_empties_the_store_which_would_be_a_late_feed() {
    let script = "
mkdir -p /run/systemd/system/leasehold.service.d
printf '[Service]\\nEnvironment=FDSTORE=1\\n' >/run/systemd/system/leasehold.service.d/claims-254.conf
systemctl daemon-reload
node
until_ok kept
freeze
lose_contact
at $((E - P + 100))
kill_guard
restarted
say then $(field state)
at $((E + 300))
stop
";
    let Some(story) = machine(Systemd::Own, UNKILLABLE, script).run() else { return };
    assert_eq!(story.value("then"), "starving", "it held over a death: {}", story.console());
    let stopped = story.when("stopping");
    story.assert_reset(stopped + story.least()..story.when("stopped") + story.w());
    assert!(story.reset() > story.number("E-P") + story.w(), "later than the bound allows: {}", story.console());
}
