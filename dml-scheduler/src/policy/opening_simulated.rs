//! Whole runs of the opening, by simulated devices.

use super::tests::{HOST, OTHER};
use super::*;
use crate::policy::{Prior, Twins};
use crate::{Assignment, Splitter};

/// A unit as it is. Times in seconds.
#[derive(Clone, Copy)]
struct Truth {
    /// How many times as fast it computes as the kernel's costs say.
    speed: f64,
    /// What a package costs besides its items, one after the other.
    launch: &'static [f64],
    /// What passes until its first package begins, and until a later one does.
    prepare: [f64; 2],
    /// The least time that computing takes.
    latency: f64,
    /// What results take to travel, while others are computed: of a package, and of an item.
    travel: [f64; 2],
    /// How many packages it has under way.
    depth: usize,
    /// How many threads it has. One of them computes alone what takes it no longer than [`ALONE`], once it knows that, and then nobody
    /// has to wake up.
    threads: f64,
}

/// The most seconds for which a thread of the host wakes no other.
const ALONE: f64 = 20e-6;

const CPU: Truth = Truth {
    speed: 1.0,
    launch: &[5e-6],
    prepare: [0.0; 2],
    latency: 0.0,
    travel: [0.0; 2],
    depth: 1,
    threads: 1.0,
};
const WORKER: Truth = Truth { launch: &[50e-6], prepare: [100e-6, 0.0], depth: 3, ..CPU };
const GPU: Truth = Truth { speed: 70.0, ..WORKER };

/// What is computed, by whom.
struct Simulation<'a> {
    items: u64,
    /// The least items of a package.
    local_size: u64,
    /// The seconds of the first unit for an item at a place from 0 to 1.
    cost: &'a dyn Fn(f64) -> f64,
    units: [Truth; 2],
    /// How it begins.
    begins: Begins,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Begins {
    /// With the first unit, and nothing known.
    Opening,
    /// As that, but with all units at once: the run touches much memory.
    AtOnce,
    /// With both units, and nothing known.
    Both,
    /// With both units, of which these rates are known.
    Known([Prior; 2]),
    /// With the first unit, in so many packages, of which nothing is known but that the other is its twin.
    Twins(u64),
}

/// A package that is under way.
struct UnderWay {
    package: Package,
    handed: f64,
    begun: f64,
    ended: f64,
    done: f64,
    /// Whether its end was told, if there is something to bring.
    has_ended: bool,
}

impl Simulation<'_> {
    const STEPS: usize = 10_000;

    /// The seconds of all items up to each of the places in between.
    fn sums(&self) -> Vec<f64> {
        let step = |step: usize| (self.cost)((step as f64 + 0.5) / Self::STEPS as f64);
        let each = self.items as f64 / Self::STEPS as f64;
        let sums = (0..Self::STEPS).scan(0.0, |sum, place| {
            *sum += step(place) * each;
            Some(*sum)
        });
        [0.0].into_iter().chain(sums).collect()
    }

    /// The seconds that the run takes with nothing known, and what each unit takes alone, all in one package or in fourteen.
    fn run(&self) -> (f64, [f64; 2]) {
        let sums = self.sums();
        let up_to = |item: u64| {
            let place = item as f64 / self.items as f64 * Self::STEPS as f64;
            let step = (place as usize).min(Self::STEPS - 1);
            sums[step] + (sums[step + 1] - sums[step]) * (place - step as f64)
        };
        let freight = Freight { setup: 150e-6, per_item: self.units[1].travel[1] };
        let priors = match self.begins {
            Begins::Known(priors) => priors.map(Some),
            _ => [None, None],
        };
        let inner = Calibrated::new(self.items, self.local_size, &priors).unwrap();
        let overlapping = [HOST, OTHER].into_iter().filter(|unit| self.units[unit.0].depth > 1);
        let inner = inner.overlapping(overlapping);
        let policy: Box<dyn Policy> = match self.begins {
            Begins::Opening | Begins::AtOnce => {
                let mut opening = Opening::new(inner, self.items, HOST, vec![(OTHER, freight)]);
                opening = opening.threads(self.units[0].threads as u64);
                Box::new(if self.begins == Begins::AtOnce { opening.at_once() } else { opening })
            }
            Begins::Twins(pieces) => Box::new(Twins::new((self.items, pieces), HOST, vec![(OTHER, freight)])),
            _ => Box::new(inner),
        };
        let mut splitter = Splitter::new(policy, 2, self.items, self.local_size).unwrap();
        if matches!(self.begins, Begins::Opening | Begins::Twins(_)) {
            splitter.bench(OTHER);
        }
        let (mut queues, mut packages) = ([Vec::new(), Vec::new()], [0_usize; 2]);
        let (mut now, mut free, mut travels, mut called): (f64, [f64; 2], [f64; 2], f64) = Default::default();
        // Who gets nothing further brings results itself, and asks for nothing meanwhile.
        let mut collects = [false; 2];
        let at = Duration::from_secs_f64;
        loop {
            for (unit, truth) in self.units.iter().enumerate() {
                while !collects[unit] && queues[unit].len() < truth.depth {
                    let Assignment::Package(package) = splitter.assign_at(UnitId(unit), at(now)) else {
                        break;
                    };
                    let prepared = match packages[unit] {
                        0 => now.max(called) + truth.prepare[0],
                        _ => now + truth.prepare[1],
                    };
                    let begun = free[unit].max(prepared);
                    let computing = (up_to(package.end()) - up_to(package.start())) / truth.speed;
                    let alone = computing * truth.threads;
                    let ended = begun
                        + if truth.threads > 1.0 && alone < ALONE {
                            alone
                        } else {
                            truth.launch[packages[unit] % truth.launch.len()] + computing.max(truth.latency)
                        };
                    let done =
                        ended.max(travels[unit]) + truth.travel[0] + truth.travel[1] * package.items() as f64;
                    (free[unit], travels[unit]) = (ended, done);
                    packages[unit] += 1;
                    queues[unit].push(UnderWay {
                        package,
                        handed: now,
                        begun,
                        ended,
                        done,
                        // Who brings nothing has nothing to tell before.
                        has_ended: ended == done,
                    });
                }
            }
            for (unit, queue) in queues.iter().enumerate() {
                collects[unit] = queue.len() == 1 && queue[0].has_ended;
            }
            let events = queues.iter().enumerate().flat_map(|(unit, queue)| {
                let ends = queue.iter().enumerate().filter(|(_, one)| !one.has_ended);
                let done = queue.first().filter(|one| one.has_ended);
                ends.map(move |(place, one)| (unit, Some(place), one.ended))
                    .chain(done.map(|one| (unit, None, one.done)))
            });
            let Some((unit, ends, at_time)) = events.min_by(|a, b| a.2.total_cmp(&b.2)) else { break };
            now = at_time;
            if let Some(place) = ends {
                let UnderWay { package, handed, begun, ended, has_ended, .. } = &mut queues[unit][place];
                *has_ended = true;
                let computed = Computed::new(package, at(*handed), at(*begun), at(*ended), at(*ended));
                splitter.ended(package, computed).unwrap();
            } else {
                let UnderWay { package, handed, begun, ended, done, .. } = queues[unit].remove(0);
                collects[unit] = false;
                let computed = Computed::new(&package, at(handed), at(begun), at(ended), at(done));
                splitter.complete_with(&package, computed).unwrap();
            }
            if !splitter.called_up().is_empty() {
                called = now;
            }
        }
        assert!(splitter.is_finished());
        let alone = self.units.map(|truth| {
            let computing = (sums[Self::STEPS] / truth.speed).max(truth.latency);
            let travel = truth.travel[1] * self.items as f64;
            let overlapped = if truth.depth > 1 {
                computing.max(travel) + computing.min(travel) / 14.0
            } else {
                computing
            };
            truth.prepare[0] + truth.launch[0] + overlapped + truth.travel[0]
        });
        (now, alone)
    }

    /// The seconds that the run takes, by those that the faster of the two takes alone.
    fn ratio(&self) -> f64 {
        let (seconds, [one, other]) = self.run();
        seconds / one.min(other)
    }
}

fn simulate(items: u64, cost: impl Fn(f64) -> f64, other: &Truth) -> f64 {
    Simulation { items, local_size: 1, cost: &cost, units: [CPU, *other], begins: Begins::Opening }.ratio()
}

#[test]
fn an_irregular_kernel_of_which_nothing_is_known_is_computed_by_all() {
    let edge = |cheap: f64| move |place: f64| if (0.2..0.8).contains(&place) { 1e-6 } else { 1e-6 * cheap };
    for (name, ratio) in [
        ("constant", simulate(1 << 20, |_| 1e-6, &WORKER)),
        ("cheap edges", simulate(1 << 20, edge(0.1), &WORKER)),
        ("very cheap edges", simulate(1 << 20, edge(0.005), &WORKER)),
        ("rising", simulate(1 << 20, |place| 1e-6 * place, &WORKER)),
        ("falling", simulate(1 << 20, |place| 1e-6 * (1.0 - place), &WORKER)),
        ("short", simulate(1 << 14, edge(0.1), &WORKER)),
    ] {
        println!("two equal cores, {name}: {ratio:.3}");
        assert!(ratio < 0.56, "two equal cores, {name}: {ratio:.3}");
    }
    // What the processor's samples and the first packages take counts the more, the shorter the run is.
    for (name, ratio, most) in [
        ("constant", simulate(1 << 20, |_| 1e-6, &GPU), 1.2),
        ("cheap edges", simulate(1 << 20, edge(0.1), &GPU), 1.2),
        ("rising", simulate(1 << 20, |place| 1e-6 * place, &GPU), 1.4),
        ("constant, 4 ms", simulate(1 << 18, |_| 1e-6, &GPU), 1.4),
        ("rising, 2 ms", simulate(1 << 18, |place| 1e-6 * place, &GPU), 1.8),
        ("constant, 1 ms", simulate(1 << 16, |_| 1e-6, &GPU), 1.8),
    ] {
        println!("a GPU of 70 times the processor, {name}: {ratio:.3}");
        assert!(ratio < most, "a GPU of 70 times the processor, {name}: {ratio:.3}");
    }
}

/// Sixteen cores whose threads take their time to wake up, and a GPU whose first package waits for inputs, as measured.
const CORES: Truth = Truth { launch: &[120e-6, 45e-6, 65e-6, 30e-6, 50e-6, 90e-6], threads: 16.0, ..CPU };
const LARGE_GPU: Truth = Truth {
    speed: 70.0,
    launch: &[5e-6],
    prepare: [260e-6, 50e-6],
    latency: 20e-6,
    travel: [40e-6, 0.0],
    depth: 3,
    threads: 1.0,
};

/// With the costs of the workloads on an H200 beside 16 cores. In a run of a millisecond the samples and the first packages are most of it.
#[test]
fn a_large_gpu_of_which_nothing_is_known_is_not_kept_from_its_work() {
    let mandelbrot = |place: f64| if (0.15..0.85).contains(&place) { 45e-9 } else { 5e-9 };
    let constant = |cost: f64| move |_: f64| cost;
    let gpu = |speed: f64, latency: f64, per_item: f64| Truth {
        speed,
        latency,
        travel: [LARGE_GPU.travel[0], per_item],
        ..LARGE_GPU
    };
    type Row<'a> = (&'a str, u64, u64, &'a dyn Fn(f64) -> f64, Truth, f64);
    let rows: [Row<'_>; 17] = [
        ("mandelbrot 2M", 1 << 21, 256, &mandelbrot, gpu(90.0, 110e-6, 0.3e-9), 1.6),
        ("mandelbrot 16M", 1 << 24, 256, &mandelbrot, gpu(90.0, 110e-6, 0.3e-9), 1.25),
        ("mandelbrot 70M", 70_300_000, 256, &mandelbrot, gpu(90.0, 110e-6, 0.3e-9), 1.2),
        ("gaussian 262k", 1 << 18, 128, &constant(100e-9), gpu(25.0, 140e-6, 0.1e-9), 1.35),
        ("gaussian 2M", 1 << 21, 128, &constant(100e-9), gpu(25.0, 140e-6, 0.1e-9), 1.05),
        ("nbody 32k", 32_768, 64, &constant(16e-6), gpu(500.0, 1.1e-3, 1e-9), 3.8),
        ("ray 2M", 1 << 21, 128, &constant(25e-9), gpu(160.0, 50e-6, 0.1e-9), 1.65),
        ("ray 9M", 9_437_184, 128, &constant(25e-9), gpu(160.0, 50e-6, 0.1e-9), 1.35),
        ("rap 262k", 1 << 18, 128, &constant(250e-9), gpu(33.0, 400e-6, 0.1e-9), 1.5),
        ("rap 500k", 500_000, 128, &constant(250e-9), gpu(33.0, 400e-6, 0.1e-9), 1.2),
        ("taylor 1M", 1_000_000, 64, &constant(100e-9), gpu(170.0, 80e-6, 0.3e-9), 1.4),
        ("saxpy 2M", 1 << 21, 128, &constant(0.08e-9), gpu(1.0, 20e-6, 0.2e-9), 1.15),
        ("saxpy 16M", 1 << 24, 128, &constant(0.08e-9), gpu(1.0, 20e-6, 0.2e-9), 1.15),
        ("saxpy 100M", 100_000_000, 128, &constant(0.11e-9), gpu(1.0, 20e-6, 0.2e-9), 1.0),
        ("binomial 4k", 4096, 1, &constant(7e-6), gpu(70.0, 40e-6, 1e-9), 1.5),
        ("binomial 32k", 32_768, 1, &constant(7e-6), gpu(70.0, 40e-6, 1e-9), 1.1),
        ("binomial 262k", 1 << 18, 1, &constant(5.5e-6), gpu(55.0, 100e-6, 1e-9), 1.05),
    ];
    for (name, items, local_size, cost, gpu, most) in rows {
        // So much memory is touched that the lineup lets both begin.
        let begins = if name == "saxpy 100M" { Begins::AtOnce } else { Begins::Opening };
        let simulation = Simulation { items, local_size, cost, units: [CORES, gpu], begins };
        let (seconds, alone) = simulation.run();
        let ratio = seconds / alone[0].min(alone[1]);
        println!("{name}: alone {:.3} and {:.3} ms, ratio {ratio:.3}", alone[0] * 1e3, alone[1] * 1e3);
        assert!(ratio < most, "{name}: {ratio:.3}, alone {alone:?}");
    }
}

/// Two GPUs that take 9 ms for any package of nbody, and 64 ms for all of it.
#[test]
fn two_gpus_whose_latency_is_long_share_a_kernel() {
    let latent = |latency: f64| Truth { speed: 1.0, latency, ..LARGE_GPU };
    let moving = |per_item: f64| Truth { travel: [40e-6, per_item], ..latent(20e-6) };
    let mandelbrot = |place: f64| if (0.15..0.85).contains(&place) { 0.5e-9 } else { 0.06e-9 };
    let constant = |cost: f64| move |_: f64| cost;
    type Row<'a> = (&'a str, (u64, u64), &'a dyn Fn(f64) -> f64, Truth, [f64; 3]);
    // The last ones: the most that the run may take of one GPU's time, with nothing known, with twins, and with what is learned.
    let rows: [Row<'_>; 7] = [
        ("nbody 262k", (1 << 18, 3), &constant(0.24e-6), latent(8.8e-3), [1.25, 1.0, 0.6]),
        ("nbody 32k", (1 << 15, 2), &constant(0.03e-6), latent(1.1e-3), [6.5, 1.8, 1.05]),
        ("mandelbrot 70M", (70_300_000, 16), &mandelbrot, latent(0.11e-3), [0.58, 0.54, 0.56]),
        ("mandelbrot 2M", (1 << 21, 8), &mandelbrot, latent(0.11e-3), [1.5, 1.1, 0.85]),
        ("mandelbrot 6M", (6_000_000, 8), &constant(0.43e-9), moving(0.29e-9), [0.9, 0.75, 0.625]),
        ("gaussian 16M", (1 << 24, 12), &constant(4e-9), latent(0.14e-3), [0.54, 0.6, 0.53]),
        ("gaussian 256k", (1 << 18, 6), &constant(4e-9), latent(0.02e-3), [0.9, 0.9, 0.75]),
    ];
    for (name, (items, pieces), cost, gpu, [most_unknown, most_twins, most_known]) in rows {
        let simulation = Simulation { items, local_size: 64, cost, units: [gpu, gpu], begins: Begins::Both };
        let (unknown, alone) = simulation.run();
        let (twins, _) = Simulation { begins: Begins::Twins(pieces), ..simulation }.run();
        let prior = Prior::measured(items as f64 / alone[0], Duration::from_secs_f64(gpu.latency));
        let (known, _) = Simulation { begins: Begins::Known([prior; 2]), ..simulation }.run();
        let [unknown, twins, known] = [unknown, twins, known].map(|seconds| seconds / alone[0]);
        println!(
            "{name}: alone {:.3} ms, ratio {unknown:.3}, twins {twins:.3}, known {known:.3}",
            alone[0] * 1e3
        );
        assert!(unknown < most_unknown && known < most_known, "{name}: {unknown:.3}, known {known:.3}");
        assert!(twins < most_twins, "{name}: {twins:.3}");
    }
}

/// Somebody else may use a device, and then it is slower than its twin: what it gets before it has shown that is little.
#[test]
fn a_twin_that_is_slower_than_it_should_be_holds_nobody_up_for_long() {
    for (seconds, slow, pieces, most) in [
        (1e-3, 0.5, 3, 1.05),
        (1e-2, 0.1, 3, 1.05),
        (1e-2, 0.1, 16, 1.05),
        (1e-1, 0.5, 8, 0.8),
        (1e-1, 0.1, 8, 1.05),
    ] {
        let per_item = seconds / f64::from(1 << 20);
        let cost = move |_: f64| per_item;
        let gpu = Truth { speed: 1.0, latency: 20e-6, travel: [40e-6, per_item / 10.0], ..LARGE_GPU };
        let units = [gpu, Truth { speed: slow, ..gpu }];
        let begins = Begins::Twins(pieces);
        let (took, alone) = Simulation { items: 1 << 20, local_size: 64, cost: &cost, units, begins }.run();
        let ratio = took / alone[0];
        println!("{seconds} s, {slow} as fast, {pieces} packages: {ratio:.2}");
        assert!(ratio < most, "{seconds} s, {slow} as fast, {pieces} packages: {ratio:.2}");
    }
}

/// Who computes sooner than its results travel gets no more than its link brings home.
#[test]
fn a_twin_whose_link_is_slower_leaves_packages_to_the_other() {
    for (slower, pieces, most) in [(1.0, 32, 0.62), (2.0, 32, 0.82), (4.0, 32, 1.06), (4.0, 16, 1.05)] {
        let per_item = 10e-3 / f64::from(1 << 20);
        let cost = move |_: f64| per_item / 10.0;
        let link = |slower: f64| Truth {
            speed: 1.0,
            latency: 20e-6,
            travel: [40e-6, per_item * slower],
            depth: 40,
            ..LARGE_GPU
        };
        let units = [link(1.0), link(slower)];
        let begins = Begins::Twins(pieces);
        let (took, alone) = Simulation { items: 1 << 20, local_size: 64, cost: &cost, units, begins }.run();
        let ratio = took / alone[0];
        println!("a link {slower} times as slow, {pieces} packages: {ratio:.3}");
        assert!(ratio < most, "a link {slower} times as slow, {pieces} packages: {ratio:.3}");
    }
}
