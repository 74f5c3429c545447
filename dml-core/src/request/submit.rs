//! Submissions: kernels that queue on their device, launched in one line.
//!
//! ```text
//!   submit(device, &kernel).read(&a).write(&b).scalar(2.5).items(n)
//!       │ arguments checked ▸ buffers acquired, behind the stream's own kernels ▸ launched
//!       ▼
//!   Submission: number n of its stream ──▶ wait, await, or forget
//! ```

use crate::base::access::Access;
use crate::base::guard::guard;
use crate::base::id::DeviceId;
use crate::base::sync::Arc;
use crate::buffer::error::AcquireError;
use crate::memory::fence::Fence;
use crate::platform::Platform;
use crate::request::acquire::{Acquire, AcquireFuture, Purpose};
use crate::request::course::{Aside, Begun, Course, Submission, failed, launched};
use crate::request::docket;
use crate::request::grants::Grants;
use crate::request::launch::{ItemShape, Launch, LaunchArg, LaunchError, Misfit, Scalar, SharedLauncher};
use crate::request::region::Region;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use thiserror::Error;

/// Why a kernel was not submitted, or failed afterwards.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The arguments or the number of work-items do not fit the kernel. Nothing changed.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The buffers cannot be acquired. Nothing changed.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The stream of the device has no room for another kernel now. Nothing changed.
    #[error("{device} has too many kernels in flight")]
    Full {
        /// The device.
        device: Arc<str>,
    },
    /// Code that a stream calls, such as a launcher or a waker, would wait for kernels, which may wait for
    /// that code. Nothing changed.
    #[error(
        "code that a stream calls, such as a launcher or a waker, cannot wait for kernels: wait on another thread"
    )]
    OnStream,
    /// The kernel could not be launched. Where `has_started` is true, the bytes that it was to write are
    /// poisoned; otherwise nothing changed.
    #[error("{kernel} {} on {device}: {cause}", if *has_started { "failed at its launch" } else { "was not launched" })]
    Launch {
        /// The device.
        device: Arc<str>,
        /// The label of the kernel.
        kernel: Arc<str>,
        /// Whether the kernel may have written something.
        has_started: bool,
        /// The framework's error.
        cause: Arc<dyn Error + Send + Sync>,
    },
    /// A kernel failed on the device. What it and the kernels behind it on its stream were to write is
    /// poisoned.
    ///
    /// A framework may know of several kernels together whether they ended well. The first of them is then
    /// named. With `DML_SETTLE=each` in the environment, every submission is waited for at once, so that the
    /// failed kernel is named.
    #[error("{kernel}, submission {number} of {device}, failed: {cause}")]
    Failed {
        /// The device.
        device: Arc<str>,
        /// The label of the kernel that failed, which may be one before the kernel that was waited for.
        kernel: Arc<str>,
        /// The number of the kernel that failed on its stream, from 1.
        number: u64,
        /// The framework's error.
        cause: Arc<dyn Error + Send + Sync>,
    },
}

/// The numbers of work-items of a launch along one, two or three dimensions: columns, rows, planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items {
    dimensions: usize,
    sizes: [u64; 3],
    groups: [u64; 3],
}

impl Items {
    /// Sets the size of a work-group along each dimension, in work-items. By default, and where a size is 0,
    /// the framework chooses it.
    #[must_use]
    pub fn in_groups(mut self, sizes: [u64; 3]) -> Self {
        self.groups = sizes;
        self
    }

    /// Returns the layout of the work-items, the range along its last dimension, and the range's end.
    fn of_whole(self, kernel: &str) -> Result<(ItemShape, Range<u64>, u64), Misfit> {
        let (shape, items) = self.checked(kernel)?;
        let total = items.end;
        Ok((shape, items, total))
    }

    /// Returns the layout of the work-items, and the range along its last dimension.
    pub(super) fn checked(self, kernel: &str) -> Result<(ItemShape, Range<u64>), Misfit> {
        let Self { dimensions, sizes, groups } = self;
        let [columns, rows, planes] = sizes;
        // A kernel without work-items would not write what it is granted.
        let count = columns.checked_mul(rows).and_then(|count| count.checked_mul(planes));
        if !count.is_some_and(|count| (1..=i64::MAX.unsigned_abs()).contains(&count)) {
            return Err(Misfit::Items { kernel: kernel.to_owned(), items: sizes });
        }
        Ok(match dimensions {
            1 => (ItemShape::line(groups[0]).whole(), 0..columns),
            2 => (ItemShape::rows(columns, [groups[0], groups[1]]).whole(), 0..rows),
            _ => (ItemShape::planes([columns, rows], groups).whole(), 0..planes),
        })
    }
}

impl From<u64> for Items {
    fn from(items: u64) -> Self {
        Self { dimensions: 1, sizes: [items, 1, 1], groups: [0; 3] }
    }
}

impl From<[u64; 2]> for Items {
    fn from([columns, rows]: [u64; 2]) -> Self {
        Self { dimensions: 2, sizes: [columns, rows, 1], groups: [0; 3] }
    }
}

impl From<[u64; 3]> for Items {
    fn from(sizes: [u64; 3]) -> Self {
        Self { dimensions: 3, sizes, groups: [0; 3] }
    }
}

/// A kernel to be submitted, with its arguments in the order of its signature.
///
/// Finish it with [`items`](Self::items), [`try_items`](Self::try_items) or
/// [`items_async`](Self::items_async).
///
/// # Order
/// The kernels that one thread submits act as if each had ended before the next one began, whatever buffers
/// they name. Kernels of one device do not wait for each other in that if their launchers
/// [run in order](crate::Launcher::runs_in_order): a kernel queues on the device behind those that it depends
/// on. Other uses of the bytes wait until the kernel has ended: on another device, in a view of the host, or
/// under a plain [acquire](Platform::acquire).
///
/// A launcher that does not run in order is launched behind the kernels that it depends on, and its call
/// waits for them. Functions of the host run one after the other, on a thread of their stream.
///
/// # Inputs and results
/// The copies of what a kernel only reads go on while the submitter goes on.
/// [`bring_results`](Self::bring_results) enqueues the copies of its results behind it, where the frameworks
/// can order that. A [prefetch](crate::Buffer::prefetch) after the submission works everywhere, and begins
/// once the host has learned of the kernel's end. A later kernel that writes the same bytes is submitted only
/// once these copies have ended, so a program that reuses buffers needs a few of them in turn.
///
/// # Failures
/// After a kernel has failed, what it was to write is poisoned, and so is what all kernels behind it on its
/// stream were to write. A kernel that was refused changed nothing. [`Submission::wait`] reports the failure,
/// and so do [`Platform::settle`], whether or not a `wait` has, and the next use of the bytes.
///
/// Some launches are left to the stream, such as those of functions of the host. If such a launch is refused,
/// the kernel counts as failed: the program has gone on, and must not take the old bytes for new ones.
#[must_use = "nothing is launched until items, try_items or items_async"]
pub struct Submit<'a> {
    platform: Platform,
    device: DeviceId,
    launcher: &'a dyn SharedLauncher,
    label: Option<Arc<str>>,
    arguments: Vec<LaunchArg>,
    results: Option<DeviceId>,
    ends_alone: bool,
}

impl<'a> Submit<'a> {
    fn new(platform: &Platform, device: DeviceId, launcher: &'a dyn SharedLauncher) -> Self {
        let (platform, arguments) = (platform.clone(), docket::arguments());
        Self { platform, device, launcher, label: None, arguments, results: None, ends_alone: false }
    }

    /// Sets the name that errors give the kernel, instead of the launcher's. Arguments that do not fit are
    /// reported under the launcher's.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Passes a buffer, or a part of one, whose bytes the kernel reads.
    pub fn read(self, region: &impl Region) -> Self {
        self.access(region, Access::ReadOnly)
    }

    /// Passes a buffer, or a part of one, of which the kernel overwrites every byte.
    pub fn write(self, region: &impl Region) -> Self {
        self.access(region, Access::WriteInvalidate)
    }

    /// Passes a buffer, or a part of one, that the kernel reads and changes.
    pub fn read_write(self, region: &impl Region) -> Self {
        self.access(region, Access::ReadWrite)
    }

    /// Passes a buffer, or a part of one, with the given access. A device kernel gets the whole storage, also
    /// for a part. A function of the host gets slices, so if it writes bytes that are passed twice, it fails.
    pub fn access(self, region: &impl Region, access: Access) -> Self {
        let (buffer, bytes) = (region.buffer().clone(), region.bytes());
        self.argument(LaunchArg::Buffer { buffer, access, ranges: bytes.into() })
    }

    /// Passes a scalar.
    pub fn scalar(self, value: impl Into<Scalar>) -> Self {
        self.argument(LaunchArg::Scalar(value.into()))
    }

    /// Passes a value of any other type, as its bytes.
    pub fn bytes(self, value: &[u8]) -> Self {
        self.argument(LaunchArg::Bytes(value.into()))
    }

    /// Passes local memory of a work-group, in bytes.
    pub fn local(self, bytes: u64) -> Self {
        self.argument(LaunchArg::Local(bytes))
    }

    /// Has what the kernel overwrites copied to a device behind the kernel, where
    /// [`InFlight::bring_results`](crate::InFlight::bring_results) can and no other kernel in flight writes
    /// the same bytes. The kernel then ends with these copies.
    pub fn bring_results(mut self, device: DeviceId) -> Self {
        self.results = Some(device);
        self
    }

    /// Has the kernel end apart from the kernels behind it. Otherwise a framework may know the ends of
    /// several kernels only together, which costs less. It matters if another device waits for this kernel
    /// while long ones are behind it.
    pub fn ends_alone(mut self) -> Self {
        self.ends_alone = true;
        self
    }

    /// Passes an argument as a launcher gets it. A buffer may be passed with several ranges.
    pub fn argument(mut self, argument: LaunchArg) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Launches the kernel, once its buffers are granted. The call waits for other users of them, and for
    /// copies of what the kernel changes. On a stream with very many kernels, it waits for room. It waits for
    /// no kernel before it on its own stream.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Failed`] only with `DML_SETTLE=each`. A thread that holds grants or
    /// views gets [`AcquireError::OrderViolation`] where it would have to wait for a buffer of a lower id.
    #[track_caller]
    pub fn items(self, items: impl Into<Items>) -> Result<Submission, SubmitError> {
        let origin = Location::caller();
        self.checked(|kernel| items.into().of_whole(kernel))?.submit(origin)
    }

    /// Launches a part of a run, as [`items`](Self::items) launches all of it: the items in `items` of
    /// `total`, laid out as `shape` says.
    ///
    /// # Errors
    /// As [`items`](Self::items), and [`Misfit::Items`] for a part without items or past the last one.
    #[track_caller]
    pub fn part(self, items: Range<u64>, total: u64, shape: ItemShape) -> Result<Submission, SubmitError> {
        let origin = Location::caller();
        let mut ready = self.checked(|kernel| {
            let work_items = shape.global(&items).into_iter().try_fold(1, u64::checked_mul);
            match work_items {
                Some(1..) if items.end <= total => Ok((shape, items, total)),
                _ => Err(Misfit::Items { kernel: kernel.to_owned(), items: shape.global(&items) }),
            }
        })?;
        ready.submit(origin)
    }

    /// Launches the kernel, if its buffers can be granted now.
    ///
    /// # Errors
    /// As [`items`](Self::items), [`AcquireError::Busy`] and [`SubmitError::Full`].
    #[track_caller]
    pub fn try_items(self, items: impl Into<Items>) -> Result<Submission, SubmitError> {
        let origin = Location::caller();
        let mut ready = self.checked(|kernel| items.into().of_whole(kernel))?;
        if !ready.course.stream.has_room() {
            return Err(SubmitError::Full { device: ready.course.device() });
        }
        loop {
            let failures = ready.course.stream.failures();
            let granted = ready.acquire(origin).try_now()?;
            if let Some(submitted) = ready.launch(granted, failures) {
                return submitted;
            }
        }
    }

    /// Returns a future that launches the kernel once its buffers are granted. Dropping it before that
    /// launches nothing. Kernels are submitted in the order in which their futures are polled. A future that
    /// was polled may have a place in a queue, where others wait behind it until it is polled again or
    /// dropped. It is pending while other uses of its buffers or a full stream are in its way.
    ///
    /// As for [`AcquireFuture`](crate::AcquireFuture), the order of the buffers that the thread holds is not
    /// checked: a task that awaits a buffer that it holds itself waits for ever.
    ///
    /// # Errors
    /// As [`items`](Self::items), but for [`AcquireError::OrderViolation`], as the future's output. A poll
    /// after the end returns [`AcquireError::Finished`], or the error that it ended with.
    #[track_caller]
    pub fn items_async(self, items: impl Into<Items>) -> SubmitFuture<'a> {
        let ready = self.checked(|kernel| items.into().of_whole(kernel));
        SubmitFuture { ready, acquiring: None, origin: Location::caller() }
    }

    fn checked(
        self,
        items: impl FnOnce(&str) -> Result<(ItemShape, Range<u64>, u64), Misfit>,
    ) -> Result<Ready<'a>, SubmitError> {
        let Self { platform, device, launcher, label, arguments, results, ends_alone } = self;
        let shared = launcher;
        let launcher = shared.launcher();
        guard(|| launcher.check(&arguments)).unwrap_or(Ok(()))?;
        let label = label.unwrap_or_else(|| guard(|| launcher.label()).unwrap_or_default());
        let (shape, items, total) = items(&label)?;
        guard(|| launcher.check_groups(&shape)).unwrap_or(Ok(()))?;
        let is_in_order = guard(|| launcher.runs_in_order()).unwrap_or(false);
        let mut course = Course::new(platform, device, label, is_in_order)?;
        course.results = results;
        course.ends_alone = ends_alone;
        let computes = is_in_order && guard(|| launcher.runs_within_launch()).unwrap_or(false);
        Ok(Ready { course, launcher: shared, arguments, shape, items, total, computes })
    }
}

impl fmt::Debug for Submit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submit").field("device", &self.device).field("arguments", &self.arguments).finish()
    }
}

/// A checked kernel.
struct Ready<'a> {
    course: Course,
    launcher: &'a dyn SharedLauncher,
    arguments: Vec<LaunchArg>,
    shape: ItemShape,
    items: Range<u64>,
    /// The number of items of the run.
    total: u64,
    /// Whether the launch computes.
    computes: bool,
}

impl Ready<'_> {
    fn submit(&mut self, origin: &'static Location<'static>) -> Result<Submission, SubmitError> {
        self.course.stream.wait_for_room()?;
        loop {
            let failures = self.course.stream.failures();
            let granted = self.acquire(origin).wait()?;
            if let Some(submitted) = self.launch(granted, failures) {
                return submitted.and_then(settled_each);
            }
        }
    }

    fn acquire(&self, origin: &'static Location<'static>) -> Acquire<'_> {
        let mut acquire = self.course.acquire(origin);
        if self.course.is_in_order {
            acquire = acquire.with_purpose(Purpose::SharedSubmission);
        }
        for argument in &self.arguments {
            if let LaunchArg::Buffer { buffer, access, ranges } = argument {
                ranges.iter().for_each(|bytes| acquire.want(buffer, bytes.clone(), *access));
            }
        }
        acquire
    }

    /// Launches the kernel, or leaves that to the stream. `failures` is the number of failures on the stream
    /// before the request. Returns `None` if there was another one meanwhile: the kernel might then read what
    /// a failed one should have written.
    fn launch(&mut self, mut grants: Grants, failures: u64) -> Option<Result<Submission, SubmitError>> {
        let stream = &self.course.stream;
        // Before the failures are counted: a launch that failed is among them, or the stream refuses others.
        let launcher = self.launcher.launcher();
        let is_ahead = self.course.is_in_order && stream.launches_aside();
        let follows_copies = || guard(|| launcher.follows_copies()).unwrap_or(false);
        let is_aside = self.computes
            || is_ahead
            || grants.is_arriving()
                && !(self.course.is_in_order && follows_copies() && grants.launches_behind());
        if stream.failures() != failures {
            drop(grants);
            return None;
        }
        let begun = if is_aside {
            let (launcher, arguments) = (self.launcher.shared(), std::mem::take(&mut self.arguments));
            let (shape, items) = (self.shape, self.items.clone());
            let (total, computes, waits) = (self.total, self.computes, grants.is_arriving());
            Begun::Aside(Aside { launcher, arguments, shape, items, total, computes, waits })
        } else {
            let launch = Launch::new(&self.items, &self.shape, &self.arguments).of(self.total);
            let launch = if self.course.ends_alone { launch } else { launch.submitted(false) };
            let begun = Begun::Here(launched(|| launcher.launch(&launch, &mut grants)));
            grants.docket.keep_arguments(std::mem::take(&mut self.arguments));
            begun
        };
        Some(self.course.begin(grants, begun, failures))
    }
}

/// Waits for a submission if the environment asks for that, to find a kernel that fails.
fn settled_each(submission: Submission) -> Result<Submission, SubmitError> {
    static EACH: OnceLock<bool> = OnceLock::new();
    if *EACH.get_or_init(|| std::env::var_os("DML_SETTLE").is_some_and(|value| value == "each")) {
        submission.wait()?;
    }
    Ok(submission)
}

/// A submission in progress, for any executor.
#[must_use = "nothing is launched until it is polled"]
pub struct SubmitFuture<'a> {
    ready: Result<Ready<'a>, SubmitError>,
    /// The acquire in progress, and the number of failures before it.
    acquiring: Option<(AcquireFuture, u64)>,
    origin: &'static Location<'static>,
}

impl fmt::Debug for SubmitFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitFuture").field("is_acquiring", &self.acquiring.is_some()).finish()
    }
}

impl Future for SubmitFuture<'_> {
    type Output = Result<Submission, SubmitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { ready, acquiring, origin } = &mut *self;
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        loop {
            let (acquire, failures) = match acquiring {
                Some(acquiring) => acquiring,
                None => match ready.course.stream.poll_room(context.waker()) {
                    Poll::Ready(()) => {
                        let failures = ready.course.stream.failures();
                        acquiring.insert((ready.acquire(origin).into_future(), failures))
                    }
                    Poll::Pending => return Poll::Pending,
                },
            };
            let granted = match Pin::new(acquire).poll(context) {
                Poll::Ready(granted) => granted,
                Poll::Pending => return Poll::Pending,
            };
            let failures = *failures;
            *acquiring = None;
            match granted {
                Ok(granted) => {
                    if let Some(submitted) = ready.launch(granted, failures) {
                        self.ready = Err(AcquireError::Finished.into());
                        return Poll::Ready(submitted);
                    }
                }
                Err(error) => {
                    self.ready = Err(error.clone().into());
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }
}

impl Platform {
    /// Starts to submit a kernel to a device.
    ///
    /// # Examples
    /// ```
    /// # use dml_core::{Buffer, DeviceId, Launcher, Platform, SubmitError};
    /// # use std::sync::Arc;
    /// # fn example(
    /// #     (platform, gpu): (&Platform, DeviceId),
    /// #     (scale, a, b): (Arc<dyn Launcher>, &Buffer<f32>, &Buffer<f32>),
    /// # ) -> Result<(), SubmitError> {
    /// platform.submit(gpu, &scale).read(a).write(b).scalar(2.5_f32).items(a.len())?; // returns at once
    /// platform.submit(gpu, &scale).read(b).write(a).scalar(0.5_f32).items(a.len())?; // behind it
    /// platform.settle(gpu)?; // or read the buffers, which waits for them alone
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit<'a>(&self, device: DeviceId, kernel: &'a impl SharedLauncher) -> Submit<'a> {
        Submit::new(self, device, kernel)
    }

    /// Submits work that the program launches itself, on the framework's own stream: the queue of an
    /// [`OpenClArena`], the stream of a [`CudaArena`]. `buffers` names the buffers, and `launch` gets them,
    /// launches and returns the fence of the work. It is called once, on this thread.
    /// The buffers are acquired for `device`, whatever request `buffers` returns.
    ///
    /// The work must run behind the kernels that were submitted to the device before, and its fence report
    /// the first failure of any of its commands. Otherwise contents may be wrong. The fences of compiled
    /// kernels ([`OpenClKernel`], [`CudaKernel`]) and of [`CudaArena::fence_of`] do. An own one
    /// ([`Fence::running`]) waits for the event of the last command, which must have been flushed. Its number
    /// of bytes does not matter.
    ///
    /// # Errors
    /// As [`Submit::items`].
    ///
    /// # Examples
    /// ```
    /// # use dml_core::{Buffer, DeviceId, Fence, LaunchError, Platform, SubmitError};
    /// # fn my_launch(native: Option<dml_core::NativeHandle>) -> Fence { Fence::done(0) }
    /// # fn example(
    /// #     (platform, gpu): (&Platform, DeviceId), (a, b): (&Buffer<f32>, &Buffer<f32>),
    /// # ) -> Result<(), SubmitError> {
    /// platform.submit_with(gpu, "my kernel", |acquire| acquire.read(a).write(b), |grants| {
    ///     let to = grants.native(b).map_err(LaunchError::not_started)?;
    ///     Ok(my_launch(to)) // enqueues, and does not wait
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`OpenClArena`]: https://docs.rs/dml-arenas/latest/dml_arenas/struct.OpenClArena.html#method.queue
    /// [`OpenClKernel`]: https://docs.rs/dml-arenas/latest/dml_arenas/opencl/struct.OpenClKernel.html
    /// [`CudaKernel`]: https://docs.rs/dml-arenas/latest/dml_arenas/cuda/struct.CudaKernel.html
    /// [`CudaArena::fence_of`]: https://docs.rs/dml-arenas/latest/dml_arenas/struct.CudaArena.html#method.fence_of
    /// [`CudaArena`]: https://docs.rs/dml-arenas/latest/dml_arenas/struct.CudaArena.html#method.stream
    #[track_caller]
    pub fn submit_with<'a>(
        &self,
        device: DeviceId,
        label: &str,
        buffers: impl FnOnce(Acquire<'a>) -> Acquire<'a>,
        launch: impl FnOnce(&mut Grants) -> Result<Fence, LaunchError>,
    ) -> Result<Submission, SubmitError> {
        let origin = Location::caller();
        let course = Course::new(self.clone(), device, label.into(), true)?;
        let own = course.acquire(origin);
        let acquire = buffers(own.clone()).made_as(&own);
        course.stream.wait_for_room()?;
        let (mut grants, failures) = loop {
            let failures = course.stream.failures();
            let grants = acquire.clone().wait()?;
            let may_launch = course.stream.wait_for_launches()?;
            if may_launch && course.stream.failures() == failures {
                break (grants, failures);
            }
            drop(grants);
            course.stream.settle(course.stream.given())?;
        };
        let begun = launched(|| launch(&mut grants));
        course.begin(grants, Begun::Here(begun), failures).and_then(settled_each)
    }

    /// Waits until all kernels that were submitted to a device so far have ended.
    ///
    /// # Errors
    /// - [`SubmitError::Failed`]: the first failure since the last call, also one that [`Submission::wait`]
    ///   has returned, but not one that the call that submits has.
    /// - [`SubmitError::OnStream`]: a stream called this code, and a kernel has not ended.
    /// - [`SubmitError::Acquire`]: the device has no memory.
    pub fn settle(&self, device: DeviceId) -> Result<(), SubmitError> {
        let stream = self.0.streams.of(self.home_of(device)?);
        let number = stream.given();
        stream.settle(number)?;
        let name = &self.device_desc(device).name;
        stream.untold(number).map_or(Ok(()), |failure| Err(failed(name, failure)))
    }
}
