//! `dml bench slam` and `dml reproduce slam`, as people meet them.

#![cfg(not(dml_loom))]

mod program;

use dml::timeline::Trace;
use program::{dml, folder};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = dml(folder, &[arguments, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("--json prints one JSON value")
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is no number: {value}"))
}

/// The host alone finds the way, and writes all files; the frames that it writes can be read again.
#[test]
fn the_host_finds_the_way_and_writes_it() {
    let folder = folder("host");
    let bench = ["bench", "slam", "--devices", "cpu", "--size", "tiny", "--frames", "20", "--runs", "1"];
    let files = ["--frames-to", "f.raw", "--way-to", "w.txt", "--output", "p.png", "--trajectory", "t.svg"];
    let found = json(&folder, &[&bench[..], &files, &["--html", "h.html", "--trace", "t.json"]].concat());
    let sizes = ["width", "height", "edge", "frames", "runs"].map(|field| found[field].as_u64());
    assert_eq!(sizes, [160, 120, 64, 20, 1].map(Some));
    let [row] = &found["rows"].as_array().expect("a list")[..] else { panic!("one device: {found}") };
    assert_eq!((&row["preprocess"], &row["rest"], &row["lost"]), (&"cpu".into(), &"cpu".into(), &0.into()));
    assert!(number(row, "ate_mean_m") < 0.0075 && number(row, "surface_m") < 0.0375, "{row}");
    assert!((number(row, "frame_s") * number(row, "frames_per_s") - 1.0).abs() < 1e-9);
    assert_eq!(found["pipelined"], Value::Null);
    let length = |name: &str| fs::metadata(folder.join(name)).expect("was written").len();
    assert_eq!(length("f.raw"), 20 * (16 + 5 * 160 * 120));
    assert!(length("p.png") > 1000 && length("t.svg") > 1000 && length("h.html") > 1000);
    let way = fs::read_to_string(folder.join("w.txt")).expect("a text");
    assert_eq!((way.lines().count(), way.lines().last().map(|line| line.split(' ').count())), (20, Some(8)));
    let trace = fs::read_to_string(folder.join("t.json")).expect("a trace");
    let kernels = Trace::read(&trace).expect("its own trace").packages.len();
    // Twelve frames: 10 kernels each, integrations and raycasts, one that clears, and iterations.
    assert!(kernels > 12 * 10 + 8 + 9 + 1, "{kernels}");

    let again = ["bench", "slam", "--devices", "cpu", "--size", "tiny", "--input", "f.raw", "--runs", "1"];
    let again = json(&folder, &again);
    assert_eq!(again["rows"][0]["iterations"], row["iterations"]);
    assert_eq!(again["rows"][0]["ate_mean_m"], Value::Null, "a file has no way");
}

/// Calls by hand and on the layer stand beside the paper's, or the table is refused without a device.
#[test]
fn the_table_stands_beside_the_papers() {
    let folder = folder("table");
    let line = ["reproduce", "slam", "--size", "tiny", "--frames", "10", "--runs", "1"];
    if !has_opencl(&folder) {
        let output = dml(&folder, &line);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains("opencl:0"), "{told}");
        return;
    }
    let found = json(&folder, &line);
    let columns = found["columns"].as_array().expect("a list");
    let names: Vec<_> = columns.iter().map(|column| column["column"].as_str().expect("a name")).collect();
    assert_eq!(names, ["hand", "noopt", "opt", "noopt + cpu", "opt + cpu"]);
    let hand = &columns[0];
    assert_eq!(hand["operations"]["read"], found["iterations"]);
    assert_eq!((&hand["published"]["kernel"], &hand["over_hand"][0]), (&34_252.into(), &1.0.into()));
    for column in columns {
        let ratio = number(column, "seconds") / number(hand, "seconds");
        assert!((column["over_hand"][0].as_f64().expect("a number") / ratio - 1.0).abs() < 1e-9, "{column}");
    }
}

fn has_opencl(folder: &Path) -> bool {
    let devices = json(folder, &["devices"]);
    devices["devices"].as_array().expect("a list").iter().any(|device| device["name"] == "opencl:0")
}

#[test]
fn bad_usage_is_named_and_exits_with_2() {
    let folder = folder("slam-usage");
    fs::write(folder.join("short.raw"), [1, 2, 3]).expect("can be written");
    for (arguments, named) in [
        (&["bench", "slam", "--input", "missing.raw"][..], "missing.raw"),
        (&["bench", "slam", "--input", "short.raw"], "short.raw end within frame 0"),
        (&["bench", "slam", "--input", "short.raw", "--seed", "3"], "cannot be used with"),
        (&["bench", "slam", "--input", "short.raw", "--output", "short.raw"], "are one file"),
        (&["bench", "slam", "--input", "short.raw", "--way-to", "w"], "cannot be used with"),
        (&["bench", "slam", "--frames", "0"], "0 is not in 5..=10000"),
        (&["bench", "slam", "--devices", "tpu:3"], "tpu:3"),
        (&["reproduce", "slam", "--devices", "cpu"], "on one OpenCL or CUDA device, not cpu"),
        (&["reproduce", "slam", "--devices", "opencl:0,cpu"], "one OpenCL or CUDA device, not opencl:0, cpu"),
        (&["reproduce", "slam", "--limit", "cpu=1"], "--limit does not apply to slam"),
        (&["reproduce", "jacobi", "--frames", "30"], "--frames does not apply to jacobi"),
    ] {
        let output = dml(&folder, arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(named), "{arguments:?}: {told}");
    }
}

/// Frames without depths are lost, and too few frames are refused by name.
#[test]
fn frames_that_show_nothing_are_failed_work() {
    let folder = folder("slam-blind");
    let header = [8_u32.to_le_bytes(), 4_u32.to_le_bytes()].concat();
    let frame = [&header[..], &[0; 64], &header, &[0; 96]].concat();
    for (frames, code, named) in [(4, 2, "blind.raw has 4 frames"), (6, 1, "no frame was tracked")] {
        fs::write(folder.join("blind.raw"), frame.repeat(frames)).expect("can be written");
        let line =
            ["bench", "slam", "--devices", "cpu", "--size", "tiny", "--runs", "1", "--input", "blind.raw"];
        let output = dml(&folder, &line);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && told.contains(named), "{frames}: {told}");
    }
}
