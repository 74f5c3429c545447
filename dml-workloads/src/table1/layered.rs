//! The programs on the data layer. They are the same in both modes and on both frameworks. Only the platform
//! differs, and whether the application's data is in vectors or in buffers of page-locked memory.

use super::hand::Hand;
use super::{Checking, Mode, Operations, Problem, Row, Run, Table1Error};
use crate::by_hand::{ByHandError, Device};
use crate::{bfs, matmul, vecadd};
#[cfg(feature = "cuda")]
use dml_arenas::CudaArena;
#[cfg(feature = "cuda")]
use dml_arenas::cuda;
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::{Discover, DiscoverOptions, OpenClArena, opencl};
use dml_core::{
    Buffer, ConfigError, DeviceId, Fence, Grants, Platform, Region, TransferError, ViewError,
    record::Operation,
};
#[cfg(feature = "cuda")]
use dml_core::{Pattern, Scalar};
use std::time::{Duration, Instant};

/// A kernel of the device's framework.
#[derive(Debug)]
enum Kernel {
    OpenCl(opencl::OpenClKernel),
    #[cfg(feature = "cuda")]
    Cuda(cuda::CudaKernel),
}

/// Elements before the timed interval: a vector that the layer makes a buffer of later, or a buffer of
/// page-locked memory.
#[derive(Debug)]
enum Given<T: Element> {
    Vector(Vec<T>),
    #[cfg(feature = "cuda")]
    Buffer(Buffer<T>),
}

/// Number of times that a launch touches each element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touched {
    Once,
    Often,
}

/// A platform, and the kernels of one row on its device.
#[derive(Debug)]
pub(super) struct Layered {
    platform: Platform,
    device: DeviceId,
    kernels: Vec<Kernel>,
    mode: Mode,
    /// Whether main memory's buffers are page-locked.
    #[cfg(feature = "cuda")]
    is_pinned: bool,
}

impl Layered {
    pub(super) fn new(
        options: &DiscoverOptions,
        row: Row,
        mode: Mode,
        device: &str,
    ) -> Result<Self, Table1Error> {
        let platform = dml_core::PlatformBuilder::default().discover_with(options)?.build()?;
        let device = platform.device(device)?;
        let kernels = match platform.home_as::<OpenClArena>(device) {
            Some(arena) => {
                let (source, names) = row.kernels();
                let made = names.iter().map(|name| Ok(Kernel::OpenCl(arena.kernel(source, name, "")?)));
                made.collect::<Result<_, Table1Error>>()?
            }
            #[cfg(feature = "cuda")]
            None => {
                let arena = platform.home_as::<CudaArena>(device);
                let arena = arena.expect("the table has only OpenCL and CUDA devices");
                let (source, names) = row.cuda_kernels();
                let made = names.iter().map(|name| Ok(Kernel::Cuda(arena.kernel(source, name, "")?)));
                made.collect::<Result<_, Table1Error>>()?
            }
            #[cfg(not(feature = "cuda"))]
            None => unreachable!("the table has only OpenCL devices"),
        };
        #[cfg(feature = "cuda")]
        let is_pinned = platform.arena_named("cuda_pinned").is_ok();
        Ok(Self {
            device,
            kernels,
            mode,
            #[cfg(feature = "cuda")]
            is_pinned,
            platform,
        })
    }

    /// Makes the hand-written program of these kernels for the same device.
    pub(super) fn by_hand<D: Device>(&self, kernels: (&str, &[&str])) -> Result<Hand<D>, ByHandError> {
        Hand::new(&self.platform, self.device, kernels)
    }

    pub(super) fn description(&self) -> &str {
        &self.platform.device_desc(self.device).description
    }

    pub(super) fn run(&self, problem: &Problem, checking: Checking) -> Result<Run, Table1Error> {
        match problem {
            Problem::Vecadd(problem) => self.vecadd(problem, checking),
            Problem::Matmul(problem) => self.matmul(problem, checking),
            Problem::Bfs(problem) => self.bfs(problem, checking),
        }
    }

    fn vecadd(&self, problem: &vecadd::Problem, checking: Checking) -> Result<Run, Table1Error> {
        let (a, b) = (self.given(problem.a(), Touched::Once)?, self.given(problem.b(), Touched::Once)?);
        let out = self.given(&vec![f32::NAN; problem.a().len()], Touched::Once)?;
        let begun = self.begin();
        let (a, b, out) = (self.over(a)?, self.over(b)?, self.over(out)?);
        let acquire = self.platform.acquire(self.device).read(&a).read(&b).write(&out);
        let mut grants = acquire.ahead().wait()?;
        grants.before_launch(true)?;
        let args = [
            block(&grants, &a)?,
            block(&grants, &b)?,
            block(&grants, &out)?,
            KernelArg::Scalar(Scalar::U64(problem.items())),
        ];
        let (items, local) = ([problem.items(), 1], [vecadd::LOCAL_SIZE, 1]);
        // SAFETY: the kernel touches only elements below its last argument, and writes only `out`. The grants
        // last until it ends.
        let fence = self.launched(unsafe { self.kernels[0].launch(&args, items, local) })?;
        grants.in_flight(fence).wait()?.release()?;
        let seen = out.read()?;
        let run = self.ended(begun);
        checking.of((Row::Vecadd, self.mode), || problem.check(&seen))?;
        Ok(run)
    }

    fn matmul(&self, problem: &matmul::Problem, checking: Checking) -> Result<Run, Table1Error> {
        let (a, b) = (self.given(problem.a(), Touched::Often)?, self.given(problem.b(), Touched::Often)?);
        let edge = problem.items();
        let out = self.given(&vec![f32::NAN; problem.a().len()], Touched::Once)?;
        let begun = self.begin();
        let (a, b, out) = (self.over(a)?, self.over(b)?, self.over(out)?);
        let acquire = self.platform.acquire(self.device).read(&a).read(&b).write(&out);
        let mut grants = acquire.ahead().wait()?;
        grants.before_launch(true)?;
        let args = [
            block(&grants, &a)?,
            block(&grants, &b)?,
            block(&grants, &out)?,
            KernelArg::Scalar(Scalar::U32(edge as u32)),
            KernelArg::Scalar(Scalar::U64(edge)),
        ];
        // SAFETY: the kernel touches only rows and columns below `edge`, which every matrix has, and writes
        // only `out`. The grants last until it ends.
        let fence = self.launched(unsafe { self.kernels[0].launch(&args, [edge; 2], matmul::LOCAL_SIZE) })?;
        grants.in_flight(fence).wait()?.release()?;
        let seen = out.read()?;
        let run = self.ended(begun);
        checking.of((Row::Matmul, self.mode), || problem.check(&seen))?;
        Ok(run)
    }

    fn bfs(&self, problem: &bfs::Problem, checking: Checking) -> Result<Run, Table1Error> {
        let (nodes, edges) = (problem.nodes(), problem.edges());
        let (nodes, edges) = (self.given(nodes, Touched::Often)?, self.given(edges, Touched::Often)?);
        let bfs::State { level, next, visited, cost } = problem.state();
        let (level, next) = (self.given(&level, Touched::Often)?, self.given(&next, Touched::Often)?);
        let (visited, cost) = (self.given(&visited, Touched::Often)?, self.given(&cost, Touched::Often)?);
        let found = self.given(&[u32::MAX], Touched::Once)?;
        let end = KernelArg::Scalar(Scalar::U64(problem.items()));
        let (items, local) = ([problem.items(), 1], [bfs::LOCAL_SIZE, 1]);
        let [visit, advance] = &self.kernels[..] else { unreachable!("the search has two kernels") };
        let begun = self.begin();
        let (nodes, edges, cost) = (self.over(nodes)?, self.over(edges)?, self.over(cost)?);
        let (level, next, visited) = (self.over(level)?, self.over(next)?, self.over(visited)?);
        let found = self.over(found)?;
        // The device holds these for the whole search. The flag alternates between host and device.
        let held = self.platform.acquire(self.device).read(&nodes).read(&edges).read_write(&level);
        let held = held.read_write(&next).read_write(&visited).read_write(&cost);
        let mut held = held.ahead().wait()?;
        held.before_launch(true)?;
        let state = |buffer| block(&held, buffer);
        let (nodes_arg, edges_arg) = (state(nodes.raw())?, state(edges.raw())?);
        let (level_arg, next_arg) = (state(level.raw())?, state(next.raw())?);
        let (visited_arg, cost_arg) = (state(visited.raw())?, state(cost.raw())?);
        let visit_args = [nodes_arg, edges_arg, level_arg, next_arg, visited_arg, cost_arg, end];
        loop {
            let mut flag = found.write()?;
            flag[0] = 0;
            flag.release()?;
            // Both kernels of a level run back to back on one queue, so they share the wait.
            let grants = self.platform.acquire(self.device).read_write(&found).wait()?;
            let advance_args = [level_arg, next_arg, visited_arg, block(&grants, &found)?, end];
            // SAFETY: all buffers have an element per node, except for the edges, which name nodes of the
            // graph, and the flag. The kernel touches only the elements of these, and writes neither nodes
            // nor edges. The grants last until it ends.
            let visiting = self.launched(unsafe { visit.launch(&visit_args, items, local) })?;
            // SAFETY: as above.
            let advancing = self.launched(unsafe { advance.launch(&advance_args, items, local) })?;
            let grants = grants.in_flight(advancing).wait()?;
            visiting.wait()?;
            grants.release()?;
            if found.read()?[0] == 0 {
                break;
            }
        }
        held.release()?;
        let seen = cost.read()?;
        let run = self.ended(begun);
        checking.of((Row::Bfs, self.mode), || problem.check(&seen))?;
        Ok(run)
    }

    /// Copies elements to where the program has them before it begins: a vector, or a buffer of page-locked
    /// memory. The device uses such a buffer in place if a launch touches its elements once.
    fn given<T: Element>(&self, elements: &[T], touched: Touched) -> Result<Given<T>, Table1Error> {
        #[cfg(feature = "cuda")]
        if self.is_pinned {
            let builder = self.platform.buffer::<T>(elements.len() as u64);
            let builder = match touched {
                Touched::Once => builder.pattern(Pattern::ToAndFro),
                Touched::Often => builder,
            };
            let buffer = builder.build()?;
            let mut view = buffer.write()?;
            view.copy_from_slice(elements);
            view.release()?;
            return Ok(Given::Buffer(buffer));
        }
        let _ = touched;
        Ok(Given::Vector(elements.to_vec()))
    }

    /// Makes a buffer over a vector of the application, or takes its buffer.
    fn over<T: Element>(&self, given: Given<T>) -> Result<Buffer<T>, ConfigError> {
        match given {
            Given::Vector(vector) => self.platform.buffer_from(vector).map_err(|unstored| unstored.cause),
            #[cfg(feature = "cuda")]
            Given::Buffer(buffer) => Ok(buffer),
        }
    }

    /// Counts a launched kernel.
    fn launched(&self, fence: Result<Fence, TransferError>) -> Result<Fence, TransferError> {
        self.platform.counters().count(Operation::Kernel);
        fence
    }

    fn begin(&self) -> Instant {
        self.platform.counters().reset();
        Instant::now()
    }

    fn ended(&self, begun: Instant) -> Run {
        let duration: Duration = begun.elapsed();
        let count = |operation| self.platform.counters().operation(operation);
        let operations = Operations {
            map: count(Operation::Map),
            unmap: count(Operation::Unmap),
            read: count(Operation::Read),
            write: count(Operation::Write),
            kernel: count(Operation::Kernel),
            alloc: count(Operation::Alloc),
            bind: count(Operation::Bind),
            copy: count(Operation::Copy),
        };
        Run { duration, operations }
    }
}

/// An element type of the table's buffers.
trait Element: bytemuck::Pod + std::fmt::Debug + Send + Sync {}

impl<T: bytemuck::Pod + std::fmt::Debug + Send + Sync> Element for T {}

impl Kernel {
    /// Starts the kernel over items along two axes.
    ///
    /// # Safety
    /// 1. With these arguments and items, the kernel touches only the bytes of its arguments' blocks.
    unsafe fn launch(
        &self,
        args: &[KernelArg<'_>],
        items: [u64; 2],
        local: [u64; 2],
    ) -> Result<Fence, TransferError> {
        let grid = match items {
            [items, 1] => Grid::line(0, items, local[0]),
            _ => Grid::new([0; 2], items, local),
        };
        // SAFETY: the caller guarantees what the kernel touches (1).
        unsafe {
            match self {
                Self::OpenCl(kernel) => kernel.launch(args, grid),
                #[cfg(feature = "cuda")]
                Self::Cuda(kernel) => kernel.launch(args, grid),
            }
        }
    }
}

/// Returns the storage of a granted buffer as an argument. None of the table's buffers is empty.
fn block<'a>(grants: &'a Grants, buffer: &impl Region) -> Result<KernelArg<'a>, ViewError> {
    Ok(KernelArg::Block(grants.block(buffer)?.expect("the buffers of the table have bytes")))
}
