//! Kernels that run on test platforms, and questions that tests ask of their buffers.
//!
//! Kernels reach the bytes through the block of their grant and as the native device of the arena, so the
//! arena detects a kernel without access. On a platform of other arenas than those of a rig, the arena copies
//! for them.

use crate::platforms::find_null;
use dml_core::internal::state::{BufferState, Status};
use dml_core::{
    Access, ArenaId, ArenaSet, Grants, Platform, RawBuffer, Region,
    record::{Event, EventKind},
};
use std::ops::Range;

/// Returns a byte that depends on seed and offset and is never zero.
pub fn byte(seed: u64, offset: u64) -> u8 {
    let mut x =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 29;
    (x % 255) as u8 + 1
}

/// Returns the bytes of a range in the pattern of a seed.
pub fn bytes(seed: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|offset| byte(seed, offset)).collect()
}

/// Acts as a kernel that writes `bytes` at `offset` of the buffer, in the arena of its grant.
pub fn put(grants: &mut Grants, region: &impl Region, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let part = region.buffer().range(offset..offset + bytes.len() as u64);
    let arena = grants.arena(region).expect("granted");
    match find_null(region.buffer().platform(), arena) {
        Some(null) => null.write(grants, &part, bytes).expect("granted for writing"),
        None => grants.write_bytes(&part, bytes).expect("granted for writing"),
    }
}

/// Acts as a kernel that reads a range of the buffer, in the arena of its grant.
pub fn get(grants: &Grants, region: &impl Region, range: Range<u64>) -> Vec<u8> {
    if range.is_empty() {
        return Vec::new();
    }
    let arena = grants.arena(region).expect("granted");
    let part = region.buffer().range(range);
    match find_null(region.buffer().platform(), arena) {
        Some(null) => null.read(grants, &part).expect("granted"),
        None => grants.read_bytes(&part).expect("granted"),
    }
}

/// Acquires a range for writing in an arena, and overwrites it with the pattern of `seed`.
pub fn write(buffer: &RawBuffer, arena: ArenaId, range: Range<u64>, seed: u64) {
    commit(buffer, arena, range, seed, Access::WriteInvalidate);
}

/// Acquires a range for reading and writing in an arena, and changes it to the pattern of `seed`.
pub fn change(buffer: &RawBuffer, arena: ArenaId, range: Range<u64>, seed: u64) {
    commit(buffer, arena, range, seed, Access::ReadWrite);
}

fn commit(buffer: &RawBuffer, arena: ArenaId, range: Range<u64>, seed: u64, access: Access) {
    let region = buffer.range(range.clone());
    let asked = buffer.platform().acquire_in(arena).access(&region, access);
    let mut grants = asked.try_now().expect("free to be written");
    put(&mut grants, buffer, range.start, &bytes(seed, range.clone()));
    grants.release().expect("committed");
}

/// Acquires a range for reading in an arena, and returns its bytes.
pub fn read(buffer: &RawBuffer, arena: ArenaId, range: Range<u64>) -> Vec<u8> {
    let region = buffer.range(range.clone());
    let grants = buffer.platform().acquire_in(arena).read(&region).try_now().expect("free to be read");
    get(&grants, buffer, range)
}

/// Creates a buffer of `len` bytes without contents.
pub fn raw(platform: &Platform, len: u64) -> RawBuffer {
    platform.raw_buffer(len).build().expect("not too large")
}

/// Checks every state invariant, and returns the checked state.
pub fn check(buffer: &RawBuffer) -> BufferState {
    let state = buffer.snapshot();
    if let Err(violation) = state.check_invariants(buffer.platform().routes()) {
        panic!("{violation}\n{state:#?}");
    }
    state
}

/// Returns the range, valid-set and status of every segment.
pub fn segments(buffer: &RawBuffer) -> Vec<(Range<u64>, ArenaSet, Status)> {
    let state = check(buffer);
    state.segments().iter().map(|(span, content)| (span.to_range(), content.valid, content.status)).collect()
}

/// Collects arenas into a set.
pub fn arenas(ids: impl IntoIterator<Item = ArenaId>) -> ArenaSet {
    ids.into_iter().collect()
}

/// Returns the source, destination and range of every copy that starts among `events`.
pub fn copies(events: &[Event]) -> Vec<(Option<ArenaId>, ArenaId, Range<u64>)> {
    let copy = |event: &Event| match event.kind {
        EventKind::CopyStarted { from, to, span, .. } => Some((from, to, span.to_range())),
        _ => None,
    };
    events.iter().filter_map(copy).collect()
}

/// Returns the number of copies of bytes that the platform has counted. Fills and refreshes do not count.
pub fn byte_copies(platform: &Platform) -> u64 {
    platform.counters().transfers().iter().map(|transfer| transfer.copies).sum()
}
