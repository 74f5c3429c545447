//! Measures the latency and bandwidth of each link of a platform.
//!
//! Each link is measured through DML itself, on a platform of the same arenas and only that link. Bytes are declared
//! written at one end and acquired at the other, so the measured time is the time that a kernel there waits.

use dml_core::{
    AcquireError, ArenaId, ConfigError, DeviceId, LinkSpeed, Platform, PlatformBuilder, RawBuffer,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The size of the copy that shows the bandwidth, in bytes.
const LONG_BYTES: u64 = 16 << 20;
/// The size of the copy that shows the latency, in bytes.
const SHORT_BYTES: u64 = 4;
/// The number of timed copies of each size; the median counts.
const RUNS: usize = 7;

/// The measurement of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The source arena.
    pub from: ArenaId,
    /// The destination arena.
    pub to: ArenaId,
    /// The mechanism's name.
    pub mechanism: String,
    /// The link's latency and bandwidth, or why it could not be measured.
    pub speed: Result<LinkSpeed, CalibrateError>,
}

/// Why a link could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// A platform with only this link cannot be made.
    #[error(transparent)]
    Platform(#[from] ConfigError),
    /// Copying over the link failed.
    #[error(transparent)]
    Copy(#[from] AcquireError),
}

/// Measures every link of a platform whose ends are their devices' home arenas, in the order of the links.
///
/// # Shape and units
/// The latency is the median time of a copy of 4 bytes. The bandwidth comes from the time of 16 MiB, less the latency.
/// Both include a change of map state where the mechanism needs one.
///
/// # Complexity
/// Some 130 MiB are copied over each link.
#[must_use]
pub fn measure(platform: &Platform) -> Vec<Measured> {
    let at_home = |arena: ArenaId| platform.home(platform.arena(arena).desc().native) == Some(arena);
    let links = platform.links().iter().enumerate();
    let links = links.map(|(index, link)| (dml_core::LinkId(index as u16), link));
    links
        .filter(|(_, link)| at_home(link.from) && at_home(link.to))
        .map(|(id, link)| Measured {
            from: link.from,
            to: link.to,
            mechanism: platform.cross_arena(id).name().to_owned(),
            speed: measure_one(platform, id),
        })
        .collect()
}

fn measure_one(platform: &Platform, id: dml_core::LinkId) -> Result<LinkSpeed, CalibrateError> {
    let link = platform.links()[usize::from(id.0)];
    let mut builder = PlatformBuilder::default().without_default_links();
    for device in platform.devices() {
        builder.add_device(device.clone());
    }
    for arena in platform.arenas() {
        builder.add_arena(Arc::clone(arena));
    }
    builder.add_link(link, Arc::clone(platform.cross_arena(id)));
    let alone = builder.build()?;
    let native = |arena: ArenaId| alone.arena(arena).desc().native;
    let time = |bytes| median_copy(&alone, native(link.from), native(link.to), bytes);
    let (short, long) = (time(SHORT_BYTES)?, time(LONG_BYTES)?);
    let moving = long.saturating_sub(short).as_nanos().max(1);
    let bytes_per_s = u128::from(LONG_BYTES - SHORT_BYTES) * 1_000_000_000 / moving;
    Ok(LinkSpeed {
        latency_ns: u64::try_from(short.as_nanos()).unwrap_or(u64::MAX),
        bytes_per_s: u64::try_from(bytes_per_s).unwrap_or(u64::MAX),
        remap_ns: 0,
    })
}

fn median_copy(
    platform: &Platform,
    from: DeviceId,
    to: DeviceId,
    bytes: u64,
) -> Result<Duration, CalibrateError> {
    let buffer: RawBuffer = platform.raw_buffer(bytes).build()?;
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..=RUNS {
        platform.acquire(from).write(&buffer).wait()?.release()?;
        let begun = Instant::now();
        let read = platform.acquire(to).read(&buffer).wait()?;
        times.push(begun.elapsed());
        drop(read);
    }
    // The first copy also allocates.
    times.remove(0);
    times.sort_unstable();
    Ok(times[RUNS / 2])
}
