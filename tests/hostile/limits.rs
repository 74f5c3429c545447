//! Sizes, counts and places at the edge.

use crate::vault::{CPU, GPU, Join, Lie, MAIN, Plan, VAULT, platform};
use dml::arenas::Null;
use dml::core::internal::state::{
    Begin, BufferState, Execution, Initial, Next, Outcome, Path, Report, Request, Routes, Step,
};
use dml::core::internal::sync::Arc;
use dml::core::{
    Access, Allocation, ArenaDesc, ArenaId, ArenaKind, ArenaSet, Binding, Claim, Claims, Concurrency,
    ConfigError, CopyQuery, Cost, DeviceDesc, DeviceKind, DeviceSet, HostStaged, KernelId, Link, LinkId,
    OwnerId, Platform, Span, SyncPlan, TopologyError,
};
use std::cell::Cell;
use std::sync::OnceLock;

/// A thread that is ending may still acquire, in the destructors of its own variables.
#[test]
fn acquiring_while_a_thread_ends_works() {
    struct Last(OnceLock<Box<dyn FnOnce() + Send>>);
    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(act) = self.0.take() {
                act();
            }
        }
    }
    thread_local! {
        static LAST: Last = const { Last(OnceLock::new()) };
    }
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let buffer = platform.buffer_from(vec![1_u32; 8]).unwrap();
    let (done, heard) = std::sync::mpsc::channel();
    let (there, mine) = (platform.clone(), buffer.clone());
    let thread = std::thread::spawn(move || {
        // First, so that it is destroyed last: after what core keeps for the thread.
        LAST.with(|last| {
            let act = move || {
                let grants = there.acquire(CPU).read_write(&mine).wait().map(|grants| grants.release());
                let views = mine.read().map(|view| view[0]);
                done.send((grants.is_ok(), views)).unwrap();
            };
            assert!(last.0.set(Box::new(act)).is_ok());
        });
        drop(platform.acquire(CPU).read(&buffer).wait().unwrap());
    });
    thread.join().expect("no abort, and no panic");
    assert_eq!(heard.recv().unwrap(), (true, Ok(1)));
}

#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(128))]
struct Wide([u8; 128]);

#[test]
fn elements_that_could_not_be_seen_make_no_buffer() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let told = platform.buffer::<Wide>(3).build().map(drop).unwrap_err();
    let expected = ConfigError::OverAligned { element_align: 128, arena: "main_mem".into(), arena_align: 64 };
    assert_eq!(told, expected);
    // The application's own are aligned as they are.
    let buffer = platform.buffer_from(vec![Wide([3; 128]); 3]).unwrap();
    assert_eq!(buffer.read().unwrap()[2].0, [3; 128]);
    // So are those of memory that is aligned for them.
    #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, align(64))]
    struct Line([u8; 64]);
    let buffer = platform.buffer::<Line>(3).zeroed().build().unwrap();
    assert_eq!(buffer.read().unwrap()[2].0, [0; 64]);
}

/// Memory of the host that shares the storage of another arena is aligned as that storage is.
#[test]
fn elements_that_a_binding_would_misalign_make_no_buffer() {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let both = DeviceSet::of(CPU).with(GPU);
    let desc = |name, native| {
        ArenaDesc::new(name, ArenaKind("null"), native)
            .with_remotes(both)
            .with_concurrency(Concurrency::BimapFull)
    };
    builder.add_arena(Arc::new(Null::backed(desc("main", CPU))));
    builder.add_arena(Arc::new(Null::backed(desc("loose", GPU).with_alloc_align(16))));
    let allocation = Allocation::Bound(Concurrency::BimapFull);
    let link = Link { from: VAULT, to: MAIN, source_via: GPU, target_via: CPU, allocation };
    builder.add_link(link, Arc::new(Binding::default()));
    let platform = builder.build().unwrap();
    #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, align(32))]
    struct Half([u8; 32]);
    let told = platform.buffer::<Half>(3).build().map(drop).unwrap_err();
    let expected = ConfigError::OverAligned { element_align: 32, arena: "loose".into(), arena_align: 16 };
    assert_eq!(told, expected);
    assert!(platform.buffer::<u128>(3).build().is_ok());
}

/// Links that would have the same number as another are too many, those that core adds included.
#[test]
fn more_links_than_ids_is_an_error() {
    let built = |own: usize| {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
        builder.add_arena(Arc::new(dml::arenas::MainMem::new(CPU)));
        builder.add_arena(Arc::new(dml::arenas::Null::new(ArenaDesc::new("gpu", ArenaKind("null"), GPU))));
        let link = Link {
            from: MAIN,
            to: VAULT,
            source_via: CPU,
            target_via: GPU,
            allocation: Allocation::Internal,
        };
        let way: Arc<dyn dml::core::CrossArena> = Arc::new(HostStaged::default());
        (0..own).for_each(|_| builder.add_link(link, way.clone()));
        builder.build()
    };
    // The way back is added by core.
    assert_eq!(built(65_534).unwrap().links().len(), 65_535);
    for own in [65_535, 65_536, 70_000] {
        let Err(ConfigError::Topology(problems)) = built(own) else { panic!("{own} links") };
        let is_it = |problem: &TopologyError| matches!(problem, TopologyError::TooMany { what: "links", count, limit: 65_535 } if *count >= own);
        assert!(problems.iter().all(is_it), "{problems:?}");
    }
}

#[test]
fn a_prefetch_is_no_kernel() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let buffer = platform.buffer_from(vec![1_u32; 8]).unwrap();
    for kernel in [0, 1, 1 << 47, u64::MAX - 1, u64::MAX] {
        let _reader = platform.acquire(CPU).kernel(KernelId(kernel)).read(&buffer).try_now().unwrap();
        assert_eq!(buffer.raw().prefetch(GPU, 0..32).wait(), Ok(()), "beside kernel {kernel}");
        buffer.raw().free(VAULT).unwrap();
    }
}

/// The number of parts of one request, and of requests. What grows faster than they do shows as a test that
/// takes minutes.
const MANY: u64 = 100_000;

#[test]
fn very_many_ranges_are_granted() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let buffer = platform.buffer::<u32>(2 * MANY).zeroed().build().unwrap();
    let ranges: Vec<_> = (0..MANY).map(|index| buffer.range(2 * index..2 * index + 1)).collect();
    let asked = ranges.iter().fold(platform.acquire(CPU), |asked, range| asked.write(range));
    let mut grants = asked.wait().unwrap();
    assert_eq!(grants.views().unwrap().len() as u64, MANY);
    grants.release().unwrap();
    assert!(buffer.raw().snapshot().segments().count() as u64 >= 2 * MANY - 1);
}

/// Every second element is written, and the rest brought as zeros. Debug builds look at every segment after
/// every copy.
#[test]
fn very_many_segments_are_gathered() {
    const SEGMENTS: u64 = 4_000;
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let buffer = platform.buffer::<u32>(2 * SEGMENTS).zeroed().build().unwrap();
    let odd: Vec<_> = (0..SEGMENTS).map(|index| buffer.range(2 * index..2 * index + 1)).collect();
    let asked = odd.iter().fold(platform.acquire(CPU), |asked, range| asked.write(range));
    let mut grants = asked.wait().unwrap();
    for (value, view) in (1..).zip(&mut grants.views().unwrap()) {
        view.slice_mut::<u32>().unwrap()[0] = value;
    }
    grants.release().unwrap();
    let there = platform.acquire(GPU).read(&buffer).wait().unwrap().read_bytes(&buffer).unwrap();
    let there: Vec<u32> = bytemuck::pod_collect_to_vec(&there);
    assert!(there.chunks(2).zip(1..).all(|(pair, value)| pair == [value, 0]));
}

#[test]
fn very_many_buffers_are_granted_and_handed_over() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let small: Vec<_> = (0..MANY).map(|_| platform.raw_buffer(4).zeroed().build().unwrap()).collect();
    let asked = small.iter().rev().fold(platform.acquire(CPU), |asked, buffer| asked.read_write(buffer));
    let mut grants = asked.wait().unwrap();
    for buffer in &small {
        grants.slice_mut::<u32>(buffer).unwrap()[0] = 1;
    }
    grants.release().unwrap();
    // One grant each, all held by this thread, of which some are handed over and all end as they came.
    let held: Vec<_> =
        small.iter().map(|buffer| platform.acquire(CPU).read(buffer).wait().unwrap()).collect();
    let handed_over = held.into_iter().map(dml::core::Grants::hand_over);
    let (first, rest): (Vec<_>, Vec<_>) = handed_over.enumerate().partition(|(index, _)| index % 2 == 0);
    drop(first);
    rest.into_iter().for_each(|(_, grants)| grants.release().unwrap());
    assert!(platform.leaked_grants().is_empty());
}

/// Routes that count how many links a search has looked at.
struct Counted<'a> {
    inner: &'a dyn Routes,
    links_seen: Cell<u64>,
}

impl Routes for Counted<'_> {
    fn arenas(&self) -> &[ArenaDesc] {
        self.inner.arenas()
    }

    fn links(&self) -> &[Link] {
        self.inner.links()
    }

    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost> {
        self.inner.cost(link, query)
    }

    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path> {
        self.inner.cheapest(sources, to, &mut |link| {
            self.links_seen.set(self.links_seen.get() + 1);
            edge(link)
        })
    }

    fn is_needed(&self, link: LinkId) -> bool {
        self.inner.is_needed(link)
    }

    fn bound_by_need(&self) -> ArenaSet {
        self.inner.bound_by_need()
    }
}

/// Carries a plan out, every step of which succeeds.
fn carry_out(routes: &dyn Routes, state: &mut BufferState, plan: SyncPlan) {
    let mut execution = Execution::new(plan);
    loop {
        match execution.next(state) {
            Next::Do(step) => {
                let report = match step {
                    Step::Map { target, .. } => Report::Mapped(target),
                    _ => Report::Done,
                };
                execution.report(routes, state, step, report).unwrap();
            }
            Next::Finish => {
                let _ = execution.finish(routes, state).unwrap();
                return;
            }
            other => panic!("nothing fails, and nothing is waited for: {other:?}"),
        }
    }
}

/// One segment in each arena, and a link between any two. The searches for all segments look at each link
/// about once.
#[test]
fn a_gather_over_linked_arenas_looks_at_each_link_about_once() {
    const SEGMENT_BYTES: u64 = 64;
    for arenas in [8_u64, 64] {
        let mut builder = Platform::builder();
        for index in 0..arenas {
            let kind = if index == 0 { DeviceKind::Cpu } else { DeviceKind::Gpu };
            let device = builder.add_device(DeviceDesc::new(&format!("device {index}"), kind));
            let desc = ArenaDesc::new(&format!("arena {index}"), ArenaKind("null"), device);
            builder.add_arena(Arc::new(Null::new(desc)));
        }
        let platform = builder.build().unwrap();
        assert_eq!(platform.links().len() as u64, arenas * (arenas - 1));
        let routes = Counted { inner: platform.routes(), links_seen: Cell::new(0) };
        let mut state = BufferState::new(&routes, arenas * SEGMENT_BYTES, Initial::Undefined);
        let request = |id: u64, arena: u64, span: Span, access: Access| Request {
            kernel: KernelId(id),
            grant: OwnerId(id),
            arena: ArenaId(arena as u8),
            claims: Claims::new([Claim { span, access }]),
            is_submission: false,
        };
        for arena in 0..arenas {
            let span = Span::new(arena * SEGMENT_BYTES, (arena + 1) * SEGMENT_BYTES);
            let wanted = request(arena + 1, arena, span, Access::WriteInvalidate);
            let Begin::Plan(plan) = state.begin(&routes, &wanted) else { panic!("it has no storage yet") };
            carry_out(&routes, &mut state, plan);
            let _ = state.release(&routes, OwnerId(arena + 1), Outcome::Done).unwrap();
        }
        assert_eq!(state.segments().count() as u64, arenas);
        routes.links_seen.set(0);
        let all = request(arenas + 1, 0, Span::new(0, arenas * SEGMENT_BYTES), Access::ReadOnly);
        let Begin::Plan(plan) = state.begin(&routes, &all) else { panic!("the others' bytes are brought") };
        let copies = plan.steps.iter().filter(|step| matches!(step, Step::Copy(_))).count() as u64;
        assert!(copies >= arenas - 1, "{copies} copies");
        let (seen, links) = (routes.links_seen.get(), platform.links().len() as u64);
        assert!(seen <= 2 * links, "{seen} looks at {links} links for {arenas} segments");
        carry_out(&routes, &mut state, plan);
    }
}
