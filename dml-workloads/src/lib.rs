#![deny(unsafe_code)]
//! Benchmark workloads: seeded inputs, kernels (host, OpenCL C, CUDA C) and independent checks.
//!
//! ```text
//!   generate(seed) ──▶ Problem ──inputs──▶ host kernel (team)  ─┐
//!                         │     ──inputs──▶ OPENCL_SOURCE      ─┴─▶ output
//!                         └──────────── check(output) ◀─────────────┘
//! ```
//!
//! A host kernel knows neither devices nor buffers. It takes the global items of one package, and slices that
//! hold the data of the package. Every workload keeps these invariants:
//!
//! 1. **An item depends on its global number and the inputs alone.** Any split of a problem into packages
//!    gives the same bytes as a single package.
//! 2. **Any item count is legal**: zero, one, and counts that are no multiple of the local size. Kernels for
//!    devices take the end of the package as an argument, and skip the padding of a launch.
//! 3. **Inputs are position-dependent.** They come from a seed and the position, so a shifted, stale or
//!    missing byte changes the output.
//! 4. **A check is implemented independently of the kernels that it judges**, and names the first wrong item.

pub mod bfs;
pub mod binomial;
#[cfg(any(feature = "cuda", feature = "opencl"))]
#[allow(unsafe_code, reason = "calls of frameworks are unsafe")]
pub mod by_hand;
pub mod check;
pub mod gaussian;
pub mod mandelbrot;
pub mod matmul;
pub mod nbody;
pub mod operations;
pub mod overhead;
pub mod picture;
pub mod prepare;
pub mod rap;
pub mod ray;
pub mod saxpy;
#[cfg(feature = "opencl")]
pub mod single;
pub mod slam;
pub mod steps;
#[cfg(feature = "opencl")]
pub mod table1;
pub mod taylor;
pub mod vecadd;

mod jobs;
#[cfg(test)]
mod packages;
mod random;
mod scene;
