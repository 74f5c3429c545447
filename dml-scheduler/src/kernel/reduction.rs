//! Reductions: results to which every package adds.
//!
//! ```text
//!   unit 0 ── packages, one after the other ──▶ partial 0 ─┐
//!   unit 1 ── packages, one after the other ──▶ partial 1 ─┼─ combined on the host at the end ──▶ result
//!   unit 2 ── packages, one after the other ──▶ partial 2 ─┘
//! ```
//! 1. A partial is a buffer that only its unit uses, initialized to the identity in every element. A package
//!    reads and changes it.
//! 2. A failed package is rolled back: the partial's old contents are restored before the package goes to
//!    another unit, if another memory still holds them.
//! 3. A partial may be lost with its device, or corrupted by a failure while no other memory holds its
//!    contents. Other units then recompute all packages of the unit.

use super::KernelError;
use crate::base::guard::guarded;
use bytemuck::Pod;
use dml_core::{Acquire, AcquireError, Buffer, DeviceId, Grants, RawBuffer};

/// Function that waits for a request, unless the run is cancelled first.
pub(crate) type Wait<'a> = &'a dyn Fn(Acquire) -> Result<Grants, KernelError>;

/// Creates and combines the partials of an argument.
pub(super) trait Reduce: Send + Sync {
    /// Creates a partial, initialized to the identity.
    fn partial(&self) -> Result<RawBuffer, KernelError>;

    /// Initializes a partial to the identity once more.
    fn clear(&self, partial: &RawBuffer) -> Result<(), KernelError>;

    /// Combines the partials into the result. `wait` acquires the result.
    fn combine(&self, partials: &[RawBuffer], wait: Wait<'_>) -> Result<(), KernelError>;
}

/// A reduction that combines partials element by element.
pub(super) struct Elementwise<T: Pod, F> {
    pub(super) result: Buffer<T>,
    pub(super) identity: T,
    pub(super) combine: F,
}

impl<T, F> Reduce for Elementwise<T, F>
where
    T: Pod + std::fmt::Debug + Send + Sync,
    F: Fn(T, T) -> T + Send + Sync,
{
    fn partial(&self) -> Result<RawBuffer, KernelError> {
        // The platform chooses the memory, which devices may share.
        let partial = self.result.raw().platform().buffer::<T>(self.result.len()).build()?.raw().clone();
        self.clear(&partial)?;
        Ok(partial)
    }

    fn clear(&self, partial: &RawBuffer) -> Result<(), KernelError> {
        let platform = self.result.raw().platform();
        let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
        let mut grants = platform.acquire(host).write(partial).wait()?;
        grants.slice_mut::<T>(partial)?.fill(self.identity);
        Ok(grants.release()?)
    }

    fn combine(&self, partials: &[RawBuffer], wait: Wait<'_>) -> Result<(), KernelError> {
        let platform = self.result.raw().platform();
        let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
        let mut combined = vec![self.identity; self.result.len() as usize];
        for partial in partials {
            let grants = platform.acquire(host).read(partial).wait()?;
            let elements = grants.slice::<T>(partial)?;
            let combine = || {
                combined
                    .iter_mut()
                    .zip(elements)
                    .for_each(|(sum, element)| *sum = (self.combine)(*sum, *element));
            };
            guarded(combine).map_err(|message| format!("combining panicked: {message}"))?;
            grants.release()?;
        }
        let mut grants = wait(platform.acquire(host).write(&self.result))?;
        grants.slice_mut::<T>(&self.result)?.copy_from_slice(&combined);
        Ok(grants.release()?)
    }
}
