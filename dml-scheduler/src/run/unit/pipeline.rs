//! The pipeline of a unit: the order of its steps with several packages in flight.
//!
//! ```text
//!   this thread     acquire 3 ▏launch 3 ▏wait for 2 ▏release 2 ▏acquire 4 ▏launch 4 ▏wait for 3 ...
//!   the device      kernel 1      kernel 2                  kernel 3                  kernel 4
//!   the desk                 results of 1           results of 2              results of 3
//! ```
//! While a package computes, the inputs of the next one move in, and the results of the previous one move
//! out. The next package is launched before the current one has ended, so that the device does not idle
//! between them.
//!
//! A unit with packages in flight must not wait for a buffer: the buffer's holder may be waiting for one of
//! those packages. So the unit only tries to acquire the buffers of the next package. If they are busy, it
//! first finishes packages in flight.

use super::desk::Desk;
use super::{Journey, Launched, Start, Trouble, Unit, UnitRun};
use crate::base::guard::Quiet;
use crate::base::package::Package;
use crate::kernel::KernelError;
use crate::plan::are_results_there;
use crate::run::commander::Next;
use dml_core::internal::TraceSpan;
use dml_core::internal::sync::Mutex;
use dml_core::{AcquireError, Grants};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of packages that a unit has launched and not yet waited for.
///
/// The second package hides the gap between the end of a kernel and the next launch. The third one hides that
/// gap for kernels that are shorter than one turn of this thread.
pub(crate) const DEPTH: usize = 3;
/// [`DEPTH`] for the published policies, which grant every request for a package.
///
/// One package in advance keeps the last packages short.
pub(crate) const PUBLISHED_DEPTH: usize = 2;

impl Unit<'_> {
    /// Computes packages until the commander has no more for the unit, or until the unit fails. Appends to
    /// `run`.
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

/// Upper bound on the duration of a wait for a kernel that had already ended.
const AT_ONCE: Duration = Duration::from_micros(20);

/// A unit at work.
struct Pipeline<'a> {
    unit: Unit<'a>,
    /// Whether the unit's results are already in the collecting device's memory.
    is_in_place: bool,
    desk: &'a Desk,
    starter: &'a dyn Start,
    /// The packages in flight, in the order of their launches.
    flights: VecDeque<(Journey, Launched)>,
    /// A package that the unit received and has not begun.
    prepared: Option<Package>,
    /// The failed packages, to be recovered when no package is in flight.
    troubles: Vec<Trouble>,
    /// Time from the start of the run at which the last package was computed.
    ended: Duration,
    /// Number of packages begun.
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

    /// Returns what to do next. Sleeps only while nothing is in flight.
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

    /// Returns whether the oldest package in flight is known to be computed.
    ///
    /// If so, its results should be in transfer while the unit acquires the next package, which takes as long
    /// as the transfer of its inputs.
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
            span: TraceSpan::none(),
        };
        let launched = span.within(|| {
            let grants = self.acquire(&journey.package)?;
            journey.begun = self.unit.now();
            self.unit.launch(&journey.package, grants)
        });
        journey.span = span;
        match launched {
            Ok(Launched::Done(grants)) => {
                // Packages launched earlier end first.
                self.finish_all();
                self.finish(journey, Launched::Done(grants));
            }
            Ok(running) => self.flights.push_back((journey, running)),
            Err(error) => self.trouble(journey, error),
        }
    }

    /// Acquires a package's buffers, and first finishes packages in flight while the buffers are busy.
    fn acquire(&mut self, package: &Package) -> Result<Grants, KernelError> {
        // The inputs of a package in flight are kept from others until the unit has waited for them.
        let mut are_inputs_awaited = false;
        while !self.flights.is_empty() {
            match self.unit.acquire(package, false) {
                Err(error) if !is_busy(&error) => return Err(error),
                Err(_) if are_inputs_awaited => self.finish_oldest(),
                Err(_) => {
                    self.await_inputs();
                    are_inputs_awaited = true;
                }
                acquired => return acquired,
            }
        }
        self.unit.acquire(package, true)
    }

    /// Waits for the inputs of the packages in flight.
    fn await_inputs(&mut self) {
        for (journey, launched) in &mut self.flights {
            if journey.span.within(|| launched.wait_for_inputs()) {
                journey.begun = self.unit.now();
            }
        }
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

    /// Waits for a package, and has its results collected.
    fn finish(&mut self, mut journey: Journey, mut launched: Launched) {
        let begins = self.begins;
        let is_last = |number: u64| number == begins;
        let had_ended = !is_last(journey.number) && launched.has_ended();
        let brings_results = launched.brings_results();
        if journey.span.within(|| launched.wait_for_inputs()) {
            journey.begun = self.unit.now();
        }
        let asked = self.unit.now();
        let computed = journey.span.within(|| Unit::computed(launched));
        journey.computed = self.unit.now();
        // If the kernel's end cannot be polled, a wait of next to no time proves that it had ended.
        let had_ended = had_ended || journey.computed.saturating_sub(asked) < AT_ONCE;
        if had_ended && !is_last(journey.number) {
            journey.noticed_late = true;
            // The device may have begun the next package while the unit prepared the last one.
            if let Some((next, _)) = self.flights.front_mut().filter(|(next, _)| !is_last(next.number)) {
                next.noticed_late = true;
            }
        }
        journey.begun = journey.begun.max(self.ended);
        self.ended = journey.computed;
        let released = journey.span.within(|| computed.and_then(Unit::release));
        if let Err(error) = released {
            return self.trouble(journey, error);
        }
        // The hook for a complete package runs on a thread that holds no buffers, because it may use the
        // kernel's.
        if self.flights.is_empty() && self.unit.collects_on().is_none() {
            return self.unit.complete(journey, self.run, self.starter);
        }
        // No bytes move any more, so collecting here is cheaper than on another thread.
        if self.flights.is_empty() && (brings_results || self.is_in_place) {
            return self.collect(journey);
        }
        self.unit.ended(&journey, self.starter);
        // Another thread pays off only if this thread has a package to compute in the meantime.
        if self.flights.is_empty() && self.prepared.is_none() {
            match self.unit.commander.next_now(self.unit.id, self.unit.begun) {
                Next::Package(package) => self.prepared = Some(package),
                _ => return self.collect(journey),
            }
        }
        self.desk.hand_in(self.unit, journey, self.starter);
    }

    /// Collects a package's results on this thread.
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

    /// Recovers the failed packages after all others have ended. Retires the unit if it cannot continue.
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
        let called = self.unit.commander.retire(self.unit.id, self.unit.now());
        self.starter.start(&called);
        self.run.failure = failure;
        Err(())
    }
}

fn is_busy(error: &KernelError) -> bool {
    error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy)
}
