//! The loop over frames, the same on every engine.

use super::math::solve;
use super::{
    Engine, FILTER_M, FILTER_PIXELS, FIRST, GROUPS, INTEGRATE_EVERY, ITERATIONS, Image, Kernel, LEAST_COSINE,
    LEAST_PIXELS, LEVELS, Launch, MOST_DISTANCE_M, MOST_ERROR_M, MOST_WEIGHT, MU_M, PLANES_M, Pose,
    STEP_ENDS, Size, SlamError, Stage, Value, scene,
};
use crate::operations::Operations;
use crate::slam::Frames;
use dml_core::Access::{ReadOnly, ReadWrite, WriteInvalidate};
use std::time::{Duration, Instant};

/// What a run found out about one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Seen {
    /// Where the camera was.
    pub pose: Pose,
    /// Whether the frame was tracked; `None` for the first ones, which have no reference.
    pub is_tracked: Option<bool>,
    /// Iterations of the tracking.
    pub iterations: u32,
    /// Whether the frame changed the volume.
    pub is_integrated: bool,
    /// From the arrival of the frame to its pose and the launch of all that follows from it.
    pub latency: Duration,
}

/// A run over all frames.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// What was found out, by frame.
    pub seen: Vec<Seen>,
    /// The time from the first frame to the end of the last one.
    pub duration: Duration,
    /// The calls in that time.
    pub operations: Operations,
}

impl Run {
    /// Returns the number of frames that had a reference and were not tracked.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.seen.iter().filter(|seen| seen.is_tracked == Some(false)).count()
    }

    /// Returns the iterations of all frames.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.seen.iter().map(|seen| seen.iterations).sum()
    }
}

/// When the next frame is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// After the frame before it.
    OneByOne,
    /// While the frame before it is tracked.
    Ahead,
}

/// The state between two frames.
pub(super) struct Fusion<'a, E> {
    engine: &'a mut E,
    size: Size,
    pose: Pose,
    /// From where the reference is seen.
    reference: Option<Pose>,
}

impl<'a, E: Engine> Fusion<'a, E> {
    /// Starts with an empty volume.
    pub(super) fn new(engine: &'a mut E, size: Size) -> Result<Self, SlamError> {
        let (edge, rows) = (u64::from(size.edge), u64::from(size.edge).pow(2));
        engine.launch(&Launch {
            kernel: Kernel::ClearVolume,
            buffers: &[(Image::Volume, WriteInvalidate)],
            values: &[Value::U32(size.edge), Value::U64(rows)],
            items: [edge, rows],
        })?;
        Ok(Self { engine, size, pose: scene::pose(0, 1), reference: None })
    }

    /// Runs over all frames. The engine's buffers were made after `begun`.
    pub(super) fn run(
        engine: &'a mut E,
        frames: &Frames,
        (order, begun): (Order, Instant),
    ) -> Result<Run, SlamError> {
        let mut fusion = Self::new(engine, frames.size())?;
        let mut seen = Vec::with_capacity(frames.len());
        let mut arrived = Instant::now();
        if order == Order::Ahead && !frames.is_empty() {
            fusion.preprocess(0, frames.depths(0))?;
        }
        for frame in 0..frames.len() {
            let (set, mut next) = (frame % Image::SETS, arrived);
            match order {
                Order::OneByOne => {
                    arrived = Instant::now();
                    fusion.preprocess(set, frames.depths(frame))?;
                }
                Order::Ahead if frame + 1 < frames.len() => {
                    next = Instant::now();
                    fusion.preprocess((frame + 1) % Image::SETS, frames.depths(frame + 1))?;
                }
                Order::Ahead => {}
            }
            let mut found = fusion.follow(frame as u32, set)?;
            found.latency = arrived.elapsed();
            seen.push(found);
            arrived = next;
        }
        fusion.engine.finish()?;
        Ok(Run { seen, duration: begun.elapsed(), operations: fusion.engine.operations() })
    }

    /// Measures the stages of the first `count` frames apart, each from an idle engine. Returns their times
    /// by frame.
    pub(super) fn stages(
        engine: &'a mut E,
        frames: &Frames,
        count: usize,
    ) -> Result<Vec<[Duration; 3]>, SlamError> {
        let mut fusion = Self::new(engine, frames.size())?;
        let count = count.min(frames.len());
        let mut times = Vec::with_capacity(count);
        for frame in 0..count {
            let set = frame % Image::SETS;
            fusion.engine.finish()?;
            let times_of = Stage::ALL.map(|stage| {
                let begun = Instant::now();
                match stage {
                    Stage::Preprocess => fusion.preprocess(set, frames.depths(frame)),
                    Stage::Track => fusion.track(set, frame as u32).map(drop),
                    Stage::Model => fusion.model(set, frame as u32, true).map(drop),
                }?;
                fusion.engine.finish()?;
                Ok::<_, SlamError>(begun.elapsed())
            });
            let [preprocess, track, model] = times_of;
            times.push([preprocess?, track?, model?]);
        }
        Ok(times)
    }

    /// Sends a frame, and makes depths, vertices and normals of it at all levels.
    fn preprocess(&mut self, set: usize, frame: &[u16]) -> Result<(), SlamError> {
        self.engine.send(set, frame)?;
        let meters = (Image::Meters(set), ReadOnly);
        self.image(
            Kernel::Mm2Meters,
            0,
            &[(Image::Meters(set), WriteInvalidate), (Image::Millimeters(set), ReadOnly)],
            &[],
        )?;
        let weight = |pixels: f32| (-pixels * pixels / (2.0 * FILTER_PIXELS * FILTER_PIXELS)).exp();
        let inverse_square = 1.0 / (2.0 * FILTER_M * FILTER_M);
        self.image(
            Kernel::BilateralFilter,
            0,
            &[(Image::Depths(set, 0), WriteInvalidate), meters],
            &[Value::F32(weight(1.0)), Value::F32(weight(2.0)), Value::F32(inverse_square)],
        )?;
        for level in 1..LEVELS {
            self.image(
                Kernel::HalfSample,
                level,
                &[(Image::Depths(set, level), WriteInvalidate), (Image::Depths(set, level - 1), ReadOnly)],
                &[Value::F32(3.0 * FILTER_M)],
            )?;
        }
        for level in 0..LEVELS {
            let camera = self.size.camera().halved(level as u32).values().map(Value::F32);
            self.image(
                Kernel::Depth2Vertex,
                level,
                &[(Image::Vertices(set, level), WriteInvalidate), (Image::Depths(set, level), ReadOnly)],
                &camera,
            )?;
            self.image(
                Kernel::Vertex2Normal,
                level,
                &[(Image::Normals(set, level), WriteInvalidate), (Image::Vertices(set, level), ReadOnly)],
                &[],
            )?;
        }
        Ok(())
    }

    /// Tracks a prepared frame, and brings it into the volume.
    fn follow(&mut self, frame: u32, set: usize) -> Result<Seen, SlamError> {
        let (is_tracked, iterations) = self.track(set, frame)?;
        let is_integrated = self.model(set, frame, is_tracked == Some(true))?;
        Ok(Seen { pose: self.pose, is_tracked, iterations, is_integrated, latency: Duration::ZERO })
    }

    /// Finds the pose, from the coarsest level to the finest. Returns whether it was found (`None` without a
    /// reference), and the number of iterations.
    fn track(&mut self, set: usize, frame: u32) -> Result<(Option<bool>, u32), SlamError> {
        let Some(reference) = self.reference.filter(|_| frame >= FIRST) else { return Ok((None, 0)) };
        let projection = self.size.camera().projection(&reference.inverse());
        let (before, mut iterations, mut sums) = (self.pose, 0, [0.0; 32]);
        for level in (0..LEVELS).rev() {
            for _ in 0..ITERATIONS[level] {
                sums = self.iteration(set, level, &projection)?;
                iterations += 1;
                let step = solve(&sums);
                self.pose = Pose::exp(step).after(&self.pose);
                if step.iter().map(|value| value * value).sum::<f64>().sqrt() < STEP_ENDS {
                    break;
                }
            }
        }
        let count = sums[28];
        let is_tracked = count > 0.0
            && (sums[0] / count).sqrt() <= MOST_ERROR_M
            && count >= LEAST_PIXELS * self.size.pixels(0) as f64;
        if !is_tracked {
            self.pose = before;
        }
        Ok((Some(is_tracked), iterations))
    }

    /// Compares a level with the reference, and returns the sums over all pixels.
    fn iteration(
        &mut self,
        set: usize,
        level: usize,
        projection: &[f32; 12],
    ) -> Result<[f64; 32], SlamError> {
        let [width, height] = self.size.of_level(level);
        self.image(
            Kernel::Track,
            level,
            &[
                (Image::Equations, WriteInvalidate),
                (Image::Vertices(set, level), ReadOnly),
                (Image::Normals(set, level), ReadOnly),
                (Image::ReferenceVertices, ReadOnly),
                (Image::ReferenceNormals, ReadOnly),
            ],
            &[
                Value::Matrix(self.pose.matrix()),
                Value::Matrix(*projection),
                Value::F32(MOST_DISTANCE_M),
                Value::F32(LEAST_COSINE),
                Value::U32(self.size.width),
                Value::U32(self.size.height),
            ],
        )?;
        let [groups, sums, members] = GROUPS;
        self.engine.launch(&Launch {
            kernel: Kernel::Reduce,
            buffers: &[(Image::Sums, WriteInvalidate), (Image::Equations, ReadOnly)],
            values: &[Value::U32(width), Value::U32(height)],
            items: [(groups * members) as u64, 1],
        })?;
        let by_group = self.engine.sums()?;
        Ok(std::array::from_fn(|sum| by_group.iter().skip(sum).step_by(sums).copied().map(f64::from).sum()))
    }

    /// Brings a frame into the volume, and looks at that from its pose. Returns whether the volume changed.
    fn model(&mut self, set: usize, frame: u32, is_tracked: bool) -> Result<bool, SlamError> {
        let Size { width, height, edge } = self.size;
        let camera = self.size.camera().values().map(Value::F32);
        let [focal_x, focal_y, centre_x, centre_y] = camera;
        let voxel = Value::F32(self.size.voxel());
        let is_integrated = is_tracked && frame.is_multiple_of(INTEGRATE_EVERY) || frame < FIRST;
        if is_integrated {
            let rows = u64::from(edge).pow(2);
            self.engine.launch(&Launch {
                kernel: Kernel::Integrate,
                buffers: &[(Image::Volume, ReadWrite), (Image::Meters(set), ReadOnly)],
                values: &[
                    Value::Matrix(self.pose.inverse().matrix()),
                    focal_x,
                    focal_y,
                    centre_x,
                    centre_y,
                    voxel,
                    Value::F32(MU_M),
                    Value::F32(MOST_WEIGHT),
                    Value::U32(width),
                    Value::U32(height),
                    Value::U32(edge),
                    Value::U64(rows),
                ],
                items: [u64::from(edge), rows],
            })?;
        }
        if frame + 1 >= FIRST {
            let [near, far] = PLANES_M;
            self.reference = Some(self.pose);
            self.image(
                Kernel::Raycast,
                0,
                &[
                    (Image::ReferenceVertices, WriteInvalidate),
                    (Image::ReferenceNormals, WriteInvalidate),
                    (Image::Volume, ReadOnly),
                ],
                &[
                    Value::Matrix(self.pose.matrix()),
                    focal_x,
                    focal_y,
                    centre_x,
                    centre_y,
                    voxel,
                    Value::F32(near),
                    Value::F32(far),
                    voxel,
                    Value::F32(0.75 * MU_M),
                    Value::U32(edge),
                ],
            )?;
        }
        Ok(is_integrated)
    }

    /// Launches a kernel over the pixels of a level. Its width and height are the last arguments.
    fn image(
        &mut self,
        kernel: Kernel,
        level: usize,
        buffers: &[(Image, dml_core::Access)],
        values: &[Value],
    ) -> Result<(), SlamError> {
        const MOST: usize = 16;

        let [width, height] = self.size.of_level(level);
        let mut all = [Value::U32(width); MOST];
        all[..values.len()].copy_from_slice(values);
        all[values.len() + 1] = Value::U64(height.into());
        let values = &all[..values.len() + 2];
        self.engine.launch(&Launch { kernel, buffers, values, items: [width.into(), height.into()] })
    }
}
