//! Copies within a device's memory, in the order of its kernels.

use super::block::CudaBlock;
use super::error::refused;
use super::kernel::CudaKernel;
use super::session::Way;
use cudarc::driver::sys::{CUresult, cuMemcpyDtoDAsync_v2, cuStreamSynchronize};
use dml_core::{BlockRef, Fence, Span, TransferError};

const COPY: &str = "cuMemcpyDtoDAsync";

impl CudaKernel {
    /// Starts copies from blocks to others of the kernel's arena, after all kernels that were launched before. Each is of the same bytes
    /// at both ends. The fence ends when all have, and reports their bytes.
    pub(crate) fn copy(&self, parts: &[(&BlockRef, &BlockRef, Span)]) -> Result<Fence, TransferError> {
        let invalid = |reason: &str| refused(COPY, CUresult::CUDA_ERROR_INVALID_VALUE, reason.to_owned());
        let session = self.session();
        let own =
            |block: &BlockRef| block.downcast_ref::<CudaBlock>().is_some_and(|block| block.is_of(session));
        let mut commands = Vec::with_capacity(parts.len());
        for (from, to, span) in parts.iter().filter(|(_, _, span)| !span.is_empty()) {
            if !own(from) || !own(to) {
                return Err(invalid("a block belongs to another arena"));
            }
            if [from, to].into_iter().any(|block| block.len() < span.end()) {
                return Err(invalid("the bytes are not within the blocks"));
            }
            let at = |block: &BlockRef| block.downcast_ref::<CudaBlock>().map(|block| block.at(span.start()));
            commands.extend(at(from).zip(at(to)).map(|(from, to)| (from, to, span.len())));
        }
        if commands.is_empty() {
            return Ok(Fence::done(0));
        }
        session.await_beside()?;
        let keep: Vec<BlockRef> =
            parts.iter().flat_map(|(from, to, _)| [(*from).clone(), (*to).clone()]).collect();
        let bytes = commands.iter().map(|(_, _, bytes)| bytes).sum();
        // SAFETY: the bytes lie within blocks of this session, which the fence keeps.
        unsafe {
            session.command((Way::Kernels, COPY), bytes, keep, |stream| {
                let copy = |(from, to, bytes): &(_, _, u64)| {
                    cuMemcpyDtoDAsync_v2(*to, *from, *bytes as usize, stream)
                };
                let failed = commands.iter().map(copy).find(|done| *done != CUresult::CUDA_SUCCESS);
                if failed.is_some() {
                    // Copies before may still run, so wait for them while `keep` is alive.
                    let _ = cuStreamSynchronize(stream);
                }
                failed.unwrap_or(CUresult::CUDA_SUCCESS)
            })
        }
    }
}
