//! Applications: kernels in OpenCL C and CUDA C, and a TOML file that describes them.
//!
//! ```text
//!   app.toml ─┬─▶ Application ──prepare──▶ Prepared ──run──▶ Outcome, arrays, files
//!   *.cl, *.cu┘     checked                 arrays filled, kernels compiled for each device
//! ```
//! The file has parameters, arrays, kernels, and the order in which they run. Which part of an array the
//! items of a device touch (`reads = "rows(1)"`) is derived from the kernel's source, or declared. So devices
//! divide a kernel, and only borders move between them.
//!
//! | file | contents |
//! |---|---|
//! | `schema.rs` | the tables and keys of the file |
//! | `resolve.rs` | all checks: what the file means (`plan.rs`), or its mistakes (`fault.rs`) |
//! | `expression.rs`, `part.rs` | numbers such as `"n / 2"`; parts such as `"rows(1)"` |
//! | `data.rs`, `arrays.rs`, `element.rs` | files of arrays, and buffers of any element type |
//! | `derive.rs` | parts that the file does not declare, by dml-analysis |
//! | `launch.rs` | launchers of a kernel's variants |
//! | `prepared.rs` | a run |
//!
//! # Source
//! The three parts of the file are those of STEPOCL ("Automatic OpenCL code generation for multi-device
//! heterogeneous architectures", section III).

#![cfg_attr(
    not(any(feature = "cuda", feature = "opencl")),
    allow(dead_code, reason = "without a framework no source is compiled")
)]

mod analysed;
mod application;
mod arrays;
mod data;
mod derive;
mod element;
mod error;
mod expression;
mod fault;
mod launch;
mod npy;
mod part;
mod plan;
mod prepared;
mod resolve;
mod schema;

pub use analysed::{AnalysedError, analysed};
pub use application::{Application, ArrayPart, Basis, Changes};
pub use derive::DeriveError;
pub use error::ApplicationError;
pub use fault::{Fault, Faults};
pub use prepared::{KernelRuns, Outcome, Prepared, Profile, Repeated};
