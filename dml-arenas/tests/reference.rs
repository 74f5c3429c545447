//! Random operations on main memory and memories that are bound to it or share its storage, every answer held
//! against the reference model, as `tests/reference.rs` of the root package does with test arenas (I-2, I-10,
//! I-11).
//!
//! Without an OpenCL device those that need one say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(any(feature = "opencl", all(feature = "offload", target_os = "linux")), not(dml_loom)))]

mod common;

use dml_verify::reference::{Make, Mix, Op, Shipping, Tally, op, run, setup};
use dml_verify::{Audited, Shape};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::path::Path;

/// The workers' program, where there are workers.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_dml-offload-worker");

/// What one sequence consists of: the buffers at its start, and the operations.
fn sequence(least: usize, most: usize) -> impl Strategy<Value = (Vec<Make>, Vec<Op>)> {
    // The shape is of test arenas, and not used.
    let buffers = setup(&[Shape::OF_SEQUENCES[0]], 4).prop_map(|setup| setup.buffers);
    (buffers, vec(op(Mix::All), least..most))
}

/// Runs `cases` sequences, each on a platform of its own. They are worth it: requests are granted, wait, and
/// are let in.
#[track_caller]
fn agrees(cases: u32, shipping: Shipping) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let tally = Cell::new(Tally::default());
    let ended = TestRunner::new(config).run(&sequence(30, 150), |(buffers, ops)| {
        let builder = shipping.discover(PROGRAM.map(Path::new)).expect("the machine has what is asked for");
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
    use dml_verify::reference::Shipping;

    const CASES: u32 = 200;

    #[test]
    fn i02_a_device_with_copies() {
        if with_opencl("i02_a_device_with_copies").is_some() {
            agrees(CASES, Shipping::OpenClCopied);
        }
    }

    #[test]
    fn i11_a_device_bound_to_main_memory() {
        if with_opencl("i11_a_device_bound_to_main_memory").is_some() {
            agrees(CASES, Shipping::OpenClBound);
        }
    }

    #[test]
    fn i11_a_device_bound_for_some_buffers() {
        if with_opencl("i11_a_device_bound_for_some_buffers").is_some() {
            agrees(CASES, Shipping::OpenClBoundForSome);
        }
    }

    #[test]
    fn i10_a_device_that_shares_virtual_memory_with_main_memory() {
        if with_opencl("i10_a_device_that_shares_virtual_memory_with_main_memory").is_some() {
            agrees(CASES, Shipping::OpenClFineGrained);
        }
    }
}

#[cfg(all(feature = "offload", target_os = "linux"))]
mod offload {
    use super::agrees;
    use dml_verify::reference::Shipping;

    /// Each starts a worker.
    const CASES: u32 = 60;

    #[test]
    fn i02_a_worker_with_memory_of_its_own() {
        agrees(CASES, Shipping::Worker);
    }

    #[test]
    fn i10_main_memory_alone_shares() {
        agrees(CASES, Shipping::MainShares);
    }

    #[test]
    fn i10_main_memory_and_workers_share() {
        agrees(CASES, Shipping::WorkersShare);
    }

    #[cfg(feature = "opencl")]
    #[test]
    fn i10_main_memory_a_worker_and_an_opencl_device_share() {
        if super::common::with_opencl("i10_main_memory_a_worker_and_an_opencl_device_share").is_some() {
            agrees(CASES, Shipping::WorkerAndOpenClShare);
        }
    }
}
