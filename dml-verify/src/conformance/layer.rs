//! Checks the arena under the whole layer, as an application sees it that uses only buffers.

use super::Subject;
use super::desk::{assert_same, pattern};
use super::transfer::part;
use crate::block_on;
use crate::history::Audited;
use crate::random::Random;
use dml_core::{Acquire, AcquireError, ArenaId, Buffer, Grants};
use std::future::IntoFuture;
use std::ops::Range;

const ROUNDS: u64 = 120;

/// A buffer, its expected bytes, and the subject that uses it.
struct User<'a> {
    subject: &'a Subject,
    buffer: Buffer<u8>,
    model: Vec<u8>,
    random: Random,
    /// The seed of the pattern written last; every write has its own.
    seed: u64,
}

impl<'a> User<'a> {
    fn new(subject: &'a Subject, len: usize, seed: u64) -> Self {
        let platform = subject.platform();
        let is_zeroed = seed.is_multiple_of(2);
        let model = if is_zeroed { vec![0; len] } else { pattern(seed, len) };
        let buffer = if is_zeroed {
            platform.buffer(len as u64).zeroed().build().expect("a buffer of a few bytes")
        } else {
            platform.buffer_from(model.clone()).expect("a host that takes vectors")
        };
        Self { subject, buffer, model, random: Random::new(seed), seed: seed << 32 }
    }

    /// Makes a request for a kernel of the subject's device.
    fn on_device<'r>(&self) -> Acquire<'r> {
        self.subject.platform().acquire_in(self.subject.id())
    }

    fn on_host<'r>(&self) -> Acquire<'r> {
        self.subject.platform().acquire(self.subject.host())
    }

    /// Waits for the grant, on this thread or as a future.
    fn granted(&mut self, request: Acquire<'_>) -> Grants {
        let granted = if self.random.once_in(2) { block_on(request.into_future()) } else { request.wait() };
        granted.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes a range as a kernel of the device would. No kernel runs on every framework, so the arena's own
    /// copy stands for one.
    fn kernel_writes(&self, grants: &mut Grants, range: Range<usize>, bytes: &[u8]) {
        let region = self.buffer.range(range.start as u64..range.end as u64);
        grants.write_bytes(&region, bytes).expect("granted for writing");
    }

    fn kernel_reads(&self, grants: &Grants, range: Range<usize>) {
        let region = self.buffer.range(range.start as u64..range.end as u64);
        let found = grants.read_bytes(&region).expect("granted");
        assert_same(&found, &self.model[range.clone()], format_args!("the device reads {range:?}"));
    }

    fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.seed += 1;
        pattern(self.seed, len)
    }

    fn step(&mut self) {
        let (start, end) = part(&mut self.random, self.model.len());
        let range = start..end;
        let region = self.buffer.range(start as u64..end as u64);
        match self.random.below(12) {
            0 | 1 => {
                let request = self.on_device().write(&region);
                let (mut grants, bytes) = (self.granted(request), self.fresh(end - start));
                self.kernel_writes(&mut grants, range.clone(), &bytes);
                self.model[range].copy_from_slice(&bytes);
                grants.release().expect("committed");
            }
            2 => {
                let request = self.on_device().read_write(&region);
                let mut grants = self.granted(request);
                self.kernel_reads(&grants, range);
                let half = start..start + (end - start) / 2;
                let bytes = self.fresh(half.len());
                self.kernel_writes(&mut grants, half.clone(), &bytes);
                self.model[half].copy_from_slice(&bytes);
                grants.release().expect("committed");
            }
            3 | 4 => {
                let request = self.on_device().read(&region);
                let grants = self.granted(request);
                self.kernel_reads(&grants, range);
            }
            5 => {
                let request = self.on_host().write(&region);
                let (mut grants, bytes) = (self.granted(request), self.fresh(end - start));
                grants.slice_mut(&region).expect("granted").copy_from_slice(&bytes);
                grants.release().expect("committed");
                self.model[range].copy_from_slice(&bytes);
            }
            6 => {
                let request = self.on_host().read(&region);
                let grants = self.granted(request);
                let found: &[u8] = grants.slice(&region).expect("granted");
                assert_same(found, &self.model[range], "the host reads a range");
            }
            7 => self.check(),
            8 => {
                let mut view = self.buffer.read_write().expect("nobody else uses it");
                if let Some(byte) = view.get_mut(start) {
                    *byte = byte.wrapping_add(1);
                    self.model[start] = self.model[start].wrapping_add(1);
                }
                view.release().expect("committed");
            }
            9 => {
                let (range, buffer) = (start as u64..end as u64, self.buffer.raw());
                let prefetched = if self.random.once_in(2) {
                    buffer.prefetch_in(self.subject.id(), range)
                } else {
                    buffer.prefetch(self.subject.host(), range)
                };
                prefetched.wait().expect("nobody else uses it");
            }
            10 => self.fail(range),
            _ => {
                let request = self.on_device().write(&region);
                let (mut grants, bytes) = (self.granted(request), self.fresh(end - start));
                self.kernel_writes(&mut grants, range.clone(), &bytes);
                self.model[range.clone()].copy_from_slice(&bytes);
                let grants = grants.downgrade().expect("committed");
                self.kernel_reads(&grants, range);
                grants.release().expect("nothing was written since");
                // Storage that is not needed is freed, and made again later. Storage in use is refused.
                let arena = ArenaId(self.random.below(self.subject.platform().arenas().len() as u64) as u8);
                let freed = self.buffer.raw().free(arena);
                assert!(matches!(freed, Ok(()) | Err(AcquireError::NotFreeable { .. })), "{freed:?}");
            }
        }
    }

    /// Runs a kernel that fails half way, after which the bytes are restored or written anew.
    fn fail(&mut self, range: Range<usize>) {
        let (start, end) = (range.start as u64, range.end as u64);
        let region = self.buffer.range(start..end);
        let request = self.on_device().read_write(&region);
        let (mut grants, junk) = (self.granted(request), self.fresh(range.len()));
        self.kernel_writes(&mut grants, range.clone(), &junk);
        grants.failed().expect("nothing can be done about it");
        match self.buffer.raw().restore(start..end) {
            Ok(()) => {}
            Err(AcquireError::NotRestorable { .. }) => {
                let request = self.on_host().write(&region);
                let (mut grants, bytes) = (self.granted(request), self.fresh(range.len()));
                grants.slice_mut(&region).expect("granted").copy_from_slice(&bytes);
                grants.release().expect("committed");
                self.model[range].copy_from_slice(&bytes);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&self) {
        assert_same(&self.buffer.read().expect("nobody else uses it"), &self.model, "the host reads all");
    }

    fn finish(self) {
        self.check();
        assert_same(&self.buffer.into_vec().expect("nobody else uses it"), &self.model, "closed");
    }
}

/// A random sequence of acquires, views, prefetches and failures leaves the same bytes in a buffer as in a
/// vector.
///
/// # Panics
/// When the bytes differ, or the recorded events contradict each other.
pub fn buffers_agree_with_a_model(subject: &Subject) {
    let _audited = Audited::new(subject.platform().clone());
    for (seed, len) in (1..).zip([1, 100, 4097, 4097, 300_007, 70_001]) {
        let mut user = User::new(subject, len, seed);
        (0..ROUNDS).for_each(|_| user.step());
        user.finish();
    }
    // A kernel whose end is a fence of the arena.
    let user = User::new(subject, 10_007, 9);
    let grants = user.on_device().read_write(&user.buffer).wait().expect("nobody else uses it");
    let mut grants = grants;
    grants.write_bytes(&user.buffer, &pattern(10, 10_007)).expect("granted for writing");
    let fence = subject.arena().tail().expect("the arena knows what was launched");
    grants.in_flight(fence).wait().expect("the copy works").release().expect("committed");
    assert_same(&user.buffer.read().expect("nobody uses it"), &pattern(10, 10_007), "written in flight");
}

/// Two threads that use one buffer each do not disturb each other.
///
/// # Panics
/// When [`buffers_agree_with_a_model`] would panic.
pub fn buffers_of_two_threads_keep_apart(subject: &Subject) {
    let _audited = Audited::new(subject.platform().clone());
    let work = move |seed| {
        let mut user = User::new(subject, 30_011, seed);
        (0..2 * ROUNDS).for_each(|_| user.step());
        user.finish();
    };
    std::thread::scope(|scope| {
        let threads = [20, 21].map(|seed| scope.spawn(move || work(seed)));
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}
