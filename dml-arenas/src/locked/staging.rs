//! Copies through locked scratch memory.
//!
//! ```text
//!   to a device    memory ──processor──▶ piece ──device──▶ block      several threads, two pieces each:
//!   from one       block ──device──▶ piece ──processor──▶ memory      one is copied, the other is in flight
//!   between two    block ──one device──▶ piece ──other device──▶ block     one thread, no processor copy
//! ```
//! A driver copies pageable memory through a buffer of its own, at the speed of one core. Between devices, it
//! copies out and in one after the other. Here several cores copy, or none, and both devices transfer
//! concurrently.
//!
//! 1. The copies run on a worker of the mechanism, so the caller can start other copies meanwhile.
//! 2. When a part fails, no further part begins. The copy waits for parts in flight, and returns the first
//!    error.
//! 3. A piece is reused only after its transfer has ended and returned it.

use super::scratch::{Scratch, ScratchPool};
use super::{PageLocker, Rates};
use crate::kit::Worker;
use crate::main_mem;
use dml_core::internal::guard;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::internal::{Gate, Helpers};
use dml_core::{CopyJob, Fence, HostSpan, Span, TransferError};
use std::sync::OnceLock;

/// Minimum size of a part, in bytes. A smaller part takes longer to start than to transfer.
const LEAST_PART_BYTES: u64 = 256 << 10;

/// The remaining bytes of a copy, from which several threads take parts.
struct Parts {
    rest: Mutex<Option<CopyJob>>,
    part_bytes: u64,
}

impl Parts {
    fn new(job: CopyJob, part_bytes: u64) -> Self {
        Self { rest: Mutex::new(Some(job)), part_bytes }
    }

    fn next(&self) -> Option<CopyJob> {
        let mut rest = self.rest.lock();
        let job = rest.take().filter(|job| !job.is_empty())?;
        let at = job.len().min(self.part_bytes);
        let (part, others) = job.split_at(at);
        *rest = Some(others);
        Some(part)
    }

    /// Drops the remaining bytes, so that no further part begins.
    fn stop(&self) {
        let rest = self.rest.lock().take();
        drop(rest);
    }
}

/// Waits for the transfer of a part, and checks that it moved all bytes and returned the piece.
pub(crate) fn whole(fence: Fence, requested_bytes: u64, piece: &Scratch) -> Result<u64, TransferError> {
    let done_bytes = fence.wait()?;
    match done_bytes {
        _ if piece.is_lent() => Err(TransferError::StillLent),
        _ if done_bytes < requested_bytes => Err(TransferError::Short { requested_bytes, done_bytes }),
        _ if done_bytes > requested_bytes => Err(TransferError::Overrun { requested_bytes, done_bytes }),
        _ => Ok(done_bytes),
    }
}

/// Returns the location of the first `len` bytes of a piece.
fn first(piece: &Scratch, len: u64) -> HostSpan {
    piece.span().slice(Span::new(0, len))
}

fn no_address(end: dml_core::CopyEnd<'_>) -> TransferError {
    TransferError::NoAddress { arena: end.arena.desc().name.clone() }
}

/// Transfers parts to a device until none is left: one piece is filled while the other is in flight.
fn write_parts(parts: &Parts, pieces: &mut [Scratch]) -> Result<u64, TransferError> {
    let mut moved_bytes = 0;
    // Dropped before the pieces, so an error waits for transfers in flight.
    let mut running: Vec<Option<(Fence, u64)>> = pieces.iter().map(|_| None).collect();
    for slot in (0..pieces.len()).cycle() {
        if let Some((fence, len)) = running[slot].take() {
            moved_bytes += whole(fence, len, &pieces[slot])?;
        }
        let Some(part) = parts.next() else { break };
        let (from, len) = (part.source_host().ok_or_else(|| no_address(part.from()))?, part.len());
        // SAFETY: the source is lent to the part, which is alive. Only this thread has the piece, and it is
        // not lent: its last transfer has ended and returned it (3).
        unsafe { main_mem::copy(&from, &first(&pieces[slot], len)) };
        running[slot] = Some((part.write_from(&pieces[slot])?, len));
    }
    for (slot, left) in running.iter_mut().enumerate() {
        if let Some((fence, len)) = left.take() {
            moved_bytes += whole(fence, len, &pieces[slot])?;
        }
    }
    Ok(moved_bytes)
}

/// Transfers parts from a device until none is left: one piece is emptied while the other is in flight.
fn read_parts(parts: &Parts, pieces: &mut [Scratch]) -> Result<u64, TransferError> {
    let mut moved_bytes = 0;
    let mut running: Vec<Option<(Fence, CopyJob)>> = pieces.iter().map(|_| None).collect();
    let mut is_over = false;
    for slot in (0..pieces.len()).cycle() {
        let ended = running[slot].take();
        if ended.is_none() && is_over {
            break;
        }
        if let Some((fence, part)) = ended {
            moved_bytes += whole(fence, part.len(), &pieces[slot])?;
            let to = part.target_host().ok_or_else(|| no_address(part.to()))?;
            // SAFETY: the target is lent to the part, which is alive. Only this thread has the piece, and it
            // is not lent (3).
            unsafe { main_mem::copy(&first(&pieces[slot], part.len()), &to) };
        }
        match parts.next() {
            Some(part) => running[slot] = Some((part.read_into(&mut pieces[slot])?, part)),
            None => is_over = true,
        }
    }
    Ok(moved_bytes)
}

/// Transfers parts between devices until none is left: one piece is read while another is written. Needs at
/// least two pieces.
fn relay_parts(parts: &Parts, pieces: &mut [Scratch]) -> Result<u64, TransferError> {
    let mut moved_bytes = 0;
    let mut writes: Vec<Option<(Fence, u64)>> = pieces.iter().map(|_| None).collect();
    let mut read: Option<(usize, Fence, CopyJob)> = None;
    for slot in (0..pieces.len()).cycle() {
        if let Some((fence, len)) = writes[slot].take() {
            moved_bytes += whole(fence, len, &pieces[slot])?;
        }
        let next = match parts.next() {
            Some(part) => Some((slot, part.read_into(&mut pieces[slot])?, part)),
            None => None,
        };
        let is_over = next.is_none();
        if let Some((slot, fence, part)) = std::mem::replace(&mut read, next) {
            let len = part.len();
            whole(fence, len, &pieces[slot])?;
            writes[slot] = Some((part.write_from(&pieces[slot])?, len));
        }
        if is_over {
            break;
        }
    }
    for (slot, left) in writes.iter_mut().enumerate() {
        if let Some((fence, len)) = left.take() {
            moved_bytes += whole(fence, len, &pieces[slot])?;
        }
    }
    Ok(moved_bytes)
}

/// The direction of a staged copy.
#[derive(Clone, Copy, Debug)]
enum Way {
    ToDevice,
    FromDevice,
    Between,
}

impl Way {
    /// Transfers parts until none is left, or one fails.
    fn run(self, parts: &Parts, pieces: &mut [Scratch]) -> Result<u64, TransferError> {
        match self {
            Self::ToDevice => write_parts(parts, pieces),
            Self::FromDevice => read_parts(parts, pieces),
            Self::Between => relay_parts(parts, pieces),
        }
    }

    /// Returns the number of pieces that one thread uses.
    fn pieces(self) -> usize {
        match self {
            Self::ToDevice | Self::FromDevice => 2,
            // One is read, one is written, and two are queued for the slower device.
            Self::Between => 4,
        }
    }
}

/// Copies on as many threads as there are pieces for, including the calling thread.
fn copy_all(
    job: CopyJob,
    mut pieces: Vec<Scratch>,
    piece_bytes: u64,
    way: Way,
) -> Result<u64, TransferError> {
    let count = pieces.len() as u64;
    let part_bytes = job.len().div_ceil(count.max(1)).clamp(LEAST_PART_BYTES.min(piece_bytes), piece_bytes);
    let parts = Parts::new(job, part_bytes);
    let lanes = Mutex::new(pieces.chunks_mut(way.pieces()));
    let done = Mutex::new(Vec::new());
    let copy = |pieces: &mut [Scratch]| way.run(&parts, pieces).inspect_err(|_| parts.stop());
    let take = || lanes.lock().next();
    let share = || {
        while let Some(pieces) = take() {
            let copied = guard(|| copy(pieces)).unwrap_or_else(|message| {
                parts.stop();
                Err(TransferError::Panicked { message })
            });
            done.lock().push(copied);
        }
    };
    let count = lanes.lock().len();
    Gate::open(&share, |gate| {
        // If a helper cannot start, the other threads take its parts.
        for _ in 1..count {
            let gate = gate.clone();
            _ = Helpers::shared().call(move || gate.help(|| ()));
        }
        share();
    });
    done.into_inner().into_iter().sum()
}

/// The pieces that were taken for a staged copy, with its direction.
pub(crate) struct Taken {
    way: Way,
    pieces: Vec<Scratch>,
}

/// The staged copies of one mechanism.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) pool: Arc<ScratchPool>,
    /// The number of threads that copy for one transfer.
    pub(crate) copiers: usize,
    /// Determines whether to stage a copy; `None` if there is no choice.
    rates: Option<Rates>,
    /// The workers for copies to the device and from it.
    workers: [OnceLock<Option<Worker>>; 2],
}

impl Staging {
    pub(crate) fn new(pool: &Arc<ScratchPool>, copiers: usize, rates: Option<Rates>) -> Self {
        Self { pool: pool.clone(), copiers, rates, workers: Default::default() }
    }

    /// Takes the pieces for a copy between host memory and a device; `None` if staging does not pay.
    pub(crate) fn take(&self, job: &CopyJob, locker: &Arc<dyn PageLocker>) -> Option<Taken> {
        let way = match (job.source_host().is_some(), job.target_host().is_some()) {
            (true, false) => Way::ToDevice,
            (false, true) => Way::FromDevice,
            _ => return None,
        };
        let pays =
            |copiers| copiers > 0 && self.rates.is_none_or(|rates| rates.staging_pays(job.len(), copiers));
        if !pays(self.copiers) {
            return None;
        }
        let pieces = self.pool.take(way.pieces() * self.copiers, &[locker]);
        pays(pieces.len() / way.pieces()).then_some(Taken { way, pieces })
    }

    /// Takes the pieces for a copy between two devices; `None` if fewer than two are available.
    pub(crate) fn take_between(&self, lockers: [&Arc<dyn PageLocker>; 2]) -> Option<Taken> {
        let way = Way::Between;
        let pieces = self.pool.take(way.pieces(), &lockers);
        // With one piece nothing would overlap.
        (pieces.len() > 1).then_some(Taken { way, pieces })
    }

    /// Starts a copy with the pieces taken for it.
    pub(crate) fn copy(&self, job: CopyJob, Taken { way, pieces }: Taken) -> Fence {
        let piece_bytes = self.pool.piece_bytes();
        let copy = move || copy_all(job, pieces, piece_bytes, way);
        let worker = &self.workers[usize::from(matches!(way, Way::FromDevice))];
        match worker.get_or_init(|| Worker::start("staging").ok()) {
            Some(worker) => worker.run(copy),
            // Without a worker, the waiter copies.
            None => Fence::running(copy),
        }
    }
}
