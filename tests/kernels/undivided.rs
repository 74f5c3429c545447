#[cfg(feature = "cuda")]
use super::cuda;
use super::{opencl, run_on};
use dml::Kernel;
use dml::arenas::launch::{self, Call, ComputeError};
use dml::core::{Fence, ItemShape, Launcher, Misfit};
use dml::prelude::*;
use dml::scheduler::{KernelError, Knowledge, Report, RunError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Each work-item writes its number, its group and the number of groups along each dimension, and the number
/// of dimensions.
const TELL: &str = "
    kernel void tell(global ulong *out, ulong x, ulong y, ulong z) {
        size_t at[3] = {get_global_id(0), get_global_id(1), get_global_id(2)};
        if (at[0] >= x || at[1] >= y || at[2] >= z) return;
        global ulong *told = out + ((at[AXIS] * SECOND + at[SECOND_AXIS]) * THIRD + at[THIRD_AXIS]) * 10;
        for (uint d = 0; d < 3; ++d) {
            told[d * 3] = get_group_id(d) * get_local_size(d) + get_local_id(d);
            told[d * 3 + 1] = get_group_id(d);
            told[d * 3 + 2] = get_num_groups(d);
        }
        told[9] = get_work_dim();
    }";

#[cfg(feature = "cuda")]
const TELL_IN_CUDA: &str = r#"
    extern "C" __global__ void tell(unsigned long long *out, unsigned long long x, unsigned long long y,
        unsigned long long z) {
        unsigned long long at[3] = {blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
            blockIdx.z * blockDim.z + threadIdx.z};
        if (at[0] >= x || at[1] >= y || at[2] >= z) return;
        unsigned long long *told = out + ((at[AXIS] * SECOND + at[SECOND_AXIS]) * THIRD + at[THIRD_AXIS]) * 10;
        unsigned long long group[3] = {blockIdx.x, blockIdx.y, blockIdx.z};
        unsigned long long groups[3] = {gridDim.x, gridDim.y, gridDim.z};
        for (int d = 0; d < 3; ++d) {
            told[d * 3] = at[d];
            told[d * 3 + 1] = group[d];
            told[d * 3 + 2] = groups[d];
        }
        told[9] = DIMENSIONS;
    }"#;

/// So many work-items along each dimension, divided along one of them.
#[derive(Clone, Copy, Debug)]
struct Case {
    dimensions: usize,
    axis: usize,
    sizes: [u64; 3],
    local: [u64; 3],
}

const CASES: [Case; 4] = [
    Case { dimensions: 2, axis: 0, sizes: [37, 10, 1], local: [2, 4, 1] },
    Case { dimensions: 2, axis: 1, sizes: [10, 37, 1], local: [4, 2, 1] },
    Case { dimensions: 3, axis: 0, sizes: [17, 6, 5], local: [2, 2, 4] },
    Case { dimensions: 3, axis: 1, sizes: [6, 17, 5], local: [2, 2, 4] },
];

impl Case {
    /// The dimensions that are not divided, in order.
    fn others(&self) -> [usize; 2] {
        [[1, 2], [0, 2], [0, 1]][self.axis]
    }

    fn options(&self) -> String {
        let [second, third] = self.others();
        let Self { axis, sizes, dimensions, .. } = self;
        format!(
            "-DAXIS={axis} -DSECOND_AXIS={second} -DTHIRD_AXIS={third} -DSECOND={} -DTHIRD={} -DDIMENSIONS={dimensions}",
            sizes[second], sizes[third]
        )
    }

    fn kernel(&self, out: &Buffer<u64>) -> Kernel {
        let ([second, third], [x, y, z]) = (self.others(), self.sizes);
        let item = self.sizes[second] * self.sizes[third] * 80;
        let kernel = Kernel::new("tell", self.local[self.axis])
            .argument(Argument::part(out, Access::WriteInvalidate, Footprint::one_to_one(item)))
            .scalar(x)
            .scalar(y)
            .scalar(z);
        let kernel = match self.dimensions {
            2 => kernel.rows(self.sizes[second], self.local[second]),
            _ => {
                kernel.planes([second, third].map(|d| self.sizes[d]), [second, third].map(|d| self.local[d]))
            }
        };
        kernel.along(self.axis).unwrap()
    }

    fn check(&self, out: &Buffer<u64>) {
        let [second, third] = self.others();
        for (number, told) in out.read().unwrap().chunks(10).enumerate() {
            let (number, mut at) = (number as u64, [0; 3]);
            at[third] = number % self.sizes[third];
            at[second] = number / self.sizes[third] % self.sizes[second];
            at[self.axis] = number / self.sizes[third] / self.sizes[second];
            for d in 0..3 {
                let expected = [at[d], at[d] / self.local[d], self.sizes[d].div_ceil(self.local[d])];
                assert_eq!(told[d * 3..d * 3 + 3], expected, "{self:?}, work-item {at:?}, dimension {d}");
            }
            assert_eq!(told[9], self.dimensions as u64);
        }
    }
}

/// Runs every case whole and in packages.
fn check_all<L: Launcher + 'static>(
    (platform, device): (Platform, DeviceId),
    launchers: impl Fn(&Platform, &str) -> Vec<(DeviceId, L)>,
) {
    for (case, packages) in CASES.into_iter().flat_map(|case| [(case, 1), (case, 5)]) {
        let out = platform.buffer::<u64>(case.sizes.iter().product::<u64>() * 10).build().unwrap();
        let kernel = case.kernel(&out).launchers(launchers(&platform, &case.options())).unwrap();
        run_on(&platform, device, &kernel, case.sizes[case.axis], packages);
        case.check(&out);
    }
}

/// Kernels that have their rows along the first dimension could not be divided.
#[test]
fn items_are_along_any_dimension_in_opencl() {
    let Some(found) = opencl() else { return };
    // SAFETY: the kernel writes what its items have, and nothing past the sizes.
    check_all(found, |platform, options| unsafe { launch::opencl(platform, TELL, "tell", options) }.unwrap());
}

#[cfg(feature = "cuda")]
#[test]
fn items_are_along_any_dimension_in_cuda() {
    let Some(found) = cuda() else { return };
    let launchers = |platform: &Platform, options: &str| {
        // SAFETY: the kernel writes what its items have, and nothing past the sizes.
        unsafe { launch::cuda(platform, TELL_IN_CUDA, "tell", options) }.unwrap()
    };
    check_all(found, launchers);
}

#[test]
fn a_dimension_that_a_kernel_does_not_have_is_refused() {
    let refused = Kernel::new("flat", 16).rows(100, 4).along(2).map(drop).unwrap_err();
    assert_eq!(refused, Misfit::Axis { kernel: "flat".into(), axis: 2, dimensions: 2 });
    assert_eq!(refused.to_string(), "kernel flat has 2 dimensions, and no dimension 2");
    assert_eq!(ItemShape::line(8).along(1), None);
    assert_eq!(ItemShape::line(8).along(0), Some(ItemShape::line(8)));
    let planes = ItemShape::planes([7, 5], [4, 2, 1]);
    for axis in 0..3 {
        assert_eq!(planes.along(axis).and_then(|moved| moved.along(2)), Some(planes), "{axis}");
    }
}

const COUNT: &str = "
    kernel void count(global const uint *values, global uint *counts, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) atomic_inc(counts + values[i] % 16);
    }";

fn counts(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let [values, counts] = call.parts([0, 1])?;
    let counts = counts.slice_mut::<u32>()?;
    values.slice::<u32>()?.iter().for_each(|value| counts[*value as usize % 16] += 1);
    Ok(())
}

const ITEMS: u64 = 1000;

/// A kernel that counts into a buffer, whose packages would all write all of it.
fn histogram(platform: &Platform) -> (Kernel, Buffer<u32>) {
    let values = platform.buffer_from((0..ITEMS as u32).collect::<Vec<_>>()).unwrap();
    let result = platform.buffer_from(vec![0_u32; 16]).unwrap();
    let kernel = Kernel::new("count", 16).undivided().read(&values).read_write_all(&result).end();
    // SAFETY: the kernel reads its items' values, and counts into the sixteen elements.
    let opencl = unsafe { launch::opencl(platform, COUNT, "count", "") }.unwrap();
    let host = launch::host(platform, counts).unwrap();
    (kernel.launchers(host).unwrap().launchers(opencl).unwrap(), result)
}

/// Runs it, checks the result, and says which device computed it.
fn once(coexecutor: &Coexecutor, (kernel, result): &(Kernel, Buffer<u32>)) -> DeviceId {
    result.store(&[0; 16]).unwrap();
    let report = coexecutor.run(kernel, ITEMS).unwrap();
    let expected: Vec<u32> = (0..16).map(|slot| if slot < 8 { 63 } else { 62 }).collect();
    assert_eq!(result.read().unwrap()[..], expected);
    by(&report)
}

fn by(report: &Report) -> DeviceId {
    let devices: Vec<_> = report.devices.iter().filter(|device| device.items > 0).collect();
    let [one] = &devices[..] else { panic!("{devices:?}") };
    assert_eq!((one.items, one.packages), (ITEMS, 1));
    one.device
}

/// With one device even, it was "written whole by every package".
#[test]
fn an_undivided_kernel_may_write_anything() {
    let Some((platform, device)) = opencl() else { return };
    let kernel = histogram(&platform);
    for devices in [vec![device], vec![DeviceId(0)], vec![DeviceId(0), device]] {
        for policy in ["calibrated", "dynamic:10", "static"] {
            let policy = policy.parse().unwrap();
            once(&Coexecutor::new(&platform).devices(devices.clone()).policy(policy), &kernel);
        }
    }
    let divided = Kernel::new("count", 16).read_write_all(&kernel.1);
    let divided = divided.launchers(launch::host(&platform, |_| Ok(())).unwrap()).unwrap();
    let refused = Coexecutor::new(&platform).run(&divided, ITEMS).unwrap_err();
    assert!(matches!(refused, RunError::WholeWrite { index: 0, .. }), "{refused}");
    assert!(refused.to_string().contains("undivided"), "{refused}");
}

/// A known device is taken by its time, an unknown one is tried if its data moves in less.
#[test]
fn an_undivided_kernel_goes_where_it_takes_least() {
    let Some((platform, device)) = opencl() else { return };
    let result = platform.buffer_from(vec![0_u32; 1 << 20]).unwrap();
    // Milliseconds on the processor and on the other device.
    let of = |times: [u64; 2]| {
        let sleeps = |ms: u64| {
            move |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(Fence::done(0))
            }
        };
        let kernel = Kernel::new("sleep", 16).undivided().read_write_all(&result);
        kernel.variant(DeviceId(0), sleeps(times[0])).variant(device, sleeps(times[1]))
    };
    let coexecutor = || Coexecutor::new(&platform).devices([DeviceId(0), device]);
    let taught = |times: [u64; 2], devices: &[DeviceId]| {
        let (knowledge, kernel) = (Knowledge::new(), of(times));
        for one in devices.iter().flat_map(|one| [one; 2]) {
            coexecutor().devices([*one]).knowledge(&knowledge).run(&kernel, ITEMS).unwrap();
        }
        by(&coexecutor().knowledge(&knowledge).run(&kernel, ITEMS).unwrap())
    };
    let host = DeviceId(0);
    assert_eq!(taught([40, 0], &[host, device]), device);
    assert_eq!(taught([0, 40], &[host, device]), host);
    // Moving takes less than 40 ms, and more than nothing.
    assert_eq!(taught([40, 40], &[host]), device);
    assert_eq!(taught([0, 0], &[host]), host);
    assert_eq!(taught([40, 40], &[device]), host);
    let kernel = histogram(&platform);
    let left_out = coexecutor().run(&kernel.0, ITEMS).unwrap().left_out;
    assert_eq!(left_out.len(), 1);
    assert!(left_out[0].reason.to_string().contains("undivided"), "{left_out:?}");
}

/// What has changed its inputs cannot be computed again; what has not, can.
#[test]
fn other_devices_compute_what_one_fails_to() {
    let Some((platform, device)) = opencl() else { return };
    let values = platform.buffer_from((0..ITEMS as u32).collect::<Vec<_>>()).unwrap();
    let out = platform.buffer::<u32>(ITEMS).build().unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let host = launch::host(&platform, move |call| {
        if failing.load(Relaxed) {
            return Err("no luck".into());
        }
        let [values, out] = call.parts([0, 1])?;
        out.slice_mut::<u32>()?.copy_from_slice(values.slice()?);
        Ok(())
    });
    let source = "kernel void copy(global const uint *in, global uint *out, ulong end) {
        if (get_global_id(0) < end) out[get_global_id(0)] = in[get_global_id(0)]; }";
    // SAFETY: each item is read and written by itself.
    let opencl = unsafe { launch::opencl(&platform, source, "copy", "") }.unwrap();
    let kernel = Kernel::new("copy", 16).undivided().read_all(&values).write_all(&out).end();
    let kernel = kernel.launchers(host.unwrap()).unwrap().launchers(opencl).unwrap();
    let report = Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap();
    assert_eq!(by(&report), device);
    assert_eq!(report.failures.len(), 1);
    assert!(out.read().unwrap().iter().copied().eq(0..ITEMS as u32));
    fails.store(false, Relaxed);
    assert!(Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap().failures.is_empty());
}

/// The bytes of a kernel whose data are on a device stay there.
#[test]
fn data_are_not_moved_for_a_kernel_that_is_as_fast_where_they_are() {
    let Some((platform, device)) = opencl() else { return };
    let coexecutor = Coexecutor::new(&platform).devices([DeviceId(0), device]);
    let data = platform.buffer::<u32>(1 << 22).build().unwrap();
    let source = "kernel void fill(global uint *out, uint value) { out[get_global_id(0)] += value; }";
    // SAFETY: it changes the elements of its items, of which there are as many as elements.
    let opencl = unsafe { launch::opencl(&platform, source, "fill", "") }.unwrap();
    let kernel = Kernel::new("fill", 16).undivided().read_write(&data).scalar(1_u32);
    let kernel = kernel.launchers(opencl).unwrap();
    let host = launch::host(&platform, |call| {
        let value: u32 = call.scalar(1)?;
        call.part(0)?.slice_mut::<u32>()?.iter_mut().for_each(|element| *element += value);
        Ok(())
    });
    let kernel = kernel.launchers(host.unwrap()).unwrap();
    let grants = platform.acquire(device).write(&data).wait().unwrap();
    grants.release().unwrap();
    // Neither device is measured, and this one has the data.
    let report = coexecutor.collect_on(None).run(&kernel, data.len()).unwrap();
    assert_eq!(report.devices.iter().find(|of| of.items > 0).unwrap().device, device);
}
