//! The arena under test, and the facts about it that the checks need.

use super::desk::Sheet;
use crate::watched;
use dml_arenas::MainMem;
use dml_arenas::kit::{join_mapped, join_staged};
use dml_core::{
    Arena, ArenaDesc, ArenaId, Concurrency, DeviceDesc, DeviceId, DeviceKind, LinkSpeed, OwnBlock, Platform,
    PlatformBuilder,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whether an arena supports an optional operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// The operation works.
    Offered,
    /// The arena declines.
    Declined,
}

/// An arena to check, in a platform of its own.
#[derive(Clone, Debug)]
pub struct Subject {
    platform: Platform,
    id: ArenaId,
    external: Support,
    binding: Support,
    root: Option<ArenaId>,
    capacity_bytes: Option<u64>,
    exceeds_capacity: bool,
    max_alloc_bytes: Option<u64>,
    patience: Duration,
    loss: Option<Lose>,
}

/// Takes the device of a subject away.
#[derive(Clone)]
struct Lose(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Lose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lose")
    }
}

impl Subject {
    /// Makes a subject of the arena `id` of a platform that has a host.
    ///
    /// # Panics
    /// When the platform has no such arena, or no device of kind [`DeviceKind::Cpu`].
    #[must_use]
    pub fn new(platform: Platform, id: ArenaId) -> Self {
        assert!(usize::from(id.0) < platform.arenas().len(), "{platform:?} has no arena {id}");
        assert!(platform.host().is_some(), "{platform:?} has no host");
        Self {
            platform,
            id,
            external: Support::Declined,
            binding: Support::Declined,
            root: None,
            capacity_bytes: None,
            exceeds_capacity: false,
            max_alloc_bytes: None,
            patience: Duration::from_secs(20),
            loss: None,
        }
    }

    /// Makes a subject of an arena that is the host's own memory, alone in its platform. `make` gets the
    /// host's id.
    ///
    /// # Panics
    /// When the arena does not fit the platform.
    #[must_use]
    pub fn main(make: impl FnOnce(DeviceId) -> Arc<dyn Arena>) -> Self {
        let mut builder = Platform::builder();
        let host = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let id = builder.add_arena(make(host));
        Self::new(built(builder), id)
    }

    /// Makes a subject of another device's arena beside main memory. It is joined as discovery joins a
    /// device: by read and write calls, and by mapping where the host is among its remotes. `make` gets the
    /// ids of its device and of the host.
    ///
    /// # Panics
    /// When the arena does not fit the platform.
    #[must_use]
    pub fn beside_main(make: impl FnOnce(DeviceId, DeviceId) -> Arc<dyn Arena>) -> Self {
        let mut builder = Platform::builder();
        let host = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let native = builder.add_device(DeviceDesc::new("device", DeviceKind::Gpu));
        let main = builder.add_arena(Arc::new(MainMem::new(host)));
        let arena = make(native, host);
        let is_mapped = arena.desc().remotes.contains(host);
        let id = builder.add_arena(arena);
        // Mapping is cheaper up to some hundred kilobytes, so that the checks use both mechanisms.
        let staged = LinkSpeed { latency_ns: 20_000, bytes_per_s: 8_000_000_000, remap_ns: 0 };
        let mapped = LinkSpeed { latency_ns: 5_000, bytes_per_s: 4_000_000_000, remap_ns: 1_000 };
        join_staged(&mut builder, main, id, staged);
        if is_mapped {
            join_mapped(&mut builder, main, id, mapped);
        }
        Self::new(built(builder), id)
    }

    /// Sets whether the arena accepts storage of the application; by default it does not.
    #[must_use]
    pub fn with_external(mut self, external: Support) -> Self {
        self.external = external;
        self
    }

    /// Sets whether the arena makes blocks over main memory's storage; by default it does not.
    #[must_use]
    pub fn with_binding(mut self, binding: Support) -> Self {
        self.binding = binding;
        self
    }

    /// Sets the arena over whose storage the arena makes blocks, beside all others that use it. By default it
    /// is main memory, and one side at a time.
    ///
    /// # Panics
    /// When the platform has no such arena.
    #[must_use]
    pub fn with_root(mut self, root: ArenaId) -> Self {
        assert!(
            usize::from(root.0) < self.platform.arenas().len(),
            "{:?} has no arena {root}",
            self.platform
        );
        (self.binding, self.root) = (Support::Offered, Some(root));
        self
    }

    /// Sets the largest size of all blocks together, in bytes.
    #[must_use]
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = Some(bytes);
        self
    }

    /// Allows one block to be larger than the capacity: the arena takes it from another memory.
    #[must_use]
    pub fn with_larger_blocks(mut self) -> Self {
        self.exceeds_capacity = true;
        self
    }

    /// Returns the largest block, as far as the capacity bounds it.
    pub(super) fn largest_bytes(&self) -> Option<u64> {
        self.capacity_bytes.filter(|_| !self.exceeds_capacity)
    }

    /// Sets the largest size of one block, in bytes.
    #[must_use]
    pub fn with_max_alloc(mut self, bytes: u64) -> Self {
        self.max_alloc_bytes = Some(bytes);
        self
    }

    /// Sets how long a check waits for an event before its absence is a failure; 20 s by default. A shorter
    /// time suits arenas known to lack the event.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets a way to take the arena's device away for good. By default the device stays.
    #[must_use]
    pub fn with_loss(mut self, lose: impl Fn() + Send + Sync + 'static) -> Self {
        self.loss = Some(Lose(Arc::new(lose)));
        self
    }

    pub(super) fn loss(&self) -> Option<&(dyn Fn() + Send + Sync)> {
        self.loss.as_ref().map(|lose| &*lose.0)
    }

    pub(super) fn platform(&self) -> &Platform {
        &self.platform
    }

    pub(super) fn id(&self) -> ArenaId {
        self.id
    }

    pub(super) fn arena(&self) -> &Arc<dyn Arena> {
        self.platform.arena(self.id)
    }

    pub(super) fn desc(&self) -> &ArenaDesc {
        self.platform.desc(self.id)
    }

    pub(super) fn host(&self) -> DeviceId {
        self.platform.host().expect("checked when the subject was made")
    }

    pub(super) fn external(&self) -> Support {
        self.external
    }

    pub(super) fn binding(&self) -> Support {
        self.binding
    }

    /// Returns the arena whose storage is shared, and who may use it at once.
    pub(super) fn root(&self) -> (ArenaId, Concurrency) {
        let main = self.platform.home(self.host()).expect("the host has a memory");
        let beside = |root| self.platform.desc(root).concurrency.min(self.desc().concurrency);
        self.root.map_or((main, Concurrency::Exclusive), |root| (root, beside(root)))
    }

    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    pub(super) fn max_alloc_bytes(&self) -> Option<u64> {
        self.max_alloc_bytes
    }

    /// Returns whether two blocks of this size can exist at once.
    pub(super) fn fits_twice(&self, bytes: u64) -> bool {
        self.capacity_bytes.is_none_or(|capacity| bytes <= capacity / 4)
            && self.max_alloc_bytes.is_none_or(|limit| bytes <= limit)
    }

    /// Allocates a block.
    ///
    /// # Panics
    /// When the allocation fails.
    #[track_caller]
    pub(super) fn alloc(&self, len: u64) -> OwnBlock {
        OwnBlock::alloc(self.arena(), len)
            .unwrap_or_else(|error| panic!("{len} bytes cannot be had: {error}"))
    }

    /// Copies `bytes` into a block at `offset` and waits.
    #[track_caller]
    pub(super) fn put(&self, block: &OwnBlock, offset: usize, bytes: &[u8]) {
        let sheet = Sheet::of(bytes);
        let fence = sheet.copy_into(block, offset as u64).expect("a copy starts");
        assert_eq!(fence.wait(), Ok(bytes.len() as u64), "bytes copied in at {offset}");
        assert!(sheet.bytes() == bytes, "a copy in changed its source");
    }

    /// Returns the bytes `start..end` of a block.
    #[track_caller]
    pub(super) fn take(&self, block: &OwnBlock, start: usize, end: usize) -> Vec<u8> {
        let sheet = Sheet::scrap(end - start);
        let fence = sheet.copy_out_of(block, start as u64).expect("a copy starts");
        assert_eq!(fence.wait(), Ok((end - start) as u64), "bytes copied out at {start}");
        sheet.bytes()
    }

    /// Runs `act` on a thread of its own, and fails if it hangs.
    pub(super) fn or_hangs<R: Send + 'static>(
        &self,
        what: &str,
        act: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> R {
        let subject = self.clone();
        watched(what, move || act(&subject)).join_within(self.patience)
    }
}

fn built(builder: PlatformBuilder) -> Platform {
    builder.build().unwrap_or_else(|error| panic!("the arena does not fit its platform: {error}"))
}
