//! Devices that compute on the same cores: the processor beside an OpenCL device or a worker. They do not
//! take the cores from each other.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    Access, ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence,
    LinkSpeed,
};
use dml::prelude::*;
use dml::scheduler::{Argument, Footprint, KernelError, Knowledge, Report};
use dml_verify::{Audited, watched};
use std::sync::atomic::{AtomicU64, Ordering};
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

fn memory(platform: &Platform, arena: u8) -> &Null {
    platform.arena(ArenaId(arena)).downcast_ref::<Null>().expect("all are")
}

fn squares(items: std::ops::Range<u64>) -> Vec<u8> {
    items.flat_map(|item| (item as u32).wrapping_mul(item as u32).to_ne_bytes()).collect()
}

/// A machine of four cores, which the processor and a driver have each, and a GPU that only some kernels run
/// on.
struct Machine {
    platform: Audited,
    target: Buffer<u32>,
    kernel: Kernel,
    busy: Busy,
    /// What each item was before.
    adds: u32,
}

impl Machine {
    /// A driver of the cores takes `item` for an item. The kernel squares, or adds the square to what was
    /// there.
    fn new(item: Duration, access: Access) -> Self {
        let mut builder = Platform::builder();
        for name in ["cpu", "driver:0"] {
            builder.add_device(DeviceDesc::new(name, DeviceKind::Cpu).with_compute_units(4));
        }
        let cpu = DeviceSet::of(CPU);
        let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
        builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
        let own = ArenaDesc::new("own", ArenaKind("test"), DRIVER).with_remotes(cpu);
        let own = builder.add_arena(Arc::new(Null::backed(own)));
        kit::join_staged(&mut builder, ArenaId(0), own, LinkSpeed::default());
        builder.add_device(DeviceDesc::new("gpu:0", DeviceKind::Gpu).with_compute_units(100));
        let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
        let video = builder.add_arena(Arc::new(Null::backed(video)));
        kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
        let platform = Audited::new(builder.build().expect("a sound platform"));
        let target = platform.buffer::<u32>(ITEMS).build().unwrap();
        let busy = Busy::default();
        let adds = u32::from(access == Access::ReadWrite);
        let variant = |arena: u8, item: Duration| {
            let (there, output, counts) = (Platform::clone(&platform), target.clone(), busy.clone());
            move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
                counts.compute(item * package.items() as u32);
                let bytes = output.raw().range(package.start() * 4..package.end() * 4);
                let memory = memory(&there, arena);
                let mut values = squares(package.range());
                if adds > 0 {
                    let before = memory.read(grants, &bytes)?;
                    let sums =
                        values.chunks_exact(4).zip(before.chunks_exact(4)).flat_map(|(value, before)| {
                            let number =
                                |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
                            number(value).wrapping_add(number(before)).to_ne_bytes()
                        });
                    values = sums.collect();
                }
                memory.write(grants, &bytes, &values)?;
                Ok(Fence::done(0))
            }
        };
        let argument = Argument::part(&target, access, Footprint::one_to_one(4));
        let kernel = Kernel::new("square", LOCAL).argument(argument);
        let kernel = kernel.variant(CPU, variant(0, ITEM)).variant(DRIVER, variant(1, item));
        Self { platform, target, kernel, busy, adds }
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
        let before = vec![1_u32; ITEMS as usize];
        self.target.store(&before).unwrap();
        let kernel = self.kernel.clone();
        let report = watched("a run", move || run.run(&kernel, ITEMS).unwrap()).join();
        let expected: Vec<u32> =
            (0..ITEMS as u32).map(|item| item.wrapping_mul(item).wrapping_add(self.adds)).collect();
        let mut found = vec![0; ITEMS as usize];
        self.target.load_into(&mut found).unwrap();
        assert!(found == expected, "{report:?}");
        report.decisions.as_ref().expect("they are recorded").replay().unwrap();
        report
    }
}

#[test]
fn who_has_the_same_cores_computes_one_after_the_other() {
    for item in [Duration::ZERO, ITEM, ITEM * 5] {
        let machine = Machine::new(item, Access::WriteInvalidate);
        let knowledge = Knowledge::new();
        for _ in 0..8 {
            machine.run(4, &knowledge);
        }
        assert_eq!(machine.busy.most(), 1, "{item:?} an item");
    }
}

/// A busy machine may keep it from its turn, so one run of several has to show it. In place as well: what it
/// is compared by counts.
#[test]
fn the_faster_of_two_on_the_same_cores_is_found_in_the_first_run() {
    for access in [Access::WriteInvalidate, Access::ReadWrite] {
        let machine = Machine::new(Duration::from_micros(1), access);
        let found = (0..10).any(|_| {
            let report = machine.run(4, &Knowledge::new());
            report.devices.iter().any(|device| device.device == DRIVER && device.items > ITEMS / 2)
        });
        assert!(found, "{access:?}");
    }
}

/// What was learned decides about later runs, from their start.
#[test]
fn the_faster_of_two_on_the_same_cores_computes_later_runs() {
    let machine = Machine::new(Duration::from_micros(1), Access::ReadWrite);
    let (knowledge, begun) = (Knowledge::new(), Instant::now());
    loop {
        let report = machine.run(4, &knowledge);
        if report.devices.iter().any(|device| device.device == DRIVER && device.items == ITEMS) {
            assert!(report.left_out.iter().any(|left_out| left_out.device == CPU), "{report:?}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}

/// A GPU computes beside whichever of them does.
#[test]
fn beside_a_gpu_one_of_those_on_the_same_cores_computes_at_a_time() {
    let machine = Machine::new(ITEM, Access::WriteInvalidate).with_gpu();
    for _ in 0..4 {
        machine.run(4, &Knowledge::new());
    }
    assert_eq!(machine.busy.most(), 1);
}

/// Four units each on eight cores are two devices that help each other.
#[test]
fn who_has_cores_of_its_own_takes_part() {
    let machine = Machine::new(ITEM, Access::WriteInvalidate);
    let begun = Instant::now();
    while machine.busy.most() < 2 {
        machine.run(8, &Knowledge::new());
        assert!(begun.elapsed() < Duration::from_secs(60), "they never computed at once");
    }
}
