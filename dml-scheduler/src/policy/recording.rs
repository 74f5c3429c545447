//! The decisions of one run with what its policy was built from: as a text to keep, and decided again.

use super::blueprint::{Blueprint, Reader};
use super::replay::{Decision, Different, Log, replay};
use super::{ParseDecisionError, PolicyError};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The first line of the text: what it is, and the version of its form.
const TITLE: &str = "dml decisions 1";

/// All decisions of a run, in the order in which they were made, and what its policy was built from.
///
/// It prints as lines of text, which parse to the same: a title, the [`Blueprint`], the number of decisions, an empty line, and
/// one line per [`Decision`]. [`replay`](Self::replay) builds the policy again, and makes the decisions again: after a change to a policy, the
/// first one that it makes differently is named.
///
/// A run keeps one if [`Coexecutor::record_decisions`](crate::Coexecutor::record_decisions) asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
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
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseRecordingError {
    /// The first line is another one.
    #[error("no recorded decisions: line 1 is {found:?}, not {TITLE:?}")]
    Title {
        /// The first line.
        found: String,
    },
    /// A line before the empty one says nothing that can stand there.
    #[error("bad recording: line {line}: {text:?} says nothing of a policy that could stand there")]
    Blueprint {
        /// The number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// The part before the decisions ends too early.
    #[error(
        "bad recording: line {line}: the work, the units, the policy and the number of decisions come first, and an empty line"
    )]
    Incomplete {
        /// The number of the line, from 1.
        line: usize,
    },
    /// A line is no decision.
    #[error("bad recording: line {line}: {source}")]
    Decision {
        /// The number of the line, from 1.
        line: usize,
        /// What it should be.
        source: ParseDecisionError,
    },
    /// The text has more decisions than it says, or fewer: it was cut.
    #[error("bad recording: it says that it has {counted} decisions, and has {found}")]
    Count {
        /// How many it says that it has.
        counted: usize,
        /// How many it has.
        found: usize,
    },
    /// A decision names a unit that the run did not have.
    #[error("bad recording: line {line}: {text:?} names a unit of a run that had {units}")]
    UnknownUnit {
        /// The number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
        /// The number of units.
        units: usize,
    },
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}\n{}decisions {}\n", self.blueprint, self.decisions.len())?;
        self.decisions.iter().try_for_each(|decision| writeln!(f, "{decision}"))
    }
}

impl FromStr for Recording {
    type Err = ParseRecordingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut lines = (1..).zip(text.lines());
        let title = lines.next().map_or("", |(_, title)| title);
        if title != TITLE {
            return Err(ParseRecordingError::Title { found: title.chars().take(80).collect() });
        }
        let (mut reader, mut counted) = (Reader::default(), None);
        let mut last = 1;
        for (line, text) in lines.by_ref() {
            let bad = || ParseRecordingError::Blueprint { line, text: text.to_owned() };
            last = line;
            match text.strip_prefix("decisions ") {
                _ if text.is_empty() => break,
                Some(count) if counted.is_none() => {
                    counted = Some(count.parse::<usize>().map_err(|_| bad())?);
                }
                _ => reader.read(text).ok_or_else(bad)?,
            }
        }
        let incomplete = || ParseRecordingError::Incomplete { line: last };
        let (blueprint, counted) = reader.end().zip(counted).ok_or_else(incomplete)?;
        let units = blueprint.units().len();
        let decisions = lines.map(|(line, text)| {
            let decision: Decision =
                text.parse().map_err(|source| ParseRecordingError::Decision { line, source })?;
            if decision.units().all(|unit| unit.0 < units) {
                Ok(decision)
            } else {
                Err(ParseRecordingError::UnknownUnit { line, text: text.to_owned(), units })
            }
        });
        let decisions = decisions.collect::<Result<Vec<_>, _>>()?;
        match decisions.len() {
            found if found != counted => Err(ParseRecordingError::Count { counted, found }),
            _ => Ok(Self { decisions, blueprint }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Freight, Learned, Opens, Plan, PolicySpec, Prior, Recorded, Splitter, Tries};
    use super::*;
    use crate::{Assignment, Computed, UnitId};
    use proptest::prelude::*;
    use std::time::Duration;

    const WORK: u64 = 1_000_000;
    const LOCAL: u64 = 64;

    fn names() -> Vec<String> {
        ["cpu", "opencl:0 of a kind", "offload:0"].map(str::to_owned).into()
    }

    /// One unit begins, one may join, and one is left out.
    fn opening() -> Plan {
        let freight = Freight { setup: 150e-6, per_item: 1.5e-9 };
        let opening = Opens {
            first: UnitId(0),
            others: vec![(UnitId(1), freight)],
            at_once: false,
            undivided: false,
            threads: 16,
            launch: 0.0,
            packages: None,
            tries: Some(Tries { unit: UnitId(1), items: 500, after: 1.0, takes: 0.25 }),
            twins: vec![UnitId(1)],
            rival: None,
        };
        Plan::Calibrated(Learned {
            priors: vec![
                None,
                Some(Prior::of_power(0.3)),
                Some(Prior::measured(1e6, Duration::from_nanos(2500))),
            ],
            overlapping: vec![UnitId(1)],
            left_out: vec![UnitId(2)],
            opening: Some(opening),
        })
    }

    /// One unit begins, and one is compared with it.
    fn beside_a_rival() -> Plan {
        let rival = (UnitId(1), Freight { setup: 150e-6, per_item: 1.5e-9 });
        let opening = Opens {
            first: UnitId(0),
            others: Vec::new(),
            at_once: false,
            undivided: false,
            threads: 2,
            launch: 0.0,
            packages: None,
            tries: None,
            twins: Vec::new(),
            rival: Some(rival),
        };
        Plan::Calibrated(Learned {
            priors: vec![None; 3],
            overlapping: vec![UnitId(1)],
            left_out: vec![UnitId(2)],
            opening: Some(opening),
        })
    }

    /// One unit begins, and calls its twin up.
    fn by_a_twin() -> Plan {
        let opening = Opens {
            first: UnitId(0),
            others: vec![(UnitId(1), Freight { setup: 150e-6, per_item: 1.5e-9 })],
            at_once: false,
            undivided: false,
            threads: 1,
            launch: 0.0,
            packages: Some(14),
            tries: None,
            twins: Vec::new(),
            rival: None,
        };
        let (priors, overlapping, left_out) = (vec![None; 3], Vec::new(), vec![UnitId(2)]);
        Plan::Calibrated(Learned { priors, overlapping, left_out, opening: Some(opening) })
    }

    /// A run in which the second unit is called up, as the engine calls the splitter.
    fn recorded(plan: Plan) -> Recording {
        let blueprint = Blueprint::new(WORK, LOCAL, names(), plan);
        let (policy, log) = Recorded::new(blueprint.build().unwrap());
        let mut splitter = Splitter::new(Box::new(policy), 3, WORK, LOCAL).unwrap();
        let (mut now, mut called) = (Duration::ZERO, vec![UnitId(0)]);
        let others = [UnitId(1), UnitId(2)];
        match &blueprint.plan {
            Plan::Calibrated(Learned { opening: Some(_), .. }) => {
                others.iter().for_each(|other| splitter.bench(*other))
            }
            _ => called.extend(others),
        }
        assert!(!matches!(splitter.try_out(now), Some(Ok(_))), "not before anybody has shown anything");
        while !splitter.is_finished() {
            for unit in called.clone() {
                let Assignment::Package(package) = splitter.assign_at(unit, now) else { continue };
                let ended = now + Duration::from_nanos(package.items() * (unit.0 as u64 * 3 + 1) * 300);
                let computed = Computed::new(&package, now, now, ended, ended);
                splitter.complete_with(&package, computed).unwrap();
                called.extend(splitter.called_up());
                now = ended;
                let Some(Ok((tried, items))) = splitter.try_out(now) else { continue };
                // The first unit has waited, and computes one package meanwhile.
                now += Duration::from_millis(20);
                if let Assignment::Package(package) = splitter.assign_at(UnitId(0), now) {
                    let ended = now + Duration::from_nanos(package.items() * 300);
                    let computed = Computed::new(&package, now, now, ended, ended);
                    splitter.complete_with(&package, computed).unwrap();
                    now = ended;
                }
                let ended = now + Duration::from_micros(1);
                let claimed = splitter.tried(tried, items, Some([now, now, ended])).unwrap();
                let computed = Computed::new(&claimed, now, now, ended, ended);
                splitter.complete_with(&claimed, computed).unwrap();
                called.extend(splitter.called_up());
                now = ended;
            }
        }
        Recording::new(blueprint, &log)
    }

    #[test]
    fn a_run_in_which_others_are_called_up_is_decided_the_same_again_from_its_text() {
        let recording = recorded(opening());
        let text = recording.to_string();
        assert!(text.starts_with(
            "dml decisions 1\nwork 1000000 local 64\nunit u0 cpu\nunit u1 opencl:0 of a kind\nunit u2 offload:0\n\
             policy calibrated\nprior u1 power 0.3\nprior u2 measured 1000000 2500\noverlaps u1\nleft_out u2\nopens u0 threads 16\n\
             joins u1 0.00015 0.0000000015\ntries u1 500 after 1 takes 0.25\ntwin u1\ndecisions "
        ), "{text}");
        for decided in ["call_up -> u1", "call_up -> none", "tried u1 512 at"] {
            assert!(text.contains(&format!("\n{decided}")), "{decided}: {text}");
        }
        assert!(text.contains(" -> u1 500\n"), "{text}");
        let read: Recording = text.parse().unwrap();
        assert_eq!(read, recording);
        read.replay().unwrap();
    }

    #[test]
    fn a_run_in_which_two_are_compared_is_decided_the_same_again_from_its_text() {
        let recording = recorded(beside_a_rival());
        let text = recording.to_string();
        assert!(text.contains("\nopens u0 threads 2\nrival u1 0.00015 0.0000000015\ndecisions "), "{text}");
        assert!(text.contains("\ntried u1 ") && text.contains("\ncall_up -> u1"), "{text}");
        let read: Recording = text.parse().unwrap();
        assert_eq!(read, recording);
        read.replay().unwrap();
        let known = "\nrival u1 0.00015 0.0000000015\n";
        for other in ["\n", "\nrival u1 5 0.0000000015\n", "\nrival u1 0.00015 0.0005\n"] {
            let read: Recording = text.replace(known, other).parse().unwrap();
            assert!(matches!(read.replay(), Err(ReplayError::Different(_))), "{other}");
        }
        for (from, to, line) in [
            ("\nopens u0 threads 2", "", 9),
            ("rival u1 0.00015", "rival u3 0.00015", 10),
            ("rival u1 0.00015", "rival u1", 10),
        ] {
            let error = text.replace(from, to).parse::<Recording>().unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}: \"rival u")), "{to}: {error}");
        }
    }

    #[test]
    fn twins_that_all_begin_do_so_again() {
        let Plan::Calibrated(mut learned) = by_a_twin() else { unreachable!("it is") };
        learned.opening.as_mut().unwrap().at_once = true;
        let (plan, names) = (Plan::Calibrated(learned), names());
        let text =
            Recording::new(Blueprint::new(WORK, LOCAL, names, plan.clone()), &Log::default()).to_string();
        assert!(text.contains("\nopens u0 at_once packages 14\n"), "{text}");
        let read: Recording = text.parse().unwrap();
        assert_eq!(read.blueprint().plan, plan);
        let gets = |text: &str| {
            let read: Recording = text.parse().unwrap();
            read.blueprint().build().unwrap().next(UnitId(1), WORK)
        };
        assert_eq!((gets(&text), gets(&text.replace(" at_once", ""))), (Some(71_429), None));
    }

    #[test]
    fn who_is_the_twin_of_the_one_that_was_tried_counts() {
        let Plan::Calibrated(mut learned) = opening() else { unreachable!("it is") };
        let opens = learned.opening.as_mut().unwrap();
        opens.others.push((UnitId(2), opens.others[0].1));
        opens.twins = vec![UnitId(2)];
        (learned.left_out, learned.priors) = (Vec::new(), vec![None; 3]);
        let text = recorded(Plan::Calibrated(learned)).to_string();
        assert!(text.contains("\ntwin u2\n") && text.contains("\ncall_up -> u1 u2\n"), "{text}");
        text.parse::<Recording>().unwrap().replay().unwrap();
        let read: Recording = text.replace("\ntwin u2\n", "\n").parse().unwrap();
        assert!(matches!(read.replay(), Err(ReplayError::Different(_))));
    }

    #[test]
    fn a_run_that_a_twin_begins_is_decided_the_same_again_from_its_text() {
        let recording = recorded(by_a_twin());
        let text = recording.to_string();
        let known = "\nopens u0 packages 14\njoins u1 0.00015 0.0000000015\ndecisions ";
        assert!(text.contains(known) && text.contains("\ncall_up -> u1"), "{text}");
        let read: Recording = text.parse().unwrap();
        assert_eq!(read, recording);
        read.replay().unwrap();
        for (known, other) in [("packages 14", "packages 13"), ("joins u1 0.00015", "joins u1 5")] {
            let read: Recording = text.replace(known, other).parse().unwrap();
            assert!(matches!(read.replay(), Err(ReplayError::Different(_))), "{other}");
        }
        for other in ["opens u0 packages", "opens u0 packages -1", "opens u0 packages 14 threads 2"] {
            let error =
                text.replace("opens u0 packages 14", other).parse::<Recording>().unwrap_err().to_string();
            assert!(error.contains(&format!("line 8: \"{other}\"")), "{error}");
        }
    }

    #[test]
    fn whatever_the_policy_knew_counts() {
        let text = recorded(opening()).to_string();
        for (known, other) in [
            ("joins u1 0.00015 0.0000000015", "joins u1 0.5 0.0000000015"),
            ("opens u0 threads 16\n", "opens u0 at_once threads 16\n"),
            ("opens u0 threads 16\n", "opens u0 undivided threads 16\n"),
            ("opens u0 threads 16\n", "opens u0 threads 1\n"),
            ("\ntries u1 500 after 1 takes 0.25\n", "\ntries u1 5000 after 1 takes 0.25\n"),
            ("\ntries u1 500 after 1 takes 0.25\n", "\ntries u1 500 after 0 takes 0.25\n"),
            ("\ntries u1 500 after 1 takes 0.25\n", "\ntries u1 500 after 1\n"),
            ("\ntries u1 500 after 1 takes 0.25\n", "\n"),
            ("policy calibrated", "alone 3"),
        ] {
            assert!(text.contains(known), "{known}");
            let mut changed = text.replace(known, other);
            if other.starts_with("alone") {
                let (blueprint, decisions) = changed.split_once("\n\n").unwrap();
                let kept = blueprint.lines().filter(|line| {
                    !["prior", "overlaps", "left_out", "opens", "joins", "tries", "twin"]
                        .iter()
                        .any(|word| line.starts_with(word))
                });
                changed = format!("{}\n\n{decisions}", kept.collect::<Vec<_>>().join("\n"));
            }
            let read: Recording = changed.parse().unwrap();
            assert!(matches!(read.replay(), Err(ReplayError::Different(_))), "{other}");
        }
    }

    #[test]
    fn what_was_known_of_each_unit_counts() {
        let Plan::Calibrated(learned) = opening() else { unreachable!("it is") };
        let prior = |rate| Some(Prior::measured(rate, Duration::from_micros(5)));
        let priors = vec![prior(1e7), prior(2.5e6), prior(1.5e6)];
        let learned = Learned { priors, left_out: Vec::new(), opening: None, ..learned };
        let text = recorded(Plan::Calibrated(learned)).to_string();
        text.parse::<Recording>().unwrap().replay().unwrap();
        for (known, other) in [("measured 10000000 5000", "measured 100000 5000"), ("overlaps u1\n", "")] {
            assert!(text.contains(known), "{known} in {text}");
            let read: Recording = text.replacen(known, other, 1).parse().unwrap();
            assert!(matches!(read.replay(), Err(ReplayError::Different(_))), "{other}");
        }
    }

    #[test]
    fn published_policies_are_recorded_too() {
        for spec in ["static", "dynamic:7", "hguided:3:128"] {
            let spec: PolicySpec = spec.parse().unwrap();
            let recording = recorded(Plan::Given(spec, vec![1.0, 0.25, 2.0]));
            let read: Recording = recording.to_string().parse().unwrap();
            assert_eq!(read, recording);
            read.replay().unwrap();
        }
        let recording = recorded(Plan::Packages(5));
        assert_eq!(recording.to_string().parse(), Ok(recording));
    }

    #[test]
    fn a_text_that_is_no_recording_says_where() {
        let text = recorded(opening()).to_string();
        let lines = |from: usize| text.lines().skip(from).collect::<Vec<_>>().join("\n");
        let first_decision = text.lines().position(str::is_empty).unwrap() + 2;
        for (text, what) in [
            (String::new(), "line 1 is \"\", not \"dml decisions 1\"".to_owned()),
            (lines(1), "line 1 is \"work 1000000 local 64\"".to_owned()),
            (
                text.replace("unit u1", "unit u2"),
                "line 4: \"unit u2 opencl:0 of a kind\" says nothing".to_owned(),
            ),
            // Who decides knows how many units there are.
            (text.replace("overlaps u1", "unit u3 late"), "line 9: \"unit u3 late\" says nothing".to_owned()),
            (text.lines().take(6).collect::<Vec<_>>().join("\n"), "line 6: the work, the units".to_owned()),
            (text.trim_end().rsplit_once('\n').unwrap().0.to_owned(), "decisions, and has".to_owned()),
            (text.replace("decisions ", "decisions -"), "line 1 is".to_owned()),
            (text.replacen("\ndecisions ", "\ndecisions -", 1), "says nothing".to_owned()),
            (text.replace("work 1000000", "work -1"), "line 2: \"work -1 local 64\" says nothing".to_owned()),
            (text.replace("overlaps u1", "overlaps u3"), "line 9: \"overlaps u3\" says nothing".to_owned()),
            (
                text.replace("opens u0 threads 16\n", ""),
                "line 11: \"joins u1 0.00015 0.0000000015\" says nothing".to_owned(),
            ),
            (
                text.replace("opens u0 threads 16", "opens u0 threads 16 at_once"),
                "line 11: \"opens u0".to_owned(),
            ),
            (text.replace("policy calibrated", "policy calibrated 1 2 3"), "line 6".to_owned()),
            (
                "dml decisions 1\nwork 10 local 1\nunit u0 cpu\ndecisions 0\n\n".to_owned(),
                "line 5: the work, the units".to_owned(),
            ),
            (
                text.replace("call_up -> u1", "call_up -> u7"),
                "\"call_up -> u7\" names a unit of a run that had 3".to_owned(),
            ),
            (
                text.replace("call_up -> u1", "call_up -> u3"),
                "\"call_up -> u3\" names a unit of a run that had 3".to_owned(),
            ),
            (
                text.replacen("set_aside", "put_aside", 1),
                format!("line {first_decision}: bad decision: \"put_aside"),
            ),
        ] {
            let error = text.parse::<Recording>().unwrap_err().to_string();
            assert!(error.contains(&what), "{what}: {error}");
        }
    }

    #[test]
    fn what_is_said_twice_is_refused() {
        let calibrated = recorded(opening()).to_string();
        let rival = recorded(beside_a_rival()).to_string();
        let alone = recorded(Plan::Packages(5)).to_string();
        for (text, fact) in [
            (&rival, "rival u1"),
            (&calibrated, "work 1000000 local 64"),
            (&calibrated, "policy calibrated"),
            (&calibrated, "opens u0 threads 16"),
            (&calibrated, "decisions "),
            (&alone, "alone 5"),
        ] {
            let line = text.lines().find(|line| line.starts_with(fact)).unwrap();
            let twice = text.replacen(&format!("{line}\n"), &format!("{line}\n{line}\n"), 1);
            let error = twice.parse::<Recording>().unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?} says nothing")), "{fact}: {error}");
        }
    }

    #[test]
    fn facts_out_of_range_are_refused_when_the_policy_is_built() {
        let text = recorded(Plan::Packages(5)).to_string();
        for (from, to) in
            [("alone 5", "alone 0"), ("local 64", "local 0"), ("alone 5", "policy static 1 -1 1")]
        {
            let read: Recording = text.replace(from, to).parse().unwrap();
            assert!(matches!(read.replay(), Err(ReplayError::Policy(_))), "{to}");
        }
    }

    /// The name of a device is a stranger's.
    #[test]
    fn a_name_is_one_line() {
        let names = vec!["a\nunit u1 b".to_owned(), String::new(), "  c ".to_owned()];
        let blueprint = Blueprint::new(WORK, LOCAL, names, Plan::Packages(2));
        let recording = Recording { blueprint, decisions: Vec::new() };
        let read: Recording = recording.to_string().parse().unwrap();
        assert_eq!(read.blueprint().units(), ["a unit u1 b", "", "  c "]);
    }

    proptest! {
        #[test]
        fn every_fact_is_read_back_to_the_last_digit(
            rate in any::<f64>(), launch in any::<u64>(), setup in any::<f64>(), per_item in any::<f64>(),
        ) {
            let freight = Freight { setup, per_item };
            let opening = Opens { first: UnitId(2), others: vec![(UnitId(0), freight)], at_once: true, undivided: true, threads: 1, launch: setup, packages: None, tries: Some(Tries { unit: UnitId(1), items: launch, after: setup, takes: per_item }), twins: vec![UnitId(1)], rival: Some((UnitId(1), freight)) };
            let priors = vec![
                Some(Prior::measured(rate, Duration::from_nanos(launch))), Some(Prior::of_power(rate)), None,
            ];
            let learned = Learned { priors, overlapping: vec![], left_out: vec![], opening: Some(opening) };
            let blueprint = Blueprint::new(WORK, LOCAL, names(), Plan::Calibrated(learned));
            let recording = Recording { blueprint, decisions: Vec::new() };
            let read: Recording = recording.to_string().parse().unwrap();
            // No number is equal to itself if it is none.
            prop_assert_eq!(read.to_string(), recording.to_string());
            prop_assert_eq!(format!("{read:?}"), format!("{recording:?}"));
        }

        #[test]
        fn no_text_makes_reading_panic(lines in prop::collection::vec(
            "(work|unit|policy|alone|prior|overlaps|left_out|opens|joins|tries|rival|next|) ?(u[0-9]|calibrated|static|[0-9]{0,3}| ){0,6}", 0..9,
        )) {
            if let Ok(read) = format!("dml decisions 1\n{}", lines.join("\n")).parse::<Recording>() {
                let _ = read.replay();
            }
        }
    }
}
