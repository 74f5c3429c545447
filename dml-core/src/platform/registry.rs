//! The live buffers of a platform, for changes that concern all of them.

use crate::base::id::{BufferId, DeviceId, OwnerId};
use crate::base::names::BufferName;
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::Arc;
use crate::platform::outstanding::Outstanding;
use std::fmt;
use std::sync::Weak;

/// A buffer, as its platform sees it.
pub(crate) trait Resident: fmt::Debug + Send + Sync {
    /// Returns the buffer's id.
    fn id(&self) -> BufferId;

    /// Returns the buffer's name, for display.
    fn name(&self) -> BufferName;

    /// Declares a device lost. Has no effect if the buffer already knows of the loss.
    fn device_lost(&self, device: DeviceId);

    /// Ends a grant as failed, and all kernels on streams, because their streams are lost.
    fn lose(&self, grant: OwnerId);

    /// Returns the grants that have not ended.
    fn outstanding(&self) -> Vec<Outstanding>;
}

/// The live buffers of a platform.
#[derive(Debug)]
pub(crate) struct Registry(Ranked<Slots>);

/// The place of a buffer in the registry.
pub(crate) type Slot = u32;

#[derive(Debug, Default)]
struct Slots {
    buffers: Vec<Option<Weak<dyn Resident>>>,
    free: Vec<Slot>,
}

impl Default for Registry {
    fn default() -> Self {
        Self(Ranked::new(Rank::Registry, Slots::default()))
    }
}

impl Registry {
    /// Returns the buffers in the order of their ids.
    pub(crate) fn live(&self) -> Vec<Arc<dyn Resident>> {
        let mut live: Vec<_> = self.0.lock().buffers.iter().flatten().filter_map(Weak::upgrade).collect();
        live.sort_by_key(|buffer| buffer.id());
        live
    }

    pub(crate) fn add(&self, buffer: Weak<dyn Resident>) -> Slot {
        let mut slots = self.0.lock();
        if let Some(slot) = slots.free.pop() {
            slots.buffers[slot as usize] = Some(buffer);
            return slot;
        }
        slots.buffers.push(Some(buffer));
        Slot::try_from(slots.buffers.len() - 1).expect("each buffer has more than one byte")
    }

    pub(crate) fn forget(&self, slot: Slot) {
        let mut slots = self.0.lock();
        let buffer = slots.buffers[slot as usize].take();
        slots.free.push(slot);
        drop((slots, buffer));
    }
}
