//! The records of the test arena: its calls, and its live blocks.

use dml_core::MapState;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{DeviceId, Span};
use std::collections::BTreeMap;

/// One call, as recorded. Blocks are numbered from zero in the order in which their arena made them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are the parameters of the arena's methods of the same names")]
pub enum Call {
    /// Storage was allocated.
    Alloc { block: u64, len: u64 },
    /// Storage of the application was attached.
    Attach { block: u64, len: u64 },
    /// Storage of another block was shared.
    Bind { block: u64, len: u64 },
    /// A block was freed.
    Free { block: u64 },
    /// A remote device was given access.
    Map { block: u64, device: DeviceId },
    /// The native device was given access.
    Unmap { block: u64 },
    /// Host memory was copied in.
    CopyIn { block: u64, span: Span },
    /// Bytes were copied to host memory.
    CopyOut { block: u64, span: Span },
    /// Bytes were set.
    Fill { block: u64, span: Span, byte: u8 },
    /// A test declared that a kernel runs here: see [`Null::touch`](crate::Null::touch).
    Touch { block: u64, device: DeviceId },
}

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

    /// Records a new block, and the call that made it. Returns the number of the block.
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

    /// Returns the map state of a block, if it is live.
    pub(super) fn map_state(&self, number: u64) -> Option<MapState> {
        self.ledger.lock().live.get(&number).map(|entry| entry.map)
    }

    /// Adds to the number of blocks bound to a block, if it is live.
    pub(super) fn count_bound(&self, number: u64, change: i32) {
        if let Some(entry) = self.ledger.lock().live.get_mut(&number) {
            entry.bound = entry.bound.saturating_add_signed(change);
        }
    }
}
