//! A round: every unit that is left works until there is nothing more for it, each on a thread of its own.
//!
//! ```text
//!   the caller's thread  ▏calls helpers ▏the last unit .............▏what nobody has begun ▏waits for those at work ▏
//!   helper 1                  └─▶ wakes ▏a unit .......................▏
//!   helper 2                                  └─▶ wakes ▏collects ........▏
//!   helper 3                                                 └─▶ wakes too late, and is not waited for
//! ```
//! 1. A thread that has a task for another one puts it on the list, and calls a helper.
//! 2. A helper does first the task that it was called for, if no thread has begun it, and then others. So each task for which a helper was called is done, also
//!    if there is no helper for another one.
//! 3. At its end the caller's thread does the tasks that no thread has begun. The round does not wait for a helper that wakes late.
//! 4. A unit for which there is no thread is left out, and the others get its part. If they cannot compute it, another round has the unit. If no other unit is
//!    left, its task stays on the list for the caller's thread. A unit whose results no helper brings brings them itself.
//! 5. The round lends its list through a [`Gate`], which it closes when all tasks are done.

use crate::commander::Commander;
use crate::package::UnitId;
use crate::report::PackageRecord;
use crate::unit::{Desk, Start, Unit, UnitRun};
use dml_core::helpers::{Gate, Helpers};
use dml_core::sync::{Arc, Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the caller's thread waits for others without sleeping: they are at their last packages.
const AWAKE: Duration = Duration::from_micros(300);

/// Lets a trial be conducted.
pub(crate) type Offer<'a> = dyn Fn() + Sync + 'a;

/// What the rounds of a run need.
#[derive(Clone, Copy)]
pub(crate) struct Rounds<'a> {
    pub(crate) units: &'a [Unit<'a>],
    pub(crate) runs: &'a [Mutex<UnitRun>],
    pub(crate) commander: &'a Commander,
    /// Offers the trial of a unit on the cores of those who begin, once it is wanted.
    pub(crate) offer: Option<&'a Offer<'a>>,
    /// The units for which there was no thread.
    pub(crate) threadless: &'a Mutex<Vec<Threadless>>,
}

/// A unit for which there was no thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threadless {
    pub(crate) unit: UnitId,
    /// Whether it had begun in an earlier round.
    pub(crate) had_begun: bool,
}

/// Records a package of a unit.
pub(crate) fn recorded(runs: &[Mutex<UnitRun>], unit: UnitId, record: PackageRecord) {
    let mut run = runs[unit.0].lock();
    run.joined.get_or_insert(record.start);
    run.extend(vec![record]);
}

/// A round under way.
pub(crate) struct Round<'a> {
    of: Rounds<'a>,
    desks: Vec<Desk>,
    list: Mutex<List>,
    changed: Condvar,
    gate: OnceLock<Arc<Gate>>,
}

#[derive(Default)]
struct List {
    /// The tasks that no thread has begun.
    tasks: VecDeque<Task>,
    /// How many threads are at a task.
    busy: usize,
}

/// What a thread does in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// It is the thread of a unit.
    Work(UnitId),
    /// It collects what a unit has computed.
    Collect(UnitId),
}

thread_local! {
    /// The task that the thread was called for, until it looks at the list.
    static CALLED_FOR: Cell<Option<Task>> = const { Cell::new(None) };
}

impl<'a> Round<'a> {
    /// Lets every remaining unit work until it gets no more work. A single unit, or the last of several, works on the caller's thread. Units
    /// that are called up meanwhile join.
    ///
    /// # Panics
    /// With the panic of a unit: it catches those of its kernel, so that is a bug, which goes on from here.
    pub(crate) fn run(of: &Rounds<'a>) {
        let active = of.units.iter().map(|unit| unit.id).filter(|unit| of.commander.is_active(*unit));
        let mut left: Vec<UnitId> = active.collect();
        let last = left.pop();
        let round = Self::new(of);
        let share = || round.share();
        Gate::open(&share, |gate| {
            round.gate.get_or_init(|| gate.clone());
            round.start(&left);
            if let Some(last) = last {
                round.work(last);
            }
            round.finish();
        });
    }

    fn new(of: &Rounds<'a>) -> Self {
        let desks = of.units.iter().map(|_| Desk::default()).collect();
        Self { of: *of, desks, list: Mutex::default(), changed: Condvar::new(), gate: OnceLock::new() }
    }

    /// Calls a helper for a task. Returns whether there is one, or another thread has begun the task.
    fn call(&self, task: Task) -> bool {
        self.list.lock().tasks.push_back(task);
        self.changed.notify_all();
        let is_called = self.gate.get().cloned().is_some_and(|gate| {
            let help = move || gate.help(|| CALLED_FOR.set(Some(task)));
            Helpers::shared().call(help).is_ok()
        });
        is_called || !self.take_back(task)
    }

    /// Takes a task off the list. Returns whether it was there.
    fn take_back(&self, task: Task) -> bool {
        let mut list = self.list.lock();
        let place = list.tasks.iter().position(|other| *other == task);
        place.is_some_and(|place| list.tasks.remove(place).is_some())
    }

    /// Does the tasks that no thread has begun, and first the one that this thread was called for.
    fn share(&self) {
        let mut first = CALLED_FOR.take();
        while let Some(task) = self.take(first.take()) {
            let _busy = Busy(self);
            self.carry_out(task);
        }
    }

    /// Takes this task off the list, or else the one that has been there for longest.
    fn take(&self, first: Option<Task>) -> Option<Task> {
        let mut list = self.list.lock();
        let place = list.tasks.iter().position(|task| Some(*task) == first);
        let task = list.tasks.remove(place.unwrap_or(0))?;
        list.busy += 1;
        Some(task)
    }

    fn carry_out(&self, task: Task) {
        match task {
            Task::Work(unit) => {
                let unit = self.of.units[unit.0];
                let _within = unit.commander.enter();
                unit.span.within(|| self.work(unit.id));
            }
            Task::Collect(UnitId(index)) => self.desks[index].collect_all(self.of.units[index], self),
        }
    }

    /// Lets a unit work on this thread.
    fn work(&self, UnitId(index): UnitId) {
        self.of.units[index].run(&self.of.runs[index], &self.desks[index], self);
    }

    /// Does the tasks that are left, and returns when no thread is at one.
    fn finish(&self) {
        let begun = Instant::now();
        loop {
            self.share();
            let list = self.list.lock();
            if !list.tasks.is_empty() {
                continue;
            }
            if list.busy == 0 {
                return;
            }
            if begun.elapsed() < AWAKE {
                drop(list);
                std::thread::yield_now();
            } else {
                drop(self.changed.wait(list));
            }
        }
    }
}

impl Start for Round<'_> {
    fn start(&self, units: &[UnitId]) {
        if let Some(offer) = self.of.offer.filter(|_| self.of.commander.takes_rival()) {
            offer();
        }
        for &unit in units {
            if self.call(Task::Work(unit)) {
                continue;
            }
            let mut others = self.of.units.iter().map(|other| other.id).filter(|other| *other != unit);
            if others.any(|other| self.of.commander.is_active(other)) {
                let had_begun = self.of.runs[unit.0].lock().joined.is_some();
                self.of.threadless.lock().push(Threadless { unit, had_begun });
                let called = self.of.commander.spare(unit);
                self.start(&called);
            } else {
                // The caller's thread has nothing else to do.
                self.list.lock().tasks.push_back(Task::Work(unit));
                self.changed.notify_all();
            }
        }
    }

    fn collect(&self, unit: UnitId) -> bool {
        self.call(Task::Collect(unit))
    }

    fn record(&self, unit: UnitId, record: PackageRecord) {
        recorded(self.of.runs, unit, record);
    }
}

/// A thread that is at a task, also if that panics.
struct Busy<'a>(&'a Round<'a>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.list.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Dynamic, Splitter};

    /// Otherwise a thread does what none is to be had for, and nobody what it was called for.
    #[test]
    fn a_thread_does_first_what_it_was_called_for() {
        let splitter = Splitter::new(Box::new(Dynamic::new(10, 1, 1).unwrap()), 1, 10, 1).unwrap();
        let (commander, threadless) = (Commander::new(splitter, None), Mutex::default());
        let of =
            Rounds { units: &[], runs: &[], commander: &commander, offer: None, threadless: &threadless };
        let round = Round::new(&of);
        let [work, collect, other] = [Task::Work(UnitId(0)), Task::Collect(UnitId(1)), Task::Work(UnitId(2))];
        round.list.lock().tasks.extend([work, collect, other]);
        assert_eq!(round.take(Some(collect)), Some(collect));
        // Somebody else has done it.
        assert_eq!(round.take(Some(collect)), Some(work));
        assert_eq!((round.take(None), round.take(None)), (Some(other), None));
    }
}
