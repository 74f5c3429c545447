//! Dependent kernels, a hundred times over the same buffers: a 5-point stencil, and saxpy alternating with a
//! blur. Each step computes where its data is, so only the rows at the borders of the devices' parts move.
//!
//! Run with `cargo run --release --example iterated [side] [steps]`. It prints the time and the bytes moved
//! per step, for each device alone, and for all together with the static and the default policy. Times are
//! medians of five rounds.

use dml::Kernel;
use dml::core::{DeviceDesc, DeviceKind};
use dml::prelude::*;
use rayon::prelude::*;
use std::error::Error;
use std::time::Instant;

const SOURCE: &str = "
kernel void blur(ulong side, ulong radius, global const float* in, global float* out, ulong end) {
    ulong i = get_global_id(0);
    if (i >= end) return;
    ulong y = i / side, x = i % side;
    if (y < radius || x < radius || y + radius >= side || x + radius >= side) { out[i] = in[i]; return; }
    float sum = 0;
    for (ulong k = 1; k <= radius; k++)
        sum += in[i - k] + in[i + k] + in[i - k * side] + in[i + k * side];
    out[i] = sum / (4 * radius);
}
kernel void saxpy(float a, global const float* x, global const float* y, global float* out, ulong end) {
    ulong i = get_global_id(0);
    if (i < end) out[i] = a * x[i] + y[i];
}";

/// A sequence of kernels that runs repeatedly.
struct Program {
    name: &'static str,
    side: u64,
    kernels: Vec<Kernel>,
    /// The buffer that the first kernel reads, and its initial contents.
    data: Buffer<f32>,
    begins: Vec<f32>,
    /// Size of the rows that two neighbours exchange while all kernels run once, in bytes.
    border: u64,
}

/// Creates a kernel that averages the cells around each cell, over buffers of `side * side` cells.
fn blur(
    platform: &Platform,
    side: u64,
    radius: u64,
    [from, to]: [&Buffer<f32>; 2],
) -> Result<Kernel, Box<dyn Error>> {
    let host = launch::host(platform, |call| {
        let (side, radius) = (call.scalar::<u64>(0)? as usize, call.scalar::<u64>(1)? as usize);
        let first = call.items().start as usize;
        let [from, to] = call.parts([2, 3])?;
        let skipped = (from.span().start() / 4) as usize;
        let from = from.slice::<f32>()?;
        to.slice_mut::<f32>()?.par_chunks_mut(side).enumerate().for_each(|(chunk, to)| {
            for (index, to) in (first + chunk * side..).zip(to) {
                let (row, column, here) = (index / side, index % side, index - skipped);
                let is_inside = |at: usize| at >= radius && at + radius < side;
                *to = if is_inside(row) && is_inside(column) {
                    let around = |k: usize| [here - k, here + k, here - k * side, here + k * side];
                    let sum: f32 = (1..=radius).flat_map(around).map(|at| from[at]).sum();
                    sum / (4 * radius) as f32
                } else {
                    from[here]
                };
            }
        });
        Ok(())
    })?;
    // SAFETY: the kernel reads the rows of its items and `radius` rows around them. It writes only its items.
    let opencl = unsafe { launch::opencl(platform, SOURCE, "blur", "") }?;
    let rows = Footprint::rows(side, side * 4, radius);
    let kernel = Kernel::new(format!("blur {radius}"), 64)
        .scalar(side)
        .scalar(radius)
        .argument(Argument::part(from, Access::ReadOnly, rows))
        .write(to)
        .end();
    Ok(kernel.launchers(host)?.launchers(opencl)?)
}

fn saxpy(platform: &Platform, a: f32, [x, y, out]: [&Buffer<f32>; 3]) -> Result<Kernel, Box<dyn Error>> {
    let host = launch::host(platform, |call| {
        let a: f32 = call.scalar(0)?;
        let [x, y, out] = call.parts([1, 2, 3])?;
        let inputs = x.slice::<f32>()?.par_iter().zip(y.slice::<f32>()?);
        out.slice_mut::<f32>()?.par_iter_mut().zip(inputs).for_each(|(out, (x, y))| *out = a * x + y);
        Ok(())
    })?;
    // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
    let opencl = unsafe { launch::opencl(platform, SOURCE, "saxpy", "") }?;
    let kernel = Kernel::new("saxpy", 64).scalar(a).read(x).read(y).write(out).end();
    Ok(kernel.launchers(host)?.launchers(opencl)?)
}

fn programs(platform: &Platform, side: u64) -> Result<[Program; 2], Box<dyn Error>> {
    let begins: Vec<f32> = (0..side * side).map(|cell| (cell % 1009) as f32).collect();
    let field = || platform.buffer_from(begins.clone());
    let (hot, cold) = (field()?, field()?);
    let kernels = vec![blur(platform, side, 1, [&hot, &cold])?, blur(platform, side, 1, [&cold, &hot])?];
    let heat =
        Program { name: "heat", side, kernels, data: hot, begins: begins.clone(), border: 2 * 2 * side * 4 };
    let (image, noise, mixed) = (field()?, field()?, field()?);
    let kernels =
        vec![saxpy(platform, 0.5, [&image, &noise, &mixed])?, blur(platform, side, 5, [&mixed, &image])?];
    let filter =
        Program { name: "saxpy, blur", side, kernels, data: image, begins, border: 2 * 5 * side * 4 };
    Ok([heat, filter])
}

/// A way to run the kernels, with the seconds and the bytes moved per step of each round.
struct Way {
    name: String,
    coexecutor: Coexecutor,
    rounds: Vec<(f64, f64)>,
}

impl Program {
    /// Runs this many kernels, and returns the final contents of the first buffer.
    fn run(&self, platform: &Platform, way: &mut Way, steps: usize) -> Result<Vec<f32>, Box<dyn Error>> {
        self.data.store(&self.begins)?;
        // Warm-up steps copy the data to the devices that compute on it.
        let skipped = steps / 5;
        let mut begun = Instant::now();
        for step in 0..steps + skipped {
            if step == skipped {
                platform.counters().reset();
                begun = Instant::now();
            }
            way.coexecutor.run(&self.kernels[step % self.kernels.len()], self.side * self.side)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let bytes: u64 = platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
        way.rounds.push((seconds / steps as f64, bytes as f64 / steps as f64));
        Ok(self.data.read()?.to_vec())
    }
}

impl Way {
    /// Returns the round with the median time.
    fn median(&self) -> (f64, f64) {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
        rounds[rounds.len() / 2]
    }
}

/// Discovers all devices. Those that compute on the processor's cores divide them evenly.
fn discovered() -> Result<Platform, Box<dyn Error>> {
    let all = Platform::builder().discover()?.build()?;
    let is_on_cores = |device: &&DeviceDesc| device.kind == DeviceKind::Cpu;
    let on_cores: Vec<&str> = all.devices().iter().filter(is_on_cores).map(|device| &*device.name).collect();
    let cores = std::thread::available_parallelism()?.get() as u32;
    let share = (cores / on_cores.len() as u32).max(1);
    let options =
        on_cores.iter().fold(DiscoverOptions::default(), |options, name| options.limit(*name, share));
    Ok(Platform::builder().discover_with(&options)?.build()?)
}

fn iterate(side: u64, steps: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
    let platform = discovered()?;
    for program in &programs(&platform, side)? {
        let able: Vec<_> = program.kernels[0].devices().collect();
        // Results stay where they were computed.
        let way = |name: &str, devices: &[dml::DeviceId]| Way {
            name: name.to_owned(),
            coexecutor: Coexecutor::new(&platform).devices(devices.iter().copied()).collect_on(None),
            rounds: Vec::new(),
        };
        let name = |device: dml::DeviceId| &*platform.device_desc(device).name;
        let mut ways: Vec<Way> = able.iter().map(|&device| way(name(device), &[device])).collect();
        let right = program.run(&platform, &mut ways[0], steps)?;
        let mut powers = Vec::new();
        for way in &mut ways {
            program.run(&platform, way, steps)?;
            powers.push(1.0 / way.rounds.pop().map_or(1.0, |(seconds, _)| seconds));
        }
        ways[0].rounds.clear();
        let mut fixed = way("static", &able);
        fixed.coexecutor = fixed.coexecutor.policy(PolicySpec::Static).powers(powers);
        ways.extend([fixed, way("default", &able)]);
        for _ in 0..rounds {
            for way in &mut ways {
                let found = program.run(&platform, way, steps)?;
                // Devices may add in a different order, so sums round differently.
                let is_near =
                    |(found, right): (&f32, &f32)| (found - right).abs() <= 1e-3 * right.abs().max(1.0);
                if !found.iter().zip(&right).all(is_near) {
                    return Err(format!("{}: a wrong result", way.name).into());
                }
            }
        }
        println!("{}, {side} x {side}, one border of a step {} KiB:", program.name, program.border / 1024);
        for way in &ways {
            let (seconds, bytes) = way.median();
            println!("  {:10} {:8.3} ms {:10.1} KiB moved", way.name, seconds * 1e3, bytes / 1024.0);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let side = arguments.next().map_or(Ok(2048), |side| side.parse())?;
    let steps = arguments.next().map_or(Ok(100), |steps| steps.parse())?;
    iterate(side, steps, 5)
}

#[test]
fn every_device_computes_the_same() {
    iterate(96, 10, 1).unwrap();
}
