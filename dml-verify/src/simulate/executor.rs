//! An executor: one thread, many tasks, and a virtual clock.
//!
//! The seed chooses which of the ready tasks runs next. When no task is ready, the clock jumps to the next
//! timer. While a call of an arena takes time or blocks, the other tasks run ([`pass`]). So tasks meet every
//! operation half way, on one thread.

use crate::random::Random;
use dml_core::internal::sync::{Arc, Mutex};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Wake, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The deepest nesting of calls; below it, time passes without running other tasks.
const DEEPEST: u32 = 6;

/// The tasks that are ready to run.
#[derive(Debug, Default)]
struct Ready(Mutex<Vec<usize>>);

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: std::sync::Arc<Self>) {
        let mut ready = self.ready.0.lock();
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

enum Slot {
    Idle(Task),
    /// The task is being polled further up on the stack.
    Polled,
    Ended,
}

struct World {
    now_ns: Cell<u64>,
    random: RefCell<Random>,
    tasks: RefCell<Vec<Slot>>,
    ready: Arc<Ready>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    timers_made: Cell<u64>,
    depth: Cell<u32>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Rc<World> {
    WORLD.with(|world| world.borrow().clone()).expect("a simulation runs on this thread")
}

/// Runs tasks to their end.
///
/// # Panics
/// When a task panics, or no task can run before all have ended.
pub(super) fn run(seed: u64, make: impl FnOnce() -> Vec<Task>) {
    let world = Rc::new(World {
        now_ns: Cell::new(0),
        random: RefCell::new(Random::new(seed)),
        tasks: RefCell::new(Vec::new()),
        ready: Arc::default(),
        timers: RefCell::new(BTreeMap::new()),
        timers_made: Cell::new(0),
        depth: Cell::new(0),
    });
    WORLD.with(|current| *current.borrow_mut() = Some(world.clone()));
    let tasks: Vec<Slot> = make().into_iter().map(Slot::Idle).collect();
    *world.ready.0.lock() = (0..tasks.len()).collect();
    *world.tasks.borrow_mut() = tasks;
    while world.step(u64::MAX) {}
    let left = world.tasks.borrow().iter().filter(|slot| !matches!(slot, Slot::Ended)).count();
    assert_eq!(left, 0, "L-1, L-4: tasks that nobody will wake");
}

/// Ends the simulation of this thread. Without a simulation, calls of arenas take no time.
pub(super) fn leave() {
    WORLD.with(|current| *current.borrow_mut() = None);
}

impl World {
    /// Runs one task, or moves the clock, up to `until_ns`. Returns whether either was possible.
    fn step(&self, until_ns: u64) -> bool {
        let next = {
            let (mut ready, tasks) = (self.ready.0.lock(), self.tasks.borrow());
            let can: Vec<usize> =
                ready.iter().copied().filter(|&task| matches!(tasks[task], Slot::Idle(_))).collect();
            let which = (!can.is_empty()).then(|| self.random.borrow_mut().below(can.len() as u64));
            let task = which.map(|which| can[which as usize]);
            ready.retain(|&other| Some(other) != task && !matches!(tasks[other], Slot::Ended));
            task
        };
        match next {
            Some(task) => self.poll(task),
            None => {
                let first = self.timers.borrow().keys().next().copied();
                let Some(timer) = first.filter(|&(at_ns, _)| at_ns <= until_ns) else { return false };
                let waker = self.timers.borrow_mut().remove(&timer);
                self.now_ns.set(self.now_ns.get().max(timer.0));
                waker.into_iter().for_each(Waker::wake);
            }
        }
        true
    }

    fn poll(&self, task: usize) {
        let slot = std::mem::replace(&mut self.tasks.borrow_mut()[task], Slot::Polled);
        let Slot::Idle(mut future) = slot else { unreachable!("chosen among those that are idle") };
        let waker = Waker::from(std::sync::Arc::new(TaskWaker { task, ready: self.ready.clone() }));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        self.tasks.borrow_mut()[task] = match polled {
            Poll::Ready(()) => Slot::Ended,
            Poll::Pending => Slot::Idle(future),
        };
    }
}

/// The virtual time, in nanoseconds since the beginning.
pub(super) fn now_ns() -> u64 {
    world().now_ns.get()
}

/// Draws the next number below `bound` from the simulation's seed; zero if no simulation runs.
pub(super) fn below(bound: u64) -> u64 {
    let world = WORLD.with(|world| world.borrow().clone());
    world.map_or(0, |world| world.random.borrow_mut().below(bound))
}

/// Returns whether a simulation runs on this thread.
pub(super) fn is_running() -> bool {
    WORLD.with(|world| world.borrow().is_some())
}

/// Wakes `waker` at the time `at_ns`.
pub(super) fn wake_at(at_ns: u64, waker: Waker) {
    let world = world();
    let number = world.timers_made.get() + 1;
    world.timers_made.set(number);
    world.timers.borrow_mut().insert((at_ns, number), waker);
}

/// Lets a time pass while the other tasks run.
pub(super) fn pass(span_ns: u64) {
    let world = world();
    let until_ns = world.now_ns.get() + span_ns;
    if world.depth.get() < DEEPEST {
        world.depth.set(world.depth.get() + 1);
        while world.now_ns.get() < until_ns && world.step(until_ns) {}
        world.depth.set(world.depth.get() - 1);
    }
    world.now_ns.set(world.now_ns.get().max(until_ns));
}

/// Waits for a time.
pub(super) async fn sleep(span_ns: u64) {
    let until_ns = now_ns() + span_ns;
    std::future::poll_fn(|context| match now_ns() >= until_ns {
        true => Poll::Ready(()),
        false => {
            wake_at(until_ns, context.waker().clone());
            Poll::Pending
        }
    })
    .await;
}

/// Returns the output of `future` if it is ready within a time; drops the future otherwise.
pub(super) async fn within<F: Future + Unpin>(span_ns: u64, mut future: F) -> Option<F::Output> {
    let until_ns = now_ns() + span_ns;
    let mut timed = false;
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(context) {
            return Poll::Ready(Some(output));
        }
        if now_ns() >= until_ns {
            return Poll::Ready(None);
        }
        if !timed {
            timed = true;
            wake_at(until_ns, context.waker().clone());
        }
        Poll::Pending
    })
    .await
}
