//! A custom load-balancing policy: trapezoid self-scheduling (Tzeng and Ni, 1993), which the crate does not
//! include.
//!
//! Run with `cargo run --release --example policy`.

use dml::Kernel;
use dml::prelude::*;
use dml::scheduler::{UnitId, policy::Policy};

const ITEMS: u64 = 4_000_000;
const SQUARES: &str = "kernel void squares(global float* out, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) out[i] = (float)(i % 1000) * (i % 1000);
}";

/// A policy whose packages shrink linearly, from half of a unit's share to one item.
#[derive(Debug)]
struct Trapezoid {
    length: u64,
    step: u64,
}

impl Trapezoid {
    fn new(items: u64, units: u64) -> Self {
        let first = (items / (2 * units)).max(1);
        let packages = (2 * items).div_ceil(first + 1);
        Self { length: first, step: first / packages.max(1) }
    }
}

impl Policy for Trapezoid {
    fn next(&mut self, _unit: UnitId, _remaining: u64) -> Option<u64> {
        let length = self.length;
        self.length = length.saturating_sub(self.step).max(1);
        Some(length)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let platform = Platform::builder().discover()?.build()?;
    let out = platform.buffer::<f32>(ITEMS).build()?;
    let host = launch::host(&platform, |call| {
        let items = call.items();
        for (i, out) in items.zip(call.part(0)?.slice_mut::<f32>()?) {
            *out = ((i % 1000) as f32).powi(2);
        }
        Ok(())
    })?;
    // SAFETY: the kernel writes only the elements of its items, and nothing past the end.
    let opencl = unsafe { launch::opencl(&platform, SQUARES, "squares", "") }?;
    let kernel = Kernel::new("squares", 64).write(&out).end().launchers(host)?.launchers(opencl)?;
    let trapezoid = PolicySpec::custom("trapezoid", |input| {
        Ok(Box::new(Trapezoid::new(input.items, input.powers.len() as u64)))
    });
    let report = Coexecutor::new(&platform).policy(trapezoid).run(&kernel, ITEMS)?;
    for record in &report.packages {
        println!("{} in {:?}", record.package, record.end - record.start);
    }
    let is_right = (0..).zip(&*out.read()?).all(|(i, value)| *value == ((i % 1000) as f32).powi(2));
    if is_right { Ok(()) } else { Err("a wrong result".into()) }
}

#[test]
fn every_item_is_right() {
    main().unwrap();
}
