//! Plans, compared in their printed form.

use super::super::testbed::{
    ALLOC_NS, Bench, CPU, Driver, GPU, GPU_ARENA, GPU2, GPU2_ARENA, LEN, MAIN_ARENA, REMAP_NS, claim,
};
use super::super::{Begin, Outcome};
use super::*;
use crate::base::access::Access::{self, ReadOnly, ReadWrite, WriteInvalidate};
use crate::base::id::DeviceSet;
use Concurrency::{BimapFull, BimapRead, Exclusive};

/// Returns the printed steps of the plan for a request.
#[track_caller]
fn steps(driver: &Driver, arena: ArenaId, span: (u64, u64), access: Access) -> String {
    let plan = driver.clone().plan(arena, span, access);
    let text = plan.to_string();
    let (_, steps) = text.split_once("): ").expect("there are steps");
    steps.to_owned()
}

#[track_caller]
fn cost_ns(driver: &Driver, arena: ArenaId, span: (u64, u64), access: Access) -> u64 {
    driver.clone().plan(arena, span, access).cost.as_ns().expect("it is feasible")
}

fn asked(driver: &Driver, arena: ArenaId, span: (u64, u64), access: Access) -> Begin {
    driver.clone().ask(arena, span, access).1
}

fn busy<const N: usize>(reason: BusyReason, arenas: [ArenaId; N]) -> Begin {
    Begin::Busy { reason, needs_idle: arenas.into_iter().collect() }
}

/// Carries out a kernel's plan except for its last step.
#[track_caller]
fn nearly(driver: &mut Driver, arena: ArenaId, span: (u64, u64), access: Access) -> SyncPlan {
    let plan = driver.plan(arena, span, access);
    let (_, before) = plan.steps.split_last().expect("there are steps");
    before.iter().for_each(|&step| driver.step(plan.owner, step));
    plan
}

#[test]
fn a_plan_is_printed_in_one_line_or_in_one_for_each_step() {
    let copy = |kind| {
        let id = CopyId { owner: OwnerId(7), index: 0 };
        Step::Copy(CopyOp { id, kind, to: GPU_ARENA, span: Span::new(3, 9), phase: CopyPhase::Reserved })
    };
    let bytes = CopyKind::Bytes { from: MAIN_ARENA, link: LinkId(4), source_via: CPU, target_via: GPU };
    let plan = SyncPlan {
        owner: OwnerId(7),
        purpose: Purpose::Kernel,
        arena: GPU_ARENA,
        steps: vec![
            Step::Allocate { arena: GPU_ARENA },
            Step::Bind { arena: GPU_ARENA, root: MAIN_ARENA, concurrency: BimapFull },
            Step::Map { arena: GPU_ARENA, device: CPU, target: MapState::Unmapped },
            copy(bytes),
            copy(CopyKind::Refresh { from: MAIN_ARENA }),
            copy(CopyKind::Fill),
        ],
        cost: Cost::ZERO,
    };
    let head = format!("g7 -> a1 ({}):", Cost::ZERO);
    let steps = [
        "allocate a1",
        "bind a1 = a0",
        "map a1 for d0",
        "copy a0 ==3..9==> a1 by l4",
        "refresh a0 ~~3..9~~> a1",
        "fill 0 ==3..9==> a1",
    ];
    assert_eq!(format!("{plan}"), format!("{head} {};", steps.join("; ")));
    assert_eq!(format!("{plan:#}"), format!("{head}\n  {}", steps.join("\n  ")));
}

#[test]
fn o1_the_way_with_the_least_cost_is_taken() {
    let bench = Bench::star().link(GPU_ARENA, GPU2_ARENA, 1_000);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    // The path over main memory would need two allocations.
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 9), ReadOnly), "allocate a2; copy a1 ==0..9==> a2 by l4;");
    // Bytes are priced by the next power of two.
    assert_eq!(cost_ns(&driver, GPU2_ARENA, (0, 9), ReadOnly), 1_000 + 16 + ALLOC_NS);
    assert_eq!(cost_ns(&driver, GPU2_ARENA, (0, 8), ReadOnly), 1_000 + 8 + ALLOC_NS);
    driver.write(MAIN_ARENA, (20, LEN));
    let by_main = "copy a1 ==0..9==> a0 by l1; allocate a2; copy a0 ==0..9==> a2 by l2;";
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 9), ReadOnly), by_main);
    assert_eq!(cost_ns(&driver, GPU2_ARENA, (0, 9), ReadOnly), 2 * (10 + 16) + ALLOC_NS);
    // The source is an arena in which the bytes are already valid.
    driver.read(MAIN_ARENA, (0, 5));
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 5), ReadOnly), "allocate a2; copy a0 ==0..5==> a2 by l2;");
}

#[test]
fn o1_changes_of_map_state_have_their_price() {
    let staged = 500;
    let bench = Bench::new().gpu(Exclusive).link(MAIN_ARENA, GPU_ARENA, staged);
    let mapped = bench.link_via((MAIN_ARENA, CPU), (GPU_ARENA, CPU), Allocation::Internal, 10);
    let mapped = mapped.link_via((GPU_ARENA, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let mut driver = Driver::new(mapped);
    driver.write(MAIN_ARENA, (0, LEN));
    // Mapping for the host costs more than a copy by read and write calls, unless the arena is already
    // mapped.
    assert_eq!(steps(&driver, GPU_ARENA, (0, 8), ReadOnly), "allocate a1; copy a0 ==0..8==> a1 by l0;");
    assert_eq!(cost_ns(&driver, GPU_ARENA, (0, 8), ReadOnly), staged + 8 + ALLOC_NS);
    driver.write(GPU_ARENA, (20, LEN));
    assert_eq!(
        steps(&driver, MAIN_ARENA, (20, LEN), ReadOnly),
        "map a1 for d0; copy a1 ==20..30==> a0 by l2;"
    );
    assert_eq!(cost_ns(&driver, MAIN_ARENA, (20, LEN), ReadOnly), 10 + 16 + REMAP_NS);
    driver.read(MAIN_ARENA, (20, LEN));
    let back = "copy a0 ==0..8==> a1 by l1; map a1 for d1;";
    assert_eq!(steps(&driver, GPU_ARENA, (0, 8), ReadOnly), back);
    assert_eq!(cost_ns(&driver, GPU_ARENA, (0, 8), ReadOnly), 10 + 8);
}

#[test]
fn o2_only_what_is_missing_is_brought() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (5, 10));
    let around = "copy a0 ==3..5==> a1 by l0; copy a0 ==10..12==> a1 by l0;";
    assert_eq!(steps(&driver, GPU_ARENA, (3, 12), ReadOnly), around);
    assert_eq!(steps(&driver, GPU_ARENA, (3, 12), ReadWrite), around);
    assert_eq!(asked(&driver, GPU_ARENA, (5, 10), ReadWrite), Begin::Granted(crate::Seq(1)));
    assert_eq!(asked(&driver, GPU_ARENA, (0, LEN), WriteInvalidate), Begin::Granted(crate::Seq(1)));
    let request = driver.request(GPU2_ARENA, &[claim(0, 5, WriteInvalidate), claim(7, 9, ReadOnly)]);
    let Begin::Plan(plan) = driver.act(|state, bench| state.begin(bench, &request)) else {
        panic!("missing")
    };
    assert!(plan.to_string().ends_with(": allocate a2; copy a0 ==7..9==> a2 by l2;"), "{plan}");
    // The cost of a plan covers all its copies.
    assert_eq!(plan.cost.as_ns(), Some(10 + 2 + ALLOC_NS));
    driver.act(|state, bench| state.unreserve(bench, plan.owner));
    assert_eq!(cost_ns(&driver, GPU_ARENA, (3, 12), ReadOnly), 2 * (10 + 2));
    let indices: Vec<_> = driver
        .plan(GPU_ARENA, (3, 12), ReadOnly)
        .steps
        .iter()
        .map(|step| match step {
            Step::Copy(copy) => copy.id.index,
            _ => u32::MAX,
        })
        .collect();
    assert_eq!(indices, [0, 1]);
}

#[test]
fn zeros_are_filled_in_where_nobody_in_the_group_holds_them() {
    let mut driver = Driver::zeroed(Bench::star());
    let fill = "allocate a1; fill 0 ==3..9==> a1;";
    assert_eq!(steps(&driver, GPU_ARENA, (3, 9), ReadOnly), fill);
    // Zeros are filled in even if another arena holds them.
    driver.read(MAIN_ARENA, (0, LEN));
    assert_eq!(steps(&driver, GPU_ARENA, (3, 9), ReadOnly), fill);
    // The arena's own device fills them in.
    driver.write(GPU_ARENA, (20, LEN));
    driver.state.arena_mut(GPU_ARENA).map = MapState::Mapped(DeviceSet::of(CPU));
    assert_eq!(steps(&driver, GPU_ARENA, (3, 9), ReadOnly), "map a1 for d1; fill 0 ==3..9==> a1;");
    let mut driver = Driver::zeroed(Bench::bound(Exclusive));
    driver.read(MAIN_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, Exclusive);
    assert_eq!(steps(&driver, GPU_ARENA, (3, 9), ReadOnly), "refresh a0 ~~3..9~~> a1;");
    // They are not filled in beside another device's kernel, and not by two plans at once.
    let mut driver = Driver::zeroed(Bench::bound(Exclusive));
    driver.write(MAIN_ARENA, (20, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, Exclusive);
    let kernel = driver.acquire(MAIN_ARENA, (20, 25), ReadOnly);
    let both = [MAIN_ARENA, GPU_ARENA];
    assert_eq!(asked(&driver, GPU_ARENA, (3, 9), ReadOnly), busy(BusyReason::ArenaInUse, both));
    driver.end(kernel, Outcome::Done);
    let _ = nearly(&mut driver, GPU_ARENA, (3, 9), ReadOnly);
    assert_eq!(asked(&driver, MAIN_ARENA, (8, 12), ReadOnly), busy(BusyReason::Copying, both));
    assert_eq!(asked(&driver, GPU_ARENA, (8, 12), ReadOnly), busy(BusyReason::Copying, both));
}

#[test]
fn storage_is_shared_where_a_link_says_so_and_then_nothing_is_copied() {
    let mut driver = Driver::new(Bench::bound(BimapFull));
    driver.write(MAIN_ARENA, (0, LEN));
    let bind = "bind a1 = a0; refresh a0 ~~3..9~~> a1;";
    assert_eq!(steps(&driver, GPU_ARENA, (3, 9), ReadOnly), bind);
    // From then on the storage is coherent, whichever device writes.
    driver.read(GPU_ARENA, (3, 9));
    assert_eq!(driver.segments(), [(LEN, vec![0, 1], Status::Defined)]);
    driver.write(GPU_ARENA, (3, 9));
    assert_eq!(asked(&driver, MAIN_ARENA, (0, LEN), ReadOnly), Begin::Granted(crate::Seq(2)));
    // The binding link cannot be used if the destination has storage of its own.
    let staged =
        Bench::bound(BimapFull).link(MAIN_ARENA, GPU_ARENA, 1_000).link(GPU_ARENA, MAIN_ARENA, 1_000);
    let mut driver = Driver::new(staged);
    driver.write(GPU_ARENA, (0, 5));
    driver.write(MAIN_ARENA, (5, LEN));
    assert_eq!(steps(&driver, GPU_ARENA, (5, 9), ReadOnly), "copy a0 ==5..9==> a1 by l4;");
    assert_eq!(steps(&driver, MAIN_ARENA, (0, 5), ReadOnly), "copy a1 ==0..5==> a0 by l5;");
}

/// A memory that only a binding joins to the others is bound from the start. Contents written to storage of
/// its own could never leave it.
#[test]
fn i10_what_needs_a_binding_shares_storage_from_the_first_touch() {
    let share = "allocate a0; bind a1 = a0;";
    let mut driver = Driver::new(Bench::bound(BimapFull));
    assert_eq!(steps(&driver, GPU_ARENA, (0, LEN), WriteInvalidate), share);
    driver.write(GPU_ARENA, (0, 9));
    assert_eq!(asked(&driver, MAIN_ARENA, (0, 9), ReadOnly), Begin::Granted(crate::Seq(1)));
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 9), ReadOnly), "allocate a2; copy a0 ==0..9==> a2 by l2;");
    // Zeros are filled in for a reader, unless the new root already holds them.
    let driver = Driver::zeroed(Bench::bound(BimapFull));
    let filled = format!("{share} fill 0 ==0..9==> a1;");
    assert_eq!(steps(&driver, GPU_ARENA, (0, 9), ReadOnly), filled);
    for concurrency in [Exclusive, BimapRead] {
        let mut driver = Driver::zeroed(Bench::bound(concurrency));
        driver.read(MAIN_ARENA, (0, LEN));
        let refreshed = "bind a1 = a0; refresh a0 ~~0..9~~> a1;";
        assert_eq!(steps(&driver, GPU_ARENA, (0, 9), ReadOnly), refreshed);
        driver.write(GPU_ARENA, (0, LEN));
        assert_eq!(driver.state.arena(GPU_ARENA).alloc, Alloc::Bound { root: MAIN_ARENA, concurrency });
        driver.read(MAIN_ARENA, (0, LEN));
    }
}

/// A request waits for the root's storage while its present use is incompatible with the binding.
#[test]
fn i11_storage_to_be_shared_is_waited_for() {
    let mut driver = Driver::new(Bench::bound(Exclusive));
    let reader = driver.acquire(MAIN_ARENA, (0, 5), WriteInvalidate);
    let both = [MAIN_ARENA, GPU_ARENA];
    assert_eq!(asked(&driver, GPU_ARENA, (9, 12), WriteInvalidate), busy(BusyReason::ArenaInUse, both));
    driver.end(reader, Outcome::Done);
    driver.write(GPU_ARENA, (9, 12));
    assert_eq!(driver.state.group(GPU_ARENA).len(), 2);
    // If links move bytes in both directions, over any number of hops, a memory has storage of its own.
    let ring = Bench::bound(Exclusive).link(GPU_ARENA, GPU2_ARENA, 10).link(GPU2_ARENA, GPU_ARENA, 10);
    let driver = Driver::new(ring);
    assert_eq!(steps(&driver, GPU_ARENA, (0, 5), WriteInvalidate), "allocate a1;");
}

/// Of several possible roots, the cheapest is taken. Without any, a memory has storage of its own.
#[test]
fn i10_storage_to_share_is_the_cheapest_there_is() {
    let shared = Allocation::Bound(BimapRead);
    let bench = Bench::new().gpu(BimapRead).gpu(BimapRead);
    let (main, gpu, gpu2) = ((MAIN_ARENA, CPU), (GPU_ARENA, GPU), (GPU2_ARENA, GPU2));
    let bench = bench.link_via(main, gpu2, shared, 50).link_via(gpu, gpu2, shared, 10);
    let mut driver = Driver::new(bench);
    assert_eq!(
        steps(&driver, GPU2_ARENA, (0, 5), WriteInvalidate),
        "allocate a1; map a1 for d0; bind a2 = a1;"
    );
    driver.write(MAIN_ARENA, (0, 5));
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 5), WriteInvalidate), "bind a2 = a0;");
    driver.act(|state, bench| state.device_lost(bench, CPU));
    driver.act(|state, bench| state.device_lost(bench, GPU));
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 5), WriteInvalidate), "allocate a2;");
}

/// Of memories that can be bound in either direction, the root is the one to which most others can be bound.
/// Of two equal ones, it is the one that is used first. Existing storage is preferred to new storage, because
/// it may hold contents.
#[test]
fn i10_storage_is_had_where_most_can_share_it() {
    let both = |bench: Bench, gpu: (ArenaId, DeviceId)| {
        let (main, shared) = ((MAIN_ARENA, CPU), Allocation::Bound(BimapFull));
        bench.link_via(main, gpu, shared, 10).link_via(gpu, main, shared, 10)
    };
    let pair = both(Bench::new().gpu(BimapFull).gpu(BimapFull), (GPU_ARENA, GPU));
    let star = both(pair.clone(), (GPU2_ARENA, GPU2));
    let touch = |bench: &Bench, arena| steps(&Driver::new(bench.clone()), arena, (0, 5), WriteInvalidate);
    assert_eq!(touch(&pair, GPU_ARENA), "allocate a1;");
    assert_eq!(touch(&pair, MAIN_ARENA), "allocate a0;");
    assert_eq!(touch(&star, GPU_ARENA), "allocate a0; bind a1 = a0;");
    assert_eq!(touch(&star, MAIN_ARENA), "allocate a0;");
    let mut driver = Driver::new(pair);
    driver.write(GPU_ARENA, (0, 5));
    assert_eq!(steps(&driver, MAIN_ARENA, (9, 12), WriteInvalidate), "bind a0 = a1;");
}

/// Creates a buffer whose bytes are valid in a fourth memory, and whose third memory shares storage with main
/// memory. The bytes reach the third memory over main memory: by an expensive refresh, or over the second
/// memory. The latter path would bind the second memory to the same storage.
fn bound_on_the_way() -> Driver {
    let (main, gpu, gpu2) = ((MAIN_ARENA, CPU), (GPU_ARENA, GPU), (GPU2_ARENA, GPU2));
    let bench = Bench::new().gpu(BimapRead).gpu(BimapRead).gpu(Exclusive).link(ArenaId(3), MAIN_ARENA, 10);
    let bench = bench.link_via(main, gpu, Allocation::Bound(BimapRead), 10).link(GPU_ARENA, GPU2_ARENA, 10);
    let bench = bench.link_via(main, gpu2, Allocation::Bound(BimapRead), 900_000);
    let bench =
        bench.link_via(gpu, main, Allocation::Shared, 10).link_via(gpu2, main, Allocation::Shared, 10);
    let mut driver = Driver::new(bench);
    driver.write(MAIN_ARENA, (0, LEN));
    driver.bind(GPU2_ARENA, MAIN_ARENA, BimapRead);
    driver.write(ArenaId(3), (0, LEN));
    driver
}

/// A hop may bind a memory to the storage of a later hop's destination. No bytes are then copied onto
/// themselves.
#[test]
fn i07_a_hop_is_judged_by_what_the_hops_before_it_bound() {
    let driver = bound_on_the_way();
    let by_refresh = "map a2 for d0; copy a3 ==0..9==> a0 by l0; map a2 for d2; refresh a0 ~~0..9~~> a2;";
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 9), ReadOnly), by_refresh);
    // The copy takes the peer's access away, and restoring it has a price.
    assert_eq!(cost_ns(&driver, GPU2_ARENA, (0, 9), ReadOnly), 10 + 900_000 + 2 * 16 + REMAP_NS);
}

/// The second hop reads its source through another device than the one through which the first hop writes it.
/// Both devices need access, so the path that seemed the cheapest is not.
#[test]
fn o1_a_path_is_taken_at_the_price_it_has_as_walked() {
    let bench = |direct_ns| {
        let bench = Bench::new().gpu(Exclusive).gpu(Exclusive);
        let bench = bench.link_via((MAIN_ARENA, CPU), (GPU_ARENA, CPU), Allocation::Internal, 10);
        let mut driver =
            Driver::new(bench.link(GPU_ARENA, GPU2_ARENA, 10).link(MAIN_ARENA, GPU2_ARENA, direct_ns));
        driver.write(GPU2_ARENA, (0, LEN));
        driver.write(GPU_ARENA, (20, LEN));
        driver.write(MAIN_ARENA, (0, 9));
        driver
    };
    // Mapping for the host costs 1,000 ns. So does returning access to the GPU, which only the walk reveals.
    let round = "map a1 for d0; copy a0 ==0..8==> a1 by l0; map a1 for d1; copy a1 ==0..8==> a2 by l1;";
    assert_eq!(steps(&bench(9_000), GPU2_ARENA, (0, 8), ReadOnly), round);
    assert_eq!(cost_ns(&bench(9_000), GPU2_ARENA, (0, 8), ReadOnly), 2 * (10 + 8 + REMAP_NS));
    let direct = "copy a0 ==0..8==> a2 by l2;";
    assert_eq!(steps(&bench(1_500), GPU2_ARENA, (0, 8), ReadOnly), direct);
    assert_eq!(cost_ns(&bench(1_500), GPU2_ARENA, (0, 8), ReadOnly), 1_500 + 8);
}

/// An arena that shares storage and whose device is lost has no access to hand over. The other members
/// continue.
#[test]
fn i06_a_lost_member_keeps_nobody_from_its_storage() {
    let mut driver = Driver::new(Bench::bound(Exclusive));
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (0, LEN));
    driver.act(|state, bench| state.device_lost(bench, GPU));
    assert_eq!(asked(&driver, MAIN_ARENA, (0, LEN), ReadWrite), Begin::Granted(crate::Seq(1)));
}

/// A coherent member that only its own device reaches has no access to hand over if another binding narrows
/// the group.
#[test]
fn i06_a_coherent_member_out_of_reach_keeps_nobody_from_its_storage() {
    let shared = Allocation::Bound(BimapFull);
    let bench = Bench::new().memory(CPU, DeviceSet::EMPTY, BimapFull).gpu(BimapRead);
    let bench = bench.link_via((MAIN_ARENA, CPU), (GPU_ARENA, CPU), shared, 10);
    let bench = bench.link_via((MAIN_ARENA, CPU), (GPU2_ARENA, GPU2), Allocation::Bound(BimapRead), 10);
    let mut driver = Driver::new(bench);
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (0, LEN));
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 9), ReadOnly), "bind a2 = a0; refresh a0 ~~0..9~~> a2;");
    driver.write(GPU2_ARENA, (0, LEN));
}

/// While a binding to a storage is under way, no request begins to use it through another member.
#[test]
fn i11_nobody_joins_a_storage_by_a_peer_while_another_is_being_bound_to_it() {
    let bench = Bench::bound(Exclusive).memory(CPU, DeviceSet::of(CPU), BimapFull);
    let bench = bench.link_via((MAIN_ARENA, CPU), (ArenaId(3), CPU), Allocation::Bound(BimapFull), 10);
    let bench = bench.link_via((ArenaId(3), CPU), (MAIN_ARENA, CPU), Allocation::Shared, 10);
    let mut driver = Driver::new(bench.link(ArenaId(3), GPU2_ARENA, 1));
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(ArenaId(3), (0, LEN));
    let binding = driver.plan(GPU_ARENA, (0, 5), WriteInvalidate);
    let begin = asked(&driver, GPU2_ARENA, (9, 12), ReadOnly);
    assert!(
        matches!(begin, Begin::Busy { reason: BusyReason::InTransition, .. }),
        "{begin:?} beside {binding}"
    );
}

#[test]
fn i10_bindings_do_not_chain() {
    // Main memory would have to become a root by the same path.
    let shared = Allocation::Bound(BimapFull);
    let chain = Bench::new().gpu(BimapFull).gpu(BimapFull);
    let chain = chain.link_via((GPU_ARENA, GPU), (MAIN_ARENA, CPU), shared, 10);
    let chain = chain.link_via((MAIN_ARENA, CPU), (GPU2_ARENA, GPU2), shared, 10);
    let mut driver = Driver::new(chain);
    driver.write(GPU_ARENA, (0, LEN));
    let unreachable = Begin::Refused(Refusal::Unreachable { arena: GPU2_ARENA, span: Span::new(3, 9) });
    assert_eq!(asked(&driver, GPU2_ARENA, (3, 9), ReadOnly), unreachable);
    driver.read(MAIN_ARENA, (0, 5));
    assert_eq!(asked(&driver, GPU2_ARENA, (3, 9), ReadOnly), unreachable);
}

#[test]
fn i06_shared_storage_is_handed_over_by_every_member() {
    // Two GPUs whose storage the host can map; the second is bound to the first.
    let bench = |concurrency| {
        let bench = Bench::new().gpu(concurrency).gpu(concurrency);
        let bench = bench.link_via((GPU_ARENA, GPU), (GPU2_ARENA, GPU2), Allocation::Bound(concurrency), 10);
        bench.link_via((GPU2_ARENA, GPU2), (GPU_ARENA, GPU), Allocation::Shared, 10)
    };
    let shared = |concurrency| {
        let mut driver = Driver::new(bench(concurrency));
        driver.write(GPU_ARENA, (0, LEN));
        driver
    };
    let mut driver = shared(Exclusive);
    // The peer's own device loses its access before the rules of the binding apply.
    let hand_over = "map a1 for d0; bind a2 = a1; refresh a1 ~~3..9~~> a2;";
    assert_eq!(steps(&driver, GPU2_ARENA, (3, 9), ReadOnly), hand_over);
    driver.read(GPU2_ARENA, (3, 9));
    let maps = |driver: &Driver| [GPU_ARENA, GPU2_ARENA].map(|arena| driver.state.arena(arena).map);
    let host = DeviceSet::of(CPU);
    assert_eq!(maps(&driver), [MapState::Mapped(host), MapState::Unmapped]);
    driver.write(GPU_ARENA, (3, 5));
    assert_eq!(maps(&driver), [MapState::Unmapped, MapState::Mapped(host)]);
    let mut coherent = shared(BimapFull);
    coherent.read(GPU2_ARENA, (3, 9));
    assert_eq!(maps(&coherent), [MapState::Unmapped; 2]);
    // Readers share the storage; a writer has it alone.
    let mut reading = shared(BimapRead);
    reading.read(GPU2_ARENA, (3, 9));
    let reader = reading.acquire(GPU_ARENA, (0, 5), ReadOnly);
    assert_eq!(steps(&reading, GPU2_ARENA, (0, 3), ReadOnly), "refresh a1 ~~0..3~~> a2;");
    let both = [GPU_ARENA, GPU2_ARENA];
    assert_eq!(asked(&reading, GPU2_ARENA, (10, 15), WriteInvalidate), busy(BusyReason::ArenaInUse, both));
    reading.end(reader, Outcome::Done);
    reading.write(GPU2_ARENA, (10, 15));
    assert!(!reading.state.arena(GPU_ARENA).map.gives(reading.bench.arena(GPU_ARENA), GPU));
}

#[test]
fn what_stands_in_the_way_is_named() {
    // The host maps the GPU's storage for copies.
    let bench = Bench::new().gpu(Exclusive).gpu(Exclusive);
    let bench = bench.link_via((GPU_ARENA, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let bench = bench.link(MAIN_ARENA, GPU2_ARENA, 10);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    let kernel = driver.acquire(GPU_ARENA, (20, LEN), ReadOnly);
    let to_main = [MAIN_ARENA, GPU_ARENA];
    let all = [MAIN_ARENA, GPU_ARENA, GPU2_ARENA];
    assert_eq!(asked(&driver, MAIN_ARENA, (0, 5), ReadOnly), busy(BusyReason::ArenaInUse, to_main));
    assert_eq!(asked(&driver, GPU2_ARENA, (0, 5), ReadOnly), busy(BusyReason::ArenaInUse, all));
    driver.end(kernel, Outcome::Done);
    // Main memory is being allocated, and the GPU's map state is about to change.
    let first = driver.plan(MAIN_ARENA, (0, 5), ReadOnly);
    assert_eq!(asked(&driver, GPU2_ARENA, (5, 9), ReadOnly), busy(BusyReason::InTransition, all));
    assert_eq!(asked(&driver, MAIN_ARENA, (10, 12), ReadOnly), busy(BusyReason::InTransition, to_main));
    assert_eq!(asked(&driver, MAIN_ARENA, (3, 9), ReadOnly), busy(BusyReason::Copying, [MAIN_ARENA]));
    // After both changes, a second copy runs beside the first.
    first.steps[..2].iter().for_each(|&step| driver.step(first.owner, step));
    assert_eq!(steps(&driver, MAIN_ARENA, (10, 12), ReadOnly), "copy a1 ==10..12==> a0 by l0;");
    // A kernel on the GPU would cut the copy off.
    assert_eq!(asked(&driver, GPU_ARENA, (10, 12), ReadOnly), busy(BusyReason::ArenaInUse, [GPU_ARENA]));
}

#[test]
fn lost_arenas_are_no_way() {
    let mut driver = Driver::new(Bench::star());
    driver.write(GPU_ARENA, (0, LEN));
    driver.act(|state, bench| state.device_lost(bench, CPU));
    let unreachable = Begin::Refused(Refusal::Unreachable { arena: GPU2_ARENA, span: Span::new(0, 5) });
    assert_eq!(asked(&driver, GPU2_ARENA, (0, 5), ReadOnly), unreachable);
    let mut driver = Driver::new(Bench::star().link(GPU_ARENA, GPU2_ARENA, 900_000));
    driver.write(GPU_ARENA, (0, LEN));
    driver.act(|state, bench| state.device_lost(bench, CPU));
    assert_eq!(steps(&driver, GPU2_ARENA, (0, 5), ReadOnly), "allocate a2; copy a1 ==0..5==> a2 by l4;");
}

/// The host reads main memory while the GPU's arena is bound to it. The GPU's arena must give the host access
/// too.
#[test]
fn i06_a_binding_serves_those_who_are_there_already() {
    let mut driver = Driver::new(Bench::bound(BimapRead));
    driver.write(MAIN_ARENA, (5, LEN));
    driver.write(GPU2_ARENA, (0, 5));
    let _ = driver.acquire(MAIN_ARENA, (20, LEN), ReadOnly);
    let shared = "bind a1 = a0; map a1 for d0; refresh a0 ~~5..9~~> a1;";
    assert_eq!(steps(&driver, GPU_ARENA, (5, 9), ReadOnly), shared);
    let brought_first = "copy a2 ==0..5==> a0 by l3; bind a1 = a0; map a1 for d0; refresh a0 ~~0..5~~> a1;";
    assert_eq!(steps(&driver, GPU_ARENA, (0, 5), ReadOnly), brought_first);
}

/// Two devices can reach a peer. It is mapped for the one that works in the group.
#[test]
fn i06_a_peer_is_mapped_for_the_device_that_reaches_it() {
    let other = DeviceId(3);
    let remotes = [CPU, other].into_iter().collect();
    let bench = Bench::new().memory(GPU, remotes, Exclusive).memory(other, DeviceSet::of(CPU), Exclusive);
    let mut driver = Driver::new(bench);
    driver.write(GPU2_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, GPU2_ARENA, Exclusive);
    driver.bind(MAIN_ARENA, GPU2_ARENA, Exclusive);
    driver.write(MAIN_ARENA, (0, 5));
    assert_eq!(driver.state.arena(GPU_ARENA).map, MapState::Mapped(DeviceSet::of(CPU)));
    driver.write(GPU2_ARENA, (0, 5));
    assert_eq!(driver.state.arena(GPU_ARENA).map, MapState::Mapped(remotes));
}

#[test]
fn only_paths_of_idle_buffers_are_remembered() {
    let bench = Bench::new().gpu(Exclusive).gpu(Exclusive);
    let bench = bench.link_via((GPU_ARENA, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let bench = bench.link(GPU_ARENA, MAIN_ARENA, 100_000).link(GPU_ARENA, GPU2_ARENA, 10);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    driver.write(MAIN_ARENA, (0, 5));
    driver.read(GPU2_ARENA, (20, LEN));
    let before = driver.bench.remembered();
    let mapped = "map a1 for d0; copy a1 ==5..9==> a0 by l0;";
    assert_eq!(steps(&driver, MAIN_ARENA, (5, 9), ReadOnly), mapped);
    assert_eq!(driver.bench.remembered(), before + 1);
    // Beside a kernel, and beside a copy, the plan takes another path.
    let staged = "copy a1 ==5..9==> a0 by l1;";
    let kernel = driver.acquire(GPU_ARENA, (20, LEN), ReadOnly);
    assert_eq!(steps(&driver, MAIN_ARENA, (5, 9), ReadOnly), staged);
    driver.end(kernel, Outcome::Done);
    let owner = driver.next();
    let begin = driver.act(|state, bench| state.prefetch(bench, owner, GPU2_ARENA, Span::new(10, 12)));
    assert!(matches!(begin, Begin::Plan(_)));
    let before = driver.bench.remembered();
    assert_eq!(steps(&driver, MAIN_ARENA, (5, 9), ReadOnly), staged);
    driver.act(|state, bench| state.unreserve(bench, owner));
    assert_eq!(driver.bench.remembered(), before);
    assert_eq!(steps(&driver, MAIN_ARENA, (5, 9), ReadOnly), mapped);
    // The key does not contain the arenas that share a storage, so their paths are not cached.
    let mut driver = Driver::new(Bench::bound(Exclusive));
    driver.write(MAIN_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, Exclusive);
    assert_eq!(steps(&driver, GPU_ARENA, (3, 9), ReadOnly), "refresh a0 ~~3..9~~> a1;");
    assert_eq!(driver.bench.remembered(), 0);
}

#[test]
fn o1_a_copy_elsewhere_in_the_arena_keeps_nobody_out() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (20, LEN));
    let _ = driver.acquire(GPU_ARENA, (20, LEN), ReadOnly);
    assert_eq!(steps(&driver, GPU_ARENA, (0, 5), ReadOnly), "copy a0 ==0..5==> a1 by l0;");
}

#[test]
fn i18_an_arena_on_the_way_is_filled_by_one_plan_at_a_time() {
    let third = ArenaId(3);
    let bench = Bench::star().gpu(Exclusive).link(MAIN_ARENA, third, 10);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    driver.write(MAIN_ARENA, (20, LEN));
    let _ = driver.plan(GPU2_ARENA, (0, 5), ReadOnly);
    let in_use = busy(BusyReason::ArenaInUse, [MAIN_ARENA, GPU_ARENA, third]);
    assert_eq!(asked(&driver, third, (4, 9), ReadOnly), in_use);
    let beside = "copy a1 ==5..9==> a0 by l1; allocate a3; copy a0 ==5..9==> a3 by l4;";
    assert_eq!(steps(&driver, third, (5, 9), ReadOnly), beside);
}

#[test]
fn no_bytes_are_copied_between_those_who_share_them() {
    let mut driver = Driver::new(Bench::bound(BimapRead).link(MAIN_ARENA, GPU_ARENA, 1));
    driver.write(MAIN_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapRead);
    assert_eq!(steps(&driver, GPU_ARENA, (0, 5), ReadOnly), "refresh a0 ~~0..5~~> a1;");
    // This holds even if neither arena has the bytes yet.
    driver.write(GPU2_ARENA, (0, 5));
    let steps = steps(&driver, GPU_ARENA, (0, 5), ReadOnly);
    assert!(
        steps.starts_with("copy a2 ==0..5==> a0 by l3;") || steps.contains("; copy a2 ==0..5==> a0 by l3;")
    );
    assert!(steps.ends_with("refresh a0 ~~0..5~~> a1;"), "{steps}");
}

#[test]
fn an_end_in_transition_keeps_others_out_until_it_is_over() {
    let bench = Bench::star().link(GPU_ARENA, GPU2_ARENA, 10);
    let mut driver = Driver::new(bench);
    driver.write(MAIN_ARENA, (0, LEN));
    let first = driver.plan(GPU_ARENA, (20, LEN), WriteInvalidate);
    let moving = busy(BusyReason::InTransition, [MAIN_ARENA, GPU_ARENA]);
    assert_eq!(asked(&driver, GPU_ARENA, (0, 5), ReadOnly), moving);
    driver.act(|state, bench| state.unreserve(bench, first.owner));
    // The source's map state is about to change.
    let bench = Bench::new().gpu(Exclusive).gpu(Exclusive).link(GPU_ARENA, GPU2_ARENA, 10);
    let bench = bench.link_via((GPU_ARENA, CPU), (MAIN_ARENA, CPU), Allocation::Internal, 10);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    driver.write(MAIN_ARENA, (20, LEN));
    let _ = driver.plan(MAIN_ARENA, (0, 5), ReadOnly);
    let moving = busy(BusyReason::InTransition, [GPU_ARENA, GPU2_ARENA]);
    assert_eq!(asked(&driver, GPU2_ARENA, (10, 15), ReadOnly), moving);
}

#[test]
fn i09_bytes_of_a_valid_peer_are_not_copied_over() {
    // Main memory and the GPU share storage; the second GPU holds the first ten bytes too.
    let bench = Bench::new().gpu(BimapRead).gpu(Exclusive).link(MAIN_ARENA, GPU2_ARENA, 10);
    let bench = bench.link_via((MAIN_ARENA, CPU), (GPU_ARENA, GPU), Allocation::Bound(BimapRead), 10);
    let mut driver = Driver::new(bench.link(GPU2_ARENA, GPU_ARENA, 1));
    driver.write(MAIN_ARENA, (0, LEN));
    driver.bind(GPU_ARENA, MAIN_ARENA, BimapRead);
    driver.read(GPU2_ARENA, (0, 10));
    // A copy from the second GPU would overwrite the valid bytes of main memory.
    assert_eq!(steps(&driver, GPU_ARENA, (0, 10), ReadOnly), "refresh a0 ~~0..10~~> a1;");
    driver.write(GPU2_ARENA, (0, 5));
    let one_each = "map a1 for d1; copy a2 ==0..5==> a1 by l2; refresh a0 ~~5..10~~> a1;";
    assert_eq!(steps(&driver, GPU_ARENA, (0, 10), ReadOnly), one_each);
}

#[test]
fn i18_bytes_are_filled_by_one_plan_at_a_time() {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver.read(GPU_ARENA, (20, LEN));
    let first = driver.plan(GPU_ARENA, (0, 5), ReadOnly);
    assert_eq!(asked(&driver, GPU_ARENA, (4, 9), ReadOnly), busy(BusyReason::Copying, [GPU_ARENA]));
    assert_eq!(steps(&driver, GPU_ARENA, (5, 9), ReadOnly), "copy a0 ==5..9==> a1 by l0;");
    assert_eq!(steps(&driver, GPU2_ARENA, (4, 9), ReadOnly), "allocate a2; copy a0 ==4..9==> a2 by l2;");
    driver.act(|state, bench| state.unreserve(bench, first.owner));
    assert_eq!(steps(&driver, GPU_ARENA, (4, 9), ReadOnly), "copy a0 ==4..9==> a1 by l0;");
}

/// Under `BimapRead`, a kernel that will write the bytes it is brought needs exclusive access to the storage.
#[test]
fn writing_is_part_of_the_price() {
    let bench = Bench::new().gpu(BimapRead).link(MAIN_ARENA, GPU_ARENA, 10);
    let mut driver = Driver::new(bench);
    driver.write(GPU_ARENA, (0, LEN));
    driver.write(MAIN_ARENA, (0, 10));
    driver.state.arena_mut(GPU_ARENA).map = MapState::Bimapped(DeviceSet::of(CPU));
    // The copy itself is a writer, whatever the kernel does.
    assert_eq!(cost_ns(&driver, GPU_ARENA, (0, 8), ReadOnly), 10 + 8 + REMAP_NS);
    let bound = Bench::new().gpu(BimapRead);
    let bound = bound.link_via((GPU_ARENA, GPU), (MAIN_ARENA, CPU), Allocation::Bound(BimapRead), 10);
    let bound = bound.link_via((MAIN_ARENA, CPU), (GPU_ARENA, GPU), Allocation::Shared, 10);
    let mut driver = Driver::new(bound);
    driver.write(GPU_ARENA, (0, LEN));
    driver.read(MAIN_ARENA, (0, LEN));
    driver.write(MAIN_ARENA, (0, 8));
    driver.state.arena_mut(GPU_ARENA).map = MapState::Bimapped(DeviceSet::of(CPU));
    assert_eq!(cost_ns(&driver, GPU_ARENA, (0, 8), ReadOnly), 10 + 8);
    assert_eq!(cost_ns(&driver, GPU_ARENA, (0, 8), ReadWrite), 10 + 8 + REMAP_NS);
    assert_eq!(steps(&driver, GPU_ARENA, (0, 8), ReadWrite), "map a1 for d1; refresh a0 ~~0..8~~> a1;");
}

#[test]
fn i11_a_binding_narrows_no_rules_under_which_others_share_the_storage() {
    // The first GPU's memory is coherent: its own kernels read beside copies that the second GPU makes there.
    // The second GPU's memory can be bound to it, but then only readers may share the storage.
    let both = [CPU, GPU2].into_iter().collect();
    let bench = Bench::new().memory(GPU, both, BimapFull).memory(GPU2, DeviceSet::of(CPU), BimapRead);
    let bench = bench.link_via((MAIN_ARENA, CPU), (GPU_ARENA, GPU2), Allocation::Internal, 10);
    let bench = bench.link_via((GPU_ARENA, GPU), (GPU2_ARENA, GPU2), Allocation::Bound(BimapRead), 10);
    let mut driver = Driver::new(bench);
    driver.write(MAIN_ARENA, (0, LEN));
    let reader = driver.acquire(GPU_ARENA, (0, 5), ReadOnly);
    let copies = driver.plan(GPU_ARENA, (5, 10), ReadOnly);
    let (_, begin) = driver.ask(GPU2_ARENA, (0, 5), ReadOnly);
    let Begin::Busy { reason: BusyReason::ArenaInUse, .. } = begin else { panic!("{begin:?}") };
    // Readers may share it, on any device.
    driver.carry_out(copies).expect("there is no conflict");
    let plan = driver.plan(GPU2_ARENA, (0, 5), ReadOnly);
    driver.carry_out(plan).expect("all of them read");
    driver.end(reader, Outcome::Done);
}
