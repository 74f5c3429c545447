//! Code that runs a kernel on one kind of device, and why it did not.

use crate::base::package::Package;
use dml_core::{Fence, Grants};
use std::error::Error;
use std::fmt;

/// Why a kernel could not be launched, or failed.
pub type KernelError = Box<dyn Error + Send + Sync>;

/// A launch failed before it wrote anything: the package's arguments stay as they were.
///
/// A variant returns this in place of its error, if it was given storage for writing and knows that no work began.
/// Without it, bytes that were handed out for writing count as poisoned.
#[derive(Debug)]
pub struct NotStarted(KernelError);

impl NotStarted {
    /// Wraps the error that kept the kernel from starting.
    pub fn new(cause: impl Into<KernelError>) -> Self {
        Self(cause.into())
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for NotStarted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// How one kind of device runs a kernel.
///
/// # What a variant owes
/// - **K-1** It writes only bytes that it was granted for writing, and all of those that it was granted for
///   overwriting: what it leaves out is whatever the device's memory held before. Views on the host hold it to the first; what it does through a block is its own affair. A run of more items than
///   buffers have bytes for is refused, if a launcher is to compute them. (`requests` `slices_are_of_granted_aligned_whole_elements`;
///   `sizes` `items_beyond_those_prepared_are_refused_before_their_launch`)
/// - **K-2** It returns a fence that ends when the work does, or an error. A panic is an error: the package goes to another unit.
///   (`hostile` `a_variant_that_panics_hands_its_work_to_the_others`)
/// - **K-3** [`NotStarted`] says that nothing was written. (`hostile` `a_launch_that_did_not_start_spoils_nothing`)
/// - **K-4** It may use core, with the package's buffers in its hands, and with those of packages before that have not ended: it can
///   wait for none of these. (`hostile` `a_variant_may_use_core`)
/// - **K-5** It leaves the package's own grants in `grants`. Otherwise the package fails, what stands there is rolled back, and the
///   package's grants end where the variant has put them. (`hostile` `a_variant_that_exchanges_its_grants_fails`)
pub trait Variant: Send + Sync {
    /// Computes the package's items. `grants` holds the kernel's arguments in their order, each for the bytes of its
    /// footprint. A host kernel computes in this call and returns a fence that is done. A device kernel is started
    /// here, and its fence waits for it.
    ///
    /// # Errors
    /// The error that keeps the kernel from running. The package then goes to another unit. Bytes that were handed out
    /// for writing count as poisoned, unless the error is [`NotStarted`].
    fn launch(&self, package: &Package, grants: &mut Grants) -> Result<Fence, KernelError>;
}

impl<F> Variant for F
where
    F: Fn(&Package, &mut Grants) -> Result<Fence, KernelError> + Send + Sync,
{
    fn launch(&self, package: &Package, grants: &mut Grants) -> Result<Fence, KernelError> {
        self(package, grants)
    }
}
