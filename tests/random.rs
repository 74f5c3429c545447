//! Random sequences of operations against a model that knows nothing of arenas: bytes, and who holds which.
//!
//! Whatever the platform, whatever was copied where: every grant that reads sees the model's bytes, every refusal is one
//! that the model understands, and every state invariant holds after every operation.

use dml::core::{
    Access, AcquireError, ArenaId, BusyReason, Claim, Claims, Concurrency, Grants, KernelId, RawBuffer, Span,
    normalise,
};
use dml_verify::{
    Audited, CPU, GPU_ARENA, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig, byte, check, get, live_blocks, put,
    raw, star,
};
use proptest::prelude::*;

const LEN: u64 = 24;
const KERNELS: u64 = 3;

#[derive(Clone, Debug)]
struct Want {
    buffer: usize,
    start: u64,
    len: u64,
    access: Access,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Done,
    Drop,
    Failed,
    Clean,
}

#[derive(Clone, Debug)]
enum Op {
    Acquire { arena: usize, kernel: u64, wants: Vec<Want>, looks: bool },
    Release { which: usize, end: End, part: u64 },
    Downgrade { which: usize },
    Prefetch { buffer: usize, arena: usize, start: u64, len: u64 },
    Restore { buffer: usize, start: u64, len: u64 },
    Free { buffer: usize, arena: usize },
    Bind { buffer: usize, arena: usize, root: usize },
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        3 => Just(Access::ReadOnly),
        2 => Just(Access::WriteInvalidate),
        2 => Just(Access::ReadWrite),
    ]
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![3 => (0..LEN, 0..12u64), 1 => Just((0, LEN))]
        .prop_map(|(start, len)| (start, len.min(LEN - start)))
}

fn want() -> impl Strategy<Value = Want> {
    (0..3usize, range(), access()).prop_map(|(buffer, (start, len), access)| Want {
        buffer,
        start,
        len,
        access,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let end = prop_oneof![4 => Just(End::Done), 2 => Just(End::Drop), 1 => Just(End::Failed), 1 => Just(End::Clean)];
    prop_oneof![
        8 => (0..4usize, 0..KERNELS, prop::collection::vec(want(), 1..4), any::<bool>())
            .prop_map(|(arena, kernel, wants, looks)| Op::Acquire { arena, kernel, wants, looks }),
        7 => (0..8usize, end, 0..LEN).prop_map(|(which, end, part)| Op::Release { which, end, part }),
        1 => (0..8usize).prop_map(|which| Op::Downgrade { which }),
        2 => (0..3usize, 0..4usize, range())
            .prop_map(|(buffer, arena, (start, len))| Op::Prefetch { buffer, arena, start, len }),
        1 => (0..3usize, range()).prop_map(|(buffer, (start, len))| Op::Restore { buffer, start, len }),
        1 => (0..3usize, 0..4usize).prop_map(|(buffer, arena)| Op::Free { buffer, arena }),
        1 => (0..3usize, 0..4usize, 0..4usize).prop_map(|(buffer, arena, root)| Op::Bind { buffer, arena, root }),
    ]
}

/// What one byte holds, whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    committed: Option<u8>,
    poisoned: bool,
}

struct Held {
    grants: Grants,
    kernel: KernelId,
    looks: bool,
    /// By buffer index.
    claims: Vec<(usize, Claims)>,
}

struct World {
    platform: Audited,
    buffers: Vec<RawBuffer>,
    cells: Vec<Vec<Cell>>,
    held: Vec<Held>,
    commits: u64,
}

impl World {
    fn new(platform: Audited, zeroed: bool) -> Self {
        let mut buffers = vec![raw(&platform, LEN), raw(&platform, LEN)];
        buffers.push(platform.raw_buffer(LEN).zeroed().build().unwrap());
        let mut cells = vec![vec![Cell { committed: None, poisoned: false }; LEN as usize]; 2];
        cells.push(vec![Cell { committed: Some(0), poisoned: false }; LEN as usize]);
        if !zeroed {
            buffers.pop();
            cells.pop();
        }
        Self { platform, buffers, cells, held: Vec::new(), commits: 0 }
    }

    fn arena(&self, index: usize) -> ArenaId {
        ArenaId((index % self.platform.arenas().len()) as u8)
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Acquire { arena, kernel, ref wants, looks } => self.acquire(arena, kernel, wants, looks),
            Op::Release { which, end, part } => {
                if !self.held.is_empty() {
                    let held = self.held.swap_remove(which % self.held.len());
                    self.release(held, end, part);
                }
            }
            Op::Downgrade { which } => {
                if !self.held.is_empty() {
                    let held = self.held.swap_remove(which % self.held.len());
                    self.downgrade(held);
                }
            }
            Op::Prefetch { buffer, arena, start, len } => {
                let index = buffer % self.buffers.len();
                let device = self.platform.arena(self.arena(arena)).desc().native;
                let result = self.buffers[index].prefetch(device, start..start + len);
                let claims =
                    normalise([Claim { span: Span::new(start, start + len), access: Access::ReadOnly }]);
                self.understands(index, None, &claims, &result);
            }
            Op::Restore { buffer, start, len } => self.restore(buffer % self.buffers.len(), start, len),
            Op::Free { buffer, arena } => {
                let _ = self.buffers[buffer % self.buffers.len()].free(self.arena(arena));
            }
            Op::Bind { buffer, arena, root } => {
                let (arena, root) = (self.arena(arena), self.arena(root));
                if arena != root {
                    let _ = self.buffers[buffer % self.buffers.len()].bind(arena, root);
                }
            }
        }
        for buffer in &self.buffers {
            check(buffer);
        }
    }

    fn holders(&self, buffer: usize) -> impl Iterator<Item = (KernelId, &Claim)> {
        self.held.iter().flat_map(move |held| {
            let mine = held.claims.iter().filter(move |(index, _)| *index == buffer);
            mine.flat_map(|(_, claims)| claims).map(|claim| (held.kernel, claim))
        })
    }

    fn unreadable(&self, buffer: usize, claims: &Claims, bad: impl Fn(&Cell) -> bool) -> bool {
        let reads = claims.iter().filter(|claim| claim.access.reads());
        reads.flat_map(|claim| claim.span.to_range()).any(|at| bad(&self.cells[buffer][at as usize]))
    }

    /// Whether the model understands what one buffer answered.
    fn understands<T>(
        &self,
        buffer: usize,
        kernel: Option<KernelId>,
        claims: &Claims,
        result: &Result<T, AcquireError>,
    ) {
        let overlapping = |held: &Claim| claims.iter().any(|claim| claim.span.overlaps(held.span));
        let already = self.holders(buffer).any(|(by, held)| Some(by) == kernel && overlapping(held));
        let conflict = self.holders(buffer).any(|(_, held)| claims.iter().any(|claim| claim.conflicts(held)));
        let undefined = self.unreadable(buffer, claims, |cell| !cell.poisoned && cell.committed.is_none());
        let poisoned = self.unreadable(buffer, claims, |cell| cell.poisoned);
        match result {
            Ok(_) => {
                assert!(!already && !conflict && !undefined && !poisoned, "granted b{buffer} {claims:?}")
            }
            Err(AcquireError::AlreadyHeld { .. }) => assert!(already),
            Err(AcquireError::Busy { reason: BusyReason::Conflict, .. }) => assert!(conflict && !already),
            Err(AcquireError::Busy { reason: BusyReason::ArenaInUse, .. }) => {
                assert!(self.holders(buffer).next().is_some(), "nobody uses b{buffer}, which is busy");
            }
            Err(AcquireError::Uninitialized { span, .. }) => {
                let cells = &self.cells[buffer][span.start() as usize..span.end() as usize];
                assert!(
                    cells.iter().all(|cell| cell.committed.is_none() && !cell.poisoned),
                    "{span}: {cells:?}"
                );
            }
            Err(AcquireError::Poisoned { span, restorable, .. }) => {
                let cells = &self.cells[buffer][span.start() as usize..span.end() as usize];
                assert!(cells.iter().all(|cell| cell.poisoned), "{span}: {cells:?}");
                assert!(!restorable || cells.iter().all(|cell| cell.committed.is_some()));
            }
            Err(other) => panic!("b{buffer} {claims:?}: {other}"),
        }
    }

    fn acquire(&mut self, arena: usize, kernel: u64, wants: &[Want], looks: bool) {
        let (arena, kernel) = (self.arena(arena), KernelId(kernel));
        let mut claims: Vec<(usize, Vec<Claim>)> = Vec::new();
        let mut asked = self.platform.acquire_in(arena).kernel(kernel);
        for want in wants {
            let index = want.buffer % self.buffers.len();
            let range = want.start..want.start + want.len;
            asked = asked.access(&self.buffers[index].range(range.clone()), want.access);
            let claim = Claim { span: Span::new(range.start, range.end), access: want.access };
            match claims.iter_mut().find(|(of, _)| *of == index) {
                Some((_, of)) => of.push(claim),
                None => claims.push((index, vec![claim])),
            }
        }
        let mut claims: Vec<(usize, Claims)> =
            claims.into_iter().map(|(index, claims)| (index, normalise(claims))).collect();
        claims.sort_by_key(|(index, _)| *index);
        let before: Vec<_> = self.buffers.iter().map(|buffer| buffer.snapshot()).collect();
        match asked.try_now() {
            Ok(grants) => {
                for (index, claims) in &claims {
                    self.understands(*index, Some(kernel), claims, &Ok(()));
                }
                let held = Held { grants, kernel, looks, claims };
                if looks {
                    self.look(&held);
                }
                self.held.push(held);
            }
            Err(error) => {
                let refused = match error {
                    AcquireError::Busy { buffer, .. }
                    | AcquireError::AlreadyHeld { buffer, .. }
                    | AcquireError::Uninitialized { buffer, .. }
                    | AcquireError::Poisoned { buffer, .. } => buffer,
                    ref other => panic!("{other}"),
                };
                let index = self.buffers.iter().position(|buffer| buffer.id() == refused).unwrap();
                let refused = |(of, _): &&(usize, Claims)| *of == index;
                let mine = &claims.iter().find(refused).expect("the buffer was asked for").1;
                self.understands(index, Some(kernel), mine, &Err::<(), _>(error));
                // I-15: nothing but added valid entries and allocations.
                for (buffer, before) in self.buffers.iter().zip(&before) {
                    let after = buffer.snapshot();
                    assert_eq!(after.requestors(), before.requestors());
                    assert_eq!(after.commit_seq(), before.commit_seq());
                    assert!(after.copies().is_empty());
                    for (span, then) in before.segments().iter() {
                        for (_, now) in after.segments().in_span(span) {
                            assert!(then.valid.is_subset(now.valid) && then.status == now.status);
                        }
                    }
                }
            }
        }
    }

    /// The grant's reading claims show the model's bytes.
    fn look(&self, held: &Held) {
        for (index, claims) in &held.claims {
            for claim in claims.iter().filter(|claim| claim.access.reads()) {
                let range = claim.span.to_range();
                let seen = get(&held.grants, &self.buffers[*index], range.clone());
                let cells = &self.cells[*index][range.start as usize..range.end as usize];
                let model: Vec<u8> = cells.iter().map(|cell| cell.committed.expect("granted")).collect();
                assert_eq!(seen, model, "b{index} {range:?}");
            }
        }
    }

    /// Writes through a grant: all of what it overwrites, a part of what it changes.
    fn scribble(&mut self, held: &Held, part: u64) -> Vec<(usize, Span, u64)> {
        let mut written = Vec::new();
        for (index, claims) in &held.claims {
            for claim in claims.iter().filter(|claim| claim.access.writes()) {
                self.commits += 1;
                let range = claim.span.to_range();
                let range = match claim.access {
                    Access::ReadWrite => range.start + part % (range.end - range.start)..range.end,
                    _ => range,
                };
                let data: Vec<u8> = range.clone().map(|offset| byte(self.commits, offset)).collect();
                put(&held.grants, &self.buffers[*index], range.start, &data);
                written.push((*index, Span::new(range.start, range.end), self.commits));
            }
        }
        written
    }

    fn commit(&mut self, held: &[(usize, Claims)], written: &[(usize, Span, u64)]) {
        for (index, span, seed) in written {
            for at in span.to_range() {
                self.cells[*index][at as usize].committed = Some(byte(*seed, at));
            }
        }
        for (index, claims) in held {
            for claim in claims.iter().filter(|claim| claim.access.writes()) {
                for at in claim.span.to_range() {
                    self.cells[*index][at as usize].poisoned = false;
                }
            }
        }
    }

    fn poison(&mut self, held: &[(usize, Claims)], of: impl Fn(usize) -> bool) {
        for (index, claims) in held.iter().filter(|(index, _)| of(*index)) {
            for claim in claims.iter().filter(|claim| claim.access.writes()) {
                for at in claim.span.to_range() {
                    self.cells[*index][at as usize].poisoned = true;
                }
            }
        }
    }

    fn release(&mut self, held: Held, end: End, part: u64) {
        if held.looks {
            // I-4: still what it was when granted.
            self.look(&held);
        }
        let claims = held.claims.clone();
        match end {
            End::Done => {
                let written = self.scribble(&held, part);
                held.grants.release().unwrap();
                self.commit(&claims, &written);
            }
            End::Drop if held.looks => {
                let written = self.scribble(&held, part);
                drop(held.grants);
                self.commit(&claims, &written);
            }
            // Never looked at, never written: not started.
            End::Drop => drop(held.grants),
            End::Failed => {
                let _ = self.scribble(&held, part);
                held.grants.failed().unwrap();
                self.poison(&claims, |_| true);
            }
            End::Clean => {
                let overwrites = |index: usize| {
                    let mut mine =
                        claims.iter().filter(|(of, _)| *of == index).flat_map(|(_, claims)| claims);
                    mine.any(|claim| claim.access == Access::WriteInvalidate)
                };
                let any = claims.iter().any(|(index, _)| overwrites(*index));
                let result = held.grants.clean();
                assert_eq!(result.is_err(), any, "{result:?}");
                self.poison(&claims, overwrites);
            }
        }
    }

    fn downgrade(&mut self, mut held: Held) {
        let written = self.scribble(&held, 0);
        held.grants = held.grants.downgrade().unwrap();
        self.commit(&held.claims, &written);
        for (_, claims) in &mut held.claims {
            let reading = claims.iter().map(|claim| Claim { access: Access::ReadOnly, ..*claim });
            *claims = normalise(reading.collect::<Vec<_>>());
        }
        held.looks = true;
        self.look(&held);
        self.held.push(held);
    }

    fn restore(&mut self, index: usize, start: u64, len: u64) {
        let span = Span::new(start, start + len);
        let held = self.holders(index).any(|(_, claim)| claim.span.overlaps(span));
        let cells = &mut self.cells[index][start as usize..(start + len) as usize];
        match self.buffers[index].restore(span.to_range()) {
            Ok(()) => {
                assert!(!held);
                for cell in cells.iter_mut().filter(|cell| cell.poisoned) {
                    assert!(cell.committed.is_some(), "there is nothing to restore");
                    cell.poisoned = false;
                }
            }
            Err(AcquireError::Busy { .. }) => assert!(held),
            Err(AcquireError::NotRestorable { .. }) => assert!(cells.iter().any(|cell| cell.poisoned)),
            Err(other) => panic!("{other}"),
        }
    }

    /// Everything is given back; every byte that can be read is read in every arena; nothing is left.
    fn finish(mut self) {
        for held in std::mem::take(&mut self.held) {
            self.release(held, End::Done, 0);
        }
        for (index, buffer) in self.buffers.iter().enumerate() {
            for at in 0..LEN {
                let cell = self.cells[index][at as usize];
                let arena = self.arena(at as usize);
                let read = self.platform.acquire_in(arena).read(&buffer.range(at..at + 1)).try_now();
                match cell {
                    Cell { poisoned: true, .. } => {
                        assert!(matches!(read, Err(AcquireError::Poisoned { .. })))
                    }
                    Cell { committed: None, .. } => {
                        assert!(matches!(read, Err(AcquireError::Uninitialized { .. })));
                    }
                    Cell { committed: Some(value), .. } => {
                        assert_eq!(
                            get(&read.unwrap(), buffer, at..at + 1),
                            [value],
                            "b{index} byte {at} in {arena}"
                        );
                    }
                }
            }
        }
        let platform = self.platform.clone();
        drop(self);
        assert_eq!(live_blocks(&platform), 0);
    }
}

fn run(platform: Audited, zeroed: bool, ops: &[Op]) {
    let mut world = World::new(platform, zeroed);
    for op in ops {
        world.step(op);
    }
    world.finish();
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..60)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

/// One gpu shares the host's storage or the host shares the gpu's, another gpu is joined by copies.
fn bound(concurrency: Concurrency) -> Audited {
    Rig::new()
        .gpu(concurrency)
        .gpu(Concurrency::Exclusive)
        .bound(MAIN_ARENA, GPU_ARENA, concurrency)
        .staged(MAIN_ARENA, GPU_ARENA)
        .staged(MAIN_ARENA, GPU2_ARENA)
        .build()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn i02_staged_copies(ops in ops(), zeroed: bool) {
        run(star(), zeroed, &ops);
    }

    #[test]
    fn i02_mapped_copies(ops in ops(), zeroed: bool) {
        let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead).gpu(Concurrency::BimapFull);
        run(rig.mapped(GPU_ARENA).mapped(GPU2_ARENA).mapped(GPU3_ARENA).build(), zeroed, &ops);
    }

    #[test]
    fn i02_every_way_at_once(ops in ops(), zeroed: bool) {
        let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead);
        let rig = rig.mapped(GPU_ARENA).mapped(GPU2_ARENA).staged(MAIN_ARENA, GPU_ARENA).one_way(GPU_ARENA, GPU2_ARENA);
        run(rig.build(), zeroed, &ops);
    }

    #[test]
    fn i11_bound_exclusive(ops in ops(), zeroed: bool) {
        run(bound(Concurrency::Exclusive), zeroed, &ops);
    }

    #[test]
    fn i11_bound_for_reading(ops in ops(), zeroed: bool) {
        run(bound(Concurrency::BimapRead), zeroed, &ops);
    }

    #[test]
    fn i11_bound_coherently(ops in ops(), zeroed: bool) {
        run(bound(Concurrency::BimapFull), zeroed, &ops);
    }

    #[test]
    fn i10_two_gpus_bound_to_main_memory(ops in ops(), zeroed: bool) {
        let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::Exclusive);
        let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).staged(MAIN_ARENA, GPU_ARENA);
        let rig = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::Exclusive).staged(MAIN_ARENA, GPU2_ARENA);
        run(rig.build(), zeroed, &ops);
    }
}

#[test]
fn the_host_is_device_zero() {
    assert_eq!(star().host(), Some(CPU));
}
