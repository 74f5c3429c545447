//! Co-executes one kernel on all devices of the machine, with a hand-written variant for the host and for
//! each OpenCL device. `examples/saxpy.rs` uses launchers instead.
//!
//! Run with `cargo run --release --example coexecute`.

use dml::Kernel;
use dml::arenas::launch::{Grid, KernelArg};
use dml::core::{Fence, Scalar};
use dml::prelude::*;
use std::error::Error;

const ITEMS: u64 = 4_000_000;
const LOCAL: u64 = 64;
const SQUARE: &str = "kernel void square(global const float* in, global float* out, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) out[i] = in[i] * in[i];
}";

fn main() -> Result<(), Box<dyn Error>> {
    let platform = Platform::builder().discover()?.build()?;
    let input = platform.buffer_from((0..ITEMS).map(|i| (i % 1000) as f32).collect::<Vec<_>>())?;
    let output = platform.buffer::<f32>(ITEMS).build()?;

    let per_item = || Footprint::PerItem { bytes: 4 };
    let mut kernel = Kernel::new("square", LOCAL)
        .argument(Argument::part(&input, Access::ReadOnly, per_item()))
        .argument(Argument::part(&output, Access::WriteInvalidate, per_item()))
        .variant(platform.device("cpu")?, |_: &Package, grants: &mut Grants| {
            let mut views = grants.views()?;
            let [input, output] = &mut views[..] else { unreachable!("the kernel has two arguments") };
            for (out, value) in output.slice_mut::<f32>()?.iter_mut().zip(input.slice::<f32>()?) {
                *out = value * value;
            }
            Ok(Fence::done(0))
        });
    for (id, arena) in (0..).map(dml::ArenaId).zip(platform.arenas()) {
        let Some(opencl) = arena.downcast_ref::<OpenClArena>() else { continue };
        let program = opencl.kernel(SQUARE, "square", "")?;
        let (source, target) = (input.clone(), output.clone());
        kernel = kernel.variant(
            platform.arena(id).desc().native,
            move |package: &Package, grants: &mut Grants| {
                let block = |buffer| grants.block(buffer).map(|block| block.expect("a package has bytes"));
                let args = [
                    KernelArg::Block(block(&source)?),
                    KernelArg::Block(block(&target)?),
                    KernelArg::Scalar(Scalar::U64(package.end())),
                ];
                let launch = Grid::line(package.start(), package.items(), LOCAL);
                // SAFETY: the kernel touches only the elements of the package's items, all within the blocks.
                Ok(unsafe { program.launch(&args, launch) }?)
            },
        );
    }

    let report = Coexecutor::new(&platform).policy("hguided:2".parse()?).run(&kernel, ITEMS)?;
    for device in &report.devices {
        let name = &platform.device_desc(device.device).name;
        println!(
            "{name}: {} items in {} packages, done after {:?}",
            device.items, device.packages, device.end
        );
    }
    let wrong =
        output.read()?.iter().enumerate().filter(|(i, value)| **value != ((i % 1000) as f32).powi(2)).count();
    println!("{wrong} of {ITEMS} values are wrong");
    if wrong == 0 { Ok(()) } else { Err("the result is wrong".into()) }
}
