//! `dml reproduce memory` and `coexec`, and the comparison of `dml bench all` with the last suite, as people
//! meet them.

#![cfg(not(dml_loom))]

use dml_workloads::prepare::{Kind, Workload};
use serde_json::Value;
use std::path::{Path, PathBuf};

mod program;
use program::{dml, folder};

/// What the command prints, and what it says beside.
fn ok(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = dml(folder, arguments);
    let [printed, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{arguments:?}: {said}");
    (printed, said)
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (printed, _) = ok(folder, &[arguments, &["--json"]].concat());
    serde_json::from_str(&printed).expect("--json prints one JSON value")
}

/// Two devices of one core each, where there are workers.
fn devices() -> Vec<&'static str> {
    match cfg!(all(feature = "offload", target_os = "linux")) {
        true => vec!["--devices", "cpu,offload:0", "--limit", "cpu=1", "--limit", "offload:0=1"],
        false => vec!["--devices", "cpu", "--limit", "cpu=1"],
    }
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} is no list: {value}"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is no number: {value}"))
}

#[test]
fn bad_usage_is_named_and_exits_with_2() {
    let folder = folder("usage");
    for (arguments, named) in [
        (&["reproduce", "table1", "--devices", "cpu"][..], "on one OpenCL or CUDA device, not cpu"),
        (
            &["reproduce", "table1", "--devices", "opencl:0,cuda:0"],
            "one OpenCL or CUDA device, not opencl:0, cuda:0",
        ),
        (&["reproduce", "table1", "--pinned", "1M"], "--pinned does not apply to table1"),
        (&["reproduce", "table1", "--limit", "cpu=1"], "--limit does not apply to table1"),
        (&["reproduce", "table1", "--offload", "1"], "--offload does not apply to table1"),
        (&["reproduce", "table1", "--pin", "offload:0=0"], "--pin does not apply to table1"),
        (&["reproduce", "table1", "--time-limit", "1"], "--time-limit does not apply to table1"),
        (&["reproduce", "table1", "--policy", "static"], "--policy does not apply to table1"),
        (&["reproduce", "table1", "--memory", "copy"], "--memory does not apply to table1"),
        (&["reproduce", "table1", "--output", "."], "--output does not apply to table1"),
        (&["reproduce", "memory", "--memory", "copy"], "--memory does not apply to memory"),
        (&["reproduce", "memory", "--devices", "tpu:3"], "tpu:3"),
        (&["reproduce", "coexec", "--devices", "tpu:3"], "tpu:3"),
        (&["reproduce", "coexec", "--size", "7"], "7"),
        (&["reproduce", "coexec", "--policy", "guided"], "guided"),
        (&["reproduce", "memory", "--runs", "0"], "0"),
        (&["reproduce", "memory", "--size", "tiny", "--output", "no/such"], "no/such is not a folder"),
        (&["reproduce", "coexec", "--size", "tiny", "--output", "no/such"], "no/such is not a folder"),
        (&["bench", "saxpy", "--no-last"], "--no-last"),
        (&["bench", "never-loses", "--no-last"], "--no-last"),
        (&["bench", "offload", "--no-last"], "--no-last"),
    ] {
        let output = dml(&folder, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains(named) && output.stdout.is_empty(),
            "{arguments:?} does not name {named}: {said}"
        );
    }
}

/// As in the papers, and in the table of workloads of docs/command.md.
#[test]
fn each_workload_is_of_the_kind_that_the_papers_say() {
    let of_kind = |kind: Kind| -> Vec<&str> {
        Workload::ALL.into_iter().filter(|workload| workload.kind() == kind).map(Workload::name).collect()
    };
    assert_eq!(of_kind(Kind::Irregular), ["mandelbrot", "ray", "rap"]);
    assert_eq!(of_kind(Kind::AllToAll), ["nbody"]);
    let table = include_str!("../docs/command.md");
    for workload in Workload::ALL.into_iter().filter(|workload| workload.kind() != Kind::AllToAll) {
        let rows = table.lines().filter(|line| line.starts_with(&format!("| `{workload}` |")));
        let told: Vec<&str> = rows.filter_map(|row| row.split(" | ").last()).collect();
        assert!(told.len() == 1 && told[0].starts_with(workload.kind().name()), "{workload}: {told:?}");
    }
}

/// With an even split both devices compute, so that copies move bytes and shared storage does not.
#[test]
fn every_memory_is_measured_beside_the_others() {
    let folder = folder("memory");
    let arguments = ["reproduce", "memory", "--size", "tiny", "--runs", "2", "--policy", "dynamic:6"];
    let result = json(&folder, &[&arguments[..], &devices()].concat());
    assert_eq!(
        (&result["table"], &result["size"], &result["policy"]),
        (&"memory".into(), &"tiny".into(), &"dynamic:6".into())
    );
    assert_eq!(
        (&result["runs"], &result["verified"], &result["bound_missing"]),
        (&2.into(), &true.into(), &Value::Null)
    );
    let rows = list(&result, "rows");
    let names: Vec<&str> = rows.iter().map(|row| row["workload"].as_str().expect("a name")).collect();
    assert_eq!(names, Workload::ALL.map(Workload::name));
    for row in rows {
        let cost = |memory: &str| row[memory].clone();
        for memory in ["copy", "bound", "auto"] {
            let of = cost(memory);
            assert!(number(&of, "seconds_min") <= number(&of, "seconds") && number(&of, "seconds_min") > 0.0);
            assert!(number(&of, "seconds") <= number(&of, "seconds_max"), "{row}");
            assert!(of["operations"]["kernel"].as_u64().is_some_and(|kernels| kernels > 0), "{row}");
            assert!(!list(&of, "used").is_empty(), "{row}");
        }
        assert_eq!(cost("bound")["bytes"], 0, "one storage moves nothing: {row}");
        let shares = list(&cost("copy"), "used").len() > 1 || list(&cost("copy"), "used")[0] != "cpu";
        assert_eq!(cost("copy")["bytes"].as_u64().is_some_and(|bytes| bytes > 0), shares, "{row}");
        let better = row["better"].as_str().expect("a name");
        assert!(number(&row[better], "over_better") == 1.0, "{row}");
        assert_eq!(row["auto_over_better"], row["auto"]["over_better"]);
        assert_eq!(
            row["kept"],
            number(row, "auto_over_better") <= number(&result, "most_over_better"),
            "{row}"
        );
    }
    let moved = rows.iter().any(|row| row["copy"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert_eq!(moved, devices()[1].contains("offload"), "what the worker computes is moved: {result}");
    let missed = rows.iter().filter(|row| row["kept"] == false).count();
    assert_eq!(result["missed"], missed);
    for kind in ["regular", "irregular", "all"] {
        assert!(number(&result["bound_over_copy"], kind) > 0.0);
    }
}

/// Two inputs go out and one output comes back, once in each run: 12 bytes for each item of vecadd and saxpy.
#[cfg(all(feature = "offload", target_os = "linux"))]
#[test]
fn what_is_moved_is_what_one_run_moves_both_ways() {
    let folder = folder("moved");
    let arguments = ["reproduce", "memory", "--size", "tiny", "--runs", "3", "--devices", "offload:0"];
    let result = json(&folder, &arguments);
    for workload in ["vecadd", "saxpy"] {
        let row = list(&result, "rows").iter().find(|row| row["workload"] == workload).expect(workload);
        let bytes = |memory: &str| row[memory]["bytes"].as_u64().expect("a number");
        let expected = 12 * row["size"]["items"].as_u64().expect("a number");
        assert_eq!([bytes("copy"), bytes("auto"), bytes("bound")], [expected, 0, 0], "{row}");
        assert_eq!(row["copy"]["used"], serde_json::json!(["offload:0"]));
    }
}

#[test]
fn a_folder_gets_the_table_and_what_cannot_be_written_is_failed_work() {
    let folder = folder("files");
    let arguments =
        ["reproduce", "memory", "--size", "tiny", "--runs", "1", "--devices", "cpu", "--limit", "cpu=1"];
    let (printed, _) = ok(&folder, &[&arguments[..], &["--output", ".", "--markdown"]].concat());
    assert_eq!(std::fs::read_to_string(folder.join("memory.md")).ok(), Some(printed.clone()));
    let rows = printed.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(rows, 2 + 3 * Workload::ALL.len(), "{printed}");
    assert!(!folder.join("memory.svg").exists() && !folder.join("ray.png").exists());
    let (text, _) = ok(&folder, &[&arguments[..], &["--output", "."]].concat());
    assert!(
        text.starts_with("memory: cpu; tiny size") && text.ends_with("written     ./memory.md\n"),
        "{text}"
    );
    let taken = folder.join("taken");
    std::fs::create_dir_all(taken.join("memory.md")).expect("it is the test's own");
    let failed = dml(&folder, &[&arguments[..], &["--output", "taken"]].concat());
    let said = String::from_utf8_lossy(&failed.stderr);
    let printed = String::from_utf8_lossy(&failed.stdout);
    assert!(
        failed.status.code() == Some(1) && printed.starts_with("memory: cpu; tiny size"),
        "{said}{printed}"
    );
    assert!(said.contains("cannot write the table taken/memory.md"), "{said}");
}

#[test]
fn the_suite_is_co_executed_beside_the_papers_with_means_of_each_kind() {
    let folder = folder("coexec");
    let arguments =
        ["reproduce", "coexec", "--size", "tiny", "--runs", "1", "--policy", "static", "--output", "."];
    let result = json(&folder, &[&arguments[..], &devices()].concat());
    let rows = list(&result, "rows");
    assert_eq!((rows.len(), &result["verified"]), (Workload::ALL.len(), &true.into()));
    for (name, kind) in
        [("regular", Some(Kind::Regular)), ("irregular", Some(Kind::Irregular)), ("all", None)]
    {
        let names: Vec<&str> = Workload::ALL
            .into_iter()
            .filter(|workload| kind.is_none_or(|kind| workload.kind() == kind))
            .map(Workload::name)
            .collect();
        let of_kind: Vec<&Value> =
            rows.iter().filter(|row| names.contains(&row["workload"].as_str().expect("a name"))).collect();
        assert_eq!(of_kind.len(), names.len());
        let product: f64 = of_kind.iter().map(|row| number(row, "speedup")).product();
        let mean = product.powf(1.0 / names.len() as f64);
        let told = number(&result["means"][name], "speedup");
        assert!((told / mean - 1.0).abs() < 1e-9, "{name}: {told} is not {mean}");
    }
    for row in rows {
        let packages: Option<u64> =
            list(row, "devices").iter().map(|device| device["packages"].as_u64()).sum();
        assert_eq!(row["packages"].as_u64(), packages, "{row}");
        assert_eq!(
            (&row["policy"], &row["verified"], &row["picture"]),
            (&"static".into(), &true.into(), &Value::Null)
        );
    }
    let published = list(&result, "published");
    assert_eq!((number(&published[0], "speedup"), number(&published[0], "efficiency")), (1.65, 0.92));
    assert!(
        published.iter().all(|row| row["source"].as_str().is_some_and(|source| source.contains("section")))
    );
    let [table, chart] = ["coexec.md", "coexec.svg"].map(|name| std::fs::read_to_string(folder.join(name)));
    assert!(table.is_ok_and(
        |table| table.contains("](coexec.svg)") && table.contains("| geometric mean | irregular |")
    ));
    let chart = chart.expect("it was written");
    assert!(Workload::ALL.iter().all(|workload| chart.contains(&format!(">{workload}<"))), "{chart}");
    assert!(
        Workload::ALL.iter().all(|workload| !folder.join(format!("{workload}.png")).exists()),
        "no pictures"
    );
    let alone =
        ["reproduce", "coexec", "--size", "tiny", "--runs", "1", "--devices", "cpu", "--limit", "cpu=1"];
    let (printed, _) = ok(&folder, &[&alone[..], &["--markdown"]].concat());
    assert!(printed.starts_with("# ") && !printed.contains("!["), "no file, no picture: {printed}");
}

/// The file of suites in a folder's cache.
fn suites(folder: &Path) -> PathBuf {
    let files =
        std::fs::read_dir(folder.join("cache/dml")).expect("a cache").flatten().map(|file| file.path());
    let name =
        |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("suites-"));
    let found: Vec<_> = files.filter(name).collect();
    let [file] = &found[..] else { panic!("one file is kept: {found:?}") };
    file.clone()
}

#[test]
fn a_suite_is_compared_with_the_last_one_of_the_same_options() {
    let folder = folder("last");
    let suite = ["bench", "all", "--size", "tiny", "--runs", "1", "--devices", "cpu", "--limit", "cpu=1"];
    let run = |more: &[&str]| json(&folder, &[&suite[..], more].concat());
    assert_eq!(run(&["--no-last"])["last"], Value::Null);
    assert!(
        !folder.join("cache/dml").exists()
            || std::fs::read_dir(folder.join("cache/dml")).is_ok_and(|files| {
                files.flatten().all(|file| !file.file_name().to_string_lossy().starts_with("suites-"))
            }),
        "it was not kept"
    );
    let first = run(&[]);
    assert_eq!(first["last"], Value::Null, "there is none yet");
    let second = run(&[]);
    let seconds = |suite: &Value, workload: &str| {
        let row = list(suite, "workloads").iter().find(|row| row["workload"] == workload).expect(workload);
        number(row, "coexec_s")
    };
    for workload in Workload::ALL.map(Workload::name) {
        let (told, expected) = (
            number(&second["last"]["ratios"], workload),
            seconds(&second, workload) / seconds(&first, workload),
        );
        assert!((told / expected - 1.0).abs() < 1e-9, "{workload}: {told} is not {expected}");
    }
    assert!(second["last"]["measured_unix_s"].as_u64().is_some_and(|at| at > 1_700_000_000));
    assert_eq!(run(&["--policy", "static"])["last"], Value::Null, "other options have a suite of their own");
    let (text, _) = ok(&folder, &suite);
    assert!(text.contains("vs last") && text.contains("last: this suite of 20"), "{text}");

    std::fs::write(suites(&folder), "{ \"format\": 1, \"suites\": [ {").expect("it is the test's own");
    let (text, said) = ok(&folder, &suite);
    assert!(said.contains("the suites measured earlier are ignored") && said.contains("suites-"), "{said}");
    assert!(!text.contains("vs last"), "{text}");
    let (text, said) = ok(&folder, &suite);
    assert!(text.contains("vs last") && !said.contains("ignored"), "it was replaced: {said}");
}
