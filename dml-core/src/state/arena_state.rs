//! What the machine knows of one arena of one buffer: storage, map state, users.
//!
//! ```text
//!  Unallocated ──alloc──▶ Internal ─┐            Unmapped ◀──unmap── Mapped{devices}     (exclusive)
//!       │  ──attach─────▶ External ─┤── free ─▶
//!       └──── bind ─────▶ Bound{root}            Unmapped ◀────────▶ Bimapped{devices}   (readers together)
//! ```
//! Invariants: I-8 (counts), I-10 (groups), I-19 (map state well-formed).

use crate::arena::{ArenaDesc, Concurrency};
use crate::id::{ArenaId, DeviceId, DeviceSet, GrantId};

/// Where an arena's storage for one buffer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Alloc {
    /// There is none.
    #[default]
    Unallocated,
    /// The arena allocated it.
    Internal,
    /// The application owned it and moved it in.
    External,
    /// It is the storage of another arena.
    Bound {
        /// The arena that allocated it; never itself bound (I-10).
        root: ArenaId,
        /// Who may use the shared storage at the same time through this binding.
        concurrency: Concurrency,
    },
}

impl Alloc {
    /// Whether there is storage.
    #[must_use]
    pub const fn is_allocated(self) -> bool {
        !matches!(self, Self::Unallocated)
    }
}

/// Which devices can touch the storage now.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1 (map state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapState {
    /// The native device alone.
    Unmapped,
    /// These remote devices, not the native one.
    Mapped(DeviceSet),
    /// The native device and these remote ones.
    Bimapped(DeviceSet),
}

impl MapState {
    /// The state of fresh storage: native access alone; or, where native and remote device are the same, that of every
    /// remote device for good.
    #[must_use]
    pub fn initial(desc: &ArenaDesc) -> Self {
        if desc.is_always_bimapped() { Self::Bimapped(desc.remotes) } else { Self::Unmapped }
    }

    /// The remote devices that have access.
    #[must_use]
    pub const fn remotes(self) -> DeviceSet {
        match self {
            Self::Unmapped => DeviceSet::EMPTY,
            Self::Mapped(set) | Self::Bimapped(set) => set,
        }
    }

    /// Whether `device` has access.
    #[must_use]
    pub fn gives(self, desc: &ArenaDesc, device: DeviceId) -> bool {
        (device == desc.native && !matches!(self, Self::Mapped(_))) || self.remotes().contains(device)
    }

    /// Whether `device` has the access that a reader or a writer needs: a writer under
    /// [`Concurrency::BimapRead`] needs the others shut out, so that they must map again to see what it wrote.
    #[must_use]
    pub fn serves(self, desc: &ArenaDesc, concurrency: Concurrency, device: DeviceId, writes: bool) -> bool {
        if desc.is_always_bimapped() {
            return self.gives(desc, device);
        }
        match (self, concurrency) {
            (Self::Bimapped(_), Concurrency::BimapRead) if writes => false,
            (Self::Mapped(set), Concurrency::BimapRead) if writes => set == DeviceSet::of(device),
            _ => self.gives(desc, device),
        }
    }

    /// The state to ask for, so that `device` is served.
    #[must_use]
    pub fn serving(self, desc: &ArenaDesc, concurrency: Concurrency, device: DeviceId, writes: bool) -> Self {
        if desc.is_always_bimapped() {
            return self;
        }
        let shared = match concurrency {
            Concurrency::Exclusive => false,
            Concurrency::BimapRead => !writes,
            Concurrency::BimapFull => true,
        };
        if device == desc.native {
            match self {
                Self::Mapped(set) | Self::Bimapped(set) if shared => Self::Bimapped(set),
                _ => Self::Unmapped,
            }
        } else if shared {
            Self::Bimapped(self.remotes().with(device))
        } else if writes && concurrency == Concurrency::BimapRead {
            Self::Mapped(DeviceSet::of(device))
        } else {
            Self::Mapped(self.remotes().with(device))
        }
    }

    /// Whether the state can be that of an arena (I-19).
    #[must_use]
    pub fn is_well_formed(self, desc: &ArenaDesc) -> bool {
        match self {
            Self::Unmapped => !desc.is_always_bimapped(),
            Self::Mapped(set) => !set.is_empty() && set.is_subset(desc.remotes) && !desc.is_always_bimapped(),
            Self::Bimapped(set) => {
                !set.is_empty()
                    && set.is_subset(desc.remotes)
                    && (desc.concurrency != Concurrency::Exclusive || desc.is_always_bimapped())
            }
        }
    }
}

/// Storage or map state about to change on behalf of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// The grant or prefetch whose plan changes it.
    pub owner: GrantId,
    /// How many steps of the plan still will.
    pub steps: u32,
    /// Whether one of them lets another arena share the storage: until then nobody can say who may use it beside whom.
    pub binds: bool,
}

/// What of an arena is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// Nothing.
    None,
    /// The storage, which belonged to a root whose device is gone. Once its last user has left, the arena can have
    /// storage again.
    Storage,
    /// The native device. Nothing here is ever valid again.
    Device,
}

/// One arena of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaState {
    /// Where the storage comes from.
    pub alloc: Alloc,
    /// Who can touch it.
    pub map: MapState,
    /// Kernels of the native device that hold grants here (the paper's ref-count).
    pub native_refs: u32,
    /// Copies, reserved or running, that use it as an end.
    pub remote_refs: u32,
    /// A plan about to change storage or map state.
    pub transition: Option<Transition>,
    /// Whether the storage, or the device, is gone.
    pub loss: Loss,
}

impl ArenaState {
    /// An arena without storage.
    #[must_use]
    pub fn new(desc: &ArenaDesc) -> Self {
        Self {
            alloc: Alloc::Unallocated,
            map: MapState::initial(desc),
            native_refs: 0,
            remote_refs: 0,
            transition: None,
            loss: Loss::None,
        }
    }

    /// Whether nothing here is valid any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss != Loss::None
    }

    /// How many kernels and copies use it.
    #[must_use]
    pub fn users(&self) -> u64 {
        u64::from(self.native_refs) + u64::from(self.remote_refs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::ArenaKind;

    const GPU: DeviceId = DeviceId(1);
    const CPU: DeviceId = DeviceId(0);

    fn desc(concurrency: Concurrency) -> ArenaDesc {
        ArenaDesc::new("gpu", ArenaKind("test"), GPU)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(concurrency)
    }

    #[test]
    fn exclusive_storage_is_native_or_remote() {
        let desc = desc(Concurrency::Exclusive);
        let mapped = MapState::Unmapped.serving(&desc, desc.concurrency, CPU, false);
        assert_eq!(mapped, MapState::Mapped(DeviceSet::of(CPU)));
        assert!(!mapped.gives(&desc, GPU) && mapped.gives(&desc, CPU));
        assert_eq!(mapped.serving(&desc, desc.concurrency, GPU, true), MapState::Unmapped);
    }

    #[test]
    fn a_writer_shuts_readers_out_where_only_reading_is_shared() {
        let desc = desc(Concurrency::BimapRead);
        let both = MapState::Unmapped.serving(&desc, desc.concurrency, CPU, false);
        assert_eq!(both, MapState::Bimapped(DeviceSet::of(CPU)));
        assert!(both.serves(&desc, desc.concurrency, GPU, false));
        assert!(!both.serves(&desc, desc.concurrency, GPU, true));
        assert_eq!(both.serving(&desc, desc.concurrency, GPU, true), MapState::Unmapped);
        assert_eq!(both.serving(&desc, desc.concurrency, CPU, true), MapState::Mapped(DeviceSet::of(CPU)));
    }

    const TPU: DeviceId = DeviceId(2);

    /// Every state that an arena of these devices can be in.
    fn states(desc: &ArenaDesc) -> impl Iterator<Item = MapState> {
        let sets = [CPU, TPU].map(DeviceSet::of).into_iter().chain([[CPU, TPU].into_iter().collect()]);
        let all = sets.flat_map(|set| [MapState::Mapped(set), MapState::Bimapped(set)]);
        all.chain([MapState::Unmapped])
            .filter(|state| state.is_well_formed(desc))
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn with_access(state: MapState, desc: &ArenaDesc) -> DeviceSet {
        [CPU, GPU, TPU].into_iter().filter(|&device| state.gives(desc, device)).collect()
    }

    /// Told in sets of devices with access, what every state has to be when one of them asks.
    #[test]
    fn i06_a_state_serves_whom_it_is_asked_for_and_shuts_out_no_more_than_that_takes() {
        for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull] {
            let desc = desc(concurrency).with_remotes([CPU, TPU].into_iter().collect());
            assert_eq!(states(&desc).count(), if concurrency == Concurrency::Exclusive { 4 } else { 7 });
            for (state, device) in
                states(&desc).flat_map(|state| [CPU, GPU, TPU].map(|device| (state, device)))
            {
                for writes in [false, true] {
                    let alone = writes && concurrency == Concurrency::BimapRead;
                    let now = with_access(state, &desc);
                    let served = if alone { now == DeviceSet::of(device) } else { now.contains(device) };
                    assert_eq!(
                        state.serves(&desc, concurrency, device, writes),
                        served,
                        "{state:?} {device}"
                    );
                    let next = state.serving(&desc, concurrency, device, writes);
                    let expected = match concurrency {
                        Concurrency::BimapRead if writes => DeviceSet::of(device),
                        Concurrency::Exclusive if device == GPU => DeviceSet::of(GPU),
                        Concurrency::Exclusive => state.remotes().with(device),
                        Concurrency::BimapRead | Concurrency::BimapFull if device == GPU => {
                            state.remotes().with(GPU)
                        }
                        Concurrency::BimapRead | Concurrency::BimapFull => {
                            state.remotes().with(GPU).with(device)
                        }
                    };
                    assert_eq!(
                        with_access(next, &desc),
                        expected,
                        "{state:?} for {device} under {concurrency:?}"
                    );
                    assert!(next.is_well_formed(&desc) && next.serves(&desc, concurrency, device, writes));
                }
            }
        }
    }

    #[test]
    fn i19_main_memory_is_always_bimapped() {
        let desc = ArenaDesc::new("main", ArenaKind("test"), CPU)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(Concurrency::BimapFull);
        let map = MapState::initial(&desc);
        assert_eq!(map, MapState::Bimapped(DeviceSet::of(CPU)));
        assert!(map.is_well_formed(&desc));
        assert!(!MapState::Unmapped.is_well_formed(&desc));
        assert!(map.serves(&desc, Concurrency::Exclusive, CPU, true));
        assert!(map.serves(&desc, Concurrency::BimapRead, CPU, true));
        assert!(!map.serves(&desc, Concurrency::BimapFull, GPU, false));
        assert_eq!(map.serving(&desc, Concurrency::BimapRead, CPU, true), map);
    }
}
