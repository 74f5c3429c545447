//! Hints of buffers: which storage is made first. What is read never depends on them.

#![cfg(not(dml_loom))]

use dml::core::internal::state::Alloc;
use dml::core::{
    Allocation, Concurrency, ConfigError, DeviceId, LinkId, Pattern, RawBufferBuilder, TopologyError,
};
use dml_verify::{
    Audited, CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, Rig, byte_copies, bytes, check, read, write,
};

const LEN: u64 = 1 << 16;

/// How the platform offers to share storage between main memory and the first gpu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    Plain,
    Allowed,
    Preferred,
}

/// Main memory and two gpus joined by copies. The first gpu can also be bound to main memory.
fn platform(offer: Offer, concurrency: Concurrency) -> Audited {
    let rig = Rig::new().gpu(concurrency).gpu(concurrency);
    let rig = rig.staged(MAIN_ARENA, GPU_ARENA).staged(MAIN_ARENA, GPU2_ARENA);
    let rig = rig.bound_one_way(MAIN_ARENA, GPU_ARENA, concurrency);
    match offer {
        Offer::Plain => rig,
        Offer::Allowed => rig.allowing(MAIN_ARENA, GPU_ARENA),
        Offer::Preferred => rig.preferring(MAIN_ARENA, GPU_ARENA),
    }
    .build()
}

/// Writes on one side, reads on the other, and says whether the two share storage.
fn shares(
    platform: &Audited,
    first: [dml::core::ArenaId; 2],
    hint: impl Fn(RawBufferBuilder) -> RawBufferBuilder,
) -> bool {
    let buffer = hint(platform.raw_buffer(LEN)).build().expect("a small buffer");
    let before = byte_copies(platform);
    for (turn, arena) in first.into_iter().chain(first).enumerate() {
        let seed = turn as u64 + 1;
        if turn > 0 {
            assert_eq!(read(&buffer, arena, 0..LEN), bytes(seed - 1, 0..LEN));
        }
        write(&buffer, arena, 0..LEN, seed);
    }
    assert_eq!(read(&buffer, GPU2_ARENA, 0..LEN), bytes(4, 0..LEN), "copies reach all others");
    let is_bound = matches!(check(&buffer).arena(GPU_ARENA).alloc, Alloc::Bound { root: MAIN_ARENA, .. });
    // One copy for the second gpu, and one for each turn.
    let copied = byte_copies(platform) - before;
    assert_eq!(copied <= 2, is_bound, "{copied} copies");
    is_bound
}

const ORDERS: [[dml::core::ArenaId; 2]; 2] = [[MAIN_ARENA, GPU_ARENA], [GPU_ARENA, MAIN_ARENA]];

#[test]
fn to_and_fro_shares_storage_whoever_comes_first() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull] {
        for offer in [Offer::Plain, Offer::Allowed, Offer::Preferred] {
            let platform = platform(offer, concurrency);
            for first in ORDERS {
                assert!(shares(&platform, first, |made| made.used_by([CPU, GPU]).pattern(Pattern::ToAndFro)));
                assert!(shares(&platform, first, |made| made.pattern(Pattern::ToAndFro)), "any device may");
            }
        }
    }
}

#[test]
fn streams_readers_and_other_devices_have_copies() {
    for offer in [Offer::Plain, Offer::Allowed, Offer::Preferred] {
        let platform = platform(offer, Concurrency::Exclusive);
        for first in ORDERS {
            assert!(!shares(&platform, first, |made| made.pattern(Pattern::StreamedOnce)));
            assert!(!shares(&platform, first, |made| made.used_by([CPU, GPU]).pattern(Pattern::ReadMostly)));
            assert!(!shares(&platform, first, |made| made.used_by([CPU, GPU2])), "{offer:?}");
            let others = |made: RawBufferBuilder| made.used_by([GPU2, CPU]).pattern(Pattern::ToAndFro);
            assert!(!shares(&platform, first, others), "the bound device is not named");
        }
    }
}

#[test]
fn devices_alone_follow_what_the_platform_prefers() {
    let named = |made: RawBufferBuilder| made.used_by([CPU]).used_by([GPU]);
    assert!(shares(&platform(Offer::Preferred, Concurrency::Exclusive), ORDERS[1], named));
    assert!(!shares(&platform(Offer::Allowed, Concurrency::Exclusive), ORDERS[1], named));
    assert!(!shares(&platform(Offer::Plain, Concurrency::Exclusive), ORDERS[0], named));
}

/// A binding that is only allowed changes nothing for who does not ask for it, though it would be cheaper.
#[test]
fn an_allowed_binding_is_made_on_request_alone() {
    let allowed = platform(Offer::Allowed, Concurrency::Exclusive);
    for first in ORDERS {
        assert!(!shares(&allowed, first, |made| made));
    }
    // The machine itself, without a buffer's hints, hears the same.
    for (offer, expected) in [(Offer::Plain, true), (Offer::Allowed, false), (Offer::Preferred, true)] {
        let platform = platform(offer, Concurrency::Exclusive);
        let links = platform.routes().links();
        let binding =
            links.iter().position(|link| link.allocation != Allocation::Internal).expect("it is offered");
        assert_eq!(platform.routes().may_bind(LinkId(binding as u16)), expected, "{offer:?}");
    }
    // By hand it can be made at any time.
    let buffer = allowed.raw_buffer(LEN).build().unwrap();
    write(&buffer, MAIN_ARENA, 0..LEN, 1);
    let before = byte_copies(&allowed);
    buffer.bind(GPU_ARENA, MAIN_ARENA).unwrap();
    assert_eq!(read(&buffer, GPU_ARENA, 0..LEN), bytes(1, 0..LEN));
    assert_eq!(byte_copies(&allowed), before, "the two share it");
    assert!(shares(&platform(Offer::Preferred, Concurrency::Exclusive), ORDERS[1], |made| made));
    assert!(
        shares(&platform(Offer::Plain, Concurrency::Exclusive), ORDERS[0], |made| made),
        "as ever: the cheaper"
    );
}

/// The path cache belongs to buffers without hints: one kind of buffer does not plan with another kind's
/// paths.
#[test]
fn buffers_of_one_platform_plan_by_their_own_hints() {
    let platform = platform(Offer::Plain, Concurrency::Exclusive);
    type Ask = fn(RawBufferBuilder) -> RawBufferBuilder;
    let asks: [(bool, Ask); 3] = [
        (true, |made| made),
        (false, |made| made.pattern(Pattern::ReadMostly)),
        (true, |made| made.pattern(Pattern::ToAndFro)),
    ];
    for round in 0..3 {
        for turn in 0..3 {
            let (expected, ask) = asks[(round + turn) % 3];
            assert_eq!(shares(&platform, ORDERS[0], ask), expected, "round {round}, turn {turn}");
        }
    }
}

#[test]
fn a_needed_binding_is_made_against_every_hint() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapFull] {
        let rig = Rig::new().gpu(concurrency).bound_one_way(MAIN_ARENA, GPU_ARENA, concurrency);
        let platform = rig.allowing(MAIN_ARENA, GPU_ARENA).build();
        for hint in [Pattern::StreamedOnce, Pattern::ReadMostly, Pattern::ToAndFro] {
            let buffer = platform.raw_buffer(LEN).used_by([CPU]).pattern(hint).build().unwrap();
            write(&buffer, GPU_ARENA, 0..LEN, 1);
            assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN), "no other way leads there");
        }
    }
}

#[test]
fn hints_and_bindings_that_name_nothing_are_refused() {
    let platform = platform(Offer::Plain, Concurrency::Exclusive);
    let nobody = DeviceId(200);
    let expected = ConfigError::NoSuchDevice { device: nobody, devices: 3 };
    assert_eq!(platform.raw_buffer(9).used_by([CPU, nobody]).build().unwrap_err(), expected);
    let typed = platform.buffer::<u64>(9).pattern(Pattern::ToAndFro).used_by([nobody]).build();
    assert_eq!(typed.unwrap_err(), expected);
    assert!(expected.to_string().contains("200"), "{expected}");
    let rig = Rig::new().gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA);
    let refused = rig.allowing(MAIN_ARENA, GPU_ARENA).try_plain().unwrap_err();
    let problem = TopologyError::NoBinding { root: MAIN_ARENA, member: GPU_ARENA };
    assert_eq!(refused, ConfigError::Topology(vec![problem]));
}
