//! Finds wrong footprints by running packages on modified copies of the buffers.
//!
//! ```text
//!   copy of a buffer   moved values | latest contents, where the package reads | moved values
//!                      (noise where the package overwrites)
//!                                              │ launch, on the device
//!                                              ▼
//!   outside written ranges   unchanged?                           no ─▶ write outside
//!   inside written ranges    same as with other values outside?   no ─▶ read outside, or not all overwritten
//!                            same as in a longer package?         no ─▶ a footprint is too small
//! ```
//! 1. The check runs packages of several sizes at several places. Each runs twice on the latest contents, and
//!    then with other values outside the ranges that it reads.
//! 2. These values are whole elements of the same buffer, from other places. So an index stays a valid index,
//!    and numbers keep their magnitude. Noise fills ranges that a package overwrites, and buffers that are
//!    only written.
//! 3. A bisection over the moved values finds the first element that a package reads outside its footprint.
//! 4. A kernel on views of its footprints cannot read outside them, and computes with less input. Its results
//!    then differ from those of a longer package.

mod observe;
mod runs;
mod values;

pub use observe::{Observation, Observed, ObservedPart, observe_footprints};

use crate::base::package::{Package, UnitId};
use crate::kernel::{Argument, FootprintError, Kernel, KernelError};
use crate::report::RunError;
use dml_core::{AcquireError, BufferName, ConfigError, DeviceId, Launcher, Platform};
use runs::Check;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;
use values::Copied;

/// How a kernel departs from its footprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// The kernel writes a byte outside the package's written footprints.
    WritesOutside,
    /// The kernel reads a byte outside the package's read footprints.
    ReadsOutside,
    /// The results change if the footprint is extended over this byte: the kernel computes without input that
    /// it needs.
    Lacks,
    /// The kernel does not overwrite a byte that its footprint says it overwrites.
    LeavesOut,
    /// The kernel writes other contents when it runs again on the same contents, so it cannot be checked.
    Differs,
    /// The kernel writes other contents when its items are part of a longer package, and no single footprint
    /// explains it.
    ///
    /// One cause is a kernel that uses the end of its package as the size of a buffer.
    DependsOnCut,
    /// The footprint of all items covers the byte, but the footprints of their two parts do not.
    InNoPart,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WritesOutside => "is written, but no footprint covers it",
            Self::ReadsOutside => "is read, but no footprint covers it",
            Self::Lacks => "is needed, but no footprint covers it",
            Self::LeavesOut => "is not overwritten, although its footprint covers it",
            Self::Differs => "differs between runs on the same contents",
            Self::DependsOnCut => "differs when the items are part of a longer package",
            Self::InNoPart => "is in the footprint of all items, but in no footprint of their two parts",
        })
    }
}

/// A departure of a kernel from a footprint, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wrong {
    /// The kernel's name.
    pub kernel: String,
    /// The device's name.
    pub device: String,
    /// The position among all arguments of the kernel, from 0.
    ///
    /// If several arguments use the buffer, it is one whose access matches the departure.
    pub argument: usize,
    /// The argument's buffer, with its label.
    pub buffer: BufferName,
    /// The items of the shortest package that showed it.
    pub items: Range<u64>,
    /// The item whose result shows it, if a result does.
    pub item: Option<u64>,
    /// The first wrong byte of the argument's buffer; for a read outside, the first byte of the element.
    pub byte: u64,
    /// The kind of departure.
    pub how: Departure,
}

impl Wrong {
    /// Returns the index of the element that contains the byte.
    #[must_use]
    pub fn element(&self) -> u64 {
        self.byte / self.buffer.element_bytes()
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, device, argument, buffer, items, item, byte, how } = self;
        write!(f, "kernel {kernel} on {device}, argument {argument} ({buffer}), items {items:?}: ")?;
        match buffer.element_bytes() {
            1 => write!(f, "byte {byte} {how}")?,
            _ => write!(f, "element {} (byte {byte}) {how}", self.element())?,
        }
        item.map_or(Ok(()), |item| write!(f, "; seen in the result of item {item}"))
    }
}

/// Error of a check that did not confirm the footprints of a kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The kernel departs from a footprint.
    #[error("{0}")]
    Wrong(Box<Wrong>),
    /// Packages write a part of a buffer that is not understood.
    #[error(
        "kernel {kernel}, argument {argument} ({buffer}): observed: {seen}; expected writes that grow with the \
         items, of contents that differ"
    )]
    Unknown {
        /// The kernel's name.
        kernel: String,
        /// The position among all arguments of the kernel, from 0.
        argument: usize,
        /// The argument's buffer, with its label.
        buffer: BufferName,
        /// What packages do with it.
        seen: Box<Observed>,
    },
    /// The device does not run the kernel by a launcher. A variant cannot receive copies of its buffers.
    #[error("kernel {kernel} has no launcher for device {device}")]
    NoLauncher {
        /// The kernel's name.
        kernel: String,
        /// The device's id.
        device: DeviceId,
    },
    /// A run would be refused.
    ///
    /// Possible reasons: the buffers are too short for the items, or the calling thread holds one of them; a
    /// launcher rejects the arguments; the kernel was made for another platform.
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
        /// The launcher's error.
        cause: KernelError,
    },
    /// A copy of a buffer could not be created.
    #[error(transparent)]
    Copy(#[from] ConfigError),
    /// A buffer could not be read, or a copy could not be acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
}

/// Extent of a check that confirmed the footprints of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// The number of packages checked.
    pub packages: u64,
    /// The arguments whose wrong reads the check cannot detect, by their positions among all arguments.
    ///
    /// All elements of such a buffer are equal, and some package leaves a part of it out.
    pub unseen_reads: Vec<usize>,
}

/// Runs packages of a kernel on modified copies of its buffers, and checks that they touch only their
/// footprints.
///
/// The kernel's own buffers are read, but not changed. They should hold the contents of a real run, because
/// the check detects wrong reads by exchanging values within a buffer. Noise replaces contents that cannot be
/// read. The check waits up to five seconds for a buffer that another thread uses. It does not find:
/// - a byte that a kernel reads without any effect on its results, such as a byte that is the same in all
///   elements of the buffer;
/// - a byte that a kernel overwrites with the value that it had;
/// - a part of the input that a kernel on views does without in every package.
///
/// The kernel runs in this process, unless its device belongs to a worker process. It must stay within its
/// buffers when their elements change places: otherwise a kernel in C can end the process. Results of the
/// same items are compared bit by bit between packages, so they must not depend on how items are divided.
///
/// # Errors
/// [`CheckError::Wrong`] for the first departure; the other variants if the check cannot be made.
pub fn check_footprints(
    platform: &Platform,
    kernel: &Kernel,
    items: u64,
    device: DeviceId,
) -> Result<Checked, CheckError> {
    kernel.check_platform(platform).and_then(|()| kernel.check_items(items)).map_err(CheckError::Refused)?;
    let (kernel, launcher, host, copies, arguments) = prepared(platform, kernel, items, device)?;
    let packages = packages(kernel.grain(), items);
    let check = Check { platform, kernel: &kernel, launcher: &*launcher, device, host, copies, arguments };
    check.parts_cover(&packages)?;
    let mut shorter = Vec::new();
    for (index, items) in (0..).zip(&packages) {
        let package = Package::new(items.clone(), UnitId(0), index);
        let seen = check.package(&package)?;
        check.compare(&shorter, &seen)?;
        shorter.push(seen);
    }
    Ok(Checked { packages: packages.len() as u64, unseen_reads: check.unseen_reads(&packages)? })
}

/// A kernel of so many items, its launcher, the host, copies of its buffers, and its arguments with them.
type Prepared = (Kernel, Arc<dyn Launcher>, DeviceId, Vec<Copied>, Vec<Argument>);

/// Checks a kernel, and copies its buffers.
fn prepared(
    platform: &Platform,
    kernel: &Kernel,
    items: u64,
    device: DeviceId,
) -> Result<Prepared, CheckError> {
    let launcher = kernel
        .launcher_for(device)
        .ok_or_else(|| CheckError::NoLauncher { kernel: kernel.name().to_owned(), device })?;
    let checked = kernel.check_platform(platform).and_then(|()| kernel.check_launchers(platform));
    checked.map_err(CheckError::Refused)?;
    let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
    let launcher = launcher.clone();
    let kernel = kernel.of_total(items);
    let mut copies: Vec<Copied> = Vec::new();
    for (index, argument) in kernel.arguments().iter().enumerate() {
        let of = argument.buffer();
        if !copies.iter().any(|copy| &copy.of == of) {
            let is_read =
                kernel.arguments().iter().any(|other| other.buffer() == of && other.access().reads());
            copies.push(Copied::new(platform, host, of, is_read, || {
                let index = kernel.position(index);
                let (kernel, buffer) = (kernel.name().to_owned(), of.name());
                CheckError::Refused(RunError::HeldByCaller { kernel, index, buffer })
            })?);
        }
    }
    let own = |argument: &Argument| {
        let found = copies.iter().find(|copy| &copy.of == argument.buffer());
        argument.of_buffer(&found.expect("each buffer has been copied").copy)
    };
    let arguments = kernel.arguments().iter().map(own).collect();
    Ok((kernel, launcher, host, copies, arguments))
}

/// Returns the packages to run: one work-group, several, and all items; at the start, in the middle, and at
/// the end.
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
}
