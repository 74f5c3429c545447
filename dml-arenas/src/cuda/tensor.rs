//! DLPack tensors in GPU memory and in page-locked memory: imported as storage, exported under grants.

use super::arena::CudaArena;
use super::block::CudaBlock;
use super::external::{ExternalError, Refused, is_page_locked};
use super::pinned::Store;
use crate::HostArena;
use crate::dlpack::abi::{CUDA, CUDA_HOST, DLDevice};
use crate::dlpack::{self, Element, Export, ExportError, ImportError, Place, Tensor, Unexported};
use dml_core::{Access, ArenaId, BlockRef, ExternalBlock, Grants, NativeHandle, Region, ViewError};

impl CudaArena {
    /// Creates a block over a tensor in this GPU's memory.
    ///
    /// [`RawBuffer::attach_block`](dml_core::RawBuffer::attach_block) makes the block storage of a buffer.
    /// The tensor is deleted with the buffer, unless
    /// [`RawBuffer::into_container`](dml_core::RawBuffer::into_container) returns it.
    ///
    /// The buffer has the tensor's elements in row-major order, [`Tensor::len`] of them.
    ///
    /// # Errors
    /// [`Refused`] with the tensor: [`ExternalError::Tensor`] for a tensor that is read-only, has other
    /// elements or is on another device, and the errors of [`external`](Self::external).
    pub fn external_tensor<T: Element>(
        &self,
        tensor: Tensor,
    ) -> Result<ExternalBlock<Tensor>, Box<Refused<Tensor>>> {
        let own = DLDevice { device_type: CUDA, device_id: self.session.found.device };
        let (found, bytes) = (tensor.device(), tensor.len().saturating_mul(size_of::<T>() as u64));
        let checked = match found == own {
            true => tensor.elements_of::<T>().and_then(|address| tensor.writable().map(|()| address)),
            false => Err(ImportError::Device {
                found,
                expected: format!("device {} of type {CUDA}", own.device_id),
            }),
        };
        match checked {
            // SAFETY: the tensor's creator guarantees that the elements stay until it is deleted (1), unused
            // by others (2), with all commands on them ended (3). They are aligned for their type (4), and
            // any thread may delete the tensor (5).
            Ok(address) => unsafe { self.external(NativeHandle(address), bytes, tensor) },
            Err(cause) => Err(Box::new(Refused { cause: ExternalError::Tensor(cause), container: tensor })),
        }
    }

    /// Exports granted bytes in this GPU's memory as a tensor, as [`dlpack::export`](crate::dlpack::export)
    /// does for host memory.
    ///
    /// The bytes can be read in any stream at once: the transfers that brought them have ended. The streams
    /// that the consumer uses are unknown, so the deleter waits for all work of the device's primary context.
    /// Then it ends the grants. A consumer in another context must wait for its own work before it deletes
    /// the tensor.
    ///
    /// # Errors
    /// [`Unexported`] with the grants: [`ExportError::View`], [`ExportError::Shape`],
    /// [`ExportError::Alignment`], and [`ExportError::Elsewhere`] for grants of another arena, or of host
    /// memory to which this GPU is bound.
    pub fn export<T: Element>(
        &self,
        grants: Grants,
        region: &impl Region,
        shape: &[u64],
    ) -> Result<Export, Box<Unexported<Grants>>> {
        match self.place(&grants, region) {
            Ok(place) => Export::at::<T>(grants, region, shape, place),
            Err(cause) => Err(Box::new(Unexported { cause, kept: grants })),
        }
    }

    fn place(&self, grants: &Grants, region: &impl Region) -> Result<Place, ExportError> {
        let (granted, is_read_only) = match grants.granted(region, Access::ReadWrite) {
            Ok(granted) => (granted, false),
            Err(ViewError::NotWritable { .. }) => (grants.granted(region, Access::ReadOnly)?, true),
            Err(error) => return Err(error.into()),
        };
        let (block, span) = granted;
        let is_elsewhere = |block: &BlockRef| {
            let own = block.downcast_ref::<CudaBlock>().filter(|block| block.is_of(&self.session));
            own.is_none_or(CudaBlock::is_of_host)
        };
        if block.is_some_and(is_elsewhere) {
            let buffer = region.buffer().name();
            return Err(ExportError::Elsewhere { buffer, expected: "this GPU's memory" });
        }
        let address = block.map_or(0, |block| block.native().0 + span.start() as usize);
        let session = self.session.clone();
        Ok(Place {
            address: std::ptr::without_provenance_mut(address),
            bytes: span.len(),
            device: DLDevice { device_type: CUDA, device_id: session.found.device },
            is_read_only,
            settle: Some(Box::new(move || session.settle())),
        })
    }
}

impl HostArena {
    /// Exports granted bytes in page-locked memory (`cuda_pinned`) as a tensor, as
    /// [`dlpack::export`](crate::dlpack::export) does for other host memory. The grants may be main memory's,
    /// if that shares this arena's storage.
    ///
    /// GPUs may still transfer the memory when the consumer calls the deleter, which waits for all work of
    /// the first GPU's primary context. A consumer that uses other GPUs must wait for those itself.
    ///
    /// # Errors
    /// [`Unexported`] with the grants: [`ExportError::View`], [`ExportError::Shape`], and
    /// [`ExportError::Elsewhere`] for memory that is not page-locked by this arena.
    pub fn export<T: Element>(
        &self,
        grants: Grants,
        region: &impl Region,
        shape: &[u64],
    ) -> Result<Export, Box<Unexported<Grants>>> {
        let buffer = region.buffer();
        let arenas = buffer.platform().arenas().iter();
        let own = arenas.map(|arena| (**arena).downcast_ref::<Self>());
        let own = own.zip(0..).find(|(arena, _)| arena.is_some_and(|arena| std::ptr::eq(arena, self)));
        let is_shared = own.is_some_and(|(_, own)| {
            let shares = |arena| arena == ArenaId(own) || buffer.shares_storage(arena, ArenaId(own));
            grants.arena(region).is_ok_and(shares)
        });
        let buffer = buffer.name();
        let export = dlpack::export::<T>(grants, region, shape)?;
        let session = self.store::<Store>().map(Store::session).cloned();
        let is_locked = |address| session.as_ref().is_some_and(|session| is_page_locked(session, address));
        if export.address().is_some_and(|address| !is_shared || !is_locked(address)) {
            let cause = ExportError::Elsewhere { buffer, expected: "page-locked memory" };
            return Err(Box::new(Unexported { cause, kept: export.into_grants() }));
        }
        let device = DLDevice { device_type: CUDA_HOST, device_id: 0 };
        Ok(export.on(device, Box::new(move || session.as_ref().map_or(Ok(()), |session| session.settle()))))
    }
}
