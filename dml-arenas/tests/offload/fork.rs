//! Forks of an owner: whatever a child does, its parent's worker, memory and buffers are as they were.

use crate::forks::{Child, Fork, Gate, Leave, child, fork, leave};
use crate::rig::{WORKER, is_there, kill, library, wait_until};
use dml_arenas::MainMem;
use dml_arenas::OffloadArena;
use dml_arenas::kit::join_staged;
use dml_arenas::offload::{Argument, Function, OffloadDevice, OffloadError, Signal, WorkerOptions};
use dml_core::Scalar;
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, Buffer, DeviceDesc, DeviceId, DeviceKind, Fence, InFlight, LinkSpeed, Platform, Span,
};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const THERE: DeviceId = DeviceId(1);

/// A platform of main memory and a worker with the library.
struct Scene {
    platform: Platform,
    device: Arc<OffloadDevice>,
    add: Function,
}

impl Scene {
    fn new() -> Self {
        Self::named("offload:0")
    }

    fn named(name: &str) -> Self {
        let mut options = WorkerOptions::new(WORKER);
        options.memory_bytes = 64 << 20;
        let device = OffloadDevice::start(name, &options).expect("the worker was built");
        let library = library();
        device.load(&library).expect("the library was built");
        std::fs::remove_file(library).expect("it was there");
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_device(DeviceDesc::new(name, DeviceKind::Cpu));
        let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
        let there = builder.add_arena(Arc::new(OffloadArena::new(device.clone(), THERE)));
        join_staged(&mut builder, main, there, LinkSpeed::default());
        let add = device.function("add_late").expect("the library has it");
        Self { platform: builder.build().expect("it fits together"), device, add }
    }

    fn buffer(&self, values: &[u32]) -> Buffer<u32> {
        self.platform.buffer_from(values.to_vec()).expect("main memory takes it")
    }

    fn arena(&self) -> &OffloadArena {
        let arena = self.platform.home(THERE).expect("the device has an arena");
        self.platform.arena(arena).downcast_ref().expect("it is a worker's")
    }

    fn launch(
        &self,
        function: &Function,
        items: std::ops::Range<u64>,
        arguments: &[Argument<'_>],
    ) -> Result<Fence, OffloadError> {
        // SAFETY: each caller has a grant of the blocks, which it keeps until the fence has ended.
        unsafe { self.arena().launch(function, items, arguments) }
    }

    /// Begins to multiply by three and add `value` on the worker, which takes so many milliseconds.
    fn begin(&self, buffer: &Buffer<u32>, value: u32, ms: u32) -> InFlight {
        let grants = self.platform.acquire(THERE).read_write(buffer).wait().expect("nobody else holds it");
        let block = grants.block(buffer).expect("granted").expect("it has bytes").clone();
        let arguments = [
            Argument::Write(&block, Span::new(0, buffer.len() * 4)),
            Argument::Scalar(Scalar::U32(value)),
            Argument::Scalar(Scalar::U32(ms)),
        ];
        let fence = self.launch(&self.add, 0..buffer.len(), &arguments).expect("it fits");
        grants.in_flight(fence)
    }

    /// A buffer whose contents only the worker has.
    fn computed(&self, len: u32, seed: u32) -> Computed {
        let values: Vec<u32> = (0..len).map(|index| index * 31 + seed).collect();
        let buffer = self.buffer(&values);
        self.begin(&buffer, seed, 0).wait().expect("it ran").release().expect("it is there");
        let expected = values.iter().map(|value| value * 3 + seed).collect();
        Computed { buffer, expected }
    }

    /// What holds of the parent after whatever its children did.
    fn is_as_it_was(&self, computed: &Computed) {
        assert_eq!(self.device.loss(), None);
        assert!(is_there(self.device.process().expect("it is a process")));
        assert!(*computed.buffer.read().expect("it was computed") == *computed.expected);
        assert_eq!(self.device.function("scale").expect("the worker answers").name().as_ref(), "scale");
        let another = self.computed(computed.expected.len() as u32, 77);
        assert!(*another.buffer.read().expect("it was computed") == *another.expected);
    }

    /// What a child hears of the inherited device.
    fn is_a_forks(&self) {
        assert!(self.device.is_lost());
        let loss = self.device.loss().expect("a fork has no worker").to_string();
        assert!(loss.contains("this process is a fork of the one that started"), "{loss}");
    }
}

struct Computed {
    buffer: Buffer<u32>,
    expected: Vec<u32>,
}

#[test]
fn what_a_child_drops_is_still_its_parents() {
    for (len, how) in [(100, Leave::AtOnce), (50_000, Leave::InOrder)] {
        let scene = Scene::new();
        let computed = scene.computed(len, 5);
        let (waits, _never) = Signal::new();
        let line = scene.device.pipeline();
        let other = scene.computed(len, 19);
        let grants = scene.platform.acquire(THERE).read_write(&other.buffer).wait().unwrap();
        let block = grants.block(&other.buffer).unwrap().unwrap();
        // SAFETY: the block is granted, and nothing else is begun.
        let pending = unsafe { line.fill((block, Span::new(0, 4)), 1, &[waits]) }.unwrap();
        match fork() {
            Fork::Child => leave(how, || drop((grants, pending, line, computed, other, scene))),
            Fork::Parent(child) => child.ends_well(),
        }
        assert!(!pending.is_ended());
        grants.clean().unwrap();
        assert!(*other.buffer.read().unwrap() == *other.expected);
        scene.is_as_it_was(&computed);
    }
}

thread_local! {
    /// Dropped when the thread, or the process in its thread, ends in order.
    static LAST: RefCell<Option<(Computed, Scene)>> = const { RefCell::new(None) };
}

#[test]
fn what_the_end_of_a_child_drops_is_still_its_parents() {
    let scene = Scene::new();
    let computed = scene.computed(1000, 6);
    LAST.set(Some((computed, scene)));
    match fork() {
        Fork::Child => leave(Leave::InOrder, || {}),
        Fork::Parent(child) => child.ends_well(),
    }
    let (computed, scene) = LAST.take().unwrap();
    scene.is_as_it_was(&computed);
}

#[test]
fn a_panic_in_a_child_takes_nothing_along() {
    let scene = Scene::new();
    let computed = scene.computed(1000, 7);
    match fork() {
        Fork::Child => leave(Leave::AtOnce, || {
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                let (_computed, _scene) = (computed, scene);
                panic!("as it was told");
            }));
            assert!(unwound.is_err());
        }),
        Fork::Parent(child) => child.ends_well(),
    }
    scene.is_as_it_was(&computed);
}

#[test]
fn what_a_child_brings_to_the_device_is_refused() {
    let scene = Scene::new();
    let computed = scene.computed(1000, 8);
    let mine = scene.buffer(&[9; 1000]);
    let gate = Gate::new();
    let child = child(|| {
        gate.pass();
        // The parent has taken the next block by now.
        let error = mine.raw().prefetch(THERE, 0..4000).wait().unwrap_err();
        assert!(error.is_device_lost(), "{error}");
        let error = scene.platform.acquire(THERE).write(&mine).wait().unwrap_err();
        assert!(error.is_device_lost(), "{error}");
        scene.is_a_forks();
        assert!(scene.platform.lost_devices().contains(THERE));
        // What main memory has, the child has.
        assert_eq!(*mine.read().unwrap(), [9; 1000]);
    });
    let next = scene.computed(1000, 10);
    gate.open();
    child.ends_well();
    assert!(*next.buffer.read().unwrap() == *next.expected);
    scene.is_as_it_was(&computed);
}

#[test]
fn a_child_that_reads_or_writes_a_buffer_is_told_so() {
    let scene = Scene::new();
    let (computed, other) = (scene.computed(50_000, 11), scene.computed(100, 12));
    let child = child(|| {
        for each in [&computed.buffer, &other.buffer] {
            // Of the first one the loss is heard, and the other one's bytes have gone with the device.
            let error = each.read().map(drop).unwrap_err();
            assert!(error.is_device_lost() || matches!(error, AcquireError::Poisoned { .. }), "{error}");
            // To be overwritten, nothing of it is needed.
            let mut view = each.write().unwrap();
            view.fill(3);
            view.release().unwrap();
            assert!(each.read().unwrap().iter().all(|value| *value == 3));
        }
        scene.is_a_forks();
    });
    child.ends_well();
    assert!(*other.buffer.read().unwrap() == *other.expected);
    scene.is_as_it_was(&computed);
}

#[test]
fn a_child_runs_asks_and_stops_nothing() {
    let scene = Scene::new();
    let computed = scene.computed(1000, 13);
    let child = child(|| {
        let grants = scene.platform.acquire(THERE).read_write(&computed.buffer).wait().unwrap();
        let block = grants.block(&computed.buffer).unwrap().unwrap().clone();
        let whole = Span::new(0, 4000);
        let arguments = [
            Argument::Write(&block, whole),
            Argument::Scalar(Scalar::U32(1)),
            Argument::Scalar(Scalar::U32(0)),
        ];
        assert!(scene.launch(&scene.add, 0..1000, &arguments).unwrap_err().is_device_lost());
        let line = scene.device.pipeline();
        // SAFETY: nothing else is begun, and the block is granted.
        let filled = unsafe { line.fill((&block, whole), 1, &[]) };
        assert!(filled.unwrap_err().is_device_lost());
        assert!(scene.device.function("scale").unwrap_err().is_device_lost());
        assert!(scene.device.load("libm.so.6").unwrap_err().is_device_lost());
        scene.is_a_forks();
        scene.device.stop();
        let _ = grants.release();
    });
    child.ends_well();
    scene.is_as_it_was(&computed);
}

#[test]
fn a_child_does_not_wait_for_what_its_parent_has_begun() {
    let scene = Scene::new();
    let computed = scene.computed(1000, 14);
    let more = scene.buffer(&[1; 1000]);
    let running = scene.begin(&more, 2, 1500);
    let (never, _signaller) = Signal::new();
    match fork() {
        Fork::Child => leave(Leave::AtOnce, || {
            let begun = Instant::now();
            assert!(never.wait().is_err());
            // It waits for the run.
            let error = running.wait().map(drop).unwrap_err();
            assert!(error.is_device_lost(), "{error}");
            drop((more, computed, scene));
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        }),
        Fork::Parent(child) => child.ends_well(),
    }
    running.wait().unwrap().release().unwrap();
    assert_eq!(*more.read().unwrap(), [5; 1000]);
    scene.is_as_it_was(&computed);
}

#[test]
fn a_fork_beside_transfers_and_runs_of_other_threads_disturbs_neither() {
    let scene = Scene::new();
    let computed = scene.computed(1000, 15);
    let long = scene.buffer(&vec![1; 4 << 20]);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for round in 0..20_u32 {
                scene.begin(&long, round, 1).wait().unwrap().release().unwrap();
                drop(long.read().unwrap());
            }
        });
        let mut forks = 0;
        while !busy.is_finished() {
            // Locks of buffers that the other thread held at that moment stay locked in the child: it asks
            // the device alone.
            let child = child(|| {
                assert!(scene.device.is_lost());
                assert!(scene.device.function("scale").unwrap_err().is_device_lost());
                assert!(scene.device.load("libm.so.6").unwrap_err().is_device_lost());
                scene.device.stop();
            });
            child.ends_well();
            forks += 1;
        }
        assert!(forks > 2, "{forks}");
        busy.join().unwrap();
    });
    let expected = (0..20).fold(1_u32, |value, round| value.wrapping_mul(3).wrapping_add(round));
    assert!(long.read().unwrap().iter().all(|value| *value == expected));
    scene.is_as_it_was(&computed);
}

/// A child that uses a worker of its own, and has a child that does, as deep as `depth` says.
fn family(depth: u32) -> Child {
    match fork() {
        Fork::Parent(child) => child,
        Fork::Child => leave(Leave::AtOnce, || {
            let own = Scene::new();
            let computed = own.computed(3000, depth);
            let worker = own.device.process().unwrap();
            if depth > 0 {
                let grandchild = child(|| {
                    own.is_a_forks();
                    assert!(own.device.function("scale").unwrap_err().is_device_lost());
                    let error = computed.buffer.read().map(drop).unwrap_err();
                    assert!(error.to_string().contains("lost"), "{error}");
                });
                grandchild.ends_well();
                family(depth - 1).ends_well();
            }
            own.is_as_it_was(&computed);
            drop((computed, own));
            wait_until("the child's worker is gone", || !is_there(worker));
        }),
    }
}

#[test]
fn a_child_has_a_worker_of_its_own_and_so_has_its_child() {
    let scene = Scene::new();
    let computed = scene.computed(3000, 16);
    match fork() {
        Fork::Parent(child) => child.ends_well(),
        Fork::Child => leave(Leave::AtOnce, || {
            // What named the parent's threads may name the child's next ones.
            drop((computed, scene));
            family(1).ends_well();
        }),
    }
    family(1).ends_well();
    scene.is_as_it_was(&computed);
}

#[test]
fn a_child_does_not_see_the_workers_memory() {
    let shown = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:offload:seen")).count()
    };
    let scene = Scene::named("offload:seen");
    let computed = scene.computed(10, 17);
    assert_eq!(shown(), 1);
    match fork() {
        Fork::Parent(child) => child.ends_well(),
        Fork::Child => leave(Leave::AtOnce, || {
            assert_eq!(shown(), 0);
            // The addresses are free, so others may have them by the time the handle goes.
            let mine = vec![7_u8; 64 << 20];
            drop((computed, scene));
            assert!(mine.iter().all(|byte| *byte == 7));
        }),
    }
    scene.is_as_it_was(&computed);
}

/// A device that no thread refers to, so that a child that drops its handle drops all of it.
#[test]
fn a_handle_that_a_child_drops_ends_nothing() {
    let scene = Scene::new();
    let buffer = scene.buffer(&[20; 1000]);
    buffer.raw().prefetch(THERE, 0..4000).wait().unwrap();
    match fork() {
        Fork::Parent(child) => child.ends_well(),
        Fork::Child => leave(Leave::AtOnce, || {
            // Its thread may have the name that the parent's had.
            let own = Scene::new();
            let computed = own.computed(1000, 1);
            // Its memory may be where the parent's worker's was.
            let mine: Vec<Vec<u8>> = (0..8).map(|_| vec![7_u8; 64 << 20]).collect();
            drop((buffer, scene));
            assert!(mine.iter().flatten().all(|byte| *byte == 7));
            own.is_as_it_was(&computed);
            drop((computed, own));
        }),
    }
    assert_eq!(scene.device.loss(), None);
    let computed = scene.computed(1000, 21);
    scene.is_as_it_was(&computed);
}

#[test]
fn a_child_does_not_wait_for_an_answer_to_another_thread() {
    let scene = Scene::new();
    let computed = scene.computed(100, 22);
    let worker = scene.device.process().unwrap();
    kill(worker, "STOP");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| scene.device.function("scale").map(drop));
        // By then it asks.
        std::thread::sleep(Duration::from_millis(200));
        let child = child(|| {
            assert!(scene.device.function("scale").unwrap_err().is_device_lost());
            scene.device.stop();
        });
        child.ends_well();
        kill(worker, "CONT");
        asking.join().unwrap().unwrap();
    });
    scene.is_as_it_was(&computed);
}

#[test]
fn a_pipeline_that_a_child_inherited_ends_with_its_parents() {
    let scene = Scene::new();
    let tasks =
        || std::fs::read_dir(format!("/proc/{}/task", scene.device.process().unwrap())).unwrap().count();
    let before = tasks();
    let line = scene.device.pipeline();
    let fail = scene.device.function("fail_silently").unwrap();
    // SAFETY: the function has no parts.
    assert!(unsafe { line.run(&fail, 0..1, &[], &[]) }.unwrap().wait().is_err());
    assert_eq!(tasks(), before + 1);
    let gate = Gate::new();
    let child = child(|| gate.pass());
    drop(line);
    wait_until("the worker has closed the pipeline", || tasks() == before);
    gate.open();
    child.ends_well();
}

#[test]
fn a_function_that_forks_leaves_one_worker() {
    let scene = Scene::new();
    let computed = scene.computed(100, 18);
    for (name, first) in [("fork_and_return", 7), ("fork_and_touch", 1)] {
        let function = scene.device.function(name).unwrap();
        let buffer = scene.buffer(&[1, 2, 3]);
        let grants = scene.platform.acquire(THERE).read_write(&buffer).wait().unwrap();
        let block = grants.block(&buffer).unwrap().unwrap().clone();
        let arguments = [Argument::Write(&block, Span::new(0, 12))];
        let fence = scene.launch(&function, 0..1, &arguments).unwrap();
        grants.in_flight(fence).wait().unwrap().release().unwrap();
        assert_eq!(*buffer.read().unwrap(), [first, 2, 3], "{name}");
    }
    scene.is_as_it_was(&computed);
}
