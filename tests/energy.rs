//! Energy in what the command prints, of a processor whose counters are made up.

#![cfg(not(dml_loom))]

mod program;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A folder of this test's own, with a package of a processor in it.
fn folder(test: &str) -> PathBuf {
    let folder = program::folder(test);
    let zone = folder.join("powercap/intel-rapl:0");
    std::fs::create_dir_all(&zone).expect("the target folder is writable");
    for (file, text) in [("name", "package-0"), ("max_energy_range_uj", "262143328850"), ("energy_uj", "5")] {
        std::fs::write(zone.join(file), text).expect("just made");
    }
    folder
}

fn dml(folder: &Path, arguments: &[&str]) -> Output {
    let output = program::dml(folder, &[&["bench"], arguments, &["--powercap", "powercap"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    output
}

fn printed(folder: &Path, arguments: &[&str]) -> Value {
    let output = dml(folder, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).expect("--json prints one JSON value")
}

const TINY: [&str; 6] = ["--size", "tiny", "--devices", "cpu", "--runs", "2"];

/// A package that takes a hundred watts until it is dropped.
///
/// Its counter is kept in memory where that is to be had: a file that replaces another one may wait for the
/// disk.
struct Package {
    memory: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Package {
    fn at_work(folder: &Path) -> Self {
        let test = folder.file_name().expect("it has a name").to_string_lossy();
        let memory = Path::new("/dev/shm");
        let memory = if memory.is_dir() { memory } else { folder };
        let memory = memory.join(format!("dml-energy-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&memory).expect("it can be written");
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, begun) = (stop.clone(), Instant::now());
        let counter = memory.clone();
        let count = move || {
            let energy_uj = 5 + begun.elapsed().as_micros() * 100;
            // A reader finds a whole number at any time.
            std::fs::write(counter.join("next"), energy_uj.to_string()).expect("it is there");
            std::fs::rename(counter.join("next"), counter.join("energy_uj")).expect("it is there");
        };
        count();
        let shown = folder.join("powercap/intel-rapl:0/energy_uj");
        std::fs::remove_file(&shown).expect("it was made");
        std::os::unix::fs::symlink(memory.join("energy_uj"), shown).expect("it was removed");
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                count();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Self { memory, stop, thread: Some(thread) }
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it writes files");
        }
        let _ = std::fs::remove_dir_all(&self.memory);
    }
}

#[test]
fn every_configuration_has_its_energy() {
    let folder = folder("json");
    let _package = Package::at_work(&folder);
    let result = printed(&folder, &[&["saxpy"][..], &TINY].concat());
    let (together, alone) = (&result["energy"], &result["devices"][0]["alone_energy"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number: {result}"));
    for (energy, seconds) in [(together, &result["coexec_s"]), (alone, &result["devices"][0]["alone_s"])] {
        let (joules, edp) = (number(&energy["energy_j"]), number(&energy["edp_js"]));
        assert!(joules > 0.0, "{result}");
        assert!((edp - joules * number(seconds)).abs() <= 1e-9 * edp, "{result}");
        assert_eq!(
            (&energy["counters"], &energy["missing"]),
            (&Value::from(vec!["package-0"]), &Value::Null)
        );
    }
    assert_eq!(result["energy_j"], together["energy_j"]);
    let ratio = |field: &str| number(&together[field]) / number(&alone[field]);
    assert!((number(&together["energy_over_fastest"]) - ratio("energy_j")).abs() < 1e-9, "{result}");
    assert!((number(&together["edp_over_fastest"]) - ratio("edp_js")).abs() < 1e-9, "{result}");
    assert_eq!((&alone["energy_over_fastest"], &alone["edp_over_fastest"]), (&1.0.into(), &1.0.into()));
    let text = dml(&folder, &[&["saxpy"][..], &TINY].concat());
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let is_shown = |begin: &str| text.lines().any(|line| line.starts_with(begin) && line.contains("EDP"));
    assert!(is_shown("energy      together ") && is_shown("energy      cpu alone "), "{text}");
}

#[test]
fn the_suite_has_the_energy_of_each_workload() {
    let folder = folder("suite");
    let _package = Package::at_work(&folder);
    let suite = printed(&folder, &[&["all"][..], &TINY].concat());
    let workloads = suite["workloads"].as_array().expect("a list");
    assert!(
        workloads.iter().all(|one| one["energy"]["energy_j"].as_f64().is_some_and(|it| it > 0.0)),
        "{suite}"
    );
    for mean in ["energy_over_fastest", "edp_over_fastest"] {
        let of =
            |one: &Value| one["energy"][mean].as_f64().unwrap_or_else(|| panic!("{mean} is missing: {one}"));
        let logarithms = workloads.iter().map(|one| of(one).ln());
        let expected = (logarithms.sum::<f64>() / workloads.len() as f64).exp();
        let told = suite["means"][mean].as_f64().expect("all are known");
        assert!((told - expected).abs() < 1e-9 * expected, "{mean}: {told} for {expected}");
    }
}

#[test]
fn energy_that_is_not_there_is_null_with_the_reason() {
    let folder = folder("missing");
    // The counter of this one stands still.
    let result = printed(&folder, &[&["saxpy"][..], &TINY].concat());
    let still = result["energy"]["missing"].as_str().expect("a reason");
    assert!(still.contains("package-0 did not move"), "{still}");
    std::fs::remove_dir_all(folder.join("powercap")).expect("it was there");
    let result = printed(&folder, &[&["saxpy"][..], &TINY].concat());
    for energy in [&result["energy"], &result["devices"][0]["alone_energy"]] {
        for field in ["energy_j", "edp_js", "energy_over_fastest", "edp_over_fastest"] {
            assert_eq!(energy.get(field), Some(&Value::Null), "{field}");
        }
        assert_eq!(energy["counters"], Value::Array(vec![]));
        let reason = energy["missing"].as_str().expect("a reason");
        assert!(reason.contains("powercap: there is no such file or folder"), "{reason}");
    }
    assert_eq!(result["energy_j"], Value::Null);
    let text = dml(&folder, &[&["saxpy"][..], &TINY].concat());
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let lines = text.lines().filter(|line| line.starts_with("energy      not measured: no energy counters"));
    assert_eq!(lines.count(), 1, "{text}");
}
