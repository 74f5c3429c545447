//! Acquires by hand: the host and an OpenCL device double half a buffer each, and the host reads the result.
//!
//! Run with `cargo run --example acquire`. Without an OpenCL device, the host doubles both halves.

use dml::arenas::launch::{Grid, KernelArg};
use dml::prelude::*;
use std::error::Error;

const ITEMS: u64 = 1_000_000;
const DOUBLE: &str = "kernel void twice(global float* data, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) data[i] = 2.0f * data[i];
}";

fn main() -> Result<(), Box<dyn Error>> {
    let platform = Platform::builder().discover()?.build()?;
    let cpu = platform.device("cpu")?;
    let data = platform.buffer_from((0..ITEMS).map(|i| i as f32).collect::<Vec<_>>())?;

    // The first half on the host.
    let half = data.range(0..ITEMS / 2);
    let mut grants = platform.acquire(cpu).read_write(&half).wait()?;
    grants.slice_mut::<f32>(&half)?.iter_mut().for_each(|value| *value *= 2.0);
    grants.release()?;

    // The second half on the first OpenCL device, if there is one. Only these bytes are copied to it.
    let rest = data.range(ITEMS / 2..ITEMS);
    match platform.device("opencl:0") {
        Ok(device) => {
            let grants = platform.acquire(device).read_write(&rest).wait()?;
            let arena = platform.home_as::<OpenClArena>(device).ok_or("opencl:0 has an OpenCL arena")?;
            let kernel = arena.kernel(DOUBLE, "twice", "")?;
            let block = grants.block(&rest)?.ok_or("bytes were asked for")?;
            let launch = Grid::line(ITEMS / 2, ITEMS / 2, 64);
            // SAFETY: the kernel touches only elements below its last argument, all within the block.
            let running = unsafe {
                kernel.launch(&[KernelArg::Block(block), KernelArg::Scalar(Scalar::U64(ITEMS))], launch)
            }?;
            grants.in_flight(running).wait()?.release()?;
        }
        Err(missing) => {
            println!("{missing}: the host does all of it");
            let mut grants = platform.acquire(cpu).read_write(&rest).wait()?;
            grants.slice_mut::<f32>(&rest)?.iter_mut().for_each(|value| *value *= 2.0);
            grants.release()?;
        }
    }

    // The host reads the whole buffer. Only the bytes that the device wrote are copied back.
    let wrong = data.read()?.iter().enumerate().filter(|(i, value)| **value != 2.0 * *i as f32).count();
    for transfer in platform.counters().transfers() {
        let link = platform.links()[usize::from(transfer.link.0)];
        let name = |arena| &platform.arena(arena).desc().name;
        println!("{} -> {}: {} bytes", name(link.from), name(link.to), transfer.bytes);
    }
    println!("{wrong} of {ITEMS} values are wrong");
    if wrong == 0 { Ok(()) } else { Err("the result is wrong".into()) }
}
