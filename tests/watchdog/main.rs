//! The ladder, on a watchdog that really resets its machine: a host is reset when it must be, by then, and otherwise not.
//!
//! Every rung is one emulated machine (tests/testbed/watchdog-vm.sh) in which the binary as it ships guards one domain.
//! Rungs are named by what fails and when, relative to the timeline of docs/design.md: E - P is the last feed, E the
//! lease's end. All instants are the machine's own, which its watchdog counts too; `measured:` lines are the rows of
//! docs/watchdog.md.

mod devices;
mod feeding;
mod ladder;
mod machine;
mod measuring;
mod story;
mod systemd;
mod unaffected;
