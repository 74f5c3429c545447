//! DML keeps buffers coherent across the memories of one machine: main memory, OpenCL devices, CUDA GPUs, and
//! worker processes that act as coprocessors.
//!
//! This page is a tutorial. The crates below it can be used alone:
//!
//! | crate | contents |
//! |---|---|
//! | [`core`] | buffers, the state machine, planning, waiting; no framework |
//! | [`arenas`] | the memories, discovery of devices, launches |
//! | [`scheduler`] | packages, policies, units, metrics |
//! | `timeline` | a run as a value: files and pages |
//! | `energy` | energy counters of processors and GPUs |
//!
//! # Acquire a buffer
//!
//! A [`Platform`] has devices, the memories (*arenas*) that these use, and the links between them. A kernel
//! *acquires* the buffers that it touches for one device, and *releases* them.
//!
//! ```
//! use dml::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let platform = Platform::builder().discover()?.build()?; // each memory found on this machine
//! let cpu = platform.device("cpu")?;
//! let a = platform.buffer_from(vec![1.5_f32; 1000])?; // moves the application's storage in
//! let c = platform.buffer::<f32>(1000).zeroed().build()?; // allocates nothing yet
//!
//! let mut grants = platform.acquire(cpu).read(&a).write(&c.range(0..500)).wait()?;
//! let mut views = grants.views()?;
//! let [source, target] = &mut views[..] else { unreachable!("two requests") };
//! target.slice_mut::<f32>()?.copy_from_slice(&source.slice::<f32>()?[..500]);
//! drop(views);
//! grants.release()?; // commits what was written
//!
//! assert_eq!(c.read()?[499..501], [1.5, 0.0]); // the host reads the latest contents
//! # Ok(())
//! # }
//! ```
//!
//! - `wait` blocks. `try_now`, `wait_timeout` and `.await` are the other ways; no runtime is needed.
//! - `read`, `write` (overwrites) and `read_write` take whole buffers or ranges. Requests that conflict wait
//!   for each other in order of arrival. Others overlap.
//! - A grant that is dropped rolls back. If its memory was handed out for writing, these bytes count as lost,
//!   and are restored from copies that survive.
//! - On other devices, `grants.native(&a)?` is the framework's handle, for a launch of the application's own.
//!
//! # Queue kernels on one device
//!
//! Kernels that are submitted to a device queue there, behind those that they depend on. No wait lies between
//! them, and their inputs travel meanwhile:
//!
//! ```no_run
//! use dml::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let platform = Platform::builder().discover()?.build()?;
//! # let (a, b) = (platform.buffer::<f32>(1000).zeroed().build()?, platform.buffer::<f32>(1000).build()?);
//! let source = "kernel void add(global const float* from, global float* to, float what, ulong end) {
//!     size_t i = get_global_id(0); // a framework may round the number of work-items up
//!     if (i < end) to[i] = from[i] + what;
//! }";
//! let gpu = platform.device("opencl:0")?;
//! # #[cfg(any(feature = "opencl", feature = "cuda"))] {
//! // SAFETY: the kernel touches only the elements of its items, and nothing past the end.
//! let add = unsafe { launch::kernel(&platform, gpu, source, "add") }?;
//! let n = a.len();
//! platform.submit(gpu, &add).read(&a).write(&b).scalar(1.0_f32).scalar(n).items(n)?; // returns at once
//! platform.submit(gpu, &add).read(&b).write(&a).scalar(1.0_f32).scalar(n).items(n)?; // behind it
//! assert_eq!(a.read()?[0], 2.0); // waits for both
//!
//! // Under grants of one's own, kernels follow each other as well.
//! let mut grants = platform.acquire(gpu).read(&a).write(&b).ahead().wait()?; // the copy of a may go on
//! grants.launch(&add, args![&a, &b, 3.0_f32, n], n)?; // begins behind that copy
//! let mut running = grants.running();
//! let host = platform.device("cpu")?;
//! running.bring_results(host); // a copy of b behind the kernel
//! running.wait()?.release()?; // commits, and has b on the host
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! [`Submit`](core::Submit) has the order, the failures, and how results come back. `examples/submit.rs` is a
//! chain and a pipeline. Without optimisation, DML checks its invariants at each step, and a submission takes
//! some 50 times as long.
//!
//! # Co-execute a kernel
//!
//! A [`Kernel`] has arguments, and a launcher for each kind of device. [`scheduler::Coexecutor`] cuts its
//! items into packages and acquires the package's part of each buffer.
//!
//! ```
//! use dml::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let platform = Platform::builder().discover()?.build()?;
//! let a = platform.buffer_from((0..1000).map(|i| i as f32).collect::<Vec<_>>())?;
//! let c = platform.buffer::<f32>(1000).build()?;
//! let host = launch::host(&platform, |call| {
//!     let by: f32 = call.scalar(0)?; // arguments by position
//!     let [a, c] = call.parts([1, 2])?;
//!     c.slice_mut::<f32>()?.iter_mut().zip(a.slice::<f32>()?).for_each(|(c, a)| *c = by * a);
//!     Ok(())
//! })?;
//! let kernel = Kernel::new("scale", 64).scalar(2.0_f32).read(&a).write(&c).launchers(host)?;
//! let report = Coexecutor::new(&platform).run(&kernel, c.len())?;
//! assert_eq!(c.read()?[7], 14.0);
//! println!("{} packages, balance {:.2}", report.packages.len(), report.balance());
//! # Ok(())
//! # }
//! ```
//!
//! [`launch::opencl`](arenas::launch) and `launch::cuda` compile OpenCL C and CUDA C; such kernels take the
//! end of their package as the last argument (`.end()`). `examples/saxpy.rs` runs on every device in fifteen
//! lines. A kernel whose work-groups write the same bytes is `undivided`: the fastest device computes it.
//!
//! By default an item touches one element of each argument. A footprint says otherwise, and a check finds a
//! wrong one:
//!
//! ```no_run
//! # use dml::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let platform = Platform::builder().discover()?.build()?;
//! # let (picture, items) = (platform.buffer_from(vec![1.0_f32; 640 * 480])?, 640 * 480);
//! let rows = Footprint::rows(640, 640 * 4, 3); // an item's row, and three above and below
//! let kernel = Kernel::new("blur", 64).argument(Argument::part(&picture, Access::ReadOnly, rows));
//! check_footprints(&platform, &kernel, items, platform.device("cpu")?)?; // names the first wrong byte
//! # Ok(())
//! # }
//! ```
//!
//! Footprints need not be written by hand. [`app::analysed`] gives a kernel's arguments the accesses and
//! footprints that its source in OpenCL C or CUDA C proves. [`Kernel::observed`] finds those of functions and
//! of compiled kernels, by running them on modified copies.
//!
//! # Repeat a step over several devices
//!
//! [`Iterate`](scheduler::Iterate) gives each device the same strip of items in every step. Only the rows that
//! a footprint reads in another device's strip move, while the rest of the strips is computed:
//!
//! ```no_run
//! # use dml::prelude::*;
//! # fn example(platform: &Platform, jacobi: &Kernel, rows: u64, a: &Buffer<f64>, b: &Buffer<f64>)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let iterated = Iterate::new(platform).step(jacobi, rows).swap(a, b).run(1000)?;
//! println!("{}", iterated.buffer(a).read()?[0]); // the buffer that the next step would read
//! # Ok(())
//! # }
//! ```
//!
//! # More about runs
//!
//! A run can be started and awaited; a drop cancels it and waits for the launched packages:
//!
//! ```no_run
//! # use dml::prelude::*;
//! # async fn started(platform: &Platform, kernel: &Kernel, items: u64) -> Result<(), Box<dyn std::error::Error>> {
//! let coexecutor = Coexecutor::new(platform).devices_where(|device| device.compute_units > 1);
//! let mut running = coexecutor.start(kernel, items)?;
//! println!("{} of {items}", running.progress().computed);
//! let report = running.await?; // or wait(), wait_timeout(d), cancel()
//! # Ok(())
//! # }
//! ```
//!
//! [`scheduler::Coexecutor::policy`] takes the published policies by name, and one of the application's own
//! (`examples/policy.rs`). With the feature `timeline` a program draws its runs:
//!
//! ```no_run
//! # use dml::prelude::*;
//! # use std::fs::File;
//! # #[cfg(feature = "timeline")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let platform = Platform::builder().discover()?.build()?;
//! # let (coexecutor, kernel, items) = (Coexecutor::new(&platform), Kernel::new("traced", 64), 1000);
//! let recording = dml::timeline::Trace::record(&platform);
//! let trace = recording.finish(&coexecutor.run(&kernel, items)?)?;
//! trace.write_page(File::create("run.html")?)?; // or write_perfetto, or serde
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "timeline"))]
//! # fn main() {}
//! ```
//!
//! # Choose where bytes live
//!
//! | arena | device | shares storage with | bytes move by |
//! |---|---|---|---|
//! | `main_mem` | `cpu` | OpenCL devices bound to it | copies |
//! | `shared` | `cpu` | `main_mem`, workers, OpenCL devices bound to it | nothing within these |
//! | `svm` | `cpu` | `main_mem` and one OpenCL device | nothing within these |
//! | `cuda_pinned` | `cpu` | `main_mem`, GPUs bound to it | copies at the link's speed |
//! | `cuda:N` | the GPU | - | copies; peer copies between GPUs that reach each other |
//! | `opencl:N` | the device | - | read and write commands, or map and unmap |
//! | `offload:N` | the worker | - | one copy each way |
//!
//! `shared`, `svm` and `cuda_pinned` exist if [`arenas::DiscoverOptions`] asks for them. An OpenCL device
//! that works alone can use the host's storage in place, for all buffers or for those that ask for it:
//!
//! ```no_run
//! # use dml::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let n = 1000;
//! let all = DiscoverOptions::default().sharing(Sharing::bound("opencl:0"));
//! let some = DiscoverOptions::default().sharing(Sharing::default().allow_binding("opencl:0"));
//! let platform = Platform::builder().discover_with(&some)?.build()?;
//! let (cpu, gpu) = (platform.device("cpu")?, platform.device("opencl:0")?);
//! let field = platform.buffer::<f32>(n).used_by([cpu, gpu]).pattern(Pattern::ToAndFro).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! A CUDA GPU can use page-locked memory in place: bytes that are touched once stream over the link during
//! the kernel. With fine-grained OpenCL memory, or memory shared with workers, host and device use one buffer
//! at the same time:
//!
//! ```no_run
//! # use dml::prelude::*;
//! let pinned = DiscoverOptions::default().sharing(Sharing::page_locked(8 << 30).allow_binding("cuda:0"));
//! let fine_grained = DiscoverOptions::default().sharing(Sharing::fine_grained("opencl:0"));
//! let shared = DiscoverOptions::default().offload(2).sharing(Sharing::memory(["cpu", "offload:0", "offload:1"]));
//! ```
//!
//! Memory that other code allocated serves buffers without a copy. [`Platform::buffer_from`] takes vectors,
//! host memory with its owner (`Foreign`) and DLPack tensors. `CudaArena::external`, `external_slice`
//! and `external_tensor` take GPU memory. `dlpack::export` and `CudaArena::export` lend granted bytes to
//! other frameworks.
//!
//! # Compute in another process
//!
//! A worker is a process with its own memory. A program becomes its own worker by one line at the start of
//! `main`; a library in C needs `dml_offload.h` and no such line:
//!
//! ```no_run
//! # #[cfg(all(feature = "offload", target_os = "linux"))]
//! # mod program {
//! # use dml::launch::{Call, ComputeError};
//! # use dml::prelude::*;
//! # use std::error::Error;
//! # fn smooth(_: &mut Call<'_>) -> Result<(), ComputeError> { Ok(()) }
//! fn main() -> Result<(), Box<dyn Error>> {
//!     offload::hook(Registry::new().with("smooth", smooth)); // does not return in a worker
//!     let platform = Platform::builder().discover()?.build()?; // offload:0 can run "smooth"
//! # let _ = platform;
//! # Ok(())
//! # }
//! # }
//! # fn main() {}
//! ```
//!
//! # Add a memory
//!
//! A memory that DML does not know is a backend: one folder and one line of the application.
//! `examples/disk` spills buffers to a file, and `examples/fpga` has two boards in a chain.
//!
//! ```no_run
//! # use dml::arenas::{DiscoverError, kit::Backend};
//! # use dml::core::{ArenaId, PlatformBuilder};
//! # use dml::prelude::*;
//! # #[derive(Debug)]
//! # struct Disk { folder: std::path::PathBuf, bytes: u64 }
//! # impl Backend for Disk {
//! #     fn name(&self) -> &'static str { "disk" }
//! #     fn devices(&self) -> Vec<String> { Vec::new() }
//! #     fn add(&self, _: &mut PlatformBuilder, _: ArenaId, _: &DiscoverOptions) -> Result<(), DiscoverError> { Ok(()) }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir();
//! let options = DiscoverOptions::default().backend(Disk { folder, bytes: 1 << 30 });
//! let platform = Platform::builder().discover_with(&options)?.build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! A missing framework or device is no error: [`Platform::unavailable`] has the reasons. A lost device is
//! declared lost to all buffers; a co-execution goes on without it. Errors name the object, the bytes, and
//! the cause.
//!
//! # Features
//!
//! Examples of `dml::arenas`, `dml::core` and `dml::scheduler` name these crates `dml_arenas`, `dml_core` and
//! `dml_scheduler`. A library depends on what it uses, without the command:
//! `dml = { version = "0.1", default-features = false, features = ["opencl"] }`.
//!
//! `cuda`, `opencl` and `offload` are the backends; their libraries are found at run time. `calibration`
//! keeps measured link speeds, `energy` reads energy counters, `timeline` draws runs, `tracing` adds spans
//! for runs, packages, acquires and transfers, and `command` builds the `dml` command. All but `tracing` are
//! on by default.

#![forbid(unsafe_code)]

/// Compiles the programs of the README.
#[cfg(all(doctest, feature = "opencl"))]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(feature = "app")]
pub use dml_analysis as analysis;
#[cfg(feature = "app")]
pub use dml_app as app;
pub use dml_arenas as arenas;
pub use dml_arenas::launch;
pub use dml_core as core;
pub use dml_core::bytemuck;
#[cfg(feature = "energy")]
pub use dml_energy as energy;
pub use dml_scheduler as scheduler;
#[cfg(feature = "timeline")]
pub use dml_timeline as timeline;

pub use dml_core::{
    Access, AcquireError, ArenaId, Buffer, DeviceId, Grants, Platform, PlatformBuilder, RawBuffer,
};
pub use dml_scheduler::Kernel;

/// What most programs need. A name that a program imports itself, such as another `Kernel`, wins.
pub mod prelude {
    #[cfg(feature = "cuda")]
    pub use dml_arenas::CudaArena;
    #[cfg(feature = "opencl")]
    pub use dml_arenas::OpenClArena;
    pub use dml_arenas::launch;
    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub use dml_arenas::offload::{self, Registry};
    pub use dml_arenas::{Discover, DiscoverOptions, Sharing, Workers};
    pub use dml_core::{
        Access, Acquire, AcquireError, Buffer, DeviceId, Fence, GrantArg, Grants, ItemShape, Items, KernelId,
        LaunchError, Launcher, Pattern, Platform, Prefetch, RawBuffer, ReadView, Region, Scalar,
        SharedLauncher, Submission, Submit, SubmitError, WriteView, args,
    };
    pub use dml_scheduler::{
        Argument, Coexecutor, Footprint, Iterate, Kernel, Knowledge, Package, Report, Running, Variant,
        check_footprints, observe_footprints,
        policy::{self, PolicySpec},
    };
}
