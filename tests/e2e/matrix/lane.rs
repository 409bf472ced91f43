//! A pair of machines that take a domain over from each other, case after case.

use super::fault::{Begins, Ends, Fault};
use crate::harness::{
    Domain, FrozenHost, Journal, Machine, Neighbour, Place, Process, Served, Site, Stopwatch, Way, World, wait_until,
};
use leasehold::lease::time::BootTime;
use leasehold::node::clock;
use std::fmt;
use std::time::Duration;

use crate::harness::{BOUND, FEED, RENEW};

const SOON: Duration = Duration::from_secs(20);
/// Before or after an instant.
const A_LITTLE: Duration = Duration::from_millis(100);
/// For the authority to be woken on a loaded machine.
const SLACK: Duration = Duration::from_millis(500);
/// Records: how long both are watched after all is well again.
const A_WHILE: usize = 8;

/// What one case measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    fault: Fault,
    offset: (Begins, Ends),
    proof: String,
    reset: bool,
    freed: Duration,
    written: Duration,
    records: (u32, u32),
}

impl Line {
    /// From the revocation until the other host was allowed to start.
    pub fn freed(&self) -> Duration {
        self.freed
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { fault, offset: (begins, ends), proof, reset, freed, written, records } = self;
        let reset = if *reset { "reset" } else { "" };
        write!(
            f,
            "| {:30} | {:13} | {:14} | {proof:9} | {reset:5} | {:4} ms | {:4} ms | {:4} | {:4} |",
            fault.row(),
            format!("{begins:?}"),
            format!("{ends:?}"),
            freed.as_millis(),
            written.as_millis(),
            records.0,
            records.1
        )
    }
}

/// What a fault holds for as long as it lasts; it ends when this is dropped.
enum Held {
    /// A start, behind our hook's yes and before QEMU's first instruction.
    Start { neighbour: Neighbour, _virsh: Process },
    /// Everything of a host.
    Host { _frozen: FrozenHost },
}

/// The pair, with the domain on one of them.
pub struct Lane<'w> {
    held: Option<Held>,
    // Dropped before the hosts whose processes it has.
    storage: Option<Served>,
    machines: [Machine; 2],
    /// Which of them has it.
    at: usize,
    domain: Domain,
    journal: Journal,
    site: Site<'w>,
}

impl<'w> Lane<'w> {
    /// With the domain running on the first, its disk a file, or on network storage.
    pub fn new(world: &'w World, way: Option<Way>) -> Lane<'w> {
        let site = Site::new(world);
        let machines = [1, 2].map(|number| Machine::start(&site, number));
        let journal = Journal::new(world);
        let hosts = [&machines[0].node.host, &machines[1].node.host];
        let storage = way.map(|way| Served::new(world, &journal, &hosts, way));
        let domain = journal.domain("web-1");
        for (index, host) in hosts.iter().enumerate() {
            let defined = storage.as_ref().map(|storage| storage.domain(&journal, index, "web-1"));
            host.define(&Domain { uuid: domain.uuid.clone(), ..defined.unwrap_or_else(|| domain.clone()) });
            host.virsh(&["autostart", "web-1"]).expect_ok();
        }
        site.lease(&["grant", &domain.uuid, "n1"]).expect_ok();
        let mut lane = Lane { held: None, machines, at: 0, domain, storage, journal, site };
        lane.start(0);
        lane
    }

    /// What its guards said.
    pub fn logs(&self) -> String {
        let log = |machine: &Machine| machine.node.guard.as_ref().map(Process::log).unwrap_or_default();
        self.machines.iter().map(|machine| format!("--- {}:\n{}", machine.name, log(machine))).collect()
    }

    /// Starts the domain on a machine under its lease; returns when it writes.
    fn start(&mut self, at: usize) -> u32 {
        let machine = &self.machines[at];
        let run = self.journal.load(&machine.node.host, machine.number, self.epoch());
        machine.node.start(&self.domain).expect_ok();
        self.journal.wait_for(run, 1);
        self.at = at;
        run
    }

    /// The fault meets the machine that has the domain; the other one takes it over.
    pub fn case(&mut self, fault: Fault, offset: (Begins, Ends)) -> Line {
        let (from, to) = (self.at, 1 - self.at);
        let all_well = |lane: &Lane<'_>| lane.machines.iter().all(Machine::promises);
        wait_until("both machines promised the bound", SOON, || all_well(self));
        if fault == Fault::StartHeld {
            self.hold_a_start(from);
        }
        if fault.cuts_storage() {
            let storage = self.storage.as_ref().expect("it is on network storage");
            storage.cut(from, &self.machines[from].node.host);
        }
        let before = self.renewed(from, offset.0);
        fault.begin(&mut self.machines[from]);
        if fault == Fault::HostPaused {
            self.held = Some(Held::Host { _frozen: self.machines[from].node.host.freeze() });
        }
        let (watch, name) = (Stopwatch::start(), self.machines[to].name.clone());
        let mut moving = self.site.control_meanwhile("move", &["lease", "move", &self.domain.uuid, &name]);
        let end = match offset.1 {
            Ends::BeforeLastFeed => Some(before - FEED - A_LITTLE),
            Ends::AtLastFeed => Some(before - FEED),
            Ends::AtExpiry => Some(before),
            Ends::AfterExpiry => Some(before + A_LITTLE),
            Ends::AfterTakeover => None,
        };
        let mut over = false;
        wait_until("the move was over", SOON, || {
            if !over && end.is_some_and(|end| clock::now() >= end) {
                self.end(fault, from);
                over = true;
            }
            moving.has_ended()
        });
        assert!(moving.wait_for_end(SOON).success(), "not moved");
        let run = self.start(to);
        let written = watch.elapsed();
        let proof = self.site.show(&self.domain)["last_proof"].clone();
        let freed = Duration::from_millis(proof["after_ms"].as_u64().expect("it was proven gone"));
        let proof = proof["proof"].as_str().expect("a kind of proof").to_owned();
        self.journal.wait_for(run, A_WHILE);
        if !over {
            self.end(fault, from);
        }
        let reset = self.machines[from].was_reset();
        if reset {
            fault.mend(&mut self.machines[from]);
            self.machines[from].boot();
            if let Some(storage) = &mut self.storage {
                storage.mount(from, &self.machines[from].node.host);
            }
            self.wait_until_believed(from);
        }
        wait_until("both machines promised the bound", SOON, || all_well(self));
        if let Some(storage) = &self.storage {
            storage.wait_until_quiet(&self.machines[from].node.host);
        }
        self.journal.wait_for(run, A_WHILE);
        assert_eq!(self.machines[from].node.host.qemu(&self.domain), None, "it came back");

        let runs = self.journal.runs().unwrap_or_else(|two| panic!("two wrote at once: {two}"));
        let [.., old, new] = runs.as_slice() else { panic!("two runs: {runs:?}") };
        assert_eq!((old.owner, new.owner, new.run), (from as u32 + 1, to as u32 + 1, run));
        assert!(freed <= BOUND + SLACK, "allowed after {freed:?}");
        Line { fault, offset, proof, reset, freed, written, records: (old.records, new.records) }
    }

    /// The domain ends, and its next start on this machine is under way for as long as this is held.
    fn hold_a_start(&mut self, at: usize) {
        let host = &self.machines[at].node.host;
        host.virsh(&["destroy", "web-1"]).expect_ok();
        let epoch = self.epoch();
        self.journal.load(host, self.machines[at].number, epoch);
        let neighbour = Neighbour::holding(host, Place::AfterOurs, "start");
        let virsh = host.start("start", "virsh", &["-q", "start", "web-1"]);
        neighbour.wait_until_held();
        self.held = Some(Held::Start { neighbour, _virsh: virsh });
    }

    fn epoch(&self) -> u32 {
        let epoch = self.site.show(&self.domain)["owner"]["epoch"].as_u64().expect("it is owned");
        u32::try_from(epoch).expect("a small one")
    }

    fn end(&mut self, fault: Fault, at: usize) {
        match self.held.take() {
            // What comes of it is libvirt's and the guard's affair; the neighbour must not hold the start it is about.
            Some(Held::Start { neighbour, _virsh }) => neighbour.let_go(),
            Some(Held::Host { .. }) | None => {}
        }
        if fault.cuts_storage() {
            self.storage.as_ref().expect("it is on network storage").heal(at);
        }
        let machine = &mut self.machines[at];
        if !machine.was_reset() {
            fault.end(machine);
        }
    }

    /// A machine that has no hardware uuid to show is taken for another one until its last boot's bound has passed.
    fn wait_until_believed(&self, at: usize) {
        wait_until("the authority believed the machine", SOON, || {
            // Each look is a program.
            std::thread::sleep(A_LITTLE);
            let shown = self.site.control(&["node", "show", &self.machines[at].name, "--json"]).expect_ok();
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("--json prints JSON");
            shown["conflict"].is_null()
        });
    }

    /// Waits for the instant in the machine's renewals; when its lease then runs out.
    fn renewed(&self, at: usize, begins: Begins) -> BootTime {
        let expires = || self.machines[at].expires(&self.domain);
        let mut before = None;
        wait_until("its process was renewed", SOON, || {
            before = expires();
            before.is_some()
        });
        let mut now = before;
        wait_until("it was renewed again", SOON, || {
            now = expires();
            now > before
        });
        if begins == Begins::BeforeRenewal {
            let next = clock::now() + RENEW - A_LITTLE;
            wait_until("the next renewal was near", SOON, || clock::now() >= next);
        }
        now.expect("waited for")
    }
}
