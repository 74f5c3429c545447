//! Printing, parsing and replaying recordings.

use super::*;
use crate::policy::{Begins, Explorer, First, Learned, Plan, PolicySpec, Prior, Recorded, Splitter};
use crate::{
    UnitId,
    policy::{Assignment, Computed},
};
use std::time::Duration;

const WORK: u64 = 1_000_000;
const LOCAL: u64 = 64;

/// One unit begins, one may be called up, and one is left out.
fn explored() -> Plan {
    let first = First { unit: UnitId(0), fills: Some(16) };
    let explorer = Explorer {
        unit: UnitId(1),
        setup: 150e-6,
        per_item: 1.5e-9,
        fills: 4096,
        turns_with: Vec::new(),
        is_for_later: false,
        twin: None,
    };
    Plan::Calibrated(Learned {
        priors: vec![
            None,
            Some(Prior::of_power(0.3)),
            Some(Prior::measured(1e6, Duration::from_nanos(2500))),
        ],
        overlapping: vec![UnitId(1)],
        fills: vec![0, 4096, 0],
        left_out: vec![UnitId(2)],
        explores: Some((Begins::Sampled(first), vec![explorer])),
    })
}

/// Runs and records a plan, with the calls to the splitter that the engine makes.
fn recorded(plan: Plan) -> RecordedDecisions {
    let names = ["cpu", "gpu:0 of a kind", "offload:0"].map(str::to_owned).into();
    let blueprint = Blueprint::new(WORK, LOCAL, names, plan);
    let (policy, log) = Recorded::new(blueprint.build().unwrap());
    let mut splitter = Splitter::new(Box::new(policy), 3, WORK, LOCAL).unwrap();
    let (mut now, mut begun) = (Duration::ZERO, vec![UnitId(0)]);
    [UnitId(1), UnitId(2)].into_iter().for_each(|other| splitter.bench(other));
    while !splitter.is_finished() {
        for unit in begun.clone() {
            let Assignment::Package(package) = splitter.assign_at(unit, now) else { continue };
            let ended = now + Duration::from_nanos(package.items() * (unit.0 as u64 * 3 + 1) * 30);
            splitter.complete_with(&package, Computed::new(&package, now, now, ended, ended)).unwrap();
            now = ended;
            begun.extend(splitter.called_up(now));
        }
    }
    RecordedDecisions::new(blueprint, &log)
}

#[test]
fn a_run_is_decided_the_same_again_from_its_text() {
    let plans = [
        explored(),
        Plan::Packages(7),
        Plan::Given(PolicySpec::HGuided { k: 2.0, min: None }, vec![1.0, 0.5, 0.1]),
    ];
    for plan in plans {
        let recording = recorded(plan);
        let text = recording.to_string();
        assert_eq!(text.lines().count(), recording.decisions().len() + 4, "a line per decision: {text}");
        let read: RecordedDecisions = text.parse().unwrap();
        assert_eq!(read, recording);
        read.replay().unwrap();
    }
    let called =
        |decision: &Decision| matches!(decision, Decision::CalledUp(_, units) if *units == [UnitId(1)]);
    assert!(recorded(explored()).decisions().iter().any(called));
}

#[test]
fn a_text_that_is_no_recording_is_refused_and_says_where() {
    let text = recorded(explored()).to_string();
    let refused = |text: &str| text.parse::<RecordedDecisions>().unwrap_err().to_string();
    let middle = text.lines().take(10).collect::<Vec<_>>().join("\n");
    assert!(refused(&middle).contains("line 10"), "{}", refused(&middle));
    assert!(refused("").contains("not a recording of decisions"));
    assert!(refused(&text.replace("\"local_size\"", "\"lokal_size\"")).contains("line 2"));
    assert_eq!(
        refused(&text.replace("\"dml_decisions\": 2", "\"dml_decisions\": 3")),
        "unsupported recording: format version 3, expected 2"
    );
    let foreign = |text: &str| refused(text).contains("does not match the run's number of units, 3");
    assert!(foreign(&text.replace("\"unit\":1", "\"unit\":3")));
    assert!(foreign(&text.replace("\"Next\":[1,", "\"Next\":[3,")));
    // A policy may call up a unit that does not exist.
    assert!(text.replace("},[1]]}", "},[1,3]]}").parse::<RecordedDecisions>().is_ok());
    assert!(foreign(&text.replace("\"priors\":[null,", "\"priors\":[")));
    let empty = text.replacen("\"start\":0", "\"start\":64", 1);
    assert!(refused(&empty).contains("has an empty package"), "{}", refused(&empty));
}

/// A text may have any values, and a policy rejects invalid ones.
#[test]
fn a_policy_that_cannot_be_built_is_an_error() {
    let text = recorded(Plan::Packages(7)).to_string().replace("{\"Packages\":7}", "{\"Packages\":0}");
    let error = text.parse::<RecordedDecisions>().unwrap().replay().unwrap_err();
    assert_eq!(error, ReplayError::Policy(PolicyError::ZeroPackages));
}
