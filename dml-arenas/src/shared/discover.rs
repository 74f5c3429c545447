//! Adds the shared memory to a platform, if the options name devices that share it.

use super::arena::NAME;
use super::cross;
use super::memory::SharedMemory;
use crate::HostArena;
use crate::main_mem::discover::{CPU, default_memory};
use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::internal::sync::Arc;
use dml_core::{ArenaId, PlatformBuilder};

/// The shared memory of a platform under construction.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) arena: ArenaId,
    pub(crate) memory: Arc<SharedMemory>,
}

impl Shared {
    /// Returns the shared memory of a builder, if it has one.
    pub(crate) fn of(builder: &PlatformBuilder) -> Option<Self> {
        let arenas = builder.arenas().iter().enumerate();
        let mut found = arenas.filter_map(|(index, arena)| {
            let memory = arena.downcast_ref::<HostArena>()?.shared_memory()?.clone();
            Some(Self { arena: ArenaId(index as u8), memory })
        });
        found.next()
    }

    /// Binds a member to the storage, for concurrent use with the other members.
    pub(crate) fn bind(&self, builder: &mut PlatformBuilder, member: ArenaId) {
        cross::bind(builder, self.arena, member);
    }
}

/// Adds the arena `shared`, native to the processor. Binds main memory to it if the processor shares it.
///
/// # Errors
/// [`DiscoverError::Unusable`] if the memory cannot be created.
pub(crate) fn discover(
    builder: &mut PlatformBuilder,
    main: ArenaId,
    options: &DiscoverOptions,
) -> Result<(), DiscoverError> {
    let Some(bytes) = options.sharing.shared_memory() else { return Ok(()) };
    let bytes = bytes.unwrap_or_else(default_memory);
    let memory = SharedMemory::new(NAME, bytes).map_err(|error| DiscoverError::Unusable {
        device: NAME.to_owned(),
        reason: format!("no memory of {bytes} bytes: {error}"),
    })?;
    let native = builder.native(main);
    let arena = builder.add_arena(Arc::new(HostArena::shared(memory.clone(), native)));
    let shared = Shared { arena, memory };
    cross::join(builder, main, arena);
    if options.sharing.shares(CPU) {
        shared.bind(builder, main);
    }
    Ok(())
}
