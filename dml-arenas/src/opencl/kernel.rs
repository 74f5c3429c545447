//! Kernels: OpenCL C source, built once for each arena and launched on its queue.

use super::arena::OpenClArena;
use super::block::OpenClBlock;
use super::error::{BuildError, refused, words};
use super::handle::{Kernel, Program};
use super::session::{FLUSH, Session};
use dml_core::sync::{Arc, Mutex};
use dml_core::{Arena, BlockRef, Fence, LaunchArg, Misfit, Scalar, TransferError};
use opencl3::command_queue::enqueue_nd_range_kernel;
use opencl3::error_codes::{
    CL_BUILD_PROGRAM_FAILURE, CL_DEVICE_NOT_AVAILABLE, CL_INVALID_ARG_INDEX, CL_INVALID_ARG_SIZE,
    CL_INVALID_ARG_VALUE, CL_INVALID_GLOBAL_WORK_SIZE, CL_INVALID_KERNEL_NAME, CL_INVALID_MEM_OBJECT,
};
use opencl3::kernel::{
    CL_KERNEL_ARG_ADDRESS_CONSTANT, CL_KERNEL_ARG_ADDRESS_GLOBAL, CL_KERNEL_ARG_ADDRESS_LOCAL,
    CL_KERNEL_ARG_ADDRESS_PRIVATE, CL_KERNEL_ARG_ADDRESS_QUALIFIER, CL_KERNEL_ARG_TYPE_NAME,
    CL_KERNEL_NUM_ARGS, CL_KERNEL_WORK_GROUP_SIZE, create_kernel, get_kernel_arg_info, get_kernel_info,
    get_kernel_work_group_info, set_kernel_arg,
};
use opencl3::program::{
    CL_PROGRAM_BUILD_LOG, build_program, create_program_with_source, get_program_build_info,
};
use opencl3::types::{cl_command_queue, cl_mem};
use std::ffi::{CString, c_void};
use std::fmt;

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum KernelArg<'a> {
    /// A `__global` or `__constant` pointer: a whole block of the kernel's arena.
    Block(&'a BlockRef),
    /// A `uint`.
    U32(u32),
    /// A `ulong`.
    U64(u64),
    /// An `int`.
    I32(i32),
    /// A `float`.
    F32(f32),
    /// A scalar of any width.
    Scalar(Scalar),
    /// A value of any type, as its bytes.
    Bytes(&'a [u8]),
    /// A `__local` pointer: so many bytes for each work-group.
    Local(u64),
}

impl KernelArg<'_> {
    /// Returns what a parameter is compared with.
    fn given(&self) -> Given {
        match *self {
            Self::Block(_) => Given::Block,
            Self::U32(_) => Given::Scalar("uint"),
            Self::U64(_) => Given::Scalar("ulong"),
            Self::I32(_) => Given::Scalar("int"),
            Self::F32(_) => Given::Scalar("float"),
            Self::Scalar(scalar) => Given::Scalar(type_name(scalar)),
            Self::Bytes(bytes) => Given::Bytes(bytes.len()),
            Self::Local(_) => Given::Local,
        }
    }
}

/// What an argument is, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Block,
    /// A scalar of this type of OpenCL C.
    Scalar(&'static str),
    /// A value of so many bytes.
    Bytes(usize),
    Local,
}

impl Given {
    fn of(argument: &LaunchArg) -> Option<Self> {
        Some(match argument {
            LaunchArg::Buffer { .. } => Self::Block,
            LaunchArg::Scalar(scalar) => Self::Scalar(type_name(*scalar)),
            LaunchArg::Bytes(bytes) => Self::Bytes(bytes.len()),
            LaunchArg::Local(_) => Self::Local,
            _ => return None,
        })
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("a block"),
            Self::Scalar(name) => f.write_str(name),
            Self::Bytes(bytes) => write!(f, "a value of {bytes} bytes"),
            Self::Local => f.write_str("local memory"),
        }
    }
}

/// Returns the OpenCL C name of a scalar's type.
fn type_name(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::I8(_) => "char",
        Scalar::U8(_) => "uchar",
        Scalar::I16(_) => "short",
        Scalar::U16(_) => "ushort",
        Scalar::I32(_) => "int",
        Scalar::U32(_) => "uint",
        Scalar::I64(_) => "long",
        Scalar::U64(_) => "ulong",
        Scalar::F16(_) => "half",
        Scalar::F32(_) => "float",
        Scalar::F64(_) => "double",
        _ => "a scalar unknown to OpenCL",
    }
}

/// Returns the size of a type of OpenCL C in bytes, for scalars and vectors of them.
fn type_bytes(name: &str) -> Option<usize> {
    let digits = name.len() - name.trim_end_matches(|digit: char| digit.is_ascii_digit()).len();
    let (base, lanes) = name.split_at(name.len() - digits);
    let bytes = match base {
        "char" | "uchar" => 1,
        "short" | "ushort" | "half" => 2,
        "int" | "uint" | "float" => 4,
        "long" | "ulong" | "double" => 8,
        _ => return None,
    };
    match lanes {
        "" => Some(bytes),
        // A vector of three is as large as one of four.
        "3" => Some(bytes * 4),
        "2" | "4" | "8" | "16" => Some(bytes * lanes.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns whether a kernel may have run although its launch failed: it was enqueued, but handing it to the device
/// failed.
#[must_use]
pub fn may_have_begun(error: &TransferError) -> bool {
    matches!(error, TransferError::Framework { call: FLUSH, .. })
}

/// The number of work-items of a launch, along one dimension.
///
/// # Shape and units
/// All three fields count work-items. `get_global_id(0)` runs from `offset`. The number of work-items is padded to a
/// multiple of the group size. So a kernel takes its end as an argument, and returns where `get_global_id(0)` reaches
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The first work-item.
    pub offset: u64,
    /// The number of work-items; zero launches nothing.
    pub items: u64,
    /// The size of a work-group, cut to the most that the kernel allows on this device. Zero leaves the choice to the
    /// driver, which then launches exactly `items`.
    pub local: u64,
}

/// The work-items of a launch along `D` dimensions, one to three. In two, the first dimension is that of columns, the second
/// that of rows.
///
/// # Shape and units
/// As [`Launch`], for each dimension. Groups are as large as `local` says, since a kernel of several dimensions usually
/// relies on their shape. A driver that cannot run such groups refuses the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid<const D: usize = 2> {
    /// The first work-item.
    pub offset: [u64; D],
    /// The number of work-items; zero in one dimension launches nothing.
    pub items: [u64; D],
    /// The size of a work-group, at least one.
    pub local: [u64; D],
}

impl OpenClArena {
    /// Builds a kernel from OpenCL C source. A program is compiled once for each source and options. Each call makes a
    /// separate kernel, so that callers on different threads do not wait for each other.
    ///
    /// DML does not check what memory a kernel touches: the caller of [`launch`](OpenClKernel::launch) is responsible
    /// for that.
    ///
    /// # Errors
    /// [`BuildError`]: [`Compile`](BuildError::Compile) with the compiler's log if it refuses the source,
    /// [`NoKernel`](BuildError::NoKernel) if the source has no kernel of this name.
    pub fn kernel(&self, source: &str, name: &str, options: &str) -> Result<OpenClKernel, BuildError> {
        let zero = |what| BuildError::ZeroCharacter {
            arena: self.desc().name.clone(),
            kernel: name.to_owned(),
            what,
        };
        let framework = |call| {
            move |code: i32| BuildError::Framework {
                arena: self.desc().name.clone(),
                kernel: name.to_owned(),
                call,
                code: code.into(),
                message: words(code).into(),
            }
        };
        let kernel_name = CString::new(name).map_err(|_| zero("the name"))?;
        let program = self.program(source, name, options)?;
        let kernel = create_kernel(program.raw(), &kernel_name).map_err(|code| match code {
            CL_INVALID_KERNEL_NAME => {
                BuildError::NoKernel { arena: self.desc().name.clone(), kernel: name.to_owned() }
            }
            code => framework("clCreateKernel")(code),
        })?;
        // SAFETY: the kernel just made, whose one reference is ours.
        let kernel = unsafe { Kernel::own(kernel) };
        let count: u32 =
            get_kernel_info(kernel.raw(), CL_KERNEL_NUM_ARGS).map_err(framework("clGetKernelInfo"))?.into();
        let max_local: usize =
            get_kernel_work_group_info(kernel.raw(), self.session.part.id(), CL_KERNEL_WORK_GROUP_SIZE)
                .map_err(framework("clGetKernelWorkGroupInfo"))?
                .into();
        Ok(OpenClKernel {
            name: name.into(),
            arena: self.desc().name.clone(),
            parameters: (0..count).map(|index| Parameter::of(&kernel, index)).collect(),
            max_local: max_local.min(self.session.facts.max_local).max(1),
            kernel: Mutex::new(kernel),
            session: self.session.clone(),
        })
    }

    /// Returns the built program of this source, from the cache or the compiler.
    fn program(&self, source: &str, kernel: &str, options: &str) -> Result<Arc<Program>, BuildError> {
        let arena = &self.desc().name;
        let zero = |what| BuildError::ZeroCharacter { arena: arena.clone(), kernel: kernel.to_owned(), what };
        let framework = |call, code: i32| BuildError::Framework {
            arena: arena.clone(),
            kernel: kernel.to_owned(),
            call,
            code: code.into(),
            message: words(code).into(),
        };
        if source.contains('\0') {
            return Err(zero("the source"));
        }
        // Argument information lets a launch refuse an argument that does not fit.
        let all_options =
            CString::new(format!("-cl-kernel-arg-info {options}")).map_err(|_| zero("the options"))?;
        let gone = |_| framework("clCreateProgramWithSource", CL_DEVICE_NOT_AVAILABLE);
        let context = self.session.context().map_err(gone)?;
        let key = (source.to_owned(), options.to_owned());
        let made = self.programs.lock().get(&key).cloned();
        if let Some(program) = made {
            return Ok(program);
        }
        let program = create_program_with_source(context, &[source])
            .map_err(|code| framework("clCreateProgramWithSource", code))?;
        // SAFETY: the program just made, whose one reference is ours.
        let program = unsafe { Program::own(program) };
        let device = self.session.part.id();
        build_program(program.raw(), &[device], &all_options, None, std::ptr::null_mut()).map_err(
            |code| {
                let log = get_program_build_info(program.raw(), device, CL_PROGRAM_BUILD_LOG);
                let log =
                    log.map(String::from).unwrap_or_default().trim_matches(['\0', '\n', ' ']).to_owned();
                if code == CL_BUILD_PROGRAM_FAILURE || !log.is_empty() {
                    BuildError::Compile { arena: arena.clone(), kernel: kernel.to_owned(), log }
                } else {
                    framework("clBuildProgram", code)
                }
            },
        )?;
        let program = Arc::new(program);
        // Another thread may have been first: then its program counts, and ours goes without the lock.
        let first = self.programs.lock().entry(key).or_insert_with(|| program.clone()).clone();
        Ok(first)
    }
}

/// The known facts of one parameter of a kernel; empty where the driver does not report them.
#[derive(Clone, Debug, Default)]
struct Parameter {
    address: Option<u32>,
    type_name: Option<String>,
}

impl Parameter {
    fn of(kernel: &Kernel, index: u32) -> Self {
        let info = |what| get_kernel_arg_info(kernel.raw(), index, what).ok();
        Self {
            address: info(CL_KERNEL_ARG_ADDRESS_QUALIFIER).map(u32::from),
            type_name: info(CL_KERNEL_ARG_TYPE_NAME)
                .map(|name| String::from(name).trim_end_matches('\0').to_owned())
                .filter(|name| !name.is_empty()),
        }
    }

    /// Returns what the kernel takes, if `given` does not fit. The driver judges parameters that it does not describe.
    fn mismatch(&self, given: Given) -> Option<String> {
        let address = self.address?;
        let type_name = self.type_name.as_deref().unwrap_or("a type");
        let is_memory = matches!(address, CL_KERNEL_ARG_ADDRESS_GLOBAL | CL_KERNEL_ARG_ADDRESS_CONSTANT);
        let fits = match given {
            Given::Block => is_memory,
            Given::Local => address == CL_KERNEL_ARG_ADDRESS_LOCAL,
            Given::Scalar(_) | Given::Bytes(_) if address != CL_KERNEL_ARG_ADDRESS_PRIVATE => false,
            // The program's own names for types say nothing of their sizes.
            Given::Scalar(given) => type_bytes(type_name).is_none() || type_name == given,
            Given::Bytes(given) => type_bytes(type_name).is_none_or(|bytes| bytes == given),
        };
        (!fits).then(|| match address {
            CL_KERNEL_ARG_ADDRESS_PRIVATE => type_name.to_owned(),
            CL_KERNEL_ARG_ADDRESS_LOCAL => "a pointer to local memory".to_owned(),
            _ => "a pointer".to_owned(),
        })
    }
}

/// A kernel of one arena, ready to be launched.
#[derive(Debug)]
pub struct OpenClKernel {
    name: Box<str>,
    /// The name of its arena.
    arena: Arc<str>,
    parameters: Vec<Parameter>,
    max_local: usize,
    /// Held while the arguments are set and the kernel is enqueued, which must be one step.
    kernel: Mutex<Kernel>,
    session: Arc<Session>,
}

impl OpenClKernel {
    /// The kernel's name in its source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The largest work-group of the kernel on its device, in work-items.
    #[must_use]
    pub fn max_local(&self) -> u64 {
        self.max_local as u64
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Checks arguments against the kernel's own signature: their number, and as far as the driver tells it what each is.
    ///
    /// # Errors
    /// [`Misfit`], with both sides.
    pub fn fits(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        let kernel = || format!("{} on {}", self.name, self.arena);
        if arguments.len() != self.parameters.len() {
            let (takes, given) = (self.parameters.len(), arguments.len());
            return Err(Misfit::Count { kernel: kernel(), takes, given });
        }
        for (index, (argument, parameter)) in arguments.iter().zip(&self.parameters).enumerate() {
            let Some(given) = Given::of(argument) else { continue };
            if let Some(takes) = parameter.mismatch(given) {
                return Err(Misfit::Argument { kernel: kernel(), index, takes, given: given.to_string() });
            }
        }
        Ok(())
    }

    /// Starts the kernel. The fence waits for its end and reports zero bytes.
    ///
    /// # Safety
    /// 1. With these arguments and this many work-items, the kernel touches only the bytes of its arguments' blocks. On
    ///    a device that shares the host's memory, the bytes beside them belong to the program.
    ///
    /// One more condition is needed for correct contents, not for memory safety. The bytes are granted to the caller
    /// until the fence has ended, for writing where the kernel writes.
    ///
    /// # Errors
    /// [`TransferError::Framework`], with the argument's index in its message, if the number, the type or the arena of
    /// the arguments does not fit; otherwise the driver's error.
    ///
    /// # Panics
    /// When a block is mapped for the host. Core prevents this for a block that a device's grant names.
    pub unsafe fn launch(&self, args: &[KernelArg<'_>], launch: Launch) -> Result<Fence, TransferError> {
        // SAFETY: as the caller answers for.
        unsafe { self.launch_in(Order::AfterOthers, args, launch) }
    }

    /// As [`launch`](Self::launch), but the kernel may run beside those that were launched before it: on one of a few queues, in turn, if the
    /// device is no processor and its OpenCL leaves the use of one buffer by several commands defined. Of a device whose units one kernel does not
    /// fill, at its end above all, others have the rest. Of those that have not ended none writes what it reads or writes, and none reads what it
    /// writes. Kernels and copies that are launched after it without this run after it.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Panics
    /// As [`launch`](Self::launch).
    pub unsafe fn launch_beside(
        &self,
        args: &[KernelArg<'_>],
        launch: Launch,
    ) -> Result<Fence, TransferError> {
        // SAFETY: as the caller answers for.
        unsafe { self.launch_in(Order::BesideOthers, args, launch) }
    }

    unsafe fn launch_in(
        &self,
        order: Order,
        args: &[KernelArg<'_>],
        launch: Launch,
    ) -> Result<Fence, TransferError> {
        let blocks = self.check(args)?;
        if launch.items == 0 {
            return Ok(Fence::done(0));
        }
        let size = self.size(launch)?;
        // SAFETY: the caller answers for what the kernel touches (1).
        unsafe { self.enqueue(args, blocks, &size, order) }
    }

    /// Starts the kernel on a grid of work-items. The fence waits for its end and reports zero bytes.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Panics
    /// As [`launch`](Self::launch).
    pub unsafe fn launch_grid<const D: usize>(
        &self,
        args: &[KernelArg<'_>],
        grid: Grid<D>,
    ) -> Result<Fence, TransferError> {
        // SAFETY: as the caller answers for.
        unsafe { self.launch_grid_in(Order::AfterOthers, args, grid) }
    }

    /// As [`launch_grid`](Self::launch_grid), beside others as by [`launch_beside`](Self::launch_beside).
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Panics
    /// As [`launch`](Self::launch).
    pub unsafe fn launch_grid_beside<const D: usize>(
        &self,
        args: &[KernelArg<'_>],
        grid: Grid<D>,
    ) -> Result<Fence, TransferError> {
        // SAFETY: as the caller answers for.
        unsafe { self.launch_grid_in(Order::BesideOthers, args, grid) }
    }

    unsafe fn launch_grid_in<const D: usize>(
        &self,
        order: Order,
        args: &[KernelArg<'_>],
        grid: Grid<D>,
    ) -> Result<Fence, TransferError> {
        let blocks = self.check(args)?;
        if grid.items.contains(&0) {
            return Ok(Fence::done(0));
        }
        let size = self.grid_size(grid)?;
        // SAFETY: the caller answers for what the kernel touches (1).
        unsafe { self.enqueue(args, blocks, &size, order) }
    }

    /// Sets the arguments and enqueues the kernel.
    ///
    /// # Safety
    /// 1. As [`launch`](Self::launch).
    unsafe fn enqueue(
        &self,
        args: &[KernelArg<'_>],
        blocks: Vec<BlockRef>,
        size: &Size,
        order: Order,
    ) -> Result<Fence, TransferError> {
        match order {
            Order::AfterOthers => self.session.await_beside()?,
            // Its unmap is in the kernels' queue, and nobody has waited for it.
            Order::BesideOthers if blocks.iter().any(was_mapped) => {}
            Order::BesideOthers => {
                // SAFETY: as the caller answers for.
                return self.session.beside(|queue| unsafe { self.enqueue_on(queue, args, blocks, size) });
            }
        }
        // SAFETY: as the caller answers for.
        unsafe { self.enqueue_on(self.session.kernels()?, args, blocks, size) }
    }

    /// As [`enqueue`](Self::enqueue), on one queue.
    unsafe fn enqueue_on(
        &self,
        queue: cl_command_queue,
        args: &[KernelArg<'_>],
        blocks: Vec<BlockRef>,
        size: &Size,
    ) -> Result<Fence, TransferError> {
        let kernel = self.kernel.lock();
        for (index, arg) in (0..).zip(args) {
            set(&kernel, index, arg).map_err(|code| self.misfit(index, args.len(), code, &words(code)))?;
        }
        let local = size.local.as_ref().map_or(std::ptr::null(), |local| local.as_ptr());
        let (offset, global) = (size.offset.as_ptr(), size.global.as_ptr());
        // SAFETY: a live queue and a kernel of its context, with every argument set under the lock held; the sizes are
        // of three dimensions each, of which the first ones count, and outlive the call. What the kernel touches is the
        // caller's to answer for (1).
        let enqueued = unsafe {
            let (kernel, dimensions) = (kernel.raw(), size.dimensions);
            enqueue_nd_range_kernel(queue, kernel, dimensions, offset, global, local, 0, std::ptr::null())
        };
        drop(kernel);
        self.session.fence("clEnqueueNDRangeKernel", (queue, enqueued), 0, blocks)
    }

    /// Checks number, types and arena of the arguments. Returns the blocks, to be kept while the kernel runs.
    fn check(&self, args: &[KernelArg<'_>]) -> Result<Vec<BlockRef>, TransferError> {
        if args.len() != self.parameters.len() {
            let (takes, given) = (self.parameters.len(), args.len());
            let reason = format!("kernel {} takes {takes} arguments, not {given}", self.name);
            return Err(refused("clSetKernelArg", CL_INVALID_ARG_INDEX, reason));
        }
        let mut blocks = Vec::new();
        for (index, (arg, parameter)) in (0..).zip(args.iter().zip(&self.parameters)) {
            let given = arg.given();
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

    fn size(&self, launch: Launch) -> Result<Size, TransferError> {
        let word = |value: u64| usize::try_from(value).ok();
        let size = || {
            let local =
                (launch.local > 0).then(|| word(launch.local).unwrap_or(usize::MAX).min(self.max_local));
            let (offset, global) = along(launch.offset, launch.items, local.unwrap_or(1))?;
            let local = local.map(|local| [local, 1, 1]);
            Some(Size { dimensions: 1, offset: [offset, 0, 0], global: [global, 1, 1], local })
        };
        size().ok_or_else(|| self.uncountable(&launch))
    }

    fn grid_size<const D: usize>(&self, grid: Grid<D>) -> Result<Size, TransferError> {
        let size = || {
            let mut size = Size { dimensions: D as u32, offset: [0; 3], global: [1; 3], local: None };
            let mut groups = [1; 3];
            for axis in 0..D {
                let local = usize::try_from(grid.local[axis]).ok()?.max(1);
                // There are no more than three dimensions.
                *groups.get_mut(axis)? = local;
                (size.offset[axis], size.global[axis]) = along(grid.offset[axis], grid.items[axis], local)?;
            }
            size.local = Some(groups);
            Some(size).filter(|_| D > 0)
        };
        size().ok_or_else(|| self.uncountable(&grid))
    }

    fn uncountable(&self, launch: &dyn fmt::Debug) -> TransferError {
        let reason = format!("kernel {}: {launch:?} exceeds what can be counted", self.name);
        refused("clEnqueueNDRangeKernel", CL_INVALID_GLOBAL_WORK_SIZE, reason)
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

/// Where a kernel is in the order of the others.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// After all that were launched before.
    AfterOthers,
    /// It may run at the same time as those that have not ended.
    BesideOthers,
}

/// Whether a block was mapped for the host, which makes its commands in other queues than the kernels' wait.
fn was_mapped(block: &BlockRef) -> bool {
    block.downcast_ref::<OpenClBlock>().is_some_and(|block| block.mapping().after().parts().0 > 0)
}

/// The sizes of a launch, as the driver takes them.
struct Size {
    /// How many of the three dimensions count.
    dimensions: u32,
    offset: [usize; 3],
    global: [usize; 3],
    local: Option<[usize; 3]>,
}

/// Returns the first work-item along one dimension, and the number of work-items padded to whole groups, if both can be
/// counted.
fn along(offset: u64, items: u64, local: usize) -> Option<(usize, usize)> {
    let (offset, items) = (usize::try_from(offset).ok()?, usize::try_from(items).ok()?);
    let global = items.checked_next_multiple_of(local)?;
    offset.checked_add(global)?;
    Some((offset, global))
}

fn set(kernel: &Kernel, index: u32, arg: &KernelArg<'_>) -> Result<(), i32> {
    fn set_value<T: Copy>(kernel: &Kernel, index: u32, value: T) -> Result<(), i32> {
        let address = (&raw const value).cast::<c_void>();
        // SAFETY: a live kernel, which this thread has for itself (it is borrowed from its lock); the call copies the
        // value, whose size and address these are.
        unsafe { set_kernel_arg(kernel.raw(), index, size_of::<T>(), address) }
    }
    match *arg {
        KernelArg::Block(block) => {
            let block = block.downcast_ref::<OpenClBlock>().expect("checked before: a block of this arena");
            set_value::<cl_mem>(kernel, index, block.mem())
        }
        KernelArg::U32(value) => set_value(kernel, index, value),
        KernelArg::U64(value) => set_value(kernel, index, value),
        KernelArg::I32(value) => set_value(kernel, index, value),
        KernelArg::F32(value) => set_value(kernel, index, value),
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
            // SAFETY: as above; the call copies so many bytes from there.
            unsafe { set_kernel_arg(kernel.raw(), index, bytes.len(), bytes.as_ptr().cast()) }
        }
        KernelArg::Local(bytes) => {
            let bytes = usize::try_from(bytes).map_err(|_| CL_INVALID_ARG_SIZE)?;
            // SAFETY: as above; without an address, the size is that of local memory to be made.
            unsafe { set_kernel_arg(kernel.raw(), index, bytes, std::ptr::null()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_must_fit_its_parameter() {
        let scalar = |name: &str| Parameter {
            address: Some(CL_KERNEL_ARG_ADDRESS_PRIVATE),
            type_name: Some(name.to_owned()),
        };
        let pointer =
            Parameter { address: Some(CL_KERNEL_ARG_ADDRESS_GLOBAL), type_name: Some("float*".to_owned()) };
        let u32 = Given::Scalar("uint");
        assert_eq!(scalar("uint").mismatch(u32), None);
        assert_eq!(scalar("float").mismatch(u32).unwrap(), "float");
        assert_eq!(scalar("my_type").mismatch(u32), None);
        assert_eq!(pointer.mismatch(Given::Scalar("ulong")).unwrap(), "a pointer");
        assert_eq!((pointer.mismatch(Given::Block), Parameter::default().mismatch(u32)), (None, None));
        assert_eq!(scalar("uint").mismatch(Given::Block).unwrap(), "uint");
        assert_eq!(scalar("float4").mismatch(Given::Bytes(16)), None);
        assert_eq!(scalar("float3").mismatch(Given::Bytes(12)).unwrap(), "float3");
        assert_eq!(pointer.mismatch(Given::Local).unwrap(), "a pointer");
        let local = Parameter { address: Some(CL_KERNEL_ARG_ADDRESS_LOCAL), type_name: None };
        assert_eq!(local.mismatch(Given::Local), None);
        assert_eq!(local.mismatch(Given::Block).unwrap(), "a pointer to local memory");
    }

    #[test]
    fn the_types_of_opencl_have_their_sizes() {
        let sizes =
            ["char", "ushort2", "half", "float3", "uint4", "double16", "long", "uint5", "size_t", "2"];
        let expected = [1, 4, 2, 16, 16, 128, 8].map(Some).into_iter().chain([None; 3]);
        assert!(sizes.map(type_bytes).into_iter().eq(expected));
    }
}
