//! One storage that the processor, a worker and an OpenCL device use in place.
//!
//! Without a device the tests say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "offload", feature = "opencl", target_os = "linux", not(dml_loom)))]

mod common;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "offload/rig.rs"]
mod rig;

use common::with_opencl_options;
use dml_arenas::OffloadArena;
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::offload::{Argument, Function};
use dml_arenas::opencl::OpenClKernel;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, OpenClArena, Sharing, Workers};
use dml_core::Scalar;
use dml_core::internal::state::Alloc;
use dml_core::{ArenaId, Buffer, Concurrency, DeviceId, Grants, Platform, Span, record::Operation};
use dml_verify::Audited;
use rig::{WORKER, library};

const CPU: DeviceId = DeviceId(0);
const SHARED: ArenaId = ArenaId(1);
const WORDS: u64 = 30_011;

/// Multiplies the words from `start` to `end` by three and adds to them, as `add_late` does on a worker.
const ADD: &str = "
    __kernel void add(__global uint* data, uint value, ulong start, ulong end) {
        size_t i = start + get_global_id(0);
        if (i < end) data[i] = data[i] * 3 + value;
    }";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Host,
    Worker,
    OpenCl,
}

struct Scene {
    platform: Audited,
    worker: DeviceId,
    opencl: DeviceId,
    function: Function,
    kernel: OpenClKernel,
}

fn options() -> DiscoverOptions {
    DiscoverOptions::default().offload(Workers::new(1).program(WORKER).memory(16 << 20))
}

impl Scene {
    fn new(test: &str) -> Option<Self> {
        with_opencl_options(test, &options())?;
        let options = options().sharing(Sharing::memory(["cpu", "offload:0", "opencl:0"]).bytes(64 << 20));
        let (platform, opencl) = with_opencl_options(test, &options)?;
        let worker = platform.device("offload:0").expect("it was asked for");
        let library = library();
        let there = offload(&platform, worker).device();
        there.load(&library).expect("the library was built");
        std::fs::remove_file(library).expect("it was there");
        let function = there.function("add_late").expect("the library has it");
        let arena = platform.arena(platform.home(opencl).expect("the device has an arena"));
        let kernel = arena.downcast_ref::<OpenClArena>().expect("of OpenCL").kernel(ADD, "add", "").unwrap();
        Some(Self { platform: Audited::new(platform), worker, opencl, function, kernel })
    }

    fn device(&self, who: Who) -> DeviceId {
        match who {
            Who::Host => CPU,
            Who::Worker => self.worker,
            Who::OpenCl => self.opencl,
        }
    }

    /// Multiplies words by three and adds `value`, wherever.
    fn add(&self, who: Who, data: &Buffer<u32>, start: u64, end: u64, value: u32) {
        let region = data.range(start..end);
        let grants = self.platform.acquire(self.device(who)).read_write(&region).wait().unwrap();
        self.run(who, grants, data, start, end, value).release().unwrap();
    }

    fn run(
        &self,
        who: Who,
        mut grants: Grants,
        data: &Buffer<u32>,
        start: u64,
        end: u64,
        value: u32,
    ) -> Grants {
        let region = data.range(start..end);
        if who == Who::Host {
            let words = grants.slice_mut::<u32>(&region).unwrap();
            words.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(value));
            return grants;
        }
        let block = grants.block(&region).unwrap().unwrap();
        let run = if who == Who::Worker {
            let part = Argument::Write(block, Span::new(start * 4, end * 4));
            let [value, ms] = [value, 0].map(|scalar| Argument::Scalar(Scalar::U32(scalar)));
            // SAFETY: the words are granted until the fence has ended, and the function touches no others.
            unsafe {
                offload(&self.platform, self.worker).launch(&self.function, start..end, &[part, value, ms])
            }
            .unwrap()
        } else {
            let items = end - start;
            let (start, end) = (KernelArg::Scalar(Scalar::U64(start)), KernelArg::Scalar(Scalar::U64(end)));
            let args = [KernelArg::Block(block), KernelArg::Scalar(Scalar::U32(value)), start, end];
            let launch = Grid::line(0, items, 0);
            // SAFETY: the kernel touches the words that the grant names, and those alone; the grant is kept
            // until its end.
            unsafe { self.kernel.launch(&args, launch) }.unwrap()
        };
        grants.in_flight(run).wait().unwrap()
    }

    fn bytes_moved(&self) -> u64 {
        self.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum()
    }
}

fn offload(platform: &Platform, worker: DeviceId) -> &OffloadArena {
    let home = platform.home(worker).expect("the worker has an arena");
    platform.arena(home).downcast_ref().expect("it is a worker's")
}

fn words(seed: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|index| index.wrapping_mul(2_654_435_761) ^ seed).collect()
}

fn added(words: &mut [u32], start: u64, end: u64, value: u32) {
    let part = &mut words[start as usize..end as usize];
    part.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(value));
}

#[test]
fn o02_no_byte_moves_whoever_is_first_and_whoever_follows() {
    use Who::{Host, OpenCl, Worker};
    let Some(scene) = Scene::new("o02_no_byte_moves_whoever_is_first_and_whoever_follows") else { return };
    for first in [Host, Worker, OpenCl] {
        scene.platform.counters().reset();
        let data: Buffer<u32> = scene.platform.buffer(WORDS).zeroed().build().unwrap();
        let mut expected = vec![0; WORDS as usize];
        let turns = [first, OpenCl, Worker, Host, OpenCl, Host, Worker, Worker, OpenCl, Worker];
        for (who, turn) in turns.into_iter().zip(1..) {
            let (start, end) = (turn * 101, WORDS - turn * 89);
            scene.add(who, &data, start, end, turn as u32);
            added(&mut expected, start, end, turn as u32);
            if turn % 3 == 0 {
                assert!(*data.read().unwrap() == expected[..], "{first:?} first, turn {turn}");
            }
        }
        assert!(*data.read().unwrap() == expected[..], "{first:?} first");
        let state = data.raw().snapshot();
        let home = |who| scene.platform.home(scene.device(who)).unwrap();
        for (who, concurrency) in [
            (Host, Concurrency::BimapFull),
            (Worker, Concurrency::BimapFull),
            (OpenCl, Concurrency::Exclusive),
        ] {
            assert_eq!(state.arena(home(who)).alloc, Alloc::Bound { root: SHARED, concurrency }, "{who:?}");
        }
        let moves = [Operation::Read, Operation::Write, Operation::Copy];
        let moves = moves.map(|operation| scene.platform.counters().operation(operation));
        assert_eq!((scene.bytes_moved(), moves), (0, [0; 3]), "{first:?} first");
    }
}

#[test]
fn i11_only_a_buffer_that_the_device_has_touched_is_used_in_turns() {
    let Some(scene) = Scene::new("i11_only_a_buffer_that_the_device_has_touched_is_used_in_turns") else {
        return;
    };
    let data: Buffer<u32> = scene.platform.buffer(WORDS).build().unwrap();
    let mut expected = words(3);
    let mut view = data.write().unwrap();
    view.copy_from_slice(&expected);
    view.release().unwrap();
    let try_half = |who: Who, start: u64, end: u64| {
        let region = data.range(start..end);
        scene.platform.acquire(scene.device(who)).read_write(&region).try_now()
    };
    // Host and worker hold halves at once.
    let held = [try_half(Who::Host, 0, 15_000).unwrap(), try_half(Who::Worker, 15_000, WORDS).unwrap()];
    // The device would narrow their rules, so it waits, though it asks for nothing that anybody writes.
    let [here, there] = held;
    let here = scene.run(Who::Host, here, &data, 0, 15_000, 5);
    assert!(try_half(Who::OpenCl, 0, 0).is_ok(), "nothing is needed of nobody");
    let refused = scene.platform.acquire(scene.opencl).write(&data.range(7..8)).try_now();
    assert!(refused.unwrap_err().is_busy());
    here.release().unwrap();
    scene.run(Who::Worker, there, &data, 15_000, WORDS, 6).release().unwrap();
    added(&mut expected, 0, 15_000, 5);
    added(&mut expected, 15_000, WORDS, 6);
    scene.add(Who::OpenCl, &data, 1, WORDS - 1, 7);
    added(&mut expected, 1, WORDS - 1, 7);
    // From now on they take turns.
    let here = try_half(Who::Host, 0, 15_000).unwrap();
    assert!(try_half(Who::Worker, 15_000, WORDS).unwrap_err().is_busy());
    drop(here);
    assert!(*data.read().unwrap() == expected[..]);
    assert_eq!(scene.bytes_moved(), 0);
}

#[test]
fn threads_hand_it_over_and_nothing_is_lost() {
    let Some(scene) = Scene::new("threads_hand_it_over_and_nothing_is_lost") else { return };
    let data: Buffer<u32> = scene.platform.buffer(WORDS).zeroed().build().unwrap();
    std::thread::scope(|scope| {
        for (part, who) in (0..).zip([Who::Host, Who::Worker, Who::OpenCl, Who::Host, Who::Worker]) {
            let (scene, data) = (&scene, &data);
            scope.spawn(move || {
                for round in 0..30 {
                    scene.add(who, data, part * 1_001, (part + 1) * 1_001, round);
                }
            });
        }
    });
    let mut expected = vec![0; WORDS as usize];
    (0..30).for_each(|round| added(&mut expected, 0, 5_005, round));
    assert!(*data.read().unwrap() == expected[..]);
    assert_eq!(scene.bytes_moved(), 0);
}

#[test]
fn nobody_is_bound_to_two_memories() {
    if with_opencl_options("nobody_is_bound_to_two_memories", &options()).is_none() {
        return;
    }
    let refusal =
        |options: DiscoverOptions| Platform::builder().discover_with(&options).map(drop).unwrap_err();
    let twice = refusal(options().sharing(Sharing::memory(["opencl:0"]).bind("opencl:0")));
    let reason = "it is to be bound to main memory as well".to_owned();
    assert_eq!(twice, DiscoverError::BadSharing { device: "opencl:0".to_owned(), reason });
    let chained = refusal(options().sharing(Sharing::memory(["cpu", "offload:0"]).bind("opencl:0")));
    assert!(chained.to_string().contains("opencl:0 cannot share memory"), "{chained}");
    let apart = options().sharing(Sharing::memory(["offload:0"]).bytes(1 << 20).bind("opencl:0"));
    assert!(Platform::builder().discover_with(&apart).is_ok());
}
