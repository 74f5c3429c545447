//! `dml bench jacobi`, the other programs of steps, and `dml reproduce jacobi`, on the processor and a
//! worker.

#![cfg(all(feature = "command", feature = "offload", target_os = "linux", not(dml_loom)))]

mod program;

use dml_workloads::steps::Steps;
use program::{dml, folder};
use serde_json::Value;

const DEVICES: [&str; 2] = ["--devices", "cpu,offload:0"];

fn json(test: &str, arguments: &[&str]) -> Value {
    let output = dml(&folder(test), &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn refused(test: &str, arguments: &[&str]) -> String {
    let output = dml(&folder(test), arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_program_stands_beside_each_device_alone() {
    for steps in Steps::ALL {
        let line = ["bench", steps.name(), "--size", "tiny", "--runs", "1", "--by-hand"];
        let found = json("programs", &[&line[..], &DEVICES].concat());
        assert_eq!(found["program"], steps.name());
        let size = steps.tiny();
        assert_eq!((&found["columns"], &found["steps"]), (&size.columns.into(), &size.steps.into()));
        let alone = found["alone"].as_array().expect("a list");
        let names: Vec<_> = alone.iter().map(|alone| alone["device"].as_str().expect("a name")).collect();
        assert_eq!(names, ["cpu", "offload:0"]);
        let step = |row: &Value| row["step_s"].as_f64().expect("a number");
        let (best, together) = (step(&alone[0]).min(step(&alone[1])), &found["together"]);
        let near = |field: &str, expected: f64| {
            let found = together[field].as_f64().expect("a number");
            assert!((found / expected - 1.0).abs() < 1e-9, "{field}: {together}");
        };
        near("speedup", best / step(together));
        near("ideal", best / step(&alone[0]) + best / step(&alone[1]));
        let has_hand = matches!(steps, Steps::Jacobi | Steps::Stencil2d);
        for row in [&alone[0], &alone[1], together] {
            assert_eq!(row["by_hand_s"].is_number(), has_hand, "{steps}: {row}");
        }
        let strips = together["strips"].as_array().expect("a list");
        let kernels = if steps == Steps::Prk { 2 } else { 1 };
        assert_eq!(strips.len(), 2 * kernels);
        let items: u64 = strips.iter().map(|strip| strip["items"].as_u64().expect("an integer")).sum();
        let per_kernel = if steps == Steps::Nbody { size.columns } else { size.rows.max(size.planes) };
        let per_kernel = if steps == Steps::Stencil3d { size.planes } else { per_kernel };
        assert_eq!(items, per_kernel * kernels as u64, "{steps}");
    }
}

/// A page shows the parts of some steps, and what was copied between them.
#[test]
fn a_timeline_shows_borders_beside_interiors() {
    let folder = folder("timeline");
    let [page, trace] = ["steps.html", "steps.json"].map(|name| folder.join(name));
    let [html, file] = [&page, &trace].map(|path| path.to_str().expect("UTF-8"));
    let line = ["bench", "jacobi", "--size", "60", "--runs", "1", "--memory", "copy", "--shares", "cpu=1"];
    let found = json("timeline", &[&line[..], &DEVICES, &["--html", html, "--trace", file]].concat());
    assert_eq!((&found["html"], &found["trace"]), (&html.into(), &file.into()));
    assert!(std::fs::read_to_string(&page).unwrap().contains("jacobi, 8 steps"));
    let text = std::fs::read_to_string(&trace).unwrap();
    let trace = dml::timeline::Trace::read(&text).unwrap();
    // A border and an interior per device and step.
    assert_eq!((trace.packages.len(), trace.items), (8 * 4, 8 * 60));
    let copied: u64 = trace.transfers.iter().map(|transfer| transfer.bytes).sum();
    // A row each way; the check of the result had brought the worker's first one already.
    assert_eq!(copied, (8 * 2 - 1) * 60 * 8);
    assert!(trace.packages.iter().all(|package| package.end_ns <= trace.total_ns));
}

/// Ratios that are given stay, and where memories copy, one row goes each way.
#[test]
fn strips_that_are_given_exchange_their_borders() {
    let line = ["bench", "jacobi", "--size", "60", "--steps", "20", "--runs", "1", "--memory", "copy"];
    let found = json("shares", &[&line[..], &DEVICES, &["--shares", "cpu=4"]].concat());
    let together = &found["together"];
    assert_eq!((&together["corrections"], &together["strips"][0]["items"]), (&0.into(), &48.into()));
    assert_eq!(together["bytes_per_step"], Value::from(2.0 * 60.0 * 8.0));
    let corrected = json("shares", &[&line[..], &DEVICES, &["--shares", "cpu=59", "--correct"]].concat());
    let strips = corrected["together"]["strips"].as_array().expect("a list");
    let items: u64 = strips.iter().map(|strip| strip["items"].as_u64().expect("an integer")).sum();
    assert_eq!(items, 60);
    let told = refused("shares", &["bench", "jacobi", "--devices", "cpu", "--shares", "gpu=1"]);
    assert!(told.contains("device gpu is not used"), "{told}");
}

#[test]
fn a_gray_scott_system_is_drawn() {
    let folder = folder("gray");
    let path = folder.join("spots.png");
    let file = path.to_str().expect("UTF-8");
    let line = ["bench", "gray-scott", "--size", "tiny", "--runs", "1", "--devices", "cpu", "--output", file];
    let output = dml(&folder, &line);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains(file), "{told}");
    let picture = dml_workloads::picture::Picture::read(&path).unwrap();
    assert_eq!((picture.width(), picture.height()), (45, 67));
    assert!(picture.pixels().windows(2).any(|pair| pair[0] != pair[1]), "it is not of one colour");
    let told = refused("gray", &["bench", "jacobi", "--output", file]);
    assert!(told.contains("jacobi does not make a picture"), "{told}");
    let told = refused("gray", &["bench", "jacobi", "--size", "4", "--devices", "cpu"]);
    assert!(told.contains("impossible size 4 for jacobi: at least 5"), "{told}");
}

#[test]
fn the_papers_table_has_cells_around_the_lines() {
    let line = ["reproduce", "jacobi", "--size", "tiny", "--runs", "1"];
    let found = json("table", &[&line[..], &DEVICES].concat());
    let cells = found["around"].as_array().expect("a list");
    let speed = |row: &Value| row["points_per_s"].as_f64().expect("a number");
    let lines: Vec<_> = cells.iter().map(|cell| cell["lines"][0].as_u64().expect("a row")).collect();
    assert_eq!((lines.len(), lines[1] - lines[0], lines[2] - lines[1]), (3, 1, 1));
    let best = cells.iter().map(speed).fold(0.0, f64::max);
    let total: f64 = found["alone"].as_array().expect("a list").iter().map(speed).sum();
    let share = found["share_of_ideal"].as_f64().expect("a number");
    assert!((share / (best / total) - 1.0).abs() < 1e-9, "{found}");
    let text = dml(&folder("table"), &[&line[..], &DEVICES].concat()).stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("Loria machine") && text.contains("1.06e10 (1.34)"), "{text}");
    let told = refused("table", &["reproduce", "jacobi", "--devices", "cpu"]);
    assert!(told.contains("two or three devices"), "{told}");
}
