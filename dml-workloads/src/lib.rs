#![deny(unsafe_code)]
//! Benchmark workloads: seeded inputs, host kernels, OpenCL C kernels and independent checks.
//!
//! ```text
//!   generate(seed) ──▶ Problem ──inputs──▶ host kernel (team)  ─┐
//!                         │     ──inputs──▶ OPENCL_SOURCE      ─┴─▶ output
//!                         └──────────── check(output) ◀─────────────┘
//! ```
//!
//! Nothing here knows about devices or buffers: a kernel takes the range of global items that one package covers, and
//! slices that hold what this package needs. What every workload keeps to:
//!
//! 1. **An item is computed from its global number alone.** Any split of a problem into packages gives the same
//!    bytes as the problem in one piece.
//! 2. **Any item count is legal.** Zero, one and numbers that are no multiple of the local size work; OpenCL kernels
//!    take the end of the package as their last argument and leave the padding of a launch alone.
//! 3. **Inputs are position-dependent.** They come from a seed and the position, so that a shifted, stale or missing
//!    byte shows in the output.
//! 4. **A check is written differently from the kernels that it judges**, and names the first item that is wrong.

pub mod bfs;
pub mod binomial;
pub mod check;
pub mod gaussian;
pub mod mandelbrot;
pub mod matmul;
pub mod nbody;
pub mod picture;
pub mod prepare;
pub mod rap;
pub mod ray;
pub mod saxpy;
#[cfg(feature = "opencl")]
pub mod single;
#[cfg(feature = "opencl")]
pub mod table1;
pub mod taylor;
pub mod vecadd;

mod jobs;
#[cfg(test)]
mod packages;
mod random;
mod scene;
