//! The live buffers of a platform, for changes that concern all of them.

use crate::base::id::{BufferId, DeviceId};
use crate::base::names::BufferName;
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::Arc;
use crate::platform::outstanding::Outstanding;
use std::collections::BTreeMap;
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

    /// Returns the grants that have not ended.
    fn outstanding(&self) -> Vec<Outstanding>;
}

/// The live buffers of a platform.
#[derive(Debug)]
pub(crate) struct Registry(Ranked<BTreeMap<BufferId, Weak<dyn Resident>>>);

impl Default for Registry {
    fn default() -> Self {
        Self(Ranked::new(Rank::Registry, BTreeMap::new()))
    }
}

impl Registry {
    pub(crate) fn live(&self) -> Vec<Arc<dyn Resident>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add(&self, id: BufferId, buffer: Weak<dyn Resident>) {
        self.0.lock().insert(id, buffer);
    }

    pub(crate) fn forget(&self, id: BufferId) {
        self.0.lock().remove(&id);
    }
}
