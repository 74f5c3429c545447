//! Inputs, kernel and results in the order of the device, with one wait of the host.

use crate::Scene;
use dml::arenas::{DiscoverOptions, Mechanisms};
use dml::core::record::EventKind;
use dml::core::{Buffer, args};
use dml_verify::history::assert_history;

const LEN: u64 = 100_000;

/// Mapped memory cannot follow a kernel, but read and write calls can.
fn scene() -> Option<Scene> {
    Scene::with(&DiscoverOptions::default().mechanisms(Mechanisms::Staged))
}

fn buffer(scene: &Scene, value: f32) -> Buffer<f32> {
    scene.platform.buffer_from((0..LEN).map(|at| value + at as f32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn i30_results_come_behind_their_kernel_and_inputs_before_it() {
    let Some(scene) = scene() else { return };
    let (platform, host) = (&scene.platform, scene.platform.host().unwrap());
    let recording = platform.record();
    let (a, b) = (buffer(&scene, 1.0), buffer(&scene, -1.0));
    for round in 1..50_u32 {
        let mut view = a.write().unwrap();
        view.iter_mut().zip(0..).for_each(|(value, at)| *value = (at * round) as f32);
        view.release().unwrap();
        let mut grants = platform.acquire(scene.device).read(&a).write(&b).ahead().wait().unwrap();
        grants.launch(&scene.scale, args![&a, &b, 0.5_f32, LEN], LEN).unwrap();
        let mut running = grants.running();
        assert!(running.bring_results(host), "in round {round}");
        assert!(platform.acquire(host).read(&b).try_now().is_err(), "others are kept out");
        running.wait().unwrap().release().unwrap();
        let view = b.read().unwrap();
        assert!(view.iter().zip(0..).all(|(value, at)| *value == (at * round) as f32 * 0.5), "round {round}");
    }
    drop((a, b));
    let events = recording.finish();
    assert_history(platform, &events);
    let copies = events.iter().filter(|event| matches!(event.kind, EventKind::CopyDone { .. })).count();
    assert_eq!(copies, 49 * 2, "one copy in and one out for each round");
    assert!(platform.leaked_grants().is_empty());
}

/// Chunks that come, are computed and leave, each in buffers of its own.
#[test]
fn i30_submitted_chunks_bring_their_results() {
    let Some(scene) = scene() else { return };
    let (platform, host) = (&scene.platform, scene.platform.host().unwrap());
    let buffers: Vec<_> = (0..16).map(|chunk| (buffer(&scene, chunk as f32), buffer(&scene, -1.0))).collect();
    let recording = platform.record();
    for round in 1..20_u32 {
        for (from, _) in &buffers {
            let mut view = from.write().unwrap();
            view.iter_mut().for_each(|value| *value += 1.0);
            view.release().unwrap();
        }
        for (from, to) in &buffers {
            let submit = platform.submit(scene.device, &scene.scale).read(from).write(to);
            submit.scalar(2.0_f32).scalar(LEN).bring_results(host).items(LEN).unwrap();
        }
        platform.settle(scene.device).unwrap();
        for (chunk, (_, to)) in buffers.iter().enumerate() {
            let grants = platform.acquire(host).read(to).try_now().unwrap();
            let seen = grants.slice::<f32>(to).unwrap();
            let expected = |at: usize| (chunk as f32 + at as f32 + round as f32) * 2.0;
            assert!(seen.iter().enumerate().all(|(at, value)| *value == expected(at)), "round {round}");
        }
    }
    let events = recording.finish();
    let copies = events.iter().filter(|event| matches!(event.kind, EventKind::CopyDone { .. })).count();
    assert_eq!(copies, 19 * 16 * 2);
}
