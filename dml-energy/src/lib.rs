//! Energy consumption of the processor and GPUs over a period, from the energy counters of the machine.
//!
//! ```text
//!  powercap   packages of the processor, their memory ──┐
//!                                                       ├─▶ EnergyMeter ──start──▶ Metering ──finish──▶ Energy
//!  GpuCounters   each GPU among the devices (NVML) ─────┘                  or EnergyError ◀──┴────────────┘
//! ```
//! | file | contents |
//! |---|---|
//! | `lib.rs` | the meter, its counters and its errors |
//! | `powercap.rs` | RAPL counters, as files of Linux |
//! | `nvml.rs` | the counters of NVIDIA's GPUs, by a library that is opened at run time |
//!
//! # Scope of a measurement
//! A measurement includes every package of the processor, unless the processor is excluded. It includes the
//! package's memory if that has its own counter. It also includes each GPU among the meter's devices.
//! Counters cover the whole hardware: idle cores and other programs count too. Hardware without a counter is
//! not included: boards, disks, fans, the losses of the power supply.
//!
//! # Invariants
//! 1. A measurement is complete or an error: if a counter is missing, the error names the counter and the
//!    reason.
//! 2. A wrap-around of a counter is handled, if the counter is read at least once per wrap-around
//!    ([`Metering::sample`]).
//! 3. A period in which a counter cannot have moved often enough is an error.

mod nvml;
mod powercap;

pub use nvml::Nvml;

use dml_core::{DeviceId, DeviceKind, Platform, internal};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Minimum duration of a measurement, in steps of each counter. Each end may fall anywhere within a step, so
/// the error is at most a fifth.
pub const FEWEST_STEPS: u32 = 10;

/// An energy counter, which only grows until it wraps around.
///
/// # Obligations of an implementation
/// - **E-1** The counter grows by the consumed energy, in microjoules.
///   (`e1_what_all_counters_grew_by_is_the_energy`)
/// - **E-2** It decreases only by wrapping around: past its range, it continues at 0.
///   (`e2_a_counter_wraps_or_is_refused`)
/// - **E-3** Its name never changes, and is unique. (`e3_counters_that_come_and_go_are_told`)
pub trait EnergyCounter: fmt::Debug + Send + Sync {
    /// Returns the name, for display.
    fn name(&self) -> String;

    /// Returns the value in microjoules.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    fn read_uj(&self) -> Result<u64, String>;

    /// Returns the maximum value in microjoules, after which the counter continues at 0. Returns `None` if it
    /// never wraps around.
    fn range_uj(&self) -> Option<u64>;

    /// Returns the step: the longest time between two updates of the counter while the device draws power.
    fn step(&self) -> Duration;
}

/// A source of energy counters for devices other than the processor.
pub trait GpuCounters: fmt::Debug + Send + Sync {
    /// Returns the counter of a piece of hardware, as
    /// [`DeviceDesc::hardware`](dml_core::DeviceDesc::hardware) names it.
    ///
    /// # Errors
    /// The reason why there is none.
    fn counter(&self, hardware: &str) -> Result<Arc<dyn EnergyCounter>, String>;
}

/// The sources of energy counters.
#[derive(Clone, Debug)]
pub struct EnergySources {
    /// The folder of the processor's counters; `None` excludes the processor.
    powercap: Option<PathBuf>,
    gpus: Arc<dyn GpuCounters>,
}

impl Default for EnergySources {
    /// Returns the sources of this machine: `/sys/class/powercap` and NVML.
    fn default() -> Self {
        Self { powercap: Some(PathBuf::from("/sys/class/powercap")), gpus: Arc::new(Nvml::new()) }
    }
}

impl EnergySources {
    /// Sets the folder of the processor's packages. Its layout is that of `/sys/class/powercap`.
    #[must_use]
    pub fn powercap(mut self, folder: impl Into<PathBuf>) -> Self {
        self.powercap = Some(folder.into());
        self
    }

    /// Excludes the processor, whose counters are not available in a virtual machine. Measurements then
    /// include only the GPUs among the devices, and a program should say so where it shows them. A meter
    /// without any GPU is refused.
    #[must_use]
    pub fn without_processor(mut self) -> Self {
        self.powercap = None;
        self
    }

    /// Sets the source of the GPUs' counters.
    #[must_use]
    pub fn gpus(mut self, gpus: Arc<dyn GpuCounters>) -> Self {
        self.gpus = gpus;
        self
    }
}

/// Why a measurement failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnergyError {
    /// The processor has no energy counters.
    #[error("no energy counters of the processor: {}: {reason}", folder.display())]
    NoPackages {
        /// The folder that was searched.
        folder: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The processor is excluded and the devices include no GPU, so nothing would be measured.
    #[error("nothing to measure: the processor is left out, and no GPU is among the devices")]
    Nothing,
    /// A device has no energy counter.
    #[error("no energy counter for device {device}: {reason}")]
    NoCounter {
        /// The device's name.
        device: String,
        /// The reason.
        reason: String,
    },
    /// A counter cannot be read.
    #[error("energy counter {counter} cannot be read: {reason}")]
    Unreadable {
        /// The counter's name.
        counter: String,
        /// The reason.
        reason: String,
    },
    /// A counter decreased without wrapping around.
    #[error(
        "energy counter {counter} decreased from {before_uj} uJ to {after_uj} uJ without wrapping around"
    )]
    WentBack {
        /// The counter's name.
        counter: String,
        /// The previous value, in microjoules.
        before_uj: u64,
        /// The later value, in microjoules.
        after_uj: u64,
    },
    /// Counters were added or removed during the measurement.
    #[error("the energy counters changed during the measurement: at its start {}, at its end {}", before.join(", "), after.join(", "))]
    Changed {
        /// The names of the counters at the start.
        before: Vec<String>,
        /// The names of the counters at the end.
        after: Vec<String>,
    },
    /// The measurement was too short for a counter.
    #[error(
        "measurement too short: it took {elapsed:?}, and energy counter {counter} needs {least:?} ({FEWEST_STEPS} of its steps)"
    )]
    TooShort {
        /// The counter's name.
        counter: String,
        /// The duration of the measurement.
        elapsed: Duration,
        /// The minimum duration for this counter.
        least: Duration,
    },
    /// A counter did not move during the whole measurement.
    #[error("energy counter {counter} did not move in {elapsed:?}")]
    Still {
        /// The counter's name.
        counter: String,
        /// The duration of the measurement.
        elapsed: Duration,
    },
    /// A counter moved between too few readings.
    #[error("energy counter {counter} moved {moves} times in {elapsed:?}, needs at least {FEWEST_STEPS}")]
    Coarse {
        /// The counter's name.
        counter: String,
        /// The number of readings that differ from the previous one.
        moves: u32,
        /// The duration of the measurement.
        elapsed: Duration,
    },
    /// The platform has no such device.
    #[error("no device {device}: the platform has {devices} devices")]
    UnknownDevice {
        /// The unknown device.
        device: DeviceId,
        /// The number of devices of the platform.
        devices: usize,
    },
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Energy {
    /// The sum of all counters, in joules.
    pub joules: f64,
    /// The time from the first reading to the last one.
    pub elapsed: Duration,
    /// The name of each counter, and its part in joules.
    pub parts: Vec<(String, f64)>,
}

/// A device other than the processor.
#[derive(Clone, Debug)]
struct Gpu {
    /// The device's name.
    device: String,
    hardware: String,
}

/// A meter for the energy of the processor and some devices.
///
/// ```no_run
/// # fn run(platform: &dml_core::Platform) -> Result<(), Box<dyn std::error::Error>> {
/// use dml_energy::{EnergyMeter, EnergySources};
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
    /// Creates a meter for the processor and for these devices. Devices that run on the processor's cores add
    /// no counter. Two devices on the same hardware count once.
    ///
    /// Counters are opened when a measurement starts.
    ///
    /// # Errors
    /// [`EnergyError::UnknownDevice`] for an id that the platform does not have, [`EnergyError::NoCounter`]
    /// for a device whose hardware is unknown, and [`EnergyError::Nothing`] if nothing would be measured.
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
                let reason = "its PCI address is unknown".to_owned();
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

    /// Starts a measurement: reads every counter for the first time.
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

    /// Returns the current counters.
    fn counters(&self) -> Result<Vec<Arc<dyn EnergyCounter>>, EnergyError> {
        let powercap = self.sources.powercap.as_deref();
        let mut counters = powercap.map_or_else(|| Ok(Vec::new()), powercap::counters)?;
        for Gpu { device, hardware } in &self.gpus {
            let found = internal::guard(|| self.sources.gpus.counter(hardware))
                .unwrap_or_else(|message| Err(format!("panic: {message}")));
            let none = |reason| EnergyError::NoCounter { device: device.clone(), reason };
            counters.push(found.map_err(none)?);
        }
        Ok(counters)
    }
}

/// A counter, and its growth since the start.
#[derive(Debug)]
struct Grown {
    counter: Arc<dyn EnergyCounter>,
    name: String,
    last_uj: u64,
    sum_uj: u64,
    /// Number of readings that differ from the previous one.
    moves: u32,
}

impl Grown {
    /// Reads the counter again.
    fn sample(&mut self) -> Result<(), EnergyError> {
        let now_uj = read(&*self.counter)?;
        let range_uj = internal::guard(|| self.counter.range_uj())
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

    /// Checks that the measurement lasted long enough for the counter, and that the counter moved.
    fn check(&self, elapsed: Duration) -> Result<(), EnergyError> {
        let counter = self.name.clone();
        let step = internal::guard(|| self.counter.step())
            .map_err(|message| unreadable(&self.name, format!("panic: {message}")))?;
        let least = step.saturating_mul(FEWEST_STEPS);
        if elapsed < least {
            return Err(EnergyError::TooShort { counter, elapsed, least });
        }
        if self.sum_uj == 0 { Err(EnergyError::Still { counter, elapsed }) } else { Ok(()) }
    }

    /// Checks the same, and that enough readings found the counter moved.
    fn check_moves(&self, elapsed: Duration) -> Result<(), EnergyError> {
        self.check(elapsed)?;
        if self.moves >= FEWEST_STEPS {
            return Ok(());
        }
        Err(EnergyError::Coarse { counter: self.name.clone(), moves: self.moves, elapsed })
    }
}

/// A measurement in progress.
#[derive(Debug)]
#[must_use = "an unfinished measurement has no result"]
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

    /// Returns the minimum duration of a measurement for the slowest counter.
    #[must_use]
    pub fn least(&self) -> Duration {
        let steps =
            self.grown.iter().map(|grown| internal::guard(|| grown.counter.step()).unwrap_or_default());
        steps.max().unwrap_or_default().saturating_mul(FEWEST_STEPS)
    }

    /// Reads every counter. A processor's counter wraps around after minutes at full load, so call this at
    /// least once a minute during longer measurements.
    ///
    /// # Errors
    /// [`EnergyError::Unreadable`] and [`EnergyError::WentBack`].
    pub fn sample(&mut self) -> Result<(), EnergyError> {
        self.grown.iter_mut().try_for_each(Grown::sample)
    }

    /// Checks that every counter has moved often enough to measure a series of short runs. The caller must
    /// call [`sample`](Self::sample) after each run.
    ///
    /// # Errors
    /// [`EnergyError::TooShort`], [`EnergyError::Still`] and [`EnergyError::Coarse`], while it is too early
    /// to finish.
    pub fn check(&self) -> Result<(), EnergyError> {
        let elapsed = self.elapsed();
        self.grown.iter().try_for_each(|grown| grown.check_moves(elapsed))
    }

    /// Ends the measurement: reads every counter for the last time.
    ///
    /// # Errors
    /// [`EnergyError::TooShort`] and [`EnergyError::Still`] for a counter that did not move often enough, and
    /// [`EnergyError::Changed`] if counters were added or removed. Also the errors of
    /// [`sample`](Self::sample) and [`EnergyMeter::start`].
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

/// Returns the growth of a counter, or `None` if it decreased without wrapping around. The range is its
/// maximum value.
fn grown(before_uj: u64, now_uj: u64, range_uj: Option<u64>) -> Option<u64> {
    if now_uj >= before_uj {
        return Some(now_uj - before_uj);
    }
    // The step from the maximum value to 0 counts 1. The sum is at most the range, because `now` < `before`.
    Some(range_uj?.checked_sub(before_uj)? + 1 + now_uj)
}

fn unreadable(counter: &str, reason: String) -> EnergyError {
    EnergyError::Unreadable { counter: counter.to_owned(), reason }
}

fn name_of(counter: &dyn EnergyCounter) -> Result<String, EnergyError> {
    internal::guard(|| counter.name())
        .map_err(|message| unreadable("without a name", format!("panic: {message}")))
}

fn read(counter: &dyn EnergyCounter) -> Result<u64, EnergyError> {
    let read =
        internal::guard(|| counter.read_uj()).unwrap_or_else(|message| Err(format!("panic: {message}")));
    read.or_else(|reason| Err(unreadable(&name_of(counter)?, reason)))
}
