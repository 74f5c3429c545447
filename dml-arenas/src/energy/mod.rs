//! The energy that a stretch of time took, read from the counters of the machine.
//!
//! ```text
//!  powercap   packages of the processor, their memory ──┐
//!                                                       ├─▶ EnergyMeter ──start──▶ Metering ──finish──▶ Energy
//!  GpuCounters   each GPU among the devices (NVML) ─────┘      why not, as an EnergyError ◀──┴────────────┘
//! ```
//! | file | what is in it |
//! |---|---|
//! | this one | the meter, and what it is told |
//! | `powercap.rs` | RAPL counters, as files of Linux |
//! | `nvml.rs` | the counters of NVIDIA's GPUs, by a library that is opened at run time |
//!
//! # What a figure includes
//! Every package of the processor, with the memory behind it where that has a counter of its own, unless the processor is left out. And
//! each GPU among the devices that the meter was made for. The whole machine draws from these: idle cores and other programs count too. What has no counter
//! (boards, disks, fans, the losses of the power supply) does not.
//!
//! # What holds here
//! 1. A figure is whole or it is not there: with one counter missing, there is an error that names the counter and the reason.
//! 2. A counter that wraps is followed around, if it is read at least once each time ([`Metering::sample`]).
//! 3. A time in which a counter cannot have moved often enough is an error, and no figure.

mod nvml;
mod powercap;

pub use nvml::Nvml;

use dml_core::{DeviceId, DeviceKind, Platform, foreign};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How many steps of each counter a measurement has to last. An end may lie anywhere within a step, so that the figure is off by a
/// fifth at most.
pub const FEWEST_STEPS: u32 = 10;

/// A counter of energy, which only grows until it wraps.
///
/// What an implementation has to keep:
/// - **E-1** The counter grows by the energy that was taken, in microjoules: `e1_what_all_counters_grew_by_is_the_energy`.
/// - **E-2** It goes back in one case alone: past its range it begins at 0 again: `e2_a_counter_wraps_or_is_refused`.
/// - **E-3** Its name is the same each time, and no other counter's: `e3_counters_that_come_and_go_are_told`.
pub trait EnergyCounter: fmt::Debug + Send + Sync {
    /// Returns the name, for people.
    fn name(&self) -> String;

    /// Returns the value in microjoules.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read_uj(&self) -> Result<u64, String>;

    /// Returns the greatest value in microjoules, after which 0 follows. `None` for a counter that never wraps.
    fn range_uj(&self) -> Option<u64>;

    /// Returns the longest time in which the counter of a device that draws power may stand still.
    fn step(&self) -> Duration;
}

/// What finds the energy counters of devices other than the processor.
pub trait GpuCounters: fmt::Debug + Send + Sync {
    /// Returns the counter of a piece of hardware, as [`DeviceDesc::hardware`](dml_core::DeviceDesc::hardware) names it.
    ///
    /// # Errors
    /// Why there is none.
    fn counter(&self, hardware: &str) -> Result<Arc<dyn EnergyCounter>, String>;
}

/// Where counters are looked for.
#[derive(Clone, Debug)]
pub struct EnergySources {
    /// `None` to leave the processor out.
    powercap: Option<PathBuf>,
    gpus: Arc<dyn GpuCounters>,
}

impl Default for EnergySources {
    /// The counters of this machine: `/sys/class/powercap`, and NVML.
    fn default() -> Self {
        Self { powercap: Some(PathBuf::from("/sys/class/powercap")), gpus: Arc::new(Nvml::new()) }
    }
}

impl EnergySources {
    /// Looks for the packages of the processor in another folder. Its layout is that of `/sys/class/powercap`.
    #[must_use]
    pub fn powercap(mut self, folder: impl Into<PathBuf>) -> Self {
        self.powercap = Some(folder.into());
        self
    }

    /// Leaves the processor out: a virtual machine is not told what its processor draws. Figures are then of the GPUs among the devices
    /// alone, and whoever shows them says so. A meter without any GPU is refused.
    #[must_use]
    pub fn without_processor(mut self) -> Self {
        self.powercap = None;
        self
    }

    /// Has something else find the counters of GPUs.
    #[must_use]
    pub fn gpus(mut self, gpus: Arc<dyn GpuCounters>) -> Self {
        self.gpus = gpus;
        self
    }
}

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnergyError {
    /// The processor has no energy counters.
    #[error("no energy counters of the processor: {}: {reason}", folder.display())]
    NoPackages {
        /// The folder in which they were looked for.
        folder: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The processor is left out, and there is no GPU among the devices: nothing would be measured.
    #[error("nothing to measure: the processor is left out, and no GPU is among the devices")]
    Nothing,
    /// A device has no energy counter.
    #[error("no energy counter for device {device}: {reason}")]
    NoCounter {
        /// The device's name.
        device: String,
        /// Why not.
        reason: String,
    },
    /// A counter cannot be read.
    #[error("energy counter {counter} cannot be read: {reason}")]
    Unreadable {
        /// The counter's name.
        counter: String,
        /// What the system says.
        reason: String,
    },
    /// A counter went back, and not by wrapping.
    #[error(
        "energy counter {counter} went back from {before_uj} uJ to {after_uj} uJ, and it does not wrap so"
    )]
    WentBack {
        /// The counter's name.
        counter: String,
        /// What it said before.
        before_uj: u64,
        /// What it said later.
        after_uj: u64,
    },
    /// Counters came or went while energy was measured.
    #[error("the energy counters changed on the way: at first {}, in the end {}", before.join(", "), after.join(", "))]
    Changed {
        /// The names of the counters at the start.
        before: Vec<String>,
        /// The names of the counters at the end.
        after: Vec<String>,
    },
    /// The time is too short for a counter.
    #[error(
        "{elapsed:?} are too short: energy counter {counter} needs {least:?}, which are {FEWEST_STEPS} of its steps"
    )]
    TooShort {
        /// The counter's name.
        counter: String,
        /// The time that was measured.
        elapsed: Duration,
        /// The least time for this counter.
        least: Duration,
    },
    /// A counter stood still for longer than it may.
    #[error("energy counter {counter} did not move in {elapsed:?}")]
    Still {
        /// The counter's name.
        counter: String,
        /// The time that was measured.
        elapsed: Duration,
    },
    /// A counter moved less often than its step promises.
    #[error("energy counter {counter} moved {moves} times in {elapsed:?}: fewer than {FEWEST_STEPS}")]
    Coarse {
        /// The counter's name.
        counter: String,
        /// How often it had another value than at the reading before.
        moves: u32,
        /// The time that was measured.
        elapsed: Duration,
    },
    /// The platform has no such device.
    #[error("there is no device {device}, of {devices}")]
    UnknownDevice {
        /// The unknown device.
        device: DeviceId,
        /// The number of devices of the platform.
        devices: usize,
    },
}

/// The energy that some time took.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Energy {
    /// The energy of all counters, in joules.
    pub joules: f64,
    /// The time from the first reading to the last.
    pub elapsed: Duration,
    /// The name of each counter, and its part in joules.
    pub parts: Vec<(String, f64)>,
}

/// A device that is no processor.
#[derive(Clone, Debug)]
struct Gpu {
    /// The device's name.
    device: String,
    hardware: String,
}

/// Measures the energy of the processor and of some devices.
///
/// ```no_run
/// # fn run(platform: &dml_core::Platform) -> Result<(), Box<dyn std::error::Error>> {
/// use dml_arenas::energy::{EnergyMeter, EnergySources};
///
/// let meter = EnergyMeter::new(platform, [platform.device("cpu")?], &EnergySources::default())?;
/// let metering = meter.start()?;
/// // ... compute ...
/// println!("{} J", metering.finish()?.joules);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EnergyMeter {
    sources: EnergySources,
    gpus: Vec<Gpu>,
}

impl EnergyMeter {
    /// Makes a meter for the processor and for these devices. Devices that are cores of the processor add nothing to it. Two
    /// devices that are one piece of hardware count once.
    ///
    /// # Errors
    /// [`EnergyError::UnknownDevice`] for an id of another platform, [`EnergyError::NoCounter`] for a device that does not tell
    /// which piece of hardware it is, and [`EnergyError::Nothing`] where nothing would be measured. Counters are looked for when a measurement starts.
    pub fn new(
        platform: &Platform,
        devices: impl IntoIterator<Item = DeviceId>,
        sources: &EnergySources,
    ) -> Result<Self, EnergyError> {
        let mut gpus: Vec<Gpu> = Vec::new();
        for id in devices {
            let all = platform.devices();
            let unknown = EnergyError::UnknownDevice { device: id, devices: all.len() };
            let desc = all.get(usize::from(id.0)).ok_or(unknown)?;
            if desc.kind == DeviceKind::Cpu {
                continue;
            }
            let device = desc.name.to_string();
            let Some(hardware) = desc.hardware.clone() else {
                let reason = "it does not tell its place on the bus".to_owned();
                return Err(EnergyError::NoCounter { device, reason });
            };
            if gpus.iter().all(|gpu| gpu.hardware != hardware) {
                gpus.push(Gpu { device, hardware });
            }
        }
        if sources.powercap.is_none() && gpus.is_empty() {
            return Err(EnergyError::Nothing);
        }
        Ok(Self { sources: sources.clone(), gpus })
    }

    /// Reads every counter for the first time.
    ///
    /// # Errors
    /// [`EnergyError::NoPackages`], [`EnergyError::NoCounter`] and [`EnergyError::Unreadable`].
    pub fn start(&self) -> Result<Metering<'_>, EnergyError> {
        let mut grown = Vec::new();
        for counter in self.counters()? {
            let (name, last_uj) = (name_of(&*counter)?, read(&*counter)?);
            grown.push(Grown { counter, name, last_uj, sum_uj: 0, moves: 0 });
        }
        Ok(Metering { meter: self, begun: Instant::now(), grown })
    }

    /// Returns the counters that are there now.
    fn counters(&self) -> Result<Vec<Arc<dyn EnergyCounter>>, EnergyError> {
        let powercap = self.sources.powercap.as_deref();
        let mut counters = powercap.map_or_else(|| Ok(Vec::new()), powercap::counters)?;
        for Gpu { device, hardware } in &self.gpus {
            let found = foreign::guard(|| self.sources.gpus.counter(hardware))
                .unwrap_or_else(|message| Err(format!("panic: {message}")));
            let none = |reason| EnergyError::NoCounter { device: device.clone(), reason };
            counters.push(found.map_err(none)?);
        }
        Ok(counters)
    }
}

/// A counter, and what it grew by since the start.
#[derive(Debug)]
struct Grown {
    counter: Arc<dyn EnergyCounter>,
    name: String,
    last_uj: u64,
    sum_uj: u64,
    /// How many readings were others than those before.
    moves: u32,
}

impl Grown {
    /// Reads the counter again.
    fn sample(&mut self) -> Result<(), EnergyError> {
        let now_uj = read(&*self.counter)?;
        let range_uj = foreign::guard(|| self.counter.range_uj())
            .map_err(|message| unreadable(&self.name, format!("panic: {message}")))?;
        let back = || EnergyError::WentBack {
            counter: self.name.clone(),
            before_uj: self.last_uj,
            after_uj: now_uj,
        };
        let grown_uj = grown(self.last_uj, now_uj, range_uj).ok_or_else(back)?;
        self.sum_uj = self.sum_uj.saturating_add(grown_uj);
        self.moves = self.moves.saturating_add(u32::from(grown_uj > 0));
        self.last_uj = now_uj;
        Ok(())
    }

    /// Checks that the counter can tell anything of this time.
    fn check(&self, elapsed: Duration) -> Result<(), EnergyError> {
        let counter = self.name.clone();
        let step = foreign::guard(|| self.counter.step())
            .map_err(|message| unreadable(&self.name, format!("panic: {message}")))?;
        let least = step.saturating_mul(FEWEST_STEPS);
        if elapsed < least {
            return Err(EnergyError::TooShort { counter, elapsed, least });
        }
        if self.sum_uj == 0 { Err(EnergyError::Still { counter, elapsed }) } else { Ok(()) }
    }

    /// Checks besides that the counter was seen to move often enough.
    fn check_moves(&self, elapsed: Duration) -> Result<(), EnergyError> {
        self.check(elapsed)?;
        if self.moves >= FEWEST_STEPS {
            return Ok(());
        }
        Err(EnergyError::Coarse { counter: self.name.clone(), moves: self.moves, elapsed })
    }
}

/// A measurement under way.
#[derive(Debug)]
#[must_use = "a measurement that is not finished tells nothing"]
pub struct Metering<'a> {
    meter: &'a EnergyMeter,
    begun: Instant,
    grown: Vec<Grown>,
}

impl Metering<'_> {
    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the time that the slowest counter needs for a figure.
    #[must_use]
    pub fn least(&self) -> Duration {
        let steps =
            self.grown.iter().map(|grown| foreign::guard(|| grown.counter.step()).unwrap_or_default());
        steps.max().unwrap_or_default().saturating_mul(FEWEST_STEPS)
    }

    /// Reads every counter on the way. A counter of a processor wraps after minutes at full load: whoever measures for longer reads
    /// it at least once a minute.
    ///
    /// # Errors
    /// [`EnergyError::Unreadable`] and [`EnergyError::WentBack`].
    pub fn sample(&mut self) -> Result<(), EnergyError> {
        self.grown.iter_mut().try_for_each(Grown::sample)
    }

    /// Checks that every counter has moved so often that it tells something of a stretch of short runs. [`sample`](Self::sample) is
    /// called after each of them.
    ///
    /// # Errors
    /// [`EnergyError::TooShort`], [`EnergyError::Still`] and [`EnergyError::Coarse`]: it is too early to finish.
    pub fn check(&self) -> Result<(), EnergyError> {
        let elapsed = self.elapsed();
        self.grown.iter().try_for_each(|grown| grown.check_moves(elapsed))
    }

    /// Reads every counter for the last time.
    ///
    /// # Errors
    /// [`EnergyError::TooShort`] and [`EnergyError::Still`] where a counter tells nothing of the time; [`EnergyError::Changed`] where
    /// counters came or went; what [`sample`](Self::sample) and [`EnergyMeter::start`] say.
    pub fn finish(mut self) -> Result<Energy, EnergyError> {
        self.sample()?;
        let elapsed = self.elapsed();
        self.check_same()?;
        self.grown.iter().try_for_each(|grown| grown.check(elapsed))?;
        let parts: Vec<_> =
            self.grown.into_iter().map(|grown| (grown.name, grown.sum_uj as f64 / 1e6)).collect();
        Ok(Energy { joules: parts.iter().map(|(_, joules)| joules).sum(), elapsed, parts })
    }

    /// Checks that the counters are those of the start.
    fn check_same(&self) -> Result<(), EnergyError> {
        let now = self.meter.counters()?;
        let after = now.iter().map(|counter| name_of(&**counter)).collect::<Result<Vec<_>, _>>()?;
        let before: Vec<_> = self.grown.iter().map(|grown| grown.name.clone()).collect();
        if before == after { Ok(()) } else { Err(EnergyError::Changed { before, after }) }
    }
}

/// Returns what a counter grew by, or `None` if it went back and did not wrap. Its range is its greatest value.
fn grown(before_uj: u64, now_uj: u64, range_uj: Option<u64>) -> Option<u64> {
    if now_uj >= before_uj {
        return Some(now_uj - before_uj);
    }
    // From the greatest value to 0 is one more. The sum is at most the range, for it is now less than it was.
    Some(range_uj?.checked_sub(before_uj)? + 1 + now_uj)
}

fn unreadable(counter: &str, reason: String) -> EnergyError {
    EnergyError::Unreadable { counter: counter.to_owned(), reason }
}

fn name_of(counter: &dyn EnergyCounter) -> Result<String, EnergyError> {
    foreign::guard(|| counter.name())
        .map_err(|message| unreadable("without a name", format!("panic: {message}")))
}

fn read(counter: &dyn EnergyCounter) -> Result<u64, EnergyError> {
    let read =
        foreign::guard(|| counter.read_uj()).unwrap_or_else(|message| Err(format!("panic: {message}")));
    read.or_else(|reason| Err(unreadable(&name_of(counter)?, reason)))
}
