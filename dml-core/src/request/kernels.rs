//! Kernels launched under grants of one's own.
//!
//! ```text
//!   acquire ─▶ grants ─launch, launch─▶ release, which waits for both
//!                              └─running─▶ InFlight ─wait─▶ release
//! ```
//! 1. Kernels under the same grants run in the order of their launches. Where launchers do not promise that
//!    ([`Launcher::runs_in_order`]), a launch waits for those before it.
//! 2. The grants end only after all of their kernels.

use crate::base::access::Access;
use crate::base::counters::Operation;
use crate::base::guard::guard;
use crate::base::sync::Mutex;
use crate::buffer::error::ViewError;
use crate::memory::error::TransferError;
use crate::memory::fence::Fence;
use crate::request::course::launched;
use crate::request::docket::{self, Item};
use crate::request::flight::{InFlight, waited};
use crate::request::grants::Grants;
use crate::request::launch::{Launch, LaunchArg, LaunchError, Launcher, Scalar};
use crate::request::region::Region;
use crate::request::submit::Items;
use smallvec::SmallVec;

/// Fences of kernels, in the order of their launches.
pub(super) type Fences = SmallVec<[Fence; 1]>;

/// The kernels in flight under grants.
#[derive(Debug)]
pub(super) struct Kernels {
    fences: Fences,
    are_in_order: bool,
}

/// An argument of a kernel under grants, as [`args!`](crate::args) makes it of a reference to a buffer or a
/// part of one, of a scalar, or of [`local`].
pub struct GrantArg<'a>(Given<'a>);

enum Given<'a> {
    Region(&'a dyn Region),
    /// Only read, whatever was granted.
    Read(&'a dyn Region),
    Value(LaunchArg),
}

impl std::fmt::Debug for GrantArg<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Given::Region(region) | Given::Read(region) => {
                write!(f, "{:?} of {:?}", region.bytes(), region.buffer())
            }
            Given::Value(value) => value.fmt(f),
        }
    }
}

impl<'a> GrantArg<'a> {
    /// Passes bytes that the kernel only reads, although they are granted for writing, such as what a kernel
    /// before it under the same grants has written.
    pub fn read(region: &'a impl Region) -> Self {
        Self(Given::Read(region))
    }
}

impl<'a, R: Region> From<&'a R> for GrantArg<'a> {
    fn from(region: &'a R) -> Self {
        Self(Given::Region(region))
    }
}

macro_rules! scalars {
    ($($type:ty),*) => {
        $(
            impl From<$type> for GrantArg<'_> {
                fn from(value: $type) -> Self {
                    Self(Given::Value(LaunchArg::Scalar(value.into())))
                }
            }
        )*
    };
}

scalars!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64, Scalar);

/// Returns an argument of local memory for each work-group, in bytes.
#[must_use]
pub fn local<'a>(bytes: u64) -> GrantArg<'a> {
    GrantArg(Given::Value(LaunchArg::Local(bytes)))
}

/// Returns an argument of any other type, as its bytes.
#[must_use]
pub fn bytes<'a>(value: &[u8]) -> GrantArg<'a> {
    GrantArg(Given::Value(LaunchArg::Bytes(value.into())))
}

impl Grants {
    /// Launches a kernel on granted bytes. A buffer is passed with the access that was granted, or as
    /// [`GrantArg::read`].
    ///
    /// Kernels under the same grants run in the order of their launches. [`running`](Self::running) or
    /// [`release`](Self::release) waits for them.
    ///
    /// # Errors
    /// - [`LaunchError::NotStarted`], with its cause: a [`ViewError`] if an argument is not granted, a
    ///   [`Misfit`](crate::Misfit) if arguments or items do not fit the kernel, an [`AcquireError`] if an
    ///   input did not come, or the framework's error. The launch wrote nothing.
    /// - [`LaunchError::Failed`] if the kernel may have written something, or if one before it failed that
    ///   had to be waited for. The grants then end as failed.
    ///
    /// # Examples
    /// ```
    /// # use dml_core::{Buffer, DeviceId, GrantArg, Launcher, Platform, args};
    /// # use std::sync::Arc;
    /// # fn example(
    /// #     (platform, gpu): (&Platform, DeviceId),
    /// #     (scale, a, b, c): (Arc<dyn Launcher>, &Buffer<f32>, &Buffer<f32>, &Buffer<f32>),
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut grants = platform.acquire(gpu).read(a).write(b).write(c).wait()?;
    /// grants.launch(&scale, args![a, b, 2.5_f32], a.len())?;
    /// grants.launch(&scale, args![GrantArg::read(b), c, 0.5_f32], a.len())?; // behind it, without a wait
    /// grants.release()?; // waits for both
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`AcquireError`]: crate::AcquireError
    pub fn launch<'a>(
        &mut self,
        kernel: &dyn Launcher,
        arguments: impl AsRef<[GrantArg<'a>]>,
        items: impl Into<Items>,
    ) -> Result<(), LaunchError> {
        let label = guard(|| kernel.label()).unwrap_or_default();
        let (shape, range) = items.into().checked(&label).map_err(LaunchError::not_started)?;
        let (arguments, views) = self.resolved(arguments.as_ref()).map_err(LaunchError::not_started)?;
        let fits = guard(|| kernel.check(&arguments).and_then(|()| kernel.check_groups(&shape)));
        fits.unwrap_or(Ok(())).map_err(LaunchError::not_started)?;
        let is_in_order = guard(|| kernel.runs_in_order()).unwrap_or(false);
        let follows_copies = guard(|| kernel.follows_copies()).unwrap_or(false);
        self.before_launch(follows_copies).map_err(LaunchError::not_started)?;
        let are_in_order = self.kernels().is_none_or(|kernels| kernels.are_in_order);
        if !(is_in_order && are_in_order) {
            self.finish_kernels().map_err(LaunchError::failed)?;
        }
        let own = self.docket.listed.replace(views);
        let launch = Launch::new(&range, &shape, &arguments);
        let fence = launched(|| kernel.launch(&launch, self));
        self.docket.listed = own;
        if let Err(LaunchError::Failed(cause)) = &fence {
            let message = guard(|| cause.to_string()).unwrap_or_else(|message| message.to_string());
            self.docket.launched().ended =
                Err(TransferError::Framework { call: "launch", code: 0, message: message.into() });
        }
        let fence = fence?;
        self.started();
        self.count(Operation::Kernel);
        let new = || Mutex::new(Kernels { fences: Fences::new(), are_in_order: true });
        let kernels = self.docket.launched().kernels.get_or_insert_with(new);
        let kernels = kernels.get_mut();
        kernels.fences.push(fence);
        kernels.are_in_order &= is_in_order;
        Ok(())
    }

    /// Returns the grants with the kernels launched under them, to be waited for or awaited.
    pub fn running(mut self) -> InFlight {
        self.started();
        InFlight::of(self, Fences::new())
    }

    fn kernels(&mut self) -> Option<&mut Kernels> {
        self.docket.launched.as_mut()?.kernels.as_mut().map(|kernels| kernels.get_mut())
    }

    /// Takes the kernels in flight, and the failure of those that have ended.
    pub(super) fn take_kernels(&mut self) -> (Fences, Result<u64, TransferError>) {
        let Some(launched) = &mut self.docket.launched else { return (Fences::new(), Ok(0)) };
        let fences = launched.kernels.take().map_or_else(Fences::new, |kernels| kernels.into_inner().fences);
        (fences, launched.ended.clone())
    }

    /// Waits for the kernels in flight, and returns the first error of any kernel.
    pub(super) fn finish_kernels(&mut self) -> Result<u64, TransferError> {
        let (fences, ended) = self.take_kernels();
        if fences.is_empty() {
            return ended;
        }
        let ended = fences.into_iter().map(waited).fold(ended, Result::and);
        self.docket.launched().ended = ended.clone();
        ended
    }

    /// Returns the arguments with the access that was granted, and the items of their views.
    fn resolved(&self, given: &[GrantArg<'_>]) -> Result<(Vec<LaunchArg>, docket::Items), ViewError> {
        let mut views = SmallVec::new();
        let arguments = given.iter().map(|GrantArg(argument)| {
            let (region, only_reads) = match argument {
                Given::Region(region) => (region, false),
                Given::Read(region) => (region, true),
                Given::Value(value) => return Ok(value.clone()),
            };
            let buffer = region.buffer().clone();
            let mut claims = self.claims_within(&buffer, &region.bytes())?;
            if only_reads {
                claims.iter_mut().for_each(|claim| claim.access = Access::ReadOnly);
            }
            let all = |access| claims.iter().all(|claim| claim.access == access);
            let access = [Access::ReadOnly, Access::WriteInvalidate].into_iter().find(|access| all(*access));
            let access = access.unwrap_or(Access::ReadWrite);
            let ranges: Vec<_> = claims.iter().map(|claim| claim.span.to_range()).collect();
            views.extend(claims.into_iter().map(|claim| Item { buffer: buffer.id(), claim }));
            Ok(LaunchArg::Buffer { buffer, access, ranges: ranges.into() })
        });
        Ok((arguments.collect::<Result<_, _>>()?, views))
    }
}
