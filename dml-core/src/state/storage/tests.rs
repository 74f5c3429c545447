//! Shared, freed and lost storage, and the end of the buffer.

use super::super::BusyReason;
use super::super::testbed::{Bench, CPU, Driver, GPU, GPU_ARENA, GPU2, GPU2_ARENA, LEN, MAIN_ARENA};
use super::super::{Begin, Initial, Outcome};
use super::*;
use crate::base::access::Access::{ReadOnly, ReadWrite, WriteInvalidate};
use Concurrency::{BimapFull, BimapRead, Exclusive};
use Status::{Defined, Poisoned, Undefined, Zeroed};

const OWNER: OwnerId = OwnerId(77);

/// Creates a buffer that was written in main memory, whose storage the GPU can share.
fn written(concurrency: Concurrency) -> Driver {
    let mut driver = Driver::new(Bench::bound(concurrency));
    driver.write(MAIN_ARENA, (0, LEN));
    driver
}

fn fresh(driver: &Driver, arena: ArenaId) -> ArenaState {
    ArenaState::new(driver.bench.arena(arena))
}

/// Carries out every copy of the buffer, of all plans.
fn all_copied(driver: &mut Driver) {
    let copies: Vec<_> = driver.state.copies().iter().map(|copy| copy.id).collect();
    for id in copies {
        driver.act(|state, _| state.started(id)).unwrap();
        driver.act(|state, bench| state.copied(bench, id));
    }
}

#[test]
fn a_binding_makes_coherent_arenas_valid_together_and_others_not() {
    for (concurrency, valid) in [(Exclusive, vec![0]), (BimapRead, vec![0]), (BimapFull, vec![0, 1])] {
        let mut driver = Driver::new(Bench::bound(concurrency));
        driver.write(MAIN_ARENA, (0, 10));
        driver.write(GPU2_ARENA, (10, 20));
        driver.bind(GPU_ARENA, MAIN_ARENA, concurrency);
        assert_eq!(driver.state.arena(GPU_ARENA).alloc, Alloc::Bound { root: MAIN_ARENA, concurrency });
        assert_eq!(
            driver.segments(),
            [(10, valid, Defined), (20, vec![2], Defined), (LEN, vec![], Undefined)]
        );
        assert!(driver.state.is_idle());
    }
}

#[test]
fn i10_only_storage_of_its_own_is_shared_and_only_with_who_has_none() {
    let bind = |arena, root, expected| {
        move |driver: &mut Driver| {
            driver.refuses(Err(expected), |state, _| state.bind(OWNER, arena, root, BimapFull));
        }
    };
    let mut driver = Driver::new(Bench::bound(BimapFull));
    bind(GPU_ARENA, MAIN_ARENA, BindRefusal::RootNotAllocated)(&mut driver);
    driver.write(MAIN_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    bind(GPU2_ARENA, GPU_ARENA, BindRefusal::RootNotAllocated)(&mut driver);
    bind(GPU_ARENA, MAIN_ARENA, BindRefusal::AlreadyAllocated)(&mut driver);
    driver.write(GPU2_ARENA, (0, 5));
    bind(GPU2_ARENA, MAIN_ARENA, BindRefusal::AlreadyAllocated)(&mut driver);
    // The application's storage can be shared like any other.
    let mut driver = Driver::new(Bench::bound(BimapFull));
    driver.state = BufferState::new(&driver.bench, LEN, Initial::External(MAIN_ARENA));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
}

#[test]
fn nothing_is_bound_where_something_is_gone() {
    let refused = |driver: &mut Driver| {
        driver.refuses(Err(BindRefusal::NotOpen), |state, _| {
            state.bind(OWNER, GPU_ARENA, MAIN_ARENA, BimapFull)
        });
    };
    for device in [CPU, GPU] {
        let mut driver = written(BimapFull);
        driver.act(|state, bench| state.device_lost(bench, device));
        refused(&mut driver);
    }
    let mut driver = written(BimapFull);
    let holder = driver.acquire(GPU2_ARENA, (0, 5), WriteInvalidate);
    driver.act(|state, bench| state.close(bench));
    refused(&mut driver);
    driver.end(holder, Outcome::Done);
    refused(&mut driver);
    let mut driver = written(BimapFull);
    driver.state.lifecycle = Lifecycle::Wedged;
    refused(&mut driver);
    driver.state.lifecycle = Lifecycle::Open;
    driver.act(|state, bench| state.device_lost(bench, GPU2));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
}

#[test]
fn nothing_is_bound_beside_a_plan_or_a_user() {
    let bind = |arena, expected| {
        move |driver: &mut Driver| {
            driver.refuses(Err(expected), |state, _| state.bind(OWNER, arena, MAIN_ARENA, BimapFull));
        }
    };
    // The arena is about to be allocated, or another arena is about to be bound to the root.
    let mut driver = written(BimapFull);
    let _ = driver.plan(GPU2_ARENA, (0, 5), WriteInvalidate);
    bind(GPU2_ARENA, BindRefusal::InTransition)(&mut driver);
    let mut driver = written(BimapFull);
    let owner = driver.next();
    driver.act(|state, _| state.bind(owner, GPU_ARENA, MAIN_ARENA, BimapFull)).unwrap();
    bind(GPU2_ARENA, BindRefusal::InTransition)(&mut driver);
    // A kernel uses the root, then a peer of it, and then a copy reads the root.
    let mut driver = written(BimapFull);
    let holder = driver.acquire(MAIN_ARENA, (0, 5), ReadOnly);
    bind(GPU_ARENA, BindRefusal::InUse)(&mut driver);
    driver.end(holder, Outcome::Done);
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    let _ = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    bind(GPU2_ARENA, BindRefusal::InUse)(&mut driver);
    let mut driver = written(BimapFull);
    driver.read(GPU2_ARENA, (0, 5));
    let _ = driver.plan(GPU2_ARENA, (5, 9), ReadOnly);
    bind(GPU_ARENA, BindRefusal::InUse)(&mut driver);
    // All bytes have arrived for a kernel of the root that does not have its grant yet.
    let mut driver = written(BimapFull);
    driver.write(GPU2_ARENA, (0, 5));
    let _ = driver.plan(MAIN_ARENA, (0, 5), ReadOnly);
    all_copied(&mut driver);
    assert_eq!(driver.state.arena(MAIN_ARENA).users(), 0);
    bind(GPU_ARENA, BindRefusal::InUse)(&mut driver);
}

#[test]
fn what_is_bound_to_lost_storage_is_let_go_once_nobody_wants_it() {
    let mut driver = written(BimapFull);
    let owner = driver.next();
    let plan = driver.act(|state, _| state.bind(owner, GPU_ARENA, MAIN_ARENA, BimapFull)).unwrap();
    driver.act(|state, bench| state.device_lost(bench, CPU));
    driver.step(owner, plan.steps[0]);
    assert_eq!(*driver.state.arena(GPU_ARENA), fresh(&driver, GPU_ARENA));
    // A kernel whose plan is under way keeps the lost storage.
    let mut driver = written(BimapFull);
    let plan = driver.plan(GPU_ARENA, (0, 5), ReadOnly);
    driver.act(|state, bench| state.device_lost(bench, CPU));
    driver.step(plan.owner, plan.steps[0]);
    assert_eq!(driver.state.arena(GPU_ARENA).loss, Loss::Storage);
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    assert_eq!(*driver.state.arena(GPU_ARENA), fresh(&driver, GPU_ARENA));
}

#[test]
fn storage_in_use_is_not_freed() {
    let refused = |driver: &mut Driver, arena| {
        driver.refuses(Err(FreeRefusal::InUse), |state, bench| state.free(bench, arena));
    };
    let both = || {
        let mut driver = Driver::new(Bench::star());
        driver.write(MAIN_ARENA, (0, LEN));
        driver.read(GPU_ARENA, (0, 5));
        driver
    };
    let mut driver = both();
    let holder = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    refused(&mut driver, GPU_ARENA);
    driver.end(holder, Outcome::Done);
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
    // Both ends of a copy are in use, and so is an arena that is about to be allocated.
    let mut driver = both();
    let plan = driver.plan(GPU2_ARENA, (0, 5), ReadOnly);
    for arena in [MAIN_ARENA, GPU2_ARENA] {
        refused(&mut driver, arena);
    }
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    let plan = driver.plan(GPU2_ARENA, (0, 5), WriteInvalidate);
    refused(&mut driver, GPU2_ARENA);
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    // All bytes have arrived, but the plan is not finished.
    let _ = driver.plan(GPU_ARENA, (5, 9), ReadOnly);
    all_copied(&mut driver);
    assert_eq!(driver.state.arena(GPU_ARENA).users(), 0);
    refused(&mut driver, GPU_ARENA);
    assert_eq!(driver.free(GPU2_ARENA), Ok(()));
}

/// A member cannot be freed while a plan uses the root or a peer, because the plan was made under the rules
/// of the whole group.
#[test]
fn i11_a_member_does_not_leave_under_a_plan_of_its_group() {
    let group = || {
        let mut driver = written(BimapFull);
        driver.write(GPU2_ARENA, (20, LEN));
        driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
        driver
    };
    let refused = |driver: &mut Driver| {
        driver.refuses(Err(FreeRefusal::InUse), |state, bench| state.free(bench, GPU_ARENA));
    };
    // A copy from main memory, then a copy to it that has arrived for a kernel without a grant.
    let mut driver = group();
    let plan = driver.plan(GPU2_ARENA, (0, 5), ReadOnly);
    refused(&mut driver);
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    let plan = driver.plan(MAIN_ARENA, (20, 25), ReadOnly);
    refused(&mut driver);
    all_copied(&mut driver);
    assert_eq!(driver.state.arena(MAIN_ARENA).users(), 0);
    refused(&mut driver);
    driver.act(|state, bench| state.finish(bench, plan.owner).map(|entry| entry.seq_at_grant)).unwrap();
    // A granted kernel in main memory does not prevent it.
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
    // A third member is being bound.
    let mut driver = written(BimapFull);
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    let owner = driver.next();
    driver.act(|state, _| state.bind(owner, GPU2_ARENA, MAIN_ARENA, BimapFull)).unwrap();
    refused(&mut driver);
    // A plan elsewhere does not matter.
    let mut driver = written(BimapFull);
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    let _ = driver.plan(GPU2_ARENA, (0, 5), WriteInvalidate);
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
}

#[test]
fn roots_and_the_applications_storage_are_not_freed() {
    let mut driver = written(BimapFull);
    driver.read(GPU2_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    driver.refuses(Err(FreeRefusal::StillBound), |state, bench| state.free(bench, MAIN_ARENA));
    assert_eq!(driver.free(GPU2_ARENA), Ok(()));
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
    let mut driver = Driver::new(Bench::star());
    driver.state = BufferState::new(&driver.bench, LEN, Initial::External(MAIN_ARENA));
    driver.read(GPU_ARENA, (0, LEN));
    driver.refuses(Err(FreeRefusal::External), |state, bench| state.free(bench, MAIN_ARENA));
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
}

#[test]
fn i13_the_last_copy_is_not_freed() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, 10));
    driver.write(GPU_ARENA, (10, 20));
    driver.read(GPU2_ARENA, (0, 20));
    for arena in [MAIN_ARENA, GPU_ARENA] {
        assert_eq!(driver.clone().free(arena), Ok(()), "{arena}");
    }
    assert_eq!(driver.free(GPU2_ARENA), Ok(()));
    // Main memory was an intermediate hop, so it holds all bytes.
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
    assert_eq!(driver.segments(), [(20, vec![0], Defined), (LEN, vec![], Undefined)]);
    driver.refuses(Err(FreeRefusal::WouldLoseData), |state, bench| state.free(bench, MAIN_ARENA));
    // Restorable bytes count as data, lost bytes and zeros do not.
    let failed = driver.acquire(GPU_ARENA, (0, 20), ReadWrite);
    driver.end(failed, Outcome::Failed);
    driver.refuses(Err(FreeRefusal::WouldLoseData), |state, bench| state.free(bench, MAIN_ARENA));
    let failed = driver.acquire(MAIN_ARENA, (0, 20), WriteInvalidate);
    driver.end(failed, Outcome::Failed);
    assert_eq!(driver.free(MAIN_ARENA), Ok(()));
    let mut driver = Driver::zeroed(Bench::star());
    driver.read(GPU_ARENA, (0, 10));
    assert_eq!(driver.segments(), [(10, vec![1], Zeroed), (LEN, vec![], Zeroed)]);
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
    assert_eq!(driver.segments(), [(LEN, vec![], Zeroed)]);
    assert_eq!(*driver.state.arena(GPU_ARENA), fresh(&driver, GPU_ARENA));
}

#[test]
fn freed_storage_is_mapped_like_fresh_storage() {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, 10));
    driver.read(MAIN_ARENA, (0, 10));
    driver.state.arena_mut(GPU_ARENA).map = MapState::Mapped(crate::DeviceSet::of(CPU));
    assert_eq!(driver.free(GPU_ARENA), Ok(()));
    assert_eq!(*driver.state.arena(GPU_ARENA), fresh(&driver, GPU_ARENA));
}

#[test]
fn i02_those_who_go_on_sharing_coherently_are_valid_together() {
    let mut driver = Driver::new(Bench::bound(BimapFull));
    driver.write(MAIN_ARENA, (0, 20));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    driver.bind(GPU2_ARENA, MAIN_ARENA, BimapRead);
    // The second binding makes the group incoherent: a write in one arena is not valid in the others.
    driver.write(MAIN_ARENA, (0, 10));
    assert_eq!(
        driver.segments(),
        [(10, vec![0], Defined), (20, vec![0, 1], Defined), (LEN, vec![], Undefined)]
    );
    assert_eq!(driver.free(GPU2_ARENA), Ok(()));
    assert_eq!(driver.segments(), [(20, vec![0, 1], Defined), (LEN, vec![], Undefined)]);
}

#[test]
fn i16_a_lost_device_takes_its_copies_and_no_others() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, 10));
    driver.write(GPU_ARENA, (5, 20));
    driver.read(GPU2_ARENA, (0, 10));
    let before = [
        (5, vec![0, 2], Defined),
        (10, vec![0, 1, 2], Defined),
        (20, vec![1], Defined),
        (LEN, vec![], Undefined),
    ];
    assert_eq!(driver.segments(), before);
    driver.act(|state, bench| state.device_lost(bench, GPU));
    let after = [(10, vec![0, 2], Defined), (20, vec![], Poisoned(Remains::Lost)), (LEN, vec![], Undefined)];
    assert_eq!(driver.segments(), after);
    let losses =
        |driver: &Driver| [MAIN_ARENA, GPU_ARENA, GPU2_ARENA].map(|arena| driver.state.arena(arena).loss);
    assert_eq!(losses(&driver), [Loss::None, Loss::Device, Loss::None]);
    let (_, begin) = driver.ask(GPU_ARENA, (0, 5), WriteInvalidate);
    assert_eq!(begin, Begin::Refused(Refusal::DeviceLost { arena: GPU_ARENA }));
    // Restorable bytes become lost, and zeros stay zeros.
    let failed = driver.acquire(GPU2_ARENA, (0, 5), ReadWrite);
    driver.end(failed, Outcome::Failed);
    driver.act(|state, bench| state.device_lost(bench, CPU));
    assert_eq!(driver.segments()[0], (5, vec![], Poisoned(Remains::Lost)));
    let mut driver = Driver::zeroed(Bench::star());
    driver.read(GPU_ARENA, (0, 5));
    driver.act(|state, bench| state.device_lost(bench, GPU));
    assert_eq!(driver.segments(), [(LEN, vec![], Zeroed)]);
}

#[test]
fn i05_a_lost_root_takes_its_members_along_once_they_are_free() {
    let mut driver = written(BimapFull);
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    let holder = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    driver.act(|state, bench| state.device_lost(bench, CPU));
    assert_eq!(driver.segments(), [(LEN, vec![], Poisoned(Remains::Lost))]);
    assert_eq!(driver.state.arena(GPU_ARENA).loss, Loss::Storage);
    let (_, begin) = driver.ask(GPU_ARENA, (5, 9), WriteInvalidate);
    let waits = Begin::Busy { reason: BusyReason::InTransition, needs_idle: ArenaSet::EMPTY };
    assert_eq!(begin, waits);
    assert_eq!(driver.release(holder, Outcome::Done).map(|release| release.outcome), Ok(Outcome::Failed));
    assert_eq!(*driver.state.arena(GPU_ARENA), fresh(&driver, GPU_ARENA));
    driver.write(GPU_ARENA, (0, 5));
    // The loss of a member's device does not affect the root, and is permanent.
    let mut driver = written(BimapFull);
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    driver.act(|state, bench| state.device_lost(bench, GPU));
    assert_eq!(driver.segments(), [(LEN, vec![0], Defined)]);
    assert_eq!(driver.state.arena(MAIN_ARENA).loss, Loss::None);
    driver.act(|state, bench| state.device_lost(bench, CPU));
    assert_eq!(driver.state.arena(GPU_ARENA).loss, Loss::Device);
}

#[test]
fn i05_the_last_change_of_a_plan_lets_go_of_storage_that_was_lost_meanwhile() {
    // The last step of the plan is the map change of the bound member, as in a prefetch of zeros.
    let mut driver = Driver::zeroed(Bench::bound(BimapFull));
    driver.read(MAIN_ARENA, (0, LEN));
    let target = MapState::initial(driver.bench.arena(GPU_ARENA));
    let map = Step::Map { arena: GPU_ARENA, device: GPU, target };
    let bind = Step::Bind { arena: GPU_ARENA, root: MAIN_ARENA, concurrency: BimapFull };
    for lifecycle in [Lifecycle::Open, Lifecycle::Closing] {
        let mut driver = driver.clone();
        let steps = vec![bind, map];
        let purpose = Purpose::Prefetch;
        let plan = SyncPlan { owner: OWNER, purpose, arena: GPU_ARENA, steps, cost: Cost::ZERO };
        driver.act(|state, _| state.reserve(&plan));
        driver.step(OWNER, bind);
        let waits = driver.wait(GPU_ARENA, (0, 5), WriteInvalidate);
        driver.act(|state, bench| state.device_lost(bench, CPU));
        if lifecycle == Lifecycle::Closing {
            let refused = driver.act(|state, bench| state.close(bench));
            assert_eq!(refused.len(), 1);
        }
        let admitted = driver.act(|state, bench| {
            state.mapped(bench, OWNER, (GPU_ARENA, GPU, target), target).expect("as requested");
            assert_eq!(*state.arena(GPU_ARENA), ArenaState::new(bench.arena(GPU_ARENA)));
            state.pump(bench)
        });
        let told: Vec<_> = admitted.iter().map(|admission| admission.ticket).collect();
        match lifecycle {
            Lifecycle::Open => assert_eq!(told, [waits]),
            _ => assert_eq!(driver.state.lifecycle(), Lifecycle::Closed),
        }
    }
}

#[test]
fn i25_a_buffer_closes_when_the_last_one_leaves() {
    for wedged in [false, true] {
        let mut driver = written(BimapFull);
        let holder = driver.acquire(MAIN_ARENA, (0, 5), ReadWrite);
        let ticket = driver.wait(MAIN_ARENA, (0, 5), ReadOnly);
        if wedged {
            driver.state.lifecycle = Lifecycle::Wedged;
        }
        let refused = driver.act(|state, bench| state.close(bench));
        let told: Vec<_> = refused.into_iter().map(|admission| (admission.ticket, admission.begin)).collect();
        assert_eq!(told, [(ticket, Begin::Refused(Refusal::Closed))]);
        assert_eq!((driver.state.lifecycle(), driver.state.queue().len()), (Lifecycle::Closing, 0));
        let (_, begin) = driver.ask(MAIN_ARENA, (20, 25), ReadOnly);
        assert_eq!(begin, Begin::Refused(Refusal::Closed));
        driver.end(holder, Outcome::Done);
        assert_eq!(driver.state.lifecycle(), Lifecycle::Closed);
        assert_eq!(driver.segments(), [(LEN, vec![], Undefined)]);
        assert!(driver.state.arenas.iter().all(|arena| arena.alloc == Alloc::Unallocated));
        // A closed buffer stays closed.
        assert_eq!(driver.act(|state, bench| state.close(bench)), []);
        assert_eq!(driver.state.lifecycle(), Lifecycle::Closed);
    }
    let mut driver = written(BimapFull);
    assert_eq!(driver.act(|state, bench| state.close(bench)), []);
    assert_eq!(driver.state.lifecycle(), Lifecycle::Closed);
    // A copy is a user too.
    let mut driver = written(BimapFull);
    let owner = driver.next();
    let begin = driver.act(|state, bench| state.prefetch(bench, owner, GPU2_ARENA, Span::new(0, 5)));
    assert!(matches!(begin, Begin::Plan(_)));
    let _ = driver.act(|state, bench| state.close(bench));
    assert_eq!(driver.state.lifecycle(), Lifecycle::Closing);
    driver.act(|state, bench| state.unreserve(bench, owner));
    assert_eq!(driver.state.lifecycle(), Lifecycle::Closed);
}

#[test]
fn a_gpu_is_not_lost_with_another() {
    let mut driver = written(Exclusive);
    driver.act(|state, bench| state.device_lost(bench, GPU2));
    driver.read(GPU_ARENA, (0, 5));
    assert_eq!(driver.state.arena(GPU2_ARENA).loss, Loss::Device);
}

#[test]
fn a_group_is_as_wide_as_its_own_bindings() {
    let third = ArenaId(3);
    let mut driver = Driver::new(Bench::bound(BimapFull).gpu(Exclusive));
    driver.write(MAIN_ARENA, (0, 20));
    driver.write(GPU2_ARENA, (20, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapFull);
    driver.bind(third, GPU2_ARENA, Exclusive);
    driver.write(GPU_ARENA, (0, 5));
    driver.write(third, (20, 25));
    let expected = [(20, vec![0, 1], Defined), (25, vec![3], Defined), (LEN, vec![2], Defined)];
    assert_eq!(driver.segments(), expected);
}

#[test]
fn i15_a_loss_and_the_abort_of_the_plan_that_met_it_leave_the_same_in_either_order() {
    let requests = [(MAIN_ARENA, ReadOnly), (GPU_ARENA, ReadWrite), (GPU2_ARENA, ReadOnly)];
    for concurrency in [Exclusive, BimapRead, BimapFull] {
        for (device, (arena, access)) in
            [CPU, GPU, GPU2].into_iter().flat_map(|device| requests.map(|request| (device, request)))
        {
            for done in 0.. {
                let given_up = |lost_first: bool| {
                    let mut driver = written(concurrency);
                    driver.write(GPU2_ARENA, (3, 9));
                    let plan = driver.plan(arena, (0, 20), access);
                    if done > plan.steps.len() {
                        return None;
                    }
                    plan.steps[..done].iter().for_each(|&step| driver.step(plan.owner, step));
                    if lost_first {
                        driver.act(|state, bench| state.device_lost(bench, device));
                    }
                    driver.act(|state, bench| state.unreserve(bench, plan.owner));
                    if !lost_first {
                        driver.act(|state, bench| state.device_lost(bench, device));
                    }
                    let is_news = driver.act(|state, bench| state.device_lost(bench, device));
                    assert!(!is_news && driver.state.is_idle());
                    Some(driver.state)
                };
                let lost_first = given_up(true);
                assert_eq!(lost_first, given_up(false), "{concurrency:?}, {device}, {arena}, {done} steps");
                if lost_first.is_none() {
                    break;
                }
            }
        }
    }
}
