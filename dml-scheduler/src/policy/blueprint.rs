//! The inputs from which a run's policy was built, for building it again.

use super::explore::{Begins, Explorer};
use super::{Calibrated, Dynamic, Exploring, Policy, PolicyError, PolicySpec, Prior};
use crate::base::package::UnitId;
use serde::{Deserialize, Serialize};

/// The inputs from which a run's policy was built: the work, the units, and the knowledge of them.
///
/// A policy built again from them decides the same if it gets the same calls ([`replay`](super::replay())).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blueprint {
    work: u64,
    local_size: u64,
    /// The names of the units' devices.
    units: Vec<String>,
    plan: Plan,
}

/// The policy and its knowledge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Plan {
    /// A policy by its name, and the powers of the units.
    Given(PolicySpec, Vec<f64>),
    /// This many equal packages.
    Packages(u64),
    /// [`Calibrated`].
    Calibrated(Learned),
}

/// The knowledge with which [`Calibrated`] begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Learned {
    /// The prior of each unit, if known.
    pub(crate) priors: Vec<Option<Prior>>,
    /// The units whose transfers overlap computing.
    pub(crate) overlapping: Vec<UnitId>,
    /// The number of items that each unit computes in the time of one.
    pub(crate) fills: Vec<u64>,
    /// The units that do not take part.
    pub(crate) left_out: Vec<UnitId>,
    /// How the run begins if some units have unknown speed, and these units.
    pub(crate) explores: Option<(Begins, Vec<Explorer>)>,
}

impl Blueprint {
    pub(crate) const fn new(work: u64, local_size: u64, units: Vec<String>, plan: Plan) -> Self {
        Self { work, local_size, units, plan }
    }

    /// Returns the number of items of the run.
    #[must_use]
    pub const fn work(&self) -> u64 {
        self.work
    }

    /// Returns the local work size, in items.
    #[must_use]
    pub const fn local_size(&self) -> u64 {
        self.local_size
    }

    /// Returns the name of each unit's device, in the order of the units.
    #[must_use]
    pub fn units(&self) -> &[String] {
        &self.units
    }

    /// Builds the policy.
    ///
    /// # Errors
    /// [`PolicyError`]: a value is out of its range, or a custom policy cannot be built. The values of a
    /// recorded run are in range, but a parsed text may have any.
    pub fn build(&self) -> Result<Box<dyn Policy>, PolicyError> {
        let Self { work, local_size, .. } = *self;
        Ok(match &self.plan {
            Plan::Given(spec, powers) => spec.build(powers, work, local_size)?,
            Plan::Packages(packages) => Box::new(Dynamic::new(*packages, work, local_size)?),
            Plan::Calibrated(Learned { priors, overlapping, fills, left_out, explores }) => {
                let policy = Calibrated::new(work, local_size, priors)?;
                let mut policy = policy.overlapping(overlapping.iter().copied()).filled_by(fills);
                left_out.iter().for_each(|unit| policy.retire(*unit));
                match explores {
                    None => Box::new(policy),
                    Some((begins, explorers)) => Box::new(Exploring::new(
                        policy,
                        (work, local_size),
                        begins.clone(),
                        explorers.clone(),
                    )),
                }
            }
        })
    }

    /// Returns whether a unit is one of the run's.
    pub(super) fn has(&self, unit: UnitId) -> bool {
        unit.0 < self.units.len()
    }

    /// Returns whether the plan names only units of the run, and has one power or prior for each.
    pub(super) fn is_consistent(&self) -> bool {
        match &self.plan {
            Plan::Given(_, powers) => powers.len() == self.units.len(),
            Plan::Packages(_) => true,
            Plan::Calibrated(Learned { priors, explores, .. }) => {
                let named = explores.iter().flat_map(|(begins, explorers)| {
                    let of_explorer = |explorer: &Explorer| {
                        let others = explorer.turns_with.iter().chain(&explorer.twin).copied();
                        others.chain([explorer.unit]).collect::<Vec<_>>()
                    };
                    let first = match begins {
                        Begins::Sampled(first) => Some(first.unit),
                        Begins::Known(_) => None,
                    };
                    explorers.iter().flat_map(of_explorer).chain(first).collect::<Vec<_>>()
                });
                priors.len() == self.units.len() && { named }.all(|unit| self.has(unit))
            }
        }
    }
}
