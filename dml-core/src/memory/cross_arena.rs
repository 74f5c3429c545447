//! Copies between two arenas: the [`CrossArena`] trait, which prices a [`Link`](crate::Link) and carries out
//! its copies, and the [`CopyJob`] that describes one copy.

use crate::base::cost::Cost;
use crate::base::counters::{Counters, Operation};
use crate::base::range::Span;
use crate::base::sync::Arc;
use crate::memory::arena::Arena;
use crate::memory::block::BlockRef;
use crate::memory::error::TransferError;
use crate::memory::fence::Fence;
use crate::memory::host::{HostMemory, HostSpan, Loan, Shared};
use crate::memory::link::CopyQuery;
use crate::memory::request::{CopyIn, CopyOut};
use std::fmt;

/// A mechanism that copies between two arenas.
///
/// An implementation needs no unsafe code: its [`CopyJob`] reaches the bytes of one copy and no others.
///
/// # What a mechanism must do
/// - **C-1** The price depends on the query alone. Core asks once for each size class, when the first buffer
///   of that size is made, and remembers the answer. (`hostile` `any_call_may_call_back_into_core`)
/// - **C-2** The fence reports the number of bytes that were moved. The copy fails if the number is too small
///   or too large. (`hostile` `a_mechanism_reaches_its_own_bytes_alone`)
/// - **C-3** The job and all its parts are used up or dropped before the fence ends. Otherwise the mechanism
///   has broken its contract, and the buffer is wedged. (`hostile` `a_mechanism_reaches_its_own_bytes_alone`)
/// - **C-4** Calls and the destructor may panic, call back into core, and take a long time, as an arena's may
///   (A-6). (`hostile` `a_panic_of_any_call_is_the_failure_of_what_was_asked_alone`,
///   `any_call_may_call_back_into_core`, `two_mechanisms_that_panic_as_they_go_leave_the_process_alone`)
///
/// # Examples
/// ```
/// use dml_core::{CopyJob, CopyQuery, Cost, CrossArena, Fence, LinkSpeed, TransferError};
///
/// /// Copies host memory to a device by the write call of the device's framework.
/// #[derive(Debug)]
/// struct Upload(LinkSpeed);
///
/// impl CrossArena for Upload {
///     fn name(&self) -> &str { "upload" }
///     fn can_copy(&self, query: &CopyQuery) -> Option<Cost> { Some(self.0.cost(query)) }
///     fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> { job.write() }
/// }
/// ```
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2.
pub trait CrossArena: Send + Sync + fmt::Debug {
    /// Returns the name of the mechanism in a word or two, for plans and traces.
    fn name(&self) -> &str;

    /// Returns the cost of the copy, or `None` if this mechanism cannot do it. The answer must depend on the
    /// query alone, because core remembers it.
    fn can_copy(&self, query: &CopyQuery) -> Option<Cost>;

    /// Starts the copy. If the fence succeeds, every byte of the job's span was written in the destination,
    /// and no byte outside the span.
    ///
    /// # Errors
    /// [`TransferError`] if the copy could not be started.
    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError>;

    /// As [`copy`](Self::copy), but the copy begins on the device behind a kernel of the source.
    ///
    /// # Errors
    /// [`TransferError::Infeasible`], the default, if the mechanism cannot order the two. Core then begins
    /// the copy after it has waited for the kernel.
    fn copy_behind(&self, job: CopyJob, kernel: &Fence) -> Result<Fence, TransferError> {
        let _ = (job, kernel);
        Err(TransferError::Infeasible)
    }
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) struct JobEnd {
    pub(crate) arena: Arc<dyn Arena>,
    pub(crate) name: Arc<str>,
    pub(crate) block: BlockRef,
    /// The host's view of the whole block, if the block is host memory or mapped for the host.
    pub(crate) host: Option<Shared>,
}

/// One end of a copy, as a mechanism sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CopyEnd<'a> {
    /// The arena at this end.
    pub arena: &'a dyn Arena,
    /// The block of the arena.
    pub block: &'a BlockRef,
}

/// A copy to carry out: its ends, its bytes, and the ways to move them.
///
/// A job is not `Clone`, because its bytes are moved once. Its parts may be moved in different ways
/// ([`split_at`](Self::split_at)). A mechanism may keep the job, and move the bytes, until the fence ends.
#[derive(Debug)]
pub struct CopyJob {
    pub(super) from: JobEnd,
    pub(super) to: JobEnd,
    span: Span,
    counters: Arc<Counters>,
    loan: Loan,
}

impl CopyJob {
    pub(crate) fn new(from: JobEnd, to: JobEnd, span: Span, counters: &Arc<Counters>, loan: &Loan) -> Self {
        Self { from, to, span, counters: counters.clone(), loan: loan.clone() }
    }

    /// Returns the bytes to copy. The offsets are the same in both blocks.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns the number of bytes to copy.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.span.len()
    }

    /// Returns whether there are no bytes to copy.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Returns the source.
    #[must_use]
    pub fn from(&self) -> CopyEnd<'_> {
        CopyEnd { arena: &*self.from.arena, block: &self.from.block }
    }

    /// Returns the destination.
    #[must_use]
    pub fn to(&self) -> CopyEnd<'_> {
        CopyEnd { arena: &*self.to.arena, block: &self.to.block }
    }

    /// Returns the host's view of the job's bytes at the source, if there is one. Unsafe code may read there
    /// while it holds the job.
    #[must_use]
    pub fn source_host(&self) -> Option<HostSpan> {
        self.from.host.as_ref().map(|host| host.span().slice(self.span))
    }

    /// Returns the host's view of the job's bytes at the destination, if there is one. Unsafe code may write
    /// there while it holds the job.
    #[must_use]
    pub fn target_host(&self) -> Option<HostSpan> {
        self.to.host.as_ref().map(|host| host.span().slice(self.span))
    }

    /// Splits the job into its first `at` bytes and the remaining ones.
    ///
    /// # Panics
    /// When the job has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        assert!(at <= self.len(), "byte {at} of {}", self.len());
        let cut = self.span.start() + at;
        let (first, second) = (Span::new(self.span.start(), cut), Span::new(cut, self.span.end()));
        let rest = Self::new(self.from.clone(), self.to.clone(), second, &self.counters, &self.loan);
        (Self { span: first, ..self }, rest)
    }

    /// Reduces the job to its first `at` bytes, or to all of them if it has fewer. The other bytes are not
    /// copied.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }

    /// Writes the source, which the host can address, into the destination by the framework's write call.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] if the host cannot address the source; any error of [`Arena::copy_in`].
    pub fn write(self) -> Result<Fence, TransferError> {
        let source = host_of(&self.from)?.source(self.span, &self.loan);
        self.counters.count(Operation::Write);
        self.to.arena.copy_in(CopyIn::scheduled(&self.to.block, self.span.start(), source))
    }

    /// Reads the source into the destination, which the host can address, by the framework's read call.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] if the host cannot address the destination; any error of
    /// [`Arena::copy_out`].
    pub fn read(self) -> Result<Fence, TransferError> {
        let target = host_of(&self.to)?.target(self.span, &self.loan);
        self.counters.count(Operation::Read);
        self.from.arena.copy_out(CopyOut::scheduled(&self.from.block, self.span.start(), target))
    }

    /// As [`read`](Self::read), behind a kernel of the source ([`Arena::copy_out_behind`]).
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`TransferError::Infeasible`].
    pub fn read_behind(self, kernel: &Fence) -> Result<Fence, TransferError> {
        let target = host_of(&self.to)?.target(self.span, &self.loan);
        let copy = CopyOut::scheduled(&self.from.block, self.span.start(), target);
        let fence = self.from.arena.copy_out_behind(copy, kernel)?;
        self.counters.count(Operation::Read);
        Ok(fence)
    }

    /// Copies with the host's processor, which must be able to address both ends. The copy is done on return.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] if the host cannot address one of the ends.
    pub fn memcpy(self) -> Result<Fence, TransferError> {
        let source = host_of(&self.from)?.source(self.span, &self.loan);
        let mut target = host_of(&self.to)?.target(self.span, &self.loan);
        self.counters.count(Operation::Copy);
        target.copy_from(&source);
        Ok(Fence::done(self.span.len()))
    }

    /// Reads the source into the first bytes of the mechanism's own memory, by the framework's read call.
    /// This is the first half of a copy through scratch memory that the mechanism keeps.
    /// [`write_from`](Self::write_from) is the second.
    ///
    /// # Errors
    /// Any error of [`Arena::copy_out`].
    ///
    /// # Panics
    /// When `scratch` is shorter than the job, or lent, or belongs to a block.
    pub fn read_into(&self, scratch: &mut HostMemory) -> Result<Fence, TransferError> {
        scratch.expect_own();
        let target = scratch.share().target(Span::new(0, self.len()), &self.loan);
        self.counters.count(Operation::Read);
        self.from.arena.copy_out(CopyOut::scheduled(&self.from.block, self.span.start(), target))
    }

    /// Writes the first bytes of the mechanism's own memory into the destination, by the framework's write
    /// call. They must be the bytes of the source.
    ///
    /// # Errors
    /// Any error of [`Arena::copy_in`].
    ///
    /// # Panics
    /// As [`read_into`](Self::read_into).
    pub fn write_from(self, scratch: &HostMemory) -> Result<Fence, TransferError> {
        scratch.expect_own();
        let source = scratch.share().source(Span::new(0, self.len()), &self.loan);
        self.counters.count(Operation::Write);
        self.to.arena.copy_in(CopyIn::scheduled(&self.to.block, self.span.start(), source))
    }

    /// Reads the source into scratch memory and writes the destination from there, in pieces. The copy is
    /// done on return.
    ///
    /// # Errors
    /// - [`TransferError::NoScratch`] if there is no scratch memory.
    /// - [`TransferError::Short`] or [`TransferError::Overrun`] if an arena moves a wrong number of bytes.
    /// - [`TransferError::StillLent`] if an arena keeps lent memory after its fence has ended.
    /// - Any error that the arenas report.
    pub fn stage(self) -> Result<Fence, TransferError> {
        let mut start = self.span.start();
        while start < self.span.end() {
            let len = (self.span.end() - start).min(STAGE_BYTES);
            let (scratch, part, loan) = (HostMemory::zeroed(len)?, Span::new(0, len), self.loan.part());
            self.counters.count(Operation::Read);
            let target = scratch.share().target(part, &loan);
            let read = self.from.arena.copy_out(CopyOut::scheduled(&self.from.block, start, target))?;
            expect_all(read, len, &loan)?;
            self.counters.count(Operation::Write);
            let source = scratch.share().source(part, &loan);
            let written = self.to.arena.copy_in(CopyIn::scheduled(&self.to.block, start, source))?;
            expect_all(written, len, &loan)?;
            start += len;
        }
        Ok(Fence::done(self.span.len()))
    }
}

fn host_of(end: &JobEnd) -> Result<&Shared, TransferError> {
    end.host.as_ref().ok_or_else(|| TransferError::NoAddress { arena: end.name.clone() })
}

/// Waits for a piece, and checks that its transfer moved all bytes and returned the lent memory.
fn expect_all(fence: Fence, requested_bytes: u64, loan: &Loan) -> Result<(), TransferError> {
    let done_bytes = fence.wait()?;
    if loan.is_out() {
        return Err(TransferError::StillLent);
    }
    moved_all(requested_bytes, done_bytes)
}

/// Checks that a transfer moved exactly the requested number of bytes.
pub(crate) fn moved_all(requested_bytes: u64, done_bytes: u64) -> Result<(), TransferError> {
    match done_bytes {
        _ if done_bytes < requested_bytes => Err(TransferError::Short { requested_bytes, done_bytes }),
        _ if done_bytes > requested_bytes => Err(TransferError::Overrun { requested_bytes, done_bytes }),
        _ => Ok(()),
    }
}

/// The size, in bytes, of the pieces in which [`CopyJob::stage`] copies through scratch memory.
const STAGE_BYTES: u64 = 4 << 20;
