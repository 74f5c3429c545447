//! The kernels of the project and of its applications, with what their programs declare.

use dml_analysis::{Access, Analysis, Language, Launch, ParameterKind, Source};
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of a source. These of steps are compiled as two files in one.
pub(crate) fn text(path: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    if path.ends_with("steps.cl") || path.ends_with("steps.cu") {
        return read(path) + &read(&format!("{folder}/steps.c"));
    }
    read(path)
}

pub(crate) fn source(path: &str) -> Source {
    let language = if path.ends_with(".cu") { Language::Cuda } else { Language::OpenCl };
    Source::new(&text(path), language, &["HAS_DOUBLES".to_owned()])
}

/// A part of a buffer, by rows of its shape.
#[derive(Clone, Copy)]
pub(crate) enum Rows {
    Whole,
    /// So many rows per item, and so many more before and behind.
    Each(u64, u64, u64),
    /// A row per item, without so many at each end of the buffer.
    Inner(u64),
    /// A column per item, and so many beside it.
    Columns(u64),
    /// An item is an element: its row of 64 elements, and so many more on each side.
    Around(u64),
    /// So many rows per group of 16 items, and so many more on each side.
    Groups(u64, u64),
}

use Access::{Overwrites, Reads, Updates};
use Rows::{Around, Columns, Each, Groups, Inner, Whole};

/// A row of the table: the kernel's launch, and for each buffer its rows, the bytes of a row, and what a
/// package does with it.
pub(crate) struct Case {
    pub(crate) path: &'static str,
    pub(crate) kernel: &'static str,
    pub(crate) sizes: [u64; 3],
    pub(crate) group: [u64; 3],
    pub(crate) axis: usize,
    /// The integers by name.
    pub(crate) integers: &'static [(&'static str, i128)],
    /// Items per work-item along the axis.
    pub(crate) buffers: &'static [(&'static str, u64, u64, Rows, Access)],
}

pub(crate) fn launch(case: &Case, analysis: &Analysis, end: u64) -> Launch {
    let integer = |name: &str| {
        if name == "end" {
            return i128::from(end);
        }
        let found = case.integers.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("{}: no value of {name}", case.kernel)).1
    };
    let integers = analysis.parameters().iter();
    let integers = integers.map(|of| match of.kind {
        ParameterKind::Integer { .. } => vec![integer(&of.name)],
        _ => Vec::new(),
    });
    Launch { sizes: case.sizes, group: case.group, axis: case.axis, integers: integers.collect() }
}

const STEPS: &[(&str, i128)] = &[("columns", 64), ("rows", 48), ("planes", 32)];

pub(crate) const CASES: &[Case] = &[
    Case {
        path: "dml-analysis/tests/kernels/overlapping.cl",
        kernel: "plate",
        sizes: [64, 64, 1],
        group: [16, 16, 1],
        axis: 1,
        integers: &[("edge", 48)],
        buffers: &[
            ("heat", 48, 192, Groups(12, 2), Reads),
            ("power", 48, 192, Groups(12, 2), Reads),
            ("out", 48, 192, Groups(12, 0), Updates),
        ],
    },
    Case {
        path: "dml-analysis/tests/kernels/overlapping.cl",
        kernel: "path",
        sizes: [640, 1, 1],
        group: [16, 1, 1],
        axis: 0,
        integers: &[("columns", 480), ("start", 0)],
        buffers: &[
            ("wall", 480, 4, Groups(12, 1), Reads),
            ("from", 480, 4, Groups(12, 2), Reads),
            ("to", 480, 4, Groups(12, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cl",
        kernel: "jacobi",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 512, Each(1, 1, 1), Reads), ("to", 48, 512, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cl",
        kernel: "stencil2d",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(1, 1, 1), Reads), ("to", 48, 256, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cl",
        kernel: "stencil3d",
        sizes: [64, 48, 32],
        group: [16, 4, 1],
        axis: 2,
        integers: STEPS,
        buffers: &[("from", 32, 12288, Each(1, 1, 1), Reads), ("to", 32, 12288, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cl",
        kernel: "prk_star",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 512, Each(1, 2, 2), Reads), ("to", 48, 512, Inner(2), Updates)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cl",
        kernel: "prk_add",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("grid", 48, 512, Each(1, 0, 0), Updates)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cl",
        kernel: "gray_scott",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[
            ("u", 48, 256, Each(1, 1, 1), Reads),
            ("v", 48, 256, Each(1, 1, 1), Reads),
            ("new_u", 48, 256, Each(1, 0, 0), Overwrites),
            ("new_v", 48, 256, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/stencil2d/stencil2d.cl",
        kernel: "stencil",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(1, 1, 1), Reads), ("to", 48, 256, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "examples/apps/stencil2d/stencil2d.cl",
        kernel: "stencil_local",
        sizes: [64, 12, 1],
        group: [32, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(4, 1, 1), Reads), ("to", 48, 256, Each(4, 0, 0), Overwrites)],
    },
    Case {
        path: "examples/apps/stencil2d/stencil2d.cl",
        kernel: "stencil_tiled",
        sizes: [64, 12, 1],
        group: [16, 1, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(4, 1, 1), Reads), ("to", 48, 256, Each(4, 0, 0), Overwrites)],
    },
    Case {
        path: "examples/apps/matmul/matmul.cl",
        kernel: "matmul",
        sizes: [64, 64, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: &[("n", 64)],
        buffers: &[
            ("a", 64, 256, Each(1, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("c", 64, 256, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/matmul/matmul.cl",
        kernel: "matmul_local",
        sizes: [16, 16, 1],
        group: [16, 16, 1],
        axis: 1,
        integers: &[("n", 64)],
        buffers: &[
            ("a", 64, 256, Each(4, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("c", 64, 256, Each(4, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/matmul/matmul.cl",
        kernel: "matmul_tiled",
        sizes: [4, 8, 1],
        group: [1, 1, 1],
        axis: 1,
        integers: &[("n", 64)],
        buffers: &[
            ("a", 64, 256, Each(8, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("c", 64, 256, Each(8, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/matmul/matmul.cl",
        kernel: "matmul",
        sizes: [256, 256, 1],
        group: [16, 4, 1],
        axis: 0,
        integers: &[("n", 256)],
        buffers: &[
            ("a", 256, 1024, Whole, Reads),
            ("b", 256, 1024, Columns(0), Reads),
            ("c", 256, 1024, Columns(0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/matmul.cl",
        kernel: "matmul",
        sizes: [64, 64, 1],
        group: [16, 16, 1],
        axis: 1,
        integers: &[("edge", 64)],
        buffers: &[
            ("a", 64, 256, Each(1, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("out", 64, 256, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/nbody/nbody.cl",
        kernel: "nbody",
        sizes: [256, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[("bodies", 256)],
        buffers: &[
            ("positions", 256, 16, Whole, Reads),
            ("velocities", 256, 16, Each(1, 0, 0), Reads),
            ("new_positions", 256, 16, Each(1, 0, 0), Overwrites),
            ("new_velocities", 256, 16, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/nbody/nbody.cl",
        kernel: "nbody_local",
        sizes: [1024, 1, 1],
        group: [256, 1, 1],
        axis: 0,
        integers: &[("bodies", 1024)],
        buffers: &[
            ("positions", 1024, 16, Whole, Reads),
            ("velocities", 1024, 16, Each(1, 0, 0), Reads),
            ("new_positions", 1024, 16, Each(1, 0, 0), Overwrites),
            ("new_velocities", 1024, 16, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/nbody/nbody.cl",
        kernel: "nbody_tiled",
        sizes: [16, 1, 1],
        group: [1, 1, 1],
        axis: 0,
        integers: &[("bodies", 256)],
        buffers: &[
            ("positions", 256, 16, Whole, Reads),
            ("velocities", 256, 16, Each(16, 0, 0), Reads),
            ("new_positions", 256, 16, Each(16, 0, 0), Overwrites),
            ("new_velocities", 256, 16, Each(16, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/nbody.cl",
        kernel: "nbody",
        sizes: [256, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[("bodies", 256)],
        buffers: &[
            ("positions", 256, 16, Whole, Reads),
            ("velocities", 256, 16, Each(1, 0, 0), Reads),
            ("new_positions", 256, 16, Each(1, 0, 0), Overwrites),
            ("new_velocities", 256, 16, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/heat/heat.cl",
        kernel: "heat",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(1, 1, 1), Reads), ("to", 48, 256, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/gaussian.cl",
        kernel: "gaussian",
        sizes: [3072, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[("width", 64), ("height", 48), ("radius", 3)],
        buffers: &[
            ("image", 48, 256, Around(3), Reads),
            ("weights", 49, 4, Whole, Reads),
            ("out", 3072, 4, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/saxpy.cl",
        kernel: "saxpy",
        sizes: [1024, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[],
        buffers: &[
            ("x", 1024, 4, Each(1, 0, 0), Reads),
            ("y", 1024, 4, Each(1, 0, 0), Reads),
            ("out", 1024, 4, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/vecadd.cl",
        kernel: "vecadd",
        sizes: [1024, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[],
        buffers: &[
            ("a", 1024, 4, Each(1, 0, 0), Reads),
            ("b", 1024, 4, Each(1, 0, 0), Reads),
            ("out", 1024, 4, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cu",
        kernel: "jacobi",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 512, Each(1, 1, 1), Reads), ("to", 48, 512, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cu",
        kernel: "stencil2d",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(1, 1, 1), Reads), ("to", 48, 256, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cu",
        kernel: "stencil3d",
        sizes: [64, 48, 32],
        group: [16, 4, 1],
        axis: 2,
        integers: STEPS,
        buffers: &[("from", 32, 12288, Each(1, 1, 1), Reads), ("to", 32, 12288, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cu",
        kernel: "prk_star",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 512, Each(1, 2, 2), Reads), ("to", 48, 512, Inner(2), Updates)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cu",
        kernel: "prk_add",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("grid", 48, 512, Each(1, 0, 0), Updates)],
    },
    Case {
        path: "dml-workloads/src/kernels/steps.cu",
        kernel: "gray_scott",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[
            ("u", 48, 256, Each(1, 1, 1), Reads),
            ("v", 48, 256, Each(1, 1, 1), Reads),
            ("new_u", 48, 256, Each(1, 0, 0), Overwrites),
            ("new_v", 48, 256, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/stencil2d/stencil2d.cu",
        kernel: "stencil",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(1, 1, 1), Reads), ("to", 48, 256, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "examples/apps/stencil2d/stencil2d.cu",
        kernel: "stencil_local",
        sizes: [64, 12, 1],
        group: [32, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(4, 1, 1), Reads), ("to", 48, 256, Each(4, 0, 0), Overwrites)],
    },
    Case {
        path: "examples/apps/matmul/matmul.cu",
        kernel: "matmul",
        sizes: [64, 64, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: &[("n", 64)],
        buffers: &[
            ("a", 64, 256, Each(1, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("c", 64, 256, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/matmul/matmul.cu",
        kernel: "matmul_local",
        sizes: [16, 16, 1],
        group: [16, 16, 1],
        axis: 1,
        integers: &[("n", 64)],
        buffers: &[
            ("a", 64, 256, Each(4, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("c", 64, 256, Each(4, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/matmul/matmul.cu",
        kernel: "matmul",
        sizes: [256, 256, 1],
        group: [16, 4, 1],
        axis: 0,
        integers: &[("n", 256)],
        buffers: &[
            ("a", 256, 1024, Whole, Reads),
            ("b", 256, 1024, Columns(0), Reads),
            ("c", 256, 1024, Columns(0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/matmul.cu",
        kernel: "matmul",
        sizes: [64, 64, 1],
        group: [16, 16, 1],
        axis: 1,
        integers: &[("edge", 64)],
        buffers: &[
            ("a", 64, 256, Each(1, 0, 0), Reads),
            ("b", 64, 256, Whole, Reads),
            ("out", 64, 256, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/nbody/nbody.cu",
        kernel: "nbody",
        sizes: [256, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[("bodies", 256)],
        buffers: &[
            ("positions", 256, 16, Whole, Reads),
            ("velocities", 256, 16, Each(1, 0, 0), Reads),
            ("new_positions", 256, 16, Each(1, 0, 0), Overwrites),
            ("new_velocities", 256, 16, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/nbody/nbody.cu",
        kernel: "nbody_local",
        sizes: [1024, 1, 1],
        group: [256, 1, 1],
        axis: 0,
        integers: &[("bodies", 1024)],
        buffers: &[
            ("positions", 1024, 16, Whole, Reads),
            ("velocities", 1024, 16, Each(1, 0, 0), Reads),
            ("new_positions", 1024, 16, Each(1, 0, 0), Overwrites),
            ("new_velocities", 1024, 16, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/nbody.cu",
        kernel: "nbody",
        sizes: [256, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[("bodies", 256)],
        buffers: &[
            ("positions", 256, 16, Whole, Reads),
            ("velocities", 256, 16, Each(1, 0, 0), Reads),
            ("new_positions", 256, 16, Each(1, 0, 0), Overwrites),
            ("new_velocities", 256, 16, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "examples/apps/heat/heat.cu",
        kernel: "heat",
        sizes: [64, 48, 1],
        group: [16, 4, 1],
        axis: 1,
        integers: STEPS,
        buffers: &[("from", 48, 256, Each(1, 1, 1), Reads), ("to", 48, 256, Each(1, 0, 0), Overwrites)],
    },
    Case {
        path: "dml-workloads/src/kernels/gaussian.cu",
        kernel: "gaussian",
        sizes: [3072, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[("width", 64), ("height", 48), ("radius", 3)],
        buffers: &[
            ("image", 48, 256, Around(3), Reads),
            ("weights", 49, 4, Whole, Reads),
            ("out", 3072, 4, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/saxpy.cu",
        kernel: "saxpy",
        sizes: [1024, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[],
        buffers: &[
            ("x", 1024, 4, Each(1, 0, 0), Reads),
            ("y", 1024, 4, Each(1, 0, 0), Reads),
            ("out", 1024, 4, Each(1, 0, 0), Overwrites),
        ],
    },
    Case {
        path: "dml-workloads/src/kernels/vecadd.cu",
        kernel: "vecadd",
        sizes: [1024, 1, 1],
        group: [64, 1, 1],
        axis: 0,
        integers: &[],
        buffers: &[
            ("a", 1024, 4, Each(1, 0, 0), Reads),
            ("b", 1024, 4, Each(1, 0, 0), Reads),
            ("out", 1024, 4, Each(1, 0, 0), Overwrites),
        ],
    },
];

/// The body of a kernel of two buffers of floats and one of integers, and what it touches.
pub(crate) const BODIES: &[(&str, &str)] = &[
    // Plain.
    ("a[i] = b[i];", "a w 64..128, b r 64..128, k -"),
    ("a[i] += b[i + 1];", "a u 64..128, b r 68..132, k -"),
    ("a[n - 1 - i] = b[2 * i];", "a w 128..192, b r 128..252, k -"),
    ("a[i] = b[0] + b[n - 1];", "a w 64..128, b r 0..256, k -"),
    // Guards.
    ("if (i > 20) a[i] = 1;", "a w 84..128, b -, k -"),
    ("if (i == 17) a[0] = 1;", "a w 0..4, b -, k -"),
    ("if (i < 5) a[i] = 1;", "a w , b -, k -"),
    ("if (b[i] > 0) a[i] = 1;", "a u 64..128, b r 64..128, k -"),
    ("if (n < 64 && b[i] > 0) return; a[i] = 1;", "a w 64..128, b r , k -"),
    ("if (b[i] > 0) a[i] = 1; else a[i] = 2;", "a w 64..128, b r 64..128, k -"),
    ("if (i > 20 && b[i] > 0) { a[i] = 1; return; } a[i] = 2;", "a w 64..128, b r 84..128, k -"),
    ("if (i > 20) { a[i] = 1; return; } a[i] = 2;", "a w 64..128, b -, k -"),
    ("if (i & 1) a[i] = 1;", "a u 64..128, b -, k -"),
    ("uint j = i - 20; if (j < 4) a[j] = 1;", "a w 0..16, b -, k -"),
    ("int j = (int)i - 20; if (j < 4) a[i] = b[max(j, 0)];", "a w 64..96, b r 0..16, k -"),
    // Loops.
    (
        "float s = 0; for (int j = 0; j < 4; j++) s += b[i * 2 + j]; a[i] = s;",
        "a w 64..128, b r 128..256, k -",
    ),
    ("for (uint j = i; j < n; j += get_global_size(0)) a[j] = 1;", "a u 64..128, b -, k -"),
    ("for (int j = 3; j >= 0; j--) a[i] = b[j];", "a w 64..128, b r 0..16, k -"),
    ("int j = 0; while (b[j] > 0) j++; a[i] = j;", "a w 64..128, b r 0..256, k -"),
    ("int j = 0; do { a[i] = b[j]; j += 2; } while (j < 6);", "a w 64..128, b r 0..20, k -"),
    ("for (int j = 0; j < 8; j++) { if (b[j] > 0) break; a[j] = 1; }", "a u 0..32, b r 0..32, k -"),
    (
        "int found = 0; for (int j = 0; j < 8; j++) if (b[j] > 0) { found = j; break; } a[found] = 1;",
        "a refused 4:",
    ),
    ("for (int j = 0; j < 4; j++) { if (j == 2) continue; a[i] = b[j]; }", "a u 64..128, b r 0..16, k -"),
    ("int s = 1; for (int j = 0; j < 3; j++) { a[i] = b[s]; s *= 2; }", "b refused"),
    ("for (int j = 0; j < 2; j++) for (int l = 0; l < j; l++) a[i] = b[l];", "a u 64..128, b r 0..4, k -"),
    // Values from memory.
    ("a[i] = b[k[i]];", "b refused"),
    ("a[k[i] & 7] = 1;", "a u 0..32"),
    ("uchar c = (uchar)k[i]; a[i] = b[c % 16];", "a w 64..128, b r 0..64"),
    ("a[(int)b[i]] = 1;", "a refused"),
    // Pointers.
    ("global float *p = a + i; *p = 1; p[1] = 2;", "a w 64..132, b -, k -"),
    ("global float *p = a; for (int j = 0; j < 4; j++) *p++ = b[i];", "a w 0..16, b r 64..128, k -"),
    ("global float *p = i > 20 ? a : b; *p = 1;", "refused"),
    ("global float *p = k[0] ? a + i : a; *p = 1;", "a u 0..128"),
    ("vstore4(vload4(0, b + i), i / 4, a);", "a u 64..128, b r 64..140"),
    ("global float2 *p = (global float2 *)b; a[i] = p[i].y;", "a w 64..128, b r 132..256"),
    ("*(global char *)(a + i) = 1;", "a w 64..65 68..69"),
    ("int j = 5; int *q = &j; *q = 9; a[j] = 1;", "a refused"),
    // Numbers of groups.
    ("a[get_group_id(0)] = 1;", "a w 4..8, b -, k -"),
    ("if (get_local_id(0) == 0) a[get_group_id(0)] = 1;", "a w 4..8, b -, k -"),
    ("if (get_local_id(0) == 0) a[i] = 1;", "a u 64..128, b -, k -"),
    ("if (i == 17) a[get_local_id(0)] = 1;", "a u 0..64, b -, k -"),
    ("a[get_group_id(0) * get_local_size(0) + get_local_id(0)] = 1;", "a w 64..128, b -, k -"),
    ("a[i / 16 * 16 + i % 16] = 1;", "a w 64..128, b -, k -"),
    ("a[(i >> 2) << 2] = 1;", "a u 64..68 80..84 96..100 112..116, b -, k -"),
    ("a[i] = get_num_groups(0);", "a w 64..128, b -, k -"),
    // Local memory, functions, atomics.
    (
        "local float t[16]; t[get_local_id(0)] = b[i]; barrier(1); a[i] = t[15 - get_local_id(0)];",
        "a w 64..128, b r 64..128, k -",
    ),
    ("local int t[1]; t[0] = 3; a[t[0]] = 1;", "a refused"),
    ("a[i] = twice(b, i);", "a w 64..128, b r 128..252"),
    ("a[i] = unknown(b);", "refused"),
    ("a[i] = unknown(2.0f);", "a w 64..128, b -, k -"),
    ("atomic_add(&k[0], 1);", "a -, b -, k u 0..4"),
    ("atomic_add(&k[k[i]], 1);", "k refused"),
    ("switch (i) { case 17: a[i] = 1; }", "a w 68..72, b -, k -"),
    (
        "switch (i) { case 17: case 18: a[i] = 1; break; default: { a[0] = b[i]; break; } case 20: return; }",
        "a u 0..4 68..76, b r 64..128, k -",
    ),
    ("int q = 3; switch (k[0]) { case 1: q = 5; break; case 2: q = 7; } a[q] = 1;", "a u 12..32, b -"),
    ("switch (i) { case 17: a[i] = 1; case 18: a[0] = 1; }", "refused"),
    ("switch (i) { case 17: if (b[0] > 0) break; a[i] = 1; }", "refused"),
    (
        "for (int j = 0; j < 4; j++) switch (j) { case 1: continue; default: a[j] = 1; }",
        "a u 0..16, b -, k -",
    ),
    ("switch (i) { default: for (;;) { a[i] = 1; break; } }", "a w 64..128, b -, k -"),
    ("a[i] = b[i] ; goto end; end: return;", "refused"),
    ("a[WHO] = 1;", "a refused"),
    // Assignments that are not always done.
    ("int q = (int)i - 20; q < 0 && (q = 0); a[i] = b[q];", "a w 64..128, b r 0..48, k -"),
    ("uint q = i; (q < 20) || (q = 20); a[i] = b[q];", "a w 64..128, b r 64..84, k -"),
    ("uint q = i; q < 20 ? (q = 3) : (q += 1); a[i] = b[q];", "a w 64..128, b r 12..132, k -"),
    ("int q = 0; while (q < 3 && (q += 2) < 9) a[i] = b[q];", "a u 64..128, b r"),
    // What a loop leaves behind.
    ("int j = 0; for (;;) { j++; if (b[j] > 0) break; } a[j] = 1;", "a refused"),
    ("int j = 3; while (j-- > 0) a[i] = b[j]; a[j + 1] = 2;", "a w 0..4 64..128, b r 0..12, k -"),
    (
        "int j = 0; do { j += 2; } while (j < 6); a[j] = b[i];",
        "a u 0..4 8..12 16..20 24..28, b r 64..128, k -",
    ),
    ("int j = 0; for (; j < 5; j++) { } a[j] = b[i];", "a w 20..24, b r 64..128, k -"),
    ("int j = 0; for (; j < 5; j++) if (b[j] > 40) break; a[j] = b[i];", "a u 0..24, b r 0..128, k -"),
    // Small types, and variables that change by their addresses.
    ("uchar c; c = 4 * i + 200; a[i] = b[c % 64];", "a w 64..128, b r 0..256, k -"),
    ("uchar c = 250; c += 10; a[i] = b[c];", "a w 64..128, b r 16..20, k -"),
    ("char c = 250; a[i] = b[i + c];", "a w 64..128, b r 40..104, k -"),
    ("int j = 5; int *q = &j; j = 3; *q = 9; a[j] = 1;", "a refused"),
    ("int j = 5; for (int l = 0; l < 2; l++) { int *q = &j; *q = 9; } j = 3; a[j] = 1;", "a refused"),
    // Elements of vectors.
    ("((global float4 *)a)[i / 4].xz = (float2)(b[i], 1);", "a u 64..68 72..76 80..84"),
    ("((global float4 *)a)[i / 4].y = b[i];", "a u 68..72 84..88"),
    ("a[i] = ((global float4 *)b)[i / 4].w;", "a w 64..128, b r 76..128"),
    // Numbers that their types cannot hold.
    ("uint q = i + 0xffffffffu; a[i] = q < n ? b[q] : 0;", "a w 64..128, b r 60..124, k -"),
    ("uint q = i - 20u; uint m = min(q, n); a[i] = m == n ? b[0] : b[q];", "a w 64..128, b r 0..48, k -"),
    ("uint h = (i * 2654435761u) >> 26; a[i] = b[h];", "a w 64..128, b r 0..256, k -"),
    ("uint h = i * 2654435761u; a[i] = b[h < n ? h : 0];", "a w 64..128, b r 0..256, k -"),
    ("uint q = i - 20u; a[i] = b[q / 67108864u];", "a w 64..128, b r 0..256, k -"),
    // Choices: two between the same numbers are two, and one with a condition is not both.
    ("int x = b[i] > 5 ? 1 : 0, y = b[i + 1] > 5 ? 1 : 0; a[i + 1 + x - y] = 1;", "a u 64..136"),
    ("int x = b[i] > 5 ? 9 : 3, y = b[i + 1] > 5 ? 9 : 3; if (x > y) a[i] = 1;", "a u 64..128"),
    ("int x = b[i] > 5 ? 9 : 3; if (x > 5 && x < 4) a[i] = 1; a[0] = x;", "a w 0..4, b r"),
    ("int x = i > 20 ? 9 : 3; a[x] = 1;", "a w 12..16 36..40, b -, k -"),
    ("int w = i > 0 ? i - 1 : i; a[i] = b[w];", "a w 64..128, b r 60..124, k -"),
    ("int w = i; if (i % 2) w = i + 1; a[i] = b[w];", "a w 64..128, b r 64..132, k -"),
    ("int p = 0; for (int j = 0; j < 4; j++) { p += b[j] > 0 ? 1 : 0; a[p] = 1; }", "a refused"),
    // Flags.
    ("bool is = false; if (i > 20) is = true; if (is) a[i] = 1;", "a w 84..128, b -, k -"),
    ("bool is = true; if (i > 20) is = false; if (!is) a[i] = 1;", "a w 84..128, b -, k -"),
    ("bool is = b[i] > 3; if (i > 20) is = false; if (is) a[i] = 1;", "a u 64..84"),
    (
        "bool is; for (int j = 0; j < 3; j++) { is = false; if (i > 20 + j) is = true; if (j == 2) break; } \
         if (is) a[i] = 1;",
        "a u 92..128, b -, k -",
    ),
    (
        "bool is = true; for (int j = 0; j < 3; j++) { if (b[j] > 9) break; is = i > 20 + j; } if (!is) a[i] = 1;",
        "a u 64..128",
    ),
    ("bool is = i > 20; for (int j = 5; j < 3; j++) is = false; if (is) a[i] = 1;", "a w 84..128, b -, k -"),
    ("bool is = false; for (int j = 0; j < 3; j++) is = is || i == j; if (is) a[i] = 1;", "a u 64..128"),
    (
        "bool is; for (int j = 0; j < 3; j++) { if (b[j] > 0) { is = true; if (j == 0) a[i] = 1; } \
         else is = false; } if (!is) a[i] = 2;",
        "a u 64..128",
    ),
    (
        "bool is; for (int j = 0; j < 3; j++) { is = b[j] > 0; if (is && j == 0) a[i] = 1; } if (!is) a[i] = 2;",
        "a u 64..128",
    ),
    (
        "int x = 0; for (int j = 0; j < 3; j++) { x = b[j] > 0 ? 4 : 8; if (x == 4 && j == 0) a[i] = 1; } \
         if (x == 8) a[i] = 2;",
        "a u 64..128",
    ),
    // Tables.
    ("const int o[3] = {-1, 0, 4}; a[i] = b[i + o[i % 3]];", "a w 64..128, b r 60..144, k -"),
    ("const int o[2][2] = {{1, 2}, {3}}; a[i] = b[i + o[k[i] & 1][1]];", "a w 64..128, b r 64..140"),
    ("const int o[2] = {256, 2}; a[i] = b[i + ((const char *)o)[1]];", "b refused"),
    ("int o[2] = {1, 2}; o[1] = 9; a[i] = b[i + o[1]];", "b refused"),
    ("int x = k[0]; for (int j = 0; j < 3; j++) x = i > 20 + j; a[x] = 1;", "a refused"),
    ("int x = 5; for (int j = 0; j < 0; j++) x = i > 20 + j; a[x] = 1;", "a refused"),
    ("uchar x = 5; for (int j = 0; j < 0; j++) x = 1; a[x] = 1;", "a refused"),
    // Elements of vectors in loops and functions.
    ("uint3 p = 0; for (p.z = 1; p.z < 4; ++p.z) a[p.z + p.x] = 1;", "a w 4..16"),
    ("int2 p = (int2)(i, 0); for (int j = 0; j < 3; j++, p += (int2)(1, 2)) a[p.x] = p.y;", "a w 64..136"),
    (
        "int2 p = (int2)(i, 0); for (int j = 0; j < 3; j++) { p.y += 1; if (b[0] > 3) break; } a[p.x] = 1;",
        "a",
    ),
    (
        "int2 q = clamp((int2)(i - 4, i + 4), (int2)(20), (int2)(30)); a[q.x] = b[q.y];",
        "a u 80..112, b r 80..124",
    ),
    ("int4 p = (int4)(1, 2, 3, 4); for (int j = 0; j < 2; j++) p = p.yxwz; a[p.x] = 1;", "a refused"),
    ("int4 p = 0; p.xy.y = i; p.zw = (int2)(1, 2); a[p.y + p.w] = 1;", "a w 72..136"),
    ("uchar2 p = (uchar2)(300, i); p.y += 250; a[p.x] = 1;", "a w 176..180"),
    ("uchar2 p; p.x = i + 250; a[p.x & 63] = 1;", "a u 0..256"),
    ("int2 p = convert_int2((uint2)(i, 3)); a[p.x + p.y] = 1;", "a w 76..140"),
    (
        "float t[8]; for (int j = 0; j < sizeof(t) / sizeof(float); j++) t[j] = 1; a[i] = t[0];",
        "a w 64..128, b -",
    ),
    ("for (uint d = 0xffffffff; d != 2; d++) a[d + 1] = 1;", "a"),
    ("uint r = 0xfffffffa; uint j = i + r; if (j < n) a[j] = 1;", "a w 40..104, b -, k -"),
    // Found by comparing random kernels with their simulations.
    ("for (int j = 0; j < 5; j++) { a[j] = 1; if (i > 20) break; }", "a u 0..20, b -, k -"),
    ("for (int j = 0; j < 5; j++) { a[j] = 1; if (b[i] > 5) return; }", "a u 0..20, b r 64..128, k -"),
    ("for (int j = 0; j < 8; j++) { if (min(j, 9) < 3) break; a[j] = 1; }", "a u 12..32, b -, k -"),
    ("for (int j = 0; (j < 8 && (k[j] = 1) > 0) && j < 2; j++) { }", "a -, b -, k u 0..32"),
    ("int v = 7; while (v <= 0) { a[0] = 1; v -= 1; }", "a u 0..4, b -, k -"),
    ("uint j = 0; while (j--) a[0] = 1;", "a u 0..4, b -, k -"),
    (
        "uint g = get_group_id(0); if (g > 0) for (int j = 0; j < 4; j += g) b[j] = 1; if (g == 0) a[i] = 1;",
        "a w , b u 0..16, k -",
    ),
    (
        "if (n > 64) { for (int j = 0; j < 90; j += (int)n - 64) b[0] = 1; } a[i] = 1;",
        "a w 64..128, b w , k -",
    ),
    ("b[i] > 0 ? (a[i] = 1) : 0; b[(i + 1) & 63] > 5 ? 0 : (a[i] = 2);", "a u 64..128, b r 64..132, k -"),
    ("b[i] > 0 && (a[i] = 1) > 0; b[63 - i] > 0 || (a[i] = 2) > 0;", "a u 64..128, b r 64..192, k -"),
    (
        "while (b[i] > 0) { a[i] = 1; b[i] = -1; } while (!(b[63-i] > 0)) { a[i] = 2; b[63-i] = 1; }",
        "a u 64..128, b u 64..192, k -",
    ),
    ("uint g = get_group_id(0); if (i < 3u) b[g < 3 ? 8u : 31u] = 0;", "a -, b w , k -"),
    ("a[(2u - 5) % 64u] = 1;", "a w 244..248, b -, k -"),
    ("a[min(2u - 5, 63u)] = 1;", "a w 252..256, b -, k -"),
    ("uint q = ~0; a[q / 67108864u] = 1;", "a w 252..256, b -, k -"),
    ("a[((0u - 8) >> 27)] = 1;", "a w 124..128, b -, k -"),
    ("int v = (int)i - 64; a[v & 31u] = 1;", "a u 0..128, b -, k -"),
    ("long q = i - 20u; if (q >= 0) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uint p = i - 20u, q = i - 24u; if (p >= q) a[i] = 1;", "a u 64..128, b -, k -"),
    ("uint v = 17u - 63u; if (v <= v) a[i] = 1;", "a w 64..128, b -, k -"),
    ("if (abs((int)i - 20) - 5 < 3) a[i] = 1;", "a u 64..112, b -, k -"),
    ("uchar c = 0; if ((c = 300) < 100) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uchar c = 255; if (++c < 100) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uchar c = (uchar)k[i]; uchar d = c << 4; if (d < 100) a[c & 63] = 1;", "a u 0..256, b -, k r 64..128"),
    ("uchar u = (uchar)k[i]; char c = u; a[(c + 128) / 4] = 1;", "a u 0..256, b -, k r 64..128"),
    ("char c = (char)k[i]; if (c > -4 && c < 4) a[(c >> 1) + 8] = 1;", "a u 24..40, b -, k r 64..128"),
    ("bool f = 4; a[f ? 1 : 2] = 1; a[(bool)6 + 8] = 1;", "a w 4..8 36..40, b -, k -"),
    ("bool f = 256; if (f) a[i] = 1;", "a w 64..128, b -, k -"),
    ("a[convert_uchar_sat(300) & 63] = 1;", "a u 0..256, b -, k -"),
    (
        "int2 c = (int2)(1, 2) > 0; a[c.x + 5] = 1;",
        "a refused 4:29: an index that is not known before the kernel runs: a comparison of vectors at 4:23, b -, k -",
    ),
    ("a[i] = ((global float4 *)b)[i / 4].xz.x;", "a w 64..128, b r 64..116, k -"),
    ("((global float4 *)a)[i / 4].xz.y = 1;", "a u 72..76 88..92 104..108 120..124, b -, k -"),
    ("int2 v=(int2)(1,2); v.xy.x = 9; a[v.x]=1;", "a w 36..40, b -, k -"),
    ("int2 z = (int2)((uint)5, 16); if (z.x - z.y < 0) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uint q = 0; for (uint j = 0; j < q - 2u; j += 0x10000000u) a[i] = 1;", "a w 64..128, b -, k -"),
    // What is read beside what is written.
    ("for (int j = 0; j < 2; j++) a[j * 32 + i / 8] *= 2;", "a u 8..16 136..144, b -, k -"),
    // Tests as numbers.
    ("if ((i < 20) | (i > 24)) return; a[i] = 1;", "a w 80..100, b -, k -"),
    ("bool in = i > 20 && i < n; if (!in) return; a[i] = 1;", "a w 84..128, b -, k -"),
    ("int in = i > 20; a[i + in] = 1;", "a u 64..132, b -, k -"),
    // Names in inner scopes.
    ("int j = 1; { int j = 2; a[j] = 1; } a[j] = 1;", "a w 4..12, b -, k -"),
    ("for (int i = 0; i < 2; i++) a[i] = 1;", "a w 0..8, b -, k -"),
];

/// Returns the kernel `f` with a body of [`BODIES`].
pub(crate) fn kernel_of(body: &str) -> String {
    format!(
        "float twice(global const float *p, uint at) {{ return p[2 * at]; }}\n\
         kernel void f(global float *a, global float *b, global int *k, uint n) {{\n\
         uint i = get_global_id(0);\n{body}\n}}\n"
    )
}
