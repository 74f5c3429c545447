use super::{opencl, run_on};
use dml::Kernel;
use dml::arenas::OpenClArena;
use dml::arenas::launch::{self, CompiledLauncher};
use dml::core::{Launcher, Misfit};
use dml::prelude::*;
use dml::scheduler::RunError;
use std::sync::Arc;

/// Every work-item writes what it is told, along each dimension: its own number, its group's, how many groups
/// and work-items there are, and where they begin. The last three are the linear number, the number of
/// dimensions and the place in the group.
const TELL: &str = "
    size_t number_of(uint d) { return get_group_id(d) * get_local_size(d) + get_local_id(d); }
    kernel void tell(global ulong *out, ulong width, ulong height, ulong end) {
        size_t x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
        uint dimensions = get_work_dim();
        ulong last = dimensions == 1 ? x : dimensions == 2 ? y : z;
        if (last >= end || (dimensions > 1 && x >= width) || (dimensions > 2 && y >= height)) return;
        ulong at = dimensions == 1 ? x : dimensions == 2 ? y * width + x : (z * height + y) * width + x;
        for (uint d = 0; d < 3; ++d) {
            global ulong *told = out + at * 18 + d * 5;
            told[0] = number_of(d);
            told[1] = get_group_id(d);
            told[2] = get_num_groups(d);
            told[3] = get_global_size(d);
            told[4] = get_global_offset(d);
        }
        LINEAR
    }";

#[cfg(feature = "cuda")]
const TELL_IN_CUDA: &str = r#"
    // __global__ void tell( is what this looks like, {
    static __device__ unsigned number_of(unsigned block, unsigned size, unsigned thread) { return block * size + thread; }
    __device__ unsigned long long groups(int d) { return d == 0 ? gridDim.x : d == 1 ? gridDim.y : gridDim.z; }
    extern "C" __global__ void __launch_bounds__(256) tell(unsigned long long *out, unsigned long long width,
        unsigned long long height, unsigned long long end) {
        unsigned long long number[3] = {number_of(blockIdx.x, blockDim.x, threadIdx.x),
            number_of(blockIdx.y, blockDim.y, threadIdx.y), number_of(blockIdx.z, blockDim.z, threadIdx.z)};
        const uint3 block = blockIdx;
        const dim3 grid = gridDim;
        unsigned long long place[3] = {block.x, block.y, block.z}, size[3] = {blockDim.x, blockDim.y, blockDim.z};
        unsigned dimensions = height ? 3 : width ? 2 : 1;
        if (number[dimensions - 1] >= end || (width && number[0] >= width) || (height && number[1] >= height)) return;
        unsigned long long at = dimensions == 1 ? number[0] : dimensions == 2 ? number[1] * width + number[0]
            : (number[2] * height + number[1]) * width + number[0];
        for (int d = 0; d < 3; ++d) {
            unsigned long long *told = out + at * 18 + d * 5;
            told[0] = number[d];
            told[1] = place[d];
            told[2] = groups(d);
            told[3] = groups(d) * size[d];
            told[4] = 0;
        }
        out[at * 18 + 15] = at;
        out[at * 18 + 16] = dimensions;
        out[at * 18 + 17] = grid.x * grid.y * grid.z;
    }"#;

/// A run of that kernel: so many items, each a work-item, a row or a plane.
#[derive(Clone, Copy, Debug)]
struct Shape {
    dimensions: u64,
    inner: [u64; 2],
    local: [u64; 3],
    items: u64,
}

const SHAPES: [Shape; 6] = [
    Shape { dimensions: 1, inner: [0, 0], local: [8, 1, 1], items: 400 },
    Shape { dimensions: 1, inner: [0, 0], local: [8, 1, 1], items: 397 },
    Shape { dimensions: 2, inner: [10, 0], local: [4, 2, 1], items: 40 },
    Shape { dimensions: 2, inner: [10, 0], local: [4, 2, 1], items: 37 },
    Shape { dimensions: 3, inner: [6, 5], local: [2, 4, 2], items: 20 },
    Shape { dimensions: 3, inner: [6, 5], local: [2, 4, 2], items: 17 },
];

impl Shape {
    fn kernel(&self, out: &Buffer<u64>) -> Kernel {
        let [x, y, z] = self.local;
        let item = self.inner.iter().filter(|&&inner| inner > 0).product::<u64>();
        let kernel = Kernel::new("tell", [x, y, z][self.dimensions as usize - 1])
            .argument(Argument::part(out, Access::WriteInvalidate, Footprint::one_to_one(item * 18 * 8)))
            .scalar(self.inner[0])
            .scalar(self.inner[1])
            .end();
        match self.dimensions {
            1 => kernel,
            2 => kernel.rows(self.inner[0], x),
            _ => kernel.planes(self.inner, [x, y]),
        }
    }

    fn work_items(&self) -> u64 {
        self.inner.iter().filter(|&&inner| inner > 0).product::<u64>() * self.items
    }

    /// What each work-item is told when all of them are launched at once.
    fn expected(&self) -> Vec<u64> {
        let mut whole = [1, 1, 1];
        whole[..2].copy_from_slice(&self.inner.map(|inner| inner.max(1)));
        whole[self.dimensions as usize - 1] = self.items;
        let padded: [u64; 3] = std::array::from_fn(|d| whole[d].next_multiple_of(self.local[d]));
        let mut expected = Vec::new();
        for at in 0..self.work_items() {
            let number = [at % whole[0], at / whole[0] % whole[1], at / whole[0] / whole[1]];
            for d in 0..3 {
                let groups = padded[d] / self.local[d];
                expected.extend([number[d], number[d] / self.local[d], groups, padded[d], 0]);
            }
            let linear = (number[2] * padded[1] + number[1]) * padded[0] + number[0];
            expected.extend([linear, self.dimensions, 0]);
        }
        expected
    }
}

/// Compares what the work-items were told, `differs` of it left out.
#[track_caller]
fn compare(shape: Shape, out: &Buffer<u64>, but: &[usize]) {
    let out = out.read().unwrap();
    for (at, (told, expected)) in out.chunks(18).zip(shape.expected().chunks(18)).enumerate() {
        for place in (0..17).filter(|place| !but.contains(place)) {
            assert_eq!(told[place], expected[place], "{shape:?}, work-item {at}, place {place}");
        }
    }
}

/// The source, with the linear number where the compiler has it.
fn source(linear: bool) -> String {
    let linear = match linear {
        true => {
            "out[at * 18 + 15] = get_global_linear_id(); out[at * 18 + 16] = dimensions; out[at * 18 + 17] = 0;"
        }
        false => "out[at * 18 + 16] = dimensions;",
    };
    TELL.replace("LINEAR", linear)
}

#[test]
fn groups_are_those_of_the_whole_run() {
    let Some((platform, device)) = opencl() else { return };
    for shape in SHAPES {
        let out = platform.buffer::<u64>(shape.work_items() * 18).build().unwrap();
        // SAFETY: each work-item of an item before the end writes 18 numbers of its own.
        let built = |linear, options| unsafe { launch::opencl(&platform, &source(linear), "tell", options) };
        // A compiler of OpenCL C 1 has no linear numbers.
        let (built, but) = match built(true, "-cl-std=CL3.0").or_else(|_| built(true, "-cl-std=CL2.0")) {
            Ok(built) => (built, &[][..]),
            Err(_) => (built(false, "").expect("it compiles"), &[15][..]),
        };
        let kernel = shape.kernel(&out).launchers(built).unwrap();
        for packages in [1, 2, 5, 1000] {
            run_on(&platform, device, &kernel, shape.items, packages);
            compare(shape, &out, but);
        }
    }
}

/// The kernel of the first report: a third of its values was right.
#[test]
fn a_kernel_that_computes_its_item_from_its_group_is_right() {
    const ITEMS: u64 = 1_000_000;
    const SOURCE: &str = "kernel void third(global uint *out, ulong end) {
        size_t i = get_group_id(0) * get_local_size(0) + get_local_id(0);
        if (i < end) out[i] = (uint)i * 3;
    }";
    let Some((platform, device)) = opencl() else { return };
    let out = platform.buffer::<u32>(ITEMS).build().unwrap();
    // SAFETY: it writes the number of its item.
    let built = unsafe { launch::opencl(&platform, SOURCE, "third", "") }.expect("it compiles");
    let kernel = Kernel::new("third", 64).write(&out).end().launchers(built).unwrap();
    run_on(&platform, device, &kernel, ITEMS, 3);
    let out = out.read().unwrap();
    let wrong = out.iter().zip(0..).filter(|(value, item)| **value != item * 3).count();
    assert_eq!(wrong, 0, "of {ITEMS}");
}

/// A name may stand in the options, be pasted together, or be the source's own where OpenCL C 1 lacks it.
#[test]
fn groups_are_found_wherever_their_names_stand() {
    let Some((platform, device)) = opencl() else { return };
    let out = platform.buffer::<u32>(64).build().unwrap();
    for (group, options) in [
        ("GROUP", "-DGROUP=get_group_id(0)"),
        ("PASTE(get_, group_id)(0)", ""),
        ("get_global_linear_id() / 8", "-cl-std=CL1.2"),
        ("(get_group_id(0) + get_group_id(3) + get_num_groups(7) - 1)", ""),
    ] {
        let source = format!(
            "#define PASTE(a, b) a##b
            #if __OPENCL_C_VERSION__ < 200
            size_t get_global_linear_id(void) {{ return get_global_id(0) + get_global_offset(1); }}
            #endif
            kernel void group(global uint *out, ulong end) {{
                if (get_global_id(0) < end) out[get_global_id(0)] = {group};
            }}"
        );
        // SAFETY: it writes the number of its group.
        let built = unsafe { launch::opencl(&platform, &source, "group", options) }.expect("it compiles");
        let kernel = Kernel::new("group", 8).write(&out).end().launchers(built).unwrap();
        run_on(&platform, device, &kernel, 64, 4);
        assert!(out.read().unwrap().iter().zip(0..).all(|(told, item)| *told == item / 8), "{group}");
    }
}

/// Its macro stands for OpenCL's function, which counts from the package.
#[test]
fn a_source_that_defines_the_functions_of_groups_is_refused() {
    let Some((platform, _)) = opencl() else { return };
    let out = platform.buffer::<u32>(64).build().unwrap();
    let source = "#define get_group_id(d) ((uint)get_group_id(d))
        kernel void group(global uint *out, ulong end) { if (get_global_id(0) < end) out[get_global_id(0)] = get_group_id(0); }";
    // SAFETY: it is not launched.
    let built = unsafe { launch::opencl(&platform, source, "group", "") }.expect("it compiles");
    let refused =
        Kernel::new("group", 8).write(&out).end().launchers(built).map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("its groups would be numbered within each package: its source defines"),
        "{refused}"
    );
}

/// A kernel whose scratch memory is indexed by the group within its package.
#[test]
fn a_kernel_that_opts_out_counts_from_its_package() {
    let Some((platform, device)) = opencl() else { return };
    let shape = SHAPES[0];
    let out = platform.buffer::<u64>(shape.work_items() * 18).build().unwrap();
    let arena = platform.arena(platform.home(device).unwrap());
    let defined = format!("#define DML_PACKAGE_GROUPS\n{}", source(false));
    // SAFETY: each work-item of an item before the end writes 18 numbers of its own.
    let built = unsafe {
        [
            launch::opencl(&platform, &source(false), "tell", "-DDML_PACKAGE_GROUPS").expect("it compiles"),
            launch::opencl(&platform, &defined, "tell", "").expect("it compiles"),
        ]
    };
    for built in built {
        let kernel = shape.kernel(&out).launchers(built).unwrap();
        run_on(&platform, device, &kernel, shape.items, 5);
        let out = out.read().unwrap();
        let groups: Vec<_> = out.chunks(18).step_by(8).map(|told| told[1]).collect();
        assert_eq!(groups, (0..5).flat_map(|_| 0..10).collect::<Vec<_>>());
    }
    // What is built for launches of its own is no launcher's, unless it is told so.
    let arena = (**arena).downcast_ref::<OpenClArena>().unwrap();
    let kernel = |options| arena.kernel(&source(false), "tell", options).unwrap();
    // SAFETY: as above.
    let [own, told] =
        ["", "-DDML_PACKAGE_GROUPS"].map(|options| unsafe { CompiledLauncher::new(kernel(options)) });
    let refused = shape.kernel(&out).launchers([(device, own)]).map(drop).unwrap_err().to_string();
    assert!(refused.contains("kernel tell on opencl:0") && refused.contains("`package_kernel`"), "{refused}");
    shape.kernel(&out).launchers([(device, told)]).unwrap();
}

/// Items without a group size may be cut anywhere, so no group has a number.
#[test]
fn a_kernel_that_asks_for_its_group_needs_a_size() {
    let Some((platform, _)) = opencl() else { return };
    let out = platform.buffer::<u64>(18).build().unwrap();
    // SAFETY: it is not launched.
    let built = unsafe { launch::opencl(&platform, &source(false), "tell", "") }.expect("it compiles");
    let shape = Shape { local: [0, 1, 1], ..SHAPES[0] };
    let refused = shape.kernel(&out).launchers(built).map(drop).unwrap_err();
    let expected = "kernel tell on opencl:0 cannot run in groups of 0 work-items: its source may query its work-group, so a work-group size is needed";
    assert_eq!(refused.to_string(), expected);
}

#[cfg(feature = "cuda")]
#[test]
fn blocks_of_cuda_are_those_of_the_whole_run() {
    let Some((platform, device)) = super::cuda() else { return };
    for shape in SHAPES {
        let out = platform.buffer::<u64>(shape.work_items() * 18).build().unwrap();
        // SAFETY: each thread of an item before the end writes 18 numbers of its own.
        let built = unsafe { launch::cuda(&platform, TELL_IN_CUDA, "tell", "") }.expect("it compiles");
        let kernel = shape.kernel(&out).launchers(built).unwrap();
        for packages in [1, 2, 5, 1000] {
            run_on(&platform, device, &kernel, shape.items, packages);
            // Its linear number is that of the item.
            compare(shape, &out, &[15]);
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn a_cuda_kernel_that_cannot_be_numbered_is_refused() {
    let Some((platform, _)) = super::cuda() else { return };
    let macros = "#define K extern \"C\" __global__ void k\nK(int* a) { a[blockIdx.x] = 1; }";
    let register =
        "extern \"C\" __global__ void k(int* a) { asm(\"mov.u32 %0, %ctaid.x;\" : \"=r\"(a[0])); }";
    for source in [macros, register] {
        // SAFETY: it is not launched.
        let refused = unsafe { launch::cuda(&platform, source, "k", "") }.map(drop).unwrap_err().to_string();
        assert!(refused.contains("kernel \"k\" for cuda:0: it cannot be launched in parts"), "{refused}");
        // SAFETY: as above.
        unsafe { launch::cuda(&platform, source, "k", "-DDML_PACKAGE_GROUPS") }.expect("it is told so");
    }
}

const DOUBLE: &str = "kernel void twice(global uint *out, ulong width, ulong end) {
    size_t x = get_global_id(0), y = get_global_id(1);
    if (width == 0) { if (x < end) out[x] = 2 * x; }
    else if (x < width && y < end) out[y * width + x] = 2 * (y * width + x);
}";
#[cfg(feature = "cuda")]
const DOUBLE_IN_CUDA: &str =
    "extern \"C\" __global__ void twice(unsigned *out, unsigned long long width, unsigned long long end, DmlItems items) {
    unsigned long long x = items.x(), y = items.y();
    if (width == 0) { if (x < end) out[x] = 2 * x; }
    else if (x < width && y < end) out[y * width + x] = 2 * (y * width + x);
}";

/// Work-groups of a size along each dimension of a kernel that doubles the number of its work-item.
fn doubled(out: &Buffer<u32>, width: u64, local: [u64; 2]) -> (Kernel, u64) {
    let kernel = Kernel::new("twice", local[usize::from(width > 0)])
        .argument(Argument::part(out, Access::WriteInvalidate, Footprint::one_to_one(4 * width.max(1))))
        .scalar(width)
        .end();
    (if width > 0 { kernel.rows(width, local[0]) } else { kernel }, out.len() / width.max(1))
}

/// Runs it in these sizes, and is refused these others.
fn sizes_are_taken_or_refused<L: Launcher + 'static>(
    (platform, device): &(Platform, DeviceId),
    launchers: impl Fn() -> Vec<(DeviceId, L)>,
    too_large: &[(u64, [u64; 2], &str)],
) {
    let name = platform.device_desc(*device).name.clone();
    let out = platform.buffer::<u32>(70 * 30).build().unwrap();
    for (width, local) in
        [(0, [64, 1]), (0, [0, 1]), (70, [16, 4]), (70, [0, 0]), (70, [0, 4]), (70, [16, 0])]
    {
        out.write().unwrap().fill(1);
        let (kernel, items) = doubled(&out, width, local);
        let kernel = kernel.launchers(launchers()).unwrap();
        run_on(platform, *device, &kernel, items, 3);
        let out = out.read().unwrap();
        assert!(out.iter().zip(0..).all(|(value, item)| *value == 2 * item), "{width} {local:?}");
    }
    for &(width, local, reason) in too_large {
        let (kernel, items) = doubled(&out, width, local);
        let refused = kernel.clone().launchers(launchers()).map(drop).unwrap_err();
        assert!(matches!(refused, Misfit::Groups { .. }), "{refused:?}");
        let sizes = if width > 0 { format!("{} x {}", local[0], local[1]) } else { local[0].to_string() };
        let expected = format!("kernel twice on {name} cannot run in groups of {sizes} work-items: {reason}");
        assert_eq!(refused.to_string(), expected);
        // Also where the sizes come after the launchers.
        if width > 0 {
            let (fitting, _) = doubled(&out, 0, [local[1], 1]);
            let kernel = fitting.launchers(launchers()).unwrap().rows(width, local[0]);
            let refused = Coexecutor::new(platform).devices([*device]).run(&kernel, items).unwrap_err();
            assert!(matches!(&refused, RunError::Misfit { cause, .. } if *cause == expected), "{refused}");
        }
    }
}

#[test]
fn sizes_of_groups_that_opencl_does_not_take_are_refused() {
    let Some(found) = opencl() else { return };
    let arena = found.0.arena(found.0.home(found.1).unwrap());
    let most =
        (**arena).downcast_ref::<OpenClArena>().unwrap().kernel(DOUBLE, "twice", "").unwrap().max_local();
    let reason = format!("it allows {most} in a group on this device, not {}", most * 2);
    // SAFETY: it writes the number of its work-item.
    let launchers = || unsafe { launch::opencl(&found.0, DOUBLE, "twice", "") }.expect("it compiles");
    sizes_are_taken_or_refused(&found, launchers, &[(70, [most / 2, 4], &reason)]);
    let (kernel, _) = doubled(&found.0.buffer::<u32>(1).build().unwrap(), 0, [8192 * 4, 1]);
    let refused = kernel.launchers(launchers()).map(drop).unwrap_err().to_string();
    assert!(
        refused.starts_with("kernel twice on opencl:0 cannot run in groups of 32768 work-items: "),
        "{refused}"
    );
}

#[cfg(feature = "cuda")]
#[test]
fn sizes_of_blocks_that_cuda_does_not_take_are_refused() {
    let Some(found) = super::cuda() else { return };
    // SAFETY: it writes the number of its work-item.
    let launchers = || unsafe { launch::cuda(&found.0, DOUBLE_IN_CUDA, "twice", "") }.expect("it compiles");
    let reason = "it allows 1024 in a group on this device, not 2048";
    let line = "the device allows 1024 along dimension 0";
    sizes_are_taken_or_refused(&found, launchers, &[(70, [512, 4], reason), (0, [2048, 1], line)]);
}

#[test]
fn a_size_that_the_source_requires_is_the_only_one() {
    const SOURCE: &str = "kernel __attribute__((reqd_work_group_size(16, 1, 1))) void twice(global uint *out, ulong width, ulong end) {
        if (get_global_id(0) < end) out[get_global_id(0)] = get_local_size(0) == 16 ? 2 * get_global_id(0) : 7;
    }";
    let Some((platform, device)) = opencl() else { return };
    let out = platform.buffer::<u32>(100).build().unwrap();
    // SAFETY: it writes the number of its work-item.
    let launchers = || unsafe { launch::opencl(&platform, SOURCE, "twice", "") }.expect("it compiles");
    for local in [16, 0] {
        let (kernel, items) = doubled(&out, 0, [local, 1]);
        run_on(&platform, device, &kernel.launchers(launchers()).unwrap(), items, 3);
        assert!(out.read().unwrap().iter().zip(0..).all(|(value, item)| *value == 2 * item));
    }
    let refused = doubled(&out, 0, [32, 1]).0.launchers(launchers()).map(drop).unwrap_err().to_string();
    assert!(
        refused.ends_with("groups of 32 work-items: its source requires groups of 16 x 1 x 1"),
        "{refused}"
    );
}

/// The whole run in one launch has the framework's own numbers, whatever sizes it chooses.
#[test]
fn a_submitted_kernel_may_ask_for_groups_of_any_size() {
    const ITEMS: u64 = 1000;
    let check = |platform: &Platform, device: DeviceId, kernels: [Arc<dyn Launcher>; 2]| {
        for kernel in kernels {
            let out = platform.buffer::<u64>(ITEMS * 18).zeroed().build().unwrap();
            let submit = platform.submit(device, &kernel).read_write(&out);
            submit.scalar(0_u64).scalar(0_u64).scalar(ITEMS).items(ITEMS).unwrap();
            let out = out.read().unwrap();
            for (item, told) in (0..ITEMS).zip(out.chunks(18)) {
                assert_eq!((told[0], told[2]), (item, out[2]), "its number, and the number of groups");
                assert!(told[1] <= item && told[1] < told[2], "the groups are counted");
            }
        }
    };
    if let Some((platform, device)) = opencl() {
        let arena = platform.home_as::<OpenClArena>(device).unwrap();
        let own = arena.kernel(&source(false), "tell", "").unwrap();
        // SAFETY: it writes 18 words for each item.
        let own = Arc::new(unsafe { CompiledLauncher::new(own) });
        // SAFETY: as above.
        let built = unsafe { launch::kernel(&platform, device, &source(false), "tell") }.unwrap();
        check(&platform, device, [built, own]);
    }
    #[cfg(feature = "cuda")]
    if let Some((platform, device)) = super::cuda() {
        let arena = platform.home_as::<dml::arenas::CudaArena>(device).unwrap();
        let own = arena.kernel(TELL_IN_CUDA, "tell", "").unwrap();
        // SAFETY: as above.
        let own = Arc::new(unsafe { CompiledLauncher::new(own) });
        // SAFETY: as above.
        let built = unsafe { launch::kernel(&platform, device, TELL_IN_CUDA, "tell") }.unwrap();
        check(&platform, device, [built, own]);
    }
}
