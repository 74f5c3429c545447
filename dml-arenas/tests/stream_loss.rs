//! A submitted kernel that faults: those behind it end with it, everything else is there. Without a device
//! a test says so and passes, unless `DML_EXPECT` names it.
//!
//! A fault ends the context that the whole process shares, so each test needs a process of its own.

#![cfg(all(feature = "cuda", feature = "opencl", not(dml_loom)))]

mod common;

use common::{with_cuda, with_opencl};
use dml_arenas::launch;
use dml_core::{AcquireError, DeviceId, DeviceKind, Items, Platform, SubmitError};

const CUDA: &str = r#"
    extern "C" __global__ void trap(unsigned* data) { if (data[0] != 0xFFFFFFFFu) asm("trap;"); }
    extern "C" __global__ void add(const unsigned* from, unsigned* to, unsigned long long end, DmlItems items) {
        if (items.x() < end) to[items.x()] = from[items.x()] + 1;
    }"#;

const OPENCL: &str = r#"
    kernel void trap(global uint* data) { if (data[0] != 0xFFFFFFFFu) asm volatile("trap;"); }
    kernel void add(global const uint* from, global uint* to, ulong end) {
        if (get_global_id(0) < end) to[get_global_id(0)] = from[get_global_id(0)] + 1;
    }"#;

const WORDS: u64 = 10_000;

#[test]
fn a_submitted_kernel_that_traps_takes_those_behind_it_along_and_nothing_else() {
    let test = "a_submitted_kernel_that_traps_takes_those_behind_it_along_and_nothing_else";
    let Some((platform, gpu)) = with_cuda(test) else { return };
    traps(&platform, gpu, CUDA, "CUDA_ERROR_");
}

/// The same through the OpenCL of the GPU's vendor. A processor has no trap that its process survives.
#[test]
fn a_submitted_kernel_of_opencl_that_traps_takes_those_behind_it_along_and_nothing_else() {
    let test = "a_submitted_kernel_of_opencl_that_traps_takes_those_behind_it_along_and_nothing_else";
    let Some((platform, gpu)) = with_opencl(test) else { return };
    if platform.device_desc(gpu).kind == DeviceKind::Gpu {
        traps(&platform, gpu, OPENCL, "CL_");
    }
}

fn traps(platform: &Platform, gpu: DeviceId, source: &str, cause: &str) {
    let name = platform.device_desc(gpu).name.clone();
    // SAFETY: the kernels touch only the elements of their items; one traps.
    let kernel = |name| unsafe { launch::kernel(platform, gpu, source, name) }.unwrap();
    let (trap, add) = (kernel("trap"), kernel("add"));
    let [a, b, c, d, other] =
        [0, 1, 2, 3, 4].map(|value| platform.buffer_from(vec![value; WORDS as usize]).unwrap());
    let adds = |from, to| {
        platform.submit(gpu, &add).read(from).write(to).scalar(WORDS).items(WORDS).map(|one| one.number())
    };
    // All have memory there before it.
    adds(&a, &d).unwrap();
    adds(&a, &c).unwrap();
    assert_eq!(adds(&a, &b).unwrap(), 3);
    assert_eq!(*b.read().unwrap(), [1; WORDS as usize], "what ended before is on the host");
    assert_eq!(adds(&b, &c).unwrap(), 4);
    platform.submit(gpu, &trap).read_write(&c).items(Items::from(1_u64).in_groups([32, 1, 1])).unwrap();
    let behind = platform.submit(gpu, &add).read(&c).write(&d).scalar(WORDS).items(WORDS).unwrap();
    for number in 0..50 {
        // They may find the device lost, or be accepted and fail.
        if let Err(error) = adds(&b, &d) {
            assert!(error.to_string().contains("lost"), "{number}: {error}");
        }
    }
    let error = behind.wait().unwrap_err();
    eprintln!("{error}");
    let SubmitError::Failed { device, number, .. } = &error else { panic!("{error:?}") };
    assert!(*device == name && (4..=5).contains(number), "{error}");
    assert!(error.to_string().contains(cause), "{error}");
    let settled = platform.settle(gpu).unwrap_err();
    assert!(settled.to_string().contains(&*name), "{settled}");
    // What was written behind the trap cannot be read. The rest can.
    for lost in [&c, &d] {
        let error = lost.read().map(drop).unwrap_err();
        let is_said = matches!(error, AcquireError::Poisoned { .. }) || error.is_device_lost();
        assert!(is_said, "{error}");
    }
    let whole = [(&a, 0), (&b, 1), (&other, 4)];
    whole.iter().for_each(|(buffer, value)| assert_eq!(*buffer.read().unwrap(), [*value; WORDS as usize]));
    let refused = adds(&a, &b).unwrap_err();
    assert!(refused.to_string().contains("lost"), "{refused}");
    assert!(platform.leaked_grants().is_empty());
}
