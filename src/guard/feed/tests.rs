//! The real feed thread's code over a watchdog stricter than any kernel's: it fires on the first nanosecond that is too
//! late, and every open, set timeout and close feeds it.

mod fencing;
mod retiming;

use super::*;
use crate::lease::gone::AllGone;
use proptest::prelude::*;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

const W: Duration = Duration::from_secs(10);
const P: Duration = Duration::from_secs(1);

fn secs(s: f64) -> BootTime {
    BootTime::ZERO + Duration::from_secs_f64(s)
}

/// The machine around the thread: its clock, and its watchdog's counter.
struct Machine {
    now: BootTime,
    timeout: Duration,
    fires: Option<BootTime>,
    fired: Option<BootTime>,
    stopped: usize,
    fed: Vec<BootTime>,
    resets: usize,
    /// How long the thread is held between its look at the clock and what it does next.
    hold: Duration,
    /// What the driver can do.
    driver: Driver,
    busy: bool,
    open: bool,
    broken: bool,
}

#[derive(Clone, Copy)]
struct Driver {
    magic_close: bool,
    settable: bool,
    clamp: (u32, u32),
}

const GOOD: Driver = Driver { magic_close: true, settable: true, clamp: (1, 60) };

#[derive(Clone)]
struct Model(Rc<RefCell<Machine>>);

impl Model {
    fn new(driver: Driver) -> Model {
        Model(Rc::new(RefCell::new(Machine {
            now: secs(100.0),
            timeout: Duration::from_secs(30),
            fires: None,
            fired: None,
            stopped: 0,
            fed: vec![],
            resets: 0,
            hold: Duration::ZERO,
            driver,
            busy: false,
            open: false,
            broken: false,
        })))
    }

    fn pass(&self, to: BootTime) {
        let mut machine = self.0.borrow_mut();
        machine.now = machine.now.max(to);
        if machine.fired.is_none() && machine.fires.is_some_and(|at| at <= machine.now) {
            machine.fired = machine.fires;
        }
    }

    fn hit(&self) {
        let hold = std::mem::take(&mut self.0.borrow_mut().hold);
        let to = self.0.borrow().now + hold;
        self.pass(to);
        let mut machine = self.0.borrow_mut();
        let (now, timeout) = (machine.now, machine.timeout);
        machine.fed.push(now);
        machine.fires = Some(now + timeout);
    }
}

impl Watchdog for Model {
    fn arm(&mut self, seconds: u32) -> Result<u32, ArmError> {
        let driver = self.0.borrow().driver;
        // One at a time has it open (watchdog_open, drivers/watchdog/watchdog_dev.c).
        if self.0.borrow().busy || self.0.borrow().open {
            return Err(ArmError::Open(io::Error::from_raw_os_error(libc::EBUSY)));
        }
        self.hit();
        if !driver.magic_close {
            // The close that follows a refusal stops it.
            self.0.borrow_mut().fires = None;
            return Err(ArmError::StoppedByAnyClose);
        }
        if !driver.settable {
            return Err(ArmError::Timeout(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        let seconds = seconds.clamp(driver.clamp.0, driver.clamp.1);
        self.0.borrow_mut().timeout = Duration::from_secs(seconds.into());
        self.0.borrow_mut().open = true;
        self.hit();
        Ok(seconds)
    }

    fn set_timeout(&mut self, seconds: u32) -> io::Result<u32> {
        let driver = self.0.borrow().driver;
        if !driver.settable {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let seconds = seconds.clamp(driver.clamp.0, driver.clamp.1);
        self.0.borrow_mut().timeout = Duration::from_secs(seconds.into());
        self.hit();
        Ok(seconds)
    }

    fn feed(&mut self) -> io::Result<()> {
        if self.0.borrow().broken {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        self.hit();
        Ok(())
    }

    fn shortest(&self) -> Option<u32> {
        Some(self.0.borrow().driver.clamp.0)
    }

    fn shorten(&mut self) -> io::Result<()> {
        let least = self.0.borrow().driver.clamp.0;
        self.0.borrow_mut().timeout = Duration::from_secs(least.into());
        self.hit();
        Ok(())
    }

    fn duplicate(&self) -> Option<OwnedFd> {
        None
    }

    fn abandon(&mut self) {
        self.0.borrow_mut().open = false;
        self.hit();
    }

    fn disarm(&mut self, _proof: AllGone) -> io::Result<()> {
        let mut machine = self.0.borrow_mut();
        (machine.fires, machine.open) = (None, false);
        machine.stopped += 1;
        Ok(())
    }
}

fn orders(last_resort: Option<Duration>) -> Orders {
    let shortened = SHORT_TIMEOUTS.map(|seconds| (seconds, Duration::from_secs(seconds.into())));
    Orders { timeout: 10, restraint: None, period: P, shortened, last_resort }
}

fn report_of(keeper: Keeper) -> FeedReport {
    let report = FeedReport::default();
    report.kept_by(keeper);
    report
}

type ModelFeeder = Feeder<Model, Box<dyn Fn() -> BootTime>, Box<dyn FnMut()>>;

struct Bench {
    model: Model,
    permit: Permit,
    disarm: DisarmOrder,
    report: FeedReport,
    feeder: ModelFeeder,
    next: BootTime,
}

impl Bench {
    fn new(driver: Driver, keeper: Keeper) -> Bench {
        let model = Model::new(driver);
        let (clock, resort) = (model.clone(), model.clone());
        let orders = orders(Some(W + Duration::from_secs(1)));
        let feeder: ModelFeeder = Feeder::new(
            model.clone(),
            orders,
            Box::new(move || clock.0.borrow().now),
            Box::new(move || resort.0.borrow_mut().resets += 1),
        );
        let next = model.0.borrow().now;
        Bench {
            model,
            permit: Permit::default(),
            disarm: DisarmOrder::default(),
            report: report_of(keeper),
            feeder,
            next,
        }
    }

    /// Lets the thread run on time until `s`.
    fn run(&mut self, s: f64) -> &mut Bench {
        while self.next <= secs(s) {
            self.model.pass(self.next);
            self.next = self.feeder.beat(&self.permit, &self.disarm, &self.report);
        }
        self.model.pass(secs(s));
        self
    }

    fn permit(&mut self, s: f64) -> &mut Bench {
        self.permit.publish(secs(s));
        self
    }

    fn machine(&self) -> std::cell::Ref<'_, Machine> {
        self.model.0.borrow()
    }
}

#[test]
fn nothing_is_opened_before_the_first_permit() {
    for keeper in [Keeper::Nobody, Keeper::FdStore] {
        let mut bench = Bench::new(GOOD, keeper);
        bench.run(150.0);
        assert!(bench.machine().fed.is_empty());
        assert_eq!(bench.report.state(), FeedState::Waiting);
        bench.permit(1000.0).run(152.0);
        assert_eq!(bench.report.state(), FeedState::Armed);
    }
}

#[test]
fn under_a_permit_it_is_fed_every_period_and_never_fires() {
    let mut bench = Bench::new(GOOD, Keeper::Nobody);
    bench.permit(1000.0).run(900.0);
    assert_eq!(bench.machine().fired, None);
    assert!(bench.report.longest_gap() <= P, "{:?}", bench.report.longest_gap());
}

#[test]
fn when_the_permit_passes_it_fires_w_later_whoever_keeps_it_open() {
    for keeper in [Keeper::Nobody, Keeper::FdStore] {
        let mut bench = Bench::new(GOOD, keeper);
        bench.permit(123.4).run(200.0);
        let fired = bench.machine().fired.expect("it fires");
        assert!(fired <= secs(123.4) + W && fired > secs(123.4) + W - P, "{keeper:?}: {fired:?}");
    }
}

#[test]
fn without_an_fd_store_it_is_closed_at_the_permits_end_so_that_no_death_is_a_later_feed() {
    let mut bench = Bench::new(GOOD, Keeper::Nobody);
    bench.permit(123.4).run(124.0);
    assert_eq!((bench.report.state(), bench.machine().open), (FeedState::Abandoned, false));
    assert_eq!(*bench.machine().fed.last().unwrap(), secs(123.4), "the close is the last feed");
    let mut bench = Bench::new(GOOD, Keeper::FdStore);
    bench.permit(123.4).run(124.0);
    assert_eq!((bench.report.state(), bench.machine().open), (FeedState::Starving, true));
}

#[test]
fn a_thread_that_wakes_after_e_leaves_it_open_for_a_close_would_be_a_late_feed() {
    let mut bench = Bench::new(GOOD, Keeper::Nobody);
    bench.permit(123.4).run(122.5);
    // Held up from before the permit's end until after E, P later.
    bench.next = secs(124.5);
    bench.run(130.0);
    assert_eq!(bench.report.state(), FeedState::Starving);
    assert!(*bench.machine().fed.last().unwrap() <= secs(123.4));
}

#[test]
fn a_new_permit_arms_it_again_before_it_fires() {
    for keeper in [Keeper::Nobody, Keeper::FdStore] {
        let mut bench = Bench::new(GOOD, keeper);
        bench.permit(123.4).run(130.0).permit(1000.0).run(500.0);
        assert_eq!((bench.machine().fired, bench.report.state()), (None, FeedState::Armed), "{keeper:?}");
    }
}

#[test]
fn a_feed_that_comes_after_the_permit_is_cut_short_at_once() {
    let mut bench = Bench::new(GOOD, Keeper::FdStore);
    bench.permit(123.4).run(122.9);
    // Stopped exactly between reading the permit and feeding (rule 5), for 5 s.
    bench.next = secs(123.0);
    bench.model.0.borrow_mut().hold = Duration::from_secs(5);
    bench.run(200.0);
    assert_eq!(bench.machine().fired, Some(secs(129.0)), "the least timeout from then, not another W");
}

#[test]
fn it_is_stopped_with_the_proof_alone_and_armed_again_when_that_is_taken_back() {
    let mut bench = Bench::new(GOOD, Keeper::Nobody);
    bench.permit(1000.0).run(120.0);
    bench.disarm.give(AllGone::for_tests());
    bench.run(300.0);
    assert_eq!((bench.report.state(), bench.machine().stopped, bench.machine().fired), (FeedState::Disarmed, 1, None));
    bench.disarm.take_back();
    bench.run(310.0);
    assert_eq!(bench.report.state(), FeedState::Armed);
    assert_eq!(bench.machine().stopped, 1);
}

#[test]
fn a_driver_that_any_close_stops_is_refused_for_good_and_a_busy_one_is_tried_again() {
    let mut bench = Bench::new(Driver { magic_close: false, ..GOOD }, Keeper::Nobody);
    bench.permit(1000.0).run(120.0);
    assert_eq!((bench.report.state(), bench.machine().fired), (FeedState::Refused, None));
    let mut bench = Bench::new(GOOD, Keeper::Nobody);
    bench.model.0.borrow_mut().busy = true;
    bench.permit(1000.0).run(120.0);
    assert_eq!((bench.report.state(), bench.report.errno()), (FeedState::Waiting, libc::EBUSY));
    bench.model.0.borrow_mut().busy = false;
    bench.run(125.0);
    assert_eq!((bench.report.state(), bench.report.errno()), (FeedState::Armed, 0));
}

#[test]
fn a_timeout_that_cannot_be_set_is_refused_and_one_that_was_clamped_is_told_and_fed_in_time() {
    let mut bench = Bench::new(Driver { settable: false, ..GOOD }, Keeper::Nobody);
    bench.permit(1000.0).run(105.0);
    assert_eq!((bench.report.state(), bench.report.timeout()), (FeedState::Refused, 0));
    let mut bench = Bench::new(Driver { clamp: (1, 2), ..GOOD }, Keeper::Nobody);
    bench.permit(1000.0).run(500.0);
    assert_eq!((bench.report.timeout(), bench.machine().fired), (2, None));
    assert_eq!(bench.report.longest_gap(), Duration::from_millis(500), "four feeds fit in a timeout");
}

#[test]
fn one_that_was_kept_open_is_fed_under_a_permit_alone_and_never_opened_again() {
    let mut bench = Bench::new(GOOD, Keeper::FdStore);
    bench.permit(1000.0).run(120.0);
    // The guard dies, the service manager keeps the device, and the next guard gets it without a permit.
    let (clock, resort) = (bench.model.clone(), bench.model.clone());
    let orders = orders(None);
    bench.report = report_of(Keeper::FdStore);
    bench.feeder = Feeder::adopting(
        (bench.model.clone(), 10),
        orders,
        &bench.report,
        Box::new(move || clock.0.borrow().now),
        Box::new(move || resort.0.borrow_mut().resets += 1),
    );
    let fed = bench.machine().fed.len();
    bench.permit(0.0).run(125.0);
    assert_eq!(bench.machine().fed.len(), fed, "taking it over is no feed");
    assert_eq!(bench.report.timeout(), 10, "the bound is made of what it is set to");
    bench.permit(1000.0).run(200.0);
    assert_eq!((bench.report.state(), bench.machine().fired), (FeedState::Armed, None));
    bench.permit(0.0).run(300.0);
    assert!(bench.machine().fired.is_some());
}

#[test]
fn one_that_was_kept_open_is_not_closed_before_its_first_permit_for_that_would_feed_it() {
    let mut bench = Bench::new(GOOD, Keeper::FdStore);
    bench.permit(1000.0).run(120.0);
    let (clock, resort) = (bench.model.clone(), bench.model.clone());
    bench.report = report_of(Keeper::Nobody);
    bench.feeder = Feeder::adopting(
        (bench.model.clone(), 10),
        orders(None),
        &bench.report,
        Box::new(move || clock.0.borrow().now),
        Box::new(move || resort.0.borrow_mut().resets += 1),
    );
    let fed = bench.machine().fed.len();
    bench.next = secs(121.0);
    bench.permit(120.9).run(125.0);
    assert_eq!((bench.machine().fed.len(), bench.report.state()), (fed, FeedState::Starving));
}

#[test]
fn a_driver_that_fails_is_told_of() {
    let mut bench = Bench::new(GOOD, Keeper::Nobody);
    bench.permit(1000.0).run(120.0);
    bench.model.0.borrow_mut().broken = true;
    bench.run(122.0);
    assert_eq!((bench.report.state(), bench.report.errno()), (FeedState::Failing, libc::ENODEV));
}

#[test]
fn the_second_way_down_is_taken_when_it_should_have_fired_and_not_before() {
    for keeper in [Keeper::Nobody, Keeper::FdStore] {
        let mut bench = Bench::new(GOOD, keeper);
        bench.permit(123.4).run(123.4 + 10.0);
        assert_eq!(bench.machine().resets, 0);
        bench.run(123.4 + 13.0);
        assert!(bench.machine().resets > 0, "{keeper:?}");
    }
}

proptest! {
    /// Whatever permits come, however late the thread is woken, wherever it is held and whenever it dies: after the last
    /// permit has passed it fires by E + W (a thread that wakes late may close it until E, P after the permit), and within
    /// one W more under the double faults of rule 5.
    #[test]
    fn it_always_fires_in_time(
        steps in proptest::collection::vec((0.0..4.0f64, 0.0..6.0f64, 0.0..1.5f64), 1..40),
        held in proptest::option::of(0.0..20.0f64),
        dies in any::<bool>(),
        store in any::<bool>(),
    ) {
        let keeper = if store { Keeper::FdStore } else { Keeper::Nobody };
        let mut bench = Bench::new(GOOD, keeper);
        let (mut now, mut last) = (100.0, 100.0f64);
        for (pause, permit, late) in steps {
            now += pause;
            bench.next = bench.next + Duration::from_secs_f64(late);
            bench.run(now);
            if bench.machine().fired.is_some() { return Ok(()); }
            bench.permit(now + permit);
            // What was found running takes a permit back; the thread learns it at its next beat, within the old one.
            last = last.max(now + permit);
        }
        if let Some(held) = held {
            bench.model.0.borrow_mut().hold = Duration::from_secs_f64(held);
        }
        let end = if dies {
            // The guard's death closes what nobody else keeps open.
            bench.run(now + 0.5);
            if keeper == Keeper::Nobody && bench.machine().open { bench.model.hit(); }
            bench.machine().now
        } else {
            bench.run(last + 60.0);
            secs(last)
        };
        bench.model.pass(secs(last + 100.0));
        let machine = bench.machine();
        if let (Some(fired), false) = (machine.fired, machine.fed.is_empty()) {
            let limit = secs(last).max(end) + P + W + if held.is_some() { W } else { Duration::ZERO };
            let late_hold = held.map_or(Duration::ZERO, Duration::from_secs_f64);
            prop_assert!(fired <= limit + late_hold, "fired {fired:?}, permit {last}, limit {limit:?}");
        } else {
            prop_assert!(machine.fed.is_empty(), "fed and never fired");
        }
    }
}
