//! Variants of a kernel per kind of device, and what they are made of.

use super::{PrepareError, Workload};
use bytemuck::Pod;
use dml_arenas::MainMem;
#[cfg(all(feature = "offload", target_os = "linux"))]
use dml_arenas::offload;
#[cfg(feature = "opencl")]
use dml_core::RawBuffer;
use dml_core::{DeviceId, Fence, Grants, Platform, View};
use dml_scheduler::NotStarted;
use dml_scheduler::{Footprint, Kernel, KernelError, Package, Variant};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::ops::Range;
#[cfg(all(feature = "offload", target_os = "linux"))]
use std::sync::Arc;

/// Part of a buffer as a host kernel sees it: in this process, or in a worker's memory.
pub(super) trait HostView {
    /// Where it begins in its buffer, in bytes.
    fn start(&self) -> u64;
    fn slice<T: Pod>(&self) -> Result<&[T], KernelError>;
    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], KernelError>;
}

impl HostView for View<'_> {
    fn start(&self) -> u64 {
        self.span().start()
    }

    fn slice<T: Pod>(&self) -> Result<&[T], KernelError> {
        Ok(View::slice(self)?)
    }

    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], KernelError> {
        Ok(View::slice_mut(self)?)
    }
}

#[cfg(all(feature = "offload", target_os = "linux"))]
impl HostView for offload::View<'_> {
    fn start(&self) -> u64 {
        self.span().start()
    }

    fn slice<T: Pod>(&self) -> Result<&[T], KernelError> {
        offload::View::slice(self)
    }

    fn slice_mut<T: Pod>(&mut self) -> Result<&mut [T], KernelError> {
        offload::View::slice_mut(self)
    }
}

/// How the host computes a package's items, given the buffers' views and the scalars, each in their order.
pub(super) type HostKernel = fn(Range<u64>, &mut [View<'_>], &[Slot]) -> Result<(), KernelError>;

/// One argument of a kernel. OpenCL's gets the end of the package's items as one more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// The kernel's buffer of this number.
    #[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "only OpenCL mixes buffers with scalars"))]
    Buffer(usize),
    U32(u32),
    F32(f32),
}

/// How the work-items of a package are laid out on an OpenCL device.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "only OpenCL lays work-items out"))]
pub(super) enum Shape {
    /// One for each item, in groups of the kernel's local size.
    Line,
    /// One for each column of each item, which is a row.
    Grid { columns: u64, local: [u64; 2] },
}

/// The scalar of this number, which has to be a `u32`.
pub(super) fn scalar_u32(scalars: &[Slot], index: usize) -> Result<u32, KernelError> {
    match scalars.get(index) {
        Some(Slot::U32(value)) => Ok(*value),
        other => Err(format!("scalar {index} of the kernel is {other:?}, not a u32").into()),
    }
}

/// The scalar of this number, which has to be an `f32`.
pub(super) fn scalar_f32(scalars: &[Slot], index: usize) -> Result<f32, KernelError> {
    match scalars.get(index) {
        Some(Slot::F32(value)) => Ok(*value),
        other => Err(format!("scalar {index} of the kernel is {other:?}, not an f32").into()),
    }
}

/// The error of a call with another number of buffers.
pub(super) fn wrong_buffers(workload: Workload, count: usize) -> KernelError {
    format!("{workload} was called with {count} buffers").into()
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
    pub(super) shape: Shape,
}

impl Parts {
    fn scalars(&self) -> Vec<Slot> {
        self.slots.iter().copied().filter(|slot| !matches!(slot, Slot::Buffer(_))).collect()
    }
}

/// The items that a kernel's buffers have elements for. A run may ask for any number of items; those beyond are refused.
#[derive(Clone, Copy)]
struct Limit {
    workload: Workload,
    items: u64,
}

impl Limit {
    /// The smallest number of items that an argument with a fixed number of bytes per item holds.
    fn of(workload: Workload, kernel: &Kernel) -> Self {
        let held = kernel.arguments().iter().filter_map(|argument| match argument.footprint() {
            Footprint::PerItem { bytes } => argument.buffer().len().checked_div(*bytes),
            _ => None,
        });
        Self { workload, items: held.min().unwrap_or_default() }
    }

    /// Makes a variant that launches no package with items beyond the limit.
    fn enforced(self, variant: impl Variant) -> impl Variant {
        move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            if package.end() > self.items {
                let (Self { workload, items }, asked) = (self, package.range());
                let cause = format!("{workload} was prepared for {items} items, not for items {asked:?}");
                return Err(NotStarted::new(cause).into());
            }
            variant.launch(package, grants)
        }
    }
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
    let limit = Limit::of(parts.workload, &kernel);
    let arena = platform.home(device).map(|home| platform.arena(home));
    if arena.is_some_and(|arena| arena.downcast_ref::<MainMem>().is_some()) {
        return Ok(kernel.variant(device, limit.enforced(host(parts, desc.units)?)));
    }
    #[cfg(all(feature = "offload", target_os = "linux"))]
    if let Some(arena) = arena.filter(|arena| arena.downcast_ref::<offload::OffloadArena>().is_some()) {
        let variant = offloaded(arena, &kernel, parts).map_err(|cause| PrepareError::Build {
            workload: parts.workload,
            device: desc.name.to_string(),
            cause: cause.to_string(),
        })?;
        return Ok(kernel.variant(device, limit.enforced(variant)));
    }
    #[cfg(feature = "opencl")]
    if let Some(arena) = arena.and_then(|arena| arena.downcast_ref::<dml_arenas::OpenClArena>()) {
        let built = arena.kernel(parts.source, parts.name, "").map_err(|cause| PrepareError::Build {
            workload: parts.workload,
            device: desc.name.to_string(),
            cause: cause.to_string(),
        })?;
        let buffers = kernel.arguments().iter().map(|argument| argument.buffer().clone()).collect();
        let (slots, layout) = (parts.slots.clone(), (parts.shape, kernel.local_size()));
        let variant = opencl(built, slots, buffers, layout);
        return Ok(kernel.variant(device, limit.enforced(variant)));
    }
    Err(PrepareError::NoKernel { workload: parts.workload, device: desc.name.to_string() })
}

/// Runs the host's kernel on a pool of its own threads.
fn host(parts: &Parts, threads: u32) -> Result<impl Variant + use<>, PrepareError> {
    let name = |index| format!("dml-cpu-{index}");
    let pool = ThreadPoolBuilder::new().num_threads(threads as usize).thread_name(name).build();
    let pool: ThreadPool =
        pool.map_err(|cause| PrepareError::Threads { threads, cause: cause.to_string() })?;
    let (compute, scalars) = (parts.host, parts.scalars());
    Ok(move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let mut views = grants.views()?;
        pool.install(|| compute(package.range(), &mut views, &scalars))?;
        Ok(Fence::done(package.items()))
    })
}

/// Runs the host's kernel in a worker, under the workload's name.
#[cfg(all(feature = "offload", target_os = "linux"))]
fn offloaded(
    arena: &Arc<dyn dml_core::Arena>,
    kernel: &Kernel,
    parts: &Parts,
) -> Result<impl Variant + use<>, KernelError> {
    use dml_core::Span;
    use offload::{Argument, OffloadArena, Scalar};
    fn of(arena: &Arc<dyn dml_core::Arena>) -> &OffloadArena {
        arena.downcast_ref().expect("the caller has looked")
    }
    let function = of(arena).device().function(parts.workload.name())?;
    let (arena, buffers, scalars) = (arena.clone(), kernel.arguments().to_vec(), parts.scalars());
    Ok(move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let mut arguments = Vec::with_capacity(buffers.len() + scalars.len());
        for buffer in &buffers {
            let bytes = buffer.bytes(package.range());
            let block = grants.block(buffer.buffer())?.ok_or("a kernel needs bytes of every buffer")?;
            let span = Span::new(bytes.start, bytes.end);
            arguments.push(match buffer.access().writes() {
                true => Argument::Write(block, span),
                false => Argument::Read(block, span),
            });
        }
        arguments.extend(scalars.iter().filter_map(|scalar| match *scalar {
            Slot::Buffer(_) => None,
            Slot::U32(value) => Some(Argument::Scalar(Scalar::U32(value))),
            Slot::F32(value) => Some(Argument::Scalar(Scalar::F32(value))),
        }));
        #[allow(unsafe_code, reason = "launching a function on a worker's memory is")]
        // SAFETY: the parts are those of the package, which the grants are for, and these last until the fence has ended.
        let launched = unsafe { of(&arena).launch(&function, package.range(), &arguments) };
        Ok(launched?)
    })
}

/// As [`HostKernel`], in a worker.
#[cfg(all(feature = "offload", target_os = "linux"))]
type WorkerKernel = fn(Range<u64>, &mut [offload::View<'_>], &[Slot]) -> Result<(), KernelError>;

/// What a worker runs for a workload: the host's kernel, on the worker's threads.
#[cfg(all(feature = "offload", target_os = "linux"))]
pub(super) fn in_worker(
    compute: WorkerKernel,
) -> impl Fn(&mut offload::Call<'_>) -> Result<(), offload::CallError> + Send + Sync + 'static {
    use offload::Scalar;
    move |call| {
        let slot = |scalar: &Scalar| match *scalar {
            Scalar::U32(value) => Ok(Slot::U32(value)),
            Scalar::F32(value) => Ok(Slot::F32(value)),
            other => Err(format!("no kernel here takes a scalar like {other:?}")),
        };
        let scalars = call.scalars().iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        compute(call.items(), call.views(), &scalars)
    }
}

/// Launches the OpenCL kernel with the whole storages and an offset.
#[cfg(feature = "opencl")]
fn opencl(
    kernel: dml_arenas::opencl::OpenClKernel,
    slots: Vec<Slot>,
    buffers: Vec<RawBuffer>,
    (shape, local): (Shape, u64),
) -> impl Variant + 'static {
    use dml_arenas::opencl::{Grid, KernelArg, Launch};
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
        let (start, items) = (package.start(), package.items());
        #[allow(unsafe_code, reason = "launching a kernel on the machine's own memory is")]
        // SAFETY: the kernels of this crate touch the elements of their items and of the footprints of these alone, and return
        // where an item is past the package's end, which is their last argument. The blocks hold whole buffers, whose sizes and
        // scalars `prepare` has made to fit each other. `Limit` refuses items that these buffers have no elements for.
        let launched = unsafe {
            match shape {
                Shape::Line => kernel.launch(&args, Launch { offset: start, items, local }),
                Shape::Grid { columns, local } => {
                    kernel.launch_grid(&args, Grid { offset: [0, start], items: [columns, items], local })
                }
            }
        };
        launched.map_err(|error| match dml_arenas::opencl::may_have_begun(&error) {
            true => error.into(),
            false => NotStarted::new(error).into(),
        })
    }
}
