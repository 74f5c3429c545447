//! What core counts and remembers: counters that tell similar things apart, prices of each way and size, long
//! copies in pieces.

#![cfg(not(dml_loom))]

use dml::arenas::faulty::{CallKind, Fault};
use dml::arenas::{Faulty, Null, Script, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Concurrency, CopyJob, CopyQuery, Cost, CrossArena, DeviceDesc,
    DeviceId, DeviceKind, DeviceSet, Fence, HostStaged, Link, LinkId, LinkSpeed, Platform, PlatformBuilder,
    RawBuffer, TransferError, record::Operation,
};
use dml_verify::{CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA};
use std::sync::atomic::{AtomicU64, Ordering};

/// Main memory and two gpus, without links. The calls of the first gpu follow a script.
fn unlinked(script: Script) -> PlatformBuilder {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu), ("gpu2", DeviceKind::Gpu)] {
        let device = builder.add_device(DeviceDesc::new(name, kind));
        let (remotes, width) = match device {
            CPU => (DeviceSet::of(CPU), Concurrency::BimapFull),
            _ => (DeviceSet::of(CPU), Concurrency::Exclusive),
        };
        let desc =
            ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(remotes).with_concurrency(width);
        let null = Null::backed(desc);
        if device == GPU {
            builder.add_arena(Arc::new(Faulty::new(null, script.clone())));
        } else {
            builder.add_arena(Arc::new(null));
        }
    }
    builder
}

/// A staged copy at a price of its own.
#[derive(Debug)]
struct Priced(fn(u64) -> u64);

impl CrossArena for Priced {
    fn name(&self) -> &'static str {
        "priced"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        Some(Cost::from_ns((self.0)(query.bytes)))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        HostStaged::default().copy(job)
    }
}

fn add(builder: &mut PlatformBuilder, from: ArenaId, to: ArenaId, price: fn(u64) -> u64) {
    let (source_via, target_via) = (builder.native(from), builder.native(to));
    let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
    builder.add_link(link, Arc::new(Priced(price)));
}

/// Bytes that differ from those a whole number of pieces or pages away.
fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn write(platform: &Platform, device: DeviceId, buffer: &RawBuffer, bytes: &[u8]) {
    let mut grants = platform.acquire(device).write(buffer).wait().unwrap();
    grants.write_bytes(buffer, bytes).unwrap();
    grants.release().unwrap();
}

fn read(platform: &Platform, device: DeviceId, buffer: &RawBuffer, start: u64, end: u64) -> Vec<u8> {
    let region = buffer.range(start..end);
    let grants = platform.acquire(device).read(&region).wait().unwrap();
    grants.read_bytes(&region).unwrap()
}

/// The bytes and copies of each link that has moved any.
fn moved(platform: &Platform) -> Vec<(LinkId, u64, u64)> {
    let transfers = platform.counters().transfers().into_iter();
    transfers.map(|transfer| (transfer.link, transfer.bytes, transfer.copies)).collect()
}

/// Between memories without host memory a copy passes through scratch memory, 4 MiB at a time.
#[test]
fn i02_every_piece_of_a_staged_copy_lands_in_its_place() {
    let mut builder = unlinked(Script::new()).without_default_links();
    kit::join_staged(&mut builder, MAIN_ARENA, GPU_ARENA, LinkSpeed::default());
    kit::join_both_ways(&mut builder, GPU_ARENA, GPU2_ARENA, HostStaged::default());
    let platform = builder.build().unwrap();
    let len = (9 << 20) + 7;
    let (buffer, bytes) = (platform.raw_buffer(len).build().unwrap(), pattern(len));
    write(&platform, GPU, &buffer, &bytes);
    platform.counters().reset();
    assert!(read(&platform, GPU2, &buffer, 0, len) == bytes);
    let pieces =
        [Operation::Read, Operation::Write].map(|operation| platform.counters().operation(operation));
    assert_eq!(pieces, [3, 3]);
}

/// One mechanism is better for few bytes, the other for many. The path found for one is not taken for the
/// other.
#[test]
fn o01_paths_are_remembered_for_their_size() {
    let mut builder = unlinked(Script::new()).without_default_links();
    add(&mut builder, MAIN_ARENA, GPU_ARENA, |bytes| 10 + bytes * 10);
    add(&mut builder, MAIN_ARENA, GPU_ARENA, |bytes| 1_000 + bytes);
    let (short, long) = (LinkId(0), LinkId(1));
    add(&mut builder, GPU_ARENA, MAIN_ARENA, |bytes| bytes);
    let platform = builder.build().unwrap();
    let (buffer, bytes) = (platform.raw_buffer(8192).build().unwrap(), pattern(8192));
    write(&platform, CPU, &buffer, &bytes);
    for (range, expected) in
        [(0..16, short), (16..32, short), (32..4128, long), (4128..4144, short), (4144..8192, long)]
    {
        platform.counters().reset();
        assert_eq!(
            read(&platform, GPU, &buffer, range.start, range.end),
            bytes[range.start as usize..range.end as usize]
        );
        assert_eq!(moved(&platform), [(expected, range.end - range.start, 1)], "{range:?}");
    }
}

/// Of two pairs of links, each is the cheaper one in one direction.
#[test]
fn o01_the_way_there_is_not_priced_as_the_way_back() {
    let mut builder = unlinked(Script::new());
    add(&mut builder, MAIN_ARENA, GPU_ARENA, |_| 10);
    add(&mut builder, MAIN_ARENA, GPU_ARENA, |_| 900);
    add(&mut builder, GPU_ARENA, MAIN_ARENA, |_| 800);
    add(&mut builder, GPU_ARENA, MAIN_ARENA, |_| 20);
    let (there, back) = (LinkId(0), LinkId(3));
    add(&mut builder, MAIN_ARENA, GPU2_ARENA, |_| 300);
    add(&mut builder, GPU2_ARENA, MAIN_ARENA, |_| 7_000);
    let platform = builder.build().unwrap();
    let (buffer, bytes) = (platform.raw_buffer(64).build().unwrap(), pattern(64));
    for round in 0..2 {
        write(&platform, CPU, &buffer, &bytes);
        platform.counters().reset();
        assert_eq!(read(&platform, GPU, &buffer, 0, 64), bytes);
        assert_eq!(moved(&platform), [(there, 64, 1)], "round {round}");
        write(&platform, GPU, &buffer, &bytes);
        platform.counters().reset();
        assert_eq!(read(&platform, CPU, &buffer, 0, 64), bytes);
        assert_eq!(moved(&platform), [(back, 64, 1)], "round {round}");
    }
    // The default link between the gpus goes by main memory: out of the first, and into the second.
    let links = platform.routes().links();
    let between = links.iter().position(|link| (link.from, link.to) == (GPU_ARENA, GPU2_ARENA)).unwrap();
    let query = CopyQuery { bytes: 64, remap_source: false, remap_target: false, allocates: false };
    let cost = platform.routes().cost(LinkId(between as u16), &query).unwrap();
    assert_eq!(
        cost.as_ns(),
        Some(800 + 300 + 1_000),
        "its first link out, its first link in, and scratch memory"
    );
}

/// A mechanism whose price names everything that it was asked for, and which counts how often it was asked.
#[derive(Debug, Default)]
struct Named {
    number: u64,
    asked: AtomicU64,
}

impl Named {
    fn price(&self, query: &CopyQuery) -> Cost {
        let flags = [query.remap_source, query.remap_target, query.allocates];
        let flags = flags.into_iter().fold(1, |digits, flag| digits * 10 + u64::from(flag));
        Cost::from_ns((query.bytes * 10 + self.number) * 10_000 + flags)
    }
}

impl CrossArena for Named {
    fn name(&self) -> &'static str {
        "named"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Some(self.price(query))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        HostStaged::default().copy(job)
    }
}

/// A price that is remembered is the one that its mechanism gave to that very question: of that link, size,
/// ends and storage.
#[test]
fn o01_a_remembered_price_is_that_of_the_same_question() {
    let mut builder = unlinked(Script::new()).without_default_links();
    let named: Vec<Arc<Named>> =
        (1..=2).map(|number| Arc::new(Named { number, ..Named::default() })).collect();
    for (mechanism, to) in named.iter().zip([GPU_ARENA, GPU2_ARENA]) {
        let (source_via, target_via) = (CPU, builder.native(to));
        let link = Link { from: MAIN_ARENA, to, source_via, target_via, allocation: Allocation::Internal };
        builder.add_link(link, mechanism.clone());
    }
    let platform = builder.build().unwrap();
    let _prices_are_asked = platform.raw_buffer(4096).build().unwrap();
    let before: Vec<u64> = named.iter().map(|mechanism| mechanism.asked.load(Ordering::Relaxed)).collect();
    for (link, mechanism) in (0..).map(LinkId).zip(&named) {
        for (bytes, flags) in
            [1, 2, 64, 2048, 4096].into_iter().flat_map(|bytes| (0..8).map(move |flags| (bytes, flags)))
        {
            let query = CopyQuery {
                bytes,
                remap_source: flags & 1 != 0,
                remap_target: flags & 2 != 0,
                allocates: flags & 4 != 0,
            };
            assert_eq!(
                platform.routes().cost(link, &query),
                Some(mechanism.price(&query)),
                "{link}: {query:?}"
            );
        }
    }
    let after: Vec<u64> = named.iter().map(|mechanism| mechanism.asked.load(Ordering::Relaxed)).collect();
    assert_eq!(after, before, "all of these were remembered");
    // Sizes in between are asked for as they are.
    let query = CopyQuery { bytes: 100, remap_source: false, remap_target: true, allocates: false };
    assert_eq!(platform.routes().cost(LinkId(1), &query), Some(named[1].price(&query)));
    assert_eq!(named[1].asked.load(Ordering::Relaxed), after[1] + 1);
}

/// Staging between two devices is what its halves are asked for: out of the one without the other's storage,
/// and into the other with it. A half reaches each memory through its own device, and moves bytes.
#[test]
fn o01_a_staged_copy_costs_what_its_halves_do() {
    let mut builder = unlinked(Script::new());
    let named: Vec<Arc<Named>> =
        (1..=2).map(|number| Arc::new(Named { number, ..Named::default() })).collect();
    let ways = [(GPU_ARENA, MAIN_ARENA, GPU, CPU), (MAIN_ARENA, GPU2_ARENA, CPU, GPU2)];
    for (mechanism, (from, to, source_via, target_via)) in named.iter().zip(ways) {
        // Not these: by a mapping for the processor, and by one storage for both.
        let other = Link { from, to, source_via: CPU, target_via: CPU, allocation: Allocation::Internal };
        builder.add_link(other, Arc::new(Priced(|_| 1)));
        let allocation = Allocation::Bound(Concurrency::Exclusive);
        builder.add_link(Link { source_via, target_via, allocation, ..other }, Arc::new(Priced(|_| 1)));
        builder.add_link(Link { source_via, target_via, ..other }, mechanism.clone());
    }
    let platform = builder.build().unwrap();
    let links = platform.routes().links();
    let between = links.iter().position(|link| (link.from, link.to) == (GPU_ARENA, GPU2_ARENA)).unwrap();
    for flags in 0..8 {
        let [remap_source, remap_target, allocates] = [1, 2, 4].map(|flag| flags & flag != 0);
        let query = CopyQuery { bytes: 64, remap_source, remap_target, allocates };
        let out = named[0].price(&CopyQuery { remap_target: false, allocates: false, ..query });
        let into = named[1].price(&CopyQuery { remap_source: false, ..query });
        let sum = out.as_ns().unwrap() + into.as_ns().unwrap();
        let cost = platform.routes().cost(LinkId(between as u16), &query).unwrap();
        assert_eq!(cost.as_ns(), Some(sum + 1_000), "{query:?}");
    }
}

/// A map and an unmap are counted as what they are.
#[test]
fn a_map_is_no_unmap() {
    let mut builder = unlinked(Script::new()).without_default_links();
    kit::join_mapped(&mut builder, MAIN_ARENA, GPU_ARENA, LinkSpeed::default());
    let platform = builder.build().unwrap();
    let (buffer, bytes) = (platform.raw_buffer(64).build().unwrap(), pattern(64));
    let counts =
        || [Operation::Map, Operation::Unmap].map(|operation| platform.counters().operation(operation));
    let mut told = vec![counts()];
    for device in [GPU, CPU, GPU, CPU] {
        write(&platform, device, &buffer, &bytes);
        read(&platform, if device == GPU { CPU } else { GPU }, &buffer, 0, 64);
        told.push(counts());
    }
    // To bring bytes to the host and to the gpu, the gpu's storage is mapped; the gpu's kernel needs it
    // unmapped.
    assert_eq!(told, [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2]]);
}

/// Bytes that did not arrive were not moved, though a part of them was.
#[test]
fn a_copy_that_fails_has_moved_nothing() {
    let script = Script::new().at_kind(CallKind::CopyIn, 1, Fault::Short(60)).at_kind(
        CallKind::CopyIn,
        2,
        Fault::fail(),
    );
    let mut builder = unlinked(script).without_default_links();
    kit::join_staged(&mut builder, MAIN_ARENA, GPU_ARENA, LinkSpeed::default());
    let platform = builder.build().unwrap();
    let (buffer, bytes) = (platform.raw_buffer(64).build().unwrap(), pattern(64));
    write(&platform, CPU, &buffer, &bytes);
    platform.counters().reset();
    for _ in 0..2 {
        assert!(platform.acquire(GPU).read(&buffer).wait().is_err());
        assert_eq!(moved(&platform), []);
    }
    assert_eq!(read(&platform, GPU, &buffer, 0, 64), bytes);
    assert_eq!(moved(&platform), [(LinkId(0), 64, 1)]);
}

/// Few bytes come through a mapping and many by read calls. The mapping has ended when the calls are made,
/// and its address is worth nothing.
#[test]
fn i20_nothing_is_copied_from_a_mapping_that_has_ended() {
    let mut builder = unlinked(Script::new()).without_default_links();
    let speed = LinkSpeed { latency_ns: 0, bytes_per_s: 1_000_000_000, remap_ns: 0 };
    kit::join_mapped(&mut builder, MAIN_ARENA, GPU_ARENA, speed);
    add(&mut builder, GPU_ARENA, MAIN_ARENA, |bytes| if bytes > 1_000 { 1 } else { 1_000_000 });
    let platform = builder.build().unwrap();
    let (buffer, bytes) = (platform.raw_buffer(8192).build().unwrap(), pattern(8192));
    let counts = || {
        let operations = [Operation::Map, Operation::Unmap, Operation::Read];
        operations.map(|operation| platform.counters().operation(operation))
    };
    write(&platform, GPU, &buffer, &pattern(8193)[1..]);
    assert_eq!(read(&platform, CPU, &buffer, 0, 16), pattern(17)[1..]);
    let mapped = counts();
    assert_eq!(mapped[..2], [1, 0]);
    write(&platform, GPU, &buffer, &bytes);
    assert_eq!(read(&platform, CPU, &buffer, 0, 8192), bytes);
    let [maps, unmaps, reads] = counts();
    assert_eq!([maps, unmaps, reads - mapped[2]], [1, 1, 1], "by a read call of the gpu's arena");
}
