//! A program that is its own coprocessor: one function runs on the host and in a worker with a memory of its own.
//!
//! ```text
//! cargo run --release --example offload
//! ```

use dml::arenas::offload::{self, Argument as Part, Call, CallError, OffloadArena, Registry};
use dml::core::{Arena, Span};
use dml::launch;
use dml::prelude::*;
use std::error::Error;
use std::sync::Arc;

/// The computation, wherever it runs: smooths `inner` into `out`.
fn smooth(factor: f32, inner: &[f32], out: &mut [f32]) {
    for (out, value) in out.iter_mut().zip(inner) {
        *out = value * factor + (1.0 - factor);
    }
}

/// As the worker calls it.
fn smooth_there(call: &mut Call<'_>) -> Result<(), CallError> {
    let factor = call.f32(0)?;
    let [inner, out] = call.views() else { return Err("smooth takes two buffers".into()) };
    smooth(factor, inner.slice()?, out.slice_mut()?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // First of all: in the process that DML starts from this program, it does not return.
    offload::hook(Registry::new().with("smooth", smooth_there));

    let platform = Platform::builder().discover()?.build()?;
    let worker = platform.device("offload:0")?;
    let home = platform.home(worker).ok_or("every device has a memory")?;
    let arena: Arc<dyn Arena> = platform.arena(home).clone();
    let offload: &OffloadArena = arena.downcast_ref().ok_or("offload:0 is a worker")?;
    let function = offload.device().function("smooth")?;

    let items = 1 << 20;
    let factor = 0.25;
    let inner = platform.buffer_from((0..items).map(|item| (item % 1000) as f32).collect::<Vec<_>>())?;
    let out = platform.buffer::<f32>(items).build()?;

    // By hand: bring the input, run there, bring the result when it is asked for.
    let half = inner.range(0..items / 2);
    let grants = platform.acquire(worker).read(&half).write(&out.range(0..items / 2)).wait()?;
    let (from, to) =
        (grants.block(&inner)?.ok_or("it has bytes")?, grants.block(&out)?.ok_or("it has bytes")?);
    let bytes = Span::new(0, items / 2 * 4);
    let scalar = Part::Scalar(offload::Scalar::F32(factor));
    let parts = [Part::Read(from, bytes), Part::Write(to, bytes), scalar];
    // SAFETY: both parts are granted, and the grants last until the run has ended.
    let run = unsafe { offload.launch(&function, 0..items / 2, &parts) }?;
    grants.in_flight(run).wait()?.release()?;

    // Over both devices at once.
    let here = launch::host(&platform, |_, parts, values| {
        let [inner, out] = parts else { return Err("smooth takes two buffers".into()) };
        smooth(values.scalar(0)?, inner.slice()?, out.slice_mut()?);
        Ok(())
    })?;
    // SAFETY: the scheduler keeps the grants until a run has ended, and the function is safe Rust.
    let there = unsafe { launch::offload(&platform, "smooth") }?;
    let kernel = Kernel::new("smooth", 64).scalar(factor).read(&inner).write(&out);
    let kernel = kernel.launchers(here)?.launchers(there)?;
    let report = Coexecutor::new(&platform).run(&kernel, items)?;
    for device in &report.devices {
        let name = &platform.devices()[usize::from(device.device.0)].name;
        println!("{name}: {} items in {} packages", device.items, device.packages);
    }
    let right = out
        .read()?
        .iter()
        .enumerate()
        .all(|(item, value)| *value == (item % 1000) as f32 * factor + (1.0 - factor));
    println!("{}", if right { "every item is right" } else { "wrong" });
    if right { Ok(()) } else { Err("a wrong result".into()) }
}
