//! The arenas under core: what a user of the whole layer sees of them.

#![cfg(not(dml_loom))]

mod common;

use dml_arenas::faulty::{CallKind, Fault};
use dml_arenas::kit::{join_mapped, join_staged};
use dml_arenas::null::Call;
use dml_arenas::{Faulty, MainMem, Null, Script};
use dml_core::MapState;
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{
    AcquireError, AllocError, Arena, ArenaDesc, ArenaKind, BlockRef, Breach, CopyIn, CopyOut, DeviceDesc,
    DeviceId, DeviceKind, DeviceSet, Fence, Fill, LinkSpeed, MapReport, MapRequest, NewBlock, Platform,
    PlatformBuilder, Scalar, TransferError, UnmapRequest,
};
use dml_verify::Audited;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

fn speed(latency_ns: u64) -> LinkSpeed {
    LinkSpeed { latency_ns, ..LinkSpeed::default() }
}

/// A platform of main memory and one device, joined as `join` says.
fn platform(
    device: Arc<dyn Arena>,
    join: impl FnOnce(&mut PlatformBuilder, dml_core::ArenaId, dml_core::ArenaId),
) -> Audited {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
    let gpu = builder.add_arena(device);
    join(&mut builder, main, gpu);
    Audited::new(builder.build().unwrap())
}

fn gpu_desc() -> ArenaDesc {
    ArenaDesc::new("gpu", ArenaKind("test"), GPU).with_remotes(DeviceSet::of(CPU))
}

fn null(arena: &Arc<dyn Arena>) -> &Null {
    (**arena).downcast_ref().unwrap()
}

#[test]
fn mapped_and_staged_links_bring_the_same_bytes() {
    for (staged_ns, mapped_ns) in [(1, 1_000_000), (1_000_000, 1)] {
        let device: Arc<dyn Arena> = Arc::new(Null::backed(gpu_desc()));
        let platform = platform(device.clone(), |builder, main, gpu| {
            join_staged(builder, main, gpu, speed(staged_ns));
            join_mapped(builder, main, gpu, speed(mapped_ns));
        });
        let data: Vec<u32> = (0..1000).map(|i| i * 7 + 3).collect();
        let buffer = platform.buffer_from(data.clone()).unwrap();
        {
            let grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
            null(&device).touch(grants.block(&buffer).unwrap().unwrap(), GPU);
            grants.release().unwrap();
        }
        assert_eq!(*buffer.read().unwrap(), data);
        let is_mapped = null(&device).calls().iter().any(|call| matches!(call, Call::Map { .. }));
        assert_eq!(is_mapped, mapped_ns == 1);
        drop(buffer);
        assert_eq!(null(&device).live_blocks(), 0);
    }
}

#[test]
fn a_short_copy_is_an_error_and_the_next_try_works() {
    let script = Script::new().at_kind(CallKind::CopyIn, 1, Fault::Short(17));
    let device = Arc::new(Faulty::new(Null::backed(gpu_desc()), script));
    let platform = platform(device.clone(), |builder, main, gpu| join_staged(builder, main, gpu, speed(1)));
    let buffer = platform.buffer_from(vec![5_u8; 100]).unwrap();
    let error = platform.acquire(GPU).read(&buffer).wait().unwrap_err();
    let AcquireError::CopyFailed { cause, .. } = error else { panic!("{error}") };
    assert_eq!(cause, TransferError::Short { requested_bytes: 100, done_bytes: 17 });
    drop(platform.acquire(GPU).read(&buffer).wait().unwrap());
    assert_eq!(*buffer.read().unwrap(), [5; 100]);
}

#[test]
fn a_panic_in_an_arena_is_an_error() {
    let script = Script::new().at_kind(CallKind::Alloc, 1, Fault::Panic).at_kind(
        CallKind::CopyIn,
        1,
        Fault::PanicInFence,
    );
    let device = Arc::new(Faulty::new(Null::backed(gpu_desc()), script));
    let platform = platform(device, |builder, main, gpu| join_staged(builder, main, gpu, speed(1)));
    let buffer = platform.buffer_from(vec![5_u8; 100]).unwrap();
    for _ in 0..2 {
        let error = platform.acquire(GPU).read(&buffer).wait().unwrap_err();
        assert!(error.to_string().contains("scripted panic of gpu"), "{error}");
    }
    drop(platform.acquire(GPU).read(&buffer).wait().unwrap());
}

/// An arena that says that copies in are done, and keeps them.
#[derive(Debug)]
struct Keeper {
    inner: Null,
    kept: Mutex<Vec<CopyIn>>,
}

impl Arena for Keeper {
    fn desc(&self) -> &ArenaDesc {
        self.inner.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.inner.alloc(len)
    }

    fn free(&self, block: BlockRef) {
        self.inner.free(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.inner.map(request)
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.inner.unmap(request)
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.inner.map_state(block)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let bytes = copy.len();
        self.kept.lock().push(copy);
        Ok(Fence::done(bytes))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.inner.copy_out(copy)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.inner.fill(fill)
    }
}

#[test]
fn i24_storage_on_loan_is_not_given_back_and_outlives_its_buffer() {
    let device = Arc::new(Keeper { inner: Null::backed(gpu_desc()), kept: Mutex::new(Vec::new()) });
    let platform = platform(device.clone(), |builder, main, gpu| join_staged(builder, main, gpu, speed(1)));
    let data = common::pattern(5000, 7);
    let buffer = platform.buffer_from(data.clone()).unwrap();
    let error = platform.acquire(GPU).read(&buffer).wait().unwrap_err();
    assert!(matches!(&error, AcquireError::ArenaContract { breach: Breach::StillLent, .. }), "{error}");
    // No caller gets bytes that the arena may still read, not even the application that owns them.
    assert!(matches!(buffer.read().map(drop), Err(AcquireError::Wedged { .. })));
    assert!(matches!(buffer.into_vec(), Err(AcquireError::Wedged { .. })));
    drop(platform);
    let kept = std::mem::take(&mut *device.kept.lock());
    let mut found = vec![0; 5000];
    kept[0].from().read(0, &mut found);
    assert!(kept.len() == 1 && found == data);
}

#[cfg(feature = "opencl")]
#[test]
fn a_kernel_gets_its_buffers_and_the_host_its_result() {
    use common::with_opencl;
    use dml_arenas::OpenClArena;
    use dml_arenas::launch::{Grid, KernelArg};
    use dml_core::record::Operation;

    let Some((platform, device)) = with_opencl("a_kernel_gets_its_buffers_and_the_host_its_result") else {
        return;
    };
    let arena = platform.arena(platform.home(device).unwrap()).clone();
    let source =
        "__kernel void add(__global const int* a, __global const int* b, __global int* c, uint end) {
        size_t i = get_global_id(0); if (i < end) c[i] = a[i] + b[i]; }";
    let kernel = (*arena).downcast_ref::<OpenClArena>().unwrap().kernel(source, "add", "").unwrap();
    let n = 1003_usize;
    let a = platform.buffer_from((0..n as i32).map(|i| i * i).collect::<Vec<_>>()).unwrap();
    let b = platform.buffer_from((0..n as i32).map(|i| 5 - i).collect::<Vec<_>>()).unwrap();
    let c = platform.buffer::<i32>(n as u64).build().unwrap();
    for _ in 0..3 {
        let grants = platform.acquire(device).read(&a).read(&b).write(&c).wait().unwrap();
        let block = |region| grants.block(region).unwrap().expect("a buffer with bytes has a block");
        let args = [
            KernelArg::Block(block(&a)),
            KernelArg::Block(block(&b)),
            KernelArg::Block(block(&c)),
            KernelArg::Scalar(Scalar::U32(n as u32)),
        ];
        // SAFETY: the kernel ends at the last word of its three buffers.
        let fence = unsafe { kernel.launch(&args, Grid::line(0, n as u64, 64)) }.unwrap();
        grants.in_flight(fence).wait().unwrap().release().unwrap();
        let view = c.read().unwrap();
        assert!(view.iter().zip(0..).all(|(&sum, i)| sum == i * i + 5 - i));
    }
    assert!(
        platform.counters().operation(Operation::Write) + platform.counters().operation(Operation::Map) >= 2
    );
}
