//! Traces of submitted kernels.

use dml::arenas::launch::{ComputeError, HostLauncher};
use dml::prelude::*;
use dml::timeline::Trace;
use std::sync::{Arc, Mutex};

/// Each kernel that was submitted while the recording ran is a package. Packages are in order, one at a time,
/// and end after their functions returned. Other kernels are not in the trace, and it can be read back.
#[test]
fn submitted_kernels_are_packages_of_one_item() {
    let options = DiscoverOptions::default().only(["cpu"]).offload(0);
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let cpu = platform.device("cpu").unwrap();
    let returned = Arc::new(Mutex::new(Vec::new()));
    let add = {
        let (platform, returned) = (platform.clone(), returned.clone());
        move |call: &mut launch::Call<'_>| -> Result<(), ComputeError> {
            call.part(0)?.slice_mut::<u32>()?[0] += 1;
            returned.lock().unwrap().push(platform.elapsed());
            Ok(())
        }
    };
    let kernel: Arc<dyn Launcher> = Arc::new(HostLauncher::by_team(1, add).unwrap());
    let buffer = platform.buffer_from(vec![0_u32; 4]).unwrap();
    let submit = || platform.submit(cpu, &kernel).read_write(&buffer).items(4).unwrap();
    submit().wait().unwrap();
    let recording = Trace::record(&platform);
    let recorded = platform.elapsed();
    for _ in 0..3 {
        submit();
    }
    assert_eq!(buffer.read().unwrap()[0], 4);
    let trace = recording.finish_submissions("three kernels");
    submit().wait().unwrap();

    assert_eq!((&*trace.label, trace.items, trace.packages.len()), ("three kernels", 3, 3));
    let [device] = &trace.devices[..] else { panic!("one device: {:?}", trace.devices) };
    assert_eq!((&*device.name, device.packages, device.is_host), ("cpu", 3, true));
    let returned = returned.lock().unwrap()[1..4].to_vec();
    let mut free = 0;
    for ((index, package), returned) in (0..).zip(&trace.packages).zip(returned) {
        assert_eq!((package.index, package.first_item, package.items, package.device), (index, index, 1, 0));
        assert!(package.start_ns <= package.begun_ns && package.begun_ns >= free, "{package:?}");
        // The recording began before `recorded`.
        let returned = (returned - recorded).as_nanos() as u64;
        assert!(package.computed_ns >= returned.max(package.begun_ns), "{package:?} {returned}");
        assert_eq!(package.computed_ns, package.end_ns);
        free = package.end_ns;
    }
    assert_eq!((device.end_ns, trace.duration_ns), (free, free));
    let computing: u64 = trace.packages.iter().map(|package| package.computed_ns - package.begun_ns).sum();
    assert_eq!(device.busy_ns, computing);
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
