//! The framework: tasks with an implementation for each kind of device.
//!
//! ```text
//!   Definition ──define──▶ Task ──spawn──▶ Submission
//!   its sources    a kernel per device        └─ wait, or read a buffer
//! ```
//! It tracks no dependencies. DML orders the tasks by the buffers that they name, and moves the bytes.

use dml::bytemuck::Pod;
use dml::core::Submit;
use dml::launch::{Call, ComputeError, HostLauncher, OffloadLauncher};
use dml::prelude::*;
use std::{collections::BTreeMap, error::Error, fmt, sync::Arc};

/// One computation, in a language for each kind of device. Its last argument is the number of items.
pub(crate) struct Definition {
    /// The name of the task, of its kernels and of the workers' function.
    pub(crate) name: &'static str,
    /// The implementation for the host and for workers.
    pub(crate) rust: fn(&mut Call<'_>) -> Result<(), ComputeError>,
    /// OpenCL C.
    pub(crate) opencl: &'static str,
    /// CUDA C.
    pub(crate) cuda: &'static str,
}

/// A task that was built for every device.
pub(crate) struct Task {
    name: &'static str,
    kernels: BTreeMap<DeviceId, Arc<dyn Launcher>>,
}

/// Why a task could not be built or submitted.
#[derive(Debug)]
pub(crate) struct TaskError {
    task: &'static str,
    device: Arc<str>,
    cause: Box<dyn Error>,
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} on {}: {}", self.task, self.device, self.cause)
    }
}

impl Error for TaskError {}

/// The devices of this machine, for tasks.
pub(crate) struct Runtime {
    pub(crate) platform: Platform,
    pub(crate) devices: Vec<DeviceId>,
}

impl Runtime {
    /// Finds the devices. Must come first in `main`: in a worker process the call does not return.
    pub(crate) fn start(definitions: &[Definition]) -> Result<Self, Box<dyn Error>> {
        let add = |registry: Registry, task: &Definition| registry.with(task.name, task.rust);
        offload::hook(definitions.iter().fold(Registry::new(), add));
        let platform = Platform::builder().discover()?.build()?;
        Ok(Self { devices: platform.device_ids().collect(), platform })
    }

    /// Builds a task for every device.
    pub(crate) fn define(&self, definition: &Definition) -> Result<Task, TaskError> {
        let build = |&device| match self.build(definition, device) {
            Ok(kernel) => Ok((device, kernel)),
            Err(cause) => Err(self.error(definition.name, device, cause)),
        };
        let kernels = self.devices.iter().map(build).collect::<Result<_, _>>()?;
        Ok(Task { name: definition.name, kernels })
    }

    fn build(&self, task: &Definition, device: DeviceId) -> Result<Arc<dyn Launcher>, Box<dyn Error>> {
        let arena = self.platform.arena(self.platform.home(device).ok_or("no kernels run on it")?);
        // SAFETY: sources and functions are part of this program. They touch only the elements of the buffers
        // that they are given, none past the number of items. A submission keeps its grants until its end.
        unsafe {
            Ok(match arena.desc().kind.0 {
                "opencl" => launch::kernel(&self.platform, device, task.opencl, task.name)?,
                "cuda" => launch::kernel(&self.platform, device, task.cuda, task.name)?,
                "offload" => Arc::new(OffloadLauncher::new(arena, task.name)?.ok_or("it is not a worker")?),
                _ => Arc::new(HostLauncher::by_team(1, task.rust)?),
            })
        }
    }

    /// Submits a task to a device. `arguments` passes its buffers and scalars.
    #[track_caller]
    pub(crate) fn spawn(
        &self,
        task: &Task,
        device: DeviceId,
        items: u64,
        arguments: impl FnOnce(Submit<'_>) -> Submit<'_>,
    ) -> Result<Submission, TaskError> {
        let submit = self.platform.submit(device, &task.kernels[&device]).label(task.name);
        let submission = arguments(submit).scalar(items).items(items);
        submission.map_err(|cause| self.error(task.name, device, cause))
    }

    /// Waits for the tasks that write a buffer, and returns its contents. The error names a task that failed.
    pub(crate) fn read<T: Pod>(&self, buffer: &Buffer<T>) -> Result<ReadView<T>, Box<dyn Error>> {
        buffer.read().or_else(|error| {
            self.devices.iter().try_for_each(|device| self.platform.settle(*device))?;
            Err(error.into())
        })
    }

    fn error(&self, task: &'static str, device: DeviceId, cause: impl Into<Box<dyn Error>>) -> TaskError {
        TaskError { task, device: self.platform.device_desc(device).name.clone(), cause: cause.into() }
    }
}
