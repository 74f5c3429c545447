//! The programs of table 1 on a real device: their results and their calls. Without one the tests say so and pass, unless
//! `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

use dml_workloads::prepare::Input;
use dml_workloads::table1::{Bench, Measured, Mode, Operations, Row, Table1Error};

/// The programs of a row, or nothing and a word about it.
fn bench(test: &str, row: Row) -> Option<Bench> {
    match Bench::open(row) {
        Ok(bench) => Some(bench),
        Err(Table1Error::Device(reason)) => {
            let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
            assert!(!expected, "DML_EXPECT names opencl, and there is no device: {reason}");
            eprintln!("SKIPPED {test}: no OpenCL device: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn measured(test: &str, row: Row) -> Option<Measured> {
    let mut seen = Vec::new();
    let measured = bench(test, row)?.measure(Input::Tiny, 2, |mode| seen.push(mode)).unwrap();
    assert_eq!(seen.len(), 3 * Mode::ALL.len());
    for round in seen.chunks_mut(Mode::ALL.len()) {
        round.sort_unstable();
        assert_eq!(round, Mode::ALL);
    }
    for mode in Mode::ALL {
        let seconds = &measured.mode(mode).seconds;
        assert!(measured.mode(mode).mode == mode && seconds.len() == 2, "{seconds:?}");
        assert!(seconds.iter().all(|seconds| *seconds > 0.0), "{seconds:?}");
    }
    Some(measured)
}

/// Map, unmap, read, write, kernel, alloc, bind, copy.
fn calls(measured: &Measured, mode: Mode) -> [u64; 8] {
    let Operations { map, unmap, read, write, kernel, alloc, bind, copy, .. } =
        measured.mode(mode).operations;
    [map, unmap, read, write, kernel, alloc, bind, copy]
}

/// What the requirement asks of every row.
fn expect_no_more_than_by_hand(measured: &Measured) {
    let [hand, opt] = [Mode::Hand, Mode::Opt].map(|mode| measured.mode(mode).operations);
    assert!(opt.transfers() <= hand.transfers(), "{opt:?} {hand:?}");
    assert_eq!((opt.kernel, opt.copy), (hand.kernel, 0));
}

#[test]
fn vecadd_makes_these_calls() {
    let Some(measured) = measured("vecadd_makes_these_calls", Row::Vecadd) else { return };
    assert_eq!(calls(&measured, Mode::Hand), [1, 0, 0, 2, 1, 3, 0, 0]);
    assert_eq!(calls(&measured, Mode::HandBound), [1, 0, 0, 0, 1, 0, 3, 0]);
    assert_eq!(calls(&measured, Mode::Noopt), [3, 2, 0, 0, 1, 3, 0, 3]);
    assert_eq!(calls(&measured, Mode::Opt), [1, 0, 0, 0, 1, 0, 3, 0]);
    expect_no_more_than_by_hand(&measured);
}

#[test]
fn matmul_makes_these_calls() {
    let Some(measured) = measured("matmul_makes_these_calls", Row::Matmul) else { return };
    assert_eq!(calls(&measured, Mode::Hand), [0, 0, 1, 2, 1, 3, 0, 0]);
    assert_eq!(calls(&measured, Mode::HandBound), [1, 0, 0, 0, 1, 0, 3, 0]);
    assert_eq!(calls(&measured, Mode::Noopt), [3, 2, 0, 0, 1, 3, 0, 3]);
    assert_eq!(calls(&measured, Mode::Opt), [1, 0, 0, 0, 1, 0, 3, 0]);
    expect_no_more_than_by_hand(&measured);
}

#[test]
fn bfs_makes_these_calls_for_its_levels() {
    let Some(measured) = measured("bfs_makes_these_calls_for_its_levels", Row::Bfs) else { return };
    let levels = measured.size.iter().find(|(name, _)| *name == "levels").unwrap().1;
    assert!(levels > 4, "{levels}");
    assert_eq!(calls(&measured, Mode::Hand), [0, 0, levels + 1, levels + 6, 2 * levels, 7, 0, 0]);
    assert_eq!(calls(&measured, Mode::HandBound), [levels + 1, levels - 1, 0, 0, 2 * levels, 0, 7, 0]);
    let noopt = [levels + 8, levels + 6, 0, 0, 2 * levels, 7, 0, 2 * levels + 7];
    assert_eq!(calls(&measured, Mode::Noopt), noopt);
    assert_eq!(calls(&measured, Mode::Opt), [levels + 1, levels - 1, 0, 0, 2 * levels, 0, 7, 0]);
    expect_no_more_than_by_hand(&measured);
}

#[test]
fn noopt_makes_the_papers_calls_but_for_the_applications_storage() {
    // The paper's maps, unmaps and copies follow from its number of levels; its allocations include the host's storage.
    let Some(measured) = measured("noopt_makes_the_papers_calls", Row::Bfs) else { return };
    let levels = measured.size.iter().find(|(name, _)| *name == "levels").unwrap().1;
    let [map, unmap, .., copy] = calls(&measured, Mode::Noopt);
    let published = Row::Bfs.published(Mode::Noopt).unwrap();
    let published_levels = published.kernel / 2;
    assert_eq!(
        (published.map, published.unmap, published.copy),
        (
            map - levels + published_levels,
            unmap - levels + published_levels,
            Some(copy - 2 * levels + 2 * published_levels)
        )
    );
}

#[test]
fn a_size_that_the_table_does_not_have_is_refused() {
    let Some(mut bench) = bench("a_size_that_the_table_does_not_have_is_refused", Row::Matmul) else {
        return;
    };
    let refused = bench.measure(Input::Size(7), 1, |_| {}).unwrap_err();
    assert!(refused.to_string().contains("matmul has no size"), "{refused}");
}
