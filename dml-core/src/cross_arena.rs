//! Copies between two arenas: the [`CrossArena`] trait, and the host-staged mechanisms that serve by default.
//!
//! A [`Link`] is the pure description of one directed mechanism, which the abstract machine plans with; a
//! [`CrossArena`] prices it and carries it out. Several links may join the same two arenas: the planner takes the
//! cheapest that is feasible now. `read`/`write` style transfers reach an end through its own device and leave the
//! map state alone; `map` style ones reach it through a remote device and need it mapped first.

use crate::arena::{Arena, BlockRef, Concurrency, Fence};
use crate::cost::Cost;
use crate::error::TransferError;
use crate::host::HostSpan;
use crate::id::{ArenaId, DeviceId};
use crate::range::Span;
use crate::record::{Counters, Operation};
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
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2.
pub trait CrossArena: Send + Sync + fmt::Debug {
    /// The mechanism in a word or two, for plans and traces.
    fn name(&self) -> &str;

    /// What the copy would take, or `None` where this mechanism cannot do it. Pure and deterministic: the answer
    /// depends on the query alone, because paths are cached by it.
    fn can_copy(&self, query: &CopyQuery) -> Option<Cost>;

    /// Starts the copy. Success of the fence means that every byte of the job's span was written in the destination
    /// and nothing outside it.
    ///
    /// # Errors
    /// [`TransferError`] where the copy could not be started.
    fn copy(&self, job: &CopyJob<'_>) -> Result<Fence, TransferError>;
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub struct CopyEnd<'a> {
    /// The arena.
    pub arena: &'a dyn Arena,
    /// Its block.
    pub block: &'a BlockRef,
    /// Where the host sees the whole block, if it is host memory or mapped for the host.
    pub host: Option<&'a HostSpan>,
}

/// A copy to be carried out: the ends, the bytes, and the primitive operations, which are counted here so that a
/// mechanism cannot forget to.
#[derive(Debug)]
pub struct CopyJob<'a> {
    from: CopyEnd<'a>,
    to: CopyEnd<'a>,
    span: Span,
    counters: &'a Counters,
}

impl<'a> CopyJob<'a> {
    pub(crate) fn new(from: CopyEnd<'a>, to: CopyEnd<'a>, span: Span, counters: &'a Counters) -> Self {
        Self { from, to, span, counters }
    }

    /// The bytes to copy; the same offsets in both blocks.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The source.
    #[must_use]
    pub fn from(&self) -> CopyEnd<'a> {
        self.from
    }

    /// The destination.
    #[must_use]
    pub fn to(&self) -> CopyEnd<'a> {
        self.to
    }

    /// Host bytes of the job's span at the source, if the host sees it.
    #[must_use]
    pub fn source_host(&self) -> Option<HostSpan> {
        self.from.host.map(|host| host.slice(self.span))
    }

    /// Host bytes of the job's span at the destination, if the host sees it.
    #[must_use]
    pub fn target_host(&self) -> Option<HostSpan> {
        self.to.host.map(|host| host.slice(self.span))
    }

    /// Writes host memory into the destination at `offset` of the buffer (the framework's write call).
    ///
    /// # Errors
    /// Whatever [`Arena::copy_in`] reports.
    pub fn write(&self, offset: u64, from: &HostSpan) -> Result<Fence, TransferError> {
        self.counters.count(Operation::Write);
        self.to.arena.copy_in(self.to.block, offset, from)
    }

    /// Reads the source at `offset` of the buffer into host memory (the framework's read call).
    ///
    /// # Errors
    /// Whatever [`Arena::copy_out`] reports.
    pub fn read(&self, offset: u64, to: &HostSpan) -> Result<Fence, TransferError> {
        self.counters.count(Operation::Read);
        self.from.arena.copy_out(self.from.block, offset, to)
    }

    /// Copies between two host spans with the processor, and is done when it returns.
    pub fn memcpy(&self, from: &HostSpan, to: &HostSpan) -> Fence {
        self.counters.count(Operation::Copy);
        to.copy_from(from);
        Fence::done(from.len())
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

    fn copy(&self, job: &CopyJob<'_>) -> Result<Fence, TransferError> {
        let span = job.span();
        match (job.source_host(), job.target_host()) {
            (Some(from), Some(to)) => Ok(job.memcpy(&from, &to)),
            (Some(from), None) => job.write(span.start(), &from),
            (None, Some(to)) => job.read(span.start(), &to),
            (None, None) => {
                let mut start = span.start();
                while start < span.end() {
                    let len = (span.end() - start).min(STAGE_BYTES);
                    let scratch = HostSpan::scratch(len)?;
                    expect_all(job.read(start, &scratch)?.wait()?, len)?;
                    expect_all(job.write(start, &scratch)?.wait()?, len)?;
                    start += len;
                }
                Ok(Fence::done(span.len()))
            }
        }
    }
}

fn expect_all(done_bytes: u64, requested_bytes: u64) -> Result<(), TransferError> {
    if done_bytes == requested_bytes {
        Ok(())
    } else {
        Err(TransferError::Short { requested_bytes, done_bytes })
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

    fn copy(&self, job: &CopyJob<'_>) -> Result<Fence, TransferError> {
        match (job.source_host(), job.target_host()) {
            (Some(from), Some(to)) => Ok(job.memcpy(&from, &to)),
            _ => Err(TransferError::Infeasible),
        }
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

    fn copy(&self, _job: &CopyJob<'_>) -> Result<Fence, TransferError> {
        unreachable!("core refreshes a bound pair by its map state; it never copies between the two")
    }
}
