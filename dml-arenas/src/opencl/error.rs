//! Translates OpenCL's error codes into DML's errors and into descriptions.

use dml_core::internal::sync::Arc;
use dml_core::{AllocError, TransferError};
use opencl3::error_codes::{
    CL_DEVICE_NOT_AVAILABLE, CL_DEVICE_NOT_FOUND, CL_INVALID_BUFFER_SIZE, CL_INVALID_COMMAND_QUEUE,
    CL_INVALID_DEVICE, CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES,
    DLOPEN_FUNCTION_NOT_AVAILABLE, DLOPEN_RUNTIME_LOAD_FAILED, error_text,
};

/// Error code of a loader that finds no platform, from the extension `cl_khr_icd`.
const CL_PLATFORM_NOT_FOUND_KHR: i32 = -1001;

/// The reason of the device's loss in a fork, and the message of driver errors there.
pub(super) const FORKED: &str =
    "this process is a fork of one that uses OpenCL, which drivers do not survive";

/// Describes an OpenCL error code, with a remedy where one is known.
pub(super) fn words(code: i32) -> String {
    match code {
        DLOPEN_RUNTIME_LOAD_FAILED => {
            "no OpenCL loader was found (libOpenCL.so.1): install one, such as ocl-icd, or \
            name it in OPENCL_DYLIB_PATH"
                .into()
        }
        DLOPEN_FUNCTION_NOT_AVAILABLE => {
            "the OpenCL loader lacks a function: the library found as libOpenCL.so.1, or \
            named in OPENCL_DYLIB_PATH, is no OpenCL 1.2 loader"
                .into()
        }
        CL_PLATFORM_NOT_FOUND_KHR => {
            "the OpenCL loader knows no driver: install one, such as pocl-opencl-icd or the \
            device vendor's; drivers register in /etc/OpenCL/vendors, or where OCL_ICD_VENDORS says"
                .into()
        }
        code => match error_text(code) {
            text if text.starts_with("CL_") => text.into(),
            _ => format!("unknown OpenCL error {code}"),
        },
    }
}

/// Returns whether the code means that the device is lost. A valid queue or device becomes invalid for no
/// other reason.
pub(super) fn is_lost(code: i32) -> bool {
    matches!(
        code,
        CL_DEVICE_NOT_AVAILABLE | CL_DEVICE_NOT_FOUND | CL_INVALID_DEVICE | CL_INVALID_COMMAND_QUEUE
    )
}

/// Returns the error of a transfer, a change of map state or a launch.
pub(super) fn transfer_error(call: &'static str, code: i32) -> TransferError {
    if is_lost(code) {
        return TransferError::DeviceLost { loss: None };
    }
    TransferError::Framework { call, code: code.into(), message: words(code).into() }
}

/// Returns the error of a launch that was refused before it had any effect.
pub(super) fn refused(call: &'static str, code: i32, reason: String) -> TransferError {
    TransferError::Framework { call, code: code.into(), message: reason.into() }
}

/// Returns the error of an allocation of `bytes` bytes, on a device that allows `limit_bytes` per allocation.
pub(super) fn alloc_error(
    arena: &Arc<str>,
    call: &'static str,
    code: i32,
    bytes: u64,
    limit_bytes: u64,
) -> AllocError {
    let arena = arena.clone();
    match code {
        CL_INVALID_BUFFER_SIZE => AllocError::TooLarge { arena, bytes, limit_bytes },
        CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY => {
            AllocError::OutOfMemory { arena, bytes }
        }
        code if is_lost(code) => AllocError::DeviceLost { arena, loss: None },
        code => AllocError::Framework { arena, call, code: code.into(), message: words(code).into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_words() {
        assert!(words(-2000).contains("OPENCL_DYLIB_PATH"));
        assert!(words(-1001).contains("/etc/OpenCL/vendors"));
        assert_eq!(words(-5), "CL_OUT_OF_RESOURCES");
        assert_eq!(words(-987_654), "unknown OpenCL error -987654");
    }

    #[test]
    fn codes_become_the_errors_a_caller_acts_on() {
        let arena: Arc<str> = "opencl:0".into();
        let error = |code| alloc_error(&arena, "clCreateBuffer", code, 100, 50);
        assert_eq!(error(-61), AllocError::TooLarge { arena: arena.clone(), bytes: 100, limit_bytes: 50 });
        assert!([-4, -5, -6].into_iter().all(|code| error(code).is_out_of_memory()));
        assert!(error(-2).is_device_lost());
        assert!(error(-30).to_string().contains("CL_INVALID_VALUE"));
        assert!(transfer_error("clFlush", -36).is_device_lost());
        assert!(
            transfer_error("clFlush", -59)
                .to_string()
                .contains("clFlush failed: CL_INVALID_OPERATION (code -59)")
        );
    }
}
