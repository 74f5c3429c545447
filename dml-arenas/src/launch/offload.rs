//! Launchers of workers' functions.

use crate::OffloadArena;
use crate::offload::{Argument, Function, OffloadError};
use dml_core::internal::sync::Arc;
use dml_core::{
    Arena, DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform, RawBuffer,
    Region,
};
use std::ops::Range;

/// A launcher of a worker's function, which receives a [`Call`](super::Call).
#[derive(Debug)]
pub struct OffloadLauncher {
    arena: Arc<dyn Arena>,
    function: Function,
}

impl OffloadLauncher {
    /// Looks a function up in the worker whose memory the arena is, and creates a launcher of it; `None` for
    /// another arena.
    ///
    /// # Safety
    /// 1. The caller of `launch` keeps the grants until the fence has ended, as the scheduler does.
    /// 2. If the worker shares memory with this process, the function accesses only its arguments in that
    ///    memory. Functions in safe Rust cannot do otherwise.
    ///
    /// # Errors
    /// [`OffloadError`] if a worker has no such function, or is lost.
    pub unsafe fn new(arena: &Arc<dyn Arena>, function: &str) -> Result<Option<Self>, OffloadError> {
        let Some(worker) = arena.downcast_ref::<OffloadArena>() else { return Ok(None) };
        let function = worker.device().function(function)?;
        Ok(Some(Self { arena: arena.clone(), function }))
    }

    fn worker(&self) -> &OffloadArena {
        self.arena.downcast_ref().expect("checked by `new`")
    }
}

/// Looks a function up in every worker of a platform, and creates a launcher of each.
///
/// # Safety
/// As [`OffloadLauncher::new`].
///
/// # Errors
/// [`OffloadError`] if a worker has no such function, or is lost.
pub unsafe fn offload(
    platform: &Platform,
    function: &str,
) -> Result<Vec<(DeviceId, OffloadLauncher)>, OffloadError> {
    let mut launchers = Vec::new();
    for device in platform.device_ids() {
        let Some(arena) = platform.home(device).map(|home| platform.arena(home)) else { continue };
        // SAFETY: the caller guarantees both.
        let launcher = unsafe { OffloadLauncher::new(arena, function) }?;
        launchers.extend(launcher.map(|launcher| (device, launcher)));
    }
    Ok(launchers)
}

/// Some bytes of a buffer.
struct Bytes<'a>(&'a RawBuffer, &'a Range<u64>);

impl Region for Bytes<'_> {
    fn buffer(&self) -> &RawBuffer {
        self.0
    }

    fn bytes(&self) -> Range<u64> {
        self.1.clone()
    }
}

impl Launcher for OffloadLauncher {
    fn check(&self, _arguments: &[LaunchArg]) -> Result<(), Misfit> {
        // A function accepts any arguments, and reports a mismatch itself.
        Ok(())
    }

    fn label(&self) -> Arc<str> {
        self.function.name().clone()
    }

    /// A worker runs its functions one after the other.
    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let mut arguments = Vec::with_capacity(launch.arguments.len());
        for argument in launch.arguments {
            arguments.push(match argument {
                LaunchArg::Buffer { buffer, access, ranges } => {
                    let part = |bytes| {
                        let granted = grants.granted(&Bytes(buffer, bytes), *access);
                        // A request for no bytes yields no storage.
                        granted.map_err(LaunchError::not_started)
                    };
                    Argument::Parts(ranges.iter().map(part).collect::<Result<_, _>>()?, *access)
                }
                LaunchArg::Scalar(scalar) => Argument::Scalar(*scalar),
                LaunchArg::Bytes(bytes) => Argument::Bytes(bytes),
                LaunchArg::Local(_) => Argument::Nothing,
                other => {
                    return Err(LaunchError::not_started(format!(
                        "a function takes no {}",
                        other.describe()
                    )));
                }
            });
        }
        // SAFETY: the parts are granted, for writing where they are written, until the fence has ended (1 of
        // `new`). The caller of `new` guarantees which shared memory the function accesses (2).
        let launched = unsafe { self.worker().launch(&self.function, launch.items.clone(), &arguments) };
        launched.map_err(LaunchError::failed)
    }
}
