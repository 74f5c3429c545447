//! The `dml` command as people meet it: exit codes, messages, JSON, pictures.

#![cfg(not(dml_loom))]

mod program;

use dml_workloads::prepare::Workload;
use program::{command, dml, folder};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn ok(folder: &Path, arguments: &[&str]) -> Value {
    let output = dml(folder, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("--json prints one JSON value")
}

/// The files in a folder's cache whose names begin so.
fn kept(folder: &Path, name: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.join("cache/dml")).into_iter().flatten().flatten();
    let named = files.filter(|file| file.file_name().to_string_lossy().starts_with(name));
    named.map(|file| file.path()).collect()
}

/// What a failing command says, having checked its exit code.
fn fails(code: i32, arguments: &[&str]) -> String {
    let output = dml(Path::new(env!("CARGO_TARGET_TMPDIR")), arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result as well");
    errors
}

/// Returns whether OpenCL is there. Fails if it is missing although `DML_EXPECT` names it.
fn has_opencl(test: &str) -> bool {
    let found = ok(&folder(&format!("{test}_devices")), &["devices", "--json"]);
    let there =
        found["devices"].as_array().expect("a list").iter().any(|device| device["name"] == "opencl:0");
    let expected = std::env::var("DML_EXPECT").is_ok_and(|all| all.split(',').any(|one| one == "opencl"));
    assert!(there || !expected, "DML_EXPECT says that OpenCL is there: {}", found["unavailable"]);
    if !there {
        println!("skipped: no OpenCL device: {}", found["unavailable"]);
    }
    there
}

#[test]
fn bad_usage_is_named_and_exits_with_2() {
    for (arguments, named) in [
        (&["bench", "mandelbrot", "--devices", "cpu,tpu:3"][..], "tpu:3"),
        (&["bench", "mandelbrot", "--policy", "guided"], "guided"),
        (&["bench", "mandelbrot", "--policy", "dynamic:0", "--size", "tiny"], "package"),
        (&["bench", "mandelbrot", "--size", "-4"], "-4"),
        (&["bench", "mandelbrot", "--size", "huge"], "huge"),
        (&["bench", "mandelbrot", "--size", "18446744073709551615"], "18446744073709551615"),
        (&["bench", "saxpy", "--size", "99999999999999"], "99999999999999"),
        (&["bench", "gaussian", "--size", "4000000000"], "4000000000"),
        (&["bench", "matmul", "--size", "32769"], "32769"),
        (&["bench", "vecadd", "--size", "99999999999999"], "99999999999999"),
        (&["bench", "gaussian", "--input", "no/such/picture.png"], "no/such/picture.png"),
        (&["bench", "gaussian", "--input", env!("CARGO_MANIFEST_PATH")], "not a PNG"),
        (&["bench", "saxpy", "--input", "x.png"], "saxpy does not take a picture"),
        (&["bench", "saxpy", "--output", "x.png"], "saxpy does not make a picture"),
        (&["bench", "all", "--output", "x.png"], "unexpected argument '--output'"),
        (&["bench", "raytracer"], "raytracer"),
        (&["bench", "saxpy", "--limit", "cpu=0"], "cpu"),
        (&["bench", "saxpy", "--limit", "cpu=1000000"], "1000000"),
        (&["bench", "saxpy", "--limit", "cpu"], "DEVICE=VALUE"),
        (&["bench", "saxpy", "--powers", "cpu=-1"], "-1"),
        (&["bench", "saxpy", "--powers", "cpu=0"], "power 0 of cpu is not a positive number"),
        (&["bench", "saxpy", "--powers", "opencl:9=1"], "opencl:9"),
        (&["bench", "saxpy", "--devices", "cpu,cpu"], "twice"),
        (&["bench", "saxpy", "--runs", "0"], "0"),
        (&["bench", "offload", "saxpy"], "unexpected argument 'saxpy'"),
        (&["bench", "saxpy", "--memory", "unified"], "unified"),
        (&["bench", "offload", "--memory", "bound"], "--memory"),
        (&["bench", "offload", "--devices", "cpu"], "unexpected argument '--devices'"),
        (&["devices", "--offload", "1000"], "1000"),
        (&["devices", "--limit", "tpu:3=1"], "tpu:3"),
        (&["devices", "--measure=no"], "--measure"),
        (&["devices", "--plan", "cpu", "tpu:3", "--bytes", "1"], "tpu:3"),
        (&["devices", "--plan", "cpu", "main_mem", "--bytes", "1"], "both are one memory"),
        (&["devices", "--plan", "cpu", "main_mem"], "--bytes"),
        (&["devices", "--bytes", "1"], "--plan"),
        (&["bench", "saxpy", "--pin", "cpu"], "DEVICE=VALUE"),
        (&["reproduce"], "TABLE"),
        (&["reproduce", "table7"], "table7"),
        (&["reproduce", "table1", "--size", "7"], "7"),
        (&["reproduce", "table1", "--runs", "0"], "0"),
        (&["reproduce", "table1", "--json", "--markdown"], "--markdown"),
        (&["bench"], "WORKLOAD"),
        (&["benchmark"], "benchmark"),
    ] {
        let said = fails(2, arguments);
        assert!(said.contains(named), "{arguments:?} does not name {named:?}: {said}");
    }
}

#[test]
fn any_size_works_on_the_host() {
    let folder = folder("any_size");
    for workload in Workload::ALL.map(Workload::name) {
        for size in ["0", "1", "37"] {
            for policy in ["static", "dynamic:5", "hguided:2"] {
                let arguments = [
                    "bench",
                    workload,
                    "--devices",
                    "cpu",
                    "--limit",
                    "cpu=1",
                    "--size",
                    size,
                    "--policy",
                    policy,
                    "--runs",
                    "1",
                    "--json",
                ];
                let result = ok(&folder, &arguments);
                assert_eq!(result["verified"], true, "{arguments:?}");
                assert_eq!(result["devices"][0]["items"], result["size"]["items"], "{arguments:?}");
            }
        }
    }
}

/// Sizes, and the policy with which each is tried on two devices.
const TOGETHER: [(&str, &str); 4] =
    [("0", "static"), ("1", "hguided:2"), ("131", "static"), ("tiny", "dynamic:7")];

/// Runs every workload on the processor and another device, on a core each.
fn works_together(folder: &Path, device: &str) {
    let (devices, limit) = (format!("cpu,{device}"), format!("{device}=1"));
    for workload in Workload::ALL.map(Workload::name) {
        for (size, policy) in TOGETHER {
            let limits = ["--limit", "cpu=1", "--limit", &limit];
            let arguments = ["bench", workload, "--devices", &devices, "--size", size];
            let rest = ["--policy", policy, "--runs", "1", "--json"];
            let arguments = [&arguments[..], &limits, &rest].concat();
            let result = ok(folder, &arguments);
            let devices = result["devices"].as_array().expect("a list");
            let items: u64 = devices.iter().map(|device| device["items"].as_u64().expect("a number")).sum();
            assert_eq!(Some(items), result["size"]["items"].as_u64(), "{arguments:?}");
            assert_eq!((&result["verified"], devices.len()), (&Value::Bool(true), 2), "{arguments:?}");
            assert_eq!(result["failures"], Value::Array(Vec::new()), "{arguments:?}");
            for figure in ["coexec_s", "speedup", "s_max", "efficiency", "balance"] {
                let value = result[figure].as_f64().expect("a number");
                assert!(value.is_finite() && value >= 0.0, "{arguments:?}: {figure} is {value}");
            }
        }
    }
}

#[test]
fn any_size_works_together_with_opencl() {
    if has_opencl("together") {
        works_together(&folder("together"), "opencl:0");
    }
}

/// The driver is told to have a gigabyte, of which a buffer may take a quarter.
#[test]
fn a_device_that_cannot_hold_a_buffer_is_left_out() {
    if !has_opencl("left_out") {
        return;
    }
    let folder = folder("left_out");
    let bench = |devices: &str, memory: &str| {
        let line = format!(
            "bench saxpy --size 67108865 --policy static --runs 1 --devices {devices} --memory {memory}"
        );
        let mut bench = command(&folder, &line.split(' ').collect::<Vec<_>>());
        bench.env("POCL_MEMORY_LIMIT", "1").output().expect("the command was built")
    };
    for memory in ["auto", "copy"] {
        let output = bench("cpu,opencl:0", memory);
        let (said, printed) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{memory}: {said}");
        assert!(
            said.contains("opencl:0 is left out") && said.contains("268435460 bytes"),
            "{memory}: {said}"
        );
        assert!(printed.contains("  cpu ") && !printed.contains("  opencl:0 "), "{memory}: {printed}");
    }
    let output = bench("opencl:0", "copy");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no device can hold") && said.contains("opencl:0"), "{said}");
}

#[test]
fn the_hand_written_program_runs_beside() {
    if !has_opencl("native") {
        return;
    }
    let folder = folder("native");
    for workload in Workload::ALL.map(Workload::name) {
        let arguments = [
            "bench",
            workload,
            "--devices",
            "opencl:0",
            "--limit",
            "opencl:0=1",
            "--size",
            "tiny",
            "--runs",
            "1",
            "--by-hand",
            "--json",
        ];
        let result = ok(&folder, &arguments);
        assert!(result["by_hand_s"]["opencl:0"].as_f64().expect("a time") > 0.0, "{arguments:?}");
    }
}

#[test]
fn a_picture_goes_in_and_comes_out() {
    let folder = folder("picture");
    let drawn =
        ok(&folder, &["bench", "mandelbrot", "--size", "tiny", "--devices", "cpu", "--runs", "1", "--json"]);
    assert_eq!(drawn["picture"], "mandelbrot.png");
    let arguments = [
        "bench",
        "gaussian",
        "--input",
        "mandelbrot.png",
        "--devices",
        "cpu",
        "--output",
        "soft.png",
        "--runs",
        "1",
        "--json",
    ];
    let blurred = ok(&folder, &arguments);
    assert_eq!(blurred["size"]["width"], drawn["size"]["width"]);
    let (sharp, soft) =
        (std::fs::read(folder.join("mandelbrot.png")), std::fs::read(folder.join("soft.png")));
    assert_ne!(sharp.expect("written"), soft.expect("written"));
}

#[test]
fn the_json_has_every_documented_field() {
    let result = ok(
        &folder("fields"),
        &["bench", "saxpy", "--size", "tiny", "--devices", "cpu", "--runs", "2", "--json"],
    );
    for field in [
        "workload",
        "size",
        "policy",
        "memory",
        "runs",
        "verified",
        "devices",
        "coexec_s",
        "coexec_min_s",
        "coexec_max_s",
        "speedup",
        "s_max",
        "efficiency",
        "balance",
        "by_hand_s",
        "transfers",
        "link_prices",
        "operations",
        "failures",
        "energy_j",
        "picture",
    ] {
        assert!(result.get(field).is_some(), "{field} is missing");
    }
    for field in ["name", "arena", "units", "alone_s", "power", "busy_s", "end_s", "packages", "items"] {
        assert!(result["devices"][0].get(field).is_some(), "devices[].{field} is missing");
    }
    for call in ["alloc", "bind", "map", "unmap", "read", "write", "copy", "fill", "kernel"] {
        assert!(result["operations"][call].is_u64(), "operations.{call} is missing");
    }
    let several = ok(
        &folder("several"),
        &["bench", "saxpy", "mandelbrot", "--size", "tiny", "--devices", "cpu", "--runs", "1", "--json"],
    );
    assert_eq!(several.as_array().map(Vec::len), Some(2));
}

/// Whether this run has a worker. Without one, tests of workers have nothing to do.
fn has_worker() -> bool {
    cfg!(all(feature = "offload", target_os = "linux"))
}

/// The bytes that the median run copied, from and to the memory of a kind.
fn moved(result: &Value, end: &str, kind: &str) -> u64 {
    let transfers = result["transfers"].as_array().expect("a list").iter();
    let of_kind = transfers.filter(|pair| pair[end].as_str().expect("a name").contains(kind));
    of_kind.map(|pair| pair["bytes"].as_u64().expect("a number")).sum()
}

/// Two inputs go out and one output comes back, once in each run, however many runs there are.
#[test]
fn what_is_copied_is_that_of_one_run() {
    if !has_worker() {
        return;
    }
    let folder = folder("one_run");
    let bench = |runs: &str| {
        let line = "bench vecadd --devices offload:0 --size 1000 --json --memory copy --runs";
        ok(&folder, &line.split(' ').chain([runs]).collect::<Vec<_>>())
    };
    let (one, three) = (bench("1"), bench("3"));
    assert_eq!((moved(&one, "to", "offload"), moved(&one, "from", "offload")), (8000, 4000), "{one}");
    assert_eq!((moved(&three, "to", "offload"), moved(&three, "from", "offload")), (8000, 4000), "{three}");
    assert_eq!(one["operations"], three["operations"]);
}

#[test]
fn shared_memory_is_not_copied_and_other_memory_is() {
    let folder = folder("memory");
    let mut sets = Vec::new();
    if has_worker() {
        sets.extend(["offload:0", "cpu,offload:0"]);
    }
    if has_opencl("memory") {
        sets.extend(["opencl:0", "cpu,opencl:0"]);
        if has_worker() {
            sets.push("cpu,opencl:0,offload:0");
        }
    }
    for devices in sets {
        for workload in ["vecadd", "gaussian"] {
            for memory in ["auto", "copy", "bound"] {
                let line = format!(
                    "bench {workload} --devices {devices} --memory {memory} --size tiny --policy static --runs 1 --json"
                );
                let mut arguments: Vec<&str> = line.split(' ').collect();
                // Everybody has a part, however busy the machine is.
                let powers: Vec<String> = devices.split(',').map(|device| format!("{device}=1")).collect();
                arguments.extend(powers.iter().flat_map(|power| ["--powers", power]));
                if workload == "gaussian" {
                    arguments.extend(["--output", "blurred.png"]);
                }
                let result = ok(&folder, &arguments);
                assert_eq!((&result["memory"], &result["verified"]), (&memory.into(), &true.into()));
                let bytes = moved(&result, "from", "");
                let has = |kind| devices.contains(kind);
                let in_place = match memory {
                    "copy" => false,
                    "bound" => true,
                    // With workers, OpenCL devices have memories of their own; without, the driver decides.
                    _ if has("opencl") && !has("offload") => continue,
                    _ => !has("opencl"),
                };
                assert_eq!(bytes == 0, in_place, "{arguments:?} moves {bytes} bytes: {result}");
            }
        }
    }
}

#[test]
fn table1_is_reproduced_beside_the_published_one() {
    if !has_opencl("table1") {
        return;
    }
    let folder = folder("table1");
    let arguments = ["reproduce", "table1", "--size", "tiny", "--runs", "1"];
    let result = ok(&folder, &[&arguments[..], &["--json"]].concat());
    assert_eq!(
        (&result["table"], &result["size"], &result["runs"]),
        (&"table1".into(), &"tiny".into(), &1.into())
    );
    assert_eq!((&result["verified"], result["device"].is_string()), (&true.into(), true));
    let rows = result["rows"].as_array().expect("a list");
    let names: Vec<_> = rows.iter().map(|row| row["row"].as_str().expect("a name")).collect();
    assert_eq!(names, ["vecadd", "matmul", "bfs"]);
    assert_eq!(rows[0]["published"]["opt"]["seconds"], 0.032_44);
    assert_eq!(rows[2]["published"]["noopt"]["operations"]["copy"], 31);
    assert!(rows[0]["published"]["hand"]["operations"]["alloc"].is_null());
    assert_eq!(rows[0]["size"]["items"], 10_007);
    for row in rows {
        let count = |mode: &str, call: &str| row[mode]["operations"][call].as_u64().expect(call);
        for mode in ["hand", "hand_bound", "noopt", "opt"] {
            for field in ["seconds", "seconds_min", "seconds_max"] {
                assert!(row[mode][field].as_f64().expect(field) > 0.0, "{row}");
            }
            assert_eq!(count(mode, "kernel"), count("hand", "kernel"), "{row}");
        }
        let transfers = |mode: &str| -> u64 {
            ["map", "unmap", "read", "write", "copy"].iter().map(|call| count(mode, call)).sum()
        };
        assert!(transfers("opt") <= transfers("hand") && count("opt", "copy") == 0, "{row}");
        assert!(count("opt", "bind") > 0 && count("noopt", "bind") == 0, "{row}");
        for ratio in ["opt_over_hand", "opt_over_hand_bound", "noopt_over_hand"] {
            assert!(row["ratios"][ratio].as_f64().expect(ratio) > 0.0, "{row}");
        }
    }
    let text = String::from_utf8(dml(&folder, &arguments).stdout).expect("text");
    assert!(
        text.contains("paper noopt") && text.contains("41.20 ms") && text.contains("bfs: 2003 nodes"),
        "{text}"
    );
    let markdown = dml(&folder, &[&arguments[..], &["--markdown"]].concat()).stdout;
    let markdown = String::from_utf8(markdown).expect("text");
    let lines: Vec<_> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 3 * 14, "{markdown}");
    assert!(lines.iter().all(|line| line.matches('|').count() == 9), "{markdown}");
}

#[test]
fn without_a_device_table1_says_what_is_missing() {
    let folder = folder("table1_missing");
    let output = command(&folder, &["reproduce", "table1", "--size", "tiny"])
        .env("OCL_ICD_VENDORS", folder.join("nowhere"))
        .output()
        .expect("the command was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("needs an OpenCL device") && output.stdout.is_empty(), "{said}");
}

#[test]
fn the_table_names_what_is_missing() {
    let folder = folder("missing");
    let output = command(&folder, &["bench", "saxpy", "--size", "tiny", "--runs", "1"])
        .env("OCL_ICD_VENDORS", folder.join("nowhere"))
        .output()
        .expect("the command was built");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert!(table.contains("unavailable: opencl"), "{table}");
    assert!(table.contains("efficiency"), "{table}");
}

#[cfg(all(feature = "offload", target_os = "linux"))]
mod workers {
    use super::{command, dml, fails, folder, ok};
    use serde_json::{Value, json};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// The command on `cpu` and `offload:0` alone.
    fn small(folder: &Path, arguments: &[&str]) -> Command {
        let mut command = command(folder, arguments);
        command.env("OCL_ICD_VENDORS", folder.join("nowhere"));
        command
    }

    fn printed(command: &mut Command) -> String {
        let output = command.output().expect("the command was built");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn devices(folder: &Path, arguments: &[&str]) -> Value {
        let text = printed(&mut small(folder, &[&["devices", "--json"], arguments].concat()));
        serde_json::from_str(&text).expect("--json prints one JSON value")
    }

    fn benched(folder: &Path) -> Value {
        let arguments = ["bench", "saxpy", "--size", "tiny", "--runs", "1", "--json"];
        serde_json::from_str(&printed(&mut small(folder, &arguments))).expect("one JSON value")
    }

    /// How the speeds of all links are known.
    fn figures(found: &Value) -> Vec<&str> {
        let links = found["links"].as_array().expect("a list");
        assert!(!links.is_empty());
        links.iter().map(|link| link["figures"].as_str().expect("a word")).collect()
    }

    /// The only file of the cache in a test's folder.
    fn cache_file(folder: &Path) -> PathBuf {
        let (runs, mut links) = (super::kept(folder, "knowledge-"), super::kept(folder, "links-"));
        let all = super::kept(folder, "").len();
        assert_eq!((links.len(), all - runs.len()), (1, 1), "nothing else is left there");
        links.remove(0)
    }

    #[test]
    fn speeds_are_measured_once_kept_and_measured_again_on_request() {
        let folder = folder("speeds_kept");
        let prices = &benched(&folder)["link_prices"];
        assert_eq!(
            (&prices["measured"], prices["guessed"].as_u64() > Some(0)),
            (&0.into(), true),
            "{prices}"
        );
        assert!(super::kept(&folder, "links-").is_empty(), "a benchmark writes no speeds");
        let first = devices(&folder, &[]);
        assert!(figures(&first).iter().all(|figures| *figures == "measured"), "{first}");
        assert_eq!(first["speeds"]["notes"], Value::Array(Vec::new()));
        let file = cache_file(&folder);
        assert_eq!(first["speeds"]["file"], file.display().to_string());
        let second = devices(&folder, &[]);
        assert!(figures(&second).iter().all(|figures| *figures == "cached"), "{second}");
        for (first, second) in
            first["links"].as_array().unwrap().iter().zip(second["links"].as_array().unwrap())
        {
            for field in ["from", "to", "mechanism", "latency_ns", "bytes_per_s", "classes"] {
                assert_eq!(first[field], second[field], "{field}");
            }
            assert!(first["classes"].as_array().expect("a list").len() >= 2, "{first}");
            assert!(
                first["latency_ns"].as_u64() > Some(0) && first["bytes_per_s"].as_u64() > Some(0),
                "{first}"
            );
            assert!(
                first["measured_unix_s"].is_null()
                    && second["measured_unix_s"].as_u64() > Some(1_700_000_000)
            );
        }
        let text = printed(&mut small(&folder, &["devices"]));
        assert!(text.contains("cached, 20") && text.contains(&*file.to_string_lossy()), "{text}");
        let prices = &benched(&folder)["link_prices"];
        assert_eq!(
            (prices["measured"].as_u64() > Some(0), &prices["guessed"]),
            (true, &0.into()),
            "{prices}"
        );
        let text = printed(&mut small(&folder, &["bench", "saxpy", "--size", "tiny", "--runs", "1"]));
        assert!(text.contains("measured, 20"), "{text}");
        let again = devices(&folder, &["--measure"]);
        assert!(figures(&again).iter().all(|figures| *figures == "measured"), "{again}");
        // A worker more has links that were not measured yet.
        let more = devices(&folder, &["--offload", "2"]);
        assert!(figures(&more).iter().all(|figures| *figures == "measured"), "{more}");
        assert!(figures(&devices(&folder, &[])).iter().all(|figures| *figures == "cached"));
    }

    #[test]
    fn a_damaged_file_of_speeds_is_reported_and_replaced_by_a_measurement_alone() {
        let folder = folder("speeds_damaged");
        devices(&folder, &[]);
        let file = cache_file(&folder);
        for damage in ["", "{\"format\": 99}", "not JSON"] {
            std::fs::write(&file, damage).expect("writable");
            let result = benched(&folder);
            let prices = &result["link_prices"];
            let note = prices["notes"][0].as_str().expect("a note");
            assert!(note.contains("is ignored") && prices["measured"] == 0, "{prices}");
            assert_eq!(
                std::fs::read_to_string(&file).expect("readable"),
                damage,
                "a benchmark writes no speeds"
            );
            let text = printed(&mut small(&folder, &["bench", "saxpy", "--size", "tiny", "--runs", "1"]));
            assert!(text.contains("is ignored"), "{text}");
        }
        let found = devices(&folder, &[]);
        assert!(figures(&found).iter().all(|figures| *figures == "measured"), "{found}");
        assert!(found["speeds"]["notes"][0].as_str().expect("a note").contains("is ignored"), "{found}");
        assert!(figures(&devices(&folder, &[])).iter().all(|figures| *figures == "cached"));
    }

    #[test]
    fn without_a_folder_for_speeds_they_are_measured_each_time() {
        let folder = folder("speeds_nowhere");
        std::fs::write(folder.join("file"), "no folder").expect("writable");
        let arguments = ["devices", "--json"];
        let (mut homeless, mut blocked) = (small(&folder, &arguments), small(&folder, &arguments));
        homeless.env_remove("XDG_CACHE_HOME").env("HOME", "relative");
        blocked.env("XDG_CACHE_HOME", folder.join("file"));
        for (command, reason) in [(&mut homeless, "no folder"), (&mut blocked, "cannot write")] {
            let found: Value = serde_json::from_str(&printed(command)).expect("one JSON value");
            assert!(figures(&found).iter().all(|figures| *figures == "measured"), "{found}");
            assert!(found["speeds"]["file"].is_null());
            assert!(found["speeds"]["notes"].to_string().contains(reason), "{found}");
        }
    }

    #[test]
    fn two_processes_that_measure_at_once_leave_a_whole_file() {
        let folder = folder("speeds_twice");
        let start = || small(&folder, &["devices", "--measure", "--json"]).output();
        let outputs =
            std::thread::scope(|scope| [scope.spawn(start), scope.spawn(start)].map(|one| one.join()));
        for output in outputs {
            assert!(output.expect("no panic").expect("the command was built").status.success());
        }
        cache_file(&folder);
        let found = devices(&folder, &[]);
        assert!(figures(&found).iter().all(|figures| *figures == "cached"), "{found}");
    }

    #[test]
    fn bad_usage_of_workers_is_named_and_exits_with_2() {
        for (arguments, named) in [
            (&["bench", "saxpy", "--limit", "offload:0=0"][..], "offload:0"),
            (&["bench", "saxpy", "--limit", "offload:0=1000000"], "1000000"),
            (&["bench", "saxpy", "--devices", "offload:1"], "offload:1"),
            (&["bench", "saxpy", "--offload", "0", "--devices", "offload:0"], "offload:0"),
            (&["bench", "saxpy", "--pin", "offload:0=1-"], "offload:0=1-"),
            (&["bench", "saxpy", "--pin", "offload:0=4095"], "4095"),
            (&["bench", "saxpy", "--pin", "cpu=0"], "cpu"),
            (&["bench", "saxpy", "--time-limit", "0"], "0"),
        ] {
            let said = fails(2, arguments);
            assert!(said.contains(named), "{arguments:?} does not name {named:?}: {said}");
        }
    }

    #[test]
    fn any_size_works_together_with_a_worker() {
        super::works_together(&folder("with_worker"), "offload:0");
    }

    #[test]
    fn without_being_told_everything_is_used_and_cores_are_shared() {
        let folder = folder("by_default");
        let cores = std::thread::available_parallelism().expect("it is known").get() as u64;
        let result = ok(&folder, &["bench", "mandelbrot", "--size", "tiny", "--runs", "1", "--json"]);
        let devices = result["devices"].as_array().expect("a list");
        let named = |name: &str| devices.iter().any(|device| device["name"] == name);
        assert!(named("cpu") && (cores == 1 || named("offload:0")), "{devices:?}");
        let on_cores = devices.iter().filter(|device| device["name"] != "cuda:0");
        let units: u64 = on_cores.map(|device| device["units"].as_u64().expect("a number")).sum();
        assert!(units < 2 * cores, "{units} units on {cores} cores");
        let table = dml(&folder, &["bench", "saxpy", "--size", "tiny", "--runs", "1"]).stdout;
        let table = String::from_utf8_lossy(&table);
        assert!(cores == 1 || table.contains("share them"), "{table}");
    }

    #[test]
    fn workers_are_listed_and_several_can_be_asked_for() {
        let folder = folder("several_workers");
        let found = ok(&folder, &["devices", "--offload", "2", "--json"]);
        let names: Vec<_> = found["devices"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|device| device["name"].clone())
            .collect();
        assert!(names.contains(&"offload:0".into()) && names.contains(&"offload:1".into()), "{names:?}");
        let links = found["links"].as_array().expect("a list");
        let there = links.iter().find(|link| link["from"] == "main_mem" && link["to"] == "offload:1");
        assert!(there.expect("joined")["bytes_per_s"].as_u64().expect("measured") > 0);
        let arguments = ["bench", "gaussian", "--devices", "offload:1,offload:0", "--offload", "2"];
        let rest = ["--pin", "offload:0=0", "--time-limit", "60", "--size", "60", "--runs", "1", "--json"];
        let result = ok(&folder, &[&arguments[..], &rest].concat());
        assert_eq!(result["devices"].as_array().map(Vec::len), Some(2));
    }

    /// Plans and answers, with guessed prices.
    fn planned(folder: &Path, ends: [&str; 2], bytes: &str) -> Value {
        let plan = ["devices", "--offload", "2", "--plan", ends[0], ends[1], "--bytes", bytes, "--json"];
        ok(folder, &plan)
    }

    #[test]
    fn a_plan_is_shown_with_what_it_rejected() {
        let folder = folder("a_plan_is_shown_with_what_it_rejected");
        let plan = planned(&folder, ["cpu", "offload:1"], "4000000");
        assert_eq!((&plan["from"], &plan["to"]), (&json!("main_mem"), &json!("offload:1")));
        let copy = "copy main_mem to offload:1 (staged)";
        assert_eq!(plan["first"]["steps"], json!(["allocate offload:1", copy]));
        assert_eq!(plan["again"]["steps"], json!([copy]));
        let ns = |value: &Value| value.as_u64().expect("a whole number");
        assert!(ns(&plan["again"]["cost_ns"]) < ns(&plan["first"]["cost_ns"]), "storage is there already");
        let rejected = plan["rejected"].as_array().expect("a list");
        let costs: Vec<_> = rejected.iter().map(|other| ns(&other["cost_ns"])).collect();
        assert!(costs.is_sorted() && costs[0] > ns(&plan["first"]["cost_ns"]), "{costs:?}");
        let by_the_other = json!([
            { "from": "main_mem", "to": "offload:0", "mechanism": "staged" },
            { "from": "offload:0", "to": "offload:1", "mechanism": "staged" },
        ]);
        assert!(rejected.iter().any(|other| other["way"] == by_the_other), "{rejected:?}");
        let larger = planned(&folder, ["cpu", "offload:1"], "400000000");
        assert!(ns(&larger["first"]["cost_ns"]) > 10 * ns(&plan["first"]["cost_ns"]));

        assert!(planned(&folder, ["cpu", "offload:1"], &u64::MAX.to_string())["first"].is_object());

        let text = ["devices", "--offload", "1", "--plan", "main_mem", "offload:0", "--bytes", "4096"];
        let output = dml(&folder, &text);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("main_mem to offload:0, 4.0 KiB") && text.contains("first: "), "{text}");
    }

    #[test]
    fn transfers_and_calls_are_measured() {
        let result = ok(&folder("measured"), &["bench", "offload", "--runs", "1", "--json"]);
        for field in [
            "runs",
            "bytes",
            "memcpy_bytes_per_s",
            "to_worker_bytes_per_s",
            "from_worker_bytes_per_s",
            "short_bytes",
            "short_to_worker_ns",
            "short_from_worker_ns",
            "empty_run_ns",
            "start_ns",
        ] {
            assert!(result[field].as_u64().expect(field) > 0, "{field}");
        }
        for field in ["to_worker_over_memcpy", "from_worker_over_memcpy"] {
            assert!(result[field].as_f64().expect(field) > 0.0, "{field}");
        }
        assert_eq!(result["device"], "offload:0");
    }

    #[test]
    fn a_worker_that_hangs_is_reported_and_others_finish() {
        // A function of seconds under a limit of one: alone it fails, and says why.
        let arguments =
            ["bench", "gaussian", "--devices", "offload:0", "--limit", "offload:0=1", "--size", "2000"];
        let said = fails(1, &[&arguments[..], &["--runs", "1", "--time-limit", "1"]].concat());
        assert!(
            said.contains("offload:0 was lost") && said.contains("did not answer to gaussian within 1s"),
            "{said}"
        );
    }

    #[test]
    fn the_programs_own_arguments_are_not_a_workers() {
        let said = fails(2, &["--device=offload:0"]);
        assert!(said.contains("--device"), "{said}");
        assert!(Path::new(env!("CARGO_BIN_EXE_dml")).exists());
    }
}

/// What is printed of each set is consistent, and what the runs taught is kept for the next command.
#[cfg(all(feature = "offload", target_os = "linux"))]
#[test]
fn every_set_of_devices_stands_beside_the_best_one_alone() {
    let folder = folder("never_loses");
    let devices = ["--devices", "cpu,offload:0", "--limit", "cpu=1", "--limit", "offload:0=1"];
    let rest = ["--runs", "3", "--longest", "0.001", "--json", "--decisions", "."];
    let found = ok(&folder, &[&["bench", "never-loses", "vecadd", "saxpy"][..], &devices, &rest].concat());
    let rows = found["rows"].as_array().expect("a list");
    // What was decided with nothing known, of each row: all items, and the host began.
    for row in rows {
        let (name, items) =
            (row["workload"].as_str().expect("a name"), row["items"].as_u64().expect("a number"));
        let decided = ok(&folder, &["replay", &format!("{name}-{items}-cpu-offload0.txt"), "--json"]);
        assert_eq!((&decided["items"], &decided["same"]), (&row["items"], &true.into()));
    }
    for of in ["learned", "scaled", "unknown"] {
        let judged = rows.iter().filter(|row| !row[of].is_null()).count();
        assert!(found[of]["rows"] == judged && found[of]["kept"].as_u64() <= found[of]["rows"].as_u64());
    }
    assert!(["vecadd", "saxpy"].iter().all(|name| rows.iter().any(|row| row["workload"] == *name)));
    for row in rows {
        let names = |field: &str| -> Vec<String> {
            serde_json::from_value(row[field].clone()).expect("a list of names")
        };
        assert_eq!(names("devices"), ["cpu", "offload:0"]);
        assert!(names("devices").contains(&row["best"].as_str().expect("a name").to_owned()));
        assert!(
            !names("used").is_empty() && names("used").iter().all(|name| names("devices").contains(name))
        );
        for of in ["learned", "unknown"] {
            let number = |field: &str| row[of][field].as_f64().expect("a number");
            assert!(number("seconds") > 0.0 && number("ratio") > 0.0, "{row}");
        }
    }

    let bench = [&["bench", "vecadd", "--size", "1000", "--runs", "1"][..], &devices].concat();
    assert!(dml(&folder, &bench).status.success());
    let [file] = &kept(&folder, "knowledge-")[..] else { panic!("one file is kept") };
    assert!(std::fs::read_to_string(file).is_ok_and(|text| text.contains("vecadd")));
    // A file that is not understood is named, and replaced.
    std::fs::write(file, "something else").expect("it is the test's own");
    let again =
        dml(&folder, &[&["bench", "vecadd", "--size", "1000"][..], &devices, &["--runs", "1"]].concat());
    assert!(again.status.success());
    let told = String::from_utf8_lossy(&again.stderr);
    assert!(told.contains("ignored") && told.contains("line 1"), "{told}");
    assert!(std::fs::read_to_string(file).is_ok_and(|text| text.contains("vecadd")));
}
