//! OpenCL arenas on a machine without an OpenCL device: a library stands in for the loader and its drivers,
//! and is stricter than they are (`driver.c`).
//!
//! What kernels compute, how fast anything is, and what a driver really does is for a real device to show
//! (`tests/opencl.rs`). Here is what DML asks of drivers, in every order, and what it does when a driver
//! refuses.

#![cfg(all(feature = "opencl", target_os = "linux", not(dml_loom)))]

mod awaited;
mod beside;
mod blocks;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod discovery;
mod driver;
#[path = "../common/forks.rs"]
mod forks;
mod kernels;
mod locks;
#[path = "../stand_in/mod.rs"]
mod stand_in;
mod streams;

use dml_arenas::OpenClArena;
use dml_core::Arena;
use dml_core::internal::sync::Arc;
use driver::{StandIn, stand_in};
use stand_in::{alloc, arena, discovered, fill, home, platform, platform_with};

const MIB: u64 = 1 << 20;
/// What each device of the stand-in has, and the most that one block has of it.
const MEMORY_BYTES: u64 = 256 * MIB;
const LARGEST_BYTES: u64 = 64 * MIB;

/// The devices that are of use.
const DEVICES: [&str; 4] = ["opencl:0", "opencl:1", "opencl:2", "opencl:3"];

fn opencl(arena: &Arc<dyn Arena>) -> &OpenClArena {
    (**arena).downcast_ref().expect("an OpenCL device has an OpenCL arena")
}

/// Checks that all that was taken of the driver was given back.
#[track_caller]
fn nothing_is_left(driver: StandIn) {
    sub_devices_are_left(driver, 0);
}

/// Checks that all that was taken of the driver was given back, but for as many sub-devices, which are kept.
#[track_caller]
fn sub_devices_are_left(driver: StandIn, kept: i64) {
    // Scratch memory is kept for a second, and threads need a moment to end.
    driver.until("contexts", 0);
    driver.until("devices", kept);
    for what in ["queues", "blocks", "programs", "kernels", "events", "shared"] {
        driver.until(what, 0);
    }
    stand_in::no_thread_is_left("opencl wakers");
}

#[test]
fn what_was_taken_is_given_back() {
    let driver = stand_in();
    let platform = platform(&DEVICES);
    assert_eq!((driver.count("contexts"), driver.count("devices")), (4, 0));
    // One for kernels, one each way, one for results, and one for what is new. A device of OpenCL 1 has none
    // for the ways and results. The others have two more for kernels, but not the processor.
    assert_eq!(driver.count("queues"), 7 + 5 + 2 + 7);
    let sizes = [0, 1, 511, 513, 3 * MIB];
    let blocks = DEVICES.map(|device| sizes.map(|len| alloc(&arena(&platform, device), len)));
    for block in blocks.iter().flatten() {
        assert_eq!(fill(block, 7).wait(), Ok(block.block().len()));
    }
    assert_eq!(driver.count("blocks"), 20);
    drop((blocks, platform));
    nothing_is_left(driver);
}
