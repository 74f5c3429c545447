//! Checks of the links that join the arena with others: each moves the bytes that it is asked for, and no
//! others.

use super::Subject;
use super::desk::{assert_same, pattern};
use dml_core::{
    AcquireError, Allocation, ArenaId, HostStaged, Link, LinkId, Platform, PlatformBuilder, RawBuffer,
};
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a buffer: more than two of the pieces in which core stages copies.
const LEN: u64 = (9 << 20) + 13;

/// Every copying link from and to the arena, used alone, moves exactly the requested bytes, whatever their
/// number and offset. The other bytes of the destination stay as they are.
///
/// # Panics
/// When a link breaks this rule.
pub fn links_move_their_bytes_alone(subject: &Subject) {
    let len = [LEN, 100_003, 301].into_iter().find(|len| subject.fits_twice(*len)).unwrap_or(13);
    for (index, link) in subject.platform().links().iter().enumerate() {
        let id = subject.id();
        if (link.from == id || link.to == id) && link.allocation == Allocation::Internal {
            let alone = alone(subject.platform(), LinkId(index as u16));
            Moves::new(&alone, *link, len).check();
        }
    }
}

/// Returns a platform of the same arenas with one of their links. Core's own staged copies lead back.
fn alone(platform: &Platform, id: LinkId) -> Platform {
    let link = platform.links()[usize::from(id.0)];
    let native = |arena: ArenaId| platform.desc(arena).native;
    let back = Link {
        from: link.to,
        to: link.from,
        source_via: native(link.to),
        target_via: native(link.from),
        allocation: Allocation::Internal,
    };
    let mut builder = same_arenas(platform);
    builder.add_link(link, platform.cross_arena(id).clone());
    builder.add_link(back, Arc::new(HostStaged::default()));
    builder.build().expect("its parts are those of a platform")
}

/// Returns a platform of the same devices and arenas, and no link yet.
pub(super) fn same_arenas(platform: &Platform) -> PlatformBuilder {
    let mut builder = PlatformBuilder::default().without_default_links();
    for device in platform.devices() {
        builder.add_device(device.clone());
    }
    for arena in platform.arenas() {
        builder.add_arena(arena.clone());
    }
    builder
}

/// A buffer whose bytes move over one link.
struct Moves<'a> {
    platform: &'a Platform,
    link: Link,
    buffer: RawBuffer,
    model: Vec<u8>,
}

impl<'a> Moves<'a> {
    /// Makes a buffer whose bytes are valid at both ends of the link.
    fn new(platform: &'a Platform, link: Link, len: u64) -> Self {
        let buffer = platform.raw_buffer(len).build().expect("a buffer of a few bytes");
        let mut moves = Self { platform, link, buffer, model: vec![0; len as usize] };
        moves.write(link.to, 0..len as usize, 1);
        assert_same(&moves.read(link.from, 0..len as usize), &moves.model, "core's own copies lead back");
        moves
    }

    fn check(mut self) {
        let end = self.model.len();
        let piece = 4 << 20;
        let ranges = [
            0..1,
            3..4102,
            4096..8192,
            4095..4098,
            piece - 1..piece + 1,
            piece..2 * piece + 5,
            1..end - 1,
            end - 1..end,
            0..end,
        ];
        for (range, seed) in ranges.into_iter().zip(2..) {
            let range = range.start.min(end)..range.end.min(end);
            if range.is_empty() {
                continue;
            }
            self.write(self.link.from, range.clone(), seed);
            let what = self.describe(&range);
            let Some(moved) = self.moved(range.clone()) else { return };
            assert_same(&moved, &self.model[range], format_args!("what arrives of {what}"));
            for at in [self.link.to, self.link.from] {
                let all = self.read(at, 0..end);
                assert_same(&all, &self.model, format_args!("all of arena {at} after a copy of {what}"));
            }
        }
    }

    fn describe(&self, range: &Range<usize>) -> String {
        let mechanism = self.platform.cross_arena(LinkId(0)).name();
        format!("bytes {range:?} from {} to {} by {mechanism}", self.link.from, self.link.to)
    }

    /// Writes a range as a kernel at one end would.
    fn write(&mut self, arena: ArenaId, range: Range<usize>, seed: u64) {
        let region = self.buffer.range(range.start as u64..range.end as u64);
        let mut grants = self.platform.acquire_in(arena).write(&region).wait().expect("nobody else is there");
        let bytes = pattern(seed, range.len());
        grants.write_bytes(&region, &bytes).expect("granted for writing");
        grants.release().expect("committed");
        self.model[range].copy_from_slice(&bytes);
    }

    fn read(&self, arena: ArenaId, range: Range<usize>) -> Vec<u8> {
        let region = self.buffer.range(range.start as u64..range.end as u64);
        let grants = self.platform.acquire_in(arena).read(&region).wait().expect("nobody else is there");
        grants.read_bytes(&region).expect("granted")
    }

    /// Returns a range as it arrives over the link, or `None` if the mechanism offers no such copy.
    fn moved(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let region = self.buffer.range(range.start as u64..range.end as u64);
        let what = self.describe(&range);
        match self.platform.acquire_in(self.link.to).read(&region).wait() {
            Ok(grants) => Some(grants.read_bytes(&region).expect("granted")),
            Err(AcquireError::Unreachable { .. }) => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }
}
