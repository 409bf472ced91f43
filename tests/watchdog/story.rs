//! A host that was reset tells why when it is up again.

use crate::machine::{Device, Machine};

#[test]
fn the_next_boot_tells_which_domain_could_not_be_killed_and_when_each_step_was() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = dir.path().join("disk");
    let machine = Machine::new(Device::I6300esb, "STATE=/disk\nnode\nfreeze\nlose_contact\n");
    let Some(before) = (Machine { environment: &[("FILESYSTEM", "1")], ..machine }).run_on(&disk) else { return };
    let last_feed = before.number("E-P");
    before.assert_reset(last_feed + before.least()..last_feed + before.w());
    // On the serial console by the kernel itself, which has its time before each line.
    let console = before.console();
    let kernel = |words: &str| console.lines().any(|line| line.starts_with('[') && line.contains(words));
    assert!(kernel("leasehold: no answer has renewed leases here"), "{console}");
    assert!(kernel("is fed no more: domain web-1"), "{console}");
    assert!(kernel("leasehold: SIGKILL, for leases ended here"), "{console}");

    let script = "
STATE=/disk
configure
leasehold why --config /etc/leasehold.toml
say exit $?
leasehold why --json web-1 --config /etc/leasehold.toml | grep -q '\"ending\": \"reset\"' && say json
authority
guard
until_ok leasehold status
over
";
    let after = Machine::new(Device::I6300esb, script).run_on(&disk).expect("the first could be run");
    let console = after.console();
    assert_eq!(after.value("exit"), "0", "{console}");
    after.when("json");
    let told = |words: &str| console.lines().any(|line| line.contains(words));
    assert!(told("host n1 was most likely reset by its watchdog"), "{console}");
    assert!(told("SIGKILL for domain web-1 (7d1f3f0a-0000-4000-8000-00000000001a)"), "{console}");
    assert!(told("is still not gone, and this host was given up: "), "{console}");
    assert!(told("the reset was due by then"), "{console}");
    assert!(told("`leasehold why` tells how it came to that"), "the guard says it at its start: {console}");
}
