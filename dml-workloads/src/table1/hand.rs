//! The programs as a good programmer writes them directly on OpenCL.
//!
//! The host waits only for the data that it reads. Arguments are set once, because buffers stay the same.

use super::{Checking, Mode, Operations, Problem, Row, Run, Table1Error};
use crate::{bfs, matmul, vecadd};
use dml_arenas::native::BaselineError;
use dml_arenas::opencl::native::hand::{Arg, Buffer, Calls, Commands, Device, Kernel, MapFor};
use std::time::{Duration, Instant};

/// Flag at the beginning of a level: no node was found.
static NOTHING_FOUND: [u32; 1] = [0];

/// The device, and the kernels of one row.
#[derive(Debug)]
pub(super) struct Hand {
    device: Device,
    kernels: Vec<Kernel>,
}

impl Hand {
    pub(super) fn new(device: Device, row: Row) -> Result<Self, Table1Error> {
        let (source, names) = row.kernels();
        let kernels = names.iter().map(|name| device.kernel(source, name)).collect::<Result<_, _>>()?;
        Ok(Self { device, kernels })
    }

    pub(super) fn run(
        &mut self,
        mode: Mode,
        problem: &Problem,
        checking: Checking,
    ) -> Result<Run, Table1Error> {
        let Self { device, kernels } = self;
        let is_bound = mode == Mode::HandBound;
        let (duration, calls) = match (problem, &mut kernels[..]) {
            (Problem::Vecadd(problem), [kernel]) if is_bound => {
                vecadd_bound(device, kernel, problem, checking)
            }
            (Problem::Vecadd(problem), [kernel]) => vecadd(device, kernel, problem, checking),
            (Problem::Matmul(problem), [kernel]) if is_bound => {
                matmul_bound(device, kernel, problem, checking)
            }
            (Problem::Matmul(problem), [kernel]) => matmul(device, kernel, problem, checking),
            (Problem::Bfs(problem), [visit, advance]) if is_bound => {
                bfs_bound(device, [visit, advance], problem, checking)
            }
            (Problem::Bfs(problem), [visit, advance]) => bfs(device, [visit, advance], problem, checking),
            (problem, kernels) => unreachable!("{} kernels for {:?}", kernels.len(), problem.size()),
        }?;
        Ok(Run { duration, operations: operations(calls) })
    }
}

fn operations(calls: Calls) -> Operations {
    let Calls { alloc, bind, map, unmap, read, write, kernel, .. } = calls;
    // None of the programs copies with the processor.
    Operations { map, unmap, read, write, kernel, alloc, bind, copy: 0 }
}

type Timed = Result<(Duration, Calls), Table1Error>;

fn vecadd(device: &Device, kernel: &mut Kernel, problem: &vecadd::Problem, checking: Checking) -> Timed {
    let (a, b) = (&problem.a().to_vec(), &problem.b().to_vec());
    device.run(move |commands| {
        let begun = Instant::now();
        let mut a_there = commands.buffer::<f32>(a.len())?;
        let mut b_there = commands.buffer::<f32>(b.len())?;
        let mut out = commands.buffer::<f32>(a.len())?;
        commands.write(&mut a_there, a)?;
        commands.write(&mut b_there, b)?;
        launch_vecadd(commands, kernel, [&a_there, &b_there, &out], a.len())?;
        let seen = commands.map::<f32>(&mut out, MapFor::Reading)?;
        let duration = begun.elapsed();
        checking.of((Row::Vecadd, Mode::Hand), || problem.check(&seen))?;
        Ok(duration)
    })
}

fn vecadd_bound(
    device: &Device,
    kernel: &mut Kernel,
    problem: &vecadd::Problem,
    checking: Checking,
) -> Timed {
    let (a, b) = (&problem.a().to_vec(), &problem.b().to_vec());
    let out = &mut vec![f32::NAN; a.len()];
    device.run(move |commands| {
        let begun = Instant::now();
        let (a_there, b_there) = (commands.bound(a)?, commands.bound(b)?);
        let mut out = commands.bound_mut(out)?;
        launch_vecadd(commands, kernel, [&a_there, &b_there, &out], a.len())?;
        let seen = commands.map::<f32>(&mut out, MapFor::Reading)?;
        let duration = begun.elapsed();
        checking.of((Row::Vecadd, Mode::HandBound), || problem.check(&seen))?;
        Ok(duration)
    })
}

fn launch_vecadd<'run>(
    commands: &mut Commands<'run, '_>,
    kernel: &mut Kernel,
    [a, b, out]: [&Buffer<'run>; 3],
    items: usize,
) -> Result<(), BaselineError> {
    let args = [Arg::Buffer(a), Arg::Buffer(b), Arg::Buffer(out), Arg::U64(items as u64)];
    commands.set_args(kernel, &args)?;
    // SAFETY: the buffers are unmapped and have `items` elements each. The kernel touches only elements below
    // its last argument, and writes only `out`.
    unsafe { commands.launch(kernel, [items, 1], [vecadd::LOCAL_SIZE as usize, 1]) }
}

fn matmul(device: &Device, kernel: &mut Kernel, problem: &matmul::Problem, checking: Checking) -> Timed {
    let (a, b) = (&problem.a().to_vec(), &problem.b().to_vec());
    let mut result = vec![f32::NAN; a.len()];
    device.run(move |commands| {
        let begun = Instant::now();
        let mut a_there = commands.buffer::<f32>(a.len())?;
        let mut b_there = commands.buffer::<f32>(b.len())?;
        let out = commands.buffer::<f32>(a.len())?;
        commands.write(&mut a_there, a)?;
        commands.write(&mut b_there, b)?;
        launch_matmul(commands, kernel, [&a_there, &b_there, &out], problem.items())?;
        commands.read(&out, &mut result)?;
        let duration = begun.elapsed();
        checking.of((Row::Matmul, Mode::Hand), || problem.check(&result))?;
        Ok(duration)
    })
}

fn matmul_bound(
    device: &Device,
    kernel: &mut Kernel,
    problem: &matmul::Problem,
    checking: Checking,
) -> Timed {
    let (a, b) = (&problem.a().to_vec(), &problem.b().to_vec());
    let out = &mut vec![f32::NAN; a.len()];
    device.run(move |commands| {
        let begun = Instant::now();
        let (a_there, b_there) = (commands.bound(a)?, commands.bound(b)?);
        let mut out = commands.bound_mut(out)?;
        launch_matmul(commands, kernel, [&a_there, &b_there, &out], problem.items())?;
        let seen = commands.map::<f32>(&mut out, MapFor::Reading)?;
        let duration = begun.elapsed();
        checking.of((Row::Matmul, Mode::HandBound), || problem.check(&seen))?;
        Ok(duration)
    })
}

fn launch_matmul<'run>(
    commands: &mut Commands<'run, '_>,
    kernel: &mut Kernel,
    [a, b, out]: [&Buffer<'run>; 3],
    edge: u64,
) -> Result<(), BaselineError> {
    let args = [Arg::Buffer(a), Arg::Buffer(b), Arg::Buffer(out), Arg::U32(edge as u32), Arg::U64(edge)];
    commands.set_args(kernel, &args)?;
    // SAFETY: the buffers are unmapped and have `edge` rows and columns each. The kernel touches only
    // elements below these, and writes only `out`.
    unsafe { commands.launch(kernel, [edge as usize; 2], matmul::LOCAL_SIZE.map(|size| size as usize)) }
}

fn bfs(device: &Device, kernels: [&mut Kernel; 2], problem: &bfs::Problem, checking: Checking) -> Timed {
    let (nodes, edges, state) = (&problem.nodes().to_vec(), &problem.edges().to_vec(), &problem.state());
    let mut result = vec![i32::MIN; nodes.len()];
    device.run(move |commands| {
        let [visit, advance] = kernels;
        let begun = Instant::now();
        let mut graph = [commands.buffer::<bfs::Node>(nodes.len())?, commands.buffer::<u32>(edges.len())?];
        commands.write(&mut graph[0], nodes)?;
        commands.write(&mut graph[1], edges)?;
        let mut masks = [(); 3]
            .map(|()| commands.buffer::<u8>(nodes.len()))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        for (mask, contents) in masks.iter_mut().zip([&state.level, &state.next, &state.visited]) {
            commands.write(mask, contents)?;
        }
        let mut cost = commands.buffer::<i32>(nodes.len())?;
        commands.write(&mut cost, &state.cost)?;
        let mut found = commands.buffer::<u32>(1)?;
        set_bfs_args(commands, [&mut *visit, &mut *advance], (&graph, &masks, &cost, &found), nodes.len())?;
        loop {
            commands.write(&mut found, &NOTHING_FOUND)?;
            launch_bfs(commands, [visit, advance], nodes.len())?;
            let mut answer = [0_u32];
            commands.read(&found, &mut answer)?;
            if answer == NOTHING_FOUND {
                break;
            }
        }
        commands.read(&cost, &mut result)?;
        let duration = begun.elapsed();
        checking.of((Row::Bfs, Mode::Hand), || problem.check(&result))?;
        Ok(duration)
    })
}

fn bfs_bound(
    device: &Device,
    kernels: [&mut Kernel; 2],
    problem: &bfs::Problem,
    checking: Checking,
) -> Timed {
    let (nodes, edges) = (&problem.nodes().to_vec(), &problem.edges().to_vec());
    let mut state = problem.state();
    let bfs::State { level, next, visited, cost } = &mut state;
    let mut found = NOTHING_FOUND;
    let found = &mut found;
    device.run(move |commands| {
        let [visit, advance] = kernels;
        let begun = Instant::now();
        let graph = [commands.bound(nodes)?, commands.bound(edges)?];
        let masks = [level, next, visited].map(|mask| commands.bound_mut(mask));
        let masks = masks.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut cost = commands.bound_mut(cost)?;
        let mut found = commands.bound_mut(found)?;
        set_bfs_args(commands, [&mut *visit, &mut *advance], (&graph, &masks, &cost, &found), nodes.len())?;
        loop {
            launch_bfs(commands, [visit, advance], nodes.len())?;
            let mut answer = commands.map::<u32>(&mut found, MapFor::Changing)?;
            if *answer == NOTHING_FOUND {
                break;
            }
            answer.copy_from_slice(&NOTHING_FOUND);
            commands.unmap(answer)?;
        }
        let seen = commands.map::<i32>(&mut cost, MapFor::Reading)?;
        let duration = begun.elapsed();
        checking.of((Row::Bfs, Mode::HandBound), || problem.check(&seen))?;
        Ok(duration)
    })
}

/// Nodes and edges; the three masks; the costs; the flag.
type BfsBuffers<'a, 'run> = (&'a [Buffer<'run>; 2], &'a [Buffer<'run>], &'a Buffer<'run>, &'a Buffer<'run>);

fn set_bfs_args<'run>(
    commands: &mut Commands<'run, '_>,
    [visit, advance]: [&mut Kernel; 2],
    (graph, masks, cost, found): BfsBuffers<'_, 'run>,
    items: usize,
) -> Result<(), BaselineError> {
    let mut visited: Vec<_> = graph.iter().chain(masks).collect();
    visited.push(cost);
    let mut advanced: Vec<_> = masks.iter().collect();
    advanced.push(found);
    for (kernel, buffers) in [(visit, visited), (advance, advanced)] {
        let mut args: Vec<_> = buffers.into_iter().map(Arg::Buffer).collect();
        args.push(Arg::U64(items as u64));
        commands.set_args(kernel, &args)?;
    }
    Ok(())
}

fn launch_bfs(
    commands: &mut Commands<'_, '_>,
    kernels: [&Kernel; 2],
    items: usize,
) -> Result<(), BaselineError> {
    for kernel in kernels {
        // SAFETY: the arguments are those of `set_bfs_args`: unmapped buffers of an element per node, the
        // flag, and the list of edges, which name nodes of the graph. The kernels touch only the elements of
        // these, and write neither nodes nor edges.
        unsafe { commands.launch(kernel, [items, 1], [bfs::LOCAL_SIZE as usize, 1]) }?;
    }
    Ok(())
}
