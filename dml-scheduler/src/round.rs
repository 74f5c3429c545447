//! A round: every unit that is left works until there is nothing more for it, each on a thread of its own.
//!
//! ```text
//!   the caller's thread  ▏calls helpers ▏the last unit .............▏what nobody has begun ▏waits for those at work ▏
//!   helper 1                  └─▶ wakes ▏a unit .......................▏
//!   helper 2                                  └─▶ wakes ▏collects ........▏
//!   helper 3                                                 └─▶ wakes too late, and is not waited for
//! ```
//! 1. Whoever has something for another thread to do puts it on the list, and calls one. Whichever thread comes first does it.
//! 2. The caller's thread does last what nobody has begun by then, so that a round does not wait for who wakes late.
//! 3. A unit for which no thread is to be had is left out, and the others get its part. Where there is none to bring a unit's results, its own does.
//! 4. What is on the list is lent through a [`Gate`], which is closed when all of it is done.

use crate::commander::Commander;
use crate::package::UnitId;
use crate::report::PackageRecord;
use crate::unit::{Desk, Start, Unit, UnitRun};
use dml_core::helpers::{Gate, Helpers};
use dml_core::sync::{Arc, Condvar, Mutex};
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
    pub(crate) threadless: &'a Mutex<Vec<UnitId>>,
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
    /// What nobody has begun.
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
        let round = Self {
            of: *of,
            desks: of.units.iter().map(|_| Desk::default()).collect(),
            list: Mutex::default(),
            changed: Condvar::new(),
            gate: OnceLock::new(),
        };
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

    /// Has a thread do something. Returns whether there is one, or somebody does it already.
    fn call(&self, task: Task) -> bool {
        self.list.lock().tasks.push_back(task);
        self.changed.notify_all();
        let Some(gate) = self.gate.get().cloned() else { return false };
        let is_called = Helpers::shared().call(move || gate.help(|| ())).is_ok();
        is_called || !self.take_back(task)
    }

    /// Takes something off the list. Returns whether it was there.
    fn take_back(&self, task: Task) -> bool {
        let mut list = self.list.lock();
        let place = list.tasks.iter().position(|other| *other == task);
        place.is_some_and(|place| list.tasks.remove(place).is_some())
    }

    /// Does what nobody has begun.
    fn share(&self) {
        while let Some(task) = self.take() {
            let _busy = Busy(self);
            self.carry_out(task);
        }
    }

    fn take(&self) -> Option<Task> {
        let mut list = self.list.lock();
        let task = list.tasks.pop_front()?;
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

    /// Returns when there is nothing more to do, and nobody at anything.
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
            if !self.call(Task::Work(unit)) {
                self.of.threadless.lock().push(unit);
                let called = self.of.commander.retire(unit);
                self.start(&called);
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
