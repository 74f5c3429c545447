//! Spans of `tracing`: what a subscriber is told of acquires, transfers and runs.

#![cfg(all(feature = "tracing", not(dml_loom)))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    Access, ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence,
    LinkSpeed, Platform,
};
use dml::prelude::*;
use dml::scheduler::KernelError;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::thread::ThreadId;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

/// A span as it was told.
#[derive(Clone, Debug)]
struct Told {
    name: &'static str,
    parent: Option<usize>,
    fields: BTreeMap<&'static str, String>,
    entered: usize,
    is_closed: bool,
}

/// Keeps every span of DML.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Collected>>);

#[derive(Default)]
struct Collected {
    spans: Vec<Told>,
    within: HashMap<ThreadId, Vec<usize>>,
}

impl Collector {
    fn spans(&self) -> Vec<Told> {
        self.0.lock().spans.clone()
    }
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

fn index(id: &Id) -> usize {
    id.into_u64() as usize - 1
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dml"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut collected = self.0.lock();
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let here = collected.within.get(&std::thread::current().id());
        let parent = here.and_then(|within| within.last().copied());
        let name = attributes.metadata().name();
        collected.spans.push(Told { name, parent, fields, entered: 0, is_closed: false });
        Id::from_u64(collected.spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        let mut collected = self.0.lock();
        collected.spans[index(id)].entered += 1;
        collected.within.entry(std::thread::current().id()).or_default().push(index(id));
    }

    fn exit(&self, id: &Id) {
        let left = self.0.lock().within.get_mut(&std::thread::current().id()).and_then(Vec::pop);
        assert_eq!(left, Some(index(id)), "spans are left in the order of their entries");
    }

    fn try_close(&self, id: Id) -> bool {
        let told = &mut self.0.lock().spans[index(&id)];
        assert!(!std::mem::replace(&mut told.is_closed, true), "a span ends once: {told:?}");
        true
    }
}

/// Main memory and a device with a memory of its own.
fn platform() -> Platform {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
    let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
    let video = builder.add_arena(Arc::new(Null::backed(video)));
    kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
    builder.build().expect("a sound platform")
}

fn kernel(platform: &Platform, items: u64) -> Kernel {
    let source: Vec<u32> = (0..items as u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect();
    let source = platform.buffer_from(source).expect("a small buffer");
    let target = platform.buffer::<u32>(items).build().expect("a small buffer");
    let per_item = || Footprint::PerItem { bytes: 4 };
    let kernel = Kernel::new("triple", 1)
        .argument(Argument::part(&source, Access::ReadOnly, per_item()))
        .argument(Argument::part(&target, Access::WriteInvalidate, per_item()));
    [CPU, GPU].into_iter().fold(kernel, |kernel, device| {
        kernel.variant(device, |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> {
            Ok(Fence::done(0))
        })
    })
}

fn fields(told: &Told) -> Vec<(&str, &str)> {
    told.fields.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[test]
fn an_acquire_and_its_transfers_are_spans() {
    let collector = Collector::default();
    let buffer_id = tracing::subscriber::with_default(collector.clone(), || {
        let platform = platform();
        let buffer = platform.raw_buffer(40).build().expect("a small buffer");
        let kernel = KernelId(5);
        let written = platform.acquire(CPU).kernel(kernel).write(&buffer).wait();
        written.and_then(Grants::release).expect("nobody else is there");
        let read = platform.acquire(GPU).kernel(kernel).read(&buffer).wait();
        read.and_then(Grants::release).expect("nobody else is there");
        let zeros = platform.raw_buffer(24).zeroed().build().expect("a small buffer");
        drop(platform.acquire(GPU).kernel(kernel).read(&zeros).try_now().expect("nobody else is there"));
        [buffer.id().0.to_string(), zeros.id().0.to_string()]
    });
    let spans = collector.spans();
    let acquire =
        |arena, bytes| [("arena", arena), ("buffers", "1"), ("bytes", bytes), ("kernel", "5")].to_vec();
    let transfer = |from, buffer, bytes| {
        [("buffer", buffer), ("bytes", bytes), ("from", from), ("to", "video")].to_vec()
    };
    let told: Vec<_> = spans.iter().map(|told| (told.name, told.parent, fields(told))).collect();
    assert_eq!(
        told,
        [
            ("acquire", None, acquire("main", "40")),
            ("acquire", None, acquire("video", "40")),
            ("transfer", Some(1), transfer("main", &buffer_id[0], "40")),
            ("acquire", None, acquire("video", "24")),
            ("transfer", Some(3), transfer("zeros", &buffer_id[1], "24")),
        ]
    );
    assert!(spans.iter().all(|told| told.is_closed && told.entered > 0), "{spans:#?}");
}

#[test]
fn an_acquire_that_is_given_up_ends_its_span() {
    let collector = Collector::default();
    tracing::subscriber::with_default(collector.clone(), || {
        let platform = platform();
        let buffer = platform.raw_buffer(40).build().expect("a small buffer");
        let held = platform.acquire(CPU).write(&buffer).wait().expect("nobody else is there");
        let mut future = platform.acquire(GPU).read(&buffer).into_future();
        assert!(dml_verify::poll_once(&mut future).is_pending());
        assert_eq!(collector.spans().iter().filter(|told| told.is_closed).count(), 1);
        drop(future);
        assert!(platform.acquire(GPU).read(&buffer).try_now().is_err());
        drop(held);
    });
    let spans = collector.spans();
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|told| told.is_closed), "{spans:#?}");
}

/// The units are threads of their own, so that this subscriber is the one of the whole process.
#[test]
fn a_run_and_its_packages_are_spans() {
    let collector = Collector::default();
    tracing::subscriber::set_global_default(collector.clone()).expect("it is the only one");
    let platform = platform();
    // Each device has a part, so that there is something to transfer.
    let policy = "static".parse().expect("a policy");
    let kernel = kernel(&platform, 300);
    let report = Coexecutor::new(&platform).policy(policy).run(&kernel, 300).expect("nothing is wrong");
    let spans = collector.spans();
    let run = spans.iter().position(|told| told.name == "run").expect("a run");
    let expected = [("devices", "2"), ("items", "300"), ("kernel", "triple"), ("policy", "static")];
    assert_eq!((fields(&spans[run]), spans[run].parent), (expected.to_vec(), None));
    let packages: Vec<_> = spans.iter().filter(|told| told.name == "package").collect();
    let mut told: Vec<_> = packages.iter().map(|package| fields(package)).collect();
    let texts: Vec<_> = report
        .packages
        .iter()
        .map(|record| {
            let package = &record.package;
            let device = platform.device_desc(record.device).name.to_string();
            [package.start().to_string(), package.index().to_string(), package.items().to_string(), device]
        })
        .collect();
    let mut expected: Vec<_> = texts
        .iter()
        .map(|[first, index, items, device]| {
            let fields = [("device", device), ("first_item", first), ("index", index), ("items", items)];
            let mut fields: Vec<_> = fields.map(|(name, value)| (name, value.as_str())).to_vec();
            fields.push(("kernel", "triple"));
            fields
        })
        .collect();
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
    assert!(packages.iter().all(|package| package.parent == Some(run)), "{packages:#?}");
    let parents = |name| spans.iter().filter(move |told| told.name == name).map(|told| told.parent);
    let name_of = |parent: Option<usize>| parent.map(|parent| spans[parent].name);
    assert!(parents("acquire").count() >= packages.len());
    assert!(parents("acquire").all(|parent| name_of(parent) == Some("package")), "{spans:#?}");
    assert!(parents("transfer").count() > 0);
    // Inputs come for an acquire, results are brought for a package.
    let is_known = |parent| matches!(name_of(parent), Some("acquire" | "package"));
    assert!(parents("transfer").all(is_known), "{spans:#?}");
    assert!(spans.iter().all(|told| told.is_closed && told.entered > 0), "{spans:#?}");
}
