//! Hooks that an application can add to a co-execution.

use crate::base::package::{Package, UnitId};
use dml_core::DeviceId;
use dml_core::sync::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Callbacks of an application during a co-execution (the papers' extended mode). The methods for a unit run on its
/// thread; those for the director run on the caller's thread. [`package_done`](Hooks::package_done) runs on a unit's
/// thread, or on the one that brings its results.
///
/// # What a hook may do
/// - **H-1** A hook may panic, which does not disturb the run. When the run has ended, the first panic continues in the caller of
///   [`run_with`](crate::Coexecutor::run_with), or in whoever waits for a run that was started. (`hostile` `a_hook_that_panics_is_heard_after_the_run`)
/// - **H-2** A hook may call back into core and the scheduler, which hold no lock while they call it, nor any buffer on its
///   thread. It may use the kernel's buffers, and run kernels over them. (`pipelines`
///   `a_hook_may_compute_with_what_the_run_has_done`)
pub trait Hooks: Sync {
    /// Called before any unit starts.
    fn director_start(&self) {}

    /// Called after every unit has ended.
    fn director_end(&self) {}

    /// Called before a unit takes its first package, and again if the unit goes on because another device's results
    /// were lost.
    fn unit_start(&self, unit: UnitId, device: DeviceId) {
        let _ = (unit, device);
    }

    /// Called after a unit's last package, and again if the unit went on.
    fn unit_end(&self, unit: UnitId, device: DeviceId) {
        let _ = (unit, device);
    }

    /// Called when a package's results are where they belong. Items whose results are lost later come in another package.
    fn package_done(&self, package: &Package, device: DeviceId) {
        let _ = (package, device);
    }
}

/// No hooks: the papers' simple mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Wraps hooks, and holds their panics back until the run has ended.
pub(crate) struct Patient<'a> {
    hooks: &'a dyn Hooks,
    first_panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<'a> Patient<'a> {
    pub(crate) fn new(hooks: &'a dyn Hooks) -> Self {
        Self { hooks, first_panic: Mutex::new(None) }
    }

    fn call(&self, hook: impl FnOnce(&dyn Hooks)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| hook(self.hooks))) {
            let mut first = self.first_panic.lock();
            let later = if first.is_none() { first.replace(panic) } else { Some(panic) };
            drop(first);
            // A panic that is not passed on is forgotten, because dropping it may panic again.
            std::mem::forget(later);
        }
    }

    /// Ends the run, and continues the first panic of a hook.
    pub(crate) fn end(self) {
        if let Some(panic) = self.into_panic() {
            resume_unwind(panic);
        }
    }

    /// Ends the run, and returns the first panic of a hook.
    pub(crate) fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.first_panic.into_inner()
    }
}

impl Hooks for Patient<'_> {
    fn director_start(&self) {
        self.call(|hooks| hooks.director_start());
    }

    fn director_end(&self) {
        self.call(|hooks| hooks.director_end());
    }

    fn unit_start(&self, unit: UnitId, device: DeviceId) {
        self.call(|hooks| hooks.unit_start(unit, device));
    }

    fn unit_end(&self, unit: UnitId, device: DeviceId) {
        self.call(|hooks| hooks.unit_end(unit, device));
    }

    fn package_done(&self, package: &Package, device: DeviceId) {
        self.call(|hooks| hooks.package_done(package, device));
    }
}
