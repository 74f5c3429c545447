//! Workloads ready to be co-executed: a problem, its buffers on a platform, and a variant of its kernel per
//! device.
//!
//! ```text
//!   Workload::prepare ──▶ Prepared ──kernel()──▶ Coexecutor::run ──▶ collect ──▶ verify, write_picture
//!                            ▲ └── reset: inputs valid on the host only, outputs overwritten
//!                            └──────────────── once before every run ─────────────────┘
//! ```

mod ready;
mod recipe;
mod variants;

#[cfg(any(feature = "cuda", feature = "opencl"))]
pub(crate) use ready::plain;
pub(crate) use recipe::{Arguments, Groups, Outputs, Program, Recipe};
pub(crate) use variants::{Source, add};

#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::by_hand::{self, ByHandError, HostMemory};
use crate::check::Mismatch;
use crate::gaussian::GaussianError;
use crate::mandelbrot::MandelbrotError;
use crate::picture::PictureError;
use bytemuck::Pod;
use dml_arenas::launch::{HostError, Team};
use dml_arenas::machine_memory;
use dml_core::{Acquire, AcquireError, ArenaKind, Buffer, ConfigError, DeviceId, Platform, RawBuffer};
use dml_scheduler::Kernel;
use ready::Ready;
use recipe::Listed;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use thiserror::Error;

/// Registers the workloads: derives from a line per workload all that its own file does not define.
macro_rules! suite {
    ($($(#[$doc:meta])* $variant:ident is $recipe:ty,)*) => {
        /// A benchmark workload.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Workload {
            $($(#[$doc])* $variant,)*
        }

        $(impl Listed for $recipe {
            const WORKLOAD: Workload = Workload::$variant;
        })*

        impl Workload {
            /// Every workload, in the order of the suite.
            pub const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];

            const fn facts(self) -> Facts {
                match self {
                    $(Self::$variant => Facts::of::<$recipe>(),)*
                }
            }

            fn ready(
                self,
                platform: &Platform,
                devices: &[DeviceId],
                input: &Input<'_>,
            ) -> Result<Box<dyn Prepared>, PrepareError> {
                Ok(match self {
                    $(Self::$variant => {
                        let recipe = <$recipe as Recipe>::of(input)?;
                        Box::new(Ready::new(platform, devices, recipe)?)
                    })*
                })
            }
        }

        /// Returns the workloads' host kernels by name, for offload workers.
        #[cfg(all(feature = "offload", target_os = "linux"))]
        #[must_use]
        pub fn registry() -> dml_arenas::offload::Registry {
            let registry = dml_arenas::offload::Registry::new()
                $(.with(<$recipe as Recipe>::NAME, <$recipe as Recipe>::compute))*;
            crate::steps::SOURCES.iter().fold(registry, |registry, source| {
                registry.with(source.name, source.compute)
            })
        }
    };
}

suite! {
    /// Computes `a * x + y`.
    Saxpy is crate::saxpy::Problem,
    /// Blurs a picture with a square filter.
    Gaussian is crate::gaussian::Problem,
    /// Draws the Mandelbrot set.
    Mandelbrot is crate::mandelbrot::Problem,
    /// Adds two vectors.
    Vecadd is crate::vecadd::Problem,
    /// Multiplies two square matrices.
    Matmul is crate::matmul::Problem,
    /// Sums the series of sine, cosine and tangent.
    Taylor is crate::taylor::Problem,
    /// Draws reflective spheres by ray tracing.
    Ray is crate::ray::Problem,
    /// Distributes units among activities: the resource allocation problem.
    Rap is crate::rap::Problem,
    /// Moves bodies that attract each other.
    Nbody is crate::nbody::Problem,
    /// Prices options by a binomial tree.
    Binomial is crate::binomial::Problem,
}

/// The relative cost of a workload's items. It decides whether a split by fixed shares can be right.
///
/// # Source
/// "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", section 5, which sets nbody
/// apart from both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Packages of one size take equal time on a device.
    Regular,
    /// The cost of an item depends on its position.
    Irregular,
    /// Items cost the same, and each reads the whole of an input.
    AllToAll,
}

impl Kind {
    /// Returns the kind's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Irregular => "irregular",
            Self::AllToAll => "all-to-all",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The constants of a recipe.
struct Facts {
    name: &'static str,
    kind: Kind,
    largest_published: u64,
    size_is_edge: bool,
    takes_picture: bool,
    makes_picture: bool,
    has_cuda: bool,
}

impl Facts {
    const fn of<R: Recipe>() -> Self {
        Self {
            name: R::NAME,
            kind: R::KIND,
            largest_published: R::LARGEST_PUBLISHED,
            size_is_edge: R::SIZE_IS_EDGE,
            takes_picture: R::TAKES_PICTURE,
            makes_picture: R::MAKES_PICTURE,
            has_cuda: R::CUDA.is_some(),
        }
    }
}

impl Workload {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the relative cost of its items.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.facts().kind
    }

    /// Returns the largest published size, in the unit of [`Input::Size`].
    #[must_use]
    pub const fn largest_published(self) -> u64 {
        self.facts().largest_published
    }

    /// Returns whether [`Input::Size`] is the edge of a picture, so that the work grows with its square.
    #[must_use]
    pub const fn size_is_edge(self) -> bool {
        self.facts().size_is_edge
    }

    /// Returns whether it can process a picture of the user.
    #[must_use]
    pub const fn takes_picture(self) -> bool {
        self.facts().takes_picture
    }

    /// Returns whether its result is a picture.
    #[must_use]
    pub const fn makes_picture(self) -> bool {
        self.facts().makes_picture
    }

    /// Returns whether there is a kernel for a device. There is none for a device without memory. There is
    /// none for a CUDA GPU if the workload has no kernel in CUDA C.
    #[must_use]
    pub fn has_kernel_for(self, platform: &Platform, device: DeviceId) -> bool {
        let arena = platform.home(device).map(|home| platform.arena(home));
        arena.is_some_and(|arena| self.facts().has_cuda || arena.desc().kind != ArenaKind("cuda"))
    }

    /// Makes the problem, its buffers, and a kernel variant for each of `devices`.
    ///
    /// # Errors
    /// [`PrepareError`] for an impossible size, an unreadable picture, or a device that cannot run the
    /// kernel.
    pub fn prepare(
        self,
        platform: &Platform,
        devices: &[DeviceId],
        input: &Input<'_>,
    ) -> Result<Box<dyn Prepared>, PrepareError> {
        if let (Input::Picture(_), false) = (input, self.takes_picture()) {
            return Err(PrepareError::NoPicture { workload: self });
        }
        // Parallel iterators make the problem and check its result.
        Team::start_global()?;
        self.ready(platform, devices, input)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No workload has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown workload {name}: there are {}", Workload::ALL.map(Workload::name).join(", "))]
pub struct UnknownWorkload {
    /// The requested name.
    pub name: String,
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        let found = Self::ALL.into_iter().find(|workload| workload.name() == name);
        found.ok_or_else(|| UnknownWorkload { name: name.to_owned() })
    }
}

/// The input of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input<'a> {
    /// Milliseconds of work.
    Tiny,
    /// About a second on one core.
    Small,
    /// The published size.
    Paper,
    /// A number of items. For `gaussian` it is the edge of the picture in pixels, for `matmul` the number of
    /// rows.
    Size(u64),
    /// A picture of the user, by the path of a PNG file.
    Picture(&'a Path),
}

/// Why a workload could not be prepared.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The workload does not work on pictures.
    #[error("{workload} does not take a picture")]
    NoPicture {
        /// The workload.
        workload: Workload,
    },
    /// The size exceeds the workload's limit.
    #[error("impossible size {size} for {workload}: at most {limit}")]
    Size {
        /// The workload.
        workload: &'static str,
        /// The requested size.
        size: u64,
        /// The largest possible size.
        limit: u64,
    },
    /// The size is below the workload's least one.
    #[error("impossible size {size} for {workload}: at least {least}")]
    TooSmall {
        /// The workload.
        workload: &'static str,
        /// The requested size.
        size: u64,
        /// The least possible size.
        least: u64,
    },
    /// Main memory cannot hold the problem.
    #[error("{workload} needs {bytes} bytes of main memory")]
    Memory {
        /// The workload.
        workload: &'static str,
        /// Size of the problem, in bytes.
        bytes: u64,
    },
    /// There is no variant of the kernel for this kind of device.
    #[error("{workload} has no kernel for device {device}")]
    NoKernel {
        /// The workload.
        workload: &'static str,
        /// The device's name.
        device: String,
    },
    /// The kernel could not be built for the device.
    #[error("building {workload} for {device} failed: {cause}")]
    Build {
        /// The workload.
        workload: &'static str,
        /// The device's name.
        device: String,
        /// Error of the compiler or of the launcher.
        cause: String,
    },
    /// The threads that run the host's kernel or make the problem cannot be started.
    #[error("cannot start {threads} threads: {cause}")]
    Threads {
        /// Number of threads.
        threads: u32,
        /// Error of the operating system.
        cause: String,
    },
    /// The picture cannot be used.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// The filter or the picture's size cannot be used.
    #[error(transparent)]
    Gaussian(#[from] GaussianError),
    /// The size of the picture to draw is impossible.
    #[error(transparent)]
    Mandelbrot(#[from] MandelbrotError),
    /// The buffers cannot be made.
    #[error(transparent)]
    Buffers(#[from] ConfigError),
    /// The inputs cannot be written.
    #[error(transparent)]
    Inputs(#[from] AcquireError),
}

impl From<HostError> for PrepareError {
    fn from(HostError { threads, cause }: HostError) -> Self {
        Self::Threads { threads, cause }
    }
}

/// Why a result is rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// An item is wrong.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The result cannot be read.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The picture cannot be written.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// The workload's result is no picture.
    #[error("{workload} does not make a picture")]
    NoPicture {
        /// The workload.
        workload: Workload,
    },
}

/// One argument of a kernel as a hand-written program would pass it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlainArgument {
    /// A buffer with contents.
    Input(Vec<u8>),
    /// A buffer for the result, by its size in bytes.
    Output(u64),
    /// A `uint`.
    U32(u32),
    /// A `ulong`.
    U64(u64),
    /// A `float`.
    F32(f32),
}

/// A kernel language of a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Language {
    /// OpenCL C, for OpenCL devices.
    OpenClC,
    /// CUDA C, for CUDA devices. A kernel has one more parameter than it has arguments: its items.
    CudaC,
}

/// Returns the language of programs for a device; `None` if its memory is neither OpenCL's nor CUDA's.
#[must_use]
pub fn language(platform: &Platform, device: DeviceId) -> Option<Language> {
    let _ = (platform, device);
    #[cfg(feature = "opencl")]
    if platform.home_as::<dml_arenas::OpenClArena>(device).is_some() {
        return Some(Language::OpenClC);
    }
    #[cfg(feature = "cuda")]
    if platform.home_as::<dml_arenas::CudaArena>(device).is_some() {
        return Some(Language::CudaC);
    }
    None
}

/// A kernel and its arguments, for a program without DML.
#[derive(Clone, Debug)]
pub struct Plain {
    /// The source, in the requested language.
    pub source: &'static str,
    /// The kernel's name.
    pub kernel: &'static str,
    /// The arguments in order.
    pub arguments: Vec<PlainArgument>,
    /// Number of work-items along two dimensions. The second is one for a kernel of one dimension.
    pub items: [u64; 2],
    /// Local work size along the same dimensions. Zero along one leaves the size to the framework.
    pub local_size: [u64; 2],
}

/// A workload ready to run.
pub trait Prepared: fmt::Debug + Send + Sync {
    /// Returns which workload it is.
    fn workload(&self) -> Workload;

    /// Returns the sizes that describe the problem, by name.
    fn size(&self) -> Vec<(&'static str, u64)> {
        vec![("items", self.items())]
    }

    /// Returns the number of items.
    fn items(&self) -> u64;

    /// Returns the kernel with its arguments and variants.
    fn kernel(&self) -> &Kernel;

    /// Returns the buffers that the kernel reads.
    fn inputs(&self) -> Vec<&RawBuffer>;

    /// Returns the buffers that the kernel overwrites.
    fn outputs(&self) -> Vec<&RawBuffer>;

    /// Resets the buffers before a run. The host becomes the only holder of the inputs' latest contents. The
    /// outputs of an earlier run are overwritten, so that only this run can make them right.
    ///
    /// # Errors
    /// The error that keeps the host from writing.
    fn reset(&self) -> Result<(), AcquireError> {
        self.inputs().into_iter().try_for_each(only_on_host)?;
        self.outputs().into_iter().try_for_each(scribble)
    }

    /// Brings the outputs to the host after a run.
    ///
    /// # Errors
    /// The error that keeps the host from reading.
    fn collect(&self) -> Result<(), AcquireError> {
        self.outputs().into_iter().try_for_each(|output| on_host(output)?.read(output).wait()?.release())
    }

    /// Acquires all buffers for a device, as a run does, and releases them. Then the device drops its copies,
    /// so that the next run is still a first run.
    ///
    /// # Errors
    /// The error that keeps the device from holding them; [`AcquireError::is_out_of_memory`] if its memory is
    /// too small.
    fn try_holding(&self, device: DeviceId) -> Result<(), AcquireError> {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        let Some(platform) = inputs.iter().chain(&outputs).map(|buffer| buffer.platform()).next() else {
            return Ok(());
        };
        let acquire = inputs.iter().fold(platform.acquire(device), |acquire, input| acquire.read(*input));
        let acquire = outputs.iter().fold(acquire, |acquire, output| acquire.write(*output));
        let held = acquire.wait().and_then(|grants| grants.not_started());
        if let Some(home) = platform.home(device).filter(|_| platform.host() != Some(device)) {
            inputs.iter().chain(&outputs).for_each(|buffer| _ = buffer.will_not_use(home));
        }
        held
    }

    /// Checks every item of the outputs against an independent computation.
    ///
    /// # Errors
    /// [`VerifyError::Mismatch`] naming the first wrong item.
    fn verify(&self) -> Result<(), VerifyError>;

    /// Writes the result as a picture, for workloads that make one.
    ///
    /// # Errors
    /// [`VerifyError::Picture`] if the file cannot be written, [`VerifyError::NoPicture`] if the workload
    /// makes no picture.
    fn write_picture(&self, path: &Path) -> Result<(), VerifyError> {
        let _ = path;
        Err(VerifyError::NoPicture { workload: self.workload() })
    }

    /// Makes the program of the same kernel and data by hand; `None` if there is none for the device.
    ///
    /// # Errors
    /// The errors of [`Program::new`](by_hand::Program::new).
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    fn by_hand(
        &self,
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
    ) -> Result<Option<by_hand::Program>, ByHandError>;

    /// Checks the outputs of a hand-written program, given as bytes in the order of the arguments.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item.
    fn verify_plain(&self, outputs: &[&[u8]]) -> Result<(), Mismatch>;
}

/// Refuses a problem that main memory cannot hold. Otherwise the operating system might overcommit the
/// memory, and end the process later.
pub(crate) fn memory_for<R: Recipe>(bytes: u64) -> Result<(), PrepareError> {
    needs_memory(R::NAME, bytes)
}

/// As [`memory_for`], for a program that is no recipe.
pub(crate) fn needs_memory(workload: &'static str, bytes: u64) -> Result<(), PrepareError> {
    let mut probe = Vec::<u8>::new();
    let is_promised = usize::try_from(bytes).is_ok_and(|bytes| probe.try_reserve_exact(bytes).is_ok());
    if is_promised && bytes <= machine_memory::total_bytes() {
        Ok(())
    } else {
        Err(PrepareError::Memory { workload, bytes })
    }
}

/// Makes a buffer with these contents, in memory that the platform chooses.
pub(crate) fn filled<T: Pod>(platform: &Platform, values: &[T]) -> Result<Buffer<T>, PrepareError> {
    let buffer = platform.buffer::<T>(values.len() as u64).build()?;
    let mut view = buffer.write()?;
    view.copy_from_slice(values);
    view.release()?;
    Ok(buffer)
}

/// Begins a request of the host.
fn on_host(buffer: &RawBuffer) -> Result<Acquire<'_>, AcquireError> {
    let platform = buffer.platform();
    let host = platform.host().ok_or(AcquireError::NoArena { device: DeviceId(0) })?;
    Ok(platform.acquire(host))
}

/// Makes the host the only holder of a buffer's latest contents.
fn only_on_host(buffer: &RawBuffer) -> Result<(), AcquireError> {
    if buffer.is_empty() { Ok(()) } else { on_host(buffer)?.read_write(buffer).wait()?.release() }
}

/// Overwrites an output with a byte that no workload produces everywhere.
fn scribble(buffer: &RawBuffer) -> Result<(), AcquireError> {
    let mut grants = on_host(buffer)?.write(buffer).wait()?;
    let viewed = |cause| AcquireError::View { buffer: buffer.name(), cause };
    grants.slice_mut::<u8>(buffer).map_err(viewed)?.fill(0xA5);
    grants.release()
}
