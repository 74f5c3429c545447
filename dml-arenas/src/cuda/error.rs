//! Translates the driver's error codes into DML's errors and into descriptions.

use cudarc::driver::sys::{CUresult, cuGetErrorName, cuGetErrorString};
use dml_core::internal::sync::Arc;
use dml_core::{AllocError, TransferError};
use std::ffi::{CStr, c_char};

/// The reason of the device's loss in a fork, and the message of driver errors there.
pub(super) const FORKED: &str =
    "this process is a fork of one that uses CUDA, which the driver does not survive";

/// A failed driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: CUresult,
}

/// Returns the error of a call, if it failed.
pub(super) fn check(call: &'static str, code: CUresult) -> Result<(), Failure> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Failure { call, code }) }
}

/// Returns the name of an error code, and the driver's description of it.
pub(super) fn words(code: CUresult) -> String {
    /// Returns the driver's text for a code, from one of its functions.
    fn told(code: CUresult, ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: the call writes nothing, or the address of a text that lives as long as the driver.
        let found = unsafe { ask(code, &raw mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: a text of the driver that ends with a zero.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
    let name = told(code, cuGetErrorName).unwrap_or_else(|| format!("CUDA error {}", code as u32));
    match told(code, cuGetErrorString) {
        Some(text) => format!("{name}: {text}"),
        None => name,
    }
}

/// Returns whether no later call on the device's context can succeed after this code.
pub(super) fn is_lost(code: CUresult) -> bool {
    use CUresult as C;
    matches!(
        code,
        C::CUDA_ERROR_NOT_INITIALIZED
            | C::CUDA_ERROR_DEINITIALIZED
            | C::CUDA_ERROR_DEVICE_UNAVAILABLE
            | C::CUDA_ERROR_NO_DEVICE
            | C::CUDA_ERROR_INVALID_DEVICE
            | C::CUDA_ERROR_INVALID_CONTEXT
            | C::CUDA_ERROR_ECC_UNCORRECTABLE
            | C::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | C::CUDA_ERROR_CONTAINED
            | C::CUDA_ERROR_ILLEGAL_ADDRESS
            | C::CUDA_ERROR_LAUNCH_TIMEOUT
            | C::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | C::CUDA_ERROR_ASSERT
            | C::CUDA_ERROR_HARDWARE_STACK_ERROR
            | C::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | C::CUDA_ERROR_MISALIGNED_ADDRESS
            | C::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | C::CUDA_ERROR_INVALID_PC
            | C::CUDA_ERROR_LAUNCH_FAILED
            | C::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | C::CUDA_ERROR_EXTERNAL_DEVICE
            | C::CUDA_ERROR_UNKNOWN
    )
}

/// Returns the error of a transfer or a launch.
pub(super) fn transfer_error(failure: Failure) -> TransferError {
    if is_lost(failure.code) {
        return TransferError::DeviceLost { loss: None };
    }
    refused(failure.call, failure.code, words(failure.code))
}

/// Returns the error of a launch that was refused before it had any effect.
pub(super) fn refused(call: &'static str, code: CUresult, reason: String) -> TransferError {
    TransferError::Framework { call, code: i64::from(code as u32), message: reason.into() }
}

/// Returns the error of an allocation of `bytes` bytes.
pub(super) fn alloc_error(arena: &Arc<str>, failure: Failure, bytes: u64) -> AllocError {
    let (arena, Failure { call, code }) = (arena.clone(), failure);
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => AllocError::OutOfMemory { arena, bytes },
        code if is_lost(code) => AllocError::DeviceLost { arena, loss: None },
        code => {
            AllocError::Framework { arena, call, code: i64::from(code as u32), message: words(code).into() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_lose_the_device_and_refusals_do_not() {
        use CUresult as C;
        let lost = [C::CUDA_ERROR_ILLEGAL_ADDRESS, C::CUDA_ERROR_LAUNCH_FAILED, C::CUDA_ERROR_ASSERT];
        assert!(lost.into_iter().all(is_lost));
        let kept = [C::CUDA_ERROR_OUT_OF_MEMORY, C::CUDA_ERROR_INVALID_VALUE, C::CUDA_ERROR_NOT_READY];
        assert!(!kept.into_iter().any(is_lost));
        let lost = Failure { call: "cuLaunchKernel", code: C::CUDA_ERROR_LAUNCH_FAILED };
        assert!(transfer_error(lost).is_device_lost());
        let full = Failure { call: "cuMemAlloc", code: C::CUDA_ERROR_OUT_OF_MEMORY };
        assert!(alloc_error(&"cuda:0".into(), full, 7).is_out_of_memory());
    }
}
