//! A buffer object as a block: allocation, binding, mapping and release.

use super::handle::{Event, Mem};
use super::session::{Reservation, Session};
use dml_core::internal::sync::{Arc, Mutex, MutexGuard};
use dml_core::{Backing, Block, BlockRef, HostMemory, HostSpan, NativeHandle, TransferError, UnmapRequest};
use opencl3::command_queue::{enqueue_map_buffer, enqueue_unmap_mem_object, enqueue_write_buffer};
use opencl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, CL_MAP_FAILURE, CL_MEM_OBJECT_ALLOCATION_FAILURE};
use opencl3::memory::{CL_MAP_READ, CL_MAP_WRITE, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, create_buffer};
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_event, cl_mem};
use std::ptr::NonNull;

/// The call that ends a mapping.
const UNMAP: &str = "clEnqueueUnmapMemObject";

/// A `cl_mem`. The device may use it while it is not mapped, the host while it is mapped.
#[derive(Debug)]
pub(super) struct OpenClBlock {
    mem: Mem,
    len: u64,
    /// The host memory under the buffer, if the block is bound. It outlives the buffer.
    backing: Option<Backing>,
    mapping: Mutex<Mapping>,
    session: Arc<Session>,
    _reservation: Reservation,
}

/// The host's access to a block.
#[derive(Debug, Default)]
pub(super) struct Mapping {
    /// The block's mapping in host memory; `None` while it is unmapped.
    host: Option<HostSpan>,
    /// The event of the last unmap, which may still be in flight in the kernels' queue.
    last_unmap: Option<Event>,
}

impl Mapping {
    /// Returns whether the block is mapped.
    pub(super) fn is_mapped(&self) -> bool {
        self.host.is_some()
    }

    /// Returns the wait list of a command on the block in any queue other than the kernels'. The list is
    /// valid while the mapping is borrowed.
    pub(super) fn after(&self) -> WaitList {
        WaitList(self.last_unmap.as_ref().map(Event::raw))
    }
}

/// The event wait list of a command, with one event at most.
pub(super) struct WaitList(Option<cl_event>);

impl WaitList {
    /// Returns the event, if there is one.
    pub(super) fn event(&self) -> Option<cl_event> {
        self.0
    }

    /// Returns the number of events and their address.
    pub(super) fn parts(&self) -> (u32, *const cl_event) {
        self.0.as_ref().map_or((0, std::ptr::null()), |event| (1, std::ptr::from_ref(event)))
    }
}

impl OpenClBlock {
    /// Allocates `len` bytes on the device immediately, not at first use.
    ///
    /// # Errors
    /// The failed call and its error code.
    pub(super) fn alloc(session: &Arc<Session>, len: usize) -> Result<Self, (&'static str, i32)> {
        let block = Self::new(session, len, None)?;
        block.touch()?;
        Ok(block)
    }

    /// Creates a buffer over the host memory of another arena's block. The driver uses that memory in place
    /// or mirrors it.
    ///
    /// # Errors
    /// The failed call and its error code.
    pub(super) fn bind(
        session: &Arc<Session>,
        len: usize,
        root: &Backing,
    ) -> Result<Self, (&'static str, i32)> {
        Self::new(session, len, Some(root))
    }

    fn new(
        session: &Arc<Session>,
        len: usize,
        backing: Option<&Backing>,
    ) -> Result<Self, (&'static str, i32)> {
        // OpenCL has no empty buffers.
        let size = len.max(1);
        let context = session.context().map_err(|_| ("clCreateBuffer", CL_DEVICE_NOT_AVAILABLE))?;
        let host = backing.and_then(Backing::host).filter(|_| len > 0);
        // A device that shares the host's memory allocates nothing for a bound block.
        let taken = if host.is_some() && !session.part.is_discrete { 0 } else { size as u64 };
        let reservation =
            session.reserve(taken).ok_or(("clCreateBuffer", CL_MEM_OBJECT_ALLOCATION_FAILURE))?;
        let (flags, address) = match host {
            Some(host) => (CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, host.as_ptr().cast()),
            None => (CL_MEM_READ_WRITE, std::ptr::null_mut()),
        };
        // SAFETY: the context is live. Host memory, if any, has `len` bytes and outlives the buffer, because
        // the block keeps it. The device uses it only for requests on this block, as core schedules them.
        let mem = unsafe { create_buffer(context, flags, size, address) }
            .map_err(|code| ("clCreateBuffer", code))?;
        // SAFETY: the buffer was just created, and its only reference is taken over here.
        let mem = unsafe { Mem::own(mem) };
        Ok(Self {
            mem,
            len: len as u64,
            backing: backing.cloned(),
            mapping: Mutex::default(),
            session: session.clone(),
            _reservation: reservation,
        })
    }

    /// Writes one byte, because drivers allocate a buffer only at first use. Waits for this command alone.
    ///
    /// A fill would also wait for running kernels: on NVIDIA's driver it is a kernel, which waits for those
    /// of other queues.
    fn touch(&self) -> Result<(), (&'static str, i32)> {
        static ZERO: u8 = 0;
        let call = "clEnqueueWriteBuffer";
        let source = (&raw const ZERO).cast();
        let queue = self.session.aside().map_err(|_| (call, CL_DEVICE_NOT_AVAILABLE))?;
        // SAFETY: a live queue and a buffer of its context with at least one byte; the source is static.
        let enqueued = unsafe {
            enqueue_write_buffer(queue, self.mem.raw(), CL_NON_BLOCKING, 0, 1, source, 0, std::ptr::null())
        };
        self.session.complete(call, enqueued).map_err(|error| match error {
            TransferError::Framework { call, code, .. } => (call, i32::try_from(code).unwrap_or(i32::MIN)),
            _ => (call, CL_DEVICE_NOT_AVAILABLE),
        })
    }

    pub(super) fn mem(&self) -> cl_mem {
        self.mem.raw()
    }

    /// Returns whether the block's buffer belongs to this session.
    pub(super) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }

    /// Locks the mapping. While the guard lives, no other thread maps or unmaps the block.
    pub(super) fn mapping(&self) -> MutexGuard<'_, Mapping> {
        self.mapping.lock()
    }

    /// Maps the whole block for the host to read and write. A panic message names `arena`.
    ///
    /// # Panics
    /// If the block is already mapped.
    pub(super) fn map(&self, this: &BlockRef, arena: &str) -> Result<HostMemory, TransferError> {
        let mut mapping = self.mapping();
        assert!(!mapping.is_mapped(), "core bug: {arena} was to map a block that is mapped: {self:?}");
        let call = "clEnqueueMapBuffer";
        let queue = self.session.outward()?;
        let after = mapping.after();
        let (count, events) = after.parts();
        let mut address: cl_mem = std::ptr::null_mut();
        // SAFETY: a live queue and a buffer of its context with this many bytes (one for an empty block).
        let enqueued = unsafe {
            enqueue_map_buffer(
                queue,
                self.mem.raw(),
                CL_BLOCKING,
                CL_MAP_READ | CL_MAP_WRITE,
                0,
                (self.len as usize).max(1),
                &mut address,
                count,
                events,
            )
        };
        self.session.complete(call, enqueued)?;
        let address = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| super::error::transfer_error(call, CL_MAP_FAILURE))?;
        self.expect_in_place(address)?;
        // SAFETY: the driver maps `len` bytes at this address until the unmap; memory from a driver counts as
        // initialised. The unmap comes after the memory was taken back (`unmap`), or when the block is
        // dropped, which the memory keeps alive (1). The device does not access the bytes meanwhile: launches
        // and transfers of a mapped block are refused (2). A block has one mapping at a time. It is in memory
        // of its own, or in the memory of the root that the block is bound to (3).
        let memory = unsafe { HostMemory::new(address, self.len as usize, this.clone()) };
        *mapping = Mapping { host: Some(memory.span().clone()), last_unmap: None };
        Ok(memory)
    }

    /// Checks that a bound block is mapped at the address of its root, where host kernels use it.
    fn expect_in_place(&self, mapped: NonNull<u8>) -> Result<(), TransferError> {
        let root = self.backing.as_ref().and_then(Backing::host);
        if self.len == 0 || root.is_none_or(|root| root.as_ptr() == mapped.as_ptr()) {
            return Ok(());
        }
        let queue = self.session.outward()?;
        // SAFETY: a live queue, a buffer of its context, and the address of its mapping, unmapped only here.
        let enqueued = unsafe {
            enqueue_unmap_mem_object(queue, self.mem.raw(), mapped.as_ptr().cast(), 0, std::ptr::null())
        };
        self.session.complete(UNMAP, enqueued)?;
        Err(super::error::transfer_error("clEnqueueMapBuffer", CL_MAP_FAILURE))
    }

    /// Ends the mapping, if its memory was returned. A panic message names `arena`.
    ///
    /// No wait is needed: the in-order queue makes the host's writes visible to later kernels, and commands
    /// in other queues wait for the event.
    ///
    /// # Panics
    /// If the block is not mapped.
    pub(super) fn unmap(&self, mut request: UnmapRequest<'_>, arena: &str) -> Result<(), TransferError> {
        let mut mapping = self.mapping();
        let span = mapping
            .host
            .clone()
            .unwrap_or_else(|| panic!("core bug: {arena} was to unmap a block that is not mapped: {self:?}"));
        let memory = request.take_back(&span).ok_or(TransferError::StillLent)?;
        let unmap = match self.enqueue_unmap(&span) {
            Ok(unmap) => unmap,
            Err(error) => {
                request.put_back(memory);
                return Err(error);
            }
        };
        *mapping = Mapping { host: None, last_unmap: Some(unmap) };
        drop(mapping);
        drop(memory);
        self.session.flush(self.session.kernels()?)
    }

    fn enqueue_unmap(&self, span: &HostSpan) -> Result<Event, TransferError> {
        let queue = self.session.kernels()?;
        // SAFETY: a live queue, a buffer of its context, and the address of its mapping. It is unmapped once,
        // because the caller then forgets the mapping.
        let enqueued = unsafe {
            let address = span.as_ptr().cast();
            enqueue_unmap_mem_object(queue, self.mem.raw(), address, 0, std::ptr::null())
        };
        self.session.event(UNMAP, enqueued)
    }
}

impl Drop for OpenClBlock {
    fn drop(&mut self) {
        // No caller can receive an error here, and the buffer is released in any case, except in a fork.
        if let Some(span) = self.mapping.get_mut().host.take() {
            let _ = self.enqueue_unmap(&span);
            let _ = self.session.kernels().and_then(|kernels| self.session.flush(kernels));
        }
        // The driver keeps a released buffer until its commands have ended, so an unbound block does not
        // wait. The driver does not keep host memory.
        if self.backing.is_some() {
            let _ = self.session.finish();
        }
    }
}

impl Block for OpenClBlock {
    fn len(&self) -> u64 {
        self.len
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(self.mem.raw().addr())
    }

    fn backing(&self) -> Option<&Backing> {
        self.backing.as_ref()
    }
}
