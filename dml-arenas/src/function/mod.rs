//! Kernels that are functions: their arguments, on the host or in a worker, and the threads that they may
//! use.
//!
//! ```text
//!   kernel:  read(x)  scalar(a)  write(out)        the signature
//!               │         │          │
//!   call:     part(0)  scalar(1)  part(2)          the same positions on the host and in workers
//! ```
//! A function that takes a [`Call`] runs on the host by [`host`](crate::launch::host) and in workers by a
//! `Registry`, unchanged.

mod call;
mod elements;
mod pools;
mod team;
mod view;

pub use call::Call;
pub(crate) use call::Given;
pub use elements::{Elements, ElementsMut};
pub use pools::HostError;
pub(crate) use pools::Pools;
pub use team::Team;
#[cfg(all(feature = "offload", target_os = "linux"))]
pub(crate) use view::Mapped;
pub use view::{Part, View};

/// The error of a function that failed: any error, or a message.
pub type ComputeError = Box<dyn std::error::Error + Send + Sync>;
