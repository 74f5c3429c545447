//! Traces of submitted kernels.

use dml::arenas::launch::{ComputeError, HostLauncher};
use dml::prelude::*;
use dml::timeline::Trace;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

const TOOK: Duration = Duration::from_millis(3);

/// Each kernel that was submitted while the recording ran is a package: in their order, one at a time, and as
/// long as it took. Others are not in the trace, and it can be read back.
#[test]
fn submitted_kernels_are_packages_of_one_item() {
    let options = DiscoverOptions::default().only(["cpu"]).offload(0);
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let cpu = platform.device("cpu").unwrap();
    let wait = |call: &mut launch::Call<'_>| -> Result<(), ComputeError> {
        sleep(TOOK);
        call.part(0)?.slice_mut::<u32>()?[0] += 1;
        Ok(())
    };
    let kernel: Arc<dyn Launcher> = Arc::new(HostLauncher::by_team(1, wait).unwrap());
    let buffer = platform.buffer_from(vec![0_u32; 4]).unwrap();
    let submit = || platform.submit(cpu, &kernel).read_write(&buffer).items(4).unwrap();
    submit().wait().unwrap();
    let recording = Trace::record(&platform);
    for _ in 0..3 {
        submit();
    }
    assert_eq!(buffer.read().unwrap()[0], 4);
    let trace = recording.finish_submissions("three kernels");
    submit().wait().unwrap();

    assert_eq!((&*trace.label, trace.items, trace.packages.len()), ("three kernels", 3, 3));
    let [device] = &trace.devices[..] else { panic!("one device: {:?}", trace.devices) };
    assert_eq!((&*device.name, device.packages, device.is_host), ("cpu", 3, true));
    let took = TOOK.as_nanos() as u64;
    let mut free = 0;
    for (index, package) in (0..).zip(&trace.packages) {
        assert_eq!((package.index, package.first_item, package.items, package.device), (index, index, 1, 0));
        assert!(package.start_ns <= package.begun_ns && package.begun_ns >= free, "{package:?}");
        assert!(package.computed_ns - package.begun_ns >= took * 9 / 10, "{package:?}");
        assert_eq!(package.computed_ns, package.end_ns);
        free = package.end_ns;
    }
    assert_eq!((device.end_ns, trace.duration_ns), (free, free));
    assert!(device.busy_ns >= 3 * took * 9 / 10 && device.busy_ns <= free);
    let mut file = Vec::new();
    trace.write_perfetto(&mut file).unwrap();
    assert_eq!(Trace::read(&String::from_utf8(file).unwrap()).unwrap(), trace);
}

#[test]
fn a_recording_without_submissions_is_an_empty_trace() {
    let options = DiscoverOptions::default().only(["cpu"]).offload(0);
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let recording = Trace::record(&platform);
    let buffer = platform.buffer_from(vec![1_u32]).unwrap();
    assert_eq!(buffer.read().unwrap()[0], 1);
    let trace = recording.finish_submissions("nothing");
    assert!(trace.packages.is_empty() && trace.devices.is_empty() && trace.duration_ns == 0, "{trace:?}");
    trace.write_page(Vec::new()).unwrap();
    assert!(trace.findings().len() < 10);
}
