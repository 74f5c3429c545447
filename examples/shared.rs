//! Compares separate memories of the host and two workers with one memory that all three share.
//!
//! ```text
//! cargo run --release --example shared [MIB [TURNS]]      64 MiB and 10 turns by default
//! ```
//! In each turn the host and the workers change a third of a buffer each, concurrently. The thirds rotate.

use dml::arenas::OffloadArena;
use dml::arenas::offload::{Argument, Function};
use dml::core::{InFlight, Span};
use dml::launch::{Call, ComputeError};
use dml::prelude::*;
use std::error::Error;
use std::time::{Duration, Instant};

const WORKERS: [&str; 2] = ["offload:0", "offload:1"];

/// Changes words. Runs on the host and in the workers.
fn change(words: &mut [u32], add: u32) {
    words.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(add));
}

/// The function that a worker calls.
fn change_there(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let add = call.scalar(1)?;
    change(call.part(0)?.slice_mut()?, add);
    Ok(())
}

/// The cost of some turns.
struct Cost {
    /// Median time of the turns after the first.
    later: Duration,
    bytes_moved: u64,
}

/// Starts a worker's part of a turn.
fn begin(
    platform: &Platform,
    (worker, function): (&str, &Function),
    data: &Buffer<u32>,
    words: std::ops::Range<u64>,
    add: u32,
) -> Result<InFlight, Box<dyn Error>> {
    let worker = platform.device(worker)?;
    let arena = platform.home_as::<OffloadArena>(worker).ok_or("the device is a worker")?;
    let part = data.range(words.clone());
    let grants = platform.acquire(worker).read_write(&part).wait()?;
    let bytes = Span::new(words.start * 4, words.end * 4);
    let block = grants.block(&part)?.ok_or("it has bytes")?;
    let arguments = [Argument::Write(block, bytes), Argument::Scalar(Scalar::U32(add))];
    // SAFETY: the part is granted until the run has ended, and the function changes only this part.
    let run = unsafe { arena.launch(function, words, &arguments) }?;
    Ok(grants.in_flight(run))
}

fn turns(platform: &Platform, words: u64, turns: u64) -> Result<Cost, Box<dyn Error>> {
    let mut functions = Vec::new();
    for worker in WORKERS {
        let device = platform.device(worker)?;
        let arena = platform.home_as::<OffloadArena>(device).ok_or("the device is a worker")?;
        functions.push((worker, arena.device().function("change")?));
    }
    let data = platform.buffer::<u32>(words).build()?;
    let mut first = data.write()?;
    first.iter_mut().zip(0..).for_each(|(word, index)| *word = index);
    first.release()?;
    let (cpu, mut times) = (platform.device("cpu")?, Vec::new());
    let thirds = [0..words / 3, words / 3..words / 3 * 2, words / 3 * 2..words];
    for turn in 0..turns {
        let begun = Instant::now();
        let third = |who: u64| thirds[((turn + who) % 3) as usize].clone();
        let mut runs = Vec::new();
        for ((worker, function), who) in functions.iter().zip(1..) {
            runs.push(begin(platform, (worker, function), &data, third(who), turn as u32)?);
        }
        let mine = data.range(third(0));
        let mut grants = platform.acquire(cpu).read_write(&mine).wait()?;
        change(grants.slice_mut(&mine)?, turn as u32);
        grants.release()?;
        for run in runs {
            run.wait()?.release()?;
        }
        times.push(begun.elapsed());
    }
    let expected =
        |index: u32| (0..turns as u32).fold(index, |word, turn| word.wrapping_mul(3).wrapping_add(turn));
    if !data.read()?.iter().zip(0..).all(|(word, index)| *word == expected(index)) {
        return Err("a word is wrong".into());
    }
    let mut later = times.split_off(1.min(times.len()));
    later.sort_unstable();
    let later = later.get(later.len() / 2).copied().unwrap_or_default();
    let bytes_moved = platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
    Ok(Cost { later, bytes_moved })
}

fn main() -> Result<(), Box<dyn Error>> {
    // Must come first: in the worker processes that DML starts from this program, the call does not return.
    offload::hook(Registry::new().with("change", change_there));

    let mut arguments = std::env::args().skip(1);
    let mib: u64 = arguments.next().map_or(Ok(64), |mib| mib.parse())?;
    let count: u64 = arguments.next().map_or(Ok(10), |turns| turns.parse())?;
    let options = DiscoverOptions::default().only(WORKERS).offload(2);
    let shared = options.clone().sharing(Sharing::memory(["cpu"].into_iter().chain(WORKERS)));
    for (way, options) in [("copied", options), ("shared", shared)] {
        let platform = Platform::builder().discover_with(&options)?.build()?;
        let Cost { later, bytes_moved } = turns(&platform, mib << 18, count)?;
        println!("{way:>7}: a turn takes {later:>10.2?}, {} MiB moved", bytes_moved >> 20);
    }
    Ok(())
}
