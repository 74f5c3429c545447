//! The interface of backends to discovery.

use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::{ArenaId, PlatformBuilder};
use std::fmt;

/// A backend: it adds the devices and memories of one framework to a platform.
///
/// The backends of this crate are listed in `discover.rs`. An application adds others with
/// [`DiscoverOptions::backend`].
///
/// # Examples
/// ```
/// use dml_arenas::kit::Backend;
/// use dml_arenas::{Discover, DiscoverError, DiscoverOptions};
/// use dml_core::{ArenaId, Platform, PlatformBuilder};
///
/// #[derive(Debug)]
/// struct Tape;
///
/// impl Backend for Tape {
///     fn name(&self) -> &'static str {
///         "tape"
///     }
///
///     fn devices(&self) -> Vec<String> {
///         vec!["tape:0".to_owned()]
///     }
///
///     fn add(&self, _: &mut PlatformBuilder, _: ArenaId, _: &DiscoverOptions) -> Result<(), DiscoverError> {
///         Err(DiscoverError::unusable("tape:0", "the robot is out of order"))
///     }
/// }
///
/// let options = DiscoverOptions::default().offload(0).backend(Tape);
/// let platform = Platform::builder().discover_with(&options)?.build().expect("a valid platform");
/// let missing = platform.unavailable().iter().find(|missing| missing.backend == "tape");
/// assert_eq!(missing.expect("a note").reason, "tape:0 cannot be used: the robot is out of order");
/// # Ok::<(), DiscoverError>(())
/// ```
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns the backend's name, one word, as in [`Unavailable`](dml_core::Unavailable).
    fn name(&self) -> &'static str;

    /// Returns the names of the devices or stores that it could add, in order. Options may name these.
    fn devices(&self) -> Vec<String>;

    /// Adds the devices that [the options want](DiscoverOptions::wants), each with its arenas and links.
    /// `main` is main memory.
    ///
    /// A call that fails or panics adds nothing. If a part is missing, the backend may add the rest, and
    /// [note](PlatformBuilder::add_unavailable) what is missing.
    ///
    /// # Errors
    /// Any [`DiscoverError`] with the name of the device. Discovery fails with it. The exception is a
    /// [`DiscoverError::Unusable`] of a device that the options do not name, which becomes a note.
    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError>;
}
