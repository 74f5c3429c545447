//! Memory of the application whose arena, block or container does what it should not.

#![cfg(not(dml_loom))]

use dml_arenas::kit::{join_bound, join_staged};
use dml_arenas::{MainMem, Null};
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, AllocError, Arena, ArenaDesc, ArenaId, ArenaKind, Backing, Block, BlockRef, Breach, Buffer,
    Concurrency, CopyIn, CopyOut, DeviceDesc, DeviceId, DeviceKind, ExternalBlock, Fence, Fill, HostMemory,
    LinkSpeed, NativeHandle, NewBlock, Platform, PlatformBuilder, Span, TransferError, Unattached,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CPU: DeviceId = DeviceId(0);
const LEN: u64 = 100;

/// A device's arena that answers `admit` as it is told to, and says that its device is lost when told to.
#[derive(Debug)]
struct Odd {
    inner: Null,
    how: Admits,
    is_lost: AtomicBool,
    kept: Mutex<Vec<BlockRef>>,
    /// The copies out of it, which it keeps if told to.
    copies: Mutex<Option<Vec<CopyOut>>>,
    /// The arenas of a machine that were given blocks back, in order.
    freed: Arc<Mutex<Vec<String>>>,
    weak: Mutex<Vec<std::sync::Weak<dyn Block>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admits {
    Well,
    Anything,
    Panicking,
    Keeping,
    KeepingWeakly,
}

impl Arena for Odd {
    fn desc(&self) -> &ArenaDesc {
        self.inner.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.inner.alloc(len)
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        self.inner.bind(root)
    }

    fn admit(&self, block: &BlockRef) -> Result<(), AllocError> {
        match self.how {
            Admits::Well => self.inner.admit(block)?,
            Admits::Anything => {}
            Admits::Panicking => panic!("no admission"),
            Admits::Keeping => self.kept.lock().unwrap().push(block.clone()),
            Admits::KeepingWeakly => self.weak.lock().unwrap().push(Arc::downgrade(block)),
        }
        Ok(())
    }

    fn free(&self, block: BlockRef) {
        self.freed.lock().unwrap().push(self.desc().name.to_string());
        match self.how {
            Admits::Anything => drop(block),
            _ => self.inner.free(block),
        }
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.inner.copy_in(copy)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        let bytes = copy.len();
        match &mut *self.copies.lock().unwrap() {
            Some(copies) => copies.push(copy),
            None => return self.inner.copy_out(copy),
        }
        Ok(Fence::done(bytes))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.inner.fill(fill)
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

/// A block in safe code, over nothing.
#[derive(Debug)]
struct Hollow {
    how: Hollows,
    asked: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hollows {
    Grows,
    PanicsOfItsSize,
    PanicsAtItsEnd,
}

impl Hollow {
    fn lent<C: Send + Sync + 'static>(how: Hollows, container: C) -> ExternalBlock<C> {
        ExternalBlock::new(
            NewBlock::new(Arc::new(Self { how, asked: AtomicUsize::new(0) })),
            Arc::new(container),
        )
    }
}

impl Block for Hollow {
    fn len(&self) -> u64 {
        assert!(self.how != Hollows::PanicsOfItsSize, "no size");
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) as u64;
        if self.how == Hollows::Grows { LEN + asked } else { LEN }
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(1)
    }
}

impl Drop for Hollow {
    fn drop(&mut self) {
        assert!(self.how != Hollows::PanicsAtItsEnd, "a block that panics");
    }
}

/// A container that does something at its end, once.
struct AtEnd(Option<Box<dyn FnOnce() + Send + Sync>>);

impl AtEnd {
    fn new(act: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(act)))
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().expect("once")();
    }
}

struct Machine {
    platform: Platform,
    odd: Vec<(ArenaId, Arc<dyn Arena>)>,
    freed: Arc<Mutex<Vec<String>>>,
}

/// Main memory and a device for each way to admit, joined by copies.
fn machine(ways: &[Admits]) -> Machine {
    joined(ways, |_, _| {})
}

/// As [`machine`], with what `join` adds between the devices.
fn joined(ways: &[Admits], join: impl FnOnce(&mut PlatformBuilder, &[(ArenaId, Arc<dyn Arena>)])) -> Machine {
    let freed = Arc::default();
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
    let mut odd = Vec::new();
    for &how in ways {
        let name = format!("gpu {}", odd.len());
        let device = builder.add_device(DeviceDesc::new(name.as_str(), DeviceKind::Gpu));
        // All of them may use each other's storage at once.
        let others = (1..=ways.len() as u16).map(DeviceId).filter(|other| *other != device);
        let desc = ArenaDesc::new(name.as_str(), ArenaKind("test"), device)
            .with_remotes(others.collect())
            .with_concurrency(Concurrency::BimapFull);
        let inner = Null::backed(desc);
        let arena: Arc<dyn Arena> = Arc::new(Odd {
            inner,
            how,
            is_lost: AtomicBool::new(false),
            kept: Mutex::default(),
            copies: Mutex::default(),
            freed: Arc::clone(&freed),
            weak: Mutex::default(),
        });
        let id = builder.add_arena(arena.clone());
        join_staged(&mut builder, main, id, LinkSpeed::default());
        odd.push((id, arena));
    }
    join(&mut builder, &odd);
    Machine { platform: builder.build().unwrap(), odd, freed }
}

impl Machine {
    fn buffer(&self) -> Buffer<u8> {
        self.platform.buffer::<u8>(LEN).build().unwrap()
    }

    fn lent<C: Send + Sync + 'static>(&self, device: usize, container: C) -> ExternalBlock<C> {
        ExternalBlock::new(self.odd[device].1.alloc(LEN).unwrap(), Arc::new(container))
    }

    fn odd(&self, device: usize) -> &Odd {
        (*self.odd[device].1).downcast_ref::<Odd>().unwrap()
    }

    fn lose(&self, device: usize) {
        self.odd(device).is_lost.store(true, Ordering::Relaxed);
        self.platform.notice_losses();
    }
}

fn cause<C>(refused: Result<(), Box<Unattached<ExternalBlock<C>>>>) -> AcquireError {
    refused.expect_err("refused").cause
}

#[test]
fn an_arena_that_panics_or_keeps_what_it_is_asked_about_gets_no_block() {
    let machine = machine(&[Admits::Panicking, Admits::Keeping, Admits::KeepingWeakly, Admits::Anything]);
    let ended = Arc::new(AtomicUsize::new(0));
    for device in 0..3 {
        let (buffer, count) = (machine.buffer(), ended.clone());
        let container = AtEnd::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
        let arena = machine.odd[device].0;
        let told = cause(buffer.raw().attach_block(arena, machine.lent(device, container)));
        let AcquireError::Alloc { cause, .. } = &told else { panic!("{told}") };
        match device {
            0 => assert!(matches!(cause, AllocError::Panicked { .. }), "{told}"),
            _ => assert!(matches!(cause, AllocError::NotNew { .. }), "{told}"),
        }
        assert_eq!(ended.load(Ordering::Relaxed), device + 1, "the error had the container");
        assert!(matches!(buffer.read(), Err(AcquireError::Uninitialized { .. })));
    }
    // An arena that takes anything still gets no block that lies.
    let (arena, buffer) = (machine.odd[3].0, machine.buffer());
    let told = cause(buffer.raw().attach_block(arena, Hollow::lent(Hollows::PanicsOfItsSize, ())));
    assert!(matches!(told, AcquireError::Alloc { cause: AllocError::Panicked { .. }, .. }), "{told}");
    buffer.raw().attach_block(arena, Hollow::lent(Hollows::Grows, 5_u8)).unwrap();
    assert_eq!(buffer.raw().clone().into_container::<u8>().unwrap(), 5, "it is asked for its size once");
}

/// A platform whose main memory is an arena that shows host memory for its blocks.
fn host() -> (Platform, Arc<dyn Arena>) {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let arena: Arc<dyn Arena> = Arc::new(Null::backed(ArenaDesc::new("host", ArenaKind("test"), CPU)));
    builder.add_arena(arena.clone());
    (builder.build().unwrap(), arena)
}

/// Safe code can put any memory of its own beside a block, and lend it before.
#[test]
fn a01_host_memory_of_a_lent_block_is_the_grants_alone() {
    let (platform, arena) = host();
    let buffer = platform.buffer::<u8>(LEN).build().unwrap();
    let lent = |memory: HostMemory| {
        let block = arena.alloc(LEN).unwrap().into_block();
        ExternalBlock::new(NewBlock::new(block).with_host(memory), Arc::new(()))
    };
    let told = cause(buffer.raw().attach_block(ArenaId(0), lent(HostMemory::zeroed(LEN - 1).unwrap())));
    let breach = |told: AcquireError| match told {
        AcquireError::ArenaContract { breach, .. } => breach,
        other => panic!("{other}"),
    };
    assert_eq!(breach(told), Breach::HostMemory { bytes: LEN - 1, needed_bytes: LEN });
    let mut memory = HostMemory::zeroed(LEN).unwrap();
    let target = memory.target(Span::new(0, LEN));
    let refused = buffer.raw().attach_block(ArenaId(0), lent(memory)).unwrap_err();
    assert_eq!(breach(refused.cause), Breach::StillLent);
    // The attach succeeds once no other code has a part of the memory.
    drop(target);
    buffer.raw().attach_block(ArenaId(0), refused.storage).unwrap();
    assert_eq!(*buffer.read().unwrap(), [0; LEN as usize]);
    buffer.raw().clone().into_container::<()>().unwrap();
}

#[test]
fn i24_a_container_comes_back_though_another_ones_device_is_lost() {
    let machine = machine(&[Admits::Well, Admits::Well]);
    let buffer = machine.buffer();
    for device in 0..2 {
        let arena = machine.odd[device].0;
        buffer.raw().attach_block(arena, machine.lent(device, device)).unwrap();
    }
    machine.lose(0);
    assert_eq!(buffer.raw().clone().into_container::<usize>().unwrap(), 1);
}

#[test]
fn i24_a_container_whose_device_is_lost_is_refused_and_goes_with_the_buffer() {
    let machine = machine(&[Admits::Well]);
    let (buffer, ended) = (machine.buffer(), Arc::new(AtomicUsize::new(0)));
    let count = ended.clone();
    let container = AtEnd::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
    buffer.raw().attach_block(machine.odd[0].0, machine.lent(0, container)).unwrap();
    machine.lose(0);
    let told = buffer.raw().clone().into_container::<AtEnd>().err().unwrap();
    assert!(matches!(told, AcquireError::DeviceLost { .. }), "{told}");
    assert_eq!(ended.load(Ordering::Relaxed), 0);
    drop(buffer);
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}

#[test]
fn containers_may_panic_and_call_back() {
    let machine = machine(&[Admits::Well, Admits::Well, Admits::Well]);
    let (buffer, other, ended) = (machine.buffer(), machine.buffer(), Arc::new(AtomicUsize::new(0)));
    other.write().unwrap().release().unwrap();
    let (platform, kept, count) = (machine.platform.clone(), other.clone(), ended.clone());
    let raw = buffer.raw().clone();
    let weak = Arc::new(Mutex::new(Some(raw)));
    let own = weak.clone();
    let calls_back = AtEnd::new(move || {
        assert_eq!(kept.read().unwrap().len(), LEN as usize);
        kept.raw().close();
        assert!(platform.buffer::<u8>(3).build().is_ok());
        assert!(own.lock().unwrap().is_none());
        count.fetch_add(1, Ordering::Relaxed);
        panic!("a container that panics");
    });
    buffer.raw().attach_block(machine.odd[0].0, machine.lent(0, calls_back)).unwrap();
    let panics = || AtEnd::new(|| panic!("another"));
    buffer.raw().attach_block(machine.odd[1].0, machine.lent(1, panics())).unwrap();
    buffer.raw().attach_block(machine.odd[2].0, machine.lent(2, panics())).unwrap();
    weak.lock().unwrap().take();
    drop(buffer);
    assert_eq!(ended.load(Ordering::Relaxed), 1, "one panic does not keep another container");
    assert!(matches!(other.read(), Err(AcquireError::Closed { .. })));
}

/// Two destructors that panic in one unwinding would end the process.
#[test]
fn a_block_and_its_container_may_both_panic() {
    let panics = || Hollow::lent(Hollows::PanicsAtItsEnd, AtEnd::new(|| panic!("a container that panics")));
    let told = catch_unwind(AssertUnwindSafe(|| panics().into_container().map(std::mem::forget).is_ok()));
    assert!(told.is_ok(), "the container is there, whatever its block did");
    let _ = catch_unwind(AssertUnwindSafe(|| drop(panics())));
    let machine = machine(&[Admits::Anything]);
    let buffer = machine.buffer();
    buffer.raw().attach_block(machine.odd[0].0, panics()).unwrap();
    let refused = buffer.raw().attach_block(machine.odd[0].0, panics()).unwrap_err();
    assert!(matches!(refused.cause, AcquireError::NotAttachable { .. }), "{refused:?}");
    assert!(catch_unwind(AssertUnwindSafe(|| drop(refused))).is_err(), "who drops it hears of it");
    drop(buffer);
}

#[test]
fn i24_who_waits_is_refused_and_who_holds_is_waited_for() {
    let machine = machine(&[Admits::Well]);
    let (buffer, device) = (machine.buffer(), machine.odd[0].0);
    buffer.raw().attach_block(device, machine.lent(0, 9_u8)).unwrap();
    let held = machine.platform.acquire(CPU).read(&buffer).wait().unwrap().hand_over();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| buffer.raw().clone().into_container::<u8>());
        // The taker has closed the buffer once other requests are refused.
        while !machine.platform.acquire(CPU).read(&buffer).try_now().is_err_and(|told| !told.is_busy()) {
            std::thread::yield_now();
        }
        assert!(!taker.is_finished(), "a grant keeps the memory");
        held.release().unwrap();
        assert_eq!(taker.join().unwrap().unwrap(), 9);
    });
    assert!(matches!(buffer.read(), Err(AcquireError::Closed { .. })));
}

/// An arena that kept what it was lent may touch the memory at any time.
#[test]
fn i24_no_container_of_a_wedged_buffer_is_ever_dropped() {
    let machine = machine(&[Admits::Well, Admits::Well, Admits::Well]);
    let (buffer, ended) = (machine.buffer(), Arc::new(AtomicUsize::new(0)));
    for device in 0..3 {
        let count = ended.clone();
        let container = AtEnd::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
        buffer.raw().attach_block(machine.odd[device].0, machine.lent(device, container)).unwrap();
    }
    *machine.odd(2).copies.lock().unwrap() = Some(Vec::new());
    let told = buffer.read().map(drop).unwrap_err();
    assert!(matches!(told, AcquireError::ArenaContract { breach: Breach::StillLent, .. }), "{told}");
    let told = buffer.raw().clone().into_container::<AtEnd>().err().unwrap();
    assert!(matches!(told, AcquireError::Wedged { .. }), "{told}");
    drop(buffer);
    assert_eq!(ended.load(Ordering::Relaxed), 0);
}

/// A block that is bound to lent memory is freed before it.
#[test]
fn i24_lent_memory_outlives_the_blocks_over_it() {
    let machine = joined(&[Admits::Well, Admits::Well], |builder, odd| {
        join_bound(builder, odd[0].0, odd[1].0, Concurrency::BimapFull, LinkSpeed::default());
    });
    let [(root, _), (member, _)] = &machine.odd[..] else { panic!("two devices") };
    let buffer = machine.buffer();
    buffer.raw().attach_block(*root, machine.lent(0, 7_u8)).unwrap();
    buffer.raw().bind(*member, *root).unwrap();
    assert_eq!(buffer.raw().clone().into_container::<u8>().unwrap(), 7);
    assert_eq!(*machine.freed.lock().unwrap(), ["gpu 1", "gpu 0"]);
}
