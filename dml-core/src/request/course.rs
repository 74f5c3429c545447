//! The course of a submitted kernel, from its grants to its end.
//!
//! ```text
//!   grants ──launch here──▶ fence ─┐
//!      └──left to the stream───────┴─▶ push: its number ──▶ started: those that follow are let in
//! ```

use crate::base::counters::Operation;
use crate::base::guard::{guard, quietly};
use crate::base::id::DeviceId;
use crate::base::sync::Arc;
use crate::memory::fence::Fence;
use crate::platform::Platform;
use crate::platform::stream::{Afterwards, AllHeld, Cause, Failure, Refused, Start, Stream, Work};
use crate::request::acquire::{Acquire, Purpose};
use crate::request::flight::InFlight;
use crate::request::grants::Grants;
use crate::request::kernels::Fences;
use crate::request::launch::{ItemShape, Launch, LaunchArg, LaunchError, Launcher};
use crate::request::submit::SubmitError;
use std::future::Future;
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use thiserror::Error;

/// What is known of a kernel apart from its arguments.
pub(super) struct Course {
    platform: Platform,
    device: DeviceId,
    label: Arc<str>,
    pub(super) is_in_order: bool,
    pub(super) stream: Arc<Stream>,
    /// The device to which the results are brought behind the kernel.
    pub(super) results: Option<DeviceId>,
    /// Whether the kernel ends apart from those behind it.
    pub(super) ends_alone: bool,
}

/// A launch that was made, or is left to the stream.
pub(super) enum Begun {
    Here(Result<Fence, LaunchError>),
    Aside(Aside),
}

impl Course {
    pub(super) fn new(
        platform: Platform,
        device: DeviceId,
        label: Arc<str>,
        is_in_order: bool,
    ) -> Result<Self, SubmitError> {
        let stream = platform.0.streams.of(platform.home_of(device)?).clone();
        Ok(Self { platform, device, label, is_in_order, stream, results: None, ends_alone: false })
    }

    /// Starts the request for the kernel's buffers.
    pub(super) fn acquire<'a>(&self, origin: &'static Location<'static>) -> Acquire<'a> {
        let mut acquire = self.platform.acquire(self.device).located_at(origin);
        if self.is_in_order {
            acquire = acquire.with_purpose(Purpose::Submission);
        }
        acquire
    }

    pub(super) fn device(&self) -> Arc<str> {
        self.platform.device_desc(self.device).name.clone()
    }

    /// Passes the kernel to its stream. `failures` is the number of failures on it before the request.
    pub(super) fn begin(
        &self,
        mut grants: Grants,
        begun: Begun,
        failures: u64,
    ) -> Result<Submission, SubmitError> {
        let (aside, kernel): (_, Option<Fence>) = match begun {
            Begun::Here(Ok(kernel)) => (None, Some(kernel)),
            Begun::Here(Err(error)) => return Err(self.not_launched(error, grants, failures)),
            Begun::Aside(aside) => (Some(aside), None),
        };
        self.platform.counters().count(Operation::Kernel);
        grants.launched(&self.label);
        let mut kernel = Kernel {
            aside,
            ends_alone: self.ends_alone,
            results: self.results,
            failed: None,
            running: InFlight::of(grants, kernel.into_iter().collect()),
        };
        kernel.bring_results();
        let number = self.push(kernel, failures);
        Ok(Submission { stream: self.stream.clone(), device: self.device(), number })
    }

    fn push(&self, kernel: Kernel, failures: u64) -> u64 {
        let start = match &kernel.aside {
            None => Start::Made,
            Some(Aside { computes: true, .. }) => Start::Computes,
            Some(Aside { waits, .. }) => Start::Left { waits: *waits },
        };
        let about = (self.label.clone(), self.is_in_order && !self.ends_alone);
        self.stream.push((Box::new(kernel), start), about, failures)
    }

    fn not_launched(&self, error: LaunchError, grants: Grants, failures: u64) -> SubmitError {
        let (has_started, cause) = match error {
            LaunchError::NotStarted(cause) => {
                let _ = grants.not_started();
                (false, cause.into())
            }
            LaunchError::Failed(cause) => {
                // It ends behind the kernels before it, which would otherwise commit what it has written to.
                let cause: Cause = cause.into();
                let (running, failed) =
                    (InFlight::of(grants.hand_over(), Fences::new()), Some(cause.clone()));
                let kernel = Kernel { aside: None, ends_alone: true, results: None, failed, running };
                let number = self.push(kernel, failures);
                // On a stream, the caller cannot wait for it.
                let _ = self.stream.settle(number);
                self.stream.tell(number);
                (true, cause)
            }
        };
        let (device, kernel) = (self.device(), self.label.clone());
        SubmitError::Launch { device, kernel, has_started, cause }
    }
}

/// Launches a kernel. A panic becomes an error.
pub(super) fn launched(launch: impl FnOnce() -> Result<Fence, LaunchError>) -> Result<Fence, LaunchError> {
    let panicked = |message| Err(LaunchError::failed(format!("the launcher panicked: {message}")));
    guard(launch).unwrap_or_else(panicked)
}

/// A launch that is left to the stream.
pub(super) struct Aside {
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) arguments: Vec<LaunchArg>,
    pub(super) shape: ItemShape,
    pub(super) items: Range<u64>,
    /// The number of items of the run.
    pub(super) total: u64,
    /// Whether the launch computes.
    pub(super) computes: bool,
    /// Whether copies of inputs are in flight, for which the launch may wait.
    pub(super) waits: bool,
}

/// The failure of a launch that was left to the stream.
#[derive(Debug, Error)]
#[error("its launch failed: {0}")]
struct LaunchFailed(#[source] LaunchError);

/// A submitted kernel with its grants.
struct Kernel {
    /// What is to be launched, if it is not launched.
    aside: Option<Aside>,
    /// Whether it ends apart from those behind it.
    ends_alone: bool,
    /// The device to which the results are brought.
    results: Option<DeviceId>,
    /// Why it cannot be launched.
    failed: Option<Cause>,
    running: InFlight,
}

impl Kernel {
    /// Begins to bring the results of a kernel that is launched.
    fn bring_results(&mut self) {
        if let Some(device) = self.results.filter(|_| self.aside.is_none() && self.failed.is_none()) {
            self.running.bring_results(device);
        }
    }
}

impl Work for Kernel {
    fn held(&self) -> AllHeld {
        match self.failed {
            None => self.running.started().map(|grant| (grant.buffer.id, grant.id)).collect(),
            Some(_) => AllHeld::new(),
        }
    }

    fn start(&mut self) -> Afterwards {
        let mut afterwards = Afterwards::new();
        if self.failed.is_none() {
            for grant in self.running.started() {
                if let Some(aftermath) = grant.buffer.start_within(grant.id) {
                    let buffer = grant.buffer.clone();
                    afterwards.push(Box::new(move || buffer.act(aftermath)));
                }
            }
        }
        afterwards
    }

    fn launch(&mut self, is_followed: bool) -> bool {
        let Some(Aside { launcher, arguments, shape, items, total, computes, .. }) = self.aside.take() else {
            return true;
        };
        let launch = Launch::new(&items, &shape, &arguments).of(total);
        let launch = if self.ends_alone { launch } else { launch.submitted(is_followed) };
        let begun = self.running.begin(|grants| {
            launched(|| {
                let follows_copies = launcher.follows_copies();
                grants.before_launch(follows_copies).map_err(LaunchError::not_started)?;
                launcher.launch(&launch, grants)
            })
        });
        self.running.wait_for_inputs();
        self.failed = begun.err().map(|error| match error {
            // The launch is the kernel.
            LaunchError::Failed(cause) if computes => cause.into(),
            error => Arc::new(LaunchFailed(error)) as Cause,
        });
        self.bring_results();
        quietly(launcher);
        self.running.keep_arguments(arguments);
        self.failed.is_none()
    }

    fn wait(&mut self) {
        // Others may use what came, and need not wait for the kernel.
        self.running.wait_for_inputs();
        self.running.finish();
    }

    fn has_ended(&self) -> bool {
        // A kernel that can only be waited for counts as ended, so that it is.
        self.running.has_ended() || self.running.blocks()
    }

    fn end(self: Box<Self>, fails: bool) -> Result<(), Cause> {
        let Self { aside, failed, running, .. } = *self;
        quietly(aside);
        let grants = running.wait().map_err(|error| Arc::new(error) as Cause)?;
        if let Some(cause) = failed {
            grants.notice_losses();
            let _ = grants.failed();
            return Err(cause);
        }
        if fails { grants.failed() } else { grants.release_whole() }.map_err(|error| Arc::new(error) as Cause)
    }
}

/// A kernel that was submitted. Dropping the value neither cancels the kernel nor waits for it. The kernel
/// and its stream keep buffers and platform until it has ended, also if the program drops them.
#[derive(Clone, Debug)]
pub struct Submission {
    stream: Arc<Stream>,
    device: Arc<str>,
    number: u64,
}

impl Submission {
    /// Returns the number of the kernel on its stream, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether the kernel has ended, with or without an error, and its bytes can be had.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stream.has_settled(self.number)
    }

    /// Waits until the kernel and all before it on its stream have ended.
    ///
    /// # Errors
    /// [`SubmitError::Failed`] if the kernel failed, or one before it whose failure it shares. A stream
    /// remembers its last 1024 failures. [`SubmitError::OnStream`] in code that a stream calls, if the kernel
    /// has not ended.
    pub fn wait(&self) -> Result<(), SubmitError> {
        self.stream.settle(self.number)?;
        self.ended()
    }

    fn ended(&self) -> Result<(), SubmitError> {
        self.stream.failure(self.number).map_or(Ok(()), |failure| Err(failed(&self.device, failure)))
    }
}

impl Future for Submission {
    type Output = Result<(), SubmitError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.stream.poll(self.number, context.waker()) {
            true => Poll::Ready(self.ended()),
            false => Poll::Pending,
        }
    }
}

impl From<Refused> for SubmitError {
    fn from(Refused: Refused) -> Self {
        Self::OnStream
    }
}

pub(super) fn failed(device: &Arc<str>, Failure { number, label, cause, .. }: Failure) -> SubmitError {
    SubmitError::Failed { device: device.clone(), kernel: label, number, cause }
}
