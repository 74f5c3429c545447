//! The decisions of one run and the inputs of its policy: saved as text, and replayed.

use super::PolicyError;
use super::blueprint::Blueprint;
use super::replay::{Decision, Different, Log, replay};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Version of the text format.
const VERSION: u32 = 2;

/// All decisions of a run, in order, and the inputs from which its policy was built.
///
/// Prints as JSON with a line per decision, which parses to an equal recording. [`replay`](Self::replay)
/// builds the policy again and repeats the decisions. After a change to a policy, it reports the first
/// decision that differs.
///
/// A run keeps a recording if [`Coexecutor::record_decisions`](crate::Coexecutor::record_decisions) is set.
///
/// # Examples
/// ```
/// # use dml_scheduler::{Coexecutor, Kernel, policy::RecordedDecisions};
/// # fn example(coexecutor: Coexecutor, kernel: &Kernel) -> Result<(), Box<dyn std::error::Error>> {
/// let report = coexecutor.record_decisions().run(kernel, 1_000_000)?;
/// if let Some(recording) = report.decisions {
///     std::fs::write("run.decisions", recording.to_string())?;
/// }
/// // Later, without devices:
/// let recording: RecordedDecisions = std::fs::read_to_string("run.decisions")?.parse()?;
/// recording.replay()?; // names the first decision that differs
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedDecisions {
    blueprint: Blueprint,
    decisions: Vec<Decision>,
}

/// The serialised form of a recording.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    dml_decisions: u32,
    blueprint: Blueprint,
    decisions: Vec<Decision>,
}

impl RecordedDecisions {
    pub(crate) fn new(blueprint: Blueprint, log: &Log) -> Self {
        Self { blueprint, decisions: log.decisions() }
    }

    /// Returns the inputs from which the policy was built.
    #[must_use]
    pub const fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Returns the decisions, in order.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Builds the policy again, and repeats the decisions.
    ///
    /// # Errors
    /// [`ReplayError`]: the policy cannot be built, or decides differently.
    pub fn replay(&self) -> Result<(), ReplayError> {
        Ok(replay(&mut *self.blueprint.build()?, &self.decisions)?)
    }
}

/// Why a replay failed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The policy cannot be built from the recording.
    #[error("the policy cannot be rebuilt: {0}")]
    Policy(#[from] PolicyError),
    /// A decision differs.
    #[error(transparent)]
    Different(#[from] Box<Different>),
}

/// Why a text does not parse as a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseDecisionsError {
    /// The text is not JSON of this format; the error names the line.
    #[error("not a recording of decisions: {0}")]
    Form(#[from] serde_json::Error),
    /// The text has another format version.
    #[error("unsupported recording: format version {found}, expected {VERSION}")]
    Version {
        /// The version of the text.
        found: u32,
    },
    /// The blueprint or a decision does not match the units of the run.
    #[error("bad recording: {what} does not match the run's number of units, {units}")]
    UnknownUnit {
        /// The part of the recording that does not match.
        what: String,
        /// The number of units.
        units: usize,
    },
    /// A decision has an empty package.
    #[error("bad recording: decision {number} has an empty package")]
    EmptyPackage {
        /// The number of the decision, from 1.
        number: usize,
    },
}

impl fmt::Display for RecordedDecisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blueprint = serde_json::to_string(&self.blueprint).map_err(|_| fmt::Error)?;
        write!(f, "{{\"dml_decisions\": {VERSION},\n\"blueprint\": {blueprint},\n\"decisions\": [")?;
        for (index, decision) in self.decisions.iter().enumerate() {
            let decision = serde_json::to_string(decision).map_err(|_| fmt::Error)?;
            write!(f, "{}\n{decision}", if index > 0 { "," } else { "" })?;
        }
        f.write_str("\n]}\n")
    }
}

impl FromStr for RecordedDecisions {
    type Err = ParseDecisionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Text { dml_decisions, blueprint, decisions } = serde_json::from_str(text)?;
        if dml_decisions != VERSION {
            return Err(ParseDecisionsError::Version { found: dml_decisions });
        }
        let units = blueprint.units().len();
        let unknown = |what: String| Err(ParseDecisionsError::UnknownUnit { what, units });
        if !blueprint.is_consistent() {
            return unknown("the blueprint".to_owned());
        }
        for (number, decision) in (1..).zip(&decisions) {
            if !decision.units().all(|unit| blueprint.has(unit)) {
                return unknown(format!("decision {number} ({decision})"));
            }
            if decision.package().is_some_and(|package| package.range().is_empty()) {
                return Err(ParseDecisionsError::EmptyPackage { number });
            }
        }
        Ok(Self { blueprint, decisions })
    }
}

#[cfg(test)]
mod tests;
