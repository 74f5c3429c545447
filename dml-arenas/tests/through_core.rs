//! The arenas under core: what a user of the whole layer sees of them.

#![cfg(not(dml_loom))]

mod common;

use dml_arenas::faulty::{CallKind, Fault};
use dml_arenas::null::{Call, join_mapped, join_staged};
use dml_arenas::{Faulty, MainMem, Null, Script};
use dml_core::sync::Arc;
use dml_core::{
    AcquireError, Arena, ArenaDesc, ArenaKind, DeviceDesc, DeviceId, DeviceKind, DeviceSet, LinkSpeed,
    Platform, PlatformBuilder, TransferError,
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

#[cfg(feature = "opencl")]
#[test]
fn a_kernel_gets_its_buffers_and_the_host_its_result() {
    use common::with_opencl;
    use dml_arenas::OpenClArena;
    use dml_arenas::opencl::{KernelArg, Launch};
    use dml_core::Operation;

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
            KernelArg::U32(n as u32),
        ];
        let fence = kernel.launch(&args, Launch { offset: 0, items: n as u64, local: 64 }).unwrap();
        grants.in_flight(fence).wait().unwrap().release().unwrap();
        let view = c.read().unwrap();
        assert!(view.iter().zip(0..).all(|(&sum, i)| sum == i * i + 5 - i));
    }
    assert!(
        platform.counters().operation(Operation::Write) + platform.counters().operation(Operation::Map) >= 2
    );
}
