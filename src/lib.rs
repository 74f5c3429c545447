//! DML, a data-management layer for programs that run on several memories at once.
//!
//! An application names a *buffer*; a kernel on any device *acquires* it (to read, to overwrite or to change it, whole
//! or a range), finds the latest contents in its own memory, runs, and *releases* it. DML keeps the copies coherent,
//! finds the cheapest way to bring data from where it is valid to where it is needed, and never lets two conflicting
//! kernels in. On top of it a co-execution scheduler splits one data-parallel kernel over every device of the machine.
//!
//! This crate gathers the layers; each is a crate of its own for those who embed only a part:
//!
//! | crate | what it is |
//! |---|---|
//! | [`core`] | buffers, the abstract machine, planning, waiting |
//! | [`arenas`] | main memory, OpenCL, arenas for tests; what this machine has |
//! | [`scheduler`] | packages, policies, units, metrics |
//! | `timeline` | a run as a value that is kept and looked at |
//!
//! ```
//! use dml::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let platform = Platform::builder().discover()?.build()?; // every memory found on this machine
//! let cpu = platform.device("cpu")?;
//! let a = platform.buffer_from(vec![1.5f32; 1000])?; // the application's storage, moved in
//! let c = platform.buffer::<f32>(1000).build()?; // nothing allocated yet
//!
//! let mut grants = platform.acquire(cpu).read(&a).write(&c.range(0..500)).wait()?;
//! let mut views = grants.views()?;
//! let [source, target] = &mut views[..] else { unreachable!("two were asked for") };
//! target.slice_mut::<f32>()?.copy_from_slice(&source.slice::<f32>()?[..500]);
//! drop(views);
//! grants.release()?; // what was written is committed
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[cfg(all(doctest, feature = "offload", feature = "opencl", target_os = "linux"))]
mod readme;

pub use dml_arenas as arenas;
pub use dml_arenas::launch;
pub use dml_core as core;
pub use dml_core::bytemuck;
pub use dml_scheduler as scheduler;
#[cfg(feature = "timeline")]
pub use dml_timeline as timeline;

pub use dml_core::{
    Access, AcquireError, ArenaId, Buffer, DeviceId, Grants, Platform, PlatformBuilder, RawBuffer,
};
pub use dml_scheduler::Kernel;

/// What most programs need. [`Kernel`] is no part of it, because frameworks have a type of that name.
pub mod prelude {
    pub use dml_arenas::launch;
    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub use dml_arenas::offload::{self, Registry};
    pub use dml_arenas::{Discover, DiscoverOptions};
    pub use dml_core::{
        Access, Acquire, AcquireError, Buffer, DeviceId, Grants, KernelId, Pattern, Platform, Prefetch,
        RawBuffer, ReadView, Region, WriteView,
    };
    pub use dml_scheduler::{
        Argument, Coexecutor, Footprint, Package, PolicySpec, Running, Variant, check_footprints,
    };
}
