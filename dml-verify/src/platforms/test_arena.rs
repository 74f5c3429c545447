//! The arenas of a test platform.
//!
//! Every arena of a [`Rig`](super::Rig) has four layers. A backed `Null` moves real bytes and panics when
//! core breaks the contract. A `Faulty` around it follows a script of failures. A `Mortal` simulates the
//! death of the device. A [`Watch`] lets a test stop a call half way.

use super::rig::{Layers, Place};
use crate::mortal::{Mortal, mortal};
use dml_arenas::Null;
use dml_arenas::faulty::{Around, CallKind, Wrapped};
use dml_arenas::{Faulty, FaultyCross, Script};
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{Arena, ArenaDesc, ArenaId, CrossArena, LinkId, Platform};
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};

type Hook = Arc<dyn Fn(CallKind) + Send + Sync>;

/// The type of every arena in a test platform. Its outermost hooks are those of a [`Watch`].
pub type TestArena = Wrapped<Mortal<Faulty<Null>>, Watch>;

/// A hook that a test may set on an arena.
#[derive(Default)]
pub struct Watch(Mutex<Option<Hook>>);

impl Around for Watch {
    fn called(&self, kind: CallKind) {
        let hook = self.0.lock().clone();
        if let Some(hook) = hook {
            hook(kind);
        }
    }
}

impl Watch {
    /// Calls `hook` before each later call of core.
    pub fn hook(&self, hook: impl Fn(CallKind) + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(hook));
    }

    /// Stops the next call of a kind until the gate is opened.
    pub fn gate(&self, kind: CallKind) -> Gate {
        let (arrive, arrived) = channel();
        let (open, opened) = channel::<()>();
        let once = Mutex::new(Some((arrive, opened)));
        self.hook(move |call| {
            if call == kind {
                let taken = once.lock().take();
                if let Some((arrive, opened)) = taken {
                    let _ = arrive.send(());
                    let _ = opened.recv();
                }
            }
        });
        Gate { arrived, open }
    }
}

/// The control of a call that is stopped half way.
#[derive(Debug)]
pub struct Gate {
    arrived: Receiver<()>,
    open: Sender<()>,
}

impl Gate {
    /// Waits until the call has come.
    pub fn arrived(&self) {
        self.arrived.recv().expect("the call comes");
    }

    /// Lets the call continue.
    pub fn open(self) {
        let _ = self.open.send(());
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// The scripts of a platform. The calls of a place without a script never fail.
#[derive(Clone, Debug, Default)]
pub struct Scripts(pub(super) Vec<(Place, Script)>);

impl Scripts {
    fn of(&self, place: Place) -> Option<Script> {
        self.0.iter().find(|(at, _)| *at == place).map(|(_, script)| script.clone())
    }
}

impl Layers for Scripts {
    fn arena(&self, id: ArenaId, desc: ArenaDesc) -> Arc<dyn Arena> {
        let script = self.of(Place::Arena(id)).unwrap_or_default();
        let inner = mortal(Faulty::new(Null::backed(desc), script));
        Arc::new(TestArena::around(inner, Watch::default()))
    }

    fn mechanism<C: CrossArena + 'static>(&self, id: LinkId, inner: C) -> Arc<dyn CrossArena> {
        match self.of(Place::Link(id)) {
            Some(script) => Arc::new(FaultyCross::new(inner, script)),
            None => Arc::new(inner),
        }
    }
}

/// Returns one arena of a rig.
///
/// # Panics
/// When the platform was not built by a rig.
pub fn test_arena(platform: &Platform, id: ArenaId) -> &TestArena {
    platform.arena(id).downcast_ref::<TestArena>().expect("every arena is a test arena")
}

/// Returns the innermost arena, which records the calls and checks the contract.
pub fn null(platform: &Platform, id: ArenaId) -> &Null {
    test_arena(platform, id).inner().inner().inner()
}

/// Returns the innermost arena as [`null`] does, or `None` when the platform was not built by a rig.
pub(crate) fn find_null(platform: &Platform, id: ArenaId) -> Option<&Null> {
    platform.arena(id).downcast_ref::<TestArena>().map(|arena| arena.inner().inner().inner())
}

/// Returns the number of live blocks in all arenas that a rig has built.
pub fn live_blocks(platform: &Platform) -> usize {
    let ids = (0..platform.arenas().len()).map(|id| ArenaId(id as u8));
    ids.filter_map(|id| find_null(platform, id)).map(Null::live_blocks).sum()
}
