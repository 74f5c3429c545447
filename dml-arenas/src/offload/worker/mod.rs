//! The worker: the code that runs in the process at the other end.
//!
//! ```text
//!   main ── hook ─┬─ started by a person ──▶ returns, and the program goes on
//!                 └─ started as a worker ──▶ greeting ──▶ control: Find, Load, Pipeline ──▶ the owner's end: exit
//!                                                               └─ thread per pipeline: Run ──▶ function ──▶ Ended
//! ```
//! 1. A worker ends when its owner closes the control channel, even while its functions run.
//! 2. An error or a panic of a function becomes an answer, and the worker goes on.
//! 3. A worker sleeps when it has nothing to do.
//! 4. A child that a function forks does not have the memory of the views. A child that returns from the function ends
//!    there.

mod call;
mod library;
mod registry;
mod serve;

pub use library::{CCall, CScalar, CScalarValue, CValue, CView};
pub use registry::Registry;

use super::process::{DEVICE, WORKER};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_HOOKED: AtomicBool = AtomicBool::new(false);

/// Makes a program its own worker. Call this first in `main`, before threads, arguments or output.
///
/// In a program started by a person this returns at once. In the process that DML starts from the same program it
/// serves the registry's functions and does not return.
///
/// # Examples
/// ```no_run
/// use dml_arenas::launch::{Call, ComputeError};
/// use dml_arenas::offload::{self, Registry};
///
/// fn scale(call: &mut Call<'_>) -> Result<(), ComputeError> {
///     let factor: f32 = call.scalar(0)?;
///     call.part(1)?.slice_mut::<f32>()?.iter_mut().for_each(|value| *value *= factor);
///     Ok(())
/// }
///
/// fn main() {
///     offload::hook(Registry::new().with("scale", scale));
///     // ... the program
/// }
/// ```
pub fn hook(registry: Registry) {
    if is_worker() {
        serve::serve(registry);
    }
    IS_HOOKED.store(true, Ordering::Relaxed);
}

/// Serves as a worker, for a program that does nothing else.
pub fn serve(registry: Registry) -> ! {
    serve::serve(registry)
}

/// Returns whether this program can be started again as a worker.
pub(super) fn is_hooked() -> bool {
    IS_HOOKED.load(Ordering::Relaxed)
}

/// Returns whether this process was started as a worker: by its name, which a person would not choose, and its only
/// argument.
fn is_worker() -> bool {
    let mut arguments = std::env::args_os();
    let name = arguments.next().is_some_and(|name| name == WORKER);
    name && arguments.next().is_some_and(|device| device.to_string_lossy().starts_with(DEVICE))
}
