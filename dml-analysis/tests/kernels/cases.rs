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
