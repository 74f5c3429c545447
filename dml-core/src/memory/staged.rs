//! The mechanisms that every platform has: staged through the host, mapped for the host, and bindings, which move nothing.

use crate::base::cost::Cost;
use crate::base::sync::Arc;
use crate::memory::cross_arena::{CopyJob, CrossArena};
use crate::memory::error::TransferError;
use crate::memory::fence::Fence;
use crate::memory::link::{CopyQuery, LinkSpeed};

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
