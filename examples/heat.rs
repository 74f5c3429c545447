//! Heat spreads over a plate, on all devices at once, until it hardly changes.
//!
//! Run with `cargo run --release --example heat`.
use dml::prelude::*;
use std::ops::ControlFlow::{Break, Continue};

const OPENCL: &str = "kernel void heat(global const float* from, global float* to, ulong n, ulong end) {
    size_t x = get_global_id(0), y = get_global_id(1), i = y * n + x;
    if (y >= end || x >= n) return;
    to[i] = x % (n - 1) == 0 || y % (n - 1) == 0 ? from[i]
        : (from[i - n] + from[i - 1] + from[i + 1] + from[i + n]) / 4;
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (platform, n) =
        (Platform::builder().discover_with(&DiscoverOptions::default().offload(0))?.build()?, 300);
    let plate: Vec<f32> = (0..n * n).map(|i| if i < n { 100.0 } else { 0.0 }).collect(); // one edge is hot
    let (a, b) = (platform.buffer_from(plate)?, platform.buffer::<f32>(n * n).build()?);
    // On the host, one thread computes a part; `call.team()` would divide it.
    let host = launch::host_by_team(&platform, move |call| {
        let (first, columns) = (call.items().start, n as usize);
        let [from, to] = call.parts([0, 1])?;
        let from = from.slice::<f32>()?; // with a row before the first one, unless that is the first of all
        for (y, row) in (first..).zip(to.slice_mut::<f32>()?.chunks_mut(columns)) {
            let here = (y - first.saturating_sub(1)) as usize * columns;
            row.copy_from_slice(&from[here..][..columns]);
            for x in (1..columns - 1).filter(|_| y % (n - 1) != 0) {
                let i = here + x;
                row[x] = (from[i - columns] + from[i - 1] + from[i + 1] + from[i + columns]) / 4.0;
            }
        }
        Ok(())
    })?;
    // SAFETY: an item writes its row, and reads that and its neighbours within the plate.
    let opencl = unsafe { launch::opencl(&platform, OPENCL, "heat", "") }?;
    let heat = Kernel::new("heat", 1)
        .rows(n, 0) // an item is a row
        .argument(Argument::part(&a, Access::ReadOnly, Footprint::neighbourhood(n * 4, 1)))
        .argument(Argument::part(&b, Access::WriteInvalidate, Footprint::one_to_one(n * 4)))
        .scalar(n)
        .end()
        .launchers(host)?
        .launchers(opencl)?;
    let iterated = Iterate::new(&platform)
        .step(&heat, n)
        .swap(&a, &b)
        .every(10, |stepped| {
            let (new, old) = (stepped.buffer(&a).read()?, stepped.buffer(&b).read()?);
            let change =
                new.iter().zip(old.iter()).fold(0.0_f32, |most, (new, old)| most.max((new - old).abs()));
            Ok(if change < 0.02 { Break(()) } else { Continue(()) })
        })
        .run(2000)?;
    println!("{} steps, {:?}, {:?}", iterated.steps, iterated.duration, iterated.strips);
    Ok(())
}

#[test]
fn the_plate_settles() {
    main().unwrap();
}
