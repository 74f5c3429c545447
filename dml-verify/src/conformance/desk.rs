//! Host memory to copy from and to. A margin around the bytes of a sheet must not be written.

use super::Subject;
use dml_core::internal::sync::Mutex;
use dml_core::{Fence, HostMemory, OwnBlock, Span, TransferError};

/// The size of the margin on either side, in bytes. It is odd, so that the sheet's bytes are not aligned.
const MARGIN_BYTES: usize = 37;
const MARGIN_SEED: u64 = 0xC0FF_EE00;

/// Returns bytes that depend on their position and on `seed`; no stretch of them repeats.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut state = seed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    while bytes.len() < len {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bytes.extend_from_slice(&(x ^ (x >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Host memory with a margin.
#[derive(Debug)]
pub(super) struct Sheet {
    memory: Mutex<HostMemory>,
    len: usize,
}

impl Sheet {
    /// Makes a sheet that holds `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let margin = pattern(MARGIN_SEED, MARGIN_BYTES);
        let memory = HostMemory::holding([&margin, bytes, &margin].concat());
        Self { memory: Mutex::new(memory), len: bytes.len() }
    }

    /// Makes a sheet of `len` bytes that no check expects.
    pub(super) fn scrap(len: usize) -> Self {
        Self::of(&pattern(MARGIN_SEED + 1, len))
    }

    fn part(&self) -> Span {
        let start = MARGIN_BYTES as u64;
        Span::new(start, start + self.len as u64)
    }

    /// Starts a copy from the sheet into a block.
    pub(super) fn copy_into(&self, block: &OwnBlock, offset: u64) -> Result<Fence, TransferError> {
        block.copy_in(offset, &self.memory.lock(), self.part())
    }

    /// Starts a copy from a block into the sheet.
    pub(super) fn copy_out_of(&self, block: &OwnBlock, offset: u64) -> Result<Fence, TransferError> {
        block.copy_out(offset, &mut self.memory.lock(), self.part())
    }

    /// Returns whether part of the sheet is still lent to a transfer.
    pub(super) fn is_lent(&self) -> bool {
        self.memory.lock().is_lent()
    }

    /// Returns the bytes of the sheet.
    ///
    /// # Panics
    /// When the margin was written.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let memory = self.memory.lock();
        let all = memory.bytes();
        let margin = pattern(MARGIN_SEED, MARGIN_BYTES);
        let end = MARGIN_BYTES + self.len;
        let is_clean = all[..MARGIN_BYTES] == margin && all[end..] == margin;
        assert!(is_clean, "host memory beside the {} bytes of a copy was written", self.len);
        all[MARGIN_BYTES..end].to_vec()
    }
}

/// Checks that two contents are equal. The message says where they differ.
///
/// # Panics
/// When the contents differ.
#[track_caller]
pub(super) fn assert_same(found: &[u8], expected: &[u8], what: impl std::fmt::Display) {
    assert_eq!(found.len(), expected.len(), "{what}: number of bytes");
    if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
        let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
        panic!(
            "{what}: {wrong} of {} bytes differ, the first at {at}: {:#04x} instead of {:#04x}",
            found.len(),
            found[at],
            expected[at]
        );
    }
}

/// A block of the subject, and a model of its bytes.
#[derive(Debug)]
pub(super) struct Known<'a> {
    subject: &'a Subject,
    pub(super) block: OwnBlock,
    pub(super) model: Vec<u8>,
}

impl<'a> Known<'a> {
    /// Makes a fresh block that holds the pattern of a seed.
    pub(super) fn new(subject: &'a Subject, len: usize, seed: u64) -> Self {
        let block = subject.alloc(len as u64);
        let mut known = Self { subject, block, model: vec![0; len] };
        known.put(0, &pattern(seed, len));
        known
    }

    /// Copies `bytes` in at `offset` and waits.
    #[track_caller]
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.subject.put(&self.block, offset, bytes);
        self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Fills `start..end` and waits.
    #[track_caller]
    pub(super) fn fill(&mut self, start: usize, end: usize, byte: u8) {
        let span = Span::new(start as u64, end as u64);
        let fence = self.block.fill(span, byte).expect("a fill starts");
        assert_eq!(fence.wait(), Ok(span.len()), "bytes filled in {span}");
        self.model[start..end].fill(byte);
    }

    /// Checks the bytes `start..end`.
    #[track_caller]
    pub(super) fn check_part(&self, start: usize, end: usize) {
        let found = self.subject.take(&self.block, start, end);
        assert_same(&found, &self.model[start..end], format_args!("bytes {start}..{end}"));
    }

    /// Checks all bytes.
    #[track_caller]
    pub(super) fn check(&self) {
        self.check_part(0, self.model.len());
    }
}
