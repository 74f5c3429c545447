//! Safe code that obtains a block over existing storage. It keeps the block, or returns it for another
//! request. Core would then copy into memory that has a view, or that was freed.

use dml::arenas::{MainMem, Null};
use dml::core::internal::state::{Lifecycle, MapState};
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    AcquireError, AllocError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Backing, Binding, BlockRef,
    Breach, Concurrency, ConfigError, CopyIn, CopyOut, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence,
    Fill, HostMemory, Link, MapReport, MapRequest, NewBlock, OwnBlock, Platform, TransferError, UnmapRequest,
};
use dml_verify::watched;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const MAIN: ArenaId = ArenaId(0);
const DEVICE: ArenaId = ArenaId(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Well,
    /// It answers with a block of its own, and keeps the one that it was asked for.
    AnswersWithItsOwn,
    /// It keeps the block and says that it has none.
    Declines,
    Panics,
}

/// An honest arena in the hands of safe code, which answers whatever is asked next with the block that it has
/// kept.
#[derive(Debug)]
struct Keeper<A> {
    desc: ArenaDesc,
    inner: A,
    how: Mutex<How>,
    kept: Mutex<Option<BlockRef>>,
}

impl<A: Arena> Keeper<A> {
    fn new(inner: A, how: How) -> Arc<Self> {
        let desc = inner.desc().clone();
        Arc::new(Self { desc, inner, how: Mutex::new(how), kept: Mutex::new(None) })
    }

    fn turn(
        &self,
        made: NewBlock,
        own: impl FnOnce() -> Result<NewBlock, AllocError>,
    ) -> Result<NewBlock, AllocError> {
        let how = *self.how.lock();
        if how == How::Well {
            return Ok(made);
        }
        *self.kept.lock() = Some(made.into_block());
        match how {
            How::AnswersWithItsOwn => own(),
            How::Declines => Err(AllocError::OutOfMemory { arena: "keeper".into(), bytes: 0 }),
            How::Panics | How::Well => panic!("made, and kept"),
        }
    }
}

impl<A: Arena> Arena for Keeper<A> {
    passes_on!(map, unmap, copy_in, copy_out, fill);

    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let kept = self.kept.lock().take();
        kept.map_or_else(|| self.inner.alloc(len), |kept| Ok(NewBlock::new(kept)))
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        if let Some(kept) = self.kept.lock().take() {
            return Ok(kept);
        }
        let made = NewBlock::new(self.inner.attach(storage)?);
        Ok(self.turn(made, || self.inner.alloc(storage.len()))?.into_block())
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        if let Some(kept) = self.kept.lock().take() {
            return Ok(NewBlock::new(kept));
        }
        self.turn(self.inner.bind(root)?, || self.inner.alloc(root.len()))
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.inner.map_state(block)
    }
}

/// The processor's memory and a device that shares it by a binding.
fn platform(main: Arc<dyn Arena>, device: Arc<dyn Arena>) -> Platform {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_arena(main);
    builder.add_arena(device);
    for (from, to, allocation) in
        [(MAIN, DEVICE, Allocation::Bound(Concurrency::BimapFull)), (DEVICE, MAIN, Allocation::Shared)]
    {
        let via = |arena: ArenaId| DeviceId(arena.0.into());
        let link = Link { from, to, source_via: via(from), target_via: via(to), allocation };
        builder.add_link(link, Arc::new(Binding::default()));
    }
    builder.build().unwrap()
}

fn device() -> Null {
    let desc = ArenaDesc::new("device", ArenaKind("keeper"), GPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull);
    Null::backed(desc)
}

fn is_other<T>(told: Result<T, AcquireError>) -> bool {
    matches!(told, Err(AcquireError::Alloc { cause: AllocError::OtherStorage { .. }, .. }))
}

/// An arena keeps a block over the application's storage. The storage stays allocated, and the application
/// gets a copy of its contents. Core refuses the block as the answer to any later call.
#[test]
fn a_block_over_other_storage_is_refused() {
    for how in [How::AnswersWithItsOwn, How::Declines, How::Panics] {
        for asked_next in ["an allocation", "a block of one's own", "an attachment"] {
            let main = Keeper::new(MainMem::new(CPU), how);
            let platform = platform(main.clone(), Arc::new(device()));
            let given = vec![7_u32; 1 << 12];
            let address = given.as_ptr().addr();
            let told = platform.buffer_from(given).unwrap_err();
            let expected = match how {
                How::AnswersWithItsOwn => {
                    matches!(told.cause, ConfigError::Storage(AllocError::OtherStorage { .. }))
                }
                How::Declines => matches!(told.cause, ConfigError::Storage(AllocError::OutOfMemory { .. })),
                _ => matches!(told.cause, ConfigError::Storage(AllocError::Panicked { .. })),
            };
            assert!(expected, "{how:?}: {}", told.cause);
            let back = told.storage;
            assert_eq!(back, [7; 1 << 12]);
            assert_ne!(back.as_ptr().addr(), address, "a block over the storage is still there");
            drop(back);
            *main.how.lock() = How::Well;
            let others: Vec<Vec<u32>> = (0..16).map(|_| vec![1; 1 << 12]).collect();
            match asked_next {
                "an allocation" => {
                    let buffer = platform.buffer::<u32>(1 << 12).zeroed().build().unwrap();
                    assert!(is_other(buffer.read()));
                    assert_eq!(buffer.read().unwrap()[..], [0; 1 << 12], "it was an answer once");
                }
                "a block of one's own" => {
                    let arena: Arc<dyn Arena> = main.clone();
                    let told = OwnBlock::alloc(&arena, 1 << 14).unwrap_err();
                    assert_eq!(told, AllocError::OtherStorage { arena: "main_mem".into() });
                }
                _ => {
                    let told = platform.buffer_from(vec![9_u32; 1 << 12]).unwrap_err();
                    assert!(matches!(told.cause, ConfigError::Storage(AllocError::OtherStorage { .. })));
                    assert_eq!(told.storage, [9; 1 << 12]);
                }
            }
            assert!(others.iter().flatten().all(|&other| other == 1));
        }
    }
}

/// A block bound to one buffer's storage serves no other buffer, and its own buffer's storage only if that
/// was asked for.
#[test]
fn a_block_bound_to_another_root_is_refused() {
    for how in [How::AnswersWithItsOwn, How::Declines, How::Panics] {
        let gpu = Keeper::new(device(), how);
        let platform = platform(Arc::new(MainMem::new(CPU)), gpu.clone());
        let first = platform.buffer_from(vec![7_u8; 64]).unwrap();
        let told = first.raw().bind(DEVICE, MAIN).unwrap_err();
        assert!(how != How::AnswersWithItsOwn || is_other(Err::<(), _>(told.clone())), "{how:?}: {told}");
        *gpu.how.lock() = How::Well;
        let kept = gpu.kept.lock().take();
        let second = platform.buffer_from(vec![8_u8; 64]).unwrap();
        for asks in [
            |buffer: &dml::Buffer<u8>| buffer.raw().bind(DEVICE, MAIN),
            |buffer: &dml::Buffer<u8>| buffer.raw().platform().acquire(GPU).write(buffer).wait().map(drop),
        ] {
            *gpu.kept.lock() = kept.clone();
            let told = asks(&second);
            // The test has it, too.
            assert!(
                matches!(told, Err(AcquireError::Alloc { cause: AllocError::NotNew { .. }, .. })),
                "{told:?}"
            );
        }
        *gpu.kept.lock() = kept;
        assert!(is_other(second.raw().bind(DEVICE, MAIN)), "{how:?}");
        second.raw().bind(DEVICE, MAIN).unwrap();
        // The root's storage outlives what is kept of it, and its owner gets the contents.
        assert_eq!(first.into_vec().unwrap(), [7; 64]);
        assert_eq!(second.into_vec().unwrap(), [8; 64]);
    }
}

/// A kernel may keep its block, which then keeps the storage: the application gets a copy.
#[test]
fn storage_outlives_a_block_that_a_kernel_keeps() {
    for is_bound in [false, true] {
        let gpu = Arc::new(device());
        let platform = platform(Arc::new(MainMem::new(CPU)), gpu.clone());
        let given = vec![3_u8; 1 << 12];
        let address = given.as_ptr().addr();
        let buffer = platform.buffer_from(given.into_boxed_slice()).unwrap();
        let mut grants =
            platform.acquire(if is_bound { GPU } else { CPU }).read_write(&buffer).wait().unwrap();
        let kept = grants.block(&buffer).unwrap().unwrap().clone();
        grants.write_bytes(&buffer.range(0..1), &[4]).unwrap();
        grants.release().unwrap();
        let back = buffer.into_vec().unwrap();
        assert_eq!((back[0], &back[1..]), (4, &[3; (1 << 12) - 1][..]));
        assert_ne!(back.as_ptr().addr(), address, "the block is over it");
        let others: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 1 << 12]).collect();
        assert!(others.iter().all(|other| other.as_ptr().addr() != address), "it was freed");
        drop(kept);
        assert_eq!(gpu.live_blocks(), 0);
    }
}

/// A block that says something else each time, or panics when it is asked.
#[derive(Debug)]
struct Unsure(Mutex<Option<Backing>>);

impl dml::core::Block for Unsure {
    fn len(&self) -> u64 {
        64
    }

    fn native(&self) -> dml::core::NativeHandle {
        dml::core::NativeHandle(0)
    }

    fn backing(&self) -> Option<&Backing> {
        assert!(self.0.lock().is_none(), "over what, indeed");
        None
    }
}

/// What a block says it is over is asked outside every lock, and a panic is a wrong answer.
#[test]
fn a_block_that_panics_over_its_storage_is_refused() {
    #[derive(Debug)]
    struct Panics(MainMem);

    impl Arena for Panics {
        fn desc(&self) -> &ArenaDesc {
            self.0.desc()
        }

        fn alloc(&self, _: u64) -> Result<NewBlock, AllocError> {
            let memory = HostMemory::zeroed(64).expect("memory for a test");
            Ok(NewBlock::new(Arc::new(Unsure(Mutex::new(None)))).with_host(memory))
        }

        fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
            Ok(Arc::new(Unsure(Mutex::new(Some(storage.clone())))))
        }

        fn map(&self, _: MapRequest<'_>) -> Result<MapReport, TransferError> {
            panic!("always accessible")
        }

        fn unmap(&self, _: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
            panic!("always accessible")
        }

        fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
            Ok(Fence::done(copy.len()))
        }

        fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
            Ok(Fence::done(copy.len()))
        }

        fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
            Ok(Fence::done(fill.len()))
        }
    }
    let platform = platform(Arc::new(Panics(MainMem::new(CPU))), Arc::new(device()));
    let given = vec![5_u8; 64];
    let address = given.as_ptr().addr();
    let told = platform.buffer_from(given).unwrap_err();
    assert!(matches!(told.cause, ConfigError::Storage(AllocError::OtherStorage { .. })), "{}", told.cause);
    // The block has gone, and so the storage is the application's again.
    assert_eq!((told.storage.as_ptr().addr(), &told.storage[..]), (address, &[5; 64][..]));
    let buffer = platform.raw_buffer(64).zeroed().build().unwrap();
    assert!(platform.acquire(CPU).read(&buffer).wait().is_ok());
    // A block of one's own is no different.
    let arena: Arc<dyn Arena> = Arc::new(Panics(MainMem::new(CPU)));
    let told = OwnBlock::attach(&arena, HostMemory::holding(vec![6_u8; 64])).unwrap_err();
    assert!(matches!(told.cause, ConfigError::Storage(AllocError::Panicked { .. })), "{}", told.cause);
    assert_eq!(told.storage.bytes(), [6; 64]);
}

/// An arena that lets another thread have its blocks.
#[derive(Debug)]
struct Shows {
    inner: MainMem,
    shown: Arc<Mutex<Option<BlockRef>>>,
}

impl Arena for Shows {
    passes_on!(desc, map, unmap, copy_in, copy_out, fill);

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let new = self.inner.alloc(len)?;
        *self.shown.lock() = Some(new.block().clone());
        while self.shown.lock().is_some() {
            std::thread::yield_now();
        }
        Ok(new)
    }
}

/// The other thread has a strong reference and a weak one in turn, and one of them always.
#[test]
fn a_block_that_another_thread_has_is_refused() {
    let shown = Arc::new(Mutex::new(None::<BlockRef>));
    let arena: Arc<dyn Arena> = Arc::new(Shows { inner: MainMem::new(CPU), shown: shown.clone() });
    let is_over = Arc::new(AtomicBool::new(false));
    let (theirs, over) = (shown.clone(), is_over.clone());
    let holder = std::thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            let mut strong = theirs.lock().take();
            while let (Some(block), true) =
                (strong.take(), theirs.lock().is_none() && !over.load(Ordering::SeqCst))
            {
                strong = (0..16).try_fold(block, |block, _| {
                    let weak = Arc::downgrade(&block);
                    drop(block);
                    weak.upgrade()
                });
            }
            std::thread::yield_now();
        }
    });
    let (mut refused, mut had) = (0, 0);
    // Between two threads that have a core each it takes a quarter of a second.
    let until = Instant::now() + Duration::from_secs(1);
    for _ in (0..200_000).take_while(|_| Instant::now() < until) {
        let Ok(own) = OwnBlock::alloc(&arena, 64) else {
            refused += 1;
            continue;
        };
        // Two references are core's: the block, and that of its memory.
        let others = |block: &BlockRef| Arc::strong_count(block) + Arc::weak_count(block) > 2;
        had += u32::from((0..50).any(|_| others(own.block())));
    }
    is_over.store(true, Ordering::SeqCst);
    holder.join().unwrap();
    assert_eq!(had, 0, "taken for new; {refused} were refused");
}

/// An arena that keeps what it is lent, and takes its time over it.
#[derive(Debug)]
struct Slow {
    inner: Null,
    begun: Mutex<Option<Sender<()>>>,
    goes_on: Mutex<Option<Receiver<()>>>,
    kept: Mutex<Vec<CopyIn>>,
}

impl Arena for Slow {
    passes_on!(desc, alloc, map, unmap, copy_out, fill);

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let (begun, goes_on) = (self.begun.lock().take(), self.goes_on.lock().take());
        drop(begun);
        let _ = goes_on.expect("it is asked once").recv();
        let bytes = copy.len();
        self.kept.lock().push(copy);
        Ok(Fence::done(bytes))
    }
}

/// `into_vec` fails if an arena keeps a transfer of the vector: the transfer may still touch it.
#[test]
fn a_vector_of_which_a_transfer_is_kept_is_not_given_back() {
    let ((begun, has_begun), (go, goes_on)) = (channel(), channel());
    let (begun, goes_on) = (Mutex::new(Some(begun)), Mutex::new(Some(goes_on)));
    let slow = Arc::new(Slow { inner: device(), begun, goes_on, kept: Mutex::new(Vec::new()) });
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    builder.add_arena(slow.clone());
    let platform = builder.build().unwrap();
    let buffer = platform.buffer_from(vec![3_u8; 64]).unwrap();
    let fetched = buffer.clone();
    let fetcher = watched("the prefetch", move || fetched.raw().prefetch(GPU, 0..64).wait());
    assert!(has_begun.recv().is_err(), "it is in the copy");
    let raw = buffer.raw().clone();
    let taker = watched("into_vec()", move || buffer.into_vec());
    while raw.snapshot().lifecycle() == Lifecycle::Open {
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    let told = fetcher.join().unwrap_err();
    assert!(matches!(told, AcquireError::ArenaContract { breach: Breach::StillLent, .. }), "{told}");
    let told = taker.join().unwrap_err();
    assert!(matches!(told, AcquireError::Wedged { .. }), "{told}");
}
