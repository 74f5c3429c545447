//! `dml run` and `dml profile`: applications that a file describes, on one and two OpenCL devices.
//!
//! They pass without OpenCL, unless `DML_EXPECT` names it.

#![cfg(all(feature = "command", feature = "opencl", target_os = "linux", not(dml_loom)))]

mod program;

use program::{command, folder};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A folder of its own, with two OpenCL devices on one processor.
struct Scene {
    folder: PathBuf,
}

impl Scene {
    fn new(test: &str) -> Option<Self> {
        let scene = Self { folder: folder(test) };
        let found = scene.dml(&["run", &example("matmul"), "--check", "--json"]);
        let told = String::from_utf8_lossy(&found.stderr).into_owned();
        let is_there = serde_json::from_slice::<Value>(&found.stdout)
            .is_ok_and(|found| found["devices"].as_array().is_some_and(|devices| devices.len() == 2));
        let expected = std::env::var("DML_EXPECT").is_ok_and(|all| all.split(',').any(|one| one == "opencl"));
        assert!(is_there || !expected, "DML_EXPECT says that OpenCL is there: {told}");
        is_there.then_some(scene)
    }

    fn dml(&self, arguments: &[&str]) -> Output {
        let mut command = command(&self.folder, arguments);
        // PoCL lists its processor twice.
        command.env("POCL_DEVICES", "pthread pthread").output().expect("the command was built")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.dml(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON value")
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.dml(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.folder.join(name);
        fs::write(&path, contents).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = fs::read(self.folder.join(name)).expect("it was written");
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect()
    }

    /// Runs an application on one device and on two, and returns the last contents of an array, which are the
    /// same.
    fn floats_of(&self, application: &str, array: &str, arguments: &[&str]) -> Vec<f32> {
        let results = ["opencl:0", "opencl:0,opencl:1"].map(|devices| {
            let output = format!("{array}=out.raw");
            let line =
                ["run", application, "--output", &output, "--devices", devices, "--shares", "opencl:0=0.6"];
            let found = self.json(&[&line[..], arguments].concat());
            assert_eq!(found["devices"].as_array().map(Vec::len), Some(devices.split(',').count()));
            self.floats("out.raw")
        });
        let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&results[0]), bits(&results[1]), "{application}");
        results.into_iter().next().expect("two results")
    }
}

fn example(name: &str) -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/apps").join(name).join(format!("{name}.toml"));
    path.to_str().expect("UTF-8").to_owned()
}

/// Position-dependent numbers between 0 and 1.
fn drawn(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * i * 7919 + i) % 1013) as f32 / 1013.0).collect()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() <= tolerance, "element {i} is {found}, not {expected}");
    }
}

#[test]
fn a_stencil_equals_its_steps_in_plain_rust() {
    let Some(scene) = Scene::new("app-stencil") else { return };
    let n = 67;
    let first = drawn(n * n);
    let input = format!("from={}", scene.write("first.raw", raw(&first)));
    let mut grid: Vec<f64> = first.iter().map(|value| f64::from(*value)).collect();
    for _ in 0..7 {
        let from = grid.clone();
        for (y, x) in (1..n - 1).flat_map(|y| (1..n - 1).map(move |x| (y, x))) {
            let i = y * n + x;
            grid[i] = 0.5 * from[i] + 0.125 * (from[i - n] + from[i - 1] + from[i + 1] + from[i + n]);
        }
    }
    let found = scene.floats_of(
        &example("stencil2d"),
        "from",
        &["--set", "n=67", "--set", "steps=7", "--input", &input],
    );
    assert_near(&found, &grid, 1e-5);
}

#[test]
fn a_product_equals_its_sums_in_plain_rust() {
    let Some(scene) = Scene::new("app-matmul") else { return };
    let n = 83;
    let [a, b] = [drawn(n * n), drawn(n * n + 5)[5..].to_vec()];
    let inputs = [("a", &a), ("b", &b)]
        .map(|(name, values)| format!("{name}={}", scene.write(&format!("{name}.raw"), raw(values))));
    let sum = |i: usize| (0..n).map(|k| f64::from(a[i / n * n + k]) * f64::from(b[k * n + i % n])).sum();
    let expected: Vec<f64> = (0..n * n).map(sum).collect();
    let found = scene.floats_of(
        &example("matmul"),
        "c",
        &["--set", "n=83", "--input", &inputs[0], "--input", &inputs[1]],
    );
    assert_near(&found, &expected, 1e-3);
}

#[test]
fn bodies_attract_each_other_as_in_plain_rust() {
    let Some(scene) = Scene::new("app-nbody") else { return };
    let bodies = 101;
    let [positions, velocities] = [drawn(4 * bodies), drawn(4 * bodies + 9)[9..].to_vec()];
    let inputs = [("positions", &positions), ("velocities", &velocities)]
        .map(|(name, values)| format!("{name}={}", scene.write(&format!("{name}.raw"), raw(values))));
    let real = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
    let (mut at, mut moving) = (real(&positions), real(&velocities));
    let dt = 0.001;
    for _ in 0..3 {
        let from = at.clone();
        for body in 0..bodies {
            let mut pull = [0.0; 3];
            for other in 0..bodies {
                let away: Vec<f64> =
                    (0..3).map(|axis| from[4 * other + axis] - from[4 * body + axis]).collect();
                let square: f64 = away.iter().map(|away| away * away).sum::<f64>() + 0.01;
                (0..3).for_each(|axis| pull[axis] += from[4 * other + 3] * away[axis] / square.powf(1.5));
            }
            for axis in 0..3 {
                at[4 * body + axis] += moving[4 * body + axis] * dt + pull[axis] * dt * dt / 2.0;
                moving[4 * body + axis] += pull[axis] * dt;
            }
        }
    }
    let sizes = ["--set", "bodies=101", "--set", "steps=3", "--input", &inputs[0], "--input", &inputs[1]];
    assert_near(&scene.floats_of(&example("nbody"), "positions", &sizes), &at, 1e-5);
}

#[test]
fn heat_spreads_until_a_step_changes_little() {
    let Some(scene) = Scene::new("app-heat") else { return };
    let (rows, columns) = (31, 23);
    let first = drawn(rows * columns);
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(format!("{header:<117}\n").bytes());
    file.extend(raw(&first));
    let input = format!("plate={}", scene.write("plate.npy", file));
    let mut plate = first.clone();
    let mut steps = 0;
    loop {
        let from = plate.clone();
        for (y, x) in (1..rows - 1).flat_map(|y| (1..columns - 1).map(move |x| (y, x))) {
            let i = y * columns + x;
            let around = from[i - columns] + from[i - 1] + from[i + 1] + from[i + columns];
            plate[i] += 0.2 * (around - 4.0 * from[i]);
        }
        steps += 1;
        let change = plate.iter().zip(&from).map(|(new, old)| (new - old).abs()).fold(0.0, f32::max);
        if steps % 50 == 0 && change < 1e-3 {
            break;
        }
    }
    let line = ["--input", &input, "--set", "limit=1e-3"];
    let found = scene.floats_of(&example("heat"), "plate", &line);
    assert_near(&found, &plate.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), 1e-4);
    let told = scene.json(&[&["run", &example("heat"), "--output", "plate=heat.png"], &line[..]].concat());
    assert_eq!((&told["repeats"][0]["count"], &told["repeats"][0]["stopped"]), (&steps.into(), &true.into()));
    assert_eq!(told["parameters"]["rows"], 31.0, "it is the picture's");
    assert!(fs::read(scene.folder.join("heat.png")).expect("it was written").starts_with(b"\x89PNG"));
}

#[test]
fn points_get_the_nearest_of_the_last_centres() {
    let Some(scene) = Scene::new("app-kmeans") else { return };
    let points = scene_array("kmeans/points.npy");
    let mut results = Vec::new();
    for devices in ["opencl:0", "opencl:0,opencl:1"] {
        let line = ["--output", "centres=centres.raw", "--output", "labels=labels.raw", "--devices", devices];
        let told = scene.json(&[&["run", &example("kmeans")], &line[..]].concat());
        assert_eq!(told["repeats"][0]["stopped"], true);
        let centres = scene.floats("centres.raw");
        let labels: Vec<u32> = scene.floats("labels.raw").iter().map(|value| value.to_bits()).collect();
        assert_eq!(centres.len(), 10);
        for (label, point) in labels.iter().zip(points.chunks(2)) {
            let square = |centre: &[f32]| (centre[0] - point[0]).powi(2) + (centre[1] - point[1]).powi(2);
            let own = square(&centres[2 * *label as usize..][..2]);
            assert!(centres.chunks(2).all(|centre| own <= square(centre) + 1e-3), "{point:?} has {label}");
        }
        results.push(labels);
    }
    assert_eq!(results[0], results[1]);
}

/// Returns the floats of a `.npy` file of the examples.
fn scene_array(name: &str) -> Vec<f32> {
    let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/apps").join(name))
        .expect("it is there");
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]])) + 10;
    bytes[header..]
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes")))
        .collect()
}

const PARTS: &str = r#"
[parameters]
rows = 40
columns = 30
[arrays]
picture = { type = "float", shape = ["2 * rows + 2", "columns"], from = { random = 7 } }
small = { type = "float", shape = ["rows + 1", "columns"], to = "small.raw" }
turned = { type = "float", shape = ["columns", "rows"], to = "turned.raw" }
most = { type = "float", shape = [1], to = "most.raw" }
first = { type = "float", shape = [1], to = "first.raw" }
[kernels.shrink]
opencl = "parts.cl"
items = { x = "columns", y = "rows" }
define = { WEIGHT = 0.25 }
arguments = [
  { array = "picture", reads = "2 rows(0, 2)" },
  { array = "small", updates = "rows + 1" },
  { uint = "rows" },
  { uint = "columns" },
]
[kernels.turn]
opencl = "parts.cl"
items = { x = "columns", y = "rows" }
split = "x"
arguments = [
  { array = "small", reads = "columns" },
  { array = "turned", writes = "rows" },
  { uint = "rows" },
  { uint = "columns" },
]
[kernels.greatest]
opencl = "parts.cl"
items = { x = "rows * columns" }
group = { x = 32 }
arguments = [
  { array = "turned", reads = "whole" },
  { array = "most", reduces = "max" },
  { local = "32 * 4" },
  { uint = "rows * columns" },
]
[kernels.copy]
opencl = "parts.cl"
items = { x = 1 }
undivided = true
arguments = [{ array = "turned", reads = "whole" }, { array = "first", writes = "whole" }]
[[run]]
kernel = "shrink"
[[run]]
repeat = 2
run = [{ repeat = 3, run = [{ kernel = "turn" }] }, { kernel = "greatest", every = 2 }]
[[run]]
kernel = "copy"
"#;

const KERNELS: &str = r"
#ifndef WEIGHT
#define WEIGHT 0
#endif
kernel void shrink(global const float *picture, global float *small, uint rows, uint columns) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (x >= columns || y >= rows) return;
    float sum = 0;
    for (uint row = 2 * y; row < 2 * y + 4; ++row) sum += picture[row * columns + x];
    small[(y + 1) * columns + x] = WEIGHT * sum;
}
kernel void turn(global const float *small, global float *turned, uint rows, uint columns) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (x < columns && y < rows) turned[x * rows + y] = small[(y + 1) * columns + x];
}
kernel void greatest(global const float *turned, volatile global int *most, local float *values, uint count) {
    uint i = get_global_id(0), place = get_local_id(0);
    values[place] = i < count ? turned[i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (place > 0) return;
    for (uint other = 1; other < 32; ++other) values[0] = fmax(values[0], values[other]);
    atomic_max(most, as_int(values[0]));
}
kernel void copy(global const float *turned, global float *first) {
    if (get_global_id(0) == 0) first[0] = turned[0];
}
";

/// Parts with offsets, several rows per item and columns; a reduction with local memory; nested repetitions;
/// an undivided kernel.
#[test]
fn parts_of_every_form_give_what_one_device_gives() {
    let Some(scene) = Scene::new("app-parts") else { return };
    scene.write("parts.cl", KERNELS);
    let path = scene.write("parts.toml", PARTS);
    let picture = format!("picture={}", scene.write("picture.raw", raw(&drawn(82 * 30))));
    let given = ["--input", &*picture];
    let turned = scene.floats_of(&path, "turned", &given);
    let picture = drawn(82 * 30);
    let shrunk = |x: usize, y: usize| {
        (2 * y..2 * y + 4).map(|row| f64::from(picture[row * 30 + x])).sum::<f64>() / 4.0
    };
    let expected: Vec<f64> = (0..30 * 40).map(|i| shrunk(i / 40, i % 40)).collect();
    assert_near(&turned, &expected, 1e-6);
    let greatest = turned.iter().copied().fold(0.0, f32::max);
    assert_eq!((scene.floats("most.raw"), scene.floats("first.raw")), (vec![greatest], vec![turned[0]]));
    let told = scene.json(&[&["run", &*path], &given[..]].concat());
    let runs = |kernel: &str| {
        let kernels = told["kernels"].as_array().expect("a list");
        kernels.iter().find(|of| of["kernel"] == kernel).expect("it ran")["runs"].as_u64()
    };
    assert_eq!(["shrink", "turn", "greatest", "copy"].map(runs), [1, 6, 1, 1].map(Some));
    // A part that is too small is found.
    assert!(scene.dml(&["run", &path, "--check", "--parts"]).status.success());
    let small = scene.write("small.toml", PARTS.replace("2 rows(0, 2)", "2 rows(0, 1)"));
    let told = scene.refused(&["run", &small, "--check", "--parts"]);
    assert!(told.contains("small.toml:16:3: kernel shrink on opencl:0, items "), "{told}");
    assert!(told.contains("of array picture is read, and is not in its part"), "{told}");
    // A kernel that leaves its arrays ends the process that checks.
    scene.write("wild.cl", KERNELS.replace("if (x >= columns || y >= rows) return;", "y += 1 << 24;"));
    let wild = scene.write("wild.toml", PARTS.replace("parts.cl", "wild.cl"));
    let told = scene.refused(&["run", &wild, "--check", "--parts"]);
    assert!(told.contains("a kernel probably accesses elements outside of an array"), "{told}");
}

/// What is wrong with a source or its arguments is told with the place in the application file.
/// `dml analyse` prints what it knows, and fails only if that is nothing.
#[test]
fn accesses_of_a_source_are_printed() {
    let folder = folder("app-analyse");
    let analysed = |source: &str, arguments: &[&str]| {
        let path = folder.join("f.cl");
        fs::write(&path, source).expect("it can be written");
        let all = [&["analyse", path.to_str().expect("UTF-8")], arguments].concat();
        let output = command(&folder, &all).output().expect("the command was built");
        let [told, noted] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
        (output.status.code(), told, noted)
    };
    let good = "kernel void f(global float *a, global int *k, uint n) {
        uint i = get_global_id(0);
        a[2 * i + n] = k[i];
        a[k[i]] += 1;
    }\n";
    let bad = "kernel void g(global float *a) { goto end; end: a[0] = 1; }\n";
    let expected = "f\n  line 3: reads 4 bytes of k from 4 * item.x\n  \
                    line 3: writes 4 bytes of a from 4 * n + 8 * item.x\n  \
                    line 4: reads 4 bytes of k from 4 * item.x\n  \
                    a refused: 4:10: an index that is not known before the kernel runs: a value from a buffer at 4:12\n";
    assert_eq!(analysed(good, &[]), (Some(0), expected.to_owned(), String::new()));
    let (status, told, noted) = analysed(&format!("#include \"g.h\"\n{good}{bad}"), &[]);
    assert_eq!((status, told.contains("g\n  refused: 7:34: `goto`, which is not followed")), (Some(0), true));
    assert!(noted.contains("f.cl: included files are not read"), "{noted}");
    assert_eq!(analysed(&(good.to_owned() + bad), &["--kernel", "g"]).0, Some(2));
    let (status, _, noted) = analysed(bad, &[]);
    assert_eq!((status, noted.contains("kernel g is not analysed: ")), (Some(2), true), "{noted}");
}

const GATHER: &str = r#"
name = "gather"

[parameters]
count = 4096

[arrays]
at = { type = "uint", shape = ["count"], from = { random = 1 } }
table = { type = "float", shape = ["count"], from = { random = 2 } }
out = { type = "float", shape = ["count"] }

[kernels.look]
opencl = "look.cl"
items = { x = "count" }
arguments = [{ array = "at" }, { array = "table" }, { array = "out" }, { uint = "count" }]

[[run]]
kernel = "look"
"#;

#[test]
fn declared_parts_that_no_source_proves_are_checked_once() {
    let Some(scene) = Scene::new("app-gather") else { return };
    let source =
        "kernel void look(global const uint *at, global const float *table, global float *out, uint n) {
        uint i = get_global_id(0);
        if (i < n) out[i] = table[INDEX];
    }";
    let declared = |index: &str, part: &str| {
        scene.write("look.cl", source.replace("INDEX", index));
        let table = format!("{{ array = \"table\", reads = \"{part}\" }}");
        scene.write("gather.toml", GATHER.replace("{ array = \"table\" }", &table))
    };
    let notes = |path: &str| {
        let output = scene.dml(&["run", path]);
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{said}");
        said
    };
    let wrong = declared("at[i] % n", "elements");
    let told = scene.refused(&["run", &wrong]);
    assert!(told.contains("gather.toml:15:32: kernel look on "), "{told}");
    assert!(told.contains(" of array table is read, and is not in its part"), "{told}");
    assert!(scene.dml(&["run", &wrong, "--unchecked"]).status.success());
    // What may be anywhere is within all.
    assert_eq!(notes(&declared("at[i] % n", "whole")), "");
    let path = declared("i / 32 * 32 + at[i] % 32", "elements");
    assert!(notes(&path).contains("first checking declared parts of look, which the source does not prove"));
    assert_eq!(notes(&path), "");
    // Another source is checked again.
    let path = declared("i / 32 * 32 + at[i] % 16", "elements");
    assert!(notes(&path).contains("first checking"));
}

#[test]
fn what_does_not_fit_a_function_is_told_with_its_place() {
    let Some(scene) = Scene::new("app-misfit") else { return };
    scene.write("parts.cl", KERNELS);
    scene.write("broken.cl", KERNELS.replace("float sum", "flaot sum"));
    for (from, to, expected) in [
        (
            "  { uint = \"rows * columns\" },\n",
            "",
            "misfit.toml:31:10: kernel greatest on opencl:0 takes 4 arguments, not 3",
        ),
        (
            "{ local = \"32 * 4\" }",
            "{ float = 1 }",
            "misfit.toml:38:3: argument 2 of kernel greatest on opencl:0 is a pointer to local memory",
        ),
        ("split = \"x\"\n", "split = \"x\"\nfunction = \"twist\"\n", "twist"),
        ("opencl = \"parts.cl\"", "opencl = \"broken.cl\"", "misfit.toml:12:10: "),
    ] {
        assert!(PARTS.contains(from), "{from}");
        let path = scene.write("misfit.toml", PARTS.replacen(from, to, 1));
        let told = scene.refused(&["run", &path, "--check"]);
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let path = scene.write("parts.toml", PARTS);
    let told = scene.refused(&["run", &path, "--devices", "cpu"]);
    assert!(
        told.contains("device cpu cannot run kernel shrink: only devices of OpenCL and CUDA compile"),
        "{told}"
    );
    let told = scene.refused(&["run", &path, "--output", "small=parts.toml"]);
    assert!(told.contains("are one file"), "{told}");
    let told = scene.refused(&["run", &path, "--output", "small=parts.cl"]);
    assert!(told.contains("are one file"), "{told}");
    let told = scene.refused(&["run", &path, "--output", "small=nowhere/small.npy"]);
    assert!(told.contains("its folder does not exist"), "{told}");
    let told = scene.refused(&["run", &path, "--shares", "opencl:0=-1"]);
    assert!(told.contains("--shares needs numbers of at least 0"), "{told}");
    let told = scene.json(&["run", &path, "--check"]);
    assert_eq!(told["devices"].as_array().map(Vec::len), Some(2));
    let told = scene.refused(&["run", &path, "--set", "colums=3"]);
    assert!(told.contains("application parts has no parameter colums: there are rows, columns"), "{told}");
}

/// A profile begins with bad ratios, keeps better ones, and draws them. Later runs have the kept ones.
#[test]
fn a_profile_is_kept_for_later_runs() {
    let Some(scene) = Scene::new("app-profile") else { return };
    let path = example("stencil2d");
    let set = ["--set", "n=2000", "--devices", "opencl:0,opencl:1"];
    let line = ["profile", &path, "--shares", "opencl:0=99", "--output", "profile.svg"];
    let told = scene.json(&[&line[..], &set].concat());
    let kernel = &told["kernels"][0];
    assert_eq!((&kernel["kernel"], &kernel["items"]), (&"stencil".into(), &2000.into()));
    let rounds = kernel["rounds"].as_array().expect("a list");
    assert!((rounds[0]["ratios"][0].as_f64().expect("a number") - 0.99).abs() < 1e-9, "{kernel}");
    let picture = fs::read_to_string(scene.folder.join("profile.svg")).expect("it was written");
    assert!(picture.starts_with("<svg") && picture.contains("opencl:1"), "{picture}");
    let kept = kernel["ratios"][0].as_f64().expect("a number");
    let told = scene.json(&[&["run", &path, "--output", "from=out.raw"], &set[..]].concat());
    let items = &told["kernels"][0]["items"];
    let [one, other] = ["opencl:0", "opencl:1"].map(|device| items[device].as_f64().expect("a number"));
    assert!((one / (one + other) - kept).abs() < 0.01, "{told} has not {kept}");
    let told = scene.refused(&["profile", &path, "--devices", "opencl:0"]);
    assert!(told.contains("there is nothing to divide with one device"), "{told}");
}

#[test]
fn the_papers_table_has_lines_speeds_and_shares() {
    let Some(scene) = Scene::new("app-stepocl") else { return };
    let told = scene.json(&["reproduce", "stepocl", "--size", "tiny", "--runs", "1"]);
    let rows = told["rows"].as_array().expect("a list");
    let names: Vec<_> = rows.iter().map(|row| row["application"].as_str().expect("a name")).collect();
    assert_eq!(names, ["stencil2d", "matmul", "nbody"]);
    for row in rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        assert!(number("description_lines") < number("by_hand_lines"));
        let alone: Vec<f64> =
            row["alone_s"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
        let near =
            |field: &str, expected: f64| assert!((number(field) / expected - 1.0).abs() < 1e-9, "{row}");
        near("single", number("native_s") / alone[0]);
        near("share_of_sum", 1.0 / number("together_s") / (1.0 / alone[0] + 1.0 / alone[1]));
    }
}

/// A run that is recorded has the packages of all kernels.
#[test]
fn a_timeline_has_all_kernels() {
    let Some(scene) = Scene::new("app-timeline") else { return };
    scene.write("parts.cl", KERNELS);
    let path = scene.write("parts.toml", PARTS);
    let told = scene.json(&["run", &path, "--trace", "trace.json", "--html", "page.html", "--runs", "2"]);
    assert_eq!((&told["trace"], &told["runs"]), (&"trace.json".into(), &2.into()));
    let text = fs::read_to_string(scene.folder.join("trace.json")).expect("it was written");
    let trace = dml::timeline::Trace::read(&text).expect("it is a trace");
    let items: u64 = trace.packages.iter().map(|package| package.items).sum();
    assert_eq!(items, 40 + 6 * 30 + 1200 + 1);
    assert!(fs::read_to_string(scene.folder.join("page.html")).expect("it was written").contains("parts"));
}

/// What is no number stays none in a reduction, and ends no repetitions.
#[test]
fn a_run_that_diverges_has_not_converged() {
    let Some(scene) = Scene::new("app-nan") else { return };
    scene.write(
        "nan.cl",
        "kernel void k(global const float *from, volatile global int *most) {
        if (get_global_id(0) < 100) atomic_max(most, as_int(fabs(from[get_global_id(0)])));
    }
    kernel void copy(global const float *from, global float *to) {
        if (get_global_id(0) < 100) to[get_global_id(0)] = from[get_global_id(0)] * INFINITY * 0;
    }",
    );
    let path = scene.write(
        "nan.toml",
        r#"
[arrays]
from = { type = "float", shape = [100], from = { random = 1 } }
to = { type = "float", shape = [100] }
most = { type = "float", shape = [1], to = "most.raw" }
[kernels.copy]
opencl = "nan.cl"
items = { x = 100 }
arguments = [{ array = "from", reads = "elements" }, { array = "to", writes = "elements" }]
[kernels.k]
opencl = "nan.cl"
items = { x = 100 }
arguments = [{ array = "from", reads = "elements" }, { array = "most", reduces = "max" }]
[[run]]
repeat = 20
until = "most < 1e-3"
run = [{ kernel = "copy" }, { swap = ["from", "to"] }, { kernel = "k", every = 5 }]
"#,
    );
    for devices in ["opencl:0", "opencl:0,opencl:1"] {
        let told = scene.json(&["run", &path, "--devices", devices]);
        assert_eq!(
            (&told["repeats"][0]["count"], &told["repeats"][0]["stopped"]),
            (&20.into(), &false.into())
        );
        assert!(scene.floats("most.raw")[0].is_nan());
    }
}
