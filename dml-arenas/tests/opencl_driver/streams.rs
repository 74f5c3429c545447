//! Submitted kernels: which failure of the driver is whose, and what is sent to the device when.

use super::{nothing_is_left, platform};
use crate::driver::{code, stand_in};
use dml_arenas::launch;
use dml_core::{AcquireError, Buffer, SubmitError};

const SOURCE: &str = "kernel void late(__global uint *to, uint value, ulong microseconds)";
const KERNEL: &str = "clEnqueueNDRangeKernel";

/// The driver reports success for the kernels behind the failed one. DML looks at each kernel's status.
#[test]
fn the_command_that_failed_is_named_and_those_behind_it_end_with_it() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let device = platform.device("opencl:0").unwrap();
    // SAFETY: the kernel writes the first word of its buffer.
    let late = unsafe { launch::kernel(&platform, device, SOURCE, "late") }.unwrap();
    let buffers: Vec<Buffer<u32>> = (0..5).map(|_| platform.buffer_from(vec![7; 4]).unwrap()).collect();
    // Their memory is there before the driver is held up.
    buffers
        .iter()
        .for_each(|buffer| platform.acquire(device).write(buffer).wait().unwrap().release().unwrap());
    for (fails, numbers) in [(20, 1..=40), (3, 41..=50), (1, 51..=51)] {
        let held = driver.hold();
        driver.fail(&format!("end of {KERNEL}"), fails - 1, code::OUT_OF_RESOURCES);
        let (mut last, first) = ([0; 5], *numbers.start());
        for number in numbers.clone() {
            let at = number as usize % buffers.len();
            last[at] = number;
            let submit = platform.submit(device, &late).write(&buffers[at]);
            let submission = submit.scalar(number).scalar(0_u64).items(1).unwrap();
            assert_eq!(submission.number(), u64::from(number));
        }
        drop(held);
        let culprit = first + fails as u32 - 1;
        let error = platform.settle(device).unwrap_err();
        let SubmitError::Failed { number, kernel, device: name, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*number, &**kernel, &**name), (culprit.into(), "late", "opencl:0"), "{error}");
        assert!(error.to_string().contains("CL_OUT_OF_RESOURCES"), "{error}");
        for (buffer, last) in buffers.iter().zip(last) {
            match buffer.read() {
                Ok(view) => assert!(last < culprit && (last == 0 || view[0] == last), "{last}: {view:?}"),
                Err(AcquireError::Poisoned { .. }) => assert!(last >= culprit),
                Err(error) => panic!("{error}"),
            }
        }
        // What is overwritten is whole again.
        for buffer in &buffers {
            let mut view = buffer.write().unwrap();
            view.fill(7);
            view.release().unwrap();
        }
    }
    drop((buffers, late, platform));
    nothing_is_left(driver);
}
