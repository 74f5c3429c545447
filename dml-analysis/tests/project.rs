//! The kernels of the project and of its applications: what they touch is what their programs declare.

#![allow(clippy::single_range_in_vec_init, reason = "a part is a list of ranges")]

use dml_analysis::{Access, Analysis, Language, Launch, ParameterKind, Source};
use std::fs;
use std::ops::Range;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn source(path: &str) -> Source {
    let language = if path.ends_with(".cu") { Language::Cuda } else { Language::OpenCl };
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    // These are compiled as two files in one.
    let text = if path.ends_with("steps.cl") || path.ends_with("steps.cu") {
        read(path) + &read(&format!("{folder}/steps.c"))
    } else {
        read(path)
    };
    Source::new(&text, language, &["HAS_DOUBLES".to_owned()])
}

/// A part of a buffer, by rows of its shape.
#[derive(Clone, Copy)]
enum Rows {
    Whole,
    /// So many rows per item, and so many more before and behind.
    Each(u64, u64, u64),
    /// A row per item, without so many at each end of the buffer.
    Inner(u64),
    /// A column per item, and so many beside it.
    Columns(u64),
    /// An item is an element: its row of 64 elements, and so many more on each side.
    Around(u64),
}

use Access::{Overwrites, Reads, Updates};
use Rows::{Around, Columns, Each, Inner, Whole};

/// A row of the table: the kernel's launch, and for each buffer its rows, the bytes of a row, and what a
/// package does with it.
struct Case {
    path: &'static str,
    kernel: &'static str,
    sizes: [u64; 3],
    group: [u64; 3],
    axis: usize,
    /// The integers by name.
    integers: &'static [(&'static str, i128)],
    /// Items per work-item along the axis.
    buffers: &'static [(&'static str, u64, u64, Rows, Access)],
}

fn launch(case: &Case, analysis: &Analysis, end: u64) -> Launch {
    let integer = |name: &str| {
        if name == "end" {
            return Some(i128::from(end));
        }
        let found = case.integers.iter().find(|(known, _)| *known == name);
        Some(found.unwrap_or_else(|| panic!("{}: no value of {name}", case.kernel)).1)
    };
    let integers = analysis.parameters().iter();
    let integers =
        integers.map(|of| if of.kind == ParameterKind::Integer { integer(&of.name) } else { None });
    Launch { sizes: case.sizes, group: case.group, axis: case.axis, integers: integers.collect() }
}

fn expected(part: Rows, items: Range<u64>, rows: u64, row: u64) -> Vec<Range<u64>> {
    match part {
        Whole => vec![0..rows * row],
        Each(count, before, behind) => {
            vec![
                (items.start * count).saturating_sub(before) * row
                    ..(items.end * count + behind).min(rows) * row,
            ]
        }
        Inner(margin) => vec![items.start.max(margin) * row..items.end.min(rows - margin) * row],
        Around(margin) => {
            let (first, last) = (items.start / 64, items.end.div_ceil(64));
            vec![first.saturating_sub(margin) * row..(last + margin).min(rows) * row]
        }
        Columns(margin) => {
            let columns = items.start.saturating_sub(margin) * 4..((items.end + margin) * 4).min(row);
            (0..rows).map(|at| at * row + columns.start..at * row + columns.end).collect()
        }
    }
}

/// Fills up rows. A stencil does not read the corners of its margin.
fn in_rows(part: Rows, bytes: Vec<Range<u64>>, row: u64) -> Vec<Range<u64>> {
    if let Columns(_) = part {
        return bytes;
    }
    let (first, last) =
        (bytes.first().map_or(0, |range| range.start), bytes.last().map_or(0, |range| range.end));
    let gap = bytes.windows(2).map(|pair| pair[1].start - pair[0].end).max().unwrap_or(0);
    assert!(gap < row, "a row is left out: {bytes:?}");
    vec![first / row * row..last.next_multiple_of(row)]
}

const STEPS: &[(&str, i128)] = &[("columns", 64), ("rows", 48), ("planes", 32)];

const CASES: &[Case] = &[
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

#[test]
fn parts_are_those_that_are_declared() {
    let mut wrong = Vec::new();
    for case in CASES {
        let analysis = source(case.path)
            .kernel(case.kernel)
            .unwrap_or_else(|refusal| panic!("{} of {}: {refusal}", case.kernel, case.path));
        let buffers =
            analysis.parameters().iter().filter(|of| matches!(of.kind, ParameterKind::Buffer { .. }));
        assert_eq!(buffers.count(), case.buffers.len(), "{}", case.kernel);
        let items = case.sizes[case.axis];
        let step = case.group[case.axis].max(items / 4).next_multiple_of(case.group[case.axis]);
        for begin in (0..items).step_by(step as usize) {
            let package = begin..(begin + step).min(items);
            let launch = launch(case, &analysis, package.end);
            for (name, rows, row, part, access) in case.buffers {
                let position =
                    analysis.parameters().iter().position(|of| of.name == *name).expect("the parameter");
                let launched = analysis.launch(&launch);
                let found = launched.part(position, package.clone(), rows * row).expect(name);
                let what = format!("{} of {}, {package:?}, {name}", case.kernel, case.path);
                let (bytes, declared) =
                    (in_rows(*part, found.bytes, *row), expected(*part, package.clone(), *rows, *row));
                if (&bytes, found.access) != (&declared, *access) {
                    wrong.push(format!(
                        "{what}: {bytes:?} {:?}, declared {declared:?} {access:?}",
                        found.access
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
