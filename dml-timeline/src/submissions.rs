//! Traces of programs that submit kernels, from the events of a recording alone.

use super::{FORMAT, Trace, TraceArena, TraceDevice, TracePackage, TraceRecording, VERSION, events, ns};
use dml_core::record::{Event, EventKind};
use dml_core::{ArenaId, BufferId, KernelId, OwnerId, Platform};
use std::collections::BTreeMap;
use std::time::Duration;

/// A submitted kernel, in time since the recording began.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    arena: ArenaId,
    launched: Duration,
    ended: Duration,
}

impl TraceRecording {
    /// Stops the recording, and makes a trace of the kernels that were [submitted](Platform::submit) since it
    /// began: each is a package of one item.
    ///
    /// A kernel begins when it was launched and the one before it on its arena had ended. It ends when the
    /// host learned that, which may be a millisecond late. Kernels that run within grants of the program's
    /// own are not in the trace.
    #[must_use]
    pub fn finish_submissions(self, label: &str) -> Trace {
        let Self { platform, recording, begun } = self;
        of_events(&platform, label, begun, &recording.finish())
    }
}

fn of_events(platform: &Platform, label: &str, begun: Duration, events: &[Event]) -> Trace {
    let submitted = submitted(begun, events);
    let home = |device: usize| platform.home(dml_core::DeviceId(device as u16));
    let mut devices: Vec<TraceDevice> = Vec::new();
    let (mut packages, mut last) = (Vec::new(), Duration::ZERO);
    for (number, desc) in platform.devices().iter().enumerate() {
        let Some(arena) = home(number) else { continue };
        // Devices of one memory have one stream.
        if (0..number).any(|other| home(other) == Some(arena)) {
            continue;
        }
        let of_arena: Vec<_> = submitted.values().filter(|kernel| kernel.arena == arena).collect();
        let Some(end) = of_arena.iter().map(|kernel| kernel.ended).max() else { continue };
        let (mut free, mut busy) = (Duration::ZERO, Duration::ZERO);
        for (index, kernel) in (0..).zip(&of_arena) {
            let start = kernel.launched.max(free).min(kernel.ended);
            (free, busy) = (kernel.ended, busy + (kernel.ended - start));
            packages.push(TracePackage {
                index,
                device: devices.len(),
                first_item: index,
                items: 1,
                start_ns: ns(kernel.launched.min(kernel.ended)),
                begun_ns: ns(start),
                computed_ns: ns(kernel.ended),
                end_ns: ns(kernel.ended),
            });
        }
        last = last.max(end);
        devices.push(TraceDevice {
            name: desc.name.to_string(),
            kind: desc.kind.to_string(),
            description: desc.description.clone(),
            units: desc.compute_units,
            is_host: platform.host() == Some(dml_core::DeviceId(number as u16)),
            arena: Some(usize::from(arena.0)),
            packages: of_arena.len() as u64,
            items: of_arena.len() as u64,
            busy_ns: ns(busy),
            end_ns: ns(end),
            alone_ns: None,
            known_items_per_s: None,
        });
    }
    let arena =
        |desc: &dml_core::ArenaDesc| TraceArena { name: desc.name.to_string(), kind: desc.kind.to_string() };
    let (transfers, waits) = events::read(platform, begun, events);
    Trace {
        format: FORMAT.to_owned(),
        version: VERSION,
        label: label.to_owned(),
        kernel: label.to_owned(),
        items: packages.len() as u64,
        policy: "submitted".to_owned(),
        duration_ns: ns(last),
        total_ns: ns(last),
        devices,
        arenas: platform.arenas().iter().map(|object| arena(object.desc())).collect(),
        packages,
        transfers,
        waits,
        decisions: Vec::new(),
    }
}

/// Returns the kernels that were launched on a stream and ended, in the order of their launches.
fn submitted(begun: Duration, events: &[Event]) -> BTreeMap<(Duration, KernelId), Submitted> {
    let mut grants: BTreeMap<(BufferId, OwnerId), (KernelId, ArenaId)> = BTreeMap::new();
    let mut kernels: BTreeMap<KernelId, (ArenaId, Duration, Option<Duration>)> = BTreeMap::new();
    for event in events {
        let at = event.at.saturating_sub(begun);
        match event.kind {
            EventKind::Granted { grant, kernel, arena, .. } => {
                grants.insert((event.buffer, grant), (kernel, arena));
            }
            EventKind::Launched { grant } => {
                if let Some((kernel, arena)) = grants.get(&(event.buffer, grant)) {
                    kernels.entry(*kernel).or_insert((*arena, at, None));
                }
            }
            EventKind::Released { grant, .. } => {
                if let Some((kernel, _)) = grants.remove(&(event.buffer, grant))
                    && let Some((_, _, ended)) = kernels.get_mut(&kernel)
                {
                    *ended = Some(at);
                }
            }
            _ => {}
        }
    }
    let ended = kernels.into_iter().filter_map(|(kernel, (arena, launched, ended))| {
        Some(((launched, kernel), Submitted { arena, launched, ended: ended? }))
    });
    ended.collect()
}
