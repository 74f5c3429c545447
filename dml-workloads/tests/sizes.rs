//! Prepared kernels touch only the bytes that their footprints name, and refuse items without elements in the
//! buffers.

use dml_arenas::{Discover, DiscoverOptions};
use dml_core::{DeviceId, Platform, RawBuffer};
use dml_scheduler::{Coexecutor, RunError, check_footprints};
use dml_workloads::prepare::{Input, Workload};

/// Makes a platform of the processor and the OpenCL devices of this machine.
fn platform() -> Platform {
    let options = DiscoverOptions::default().offload(0);
    Platform::builder().discover_with(&options).expect("sound options").build().expect("a sound platform")
}

/// Returns the processor, and the first OpenCL device if there is one.
fn devices(platform: &Platform) -> Vec<DeviceId> {
    let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
    let opencl = platform.device("opencl:0");
    assert!(opencl.is_ok() || !expected, "DML_EXPECT names opencl, and there is no device of it");
    let cpu = platform.host().expect("every machine has a processor");
    [Some(cpu), opencl.ok()].into_iter().flatten().collect()
}

#[test]
fn items_beyond_those_prepared_are_refused_before_their_launch() {
    let platform = platform();
    for device in devices(&platform) {
        for workload in Workload::ALL {
            let size = if workload.takes_picture() { 32 } else { 1_000 };
            let prepared =
                workload.prepare(&platform, &[device], &Input::Size(size)).expect("a small problem");
            let items = prepared.items();
            for beyond in [1, 64, 99_000, 4_000_000, u64::MAX - items] {
                prepared.reset().unwrap();
                let run = || {
                    Coexecutor::new(&platform)
                        .policy("static".parse().unwrap())
                        .run(prepared.kernel(), items + beyond)
                };
                let told = run().map(|report| report.packages.len()).unwrap_err();
                let RunError::TooManyItems { holds, .. } = told else { panic!("{workload}: {told}") };
                assert_eq!(holds, items, "{workload}: {told}");
            }
            // The refusals leave the prepared kernel usable.
            prepared.reset().unwrap();
            let report = Coexecutor::new(&platform).run(prepared.kernel(), items).unwrap();
            assert!(!report.packages.is_empty());
            prepared.collect().unwrap();
            prepared.verify().unwrap_or_else(|error| panic!("{workload}: {error}"));
        }
    }
}

#[test]
fn every_workload_touches_what_its_footprints_name() {
    let platform = platform();
    for device in devices(&platform) {
        for workload in Workload::ALL {
            let size = if workload.takes_picture() { 90 } else { 300 };
            let prepared =
                workload.prepare(&platform, &[device], &Input::Size(size)).expect("a small problem");
            prepared.reset().unwrap();
            let packages = check_footprints(&platform, prepared.kernel(), prepared.items(), device);
            assert!(packages.unwrap_or_else(|error| panic!("{error}")).packages >= 2, "{workload}");
        }
    }
}

#[test]
fn a_reset_spoils_every_output_and_no_input() {
    let platform = platform();
    let cpu = platform.host().expect("every machine has a processor");
    let bytes = |buffer: &RawBuffer| {
        let grants = platform.acquire(cpu).read(buffer).wait().unwrap();
        grants.slice::<u8>(buffer).unwrap().to_vec()
    };
    for workload in Workload::ALL {
        let prepared = workload.prepare(&platform, &[cpu], &Input::Tiny).expect("a small problem");
        let inputs: Vec<_> = prepared.inputs().into_iter().map(bytes).collect();
        Coexecutor::new(&platform).run(prepared.kernel(), prepared.items()).unwrap();
        prepared.verify().unwrap_or_else(|error| panic!("{workload}: {error}"));
        prepared.reset().unwrap();
        for (output, buffer) in prepared.outputs().into_iter().enumerate() {
            let bytes = bytes(buffer);
            assert!(
                !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0xA5),
                "{workload}: output {output}"
            );
        }
        assert!(prepared.inputs().into_iter().map(bytes).eq(inputs), "{workload}");
        assert!(prepared.verify().is_err(), "{workload}");
    }
}

/// Each output is checked, even if it is the only wrong one.
#[test]
fn a_check_looks_at_every_output() {
    let platform = platform();
    let cpu = platform.host().expect("every machine has a processor");
    for workload in Workload::ALL {
        let prepared = workload.prepare(&platform, &[cpu], &Input::Tiny).expect("a small problem");
        Coexecutor::new(&platform).run(prepared.kernel(), prepared.items()).unwrap();
        prepared.verify().unwrap_or_else(|error| panic!("{workload}: {error}"));
        for (output, buffer) in prepared.outputs().into_iter().enumerate() {
            for place in [0, buffer.len() / 8 * 4, buffer.len() - 4] {
                let part = buffer.range(place..place + 4);
                let mut grants = platform.acquire(cpu).read_write(&part).wait().unwrap();
                let element = grants.slice_mut::<u8>(&part).unwrap();
                let right = element.to_vec();
                element.iter_mut().for_each(|byte| *byte ^= 0x15);
                grants.release().unwrap();
                assert!(prepared.verify().is_err(), "{workload}: output {output}, byte {place}");
                let mut grants = platform.acquire(cpu).read_write(&part).wait().unwrap();
                grants.slice_mut::<u8>(&part).unwrap().copy_from_slice(&right);
                grants.release().unwrap();
            }
        }
        prepared.verify().unwrap_or_else(|error| panic!("{workload}: {error}"));
    }
}
