//! The GPU of a hand-written program: the device's primary context, one stream, device memory, kernels, and
//! page-locked host memory.
//!
//! # Invariants
//! 1. All commands go to one stream, which runs them in order.
//! 2. Code that enqueues commands finishes the stream before it drops anything that they use. Only device
//!    memory may be dropped earlier, because it is freed in stream order.
//! 3. No driver call is made in a fork of the process that opened the GPU.
//! 4. Commands are enqueued, and device memory is allocated, while the context is current. The code that runs
//!    a program enters the context once, before timing starts.

use crate::compiled::Grid;
use crate::cuda::compile::compile;
use crate::cuda::device::{Found, list};
use crate::cuda::error::{FORKED, Failure, check, words};
use crate::cuda::grid::{Part, limits, parts};
use crate::cuda::kernel::{find_function, load_module};
use crate::cuda::session::{self, Entered, Raw};
use crate::fork::Origin;
use crate::native::BaselineError;
use bytemuck::Pod;
use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUfunction, CUmemoryPool, CUmodule, CUresult, CUstream,
    cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain, cuLaunchKernel, cuMemAlloc_v2,
    cuMemAllocFromPoolAsync, cuMemFree_v2, cuMemFreeAsync, cuMemFreeHost, cuMemHostAlloc, cuMemPoolDestroy,
    cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2, cuModuleUnload, cuStreamDestroy_v2, cuStreamSynchronize,
};
use dml_core::internal::sync::Arc;
use std::ffi::{CString, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

impl From<Failure> for BaselineError {
    fn from(failure: Failure) -> Self {
        let message = format!("{}: {}", failure.call, words(failure.code));
        Self::Call { framework: "CUDA", code: i64::from(failure.code as u32), message }
    }
}

/// An open GPU. Memory and kernels keep it open.
#[derive(Debug)]
pub(super) struct Gpu {
    found: Found,
    context: Raw<CUcontext>,
    stream: Raw<CUstream>,
    pool: Option<Raw<CUmemoryPool>>,
    origin: Origin,
}

impl Gpu {
    /// Opens `cuda:N`. A limit must equal the number of its multiprocessors.
    ///
    /// # Errors
    /// [`BaselineError::Device`] if the device cannot be used.
    pub(super) fn open(number: usize, limit: Option<u32>) -> Result<Arc<Self>, BaselineError> {
        let unusable = |reason| BaselineError::Device { device: format!("cuda:{number}"), reason };
        let listing = list().map_err(unusable)?;
        let count = listing.len();
        let found = listing.get(number).ok_or_else(|| unusable(format!("there are {count} CUDA devices")))?;
        if let Some(units) = limit.filter(|&units| units != found.units) {
            let has = found.units;
            return Err(unusable(format!("it has {has} multiprocessors, and cannot be limited to {units}")));
        }
        let failed = |failure: Failure| unusable(format!("{} failed: {}", failure.call, words(failure.code)));
        let mut context = null_mut();
        // SAFETY: a device of the driver; the call writes a handle, which `Drop` releases.
        check("cuDevicePrimaryCtxRetain", unsafe {
            cuDevicePrimaryCtxRetain(&raw mut context, found.device)
        })
        .map_err(failed)?;
        let context = Raw(context);
        let made =
            session::enter(context).and_then(|_entered| Ok((session::stream()?, session::pool(found))));
        let (stream, pool) = made.map_err(|failure| {
            // SAFETY: retained above.
            let _ = unsafe { cuDevicePrimaryCtxRelease_v2(found.device) };
            failed(failure)
        })?;
        Ok(Arc::new(Self { found: found.clone(), context, stream, pool, origin: Origin::here() }))
    }

    /// Returns whether driver calls are allowed, because this process is not a fork.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Checks that this process is not a fork.
    ///
    /// # Errors
    /// [`BaselineError::Call`] in a fork.
    pub(super) fn expect_here(&self) -> Result<(), BaselineError> {
        if self.is_here() {
            return Ok(());
        }
        let code = i64::from(CUresult::CUDA_ERROR_NOT_INITIALIZED as u32);
        Err(BaselineError::Call { framework: "CUDA", code, message: FORKED.to_owned() })
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// [`BaselineError::Call`], also in a fork.
    pub(super) fn enter(&self) -> Result<Entered<'_>, BaselineError> {
        self.expect_here()?;
        Ok(session::enter(self.context)?)
    }

    /// Allocates device memory, for commands enqueued after this call.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub(super) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Memory, BaselineError> {
        // The driver allocates no empty memory.
        let (mut address, size) = (0, bytes.max(1));
        match self.pool {
            Some(pool) => check("cuMemAllocFromPoolAsync", {
                // SAFETY: the pool and stream of this GPU; the call writes an address.
                unsafe { cuMemAllocFromPoolAsync(&raw mut address, size, pool.0, self.stream.0) }
            }),
            None => check("cuMemAlloc", {
                // SAFETY: the context is current, and the call writes an address.
                unsafe { cuMemAlloc_v2(&raw mut address, size) }
            }),
        }?;
        Ok(Memory { address, bytes, gpu: self.clone() })
    }

    /// Allocates zeroed page-locked host memory.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub(super) fn page_locked<T: Pod>(self: &Arc<Self>, len: usize) -> Result<PageLocked<T>, BaselineError> {
        let _entered = self.enter()?;
        let full = Failure { call: "cuMemHostAlloc", code: CUresult::CUDA_ERROR_OUT_OF_MEMORY };
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        // The driver allocates no empty memory.
        let size = bytes.ok_or(full)?.max(1);
        let mut address = null_mut();
        // SAFETY: the context is current, and the call writes an address.
        check("cuMemHostAlloc", unsafe { cuMemHostAlloc(&raw mut address, size, 0) })?;
        let address = NonNull::new(address.cast::<u8>()).ok_or(full)?;
        // SAFETY: new memory of this size, with no other user.
        unsafe { address.write_bytes(0, size) };
        Ok(PageLocked { address: address.cast(), len, gpu: self.clone() })
    }

    /// Builds a kernel from CUDA C with DML's compiler and cache, so that the code is the same.
    ///
    /// # Errors
    /// [`BaselineError::Build`] if the compiler rejects the source, the source has no such kernel, or there
    /// is no compiler. [`BaselineError::Call`] if a call fails.
    pub(super) fn kernel(
        self: &Arc<Self>,
        source: &str,
        name: &str,
        options: &str,
    ) -> Result<Kernel, BaselineError> {
        let refused = |log: String| BaselineError::Build { kernel: name.to_owned(), log };
        let zero = |what| refused(format!("{what} contains a zero character"));
        let c_name = CString::new(name).map_err(|_| zero("the name"))?;
        let code = compile(source, options, self.found.capability, self.found.version);
        let code = code.map_err(|cause| refused(cause.to_string()))?;
        let _entered = self.enter()?;
        let module = load_module(code).map_err(|(failure, log)| match log.is_empty() {
            true => failure.into(),
            false => refused(log),
        })?;
        let module = Module { module: Raw(module), gpu: self.clone() };
        let found = find_function(module.module.0, &c_name);
        let (function, max_local) = found.map_err(|failure| match failure.code {
            CUresult::CUDA_ERROR_NOT_FOUND => refused(format!("the source has no kernel {name}")),
            _ => failure.into(),
        })?;
        Ok(Kernel { function: Raw(function), max_local, name: name.to_owned(), _module: module })
    }

    /// Enqueues a copy of bytes to the start of device memory.
    ///
    /// # Safety
    /// 1. The bytes stay valid and unchanged until the stream is finished.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// If the device memory is smaller than the bytes.
    pub(super) unsafe fn write(&self, to: &Memory, bytes: &[u8]) -> Result<(), BaselineError> {
        assert!(bytes.len() <= to.bytes, "{} bytes for a buffer of {}", bytes.len(), to.bytes);
        let (from, stream) = (bytes.as_ptr().cast(), self.stream.0);
        // SAFETY: the memory has that many bytes. The caller guarantees the host's bytes (1).
        Ok(check("cuMemcpyHtoDAsync", unsafe {
            cuMemcpyHtoDAsync_v2(to.address, from, bytes.len(), stream)
        })?)
    }

    /// Enqueues a copy of the start of device memory to bytes.
    ///
    /// # Safety
    /// 1. The bytes stay valid until the stream is finished, and no other code touches them until then.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    ///
    /// # Panics
    /// If the device memory is smaller than the bytes.
    pub(super) unsafe fn read(&self, from: &Memory, bytes: &mut [u8]) -> Result<(), BaselineError> {
        assert!(bytes.len() <= from.bytes, "{} bytes of a buffer of {}", bytes.len(), from.bytes);
        let (to, stream) = (bytes.as_mut_ptr().cast(), self.stream.0);
        // SAFETY: the memory has that many bytes. The caller guarantees the host's bytes (1).
        Ok(check("cuMemcpyDtoHAsync", unsafe {
            cuMemcpyDtoHAsync_v2(to, from.address, bytes.len(), stream)
        })?)
    }

    /// Enqueues a kernel over items along two axes, in blocks of `local` threads. Appends the items to the
    /// arguments.
    ///
    /// # Safety
    /// 1. The arguments fit the kernel, whose last parameter is a `DmlItems`.
    /// 2. With these arguments and this many threads, the kernel touches only its own memory until the stream
    ///    is finished.
    ///
    /// # Errors
    /// [`BaselineError::Call`].
    pub(super) unsafe fn launch(
        &self,
        kernel: &Kernel,
        arguments: &Arguments,
        items: [usize; 2],
        local: [usize; 2],
    ) -> Result<(), BaselineError> {
        let launch = Grid::new([0; 2], items.map(|size| size as u64), local.map(|size| size as u64));
        if launch.items.contains(&0) {
            return Ok(());
        }
        let (call, code) = ("cuLaunchKernel", CUresult::CUDA_ERROR_INVALID_VALUE);
        let ([x, y, z], parts) = parts(&launch, &limits(kernel.max_local)).ok_or(Failure { call, code })?;
        for Part { items: [offset, end], grid: [gx, gy, gz] } in parts {
            let mut told = Items { offset, end };
            let mut values = arguments.0.clone();
            let values = values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
            let mut params: Vec<_> = values.chain([(&raw mut told).cast()]).collect();
            let (function, params, stream) = (kernel.function.0, params.as_mut_ptr(), self.stream.0);
            // SAFETY: a live function, and the address of a value for each of its parameters (1), which the
            // call copies. The caller guarantees what the kernel touches (2).
            let launched =
                unsafe { cuLaunchKernel(function, gx, gy, gz, x, y, z, 0, stream, params, null_mut()) };
            check(call, launched)?;
        }
        Ok(())
    }

    /// Waits for all enqueued commands.
    ///
    /// # Errors
    /// [`BaselineError::Call`], also if one of the commands failed.
    pub(super) fn finish(&self) -> Result<(), BaselineError> {
        // SAFETY: a live stream.
        Ok(check("cuStreamSynchronize", unsafe { cuStreamSynchronize(self.stream.0) })?)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Ok(_entered) = self.enter() {
            // A destructor cannot report a failure.
            let _ = self.finish();
            // SAFETY: objects of this context. Each is destroyed only here, when no command uses it.
            unsafe {
                let _ = cuStreamDestroy_v2(self.stream.0);
                if let Some(pool) = self.pool {
                    let _ = cuMemPoolDestroy(pool.0);
                }
            }
        }
        if self.is_here() {
            // SAFETY: retained in `open`, released only here.
            let _ = unsafe { cuDevicePrimaryCtxRelease_v2(self.found.device) };
        }
    }
}

/// Device memory.
#[derive(Debug)]
pub(super) struct Memory {
    address: CUdeviceptr,
    bytes: usize,
    gpu: Arc<Gpu>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.enter() else { return };
        // SAFETY: memory from `alloc`, freed once. A pool reuses it only after the commands that use it.
        // Without a pool, the call waits for these commands.
        let _ = unsafe {
            match self.gpu.pool {
                Some(_) => cuMemFreeAsync(self.address, self.gpu.stream.0),
                None => cuMemFree_v2(self.address),
            }
        };
    }
}

/// Page-locked host memory, which the GPU transfers without an intermediate copy. In a fork, it is empty.
#[derive(Debug)]
pub struct PageLocked<T: Pod> {
    address: NonNull<T>,
    len: usize,
    gpu: Arc<Gpu>,
}

impl<T: Pod> PageLocked<T> {
    /// Returns the number of accessible elements. In a fork, the driver's memory is not mapped.
    fn reachable(&self) -> usize {
        if self.gpu.is_here() { self.len } else { 0 }
    }
}

impl<T: Pod> Deref for PageLocked<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: this memory's own elements, aligned to a page and initialised in `page_locked`. Any bytes
        // are a valid `T`. Commands that write them run only while they are borrowed exclusively.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.reachable()) }
    }
}

impl<T: Pod> DerefMut for PageLocked<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the memory is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.reachable()) }
    }
}

impl<T: Pod> Drop for PageLocked<T> {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: memory from `cuMemHostAlloc`, freed once. No command uses it, because each one ended
            // while the memory was borrowed.
            let _ = unsafe { cuMemFreeHost(self.address.as_ptr().cast()) };
        }
    }
}

/// A module of the driver.
#[derive(Debug)]
struct Module {
    module: Raw<CUmodule>,
    gpu: Arc<Gpu>,
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: the module from `kernel`, unloaded once, when no command uses it (2).
            let _ = unsafe { cuModuleUnload(self.module.0) };
        }
    }
}

/// A kernel with its module.
#[derive(Debug)]
pub struct Kernel {
    function: Raw<CUfunction>,
    max_local: u64,
    name: String,
    _module: Module,
}

impl Kernel {
    /// Returns the kernel's name in its source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// `DmlItems`, with the layout that kernels expect.
#[derive(Debug)]
#[repr(C)]
struct Items {
    offset: [u64; 3],
    end: [u64; 3],
}

const _: () = assert!(size_of::<Items>() == crate::cuda::kernel::ITEMS_BYTES);

/// The arguments of a kernel without its items. Each element begins with the bytes of its value.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments(Vec<u64>);

impl Arguments {
    /// Adds the address of device memory.
    pub(super) fn memory(&mut self, memory: &Memory) {
        self.0.push(memory.address);
    }

    /// Adds a scalar of at most eight bytes.
    pub(super) fn scalar<T: Pod>(&mut self, value: T) {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        self.0.push(u64::from_ne_bytes(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver reads a parameter from the address of its value, with the size of its type.
    #[test]
    fn an_argument_begins_with_the_bytes_of_its_value() {
        let mut arguments = Arguments::default();
        arguments.scalar(0x1234_5678_u32);
        arguments.scalar(1.5_f32);
        arguments.scalar(u64::MAX - 1);
        let bytes: Vec<_> = arguments.0.iter().map(|value| value.to_ne_bytes()).collect();
        assert_eq!(bytes[0][..4], 0x1234_5678_u32.to_ne_bytes());
        assert_eq!(bytes[1][..4], 1.5_f32.to_ne_bytes());
        assert_eq!(bytes[2], (u64::MAX - 1).to_ne_bytes());
    }
}
