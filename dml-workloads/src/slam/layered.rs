//! The program on the data layer: each kernel is submitted to a device, and the layer brings its inputs.

use super::fusion::{Fusion, Order, Run};
use super::host::compute;
use super::{Engine, Frames, GROUPS, Image, Kernel, Launch, Size, SlamError, Stage, Value};
use crate::operations::Operations;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::prepare::Language;
use crate::prepare::language;
use bytemuck::cast_slice;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use dml_arenas::launch;
use dml_arenas::launch::HostLauncher;
use dml_core::{Buffer, DeviceId, Items, Launcher, Pattern, Platform};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The device of each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Makes vertices and normals of a frame.
    pub preprocess: DeviceId,
    /// Tracks the camera.
    pub track: DeviceId,
    /// Has the volume.
    pub model: DeviceId,
}

impl Placement {
    /// Places all stages on one device.
    #[must_use]
    pub const fn on(device: DeviceId) -> Self {
        Self { preprocess: device, track: device, model: device }
    }

    const fn device(&self, stage: Stage) -> DeviceId {
        match stage {
            Stage::Preprocess => self.preprocess,
            Stage::Track => self.track,
            Stage::Model => self.model,
        }
    }
}

/// A program on the data layer, with its kernels.
pub struct Layered {
    platform: Platform,
    host: DeviceId,
    placement: Placement,
    kernels: Vec<Arc<dyn Launcher>>,
}

impl fmt::Debug for Layered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layered").field("placement", &self.placement).finish_non_exhaustive()
    }
}

impl Layered {
    /// Builds the kernels for the devices of a placement.
    ///
    /// # Errors
    /// [`SlamError::NoKernels`] for a device that is neither the host nor one of OpenCL or CUDA, and
    /// [`SlamError::Build`].
    pub fn new(platform: &Platform, placement: Placement) -> Result<Self, SlamError> {
        let kernels = Kernel::ALL.iter().map(|&kernel| {
            let device = placement.device(kernel.stage());
            built(platform, device, kernel)
        });
        let kernels = kernels.collect::<Result<_, _>>()?;
        let host = platform.host().ok_or_else(|| no_kernels("a platform without a host"))?;
        Ok(Self { platform: platform.clone(), host, placement, kernels })
    }

    /// Returns whether there are kernels for a device.
    #[must_use]
    pub fn has_kernels(platform: &Platform, device: DeviceId) -> bool {
        platform.host() == Some(device) || language(platform, device).is_some()
    }

    /// Runs over all frames. Returns the run and its program, whose buffers can be looked at.
    ///
    /// # Errors
    /// [`SlamError`].
    pub fn run(&mut self, frames: &Frames, order: Order) -> Result<(Run, Finished<'_>), SlamError> {
        self.platform.counters().reset();
        let begun = Instant::now();
        let mut running = self.running(frames)?;
        let run = Fusion::run(&mut running, frames, (order, begun))?;
        Ok((run, Finished { running, size: frames.size() }))
    }

    /// Measures the stages of the first `count` frames apart, each from idle devices. Returns their times by
    /// frame. The first [`FIRST`](super::FIRST) frames are not tracked.
    ///
    /// # Errors
    /// [`SlamError`].
    pub fn stages(&mut self, frames: &Frames, count: usize) -> Result<Vec<[Duration; 3]>, SlamError> {
        let mut running = self.running(frames)?;
        Fusion::stages(&mut running, frames, count)
    }

    fn running(&self, frames: &Frames) -> Result<Running<'_>, SlamError> {
        let size = frames.size();
        let is_pinned = self.platform.arena_named("cuda_pinned").is_ok();
        let buffers = Image::all().map(|image| {
            let buffer = self.platform.buffer::<u8>(image.bytes(&size) as u64);
            match image {
                // What the host writes or reads once, a GPU uses in place if it can.
                Image::Sums | Image::Millimeters(_) if is_pinned => buffer.pattern(Pattern::ToAndFro),
                _ => buffer,
            }
            .build()
        });
        Ok(Running { program: self, buffers: buffers.collect::<Result<_, _>>()? })
    }
}

fn no_kernels(device: &str) -> SlamError {
    SlamError::NoKernels { device: device.to_owned() }
}

/// Builds a kernel for a device.
fn built(platform: &Platform, device: DeviceId, kernel: Kernel) -> Result<Arc<dyn Launcher>, SlamError> {
    if platform.host() == Some(device) {
        let threads = platform.device_desc(device).compute_units;
        return Ok(Arc::new(HostLauncher::by_team(threads, compute(kernel))?));
    }
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    if let Some(language) = language(platform, device) {
        let source = match language {
            Language::OpenClC => super::OPENCL_SOURCE,
            Language::CudaC => super::CUDA_SOURCE,
        };
        // SAFETY: the kernels touch only pixels and voxels below their last arguments, in images of these
        // sizes, and write only the buffers that the loop passes for writing.
        return Ok(unsafe { launch::kernel(platform, device, source, kernel.name()) }?);
    }
    Err(no_kernels(&platform.device_desc(device).name))
}

/// A program after its run.
#[derive(Debug)]
pub struct Finished<'a> {
    running: Running<'a>,
    size: Size,
}

impl Finished<'_> {
    /// Returns the volume: signed distances and weights. Distances are in units of 0.1 m / 32766. The voxel
    /// (x, y, z) is element `(z * edge + y) * edge + x`.
    ///
    /// # Errors
    /// [`SlamError::Acquire`].
    pub fn volume(&self) -> Result<Vec<[i16; 2]>, SlamError> {
        Ok(cast_slice(&self.running.contents(Image::Volume)?).to_vec())
    }

    /// Returns the normals that the last raycast has seen. The first component is -2 where there is none.
    ///
    /// # Errors
    /// [`SlamError::Acquire`], also after fewer than [`FIRST`](super::FIRST) frames, which have no raycast.
    pub fn normals(&self) -> Result<Vec<[f32; 3]>, SlamError> {
        Ok(cast_slice(&self.running.contents(Image::ReferenceNormals)?).to_vec())
    }

    /// Returns the size of the frames and the volume.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }
}

/// The program during a run, with its buffers.
#[derive(Debug)]
struct Running<'a> {
    program: &'a Layered,
    buffers: Vec<Buffer<u8>>,
}

impl Running<'_> {
    /// Returns the contents of a buffer.
    fn contents(&self, image: Image) -> Result<Vec<u8>, SlamError> {
        Ok(self.buffers[image.index()].read()?.to_vec())
    }
}

impl Engine for Running<'_> {
    fn send(&mut self, set: usize, frame: &[u16]) -> Result<(), SlamError> {
        let mut view = self.buffers[Image::Millimeters(set).index()].write()?;
        view.copy_from_slice(cast_slice(frame));
        Ok(view.release()?)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), SlamError> {
        let Layered { platform, placement, kernels, .. } = self.program;
        let kernel = launch.kernel;
        let mut submit = platform.submit(placement.device(kernel.stage()), &kernels[kernel as usize]);
        for (image, access) in launch.buffers {
            submit = submit.access(&self.buffers[image.index()], *access);
        }
        for value in launch.values {
            submit = match value {
                Value::U32(value) => submit.scalar(*value),
                Value::U64(value) => submit.scalar(*value),
                Value::F32(value) => submit.scalar(*value),
                Value::Matrix(values) => submit.bytes(cast_slice(values)),
            };
        }
        if kernel == Kernel::Reduce {
            submit = submit.bring_results(self.program.host);
        }
        let [columns, rows] = kernel.local_size();
        submit.items(Items::from(launch.items).in_groups([columns, rows, 0]))?;
        Ok(())
    }

    fn sums(&mut self) -> Result<[f32; GROUPS[0] * GROUPS[1]], SlamError> {
        let view = self.buffers[Image::Sums.index()].read()?;
        let sums: &[f32] = cast_slice(&view);
        Ok(std::array::from_fn(|at| sums[at]))
    }

    fn finish(&mut self) -> Result<(), SlamError> {
        let Placement { preprocess, track, model } = self.program.placement;
        Ok([preprocess, track, model].iter().try_for_each(|device| self.program.platform.settle(*device))?)
    }

    fn operations(&self) -> Operations {
        Operations::of(&self.program.platform)
    }
}

#[cfg(all(test, feature = "opencl"))]
mod tests {
    use super::super::TINY;
    use super::*;
    use dml_arenas::{Discover, DiscoverOptions};

    /// Part of the root of a component's mean square by which an element may differ.
    const NEAR: f64 = 0.05;
    /// Part of the elements that may differ more: pixels at the edge of a decision.
    const FAR: f64 = 0.01;

    /// Returns the contents of all images after six frames, of which two are tracked; `None` without the
    /// device.
    fn images(device: &str) -> Option<Vec<(Image, Vec<u8>)>> {
        let options = DiscoverOptions::default().only([device]).offload(0);
        let builder = Platform::builder().discover_with(&options);
        let found = builder.map_err(|error| error.to_string()).and_then(|builder| {
            let platform = builder.build().map_err(|error| error.to_string())?;
            let device = platform.device(device).map_err(|error| error.to_string())?;
            Ok((platform, device))
        });
        let (platform, device) = match found {
            Ok(found) => found,
            Err(error) => {
                let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
                assert!(!expected, "DML_EXPECT names opencl, and there is no device: {error}");
                return None;
            }
        };
        let frames = Frames::generate(TINY, 20, 1).unwrap().first(6);
        let mut program = Layered::new(&platform, Placement::on(device)).unwrap();
        let (_, finished) = program.run(&frames, Order::OneByOne).unwrap();
        Some(Image::all().map(|image| (image, finished.running.contents(image).unwrap())).collect())
    }

    /// Returns the components of an image, each with its elements.
    fn components(image: Image, bytes: &[u8]) -> Vec<Vec<f64>> {
        let floats =
            || cast_slice::<u8, f32>(bytes).iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let (elements, count): (Vec<f64>, usize) = match image {
            Image::Volume => {
                (cast_slice::<u8, i16>(bytes).iter().map(|value| f64::from(*value)).collect(), 2)
            }
            Image::Millimeters(_) => {
                (cast_slice::<u8, u16>(bytes).iter().map(|value| f64::from(*value)).collect(), 1)
            }
            Image::Meters(_) | Image::Depths(..) => (floats(), 1),
            Image::Sums => (floats(), GROUPS[1]),
            Image::Equations => {
                let results = cast_slice::<u8, i32>(bytes);
                let value = |(at, value)| if at % 8 == 0 { f64::from(results[at]) } else { value };
                (floats().into_iter().enumerate().map(value).collect(), 8)
            }
            _ => (floats(), 3),
        };
        (0..count).map(|first| elements.iter().skip(first).step_by(count).copied().collect()).collect()
    }

    /// Every kernel computes the same on the host and on an OpenCL device. Poses alone would
    /// hide a wrong one, because the tracking corrects it.
    #[test]
    fn every_image_is_the_same_on_both_kinds_of_devices() {
        let (host, Some(device)) = (images("cpu").unwrap(), images("opencl:0")) else {
            eprintln!("SKIPPED every_image_is_the_same_on_both_kinds_of_devices: no opencl device");
            return;
        };
        for ((image, one), (_, other)) in host.iter().zip(&device) {
            let pairs = components(*image, one).into_iter().zip(components(*image, other));
            for (component, (one, other)) in pairs.enumerate() {
                // At the end of the tracking, the products of error and derivatives cancel.
                if *image == Image::Sums && (1..7).contains(&component) {
                    continue;
                }
                let square: f64 = one.iter().map(|value| value * value).sum::<f64>() / one.len() as f64;
                let near = NEAR * square.sqrt();
                let far = one.iter().zip(&other).filter(|(one, other)| (*one - *other).abs() > near).count();
                let part = far as f64 / one.len() as f64;
                assert!(part <= FAR, "{part} of component {component} of {image:?}, more than {near}");
            }
        }
    }
}
