//! The program as a good programmer writes it directly on OpenCL or CUDA: one in-order queue, buffers on the
//! device, and a read of the sums in each iteration.

use super::fusion::{Fusion, Order};
use super::{Engine, Frames, GROUPS, Image, Kernel, Launch, Run, SlamError, Value};
use crate::by_hand::{self, Arg, ByHandError, Calls, Device, Finished, Host, unusable};
use crate::operations::Operations;
use crate::prepare::Language;
use bytemuck::{cast_slice, cast_slice_mut};
use dml_core::{DeviceId, Platform};
use std::fmt;
use std::time::Instant;

/// A program without the data layer, on one device.
pub struct Hand(Box<dyn Program>);

impl fmt::Debug for Hand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hand")
    }
}

impl Hand {
    /// Builds the kernels for a device of OpenCL or CUDA. Its buffers are made for each run.
    ///
    /// # Errors
    /// [`SlamError::Hand`].
    pub fn new(platform: &Platform, device: DeviceId) -> Result<Self, SlamError> {
        Ok(Self(match by_hand::language(platform, device) {
            #[cfg(feature = "opencl")]
            Some(Language::OpenClC) => {
                Box::new(Built::<by_hand::opencl::OpenCl>::new(platform, device, super::OPENCL_SOURCE)?)
            }
            #[cfg(feature = "cuda")]
            Some(Language::CudaC) => {
                Box::new(Built::<by_hand::cuda::Cuda>::new(platform, device, super::CUDA_SOURCE)?)
            }
            _ => return Err(unusable(platform, device, "there is no program for its memory").into()),
        }))
    }

    /// Runs over all frames.
    ///
    /// # Errors
    /// [`SlamError::Hand`].
    pub fn run(&mut self, frames: &Frames) -> Result<Run, SlamError> {
        self.0.run(frames)
    }
}

trait Program {
    fn run(&mut self, frames: &Frames) -> Result<Run, SlamError>;
}

/// The device with its kernels.
struct Built<D: Device> {
    kernels: Vec<D::Kernel>,
    device: D,
}

impl<D: Device> Built<D> {
    fn new(platform: &Platform, device: DeviceId, source: &str) -> Result<Self, ByHandError> {
        let device = D::open(platform, device)?;
        let kernels = Kernel::ALL.iter().map(|kernel| device.kernel(source, kernel.name()));
        Ok(Self { kernels: kernels.collect::<Result<_, _>>()?, device })
    }
}

impl<D: Device> Program for Built<D> {
    fn run(&mut self, frames: &Frames) -> Result<Run, SlamError> {
        let size = frames.size();
        // This call also makes the context of CUDA current on this thread.
        self.device.finish()?;
        self.device.calls().set(Calls::default());
        let begun = Instant::now();
        let buffers =
            Image::all().map(|image| self.device.buffer(image.bytes(&size))).collect::<Result<_, _>>()?;
        let sums = self.device.page_locked(&[0.0; GROUPS[0] * GROUPS[1]])?;
        let mut queued =
            Queued { _finished: Finished(&self.device), buffers, sums, built: self, _frames: frames };
        Fusion::run(&mut queued, frames, (Order::OneByOne, begun))
    }
}

/// The program during a run. Its queue is finished before the buffers are dropped.
struct Queued<'a, D: Device> {
    _finished: Finished<'a, D>,
    buffers: Vec<D::Buffer>,
    sums: Host<f32>,
    built: &'a Built<D>,
    _frames: &'a Frames,
}

impl<D: Device> Engine for Queued<'_, D> {
    fn send(&mut self, set: usize, frame: &[u16]) -> Result<(), SlamError> {
        let buffer = &mut self.buffers[Image::Millimeters(set).index()];
        // SAFETY: the frames do not change, and outlive the queue's last command.
        Ok(unsafe { self.built.device.send(buffer, cast_slice(frame)) }?)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), SlamError> {
        let buffers = launch.buffers.iter().map(|(image, _)| Arg::Buffer(&self.buffers[image.index()]));
        let values = launch.values.iter().map(|value| match *value {
            Value::U32(value) => Arg::U32(value),
            Value::U64(value) => Arg::U64(value),
            Value::F32(value) => Arg::F32(value),
            Value::Matrix(value) => Arg::Matrix(value),
        });
        let arguments: Vec<_> = buffers.chain(values).collect();
        let (kernel, local) = (&self.built.kernels[launch.kernel as usize], launch.kernel.local_size());
        // SAFETY: the buffers have the sizes of their images, which the kernels do not leave. They live until
        // the queue is finished.
        Ok(unsafe { self.built.device.launch(kernel, &arguments, launch.items, local) }?)
    }

    fn sums(&mut self) -> Result<[f32; GROUPS[0] * GROUPS[1]], SlamError> {
        let (device, buffer) = (&self.built.device, &mut self.buffers[Image::Sums.index()]);
        // SAFETY: the queue is finished in this statement.
        unsafe { device.fetch(buffer, cast_slice_mut(&mut self.sums)) }.and(device.finish())?;
        Ok(std::array::from_fn(|at| self.sums[at]))
    }

    fn finish(&mut self) -> Result<(), SlamError> {
        Ok(self.built.device.finish()?)
    }

    fn operations(&self) -> Operations {
        self.built.device.calls().get().into()
    }
}
