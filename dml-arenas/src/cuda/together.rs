//! Submitted kernels that follow each other at once, launched together.
//!
//! ```text
//!   kernel 1, 2, … 8, each followed ──▶ waiting ──▶ 8: one graph ──▶ stream
//!                                          └──▶ fewer, and another command follows: one after the other
//! ```
//! 1. A graph of eight kernels takes the driver a quarter of the time of eight launches. Before each launch
//!    of the graph, its nodes are set to the kernels.
//! 2. A thread that enqueues on the stream of the kernels first launches the waiting ones
//!    (`Session::in_order`).
//! 3. If such a launch fails, that kernel fails, and all behind it that wait ([`Marks`](super::marks::Marks)).
//! 4. An executable graph keeps functions from one launch to the next. It is destroyed before a program is
//!    unloaded.

use super::error::{Failure, check};
use super::session::Raw;
use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream,
    cuGraphAddKernelNode_v2, cuGraphCreate, cuGraphDestroy, cuGraphExecDestroy,
    cuGraphExecKernelNodeSetParams_v2, cuGraphInstantiateWithFlags, cuGraphLaunch, cuLaunchKernel,
};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Number of kernels that are launched together.
const LENGTH: usize = 8;
/// Number of parameters whose launches allocate nothing.
const PLACES: usize = 16;
pub(super) const LAUNCH: &str = "cuLaunchKernel";

/// A parameter of a kernel: its offset and size in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A launch of a live function, with its arguments.
#[derive(Debug)]
pub(super) struct Ready {
    function: Raw<CUfunction>,
    /// The number of blocks along each axis.
    pub(super) grid: [u32; 3],
    /// The number of threads of a block along each axis.
    local: [u32; 3],
    /// The size of a block's local memory, in bytes.
    pub(super) shared: u32,
    /// The arguments, each at the offset of its parameter.
    packed: SmallVec<[u64; PLACES]>,
    offsets: SmallVec<[u32; PLACES]>,
}

impl Ready {
    /// Makes a launch without arguments yet. `words`: the size of all parameters, in words.
    pub(super) fn new(
        (function, local): (Raw<CUfunction>, [u32; 3]),
        words: usize,
        parameters: impl Iterator<Item = Parameter>,
    ) -> Self {
        let offsets = parameters.map(|parameter| parameter.offset as u32).collect();
        let packed = SmallVec::from_elem(0, words);
        Self { function, grid: [1; 3], local, shared: 0, packed, offsets }
    }

    pub(super) fn put(&mut self, place: Parameter, value: &[u8]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.packed);
        bytes[place.offset..place.offset + place.bytes].copy_from_slice(value);
    }

    /// Returns the address of each argument, valid while `self` lives and is not moved.
    fn addresses(&mut self) -> SmallVec<[*mut c_void; PLACES]> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.packed);
        let base = bytes.as_mut_ptr();
        // Each offset lies within the bytes, whose size was computed from the offsets.
        self.offsets.iter().map(|offset| base.wrapping_add(*offset as usize).cast()).collect()
    }

    /// Launches the kernel.
    ///
    /// # Safety
    /// 1. The function is live, and has a parameter for each offset. Its context is current.
    /// 2. What the kernel touches lives until it has ended.
    pub(super) unsafe fn launch(&mut self, stream: CUstream) -> CUresult {
        let mut addresses = self.addresses();
        let ([gx, gy, gz], [x, y, z], params) = (self.grid, self.local, addresses.as_mut_ptr());
        // SAFETY: as the caller guarantees. Each address has a value of its parameter's size, which the call
        // copies.
        unsafe {
            cuLaunchKernel(self.function.0, gx, gy, gz, x, y, z, self.shared, stream, params, null_mut())
        }
    }

    /// Passes the kernel to a call, which copies it.
    fn as_node<R>(&mut self, call: impl FnOnce(*const CUDA_KERNEL_NODE_PARAMS) -> R) -> R {
        let mut addresses = self.addresses();
        let ([gx, gy, gz], [x, y, z]) = (self.grid, self.local);
        let node = CUDA_KERNEL_NODE_PARAMS {
            func: self.function.0,
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: x,
            blockDimY: y,
            blockDimZ: z,
            sharedMemBytes: self.shared,
            kernelParams: addresses.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        call(&raw const node)
    }
}

/// The kernels that wait for others, in their order, and the graph that launches them.
///
/// All calls need the device's context, and that no other thread enqueues on the stream.
#[derive(Debug, Default)]
pub(super) struct Together {
    waiting: Vec<(u64, Ready)>,
    graph: Option<Graph>,
    /// Whether the driver has refused to make or change a graph.
    is_refused: bool,
}

impl Together {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a kernel with its number. Returns whether as many wait as are launched together.
    pub(super) fn wait(&mut self, number: u64, ready: Ready) -> bool {
        self.waiting.push((number, ready));
        self.waiting.len() >= LENGTH
    }

    /// Launches what waits. Otherwise, returns the number of the first kernel that was not launched.
    ///
    /// # Safety
    /// As for [`Ready::launch`], for each kernel.
    pub(super) unsafe fn launch(&mut self, stream: CUstream) -> Result<(), (u64, Failure)> {
        let mut waiting = std::mem::take(&mut self.waiting);
        // SAFETY: as the caller guarantees.
        let launched = unsafe { self.launch_all(&mut waiting, stream) };
        waiting.clear();
        self.waiting = waiting;
        launched
    }

    unsafe fn launch_all(
        &mut self,
        waiting: &mut [(u64, Ready)],
        stream: CUstream,
    ) -> Result<(), (u64, Failure)> {
        // SAFETY: as the caller guarantees.
        if waiting.len() == LENGTH && !self.is_refused && unsafe { self.prepare(waiting) }.is_err() {
            self.is_refused = true;
            self.forget();
        }
        match &self.graph {
            Some(graph) if waiting.len() == LENGTH => {
                // SAFETY: a live graph. The caller guarantees what its kernels touch.
                let launched = unsafe { cuGraphLaunch(graph.executable.0, stream) };
                check("cuGraphLaunch", launched).map_err(|failure| (waiting[0].0, failure))
            }
            _ => waiting.iter_mut().try_for_each(|(number, ready)| {
                // SAFETY: as the caller guarantees.
                check(LAUNCH, unsafe { ready.launch(stream) }).map_err(|failure| (*number, failure))
            }),
        }
    }

    /// Makes the graph launch these kernels.
    unsafe fn prepare(&mut self, kernels: &mut [(u64, Ready)]) -> Result<(), Failure> {
        let Some(graph) = &self.graph else {
            // SAFETY: as the caller guarantees.
            self.graph = Some(unsafe { Graph::of(kernels) }?);
            return Ok(());
        };
        kernels.iter_mut().zip(&graph.nodes).try_for_each(|((_, ready), node)| {
            // SAFETY: a node of the graph, and a live function with its arguments.
            let set =
                |params| unsafe { cuGraphExecKernelNodeSetParams_v2(graph.executable.0, node.0, params) };
            check("cuGraphExecKernelNodeSetParams", ready.as_node(set))
        })
    }

    /// Destroys the graph, which keeps functions. The next eight kernels get a new one.
    pub(super) fn forget(&mut self) {
        if let Some(graph) = self.graph.take() {
            graph.destroy();
        }
    }
}

/// A chain of kernels.
#[derive(Debug)]
struct Graph {
    graph: Raw<CUgraph>,
    nodes: SmallVec<[Raw<CUgraphNode>; LENGTH]>,
    executable: Raw<CUgraphExec>,
}

impl Graph {
    /// # Safety
    /// Each kernel has a live function of the current context.
    unsafe fn of(kernels: &mut [(u64, Ready)]) -> Result<Self, Failure> {
        let mut graph = null_mut();
        // SAFETY: the call writes a handle.
        check("cuGraphCreate", unsafe { cuGraphCreate(&raw mut graph, 0) })?;
        let mut this = Self { graph: Raw(graph), nodes: SmallVec::new(), executable: Raw(null_mut()) };
        // SAFETY: as the caller guarantees.
        match unsafe { this.fill(kernels) } {
            Ok(()) => Ok(this),
            Err(failure) => {
                this.destroy();
                Err(failure)
            }
        }
    }

    unsafe fn fill(&mut self, kernels: &mut [(u64, Ready)]) -> Result<(), Failure> {
        for (_, ready) in kernels {
            let (mut node, before) = (null_mut(), self.nodes.last().map(|node| node.0));
            let count = usize::from(before.is_some());
            let before = before.as_ref().map_or(std::ptr::null(), |before| &raw const *before);
            // SAFETY: the call writes a handle, and reads `count` nodes and the node's parameters.
            let add = |params| unsafe {
                cuGraphAddKernelNode_v2(&raw mut node, self.graph.0, before, count, params)
            };
            check("cuGraphAddKernelNode", ready.as_node(add))?;
            self.nodes.push(Raw(node));
        }
        let executable = &raw mut self.executable.0;
        // SAFETY: the call writes a handle.
        check("cuGraphInstantiate", unsafe { cuGraphInstantiateWithFlags(executable, self.graph.0, 0) })
    }

    /// A launch in flight goes on.
    fn destroy(self) {
        // SAFETY: objects of this graph, each destroyed once, here.
        unsafe {
            if !self.executable.0.is_null() {
                let _ = cuGraphExecDestroy(self.executable.0);
            }
            let _ = cuGraphDestroy(self.graph.0);
        }
    }
}
