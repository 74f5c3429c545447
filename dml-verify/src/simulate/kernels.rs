//! The tasks of a simulation, and the contents that the buffers must have meanwhile.
//!
//! A *shadow* holds the latest contents of every byte. A writer changes the shadow of its bytes with the
//! release that commits them; a reader compares. Only the grants order these accesses.

use super::executor::{below, pass, sleep, within};
use super::sim_arena;
use crate::bytes;
use crate::random::Random;
use dml_core::{Access, AcquireError, ArenaId, DeviceId, Grants, Platform, RawBuffer, Span};
use std::cell::{Cell, RefCell};
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

/// One buffer and its shadow.
struct Shadowed {
    buffer: RawBuffer,
    shadow: RefCell<Vec<u8>>,
    /// For each byte, whether it was ever written or began as zero.
    written: RefCell<Vec<bool>>,
}

/// The state that all tasks share.
pub(super) struct Scene(Rc<Stage>);

struct Stage {
    platform: Platform,
    buffers: Vec<Shadowed>,
    /// The seed of the pattern written last; every write has its own.
    seed: Cell<u64>,
    /// Whether a device was lost.
    lost: Cell<bool>,
    /// Whether calls of arenas fail.
    faults: bool,
}

#[derive(Clone, Debug)]
struct Want {
    buffer: usize,
    range: Range<u64>,
    access: Access,
}

impl Scene {
    pub(super) fn new(platform: &Platform, random: &mut Random, faults: bool) -> Self {
        let buffers = (0..1 + random.below(3)).map(|_| {
            let len = if random.once_in(12) { 0 } else { 1 + random.below(24) };
            let (builder, zeroed) = (platform.raw_buffer(len), random.once_in(3));
            let buffer = if zeroed { builder.zeroed() } else { builder }.build().expect("a small buffer");
            let (shadow, written) = (vec![0; len as usize], vec![zeroed; len as usize]);
            Shadowed { buffer, shadow: RefCell::new(shadow), written: RefCell::new(written) }
        });
        let buffers = buffers.collect();
        let (seed, lost) = (Cell::new(0), Cell::new(false));
        Self(Rc::new(Stage { platform: platform.clone(), buffers, seed, lost, faults }))
    }

    pub(super) fn tasks(&self, random: &mut Random) -> Vec<Pin<Box<dyn Future<Output = ()>>>> {
        let mut tasks: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        for _ in 0..2 + random.below(5) {
            let (stage, rounds) = (self.0.clone(), 3 + random.below(15));
            tasks.push(Box::pin(async move {
                for _ in 0..rounds {
                    stage.round().await;
                }
            }));
        }
        // In some runs a device is lost on the way.
        if random.once_in(5) {
            let (stage, after_ns) = (self.0.clone(), random.below(60_000));
            let device = random.below(self.0.platform.devices().len() as u64) as u16;
            tasks.push(Box::pin(async move {
                sleep(after_ns).await;
                stage.lose(DeviceId(device));
            }));
        }
        tasks
    }

    /// Reads everything readable in every arena after all tasks have ended, and drops the buffers.
    pub(super) fn finish(self) {
        let stage = Rc::into_inner(self.0).expect("every task has ended");
        for (index, shadowed) in stage.buffers.iter().enumerate() {
            let state = shadowed.buffer.snapshot();
            assert!(state.is_idle() && state.queue().len() == 0, "{state:#?}");
            for at in 0..shadowed.buffer.len() {
                let arena = ArenaId(((index as u64 + at) % stage.platform.arenas().len() as u64) as u8);
                let region = shadowed.buffer.range(at..at + 1);
                let want = Want { buffer: index, range: at..at + 1, access: Access::ReadOnly };
                match stage.platform.acquire_in(arena).read(&region).try_now() {
                    Ok(grants) => stage.compare(&grants, arena, &want),
                    Err(AcquireError::Uninitialized { .. }) => {
                        assert!(!shadowed.written.borrow()[at as usize], "{want:?} was written");
                    }
                    // A writer failed on these bytes, or they were lost with a device.
                    Err(AcquireError::Poisoned { .. }) => {}
                    Err(AcquireError::Unreachable { .. }) if stage.lost.get() => {}
                    Err(error) if error.is_device_lost() && stage.lost.get() => {}
                    Err(error) => panic!("{want:?} in {arena}: {error}"),
                }
            }
            shadowed.buffer.close();
        }
    }
}

impl Stage {
    fn arena(&self) -> ArenaId {
        ArenaId(below(self.platform.arenas().len() as u64) as u8)
    }

    fn range(&self, buffer: usize) -> Range<u64> {
        let len = self.buffers[buffer].buffer.len();
        if len == 0 || below(3) == 0 {
            return 0..len;
        }
        let start = below(len);
        start..start + below(len - start + 1)
    }

    /// Draws ranges of some buffers, in any order.
    fn wants(&self) -> Vec<Want> {
        let count = 1 + below(3);
        let want = |_| {
            let buffer = below(self.buffers.len() as u64) as usize;
            let access = match below(5) {
                0 => Access::WriteInvalidate,
                1 => Access::ReadWrite,
                _ => Access::ReadOnly,
            };
            Want { buffer, range: self.range(buffer), access }
        };
        (0..count).map(want).collect()
    }

    /// Takes one random action of a task.
    async fn round(&self) {
        match below(16) {
            0 => self.prefetch(),
            1 => self.storage(),
            2 => sleep(below(10_000)).await,
            _ => {
                let (arena, wants) = (self.arena(), self.wants());
                let waits = below(6) > 0;
                match self.acquire(arena, &wants, waits).await {
                    Some(Ok(grants)) => self.kernel(arena, grants, wants).await,
                    Some(Err(error)) => self.refused(arena, &error, waits).await,
                    None => {}
                }
            }
        }
    }

    /// Asks for access: waits for a limited or unlimited time, or does not wait.
    async fn acquire(
        &self,
        arena: ArenaId,
        wants: &[Want],
        waits: bool,
    ) -> Option<Result<Grants, AcquireError>> {
        let asked = wants.iter().fold(self.platform.acquire_in(arena), |asked, want| {
            asked.access_range(&self.buffers[want.buffer].buffer, want.range.clone(), want.access)
        });
        match below(5) {
            _ if !waits => Some(asked.try_now()),
            0 => within(below(8_000), asked.into_future()).await,
            _ => Some(asked.await),
        }
    }

    /// Runs a kernel on the arena of its grant. It reads, takes time, reads again, writes, and ends in a
    /// random way.
    async fn kernel(&self, arena: ArenaId, mut grants: Grants, wants: Vec<Want>) {
        self.compare_all(&grants, arena, &wants);
        match below(3) {
            0 => sleep(below(6_000)).await,
            1 => pass(below(3_000)),
            _ => {}
        }
        self.compare_all(&grants, arena, &wants);
        let written = match below(5) {
            0 => Vec::new(),
            _ => self.write(&mut grants, arena, &wants),
        };
        let overwrites =
            wants.iter().any(|want| want.access == Access::WriteInvalidate && !want.range.is_empty());
        // A release commits nothing in storage that was lost with its device.
        let lost = |want: &Want| self.buffers[want.buffer].buffer.snapshot().arena(arena).is_lost();
        let survives = !wants.iter().any(lost);
        if written.is_empty() {
            let ended = if overwrites { grants.failed() } else { grants.clean() };
            return ended.expect("nothing was written");
        }
        match below(6) {
            0 => grants.failed().expect("a failure has no further consequence"),
            1 if survives => {
                self.note(&written);
                let grants = grants.downgrade().expect("no device is lost");
                let reads = |want: &Want| Want { access: Access::ReadOnly, ..want.clone() };
                let wants: Vec<Want> = wants.iter().map(reads).collect();
                sleep(below(4_000)).await;
                self.compare_all(&grants, arena, &wants);
            }
            _ if survives => {
                self.note(&written);
                grants.release().expect("no device is lost");
            }
            _ => {
                // Buffers whose storage belongs to another device are committed nevertheless.
                let (kept, _) = written.into_iter().partition::<Vec<_>, _>(|(buffer, ..)| {
                    !self.buffers[*buffer].buffer.snapshot().arena(arena).is_lost()
                });
                self.note(&kept);
                let released = grants.release();
                assert!(released.is_err_and(|error| error.is_device_lost()), "the device is lost");
            }
        }
    }

    /// Returns whether a kernel may still trust its memory.
    fn is_usable(&self, arena: ArenaId, want: &Want) -> bool {
        !want.range.is_empty() && !self.buffers[want.buffer].buffer.snapshot().arena(arena).is_lost()
    }

    fn compare_all(&self, grants: &Grants, arena: ArenaId, wants: &[Want]) {
        for want in wants.iter().filter(|want| want.access.reads() && self.is_usable(arena, want)) {
            self.compare(grants, arena, want);
        }
    }

    fn compare(&self, grants: &Grants, arena: ArenaId, want: &Want) {
        let Shadowed { buffer, shadow, .. } = &self.buffers[want.buffer];
        let span = Span::new(want.range.start, want.range.end);
        let null = sim_arena(&self.platform, arena).inner();
        let seen = null.read(grants, &buffer.range(want.range.clone())).expect("granted");
        let expected = shadow.borrow()[span.start() as usize..span.end() as usize].to_vec();
        assert_eq!(seen, expected, "I-2: {} bytes {span} in {arena}", buffer.id());
    }

    /// Writes all bytes that were granted for writing.
    fn write(&self, grants: &mut Grants, arena: ArenaId, wants: &[Want]) -> Vec<(usize, u64, Vec<u8>)> {
        let mut written = Vec::new();
        for want in wants.iter().filter(|want| want.access.writes() && self.is_usable(arena, want)) {
            self.seed.set(self.seed.get() + 1);
            let data = bytes(self.seed.get(), want.range.clone());
            let region = self.buffers[want.buffer].buffer.range(want.range.clone());
            let null = sim_arena(&self.platform, arena).inner();
            null.write(grants, &region, &data).expect("granted for writing");
            written.push((want.buffer, want.range.start, data));
        }
        written
    }

    fn note(&self, written: &[(usize, u64, Vec<u8>)]) {
        for (buffer, start, data) in written {
            let (start, shadowed) = (*start as usize, &self.buffers[*buffer]);
            shadowed.shadow.borrow_mut()[start..start + data.len()].copy_from_slice(data);
            shadowed.written.borrow_mut()[start..start + data.len()].fill(true);
        }
    }

    /// Reacts to a refused request, and checks that the refusal has a reason.
    async fn refused(&self, arena: ArenaId, error: &AcquireError, waited: bool) {
        match error {
            AcquireError::Uninitialized { buffer, .. } | AcquireError::Poisoned { buffer, .. } => {
                let mine = |shadowed: &Shadowed| shadowed.buffer.id() == *buffer;
                let index = self.buffers.iter().position(mine).expect("one of ours");
                let buffer = &self.buffers[index].buffer;
                let restored = buffer.restore(0..buffer.len()).is_ok();
                if !restored || below(3) == 0 {
                    let want =
                        Want { buffer: index, range: 0..buffer.len(), access: Access::WriteInvalidate };
                    let asked = self.platform.acquire_in(arena).write(buffer);
                    if let Ok(mut grants) = asked.await {
                        let written = self.write(&mut grants, arena, std::slice::from_ref(&want));
                        if !buffer.snapshot().arena(arena).is_lost() {
                            self.note(&written);
                        }
                        let _ = grants.release();
                    }
                }
            }
            AcquireError::Busy { .. } if !waited => sleep(below(3_000)).await,
            AcquireError::CopyFailed { .. } | AcquireError::MapFailed { .. } | AcquireError::Alloc { .. }
                if self.faults || self.lost.get() =>
            {
                sleep(below(3_000)).await;
            }
            AcquireError::DeviceLost { .. } if self.lost.get() => sleep(below(3_000)).await,
            // The only route may lead through a lost memory.
            AcquireError::Unreachable { .. } if self.lost.get() => {}
            error => panic!("{arena}: {error}"),
        }
    }

    fn prefetch(&self) {
        let index = below(self.buffers.len() as u64) as usize;
        let device = self.platform.arena(self.arena()).desc().native;
        // Whatever the prefetch answers, later readers check the bytes.
        let _ = self.buffers[index].buffer.prefetch(device, self.range(index)).wait();
    }

    fn storage(&self) {
        let buffer = &self.buffers[below(self.buffers.len() as u64) as usize].buffer;
        let (arena, root) = (self.arena(), self.arena());
        match below(3) {
            0 if arena != root => drop(buffer.bind(arena, root)),
            1 => drop(buffer.restore(0..buffer.len())),
            _ => drop(buffer.free(arena)),
        }
    }

    fn lose(&self, device: DeviceId) {
        self.lost.set(true);
        for (arena, object) in (0..).map(ArenaId).zip(self.platform.arenas()) {
            if object.desc().native == device {
                sim_arena(&self.platform, arena).lose();
            }
        }
        self.platform.device_lost(device);
    }
}
