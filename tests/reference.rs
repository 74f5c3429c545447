//! Long sequences of operations on every kind of platform, every answer held against the reference model
//! (I-2, I-4, I-15 to I-17, L-3 to L-6).
//!
//! The model (`dml_verify::reference`) knows bytes, versions, holders and waiters. Of arenas it knows only
//! which bytes they are sure to hold. What it takes from the answers does not shape a sequence, so the state
//! machine's own state is the platform alone, and any operation may follow any other.

#![cfg(not(dml_loom))]

use dml_verify::reference::{Mix, Op, Setup, World, from_bytes, op, run, setup};
use dml_verify::{Shape, bytes};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

/// Sequences on the platform of one number in [`Shape::OF_SEQUENCES`], or of the shapes that only this test
/// uses.
struct On<const SHAPE: usize>;

impl<const SHAPE: usize> ReferenceStateMachine for On<SHAPE> {
    type State = Setup;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<Setup> {
        setup(&[*Shape::OF_SEQUENCES.iter().chain(&[Shape::SharedByAll]).nth(SHAPE).expect("a shape")], 4)
    }

    fn transitions(_: &Setup) -> BoxedStrategy<Op> {
        op(Mix::All)
    }

    fn apply(setup: Setup, _: &Op) -> Setup {
        setup
    }
}

impl<const SHAPE: usize> StateMachineTest for On<SHAPE> {
    type SystemUnderTest = World;
    type Reference = Self;

    fn init_test(setup: &Setup) -> World {
        World::new(setup.shape.build(), &setup.buffers, None)
    }

    fn apply(mut world: World, _: &Setup, op: Op) -> World {
        world.step(&op);
        world
    }

    fn teardown(world: World, _: Setup) {
        let _ = world.finish();
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        max_shrink_iters: 5_000,
        ..ProptestConfig::default()
    }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn i02_one_gpu_joined_by_copies(sequential 50..400 => On<0>);

    #[test]
    fn i02_staged_copies(sequential 50..400 => On<1>);

    #[test]
    fn i02_mapped_copies(sequential 50..400 => On<2>);

    #[test]
    fn i02_every_way_at_once(sequential 50..400 => On<3>);

    #[test]
    fn i11_bound_exclusive(sequential 50..400 => On<4>);

    #[test]
    fn i11_bound_for_reading(sequential 50..400 => On<5>);

    #[test]
    fn i11_bound_coherently(sequential 50..400 => On<6>);

    #[test]
    fn i10_two_gpus_bound_to_main_memory(sequential 50..400 => On<7>);

    #[test]
    fn i02_six_arenas(sequential 50..400 => On<8>);

    #[test]
    fn i10_a_third_memory_that_all_prefer_to_share(sequential 50..400 => On<9>);
}

/// Whatever a fuzzer comes upon stands for a sequence, which runs to its end.
fn stands_for_something(bytes: &[u8]) -> usize {
    let (setup, ops) = from_bytes(Mix::All, bytes).expect("nothing is filtered");
    let _ = run(setup.shape.build(), &setup.buffers, &ops);
    ops.len()
}

#[test]
fn any_bytes_are_a_sequence() {
    assert_eq!(stands_for_something(&[]), 1);
    for len in [1, 7, 64, 500, 4096, 30_000] {
        for fill in [0, 1, 0x7f, 0x80, 0xfe, 0xff] {
            let _ = stands_for_something(&vec![fill; len]);
        }
    }
    assert!(stands_for_something(&bytes(1, 0..4096)) > 40);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_a_sequence(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let _ = stands_for_something(&bytes);
    }

    #[test]
    fn the_same_bytes_are_the_same_sequence(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        prop_assert_eq!(from_bytes(Mix::All, &bytes), from_bytes(Mix::All, &bytes));
    }
}
