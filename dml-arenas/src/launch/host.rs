//! Launchers of kernels on threads of this process.

use crate::function::{Call, ComputeError, Given, HostError, Part, Pools, Team, View};
use dml_core::internal::sync::Arc;
use dml_core::internal::{as_here, guard};
use dml_core::{DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform};
use std::borrow::Cow;
use std::fmt;

/// A kernel on the host: a function that computes a package.
type Compute = dyn Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync;

/// How a function runs.
enum Runs {
    /// On a thread of a pool that no other launch uses at the same time.
    InPool(Arc<Compute>, Arc<Pools>),
    /// On the launching thread.
    ByTeam(Arc<Compute>, Team),
}

/// A launcher that runs a function on threads of this process.
///
/// # Examples
/// ```
/// # use dml_arenas::{Discover, DiscoverOptions, launch};
/// # use dml_core::Platform;
/// # use dml_scheduler::{Coexecutor, Kernel};
/// # let options = DiscoverOptions::default().only(["cpu"]).offload(0);
/// # let platform = Platform::builder().discover_with(&options)?.build()?;
/// let data = platform.buffer_from(vec![1.5_f32; 1000])?;
/// let host = launch::host(&platform, |call| {
///     call.part(0)?.slice_mut::<f32>()?.iter_mut().for_each(|value| *value *= 2.0);
///     Ok(())
/// })?;
/// let kernel = Kernel::new("twice", 64).read_write(&data).launchers(host)?;
/// Coexecutor::new(&platform).run(&kernel, data.len())?;
/// assert_eq!(data.read()?[999], 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HostLauncher {
    runs: Runs,
}

impl HostLauncher {
    /// Creates a launcher for a function that uses rayon. It runs on a thread of a pool of `threads` threads,
    /// where parallel iterators use that pool.
    ///
    /// # Errors
    /// [`HostError`] if the threads cannot be started.
    pub fn new(
        threads: u32,
        compute: impl Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync + 'static,
    ) -> Result<Self, HostError> {
        Self::in_pool(threads, Arc::new(compute))
    }

    /// Creates a launcher with `threads` threads for a function that divides its package by its
    /// [team](Call::team). The function runs on the launching thread, so it begins without waking another
    /// thread. That suits packages of a few microseconds.
    ///
    /// # Errors
    /// [`HostError`] if the threads cannot be started.
    pub fn by_team(
        threads: u32,
        compute: impl Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync + 'static,
    ) -> Result<Self, HostError> {
        Self::with_team(threads, Arc::new(compute))
    }

    fn in_pool(threads: u32, compute: Arc<Compute>) -> Result<Self, HostError> {
        Ok(Self { runs: Runs::InPool(compute, Pools::shared(threads.max(1)).for_launches()?) })
    }

    fn with_team(threads: u32, compute: Arc<Compute>) -> Result<Self, HostError> {
        Ok(Self { runs: Runs::ByTeam(compute, Team::new(threads)?) })
    }
}

/// Creates a launcher for the host, with as many threads as its device has units. The function may use rayon:
/// see [`HostLauncher::new`]. It also runs in workers, see [`Call`].
///
/// The thread that calls the function holds the package's buffers, so what the function acquires must follow
/// that thread's order. It uses the package's buffers by its [parts](Call::part). Acquiring one of them is an
/// error on that thread, and deadlocks on others. Waking a thread of rayon's pool takes some tens of
/// microseconds for each package, which [`host_by_team`] avoids.
///
/// # Errors
/// [`HostError`] if the threads cannot be started.
///
/// # Examples
/// A function that is submitted, as kernels of other devices are.
/// ```
/// # use dml_arenas::{Discover, launch};
/// # use dml_core::Platform;
/// # use std::sync::Arc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let platform = Platform::builder().discover()?.build()?;
/// let twice = launch::host_by_team(&platform, |call| {
///     let [from, to] = call.parts([0, 1])?;
///     let from = from.slice::<f32>()?;
///     to.slice_mut::<f32>()?.iter_mut().zip(from).for_each(|(to, from)| *to = 2.0 * from);
///     Ok(())
/// })?;
/// let (cpu, twice) = twice.into_iter().next().ok_or("no processor")?;
/// let twice = Arc::new(twice);
/// let [a, b] = [1.0, 0.0].map(|value| platform.buffer_from(vec![value; 1000]));
/// let (a, b) = (a?, b?);
/// platform.submit(cpu, &twice).read(&a).write(&b).items(1000)?;
/// assert!(b.read()?.iter().all(|value: &f32| *value == 2.0));
/// # Ok(())
/// # }
/// ```
pub fn host(
    platform: &Platform,
    compute: impl Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync + 'static,
) -> Result<Vec<(DeviceId, HostLauncher)>, HostError> {
    let compute: Arc<Compute> = Arc::new(compute);
    on_host(platform, |threads| HostLauncher::in_pool(threads, compute.clone()))
}

/// As [`host`], for a function that divides its package by its [team](Call::team): see
/// [`HostLauncher::by_team`].
///
/// The function and some of its jobs run on the launching thread, which holds the package's buffers. What it
/// acquires there must follow that thread's order. A run within a job fails if it has to wait for a buffer
/// older than those of the package.
///
/// # Errors
/// [`HostError`] if the threads cannot be started.
pub fn host_by_team(
    platform: &Platform,
    compute: impl Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync + 'static,
) -> Result<Vec<(DeviceId, HostLauncher)>, HostError> {
    let compute: Arc<Compute> = Arc::new(compute);
    on_host(platform, |threads| HostLauncher::with_team(threads, compute.clone()))
}

fn on_host(
    platform: &Platform,
    launcher: impl Fn(u32) -> Result<HostLauncher, HostError>,
) -> Result<Vec<(DeviceId, HostLauncher)>, HostError> {
    let threads = |device: DeviceId| platform.device_desc(device).compute_units;
    let made = |device| launcher(threads(device)).map(|launcher| (device, launcher));
    platform.host().into_iter().map(made).collect()
}

impl Launcher for HostLauncher {
    fn check(&self, _arguments: &[LaunchArg]) -> Result<(), Misfit> {
        // A function accepts any arguments, and reports a mismatch itself.
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn runs_within_launch(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let is_here = match &self.runs {
            Runs::InPool(_, pools) => pools.is_here(),
            Runs::ByTeam(_, team) => team.is_here(),
        };
        if !is_here {
            let cause = "this process is a fork of the one that has the kernel's threads";
            return Err(LaunchError::not_started(cause));
        }
        let items = launch.items.clone();
        // The computing thread takes the views, so it holds the buffers. A function that waits for one of
        // them is refused.
        let call = |compute: &Compute, team: &Team| -> Result<_, LaunchError> {
            let given = given(launch, grants)?;
            Ok(compute(&mut Call::new(items, Some(team), given)))
        };
        let computed = match &self.runs {
            Runs::InPool(compute, pools) => pools
                .run(as_here(|| call(&**compute, &Team::of_this_pool(pools.threads()))))
                .map_err(LaunchError::not_started)?,
            Runs::ByTeam(compute, team) => guard(|| call(&**compute, team)),
        };
        let computed =
            computed.map_err(|panic| LaunchError::failed(format!("the kernel panicked: {panic}")))??;
        computed.map_err(LaunchError::Failed)?;
        Ok(Fence::done(0))
    }
}

/// Returns the arguments of a launch, as a function takes them.
fn given<'a>(launch: &'a Launch<'_>, grants: &'a mut Grants) -> Result<Vec<Given<'a>>, LaunchError> {
    let mut views = grants.views().map_err(LaunchError::not_started)?.into_iter();
    let given = |(argument, given): (usize, &'a LaunchArg)| {
        Ok(match given {
            LaunchArg::Buffer { ranges, .. } => {
                let views: Vec<View<'_>> = views.by_ref().take(ranges.len()).map(View::from).collect();
                let granted = views.iter().map(|view| view.span().start()..view.span().end());
                if !granted.eq(ranges.iter().cloned()) {
                    // A footprint may return other ranges when it is called again.
                    let cause = format!(
                        "the ranges {ranges:?} of argument {argument} are not those that were granted"
                    );
                    return Err(LaunchError::not_started(cause));
                }
                Given::Part(Part::new(argument, views))
            }
            LaunchArg::Scalar(scalar) => Given::Scalar(*scalar),
            LaunchArg::Bytes(bytes) => Given::Bytes(Cow::Borrowed(bytes)),
            LaunchArg::Local(_) => Given::Local,
            other => {
                return Err(LaunchError::not_started(format!("a function takes no {}", other.describe())));
            }
        })
    };
    launch.arguments.iter().enumerate().map(given).collect()
}

impl fmt::Debug for HostLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = match &self.runs {
            Runs::InPool(_, pools) => pools.threads(),
            Runs::ByTeam(_, team) => team.threads(),
        };
        write!(f, "HostLauncher({threads} threads)")
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::Discover;
    use crate::fork::testing::{child_says, fork};
    use dml_core::ItemShape;

    fn launch(launcher: &HostLauncher) -> Result<(), LaunchError> {
        let options = crate::DiscoverOptions::default().offload(0);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let mut grants = platform.acquire(platform.host().unwrap()).wait().unwrap();
        let (items, shape) = (0..1, ItemShape::line(1));
        launcher.launch(&Launch::new(&items, &shape, &[]), &mut grants).map(drop)
    }

    /// The host has as many threads as units, by a pool or by a team.
    #[test]
    fn a_function_for_the_host_is_a_launcher_of_the_host() {
        let options = crate::DiscoverOptions::default().offload(0).limit("cpu", 1);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let pool = host(&platform, |_| Ok(())).unwrap();
        let team = host_by_team(&platform, |_| Ok(())).unwrap();
        for launchers in [pool, team] {
            let [(device, launcher)] = &launchers[..] else { panic!("{launchers:?}") };
            assert_eq!(Some(*device), platform.host());
            assert_eq!(format!("{launcher:?}"), "HostLauncher(1 threads)");
            assert!(launch(launcher).is_ok());
        }
    }

    #[test]
    fn a_panic_of_a_function_is_an_error() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("a destructor");
            }
        }
        let told = |launcher: Result<HostLauncher, HostError>| {
            let told = launch(&launcher.unwrap()).unwrap_err();
            assert!(matches!(told, LaunchError::Failed(_)), "something may have been written: {told:?}");
            told.to_string()
        };
        let expected = "the kernel panicked: division by zero";
        assert_eq!(told(HostLauncher::new(2, |_| panic!("division by zero"))), expected);
        assert_eq!(told(HostLauncher::by_team(2, |_| panic!("division by zero"))), expected);
        let in_a_job = |call: &mut Call<'_>| {
            call.team().for_each(0..10, |job| assert_ne!(job, 7, "division by zero"));
            Ok(())
        };
        assert!(told(HostLauncher::by_team(2, in_a_job)).contains("division by zero"));
        let payload = HostLauncher::new(1, |_| std::panic::panic_any(Payload));
        assert_eq!(told(payload), "the kernel panicked: a panic without a message");
    }

    #[test]
    fn a_fork_neither_uses_nor_ends_the_threads_of_its_parent() {
        let options = crate::DiscoverOptions::default().offload(0);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let launcher = HostLauncher::new(2, |_| Ok(())).unwrap();
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
