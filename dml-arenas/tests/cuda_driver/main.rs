//! CUDA arenas on a machine without a GPU: a library stands in for the driver, and is stricter than it
//! (`driver.c`).
//!
//! What kernels compute, how fast anything is, and what the driver really does is for a real GPU to show
//! (`tests/cuda.rs`). Here is what DML asks of the driver, in every order, and what it does when the driver
//! refuses.

#![cfg(all(feature = "cuda", target_os = "linux", not(dml_loom)))]

mod commands;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod discovery;
mod driver;
#[path = "../common/forks.rs"]
mod forks;
mod in_place;
mod kernels;
mod lent;
mod locks;
mod memory;
mod peers;
#[path = "../stand_in/mod.rs"]
mod stand_in;
mod together;

use dml_arenas::CudaArena;
use dml_core::Arena;
use dml_core::internal::sync::Arc;
use driver::{StandIn, stand_in};
use stand_in::{alloc, arena, fill, home, platform, platform_with};

const MIB: u64 = 1 << 20;
/// What each device of the stand-in has.
const MEMORY_BYTES: u64 = 256 * MIB;

fn cuda(arena: &Arc<dyn Arena>) -> &CudaArena {
    (**arena).downcast_ref().expect("a CUDA device has a CUDA arena")
}

/// Checks that all that was taken of the driver was given back.
#[track_caller]
fn nothing_is_left(driver: StandIn) {
    // Scratch memory is kept for a second, and threads need a moment to end. What is left in a context when
    // it goes ends the process.
    driver.until("contexts", 0);
    for what in ["streams", "events", "pools", "blocks", "locked", "modules", "graphs", "pushed"] {
        assert_eq!(driver.count(what), 0, "{what}");
    }
    stand_in::no_thread_is_left("cuda events");
}

#[test]
fn what_was_taken_is_given_back() {
    let driver = stand_in();
    let platform = platform(&["cuda:0", "cuda:1", "cuda:2"]);
    assert_eq!(driver.count("contexts"), 3);
    let sizes = [1, 511, 512, 513, 3 * MIB];
    let blocks =
        ["cuda:0", "cuda:1", "cuda:2"].map(|gpu| sizes.map(|len| alloc(&arena(&platform, gpu), len)));
    for block in blocks.iter().flatten() {
        assert_eq!(fill(block, 7).wait(), Ok(block.block().len()));
    }
    assert_eq!((driver.count("blocks"), driver.count("pushed")), (15, 0));
    drop((blocks, platform));
    nothing_is_left(driver);
}
