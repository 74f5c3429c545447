//! The platforms on which DML is checked.
//!
//! ```text
//!   Shape ──▶ Rig: devices, arenas, links, scripts ──▶ build(): arenas that record, police, fail and stop on cue
//!   drawn ──▶                                      └──▶ assemble(): the caller's own arenas and mechanisms
//! ```
//! A [`Rig`] describes one platform. A [`Shape`] names a description that several checks use; `drawn` draws
//! descriptions at random. No other module of this crate joins arenas.

pub mod drawn;
mod rig;
mod shapes;
mod test_arena;

pub use rig::{End, Layers, Place, Rig};
pub use shapes::{Shape, bound_pair, mapped_pair, pair, star};
pub(crate) use test_arena::find_null;
pub use test_arena::{Gate, Scripts, TestArena, Watch, live_blocks, null, test_arena};

use dml_core::{ArenaId, Concurrency, DeviceId};

/// The host's device.
pub const CPU: DeviceId = DeviceId(0);
/// The first device after the host.
pub const GPU: DeviceId = DeviceId(1);
/// The second device after the host.
pub const GPU2: DeviceId = DeviceId(2);
/// The third device after the host.
pub const GPU3: DeviceId = DeviceId(3);
/// Main memory.
pub const MAIN_ARENA: ArenaId = ArenaId(0);
/// The memory of [`GPU`].
pub const GPU_ARENA: ArenaId = ArenaId(1);
/// The memory of [`GPU2`].
pub const GPU2_ARENA: ArenaId = ArenaId(2);
/// The memory of [`GPU3`].
pub const GPU3_ARENA: ArenaId = ArenaId(3);
/// The memory of the fourth device after the host.
pub const GPU4_ARENA: ArenaId = ArenaId(4);
/// The memory of the fifth device after the host.
pub const GPU5_ARENA: ArenaId = ArenaId(5);

/// Every concurrency, the narrowest first.
pub const CONCURRENCIES: [Concurrency; 3] =
    [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull];
