//! Kernels that are submitted: they queue on their device, and everybody else waits for them.

#![cfg(not(dml_loom))]

use dml::arenas::{Discover, DiscoverOptions, launch};
use dml::core::{Buffer, DeviceId, Launcher, Platform, SubmitError};
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

const LEN: u64 = 1000;

struct Scene {
    platform: Platform,
    device: DeviceId,
    scale: Arc<dyn Launcher>,
    add: Arc<dyn Launcher>,
}

impl Scene {
    /// Returns `None` on a machine without OpenCL, unless it is expected there.
    fn new() -> Option<Self> {
        let platform = Platform::builder().discover_with(&DiscoverOptions::default()).unwrap();
        let platform = platform.build().unwrap();
        let Ok(device) = platform.device("opencl:0") else {
            assert!(std::env::var_os("DML_EXPECT_OPENCL").is_none(), "there is no OpenCL device");
            return None;
        };
        // SAFETY: the kernels touch only the elements of their items, and nothing past the end.
        let kernel = |name| unsafe { launch::kernel(&platform, device, SOURCE, name) }.unwrap();
        let (scale, add) = (kernel("scale"), kernel("add"));
        Some(Self { platform, device, scale, add })
    }

    fn scales(&self, from: &Buffer<f32>, to: &Buffer<f32>, by: f32) {
        let submit = self.platform.submit(self.device, &self.scale);
        submit.read(from).write(to).scalar(by).scalar(LEN).items(LEN).unwrap();
    }

    fn adds(&self, to: &Buffer<f32>, what: f32) -> Result<(), SubmitError> {
        let submit = self.platform.submit(self.device, &self.add);
        submit.read_write(to).scalar(what).scalar(LEN).items(LEN).map(drop)
    }
}

#[test]
fn a_chain_of_kernels_gives_what_one_after_the_other_gives() {
    let Some(scene) = Scene::new() else { return };
    let a = scene.platform.buffer_from(vec![1.0_f32; LEN as usize]).unwrap();
    let b = scene.platform.buffer::<f32>(LEN).build().unwrap();
    let mut expected = 1.0_f32;
    for _ in 0..500 {
        scene.scales(&a, &b, 0.5);
        scene.scales(&b, &a, 2.0);
        scene.adds(&a, 1.0).unwrap();
        expected += 1.0;
    }
    assert!(a.read().unwrap().iter().all(|value| *value == expected));
    scene.platform.settle(scene.device).unwrap();
    assert!(scene.platform.leaked_grants().is_empty());
}
