//! The calls to a policy in a run, recorded as lines of text and replayed to another policy.
//!
//! ```text
//!   next u0 1000 -> 128                            set_aside 1000 u0 u1 -> 600 400
//!   next u1 872 -> none                            set_aside 1000 u0 u1 -> none
//!   handed 0 u0 0..128 at 1500                     given_back 0 u0 0..128
//!   ended u0 128 at 1500 2000 9000                 retire u1
//!   computed u0 128 at 1500 2000 9000 9500         call_up at 9500 -> u1 u2
//! ```
//! Times are in nanoseconds from the start of the run: when the package was handed out, begun, ended and
//! done.

use super::{Computed, Policy};
use crate::base::package::{Package, UnitId};
use dml_core::internal::sync::{Arc, Mutex};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// One call to a policy, with its return value if it has one.
///
/// Prints as one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Decision {
    /// A unit requested work: the unit, the items available to it, and the answer.
    Next(UnitId, u64, Option<u64>),
    /// Work was set aside: its items, the units, and the answer.
    SetAside(u64, Vec<UnitId>, Option<Vec<u64>>),
    /// A package was handed out, at this time.
    Handed(Package, Duration),
    /// A package was computed, with its results in transit. Its `done` is unknown and equals `ended`.
    Ended(Computed),
    /// A package was completed.
    Computed(Computed),
    /// A package came back.
    GivenBack(Package),
    /// The policy was asked at this time which units it calls up, and returned these.
    CalledUp(Duration, Vec<UnitId>),
    /// A unit retired.
    Retired(UnitId),
}

impl Decision {
    /// Repeats the call, and returns it with the policy's answer.
    pub fn replayed(&self, policy: &mut dyn Policy) -> Self {
        match self {
            Self::Next(unit, remaining, _) => Self::Next(*unit, *remaining, policy.next(*unit, *remaining)),
            Self::SetAside(items, units, _) => {
                Self::SetAside(*items, units.clone(), policy.set_aside(*items, units))
            }
            Self::CalledUp(now, _) => Self::CalledUp(*now, policy.call_up(*now)),
            told => {
                match told {
                    Self::Handed(package, now) => policy.handed(package, *now),
                    Self::Ended(computed) => policy.ended(computed),
                    Self::Computed(computed) => policy.computed(computed),
                    Self::GivenBack(package) => policy.given_back(package),
                    Self::Retired(unit) => policy.retire(*unit),
                    Self::Next(..) | Self::SetAside(..) | Self::CalledUp(..) => {
                        unreachable!("handled above")
                    }
                }
                told.clone()
            }
        }
    }

    /// Returns the package of the call, if it has one.
    pub(super) const fn package(&self) -> Option<&Package> {
        match self {
            Self::Handed(package, _) | Self::GivenBack(package) => Some(package),
            _ => None,
        }
    }

    /// Returns the units that the call names.
    pub(super) fn units(&self) -> impl Iterator<Item = UnitId> {
        let (one, more) = match self {
            Self::Next(unit, ..) | Self::Retired(unit) => (Some(*unit), [].as_slice()),
            Self::SetAside(_, units, _) => (None, units.as_slice()),
            // The splitter ignores unknown units in this answer.
            Self::CalledUp(..) => (None, [].as_slice()),
            Self::Handed(package, _) | Self::GivenBack(package) => (Some(package.unit()), [].as_slice()),
            Self::Ended(computed) | Self::Computed(computed) => (Some(computed.unit), [].as_slice()),
        };
        one.into_iter().chain(more.iter().copied())
    }
}

/// A policy that forwards all calls to another one, and records them.
///
/// ```
/// use dml_scheduler::policy::{Dynamic, Recorded, replay};
/// use dml_scheduler::{UnitId, policy::{Assignment, Splitter}};
///
/// let (policy, log) = Recorded::new(Box::new(Dynamic::new(2, 100, 1)?));
/// let mut splitter = Splitter::new(Box::new(policy), 1, 100, 1)?;
/// let Assignment::Package(_) = splitter.assign(UnitId(0)) else { unreachable!() };
/// let text = log.to_string();
/// assert!(text.starts_with("set_aside 100 u0 -> none\nnext u0 100 -> 50\nhanded 0 u0 0..50 at 0\n"));
///
/// let decisions = log.decisions();
/// replay(&mut Dynamic::new(2, 100, 1)?, &decisions)?;
/// let different = replay(&mut Dynamic::new(4, 100, 1)?, &decisions).unwrap_err();
/// assert_eq!(
///     different.to_string(),
///     "decision 2 differs: recorded next u0 100 -> 50, now next u0 100 -> 25",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recorded {
    policy: Box<dyn Policy>,
    log: Log,
}

/// The decisions that a [`Recorded`] policy has recorded so far. Prints one line per decision.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Decision>>>);

impl Recorded {
    /// Records a policy from now on.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>) -> (Self, Log) {
        let log = Log::default();
        (Self { policy, log: log.clone() }, log)
    }

    fn note(&self, decision: Decision) {
        self.log.0.lock().push(decision);
    }
}

impl Log {
    /// Returns the decisions so far.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        self.0.lock().clone()
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decisions().iter().try_for_each(|decision| writeln!(f, "{decision}"))
    }
}

impl Policy for Recorded {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        let answer = self.policy.next(unit, remaining);
        self.note(Decision::Next(unit, remaining, answer));
        answer
    }

    fn set_aside(&mut self, items: u64, units: &[UnitId]) -> Option<Vec<u64>> {
        let answer = self.policy.set_aside(items, units);
        self.note(Decision::SetAside(items, units.to_vec(), answer.clone()));
        answer
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.policy.handed(package, now);
        self.note(Decision::Handed(package.clone(), now));
    }

    fn ended(&mut self, computed: &Computed) {
        self.policy.ended(computed);
        self.note(Decision::Ended(Computed { done: computed.ended, ..computed.clone() }));
    }

    fn computed(&mut self, computed: &Computed) {
        self.policy.computed(computed);
        self.note(Decision::Computed(computed.clone()));
    }

    fn given_back(&mut self, package: &Package) {
        self.policy.given_back(package);
        self.note(Decision::GivenBack(package.clone()));
    }

    fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
        let called = self.policy.call_up(now);
        self.note(Decision::CalledUp(now, called.clone()));
        called
    }

    fn begins(&self, unit: UnitId) -> bool {
        self.policy.begins(unit)
    }

    fn failure(&self) -> Option<String> {
        self.policy.failure()
    }

    fn retire(&mut self, unit: UnitId) {
        self.policy.retire(unit);
        self.note(Decision::Retired(unit));
    }
}

/// A policy that decides differently from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("decision {number} differs: recorded {recorded}, now {now}")]
pub struct Different {
    /// The place of the decision, from 1.
    pub number: usize,
    /// The recorded decision.
    pub recorded: Decision,
    /// The policy's decision in the replay.
    pub now: Decision,
}

/// Repeats the recorded calls to a policy, up to the first answer that differs.
///
/// The policy must be built like the recorded one: with the same work, units and priors.
///
/// # Errors
/// [`Different`]: the first difference. The later calls do not fit the policy's own decisions.
pub fn replay(policy: &mut dyn Policy, decisions: &[Decision]) -> Result<(), Box<Different>> {
    for (index, recorded) in decisions.iter().enumerate() {
        let now = recorded.replayed(policy);
        if now != *recorded {
            return Err(Box::new(Different { number: index + 1, recorded: recorded.clone(), now }));
        }
    }
    Ok(())
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = |f: &mut fmt::Formatter<'_>, package: &Package| {
            write!(f, "{} {} {}..{}", package.index(), package.unit(), package.start(), package.end())
        };
        match self {
            Self::Next(unit, remaining, Some(length)) => write!(f, "next {unit} {remaining} -> {length}"),
            Self::Next(unit, remaining, None) => write!(f, "next {unit} {remaining} -> none"),
            Self::SetAside(items, units, shares) => {
                write!(f, "set_aside {items}")?;
                units.iter().try_for_each(|unit| write!(f, " {unit}"))?;
                f.write_str(" ->")?;
                match shares {
                    Some(shares) => shares.iter().try_for_each(|share| write!(f, " {share}")),
                    None => f.write_str(" none"),
                }
            }
            Self::Handed(handed, now) => {
                f.write_str("handed ")?;
                package(f, handed)?;
                write!(f, " at {}", now.as_nanos())
            }
            Self::Ended(Computed { unit, items, handed, begun, ended, done: _ }) => {
                write!(f, "ended {unit} {items} at")?;
                [handed, begun, ended].iter().try_for_each(|time| write!(f, " {}", time.as_nanos()))
            }
            Self::Computed(computed) => {
                let Computed { unit, items, handed, begun, ended, done } = computed;
                write!(f, "computed {unit} {items} at")?;
                [handed, begun, ended, done].iter().try_for_each(|time| write!(f, " {}", time.as_nanos()))
            }
            Self::GivenBack(back) => {
                f.write_str("given_back ")?;
                package(f, back)
            }
            Self::CalledUp(now, called) if called.is_empty() => {
                write!(f, "call_up at {} -> none", now.as_nanos())
            }
            Self::CalledUp(now, called) => {
                write!(f, "call_up at {} ->", now.as_nanos())?;
                called.iter().try_for_each(|unit| write!(f, " {unit}"))
            }
            Self::Retired(unit) => write!(f, "retire {unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Assignment, Splitter};
    use crate::policy::{Calibrated, HGuided, Prior};
    use proptest::prelude::*;

    /// Runs a policy with three units of different speed. A package comes back, and later one unit retires.
    fn run(policy: Box<dyn Policy>) -> Log {
        let (policy, log) = Recorded::new(policy);
        let mut splitter = Splitter::new(Box::new(policy), 3, 100_003, 16).unwrap();
        let mut now = Duration::ZERO;
        for turn in 0.. {
            if splitter.is_finished() {
                break;
            }
            let unit = UnitId(turn % 3);
            now += Duration::from_micros(7);
            match splitter.assign_at(unit, now) {
                Assignment::Package(package) if turn == 7 => splitter.give_back(&package).unwrap(),
                Assignment::Package(package) => {
                    let begun = now + Duration::from_micros(3);
                    let ended = begun + Duration::from_nanos(package.items() * (unit.0 as u64 + 1) * 100);
                    let done = ended + Duration::from_micros(2);
                    splitter.ended(&package, Computed::new(&package, now, begun, ended, done)).unwrap();
                    splitter
                        .complete_with(&package, Computed::new(&package, now, begun, ended, done))
                        .unwrap();
                    now = done;
                }
                Assignment::Wait | Assignment::NoMore => {}
            }
            splitter.called_up(Duration::ZERO);
            if turn == 12 {
                splitter.retire(UnitId(1));
            }
        }
        log
    }

    fn calibrated() -> Calibrated {
        Calibrated::new(100_003, 16, &[None, Some(Prior::of_power(0.5)), None]).unwrap()
    }

    #[test]
    fn a_recorded_run_is_decided_the_same_again() {
        let log = run(Box::new(calibrated()));
        let text = log.to_string();
        for kind in
            ["next ", "set_aside ", "handed ", "ended ", "computed ", "given_back ", "retire ", "call_up "]
        {
            assert!(text.lines().any(|line| line.starts_with(kind)), "no {kind}in\n{text}");
        }
        replay(&mut calibrated(), &log.decisions()).unwrap();
    }

    #[test]
    fn the_first_difference_is_named() {
        let mut decisions = run(Box::new(calibrated())).decisions();
        let is_answer =
            |decision: &Decision| matches!(decision, Decision::Next(_, _, Some(length)) if *length > 1);
        let place = decisions.iter().rposition(is_answer).unwrap();
        let Decision::Next(_, _, Some(length)) = &mut decisions[place] else { unreachable!() };
        *length -= 1;
        assert_eq!(replay(&mut calibrated(), &decisions).unwrap_err().number, place + 1);
        // Missing reports make a difference, too, not only missing requests.
        let mut decisions = run(Box::new(calibrated())).decisions();
        decisions.retain(|decision| !matches!(decision, Decision::Computed(_)));
        assert!(replay(&mut calibrated(), &decisions).is_err());
        let mut other = HGuided::new(&[1.0, 1.0, 1.0], 2.0, 16).unwrap();
        assert_eq!(replay(&mut other, &run(Box::new(calibrated())).decisions()).unwrap_err().number, 2);
    }

    fn decision() -> impl Strategy<Value = Decision> {
        let unit = || (0..100usize).prop_map(UnitId);
        let package = || {
            (unit(), any::<u64>(), 0..u64::MAX, 1..=u64::MAX).prop_map(|(unit, index, start, items)| {
                Package::new(start..start.saturating_add(items), unit, index)
            })
        };
        prop_oneof![
            (unit(), any::<u64>(), any::<Option<u64>>())
                .prop_map(|(unit, left, answer)| Decision::Next(unit, left, answer)),
            (any::<u64>(), prop::collection::vec(unit(), 0..4), any::<Option<Vec<u64>>>())
                .prop_map(|(items, units, shares)| Decision::SetAside(items, units, shares)),
            (package(), any::<Duration>()).prop_map(|(package, now)| Decision::Handed(package, now)),
            (package(), any::<[Duration; 4]>()).prop_map(|(package, [handed, begun, ended, done])| {
                Decision::Computed(Computed::new(&package, handed, begun, ended, done))
            }),
            (package(), any::<[Duration; 3]>()).prop_map(|(package, [handed, begun, ended])| {
                Decision::Ended(Computed::new(&package, handed, begun, ended, ended))
            }),
            package().prop_map(Decision::GivenBack),
            (any::<Duration>(), prop::collection::vec(unit(), 0..4))
                .prop_map(|(now, called)| Decision::CalledUp(now, called)),
            unit().prop_map(Decision::Retired),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_reads_as_the_same(decision in decision()) {
            let text = serde_json::to_string(&decision).unwrap();
            prop_assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision);
        }
    }
}
