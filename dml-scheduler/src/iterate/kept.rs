//! Checkpoints: copies in main memory of what the next step reads.

use super::IterateError;
use super::plan::Kernels;
use crate::kernel::Kernel;
use dml_core::{AcquireError, BufferId, DeviceId, Platform, RawBuffer};
use std::ops::Range;
use std::sync::Arc;

/// The bytes that a step reads, as they were before it.
pub(super) struct Kept {
    /// The number of complete steps.
    pub(super) steps: u64,
    parts: Vec<Copied>,
}

struct Copied {
    buffer: RawBuffer,
    bytes: Range<u64>,
    contents: Arc<[u8]>,
}

impl Kept {
    /// Copies what the kernels read after some steps, unless a step writes it before a kernel that is not
    /// launched in every step. What no kernel writes is taken from an earlier checkpoint.
    pub(super) fn new(
        platform: &Platform,
        kernels: &Kernels,
        steps: u64,
        earlier: Option<&Self>,
    ) -> Result<Self, IterateError> {
        let place = (steps % 2) as usize;
        let written_by = |kernel: &Kernel| {
            let written = kernel.arguments().iter().filter(|argument| argument.access().writes());
            written.map(|argument| argument.buffer().id()).collect::<Vec<_>>()
        };
        let by_steps: Vec<BufferId> = kernels.steps.iter().flatten().flat_map(written_by).collect();
        let by_checks: Vec<BufferId> =
            kernels.checks.iter().flat_map(|(_, kernels)| kernels).flat_map(written_by).collect();
        let of_steps = kernels.steps[place].iter().map(|kernel| (kernel, &[][..]));
        let of_checks = kernels.checks.iter().map(|(_, kernels)| (&kernels[place], &by_steps[..]));
        let earlier = earlier.map_or(&[][..], |kept| &kept.parts);
        let mut parts: Vec<Copied> = Vec::new();
        for (kernel, without) in of_steps.chain(of_checks) {
            for (argument, ranges) in kernel.ranges(0..kernel.total())? {
                let buffer = argument.buffer();
                let access = argument.access();
                let is_written_first = !access.writes() && without.contains(&buffer.id());
                let is_state = access.reads() && !argument.is_reduced() && !is_written_first;
                for bytes in ranges.into_iter().filter(|_| is_state) {
                    let is_it = |part: &&Copied| part.buffer == *buffer && part.bytes == bytes;
                    if parts.iter().any(|part| is_it(&part)) {
                        continue;
                    }
                    let is_written = by_steps.contains(&buffer.id()) || by_checks.contains(&buffer.id());
                    let kept = earlier.iter().find(is_it).filter(|_| !is_written);
                    let contents = kept
                        .map_or_else(|| contents(platform, buffer, &bytes), |kept| Ok(kept.contents.clone()));
                    let part = Copied {
                        buffer: buffer.clone(),
                        contents: contents.map_err(|cause| refused(steps, cause))?,
                        bytes,
                    };
                    parts.push(part);
                }
            }
        }
        Ok(Self { steps, parts })
    }

    /// Gives the buffers these contents.
    pub(super) fn restore(&self, platform: &Platform) -> Result<(), IterateError> {
        self.written_back(platform).map_err(|cause| refused(self.steps, cause))
    }

    fn written_back(&self, platform: &Platform) -> Result<(), AcquireError> {
        for Copied { buffer, bytes, contents } in &self.parts {
            let region = buffer.range(bytes.clone());
            let mut grants = platform.acquire(host(platform)?).write(&region).wait()?;
            let viewed = |cause| AcquireError::View { buffer: buffer.name(), cause };
            grants.slice_mut::<u8>(&region).map_err(viewed)?.copy_from_slice(contents);
            grants.release()?;
        }
        Ok(())
    }
}

fn contents(platform: &Platform, buffer: &RawBuffer, bytes: &Range<u64>) -> Result<Arc<[u8]>, AcquireError> {
    let region = buffer.range(bytes.clone());
    let grants = platform.acquire(host(platform)?).read(&region).wait()?;
    let viewed = |cause| AcquireError::View { buffer: buffer.name(), cause };
    let contents = Arc::from(grants.slice::<u8>(&region).map_err(viewed)?);
    grants.release()?;
    Ok(contents)
}

fn refused(step: u64, cause: AcquireError) -> IterateError {
    IterateError::Checkpoint { step, cause: Box::new(cause) }
}

fn host(platform: &Platform) -> Result<DeviceId, AcquireError> {
    platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })
}
