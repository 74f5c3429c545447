//! The simple mode: co-executes one kernel on every device of the machine.
//!
//! Run with `cargo run --release --example saxpy`.

use dml::Kernel;
use dml::prelude::*;
use rayon::prelude::*;

const SAXPY: &str =
    "kernel void saxpy(float a, global const float* x, global const float* y, global float* out, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) out[i] = a * x[i] + y[i];
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let platform = Platform::builder().discover()?.build()?;
    let x = platform.buffer_from((0..4_000_000).map(|i| (i % 1000) as f32).collect::<Vec<_>>())?;
    let y = platform.buffer_from(vec![0.5_f32; 4_000_000])?;
    let out = platform.buffer::<f32>(4_000_000).build()?;
    let host = launch::host(&platform, |call| {
        let a: f32 = call.scalar(0)?;
        let [x, y, out] = call.parts([1, 2, 3])?;
        let inputs = x.slice::<f32>()?.par_iter().zip(y.slice::<f32>()?);
        out.slice_mut::<f32>()?.par_iter_mut().zip(inputs).for_each(|(out, (x, y))| *out = a * x + y);
        Ok(())
    })?;
    // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
    let opencl = unsafe { launch::opencl(&platform, SAXPY, "saxpy", "") }?;
    let kernel = Kernel::new("saxpy", 64).scalar(2.0_f32).read(&x).read(&y).write(&out).end();
    let report = Coexecutor::new(&platform).run(&kernel.launchers(host)?.launchers(opencl)?, out.len())?;
    println!("{} devices, balance {:.2}", report.devices.len(), report.balance());
    let is_right = (0..).zip(&*out.read()?).all(|(i, value)| *value == 2.0 * (i % 1000) as f32 + 0.5);
    if is_right { Ok(()) } else { Err("a wrong result".into()) }
}

#[test]
fn every_item_is_right() {
    main().unwrap();
}
