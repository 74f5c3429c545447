//! What transfers and launches on NVIDIA GPUs take, beside the driver's own calls in the same process.
//!
//! ```text
//!   cargo run --release -p dml-arenas --example cuda_speed [GPU] [MIB]
//! ```
//! Prints one line for each figure: what was measured, what the driver takes, what DML takes, and the ratio
//! of the two rates. Nothing is judged.

use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use dml_arenas::cuda::CudaKernel;
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::{CudaArena, Discover, DiscoverOptions, Sharing};
use dml_core::internal::sync::Arc;
use dml_core::{Arena, Buffer, DeviceId, Platform, Scalar};
use std::error::Error;
use std::time::{Duration, Instant};

const TIMES: usize = 5;

/// Fails the program with the driver's code.
fn check(code: CUresult) -> Result<(), Box<dyn Error>> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("the driver says {code:?}").into()) }
}

/// Runs something several times, and returns the least time.
fn best(mut run: impl FnMut() -> Result<Duration, Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let times: Result<Vec<_>, _> = (0..TIMES).map(|_| run()).collect();
    Ok(times?.into_iter().min().unwrap_or_default())
}

fn timed(run: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    run()?;
    Ok(begun.elapsed())
}

fn line(what: &str, bytes: u64, raw: Duration, dml: Duration) {
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{what:<44} driver {:>9.3} ms {:>6.1} GB/s   dml {:>9.3} ms {:>6.1} GB/s   rate {:.3} of the driver's",
        raw.as_secs_f64() * 1e3,
        rate(raw),
        dml.as_secs_f64() * 1e3,
        rate(dml),
        raw.as_secs_f64() / dml.as_secs_f64()
    );
}

/// The driver's own objects on one GPU.
struct Raw {
    context: CUcontext,
    streams: [CUstream; 2],
    device: [u64; 2],
    pinned: [*mut std::ffi::c_void; 2],
    bytes: usize,
}

impl Raw {
    fn new(context: CUcontext, bytes: usize) -> Result<Self, Box<dyn Error>> {
        let (mut streams, mut device) = ([std::ptr::null_mut(); 2], [0; 2]);
        let mut pinned = [std::ptr::null_mut(); 2];
        // SAFETY: a live context; each call writes a handle or an address.
        unsafe {
            check(sys::cuCtxSetCurrent(context))?;
            for index in 0..2 {
                check(sys::cuStreamCreate(&raw mut streams[index], 1))?;
                check(sys::cuMemAlloc_v2(&raw mut device[index], bytes))?;
                check(sys::cuMemHostAlloc(&raw mut pinned[index], bytes, 0))?;
                std::ptr::write_bytes(pinned[index].cast::<u8>(), index as u8 + 1, bytes);
            }
        }
        Ok(Self { context, streams, device, pinned, bytes })
    }

    fn start_in(&self, from: *const std::ffi::c_void) -> Result<(), Box<dyn Error>> {
        // SAFETY: memory of this size at both ends, and the caller waits.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(self.device[0], from, self.bytes, self.streams[0]) })
    }

    fn start_out(&self, to: *mut std::ffi::c_void) -> Result<(), Box<dyn Error>> {
        // SAFETY: as above.
        check(unsafe { sys::cuMemcpyDtoHAsync_v2(to, self.device[1], self.bytes, self.streams[1]) })
    }

    fn wait(&self) -> Result<(), Box<dyn Error>> {
        // SAFETY: live streams.
        self.streams.iter().try_for_each(|stream| check(unsafe { sys::cuStreamSynchronize(*stream) }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: made in `new`, given back once; nothing runs.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            for index in 0..2 {
                let _ = sys::cuStreamDestroy_v2(self.streams[index]);
                let _ = sys::cuMemFree_v2(self.device[index]);
                let _ = sys::cuMemFreeHost(self.pinned[index]);
            }
        }
    }
}

fn vector(bytes: usize, seed: u32) -> Vec<f32> {
    (0..(bytes / 4) as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 8 ^ seed) as f32).collect()
}

/// Lets the host write the buffer, so that the next use on a GPU sends it.
fn touch(data: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
    data.write()?.release()?;
    Ok(())
}

/// Has the GPU write the buffer, so that the next use on the host brings it.
fn dirty(platform: &Platform, gpu: DeviceId, data: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
    platform.acquire(gpu).write(data).wait()?.release()?;
    Ok(())
}

fn send(platform: &Platform, gpu: DeviceId, data: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
    platform.acquire(gpu).read(data).wait()?.release()?;
    Ok(())
}

fn receive(data: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
    drop(data.read()?);
    Ok(())
}

fn transfers(platform: &Platform, gpu: DeviceId, raw: &Raw) -> Result<(), Box<dyn Error>> {
    let bytes = raw.bytes;
    let driver_in = best(|| timed(|| raw.start_in(raw.pinned[0]).and_then(|()| raw.wait())))?;
    let driver_out = best(|| timed(|| raw.start_out(raw.pinned[1]).and_then(|()| raw.wait())))?;

    // Sent once: nothing but the first transfer of a new vector counts. The storage on the GPU is there
    // already, as the driver's is.
    let mut ordinary = Vec::new();
    let mut once = Vec::new();
    for seed in 0..3 {
        let plain = vector(bytes, seed);
        ordinary.push(timed(|| raw.start_in(plain.as_ptr().cast()).and_then(|()| raw.wait()))?);
        let data = platform.buffer_from(plain)?;
        dirty(platform, gpu, &data)?;
        touch(&data)?;
        once.push(timed(|| send(platform, gpu, &data))?);
    }
    let (ordinary, once) = (*ordinary.iter().min().unwrap(), *once.iter().min().unwrap());
    line("ordinary vector sent once", bytes as u64, ordinary, once);

    // Ten times: the vector is written anew on the host each time.
    let plain = vector(bytes, 7);
    let driver_ten =
        timed(|| (0..10).try_for_each(|_| raw.start_in(plain.as_ptr().cast()).and_then(|()| raw.wait())))?;
    let data = platform.buffer_from(plain)?;
    dirty(platform, gpu, &data)?;
    touch(&data)?;
    let mut each = Vec::new();
    let dml_ten = timed(|| {
        (0..10).try_for_each(|_| {
            touch(&data)?;
            each.push(timed(|| send(platform, gpu, &data))?);
            Ok(())
        })
    })?;
    line("ordinary vector sent ten times", 10 * bytes as u64, driver_ten, dml_ten);
    println!(
        "  each of the ten, in ms: {:.1?}",
        each.iter().map(|t| t.as_secs_f64() * 1e3).collect::<Vec<_>>()
    );

    // After some more its pages are locked, as the driver's pinned memory is.
    for _ in 0..20 {
        touch(&data)?;
        send(platform, gpu, &data)?;
    }
    let dml_in = best(|| {
        touch(&data)?;
        timed(|| send(platform, gpu, &data))
    })?;
    line("locked memory to the GPU", bytes as u64, driver_in, dml_in);
    let dml_out = best(|| {
        dirty(platform, gpu, &data)?;
        timed(|| receive(&data))
    })?;
    line("locked memory from the GPU", bytes as u64, driver_out, dml_out);
    let fresh = platform.buffer_from(vector(bytes, 9))?;
    dirty(platform, gpu, &fresh)?;
    let mut plain = vector(bytes, 3);
    let driver = timed(|| raw.start_out(plain.as_mut_ptr().cast()).and_then(|()| raw.wait()))?;
    line("ordinary vector from the GPU, once", bytes as u64, driver, timed(|| receive(&fresh))?);

    // Both directions at once.
    let driver_both = best(|| {
        timed(|| {
            raw.start_in(raw.pinned[0])?;
            raw.start_out(raw.pinned[1])?;
            raw.wait()
        })
    })?;
    let back = platform.buffer_from(vector(bytes, 11))?;
    for _ in 0..30 {
        dirty(platform, gpu, &back)?;
        drop(back.read()?);
    }
    let dml_both = best(|| {
        touch(&data)?;
        dirty(platform, gpu, &back)?;
        timed(|| {
            std::thread::scope(|scope| {
                let out = scope.spawn(|| drop(back.read().map_err(|error| error.to_string())));
                let sent = send(platform, gpu, &data).map_err(|error| error.to_string());
                out.join().map_err(|_| "the reader panicked".to_owned())?;
                sent
            })
            .map_err(Into::into)
        })
    })?;
    line("both directions at once, locked", 2 * bytes as u64, driver_both, dml_both);
    println!(
        "  both at once move {:.2} times what one direction does, by the driver {:.2}",
        2.0 * dml_in.as_secs_f64() / dml_both.as_secs_f64(),
        2.0 * driver_in.as_secs_f64() / driver_both.as_secs_f64()
    );
    for bytes in [4_usize << 10, 64 << 10, 1 << 20, 16 << 20] {
        let small = platform.buffer_from(vector(bytes, 1))?;
        let plain = vector(bytes, 2);
        let driver = best(|| {
            timed(|| {
                // SAFETY: memory of this size at both ends, and the call waits.
                check(unsafe { sys::cuMemcpyHtoD_v2(raw.device[0], plain.as_ptr().cast(), bytes) })
            })
        })?;
        dirty(platform, gpu, &small)?;
        touch(&small)?;
        let first = timed(|| send(platform, gpu, &small))?;
        let later = best(|| {
            touch(&small)?;
            timed(|| send(platform, gpu, &small))
        })?;
        line(&format!("ordinary {} KiB, first", bytes >> 10), bytes as u64, driver, first);
        line(&format!("ordinary {} KiB, later", bytes >> 10), bytes as u64, driver, later);
    }
    Ok(())
}

/// A kernel that takes as long as its argument says, at least, in clocks of the GPU.
const SPIN: &str = r#"
    extern "C" __global__ void spin(unsigned* out, unsigned long long clocks) {
        long long begun = clock64();
        while (clock64() - begun < (long long)clocks) {}
        if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = 1;
    }"#;

/// Buffers of page-locked memory, which DML makes.
fn pinned(name: &str, raw: &Raw) -> Result<(), Box<dyn Error>> {
    let options = DiscoverOptions::default().only([name]).sharing(Sharing::page_locked(4 * raw.bytes as u64));
    let platform = Platform::builder().discover_with(&options)?.build()?;
    let gpu = platform.device(name)?;
    let bytes = raw.bytes;
    let driver_in = best(|| timed(|| raw.start_in(raw.pinned[0]).and_then(|()| raw.wait())))?;
    let driver_out = best(|| timed(|| raw.start_out(raw.pinned[1]).and_then(|()| raw.wait())))?;
    let data = platform.buffer::<f32>(bytes as u64 / 4).build()?;
    let made = timed(|| touch(&data))?;
    dirty(&platform, gpu, &data)?;
    let dml_in = best(|| {
        touch(&data)?;
        timed(|| send(&platform, gpu, &data))
    })?;
    line("page-locked buffer to the GPU", bytes as u64, driver_in, dml_in);
    let dml_out = best(|| {
        dirty(&platform, gpu, &data)?;
        timed(|| receive(&data))
    })?;
    line("page-locked buffer from the GPU", bytes as u64, driver_out, dml_out);
    println!("  it took {made:.1?} to make");
    Ok(())
}

fn launches(arena: &Arc<dyn Arena>) -> Result<(), Box<dyn Error>> {
    const LAUNCHES: u32 = 500;
    let cuda = arena.downcast_ref::<CudaArena>().ok_or("no CUDA arena")?;
    let kernel: CudaKernel = cuda.kernel(SPIN, "spin", "")?;
    let block = dml_core::OwnBlock::alloc(arena, 4096)?;
    let stream = cuda.stream().0 as CUstream;
    for (what, clocks) in
        [("a kernel of nothing", 0_u64), ("of about 50 us", 90_000), ("of about 500 us", 900_000)]
    {
        let args = [KernelArg::Block(block.block()), KernelArg::Scalar(Scalar::U64(clocks))];
        // SAFETY: the kernel writes the first word of the block.
        let launch = || unsafe { kernel.launch(&args, Grid::line(0, 128, 128)) };
        let fence = best(|| {
            timed(|| (0..LAUNCHES).try_for_each(|_| launch()?.wait().map(drop).map_err(Into::into)))
        })?;
        let driver = best(|| {
            timed(|| {
                (0..LAUNCHES).try_for_each(|_| {
                    let fence = launch()?;
                    // SAFETY: a live stream.
                    check(unsafe { sys::cuStreamSynchronize(stream) })?;
                    drop(fence);
                    Ok(())
                })
            })
        })?;
        println!(
            "{what:<24} launched and waited for: with the driver's wait {:>8.2?}, with a fence {:>8.2?}",
            driver / LAUNCHES,
            fence / LAUNCHES
        );
    }
    Ok(())
}

fn peers(platform: &Platform, gpus: [DeviceId; 2], bytes: usize) -> Result<(), Box<dyn Error>> {
    let homes = gpus.map(|gpu| platform.home(gpu).expect("a GPU has an arena"));
    let cuda = homes.map(|home| platform.arena(home).downcast_ref::<CudaArena>().expect("a CUDA arena"));
    let contexts = cuda.map(|arena| arena.context().0 as CUcontext);
    let mut ends = [0; 2];
    // SAFETY: live contexts; each call writes an address.
    unsafe {
        for (context, end) in contexts.iter().zip(&mut ends) {
            check(sys::cuCtxSetCurrent(*context))?;
            check(sys::cuMemAlloc_v2(end, bytes))?;
        }
        check(sys::cuCtxSetCurrent(contexts[0]))?;
    }
    let mut stream = std::ptr::null_mut();
    // SAFETY: a context is current.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
    let driver = best(|| {
        timed(|| {
            // SAFETY: memory of this size on both, waited for.
            unsafe {
                check(sys::cuMemcpyPeerAsync(ends[1], contexts[1], ends[0], contexts[0], bytes, stream))?;
                check(sys::cuStreamSynchronize(stream))
            }
        })
    })?;
    let data = platform.buffer_from(vector(bytes, 5))?;
    dirty(platform, gpus[1], &data)?;
    let dml = best(|| {
        dirty(platform, gpus[0], &data)?;
        timed(|| send(platform, gpus[1], &data))
    })?;
    line("from one GPU to the other", bytes as u64, driver, dml);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1);
    let name = given.next().unwrap_or_else(|| "cuda:0".to_owned());
    let mib: usize = given.next().map_or(Ok(1024), |mib| mib.parse())?;
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().offload(0))?.build()?;
    platform.unavailable().iter().for_each(|missing| println!("missing: {missing}"));
    for device in platform.devices() {
        println!(
            "{}: {} ({}, {} units)",
            device.name, device.description, device.driver, device.compute_units
        );
    }
    let Ok(gpu) = platform.device(&name) else {
        println!("there is no {name}");
        return Ok(());
    };
    let arena = platform.arena(platform.home(gpu).ok_or("it has no arena")?).clone();
    let cuda = arena.downcast_ref::<CudaArena>().ok_or("it is no CUDA device")?;
    let raw = Raw::new(cuda.context().0 as CUcontext, mib << 20)?;
    transfers(&platform, gpu, &raw)?;
    pinned(&name, &raw)?;
    launches(&arena)?;
    let others =
        platform.devices().iter().filter(|device| device.name.starts_with("cuda:") && *device.name != *name);
    for other in others {
        peers(&platform, [gpu, platform.device(&other.name)?], mib << 20)?;
    }
    Ok(())
}
