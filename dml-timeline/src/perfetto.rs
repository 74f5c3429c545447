//! Export in Chrome's trace event format, which `ui.perfetto.dev` opens.
//!
//! ```text
//!  process  device cpu                     process  link main_mem -> opencl:0 (staged)
//!    track    decisions     slices           track    copies     slices; further tracks for overlaps
//!    track    computing     slices           counter  bytes per second
//!    track    handed out    slices
//!    track    results       slices           process  findings, each as long as the run
//!    track    waits         slices
//!    counter  items per second
//! ```
//! The trace itself is stored beside the events, in the field `dml`, for [`Trace::read`].
//!
//! Perfetto's display determines three details:
//! - It labels a track with the number of its process as the main thread, so no track has that number.
//! - It labels a counter with its name and the name of its value.
//! - It draws an instant as an arrow of a few pixels, so a decision is a slice that lasts until the next one.

use super::{DecisionKind, Finding, Trace};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Minimum process number of the findings, before those of the links. A device's process number is its index
/// plus 1.
const FINDINGS: usize = 1000;
/// Spacing of the sorts: the first track of each sort has a multiple of this number. Only this many tracks of
/// a sort are searched for a free one. Each further slice gets its own track.
const TRACKS_OF_A_SORT: usize = 1000;

/// The sorts of tracks of a device, from top to bottom.
#[derive(Clone, Copy)]
enum Sort {
    Decisions,
    Computing,
    Data,
    Results,
    Waits,
}

impl Sort {
    const fn name(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Computing => "computing",
            Self::Data => "handed out, not begun",
            Self::Results => "results on their way",
            Self::Waits => "waits for other users",
        }
    }

    /// Returns the number of the first track. All tracks of earlier sorts have numbers below `free`.
    fn first_track(self, free: usize) -> usize {
        ((self as usize + 1) * TRACKS_OF_A_SORT).max(free.next_multiple_of(TRACKS_OF_A_SORT))
    }
}

impl Trace {
    /// Writes a file for `ui.perfetto.dev` and `chrome://tracing`, which [`Trace::read`] reads back.
    ///
    /// It has a process for each device, one for each link and one for the findings. Their tracks show slices
    /// with items, bytes and rates, and counters.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_perfetto(&self, writer: impl Write) -> io::Result<()> {
        let mut writer = io::BufWriter::new(writer);
        writer.write_all(b"{\"traceEvents\":[")?;
        for (index, event) in self.events().iter().enumerate() {
            writer.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            write(&mut writer, event)?;
        }
        writer.write_all(b"\n],\n\"displayTimeUnit\":\"ns\",\n\"otherData\":")?;
        let other =
            json!({ "label": self.label, "kernel": self.kernel, "policy": self.policy, "items": self.items });
        write(&mut writer, &other)?;
        writer.write_all(b",\n\"dml\":")?;
        write(&mut writer, self)?;
        writer.write_all(b"}\n")?;
        writer.flush()
    }

    /// Returns the events of all devices, links and findings.
    fn events(&self) -> Vec<Value> {
        let mut events = Vec::new();
        for device in 0..self.devices.len() {
            self.device_events(device, &mut events);
        }
        self.link_events(&mut events);
        self.finding_events(&mut events);
        events
    }

    fn device_events(&self, device: usize, events: &mut Vec<Value>) {
        let pid = device + 1;
        let left_out = if self.is_left_out(device) { " (left out)" } else { "" };
        let name = format!("device {}{left_out}", self.device_name(device));
        events.extend(process(pid, &name));
        let packages = || self.packages.iter().filter(|package| package.device == device);
        let mut free = 0;
        let mut turn = |sort: Sort, spans: Vec<Slice>, events: &mut Vec<Value>| {
            free = tracks(pid, sort.first_track(free), sort.name(), spans, events);
        };
        turn(Sort::Decisions, self.decisions_of(device), events);
        let slice = |name: String, package: &super::TracePackage, (from, to): (u64, u64), cat| Slice {
            from,
            to,
            cat,
            args: json!({
                "package": package.index, "first_item": package.first_item, "items": package.items,
                "items_per_s": rate(package.items, package.computed_ns - package.begun_ns),
            }),
            name,
        };
        let computing = packages().map(|package| {
            let name = format!("package {}: {} items", package.index, package.items);
            slice(name, package, (package.begun_ns, package.computed_ns), "computing")
        });
        turn(Sort::Computing, computing.collect(), events);
        let data = packages().filter(|package| package.begun_ns > package.start_ns).map(|package| {
            let name = format!("package {} handed out, not begun", package.index);
            slice(name, package, (package.start_ns, package.begun_ns), "data")
        });
        turn(Sort::Data, data.collect(), events);
        let results = packages().filter(|package| package.end_ns > package.computed_ns).map(|package| {
            let name = format!("results of package {}", package.index);
            slice(name, package, (package.computed_ns, package.end_ns), "results")
        });
        turn(Sort::Results, results.collect(), events);
        let home = self.devices[device].arena;
        let waits = self.waits.iter().filter(|wait| home.is_some() && wait.arena == home).map(|wait| Slice {
            from: wait.begin_ns,
            to: wait.end_ns,
            cat: "wait",
            args: json!({ "buffer": wait.buffer }),
            name: format!("waits for buffer b{}", wait.buffer),
        });
        turn(Sort::Waits, waits.collect(), events);
        let rates = packages().map(|package| {
            let rate = rate(package.items, package.computed_ns - package.begun_ns);
            (package.begun_ns, package.computed_ns, rate)
        });
        counter(pid, "items", rates.collect(), events);
    }

    /// Returns the decisions of a device as slices. Each lasts until the next one, the last until the end of
    /// the trace.
    fn decisions_of(&self, device: usize) -> Vec<Slice> {
        let of_device = self.decisions.iter().filter(|decision| decision.device == device);
        let mut of_device: Vec<_> = of_device.collect();
        of_device.sort_by_key(|decision| decision.at_ns);
        let ends = of_device.iter().skip(1).map(|next| next.at_ns).chain([self.end_ns()]);
        let slice = |(decision, to): (&&super::TraceDecision, u64)| {
            let name = match decision.kind {
                DecisionKind::Began => "took part",
                DecisionKind::CalledUp => "called up",
                DecisionKind::LeftOut => "left out",
                DecisionKind::GaveUp => "gave up",
                DecisionKind::Other => "decision",
            };
            let reason = &decision.reason;
            let name = if reason.is_empty() { name.to_owned() } else { format!("{name}: {reason}") };
            let args = json!({ "reason": reason });
            Slice { from: decision.at_ns, to: to.max(decision.at_ns), name, cat: "decision", args }
        };
        of_device.iter().zip(ends).map(slice).collect()
    }

    /// Adds the findings, each as long as the trace.
    fn finding_events(&self, events: &mut Vec<Value>) {
        let slice = |Finding { device, text, .. }: Finding| Slice {
            from: 0,
            to: self.end_ns(),
            cat: "finding",
            args: json!({ "device": device.map(|device| self.device_name(device)) }),
            name: text,
        };
        let pid = self.process_of_findings();
        events.extend(process(pid, "findings"));
        tracks(pid, 1, "findings", self.findings().into_iter().map(slice).collect(), events);
    }

    fn process_of_findings(&self) -> usize {
        FINDINGS.max(self.devices.len() + 1)
    }

    fn link_events(&self, events: &mut Vec<Value>) {
        let mut links: BTreeMap<(Option<usize>, usize, &str), Vec<usize>> = BTreeMap::new();
        for (place, transfer) in self.transfers.iter().enumerate() {
            links.entry((transfer.from, transfer.to, &transfer.mechanism)).or_default().push(place);
        }
        for (index, ((from, to, mechanism), places)) in links.into_iter().enumerate() {
            let pid = self.process_of_findings() + 1 + index;
            let (from, to) = (self.arena_name(from), self.arena_name(Some(to)));
            events.extend(process(pid, &format!("link {from} -> {to} ({mechanism})")));
            let transfers = || places.iter().map(|&place| &self.transfers[place]);
            let bytes_per_s =
                |transfer: &super::TraceTransfer| rate(transfer.bytes, transfer.end_ns - transfer.begin_ns);
            let copies = transfers().map(|transfer| Slice {
                from: transfer.begin_ns,
                to: transfer.end_ns,
                cat: "transfer",
                args: json!({
                    "bytes": transfer.bytes, "bytes_per_s": bytes_per_s(transfer), "buffer": transfer.buffer,
                    "first_byte": transfer.first_byte, "arrived": transfer.arrived,
                }),
                name: format!("{} bytes of b{}", transfer.bytes, transfer.buffer),
            });
            tracks(pid, 1, "copies", copies.collect(), events);
            let rates =
                transfers().map(|transfer| (transfer.begin_ns, transfer.end_ns, bytes_per_s(transfer)));
            counter(pid, "bytes", rates.collect(), events);
        }
    }
}

/// An event with a duration, in nanoseconds.
struct Slice {
    from: u64,
    to: u64,
    name: String,
    cat: &'static str,
    args: Value,
}

/// Adds slices to one track, and to further tracks where they overlap.
///
/// Returns a number above those of all these tracks.
fn tracks(pid: usize, first: usize, name: &str, mut slices: Vec<Slice>, events: &mut Vec<Value>) -> usize {
    // Skip the number of the process: Perfetto would label that track as the main thread.
    let number = |place: usize| first + place + usize::from((first..=first + place).contains(&pid));
    slices.sort_by_key(|slice| (slice.from, slice.to));
    // The time at which each track becomes free.
    let mut free: Vec<u64> = Vec::new();
    for Slice { from, to, name: slice, cat, args } in slices {
        let place = free.iter().take(TRACKS_OF_A_SORT).position(|until| *until <= from);
        let place = place.unwrap_or_else(|| {
            let place = free.len();
            let name = if place == 0 { name.to_owned() } else { format!("{name} ({})", place + 1) };
            events.extend(track(pid, number(place), &name));
            free.push(0);
            place
        });
        free[place] = to.max(from.saturating_add(1));
        events.push(json!({
            "ph": "X", "pid": pid, "tid": number(place), "ts": us(from), "dur": us(to - from),
            "cat": cat, "name": slice, "args": args,
        }));
    }
    number(free.len())
}

/// Adds a counter: the sum of the rates at each time.
fn counter(pid: usize, name: &str, rates: Vec<(u64, u64, f64)>, events: &mut Vec<Value>) {
    let steps = rates
        .into_iter()
        .flat_map(|(from, to, rate)| [(from, rate, 1_i64), (to.max(from.saturating_add(1)), -rate, -1)]);
    let mut steps: Vec<(u64, f64, i64)> = steps.collect();
    steps.sort_by_key(|(at, ..)| *at);
    let (mut sum, mut within) = (0.0, 0_i64);
    for (index, &(at, change, one)) in steps.iter().enumerate() {
        within += one;
        // Adding and subtracting rates leaves rounding errors. While nothing is in flight, the rate is
        // exactly 0.
        sum = if within <= 0 { 0.0 } else { sum + change };
        if steps.get(index + 1).is_none_or(|next| next.0 != at) {
            events.push(
                json!({ "ph": "C", "pid": pid, "ts": us(at), "name": name, "args": { "per second": sum } }),
            );
        }
    }
}

fn process(pid: usize, name: &str) -> [Value; 2] {
    [
        json!({ "ph": "M", "pid": pid, "name": "process_name", "args": { "name": name } }),
        json!({ "ph": "M", "pid": pid, "name": "process_sort_index", "args": { "sort_index": pid } }),
    ]
}

fn track(pid: usize, tid: usize, name: &str) -> [Value; 2] {
    [
        json!({ "ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": { "name": name } }),
        json!({ "ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": { "sort_index": tid } }),
    ]
}

/// Converts nanoseconds to microseconds, the unit of the format.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn rate(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

fn write(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(writer, value).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn a_rate_is_one_of_a_second() {
        assert_eq!([rate(6, 3_000_000_000), rate(1, 0)], [2.0, 0.0]);
    }
}
