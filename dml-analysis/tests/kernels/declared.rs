//! What kernels touch is what their programs declare.

use super::cases::{CASES, Rows, launch, source};
use Rows::{Around, Columns, Each, Groups, Inner, Whole};
use dml_analysis::{Access, ParameterKind};
use std::ops::Range;

fn expected(part: Rows, items: Range<u64>, rows: u64, row: u64) -> Vec<Range<u64>> {
    match part {
        Whole => vec![0..rows * row],
        Each(count, before, behind) => {
            vec![
                (items.start * count).saturating_sub(before) * row
                    ..(items.end * count + behind).min(rows) * row,
            ]
        }
        Groups(count, margin) => {
            let (first, last) = (items.start / 16 * count, items.end.div_ceil(16) * count);
            vec![first.saturating_sub(margin) * row..(last + margin).min(rows) * row]
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
                // Inner packages may be known better than those at a border.
                let is_better = (*access, found.access) == (Access::Updates, Access::Overwrites);
                if bytes != declared || found.access != *access && !is_better {
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
