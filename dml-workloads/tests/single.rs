//! One device through the runtime beside the same kernel without DML, on the available devices. Without an
//! OpenCL device or a CUDA device, its tests print a note and pass, unless `DML_EXPECT` names `opencl` or
//! `cuda`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

use dml_workloads::single::{Bench, Memory, SingleError};
use std::time::Duration;

/// Opens a device, or prints a note if it does not exist.
fn bench(test: &str, device: &str, memory: Memory) -> Option<Bench> {
    match Bench::open(device, memory) {
        Ok(bench) => Some(bench),
        Err(SingleError::Discover(reason)) if device != "cpu" => {
            let kind = device.split(':').next().expect("a name has a first part");
            let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains(kind));
            assert!(!expected, "DML_EXPECT names {kind}, and there is no device: {reason}");
            eprintln!("SKIPPED {test}: no {kind} device: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn both_sides_have_equal_results_on_every_device_and_memory() {
    for (device, memory) in [
        ("cpu", Memory::Found),
        ("opencl:0", Memory::Found),
        ("opencl:0", Memory::Bound),
        ("cuda:0", Memory::Found),
        ("cuda:0", Memory::PageLocked { limit_bytes: 1 << 20 }),
    ] {
        let Some(bench) = bench("both_sides_have_equal_results", device, memory) else { continue };
        assert_eq!(bench.name(), device);
        assert!(bench.units() > 0 && !bench.description().is_empty());
        for edge in [1, 17, 61] {
            let mut steps = 0;
            let measured = bench.measure(edge, 3, || steps += 1).unwrap();
            assert_eq!((measured.edge, measured.pairs().len(), steps), (edge, 3, 4), "{device} {memory:?}");
        }
        let no_pairs = bench.measure(17, 0, || {}).unwrap_err();
        assert_eq!(
            no_pairs.to_string(),
            format!("{device} cannot be measured in 0 pairs: at least 1 is needed")
        );
    }
}

#[test]
fn a_size_is_found_by_runs_of_the_hand_written_program() {
    let Some(bench) = bench("a_size_is_found", "cpu", Memory::Found) else { return };
    // Any machine takes longer for the largest matrices, and less for a single element.
    let edge = bench.edge_for(Duration::from_micros(200)).unwrap();
    assert!((2..10_000).contains(&edge), "{edge}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    for device in ["opencl:99", "cuda:99"] {
        let refused = Bench::open(device, Memory::Found).unwrap_err();
        assert!(
            matches!(refused, SingleError::Discover(_)) && refused.to_string().contains(device),
            "{refused}"
        );
    }
}
