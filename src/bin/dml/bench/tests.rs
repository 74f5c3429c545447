use super::*;
use crate::cli::{Arguments, Command};
use clap::Parser;
use dml::arenas::faulty::{CallKind, Fault};
use dml::arenas::kit::join_staged;
use dml::arenas::{Faulty, MainMem, Null, Script};
use dml::core::internal::state::Alloc;
use dml::core::{
    AcquireError, ArenaDesc, ArenaKind, DeviceDesc, DeviceKind, DeviceSet, Fence, LinkSpeed, RawBuffer,
};
use dml::scheduler::{Kernel, KernelError};
use dml_workloads::by_hand::{ByHandError, HostMemory, Program};
use dml_workloads::check::Mismatch;
use dml_workloads::prepare::VerifyError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A workload that counts its resets and checks, and fails one check.
#[derive(Debug)]
pub(crate) struct Counted {
    inner: Box<dyn Prepared>,
    resets: AtomicU32,
    checks: AtomicU32,
    wrong_check: u32,
}

impl Counted {
    pub(crate) fn new(inner: Box<dyn Prepared>, wrong_check: u32) -> Self {
        Self { inner, resets: AtomicU32::new(0), checks: AtomicU32::new(0), wrong_check }
    }

    /// Returns the number of runs that began.
    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Ordering::Relaxed)
    }
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

    fn by_hand(
        &self,
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
    ) -> Result<Option<Program>, ByHandError> {
        self.inner.by_hand(platform, device, memory)
    }

    fn verify_plain(&self, outputs: &[&[u8]]) -> Result<(), Mismatch> {
        self.inner.verify_plain(outputs)
    }
}

/// Calls `act` with a benchmark of vecadd on the processor that counts its checks.
fn with_bench<R>(wrong_check: u32, more: &[&str], act: impl FnOnce(&Bench<'_>, &Counted) -> R) -> R {
    let arguments = ["dml", "bench", "vecadd", "--size", "100", "--runs", "3"];
    let arguments = Arguments::parse_from(arguments.iter().chain(more));
    let Command::Bench(command) = arguments.command else { unreachable!() };
    let BenchCommand { options, files, .. } = *command;
    let only = DiscoverOptions::default().only(["cpu"]).limit("cpu", 1);
    let platform = Platform::builder().discover_with(&only).expect("a processor").build().expect("sound");
    let devices = [platform.device("cpu").expect("a processor")];
    let link_prices = json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: Vec::new() };
    let workload = Workload::Vecadd;
    let inner = prepare(&options, &files, &platform, &devices, workload).expect("a small problem");
    let prepared = Counted::new(inner, wrong_check);
    let bench = Bench {
        options: &options,
        files: &files,
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

/// Returns the result of a benchmark, its number of runs and its number of checks.
fn measured(wrong_check: u32) -> (Result<json::Bench, String>, u32, u32) {
    with_bench(wrong_check, &[], |bench, prepared| {
        let result = bench.measure().map(|measured| measured.result).map_err(|failure| failure.to_string());
        (result, prepared.resets(), prepared.checks.load(Ordering::Relaxed))
    })
}

/// Figures of a single run are those of the median run. The overlap is that of the recorded run.
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
        let alone = Alone { seconds: vec![3.0], by_hand_s: BTreeMap::new(), energy };
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

#[test]
fn the_hand_written_program_is_made_where_it_is_asked_for() {
    with_bench(0, &["--by-hand"], |bench, _| {
        let cpu = bench.by_hand(bench.devices[0]);
        assert!(cpu.is_ok_and(|by_hand| by_hand.is_none()), "it has none");
        // Runs of the hand-written program are not counted as steps.
        assert!(bench.measure().is_ok_and(|measured| measured.result.by_hand_s.is_empty()));
    });
}

#[test]
fn the_last_power_of_a_device_replaces_the_measured_one() {
    let powers = |more: &[&str]| {
        with_two(more, |bench, _| {
            let energy = Vec::new();
            bench.powers(&Alone { seconds: vec![4.0, 2.0], by_hand_s: BTreeMap::new(), energy })
        })
    };
    assert_eq!(powers(&[]), [0.5, 1.0]);
    assert_eq!(powers(&["--powers", "cpu=3", "--powers", "cpu=7"]), [7.0, 1.0]);
    assert_eq!(powers(&["--powers", "card=3", "--powers", "other=7"]), [0.5, 7.0]);
}

/// The calibrated policy receives powers only if the user gives them. Other policies always receive them.
#[test]
fn the_calibrated_policy_finds_out_powers_that_nobody_gave() {
    let is_given = |more: &[&str], policy| {
        with_bench(0, more, |bench, _| {
            let coexecutor = bench.coexecutor(bench.devices, &[7.25], policy);
            format!("{coexecutor:?}").contains("[7.25]")
        })
    };
    assert!(!is_given(&[], PolicySpec::Calibrated));
    assert!(is_given(&["--powers", "cpu=2"], PolicySpec::Calibrated));
    assert!(is_given(&[], PolicySpec::Static) && is_given(&["--powers", "cpu=2"], PolicySpec::Static));
}

/// Runs of a device alone leave knowledge for the runs together.
#[test]
fn the_calibrated_policy_learns_from_each_device_alone_and_no_other_does() {
    let learned = |policy: &str| {
        with_bench(0, &["--policy", policy], |bench, _| {
            bench.time_alone(&mut bench.progress()).map(drop).expect("nothing is wrong");
            bench.knowledge.kernels().len()
        })
    };
    assert_eq!((learned("calibrated"), learned("static"), learned("dynamic:7")), (1, 0, 0));
}

/// A workload that computes nothing, on two processors of which the second may fail.
#[derive(Debug)]
struct Empty {
    kernel: Kernel,
    resets: AtomicU32,
}

impl Prepared for Empty {
    fn workload(&self) -> Workload {
        Workload::Vecadd
    }

    fn items(&self) -> u64 {
        100
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<&RawBuffer> {
        Vec::new()
    }

    fn reset(&self) -> Result<(), AcquireError> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn verify(&self) -> Result<(), VerifyError> {
        Ok(())
    }

    fn by_hand(&self, _: &Platform, _: DeviceId, _: HostMemory) -> Result<Option<Program>, ByHandError> {
        Ok(None)
    }

    fn verify_plain(&self, _: &[&[u8]]) -> Result<(), Mismatch> {
        Ok(())
    }
}

/// Calls `act` with a benchmark of an empty workload on two processors, beside a card without a memory.
fn with_two<R>(more: &[&str], act: impl FnOnce(&Bench<'_>, &Empty) -> R) -> R {
    with_two_of_which(false, more, act)
}

fn with_two_of_which<R>(second_fails: bool, more: &[&str], act: impl FnOnce(&Bench<'_>, &Empty) -> R) -> R {
    let arguments = ["dml", "bench", "vecadd", "--runs", "3"];
    let arguments = Arguments::parse_from(arguments.iter().chain(more));
    let Command::Bench(command) = arguments.command else { unreachable!() };
    let BenchCommand { options, files, .. } = *command;
    let mut builder = Platform::builder();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let other = builder.add_device(DeviceDesc::new("other", DeviceKind::Cpu).with_compute_units(3));
    builder.add_device(DeviceDesc::new("card", DeviceKind::Gpu).with_compute_units(5));
    for (name, device) in [("main", cpu), ("far", other)] {
        let memory = ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(DeviceSet::of(cpu));
        builder.add_arena(Arc::new(Null::backed(memory)));
    }
    let platform = builder.build().expect("sound");
    let nothing = move |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> { Ok(Fence::done(0)) };
    let fails = move |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> {
        if second_fails { Err("it is tired".into()) } else { Ok(Fence::done(0)) }
    };
    let kernel = Kernel::new("nothing", 1).variant(cpu, nothing).variant(other, fails);
    let prepared = Empty { kernel, resets: AtomicU32::new(0) };
    let link_prices = json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: Vec::new() };
    let bench = Bench {
        options: &options,
        files: &files,
        platform: &platform,
        devices: &[cpu, other],
        link_prices: &link_prices,
        knowledge: &Knowledge::new(),
        sources: EnergySources::default().powercap("/no/such/folder"),
        workload: Workload::Vecadd,
        prepared: &prepared,
    };
    act(&bench, &prepared)
}

/// One device fails its second allocation, and another one every allocation.
#[test]
fn devices_without_room_are_left_out_and_hold_nothing() {
    let mut builder = Platform::builder();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let main = builder.add_arena(Arc::new(MainMem::new(cpu)));
    let full = [("half", 2), ("full", 1), ("roomy", 1000)].map(|(name, first)| {
        let device = builder.add_device(DeviceDesc::new(name, DeviceKind::Gpu));
        let memory = Null::backed(ArenaDesc::new(name, ArenaKind("test"), device));
        let script = Script::new().from_kind(CallKind::Alloc, first, Fault::fail());
        let arena = builder.add_arena(Arc::new(Faulty::new(memory, script)));
        join_staged(&mut builder, main, arena, LinkSpeed::default());
        device
    });
    let platform = builder.build().expect("sound");
    let prepared = Workload::Vecadd.prepare(&platform, &[cpu], &Input::Size(100)).expect("a small problem");
    let [half, empty, roomy] = full;
    let held = holding(&*prepared, &platform, &[half, cpu, empty, roomy]).expect("two can");
    assert_eq!(held, [cpu, roomy]);
    let holders = |device| {
        let home = platform.home(device).expect("it has one");
        let buffers = prepared.inputs().into_iter().chain(prepared.outputs());
        buffers.filter(|buffer| buffer.snapshot().arena(home).alloc != Alloc::Unallocated).count()
    };
    // The devices that were left out hold no buffers.
    assert_eq!([half, empty, roomy].map(holders), [0, 0, 0]);
    let none = holding(&*prepared, &platform, &[half, empty]).expect_err("neither can");
    let Failure::Work(told) = none else { panic!("{none}") };
    assert!(told.contains("vecadd") && told.contains("half: ") && told.contains("full: "), "{told}");
}

/// Each device alone and both together run seven times, and one more run is recorded.
#[test]
fn several_devices_learn_together_under_the_calibrated_policy_alone() {
    let began = |policy: &str| {
        with_two(&["--policy", policy], |bench, prepared| {
            bench.measure().map(drop).expect("nothing is wrong");
            prepared.resets.load(Ordering::Relaxed)
        })
    };
    assert_eq!((began("static"), began("hguided")), (3 * 7 + 1, 3 * 7 + 1));
    assert_eq!(began("calibrated"), 3 * 7 + 1 + LEARNING_RUNS);
    let (alone, resets, _) = measured(0);
    assert!(alone.is_ok_and(|result| result.policy == "calibrated"));
    assert_eq!(resets, 2 * 7 + 1, "one device has nobody to learn to share with");
}

/// A device that fails in a counted run is reported with its reason, once for each run.
#[test]
fn a_device_that_gives_up_is_told_of_every_run() {
    with_two_of_which(true, &["--policy", "static"], |bench, _| {
        // The second device cannot be measured alone.
        assert!(bench.measure().is_err());
        let coexecutor = bench.coexecutor(bench.devices, &[1.0, 1.0], PolicySpec::Static);
        let mut together = [bench.turn(coexecutor, None)];
        let mut progress = Progress::new(3);
        for _ in 0..3 {
            bench.round(&mut together, Counts::Yes, &mut progress).expect("the first one goes on");
        }
        let [together] = together;
        let (timed, _) = bench.timed(together).expect("it has run");
        let told = bench.failures(&timed);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told.iter().all(|one| one.starts_with("other: ") && one.contains("it is tired")), "{told:?}");
    });
    with_two(&["--policy", "static"], |bench, _| {
        let measured = bench.measure().expect("nothing is wrong");
        assert_eq!(measured.result.failures, [""; 0]);
    });
}

/// A device without a memory has no kernel. If the options name it, creating the kernel reports that.
#[test]
fn devices_without_a_kernel_are_left_out_unless_they_are_named() {
    let able = |more: &[&str]| {
        with_two(more, |bench, _| {
            let all = [0, 1, 2].map(DeviceId);
            able(&bench.options.machine, bench.platform, &all, Workload::Vecadd)
        })
    };
    assert_eq!(able(&[]), [0, 1].map(DeviceId));
    assert_eq!(able(&["--devices", "cpu,card"]), [0, 1, 2].map(DeviceId));
}

#[test]
fn what_links_are_priced_by_is_said_where_there_are_links() {
    let with = |pinned_bytes, measured, guessed, measured_unix_s| {
        let notes = vec!["a note".to_owned()];
        text::link_prices(&json::LinkPrices { measured, guessed, measured_unix_s, notes }, pinned_bytes)
    };
    let told = |measured, guessed, measured_unix_s| with(None, measured, guessed, measured_unix_s);
    assert_eq!(told(0, 0, None), ["link prices: a note"]);
    let guesses = "link prices: guesses; dml devices measures the links";
    assert_eq!(told(0, 2, None), ["link prices: a note", guesses]);
    let measured = "link prices: 2 of 7 measured, 1970-01-02 00:00 UTC";
    assert_eq!(told(2, 5, Some(86_400)), ["link prices: a note", measured]);
    let pinned = |measured, guessed, unix_s| with(Some(9), measured, guessed, unix_s).pop();
    let guesses = "link prices: guesses; dml devices --pinned BYTES measures the links";
    assert_eq!(pinned(0, 2, None).as_deref(), Some(guesses));
    let others = format!("{measured}; dml devices --pinned BYTES measures the others");
    assert_eq!(pinned(2, 5, Some(86_400)), Some(others));
    assert_eq!(
        pinned(7, 0, Some(86_400)).as_deref(),
        Some("link prices: 7 of 7 measured, 1970-01-02 00:00 UTC")
    );
}

#[test]
fn every_configuration_is_checked_and_one_run_of_each_does_not_count() {
    let (result, resets, checks) = measured(0);
    let result = result.expect("nothing is wrong");
    assert_eq!((result.runs, result.verified), (3, true));
    assert_eq!(
        (resets, checks),
        (2 * (1 + 2 * 3) + 1, 2),
        "cpu alone, and all together, of which one more is recorded; each that counts follows another one"
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

/// No two figures of the result are equal.
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
        by_hand_s: [("opencl:0".to_owned(), 51.5)].into(),
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
    let text = text::result(&result, Some("a note"), &[]) + &text::written(&result);
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
        "by hand 51.500 s on opencl:0: dml takes 2.000 times as long",
        "energy together 28.000 J, EDP 38.000 J s; of the fastest device alone 7.500, EDP 7.625",
        "energy cpu alone 21.000 J, EDP 31.000 J s; of the fastest device alone 0.500, EDP 0.625",
        "energy opencl:0 alone 121.0 J, EDP 131.0 J s; of the fastest device alone 100.500, EDP 100.625",
        "transfers ram -> gpu: 100 B in 3 copies, 500.00 ms",
        "transfers gpu -> ram: 200 B in 4 copies, 250.00 ms",
        "overlap 0.375 of 8.000 s of transfers hidden under compute",
        "operations 6 map, 8 unmap",
        "failed cpu: it is tired; others finished its work",
        "verified every item, each device alone and all together",
        "picture saxpy.png",
        "decisions a.decisions, for dml replay",
        "",
    ];
    assert_eq!(shown, expected);
}
