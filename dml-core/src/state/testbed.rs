//! A platform of descriptions and prices, without memories, for the unit tests of the machine.

use super::{
    Begin, BufferState, Content, Execution, Initial, Next, Outcome, Path, PathKey, Refusal, Release, Report,
    Request, Routes, Status, Step, SyncPlan,
};
use crate::base::access::{Access, Claim, Claims};
use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, DeviceSet, KernelId, LinkId, OwnerId, Ticket};
use crate::base::range::Span;
use crate::memory::desc::{ArenaDesc, ArenaKind, Concurrency};
use crate::memory::link::{Allocation, CopyQuery, Link};
use crate::state::FreeRefusal;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The host, whose native arena is main memory.
pub(super) const CPU: DeviceId = DeviceId(0);
/// The first GPU.
pub(super) const GPU: DeviceId = DeviceId(1);
/// The second GPU.
pub(super) const GPU2: DeviceId = DeviceId(2);
/// Main memory.
pub(super) const MAIN_ARENA: ArenaId = ArenaId(0);
/// The memory of the first GPU.
pub(super) const GPU_ARENA: ArenaId = ArenaId(1);
/// The memory of the second GPU.
pub(super) const GPU2_ARENA: ArenaId = ArenaId(2);
/// The size of every buffer, in bytes.
pub(super) const LEN: u64 = 30;
/// Price of a change of map state, in nanoseconds; added to that of the link.
pub(super) const REMAP_NS: u64 = 1_000;
/// Price of an allocation, in nanoseconds.
pub(super) const ALLOC_NS: u64 = 100_000;

/// Arenas and links with fixed prices.
#[derive(Clone, Debug)]
pub(super) struct Bench {
    arenas: Vec<ArenaDesc>,
    links: Vec<Link>,
    prices_ns: Vec<u64>,
    /// The earlier answers by key, of all clones.
    remembered: Rc<RefCell<HashMap<PathKey, Option<Path>>>>,
}

impl Bench {
    /// Creates a platform of main memory alone.
    pub(super) fn new() -> Self {
        let main = ArenaDesc::new("main", ArenaKind("test"), CPU)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(Concurrency::BimapFull)
            .with_alloc_cost(Cost::from_ns(ALLOC_NS));
        Self { arenas: vec![main], links: Vec::new(), prices_ns: Vec::new(), remembered: Rc::default() }
    }

    /// Creates a platform of main memory and two exclusive GPUs, each joined to main memory by read and write
    /// calls.
    pub(super) fn star() -> Self {
        let bench = Self::new().gpu(Concurrency::Exclusive).gpu(Concurrency::Exclusive);
        let bench = bench.link(MAIN_ARENA, GPU_ARENA, 10).link(GPU_ARENA, MAIN_ARENA, 10);
        bench.link(MAIN_ARENA, GPU2_ARENA, 10).link(GPU2_ARENA, MAIN_ARENA, 10)
    }

    /// Creates a platform of main memory and two GPUs. The first can share storage with main memory, the
    /// second can copy from and to it.
    pub(super) fn bound(concurrency: Concurrency) -> Self {
        let bench = Self::new().gpu(concurrency).gpu(Concurrency::Exclusive);
        let (main, gpu) = ((MAIN_ARENA, CPU), (GPU_ARENA, GPU));
        let bench = bench.link_via(main, gpu, Allocation::Bound(concurrency), 10);
        let bench = bench.link_via(gpu, main, Allocation::Shared, 10);
        bench.link(MAIN_ARENA, GPU2_ARENA, 10).link(GPU2_ARENA, MAIN_ARENA, 10)
    }

    /// Adds a device whose memory the host can map.
    pub(super) fn gpu(self, concurrency: Concurrency) -> Self {
        let native = DeviceId(self.arenas.len() as u16);
        self.memory(native, DeviceSet::of(CPU), concurrency)
    }

    /// Adds an arena.
    pub(super) fn memory(mut self, native: DeviceId, remotes: DeviceSet, concurrency: Concurrency) -> Self {
        let name = format!("arena{}", self.arenas.len());
        let desc = ArenaDesc::new(&name, ArenaKind("test"), native)
            .with_remotes(remotes)
            .with_concurrency(concurrency)
            .with_alloc_cost(Cost::from_ns(ALLOC_NS));
        self.arenas.push(desc);
        self
    }

    /// Adds a link that reaches each end through its own device.
    pub(super) fn link(self, from: ArenaId, to: ArenaId, price_ns: u64) -> Self {
        let native = |arena: ArenaId| self.arenas[usize::from(arena.0)].native;
        let (source_via, target_via) = (native(from), native(to));
        self.link_via((from, source_via), (to, target_via), Allocation::Internal, price_ns)
    }

    /// Adds a link.
    pub(super) fn link_via(
        mut self,
        (from, source_via): (ArenaId, DeviceId),
        (to, target_via): (ArenaId, DeviceId),
        allocation: Allocation,
        price_ns: u64,
    ) -> Self {
        self.links.push(Link { from, to, source_via, target_via, allocation });
        self.prices_ns.push(price_ns);
        self
    }

    /// Returns the number of paths that an implementation could cache.
    pub(super) fn remembered(&self) -> usize {
        self.remembered.borrow().len()
    }

    /// Creates a buffer of this platform that was never written.
    pub(super) fn buffer(&self, len: u64) -> BufferState {
        BufferState::new(self, len, Initial::Undefined)
    }
}

impl Routes for Bench {
    fn arenas(&self) -> &[ArenaDesc] {
        &self.arenas
    }

    fn links(&self) -> &[Link] {
        &self.links
    }

    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost> {
        let remaps = u64::from(query.remap_source) + u64::from(query.remap_target);
        Some(Cost::from_ns(self.prices_ns[usize::from(link.0)] + query.bytes + remaps * REMAP_NS))
    }

    /// Compares all paths that visit no arena twice.
    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path> {
        let prices: Vec<_> = (0..self.links.len() as u16).map(|link| edge(LinkId(link))).collect();
        let mut open: Vec<_> =
            sources.iter().map(|source| (Cost::ZERO, 0, vec![source], Vec::<LinkId>::new())).collect();
        let mut complete = Vec::new();
        while let Some(path) = open.pop() {
            let (cost, hops, arenas, links) = &path;
            if arenas.last() == Some(&to) {
                complete.push(path);
                continue;
            }
            for (index, (link, price)) in self.links.iter().zip(&prices).enumerate() {
                if let (true, false, Some(price)) =
                    (arenas.last() == Some(&link.from), arenas.contains(&link.to), price)
                {
                    let arenas = arenas.iter().copied().chain([link.to]).collect();
                    let links = links.iter().copied().chain([LinkId(index as u16)]).collect();
                    open.push((*cost + *price, hops + 1, arenas, links));
                }
            }
        }
        let (cost, _, _, links) = complete.into_iter().min()?;
        Some(Path { links: links.into(), cost })
    }

    /// Caches nothing, but checks that caching would be correct: the same key always has the same answer.
    fn cheapest_idle(&self, key: PathKey, edge: &mut dyn FnMut(LinkId) -> Option<Cost>) -> Option<Path> {
        let path = self.cheapest(key.sources, key.to, edge);
        let before = self.remembered.borrow_mut().insert(key.clone(), path.clone());
        assert!(before.is_none_or(|before| before == path), "{key:?} does not determine {path:?}");
        path
    }
}

/// A buffer of a bench, driven by hand. Every invariant is checked after each action.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    pub(super) bench: Bench,
    pub(super) state: BufferState,
    last: u64,
}

impl Driver {
    /// Creates a buffer of 30 bytes that was never written.
    pub(super) fn new(bench: Bench) -> Self {
        let state = bench.buffer(LEN);
        Self { bench, state, last: 0 }
    }

    /// Creates a buffer of 30 zeros.
    pub(super) fn zeroed(bench: Bench) -> Self {
        let state = BufferState::new(&bench, LEN, Initial::Zeroed);
        Self { bench, state, last: 0 }
    }

    /// Returns an unused id.
    pub(super) fn next(&mut self) -> OwnerId {
        self.last += 1;
        OwnerId(self.last)
    }

    /// Changes the state and checks it.
    #[track_caller]
    pub(super) fn act<R>(&mut self, act: impl FnOnce(&mut BufferState, &Bench) -> R) -> R {
        let result = act(&mut self.state, &self.bench);
        if let Err(violation) = self.state.check_invariants(&self.bench) {
            panic!("{violation}\n{:#?}", self.state);
        }
        result
    }

    /// Creates a request of a new kernel.
    pub(super) fn request(&mut self, arena: ArenaId, claims: &[Claim]) -> Request {
        let grant = self.next();
        Request {
            kernel: KernelId(grant.0),
            grant,
            arena,
            claims: Claims::new(claims.iter().copied()),
            is_submission: false,
        }
    }

    /// Submits a request of a new kernel, and carries no plan out.
    #[track_caller]
    pub(super) fn ask(&mut self, arena: ArenaId, span: (u64, u64), access: Access) -> (OwnerId, Begin) {
        let request = self.request(arena, &[claim(span.0, span.1, access)]);
        (request.grant, self.act(|state, bench| state.begin(bench, &request)))
    }

    /// Submits a request that must be busy, and puts it into the queue.
    #[track_caller]
    pub(super) fn wait(&mut self, arena: ArenaId, span: (u64, u64), access: Access) -> Ticket {
        let request = self.request(arena, &[claim(span.0, span.1, access)]);
        let ticket = Ticket(request.grant.0);
        let begin = self.act(|state, bench| state.begin(bench, &request));
        assert!(matches!(begin, Begin::Busy { .. }), "{begin:?}");
        self.act(|state, _| state.enqueue(ticket, request));
        ticket
    }

    /// Makes the transitions of one step, without an execution.
    #[track_caller]
    pub(super) fn step(&mut self, owner: OwnerId, step: Step) {
        self.act(|state, bench| match step {
            Step::Allocate { arena } => state.allocated(bench, arena),
            Step::Bind { arena, root, concurrency } => state.bound(bench, arena, root, concurrency),
            Step::Map { arena, device, target } => {
                state.mapped(bench, owner, (arena, device, target), target).expect("as requested");
            }
            Step::Copy(copy) => state.started(copy.id).expect("neither end is lost"),
        });
        if let Step::Copy(copy) = step {
            self.act(|state, bench| state.copied(bench, copy.id));
        }
    }

    /// Carries a plan out. Each copy ends only when the execution must wait.
    #[track_caller]
    pub(super) fn carry_out(&mut self, plan: SyncPlan) -> Result<(), Refusal> {
        let mut execution = Execution::new(plan);
        loop {
            let step = match self.act(|state, _| execution.next(state)) {
                Next::Do(Step::Copy(_)) => continue,
                Next::Do(step) => step,
                Next::Wait => Step::Copy(*execution.under_way().next().expect("a copy is under way")),
                Next::Finish => {
                    return self.act(|state, bench| execution.finish(bench, state).map(|_| ()));
                }
                other => panic!("{other:?}"),
            };
            let reported = self.act(|state, bench| execution.report(bench, state, step, Report::Done));
            assert!(reported.is_ok(), "{reported:?}");
        }
    }

    /// Acquires access, and carries out the plan if there is one.
    #[track_caller]
    pub(super) fn acquire(&mut self, arena: ArenaId, span: (u64, u64), access: Access) -> OwnerId {
        match self.ask(arena, span, access) {
            (grant, Begin::Granted(_)) => grant,
            (grant, Begin::Plan(plan)) => {
                self.carry_out(plan).expect("the buffer stays intact");
                grant
            }
            (_, refused) => panic!("{refused:?}"),
        }
    }

    /// Returns the plan of a request, which must need one.
    #[track_caller]
    pub(super) fn plan(&mut self, arena: ArenaId, span: (u64, u64), access: Access) -> SyncPlan {
        match self.ask(arena, span, access) {
            (_, Begin::Plan(plan)) => plan,
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Ends a grant.
    #[track_caller]
    pub(super) fn release(&mut self, grant: OwnerId, outcome: Outcome) -> Result<Release, Refusal> {
        self.act(|state, bench| state.release(bench, grant, outcome))
    }

    /// Ends a grant, whose outcome must count as given.
    #[track_caller]
    pub(super) fn end(&mut self, grant: OwnerId, outcome: Outcome) {
        assert_eq!(self.release(grant, outcome).map(|release| release.outcome), Ok(outcome));
    }

    /// Overwrites bytes in an arena.
    #[track_caller]
    pub(super) fn write(&mut self, arena: ArenaId, span: (u64, u64)) {
        let grant = self.acquire(arena, span, Access::WriteInvalidate);
        assert_eq!(self.release(grant, Outcome::Done).map(|release| release.commit.is_some()), Ok(true));
    }

    /// Brings bytes to an arena.
    #[track_caller]
    pub(super) fn read(&mut self, arena: ArenaId, span: (u64, u64)) {
        let grant = self.acquire(arena, span, Access::ReadOnly);
        assert_eq!(self.release(grant, Outcome::Done).map(|release| release.commit), Ok(None));
    }

    /// Makes `arena` share the storage of `root`.
    #[track_caller]
    pub(super) fn bind(&mut self, arena: ArenaId, root: ArenaId, concurrency: Concurrency) {
        let owner = self.next();
        let plan = self.act(|state, _| state.bind(owner, arena, root, concurrency)).expect("it can be bound");
        self.carry_out(plan).expect("the buffer stays intact");
    }

    /// Frees storage.
    #[track_caller]
    pub(super) fn free(&mut self, arena: ArenaId) -> Result<(), FreeRefusal> {
        self.act(|state, bench| state.free(bench, arena))
    }

    /// Returns the end, the valid-set and the status of each segment.
    pub(super) fn segments(&self) -> Vec<(u64, Vec<u8>, Status)> {
        let part = |(span, content): (Span, Content)| {
            (span.end(), content.valid.iter().map(|arena| arena.0).collect(), content.status)
        };
        self.state.segments().iter().map(part).collect()
    }

    /// Checks that `act` returns `expected` and changes nothing.
    #[track_caller]
    pub(super) fn refuses<R: PartialEq + std::fmt::Debug>(
        &mut self,
        expected: R,
        act: impl FnOnce(&mut BufferState, &Bench) -> R,
    ) {
        let before = self.state.clone();
        let told = self.act(act);
        assert_eq!(told, expected);
        assert_eq!(self.state, before);
    }
}

/// Creates a claim on the bytes from `start` to `end`.
pub(super) fn claim(start: u64, end: u64, access: Access) -> Claim {
    Claim { span: Span::new(start, end), access }
}

#[test]
fn the_cheapest_path_is_by_cost_then_hops_then_arenas() {
    let bench = Bench::new()
        .gpu(Concurrency::Exclusive)
        .gpu(Concurrency::Exclusive)
        .gpu(Concurrency::Exclusive)
        .link(MAIN_ARENA, GPU2_ARENA, 5)
        .link(MAIN_ARENA, GPU_ARENA, 5)
        .link(GPU2_ARENA, ArenaId(3), 5)
        .link(GPU_ARENA, ArenaId(3), 5);
    let path = |bench: &Bench, price: &dyn Fn(LinkId) -> Option<Cost>| {
        let path = bench.cheapest(ArenaSet::of(MAIN_ARENA), ArenaId(3), &mut |link| price(link))?;
        Some((path.links.iter().map(|link| link.0).collect::<Vec<_>>(), path.cost.as_ns()))
    };
    let fixed = |link: LinkId| Some(Cost::from_ns(bench.prices_ns[usize::from(link.0)]));
    assert_eq!(path(&bench, &fixed), Some((vec![1, 3], Some(10))));
    assert_eq!(path(&bench, &|link| fixed(link).filter(|_| link.0 != 3)), Some((vec![0, 2], Some(10))));
    assert_eq!(path(&bench, &|link| fixed(link).filter(|_| link.0 < 2)), None);
    let direct = bench.clone().link(MAIN_ARENA, ArenaId(3), 10);
    let fixed = |link: LinkId| Some(Cost::from_ns(direct.prices_ns[usize::from(link.0)]));
    assert_eq!(path(&direct, &fixed), Some((vec![4], Some(10))));
}
