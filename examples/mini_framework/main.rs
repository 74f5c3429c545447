//! A framework for tasks, in the manner of figure 3 of "Abstract Representation of Shared Data for
//! Heterogeneous Computing", and an application.
//!
//! ```text
//!            ┌─ smooth ── smooth ── difference ─┐
//!   signal ──┼─ smooth ── smooth ── difference ─┼─ join ── join ──▶ the largest detail at each place
//!            └─ smooth ── smooth ── difference ─┘
//! ```
//! The branches and joins are placed on the devices in turn.
//!
//! Run with `cargo run --release --example mini_framework`.

mod runtime;

use dml::core::record::EventKind;
use dml::launch::{Call, ComputeError};
use dml::prelude::*;
use runtime::{Definition, Runtime, TaskError};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

const ITEMS: u32 = 1 << 20;
const RADII: [u32; 3] = [100, 150, 200];
const SMOOTH: Definition = define("smooth", |call| {
    let radius = call.scalar(2)?;
    let [from, to] = call.parts([0, 1])?;
    smooth(from.slice()?, to.slice_mut()?, radius);
    Ok(())
});
const DIFFERENCE: Definition = define("difference", |call| {
    let [a, b, to] = call.parts([0, 1, 2])?;
    difference(a.slice()?, b.slice()?, to.slice_mut()?);
    Ok(())
});
const JOIN: Definition = define("join", |call| {
    let [both, other] = call.parts([0, 1])?;
    join(both.slice_mut()?, other.slice()?);
    Ok(())
});

const fn define(name: &'static str, rust: fn(&mut Call<'_>) -> Result<(), ComputeError>) -> Definition {
    Definition { name, rust, opencl: include_str!("kernels.cl"), cuda: include_str!("kernels.cu") }
}

fn smooth(from: &[u32], to: &mut [u32], radius: u32) {
    for (i, to) in to.iter_mut().enumerate() {
        let near = &from[i.saturating_sub(radius as usize)..from.len().min(i + radius as usize + 1)];
        *to = near.iter().sum::<u32>() / near.len() as u32;
    }
}

fn difference(a: &[u32], b: &[u32], to: &mut [u32]) {
    to.iter_mut().zip(a.iter().zip(b)).for_each(|(to, (a, b))| *to = a.abs_diff(*b));
}

fn join(both: &mut [u32], other: &[u32]) {
    both.iter_mut().zip(other).for_each(|(both, other)| *both = (*both).max(*other));
}

/// Computes the graph in plain Rust.
fn expected(signal: &[u32]) -> Vec<u32> {
    let mut largest = vec![0; signal.len()];
    for radius in RADII {
        let [mut once, mut twice, mut detail] = [(); 3].map(|()| vec![0; signal.len()]);
        smooth(signal, &mut once, radius);
        smooth(&once, &mut twice, radius);
        difference(signal, &twice, &mut detail);
        join(&mut largest, &detail);
    }
    largest
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::start(&[SMOOTH, DIFFERENCE, JOIN])?;
    let (platform, devices, items) = (&runtime.platform, &runtime.devices, u64::from(ITEMS));
    platform.unavailable().iter().for_each(|missing| println!("skipped: {missing}"));
    let [smooth, difference, join] = [SMOOTH, DIFFERENCE, JOIN].map(|task| runtime.define(&task));
    let (smooth, difference, join) = (smooth?, difference?, join?);

    let values: Vec<u32> = (0..ITEMS).map(|i| i.wrapping_mul(0x9E37_79B9) >> 18).collect();
    let signal = platform.buffer_from(values.clone())?;
    let buffer = || platform.buffer::<u32>(items).build();
    let branches = RADII.iter().map(|_| Ok([buffer()?, buffer()?, buffer()?]));
    let branches = branches.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let device = |turn: usize| devices[turn % devices.len()];
    let name = |turn: usize| &platform.device_desc(device(turn)).name;
    let branch = |turn: usize| -> Result<Submission, TaskError> {
        let ([once, twice, detail], device, radius) = (&branches[turn], device(turn), RADII[turn]);
        runtime.spawn(&smooth, device, items, |task| task.read(&signal).write(once).scalar(radius))?;
        runtime.spawn(&smooth, device, items, |task| task.read(once).write(twice).scalar(radius))?;
        runtime.spawn(&difference, device, items, |task| task.read(&signal).read(twice).write(detail))
    };
    let timed = |turns: std::ops::Range<usize>| -> Result<Duration, Box<dyn Error>> {
        let begun = Instant::now();
        let ends = turns.map(branch).collect::<Result<Vec<_>, _>>()?;
        ends.iter().try_for_each(Submission::wait)?;
        Ok(begun.elapsed())
    };

    timed(0..RADII.len())?; // brings the signal to each device
    for (turn, radius) in RADII.iter().enumerate() {
        println!("radius {radius} alone on {}: {:.1?}", name(turn), timed(turn..turn + 1)?);
    }
    let recording = platform.record();
    println!("all radii together: {:.1?}, tasks in the order of their ends:", timed(0..RADII.len())?);
    let mut arenas = BTreeMap::new();
    for event in recording.finish() {
        match event.kind {
            EventKind::Granted { grant, arena, .. } => _ = arenas.insert((event.buffer, grant), arena),
            EventKind::Released { grant, commit: Some(_), .. } => {
                let arena = platform.desc(arenas[&(event.buffer, grant)]);
                println!("{:>12.1?} {}", event.at, platform.device_desc(arena.native).name);
            }
            _ => {}
        }
    }
    let [.., largest] = &branches[0];
    for (turn, [.., detail]) in (RADII.len()..).zip(&branches[1..]) {
        println!("join on {}", name(turn));
        runtime.spawn(&join, device(turn), items, |task| task.read_write(largest).read(detail))?;
    }
    if *runtime.read(largest)? != *expected(&values) {
        return Err("the result is wrong".into());
    }
    println!("the result is right");

    // Failures name the task: one that does not compile, and one that is given too little.
    let broken =
        Definition { opencl: "kernel void broken(", cuda: "void broken(", ..define("broken", JOIN.rust) };
    runtime.define(&broken).err().iter().for_each(|error| println!("{error}"));
    for (turn, buffer) in (0..devices.len()).zip(branches.iter().flatten()) {
        match runtime.spawn(&join, device(turn), items, |task| task.read_write(buffer)) {
            Ok(_) => println!("{}", runtime.read(buffer).err().ok_or("a misfit was not noticed")?),
            Err(refused) => println!("{refused}"),
        }
    }
    Ok(())
}
