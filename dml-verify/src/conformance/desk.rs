//! Host memory to copy from and to, reached without unsafe code: the blocks of a backed [`Null`] that stands for the
//! host. Around the bytes of a sheet there is a margin that nobody may write.

use super::Subject;
use dml_arenas::Null;
use dml_core::{Arena, ArenaDesc, ArenaKind, BlockRef, Concurrency, DeviceId, DeviceSet, HostSpan, Span};
use std::sync::Arc;

const CPU: DeviceId = DeviceId(0);
/// What there is of a margin on either side, in bytes; odd, so that the sheet's bytes are not aligned.
const MARGIN_BYTES: usize = 37;
const MARGIN_SEED: u64 = 0xC0FF_EE00;

/// Bytes that depend on their position and on `seed`; no stretch of them repeats.
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

/// The arena of sheets, which is nobody's subject.
pub(super) fn desk() -> Null {
    let desc = ArenaDesc::new("desk", ArenaKind("desk"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull);
    Null::backed(desc)
}

/// Host memory with a margin.
#[derive(Clone, Debug)]
pub(super) struct Sheet {
    desk: Arc<Null>,
    block: BlockRef,
    len: usize,
}

impl Sheet {
    /// A sheet that holds `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let desk = desk();
        let block = desk.alloc((bytes.len() + 2 * MARGIN_BYTES) as u64).expect("memory for a test");
        let margin = pattern(MARGIN_SEED, MARGIN_BYTES);
        desk.write(&block, CPU, 0, &[&margin, bytes, &margin].concat());
        Self { desk: Arc::new(desk), block, len: bytes.len() }
    }

    /// A sheet of so many bytes that hold nothing anybody expects.
    pub(super) fn scrap(len: usize) -> Self {
        Self::of(&pattern(MARGIN_SEED + 1, len))
    }

    /// Its memory, alive as long as the sheet.
    pub(super) fn span(&self) -> HostSpan {
        let start = MARGIN_BYTES as u64;
        let host = self.block.host().expect("the desk is the host's");
        host.slice(Span::new(start, start + self.len as u64))
    }

    /// What it holds.
    ///
    /// # Panics
    /// When the margin was written.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let all = self.desk.read(&self.block, CPU, Span::new(0, self.block.len()));
        let margin = pattern(MARGIN_SEED, MARGIN_BYTES);
        let end = MARGIN_BYTES + self.len;
        let is_clean = all[..MARGIN_BYTES] == margin && all[end..] == margin;
        assert!(is_clean, "host memory beside the {} bytes of a copy was written", self.len);
        all[MARGIN_BYTES..end].to_vec()
    }
}

/// What is in host memory.
pub(super) fn seen(span: &HostSpan) -> Vec<u8> {
    let sheet = Sheet::scrap(span.len() as usize);
    let _ = sheet.desk.copy_in(&sheet.block, MARGIN_BYTES as u64, span).expect("a copy by the host").wait();
    sheet.bytes()
}

/// Writes `bytes` to the start of host memory.
pub(super) fn overwrite(span: &HostSpan, bytes: &[u8]) {
    let (sheet, target) = (Sheet::of(bytes), span.slice(Span::new(0, bytes.len() as u64)));
    let _ =
        sheet.desk.copy_out(&sheet.block, MARGIN_BYTES as u64, &target).expect("a copy by the host").wait();
}

/// Says where two contents differ, in few words.
///
/// # Panics
/// When they do.
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

/// A block of the subject with bytes that a model knows.
#[derive(Debug)]
pub(super) struct Known<'a> {
    subject: &'a Subject,
    pub(super) block: BlockRef,
    pub(super) model: Vec<u8>,
}

impl<'a> Known<'a> {
    /// A fresh block that holds the pattern of a seed.
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
        let fence = self.subject.arena().fill(&self.block, span, byte).expect("a fill starts");
        assert_eq!(fence.wait(), Ok(span.len()), "bytes filled in {span}");
        self.model[start..end].fill(byte);
    }

    /// Looks at `start..end`.
    #[track_caller]
    pub(super) fn check_part(&self, start: usize, end: usize) {
        let found = self.subject.take(&self.block, start, end);
        assert_same(&found, &self.model[start..end], format_args!("bytes {start}..{end}"));
    }

    /// Looks at all of it.
    #[track_caller]
    pub(super) fn check(&self) {
        self.check_part(0, self.model.len());
    }
}
