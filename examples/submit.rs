//! Dependent kernels, and chunks that travel while others are computed, on one device.
//!
//! Run with `cargo run --release --example submit`.

use dml::prelude::*;

const KERNELS: &str = "
kernel void scale(global const float* from, global float* to, float by, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) to[i] = by * from[i];
}";

const CHUNK: u64 = 1 << 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let platform = Platform::builder().discover()?.build()?;
    let (device, host) = (platform.device("opencl:0")?, platform.device("cpu")?);
    // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
    let scale = unsafe { launch::kernel(&platform, device, KERNELS, "scale") }?;
    let scaled = |from: &Buffer<f32>, to: &Buffer<f32>, by: f32| {
        platform.submit(device, &scale).read(from).write(to).scalar(by).scalar(from.len())
    };

    // A chain: no kernel waits on the host for the one before it.
    let a = platform.buffer_from(vec![1.0_f32; CHUNK as usize])?;
    let b = platform.buffer::<f32>(CHUNK).build()?;
    for _ in 0..500 {
        scaled(&a, &b, 0.5).items(CHUNK)?;
        scaled(&b, &a, 2.0).items(CHUNK)?;
    }
    let sum: f32 = a.read()?.iter().sum(); // waits for the kernels that wrote `a`

    // A pipeline: a chunk's input, kernel and result overlap with those of other chunks.
    let mut results = Vec::new();
    for chunk in 0..8_u8 {
        let from = platform.buffer_from(vec![f32::from(chunk); CHUNK as usize])?;
        let to = platform.buffer::<f32>(CHUNK).build()?;
        // The kernel begins behind the copy of `from`, and that of `to` behind the kernel.
        scaled(&from, &to, 3.0).bring_results(host).items(CHUNK)?;
        results.push((chunk, to));
    }
    for (chunk, to) in results {
        if to.read()?[0] != 3.0 * f32::from(chunk) {
            return Err("a wrong chunk".into());
        }
    }

    // A failed kernel is an error of each wait: for it, for its bytes, or for the device.
    platform.settle(device)?;
    if sum == CHUNK as f32 { Ok(()) } else { Err("a wrong sum".into()) }
}

#[test]
fn every_result_is_right() {
    main().unwrap();
}
