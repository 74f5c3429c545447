//! One co-execution in virtual time: the production splitter and policy, driven as the director and its units
//! drive them.

use super::profile::Costs;
use super::system::{Device, Link};
use crate::random::Random;
use dml_scheduler::metrics::balance;
use dml_scheduler::{
    Package, UnitId,
    policy::{Assignment, Computed, Splitter},
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Some work for some devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scenario<'a> {
    /// The devices.
    pub devices: &'a [Device],
    /// What the items cost.
    pub costs: &'a Costs,
    /// Items per second that a device of power 1 computes, where an item costs 1.
    pub items_per_s: f64,
    /// How many packages a unit may have at once that the device has not computed.
    pub depth: usize,
    /// The largest part by which a package takes longer or shorter than it should.
    pub noise: f64,
    /// What the noise depends on.
    pub seed: u64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// When the last package was done.
    pub makespan: Duration,
    /// How long the work takes if no device ever idles and nothing costs anything but the items.
    pub ideal: Duration,
    /// The balance of the papers, over the devices' own end times.
    pub balance: f64,
    /// The packages that each device computed.
    pub packages: Vec<u64>,
    /// Number of items that no device computed.
    pub missing: u64,
}

impl Outcome {
    /// The part of the ideal speed that was reached.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        self.ideal.as_secs_f64() / self.makespan.as_secs_f64()
    }
}

impl<'a> Scenario<'a> {
    /// Makes a scenario in which work of `items` items would take `ideal` at best, with one package at a time
    /// and no noise.
    #[must_use]
    pub fn of_ideal(devices: &'a [Device], costs: &'a Costs, items: u64, ideal: Duration) -> Self {
        let powers: f64 = devices.iter().map(|device| device.power).sum();
        Self::new(devices, costs, items as f64 / ideal.as_secs_f64() / powers)
    }

    /// Makes a scenario of so many items per second of power 1, with one package at a time and no noise.
    #[must_use]
    pub const fn new(devices: &'a [Device], costs: &'a Costs, items_per_s: f64) -> Self {
        Self { devices, costs, items_per_s, depth: 1, noise: 0.0, seed: 0 }
    }

    /// The same with this many packages in flight.
    #[must_use]
    pub const fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// The same with packages that take longer or shorter than they should.
    #[must_use]
    pub const fn noisy(self, noise: f64, seed: u64) -> Self {
        Self { noise, seed, ..self }
    }

    /// Runs the work of a splitter that has one unit per device.
    ///
    /// # Panics
    /// When the splitter lets all units wait with nothing in flight: that run would hang.
    #[must_use]
    pub fn run(&self, splitter: Splitter) -> Outcome {
        self.run_with(splitter, |_| {})
    }

    /// Runs the work as [`run`](Self::run) does, and tells `learn` of what happened.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    #[must_use]
    pub fn run_with(&self, splitter: Splitter, learn: impl FnOnce(&Happened)) -> Outcome {
        let mut run = Run {
            scenario: self,
            units: vec![Unit::default(); self.devices.len()],
            events: BinaryHeap::new(),
            random: Random::new(self.seed),
            order: 0,
            splitter,
            happened: Happened::default(),
        };
        run.run();
        learn(&run.happened);
        let powers: f64 = self.devices.iter().map(|device| device.power).sum();
        let ends: Vec<f64> = run.units.iter().map(|unit| unit.end.as_secs_f64()).collect();
        Outcome {
            makespan: run.units.iter().map(|unit| unit.end).max().unwrap_or_default(),
            ideal: Duration::from_secs_f64(run.splitter.work() as f64 / self.items_per_s / powers),
            balance: balance(&ends),
            packages: run.units.iter().map(|unit| unit.packages).collect(),
            missing: run.splitter.work() - run.splitter.completed(),
        }
    }
}

/// The packages of a run that were computed, and the units that were called up.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Happened {
    /// Each package, and when it was.
    pub packages: Vec<(Package, Computed)>,
    /// Each unit that did not begin with the run, and when it did.
    pub called_up: Vec<(UnitId, Duration)>,
}

/// When a helper that stands by asks the policy whom it calls up, in microseconds.
const LOOKS: [u64; 6] = [50, 100, 150, 200, 250, 300];

struct Run<'a> {
    scenario: &'a Scenario<'a>,
    units: Vec<Unit>,
    /// What is to come, the next first; what comes at one time in the order in which it was caused.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    random: Random,
    order: u64,
    splitter: Splitter,
    happened: Happened,
}

#[derive(Clone, Debug, Default)]
struct Unit {
    in_flight: usize,
    packages: u64,
    is_lost: bool,
    /// When it began.
    begun: Duration,
    /// When the way in, the device and the way out have done all that they were given.
    inward_free: Duration,
    free: Duration,
    outward_free: Duration,
    end: Duration,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A device has computed a package, whose results are still to travel.
    Ended(usize),
    Done(Finished),
    Dies(usize),
    /// The policy is asked whom it calls up.
    Look,
}

/// A package with its times; events of one time are told apart by their order, so that finished packages
/// compare equal.
#[derive(Debug)]
struct Finished(Package, Computed);

impl PartialEq for Finished {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Finished {}
impl PartialOrd for Finished {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Finished {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Run<'_> {
    fn run(&mut self) {
        for (unit, device) in self.scenario.devices.iter().enumerate() {
            if let Some(dies) = device.dies {
                self.add(dies, Event::Dies(unit));
            }
        }
        LOOKS.into_iter().for_each(|micros| self.add(Duration::from_micros(micros), Event::Look));
        self.call_up(Duration::ZERO);
        self.ask(Duration::ZERO, 0);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if self.splitter.is_finished() {
                break;
            }
            let first = match event {
                Event::Ended(unit) => {
                    self.units[unit].in_flight -= 1;
                    unit
                }
                Event::Done(Finished(package, computed)) => {
                    let unit = package.unit().0;
                    if self.units[unit].is_lost {
                        continue;
                    }
                    let is_back_at_once = computed.done == computed.ended;
                    self.splitter.complete_with(&package, computed.clone()).expect("the unit has it");
                    self.happened.packages.push((package, computed));
                    self.call_up(now);
                    let this = &mut self.units[unit];
                    if is_back_at_once {
                        this.in_flight -= 1;
                    }
                    this.packages += 1;
                    this.end = now;
                    unit
                }
                Event::Dies(unit) => {
                    self.units[unit].is_lost = true;
                    self.splitter.retire(UnitId(unit));
                    self.call_up(now);
                    0
                }
                Event::Look => {
                    self.call_up(now);
                    0
                }
            };
            self.ask(now, first);
        }
        let is_over = self.splitter.is_finished() || self.units.iter().all(|unit| unit.is_lost);
        assert!(is_over, "every unit waits, and nothing is in flight");
    }

    /// Lets the units begin that the policy has called up.
    fn call_up(&mut self, now: Duration) {
        for unit in self.splitter.called_up(now) {
            self.units[unit.0].begun = now;
            self.happened.called_up.push((unit, now));
        }
    }

    /// Lets every unit ask in turn, the one that has news first, until none gets a package.
    fn ask(&mut self, now: Duration, first: usize) {
        let count = self.units.len();
        let mut is_moved = true;
        while is_moved {
            is_moved = false;
            for unit in (0..count).map(|unit| (unit + first) % count) {
                if self.units[unit].is_lost || self.units[unit].in_flight >= self.scenario.depth {
                    continue;
                }
                if let Assignment::Package(package) = self.splitter.assign_at(UnitId(unit), now) {
                    self.begin(package, now);
                    is_moved = true;
                }
            }
        }
    }

    /// Works out when a package will be done.
    fn begin(&mut self, package: Package, now: Duration) {
        let (scenario, index) = (self.scenario, package.unit().0);
        let (device, unit) = (&scenario.devices[index], &mut self.units[index]);
        let cost = scenario.costs.of(package.range(), self.splitter.work());
        let drift = 1.0 + scenario.noise * (self.random.below(2001) as f64 / 1000.0 - 1.0);
        let cost = (cost * drift).max(device.fills);
        let seconds = Duration::from_secs_f64(cost / (scenario.items_per_s * device.power));
        let travel = |free: &mut Duration, from: Duration, direction: fn(&Link) -> f64| match &device.link {
            Some(link) if direction(link) > 0.0 => {
                let seconds = Duration::from_secs_f64(direction(link) * package.items() as f64);
                *free = from.max(*free) + link.latency + seconds;
                *free
            }
            _ => from,
        };
        let start = now.max(unit.begun + device.setup);
        let there = travel(&mut unit.inward_free, start, |link| link.inward_s);
        let begun = (there + device.turnaround).max(unit.free);
        let ended = begun + device.launch + seconds;
        unit.free = ended;
        let done = travel(&mut unit.outward_free, ended, |link| link.outward_s);
        unit.in_flight += 1;
        let computed = Computed::new(&package, now, begun, ended, done);
        if done > ended {
            self.add(ended, Event::Ended(index));
        }
        self.add(done, Event::Done(Finished(package, computed)));
    }

    fn add(&mut self, at: Duration, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }
}
