//! Variants of a kernel per kind of device, and what they are made of.

use super::{PrepareError, Workload};
use dml_arenas::MainMem;
#[cfg(feature = "opencl")]
use dml_core::RawBuffer;
use dml_core::{DeviceId, Fence, Grants, Platform, View, ViewError};
use dml_scheduler::{Kernel, KernelError, Package, Variant};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::ops::Range;
use std::sync::Arc;

/// How the host computes a package's items, given the arguments' views.
pub(super) type HostKernel = Arc<dyn Fn(Range<u64>, &mut [View<'_>]) -> Result<(), ViewError> + Send + Sync>;

/// One argument of the OpenCL kernel; the end of the package's items is added as the last one.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "as for `Parts`"))]
pub(super) enum Slot {
    /// The kernel's buffer of this number.
    Buffer(usize),
    U32(u32),
    F32(f32),
}

/// The parts of a workload's kernel.
#[cfg_attr(
    not(feature = "opencl"),
    allow(dead_code, reason = "without OpenCL the host's part is all there is")
)]
pub(super) struct Parts {
    pub(super) workload: Workload,
    pub(super) host: HostKernel,
    pub(super) source: &'static str,
    pub(super) name: &'static str,
    pub(super) slots: Vec<Slot>,
}

/// Adds a variant for every device.
pub(super) fn add(
    mut kernel: Kernel,
    platform: &Platform,
    devices: &[DeviceId],
    parts: &Parts,
) -> Result<Kernel, PrepareError> {
    for &device in devices {
        kernel = add_one(kernel, platform, device, parts)?;
    }
    Ok(kernel)
}

fn add_one(
    kernel: Kernel,
    platform: &Platform,
    device: DeviceId,
    parts: &Parts,
) -> Result<Kernel, PrepareError> {
    let desc = &platform.devices()[usize::from(device.0)];
    let arena = platform.home(device).map(|home| platform.arena(home));
    if arena.is_some_and(|arena| arena.downcast_ref::<MainMem>().is_some()) {
        return Ok(kernel.variant(device, host(&parts.host, desc.units)?));
    }
    #[cfg(feature = "opencl")]
    if let Some(arena) = arena.and_then(|arena| arena.downcast_ref::<dml_arenas::OpenClArena>()) {
        let built = arena.kernel(parts.source, parts.name, "").map_err(|cause| PrepareError::Build {
            workload: parts.workload,
            device: desc.name.to_string(),
            cause: cause.to_string(),
        })?;
        let buffers = kernel.arguments().iter().map(|argument| argument.buffer().clone()).collect();
        let local = kernel.local_size();
        return Ok(kernel.variant(device, opencl(built, parts.slots.clone(), buffers, local)));
    }
    Err(PrepareError::NoKernel { workload: parts.workload, device: desc.name.to_string() })
}

/// Runs the host's kernel on a pool of its own threads.
fn host(compute: &HostKernel, threads: u32) -> Result<impl Variant + 'static, PrepareError> {
    let name = |index| format!("dml-cpu-{index}");
    let pool = ThreadPoolBuilder::new().num_threads(threads as usize).thread_name(name).build();
    let pool: ThreadPool =
        pool.map_err(|cause| PrepareError::Threads { threads, cause: cause.to_string() })?;
    let compute = compute.clone();
    Ok(move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let mut views = grants.views()?;
        pool.install(|| compute(package.range(), &mut views))?;
        Ok(Fence::done(package.items()))
    })
}

/// Launches the OpenCL kernel with the whole storages and an offset.
#[cfg(feature = "opencl")]
fn opencl(
    kernel: dml_arenas::opencl::OpenClKernel,
    slots: Vec<Slot>,
    buffers: Vec<RawBuffer>,
    local: u64,
) -> impl Variant + 'static {
    use dml_arenas::opencl::{KernelArg, Launch};
    move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let mut args = Vec::with_capacity(slots.len() + 1);
        for slot in &slots {
            args.push(match *slot {
                Slot::Buffer(index) => {
                    let block = grants.block(&buffers[index])?;
                    KernelArg::Block(block.ok_or("a kernel needs bytes of every buffer")?)
                }
                Slot::U32(value) => KernelArg::U32(value),
                Slot::F32(value) => KernelArg::F32(value),
            });
        }
        args.push(KernelArg::U64(package.end()));
        let launch = Launch { offset: package.start(), items: package.items(), local };
        Ok(kernel.launch(&args, launch)?)
    }
}
