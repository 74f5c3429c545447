//! Custom policies, implemented by the application.

use super::{Computed, Policy, PolicyError};
use crate::base::guard::{Quiet, guarded};
use crate::base::package::{Package, UnitId};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The properties of a run for which a custom policy is built.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PolicyInput<'a> {
    /// The relative power of each unit, positive and finite.
    pub powers: &'a [f64],
    /// The number of items of the run.
    pub items: u64,
    /// The local work size in items, at least 1.
    pub local_size: u64,
}

type Make = dyn Fn(PolicyInput<'_>) -> Result<Box<dyn Policy>, Box<dyn Error + Send + Sync>> + Send + Sync;

/// A custom policy: its name, and a callback that builds it for each run.
///
/// Created by [`PolicySpec::custom`](super::PolicySpec::custom). It serialises as its name. A deserialised
/// one has only the name, and cannot build a policy. Two with the same name are equal.
///
/// # Examples
/// ```
/// use dml_scheduler::policy::{Dynamic, PolicySpec};
///
/// // Eight packages for each unit.
/// let eighths = PolicySpec::custom("eighths", |run| {
///     let packages = 8 * run.powers.len() as u64;
///     Ok(Box::new(Dynamic::new(packages, run.items, run.local_size)?))
/// });
/// assert_eq!(eighths.to_string(), "eighths");
/// let splitter = eighths.splitter(&[1.0, 2.0], 1 << 20, 64)?; // or `Coexecutor::policy`
/// # Ok::<(), dml_scheduler::policy::PolicyError>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
pub struct CustomPolicy {
    name: String,
    #[serde(skip)]
    make: Option<Arc<Make>>,
}

impl CustomPolicy {
    pub(super) fn new(
        name: String,
        make: impl Fn(PolicyInput<'_>) -> Result<Box<dyn Policy>, Box<dyn Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { name, make: Some(Arc::new(make)) }
    }

    /// Returns the name, for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn build(&self, input: PolicyInput<'_>) -> Result<Box<dyn Policy>, PolicyError> {
        let failed = |cause: String| PolicyError::Custom { policy: self.name.clone(), cause };
        let make = self.make.as_ref().ok_or_else(|| {
            failed("only its name was recorded; replay its decisions with policy::replay".to_owned())
        })?;
        let made = guarded(|| make(input).map_err(|error| error.to_string()));
        let made = made.unwrap_or_else(|message| Err(format!("it panicked: {message}")));
        Ok(Box::new(Guarded { policy: Quiet::new(made.map_err(failed)?), panicked: OnceLock::new() }))
    }
}

/// Every call of the closure is guarded.
impl UnwindSafe for CustomPolicy {}
impl RefUnwindSafe for CustomPolicy {}

impl PartialEq for CustomPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for CustomPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomPolicy({:?})", self.name)
    }
}

/// A custom policy, which is not called again after it has panicked.
struct Guarded {
    policy: Quiet<Box<dyn Policy>>,
    /// The message of its panic.
    panicked: OnceLock<String>,
}

impl Guarded {
    /// Calls the policy, and returns its answer, or the default if it panics or has panicked before.
    fn call<R: Default>(&mut self, call: impl FnOnce(&mut dyn Policy) -> R) -> R {
        let Self { policy, panicked } = self;
        noting(panicked, || call(&mut ***policy)).unwrap_or_default()
    }
}

/// Runs a call of the policy, and keeps the message of a panic. Does nothing after a panic.
fn noting<R>(panicked: &OnceLock<String>, call: impl FnOnce() -> R) -> Option<R> {
    if panicked.get().is_some() {
        return None;
    }
    guarded(call).map_err(|message| panicked.get_or_init(|| format!("it panicked: {message}"))).ok()
}

impl Policy for Guarded {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        self.call(|policy| policy.next(unit, remaining))
    }

    fn set_aside(&mut self, items: u64, units: &[UnitId]) -> Option<Vec<u64>> {
        self.call(|policy| policy.set_aside(items, units))
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.call(|policy| policy.handed(package, now));
    }

    fn ended(&mut self, computed: &Computed) {
        self.call(|policy| policy.ended(computed));
    }

    fn computed(&mut self, computed: &Computed) {
        self.call(|policy| policy.computed(computed));
    }

    fn given_back(&mut self, package: &Package) {
        self.call(|policy| policy.given_back(package));
    }

    fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
        self.call(|policy| policy.call_up(now))
    }

    fn begins(&self, unit: UnitId) -> bool {
        noting(&self.panicked, || self.policy.begins(unit)).unwrap_or(true)
    }

    fn failure(&self) -> Option<String> {
        let own = noting(&self.panicked, || self.policy.failure()).flatten();
        self.panicked.get().cloned().or(own)
    }

    fn retire(&mut self, unit: UnitId) {
        self.call(|policy| policy.retire(unit));
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("panicked", &self.panicked).finish_non_exhaustive()
    }
}
