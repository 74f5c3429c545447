//! Submissions, on a real platform and in the model.
//!
//! ```text
//!   submit ──▶ launched: reads and writes its bytes ──▶ in flight, up to the gate of its stream
//!   settle, wait ──▶ gate opened ──▶ the kernels of the stream end in order ──▶ committed, or failed
//! ```
//! A kernel in flight ends only during an operation that settles its stream, so the model need not follow
//! the stream's own thread.

use super::ask::AskId;
use super::judge::Answer;
use super::model::Written;
use super::op::{Does, Way};
use super::request::{Found, Item, Request, expected, to_write};
use super::world::{World, around};
use crate::poll_once;
use dml_core::{
    AcquireError, ArenaId, DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit,
    Submission, SubmitError, TransferError,
};
use std::error::Error;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

/// Maximum number of kernels on a stream.
const MOST_IN_FLIGHT: usize = 256;
/// The cause of every scripted failure.
const TOLD: &str = "as told";

/// Kernels pass it once it is set.
type Gate = Arc<OnceLock<()>>;

/// The submitted kernels of an arena.
#[derive(Default)]
pub(super) struct Stream {
    in_flight: Vec<Flight>,
    gate: Gate,
    /// The number of the last kernel.
    given: u64,
    /// The first failed kernel since the device was settled.
    untold: Option<u64>,
}

impl Stream {
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.in_flight.iter().map(|flight| &flight.kernel.request)
    }

    /// Returns whether a launch that was left to it may have failed.
    fn is_refusing(&self) -> bool {
        let left = self.in_flight.iter().filter(|flight| flight.submission.is_some());
        left.map(|flight| flight.kernel.does).any(|does| !matches!(does, Does::Computes | Does::Fails))
    }

    /// Returns the version of a byte that the kernels in flight will have written.
    fn version_at(&self, buffer: usize, at: u64) -> Option<u64> {
        let written = self.in_flight.iter().rev().flat_map(|flight| &flight.kernel.written);
        let by = |by: &&Written| by.buffer == buffer && by.range.contains(&at);
        { written }.find(by).map(|by| by.version)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.gate.set(());
    }
}

/// A kernel in flight.
struct Flight {
    id: AskId,
    kernel: Arc<Kernel>,
    /// `None` if its launch failed.
    submission: Option<Submission>,
}

/// A kernel with all that it does.
struct Kernel {
    does: Does,
    is_in_order: bool,
    request: Request,
    reads: Vec<Found>,
    written: Vec<Written>,
    gate: Gate,
    submitter: ThreadId,
    /// Whether it was to be launched.
    is_tried: AtomicBool,
    /// Whether its launch did something.
    is_launched: AtomicBool,
}

impl Launcher for Kernel {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        self.is_in_order
    }

    fn launch(&self, _: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        self.is_tried.store(true, Ordering::Release);
        if self.does == Does::IsRefused {
            return Err(LaunchError::not_started(TOLD));
        }
        self.is_launched.store(true, Ordering::Relaxed);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            self.request.look(grants, &self.reads);
            self.request.scribble(grants, &self.written);
        }));
        if ran.is_err() || self.does == Does::FailsToLaunch {
            // A submitter whose launch fails waits for the kernels before it.
            if thread::current().id() == self.submitter {
                let _ = self.gate.set(());
            }
            return Err(LaunchError::failed(if ran.is_ok() { TOLD } else { "it panicked" }));
        }
        let (gate, fails) = (self.gate.clone(), self.does == Does::Fails);
        let failure = || TransferError::Framework { call: "kernel", code: 7, message: TOLD.into() };
        Ok(Fence::running(move || {
            gate.wait();
            if fails { Err(failure()) } else { Ok(0) }
        }))
    }
}

impl World {
    /// Submits a kernel. Returns whether it is in flight then.
    ///
    /// The copies of what it reads may be left to its stream. They are waited for here, so that the model
    /// need not follow them. None of them fails: a kernel that reads runs in order only where no fault
    /// strikes, and behind no failed launch.
    pub(super) fn submit(
        &mut self,
        device: DeviceId,
        items: &[Item],
        (does, is_in_order, skip): (Does, bool, u8),
    ) -> bool {
        let home = self.platform.home(device);
        let arena = home.unwrap_or(ArenaId(self.model.arenas));
        let is_reading = items.iter().any(|item| item.access.reads());
        let is_in_order = is_in_order && !(is_reading && self.armed.is_some());
        if is_reading && self.streams.entry(arena).or_default().is_refusing() {
            self.settle_stream(arena);
            return false;
        }
        let before = self.before();
        let request = Request { way: Way::Try, kernel: None, arena, items: items.to_vec(), looks: false };
        let refused = match home {
            Some(_) => request.refused(self.model.arenas),
            None => Some(AcquireError::NoArena { device }),
        };
        let parts = if refused.is_some() { Vec::new() } else { request.parts() };
        let written = to_write(&parts, &mut self.model, skip);
        let stream = self.streams.entry(arena).or_default();
        let version = |buffer, at| stream.version_at(buffer, at).or(self.model.version_at(buffer, at));
        let reads = expected(&parts, |buffer, at| version(buffer, at).unwrap_or_default());
        let (in_flight, gate) = (stream.in_flight.len(), stream.gate.clone());
        let (submitter, no) = (thread::current().id(), || AtomicBool::new(false));
        let (is_tried, is_launched) = (no(), no());
        let kernel = Arc::new(Kernel {
            does,
            is_in_order,
            request,
            reads,
            written,
            gate,
            submitter,
            is_tried,
            is_launched,
        });
        let submit = self.platform.submit(device, &kernel);
        let submit = items
            .iter()
            .fold(submit, |submit, item| submit.access(&item.raw.range(item.range.clone()), item.access));
        let submitted = submit.try_items(1);
        if in_flight == MOST_IN_FLIGHT {
            assert!(matches!(submitted, Err(SubmitError::Full { .. })), "{submitted:?}");
            return false;
        }
        if let Some(expected) = refused {
            self.tally.refused += 1;
            let is_it = matches!(&submitted, Err(SubmitError::Acquire(error)) if *error == expected);
            assert!(is_it, "{submitted:?}, and not {expected:?}");
            return false;
        }
        let id = self.model.ask(None, arena, parts);
        self.model.asks.entry(id).and_modify(|ask| ask.is_on_stream = is_in_order);
        let answer = match &submitted {
            Err(SubmitError::Acquire(error)) => Answer::Error(error),
            _ => Answer::Granted,
        };
        self.answered(id, &kernel.request, &before, answer);
        match submitted {
            Ok(submission) => {
                let may_be_left = is_in_order && (in_flight > 0 || is_reading);
                assert!(
                    may_be_left || matches!(does, Does::Computes | Does::Fails),
                    "launched, and {does:?}"
                );
                let passes = in_flight == 0 && !matches!(does, Does::Computes | Does::Fails);
                assert!(passes || !submission.has_ended(), "it has not passed the gate");
                while is_in_order && is_reading && !kernel.is_tried.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                self.started(Flight { id, kernel, submission: Some(submission) });
                // Without a kernel before it, one that was not launched ends by itself.
                if passes {
                    self.settle_stream(arena);
                }
                !passes
            }
            Err(SubmitError::Launch { has_started, cause, .. }) => {
                let told = if has_started { Does::FailsToLaunch } else { Does::IsRefused };
                assert_eq!((does, cause.to_string().as_str()), (told, TOLD), "{:?}", kernel.request);
                match has_started {
                    true => {
                        self.started(Flight { id, kernel, submission: None });
                        self.settle_stream(arena);
                    }
                    false => self.model.give_up(id),
                }
                false
            }
            Err(SubmitError::Acquire(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a kernel that has its place on the stream.
    fn started(&mut self, flight: Flight) {
        let stream = self.streams.entry(flight.kernel.request.arena).or_default();
        stream.given += 1;
        if let Some(submission) = &flight.submission {
            assert_eq!(submission.number(), stream.given);
        }
        stream.in_flight.push(flight);
    }

    /// Returns whether a request is that of a kernel in flight.
    pub(super) fn is_submitted(&self, id: AskId) -> bool {
        self.streams.values().flat_map(|stream| &stream.in_flight).any(|flight| flight.id == id)
    }

    /// Settles a device.
    pub(super) fn settle_device(&mut self, device: DeviceId) {
        let Some(arena) = self.platform.home(device) else {
            let settled = self.platform.settle(device);
            assert!(matches!(settled, Err(SubmitError::Acquire(AcquireError::NoArena { .. }))));
            return;
        };
        self.open(arena);
        let settled = failure(self.platform.settle(device));
        self.settle_stream(arena);
        let untold = self.streams.entry(arena).or_default().untold.take();
        assert_eq!(settled.map(|(number, _)| number), untold, "the first failure since the last call");
    }

    /// Waits for a submission, then for the other kernels of its stream.
    pub(super) fn wait_for(&mut self, which: u8) {
        let in_flight = |(arena, stream): (&ArenaId, &Stream)| {
            let submissions = stream.in_flight.iter().filter_map(|flight| flight.submission.clone());
            submissions.map(|submission| (*arena, submission)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.streams.iter().flat_map(in_flight).collect();
        let Some((arena, mut submission)) = around(which, all.len()).map(|index| all[index].clone()) else {
            return;
        };
        assert!(poll_once(&mut submission).is_pending(), "it has not passed the gate");
        self.open(arena);
        let ended = failure(submission.wait());
        assert!(submission.has_ended());
        self.settle_stream(arena);
        let again = failure(submission.wait());
        assert_eq!(ended.map(|(number, _)| number), again.map(|(number, _)| number));
    }

    /// Lets the kernels of a stream end.
    fn open(&mut self, arena: ArenaId) {
        let _ = self.streams.entry(arena).or_default().gate.set(());
    }

    /// Waits for the kernels of a stream, and passes their ends to the model, in their order.
    pub(super) fn settle_stream(&mut self, arena: ArenaId) {
        self.open(arena);
        let stream = self.streams.entry(arena).or_default();
        stream.gate = Gate::default();
        let first = stream.given + 1 - stream.in_flight.len() as u64;
        let (mut failed, mut is_refusing, mut returned) = (None, false, None);
        for (flight, number) in take(&mut stream.in_flight).into_iter().zip(first..) {
            let kernel = flight.kernel.clone();
            returned = returned.or(flight.submission.is_none().then_some(number));
            failed = self.ended(flight, number, failed);
            let is_launched = kernel.is_in_order && kernel.is_launched.load(Ordering::Relaxed);
            assert!(!(is_refusing && is_launched), "kernel {number} was launched behind a failed launch");
            is_refusing |= !matches!(kernel.does, Does::Computes | Does::Fails);
        }
        let untold = &mut self.streams.entry(arena).or_default().untold;
        // The submission itself has returned the failure of its launch.
        *untold = untold.or(failed.filter(|_| failed != returned));
    }

    /// Waits for a kernel, whose number is given, and ends it in the model. `failed` is the first kernel
    /// before it that failed. Returns that one, or this one if it failed.
    fn ended(&mut self, flight: Flight, number: u64, failed: Option<u64>) -> Option<u64> {
        let Flight { id, kernel, submission } = flight;
        let ended = submission.map(|submission| failure(submission.wait()));
        if let Some(told) = failed.or((kernel.does != Does::Computes).then_some(number)) {
            if let Some(ended) = ended {
                let (first, cause) = ended.unwrap_or_else(|| panic!("kernel {number} ended well"));
                assert_eq!(first, told, "{cause}");
                assert!(told != number || cause.to_string().contains(TOLD), "{cause}");
            }
            self.model.fail(id, |_| true);
            self.model.give_up(id);
            self.tally.failed += 1;
            return Some(told);
        }
        let ask = self.model.asks[&id].clone();
        let result = ended.flatten().map_or(Ok(()), |(first, cause)| {
            assert_eq!(first, number, "{cause}");
            Err(cause.downcast_ref::<AcquireError>().unwrap_or_else(|| panic!("{cause}")).clone())
        });
        let lost = self.heard(&ask, ask.releases(), &result);
        let buffers = ask.releases().map(|part| part.buffer);
        let whole: Vec<usize> = buffers.take_while(|buffer| Some(*buffer) != lost).collect();
        self.model.commit(id, &kernel.written, |part| whole.contains(&part.buffer));
        self.model.fail(id, |part| !whole.contains(&part.buffer));
        self.model.give_up(id);
        self.tally.computed += u64::from(lost.is_none());
        self.tally.failed += u64::from(lost.is_some());
        lost.map(|_| number)
    }
}

/// Returns the number of the kernel that failed, and the cause.
fn failure(ended: Result<(), SubmitError>) -> Option<(u64, Arc<dyn Error + Send + Sync>)> {
    match ended {
        Ok(()) => None,
        Err(SubmitError::Failed { number, cause, .. }) => Some((number, cause)),
        Err(error) => panic!("{error}"),
    }
}
