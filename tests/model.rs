//! Every reachable state of the machine in small configurations. `cargo xtask model` runs the large ones too.
//!
//! The numbers of states are pinned: a change of them is a change of the machine's behaviour, or of what is
//! explored, and is to be understood before the number is changed.

#![cfg(not(dml_loom))]

use dml::core::internal::state::Outcome;
use dml::core::{Access, ArenaId, Concurrency, Platform, Span};
use dml_verify::model::{BufferModel, Explored, Happens, Order, ProtocolModel, Want, Wish};
use dml_verify::{CPU, GPU, GPU_ARENA, GPU2_ARENA, GPU3_ARENA, GPU4_ARENA, MAIN_ARENA, Rig, Shape};

use Access::{ReadOnly, ReadWrite, WriteInvalidate};

const ALL: Span = Span::new(0, 1);

/// Explores a model, and holds the number of its states to be the one known.
#[track_caller]
fn expect(name: &str, explored: &Explored, states: usize) {
    eprintln!("model {name}: {explored}");
    assert!(explored.wrong.is_empty(), "{name}: {}", explored.wrong.join("\n"));
    assert_eq!(explored.unique, states, "{name}: the number of states");
}

const ANY: [Access; 3] = [ReadOnly, WriteInvalidate, ReadWrite];

/// Everything that can be asked of the whole buffer in some arenas.
fn whole(arenas: &[ArenaId]) -> Vec<Wish> {
    arenas.iter().flat_map(|&arena| ANY.map(|access| Wish::new(arena, ALL, access))).collect()
}

/// A whole buffer and kernels, each of which may ask anything of its arenas; everything may go wrong.
fn buffer(platform: Platform, kernels: &[&[ArenaId]]) -> BufferModel {
    let wishes = kernels.iter().map(|arenas| whole(arenas)).collect();
    BufferModel {
        outcomes: vec![Outcome::Done, Outcome::Failed],
        faults: true,
        restores: vec![ALL],
        ..BufferModel::new(platform, 1, wishes)
    }
}

#[test]
fn whole_buffer_on_a_star_of_three() {
    let model = BufferModel {
        breaks: true,
        gives_up: true,
        cancels: true,
        closes: true,
        downgrades: true,
        outcomes: vec![Outcome::Done, Outcome::Failed, Outcome::NotStarted],
        prefetches: vec![(MAIN_ARENA, ALL), (GPU_ARENA, ALL)],
        frees: vec![MAIN_ARENA, GPU_ARENA, GPU2_ARENA],
        happens: vec![
            Happens::TwoReadersInDifferentArenasAtOnce,
            Happens::AReaderBesideACopy,
            Happens::AReaderBesideAPrefetch,
            Happens::TwoCopiesToDifferentArenasAtOnce,
            Happens::APathOfTwoHops,
            Happens::PoisonedAndRestorable,
            Happens::PoisonedForGood,
            Happens::TwoWait,
            Happens::ValidInEveryArena,
        ],
        ..buffer(Shape::Star.plain(), &[&[MAIN_ARENA], &[GPU_ARENA], &[GPU2_ARENA]])
    };
    expect("star of 3, 3 kernels", &model.explore(), 326_226);
}

#[test]
fn whole_buffer_on_a_chain_of_five() {
    let model = BufferModel {
        happens: vec![Happens::APathOfThreeHops, Happens::ValidInEveryArena, Happens::TwoWait],
        ..buffer(Shape::Chain.plain(), &[&[MAIN_ARENA, GPU_ARENA], &[GPU2_ARENA], &[GPU3_ARENA, GPU4_ARENA]])
    };
    expect("chain of 5, 3 kernels", &model.explore(), 452_226);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn whole_buffer_over_mappings() {
    let model = BufferModel {
        cancels: true,
        prefetches: vec![(MAIN_ARENA, ALL), (GPU2_ARENA, ALL)],
        happens: vec![
            Happens::TwoReadersInDifferentArenasAtOnce,
            Happens::AReaderBesideAPrefetch,
            Happens::APathOfTwoHops,
            Happens::TwoWait,
        ],
        ..buffer(Shape::MappedAndStaged.plain(), &[&[MAIN_ARENA], &[GPU_ARENA, GPU2_ARENA], &[GPU3_ARENA]])
    };
    expect("mapped 4, 3 kernels", &model.explore(), 1_099_308);
}

/// Main memory and a device's that can be one storage, bound either way by plans and by hand.
fn bound_pair(concurrency: Concurrency, states: usize) {
    let mut happens = vec![
        Happens::AMemberBoundToMainMemory,
        Happens::MainMemoryBoundToADevice,
        Happens::PoisonedAndRestorable,
        Happens::ValidInEveryArena,
    ];
    if concurrency != Concurrency::Exclusive {
        happens.push(Happens::TwoUsersOfOneStorageAtOnce);
    }
    let model = BufferModel {
        gives_up: true,
        cancels: true,
        binds: vec![(MAIN_ARENA, GPU_ARENA), (GPU_ARENA, MAIN_ARENA)],
        frees: vec![MAIN_ARENA, GPU_ARENA],
        happens,
        ..buffer(Shape::Bound(concurrency).plain(), &[&[MAIN_ARENA], &[GPU_ARENA], &[GPU2_ARENA]])
    };
    expect(&format!("bound pair {concurrency:?}, 3 kernels"), &model.explore(), states);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn whole_buffer_with_a_pair_bound_exclusively() {
    bound_pair(Concurrency::Exclusive, 626_630);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn whole_buffer_with_a_pair_bound_for_reading() {
    bound_pair(Concurrency::BimapRead, 904_396);
}

#[test]
fn whole_buffer_with_a_pair_bound_coherently() {
    bound_pair(Concurrency::BimapFull, 331_155);
}

/// Three arenas that can share main memory's storage, each under rules of its own.
fn members(kernels: &[&[ArenaId]]) -> BufferModel {
    BufferModel {
        happens: vec![
            Happens::AMemberBoundToMainMemory,
            Happens::MainMemoryBoundToADevice,
            Happens::TwoUsersOfOneStorageAtOnce,
        ],
        ..buffer(Shape::ThreeBound.plain(), kernels)
    }
}

#[test]
fn whole_buffer_with_three_members() {
    let model = members(&[&[MAIN_ARENA], &[GPU_ARENA], &[GPU3_ARENA]]);
    expect("three members, 3 kernels", &model.explore(), 82_132);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn whole_buffer_with_three_members_and_one_kernel_in_two() {
    let model = members(&[&[MAIN_ARENA], &[GPU_ARENA, GPU2_ARENA], &[GPU3_ARENA]]);
    expect("three members, 3 kernels, one in 2 arenas", &model.explore(), 1_486_233);
}

/// Arenas of every kind: shared, mapped, reached over another.
fn five(kernels: &[&[ArenaId]]) -> BufferModel {
    BufferModel {
        happens: vec![
            Happens::AMemberBoundToMainMemory,
            Happens::TwoUsersOfOneStorageAtOnce,
            Happens::APathOfTwoHops,
        ],
        ..buffer(Shape::Five.plain(), kernels)
    }
}

#[test]
fn whole_buffer_in_five_arenas_of_every_kind() {
    let model = five(&[&[MAIN_ARENA], &[GPU4_ARENA], &[GPU3_ARENA]]);
    expect("mixed 5, 3 kernels", &model.explore(), 53_071);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn whole_buffer_in_five_arenas_of_every_kind_and_kernels_in_all() {
    let model = five(&[&[MAIN_ARENA], &[GPU_ARENA, GPU2_ARENA], &[GPU3_ARENA, GPU4_ARENA]]);
    expect("mixed 5, 3 kernels in all", &model.explore(), 2_167_881);
}

/// A device and the processor are lost at any time.
fn lost(platform: Platform, states: usize) {
    let model = BufferModel {
        losses: vec![GPU, CPU],
        binds: vec![(MAIN_ARENA, GPU_ARENA), (GPU_ARENA, MAIN_ARENA)],
        happens: vec![Happens::PoisonedForGood, Happens::TwoWait],
        ..buffer(platform, &[&[MAIN_ARENA], &[GPU_ARENA], &[GPU2_ARENA]])
    };
    expect("lost devices, 3 kernels", &model.explore(), states);
}

#[test]
fn whole_buffer_with_lost_devices() {
    lost(Shape::Star.plain(), 51_479);
    lost(Shape::Bound(Concurrency::BimapFull).plain(), 183_879);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn whole_buffer_with_lost_devices_bound_for_reading() {
    lost(Shape::Bound(Concurrency::BimapRead).plain(), 498_452);
}

/// What can be asked of two segments: either of them or both, to read and to change; and to read one and
/// overwrite the other.
fn ranges(arena: ArenaId) -> Vec<Wish> {
    let (first, second, both) = (Span::new(0, 1), Span::new(1, 2), Span::new(0, 2));
    let mut wishes: Vec<Wish> =
        [(first, ReadWrite), (second, ReadWrite), (both, ReadOnly), (second, ReadOnly)]
            .map(|(span, access)| Wish::new(arena, span, access))
            .into();
    wishes.push(Wish {
        arena,
        claims: vec![(first, ReadOnly), (second, WriteInvalidate)],
        is_submission: false,
    });
    wishes
}

/// Two segments, three kernels, each in an arena of its own.
fn segments(platform: Platform) -> BufferModel {
    BufferModel {
        happens: vec![
            Happens::TwoDisjointWritersAtOnce,
            Happens::TwoReadersInDifferentArenasAtOnce,
            Happens::AReaderBesideACopy,
            Happens::TwoCopiesOfOnePlanAtOnce,
            Happens::ALaterCopyBesideTheFirstOfAPath,
        ],
        faults: true,
        zeroed: true,
        ..BufferModel::new(platform, 2, [MAIN_ARENA, GPU_ARENA, GPU2_ARENA].map(ranges).into())
    }
}

/// The first gpu's memory is mapped by the host, the second one's is read and written.
fn mapped(concurrency: Concurrency) -> Platform {
    let rig = Rig::new().gpu(concurrency).gpu(Concurrency::Exclusive);
    rig.mapped(GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA).plain()
}

#[test]
fn two_segments_on_a_star_of_three() {
    expect("2 segments, star of 3, 3 kernels", &segments(Shape::Star.plain()).explore(), 990_845);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn two_segments_with_a_bound_pair() {
    let model = segments(Shape::Bound(Concurrency::BimapFull).plain());
    expect("2 segments, bound coherently, 3 kernels", &model.explore(), 1_598_705);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn two_segments_over_mappings() {
    let model = segments(mapped(Concurrency::BimapRead));
    expect("2 segments, mapped for reading, 3 kernels", &model.explore(), 1_924_784);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn two_segments_with_a_pair_bound_exclusively() {
    let model = segments(Shape::Bound(Concurrency::Exclusive).plain());
    expect("2 segments, bound exclusively, 3 kernels", &model.explore(), 3_198_510);
}

/// Each kernel names the buffers in an order of its own.
fn lists(arenas: [ArenaId; 3]) -> Vec<Vec<Vec<Want>>> {
    let orders = [[0, 1, 2], [1, 2, 0], [2, 0, 1]];
    let list = |order: [usize; 3], arena, accesses: [Access; 3]| -> Vec<Want> {
        order
            .into_iter()
            .zip(accesses)
            .map(|(buffer, access)| Want::new(buffer, arena, ALL, access))
            .collect()
    };
    orders
        .into_iter()
        .zip(arenas)
        .map(|(order, arena)| {
            vec![
                list(order, arena, [ReadWrite; 3]),
                list(order, arena, [ReadOnly, ReadWrite, ReadOnly]),
                list(order, arena, [ReadOnly; 3]),
            ]
        })
        .collect()
}

fn protocol(order: Order, kernels: Vec<Vec<Vec<Want>>>, len: u64) -> ProtocolModel {
    ProtocolModel {
        platform: Shape::Star.plain(),
        buffers: 3,
        len,
        kernels,
        order,
        cancels: true,
        faults: true,
    }
}

#[test]
fn l01_three_kernels_and_three_buffers() {
    let model = protocol(Order::Canonical, lists([MAIN_ARENA, MAIN_ARENA, GPU_ARENA]), 1);
    expect("protocol 3 x 3", &model.explore(), 529_011);
}

#[test]
fn l01_in_the_order_in_which_they_are_named_they_would_deadlock() {
    let explored = protocol(Order::AsNamed, lists([MAIN_ARENA; 3]), 1).explore();
    assert!(explored.wrong[0].starts_with("L-1"), "{:?}", explored.wrong);
}

/// Both kernels want both halves of one buffer, and the other kernel's half first.
fn halves() -> Vec<Vec<Vec<Want>>> {
    let half = |start| Want::new(0, MAIN_ARENA, Span::new(start, start + 1), ReadWrite);
    vec![vec![vec![half(0), half(1)]], vec![vec![half(1), half(0)]]]
}

#[test]
fn l01_ranges_of_one_buffer_are_one_step() {
    let explored = protocol(Order::Canonical, halves(), 2).explore();
    // They exclude each other: never do both have everything, nor does one wait while it holds. No kernel
    // asks for the other two buffers.
    assert_eq!(explored.wrong.len(), 3, "{:?}", explored.wrong);
    assert!(explored.wrong.iter().all(|wrong| wrong.starts_with("never: ")), "{:?}", explored.wrong);
}

#[test]
fn l01_as_separate_steps_they_would_deadlock() {
    let explored = protocol(Order::AsNamed, halves(), 2).explore();
    assert!(explored.wrong[0].starts_with("L-1"), "{:?}", explored.wrong);
}

/// What can be submitted of the whole buffer to the stream of an arena.
fn submitted(arena: ArenaId) -> Vec<Wish> {
    whole(&[arena]).into_iter().map(Wish::submitted).collect()
}

/// Two kernels on the stream of one arena, beside a kernel in main memory.
fn streams(platform: Platform) -> BufferModel {
    BufferModel {
        outcomes: vec![Outcome::Done, Outcome::Failed],
        happens: vec![
            Happens::AReaderBehindAWriterOnAStream,
            Happens::AWriterBehindAWriterOnAStream,
            Happens::ASubmissionBehindAFailure,
            Happens::PoisonedAndRestorable,
            Happens::PoisonedForGood,
            Happens::TwoWait,
        ],
        faults: true,
        frees: vec![GPU_ARENA],
        ..BufferModel::new(
            platform,
            1,
            vec![submitted(GPU_ARENA), submitted(GPU_ARENA), whole(&[MAIN_ARENA])],
        )
    }
}

#[test]
fn i29_streams_on_a_star_of_three() {
    let model = BufferModel {
        cancels: true,
        gives_up: true,
        prefetches: vec![(MAIN_ARENA, ALL)],
        restores: vec![ALL],
        ..streams(Shape::Star.plain())
    };
    expect("streams, star of 3, 3 kernels", &model.explore(), 18_432);
}

#[test]
fn i29_streams_over_mappings() {
    let model = BufferModel { losses: vec![GPU], closes: true, ..streams(mapped(Concurrency::Exclusive)) };
    expect("streams, mapped, 3 kernels", &model.explore(), 15_673);
}

#[test]
#[ignore = "large: cargo xtask model"]
fn i29_two_streams_of_two_segments() {
    let of = |arena| ranges(arena).into_iter().map(Wish::submitted).collect::<Vec<_>>();
    let kernels = vec![of(GPU_ARENA), of(GPU_ARENA), of(GPU2_ARENA)];
    let model = BufferModel {
        outcomes: vec![Outcome::Done, Outcome::Failed],
        zeroed: true,
        happens: vec![
            Happens::TwoDisjointWritersAtOnce,
            Happens::AReaderBehindAWriterOnAStream,
            Happens::ASubmissionBehindAFailure,
            Happens::AReaderBesideACopy,
        ],
        ..BufferModel::new(Shape::Star.plain(), 2, kernels)
    };
    expect("two streams, star of 3, 3 kernels", &model.explore(), 393_189);
}
