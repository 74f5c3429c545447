//! Forks of a process that uses OpenCL: no driver is called there, and nothing of the parent's changes.
//! Without a device the tests say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", target_os = "linux", not(dml_loom)))]

mod common;
#[path = "common/forks.rs"]
mod forks;

use common::{with_opencl, with_opencl_options};
use dml_arenas::launch::{self, Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_arenas::{Discover, DiscoverOptions, OpenClArena, Sharing};
use dml_core::{AcquireError, Buffer, DeviceId, InFlight, Platform, Scalar};
use forks::{Child, Fork, Gate, Leave, child, fork, leave};
use std::time::{Duration, Instant};

/// Turns every element `rounds` times.
const TURN: &str = "
    __kernel void turn(__global uint* data, uint rounds, ulong end) {
        size_t i = get_global_id(0);
        if (i >= end) return;
        uint value = data[i];
        for (uint round = 0; round < rounds; round++) value = value * 1664525u + 1013904223u;
        data[i] = value;
    }";

fn turned(value: u32, rounds: u32) -> u32 {
    (0..rounds).fold(value, |value, _| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
}

struct Scene {
    platform: Platform,
    there: DeviceId,
    turn: OpenClKernel,
}

impl Scene {
    fn new(test: &str) -> Option<Self> {
        Self::with(test, &DiscoverOptions::default())
    }

    /// A device that uses the host's memory in place.
    fn bound(test: &str) -> Option<Self> {
        with_opencl(test)?;
        Self::with(test, &DiscoverOptions::default().sharing(Sharing::bound("opencl:0")))
    }

    fn with(test: &str, options: &DiscoverOptions) -> Option<Self> {
        let (platform, there) = with_opencl_options(test, options)?;
        let turn = arena(&platform, there).kernel(TURN, "turn", "").expect("it compiles");
        Some(Self { platform, there, turn })
    }

    fn arena(&self) -> &OpenClArena {
        arena(&self.platform, self.there)
    }

    fn begin(&self, buffer: &Buffer<u32>, rounds: u32) -> InFlight {
        let grants =
            self.platform.acquire(self.there).read_write(buffer).wait().expect("nobody else holds it");
        let block = grants.block(buffer).expect("granted").expect("it has bytes").clone();
        let arguments = [
            KernelArg::Block(&block),
            KernelArg::Scalar(Scalar::U32(rounds)),
            KernelArg::Scalar(Scalar::U64(buffer.len())),
        ];
        let launch = Grid::line(0, buffer.len(), 0);
        // SAFETY: the kernel touches the elements below its last argument, which the block has.
        let fence = unsafe { self.turn.launch(&arguments, launch) }.expect("it fits");
        grants.in_flight(fence)
    }

    /// A buffer whose contents only the device has.
    fn computed(&self, len: u32) -> Computed {
        let values: Vec<u32> = (0..len).map(|index| index * 31 + 7).collect();
        let expected = values.iter().map(|value| turned(*value, 3)).collect();
        let buffer = self.platform.buffer_from(values).expect("main memory takes it");
        self.begin(&buffer, 3).wait().expect("it ran").release().expect("it is there");
        Computed { buffer, expected }
    }

    fn is_as_it_was(&self, computed: &Computed) {
        assert!(self.platform.notice_losses().is_empty());
        assert!(*computed.buffer.read().expect("it was computed") == *computed.expected);
        let another = self.computed(computed.expected.len() as u32);
        assert!(*another.buffer.read().expect("it was computed") == *another.expected);
    }

    fn is_a_forks(&self) {
        let arena = self.platform.arena(self.platform.home(self.there).expect("it has an arena"));
        assert!(arena.is_lost());
        let loss = arena.loss().expect("it is known why");
        assert!(loss.contains("this process is a fork of one that uses OpenCL"), "{loss}");
    }
}

fn arena(platform: &Platform, device: DeviceId) -> &OpenClArena {
    let arena = platform.home(device).expect("the device has an arena");
    platform.arena(arena).downcast_ref().expect("an OpenCL device has an OpenCL arena")
}

struct Computed {
    buffer: Buffer<u32>,
    expected: Vec<u32>,
}

/// Why discovery finds no OpenCL device.
fn reasons() -> String {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().offload(0)).unwrap();
    let platform = platform.build().unwrap();
    assert!(platform.device("opencl:0").is_err());
    platform.unavailable().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn what_a_child_drops_is_still_its_parents() {
    for (len, how) in [(100, Leave::AtOnce), (50_000, Leave::InOrder)] {
        let Some(scene) = Scene::new("what_a_child_drops_is_still_its_parents") else { return };
        let (computed, other) = (scene.computed(len), scene.computed(10));
        let running = scene.begin(&other.buffer, 5);
        match fork() {
            Fork::Child => leave(how, || drop((running, computed, other, scene))),
            Fork::Parent(child) => child.ends_well(),
        }
        running.wait().unwrap().release().unwrap();
        let expected: Vec<u32> = other.expected.iter().map(|value| turned(*value, 5)).collect();
        assert!(*other.buffer.read().unwrap() == *expected);
        scene.is_as_it_was(&computed);
    }
}

#[test]
fn a_child_that_uses_a_device_is_told_so() {
    let Some(scene) = Scene::new("a_child_that_uses_a_device_is_told_so") else { return };
    let (computed, other) = (scene.computed(1000), scene.computed(1000));
    let child = child(|| {
        let begun = Instant::now();
        // A device that has the bytes is granted them, but computes nothing.
        let grants = scene.platform.acquire(scene.there).read_write(&other.buffer).wait().unwrap();
        let block = grants.block(&other.buffer).unwrap().unwrap().clone();
        let arguments = [
            KernelArg::Block(&block),
            KernelArg::Scalar(Scalar::U32(1)),
            KernelArg::Scalar(Scalar::U64(1000)),
        ];
        let launch = Grid::line(0, 1000, 0);
        // SAFETY: as in `begin`.
        let launched = unsafe { scene.turn.launch(&arguments, launch) };
        assert!(launched.unwrap_err().is_device_lost());
        let error = scene.arena().kernel(TURN, "turn", "").unwrap_err().to_string();
        assert!(error.contains("CL_DEVICE_NOT_AVAILABLE"), "{error}");
        let error = scene.arena().kernel(TURN, "turn", "-DNEW").unwrap_err().to_string();
        assert!(error.contains("CL_DEVICE_NOT_AVAILABLE"), "{error}");
        scene.is_a_forks();
        grants.clean().unwrap();
        let error = computed.buffer.read().map(drop).unwrap_err();
        assert!(error.is_device_lost(), "{error}");
        assert!(matches!(other.buffer.read(), Err(AcquireError::Poisoned { .. })));
        let mine = scene.platform.buffer_from(vec![9_u32; 1000]).unwrap();
        assert!(scene.platform.acquire(scene.there).write(&mine).wait().unwrap_err().is_device_lost());
        assert_eq!(*mine.read().unwrap(), [9; 1000]);
        assert!(reasons().contains("this process is a fork of one that uses OpenCL"));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    });
    child.ends_well();
    assert!(*other.buffer.read().unwrap() == *other.expected);
    scene.is_as_it_was(&computed);
}

/// The child has a copy of the host's memory, which the device shares with its parent alone.
#[test]
fn what_a_child_does_to_shared_storage_is_not_its_parents() {
    let test = "what_a_child_does_to_shared_storage_is_not_its_parents";
    for how in [Leave::AtOnce, Leave::InOrder] {
        let Some(scene) = Scene::bound(test) else { return };
        let (computed, seen) = (scene.computed(50_000), scene.computed(50_000));
        assert!(*seen.buffer.read().unwrap() == *seen.expected);
        let values: Vec<u32> = (0..50_000).collect();
        let vector = scene.platform.buffer_from(values.clone()).unwrap();
        scene.begin(&vector, 0).wait().unwrap().release().unwrap();
        match fork() {
            Fork::Child => leave(how, || {
                scene.is_a_forks();
                // What the device has is lost to the child, and what the host has is the child's own.
                assert!(computed.buffer.read().map(drop).unwrap_err().is_device_lost());
                let mut view = seen.buffer.write().unwrap();
                view.fill(3);
                view.release().unwrap();
                let there = scene.platform.acquire(scene.there).read_write(&seen.buffer).wait();
                assert!(there.unwrap_err().is_device_lost());
                let _ = vector.into_vec();
                drop((computed, seen, scene));
            }),
            Fork::Parent(child) => child.ends_well(),
        }
        assert!(*seen.buffer.read().unwrap() == *seen.expected);
        assert!(vector.into_vec().unwrap() == values);
        scene.is_as_it_was(&computed);
    }
}

#[test]
fn a_child_does_not_copy_into_what_its_parent_has_mapped() {
    let Some(scene) = Scene::new("a_child_does_not_copy_into_what_its_parent_has_mapped") else { return };
    let computed = scene.computed(1000);
    assert!(*computed.buffer.read().unwrap() == *computed.expected);
    let child = child(|| {
        let mut view = computed.buffer.write().unwrap();
        view.fill(3);
        view.release().unwrap();
        let error = computed.buffer.raw().prefetch(scene.there, 0..4000).wait().unwrap_err();
        assert!(error.is_device_lost(), "{error}");
    });
    child.ends_well();
    scene.is_as_it_was(&computed);
}

#[test]
fn a_fork_beside_kernels_of_other_threads_disturbs_none() {
    let Some(scene) = Scene::new("a_fork_beside_kernels_of_other_threads_disturbs_none") else { return };
    let (computed, long) = (scene.computed(1000), scene.computed(1 << 16));
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for _ in 0..20 {
                scene.begin(&long.buffer, 1000).wait().unwrap().release().unwrap();
                drop(long.buffer.read().unwrap());
            }
        });
        let mut forks = 0;
        while !busy.is_finished() {
            // Locks of buffers that the other thread held at that moment stay locked in the child.
            let child = child(|| {
                scene.is_a_forks();
                assert!(scene.arena().kernel(TURN, "turn", "").is_err());
            });
            child.ends_well();
            forks += 1;
        }
        assert!(forks > 2, "{forks}");
        busy.join().unwrap();
    });
    let expected: Vec<u32> = long.expected.iter().map(|value| turned(*value, 20_000)).collect();
    assert!(*long.buffer.read().unwrap() == *expected);
    scene.is_as_it_was(&computed);
}

/// A child that is the first to use OpenCL, and whose own child is refused.
fn first_user(test: &'static str, gate: &Gate) -> Child {
    child(|| {
        let Some(own) = Scene::new(test) else { return };
        let computed = own.computed(1000);
        let grandchild = child(|| {
            own.is_a_forks();
            assert!(computed.buffer.read().map(drop).unwrap_err().is_device_lost());
            assert!(reasons().contains("this process is a fork of one that uses OpenCL"));
        });
        grandchild.ends_well();
        gate.pass();
        own.is_as_it_was(&computed);
    })
}

#[test]
fn a_child_may_use_opencl_before_its_parent_does() {
    let test = "a_child_may_use_opencl_before_its_parent_does";
    let gate = Gate::new();
    let first = first_user(test, &gate);
    let Some(scene) = Scene::new(test) else {
        gate.open();
        return first.ends_well();
    };
    let computed = scene.computed(1000);
    gate.open();
    first.ends_well();
    let second = child(|| assert!(reasons().contains("this process is a fork of one that uses OpenCL")));
    second.ends_well();
    scene.is_as_it_was(&computed);
}

/// Kernels are in flight at the fork, and others are still to be launched. They are the parent's.
#[test]
fn kernels_in_flight_are_their_parents() {
    const KERNELS: u32 = 40;
    const ROUNDS: u32 = 20_000;
    let Some(scene) = Scene::new("kernels_in_flight_are_their_parents") else { return };
    // SAFETY: the kernel touches the elements below its last argument, which the buffers have.
    let turn = unsafe { launch::kernel(&scene.platform, scene.there, TURN, "turn") }.unwrap();
    let values: Vec<u32> = (0..1000).collect();
    let buffer = scene.platform.buffer_from(values.clone()).unwrap();
    for _ in 0..KERNELS {
        let submit = scene.platform.submit(scene.there, &turn).read_write(&buffer);
        submit.scalar(ROUNDS).scalar(1000_u64).items(1000_u64).unwrap();
    }
    // By then a thread of the stream waits for the first one.
    std::thread::sleep(Duration::from_millis(10));
    let child = child(|| {
        assert!(scene.platform.settle(scene.there).is_err(), "a fork has no device");
        assert!(buffer.read().is_err());
        let mine = scene.platform.buffer_from(vec![9_u32; 1000]).unwrap();
        let submit = scene.platform.submit(scene.there, &turn).read_write(&mine);
        let refused = submit.scalar(1_u32).scalar(1000_u64).items(1000_u64).unwrap_err();
        assert!(refused.to_string().contains("lost"), "{refused}");
        assert_eq!(*mine.read().unwrap(), [9; 1000]);
    });
    child.ends_well();
    scene.platform.settle(scene.there).unwrap();
    let expected: Vec<u32> = values.iter().map(|value| turned(*value, KERNELS * ROUNDS)).collect();
    assert!(*buffer.read().unwrap() == *expected);
}
