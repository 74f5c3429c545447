//! Parsing of traces from untrusted files.

use super::{FORMAT, Trace, VERSION};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use std::fmt::Display;
use thiserror::Error;

/// Why a text could not be read as a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The text ends before the JSON does.
    #[error("truncated trace: ends within a value at line {line}, column {column}")]
    Truncated {
        /// The last line, from 1.
        line: usize,
        /// The last column, from 1.
        column: usize,
    },
    /// The text is not JSON.
    #[error("not a trace: invalid JSON at line {line}, column {column}: {cause}")]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The message of the JSON parser.
        cause: String,
    },
    /// The text is empty, or its JSON is not a dml trace.
    #[error("not a dml trace: {found}")]
    NotATrace {
        /// What the text is instead, as far as this is known.
        found: String,
    },
    /// The trace has a newer version of the format.
    #[error(
        "cannot read trace format version {found}: this program reads versions up to {known}; use a newer dml"
    )]
    NewerVersion {
        /// The version of the trace.
        found: u64,
        /// The newest version that this program reads.
        known: u32,
    },
    /// A field is missing or has the wrong type.
    #[error("invalid trace at line {line}, column {column}: {cause}")]
    BadField {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The field, and what is wrong with it.
        cause: String,
    },
    /// The values contradict each other.
    #[error("invalid trace: {place} {cause}")]
    Inconsistent {
        /// The path of the faulty value, such as `packages[3].device`.
        place: String,
        /// What is wrong with it.
        cause: String,
    },
}

/// The fields that identify a file as a trace.
#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
struct Probe {
    dml: Option<Heading>,
    format: Option<String>,
    version: Option<u64>,
    #[serde(rename = "traceEvents")]
    trace_events: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
struct Heading {
    format: Option<String>,
    version: Option<u64>,
}

/// A file for Perfetto that contains a trace.
#[derive(Deserialize)]
struct Enclosed {
    dml: Trace,
}

impl Trace {
    /// Reads a trace from its JSON, or from a file of [`Trace::write_perfetto`]. Unknown fields are ignored.
    ///
    /// # Errors
    /// [`TraceError`], with the place of the fault.
    pub fn read(text: &str) -> Result<Self, TraceError> {
        if text.trim().is_empty() {
            return Err(TraceError::NotATrace { found: "it is empty".to_owned() });
        }
        let probe: Probe = serde_json::from_str(text).map_err(|error| match error.classify() {
            Category::Data => TraceError::NotATrace { found: error.to_string() },
            _ => no_json(&error),
        })?;
        let other = |found: &str| Err(TraceError::NotATrace { found: found.to_owned() });
        let (format, version, is_enclosed) = match probe {
            Probe { dml: Some(dml), .. } => (dml.format, dml.version, true),
            Probe { format: Some(format), version, .. } => (Some(format), version, false),
            Probe { trace_events: Some(_), .. } => {
                return other("trace events of another program: there is no `dml` beside `traceEvents`");
            }
            _ => return other("a JSON object without `dml` and `format`"),
        };
        match (format, version) {
            (Some(format), _) if format != FORMAT => return other(&format!("its format is {format:?}")),
            (None, _) => return other("`dml` has no `format`"),
            (_, Some(found)) if found > u64::from(VERSION) => {
                return Err(TraceError::NewerVersion { found, known: VERSION });
            }
            (_, None | Some(0)) => return other("it has no version"),
            _ => {}
        }
        let trace = match is_enclosed {
            true => serde_json::from_str::<Enclosed>(text).map(|enclosed| enclosed.dml),
            false => serde_json::from_str::<Self>(text),
        };
        let trace = trace.map_err(|error| TraceError::BadField {
            line: error.line(),
            column: error.column(),
            cause: first_line(&error),
        })?;
        trace.check()?;
        Ok(trace)
    }

    /// Checks that all indices are in range, and that nothing ends before it begins.
    fn check(&self) -> Result<(), TraceError> {
        let wrong = |place: String, cause: String| Err(TraceError::Inconsistent { place, cause });
        let (devices, arenas) = (self.devices.len(), self.arenas.len());
        for (index, device) in self.devices.iter().enumerate() {
            if let Some(arena) = device.arena.filter(|arena| *arena >= arenas) {
                return wrong(format!("devices[{index}].arena"), no_such(arena, "arenas", arenas));
            }
        }
        for (index, package) in self.packages.iter().enumerate() {
            if package.device >= devices {
                return wrong(
                    format!("packages[{index}].device"),
                    no_such(package.device, "devices", devices),
                );
            }
            let turns = [package.start_ns, package.begun_ns, package.computed_ns, package.end_ns];
            if !turns.is_sorted() {
                let cause = format!("has times out of order: {turns:?} ns");
                return wrong(format!("packages[{index}]"), cause);
            }
        }
        for (index, transfer) in self.transfers.iter().enumerate() {
            if let Some(arena) = transfer.from.into_iter().chain([transfer.to]).find(|arena| *arena >= arenas)
            {
                return wrong(format!("transfers[{index}]"), no_such(arena, "arenas", arenas));
            }
            if transfer.end_ns < transfer.begin_ns {
                return wrong(
                    format!("transfers[{index}].end_ns"),
                    ends_early(transfer.begin_ns, transfer.end_ns),
                );
            }
        }
        for (index, wait) in self.waits.iter().enumerate() {
            if let Some(arena) = wait.arena.filter(|arena| *arena >= arenas) {
                return wrong(format!("waits[{index}].arena"), no_such(arena, "arenas", arenas));
            }
            if wait.end_ns < wait.begin_ns {
                return wrong(format!("waits[{index}].end_ns"), ends_early(wait.begin_ns, wait.end_ns));
            }
        }
        for (index, decision) in self.decisions.iter().enumerate() {
            if decision.device >= devices {
                return wrong(
                    format!("decisions[{index}].device"),
                    no_such(decision.device, "devices", devices),
                );
            }
        }
        Ok(())
    }
}

fn no_such(index: usize, list: &str, len: usize) -> String {
    format!("refers to {list}[{index}], but {list} has {len} entries")
}

fn ends_early(begin: u64, end: u64) -> String {
    format!("is {end}, before begin_ns at {begin}")
}

fn no_json(error: &serde_json::Error) -> TraceError {
    let (line, column) = (error.line(), error.column());
    match error.classify() {
        Category::Eof => TraceError::Truncated { line, column },
        _ => TraceError::NotJson { line, column, cause: first_line(error) },
    }
}

/// Returns serde's message without the place, which the errors hold in fields of their own.
fn first_line(error: &impl Display) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}
