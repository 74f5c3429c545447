//! Kernels on threads of this process.

use super::team::Left;
use super::{ComputeError, HostView, Team, Values};
use bytemuck::Pod;
use dml_core::sync::Arc;
use dml_core::{
    DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform, Span, View,
    Withdrawn,
};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use thiserror::Error;

/// The part of one buffer that a package uses, as a kernel on the host sees it.
#[derive(Debug)]
pub struct Part<'a> {
    views: Vec<View<'a>>,
}

impl<'a> Part<'a> {
    /// The views of the part: one for each range of the argument's footprint, ascending. A package without bytes has one
    /// empty view.
    pub fn views(&mut self) -> &mut [View<'a>] {
        &mut self.views
    }

    fn only(&self) -> Result<&View<'a>, ComputeError> {
        match &self.views[..] {
            [view] => Ok(view),
            views => Err(several(views.len())),
        }
    }
}

fn several(ranges: usize) -> ComputeError {
    format!("the argument has {ranges} ranges; each has a view of its own").into()
}

/// The only view of a part. A part with several has no slice.
impl HostView for Part<'_> {
    /// The bytes from the first view to the last.
    fn span(&self) -> Span {
        let [start, end] =
            [self.views.first(), self.views.last()].map(|view| view.map_or(Span::default(), View::span));
        Span::new(start.start(), end.end())
    }

    fn slice<T: Pod>(&self) -> Result<&[T], ComputeError> {
        HostView::slice(self.only()?)
    }

    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ComputeError> {
        match &mut self.views[..] {
            [view] => HostView::slice_mut(view),
            views => Err(several(views.len())),
        }
    }
}

/// The threads for a kernel could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot start {threads} threads for kernels: {cause}")]
pub struct HostError {
    /// The number of threads.
    pub threads: u32,
    /// What the operating system said.
    pub cause: String,
}

/// What a kernel on the host does with a package.
type Compute = dyn Fn(Range<u64>, &mut [Part<'_>], &Values) -> Result<(), ComputeError> + Send + Sync;
/// The same, with the team that may help.
type ComputeByTeam =
    dyn Fn(Range<u64>, &mut [Part<'_>], &Values, &Team) -> Result<(), ComputeError> + Send + Sync;

/// How a function runs.
#[derive(Clone)]
enum Runs {
    /// On a thread of the pool.
    InPool(Arc<Compute>),
    /// On the thread that launches.
    ByTeam(Arc<ComputeByTeam>),
}

/// Runs a function on a [`Team`] of threads.
pub struct HostLauncher {
    runs: Runs,
    team: Team,
    /// Whether the function goes on when its launch is withdrawn.
    goes_on: bool,
}

impl HostLauncher {
    /// Makes a launcher with so many threads, for a function that uses rayon: it runs on a thread of the launcher's pool, where parallel
    /// iterators use that pool.
    ///
    /// # Errors
    /// [`HostError`] if the threads cannot be started.
    pub fn new(
        threads: u32,
        compute: impl Fn(Range<u64>, &mut [Part<'_>], &Values) -> Result<(), ComputeError> + Send + Sync + 'static,
    ) -> Result<Self, HostError> {
        Self::of(threads, Runs::InPool(Arc::new(compute)))
    }

    /// Makes a launcher with so many threads, for a function that divides its package by the [`Team`] that it is given. It runs on the
    /// thread that launches, and nobody has to wake up before it begins: packages of some microseconds take no longer than that.
    ///
    /// # Errors
    /// [`HostError`] if the threads cannot be started.
    pub fn by_team(
        threads: u32,
        compute: impl Fn(Range<u64>, &mut [Part<'_>], &Values, &Team) -> Result<(), ComputeError>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self, HostError> {
        Self::of(threads, Runs::ByTeam(Arc::new(compute)))
    }

    fn of(threads: u32, runs: Runs) -> Result<Self, HostError> {
        Ok(Self { runs, team: Team::new(threads)?, goes_on: false })
    }

    /// Lets the function go on when its launch is [withdrawn](dml_core::Withdrawal): [`Team::for_each`] returns then, with jobs left out, instead of unwinding.
    ///
    /// That is sooner, because the first unwinding after a while takes some tens of microseconds. It is for functions that come to their end
    /// whatever their jobs have done. What they return does not count.
    #[must_use]
    pub fn going_on_when_withdrawn(mut self) -> Self {
        self.goes_on = true;
        self
    }
}

/// Makes a launcher for the host, with as many threads as its device has units. The function is given the items of a package,
/// the parts of the buffers in the order of the arguments, and the other arguments. It may use rayon: see [`HostLauncher::new`].
/// To wake a thread of rayon's pool takes some tens of microseconds for each package; [`host_by_team`] does without.
///
/// # Errors
/// [`HostError`] if the threads cannot be started.
pub fn host(
    platform: &Platform,
    compute: impl Fn(Range<u64>, &mut [Part<'_>], &Values) -> Result<(), ComputeError> + Send + Sync + 'static,
) -> Result<Vec<(DeviceId, HostLauncher)>, HostError> {
    on_host(platform, Runs::InPool(Arc::new(compute)))
}

/// As [`host`], for a function that divides its package by a [`Team`]: see [`HostLauncher::by_team`].
///
/// # Errors
/// [`HostError`] if the threads cannot be started.
pub fn host_by_team(
    platform: &Platform,
    compute: impl Fn(Range<u64>, &mut [Part<'_>], &Values, &Team) -> Result<(), ComputeError>
    + Send
    + Sync
    + 'static,
) -> Result<Vec<(DeviceId, HostLauncher)>, HostError> {
    on_host(platform, Runs::ByTeam(Arc::new(compute)))
}

fn on_host(platform: &Platform, runs: Runs) -> Result<Vec<(DeviceId, HostLauncher)>, HostError> {
    let threads = |device: DeviceId| platform.devices()[usize::from(device.0)].units;
    let made = |device| HostLauncher::of(threads(device), runs.clone()).map(|launcher| (device, launcher));
    platform.host().into_iter().map(made).collect()
}

impl Launcher for HostLauncher {
    fn check(&self, _arguments: &[LaunchArg]) -> Result<(), Misfit> {
        // A function takes what it is given, and says so itself if that does not fit.
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        if !self.team.is_here() {
            let cause = "this process is a fork of the one that has the kernel's threads";
            return Err(LaunchError::not_started(cause));
        }
        let mut views = grants.views().map_err(LaunchError::not_started)?.into_iter();
        let mut parts = Vec::with_capacity(launch.arguments.len());
        for argument in launch.arguments {
            let LaunchArg::Buffer { ranges, .. } = argument else { continue };
            let views: Vec<_> = views.by_ref().take(ranges.len()).collect();
            let granted = views.iter().map(|view| view.span().start()..view.span().end());
            if !granted.eq(ranges.iter().cloned()) {
                // A footprint may answer differently when it is asked again.
                let cause = format!("the ranges {ranges:?} of an argument are not those that were granted");
                return Err(LaunchError::not_started(cause));
            }
            parts.push(Part { views });
        }
        let values = Values::of(launch.arguments);
        let items = launch.items.clone();
        let computed = match &self.runs {
            Runs::InPool(compute) => self.team.on_pool(|| compute(items, &mut parts, &values)),
            Runs::ByTeam(compute) => {
                let team = self.team.withdrawn_by(launch.withdrawal, self.goes_on);
                let computed = catch_unwind(AssertUnwindSafe(|| compute(items, &mut parts, &values, &team)));
                let is_left = match &computed {
                    // A function that did not let the unwinding pass has left out jobs all the same.
                    Ok(_) => team.is_cut(),
                    Err(panic) => panic.is::<Left>(),
                };
                if is_left {
                    return Err(LaunchError::failed(Withdrawn));
                }
                computed.unwrap_or_else(|panic| resume_unwind(panic))
            }
        };
        computed.map_err(LaunchError::Failed)?;
        Ok(Fence::done(0))
    }
}

impl fmt::Debug for HostLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostLauncher({} threads)", self.team.threads())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::Discover;
    use crate::fork::testing::{child_says, fork};
    use dml_core::{ItemShape, Withdrawal};

    /// Launches on two threads, with a withdrawal if there is one.
    fn launch(launcher: &HostLauncher, withdrawal: Option<&Withdrawal>) -> Result<(), LaunchError> {
        let options = crate::DiscoverOptions::default().offload(0);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let mut grants = platform.acquire(platform.host().unwrap()).wait().unwrap();
        let (items, shape) = (0..1, ItemShape::line(1));
        let mut launch = Launch::new(&items, &shape, &[]);
        launch.withdrawal = withdrawal;
        launcher.launch(&launch, &mut grants).map(drop)
    }

    fn is_withdrawn(launched: Result<(), LaunchError>) -> bool {
        matches!(launched, Err(LaunchError::Failed(error)) if error.is::<Withdrawn>())
    }

    /// A launcher whose jobs withdraw the launch if they are told to, and who says how it went on.
    fn that_withdraws(
        then: impl Fn(std::thread::Result<()>) -> Result<(), ComputeError> + Send + Sync + 'static,
    ) -> (HostLauncher, Withdrawal) {
        let withdrawal = Withdrawal::new();
        let withdraws = withdrawal.clone();
        let launcher = HostLauncher::by_team(2, move |_, _, _, team| {
            then(catch_unwind(AssertUnwindSafe(|| team.for_each(0..100_000, |_| withdraws.withdraw()))))
        });
        (launcher.unwrap(), withdrawal)
    }

    #[test]
    fn what_a_function_makes_of_a_withdrawal_does_not_count() {
        type Then = fn(std::thread::Result<()>) -> Result<(), ComputeError>;
        let lets_it_pass: Then = |ended| ended.map_err(|left| resume_unwind(left));
        let swallows: Then = |ended| {
            assert!(ended.is_err(), "it unwinds");
            Ok(())
        };
        let fails: Then = |_| Err("not all are done".into());
        for then in [lets_it_pass, swallows, fails] {
            let (launcher, withdrawal) = that_withdraws(then);
            assert!(is_withdrawn(launch(&launcher, Some(&withdrawal))));
            // Nor has it any effect on others, whose withdrawal is another one, or who have none.
            let (launcher, _) = that_withdraws(lets_it_pass);
            launch(&launcher, None).unwrap();
            launch(&launcher, Some(&Withdrawal::new())).unwrap();
        }
        let (launcher, withdrawal) = that_withdraws(|ended| ended.map_err(|_| "it was left".into()));
        assert!(is_withdrawn(launch(&launcher.going_on_when_withdrawn(), Some(&withdrawal))));
    }

    #[test]
    fn a_function_that_goes_on_comes_to_its_end() {
        let ends = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counts = ends.clone();
        let (launcher, withdrawal) = that_withdraws(move |ended| {
            ended.map_err(|_| "it was left")?;
            counts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(())
        });
        let launcher = launcher.going_on_when_withdrawn();
        assert!(is_withdrawn(launch(&launcher, Some(&withdrawal))));
        assert_eq!(ends.load(std::sync::atomic::Ordering::SeqCst), 1);
    }

    /// Its panic is its own, and so is its error once all jobs are done.
    #[test]
    fn a_failure_beside_a_withdrawal_is_heard() {
        let (launcher, withdrawal) = that_withdraws(|_| panic!("a kernel that fails"));
        assert!(catch_unwind(AssertUnwindSafe(|| launch(&launcher, Some(&withdrawal)))).is_err());
        let launcher = HostLauncher::by_team(2, |_, _, _, _| Err("no room".into())).unwrap();
        withdrawal.withdraw();
        assert!(!is_withdrawn(launch(&launcher, Some(&withdrawal))));
        let launcher = HostLauncher::new(2, |_, _, _| Ok(())).unwrap();
        launch(&launcher, Some(&withdrawal)).unwrap();
    }

    #[test]
    fn a_fork_neither_uses_nor_ends_the_threads_of_its_parent() {
        let options = crate::DiscoverOptions::default().offload(0);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let launcher = HostLauncher::new(2, |_, _, _| Ok(())).unwrap();
        let mut grants = platform.acquire(platform.host().unwrap()).wait().unwrap();
        let (items, shape) = (0..1, ItemShape::line(1));
        let launch = Launch::new(&items, &shape, &[]);
        assert!(launcher.launch(&launch, &mut grants).is_ok());
        // A child that waited for these threads would not end.
        assert!(child_says(fork, move || {
            let refused = launcher.launch(&launch, &mut grants);
            drop(launcher);
            matches!(refused, Err(LaunchError::NotStarted(_)))
        }));
    }
}
