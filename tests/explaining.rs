//! `Platform::explain` on platforms without devices: the plan, the paths that it rejects, and the reasons.

#![cfg(not(dml_loom))]

use dml::arenas::{Null, kit};
use dml::core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Concurrency, CopyJob, CopyQuery, Cost, CrossArena, DeviceDesc,
    DeviceId, DeviceKind, DeviceSet, Fence, Link, LinkId, LinkSpeed, Platform, PlatformBuilder,
    TransferError,
};
use std::sync::Arc;

const MAIN: ArenaId = ArenaId(0);

/// A platform of the processor and this many cards, each with its memory, without links.
fn machine(cards: u16) -> PlatformBuilder {
    let mut builder = PlatformBuilder::default().without_default_links();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let kind = ArenaKind("test");
    let main = ArenaDesc::new("main", kind, cpu).with_remotes((1..=cards).map(DeviceId).collect());
    builder.add_arena(Arc::new(Null::new(main)));
    for card in 1..=cards {
        let device = builder.add_device(DeviceDesc::new(&format!("card:{card}"), DeviceKind::Gpu));
        let memory = ArenaDesc::new(&format!("video {card}"), kind, device);
        builder.add_arena(Arc::new(Null::new(memory.with_remotes(DeviceSet::of(cpu)))));
    }
    builder
}

fn built(builder: PlatformBuilder) -> Platform {
    builder.build().expect("it has all that it needs")
}

/// A mechanism that declines every copy.
#[derive(Debug)]
struct Closed;

impl CrossArena for Closed {
    fn name(&self) -> &str {
        "closed"
    }

    fn can_copy(&self, _: &CopyQuery) -> Option<Cost> {
        None
    }

    fn copy(&self, _: CopyJob) -> Result<Fence, TransferError> {
        unreachable!("it was never chosen")
    }
}

fn add_closed(builder: &mut PlatformBuilder, from: ArenaId, to: ArenaId) {
    let (source_via, target_via) = (builder.native(from), builder.native(to));
    let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
    builder.add_link(link, Arc::new(Closed));
}

/// A platform whose cards form a chain, with main memory at its start.
fn chain(cards: u16) -> Platform {
    let mut builder = machine(cards);
    for card in 1..=cards as u8 {
        kit::join_staged(&mut builder, ArenaId(card - 1), ArenaId(card), LinkSpeed::default());
    }
    built(builder)
}

/// The plan may use a path that is too long to compare. Overwritten bytes use the same path again.
#[test]
fn a_plan_takes_any_path_and_again_needs_no_storage() {
    let explained = chain(5).explain(MAIN, ArenaId(5), 64);
    let copy = |to: u8| match to {
        1 => "copy main to video 1 (staged)".to_owned(),
        _ => format!("copy video {} to video {to} (staged)", to - 1),
    };
    let again: Vec<_> = (1..=5).map(copy).collect();
    assert_eq!(explained.again.as_ref().map(|plan| &plan.steps), Some(&again));
    let first = explained.first.as_ref().expect("there is a path");
    assert!(first.steps.contains(&"allocate video 3".to_owned()), "{first:?}");
    assert!(again.iter().all(|step| first.steps.contains(step)), "{first:?}");
    assert!(explained.rejected.is_empty(), "there is no other path");
    let text = explained.to_string();
    assert!(text.starts_with("first: ") && text.contains("\nagain: ") && text.contains(&again[4]), "{text}");
}

/// The cards are joined to main memory, in a chain, and by a link that declines every copy.
#[test]
fn rejected_paths_have_at_most_four_links_and_come_by_cost() {
    let mut builder = machine(5);
    for card in 1..=5 {
        kit::join_staged(&mut builder, ArenaId(card - 1), ArenaId(card), LinkSpeed::default());
        add_closed(&mut builder, MAIN, ArenaId(card));
    }
    let platform = built(builder);
    let lengths = |to: u8| {
        let explained = platform.explain(MAIN, ArenaId(to), 64);
        assert!(explained.first.is_some());
        let costs: Vec<_> = explained.rejected.iter().map(|path| path.cost.clone().ok()).collect();
        assert!(costs.iter().rev().is_sorted_by_key(|cost| cost.is_some()), "{costs:?}");
        explained.rejected.iter().map(|path| path.links.len()).max()
    };
    assert_eq!([lengths(1), lengths(4), lengths(5)], [Some(4), Some(4), Some(4)]);
}

#[test]
fn without_links_there_is_no_plan_and_a_closed_path_is_rejected_with_the_reason() {
    let unlinked = built(machine(1)).explain(MAIN, ArenaId(1), 64);
    assert!(unlinked.first.is_none() && unlinked.again.is_none() && unlinked.rejected.is_empty());

    let mut builder = machine(1);
    add_closed(&mut builder, MAIN, ArenaId(1));
    let explained = built(builder).explain(MAIN, ArenaId(1), 64);
    assert!(explained.first.is_none() && explained.again.is_none(), "{explained:?}");
    let [path] = &explained.rejected[..] else { panic!("{explained:?}") };
    assert_eq!(
        (&path.links[..], &path.cost),
        (&[LinkId(0)][..], &Err("video 1 cannot be reached this way".to_owned()))
    );
    assert_eq!(
        explained.to_string(),
        "rejected: main -> video 1 (closed): video 1 cannot be reached this way\n"
    );
}

/// Two arenas that are linked only by a binding need it: overwritten bytes are handed over without a copy.
#[test]
fn bytes_of_bound_arenas_change_hands_without_a_copy() {
    let mut builder = machine(2);
    let [main, bound, copied] = [0, 1, 2].map(ArenaId);
    kit::join_bound(&mut builder, main, bound, Concurrency::Exclusive, LinkSpeed::default());
    kit::join_staged(&mut builder, main, copied, LinkSpeed::default());
    let platform = built(builder);
    let again = platform.explain(main, bound, 64).again.expect("the storage changes hands").steps;
    assert!(!again.is_empty() && again.iter().all(|step| !step.starts_with("copy")), "{again:?}");
}

/// Within one arena there is nothing to do.
#[test]
fn bytes_that_are_there_already_need_no_step() {
    let first = chain(1).explain(MAIN, MAIN, 64).first.expect("they are there");
    assert_eq!((first.cost, first.steps.len()), (Cost::ZERO, 0));
}
