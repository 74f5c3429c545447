//! A round: every remaining unit works until it gets no more packages, each on a thread of its own.
//!
//! ```text
//!   caller's thread  ▏calls helpers ▏the last unit .............▏queued tasks ▏waits for busy helpers ▏
//!   helper 1              └─▶ wakes ▏a unit ......................................▏
//!   helper 2                              └─▶ wakes ▏collects ........▏
//!   helper 3                                             └─▶ wakes too late; the round does not wait for it
//! ```
//! 1. A thread that has a task for another thread queues the task and calls a helper.
//! 2. A helper first does the task that it was called for, if no thread has begun it, and then other tasks.
//!    So every task with a helper of its own gets done, even if another task has no helper.
//! 3. At the end, the caller's thread does the tasks that no thread has begun. The round does not wait for a
//!    helper that wakes late.
//! 4. A unit without a thread is left out, and the other units get its share. If they cannot finish the work,
//!    a further round includes the unit. A unit without a collector thread collects its own results.
//! 5. If units may be called up soon, a helper arrives in advance and polls for a while. A helper that is
//!    woken only for the task would be late. It counts as busy while it asks who is called up, so that the
//!    round does not end meanwhile.
//! 6. The round lends its task list through a [`Gate`], and closes the gate when all tasks are done.

use crate::base::package::UnitId;
use crate::run::commander::{Commander, POLLS};
use crate::run::unit::{Desk, Start, Unit, UnitRun};
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::internal::{Gate, Helpers};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The data shared by all rounds of a run.
#[derive(Clone, Copy)]
pub(crate) struct Rounds<'a> {
    pub(crate) units: &'a [Unit<'a>],
    pub(crate) runs: &'a [Mutex<UnitRun>],
    pub(crate) commander: &'a Commander,
    /// The units for which there was no thread.
    pub(crate) threadless: &'a Mutex<Vec<Threadless>>,
    /// Whether units may be called up soon.
    pub(crate) explores: bool,
    pub(crate) begun: Instant,
}

/// A unit for which there was no thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threadless {
    pub(crate) unit: UnitId,
    /// Whether the unit had begun in an earlier round.
    pub(crate) had_begun: bool,
}

/// A round in progress.
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
    /// Number of threads that are running a task.
    busy: usize,
    /// Whether a helper polls for a task.
    is_awaited: bool,
    is_over: bool,
}

/// A task for one thread of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Run a unit.
    Work(UnitId),
    /// Collect a unit's results.
    Collect(UnitId),
}

/// The purpose for which a helper was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Called {
    #[default]
    Nothing,
    For(Task),
    ToStandBy,
}

thread_local! {
    /// The purpose for which this thread was called, until it takes its first task.
    static CALLED: Cell<Called> = const { Cell::new(Called::Nothing) };
}

impl<'a> Round<'a> {
    /// Runs every remaining unit until it gets no more packages. Units that are called up during the round
    /// join it.
    ///
    /// A single unit, or the last of several, runs on the caller's thread.
    ///
    /// # Panics
    /// With the panic of a unit. A unit catches panics of its kernel, so such a panic is a bug of the
    /// scheduler.
    pub(crate) fn run(of: &Rounds<'a>) {
        // Units that the policy explores from the start begin with the others.
        of.commander.called_up(Duration::ZERO);
        let active = of.units.iter().map(|unit| unit.id).filter(|unit| of.commander.is_active(*unit));
        let mut left: Vec<UnitId> = active.collect();
        let last = left.pop();
        let round = Self::new(of);
        let share = || round.share();
        Gate::open(&share, |gate| {
            round.gate.get_or_init(|| gate.clone());
            if of.explores {
                round.call_helper(Called::ToStandBy);
            }
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

    /// Queues a task and calls a helper for it. Returns whether a helper or another thread does the task.
    ///
    /// If not, the task is taken back.
    fn call(&self, task: Task) -> bool {
        let mut list = self.list.lock();
        list.tasks.push_back(task);
        let is_awaited = std::mem::take(&mut list.is_awaited);
        drop(list);
        self.changed.notify_all();
        is_awaited || self.call_helper(Called::For(task)) || !self.take_back(task)
    }

    /// Calls a helper into the round. Returns whether there is one.
    fn call_helper(&self, called: Called) -> bool {
        self.gate.get().cloned().is_some_and(|gate| {
            let help = move || gate.help(|| CALLED.set(called));
            Helpers::shared().call(help).is_ok()
        })
    }

    /// Removes a task from the list. Returns whether it was there.
    fn take_back(&self, task: Task) -> bool {
        let mut list = self.list.lock();
        let place = list.tasks.iter().position(|other| *other == task);
        place.is_some_and(|place| list.tasks.remove(place).is_some())
    }

    /// Does the tasks that no thread has begun, starting with the one that this thread was called for.
    fn share(&self) {
        let mut first = match CALLED.take() {
            Called::For(task) => Some(task),
            Called::Nothing => None,
            Called::ToStandBy => {
                self.stand_by();
                None
            }
        };
        while let Some(task) = self.take(first.take()) {
            let _busy = Busy(self);
            self.carry_out(task);
        }
    }

    /// Polls until there is a task, the round ends, or [`POLLS`] have passed. Starts units that are called up
    /// meanwhile.
    fn stand_by(&self) {
        let begun = Instant::now();
        let every = POLLS / 6;
        let mut looks = every;
        self.list.lock().is_awaited = true;
        loop {
            // A thread that the system delays still asks once, at the end.
            let is_late = begun.elapsed() >= POLLS;
            let mut list = self.list.lock();
            if !list.is_over && list.tasks.is_empty() && (is_late || begun.elapsed() >= looks) {
                looks += every;
                // The round must not end before the units that are called up have begun.
                list.busy += 1;
                drop(list);
                let busy = Busy(self);
                self.start(&self.of.commander.called_up(self.of.begun.elapsed()));
                drop(busy);
                list = self.list.lock();
            }
            if is_late || list.is_over || !list.tasks.is_empty() {
                list.is_awaited = false;
                return;
            }
            drop(list);
            std::thread::yield_now();
        }
    }

    /// Takes the task `first` off the list, or the oldest task if `first` is not there.
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

    /// Runs a unit on this thread.
    fn work(&self, UnitId(index): UnitId) {
        self.of.units[index].run(&self.of.runs[index], &self.desks[index], self);
    }

    /// Does the remaining tasks, and returns when no thread is running one.
    fn finish(&self) {
        let begun = Instant::now();
        loop {
            self.share();
            let mut list = self.list.lock();
            if !list.tasks.is_empty() {
                continue;
            }
            if list.busy == 0 {
                list.is_over = true;
                return;
            }
            if begun.elapsed() < POLLS {
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
        for &unit in units {
            if self.call(Task::Work(unit)) {
                continue;
            }
            let had_begun = self.of.runs[unit.0].lock().joined.is_some();
            self.of.threadless.lock().push(Threadless { unit, had_begun });
            let called = self.of.commander.spare(unit, self.of.begun.elapsed());
            self.start(&called);
        }
    }

    fn collect(&self, unit: UnitId) -> bool {
        self.call(Task::Collect(unit))
    }
}

/// Counts a thread as busy with a task until dropped, even if the task panics.
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
    use crate::policy::{Dynamic, Policy, Splitter};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn of_dynamic() -> Splitter {
        Splitter::new(Box::new(Dynamic::new(10, 1, 1).unwrap()), 1, 10, 1).unwrap()
    }

    /// Returns the data of a round whose tasks the test does itself.
    fn without_units<'a>(commander: &'a Commander, threadless: &'a Mutex<Vec<Threadless>>) -> Rounds<'a> {
        Rounds { units: &[], runs: &[], commander, threadless, explores: true, begun: Instant::now() }
    }

    /// Otherwise a helper could take a task that gets no helper, and leave its own task undone.
    #[test]
    fn a_thread_does_first_what_it_was_called_for() {
        let (commander, threadless) = (Commander::new(of_dynamic(), None), Mutex::default());
        let round = Round::new(&without_units(&commander, &threadless));
        let [work, collect, other] = [Task::Work(UnitId(0)), Task::Collect(UnitId(1)), Task::Work(UnitId(2))];
        round.list.lock().tasks.extend([work, collect, other]);
        assert_eq!(round.take(Some(collect)), Some(collect));
        // Another thread has taken that task.
        assert_eq!(round.take(Some(collect)), Some(work));
        assert_eq!((round.take(None), round.take(None)), (Some(other), None));
    }

    /// A helper that stands by does the task, so no further helper is called.
    #[test]
    fn a_helper_that_stands_by_does_the_next_task() {
        let (commander, threadless) = (Commander::new(of_dynamic(), None), Mutex::default());
        let round = Round::new(&without_units(&commander, &threadless));
        std::thread::scope(|scope| {
            let helper = scope.spawn(|| {
                loop {
                    round.stand_by();
                    if let Some(task) = round.take(None) {
                        return task;
                    }
                }
            });
            while !round.list.lock().is_awaited {
                std::thread::yield_now();
            }
            let task = Task::Work(UnitId(0));
            // Without a gate no other helper can be called.
            while !round.call(task) {}
            assert_eq!(helper.join().unwrap(), task);
        });
        round.list.lock().is_over = true;
        round.stand_by();
        assert!(!round.list.lock().is_awaited);
    }

    /// A policy that calls up a unit after 60 us, although no package has ended.
    #[derive(Debug)]
    struct Late;

    impl Policy for Late {
        fn next(&mut self, _: UnitId, remaining: u64) -> Option<u64> {
            Some(remaining)
        }

        fn call_up(&mut self, now: Duration) -> Vec<UnitId> {
            if now < Duration::from_micros(60) { Vec::new() } else { vec![UnitId(1)] }
        }
    }

    #[test]
    fn a_helper_that_stands_by_asks_whether_units_are_called_up() {
        let mut splitter = Splitter::new(Box::new(Late), 2, 10, 1).unwrap();
        splitter.bench(UnitId(1));
        let (commander, threadless) = (Commander::new(splitter, None), Mutex::default());
        let round = Round::new(&without_units(&commander, &threadless));
        round.stand_by();
        assert_eq!(round.take(None), Some(Task::Work(UnitId(1))));
    }

    /// It is asked for units to call up, and answers when it is told to.
    #[derive(Debug)]
    struct Thinks(Arc<(AtomicBool, AtomicBool)>);

    impl Policy for Thinks {
        fn next(&mut self, _: UnitId, remaining: u64) -> Option<u64> {
            Some(remaining)
        }

        fn call_up(&mut self, _: Duration) -> Vec<UnitId> {
            self.0.0.store(true, Ordering::SeqCst);
            while !self.0.1.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Vec::new()
        }
    }

    /// Otherwise a unit that is called up then waits for others whose tasks no thread does.
    #[test]
    fn a_round_does_not_end_while_a_helper_calls_units_up() {
        let flags = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let (is_asked, answers) = (&flags.0, &flags.1);
        let splitter = Splitter::new(Box::new(Thinks(flags.clone())), 1, 10, 1).unwrap();
        let (commander, threadless) = (Commander::new(splitter, None), Mutex::default());
        let round = Round::new(&without_units(&commander, &threadless));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_asked.load(Ordering::SeqCst) {
                    round.stand_by();
                }
            });
            while !is_asked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let main = scope.spawn(|| round.finish());
            std::thread::sleep(Duration::from_millis(20));
            let is_over = round.list.lock().is_over;
            answers.store(true, Ordering::SeqCst);
            main.join().unwrap();
            assert!(!is_over && round.list.lock().is_over);
        });
    }
}
