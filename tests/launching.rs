//! Kernels by their arguments: what a launcher is given, footprints with several ranges, and the check that
//! finds wrong ones.

#![cfg(all(not(dml_loom), feature = "opencl"))]

use dml::Kernel;
use dml::arenas::launch::{self, CompiledLauncher};
use dml::arenas::opencl::OpenClKernel;
use dml::core::{
    AcquireError, ArenaKind, DeviceKind, Fence, Launch, LaunchArg, LaunchError, Launcher, Misfit, Scalar,
};
use dml::prelude::*;
use dml::scheduler::{CheckError, Departure, Knowledge, RunError, check_footprints};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn platform() -> Platform {
    platform_of(&DiscoverOptions::default().offload(0)).expect("nothing is named")
}

fn platform_of(options: &DiscoverOptions) -> Option<Platform> {
    let builder = Platform::builder().discover_with(options).ok()?;
    Some(builder.build().expect("a sound platform"))
}

/// A platform with the first OpenCL device, and that. A machine without one is told so, unless the run was
/// told that it has one.
fn opencl() -> Option<(Platform, DeviceId)> {
    let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
    // One that CUDA has as well is used only where it is named.
    let platform = platform_of(&DiscoverOptions::default().only(["opencl:0"]));
    assert!(platform.is_some() || !expected, "DML_EXPECT names opencl, and there is no device of it");
    if platform.is_none() {
        eprintln!("skipped: no OpenCL device");
    }
    let platform = platform?;
    let device = platform.device("opencl:0").expect("it was named");
    Some((platform, device))
}

/// The first device of CUDA, as `opencl`.
#[cfg(feature = "cuda")]
fn cuda(platform: &Platform) -> Option<DeviceId> {
    let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("cuda"));
    let device = platform.device("cuda:0").ok();
    assert!(device.is_some() || !expected, "DML_EXPECT names cuda, and there is no device of it");
    if device.is_none() {
        eprintln!("skipped: no CUDA device");
    }
    device
}

fn host(platform: &Platform) -> DeviceId {
    platform.host().expect("every machine has a processor")
}

#[test]
fn a_host_kernel_has_one_view_for_each_range() {
    const ROWS: u64 = 6;
    const COLUMNS: u64 = 50;
    let platform = platform();
    let matrix = platform.buffer_from((0..ROWS as u32 * COLUMNS as u32).collect::<Vec<_>>()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let views = seen.clone();
    let host = launch::host(&platform, move |call| {
        let (items, matrix) = (call.items(), call.part(0)?);
        views.lock().unwrap().push((items, matrix.views().len(), matrix.slice::<u32>().is_ok()));
        for view in matrix.views() {
            let first = view.span().start() as u32 / 4;
            for (value, index) in view.slice_mut::<u32>()?.iter_mut().zip(first..) {
                *value = *value * 3 + index;
            }
        }
        Ok(())
    });
    let columns = Footprint::columns(4, COLUMNS * 4);
    let kernel = Kernel::new("columns", 1)
        .argument(Argument::part(&matrix, Access::ReadWrite, columns))
        .launchers(host.unwrap())
        .unwrap();
    let run = |policy: &str| {
        let policy = policy.parse().unwrap();
        Coexecutor::new(&platform).policy(policy).run(&kernel, COLUMNS).expect("nothing fails")
    };
    assert_eq!(run("dynamic:7").packages.len(), 7);
    assert!(matrix.read().unwrap().iter().zip(0..).all(|(value, index)| *value == index * 4));
    assert!(seen.lock().unwrap().drain(..).all(|(_, views, has_slice)| views == 6 && !has_slice));
    run("static");
    assert!(matrix.read().unwrap().iter().zip(0..).all(|(value, index)| *value == index * 13));
    assert_eq!(*seen.lock().unwrap(), [(0..COLUMNS, 1, true)], "ranges that touch are one");
}

/// Notes whether each launch may run beside those before it.
struct Notes<L>(L, Arc<Mutex<Vec<bool>>>);

impl<L: Launcher> Launcher for Notes<L> {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.0.check(arguments)
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        self.1.lock().unwrap().push(launch.is_independent);
        self.0.launch(launch, grants)
    }
}

/// Packages have grants of their own. Who launches by hand says so.
#[test]
fn packages_are_launched_as_independent_of_each_other() {
    let platform = platform();
    let out = platform.buffer::<u64>(100).build().unwrap();
    let noted = Arc::new(Mutex::new(Vec::new()));
    let launchers = launch::host(&platform, |_| Ok(())).unwrap();
    let launchers = launchers.into_iter().map(|(device, launcher)| (device, Notes(launcher, noted.clone())));
    let kernel = Kernel::new("noted", 1).write(&out).launchers(launchers.collect::<Vec<_>>()).unwrap();
    Coexecutor::new(&platform).policy("dynamic:3".parse().unwrap()).run(&kernel, 100).unwrap();
    assert_eq!(*noted.lock().unwrap(), [true; 3]);
    let (items, shape) = (0..1, dml::core::ItemShape::line(1));
    let launch = Launch::new(&items, &shape, &[]);
    assert!(!launch.is_independent && launch.independent().is_independent);
    // One grant has exactly one first launch.
    let mut grants = platform.acquire(host(&platform)).read(&out).wait().unwrap();
    assert_eq!([(); 3].map(|()| grants.launches_first()), [true, false, false]);
    grants.release().unwrap();
    let mut again = platform.acquire(host(&platform)).read(&out).wait().unwrap();
    assert!(again.launches_first());
}

#[test]
fn scalars_change_from_run_to_run_and_from_package_to_package() {
    let platform = platform();
    let out = platform.buffer::<u64>(100).build().unwrap();
    let host = launch::host(&platform, |call| {
        let items = call.items();
        let (factor, start, end) = (call.scalar::<u64>(0)?, call.scalar::<u64>(4)?, call.scalar::<u64>(5)?);
        assert_eq!((items.start, items.end), (start, end));
        assert_eq!(call.value::<[u16; 3]>(3)?, [7, 8, 9]);
        assert!(call.value::<[u16; 2]>(3).is_err() && call.scalar::<f32>(0).is_err());
        for (out, item) in call.part(2)?.slice_mut::<u64>()?.iter_mut().zip(items) {
            *out = factor * item;
        }
        Ok(())
    });
    let mut kernel = Kernel::new("times", 4)
        .scalar(3_u64)
        .local_memory(64)
        .write(&out)
        .value(&[7_u16, 8, 9])
        .scalar_of(Package::start)
        .end()
        .launchers(host.unwrap())
        .unwrap();
    for factor in [3, 5, 11] {
        kernel.set_scalar(0, factor).unwrap();
        Coexecutor::new(&platform).policy("dynamic:9".parse().unwrap()).run(&kernel, 100).unwrap();
        assert!(out.read().unwrap().iter().zip(0..).all(|(value, item)| *value == factor * item));
    }
    let refused = |kernel: &mut Kernel, index| kernel.set_scalar(index, 1.5_f32).unwrap_err().to_string();
    let times = "of kernel times is";
    assert_eq!(
        refused(&mut kernel, 0),
        format!("argument 0 {times} a scalar (u64), and was given a scalar (f32)")
    );
    assert!(refused(&mut kernel, 1).contains("is local memory (64 bytes)"));
    assert!(refused(&mut kernel, 2).contains("is a buffer"));
    assert!(refused(&mut kernel, 3).contains("is a value of 6 bytes"));
    assert!(refused(&mut kernel, 5).contains("computed for each package"));
    assert_eq!(refused(&mut kernel, 6), "kernel times has no argument 6: it takes 6");
}

/// One kernel whose two buffers change places in each step.
#[test]
fn buffers_change_from_run_to_run() {
    let platform = platform();
    let [mut from, mut to] = [5_u32, 0].map(|value| platform.buffer_from(vec![value; 1000]).unwrap());
    let sum = platform.buffer_from(vec![0_u32]).unwrap();
    let host = launch::host(&platform, |call| {
        let [from, to] = call.parts([0, 2])?;
        let pairs = to.slice_mut::<u32>()?.iter_mut().zip(from.slice::<u32>()?);
        pairs.for_each(|(to, from)| *to = 2 * from + 1);
        Ok(())
    });
    let kernel = Kernel::new("step", 4).read(&from).scalar(0_u32).write(&to);
    let mut kernel = kernel.reduce(&sum, 0_u32, |one, other| one + other).launchers(host.unwrap()).unwrap();
    for _ in 0..10 {
        Coexecutor::new(&platform).policy("dynamic:9".parse().unwrap()).run(&kernel, 1000).unwrap();
        std::mem::swap(&mut from, &mut to);
        kernel.set_buffer(0, &from).unwrap();
        kernel.set_buffer(2, &to).unwrap();
    }
    assert!(from.read().unwrap().iter().all(|value| *value == 6 * 1024 - 1));
    for (index, takes) in [(1, "is a scalar (u32)"), (3, "is a reduction"), (4, "has no argument 4")] {
        let error = kernel.set_buffer(index, &from).unwrap_err().to_string();
        assert!(error.contains(takes), "{error}");
    }
    kernel.set_buffer(0, &from.range(1..2)).unwrap();
    assert!(matches!(Coexecutor::new(&platform).run(&kernel, 1000), Err(RunError::PartOfBuffer { .. })));
}

#[test]
fn packages_that_write_the_same_bytes_are_refused() {
    let platform = platform();
    let buffer = platform.buffer_from((0..4096_u32).collect::<Vec<_>>()).unwrap();
    let source = platform.buffer_from((0..4096_u32).collect::<Vec<_>>()).unwrap();
    let told = |footprint: Footprint| {
        let kernel = Kernel::new("spread", 8)
            .read(&source)
            .argument(Argument::part(&buffer, Access::ReadWrite, footprint))
            .variant(host(&platform), |_: &Package, _: &mut Grants| Ok(Fence::done(0)));
        Coexecutor::new(&platform).run(&kernel, 512).map(drop)
    };
    let shared = |first: Range<u64>, second: Range<u64>, bytes: Range<u64>| {
        let buffer = buffer.raw().name();
        Err(RunError::SharedWrites { kernel: "spread".into(), index: 1, buffer, first, second, bytes })
    };
    assert_eq!(told(Footprint::neighbourhood(4, 1)), shared(0..8, 8..16, 28..36));
    assert_eq!(told(Footprint::rows(12, 96, 0)), shared(0..8, 8..16, 0..96));
    assert_eq!(told(Footprint::of(|items| items.start * 4..items.end * 4 + 1)), shared(0..8, 8..16, 32..33));
    // Between the first places and the last one, some are looked at.
    let late = |items: Range<u64>| items.start * 4..items.end * 4 + u64::from(items.end > 200) * 4;
    assert_eq!(told(Footprint::of(late)), shared(208..216, 216..224, 864..868));
    for right in [Footprint::rows(8, 64, 0), Footprint::columns(4, 2048), Footprint::tiles(8, 16, 2, 128)] {
        assert_eq!(told(right), Ok(()));
    }
}

#[test]
fn a_footprint_outside_its_buffer_is_named() {
    let platform = platform();
    let buffer = platform.buffer_from((0..64_u32).collect::<Vec<_>>()).unwrap();
    let kernel = Kernel::new("wide", 8)
        .scalar(7_u32)
        .argument(Argument::part(&buffer, Access::ReadOnly, Footprint::of(|items| 0..items.end * 5)))
        .variant(host(&platform), |_: &Package, _: &mut Grants| Ok(Fence::done(0)));
    let error = Coexecutor::new(&platform).policy("static".parse().unwrap()).run(&kernel, 64).unwrap_err();
    let place = format!("kernel wide, argument 1, {}, items 0..64: ", buffer.raw().name());
    let expected = place + "the footprint names bytes 0..320 of a buffer of 256 bytes";
    assert!(error.to_string().ends_with(&expected), "{error}");
}

#[test]
fn a_variant_serves_a_kind_of_device_or_memory() {
    let platform = platform();
    let variant = || |_: &Package, _: &mut Grants| Ok(Fence::done(0));
    let cpu = host(&platform);
    let by_memory = Kernel::new("k", 1).variant_for_arenas(&platform, ArenaKind("main_mem"), variant());
    assert_eq!(by_memory.devices().collect::<Vec<_>>(), [cpu]);
    let by_kind = Kernel::new("k", 1).variant_for_kind(&platform, DeviceKind::Cpu, variant());
    let cpus = platform.devices().iter().filter(|device| device.kind == DeviceKind::Cpu).count();
    assert_eq!(by_kind.devices().count(), cpus);
    assert_eq!(
        Kernel::new("k", 1).variant_for_arenas(&platform, ArenaKind("tape"), variant()).devices().count(),
        0
    );
    // A device's own variant is not replaced.
    let out = platform.buffer_from(vec![1_u32; 8]).unwrap();
    let own = Kernel::new("k", 1)
        .read_write(&out)
        .variant(cpu, |_: &Package, grants: &mut Grants| {
            grants.views()?[0].slice_mut::<u32>()?.fill(2);
            Ok(Fence::done(0))
        })
        .variant_for_kind(&platform, DeviceKind::Cpu, |_: &Package, _: &mut Grants| {
            Err("not this one".into())
        });
    Coexecutor::new(&platform).devices([cpu]).run(&own, 8).unwrap();
    assert_eq!(*out.read().unwrap(), [2; 8]);
}

/// A launcher that does what a function does with any granted bytes, as a device kernel could.
struct Loose(fn(&Launch<'_>, &mut Grants));

impl Launcher for Loose {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        self.0(launch, grants);
        Ok(Fence::done(0))
    }
}

const ITEMS: u64 = 200;

/// The kernel's buffers.
fn buffers<'a>(launch: &Launch<'a>) -> [&'a RawBuffer; 2] {
    let [LaunchArg::Buffer { buffer: input, .. }, LaunchArg::Buffer { buffer: out, .. }] = launch.arguments
    else {
        panic!("two buffers")
    };
    [input, out]
}

fn take(grants: &Grants, buffer: &RawBuffer, at: u64) -> u8 {
    grants.slice::<u8>(&buffer.range(at..at + 1)).unwrap()[0]
}

fn put(grants: &mut Grants, buffer: &RawBuffer, at: u64, value: u8) {
    grants.slice_mut::<u8>(&buffer.range(at..at + 1)).unwrap()[0] = value;
}

/// Adds up each item and its neighbours.
fn blur(launch: &Launch<'_>, grants: &mut Grants) {
    let [input, out] = buffers(launch);
    for item in launch.items.clone() {
        let around = item.saturating_sub(1)..(item + 2).min(ITEMS);
        let sum = around.map(|at| take(grants, input, at)).fold(0, u8::wrapping_add);
        put(grants, out, item, sum);
    }
}

/// Checks a kernel with an input and an output of one byte per item.
fn checked(
    work: fn(&Launch<'_>, &mut Grants),
    footprint: Footprint,
    access: Access,
) -> Result<u64, (usize, Range<u64>, u64, Departure)> {
    let platform = platform();
    let cpu = host(&platform);
    let input = platform.buffer_from((0..ITEMS).map(|i| (i * 37 % 251) as u8).collect::<Vec<_>>()).unwrap();
    let out = platform.buffer_from((0..ITEMS).map(|i| (i * 11 % 241) as u8).collect::<Vec<_>>()).unwrap();
    let kernel = Kernel::new("blur", 16)
        .argument(Argument::part(&input, Access::ReadOnly, footprint))
        .argument(Argument::part(&out, access, Footprint::one_to_one(1)))
        .launchers([(cpu, Loose(work))])
        .unwrap();
    let checked = check_footprints(&platform, &kernel, ITEMS, cpu);
    assert!(
        out.read().unwrap().iter().zip(0..).all(|(value, i)| u64::from(*value) == i * 11 % 241),
        "a copy"
    );
    match checked {
        Ok(checked) => Ok(checked.packages),
        Err(CheckError::Wrong(wrong)) => {
            let message = format!(", items {:?}: byte {} {}", wrong.items, wrong.byte, wrong.how);
            assert!(wrong.to_string().contains(&message), "no element: {wrong}");
            Err((wrong.argument, wrong.items, wrong.byte, wrong.how))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn right_footprints_are_confirmed() {
    let near = || Footprint::neighbourhood(1, 1);
    assert!(checked(blur, near(), Access::WriteInvalidate).unwrap() >= 6);
    assert!(checked(blur, Footprint::all(), Access::WriteInvalidate).unwrap() >= 6);
    let add = |launch: &Launch<'_>, grants: &mut Grants| {
        let [input, out] = buffers(launch);
        for item in launch.items.clone() {
            let sum = take(grants, input, item).wrapping_add(take(grants, out, item));
            put(grants, out, item, sum);
        }
    };
    assert!(checked(add, Footprint::one_to_one(1), Access::ReadWrite).unwrap() >= 6);
    // What is overwritten has no old contents.
    let told = checked(add, Footprint::one_to_one(1), Access::WriteInvalidate);
    assert_eq!(told, Err((1, 192..200, 192, Departure::ReadsOutside)));
}

#[test]
fn a_byte_read_outside_the_footprint_is_named() {
    let told = checked(blur, Footprint::one_to_one(1), Access::WriteInvalidate);
    assert_eq!(told, Err((0, 192..200, 191, Departure::ReadsOutside)));
    let one_sided = Footprint::of(|items| items.start.saturating_sub(1)..items.end);
    let told = checked(blur, one_sided, Access::WriteInvalidate);
    assert_eq!(told, Err((0, 0..16, 16, Departure::ReadsOutside)));
    let first = |launch: &Launch<'_>, grants: &mut Grants| {
        let [input, out] = buffers(launch);
        for item in launch.items.clone() {
            let sum = take(grants, input, item).wrapping_add(take(grants, input, 3));
            put(grants, out, item, sum);
        }
    };
    let told = checked(first, Footprint::one_to_one(1), Access::WriteInvalidate);
    assert_eq!(told, Err((0, 192..200, 3, Departure::ReadsOutside)));
}

#[test]
fn a_byte_written_outside_the_footprint_is_named() {
    let stray = |launch: &Launch<'_>, grants: &mut Grants| {
        blur(launch, grants);
        let end = launch.items.end;
        if end < ITEMS {
            put(grants, buffers(launch)[1], end, 77);
        }
    };
    let told = checked(stray, Footprint::neighbourhood(1, 1), Access::WriteInvalidate);
    assert_eq!(told, Err((1, 0..16, 16, Departure::WritesOutside)));
}

#[test]
fn a_byte_that_is_not_overwritten_is_named() {
    let lazy = |launch: &Launch<'_>, grants: &mut Grants| {
        let end = launch.items.end.min(ITEMS - 1);
        blur(&Launch::new(&(launch.items.start..end), launch.shape, launch.arguments), grants);
    };
    let told = checked(lazy, Footprint::neighbourhood(1, 1), Access::WriteInvalidate);
    assert_eq!(told, Err((1, 192..200, 199, Departure::LeavesOut)));
}

#[test]
fn a_kernel_that_differs_from_run_to_run_is_told() {
    static RUNS: AtomicU8 = AtomicU8::new(0);
    let moody = |launch: &Launch<'_>, grants: &mut Grants| {
        blur(launch, grants);
        put(grants, buffers(launch)[1], launch.items.start, RUNS.fetch_add(1, Ordering::Relaxed));
    };
    let told = checked(moody, Footprint::neighbourhood(1, 1), Access::WriteInvalidate);
    assert_eq!(told, Err((1, 192..200, 192, Departure::Differs)));
}

#[test]
fn only_launchers_can_be_checked() {
    let platform = platform();
    let cpu = host(&platform);
    let kernel = Kernel::new("own", 4).variant(cpu, |_: &Package, _: &mut Grants| Ok(Fence::done(0)));
    let error = check_footprints(&platform, &kernel, 8, cpu).unwrap_err();
    assert!(
        matches!(error, CheckError::NoLauncher { .. }) && error.to_string().contains("kernel own"),
        "{error}"
    );
}

/// Builds kernels of OpenCL C for the tests.
fn built(platform: &Platform, source: &str, name: &str) -> Vec<(DeviceId, CompiledLauncher<OpenClKernel>)> {
    // SAFETY: the kernels of these tests stay within their buffers for the sizes that the tests use.
    unsafe { launch::opencl(platform, source, name, "") }.expect("it compiles")
}

const EVERY_IN_CUDA: &str = r#"
    extern "C" __global__ void every(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f,
        long long g, unsigned long long h, float i, double j, float4 k, double* out, unsigned long long end,
        DmlItems items) {
        extern __shared__ unsigned scratch[];
        scratch[threadIdx.x] = 70 + threadIdx.x;
        __syncthreads();
        unsigned long long item = items.x();
        if (item >= end) return;
        const double all[12] = {(double)a, (double)b, (double)c, (double)d, (double)e, (double)f, (double)g, (double)h,
            i, j, k.z, (double)scratch[blockDim.x - 1]};
        for (int n = 0; n < 12; ++n) out[item * 12 + n] = all[n] + item;
    }"#;

const EVERY: &str =
    "kernel void every(char a, uchar b, short c, ushort d, int e, uint f, long g, ulong h, float i,
        double j, float4 k, local uint *scratch, global double *out, ulong end) {
    scratch[get_local_id(0)] = 70 + get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    size_t item = get_global_id(0);
    if (item >= end) return;
    const double all[12] = {a, b, c, d, e, f, g, h, i, j, k.z, scratch[get_local_size(0) - 1]};
    for (int n = 0; n < 12; ++n) out[item * 12 + n] = all[n] + item;
}";

/// The kernel of that source, with one argument exchanged.
fn every(out: &Buffer<f64>, exchanged: Option<usize>) -> Kernel {
    let scalars = [
        Scalar::I8(-101),
        Scalar::U8(201),
        Scalar::I16(-30_001),
        Scalar::U16(60_001),
        Scalar::I32(-2_000_000_001),
        Scalar::U32(4_000_000_001),
        Scalar::I64(-(1 << 50)),
        Scalar::U64(1 << 51),
        Scalar::F32(0.375),
        Scalar::F64(-1e-3),
    ];
    let mut kernel = Kernel::new("every", 4);
    for (index, scalar) in scalars.into_iter().enumerate() {
        kernel = match exchanged == Some(index) {
            true if index == 0 => kernel.read_all(out),
            true => kernel.scalar(scalars[index - 1]),
            false => kernel.scalar(scalar),
        };
    }
    kernel = if exchanged == Some(10) {
        kernel.value(&[1.0_f32; 3])
    } else {
        kernel.value(&[1.0_f32, 2.0, 0.125, 4.0])
    };
    kernel = if exchanged == Some(11) { kernel.scalar(4_u32) } else { kernel.local_memory(4 * 4) };
    let part = Argument::part(out, Access::WriteInvalidate, Footprint::one_to_one(12 * 8));
    kernel = if exchanged == Some(12) { kernel.local_memory(8) } else { kernel.argument(part) };
    if exchanged == Some(13) { kernel } else { kernel.end() }
}

/// Runs that kernel, which writes its arguments, on a device.
fn every_argument_arrives(
    platform: &Platform,
    device: DeviceId,
    launchers: impl FnOnce(Kernel) -> Result<Kernel, Misfit>,
) {
    let out = platform.buffer::<f64>(12 * 10).build().unwrap();
    let kernel = launchers(every(&out, None)).unwrap();
    Coexecutor::new(platform)
        .devices([device])
        .policy("dynamic:3".parse().unwrap())
        .run(&kernel, 10)
        .unwrap();
    let expected = [
        -101.0,
        201.0,
        -30_001.0,
        60_001.0,
        -2_000_000_001.0,
        4_000_000_001.0,
        -((1_u64 << 50) as f64),
        (1_u64 << 51) as f64,
        0.375,
        -1e-3,
        0.125,
        73.0,
    ];
    for (item, values) in out.read().unwrap().chunks(12).enumerate() {
        assert_eq!(values, expected.map(|value| value + item as f64), "item {item}");
    }
    assert!(check_footprints(platform, &kernel, 10, device).unwrap().packages >= 3);
}

#[test]
fn arguments_of_every_kind_reach_an_opencl_kernel() {
    let Some((platform, device)) = opencl() else { return };
    let built = built(&platform, EVERY, "every");
    every_argument_arrives(&platform, device, |kernel| kernel.launchers(built));
}

#[cfg(feature = "cuda")]
#[test]
fn arguments_of_every_kind_reach_a_cuda_kernel() {
    let platform = platform();
    let Some(device) = cuda(&platform) else { return };
    // SAFETY: the kernel writes twelve numbers for each item before the end.
    let built = unsafe { launch::cuda(&platform, EVERY_IN_CUDA, "every", "") }.expect("it compiles");
    every_argument_arrives(&platform, device, |kernel| kernel.launchers(built));
}

/// Beside a host that takes 4 us for an item.
#[cfg(feature = "cuda")]
#[test]
fn what_cuda_computes_of_a_run_that_explores_it_is_right() {
    const SOURCE: &str = r#"extern "C" __global__ void mix(unsigned* out, unsigned long long end, DmlItems items) {
        unsigned long long i = items.x();
        if (i < end) out[i] = (unsigned)i * 2654435761u ^ 0x55u;
    }"#;
    const ITEMS: u64 = 40_007;
    let platform = platform();
    let Some(device) = cuda(&platform) else { return };
    let mixed = |item: u64| (item as u32).wrapping_mul(2_654_435_761) ^ 0x55;
    let out = platform.buffer::<u32>(ITEMS).build().unwrap();
    let on_host = launch::host(&platform, move |call| {
        let items = call.items();
        std::thread::sleep(Duration::from_micros(4) * (items.end - items.start) as u32);
        for (value, item) in call.part(0)?.slice_mut::<u32>()?.iter_mut().zip(items) {
            *value = mixed(item);
        }
        Ok(())
    });
    // SAFETY: the kernel writes a number for each item before the end.
    let on_gpu = unsafe { launch::cuda(&platform, SOURCE, "mix", "") }.expect("it compiles");
    let kernel = Kernel::new("mix", 64).write(&out).end();
    let kernel = kernel.launchers(on_host.unwrap()).unwrap().launchers(on_gpu).unwrap();
    let begun = Instant::now();
    // It may begin too late on a busy machine.
    loop {
        out.write().unwrap().fill(0);
        let run = Coexecutor::new(&platform).devices([host(&platform), device]).record_decisions();
        let report = run.knowledge(&Knowledge::new()).run(&kernel, ITEMS).unwrap();
        assert!(report.failures.is_empty(), "{report:?}");
        for (value, item) in out.read().unwrap().iter().zip(0..) {
            assert_eq!(*value, mixed(item), "{item}: {report:?}");
        }
        if report.packages.iter().any(|record| record.device == device) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}

#[test]
fn arguments_that_do_not_fit_an_opencl_kernel_are_refused_when_it_is_made() {
    let Some((platform, _)) = opencl() else { return };
    let out = platform.buffer::<f64>(12).build().unwrap();
    let told = |exchanged| {
        let made = every(&out, Some(exchanged)).launchers(built(&platform, EVERY, "every"));
        made.map(drop).unwrap_err().to_string()
    };
    let said = |index, takes, given| {
        format!("argument {index} of kernel every on opencl:0 is {takes}, and was given {given}")
    };
    assert_eq!(told(0), said(0, "char", "a buffer"));
    let types = ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double"];
    for index in 1..types.len() {
        assert_eq!(told(index), said(index, types[index], types[index - 1]));
    }
    assert_eq!(told(10), said(10, "float4", "a value of 12 bytes"));
    assert_eq!(told(11), said(11, "a pointer to local memory", "uint"));
    assert_eq!(told(12), said(12, "a pointer", "local memory"));
    assert_eq!(told(13), "kernel every on opencl:0 takes 14 arguments, not 13");
}

#[test]
fn items_may_be_rows_and_planes_of_work_items() {
    const SOURCE: &str = "kernel void place(global uint *out, uint width, uint height, ulong end) {
        size_t x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
        if (get_work_dim() == 2) { if (x < width && y < end) out[y * width + x] = x + 1000 * y; }
        else if (x < width && y < height && z < end) out[(z * height + y) * width + x] = x + 1000 * y + 1000000 * z;
    }";
    let Some((platform, device)) = opencl() else { return };
    let (width, height, depth) = (7_u64, 5_u64, 9_u64);
    let out = platform.buffer::<u32>(width * height * depth).build().unwrap();
    let kernel = |items_bytes| {
        let part = Argument::part(&out, Access::WriteInvalidate, Footprint::one_to_one(items_bytes));
        Kernel::new("place", 2).argument(part).scalar(width as u32).scalar(height as u32).end()
    };
    let run = |kernel: Kernel, items| {
        let kernel = kernel.launchers(built(&platform, SOURCE, "place")).unwrap();
        let policy = "dynamic:3".parse().unwrap();
        Coexecutor::new(&platform).devices([device]).policy(policy).run(&kernel, items).unwrap();
        check_footprints(&platform, &kernel, items, device).unwrap();
    };
    run(kernel(width * height * 4).planes([width, height], [4, 2]), depth);
    for (index, value) in (0..).zip(&*out.read().unwrap()) {
        let (x, y, z) = (index % width, index / width % height, index / (width * height));
        assert_eq!(u64::from(*value), x + 1000 * y + 1_000_000 * z);
    }
    run(kernel(width * 4).rows(width, 4), height * depth);
    for (index, value) in (0..).zip(&*out.read().unwrap()) {
        assert_eq!(u64::from(*value), index % width + 1000 * (index / width));
    }
}

#[test]
fn a_wrong_footprint_of_an_opencl_kernel_is_found_on_its_device() {
    const SOURCE: &str = "kernel void blur(global float *in, global float *out, uint stray, ulong end) {
        size_t i = get_global_id(0);
        if (i >= end) return;
        out[i] = in[max(i, (size_t)1) - 1] + in[i];
        if (stray == 1) in[i] = 5;
        if (stray == 2 && i + 1 == end) out[min(end, (ulong)199)] = 5;
    }";
    let Some((platform, device)) = opencl() else { return };
    let input = platform.buffer_from((0..ITEMS).map(|i| i as f32 + 0.5).collect::<Vec<_>>()).unwrap();
    let out = platform.buffer::<f32>(ITEMS).build().unwrap();
    let told = |footprint, stray: u32| {
        let kernel = Kernel::new("blur", 16)
            .argument(Argument::part(&input, Access::ReadOnly, footprint))
            .write(&out)
            .scalar(stray)
            .end()
            .launchers(built(&platform, SOURCE, "blur"))
            .unwrap();
        check_footprints(&platform, &kernel, ITEMS, device).map_err(|error| error.to_string())
    };
    let near = || Footprint::neighbourhood(4, 1);
    assert_eq!(told(near(), 0).map(|checked| checked.packages >= 6), Ok(true));
    let place = |argument: usize, buffer: &Buffer<f32>, items: &str| {
        format!(
            "kernel blur on opencl:0, argument {argument} ({}), items {items}: element ",
            buffer.raw().name()
        )
    };
    let outside = "but no footprint covers it";
    assert_eq!(
        told(Footprint::one_to_one(4), 0).unwrap_err(),
        place(0, &input, "192..200")
            + &format!("191 (byte 764) is read, {outside}; seen in the result of item 192")
    );
    // An input that is written is told on the device, where its wrong contents would stay.
    let written = told(near(), 1).unwrap_err();
    assert!(written.starts_with(&place(0, &input, "192..200")), "{written}");
    assert!(written.ends_with(&format!("is written, {outside}")), "{written}");
    let stray = told(near(), 2).unwrap_err();
    assert_eq!(stray, place(1, &out, "0..16") + &format!("16 (byte 64) is written, {outside}"));
}

#[test]
fn contents_that_nobody_has_are_as_good_as_any() -> Result<(), AcquireError> {
    let platform = platform();
    let cpu = host(&platform);
    let input = platform.buffer::<u8>(ITEMS).build().unwrap();
    let out = platform.buffer::<u8>(ITEMS).build().unwrap();
    let kernel = Kernel::new("blur", 16)
        .argument(Argument::part(&input, Access::ReadOnly, Footprint::neighbourhood(1, 1)))
        .write(&out)
        .launchers([(cpu, Loose(blur))])
        .unwrap();
    assert!(check_footprints(&platform, &kernel, ITEMS, cpu).unwrap().packages >= 6);
    assert!(!input.raw().is_readable(0..ITEMS)?);
    Ok(())
}

/// A footprint is asked for the acquire, and once more for the launch.
#[test]
fn a_footprint_that_changes_its_mind_fails_its_package() {
    let platform = platform();
    let input = platform.buffer_from((0..64_u8).collect::<Vec<_>>()).unwrap();
    let asked = AtomicU8::new(0);
    let moody = move |_| {
        let times = u64::from(asked.fetch_add(1, Ordering::Relaxed) % 16);
        vec![0..9 + times, 40..64]
    };
    let kernel = Kernel::new("moody", 64)
        .argument(Argument::part(&input, Access::ReadOnly, Footprint::of_ranges(moody)))
        .launchers(launch::host(&platform, |_| Ok(())).unwrap())
        .unwrap();
    let error = Coexecutor::new(&platform).run(&kernel, 64).unwrap_err().to_string();
    assert!(error.contains("40..64] of argument 0 are not those that were granted"), "{error}");
}

#[test]
fn items_that_a_buffer_has_no_bytes_for_are_refused() {
    let platform = platform();
    let buffer = platform.buffer_from((0..100_u32).collect::<Vec<_>>()).unwrap();
    let cpu = host(&platform);
    let kernel = Kernel::new("long", 8)
        .read_all(&buffer)
        .read(&buffer)
        .launchers([(cpu, Loose(|_, _| panic!("nothing is launched")))])
        .unwrap();
    let name = buffer.raw().name();
    let expected = format!("kernel long: argument 1, {name}, has bytes for 100 items, not for 101");
    assert_eq!(Coexecutor::new(&platform).run(&kernel, 101).unwrap_err().to_string(), expected);
    assert_eq!(check_footprints(&platform, &kernel, 101, cpu).unwrap_err().to_string(), expected);
}
