//! What the device tests share: finding the device, bytes with a pattern, and how to skip out loud.

#![allow(dead_code, reason = "each test binary uses its own part")]

use dml_arenas::{Discover, DiscoverOptions};
use dml_core::{DeviceId, HostSpan, Platform};

/// The platform of this machine if it has an OpenCL device, with that device.
///
/// Without one the test is skipped, out loud, unless the environment variable `DML_EXPECT` names `opencl`: then the run
/// was told that there is a device, and the test fails.
pub(crate) fn with_opencl(test: &str) -> Option<(Platform, DeviceId)> {
    with_opencl_options(test, &DiscoverOptions::default())
}

/// As [`with_opencl`], of what the options leave; they ask for nothing that the machine lacks.
pub(crate) fn with_opencl_options(test: &str, options: &DiscoverOptions) -> Option<(Platform, DeviceId)> {
    let builder =
        Platform::builder().discover_with(options).expect("the machine has what the options ask for");
    let platform = builder.build().expect("what discovery adds fits together");
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

/// Bytes that depend on their position and on `seed`, with a period that is no power of two.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| ((index * 31 + index / 251) as u8) ^ seed).collect()
}

/// Host memory holding a copy of `bytes`.
pub(crate) fn host(bytes: &[u8]) -> HostSpan {
    let span = HostSpan::scratch(bytes.len() as u64).expect("memory for a test");
    write(&span, bytes);
    span
}

/// Copies `bytes` to the start of host memory.
pub(crate) fn write(span: &HostSpan, bytes: &[u8]) {
    assert!(bytes.len() as u64 <= span.len());
    // SAFETY: the span is live for its length, and this test alone uses it now.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), span.as_ptr(), bytes.len()) }
}

/// What is in host memory.
pub(crate) fn read(span: &HostSpan) -> Vec<u8> {
    // SAFETY: the span is live for its length, and nobody writes it now.
    unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len() as usize) }.to_vec()
}
