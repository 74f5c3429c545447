//! Steps of a stencil by hand: one thread per device, each with its rows and those next to them.
//!
//! ```text
//!   thread 0   rows 0..cut        compute ─▶ leave last row  ─┐ barrier ┌─▶ take row cut     ─▶ compute …
//!   thread 1   rows cut..         compute ─▶ leave first row ─┘         └─▶ take row cut - 1 ─▶ compute …
//! ```
//! Odd and even steps leave rows in different places. So one barrier per step suffices.

use super::{Arg, ByHandError, Device, language, unusable};
use crate::prepare::Language;
use crate::steps::host::FivePoints;
use crate::steps::reference::Element;
use crate::steps::{CUDA, LOCAL, OPENCL, Size, Steps, digest};
use dml_arenas::launch::Team;
use dml_core::{DeviceId, Platform};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// Makes the steps of `jacobi` or `stencil2d`. Returns their duration, and the digest of the grid, which
/// equals [`Program::digest`](crate::steps::Program::digest) after as many steps; `None` for other programs.
///
/// `strips` has the devices and their numbers of rows, at least 1, from the top. A device of OpenCL or CUDA
/// can only be the first one. All others are threads of the host.
///
/// # Errors
/// The framework's, or [`ByHandError::Device`] for a further device of a framework.
pub fn run(
    platform: &Platform,
    steps: Steps,
    size: Size,
    strips: &[(DeviceId, u64)],
) -> Result<Option<(Duration, u64)>, ByHandError> {
    match steps {
        Steps::Jacobi => run_of::<f64>(platform, size, strips).map(Some),
        Steps::Stencil2d => run_of::<f32>(platform, size, strips).map(Some),
        _ => Ok(None),
    }
}

/// Rows that one thread leaves for another one, in odd and in even steps.
type Places<T> = [Mutex<Vec<T>>; 2];

/// What the threads share.
struct Shared<T> {
    /// Where all threads and the one that measures meet, before the first step and after the last one.
    ends: Barrier,
    /// Where the threads meet in each step.
    steps: Barrier,
    /// For each cut, the rows above and below it.
    cuts: Vec<[Places<T>; 2]>,
    size: Size,
}

/// A thread's part in the meetings. Those that it misses by an error are made up when it is dropped, so that
/// no other thread waits for ever.
struct Turn<'a, T> {
    shared: &'a Shared<T>,
    ends: u64,
    steps: u64,
}

impl<'a, T> Turn<'a, T> {
    fn begin(shared: &'a Shared<T>) -> Self {
        Self { shared, ends: 2, steps: shared.size.steps }
    }

    fn end(&mut self) {
        self.ends -= 1;
        self.shared.ends.wait();
    }

    fn step(&mut self) {
        self.steps -= 1;
        self.shared.steps.wait();
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if self.ends == 2 {
            self.end();
        }
        while self.steps > 0 {
            self.step();
        }
        if self.ends == 1 {
            self.end();
        }
    }
}

/// The strip of a thread: its rows, and the row before and after it where there is one.
struct Strip<T> {
    number: usize,
    start: u64,
    end: u64,
    first: u64,
    grids: [Vec<T>; 2],
}

fn run_of<T: FivePoints + Element>(
    platform: &Platform,
    size: Size,
    strips: &[(DeviceId, u64)],
) -> Result<(Duration, u64), ByHandError> {
    let columns = size.columns as usize;
    let places = || [(); 2].map(|()| Mutex::new(vec![T::zeroed(); columns]));
    let cuts = strips.iter().skip(1).map(|_| [places(), places()]).collect();
    let (ends, steps) = (Barrier::new(strips.len() + 1), Barrier::new(strips.len()));
    let shared = Shared { ends, steps, cuts, size };
    let mut start = 0;
    let mut parts = Vec::new();
    for (number, (device, rows)) in strips.iter().enumerate() {
        let (end, first) = (start + rows, start.saturating_sub(1));
        let last = (end + 1).min(size.rows);
        let grid: Vec<T> = (first * size.columns..last * size.columns).map(T::drawn).collect();
        let other = vec![T::zeroed(); grid.len()];
        parts.push((*device, Strip { number, start, end, first, grids: [grid, other] }));
        start = end;
    }
    if let Some((device, _)) = parts.iter().skip(1).find(|(device, _)| language(platform, *device).is_some())
    {
        return Err(unusable(platform, *device, "by hand it must be the first device that is named"));
    }
    let (mut duration, mut grid) = (Duration::ZERO, Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .into_iter()
            .map(|(device, strip)| {
                let shared = &shared;
                scope.spawn(move || on(platform, device, strip, shared))
            })
            .collect();
        shared.ends.wait();
        let begun = Instant::now();
        shared.ends.wait();
        duration = begun.elapsed();
        for thread in threads {
            grid.extend(thread.join().expect("it does not panic")?);
        }
        Ok::<_, ByHandError>(())
    })?;
    Ok((duration, digest(&[&grid[..]])))
}

/// Makes the steps of a strip, and returns its rows.
fn on<T: FivePoints + Element>(
    platform: &Platform,
    device: DeviceId,
    strip: Strip<T>,
    shared: &Shared<T>,
) -> Result<Vec<T>, ByHandError> {
    match language(platform, device) {
        #[cfg(feature = "opencl")]
        Some(Language::OpenClC) => {
            on_device::<T, super::opencl::OpenCl>(platform, device, OPENCL, strip, shared)
        }
        #[cfg(feature = "cuda")]
        Some(Language::CudaC) => on_device::<T, super::cuda::Cuda>(platform, device, CUDA, strip, shared),
        _ => Ok(on_host(strip, shared)),
    }
}

fn on_host<T: FivePoints + Element>(mut strip: Strip<T>, shared: &Shared<T>) -> Vec<T> {
    let team = Team::new(1).expect("a thread of its own is none");
    let grid = [shared.size.rows, shared.size.columns];
    let own = strip.own(shared.size.columns);
    let mut turn = Turn::begin(shared);
    turn.end();
    for step in 0..shared.size.steps {
        let [from, to] = &mut strip.grids;
        T::compute(&team, strip.start..strip.end, grid, from, strip.first, &mut to[own.clone()]);
        strip.leave(step, shared, 1);
        turn.step();
        strip.take(step, shared, 1);
        strip.grids.swap(0, 1);
    }
    turn.end();
    strip.grids[0][own].to_vec()
}

fn on_device<T: FivePoints + Element, D: Device>(
    platform: &Platform,
    device: DeviceId,
    source: &str,
    mut strip: Strip<T>,
    shared: &Shared<T>,
) -> Result<Vec<T>, ByHandError> {
    let Size { columns, rows, steps, .. } = shared.size;
    let own = strip.own(columns);
    let mut turn = Turn::begin(shared);
    let opened = D::open(platform, device)?;
    let kernel = opened.kernel(source, T::KERNEL)?;
    let (is_alone, bound) = (shared.cuts.is_empty(), opened.shares_memory());
    let mut buffers = Vec::new();
    for grid in &mut strip.grids {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(grid);
        // SAFETY: the grids outlive the buffers, which are dropped before them, with a finished queue.
        let mut buffer = if bound { unsafe { opened.bind(bytes) }? } else { opened.buffer(bytes.len())? };
        // SAFETY: the queue is finished in this statement.
        unsafe { opened.send(&mut buffer, bytes) }.and(opened.finish())?;
        buffers.push(buffer);
    }
    turn.end();
    for step in 0..steps {
        let (from, to) = ((step % 2) as usize, 1 - (step % 2) as usize);
        let arguments = [
            Arg::Buffer(&buffers[from]),
            Arg::Buffer(&buffers[to]),
            Arg::U32(columns as u32),
            Arg::U32(rows as u32),
            Arg::U64(strip.end),
        ];
        // SAFETY: the kernel writes its rows, which end at `strip.end`, and reads these and their neighbours,
        // which the buffers have. They live until the queue is finished.
        unsafe { opened.launch(&kernel, &arguments, [columns, strip.end], LOCAL) }?;
        if is_alone {
            turn.step();
            continue;
        }
        // SAFETY: the queue is finished in this statement.
        unsafe { opened.fetch(&mut buffers[to], bytemuck::cast_slice_mut(&mut strip.grids[to])) }
            .and(opened.finish())?;
        strip.leave(step, shared, to);
        turn.step();
        strip.take(step, shared, to);
        // SAFETY: the queue is in order, and nothing changes the memory before the next fetch.
        unsafe { opened.send(&mut buffers[to], bytemuck::cast_slice(&strip.grids[to])) }?;
    }
    opened.finish()?;
    turn.end();
    let last = (steps % 2) as usize;
    // SAFETY: the queue is finished in this statement.
    unsafe { opened.fetch(&mut buffers[last], bytemuck::cast_slice_mut(&mut strip.grids[last])) }
        .and(opened.finish())?;
    let result = strip.grids[last][own].to_vec();
    drop(buffers);
    Ok(result)
}

impl<T: Element> Strip<T> {
    /// Returns the places of the strip's own rows.
    fn own(&self, columns: u64) -> std::ops::Range<usize> {
        ((self.start - self.first) * columns) as usize..((self.end - self.first) * columns) as usize
    }

    /// Leaves the rows next to the cuts for the other threads.
    fn leave(&self, step: u64, shared: &Shared<T>, grid: usize) {
        let (parity, own) = ((step % 2) as usize, self.own(shared.size.columns));
        let (columns, rows) = (shared.size.columns as usize, &self.grids[grid][own]);
        let put = |place: &Places<T>, row: &[T]| lock(&place[parity]).copy_from_slice(row);
        if let Some([_, below]) = self.number.checked_sub(1).map(|above| &shared.cuts[above]) {
            put(below, &rows[..columns]);
        }
        if let Some([above, _]) = shared.cuts.get(self.number) {
            put(above, &rows[rows.len() - columns..]);
        }
    }

    /// Takes the rows that other threads left.
    fn take(&mut self, step: u64, shared: &Shared<T>, grid: usize) {
        let (parity, columns) = ((step % 2) as usize, shared.size.columns as usize);
        let rows = &mut self.grids[grid];
        let length = rows.len();
        if let Some([above, _]) = self.number.checked_sub(1).map(|above| &shared.cuts[above]) {
            rows[..columns].copy_from_slice(&lock(&above[parity]));
        }
        if let Some([_, below]) = shared.cuts.get(self.number) {
            rows[length - columns..].copy_from_slice(&lock(&below[parity]));
        }
    }
}

fn lock<T>(place: &Mutex<Vec<T>>) -> std::sync::MutexGuard<'_, Vec<T>> {
    place.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
