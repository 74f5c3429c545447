//! Decisions of real runs, as files: `dml bench --decisions`, `dml replay`, and the same for programs.

#![cfg(not(dml_loom))]

mod program;

use dml::Kernel;

use dml::prelude::*;
use dml::scheduler::policy::{Decision, RecordedDecisions};
use program::{dml, folder};
use serde_json::Value;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_the_command_writes_is_decided_the_same_again() {
    let folder = folder("command");
    let bench = ["bench", "taylor", "--size", "tiny", "--devices", "cpu,offload:0", "--runs", "3", "--json"];
    for policy in ["calibrated", "hguided:2", "dynamic:9"] {
        let asked = [&bench[..], &["--policy", policy, "--decisions", "run.decisions"]].concat();
        let out = dml(&folder, &asked);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let bench: Value = serde_json::from_slice(&out.stdout).expect("one object");
        assert_eq!(bench["decisions"], "run.decisions");
        let out = dml(&folder, &["replay", "run.decisions", "--json"]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let replayed: Value = serde_json::from_slice(&out.stdout).expect("one object");
        assert_eq!(replayed["same"], true);
        // It is the median run that was written: no two end at the same times.
        for (replayed, bench) in
            replayed["devices"].as_array().unwrap().iter().zip(bench["devices"].as_array().unwrap())
        {
            let end_s = replayed["end_ns"].as_f64().unwrap_or(0.0) / 1e9;
            let ended_s = bench["end_s"].as_f64().unwrap();
            assert!((end_s - ended_s).abs() < 1e-9, "{policy}: {replayed} beside {bench}");
        }
        let names = |of: &Value| -> Vec<Value> {
            of["devices"].as_array().unwrap().iter().map(|device| device["name"].clone()).collect()
        };
        assert_eq!(names(&replayed), names(&bench));
        for key in ["packages", "items"] {
            let of = |all: &Value| -> Vec<u64> {
                all["devices"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|device| device[key].as_u64().unwrap())
                    .collect()
            };
            assert_eq!(of(&replayed), of(&bench), "{policy}: {key}");
        }
        let out = dml(&folder, &["replay", "run.decisions"]);
        assert!(text(&out.stdout).contains("decided the same again"), "{}", text(&out.stdout));
    }
}

#[test]
fn a_decision_that_differs_is_named_and_the_work_failed() {
    let folder = folder("different");
    let out = dml(
        &folder,
        &[
            "bench",
            "taylor",
            "--size",
            "tiny",
            "--devices",
            "cpu",
            "--runs",
            "1",
            "--policy",
            "dynamic:4",
            "--decisions",
            "run.decisions",
        ],
    );
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("decisions   run.decisions, for dml replay"), "{}", text(&out.stdout));
    let file = folder.join("run.decisions");
    let recorded = std::fs::read_to_string(&file).unwrap();
    // Three lines come before the first decision.
    let (number, line) =
        (-2..).zip(recorded.lines()).find(|(_, line)| line.starts_with("{\"Next\"")).expect("somebody asked");
    let next: Value = serde_json::from_str(line.trim_end_matches(',')).expect("a decision");
    let [unit, left, length] = [0, 1, 2].map(|place| next["Next"][place].as_u64().expect("a number"));
    let other = format!("{{\"Next\":[{unit},{left},{}]}}", length + 1);
    std::fs::write(&file, recorded.replacen(line.trim_end_matches(','), &other, 1)).unwrap();
    let out = dml(&folder, &["replay", "run.decisions"]);
    assert_eq!(out.status.code(), Some(1));
    let asked = format!("next u{unit} {left} ->");
    let said = format!("decision {number} differs: recorded {asked} {}, now {asked} {length}", length + 1);
    assert!(text(&out.stderr).contains(&said), "{said}: {}", text(&out.stderr));
    assert!(text(&out.stdout).contains("decided differently"), "{}", text(&out.stdout));
}

#[test]
fn what_is_no_recording_is_bad_usage() {
    let folder = folder("bad");
    let out = dml(&folder, &["replay", "none"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("cannot read the decisions none"), "{}", text(&out.stderr));
    for (bytes, what) in [
        (&b"dml\xff"[..], "byte 3 is not valid"),
        (b"next u0 1 -> 1", "not a recording of decisions: expected ident at line 1"),
        (
            br#"{"dml_decisions":2,"blueprint":{"work":5,"local_size":0,"units":["cpu"],"plan":{"Packages":1}},"decisions":[]}"#,
            "bad local work size",
        ),
    ] {
        std::fs::write(folder.join("file"), bytes).unwrap();
        let out = dml(&folder, &["replay", "file"]);
        assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains(what), "{what}: {}", text(&out.stderr));
    }
    for arguments in [
        &["bench", "taylor", "saxpy", "--decisions", "a"][..],
        &["bench", "taylor", "--decisions", "a", "--trace", "a"],
        &["bench", "never-loses", "--decisions", "a"],
        &["bench", "offload", "--decisions", "a"],
        &["bench", "never-loses", "--powercap", "a"],
        &["bench", "offload", "--powercap", "a"],
    ] {
        let out = dml(&folder, arguments);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {}", text(&out.stderr));
        let option = arguments.iter().find(|argument| argument.starts_with("--")).expect("each has one");
        assert!(text(&out.stderr).contains(option), "{}", text(&out.stderr));
    }
}

#[test]
fn a_program_has_the_decisions_of_the_runs_that_it_asks_for() {
    let options = DiscoverOptions::default().only(["cpu"]);
    let platform =
        Platform::builder().discover_with(&options).expect("main memory").build().expect("is sound");
    let target = platform.buffer::<u32>(10_000).build().expect("a small buffer");
    let host = launch::host(&platform, |call| {
        let (items, target) = (call.items(), call.part(0)?);
        target.slice_mut::<u32>()?.iter_mut().zip(items).for_each(|(value, item)| *value = item as u32);
        Ok(())
    });
    let kernel = Kernel::new("count", 16).write(&target).launchers(host.expect("a host")).expect("fits");
    let coexecutor = Coexecutor::new(&platform);
    assert_eq!(coexecutor.run(&kernel, 10_000).expect("it computes").decisions, None);
    let report = coexecutor.record_decisions().run(&kernel, 10_000).expect("it computes");
    let recording = report.decisions.expect("it was asked for");
    assert_eq!((recording.blueprint().work(), recording.blueprint().local_size()), (10_000, 16));
    let computed = recording.decisions().iter().filter_map(|decision| match decision {
        Decision::Computed(computed) => Some(computed.items),
        _ => None,
    });
    assert_eq!(computed.sum::<u64>(), 10_000);
    let read: RecordedDecisions = recording.to_string().parse().expect("it prints what it reads");
    assert_eq!(read, recording);
    read.replay().expect("decided the same again");
}
