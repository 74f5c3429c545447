//! Inputs, kernel and results in the order of the device, with one wait of the host.

#![cfg(not(dml_loom))]

mod device;

use dml::arenas::{Discover, DiscoverOptions, Mechanisms, launch};
use dml::core::record::EventKind;
use dml::core::{
    Access, AcquireError, Buffer, DeviceId, InFlight, ItemShape, Launch, LaunchArg, Launcher, Platform,
    Region,
};
use dml_verify::history::assert_history;
use std::sync::Arc;

const SOURCE: &str = "
kernel void scale(global const float* from, global float* to, float by, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) to[i] = from[i] * by;
}
kernel void add(global float* a, float what, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) a[i] += what;
}";

const LEN: u64 = 100_000;

struct Scene {
    platform: Platform,
    device: DeviceId,
    host: DeviceId,
    scale: Arc<dyn Launcher>,
}

impl Scene {
    /// Returns `None` on a machine without OpenCL, unless it is expected there.
    fn new() -> Option<Self> {
        let platform = Platform::builder()
            .discover_with(&DiscoverOptions::default().mechanisms(Mechanisms::Staged))
            .unwrap();
        let platform = platform.build().unwrap();
        let Ok(device) = platform.device("opencl:0") else {
            assert!(std::env::var_os("DML_EXPECT_OPENCL").is_none(), "there is no OpenCL device");
            return None;
        };
        let host = platform.host().unwrap();
        // SAFETY: the kernels touch only the elements of their items, and nothing past the end.
        let kernel = |name| unsafe { launch::kernel(&platform, device, SOURCE, name) }.unwrap();
        let scale = kernel("scale");
        Some(Self { platform, device, host, scale })
    }

    fn buffer(&self, value: f32) -> Buffer<f32> {
        self.platform.buffer_from((0..LEN).map(|at| value + at as f32).collect::<Vec<_>>()).unwrap()
    }

    /// Launches `to = from * by` while the copies of `from` may be in flight.
    fn scales(&self, from: &Buffer<f32>, to: &Buffer<f32>, by: f32) -> Result<InFlight, AcquireError> {
        let mut grants = self.platform.acquire(self.device).read(from).write(to).ahead().wait()?;
        grants.before_launch(true)?;
        let buffer = |of: &Buffer<f32>, access| LaunchArg::Buffer {
            buffer: of.raw().clone(),
            access,
            ranges: of.bytes().into(),
        };
        let arguments = [
            buffer(from, Access::ReadOnly),
            buffer(to, Access::WriteInvalidate),
            LaunchArg::Scalar(by.into()),
            LaunchArg::Scalar(LEN.into()),
        ];
        let kernel = self.scale.launch(&Launch::new(&(0..LEN), &ItemShape::line(0), &arguments), &mut grants);
        Ok(grants.in_flight(kernel.unwrap()))
    }
}

#[test]
fn i30_results_come_behind_their_kernel_and_inputs_before_it() {
    let Some(scene) = Scene::new() else { return };
    let recording = scene.platform.record();
    let (a, b) = (scene.buffer(1.0), scene.buffer(-1.0));
    for round in 1..50_u32 {
        let mut view = a.write().unwrap();
        view.iter_mut().zip(0..).for_each(|(value, at)| *value = (at * round) as f32);
        view.release().unwrap();
        let mut flight = scene.scales(&a, &b, 0.5).unwrap();
        assert!(flight.bring_results(scene.host), "in round {round}");
        assert!(scene.platform.acquire(scene.host).read(&b).try_now().is_err(), "others are kept out");
        flight.wait().unwrap().release().unwrap();
        let view = b.read().unwrap();
        assert!(view.iter().zip(0..).all(|(value, at)| *value == (at * round) as f32 * 0.5), "round {round}");
    }
    drop((a, b));
    let events = recording.finish();
    assert_history(&scene.platform, &events);
    let copies = events.iter().filter(|event| matches!(event.kind, EventKind::CopyDone { .. })).count();
    assert_eq!(copies, 49 * 2, "one copy in and one out for each round");
    assert!(scene.platform.leaked_grants().is_empty());
}

/// Chunks that come, are computed and leave, each in buffers of its own.
#[test]
fn i30_submitted_chunks_bring_their_results() {
    let Some(scene) = Scene::new() else { return };
    let buffers: Vec<_> = (0..16).map(|chunk| (scene.buffer(chunk as f32), scene.buffer(-1.0))).collect();
    let recording = scene.platform.record();
    for round in 1..20_u32 {
        for (from, _) in &buffers {
            let mut view = from.write().unwrap();
            view.iter_mut().for_each(|value| *value += 1.0);
            view.release().unwrap();
        }
        for (from, to) in &buffers {
            let submit = scene.platform.submit(scene.device, &scene.scale).read(from).write(to);
            submit.scalar(2.0_f32).scalar(LEN).bring_results(scene.host).items(LEN).unwrap();
        }
        scene.platform.settle(scene.device).unwrap();
        for (chunk, (_, to)) in buffers.iter().enumerate() {
            let grants = scene.platform.acquire(scene.host).read(to).try_now().unwrap();
            let seen = grants.slice::<f32>(to).unwrap();
            let expected = |at: usize| (chunk as f32 + at as f32 + round as f32) * 2.0;
            assert!(seen.iter().enumerate().all(|(at, value)| *value == expected(at)), "round {round}");
        }
    }
    let events = recording.finish();
    let copies = events.iter().filter(|event| matches!(event.kind, EventKind::CopyDone { .. })).count();
    assert_eq!(copies, 19 * 16 * 2);
}
