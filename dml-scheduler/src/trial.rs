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
//! 3. Trials run on threads of their own, one of which is kept. Where none is to be had there is no trial. In a fork there is none.

use crate::commander::Commander;
use crate::guard::{guarded, quietly};
use crate::kernel::{Argument, Kernel, KernelError, NotStarted};
use crate::knowledge::{Knowledge, Weight};
use crate::package::Package;
use crate::running::Interrupted;
use crate::unit::{bring, caught};
use dml_core::sync::{Arc, Condvar, Mutex};
use dml_core::{
    Access, AcquireError, BufferCopy, DeviceId, Fence, Grants, Launch, LaunchError, Launcher, Operation,
    Platform, RawBuffer,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The most threads that conduct trials at once.
const MOST_THREADS: usize = 8;

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
    /// Whether the device computes on the cores of those who began.
    pub(crate) is_rival: bool,
    pub(crate) collect_on: Option<DeviceId>,
    pub(crate) begun: Instant,
}

/// The end of a trial from which a package was claimed. Times are from the start of the run.
#[derive(Debug)]
pub(crate) struct TrialEnd {
    pub(crate) package: Package,
    pub(crate) device: DeviceId,
    /// Whether its results are where they belong. Otherwise somebody else is to compute them.
    pub(crate) is_computed: bool,
    pub(crate) handed: Duration,
    /// When the device would have begun, had it computed the package alone.
    pub(crate) begun: Duration,
    pub(crate) computed: Duration,
    pub(crate) end: Duration,
}

/// What was computed in a trial, and where its results are: the place of the kernel's buffer among its arguments, and the trial's own one.
struct Results {
    own: Vec<(usize, RawBuffer)>,
    handed: Duration,
    begun: Duration,
    ended: Duration,
}

impl Trial {
    /// Waits until the policy wants a unit tried out, and tries it.
    fn conduct(&self) {
        let _within = self.commander.enter();
        let Some((unit, items)) = self.commander.try_out(self.begun) else { return };
        let trial = Package::new(items, unit, 0);
        let (device, called) = &self.devices[unit.0];
        let device = *device;
        let about = (self.name.as_str(), self.items);
        // Asked before it begins: trials of several runs may wait for the same compiler.
        let is_first = self.knowledge.is_first_trial(about, called, self.is_rival);
        let results = caught(|| self.compute(&trial, device));
        if results.is_err() {
            // Whoever comes next is to know.
            self.platform.notice_losses();
        }
        let times = results.as_ref().ok().map(|results| [results.handed, results.begun, results.ended]);
        let claimed = self.commander.tried(unit, trial.range(), times);
        let taken = claimed.zip(results.ok()).map(|(package, results)| {
            let copied = caught(|| self.copy(&package, device, &results.own));
            let computed = self.begun.elapsed();
            let brought = copied.and_then(|written| caught(|| self.bring(device, &written)));
            if brought.is_err() {
                self.platform.notice_losses();
            }
            (package, results, computed, brought.is_ok())
        });
        if let Some([handed, begun, ended]) = times {
            // Also if nobody takes it: a device that was not much slower than the host has its part in a later run.
            let took = [begun.saturating_sub(handed), ended.saturating_sub(begun)];
            let is_taken = matches!(taken, Some((.., true)));
            let weight = Weight::of(is_taken, self.is_rival, is_first);
            self.knowledge.learn_trial(about, called, trial.items(), took, weight);
        }
        let Some((package, results, computed, is_computed)) = taken else { return };
        let Results { own, handed, begun, ended } = results;
        let part = package.items() as f64 / trial.items() as f64;
        let took = ended.saturating_sub(begun).mul_f64(part);
        self.commander.end_trial(TrialEnd {
            package,
            device,
            is_computed,
            handed,
            begun: ended.saturating_sub(took),
            computed,
            end: self.begun.elapsed(),
        });
        // A driver may wait for the device to free its memory, which computes other packages by now.
        drop(own);
    }

    /// Computes items into buffers of the trial's own.
    fn compute(&self, trial: &Package, device: DeviceId) -> Result<Results, KernelError> {
        let handed = self.begun.elapsed();
        let mut own: Vec<(usize, RawBuffer)> = Vec::new();
        let acquire = self.with_kernel(|kernel| {
            let mut acquire = self.platform.acquire(device);
            for (index, argument) in kernel.arguments().iter().enumerate() {
                let mut buffer = argument.buffer().clone();
                if argument.access().writes() {
                    let label = format!("trial of {}", buffer.name());
                    buffer = self.platform.raw_buffer(buffer.len()).label(label).build()?;
                    own.push((index, buffer.clone()));
                }
                for bytes in argument.ranges(trial.range())? {
                    acquire = acquire.access(&buffer.range(bytes), argument.access());
                }
            }
            Ok(acquire)
        })?;
        let grants = acquire.try_now()?;
        let begun = self.begun.elapsed();
        self.platform.counters().count(Operation::Kernel);
        self.run(
            grants,
            |kernel, launcher, grants| {
                let replaced =
                    |(index, argument): (usize, &Argument)| match own.iter().find(|own| own.0 == index) {
                        Some((_, buffer)) => {
                            Argument::part(buffer, argument.access(), argument.footprint().clone())
                        }
                        None => argument.clone(),
                    };
                let replaced: Vec<Argument> = kernel.arguments().iter().enumerate().map(replaced).collect();
                let arguments = kernel.launch_args(trial, &replaced).map_err(LaunchError::not_started)?;
                launcher.launch(&Launch::new(&trial.range(), kernel.shape(), &arguments), grants)
            },
            device,
        )?;
        Ok(Results { own, handed, begun, ended: self.begun.elapsed() })
    }

    /// Copies the part of the results that is a package to the kernel's buffers. Returns it.
    fn copy(
        &self,
        package: &Package,
        device: DeviceId,
        own: &[(usize, RawBuffer)],
    ) -> Result<Vec<(RawBuffer, Range<u64>)>, KernelError> {
        let copies = self.with_kernel(|kernel| {
            let mut copies = Vec::new();
            for (index, from) in own {
                let argument = &kernel.arguments()[*index];
                for bytes in argument.ranges(package.range())? {
                    copies.push(BufferCopy::new(from, argument.buffer(), bytes));
                }
            }
            Ok(copies)
        })?;
        let mut acquire = self.platform.acquire(device);
        for BufferCopy { from, to, bytes, .. } in &copies {
            acquire = acquire.read(&from.range(bytes.clone()));
            acquire = acquire.access(&to.range(bytes.clone()), Access::WriteInvalidate);
        }
        let grants = self.commander.wait_for(acquire)?;
        if !self.commander.is_in_flight(package) {
            // Its unit has retired, and somebody else may have computed it.
            drop(grants.not_started());
            return Err(Interrupted.into());
        }
        self.run(grants, |_, launcher, grants| launcher.copy(&copies, grants), device)?;
        Ok(copies.into_iter().map(|BufferCopy { to, bytes, .. }| (to, bytes)).collect())
    }

    /// Brings results home. Those that are in use elsewhere stay where they are, and so do those of a cancelled run.
    fn bring(&self, device: DeviceId, written: &[(RawBuffer, Range<u64>)]) -> Result<(), KernelError> {
        let home = |device| self.platform.home(device);
        let Some(goal) = self.collect_on.filter(|&goal| home(goal) != home(device)) else { return Ok(()) };
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

    /// Starts work of the device on grants, waits for it, and commits it.
    fn run(
        &self,
        mut grants: Grants,
        start: impl FnOnce(&Kernel, &dyn Launcher, &mut Grants) -> Result<Fence, LaunchError>,
        device: DeviceId,
    ) -> Result<(), KernelError> {
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
            Ok(fence) => Ok(grants.hand_over().in_flight(fence).wait()?.release()?),
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

/// The threads of this process that conduct trials.
struct Threads {
    process: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    offered: VecDeque<Trial>,
    threads: usize,
    idle: usize,
}

static THREADS: OnceLock<Threads> = OnceLock::new();

/// Lets a thread conduct a trial. Returns whether there is one.
pub(crate) fn offer(trial: Trial) -> bool {
    let threads = THREADS.get_or_init(|| Threads {
        process: std::process::id(),
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
    });
    if threads.process != std::process::id() {
        return false;
    }
    let mut state = threads.state.lock();
    if state.idle > state.offered.len() {
        state.offered.push_back(trial);
        drop(state);
        threads.changed.notify_all();
        return true;
    }
    if state.threads == MOST_THREADS {
        return false;
    }
    state.threads += 1;
    drop(state);
    let thread = std::thread::Builder::new().name("dml tries a device out".to_owned());
    let spawned = thread.spawn(move || threads.work(trial)).is_ok();
    if !spawned {
        threads.state.lock().threads -= 1;
    }
    spawned
}

impl Threads {
    /// Conducts trials, as long as no other thread waits for one.
    fn work(&self, first: Trial) {
        let mut next = Some(first);
        loop {
            if let Some(trial) = next.take() {
                // A bug here must not leave the run without its end.
                if guarded(|| trial.conduct()).is_err() {
                    trial.commander.give_trial_up();
                }
                quietly(trial);
            }
            let mut state = self.state.lock();
            if state.idle > 0 && state.offered.is_empty() {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            while state.offered.is_empty() {
                state = self.changed.wait(state);
            }
            state.idle -= 1;
            next = state.offered.pop_front();
        }
    }
}
