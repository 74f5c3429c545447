//! Measures one link after the other. The [parent module](super) defines what is measured.

use super::machine::Machine;
use super::table::scaled;
use super::{CalibrateError, LinkTable, Measured, SizeClass, links};
use dml_core::{
    AcquireError, AllocError, Allocation, ArenaId, Buffer, Link, LinkId, Platform, PlatformBuilder,
};
use std::sync::Arc;
use std::time::Duration;

/// A size class to measure.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The size of a copy, in bytes.
    bytes: u64,
    /// The minimum number of timed copies, if there is time.
    copies: u64,
}

/// The size classes, the smallest first.
const CLASSES: [Class; 5] = [
    Class { bytes: 4, copies: 31 },
    Class { bytes: 64 << 10, copies: 31 },
    Class { bytes: 1 << 20, copies: 31 },
    Class { bytes: 16 << 20, copies: 6 },
    Class { bytes: 64 << 20, copies: 4 },
];
/// Number of size classes that are measured even if no time is left. A table needs two.
const NEEDED_CLASSES: usize = 2;
/// Minimum number of copies of a class once the time is up. The median of fewer is unreliable.
const ENOUGH_COPIES: usize = 3;
/// Size from which copies cycle through several buffers, in bytes.
const LONG_BYTES: u64 = 1 << 20;
/// Maximum number of untimed copies of a long buffer.
///
/// A mechanism may do more for memory that is used again, such as lock its pages.
const WARM_UPS: u64 = 4;
/// Bytes of untimed copies that are enough for a long buffer.
const WARM_UP_BYTES: u64 = 4 << 20;
/// Maximum number of buffers of a class. On a machine with very large caches, more would take too long.
const MOST_BUFFERS: u64 = 64;
/// Time to measure all links of a platform.
const TOTAL_TIME: Duration = Duration::from_millis(2_000);
/// Minimum time for one link, on a platform of many links.
const TIME_OF_A_LINK: Duration = Duration::from_millis(400);
/// Divisor of the free memory that yields the part that buffers may take.
const PART_OF_FREE: u64 = 4;

/// Measures links by a clock, within the limits of a machine.
pub(super) struct Ruler<'a> {
    /// Returns the time since a fixed moment.
    clock: &'a dyn Fn() -> Duration,
    machine: Machine,
}

/// A link on a platform on which no other link leads away from its source.
struct Track {
    alone: Platform,
    from: ArenaId,
    to: ArenaId,
    source: Source,
}

/// How the source of a link gets its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The host writes them.
    Host,
    /// The host writes them, and DML copies them to the source.
    Brought,
    /// They are declared written, because no link leads from the host to the source.
    Declared,
}

impl<'a> Ruler<'a> {
    /// Creates a ruler for this machine. The clock returns the time since a fixed moment.
    pub(super) fn of_this_machine(clock: &'a dyn Fn() -> Duration) -> Self {
        Self { clock, machine: Machine::here() }
    }

    /// Measures the [links] of a platform.
    pub(super) fn measure(&self, platform: &Platform) -> Vec<Measured> {
        let links = links(platform);
        let end = (self.clock)() + TOTAL_TIME;
        let measured = links.iter().enumerate().map(|(index, &id)| {
            // Time that one link leaves unused goes to the others.
            let now = (self.clock)();
            let share = end.saturating_sub(now) / (links.len() - index) as u32;
            Measured::new(platform, id, self.table(platform, id, now + share.max(TIME_OF_A_LINK)))
        });
        measured.collect()
    }

    /// Measures one link, from the smallest size class to the largest that time and memory allow.
    fn table(
        &self,
        platform: &Platform,
        id: LinkId,
        deadline: Duration,
    ) -> Result<LinkTable, CalibrateError> {
        let track = Track::new(platform, id)?;
        let mut classes = Vec::new();
        // The duration of the last class in nanoseconds, and the bytes that it moved.
        let (mut took_ns, mut moved_bytes) = (0, 1);
        for (index, class) in CLASSES.into_iter().enumerate() {
            let (begun, is_needed) = ((self.clock)(), index < NEEDED_CLASSES);
            // Shorter copies take mostly latency, which does not scale with the size.
            let expected_ns = match class.bytes > LONG_BYTES {
                true => scaled(took_ns, self.moved_bytes(class), moved_bytes),
                false => took_ns,
            };
            let is_too_late = begun.saturating_add(Duration::from_nanos(expected_ns)) > deadline;
            if !is_needed && (is_too_late || !self.fits(class)) {
                break;
            }
            let times = match self.times(&track, class, deadline) {
                Err(CalibrateError::Copy(error)) if !is_needed && is_for_want_of_memory(&error) => break,
                times => times?,
            };
            if !is_needed && times.len() < ENOUGH_COPIES {
                break;
            }
            classes.push(SizeClass { bytes: class.bytes, copy_ns: median_ns(times) });
            (took_ns, moved_bytes) = (ns((self.clock)().saturating_sub(begun)), self.moved_bytes(class));
        }
        Ok(LinkTable::new(classes)?)
    }

    /// Returns the number of buffers that the copies of a class cycle through.
    fn buffers(&self, class: Class) -> u64 {
        match class.bytes {
            LONG_BYTES.. => (self.machine.cache_bytes / class.bytes + 1).clamp(2, MOST_BUFFERS),
            _ => 1,
        }
    }

    /// Returns whether there is memory for the buffers of a class at the host, the source and the
    /// destination.
    fn fits(&self, class: Class) -> bool {
        let end_bytes = class.bytes.saturating_mul(self.buffers(class));
        end_bytes.saturating_mul(3) <= self.machine.free_bytes / PART_OF_FREE
    }

    /// Returns the number of bytes that the copies of a class move, untimed copies included.
    fn moved_bytes(&self, class: Class) -> u64 {
        let buffers = self.buffers(class);
        let timed = class.copies.div_ceil(buffers).saturating_mul(buffers);
        class.bytes.saturating_mul(buffers.saturating_mul(warm_ups(class)).saturating_add(timed))
    }

    /// Returns the times of copies of a class. After the deadline, it stops with the cycles done so far, at
    /// least one. It returns no times if not all buffers could be prepared.
    fn times(
        &self,
        track: &Track,
        class: Class,
        deadline: Duration,
    ) -> Result<Vec<Duration>, CalibrateError> {
        let is_late = || (self.clock)() > deadline;
        let (mut turn, mut times) = (Vec::new(), Vec::new());
        for seed in 0..self.buffers(class) {
            if !turn.is_empty() && is_late() {
                return Ok(times);
            }
            // The first copy of each buffer allocates storage.
            let buffer = track.alone.buffer::<u32>(class.bytes / size_of::<u32>() as u64).build()?;
            track.write(&buffer, seed as u32)?;
            self.copy(track, &buffer)?;
            for _ in 1..warm_ups(class) {
                track.declare(&buffer)?;
                self.copy(track, &buffer)?;
            }
            turn.push(buffer);
        }
        while (times.len() as u64) < class.copies && (times.is_empty() || !is_late()) {
            for buffer in &turn {
                track.write(buffer, times.len() as u32)?;
            }
            for buffer in &turn {
                times.push(self.copy(track, buffer)?);
            }
        }
        Ok(times)
    }

    /// Copies a buffer. Returns how long a kernel at the destination waits for the bytes, or a reader that
    /// uses them in place.
    fn copy(&self, track: &Track, buffer: &Buffer<u32>) -> Result<Duration, CalibrateError> {
        let begun = (self.clock)();
        let read = track.alone.acquire_in(track.to).read(buffer).wait()?;
        let took = (self.clock)().saturating_sub(begun);
        drop(read);
        Ok(took)
    }
}

impl Track {
    fn new(platform: &Platform, id: LinkId) -> Result<Self, CalibrateError> {
        let link = platform.links()[usize::from(id.0)];
        let mut builder = PlatformBuilder::default().without_default_links();
        for device in platform.devices() {
            builder.add_device(device.clone());
        }
        for arena in platform.arenas() {
            builder.add_arena(Arc::clone(arena));
        }
        builder.add_link(link, Arc::clone(platform.cross_arena(id)));
        let source = source(platform, link);
        if source == Source::Brought {
            for (index, way) in platform.links().iter().enumerate().filter(|(_, way)| is_way(way, link)) {
                builder.add_link(*way, Arc::clone(platform.cross_arena(LinkId(index as u16))));
            }
        }
        Ok(Self { alone: builder.build()?, from: link.from, to: link.to, source })
    }

    /// Makes the source the only arena with the latest contents of a buffer, without changing them.
    fn declare(&self, buffer: &Buffer<u32>) -> Result<(), AcquireError> {
        self.alone.acquire_in(self.from).read_write(buffer).wait()?.release()
    }

    /// Writes a buffer, so that only the source holds the latest contents.
    fn write(&self, buffer: &Buffer<u32>, seed: u32) -> Result<(), AcquireError> {
        if self.source == Source::Declared {
            return self.alone.acquire_in(self.from).write(buffer).wait()?.release();
        }
        let mut view = buffer.write()?;
        let words: &mut [u32] = &mut view;
        for (index, word) in words.iter_mut().enumerate() {
            *word = (index as u32).wrapping_mul(0x9E37_79B9) ^ seed;
        }
        view.release()?;
        match self.source {
            Source::Brought => self.declare(buffer),
            _ => Ok(()),
        }
    }
}

/// Returns how the source of a link gets its bytes.
fn source(platform: &Platform, link: Link) -> Source {
    let Some(home) = platform.host().and_then(|host| platform.home(host)) else { return Source::Declared };
    if link.from == home {
        return Source::Host;
    }
    let mut reached: Vec<ArenaId> = vec![home];
    let mut next = 0;
    while let Some(&at) = reached.get(next) {
        next += 1;
        for way in platform.links().iter().filter(|way| way.from == at && is_way(way, link)) {
            if !reached.contains(&way.to) {
                reached.push(way.to);
            }
        }
    }
    if reached.contains(&link.from) { Source::Brought } else { Source::Declared }
}

/// Returns whether bytes may cross `way` to reach the source of `link`.
///
/// `way` must move bytes, because storage shared by a binding would need no copy. It must not lead away from
/// the source, so that the bytes there can only cross the measured link.
fn is_way(way: &Link, link: Link) -> bool {
    way.allocation == Allocation::Internal && way.from != link.from
}

/// Returns the number of untimed copies of each buffer of a class.
fn warm_ups(class: Class) -> u64 {
    match class.bytes {
        LONG_BYTES.. => WARM_UP_BYTES.div_ceil(class.bytes).min(WARM_UPS),
        _ => 1,
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the median in nanoseconds, at least 1: the clock may be too coarse to see a short copy.
fn median_ns(mut times: Vec<Duration>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(1, |&median| ns(median).max(1))
}

fn is_for_want_of_memory(error: &AcquireError) -> bool {
    let AcquireError::Alloc { cause, .. } = error else { return false };
    matches!(cause, AllocError::OutOfMemory { .. } | AllocError::TooLarge { .. })
}

#[cfg(test)]
mod tests;
