//! The decisions of one run with what its policy was built from: as a text to keep, and decided again.

use super::PolicyError;
use super::blueprint::Blueprint;
use super::replay::{Decision, Different, Log, replay};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The version of the text's form.
const VERSION: u32 = 2;

/// All decisions of a run, in the order in which they were made, and what its policy was built from.
///
/// It prints as JSON with a line per decision, which parses to the same. [`replay`](Self::replay) builds the policy again, and makes the decisions
/// again: after a change to a policy, the first one that it makes differently is named.
///
/// A run keeps one if [`Coexecutor::record_decisions`](crate::Coexecutor::record_decisions) asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    blueprint: Blueprint,
    decisions: Vec<Decision>,
}

/// The recording as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    dml_decisions: u32,
    blueprint: Blueprint,
    decisions: Vec<Decision>,
}

impl Recording {
    pub(crate) fn new(blueprint: Blueprint, log: &Log) -> Self {
        Self { blueprint, decisions: log.decisions() }
    }

    /// What the policy was built from.
    #[must_use]
    pub const fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// The decisions, in their order.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Makes the decisions again, with the policy built again.
    ///
    /// # Errors
    /// [`ReplayError`]: the policy cannot be built, or decides differently.
    pub fn replay(&self) -> Result<(), ReplayError> {
        Ok(replay(&mut *self.blueprint.build()?, &self.decisions)?)
    }
}

/// Why a run is not decided the same again.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The policy cannot be built from what is recorded.
    #[error("the policy cannot be built again: {0}")]
    Policy(#[from] PolicyError),
    /// A decision differs.
    #[error(transparent)]
    Different(#[from] Box<Different>),
}

/// Why a text is no recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseRecordingError {
    /// It is no JSON of this form; the error names the line.
    #[error("no recorded decisions: {0}")]
    Form(#[from] serde_json::Error),
    /// It has the form of another version.
    #[error("recorded by another version: form {found}, not {VERSION}")]
    Version {
        /// The form that it has.
        found: u32,
    },
    /// The policy, or a decision, names a unit that the run did not have.
    #[error("bad recording: {what} names a unit of a run that had {units}")]
    UnknownUnit {
        /// What names it.
        what: String,
        /// The number of units.
        units: usize,
    },
    /// A decision is about a package without items.
    #[error("bad recording: decision {number} is about a package without items")]
    EmptyPackage {
        /// The number of the decision, from 1.
        number: usize,
    },
}

impl fmt::Display for Recording {
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

impl FromStr for Recording {
    type Err = ParseRecordingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Text { dml_decisions, blueprint, decisions } = serde_json::from_str(text)?;
        if dml_decisions != VERSION {
            return Err(ParseRecordingError::Version { found: dml_decisions });
        }
        let units = blueprint.units().len();
        let unknown = |what: String| Err(ParseRecordingError::UnknownUnit { what, units });
        if !blueprint.is_consistent() {
            return unknown("the blueprint".to_owned());
        }
        for (number, decision) in (1..).zip(&decisions) {
            if !decision.units().all(|unit| blueprint.has(unit)) {
                return unknown(format!("decision {number}, {decision},"));
            }
            if decision.package().is_some_and(|package| package.range().is_empty()) {
                return Err(ParseRecordingError::EmptyPackage { number });
            }
        }
        Ok(Self { blueprint, decisions })
    }
}

#[cfg(test)]
mod tests;
