//! Scripts, which define the calls that fail, and how.

use dml_core::MapState;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{Fence, TransferError};
use std::time::Duration;

/// The kind of a call, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// [`Arena::alloc`](dml_core::Arena::alloc).
    Alloc,
    /// [`Arena::attach`](dml_core::Arena::attach).
    Attach,
    /// [`Arena::bind`](dml_core::Arena::bind).
    Bind,
    /// [`Arena::free`](dml_core::Arena::free).
    Free,
    /// [`Arena::map`](dml_core::Arena::map).
    Map,
    /// [`Arena::unmap`](dml_core::Arena::unmap).
    Unmap,
    /// [`Arena::copy_in`](dml_core::Arena::copy_in).
    CopyIn,
    /// [`Arena::copy_out`](dml_core::Arena::copy_out).
    CopyOut,
    /// [`Arena::fill`](dml_core::Arena::fill).
    Fill,
    /// [`CrossArena::copy`](dml_core::CrossArena::copy).
    Copy,
}

const KINDS: usize = CallKind::Copy as usize + 1;

/// How a call fails. A fault that does not apply to a call has no effect on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call reports an error and does nothing. An allocation reports a lack of memory; a transfer or map
    /// reports this error.
    Fail(TransferError),
    /// The transfer is carried out, and its fence reports this error.
    FailInFence(TransferError),
    /// Only this many bytes are moved, and the fence says so. An allocation returns this many bytes.
    Short(u64),
    /// The call takes this much longer. A transfer takes the time in its fence, while others proceed.
    Slow(Duration),
    /// The call panics and does nothing.
    Panic,
    /// The transfer is carried out, and its fence panics.
    PanicInFence,
    /// The change of map state is carried out, and this state is reported instead.
    Report(MapState),
}

impl Fault {
    /// Creates a failure like that of a broken framework.
    #[must_use]
    pub fn fail() -> Self {
        Self::Fail(scripted())
    }
}

/// Returns the error of a fault that names none.
fn scripted() -> TransferError {
    TransferError::Framework { call: "scripted", code: -1, message: "the script says so".into() }
}

#[derive(Clone, Debug)]
struct Rule {
    kind: Option<CallKind>,
    from: u64,
    to: u64,
    fault: Fault,
}

/// The faults of calls, by the number of the call.
///
/// # Examples
/// ```
/// use dml_arenas::Script;
/// use dml_arenas::faulty::{CallKind, Fault};
/// // The third call of all panics; every copy out from the second on moves seven bytes.
/// let script = Script::new().at(3, Fault::Panic).from_kind(CallKind::CopyOut, 2, Fault::Short(7));
/// # let _ = script;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Script {
    rules: Vec<Rule>,
}

impl Script {
    /// Creates a script without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault for the `n`-th of all calls; the first call is number one.
    pub fn at(self, n: u64, fault: Fault) -> Self {
        self.rule(None, n, n, fault)
    }

    /// Adds a fault for the `n`-th call of this kind.
    pub fn at_kind(self, kind: CallKind, n: u64, fault: Fault) -> Self {
        self.rule(Some(kind), n, n, fault)
    }

    /// Adds a fault for the `n`-th call of this kind and all later ones.
    pub fn from_kind(self, kind: CallKind, n: u64, fault: Fault) -> Self {
        self.rule(Some(kind), n, u64::MAX, fault)
    }

    fn rule(mut self, kind: Option<CallKind>, from: u64, to: u64, fault: Fault) -> Self {
        self.rules.push(Rule { kind, from, to, fault });
        self
    }
}

/// The player of a script: it counts the calls.
#[derive(Debug)]
pub(super) struct Player {
    script: Script,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: u64,
    by_kind: [u64; KINDS],
}

impl Player {
    pub(super) fn new(script: Script) -> Self {
        Self { script, counts: Mutex::new(Counts::default()) }
    }

    /// Counts a call, and returns the fault of the first rule that names it.
    pub(super) fn next(&self, kind: CallKind) -> Option<Fault> {
        let (all, of_kind) = {
            let mut counts = self.counts.lock();
            counts.all += 1;
            counts.by_kind[kind as usize] += 1;
            (counts.all, counts.by_kind[kind as usize])
        };
        let meets = |rule: &&Rule| match rule.kind {
            None => (rule.from..=rule.to).contains(&all),
            Some(of) => of == kind && (rule.from..=rule.to).contains(&of_kind),
        };
        self.script.rules.iter().find(meets).map(|rule| rule.fault.clone())
    }

    /// Returns the number of calls so far.
    pub(super) fn calls_made(&self) -> u64 {
        self.counts.lock().all
    }

    /// Returns the number of calls of one kind so far.
    pub(super) fn calls_of(&self, kind: CallKind) -> u64 {
        self.counts.lock().by_kind[kind as usize]
    }
}

/// Carries a transfer out as its fault says. `start` starts the whole transfer, or only the given number of
/// its first bytes.
pub(super) fn transfer(
    fault: Option<Fault>,
    name: &Arc<str>,
    kind: CallKind,
    start: impl FnOnce(Option<u64>) -> Result<Fence, TransferError>,
) -> Result<Fence, TransferError> {
    match fault {
        None | Some(Fault::Report(_)) => start(None),
        Some(Fault::Fail(error)) => Err(error),
        Some(Fault::Panic) => panic!("scripted panic of {name} in {kind:?}"),
        Some(Fault::Short(bytes)) => start(Some(bytes)),
        Some(Fault::Slow(delay)) => {
            let fence = start(None)?;
            Ok(Fence::running(move || {
                std::thread::sleep(delay);
                fence.wait()
            }))
        }
        Some(Fault::FailInFence(error)) => {
            let fence = start(None)?;
            Ok(Fence::running(move || fence.wait().and(Err(error))))
        }
        Some(Fault::PanicInFence) => {
            let (fence, name) = (start(None)?, name.clone());
            Ok(Fence::running(move || {
                let _ = fence.wait();
                panic!("scripted panic of {name} in the fence of {kind:?}")
            }))
        }
    }
}

/// Plays the part of a fault that comes before the call: a delay or a panic. Returns what remains for the
/// call to do.
pub(super) fn meet(fault: Option<Fault>, name: &Arc<str>, kind: CallKind) -> Option<Fault> {
    match fault {
        Some(Fault::Panic | Fault::PanicInFence) => panic!("scripted panic of {name} in {kind:?}"),
        Some(Fault::Slow(delay)) => {
            std::thread::sleep(delay);
            None
        }
        other => other,
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_over_all_and_by_kind() {
        let script = Script::new().at(2, Fault::Panic).at_kind(CallKind::Map, 2, Fault::Short(1)).from_kind(
            CallKind::CopyIn,
            2,
            Fault::Short(2),
        );
        let player = Player::new(script);
        let faults: Vec<_> =
            [CallKind::CopyIn, CallKind::Map, CallKind::Map, CallKind::CopyIn, CallKind::CopyIn]
                .map(|kind| player.next(kind))
                .into();
        let short = |bytes| Some(Fault::Short(bytes));
        assert_eq!(faults, [None, Some(Fault::Panic), short(1), short(2), short(2)]);
        assert_eq!((player.calls_made(), player.calls_of(CallKind::CopyIn)), (5, 3));
    }
}
