//! `dml bench acquire`: what the data layer itself costs, beside an uncontended mutex. The programs take
//! turns in one process.

use crate::chain::{failed, median};
use crate::chart::{Chart, Line};
use crate::cli::AcquireOptions;
use crate::failure::{self, Failure};
use crate::{json, output, table};
use dml_workloads::overhead::{Footprint, Prepared, Program};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time of a program in each round.
const ROUND: Duration = Duration::from_millis(50);

/// Returns what the table calls a program.
fn label(program: Program) -> String {
    match program {
        Program::MutexPair => "mutex, lock and unlock".to_owned(),
        Program::Read => "read a buffer".to_owned(),
        Program::ReadWrite => "change a buffer".to_owned(),
        Program::Write => "overwrite a buffer".to_owned(),
        Program::Slice => "read a buffer, with a slice".to_owned(),
        Program::View => "read a buffer by a view".to_owned(),
        Program::Await => "read a buffer by await".to_owned(),
        Program::TenBuffers => "read ten buffers at once".to_owned(),
        Program::Submit => "submit a kernel with two buffers".to_owned(),
        Program::NewBuffer => "create and drop a buffer".to_owned(),
        Program::TwoMutexes => "two threads: a mutex each".to_owned(),
        Program::OneMutex => "two threads: one mutex".to_owned(),
        Program::TwoBuffers => "two threads: read a buffer each".to_owned(),
        Program::TwoReaders => "two threads: read one buffer".to_owned(),
        Program::TwoWriters => "two threads: change one buffer".to_owned(),
        Program::Buffers(count) => format!("read one of {count} buffers"),
        Program::Ranges(count) => format!("read one of {count} ranges"),
        Program::Held(count) => format!("read beside {count} grants"),
        other => other.to_string(),
    }
}

/// Returns the measured programs.
fn programs(buffers: u32) -> Vec<Program> {
    let mut buffers = vec![1_000, buffers];
    buffers.dedup();
    let sizes = buffers.into_iter().map(Program::Buffers);
    let sizes = sizes.chain([1, 10, 1_000, 100_000].map(Program::Ranges));
    Program::PLAIN.into_iter().chain(sizes).chain([10, 1_000, 10_000].map(Program::Held)).collect()
}

/// Measures and prints the table.
pub(crate) fn run(options: &AcquireOptions) -> Result<(), Failure> {
    // First, because memory that other programs leave behind would be used again.
    let footprint = Footprint::measured().map_err(failed)?;
    let times = measure(&programs(options.buffers), options.runs)?;
    let result = result(&times, options.runs, footprint);
    if options.json { json::print(&result) } else { failure::print(&text(&times, &result)) }?;
    let Some(chart) = &options.chart else { return Ok(()) };
    let svg = self::chart(&times, options.runs).svg();
    output::write(chart, "chart", |file| file.write_all(svg.as_bytes()))
}

/// The nanoseconds of an operation of each program, in each round.
type Times = Vec<(Program, Vec<f64>)>;

/// Measures rounds in which all programs take turns. The first one does not count.
fn measure(programs: &[Program], runs: u32) -> Result<Times, Failure> {
    let prepare = |program: &Program| -> Result<(Prepared, u64), Failure> {
        let prepared = program.prepare().map_err(failed)?;
        let operations = in_a_round(&prepared)?;
        Ok((prepared, operations))
    };
    let prepared: Vec<_> = programs.iter().map(prepare).collect::<Result<_, _>>()?;
    let mut times: Times = programs.iter().map(|program| (*program, Vec::new())).collect();
    for round in 0..=runs {
        for ((prepared, operations), (_, times)) in prepared.iter().zip(&mut times) {
            let time = prepared.run(*operations).map_err(failed)?;
            if round > 0 {
                times.push(time.as_secs_f64() * 1e9 / *operations as f64);
            }
        }
    }
    Ok(times)
}

/// Returns the number of operations of a round: a power of two, and each buffer at least once.
fn in_a_round(prepared: &Prepared) -> Result<u64, Failure> {
    let mut operations = 64;
    loop {
        if prepared.run(operations).map_err(failed)? >= ROUND / 2 {
            return Ok(operations.max(prepared.buffers() as u64));
        }
        operations *= 2;
    }
}

fn of(times: &Times, program: Program) -> &[f64] {
    times.iter().find(|(known, _)| *known == program).map_or(&[], |(_, times)| times)
}

/// Returns the time of an operation in mutex pairs: the median of the ratios in each round.
fn pairs(times: &Times, program: Program) -> f64 {
    let (own, pairs) = (of(times, program), of(times, Program::MutexPair));
    median(&own.iter().zip(pairs).map(|(own, pair)| own / pair).collect::<Vec<_>>())
}

fn result(times: &Times, runs: u32, footprint: Option<Footprint>) -> json::Acquire {
    let ns = |program| median(of(times, program));
    let counted = |count_of: fn(&Program) -> Option<u32>| -> BTreeMap<u32, f64> {
        let counted = times.iter().filter_map(|(program, times)| Some((count_of(program)?, median(times))));
        counted.collect()
    };
    json::Acquire {
        runs,
        mutex_pair_ns: ns(Program::MutexPair),
        acquire_release_ns: json::AcquireRelease {
            read: ns(Program::Read),
            read_write: ns(Program::ReadWrite),
            write: ns(Program::Write),
            read_slice: ns(Program::Slice),
            read_view: ns(Program::View),
            read_await: ns(Program::Await),
        },
        ten_buffers_ns: ns(Program::TenBuffers),
        submit_ns: ns(Program::Submit),
        new_buffer_ns: ns(Program::NewBuffer),
        two_threads_ns: json::TwoThreads {
            different_mutexes: ns(Program::TwoMutexes),
            same_mutex: ns(Program::OneMutex),
            different_buffers: ns(Program::TwoBuffers),
            same_buffer_read: ns(Program::TwoReaders),
            same_buffer_write: ns(Program::TwoWriters),
        },
        by_ranges_ns: counted(
            |program| if let Program::Ranges(count) = program { Some(*count) } else { None },
        ),
        by_buffers_ns: counted(
            |program| if let Program::Buffers(count) = program { Some(*count) } else { None },
        ),
        by_held_ns: counted(|program| if let Program::Held(count) = program { Some(*count) } else { None }),
        buffer_bytes: footprint.map(|footprint| footprint.buffer_bytes),
        storage_bytes: footprint.map(|footprint| footprint.storage_bytes),
        range_bytes: footprint.map(|footprint| footprint.range_bytes),
    }
}

fn text(times: &Times, result: &json::Acquire) -> String {
    let rows = times.iter().map(|(program, own)| {
        let ns = table::seconds(median(own) * 1e-9);
        vec![label(*program), ns, format!("{:.1}", pairs(times, *program))]
    });
    let heading = ["operation", "time", "mutex pairs"].map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
    let first = format!("time per operation, on each thread; median of {} runs", result.runs);
    let bytes = match (result.buffer_bytes, result.storage_bytes, result.range_bytes) {
        (Some(buffer), Some(storage), Some(range)) => format!(
            "memory: {buffer:.0} bytes for a buffer, {storage:.0} for storage in main memory beside its \
             contents, {range:.0} for a range"
        ),
        _ => "memory: unknown on this system".to_owned(),
    };
    let lines = [first, String::new()].into_iter().chain(table::lines(&rows));
    lines.chain([String::new(), bytes]).map(|line| line + "\n").collect()
}

/// Returns the chart of the programs, in mutex pairs.
fn chart(times: &Times, runs: u32) -> Chart<'static> {
    let bars = times.iter().skip(1).map(|(program, own)| {
        let (value, ns) = (pairs(times, *program), table::seconds(median(own) * 1e-9));
        let (label, figures) = (label(*program), format!("{value:.1} = {ns}"));
        Line::Bar { label, value, mark: None, is_published: false, figures }
    });
    let pair = table::seconds(median(of(times, Program::MutexPair)) * 1e-9);
    let about = format!("1 is locking and unlocking a mutex: {pair}; medians of {runs} runs");
    Chart { title: "Acquire and release, in mutex pairs", about, lines: bars.collect(), reference: Some(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns times of three rounds. The median of the first programs is their place, times ten.
    fn sample() -> Times {
        let around = |median: f64| vec![median * 5.0, median / 2.0, median];
        let all = programs(1_000_000).into_iter().enumerate();
        all.map(|(place, program)| (program, around((place + 1) as f64 * 10.0))).collect()
    }

    #[test]
    fn every_figure_is_the_median_of_its_program() {
        let times = sample();
        let found = result(&times, 3, None);
        assert_eq!((found.mutex_pair_ns, found.submit_ns, found.new_buffer_ns), (10.0, 90.0, 100.0));
        let of_one = found.acquire_release_ns;
        let with_bytes = [of_one.read_slice, of_one.read_view, of_one.read_await];
        assert_eq!([of_one.read, of_one.read_write, of_one.write], [20.0, 30.0, 40.0]);
        assert_eq!((with_bytes, found.ten_buffers_ns), ([50.0, 60.0, 70.0], 80.0));
        let two = found.two_threads_ns;
        let two = [
            two.different_mutexes,
            two.same_mutex,
            two.different_buffers,
            two.same_buffer_read,
            two.same_buffer_write,
        ];
        assert_eq!(two, [110.0, 120.0, 130.0, 140.0, 150.0]);
        assert_eq!(found.by_buffers_ns, [(1_000, 160.0), (1_000_000, 170.0)].into());
        assert_eq!(found.by_ranges_ns, [(1, 180.0), (10, 190.0), (1_000, 200.0), (100_000, 210.0)].into());
        assert_eq!(found.by_held_ns, [(10, 220.0), (1_000, 230.0), (10_000, 240.0)].into());
        assert_eq!(found.buffer_bytes, None);
    }

    /// A ratio is of times of one round.
    #[test]
    fn pairs_are_of_the_same_round() {
        let times =
            vec![(Program::MutexPair, vec![10.0, 20.0, 40.0]), (Program::Read, vec![50.0, 120.0, 160.0])];
        assert_eq!(pairs(&times, Program::Read), 5.0);
        assert_eq!(pairs(&times, Program::MutexPair), 1.0);
    }

    #[test]
    fn the_text_and_the_chart_have_every_row() {
        let times = sample();
        let text = text(&times, &result(&times, 3, None));
        let svg = chart(&times, 3).svg();
        for (place, label) in programs(1_000_000).into_iter().map(label).enumerate() {
            let line = text.lines().find(|line| line.starts_with(&label)).expect("a line for each program");
            let figures = [format!("{} ns", (place + 1) * 10), format!("{}.0", place + 1)];
            assert!(figures.iter().all(|figure| line.contains(figure)), "{line}");
            assert!(place == 0 || svg.contains(&format!(">{label}<")), "{label}: {svg}");
        }
        assert!(text.contains("memory: unknown") && svg.contains("mutex: 10 ns"), "{text} {svg}");
    }
}
