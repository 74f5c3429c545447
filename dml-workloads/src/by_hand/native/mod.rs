//! The applications of `examples/apps` as complete programs against OpenCL, to compare lengths and times.
//!
//! Each runs on one device. It allocates and compiles first. What it measures begins with the inputs in main
//! memory, and ends with the results there.

mod matmul;
mod nbody;
mod stencil2d;

pub use matmul::matmul;
pub use nbody::nbody;
pub use stencil2d::stencil2d;

use super::{ByHandError, home};
use dml_arenas::OpenClArena;
use dml_core::{DeviceId, Platform};
use opencl3::device::Device;
use std::ptr::without_provenance_mut;
use std::time::Duration;

/// The sources of the programs, by name.
pub const SOURCES: [(&str, &str); 3] = [
    ("stencil2d", include_str!("stencil2d.rs")),
    ("matmul", include_str!("matmul.rs")),
    ("nbody", include_str!("nbody.rs")),
];

/// The time of a program, and its result.
pub type Timed = (Duration, Vec<f32>);

/// Returns the OpenCL device behind a device of a platform.
///
/// # Errors
/// [`ByHandError::Device`] if it has none.
pub fn device(platform: &Platform, device: DeviceId) -> Result<Device, ByHandError> {
    let id = home::<OpenClArena>(platform, device)?.device().0;
    Ok(Device::new(without_provenance_mut(id)))
}
