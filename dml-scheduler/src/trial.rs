//! Trials: a device of which nothing is known computes part of the work into memory of its own, while others compute the same.
//!
//! ```text
//!   the run       sample▏package▏package▏package▏package▏takes the copies over ─▶ complete
//!   its trial       └▶ inputs, results of its own ─▶ launch ─▶ wait ─▶ claim ─▶ copy, bring home
//!                                                      └─ the run is over: nobody hears of it
//! ```
//! Whoever computes a package holds what it writes until it has ended, so a run waits for the slowest one. For a trial it does not: what
//! it writes is nobody's, and what it computed is claimed from the splitter afterwards, as far as nobody has it.
//!
//! 1. A trial that is not to be had now ends: it waits for nobody's buffers.
//! 2. When the run is over, nobody claims anything, and no copy of the kernel is left, except with a launcher that takes long to launch. What the
//!    device still reads is held for reading until it has ended.
//! 3. Each trial runs on a thread of its own. Where none is to be had there is no trial. In a fork there is none.
//! 4. Where results take long to travel, a trial has several parts, which are launched at once. The last items come first: the others compute from the
//!    other end. While the results of one part travel, the next one computes. The run takes each part over when it is home, and waits for no other.
//!    While those who compute do not come to an end of what they had when the trial began, it goes on with further parts.
//! 5. A trial computes what others have under way as well. Whoever is done first has computed it. Where nothing else is left for the others when the trial
//!    has ended, they are told, and a launcher that looks at the [withdrawal](dml_core::Withdrawal) of its launch leaves it.
//! 6. What is claimed goes from the trial's own buffers straight home. A copy on the device would be waited for, and would wait for the parts that compute. It is
//!    made where results stay on the device, or where nobody of this process can write to their home.

use crate::commander::Commander;
use crate::guard::{guarded, quietly};
use crate::kernel::{Argument, Kernel, KernelError, NotStarted};
use crate::knowledge::{Knowledge, Weight};
use crate::package::{Package, UnitId};
use crate::running::Interrupted;
use crate::unit::{bring, caught};
use dml_core::helpers::Helpers;
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{
    Access, Acquire, AcquireError, BufferCopy, DeviceId, Fence, Grants, InFlight, LaunchError, Launcher,
    Operation, Platform, RawBuffer, ViewError,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The most trials at once.
const MOST_TRIALS: usize = 8;

/// How long a run that is over waits for a launcher that still has its kernel. A driver may compile in a launch, or hang.
const LAUNCH_PATIENCE: Duration = Duration::from_millis(1);

/// A run's kernel, until the run is over.
pub(crate) struct Lent {
    state: Mutex<LentState>,
    /// Whoever used it does not any more.
    is_back: Condvar,
}

struct LentState {
    kernel: Option<Kernel>,
    is_in_use: bool,
}

impl Lent {
    pub(crate) fn new(kernel: Kernel) -> Self {
        let state = LentState { kernel: Some(kernel), is_in_use: false };
        Self { state: Mutex::new(state), is_back: Condvar::new() }
    }

    /// Takes the kernel back. Whoever uses it is waited for, but not for long.
    pub(crate) fn take_back(&self) {
        let until = Instant::now() + LAUNCH_PATIENCE;
        let mut state = self.state.lock();
        let kernel = state.kernel.take();
        while state.is_in_use && Instant::now() < until {
            state = self.is_back.wait_until(state, until).0;
        }
        drop(state);
        drop(kernel);
    }

    /// Uses a copy of the kernel, which is no more there afterwards; `None` if it was taken back. No lock is held meanwhile.
    fn with<R>(&self, using: impl FnOnce(&Kernel) -> R) -> Option<R> {
        let kernel = {
            let mut state = self.state.lock();
            let kernel = state.kernel.clone()?;
            state.is_in_use = true;
            kernel
        };
        let used = guarded(|| using(&kernel));
        quietly(kernel);
        self.state.lock().is_in_use = false;
        self.is_back.notify_all();
        Some(used.unwrap_or_else(|message| std::panic::resume_unwind(Box::new(message))))
    }
}

/// What a trial needs of its run.
pub(crate) struct Trial {
    pub(crate) commander: Arc<Commander>,
    pub(crate) platform: Platform,
    pub(crate) kernel: Arc<Lent>,
    /// The device of each unit, and what it is called where runs are learned from.
    pub(crate) devices: Vec<(DeviceId, String)>,
    /// What the trial teaches, about the kernel of this name and its items.
    pub(crate) knowledge: Knowledge,
    pub(crate) name: String,
    pub(crate) items: u64,
    /// In how many parts it is, of so many items or a multiple.
    pub(crate) parts: u64,
    pub(crate) local_size: u64,
    /// Whether the device computes on the cores of those who began.
    pub(crate) is_rival: bool,
    pub(crate) collect_on: Option<DeviceId>,
    pub(crate) begun: Instant,
}

/// What was claimed from a trial and is copied. Times are from the start of the run.
#[derive(Debug)]
pub(crate) struct TrialEnd {
    pub(crate) device: DeviceId,
    pub(crate) packages: Vec<Tried>,
}

/// A package that was claimed from a trial.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) package: Package,
    /// Whether its results are where they belong. Otherwise somebody else is to compute them.
    pub(crate) is_computed: bool,
    pub(crate) handed: Duration,
    /// When the device would have begun, had it computed the package alone.
    pub(crate) begun: Duration,
    pub(crate) computed: Duration,
    pub(crate) end: Duration,
}

/// The trial's own buffers for results: each with the place of the kernel's buffer among its arguments.
type Own = Vec<(usize, RawBuffer)>;

/// The results of a trial that has ended.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) device: DeviceId,
    pub(crate) own: Arc<Own>,
    pub(crate) handed: Duration,
    /// The items of its last part, when the device could begin with that, and when it had computed it.
    pub(crate) part: u64,
    pub(crate) times: [Duration; 2],
}

impl Results {
    /// What is told of a package whose results are where they belong, or could not be copied, by the pace of the last part.
    pub(crate) fn tried(
        &self,
        package: Package,
        is_computed: bool,
        computed: Duration,
        end: Duration,
    ) -> Tried {
        let [begun, ended] = self.times;
        let took = ended.saturating_sub(begun).mul_f64(package.items() as f64 / self.part as f64);
        let begun = ended.saturating_sub(took);
        Tried { package, is_computed, handed: self.handed, begun, computed, end }
    }
}

/// What is to be copied of a trial's own buffers, for a package.
pub(crate) fn copies(kernel: &Kernel, own: &Own, package: &Package) -> Result<Vec<BufferCopy>, KernelError> {
    let mut copies = Vec::new();
    for (index, from) in own {
        let argument = &kernel.arguments()[*index];
        for bytes in argument.ranges(package.range())? {
            copies.push(BufferCopy::new(from, argument.buffer(), bytes));
        }
    }
    Ok(copies)
}

/// Copies from a trial's own buffers on a device to what was granted on the host.
pub(crate) fn read_into(
    platform: &Platform,
    device: DeviceId,
    copies: &[BufferCopy],
    targets: &mut Grants,
) -> Result<(), KernelError> {
    let reads = copies.iter().fold(platform.acquire(device), |reads, BufferCopy { from, bytes, .. }| {
        reads.read(&from.range(bytes.clone()))
    });
    // Nobody else has these.
    let sources = reads.try_now()?;
    for BufferCopy { from, to, bytes, .. } in copies {
        sources.read_bytes_to(&from.range(bytes.clone()), targets, &to.range(bytes.clone()))?;
    }
    // A drop would wait for whatever the device computes.
    Ok(sources.release()?)
}

/// A trial that was launched.
struct UnderWay {
    unit: UnitId,
    device: DeviceId,
    /// Those of all parts.
    items: Range<u64>,
    handed: Duration,
    own: Arc<Own>,
    /// Whether results of it are where they belong.
    is_taken: bool,
}

/// A part of a trial that the device computes, or will.
struct Part {
    items: Range<u64>,
    begun: Duration,
    flight: InFlight,
}

impl Trial {
    /// Waits until the policy wants a unit tried out, and tries it.
    fn conduct(&self) {
        let _within = self.commander.enter();
        let Some((unit, items)) = self.commander.try_out(self.begun) else { return };
        let (device, called) = &self.devices[unit.0];
        let device = *device;
        let about = (self.name.as_str(), self.items);
        // Asked before it begins: trials of several runs may wait for the same compiler.
        let is_first = self.knowledge.is_first_trial(about, called, self.is_rival);
        let handed = self.begun.elapsed();
        let mut under_way = UnderWay { unit, device, items, handed, own: Arc::default(), is_taken: false };
        let parts = caught(|| {
            under_way.own = Arc::new(self.make_own()?);
            self.launch(&under_way.items, unit, device, &under_way.own)
        });
        let begun = parts.as_ref().map_or(handed, |parts| parts.first().map_or(handed, |part| part.begun));
        let last = parts.and_then(|parts| self.end_parts(parts, &mut under_way));
        if last.is_err() {
            // Whoever comes next is to know.
            self.platform.notice_losses();
        }
        let times = last.as_ref().ok().map(|(_, [_, ended])| [handed, begun, *ended]);
        let items = under_way.items.clone();
        if let Ok((part, times)) = last {
            let own = under_way.own.clone();
            self.commander.offer(Arc::new(Results { device, own, handed, part, times }));
        }
        let claimed = self.commander.tried(unit, items.clone(), times);
        if let Ok((part, times)) = last {
            if let Some(package) = claimed {
                self.take(package, &mut under_way, part, times);
            }
            under_way.is_taken |= self.commander.await_overtaken();
        }
        if let Some([handed, begun, ended]) = times {
            // Also if nobody takes it: a device that was not much slower than the host has its part in a later run.
            let took = [begun.saturating_sub(handed), ended.saturating_sub(begun)];
            let weight = Weight::of(under_way.is_taken, self.is_rival, is_first);
            self.knowledge.learn_trial(about, called, items.end - items.start, took, weight);
        }
        // A driver may wait for the device to free its memory, which computes other packages by now.
        drop(under_way);
    }

    /// Waits for the parts one after the other, and takes what is claimed of all but the last one. While nobody else comes to anything, there are more.
    /// Returns the items of the last one, when the device could begin with it, and when it had computed it.
    fn end_parts(
        &self,
        parts: Vec<Part>,
        under_way: &mut UnderWay,
    ) -> Result<(u64, [Duration; 2]), KernelError> {
        let length = under_way.items.end - under_way.items.start;
        let (mut before, mut last) = (Duration::ZERO, None);
        let mut parts = VecDeque::from(parts);
        while let Some(Part { items, begun, flight }) = parts.pop_front() {
            caught(|| Ok(flight.wait()?.release()?))?;
            let (begun, ended) = (begun.max(before), self.begun.elapsed());
            before = ended;
            let part = items.end - items.start;
            last = Some((part, [begun, ended]));
            if parts.len() <= 1 {
                parts.extend(self.further_parts(under_way, length));
            }
            if !parts.is_empty()
                && let Some(package) = self.commander.claim(under_way.unit, items)
            {
                self.take(package, under_way, part, [begun, ended]);
            }
        }
        last.ok_or_else(|| Interrupted.into())
    }

    /// Launches further parts, if the trial is to go on. If that fails, it is not.
    fn further_parts(&self, under_way: &mut UnderWay, length: u64) -> Vec<Part> {
        let UnderWay { unit, device, .. } = *under_way;
        let Some(further) = self.commander.extend_trial(&under_way.items, length) else { return Vec::new() };
        let parts = caught(|| self.launch(&further, unit, device, &under_way.own));
        match parts {
            Ok(parts) => {
                under_way.items.start = further.start;
                parts
            }
            Err(_) => {
                self.platform.notice_losses();
                Vec::new()
            }
        }
    }

    /// Takes a package that is claimed of a part of so many items to where it belongs. The times are those of the part.
    fn take(&self, package: Package, under_way: &mut UnderWay, part: u64, times: [Duration; 2]) {
        let UnderWay { device, handed, .. } = *under_way;
        let copied = caught(|| self.copy(&package, device, &under_way.own));
        let computed = self.begun.elapsed();
        let brought = copied.and_then(|away| caught(|| self.bring(device, &away)));
        if brought.is_err() {
            self.platform.notice_losses();
        }
        under_way.is_taken |= brought.is_ok();
        let results = Results { device, own: under_way.own.clone(), handed, part, times };
        let tried = results.tried(package, brought.is_ok(), computed, self.begun.elapsed());
        self.commander.bring_home(device, tried);
    }

    /// The items of the parts, in the order in which they are launched.
    fn parts(&self, items: &Range<u64>) -> Vec<Range<u64>> {
        let length = (items.end - items.start).div_ceil(self.parts.max(1));
        let length = length.next_multiple_of(self.local_size.max(1));
        let starts = (0..self.parts).map(|part| items.start + part * length);
        let starts: Vec<u64> = starts.take_while(|start| *start < items.end).collect();
        starts.into_iter().rev().map(|start| start..items.end.min(start + length)).collect()
    }

    /// Makes the trial's own buffers.
    fn make_own(&self) -> Result<Own, KernelError> {
        self.with_kernel(|kernel| {
            let written = kernel.arguments().iter().enumerate().filter(|(_, it)| it.access().writes());
            let own = written.map(|(index, argument)| {
                let buffer = argument.buffer();
                let label = format!("trial of {}", buffer.name());
                Ok((index, self.platform.raw_buffer(buffer.len()).label(label).build()?))
            });
            own.collect()
        })
    }

    /// Launches a kernel on items, with results in buffers of the trial's own.
    fn launch(
        &self,
        items: &Range<u64>,
        unit: UnitId,
        device: DeviceId,
        own: &Own,
    ) -> Result<Vec<Part>, KernelError> {
        let place = |(index, argument): (usize, &Argument)| match own.iter().find(|own| own.0 == index) {
            Some((_, buffer)) => argument.of_buffer(buffer),
            None => argument.clone(),
        };
        let mut parts = Vec::new();
        for items in self.parts(items) {
            let package = Package::new(items.clone(), unit, 0);
            let acquire = self.with_kernel(|kernel| {
                let mut acquire = self.platform.acquire(device);
                for argument in kernel.arguments().iter().enumerate().map(place) {
                    for bytes in argument.ranges(items.clone())? {
                        acquire = acquire.access(&argument.buffer().range(bytes), argument.access());
                    }
                }
                Ok(acquire)
            })?;
            let grants = acquire.try_now()?;
            let begun = self.begun.elapsed();
            self.platform.counters().count(Operation::Kernel);
            let flight = self.start(
                grants,
                |kernel, launcher, grants| {
                    let replaced: Vec<Argument> = kernel.arguments().iter().enumerate().map(place).collect();
                    let arguments =
                        kernel.launch_args(&package, &replaced).map_err(LaunchError::not_started)?;
                    let launch = kernel.launch(&items, &arguments).independent();
                    launcher.launch(&launch, grants)
                },
                device,
            )?;
            parts.push(Part { items, begun, flight });
        }
        Ok(parts)
    }

    /// Copies the part of the results that is a package to the kernel's buffers. Returns what is still to be brought home.
    fn copy(
        &self,
        package: &Package,
        device: DeviceId,
        own: &Own,
    ) -> Result<Vec<(RawBuffer, Range<u64>)>, KernelError> {
        let copies = self.with_kernel(|kernel| copies(kernel, own, package))?;
        if let Some(goal) = self.goal(device)
            && self.copy_home(package, (device, goal), &copies)?
        {
            return Ok(Vec::new());
        }
        let mut acquire = self.platform.acquire(device);
        for BufferCopy { from, to, bytes, .. } in &copies {
            acquire = acquire.read(&from.range(bytes.clone()));
            acquire = acquire.access(&to.range(bytes.clone()), Access::WriteInvalidate);
        }
        let grants = self.wait_for(acquire, package)?;
        let flight = self.start(grants, |_, launcher, grants| launcher.copy(&copies, grants), device)?;
        flight.wait()?.release()?;
        Ok(copies.into_iter().map(|BufferCopy { to, bytes, .. }| (to, bytes)).collect())
    }

    /// Copies results home. Returns whether it could: what is there may be out of this process's reach, and then nothing was copied.
    fn copy_home(
        &self,
        package: &Package,
        (device, goal): (DeviceId, DeviceId),
        copies: &[BufferCopy],
    ) -> Result<bool, KernelError> {
        let mut writes = self.platform.acquire(goal);
        for BufferCopy { to, bytes, .. } in copies {
            writes = writes.access(&to.range(bytes.clone()), Access::WriteInvalidate);
        }
        let mut targets = self.wait_for(writes, package)?;
        let is_out_of_reach = |BufferCopy { to, bytes, .. }: &BufferCopy| {
            let seen = targets.slice::<u8>(&to.range(bytes.clone()));
            matches!(seen, Err(ViewError::NotHost { .. }))
        };
        // Of all, before any is written: what was written was.
        if copies.iter().any(is_out_of_reach) {
            drop(targets.not_started());
            return Ok(false);
        }
        read_into(&self.platform, device, copies, &mut targets)?;
        targets.release()?;
        Ok(true)
    }

    /// Waits for what a package is written to, as long as its unit has it.
    fn wait_for(&self, acquire: Acquire, package: &Package) -> Result<Grants, KernelError> {
        let grants = self.commander.wait_for(acquire)?;
        if self.commander.is_in_flight(package) {
            return Ok(grants);
        }
        // Its unit has retired, and somebody else may have computed it.
        drop(grants.not_started());
        Err(Interrupted.into())
    }

    /// The device that results are to be brought to, if that has another memory.
    fn goal(&self, device: DeviceId) -> Option<DeviceId> {
        let home = |device| self.platform.home(device);
        self.collect_on.filter(|&goal| home(goal) != home(device))
    }

    /// Brings results home. Those that are in use elsewhere stay where they are, and so do those of a cancelled run.
    fn bring(&self, device: DeviceId, written: &[(RawBuffer, Range<u64>)]) -> Result<(), KernelError> {
        let Some(goal) = self.goal(device) else { return Ok(()) };
        match bring(
            &self.platform,
            &self.commander,
            goal,
            written.iter().map(|(buffer, bytes)| (buffer, bytes.clone())),
        ) {
            Err(error) if error.is::<Interrupted>() => Ok(()),
            Err(error) if error.downcast_ref::<AcquireError>().is_some_and(AcquireError::is_busy) => Ok(()),
            brought => brought,
        }
    }

    /// Starts work of the device on grants.
    fn start(
        &self,
        mut grants: Grants,
        start: impl FnOnce(&Kernel, &dyn Launcher, &mut Grants) -> Result<Fence, LaunchError>,
        device: DeviceId,
    ) -> Result<InFlight, KernelError> {
        let given: Vec<_> = grants.ids().collect();
        let started = guarded(|| {
            self.with_kernel(|kernel| {
                let launcher =
                    kernel.launcher_for(device).ok_or("no launcher of the kernel for this device")?;
                start(kernel, &**launcher, &mut grants).map_err(|error| match error {
                    LaunchError::NotStarted(cause) => NotStarted::new(cause).into(),
                    LaunchError::Failed(cause) => cause,
                })
            })
        });
        let started = started.unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()));
        if !grants.ids().eq(given) {
            quietly(started);
            return Err("the launcher exchanged its grants for others (K-5)".into());
        }
        match started {
            Ok(fence) => Ok(grants.hand_over().in_flight(fence)),
            Err(error) => {
                self.platform.notice_losses();
                if error.is::<NotStarted>() {
                    drop(grants.not_started());
                }
                Err(error)
            }
        }
    }

    /// Uses the run's kernel, as long as the run is not over.
    fn with_kernel<R>(
        &self,
        using: impl FnOnce(&Kernel) -> Result<R, KernelError>,
    ) -> Result<R, KernelError> {
        self.kernel.with(using).unwrap_or_else(|| Err(Interrupted.into()))
    }
}

/// How many trials this process conducts.
static CONDUCTED: AtomicUsize = AtomicUsize::new(0);

/// One of the trials that this process conducts.
struct Conducted;

impl Conducted {
    /// `None` if there are enough.
    fn new() -> Option<Self> {
        let counted = CONDUCTED.fetch_add(1, Relaxed) < MOST_TRIALS;
        let conducted = Self;
        counted.then_some(conducted)
    }
}

impl Drop for Conducted {
    fn drop(&mut self) {
        CONDUCTED.fetch_sub(1, Relaxed);
    }
}

/// Lets another thread conduct a trial. Returns whether there is one.
pub(crate) fn offer(trial: Trial) -> bool {
    let helpers = Helpers::shared();
    let Some(conducted) = Conducted::new().filter(|_| helpers.are_here()) else { return false };
    let conduct = move || {
        // A bug here must not leave the run without its end.
        if guarded(|| trial.conduct()).is_err() {
            trial.commander.give_trial_up();
        }
        quietly(trial);
        drop(conducted);
    };
    helpers.call(conduct).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_trials_at_once_and_more_after_them() {
        for _ in 0..3 {
            let all: Vec<_> =
                (0..MOST_TRIALS).map(|_| Conducted::new().expect("there may be so many")).collect();
            assert!(Conducted::new().is_none() && Conducted::new().is_none());
            drop(all);
        }
    }
}
