//! Measures one link after the other; the [module above](super) says what is measured.

use super::machine::Machine;
use super::{CalibrateError, LinkTable, Measured, SizeClass, links};
use dml_core::{
    AcquireError, AllocError, Allocation, ArenaId, Buffer, DeviceId, Link, LinkId, Platform, PlatformBuilder,
};
use std::sync::Arc;
use std::time::Duration;

/// The size classes: the bytes of a copy, and how many copies are timed at least.
const CLASSES: [(u64, usize); 5] = [(4, 31), (64 << 10, 31), (1 << 20, 31), (16 << 20, 8), (64 << 20, 4)];
/// The number of size classes that are measured even if there is no time left. A table needs two.
const NEEDED_CLASSES: usize = 2;
/// The size from which copies take turns on several buffers, in bytes.
const LONG_BYTES: u64 = 1 << 20;
/// The time to measure all links of a platform.
const TOTAL_TIME: Duration = Duration::from_millis(2_000);
/// The least time for one link, on a platform of many links.
const TIME_OF_A_LINK: Duration = Duration::from_millis(150);
/// The part of the free memory that buffers may take.
const PART_OF_FREE: u64 = 4;

/// Measures links by a clock, within the limits of a machine.
pub(super) struct Ruler<'a> {
    /// Returns the time since some fixed moment.
    clock: &'a dyn Fn() -> Duration,
    machine: Machine,
}

/// A link on a platform on which nothing else leads from its source to its destination.
struct Track {
    alone: Platform,
    from: DeviceId,
    to: DeviceId,
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

    /// Measures every link between the home arenas of two devices.
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
        let mut expected = Duration::ZERO;
        for (index, (bytes, copies)) in CLASSES.into_iter().enumerate() {
            let begun = (self.clock)();
            let buffers = self.buffers(bytes);
            let is_needed = index < NEEDED_CLASSES;
            if !is_needed && (begun + expected > deadline || !self.fits(bytes, buffers)) {
                break;
            }
            match self.class(&track, bytes, buffers, copies, deadline) {
                Ok(copy_ns) => classes.push(SizeClass { bytes, copy_ns }),
                Err(CalibrateError::Copy(error)) if !is_needed && is_for_want_of_memory(&error) => break,
                Err(error) => return Err(error),
            }
            // Classes from 1 MiB on move about as many bytes each.
            expected = if bytes >= LONG_BYTES { (self.clock)() - begun } else { Duration::ZERO };
        }
        Ok(LinkTable::new(classes)?)
    }

    /// Returns on how many buffers copies of this size take turns.
    fn buffers(&self, bytes: u64) -> u64 {
        match bytes {
            LONG_BYTES.. => self.machine.cache_bytes.saturating_mul(2).div_ceil(bytes) + 1,
            _ => 1,
        }
    }

    /// Returns whether the machine can spare the memory for the buffers: at the host, at the source and at the
    /// destination.
    fn fits(&self, bytes: u64, buffers: u64) -> bool {
        bytes.saturating_mul(buffers).saturating_mul(3) <= self.machine.free_bytes / PART_OF_FREE
    }

    /// Returns the median time of a copy of this size, in nanoseconds. After the deadline one copy is enough.
    fn class(
        &self,
        track: &Track,
        bytes: u64,
        buffers: u64,
        copies: usize,
        deadline: Duration,
    ) -> Result<u64, CalibrateError> {
        let is_late = || (self.clock)() > deadline;
        let mut turn = Vec::new();
        for seed in 0..buffers {
            // The first copy of each buffer allocates.
            let buffer = track.alone.buffer::<u32>(bytes / size_of::<u32>() as u64).build()?;
            track.write(&buffer, seed as u32)?;
            self.copy(track, &buffer)?;
            turn.push(buffer);
            if is_late() {
                break;
            }
        }
        let mut times = Vec::new();
        while times.len() < copies && (times.is_empty() || !is_late()) {
            for buffer in &turn {
                track.write(buffer, times.len() as u32)?;
            }
            for buffer in &turn {
                times.push(self.copy(track, buffer)?);
                if is_late() {
                    break;
                }
            }
        }
        times.sort_unstable();
        let median = times[times.len() / 2];
        // A copy takes time, even where the clock is too coarse to see it.
        Ok(u64::try_from(median.as_nanos()).unwrap_or(u64::MAX).max(1))
    }

    /// Returns how long a kernel at the destination waits for the bytes.
    fn copy(&self, track: &Track, buffer: &Buffer<u32>) -> Result<Duration, CalibrateError> {
        let begun = (self.clock)();
        let read = track.alone.acquire(track.to).read(buffer).wait()?;
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
        let from = platform.desc(link.from).native;
        let source = source(platform, link);
        if source == Source::Brought {
            for (index, way) in platform.links().iter().enumerate().filter(|(_, way)| is_way(way, link)) {
                builder.add_link(*way, Arc::clone(platform.cross_arena(LinkId(index as u16))));
            }
        }
        Ok(Self { alone: builder.build()?, from, to: platform.desc(link.to).native, source })
    }

    /// Writes the bytes of a buffer, so that the latest contents are at the source and nowhere else.
    fn write(&self, buffer: &Buffer<u32>, seed: u32) -> Result<(), AcquireError> {
        if self.source == Source::Declared {
            return self.alone.acquire(self.from).write(buffer).wait()?.release();
        }
        let mut view = buffer.write()?;
        let words: &mut [u32] = &mut view;
        for (index, word) in words.iter_mut().enumerate() {
            *word = (index as u32).wrapping_mul(0x9E37_79B9) ^ seed;
        }
        view.release()?;
        match self.source {
            // A grant for writing makes the source the only arena with the latest contents.
            Source::Brought => self.alone.acquire(self.from).read_write(buffer).wait()?.release(),
            _ => Ok(()),
        }
    }
}

/// Returns how bytes come to the source of a link.
fn source(platform: &Platform, link: Link) -> Source {
    let Some(host) = platform.host() else { return Source::Declared };
    if platform.desc(link.from).native == host {
        return Source::Host;
    }
    let Some(home) = platform.home(host) else { return Source::Declared };
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
/// need no copy, and it must not be another way to the destination.
fn is_way(way: &Link, link: Link) -> bool {
    way.allocation == Allocation::Internal && way.from != link.from && way.to != link.to
}

fn is_for_want_of_memory(error: &AcquireError) -> bool {
    let AcquireError::Alloc { cause, .. } = error else { return false };
    matches!(cause, AllocError::OutOfMemory { .. } | AllocError::TooLarge { .. })
}

#[cfg(test)]
mod tests;
