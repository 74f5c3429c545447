//! Nbody: one step of bodies that attract each other. It is all-to-all: every item reads the whole of an
//! input.
//!
//! ```text
//!   positions (all) ────┐                              ┌─▶ new_positions[items]
//!   velocities[items] ──┴─▶ pull of every other body ──┴─▶ new_velocities[items]
//! ```
//!
//! A body is `(x, y, z, mass)`. The pull of another body is its `mass / (d² + softening)^(3/2)` times the
//! vector to it.
//!
//! Invariants:
//!
//! 1. **The order of the sum of pulls is fixed**: plain sums of blocks of 16 bodies, then a compensated
//!    (Kahan) sum of the blocks. So the error does not grow with the number of bodies, and one missing body
//!    shows among very many.
//! 2. **Nothing divides by zero**: the softening is positive. So the pull of a body on itself is zero.
//!
//! # Error bound
//! For the pull of one body, with `u` the unit roundoff (half a unit in the last place):
//!
//! | quantity | relative error |
//! |---|---|
//! | the vector to the body, along each axis | u |
//! | its square plus the softening: two factors, a product, three sums of non-negative terms | 6u |
//! | the reciprocal root: half of that, plus 2 units (OpenCL's limit of `rsqrt`; a root and a division on the host have less) | 3u + 4u |
//! | its cube times the mass: three times that, plus three products | 24u |
//! | times the vector | 26u |
//!
//! A block adds at most `15u` of the magnitudes, and the sum of blocks `2u`. So the error of the pull is at
//! most `43u` times the sum `A` of the magnitudes along its axis, for any number of bodies. The new velocity
//! adds the rounding errors of two operations, and the new position those of four. A contracted operation has
//! one rounding less.
//!
//! # Source
//! The benchmark of the co-execution papers with two buffers read and two written, groups of 64: 409,600
//! bodies in "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime", 32,768 in
//! "Automatic OpenCL code generation for multi-device heterogeneous architectures". Both follow the AMD APP
//! SDK, which uses plain sums.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::prepare::{
    Arguments, Groups, Input, Kind, Outputs, PrepareError, Program, Recipe, Source, memory_for,
};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::OnceLock;

/// Work-items of one OpenCL work-group, and bodies of a tile.
pub const LOCAL_SIZE: u64 = 64;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const float4* positions`, `global const float4* velocities`,
/// `global float4* new_positions`, `global float4* new_velocities`, `uint bodies`, `float softening`,
/// `float step`, `ulong end` (the kernel skips items from `end` on). The buffers are whole. The global offset
/// is the first item of the package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/nbody.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/nbody.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "nbody";

/// Softening: added to the square of each distance.
pub const SOFTENING: f32 = 1.0 / 256.0;
/// Time of a step.
pub const STEP: f32 = 1.0 / 64.0;

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Bodies.
    pub items: u64,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { items: 701 };
/// Takes about a second on one core. Half of the smaller published size.
pub const SMALL: Size = Size { items: 16_384 };
/// The larger published size.
pub const PAPER: Size = Size { items: 409_600 };

/// Bodies of a block, whose pulls are summed without compensation.
const BLOCK: usize = 16;
/// Bodies that the host kernel processes in parallel lanes.
const LANES: usize = 16;
/// Maximum number of bodies per job of the host kernel.
const BODIES_PER_JOB: usize = 32;
/// Expected total mass of the bodies: large enough for pulls that change a velocity by its own magnitude.
const MASS: f32 = 64.0;
/// Unit roundoff of single precision: half a unit in the last place, relative.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// Values along the three axes, each with its error bound.
type Bounded = [(f64, f64); 3];

/// The bodies of one step.
#[derive(Clone, Debug)]
pub struct Problem {
    positions: Vec<[f32; 4]>,
    velocities: Vec<[f32; 4]>,
    /// New positions and velocities of the reference. They are computed on first use and cached, because they
    /// take as long as the step.
    expected: OnceLock<Vec<[Bounded; 2]>>,
}

impl Problem {
    /// Maximum number of bodies. The neglected rounding errors are still insignificant.
    pub const MOST_BODIES: u64 = 1 << 26;

    /// Draws bodies in a cube of edge 2, in parallel.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::nbody::{self, Problem, SOFTENING, STEP};
    ///
    /// let problem = Problem::generate(nbody::TINY, 42);
    /// let (mut positions, mut velocities) = (problem.positions().to_vec(), problem.velocities().to_vec());
    /// let (all, own) = (problem.positions(), problem.velocities());
    /// let items = 0..problem.items();
    /// nbody::host(Team::global(), items, SOFTENING, STEP, all, own, &mut positions, &mut velocities);
    /// problem.check(&positions, &velocities)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let vector = |stream: u64, index| {
            [1, 2, 3].map(|axis| random::signed_unit(random::stream(seed, 3 * stream + axis), index))
        };
        let mass = |index| (0.5 + random::unit(random::stream(seed, 0), index)) * MASS / size.items as f32;
        let position = |index| {
            let [x, y, z] = vector(0, index);
            [x, y, z, mass(index)]
        };
        let velocity = |index| {
            let [x, y, z] = vector(1, index);
            // The kernel copies the fourth component.
            [x, y, z, index as f32]
        };
        Self {
            positions: (0..size.items).into_par_iter().map(position).collect(),
            velocities: (0..size.items).into_par_iter().map(velocity).collect(),
            expected: OnceLock::new(),
        }
    }

    /// Takes bodies as they are.
    pub(crate) fn of(positions: Vec<[f32; 4]>, velocities: Vec<[f32; 4]>) -> Self {
        Self { positions, velocities, expected: OnceLock::new() }
    }

    /// Returns the number of items: one per body.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.positions.len() as u64
    }

    /// Returns the positions and the masses of the bodies.
    #[must_use]
    pub fn positions(&self) -> &[[f32; 4]] {
        &self.positions
    }

    /// Returns the velocities. The fourth component has no meaning, and the kernel copies it unchanged.
    #[must_use]
    pub fn velocities(&self) -> &[[f32; 4]] {
        &self.velocities
    }

    /// Compares whole outputs with a direct sum in double precision, from the last body to the first.
    ///
    /// The first check of a problem computes the reference and caches it.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item, or with the lengths if they differ.
    pub fn check(&self, positions: &[[f32; 4]], velocities: &[[f32; 4]]) -> Result<(), Mismatch> {
        let bodies = self.positions.len();
        Mismatch::of_length("length of the nbody positions", bodies, positions.len(), 1)?;
        Mismatch::of_length("length of the nbody velocities", bodies, velocities.len(), 1)?;
        let all = self
            .expected
            .get_or_init(|| (0..bodies).into_par_iter().map(|body| self.expected(body)).collect());
        let wrong = (0..bodies).into_par_iter().with_min_len(1024).find_map_first(|body| {
            let exactly = |value: f32| (f64::from(value), 0.0);
            let [position, velocity] = &all[body];
            let mass = exactly(self.positions[body][3]);
            let fourth = exactly(self.velocities[body][3]);
            wrong_part(position, mass, positions[body], "position of nbody")
                .or_else(|| wrong_part(velocity, fourth, velocities[body], "velocity of nbody"))
                .map(|mismatch| Mismatch { item: body as u64, ..mismatch })
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Returns the expected new position and velocity of a body.
    fn expected(&self, body: usize) -> [Bounded; 2] {
        let own = self.positions[body].map(f64::from);
        let (mut pull, mut magnitude) = ([0.0; 3], [0.0; 3]);
        for other in self.positions.iter().rev() {
            let other = other.map(f64::from);
            let way = [other[0] - own[0], other[1] - own[1], other[2] - own[2]];
            let square = way.iter().map(|along| along * along).sum::<f64>() + f64::from(SOFTENING);
            let strength = other[3] / (square * square.sqrt());
            for axis in 0..3 {
                pull[axis] += strength * way[axis];
                magnitude[axis] += (strength * way[axis]).abs();
            }
        }
        let (step, half) = (f64::from(STEP), 0.5 * f64::from(STEP).powi(2));
        // Every operation may flush a subnormal result to zero.
        let lost = f64::from(f32::MIN_POSITIVE) * 8.0 * self.positions.len() as f64;
        let of_axis = |axis: usize| {
            let velocity = f64::from(self.velocities[body][axis]);
            let off = UNIT * 43.0 * magnitude[axis] + lost;
            let (gain, moved, fallen) = (pull[axis] * step, velocity * step, pull[axis] * half);
            let (faster, further) = (velocity + gain, own[axis] + moved + fallen);
            let roundings = moved.abs() + (own[axis] + moved).abs() + fallen.abs() + further.abs();
            // The factor covers rounding errors of higher order.
            let position = (further, 1.01 * (half * off + UNIT * roundings));
            let velocity = (faster, 1.01 * (step * off + UNIT * (gain.abs() + faster.abs())));
            (position, velocity)
        };
        let [x, y, z] = [0, 1, 2].map(of_axis);
        [[x.0, y.0, z.0], [x.1, y.1, z.1]]
    }
}

/// Returns the first of a body's four components that is outside its error bound.
fn wrong_part(
    expected: &Bounded,
    fourth: (f64, f64),
    found: [f32; 4],
    what: &'static str,
) -> Option<Mismatch> {
    let mut all = expected.iter().chain([&fourth]).zip(found);
    all.find_map(|((expected, most), found)| {
        let (expected, found) = (*expected, f64::from(found));
        let is_right = (found - expected).abs() <= *most;
        let (expected, found) = (Value::Real(expected), Value::Real(found));
        (!is_right).then_some(Mismatch { item: 0, expected, found, what })
    })
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers. `positions` is whole; all other slices hold exactly the elements of these
/// items.
///
/// # Panics
/// When the length of a slice differs from the one above.
#[allow(clippy::too_many_arguments, reason = "the argument list of the OpenCL kernel")]
pub fn host(
    team: &Team,
    items: Range<u64>,
    softening: f32,
    step: f32,
    positions: &[[f32; 4]],
    velocities: &[[f32; 4]],
    new_positions: &mut [[f32; 4]],
    new_velocities: &mut [[f32; 4]],
) {
    let count = items.end.saturating_sub(items.start);
    let lengths = [velocities.len(), new_positions.len(), new_velocities.len()];
    assert!(
        lengths.iter().all(|length| *length as u64 == count)
            && (count == 0 || items.end <= positions.len() as u64),
        "nbody of items {items:?} of {}: velocities and the outputs have {lengths:?} elements, not {count}",
        positions.len()
    );
    if count == 0 {
        return;
    }
    let own = &positions[items.start as usize..items.end as usize];
    let per_job = jobs::length(team, own.len(), BODIES_PER_JOB, LANES);
    let jobs = own.chunks(per_job).zip(velocities.chunks(per_job));
    let outputs = new_positions.chunks_mut(per_job).zip(new_velocities.chunks_mut(per_job));
    team.for_each(jobs.zip(outputs), |((own, velocities), (new_positions, new_velocities))| {
        for (index, own) in own.chunks(LANES).enumerate() {
            let pulls = pulls(own, positions, softening);
            for (lane, own) in own.iter().enumerate() {
                let body = index * LANES + lane;
                let velocity = velocities[body];
                new_positions[body][3] = own[3];
                new_velocities[body][3] = velocity[3];
                for axis in 0..3 {
                    let pull = pulls[axis][lane];
                    new_positions[body][axis] =
                        own[axis] + velocity[axis] * step + pull * (0.5 * step * step);
                    new_velocities[body][axis] = velocity[axis] + pull * step;
                }
            }
        }
    });
}

/// One number per lane.
type Lanes = [f32; LANES];

/// Returns the pull of all bodies on at most [`LANES`] of them.
fn pulls(own: &[[f32; 4]], positions: &[[f32; 4]], softening: f32) -> [Lanes; 3] {
    // Surplus lanes repeat the last body.
    let place = |axis: usize| -> Lanes { std::array::from_fn(|lane| own[lane.min(own.len() - 1)][axis]) };
    let places = [place(0), place(1), place(2)];
    let [mut sum, mut lost] = [[[0.0_f32; LANES]; 3]; 2];
    for block in positions.chunks(BLOCK) {
        let part = pulls_of_block(&places, block, softening);
        for axis in 0..3 {
            for lane in 0..LANES {
                let rest = part[axis][lane] - lost[axis][lane];
                let next = sum[axis][lane] + rest;
                lost[axis][lane] = (next - sum[axis][lane]) - rest;
                sum[axis][lane] = next;
            }
        }
    }
    sum
}

/// Returns the plain sum of the pulls of one block. Each axis has its own variables, so that compilers
/// vectorize over lanes and not over axes.
fn pulls_of_block([own_x, own_y, own_z]: &[Lanes; 3], block: &[[f32; 4]], softening: f32) -> [Lanes; 3] {
    let (mut pull_x, mut pull_y, mut pull_z) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for [x, y, z, mass] in block {
        for lane in 0..LANES {
            let (x, y, z) = (x - own_x[lane], y - own_y[lane], z - own_z[lane]);
            let inverse = 1.0 / (x * x + y * y + z * z + softening).sqrt();
            let strength = mass * inverse * inverse * inverse;
            pull_x[lane] += strength * x;
            pull_y[lane] += strength * y;
            pull_z[lane] += strength * z;
        }
    }
    [pull_x, pull_y, pull_z]
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0xB0D1E5;
/// Size of a body's position or velocity, in bytes.
const BODY_BYTES: u64 = 16;

/// The kernel in every language.
pub(crate) const SOURCE: Source = Source {
    name: "nbody",
    opencl: Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL },
    cuda: Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL }),
    cuda_options: "",
    compute: <Problem as Recipe>::compute,
};

impl Recipe for Problem {
    const NAME: &'static str = "nbody";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const KIND: Kind = Kind::AllToAll;
    const LARGEST_PUBLISHED: u64 = PAPER.items;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let size = input.pick::<Self, _>([TINY, SMALL, PAPER], Self::MOST_BODIES, |items| Size { items })?;
        // The bodies, every buffer, and the reference.
        memory_for::<Self>(size.items * (6 * BODY_BYTES + size_of::<[Bounded; 2]>() as u64))?;
        Ok(Self::generate(size, SEED))
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default()
            .read_all(&self.positions)
            .read(&self.velocities)
            .write::<[f32; 4]>(self.items())
            .write::<[f32; 4]>(self.items())
            .scalar(self.positions.len() as u32)
            .scalar(SOFTENING)
            .scalar(STEP)
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let (softening, step) = (call.scalar(5)?, call.scalar(6)?);
        let [positions, velocities, new_positions, new_velocities] = call.parts([0, 1, 2, 3])?;
        let (positions, velocities) = (positions.slice()?, velocities.slice()?);
        let (moved, faster) = (new_positions.slice_mut()?, new_velocities.slice_mut()?);
        host(team, items, softening, step, positions, velocities, moved, faster);
        Ok(())
    }

    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch> {
        self.check(&outputs.of(0), &outputs.of(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;
    use proptest::prelude::*;

    type Solved = (Vec<[f32; 4]>, Vec<[f32; 4]>);

    /// Computes a step of the bodies of `problem` under the pull of the bodies of `pulling`.
    fn step_by(problem: &Problem, pulling: &[[f32; 4]]) -> Solved {
        let of_body = |(own, velocity): (&[f32; 4], &[f32; 4])| {
            let pull = pulls(&[*own], pulling, SOFTENING);
            let (mut moved, mut faster) = (*own, *velocity);
            for axis in 0..3 {
                moved[axis] = own[axis] + velocity[axis] * STEP + pull[axis][0] * (0.5 * STEP * STEP);
                faster[axis] = velocity[axis] + pull[axis][0] * STEP;
            }
            (moved, faster)
        };
        problem.positions.iter().zip(&problem.velocities).map(of_body).unzip()
    }

    fn solve(problem: &Problem) -> Solved {
        let mut moved = vec![[f32::NAN; 4]; problem.positions.len()];
        let mut faster = moved.clone();
        let (positions, velocities) = (&problem.positions, &problem.velocities);
        host(
            Team::global(),
            0..problem.items(),
            SOFTENING,
            STEP,
            positions,
            velocities,
            &mut moved,
            &mut faster,
        );
        (moved, faster)
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for items in [0, 1, 2, 15, 16, 17, 31, 33, 65, TINY.items, 3_001] {
            let problem = Problem::generate(Size { items }, items);
            let (moved, faster) = solve(&problem);
            problem.check(&moved, &faster).unwrap();
        }
    }

    /// Two bodies on a line fall towards each other, the lighter one faster. A single body moves in a
    /// straight line.
    #[test]
    fn bodies_pull_each_other() {
        let positions = vec![[-1.0, 0.0, 0.0, 2.0], [1.0, 0.0, 0.0, 6.0]];
        let velocities = vec![[0.0; 4]; 2];
        let two = Problem { positions, velocities, expected: OnceLock::new() };
        let (_, faster) = solve(&two);
        // Mass over distance squared, times the step.
        assert!((faster[0][0] / (6.0 / 4.0 * STEP) - 1.0).abs() < 2e-3, "{faster:?}");
        assert!((faster[1][0] / (-2.0 / 4.0 * STEP) - 1.0).abs() < 2e-3, "{faster:?}");
        let one = Problem::generate(Size { items: 1 }, 4);
        let (moved, faster) = solve(&one);
        assert_eq!(faster, one.velocities);
        assert_eq!(moved[0][1], one.positions[0][1] + one.velocities[0][1] * STEP);
    }

    /// The values of two bodies were computed with the same formulas in another program.
    #[test]
    fn how_far_a_body_may_be_off_is_known_to_the_last_term() {
        let near = |found: f64, computed: f64| {
            assert!((found / computed - 1.0).abs() < 1e-6, "{found:e}, not {computed:e}");
        };
        let problem = Problem {
            positions: vec![[0.5, -0.25, 0.125, 2.0], [-0.25, 0.5, 1.0, 3.0]],
            velocities: vec![[1.0, -2.0, 0.5, 0.0], [0.0; 4]],
            expected: OnceLock::new(),
        };
        let computed = [
            [
                (0.515_519_672_951_5, 6.329_525_135_3e-8),
                (-0.281_144_672_951_5, 3.601_681_314_2e-8),
                (0.132_935_381_556_6, 1.679_401_646_5e-8),
            ],
            [
                (0.986_518_137_789_1, 9.510_024_045_8e-8),
                (-1.986_518_137_789_1, 1.553_009_316_8e-7),
                (0.515_728_839_246_0, 7.271_026_037_5e-8),
            ],
        ];
        let found = problem.expected(0).into_iter().flatten();
        for ((value, most), (computed, off)) in found.zip(computed.into_iter().flatten()) {
            near(value, computed);
            near(most, off);
        }
    }

    #[test]
    fn contracted_output_passes_the_check() {
        let problem = Problem::generate(TINY, 3);
        let mut solved = (Vec::new(), Vec::new());
        for (own, velocity) in problem.positions.iter().zip(&problem.velocities) {
            let mut pull = [0.0_f32; 3];
            for block in problem.positions.chunks(BLOCK) {
                let mut part = [0.0_f32; 3];
                for other in block {
                    let way: [f32; 3] = std::array::from_fn(|axis| other[axis] - own[axis]);
                    let square = way.iter().fold(SOFTENING, |sum, along| along.mul_add(*along, sum));
                    let strength = other[3] * square.sqrt().recip().powi(3);
                    for axis in 0..3 {
                        part[axis] = strength.mul_add(way[axis], part[axis]);
                    }
                }
                // So few blocks need no compensation.
                (0..3).for_each(|axis| pull[axis] += part[axis]);
            }
            let along =
                |axis: usize| pull[axis].mul_add(0.5 * STEP * STEP, velocity[axis].mul_add(STEP, own[axis]));
            solved.0.push([along(0), along(1), along(2), own[3]]);
            let faster = |axis: usize| pull[axis].mul_add(STEP, velocity[axis]);
            solved.1.push([faster(0), faster(1), faster(2), velocity[3]]);
        }
        problem.check(&solved.0, &solved.1).unwrap();
    }

    #[test]
    fn check_rejects_one_wrong_item_first_last_and_between() {
        let problem = Problem::generate(TINY, 5);
        let right = solve(&problem);
        let last = TINY.items as usize - 1;
        for item in [0, 1, last / 2, last - 1, last] {
            for (which, bounds) in problem.expected(item).iter().enumerate() {
                for axis in 0..4 {
                    let off = bounds.get(axis).map_or(f32::EPSILON, |(_, most)| 2.1 * *most as f32);
                    let value = [&right.0, &right.1][which][item][axis];
                    // The fourth component of the first velocity is zero.
                    let off = if axis == 3 { off * value.max(1.0) } else { off };
                    for wrong in [value + off, value - off, f32::NAN, f32::INFINITY] {
                        let mut broken = right.clone();
                        [&mut broken.0, &mut broken.1][which][item][axis] = wrong;
                        let told = problem.check(&broken.0, &broken.1).unwrap_err();
                        assert_eq!(told.item, item as u64, "{which} {axis} {wrong}");
                    }
                }
            }
        }
        assert_eq!(problem.check(&right.0[1..], &right.1).unwrap_err().item, TINY.items - 1);
        assert_eq!(problem.check(&right.0, &right.1[1..]).unwrap_err().item, TINY.items - 1);
    }

    /// The smallest errors of the workload: the pull of one body is missing, counted twice, or computed at
    /// another body's position.
    #[test]
    fn check_rejects_one_body_too_few_too_many_or_elsewhere() {
        for items in [TINY.items, 2_003] {
            let problem = Problem::generate(Size { items }, 6);
            let (moved, faster) = solve(&problem);
            let all = &problem.positions;
            // Body 0 shows the error of any other body.
            for missing in (1..all.len()).step_by(all.len() / 97) {
                let mut few = all.clone();
                few[missing][3] = 0.0;
                let mut twice = all.clone();
                twice[missing][3] *= 2.0;
                let mut elsewhere = all.clone();
                elsewhere[missing] = all[missing - 1];
                for (what, pulling) in [("missing", few), ("twice", twice), ("elsewhere", elsewhere)] {
                    let pull = pulls(&all[..1], &pulling, SOFTENING);
                    let mut broken = faster.clone();
                    for axis in 0..3 {
                        broken[0][axis] = problem.velocities[0][axis] + pull[axis][0] * STEP;
                    }
                    let told = problem.check(&moved, &broken);
                    assert_eq!(told.map_err(|told| told.item), Err(0), "{items}: {missing} {what}");
                }
            }
        }
    }

    #[test]
    fn shifted_outputs_are_rejected() {
        let problem = Problem::generate(TINY, 7);
        let (mut moved, mut faster) = step_by(&problem, &problem.positions);
        problem.check(&moved, &faster).unwrap();
        moved.rotate_left(1);
        assert_eq!(problem.check(&moved, &faster).unwrap_err().item, 0);
        moved.rotate_right(1);
        faster.rotate_left(1);
        assert_eq!(problem.check(&moved, &faster).unwrap_err().item, 0);
    }

    #[test]
    fn sources_add_up_the_same_blocks() {
        for source in [OPENCL_SOURCE, CUDA_SOURCE] {
            assert!(source.contains(&format!("#define BLOCK {BLOCK}\n")));
            assert!(source.contains(&format!("#define TILE {LOCAL_SIZE}\n")));
        }
        assert!(LOCAL_SIZE.is_multiple_of(BLOCK as u64));
    }

    #[test]
    fn seeds_and_bodies_differ() {
        let [one, same, other] = [1, 1, 2].map(|seed| Problem::generate(TINY, seed));
        assert_eq!((&one.positions, &one.velocities), (&same.positions, &same.velocities));
        assert_ne!(one.positions, other.positions);
        assert!(one.positions.windows(2).all(|pair| (0..4).all(|axis| pair[0][axis] != pair[1][axis])));
        assert!(one.positions.iter().zip(&one.velocities).all(|(place, speed)| place != speed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn packages_give_the_bytes_of_the_whole(items in 0_u64..300, seed: u64, cuts in packages::cuts()) {
            let problem = Problem::generate(Size { items }, seed);
            let whole = solve(&problem);
            problem.check(&whole.0, &whole.1).unwrap();
            let mut parts = (vec![[f32::NAN; 4]; whole.0.len()], vec![[f32::NAN; 4]; whole.1.len()]);
            for package in packages::split(items, &cuts) {
                host(
                    Team::global(),
                    package.clone(),
                    SOFTENING,
                    STEP,
                    &problem.positions,
                    &problem.velocities[package.start as usize..package.end as usize],
                    packages::part(&mut parts.0, &package, 1),
                    packages::part(&mut parts.1, &package, 1),
                );
            }
            prop_assert!(parts == whole);
        }
    }
}
