//! Which devices have access to an arena's storage.

use crate::base::id::{DeviceId, DeviceSet};
use crate::memory::desc::{ArenaDesc, Concurrency};

/// The set of devices that have access to the storage now.
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.1 (map state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapState {
    /// Only the native device has access.
    Unmapped,
    /// Only these remote devices have access, not the native one.
    Mapped(DeviceSet),
    /// The native device and these remote devices have access.
    Bimapped(DeviceSet),
}

impl MapState {
    /// Returns the state of fresh storage, in which only the native device has access. Where native and
    /// remote device are the same, every remote device has access permanently.
    #[must_use]
    pub fn initial(desc: &ArenaDesc) -> Self {
        if desc.is_always_bimapped() { Self::Bimapped(desc.remotes) } else { Self::Unmapped }
    }

    /// Returns the remote devices that have access.
    #[must_use]
    pub const fn remotes(self) -> DeviceSet {
        match self {
            Self::Unmapped => DeviceSet::EMPTY,
            Self::Mapped(set) | Self::Bimapped(set) => set,
        }
    }

    /// Returns whether `device` has access.
    #[must_use]
    pub fn gives(self, desc: &ArenaDesc, device: DeviceId) -> bool {
        (device == desc.native && !matches!(self, Self::Mapped(_))) || self.remotes().contains(device)
    }

    /// Returns whether `device` has the access that a reader or a writer needs. Under
    /// [`Concurrency::BimapRead`] a writer needs exclusive access: the other devices must map again to see
    /// what it wrote.
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

    /// Returns the state to request so that `device` is served.
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

    /// Returns whether an arena of this description can have the state (I-19).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::desc::ArenaKind;

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

    /// Compares every change of state with a model of map states as sets of devices with access.
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
