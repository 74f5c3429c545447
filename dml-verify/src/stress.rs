//! Threads that use the same buffers in every way, and check the contents at each access.
//!
//! A *shadow* holds the latest contents of every byte. A writer changes the shadow of its bytes under the
//! same grant; a reader compares. Only the grants order these accesses, so bytes differ where one request is
//! granted too much.

use crate::random::Random;
use crate::{block_on, bytes, get, poll_once, put};
use dml_core::{Access, AcquireError, ArenaId, Grants, Platform, RawBuffer};
use std::future::IntoFuture;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

const LEN: u64 = 97;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// The number of threads.
    pub threads: u64,
    /// The number of requests that each thread makes.
    pub rounds: u64,
    /// Whether some kernels fail.
    pub failures: bool,
}

/// Counts what happened in a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests granted.
    pub granted: AtomicU64,
    /// Requests that were busy, or were given up while they waited.
    pub given_up: AtomicU64,
    /// Kernels that failed on purpose.
    pub failed: AtomicU64,
    /// Buffers overwritten or restored after a failure.
    pub repaired: AtomicU64,
}

struct Shared {
    platform: Platform,
    buffers: Vec<RawBuffer>,
    shadows: Vec<Vec<AtomicU8>>,
    tally: Tally,
    mix: Mix,
}

/// Runs threads on three buffers, one of which begins as zeros. All grants are released and all buffers
/// dropped on return.
pub fn run(platform: &Platform, mix: Mix) -> Tally {
    let buffers: Vec<RawBuffer> = [false, true, false]
        .map(|zeroed| {
            let builder = platform.raw_buffer(LEN);
            if zeroed { builder.zeroed() } else { builder }.build().expect("a small buffer")
        })
        .into();
    let shadow = |_: &RawBuffer| (0..LEN).map(|_| AtomicU8::new(0)).collect();
    let shadows = buffers.iter().map(shadow).collect();
    let shared =
        Arc::new(Shared { platform: platform.clone(), buffers, shadows, tally: Tally::default(), mix });
    for index in [0, 2] {
        let worker = Worker { shared: shared.clone(), random: Random::new(index as u64), seed: 0 };
        worker.overwrite(index, 0..LEN, index as u64);
    }
    let threads: Vec<_> = (0..mix.threads)
        .map(|thread| {
            let worker =
                Worker { shared: shared.clone(), random: Random::new(thread + 1), seed: thread << 32 };
            std::thread::spawn(move || worker.work())
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread found anything wrong"));
    // At the end, every byte that is not lost equals its shadow.
    for (index, buffer) in shared.buffers.iter().enumerate() {
        for at in 0..LEN {
            let lost = buffer.restore(at..at + 1).is_err();
            assert!(!lost || mix.failures, "nobody has failed");
            let arena = ArenaId(((index as u64 + at) % platform.arenas().len() as u64) as u8);
            match platform.acquire_in(arena).read(&buffer.range(at..at + 1)).wait() {
                Ok(grants) => shared.compare(&grants, index, at..at + 1),
                Err(AcquireError::Poisoned { restorable: false, .. }) if lost => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    Arc::into_inner(shared).expect("every thread has ended").tally
}

impl Shared {
    fn compare(&self, grants: &Grants, index: usize, range: Range<u64>) {
        let seen = get(grants, &self.buffers[index], range.clone());
        let shadow = &self.shadows[index][range.start as usize..range.end as usize];
        let expected: Vec<u8> = shadow.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        assert_eq!(seen, expected, "buffer {index}, bytes {range:?}");
    }
}

struct Worker {
    shared: Arc<Shared>,
    random: Random,
    /// The seed of the pattern written last; every write has its own.
    seed: u64,
}

#[derive(Clone, Debug)]
struct Want {
    index: usize,
    range: Range<u64>,
    access: Access,
}

impl Worker {
    fn work(mut self) {
        for _ in 0..self.shared.mix.rounds {
            if self.random.below(12) == 0 {
                self.prefetch();
                continue;
            }
            let wants = self.wants();
            let arena = ArenaId(self.random.below(self.shared.platform.arenas().len() as u64) as u8);
            match self.acquire(arena, &wants) {
                Ok(grants) => {
                    self.shared.tally.granted.fetch_add(1, Ordering::Relaxed);
                    self.kernel(grants, wants);
                }
                Err(AcquireError::Busy { .. } | AcquireError::Timeout { .. }) => {
                    self.shared.tally.given_up.fetch_add(1, Ordering::Relaxed);
                }
                Err(AcquireError::Poisoned { buffer, restorable, .. }) if self.shared.mix.failures => {
                    let index = self.shared.buffers.iter().position(|it| it.id() == buffer).expect("ours");
                    self.repair(index, restorable);
                }
                Err(error) => panic!("{wants:?}: {error}"),
            }
        }
    }

    fn range(&mut self) -> Range<u64> {
        if self.random.below(4) == 0 {
            return 0..LEN;
        }
        let start = self.random.below(LEN - 1);
        start..start + 1 + self.random.below((LEN - start).min(40))
    }

    /// Draws one or two buffers, in any order.
    fn wants(&mut self) -> Vec<Want> {
        let first = self.random.below(3) as usize;
        let indices = [first, (first + 1 + self.random.below(2) as usize) % 3];
        let count = 1 + usize::from(self.random.below(3) == 0);
        indices[..count]
            .iter()
            .map(|&index| {
                let access = match self.random.below(5) {
                    0 => Access::WriteInvalidate,
                    1 => Access::ReadWrite,
                    _ => Access::ReadOnly,
                };
                Want { index, range: self.range(), access }
            })
            .collect()
    }

    fn acquire(&mut self, arena: ArenaId, wants: &[Want]) -> Result<Grants, AcquireError> {
        let asked = wants.iter().fold(self.shared.platform.acquire_in(arena), |asked, want| {
            asked.access_range(&self.shared.buffers[want.index], want.range.clone(), want.access)
        });
        match self.random.below(8) {
            0 => asked.try_now(),
            // The timeout is short: the request is given up while it waits, or while it is being granted.
            1 => asked.wait_timeout(Duration::from_micros(self.random.below(200))),
            2 => block_on(asked.into_future()),
            3 => {
                // The request is given up at the first wait.
                let mut future = asked.into_future();
                match poll_once(&mut future) {
                    std::task::Poll::Ready(result) => result,
                    std::task::Poll::Pending => {
                        std::thread::yield_now();
                        let buffer = self.shared.buffers[wants[0].index].id();
                        Err(AcquireError::Timeout { buffer: buffer.into(), waited: Duration::ZERO })
                    }
                }
            }
            _ => asked.wait(),
        }
    }

    /// Reads and writes all granted bytes, and ends the grant in a random way.
    fn kernel(&mut self, mut grants: Grants, wants: Vec<Want>) {
        for want in wants.iter().filter(|want| want.access.reads()) {
            self.shared.compare(&grants, want.index, want.range.clone());
        }
        let writes: Vec<Want> = wants.iter().filter(|want| want.access.writes()).cloned().collect();
        let fails = self.shared.mix.failures && self.random.below(6) == 0;
        for want in &writes {
            self.seed += 1;
            let data = bytes(self.seed, want.range.clone());
            put(&mut grants, &self.shared.buffers[want.index], want.range.start, &data);
            if !fails {
                self.note(want.index, want.range.start, &data);
            }
        }
        std::thread::yield_now();
        for want in wants.iter().filter(|want| want.access == Access::ReadOnly) {
            self.shared.compare(&grants, want.index, want.range.clone());
        }
        match self.random.below(6) {
            _ if fails && !writes.is_empty() => {
                self.shared.tally.failed.fetch_add(1, Ordering::Relaxed);
                grants.failed().expect("no device is lost");
            }
            0 => {
                let grants = grants.downgrade().expect("no device is lost");
                for want in wants {
                    self.shared.compare(&grants, want.index, want.range);
                }
            }
            // A dropped grant would commit no writes.
            1 if writes.is_empty() => drop(grants),
            _ => grants.release().expect("no device is lost"),
        }
    }

    fn note(&self, index: usize, start: u64, data: &[u8]) {
        for (shadow, byte) in self.shared.shadows[index][start as usize..].iter().zip(data) {
            shadow.store(*byte, Ordering::Relaxed);
        }
    }

    fn overwrite(&self, index: usize, range: Range<u64>, seed: u64) {
        let buffer = &self.shared.buffers[index];
        let asked = self.shared.platform.acquire_in(ArenaId(0));
        let asked = asked.access_range(buffer, range.clone(), Access::WriteInvalidate);
        let mut grants = asked.wait().expect("overwriting is always possible");
        let data = bytes(seed, range.clone());
        put(&mut grants, buffer, range.start, &data);
        self.note(index, range.start, &data);
        grants.release().expect("no device is lost");
    }

    fn repair(&mut self, index: usize, restorable: bool) {
        self.shared.tally.repaired.fetch_add(1, Ordering::Relaxed);
        let restored = restorable && self.shared.buffers[index].restore(0..LEN).is_ok();
        if !restored && self.random.below(3) == 0 {
            self.seed += 1;
            self.overwrite(index, 0..LEN, self.seed);
        }
    }

    fn prefetch(&mut self) {
        let (index, range) = (self.random.below(3) as usize, self.range());
        let arena = self.random.below(self.shared.platform.arenas().len() as u64);
        let device = self.shared.platform.arena(ArenaId(arena as u8)).desc().native;
        match self.shared.buffers[index].prefetch(device, range).wait() {
            Ok(()) | Err(AcquireError::Busy { .. }) => {}
            Err(AcquireError::Poisoned { .. }) if self.shared.mix.failures => {}
            Err(error) => panic!("prefetch: {error}"),
        }
    }
}
