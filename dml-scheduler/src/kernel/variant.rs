//! Code that runs a kernel on one kind of device, and its errors.

use crate::base::package::Package;
use dml_core::{Fence, Grants};
use std::error::Error;
use std::fmt;

/// Error of a kernel that could not be launched, or that failed.
pub type KernelError = Box<dyn Error + Send + Sync>;

/// A launch failed before it wrote anything: the package's arguments stay as they were.
///
/// A variant wraps its error in this if it received storage for writing and knows that no work began.
/// Otherwise, bytes that were granted for writing count as poisoned.
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
/// - **K-1** It writes only bytes that it was granted for writing, and every byte that it was granted for
///   overwriting. A byte that it skips keeps arbitrary earlier contents of the device's memory. Views on the
///   host enforce the first part; access through a block is unchecked. If the kernel has a launcher, a run of
///   more items than the buffers have bytes for is refused.
///   (`requests` `slices_are_of_granted_aligned_whole_elements`;
///   `sizes` `items_beyond_those_prepared_are_refused_before_their_launch`)
/// - **K-2** It returns a fence that ends when the work does, or an error. A panic is an error: the package
///   goes to another unit. (`hostile` `a_variant_that_panics_hands_its_work_to_the_others`)
/// - **K-3** It returns [`NotStarted`] only if nothing was written.
///   (`hostile` `a_launch_that_did_not_start_spoils_nothing`)
/// - **K-4** It may use core while it holds the buffers of its package. It cannot wait for these, nor for
///   buffers of earlier packages that have not ended. (`hostile` `a_variant_may_use_core`)
/// - **K-5** It leaves the package's own grants in `grants`. Otherwise the package fails, the grants found
///   there are rolled back, and the package's own grants end where the variant has moved them.
///   (`hostile` `a_variant_that_exchanges_its_grants_fails`)
pub trait Variant: Send + Sync {
    /// Computes the package's items.
    ///
    /// `grants` holds the kernel's buffers in their order, each for the bytes of its footprint. A host kernel
    /// computes in this call and returns a fence that is done. A device kernel starts in this call and
    /// returns a fence that waits for it.
    ///
    /// # Errors
    /// The error that keeps the kernel from running. The package then goes to another unit. Bytes that were
    /// granted for writing count as poisoned, unless the error is [`NotStarted`].
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
