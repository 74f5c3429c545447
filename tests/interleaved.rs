//! The pure machine, with the steps of several plans interleaved at random.
//!
//! Each step of each plan (storage, map state, copy begun, copy done, finish) is an operation by itself;
//! requests, releases, failures, bindings, frees and lost devices come in between. What the engine relies on
//! holds at every step, and every state invariant holds after every one. Valid bytes are those that the
//! storages really hold. In the end no request is left waiting.

#![cfg(not(dml_loom))]

use dml::core::Access::{self, ReadOnly, WriteInvalidate};
use dml::core::internal::state::{Brings, MapState, Outcome};
use dml::core::{Concurrency, Span};
use dml_verify::machine::{Mix, Op, ops, refine, run};
use dml_verify::{CONCURRENCIES, Shape};
use proptest::prelude::*;

fn some(binds: u32, losses: u32) -> impl Strategy<Value = Vec<Op>> {
    ops(Mix { binds, losses }, 90)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 6_000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn i01_staged_copies_step_by_step(ops in some(0, 0), zeroed: bool) {
        run(&Shape::Star.plain(), zeroed, &ops);
    }

    #[test]
    fn i29_after_settling_streams_are_grants(ops in some(0, 0), zeroed: bool, shape in 0..3_usize) {
        let shapes = [Shape::Star, Shape::MappedAndStaged, Shape::Bound(Concurrency::BimapRead)];
        refine(&shapes[shape].plain(), zeroed, &ops);
    }

    #[test]
    fn i07_mapped_copies_step_by_step(ops in some(0, 0), zeroed: bool) {
        run(&Shape::MappedAndStaged.plain(), zeroed, &ops);
    }

    #[test]
    fn i11_bindings_exclusive_step_by_step(ops in some(3, 0), zeroed: bool) {
        run(&Shape::Bound(Concurrency::Exclusive).plain(), zeroed, &ops);
    }

    #[test]
    fn i11_bindings_for_reading_step_by_step(ops in some(3, 0), zeroed: bool) {
        run(&Shape::Bound(Concurrency::BimapRead).plain(), zeroed, &ops);
    }

    #[test]
    fn i11_coherent_bindings_step_by_step(ops in some(3, 0), zeroed: bool) {
        run(&Shape::Bound(Concurrency::BimapFull).plain(), zeroed, &ops);
    }

    #[test]
    fn i13_staged_copies_and_lost_devices(ops in some(0, 1), zeroed: bool) {
        run(&Shape::Star.plain(), zeroed, &ops);
    }

    #[test]
    fn i13_shared_memory_and_lost_devices(ops in some(4, 1), zeroed: bool) {
        run(&Shape::SharedByAll.plain(), zeroed, &ops);
    }

    #[test]
    fn i13_mapped_copies_and_lost_devices(ops in some(0, 1), zeroed: bool) {
        run(&Shape::MappedAndStaged.plain(), zeroed, &ops);
    }

    #[test]
    fn i10_two_members_step_by_step(ops in some(4, 0), zeroed: bool) {
        run(&Shape::ThreeBound.plain(), zeroed, &ops);
    }

    #[test]
    fn i10_a_third_memory_that_all_prefer_to_share(ops in some(4, 0), zeroed: bool) {
        run(&Shape::SharedByAll.plain(), zeroed, &ops);
    }

    #[test]
    fn i13_two_members_and_lost_devices(ops in some(4, 1), zeroed: bool) {
        run(&Shape::ThreeBound.plain(), zeroed, &ops);
    }

    #[test]
    fn i13_bindings_exclusive_and_lost_devices(ops in some(3, 1), zeroed: bool) {
        run(&Shape::Bound(Concurrency::Exclusive).plain(), zeroed, &ops);
    }

    #[test]
    fn i13_bindings_for_reading_and_lost_devices(ops in some(3, 1), zeroed: bool) {
        run(&Shape::Bound(Concurrency::BimapRead).plain(), zeroed, &ops);
    }

    #[test]
    fn i13_coherent_bindings_and_lost_devices(ops in some(3, 1), zeroed: bool) {
        run(&Shape::Bound(Concurrency::BimapFull).plain(), zeroed, &ops);
    }

    #[test]
    fn i07_a_device_copies_from_the_hosts_memory_by_itself(ops in some(0, 1), zeroed: bool) {
        run(&Shape::Direct.plain(), zeroed, &ops);
    }

    #[test]
    fn i07_devices_copy_from_each_others_memory(ops in some(0, 1), zeroed: bool) {
        for concurrency in CONCURRENCIES {
            run(&Shape::Peers(concurrency).plain(), zeroed, &ops);
        }
    }

    #[test]
    fn i11_devices_share_storage_past_the_host(ops in some(4, 1), zeroed: bool) {
        for concurrency in CONCURRENCIES {
            run(&Shape::BoundPeers(concurrency).plain(), zeroed, &ops);
        }
    }

    #[test]
    fn i10_bindings_of_one_direction(ops in some(4, 1), zeroed: bool) {
        for concurrency in CONCURRENCIES {
            run(&Shape::BoundOneWay(concurrency).plain(), zeroed, &ops);
        }
    }

    #[test]
    fn i11_two_arenas_of_one_device(ops in some(4, 1), zeroed: bool) {
        for concurrency in CONCURRENCIES {
            run(&Shape::TwoHomes(concurrency).plain(), zeroed, &ops);
        }
    }
}

#[test]
fn a_fresh_arena_is_in_its_first_state() {
    // What the machine above takes for granted of `MapState`.
    let platform = Shape::MappedAndStaged.plain();
    for arena in platform.arenas() {
        let first = MapState::initial(arena.desc());
        assert!(first.is_well_formed(arena.desc()) && first.gives(arena.desc(), arena.desc().native));
    }
}

/// A request waits for a memory that others use. A second request behind it, whose device is lost, uses that
/// memory too. A freed storage then admits a third request, which changes what the first one waits for. So
/// the second one is refused at once.
#[test]
fn l03_those_admitted_change_for_whom_others_wait() {
    use dml::core::Access::{ReadOnly, ReadWrite};
    let whole = Span::new(0, 12);
    let ask = |arena, access, both: bool, waits, again| Op::Ask {
        arena,
        span: whole,
        access,
        and: both.then_some((whole, ReadOnly)),
        waits,
        again,
        submits: false,
    };
    let ops = [
        ask(3, ReadOnly, false, true, true),
        Op::Advance { which: 0 },
        ask(0, ReadOnly, true, false, false),
        ask(0, ReadOnly, true, false, false),
        Op::Advance { which: 0 },
        ask(0, ReadOnly, false, true, true),
        ask(3, ReadOnly, true, true, false),
        Op::Advance { which: 0 },
        Op::Advance { which: 0 },
        Op::Advance { which: 0 },
        Op::Advance { which: 0 },
        Op::Release { which: 0, outcome: Outcome::Done },
        Op::Advance { which: 0 },
        Op::Release { which: 0, outcome: Outcome::Done },
        Op::Advance { which: 0 },
        Op::Release { which: 0, outcome: Outcome::Done },
        ask(1, ReadWrite, true, true, false),
        ask(3, ReadOnly, false, true, false),
        ask(2, ReadOnly, false, true, false),
        ask(1, ReadOnly, true, true, false),
        Op::Advance { which: 0 },
        Op::Advance { which: 0 },
        Op::Advance { which: 0 },
        Op::Prefetch { arena: 0, span: whole },
        ask(0, ReadOnly, false, true, true),
        ask(0, ReadOnly, true, true, false),
        Op::Lose { arena: 1 },
        Op::Free { arena: 0 },
    ];
    run(&Shape::SharedByAll.plain(), true, &ops);
}

/// With a second user of the first memory, the third one no longer prefers to share its storage, and gets its
/// own.
#[test]
fn l03_an_admission_lets_an_earlier_request_in() {
    let ask = |arena, (start, end), access, and: Option<((u64, u64), Access)>, submits| Op::Ask {
        arena,
        span: Span::new(start, end),
        access,
        and: and.map(|((start, end), access)| (Span::new(start, end), access)),
        waits: true,
        again: false,
        submits,
    };
    let advance = |times: usize, which| std::iter::repeat_n(Op::Advance { which }, times);
    let mut ops = vec![
        Op::Attach { arena: 0, brings: Brings::Contents },
        ask(3, (0, 12), ReadOnly, None, true),
        ask(2, (0, 12), ReadOnly, None, false),
    ];
    ops.extend(advance(2, 0).chain(advance(1, 104)));
    ops.push(ask(0, (0, 12), ReadOnly, Some(((0, 12), WriteInvalidate)), false));
    ops.extend(advance(1, 32));
    ops.push(Op::Release { which: 3, outcome: Outcome::Done });
    ops.extend(advance(2, 0));
    ops.push(ask(3, (0, 3), ReadOnly, None, false));
    ops.extend(advance(7, 0));
    ops.push(Op::Release { which: 0, outcome: Outcome::Done });
    ops.extend([
        ask(0, (0, 3), ReadOnly, None, true),
        ask(1, (3, 4), ReadOnly, Some(((0, 1), ReadOnly)), false),
        ask(0, (4, 7), WriteInvalidate, Some(((0, 12), ReadOnly)), false),
        Op::Downgrade { which: 0 },
        Op::Release { which: 56, outcome: Outcome::Done },
    ]);
    run(&Shape::ThreeBound.plain(), false, &ops);
}
