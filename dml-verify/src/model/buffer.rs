//! A model of one buffer and a few kernels.

use super::Explain;
use crate::machine::{Machine, Served, request};
use dml_core::internal::state::{
    Alloc, CopyKind, CopyPhase, Execution, Initial, Outcome, Purpose, Remains, Status,
};
use dml_core::{Access, ArenaId, Claim, Claims, DeviceId, OwnerId, Platform, Span, Ticket};
use stateright::{Model, Property};
use std::collections::BTreeSet;

/// A request that a kernel may make: all its claims at once.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The arena of the kernel.
    pub arena: ArenaId,
    /// The bytes, with their accesses.
    pub claims: Vec<(Span, Access)>,
    /// Whether the kernel runs on the stream of its arena.
    pub is_submission: bool,
}

impl Wish {
    /// Makes a wish for one range.
    #[must_use]
    pub fn new(arena: ArenaId, span: Span, access: Access) -> Self {
        Self { arena, claims: vec![(span, access)], is_submission: false }
    }

    /// Makes the wish one of a submission.
    #[must_use]
    pub fn submitted(self) -> Self {
        Self { is_submission: true, ..self }
    }
}

/// Situations that must be reachable, so that an over-cautious machine fails too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is its own sentence")]
pub enum Happens {
    TwoDisjointWritersAtOnce,
    TwoReadersInDifferentArenasAtOnce,
    AReaderBesideACopy,
    AReaderBesideAPrefetch,
    TwoCopiesToDifferentArenasAtOnce,
    TwoCopiesOfOnePlanAtOnce,
    ALaterCopyBesideTheFirstOfAPath,
    APathOfTwoHops,
    APathOfThreeHops,
    AMemberBoundToMainMemory,
    MainMemoryBoundToADevice,
    TwoUsersOfOneStorageAtOnce,
    PoisonedAndRestorable,
    PoisonedForGood,
    SomebodyWaits,
    TwoWait,
    ValidInEveryArena,
    AReaderBehindAWriterOnAStream,
    AWriterBehindAWriterOnAStream,
    ASubmissionBehindAFailure,
}

/// One buffer with kernels that ask, run, fail and give up repeatedly.
#[derive(Debug)]
pub struct BufferModel {
    /// The platform, with its arenas and links.
    pub platform: Platform,
    /// The length of the buffer, in bytes.
    pub len: u64,
    /// Whether the buffer begins as zeros.
    pub zeroed: bool,
    /// The wishes of each kernel.
    pub kernels: Vec<Vec<Wish>>,
    /// The outcomes with which kernels may end.
    pub outcomes: Vec<Outcome>,
    /// The spans that may be prefetched, each with its arena.
    pub prefetches: Vec<(ArenaId, Span)>,
    /// Whether allocations, map changes and copies may fail.
    pub faults: bool,
    /// Whether arenas may break their contract.
    pub breaks: bool,
    /// Whether a request may be given up while its plan is under way.
    pub gives_up: bool,
    /// Whether waiting requests may be given up.
    pub cancels: bool,
    /// Whether writers may be downgraded to readers.
    pub downgrades: bool,
    /// The spans that may be restored.
    pub restores: Vec<Span>,
    /// The arenas that may be bound to others, in addition to the bindings that plans make.
    pub binds: Vec<(ArenaId, ArenaId)>,
    /// The arenas whose storage may be freed.
    pub frees: Vec<ArenaId>,
    /// The devices that may be lost.
    pub losses: Vec<DeviceId>,
    /// Whether the buffer may be closed at any time.
    pub closes: bool,
    /// The situations that must be reachable.
    pub happens: Vec<Happens>,
    /// The states from which everyone is known to be served. It is empty at first, and the exploration fills
    /// it.
    pub served: Served,
}

/// One transition of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A kernel asks for one of its wishes, and waits if it cannot have access now.
    Ask(usize, usize),
    /// A plan takes its next step; of the copies that it waits for, the one with this number ends.
    Advance(OwnerId, usize),
    /// A step that has begun fails.
    Fail(OwnerId, usize),
    /// A step that has begun fails because an arena breaks its contract.
    Break(OwnerId, usize),
    /// The owner of a plan gives the plan up.
    GiveUp(OwnerId),
    /// A kernel ends.
    Release(OwnerId, Outcome),
    /// The kernel of a submission starts on the stream of its arena.
    Launch(OwnerId),
    /// The first kernel on the stream of an arena ends, or fails with all behind it.
    EndFirst(ArenaId, bool),
    /// A writer is downgraded to a reader.
    Downgrade(OwnerId),
    /// A waiting request is given up.
    Cancel(Ticket),
    /// Bytes are prefetched.
    Prefetch(ArenaId, Span),
    /// Poisoned bytes are restored.
    Restore(Span),
    /// An arena is bound to another's storage.
    Bind(ArenaId, ArenaId),
    /// Storage is freed.
    Free(ArenaId),
    /// A device is lost.
    Lose(DeviceId),
    /// The buffer is closed.
    Close,
}

/// The grants that stand for the owner of a prefetch and of a binding; no kernel has them.
const PREFETCH: OwnerId = OwnerId(100);
const BINDING: OwnerId = OwnerId(101);

impl BufferModel {
    /// Makes a model in which nothing fails.
    #[must_use]
    pub fn new(platform: Platform, len: u64, kernels: Vec<Vec<Wish>>) -> Self {
        Self {
            platform,
            len,
            zeroed: false,
            kernels,
            outcomes: vec![Outcome::Done],
            prefetches: Vec::new(),
            faults: false,
            breaks: false,
            gives_up: false,
            cancels: false,
            downgrades: false,
            restores: Vec::new(),
            binds: Vec::new(),
            frees: Vec::new(),
            losses: Vec::new(),
            closes: false,
            happens: Vec::new(),
            served: Served::default(),
        }
    }

    fn is_idle(machine: &Machine, owner: OwnerId) -> bool {
        !machine.is_waiting(owner)
            && machine.running().all(|running| running.owner() != owner)
            && machine.holding().all(|holding| holding != owner)
    }
}

fn grant(kernel: usize) -> OwnerId {
    OwnerId(kernel as u64 + 1)
}

impl Model for BufferModel {
    type State = Machine;
    type Action = Action;

    fn init_states(&self) -> Vec<Machine> {
        let initial = if self.zeroed { Initial::Zeroed } else { Initial::Undefined };
        vec![Machine::new(self.platform.routes(), self.len, initial)]
    }

    fn actions(&self, machine: &Machine, actions: &mut Vec<Action>) {
        for (kernel, wishes) in self.kernels.iter().enumerate() {
            if Self::is_idle(machine, grant(kernel)) {
                actions.extend((0..wishes.len()).map(|wish| Action::Ask(kernel, wish)));
            }
        }
        for owner in machine.running().map(Execution::owner) {
            actions.extend((0..machine.choices(owner)).map(|which| Action::Advance(owner, which)));
            let failures = 0..machine.failures(owner);
            if self.faults {
                actions.extend(failures.clone().map(|which| Action::Fail(owner, which)));
            }
            if self.gives_up {
                actions.push(Action::GiveUp(owner));
            }
            if self.breaks {
                actions.extend(failures.map(|which| Action::Break(owner, which)));
            }
        }
        let streams: BTreeSet<_> = machine.launched().map(|grant| machine.arena_of(grant)).collect();
        for arena in streams {
            actions.push(Action::EndFirst(arena, false));
            if self.outcomes.contains(&Outcome::Failed) {
                actions.push(Action::EndFirst(arena, true));
            }
        }
        for holding in machine.holding() {
            if machine.is_submission(holding) {
                if machine.can_launch(holding) {
                    actions.push(Action::Launch(holding));
                }
                if machine.launched().all(|launched| launched != holding) {
                    actions.push(Action::Release(holding, Outcome::NotStarted));
                }
                continue;
            }
            // The outcome of a reader makes no difference.
            let ways = if machine.writes(holding) { &*self.outcomes } else { &[Outcome::Done] };
            actions.extend(ways.iter().map(|&outcome| Action::Release(holding, outcome)));
            if self.downgrades && machine.writes(holding) {
                actions.push(Action::Downgrade(holding));
            }
        }
        if self.cancels {
            actions.extend(machine.state().queue().map(|waiting| Action::Cancel(waiting.ticket)));
        }
        if Self::is_idle(machine, PREFETCH) {
            actions.extend(self.prefetches.iter().map(|&(arena, span)| Action::Prefetch(arena, span)));
        }
        if Self::is_idle(machine, BINDING) {
            actions.extend(self.binds.iter().map(|&(arena, root)| Action::Bind(arena, root)));
        }
        actions.extend(self.restores.iter().map(|&span| Action::Restore(span)));
        actions.extend(self.frees.iter().map(|&arena| Action::Free(arena)));
        actions.extend(self.losses.iter().map(|&device| Action::Lose(device)));
        if self.closes {
            actions.push(Action::Close);
        }
    }

    fn next_state(&self, machine: &Machine, action: Action) -> Option<Machine> {
        let (routes, mut next) = (self.platform.routes(), machine.clone());
        match action {
            Action::Ask(kernel, wish) => {
                let Wish { arena, claims, is_submission } = &self.kernels[kernel][wish];
                let claims = Claims::new(claims.iter().map(|&(span, access)| Claim { span, access }));
                let ticket = Ticket(machine.state().queue().len() as u64 + 1);
                let mut request = request(grant(kernel), *arena, claims);
                request.is_submission = *is_submission;
                let _ = next.ask(routes, request, Some(ticket));
            }
            Action::Advance(owner, which) => {
                let _ = next.advance(routes, owner, which);
            }
            Action::Fail(owner, which) => next.fail(routes, owner, which),
            Action::Break(owner, which) => next.break_contract(routes, owner, which),
            Action::GiveUp(owner) => next.give_up(owner),
            Action::Release(grant, outcome) => next.release(routes, grant, outcome),
            Action::Launch(grant) => next.launch(routes, grant),
            Action::EndFirst(arena, fails) => next.end_first(routes, arena, fails),
            Action::Downgrade(grant) => next.downgrade(routes, grant),
            Action::Cancel(ticket) => {
                next.cancel(routes, ticket);
            }
            Action::Prefetch(arena, span) => {
                let _ = next.prefetch(routes, PREFETCH, arena, span);
            }
            Action::Restore(span) => {
                let _ = next.restore(routes, span);
            }
            Action::Bind(arena, root) => {
                next.bind(routes, BINDING, arena, root);
            }
            Action::Free(arena) => {
                next.free(routes, arena);
            }
            Action::Lose(device) => next.lose(routes, device),
            Action::Close => next.close(routes),
        }
        let next = next.canonical();
        (next != *machine).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("the specification holds", |model: &Self, machine: &Machine| {
                machine.check(model.platform.routes()).is_ok()
            }),
            Property::always("everyone is served if kernels end", |model: &Self, machine: &Machine| {
                model.served.everyone(machine, model.platform.routes())
            }),
        ];
        properties.extend(self.happens.iter().map(|&what| possible(what)));
        properties
    }
}

impl Explain for BufferModel {
    fn explain(&self, machine: &Machine) -> Option<String> {
        machine.check(self.platform.routes()).err()
    }
}

/// Returns whether some pair of running kernels satisfies a condition.
fn pair(
    machine: &Machine,
    holds: impl Fn(&dml_core::internal::state::Requestor, &dml_core::internal::state::Requestor) -> bool,
) -> bool {
    let entry = |grant: OwnerId| machine.state().requestors().iter().find(move |entry| entry.grant == grant);
    let entries: Vec<_> = machine.holding().filter_map(entry).collect();
    entries.iter().enumerate().any(|(index, one)| entries[..index].iter().any(|other| holds(one, other)))
}

fn copying(machine: &Machine, purpose: Purpose) -> bool {
    machine.running().any(|running| running.purpose() == purpose && running.under_way().len() > 0)
}

/// Returns the length of the longest chain of copies of one plan, where each copy starts at the target of the
/// one before.
fn hops(machine: &Machine) -> usize {
    let copies = machine.state().copies();
    let bytes = |copy: &&dml_core::internal::state::CopyOp| matches!(copy.kind, CopyKind::Bytes { .. });
    let mut longest = 0;
    for first in copies.iter().filter(bytes) {
        let (mut length, mut last) = (1, first);
        while let Some(next) = copies.iter().filter(bytes).find(|next| {
            next.id.owner == last.id.owner && next.from() == Some(last.to) && next.span.overlaps(last.span)
        }) {
            (length, last) = (length + 1, next);
        }
        longest = longest.max(length);
    }
    longest
}

fn bound(machine: &Machine, main: bool) -> bool {
    let main_memory = ArenaId(0);
    let root = |arena: ArenaId| match machine.state().arena(arena).alloc {
        Alloc::Bound { root, .. } => Some(root),
        _ => None,
    };
    // The number of arenas is small; arenas that do not exist are not bound.
    let arenas = machine.arenas();
    match main {
        true => root(main_memory).is_some(),
        false => (1..arenas).any(|arena| root(ArenaId(arena)) == Some(main_memory)),
    }
}

fn possible(what: Happens) -> Property<BufferModel> {
    type Of = BufferModel;
    match what {
        Happens::TwoDisjointWritersAtOnce => {
            Property::sometimes("two disjoint writers at once", |_: &Of, machine: &Machine| {
                pair(machine, |one, other| one.writes() && other.writes())
            })
        }
        Happens::TwoReadersInDifferentArenasAtOnce => {
            Property::sometimes("two readers in different arenas at once", |_: &Of, machine: &Machine| {
                pair(machine, |one, other| !one.writes() && !other.writes() && one.arena != other.arena)
            })
        }
        Happens::AReaderBesideACopy => {
            Property::sometimes("a reader beside a copy", |_: &Of, machine: &Machine| {
                machine.holding().len() > 0 && copying(machine, Purpose::Kernel)
            })
        }
        Happens::AReaderBesideAPrefetch => {
            Property::sometimes("a reader beside a prefetch", |_: &Of, machine: &Machine| {
                machine.holding().len() > 0 && copying(machine, Purpose::Prefetch)
            })
        }
        Happens::TwoCopiesToDifferentArenasAtOnce => {
            Property::sometimes("two copies to different arenas at once", |_: &Of, machine: &Machine| {
                let copies = machine.state().copies();
                let runs = |copy: &dml_core::internal::state::CopyOp| copy.phase == CopyPhase::Running;
                copies.iter().any(|one| {
                    copies.iter().any(|other| {
                        runs(one) && runs(other) && one.to != other.to && one.id.owner != other.id.owner
                    })
                })
            })
        }
        Happens::TwoCopiesOfOnePlanAtOnce => {
            Property::sometimes("two copies of one plan at once", |_: &Of, machine: &Machine| {
                machine.running().any(|running| running.under_way().len() > 1)
            })
        }
        Happens::ALaterCopyBesideTheFirstOfAPath => {
            Property::sometimes("a later copy beside the first of a path", |_: &Of, machine: &Machine| {
                machine.running().any(|running| {
                    let mut copies = running.under_way();
                    // The plan has a copy between the two, which waits for the first.
                    copies
                        .next()
                        .zip(copies.next())
                        .is_some_and(|(one, other)| other.id.index > one.id.index + 1)
                })
            })
        }
        Happens::APathOfTwoHops => {
            Property::sometimes("a path of two hops", |_: &Of, machine: &Machine| hops(machine) >= 2)
        }
        Happens::APathOfThreeHops => {
            Property::sometimes("a path of three hops", |_: &Of, machine: &Machine| hops(machine) >= 3)
        }
        Happens::AMemberBoundToMainMemory => {
            Property::sometimes("a member bound to main memory", |_: &Of, machine: &Machine| {
                bound(machine, false)
            })
        }
        Happens::MainMemoryBoundToADevice => {
            Property::sometimes("main memory bound to a device", |_: &Of, machine: &Machine| {
                bound(machine, true)
            })
        }
        Happens::TwoUsersOfOneStorageAtOnce => {
            Property::sometimes("two users of one storage at once", |_: &Of, machine: &Machine| {
                pair(machine, |one, other| {
                    one.arena != other.arena && machine.state().group(one.arena).contains(other.arena)
                })
            })
        }
        Happens::PoisonedAndRestorable => {
            Property::sometimes("poisoned and restorable", |_: &Of, machine: &Machine| {
                has(machine, Status::Poisoned(Remains::Committed))
            })
        }
        Happens::PoisonedForGood => Property::sometimes("poisoned for good", |_: &Of, machine: &Machine| {
            has(machine, Status::Poisoned(Remains::Lost))
        }),
        Happens::SomebodyWaits => Property::sometimes("somebody waits", |_: &Of, machine: &Machine| {
            machine.state().queue().len() > 0
        }),
        Happens::TwoWait => {
            Property::sometimes("two wait", |_: &Of, machine: &Machine| machine.state().queue().len() > 1)
        }
        Happens::AReaderBehindAWriterOnAStream => {
            Property::sometimes("a reader behind a writer on a stream", |_: &Of, machine: &Machine| {
                pair(machine, |one, other| {
                    let reads = !one.writes() && other.writes() || one.writes() && !other.writes();
                    reads && one.arena == other.arena && one.conflicts(&other.claims)
                })
            })
        }
        Happens::AWriterBehindAWriterOnAStream => {
            Property::sometimes("a writer behind a writer on a stream", |_: &Of, machine: &Machine| {
                machine.state().requestors().iter().any(|entry| entry.writes() && entry.kernels > 1)
            })
        }
        Happens::ASubmissionBehindAFailure => {
            Property::sometimes("a submission behind a failure", |_: &Of, machine: &Machine| {
                let reads_poison = |entry: &dml_core::internal::state::Requestor| {
                    let reads = entry.claims.iter().filter(|claim| claim.access.reads());
                    let waits = machine.can_launch(entry.grant);
                    waits && reads.into_iter().any(|claim| !machine.state().is_readable(claim.span))
                };
                machine.state().requestors().iter().any(reads_poison)
            })
        }
        Happens::ValidInEveryArena => {
            Property::sometimes("valid in every arena", |_: &Of, machine: &Machine| {
                let arenas = usize::from(machine.arenas());
                machine.state().segments().iter().any(|(_, content)| content.valid.len() == arenas)
            })
        }
    }
}

fn has(machine: &Machine, status: Status) -> bool {
    machine.state().segments().iter().any(|(_, content)| content.status == status)
}
