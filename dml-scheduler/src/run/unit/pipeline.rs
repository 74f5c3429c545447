//! The order in which a unit's packages go, with several of them under way at once.
//!
//! ```text
//!   this thread     acquire 3 ▏launch 3 ▏wait for 2 ▏release 2 ▏acquire 4 ▏launch 4 ▏wait for 3 ...
//!   the device      kernel 1      kernel 2                  kernel 3                  kernel 4
//!   the desk                 results of 1           results of 2              results of 3
//! ```
//! While a package computes, the inputs of the next one move in, and the results of the one before move out. The next
//! package is launched before the one in front of it has ended, so that the device does not pause between them.
//!
//! Who holds a package in flight must not wait for anybody: whoever it waits for may wait for that package. So what is asked
//! for ahead is only tried. Where it is not to be had now, the packages in flight end first.

use super::desk::Desk;
use super::{Journey, Launched, Start, Trouble, Unit, UnitRun};
use crate::base::guard::Quiet;
use crate::base::package::Package;
use crate::kernel::KernelError;
use crate::plan::are_results_there;
use crate::run::commander::Next;
use dml_core::spans::Span;
use dml_core::sync::Mutex;
use dml_core::{AcquireError, Grants};
use std::collections::VecDeque;
use std::time::Duration;

/// The most packages that a unit has launched and not waited for. The second one hides the time from the end of a kernel to the
/// launch of the next; the third one that of a kernel which takes less than this thread's turn.
pub(crate) const DEPTH: usize = 3;
/// The same for policies as they were published, which hand out whatever they are asked for: one package ahead, so that the
/// last ones stay short.
pub(crate) const PUBLISHED_DEPTH: usize = 2;

impl Unit<'_> {
    /// Works until the commander has no more packages for the unit, or until the unit fails. Appends to `run`.
    pub(crate) fn run(self, run: &Mutex<UnitRun>, desk: &Desk, starter: &dyn Start) {
        self.hooks.unit_start(self.id, self.device);
        let is_there = |goal| are_results_there(self.platform, self.kernel, self.device, goal);
        let is_in_place = self.collects_on().is_some_and(is_there);
        run.lock().joined.get_or_insert_with(|| self.now());
        let mut own = UnitRun::default();
        Pipeline {
            unit: self,
            is_in_place,
            desk,
            starter,
            flights: VecDeque::new(),
            prepared: None,
            troubles: Vec::new(),
            ended: Duration::ZERO,
            begins: 0,
            run: &mut own,
        }
        .work();
        desk.close();
        own.packages.append(&mut desk.take_run().packages);
        let mut run = run.lock();
        run.extend(own.packages);
        run.failure = run.failure.take().or(own.failure);
        drop(run);
        self.hooks.unit_end(self.id, self.device);
    }
}

/// A wait that takes less had nothing to wait for.
const AT_ONCE: Duration = Duration::from_micros(20);

/// A unit at work.
struct Pipeline<'a> {
    unit: Unit<'a>,
    /// Whether what it computes already lies in the memory of the device that collects.
    is_in_place: bool,
    desk: &'a Desk,
    starter: &'a dyn Start,
    /// The packages that are launched and not waited for, in the order of their launches.
    flights: VecDeque<(Journey, Launched)>,
    /// A package that the unit was handed and has not begun.
    prepared: Option<Package>,
    /// The packages that failed, to be dealt with when nothing else is under way.
    troubles: Vec<Trouble>,
    /// When the last package was computed.
    ended: Duration,
    /// How many packages were begun.
    begins: u64,
    run: &'a mut UnitRun,
}

impl Pipeline<'_> {
    fn work(&mut self) {
        loop {
            match self.next() {
                Next::Package(package) => self.begin(package),
                Next::Later => self.finish_oldest(),
                Next::CalledBack => {}
                Next::NoMore => {
                    self.finish_all();
                    self.troubles.extend(self.desk.drain(self.unit, self.starter));
                    if self.troubles.is_empty() {
                        return;
                    }
                }
            }
            if (!self.troubles.is_empty() || self.desk.has_trouble()) && self.recover().is_err() {
                return;
            }
        }
    }

    /// What to do next. Sleeps only while nothing is in flight.
    fn next(&mut self) -> Next {
        let commander = self.unit.commander;
        if let Some(package) = self.prepared.take().filter(|_| !commander.is_stopped()) {
            return Next::Package(package);
        }
        match self.flights.len() {
            0 if self.desk.lacks_thread() => match commander.next_now(self.unit.id, self.unit.begun) {
                Next::Later => {
                    self.desk.collect_rest(self.unit, self.starter);
                    commander.next(self.unit.id, self.unit.begun, || self.desk.has_trouble())
                }
                next => next,
            },
            0 => commander.next(self.unit.id, self.unit.begun, || self.desk.has_trouble()),
            flights if flights >= self.unit.depth || self.has_oldest_ended() => Next::Later,
            _ => commander.next_now(self.unit.id, self.unit.begun),
        }
    }

    /// Whether the package in front is computed. Its results are to travel while the next one is prepared, which takes as long as its inputs.
    fn has_oldest_ended(&self) -> bool {
        self.flights.front().is_some_and(|(_, launched)| launched.has_ended())
    }

    /// Acquires and launches a package.
    fn begin(&mut self, package: Package) {
        self.begins += 1;
        let handed = self.unit.now();
        let span = self.unit.package_span(&package);
        let mut journey = Journey {
            package,
            handed,
            begun: handed,
            computed: handed,
            noticed_late: false,
            number: self.begins,
            span: Span::none(),
        };
        let launched = span.within(|| {
            let grants = self.acquire(&journey.package)?;
            journey.begun = self.unit.now();
            self.unit.launch(&journey.package, grants)
        });
        journey.span = span;
        match launched {
            Ok(Launched::Done(grants)) => {
                // What was launched before ended before.
                self.finish_all();
                self.finish(journey, Launched::Done(grants));
            }
            Ok(running) => self.flights.push_back((journey, running)),
            Err(error) => self.trouble(journey, error),
        }
    }

    /// Acquires a package's buffers, after the end of as many packages in flight as stand in its way.
    fn acquire(&mut self, package: &Package) -> Result<Grants, KernelError> {
        while !self.flights.is_empty() {
            match self.unit.acquire(package, false) {
                Err(error) if is_busy(&error) => self.finish_oldest(),
                acquired => return acquired,
            }
        }
        self.unit.acquire(package, true)
    }

    fn finish_oldest(&mut self) {
        if let Some((journey, launched)) = self.flights.pop_front() {
            self.finish(journey, launched);
        }
    }

    fn finish_all(&mut self) {
        while !self.flights.is_empty() {
            self.finish_oldest();
        }
    }

    /// Waits for a package, and has its results brought to where they belong.
    fn finish(&mut self, mut journey: Journey, launched: Launched) {
        let begins = self.begins;
        let is_last = |number: u64| number == begins;
        let had_ended = !is_last(journey.number) && launched.has_ended();
        let asked = self.unit.now();
        let finished = journey.span.within(|| Unit::finish(launched));
        journey.computed = self.unit.now();
        // Of what cannot be asked, a wait that takes no time says as much.
        let had_ended = had_ended || journey.computed.saturating_sub(asked) < AT_ONCE;
        if had_ended && !is_last(journey.number) {
            journey.noticed_late = true;
            // The next one may have begun while the last one was prepared.
            if let Some((next, _)) = self.flights.front_mut().filter(|(next, _)| !is_last(next.number)) {
                next.noticed_late = true;
            }
        }
        journey.begun = journey.begun.max(self.ended);
        self.ended = journey.computed;
        if let Err(error) = finished {
            return self.trouble(journey, error);
        }
        // The application is told of packages on a thread that holds nothing: it may use what the kernel uses.
        if self.flights.is_empty() && self.unit.collects_on().is_none() {
            return self.unit.complete(journey, self.run, self.starter);
        }
        // Nothing moves, so it takes less than another thread does.
        if self.flights.is_empty() && self.is_in_place {
            return self.collect(journey);
        }
        self.unit.ended(&journey, self.starter);
        // Another thread is worth its while only where there is something to compute meanwhile.
        if self.flights.is_empty() && self.prepared.is_none() {
            match self.unit.commander.next_now(self.unit.id, self.unit.begun) {
                Next::Package(package) => self.prepared = Some(package),
                _ => return self.collect(journey),
            }
        }
        self.desk.hand_in(self.unit, journey, self.starter);
    }

    /// Brings a package's results to where they belong, on this thread.
    fn collect(&mut self, journey: Journey) {
        match journey.span.within(|| self.unit.collect(&journey.package)) {
            Ok(()) => self.unit.complete(journey, self.run, self.starter),
            Err(error) => {
                self.troubles.push(Trouble { journey, error: Quiet::new(error), is_computed: true })
            }
        }
    }

    fn trouble(&mut self, journey: Journey, error: KernelError) {
        self.troubles.push(Trouble { journey, error: Quiet::new(error), is_computed: false });
    }

    /// Deals with the packages that failed, after all others have ended. Retires the unit if it cannot go on.
    fn recover(&mut self) -> Result<(), ()> {
        self.finish_all();
        self.troubles.extend(self.desk.drain(self.unit, self.starter));
        let mut failure = None;
        for trouble in std::mem::take(&mut self.troubles) {
            let (journey, ending) = self.unit.recover(trouble);
            let package = journey.package.clone();
            if ending.is_computed {
                self.unit.complete(journey, self.run, self.starter);
            }
            if let Some(message) = ending.failure {
                let at = self.unit.now();
                failure.get_or_insert(self.unit.failure(package, message, at));
            }
        }
        if failure.is_none() {
            return Ok(());
        }
        let called = self.unit.commander.retire(self.unit.id);
        self.starter.start(&called);
        self.run.failure = failure;
        Err(())
    }
}

fn is_busy(error: &KernelError) -> bool {
    error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy)
}
