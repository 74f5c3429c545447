//! Adds the shared memory to a platform, if the options name devices that share.

use super::arena::{NAME, SharedArena};
use super::cross;
use super::memory::SharedMemory;
use crate::join::End;
use crate::main_mem::discover::{CPU, default_memory};
use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::PlatformBuilder;
use dml_core::sync::Arc;

/// The shared memory of a platform that is being built.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) end: End,
    pub(crate) memory: Arc<SharedMemory>,
}

impl Shared {
    /// Lets a member use the storage beside all others.
    pub(crate) fn bind(&self, builder: &mut PlatformBuilder, member: End) {
        cross::bind(builder, self.end, member);
    }
}

/// Adds the arena `shared`, native to the processor, and binds main memory to it where the options say so.
///
/// # Errors
/// [`DiscoverError::Unusable`] where the memory cannot be made.
pub(crate) fn discover(
    builder: &mut PlatformBuilder,
    host: End,
    options: &DiscoverOptions,
) -> Result<Option<Shared>, DiscoverError> {
    if !options.shares_any() {
        return Ok(None);
    }
    let bytes = options.shared_memory.unwrap_or_else(default_memory);
    let memory = SharedMemory::new(NAME, bytes).map_err(|error| DiscoverError::Unusable {
        device: NAME.to_owned(),
        reason: format!("no memory of {bytes} bytes: {error}"),
    })?;
    let arena = builder.add_arena(Arc::new(SharedArena::new(memory.clone(), host.native)));
    let shared = Shared { end: End { arena, native: host.native }, memory };
    cross::join(builder, host, shared.end);
    if options.shares(CPU) {
        shared.bind(builder, host);
    }
    Ok(Some(shared))
}
