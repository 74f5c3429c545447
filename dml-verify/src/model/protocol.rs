//! A model of several buffers acquired at once, in one order (hold and wait).

use super::Explain;
use crate::machine::{Asked, Machine, request};
use dml_core::internal::state::{Execution, Initial, Outcome, Routes, Status};
use dml_core::{Access, ArenaId, Claim, Claims, OwnerId, Platform, Span, Ticket};
use stateright::{Model, Property};

/// A part of what a kernel acquires.
#[derive(Clone, Debug)]
pub struct Want {
    /// The buffer, by its place in the canonical order.
    pub buffer: usize,
    /// The arena of the kernel.
    pub arena: ArenaId,
    /// The bytes, with their accesses.
    pub claims: Vec<(Span, Access)>,
}

impl Want {
    /// Makes a want for one range of a buffer.
    #[must_use]
    pub fn new(buffer: usize, arena: ArenaId, span: Span, access: Access) -> Self {
        Self { buffer, arena, claims: vec![(span, access)] }
    }
}

/// The order in which a kernel acquires what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By buffer, with all ranges of one buffer at once, as DML does.
    Canonical,
    /// In the order named, each range separately. This order can deadlock, and the model must find that.
    AsNamed,
}

/// Buffers and kernels, each of which acquires one of several lists of wants, runs, and releases them in
/// reverse.
#[derive(Debug)]
pub struct ProtocolModel {
    /// The platform, with its arenas and links.
    pub platform: Platform,
    /// The number of buffers.
    pub buffers: usize,
    /// The length of each buffer, in bytes.
    pub len: u64,
    /// The lists that each kernel may acquire.
    pub kernels: Vec<Vec<Vec<Want>>>,
    /// The order in which kernels acquire.
    pub order: Order,
    /// Whether an acquire may be given up while it waits.
    pub cancels: bool,
    /// Whether plans may fail. The acquire then gives back what it has.
    pub faults: bool,
}

/// The progress of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kernel {
    /// The list that the kernel works on, if any.
    list: Option<usize>,
    /// The number of steps granted.
    granted: usize,
    /// Set while the kernel gives back what it has: how its grants end.
    leaving: Option<Outcome>,
}

/// The machines of all buffers, and the progress of all kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    buffers: Vec<Machine>,
    kernels: Vec<Kernel>,
}

/// One transition of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A kernel begins to acquire one of its lists.
    Begin(usize, usize),
    /// A kernel asks for its next buffer, and waits if it cannot have access now.
    Ask(usize),
    /// A plan on a buffer takes its next step.
    Advance(usize, OwnerId),
    /// The next step of a plan fails.
    Fail(usize, OwnerId),
    /// A waiting kernel gives up.
    Cancel(usize),
    /// A kernel that has everything, or has given up, releases the last buffer that it holds.
    Release(usize),
}

impl ProtocolModel {
    /// The steps of a kernel's list, in the order in which they are taken.
    fn steps(&self, kernel: usize, list: usize) -> Vec<Want> {
        let wants = &self.kernels[kernel][list];
        match self.order {
            Order::AsNamed => wants.clone(),
            Order::Canonical => {
                let mut steps: Vec<Want> = Vec::new();
                for want in wants {
                    match steps.iter_mut().find(|step| step.buffer == want.buffer) {
                        Some(step) => step.claims.extend(&want.claims),
                        None => steps.push(want.clone()),
                    }
                }
                steps.sort_by_key(|step| step.buffer);
                steps
            }
        }
    }

    /// Returns the grant of a kernel's step, which is the same each time, so that states repeat.
    fn grant(kernel: usize, step: usize) -> OwnerId {
        OwnerId((kernel * 10 + step) as u64 + 1)
    }

    fn routes(&self) -> &dyn Routes {
        self.platform.routes()
    }

    /// Returns the step at which a kernel acquires, if it does, and whether it has asked for that step.
    fn at(&self, world: &World, kernel: usize) -> Option<(Want, OwnerId, bool)> {
        let Kernel { list, granted, leaving } = world.kernels[kernel];
        let list = list.filter(|_| leaving.is_none())?;
        let want = self.steps(kernel, list).get(granted)?.clone();
        let (grant, machine) = (Self::grant(kernel, granted), &world.buffers[want.buffer]);
        let asked = machine.is_waiting(grant) || machine.running().any(|running| running.owner() == grant);
        Some((want, grant, asked))
    }

    /// Follows the steps under way: a kernel whose plan is complete has one more buffer, and one whose plan
    /// failed leaves.
    fn follow(&self, world: &mut World, engaged: &[Option<(Want, OwnerId)>]) {
        for (kernel, was) in engaged.iter().enumerate() {
            let Some((want, grant)) = was else { continue };
            let machine = &world.buffers[want.buffer];
            if machine.holding().any(|holding| holding == *grant) {
                world.kernels[kernel].granted += 1;
            } else if !machine.is_waiting(*grant)
                && machine.running().all(|running| running.owner() != *grant)
            {
                Self::leave(&mut world.kernels[kernel], Outcome::NotStarted);
            }
        }
    }

    fn leave(kernel: &mut Kernel, outcome: Outcome) {
        kernel.leaving = Some(outcome);
        if kernel.granted == 0 {
            *kernel = Kernel { list: None, granted: 0, leaving: None };
        }
    }

    /// Returns whether a kernel has everything that it asked for.
    fn has_all(&self, world: &World, kernel: usize) -> bool {
        let Kernel { list, granted, leaving } = world.kernels[kernel];
        list.is_some_and(|list| leaving.is_none() && granted == self.steps(kernel, list).len())
    }

    /// Returns whether every active kernel waits for another active kernel.
    fn is_deadlocked(&self, world: &World) -> bool {
        let mut engaged =
            (0..self.kernels.len()).filter(|&kernel| world.kernels[kernel].list.is_some()).peekable();
        engaged.peek().is_some()
            && world.buffers.iter().all(|machine| machine.running().len() == 0)
            && engaged.all(|kernel| {
                let waits = self
                    .at(world, kernel)
                    .map(|(want, grant, _)| world.buffers[want.buffer].is_waiting(grant));
                waits == Some(true)
            })
    }
}

impl Model for ProtocolModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let machine = Machine::new(self.routes(), self.len, Initial::Zeroed);
        let kernel = Kernel { list: None, granted: 0, leaving: None };
        vec![World { buffers: vec![machine; self.buffers], kernels: vec![kernel; self.kernels.len()] }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (kernel, lists) in self.kernels.iter().enumerate() {
            if world.kernels[kernel].list.is_none() {
                actions.extend((0..lists.len()).map(|list| Action::Begin(kernel, list)));
            }
            match self.at(world, kernel) {
                Some((_, _, false)) => actions.push(Action::Ask(kernel)),
                Some((want, grant, true)) if self.cancels && world.buffers[want.buffer].is_waiting(grant) => {
                    actions.push(Action::Cancel(kernel));
                }
                _ => {}
            }
            if world.kernels[kernel].leaving.is_some() || self.has_all(world, kernel) {
                actions.push(Action::Release(kernel));
            }
        }
        for (buffer, machine) in world.buffers.iter().enumerate() {
            for owner in machine.running().map(Execution::owner) {
                actions.push(Action::Advance(buffer, owner));
                if self.faults && machine.failures(owner) > 0 {
                    actions.push(Action::Fail(buffer, owner));
                }
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let (routes, mut next) = (self.routes(), world.clone());
        let engaged: Vec<_> = (0..self.kernels.len())
            .map(|kernel| {
                self.at(world, kernel).filter(|(.., asked)| *asked).map(|(want, grant, _)| (want, grant))
            })
            .collect();
        match action {
            Action::Begin(kernel, list) => next.kernels[kernel].list = Some(list),
            Action::Ask(kernel) => {
                let (want, grant, _) = self.at(world, kernel)?;
                let machine = &mut next.buffers[want.buffer];
                let claims = Claims::new(want.claims.iter().map(|&(span, access)| Claim { span, access }));
                let ticket = Ticket(machine.state().queue().len() as u64 + 1);
                match machine.ask(routes, request(grant, want.arena, claims), Some(ticket)) {
                    Asked::Granted => next.kernels[kernel].granted += 1,
                    Asked::Running | Asked::Queued => {}
                    Asked::Busy | Asked::Refused(_) => {
                        Self::leave(&mut next.kernels[kernel], Outcome::NotStarted)
                    }
                }
            }
            Action::Advance(buffer, owner) => {
                let _ = next.buffers[buffer].advance(routes, owner, 0);
            }
            Action::Fail(buffer, owner) => next.buffers[buffer].fail(routes, owner, 0),
            Action::Cancel(kernel) => {
                let (want, grant, _) = self.at(world, kernel)?;
                let machine = &mut next.buffers[want.buffer];
                let waiting = machine.state().queue().find(|waiting| waiting.request.grant == grant)?;
                let ticket = waiting.ticket;
                machine.cancel(routes, ticket);
            }
            Action::Release(kernel) => {
                let list = world.kernels[kernel].list?;
                let last = world.kernels[kernel].granted.checked_sub(1)?;
                let step = &self.steps(kernel, list)[last];
                // An acquire that is given up never began to use what it has.
                let outcome = world.kernels[kernel].leaving.unwrap_or(Outcome::Done);
                next.buffers[step.buffer].release(routes, Self::grant(kernel, last), outcome);
                next.kernels[kernel].granted = last;
                Self::leave(&mut next.kernels[kernel], outcome);
            }
        }
        self.follow(&mut next, &engaged);
        for machine in &mut next.buffers {
            *machine = machine.clone().canonical();
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the specification holds", |model: &Self, world: &World| {
                world.buffers.iter().all(|machine| machine.check(model.routes()).is_ok())
            }),
            Property::always("L-1: nobody is deadlocked", |model: &Self, world: &World| {
                !model.is_deadlocked(world)
            }),
            Property::sometimes("two kernels have everything at once", |model: &Self, world: &World| {
                (0..model.kernels.len()).filter(|&kernel| model.has_all(world, kernel)).count() > 1
            }),
            Property::sometimes("every buffer is written", |_: &Self, world: &World| {
                let written = |machine: &Machine| {
                    machine.state().segments().iter().any(|(_, content)| content.status == Status::Defined)
                };
                world.buffers.iter().all(written)
            }),
            Property::sometimes("one holds while it waits", |model: &Self, world: &World| {
                (0..model.kernels.len()).any(|kernel| {
                    let waits = |(want, grant, _): (Want, OwnerId, bool)| {
                        world.buffers[want.buffer].is_waiting(grant)
                    };
                    world.kernels[kernel].granted > 0 && model.at(world, kernel).is_some_and(waits)
                })
            }),
        ]
    }
}

impl Explain for ProtocolModel {
    fn explain(&self, world: &World) -> Option<String> {
        world.buffers.iter().find_map(|machine| machine.check(self.routes()).err())
    }
}
