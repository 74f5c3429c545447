//! The pure machine, with the steps of several plans interleaved at random.
//!
//! `random.rs` carries every operation out before the next one begins. Here each step of each plan (storage, map state,
//! copy begun, copy done, finish) is an operation by itself, and requests, releases, bindings, frees and lost devices come
//! in between. What the engine relies on holds at every step, every state invariant holds after every one, and in the end
//! nobody is left waiting.

#![cfg(not(dml_loom))]

use dml::core::state::{
    Admission, Begin, BufferState, CopyKind, CopyOp, Initial, Lifecycle, MapState, Outcome, Refusal, Request,
    Step, SyncPlan,
};
use dml::core::{
    Access, Allocation, ArenaId, Claim, Concurrency, GrantId, KernelId, Platform, Span, Ticket, normalise,
};
use dml_verify::{GPU_ARENA, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig, star};
use proptest::prelude::*;
use std::collections::VecDeque;

const LEN: u64 = 12;

#[derive(Clone, Debug)]
enum Op {
    Ask { arena: u8, span: Span, access: Access, waits: bool },
    Advance { which: usize },
    Fail { which: usize },
    Release { which: usize, outcome: Outcome },
    Downgrade { which: usize },
    Prefetch { arena: u8, span: Span },
    Cancel { which: usize },
    Restore,
    Bind { arena: u8, root: u8 },
    Free { arena: u8 },
    Lose { device: u8 },
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Kernel,
    Prefetch,
    Binding,
}

/// A plan half way.
#[derive(Debug)]
struct Running {
    plan: SyncPlan,
    purpose: Purpose,
    next: usize,
    copies: VecDeque<CopyOp>,
}

struct Machine {
    platform: Platform,
    state: BufferState,
    running: Vec<Running>,
    granted: Vec<GrantId>,
    next: u64,
    tickets: u64,
}

impl Machine {
    fn new(platform: Platform, zeroed: bool) -> Self {
        let initial = if zeroed { Initial::Zeroed } else { Initial::Undefined };
        let state = BufferState::new(platform.routes(), LEN, initial);
        Self { platform, state, running: Vec::new(), granted: Vec::new(), next: 0, tickets: 0 }
    }

    fn arena(&self, index: u8) -> ArenaId {
        ArenaId(index % self.platform.arenas().len() as u8)
    }

    fn grant(&mut self) -> GrantId {
        self.next += 1;
        GrantId(self.next)
    }

    fn step(&mut self, op: &Op) {
        let routes = self.platform.routes();
        match *op {
            Op::Ask { arena, span, access, waits } => self.ask(arena, span, access, waits),
            Op::Advance { which } if !self.running.is_empty() => self.advance(which % self.running.len()),
            Op::Fail { which } if !self.running.is_empty() => {
                // The engine waits for what it has begun; then the plan is given up.
                let mut failed = self.running.swap_remove(which % self.running.len());
                failed.copies.pop_front();
                failed.copies.iter().for_each(|copy| self.state.copied(routes, copy.id));
                self.state.abort(routes, failed.plan.owner);
            }
            Op::Release { which, outcome } if !self.granted.is_empty() => {
                let grant = self.granted.swap_remove(which % self.granted.len());
                if self.state.release(routes, grant, outcome) == Err(Refusal::NotClean) {
                    let _ = self.state.release(routes, grant, Outcome::Failed).expect("it is there");
                }
            }
            Op::Downgrade { which } if !self.granted.is_empty() => {
                let grant = self.granted[which % self.granted.len()];
                let _ = self.state.downgrade(routes, grant);
            }
            Op::Prefetch { arena, span } => {
                let (owner, arena) = (self.grant(), self.arena(arena));
                if let Begin::Plan(plan) = self.state.prefetch(self.platform.routes(), owner, arena, span) {
                    self.run(plan, Purpose::Prefetch);
                }
            }
            Op::Cancel { which } => {
                let waiting: Vec<_> = self.state.queue().map(|waiting| waiting.ticket).collect();
                if !waiting.is_empty() {
                    assert!(self.state.cancel(waiting[which % waiting.len()]));
                }
            }
            Op::Restore => {
                let _ = self.state.restore(Span::new(0, LEN));
            }
            Op::Bind { arena, root } => self.bind(self.arena(arena), self.arena(root)),
            Op::Free { arena } => {
                let _ = self.state.free(routes, self.arena(arena));
            }
            Op::Lose { device } => {
                let device = self.platform.arena(self.arena(device)).desc().native;
                self.state.device_lost(routes, device);
            }
            Op::Close => self.state.close(routes).into_iter().for_each(|admission| self.admit(admission)),
            _ => {}
        }
        self.settle();
    }

    /// What follows every change, as in `buffer.rs`.
    fn settle(&mut self) {
        let admitted = self.state.pump(self.platform.routes());
        admitted.into_iter().for_each(|admission| self.admit(admission));
        if let Err(violation) = self.state.check_invariants(self.platform.routes()) {
            panic!("{violation}\n{:#?}\n{:#?}", self.state, self.running);
        }
        assert_ne!(self.state.lifecycle(), Lifecycle::Wedged, "no arena breaks its contract here");
    }

    fn ask(&mut self, arena: u8, span: Span, access: Access, waits: bool) {
        let grant = self.grant();
        let claims = normalise([Claim { span, access }]);
        let request = Request { kernel: KernelId(grant.0), grant, arena: self.arena(arena), claims };
        match self.state.begin(self.platform.routes(), &request) {
            Begin::Busy { .. } if waits => {
                self.tickets += 1;
                self.state.enqueue(Ticket(self.tickets), request);
            }
            begin => self.begun(grant, begin),
        }
    }

    fn admit(&mut self, admission: Admission) {
        self.begun(admission.request.grant, admission.begin);
    }

    fn begun(&mut self, grant: GrantId, begin: Begin) {
        match begin {
            Begin::Granted(_) => self.granted.push(grant),
            Begin::Plan(plan) => self.run(plan, Purpose::Kernel),
            Begin::Busy { .. } | Begin::Refused(_) => {}
        }
    }

    fn run(&mut self, plan: SyncPlan, purpose: Purpose) {
        self.running.push(Running { plan, purpose, next: 0, copies: VecDeque::new() });
    }

    fn bind(&mut self, arena: ArenaId, root: ArenaId) {
        let concurrency = self.platform.links().iter().find_map(|link| match link.allocation {
            Allocation::Bound(concurrency) if (link.from, link.to) == (root, arena) => Some(concurrency),
            _ => None,
        });
        let Some(concurrency) = concurrency else { return };
        let owner = self.grant();
        if let Ok(plan) = self.state.bind(owner, arena, root, concurrency) {
            self.run(plan, Purpose::Binding);
        }
    }

    /// The next thing the engine would do for a plan.
    fn advance(&mut self, index: usize) {
        let platform = self.platform.clone();
        let routes = platform.routes();
        let Running { plan, purpose, next, copies } = &mut self.running[index];
        let (owner, step) = (plan.owner, plan.steps.get(*next).copied());
        let must_wait = match step {
            // Who may use a storage beside whom changes with these: what is under way ends first.
            None | Some(Step::Map { .. } | Step::Bind { .. }) => true,
            Some(Step::Copy(copy)) => copies.iter().any(|begun| Some(begun.to) == copy.from()),
            Some(_) => false,
        };
        if must_wait && let Some(copy) = copies.pop_front() {
            self.state.copied(routes, copy.id);
            return;
        }
        *next += 1;
        match step {
            Some(Step::Allocate { arena }) => {
                assert!(!self.state.arena(arena).alloc.is_allocated(), "{arena} has storage already");
                self.state.allocated(arena);
            }
            Some(Step::Bind { arena, root, concurrency }) => {
                assert!(!self.state.arena(arena).alloc.is_allocated(), "{arena} has storage already");
                assert!(self.state.arena(root).alloc.is_allocated(), "{root} has no storage");
                self.state.bound(routes, arena, root, concurrency);
            }
            Some(Step::Map { arena, device, target }) => {
                assert!(self.state.arena(arena).alloc.is_allocated(), "{arena} has no storage");
                // An honest arena: it is asked for nothing it has already, and reports what it was asked for.
                assert_ne!(self.state.arena(arena).map, target, "{arena} is mapped so already");
                let asked = (arena, device, target);
                assert_eq!(self.state.mapped(routes, owner, asked, target), Ok(()), "{asked:?}");
            }
            Some(Step::Copy(copy)) => {
                for end in copy.from().into_iter().chain([copy.to]) {
                    assert!(self.state.arena(end).alloc.is_allocated(), "{end} has no storage (I-5)");
                }
                self.state.started(copy.id);
                match copy.kind {
                    CopyKind::Refresh { .. } => self.state.copied(routes, copy.id),
                    _ => copies.push_back(copy),
                }
            }
            None => {
                let purpose = *purpose;
                self.running.swap_remove(index);
                match purpose {
                    Purpose::Kernel => {
                        if self.state.finish(routes, owner).is_ok() {
                            self.granted.push(owner);
                        }
                    }
                    Purpose::Prefetch | Purpose::Binding => self.state.finish_prefetch(routes, owner),
                }
            }
        }
    }

    /// Everything under way comes to its end; nobody is left.
    fn finish(mut self) {
        for _ in 0..10_000 {
            if !self.running.is_empty() {
                self.advance(0);
            } else if let Some(grant) = self.granted.pop() {
                let ended = self.state.release(self.platform.routes(), grant, Outcome::NotStarted);
                assert!(ended.is_ok(), "{ended:?}");
            } else {
                break;
            }
            self.settle();
        }
        assert!(self.state.is_idle() && self.state.queue().len() == 0, "{:#?}", self.state);
        let _ = self.state.close(self.platform.routes());
        assert_eq!(self.state.lifecycle(), Lifecycle::Closed);
        self.state.check_invariants(self.platform.routes()).expect("closed with nothing left");
    }
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::new(0, LEN)),
        (0..LEN, 1..7u64).prop_map(|(at, len)| Span::new(at, (at + len).min(LEN)))
    ]
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![4 => Just(Access::ReadOnly), 2 => Just(Access::WriteInvalidate), 2 => Just(Access::ReadWrite)]
}

fn op(binds: u32, loses: u32) -> impl Strategy<Value = Op> {
    let outcome = prop_oneof![
        4 => Just(Outcome::Done),
        1 => Just(Outcome::NotStarted),
        1 => Just(Outcome::Clean),
        1 => Just(Outcome::Failed)
    ];
    prop_oneof![
        12 => (0..4u8, span(), access(), any::<bool>())
            .prop_map(|(arena, span, access, waits)| Op::Ask { arena, span, access, waits }),
        24 => (0..6usize).prop_map(|which| Op::Advance { which }),
        1 => (0..6usize).prop_map(|which| Op::Fail { which }),
        8 => (0..6usize, outcome).prop_map(|(which, outcome)| Op::Release { which, outcome }),
        1 => (0..6usize).prop_map(|which| Op::Downgrade { which }),
        3 => (0..4u8, span()).prop_map(|(arena, span)| Op::Prefetch { arena, span }),
        1 => (0..6usize).prop_map(|which| Op::Cancel { which }),
        1 => Just(Op::Restore),
        binds.max(1) => (0..4u8, 0..4u8)
            .prop_map(move |(arena, root)| if binds > 0 { Op::Bind { arena, root } } else { Op::Restore }),
        2 => (0..4u8).prop_map(|arena| Op::Free { arena }),
        loses.max(1) => (0..4u8)
            .prop_map(move |device| if loses > 0 { Op::Lose { device } } else { Op::Restore }),
        1 => prop::bool::weighted(0.1).prop_map(|closes| if closes { Op::Close } else { Op::Restore }),
    ]
}

fn ops(binds: u32, loses: u32) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(binds, loses), 1..90)
}

fn run(platform: Platform, zeroed: bool, ops: &[Op]) {
    let mut machine = Machine::new(platform, zeroed);
    ops.iter().for_each(|op| machine.step(op));
    machine.finish();
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() }
}

fn every_way() -> Platform {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead).gpu(Concurrency::BimapFull);
    rig.mapped(GPU_ARENA).mapped(GPU2_ARENA).staged(MAIN_ARENA, GPU_ARENA).mapped(GPU3_ARENA).plain()
}

fn bound(concurrency: Concurrency) -> Platform {
    let rig = Rig::new().gpu(concurrency).gpu(Concurrency::Exclusive);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, concurrency).staged(MAIN_ARENA, GPU_ARENA);
    rig.staged(MAIN_ARENA, GPU2_ARENA).plain()
}

/// Two gpus that can share main memory's storage, each under rules of its own.
fn two_members() -> Platform {
    let rig = Rig::new().gpu(Concurrency::BimapRead).gpu(Concurrency::Exclusive).gpu(Concurrency::BimapFull);
    let rig = rig.bound(MAIN_ARENA, GPU_ARENA, Concurrency::BimapRead).staged(MAIN_ARENA, GPU_ARENA);
    let rig = rig.bound(MAIN_ARENA, GPU2_ARENA, Concurrency::Exclusive).mapped(GPU2_ARENA);
    rig.bound(MAIN_ARENA, GPU3_ARENA, Concurrency::BimapFull).plain()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn i01_staged_copies_step_by_step(ops in ops(0, 0), zeroed: bool) {
        run(star().clone(), zeroed, &ops);
    }

    #[test]
    fn i07_mapped_copies_step_by_step(ops in ops(0, 0), zeroed: bool) {
        run(every_way(), zeroed, &ops);
    }

    #[test]
    fn i11_bindings_exclusive_step_by_step(ops in ops(3, 0), zeroed: bool) {
        run(bound(Concurrency::Exclusive), zeroed, &ops);
    }

    #[test]
    fn i11_bindings_for_reading_step_by_step(ops in ops(3, 0), zeroed: bool) {
        run(bound(Concurrency::BimapRead), zeroed, &ops);
    }

    #[test]
    fn i11_coherent_bindings_step_by_step(ops in ops(3, 0), zeroed: bool) {
        run(bound(Concurrency::BimapFull), zeroed, &ops);
    }

    #[test]
    fn i13_staged_copies_and_lost_devices(ops in ops(0, 1), zeroed: bool) {
        run(star().clone(), zeroed, &ops);
    }

    #[test]
    fn i13_mapped_copies_and_lost_devices(ops in ops(0, 1), zeroed: bool) {
        run(every_way(), zeroed, &ops);
    }

    #[test]
    fn i10_two_members_step_by_step(ops in ops(4, 0), zeroed: bool) {
        run(two_members(), zeroed, &ops);
    }

    #[test]
    fn i13_two_members_and_lost_devices(ops in ops(4, 1), zeroed: bool) {
        run(two_members(), zeroed, &ops);
    }

    #[test]
    fn i13_bindings_exclusive_and_lost_devices(ops in ops(3, 1), zeroed: bool) {
        run(bound(Concurrency::Exclusive), zeroed, &ops);
    }

    #[test]
    fn i13_bindings_for_reading_and_lost_devices(ops in ops(3, 1), zeroed: bool) {
        run(bound(Concurrency::BimapRead), zeroed, &ops);
    }

    #[test]
    fn i13_coherent_bindings_and_lost_devices(ops in ops(3, 1), zeroed: bool) {
        run(bound(Concurrency::BimapFull), zeroed, &ops);
    }
}

#[test]
fn a_fresh_arena_is_in_its_first_state() {
    // What the machine above takes for granted of `MapState`.
    let platform = every_way();
    for arena in platform.arenas() {
        let first = MapState::initial(arena.desc());
        assert!(first.is_well_formed(arena.desc()) && first.gives(arena.desc(), arena.desc().native));
    }
}
