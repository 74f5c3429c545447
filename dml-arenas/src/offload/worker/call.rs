//! The arguments of a call, as a function of the worker sees them.

use crate::offload::message::{Memory, Part};
use crate::shared::window::Window;
use bytemuck::Pod;
use dml_core::{Scalar, Span};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Why a function failed: any error, or a sentence.
pub type CallError = Box<dyn std::error::Error + Send + Sync>;

/// One call: the items to compute, parts of buffers, and scalars.
#[derive(Debug)]
pub struct Call<'a> {
    items: Range<u64>,
    threads: u32,
    views: Vec<View<'a>>,
    scalars: Vec<Scalar>,
}

/// The memories that a worker maps.
#[derive(Debug)]
pub(super) struct Windows {
    /// The memory of this worker alone.
    pub(super) own: Window,
    /// The memory that it shares with its owner and with other workers, if it shares any.
    pub(super) shared: Option<Window>,
}

impl Windows {
    /// Returns the address of some bytes; `None` where the worker does not map them.
    fn at(&self, memory: Memory, place: Span) -> Option<NonNull<u8>> {
        match memory {
            Memory::Own => self.own.at(place),
            Memory::Shared => self.shared.as_ref()?.at(place),
        }
    }
}

/// Part of a buffer, in a memory that the worker maps.
pub struct View<'a> {
    data: NonNull<u8>,
    bytes: usize,
    start: u64,
    writes: bool,
    _windows: PhantomData<&'a mut Windows>,
}

// SAFETY: a view is the only way to its bytes while its call lasts (see `Call::new`), so it can be used from any one
// thread at a time, or read from several.
unsafe impl Send for View<'_> {}
// SAFETY: as above; `&View` only reads.
unsafe impl Sync for View<'_> {}

impl<'a> Call<'a> {
    /// Makes a call on parts of the worker's memories.
    ///
    /// # Errors
    /// An error for a part that is not within its memory, or that shares bytes with another part while one of them is
    /// written.
    ///
    /// # Safety
    /// While the call lasts, no other code writes bytes of its parts, nor reads bytes of the parts that the function
    /// may write.
    pub(super) unsafe fn new(
        windows: &'a Windows,
        items: Range<u64>,
        threads: u32,
        parts: &[Part],
        scalars: Vec<Scalar>,
    ) -> Result<Self, CallError> {
        let mut places: Vec<(Memory, Span, bool)> = Vec::with_capacity(parts.len());
        let mut views = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let end = part.offset.checked_add(part.bytes);
            let place = end.map(|end| Span::new(part.offset, end));
            let place = place.and_then(|place| Some((place, windows.at(part.memory, place)?)));
            let (place, data) =
                place.ok_or_else(|| format!("buffer {index} is outside the worker's memory"))?;
            let clashes = |&(memory, other, writes): &(Memory, Span, bool)| {
                (writes || part.writes) && memory == part.memory && other.overlaps(place)
            };
            if let Some(other) = places.iter().position(clashes) {
                return Err(format!("buffers {other} and {index} share bytes that are written").into());
            }
            places.push((part.memory, place, part.writes));
            let (start, writes) = (part.start, part.writes);
            views.push(View { data, bytes: part.bytes as usize, start, writes, _windows: PhantomData });
        }
        Ok(Self { items, threads, views, scalars })
    }

    /// The items to compute, by their global numbers.
    #[must_use]
    pub fn items(&self) -> Range<u64> {
        self.items.clone()
    }

    /// The number of threads that the function may use.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// The parts of buffers, in the order of the arguments.
    pub fn views(&mut self) -> &mut [View<'a>] {
        &mut self.views
    }

    /// Returns one part of a buffer.
    ///
    /// # Errors
    /// An error where the call has no such part.
    pub fn view(&mut self, index: usize) -> Result<&mut View<'a>, CallError> {
        let count = self.views.len();
        self.views.get_mut(index).ok_or_else(|| format!("no buffer {index}: the call has {count}").into())
    }

    /// The scalars, in the order of the arguments.
    #[must_use]
    pub fn scalars(&self) -> &[Scalar] {
        &self.scalars
    }

    /// Returns a scalar, which must be a `u32`.
    ///
    /// # Errors
    /// An error where the scalar does not exist or has another type.
    pub fn u32(&self, index: usize) -> Result<u32, CallError> {
        match self.scalars.get(index) {
            Some(Scalar::U32(value)) => Ok(*value),
            other => Err(mismatch(index, "a u32", other)),
        }
    }

    /// Returns a scalar, which must be a `u64`.
    ///
    /// # Errors
    /// An error where the scalar does not exist or has another type.
    pub fn u64(&self, index: usize) -> Result<u64, CallError> {
        match self.scalars.get(index) {
            Some(Scalar::U64(value)) => Ok(*value),
            other => Err(mismatch(index, "a u64", other)),
        }
    }

    /// Returns a scalar, which must be an `f32`.
    ///
    /// # Errors
    /// An error where the scalar does not exist or has another type.
    pub fn f32(&self, index: usize) -> Result<f32, CallError> {
        match self.scalars.get(index) {
            Some(Scalar::F32(value)) => Ok(*value),
            other => Err(mismatch(index, "an f32", other)),
        }
    }

    /// Returns a scalar, which must be an `f64`.
    ///
    /// # Errors
    /// An error where the scalar does not exist or has another type.
    pub fn f64(&self, index: usize) -> Result<f64, CallError> {
        match self.scalars.get(index) {
            Some(Scalar::F64(value)) => Ok(*value),
            other => Err(mismatch(index, "an f64", other)),
        }
    }
}

fn mismatch(index: usize, wanted: &str, found: Option<&Scalar>) -> CallError {
    match found {
        Some(found) => format!("scalar {index} is {found:?}, not {wanted}").into(),
        None => format!("no scalar {index}, which is to be {wanted}").into(),
    }
}

impl View<'_> {
    /// The bytes of its buffer that the view shows.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.start, self.start.saturating_add(self.bytes as u64))
    }

    /// Returns whether the function may write the view.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writes
    }

    /// Returns the elements, for reading.
    ///
    /// # Errors
    /// An error where the bytes do not make whole aligned elements.
    pub fn slice<T: Pod>(&self) -> Result<&[T], CallError> {
        // SAFETY: within a window, which outlives the call, and initialised as all mapped memory is; nobody writes
        // these bytes meanwhile (contract of `Call::new`), and this view cannot while it is borrowed.
        let bytes = unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.bytes) };
        bytemuck::try_cast_slice(bytes).map_err(|error| self.misfit::<T>(&error))
    }

    /// Returns the elements, for reading and writing.
    ///
    /// # Errors
    /// An error where the buffer was passed for reading only, or the bytes do not make whole aligned elements.
    pub fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], CallError> {
        if !self.writes {
            return Err(
                format!("bytes {} of a buffer were passed to be read, not written", self.span()).into()
            );
        }
        // SAFETY: as in `slice`; and no other view of the call shares these bytes, and nobody outside touches them
        // (contract and check of `Call::new`).
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) };
        bytemuck::try_cast_slice_mut(bytes).map_err(|error| self.misfit::<T>(&error))
    }

    /// The first byte, for functions that take pointers.
    pub(super) fn data(&self) -> NonNull<u8> {
        self.data
    }

    fn misfit<T>(&self, error: &bytemuck::PodCastError) -> CallError {
        format!("bytes {} of a buffer are no whole {}s: {error}", self.span(), std::any::type_name::<T>())
            .into()
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({}, {})", self.span(), if self.writes { "written" } else { "read" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::window::memory;

    fn windows() -> Windows {
        let window = || Window::map(memory("dml-test", 8192).unwrap(), 8192).unwrap();
        Windows { own: window(), shared: Some(window()) }
    }

    fn part(offset: u64, bytes: u64, writes: bool) -> Part {
        Part { memory: Memory::Own, offset, bytes, start: 100, writes }
    }

    fn shared(part: Part) -> Part {
        Part { memory: Memory::Shared, ..part }
    }

    #[test]
    fn views_are_as_the_parts_say() {
        let windows = windows();
        let parts = [part(0, 16, true), part(4096, 7, false)];
        // SAFETY: the windows are this test's alone.
        let mut call = unsafe { Call::new(&windows, 3..9, 2, &parts, vec![Scalar::F32(0.5)]) }.unwrap();
        call.view(0).unwrap().slice_mut::<u32>().unwrap().copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(call.view(0).unwrap().slice::<u32>().unwrap(), [1, 2, 3, 4]);
        assert_eq!((call.items(), call.threads(), call.f32(0).unwrap()), (3..9, 2, 0.5));
        assert_eq!(call.views()[1].span(), Span::new(100, 107));
        assert!(call.view(1).unwrap().slice_mut::<u8>().unwrap_err().to_string().contains("to be read"));
        assert!(call.view(1).unwrap().slice::<u16>().unwrap_err().to_string().contains("100..107"));
        assert!(call.view(2).unwrap_err().to_string().contains("no buffer 2"));
        assert!(call.u32(0).unwrap_err().to_string().contains("F32(0.5), not a u32"));
        assert!(call.f32(1).unwrap_err().to_string().contains("no scalar 1"));
    }

    #[test]
    fn scalars_are_of_the_type_that_is_asked_for() {
        let windows = windows();
        let scalars = vec![Scalar::U32(7), Scalar::U64(1 << 40), Scalar::F32(0.25), Scalar::F64(-1.5e300)];
        // SAFETY: the windows are this test's alone.
        let call = unsafe { Call::new(&windows, 0..1, 1, &[], scalars.clone()) }.unwrap();
        assert_eq!((call.u32(0).unwrap(), call.u64(1).unwrap()), (7, 1 << 40));
        assert_eq!((call.f32(2).unwrap(), call.f64(3).unwrap()), (0.25, -1.5e300));
        for index in 0..5 {
            let found = [
                call.u32(index).is_ok(),
                call.u64(index).is_ok(),
                call.f32(index).is_ok(),
                call.f64(index).is_ok(),
            ];
            assert_eq!(found, [0, 1, 2, 3].map(|own| own == index), "{index}");
        }
        assert_eq!(call.scalars(), scalars);
    }

    #[test]
    fn no_part_is_outside_the_window_or_shared_with_a_writer() {
        let windows = windows();
        let made = |parts: &[Part]| {
            // SAFETY: the windows are this test's alone.
            unsafe { Call::new(&windows, 0..1, 1, parts, Vec::new()) }
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert!(made(&[part(8192, 0, true), part(0, 8192, false)]).is_ok());
        assert!(made(&[part(8192, 1, false)]).unwrap_err().contains("outside"));
        assert!(made(&[part(u64::MAX, 2, false)]).unwrap_err().contains("outside"));
        assert!(made(&[part(0, 8, false), part(4, 8, false)]).is_ok());
        assert!(made(&[part(0, 8, false), part(4, 8, true)]).unwrap_err().contains("0 and 1 share"));
        assert!(made(&[part(0, 8, true), shared(part(0, 8, true))]).is_ok(), "two memories");
        let twice = [shared(part(0, 8, true)), shared(part(7, 8, false))];
        assert!(made(&twice).unwrap_err().contains("0 and 1 share"));
        assert!(made(&[shared(part(8192, 1, false))]).unwrap_err().contains("outside"));
    }

    #[test]
    fn parts_are_of_the_memory_that_they_name() {
        let windows = windows();
        let parts = [part(64, 4, true), shared(part(64, 4, true))];
        // SAFETY: the windows are this test's alone.
        let mut call = unsafe { Call::new(&windows, 0..1, 1, &parts, Vec::new()) }.unwrap();
        call.view(0).unwrap().slice_mut::<u8>().unwrap().copy_from_slice(&[1, 2, 3, 4]);
        call.view(1).unwrap().slice_mut::<u8>().unwrap().copy_from_slice(&[5, 6, 7, 8]);
        drop(call);
        let seen = |window: &Window| {
            // SAFETY: within the window, which this test alone uses.
            unsafe { window.place(Span::new(64, 68)).cast::<[u8; 4]>().read() }
        };
        assert_eq!(seen(&windows.own), [1, 2, 3, 4]);
        assert_eq!(seen(windows.shared.as_ref().unwrap()), [5, 6, 7, 8]);
        let alone = Windows { shared: None, ..windows };
        // SAFETY: as above.
        let refused = unsafe { Call::new(&alone, 0..1, 1, &parts, Vec::new()) }.map(drop).unwrap_err();
        assert!(refused.to_string().contains("buffer 1 is outside"), "{refused}");
    }
}
