//! Measures one link after the other; the [module above](super) says what is measured.

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
    /// The bytes of a copy.
    bytes: u64,
    /// The number of copies that are timed at least, if there is time.
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
/// The number of size classes that are measured even if there is no time left. A table needs two.
const NEEDED_CLASSES: usize = 2;
/// The number of copies of a class that are enough once the time is used up. The median of fewer says little.
const ENOUGH_COPIES: usize = 3;
/// The size from which copies take turns on several buffers, in bytes.
const LONG_BYTES: u64 = 1 << 20;
/// The number of copies of a long buffer that are not timed, and the bytes that are enough. A mechanism may do more for
/// memory that is used again, such as locking its pages.
const WARM_UPS: u64 = 4;
const WARM_UP_BYTES: u64 = 4 << 20;
/// The most buffers on which the copies of a class take turns: on a machine with very large caches more would take too long.
const MOST_BUFFERS: u64 = 64;
/// The time to measure all links of a platform.
const TOTAL_TIME: Duration = Duration::from_millis(2_000);
/// The least time for one link, on a platform of many links.
const TIME_OF_A_LINK: Duration = Duration::from_millis(400);
/// The part of the free memory that buffers may take.
const PART_OF_FREE: u64 = 4;

/// Measures links by a clock, within the limits of a machine.
pub(super) struct Ruler<'a> {
    /// Returns the time since some fixed moment.
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

/// How bytes come to the source of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The host writes them.
    Host,
    /// The host writes them, and DML brings them to the source.
    Brought,
    /// Nobody writes them, because no link leads from the host to the source: they are declared written.
    Declared,
}

impl<'a> Ruler<'a> {
    /// Creates a ruler for this machine. The clock returns the time since some fixed moment.
    pub(super) fn of_this_machine(clock: &'a dyn Fn() -> Duration) -> Self {
        Self { clock, machine: Machine::here() }
    }

    /// Measures the [links] of a platform.
    pub(super) fn measure(&self, platform: &Platform) -> Vec<Measured> {
        let links = links(platform);
        let end = (self.clock)() + TOTAL_TIME;
        let measured = links.iter().enumerate().map(|(index, &id)| {
            // What one link has not used is for the others.
            let now = (self.clock)();
            let share = end.saturating_sub(now) / (links.len() - index) as u32;
            Measured::new(platform, id, self.table(platform, id, now + share.max(TIME_OF_A_LINK)))
        });
        measured.collect()
    }

    /// Measures one link, from the smallest size class to the largest for which there is time and memory.
    fn table(
        &self,
        platform: &Platform,
        id: LinkId,
        deadline: Duration,
    ) -> Result<LinkTable, CalibrateError> {
        let track = Track::new(platform, id)?;
        let mut classes = Vec::new();
        // The time of the last class, and the bytes that it moved.
        let (mut took_ns, mut moved_bytes) = (0, 1);
        for (index, class) in CLASSES.into_iter().enumerate() {
            let (begun, is_needed) = ((self.clock)(), index < NEEDED_CLASSES);
            // The time of shorter copies is mostly latency, and tells nothing of these.
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

    /// Returns on how many buffers the copies of a class take turns.
    fn buffers(&self, class: Class) -> u64 {
        match class.bytes {
            LONG_BYTES.. => (self.machine.cache_bytes / class.bytes + 1).clamp(2, MOST_BUFFERS),
            _ => 1,
        }
    }

    /// Returns whether the machine can spare the memory for the buffers of a class: at the host, at the source and at the
    /// destination.
    fn fits(&self, class: Class) -> bool {
        let end_bytes = class.bytes.saturating_mul(self.buffers(class));
        end_bytes.saturating_mul(3) <= self.machine.free_bytes / PART_OF_FREE
    }

    /// Returns how many bytes the copies of a class move, those included that are not timed.
    fn moved_bytes(&self, class: Class) -> u64 {
        let buffers = self.buffers(class);
        let timed = class.copies.div_ceil(buffers).saturating_mul(buffers);
        class.bytes.saturating_mul(buffers.saturating_mul(warm_ups(class)).saturating_add(timed))
    }

    /// Returns the times of copies of a class. After the deadline it ends: with one copy on one buffer for a short class,
    /// and with as many as there are for a long one, none if not all buffers could be prepared.
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
            // The first copy of each buffer allocates.
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

    /// Returns how long a kernel at the destination waits for the bytes, or whoever reads them in place.
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

    /// Makes the source the only arena with the latest contents of a buffer, which stay as they are.
    fn declare(&self, buffer: &Buffer<u32>) -> Result<(), AcquireError> {
        self.alone.acquire_in(self.from).read_write(buffer).wait()?.release()
    }

    /// Writes the bytes of a buffer, so that the latest contents are at the source and nowhere else.
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

/// Returns how bytes come to the source of a link.
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

/// Returns whether bytes may cross `way` to the source of `link`. It must move bytes, because what a binding shares would
/// need no copy. No other link may lead away from the source, so that the bytes there can only cross the measured one.
fn is_way(way: &Link, link: Link) -> bool {
    way.allocation == Allocation::Internal && way.from != link.from
}

/// Returns how many copies of each buffer of a class are not timed.
fn warm_ups(class: Class) -> u64 {
    match class.bytes {
        LONG_BYTES.. => WARM_UP_BYTES.div_ceil(class.bytes).min(WARM_UPS),
        _ => 1,
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the median of some times, and at least one: a copy takes time, even where the clock is too coarse to see it.
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
