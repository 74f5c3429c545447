//! Finds the memories of this machine.

use crate::main_mem;
#[cfg(all(feature = "offload", target_os = "linux"))]
use crate::offload::discover::Candidates as Workers;
#[cfg(feature = "opencl")]
use crate::opencl::discover::Candidates;
pub use crate::options::{DiscoverError, DiscoverOptions};
#[cfg(all(feature = "offload", target_os = "linux"))]
use crate::shared;
use dml_core::PlatformBuilder;

/// Adds the devices and memories of this machine to a platform that is being built.
///
/// The processor and main memory come first, as device 0 and arena 0 of an empty builder. Memory that devices share, if any
/// do, is arena 1, of the same processor. Then come the devices of each backend, in an order that is the same in every run. A missing backend is noted with its reason.
///
/// # Examples
/// ```
/// use dml_arenas::{Discover, DiscoverOptions};
/// use dml_core::PlatformBuilder;
///
/// let builder = PlatformBuilder::default().discover_with(&DiscoverOptions::default().limit("cpu", 1))?;
/// assert_eq!(&*builder.devices()[0].name, "cpu");
/// assert_eq!(builder.devices()[0].units, 1);
/// # Ok::<(), dml_arenas::DiscoverError>(())
/// ```
pub trait Discover: Sized {
    /// Adds all devices that are found.
    ///
    /// # Errors
    /// None today. The type leaves room for errors that cannot be an [`Unavailable`](dml_core::Unavailable).
    fn discover(self) -> Result<Self, DiscoverError> {
        self.discover_with(&DiscoverOptions::default())
    }

    /// Adds the devices that the options ask for.
    ///
    /// # Errors
    /// [`DiscoverError::UnknownDevice`] for a name that no device has. [`DiscoverError::BadLimit`],
    /// [`DiscoverError::BadPin`], [`DiscoverError::BadBinding`] and [`DiscoverError::BadSharing`] for a limit, cores, a
    /// binding or sharing that a device cannot have. [`DiscoverError::Unusable`] for a named device that does not work,
    /// and for memory to share that cannot be made.
    fn discover_with(self, options: &DiscoverOptions) -> Result<Self, DiscoverError>;
}

impl Discover for PlatformBuilder {
    fn discover_with(mut self, options: &DiscoverOptions) -> Result<Self, DiscoverError> {
        #[cfg(feature = "opencl")]
        let opencl = Candidates::find();
        #[cfg(all(feature = "offload", target_os = "linux"))]
        let workers = Workers::find(options);
        let known = std::iter::once(main_mem::discover::CPU.to_owned());
        #[cfg(feature = "opencl")]
        let known = known.chain(opencl.names());
        #[cfg(all(feature = "offload", target_os = "linux"))]
        let known = known.chain(workers.names());
        let known: Vec<_> = known.collect();
        options.check_names(&known)?;
        options.check_pins()?;
        options.check_bindings()?;
        options.check_sharing()?;

        let host = main_mem::discover::discover(&mut self, options)?;
        #[cfg(all(feature = "offload", target_os = "linux"))]
        let shared = shared::discover::discover(&mut self, host, options)?;
        #[cfg(feature = "opencl")]
        {
            #[cfg(all(feature = "offload", target_os = "linux"))]
            let root = |name: &str| shared.as_ref().filter(|_| options.shares(name)).map(|shared| shared.end);
            #[cfg(not(all(feature = "offload", target_os = "linux")))]
            let root = |_: &str| None;
            let root = |name: &str| root(name).or_else(|| options.is_bound(name).then_some(host));
            opencl.add(&mut self, host, &root, options)?;
        }
        #[cfg(all(feature = "offload", target_os = "linux"))]
        workers.add(&mut self, (host, shared.as_ref()), options)?;
        #[cfg(not(feature = "opencl"))]
        {
            let reason = "this program was built without the feature `opencl`".to_owned();
            self.add_unavailable(dml_core::Unavailable { backend: "opencl", reason });
        }
        #[cfg(not(all(feature = "offload", target_os = "linux")))]
        {
            let reason = match cfg!(feature = "offload") {
                true => "workers need the memory files of Linux".to_owned(),
                false => "this program was built without the feature `offload`".to_owned(),
            };
            self.add_unavailable(dml_core::Unavailable { backend: "offload", reason });
        }
        #[cfg(feature = "calibration")]
        for reason in options.calibration.price(&mut self) {
            self.add_unavailable(dml_core::Unavailable { backend: "calibration", reason });
        }
        let _ = host;
        Ok(self)
    }
}
