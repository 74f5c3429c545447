//! Memory of the application in an arena that the host does not address: attached as a block, and handed
//! back.

#![cfg(not(dml_loom))]

use dml_arenas::kit::join_staged;
use dml_arenas::{MainMem, Null};
use dml_core::Foreign;
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, AllocError, Arena, ArenaDesc, ArenaId, ArenaKind, AttachRefusal, Buffer, DeviceDesc,
    DeviceId, DeviceKind, ExternalBlock, Fill, FreeRefusal, LinkSpeed, Platform, Span, Unattached,
};
use dml_verify::Audited;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const MAIN: ArenaId = ArenaId(0);
const DEVICE: ArenaId = ArenaId(1);
const LEN: u64 = 100;

fn arena() -> Arc<dyn Arena> {
    Arc::new(Null::backed(ArenaDesc::new("gpu", ArenaKind("test"), GPU)))
}

fn null(arena: &Arc<dyn Arena>) -> &Null {
    (**arena).downcast_ref().unwrap()
}

/// A platform of main memory and one device that it has copies with.
fn platform(device: &Arc<dyn Arena>) -> Audited {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
    let gpu = builder.add_arena(device.clone());
    join_staged(&mut builder, main, gpu, LinkSpeed::default());
    Audited::new(builder.build().unwrap())
}

/// What an application keeps its memory by. It counts how often it is dropped.
#[derive(Debug)]
struct Container(Arc<AtomicUsize>);

impl Drop for Container {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Memory of the arena that holds `byte`, with its container, and how often that was dropped.
fn lent(arena: &Arc<dyn Arena>, len: u64, byte: u8) -> (ExternalBlock<Container>, Arc<AtomicUsize>) {
    let new = arena.alloc(len).unwrap();
    // SAFETY: the block is new, and no other code has it.
    let fill = unsafe { Fill::new(new.block(), Span::new(0, len), byte) };
    assert_eq!(arena.fill(fill).unwrap().wait(), Ok(len));
    let dropped = Arc::new(AtomicUsize::new(0));
    (ExternalBlock::new(new, Arc::new(Container(dropped.clone()))), dropped)
}

fn bytes_of(platform: &Audited) -> Buffer<u8> {
    platform.buffer::<u8>(LEN).label("field").build().unwrap()
}

fn refusal<C>(refused: Result<(), Box<Unattached<ExternalBlock<C>>>>) -> (AttachRefusal, ExternalBlock<C>) {
    let Unattached { cause, storage } = *refused.expect_err("refused");
    let AcquireError::NotAttachable { reason, .. } = cause else { panic!("{cause:?}") };
    (reason, storage)
}

#[test]
fn i24_memory_of_a_device_becomes_the_buffers_and_comes_back() {
    let device = arena();
    let platform = platform(&device);
    let (block, dropped) = lent(&device, LEN, 7);
    let buffer = bytes_of(&platform);
    buffer.write().unwrap().release().unwrap();
    buffer.raw().attach_block(DEVICE, block).unwrap();
    assert_eq!(*buffer.read().unwrap(), [7; LEN as usize], "i02: the host's copy is old");
    let mut writing = buffer.write().unwrap();
    writing.copy_from_slice(&(0..LEN as u8).collect::<Vec<_>>());
    writing.release().unwrap();
    let _ = null(&device).take_calls();
    let container: Container = buffer.raw().clone().into_container().unwrap();
    let copied = format!("{:?}", null(&device).calls());
    assert!(copied.contains("CopyIn"), "the latest contents are brought there first: {copied}");
    assert_eq!((null(&device).live_blocks(), dropped.load(Ordering::Relaxed)), (0, 0));
    drop((container, buffer));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn i24_a_container_that_nobody_asks_for_goes_with_the_buffer() {
    let device = arena();
    let platform = platform(&device);
    let (block, dropped) = lent(&device, LEN, 1);
    let buffer = bytes_of(&platform);
    buffer.raw().attach_block_storage(DEVICE, block).unwrap();
    assert!(matches!(buffer.read(), Err(AcquireError::Uninitialized { .. })), "it is room alone");
    assert!(matches!(
        buffer.raw().clone().into_container::<Container>(),
        Err(AcquireError::Uninitialized { .. })
    ));
    let refused = buffer.raw().free(DEVICE).unwrap_err();
    assert!(matches!(refused, AcquireError::NotFreeable { reason: FreeRefusal::External, .. }), "{refused}");
    let kernel = platform.acquire(GPU).write(&buffer).wait().unwrap();
    drop(buffer);
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "a grant keeps it");
    kernel.release().unwrap();
    assert_eq!((null(&device).live_blocks(), dropped.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn what_is_not_taken_comes_back() {
    let (device, other) = (arena(), arena());
    let platform = platform(&device);
    let buffer = bytes_of(&platform);
    // Contents of more bytes would be cut off.
    let (reason, _) = refusal(buffer.raw().attach_block(DEVICE, lent(&device, LEN + 1, 1).0));
    assert_eq!(reason, AttachRefusal::Length { bytes: LEN + 1, len: LEN });
    let (block, dropped) = lent(&device, LEN - 1, 1);
    let (reason, block) = refusal(buffer.raw().attach_block(DEVICE, block));
    assert_eq!(reason, AttachRefusal::Length { bytes: LEN - 1, len: LEN });
    assert_eq!(block.into_container().map(drop).map_err(drop), Ok(()));
    assert_eq!((dropped.load(Ordering::Relaxed), null(&device).live_blocks()), (1, 0));
    // Main memory has no such blocks, and the device has none of another arena.
    for (arena, memory) in [(MAIN, &device), (DEVICE, &other)] {
        let Unattached { cause, storage } =
            *buffer.raw().attach_block(arena, lent(memory, LEN, 1).0).unwrap_err();
        let AcquireError::Alloc { cause, .. } = cause else { panic!("{cause:?}") };
        assert!(matches!(cause, AllocError::Unsupported { .. }), "{cause}");
        assert_eq!(storage.len(), LEN);
    }
    let kept = device.alloc(LEN).unwrap();
    let keeper = kept.block().clone();
    let refused = buffer.raw().attach_block(DEVICE, ExternalBlock::new(kept, Arc::new(()))).unwrap_err();
    assert!(matches!(refused.cause, AcquireError::Alloc { cause: AllocError::NotNew { .. }, .. }));
    drop((keeper, refused));
    let refused = buffer.raw().attach_block(ArenaId(9), lent(&device, LEN, 1).0).unwrap_err();
    assert!(matches!(refused.cause, AcquireError::NoSuchArena { .. }));
    drop(refused);
    buffer.raw().attach_block(DEVICE, lent(&device, LEN, 1).0).unwrap();
    let (reason, _) = refusal(buffer.raw().attach_block(DEVICE, lent(&device, LEN, 1).0));
    assert_eq!(reason, AttachRefusal::AlreadyAllocated);
    let none = buffer.raw().clone().into_container::<String>().unwrap_err();
    assert!(matches!(none, AcquireError::NoContainer { .. }), "{none}");
    assert_eq!(buffer.into_vec().unwrap(), [1; LEN as usize], "a copy, because it is no vector");
}

#[test]
fn i24_a_container_whose_block_is_kept_does_not_come_back() {
    let device = arena();
    let platform = platform(&device);
    let container = Arc::new(String::from("mine"));
    let buffer = bytes_of(&platform);
    let block = ExternalBlock::new(device.alloc(LEN).unwrap(), container.clone());
    buffer.raw().attach_block(DEVICE, block).unwrap();
    let kept = buffer.raw().clone().into_container::<String>().unwrap_err();
    assert!(matches!(kept, AcquireError::ContainerKept { .. }), "{kept}");
    let gone = buffer.raw().clone().into_container::<String>().unwrap_err();
    assert!(matches!(gone, AcquireError::NoContainer { .. }), "{gone}");
    assert_eq!(Arc::strong_count(&container), 1, "the buffer has let go of it");
}

#[test]
fn a_vector_and_memory_of_a_device_serve_one_buffer() {
    let device = arena();
    let platform = platform(&device);
    let (block, dropped) = lent(&device, LEN, 3);
    let buffer = bytes_of(&platform);
    let mine = vec![0_u8; LEN as usize];
    let at = mine.as_ptr();
    buffer.attach_external(mine).unwrap();
    buffer.raw().attach_block(DEVICE, block).unwrap();
    // The one that is asked for is not the first.
    let second = platform.buffer_from(vec![4_u8; LEN as usize]).unwrap();
    second.raw().attach_block_storage(DEVICE, lent(&device, LEN, 0).0).unwrap();
    assert!(second.raw().clone().into_container::<Container>().is_ok());
    let vector = buffer.into_vec().unwrap();
    assert_eq!((vector.as_ptr(), &*vector), (at, &[3; LEN as usize][..]));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn i24_memory_that_others_keep_is_storage_of_the_host() {
    let device = arena();
    let platform = platform(&device);
    let mut owner: Vec<u32> = (0..LEN as u32).collect();
    let elements = NonNull::from(&mut owner[..]).cast::<u32>();
    // SAFETY: the vector keeps the elements, and is left alone.
    let buffer = platform.buffer_from(unsafe { Foreign::new(elements, LEN as usize, owner) }).unwrap();
    let mut kernel = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    kernel.write_bytes(&buffer.range(10..11), &77_u32.to_ne_bytes()).unwrap();
    kernel.release().unwrap();
    assert!(matches!(buffer.clone().into_storage::<Vec<u32>>(), Err(AcquireError::NoContainer { .. })));
    let owner =
        buffer.into_storage::<Foreign<u32, Vec<u32>>>().unwrap().into_owner().expect("nobody keeps it");
    assert_eq!(NonNull::from(&owner[..]).cast(), elements);
    assert_eq!((owner[9], owner[10], owner[11]), (9, 77, 11));
}

#[test]
fn lent_memory_is_as_long_as_its_block() {
    let arena = arena();
    for len in [0, 1, LEN] {
        let (memory, _dropped) = lent(&arena, len, 1);
        assert_eq!((memory.len(), memory.is_empty()), (len, len == 0));
    }
}
