//! Kernels: OpenCL C source, built once for each arena and launched on its queues.

use super::arena::OpenClArena;
use super::block::OpenClBlock;
use super::error::{refused, words};
use super::handle::{Kernel, Program};
use super::numbering::{self, Numbering};
use super::parameters::{self, Given, Parameter, type_name};
use super::session::{Enqueued, FLUSH, Session, Submit};
use crate::compiled::{BuildCause, BuildError, CompiledKernel, Grid, KernelArg, Limits, has_procedure};
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{Arena, BlockRef, Fence, ItemShape, Launch, LaunchArg, Misfit, Scalar, TransferError};
use opencl3::command_queue::enqueue_nd_range_kernel;
use opencl3::error_codes::{
    CL_BUILD_PROGRAM_FAILURE, CL_DEVICE_NOT_AVAILABLE, CL_INVALID_ARG_INDEX, CL_INVALID_ARG_SIZE,
    CL_INVALID_ARG_VALUE, CL_INVALID_GLOBAL_OFFSET, CL_INVALID_GLOBAL_WORK_SIZE, CL_INVALID_KERNEL_NAME,
    CL_INVALID_MEM_OBJECT, CL_INVALID_WORK_GROUP_SIZE,
};
use opencl3::kernel::{
    CL_KERNEL_COMPILE_WORK_GROUP_SIZE, CL_KERNEL_NUM_ARGS, CL_KERNEL_WORK_GROUP_SIZE, create_kernel,
    get_kernel_info, get_kernel_work_group_info, set_kernel_arg,
};
use opencl3::program::{
    CL_PROGRAM_BUILD_LOG, build_program, create_program_with_source, get_program_build_info,
};
use opencl3::types::{cl_command_queue, cl_mem};
use smallvec::SmallVec;
use std::ffi::{CString, c_void};

const LAUNCH: &str = "clEnqueueNDRangeKernel";

/// Returns the kind of an argument, to compare with a parameter.
fn given(argument: &KernelArg<'_>) -> Given {
    match *argument {
        KernelArg::Block(_) | KernelArg::Nothing => Given::Block,
        KernelArg::Scalar(scalar) => Given::Scalar(type_name(scalar)),
        KernelArg::Bytes(bytes) => Given::Bytes(bytes.len()),
        KernelArg::Local(_) => Given::Local,
    }
}

impl OpenClArena {
    /// Builds a kernel from OpenCL C source.
    ///
    /// A program is compiled once for each source and options, unless it includes files. Each call creates a
    /// separate kernel, so that callers on different threads do not wait for each other.
    ///
    /// DML does not check what memory a kernel accesses: the caller of [`launch`](OpenClKernel::launch) is
    /// responsible for that. Arguments are checked against the kernel's signature, as far as the driver
    /// describes it. Types that the source defines are checked by size. Not checked: the targets of pointers,
    /// and the fields of structures.
    ///
    /// # Errors
    /// [`BuildError`]: [`Compile`](BuildCause::Compile) with the compiler's log if it refuses the source,
    /// [`NoKernel`](BuildCause::NoKernel) if the source has no kernel of this name.
    pub fn kernel(&self, source: &str, name: &str, options: &str) -> Result<OpenClKernel, BuildError> {
        self.kernel_of(source, name, options, numbering::of_launch(source, options))
    }

    /// Builds a kernel like [`kernel`](Self::kernel), for launches that are parts of a run
    /// ([`CompiledKernel::launch_part`]). `get_group_id`, `get_num_groups`, `get_global_size`,
    /// `get_global_offset`, `get_global_linear_id` and `get_work_dim` return the values of the whole run.
    ///
    /// A kernel that needs the values of its own launch defines `DML_PACKAGE_GROUPS`, in its source or in
    /// `options`. A definition in a header does not count. An example is scratch memory that is indexed by
    /// the group within a package.
    ///
    /// The functions become macros if the source or the options name one of them, include files or paste
    /// names. Names that begin with `_dml_` are reserved. A source that defines one of the functions as a
    /// macro is refused by [`check_groups`](CompiledKernel::check_groups).
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel).
    pub fn package_kernel(
        &self,
        source: &str,
        name: &str,
        options: &str,
    ) -> Result<OpenClKernel, BuildError> {
        let (text, numbering) = numbering::of_run(source, options);
        self.kernel_of(&text, name, options, numbering)
    }

    fn kernel_of(
        &self,
        source: &str,
        name: &str,
        options: &str,
        numbering: Numbering,
    ) -> Result<OpenClKernel, BuildError> {
        let failed = |call| move |code| self.not_built(name, framework(call, code));
        let program = self.program(source, name, options)?;
        let kernel = self.kernel_in(&program, name).map_err(|mut error| {
            if let BuildCause::NoKernel(hint) = &mut error.cause
                && has_procedure(source, name)
            {
                *hint = "it defines one of this name, but functions of OpenCL C, such as mad and step, cannot be kernels' names";
            }
            error
        })?;
        let count: u32 =
            get_kernel_info(kernel.raw(), CL_KERNEL_NUM_ARGS).map_err(failed("clGetKernelInfo"))?.into();
        let device = self.session.part.id();
        let max_local: usize = get_kernel_work_group_info(kernel.raw(), device, CL_KERNEL_WORK_GROUP_SIZE)
            .map_err(failed("clGetKernelWorkGroupInfo"))?
            .into();
        let mut parameters: Vec<_> = (0..count).map(|index| Parameter::of(&kernel, index)).collect();
        if let Some(probe) = parameters::probe(&parameters)
            // If the probe does not compile, these types stay unchecked.
            && let Ok(probe) = self.program(&format!("{source}{probe}"), name, options)
        {
            let group_of = |name: &str| self.fixed_group(&self.kernel_in(&probe, name).ok()?);
            parameters::answer(&mut parameters, group_of);
        }
        let axes = self.session.facts.max_sizes;
        let limits = Limits {
            total: (max_local as u64).min(axes.iter().fold(1, |all, size| all.saturating_mul(*size))).max(1),
            axes,
            required: self.fixed_group(&kernel).map(|group| group.map(|size| size as u64)),
        };
        Ok(OpenClKernel {
            name: name.into(),
            arena: self.desc().name.clone(),
            parameters,
            limits,
            numbering,
            kernel: Mutex::new(kernel),
            session: self.session.clone(),
        })
    }

    fn not_built(&self, kernel: &str, cause: BuildCause) -> BuildError {
        BuildError::new(&self.desc().name, kernel, cause)
    }

    /// Creates a kernel of a built program.
    fn kernel_in(&self, program: &Program, name: &str) -> Result<Kernel, BuildError> {
        let failed = |cause| self.not_built(name, cause);
        let text = CString::new(name).map_err(|_| failed(BuildCause::ZeroCharacter("the name")))?;
        let made = create_kernel(program.raw(), &text).map_err(|code| match code {
            CL_INVALID_KERNEL_NAME => failed(BuildCause::NoKernel("a kernel is `kernel void`")),
            code => failed(framework("clCreateKernel", code)),
        })?;
        // SAFETY: the kernel was just created, and its only reference is taken over here.
        Ok(unsafe { Kernel::own(made) })
    }

    /// Returns the work-group size that a kernel's source requires, if any.
    fn fixed_group(&self, kernel: &Kernel) -> Option<[usize; 3]> {
        let what = CL_KERNEL_COMPILE_WORK_GROUP_SIZE;
        let told = get_kernel_work_group_info(kernel.raw(), self.session.part.id(), what).ok()?;
        let sizes: [usize; 3] = Vec::<usize>::from(told).try_into().ok()?;
        (sizes != [0; 3]).then_some(sizes)
    }

    /// Returns the built program of this source, from the cache or the compiler.
    fn program(&self, source: &str, kernel: &str, options: &str) -> Result<Arc<Program>, BuildError> {
        let failed = |cause| self.not_built(kernel, cause);
        if source.contains('\0') {
            return Err(failed(BuildCause::ZeroCharacter("the source")));
        }
        // Argument information lets a launch refuse an argument that does not fit.
        let all_options = CString::new(format!("-cl-kernel-arg-info {options}"))
            .map_err(|_| failed(BuildCause::ZeroCharacter("the options")))?;
        let create = |code| framework("clCreateProgramWithSource", code);
        let context = self.session.context().map_err(|_| failed(create(CL_DEVICE_NOT_AVAILABLE)))?;
        let compile = || {
            // An empty text is passed as a null pointer, which PoCL follows.
            let text = if source.is_empty() { " " } else { source };
            let program = create_program_with_source(context, &[text]).map_err(create)?;
            // SAFETY: the program was just created, and its only reference is taken over here.
            let program = unsafe { Program::own(program) };
            let device = self.session.part.id();
            build_program(program.raw(), &[device], &all_options, None, std::ptr::null_mut()).map_err(
                |code| {
                    let log = get_program_build_info(program.raw(), device, CL_PROGRAM_BUILD_LOG);
                    let log =
                        log.map(String::from).unwrap_or_default().trim_matches(['\0', '\n', ' ']).to_owned();
                    if code == CL_BUILD_PROGRAM_FAILURE || !log.is_empty() {
                        BuildCause::Compile(log)
                    } else {
                        framework("clBuildProgram", code)
                    }
                },
            )?;
            Ok(program)
        };
        self.programs.get(source, options, compile).map_err(failed)
    }
}

fn framework(call: &'static str, code: i32) -> BuildCause {
    BuildCause::Framework { call, code: code.into(), message: words(code).into() }
}

/// A kernel of one arena, ready to be launched.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::OpenClArena;
/// # use dml_arenas::launch::{Grid, KernelArg};
/// # use dml_core::{Buffer, DeviceId, Platform};
/// # fn example(
/// #     (platform, gpu, arena): (&Platform, DeviceId, &OpenClArena),
/// #     a: &Buffer<f32>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let source = "kernel void twice(global float* a, ulong n) {
///     if (get_global_id(0) < n) a[get_global_id(0)] *= 2;
/// }";
/// let kernel = arena.kernel(source, "twice", "")?;
/// let grants = platform.acquire(gpu).read_write(a).wait()?;
/// let block = grants.block(a)?.ok_or("no bytes")?;
/// let args = [KernelArg::Block(block), KernelArg::Scalar(a.len().into())];
/// // SAFETY: the kernel touches only the `n` elements, all of which are granted.
/// let run = unsafe { kernel.launch(&args, Grid::line(0, a.len(), 64)) }?;
/// grants.in_flight(run).wait()?.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OpenClKernel {
    name: Box<str>,
    /// The name of its arena.
    arena: Arc<str>,
    parameters: Vec<Parameter>,
    limits: Limits,
    numbering: Numbering,
    /// Locked while the arguments are set and the kernel is enqueued, which must be one step.
    kernel: Mutex<Kernel>,
    session: Arc<Session>,
}

impl OpenClKernel {
    /// Returns the kernel's name in its source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the maximum work-group size of the kernel on its device, in work-items.
    #[must_use]
    pub fn max_local(&self) -> u64 {
        self.limits.total
    }

    /// Starts the kernel. The fence waits for its end and reports zero bytes.
    ///
    /// # Safety
    /// 1. With these arguments and this many work-items, the kernel accesses only the bytes of its arguments'
    ///    blocks. On a device that shares the host's memory, the bytes beside them belong to the program.
    ///
    /// One more condition is needed for correct contents, not for memory safety. The bytes are granted to the
    /// caller until the fence has ended, for writing where the kernel writes.
    ///
    /// # Errors
    /// [`TransferError::Framework`] if the number, the type or the arena of the arguments does not fit. The
    /// message names the argument's index. Otherwise, the driver's error.
    ///
    /// # Panics
    /// If a block is mapped for the host. Core prevents this for a block that a device's grant names.
    pub unsafe fn launch(&self, args: &[KernelArg<'_>], grid: Grid) -> Result<Fence, TransferError> {
        let asked = Asked { split: grid.dimensions - 1, total: None, grid };
        // SAFETY: the caller guarantees what the kernel accesses (1).
        unsafe { self.launch_asked(Order::AfterOthers, args, &asked) }
    }

    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn launch_asked(
        &self,
        order: Order,
        args: &[KernelArg<'_>],
        asked: &Asked,
    ) -> Result<Fence, TransferError> {
        let blocks = self.check(args)?;
        if asked.grid.items.contains(&0) {
            return Ok(Fence::done(0));
        }
        let size = self.size(asked)?;
        // SAFETY: the caller guarantees what the kernel accesses (1).
        unsafe { self.enqueue(args, blocks, &size, order) }
    }

    /// Enqueues the kernel on the queue that its order requires.
    ///
    /// # Safety
    /// 1. As [`launch`](Self::launch).
    unsafe fn enqueue(
        &self,
        args: &[KernelArg<'_>],
        blocks: Blocks,
        size: &Size,
        order: Order,
    ) -> Result<Fence, TransferError> {
        match order {
            Order::AfterOthers | Order::Followed => self.session.await_beside()?,
            // The block's unmap may still be in flight in the kernels' queue, so the kernel runs there, too.
            Order::BesideOthers if blocks.iter().any(was_mapped) => {}
            Order::BesideOthers => {
                return self.session.beside(|queue| {
                    // SAFETY: as the caller guarantees (1).
                    let enqueued = unsafe { self.enqueue_on(queue, args, size) }?;
                    self.session.fence(LAUNCH, enqueued, 0, blocks)
                });
            }
        }
        let queue = self.session.kernels()?;
        let mut in_order = self.session.in_order();
        // SAFETY: as the caller guarantees (1).
        let mut enqueued = unsafe { self.enqueue_on(queue, args, size) }?;
        *in_order += 1;
        enqueued.number = Some(*in_order);
        drop(in_order);
        if matches!(order, Order::Followed) {
            enqueued.submit = Submit::WithNext;
        }
        self.session.fence(LAUNCH, enqueued, 0, blocks)
    }

    /// Sets the arguments and enqueues the kernel on one queue.
    ///
    /// # Safety
    /// 1. As [`launch`](Self::launch).
    unsafe fn enqueue_on(
        &self,
        queue: cl_command_queue,
        args: &[KernelArg<'_>],
        size: &Size,
    ) -> Result<Enqueued, TransferError> {
        let kernel = self.kernel.lock();
        for (index, arg) in (0..).zip(args) {
            set(&kernel, index, arg).map_err(|code| self.misfit(index, args.len(), code, &words(code)))?;
        }
        let local = size.local.as_ref().map_or(std::ptr::null(), |local| local.as_ptr());
        let (offset, global) = (size.offset.as_ptr(), size.global.as_ptr());
        // SAFETY: a live queue and a kernel of its context, with every argument set under the held lock. The
        // sizes have three elements each, of which the first `dimensions` are used, and outlive the call. The
        // caller guarantees what the kernel accesses (1).
        let enqueued = unsafe {
            let (kernel, dimensions) = (kernel.raw(), size.dimensions);
            enqueue_nd_range_kernel(queue, kernel, dimensions, offset, global, local, 0, std::ptr::null())
        };
        Ok(Enqueued::on(queue, enqueued))
    }

    /// Checks number, types and arena of the arguments. Returns the blocks, to be kept while the kernel runs.
    fn check(&self, args: &[KernelArg<'_>]) -> Result<Blocks, TransferError> {
        if args.len() != self.parameters.len() {
            let (takes, given) = (self.parameters.len(), args.len());
            let reason = format!("kernel {} takes {takes} arguments, not {given}", self.name);
            return Err(refused("clSetKernelArg", CL_INVALID_ARG_INDEX, reason));
        }
        let mut blocks = Blocks::new();
        for (index, (arg, parameter)) in (0..).zip(args.iter().zip(&self.parameters)) {
            let given = given(arg);
            if let Some(takes) = parameter.mismatch(given) {
                let reason = format!("takes {takes}, not {given}");
                return Err(self.misfit(index, args.len(), CL_INVALID_ARG_VALUE, &reason));
            }
            if let KernelArg::Block(block) = arg {
                let own = block.downcast_ref::<OpenClBlock>().filter(|block| block.is_of(&self.session));
                let Some(own) = own else {
                    let reason = "the block belongs to another arena";
                    return Err(self.misfit(index, args.len(), CL_INVALID_MEM_OBJECT, reason));
                };
                assert!(
                    !own.mapping().is_mapped(),
                    "core bug: kernel {} was given a block mapped for the host",
                    self.name
                );
                blocks.push((*block).clone());
            }
        }
        Ok(blocks)
    }

    fn size(&self, asked: &Asked) -> Result<Size, TransferError> {
        let (kernel, grid) = (&self.name, &asked.grid);
        if let Err(reason) = self.limits.check(asked.grid.local) {
            let reason = format!("kernel {kernel} cannot run {grid}: {reason}");
            return Err(refused(LAUNCH, CL_INVALID_WORK_GROUP_SIZE, reason));
        }
        if matches!(self.numbering, Numbering::Run { .. })
            && (0..asked.grid.dimensions).any(|axis| axis != asked.split && asked.grid.offset[axis] != 0)
        {
            let split = asked.split;
            let reason = format!("kernel {kernel} is for parts along dimension {split}, not for {grid}");
            return Err(refused(LAUNCH, CL_INVALID_GLOBAL_OFFSET, reason));
        }
        self.sizes(asked).ok_or_else(|| {
            let reason = format!("kernel {kernel}: {grid} exceed what can be counted");
            refused(LAUNCH, CL_INVALID_GLOBAL_WORK_SIZE, reason)
        })
    }

    /// Returns the sizes of a launch, padded to whole groups; `None` on overflow or invalid dimensions.
    fn sizes(&self, asked: &Asked) -> Option<Size> {
        let (split, dimensions) = (asked.split, asked.grid.dimensions);
        let is_open =
            asked.grid.local[..dimensions].iter().all(|&local| local == 0) && self.limits.required.is_none();
        let local = self.limits.choose(asked.grid.local);
        let mut size = Size { dimensions: dimensions as u32, offset: [0; 3], global: [1; 3], local: None };
        let mut group = [1; 3];
        for axis in 0..dimensions {
            group[axis] = if is_open { 1 } else { usize::try_from(local[axis]).ok()? };
            (size.offset[axis], size.global[axis]) =
                along(asked.grid.offset[axis], asked.grid.items[axis], group[axis])?;
        }
        size.local = (!is_open).then_some(group);
        if let Numbering::Run { .. } = self.numbering {
            // The encoding of `prelude.cl`. Dimensions beyond those of the launch have one work-item.
            let end = asked.grid.offset[split].checked_add(asked.grid.items[split])?;
            let (_, whole) = along(0, asked.total.unwrap_or(end).max(end), group[split])?;
            let (carrier, told) = ((split + 1) % 3, whole.checked_mul(4)? + dimensions);
            (size.dimensions, size.offset[carrier]) = (3, told);
            told.checked_add(size.global[carrier])?;
        }
        Some(size)
    }

    fn misfit(&self, index: u32, count: usize, code: i32, reason: &str) -> TransferError {
        let error = self.session.failed("clSetKernelArg", code);
        if error.is_device_lost() {
            return error;
        }
        refused(
            "clSetKernelArg",
            code,
            format!("argument {index} of {count} of kernel {}: {reason}", self.name),
        )
    }
}

impl CompiledKernel for OpenClKernel {
    type Arena = OpenClArena;
    const FRAMEWORK: &'static str = "OpenCL";

    fn build(arena: &OpenClArena, source: &str, name: &str, options: &str) -> Result<Self, BuildError> {
        arena.package_kernel(source, name, options)
    }

    /// Checks the number of the arguments, and their types as far as the driver describes them.
    fn fits(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        let kernel = || format!("{} on {}", self.name, self.arena);
        if arguments.len() != self.parameters.len() {
            let (takes, given) = (self.parameters.len(), arguments.len());
            return Err(Misfit::Count { kernel: kernel(), takes, given });
        }
        let mut local_bytes = 0_u64;
        for (index, (argument, parameter)) in arguments.iter().zip(&self.parameters).enumerate() {
            let Some(given) = Given::of(argument) else { continue };
            if let Some(takes) = parameter.mismatch(given) {
                return Err(Misfit::Argument { kernel: kernel(), index, takes, given: given.to_string() });
            }
            if let LaunchArg::Local(bytes) = argument {
                local_bytes = local_bytes.saturating_add(*bytes);
                let most = self.session.facts.local_bytes;
                if *bytes == 0 || local_bytes > most {
                    let takes = format!("local memory, of 1 to {most} bytes in total");
                    return Err(Misfit::Argument {
                        kernel: kernel(),
                        index,
                        takes,
                        given: argument.describe(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Refuses, with the reason, if
    /// - the kernel or the device does not allow the size;
    /// - the source may query its group, and the size is left open;
    /// - the source queries its group or launch, and was built by [`OpenClArena::kernel`];
    /// - the source defines one of these queries as a macro.
    ///
    /// The last three do not matter if a launch is the [whole](ItemShape::is_whole) run.
    fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit> {
        let local = shape.local();
        let open = || local[..shape.dimensions()].contains(&0);
        let checked = match self.numbering {
            _ if shape.is_whole() => self.limits.check(local),
            Numbering::Run { needs_local: true } if open() => {
                Err("its source may query its work-group, so a work-group size is needed".to_owned())
            }
            Numbering::Unaware(why) => {
                Err(format!("its groups would be numbered within each package: {why}"))
            }
            _ => self.limits.check(local),
        };
        let kernel = || format!("{} on {}", self.name, self.arena);
        checked.map_err(|reason| Misfit::Groups { kernel: kernel(), local, reason })
    }

    /// Starts the kernel on a part of a run.
    ///
    /// If the part is [independent](Launch::is_independent), it may overlap with earlier kernels, on one of a
    /// few queues in rotation. That needs a device that is no processor, and whose OpenCL defines concurrent
    /// use of one buffer. A device that one kernel does not fill, mostly at its end, then runs others
    /// meanwhile.
    ///
    /// No kernel in flight may write what an independent part reads or writes, or read what it writes. Later
    /// launches that are not independent run after it, and so do copies.
    unsafe fn launch_part(&self, args: &[KernelArg<'_>], part: &Launch<'_>) -> Result<Fence, TransferError> {
        let (shape, items) = (part.shape, part.items);
        let grid = Grid {
            dimensions: shape.dimensions(),
            offset: shape.offset(items),
            items: shape.global(items),
            local: shape.local(),
        };
        let asked = Asked { split: shape.axis(), total: Some(part.total), grid };
        let order = match part {
            Launch { is_independent: true, .. } => Order::BesideOthers,
            Launch { is_followed: true, .. } => Order::Followed,
            _ => Order::AfterOthers,
        };
        // SAFETY: the caller guarantees what the kernel accesses.
        unsafe { self.launch_asked(order, args, &asked) }
    }

    /// Returns whether it was enqueued, but the flush to the device failed.
    fn may_have_begun(error: &TransferError) -> bool {
        matches!(error, TransferError::Framework { call: FLUSH, .. })
    }
}

/// The blocks of a kernel.
type Blocks = SmallVec<[BlockRef; 4]>;

/// The order of a kernel relative to the others.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// It runs after all kernels that were launched before.
    AfterOthers,
    /// As [`AfterOthers`](Self::AfterOthers), and the next launch follows at once.
    Followed,
    /// It may overlap with kernels in flight.
    BesideOthers,
}

/// Returns whether a block has an unmap that commands in queues other than the kernels' must wait for.
fn was_mapped(block: &BlockRef) -> bool {
    block.downcast_ref::<OpenClBlock>().is_some_and(|block| block.mapping().after().parts().0 > 0)
}

/// The work-items of a launch, as requested.
struct Asked {
    grid: Grid,
    /// The dimension along which a run is divided.
    split: usize,
    /// The number of items of the whole run along the split dimension, if the launch is a part of one.
    total: Option<u64>,
}

/// The sizes of a launch, as the driver takes them.
struct Size {
    /// The number of dimensions in use.
    dimensions: u32,
    offset: [usize; 3],
    global: [usize; 3],
    local: Option<[usize; 3]>,
}

/// Returns the first work-item along one dimension, and the number of work-items padded to whole groups;
/// `None` if they overflow.
fn along(offset: u64, items: u64, local: usize) -> Option<(usize, usize)> {
    let (offset, items) = (usize::try_from(offset).ok()?, usize::try_from(items).ok()?);
    let global = items.checked_next_multiple_of(local)?;
    offset.checked_add(global)?;
    Some((offset, global))
}

fn set(kernel: &Kernel, index: u32, arg: &KernelArg<'_>) -> Result<(), i32> {
    fn set_value<T: Copy>(kernel: &Kernel, index: u32, value: T) -> Result<(), i32> {
        let address = (&raw const value).cast::<c_void>();
        // SAFETY: a live kernel, which only this thread uses: it is borrowed from its lock. The call copies
        // the value of this size from this address.
        unsafe { set_kernel_arg(kernel.raw(), index, size_of::<T>(), address) }
    }
    match *arg {
        KernelArg::Block(block) => {
            let block = block.downcast_ref::<OpenClBlock>().expect("checked before: a block of this arena");
            set_value::<cl_mem>(kernel, index, block.mem())
        }
        KernelArg::Nothing => set_value::<cl_mem>(kernel, index, std::ptr::null_mut()),
        KernelArg::Scalar(scalar) => match scalar {
            Scalar::I8(value) => set_value(kernel, index, value),
            Scalar::U8(value) => set_value(kernel, index, value),
            Scalar::I16(value) => set_value(kernel, index, value),
            Scalar::U16(value) | Scalar::F16(value) => set_value(kernel, index, value),
            Scalar::I32(value) => set_value(kernel, index, value),
            Scalar::U32(value) => set_value(kernel, index, value),
            Scalar::I64(value) => set_value(kernel, index, value),
            Scalar::U64(value) => set_value(kernel, index, value),
            Scalar::F32(value) => set_value(kernel, index, value),
            Scalar::F64(value) => set_value(kernel, index, value),
            _ => Err(CL_INVALID_ARG_VALUE),
        },
        KernelArg::Bytes(bytes) => {
            // SAFETY: as above; the call copies this many bytes from this address.
            unsafe { set_kernel_arg(kernel.raw(), index, bytes.len(), bytes.as_ptr().cast()) }
        }
        KernelArg::Local(bytes) => {
            let bytes = usize::try_from(bytes).map_err(|_| CL_INVALID_ARG_SIZE)?;
            // SAFETY: as above; without an address, the size is that of local memory to allocate.
            unsafe { set_kernel_arg(kernel.raw(), index, bytes, std::ptr::null()) }
        }
    }
}
