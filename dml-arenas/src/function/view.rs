//! The views that a function has of a buffer.

use super::{ComputeError, Elements, ElementsMut};
use bytemuck::Pod;
use dml_core::Span;
#[cfg(all(feature = "offload", target_os = "linux"))]
pub(crate) use mapped::Mapped;
#[cfg(all(feature = "offload", target_os = "linux"))]
use mapped::misfit;

/// The part of one buffer that a call may use: one view for each range of the argument's footprint.
#[derive(Debug)]
pub struct Part<'a> {
    argument: usize,
    views: Vec<View<'a>>,
}

impl<'a> Part<'a> {
    pub(crate) fn new(argument: usize, views: Vec<View<'a>>) -> Self {
        Self { argument, views }
    }

    /// Returns the position of the argument.
    #[must_use]
    pub fn argument(&self) -> usize {
        self.argument
    }

    /// Returns the views of the part: one for each range of the argument's footprint, ascending. A package
    /// without bytes has one empty view.
    pub fn views(&mut self) -> &mut [View<'a>] {
        &mut self.views
    }

    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn as_views(&self) -> &[View<'a>] {
        &self.views
    }

    /// Returns the bytes of the buffer from the first view to the last.
    #[must_use]
    pub fn span(&self) -> Span {
        let [start, end] =
            [self.views.first(), self.views.last()].map(|view| view.map_or(Span::default(), View::span));
        Span::new(start.start(), end.end())
    }

    /// Returns the elements of the only view.
    ///
    /// # Errors
    /// As [`View::slice`], and an error for a part with several views.
    pub fn slice<T: Pod>(&self) -> Result<&[T], ComputeError> {
        match &self.views[..] {
            [view] => view.slice().map_err(|error| self.told(&error)),
            _ => Err(self.several()),
        }
    }

    /// Returns the elements of the only view, for changing.
    ///
    /// # Errors
    /// As [`View::slice_mut`], and an error for a part with several views.
    pub fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ComputeError> {
        let argument = self.argument;
        if self.views.len() != 1 {
            return Err(self.several());
        }
        self.views[0].slice_mut().map_err(|error| of_argument(argument, &error))
    }

    /// Returns the elements by their indices in the whole buffer. A function that uses these indices need not
    /// know where its part begins, nor how many views it has.
    ///
    /// # Errors
    /// As [`View::slice`], and an error for a view that begins within an element.
    pub fn elements<T: Pod>(&self) -> Result<Elements<'_, T>, ComputeError> {
        let mut runs = Vec::with_capacity(self.views.len());
        for view in &self.views {
            let first = first::<T>(view).map_err(|error| self.told(&error))?;
            runs.push((first, view.slice().map_err(|error| self.told(&error))?));
        }
        Ok(Elements::new(self.argument, runs))
    }

    /// Returns the elements by their indices in the whole buffer, for changing.
    ///
    /// # Errors
    /// As [`View::slice_mut`], and an error for a view that begins within an element.
    pub fn elements_mut<T: Pod>(&mut self) -> Result<ElementsMut<'_, T>, ComputeError> {
        let argument = self.argument;
        let mut runs = Vec::with_capacity(self.views.len());
        for view in &mut self.views {
            let first = first::<T>(view).map_err(|error| of_argument(argument, &error))?;
            runs.push((first, view.slice_mut().map_err(|error| of_argument(argument, &error))?));
        }
        Ok(ElementsMut::new(argument, runs))
    }

    fn told(&self, error: &ComputeError) -> ComputeError {
        of_argument(self.argument, error)
    }

    fn several(&self) -> ComputeError {
        let (argument, ranges) = (self.argument, self.views.len());
        format!("argument {argument} has {ranges} ranges, each with its own view").into()
    }
}

fn of_argument(argument: usize, error: &ComputeError) -> ComputeError {
    format!("argument {argument}: {error}").into()
}

/// Returns the index of a view's first element in its buffer.
fn first<T>(view: &View<'_>) -> Result<u64, ComputeError> {
    let (start, size) = (view.span().start(), size_of::<T>() as u64);
    if size == 0 || !start.is_multiple_of(size) {
        let what = std::any::type_name::<T>();
        return Err(format!("byte {start} of a buffer is not the start of a {what} ({size} bytes)").into());
    }
    Ok(start / size)
}

/// Bytes of a buffer, in the memory of this process.
#[derive(Debug)]
pub struct View<'a>(Memory<'a>);

#[derive(Debug)]
enum Memory<'a> {
    Granted(dml_core::View<'a>),
    #[cfg(all(feature = "offload", target_os = "linux"))]
    Mapped(Mapped<'a>),
}

impl<'a> From<dml_core::View<'a>> for View<'a> {
    fn from(view: dml_core::View<'a>) -> Self {
        Self(Memory::Granted(view))
    }
}

#[cfg(all(feature = "offload", target_os = "linux"))]
impl<'a> From<Mapped<'a>> for View<'a> {
    fn from(view: Mapped<'a>) -> Self {
        Self(Memory::Mapped(view))
    }
}

impl View<'_> {
    /// Returns which bytes of the buffer the view shows.
    #[must_use]
    pub fn span(&self) -> Span {
        match &self.0 {
            Memory::Granted(view) => view.span(),
            #[cfg(all(feature = "offload", target_os = "linux"))]
            Memory::Mapped(view) => view.span(),
        }
    }

    /// Returns whether the function may write the view.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        match &self.0 {
            Memory::Granted(view) => view.is_writable(),
            #[cfg(all(feature = "offload", target_os = "linux"))]
            Memory::Mapped(view) => view.is_writable(),
        }
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// An error if the bytes are not whole, aligned elements.
    pub fn slice<T: Pod>(&self) -> Result<&[T], ComputeError> {
        match &self.0 {
            Memory::Granted(view) => Ok(view.slice()?),
            #[cfg(all(feature = "offload", target_os = "linux"))]
            Memory::Mapped(view) => {
                bytemuck::try_cast_slice(view.bytes()).map_err(|error| misfit::<T>(view.span(), error))
            }
        }
    }

    /// Returns the elements, for changing.
    ///
    /// # Errors
    /// As [`slice`](Self::slice), and an error if the view is read-only.
    pub fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], ComputeError> {
        match &mut self.0 {
            Memory::Granted(view) => Ok(view.slice_mut()?),
            #[cfg(all(feature = "offload", target_os = "linux"))]
            Memory::Mapped(view) => {
                let span = view.span();
                let bytes = view.bytes_mut().ok_or_else(|| format!("bytes {span} are read-only"))?;
                bytemuck::try_cast_slice_mut(bytes).map_err(|error| misfit::<T>(span, error))
            }
        }
    }

    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn mapped(&self) -> Option<&Mapped<'_>> {
        match &self.0 {
            Memory::Granted(_) => None,
            Memory::Mapped(view) => Some(view),
        }
    }
}

#[cfg(all(feature = "offload", target_os = "linux"))]
mod mapped {
    use super::ComputeError;
    use bytemuck::PodCastError;
    use dml_core::Span;
    use std::fmt;
    use std::marker::PhantomData;
    use std::ptr::NonNull;

    /// A part of a buffer, in a memory that the worker maps.
    pub(crate) struct Mapped<'a> {
        data: NonNull<u8>,
        bytes: usize,
        start: u64,
        writes: bool,
        _memory: PhantomData<&'a mut [u8]>,
    }

    // SAFETY: while the value exists, no other code writes its bytes, nor reads them if it writes (`new`). So
    // it may be used by one thread at a time, or read by several.
    unsafe impl Send for Mapped<'_> {}
    // SAFETY: as above; a shared reference only reads.
    unsafe impl Sync for Mapped<'_> {}

    impl Mapped<'_> {
        /// Creates a view of `bytes` bytes at an address: those from byte `start` of a buffer.
        ///
        /// # Safety
        /// The bytes are initialised. While the value exists, no other code writes them, nor reads them if
        /// `writes`.
        pub(crate) unsafe fn new(data: NonNull<u8>, bytes: usize, start: u64, writes: bool) -> Self {
            Self { data, bytes, start, writes, _memory: PhantomData }
        }

        pub(crate) fn span(&self) -> Span {
            Span::new(self.start, self.start.saturating_add(self.bytes as u64))
        }

        pub(crate) fn is_writable(&self) -> bool {
            self.writes
        }

        pub(crate) fn bytes(&self) -> &[u8] {
            // SAFETY: initialised, and no other code writes them (`new`). Nor does this value while it is
            // borrowed.
            unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.bytes) }
        }

        /// Returns the bytes, for changing, if they may be written.
        pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
            // SAFETY: as in `bytes`. No other code reads them either, because the value writes (`new`).
            self.writes.then(|| unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) })
        }

        /// Returns the address of the first byte, for functions that take pointers.
        pub(crate) fn data(&self) -> NonNull<u8> {
            self.data
        }
    }

    impl fmt::Debug for Mapped<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Mapped({}, {})", self.span(), if self.writes { "written" } else { "read" })
        }
    }

    pub(super) fn misfit<T>(span: Span, error: PodCastError) -> ComputeError {
        let (what, size) = (std::any::type_name::<T>(), size_of::<T>());
        let why = match error {
            PodCastError::TargetAlignmentGreaterAndInputNotAligned | PodCastError::AlignmentMismatch => {
                format!("not aligned to {} bytes", align_of::<T>())
            }
            _ => format!("not a multiple of {size} bytes"),
        };
        format!("bytes {span} cannot be viewed as {what}s: {why}").into()
    }
}
