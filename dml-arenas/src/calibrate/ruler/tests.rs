//! Measures links by a clock that only their copies advance, so every figure is exact.

use super::*;
use crate::Null;
use crate::faulty::{Around, Piece, Wrapped};
use crate::kit::join_staged;
use dml_core::{
    Arena, ArenaDesc, ArenaKind, Binding, Concurrency, CopyIn, CopyJob, CopyQuery, Cost, CrossArena,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, HostStaged, LinkSpeed, TransferError,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const MIB: u64 = 1 << 20;
/// A machine with a small cache and enough memory.
const SMALL: Machine = Machine { cache_bytes: 2 * MIB, free_bytes: 1 << 40 };
/// A machine without free memory, on which only short copies are measured.
const FULL: Machine = Machine { cache_bytes: 2 * MIB, free_bytes: 0 };

/// A clock that stands still unless a copy advances it.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl Clock {
    fn pass(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::SeqCst);
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// The duration of a copy by its size in bytes, in nanoseconds.
type Ns = fn(u64) -> u64;

/// A mechanism whose copies take as long as its script says.
#[derive(Debug)]
struct Scripted {
    clock: Arc<Clock>,
    ns: Ns,
    fails_from: u64,
}

impl CrossArena for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        Some(Cost::from_ns((self.ns)(query.bytes)))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.clock.pass((self.ns)(job.len()));
        if job.len() >= self.fails_from {
            return Err(TransferError::DeviceLost { loss: None });
        }
        HostStaged::default().copy(job)
    }
}

fn main_desc() -> ArenaDesc {
    host_desc("main")
}

fn host_desc(name: &str) -> ArenaDesc {
    ArenaDesc::new(name, ArenaKind("test"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull)
}

fn gpu_desc() -> ArenaDesc {
    ArenaDesc::new("gpu", ArenaKind("test"), GPU)
}

fn builder(gpu: Arc<dyn Arena>) -> PlatformBuilder {
    let mut builder = PlatformBuilder::default().without_default_links();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_arena(Arc::new(Null::backed(main_desc())));
    builder.add_arena(gpu);
    builder
}

fn link(from: u8, to: u8) -> Link {
    let via = |arena: u8| DeviceId(u16::from(arena));
    Link {
        from: ArenaId(from),
        to: ArenaId(to),
        source_via: via(from),
        target_via: via(to),
        allocation: Allocation::Internal,
    }
}

/// A platform with one scripted link from main memory to a device.
fn scripted(clock: &Arc<Clock>, ns: Ns, fails_from: u64) -> Platform {
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    builder.add_link(link(0, 1), Arc::new(Scripted { clock: clock.clone(), ns, fails_from }));
    builder.build().unwrap()
}

fn measure(clock: &Clock, machine: Machine, platform: &Platform) -> Vec<Measured> {
    Ruler { clock: &|| clock.now(), machine }.measure(platform)
}

fn classes(measured: &Measured) -> Vec<(u64, u64)> {
    let table = measured.table.as_ref().expect("measured");
    table.classes().iter().map(|class| (class.bytes, class.copy_ns)).collect()
}

#[test]
fn a_link_that_is_slow_for_long_copies_alone_shows_it() {
    let clock = Arc::new(Clock::default());
    let slow = |bytes| if bytes > MIB { bytes } else { 700 + bytes / 100 };
    let measured = measure(&clock, SMALL, &scripted(&clock, slow, u64::MAX));
    let expected = [4, 64 << 10, MIB, 16 * MIB, 64 * MIB].map(|bytes| (bytes, slow(bytes)));
    assert_eq!(measured.len(), 1);
    assert_eq!(classes(&measured[0]), expected);
    let speed = measured[0].speed().unwrap();
    assert_eq!((measured[0].mechanism.as_str(), speed.latency_ns), ("scripted", 700));
    assert!((1_000_000_000..1_000_100_000).contains(&speed.bytes_per_s), "{speed:?}");
}

#[test]
fn a_link_that_fails_says_why() {
    let clock = Arc::new(Clock::default());
    let measured = measure(&clock, SMALL, &scripted(&clock, |_| 1, MIB));
    let error = measured[0].table.as_ref().unwrap_err();
    assert!(matches!(error, CalibrateError::Copy(_)), "{error}");
    assert!(error.to_string().contains("gpu"), "{error}");
}

#[test]
fn longer_classes_are_left_out_where_memory_or_time_is_short() {
    let clock = Arc::new(Clock::default());
    let little = Machine { cache_bytes: 2 * MIB, free_bytes: 4 * 3 * 3 * MIB };
    let platform = scripted(&clock, |_| 10, u64::MAX);
    assert_eq!(classes(&measure(&clock, little, &platform)[0]), [(4, 10), (64 << 10, 10), (MIB, 10)]);
    assert_eq!(classes(&measure(&clock, FULL, &platform)[0]), [(4, 10), (64 << 10, 10)]);
    // Each copy takes ten seconds: only the two needed classes are measured, with one untimed and one timed
    // copy each.
    let slow = scripted(&clock, |_| 10_000_000_000, u64::MAX);
    let begun = clock.now();
    assert_eq!(classes(&measure(&clock, SMALL, &slow)[0]).len(), 2);
    assert_eq!((clock.now() - begun).as_secs(), 40);
}

#[test]
fn the_time_of_long_copies_is_bounded() {
    let clock = Arc::new(Clock::default());
    // 1 ns per byte: 36 copies of 1 MiB take 38 ms, 8 of 16 MiB take 134 ms, and 6 of 64 MiB would take 400
    // ms.
    let platform = scripted(&clock, |bytes| bytes, u64::MAX);
    assert_eq!(classes(&measure(&clock, SMALL, &platform)[0]).len(), 5);
    // 16 ns per byte: 8 copies of 16 MiB take the two seconds, so they are not begun.
    let (begun, platform) = (clock.now(), scripted(&clock, |bytes| 16 * bytes, u64::MAX));
    assert_eq!(classes(&measure(&clock, SMALL, &platform)[0]).len(), 3);
    assert!(clock.now() - begun < Duration::from_secs(1), "{:?}", clock.now() - begun);
    // Copies of 16 MiB are much slower than predicted from shorter ones: they end, and are discarded.
    let late = |bytes| if bytes > MIB { 1_500_000_000 } else { bytes };
    let (begun, platform) = (clock.now(), scripted(&clock, late, u64::MAX));
    assert_eq!(classes(&measure(&clock, SMALL, &platform)[0]).len(), 3);
    assert!(clock.now() - begun < Duration::from_secs(7), "{:?}", clock.now() - begun);
}

#[test]
fn long_copies_take_turns_on_more_than_the_cache() {
    let ruler =
        Ruler { clock: &|| Duration::ZERO, machine: Machine { cache_bytes: 32 * MIB, free_bytes: 0 } };
    for class in CLASSES {
        let total_bytes = class.bytes * ruler.buffers(class);
        assert_eq!(total_bytes > ruler.machine.cache_bytes, class.bytes >= MIB, "{class:?}");
        assert_eq!(ruler.buffers(class) > 1, class.bytes >= MIB, "{class:?}");
    }
}

/// The first and last word of each copy into an arena, by the size of the copy.
#[derive(Debug, Default)]
struct Carried(Mutex<HashMap<u64, Vec<(u32, u32)>>>);

impl Around for Arc<Carried> {
    fn moved<T: Piece>(&self, arena: &Arc<dyn Arena>, piece: T) -> Result<Fence, TransferError> {
        if let Some(copy) = (&piece as &dyn Any).downcast_ref::<CopyIn>() {
            let word = |at| {
                let mut bytes = [0; 4];
                copy.from().read(at, &mut bytes);
                u32::from_le_bytes(bytes)
            };
            let (len, mut carried) = (copy.len(), self.0.lock().unwrap());
            carried.entry(len).or_default().push((word(0), word(len - 4)));
        }
        piece.start(&**arena)
    }
}

#[test]
fn every_copy_carries_bytes_that_were_really_written() {
    let carried = Arc::new(Carried::default());
    let mut builder = builder(Arc::new(Wrapped::around(Null::backed(gpu_desc()), carried.clone())));
    join_staged(&mut builder, ArenaId(0), ArenaId(1), LinkSpeed::default());
    let clock = Clock::default();
    let measured = measure(&clock, SMALL, &builder.build().unwrap());
    assert_eq!(measured.len(), 2);
    let carried = carried.0.lock().unwrap();
    for Class { bytes, .. } in CLASSES {
        // Copies to the device as the destination, and to it as the source of the other direction.
        let words = &carried[&bytes];
        assert!(words.len() >= 8, "{bytes}: {} copies", words.len());
        assert!(words.iter().any(|(first, _)| *first != words[0].0), "{bytes}: always the same");
        assert!(
            bytes == 4 || words.iter().all(|(first, last)| first != last),
            "{bytes}: position-independent"
        );
        let zeros = words.iter().filter(|words| **words == (0, 0)).count();
        assert!(bytes == 4 || zeros == 0, "{bytes}: {zeros} copies of zeros");
    }
}

#[test]
fn a_source_that_the_host_does_not_reach_is_declared_written() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    builder.add_link(
        link(1, 0),
        Arc::new(Scripted { clock: clock.clone(), ns: |bytes| bytes + 3, fails_from: u64::MAX }),
    );
    let platform = builder.build().unwrap();
    assert_eq!(source(&platform, platform.links()[0]), Source::Declared);
    assert_eq!(classes(&measure(&clock, FULL, &platform)[0]), [(4, 7), (64 << 10, (64 << 10) + 3)]);
}

#[test]
fn only_the_measured_link_leads_away_from_the_source() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    builder.add_device(DeviceDesc::new("far", DeviceKind::Gpu));
    let far = ArenaDesc::new("far", ArenaKind("test"), DeviceId(2));
    builder.add_arena(Arc::new(Null::backed(far)));
    let scripted = |ns: Ns| Arc::new(Scripted { clock: clock.clone(), ns, fails_from: u64::MAX });
    // The far device is reached only through the near one, over two links. The quicker one must not replace
    // the other.
    let mut add = |from, to, ns| builder.add_link(link(from, to), scripted(ns));
    add(0, 1, |_| 5);
    add(1, 2, |_| 100);
    add(1, 2, |_| 50);
    add(2, 1, |_| 7);
    add(1, 0, |_| 6);
    let platform = builder.build().unwrap();
    for &link in platform.links() {
        let expected = if link.from.0 == 0 { Source::Host } else { Source::Brought };
        assert_eq!(source(&platform, link), expected, "{link:?}");
    }
    let measured = measure(&clock, FULL, &platform);
    let latencies: Vec<_> = measured.iter().map(|link| classes(link)[0].1).collect();
    assert_eq!(latencies, [5, 100, 50, 7, 6]);
}

#[test]
fn links_from_and_to_stores_are_measured_as_those_of_devices() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    for name in ["disk", "tape"] {
        builder.add_arena(Arc::new(Null::backed(ArenaDesc::store(name, ArenaKind("test")))));
    }
    // Only the disk leads to the tape. The device leads to the disk, too.
    let times: [(u8, u8, Ns); 6] = [
        (0, 2, |bytes| bytes + 30),
        (2, 0, |bytes| bytes + 20),
        (0, 1, |bytes| 3 * bytes + 10),
        (1, 2, |bytes| 2 * bytes + 60),
        (2, 3, |bytes| 5 * bytes + 300),
        (3, 2, |bytes| 4 * bytes + 200),
    ];
    for (from, to, ns) in times {
        let [source_via, target_via] = [from, to].map(|arena| builder.native(ArenaId(arena)));
        let link = Link { source_via, target_via, ..link(from, to) };
        builder.add_link(link, Arc::new(Scripted { clock: clock.clone(), ns, fails_from: u64::MAX }));
    }
    let platform = builder.build().unwrap();
    let measured = measure(&clock, SMALL, &platform);
    let ends: Vec<_> = measured.iter().map(|one| (one.from.0, one.to.0)).collect();
    assert_eq!(ends, times.map(|(from, to, _)| (from, to)));
    for (one, (.., ns)) in measured.iter().zip(times) {
        let found = classes(one);
        assert!(found.len() >= 3, "{found:?}");
        assert!(found.iter().all(|&(bytes, took_ns)| took_ns == ns(bytes)), "{one:?}");
    }
}

/// Main memory's buffers lie in pinned memory, which has its own links with the device. The arena `window`
/// has no binding, and `pinned` is bound to `far`.
#[test]
fn links_of_the_storage_that_main_memory_uses_are_measured() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    for name in ["pinned", "window", "far"] {
        builder.add_arena(Arc::new(Null::backed(host_desc(name))));
    }
    for (root, member) in [(2, 0), (4, 2)] {
        let (source_via, target_via) = (CPU, CPU);
        let allocation = Allocation::Bound(Concurrency::BimapFull);
        let binding = Link { from: ArenaId(root), to: ArenaId(member), source_via, target_via, allocation };
        builder.add_link(binding, Arc::new(Binding::new(LinkSpeed::default())));
    }
    builder.prefer_binding(ArenaId(2), ArenaId(0));
    let times: [(u8, u8, Ns); 8] = [
        (0, 2, |bytes| 9 * bytes + 30),
        (2, 0, |bytes| 9 * bytes + 20),
        (0, 1, |bytes| 3 * bytes + 10),
        (1, 0, |bytes| 3 * bytes + 60),
        (2, 1, |bytes| bytes + 5),
        (1, 2, |bytes| bytes + 6),
        (3, 1, |bytes| bytes + 7),
        (4, 1, |bytes| bytes + 8),
    ];
    for (from, to, ns) in times {
        let [source_via, target_via] = [from, to].map(|arena| builder.native(ArenaId(arena)));
        let link = Link { source_via, target_via, ..link(from, to) };
        builder.add_link(link, Arc::new(Scripted { clock: clock.clone(), ns, fails_from: u64::MAX }));
    }
    let platform = builder.build().unwrap();
    let measured = measure(&clock, FULL, &platform);
    let found: Vec<_> = measured.iter().map(|one| (one.from.0, one.to.0, classes(one)[0].1)).collect();
    assert_eq!(found, [(0, 1, 22), (1, 0, 72), (2, 1, 9), (1, 2, 10)]);
}

/// The link back from a bound device works only while the binding lasts.
#[test]
fn the_way_back_over_shared_storage_is_not_measured() {
    let gpu = gpu_desc().with_remotes(DeviceSet::of(CPU));
    let mut builder = builder(Arc::new(Null::backed(gpu)));
    let allocation = Allocation::Bound(Concurrency::Exclusive);
    builder.add_link(Link { allocation, ..link(0, 1) }, Arc::new(Binding::new(LinkSpeed::default())));
    let platform = builder.build().unwrap();
    let kinds: Vec<_> = platform.links().iter().map(|link| link.allocation).collect();
    assert_eq!(kinds, [allocation, Allocation::Shared]);
    let measured = measure(&Clock::default(), FULL, &platform);
    assert_eq!(measured.iter().map(|one| (one.from.0, one.to.0)).collect::<Vec<_>>(), [(0, 1)]);
    assert!(measured[0].table.is_ok(), "{measured:?}");
}

/// The host writes the bytes that such a link carries, and DML copies them to the pinned memory.
#[test]
fn pinned_memory_is_measured_with_bytes_that_were_written() {
    let carried = Arc::new(Carried::default());
    let mut builder = builder(Arc::new(Wrapped::around(Null::backed(gpu_desc()), carried.clone())));
    builder.add_arena(Arc::new(Null::backed(host_desc("pinned"))));
    join_staged(&mut builder, ArenaId(0), ArenaId(2), LinkSpeed::default());
    let allocation = Allocation::Bound(Concurrency::BimapFull);
    let binding = Link { from: ArenaId(2), to: ArenaId(0), source_via: CPU, target_via: CPU, allocation };
    builder.add_link(binding, Arc::new(Binding::new(LinkSpeed::default())));
    let link = Link { source_via: CPU, ..link(2, 1) };
    builder.add_link(link, Arc::new(HostStaged::default()));
    let clock = Clock::default();
    let platform = builder.build().unwrap();
    assert_eq!(source(&platform, link), Source::Brought);
    assert_eq!(measure(&clock, SMALL, &platform).len(), 1);
    let carried = carried.0.lock().unwrap();
    for Class { bytes, .. } in CLASSES {
        assert!(carried[&bytes].iter().all(|words| bytes == 4 || words.0 != words.1), "{bytes}");
    }
}

#[test]
fn the_time_that_a_link_leaves_is_for_the_next() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    let scripted = |ns: Ns| Arc::new(Scripted { clock: clock.clone(), ns, fails_from: u64::MAX });
    for ns in [|bytes| bytes / 1_000 + 9, |bytes| bytes / 1_000 + 9, |bytes| 3 * bytes] {
        builder.add_link(link(0, 1), scripted(ns));
    }
    // The third link takes 1.7 of the two seconds.
    let measured = measure(&clock, SMALL, &builder.build().unwrap());
    assert_eq!(measured.iter().map(|link| classes(link).len()).collect::<Vec<_>>(), [5, 5, 5]);
}

#[test]
fn buffers_of_a_class_are_counted_at_the_host_and_at_both_ends() {
    let clock = Arc::new(Clock::default());
    let platform = scripted(&clock, |_| 10, u64::MAX);
    // Three buffers of 1 MiB at three places, in a quarter of the memory.
    for (free_bytes, count) in [(4 * 3 * 3 * MIB, 3), (4 * 3 * 3 * MIB - 4, 2)] {
        let machine = Machine { cache_bytes: 2 * MIB, free_bytes };
        assert_eq!(classes(&measure(&clock, machine, &platform)[0]).len(), count);
    }
}

#[test]
fn the_middle_time_counts_and_long_copies_are_warmed_up() {
    let times = [40, 10, 50, 20, 30].map(Duration::from_nanos);
    assert_eq!((median_ns(times.to_vec()), median_ns(Vec::new())), (30, 1));
    assert_eq!(CLASSES.map(warm_ups), [1, 1, 4, 1, 1]);
}

/// Measures a link and `count` others. Returns the total duration, and the measured sizes of each link.
fn beside(count: usize, ns: Ns) -> (Duration, Vec<Vec<u64>>) {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    for _ in 0..=count {
        builder.add_link(link(0, 1), Arc::new(Scripted { clock: clock.clone(), ns, fails_from: u64::MAX }));
    }
    let measured = measure(&clock, SMALL, &builder.build().unwrap());
    let bytes = |link: &Measured| classes(link).iter().map(|class| class.0).collect();
    (clock.now(), measured.iter().map(bytes).collect())
}

#[test]
fn links_share_the_time() {
    // 32 copies of each of the two short classes take 1.28 s: of two links, neither has time for a third
    // class.
    let slow: Ns = |_| 20_000_000;
    let (took, found) = beside(1, slow);
    assert_eq!(found, [[4, 64 << 10], [4, 64 << 10]]);
    assert!(took.as_millis().abs_diff(2_000) < 50, "{took:?}");
    let (_, found) = beside(0, slow);
    assert_eq!(found, [[4, 64 << 10, MIB]]);
}

#[test]
fn the_time_of_a_short_copy_is_no_measure_of_the_first_long_class() {
    // Scaled from 64 KiB copies, a class of 45 MiB in all would take seven seconds.
    let (_, found) = beside(0, |_| 10_000_000);
    assert_eq!(found, [[4, 64 << 10, MIB]]);
}

#[test]
fn what_ends_with_the_time_is_in_time() {
    // 32 copies of each of two classes, and as long again for the third: two seconds to the nanosecond.
    fn exact(bytes: u64) -> u64 {
        [(4, 22_500_000), (64 << 10, 20_000_000)]
            .iter()
            .find(|known| known.0 == bytes)
            .map_or(bytes / 1_000, |known| known.1)
    }
    let (_, found) = beside(0, exact);
    assert!(found[0].contains(&MIB), "{found:?}");
    let (_, found) = beside(0, |bytes| exact(bytes) + u64::from(bytes == 4));
    assert_eq!(found, [[4, 64 << 10]]);
    // One untimed and 20 timed copies, of which the last begins at the deadline. Then two of the next class.
    let (took, _) = beside(0, |_| 100_000_000);
    assert_eq!(took.as_millis(), 2_300);
}

#[test]
fn three_copies_are_enough_of_a_class_that_ends_late() {
    // There are three buffers: the time ends while each of them is copied once.
    let (_, found) = beside(0, |bytes| if bytes == MIB { 150_000_000 } else { 1 });
    assert_eq!(found, [[4, 64 << 10, MIB]]);
    let (_, found) = beside(0, |bytes| if bytes == MIB { 250_000_000 } else { 1 });
    assert_eq!(found, [[4, 64 << 10]], "the third buffer is not prepared");
}

#[test]
fn links_that_lead_to_the_source_from_elsewhere_bring_it_nothing() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    builder.add_device(DeviceDesc::new("far", DeviceKind::Gpu));
    builder.add_arena(Arc::new(Null::backed(ArenaDesc::new("far", ArenaKind("test"), DeviceId(2)))));
    // No link leads from main memory to either device.
    for (from, to) in [(1, 2), (2, 1)] {
        let script = Scripted { clock: clock.clone(), ns: |bytes| bytes + 8, fails_from: u64::MAX };
        builder.add_link(link(from, to), Arc::new(script));
    }
    let platform = builder.build().unwrap();
    assert!(platform.links().iter().all(|&link| source(&platform, link) == Source::Declared));
    for measured in measure(&clock, FULL, &platform) {
        assert_eq!(classes(&measured), [(4, 12), (64 << 10, (64 << 10) + 8)]);
    }
}

#[test]
fn a_second_memory_of_a_device_is_not_measured() {
    let clock = Arc::new(Clock::default());
    let mut builder = builder(Arc::new(Null::backed(gpu_desc())));
    builder.add_arena(Arc::new(Null::backed(ArenaDesc::new("second", ArenaKind("test"), GPU))));
    for (from, to) in [(0, 1), (0, 2), (2, 1), (1, 0)] {
        let [source_via, target_via] = [from, to].map(|arena| builder.native(ArenaId(arena)));
        let link = Link { source_via, target_via, ..link(from, to) };
        let script = Scripted { clock: clock.clone(), ns: |_| 5, fails_from: u64::MAX };
        builder.add_link(link, Arc::new(script));
    }
    let platform = builder.build().unwrap();
    assert_eq!(links(&platform), [LinkId(0), LinkId(3)]);
    assert_eq!(measure(&clock, FULL, &platform).len(), 2);
}
