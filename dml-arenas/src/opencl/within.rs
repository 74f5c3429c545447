//! Copies within a device's memory, in the order of its kernels.

use super::block::OpenClBlock;
use super::error::refused;
use super::handle::Event;
use super::kernel::OpenClKernel;
use dml_core::{BlockRef, Fence, Span, TransferError};
use opencl3::command_queue::enqueue_copy_buffer;
use opencl3::error_codes::{CL_INVALID_MEM_OBJECT, CL_INVALID_VALUE};
use opencl3::types::{cl_event, cl_mem};

const COPY: &str = "clEnqueueCopyBuffer";

impl OpenClKernel {
    /// Starts copies from blocks to others of the kernel's arena, after all kernels that were launched before. Each is of the same bytes
    /// at both ends. The fence ends when all have, and reports their bytes.
    pub(crate) fn copy(&self, parts: &[(&BlockRef, &BlockRef, Span)]) -> Result<Fence, TransferError> {
        let mut commands = Vec::with_capacity(parts.len());
        for (from, to, span) in parts.iter().filter(|(_, _, span)| !span.is_empty()) {
            commands.push((self.memory(from, *span)?, self.memory(to, *span)?, *span));
        }
        let Some((last, before)) = commands.split_last() else { return Ok(Fence::done(0)) };
        let session = self.session();
        session.await_beside()?;
        let queue = session.kernels()?;
        let mut previous: Option<Event> = None;
        let enqueue = |(from, to, span): &(cl_mem, cl_mem, Span), previous: Option<&Event>| {
            let (start, size) = (span.start() as usize, span.len() as usize);
            let after: Option<cl_event> = previous.map(Event::raw);
            let (count, events) =
                after.as_ref().map_or((0, std::ptr::null()), |event| (1, std::ptr::from_ref(event)));
            // SAFETY: a live queue and buffers of its context with these bytes, which outlive the command: the fence keeps their blocks,
            // and whoever meets an error before there is one waits.
            unsafe { enqueue_copy_buffer(queue, *from, *to, start, start, size, count, events) }
        };
        for command in before {
            // Each waits for the one before, so that the end of the last one tells how all ended.
            match session.event(COPY, enqueue(command, previous.as_ref())) {
                Ok(event) => previous = Some(event),
                Err(error) => return Err(self.after(previous.as_ref(), error)),
            }
        }
        let keep: Vec<BlockRef> =
            parts.iter().flat_map(|(from, to, _)| [(*from).clone(), (*to).clone()]).collect();
        let bytes = commands.iter().map(|(_, _, span)| span.len()).sum();
        let enqueued = enqueue(last, previous.as_ref());
        let is_enqueued = enqueued.is_ok();
        match session.fence(COPY, (queue, enqueued), bytes, keep) {
            // That waits for the last one by itself.
            Err(error) if !is_enqueued => Err(self.after(previous.as_ref(), error)),
            fence => fence,
        }
    }

    /// Returns an error when the copies that were enqueued before it have ended.
    fn after(&self, previous: Option<&Event>, error: TransferError) -> TransferError {
        if let Some(event) = previous {
            let _ = self.session().wait(COPY, event);
        }
        error
    }

    /// The buffer of a block that has these bytes.
    fn memory(&self, block: &BlockRef, span: Span) -> Result<cl_mem, TransferError> {
        let refuse = |code: i32, reason: &str| Err(refused(COPY, code, reason.to_owned()));
        let own = block.downcast_ref::<OpenClBlock>().filter(|block| block.is_of(self.session()));
        let Some(own) = own else {
            return refuse(CL_INVALID_MEM_OBJECT, "a block belongs to another arena");
        };
        if block.len() < span.end() {
            return refuse(CL_INVALID_VALUE, "the bytes are not within the blocks");
        }
        assert!(
            !own.mapping().is_mapped(),
            "core bug: bytes {span} of a block mapped for the host are copied"
        );
        Ok(own.mem())
    }
}
