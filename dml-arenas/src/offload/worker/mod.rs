//! The worker: the code that runs in the worker process.
//!
//! ```text
//!   main ── hook ─┬─ started normally ─────▶ returns, and the program goes on
//!                 └─ started as a worker ──▶ greeting ──▶ control: Find, Load, Pipeline ──▶ the owner's end: exit
//!                                                               └─ thread per pipeline: Run ──▶ function ──▶ Ended
//! ```
//! 1. A worker ends when its owner closes the control channel, even while its functions run.
//! 2. An error or a panic of a function becomes an answer, and the worker goes on.
//! 3. An idle worker sleeps.
//! 4. A child that a function forks does not inherit the mappings of the views. If the child returns from the
//!    function, it exits.

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
/// In a normally started program this returns at once. In a worker, which DML starts from the same program,
/// it serves the registry's functions and does not return.
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

/// Serves as a worker, in a program that has no other purpose.
pub fn serve(registry: Registry) -> ! {
    serve::serve(registry)
}

/// Returns whether this program can be started again as a worker.
pub(super) fn is_hooked() -> bool {
    IS_HOOKED.load(Ordering::Relaxed)
}

/// Returns whether this process was started as a worker, as its `argv[0]` and its first argument tell.
fn is_worker() -> bool {
    let mut arguments = std::env::args_os();
    let name = arguments.next().is_some_and(|name| name == WORKER);
    name && arguments.next().is_some_and(|device| device.to_string_lossy().starts_with(DEVICE))
}
