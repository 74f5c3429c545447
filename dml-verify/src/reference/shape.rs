//! The platforms on which sequences run: every way to join arenas, alone and together.

use crate::history::Audited;
use crate::rig::{GPU_ARENA, GPU2_ARENA, GPU3_ARENA, MAIN_ARENA, Rig};
use dml_arenas::Script;
use dml_core::{ArenaId, Concurrency, LinkId};

/// The arena or link whose calls follow a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Every call of one arena.
    Arena(ArenaId),
    /// Every copy over one link.
    Link(LinkId),
}

/// A platform, named by how its arenas are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// Main memory and one gpu, joined by read and write calls.
    Pair,
    /// Main memory and two gpus joined to it by read and write calls: two hops between the gpus.
    Star,
    /// Main memory and three gpus, one of each concurrency, all reached by mapping.
    Mapped,
    /// Two gpus reached by mapping. One also has read and write calls, and a direct link to the other.
    EveryWay,
    /// One gpu that may share main memory's storage under a concurrency, and one joined by copies.
    Bound(Concurrency),
    /// Two gpus that may both share main memory's storage, under different concurrencies.
    TwoBound,
    /// Six arenas joined in every way that exists.
    Wide,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 9] = [
        Self::Pair,
        Self::Star,
        Self::Mapped,
        Self::EveryWay,
        Self::Bound(Concurrency::Exclusive),
        Self::Bound(Concurrency::BimapRead),
        Self::Bound(Concurrency::BimapFull),
        Self::TwoBound,
        Self::Wide,
    ];

    /// A platform of this shape, under the history checker.
    #[must_use]
    pub fn build(self) -> Audited {
        self.scripted(None)
    }

    /// Builds the platform as [`Shape::build`] does, with a script for the calls of one place.
    #[must_use]
    pub fn scripted(self, script: Option<(Place, Script)>) -> Audited {
        use Concurrency::{BimapFull, BimapRead, Exclusive};
        let (main, rig) = match &script {
            Some((Place::Arena(MAIN_ARENA), script)) => (script.clone(), None),
            Some((Place::Link(link), script)) => (Script::new(), Some((*link, script.clone()))),
            _ => (Script::new(), None),
        };
        let mut base = Rig::with_main(main);
        if let Some((link, script)) = rig {
            base = base.with_link_script(link, script);
        }
        let of = |arena: ArenaId| match &script {
            Some((Place::Arena(place), script)) if *place == arena => script.clone(),
            _ => Script::new(),
        };
        let gpus = |rig: Rig, all: &[Concurrency]| {
            let numbered = all.iter().zip(1..).map(|(concurrency, index)| (*concurrency, ArenaId(index)));
            numbered.fold(rig, |rig, (concurrency, arena)| rig.gpu_with(concurrency, of(arena)))
        };
        let rig = match self {
            Self::Pair => gpus(base, &[Exclusive]).staged(MAIN_ARENA, GPU_ARENA),
            Self::Star => gpus(base, &[Exclusive, Exclusive])
                .staged(MAIN_ARENA, GPU_ARENA)
                .staged(MAIN_ARENA, GPU2_ARENA),
            Self::Mapped => gpus(base, &[Exclusive, BimapRead, BimapFull])
                .mapped(GPU_ARENA)
                .mapped(GPU2_ARENA)
                .mapped(GPU3_ARENA),
            Self::EveryWay => gpus(base, &[Exclusive, BimapRead])
                .mapped(GPU_ARENA)
                .mapped(GPU2_ARENA)
                .staged(MAIN_ARENA, GPU_ARENA)
                .one_way(GPU_ARENA, GPU2_ARENA),
            Self::Bound(concurrency) => gpus(base, &[concurrency, Exclusive])
                .bound(MAIN_ARENA, GPU_ARENA, concurrency)
                .staged(MAIN_ARENA, GPU_ARENA)
                .staged(MAIN_ARENA, GPU2_ARENA),
            Self::TwoBound => gpus(base, &[BimapRead, Exclusive])
                .bound(MAIN_ARENA, GPU_ARENA, BimapRead)
                .staged(MAIN_ARENA, GPU_ARENA)
                .bound(MAIN_ARENA, GPU2_ARENA, Exclusive)
                .staged(MAIN_ARENA, GPU2_ARENA),
            Self::Wide => {
                let (fourth, fifth) = (ArenaId(4), ArenaId(5));
                gpus(base, &[Exclusive, BimapRead, BimapFull, Exclusive, BimapFull])
                    .staged(MAIN_ARENA, GPU_ARENA)
                    .mapped(GPU2_ARENA)
                    .bound(MAIN_ARENA, GPU3_ARENA, BimapFull)
                    .staged(MAIN_ARENA, GPU3_ARENA)
                    .bound(MAIN_ARENA, fourth, Exclusive)
                    .staged(GPU_ARENA, fourth)
                    .one_way(GPU2_ARENA, fifth)
                    .one_way(fifth, MAIN_ARENA)
            }
        };
        rig.build()
    }
}
