//! Compares an OpenCL device that copies with one that is bound to main memory, in turns with the host.
//!
//! ```text
//! cargo run --release --example bound [DEVICE [MIB [TURNS]]]      opencl:0, 64 MiB and 10 turns by default
//! ```
//! In each turn the device adds one to every word, and the host reads one word of every page.

use dml::arenas::launch::{Grid, KernelArg};
use dml::prelude::*;
use std::error::Error;
use std::time::{Duration, Instant};

const ADD: &str = "__kernel void add(__global uint* data) { data[get_global_id(0)] += 1; }";

/// Number of words of a page.
const PAGE: usize = 1024;

/// The cost of some turns.
struct Cost {
    first: Duration,
    /// The median of the other turns.
    later: Duration,
    bytes_moved: u64,
}

fn turns(platform: &Platform, device: &str, words: usize, turns: u32) -> Result<Cost, Box<dyn Error>> {
    let device = platform.device(device)?;
    let arena = platform.home_as::<OpenClArena>(device).ok_or("the device is not of OpenCL")?;
    let kernel = arena.kernel(ADD, "add", "")?;
    let data = platform.buffer_from((0..words as u32).collect::<Vec<_>>())?;
    let mut times = Vec::new();
    for turn in 1..=turns {
        let begun = Instant::now();
        let grants = platform.acquire(device).read_write(&data).wait()?;
        let args = [KernelArg::Block(grants.block(&data)?.ok_or("it has bytes")?)];
        // SAFETY: the kernel touches one word of the buffer per item. The grant lasts until it has ended.
        let run = unsafe { kernel.launch(&args, Grid::line(0, words as u64, 0)) }?;
        grants.in_flight(run).wait()?.release()?;
        let seen = data.read()?;
        let is_right = |(index, word): (usize, &u32)| *word == (index as u32).wrapping_add(turn);
        if !seen.iter().enumerate().step_by(PAGE).all(is_right) {
            return Err("a word is wrong".into());
        }
        times.push(begun.elapsed());
    }
    let first = times.remove(0);
    times.sort_unstable();
    let later = times.get(times.len() / 2).copied().unwrap_or(first);
    let bytes_moved = platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
    Ok(Cost { first, later, bytes_moved })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().unwrap_or_else(|| "opencl:0".to_owned());
    let mib: usize = arguments.next().map_or(Ok(64), |mib| mib.parse())?;
    let count: u32 = arguments.next().map_or(Ok(10), |turns| turns.parse())?;
    let options = DiscoverOptions::default().only([device.clone()]).offload(0);
    for (way, options) in
        [("copied", options.clone()), ("bound", options.sharing(Sharing::bound(device.clone())))]
    {
        let platform = Platform::builder().discover_with(&options)?.build()?;
        let Cost { first, later, bytes_moved } = turns(&platform, &device, mib << 18, count)?;
        println!(
            "{way:>7}: first turn {first:>10.2?}, later {later:>10.2?}, {} MiB moved",
            bytes_moved >> 20
        );
    }
    Ok(())
}
