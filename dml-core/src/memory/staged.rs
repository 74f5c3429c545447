//! The mechanisms that every platform has: copies staged through the host, copies of mapped memory, and
//! bindings.

use crate::base::cost::Cost;
use crate::base::guard::Quiet;
use crate::base::sync::Arc;
use crate::memory::cross_arena::{CopyJob, CrossArena};
use crate::memory::error::TransferError;
use crate::memory::fence::Fence;
use crate::memory::link::{CopyQuery, LinkSpeed};

/// The default mechanism: copies through main memory by the read and write calls of the frameworks.
///
/// An end that the host can address is read or written in place. If the host can address neither end, the
/// data passes through scratch memory in pieces of 4 MiB. No map state changes.
#[derive(Clone, Debug)]
pub struct HostStaged {
    price: Price,
}

/// The source of the cost of a staged copy.
#[derive(Clone, Debug)]
enum Price {
    /// The cost follows from a speed.
    Speed(LinkSpeed),
    /// The cost is the sum for two mechanisms: the one that brings bytes to the host, and the one that takes
    /// them away.
    Halves(Quiet<Arc<dyn CrossArena>>, Quiet<Arc<dyn CrossArena>>),
}

/// Extra cost of staging through scratch memory. It makes two copies by way of main memory cheaper, because
/// these also make the contents valid there.
const SCRATCH_COST: Cost = Cost::from_ns(1_000);

impl HostStaged {
    /// Creates the mechanism at a given speed.
    #[must_use]
    pub fn new(speed: LinkSpeed) -> Self {
        Self { price: Price::Speed(speed) }
    }

    /// Creates the mechanism between two arenas that are not the host's. Its cost is that of the copies to
    /// the host and from it.
    #[must_use]
    pub fn of_halves(to_host: Arc<dyn CrossArena>, from_host: Arc<dyn CrossArena>) -> Self {
        Self { price: Price::Halves(Quiet::new(to_host), Quiet::new(from_host)) }
    }
}

impl Default for HostStaged {
    /// Creates the mechanism at the speed of a link that was never measured.
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

    fn copy_behind(&self, job: CopyJob, kernel: &Fence) -> Result<Fence, TransferError> {
        match (job.from.host.is_some(), job.to.host.is_some()) {
            (false, true) => job.read_behind(kernel),
            _ => Err(TransferError::Infeasible),
        }
    }
}

/// The mechanism for mapped memory: both ends are host memory or mapped for the host, and the host's
/// processor copies.
#[derive(Clone, Debug, Default)]
pub struct HostMapped {
    speed: LinkSpeed,
}

impl HostMapped {
    /// Creates the mechanism at a given speed.
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

/// A binding: both ends share one storage, so only the map state changes and no bytes are moved.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    speed: LinkSpeed,
}

impl Binding {
    /// Creates a binding with the latency and the remap time of `speed`. The bandwidth is not used.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// No bytes move, so the size and the bandwidth have no effect.
    #[test]
    fn a_binding_costs_its_latency_and_its_remaps() {
        let speed = LinkSpeed { latency_ns: 700, bytes_per_s: 1, remap_ns: 30 };
        let binding = Binding::new(speed);
        for (bytes, remap_source, remap_target, expected_ns) in [
            (0, false, false, 700),
            (1 << 30, false, false, 700),
            (8, true, false, 730),
            (8, true, true, 760),
        ] {
            let query = CopyQuery { bytes, remap_source, remap_target, allocates: true };
            assert_eq!(binding.can_copy(&query).unwrap().as_ns(), Some(expected_ns), "{query:?}");
        }
        assert_eq!(
            [binding.name(), HostStaged::default().name(), HostMapped::default().name()],
            ["bound", "staged", "mapped"]
        );
    }
}
