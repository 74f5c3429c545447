//! The conformance suite can fail: every check notices arenas that are broken on purpose.

#![cfg(not(dml_loom))]

mod broken;

use broken::link::{BrokenLink, Defect as LinkDefect};
use broken::pool::{Defect as PoolDefect, Pool};
use broken::wrapper::{Broken, Defect};
use dml_arenas::{MainMem, Null};
use dml_core::{Allocation, Arena, ArenaDesc, ArenaKind, DeviceDesc, DeviceKind, DeviceSet, Link, Platform};
use dml_verify::conformance::{CHECKS, Subject, Support};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An arena that the host can map, with a defect.
fn mapped(defect: Defect) -> Subject {
    Subject::beside_main(|native, host| {
        let desc = ArenaDesc::new("mapped", ArenaKind("null"), native).with_remotes(DeviceSet::of(host));
        Arc::new(Broken::new(Arc::new(Null::backed(desc).with_host(host)), defect))
    })
    .with_binding(Support::Offered)
}

/// An arena that only its device reaches, with a defect.
fn apart(defect: Defect) -> Subject {
    Subject::beside_main(|native, _| {
        let desc = ArenaDesc::new("apart", ArenaKind("null"), native);
        Arc::new(Broken::new(Arc::new(Null::backed(desc)), defect))
    })
}

/// Main memory, with a defect.
fn main(defect: Defect) -> Subject {
    let make = |cpu| Arc::new(Broken::new(Arc::new(MainMem::new(cpu)), defect)) as Arc<dyn Arena>;
    Subject::main(make).with_external(Support::Offered)
}

/// An arena that the host can map and that shares nothing, with a defect.
fn declining(defect: Defect) -> Subject {
    mapped(defect).with_binding(Support::Declined)
}

/// An arena to which main memory's bytes come by a link with a defect.
fn linked(defect: LinkDefect) -> Subject {
    let mut builder = Platform::builder();
    let host = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let native = builder.add_device(DeviceDesc::new("device", DeviceKind::Gpu));
    let from = builder.add_arena(Arc::new(MainMem::new(host)));
    let desc = ArenaDesc::new("linked", ArenaKind("null"), native);
    let to = builder.add_arena(Arc::new(Null::backed(desc)));
    let link = Link { from, to, source_via: host, target_via: native, allocation: Allocation::Internal };
    builder.add_link(link, Arc::new(BrokenLink(defect)));
    Subject::new(builder.build().unwrap(), to)
}

const LOSS: &str = "a_lost_device_is_told_and_keeps_nobody_waiting";

fn pool(defect: PoolDefect) -> Subject {
    let mut power = None;
    let subject = Subject::beside_main(|native, _| {
        let pool = Pool::with(native, 16 << 20, defect);
        power = Some(pool.power());
        Arc::new(pool)
    });
    let power = power.expect("the pool was made");
    subject.with_capacity(16 << 20).with_loss(move || power.store(false, Ordering::SeqCst))
}

/// Which check has to notice which defect, and what it has to say of it.
fn broken() -> Vec<(String, Subject, &'static str, &'static str)> {
    let mapped_ones = [
        (Defect::Nameless, "the_description_is_consistent", "no name"),
        (Defect::AllocShort, "blocks_are_as_asked_for", "4096 bytes instead of 4097"),
        (Defect::AllocNotEmpty, "blocks_are_as_asked_for", "0 bytes cannot be had"),
        (Defect::InShifted, "copies_hit_their_bytes_alone", "bytes differ"),
        (Defect::OutShort, "copies_hit_their_bytes_alone", "bytes differ"),
        (Defect::OutMiscounted, "copies_hit_their_bytes_alone", "bytes copied out"),
        (Defect::InLate, "copies_hit_their_bytes_alone", "bytes differ"),
        (Defect::FillWide, "fills_hit_their_bytes_alone", "bytes differ"),
        (Defect::FillZero, "fills_hit_their_bytes_alone", "bytes differ"),
        (Defect::InSplit, "transfers_agree_with_a_model", "bytes differ"),
        (Defect::InLate, "fences_dropped_unwaited_have_done_their_work", "bytes differ"),
        (Defect::InStagedOnce, "fences_end_in_any_order", "bytes differ"),
        (Defect::FenceBoundToThread, "fences_end_on_other_threads", "waited for elsewhere"),
        (
            Defect::KeepsTheLoan,
            "transfers_give_back_what_they_were_lent",
            "source of a copy of 0 bytes is kept",
        ),
        (
            Defect::KeepsTheTarget,
            "transfers_give_back_what_they_were_lent",
            "target of a copy of 0 bytes is kept",
        ),
        (Defect::KeepsTheFill, "transfers_give_back_what_they_were_lent", "1 transfers of the block"),
        (Defect::KeepsTheLoan, "copies_hit_their_bytes_alone", "is lent"),
        (Defect::BoundToThread, "threads_share_a_block", "bytes differ"),
        (Defect::BlocksShared, "threads_have_blocks_of_their_own", "returned a block that is not new"),
        (Defect::AllocMisnamed, "too_much_is_an_error", "where and how much"),
        (Defect::MapStale, "mappings_show_the_bytes_and_keep_the_changes", "what a mapping shows"),
        (Defect::MapLosesWrites, "mappings_show_the_bytes_and_keep_the_changes", "bytes differ"),
        (Defect::MapMisreported, "mappings_show_the_bytes_and_keep_the_changes", "no use to device"),
        (Defect::MapHidden, "mappings_show_the_bytes_and_keep_the_changes", "shows it the bytes"),
        (Defect::MapsAnything, "map_states_out_of_turn_are_bugs_of_core", "was carried out"),
        (
            Defect::MapStateLies,
            "mappings_show_the_bytes_and_keep_the_changes",
            "of a state that it has reported",
        ),
        (Defect::DeclineMisnamed, "external_storage_comes_back", "who declines"),
        (Defect::Clips, "bytes_past_the_end_are_bugs_of_core", "was carried out"),
        (Defect::PanicsNameless, "bytes_past_the_end_are_bugs_of_core", "does not name mapped"),
        (Defect::TakesForeign, "blocks_of_other_arenas_are_bugs_of_core", "was carried out"),
        (Defect::BindIsElsewhere, "bound_storage_is_shared", "OtherStorage"),
        (Defect::InShifted, "bound_storage_is_shared", "as the host sees them"),
        (Defect::OutShort, "bound_storage_is_shared", "as the device sees them"),
        (Defect::MapMisreported, "bound_storage_is_shared", "ArenaContract"),
        (Defect::InShifted, "buffers_agree_with_a_model", "bytes differ"),
        (Defect::OutMiscounted, "buffers_agree_with_a_model", "Short {"),
        (Defect::MapStale, "buffers_agree_with_a_model", "bytes differ"),
        (Defect::MapStateLies, "buffers_agree_with_a_model", "MapChanged {"),
        (Defect::KeepsTheLoan, "buffers_agree_with_a_model", "StillLent"),
        (Defect::KeepsTheTarget, "buffers_agree_with_a_model", "StillLent"),
        (Defect::KeepsTheFill, "buffers_agree_with_a_model", "keeps memory that was lent"),
    ];
    let main_ones = [
        (Defect::Misaligned, "blocks_are_as_asked_for", "are not aligned"),
        (Defect::AttachCopies, "external_storage_comes_back", "in place"),
        (Defect::AttachIsElsewhere, "external_storage_comes_back", "OtherStorage"),
        (Defect::AttachWrites, "external_storage_comes_back", "storage that nobody has written"),
        (Defect::MapsAnything, "mappings_show_the_bytes_and_keep_the_changes", "was carried out"),
        (Defect::BoundToThread, "buffers_of_two_threads_keep_apart", "bytes differ"),
    ];
    let declining_ones = [(Defect::DeclineMisnamed, "bound_storage_is_shared", "who declines")];
    let link_ones = [
        (LinkDefect::Off, "what arrives of"),
        (LinkDefect::FirstPage, "what arrives of"),
        (LinkDefect::LastByte, "what arrives of"),
        (LinkDefect::SecondPiece, "what arrives of"),
    ];
    let links = link_ones.into_iter().map(|(defect, says)| {
        (format!("link, {defect:?}"), linked(defect), "links_move_their_bytes_alone", says)
    });
    let apart_ones =
        [(Defect::MapsAnything, "mappings_show_the_bytes_and_keep_the_changes", "was carried out")];
    let pool_ones = [
        (PoolDefect::Overlap, "blocks_share_no_bytes", "bytes differ"),
        (PoolDefect::Bottomless, "fullness_is_an_error", "were had of"),
        (PoolDefect::Overlap, "fullness_is_an_error", "of a full arena"),
        (PoolDefect::Fragments, "fullness_is_an_error", "cannot be had"),
        (PoolDefect::DropLeaks, "freed_memory_can_be_had_again", "cannot be had"),
        (PoolDefect::NeverWakes, "fences_wake_whoever_polls_last", "hangs"),
        (PoolDefect::WakesTheFirst, "fences_wake_whoever_polls_last", "hangs"),
        (PoolDefect::SaysTooSoon, "fences_wake_whoever_polls_last", "has ended, and is pending"),
        (PoolDefect::LossHidden, LOSS, "does not say that it is lost"),
        (PoolDefect::LossIgnored, LOSS, "a copy out after a loss: Ok"),
        (PoolDefect::LossHangs, LOSS, "hangs"),
    ];
    let wrapped =
        |prefix: &str, make: fn(Defect) -> Subject, ones: &[(Defect, &'static str, &'static str)]| {
            let entry = |&(defect, check, says)| (format!("{prefix}, {defect:?}"), make(defect), check, says);
            ones.iter().map(entry).collect::<Vec<_>>()
        };
    let pools = pool_ones.into_iter().map(|(defect, check, says)| {
        // What never wakes anybody need not be waited for.
        let hangs =
            matches!(defect, PoolDefect::NeverWakes | PoolDefect::WakesTheFirst | PoolDefect::LossHangs);
        let patience = Duration::from_millis(if hangs { 300 } else { 20_000 });
        (format!("pool, {defect:?}"), pool(defect).with_patience(patience), check, says)
    });
    [
        wrapped("mapped", mapped, &mapped_ones),
        wrapped("main", main, &main_ones),
        wrapped("apart", apart, &apart_ones),
        wrapped("declining", declining, &declining_ones),
        pools.collect(),
        links.collect(),
    ]
    .concat()
}

fn run(check: &str, subject: &Subject) -> Result<(), String> {
    let (_, run) = CHECKS.iter().find(|(name, _)| *name == check).expect("a check of this name");
    catch_unwind(AssertUnwindSafe(|| run(subject))).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

#[test]
fn every_defect_is_noticed() {
    let mut unnoticed = Vec::new();
    for (defect, subject, check, says) in broken() {
        match run(check, &subject) {
            Ok(()) => unnoticed.push(format!("{check} does not notice: {defect}")),
            Err(said) if said.contains(says) => eprintln!("{check}, {defect}: {said}"),
            Err(said) => unnoticed.push(format!("{check} notices something else of {defect}: {said}")),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn every_check_notices_something() {
    let noticing: Vec<_> = broken().into_iter().map(|(_, _, check, _)| check).collect();
    let blind: Vec<_> = CHECKS.iter().filter(|(name, _)| !noticing.contains(name)).collect();
    assert!(blind.is_empty(), "nothing is known that these notice: {blind:?}");
}

#[test]
fn what_is_not_broken_passes() {
    let plain = [mapped(Defect::None), main(Defect::None), apart(Defect::None)];
    let subjects = plain.into_iter().chain([pool(PoolDefect::None), linked(LinkDefect::None)]);
    for (subject, (check, _)) in
        subjects.flat_map(|subject| CHECKS.iter().map(move |check| (subject.clone(), check)))
    {
        assert_eq!(run(check, &subject), Ok(()), "{check} of {subject:?}");
    }
}
