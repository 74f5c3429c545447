use super::*;
use crate::cli::{Arguments, Command};
use clap::Parser;
use dml::core::{AcquireError, RawBuffer};
use dml::scheduler::Kernel;
use dml_workloads::check::Mismatch;
use dml_workloads::prepare::{Language, Plain, VerifyError};
use std::sync::atomic::{AtomicU32, Ordering};

/// A workload whose checks are counted, one of which fails.
#[derive(Debug)]
struct Counted {
    inner: Box<dyn Prepared>,
    resets: AtomicU32,
    checks: AtomicU32,
    wrong_check: u32,
}

impl Prepared for Counted {
    fn workload(&self) -> Workload {
        self.inner.workload()
    }

    fn items(&self) -> u64 {
        self.inner.items()
    }

    fn kernel(&self) -> &Kernel {
        self.inner.kernel()
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        self.inner.inputs()
    }

    fn outputs(&self) -> Vec<&RawBuffer> {
        self.inner.outputs()
    }

    fn reset(&self) -> Result<(), AcquireError> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.inner.reset()
    }

    fn verify(&self) -> Result<(), VerifyError> {
        if self.checks.fetch_add(1, Ordering::Relaxed) + 1 == self.wrong_check {
            return Err(VerifyError::NoPicture { workload: self.workload() });
        }
        self.inner.verify()
    }

    fn plain(&self, language: Language) -> Option<Plain> {
        self.inner.plain(language)
    }

    fn verify_plain(&self, outputs: &[&[u8]]) -> Result<(), Mismatch> {
        self.inner.verify_plain(outputs)
    }
}

/// Calls `act` with a benchmark of vecadd on the processor, whose checks are counted.
fn with_bench<R>(wrong_check: u32, more: &[&str], act: impl FnOnce(&Bench<'_>, &Counted) -> R) -> R {
    let arguments = ["dml", "bench", "vecadd", "--size", "100", "--runs", "3"];
    let arguments = Arguments::parse_from(arguments.iter().chain(more));
    let Command::Bench(options) = arguments.command else { unreachable!() };
    let only = DiscoverOptions::default().only(["cpu"]).limit("cpu", 1);
    let platform = Platform::builder().discover_with(&only).expect("a processor").build().expect("sound");
    let devices = [platform.device("cpu").expect("a processor")];
    let link_prices = json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: Vec::new() };
    let workload = Workload::Vecadd;
    let inner = prepare(&options, &platform, &devices, workload).expect("a small problem");
    let (resets, checks) = (AtomicU32::new(0), AtomicU32::new(0));
    let prepared = Counted { inner, resets, checks, wrong_check };
    let bench = Bench {
        options: &options,
        platform: &platform,
        devices: &devices,
        link_prices: &link_prices,
        knowledge: &Knowledge::new(),
        sources: EnergySources::default().powercap("/no/such/folder"),
        workload,
        prepared: &prepared,
    };
    act(&bench, &prepared)
}

/// What a benchmark says, how often it began and how often it was checked.
fn measured(wrong_check: u32) -> (Result<json::Bench, String>, u32, u32) {
    with_bench(wrong_check, &[], |bench, prepared| {
        let result = bench.measure().map_err(|failure| failure.to_string());
        let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        (result, count(&prepared.resets), count(&prepared.checks))
    })
}

/// What is told of a single run is told of the median one, and what is told of transfers under compute of the recorded one.
#[test]
fn the_row_of_a_device_and_the_traffic_are_those_of_the_median_run() {
    with_bench(0, &[], |bench, _| {
        let meter = Meter::new(bench.platform, bench.devices, &bench.sources);
        let unmetered = meter.one(|| Ok(())).expect("nothing fails").1;
        let unmetered = unmetered.expect_err("there is no such folder");
        let report = bench.run_once(&bench.coexecutor(bench.devices, &[1.0], PolicySpec::Static), &meter);
        let report = report.expect("nothing is wrong").report;
        let run = |seconds: f64, number: u64| {
            let mut report = report.clone();
            report.devices[0].busy = Duration::from_secs(number);
            report.devices[0].end = Duration::from_secs(10 * number);
            (report.devices[0].packages, report.devices[0].items) = (100 * number, 1000 * number);
            let (from, to) = ("ram".to_owned(), "gpu".to_owned());
            let transfer = json::BenchTransfer { from, to, bytes: number, copies: 7, seconds: 0.5 };
            let operations = [("map", number)].into();
            let (energy, events) = (Err(unmetered.clone()), Vec::new());
            Run { seconds, energy, report, events, operations, transfers: vec![transfer] }
        };
        let runs = vec![run(4.0, 1), run(1.0, 2), run(2.0, 3), run(8.0, 4), run(1.5, 5)];
        let timed = Timed { runs, energy: Err(unmetered.clone()) };
        let energy = vec![Err(unmetered.clone())];
        let alone = Alone { seconds: vec![3.0], native_s: BTreeMap::new(), energy };
        let mut overlap = Overlap::default();
        (overlap.transfer, overlap.under_compute) = (Duration::from_secs(8), Duration::from_secs(2));
        let result = bench.result(alone, &[0.75], &Together { timed, overlap });
        assert_eq!((result.coexec_s, result.coexec_min_s, result.coexec_max_s), (2.0, 1.0, 8.0));
        let row = &result.devices[0];
        assert_eq!((row.alone_s, row.power, row.busy_s, row.end_s), (3.0, 0.75, 3.0, 30.0));
        assert_eq!((row.packages, row.items), (300, 3000));
        assert_eq!((result.transfers[0].bytes, result.operations["map"]), (3, 3));
        let json::UnderCompute { transfer_s, under_compute_s, part } = result.under_compute;
        assert_eq!((transfer_s, under_compute_s, part), (8.0, 2.0, Some(0.25)));
    });
}

/// The hand-written program has as many units as the device, whose last limit counts.
#[test]
fn the_last_limit_of_a_device_is_that_of_the_hand_written_program() {
    let limits = ["--limit", "cpu=4", "--limit", "opencl:0=3", "--limit", "cpu=1"];
    with_bench(0, &limits, |bench, _| {
        assert_eq!(bench.unit_limit("cpu").expect("a device"), Some(1));
    });
}

#[test]
fn every_configuration_is_checked_and_one_run_of_each_does_not_count() {
    let (result, resets, checks) = measured(0);
    let result = result.expect("nothing is wrong");
    assert_eq!((result.runs, result.verified), (3, true));
    assert_eq!(
        (resets, checks),
        (2 * (3 + 1) + 1, 2),
        "cpu alone, and all together, of which one more is recorded"
    );
    assert_eq!(result.under_compute.part, None, "one memory");
    let row = &result.devices[0];
    assert_eq!((&*row.name, &*row.arena, row.units, row.items, row.power), ("cpu", "main_mem", 1, 100, 1.0));
    assert!(row.busy_s <= row.end_s && row.end_s <= result.coexec_s, "{row:?}");
    assert!(row.packages < row.items, "{row:?}");
}

#[test]
fn a_wrong_result_of_any_configuration_is_told() {
    let (alone, ..) = measured(1);
    assert!(alone.is_err_and(|error| error.contains("the result of cpu is wrong")));
    let (together, ..) = measured(2);
    assert!(together.is_err_and(|error| error.contains("the result of all devices together is wrong")));
}

/// Every figure of the text stands where its name is. No two figures of the result are equal.
#[test]
fn the_text_shows_each_figure_under_its_name() {
    let energy = |by: f64| json::Energy {
        energy_j: Some(21.0 + by),
        edp_js: Some(31.0 + by),
        energy_over_fastest: Some(0.5 + by),
        edp_over_fastest: Some(0.625 + by),
        counters: vec!["package-0".to_owned()],
        missing: None,
        without: None,
    };
    let device = |name: &str, by: u64| json::BenchDevice {
        name: name.to_owned(),
        arena: "a memory".to_owned(),
        units: 2 + by as u32,
        alone_s: 3.0 + by as f64,
        power: 0.25 + by as f64,
        busy_s: 5.0 + by as f64,
        end_s: 7.0 + by as f64,
        packages: 11 + by,
        items: 13 + by,
        alone_energy: energy(by as f64),
    };
    let transfer = |from: &str, to: &str, bytes, copies, seconds| json::BenchTransfer {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes,
        copies,
        seconds,
    };
    let result = json::Bench {
        workload: "saxpy".to_owned(),
        size: [("items", 137)].into(),
        policy: "static".to_owned(),
        memory: "bound",
        pinned_bytes: None,
        runs: 17,
        verified: true,
        devices: vec![device("cpu", 0), device("opencl:0", 100)],
        coexec_s: 2.5,
        coexec_min_s: 2.125,
        coexec_max_s: 2.75,
        speedup: 1.2,
        s_max: 1.6,
        efficiency: 0.75,
        balance: 0.875,
        native_s: [("opencl:0".to_owned(), 51.5)].into(),
        transfers: vec![transfer("ram", "gpu", 100, 3, 0.5), transfer("gpu", "ram", 200, 4, 0.25)],
        under_compute: json::UnderCompute { transfer_s: 8.0, under_compute_s: 3.0, part: Some(0.375) },
        link_prices: json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: Vec::new() },
        operations: [("map", 6), ("unmap", 8), ("fill", 0)].into(),
        failures: vec!["cpu: it is tired".to_owned()],
        energy_j: Some(28.0),
        energy: energy(7.0),
        picture: Some("saxpy.png".to_owned()),
        trace: None,
        html: None,
        decisions: Some("a.decisions".to_owned()),
    };
    let text = text(&result, Some("a note"), &[]);
    let shown: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "saxpy: 137 items; policy static; memory bound; median of 17 runs",
        "a note",
        "",
        "device units alone power packages items busy end",
        "cpu 2 3.000 s 0.250 11 13 5.000 s 7.000 s",
        "opencl:0 102 103.0 s 100.250 111 113 105.0 s 107.0 s",
        "",
        "together 2.500 s (2.125 s to 2.750 s)",
        "speedup 1.200 of 1.600: efficiency 0.750, balance 0.875",
        "by hand 51.500 s on opencl:0: dml takes 2.000 of it",
        "energy together 28.000 J, EDP 38.000 J s; of the fastest device alone 7.500, EDP 7.625",
        "energy cpu alone 21.000 J, EDP 31.000 J s; of the fastest device alone 0.500, EDP 0.625",
        "energy opencl:0 alone 121.0 J, EDP 131.0 J s; of the fastest device alone 100.500, EDP 100.625",
        "transfers ram -> gpu: 100 B in 3 copies, 500.00 ms",
        "transfers gpu -> ram: 200 B in 4 copies, 250.00 ms",
        "overlap 0.375 of 8.000 s with transfers lies under compute",
        "operations 6 map, 8 unmap",
        "failed cpu: it is tired; others finished its work",
        "verified every item, each device alone and all together",
        "picture saxpy.png",
        "decisions a.decisions, for dml replay",
        "",
    ];
    assert_eq!(shown, expected);
}
