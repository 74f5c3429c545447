//! Traces of co-executions: their contents, the files written from them, and reading them back.

#![cfg(all(not(dml_loom), feature = "timeline"))]

mod by_hand;
mod submitted;

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    Access, ArenaDesc, ArenaId, ArenaKind, BufferId, Claims, Concurrency, DeviceDesc, DeviceId, DeviceKind,
    DeviceSet, Fence, Grants, KernelId, LinkId, LinkSpeed, OwnerId, Platform, Seq, Span, Ticket,
    record::{Event, EventKind},
};
use dml::prelude::*;
use dml::scheduler::{KernelError, Report};
use dml::timeline::{DecisionKind, Finding, FindingKind, OtherPlatform, Trace, TraceError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const GPU2: DeviceId = DeviceId(2);
const ALL: [DeviceId; 3] = [CPU, GPU, GPU2];

/// Main memory and two devices with memories of their own.
fn platform() -> Platform {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu:0", DeviceKind::Gpu), ("gpu:1", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
    for (device, name) in [(GPU, "video:0"), (GPU2, "video:1")] {
        let video = ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(cpu);
        let video = builder.add_arena(Arc::new(Null::backed(video)));
        kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
    }
    builder.build().expect("a sound platform")
}

/// Returns a kernel that reads one buffer and writes another. `on` is what a device does in place of
/// computing.
fn kernel(
    platform: &Platform,
    items: u64,
    on: impl Fn(DeviceId) -> Result<Fence, KernelError> + Clone + Send + Sync + 'static,
) -> Kernel {
    let source: Vec<u32> = (0..items as u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect();
    let source = platform.buffer_from(source).expect("a small buffer");
    let target = platform.buffer::<u32>(items).build().expect("a small buffer");
    let per_item = || Footprint::PerItem { bytes: 4 };
    let kernel = Kernel::new("triple", 1)
        .argument(Argument::part(&source, Access::ReadOnly, per_item()))
        .argument(Argument::part(&target, Access::WriteInvalidate, per_item()));
    ALL.into_iter().fold(kernel, |kernel, device| {
        let on = on.clone();
        kernel.variant(device, move |_: &Package, _: &mut Grants| on(device))
    })
}

fn recorded(platform: &Platform, policy: &str, items: u64) -> (Report, Trace) {
    let kernel = kernel(platform, items, |_| Ok(Fence::done(0)));
    platform.counters().reset();
    let recording = Trace::record(platform);
    let policy = policy.parse().expect("a policy");
    let report = Coexecutor::new(platform).policy(policy).run(&kernel, items).expect("nothing is wrong");
    let trace = recording.finish(&report).expect("of this platform");
    (report, trace)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn perfetto(trace: &Trace) -> (String, Value) {
    let mut file = Vec::new();
    trace.write_perfetto(&mut file).expect("a vector takes everything");
    let text = String::from_utf8(file).expect("JSON is text");
    let value = serde_json::from_str(&text).expect("it is JSON");
    (text, value)
}

fn page(trace: &Trace) -> String {
    let mut file = Vec::new();
    trace.write_page(&mut file).expect("a vector takes everything");
    String::from_utf8(file).expect("HTML is text")
}

/// A trace has every package, device and transfer of its run, with the values of the report and the
/// platform's counters.
#[test]
fn a_trace_says_what_the_report_and_the_counters_say() {
    for policy in ["static", "dynamic:60", "hguided"] {
        let platform = platform();
        let (report, trace) = recorded(&platform, policy, 3000);
        assert_eq!((trace.kernel.as_str(), trace.items, trace.policy.as_str()), ("triple", 3000, policy));
        assert_eq!(trace.duration_ns, ns(report.duration));
        assert_eq!(trace.packages.len(), report.packages.len());
        for (package, record) in trace.packages.iter().zip(&report.packages) {
            assert_eq!(
                (package.index, package.first_item, package.items),
                (record.package.index(), record.package.start(), record.package.items())
            );
            assert_eq!(report.devices[package.device].device, record.device);
            let turns = [package.start_ns, package.begun_ns, package.computed_ns, package.end_ns];
            assert_eq!(turns, [record.start, record.begun, record.computed, record.end].map(ns));
        }
        let names: Vec<_> =
            trace.devices.iter().map(|device| (device.name.as_str(), device.is_host)).collect();
        assert_eq!(names, [("cpu", true), ("gpu:0", false), ("gpu:1", false)]);
        for (device, of) in trace.devices.iter().zip(&report.devices) {
            assert_eq!((device.packages, device.items), (of.packages, of.items));
            assert_eq!((device.busy_ns, device.end_ns), (ns(of.busy), ns(of.end)));
        }
        let mut carried = BTreeMap::new();
        for transfer in platform.counters().transfers() {
            let link = platform.links()[usize::from(transfer.link.0)];
            let key = (usize::from(link.from.0), usize::from(link.to.0));
            let sum: &mut (u64, u64) = carried.entry(key).or_default();
            *sum = (sum.0 + transfer.bytes, sum.1 + transfer.copies);
        }
        let mut traced = BTreeMap::new();
        for transfer in trace.transfers.iter().filter(|transfer| transfer.mechanism != "fill") {
            assert!(transfer.arrived && transfer.begin_ns <= transfer.end_ns, "{transfer:?}");
            let key = (transfer.from.expect("no fill"), transfer.to);
            let sum: &mut (u64, u64) = traced.entry(key).or_default();
            *sum = (sum.0 + transfer.bytes, sum.1 + 1);
        }
        assert_eq!(traced, carried, "{policy}");
        assert_eq!(carried.contains_key(&(0, 1)), trace.devices[1].items > 0);
    }
}

#[test]
fn the_parts_of_a_devices_time_add_up_to_the_run() {
    let platform = platform();
    let (_, trace) = recorded(&platform, "dynamic:40", 4000);
    let summary = trace.summary();
    for (figures, device) in summary.devices.iter().zip(&trace.devices) {
        let parts = figures.computing_ns + figures.fetching_ns + figures.returning_ns + figures.idle_ns;
        assert_eq!(parts, trace.duration_ns, "{figures:?}");
        assert_eq!(
            trace.duration_ns - figures.idle_ns,
            device.busy_ns,
            "busy is what is not idle: {figures:?}"
        );
        assert_eq!((figures.packages, figures.items), (device.packages, device.items));
    }
    assert_eq!(summary.speedup, None, "nothing ran alone");
    let timed = trace.clone().alone([4, 2, 8].map(Duration::from_secs)).total(Duration::from_secs(1));
    let summary = timed.summary();
    assert_eq!((summary.speedup, summary.s_max), (Some(2.0), Some(0.5 + 1.0 + 0.25)));
    assert_eq!(summary.efficiency, Some(2.0 / 1.75));
}

/// A trace with phases that are easy to follow: one device computes, another mostly waits for its data, and a
/// third is left out.
fn by_hand() -> Value {
    let device = |name: &str, arena: usize| {
        json!({ "name": name, "kind": "gpu", "description": "", "units": 1, "is_host": arena == 0, "arena": arena,
            "packages": 2, "items": 20, "busy_ns": 0, "end_ns": 0, "alone_ns": null, "known_items_per_s": null })
    };
    let package = |index: u64, device: u64, items: u64, turns: [u64; 4]| {
        json!({ "index": index, "device": device, "first_item": index * 10, "items": items, "start_ns": turns[0],
            "begun_ns": turns[1], "computed_ns": turns[2], "end_ns": turns[3] })
    };
    json!({
        "format": "dml-trace", "version": 1, "label": "by hand", "kernel": "k", "items": 100, "policy": "static",
        "duration_ns": 1000, "total_ns": 1000,
        "devices": [device("cpu", 0), device("gpu", 1), device("tpu", 1)],
        "arenas": [{ "name": "main", "kind": "m" }, { "name": "video", "kind": "v" }],
        "packages": [
            package(0, 0, 60, [0, 0, 900, 900]),
            // The second package of `gpu` is handed out while the first one computes. Its results return
            // while `gpu` does nothing else.
            package(1, 1, 10, [100, 500, 600, 650]),
            package(2, 1, 30, [550, 700, 800, 880]),
        ],
        "transfers": [
            { "from": 0, "to": 1, "mechanism": "staged", "buffer": 7, "first_byte": 0, "bytes": 800, "begin_ns": 100, "end_ns": 500, "arrived": true },
            { "from": 0, "to": 1, "mechanism": "staged", "buffer": 7, "first_byte": 800, "bytes": 100, "begin_ns": 400, "end_ns": 600, "arrived": true },
            { "from": 1, "to": 0, "mechanism": "staged", "buffer": 8, "first_byte": 0, "bytes": 50, "begin_ns": 800, "end_ns": 880, "arrived": false },
        ],
        "waits": [{ "arena": 1, "buffer": 7, "begin_ns": 100, "end_ns": 140 }],
        "decisions": [
            { "at_ns": 0, "device": 2, "kind": "left_out", "reason": "it is no use" },
            { "at_ns": 90, "device": 1, "kind": "called_up", "reason": "" },
        ],
    })
}

fn read(value: &Value) -> Result<Trace, TraceError> {
    Trace::read(&value.to_string())
}

/// The figures and findings of a made-up trace, computed by hand.
#[test]
fn figures_and_findings_of_a_trace_made_by_hand() {
    let trace = read(&by_hand()).expect("it is sound");
    let summary = trace.summary();
    let [cpu, gpu, tpu] = &summary.devices[..] else { panic!("three devices") };
    assert_eq!((cpu.computing_ns, cpu.idle_ns, cpu.idle_after_ns), (900, 100, 100));
    // `gpu` only fetches data from 100 to 500 and from 600 to 700, and only returns results from 800 to 880.
    // It is idle before 100 and after 880.
    assert_eq!((gpu.computing_ns, gpu.fetching_ns, gpu.returning_ns, gpu.idle_ns), (200, 500, 80, 220));
    assert_eq!((gpu.idle_before_ns, gpu.idle_after_ns, gpu.share), (100, 120, 0.4));
    assert_eq!((gpu.items_per_s, gpu.computing_items_per_s), (40e9 / 780.0, 40e9 / 200.0));
    assert_eq!((tpu.idle_ns, tpu.idle_before_ns, tpu.left_out), (1000, 1000, true));
    let [there, back] = &summary.links[..] else { panic!("two ways: {:?}", summary.links) };
    assert_eq!(
        (there.from.as_str(), there.to.as_str(), there.bytes, there.copies),
        ("main", "video", 900, 2)
    );
    assert_eq!((there.moving_ns, there.bytes_per_s), (500, 900e9 / 500.0));
    assert_eq!((back.bytes, back.copies, back.failed, summary.bytes), (0, 0, 1, 900));

    let findings = trace.findings();
    let of = |kind: FindingKind| -> Vec<&str> {
        findings.iter().filter(|finding| finding.kind == kind).map(|finding| finding.text.as_str()).collect()
    };
    let [slow] = of(FindingKind::Slow)[..] else { panic!("{findings:?}") };
    assert!(
        slow.starts_with("gpu was the slowest device") && slow.contains("waited for input data (64%)"),
        "{slow}"
    );
    let [data] = of(FindingKind::Data)[..] else { panic!("{findings:?}") };
    assert!(data.contains("waited 50% of the run for input data (900 B in 2 copies)"), "{data}");
    assert_eq!(of(FindingKind::LeftOut), ["tpu was left out: it is no use."]);
    let [idle] = of(FindingKind::Idle)[..] else { panic!("{findings:?}") };
    assert_eq!(
        idle,
        "gpu was idle for 22% of the run: 100 ns before its first package, 120 ns after its last package, while cpu was still running."
    );
}

/// Fills with zeros use no link and failed copies brought nothing, so neither counts as input data.
#[test]
fn data_to_come_is_what_came_from_another_memory() {
    let transfer = |from: Option<u64>, to: u64, bytes: u64, arrived: bool| {
        json!({ "from": from, "to": to, "mechanism": "m", "buffer": 9, "first_byte": 0, "bytes": bytes, "begin_ns": 120,
            "end_ns": 130, "arrived": arrived })
    };
    let mut value = by_hand();
    let transfers = value["transfers"].as_array_mut().expect("a list");
    transfers.extend([
        transfer(None, 1, 5000, true),
        transfer(Some(0), 1, 300, false),
        transfer(Some(1), 0, 40, true),
        transfer(None, 0, 6000, true),
    ]);
    // Make the return of results long enough for a finding.
    value["packages"][2]["end_ns"] = json!(1000);
    let findings = read(&value).expect("it is sound").findings();
    let of_gpu = |finding: &&Finding| finding.kind == FindingKind::Data && finding.device == Some(1);
    let data = &findings.iter().find(of_gpu).expect("it waited").text;
    assert!(data.contains("for input data (900 B in 2 copies)"), "{data}");
    assert!(data.contains("for results to return (40 B in one copy)"), "{data}");
}

/// The time of a link is the time with at least one copy in flight. One copy may lie within another.
#[test]
fn the_time_of_a_link_is_that_of_all_its_copies_together() {
    let mut value = by_hand();
    let copy = |begin_ns: u64, end_ns: u64, bytes: u64| {
        json!({ "from": 0, "to": 1, "mechanism": "staged", "buffer": 7, "first_byte": 0, "bytes": bytes, "begin_ns": begin_ns,
            "end_ns": end_ns, "arrived": true })
    };
    value["transfers"] = json!([
        copy(100, 500, 300),
        copy(150, 200, 40),
        copy(450, 460, 60),
        copy(500, 510, 7),
        copy(700, 790, 3)
    ]);
    let [link] = &read(&value).expect("it is sound").summary().links[..] else { panic!("one way") };
    assert_eq!((link.copies, link.bytes, link.moving_ns), (5, 410, 400 + 10 + 90));
    assert_eq!(link.bytes_per_s, 410e9 / 500.0);
}

/// A wait belongs to the device of its arena. A withdrawn request has no arena, and must not match a device
/// without an arena.
#[test]
fn a_wait_stands_beside_the_device_of_its_memory_alone() {
    let mut value = by_hand();
    value["devices"][2]["arena"] = Value::Null;
    value["waits"] = json!([
        { "arena": 1, "buffer": 7, "begin_ns": 100, "end_ns": 140 },
        { "arena": null, "buffer": 8, "begin_ns": 200, "end_ns": 250 },
        { "arena": 0, "buffer": 9, "begin_ns": 300, "end_ns": 310 },
    ]);
    let (_, file) = perfetto(&read(&value).expect("it is sound"));
    let events = file["traceEvents"].as_array().expect("a list").iter();
    let waits: Vec<_> = events
        .filter(|event| event["cat"] == "wait")
        .map(|event| (event["pid"].as_u64(), event["args"]["buffer"].as_u64(), event["dur"].as_f64()))
        .collect();
    assert_eq!(waits, [(Some(1), Some(9), Some(0.01)), (Some(2), Some(7), Some(0.04))]);
}

/// Every device that is much slower than the fastest is named, and none is named if all are about as fast.
#[test]
fn slow_devices_are_named_and_no_others() {
    let with_items = |items: [u64; 3]| {
        let mut value = by_hand();
        value["decisions"] = json!([]);
        value["transfers"] = json!([]);
        let package = |device: usize| {
            json!({ "index": device, "device": device, "first_item": 0, "items": items[device], "start_ns": 0, "begun_ns": 0,
                "computed_ns": 1000, "end_ns": 1000 })
        };
        value["packages"] = json!([package(0), package(1), package(2)]);
        let findings = read(&value).expect("it is sound").findings();
        let slow = findings.into_iter().filter(|finding| finding.kind == FindingKind::Slow);
        slow.map(|finding| (finding.device, finding.text)).collect::<Vec<_>>()
    };
    let [(None, even)] = &with_items([100, 101, 110])[..] else { panic!("no device is slow") };
    assert!(even.starts_with("No device was slow"), "{even}");
    let [(Some(0), one)] = &with_items([60, 100, 110])[..] else { panic!("one is slow") };
    assert!(
        one.starts_with("cpu was the slowest device: 60.00 M items/s, 1.8 times slower than tpu (110.00 M"),
        "{one}"
    );
    let [(Some(2), first), (Some(0), second)] = &with_items([40, 100, 10])[..] else {
        panic!("two are slow")
    };
    assert!(
        first.starts_with("tpu was the slowest device") && second.starts_with("cpu was also slow"),
        "{second}"
    );
    assert!(first.contains("Compute was its bottleneck: it computed for 100%"), "{first}");
}

/// Copies within one storage are no transfers. Copies that never arrive are marked. Transfers that began
/// before the run are omitted.
#[test]
fn events_become_transfers_and_waits() {
    let platform = platform();
    let (report, _) = recorded(&platform, "static", 30);
    let event = |at_ns: u64, buffer: u64, kind: EventKind| Event {
        at: report.begun + Duration::from_nanos(at_ns),
        buffer: BufferId(buffer),
        kind,
    };
    let (main, video) = (ArenaId(0), ArenaId(1));
    let started = |owner: u64, from: Option<ArenaId>, bytes: u64, link: Option<u16>| EventKind::CopyStarted {
        owner: OwnerId(owner),
        from,
        to: video,
        span: Span::new(8, 8 + bytes),
        link: link.map(LinkId),
    };
    let done = |owner: u64, from: Option<ArenaId>, bytes: u64| EventKind::CopyDone {
        owner: OwnerId(owner),
        from,
        to: video,
        span: Span::new(8, 8 + bytes),
    };
    let granted = |kernel: u64| EventKind::Granted {
        grant: OwnerId(kernel),
        kernel: KernelId(kernel),
        arena: video,
        claims: Claims::new([]),
        seq: Seq(0),
    };
    let early = Event { at: Duration::ZERO, buffer: BufferId(1), kind: started(1, Some(main), 99, Some(0)) };
    let events = [
        early,
        event(10, 1, EventKind::Queued { ticket: Ticket(1), kernel: KernelId(50) }),
        event(11, 1, EventKind::Queued { ticket: Ticket(2), kernel: KernelId(51) }),
        event(20, 1, started(2, Some(main), 40, Some(0))),
        event(21, 2, started(2, Some(main), 40, Some(0))),
        // Both arenas share one storage.
        event(22, 1, started(3, Some(main), 30, None)),
        event(22, 1, done(3, Some(main), 30)),
        event(25, 1, done(1, Some(main), 99)),
        event(30, 1, started(4, None, 16, None)),
        event(31, 1, done(4, None, 16)),
        event(40, 2, EventKind::GivenUp { owner: OwnerId(2) }),
        event(45, 1, granted(51)),
        event(50, 1, done(2, Some(main), 40)),
        event(55, 1, EventKind::Cancelled { ticket: Ticket(1) }),
        event(60, 3, started(5, Some(main), 7, Some(0))),
        event(70, 1, EventKind::Closed),
    ];
    let trace = Trace::of(&platform, &report, &events).expect("of this platform");
    let mechanism = platform.cross_arena(LinkId(0)).name();
    let transfers: Vec<_> = trace
        .transfers
        .iter()
        .map(|t| {
            (t.mechanism.as_str(), t.buffer, t.from, t.first_byte, t.bytes, t.begin_ns, t.end_ns, t.arrived)
        })
        .collect();
    assert_eq!(
        transfers,
        [
            (mechanism, 1, Some(0), 8, 40, 20, 50, true),
            (mechanism, 2, Some(0), 8, 40, 21, 40, false),
            ("fill", 1, None, 8, 16, 30, 31, true),
            (mechanism, 3, Some(0), 8, 7, 60, 70, false),
        ]
    );
    let waits: Vec<_> = trace.waits.iter().map(|w| (w.arena, w.buffer, w.begin_ns, w.end_ns)).collect();
    assert_eq!(waits, [(None, 1, 10, 55), (Some(1), 1, 11, 45)]);
}

/// A kernel may wait for several buffers at once, in concurrent runs. A grant ends the earliest wait for its
/// own buffer.
#[test]
fn a_grant_ends_the_wait_for_its_own_buffer() {
    let platform = platform();
    let (report, _) = recorded(&platform, "static", 30);
    let event = |at_ns: u64, buffer: u64, kind: EventKind| Event {
        at: report.begun + Duration::from_nanos(at_ns),
        buffer: BufferId(buffer),
        kind,
    };
    let queued = |ticket: u64| EventKind::Queued { ticket: Ticket(ticket), kernel: KernelId(50) };
    let granted = |grant: u64, arena: u8| EventKind::Granted {
        grant: OwnerId(grant),
        kernel: KernelId(50),
        arena: ArenaId(arena),
        claims: Claims::new([]),
        seq: Seq(0),
    };
    let events = [
        event(10, 1, queued(1)),
        event(20, 2, queued(1)),
        event(25, 2, queued(2)),
        event(30, 3, queued(1)),
        event(40, 3, granted(1, 2)),
        event(50, 2, granted(2, 1)),
        event(55, 3, granted(3, 0)),
        event(60, 2, granted(4, 0)),
        event(70, 1, EventKind::Cancelled { ticket: Ticket(1) }),
    ];
    let trace = Trace::of(&platform, &report, &events).expect("of this platform");
    let waits: Vec<_> = trace.waits.iter().map(|w| (w.arena, w.buffer, w.begin_ns, w.end_ns)).collect();
    assert_eq!(waits, [(None, 1, 10, 70), (Some(1), 2, 20, 50), (Some(0), 2, 25, 60), (Some(2), 3, 30, 40)]);
}

/// The ids of another platform would stand for other devices and arenas.
#[test]
fn a_report_or_events_of_another_platform_are_refused() {
    let (here, there) = (platform(), platform());
    let mut small = Platform::builder();
    small.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let small = small.build().expect("a device alone is a platform");
    let (report, _) = recorded(&here, "static", 300);
    assert_eq!((report.platform, here.id() == there.id()), (here.id(), false));
    for other in [&there, &small] {
        let expected =
            OtherPlatform::Report { kernel: "triple".to_owned(), report: here.id(), platform: other.id() };
        assert_eq!(Trace::of(other, &report, &[]), Err(expected.clone()));
        assert_eq!(Trace::record(other).finish(&report), Err(expected));
    }
    let span = Span::new(0, 8);
    let granted = |arena| EventKind::Granted {
        kernel: KernelId(1),
        grant: OwnerId(1),
        arena: ArenaId(arena),
        claims: Claims::new([]),
        seq: Seq(0),
    };
    let started = |from, to, link| {
        let (from, to, link) = (Some(ArenaId(from)), ArenaId(to), Some(LinkId(link)));
        EventKind::CopyStarted { owner: OwnerId(1), from, to, span, link }
    };
    let done = |from, to| EventKind::CopyDone {
        owner: OwnerId(1),
        from: Some(ArenaId(from)),
        to: ArenaId(to),
        span,
    };
    let link = here.links()[1];
    for (kind, named) in [
        (granted(3), Some("arena a3")),
        (started(3, 1, 0), Some("arena a3")),
        (started(0, 9, 0), Some("arena a9")),
        (started(0, 1, 77), Some("link l77")),
        (started(link.from.0, link.to.0, 0), Some("link l0")),
        (started(link.from.0, link.to.0, 1), None),
        (done(0, 3), Some("arena a3")),
        (done(7, 1), Some("arena a7")),
        (granted(2), None),
    ] {
        let fine = Event { at: report.begun, buffer: BufferId(1), kind: EventKind::Closed };
        let told = Trace::of(&here, &report, &[fine, Event { at: report.begun, buffer: BufferId(1), kind }]);
        match (told, named) {
            (Ok(_), None) => {}
            (Err(OtherPlatform::Event { index: 1, what, platform }), Some(named)) => {
                assert!(what.starts_with(named) && platform == here.id(), "{what} for {named}");
            }
            (told, named) => panic!("{told:?} for {named:?}"),
        }
    }
}

/// Without a recording, a trace has all packages and neither transfers nor waits.
#[test]
fn a_run_without_a_recording_has_packages_and_no_transfers() {
    let platform = platform();
    let (report, recorded) = recorded(&platform, "static", 300);
    assert!(!recorded.transfers.is_empty());
    let plain = Trace::of(&platform, &report, &[]).expect("of this platform");
    assert!(plain.transfers.is_empty() && plain.waits.is_empty());
    assert_eq!(plain.packages, recorded.packages);
}

#[test]
fn who_fails_who_is_left_out_and_who_is_called_up_is_told() {
    let platform = platform();
    let refusing = kernel(&platform, 300, |device| match device {
        GPU => Err("out of order".into()),
        _ => Ok(Fence::done(0)),
    });
    let coexecutor = Coexecutor::new(&platform);
    let fixed = coexecutor.clone().policy(PolicySpec::Static);
    let report = fixed.run(&refusing, 300).expect("others are left");
    let trace = Trace::of(&platform, &report, &[]).expect("of this platform");
    let gave_up =
        trace.decisions.iter().find(|decision| decision.kind == DecisionKind::GaveUp).expect("it failed");
    assert_eq!((gave_up.device, gave_up.at_ns), (1, ns(report.failures[0].at)));
    assert!(gave_up.reason.contains("out of order") && gave_up.at_ns <= trace.duration_ns, "{gave_up:?}");
    let failure = trace.findings().into_iter().find(|finding| finding.kind == FindingKind::Failure);
    assert!(failure.expect("it is said").text.contains("gpu:0 gave up"));

    // A run of one work-group is computed by the host alone.
    let quick = kernel(&platform, 1, |_| Ok(Fence::done(0)));
    let report = coexecutor.run(&quick, 1).expect("nothing is wrong");
    let trace = Trace::of(&platform, &report, &[]).expect("of this platform");
    let kinds: Vec<_> = trace.decisions.iter().map(|decision| decision.kind).collect();
    assert_eq!(kinds, [DecisionKind::Began, DecisionKind::LeftOut, DecisionKind::LeftOut]);
    let reason = report.left_out[0].reason.to_string();
    assert_eq!(trace.decisions[1].reason, reason);
    assert!(trace.findings().iter().any(|finding| finding.text.contains(&reason)));

    // The host is so slow that the other devices are called up.
    let slow = kernel(&platform, 4000, |device| {
        if device == CPU {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Fence::done(0))
    });
    let report = Coexecutor::new(&platform).run(&slow, 4000).expect("nothing is wrong");
    let trace = Trace::of(&platform, &report, &[]).expect("of this platform");
    assert!(!report.called_up.is_empty(), "{report:?}");
    for called in &report.called_up {
        assert!(called.at > Duration::ZERO, "{called:?}");
        let device = usize::from(called.device.0);
        let told = trace.decisions.iter().find(|decision| decision.device == device).expect("it is told");
        assert_eq!((told.kind, told.at_ns), (DecisionKind::CalledUp, ns(called.at)));
        assert!(told.reason.contains("would have finished later"), "{told:?}");
        let mut own = trace.packages.iter().filter(|package| package.device == device);
        assert!(own.all(|package| package.start_ns >= told.at_ns), "it has nothing before");
    }
}

/// The file for Perfetto is JSON in the trace event format. The test computes its events from the report.
#[test]
fn the_events_for_perfetto_are_those_of_the_report() {
    let platform = platform();
    let (report, trace) = recorded(&platform, "dynamic:50", 5000);
    let (text, file) = perfetto(&trace);
    assert!(text.starts_with("{\"traceEvents\":["), "Perfetto knows the format by its first bytes");
    let events = file["traceEvents"].as_array().expect("a list");
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let mut expected: Vec<(u64, String, f64, f64)> = Vec::new();
    for record in &report.packages {
        let pid = u64::from(record.device.0) + 1;
        let mut add = |cat: &str, from: Duration, to: Duration| {
            expected.push((pid, cat.to_owned(), us(from), us(to - from)));
        };
        add("computing", record.begun, record.computed);
        if record.begun > record.start {
            add("data", record.start, record.begun);
        }
        if record.end > record.computed {
            add("results", record.computed, record.end);
        }
    }
    // Units that request one buffer at the same time wait for each other.
    for (pid, device) in (1..).zip(&trace.devices) {
        for wait in trace.waits.iter().filter(|wait| device.arena.is_some() && wait.arena == device.arena) {
            let us = |ns: u64| ns as f64 / 1e3;
            expected.push((pid, "wait".to_owned(), us(wait.begin_ns), us(wait.end_ns - wait.begin_ns)));
        }
    }
    let mut slices: Vec<(u64, String, f64, f64)> = Vec::new();
    let (mut bytes, mut last_count, mut found) = (0, BTreeMap::new(), Vec::new());
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut named = BTreeMap::new();
    for event in events {
        let (phase, pid) =
            (event["ph"].as_str().expect("a phase"), event["pid"].as_u64().expect("a process"));
        let name = event["name"].as_str().expect("a name");
        match phase {
            "M" => {
                named.insert((pid, event["tid"].as_u64(), name.to_owned()), event["args"]["name"].clone());
            }
            "X" => {
                let (ts, dur) =
                    (event["ts"].as_f64().expect("a time"), event["dur"].as_f64().expect("a length"));
                let tid = event["tid"].as_u64().expect("a track");
                assert!(ts >= 0.0 && dur >= 0.0);
                tracks.entry((pid, tid)).or_default().push((ts, ts + dur));
                let cat = event["cat"].as_str().expect("a category");
                match cat {
                    "transfer" => bytes += event["args"]["bytes"].as_u64().expect("bytes"),
                    "finding" => found.push(name.to_owned()),
                    "decision" => {}
                    cat => slices.push((pid, cat.to_owned(), ts, dur)),
                }
            }
            "C" => {
                let value = event["args"]["per second"].as_f64().expect("a number");
                assert!(value >= 0.0 && event["ts"].is_number(), "{event}");
                last_count.insert((pid, name.to_owned()), value);
            }
            other => panic!("phase {other}: {event}"),
        }
    }
    let by_place = |one: &(u64, String, f64, f64), other: &(u64, String, f64, f64)| {
        (one.0, &one.1)
            .cmp(&(other.0, &other.1))
            .then(one.2.total_cmp(&other.2))
            .then(one.3.total_cmp(&other.3))
    };
    slices.sort_by(by_place);
    expected.sort_by(by_place);
    assert_eq!(slices, expected);
    for ((pid, tid), spans) in &mut tracks {
        assert!(
            named.contains_key(&(*pid, Some(*tid), "thread_name".to_owned())),
            "track {tid} of {pid} has a name"
        );
        spans.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(
            spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-3),
            "slices of a track overlap: {spans:?}"
        );
    }
    assert!(
        last_count.values().all(|value| *value == 0.0),
        "nothing is in flight at the end: {last_count:?}"
    );
    assert_eq!(bytes, platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum::<u64>());
    let process = |pid: u64| named[&(pid, None, "process_name".to_owned())].as_str().map(str::to_owned);
    assert_eq!(process(1).as_deref(), Some("device cpu"));
    assert_eq!(found, trace.findings().into_iter().map(|finding| finding.text).collect::<Vec<_>>());
    let is_main = |(pid, tid, _): &(u64, Option<u64>, String)| *tid == Some(*pid);
    assert!(!named.keys().any(is_main), "Perfetto would call it the main thread");
}

#[test]
fn a_trace_reads_back_as_it_was_written() {
    let platform = platform();
    let (_, trace) = recorded(&platform, "hguided", 2000);
    let trace = trace.labelled("tri\"ple </script>").alone([Duration::from_millis(3); 3]);
    assert_eq!(Trace::read(&perfetto(&trace).0), Ok(trace.clone()));
    let plain = serde_json::to_string_pretty(&trace).expect("it serialises");
    assert_eq!(Trace::read(&plain), Ok(trace.clone()));
    // Additions of later versions are ignored.
    let mut value = serde_json::to_value(&trace).expect("it serialises");
    value["weather"] = json!("fine");
    value["packages"][0]["colour"] = json!([1, 2]);
    value["decisions"][0]["kind"] = json!("promoted");
    let read = read(&value).expect("it is still a trace");
    assert_eq!(read.decisions[0].kind, DecisionKind::Other);
    assert_eq!(read.packages, trace.packages);
}

/// Each of ten thousand packages is written, read back and shown.
#[test]
fn ten_thousand_packages_are_all_there() {
    let platform = platform();
    let (report, trace) = recorded(&platform, "dynamic:10000", 10_000);
    assert_eq!(report.packages.len(), 10_000);
    let (text, file) = perfetto(&trace);
    let computing =
        file["traceEvents"].as_array().expect("a list").iter().filter(|event| event["cat"] == "computing");
    assert_eq!(computing.count(), 10_000);
    let again = Trace::read(&text).expect("its own file");
    assert_eq!(again, trace);
    let page = page(&again);
    assert_eq!(page.matches("\"first_item\":").count(), 10_000);
    assert!(page.len() < 16 << 20, "{} bytes", page.len());
}

#[test]
fn what_is_no_trace_is_named_with_its_place() {
    let whole = serde_json::to_string_pretty(&by_hand()).expect("it serialises");
    let cut = &whole[..whole.len() / 2];
    let with = |change: &dyn Fn(&mut Value)| {
        let mut value = by_hand();
        change(&mut value);
        value.to_string()
    };
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "it is empty"),
        (" \n".to_owned(), "it is empty"),
        ("PK\u{3}\u{4}".to_owned(), "invalid JSON at line 1, column 1"),
        (cut.to_owned(), "truncated"),
        ("[1, 2]".to_owned(), "not a dml trace"),
        ("{\"traceEvents\":[]}".to_owned(), "another program"),
        ("{\"name\":\"x\"}".to_owned(), "without `dml` and `format`"),
        ("{\"format\":\"pprof\",\"version\":1}".to_owned(), "its format is \"pprof\""),
        ("{\"dml\":{\"version\":1}}".to_owned(), "no `format`"),
        ("{\"format\":\"dml-trace\"}".to_owned(), "no version"),
        (with(&|value| value["version"] = json!(2)), "format version 2: this program reads versions up to 1"),
        (with(&|value| value["version"] = json!("new")), "not a dml trace"),
        (with(&|value| value["items"] = json!(-4)), "line 1, column"),
        (with(&|value| drop(value.as_object_mut().unwrap().remove("arenas"))), "missing field `arenas`"),
        (
            with(&|value| value["packages"][1]["device"] = json!(9)),
            "packages[1].device refers to devices[9], but devices has 3 entries",
        ),
        (with(&|value| value["packages"][2]["begun_ns"] = json!(900)), "packages[2] has times out of order"),
        (
            with(&|value| value["transfers"][0]["to"] = json!(2)),
            "transfers[0] refers to arenas[2], but arenas has 2 entries",
        ),
        (
            with(&|value| value["transfers"][1]["end_ns"] = json!(1)),
            "transfers[1].end_ns is 1, before begin_ns at 400",
        ),
        (with(&|value| value["waits"][0]["arena"] = json!(7)), "waits[0].arena"),
        (with(&|value| value["decisions"][1]["device"] = json!(3)), "decisions[1].device"),
        (with(&|value| value["devices"][0]["arena"] = json!(2)), "devices[0].arena"),
    ];
    for (text, named) in cases {
        let error = Trace::read(&text).expect_err(named).to_string();
        assert!(error.contains(named), "{named:?} is not in: {error}");
    }
    let newer = Trace::read(&with(&|value| value["version"] = json!(99)));
    assert_eq!(newer, Err(TraceError::NewerVersion { found: 99, known: 1 }));
    let Err(TraceError::Truncated { line, .. }) = Trace::read(cut) else { panic!("it is truncated") };
    assert_eq!(line, cut.lines().count());
}

/// Reading any proper prefix of a trace is an error, never a panic.
#[test]
fn no_prefix_of_a_trace_is_one() {
    let whole = by_hand().to_string();
    for end in 0..whole.len() {
        assert!(Trace::read(&whole[..end]).is_err(), "the first {end} bytes");
    }
}

/// A trace full of markup makes a page with no more markup than a plain trace.
#[test]
fn names_in_a_trace_never_become_markup() {
    let evil = "</script><script>document.title='x'</script><img src=x onerror=alert(1)><!--\u{2028}{{data}}{{script}}&\"'";
    let hostile = {
        let mut value = by_hand();
        for place in
            ["/label", "/kernel", "/policy", "/devices/0/name", "/devices/0/description", "/devices/1/kind"]
        {
            *value.pointer_mut(place).expect("it is there") = json!(evil);
        }
        for place in ["/arenas/0/name", "/arenas/1/kind", "/transfers/0/mechanism", "/decisions/0/reason"] {
            *value.pointer_mut(place).expect("it is there") = json!(evil);
        }
        read(&value).expect("names are names")
    };
    let plain = read(&by_hand()).expect("it is sound");
    let (hostile_page, plain_page) = (page(&hostile), page(&plain));
    for mark in ["<script", "</script", "<img", "<!--", "</title", "<"] {
        let (hostile, plain) = (hostile_page.matches(mark).count(), plain_page.matches(mark).count());
        assert_eq!(hostile, plain, "{mark}");
    }
    assert!(!hostile_page.contains("<title></script"));
    assert_eq!(Trace::read(&perfetto(&hostile).0), Ok(hostile));
}

/// A page fetches nothing: it contains no address and needs no other file.
#[test]
fn a_page_is_one_file() {
    let page = page(&read(&by_hand()).expect("it is sound"));
    for word in [
        "http:",
        "https:",
        "src=",
        "href=",
        "url(",
        "@import",
        "fetch(",
        "XMLHttpRequest",
        "innerHTML",
        "eval(",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("default-src 'none'"), "and the browser is told so");
}
