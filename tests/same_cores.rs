//! Devices that compute on the same cores: the processor beside an OpenCL device or a worker. They do not take the cores from each other.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::sync::Arc;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, BufferCopy, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet,
    Fence, Launch, LaunchArg, LaunchError, Launcher, LinkSpeed, Misfit,
};
use dml::prelude::*;
use dml::scheduler::{KernelError, Knowledge, Reason, Report};
use dml_verify::{Audited, watched};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const DRIVER: DeviceId = DeviceId(1);
const GPU: DeviceId = DeviceId(2);
const LOCAL: u64 = 10;
const ITEMS: u64 = 4003;
/// What an item takes the processor.
const ITEM: Duration = Duration::from_micros(20);

/// Counts who computes at once.
#[derive(Clone, Default)]
struct Busy(Arc<[AtomicU64; 2]>);

impl Busy {
    /// Computes for so long.
    fn compute(&self, took: Duration) {
        let [now, most] = &*self.0;
        let with_this = now.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(with_this, Ordering::SeqCst);
        std::thread::sleep(took);
        now.fetch_sub(1, Ordering::SeqCst);
    }

    /// The most that computed at once.
    fn most(&self) -> u64 {
        self.0[1].load(Ordering::SeqCst)
    }
}

/// A driver of the processor's cores with a memory of its own. It squares numbers.
struct Driver {
    platform: Platform,
    target: RawBuffer,
    busy: Busy,
    copies: bool,
    /// What an item takes it.
    item: Duration,
    tried: Arc<AtomicBool>,
}

fn memory(platform: &Platform, arena: u8) -> &Null {
    platform.arena(ArenaId(arena)).downcast_ref::<Null>().expect("all are")
}

fn squares(items: std::ops::Range<u64>) -> Vec<u8> {
    items.flat_map(|item| (item as u32).wrapping_mul(item as u32).to_ne_bytes()).collect()
}

impl Launcher for Driver {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [LaunchArg::Buffer { buffer, .. }] = launch.arguments else {
            return Err(LaunchError::not_started("one buffer"));
        };
        let took = self.item * (launch.items.end - launch.items.start) as u32;
        if *buffer == self.target {
            self.busy.compute(took);
        } else {
            // A trial computes beside others.
            std::thread::sleep(took);
            self.tried.store(true, Ordering::SeqCst);
        }
        let bytes = launch.items.start * 4..launch.items.end * 4;
        memory(&self.platform, 1)
            .write(grants, &buffer.range(bytes), &squares(launch.items.clone()))
            .map_err(LaunchError::failed)?;
        Ok(Fence::done(0))
    }

    fn copies(&self) -> bool {
        self.copies
    }

    fn copy(&self, copies: &[BufferCopy], grants: &mut Grants) -> Result<Fence, LaunchError> {
        let memory = memory(&self.platform, 1);
        for BufferCopy { from, to, bytes, .. } in copies {
            let values = memory.read(grants, &from.range(bytes.clone())).map_err(LaunchError::failed)?;
            memory.write(grants, &to.range(bytes.clone()), &values).map_err(LaunchError::failed)?;
        }
        Ok(Fence::done(0))
    }
}

/// A machine of four cores, which the processor and a driver have each, and a GPU that only some kernels run on.
struct Machine {
    platform: Audited,
    target: Buffer<u32>,
    kernel: Kernel,
    busy: Busy,
    tried: Arc<AtomicBool>,
}

impl Machine {
    fn new(copies: bool, item: Duration) -> Self {
        let mut builder = Platform::builder();
        for name in ["cpu", "driver:0"] {
            builder.add_device(DeviceDesc::new(name, DeviceKind::Cpu).with_units(4));
        }
        let cpu = DeviceSet::of(CPU);
        let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
        builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
        let own = ArenaDesc::new("own", ArenaKind("test"), DRIVER).with_remotes(cpu);
        let own = builder.add_arena(Arc::new(Null::backed(own)));
        kit::join_staged(&mut builder, ArenaId(0), own, LinkSpeed::default());
        builder.add_device(DeviceDesc::new("gpu:0", DeviceKind::Gpu).with_units(100));
        let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
        let video = builder.add_arena(Arc::new(Null::backed(video)));
        kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
        let platform = Audited::new(builder.build().expect("a sound platform"));
        let target = platform.buffer::<u32>(ITEMS).build().unwrap();
        let (busy, tried) = (Busy::default(), Arc::new(AtomicBool::new(false)));
        let (there, output, counts) = (Platform::clone(&platform), target.clone(), busy.clone());
        let host = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            counts.compute(ITEM * package.items() as u32);
            let bytes = package.start() * 4..package.end() * 4;
            memory(&there, 0).write(grants, &output.raw().range(bytes), &squares(package.range()))?;
            Ok(Fence::done(0))
        };
        let driver = Driver {
            platform: Platform::clone(&platform),
            target: target.raw().clone(),
            busy: busy.clone(),
            copies,
            item,
            tried: tried.clone(),
        };
        let kernel = Kernel::new("square", LOCAL).write(&target).variant(CPU, host);
        let kernel = kernel.launchers([(DRIVER, driver)]).unwrap();
        Self { platform, target, kernel, busy, tried }
    }

    /// Lets the kernel run on the GPU as well.
    fn with_gpu(mut self) -> Self {
        let (there, output) = (Platform::clone(&self.platform), self.target.clone());
        let gpu = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            let bytes = package.start() * 4..package.end() * 4;
            memory(&there, 2).write(grants, &output.raw().range(bytes), &squares(package.range()))?;
            Ok(Fence::done(0))
        };
        self.kernel = self.kernel.variant(GPU, gpu);
        self
    }

    fn run(&self, cores: u32, knowledge: &Knowledge) -> Report {
        let run = Coexecutor::new(&self.platform).cores(cores).knowledge(knowledge).record_decisions();
        let grants = self.platform.acquire(CPU).write(&self.target).wait().unwrap();
        grants.release().unwrap();
        let kernel = self.kernel.clone();
        let report = watched("a run", move || run.run(&kernel, ITEMS).unwrap()).join();
        let grants = self.platform.acquire(CPU).read(&self.target).wait().unwrap();
        assert_eq!(grants.read_bytes(&self.target).unwrap(), squares(0..ITEMS), "{report:?}");
        grants.release().unwrap();
        report.decisions.as_ref().expect("they are recorded").replay().unwrap();
        report
    }
}

#[test]
fn who_has_the_same_cores_computes_one_after_the_other() {
    for item in [Duration::ZERO, ITEM, ITEM * 5] {
        let machine = Machine::new(true, item);
        let knowledge = Knowledge::new();
        for _ in 0..8 {
            machine.run(4, &knowledge);
        }
        assert_eq!(machine.busy.most(), 1, "{item:?} an item");
    }
}

/// What nobody waits for may come too late on a busy machine, so one run of several has to show it.
#[test]
fn the_faster_of_two_on_the_same_cores_is_found_in_the_first_run() {
    let machine = Machine::new(true, Duration::from_micros(1));
    let found = (0..10).any(|_| {
        let report = machine.run(4, &Knowledge::new());
        report.devices.iter().any(|device| device.device == DRIVER && device.items > ITEMS / 2)
    });
    assert!(found && machine.tried.load(Ordering::SeqCst));
}

#[test]
fn who_cannot_be_compared_is_left_out_and_the_report_says_why() {
    let machine = Machine::new(false, Duration::ZERO);
    let knowledge = Knowledge::new();
    for _ in 0..3 {
        let report = machine.run(4, &knowledge);
        let [left_out] = &report.left_out[..] else { panic!("{:?}", report.left_out) };
        assert_eq!((left_out.device, &left_out.reason), (DRIVER, &Reason::SameCores));
        assert_eq!(left_out.reason.to_string(), "computes on the same cores as those that take part");
        assert_eq!(report.packages.len(), 1, "the processor computes all at once");
    }
}

/// Where a GPU could help, nobody waits for a comparison.
#[test]
fn beside_a_gpu_one_of_those_on_the_same_cores_takes_part() {
    let machine = Machine::new(true, Duration::ZERO).with_gpu();
    let report = machine.run(4, &Knowledge::new());
    let [left_out] = &report.left_out[..] else { panic!("{:?}", report.left_out) };
    assert_eq!((left_out.device, &left_out.reason), (DRIVER, &Reason::SameCores));
    assert!(!machine.tried.load(Ordering::SeqCst));
}

/// Four units each on eight cores are two devices that help each other.
#[test]
fn who_has_cores_of_its_own_takes_part() {
    let machine = Machine::new(true, ITEM);
    let begun = Instant::now();
    while machine.busy.most() < 2 {
        machine.run(8, &Knowledge::new());
        assert!(begun.elapsed() < Duration::from_secs(60), "they never computed at once");
    }
}
