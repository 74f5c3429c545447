//! `dml bench offload`: times transfers to a worker and calls of it, beside a copy within main memory.

use crate::cli::OffloadOptions;
use crate::failure::{self, Failure};
use crate::{json, table};

/// Name of the worker's function that does nothing.
#[cfg_attr(
    not(all(feature = "offload", target_os = "linux")),
    allow(dead_code, reason = "there is no worker")
)]
pub(crate) const EMPTY: &str = "empty";

/// Measures and prints the result.
pub(crate) fn run(options: &OffloadOptions) -> Result<(), Failure> {
    let result = measure(options)?;
    if options.json { json::print(&result) } else { failure::print(&text(&result)) }
}

#[cfg(not(all(feature = "offload", target_os = "linux")))]
fn measure(_options: &OffloadOptions) -> Result<json::Offload, Failure> {
    Err(Failure::Usage("this program has no workers: they need Linux and the feature `offload`".to_owned()))
}

#[cfg(all(feature = "offload", target_os = "linux"))]
use with_workers::measure;

#[cfg(all(feature = "offload", target_os = "linux"))]
mod with_workers {
    use super::{EMPTY, json};
    use crate::cli::OffloadOptions;
    use crate::failure::Failure;
    use dml::arenas::OffloadArena;
    use dml::arenas::offload::{OffloadDevice, WorkerOptions};
    use dml::core::{Arena, Fence, HostMemory, OwnBlock, Span, TransferError};
    use dml::prelude::*;
    use dml::scheduler::metrics;
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const DEVICE: &str = "offload:0";
    /// Size of the long transfers, in bytes.
    const LONG_BYTES: u64 = 256 << 20;
    /// Size of the short transfers, in bytes.
    const SHORT_BYTES: u64 = 4;
    /// Number of short transfers and empty calls per round. Each takes only microseconds.
    const SHORT_PER_RUN: u32 = 100;

    /// Times the operations in turn, so that all see the same machine conditions, and returns medians.
    pub(super) fn measure(options: &OffloadOptions) -> Result<json::Offload, Failure> {
        let mut wanted = options.workers.discover_options().only([DEVICE]);
        for limit in &options.limit {
            wanted = wanted.limit(&limit.device, limit.value);
        }
        let builder = Platform::builder().discover_with(&wanted).map_err(Failure::usage)?;
        let platform = builder.build().map_err(Failure::work)?;
        let arena = |name: &str| {
            let device = platform.device(name).map_err(Failure::usage)?;
            let home = platform.home(device).ok_or_else(|| Failure::Work(format!("{name} has no memory")))?;
            Ok(platform.arena(home).clone())
        };
        let (main, worker) = (arena("cpu")?, arena(DEVICE)?);
        let offload: &OffloadArena =
            worker.downcast_ref().ok_or_else(|| Failure::Work(format!("{DEVICE} is no worker")))?;
        let empty = offload.device().function(EMPTY).map_err(Failure::work)?;
        let block = |arena: &Arc<dyn Arena>| OwnBlock::alloc(arena, LONG_BYTES).map_err(Failure::work);
        let (here, there) = (block(&main)?, block(&worker)?);
        let memory = || HostMemory::zeroed(LONG_BYTES).map_err(Failure::work);
        let (mut source, target) = (memory()?, RefCell::new(memory()?));
        let (whole, short) = (Span::new(0, LONG_BYTES), Span::new(0, SHORT_BYTES));
        // Touches all pages before anything is timed, with values other than zero.
        source.bytes_mut().fill(0x5A);
        target.borrow_mut().bytes_mut().fill(0x5A);
        for block in [&here, &there] {
            block.fill(whole, 0x5A).and_then(Fence::wait).map_err(Failure::work)?;
        }
        // Starts this program as discovery does. Discovery itself also looks for other devices.
        let begun = Instant::now();
        let another = OffloadDevice::start("offload:start", &WorkerOptions::new("/proc/self/exe"));
        let start = begun.elapsed();
        drop(another.map_err(Failure::work)?);
        let times = counted(options.runs, |times| {
            let mut time = |index: usize, begin: &dyn Fn() -> Result<Fence, TransferError>| {
                times[index].push(timed(begin)?.as_secs_f64());
                Ok::<(), Failure>(())
            };
            time(0, &|| here.copy_in(0, &source, whole))?;
            time(1, &|| there.copy_in(0, &source, whole))?;
            time(2, &|| there.copy_out(0, &mut target.borrow_mut(), whole))?;
            for _ in 0..SHORT_PER_RUN {
                time(3, &|| there.copy_in(0, &source, short))?;
                time(4, &|| there.copy_out(0, &mut target.borrow_mut(), short))?;
                time(5, &|| Ok(offload.call(&empty, 0..1, &[])?))?;
            }
            Ok(())
        })?;
        Ok(figures(options.runs, start, &times))
    }

    /// Returns the seconds of each operation over these rounds, after a discarded round.
    fn counted(
        runs: u32,
        mut round: impl FnMut(&mut [Vec<f64>; 6]) -> Result<(), Failure>,
    ) -> Result<[Vec<f64>; 6], Failure> {
        round(&mut Default::default())?;
        let mut times = Default::default();
        for _ in 0..runs {
            round(&mut times)?;
        }
        Ok(times)
    }

    /// Computes the figures from the seconds of each operation: a copy within main memory, to the worker and
    /// from the worker, 4 bytes to it and from it, and an empty run.
    fn figures(runs: u32, start: Duration, times: &[Vec<f64>; 6]) -> json::Offload {
        let [memcpy, inward, outward, short_inward, short_outward, empty_run] = times
            .each_ref()
            .map(|seconds| metrics::Summary::of(seconds).map_or(0.0, |summary| summary.median));
        let rate = |seconds: f64| (LONG_BYTES as f64 / seconds) as u64;
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        json::Offload {
            device: DEVICE.to_owned(),
            runs,
            bytes: LONG_BYTES,
            memcpy_bytes_per_s: rate(memcpy),
            to_worker_bytes_per_s: rate(inward),
            from_worker_bytes_per_s: rate(outward),
            to_worker_over_memcpy: memcpy / inward,
            from_worker_over_memcpy: memcpy / outward,
            short_bytes: SHORT_BYTES,
            short_to_worker_ns: ns(short_inward),
            short_from_worker_ns: ns(short_outward),
            empty_run_ns: ns(empty_run),
            start_ns: u64::try_from(start.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn timed(begin: &dyn Fn() -> Result<Fence, TransferError>) -> Result<Duration, Failure> {
        let begun = Instant::now();
        begin().and_then(Fence::wait).map_err(Failure::work)?;
        Ok(begun.elapsed())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_first_round_does_not_count() {
            let mut rounds = 0.0;
            let times = counted(3, |times| {
                rounds += 1.0;
                times[0].push(rounds);
                times[5].extend([rounds, rounds * 10.0]);
                Ok(())
            });
            let times = times.expect("nothing fails");
            assert_eq!((&times[0][..], times[1].len()), (&[2.0, 3.0, 4.0][..], 0));
            assert_eq!(times[5], [2.0, 20.0, 3.0, 30.0, 4.0, 40.0]);
            assert!(counted(3, |_| Err(Failure::Work("it broke".to_owned()))).is_err());
        }

        /// Each figure is a median that differs from the mean and from the middle sample.
        #[test]
        fn every_figure_is_recomputed_from_its_runs() {
            let around = |median: f64| vec![median * 5.0, median / 2.0, median];
            let seconds = [0.0625, 0.125, 0.25, 5e-8, 4e-8, 1.6e-5];
            let found = figures(3, Duration::from_micros(7_500), &seconds.map(around));
            let whole = LONG_BYTES;
            assert_eq!((found.runs, found.bytes, found.short_bytes), (3, whole, 4));
            let rates =
                [found.memcpy_bytes_per_s, found.to_worker_bytes_per_s, found.from_worker_bytes_per_s];
            assert_eq!(rates, [16 * whole, 8 * whole, 4 * whole]);
            assert_eq!((found.to_worker_over_memcpy, found.from_worker_over_memcpy), (0.5, 0.25));
            let short = [found.short_to_worker_ns, found.short_from_worker_ns, found.empty_run_ns];
            assert_eq!((short, found.start_ns), ([50, 40, 16_000], 7_500_000));
        }
    }
}

fn text(result: &json::Offload) -> String {
    let rate = |bytes_per_s: u64| format!("{:.2} GB/s", bytes_per_s as f64 / 1e9);
    let us = |ns: u64| table::seconds(ns as f64 / 1e9);
    let rows = [
        ("memcpy", rate(result.memcpy_bytes_per_s), String::new()),
        (
            "to worker",
            rate(result.to_worker_bytes_per_s),
            format!("{:.3} of memcpy", result.to_worker_over_memcpy),
        ),
        (
            "from worker",
            rate(result.from_worker_bytes_per_s),
            format!("{:.3} of memcpy", result.from_worker_over_memcpy),
        ),
        ("4 bytes to worker", us(result.short_to_worker_ns), String::new()),
        ("4 bytes from worker", us(result.short_from_worker_ns), String::new()),
        ("empty run", us(result.empty_run_ns), String::new()),
        ("start of the worker", us(result.start_ns), String::new()),
    ];
    let rows: Vec<_> =
        rows.into_iter().map(|(name, value, note)| vec![name.to_owned(), value, note]).collect();
    let mut lines = vec![
        format!(
            "{}: transfers of {}; medians of {} runs",
            result.device,
            table::bytes(result.bytes),
            result.runs
        ),
        String::new(),
    ];
    lines.extend(table::lines(&rows).into_iter().map(|line| format!("  {}", line.trim_end())));
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No two figures of the result are equal.
    #[test]
    fn the_text_shows_each_figure_under_its_name() {
        let result = json::Offload {
            device: "offload:0".to_owned(),
            runs: 7,
            bytes: 3 << 20,
            memcpy_bytes_per_s: 8_250_000_000,
            to_worker_bytes_per_s: 4_500_000_000,
            from_worker_bytes_per_s: 2_125_000_000,
            to_worker_over_memcpy: 0.5,
            from_worker_over_memcpy: 0.25,
            short_bytes: 4,
            short_to_worker_ns: 50,
            short_from_worker_ns: 40,
            empty_run_ns: 16_000,
            start_ns: 7_500_000,
        };
        let text = text(&result);
        let shown: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "offload:0: transfers of 3.0 MiB; medians of 7 runs",
            "",
            "memcpy 8.25 GB/s",
            "to worker 4.50 GB/s 0.500 of memcpy",
            "from worker 2.12 GB/s 0.250 of memcpy",
            "4 bytes to worker 50 ns",
            "4 bytes from worker 40 ns",
            "empty run 16.0 us",
            "start of the worker 7.50 ms",
        ];
        assert_eq!(shown, expected);
    }
}
