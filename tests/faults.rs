//! Every call of every arena goes wrong once, in every way: the operation fails as a whole or succeeds as a
//! whole.
//!
//! A *trial* runs a fixed list of operations on a platform in which one call of one arena meets one fault. An
//! operation that fails has left no trace but storage, bindings, map states and copies (I-15), says which
//! arena failed it and how, and works when it is done again. The trials of one arena end with the first in
//! which it is not called that often.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::internal::state::{BufferState, Lifecycle, MapState};
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{AcquireError, AllocError, ArenaId, Concurrency, DeviceSet, RawBuffer, TransferError};
use dml_verify::reference::is_told;
use dml_verify::{
    Audited, CPU, GPU, GPU_ARENA, GPU2, GPU2_ARENA, MAIN_ARENA, Place, Rig, Shape, byte, bytes, check, get,
    live_blocks, mapped_pair, poll_once, put, raw, read, test_arena, write,
};
use std::future::IntoFuture;
use std::ops::Range;
use std::task::Poll;
use std::time::Duration;

const LEN: u64 = 61;

#[derive(Clone, Debug)]
enum Op {
    Write(ArenaId, Range<u64>),
    Change(ArenaId, Range<u64>),
    Read(ArenaId, Range<u64>),
    Prefetch(ArenaId, Range<u64>),
    Bind(ArenaId, ArenaId),
    Free(ArenaId),
}

/// One platform with a fault in it, by the scripts of its arenas.
type Make = fn([Script; 3]) -> Audited;

fn faults() -> Vec<Fault> {
    vec![
        Fault::fail(),
        Fault::FailInFence(TransferError::DeviceLost { loss: None }),
        Fault::Short(0),
        Fault::Short(2),
        Fault::Panic,
        Fault::PanicInFence,
        Fault::Slow(Duration::from_micros(1)),
    ]
}

struct Trial {
    platform: Audited,
    buffer: RawBuffer,
    /// What every byte holds.
    model: Vec<Option<u8>>,
    faulty: ArenaId,
    fault: Fault,
    calls: Arc<Mutex<Vec<CallKind>>>,
}

/// Runs `ops` with a fault in every call of every arena; returns how many operations failed.
fn enumerate(make: Make, zeroed: bool, ops: &[Op]) -> usize {
    let mut failures = 0;
    for fault in faults() {
        for faulty in [MAIN_ARENA, GPU_ARENA, GPU2_ARENA] {
            for n in 1.. {
                let mut scripts = [Script::new(), Script::new(), Script::new()];
                scripts[usize::from(faulty.0)] = Script::new().at(n, fault.clone());
                let platform = make(scripts);
                if usize::from(faulty.0) >= platform.arenas().len() {
                    break;
                }
                let mut trial = Trial::new(platform, zeroed, faulty, fault.clone());
                failures += ops.iter().zip(1..).filter(|(op, seed)| !trial.step(op, *seed)).count();
                if trial.finish(n as usize) < n as usize {
                    break;
                }
            }
        }
    }
    failures
}

impl Trial {
    fn new(platform: Audited, zeroed: bool, faulty: ArenaId, fault: Fault) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = calls.clone();
        test_arena(&platform, faulty).hook(move |kind| noted.lock().push(kind));
        let builder = platform.raw_buffer(LEN);
        let buffer = if zeroed { builder.zeroed() } else { builder }.build().unwrap();
        let model = vec![zeroed.then_some(0); LEN as usize];
        Self { platform, buffer, model, faulty, fault, calls }
    }

    /// Does an operation, again if it failed; whether it worked at once.
    fn step(&mut self, op: &Op, seed: u64) -> bool {
        let before = check(&self.buffer);
        let Err(error) = self.attempt(op, seed) else { return true };
        self.understands(op, &error);
        no_trace(&before, &check(&self.buffer));
        if let Err(error) = self.attempt(op, seed) {
            panic!("{op:?} failed twice, {:?} in {}: {error}", self.fault, self.faulty);
        }
        check(&self.buffer);
        false
    }

    fn attempt(&mut self, op: &Op, seed: u64) -> Result<(), AcquireError> {
        let device = |arena| self.platform.arena(arena).desc().native;
        match op.clone() {
            Op::Read(arena, range) => {
                let region = self.buffer.range(range.clone());
                let grants = self.platform.acquire_in(arena).read(&region).try_now()?;
                self.compare(&get(&grants, &self.buffer, range.clone()), range);
                grants.release()
            }
            Op::Write(arena, range) | Op::Change(arena, range) => {
                let region = self.buffer.range(range.clone());
                let asked = self.platform.acquire_in(arena);
                let overwrites = matches!(op, Op::Write(..));
                let asked = if overwrites { asked.write(&region) } else { asked.read_write(&region) };
                let mut grants = asked.try_now()?;
                if !overwrites {
                    self.compare(&get(&grants, &self.buffer, range.clone()), range.clone());
                }
                put(&mut grants, &self.buffer, range.start, &bytes(seed, range.clone()));
                range.for_each(|at| self.model[at as usize] = Some(byte(seed, at)));
                grants.release()
            }
            Op::Prefetch(arena, range) => self.buffer.prefetch(device(arena), range).wait(),
            Op::Bind(arena, root) => self.buffer.bind(arena, root),
            Op::Free(arena) => self.buffer.free(arena),
        }
    }

    fn compare(&self, seen: &[u8], range: Range<u64>) {
        let model = &self.model[range.start as usize..range.end as usize];
        let seen: Vec<_> = seen.iter().copied().map(Some).collect();
        assert_eq!(seen, model, "bytes {range:?}, {:?} in {}", self.fault, self.faulty);
    }

    /// The error names the arena that failed, the bytes, and the fault.
    fn understands(&self, op: &Op, error: &AcquireError) {
        let as_scripted = |cause: &TransferError| is_told(&self.fault, cause);
        let understood = match error {
            AcquireError::CopyFailed { buffer, from, to, span, cause } => {
                let (Op::Read(_, range) | Op::Change(_, range) | Op::Prefetch(_, range)) = op else {
                    panic!("{op:?} copies nothing: {error}")
                };
                let inside = range.start <= span.start() && span.end() <= range.end && !span.is_empty();
                let named = [from, to].iter().any(|name| name.id == self.faulty);
                *buffer == self.buffer.id() && inside && named && as_scripted(cause)
            }
            AcquireError::MapFailed { arena, cause, .. } => arena.id == self.faulty && as_scripted(cause),
            AcquireError::Alloc { arena, cause, .. } => {
                let scripted = match cause {
                    AllocError::OutOfMemory { bytes, .. } => *bytes == LEN,
                    AllocError::DeviceLost { .. } => matches!(self.fault, Fault::FailInFence(_)),
                    AllocError::Panicked { message, .. } => message.contains("scripted panic"),
                    _ => false,
                };
                arena.id == self.faulty
                    && *arena.name == *self.platform.arena(arena.id).desc().name
                    && scripted
            }
            _ => false,
        };
        assert!(understood, "{op:?} with {:?} in {}: {error:?}", self.fault, self.faulty);
        assert!(!matches!(self.fault, Fault::Slow(_)), "slow is not wrong: {error}");
    }

    /// Reads everything everywhere and closes the buffer; how often the faulty arena was called.
    fn finish(mut self, n: usize) -> usize {
        let defined: Vec<u64> = (0..LEN).filter(|&at| self.model[at as usize].is_some()).collect();
        if defined.len() == LEN as usize {
            for arena in [GPU_ARENA, MAIN_ARENA, GPU2_ARENA] {
                if usize::from(arena.0) < self.platform.arenas().len() {
                    self.step(&Op::Read(arena, 0..LEN), 0);
                }
            }
        }
        let Self { platform, buffer, calls, fault, .. } = self;
        buffer.close();
        drop(buffer);
        let calls = calls.lock();
        let was_free = calls.get(n - 1) == Some(&CallKind::Free);
        // An arena that panics instead of freeing has kept the block, and so have those it is bound to.
        if !(was_free && matches!(fault, Fault::Panic | Fault::PanicInFence)) {
            assert_eq!(live_blocks(&platform), 0, "{fault:?} in call {n}: {calls:?}");
        }
        calls.len()
    }
}

/// Nothing has changed but what only helps.
fn no_trace(before: &BufferState, after: &BufferState) {
    assert_eq!(before.requestors(), after.requestors());
    assert_eq!(before.commit_seq(), after.commit_seq());
    assert_eq!(after.lifecycle(), Lifecycle::Open);
    assert!(after.copies().is_empty() && after.queue().len() == 0 && after.is_idle());
    for (span, then) in before.segments().iter() {
        for (part, now) in after.segments().in_span(span) {
            assert!(
                then.valid.is_subset(now.valid) && then.status == now.status,
                "{part}: {then:?}, {now:?}"
            );
        }
    }
}

/// Builds a platform whose first three arenas follow scripts.
fn scripted(rig: Rig, scripts: [Script; 3]) -> Audited {
    let places = (0..).map(|arena| Place::Arena(ArenaId(arena)));
    places.zip(scripts).fold(rig, |rig, (place, script)| rig.scripted(place, script)).build()
}

fn staged(scripts: [Script; 3]) -> Audited {
    scripted(Shape::Star.rig(), scripts)
}

#[test]
fn i15_staged_copies_and_two_hops() {
    let ops = [
        Op::Write(GPU_ARENA, 0..LEN),
        Op::Read(GPU2_ARENA, 3..58),
        Op::Change(GPU2_ARENA, 20..31),
        Op::Read(GPU_ARENA, 0..LEN),
        Op::Write(MAIN_ARENA, 7..13),
        Op::Prefetch(GPU_ARENA, 5..25),
    ];
    assert!(enumerate(staged, false, &ops) > 40);
}

#[test]
fn i15_copies_past_main_memory() {
    let make: Make = |scripts| {
        let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead);
        let rig = rig.staged(GPU_ARENA, GPU2_ARENA);
        scripted(rig.one_way(MAIN_ARENA, GPU_ARENA).one_way(GPU2_ARENA, MAIN_ARENA), scripts)
    };
    let ops = [
        Op::Write(MAIN_ARENA, 0..LEN),
        Op::Read(GPU2_ARENA, 0..LEN),
        Op::Change(GPU_ARENA, 11..50),
        Op::Read(MAIN_ARENA, 9..52),
    ];
    assert!(enumerate(make, false, &ops) > 30);
}

#[test]
fn i15_mapped_copies() {
    for concurrency in [Concurrency::Exclusive, Concurrency::BimapRead, Concurrency::BimapFull] {
        let make: Make = match concurrency {
            Concurrency::Exclusive => |scripts| mapped(scripts, Concurrency::Exclusive),
            Concurrency::BimapRead => |scripts| mapped(scripts, Concurrency::BimapRead),
            Concurrency::BimapFull => |scripts| mapped(scripts, Concurrency::BimapFull),
        };
        let ops = [
            Op::Write(GPU_ARENA, 0..LEN),
            Op::Read(MAIN_ARENA, 2..40),
            Op::Change(GPU_ARENA, 10..50),
            Op::Read(GPU2_ARENA, 0..LEN),
            Op::Change(MAIN_ARENA, 30..31),
            Op::Change(GPU_ARENA, 0..LEN),
        ];
        assert!(enumerate(make, false, &ops) > 20, "{concurrency:?}");
    }
}

fn mapped(scripts: [Script; 3], concurrency: Concurrency) -> Audited {
    let rig = Rig::new().gpu(concurrency).gpu(Concurrency::Exclusive);
    scripted(rig.mapped(GPU_ARENA).mapped(GPU2_ARENA), scripts)
}

#[test]
fn i15_zeros_made_where_they_are_needed() {
    let ops = [
        Op::Read(GPU_ARENA, 5..20),
        Op::Change(GPU_ARENA, 10..11),
        Op::Write(GPU2_ARENA, 40..44),
        Op::Read(MAIN_ARENA, 0..LEN),
        Op::Prefetch(GPU2_ARENA, 0..LEN),
    ];
    assert!(enumerate(staged, true, &ops) > 50);
}

fn bound(scripts: [Script; 3], concurrency: Concurrency) -> Audited {
    let rig = Rig::new().gpu(concurrency).gpu(Concurrency::Exclusive);
    scripted(rig.bound(MAIN_ARENA, GPU_ARENA, concurrency).staged(MAIN_ARENA, GPU2_ARENA), scripts)
}

#[test]
fn i15_bindings_made_on_the_way_and_by_hand() {
    let makes: [Make; 3] = [
        |scripts| bound(scripts, Concurrency::Exclusive),
        |scripts| bound(scripts, Concurrency::BimapRead),
        |scripts| bound(scripts, Concurrency::BimapFull),
    ];
    for make in makes {
        let on_the_way = [
            Op::Write(MAIN_ARENA, 0..LEN),
            Op::Change(GPU_ARENA, 13..40),
            Op::Read(GPU2_ARENA, 0..LEN),
            Op::Change(MAIN_ARENA, 1..60),
            Op::Read(GPU_ARENA, 0..LEN),
        ];
        assert!(enumerate(make, false, &on_the_way) > 10);
        let by_hand = [
            Op::Write(GPU_ARENA, 0..LEN),
            Op::Bind(MAIN_ARENA, GPU_ARENA),
            Op::Read(MAIN_ARENA, 0..LEN),
            Op::Change(GPU2_ARENA, 30..33),
            Op::Read(GPU_ARENA, 0..LEN),
            Op::Free(MAIN_ARENA),
            Op::Read(MAIN_ARENA, 0..LEN),
        ];
        assert!(enumerate(make, false, &by_hand) > 10);
    }
}

#[test]
fn l03_those_who_wait_behind_a_failure_go_on() {
    for fault in faults() {
        for n in 1..12 {
            let script = Script::new().at(n, fault.clone());
            let platform = staged([Script::new(), script, Script::new()]);
            let buffer = raw(&platform, LEN);
            write(&buffer, MAIN_ARENA, 0..LEN, 1);
            let holder = platform.acquire(CPU).write(&buffer).try_now().unwrap();
            let half = buffer.range(0..31);
            let mut waiting = [
                platform.acquire(GPU).read(&buffer).into_future(),
                platform.acquire(GPU).read(&half).into_future(),
                platform.acquire(GPU2).read(&buffer).into_future(),
                platform.acquire(GPU).read_write(&half).into_future(),
                platform.acquire(GPU2).read(&half).into_future(),
            ];
            assert!(waiting.iter_mut().all(|future| poll_once(future).is_pending()));
            drop(holder);
            let mut left: Vec<_> = waiting.iter_mut().collect();
            let mut failed = 0;
            for _ in 0..6 {
                left.retain_mut(|future| match poll_once(future) {
                    Poll::Pending => true,
                    Poll::Ready(Ok(grants)) => {
                        assert_eq!(get(&grants, &buffer, 0..31), bytes(1, 0..31));
                        grants.clean().unwrap();
                        false
                    }
                    Poll::Ready(Err(error)) => {
                        assert!(!error.is_busy(), "{error}");
                        failed += 1;
                        false
                    }
                });
            }
            assert!(left.is_empty(), "{} wait for ever, {fault:?} in call {n}", left.len());
            assert!(failed <= 1, "one call went wrong, {failed} requests failed");
            assert!(check(&buffer).is_idle());
            assert_eq!(read(&buffer, GPU_ARENA, 0..LEN), bytes(1, 0..LEN));
        }
    }
}

#[test]
fn i19_a_wrong_map_state_wedges_the_buffer() {
    let host = DeviceSet::of(CPU);
    let lies = [
        (CallKind::Map, MapState::Unmapped),
        (CallKind::Map, MapState::Mapped(DeviceSet::EMPTY)),
        (CallKind::Map, MapState::Bimapped(host)),
        (CallKind::Map, MapState::Mapped(host.with(GPU2))),
        (CallKind::Unmap, MapState::Mapped(host)),
        (CallKind::Unmap, MapState::Bimapped(host)),
        (CallKind::Unmap, MapState::Bimapped(DeviceSet::EMPTY)),
    ];
    for (kind, lie) in lies {
        let script = Script::new().at_kind(kind, 1, Fault::Report(lie));
        let platform = mapped([Script::new(), script, Script::new()], Concurrency::Exclusive);
        let buffer = raw(&platform, LEN);
        write(&buffer, GPU_ARENA, 0..LEN, 1);
        let on_gpu2 = platform.acquire(GPU2).write(&buffer.range(60..61)).try_now().unwrap();
        let first = platform.acquire(CPU).read(&buffer.range(0..30)).try_now();
        let broken = match first {
            // The host was served truly; the gpu, which takes its storage back, is not.
            Ok(grants) if kind == CallKind::Unmap => {
                grants.release().unwrap();
                platform.acquire(GPU).read_write(&buffer.range(0..30)).try_now()
            }
            first => first,
        };
        let Err(AcquireError::ArenaContract { buffer: id, arena, .. }) = &broken else {
            panic!("{kind:?} {lie:?}: {broken:?}")
        };
        assert_eq!((id.id(), arena.id, &*arena.name), (buffer.id(), GPU_ARENA, "gpu1"));
        assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Wedged);
        let after = platform.acquire(GPU2).read(&buffer.range(0..1)).try_now();
        assert!(matches!(after, Err(AcquireError::Wedged { .. })), "{after:?}");
        assert!(matches!(buffer.prefetch(CPU, 0..1).wait(), Err(AcquireError::Wedged { .. })));
        // What was granted is released, and closing comes to its end.
        on_gpu2.release().unwrap();
        buffer.close();
        assert_eq!(live_blocks(&platform), 0);
    }
    // Others are none the worse.
    let platform = mapped_pair(Concurrency::Exclusive);
    let buffer = raw(&platform, LEN);
    write(&buffer, GPU_ARENA, 0..LEN, 1);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
}

#[test]
fn i24_storage_comes_back_whatever_its_arena_does_with_the_block() {
    for fault in [Fault::fail(), Fault::Panic] {
        let script = Script::new().at_kind(CallKind::Free, 1, fault.clone());
        let platform = staged([script, Script::new(), Script::new()]);
        let data = bytes(1, 0..LEN);
        let address = data.as_ptr();
        let buffer = platform.buffer_from(data).unwrap();
        write(buffer.raw(), GPU_ARENA, 3..9, 2);
        let clone = buffer.clone();
        // A panic of an arena is its own, and not the caller's.
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.into_vec()));
        let contents = taken.unwrap_or_else(|_| panic!("into_vec() panics with {fault:?} in free")).unwrap();
        assert_eq!(contents[..9], [bytes(1, 0..3), bytes(2, 3..9)].concat());
        assert_eq!(contents.as_ptr(), address);
        assert_eq!(clone.raw().snapshot().lifecycle(), Lifecycle::Closed);
    }
}
