//! Random operations on main memory and memories that are bound to it or share its storage, every answer held against the
//! reference model, as `tests/reference.rs` of the root package does with test arenas (I-2, I-10, I-11).
//!
//! Without an OpenCL device those that need one say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(any(feature = "opencl", all(feature = "offload", target_os = "linux")), not(dml_loom)))]

mod common;

use dml_arenas::{Discover, DiscoverOptions};
use dml_core::Platform;
use dml_verify::reference::{Make, Mix, Op, Tally, op, run, setup};
use dml_verify::{Audited, Shape};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;

/// What one sequence consists of: the buffers at its start, and the operations.
fn sequence(least: usize, most: usize) -> impl Strategy<Value = (Vec<Make>, Vec<Op>)> {
    // The shape is of test arenas, and not used.
    let buffers = setup(&[Shape::OF_SEQUENCES[0]], 4).prop_map(|setup| setup.buffers);
    (buffers, vec(op(Mix::All), least..most))
}

/// Runs `cases` sequences, each on a platform of its own. They are worth it: requests are granted, wait, and are let in.
fn agrees(cases: u32, options: &DiscoverOptions) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let tally = Cell::new(Tally::default());
    let ended = TestRunner::new(config).run(&sequence(30, 150), |(buffers, ops)| {
        let builder = Platform::builder().discover_with(options).expect("the machine has what is asked for");
        let platform = builder.build().expect("what discovery adds fits together");
        let mut sum = tally.get();
        sum.add(run(Audited::new(platform), &buffers, &ops));
        tally.set(sum);
        Ok(())
    });
    ended.unwrap_or_else(|failure| panic!("{failure}"));
    let Tally { operations, granted, let_in, .. } = tally.get();
    let cases = u64::from(cases);
    assert!(operations > 30 * cases && granted > 4 * cases && let_in > cases / 4, "{:?}", tally.get());
}

#[cfg(feature = "opencl")]
mod opencl {
    use super::{agrees, common::with_opencl};
    use dml_arenas::DiscoverOptions;

    const CASES: u32 = 200;

    fn alone() -> DiscoverOptions {
        DiscoverOptions::default().only(["opencl:0"]).offload(0)
    }

    #[test]
    fn i02_a_device_with_copies() {
        if with_opencl("i02_a_device_with_copies").is_some() {
            agrees(CASES, &alone());
        }
    }

    #[test]
    fn i11_a_device_bound_to_main_memory() {
        if with_opencl("i11_a_device_bound_to_main_memory").is_some() {
            agrees(CASES, &alone().bind("opencl:0"));
        }
    }

    #[test]
    fn i11_a_device_bound_for_some_buffers() {
        if with_opencl("i11_a_device_bound_for_some_buffers").is_some() {
            agrees(CASES, &alone().allow_binding("opencl:0"));
        }
    }

    #[test]
    fn i10_a_device_that_shares_virtual_memory_with_main_memory() {
        if with_opencl("i10_a_device_that_shares_virtual_memory_with_main_memory").is_some() {
            agrees(CASES, &alone().fine_grained("opencl:0"));
        }
    }
}

#[cfg(all(feature = "offload", target_os = "linux"))]
mod offload {
    use super::agrees;
    use dml_arenas::DiscoverOptions;

    /// Each starts a worker.
    const CASES: u32 = 60;

    fn workers(count: u32) -> DiscoverOptions {
        let program = env!("CARGO_BIN_EXE_dml-offload-worker");
        DiscoverOptions::default()
            .offload(count)
            .offload_program(program)
            .offload_memory(16 << 20)
            .shared_memory(16 << 20)
    }

    #[test]
    fn i02_a_worker_with_memory_of_its_own() {
        agrees(CASES, &workers(1).only(["offload:0"]));
    }

    #[test]
    fn i10_main_memory_and_workers_share() {
        let devices = ["offload:0", "offload:1"];
        agrees(CASES, &workers(2).only(devices).share(devices).share(["cpu"]));
    }

    #[cfg(feature = "opencl")]
    #[test]
    fn i10_main_memory_a_worker_and_an_opencl_device_share() {
        if super::common::with_opencl("i10_main_memory_a_worker_and_an_opencl_device_share").is_some() {
            let devices = ["offload:0", "opencl:0"];
            agrees(CASES, &workers(1).only(devices).share(devices).share(["cpu"]));
        }
    }
}
