//! The memories that ship, joined in every way in which they keep one buffer together.

use dml_arenas::{Discover, DiscoverError, DiscoverOptions, Sharing, Workers};
use dml_core::PlatformBuilder;
use std::path::Path;

/// The size of the memory of a worker, and of shared memory, in bytes.
const MEMORY_BYTES: u64 = 16 << 20;

/// A platform of memories that ship, as the reference model meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shipping {
    /// An OpenCL device with copies.
    OpenClCopied,
    /// An OpenCL device bound to main memory.
    OpenClBound,
    /// An OpenCL device that is bound for those buffers alone whose hints ask for it.
    OpenClBoundForSome,
    /// An OpenCL device that shares virtual memory with main memory.
    OpenClFineGrained,
    /// A worker with memory of its own.
    Worker,
    /// Main memory bound to shared memory, which no device beside the processor uses.
    MainShares,
    /// Main memory and two workers that share.
    WorkersShare,
    /// Main memory, a worker and an OpenCL device that share.
    WorkerAndOpenClShare,
}

impl Shipping {
    /// Every one of them.
    pub const ALL: [Self; 8] = [
        Self::OpenClCopied,
        Self::OpenClBound,
        Self::OpenClBoundForSome,
        Self::OpenClFineGrained,
        Self::Worker,
        Self::MainShares,
        Self::WorkersShare,
        Self::WorkerAndOpenClShare,
    ];

    /// Returns what discovery is to find. Workers run `program`, or this program if it calls `offload::hook`.
    pub fn options(self, program: Option<&Path>) -> DiscoverOptions {
        const OPENCL: &str = "opencl:0";
        const WORKERS: [&str; 2] = ["offload:0", "offload:1"];
        let workers = |count| {
            let workers = Workers::new(count).memory(MEMORY_BYTES);
            program.into_iter().fold(workers, Workers::program)
        };
        let alone = |device| {
            DiscoverOptions::default().only([device]).offload(workers(u32::from(device == WORKERS[0])))
        };
        let memory = |devices: &[&str]| Sharing::memory(devices.iter().copied()).bytes(MEMORY_BYTES);
        let sharing = |count, [a, b]: [&str; 2]| {
            let options = DiscoverOptions::default().offload(workers(count)).only([a, b]);
            options.sharing(memory(&[a, b, "cpu"]))
        };
        match self {
            Self::OpenClCopied => alone(OPENCL),
            Self::OpenClBound => alone(OPENCL).sharing(Sharing::bound(OPENCL)),
            Self::OpenClBoundForSome => alone(OPENCL).sharing(Sharing::default().allow_binding(OPENCL)),
            Self::OpenClFineGrained => alone(OPENCL).sharing(Sharing::fine_grained(OPENCL)),
            Self::Worker => alone(WORKERS[0]),
            Self::MainShares => alone("cpu").sharing(memory(&["cpu"])),
            Self::WorkersShare => sharing(2, WORKERS),
            Self::WorkerAndOpenClShare => sharing(1, [WORKERS[0], OPENCL]),
        }
    }

    /// Finds the memories.
    ///
    /// # Errors
    /// What discovery says, such as that this machine has no OpenCL device.
    pub fn discover(self, program: Option<&Path>) -> Result<PlatformBuilder, DiscoverError> {
        PlatformBuilder::default().discover_with(&self.options(program))
    }
}
