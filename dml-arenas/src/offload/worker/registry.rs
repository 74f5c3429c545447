//! The functions built into a worker.

use crate::function::{Call, ComputeError};
use std::collections::BTreeMap;
use std::fmt;

/// A function of the registry.
pub(super) type Native = Box<dyn Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync>;

/// Maps names to functions.
///
/// Several pipelines may call one function at once, each with its own buffers.
///
/// # Examples
/// ```
/// use dml_arenas::launch::{Call, ComputeError};
/// use dml_arenas::offload::Registry;
///
/// fn clear(call: &mut Call<'_>) -> Result<(), ComputeError> {
///     call.part(0)?.slice_mut::<f32>()?.fill(0.0);
///     Ok(())
/// }
///
/// let registry = Registry::new().with("clear", clear).with("nothing", |_| Ok(())); // for `hook`
/// assert_eq!(registry.names().collect::<Vec<_>>(), ["clear", "nothing"]);
/// ```
#[derive(Default)]
pub struct Registry(BTreeMap<String, Native>);

impl Registry {
    /// Makes an empty registry. Libraries may add functions later.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function. It replaces an earlier one of the same name.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&mut Call<'_>) -> Result<(), ComputeError> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.into(), Box::new(function));
        self
    }

    /// Returns the names of the functions, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn into_functions(self) -> BTreeMap<String, Native> {
        self.0
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
