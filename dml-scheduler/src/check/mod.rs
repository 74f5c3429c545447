//! Finds wrong footprints, by running packages on guarded copies.
//!
//! ```text
//!   copy of each buffer    moved moved |latest contents, where the package reads| moved moved      bits, where it overwrites
//!                                              │ launch, on the device
//!                                              ▼
//!   outside what it writes  as before?   no ─▶ written outside
//!   what it writes          the same as with other values there?   no ─▶ read outside, or not all overwritten
//!                           the same as in a longer package?   no ─▶ a footprint names too little
//! ```
//! 1. Packages of several sizes and at several places are run, twice with the buffers as they are, and then with other values where
//!    the package does not read.
//! 2. These values are whole elements of the same buffer, from other places: what is an index stays one, and numbers keep their
//!    magnitude. Arbitrary bits stand where a package overwrites, and in buffers that it only writes.
//! 3. A package that reads outside its footprint is run with fewer and fewer moved values, until the first element that it reads is
//!    found.
//! 4. A kernel on views of its footprints cannot read outside them, and makes do with less. Its results differ from those of a longer
//!    package then.

mod runs;
mod values;

use crate::base::package::{Package, UnitId};
use crate::kernel::{Argument, FootprintError, Kernel, KernelError};
use crate::report::RunError;
use dml_core::{AcquireError, BufferName, ConfigError, DeviceId, Platform};
use runs::Check;
use std::fmt;
use std::ops::Range;
use thiserror::Error;
use values::Copied;

/// How a kernel departs from its footprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It writes a byte that the package does not write by its footprints.
    WritesOutside,
    /// It reads a byte that the package does not read by its footprints.
    ReadsOutside,
    /// Its results are others if the footprint ends before this byte, which it does: the kernel makes do without what it is not given.
    Lacks,
    /// It leaves a byte as it was that it was to overwrite.
    LeavesOut,
    /// It writes other contents when it is run again with the same ones, so that nothing can be said of it.
    Differs,
    /// It writes other contents when its items are a part of a longer package, and no single footprint is the reason. A kernel that takes
    /// the end of its package for the size of a buffer does so.
    DependsOnCut,
    /// A package writes it by its footprint, and neither of its two parts does.
    InNoPart,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WritesOutside => "is written, and no footprint says so",
            Self::ReadsOutside => "is read, and no footprint says so",
            Self::Lacks => "is needed, and no footprint says so",
            Self::LeavesOut => "is not overwritten, although the footprint says so",
            Self::Differs => "differs from run to run with the same contents",
            Self::DependsOnCut => "differs when the items are a part of a longer package",
            Self::InNoPart => "is written by all items by the footprint, and by none of their parts",
        })
    }
}

/// How a kernel departs from a footprint, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wrong {
    /// The kernel's name.
    pub kernel: String,
    /// The device's name.
    pub device: String,
    /// The position among all arguments of the kernel, from 0. Of several for one buffer, the one whose access fits.
    pub argument: usize,
    /// The argument's buffer, with its label.
    pub buffer: BufferName,
    /// The items of the shortest package in which it was seen.
    pub items: Range<u64>,
    /// The item whose result shows it, where a result does.
    pub item: Option<u64>,
    /// The first wrong byte of the argument's buffer; for a read outside, the first byte of the element.
    pub byte: u64,
    /// What is wrong.
    pub how: Departure,
}

impl Wrong {
    /// The index of the element that the byte belongs to.
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

/// Why the footprints of a kernel are not confirmed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The kernel departs from a footprint.
    #[error("{0}")]
    Wrong(Box<Wrong>),
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

/// What was checked of a kernel whose footprints are confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// How many packages were run.
    pub packages: u64,
    /// The arguments whose wrong reads could not have been seen, by their position among all. Packages read a part of such a
    /// buffer, and all its elements are equal.
    pub unseen_reads: Vec<usize>,
}

/// Runs packages of a kernel on guarded copies of its buffers, and checks that they touch what the footprints say.
///
/// The kernel's own buffers are read, and not changed. They should hold what they hold in a run: values at other places of the same
/// buffer are what a wrong read is seen by. Contents that cannot be read count as any others. A buffer that another thread uses is
/// waited for, at most five seconds. Not found are:
/// - a byte that a kernel reads without any effect on its results, also because that byte is the same in all elements of the buffer;
/// - a byte that it writes as it was;
/// - a part that a kernel on views makes do without in every package.
///
/// The kernel runs in this process, unless it is a worker's. It must stay within its buffers when their elements change places:
/// a kernel in C that does not can end the process. Results of the same items are compared bit by bit between packages, so they
/// must not depend on how items are divided.
///
/// # Errors
/// [`CheckError::Wrong`] for the first departure; the other variants if the check cannot be made.
pub fn check_footprints(
    platform: &Platform,
    kernel: &Kernel,
    items: u64,
    device: DeviceId,
) -> Result<Checked, CheckError> {
    let launcher = kernel
        .launcher_for(device)
        .ok_or_else(|| CheckError::NoLauncher { kernel: kernel.name().to_owned(), device })?;
    let checked = kernel.check_platform(platform).and_then(|()| kernel.check_launchers(platform));
    checked.and_then(|()| kernel.check_items(items)).map_err(CheckError::Refused)?;
    let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
    let kernel = kernel.of_total(items);
    let packages = packages(kernel.grain(), items);
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
    let check = Check { platform, kernel: &kernel, launcher: &**launcher, device, host, copies, arguments };
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
