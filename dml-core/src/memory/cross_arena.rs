//! Copies between two arenas: the [`CrossArena`] trait, which prices a [`Link`](crate::Link) and carries it out, and what it is
//! given for that.

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
/// It may be safe code: the [`CopyJob`] that it is given reaches the bytes of one copy and no others.
///
/// # What a mechanism owes
/// - **C-1** The price depends on the query alone. It is asked for once for each size class, when the first buffer of that size is
///   made, and remembered. (`hostile` `any_call_may_call_back_into_core`)
/// - **C-2** The fence reports the bytes that were moved. Fewer are a failed copy, and so are more. (`hostile`
///   `a_mechanism_reaches_its_own_bytes_alone`)
/// - **C-3** The job, and everything that it was split into, is used up or dropped before the fence ends. Otherwise the contract is
///   broken, and the buffer serves nobody any more. (`hostile` `a_mechanism_reaches_its_own_bytes_alone`)
/// - **C-4** Calls may panic, call back into core, and take their time, as an arena's may.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2.
pub trait CrossArena: Send + Sync + fmt::Debug {
    /// The mechanism in a word or two, for plans and traces.
    fn name(&self) -> &str;

    /// What the copy would take, or `None` where this mechanism cannot do it. Pure and deterministic: the answer
    /// depends on the query alone, because it is remembered.
    fn can_copy(&self, query: &CopyQuery) -> Option<Cost>;

    /// Starts the copy. Success of the fence means that every byte of the job's span was written in the destination
    /// and nothing outside it.
    ///
    /// # Errors
    /// [`TransferError`] where the copy could not be started.
    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError>;
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) struct JobEnd {
    pub(crate) arena: Arc<dyn Arena>,
    pub(crate) name: Arc<str>,
    pub(crate) block: BlockRef,
    /// The whole block as the host sees it, if it is host memory or mapped for the host.
    pub(crate) host: Option<Shared>,
}

/// One end of a copy, as a mechanism sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CopyEnd<'a> {
    /// The arena.
    pub arena: &'a dyn Arena,
    /// Its block.
    pub block: &'a BlockRef,
}

/// A copy to be carried out: the ends, the bytes, and the ways to move them.
///
/// It is not `Clone`: its bytes are moved once. Parts may go different ways ([`split_at`](Self::split_at)). It may be kept
/// until the fence ends, so a mechanism may move the bytes whenever it likes.
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

    /// The bytes to copy; the same offsets in both blocks.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.span.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// The source.
    #[must_use]
    pub fn from(&self) -> CopyEnd<'_> {
        CopyEnd { arena: &*self.from.arena, block: &self.from.block }
    }

    /// The destination.
    #[must_use]
    pub fn to(&self) -> CopyEnd<'_> {
        CopyEnd { arena: &*self.to.arena, block: &self.to.block }
    }

    /// Where the host sees the job's bytes at the source, if it does. Unsafe code may read there while it holds the job.
    #[must_use]
    pub fn source_host(&self) -> Option<HostSpan> {
        self.from.host.as_ref().map(|host| host.span().slice(self.span))
    }

    /// Where the host sees the job's bytes at the destination, if it does. Unsafe code may write there while it holds the
    /// job.
    #[must_use]
    pub fn target_host(&self) -> Option<HostSpan> {
        self.to.host.as_ref().map(|host| host.span().slice(self.span))
    }

    /// The first `at` bytes and the others.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        assert!(at <= self.len(), "byte {at} of {}", self.len());
        let cut = self.span.start() + at;
        let (first, second) = (Span::new(self.span.start(), cut), Span::new(cut, self.span.end()));
        let rest = Self::new(self.from.clone(), self.to.clone(), second, &self.counters, &self.loan);
        (Self { span: first, ..self }, rest)
    }

    /// The first `at` bytes, or all where there are fewer; the others are not touched.
    #[must_use]
    pub fn first(self, at: u64) -> Self {
        let at = at.min(self.len());
        self.split_at(at).0
    }

    /// Writes the source, which the host sees, into the destination by the framework's write call.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] where the host does not see the source; whatever [`Arena::copy_in`] reports.
    pub fn write(self) -> Result<Fence, TransferError> {
        let source = host_of(&self.from)?.source(self.span, &self.loan);
        self.counters.count(Operation::Write);
        self.to.arena.copy_in(CopyIn::scheduled(&self.to.block, self.span.start(), source))
    }

    /// Reads the source into the destination, which the host sees, by the framework's read call.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] where the host does not see the destination; whatever [`Arena::copy_out`] reports.
    pub fn read(self) -> Result<Fence, TransferError> {
        let target = host_of(&self.to)?.target(self.span, &self.loan);
        self.counters.count(Operation::Read);
        self.from.arena.copy_out(CopyOut::scheduled(&self.from.block, self.span.start(), target))
    }

    /// Copies with the processor where the host sees both ends, and is done when it returns.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] where the host does not see an end.
    pub fn memcpy(self) -> Result<Fence, TransferError> {
        let source = host_of(&self.from)?.source(self.span, &self.loan);
        let mut target = host_of(&self.to)?.target(self.span, &self.loan);
        self.counters.count(Operation::Copy);
        target.copy_from(&source);
        Ok(Fence::done(self.span.len()))
    }

    /// Reads the source into scratch memory and writes the destination from there, in pieces; done when it returns.
    ///
    /// # Errors
    /// [`TransferError::NoScratch`], [`TransferError::Short`], [`TransferError::StillLent`], and whatever the arenas report.
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

/// Waits for a piece, which must have moved all of its bytes and given back what it was lent.
fn expect_all(fence: Fence, requested_bytes: u64, loan: &Loan) -> Result<(), TransferError> {
    let done_bytes = fence.wait()?;
    if loan.is_out() {
        return Err(TransferError::StillLent);
    }
    moved_all(requested_bytes, done_bytes)
}

/// Whether a transfer moved what was asked for.
pub(crate) fn moved_all(requested_bytes: u64, done_bytes: u64) -> Result<(), TransferError> {
    match done_bytes {
        _ if done_bytes < requested_bytes => Err(TransferError::Short { requested_bytes, done_bytes }),
        _ if done_bytes > requested_bytes => Err(TransferError::Overrun { requested_bytes, done_bytes }),
        _ => Ok(()),
    }
}

/// The size of the pieces in which a copy with no host end is staged through scratch memory, in bytes.
const STAGE_BYTES: u64 = 4 << 20;
