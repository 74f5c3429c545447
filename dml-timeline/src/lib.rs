//! What happened in a co-execution, as a value: it is kept, read back, and looked at.
//!
//! ```text
//!  Coexecutor::run ───Report──┐            ┌─▶ write_perfetto ──▶ FILE.json ──▶ ui.perfetto.dev
//!                             ├──▶ Trace ──┤                          │
//!  Platform::record ──Events──┘      ▲     └─▶ write_page ──────▶ FILE.html
//!                                    └───────────── read ◀────────────┘
//! ```
//! | file | what is in it |
//! |---|---|
//! | `lib.rs` | the value, and how it is made of a report |
//! | `events.rs` | which transfers and waits the events of a recording tell of |
//! | `figures.rs` | where the time of each device went, and what each link carried |
//! | `findings.rs` | the same in sentences |
//! | `read.rs` | reading back what others may have written |
//! | `perfetto.rs` | the trace event format of Chrome and Perfetto |
//! | `page.rs`, `page/` | the page that shows it, of which nothing is fetched from anywhere |
//!
//! A run that is not recorded pays nothing: the times of its packages are taken anyway, and events are only made while a
//! recording runs.

#![forbid(unsafe_code)]

mod events;
mod figures;
mod findings;
mod page;
mod perfetto;
mod read;

pub use figures::{DeviceFigures, LinkFigures, Summary};
pub use findings::{Finding, FindingKind};
pub use read::TraceError;

use dml_core::record::Recording;
use dml_core::{DeviceId, Event, Platform, PlatformId};
use dml_scheduler::{PackageRecord, Report};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// What the JSON of a trace names as its format.
pub const FORMAT: &str = "dml-trace";
/// The version of that format. It grows when a reader of the version before would misunderstand a trace.
pub const VERSION: u32 = 1;

/// What happened in one co-execution.
///
/// It is what a [`Report`] says, with names in place of ids, and what a recording of the platform adds. It serialises; the schema is in
/// `docs/json.md`.
///
/// # Shape and units
/// All times are nanoseconds since the run began. Devices and arenas are named by their index in [`devices`](Trace::devices) and
/// [`arenas`](Trace::arenas).
///
/// ```no_run
/// # fn run(platform: &dml_core::Platform, kernel: &dml_scheduler::Kernel) -> Result<(), Box<dyn std::error::Error>> {
/// use dml_scheduler::Coexecutor;
/// use dml_timeline::Trace;
///
/// let recording = Trace::record(platform);
/// let report = Coexecutor::new(platform).run(kernel, 1 << 20)?;
/// let trace = recording.finish(&report)?;
/// trace.write_page(std::fs::File::create("run.html")?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trace {
    format: String,
    version: u32,
    /// What ran, for people; the kernel's name unless [`Trace::labelled`] says otherwise.
    pub label: String,
    /// The kernel's name.
    pub kernel: String,
    /// The items that were computed.
    pub items: u64,
    /// The policy that split the work, as [`PolicySpec`](dml_scheduler::PolicySpec) is written.
    pub policy: String,
    /// From the start of the run to the end of its last package.
    pub duration_ns: u64,
    /// The time of the whole run as [`Trace::total`] says it, transfers after the last package included. `duration_ns` otherwise.
    pub total_ns: u64,
    /// The devices of the run, in its order.
    pub devices: Vec<TraceDevice>,
    /// The memories of the platform.
    pub arenas: Vec<TraceArena>,
    /// The packages, by device and time.
    pub packages: Vec<TracePackage>,
    /// The transfers, by the time of their start. Empty without a recording.
    pub transfers: Vec<TraceTransfer>,
    /// Requests that had to wait for other users of a buffer, by the time of their start. Empty without a recording.
    pub waits: Vec<TraceWait>,
    /// Who took part and who did not, by time.
    pub decisions: Vec<TraceDecision>,
}

/// A device of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceDevice {
    /// The device's name.
    pub name: String,
    /// `cpu`, `gpu` or `accelerator`.
    pub kind: String,
    /// What the vendor calls it.
    pub description: String,
    /// The number of compute units.
    pub units: u32,
    /// Whether it is the host, in whose memory data begins and ends.
    pub is_host: bool,
    /// The memory that its kernels use, an index of [`Trace::arenas`].
    pub arena: Option<usize>,
    /// The packages whose results it contributed.
    pub packages: u64,
    /// The items in them.
    pub items: u64,
    /// The time in which at least one package was under way.
    pub busy_ns: u64,
    /// When its last package was done.
    pub end_ns: u64,
    /// What it takes for the whole work alone, if that was measured.
    pub alone_ns: Option<u64>,
    /// The items per second that earlier runs promised, if the policy knew them.
    pub known_items_per_s: Option<f64>,
}

/// A memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceArena {
    /// The memory's name.
    pub name: String,
    /// The sort of memory.
    pub kind: String,
}

/// A package, with the turns of its life in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TracePackage {
    /// The place in the order in which packages were handed out.
    pub index: u64,
    /// The device, an index of [`Trace::devices`].
    pub device: usize,
    /// The first of its items.
    pub first_item: u64,
    /// How many items it has.
    pub items: u64,
    /// When the unit had it, and asked for its data.
    pub start_ns: u64,
    /// When the device could begin.
    pub begun_ns: u64,
    /// When the device had computed it.
    pub computed_ns: u64,
    /// When its results were where they belong.
    pub end_ns: u64,
}

/// One copy from memory to memory, or a fill with zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceTransfer {
    /// The source, an index of [`Trace::arenas`]; `None` for a fill.
    pub from: Option<usize>,
    /// The destination.
    pub to: usize,
    /// What carried it; `fill` for a fill.
    pub mechanism: String,
    /// The number of the buffer.
    pub buffer: u64,
    /// The first byte, of the buffer.
    pub first_byte: u64,
    /// How many bytes.
    pub bytes: u64,
    /// When it was set going.
    pub begin_ns: u64,
    /// When whoever needs the bytes had noticed that they are there, or that they will not come.
    pub end_ns: u64,
    /// Whether they came.
    pub arrived: bool,
}

/// A request that waited for other users of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceWait {
    /// The memory that it wanted the bytes in, an index of [`Trace::arenas`]; `None` if it was withdrawn.
    pub arena: Option<usize>,
    /// The number of the buffer.
    pub buffer: u64,
    /// When it was put into the queue.
    pub begin_ns: u64,
    /// When it was granted, or withdrawn.
    pub end_ns: u64,
}

/// Who took part, or did not, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceDecision {
    /// When it took effect.
    pub at_ns: u64,
    /// The device, an index of [`Trace::devices`].
    pub device: usize,
    /// What was decided.
    pub kind: DecisionKind,
    /// Why, for people; may be empty.
    pub reason: String,
}

/// What was decided of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionKind {
    /// It took part from the start.
    Began,
    /// It was called up by those that had begun.
    CalledUp,
    /// It was left out to the end.
    LeftOut,
    /// It failed, and others computed the rest.
    GaveUp,
    /// A later version has a name for it.
    #[serde(other)]
    Other,
}

/// Why no trace can be made: names would be those of other devices and memories.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OtherPlatform {
    /// The report is of a run on another platform.
    #[error(
        "the report of kernel {kernel} is of a run on platform {report}, and the trace was to be made on {platform}"
    )]
    Report {
        /// The kernel's name.
        kernel: String,
        /// The platform of the run.
        report: PlatformId,
        /// The platform that was given.
        platform: PlatformId,
    },
    /// An event is of another platform.
    #[error("event {index} names {what}, which platform {platform} does not have")]
    Event {
        /// The place of the event among those given.
        index: usize,
        /// The arena or the link.
        what: String,
        /// The platform that was given.
        platform: PlatformId,
    },
}

/// A recording that becomes a trace.
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct TraceRecording {
    platform: Platform,
    recording: Recording,
}

impl TraceRecording {
    /// Stops the recording, and makes a trace of it and of the report of the run that it saw. Transfers and waits that began before
    /// the run are no part of it; those after the run are.
    ///
    /// # Errors
    /// [`OtherPlatform`] if the report is of a run on another platform than the recording.
    pub fn finish(self, report: &Report) -> Result<Trace, OtherPlatform> {
        Trace::of(&self.platform, report, &self.recording.finish())
    }
}

impl Trace {
    /// Starts to record a platform. Transfers and waits are recorded from here on, whoever causes them.
    pub fn record(platform: &Platform) -> TraceRecording {
        TraceRecording { platform: platform.clone(), recording: platform.record() }
    }

    /// Makes a trace of a report and the events of a recording of the same platform, in their order. Without events it has no transfers
    /// and no waits.
    ///
    /// # Errors
    /// [`OtherPlatform`] if the report is of a run on another platform, or an event names an arena or a link that this one does not
    /// have.
    pub fn of(platform: &Platform, report: &Report, events: &[Event]) -> Result<Self, OtherPlatform> {
        check(platform, report, events)?;
        let arena = |desc: &dml_core::ArenaDesc| TraceArena {
            name: desc.name.to_string(),
            kind: desc.kind.to_string(),
        };
        let (transfers, waits) = events::read(platform, report.begun, events);
        Ok(Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            label: report.kernel.clone(),
            kernel: report.kernel.clone(),
            items: report.devices.iter().map(|device| device.items).sum(),
            policy: report.policy.to_string(),
            duration_ns: ns(report.duration),
            total_ns: ns(report.duration),
            devices: devices(platform, report),
            arenas: platform.arenas().iter().map(|object| arena(object.desc())).collect(),
            packages: packages(report),
            transfers,
            waits,
            decisions: decisions(report),
        })
    }

    /// Names what ran.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds what each device takes for the whole work alone, in the order of the devices. Speedup and efficiency are computed of these.
    #[must_use]
    pub fn alone(mut self, times: impl IntoIterator<Item = Duration>) -> Self {
        for (device, time) in self.devices.iter_mut().zip(times) {
            device.alone_ns = Some(ns(time));
        }
        self
    }

    /// Says how long the whole run took, where that is more than the time of its packages.
    #[must_use]
    pub fn total(mut self, time: Duration) -> Self {
        self.total_ns = ns(time);
        self
    }

    /// The version of the format that it was written in.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// When the last thing in it ended; at least 1.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let packages = self.packages.iter().map(|package| package.end_ns);
        let transfers = self.transfers.iter().map(|transfer| transfer.end_ns);
        let waits = self.waits.iter().map(|wait| wait.end_ns);
        let decisions = self.decisions.iter().map(|decision| decision.at_ns);
        let all = packages.chain(transfers).chain(waits).chain(decisions).chain([self.duration_ns]);
        all.max().unwrap_or_default().max(1)
    }

    fn device_name(&self, device: usize) -> &str {
        self.devices.get(device).map_or("?", |device| &device.name)
    }

    fn arena_name(&self, arena: Option<usize>) -> &str {
        arena.and_then(|arena| self.arenas.get(arena)).map_or("zeros", |arena| &arena.name)
    }
}

/// Checks that a report and events are of a platform, as far as events tell.
fn check(platform: &Platform, report: &Report, events: &[Event]) -> Result<(), OtherPlatform> {
    let id = platform.id();
    if report.platform != id {
        let kernel = report.kernel.clone();
        return Err(OtherPlatform::Report { kernel, report: report.platform, platform: id });
    }
    for (index, event) in events.iter().enumerate() {
        if let Some(what) = events::unknown(platform, &event.kind) {
            return Err(OtherPlatform::Event { index, what, platform: id });
        }
    }
    Ok(())
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn devices(platform: &Platform, report: &Report) -> Vec<TraceDevice> {
    let device = |of: &dml_scheduler::DeviceReport| {
        let desc = &platform.devices()[usize::from(of.device.0)];
        TraceDevice {
            name: desc.name.to_string(),
            kind: desc.kind.to_string(),
            description: desc.description.clone(),
            units: desc.units,
            is_host: platform.host() == Some(of.device),
            arena: platform.home(of.device).map(|arena| usize::from(arena.0)),
            packages: of.packages,
            items: of.items,
            busy_ns: ns(of.busy),
            end_ns: ns(of.end),
            alone_ns: None,
            known_items_per_s: of.known_rate,
        }
    };
    report.devices.iter().map(device).collect()
}

fn packages(report: &Report) -> Vec<TracePackage> {
    let package = |record: &PackageRecord| {
        Some(TracePackage {
            index: record.package.index(),
            device: place(report, record.device)?,
            first_item: record.package.start(),
            items: record.package.items(),
            start_ns: ns(record.start),
            begun_ns: ns(record.begun),
            computed_ns: ns(record.computed),
            end_ns: ns(record.end),
        })
    };
    report.packages.iter().filter_map(package).collect()
}

fn decisions(report: &Report) -> Vec<TraceDecision> {
    let mut decisions = Vec::new();
    let mut add = |device: DeviceId, kind, at: Duration, reason: String| {
        let device = place(report, device);
        decisions.extend(device.map(|device| TraceDecision { at_ns: ns(at), device, kind, reason }));
    };
    for device in &report.devices {
        let (id, left_out) = (device.device, |out: &&dml_scheduler::LeftOut| out.device == device.device);
        let called_up = report.called_up.iter().find(|called| called.device == id);
        if let Some(out) = report.left_out.iter().find(left_out) {
            add(id, DecisionKind::LeftOut, Duration::ZERO, out.reason.to_string());
        } else if let Some(called) = called_up {
            let reason = "the devices that had begun would have taken longer without it".to_owned();
            add(id, DecisionKind::CalledUp, called.at, reason);
        } else {
            let known =
                device.known_rate.map(|rate| format!("earlier runs promise {rate:.4e} items per second"));
            add(id, DecisionKind::Began, Duration::ZERO, known.unwrap_or_default());
        }
    }
    for failure in &report.failures {
        let reason = format!("{}: {}", failure.package, failure.message);
        add(failure.device, DecisionKind::GaveUp, failure.at, reason);
    }
    decisions.sort_by_key(|decision| decision.at_ns);
    decisions
}

/// The index of a device among those of the run.
fn place(report: &Report, device: DeviceId) -> Option<usize> {
    report.devices.iter().position(|other| other.device == device)
}
