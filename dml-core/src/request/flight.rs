//! Grants whose kernels are running.

use crate::base::guard::{guard, quietly};
use crate::base::id::DeviceId;
use crate::memory::error::TransferError;
use crate::memory::fence::Fence;
use crate::request::grant::Grant;
use crate::request::grants::Grants;
use crate::request::kernels::Fences;
use crate::request::launch::{LaunchArg, LaunchError};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Grants whose kernel is running.
///
/// As a future it completes at the kernel's end and returns the grants, to be released. Dropping it waits for
/// the kernel, so that no other user is admitted earlier. The drop commits nothing: the bytes that the kernel
/// was to write count as failed.
///
/// # Examples
/// ```
/// # use dml_core::{Buffer, DeviceId, Launch, Launcher, Platform};
/// # fn example(
/// #     (platform, device, values): (&Platform, DeviceId, &Buffer<f32>),
/// #     (launcher, launch): (&dyn Launcher, &Launch<'_>),
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut grants = platform.acquire(device).read_write(values).wait()?;
/// let kernel = launcher.launch(launch, &mut grants)?; // a fence
/// let running = grants.in_flight(kernel);
/// // This thread can prepare the next launch here.
/// running.wait()?.release()?; // or running.await?.release()?
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it waits for the kernel and commits nothing"]
pub struct InFlight {
    grants: Option<Grants>,
    /// The kernels, in the order of their launches.
    kernels: Fences,
    /// The result of kernels that were waited for.
    result: Result<u64, TransferError>,
}

impl InFlight {
    /// Makes the value for the kernels launched under the grants and others. There may be none yet.
    pub(super) fn of(mut grants: Grants, others: Fences) -> Self {
        let (mut kernels, result) = grants.take_kernels();
        kernels.extend(others);
        Self { grants: Some(grants), kernels, result }
    }

    /// Returns the grants that a kernel on a stream has, without those whose copies are in flight.
    pub(super) fn started(&self) -> impl Iterator<Item = &Grant> {
        let grants = self.grants.iter().flat_map(|grants| grants.docket.grants());
        grants.filter(|grant| !grant.is_arriving())
    }

    /// Keeps the allocation of the kernel's arguments.
    pub(super) fn keep_arguments(&mut self, arguments: Vec<LaunchArg>) {
        match &mut self.grants {
            Some(grants) => grants.docket.keep_arguments(arguments),
            None => quietly(arguments),
        }
    }

    /// Launches the kernel.
    pub(super) fn begin(
        &mut self,
        launch: impl FnOnce(&mut Grants) -> Result<Fence, LaunchError>,
    ) -> Result<(), LaunchError> {
        self.kernels.extend(self.grants.as_mut().map(launch).transpose()?);
        Ok(())
    }

    /// Enqueues copies of what the kernel overwrites to a device, behind the kernel. The host does not wait
    /// in between. [`Grants::release`] waits for these copies. Returns whether they bring all that the kernel
    /// writes.
    ///
    /// A buffer is copied if three conditions hold. One copy without a change of map state brings its bytes.
    /// The frameworks can order that copy behind the kernel. No other request waits for the buffer. Other
    /// buffers are left alone, and so are results that were enqueued before.
    ///
    /// If the kernel fails, the old contents of a copied buffer cannot be
    /// [restored](crate::RawBuffer::restore) from that device.
    pub fn bring_results(&mut self, device: DeviceId) -> bool {
        // The last kernel ends after those before it: they run in order, or were waited for.
        match (&mut self.grants, self.kernels.last()) {
            (Some(grants), Some(kernel)) => grants.bring_results(device, kernel),
            _ => false,
        }
    }

    /// Waits for copies in flight of what the kernel reads ([`Acquire::ahead`](crate::Acquire::ahead)).
    /// Returns whether one had not ended. After a failure, the release of the grants returns an error.
    pub fn wait_for_inputs(&mut self) -> bool {
        let Some(grants) = &mut self.grants else { return false };
        let waits = grants.are_arriving();
        let _ = grants.arrive();
        waits
    }

    /// Waits for the kernel and returns the grants, to be released.
    ///
    /// # Errors
    /// The framework's error of the kernel; the grants are then released as failed.
    pub fn wait(mut self) -> Result<Grants, TransferError> {
        self.finish();
        let ended = std::mem::replace(&mut self.result, Ok(0));
        self.ended(ended)
    }

    /// Waits for the kernel, and keeps its result.
    pub(super) fn finish(&mut self) {
        let ended = self.kernels.drain(..).map(waited).fold(Ok(0), Result::and);
        self.result = std::mem::replace(&mut self.result, Ok(0)).and(ended);
    }

    /// Returns whether the kernel is known to have ended, so that [`wait`](Self::wait) returns at once. This
    /// call is cheap. It also returns `false` if the framework cannot be polled ([`Fence::has_ended`]) or
    /// panics.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let ended = |kernel: &Fence| guard(|| kernel.has_ended()).unwrap_or(false);
        self.kernels.iter().all(ended)
    }

    /// Returns whether the only way to learn the end of the kernel is to block.
    pub(super) fn blocks(&self) -> bool {
        self.kernels.iter().any(Fence::blocks)
    }

    fn ended(&mut self, ended: Result<u64, TransferError>) -> Result<Grants, TransferError> {
        let grants = self.grants.take().ok_or(TransferError::Finished)?;
        match ended {
            Ok(_) => Ok(grants),
            Err(error) => {
                grants.notice_losses();
                // The kernel's own error is more informative than the error of the release.
                let _ = grants.failed();
                Err(error)
            }
        }
    }
}

/// Waits for foreign work, and converts a panic into an error.
pub(super) fn waited(fence: Fence) -> Result<u64, TransferError> {
    guard(|| fence.wait()).unwrap_or_else(|message| Err(TransferError::Panicked { message }))
}

impl Future for InFlight {
    type Output = Result<Grants, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(kernel) = self.kernels.first_mut() {
            let polled = guard(|| kernel.poll(context.waker()))
                .unwrap_or_else(|message| Poll::Ready(Err(TransferError::Panicked { message })));
            let Poll::Ready(ended) = polled else { return Poll::Pending };
            quietly(self.kernels.remove(0));
            self.result = std::mem::replace(&mut self.result, Ok(0)).and(ended);
        }
        let ended = std::mem::replace(&mut self.result, Ok(0));
        Poll::Ready(self.ended(ended))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.finish();
        if self.result.is_err()
            && let Some(grants) = &self.grants
        {
            grants.notice_losses();
        }
    }
}
