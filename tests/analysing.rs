//! What a kernel touches: the source and observed runs show the same.

use dml::Kernel;
use dml::analysis::{Language, Source};
use dml::bytemuck::Pod;
use dml::prelude::*;
use std::fmt::Debug;
use std::ops::Range;

const STEPS: &str = concat!(
    "#define HAS_DOUBLES\n",
    include_str!("../dml-workloads/src/kernels/steps.cl"),
    include_str!("../dml-workloads/src/kernels/steps.c"),
);
const MATMUL: &str = include_str!("../dml-workloads/src/kernels/matmul.cl");
const PRODUCT: &str = include_str!("../examples/apps/matmul/matmul.cl");
const NBODY: &str = include_str!("../dml-workloads/src/kernels/nbody.cl");
const GAUSSIAN: &str = include_str!("../dml-workloads/src/kernels/gaussian.cl");
const OVERLAPPING: &str = include_str!("../dml-analysis/tests/kernels/overlapping.cl");

/// Returns a platform of one OpenCL device, if there is one.
fn opencl() -> Option<(Platform, DeviceId)> {
    let Ok(builder) = Platform::builder().discover_with(&DiscoverOptions::default().only(["opencl:0"]))
    else {
        assert!(!std::env::var("DML_EXPECT").unwrap_or_default().contains("opencl"), "no OpenCL device");
        eprintln!("skipped: no OpenCL device");
        return None;
    };
    let platform = builder.build().expect("the device opens");
    let device = platform.device("opencl:0").expect("it is there");
    Some((platform, device))
}

/// A buffer of different elements.
fn drawn<T: Pod + Debug + Send + Sync>(
    platform: &Platform,
    count: usize,
    of: impl Fn(f32) -> T,
) -> RawBuffer {
    let values = (0..count).map(|at| of((at * at % 977) as f32 / 7.0 + at as f32 / 1024.0));
    platform.buffer_from(values.collect::<Vec<T>>()).expect("memory").raw().clone()
}

/// Kernels: source, the bytes of a row of each buffer, and the run.
struct Row {
    source: &'static str,
    kernel: Kernel,
    items: u64,
    row_bytes: u64,
    /// The buffers of which more is read than has an effect.
    wider: &'static [usize],
}

fn rows(platform: &Platform) -> Vec<Row> {
    let floats = |count| drawn(platform, count, |value| value);
    let doubles = |count| drawn(platform, count, f64::from);
    let bodies = || drawn(platform, 256, |value| [value, 2.0 - value, value * 0.7, 1.0 + value]);
    let pixels = || drawn(platform, 64 * 40, |value| value.to_bits() ^ value.to_bits() >> 9);
    let weights = drawn(platform, 25, |value| 0.02 + value / 1e5);
    let lines = |name: &str| Kernel::new(name, 4).rows(64, 16);
    let square = |name: &str| Kernel::new(name, 16).rows(64, 16);
    let line_of = |name: &str, buffers: [RawBuffer; 2]| {
        let [from, to] = buffers;
        lines(name).read_all(&from).read_write_all(&to).scalar(64_u32).scalar(40_u32)
    };
    let row = |source, kernel, items, row_bytes, wider| Row { source, kernel, items, row_bytes, wider };
    let plane = 64 * 40;
    let product = |name: &str| {
        let kernel = square(name).read_all(&floats(64 * 64)).read_all(&floats(64 * 64));
        kernel.read_write_all(&floats(64 * 64)).scalar(64_u32)
    };
    let volume = Kernel::new("stencil3d", 1).planes([64, 8], [16, 4]);
    let volume = volume.read_all(&floats(64 * 8 * 12)).read_write_all(&floats(64 * 8 * 12));
    let pulled = Kernel::new("nbody", 64).read_all(&bodies()).read_all(&bodies());
    let pulled = pulled.read_write_all(&bodies()).read_write_all(&bodies()).scalar(256_u32);
    let blurred =
        Kernel::new("gaussian", 64).read_all(&pixels()).read_all(&weights).read_write_all(&pixels());
    // Groups of 16 work-items have 12 results along each axis.
    let plate = Kernel::new("plate", 16).rows(64, 16).read_all(&floats(48 * 48)).read_all(&floats(48 * 48));
    let path = Kernel::new("path", 16).read_all(&floats(480)).read_all(&floats(480));
    vec![
        row(STEPS, line_of("stencil2d", [floats(plane), floats(plane)]).end(), 40, 256, &[]),
        row(STEPS, line_of("jacobi", [doubles(plane), doubles(plane)]).end(), 40, 512, &[]),
        row(STEPS, line_of("prk_star", [doubles(plane), doubles(plane)]).end(), 40, 512, &[]),
        row(STEPS, volume.scalar(64_u32).scalar(8_u32).scalar(12_u32).end(), 12, 2048, &[]),
        row(MATMUL, product("matmul").end(), 64, 256, &[]),
        row(PRODUCT, product("matmul").along(0).expect("it has two axes"), 64, 4, &[]),
        row(NBODY, pulled.scalar(0.5_f32).scalar(0.01_f32).end(), 256, 16, &[]),
        row(GAUSSIAN, blurred.scalar(64_u32).scalar(40_u32).scalar(2_u32).end(), 64 * 40, 256, &[]),
        row(OVERLAPPING, plate.read_write_all(&floats(48 * 48)).scalar(48_u32), 64, 192, &[1]),
        row(OVERLAPPING, path.read_write_all(&floats(480)).scalar(480_u32).scalar(0_u32), 640, 4, &[]),
    ]
}

/// The first and the last row of ranges, and the next one.
fn hull(ranges: &[Range<u64>], row_bytes: u64) -> Range<u64> {
    let [start, end] = [ranges[0].start, ranges[ranges.len() - 1].end];
    start / row_bytes..end.div_ceil(row_bytes)
}

#[test]
fn sources_and_runs_show_the_same_parts() {
    let Some((platform, device)) = opencl() else { return };
    let mut wrong = Vec::new();
    for Row { source, kernel, items, row_bytes, wider } in rows(&platform) {
        let name = kernel.name().to_owned();
        let analysis = Source::new(source, Language::OpenCl, &[]).kernel(&name).expect("it is analysed");
        let analysed = dml::app::analysed(kernel.clone(), items, &analysis).expect("all parts are known");
        // SAFETY: the kernels stay within buffers of these sizes, wherever their elements stand.
        let launchers = unsafe { launch::opencl(&platform, source, &name, "") }.expect("it compiles");
        let kernel = kernel.launchers(launchers).expect("they fit");
        let started = std::time::Instant::now();
        let grain = kernel.local_size();
        let observed = kernel.observed(&platform, items, device);
        eprintln!("{name}: observed in {:?}", started.elapsed());
        let observed = match observed {
            Ok(observed) => observed,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        for package in [0..grain, grain..2 * grain, items / 2..items / 2 + 2 * grain, items - grain..items] {
            let both = analysed.arguments().iter().zip(observed.arguments());
            for (index, (proven, seen)) in both.enumerate() {
                let part = |of: &Argument| hull(&of.ranges(package.clone()).expect("a part"), row_bytes);
                let (proven_part, seen_part) = (part(proven), part(seen));
                let is_in =
                    |one: &Range<u64>, other: &Range<u64>| other.start <= one.start && one.end <= other.end;
                // A line through the inner packages gives more at the ends.
                let is_end = package.start == 0 || package.end == items;
                let is_right = proven.access().writes() == seen.access().writes()
                    && (proven_part == seen_part
                        || wider.contains(&index) && is_in(&seen_part, &proven_part)
                        || is_end && is_in(&proven_part, &seen_part));
                if !is_right {
                    wrong.push(format!(
                        "{name}, {package:?}, buffer {index}: proven {:?} {proven_part:?}, seen {:?} {seen_part:?}",
                        proven.access(),
                        seen.access()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
