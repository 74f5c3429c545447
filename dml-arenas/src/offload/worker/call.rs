//! Builds the arguments of a call from its message.

use crate::function::{ComputeError, Given, Mapped, Part, View};
use crate::offload::message::{self, Memory};
use crate::shared::window::Window;
use dml_core::{Scalar, Span};
use std::borrow::Cow;
use std::ptr::NonNull;

/// The memories that a worker maps.
#[derive(Debug)]
pub(super) struct Windows {
    /// The worker's own memory.
    pub(super) own: Window,
    /// The memory that the worker shares with its owner and with other workers, if any.
    pub(super) shared: Option<Window>,
}

impl Windows {
    /// Returns the address of a span; `None` if the worker does not map it.
    fn at(&self, memory: Memory, place: Span) -> Option<NonNull<u8>> {
        match memory {
            Memory::Own => self.own.at(place),
            Memory::Shared => self.shared.as_ref()?.at(place),
        }
    }
}

/// Builds the arguments of a call from those of its message.
///
/// # Errors
/// An error for a part outside its memory, or for two parts that share bytes if either is written.
///
/// # Safety
/// While the arguments are used, no other code writes bytes of their parts, nor reads bytes of the parts that
/// the function may write.
pub(super) unsafe fn given(
    windows: &Windows,
    arguments: Vec<message::Argument>,
) -> Result<Vec<Given<'_>>, ComputeError> {
    let mut places: Vec<(usize, Memory, Span, bool)> = Vec::new();
    let mut given = Vec::with_capacity(arguments.len());
    for (index, argument) in arguments.into_iter().enumerate() {
        let parts = match argument {
            message::Argument::Buffer(parts) => parts,
            message::Argument::Scalar(scalar) => {
                given.push(Given::Scalar(Scalar::from(scalar)));
                continue;
            }
            message::Argument::Bytes(bytes) => {
                given.push(Given::Bytes(Cow::Owned(bytes)));
                continue;
            }
            message::Argument::Nothing => {
                given.push(Given::Local);
                continue;
            }
        };
        let mut views = Vec::with_capacity(parts.len());
        for part in parts {
            let end = part.offset.checked_add(part.bytes);
            let place = end.map(|end| Span::new(part.offset, end));
            let place = place.and_then(|place| Some((place, windows.at(part.memory, place)?)));
            let (place, data) =
                place.ok_or_else(|| format!("argument {index} is outside the worker's memory"))?;
            let clashes = |&&(_, memory, other, writes): &&(usize, Memory, Span, bool)| {
                (writes || part.writes) && memory == part.memory && other.overlaps(place)
            };
            if let Some((other, ..)) = places.iter().find(clashes) {
                return Err(format!("arguments {other} and {index} share bytes that are written").into());
            }
            places.push((index, part.memory, place, part.writes));
            // SAFETY: the bytes lie in a window, which outlives the arguments, and mapped memory is
            // initialised. The caller guarantees that no other code conflicts with the access. The check
            // above excludes a part that shares the bytes, if either is written.
            views
                .push(View::from(unsafe { Mapped::new(data, part.bytes as usize, part.start, part.writes) }));
        }
        given.push(Given::Part(Part::new(index, views)));
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::Call;
    use crate::offload::message::{Argument, Part};
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

    fn call(windows: &Windows, arguments: Vec<Argument>) -> Result<Call<'_>, String> {
        // SAFETY: the windows are the test's alone.
        let given = unsafe { given(windows, arguments) }.map_err(|error| error.to_string())?;
        Ok(Call::new(3..9, None, given))
    }

    #[test]
    fn arguments_are_as_the_message_says() {
        let windows = windows();
        let scalar = |scalar| Argument::Scalar(message::WireScalar::of(scalar).unwrap());
        let mut call = call(
            &windows,
            vec![
                scalar(Scalar::F32(0.5)),
                Argument::Buffer(vec![part(0, 16, true)]),
                Argument::Nothing,
                Argument::Buffer(vec![part(4096, 7, false), part(5000, 4, false)]),
                Argument::Bytes(vec![7, 0]),
            ],
        )
        .unwrap();
        call.part(1).unwrap().slice_mut::<u32>().unwrap().copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(call.part(1).unwrap().slice::<u32>().unwrap(), [1, 2, 3, 4]);
        assert_eq!(
            (call.items(), call.scalar::<f32>(0).unwrap(), call.value::<u16>(4).unwrap()),
            (3..9, 0.5, 7)
        );
        let several = call.part(3).unwrap();
        assert!(several.slice::<u8>().unwrap_err().to_string().contains("argument 3 has 2 ranges"));
        let view = &mut several.views()[0];
        assert_eq!(view.span(), Span::new(100, 107));
        let told = [view.slice_mut::<u8>().unwrap_err(), view.slice::<u16>().map(drop).unwrap_err()];
        assert_eq!(
            told.map(|error| error.to_string()),
            [
                "bytes 100..107 are read-only",
                "bytes 100..107 cannot be viewed as u16s: not a multiple of 2 bytes"
            ]
        );
    }

    /// Indices count from the start of the buffer, wherever the part of a package begins.
    #[test]
    fn elements_are_counted_from_the_start_of_the_buffer() {
        let windows = windows();
        let arguments =
            vec![Argument::Buffer(vec![part(0, 8, true), Part { start: 200, ..part(64, 4, true) }])];
        let mut call = call(&windows, arguments).unwrap();
        let mut elements = call.part(0).unwrap().elements_mut::<u32>().unwrap();
        assert_eq!(elements.ranges().collect::<Vec<_>>(), [25..27, 50..51]);
        (elements[26], elements[50]) = (7, 8);
        let elements = call.part(0).unwrap().elements::<u32>().unwrap();
        assert_eq!((elements[25], elements[26], elements.get(27), elements[50]), (0, 7, None, 8));
        let refused = call.part(0).unwrap().elements::<[u8; 3]>().unwrap_err().to_string();
        assert_eq!(refused, "argument 0: byte 100 of a buffer is not the start of a [u8; 3] (3 bytes)");
    }

    #[test]
    fn what_is_not_aligned_is_said_to_be_that() {
        let windows = windows();
        let mut call = call(&windows, vec![Argument::Buffer(vec![part(2, 8, false)])]).unwrap();
        let refused = call.part(0).unwrap().slice::<u32>().unwrap_err().to_string();
        assert_eq!(refused, "argument 0: bytes 100..108 cannot be viewed as u32s: not aligned to 4 bytes");
    }

    #[test]
    fn no_part_is_outside_the_window_or_shared_with_a_writer() {
        let windows = windows();
        let made = |parts: &[Part]| {
            let arguments = parts.iter().map(|part| Argument::Buffer(vec![*part])).collect();
            call(&windows, arguments).map(drop)
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
        let ranges = Argument::Buffer(vec![part(0, 8, true), part(4, 8, true)]);
        assert!(call(&windows, vec![ranges]).unwrap_err().contains("0 and 0 share"));
    }

    #[test]
    fn parts_are_of_the_memory_that_they_name() {
        let windows = windows();
        let arguments =
            || [part(64, 4, true), shared(part(64, 4, true))].map(|part| Argument::Buffer(vec![part]));
        let mut made = call(&windows, arguments().to_vec()).unwrap();
        made.part(0).unwrap().slice_mut::<u8>().unwrap().copy_from_slice(&[1, 2, 3, 4]);
        made.part(1).unwrap().slice_mut::<u8>().unwrap().copy_from_slice(&[5, 6, 7, 8]);
        drop(made);
        let seen = |window: &Window| {
            // SAFETY: within the window, which this test alone uses.
            unsafe { window.place(Span::new(64, 68)).cast::<[u8; 4]>().read() }
        };
        assert_eq!(seen(&windows.own), [1, 2, 3, 4]);
        assert_eq!(seen(windows.shared.as_ref().unwrap()), [5, 6, 7, 8]);
        let alone = Windows { shared: None, ..windows };
        let refused = call(&alone, arguments().to_vec()).map(drop).unwrap_err();
        assert!(refused.contains("argument 1 is outside"), "{refused}");
    }
}
