//! A program that is its own worker: one function runs on the host and in a worker with its own memory.
//!
//! ```text
//! cargo run --release --example offload
//! ```

use dml::Kernel;
use dml::arenas::OffloadArena;
use dml::arenas::offload::Argument;
use dml::core::{Arena, Span};
use dml::launch::{self, Call, ComputeError};
use dml::prelude::*;
use std::error::Error;
use std::sync::Arc;

/// Smooths `inner` into `out`. Runs on the host and in a worker.
fn smooth(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let factor: f32 = call.scalar(0)?;
    let [inner, out] = call.parts([1, 2])?;
    for (out, value) in out.slice_mut::<f32>()?.iter_mut().zip(inner.slice::<f32>()?) {
        *out = value * factor + (1.0 - factor);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Must come first: in the worker process that DML starts from this program, the call does not return.
    offload::hook(Registry::new().with("smooth", smooth));

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

    // By hand: copy the input to the worker and run there. A later read copies the result back.
    let half = inner.range(0..items / 2);
    let grants = platform.acquire(worker).read(&half).write(&out.range(0..items / 2)).wait()?;
    let (from, to) =
        (grants.block(&inner)?.ok_or("it has bytes")?, grants.block(&out)?.ok_or("it has bytes")?);
    let bytes = Span::new(0, items / 2 * 4);
    let scalar = Argument::Scalar(Scalar::F32(factor));
    let arguments = [scalar, Argument::Read(from, bytes), Argument::Write(to, bytes)];
    // SAFETY: both parts are granted until the run has ended.
    let run = unsafe { offload.launch(&function, 0..items / 2, &arguments) }?;
    grants.in_flight(run).wait()?.release()?;

    // Co-executed on both devices.
    let here = launch::host(&platform, smooth)?;
    // SAFETY: the scheduler holds the grants until a run has ended, and the function is safe Rust.
    let there = unsafe { launch::offload(&platform, "smooth") }?;
    let kernel = Kernel::new("smooth", 64).scalar(factor).read(&inner).write(&out);
    let kernel = kernel.launchers(here)?.launchers(there)?;
    let report = Coexecutor::new(&platform).run(&kernel, items)?;
    for device in &report.devices {
        let name = &platform.device_desc(device.device).name;
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
