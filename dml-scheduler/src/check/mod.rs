//! Finds wrong footprints, by running packages on guarded copies.
//!
//! ```text
//!   copy of each buffer    noise noise |latest contents, where the package reads| noise noise
//!                                              │ launch, on the device
//!                                              ▼
//!   outside what it writes  as before?   no ─▶ written outside
//!   what it writes          the same as with other noise?   no ─▶ read outside, or not all overwritten
//! ```
//! Packages of several sizes and at several places are run, each three times: twice with the same noise, and once with all bits
//! of the noise changed. A package that reads outside its footprint is then run with less and less other noise, until the first
//! byte that it reads is found.

use crate::guard::guarded;
use crate::kernel::{Argument, FootprintError, Kernel, KernelError};
use crate::package::{Package, UnitId};
use crate::report::RunError;
use dml_core::{
    Access, AcquireError, BufferId, ConfigError, DeviceId, Launch, Launcher, Platform, RawBuffer,
};
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// How a kernel departs from its footprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It writes a byte that the package does not write by its footprints.
    WritesOutside,
    /// It reads a byte that the package does not read by its footprints.
    ReadsOutside,
    /// It leaves a byte as it was that it was to overwrite.
    LeavesOut,
    /// It writes other contents when it is run again with the same ones, so that nothing can be said of it.
    Differs,
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WritesOutside => "is written, and no footprint says so",
            Self::ReadsOutside => "is read, and no footprint says so",
            Self::LeavesOut => "is not overwritten, although the footprint says so",
            Self::Differs => "differs from run to run with the same contents",
        })
    }
}

/// How long the check waits for a buffer that somebody else uses.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Why the footprints of a kernel are not confirmed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The kernel departs from a footprint.
    #[error("kernel {kernel} on {device}, argument {argument}, items {items:?}: byte {byte} {how}")]
    Wrong {
        /// The kernel's name.
        kernel: String,
        /// The device's name.
        device: String,
        /// The index among the kernel's buffers, from 0. Of several for one buffer, the one whose access fits.
        argument: usize,
        /// The items of the package.
        items: Range<u64>,
        /// The first wrong byte of the argument's buffer.
        byte: u64,
        /// What is wrong.
        how: Departure,
    },
    /// The device does not run the kernel by a launcher. Other variants cannot be given copies of their buffers.
    #[error("kernel {kernel} has no launcher for device {device}")]
    NoLauncher {
        /// The kernel's name.
        kernel: String,
        /// The device's id.
        device: DeviceId,
    },
    /// A run would be refused: the buffers do not have bytes for so many items, the calling thread holds one of them, arguments do not fit
    /// a launcher, or the kernel was made for another platform.
    #[error(transparent)]
    Refused(RunError),
    /// A footprint cannot be used.
    #[error(transparent)]
    Footprint(#[from] FootprintError),
    /// A package failed.
    #[error("kernel {kernel}, items {items:?}: {cause}")]
    Launch {
        /// The kernel's name.
        kernel: String,
        /// The items of the package.
        items: Range<u64>,
        /// What the launcher said.
        cause: KernelError,
    },
    /// A copy of a buffer could not be made.
    #[error(transparent)]
    Copy(#[from] ConfigError),
    /// A buffer could not be read, or a copy not be used.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
}

/// Runs packages of a kernel on guarded copies of its buffers, and checks that they touch what the footprints say. Returns
/// how many packages were run.
///
/// The kernel's own buffers are read, and not changed. Contents that cannot be read count as any others. A byte that a kernel
/// reads without any effect on its results is not found. A buffer that somebody else uses is waited for, at most five seconds.
///
/// # Errors
/// [`CheckError::Wrong`] for the first departure; the other variants if the check cannot be made.
pub fn check_footprints(
    platform: &Platform,
    kernel: &Kernel,
    items: u64,
    device: DeviceId,
) -> Result<u64, CheckError> {
    let launcher = kernel
        .launcher_for(device)
        .ok_or_else(|| CheckError::NoLauncher { kernel: kernel.name().to_owned(), device })?;
    let checked = kernel.check_platform(platform).and_then(|()| kernel.check_launchers(platform));
    checked.and_then(|()| kernel.check_items(items)).map_err(CheckError::Refused)?;
    let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
    let mut copies: Vec<Copied> = Vec::new();
    for (index, argument) in kernel.arguments().iter().enumerate() {
        let of = argument.buffer();
        if !copies.iter().any(|copy| copy.of == of.id()) {
            copies.push(Copied::new(platform, host, of, || {
                CheckError::Refused(RunError::HeldByCaller { kernel: kernel.name().to_owned(), index })
            })?);
        }
    }
    let own = |argument: &Argument| {
        let found = copies.iter().find(|copy| copy.of == argument.buffer().id());
        let copy = &found.expect("each buffer has been copied").copy;
        Argument::part(copy, argument.access(), argument.footprint().clone())
    };
    let arguments = kernel.arguments().iter().map(own).collect();
    let check = Check { platform, kernel, launcher: &**launcher, device, host, copies, arguments };
    let packages = packages(kernel.local_size().max(1), items);
    for (index, items) in (0..).zip(&packages) {
        check.package(&Package::new(items.clone(), UnitId(0), index))?;
    }
    Ok(packages.len() as u64)
}

/// The packages to be run: of one group, of several, and of all items; at the start, within, and at the end.
fn packages(local: u64, items: u64) -> Vec<Range<u64>> {
    let groups = items.div_ceil(local);
    let package = |first: u64, end: u64| (first * local).min(items)..end.saturating_mul(local).min(items);
    let mut packages = vec![
        package(0, 1),
        package(1, 2),
        package(groups / 2, groups / 2 + 1),
        package(groups / 3, groups / 3 + 3),
        package(groups.saturating_sub(1), groups),
        package(1, groups),
        package(0, groups),
    ];
    packages.retain(|package| !package.is_empty());
    packages.sort_by_key(|package| (package.end - package.start, package.start));
    packages.dedup();
    packages
}

/// The copy of a buffer that packages are run on.
struct Copied {
    of: BufferId,
    copy: RawBuffer,
    latest: Vec<u8>,
}

impl Copied {
    /// Copies a buffer. `held` is the error where the calling thread is in the way.
    fn new(
        platform: &Platform,
        host: DeviceId,
        of: &RawBuffer,
        held: impl Fn() -> CheckError,
    ) -> Result<Self, CheckError> {
        let latest = match of.is_readable(0..of.len())? {
            true => {
                let grants = match platform.acquire(host).read(of).try_now() {
                    Err(AcquireError::Busy { .. }) if of.is_held_here() => return Err(held()),
                    Err(AcquireError::Busy { .. }) => {
                        platform.acquire(host).read(of).wait_timeout(LONGEST_WAIT)?
                    }
                    granted => granted?,
                };
                let bytes = grants.read_bytes(of)?;
                grants.release()?;
                bytes
            }
            false => (0..of.len()).map(|byte| noise(of.len(), byte)).collect(),
        };
        let copy = platform.raw_buffer(of.len()).label(format!("copy of {}", of.name())).build()?;
        Ok(Self { of: of.id(), copy, latest })
    }
}

/// Returns bytes without a pattern that a kernel could know.
fn noise(seed: u64, byte: u64) -> u8 {
    let mixed = (byte ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
}

/// Which noise is changed in a run: that of one copy, or of all, below a byte.
#[derive(Clone, Copy)]
struct Changed {
    copy: Option<usize>,
    below: u64,
}

const NONE: Changed = Changed { copy: None, below: 0 };
const ALL: Changed = Changed { copy: None, below: u64::MAX };

/// What a run found and left, copy by copy.
struct Run {
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
}

struct Check<'a> {
    platform: &'a Platform,
    kernel: &'a Kernel,
    launcher: &'a dyn Launcher,
    device: DeviceId,
    host: DeviceId,
    copies: Vec<Copied>,
    /// The kernel's buffers, with the copies in their place.
    arguments: Vec<Argument>,
}

impl Check<'_> {
    fn package(&self, package: &Package) -> Result<(), CheckError> {
        let ranges: Vec<_> =
            self.kernel.ranges(package.range())?.into_iter().map(|(_, ranges)| ranges).collect();
        let run = |changed| self.run(package, &ranges, changed);
        let wrong = |argument, byte, how| CheckError::Wrong {
            kernel: self.kernel.name().to_owned(),
            device: self.platform.devices()[usize::from(self.device.0)].name.to_string(),
            argument,
            items: package.range(),
            byte,
            how,
        };
        let (first, again, other) = (run(NONE)?, run(NONE)?, run(ALL)?);
        for (index, Copied { copy, .. }) in self.copies.iter().enumerate() {
            let written = self.covered(copy, &ranges, Access::writes);
            for one in [&first, &other] {
                let outside = differences(&one.before[index], &one.after[index]);
                if let Some(byte) = outside.into_iter().find(|byte| !is_in(&written, *byte)) {
                    return Err(wrong(self.named(copy, Access::writes), byte, Departure::WritesOutside));
                }
            }
            let writer = self.named(copy, Access::writes);
            if let Some(&byte) = differences(&first.after[index], &again.after[index]).first() {
                return Err(wrong(writer, byte, Departure::Differs));
            }
            let changed = differences(&first.after[index], &other.after[index]);
            if let Some(byte) = changed.into_iter().find(|byte| is_in(&written, *byte)) {
                let at = byte as usize;
                if [&first, &other].iter().all(|run| run.before[index][at] == run.after[index][at]) {
                    return Err(wrong(writer, byte, Departure::LeavesOut));
                }
                let (argument, byte) = self.first_read(package, &ranges, &first)?.unwrap_or((writer, byte));
                return Err(wrong(argument, byte, Departure::ReadsOutside));
            }
        }
        Ok(())
    }

    /// Returns the first byte outside the footprints that has an effect on what a package writes, and its argument.
    fn first_read(
        &self,
        package: &Package,
        ranges: &[Vec<Range<u64>>],
        first: &Run,
    ) -> Result<Option<(usize, u64)>, CheckError> {
        for (index, Copied { copy, .. }) in self.copies.iter().enumerate() {
            let has_effect = |below: u64| -> Result<bool, CheckError> {
                let run = self.run(package, ranges, Changed { copy: Some(index), below })?;
                Ok(self.copies.iter().enumerate().any(|(index, Copied { copy, .. })| {
                    let written = self.covered(copy, ranges, Access::writes);
                    let changed = differences(&first.after[index], &run.after[index]);
                    // A byte of noise that is left as it was is no result.
                    let is_result = |byte: u64| {
                        let at = byte as usize;
                        is_in(&written, byte)
                            && (first.before[index][at] != first.after[index][at]
                                || run.before[index][at] != run.after[index][at])
                    };
                    changed.into_iter().any(is_result)
                }))
            };
            if !has_effect(copy.len())? {
                continue;
            }
            // The noise below `low` has no effect, that below `high` has.
            let (mut low, mut high) = (0, copy.len());
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if has_effect(middle)? { high = middle } else { low = middle }
            }
            return Ok(Some((self.named(copy, Access::reads), low)));
        }
        Ok(None)
    }

    /// The index of an argument for a copy, if possible one with the access.
    fn named(&self, copy: &RawBuffer, access: impl Fn(Access) -> bool) -> usize {
        let of = |argument: &Argument| argument.buffer() == copy;
        let fitting = self.arguments.iter().position(|argument| of(argument) && access(argument.access()));
        fitting.or_else(|| self.arguments.iter().position(of)).unwrap_or_default()
    }

    /// The ranges of a copy that some arguments have.
    fn covered(
        &self,
        copy: &RawBuffer,
        ranges: &[Vec<Range<u64>>],
        access: impl Fn(Access) -> bool,
    ) -> Vec<Range<u64>> {
        let of = self.arguments.iter().zip(ranges);
        let of = of.filter(|(argument, _)| argument.buffer() == copy && access(argument.access()));
        of.flat_map(|(_, ranges)| ranges.iter().cloned()).collect()
    }

    /// Runs a package on the copies.
    fn run(
        &self,
        package: &Package,
        ranges: &[Vec<Range<u64>>],
        changed: Changed,
    ) -> Result<Run, CheckError> {
        let mut acquire = self.platform.acquire(self.device);
        for (argument, ranges) in self.arguments.iter().zip(ranges) {
            // Noise is brought also to where it is to be overwritten.
            let access = if argument.access().writes() { Access::ReadWrite } else { Access::ReadOnly };
            for bytes in ranges {
                acquire = acquire.access(&argument.buffer().range(bytes.clone()), access);
            }
        }
        let mut before = Vec::with_capacity(self.copies.len());
        for (index, Copied { copy, latest, .. }) in self.copies.iter().enumerate() {
            let read = self.covered(copy, ranges, Access::reads);
            let contents = self.contents(latest, &read, changed, index);
            let mut grants = self.platform.acquire(self.host).write(copy).wait()?;
            grants.write_bytes(copy, &contents)?;
            grants.release()?;
            before.push(contents);
            // What no footprint names is granted too, so that it can be looked at where the kernel has run.
            for bytes in gaps(self.covered(copy, ranges, |_| true), copy.len()) {
                acquire = acquire.read_write(&copy.range(bytes));
            }
        }
        let failed = |cause| CheckError::Launch {
            kernel: self.kernel.name().to_owned(),
            items: package.range(),
            cause,
        };
        let items = package.range();
        let mut grants = acquire.wait()?;
        let launched = guarded(|| -> Result<(), KernelError> {
            let arguments = self.kernel.launch_args(package, &self.arguments)?;
            let launch = Launch::new(&items, self.kernel.shape(), &arguments);
            self.launcher.launch(&launch, &mut grants)?.wait()?;
            Ok(())
        });
        launched
            .unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()))
            .map_err(failed)?;
        let after = self.copies.iter().map(|Copied { copy, .. }| grants.read_bytes(copy));
        let after = after.collect::<Result<_, _>>()?;
        grants.release()?;
        Ok(Run { before, after })
    }

    /// The contents of a copy before a run.
    fn contents(&self, latest: &[u8], read: &[Range<u64>], changed: Changed, index: usize) -> Vec<u8> {
        let is_changed = changed.copy.is_none_or(|copy| copy == index);
        let byte = |byte: u64| {
            let noise = noise(index as u64 + 1, byte);
            if is_changed && byte < changed.below { !noise } else { noise }
        };
        let mut contents: Vec<u8> = (0..latest.len() as u64).map(byte).collect();
        for bytes in read {
            let bytes = bytes.start as usize..bytes.end as usize;
            contents[bytes.clone()].copy_from_slice(&latest[bytes]);
        }
        contents
    }
}

fn differences(one: &[u8], other: &[u8]) -> Vec<u64> {
    (0..).zip(one.iter().zip(other)).filter(|(_, (one, other))| one != other).map(|(byte, _)| byte).collect()
}

fn is_in(ranges: &[Range<u64>], byte: u64) -> bool {
    ranges.iter().any(|range| range.contains(&byte))
}

/// Returns what is between some ranges of a buffer.
fn gaps(mut ranges: Vec<Range<u64>>, len: u64) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut gaps = Vec::new();
    let mut next = 0;
    for range in ranges {
        if range.start > next {
            gaps.push(next..range.start);
        }
        next = next.max(range.end);
    }
    if next < len {
        gaps.push(next..len);
    }
    gaps
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is tested")]
mod tests {
    use super::*;

    #[test]
    fn packages_are_of_whole_groups_and_of_several_sizes() {
        assert_eq!(packages(4, 0), [0..0; 0]);
        assert_eq!(packages(4, 3), [0..3]);
        let several = packages(4, 41);
        assert!(
            several
                .iter()
                .all(|package| package.start % 4 == 0 && (package.end % 4 == 0 || package.end == 41))
        );
        assert!(several.contains(&(0..4)) && several.contains(&(40..41)) && several.contains(&(0..41)));
        assert!(several.contains(&(4..41)) && several.contains(&(12..24)) && several.contains(&(20..24)));
    }

    #[test]
    fn gaps_are_what_ranges_leave() {
        assert_eq!(gaps(vec![5..7, 1..3, 2..4, 9..9], 10), [0..1, 4..5, 7..9, 9..10]);
        assert_eq!(gaps(vec![0..10], 10), [0..0; 0]);
        assert_eq!(gaps(Vec::new(), 3), [0..3]);
    }

    #[test]
    fn noise_depends_on_its_place_and_its_seed() {
        let some = |seed| (0..64).map(|byte| noise(seed, byte)).collect::<Vec<_>>();
        assert_ne!(some(1), some(2));
        assert!(some(1).windows(8).all(|part| part.iter().any(|byte| *byte != part[0])));
    }
}
