//! Blocks of the test arena, and its records of them.

use super::arena::Call;
use crate::main_mem::{Memory, shown};
use dml_core::state::MapState;
use dml_core::sync::{Arc, Mutex};
use dml_core::{Backing, Block, HostMemory, HostSpan, NativeHandle};
use std::collections::BTreeMap;

/// The records of one arena: its calls and its live blocks.
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

/// The record of a live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) map: MapState,
    /// The number of blocks bound to this one.
    pub(super) bound: u32,
    /// Whether this block is bound to another.
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

    /// Records a new block, and the call that made it.
    pub(super) fn enter(&self, map: MapState, is_bound: bool, call: impl FnOnce(u64) -> Call) -> u64 {
        let mut ledger = self.ledger.lock();
        let number = ledger.next;
        ledger.next += 1;
        ledger.live.insert(number, Entry { map, bound: 0, is_bound });
        ledger.calls.push(call(number));
        number
    }

    /// Records a call on a live block, and changes the block's entry.
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

    /// Removes a block without a call; does nothing if it was removed before.
    pub(super) fn strike(&self, number: u64) -> Option<Entry> {
        self.ledger.lock().live.remove(&number)
    }

    /// Returns the reason against binding another block to this one, if there is one.
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

/// The storage of a block's bytes.
#[derive(Debug)]
pub(super) enum Storage {
    /// The block has no bytes: the arena is not backed.
    Nowhere,
    /// The block owns memory.
    Own { _memory: Memory },
    /// The block uses storage of the application.
    External(Backing),
    /// The block uses the storage of the block that it is bound to.
    Bound(Backing),
}

/// A block of the test arena.
#[derive(Debug)]
pub(super) struct NullBlock {
    pub(super) number: u64,
    pub(super) len: u64,
    /// The bytes, if the arena is backed.
    pub(super) span: Option<HostSpan>,
    /// Whether the host is the native device, which sees the bytes without a mapping.
    pub(super) is_host: bool,
    pub(super) storage: Storage,
    pub(super) books: Arc<Books>,
}

impl NullBlock {
    /// Returns the block's bytes as memory for core, if the arena is backed.
    pub(super) fn memory(self: &Arc<Self>) -> Option<HostMemory> {
        let span = self.span.as_ref()?;
        // SAFETY: the block keeps its bytes, or what it is over (1). The arena touches them for requests of core and kernels
        // under grants alone (2). It hands out those of this block alone (3).
        Some(unsafe { shown(span, self.clone()) })
    }

    /// Changes the count of bound blocks of the block that this one is bound to, if it is bound.
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
        // A thread must not take a lock of a model while it unwinds.
        if !std::thread::panicking() && self.books.strike(self.number).is_some() {
            self.count_as_bound(-1);
        }
    }
}
