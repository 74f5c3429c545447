//! The functions that a worker has of its own.

use super::call::{Call, CallError};
use std::collections::BTreeMap;
use std::fmt;

/// A function of the registry.
pub(super) type Native = Box<dyn Fn(&mut Call<'_>) -> Result<(), CallError> + Send + Sync>;

/// Functions by name.
///
/// Several pipelines may be in one function at once, each with buffers of its own.
#[derive(Default)]
pub struct Registry(BTreeMap<String, Native>);

impl Registry {
    /// No functions; libraries may bring some.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// These functions and one more, which takes the place of one of the same name.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&mut Call<'_>) -> Result<(), CallError> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.into(), Box::new(function));
        self
    }

    /// The names, in order.
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
