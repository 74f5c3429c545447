//! Copies between two arenas: the [`CrossArena`] trait, and the host-staged mechanisms that serve by default.
//!
//! A [`Link`] is the pure description of one directed mechanism, which the abstract machine plans with; a
//! [`CrossArena`] prices it and carries it out. Several links may join the same two arenas: the planner takes the
//! cheapest that is feasible now. `read`/`write` style transfers reach an end through its own device and leave the
//! map state alone; `map` style ones reach it through a remote device and need it mapped first.

use crate::arena::{Arena, BlockRef, Concurrency, Fence};
use crate::cost::Cost;
use crate::error::TransferError;
use crate::host::{HostMemory, HostSpan, Loan, Shared};
use crate::id::{ArenaId, DeviceId};
use crate::platform::Platform;
use crate::range::Span;
use crate::record::Operation;
use crate::request::{CopyIn, CopyOut};
use crate::sync::Arc;
use std::fmt;

/// How a link's destination gets its storage when it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocation {
    /// The destination allocates its own.
    Internal,
    /// The destination is bound to the source's storage, which both then share under this concurrency; data moves
    /// by a change of map state alone.
    Bound(Concurrency),
    /// None: the link serves only while the two share their storage, through a binding the other way round.
    Shared,
}

/// One directed way to bring data from one arena to another; pure data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Where the data comes from.
    pub from: ArenaId,
    /// Where it goes.
    pub to: ArenaId,
    /// The device through which the source is read: its native one, or a remote one for which it is mapped first.
    pub source_via: DeviceId,
    /// The device through which the destination is written.
    pub target_via: DeviceId,
    /// How the destination gets storage.
    pub allocation: Allocation,
}

/// What a mechanism is asked to price. It describes the two ends as they will be when the copy starts: the source
/// is then valid, whatever it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyQuery {
    /// The bytes to move; rounded up to the size class the path is cached for.
    pub bytes: u64,
    /// Whether the source's map state has to change first.
    pub remap_source: bool,
    /// Whether the destination's map state has to change first.
    pub remap_target: bool,
    /// Whether the destination has no storage yet. Its [`alloc_cost`](crate::ArenaDesc::alloc_cost) is added by
    /// core.
    pub allocates: bool,
}

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
    from: JobEnd,
    to: JobEnd,
    span: Span,
    platform: Platform,
    loan: Loan,
}

impl CopyJob {
    pub(crate) fn new(from: JobEnd, to: JobEnd, span: Span, platform: &Platform, loan: &Loan) -> Self {
        Self { from, to, span, platform: platform.clone(), loan: loan.clone() }
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
        let rest = Self::new(self.from.clone(), self.to.clone(), second, &self.platform, &self.loan);
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
        self.platform.counters().count(Operation::Write);
        self.to.arena.copy_in(CopyIn::scheduled(&self.to.block, self.span.start(), source))
    }

    /// Reads the source into the destination, which the host sees, by the framework's read call.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] where the host does not see the destination; whatever [`Arena::copy_out`] reports.
    pub fn read(self) -> Result<Fence, TransferError> {
        let target = host_of(&self.to)?.target(self.span, &self.loan);
        self.platform.counters().count(Operation::Read);
        self.from.arena.copy_out(CopyOut::scheduled(&self.from.block, self.span.start(), target))
    }

    /// Copies with the processor where the host sees both ends, and is done when it returns.
    ///
    /// # Errors
    /// [`TransferError::NoAddress`] where the host does not see an end.
    pub fn memcpy(self) -> Result<Fence, TransferError> {
        let source = host_of(&self.from)?.source(self.span, &self.loan);
        let mut target = host_of(&self.to)?.target(self.span, &self.loan);
        self.platform.counters().count(Operation::Copy);
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
            self.platform.counters().count(Operation::Read);
            let target = scratch.share().target(part, &loan);
            let read = self.from.arena.copy_out(CopyOut::scheduled(&self.from.block, start, target))?;
            expect_all(read, len, &loan)?;
            self.platform.counters().count(Operation::Write);
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

/// Latency and bandwidth of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkSpeed {
    /// The time of an empty copy, in nanoseconds.
    pub latency_ns: u64,
    /// The rate of a long copy, in bytes a second.
    pub bytes_per_s: u64,
    /// What a change of map state adds, in nanoseconds.
    pub remap_ns: u64,
}

impl LinkSpeed {
    /// The cost of a query at this speed.
    #[must_use]
    pub fn cost(&self, query: &CopyQuery) -> Cost {
        let remaps = u64::from(query.remap_source) + u64::from(query.remap_target);
        Cost::of_transfer(
            self.latency_ns.saturating_add(self.remap_ns.saturating_mul(remaps)),
            query.bytes,
            self.bytes_per_s,
        )
    }
}

impl Default for LinkSpeed {
    /// A guess for a link that was never measured: 10 µs and 4 GB/s, 5 µs a remap.
    fn default() -> Self {
        Self { latency_ns: 10_000, bytes_per_s: 4_000_000_000, remap_ns: 5_000 }
    }
}

/// The size of the pieces in which a copy with no host end is staged through scratch memory, in bytes.
const STAGE_BYTES: u64 = 4 << 20;

/// The default mechanism: the frameworks' read and write calls, through main memory.
///
/// Where one end is host memory it is read or written in place; where neither is, the data passes through scratch
/// memory in pieces of 4 MiB. No map state changes.
#[derive(Clone, Debug)]
pub struct HostStaged {
    price: Price,
}

/// Where the cost of a staged copy comes from.
#[derive(Clone, Debug)]
enum Price {
    /// A speed of its own.
    Speed(LinkSpeed),
    /// The two mechanisms by which the bytes reach the host and leave it.
    Halves(Arc<dyn CrossArena>, Arc<dyn CrossArena>),
}

/// What staging through scratch memory costs more than two copies with main memory between them, which leave the
/// contents valid there too.
const SCRATCH_COST: Cost = Cost::from_ns(1_000);

impl HostStaged {
    /// The mechanism at a given speed.
    #[must_use]
    pub fn new(speed: LinkSpeed) -> Self {
        Self { price: Price::Speed(speed) }
    }

    /// The mechanism between two arenas that are not the host's, at the price of the copies to the host and from it.
    #[must_use]
    pub fn of_halves(to_host: Arc<dyn CrossArena>, from_host: Arc<dyn CrossArena>) -> Self {
        Self { price: Price::Halves(to_host, from_host) }
    }
}

impl Default for HostStaged {
    /// At the speed of a link that was never measured.
    fn default() -> Self {
        Self::new(LinkSpeed::default())
    }
}

impl CrossArena for HostStaged {
    fn name(&self) -> &'static str {
        "staged"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        match &self.price {
            Price::Speed(speed) => Some(speed.cost(query)),
            Price::Halves(to_host, from_host) => {
                let out = to_host.can_copy(&CopyQuery { remap_target: false, allocates: false, ..*query })?;
                let back = from_host.can_copy(&CopyQuery { remap_source: false, ..*query })?;
                Some(out + back + SCRATCH_COST)
            }
        }
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        match (job.from.host.is_some(), job.to.host.is_some()) {
            (true, true) => job.memcpy(),
            (true, false) => job.write(),
            (false, true) => job.read(),
            (false, false) => job.stage(),
        }
    }
}

/// The map-style mechanism: both ends are host memory or mapped for the host, and the processor copies.
#[derive(Clone, Debug, Default)]
pub struct HostMapped {
    speed: LinkSpeed,
}

impl HostMapped {
    /// The mechanism at a given speed.
    #[must_use]
    pub fn new(speed: LinkSpeed) -> Self {
        Self { speed }
    }
}

impl CrossArena for HostMapped {
    fn name(&self) -> &'static str {
        "mapped"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        Some(self.speed.cost(query))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        job.memcpy()
    }
}

/// A binding: the ends share one storage, so there is nothing to move once the map state is right.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    speed: LinkSpeed,
}

impl Binding {
    /// A binding whose map-state changes take as long as `speed` says; its bandwidth is not used.
    #[must_use]
    pub fn new(speed: LinkSpeed) -> Self {
        Self { speed }
    }
}

impl CrossArena for Binding {
    fn name(&self) -> &'static str {
        "bound"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        Some(self.speed.cost(&CopyQuery { bytes: 0, ..*query }))
    }

    fn copy(&self, _job: CopyJob) -> Result<Fence, TransferError> {
        unreachable!("core refreshes a bound pair by its map state; it never copies between the two")
    }
}
