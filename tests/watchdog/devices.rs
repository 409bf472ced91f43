//! How long each device takes from its last feed to the reset, against what leasehold counts with.

use crate::machine::{Device, Machine, PULSE, Profile};

/// The guard's death closes the device, which is the last feed.
fn fires_after_the_time_it_is_known_to_need(device: Device, profile: Profile) {
    let machine = Machine { profile, ..Machine::new(device, "empty_node\nkill_guard") };
    let Some(story) = machine.run() else { return };
    let fed = story.when("killed");
    let (reset, counted) = (story.reset(), fed + story.w());
    story.assert_reset(fed + story.least()..counted);
    let early = counted.saturating_sub(reset + PULSE);
    assert!(early * 20 <= story.w(), "it fires {early} ms before what is counted: more than a twentieth of it");
}

#[test]
fn an_i6300esb_counts_slower_than_its_driver_thinks() {
    fires_after_the_time_it_is_known_to_need(Device::I6300esb, Profile::Default);
}

#[test]
fn an_itco_runs_down_twice() {
    fires_after_the_time_it_is_known_to_need(Device::Itco, Profile::Default);
}

#[test]
fn an_ib700_has_even_seconds() {
    fires_after_the_time_it_is_known_to_need(Device::Ib700, Profile::Fast);
}

#[test]
fn a_softdog_is_on_time() {
    fires_after_the_time_it_is_known_to_need(Device::Softdog, Profile::Default);
}
