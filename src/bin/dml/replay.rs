//! `dml replay`, and the file of `dml bench --decisions`: a policy's decisions in a run, and their replay.

use crate::cli::ReplayOptions;
use crate::failure::{self, Failure};
use crate::{json, output, table};
use dml::scheduler::UnitId;
use dml::scheduler::policy::{Decision, RecordedDecisions, ReplayError};
use serde::Serialize;
use std::path::Path;

/// The output of `dml replay --json`.
#[derive(Debug, Serialize)]
struct Replayed {
    items: u64,
    local_size: u64,
    decisions: usize,
    same: bool,
    devices: Vec<Part>,
}

/// The recorded work of one device.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Part {
    name: String,
    packages: u64,
    items: u64,
    /// End of its last package, in nanoseconds from the start of the run; `None` without packages.
    end_ns: Option<u64>,
}

/// Writes the decisions of a run.
pub(crate) fn write(path: &Path, decisions: &RecordedDecisions) -> Result<(), Failure> {
    output::write(path, "decisions", |file| write!(file, "{decisions}"))
}

/// Replays the decisions of a run.
pub(crate) fn run(options: &ReplayOptions) -> Result<(), Failure> {
    let path = &options.file;
    let shown = path.display();
    let text = output::read(path, "decisions", "not a recording of decisions")?;
    let recording: RecordedDecisions =
        text.parse().map_err(|error| Failure::Usage(format!("{shown}: {error}")))?;
    let replayed = recording.replay();
    if let Err(error @ ReplayError::Policy(_)) = &replayed {
        return Err(Failure::Usage(format!("{shown}: {error}")));
    }
    let blueprint = recording.blueprint();
    let result = Replayed {
        items: blueprint.work(),
        local_size: blueprint.local_size(),
        decisions: recording.decisions().len(),
        same: replayed.is_ok(),
        devices: parts(&recording),
    };
    if options.json {
        json::print(&result)?
    } else {
        failure::print(&text_of(&result))?
    }
    replayed.map_err(|different| Failure::Work(format!("{shown}: {different}")))
}

/// Returns the work that each device has computed.
fn parts(recording: &RecordedDecisions) -> Vec<Part> {
    let names = recording.blueprint().units();
    let mut parts: Vec<Part> =
        names.iter().map(|name| Part { name: name.clone(), packages: 0, items: 0, end_ns: None }).collect();
    for decision in recording.decisions() {
        let Decision::Computed(computed) = decision else { continue };
        let UnitId(index) = computed.unit;
        let part = &mut parts[index];
        part.packages += 1;
        // The numbers of the file are unchecked, and must not overflow.
        part.items = part.items.saturating_add(computed.items);
        let done = u64::try_from(computed.done.as_nanos()).unwrap_or(u64::MAX);
        part.end_ns = part.end_ns.max(Some(done));
    }
    parts
}

fn text_of(result: &Replayed) -> String {
    let Replayed { items, local_size, decisions, same, devices } = result;
    let mut lines = vec![format!("run         {items} items in work-groups of {local_size}")];
    for Part { name, packages, items, end_ns } in devices {
        let end = end_ns.map_or_else(String::new, |ns| {
            format!(
                ", the last one done at {}",
                table::seconds(std::time::Duration::from_nanos(ns).as_secs_f64())
            )
        });
        lines.push(format!("device      {name}: {packages} packages, {items} items{end}"));
    }
    let outcome = if *same { "decided the same again" } else { "decided differently" };
    lines.push(format!("decisions   {decisions}, {outcome}\n"));
    lines.join("\n")
}
