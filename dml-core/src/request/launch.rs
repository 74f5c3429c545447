//! Launches of kernels, with one set of argument types for every framework.
//!
//! ```text
//!   a kernel's arguments ─┐
//!   a package's items ────┼─▶ Launch ──▶ Launcher (one per framework) ──▶ Fence
//!   the shape of an item ─┘                 ▲
//!                              Grants ──────┘ storage of the buffers, or views of them
//! ```
//! A launch is plain data. It names buffers, and a launcher takes their storage from the grants that are
//! passed with it.

use crate::base::access::Access;
use crate::base::sync::Arc;
use crate::buffer::RawBuffer;
use crate::memory::fence::Fence;
use crate::memory::host::sealed;
use crate::request::grants::Grants;
use std::error::Error;
use std::fmt;
use std::ops::{Deref, Range};

use smallvec::SmallVec;
use thiserror::Error;

/// A scalar argument, by its width.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the Rust type of its name")]
pub enum Scalar {
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    /// A half-precision number, as its bits.
    F16(u16),
    F32(f32),
    F64(f64),
}

macro_rules! scalars {
    ($($variant:ident($type:ty)),*) => {
        $(
            impl From<$type> for Scalar {
                fn from(value: $type) -> Self {
                    Self::$variant(value)
                }
            }

            impl TryFrom<Scalar> for $type {
                type Error = WrongScalar;

                fn try_from(scalar: Scalar) -> Result<Self, WrongScalar> {
                    match scalar {
                        Scalar::$variant(value) => Ok(value),
                        given => Err(WrongScalar { given, wanted: stringify!($type) }),
                    }
                }
            }
        )*
    };
}

scalars!(I8(i8), U8(u8), I16(i16), U16(u16), I32(i32), U32(u32), I64(i64), U64(u64), F32(f32), F64(f64));

impl Scalar {
    /// Returns the name of the scalar's type in Rust; `f16` for half precision.
    #[must_use]
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::I8(_) => "i8",
            Self::U8(_) => "u8",
            Self::I16(_) => "i16",
            Self::U16(_) => "u16",
            Self::I32(_) => "i32",
            Self::U32(_) => "u32",
            Self::I64(_) => "i64",
            Self::U64(_) => "u64",
            Self::F16(_) => "f16",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
        }
    }

    /// Returns whether another scalar has the same type.
    #[must_use]
    pub fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// A scalar has another type than the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("the scalar is {given:?}, not {wanted}")]
pub struct WrongScalar {
    /// The scalar.
    pub given: Scalar,
    /// The expected type.
    pub wanted: &'static str,
}

/// One argument of a launch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LaunchArg {
    /// A buffer. A device kernel gets the whole storage, a host kernel one view for each range.
    Buffer {
        /// The buffer.
        buffer: RawBuffer,
        /// The access that was acquired.
        access: Access,
        /// The ranges that were acquired, in bytes of the buffer, ascending and disjoint.
        ranges: Ranges,
    },
    /// A scalar.
    Scalar(Scalar),
    /// A value of any other type, as its bytes.
    Bytes(Arc<[u8]>),
    /// The size of each work-group's local memory, in bytes. Frameworks without work-groups pass nothing in
    /// its place.
    Local(u64),
}

/// Ranges of a buffer, in bytes. One range takes no memory of its own.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Ranges(SmallVec<[Range<u64>; 1]>);

impl Deref for Ranges {
    type Target = [Range<u64>];

    fn deref(&self) -> &[Range<u64>] {
        &self.0
    }
}

impl From<Range<u64>> for Ranges {
    fn from(range: Range<u64>) -> Self {
        Self(SmallVec::from_buf([range]))
    }
}

impl From<Vec<Range<u64>>> for Ranges {
    fn from(ranges: Vec<Range<u64>>) -> Self {
        Self(ranges.into())
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl LaunchArg {
    /// Describes the argument, for errors.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Buffer { .. } => "a buffer".to_owned(),
            Self::Scalar(scalar) => format!("a scalar ({})", scalar.type_name()),
            Self::Bytes(bytes) => format!("a value of {} bytes", bytes.len()),
            Self::Local(bytes) => format!("local memory ({bytes} bytes)"),
        }
    }
}

/// How the work-items of one item are laid out, and in which groups they run.
///
/// # Shape and units
/// All sizes count work-items. Items are numbered along one dimension: the last one, or the one set with
/// [`along`](Self::along). An item is one work-item, a row of them, or a plane. `get_global_id` of that
/// dimension returns the item's number.
///
/// A group size of zero along a dimension leaves that size to the framework. A kernel must then accept any
/// size. As with a fixed size, it must accept work-items past the last item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemShape {
    dimensions: usize,
    /// The dimension of the items.
    axis: usize,
    /// The size of an item along each dimension, which is 1 along `axis`.
    inner: [u64; 3],
    local: [u64; 3],
    is_whole: bool,
}

impl ItemShape {
    /// Returns a shape with one work-item per item, in groups of `local`.
    #[must_use]
    pub const fn line(local: u64) -> Self {
        Self { dimensions: 1, axis: 0, inner: [1; 3], local: [local, 1, 1], is_whole: false }
    }

    /// Returns a shape with a row of `columns` work-items per item. `local` is a group's number of columns
    /// and rows.
    #[must_use]
    pub const fn rows(columns: u64, local: [u64; 2]) -> Self {
        Self {
            dimensions: 2,
            axis: 1,
            inner: [columns, 1, 1],
            local: [local[0], local[1], 1],
            is_whole: false,
        }
    }

    /// Returns a shape with a plane of work-items per item. `plane` is its number of columns and rows.
    /// `local` is a group's number of columns, rows and planes.
    #[must_use]
    pub const fn planes(plane: [u64; 2], local: [u64; 3]) -> Self {
        Self { dimensions: 3, axis: 2, inner: [plane[0], plane[1], 1], local, is_whole: false }
    }

    /// Sets the dimension along which items are numbered. The others keep their order: rows along dimension 0
    /// have their columns along dimension 1. Returns `None` if there is no such dimension.
    ///
    /// ```
    /// use dml_core::ItemShape;
    ///
    /// let columns_first = ItemShape::rows(1000, [16, 4]);
    /// let rows_first = columns_first.along(0).expect("it has two dimensions");
    /// assert_eq!(columns_first.global(&(8..12)), [1000, 4, 1]);
    /// assert_eq!((rows_first.global(&(8..12)), rows_first.local()), ([4, 1000, 1], [4, 16, 1]));
    /// ```
    #[must_use]
    pub fn along(mut self, axis: usize) -> Option<Self> {
        if axis >= self.dimensions {
            return None;
        }
        for sizes in [&mut self.inner, &mut self.local] {
            if axis < self.axis {
                sizes[axis..=self.axis].rotate_right(1);
            } else {
                sizes[self.axis..=axis].rotate_left(1);
            }
        }
        self.axis = axis;
        Some(self)
    }

    /// Returns the dimension along which items are numbered, from 0.
    #[must_use]
    pub const fn axis(&self) -> usize {
        self.axis
    }

    /// Returns the number of dimensions: 1, 2 or 3.
    #[must_use]
    pub const fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Returns the size of a work-group along each dimension: 0 if the framework chooses it, 1 beyond the
    /// last dimension.
    #[must_use]
    pub const fn local(&self) -> [u64; 3] {
        self.local
    }

    /// Declares that each launch has all items of its run. Its groups then need no number within a run, so
    /// that a kernel that asks for them needs no group size.
    #[must_use]
    pub const fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// Returns whether each launch has [all items](Self::whole) of its run.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the first work-item of a range of items along each dimension.
    #[must_use]
    pub fn offset(&self, items: &Range<u64>) -> [u64; 3] {
        let mut offset = [0; 3];
        offset[self.axis] = items.start;
        offset
    }

    /// Returns the number of work-items of a range of items along each dimension.
    #[must_use]
    pub fn global(&self, items: &Range<u64>) -> [u64; 3] {
        let mut global = self.inner;
        global[self.axis] = items.end.saturating_sub(items.start);
        global
    }
}

/// One launch of a kernel: its items, their layout and its arguments.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Launch<'a> {
    /// The items to compute.
    pub items: &'a Range<u64>,
    /// The number of items of the whole run, at least `items.end`. Launchers number work-groups within the
    /// whole, so that a kernel cannot tell a part from the whole.
    pub total: u64,
    /// The layout of their work-items.
    pub shape: &'a ItemShape,
    /// The arguments, in the order of the kernel's signature.
    pub arguments: &'a [LaunchArg],
    /// Whether the launch may run concurrently with earlier ones. Launches under the same grants still run in
    /// their order, so a launcher that uses this checks [`Grants::launches_first`].
    pub is_independent: bool,
    /// Whether the kernel was [submitted](crate::Platform::submit). Its fence may then end with a later launch,
    /// because it is waited for together with others.
    pub is_submission: bool,
    /// Whether the next launch in the order of the device follows at once, so that the framework may send
    /// both to the device together.
    pub is_followed: bool,
}

impl<'a> Launch<'a> {
    /// Makes a launch of the last items of a run.
    #[must_use]
    pub const fn new(items: &'a Range<u64>, shape: &'a ItemShape, arguments: &'a [LaunchArg]) -> Self {
        let (is_independent, is_submission, is_followed) = (false, false, false);
        Self { items, total: items.end, shape, arguments, is_independent, is_submission, is_followed }
    }

    /// Sets the number of items of the whole run. A number below `items.end` counts as `items.end`.
    #[must_use]
    pub const fn of(mut self, total: u64) -> Self {
        self.total = if total > self.items.end { total } else { self.items.end };
        self
    }

    /// Marks the launch as that of a submission: see [`is_submission`](Self::is_submission) and
    /// [`is_followed`](Self::is_followed).
    #[must_use]
    pub(super) const fn submitted(mut self, is_followed: bool) -> Self {
        (self.is_submission, self.is_followed) = (true, is_followed);
        self
    }

    /// Allows the launch to run concurrently with earlier ones: see [`is_independent`](Self::is_independent).
    /// A device that one launch does not fill, such as at its end, then computes others meanwhile.
    #[must_use]
    pub const fn independent(mut self) -> Self {
        self.is_independent = true;
        self
    }
}

/// Why a launch failed.
#[derive(Debug)]
pub enum LaunchError {
    /// Nothing was written: the work did not begin.
    NotStarted(Box<dyn Error + Send + Sync>),
    /// Bytes that were granted for writing may have been written.
    Failed(Box<dyn Error + Send + Sync>),
}

impl LaunchError {
    /// Makes the error of a launch that did not begin.
    pub fn not_started(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::NotStarted(cause.into())
    }

    /// Makes the error of a launch that may have begun.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(cause.into())
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(cause) | Self::Failed(cause) => cause.fmt(f),
        }
    }
}

impl Error for LaunchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotStarted(cause) | Self::Failed(cause) => cause.source(),
        }
    }
}

/// Arguments that do not fit a kernel's signature.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The kernel takes another number of arguments.
    #[error("kernel {kernel} takes {takes} arguments, not {given}")]
    Count {
        /// The kernel, and where it runs.
        kernel: String,
        /// The number that it takes.
        takes: usize,
        /// The number of arguments given.
        given: usize,
    },
    /// One argument is of another kind, or of another type.
    #[error("argument {index} of kernel {kernel} is {takes}, and was given {given}")]
    Argument {
        /// The kernel, and where it runs.
        kernel: String,
        /// The argument's index, from 0.
        index: usize,
        /// What the kernel takes.
        takes: String,
        /// What was given.
        given: String,
    },
    /// The kernel has no argument at a position.
    #[error("kernel {kernel} has no argument {index}: it takes {takes}")]
    Missing {
        /// The kernel.
        kernel: String,
        /// The position, from 0.
        index: usize,
        /// The number of arguments that it takes.
        takes: usize,
    },
    /// The kernel's items were to be along a dimension that it does not have.
    #[error("kernel {kernel} has {dimensions} dimensions, and no dimension {axis}")]
    Axis {
        /// The kernel.
        kernel: String,
        /// The dimension, from 0.
        axis: usize,
        /// The number of dimensions.
        dimensions: usize,
    },
    /// The kernel is to run with no work-items, or with 2^63 or more.
    #[error("kernel {kernel} cannot run with {} work-items", counts(*items))]
    Items {
        /// The kernel.
        kernel: String,
        /// The number of work-items along each dimension.
        items: [u64; 3],
    },
    /// The framework cannot run the kernel in work-groups of this size.
    #[error("kernel {kernel} cannot run in groups of {} work-items: {reason}", counts(*local))]
    Groups {
        /// The kernel, and where it runs.
        kernel: String,
        /// The size of a work-group along each dimension, in work-items.
        local: [u64; 3],
        /// The limit, with its value.
        reason: String,
    },
}

/// Formats numbers of work-items, without trailing dimensions of size 1.
fn counts([x, y, z]: [u64; 3]) -> String {
    match (y, z) {
        (1, 1) => format!("{x}"),
        (_, 1) => format!("{x} x {y}"),
        _ => format!("{x} x {y} x {z}"),
    }
}

/// Runs one kernel in one framework.
///
/// A launcher has the obligations of a variant of the scheduler. It writes only bytes that were granted for
/// writing, returns a fence that ends with the work, and leaves the grants in their place.
pub trait Launcher: Send + Sync {
    /// Checks the arguments against the kernel's own signature, as far as the framework reports it.
    ///
    /// # Errors
    /// [`Misfit`], with both sides.
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit>;

    /// Checks that the kernel can run in the work-groups of a shape. A launcher never changes a requested
    /// size.
    ///
    /// # Errors
    /// [`Misfit::Groups`], with the limit. By default every shape fits, as for a framework without
    /// work-groups.
    fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit> {
        let _ = shape;
        Ok(())
    }

    /// Returns the name of the kernel, for errors.
    fn label(&self) -> Arc<str> {
        "a kernel".into()
    }

    /// Returns whether launches through this launcher run in the order in which they are made, and see what
    /// those before them wrote. The order includes launches through other launchers of the same arena that
    /// say so too, unless they are [independent](Launch::is_independent). Such kernels queue on their device
    /// when they are [submitted](crate::Platform::submit); others wait for those that they depend on.
    fn runs_in_order(&self) -> bool {
        false
    }

    /// Returns whether a launch only enqueues the kernel, on the arena's own queue of kernels, and reads no
    /// granted bytes itself. The arena can then order the kernel behind copies in flight
    /// ([`Arena::launch_behind`](crate::Arena::launch_behind)). Other launchers are called once these copies
    /// have ended.
    fn follows_copies(&self) -> bool {
        false
    }

    /// Returns whether a launch computes: it returns when the kernel has ended.
    ///
    /// When such a kernel is [submitted](crate::Platform::submit), a thread of the stream launches it. All
    /// kernels before it have ended by then.
    fn runs_within_launch(&self) -> bool {
        false
    }

    /// Starts the kernel on granted buffers. The grants have the arguments' ranges as items, in the order of
    /// the arguments. Further items may follow.
    ///
    /// Launches under the same grants run in their order. If the first one is
    /// [independent](Launch::is_independent), it may run concurrently with those under other grants.
    ///
    /// A [submitted](crate::Platform::submit) kernel may be launched on a thread of its device's stream. The
    /// launch must then not wait for kernels that were submitted to the device: their end would wait for it.
    ///
    /// # Errors
    /// [`LaunchError`], which says whether anything may have been written.
    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError>;
}

impl fmt::Debug for dyn Launcher + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Launcher").field(&self.label()).finish()
    }
}

/// A launcher that is shared: an [`Arc`] of one, and nothing else.
#[diagnostic::on_unimplemented(note = "a launcher is submitted in an `Arc`")]
pub trait SharedLauncher: sealed::Sealed + Send + Sync {
    /// Returns another reference to the launcher.
    fn shared(&self) -> Arc<dyn Launcher>;

    /// Returns the launcher.
    fn launcher(&self) -> &dyn Launcher;
}

impl sealed::Sealed for Arc<dyn Launcher> {}

impl<L: Launcher + 'static> sealed::Sealed for Arc<L> {}

impl SharedLauncher for Arc<dyn Launcher> {
    fn shared(&self) -> Arc<dyn Launcher> {
        self.clone()
    }

    fn launcher(&self) -> &dyn Launcher {
        &**self
    }
}

impl<L: Launcher + 'static> SharedLauncher for Arc<L> {
    fn shared(&self) -> Arc<dyn Launcher> {
        self.clone()
    }

    fn launcher(&self) -> &dyn Launcher {
        &**self
    }
}

macro_rules! forwarded {
    ($($owner:ty),*) => {
        $(
            impl<L: Launcher + ?Sized> Launcher for $owner {
                fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
                    (**self).check(arguments)
                }

                fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit> {
                    (**self).check_groups(shape)
                }

                fn label(&self) -> Arc<str> {
                    (**self).label()
                }

                fn runs_in_order(&self) -> bool {
                    (**self).runs_in_order()
                }

                fn follows_copies(&self) -> bool {
                    (**self).follows_copies()
                }

                fn runs_within_launch(&self) -> bool {
                    (**self).runs_within_launch()
                }

                fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
                    (**self).launch(launch, grants)
                }
            }
        )*
    };
}

forwarded!(&L, Arc<L>, Box<L>);

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_is_read_as_the_type_that_it_was_given_as() {
        assert_eq!(f32::try_from(Scalar::from(1.5_f32)), Ok(1.5));
        assert_eq!(i8::try_from(Scalar::I8(-3)), Ok(-3));
        let wrong = u32::try_from(Scalar::I32(-7)).unwrap_err();
        assert_eq!(wrong.to_string(), "the scalar is I32(-7), not u32");
        assert!(u16::try_from(Scalar::F16(0x3C00)).is_err(), "bits of a half are no number");
        assert!(Scalar::U8(1).is_like(Scalar::U8(2)) && !Scalar::U8(1).is_like(Scalar::I8(1)));
    }

    /// The error displays its cause, and its source is the cause's source.
    #[test]
    fn the_error_of_a_launch_passes_its_cause_on() {
        #[derive(Debug, thiserror::Error)]
        #[error("no kernel")]
        struct Outer(#[source] std::num::ParseIntError);
        let outer = || Outer("x".parse::<u32>().unwrap_err());
        for error in [LaunchError::not_started(outer()), LaunchError::failed(outer())] {
            let source = error.source().expect("the cause has one").to_string();
            assert_eq!((error.to_string(), source), ("no kernel".into(), outer().0.to_string()));
        }
        assert!(LaunchError::failed("alone").source().is_none());
    }

    #[test]
    fn the_items_are_the_last_dimension() {
        let items = 7..19;
        let line = ItemShape::line(4);
        assert_eq!((line.offset(&items), line.global(&items)), ([7, 0, 0], [12, 1, 1]));
        let rows = ItemShape::rows(30, [8, 2]);
        assert_eq!((rows.offset(&items), rows.global(&items)), ([0, 7, 0], [30, 12, 1]));
        let planes = ItemShape::planes([30, 5], [8, 2, 1]);
        assert_eq!((planes.offset(&items), planes.global(&items)), ([0, 0, 7], [30, 5, 12]));
        assert_eq!((planes.dimensions(), rows.local()), (3, [8, 2, 1]));
    }
}
