//! Functions of shared libraries, called through a C interface. `include/dml_offload.h` declares it in C.

use crate::function::{Call, ComputeError, Given, Mapped};
use dml_core::Scalar;
use libloading::Library;
use std::ffi::{OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

/// Size of the buffer for a function's error message, in bytes.
const MESSAGE_BYTES: usize = 1024;

/// Part of a buffer: `dml_view`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CView {
    /// The first byte.
    pub data: *mut c_void,
    /// The number of bytes.
    pub bytes: u64,
    /// The offset of the first byte in its buffer.
    pub start: u64,
    /// 1 if the function may write, 0 if it may only read.
    pub writable: u32,
    /// The position of its argument.
    pub argument: u32,
}

/// A scalar: `dml_scalar`. `kind` names the valid member of the union.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CScalar {
    /// 0 `u32`, 1 `i32`, 2 `u64`, 3 `i64`, 4 `f32`, 5 `f64`, 6 `u8`, 7 `i8`, 8 `u16`, 9 `i16`, 10 half
    /// precision, as its bits in `u16`.
    pub kind: u32,
    /// The position of its argument.
    pub argument: u32,
    /// The value, in the union member that `kind` selects.
    pub value: CScalarValue,
}

/// The value of a scalar.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "each is the type of its name")]
pub union CScalarValue {
    pub u32: u32,
    pub i32: i32,
    pub u64: u64,
    pub i64: i64,
    pub f32: f32,
    pub f64: f64,
    pub u8: u8,
    pub i8: i8,
    pub u16: u16,
    pub i16: i16,
}

/// A value of any other type: `dml_value`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CValue {
    /// The first byte, which may be unaligned.
    pub data: *const c_void,
    /// The number of bytes.
    pub bytes: u64,
    /// The position of its argument.
    pub argument: u32,
    /// Reserved: always zero.
    pub reserved: u32,
}

impl std::fmt::Debug for CScalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CScalar(kind {})", self.kind)
    }
}

impl std::fmt::Debug for CScalarValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CScalarValue")
    }
}

/// One call: `dml_call`.
#[derive(Debug)]
#[repr(C)]
pub struct CCall {
    /// The size of this structure in bytes; a later version may add members at its end.
    pub size: u32,
    /// The number of threads that the function may use.
    pub threads: u32,
    /// The first item.
    pub first: u64,
    /// The item after the last one.
    pub end: u64,
    /// The parts of the buffers, in order.
    pub views: *const CView,
    /// The number of parts.
    pub view_count: u64,
    /// The scalars, in order.
    pub scalars: *const CScalar,
    /// The number of scalars.
    pub scalar_count: u64,
    /// A buffer for the function's error message, a zero-terminated string.
    pub message: *mut c_char,
    /// The size of that buffer, in bytes.
    pub message_bytes: u64,
    /// The values of other types, in order.
    pub values: *const CValue,
    /// The number of those values.
    pub value_count: u64,
}

/// A function of a library. It returns zero for success, and a code of its own otherwise.
pub(super) type CFunction = unsafe extern "C" fn(call: *const CCall) -> i32;

/// Loads a library. The library stays loaded while the worker lives, because its functions and threads may
/// still run.
///
/// # Errors
/// The message of the loader.
pub(super) fn load(path: &[u8]) -> Result<Library, String> {
    // SAFETY: loading runs the library's initialisers. The user of the library trusts it with this process,
    // which is not the owner's.
    unsafe { Library::new(OsStr::from_bytes(path)) }.map_err(|error| chain(&error))
}

/// Formats an error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Finds a function by name in a loaded library or in the libraries that it needs.
pub(super) fn find(library: &Library, name: &str) -> Option<CFunction> {
    // SAFETY: the interface requires that a function looked up by name has this type. The library is never
    // unloaded, so the pointer stays valid.
    unsafe { library.get::<CFunction>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Calls a function of a library.
///
/// # Errors
/// The function's code and message.
pub(super) fn call(
    function: CFunction,
    threads: u32,
    call: &mut Call<'_>,
) -> Result<(), (i32, ComputeError)> {
    let (mut views, mut scalars, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (argument, given) in (0..).zip(call.all_given()) {
        match given {
            Given::Part(part) => {
                let mapped = part.as_views().iter().filter_map(|view| view.mapped());
                views.extend(mapped.map(|view| c_view(argument, view)));
            }
            Given::Scalar(scalar) => scalars.push(c_scalar(argument, *scalar)),
            Given::Bytes(bytes) => {
                let (data, bytes) = (bytes.as_ptr().cast(), bytes.len() as u64);
                values.push(CValue { data, bytes, argument, reserved: 0 });
            }
            Given::Local => {}
        }
    }
    let mut message = [0_u8; MESSAGE_BYTES];
    let items = call.items();
    let c_call = CCall {
        size: size_of::<CCall>() as u32,
        threads,
        first: items.start,
        end: items.end,
        views: views.as_ptr(),
        view_count: views.len() as u64,
        scalars: scalars.as_ptr(),
        scalar_count: scalars.len() as u64,
        message: message.as_mut_ptr().cast(),
        message_bytes: MESSAGE_BYTES as u64,
        values: values.as_ptr(),
        value_count: values.len() as u64,
    };
    // SAFETY: the function has the documented type, and its library stays loaded. Everything that `c_call`
    // points to lives until the function returns. Meanwhile the exclusive borrow of `call` keeps other code
    // from the buffers. The user of the library is responsible for everything else that the function does.
    let code = unsafe { function(&raw const c_call) };
    if code == 0 {
        return Ok(());
    }
    let said = message.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = match String::from_utf8_lossy(said).trim() {
        "" => format!("it returned {code}"),
        text => text.to_owned(),
    };
    Err((code, text.into()))
}

fn c_view(argument: u32, view: &Mapped<'_>) -> CView {
    CView {
        data: view.data().as_ptr().cast(),
        bytes: view.span().len(),
        start: view.span().start(),
        writable: view.is_writable().into(),
        argument,
    }
}

fn c_scalar(argument: u32, scalar: Scalar) -> CScalar {
    // All eight bytes are set first, so that a function that reads a wider member finds zeros.
    let mut value = CScalarValue { u64: 0 };
    let kind = match scalar {
        Scalar::U32(given) => {
            value.u32 = given;
            0
        }
        Scalar::I32(given) => {
            value.i32 = given;
            1
        }
        Scalar::U64(given) => {
            value.u64 = given;
            2
        }
        Scalar::I64(given) => {
            value.i64 = given;
            3
        }
        Scalar::F32(given) => {
            value.f32 = given;
            4
        }
        Scalar::F64(given) => {
            value.f64 = given;
            5
        }
        Scalar::U8(given) => {
            value.u8 = given;
            6
        }
        Scalar::I8(given) => {
            value.i8 = given;
            7
        }
        Scalar::U16(given) => {
            value.u16 = given;
            8
        }
        Scalar::I16(given) => {
            value.i16 = given;
            9
        }
        Scalar::F16(bits) => {
            value.u16 = bits;
            10
        }
        // Every scalar comes from a message, which has no other kind.
        _ => u32::MAX,
    };
    CScalar { kind, argument, value }
}
