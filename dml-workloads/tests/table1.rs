//! The programs of table 1 on real devices: their results and their calls. Without a device the tests print a
//! note and pass, unless `DML_EXPECT` names `opencl` or `cuda`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

use dml_workloads::prepare::Input;
use dml_workloads::table1::{Bench, DEVICE, Framework, Measured, Mode, Operations, Row, Table1Error};

/// Opens the programs of a row on a device, or prints a note if it does not exist.
fn bench(test: &str, row: Row, device: &str) -> Option<Bench> {
    match Bench::open(row, device) {
        Ok(bench) => Some(bench),
        Err(Table1Error::Device { cause, .. }) => {
            let kind = device.split(':').next().expect("a name has a first part");
            let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains(kind));
            assert!(!expected, "DML_EXPECT names {kind}, and there is no device: {cause}");
            eprintln!("SKIPPED {test}: no {kind} device: {cause}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn measured(test: &str, row: Row, device: &str) -> Option<Measured> {
    let mut seen = Vec::new();
    let mut bench = bench(test, row, device)?;
    let modes = bench.framework().modes();
    let measured = bench.measure(Input::Tiny, 2, |mode| seen.push(mode)).unwrap();
    assert_eq!(seen.len(), 3 * modes.len());
    for round in seen.chunks_mut(modes.len()) {
        round.sort_unstable();
        assert_eq!(round, modes);
    }
    for mode in modes {
        let timed = measured.mode(mode).unwrap();
        assert!(timed.mode == mode && timed.seconds.len() == 2, "{timed:?}");
        assert!(timed.seconds.iter().all(|seconds| *seconds > 0.0), "{timed:?}");
    }
    Some(measured)
}

/// Returns the calls: map, unmap, read, write, kernel, alloc, bind, copy.
fn calls(measured: &Measured, mode: Mode) -> [u64; 8] {
    let Operations { map, unmap, read, write, kernel, alloc, bind, copy, .. } =
        measured.mode(mode).unwrap().operations;
    [map, unmap, read, write, kernel, alloc, bind, copy]
}

/// Checks the requirement of every row: no more transfers than the hand-written program, as many kernels, and
/// no copies.
fn expect_no_more_than_by_hand(measured: &Measured) {
    let [hand, opt] = [Mode::Hand, Mode::Opt].map(|mode| measured.mode(mode).unwrap().operations);
    assert!(opt.transfers() <= hand.transfers(), "{opt:?} {hand:?}");
    assert_eq!((opt.kernel, opt.copy), (hand.kernel, 0));
}

#[test]
fn vecadd_makes_these_calls() {
    let Some(measured) = measured("vecadd_makes_these_calls", Row::Vecadd, DEVICE) else { return };
    assert_eq!(calls(&measured, Mode::Hand), [1, 0, 0, 2, 1, 3, 0, 0]);
    assert_eq!(calls(&measured, Mode::HandBound), [1, 0, 0, 0, 1, 0, 3, 0]);
    assert_eq!(calls(&measured, Mode::Noopt), [3, 2, 0, 0, 1, 3, 0, 3]);
    assert_eq!(calls(&measured, Mode::Opt), [1, 0, 0, 0, 1, 0, 3, 0]);
    expect_no_more_than_by_hand(&measured);
}

#[test]
fn matmul_makes_these_calls() {
    let Some(measured) = measured("matmul_makes_these_calls", Row::Matmul, DEVICE) else { return };
    assert_eq!(calls(&measured, Mode::Hand), [0, 0, 1, 2, 1, 3, 0, 0]);
    assert_eq!(calls(&measured, Mode::HandBound), [1, 0, 0, 0, 1, 0, 3, 0]);
    assert_eq!(calls(&measured, Mode::Noopt), [3, 2, 0, 0, 1, 3, 0, 3]);
    assert_eq!(calls(&measured, Mode::Opt), [1, 0, 0, 0, 1, 0, 3, 0]);
    expect_no_more_than_by_hand(&measured);
}

#[test]
fn bfs_makes_these_calls_for_its_levels() {
    let Some(measured) = measured("bfs_makes_these_calls_for_its_levels", Row::Bfs, DEVICE) else { return };
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
    // The paper's maps, unmaps and copies follow from its number of levels. Its allocations include the
    // host's storage.
    let Some(measured) = measured("noopt_makes_the_papers_calls", Row::Bfs, DEVICE) else { return };
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
    let Some(mut bench) = bench("a_size_that_the_table_does_not_have_is_refused", Row::Matmul, DEVICE) else {
        return;
    };
    let refused = bench.measure(Input::Size(7), 1, |_| {}).unwrap_err();
    assert!(refused.to_string().contains("matmul has no size"), "{refused}");
}

/// On CUDA both hand-written programs make the same calls, with ordinary and with page-locked memory. The
/// layer makes no more transfers.
#[test]
fn on_cuda_each_row_makes_these_calls() {
    for row in Row::ALL {
        let Some(measured) = measured("on_cuda_each_row_makes_these_calls", row, "cuda:0") else { return };
        let levels =
            measured.size.iter().find(|(name, _)| *name == "levels").map_or(0, |(_, levels)| *levels);
        let expected = match row {
            Row::Bfs => [0, 0, levels + 1, levels + 6, 2 * levels, 7, 0, 0],
            _ => [0, 0, 1, 2, 1, 3, 0, 0],
        };
        for mode in [Mode::Hand, Mode::HandPinned] {
            assert_eq!(calls(&measured, mode), expected, "{row} {mode}");
        }
        let hand = measured.mode(Mode::Hand).unwrap().operations;
        for mode in [Mode::Noopt, Mode::Opt] {
            let made = measured.mode(mode).unwrap().operations;
            assert!(
                made.transfers() <= hand.transfers() && made.kernel == hand.kernel,
                "{row} {mode}: {made:?}"
            );
            assert_eq!(made.copy, 0, "{row} {mode}");
        }
        // The device uses in place the buffers that a launch touches once.
        let opt = measured.mode(Mode::Opt).unwrap().operations;
        let expected = match row {
            Row::Vecadd => [0, 0, 3],
            Row::Matmul => [0, 2, 1],
            _ => [1, 6, 1],
        };
        assert_eq!([opt.read, opt.write, opt.bind], expected, "{row}");
    }
}

#[test]
fn a_device_that_is_not_there_or_has_no_programs_is_named() {
    for (device, framework) in [("opencl:99", Framework::OpenCl), ("cuda:99", Framework::Cuda)] {
        let refused = Bench::open(Row::Vecadd, device).unwrap_err();
        let told = refused.to_string();
        assert!(
            told.starts_with(&format!("table1 needs {framework} device: {device} cannot be used: ")),
            "{told}"
        );
    }
    for device in ["cpu", "offload:0", "cuda", "cuda:x"] {
        let refused = Bench::open(Row::Bfs, device).unwrap_err();
        assert!(matches!(&refused, Table1Error::NoProgram { device: told } if told == device), "{refused}");
    }
}
