//! What a platform is made of is checked before there is one, and what was left to core is added.

#![cfg(not(dml_loom))]

use dml::arenas::Null;
use dml::core::internal::sync::Arc;
use dml::core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Binding, Concurrency, ConfigError, CopyQuery, DeviceDesc,
    DeviceId, DeviceKind, DeviceSet, HostStaged, Link, LinkId, Platform, PlatformBuilder, TopologyError,
};
use dml_verify::{CPU, GPU, GPU_ARENA, MAIN_ARENA};

const NOWHERE: ArenaId = ArenaId(9);
const NOBODY: DeviceId = DeviceId(9);

/// The processor and a gpu, each with a memory that the processor reaches.
fn builder() -> PlatformBuilder {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu)] {
        let device = builder.add_device(DeviceDesc::new(name, kind));
        add_arena(&mut builder, &memory(&format!("{name} memory"), device));
    }
    builder
}

fn memory(name: &str, device: DeviceId) -> ArenaDesc {
    let desc = ArenaDesc::new(name, ArenaKind("test"), device);
    desc.with_remotes(DeviceSet::of(CPU)).with_concurrency(Concurrency::BimapFull)
}

fn add_arena(builder: &mut PlatformBuilder, desc: &ArenaDesc) -> ArenaId {
    builder.add_arena(Arc::new(Null::backed(desc.clone())))
}

fn add_copies(
    builder: &mut PlatformBuilder,
    [from, to]: [ArenaId; 2],
    [source_via, target_via]: [DeviceId; 2],
) {
    let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
    builder.add_link(link, Arc::new(HostStaged::default()));
}

fn add_binding(builder: &mut PlatformBuilder, [from, to]: [ArenaId; 2], width: Concurrency) {
    let (source_via, target_via) = (builder.native(from), builder.native(to));
    let link = Link { from, to, source_via, target_via, allocation: Allocation::Bound(width) };
    builder.add_link(link, Arc::new(Binding::default()));
}

fn problems(builder: PlatformBuilder) -> Vec<TopologyError> {
    match builder.build() {
        Ok(_) => Vec::new(),
        Err(ConfigError::Topology(problems)) => problems,
        Err(error) => panic!("{error}"),
    }
}

/// Each problem by itself is found, and no other with it.
#[test]
fn every_problem_of_a_platform_is_named() {
    type Spoil = fn(&mut PlatformBuilder);
    let name = Arc::from;
    let device_twice: Spoil = |builder| _ = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let arena_twice: Spoil = |builder| _ = add_arena(builder, &memory("gpu memory", GPU));
    let of_nobody: Spoil = |builder| _ = add_arena(builder, &memory("lost", NOBODY));
    let reached_by_nobody: Spoil = |builder| {
        let desc = memory("odd", GPU).with_remotes(DeviceSet::of(CPU).with(NOBODY));
        add_arena(builder, &desc);
    };
    let crooked: Spoil = |builder| _ = add_arena(builder, &memory("crooked", GPU).with_alloc_align(48));
    let to_nowhere: Spoil = |builder| add_copies(builder, [MAIN_ARENA, NOWHERE], [CPU, GPU]);
    let to_itself: Spoil = |builder| add_copies(builder, [GPU_ARENA, GPU_ARENA], [GPU, GPU]);
    let through_a_stranger: Spoil = |builder| add_copies(builder, [MAIN_ARENA, GPU_ARENA], [GPU, GPU]);
    let back_through_a_stranger: Spoil = |builder| add_copies(builder, [GPU_ARENA, MAIN_ARENA], [GPU, GPU]);
    let for_ever: Spoil = |builder| {
        let alone = add_arena(builder, &memory("alone", GPU).with_remotes(DeviceSet::EMPTY));
        add_binding(builder, [MAIN_ARENA, alone], Concurrency::Exclusive);
    };
    let without_a_way: Spoil = |builder| builder.prefer_binding(MAIN_ARENA, GPU_ARENA);
    let against_its_way: Spoil = |builder| {
        add_binding(builder, [MAIN_ARENA, GPU_ARENA], Concurrency::Exclusive);
        builder.allow_binding(GPU_ARENA, MAIN_ARENA);
    };
    let through = |from: &str, to: &str| TopologyError::LinkDevice {
        from: from.into(),
        to: to.into(),
        arena: name("cpu memory"),
        device: GPU,
    };
    let unknown = |arena: &str| TopologyError::UnknownDevice { arena: arena.into(), device: NOBODY };
    let cases: [(Spoil, TopologyError); 12] = [
        (device_twice, TopologyError::DuplicateName { what: "devices", name: name("gpu") }),
        (arena_twice, TopologyError::DuplicateName { what: "arenas", name: name("gpu memory") }),
        (of_nobody, unknown("lost")),
        (reached_by_nobody, unknown("odd")),
        (crooked, TopologyError::BadAlign { arena: name("crooked"), align: 48 }),
        (to_nowhere, TopologyError::BadLink { from: MAIN_ARENA, to: NOWHERE }),
        (to_itself, TopologyError::BadLink { from: GPU_ARENA, to: GPU_ARENA }),
        (through_a_stranger, through("cpu memory", "gpu memory")),
        (back_through_a_stranger, through("gpu memory", "cpu memory")),
        (
            for_ever,
            TopologyError::Unbindable { from: name("cpu memory"), to: name("alone"), arena: name("alone") },
        ),
        (without_a_way, TopologyError::NoBinding { root: MAIN_ARENA, member: GPU_ARENA }),
        (against_its_way, TopologyError::NoBinding { root: GPU_ARENA, member: MAIN_ARENA }),
    ];
    assert_eq!(problems(builder()), []);
    let mut all = builder();
    for (spoil, expected) in &cases {
        let mut spoiled = builder();
        spoil(&mut spoiled);
        assert_eq!(problems(spoiled), std::slice::from_ref(expected));
    }
    // They are told together.
    for (spoil, _) in [&cases[0], &cases[1], &cases[4]] {
        spoil(&mut all);
    }
    assert_eq!(problems(all), [0, 1, 4].map(|index: usize| cases[index].1.clone()));
}

/// Who shares storage with another is shared with by it: the way back has the same ends the other way round.
#[test]
fn every_binding_has_a_way_back_through_the_same_ends() {
    for width in [Concurrency::Exclusive, Concurrency::BimapFull] {
        let mut builder = builder().without_default_links();
        add_binding(&mut builder, [MAIN_ARENA, GPU_ARENA], width);
        let platform = builder.build().unwrap();
        let links: Vec<_> = platform
            .links()
            .iter()
            .map(|link| (link.from, link.to, link.source_via, link.target_via, link.allocation))
            .collect();
        let there = (MAIN_ARENA, GPU_ARENA, CPU, GPU, Allocation::Bound(width));
        assert_eq!(links, [there, (GPU_ARENA, MAIN_ARENA, GPU, CPU, Allocation::Shared)]);
    }
    // A way back that there is already is not added.
    let mut builder = builder().without_default_links();
    for ends in [[MAIN_ARENA, GPU_ARENA], [GPU_ARENA, MAIN_ARENA]] {
        add_binding(&mut builder, ends, Concurrency::Exclusive);
    }
    assert_eq!(builder.build().unwrap().links().len(), 2);
}

/// The links that core adds between two devices cost what their halves do, wherever the processor's memory
/// stands in the list.
#[test]
fn default_links_cost_their_halves_in_whatever_order_memories_come() {
    for names in [["cpu", "one", "two"], ["one", "cpu", "two"], ["one", "two", "cpu"]] {
        let mut builder = Platform::builder();
        for name in names {
            let kind = if name == "cpu" { DeviceKind::Cpu } else { DeviceKind::Gpu };
            let device = builder.add_device(DeviceDesc::new(name, kind));
            add_arena(&mut builder, &ArenaDesc::new(name, ArenaKind("test"), device));
        }
        let added: Vec<_> = builder.arenas().iter().map(|arena| arena.desc().name.to_string()).collect();
        assert_eq!(added, names, "in the order in which they came");
        let platform = builder.build().unwrap();
        let cpu = names.iter().position(|name| *name == "cpu").map(|at| DeviceId(at as u16));
        assert_eq!(platform.host(), cpu);
        let routes = platform.routes();
        let arena = |name: &str| ArenaId(names.iter().position(|other| *other == name).unwrap() as u8);
        let query = CopyQuery { bytes: 1 << 20, remap_source: false, remap_target: false, allocates: false };
        let cost = |from, to| {
            let ends = (arena(from), arena(to));
            let link = routes.links().iter().position(|link| (link.from, link.to) == ends).unwrap();
            routes.cost(LinkId(link as u16), &query).unwrap().as_ns().unwrap()
        };
        let (out, into) = (cost("one", "cpu"), cost("cpu", "two"));
        assert_eq!(cost("one", "two"), out + into + 1_000, "{names:?}");
    }
}

/// Every binding gets a way back of its own, also where others begin or end at its arenas.
#[test]
fn a_chain_of_bindings_leads_both_ways() {
    let mut builder = builder().without_default_links();
    let third = builder.add_device(DeviceDesc::new("third", DeviceKind::Gpu));
    let third = add_arena(&mut builder, &memory("third memory", third));
    let chain = [[MAIN_ARENA, GPU_ARENA], [GPU_ARENA, third]];
    for ends in chain {
        add_binding(&mut builder, ends, Concurrency::Exclusive);
    }
    let platform = builder.build().unwrap();
    let bound = |[from, to]: [ArenaId; 2]| {
        platform
            .routes()
            .links()
            .iter()
            .any(|link| (link.from, link.to) == (from, to) && link.allocation != Allocation::Internal)
    };
    for [from, to] in chain {
        assert!(bound([from, to]) && bound([to, from]), "{from} and {to}");
    }
}

/// A binding can be left out where copies lead both ways, and is needed where they lead one way alone.
#[test]
fn a_binding_is_needed_where_copies_do_not_lead_back() {
    let ways = [[MAIN_ARENA, GPU_ARENA], [GPU_ARENA, MAIN_ARENA]];
    for (copies, needed) in [(&ways[..0], true), (&ways[..1], true), (&ways[1..], true), (&ways[..], false)] {
        let mut builder = builder().without_default_links();
        add_binding(&mut builder, ways[0], Concurrency::Exclusive);
        for ends in copies {
            add_copies(&mut builder, *ends, ends.map(|arena| if arena == MAIN_ARENA { CPU } else { GPU }));
        }
        let platform = builder.build().unwrap();
        let links = platform.routes().links().iter().enumerate();
        let told: Vec<_> = links
            .filter(|(_, link)| link.allocation != Allocation::Internal)
            .map(|(index, _)| platform.routes().is_needed(LinkId(index as u16)))
            .collect();
        // One of the two ways is made; the other follows from it.
        assert_eq!(told.iter().any(|is_needed| *is_needed), needed, "{copies:?}: {told:?}");
    }
}
