//! Energy, on counters that are made up: a tree of files as powercap has it, counters in memory, and a
//! library with NVML's names.

#![cfg(not(dml_loom))]

#[cfg(target_os = "linux")]
#[path = "../../dml-arenas/tests/common/forks.rs"]
mod forks;

use dml_core::internal::sync::Mutex;
use dml_core::{DeviceDesc, DeviceId, DeviceKind, Platform};
use dml_energy::{
    EnergyCounter, EnergyError, EnergyMeter, EnergySources, FEWEST_STEPS, GpuCounters, Metering,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
/// Two devices that are one GPU, by two frameworks.
const GPU: DeviceId = DeviceId(1);
const SAME_GPU: DeviceId = DeviceId(2);
/// A GPU that does not say where it is.
const SHY_GPU: DeviceId = DeviceId(3);
/// Another GPU.
const OTHER_GPU: DeviceId = DeviceId(4);
/// Cores of the processor by another framework.
const CORES: DeviceId = DeviceId(5);

fn platform() -> Platform {
    let mut builder = Platform::builder();
    let gpu = |name, place: &str| {
        let desc = DeviceDesc::new(name, DeviceKind::Gpu);
        if place.is_empty() { desc } else { desc.with_hardware(format!("pci {place}")) }
    };
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(gpu("cuda:0", "0000:1a:00.0"));
    builder.add_device(gpu("opencl:0", "0000:1a:00.0"));
    builder.add_device(gpu("opencl:1", ""));
    builder.add_device(gpu("cuda:1", "0000:1b:00.0"));
    builder.add_device(DeviceDesc::new("opencl:2", DeviceKind::Cpu));
    builder.build().expect("devices alone are a platform")
}

/// A tree of powercap that a test writes.
struct Tree(PathBuf);

impl Tree {
    fn new(test: &str) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("powercap-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn zone(&self, zone: &str, name: &str, energy_uj: u64) -> &Self {
        std::fs::create_dir_all(self.0.join(zone)).unwrap();
        self.write(zone, "name", name).write(zone, "max_energy_range_uj", "10000000").set(zone, energy_uj)
    }

    fn set(&self, zone: &str, energy_uj: u64) -> &Self {
        self.write(zone, "energy_uj", &energy_uj.to_string())
    }

    fn write(&self, zone: &str, file: &str, text: &str) -> &Self {
        std::fs::write(self.0.join(zone).join(file), format!("{text}\n")).unwrap();
        self
    }

    fn remove(&self, zone: &str) -> &Self {
        std::fs::remove_dir_all(self.0.join(zone)).unwrap();
        self
    }

    /// Two packages, of which one has a counter of its memory, and what else a machine shows there.
    fn machine(test: &str) -> Self {
        let tree = Self::new(test);
        tree.zone("intel-rapl:0", "package-0", 1_000_000).zone("intel-rapl:1", "package-1", 9_000_000);
        tree.zone("intel-rapl:0:0", "core", 5).zone("intel-rapl:0:1", "dram", 2_000_000);
        tree.zone("intel-rapl:2", "psys", 77).zone("intel-rapl-mmio:0", "package-0", 1_000_000);
        std::fs::create_dir_all(tree.0.join("intel-rapl")).unwrap();
        tree
    }

    fn sources(&self) -> EnergySources {
        EnergySources::default().powercap(&self.0).gpus(Gpus::none())
    }

    fn meter(&self) -> EnergyMeter {
        EnergyMeter::new(&platform(), [CPU, CORES], &self.sources()).unwrap()
    }
}

/// Counters of GPUs in memory, by their hardware.
#[derive(Debug, Default)]
struct Gpus(Mutex<BTreeMap<String, Arc<MadeUp>>>);

impl Gpus {
    fn none() -> Arc<Self> {
        Arc::default()
    }

    fn one(counter: &Arc<MadeUp>) -> Arc<Self> {
        let gpus = Self::default();
        gpus.0.lock().insert("pci 0000:1a:00.0".to_owned(), counter.clone());
        Arc::new(gpus)
    }
}

impl GpuCounters for Gpus {
    fn counter(&self, hardware: &str) -> Result<Arc<dyn EnergyCounter>, String> {
        let found = self.0.lock().get(hardware).cloned();
        found.map(|found| found as Arc<dyn EnergyCounter>).ok_or_else(|| format!("{hardware} is made up"))
    }
}

/// A counter that says what a test has written, or panics where there is nothing.
#[derive(Debug)]
struct MadeUp {
    said: Mutex<Option<Result<u64, String>>>,
    range_uj: Option<u64>,
    step: Duration,
}

impl MadeUp {
    fn new(said_uj: u64) -> Self {
        Self { said: Mutex::new(Some(Ok(said_uj))), range_uj: None, step: Duration::ZERO }
    }

    fn says(&self, said: Option<Result<u64, String>>) {
        *self.said.lock() = said;
    }
}

impl EnergyCounter for MadeUp {
    fn name(&self) -> String {
        "made up".to_owned()
    }

    fn read_uj(&self) -> Result<u64, String> {
        let said = self.said.lock().clone();
        said.expect("a stranger's counter")
    }

    fn range_uj(&self) -> Option<u64> {
        self.range_uj
    }

    fn step(&self) -> Duration {
        self.step
    }
}

/// Lets the time pass that the slowest counter needs.
fn wait(metering: &Metering<'_>) {
    while metering.elapsed() < metering.least() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a made-up GPU beside a machine's packages makes of two readings.
fn read_twice(counter: MadeUp, then: Option<Result<u64, String>>) -> Result<f64, EnergyError> {
    static TREES: AtomicU64 = AtomicU64::new(0);
    let number = TREES.fetch_add(1, Ordering::Relaxed);
    let (tree, counter) = (Tree::machine(&format!("twice-{number}")), Arc::new(counter));
    let meter = EnergyMeter::new(&platform(), [GPU], &tree.sources().gpus(Gpus::one(&counter))).unwrap();
    let metering = meter.start()?;
    wait(&metering);
    tree.set("intel-rapl:0", 1_000_001).set("intel-rapl:1", 9_000_001).set("intel-rapl:0:1", 2_000_001);
    counter.says(then);
    let energy = metering.finish()?;
    let gpu = energy.parts.iter().find(|(name, _)| name == "made up").expect("it was asked for");
    Ok(gpu.1)
}

#[test]
fn e1_what_all_counters_grew_by_is_the_energy() {
    let tree = Tree::machine("sum");
    let gpu = Arc::new(MadeUp::new(500));
    let sources = tree.sources().gpus(Gpus::one(&gpu));
    // One GPU by two frameworks, and the processor's cores by another one.
    let meter = EnergyMeter::new(&platform(), [CORES, GPU, CPU, SAME_GPU], &sources).unwrap();
    let metering = meter.start().unwrap();
    wait(&metering);
    tree.set("intel-rapl:0", 1_250_000).set("intel-rapl:1", 9_500_000).set("intel-rapl:0:1", 2_000_750);
    tree.set("intel-rapl:0:0", 6_000_000).set("intel-rapl:2", 7_000_000).set("intel-rapl-mmio:0", 8_000_000);
    gpu.says(Some(Ok(4_000_500)));
    let energy = metering.finish().unwrap();
    let named = |name: &str, joules| (name.to_owned(), joules);
    let parts = [("package-0", 0.25), ("dram of package-0", 0.00075), ("package-1", 0.5), ("made up", 4.0)];
    assert_eq!(energy.parts, parts.map(|(name, joules)| named(name, joules)));
    assert!((energy.joules - 4.75075).abs() < 1e-12, "{energy:?}");
    assert!(energy.elapsed >= Duration::from_millis(10), "{energy:?}");
}

/// The range of the made-up zones is ten joules.
#[test]
fn e2_a_counter_wraps_or_is_refused() {
    let tree = Tree::new("wrap");
    tree.zone("intel-rapl:0", "package-0", 9_000_000);
    let meter = tree.meter();
    let mut metering = meter.start().unwrap();
    tree.set("intel-rapl:0", 499_999);
    metering.sample().unwrap();
    tree.set("intel-rapl:0", 8_499_999);
    metering.sample().unwrap();
    wait(&metering);
    tree.set("intel-rapl:0", 99_998);
    let energy = metering.finish().unwrap();
    // Around twice: 1.5 J, 8 J and 1.6 J.
    assert!((energy.joules - 11.1).abs() < 1e-12, "{energy:?}");
    // A counter that never wraps, and one that said more than its range.
    let back = |counter: MadeUp, then_uj| read_twice(counter, Some(Ok(then_uj)));
    let went_back = |before_uj, after_uj| {
        Err(EnergyError::WentBack { counter: "made up".to_owned(), before_uj, after_uj })
    };
    assert_eq!(back(MadeUp::new(30), 20), went_back(30, 20));
    assert_eq!(back(MadeUp { range_uj: Some(29), ..MadeUp::new(30) }, 20), went_back(30, 20));
    assert_eq!(back(MadeUp { range_uj: Some(39), ..MadeUp::new(30) }, 20), Ok(30e-6));
}

#[test]
fn e3_counters_that_come_and_go_are_told() {
    let tree = Tree::machine("changes");
    let meter = tree.meter();
    let before = ["package-0", "dram of package-0", "package-1"].map(str::to_owned).to_vec();
    let metering = meter.start().unwrap();
    tree.zone("intel-rapl:3", "package-3", 1);
    let after = [&before[..], &["package-3".to_owned()]].concat();
    let told = metering.finish();
    assert_eq!(told, Err(EnergyError::Changed { before: before.clone(), after }));
    let metering = meter.start().unwrap();
    tree.remove("intel-rapl:3");
    let told = metering.finish();
    assert!(
        matches!(&told, Err(EnergyError::Unreadable { counter, reason })
            if counter == "package-3" && reason.contains("intel-rapl:3/energy_uj")),
        "{told:?}"
    );
    // It is gone, and the meter goes on with those that are left.
    let metering = meter.start().unwrap();
    wait(&metering);
    tree.set("intel-rapl:0", 1_000_001).set("intel-rapl:1", 9_000_001).set("intel-rapl:0:1", 2_000_001);
    assert_eq!(metering.finish().unwrap().parts.len(), 3);
}

#[test]
fn a_processor_without_counters_is_told_with_the_reason() {
    let nowhere = EnergySources::default().powercap("/no/such/folder").gpus(Gpus::none());
    let started = EnergyMeter::new(&platform(), [CPU], &nowhere).unwrap().start().map(drop);
    let told = started.unwrap_err().to_string();
    assert!(told.contains("/no/such/folder") && told.contains("no such file or folder"), "{told}");
    let tree = Tree::new("no_packages");
    tree.zone("intel-rapl:0", "psys", 1).zone("intel-rapl:0:0", "core", 1);
    let told = tree.meter().start().map(drop).unwrap_err().to_string();
    assert!(told.contains("no zone of a package"), "{told}");
    // Packages whose energy is not readable, or no number, are no smaller sum.
    let tree = Tree::machine("no_number");
    tree.write("intel-rapl:1", "energy_uj", "many");
    let told = tree.meter().start().map(drop).unwrap_err().to_string();
    assert!(told.contains("package-1") && told.contains("\"many\" is no number"), "{told}");
    std::fs::remove_file(tree.0.join("intel-rapl:1/energy_uj")).unwrap();
    std::fs::create_dir(tree.0.join("intel-rapl:1/energy_uj")).unwrap();
    let told = tree.meter().start().map(drop);
    assert!(
        matches!(&told, Err(EnergyError::Unreadable { counter, .. }) if counter == "package-1"),
        "{told:?}"
    );
    std::fs::remove_file(tree.0.join("intel-rapl:1/name")).unwrap();
    let told = tree.meter().start().map(drop).unwrap_err().to_string();
    assert!(told.contains("intel-rapl:1/name"), "{told}");
}

#[test]
fn a_device_without_a_counter_is_told_with_the_reason() {
    let tree = Tree::machine("no_counter");
    let meter = |device| EnergyMeter::new(&platform(), [CPU, device], &tree.sources());
    let told = meter(SHY_GPU).unwrap_err();
    let reason = "its PCI address is unknown".to_owned();
    assert_eq!(told, EnergyError::NoCounter { device: "opencl:1".to_owned(), reason });
    let told = meter(OTHER_GPU).unwrap().start().map(drop);
    let reason = "pci 0000:1b:00.0 is made up".to_owned();
    assert_eq!(told, Err(EnergyError::NoCounter { device: "cuda:1".to_owned(), reason }));
    assert_eq!(
        meter(DeviceId(9)).unwrap_err(),
        EnergyError::UnknownDevice { device: DeviceId(9), devices: 6 }
    );
}

#[test]
fn a_processor_that_is_left_out_is_not_asked() {
    let steady = Arc::new(MadeUp::new(5));
    let sources =
        EnergySources::default().powercap("/no/such/folder").gpus(Gpus::one(&steady)).without_processor();
    let meter = EnergyMeter::new(&platform(), [CPU, GPU], &sources).unwrap();
    let metering = meter.start().unwrap();
    wait(&metering);
    steady.says(Some(Ok(2_000_005)));
    let energy = metering.finish().unwrap();
    assert_eq!((energy.joules, energy.parts.len()), (2.0, 1));
    assert_eq!(EnergyMeter::new(&platform(), [CPU], &sources).unwrap_err(), EnergyError::Nothing);
    // A folder that is named later is asked again.
    let asked =
        EnergyMeter::new(&platform(), [CPU], &sources.powercap("/no/such/folder")).unwrap().start().map(drop);
    assert!(matches!(asked, Err(EnergyError::NoPackages { .. })), "{asked:?}");
}

#[test]
fn a_time_that_is_too_short_gives_no_figure() {
    let hour = Duration::from_secs(3600);
    let slow = Arc::new(MadeUp { step: hour, ..MadeUp::new(1) });
    let tree = Tree::machine("short");
    let meter = EnergyMeter::new(&platform(), [GPU], &tree.sources().gpus(Gpus::one(&slow))).unwrap();
    let metering = meter.start().unwrap();
    assert_eq!(metering.least(), hour * FEWEST_STEPS);
    wait(&tree.meter().start().unwrap());
    tree.set("intel-rapl:0", 1_000_001).set("intel-rapl:1", 9_000_001).set("intel-rapl:0:1", 2_000_001);
    slow.says(Some(Ok(2)));
    let told = metering.finish().unwrap_err();
    assert!(
        matches!(&told, EnergyError::TooShort { counter, least, .. }
            if counter == "made up" && *least == hour * FEWEST_STEPS),
        "{told:?}"
    );
    assert!(told.to_string().contains("measurement too short: it took"), "{told}");
}

/// Many short runs can be measured only if the counters step often enough; `check` fails if they do not.
#[test]
fn a_counter_has_to_be_seen_moving_often_enough() {
    let (tree, gpu) = (Tree::machine("moves"), Arc::new(MadeUp::new(1)));
    let meter = EnergyMeter::new(&platform(), [GPU], &tree.sources().gpus(Gpus::one(&gpu))).unwrap();
    let mut metering = meter.start().unwrap();
    wait(&metering);
    assert!(matches!(metering.check(), Err(EnergyError::Still { counter, .. }) if counter == "package-0"));
    for step in 1..=10 {
        tree.set("intel-rapl:0", 1_000_000 + step).set("intel-rapl:1", 9_000_000 + step);
        tree.set("intel-rapl:0:1", 2_000_000 + step);
        // The GPU's counter moves each other time.
        gpu.says(Some(Ok(1 + step / 2)));
        metering.sample().unwrap();
        metering.sample().unwrap();
        let told = metering.check();
        let expected = if step < 10 { "package-0" } else { "made up" };
        let moves = if step < 10 { step } else { 5 };
        assert!(
            matches!(&told, Err(EnergyError::Coarse { counter, moves: seen, .. })
                if counter == expected && u64::from(*seen) == moves),
            "{told:?} after {step}"
        );
    }
    for uj in 7..12 {
        gpu.says(Some(Ok(uj)));
        metering.sample().unwrap();
    }
    assert_eq!(metering.check(), Ok(()));
}

#[test]
fn a_counter_that_stands_still_gives_no_figure() {
    let told = read_twice(MadeUp::new(8), Some(Ok(8)));
    assert!(matches!(&told, Err(EnergyError::Still { counter, .. }) if counter == "made up"), "{told:?}");
}

/// Counters are code of others.
#[test]
fn a_counter_that_panics_or_fails_is_told() {
    for (then, reason) in [(None, "a stranger's counter"), (Some(Err("it is hot".to_owned())), "it is hot")] {
        let told = read_twice(MadeUp::new(8), then).unwrap_err();
        assert!(
            matches!(&told, EnergyError::Unreadable { counter, reason: why }
                if counter == "made up" && why.contains(reason)),
            "{told:?}"
        );
    }
}

#[cfg(target_os = "linux")]
mod nvml {
    use super::*;
    use dml_energy::Nvml;
    use std::process::Command;

    /// A library with NVML's names, built by the compiler that also links this test.
    fn library(name: &str, flags: &[&str]) -> PathBuf {
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.so", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/nvml.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]).args(flags);
        let built = compiler.arg(source).arg("-o").arg(&library).status().expect("the C compiler");
        assert!(built.success(), "the library does not build");
        library
    }

    fn opened(library: &Path) -> Nvml {
        // SAFETY: the library has the functions of nvml.c, which are of NVML's types (obligation 1).
        unsafe { Nvml::at(library) }
    }

    /// Why there is no counter.
    fn missing(library: &Path, hardware: &str) -> String {
        opened(library).counter(hardware).map(drop).expect_err("there is no such counter")
    }

    #[test]
    fn the_library_is_asked_for_the_gpu_at_its_place() {
        let library = library("nvml", &[]);
        let tree = Tree::machine("nvml");
        let nvml = Arc::new(opened(&library));
        let counter = nvml.counter("pci 0000:1a:00.0").unwrap();
        let read = || counter.read_uj().unwrap();
        // It says 250 mJ more with each reading, of which the first was for the check.
        assert_eq!((read(), read()), (5_000_250_000, 5_000_500_000));
        assert_eq!((counter.name().as_str(), counter.range_uj()), ("gpu 0000:1a:00.0", None));
        let meter = EnergyMeter::new(&platform(), [SAME_GPU], &tree.sources().gpus(nvml)).unwrap();
        let metering = meter.start().unwrap();
        wait(&metering);
        tree.set("intel-rapl:0", 1_000_001).set("intel-rapl:1", 9_000_001).set("intel-rapl:0:1", 2_000_001);
        let energy = metering.finish().unwrap();
        let gpu = energy.parts.last().unwrap();
        assert_eq!(gpu, &("gpu 0000:1a:00.0".to_owned(), 0.25));
        assert!(energy.elapsed >= Duration::from_secs(1), "a GPU's counter is slow: {energy:?}");
        std::fs::remove_file(library).unwrap();
    }

    #[test]
    fn a_missing_library_driver_gpu_or_counter_is_told() {
        let none = missing(Path::new("no-such-nvml.so"), "pci 0000:1a:00.0");
        assert!(none.starts_with("NVML (no-such-nvml.so): ") && none.contains("cannot open"), "{none}");
        let driverless = library("nvml-driverless", &["-DNO_DRIVER"]);
        let told = missing(&driverless, "pci 0000:1a:00.0");
        assert!(told.contains("driver is not loaded"), "{told}");
        let library = library("nvml-missing", &[]);
        let told = missing(&library, "pci 0000:1c:00.0");
        assert!(told.starts_with("NVML, GPU 0000:1c:00.0: "), "{told}");
        let told = missing(&library, "pci 0000:1b:00.0");
        assert!(told.starts_with("NVML, GPU 0000:1b:00.0: ") && told.contains("not available"), "{told}");
        let told = missing(&library, "slot 3");
        assert_eq!(told, "slot 3 is not a PCI address");
        for library in [driverless, library] {
            std::fs::remove_file(library).unwrap();
        }
    }

    #[test]
    fn a_library_without_the_functions_is_told() {
        let library = library("nvml-old", &["-DnvmlDeviceGetTotalEnergyConsumption=nvmlOld"]);
        let told = missing(&library, "pci 0000:1a:00.0");
        assert!(told.contains("nvmlDeviceGetTotalEnergyConsumption"), "{told}");
        std::fs::remove_file(library).unwrap();
    }

    #[test]
    fn the_library_is_shut_down_with_the_last_counter() {
        let path = library("nvml-shutdown", &[]);
        // SAFETY: the library is nvml.c, which does nothing when it is loaded.
        let same = unsafe { libloading::Library::new(&path) }.unwrap();
        let started = || {
            // SAFETY: a function of this type, without arguments.
            unsafe { same.get::<unsafe extern "C" fn() -> std::ffi::c_int>(b"stand_in_started\0").unwrap()() }
        };
        let nvml = opened(&path);
        let counter = nvml.counter("pci 0000:1a:00.0").unwrap();
        drop(nvml);
        assert_eq!(started(), 1);
        drop(counter);
        assert_eq!(started(), 0);
        std::fs::remove_file(path).unwrap();
    }

    /// The driver does not follow into a fork.
    #[test]
    fn a_fork_has_no_counters() {
        let library = library("nvml-fork", &[]);
        let nvml = opened(&library);
        let counter = nvml.counter("pci 0000:1a:00.0").unwrap();
        crate::forks::child(|| {
            assert!(counter.read_uj().unwrap_err().contains("a fork"));
            assert!(nvml.counter("pci 0000:1a:00.0").unwrap_err().contains("a fork"));
        })
        .ends_well();
        assert!(counter.read_uj().is_ok());
        std::fs::remove_file(library).unwrap();
    }
}
