//! `dml bench pipeline`: chunks that go in, through a kernel, and out, submitted and queued by hand. The ways
//! take turns in one process, and every result is checked.

use crate::chain::{compiled, failed, median, take_turns};
use crate::cli::{Memory, PipelineOptions};
use crate::failure::{self, Failure};
use crate::machine::pinned_bytes;
use crate::{by_hand, json, table};
use dml_workloads::by_hand::pipeline::Pipeline;

/// Measures and prints the table.
pub(crate) fn run(options: &PipelineOptions) -> Result<(), Failure> {
    let result = measure(options)?;
    if options.json { json::print(&result) } else { failure::print(&text(&result)) }
}

fn measure(options: &PipelineOptions) -> Result<json::Pipeline, Failure> {
    let PipelineOptions { chunks, elements, runs, .. } = *options;
    let mut machine = options.machine.clone();
    // A device that uses the host's memory in place transfers nothing.
    machine.memory = match machine.memory {
        Memory::Auto | Memory::Copy => Memory::Copy,
        Memory::Bound => {
            return Err(Failure::Usage("pipeline needs transfers: omit --memory bound".to_owned()));
        }
    };
    let (machine, devices) = compiled(&machine, "pipeline")?;
    let (platform, mut rows) = (&machine.platform, Vec::new());
    for device in devices {
        let (memory, size) =
            (by_hand::memory(platform, device), [chunks, elements].map(|count| count as usize));
        let mut pipeline = Pipeline::new(platform, device, memory, size).map_err(failed)?;
        let rounds = options.rounds.map_or_else(|| pipeline.suited_rounds(), Ok).map_err(failed)?;
        let seconds = take_turns(runs, || {
            let [transfers, kernels] = pipeline.alone(rounds)?;
            let [submitted, by_hand] = [pipeline.submitted(rounds)?, pipeline.by_hand(rounds)?];
            Ok([submitted, by_hand, pipeline.one_by_one(rounds)?, transfers, kernels])
        })?;
        rows.push(row(platform.device_desc(device).name.to_string(), rounds, &seconds));
    }
    Ok(json::Pipeline { chunks, elements, pinned_bytes: pinned_bytes(platform), runs, rows })
}

/// Returns the medians of a row, from the seconds of each way: submitted, by hand, one by one, and the
/// transfers and the kernels alone.
fn row(device: String, rounds: u32, seconds: &[Vec<f64>; 5]) -> json::PipelineRow {
    let [submitted_s, by_hand_s, one_by_one_s, transfers_s, kernels_s] =
        seconds.each_ref().map(|seconds| median(seconds));
    let each = |figure: &dyn Fn([f64; 5]) -> f64| {
        let of_round = |round| figure(seconds.each_ref().map(|seconds| seconds[round]));
        median(&(0..seconds[0].len()).map(of_round).collect::<Vec<_>>())
    };
    let hidden = |whole: f64, transfers: f64, kernels: f64| (transfers + kernels - whole) / transfers;
    json::PipelineRow {
        device,
        rounds,
        submitted_s,
        by_hand_s,
        one_by_one_s,
        transfers_s,
        kernels_s,
        of_by_hand: each(&|[submitted, by_hand, ..]| by_hand / submitted),
        hidden: each(&|[submitted, _, _, transfers, kernels]| hidden(submitted, transfers, kernels)),
        hidden_by_hand: each(&|[_, by_hand, _, transfers, kernels]| hidden(by_hand, transfers, kernels)),
    }
}

fn text(result: &json::Pipeline) -> String {
    let heading = [
        "device",
        "chunks",
        "elements",
        "rounds",
        "submitted",
        "by hand",
        "one by one",
        "of by hand",
        "hidden",
        "hidden by hand",
    ];
    let rows = result.rows.iter().map(|row| {
        vec![
            row.device.clone(),
            result.chunks.to_string(),
            result.elements.to_string(),
            row.rounds.to_string(),
            table::seconds(row.submitted_s),
            table::seconds(row.by_hand_s),
            table::seconds(row.one_by_one_s),
            format!("{:.2}", row.of_by_hand),
            format!("{:.2}", row.hidden),
            format!("{:.2}", row.hidden_by_hand),
        ]
    });
    let rows: Vec<_> = std::iter::once(heading.map(str::to_owned).to_vec()).chain(rows).collect();
    let (runs, pinned) = (result.runs, table::pinned(result.pinned_bytes));
    let first = format!(
        "time of all chunks, from inputs on the host to results there{pinned}; median of {runs} runs"
    );
    let lines = [first, String::new()].into_iter().chain(table::lines(&rows));
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_the_median_of_its_way() {
        let around = |median: f64| vec![median * 5.0, median / 2.0, median];
        let row = row("a".to_owned(), 7, &[1.25, 1.0, 2.0, 0.5, 1.0].map(around));
        let found = [row.submitted_s, row.by_hand_s, row.one_by_one_s, row.transfers_s, row.kernels_s];
        assert_eq!(found, [1.25, 1.0, 2.0, 0.5, 1.0]);
        assert_eq!([row.of_by_hand, row.hidden, row.hidden_by_hand], [0.8, 0.5, 1.0]);
        let result =
            json::Pipeline { chunks: 16, elements: 64, pinned_bytes: None, runs: 3, rows: vec![row] };
        let text = text(&result);
        assert!(text.contains("1.250 s") && text.contains("2.000 s") && text.contains("0.80"), "{text}");
    }
}
