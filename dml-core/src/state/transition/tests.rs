//! Requests, and the steps of plans, including plans that are half done.

use super::super::testbed::{
    ALLOC_NS, Bench, CPU, Driver, GPU, GPU_ARENA, GPU2, GPU2_ARENA, LEN, MAIN_ARENA, claim,
};
use super::super::{CopyKind, Initial, Outcome};
use super::*;
use crate::base::id::DeviceSet;
use crate::memory::desc::Concurrency::{BimapFull, BimapRead, Exclusive};
use crate::memory::link::Allocation;
use Access::{ReadOnly, ReadWrite, WriteInvalidate};
use Status::{Defined, Poisoned, Undefined, Zeroed};

fn busy(reason: BusyReason) -> Begin {
    Begin::Busy { reason, needs_idle: ArenaSet::EMPTY }
}

/// Creates a buffer whose bytes are all valid in main memory.
fn written() -> Driver {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver
}

#[test]
fn a_buffer_tells_what_is_in_it() {
    let mut driver = written();
    assert_eq!((driver.state.len(), driver.state.is_empty()), (LEN, false));
    assert!(driver.bench.buffer(0).is_empty());
    let plan = driver.plan(GPU_ARENA, (0, 5), ReadOnly);
    let copies: Vec<_> =
        driver.state.copies().iter().map(|copy| (copy.id.owner, copy.from(), copy.to)).collect();
    assert_eq!(copies, [(plan.owner, Some(MAIN_ARENA), GPU_ARENA)]);
    assert_eq!(driver.state.requestors().len(), 1);
}

#[test]
fn i01_who_asks_is_kept_out_by_whoever_is_there() {
    let mut driver = written();
    driver.read(GPU_ARENA, (0, LEN));
    let reader = driver.acquire(MAIN_ARENA, (5, 10), ReadOnly);
    for (span, access, expected) in [
        ((0, 5), WriteInvalidate, Begin::Granted(Seq(1))),
        ((9, 15), ReadOnly, Begin::Granted(Seq(1))),
        ((9, 15), ReadWrite, busy(BusyReason::Conflict)),
        ((9, 15), WriteInvalidate, busy(BusyReason::Conflict)),
    ] {
        assert_eq!(driver.clone().ask(GPU_ARENA, span, access).1, expected, "{span:?} {access:?}");
    }
    driver.end(reader, Outcome::Done);
    // A plan under way excludes others too.
    let _ = driver.plan(GPU2_ARENA, (5, 10), ReadWrite);
    assert_eq!(driver.ask(GPU_ARENA, (9, 15), ReadOnly).1, busy(BusyReason::Conflict));
}

#[test]
fn i03_a_writer_waits_for_copies_of_its_bytes() {
    let mut driver = written();
    let owner = driver.next();
    let begin = driver.act(|state, bench| state.prefetch(bench, owner, GPU_ARENA, Span::new(5, 10)));
    assert!(matches!(begin, Begin::Plan(_)));
    for (span, access, expected) in [
        ((0, 5), WriteInvalidate, Begin::Granted(Seq(1))),
        ((9, 15), ReadOnly, Begin::Granted(Seq(1))),
        ((9, 15), ReadWrite, busy(BusyReason::Copying)),
        ((9, 15), WriteInvalidate, busy(BusyReason::Copying)),
    ] {
        assert_eq!(driver.clone().ask(MAIN_ARENA, span, access).1, expected, "{span:?} {access:?}");
    }
}

#[test]
fn a_kernel_does_not_wait_for_itself() {
    let mut driver = written();
    let mine = |driver: &mut Driver, span: (u64, u64), access| {
        let request =
            Request { kernel: KernelId(500), ..driver.request(MAIN_ARENA, &[claim(span.0, span.1, access)]) };
        driver.act(|state, bench| state.begin(bench, &request))
    };
    assert_eq!(mine(&mut driver, (5, 10), ReadWrite), Begin::Granted(Seq(1)));
    let held = Begin::Refused(Refusal::AlreadyHeld { kernel: KernelId(500), span: Span::new(9, 10) });
    assert_eq!(mine(&mut driver, (9, 15), ReadOnly), held);
    assert_eq!(mine(&mut driver, (10, 15), ReadOnly), Begin::Granted(Seq(1)));
    // This check precedes that of the queue.
    driver.wait(MAIN_ARENA, (8, 9), ReadOnly);
    assert_eq!(mine(&mut driver, (9, 15), ReadOnly), held);
    assert_eq!(driver.ask(MAIN_ARENA, (9, 15), ReadOnly).1, busy(BusyReason::Conflict));
}

#[test]
fn a_request_without_bytes_needs_nothing() {
    let mut driver = Driver::new(Bench::star());
    let nothing = driver.acquire(GPU_ARENA, (7, 7), ReadWrite);
    assert!(!driver.state.arena(GPU_ARENA).alloc.is_allocated());
    assert_eq!(driver.release(nothing, Outcome::Done).map(|release| release.commit), Ok(None));
    driver.act(|state, bench| state.device_lost(bench, GPU));
    driver.acquire(GPU_ARENA, (7, 7), ReadOnly);
}

#[test]
fn what_cannot_be_read_is_refused_and_may_be_overwritten() {
    let mut driver = written();
    let failed = driver.acquire(MAIN_ARENA, (5, 10), ReadWrite);
    driver.end(failed, Outcome::Failed);
    let lost = Refusal::Poisoned { span: Span::new(5, 8), restorable: false };
    for access in [ReadOnly, ReadWrite] {
        assert_eq!(driver.ask(GPU_ARENA, (0, 8), access).1, Begin::Refused(lost));
        assert_eq!(driver.ask(MAIN_ARENA, (0, 8), access).1, Begin::Refused(lost));
    }
    driver.write(GPU_ARENA, (0, 8));
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, 10));
    let unwritten = Refusal::Uninitialized { span: Span::new(10, 12) };
    assert_eq!(driver.ask(MAIN_ARENA, (5, 12), ReadOnly).1, Begin::Refused(unwritten));
    driver.read(GPU_ARENA, (0, 10));
    let failed = driver.acquire(GPU_ARENA, (0, 10), ReadWrite);
    driver.end(failed, Outcome::Failed);
    let survives = Refusal::Poisoned { span: Span::new(0, 5), restorable: true };
    assert_eq!(driver.ask(MAIN_ARENA, (0, 5), ReadOnly).1, Begin::Refused(survives));
}

#[test]
fn grants_are_counted_as_far_as_one_can_count() {
    let mut driver = written();
    driver.state.arena_mut(MAIN_ARENA).native_refs = u32::MAX;
    let request = driver.request(MAIN_ARENA, &[claim(0, 5, ReadOnly)]);
    let begin = driver.state.begin(&driver.bench, &request);
    assert_eq!(begin, Begin::Refused(Refusal::TooManyGrants { arena: MAIN_ARENA }));
    driver.state.arena_mut(MAIN_ARENA).native_refs = u32::MAX - 1;
    assert_eq!(driver.state.begin(&driver.bench, &request), Begin::Granted(Seq(1)));
}

#[test]
fn nobody_comes_to_an_arena_while_its_group_changes() {
    let mut driver = Driver::new(Bench::bound(BimapFull));
    driver.write(MAIN_ARENA, (0, LEN));
    let owner = driver.next();
    driver.act(|state, _| state.bind(owner, GPU_ARENA, MAIN_ARENA, BimapFull)).unwrap();
    for arena in [MAIN_ARENA, GPU_ARENA] {
        assert_eq!(driver.ask(arena, (0, 5), WriteInvalidate).1, busy(BusyReason::InTransition), "{arena}");
    }
    // An allocation under way gives another answer, with the arena that must become idle.
    let mut driver = written();
    let first = driver.plan(GPU_ARENA, (0, 5), WriteInvalidate);
    assert_eq!(first.steps, [Step::Allocate { arena: GPU_ARENA }]);
    let (_, begin) = driver.ask(GPU_ARENA, (5, 9), WriteInvalidate);
    let group = ArenaSet::of(GPU_ARENA);
    assert_eq!(begin, Begin::Busy { reason: BusyReason::InTransition, needs_idle: group });
}

/// The shortcut to a grant gives the same answers as planning.
#[test]
fn what_is_ready_is_granted_at_once_and_what_is_not_is_not() {
    let mut driver = written();
    driver.read(GPU_ARENA, (0, 10));
    assert!(matches!(driver.clone().ask(GPU_ARENA, (0, 10), ReadWrite).1, Begin::Granted(_)));
    assert!(matches!(driver.clone().ask(GPU_ARENA, (0, 11), ReadOnly).1, Begin::Plan(_)));
    assert!(matches!(driver.clone().ask(GPU_ARENA, (0, 11), WriteInvalidate).1, Begin::Granted(_)));
    assert!(matches!(driver.clone().ask(GPU2_ARENA, (0, 10), WriteInvalidate).1, Begin::Plan(_)));
    let mapped = MapState::Mapped(DeviceSet::of(CPU));
    driver.state.arena_mut(GPU_ARENA).map = mapped;
    let plan = driver.clone().plan(GPU_ARENA, (0, 10), ReadOnly);
    assert_eq!(plan.steps, [Step::Map { arena: GPU_ARENA, device: GPU, target: MapState::Unmapped }]);
    driver.state.arena_mut(GPU_ARENA).map = MapState::Unmapped;
    // Nothing is granted while a copy uses the storage through another device.
    let host = Bench::new().gpu(Exclusive).link(MAIN_ARENA, GPU_ARENA, 10);
    let host = host.link_via((GPU_ARENA, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let mut driver = Driver::new(host);
    driver.write(GPU_ARENA, (0, LEN));
    let reader = driver.plan(MAIN_ARENA, (0, 5), ReadOnly);
    let group = ArenaSet::of(GPU_ARENA);
    let in_use = Begin::Busy { reason: BusyReason::ArenaInUse, needs_idle: group };
    assert_eq!(driver.clone().ask(GPU_ARENA, (10, 15), ReadOnly).1, in_use);
    // The same holds while its map state is about to change.
    driver.step(reader.owner, reader.steps[0]);
    assert_eq!(driver.ask(GPU_ARENA, (10, 15), ReadOnly).1, in_use);
}

#[test]
fn i08_a_plan_reserves_both_ends_and_marks_what_it_changes() {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, 10));
    let plan = driver.plan(GPU2_ARENA, (0, 10), ReadOnly);
    let kinds: Vec<_> = plan.steps.iter().map(std::mem::discriminant).collect();
    let (allocate, copy) = (kinds[0], kinds[1]);
    assert_eq!(kinds, [allocate, copy, allocate, copy]);
    let seen = |driver: &Driver| {
        [MAIN_ARENA, GPU_ARENA, GPU2_ARENA].map(|id| {
            let arena = driver.state.arena(id);
            (arena.copy_refs, arena.native_refs, arena.transition.map_or(0, |transition| transition.steps))
        })
    };
    assert_eq!(seen(&driver), [(2, 0, 1), (1, 0, 0), (1, 0, 1)]);
    assert_eq!(
        driver.state.arena(MAIN_ARENA).transition.map(|transition| transition.owner),
        Some(plan.owner)
    );
    driver.step(plan.owner, plan.steps[0]);
    assert_eq!(seen(&driver), [(2, 0, 0), (1, 0, 0), (1, 0, 1)]);
    driver.step(plan.owner, plan.steps[1]);
    assert_eq!(seen(&driver), [(1, 0, 0), (0, 0, 0), (1, 0, 1)]);
    assert_eq!(driver.segments()[0], (10, vec![0, 1], Defined));
    driver.step(plan.owner, plan.steps[2]);
    driver.step(plan.owner, plan.steps[3]);
    assert_eq!(seen(&driver), [(0, 0, 0); 3]);
    assert_eq!(driver.segments()[0], (10, vec![0, 1, 2], Defined));
    assert_eq!(
        driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Ok(Seq(1))
    );
    assert_eq!(seen(&driver), [(0, 0, 0), (0, 0, 0), (0, 1, 0)]);
    // Unknown copies and grants change nothing.
    driver.refuses(Err(Refusal::Closed), |state, bench| {
        let id = CopyId { owner: plan.owner, index: 0 };
        state.copied(bench, id);
        state.started(id)
    });
    driver.refuses(Err(Refusal::Closed), |state, bench| {
        state.finish(bench, OwnerId(999)).map(|entry| entry.seq_at_grant)
    });
}

#[test]
fn an_arena_that_changes_twice_is_marked_until_the_last_time() {
    let bench = Bench::new().gpu(Exclusive);
    let bench = bench.link_via((MAIN_ARENA, CPU), (GPU_ARENA, CPU), Allocation::Internal, 10);
    let mut driver = Driver::new(bench);
    driver.write(MAIN_ARENA, (0, LEN));
    let plan = driver.plan(GPU_ARENA, (0, 5), ReadOnly);
    let marked =
        |driver: &Driver| driver.state.arena(GPU_ARENA).transition.map(|transition| transition.steps);
    let mut seen = vec![marked(&driver)];
    for &step in &plan.steps {
        driver.step(plan.owner, step);
        seen.push(marked(&driver));
    }
    // The steps: allocate, map for the host, copy, map back.
    assert_eq!(seen, [Some(3), Some(2), Some(1), Some(1), None]);
    assert!(
        driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)).is_ok()
    );
}

#[test]
fn only_a_copy_that_was_started_runs() {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, 10));
    driver.write(MAIN_ARENA, (10, 20));
    let plan = driver.plan(MAIN_ARENA, (0, 20), ReadOnly);
    let other = driver.plan(GPU2_ARENA, (12, 20), ReadOnly);
    let id = |owner| CopyId { owner, index: 0 };
    driver.act(|state, _| state.started(id(other.owner))).unwrap();
    let phases: Vec<_> = driver.state.copies().iter().map(|copy| (copy.id, copy.phase)).collect();
    let expected = [(id(plan.owner), CopyPhase::Reserved), (id(other.owner), CopyPhase::Running)];
    assert_eq!(phases, expected);
    driver.step(other.owner, other.steps[0]);
    driver.act(|state, bench| state.copied(bench, id(other.owner)));
    assert_eq!(driver.state.copies().len(), 1);
    assert_eq!(driver.segments()[0], (10, vec![1], Defined));
}

#[test]
fn i16_nothing_is_fetched_from_or_kept_in_what_is_lost() {
    let lost = |arena| Err(Refusal::DeviceLost { arena });
    for (device, expected) in [(GPU, lost(GPU_ARENA)), (CPU, lost(MAIN_ARENA)), (GPU2, Ok(()))] {
        let mut driver = written();
        let plan = driver.plan(GPU_ARENA, (0, LEN), ReadOnly);
        driver.step(plan.owner, plan.steps[0]);
        driver.act(|state, bench| state.device_lost(bench, device));
        let id = CopyId { owner: plan.owner, index: 0 };
        assert_eq!(driver.act(|state, _| state.started(id)), expected, "{device}");
        let runs = driver.state.copies().iter().next().expect("a copy").phase == CopyPhase::Running;
        assert_eq!(runs, expected.is_ok());
    }
}

#[test]
fn i02_what_arrives_too_late_is_not_valid() {
    // The loss of the destination, then the loss of the contents.
    for (device, expected) in [(GPU, vec![0]), (CPU, vec![])] {
        let mut driver = written();
        let plan = driver.plan(GPU_ARENA, (0, LEN), ReadOnly);
        let id = CopyId { owner: plan.owner, index: 0 };
        driver.step(plan.owner, plan.steps[0]);
        driver.act(|state, _| state.started(id)).unwrap();
        driver.act(|state, bench| state.device_lost(bench, device));
        driver.act(|state, bench| state.copied(bench, id));
        let status = if device == GPU { Defined } else { Poisoned(Remains::Lost) };
        assert_eq!(driver.segments(), [(LEN, expected, status)]);
        let refused =
            driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant));
        let poisoned = Refusal::Poisoned { span: Span::new(0, LEN), restorable: false };
        assert_eq!(
            refused,
            Err(if device == GPU { Refusal::DeviceLost { arena: GPU_ARENA } } else { poisoned })
        );
        assert!(driver.state.is_idle() && driver.state.arena(GPU_ARENA).native_refs == 0);
    }
    // The buffer is closed during the copy.
    let mut driver = written();
    let owner = driver.next();
    let Begin::Plan(plan) =
        driver.act(|state, bench| state.prefetch(bench, owner, GPU_ARENA, Span::new(0, 5)))
    else {
        panic!("the bytes are already valid")
    };
    driver.step(owner, plan.steps[0]);
    driver.act(|state, _| state.started(CopyId { owner, index: 0 })).unwrap();
    let _ = driver.act(|state, bench| state.close(bench));
    driver.act(|state, bench| state.copied(bench, CopyId { owner, index: 0 }));
    assert_eq!(
        (driver.state.lifecycle(), driver.segments()),
        (Lifecycle::Closed, vec![(LEN, vec![], Undefined)])
    );
}

#[test]
fn i04_a_grant_is_looked_at_again_when_its_plan_is_done() {
    // A plan is finished before its copy has ended.
    let mut driver = written();
    let plan = driver.plan(GPU_ARENA, (0, 5), ReadOnly);
    driver.step(plan.owner, plan.steps[0]);
    let mut wrong = driver.clone();
    wrong.state.copies = crate::state::Copies::default();
    wrong.state.arenas.iter_mut().for_each(|arena| arena.copy_refs = 0);
    let missing = Refusal::Unreachable { arena: GPU_ARENA, span: Span::new(0, 5) };
    assert_eq!(
        wrong.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Err(missing)
    );
    assert_eq!(wrong.state.requestors().len(), 0);
    driver.step(plan.owner, plan.steps[1]);
    let others = driver.acquire(MAIN_ARENA, (0, 3), ReadOnly);
    // The buffer is wedged, the device has no access, the buffer is closing, or nothing is wrong.
    let mut wedged = driver.clone();
    wedged.state.lifecycle = Lifecycle::Wedged;
    assert_eq!(
        wedged.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Err(Refusal::Wedged)
    );
    let left: Vec<_> = wedged.state.requestors().iter().map(|entry| entry.grant).collect();
    assert_eq!((left, wedged.state.arena(GPU_ARENA).native_refs), (vec![others], 0));
    let mut unserved = driver.clone();
    unserved.state.arena_mut(GPU_ARENA).map = MapState::Mapped(DeviceSet::of(CPU));
    assert_eq!(
        unserved.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Err(Refusal::Wedged)
    );
    assert_eq!(unserved.state.lifecycle(), Lifecycle::Wedged);
    let mut closing = driver.clone();
    let _ = closing.act(|state, bench| state.close(bench));
    assert_eq!(
        closing.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Ok(Seq(1))
    );
    assert_eq!(
        driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Ok(Seq(1))
    );
    let entry = driver.state.requestors()[0].clone();
    assert_eq!((entry.grant, entry.phase), (plan.owner, Phase::Granted));
    assert_eq!(driver.state.lifecycle(), Lifecycle::Open);
}

#[test]
fn a_grant_is_of_the_commit_at_its_end() {
    let mut driver = written();
    let plan = driver.plan(GPU_ARENA, (0, 5), ReadOnly);
    driver.write(MAIN_ARENA, (10, 15));
    plan.steps.iter().for_each(|&step| driver.step(plan.owner, step));
    assert_eq!(
        driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Ok(Seq(2))
    );
    assert_eq!(driver.state.requestors()[0].seq_at_grant, Seq(2));
}

#[test]
fn i15_a_plan_given_up_leaves_what_it_completed_and_what_others_do() {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, 10));
    driver.write(MAIN_ARENA, (10, 20));
    let other = driver.plan(GPU_ARENA, (10, 20), ReadOnly);
    let before = driver.clone();
    let plan = driver.plan(GPU2_ARENA, (0, 20), ReadOnly);
    assert_eq!(driver.state.copies().len(), 4);
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    // No step was done, so nothing is left, and the other plan is unchanged.
    assert_eq!(driver.state, before.state);
    let plan = driver.plan(GPU2_ARENA, (0, 20), ReadOnly);
    driver.step(plan.owner, plan.steps[0]);
    driver.step(plan.owner, plan.steps[1]);
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    let mut left = before.state.clone();
    left.segments
        .update(Span::new(0, 10), |content| Content { valid: content.valid.with(MAIN_ARENA), ..content });
    left.arena_mut(GPU2_ARENA).alloc = Alloc::Internal;
    assert_eq!(driver.state, left);
    other.steps.iter().for_each(|&step| driver.step(other.owner, step));
    assert!(
        driver.act(|state, bench| state.finish(bench, other.owner).map(|entry| entry.seq_at_grant)).is_ok()
    );
}

/// Creates a buffer in a GPU whose storage the host and another device may read at once.
fn shared() -> Driver {
    let remotes = [CPU, GPU2].into_iter().collect();
    let mut driver = Driver::new(Bench::new().memory(GPU, remotes, BimapRead));
    driver.write(GPU_ARENA, (0, LEN));
    driver
}

#[test]
fn i06_a_map_report_takes_access_from_nobody() {
    let (host, both) = (DeviceSet::of(CPU), [CPU, GPU2].into_iter().collect());
    let report = |driver: &Driver, owner, device, target, state| {
        let mut driver = driver.clone();
        let told =
            driver.act(|machine, bench| machine.mapped(bench, owner, (GPU_ARENA, device, target), state));
        (told, driver.state.lifecycle(), driver.state.arena(GPU_ARENA).map)
    };
    let breach = |device| Err(ContractBreach { arena: GPU_ARENA, device });
    let wedged = |device| (breach(device), Lifecycle::Wedged, MapState::Unmapped);
    let accepted = |state| (Ok(()), Lifecycle::Open, state);
    let mut driver = shared();
    let bimapped = MapState::Bimapped(host);
    let owner = OwnerId(77);
    // The report equals the target, or serves further devices where the target is shared, or serves the
    // device alone.
    assert_eq!(report(&driver, owner, CPU, bimapped, bimapped), accepted(bimapped));
    assert_eq!(
        report(&driver, owner, CPU, bimapped, MapState::Bimapped(both)),
        accepted(MapState::Bimapped(both))
    );
    assert_eq!(
        report(&driver, owner, CPU, bimapped, MapState::Mapped(host)),
        accepted(MapState::Mapped(host))
    );
    // The report does not serve the device, has no legal form, or is bimapped although the target is not.
    assert_eq!(report(&driver, owner, CPU, bimapped, MapState::Unmapped), wedged(CPU));
    let empty = MapState::Bimapped(DeviceSet::EMPTY);
    assert_eq!(report(&driver, owner, GPU, MapState::Unmapped, empty), wedged(GPU));
    assert_eq!(report(&driver, owner, GPU, MapState::Unmapped, bimapped), wedged(GPU));
    assert_eq!(report(&driver, owner, CPU, MapState::Mapped(host), bimapped), wedged(CPU));
    // A kernel of another owner keeps its access. The plan's own kernel gets the access of the target.
    let kernel = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    assert_eq!(report(&driver, owner, CPU, bimapped, MapState::Mapped(host)), wedged(GPU));
    assert_eq!(report(&driver, owner, CPU, bimapped, bimapped), accepted(bimapped));
    assert_eq!(report(&driver, kernel, CPU, bimapped, MapState::Mapped(host)), wedged(GPU));
}

#[test]
fn a_closing_buffer_is_not_wedged() {
    let mut driver = shared();
    let holder = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    let _ = driver.act(|state, bench| state.close(bench));
    let target = MapState::Bimapped(DeviceSet::of(CPU));
    let told = driver
        .act(|state, bench| state.mapped(bench, OwnerId(77), (GPU_ARENA, CPU, target), MapState::Unmapped));
    assert_eq!(told, Err(ContractBreach { arena: GPU_ARENA, device: CPU }));
    driver.end(holder, Outcome::Done);
    assert_eq!(driver.state.lifecycle(), Lifecycle::Closed);
}

#[test]
fn a_wedged_buffer_takes_no_requests() {
    let mut driver = written();
    driver.state.lifecycle = Lifecycle::Wedged;
    assert_eq!(driver.ask(MAIN_ARENA, (0, 5), ReadOnly).1, Begin::Refused(Refusal::Wedged));
}

#[test]
fn i06_a_report_about_one_member_is_held_against_those_of_all() {
    let mut driver = Driver::new(Bench::new().gpu(BimapRead).gpu(BimapRead));
    driver.write(GPU_ARENA, (0, LEN));
    driver.bind(GPU2_ARENA, GPU_ARENA, BimapRead);
    driver.state.arena_mut(GPU2_ARENA).map = MapState::Bimapped(DeviceSet::of(CPU));
    // The kernel's device has no access to the peer, so it cannot lose any.
    let _ = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    let target = MapState::Unmapped;
    let told =
        driver.act(|state, bench| state.mapped(bench, OwnerId(77), (GPU2_ARENA, GPU2, target), target));
    assert_eq!((told, driver.state.arena(GPU2_ARENA).map), (Ok(()), target));
}

#[test]
fn what_nobody_could_free_is_unreachable_and_what_somebody_can_is_busy() {
    let islands = Bench::new().gpu(Exclusive).gpu(Exclusive).link(MAIN_ARENA, GPU_ARENA, 10);
    let mut driver = Driver::new(islands);
    driver.write(MAIN_ARENA, (0, LEN));
    let unreachable = Begin::Refused(Refusal::Unreachable { arena: GPU2_ARENA, span: Span::new(3, 5) });
    assert_eq!(driver.ask(GPU2_ARENA, (3, 5), ReadOnly).1, unreachable);
    let owner = driver.next();
    let prefetched = driver.act(|state, bench| state.prefetch(bench, owner, GPU2_ARENA, Span::new(3, 5)));
    assert_eq!(prefetched, unreachable);
    // Shared, unused storage to which the peer's device always has access.
    let clinging = Bench::new().gpu(Exclusive).memory(GPU2, DeviceSet::EMPTY, Exclusive);
    let mut driver = Driver::new(clinging);
    driver.write(GPU_ARENA, (0, LEN));
    driver.bind(GPU2_ARENA, GPU_ARENA, Exclusive);
    let unreachable = Begin::Refused(Refusal::Unreachable { arena: GPU_ARENA, span: Span::new(3, 5) });
    assert_eq!(driver.ask(GPU_ARENA, (3, 5), ReadOnly).1, unreachable);
}

/// Bytes held by a kernel can be prefetched, whatever the kernel's id.
#[test]
fn a_prefetch_belongs_to_no_kernel() {
    let mut driver = written();
    let mut request = driver.request(MAIN_ARENA, &[claim(0, LEN, ReadOnly)]);
    request.kernel = KernelId(u64::MAX);
    assert!(matches!(driver.act(|state, bench| state.begin(bench, &request)), Begin::Granted(_)));
    let owner = driver.next();
    let begin = driver.act(|state, bench| state.prefetch(bench, owner, GPU_ARENA, Span::new(3, 9)));
    assert!(matches!(begin, Begin::Plan(_)), "{begin:?}");
}

#[test]
fn a_prefetch_brings_bytes_without_an_entry() {
    let mut driver = written();
    let owner = driver.next();
    let span = Span::new(5, 10);
    let prefetch =
        |driver: &mut Driver| driver.act(|state, bench| state.prefetch(bench, owner, GPU_ARENA, span));
    let Begin::Plan(plan) = prefetch(&mut driver) else { panic!("the bytes are already valid") };
    assert_eq!(plan.cost, crate::Cost::from_ns(10 + 8 + ALLOC_NS));
    assert_eq!((driver.state.requestors().len(), driver.state.copies().len()), (0, 1));
    assert_eq!(driver.state.copies().iter().next().expect("a copy").from(), Some(MAIN_ARENA));
    plan.steps.iter().for_each(|&step| driver.step(owner, step));
    driver.act(|state, bench| state.unreserve(bench, owner));
    assert!(driver.state.is_idle());
    assert_eq!(prefetch(&mut driver), Begin::Granted(Seq(1)));
    assert!(driver.state.is_idle());
    // A prefetch fails beside a writer, behind waiting requests, for a lost arena or a closed buffer, and for
    // unreadable bytes.
    let mut held = driver.clone();
    let _ = held.acquire(GPU2_ARENA, (9, 12), WriteInvalidate);
    assert_eq!(prefetch(&mut held), busy(BusyReason::Conflict));
    held.wait(MAIN_ARENA, (11, 12), ReadOnly);
    let elsewhere = held.act(|state, bench| state.prefetch(bench, owner, GPU_ARENA, Span::new(0, 1)));
    assert_eq!(elsewhere, busy(BusyReason::Queue));
    let mut lost = driver.clone();
    lost.act(|state, bench| state.device_lost(bench, GPU));
    assert_eq!(prefetch(&mut lost), Begin::Refused(Refusal::DeviceLost { arena: GPU_ARENA }));
    lost.act(|state, bench| state.device_lost(bench, CPU));
    let gone = Refusal::Poisoned { span, restorable: false };
    let told = lost.act(|state, bench| state.prefetch(bench, owner, GPU2_ARENA, span));
    assert_eq!(told, Begin::Refused(gone));
    let _ = driver.act(|state, bench| state.close(bench));
    assert_eq!(prefetch(&mut driver), Begin::Refused(Refusal::Closed));
}

#[test]
fn zeros_are_made_where_they_are_needed() {
    let mut driver = Driver::new(Bench::star());
    driver.state = BufferState::new(&driver.bench, LEN, Initial::Zeroed);
    let plan = driver.plan(GPU_ARENA, (5, 10), ReadOnly);
    let kinds: Vec<_> = driver.state.copies().iter().map(|copy| (copy.kind, copy.to, copy.span)).collect();
    assert_eq!(kinds, [(CopyKind::Fill, GPU_ARENA, Span::new(5, 10))]);
    plan.steps.iter().for_each(|&step| driver.step(plan.owner, step));
    assert_eq!(driver.segments(), [(5, vec![], Zeroed), (10, vec![1], Zeroed), (LEN, vec![], Zeroed)]);
    assert_eq!(
        driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)),
        Ok(Seq(0))
    );
}
