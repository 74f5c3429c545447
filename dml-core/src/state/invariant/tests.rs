//! Detection of each broken invariant: a sound state, one fact broken by hand, and the reported number.
//!
//! Each test also has similar states that are allowed, so that the check is neither blind nor too strict.

use super::super::testbed::{Bench, CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, claim};
use super::super::{
    ArenaState, Content, CopyId, CopyOp, Loss, MapState, Request, Requestor, Transition, Waiting,
};
use super::*;
use crate::base::access::{Access, Claims};
use crate::base::id::{DeviceId, DeviceSet, KernelId, LinkId, OwnerId, Seq, Ticket};
use crate::base::range::Span;
use Access::{ReadOnly, ReadWrite, WriteInvalidate};

const LEN: u64 = 30;
/// A device that reaches no arena.
const NOBODY: DeviceId = DeviceId(9);

/// Creates a platform of main memory and two GPUs.
fn bench(concurrency: Concurrency) -> Bench {
    Bench::new().gpu(concurrency).gpu(concurrency)
}

/// A state to be broken.
#[derive(Clone)]
struct Broken {
    bench: Bench,
    state: BufferState,
}

impl Broken {
    /// Creates a state in which every arena has storage of its own and is valid everywhere.
    fn new(concurrency: Concurrency) -> Self {
        let bench = bench(concurrency);
        let mut state = bench.buffer(LEN);
        for arena in &mut state.arenas {
            arena.alloc = Alloc::Internal;
        }
        let valid = [MAIN_ARENA, GPU_ARENA, GPU2_ARENA].into_iter().collect();
        state.update_all(|_| Content { valid, status: Status::Defined });
        Self { bench, state }
    }

    fn exclusive() -> Self {
        Self::new(Concurrency::Exclusive)
    }

    /// Creates a state in which the GPUs share storage: `GPU2_ARENA` is bound to `GPU_ARENA`.
    fn bound(concurrency: Concurrency) -> Self {
        Self::new(concurrency).arena(GPU2_ARENA, |arena| {
            arena.alloc = Alloc::Bound { root: GPU_ARENA, concurrency };
        })
    }

    fn arena(mut self, id: ArenaId, change: impl FnOnce(&mut ArenaState)) -> Self {
        change(self.state.arena_mut(id));
        self
    }

    fn lifecycle(mut self, lifecycle: Lifecycle) -> Self {
        self.state.lifecycle = lifecycle;
        self
    }

    /// Adds a granted kernel and its count.
    fn holds(mut self, grant: u64, arena: ArenaId, (start, end): (u64, u64), access: Access) -> Self {
        self.state.arena_mut(arena).native_refs += 1;
        self.prepares(grant, arena, (start, end), access).phase(grant, Phase::Granted)
    }

    /// Adds a kernel whose plan is being carried out.
    fn prepares(mut self, grant: u64, arena: ArenaId, (start, end): (u64, u64), access: Access) -> Self {
        let claims = Claims::new([claim(start, end, access)]);
        let request =
            Request { kernel: KernelId(grant), grant: OwnerId(grant), arena, claims, is_submission: false };
        self.state.requestors.push(Requestor::new(&request, Phase::Preparing, Seq(0)));
        self
    }

    fn phase(mut self, grant: u64, phase: Phase) -> Self {
        let entry =
            self.state.requestors.entries_mut().iter_mut().find(|entry| entry.grant == OwnerId(grant));
        entry.expect("there is such a grant").phase = phase;
        self
    }

    /// Adds a reserved copy and the counts of its ends.
    fn copies(mut self, owner: u64, kind: CopyKind, to: ArenaId, (start, end): (u64, u64)) -> Self {
        let id = CopyId { owner: OwnerId(owner), index: self.state.copies.len() as u32 };
        let copy = CopyOp { id, kind, to, span: Span::new(start, end), phase: CopyPhase::Reserved };
        for end in copy.from().into_iter().chain([to]) {
            self.state.arena_mut(end).copy_refs += 1;
        }
        self.state.copies.insert(copy);
        self
    }

    /// Starts all copies.
    fn running(mut self) -> Self {
        for id in self.state.copies.iter().map(|copy| copy.id).collect::<Vec<_>>() {
            self.state.copies.find_mut(id).expect("just seen").phase = CopyPhase::Running;
        }
        self
    }

    fn content(mut self, (start, end): (u64, u64), valid: &[ArenaId], status: Status) -> Self {
        let valid = valid.iter().copied().collect();
        self.state.segments.update(Span::new(start, end), |_| Content { valid, status });
        self
    }

    /// Removes the storage of an arena, and the arena from all valid-sets.
    fn without_storage(self, id: ArenaId) -> Self {
        self.arena(id, |arena| arena.alloc = Alloc::Unallocated).without_valid(id)
    }

    fn without_valid(mut self, id: ArenaId) -> Self {
        self.state.update_all(|content| Content { valid: content.valid.without(id), ..content });
        self
    }

    fn waits(mut self, ticket: u64) -> Self {
        let claims = Claims::new([claim(0, 1, ReadOnly)]);
        let (kernel, grant) = (KernelId(100 + ticket), OwnerId(100 + ticket));
        let request = Request { kernel, grant, arena: GPU_ARENA, claims, is_submission: false };
        self.state.queue.push(Waiting { ticket: Ticket(ticket), request });
        self
    }

    #[track_caller]
    fn is_sound(&self) {
        assert_eq!(self.state.check_invariants(&self.bench), Ok(()), "{:#?}", self.state);
    }

    #[track_caller]
    fn breaks(&self, invariant: u8) {
        match self.state.check_invariants(&self.bench) {
            Err(violation) => assert_eq!(violation.invariant, invariant, "{violation}"),
            Ok(()) => panic!("the violation of I-{invariant} is not detected: {:#?}", self.state),
        }
    }
}

/// Returns the kind of a copy that moves bytes through each end's own device.
fn bytes(from: ArenaId, to: ArenaId) -> CopyKind {
    let native = |arena: ArenaId| DeviceId(u16::from(arena.0));
    CopyKind::Bytes { from, link: LinkId(0), source_via: native(from), target_via: native(to) }
}

#[test]
fn a_violation_names_its_invariant() {
    let violation = Violation { invariant: 7, what: "so and so".to_owned() };
    assert_eq!(violation.to_string(), "I-7: so and so");
}

#[test]
fn an_unused_buffer_is_sound() {
    let bench = bench(Concurrency::Exclusive);
    assert_eq!(bench.buffer(LEN).check_invariants(&bench), Ok(()));
    assert_eq!(bench.buffer(0).check_invariants(&bench), Ok(()));
    Broken::exclusive().is_sound();
    Broken::bound(Concurrency::BimapRead).is_sound();
}

#[test]
fn i01_requestors_that_conflict() {
    let reader = Broken::exclusive().holds(1, GPU_ARENA, (0, 10), ReadOnly);
    reader.clone().holds(2, GPU_ARENA, (9, 20), ReadOnly).is_sound();
    reader.clone().holds(2, GPU_ARENA, (10, 20), ReadWrite).is_sound();
    reader.clone().holds(2, GPU_ARENA, (9, 20), ReadWrite).breaks(1);
    // An entry that is being prepared already excludes others.
    reader.clone().prepares(2, GPU2_ARENA, (9, 20), WriteInvalidate).breaks(1);
    // The pair is found at any position.
    let others = reader.holds(2, GPU_ARENA, (10, 20), ReadOnly).holds(3, GPU_ARENA, (20, 25), ReadWrite);
    others.is_sound();
    others.holds(4, GPU_ARENA, (24, 25), ReadOnly).breaks(1);
}

#[test]
fn i03_a_copy_of_bytes_that_a_kernel_writes() {
    let writer = Broken::exclusive().holds(1, GPU_ARENA, (5, 10), WriteInvalidate);
    let copy = bytes(MAIN_ARENA, GPU2_ARENA);
    writer.clone().copies(2, copy, GPU2_ARENA, (10, 20)).is_sound();
    writer.clone().copies(2, copy, GPU2_ARENA, (9, 20)).breaks(3);
    // A writer's own copies are allowed: they precede its kernel.
    writer.clone().copies(1, copy, GPU2_ARENA, (9, 20)).is_sound();
    // A reader continues beside a copy to another arena.
    let reader = Broken::exclusive().holds(1, GPU_ARENA, (5, 10), ReadOnly);
    reader.copies(2, copy, GPU2_ARENA, (9, 20)).is_sound();
}

#[test]
fn i04_a_reader_without_its_bytes() {
    let reader = Broken::exclusive().holds(1, GPU_ARENA, (5, 10), ReadOnly);
    reader.is_sound();
    reader.clone().content((4, 5), &[MAIN_ARENA], Status::Defined).is_sound();
    let gone = reader.clone().content((9, 10), &[MAIN_ARENA], Status::Defined);
    gone.breaks(4);
    gone.clone().phase(1, Phase::InFlight).breaks(4);
    // The bytes may still be in transit, and lost bytes cannot be brought.
    gone.clone().arena(GPU_ARENA, |arena| arena.native_refs = 0).phase(1, Phase::Preparing).is_sound();
    reader.clone().content((9, 10), &[], Status::Poisoned(Remains::Lost)).is_sound();
    let lost = gone.content((0, LEN), &[MAIN_ARENA], Status::Defined);
    lost.arena(GPU_ARENA, |arena| arena.loss = Loss::Device).is_sound();
    // A kernel that only overwrites needs no valid bytes.
    let writer = Broken::exclusive().holds(1, GPU_ARENA, (5, 10), WriteInvalidate);
    writer.content((9, 10), &[MAIN_ARENA], Status::Defined).is_sound();
    let changer = Broken::exclusive().holds(1, GPU_ARENA, (5, 10), ReadWrite);
    changer.content((9, 10), &[MAIN_ARENA], Status::Defined).breaks(4);
}

#[test]
fn i05_a_kernel_without_storage() {
    let bare = Broken::exclusive().without_storage(GPU_ARENA);
    bare.is_sound();
    bare.clone().holds(1, GPU_ARENA, (0, 5), WriteInvalidate).breaks(5);
    bare.clone().prepares(1, GPU_ARENA, (0, 5), WriteInvalidate).is_sound();
    bare.holds(1, GPU_ARENA, (0, 0), WriteInvalidate).is_sound();
    let bound = Broken::bound(Concurrency::BimapFull).holds(1, GPU2_ARENA, (0, 5), ReadOnly);
    bound.is_sound();
    bound.without_storage(GPU_ARENA).breaks(5);
}

#[test]
fn i06_a_kernel_that_lost_access() {
    let mapped = |arena: &mut ArenaState| arena.map = MapState::Mapped(DeviceSet::of(CPU));
    let kernel = Broken::exclusive().holds(1, GPU_ARENA, (0, 5), ReadOnly);
    let lost = kernel.clone().arena(GPU_ARENA, mapped);
    lost.breaks(6);
    // An empty claim needs no access, and a wedged buffer's map states are unknown.
    Broken::exclusive().holds(1, GPU_ARENA, (0, 0), ReadOnly).arena(GPU_ARENA, mapped).is_sound();
    lost.clone().lifecycle(Lifecycle::Wedged).is_sound();
    lost.clone().lifecycle(Lifecycle::Closing).breaks(6);
    lost.arena(GPU_ARENA, |arena| arena.native_refs = 0).phase(1, Phase::Preparing).is_sound();
    kernel.arena(GPU2_ARENA, mapped).is_sound();
}

/// Main memory is bound to a GPU's storage. The kernel of main memory needs the GPU's arena mapped for the
/// host as soon as the GPU uses it as well.
#[test]
fn i06_a_kernel_that_lost_access_through_a_peer() {
    let shared = |concurrency| {
        let root = |arena: &mut ArenaState| arena.alloc = Alloc::Bound { root: GPU_ARENA, concurrency };
        Broken::new(concurrency).arena(MAIN_ARENA, root).holds(1, MAIN_ARENA, (0, 5), ReadOnly)
    };
    let bimapped = |arena: &mut ArenaState| arena.map = MapState::Bimapped(DeviceSet::of(CPU));
    let alone = shared(Concurrency::BimapRead);
    alone.is_sound();
    let both = alone.clone().holds(2, GPU_ARENA, (5, 9), ReadOnly);
    both.breaks(6);
    both.clone().arena(GPU_ARENA, bimapped).is_sound();
    // The map state of a peer in transition does not count.
    let transition = Some(Transition { owner: OwnerId(3), steps: 1, binds: false });
    both.clone().arena(GPU_ARENA, |arena| arena.transition = transition).is_sound();
    // Only the use of the peer by its own device matters.
    let by_host = CopyKind::Bytes { from: GPU_ARENA, link: LinkId(0), source_via: CPU, target_via: GPU2 };
    alone.copies(2, by_host, GPU2_ARENA, (10, 20)).is_sound();
    // Coherent storage needs no map states to agree.
    shared(Concurrency::BimapFull).holds(2, GPU_ARENA, (5, 9), ReadOnly).is_sound();
}

#[test]
fn i06_a_peer_that_cannot_be_mapped_for_the_kernel() {
    // The GPUs cannot reach each other's arena, so no access can be lost there.
    let both = Broken::bound(Concurrency::BimapRead).holds(1, GPU_ARENA, (0, 5), ReadOnly).holds(
        2,
        GPU2_ARENA,
        (0, 5),
        ReadOnly,
    );
    both.is_sound();
}

#[test]
fn i07_a_copy_that_runs_without_access() {
    let through = |source_via, target_via| {
        let kind = CopyKind::Bytes { from: MAIN_ARENA, link: LinkId(0), source_via, target_via };
        Broken::exclusive().copies(1, kind, GPU_ARENA, (0, 5))
    };
    through(CPU, GPU).running().is_sound();
    through(GPU, GPU).running().breaks(7);
    through(CPU, CPU).running().breaks(7);
    through(CPU, CPU).is_sound();
    let mapped = |arena: &mut ArenaState| arena.map = MapState::Mapped(DeviceSet::of(CPU));
    through(CPU, CPU).running().arena(GPU_ARENA, mapped).is_sound();
    through(CPU, GPU).running().arena(GPU_ARENA, mapped).breaks(7);
}

#[test]
fn i08_counts_that_are_wrong() {
    let kernel = Broken::exclusive().holds(1, GPU_ARENA, (0, 5), ReadOnly);
    kernel.clone().phase(1, Phase::InFlight).is_sound();
    kernel.clone().arena(GPU_ARENA, |arena| arena.native_refs += 1).breaks(8);
    kernel.clone().arena(GPU_ARENA, |arena| arena.native_refs -= 1).breaks(8);
    kernel.clone().arena(GPU2_ARENA, |arena| arena.native_refs += 1).breaks(8);
    kernel.clone().phase(1, Phase::Preparing).breaks(8);
    let copy = Broken::exclusive().copies(1, bytes(MAIN_ARENA, GPU_ARENA), GPU_ARENA, (0, 5));
    copy.is_sound();
    for arena in [MAIN_ARENA, GPU_ARENA] {
        copy.clone().arena(arena, |arena| arena.copy_refs -= 1).breaks(8);
        copy.clone().arena(arena, |arena| arena.copy_refs += 1).breaks(8);
    }
    let fill = Broken::exclusive().copies(1, CopyKind::Fill, GPU_ARENA, (0, 5));
    fill.is_sound();
    fill.clone().arena(MAIN_ARENA, |arena| arena.copy_refs += 1).breaks(8);
    fill.arena(GPU_ARENA, |arena| arena.copy_refs -= 1).breaks(8);
}

#[test]
fn i09_bytes_of_a_kernel_that_are_copied_over() {
    let reader = Broken::exclusive().holds(1, GPU_ARENA, (5, 10), ReadOnly);
    let copy = bytes(MAIN_ARENA, GPU_ARENA);
    reader.clone().copies(2, copy, GPU_ARENA, (10, 20)).is_sound();
    reader.clone().copies(2, copy, GPU_ARENA, (9, 20)).breaks(9);
    reader.clone().copies(2, CopyKind::Fill, GPU_ARENA, (9, 20)).breaks(9);
    reader.clone().copies(1, copy, GPU_ARENA, (9, 20)).is_sound();
    reader.copies(2, CopyKind::Fill, GPU2_ARENA, (9, 20)).is_sound();
    // A copy to a peer writes the same storage; a refresh changes no byte of it.
    let bound = Broken::bound(Concurrency::BimapRead).holds(1, GPU_ARENA, (5, 10), ReadOnly);
    bound.clone().copies(2, bytes(MAIN_ARENA, GPU2_ARENA), GPU2_ARENA, (9, 20)).breaks(9);
    bound.copies(2, CopyKind::Refresh { from: GPU_ARENA }, GPU2_ARENA, (9, 20)).is_sound();
}

#[test]
fn i10_a_binding_to_what_is_no_root() {
    let bound = Broken::bound(Concurrency::BimapFull);
    bound.is_sound();
    bound.clone().arena(GPU_ARENA, |arena| arena.alloc = Alloc::External).is_sound();
    bound.clone().without_storage(GPU_ARENA).breaks(10);
    let concurrency = Concurrency::BimapFull;
    bound.arena(GPU_ARENA, |arena| arena.alloc = Alloc::Bound { root: MAIN_ARENA, concurrency }).breaks(10);
}

#[test]
fn i11_devices_that_may_not_share_storage() {
    let both = |concurrency, first, second| {
        Broken::bound(concurrency).holds(1, GPU_ARENA, (0, 5), first).holds(2, GPU2_ARENA, (5, 9), second)
    };
    both(Concurrency::Exclusive, ReadOnly, ReadOnly).breaks(11);
    both(Concurrency::BimapRead, ReadOnly, ReadOnly).is_sound();
    both(Concurrency::BimapRead, ReadWrite, ReadOnly).breaks(11);
    both(Concurrency::BimapRead, ReadOnly, WriteInvalidate).breaks(11);
    both(Concurrency::BimapFull, ReadWrite, ReadWrite).is_sound();
    // Allowed: uses by one device, by one plan, or of two storages.
    let two =
        |arena| Broken::exclusive().holds(1, GPU_ARENA, (0, 5), ReadWrite).holds(2, arena, (5, 9), ReadWrite);
    two(GPU_ARENA).is_sound();
    two(GPU2_ARENA).is_sound();
    let host = CopyKind::Bytes { from: GPU_ARENA, link: LinkId(0), source_via: CPU, target_via: GPU2 };
    let kernel = Broken::exclusive().holds(1, GPU_ARENA, (0, 5), ReadOnly);
    kernel.clone().copies(1, host, GPU2_ARENA, (10, 20)).is_sound();
    kernel.copies(2, host, GPU2_ARENA, (10, 20)).breaks(11);
}

#[test]
fn i12_segments_that_do_not_cover_the_buffer() {
    for hole in [(0, 5), (10, 20), (25, LEN)] {
        let mut holed = Broken::exclusive();
        holed.state.segments.punch(Span::new(hole.0, hole.1));
        holed.breaks(12);
    }
}

#[test]
fn i13_valid_sets_that_contradict_the_status() {
    let defined = Broken::exclusive();
    let (nowhere, somewhere): (&[_], &[_]) = (&[], &[GPU_ARENA]);
    let at = |valid, status| defined.clone().content((5, 10), valid, status);
    for status in [Status::Defined, Status::Poisoned(Remains::Committed)] {
        at(nowhere, status).breaks(13);
        at(somewhere, status).is_sound();
    }
    for status in [Status::Undefined, Status::Poisoned(Remains::Lost)] {
        at(nowhere, status).is_sound();
        at(somewhere, status).breaks(13);
    }
    for status in [Status::Zeroed, Status::Poisoned(Remains::Zeros)] {
        at(nowhere, status).is_sound();
        at(somewhere, status).is_sound();
    }
}

#[test]
fn i14_a_valid_arena_without_storage() {
    let bare = Broken::exclusive().without_storage(GPU_ARENA);
    bare.is_sound();
    bare.content((5, 10), &[GPU_ARENA, GPU2_ARENA], Status::Defined).breaks(14);
}

#[test]
fn i16_a_lost_arena_that_is_valid() {
    for loss in [Loss::Storage, Loss::Device] {
        Broken::exclusive().arena(GPU_ARENA, |arena| arena.loss = loss).breaks(16);
    }
}

#[test]
fn i18_two_plans_that_fill_the_same_bytes() {
    let copy = |from, to| bytes(from, to);
    let one = Broken::exclusive().copies(1, copy(MAIN_ARENA, GPU_ARENA), GPU_ARENA, (0, 10));
    one.clone().copies(2, copy(MAIN_ARENA, GPU_ARENA), GPU_ARENA, (10, 20)).is_sound();
    one.clone().copies(2, copy(MAIN_ARENA, GPU_ARENA), GPU_ARENA, (9, 20)).breaks(18);
    one.clone().copies(2, copy(MAIN_ARENA, GPU2_ARENA), GPU2_ARENA, (9, 20)).is_sound();
    one.copies(1, copy(MAIN_ARENA, GPU_ARENA), GPU_ARENA, (9, 20)).is_sound();
    // Shared storage is filled once; refreshes of different members fill nothing.
    let refresh = |from| CopyKind::Refresh { from };
    let bound = Broken::bound(Concurrency::BimapFull);
    let filled = bound.clone().copies(1, CopyKind::Fill, GPU_ARENA, (0, 10));
    filled.clone().copies(2, CopyKind::Fill, GPU2_ARENA, (9, 20)).breaks(18);
    filled.copies(2, refresh(GPU_ARENA), GPU2_ARENA, (9, 20)).breaks(18);
    let refreshed = bound.copies(1, refresh(GPU2_ARENA), GPU_ARENA, (0, 10));
    refreshed.clone().copies(2, refresh(GPU_ARENA), GPU2_ARENA, (9, 20)).is_sound();
    refreshed.clone().copies(2, refresh(GPU2_ARENA), GPU_ARENA, (9, 20)).breaks(18);
    refreshed.copies(2, CopyKind::Fill, GPU2_ARENA, (9, 20)).breaks(18);
}

#[test]
fn i19_map_states_of_no_legal_form() {
    let map = |arena, map| Broken::new(Concurrency::BimapRead).arena(arena, |state| state.map = map);
    let host = DeviceSet::of(CPU);
    map(GPU_ARENA, MapState::Mapped(host)).is_sound();
    map(GPU_ARENA, MapState::Bimapped(host)).is_sound();
    map(GPU_ARENA, MapState::Mapped(DeviceSet::EMPTY)).breaks(19);
    map(GPU_ARENA, MapState::Bimapped(DeviceSet::EMPTY)).breaks(19);
    map(GPU_ARENA, MapState::Mapped(host.with(NOBODY))).breaks(19);
    map(GPU_ARENA, MapState::Bimapped(host.with(NOBODY))).breaks(19);
    map(MAIN_ARENA, MapState::Unmapped).breaks(19);
    map(MAIN_ARENA, MapState::Mapped(host)).breaks(19);
    Broken::exclusive().arena(GPU_ARENA, |state| state.map = MapState::Bimapped(host)).breaks(19);
}

#[test]
fn i21_a_queue_out_of_order() {
    let held = Broken::exclusive().holds(1, GPU_ARENA, (0, 5), ReadWrite).waits(3);
    held.is_sound();
    held.clone().waits(4).waits(5).is_sound();
    held.clone().waits(4).waits(4).breaks(21);
    held.waits(2).breaks(21);
}

#[test]
fn i21_somebody_who_waits_for_nobody() {
    Broken::exclusive().waits(1).breaks(21);
    // A plan under way is a user, even without an entry.
    let transition = Some(Transition { owner: OwnerId(3), steps: 1, binds: false });
    Broken::exclusive().arena(GPU_ARENA, |arena| arena.transition = transition).waits(1).is_sound();
    Broken::exclusive().copies(1, CopyKind::Fill, GPU_ARENA, (0, 5)).waits(1).is_sound();
    Broken::exclusive().prepares(1, GPU_ARENA, (0, 5), ReadOnly).waits(1).is_sound();
}

#[test]
fn i05_storage_of_a_lost_root_that_nobody_uses() {
    let lost = Broken::bound(Concurrency::Exclusive).without_valid(GPU2_ARENA);
    let lost = lost.arena(GPU2_ARENA, |arena| arena.loss = Loss::Storage);
    lost.breaks(5);
    let transition = Some(Transition { owner: OwnerId(3), steps: 1, binds: false });
    lost.clone().arena(GPU2_ARENA, |arena| arena.transition = transition).is_sound();
    lost.clone().prepares(1, GPU2_ARENA, (0, 5), WriteInvalidate).is_sound();
    lost.copies(1, CopyKind::Fill, GPU2_ARENA, (0, 5)).is_sound();
}

#[test]
fn i23_a_grant_that_is_there_twice() {
    let reader = Broken::exclusive().holds(1, GPU_ARENA, (0, 5), ReadOnly);
    reader.clone().holds(1, GPU_ARENA, (10, 15), ReadOnly).breaks(23);
    reader.holds(2, GPU_ARENA, (10, 15), ReadOnly).is_sound();
}

#[test]
fn i25_a_closed_buffer_with_something_in_it() {
    let bench = bench(Concurrency::Exclusive);
    let mut state = bench.buffer(LEN);
    state.lifecycle = Lifecycle::Closed;
    let closed = Broken { bench, state };
    closed.is_sound();
    closed.clone().arena(GPU_ARENA, |arena| arena.alloc = Alloc::Internal).breaks(25);
    closed.clone().prepares(1, GPU_ARENA, (0, 5), WriteInvalidate).breaks(25);
    let transition = Some(Transition { owner: OwnerId(3), steps: 1, binds: false });
    closed.clone().arena(GPU_ARENA, |arena| arena.transition = transition).breaks(25);
    closed.clone().copies(1, CopyKind::Fill, GPU_ARENA, (0, 5)).breaks(25);
    closed.clone().waits(1).breaks(25);
    let closing =
        closed.lifecycle(Lifecycle::Closing).arena(GPU_ARENA, |arena| arena.alloc = Alloc::Internal);
    closing.breaks(25);
    closing.arena(GPU_ARENA, |arena| arena.transition = transition).is_sound();
}
