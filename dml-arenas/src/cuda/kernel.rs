//! Kernels: CUDA C or PTX, built once for each arena and launched on its streams.

use super::arena::CudaArena;
use super::block::CudaBlock;
use super::compile::{compile, is_ptx};
use super::error::{Failure, check, refused, words};
use super::grid::{Part, limits, parts};
use super::numbering::{self, Numbering, PART_BYTES};
use super::session::{RECORD, Raw, Session, Way};
use super::together::{LAUNCH, Parameter, Ready};
use crate::compiled::{BuildCause, BuildError, CompiledKernel, Grid, KernelArg, Limits};
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as Attribute, CUjit_option, CUmodule, CUresult, cuFuncGetAttribute,
    cuFuncGetParamInfo, cuFuncSetAttribute, cuModuleGetFunction, cuModuleLoadDataEx, cuModuleUnload,
    cuStreamSynchronize,
};
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{
    Arena, BlockRef, Fence, ItemShape, Launch, LaunchArg, Misfit, NativeHandle, Scalar, TransferError,
};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::fmt;

/// The size of `DmlItems`, the parameter through which a kernel receives its items, in bytes.
const ITEMS_BYTES: usize = 48;
/// Local memory that a kernel may use without raising its limit, in bytes.
const LOCAL_BYTES: u64 = 48 << 10;
/// The failure of a lost device.
const LOST: Failure = Failure { call: "cuCtxPushCurrent", code: CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED };
/// The call that fails if earlier parts of the same launch may run.
const LAUNCH_A_FURTHER_PART: &str = "cuLaunchKernel of a further part";

/// A loaded module of the driver.
#[derive(Debug)]
pub(super) struct Program {
    module: Raw<CUmodule>,
    /// The local memory limit of kernels that need more than [`LOCAL_BYTES`], in bytes, by name. The driver
    /// has one function per name, so kernels of one name share the limit.
    local_bytes: Mutex<HashMap<Box<str>, u64>>,
    session: Arc<Session>,
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(_entered) = self.session.enter_lost() {
            self.session.forget_functions();
            // SAFETY: the module from `load`, unloaded once. Its kernels keep it, and fences keep the
            // kernels' programs.
            let _ = unsafe { cuModuleUnload(self.module.0) };
        }
    }
}

/// The order of a kernel relative to the others.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Behind those on a stream.
    On(Way),
    /// Behind all that were submitted.
    Submitted {
        /// Whether the next one follows at once.
        is_followed: bool,
    },
}

/// The kind of an argument, and its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Block,
    Scalar(usize),
    Value(usize),
}

impl Given {
    /// Returns the argument as a parameter sees it; `None` for local memory.
    fn of(argument: &KernelArg<'_>) -> Option<Self> {
        Some(match argument {
            KernelArg::Block(_) | KernelArg::Nothing => Self::Block,
            KernelArg::Scalar(scalar) => Self::Scalar(ScalarBytes::of(*scalar).len),
            KernelArg::Bytes(bytes) => Self::Value(bytes.len()),
            KernelArg::Local(_) => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::Block => size_of::<u64>(),
            Self::Scalar(bytes) | Self::Value(bytes) => bytes,
        }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("a block"),
            Self::Scalar(bytes) => write!(f, "a scalar of {bytes} bytes"),
            Self::Value(bytes) => write!(f, "a value of {bytes} bytes"),
        }
    }
}

/// The bytes of a scalar on the device. An unknown kind has no bytes, which fits no parameter, so it is
/// refused.
#[derive(Clone, Copy, Debug)]
struct ScalarBytes {
    bytes: [u8; 8],
    len: usize,
}

impl ScalarBytes {
    fn of(scalar: Scalar) -> Self {
        let mut of = Self { bytes: [0; 8], len: 0 };
        match scalar {
            Scalar::I8(value) => of.put(value.to_ne_bytes()),
            Scalar::U8(value) => of.put(value.to_ne_bytes()),
            Scalar::I16(value) => of.put(value.to_ne_bytes()),
            Scalar::U16(value) | Scalar::F16(value) => of.put(value.to_ne_bytes()),
            Scalar::I32(value) => of.put(value.to_ne_bytes()),
            Scalar::U32(value) => of.put(value.to_ne_bytes()),
            Scalar::I64(value) => of.put(value.to_ne_bytes()),
            Scalar::U64(value) => of.put(value.to_ne_bytes()),
            Scalar::F32(value) => of.put(value.to_ne_bytes()),
            Scalar::F64(value) => of.put(value.to_ne_bytes()),
            _ => {}
        }
        of
    }

    fn put<const N: usize>(&mut self, value: [u8; N]) {
        self.bytes[..N].copy_from_slice(&value);
        self.len = N;
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Loads machine code or PTX into the current context. An error includes the driver's log, which may be
/// empty.
fn load_module(mut code: Vec<u8>) -> Result<CUmodule, (Failure, String)> {
    // PTX must end with a zero character. Machine code ignores it.
    code.push(0);
    let (mut module, mut log) = (std::ptr::null_mut(), vec![0_u8; 8 << 10]);
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes this option's value in place of an address.
    let size = std::ptr::without_provenance_mut::<c_void>(log.len());
    let mut values = [log.as_mut_ptr().cast::<c_void>(), size];
    // SAFETY: the code ends with a zero. There are two options with their values: a buffer and its size. The
    // call writes a handle, and at most that many bytes of log.
    let loaded = check("cuModuleLoadDataEx", unsafe {
        let code = code.as_ptr().cast();
        cuModuleLoadDataEx(&raw mut module, code, 2, options.as_mut_ptr(), values.as_mut_ptr())
    });
    loaded.map_err(|failure| {
        (failure, String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned())
    })?;
    Ok(module)
}

/// Returns a kernel of a module in the current context, and the maximum number of threads of its blocks.
fn find_function(module: CUmodule, name: &CStr) -> Result<(CUfunction, u64), Failure> {
    let (mut function, mut max_local) = (std::ptr::null_mut(), 0);
    // SAFETY: a live module and a C string; the call writes a handle.
    let found = unsafe { cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
    check("cuModuleGetFunction", found)?;
    let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: a live function; the call writes a number.
    let asked = unsafe { cuFuncGetAttribute(&raw mut max_local, attribute, function) };
    check("cuFuncGetAttribute", asked)?;
    Ok((function, u64::try_from(max_local).unwrap_or(1).max(1)))
}

impl CudaArena {
    /// Builds a kernel from CUDA C or PTX.
    ///
    /// In CUDA C, the kernel must be `extern "C" __global__`, and `DmlItems` is predefined. `options` are
    /// NVRTC's, separated by spaces. A source is compiled once for its options. The code is cached in the
    /// user's cache folder (`dml/cuda` in `$XDG_CACHE_HOME`, or in `.cache` of the home folder), unless the
    /// source includes files.
    ///
    /// DML does not check what memory a kernel touches: the caller of [`launch`](CudaKernel::launch) is
    /// responsible for that. DML checks the number and sizes of arguments, because the driver reports nothing
    /// else about parameters.
    ///
    /// # Errors
    /// [`BuildError`]: [`Compile`](BuildCause::Compile) with the compiler's log if it rejects the source,
    /// [`NoKernel`](BuildCause::NoKernel) if the source has no kernel of this name,
    /// [`NoCompiler`](BuildCause::NoCompiler) without NVRTC.
    pub fn kernel(&self, source: &str, name: &str, options: &str) -> Result<CudaKernel, BuildError> {
        self.kernel_of(source, name, options, numbering::of_launch(source, options))
    }

    /// Builds a kernel like [`kernel`](Self::kernel), for launches that are parts of a run
    /// ([`CompiledKernel::launch_part`]).
    ///
    /// Blocks are numbered within the whole run if the kernel has no `DmlItems`, or may use `blockIdx` or
    /// `gridDim`. Its definition then gets a further parameter, and it uses 24 bytes of its shared memory.
    ///
    /// A kernel that needs the numbers of its own launch defines `DML_PACKAGE_GROUPS`, in its source or in
    /// `options`.
    ///
    /// # Errors
    /// The errors of [`kernel`](Self::kernel), and [`NotDivisible`](BuildCause::NotDivisible) for a kernel
    /// that cannot receive its part: its blocks cannot be numbered, or it is PTX without a `DmlItems`.
    pub fn package_kernel(&self, source: &str, name: &str, options: &str) -> Result<CudaKernel, BuildError> {
        let refused = |reason| BuildError::new(&self.desc().name, name, BuildCause::NotDivisible(reason));
        let (text, numbering) = numbering::of_run(source, name, options).map_err(refused)?;
        let mut kernel = self.kernel_of(&text, name, options, numbering)?;
        if numbering == Numbering::Unaware {
            if kernel.parameters.last().is_none_or(|last| last.bytes != ITEMS_BYTES) {
                return Err(refused(
                    "it has no DmlItems, and its source does not define it in CUDA C".to_owned(),
                ));
            }
            kernel.numbering = Numbering::Launch;
        }
        Ok(kernel)
    }

    fn kernel_of(
        &self,
        source: &str,
        name: &str,
        options: &str,
        numbering: Numbering,
    ) -> Result<CudaKernel, BuildError> {
        let arena = &self.desc().name;
        let failed = |cause| BuildError::new(arena, name, cause);
        let kernel_name = CString::new(name).map_err(|_| failed(BuildCause::ZeroCharacter("the name")))?;
        let session = &self.session;
        let program = self.program(source, options).map_err(failed)?;
        let _entered = session.enter().map_err(|_| failed(self.framework(LOST)))?;
        let found = find_function(program.module.0, &kernel_name);
        let (function, max_local) = found.map_err(|failure| match failure.code {
            CUresult::CUDA_ERROR_NOT_FOUND => {
                failed(BuildCause::NoKernel("a kernel is `extern \"C\" __global__`"))
            }
            _ => failed(self.framework(failure)),
        })?;
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: a live function; the call writes two numbers.
            let told =
                unsafe { cuFuncGetParamInfo(function, parameters.len(), &raw mut offset, &raw mut bytes) };
            if told != CUresult::CUDA_SUCCESS {
                break;
            }
            parameters.push(Parameter { offset, bytes });
        }
        let mut part = None;
        if numbering == Numbering::Run {
            // Conditional compilation and macros may select a definition that was not found in the text.
            part = parameters.pop().filter(|part| part.bytes == PART_BYTES);
            if part.is_none() {
                let reason = "the definition that is compiled is not the one found in its source".to_owned();
                return Err(failed(BuildCause::NotDivisible(reason)));
            }
        }
        let ends = parameters.iter().chain(&part).map(|parameter| parameter.offset + parameter.bytes);
        let words = ends.max().unwrap_or(0).div_ceil(8);
        Ok(CudaKernel {
            name: name.into(),
            arena: arena.clone(),
            parameters,
            part,
            words,
            numbering,
            limits: limits(max_local),
            function: Raw(function),
            program,
            session: session.clone(),
        })
    }

    fn framework(&self, failure: Failure) -> BuildCause {
        self.session.note(failure);
        let Failure { call, code } = failure;
        BuildCause::Framework { call, code: i64::from(code as u32), message: words(code).into() }
    }

    /// Returns the loaded program of this source: an existing one, or one from the cache or the compiler.
    fn program(&self, source: &str, options: &str) -> Result<Arc<Program>, BuildCause> {
        if source.contains('\0') {
            return Err(BuildCause::ZeroCharacter("the source"));
        }
        let found = &self.session.found;
        self.programs.get(source, options, || match is_ptx(source) {
            true => self.load(source.as_bytes().to_vec()),
            false => self.load(compile(source, options, found.capability, found.version)?),
        })
    }

    /// Loads machine code or PTX.
    fn load(&self, code: Vec<u8>) -> Result<Program, BuildCause> {
        let _entered = self.session.enter().map_err(|_| self.framework(LOST))?;
        let module = load_module(code).map_err(|(failure, log)| match log.is_empty() {
            true => self.framework(failure),
            false => BuildCause::Compile(log),
        })?;
        Ok(Program { module: Raw(module), local_bytes: Mutex::default(), session: self.session.clone() })
    }
}

/// A kernel of one arena, ready to be launched.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::CudaArena;
/// # use dml_arenas::launch::{Grid, KernelArg};
/// # use dml_core::{Buffer, DeviceId, Platform};
/// # fn example(
/// #     (platform, gpu, arena): (&Platform, DeviceId, &CudaArena),
/// #     a: &Buffer<f32>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let source = r#"extern "C" __global__ void twice(float* a, unsigned long long n, DmlItems items) {
///     if (items.x() < n) a[items.x()] *= 2;
/// }"#;
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
pub struct CudaKernel {
    name: Box<str>,
    /// The name of its arena.
    arena: Arc<str>,
    /// The parameters for arguments, and the one for the kernel's items.
    parameters: Vec<Parameter>,
    /// The added parameter that numbers the blocks.
    part: Option<Parameter>,
    /// The size of all parameters, in words.
    words: usize,
    numbering: Numbering,
    limits: Limits,
    function: Raw<CUfunction>,
    program: Arc<Program>,
    session: Arc<Session>,
}

impl CudaKernel {
    /// Returns the kernel's name in its source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the `CUfunction`, valid while the kernel lives.
    #[must_use]
    pub fn function(&self) -> NativeHandle {
        NativeHandle(self.function.0.addr())
    }

    /// Returns the maximum number of threads of a block, along all axes together.
    #[must_use]
    pub fn max_local(&self) -> u64 {
        self.limits.total
    }

    /// Returns whether the kernel receives its items in addition to `given` arguments.
    fn takes_items(&self, given: usize) -> bool {
        self.parameters.len() == given + 1
            && self.parameters.last().is_some_and(|last| last.bytes == ITEMS_BYTES)
    }

    /// Returns the number of arguments that the kernel takes, without its items.
    fn takes(&self) -> usize {
        let count = self.parameters.len();
        if count > 0 && self.takes_items(count - 1) { count - 1 } else { count }
    }

    /// Checks the arguments, and returns their number.
    fn fit(&self, arguments: impl Iterator<Item = Given> + Clone) -> Result<usize, Misfit> {
        let kernel = || format!("{} on {}", self.name, self.arena);
        let given = arguments.clone().count();
        if given != self.parameters.len() && !self.takes_items(given) {
            return Err(Misfit::Count { kernel: kernel(), takes: self.takes(), given });
        }
        for (index, (given, parameter)) in arguments.zip(&self.parameters).enumerate() {
            if given.bytes() != parameter.bytes {
                let takes = match parameter.bytes {
                    8 => "a pointer or a value of 8 bytes".to_owned(),
                    bytes => format!("a value of {bytes} bytes"),
                };
                return Err(Misfit::Argument { kernel: kernel(), index, takes, given: given.to_string() });
            }
        }
        Ok(given)
    }

    /// Starts the kernel. The fence waits for its end and reports zero bytes.
    ///
    /// # Safety
    /// 1. With these arguments and this many threads, the kernel touches only the bytes of its arguments'
    ///    blocks.
    ///
    /// For correct contents, not for memory safety, the bytes must be granted to the caller until the fence
    /// has ended, with write access where the kernel writes.
    ///
    /// # Errors
    /// [`TransferError::Framework`], with the argument's index in its message, if the number, the sizes or
    /// the arena of the arguments do not fit. The same error without an index, if the size of the blocks does
    /// not fit, the launch is too large, or the items do not start at zero and the kernel does not receive
    /// them. Otherwise, the driver's error.
    pub unsafe fn launch(&self, args: &[KernelArg<'_>], grid: Grid) -> Result<Fence, TransferError> {
        self.session.await_beside()?;
        let ends = std::array::from_fn(|axis| grid.offset[axis].saturating_add(grid.items[axis]));
        // SAFETY: as the caller guarantees.
        unsafe { self.launch_on(Order::On(Way::Kernels), args, grid, ends) }
    }

    unsafe fn launch_on(
        &self,
        order: Order,
        args: &[KernelArg<'_>],
        grid: Grid,
        total: [u64; 3],
    ) -> Result<Fence, TransferError> {
        let invalid = |reason| refused(LAUNCH, CUresult::CUDA_ERROR_INVALID_VALUE, reason);
        let given = args.iter().filter_map(Given::of);
        let given = self.fit(given).map_err(|misfit| invalid(misfit.to_string()))?;
        let is_told = self.takes_items(given);
        if grid.items.contains(&0) {
            return Ok(Fence::done(0));
        }
        if let Err(reason) = self.limits.check(grid.local) {
            let reason = format!("kernel {} cannot run {grid}: {reason}", self.name);
            return Err(invalid(reason));
        }
        let is_told = is_told || self.part.is_some();
        if !is_told && grid.offset != [0; 3] {
            let reason = format!("kernel {} has no DmlItems, so its items must begin at zero", self.name);
            return Err(invalid(reason));
        }
        let uncountable = || format!("kernel {}: {grid} exceed what can be counted", self.name);
        let (local, parts) = parts(&grid, &self.limits).ok_or_else(|| invalid(uncountable()))?;
        if !is_told && parts.len() > 1 {
            let name = &self.name;
            let reason =
                format!("kernel {name} has no DmlItems, but {grid} need several launches of the driver");
            return Err(invalid(reason));
        }
        let places = self.parameters.iter().chain(&self.part).copied();
        let (mut ready, mut local_bytes) = (Ready::new((self.function, local), self.words, places), 0_u64);
        let mut blocks = SmallVec::<[&BlockRef; 4]>::new();
        let mut places = self.parameters.iter();
        for (index, arg) in args.iter().enumerate() {
            if let KernelArg::Local(bytes) = arg {
                local_bytes = local_bytes.saturating_add(*bytes);
                continue;
            }
            let place = *places.next().expect("the arguments fit");
            match arg {
                KernelArg::Block(block) => {
                    let own = block.downcast_ref::<CudaBlock>().filter(|block| block.is_of(&self.session));
                    let foreign = || {
                        let name = &self.name;
                        format!("argument {index} of kernel {name}: the block belongs to another arena")
                    };
                    let own = own.ok_or_else(|| invalid(foreign()))?;
                    ready.put(place, &own.at(0).to_ne_bytes());
                    blocks.push(block);
                }
                KernelArg::Nothing => ready.put(place, &[0; 8]),
                KernelArg::Scalar(scalar) => ready.put(place, ScalarBytes::of(*scalar).as_slice()),
                KernelArg::Bytes(bytes) => ready.put(place, bytes),
                KernelArg::Local(_) => {}
            }
        }
        let items = places.next().copied();
        self.allow_local(local_bytes)?;
        ready.shared = local_bytes as u32;
        let set = |ready: &mut Ready, part: &Part| {
            ready.grid = part.grid;
            if let Some(place) = items {
                ready.put(place, bytemuck::cast_slice(part.items.as_flattened()));
            }
            if let Some(place) = self.part {
                let [offset, end] = part.items;
                ready.put(place, bytemuck::cast_slice([offset, end, total].as_flattened()));
            }
        };
        let used = (blocks.iter().copied(), &self.program);
        if let (Order::Submitted { is_followed }, [part]) = (order, &parts[..]) {
            set(&mut ready, part);
            // SAFETY: the program's function. The caller guarantees what the kernel touches (1).
            return unsafe { self.session.submit_one(used, ready, is_followed) };
        }
        let further = Cell::new(false);
        let enqueue = |stream| {
            for part in &parts {
                set(&mut ready, part);
                // SAFETY: a live function with as many parameters as there are arguments. The caller
                // guarantees what the kernel touches (1).
                let launched = unsafe { ready.launch(stream) };
                if launched != CUresult::CUDA_SUCCESS {
                    if further.get() {
                        // Earlier parts may still run, so wait for them while the blocks are alive.
                        // SAFETY: a live stream.
                        let _ = unsafe { cuStreamSynchronize(stream) };
                    }
                    return launched;
                }
                further.set(true);
            }
            CUresult::CUDA_SUCCESS
        };
        // SAFETY: the commands use only the blocks and the program. After a failure none of them runs.
        let launched = unsafe {
            match order {
                Order::Submitted { .. } => self.session.submit(used, enqueue),
                Order::On(way) => {
                    let keep: SmallVec<[BlockRef; 4]> = used.0.cloned().collect();
                    self.session.command((way, LAUNCH), 0, (keep, self.program.clone()), enqueue)
                }
            }
        };
        launched.map_err(|mut error| {
            if let TransferError::Framework { call, .. } = &mut error
                && *call == LAUNCH
                && further.get()
            {
                *call = LAUNCH_A_FURTHER_PART;
            }
            error
        })
    }

    /// Raises the kernel's local memory limit to at least `bytes`.
    fn allow_local(&self, bytes: u64) -> Result<(), TransferError> {
        if bytes <= LOCAL_BYTES {
            return Ok(());
        }
        let mut allowed = self.program.local_bytes.lock();
        if allowed.get(&self.name).is_some_and(|allowed| bytes <= *allowed) {
            return Ok(());
        }
        let _entered = self.session.enter()?;
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let size = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: a live function.
        check("cuFuncSetAttribute", unsafe { cuFuncSetAttribute(self.function.0, attribute, size) })
            .map_err(|failure| match failure.code {
                CUresult::CUDA_ERROR_INVALID_VALUE => {
                    let reason = format!("kernel {} cannot have {bytes} bytes of local memory", self.name);
                    refused(failure.call, failure.code, reason)
                }
                _ => self.session.failed(failure),
            })?;
        allowed.insert(self.name.clone(), bytes);
        Ok(())
    }
}

impl CompiledKernel for CudaKernel {
    type Arena = CudaArena;
    const FRAMEWORK: &'static str = "CUDA";

    fn build(arena: &CudaArena, source: &str, name: &str, options: &str) -> Result<Self, BuildError> {
        arena.package_kernel(source, name, options)
    }

    /// Checks the number and sizes of the arguments. The driver does not report types.
    fn fits(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        let given = arguments.iter().filter_map(|argument| {
            Some(match argument {
                LaunchArg::Buffer { .. } => Given::Block,
                LaunchArg::Scalar(scalar) => Given::of(&KernelArg::Scalar(*scalar))?,
                LaunchArg::Bytes(bytes) => Given::of(&KernelArg::Bytes(bytes))?,
                _ => return None,
            })
        });
        self.fit(given).map(drop)
    }

    /// Refuses, with the reason, if
    /// - the kernel or the device does not allow the size;
    /// - blocks are numbered within the run, and their size is left open;
    /// - the source uses `blockIdx` or `gridDim`, and the kernel was built by [`CudaArena::kernel`].
    ///
    /// The last two do not matter if a launch is the [whole](ItemShape::is_whole) run.
    fn check_groups(&self, shape: &ItemShape) -> Result<(), Misfit> {
        let local = shape.local();
        let open = || local[..shape.dimensions()].contains(&0);
        let checked = match self.numbering {
            _ if shape.is_whole() => self.limits.check(local),
            Numbering::Run if open() => Err("its blocks are numbered, so they need a size".to_owned()),
            Numbering::Unaware => {
                Err("its source uses blockIdx or gridDim, so build it with `package_kernel`".to_owned())
            }
            _ => self.limits.check(local),
        };
        let kernel = || format!("{} on {}", self.name, self.arena);
        checked.map_err(|reason| Misfit::Groups { kernel: kernel(), local, reason })
    }

    /// Starts the kernel on a part of a run.
    ///
    /// An [independent](Launch::is_independent) part may run concurrently with the kernels launched before
    /// it. Such parts use a few streams in turn, so that a device that one kernel does not fill, mostly at
    /// its end, also runs others. No kernel in flight may write what this part reads or writes, or read what
    /// it writes. Later copies, and later launches that are not independent, run after it.
    unsafe fn launch_part(&self, args: &[KernelArg<'_>], part: &Launch<'_>) -> Result<Fence, TransferError> {
        let (shape, items) = (part.shape, part.items);
        let grid = Grid {
            dimensions: shape.dimensions(),
            offset: shape.offset(items),
            items: shape.global(items),
            local: shape.local(),
        };
        let mut total = grid.items;
        total[shape.axis()] = part.total;
        if !part.is_independent {
            self.session.await_beside()?;
            let is_followed = part.is_followed;
            let order =
                if part.is_submission { Order::Submitted { is_followed } } else { Order::On(Way::Kernels) };
            // SAFETY: as the caller guarantees.
            return unsafe { self.launch_on(order, args, grid, total) };
        }
        // SAFETY: as the caller guarantees.
        self.session.beside(|way| unsafe { self.launch_on(Order::On(way), args, grid, total) })
    }

    /// Returns whether it was enqueued but its end could not be marked, a part of it was enqueued, or the
    /// device was lost.
    fn may_have_begun(error: &TransferError) -> bool {
        matches!(error, TransferError::Framework { call: RECORD | LAUNCH_A_FURTHER_PART, .. })
            || error.is_device_lost()
    }
}

impl fmt::Debug for CudaKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaKernel({} on {})", self.name, self.arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_failed_after_another_may_have_begun() {
        let failed = |call| refused(call, CUresult::CUDA_ERROR_INVALID_VALUE, String::new());
        let calls = [LAUNCH, LAUNCH_A_FURTHER_PART, RECORD, "cuFuncSetAttribute"];
        assert_eq!(calls.map(|call| CudaKernel::may_have_begun(&failed(call))), [false, true, true, false]);
    }
}
