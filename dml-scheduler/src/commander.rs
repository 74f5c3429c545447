//! The Commander: hands packages to units as they become free, and takes failed packages back.
//!
//! The papers run the Commander as a loop on its own thread, or merge it into the CPU's unit where that thread would
//! take a core. Here it is merged into every unit. A unit that wants work runs the loop's body itself, under a lock
//! held for one decision. No messages and no extra thread are needed.
//!
//! # Source
//! "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 4.1 (Commander loop).

use crate::kernel::KernelError;
use crate::overtaking::{Overtaken, Overtaking};
use crate::package::{Package, UnitId};
use crate::policy::{Assignment, Computed, NotYet, Splitter};
use crate::running::{Cancel, Within};
use crate::trial::{Results, TrialEnd, Tried};
use dml_core::sync::{Arc, Condvar, Mutex, MutexGuard};
use dml_core::{Acquire, DeviceId, Grants, Withdrawal};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a thread does not sleep that waits for a trial to begin, and one that waits for its end; and how often each looks then, and later.
const AWAKE_BEFORE: Duration = Duration::from_micros(30);
const AWAKE: Duration = Duration::from_millis(2);
const MOMENT: Duration = Duration::from_micros(5);
const LATER: Duration = Duration::from_micros(30);
/// It looks later the longer it has waited: by this part.
const LATER_PARTS: u32 = 16;
/// How long a unit waits for something to do without sleeping. The others are at their last packages, and it would be woken late.
const AWAKE_AT_END: Duration = Duration::from_micros(300);

/// Hands out the packages of a run.
#[derive(Debug)]
pub(crate) struct Commander {
    state: Mutex<State>,
    changed: Condvar,
    /// How often it was told that there may be something else to do.
    told: AtomicU64,
    /// Wakes the thread that waits for a trial to begin.
    to_try: Condvar,
    /// How the run is cancelled, if it can be.
    cancel: Option<Arc<Cancel>>,
    made: Instant,
}

#[derive(Debug)]
struct State {
    splitter: Splitter,
    trial: TrialState,
    /// The trial that is to begin.
    wanted: Option<(UnitId, Range<u64>)>,
    /// Whether a trial has ended, and nobody has looked who is called up.
    has_tried: bool,
    /// Whether the device that is tried out computes on the cores of those that wait. Then nobody uses these for waiting.
    is_rival: bool,
    /// Whether such a device can be tried out, and whether it is to be, and nobody conducts that yet.
    awaits_rival: bool,
    wants_rival: bool,
    /// The packages that are claimed from the trial and being copied.
    claims: Vec<Package>,
    /// What was copied, or could not be, and nobody has taken over.
    ended: Option<Box<TrialEnd>>,
    /// The packages that were taken over.
    claimed: Vec<Package>,
    /// Whether a unit has computed a package since the trial began, or has retired.
    has_computed: bool,
    /// How many units wait for something to do.
    waiting: usize,
    overtaking: Overtaking,
}

/// What becomes of a package whose launch was left.
#[derive(Debug)]
pub(crate) enum GivenUp {
    /// The trial's unit has it, under this name. Whoever has left it copies the results, and [brings them home](Commander::bring_home).
    ToTrial(Package, Arc<Results>),
    /// Somebody computes it again.
    ToOthers,
    /// It was never withdrawn.
    Never,
}

/// How far the run's trial is.
#[derive(Debug, Default)]
enum TrialState {
    /// There is none, or nobody is to hear of it.
    #[default]
    None,
    /// One of this unit may begin, or has at this time.
    UnderWay(UnitId, Option<Instant>),
    /// It ended at this time, and what was claimed from it last is being copied.
    Claimed(Instant),
}

/// What a unit does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Compute this package.
    Package(Package),
    /// There is nothing now: end a package in flight, then ask again.
    Later,
    /// Something of the unit's own wants its attention.
    CalledBack,
    /// Let these units begin.
    Start(Vec<UnitId>),
    /// Take over what was claimed from a trial.
    Tried(Box<TrialEnd>),
    /// Stop.
    NoMore,
}

impl Commander {
    pub(crate) fn new(splitter: Splitter, cancel: Option<Arc<Cancel>>) -> Self {
        let state = State {
            splitter,
            trial: TrialState::None,
            wanted: None,
            has_tried: false,
            is_rival: false,
            awaits_rival: false,
            wants_rival: false,
            claims: Vec::new(),
            ended: None,
            claimed: Vec::new(),
            has_computed: false,
            waiting: 0,
            overtaking: Overtaking::default(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            told: AtomicU64::new(0),
            to_try: Condvar::new(),
            cancel,
            made: Instant::now(),
        }
    }

    /// Returns whether the run was cancelled: nobody gets any further package.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled())
    }

    /// Waits for a request of the run, as long as the run is not cancelled.
    ///
    /// # Errors
    /// [`Interrupted`](crate::running::Interrupted) after a cancellation, or what the request ends with.
    pub(crate) fn wait_for(&self, acquire: Acquire) -> Result<Grants, KernelError> {
        match &self.cancel {
            Some(cancel) => cancel.wait(acquire),
            None => Ok(acquire.wait()?),
        }
    }

    /// Marks this thread as one of the run, if the run was started.
    pub(crate) fn enter(&self) -> Option<Within> {
        self.cancel.as_ref().map(|cancel| cancel.enter())
    }

    /// Returns what a unit with nothing in flight does next. Sleeps while other units hold the rest of the work, which may
    /// come back, and while the unit is not called back.
    pub(crate) fn next(&self, unit: UnitId, begun: Instant, is_called_back: impl Fn() -> bool) -> Next {
        let since = Instant::now();
        let mut state = self.state.lock();
        loop {
            if is_called_back() {
                return Next::CalledBack;
            }
            if let Some(end) = state.ended.take() {
                return Next::Tried(end);
            }
            if std::mem::take(&mut state.has_tried) {
                return Next::Start(self.called_up(&mut state));
            }
            if self.is_cancelled() {
                return Next::NoMore;
            }
            match state.splitter.assign_at(unit, begun.elapsed()) {
                Assignment::Package(package) => return Next::Package(package),
                Assignment::NoMore => return Next::NoMore,
                Assignment::Wait => {
                    state.waiting += 1;
                    let is_calm = matches!(state.trial, TrialState::None) && !state.is_rival;
                    let stays_awake = is_calm && since.elapsed() < AWAKE_AT_END;
                    state = if stays_awake { self.watch(state, since) } else { self.wait(state) };
                    state.waiting -= 1;
                }
            }
        }
    }

    /// Wakes whoever waits, and tells whoever watches, that there may be something else to do.
    fn tell(&self) {
        self.told.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until there may be something else to do, or for long enough, without sleeping. Others have the lock and the core meanwhile.
    fn watch<'a>(&'a self, state: MutexGuard<'a, State>, since: Instant) -> MutexGuard<'a, State> {
        let told = self.told.load(Ordering::Acquire);
        drop(state);
        while self.told.load(Ordering::Acquire) == told && since.elapsed() < AWAKE_AT_END {
            std::thread::yield_now();
        }
        self.state.lock()
    }

    /// Waits until there may be something else to do.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // Nobody says when the unit has waited long enough for a trial. It is woken late, so at first it does not sleep.
        match &state.trial {
            TrialState::UnderWay(_, Some(since)) | TrialState::Claimed(since)
                if !state.is_rival && since.elapsed() < AWAKE =>
            {
                self.spin(state)
            }
            TrialState::UnderWay(_, since) if !state.is_rival => {
                let later = LATER.max(since.map_or(LATER, |since| since.elapsed() / LATER_PARTS));
                self.changed.wait_until(state, Instant::now() + later).0
            }
            _ => self.changed.wait(state),
        }
    }

    /// Lets others have the lock for a moment.
    fn spin<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        drop(state);
        let until = Instant::now() + MOMENT;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        self.state.lock()
    }

    /// Returns what a unit with packages in flight does next.
    pub(crate) fn next_now(&self, unit: UnitId, begun: Instant) -> Next {
        let mut state = self.state.lock();
        if let Some(end) = state.ended.take() {
            return Next::Tried(end);
        }
        if std::mem::take(&mut state.has_tried) {
            return Next::Start(self.called_up(&mut state));
        }
        if self.is_cancelled() {
            return Next::NoMore;
        }
        match state.splitter.assign_at(unit, begun.elapsed()) {
            Assignment::Package(package) => Next::Package(package),
            Assignment::NoMore => Next::NoMore,
            Assignment::Wait => Next::Later,
        }
    }

    /// Wakes the units that sleep in [`Commander::next`]: one is called back, or the run is cancelled.
    pub(crate) fn call_back(&self) {
        // Whoever has looked, and does not sleep yet, holds the lock.
        drop(self.state.lock());
        self.tell();
    }

    /// Tells the policy that a package is computed, and that its results still travel. Returns the units that were left out so far, and are
    /// to begin now.
    ///
    /// # Panics
    /// As [`complete`](Self::complete).
    #[must_use]
    pub(crate) fn ended(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        let mut state = self.state.lock();
        state.has_computed = true;
        state.splitter.ended(package, computed).expect("the unit has it");
        let called = self.called_up(&mut state);
        drop(state);
        self.tell();
        called
    }

    /// Records that a package's items are computed. Returns the units that were left out so far, and are to begin now.
    ///
    /// # Panics
    /// When no unit has the package. A unit completes its packages before it retires.
    #[must_use]
    pub(crate) fn complete(&self, package: &Package, computed: Computed) -> Vec<UnitId> {
        let mut state = self.state.lock();
        state.has_computed = true;
        state.splitter.complete_with(package, computed).expect("the unit has it");
        state.overtaking.computed(package, Instant::now());
        state.end_claims();
        let called = self.called_up(&mut state);
        drop(state);
        self.tell();
        called
    }

    /// Returns how the launch of a package can be withdrawn: while a trial may compute the same items, and once it has.
    pub(crate) fn withdrawal(&self, package: &Package) -> Option<Withdrawal> {
        let mut state = self.state.lock();
        let is_tried = matches!(state.trial, TrialState::UnderWay(..)) && !state.is_rival;
        let is_awaited = state.overtaking.awaits(package);
        let withdrawal = (is_tried || is_awaited).then(|| state.overtaking.begins(package, Instant::now()));
        drop(state);
        if is_awaited {
            // Whoever waits for it looks when it is late.
            self.tell();
        }
        withdrawal
    }

    /// Gives up a package whose launch was left, if a trial has computed it.
    pub(crate) fn give_up(&self, package: &Package, took: Duration) -> GivenUp {
        let mut state = self.state.lock();
        if !state.overtaking.awaits(package) {
            return GivenUp::Never;
        }
        // Without results nobody conducts the trial any more.
        let by = state.overtaking.unit().filter(|unit| state.splitter.is_active(*unit));
        let given_up = match by.zip(state.overtaking.results()) {
            // Its unit may have retired, and others have it.
            Some((by, results)) => {
                state.splitter.hand_over(package, by).map_or(GivenUp::ToOthers, |claimed| {
                    state.overtaking.given_up(package, claimed.clone(), took);
                    state.claims.push(claimed.clone());
                    GivenUp::ToTrial(claimed, results)
                })
            }
            None => {
                _ = state.splitter.give_back(package);
                GivenUp::ToOthers
            }
        };
        state.overtaking.forget(package);
        state.end_claims();
        drop(state);
        self.tell();
        given_up
    }

    /// Says what the run's trial has computed, before it is [over](Self::tried).
    pub(crate) fn offer(&self, results: Arc<Results>) {
        self.state.lock().overtaking.offer(results);
    }

    /// Waits until the packages are done that the trial has computed as well, and withdraws those that are late. From then on nobody uses its results. Returns
    /// whether somebody has.
    pub(crate) fn await_overtaken(&self) -> bool {
        let mut state = self.state.lock();
        while state.overtaking.awaits_any() || state.overtaking.are_copied() {
            let is_one_in_time = state.overtaking.withdraw_late(Instant::now());
            state = if is_one_in_time { self.spin(state) } else { self.wait(state) };
        }
        let (results, is_used) = (state.overtaking.end(), !state.overtaking.lost().is_empty());
        drop(state);
        // That frees memory, unless the trial does.
        drop(results);
        is_used
    }

    /// What units gave up because a trial had computed it.
    pub(crate) fn lost(&self) -> Vec<Overtaken> {
        self.state.lock().overtaking.lost().to_vec()
    }

    /// Retires a unit: the other units get its packages and its share. Returns the units that were left out so far, and are
    /// to begin now.
    pub(crate) fn retire(&self, unit: UnitId) -> Vec<UnitId> {
        self.take_out(|splitter| splitter.retire(unit))
    }

    /// Leaves a unit out, as [`retire`](Self::retire) does, unless the others cannot finish the work.
    pub(crate) fn spare(&self, unit: UnitId) -> Vec<UnitId> {
        self.take_out(|splitter| splitter.spare(unit))
    }

    fn take_out(&self, take: impl FnOnce(&mut Splitter)) -> Vec<UnitId> {
        let mut state = self.state.lock();
        state.has_computed = true;
        take(&mut state.splitter);
        let State { splitter, overtaking, .. } = &mut *state;
        overtaking.await_only(|package| splitter.in_flight().any(|other| other == package));
        state.end_claims();
        let called = self.called_up(&mut state);
        drop(state);
        self.tell();
        called
    }

    /// The units that are to begin now. A cancelled run starts nobody.
    fn called_up(&self, state: &mut State) -> Vec<UnitId> {
        if self.is_cancelled() {
            return Vec::new();
        }
        if matches!(state.trial, TrialState::UnderWay(_, None)) && state.wants_trial() {
            self.to_try.notify_all();
        }
        if state.awaits_rival && state.wants_trial() {
            (state.awaits_rival, state.wants_rival) = (false, true);
        }
        state.splitter.called_up()
    }

    /// Reopens a completed package whose results were lost: its items are computed again.
    ///
    /// # Panics
    /// When the package is not completed. The director reopens each recorded package only once.
    pub(crate) fn reopen(&self, package: &Package) {
        self.state.lock().splitter.reopen(package).expect("the unit has computed it");
        self.tell();
    }

    /// Records that a package claimed from a trial is computed, or takes it back. Returns the units that were left out so far, and are to begin
    /// now; `None` if its unit has retired, so that others have the package.
    pub(crate) fn take_over(&self, package: &Package, computed: Option<Computed>) -> Option<Vec<UnitId>> {
        let mut state = self.state.lock();
        let is_computed = computed.is_some();
        let taken = match computed {
            Some(computed) => state.splitter.complete_with(package, computed),
            None => state.splitter.give_back(package),
        };
        if taken.is_ok() && is_computed {
            state.claimed.push(package.clone());
        }
        let called = taken.ok().map(|()| self.called_up(&mut state));
        drop(state);
        self.tell();
        called
    }

    /// Lets a trial begin, once the policy wants one. Without a thread for it (`is_to_be_had`), the policy is told that there is none.
    pub(crate) fn begin_trial(&self, unit: UnitId, is_to_be_had: bool) {
        let mut state = self.state.lock();
        if is_to_be_had {
            state.trial = TrialState::UnderWay(unit, None);
        } else {
            (state.trial, state.wanted) = (TrialState::None, None);
            _ = state.splitter.tried(unit, 0..0, None);
        }
    }

    /// Says that the device that can be tried out computes on the cores of those who begin. Nobody is to wait for its trial to begin: whoever
    /// [takes the wish](Self::takes_rival) lets it.
    pub(crate) fn await_rival(&self) {
        let mut state = self.state.lock();
        (state.is_rival, state.awaits_rival) = (true, true);
    }

    /// Returns whether the trial of such a device is wanted; to one caller.
    pub(crate) fn takes_rival(&self) -> bool {
        std::mem::take(&mut self.state.lock().wants_rival)
    }

    /// Waits until a unit is to be tried out, and returns it with the items; `None` if none is.
    pub(crate) fn try_out(&self, begun: Instant) -> Option<(UnitId, Range<u64>)> {
        let mut state = self.state.lock();
        loop {
            if !matches!(state.trial, TrialState::UnderWay(..)) || self.is_cancelled() {
                return None;
            }
            let Some(asked) = state.asked(begun.elapsed()) else {
                state.trial = TrialState::None;
                return None;
            };
            match asked {
                Ok(trial) => return Some(trial),
                Err(NotYet) if begun.elapsed() < AWAKE_BEFORE => state = self.spin(state),
                Err(NotYet) => {
                    let later = LATER.max(begun.elapsed() / LATER_PARTS);
                    state = self.to_try.wait_until(state, Instant::now() + later).0;
                }
            }
        }
    }

    /// Returns the package that is claimed from a trial under way, of items that it has computed, if nobody has them all and the run is not over. It
    /// is to be copied, and [brought home](Self::bring_home).
    pub(crate) fn claim(&self, unit: UnitId, items: Range<u64>) -> Option<Package> {
        let mut state = self.state.lock();
        if !matches!(state.trial, TrialState::UnderWay(..)) || self.is_cancelled() {
            return None;
        }
        let claimed = state.splitter.claim(unit, items);
        state.claims.extend(claimed.clone());
        claimed
    }

    /// Returns the items with which a trial under way is to go on, in front of its own; `None` if it is not. It is while nobody has computed a package
    /// since it began, and nobody waits for one.
    pub(crate) fn extend_trial(&self, items: &Range<u64>, length: u64) -> Option<Range<u64>> {
        let state = self.state.lock();
        let is_alone = !state.has_computed && state.waiting == 0 && !state.is_rival && !self.is_cancelled();
        if !is_alone || !matches!(state.trial, TrialState::UnderWay(..)) {
            return None;
        }
        state.splitter.in_front_of(items.start, length)
    }

    /// Tells the policy that a trial has ended, and when, or that it failed. Returns what is claimed from it now, like [`claim`](Self::claim).
    pub(crate) fn tried(
        &self,
        unit: UnitId,
        items: Range<u64>,
        times: Option<[Duration; 3]>,
    ) -> Option<Package> {
        let mut state = self.state.lock();
        if !matches!(std::mem::take(&mut state.trial), TrialState::UnderWay(..)) {
            return None;
        }
        let mut claimed = None;
        if !self.is_cancelled() {
            claimed = state.splitter.tried(unit, items.clone(), times);
            state.claims.extend(claimed.clone());
            state.has_tried = true;
            if times.is_some() {
                state.await_tried(unit, &items);
            }
        }
        if claimed.is_some() || state.overtaking.awaits_any() {
            state.trial = TrialState::Claimed(Instant::now());
        }
        drop(state);
        self.tell();
        claimed
    }

    /// The packages that were claimed from the run's trial and taken over.
    pub(crate) fn claimed(&self) -> Vec<Package> {
        self.state.lock().claimed.clone()
    }

    /// Returns whether a unit has a package: it did not retire since.
    pub(crate) fn is_in_flight(&self, package: &Package) -> bool {
        self.state.lock().splitter.in_flight().any(|other| other == package)
    }

    /// Tells the run that what was claimed from its trial is copied, or could not be. From then on the run does not wait for it.
    pub(crate) fn bring_home(&self, device: DeviceId, tried: Tried) {
        let mut state = self.state.lock();
        state.claims.retain(|package| *package != tried.package);
        state.overtaking.copied(&tried.package);
        let end = state.ended.get_or_insert_with(|| Box::new(TrialEnd { device, packages: Vec::new() }));
        end.packages.push(tried);
        state.end_claims();
        drop(state);
        self.tell();
    }

    /// Ends a trial that nobody conducts any more. What was claimed from it is given back.
    pub(crate) fn give_trial_up(&self) {
        let mut state = self.state.lock();
        for package in std::mem::take(&mut state.claims) {
            // Its unit may have retired.
            _ = state.splitter.give_back(&package);
        }
        let unused = state.overtaking.end();
        if matches!(state.trial, TrialState::Claimed(_)) {
            state.trial = TrialState::None;
        }
        state.forget_trial();
        drop(state);
        self.tell();
        // That frees memory.
        drop(unused);
    }

    /// Ends the run's trial, because no unit works any more: from now on nothing is claimed from it. Returns what was, and nobody has taken over.
    pub(crate) fn settle_trial(&self) -> Option<Box<TrialEnd>> {
        let mut state = self.state.lock();
        // Nobody computes any more.
        state.overtaking.await_only(|_| false);
        self.tell();
        while !state.claims.is_empty() {
            state = self.changed.wait(state);
        }
        state.forget_trial();
        let end = state.ended.take();
        drop(state);
        // Early in a run, whoever waits for a trial to begin looks soon, and waking it would take as long as a short run.
        if self.made.elapsed() > AWAKE {
            self.to_try.notify_all();
        }
        end
    }

    /// Lets all units take part that were left out. Returns whether there were any.
    pub(crate) fn call_up_all(&self) -> bool {
        self.state.lock().splitter.call_up_all()
    }

    /// Returns whether the unit is left out, and was not called up.
    pub(crate) fn is_left_out(&self, unit: UnitId) -> bool {
        self.state.lock().splitter.is_benched(unit)
    }

    /// Returns whether the unit is still part of the run, and not left out.
    pub(crate) fn is_active(&self, unit: UnitId) -> bool {
        let splitter = &self.state.lock().splitter;
        splitter.is_active(unit) && !splitter.is_benched(unit)
    }

    /// The packages that each unit has completed, and their items.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        self.state.lock().splitter.completed_by_unit().collect()
    }

    /// The number of items that no unit computed.
    pub(crate) fn missing(&self) -> u64 {
        let splitter = &self.state.lock().splitter;
        splitter.work() - splitter.completed()
    }
}

impl State {
    /// Notes what others compute of a unit's trial that has ended, if nothing else is left for them.
    fn await_tried(&mut self, unit: UnitId, items: &Range<u64>) {
        if self.is_rival || self.splitter.unassigned() > 0 || !self.splitter.is_active(unit) {
            return;
        }
        let is_tried = |package: &&Package| {
            package.unit() != unit && items.start <= package.start() && package.end() <= items.end
        };
        let awaited = self.splitter.in_flight().filter(is_tried).cloned().collect();
        self.overtaking.tried(unit, awaited, Instant::now());
    }

    /// Ends the trial, once nothing of it is to be copied.
    fn end_claims(&mut self) {
        let is_done = self.claims.is_empty() && !self.overtaking.awaits_any();
        if is_done && matches!(self.trial, TrialState::Claimed(_)) {
            self.trial = TrialState::None;
        }
    }

    /// Lets a trial under way be none, as if it had failed.
    fn forget_trial(&mut self) {
        if let TrialState::UnderWay(unit, _) = self.trial {
            (self.trial, self.wanted) = (TrialState::None, None);
            _ = self.splitter.tried(unit, 0..0, None);
        }
    }

    /// Asks the policy whether a trial is to begin; once it is, that stands until it is [taken](Self::asked).
    fn wants_trial(&mut self) -> bool {
        if self.wanted.is_none()
            && let Some(Ok(trial)) = self.splitter.try_out(Duration::ZERO)
        {
            self.wanted = Some(trial);
        }
        self.wanted.is_some()
    }

    /// Asks the policy whether a trial is to begin, and says that it has.
    fn asked(&mut self, now: Duration) -> Option<Result<(UnitId, Range<u64>), NotYet>> {
        let asked = self.wanted.take().map_or_else(|| self.splitter.try_out(now), |trial| Some(Ok(trial)));
        if let Some(Ok((unit, _))) = asked {
            self.trial = TrialState::UnderWay(unit, Some(Instant::now()));
            self.has_computed = false;
        }
        asked
    }
}
