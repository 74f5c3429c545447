use super::*;
use dml::core::{DeviceDesc, DeviceKind};
use dml::energy::{EnergyCounter, GpuCounters, Nvml};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn missing() -> EnergyError {
    EnergyError::NoCounter { device: "opencl:0".to_owned(), reason: "it is shy".to_owned() }
}

fn measured(joules: f64) -> PerRun {
    Ok(Measured { joules, counters: vec!["package-0".to_owned()], without: None })
}

/// The fastest device is neither the first nor the one that uses the least energy.
#[test]
fn figures_stand_beside_the_fastest_device_alone() {
    let alone = [(4.0, measured(10.0)), (2.0, measured(16.0)), (8.0, Err(missing()))];
    let (of_alone, together) = figures(&alone, (1.5, &measured(20.0)));
    let told = |energy: &json::Energy| {
        (energy.energy_j, energy.edp_js, energy.energy_over_fastest, energy.edp_over_fastest)
    };
    assert_eq!(told(&of_alone[0]), (Some(10.0), Some(40.0), Some(0.625), Some(1.25)));
    assert_eq!(told(&of_alone[1]), (Some(16.0), Some(32.0), Some(1.0), Some(1.0)));
    assert_eq!(told(&of_alone[2]), (None, None, None, None));
    assert_eq!(told(&together), (Some(20.0), Some(30.0), Some(1.25), Some(0.9375)));
    assert_eq!(together.counters, ["package-0"]);
    assert_eq!(of_alone[2].missing.as_deref(), Some("no energy counter for device opencl:0: it is shy"));
}

#[test]
fn without_the_fastest_device_there_is_nothing_to_stand_beside() {
    let alone = [(4.0, measured(10.0)), (2.0, Err(missing()))];
    let (of_alone, together) = figures(&alone, (1.5, &measured(20.0)));
    assert_eq!((of_alone[0].energy_j, of_alone[0].energy_over_fastest), (Some(10.0), None));
    assert_eq!((together.edp_js, together.edp_over_fastest), (Some(30.0), None));
}

/// A counter in memory that increases by a joule at each reading.
#[derive(Debug, Default)]
struct Steady {
    readings: AtomicU64,
    step_s: AtomicU64,
}

#[derive(Debug)]
struct OneGpu(Arc<Steady>);

impl EnergyCounter for Steady {
    fn name(&self) -> String {
        "steady".to_owned()
    }

    fn read_uj(&self) -> Result<u64, String> {
        Ok(1_000_000 * self.readings.fetch_add(1, Ordering::SeqCst))
    }

    fn range_uj(&self) -> Option<u64> {
        None
    }

    fn step(&self) -> Duration {
        Duration::from_secs(self.step_s.load(Ordering::SeqCst))
    }
}

impl GpuCounters for OneGpu {
    fn counter(&self, _: &str) -> Result<Arc<dyn EnergyCounter>, String> {
        Ok(self.0.clone())
    }
}

/// Creates the files of a processor package whose counter a test advances.
fn package(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("dml-energy-{}-{test}", std::process::id()));
    let zone = folder.join("intel-rapl:0");
    std::fs::create_dir_all(&zone).expect("a folder for temporary files");
    for (file, text) in [("name", "package-0"), ("max_energy_range_uj", "1000000000"), ("energy_uj", "5")] {
        std::fs::write(zone.join(file), text).expect("just made");
    }
    folder
}

fn meter(folder: &std::path::Path, steady: &Arc<Steady>) -> Meter {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu).with_hardware("slot 1"));
    let platform = builder.build().expect("a device alone is a platform");
    let sources = EnergySources::default().powercap(folder).gpus(Arc::new(OneGpu(steady.clone())));
    Meter::new(&platform, &[DeviceId(0)], &sources)
}

/// Advances the package's counter by a joule.
fn spend(folder: &std::path::Path, total_uj: &mut u64) {
    *total_uj += 1_000_000;
    std::fs::write(folder.join("intel-rapl:0/energy_uj"), total_uj.to_string()).expect("it is there");
}

#[test]
fn runs_that_are_long_enough_count_one_by_one() {
    let (folder, steady) = (package("long"), Arc::new(Steady::default()));
    let (meter, mut total_uj) = (meter(&folder, &steady), 5);
    let metered = (0..3)
        .map(|_| {
            meter.one(|| {
                std::thread::sleep(Duration::from_millis(11));
                spend(&folder, &mut total_uj);
                Ok(())
            })
        })
        .map(|run| run.expect("the run is sound").1)
        .collect();
    let told = meter.per_run(metered, || panic!("nothing is repeated"), || panic!("nothing is repeated"));
    let told = told.expect("nothing failed").expect("it was measured");
    assert_eq!(
        told,
        Measured { joules: 2.0, counters: vec!["package-0".to_owned(), "steady".to_owned()], without: None }
    );
    std::fs::remove_dir_all(folder).expect("it was there");
}

/// The counters' minimum time is out of reach until five runs were made. Each run reports half of its time,
/// so only half of the energy counts.
#[test]
fn short_runs_are_repeated_until_the_counters_can_tell() {
    let (folder, steady) = (package("short"), Arc::new(Steady::default()));
    steady.step_s.store(360, Ordering::SeqCst);
    let (meter, mut total_uj) = (meter(&folder, &steady), 5);
    let (result, metered) = meter.one(|| Ok(7)).expect("the run is sound");
    assert!(matches!(&metered, Err(EnergyError::TooShort { .. })) && result == 7, "{metered:?}");
    let (mut prepared, mut runs) = (0, 0);
    let told = meter.per_run(
        vec![metered],
        || {
            prepared += 1;
            Ok(())
        },
        || {
            let begun = Instant::now();
            std::thread::sleep(Duration::from_millis(1));
            spend(&folder, &mut total_uj);
            runs += 1;
            if runs == 5 {
                steady.step_s.store(0, Ordering::SeqCst);
            }
            Ok(begun.elapsed().as_secs_f64() / 2.0)
        },
    );
    let told = told.expect("nothing failed").expect("it was measured");
    assert_eq!(prepared, runs, "each run is prepared");
    assert!(runs >= 5, "{runs}");
    // The package uses a joule per run, the GPU one per reading after the first. At most half of it counts.
    let most = f64::from(2 * runs + 1) / f64::from(2 * runs);
    assert!(told.joules > 0.0 && told.joules <= most, "{told:?} in {runs} runs");
    std::fs::remove_dir_all(folder).expect("it was there");
}

/// All of the time is spent in runs, so each run gets an equal part of all joules: those of the package, and
/// one of the GPU for each reading after the first.
#[test]
fn a_repeated_run_has_its_part_of_the_energy() {
    let (folder, steady) = (package("part"), Arc::new(Steady::default()));
    steady.step_s.store(360, Ordering::SeqCst);
    let (meter, mut total_uj) = (meter(&folder, &steady), 5);
    let meter = meter.meter.as_ref().expect("both have counters");
    let mut runs = 0;
    let run = || {
        std::thread::sleep(Duration::from_millis(1));
        spend(&folder, &mut total_uj);
        runs += 1;
        if runs == 5 {
            steady.step_s.store(0, Ordering::SeqCst);
        }
        Ok(1e6)
    };
    let begun = steady.readings.load(Ordering::SeqCst);
    let told = repeated(meter, || Ok(()), run).expect("nothing failed").expect("it was measured");
    let readings = steady.readings.load(Ordering::SeqCst) - begun;
    let expected = (f64::from(runs) + (readings - 1) as f64) / f64::from(runs);
    assert!(runs >= 5 && (told.joules - expected).abs() < 1e-9, "{told:?} in {runs} runs, not {expected}");
    std::fs::remove_dir_all(folder).expect("it was there");
}

/// A counter that did not move within less than a second is retried. After a second, it counts as stuck.
#[test]
fn counters_that_stood_still_are_given_a_second() {
    let (folder, steady) = (package("still"), Arc::new(Steady::default()));
    let (meter, mut total_uj) = (meter(&folder, &steady), 5);
    let mut repeats = |elapsed: Duration| {
        let still = EnergyError::Still { counter: "package-0".to_owned(), elapsed };
        let mut runs = 0;
        let run = || {
            std::thread::sleep(Duration::from_millis(11));
            spend(&folder, &mut total_uj);
            runs += 1;
            Ok(0.011)
        };
        let told = meter.per_run(vec![Err(still)], || Ok(()), run).expect("nothing failed");
        (told.is_ok(), runs > 0)
    };
    assert_eq!(repeats(Duration::ZERO), (true, true));
    assert_eq!(repeats(Duration::from_millis(999)), (true, true));
    assert_eq!(repeats(Duration::from_secs(1)), (false, false));
    assert_eq!(repeats(Duration::from_secs(2)), (false, false));
    std::fs::remove_dir_all(folder).expect("it was there");
}

#[test]
fn the_part_of_the_runs_is_that_of_their_time() {
    assert_eq!((part(1.0, 4.0), part(5.0, 4.0), part(0.0, 0.0)), (0.25, 1.0, 1.0));
}

#[test]
fn a_failed_run_is_failed_work_and_a_missing_counter_is_not() {
    let folder = package("failed");
    let steady = Arc::new(Steady::default());
    let failed = meter(&folder, &steady).one(|| Err::<(), _>(Failure::Work("it is tired".to_owned())));
    assert!(matches!(failed, Err(Failure::Work(text)) if text == "it is tired"));
    let gone = meter(&folder, &steady);
    std::fs::remove_dir_all(&folder).expect("it was there");
    let ((), metered) = gone.one(|| Ok(())).expect("the run is sound");
    let told = gone.per_run(vec![metered], || panic!("not repeated"), || panic!("not repeated"));
    assert!(matches!(told, Ok(Err(EnergyError::NoPackages { .. }))));
}

/// A machine without NVML is not a failure.
#[test]
fn this_machines_nvml_answers_or_says_why_not() {
    let told = Nvml::new().counter("pci ffff:ff:1f.0").map(drop);
    assert!(told.is_err_and(|reason| !reason.is_empty()), "there is no GPU at that place");
}

#[test]
fn the_suite_shows_energy_where_it_is_known() {
    let known = json::Energy { energy_j: Some(3.0), edp_js: Some(0.5), ..json::Energy::default() };
    let beside =
        json::Energy { energy_over_fastest: Some(0.75), edp_over_fastest: Some(0.25), ..known.clone() };
    let missing = json::Energy { missing: Some("it is shy".to_owned()), ..json::Energy::default() };
    let means = json::SuiteMeans {
        speedup: None,
        s_max: None,
        efficiency: None,
        balance: None,
        energy_over_fastest: Some(0.8125),
        edp_over_fastest: None,
    };
    let shown = |all: &[(&str, &json::Energy)]| -> Vec<String> {
        let squeezed = |line: String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        suite_lines(all, &means).into_iter().map(squeezed).collect()
    };
    assert_eq!(shown(&[("rap", &missing), ("ray", &missing)]), ["energy not measured: it is shy"]);
    assert_eq!(
        shown(&[("rap", &missing), ("ray", &known), ("saxpy", &beside)]),
        [
            "",
            "workload energy EDP energy of fastest EDP of fastest",
            "rap - - - -",
            "ray 3.000 J 500.00 mJ s - -",
            "saxpy 3.000 J 500.00 mJ s 0.750 0.250",
            "geometric mean 0.812 -",
            "",
            "energy rap: not measured: it is shy",
        ]
    );
    assert!(suite_lines(&[], &means).is_empty());
}

/// A virtual machine with a GPU has no counters of its processor.
#[test]
fn gpus_are_metered_alone_where_the_processor_has_no_counters() {
    let nowhere = std::env::temp_dir().join("dml-energy-nowhere");
    let meter = meter(&nowhere, &Arc::new(Steady::default()));
    let (result, metered) = meter.one(|| Ok(7)).expect("the run is sound");
    assert_eq!(result, 7);
    let told =
        meter.per_run(vec![metered], || panic!("nothing is repeated"), || panic!("nothing is repeated"));
    let told = told.expect("nothing failed").expect("it was measured");
    assert_eq!((told.joules, told.counters.as_slice()), (1.0, &["steady".to_owned()][..]));
    let without = told.without.as_ref().expect("it says what is missing");
    assert!(without.starts_with("no energy counters of the processor"), "{without}");
    let (of_alone, together) = figures(&[(2.0, Ok(told.clone()))], (1.5, &Ok(told.clone())));
    assert_eq!((&of_alone[0].without, &together.without), (&told.without, &told.without));
    assert_eq!(together.energy_over_fastest, Some(1.0));
}
