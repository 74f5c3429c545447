//! Runs without the host: a worker begins, in the memory where the data lies, and an unmeasured GPU is
//! explored beside it.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, Launch,
    LaunchArg, LaunchError, Launcher, LinkSpeed, Misfit,
};
use dml::prelude::*;
use dml::scheduler::policy::RecordedDecisions;
use dml::scheduler::{Hooks, KernelError, Knowledge, Report};
use dml_verify::{Audited, watched};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Mutex;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const WORKER: DeviceId = DeviceId(1);
const GPU: DeviceId = DeviceId(2);
const MAIN: ArenaId = ArenaId(0);
const LOCAL: u64 = 10;
const ITEMS: u64 = 4003;

fn squares(items: Range<u64>) -> Vec<u8> {
    items.flat_map(|item| (item as u32).wrapping_mul(item as u32).to_ne_bytes()).collect()
}

fn memory(platform: &Platform, arena: u8) -> &Null {
    platform.arena(ArenaId(arena)).downcast_ref::<Null>().expect("all are")
}

/// What a device does.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// An item takes so long.
    Takes(Duration),
    Fails,
}

/// A GPU that computes on a memory.
struct Gpu {
    platform: Platform,
    arena: u8,
    does: Does,
}

impl Launcher for Gpu {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let Does::Takes(item) = self.does else {
            return Err(LaunchError::not_started("it does not compute"));
        };
        let [LaunchArg::Buffer { buffer, .. }] = launch.arguments else {
            return Err(LaunchError::not_started("one buffer"));
        };
        std::thread::sleep(item * (launch.items.end - launch.items.start) as u32);
        let bytes = launch.items.start * 4..launch.items.end * 4;
        let written = memory(&self.platform, self.arena).write(
            grants,
            &buffer.range(bytes),
            &squares(launch.items.clone()),
        );
        written.map_err(LaunchError::failed)?;
        Ok(Fence::done(0))
    }
}

/// A processor that takes no part, a worker that works in its memory, and GPUs.
struct Machine {
    platform: Audited,
    gpus: usize,
    target: Buffer<u32>,
    kernel: Kernel,
}

/// How the memories of the worker and of the GPUs share that of the processor.
type Sharing = [Option<Concurrency>; 2];

impl Machine {
    fn new(worker: Does, gpu: Does) -> Self {
        Self::sharing([Some(Concurrency::BimapFull), None], worker, gpu)
    }

    fn sharing(sharing: Sharing, worker: Does, gpu: Does) -> Self {
        Self::with_gpus(sharing, worker, &[gpu])
    }

    /// As `sharing`, with several GPUs.
    fn with_gpus(sharing: Sharing, worker: Does, gpus: &[Does]) -> Self {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_device(DeviceDesc::new("worker", DeviceKind::Cpu));
        for index in 0..gpus.len() {
            builder
                .add_device(DeviceDesc::new(&format!("gpu:{index}"), DeviceKind::Gpu).with_compute_units(64));
        }
        let mut add = |device: u16, sharing: Option<Concurrency>| {
            let desc = ArenaDesc::new(&format!("memory {device}"), ArenaKind("test"), DeviceId(device));
            let desc = desc.with_remotes(DeviceSet::of(CPU)).with_concurrency(Concurrency::BimapFull);
            let memory = builder.add_arena(Arc::new(Null::backed(desc)));
            match sharing {
                _ if device == 0 => {}
                Some(sharing) => {
                    kit::join_bound(&mut builder, MAIN, memory, sharing, LinkSpeed::default());
                    builder.prefer_binding(MAIN, memory);
                }
                None => kit::join_staged(&mut builder, MAIN, memory, LinkSpeed::default()),
            }
        };
        add(0, None);
        add(1, sharing[0]);
        (0..gpus.len()).for_each(|index| add(index as u16 + 2, sharing[1]));
        let platform = Audited::new(builder.build().expect("a sound platform"));
        let target = platform.buffer::<u32>(ITEMS).build().unwrap();
        let (there, output) = (Platform::clone(&platform), target.clone());
        // It returns at once, as a process does that was sent a message. Its packages follow each other.
        let until = Arc::new(Mutex::new(Instant::now()));
        let compute = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            let Does::Takes(item) = worker else { return Err("it does not compute".into()) };
            let bytes = package.start() * 4..package.end() * 4;
            memory(&there, 1).write(grants, &output.raw().range(bytes), &squares(package.range()))?;
            let mut until = until.lock().unwrap();
            *until = until.max(Instant::now()) + item * package.items() as u32;
            let end = *until;
            Ok(Fence::running(move || {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                Ok(0)
            }))
        };
        let kernel = Kernel::new("square", LOCAL).write(&target).variant(WORKER, compute);
        let launcher = |(index, &does): (usize, &Does)| {
            let platform = Platform::clone(&platform);
            (DeviceId(index as u16 + 2), Gpu { platform, arena: index as u8 + 2, does })
        };
        let kernel = kernel.launchers(gpus.iter().enumerate().map(launcher)).unwrap();
        Self { platform, gpus: gpus.len(), target, kernel }
    }

    fn run(&self, knowledge: &Knowledge, items: u64) -> Report {
        let gpus = (0..self.gpus).map(|index| DeviceId(index as u16 + 2));
        let run = Coexecutor::new(&self.platform).devices(gpus.chain([WORKER])).knowledge(knowledge);
        let (run, kernel) = (run.record_decisions(), self.kernel.clone());
        let report = watched("a run", move || run.run(&kernel, items).unwrap()).join();
        let written = self.target.range(0..items);
        let grants = self.platform.acquire(CPU).read(&written).wait().unwrap();
        assert_eq!(grants.read_bytes(&written).unwrap(), squares(0..items), "{report:?}");
        grants.release().unwrap();
        let decisions = report.decisions.as_ref().expect("they are recorded");
        decisions.replay().unwrap();
        assert_eq!(&decisions.to_string().parse::<RecordedDecisions>().unwrap(), decisions);
        report
    }
}

fn items(report: &Report) -> [u64; 2] {
    [GPU, WORKER].map(|of| {
        let device = report.devices.iter().find(|device| device.device == of);
        device.map_or(0, |device| device.items)
    })
}

#[test]
fn a_worker_begins_with_one_package_at_a_time_and_the_gpu_is_explored_beside_it() {
    let machine = Machine::new(Does::Takes(Duration::from_micros(50)), Does::Takes(Duration::ZERO));
    let begun = Instant::now();
    loop {
        let report = machine.run(&Knowledge::new(), ITEMS);
        let text = report.decisions.as_ref().unwrap().to_string();
        assert!(text.contains(r#"{"Sampled":{"unit":1,"fills":10}}"#), "{text}");
        let first = report.packages.iter().find(|record| record.package.start() == 0).unwrap();
        // On a busy machine the GPU may be done before the worker has begun, or its thread come too late.
        if first.device == WORKER && items(&report)[0] > ITEMS / 2 {
            assert_eq!(first.package.items(), LOCAL, "{report:?}");
            let second = report.packages.iter().filter(|record| record.device == WORKER).nth(1);
            assert!(second.is_none_or(|second| second.start >= first.computed), "{report:?}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}

/// A GPU that shares the host's memory does not begin like a host, nor does a device whose data has to be
/// moved.
#[test]
fn who_is_near_computes_on_the_cores_and_in_place() {
    let takes = Does::Takes(Duration::ZERO);
    let full = Some(Concurrency::BimapFull);
    for (sharing, opens) in [
        ([full, None], r#"{"Sampled":{"unit":1,"fills":10}}"#),
        ([full, full], r#"{"Sampled":{"unit":1,"fills":10}}"#),
        ([None, full], r#"{"Sampled":{"unit":0,"fills":null}}"#),
        ([None, None], r#"{"Sampled":{"unit":0,"fills":null}}"#),
    ] {
        let report = Machine::sharing(sharing, takes, takes).run(&Knowledge::new(), ITEMS);
        let text = report.decisions.as_ref().unwrap().to_string();
        assert!(text.contains(opens), "{sharing:?}: {text}");
    }
}

#[test]
fn a_short_run_is_the_workers() {
    let machine = Machine::new(Does::Takes(Duration::ZERO), Does::Takes(Duration::from_millis(1)));
    assert_eq!(items(&machine.run(&Knowledge::new(), LOCAL)), [0, LOCAL]);
}

#[test]
fn where_one_fails_the_other_computes() {
    let works = Does::Takes(Duration::from_micros(5));
    let machine = Machine::new(Does::Fails, works);
    assert_eq!(items(&machine.run(&Knowledge::new(), ITEMS)), [ITEMS, 0]);
    let machine = Machine::new(works, Does::Fails);
    assert_eq!(items(&machine.run(&Knowledge::new(), ITEMS)), [0, ITEMS]);
}

#[test]
fn with_powers_both_begin() {
    let machine = Machine::new(Does::Takes(Duration::from_micros(5)), Does::Takes(Duration::from_micros(5)));
    let run = Coexecutor::new(&machine.platform).devices([GPU, WORKER]).powers([0.5, 0.5]);
    let report = run.knowledge(&Knowledge::new()).run(&machine.kernel, ITEMS).unwrap();
    assert!(items(&report).iter().all(|items| *items > 0) && report.called_up.is_empty(), "{report:?}");
}

/// Has runs until one is nearly all of one device's.
fn is_found(machine: &Machine, faster: DeviceId, items: u64) {
    let (knowledge, begun) = (Knowledge::new(), Instant::now());
    loop {
        let report = machine.run(&knowledge, items);
        let device = report.devices.iter().find(|device| device.device == faster);
        if device.is_some_and(|device| device.items > items * 3 / 4) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}

#[test]
fn later_runs_are_the_faster_ones_whichever_began() {
    for (worker, gpu, faster) in [(0, 50, WORKER), (50, 0, GPU)] {
        let [worker, gpu] = [worker, gpu].map(|micros| Does::Takes(Duration::from_micros(micros)));
        is_found(&Machine::new(worker, gpu), faster, ITEMS);
    }
}

/// Runs of eight work-groups, each of which takes long.
#[test]
fn a_few_long_work_groups_do_not_keep_all_runs() {
    let (slow, quick) = (Does::Takes(Duration::from_micros(112)), Does::Takes(Duration::ZERO));
    let machine = Machine::with_gpus([Some(Concurrency::BimapFull), None], slow, &[quick]);
    is_found(&machine, GPU, LOCAL * 8);
}

/// The worker and the first GPU are slow.
#[test]
fn of_several_gpus_the_faster_one_is_found() {
    let (slow, quick) = (Does::Takes(Duration::from_micros(5)), Does::Takes(Duration::ZERO));
    let machine = Machine::with_gpus([Some(Concurrency::BimapFull), None], slow, &[slow, quick]);
    is_found(&machine, DeviceId(3), ITEMS);
}

/// Where nothing has to be moved, no other thread is asked to do so. Storage that only one of two can use at
/// a time may have to be moved as a whole.
#[test]
fn results_in_place_are_told_of_by_the_thread_that_computed_them() {
    #[derive(Default)]
    struct Told(Mutex<Vec<(DeviceId, ThreadId)>>);

    impl Hooks for Told {
        fn package_done(&self, _: &Package, device: DeviceId) {
            self.0.lock().unwrap().push((device, std::thread::current().id()));
        }
    }

    for (sharing, threads) in [(Concurrency::BimapFull, 1), (Concurrency::Exclusive, 2)] {
        let (worker, gpu) = (Does::Takes(Duration::ZERO), Does::Takes(Duration::from_micros(100)));
        let machine = Machine::sharing([Some(sharing), None], worker, gpu);
        let begun = Instant::now();
        loop {
            let told = Told::default();
            let run = Coexecutor::new(&machine.platform).devices([GPU, WORKER]).knowledge(&Knowledge::new());
            let report = run.run_with(&machine.kernel, LOCAL * 40, &told).unwrap();
            let told = told.0.into_inner().unwrap();
            let by_worker = told.iter().filter(|(device, _)| *device == WORKER).map(|(_, thread)| *thread);
            let by_worker: Vec<ThreadId> = by_worker.collect();
            let is_telling = by_worker.len() > 1;
            let different: HashSet<ThreadId> = by_worker.into_iter().collect();
            assert!(different.len() <= threads, "{sharing:?}: {report:?}");
            // On a busy machine the GPU may be done before it, or one thread bring all results.
            if is_telling && different.len() == threads {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
        }
    }
}

/// A thread that reports results in place holds no other package, so its hook may acquire everything that the
/// run writes.
#[test]
fn a_hook_may_read_all_results_in_place() {
    struct Reads {
        target: Buffer<u32>,
        told: Mutex<Vec<String>>,
    }

    impl Hooks for Reads {
        fn package_done(&self, _: &Package, _: DeviceId) {
            let told = self.target.read().map_or_else(|error| error.to_string(), |_| "read".to_owned());
            self.told.lock().unwrap().push(told);
        }
    }

    let machine = Machine::new(Does::Takes(Duration::from_micros(2)), Does::Fails);
    // Bytes that were never written could not be read.
    let mut grants = machine.platform.acquire(CPU).write(&machine.target).wait().unwrap();
    memory(&machine.platform, 0).write(&mut grants, &machine.target, &[7; 4 * ITEMS as usize]).unwrap();
    grants.release().unwrap();
    // A policy as it was published has two packages under way.
    let run = Coexecutor::new(&machine.platform).devices([WORKER]).policy("dynamic:32".parse().unwrap());
    let hooks = Reads { target: machine.target.clone(), told: Mutex::default() };
    let kernel = machine.kernel.clone();
    let told = watched("a run whose hooks read all", move || {
        let report = run.run_with(&kernel, ITEMS, &hooks).unwrap();
        (report.packages.len(), hooks.told.into_inner().unwrap())
    });
    let (packages, told) = told.join();
    assert!(packages > 16 && told.len() == packages && told.iter().all(|told| told == "read"), "{told:?}");
}
