//! The programs on the data layer. They are the same in both modes and on both frameworks. Only the platform
//! differs, and whether the application's data is in vectors or in buffers of page-locked memory.

use super::hand::Hand;
use super::{Checking, Mode, Operations, Problem, Row, Run, Table1Error};
use crate::by_hand::{ByHandError, Device};
use crate::{bfs, matmul, vecadd};
use dml_arenas::launch;
use dml_arenas::{Discover, DiscoverOptions};
#[cfg(feature = "cuda")]
use dml_core::Pattern;
use dml_core::{Buffer, ConfigError, DeviceId, GrantArg, Grants, Items, Launcher, Platform, args};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    host: DeviceId,
    device: DeviceId,
    kernels: Vec<Arc<dyn Launcher>>,
    mode: Mode,
    /// Whether main memory's buffers are page-locked.
    #[cfg(feature = "cuda")]
    is_pinned: bool,
}

impl Layered {
    pub(super) fn new(
        options: &DiscoverOptions,
        mode: Mode,
        device: &str,
        (source, names): (&str, &[&str]),
    ) -> Result<Self, Table1Error> {
        let platform = dml_core::PlatformBuilder::default().discover_with(options)?.build()?;
        let device = platform.device(device)?;
        // SAFETY: the kernels touch only elements below their last argument and edges of the graph's nodes,
        // and write only what the programs below pass for writing.
        let built = |name: &&str| unsafe { launch::kernel(&platform, device, source, name) };
        let kernels = names.iter().map(built).collect::<Result<_, _>>()?;
        #[cfg(feature = "cuda")]
        let is_pinned = platform.arena_named("cuda_pinned").is_ok();
        Ok(Self {
            host: platform.device("cpu")?,
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
        let mut grants = self.platform.acquire(self.device).read(&a).read(&b).write(&out).ahead().wait()?;
        let items = Items::from(problem.items()).in_groups([vecadd::LOCAL_SIZE, 0, 0]);
        grants.launch(&self.kernels[0], args![&a, &b, &out, problem.items()], items)?;
        self.released(grants)?;
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
        let mut grants = self.platform.acquire(self.device).read(&a).read(&b).write(&out).ahead().wait()?;
        let [columns, rows] = matmul::LOCAL_SIZE;
        let items = Items::from([edge; 2]).in_groups([columns, rows, 0]);
        grants.launch(&self.kernels[0], args![&a, &b, &out, edge as u32, edge], items)?;
        self.released(grants)?;
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
        let items = Items::from(problem.items()).in_groups([bfs::LOCAL_SIZE, 0, 0]);
        let [visit, advance] = &self.kernels[..] else { unreachable!("the search has two kernels") };
        let begun = self.begin();
        let (nodes, edges, cost) = (self.over(nodes)?, self.over(edges)?, self.over(cost)?);
        let (level, next, visited) = (self.over(level)?, self.over(next)?, self.over(visited)?);
        let found = self.over(found)?;
        loop {
            let mut flag = found.write()?;
            flag[0] = 0;
            flag.release()?;
            // Both kernels of a level run back to back, and share the wait.
            let acquire = self.platform.acquire(self.device).read(&nodes).read(&edges).read_write(&level);
            let acquire = acquire.read_write(&next).read_write(&visited).read_write(&cost);
            let mut grants = acquire.read_write(&found).ahead().wait()?;
            let seen = GrantArg::read(&visited);
            grants.launch(
                visit,
                args![&nodes, &edges, &level, &next, seen, &cost, problem.items()],
                items,
            )?;
            grants.launch(advance, args![&level, &next, &visited, &found, problem.items()], items)?;
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

    /// Ends grants behind their kernel, with what it wrote on the host.
    fn released(&self, grants: Grants) -> Result<(), Table1Error> {
        let mut running = grants.running();
        running.bring_results(self.host);
        Ok(running.wait()?.release()?)
    }

    fn begin(&self) -> Instant {
        self.platform.counters().reset();
        Instant::now()
    }

    fn ended(&self, begun: Instant) -> Run {
        let duration: Duration = begun.elapsed();
        let operations = Operations::of(&self.platform);
        Run { duration, operations }
    }
}

/// An element type of the table's buffers.
trait Element: bytemuck::Pod + std::fmt::Debug + Send + Sync {}

impl<T: bytemuck::Pod + std::fmt::Debug + Send + Sync> Element for T {}
