//! Runs that were started: their handles, and cancelling them at every point.

#![cfg(not(dml_loom))]

mod cancelling;
mod handle;
mod policies;

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, Grants,
    LinkSpeed, Platform,
};
use dml::prelude::*;
use dml::scheduler::{Hooks, KernelError, UnitId};
use dml_verify::{Audited, Mortal, mortal};
use std::sync::atomic::{AtomicU64, Ordering};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const ITEMS: u64 = 400;
/// What the target holds before a run.
const OLD: u32 = 0x0BAD_0BAD;

/// Main memory, and a device with a memory of its own, which may die.
fn platform() -> Audited {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu:0", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    builder.add_arena(Arc::new(mortal(Null::backed(main.with_concurrency(Concurrency::BimapFull)))));
    let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
    let video = builder.add_arena(Arc::new(mortal(Null::backed(video))));
    kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
    Audited::new(builder.build().expect("a sound platform"))
}

fn memory(platform: &Platform, device: DeviceId) -> &Mortal<Null> {
    let home = platform.home(device).expect("it has one");
    platform.arena(home).downcast_ref::<Mortal<Null>>().expect("all are")
}

/// What an item becomes.
fn computed(access: Access, source: u32, item: u64) -> u32 {
    let old = if access.reads() { OLD } else { 0 };
    source.wrapping_mul(3).wrapping_add(item as u32).wrapping_add(old)
}

/// A turn of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    DirectorStart,
    UnitStart,
    /// The launch of the package of this number, counted over all devices.
    Launch(u64),
    /// The same package on its device.
    Computing(u64),
    /// So many packages are done.
    Done(u64),
    UnitEnd,
    DirectorEnd,
}

type Watch = dyn Fn(Turn) -> Result<(), KernelError> + Send + Sync;

/// Hooks that tell of their turns.
struct Told {
    watch: Arc<Watch>,
    done: AtomicU64,
    items: Arc<AtomicU64>,
}

impl Told {
    fn tell(&self, turn: Turn) {
        (self.watch)(turn).expect("hooks do not fail");
    }
}

impl Hooks for Told {
    fn director_start(&self) {
        self.tell(Turn::DirectorStart);
    }

    fn director_end(&self) {
        self.tell(Turn::DirectorEnd);
    }

    fn unit_start(&self, _: UnitId, _: DeviceId) {
        self.tell(Turn::UnitStart);
    }

    fn unit_end(&self, _: UnitId, _: DeviceId) {
        self.tell(Turn::UnitEnd);
    }

    fn package_done(&self, package: &Package, _: DeviceId) {
        self.items.fetch_add(package.items(), Ordering::SeqCst);
        self.tell(Turn::Done(self.done.fetch_add(1, Ordering::SeqCst) + 1));
    }
}

/// A kernel over two devices, its buffers, and who watches its turns.
struct Work {
    platform: Audited,
    access: Access,
    source: Vec<u32>,
    target: Buffer<u32>,
    kernel: Kernel,
    watch: Arc<Watch>,
    /// The items of the packages that the hooks were told of.
    done: Arc<AtomicU64>,
}

impl Work {
    fn new(access: Access, watch: impl Fn(Turn) -> Result<(), KernelError> + Send + Sync + 'static) -> Self {
        let watch: Arc<Watch> = Arc::new(watch);
        let platform = platform();
        let source: Vec<u32> = (0..ITEMS as u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect();
        let input = platform.buffer_from(source.clone()).expect("a small buffer");
        let target = platform.buffer_from(vec![OLD; ITEMS as usize]).expect("a small buffer");
        let per_item = || Footprint::one_to_one(4);
        let mut kernel = Kernel::new("triple", 10)
            .argument(Argument::part(&input, Access::ReadOnly, per_item()))
            .argument(Argument::part(&target, access, per_item()));
        let launched = Arc::new(AtomicU64::new(0));
        for device in [CPU, GPU] {
            let (platform, buffers) = (platform.clone(), [input.clone(), target.clone()]);
            let (launched, watch) = (launched.clone(), watch.clone());
            kernel = kernel.variant(device, move |package: &Package, grants: &mut Grants| {
                let number = launched.fetch_add(1, Ordering::SeqCst);
                watch(Turn::Launch(number))?;
                let arena = memory(&platform, device).inner();
                let part = |buffer: &Buffer<u32>| buffer.raw().range(package.start() * 4..package.end() * 4);
                let read = |buffer: &Buffer<u32>| -> Vec<u32> {
                    bytemuck::pod_collect_to_vec(&arena.read(grants, &part(buffer)).expect("granted"))
                };
                let old = if access.reads() { read(&buffers[1]) } else { vec![0; package.items() as usize] };
                let values = read(&buffers[0]).into_iter().zip(old).zip(package.range());
                let values: Vec<u32> = values
                    .map(|((source, old), item)| {
                        computed(Access::WriteInvalidate, source, item).wrapping_add(old)
                    })
                    .collect();
                arena.write(grants, &part(&buffers[1]), bytemuck::cast_slice(&values)).expect("granted");
                let watch = watch.clone();
                Ok(Fence::running(move || {
                    watch(Turn::Computing(number)).expect("this turn does not fail");
                    Ok(0)
                }))
            });
        }
        Self { platform, access, source, target, kernel, watch, done: Arc::default() }
    }

    fn hooks(&self) -> Told {
        Told { watch: self.watch.clone(), done: AtomicU64::new(0), items: self.done.clone() }
    }

    /// On both devices, in packages of 20 items.
    fn coexecutor(&self) -> Coexecutor {
        Coexecutor::new(&self.platform).policy("dynamic:20".parse().expect("a policy"))
    }

    /// Returns how many items hold what they held before the run. All others have to be computed.
    fn left(&self) -> u64 {
        let target = self.target.read().expect("consistent");
        let expected = self.source.iter().zip(0..).map(|(source, item)| computed(self.access, *source, item));
        let items = target.iter().zip(expected);
        let wrong = items.filter(|(is, computed)| *is != computed);
        wrong.inspect(|(is, computed)| assert_eq!(**is, OLD, "neither old nor {computed}")).count() as u64
    }

    fn assert_computed(&self) {
        assert_eq!(self.left(), 0);
        assert!(self.target.raw().leaked_grants().is_empty());
    }
}

/// Something that is set once, and that others wait for.
struct Slot<T>(Mutex<Option<T>>, Condvar);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(None), Condvar::new())
    }
}

impl<T: Clone> Slot<T> {
    fn set(&self, value: T) {
        *self.0.lock() = Some(value);
        self.1.notify_all();
    }

    fn wait(&self) -> T {
        let mut value = self.0.lock();
        loop {
            if let Some(value) = &*value {
                return value.clone();
            }
            value = self.1.wait(value);
        }
    }
}

/// Waits until something is so, which it will be.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}
