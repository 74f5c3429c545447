//! Device memory that no block has, kept for the next block of its size.
//!
//! ```text
//!   a block is dropped ──▶ idle ──▶ the next block of this size
//!                            └──▶ the driver: beyond the limit, where memory runs out, when the device closes
//! ```
//! The driver takes 4 us for memory of its pool, and 50 us where its code is in no cache. The pool hands memory out in the order of a stream, and
//! transfers use other streams, so the first one has to be waited for. Programs make blocks of the same sizes again and again.
//!
//! 1. No command uses memory that is idle: blocks go when their commands have ended.
//! 2. All of it together has at most `limit_bytes`, and [`MOST`] pieces.

use cudarc::driver::sys::CUdeviceptr;
use std::collections::VecDeque;

/// What sizes are multiples of, in bytes: the driver's own unit.
const UNIT_BYTES: usize = 512;
/// The most pieces that are kept: they are searched one by one.
const MOST: usize = 256;

/// Returns the size of the memory for a block.
pub(super) fn size_of(len: usize) -> Option<usize> {
    // The driver has no memory without bytes.
    len.max(1).checked_next_multiple_of(UNIT_BYTES)
}

/// Idle memory and its sizes. What was idle longest comes first.
#[derive(Debug)]
pub(super) struct Idle {
    pieces: VecDeque<(usize, CUdeviceptr)>,
    bytes: u64,
    limit_bytes: u64,
}

impl Idle {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, limit_bytes }
    }

    /// Takes memory of this size, of several pieces the one that was kept last.
    pub(super) fn take(&mut self, size: usize) -> Option<CUdeviceptr> {
        let found = self.pieces.iter().rposition(|piece| piece.0 == size)?;
        let (size, address) = self.pieces.remove(found)?;
        self.bytes -= size as u64;
        Some(address)
    }

    /// Keeps memory. Returns what the driver is to have back.
    #[must_use]
    pub(super) fn keep(&mut self, size: usize, address: CUdeviceptr) -> Vec<CUdeviceptr> {
        if size as u64 > self.limit_bytes {
            return vec![address];
        }
        self.pieces.push_back((size, address));
        self.bytes += size as u64;
        let mut gone = Vec::new();
        while self.bytes > self.limit_bytes || self.pieces.len() > MOST {
            let Some((size, address)) = self.pieces.pop_front() else { break };
            self.bytes -= size as u64;
            gone.push(address);
        }
        gone
    }

    /// Returns all of it, which the driver is to have back.
    #[must_use]
    pub(super) fn drain(&mut self) -> Vec<CUdeviceptr> {
        self.bytes = 0;
        self.pieces.drain(..).map(|(_, address)| address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [CUdeviceptr; 0] = [];

    #[test]
    fn memory_is_for_blocks_of_its_size() {
        let mut idle = Idle::new(10_000);
        assert_eq!([0, 1, 512, 513].map(size_of), [Some(512), Some(512), Some(512), Some(1024)]);
        assert_eq!(size_of(usize::MAX), None);
        for (size, address) in [(512, 1), (1024, 2), (512, 3)] {
            assert_eq!(idle.keep(size, address), NONE);
        }
        assert_eq!(idle.take(2048), None);
        assert_eq!([512, 512, 512].map(|size| idle.take(size)), [Some(3), Some(1), None]);
        assert_eq!(idle.take(1024), Some(2));
    }

    #[test]
    fn who_was_idle_longest_makes_room() {
        let mut idle = Idle::new(2048);
        for address in 1..=4 {
            assert_eq!(idle.keep(512, address), NONE);
        }
        assert_eq!(idle.keep(1024, 5), [1, 2]);
        assert_eq!(idle.keep(2049, 6), [6], "what has no room at all disturbs nobody");
        assert_eq!(idle.keep(2048, 7), [3, 4, 5]);
        assert_eq!(idle.take(2048), Some(7));
        // What was taken takes no room.
        assert_eq!(idle.keep(2048, 8), NONE);
        assert_eq!(idle.drain(), [8]);
        assert_eq!(idle.keep(2048, 9), NONE);
    }

    #[test]
    fn there_are_few_pieces() {
        let mut idle = Idle::new(u64::MAX);
        for address in 0..MOST as u64 {
            assert_eq!(idle.keep(512, address), NONE);
        }
        assert_eq!(idle.keep(512, 1000), [0]);
        assert_eq!(idle.drain().len(), MOST);
    }
}
