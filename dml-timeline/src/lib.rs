//! The record of a co-execution, as a value to store, read back and view.
//!
//! ```text
//!  Coexecutor::run ───Report──┐            ┌─▶ write_page ──────▶ FILE.html ──▶ a browser
//!                             ├──▶ Trace ──┤
//!  Platform::record ──Events──┘      ▲     └─▶ write_perfetto ──▶ FILE.json ──▶ ui.perfetto.dev
//!                                    └───────────── read ◀────────────┘
//! ```
//! | file | contents |
//! |---|---|
//! | `lib.rs` | the value, and its construction from a report |
//! | `events.rs` | transfers and waits, from the events of a recording |
//! | `figures.rs` | where the time of each device went, and what each link carried |
//! | `findings.rs` | the figures in sentences |
//! | `submissions.rs` | traces of programs that submit kernels, without a report |
//! | `read.rs` | parsing of traces from untrusted files |
//! | `perfetto.rs` | the trace event format of Chrome and Perfetto |
//! | `page.rs`, `page/` | a self-contained HTML page, which fetches nothing |
//!
//! A run without a recording has no extra cost: the times of its packages are measured anyway. Events are
//! only created during a recording.

#![forbid(unsafe_code)]

mod events;
mod figures;
mod findings;
mod page;
mod perfetto;
mod read;
mod submissions;

pub use figures::{DeviceFigures, LinkFigures, Summary};
pub use findings::{Finding, FindingKind};
pub use read::TraceError;

use dml_core::record::Recording;
use dml_core::{DeviceId, Platform, PlatformId, record::Event};
use dml_scheduler::{PackageRecord, Report, policy::PolicySpec};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// The value of the field `format` in the JSON of a trace.
pub const FORMAT: &str = "dml-trace";
/// The version of that format. It increases when a reader of the previous version would misunderstand a
/// trace.
pub const VERSION: u32 = 1;

/// The record of one co-execution.
///
/// It holds the contents of a [`Report`], with names in place of ids, and the transfers and waits of a
/// recording of the platform. It serialises; the schema is in `docs/json.md`.
///
/// # Shape and units
/// All times are nanoseconds since the run began. Devices and arenas are named by their index in
/// [`devices`](Trace::devices) and [`arenas`](Trace::arenas).
///
/// ```no_run
/// # fn run(
/// #     platform: &dml_core::Platform,
/// #     kernel: &dml_scheduler::Kernel,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
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
    /// The title of the run, for people; the kernel's name unless [`Trace::labelled`] sets another.
    pub label: String,
    /// The kernel's name.
    pub kernel: String,
    /// The number of items computed.
    pub items: u64,
    /// The policy that split the work, in the notation of [`PolicySpec`].
    pub policy: String,
    /// The time from the start of the run to the end of its last package.
    pub duration_ns: u64,
    /// The time of the whole run, with transfers after the last package, as set by [`Trace::total`];
    /// `duration_ns` otherwise.
    pub total_ns: u64,
    /// The devices of the run, in the order of its report.
    pub devices: Vec<TraceDevice>,
    /// The arenas of the platform.
    pub arenas: Vec<TraceArena>,
    /// The packages, ordered by device and time.
    pub packages: Vec<TracePackage>,
    /// The transfers, ordered by start time. Empty without a recording.
    pub transfers: Vec<TraceTransfer>,
    /// The requests that waited for other users of a buffer, ordered by start time. Empty without a
    /// recording.
    pub waits: Vec<TraceWait>,
    /// The decisions about which devices take part, ordered by time.
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
    /// The vendor's name for the device.
    pub description: String,
    /// The number of compute units.
    pub units: u32,
    /// Whether the device is the host, in whose memory data begins and ends.
    pub is_host: bool,
    /// The arena that its kernels use, as an index of [`Trace::arenas`].
    pub arena: Option<usize>,
    /// The number of packages whose results it contributed.
    pub packages: u64,
    /// The number of items in these packages.
    pub items: u64,
    /// The time with at least one package in flight.
    pub busy_ns: u64,
    /// The time at which its last package ended.
    pub end_ns: u64,
    /// The time of the whole work on this device alone, if it was measured.
    pub alone_ns: Option<u64>,
    /// The rate expected from earlier runs, in items per second, if the policy knew it.
    pub known_items_per_s: Option<f64>,
}

/// An arena of the platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceArena {
    /// The arena's name.
    pub name: String,
    /// The kind of memory.
    pub kind: String,
}

/// A package, with the times of its phases in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TracePackage {
    /// The position in the order in which packages were handed out.
    pub index: u64,
    /// The device, as an index of [`Trace::devices`].
    pub device: usize,
    /// The first item.
    pub first_item: u64,
    /// The number of items.
    pub items: u64,
    /// The time at which the unit had the package and requested its data.
    pub start_ns: u64,
    /// The time at which the device could begin.
    pub begun_ns: u64,
    /// The time at which the device had computed the package.
    pub computed_ns: u64,
    /// The time at which its results had reached their destination.
    pub end_ns: u64,
}

/// A copy from one arena to another, or a fill with zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceTransfer {
    /// The source, as an index of [`Trace::arenas`]; `None` for a fill.
    pub from: Option<usize>,
    /// The destination, as an index of [`Trace::arenas`].
    pub to: usize,
    /// The mechanism of the link that carried it; `fill` for a fill.
    pub mechanism: String,
    /// The number of the buffer.
    pub buffer: u64,
    /// The offset of the first byte in the buffer.
    pub first_byte: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The time at which the transfer started.
    pub begin_ns: u64,
    /// The time at which core noticed the end or gave the plan up. A transfer still in flight ends with the
    /// recording.
    pub end_ns: u64,
    /// Whether the bytes arrived.
    pub arrived: bool,
}

/// A request that waited for other users of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceWait {
    /// The arena of the request, as an index of [`Trace::arenas`]; `None` if the request was withdrawn.
    pub arena: Option<usize>,
    /// The number of the buffer.
    pub buffer: u64,
    /// The time at which the request was queued.
    pub begin_ns: u64,
    /// The time at which the request was granted or withdrawn.
    pub end_ns: u64,
}

/// A decision about whether a device takes part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceDecision {
    /// The time at which the decision took effect.
    pub at_ns: u64,
    /// The device, as an index of [`Trace::devices`].
    pub device: usize,
    /// The kind of decision.
    pub kind: DecisionKind,
    /// The reason, for people; may be empty.
    pub reason: String,
}

/// The kind of a decision about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionKind {
    /// The device took part from the start.
    Began,
    /// The device was called up during the run: the devices that had begun were not enough.
    CalledUp,
    /// The device was left out to the end of the run.
    LeftOut,
    /// The device failed, and other devices computed the rest.
    GaveUp,
    /// A kind that a later version of the format defines.
    #[serde(other)]
    Other,
}

/// A report or an event of another platform, whose ids stand for other devices and arenas.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OtherPlatform {
    /// The report is from a run on another platform.
    #[error(
        "cannot trace kernel {kernel} on platform {platform}: its report is from a run on platform {report}"
    )]
    Report {
        /// The kernel's name.
        kernel: String,
        /// The platform of the run.
        report: PlatformId,
        /// The platform of the trace.
        platform: PlatformId,
    },
    /// An event names an arena or a link that the platform lacks.
    #[error("cannot trace event {index}: platform {platform} has no {what}")]
    Event {
        /// The index of the event in the given list.
        index: usize,
        /// The arena or the link.
        what: String,
        /// The platform of the trace.
        platform: PlatformId,
    },
}

/// A recording in progress, which becomes a trace when it is finished.
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct TraceRecording {
    platform: Platform,
    recording: Recording,
    /// The time on the platform's clock at which it began.
    begun: Duration,
}

impl TraceRecording {
    /// Stops the recording, and makes a trace from it and the report of the recorded run.
    ///
    /// Transfers and waits that began before the run are omitted; those after the run are included.
    ///
    /// # Errors
    /// [`OtherPlatform`] if the report is from a run on another platform.
    pub fn finish(self, report: &Report) -> Result<Trace, OtherPlatform> {
        Trace::of(&self.platform, report, &self.recording.finish())
    }
}

impl Trace {
    /// Starts to record a platform: all transfers and waits from now on, whatever causes them.
    pub fn record(platform: &Platform) -> TraceRecording {
        TraceRecording { platform: platform.clone(), recording: platform.record(), begun: platform.elapsed() }
    }

    /// Makes a trace from a report and the events of a recording of the same platform, in recorded order.
    ///
    /// Without events, the trace has no transfers and no waits.
    ///
    /// # Errors
    /// [`OtherPlatform`] if the report is from a run on another platform, or if an event names an arena or a
    /// link that the platform lacks.
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

    /// Sets the title of the run.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the time of the whole work on each device alone, in the order of the devices.
    ///
    /// Speedup and efficiency are computed from these times.
    #[must_use]
    pub fn alone(mut self, times: impl IntoIterator<Item = Duration>) -> Self {
        for (device, time) in self.devices.iter_mut().zip(times) {
            device.alone_ns = Some(ns(time));
        }
        self
    }

    /// Sets the time of the whole run, where it exceeds the time of its packages.
    #[must_use]
    pub fn total(mut self, time: Duration) -> Self {
        self.total_ns = ns(time);
        self
    }

    /// Returns the version of the format that the trace was written in.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the end of the last package, transfer, wait or decision, or of the run if that is later; at
    /// least 1.
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

/// Checks that a report and events are from a platform, as far as the events can show it.
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
        let desc = platform.device_desc(of.device);
        TraceDevice {
            name: desc.name.to_string(),
            kind: desc.kind.to_string(),
            description: desc.description.clone(),
            units: desc.compute_units,
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
            let reason = match report.policy {
                PolicySpec::Calibrated => {
                    "without it, the running devices would have finished later or not at all"
                }
                _ => "the policy or the failure of other devices required it",
            };
            let reason = reason.to_owned();
            add(id, DecisionKind::CalledUp, called.at, reason);
        } else {
            let known =
                device.known_rate.map(|rate| format!("earlier runs predict {rate:.4e} items per second"));
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

/// Returns the index of a device among the devices of the run.
fn place(report: &Report, device: DeviceId) -> Option<usize> {
    report.devices.iter().position(|other| other.device == device)
}
