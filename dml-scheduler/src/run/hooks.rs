//! Hooks that an application can add to a co-execution.

use crate::base::package::{Package, UnitId};
use dml_core::DeviceId;
use dml_core::internal::sync::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Callbacks of an application during a co-execution (the papers' extended mode).
///
/// The callbacks of a unit run on its thread; those of the director run on the thread that runs the
/// co-execution. [`package_done`](Hooks::package_done) runs on the unit's thread, or on the thread that
/// collects its results.
///
/// # What a hook may do
/// - **H-1** A hook may panic without disturbing the run. After the run has ended, the first panic resumes in
///   the caller of [`run_with`](crate::Coexecutor::run_with), or in the thread that waits for a started run.
///   (`hostile` `a_hook_that_panics_is_heard_after_the_run`)
/// - **H-2** A hook may call core and the scheduler. They hold no lock while they call it, and no buffer on
///   its thread. It may use the kernel's buffers, and run kernels over them. (`pipelines`
///   `a_hook_may_compute_with_what_the_run_has_done`)
pub trait Hooks: Sync {
    /// Called before any unit starts.
    fn director_start(&self) {}

    /// Called after every unit has ended.
    fn director_end(&self) {}

    /// Called before a unit takes its first package, and again before each further round of the unit.
    ///
    /// A further round follows when results of another device were lost, or when other units could not
    /// finish.
    fn unit_start(&self, unit: UnitId, device: DeviceId) {
        let _ = (unit, device);
    }

    /// Called after a unit's last package, and again after each further round of the unit.
    fn unit_end(&self, unit: UnitId, device: DeviceId) {
        let _ = (unit, device);
    }

    /// Called when a package's results are at their destination. Items whose results are lost later come in
    /// another package.
    fn package_done(&self, package: &Package, device: DeviceId) {
        let _ = (package, device);
    }
}

/// No hooks: the papers' simple mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Wraps hooks, and defers their panics until the run has ended.
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
            // Later panics are leaked, because dropping their payload may panic.
            std::mem::forget(later);
        }
    }

    /// Resumes the first panic of a hook, if there was one.
    pub(crate) fn end(self) {
        if let Some(panic) = self.into_panic() {
            resume_unwind(panic);
        }
    }

    /// Returns the first panic of a hook.
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
