//! Devices that use buffers where they are, as the machine is found: who shares, and who does not.
//!
//! Without an OpenCL device the tests of it say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "offload", feature = "opencl", target_os = "linux", not(dml_loom)))]

mod common;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "offload/rig.rs"]
mod rig;

use common::with_opencl_options;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, Sharing, Workers};
use dml_core::{ArenaId, DeviceId, Platform, record::Operation};
use rig::WORKER;

const HOST: DeviceId = DeviceId(0);
const MAIN: ArenaId = ArenaId(0);
/// What moves bytes between the two.
const MOVES: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Copy];

/// Workers of this project's program, with little memory.
fn workers(count: u32) -> Workers {
    Workers::new(count).program(WORKER).memory(8 << 20)
}

fn in_place() -> Sharing {
    Sharing::in_place().bytes(8 << 20)
}

/// One worker, and sharing in place.
fn options() -> DiscoverOptions {
    DiscoverOptions::default().offload(workers(1)).sharing(in_place())
}

fn find(options: DiscoverOptions) -> Platform {
    Platform::builder().discover_with(&options).unwrap().build().unwrap()
}

fn has_arena(platform: &Platform, name: &str) -> bool {
    platform.arena_named(name).is_ok()
}

/// Lets the host and the device have a buffer in turn. Returns how many calls moved its bytes.
fn to_and_fro(platform: &Platform, device: DeviceId) -> u64 {
    let before = MOVES.map(|operation| platform.counters().operation(operation));
    let buffer = platform.buffer::<u32>(5_003).zeroed().build().unwrap();
    for _ in 0..3 {
        platform.acquire(device).read_write(&buffer).wait().unwrap().release().unwrap();
        let mut view = buffer.write().unwrap();
        view.fill(7);
        view.release().unwrap();
    }
    assert!(buffer.read().unwrap().iter().all(|word| *word == 7));
    let moves = MOVES
        .iter()
        .zip(before)
        .map(|(&operation, before)| platform.counters().operation(operation) - before);
    moves.sum()
}

#[test]
fn the_processor_and_the_workers_share_one_memory() {
    let platform = find(options().offload(workers(2)).only(["cpu", "offload:0", "offload:1"]));
    assert!(has_arena(&platform, "shared"));
    for worker in ["offload:0", "offload:1"] {
        let worker = platform.device(worker).unwrap();
        assert_eq!(to_and_fro(&platform, worker), 0);
        let home = platform.home(worker).unwrap();
        let buffer = platform.buffer::<u32>(100).build().unwrap();
        assert!(buffer.raw().shares_storage(MAIN, home), "before anybody has touched it");
        let vector = platform.buffer_from(vec![1_u32; 100]).unwrap();
        assert!(!vector.raw().shares_storage(MAIN, home), "it stays where it is");
        drop(platform.acquire(worker).read(&vector).wait().unwrap());
        assert!(!vector.raw().shares_storage(MAIN, home));
    }
    let unasked = find(options().sharing(Sharing::default()).only(["cpu", "offload:0"]));
    assert!(!has_arena(&unasked, "shared"));
    assert!(to_and_fro(&unasked, unasked.device("offload:0").unwrap()) > 0);
}

#[test]
fn without_a_worker_nothing_is_made_for_workers() {
    let none = [
        options().offload(0).only(["cpu"]),
        options().only(["cpu"]),
        // The options do not name the worker, so its absence is noted and is no error.
        options().offload(Workers::default().program("/no/such/program")),
    ];
    for options in none {
        let platform = find(options);
        assert!(!has_arena(&platform, "shared"), "{:?}", platform.arenas());
    }
    let named = options().only(["offload:0"]).offload(Workers::default().program("/no/such/program"));
    let refused = Platform::builder().discover_with(&named).unwrap_err();
    assert!(matches!(&refused, DiscoverError::Unusable { device, .. } if device == "offload:0"), "{refused}");
}

#[test]
fn memory_that_cannot_be_made_is_noted_and_workers_copy() {
    let platform = find(options().only(["cpu", "offload:0"]).sharing(Sharing::in_place().bytes(u64::MAX)));
    assert!(!has_arena(&platform, "shared"));
    let noted = platform.unavailable().iter().find(|missing| missing.backend == "shared");
    assert!(noted.is_some_and(|missing| missing.reason.contains("no memory of")), "{noted:?}");
    assert!(to_and_fro(&platform, platform.device("offload:0").unwrap()) > 0);
    let refused =
        Platform::builder().discover_with(&options().offload(workers(1).pin("offload:0", []))).unwrap_err();
    assert!(matches!(refused, DiscoverError::BadPin { .. }), "what is wrong stays wrong: {refused}");
}

#[test]
fn what_is_said_by_name_counts() {
    let platform =
        find(options().only(["cpu", "offload:0"]).sharing(Sharing::memory(["offload:0"]).bytes(8 << 20)));
    assert!(has_arena(&platform, "shared"));
    let home = platform.home(platform.device("offload:0").unwrap()).unwrap();
    let buffer = platform.buffer::<u32>(100).build().unwrap();
    assert!(!buffer.raw().shares_storage(MAIN, home), "the processor was not named");
}

/// A driver that offers nothing of the kind is PoCL's neighbour on some machines; then there are copies, and
/// the test says so.
#[test]
fn an_opencl_device_that_can_works_beside_the_processor_where_no_worker_does() {
    const TEST: &str = "an_opencl_device_that_can_works_beside_the_processor_where_no_worker_does";
    let only = || options().offload(0).only(["opencl:0"]);
    let Some((platform, device)) = with_opencl_options(TEST, &only()) else { return };
    if Platform::builder().discover_with(&only().sharing(Sharing::fine_grained("opencl:0"))).is_err() {
        eprintln!("{TEST}: the device offers no fine-grained memory: only copies were checked");
        assert!(to_and_fro(&platform, device) > 0);
        return;
    }
    assert_eq!(to_and_fro(&platform, device), 0);
    let buffer = platform.buffer::<u32>(100).build().unwrap();
    // Both at once, each with its half.
    let there = platform.acquire(device).write(&buffer.range(0..50)).try_now().unwrap();
    let here = platform.acquire(HOST).write(&buffer.range(50..100)).try_now().unwrap();
    drop((there, here));

    let (bound, device) =
        with_opencl_options(TEST, &only().sharing(Sharing::in_place().bind("opencl:0"))).unwrap();
    let buffer = bound.buffer::<u32>(100).build().unwrap();
    let there = bound.acquire(device).write(&buffer.range(0..50)).try_now().unwrap();
    assert!(bound.acquire(HOST).write(&buffer.range(50..100)).try_now().is_err(), "the two take turns");
    drop(there);

    // Workers go first: main memory has one root.
    let all = options().only(["opencl:0", "offload:0"]);
    let (all, device) = with_opencl_options(TEST, &all).unwrap();
    assert!(has_arena(&all, "shared"));
    assert_eq!(to_and_fro(&all, all.device("offload:0").unwrap()), 0);
    assert!(to_and_fro(&all, device) > 0);
}
