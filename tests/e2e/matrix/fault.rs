//! The rows: what fails, and how it ends.

use crate::harness::{Direction, Machine, Way};
use nix::sys::signal::Signal;

/// One row of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    NetworkCut,
    NetworkCutOutgoing,
    NetworkCutIncoming,
    LinkDown,
    LibvirtdStopped,
    LibvirtdKilled,
    GuardKilled,
    GuardStopped,
    GuardRestarted,
    NoRoom,
    HookRemoved,
    OldAnswers,
    EmptyAnswers,
    HtmlAnswers,
    HugeAnswers,
    SlowAnswers,
    LateAndRepeated,
    StorageCut,
    UnkillableQemu,
    StartHeld,
    HostPaused,
}

/// When it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Begins {
    AfterRenewal,
    BeforeRenewal,
}

/// When it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ends {
    /// E - P - 100 ms.
    BeforeLastFeed,
    /// E - P.
    AtLastFeed,
    /// E.
    AtExpiry,
    /// E + 100 ms.
    AfterExpiry,
    /// When the other host has taken over and written for a while.
    AfterTakeover,
}

impl Fault {
    pub const ALL: [Fault; 21] = [
        Fault::NetworkCut,
        Fault::NetworkCutOutgoing,
        Fault::NetworkCutIncoming,
        Fault::LinkDown,
        Fault::LibvirtdStopped,
        Fault::LibvirtdKilled,
        Fault::GuardKilled,
        Fault::GuardStopped,
        Fault::GuardRestarted,
        Fault::NoRoom,
        Fault::HookRemoved,
        Fault::OldAnswers,
        Fault::EmptyAnswers,
        Fault::HtmlAnswers,
        Fault::HugeAnswers,
        Fault::SlowAnswers,
        Fault::LateAndRepeated,
        Fault::StorageCut,
        Fault::UnkillableQemu,
        Fault::StartHeld,
        Fault::HostPaused,
    ];

    /// The row's name.
    pub fn row(self) -> &'static str {
        match self {
            Fault::NetworkCut => "network cut, both directions",
            Fault::NetworkCutOutgoing => "network cut, outgoing",
            Fault::NetworkCutIncoming => "network cut, incoming",
            Fault::LinkDown => "link down",
            Fault::LibvirtdStopped => "network cut, libvirtd stopped",
            Fault::LibvirtdKilled => "network cut, libvirtd killed",
            Fault::GuardKilled => "guard killed",
            Fault::GuardStopped => "guard stopped",
            Fault::GuardRestarted => "guard killed and restarted",
            Fault::NoRoom => "network cut, /run and /var full",
            Fault::HookRemoved => "network cut, hook removed",
            Fault::OldAnswers => "answers: an old one",
            Fault::EmptyAnswers => "answers: no claims",
            Fault::HtmlAnswers => "answers: HTML",
            Fault::HugeAnswers => "answers: without end",
            Fault::SlowAnswers => "answers: a byte now and then",
            Fault::LateAndRepeated => "exchanges late and repeated",
            Fault::StartHeld => "start held before QEMU runs",
            Fault::HostPaused => "host paused",
            Fault::StorageCut => "storage cut, QEMU sends to it",
            Fault::UnkillableQemu => "storage cut, QEMU in state D",
        }
    }

    /// At which offsets: all, or as many as make a difference.
    pub fn cases(self) -> impl Iterator<Item = (Fault, (Begins, Ends))> {
        let offsets = match self {
            Fault::NetworkCut | Fault::GuardKilled | Fault::GuardStopped => &super::OFFSETS[..],
            Fault::UnkillableQemu => &super::OFFSETS[..5],
            Fault::LibvirtdStopped | Fault::StartHeld | Fault::StorageCut => &super::OFFSETS[2..5],
            Fault::GuardRestarted => &super::OFFSETS[..2],
            // No bound covers a host that is paused for longer than its bound (docs/design.md): it must end before.
            Fault::HostPaused => &super::OFFSETS[2..4],
            // One row of the design's table, so each of its lies at one offset.
            Fault::EmptyAnswers | Fault::SlowAnswers => &super::OFFSETS[3..4],
            Fault::OldAnswers | Fault::HtmlAnswers | Fault::HugeAnswers => &super::OFFSETS[4..5],
            _ => &super::OFFSETS[3..5],
        };
        offsets.iter().map(move |offset| (self, *offset))
    }

    fn word(self) -> Option<&'static str> {
        Some(match self {
            Fault::OldAnswers => "old",
            Fault::EmptyAnswers => "empty",
            Fault::HtmlAnswers => "html",
            Fault::HugeAnswers => "huge",
            Fault::SlowAnswers => "drip",
            Fault::LateAndRepeated => "storm",
            _ => return None,
        })
    }

    fn cut(self) -> Option<Direction> {
        Some(match self {
            Fault::NetworkCutOutgoing => Direction::Outgoing,
            Fault::NetworkCutIncoming => Direction::Incoming,
            Fault::NetworkCut | Fault::LibvirtdStopped | Fault::LibvirtdKilled | Fault::NoRoom | Fault::HookRemoved => {
                Direction::Both
            }
            _ => return None,
        })
    }

    /// What the domain's disk has to be on, if it matters.
    pub fn way(self) -> Option<Way> {
        match self {
            Fault::StorageCut => Some(Way::ByQemu),
            Fault::UnkillableQemu => Some(Way::ByKernel),
            _ => None,
        }
    }

    /// Whether the storage is cut too, for as long as it lasts.
    pub fn cuts_storage(self) -> bool {
        self.way().is_some()
    }

    /// It fails.
    pub fn begin(self, machine: &mut Machine) {
        let host = &machine.node.host;
        if let Some(direction) = self.cut() {
            machine.node.link.cut(host, direction);
        }
        match self {
            Fault::LinkDown => machine.node.link.set(host, "down"),
            Fault::LibvirtdStopped => host.hang_libvirtd(),
            Fault::LibvirtdKilled => host.kill_libvirtd(),
            Fault::NoRoom => {
                let fill =
                    "for at in /run /var/lib; do dd if=/dev/zero of=$at/leasehold/filler bs=4k status=none; done";
                host.run("sh", &["-c", fill]).expect_failure();
            }
            Fault::HookRemoved => host.remove_hook(),
            Fault::GuardStopped => machine.node.guard.as_ref().expect("it runs").signal(Signal::SIGSTOP),
            Fault::GuardKilled => machine.node.kill_guard(),
            Fault::GuardRestarted => {
                machine.node.kill_guard();
                machine.start_guard();
            }
            _ => {}
        }
        if let Some(word) = self.word() {
            machine.between(word);
        }
    }

    /// It works again. Not for a machine that was reset.
    pub fn end(self, machine: &mut Machine) {
        let host = &machine.node.host;
        match self {
            Fault::LinkDown => machine.node.link.set(host, "up"),
            Fault::LibvirtdStopped => host.wake_libvirtd(),
            Fault::LibvirtdKilled => host.start_libvirtd(),
            Fault::NoRoom => {
                host.run("rm", &["/run/leasehold/filler", "/var/lib/leasehold/filler"]).expect_ok();
            }
            Fault::HookRemoved => host.install_hook(&crate::harness::leasehold()),
            Fault::GuardStopped => machine.node.guard.as_ref().expect("it runs").signal(Signal::SIGCONT),
            Fault::GuardKilled => machine.start_guard(),
            _ => {}
        }
        self.mend(machine);
    }

    /// What a reset does not mend.
    pub fn mend(self, machine: &mut Machine) {
        if self.cut().is_some() {
            machine.node.link.heal(&machine.node.host);
        }
        machine.between("plain");
    }
}
