//! Finds the devices and memories of this machine.

use crate::kit::Backend;
use crate::main_mem;
use crate::options::is_worker;
pub use crate::options::{DiscoverError, DiscoverOptions, Mechanisms, Sharing, Workers};
use dml_core::internal::guard;
use dml_core::internal::sync::Arc;
use dml_core::{ArenaId, PlatformBuilder, Unavailable};

/// Adds the devices and memories of this machine to a platform under construction.
///
/// The processor and main memory come first, as device 0 and arena 0 of an empty builder. Arena 1, of the
/// same processor, is the memory that devices share ([`Sharing::memory`]), if any do. The devices of each
/// backend follow, in the same order in every run. A missing backend is noted with its reason.
///
/// # Examples
/// ```
/// use dml_arenas::{Discover, DiscoverOptions};
/// use dml_core::PlatformBuilder;
///
/// let builder = PlatformBuilder::default().discover_with(&DiscoverOptions::default().limit("cpu", 1))?;
/// assert_eq!(&*builder.devices()[0].name, "cpu");
/// assert_eq!(builder.devices()[0].compute_units, 1);
/// # Ok::<(), dml_arenas::DiscoverError>(())
/// ```
pub trait Discover: Sized {
    /// Adds all devices that are found.
    ///
    /// # Errors
    /// None today. The type leaves room for errors that cannot be an [`Unavailable`].
    fn discover(self) -> Result<Self, DiscoverError> {
        self.discover_with(&DiscoverOptions::default())
    }

    /// Adds the devices that the options ask for. Names, pins and sharing are checked first, and then all
    /// devices are opened with their limits. An error has all problems of one of these two steps.
    ///
    /// # Errors
    /// - [`DiscoverError::UnknownDevice`] for a name that no device has.
    /// - [`DiscoverError::BadLimit`], [`DiscoverError::BadPin`], [`DiscoverError::BadBinding`] and
    ///   [`DiscoverError::BadSharing`] for a limit, cores, a binding or sharing that a device cannot have.
    /// - [`DiscoverError::Unusable`] for a named device that does not work, and for memory to share that
    ///   cannot be created.
    /// - [`DiscoverError::Several`] for several of these.
    fn discover_with(self, options: &DiscoverOptions) -> Result<Self, DiscoverError>;
}

/// The backends of this crate, in the order in which their devices are added.
fn built_in(options: &DiscoverOptions) -> Vec<Arc<dyn Backend>> {
    let _ = options;
    vec![
        #[cfg(feature = "cuda")]
        Arc::new(crate::cuda::discover::Candidates::find()),
        #[cfg(not(feature = "cuda"))]
        Arc::new(LeftOut("cuda", "this program was built without the feature `cuda`")),
        // After CUDA, so that a device that CUDA offers is not opened a second time.
        #[cfg(feature = "opencl")]
        Arc::new(crate::opencl::discover::Candidates::find()),
        #[cfg(not(feature = "opencl"))]
        Arc::new(LeftOut("opencl", "this program was built without the feature `opencl`")),
        #[cfg(all(feature = "offload", target_os = "linux"))]
        Arc::new(crate::offload::discover::Candidates::find(options)),
        #[cfg(all(feature = "offload", not(target_os = "linux")))]
        Arc::new(LeftOut("offload", "workers need the memory files of Linux")),
        #[cfg(not(feature = "offload"))]
        Arc::new(LeftOut("offload", "this program was built without the feature `offload`")),
    ]
}

impl Discover for PlatformBuilder {
    fn discover_with(self, options: &DiscoverOptions) -> Result<Self, DiscoverError> {
        let mut backends = built_in(options);
        backends.extend(options.backends.iter().cloned());
        let backends: Vec<_> = backends.into_iter().map(Candidate::new).collect();

        let devices = backends.iter().flat_map(|backend| backend.devices.iter().cloned());
        let known: Vec<_> = std::iter::once(main_mem::discover::CPU.to_owned()).chain(devices).collect();
        DiscoverError::of(options.errors(&known))?;

        if !options.sharing.is_open() {
            return add_all(self, &backends, options);
        }
        let mut fallback = self.clone();
        if known.iter().any(|name| is_worker(name) && options.wants(name)) {
            // Only discovery shows whether a worker can be opened.
            let before = self.devices().len();
            match add_all(self, &backends, &options.with_sharing(options.sharing.with_workers())) {
                Ok(added) if added.devices()[before..].iter().any(|device| is_worker(&device.name)) => {
                    return Ok(added);
                }
                Ok(_) => {}
                // Invalid options fail again without shared memory.
                Err(error) => {
                    fallback.add_unavailable(Unavailable { backend: "shared", reason: error.to_string() });
                }
            }
        }
        add_all(fallback, &backends, &options.with_sharing(options.sharing.with_fine_grained()))
    }
}

/// Adds main memory, shared memory and the devices of every backend.
fn add_all(
    mut builder: PlatformBuilder,
    backends: &[Candidate],
    options: &DiscoverOptions,
) -> Result<PlatformBuilder, DiscoverError> {
    let main = main_mem::discover::discover(&mut builder, options)?;
    #[cfg(all(feature = "offload", target_os = "linux"))]
    crate::shared::discover::discover(&mut builder, main, options)?;
    let tried = backends.iter().map(|backend| backend.add(&mut builder, main, options));
    DiscoverError::of(tried.filter_map(Result::err).collect())?;
    #[cfg(feature = "calibration")]
    for reason in options.calibration.price(&mut builder) {
        builder.add_unavailable(Unavailable { backend: "calibration", reason });
    }
    Ok(builder)
}

/// A backend, and the names of its devices or the message of its panic.
struct Candidate {
    backend: Arc<dyn Backend>,
    devices: Vec<String>,
    panicked: Option<String>,
}

impl Candidate {
    fn new(backend: Arc<dyn Backend>) -> Self {
        let (devices, panicked) = match guarded(|| backend.devices()) {
            Ok(devices) => (devices, None),
            Err(panicked) => (Vec::new(), Some(panicked)),
        };
        Self { backend, devices, panicked }
    }

    /// Adds the backend's devices, or a note why it is missing.
    ///
    /// # Errors
    /// The backend's error, unless it only means that a device does not work which the options do not name.
    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        // A backend that fails halfway leaves the builder unchanged.
        let mut tried = builder.clone();
        let added = self
            .panicked
            .clone()
            .map_or_else(|| guarded(|| self.backend.add(&mut tried, main, options)), Err);
        let reason = match added {
            Ok(Ok(())) => {
                *builder = tried;
                return Ok(());
            }
            Ok(Err(DiscoverError::Unusable { device, reason })) if !options.names(&device) => {
                DiscoverError::Unusable { device, reason }.to_string()
            }
            Ok(Err(error)) => return Err(error),
            Err(panicked) => match self.devices.iter().find(|device| options.names(device)) {
                Some(device) => return Err(DiscoverError::unusable(device.as_str(), panicked)),
                None => panicked,
            },
        };
        let backend = guarded(|| self.backend.name()).unwrap_or("a backend whose name is unknown");
        builder.add_unavailable(Unavailable { backend, reason });
        Ok(())
    }
}

/// Calls a backend, and turns a panic into a message.
fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    guard(call).map_err(|message| format!("its discovery panicked: {message}"))
}

/// A backend that this program was built without, and the reason.
#[cfg(not(all(feature = "cuda", feature = "opencl", feature = "offload", target_os = "linux")))]
#[derive(Debug)]
struct LeftOut(&'static str, &'static str);

#[cfg(not(all(feature = "cuda", feature = "opencl", feature = "offload", target_os = "linux")))]
impl Backend for LeftOut {
    fn name(&self) -> &'static str {
        self.0
    }

    fn devices(&self) -> Vec<String> {
        Vec::new()
    }

    fn add(
        &self,
        builder: &mut PlatformBuilder,
        _main: ArenaId,
        _options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        builder.add_unavailable(Unavailable { backend: self.0, reason: self.1.to_owned() });
        Ok(())
    }
}
