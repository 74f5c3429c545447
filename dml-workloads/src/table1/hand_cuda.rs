//! The programs as a good programmer writes them directly on CUDA, with ordinary or page-locked host memory.
//!
//! The host waits only for the data that it reads.

use super::{Checking, Mode, Operations, Problem, Row, Run, Table1Error};
use crate::{bfs, matmul, vecadd};
use bytemuck::Pod;
use dml_arenas::cuda::native::hand::{Arg, Buffer, Calls, Commands, Device, Kernel, PageLocked};
use dml_arenas::native::BaselineError;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// The device, and the kernels of one row.
#[derive(Debug)]
pub(super) struct Hand {
    device: Device,
    kernels: Vec<Kernel>,
}

/// Elements in host memory.
#[derive(Debug)]
enum Host<T: Pod + Debug> {
    Ordinary(Vec<T>),
    PageLocked(PageLocked<T>),
}

impl<T: Pod + Debug> Host<T> {
    /// Copies elements to the kind of host memory that a mode uses.
    fn of(device: &Device, mode: Mode, elements: &[T]) -> Result<Self, BaselineError> {
        if mode != Mode::HandPinned {
            return Ok(Self::Ordinary(elements.to_vec()));
        }
        let mut locked = device.page_locked(elements.len())?;
        locked.copy_from_slice(elements);
        Ok(Self::PageLocked(locked))
    }
}

impl<T: Pod + Debug> Deref for Host<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Ordinary(elements) => elements,
            Self::PageLocked(elements) => elements,
        }
    }
}

impl<T: Pod + Debug> DerefMut for Host<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Ordinary(elements) => elements,
            Self::PageLocked(elements) => elements,
        }
    }
}

impl Hand {
    pub(super) fn new(device: Device, row: Row) -> Result<Self, Table1Error> {
        let (source, names) = row.cuda_kernels();
        let kernels = names.iter().map(|name| device.kernel(source, name)).collect::<Result<_, _>>()?;
        Ok(Self { device, kernels })
    }

    pub(super) fn run(&self, mode: Mode, problem: &Problem, checking: Checking) -> Result<Run, Table1Error> {
        let Self { device, kernels } = self;
        let (duration, calls) = match (problem, &kernels[..]) {
            (Problem::Vecadd(problem), [kernel]) => vecadd(device, kernel, problem, (mode, checking)),
            (Problem::Matmul(problem), [kernel]) => matmul(device, kernel, problem, (mode, checking)),
            (Problem::Bfs(problem), [visit, advance]) => {
                bfs(device, [visit, advance], problem, (mode, checking))
            }
            (problem, kernels) => unreachable!("{} kernels for {:?}", kernels.len(), problem.size()),
        }?;
        let Calls { alloc, read, write, kernel, .. } = calls;
        Ok(Run { duration, operations: Operations { alloc, read, write, kernel, ..Operations::default() } })
    }
}

type Timed = Result<(Duration, Calls), Table1Error>;

fn vecadd(
    device: &Device,
    kernel: &Kernel,
    problem: &vecadd::Problem,
    (mode, checking): (Mode, Checking),
) -> Timed {
    let (a, b) = (&Host::of(device, mode, problem.a())?, &Host::of(device, mode, problem.b())?);
    let result = &mut Host::of(device, mode, &vec![f32::NAN; a.len()])?;
    device.run(move |commands| {
        let begun = Instant::now();
        let mut a_there = commands.buffer::<f32>(a.len())?;
        let mut b_there = commands.buffer::<f32>(b.len())?;
        let out = commands.buffer::<f32>(a.len())?;
        commands.write(&mut a_there, a)?;
        commands.write(&mut b_there, b)?;
        let args =
            [Arg::Buffer(&a_there), Arg::Buffer(&b_there), Arg::Buffer(&out), Arg::U64(a.len() as u64)];
        // SAFETY: the buffers have this many elements each. The kernel touches only elements below its last
        // argument.
        unsafe { commands.launch(kernel, &args, [a.len(), 1], [vecadd::LOCAL_SIZE as usize, 1]) }?;
        commands.read(&out, result)?;
        let duration = begun.elapsed();
        checking.of((Row::Vecadd, mode), || problem.check(result))?;
        Ok(duration)
    })
}

fn matmul(
    device: &Device,
    kernel: &Kernel,
    problem: &matmul::Problem,
    (mode, checking): (Mode, Checking),
) -> Timed {
    let (a, b) = (&Host::of(device, mode, problem.a())?, &Host::of(device, mode, problem.b())?);
    let result = &mut Host::of(device, mode, &vec![f32::NAN; a.len()])?;
    let edge = problem.items();
    device.run(move |commands| {
        let begun = Instant::now();
        let mut a_there = commands.buffer::<f32>(a.len())?;
        let mut b_there = commands.buffer::<f32>(b.len())?;
        let out = commands.buffer::<f32>(a.len())?;
        commands.write(&mut a_there, a)?;
        commands.write(&mut b_there, b)?;
        let [a_arg, b_arg, out_arg] = [&a_there, &b_there, &out].map(Arg::Buffer);
        let args = [a_arg, b_arg, out_arg, Arg::U32(edge as u32), Arg::U64(edge)];
        // SAFETY: the buffers have `edge` rows and columns each. The kernel touches only elements below
        // these.
        unsafe {
            commands.launch(kernel, &args, [edge as usize; 2], matmul::LOCAL_SIZE.map(|size| size as usize))
        }?;
        commands.read(&out, result)?;
        let duration = begun.elapsed();
        checking.of((Row::Matmul, mode), || problem.check(result))?;
        Ok(duration)
    })
}

fn bfs(
    device: &Device,
    kernels: [&Kernel; 2],
    problem: &bfs::Problem,
    (mode, checking): (Mode, Checking),
) -> Timed {
    let state = problem.state();
    let graph = (&Host::of(device, mode, problem.nodes())?, &Host::of(device, mode, problem.edges())?);
    let masks = [&state.level, &state.next, &state.visited].map(|mask| Host::of(device, mode, mask));
    let masks = &masks.into_iter().collect::<Result<Vec<_>, _>>()?;
    let first_cost = &Host::of(device, mode, &state.cost)?;
    // The flag at the beginning and at the end of a level: whether a node was found.
    let (nothing, answer) = (&Host::of(device, mode, &[0_u32])?, &mut Host::of(device, mode, &[u32::MAX])?);
    let result = &mut Host::of(device, mode, &vec![i32::MIN; graph.0.len()])?;
    device.run(move |commands| {
        let (nodes, edges) = graph;
        let begun = Instant::now();
        let mut graph = [commands.buffer::<bfs::Node>(nodes.len())?, commands.buffer::<u32>(edges.len())?];
        commands.write(&mut graph[0], nodes)?;
        commands.write(&mut graph[1], edges)?;
        let mut masks_there = Vec::with_capacity(masks.len());
        for mask in masks {
            let mut there = commands.buffer::<u8>(mask.len())?;
            commands.write(&mut there, mask)?;
            masks_there.push(there);
        }
        let mut cost = commands.buffer::<i32>(nodes.len())?;
        commands.write(&mut cost, first_cost)?;
        let mut found = commands.buffer::<u32>(1)?;
        loop {
            commands.write(&mut found, nothing)?;
            launch_bfs(commands, kernels, (&graph, &masks_there, &cost, &found), nodes.len())?;
            commands.read(&found, answer)?;
            if answer[0] == 0 {
                break;
            }
        }
        commands.read(&cost, result)?;
        let duration = begun.elapsed();
        checking.of((Row::Bfs, mode), || problem.check(result))?;
        Ok(duration)
    })
}

/// Nodes and edges; the three masks; the costs; the flag.
type BfsBuffers<'a, 'run> = (&'a [Buffer<'run>; 2], &'a [Buffer<'run>], &'a Buffer<'run>, &'a Buffer<'run>);

fn launch_bfs<'run, 'data>(
    commands: &mut Commands<'run, 'data>,
    [visit, advance]: [&'data Kernel; 2],
    (graph, masks, cost, found): BfsBuffers<'_, 'run>,
    items: usize,
) -> Result<(), BaselineError> {
    let [level, next, visited] = masks else { unreachable!("there are three masks") };
    let [nodes, edges] = graph;
    let end = Arg::U64(items as u64);
    let [nodes, edges, level, next, visited] = [nodes, edges, level, next, visited].map(Arg::Buffer);
    let visits = [nodes, edges, level, next, visited, Arg::Buffer(cost), end];
    let advances = [level, next, visited, Arg::Buffer(found), end];
    for (kernel, args) in [(visit, &visits[..]), (advance, &advances)] {
        // SAFETY: the buffers have an element per node, except for the edges, which name nodes of the graph,
        // and the flag. The kernels touch only the elements of these.
        unsafe { commands.launch(kernel, args, [items, 1], [bfs::LOCAL_SIZE as usize, 1]) }?;
    }
    Ok(())
}
