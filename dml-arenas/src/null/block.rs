//! Blocks of the test arena, and the books it keeps of them.

use super::arena::Call;
use crate::main_mem::{Memory, shown};
use dml_core::state::MapState;
use dml_core::sync::{Arc, Mutex};
use dml_core::{Backing, Block, HostMemory, HostSpan, NativeHandle};
use std::collections::BTreeMap;

/// The books of one arena.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) name: Arc<str>,
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    calls: Vec<Call>,
    live: BTreeMap<u64, Entry>,
    next: u64,
}

/// What is known of a live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) map: MapState,
    /// How many blocks are bound to it.
    pub(super) bound: u32,
    /// Whether it is itself bound to another.
    is_bound: bool,
}

impl Books {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self { name, ledger: Mutex::new(Ledger::default()) }
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.ledger.lock().calls.clone()
    }

    pub(super) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.ledger.lock().calls)
    }

    pub(super) fn live_blocks(&self) -> usize {
        self.ledger.lock().live.len()
    }

    /// Enters a new block and the call that made it.
    pub(super) fn enter(&self, map: MapState, is_bound: bool, call: impl FnOnce(u64) -> Call) -> u64 {
        let mut ledger = self.ledger.lock();
        let number = ledger.next;
        ledger.next += 1;
        ledger.live.insert(number, Entry { map, bound: 0, is_bound });
        ledger.calls.push(call(number));
        number
    }

    /// Notes a call on a live block and changes its entry.
    ///
    /// # Panics
    /// When the block is not live. Panics of `change` are raised without the lock held.
    pub(super) fn on<R>(
        &self,
        number: u64,
        call: Call,
        change: impl FnOnce(&mut Entry) -> Result<R, String>,
    ) -> R {
        let outcome = {
            let mut ledger = self.ledger.lock();
            ledger.calls.push(call.clone());
            match ledger.live.get_mut(&number) {
                Some(entry) => change(entry),
                None => Err("the block was freed before".to_owned()),
            }
        };
        outcome.unwrap_or_else(|reason| panic!("core bug: {call:?} asked of {}: {reason}", self.name))
    }

    /// Strikes a block off without a call; does nothing where that was done before.
    pub(super) fn strike(&self, number: u64) -> Option<Entry> {
        self.ledger.lock().live.remove(&number)
    }

    /// What stands against binding another block to this one.
    pub(super) fn bindable(&self, number: u64) -> Option<&'static str> {
        match self.ledger.lock().live.get(&number) {
            None => Some("the root was freed before"),
            Some(entry) if entry.is_bound => Some("the root is itself bound"),
            Some(_) => None,
        }
    }

    /// The map state of a block, if it is live.
    pub(super) fn map_state(&self, number: u64) -> Option<MapState> {
        self.ledger.lock().live.get(&number).map(|entry| entry.map)
    }

    /// Adds to the number of blocks bound to a block, if it is live.
    fn count_bound(&self, number: u64, change: i32) {
        if let Some(entry) = self.ledger.lock().live.get_mut(&number) {
            entry.bound = entry.bound.saturating_add_signed(change);
        }
    }
}

/// Where a block's bytes are.
#[derive(Debug)]
pub(super) enum Storage {
    /// Nowhere: the arena is not backed.
    Nowhere,
    /// Memory of its own.
    Own { _memory: Memory },
    /// The application's.
    External(Backing),
    /// Those of the block it is bound to.
    Bound(Backing),
}

/// A block of the test arena.
#[derive(Debug)]
pub(super) struct NullBlock {
    pub(super) number: u64,
    pub(super) len: u64,
    /// The bytes, where there are any.
    pub(super) span: Option<HostSpan>,
    /// Whether the host is the native device and so sees the bytes without a mapping.
    pub(super) is_host: bool,
    pub(super) storage: Storage,
    pub(super) books: Arc<Books>,
}

impl NullBlock {
    /// The block's bytes as memory for core to have, if there are any.
    pub(super) fn memory(self: &Arc<Self>) -> Option<HostMemory> {
        let span = self.span.as_ref()?;
        // SAFETY: the block keeps its bytes, or what it is over (1). The arena touches them for requests of core and kernels
        // under grants alone (2). It hands out those of this block alone (3).
        Some(unsafe { shown(span, self.clone()) })
    }

    /// Tells the block this one is bound to, if it is.
    pub(super) fn count_as_bound(&self, change: i32) {
        if let Storage::Bound(backing) = &self.storage
            && let Some(root) = backing.block().and_then(|root| root.downcast_ref::<Self>())
        {
            root.books.count_bound(root.number, change);
        }
    }
}

impl Block for NullBlock {
    fn len(&self) -> u64 {
        self.len
    }

    fn native(&self) -> NativeHandle {
        let address = self.span.as_ref().filter(|_| self.is_host).map(|span| span.as_ptr().addr());
        NativeHandle(address.unwrap_or(self.number as usize + 1))
    }

    fn backing(&self) -> Option<&Backing> {
        match &self.storage {
            Storage::External(backing) | Storage::Bound(backing) => Some(backing),
            Storage::Nowhere | Storage::Own { .. } => None,
        }
    }
}

impl Drop for NullBlock {
    fn drop(&mut self) {
        // A lock of a model must not be taken while its thread unwinds.
        if !std::thread::panicking() && self.books.strike(self.number).is_some() {
            self.count_as_bound(-1);
        }
    }
}
