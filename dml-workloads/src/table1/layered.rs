//! The programs on the data layer. They are the same in both modes: only the platform differs.

use super::{Checking, DEVICE, Mode, Operations, Problem, Row, Run, Table1Error};
use crate::{bfs, matmul, vecadd};
use dml_arenas::opencl::{Grid, KernelArg, Launch, OpenClKernel};
use dml_arenas::{Discover, DiscoverOptions, OpenClArena};
use dml_core::{Buffer, ConfigError, DeviceId, Fence, Grants, Operation, Platform, Region};
use dml_core::{TransferError, ViewError};
use std::time::{Duration, Instant};

/// A platform, and the kernels of one row on its device.
#[derive(Debug)]
pub(super) struct Layered {
    platform: Platform,
    device: DeviceId,
    kernels: Vec<OpenClKernel>,
    mode: Mode,
}

impl Layered {
    pub(super) fn new(options: &DiscoverOptions, row: Row, mode: Mode) -> Result<Self, Table1Error> {
        let platform = dml_core::PlatformBuilder::default().discover_with(options)?.build()?;
        let device = platform.device(DEVICE)?;
        let arena = platform.home(device).map(|home| platform.arena(home));
        let arena = arena.and_then(|arena| arena.downcast_ref::<OpenClArena>());
        let arena = arena.expect("an OpenCL device has an OpenCL arena");
        let (source, names) = row.kernels();
        let kernels = names.iter().map(|name| arena.kernel(source, name, "")).collect::<Result<_, _>>()?;
        Ok(Self { device, kernels, mode, platform })
    }

    pub(super) fn description(&self) -> &str {
        &self.platform.devices()[usize::from(self.device.0)].description
    }

    pub(super) fn run(&self, problem: &Problem, checking: Checking) -> Result<Run, Table1Error> {
        match problem {
            Problem::Vecadd(problem) => self.vecadd(problem, checking),
            Problem::Matmul(problem) => self.matmul(problem, checking),
            Problem::Bfs(problem) => self.bfs(problem, checking),
        }
    }

    fn vecadd(&self, problem: &vecadd::Problem, checking: Checking) -> Result<Run, Table1Error> {
        let (a, b) = (problem.a().to_vec(), problem.b().to_vec());
        let out = vec![f32::NAN; a.len()];
        let begun = self.begin();
        let (a, b, out) = (self.over(a)?, self.over(b)?, self.over(out)?);
        let grants = self.platform.acquire(self.device).read(&a).read(&b).write(&out).wait()?;
        let args = [
            block(&grants, &a)?,
            block(&grants, &b)?,
            block(&grants, &out)?,
            KernelArg::U64(problem.items()),
        ];
        let launch = Launch { offset: 0, items: problem.items(), local: vecadd::LOCAL_SIZE };
        // SAFETY: the kernel touches elements below its last argument, and writes `out` alone; the grants last until its end.
        let fence = self.launched(unsafe { self.kernels[0].launch(&args, launch) })?;
        grants.in_flight(fence).wait()?.release()?;
        let seen = out.read()?;
        let run = self.ended(begun);
        checking.of((Row::Vecadd, self.mode), || problem.check(&seen))?;
        Ok(run)
    }

    fn matmul(&self, problem: &matmul::Problem, checking: Checking) -> Result<Run, Table1Error> {
        let (a, b) = (problem.a().to_vec(), problem.b().to_vec());
        let (edge, out) = (problem.items(), vec![f32::NAN; a.len()]);
        let begun = self.begin();
        let (a, b, out) = (self.over(a)?, self.over(b)?, self.over(out)?);
        let grants = self.platform.acquire(self.device).read(&a).read(&b).write(&out).wait()?;
        let args = [
            block(&grants, &a)?,
            block(&grants, &b)?,
            block(&grants, &out)?,
            KernelArg::U32(edge as u32),
            KernelArg::U64(edge),
        ];
        let grid = Grid { offset: [0; 2], items: [edge; 2], local: matmul::LOCAL_SIZE };
        // SAFETY: the kernel touches rows and columns below `edge`, which every matrix has, and writes `out` alone; the grants last
        // until its end.
        let fence = self.launched(unsafe { self.kernels[0].launch_grid(&args, grid) })?;
        grants.in_flight(fence).wait()?.release()?;
        let seen = out.read()?;
        let run = self.ended(begun);
        checking.of((Row::Matmul, self.mode), || problem.check(&seen))?;
        Ok(run)
    }

    fn bfs(&self, problem: &bfs::Problem, checking: Checking) -> Result<Run, Table1Error> {
        let (nodes, edges) = (problem.nodes().to_vec(), problem.edges().to_vec());
        let bfs::State { level, next, visited, cost } = problem.state();
        let found = vec![u32::MAX];
        let end = KernelArg::U64(problem.items());
        let launch = Launch { offset: 0, items: problem.items(), local: bfs::LOCAL_SIZE };
        let [visit, advance] = &self.kernels[..] else { unreachable!("the search has two kernels") };
        let begun = self.begin();
        let (nodes, edges, cost) = (self.over(nodes)?, self.over(edges)?, self.over(cost)?);
        let (level, next, visited) = (self.over(level)?, self.over(next)?, self.over(visited)?);
        let found = self.over(found)?;
        loop {
            let mut flag = found.write()?;
            flag[0] = 0;
            flag.release()?;
            // Both kernels of a level run back to back on one queue, so they share the grants and the wait.
            let grants = self.platform.acquire(self.device).read(&nodes).read(&edges).read_write(&level);
            let grants = grants.read_write(&next).read_write(&visited).read_write(&cost).read_write(&found);
            let grants = grants.wait()?;
            let block = |buffer| block(&grants, buffer);
            let (level_arg, next_arg) = (block(level.raw())?, block(next.raw())?);
            let visited_arg = block(visited.raw())?;
            let (nodes, edges) = (block(nodes.raw())?, block(edges.raw())?);
            let visit_args = [nodes, edges, level_arg, next_arg, visited_arg, block(cost.raw())?, end];
            let advance_args = [level_arg, next_arg, visited_arg, block(found.raw())?, end];
            // SAFETY: all buffers have an element per node, but for the edges, which name nodes of the graph, and the flag. The kernel
            // touches the elements of these, and writes neither nodes nor edges; the grants last until its end.
            let visiting = self.launched(unsafe { visit.launch(&visit_args, launch) })?;
            // SAFETY: as above.
            let advancing = self.launched(unsafe { advance.launch(&advance_args, launch) })?;
            let grants = grants.in_flight(advancing).wait()?;
            visiting.wait()?;
            grants.release()?;
            if found.read()?[0] == 0 {
                break;
            }
        }
        let seen = cost.read()?;
        let run = self.ended(begun);
        checking.of((Row::Bfs, self.mode), || problem.check(&seen))?;
        Ok(run)
    }

    /// Makes a buffer over a vector of the application.
    fn over<T>(&self, vector: Vec<T>) -> Result<Buffer<T>, ConfigError>
    where
        T: bytemuck::Pod + std::fmt::Debug + Send + Sync,
    {
        self.platform.buffer_from(vector).map_err(|unstored| unstored.cause)
    }

    /// Counts a kernel that was launched.
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

/// The storage of a granted buffer as an argument. None of the table's buffers is empty.
fn block<'a>(grants: &'a Grants, buffer: &impl Region) -> Result<KernelArg<'a>, ViewError> {
    Ok(KernelArg::Block(grants.block(buffer)?.expect("the buffers of the table have bytes")))
}
