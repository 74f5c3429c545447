//! What the device tests share: finding the device, bytes with a pattern, and how to skip out loud.

#![allow(dead_code, reason = "each test binary uses its own part")]

#[cfg(feature = "opencl")]
pub(crate) mod gate;

use dml_arenas::{Discover, DiscoverError, DiscoverOptions};
use dml_core::{DeviceId, DeviceKind, Fence, HostMemory, OwnBlock, Platform, Span, TransferError};

/// The platform of this machine if it has an OpenCL device, with that device.
///
/// Without one the test is skipped, out loud, unless the environment variable `DML_EXPECT` names `opencl`:
/// then the run was told that there is a device, and the test fails.
pub(crate) fn with_opencl(test: &str) -> Option<(Platform, DeviceId)> {
    // A device that CUDA has as well is used only where it is named.
    with_opencl_options(test, &DiscoverOptions::default().only(["opencl:0"]))
}

/// As [`with_opencl`], of what the options leave; they ask for nothing that the machine lacks.
pub(crate) fn with_opencl_options(test: &str, options: &DiscoverOptions) -> Option<(Platform, DeviceId)> {
    let found = match Platform::builder().discover_with(options) {
        // The options name the device.
        Err(DiscoverError::UnknownDevice { name, .. }) if name == "opencl:0" => {
            Platform::builder().discover_with(&DiscoverOptions::default())
        }
        found => found,
    };
    let platform = found.expect("the machine has what the options ask for").build();
    let platform = platform.expect("what discovery adds fits together");
    match platform.device("opencl:0") {
        Ok(device) => Some((platform, device)),
        Err(_) => {
            let reasons: Vec<_> = platform.unavailable().iter().map(ToString::to_string).collect();
            let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
            assert!(!expected, "DML_EXPECT names opencl, and there is no device: {}", reasons.join("; "));
            eprintln!("SKIPPED {test}: no OpenCL device: {}", reasons.join("; "));
            None
        }
    }
}

/// As [`with_opencl_options`], of something that drivers of GPUs need not offer, such as parts of a device: a
/// GPU without it is told so.
pub(crate) fn with_opencl_offer(test: &str, options: &DiscoverOptions) -> Option<(Platform, DeviceId)> {
    let (platform, device) = with_opencl(test)?;
    let kind = platform.device_desc(device).kind;
    drop(platform);
    match Platform::builder().discover_with(options) {
        Err(error @ (DiscoverError::BadLimit { .. } | DiscoverError::BadSharing { .. }))
            if kind == DeviceKind::Gpu =>
        {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
        _ => with_opencl_options(test, options),
    }
}

/// The platform of this machine if it has a CUDA device, with that device. Without one the test is skipped,
/// out loud, unless the environment variable `DML_EXPECT` names `cuda`.
pub(crate) fn with_cuda(test: &str) -> Option<(Platform, DeviceId)> {
    let builder =
        Platform::builder().discover_with(&DiscoverOptions::default().offload(0)).expect("nothing is named");
    let platform = builder.build().expect("what discovery adds fits together");
    match platform.device("cuda:0") {
        Ok(device) => Some((platform, device)),
        Err(_) => {
            let reasons: Vec<_> = platform.unavailable().iter().map(ToString::to_string).collect();
            let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("cuda"));
            assert!(!expected, "DML_EXPECT names cuda, and there is no device: {}", reasons.join("; "));
            eprintln!("SKIPPED {test}: no CUDA device: {}", reasons.join("; "));
            None
        }
    }
}

/// Bytes that depend on their position and on `seed`, with a period that is no power of two.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| ((index * 31 + index / 251) as u8) ^ seed).collect()
}

/// Host memory holding a copy of `bytes`.
pub(crate) fn host(bytes: &[u8]) -> HostMemory {
    HostMemory::holding(bytes.to_vec())
}

/// All of some host memory.
pub(crate) fn whole(memory: &HostMemory) -> Span {
    Span::new(0, memory.len())
}

/// Starts copying `bytes` into a block at `offset`.
pub(crate) fn copy_in(block: &OwnBlock, offset: u64, bytes: &[u8]) -> Result<Fence, TransferError> {
    let from = host(bytes);
    block.copy_in(offset, &from, whole(&from))
}

/// Starts copying from a block at `offset` into all of host memory.
pub(crate) fn copy_out(block: &OwnBlock, offset: u64, to: &mut HostMemory) -> Result<Fence, TransferError> {
    let part = whole(to);
    block.copy_out(offset, to, part)
}

/// Copies `bytes` into a block at `offset` and waits.
#[track_caller]
pub(crate) fn put(block: &OwnBlock, offset: u64, bytes: &[u8]) {
    assert_eq!(copy_in(block, offset, bytes).unwrap().wait(), Ok(bytes.len() as u64));
}

/// What is in `span` of a block.
#[track_caller]
pub(crate) fn take(block: &OwnBlock, span: Span) -> Vec<u8> {
    let mut to = HostMemory::zeroed(span.len()).expect("memory for a test");
    assert_eq!(copy_out(block, span.start(), &mut to).unwrap().wait(), Ok(span.len()));
    to.bytes().to_vec()
}
