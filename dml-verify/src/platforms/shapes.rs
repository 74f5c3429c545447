//! The platforms that several checks use, one description each. Together they join arenas in every possible
//! way.

use super::{
    CPU, GPU, GPU_ARENA as ONE, GPU2, GPU2_ARENA as TWO, GPU3_ARENA as THREE, GPU4_ARENA as FOUR,
    GPU5_ARENA as FIVE, MAIN_ARENA as MAIN, Rig,
};
use crate::history::Audited;
use dml_core::{Concurrency, Platform};

use Concurrency::{BimapFull, BimapRead, Exclusive};

/// A platform, named by how its arenas are joined. Main memory is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// One gpu, joined by read and write calls.
    Pair,
    /// Two gpus joined to main memory by read and write calls: two hops between the gpus.
    Star,
    /// Four gpus in a row, each joined to the memory before it: four hops from one end to the other.
    Chain,
    /// Three gpus, one of each concurrency, all reached by mapping.
    Mapped,
    /// As [`Shape::Mapped`], and the first gpu can also be read and written.
    MappedAndStaged,
    /// Two gpus reached by mapping. One also has read and write calls, and a direct link to the other.
    EveryWay,
    /// One gpu that may share storage with main memory under a concurrency, and one joined by copies.
    Bound(Concurrency),
    /// A gpu that may be bound to main memory, while main memory may never be bound to the gpu. The way back
    /// is only a change of map state. A second gpu is joined by copies.
    BoundOneWay(Concurrency),
    /// Two gpus that may both share storage with main memory, under different concurrencies.
    TwoBound,
    /// Three gpus that may share storage with main memory, each under its own concurrency. One can also be
    /// mapped.
    ThreeBound,
    /// A device that reaches main memory itself and copies to and from its own: the host takes no part.
    Direct,
    /// Two devices that reach each other's memory, where one of them makes the copies between the two.
    Peers(Concurrency),
    /// As [`Shape::Peers`], and the two may also share storage.
    BoundPeers(Concurrency),
    /// Two arenas of one device, one of which may share storage with main memory.
    TwoHomes(Concurrency),
    /// Five arenas. Two may share storage with main memory, one is mapped, and one is joined to the mapped
    /// one.
    Five,
    /// A second memory of the host, whose storage main memory and two gpus share wherever they can: one
    /// coherently, the other exclusively. All are also joined by copies.
    SharedByAll,
    /// Six arenas joined in every way but those past the host.
    Wide,
}

impl Shape {
    /// The shapes on which sequences of operations run against the reference model.
    pub const OF_SEQUENCES: [Self; 9] = [
        Self::Pair,
        Self::Star,
        Self::Mapped,
        Self::EveryWay,
        Self::Bound(Exclusive),
        Self::Bound(BimapRead),
        Self::Bound(BimapFull),
        Self::TwoBound,
        Self::Wide,
    ];

    /// The shapes on which a fuzzer drives the pure machine.
    pub const OF_THE_MACHINE: [Self; 11] = [
        Self::Star,
        Self::MappedAndStaged,
        Self::Bound(Exclusive),
        Self::Bound(BimapRead),
        Self::Bound(BimapFull),
        Self::ThreeBound,
        Self::Direct,
        Self::Peers(BimapRead),
        Self::BoundPeers(Exclusive),
        Self::BoundOneWay(BimapRead),
        Self::TwoHomes(Exclusive),
    ];

    /// Returns the description of the platform.
    pub fn rig(self) -> Rig {
        let rig = self.gpus().iter().fold(Rig::new(), |rig, concurrency| rig.gpu(*concurrency));
        match self {
            Self::Pair => rig.staged(MAIN, ONE),
            Self::Star => rig.staged(MAIN, ONE).staged(MAIN, TWO),
            Self::Chain => rig.staged(MAIN, ONE).staged(ONE, TWO).staged(TWO, THREE).staged(THREE, FOUR),
            Self::Mapped => rig.mapped(ONE).mapped(TWO).mapped(THREE),
            Self::MappedAndStaged => rig.mapped(ONE).mapped(TWO).staged(MAIN, ONE).mapped(THREE),
            Self::EveryWay => rig.mapped(ONE).mapped(TWO).staged(MAIN, ONE).one_way(ONE, TWO),
            Self::Bound(concurrency) => rig.bound(MAIN, ONE, concurrency).staged(MAIN, ONE).staged(MAIN, TWO),
            Self::BoundOneWay(concurrency) => rig.staged(MAIN, TWO).bound_one_way(MAIN, ONE, concurrency),
            Self::TwoBound => {
                let rig = rig.bound(MAIN, ONE, BimapRead).staged(MAIN, ONE);
                rig.bound(MAIN, TWO, Exclusive).staged(MAIN, TWO)
            }
            Self::ThreeBound => {
                let rig = rig.bound(MAIN, ONE, BimapRead).staged(MAIN, ONE);
                rig.bound(MAIN, TWO, Exclusive).mapped(TWO).bound(MAIN, THREE, BimapFull)
            }
            Self::Direct => rig.reached(MAIN, GPU).staged_through([(MAIN, GPU), (ONE, GPU)]),
            Self::Peers(_) => {
                let rig = rig.reached(ONE, GPU2).reached(TWO, GPU);
                let rig = rig.staged_through([(ONE, GPU2), (TWO, GPU2)]);
                rig.staged_through([(MAIN, CPU), (ONE, CPU)]).staged(MAIN, TWO)
            }
            Self::BoundPeers(concurrency) => Self::Peers(concurrency).rig().bound(ONE, TWO, concurrency),
            Self::TwoHomes(concurrency) => {
                let rig = rig.memory(GPU, BimapFull).bound(MAIN, ONE, concurrency);
                rig.staged(MAIN, TWO).staged(ONE, TWO)
            }
            Self::Five => {
                let rig = rig.bound(MAIN, ONE, Exclusive).mapped(TWO).staged(TWO, THREE);
                rig.bound(MAIN, FOUR, BimapFull)
            }
            Self::SharedByAll => {
                let rig = rig.memory(CPU, BimapFull).staged(MAIN, ONE).staged(MAIN, TWO).staged(MAIN, THREE);
                let rig = rig.staged(ONE, TWO).staged(ONE, THREE).staged(TWO, THREE);
                let members = [(MAIN, BimapFull), (ONE, BimapFull), (TWO, Exclusive)];
                members.into_iter().fold(rig, |rig, (member, concurrency)| {
                    rig.bound_one_way(THREE, member, concurrency).preferring(THREE, member)
                })
            }
            Self::Wide => {
                let rig = rig.staged(MAIN, ONE).mapped(TWO).bound(MAIN, THREE, BimapFull);
                let rig = rig.staged(MAIN, THREE).bound(MAIN, FOUR, Exclusive).staged(ONE, FOUR);
                rig.one_way(TWO, FIVE).one_way(FIVE, MAIN)
            }
        }
    }

    /// Returns the concurrency of each gpu's memory.
    fn gpus(self) -> Vec<Concurrency> {
        match self {
            Self::Pair | Self::Direct => vec![Exclusive],
            Self::Star => vec![Exclusive, Exclusive],
            Self::Chain => vec![Exclusive; 4],
            Self::Mapped | Self::MappedAndStaged => vec![Exclusive, BimapRead, BimapFull],
            Self::EveryWay => vec![Exclusive, BimapRead],
            Self::Bound(concurrency) | Self::BoundOneWay(concurrency) => vec![concurrency, Exclusive],
            Self::TwoBound => vec![BimapRead, Exclusive],
            Self::ThreeBound => vec![BimapRead, Exclusive, BimapFull],
            Self::Peers(concurrency) | Self::BoundPeers(concurrency) => vec![concurrency; 2],
            Self::TwoHomes(concurrency) => vec![concurrency],
            Self::Five => vec![Exclusive, BimapRead, Exclusive, BimapFull],
            Self::SharedByAll => vec![BimapFull, Exclusive],
            Self::Wide => vec![Exclusive, BimapRead, BimapFull, Exclusive, BimapFull],
        }
    }

    /// Builds a platform of this shape, under the history checker.
    #[must_use]
    pub fn build(self) -> Audited {
        self.rig().build()
    }

    /// Builds a platform of this shape without recording.
    #[must_use]
    pub fn plain(self) -> Platform {
        self.rig().plain()
    }
}

/// Builds a [`Shape::Pair`].
#[must_use]
pub fn pair() -> Audited {
    Shape::Pair.build()
}

/// Builds a [`Shape::Star`].
#[must_use]
pub fn star() -> Audited {
    Shape::Star.build()
}

/// Builds main memory and one gpu whose data the host reaches only by mapping.
#[must_use]
pub fn mapped_pair(concurrency: Concurrency) -> Audited {
    Rig::new().gpu(concurrency).mapped(ONE).build()
}

/// Builds main memory and one gpu that can share storage and have no other link.
#[must_use]
pub fn bound_pair(concurrency: Concurrency) -> Audited {
    Rig::new().gpu(concurrency).bound(MAIN, ONE, concurrency).build()
}
