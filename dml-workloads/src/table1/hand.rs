//! The programs as a good programmer writes them directly on OpenCL or CUDA. The call sequence is the same on
//! both.
//!
//! The host waits only for the data that it reads.

use super::{Checking, Mode, Problem, Row, Run, Table1Error};
use crate::by_hand::{Arg, ByHandError, Calls, Device, Finished, Host};
use crate::{bfs, matmul, vecadd};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use dml_core::{DeviceId, Platform};
use std::fmt;
use std::time::Instant;

/// The device, and the kernels of one row.
pub(super) struct Hand<D: Device> {
    kernels: Vec<D::Kernel>,
    device: D,
}

impl<D: Device> fmt::Debug for Hand<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hand")
    }
}

impl<D: Device> Hand<D> {
    pub(super) fn new(
        platform: &Platform,
        device: DeviceId,
        (source, names): (&str, &[&str]),
    ) -> Result<Self, ByHandError> {
        let device = D::open(platform, device)?;
        let kernels = names.iter().map(|name| device.kernel(source, name)).collect::<Result<_, _>>()?;
        Ok(Self { kernels, device })
    }

    pub(super) fn run(&self, mode: Mode, problem: &Problem, checking: Checking) -> Result<Run, Table1Error> {
        match (problem, &self.kernels[..]) {
            (Problem::Vecadd(problem), [kernel]) => self.vecadd(kernel, problem, (mode, checking)),
            (Problem::Matmul(problem), [kernel]) => self.matmul(kernel, problem, (mode, checking)),
            (Problem::Bfs(problem), [visit, advance]) => {
                self.bfs([visit, advance], problem, (mode, checking))
            }
            (problem, kernels) => unreachable!("{} kernels for {:?}", kernels.len(), problem.size()),
        }
    }

    fn vecadd(
        &self,
        kernel: &D::Kernel,
        problem: &vecadd::Problem,
        (mode, checking): (Mode, Checking),
    ) -> Result<Run, Table1Error> {
        let (mut a, mut b) = (self.given(mode, problem.a())?, self.given(mode, problem.b())?);
        let mut out = self.given(mode, &vec![f32::NAN; a.len()])?;
        let _finished = Finished(&self.device);
        let begun = self.begin()?;
        let (a_there, b_there) = (self.input(mode, &mut a)?, self.input(mode, &mut b)?);
        let mut out_there = self.output(mode, &mut out)?;
        let [a_arg, b_arg, out_arg] = [&a_there, &b_there, &out_there].map(Arg::Buffer);
        let args = [a_arg, b_arg, out_arg, Arg::U64(problem.items())];
        // SAFETY: the buffers are unmapped and have this many elements each. The kernel touches only elements
        // below its last argument.
        unsafe { self.device.launch(kernel, &args, [problem.items(), 1], [vecadd::LOCAL_SIZE, 1]) }?;
        // SAFETY: the memory is that of the buffer, outlives it, and is used through the result alone.
        let seen = unsafe { self.device.view(&mut out_there, cast_slice_mut(&mut out)) }?;
        let run = self.ended(begun);
        checking.of((Row::Vecadd, mode), || problem.check(cast_slice(seen)))?;
        Ok(run)
    }

    fn matmul(
        &self,
        kernel: &D::Kernel,
        problem: &matmul::Problem,
        (mode, checking): (Mode, Checking),
    ) -> Result<Run, Table1Error> {
        let (mut a, mut b) = (self.given(mode, problem.a())?, self.given(mode, problem.b())?);
        let mut out = self.given(mode, &vec![f32::NAN; a.len()])?;
        let edge = problem.items();
        let _finished = Finished(&self.device);
        let begun = self.begin()?;
        let (a_there, b_there) = (self.input(mode, &mut a)?, self.input(mode, &mut b)?);
        let mut out_there = self.output(mode, &mut out)?;
        let [a_arg, b_arg, out_arg] = [&a_there, &b_there, &out_there].map(Arg::Buffer);
        let args = [a_arg, b_arg, out_arg, Arg::U32(edge as u32), Arg::U64(edge)];
        // SAFETY: the buffers are unmapped and have `edge` rows and columns each. The kernel touches only
        // elements below these.
        unsafe { self.device.launch(kernel, &args, [edge; 2], matmul::LOCAL_SIZE) }?;
        self.fetch(&mut out_there, &mut out)?;
        let run = self.ended(begun);
        checking.of((Row::Matmul, mode), || problem.check(&out))?;
        Ok(run)
    }

    fn bfs(
        &self,
        [visit, advance]: [&D::Kernel; 2],
        problem: &bfs::Problem,
        (mode, checking): (Mode, Checking),
    ) -> Result<Run, Table1Error> {
        let bfs::State { level, next, visited, cost } = problem.state();
        let (mut nodes, mut edges) = (self.given(mode, problem.nodes())?, self.given(mode, problem.edges())?);
        let (mut level, mut next) = (self.given(mode, &level)?, self.given(mode, &next)?);
        let (mut visited, mut cost) = (self.given(mode, &visited)?, self.given(mode, &cost)?);
        // Whether a level has found a node. It has found none at its beginning.
        let mut found = self.given(mode, &[0_u32])?;
        let (items, local) = ([problem.items(), 1], [bfs::LOCAL_SIZE, 1]);
        let _finished = Finished(&self.device);
        let begun = self.begin()?;
        let (nodes_there, edges_there) = (self.input(mode, &mut nodes)?, self.input(mode, &mut edges)?);
        let (level_there, next_there) = (self.input(mode, &mut level)?, self.input(mode, &mut next)?);
        let visited_there = self.input(mode, &mut visited)?;
        let mut cost_there = self.input(mode, &mut cost)?;
        let mut found_there = self.output(mode, &mut found)?;
        loop {
            // SAFETY: no code changes the memory until the queue is finished.
            unsafe { self.device.send(&mut found_there, cast_slice(&found)) }?;
            let [level, next, visited] = [&level_there, &next_there, &visited_there];
            let [nodes, edges, cost] = [&nodes_there, &edges_there, &cost_there].map(Arg::Buffer);
            let [level_arg, next_arg, visited_arg] = [level, next, visited].map(Arg::Buffer);
            let end = || Arg::U64(problem.items());
            let visits = [nodes, edges, level_arg, next_arg, visited_arg, cost, end()];
            let [level_arg, next_arg, visited_arg] = [level, next, visited].map(Arg::Buffer);
            let advances = [level_arg, next_arg, visited_arg, Arg::Buffer(&found_there), end()];
            for (kernel, args) in [(visit, &visits[..]), (advance, &advances)] {
                // SAFETY: the buffers are unmapped. They have an element per node, except for the edges,
                // which name nodes of the graph, and the flag. The kernels touch only the elements of these.
                unsafe { self.device.launch(kernel, args, items, local) }?;
            }
            self.fetch(&mut found_there, &mut found)?;
            if found[0] == 0 {
                break;
            }
            found[0] = 0;
        }
        self.fetch(&mut cost_there, &mut cost)?;
        let run = self.ended(begun);
        checking.of((Row::Bfs, mode), || problem.check(&cost))?;
        Ok(run)
    }

    /// Copies elements to the kind of host memory that a mode uses.
    fn given<T: Pod>(&self, mode: Mode, elements: &[T]) -> Result<Host<T>, ByHandError> {
        match mode {
            Mode::HandPinned => self.device.page_locked(elements),
            _ => Ok(Box::new(elements.to_vec())),
        }
    }

    /// Makes a buffer with the contents of host memory, which outlives it and the run.
    fn input<T: Pod>(&self, mode: Mode, elements: &mut [T]) -> Result<D::Buffer, ByHandError> {
        let mut buffer = self.output(mode, elements)?;
        if mode != Mode::HandBound {
            // SAFETY: the caller does not touch the memory until the queue is finished.
            unsafe { self.device.send(&mut buffer, cast_slice(elements)) }?;
        }
        Ok(buffer)
    }

    /// Makes a buffer of the size of host memory, or over it. The memory outlives the buffer and the run.
    fn output<T: Pod>(&self, mode: Mode, elements: &mut [T]) -> Result<D::Buffer, ByHandError> {
        match mode {
            // SAFETY: the caller touches the memory only while the buffer is mapped.
            Mode::HandBound => unsafe { self.device.bind(cast_slice_mut(elements)) },
            _ => self.device.buffer(size_of_val(elements)),
        }
    }

    /// Brings a buffer's contents to its host memory, and waits for them.
    fn fetch<T: Pod>(&self, buffer: &mut D::Buffer, elements: &mut [T]) -> Result<(), ByHandError> {
        // SAFETY: the memory is borrowed until the queue is finished, in this statement.
        unsafe { self.device.fetch(buffer, cast_slice_mut(elements)) }.and(self.device.finish())
    }

    fn begin(&self) -> Result<Instant, ByHandError> {
        // This call also makes the context of CUDA current on this thread.
        self.device.finish()?;
        self.device.calls().set(Calls::default());
        Ok(Instant::now())
    }

    fn ended(&self, begun: Instant) -> Run {
        let duration = begun.elapsed();
        Run { duration, operations: self.device.calls().get().into() }
    }
}
