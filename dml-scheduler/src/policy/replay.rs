//! What a policy was asked and told in a run, as lines of text, and the same again to another policy.
//!
//! ```text
//!   next u0 1000 -> 128                            set_aside 1000 u0 u1 -> 600 400
//!   next u1 872 -> none                            set_aside 1000 u0 u1 -> none
//!   handed 0 u0 0..128 at 1500                     given_back 0 u0 0..128
//!   ended u0 128 at 1500 2000 9000                 retire u1
//!   computed u0 128 at 1500 2000 9000 9500         call_up -> none
//!   call_up -> u1 u2                               try_out at 1500 -> later
//!   tried u1 512 at 1500 2000 9000                 try_out at 2000 -> u1 512
//!   tried u1 failed                                try_out at 2500 -> none
//!                                                  waits u0 at 2000 -> 2500
//! ```
//! Times are nanoseconds from the start of the run: when the package was handed out, begun, ended and done.

use super::{Computed, Policy, TryOut};
use crate::{Package, UnitId};
use dml_core::sync::{Arc, Mutex};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// One call of a policy, with its answer where it has one.
///
/// It prints as one line, which parses to the same.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// A unit asked: the unit, the items left for it, and the answer.
    Next(UnitId, u64, Option<u64>),
    /// Work was shared out: its items, the units, and the answer.
    SetAside(u64, Vec<UnitId>, Option<Vec<u64>>),
    /// A package was handed out, at this time.
    Handed(Package, Duration),
    /// A package was computed, and its results still travel. When it is done is not known, and stands for its end.
    Ended(Computed),
    /// A package was computed.
    Computed(Computed),
    /// A package came back.
    GivenBack(Package),
    /// It was asked whom it calls up, and this was the answer.
    CalledUp(Vec<UnitId>),
    /// It was asked at this time whom to try out, and this was the answer.
    TryOut(Duration, TryOut),
    /// It was asked at this time how long a unit waits for the end of a trial, and until then was the answer.
    Waits(UnitId, Duration, Duration),
    /// A trial of a unit has ended: what it computed, if it did not fail. When its results are somewhere is not asked.
    Tried(UnitId, Option<Computed>),
    /// A unit retired.
    Retired(UnitId),
}

impl Decision {
    /// Makes the call again, and returns it with the answer that it gets now.
    pub fn replayed(&self, policy: &mut dyn Policy) -> Self {
        match self {
            Self::Next(unit, remaining, _) => Self::Next(*unit, *remaining, policy.next(*unit, *remaining)),
            Self::SetAside(items, units, _) => {
                Self::SetAside(*items, units.clone(), policy.set_aside(*items, units))
            }
            Self::CalledUp(_) => Self::CalledUp(policy.call_up()),
            Self::TryOut(now, _) => Self::TryOut(*now, policy.try_out(*now)),
            Self::Waits(unit, now, _) => Self::Waits(*unit, *now, policy.waits(*unit, *now)),
            told => {
                match told {
                    Self::Handed(package, now) => policy.handed(package, *now),
                    Self::Ended(computed) => policy.ended(computed),
                    Self::Computed(computed) => policy.computed(computed),
                    Self::GivenBack(package) => policy.given_back(package),
                    Self::Tried(unit, computed) => policy.tried(*unit, computed.as_ref()),
                    Self::Retired(unit) => policy.retire(*unit),
                    Self::Next(..) | Self::SetAside(..) | Self::CalledUp(_) => unreachable!("answered above"),
                    Self::TryOut(..) | Self::Waits(..) => unreachable!("answered above"),
                }
                told.clone()
            }
        }
    }

    /// The units that the decision names.
    pub(super) fn units(&self) -> impl Iterator<Item = UnitId> {
        let (one, more) = match self {
            Self::Next(unit, ..)
            | Self::Retired(unit)
            | Self::Tried(unit, _)
            | Self::Waits(unit, ..)
            | Self::TryOut(_, TryOut::Now { unit, .. }) => (Some(*unit), [].as_slice()),
            Self::TryOut(..) => (None, [].as_slice()),
            Self::SetAside(_, units, _) | Self::CalledUp(units) => (None, units.as_slice()),
            Self::Handed(package, _) | Self::GivenBack(package) => (Some(package.unit()), [].as_slice()),
            Self::Ended(computed) | Self::Computed(computed) => (Some(computed.unit), [].as_slice()),
        };
        one.into_iter().chain(more.iter().copied())
    }
}

/// A policy that decides as another one does, and writes down what it is asked and told.
///
/// ```
/// use dml_scheduler::policy::{Decision, Dynamic, Recorded, replay};
/// use dml_scheduler::{Assignment, Splitter, UnitId};
///
/// let (policy, log) = Recorded::new(Box::new(Dynamic::new(2, 100, 1)?));
/// let mut splitter = Splitter::new(Box::new(policy), 1, 100, 1)?;
/// let Assignment::Package(_) = splitter.assign(UnitId(0)) else { unreachable!() };
/// let text = log.to_string();
/// assert!(text.starts_with("set_aside 100 u0 -> none\nnext u0 100 -> 50\nhanded 0 u0 0..50 at 0\n"));
///
/// let decisions: Vec<Decision> = text.lines().map(|line| line.parse().unwrap()).collect();
/// replay(&mut Dynamic::new(2, 100, 1)?, &decisions)?;
/// let different = replay(&mut Dynamic::new(4, 100, 1)?, &decisions).unwrap_err();
/// assert_eq!(different.to_string(), "decision 2 differs: recorded next u0 100 -> 50, now next u0 100 -> 25");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recorded {
    policy: Box<dyn Policy>,
    log: Log,
}

/// What a [`Recorded`] policy has written down so far. It prints as one line per decision.
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
    /// The decisions so far.
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

    fn call_up(&mut self) -> Vec<UnitId> {
        let called = self.policy.call_up();
        self.note(Decision::CalledUp(called.clone()));
        called
    }

    fn try_out(&mut self, now: Duration) -> TryOut {
        let answer = self.policy.try_out(now);
        self.note(Decision::TryOut(now, answer));
        answer
    }

    fn waits(&mut self, unit: UnitId, now: Duration) -> Duration {
        let answer = self.policy.waits(unit, now);
        self.note(Decision::Waits(unit, now, answer));
        answer
    }

    fn tried(&mut self, unit: UnitId, computed: Option<&Computed>) {
        self.policy.tried(unit, computed);
        let told = computed.map(|computed| Computed { done: computed.ended, ..computed.clone() });
        self.note(Decision::Tried(unit, told));
    }

    fn retire(&mut self, unit: UnitId) {
        self.policy.retire(unit);
        self.note(Decision::Retired(unit));
    }
}

/// A policy decides differently from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("decision {number} differs: recorded {recorded}, now {now}")]
pub struct Different {
    /// The place of the decision, from 1.
    pub number: usize,
    /// What was recorded.
    pub recorded: Decision,
    /// What the policy decides.
    pub now: Decision,
}

/// Makes the recorded calls to a policy, up to the first answer that differs.
///
/// The policy must be built as the recorded one was: with the same work, units and priors.
///
/// # Errors
/// [`Different`]: the first difference. What is recorded after it no longer fits the policy.
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
            Self::CalledUp(called) if called.is_empty() => f.write_str("call_up -> none"),
            Self::CalledUp(called) => {
                f.write_str("call_up ->")?;
                called.iter().try_for_each(|unit| write!(f, " {unit}"))
            }
            Self::TryOut(now, answer) => {
                write!(f, "try_out at {} -> ", now.as_nanos())?;
                match answer {
                    TryOut::No => f.write_str("none"),
                    TryOut::Later => f.write_str("later"),
                    TryOut::Now { unit, items } => write!(f, "{unit} {items}"),
                }
            }
            Self::Waits(unit, now, answer) => {
                write!(f, "waits {unit} at {} -> {}", now.as_nanos(), answer.as_nanos())
            }
            Self::Tried(unit, None) => write!(f, "tried {unit} failed"),
            Self::Tried(unit, Some(Computed { unit: _, items, handed, begun, ended, done: _ })) => {
                write!(f, "tried {unit} {items} at")?;
                [handed, begun, ended].iter().try_for_each(|time| write!(f, " {}", time.as_nanos()))
            }
            Self::Retired(unit) => write!(f, "retire {unit}"),
        }
    }
}

/// A line is no decision.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("bad decision: {line:?} is not a line of a recorded policy")]
pub struct ParseDecisionError {
    /// The line.
    pub line: String,
}

impl FromStr for Decision {
    type Err = ParseDecisionError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = line.split(' ').collect();
        parse(&words).ok_or_else(|| ParseDecisionError { line: line.to_owned() })
    }
}

fn parse(words: &[&str]) -> Option<Decision> {
    Some(match words {
        ["next", who, remaining, "->", "none"] => Decision::Next(unit(who)?, remaining.parse().ok()?, None),
        ["next", who, remaining, "->", length] => {
            Decision::Next(unit(who)?, remaining.parse().ok()?, Some(length.parse().ok()?))
        }
        ["set_aside", items, rest @ ..] => {
            let arrow = rest.iter().position(|word| *word == "->")?;
            let units = rest[..arrow].iter().map(|word| unit(word)).collect::<Option<_>>()?;
            let shares = match &rest[arrow + 1..] {
                ["none"] => None,
                shares => Some(shares.iter().map(|share| share.parse().ok()).collect::<Option<_>>()?),
            };
            Decision::SetAside(items.parse().ok()?, units, shares)
        }
        ["handed", index, who, range, "at", now] => {
            Decision::Handed(package(index, who, range)?, nanos(now)?)
        }
        [what @ ("ended" | "computed"), who, items, "at", times @ ..] => {
            let times = times.iter().map(|time| nanos(time)).collect::<Option<Vec<_>>>()?;
            let (unit, items) = (unit(who)?, items.parse().ok()?);
            match (*what, &times[..]) {
                ("ended", &[handed, begun, ended]) => {
                    Decision::Ended(Computed { unit, items, handed, begun, ended, done: ended })
                }
                ("computed", &[handed, begun, ended, done]) => {
                    Decision::Computed(Computed { unit, items, handed, begun, ended, done })
                }
                _ => return None,
            }
        }
        ["given_back", index, who, range] => Decision::GivenBack(package(index, who, range)?),
        ["call_up", "->", "none"] => Decision::CalledUp(Vec::new()),
        ["call_up", "->", called @ ..] if !called.is_empty() => {
            Decision::CalledUp(called.iter().map(|word| unit(word)).collect::<Option<_>>()?)
        }
        ["try_out", "at", now, "->", answer @ ..] => {
            let answer = match answer {
                ["none"] => TryOut::No,
                ["later"] => TryOut::Later,
                [who, items] => TryOut::Now { unit: unit(who)?, items: items.parse().ok()? },
                _ => return None,
            };
            Decision::TryOut(nanos(now)?, answer)
        }
        ["waits", who, "at", now, "->", answer] => Decision::Waits(unit(who)?, nanos(now)?, nanos(answer)?),
        ["tried", who, "failed"] => Decision::Tried(unit(who)?, None),
        ["tried", who, items, "at", handed, begun, ended] => {
            let (unit, items) = (unit(who)?, items.parse().ok()?);
            let [handed, begun, ended] = [nanos(handed)?, nanos(begun)?, nanos(ended)?];
            Decision::Tried(unit, Some(Computed { unit, items, handed, begun, ended, done: ended }))
        }
        ["retire", who] => Decision::Retired(unit(who)?),
        _ => return None,
    })
}

pub(super) fn unit(word: &str) -> Option<UnitId> {
    word.strip_prefix('u')?.parse().ok().map(UnitId)
}

fn package(index: &str, who: &str, range: &str) -> Option<Package> {
    let (start, end) = range.split_once("..")?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    (start < end).then_some(Package::new(start..end, unit(who)?, index.parse().ok()?))
}

fn nanos(word: &str) -> Option<Duration> {
    let nanos: u128 = word.parse().ok()?;
    let second = 1_000_000_000;
    Some(Duration::new(u64::try_from(nanos / second).ok()?, (nanos % second) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Calibrated, HGuided, Prior};
    use crate::{Assignment, Splitter};
    use proptest::prelude::*;

    /// A run of three units that are not equally fast, one of which retires, after which a package comes back.
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
            splitter.called_up();
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
        let decisions: Vec<Decision> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(decisions, log.decisions());
        replay(&mut calibrated(), &decisions).unwrap();
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
        // What it was told counts too, not only what it was asked.
        let mut decisions = run(Box::new(calibrated())).decisions();
        decisions.retain(|decision| !matches!(decision, Decision::Computed(_)));
        assert!(replay(&mut calibrated(), &decisions).is_err());
        let mut other = HGuided::new(&[1.0, 1.0, 1.0], 2.0, 16).unwrap();
        assert_eq!(replay(&mut other, &run(Box::new(calibrated())).decisions()).unwrap_err().number, 2);
    }

    #[test]
    fn a_line_that_is_no_decision_is_shown() {
        for line in [
            "",
            "next",
            "next 0 1 -> 2",
            "next u0 1 -> -2",
            "handed 0 u0 5..5 at 0",
            "computed u0 1 at 1 2 3",
            "ended u0 1 at 1 2 3 4",
            "ended u0 1 at 1 2",
            "retire u",
            "call_up ->",
            "call_up -> 1",
            "try_out at 5 -> 5",
            "try_out -> none",
            "try_out at 5 -> u1 -2",
            "tried u1 5 at 1 2",
            "tried u1 well",
            "waits u1 at 5 -> perhaps",
        ] {
            let error = line.parse::<Decision>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("bad decision: {line:?} is not a line of a recorded policy")
            );
        }
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
            prop::collection::vec(unit(), 0..4).prop_map(Decision::CalledUp),
            (any::<Duration>(), any::<Option<bool>>(), unit(), any::<u64>()).prop_map(
                |(now, answer, unit, items)| {
                    let answer = answer.map_or(TryOut::No, |now| match now {
                        true => TryOut::Now { unit, items },
                        false => TryOut::Later,
                    });
                    Decision::TryOut(now, answer)
                }
            ),
            (unit(), any::<Duration>(), any::<Duration>())
                .prop_map(|(unit, now, answer)| Decision::Waits(unit, now, answer)),
            (package(), any::<Option<[Duration; 3]>>()).prop_map(|(package, times)| {
                let computed =
                    times.map(|[handed, begun, ended]| Computed::new(&package, handed, begun, ended, ended));
                Decision::Tried(package.unit(), computed)
            }),
            unit().prop_map(Decision::Retired),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(decision in decision()) {
            prop_assert_eq!(decision.to_string().parse(), Ok(decision));
        }
    }
}
