//! The tables of `cargo xtask policies`: how near each policy comes to the ideal, and whether together ever
//! loses.

use super::{Outcome, Profile, Scenario, System};
use dml_core::{DeviceDesc, DeviceKind};
use dml_scheduler::simulated::{Device as Offer, Planned};
use dml_scheduler::{
    Knowledge,
    policy::{Calibrated, Policy, PolicySpec, Prior, Splitter},
};
use std::fmt;
use std::time::Duration;

/// The local work size of the tables, in items.
pub const LOCAL_SIZE: u64 = 64;

/// The items of the first table.
const ITEMS: u64 = 32_768 * LOCAL_SIZE;

/// How many packages a unit may have at once under the calibrated policy. The published policies know of one.
const DEPTH: usize = 2;

/// What of the devices is known before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Known {
    /// Powers, rates and costs, all of them right.
    Exact,
    /// Nothing: all powers are taken to be equal.
    Nothing,
}

/// A policy of the first table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Column {
    /// One package for each device.
    Static,
    /// 200 equal packages.
    Dynamic,
    /// HGuided with k = 2.
    HGuided,
    /// Calibrated.
    Calibrated,
}

impl Column {
    /// All columns, in their order.
    pub const ALL: [Self; 4] = [Self::Static, Self::Dynamic, Self::HGuided, Self::Calibrated];

    /// The published geometric mean and worst of ideal by makespan.
    #[must_use]
    pub const fn published(self, ideal: Duration, known: Known) -> (f64, f64) {
        match (self, ideal.as_millis() >= 1000, known) {
            (Self::Static, true, Known::Exact) => (0.758, 0.42),
            (Self::Static, false, Known::Exact) => (0.756, 0.42),
            (Self::Static, _, Known::Nothing) => (0.375, 0.10),
            (Self::Dynamic, true, _) => (0.942, 0.52),
            (Self::Dynamic, false, _) => (0.693, 0.39),
            (Self::HGuided, true, Known::Exact) => (0.996, 0.98),
            (Self::HGuided, true, Known::Nothing) => (0.861, 0.32),
            (Self::HGuided, false, Known::Exact) => (0.895, 0.83),
            (Self::HGuided, false, Known::Nothing) => (0.780, 0.32),
            (Self::Calibrated, true, _) => (0.999, 0.99),
            (Self::Calibrated, false, Known::Exact) => (0.961, 0.91),
            (Self::Calibrated, false, Known::Nothing) => (0.958, 0.88),
        }
    }

    /// Runs the work of one system and profile.
    ///
    /// # Panics
    /// Never: the systems' powers are powers that policies accept.
    #[must_use]
    pub fn run(self, system: &System, profile: Profile, ideal: Duration, known: Known) -> Outcome {
        let costs = profile.costs();
        let scenario = Scenario::of_ideal(&system.devices, &costs, ITEMS, ideal);
        if self == Self::Calibrated {
            let policy = calibrated(&scenario, ITEMS, known);
            return scenario.depth(DEPTH).run(splitter(Box::new(policy), system.devices.len(), ITEMS));
        }
        let spec = match self {
            Self::Static => PolicySpec::Static,
            Self::Dynamic => PolicySpec::Dynamic { packages: 200 },
            _ => PolicySpec::HGuided { k: 2.0, min: None },
        };
        let powers = match known {
            Known::Exact => system.powers(),
            Known::Nothing => vec![1.0; system.devices.len()],
        };
        scenario.run(spec.splitter(&powers, ITEMS, LOCAL_SIZE).expect("the powers are positive"))
    }
}

/// The calibrated policy for a scenario.
fn calibrated(scenario: &Scenario<'_>, items: u64, known: Known) -> Calibrated {
    let priors: Vec<Option<Prior>> = scenario
        .devices
        .iter()
        .map(|device| match known {
            Known::Exact => {
                let travel = device.link.map_or(0.0, |link| link.inward_s.max(link.outward_s));
                let rate = (device.power * scenario.items_per_s).min(1.0 / travel);
                Some(Prior::measured(rate, device.launch + device.turnaround))
            }
            Known::Nothing => None,
        })
        .collect();
    let overlapping = scenario.devices.iter().enumerate().filter(|(_, device)| device.link.is_some());
    let overlapping: Vec<_> = overlapping.map(|(unit, _)| dml_scheduler::UnitId(unit)).collect();
    Calibrated::new(items, LOCAL_SIZE, &priors).expect("the rates are positive").overlapping(overlapping)
}

fn splitter(policy: Box<dyn Policy>, units: usize, items: u64) -> Splitter {
    Splitter::new(policy, units, items, LOCAL_SIZE).expect("there are units")
}

/// Many figures by their geometric mean and the worst of them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cell {
    /// The geometric mean.
    pub mean: f64,
    /// The smallest.
    pub worst: f64,
}

impl Cell {
    fn of(figures: &[f64]) -> Self {
        let logarithms: f64 = figures.iter().map(|figure| figure.ln()).sum();
        let worst = figures.iter().copied().fold(f64::INFINITY, f64::min);
        Self { mean: (logarithms / figures.len() as f64).exp(), worst }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} [{:.2}]", self.mean, self.worst)
    }
}

/// One row of the first table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BalanceRow {
    /// How long the work takes at best.
    pub ideal: Duration,
    /// What is known of the devices.
    pub known: Known,
    /// One cell for each of [`Column::ALL`].
    pub cells: [Cell; 4],
}

/// Runs the first table on these systems, with every profile.
#[must_use]
pub fn balance(systems: &[System]) -> Vec<BalanceRow> {
    let mut rows = Vec::new();
    for ideal in [Duration::from_secs(1), Duration::from_millis(20)] {
        for known in [Known::Exact, Known::Nothing] {
            let cell = |column: Column| {
                let runs = systems.iter().flat_map(|system| Profile::ALL.map(|profile| (system, profile)));
                let figures: Vec<f64> = runs
                    .map(|(system, profile)| column.run(system, profile, ideal, known).efficiency())
                    .collect();
                Cell::of(&figures)
            };
            rows.push(BalanceRow { ideal, known, cells: Column::ALL.map(cell) });
        }
    }
    rows
}

/// What is known of a kernel before the run of a [`Duel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Learned {
    /// What twelve runs of the same size taught.
    Here,
    /// What twelve runs of 1/64 of the size taught.
    Elsewhere,
    /// Nothing.
    Nothing,
}

impl Learned {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Here, Self::Elsewhere, Self::Nothing];
}

/// What came of the planned devices beside the best one alone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Duel {
    /// The number of devices.
    pub devices: usize,
    /// The profile.
    pub profile: Profile,
    /// What is known before the run.
    pub learned: Learned,
    /// How long the best device takes alone.
    pub alone: Duration,
    /// How long the run takes.
    pub together: Duration,
}

impl Duel {
    /// The time together by the time alone: above 1 where together loses.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.together.as_secs_f64() / self.alone.as_secs_f64()
    }
}

/// The runs that teach, and those of which the median counts.
const TRAINING: usize = 12;
const MEASURED: usize = 5;
/// How many items a second a device of power 1 computes.
const ITEMS_PER_S: f64 = 20e6;

/// Compares co-executions on 1 to 4 unequal devices with the fastest of them alone, as a co-executor plans
/// and learns. Every profile runs with 64 to 64^4 items, in steps of 8.
#[must_use]
pub fn duels() -> Vec<Duel> {
    let sizes = (2..9).map(|power| 8u64.pow(power));
    let cases = (1..=4).flat_map(|devices| Profile::ALL.map(|profile| (devices, profile)));
    let of_case = |(devices, profile)| {
        sizes
            .clone()
            .flat_map(move |items| Learned::ALL.map(|learned| duel(devices, profile, items, learned)))
    };
    cases.flat_map(of_case).collect()
}

fn duel(devices: usize, profile: Profile, items: u64, learned: Learned) -> Duel {
    let (system, costs) = (System::unequal(devices), profile.costs());
    let run = |knowledge: &Knowledge, items: u64, members: &[usize]| {
        let those: Vec<_> = members.iter().map(|&unit| system.devices[unit].clone()).collect();
        let planned =
            Planned::of(knowledge, "kernel", [items, LOCAL_SIZE], 1, &offers(&system, members, items));
        let splitter = planned.splitter().expect("work-groups are not empty");
        let scenario = Scenario::new(&those, &costs, ITEMS_PER_S).depth(GPU_DEPTH);
        let outcome = scenario.run_with(splitter, |happened| {
            planned.learn(knowledge, &happened.packages, &happened.called_up);
        });
        outcome.makespan
    };
    let alone = (0..devices).map(|unit| {
        let knowledge = Knowledge::new();
        let _ = run(&knowledge, items, &[unit]);
        run(&knowledge, items, &[unit])
    });
    let all: Vec<usize> = (0..devices).collect();
    let knowledge = Knowledge::new();
    let taught = match learned {
        Learned::Here => Some(items),
        Learned::Elsewhere => Some((items / 64).max(1)),
        Learned::Nothing => None,
    };
    taught.iter().for_each(|&items| (0..TRAINING).for_each(|_| _ = run(&knowledge, items, &all)));
    let alone = alone.min().unwrap_or_default();
    // Now and then a run explores, so the median counts.
    let mut together: Vec<Duration> = (0..MEASURED)
        .map(|_| {
            run(&if learned == Learned::Here { knowledge.clone() } else { knowledge.detached() }, items, &all)
        })
        .collect();
    together.sort_unstable();
    Duel { devices, profile, learned, alone, together: together[MEASURED / 2] }
}

/// The devices of a system as a plan sees them.
fn offers(system: &System, members: &[usize], items: u64) -> Vec<Offer> {
    let offer = |&unit: &usize| {
        let device = &system.devices[unit];
        let (kind, name) = if unit == 0 { (DeviceKind::Cpu, "cpu") } else { (DeviceKind::Gpu, "gpu") };
        let name = format!("{name}:{unit}");
        let units = if unit == 0 { 1 } else { (device.fills / 256.0) as u32 };
        let per_item = device.link.map_or(0.0, |link| link.outward_s);
        Offer {
            desc: DeviceDesc::new(&name, kind).with_compute_units(units),
            is_host: unit == 0,
            bytes: [0.0, if per_item > 0.0 { items as f64 * 4.0 } else { 0.0 }],
            per_byte: per_item / 4.0,
        }
    };
    members.iter().map(offer).collect()
}

/// How much faster two equal GPUs are than one, where results travel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Pair {
    /// The time that one of them computes.
    pub alone: Duration,
    /// The time that the results travel, by that time.
    pub travel: f64,
    /// The geometric mean and the worst of the speedups, over all profiles.
    pub speedup: Cell,
}

/// How many packages a GPU has at once that it has not computed.
const GPU_DEPTH: usize = 3;

/// The items of the tables that have GPUs.
const PAIR_ITEMS: u64 = 16 << 20;

/// Runs two equal GPUs beside one of them, with every profile.
#[must_use]
pub fn pairs(known: Known) -> Vec<Pair> {
    let times = [2, 4, 8, 30].map(Duration::from_millis);
    let cases = times.into_iter().flat_map(|alone| [0.0, 0.4, 0.8, 1.2].map(|travel| (alone, travel)));
    let pair = |(alone, travel): (Duration, f64)| {
        let device = gpu(1.0, alone.as_secs_f64() * travel / PAIR_ITEMS as f64);
        let devices = [device.clone(), device];
        let run = |count: usize, profile| makespan(&devices[..count], profile, alone, known);
        let figures = Profile::ALL.map(|profile| run(1, profile) / run(2, profile));
        Pair { alone, travel, speedup: Cell::of(&figures) }
    };
    cases.map(pair).collect()
}

/// How a processor and a GPU share work where the GPU's link is slower than the GPU.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HeldBack {
    /// The time that the processor alone computes.
    pub alone: Duration,
    /// How many times as fast as the processor the link moves results.
    pub link: f64,
    /// The geometric mean and the worst part of the speed that both have together, over all profiles.
    pub efficiency: Cell,
}

/// Runs a processor beside a GPU that computes ten times as fast as its link moves results.
#[must_use]
pub fn held_back(known: Known) -> Vec<HeldBack> {
    let times = [8, 30, 100].map(Duration::from_millis);
    let cases = times.into_iter().flat_map(|alone| [0.7, 2.0].map(|link| (alone, link)));
    let row = |(alone, link): (Duration, f64)| {
        let outward_s = alone.as_secs_f64() / PAIR_ITEMS as f64 / link;
        let devices = [
            super::Device::new(1.0, Duration::from_micros(5), Duration::from_micros(5)),
            gpu(link * 10.0, outward_s),
        ];
        let ideal = alone.as_secs_f64() / (1.0 + link);
        let figures = Profile::ALL.map(|profile| ideal / makespan(&devices, profile, alone, known));
        HeldBack { alone, link, efficiency: Cell::of(&figures) }
    };
    cases.map(row).collect()
}

/// The time of a run of [`PAIR_ITEMS`] items, which a device of power 1 computes in `alone`, in seconds.
fn makespan(devices: &[super::Device], profile: Profile, alone: Duration, known: Known) -> f64 {
    let costs = profile.costs();
    let scenario = Scenario::new(devices, &costs, PAIR_ITEMS as f64 / alone.as_secs_f64()).depth(GPU_DEPTH);
    let policy = calibrated(&scenario, PAIR_ITEMS, known);
    scenario.run(splitter(Box::new(policy), devices.len(), PAIR_ITEMS)).makespan.as_secs_f64()
}

/// A GPU whose results travel for so many seconds per item.
fn gpu(power: f64, outward_s: f64) -> super::Device {
    let (launch, turnaround) = (Duration::from_micros(20), Duration::from_micros(15));
    let link = Some(super::Link::new(Duration::from_micros(15), 0.0, outward_s));
    super::Device { link, ..super::Device::new(power, launch, turnaround) }
}

/// Prints all tables.
pub fn print() {
    let four = System::four();
    println!(
        "ideal time by makespan, geometric mean [worst]; (published), ! where a mean differs by more than 0.02\n"
    );
    print_balance("four systems, seven profiles", &balance(&four), true);
    let far = System::far_apart();
    print_balance(far.name, &balance(std::slice::from_ref(&far)), false);
    print_duels(&duels());
    println!("\ntwo equal GPUs whose results travel, by one of them: geometric mean [worst]\n");
    println!("  {:<12}{:<12}{:<16}none", "one alone", "travel", "exact");
    let [exact, nothing] = [Known::Exact, Known::Nothing].map(pairs);
    for (Pair { alone, travel, speedup }, nothing) in exact.iter().zip(&nothing) {
        println!("  {:<12}{travel:<12}{:<16}{}", format!("{alone:?}"), speedup.to_string(), nothing.speedup);
    }
    println!(
        "\na processor and a GPU whose link is slower than it, of the speed of both: geometric mean [worst]\n"
    );
    println!("  {:<12}{:<12}{:<16}none", "cpu alone", "link", "exact");
    let [exact, nothing] = [Known::Exact, Known::Nothing].map(held_back);
    for (HeldBack { alone, link, efficiency }, nothing) in exact.iter().zip(&nothing) {
        println!(
            "  {:<12}{link:<12}{:<16}{}",
            format!("{alone:?}"),
            efficiency.to_string(),
            nothing.efficiency
        );
    }
}

fn print_duels(duels: &[Duel]) {
    println!("1 to 4 unequal devices by the best of them alone, 64 to 16,777,216 items, seven profiles");
    println!("from 1 ms up: geometric mean [worst]; below: the most that together takes longer\n");
    println!("  {:<12}{:<28}{:<28}unknown", "devices", "learned", "learned at 1/64");
    for devices in 1..=4 {
        let cell = |learned| Duels::of(duels, devices, learned).to_string();
        let [here, elsewhere, nothing] = Learned::ALL.map(cell);
        println!("  {devices:<12}{here:<28}{elsewhere:<28}{nothing}");
    }
}

/// What came of the duels of so many devices.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Duels {
    /// The geometric mean of the ratios of those that take the best device 1 ms or more.
    pub mean: f64,
    /// The largest of these ratios.
    pub worst: f64,
    /// By how much together takes longer than alone at most, where alone takes less than 1 ms.
    pub longer: Duration,
}

impl Duels {
    /// Sums the duels of so many devices up.
    #[must_use]
    pub fn of(duels: &[Duel], devices: usize, learned: Learned) -> Self {
        let (long, short): (Vec<&Duel>, Vec<&Duel>) = duels
            .iter()
            .filter(|duel| duel.devices == devices && duel.learned == learned)
            .partition(|duel| duel.alone >= Duration::from_millis(1));
        let gains: Vec<f64> = long.iter().map(|duel| 1.0 / duel.ratio()).collect();
        let Cell { mean, worst } = Cell::of(&gains);
        let longer = short.iter().map(|duel| duel.together.saturating_sub(duel.alone)).max();
        Self { mean: 1.0 / mean, worst: 1.0 / worst, longer: longer.unwrap_or_default() }
    }
}

impl fmt::Display for Duels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, worst, longer } = self;
        write!(f, "{mean:.3} [{worst:.2}], {:.0} us", longer.as_secs_f64() * 1e6)
    }
}

fn print_balance(title: &str, rows: &[BalanceRow], are_published: bool) {
    println!("{title}");
    println!(
        "  {:<16}{:<28}{:<28}{:<28}Calibrated",
        "ideal, powers", "Static", "Dynamic(200)", "HGuided k=2"
    );
    for row in rows {
        let known = if row.known == Known::Exact { "exact" } else { "none" };
        print!("  {:<16}", format!("{:?}, {known}", row.ideal));
        for (column, cell) in Column::ALL.into_iter().zip(&row.cells) {
            let (mean, worst) = column.published(row.ideal, row.known);
            let mark = if (cell.mean - mean).abs() > 0.02 { "!" } else { "" };
            let published =
                if are_published { format!(" ({mean:.3} [{worst:.2}]){mark}") } else { String::new() };
            print!("{:<28}", format!("{cell}{published}"));
        }
        println!();
    }
    println!();
}
