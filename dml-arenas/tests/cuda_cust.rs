//! Memory of the crate `cust` as storage of buffers. That crate is linked against the driver, so `cargo xtask
//! gpu-check` builds this and a machine with a GPU runs it. Without a device the tests say so and pass,
//! unless `DML_EXPECT=cuda`.

#![cfg(all(feature = "cust", not(dml_loom)))]

mod common;

use common::with_cuda;
use cudarc::driver::sys::{CUpointer_attribute, CUresult, cuPointerGetAttribute};
use cust::context::legacy;
use cust::device::Device;
use cust::memory::{CopyDestination, DeviceBuffer, LockedBuffer};
use dml_arenas::CudaArena;
use dml_arenas::cuda::{ExternalError, InContext};
use dml_arenas::launch::{Grid, KernelArg};
use dml_core::Foreign;
use dml_core::{ArenaId, Buffer, DeviceId, NativeHandle, Platform, Scalar, record::Operation};

/// Its size, 4 MiB, is more than one piece of a staged copy.
const WORDS: usize = 1 << 20;

/// It changes each word by its place, so that a word that is missed or changed twice shows.
const STEP: &str = r#"
    extern "C" __global__ void step(unsigned* data, unsigned long long end, DmlItems items) {
        unsigned long long i = items.x();
        if (i < end) data[i] = data[i] * 3 + (unsigned)i;
    }"#;

/// A platform with a GPU, and the context in which `cust` uses the same GPU.
struct Rig {
    platform: Platform,
    gpu: DeviceId,
    home: ArenaId,
    _context: cust::context::Context,
}

impl Rig {
    fn find(test: &str) -> Option<Self> {
        let (platform, gpu) = with_cuda(test)?;
        let home = platform.home(gpu).expect("a device has an arena");
        Some(Self { platform, gpu, home, _context: cust::quick_init().unwrap() })
    }

    fn cuda(&self) -> &CudaArena {
        (**self.platform.arena(self.home)).downcast_ref().expect("a CUDA device has a CUDA arena")
    }

    /// Has a kernel change each word of a buffer.
    fn step(&self, buffer: &Buffer<u32>) {
        let kernel = self.cuda().kernel(STEP, "step", "").unwrap();
        let grants = self.platform.acquire(self.gpu).read_write(buffer).wait().unwrap();
        let block = grants.block(buffer).unwrap().unwrap().clone();
        let args = [KernelArg::Block(&block), KernelArg::Scalar(Scalar::U64(buffer.len()))];
        // SAFETY: the kernel ends at the last word of the buffer, whose block this is.
        let fence = unsafe { kernel.launch(&args, Grid::line(0, buffer.len(), 128)) }.unwrap();
        drop(block);
        grants.in_flight(fence).wait().unwrap().release().unwrap();
    }
}

fn words(seed: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ seed).collect()
}

fn stepped(words: &[u32]) -> Vec<u32> {
    words.iter().zip(0_u32..).map(|(word, i)| word.wrapping_mul(3).wrapping_add(i)).collect()
}

fn contents(buffer: &DeviceBuffer<u32>) -> Vec<u32> {
    let mut contents = vec![0; buffer.len()];
    buffer.copy_to(&mut contents).unwrap();
    contents
}

#[test]
fn a_buffer_of_cust_is_storage_and_comes_back_with_what_was_written() {
    let Some(rig) = Rig::find("a_buffer_of_cust_is_storage_and_comes_back_with_what_was_written") else {
        return;
    };
    let before = words(1);
    let theirs = DeviceBuffer::from_slice(&before).unwrap();
    let address = NativeHandle(theirs.as_device_ptr().as_raw() as usize);
    let buffer = rig.platform.buffer::<u32>(WORDS as u64).build().unwrap();
    buffer.raw().attach_block(rig.home, rig.cuda().external_cust(theirs).unwrap()).unwrap();
    let grants = rig.platform.acquire(rig.gpu).read(&buffer).wait().unwrap();
    assert_eq!(grants.native(&buffer).unwrap(), Some(address), "nothing is copied");
    grants.release().unwrap();
    rig.step(&buffer);
    let after = stepped(&before);
    assert_eq!(*buffer.read().unwrap(), after);
    // What the host wrote last is brought there before it comes back.
    let last = words(2);
    let mut writing = buffer.write().unwrap();
    writing.copy_from_slice(&last);
    writing.release().unwrap();
    let theirs = buffer.raw().clone().into_container::<InContext<DeviceBuffer<u32>>>().unwrap();
    let theirs = theirs.into_inner();
    assert_eq!(theirs.as_device_ptr().as_raw() as usize, address.0);
    assert_eq!(contents(&theirs), last);
}

#[test]
fn a_part_of_it_that_is_read_alone_is_the_right_one() {
    let Some(rig) = Rig::find("a_part_of_it_that_is_read_alone_is_the_right_one") else { return };
    // Other types count their elements, and the arena bytes.
    let before: Vec<f64> = (0..4097_u32).map(f64::from).collect();
    let block = rig.cuda().external_cust(DeviceBuffer::from_slice(&before).unwrap()).unwrap();
    assert_eq!(block.len(), 4097 * 8);
    let buffer = rig.platform.buffer::<f64>(4097).build().unwrap();
    buffer.raw().attach_block(rig.home, block).unwrap();
    let part = buffer.range(4090..4097);
    let grants = rig.platform.acquire(rig.platform.host().unwrap()).read(&part).wait().unwrap();
    assert_eq!(*grants.slice::<f64>(&part).unwrap(), before[4090..]);
    grants.release().unwrap();
}

/// Returns how much memory of the GPU is free, in bytes.
fn free() -> usize {
    cust::memory::mem_get_info().unwrap().0
}

/// Of memory of this size the driver keeps nothing for later allocations.
const LARGE_WORDS: usize = 64 << 20;

#[test]
fn it_is_freed_in_its_context_by_whichever_thread_drops_it() {
    let Some(rig) = Rig::find("it_is_freed_in_its_context_by_whichever_thread_drops_it") else { return };
    let buffer = rig.platform.buffer::<u32>(LARGE_WORDS as u64).build().unwrap();
    let before = free();
    let theirs = DeviceBuffer::<u32>::zeroed(LARGE_WORDS).unwrap();
    assert!(before - free() >= 4 * LARGE_WORDS, "another process uses the GPU");
    buffer.raw().attach_block(rig.home, rig.cuda().external_cust(theirs).unwrap()).unwrap();
    // That thread has no context. Without one the driver frees nothing, and `cust` reports no error.
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert!(free() + 2 * LARGE_WORDS > before, "{} of {before} bytes are free", free());
}

#[test]
fn what_is_not_of_the_primary_context_is_returned_with_the_reason() {
    let Some(rig) = Rig::find("what_is_not_of_the_primary_context_is_returned_with_the_reason") else {
        return;
    };
    let other =
        legacy::Context::create_and_push(legacy::ContextFlags::SCHED_AUTO, Device::get_device(0).unwrap());
    let other = other.unwrap();
    let theirs = DeviceBuffer::from_slice(&[7_u32; 1000]).unwrap();
    let refused = rig.cuda().external_cust(theirs).unwrap_err();
    assert!(matches!(refused.cause, ExternalError::OtherContext { .. }), "{refused}");
    // The call leaves the context that was current.
    assert_eq!(contents(&refused.container), [7; 1000]);
    drop(refused);
    drop(other);
}

#[test]
fn a_page_locked_buffer_is_storage_of_the_host_and_comes_back() {
    let Some(rig) = Rig::find("a_page_locked_buffer_is_storage_of_the_host_and_comes_back") else { return };
    let before = words(3);
    let theirs = LockedBuffer::from_slice(&before).unwrap();
    let address = theirs.as_slice().as_ptr();
    let buffer = rig.platform.buffer_from(rig.cuda().external_locked(theirs).unwrap()).unwrap();
    let copied = |operation| rig.platform.counters().operation(operation);
    let allocated = copied(Operation::Alloc);
    rig.step(&buffer);
    assert_eq!(copied(Operation::Alloc) - allocated, 1, "memory of the GPU, and no copy on the host");
    assert_eq!(*buffer.read().unwrap(), stepped(&before));
    let theirs = buffer.into_storage::<Foreign<u32, InContext<LockedBuffer<u32>>>>().unwrap();
    let theirs = theirs.into_owner().expect("nobody keeps a block").into_inner();
    assert_eq!((theirs.as_slice().as_ptr(), theirs.as_slice()), (address, &*stepped(&before)));
}

/// Returns whether the driver has page-locked the memory at an address.
fn is_page_locked(address: usize) -> bool {
    let (mut kind, attribute) = (0_u32, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    // SAFETY: a context is current; the call writes a number of this size, and looks at no memory.
    let asked = unsafe { cuPointerGetAttribute((&raw mut kind).cast(), attribute, address as u64) };
    asked == CUresult::CUDA_SUCCESS
}

#[test]
fn a_page_locked_buffer_is_freed_by_a_thread_without_a_context() {
    let Some(rig) = Rig::find("a_page_locked_buffer_is_freed_by_a_thread_without_a_context") else { return };
    let theirs = LockedBuffer::new(&0.5_f32, WORDS).unwrap();
    let address = theirs.as_slice().as_ptr() as usize;
    assert!(is_page_locked(address));
    let buffer = rig.platform.buffer_from(rig.cuda().external_locked(theirs).unwrap()).unwrap();
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert!(!is_page_locked(address));
}
