//! A kernel that faults: its device is lost, what ran there fails, and the rest goes on. And forks of a
//! process that uses CUDA. Without a device the tests say so and pass, unless `DML_EXPECT=cuda`.
//!
//! A fault ends the context that the whole process shares, so nothing else is tested beside it: one test has
//! all of it.

#![cfg(all(feature = "cuda", not(dml_loom)))]

mod common;
#[cfg(target_os = "linux")]
#[path = "common/forks.rs"]
mod forks;

use common::with_cuda;
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::{CudaArena, Discover, DiscoverOptions};
use dml_core::{Arena, Buffer, DeviceId, Platform};

const KERNELS: &str = r#"
    extern "C" __global__ void trap(unsigned* data) { if (data[0] != 0xFFFFFFFFu) asm("trap;"); }
    extern "C" __global__ void add(unsigned* data, unsigned long long end, DmlItems items) {
        if (items.x() < end) data[items.x()] += 1;
    }"#;

const WORDS: u32 = 100_000;

fn arena(platform: &Platform, gpu: DeviceId) -> &CudaArena {
    let arena = platform.arena(platform.home(gpu).expect("a GPU has an arena"));
    arena.downcast_ref().expect("a CUDA device has a CUDA arena")
}

/// Adds one to every word on the GPU, where the only valid copy is then.
fn add_one(platform: &Platform, gpu: DeviceId, data: &Buffer<u32>) {
    let kernel = arena(platform, gpu).kernel(KERNELS, "add", "").unwrap();
    let grants = platform.acquire(gpu).read_write(data).wait().unwrap();
    let fence = {
        let block = grants.block(data).unwrap().expect("the GPU has it");
        let end = dml_core::Scalar::U64(WORDS.into());
        let args = [KernelArg::Block(block), KernelArg::Scalar(end)];
        // SAFETY: the kernel ends at the last word of the buffer.
        unsafe { kernel.launch(&args, Grid::line(0, WORDS.into(), 128)) }.unwrap()
    };
    grants.in_flight(fence).wait().unwrap().release().unwrap();
}

fn expected(added: u32) -> impl Iterator<Item = u32> {
    (0..WORDS).map(move |word| word.wrapping_mul(2_654_435_761).wrapping_add(added))
}

#[test]
fn a_kernel_that_traps_loses_its_device_and_nothing_else() {
    let Some((platform, gpu)) = with_cuda("a_kernel_that_traps_loses_its_device_and_nothing_else") else {
        return;
    };
    let cpu = platform.host().unwrap();
    let [kept, gone] = [0, 0].map(|added| platform.buffer_from(expected(added).collect::<Vec<_>>()).unwrap());
    add_one(&platform, gpu, &kept);
    add_one(&platform, gpu, &gone);
    // The one is valid on both now, the other on the GPU alone.
    assert!(kept.read().unwrap().iter().copied().eq(expected(1)));

    #[cfg(target_os = "linux")]
    forks::child(|| {
        assert!(arena(&platform, gpu).is_lost(), "a fork has no device");
        assert!(kept.read().unwrap().iter().copied().eq(expected(1)), "a fork has its copy of main memory");
        assert!(gone.read().is_err(), "what is on the GPU is out of a fork's reach");
    })
    .ends_well();
    assert!(!arena(&platform, gpu).is_lost(), "the parent's device is not touched by its fork");

    let kernel = arena(&platform, gpu).kernel(KERNELS, "trap", "").unwrap();
    let grants = platform.acquire(gpu).read_write(&gone).wait().unwrap();
    let fence = {
        let block = grants.block(&gone).unwrap().expect("the GPU has it");
        // SAFETY: the kernel reads the first word, and stops.
        unsafe { kernel.launch(&[KernelArg::Block(block)], Grid::line(0, 32, 32)) }.unwrap()
    };
    let failed = grants.in_flight(fence).wait().unwrap_err();
    assert!(failed.is_device_lost(), "{failed}");
    assert!(arena(&platform, gpu).is_lost());
    let loss = arena(&platform, gpu).loss().expect("it is known why");
    assert!(loss.contains("cuLaunchKernel") && loss.contains("CUDA_ERROR_"), "{loss}");

    // The rest goes on: what main memory has is there, and main memory works.
    assert!(kept.read().unwrap().iter().copied().eq(expected(1)));
    let refused = platform.acquire(gpu).read_write(&kept).wait().unwrap_err();
    assert!(refused.is_device_lost(), "{refused}");
    assert!(gone.read().is_err(), "what only the GPU had is lost");
    let mut view = kept.read_write().unwrap();
    view.iter_mut().for_each(|word| *word = word.wrapping_add(5));
    view.release().unwrap();
    let grants = platform.acquire(cpu).read(&kept).wait().unwrap();
    grants.release().unwrap();
    assert!(kept.into_vec().unwrap().into_iter().eq(expected(6)));
    drop((gone, kernel));
    drop(platform);

    // Nothing hangs if the process tries again. Whether it may have the GPU back is for the driver to say.
    let builder = Platform::builder().discover_with(&DiscoverOptions::default().offload(0)).unwrap();
    let platform = builder.build().unwrap();
    let again = platform.buffer_from(expected(0).collect::<Vec<_>>()).unwrap();
    let back = match platform.device("cuda:0") {
        Ok(gpu) => {
            platform.acquire(gpu).read_write(&again).wait().map(drop).map_err(|error| error.to_string())
        }
        Err(_) => Err(platform.unavailable().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    };
    eprintln!("after a fault, a new platform of the same process has the GPU back: {back:?}");
}
