//! CUDA arenas beside other CUDA code: its memory as storage, its streams, tensors both ways. Without a
//! device the tests say so and pass, unless `DML_EXPECT=cuda`.

#![cfg(all(feature = "cuda", not(dml_loom)))]

mod common;

use common::{pattern, with_cuda};
use cudarc::driver::sys::{
    self, CUcontext, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationProp, CUmemAllocationType, CUmemAttach_flags, CUmemLocationType, CUresult, cuCtxCreate_v4,
    cuCtxDestroy_v2, cuCtxPopCurrent_v2, cuDeviceCanAccessPeer, cuMemAddressFree, cuMemAddressReserve,
    cuMemAlloc_v2, cuMemAllocHost_v2, cuMemAllocManaged, cuMemCreate, cuMemFree_v2, cuMemFreeHost,
    cuMemGetAllocationGranularity, cuMemMap, cuMemRelease, cuMemSetAccess, cuMemUnmap, cuMemcpyDtoH_v2,
    cuMemcpyHtoD_v2,
};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use dml_arenas::cuda::ExternalError;
use dml_arenas::dlpack::abi::{
    CUDA, CUDA_HOST, DLDevice, DLManagedTensorVersioned, DLTensor, FLAG_READ_ONLY, VERSION,
};
use dml_arenas::dlpack::{self, Element, ExportError, ImportError, Tensor, Unexported};
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::{CudaArena, Discover, DiscoverOptions, HostArena, Sharing};
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, AllocError, Arena, ArenaId, Buffer, DeviceId, NativeHandle, Platform, Scalar,
    record::Operation,
};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEN: u64 = 1 << 20;

/// A platform with a GPU, and other code that uses the same GPU.
struct Rig {
    platform: Platform,
    gpu: DeviceId,
    home: ArenaId,
    theirs: Arc<CudaContext>,
}

impl Rig {
    fn find(test: &str) -> Option<Self> {
        let (platform, gpu) = with_cuda(test)?;
        let home = platform.home(gpu).expect("a device has an arena");
        Some(Self { platform, gpu, home, theirs: CudaContext::new(0).unwrap() })
    }

    fn cuda(&self) -> &CudaArena {
        (**self.platform.arena(self.home)).downcast_ref().expect("a CUDA device has a CUDA arena")
    }

    /// Memory as a framework would allocate it, which holds `bytes`.
    fn allocated(&self, bytes: &[u8]) -> Allocated {
        self.theirs.bind_to_thread().unwrap();
        let mut address = 0;
        // SAFETY: the context is current; the call writes an address.
        ok(unsafe { cuMemAlloc_v2(&raw mut address, bytes.len()) });
        // SAFETY: as many bytes as were just allocated.
        ok(unsafe { cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) });
        Allocated { theirs: self.theirs.clone(), address, len: bytes.len(), freed: Arc::default() }
    }

    fn bytes_of(&self, len: u64) -> Buffer<u8> {
        self.platform.buffer::<u8>(len).build().unwrap()
    }
}

fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// Memory of the device that is freed with this, which counts.
#[derive(Debug)]
struct Allocated {
    theirs: Arc<CudaContext>,
    address: CUdeviceptr,
    len: usize,
    freed: Arc<AtomicUsize>,
}

impl Allocated {
    fn handle(&self, offset: u64) -> NativeHandle {
        NativeHandle((self.address + offset) as usize)
    }

    fn bytes(&self) -> Vec<u8> {
        self.theirs.bind_to_thread().unwrap();
        let mut bytes = vec![0; self.len];
        // SAFETY: as many bytes as were allocated; the copy has ended when the call returns.
        ok(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address, self.len) });
        bytes
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        self.theirs.bind_to_thread().unwrap();
        // SAFETY: allocated by `allocated`, freed once.
        ok(unsafe { cuMemFree_v2(self.address) });
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}

/// It changes each word by its place, so that a word that is missed or changed twice shows.
const STEP: &str = r#"
    extern "C" __global__ void step(unsigned* data, unsigned long long end, DmlItems items) {
        unsigned long long i = items.x();
        if (i < end) data[i] = data[i] * 3 + (unsigned)i;
    }"#;

/// Has the arena's kernel change the words of a buffer.
fn step(rig: &Rig, buffer: &Buffer<u32>) {
    let kernel = rig.cuda().kernel(STEP, "step", "").unwrap();
    let grants = rig.platform.acquire(rig.gpu).read_write(buffer).wait().unwrap();
    let block = grants.block(buffer).unwrap().unwrap().clone();
    let args = [KernelArg::Block(&block), KernelArg::Scalar(Scalar::U64(buffer.len()))];
    // SAFETY: the kernel ends at the last word of the buffer, whose block this is.
    let fence = unsafe { kernel.launch(&args, Grid::line(0, buffer.len(), 128)) }.unwrap();
    drop(block);
    grants.in_flight(fence).wait().unwrap().release().unwrap();
}

fn stepped(words: &[u32]) -> Vec<u32> {
    words.iter().zip(0_u32..).map(|(word, i)| word.wrapping_mul(3).wrapping_add(i)).collect()
}

/// Its one thread changes a word after so many nanoseconds.
const LATE: &str = r#"
    __device__ unsigned long long now() {
        unsigned long long now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        return now;
    }
    extern "C" __global__ void late(unsigned* data, unsigned long long nanos) {
        for (unsigned long long begun = now(); now() - begun < nanos; ) {}
        data[0] = 7;
    }"#;

fn words(seed: u32) -> Vec<u32> {
    (0..LEN as u32 / 4).map(|i| i.wrapping_mul(2_654_435_761) ^ seed).collect()
}

#[test]
fn memory_of_others_is_storage_of_a_buffer_and_comes_back() {
    let Some(rig) = Rig::find("memory_of_others_is_storage_of_a_buffer_and_comes_back") else { return };
    let before = pattern(LEN as usize, 1);
    let memory = rig.allocated(&before);
    let (freed, address) = (memory.freed.clone(), memory.handle(0));
    // SAFETY: allocated for this test, in the primary context; nothing runs there.
    let block = unsafe { rig.cuda().external(address, LEN, memory) }.unwrap();
    assert_eq!((block.len(), block.native()), (LEN, address));
    let buffer = rig.bytes_of(LEN);
    buffer.raw().attach_block(rig.home, block).unwrap();
    let grants = rig.platform.acquire(rig.gpu).read(&buffer).wait().unwrap();
    assert_eq!(grants.native(&buffer).unwrap(), Some(address), "nothing is copied");
    grants.release().unwrap();
    assert_eq!(*buffer.read().unwrap(), before);
    let after = pattern(LEN as usize, 0x5A);
    let mut writing = buffer.write().unwrap();
    writing.copy_from_slice(&after);
    writing.release().unwrap();
    let memory: Allocated = buffer.raw().clone().into_container().unwrap();
    assert_eq!(memory.bytes(), after, "the latest contents are there");
    assert_eq!(count(&freed), 0);
    drop(memory);
    // Memory that is not taken back is freed with the buffer, after the last grant.
    let memory = rig.allocated(&before);
    let (freed, address) = (memory.freed.clone(), memory.handle(0));
    // SAFETY: as above.
    let block = unsafe { rig.cuda().external(address, LEN, memory) }.unwrap();
    let buffer = rig.bytes_of(LEN);
    buffer.raw().attach_block_storage(rig.home, block).unwrap();
    let grants = rig.platform.acquire(rig.gpu).write(&buffer).wait().unwrap();
    drop(buffer);
    assert_eq!(count(&freed), 0);
    grants.release().unwrap();
    assert_eq!(count(&freed), 1);
}

#[test]
fn a_part_of_an_allocation_is_storage_and_no_byte_past_it() {
    let Some(rig) = Rig::find("a_part_of_an_allocation_is_storage_and_no_byte_past_it") else { return };
    let before = pattern(LEN as usize, 2);
    let memory = rig.allocated(&before);
    // SAFETY: refused.
    let refused = unsafe { rig.cuda().external(memory.handle(256), 8 * LEN, ()) }.unwrap_err();
    let ExternalError::TooShort { address, bytes, start, size } = refused.cause else { panic!("{refused}") };
    assert_eq!((address, bytes, start), (memory.address + 256, 8 * LEN, memory.address));
    assert!((LEN..8 * LEN).contains(&size), "{size}");
    // SAFETY: refused.
    let refused = unsafe { rig.cuda().external(memory.handle(0), u64::MAX, ()) }.unwrap_err();
    assert!(matches!(refused.cause, ExternalError::TooShort { bytes: u64::MAX, .. }), "{refused}");
    // SAFETY: a part of the allocation, which outlives the buffer.
    let block = unsafe { rig.cuda().external(memory.handle(256), LEN - 512, ()) }.unwrap();
    let buffer = rig.bytes_of(LEN - 512);
    buffer.raw().attach_block(rig.home, block).unwrap();
    assert_eq!(*buffer.read().unwrap(), before[256..LEN as usize - 256]);
    // What changed goes back to where it belongs, also between two words.
    let mut expected = before;
    for (range, byte) in [(0..777, 0xEE), (12_345..54_320, 0xDD), (LEN - 515..LEN - 512, 0xCC)] {
        let bytes = vec![byte; (range.end - range.start) as usize];
        let part = buffer.range(range.clone());
        let mut grants = rig.platform.acquire(rig.platform.host().unwrap()).write(&part).wait().unwrap();
        grants.write_bytes(&part, &bytes).unwrap();
        grants.release().unwrap();
        expected[range.start as usize + 256..range.end as usize + 256].fill(byte);
    }
    buffer.raw().clone().into_container::<()>().unwrap();
    assert_eq!(memory.bytes(), expected);
    // SAFETY: there are no bytes.
    let none = unsafe { rig.cuda().external(NativeHandle(0), 0, ()) }.unwrap();
    let empty = rig.bytes_of(0);
    empty.raw().attach_block(rig.home, none).unwrap();
    assert!(empty.read().unwrap().is_empty());
}

/// A range of addresses of which pieces have memory, each mapped by itself, as allocators do whose memory
/// grows.
struct Mapped {
    theirs: Arc<CudaContext>,
    start: CUdeviceptr,
    piece_bytes: usize,
    pieces: Vec<usize>,
    reserved: usize,
}

impl Mapped {
    /// Reserves `reserved` pieces of addresses, and has memory at some of them.
    fn new(theirs: &Arc<CudaContext>, reserved: usize, pieces: &[usize]) -> Self {
        theirs.bind_to_thread().unwrap();
        // SAFETY: zero is a value of every field.
        let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let access = CUmemAccessDesc {
            location: prop.location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let (mut piece_bytes, mut start) = (0, 0);
        // SAFETY: the calls write numbers; the addresses are reserved for this test, and each piece is mapped
        // once.
        unsafe {
            ok(cuMemGetAllocationGranularity(&raw mut piece_bytes, &raw const prop, least));
            ok(cuMemAddressReserve(&raw mut start, reserved * piece_bytes, 0, 0, 0));
            for piece in pieces {
                let at = start + (piece * piece_bytes) as u64;
                let mut memory = 0;
                ok(cuMemCreate(&raw mut memory, piece_bytes, &raw const prop, 0));
                ok(cuMemMap(at, piece_bytes, 0, memory, 0));
                ok(cuMemSetAccess(at, piece_bytes, &raw const access, 1));
                // The mapping keeps it.
                ok(cuMemRelease(memory));
            }
        }
        Self { theirs: theirs.clone(), start, piece_bytes, pieces: pieces.to_vec(), reserved }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.theirs.bind_to_thread().unwrap();
        // SAFETY: `new` mapped and reserved these addresses, and no work uses them any more.
        unsafe {
            for piece in &self.pieces {
                ok(cuMemUnmap(self.start + (piece * self.piece_bytes) as u64, self.piece_bytes));
            }
            ok(cuMemAddressFree(self.start, self.reserved * self.piece_bytes));
        }
    }
}

#[test]
fn memory_that_was_mapped_piece_by_piece_is_one_storage_up_to_its_first_gap() {
    let Some(rig) = Rig::find("memory_that_was_mapped_piece_by_piece") else { return };
    // Three pieces in a row, a gap, and one more.
    let memory = Mapped::new(&rig.theirs, 6, &[0, 1, 2, 4]);
    let (piece, start) = (memory.piece_bytes as u64, memory.start);
    let handle = |at: u64| NativeHandle((start + at) as usize);
    for (at, bytes, size) in [
        (0, 3 * piece + 1, 3 * piece),
        (0, 5 * piece, 3 * piece),
        (2 * piece + 8, piece, piece),
        (4 * piece, 2 * piece, piece),
    ] {
        // SAFETY: refused.
        let refused = unsafe { rig.cuda().external(handle(at), bytes, ()) }.unwrap_err();
        let told = match refused.cause {
            ExternalError::TooShort { address, bytes, start, size } => (address, bytes, start, size),
            other => panic!("{at}, {bytes}: {other}"),
        };
        let piece_start = start + at / piece * piece;
        assert_eq!(told, (start + at, bytes, piece_start, size), "{at}, {bytes}");
    }
    // From within the first piece to within the third.
    let (at, len) = (piece - 300, piece + 900);
    // SAFETY: memory of the test, which outlives the buffer.
    let block = unsafe { rig.cuda().external(handle(at), len, ()) }.unwrap();
    let buffer = rig.bytes_of(len);
    buffer.raw().attach_block(rig.home, block).unwrap();
    let host = rig.platform.host().unwrap();
    let expected = pattern(len as usize, 5);
    let mut grants = rig.platform.acquire(host).write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, &expected).unwrap();
    grants.release().unwrap();
    buffer.raw().clone().into_container::<()>().unwrap();
    let mut there = vec![0; len as usize];
    // SAFETY: as many bytes as were written there.
    ok(unsafe { cuMemcpyDtoH_v2(there.as_mut_ptr().cast(), start + at, there.len()) });
    assert_eq!(there, expected);
    // SAFETY: all of the three pieces, to the last byte.
    let whole = unsafe { rig.cuda().external(handle(0), 3 * piece, ()) }.unwrap();
    assert_eq!(whole.len(), 3 * piece);
}

#[test]
fn what_is_no_memory_of_the_device_is_refused() {
    let Some(rig) = Rig::find("what_is_no_memory_of_the_device_is_refused") else { return };
    let refused = |address: u64| {
        // SAFETY: refused.
        unsafe { rig.cuda().external(NativeHandle(address as usize), 64, "mine") }.unwrap_err()
    };
    let unknown = [0_u8; 64];
    let unknown = refused(unknown.as_ptr().addr() as u64);
    assert!(matches!(unknown.cause, ExternalError::NotDeviceMemory { .. }), "{unknown}");
    assert_eq!(unknown.container, "mine");
    rig.theirs.bind_to_thread().unwrap();
    let mut locked = null_mut();
    // SAFETY: the context is current; the call writes an address.
    ok(unsafe { cuMemAllocHost_v2(&raw mut locked, 64) });
    let of_the_host = refused(locked.addr() as u64);
    assert!(of_the_host.to_string().contains("memory of the host"), "{of_the_host}");
    // SAFETY: just allocated.
    ok(unsafe { cuMemFreeHost(locked) });
    let mut managed = 0;
    // SAFETY: as above.
    ok(unsafe { cuMemAllocManaged(&raw mut managed, 64, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32) });
    let both = refused(managed);
    assert!(both.to_string().contains("managed memory"), "{both}");
    // SAFETY: just allocated.
    ok(unsafe { cuMemFree_v2(managed) });
    // Memory of a second context of the device.
    let (mut other, mut address, mut popped): (CUcontext, CUdeviceptr, CUcontext) =
        (null_mut(), 0, null_mut());
    // SAFETY: the calls write handles, and the new context is current until it is popped.
    unsafe {
        ok(cuCtxCreate_v4(&raw mut other, null_mut(), 0, 0));
        ok(cuMemAlloc_v2(&raw mut address, 64));
        ok(cuCtxPopCurrent_v2(&raw mut popped));
    }
    let elsewhere = refused(address);
    assert!(matches!(elsewhere.cause, ExternalError::OtherContext { .. }), "{elsewhere}");
    // SAFETY: the context just made, with its memory.
    ok(unsafe { cuCtxDestroy_v2(other) });
    assert!(!rig.cuda().is_lost());
}

#[test]
fn a_slice_of_cudarc_is_storage_and_comes_back() {
    let Some(rig) = Rig::find("a_slice_of_cudarc_is_storage_and_comes_back") else { return };
    let theirs: [Arc<CudaStream>; 2] = [rig.theirs.default_stream(), rig.theirs.new_stream().unwrap()];
    for (seed, stream) in (3..).zip(theirs) {
        let before = words(seed);
        // The copy may still run when the slice is handed over.
        let slice = stream.clone_htod(&before).unwrap();
        let buffer = rig.platform.buffer::<u32>(LEN / 4).build().unwrap();
        buffer.raw().attach_block(rig.home, rig.cuda().external_slice(slice).unwrap()).unwrap();
        assert_eq!(*buffer.read().unwrap(), before);
        step(&rig, &buffer);
        let slice: CudaSlice<u32> = buffer.raw().clone().into_container().unwrap();
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), stepped(&before));
        drop(buffer);
        drop(slice);
    }
    let stream = rig.theirs.default_stream();
    let buffer = rig.platform.buffer::<u32>(7).build().unwrap();
    let block = rig.cuda().external_slice(stream.clone_htod(&[5_u32; 8]).unwrap()).unwrap();
    let refused = buffer.raw().attach_block(rig.home, block).unwrap_err();
    assert!(matches!(refused.cause, AcquireError::NotAttachable { .. }), "{refused}");
    let slice = refused.storage.into_container().expect("nobody else has it");
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [5; 8]);
}

#[test]
fn a_slice_is_taken_when_its_stream_has_ended() {
    let Some(rig) = Rig::find("a_slice_is_taken_when_its_stream_has_ended") else { return };
    let (stream, len) = (rig.theirs.new_stream().unwrap(), 64 << 20);
    let mut slice = stream.alloc_zeros::<u8>(len).unwrap();
    {
        let (address, _used) = slice.device_ptr_mut(&stream);
        for round in 0..=5000 {
            // SAFETY: as many bytes as the slice has, on its stream.
            ok(unsafe { sys::cuMemsetD8Async(address, (round / 25) as u8, len, stream.cu_stream()) });
        }
    }
    let buffer = rig.bytes_of(len as u64);
    buffer.raw().attach_block(rig.home, rig.cuda().external_slice(slice).unwrap()).unwrap();
    // A large copy would begin when that has ended anyway.
    let last = buffer.range(len as u64 - 4..len as u64);
    let grants = rig.platform.acquire(rig.platform.host().unwrap()).read(&last).wait().unwrap();
    assert_eq!(grants.read_bytes(&last).unwrap()[..], [200; 4]);
}

#[test]
fn a_kernel_under_way_keeps_its_blocks() {
    let Some(rig) = Rig::find("a_kernel_under_way_keeps_its_blocks") else { return };
    let memory = rig.allocated(&pattern(64, 1));
    let freed = memory.freed.clone();
    // SAFETY: allocated for this test, in the primary context; nothing runs there.
    let block = unsafe { rig.cuda().external(memory.handle(0), 64, memory) }.unwrap();
    let buffer = rig.bytes_of(64);
    buffer.raw().attach_block_storage(rig.home, block).unwrap();
    let kernel = rig.cuda().kernel(LATE, "late", "").unwrap();
    let grants = rig.platform.acquire(rig.gpu).write(&buffer).wait().unwrap();
    let block = grants.block(&buffer).unwrap().unwrap().clone();
    let args = [KernelArg::Block(&block), KernelArg::Scalar(Scalar::U64(300_000_000))];
    // SAFETY: one thread writes the first word.
    let fence = unsafe { kernel.launch(&args, Grid::line(0, 1, 1)) }.unwrap();
    drop(block);
    // Against the rules: the grant ends before the kernel.
    grants.release().unwrap();
    drop(buffer);
    assert_eq!(count(&freed), 0);
    assert_eq!(fence.wait(), Ok(0));
    assert_eq!(count(&freed), 1);
}

/// On a machine with several GPUs.
#[test]
fn memory_of_another_gpu_is_refused_and_peers_get_what_others_allocated() {
    let Some(rig) = Rig::find("memory_of_another_gpu_is_refused") else { return };
    let Ok(second) = rig.platform.device("cuda:1") else {
        eprintln!("SKIPPED memory_of_another_gpu_is_refused: one GPU alone");
        return;
    };
    let slice = CudaContext::new(1).unwrap().default_stream().clone_htod(&words(1)).unwrap();
    let (address, used) = slice.device_ptr(slice.stream());
    // SAFETY: refused.
    let refused = unsafe { rig.cuda().external(NativeHandle(address as usize), LEN, ()) }.unwrap_err();
    assert!(matches!(refused.cause, ExternalError::OtherDevice { found: 1, own: 0, .. }), "{refused}");
    drop(used);
    let refused = rig.cuda().external_slice(slice).unwrap_err();
    assert!(matches!(refused.cause, ExternalError::OtherContext { .. }), "{refused}");
    let before = words(2);
    let slice = rig.theirs.default_stream().clone_htod(&before).unwrap();
    let buffer = rig.platform.buffer::<u32>(LEN / 4).build().unwrap();
    buffer.raw().attach_block(rig.home, rig.cuda().external_slice(slice).unwrap()).unwrap();
    let grants = rig.platform.acquire(second).read(&buffer).wait().unwrap();
    let bytes = grants.read_bytes(&buffer).unwrap();
    assert!(bytes.chunks_exact(4).eq(before.iter().map(|word| word.to_ne_bytes())));
}

/// The arena's own memory goes from GPU to GPU without the host, where the hardware has a way.
#[test]
fn gpus_that_reach_each_other_copy_directly() {
    let Some(rig) = Rig::find("gpus_that_reach_each_other_copy_directly") else { return };
    let (platform, one) = (&rig.platform, rig.gpu);
    let Ok(two) = platform.device("cuda:1") else {
        eprintln!("SKIPPED gpus_that_reach_each_other_copy_directly: one GPU alone");
        return;
    };
    for (from, to) in [(0, 1), (1, 0)] {
        let mut can = 0;
        // SAFETY: the call writes a number.
        ok(unsafe { cuDeviceCanAccessPeer(&raw mut can, from, to) });
        if can == 0 {
            eprintln!("SKIPPED gpus_that_reach_each_other_copy_directly: device {from} does not reach {to}");
            return;
        }
    }
    for (from, to) in [(one, two), (two, one)] {
        let (buffer, bytes) = (rig.bytes_of(LEN), pattern(LEN as usize, 7));
        let mut grants = platform.acquire(from).write(&buffer).wait().unwrap();
        grants.write_bytes(&buffer, &bytes).unwrap();
        grants.release().unwrap();
        platform.counters().reset();
        let grants = platform.acquire(to).read(&buffer).wait().unwrap();
        let links = platform.routes().links();
        let moved: Vec<_> = platform
            .counters()
            .transfers()
            .into_iter()
            .map(|transfer| {
                let link = links[usize::from(transfer.link.0)];
                (link.from, link.to, transfer.bytes, transfer.copies)
            })
            .collect();
        assert_eq!(moved, [(platform.home(from).unwrap(), platform.home(to).unwrap(), LEN, 1)]);
        let staged =
            [Operation::Read, Operation::Write].map(|operation| platform.counters().operation(operation));
        assert_eq!(staged, [0, 0], "nothing passes through the host");
        assert_eq!(grants.read_bytes(&buffer).unwrap(), bytes);
    }
}

#[test]
fn a_fence_of_a_stream_of_others_keeps_the_grants() {
    let Some(rig) = Rig::find("a_fence_of_a_stream_of_others_keeps_the_grants") else { return };
    let buffer = rig.bytes_of(64 * LEN);
    let stream = rig.theirs.new_stream().unwrap();
    for byte in 1..5_u8 {
        let grants = rig.platform.acquire(rig.gpu).write(&buffer).wait().unwrap();
        let address = grants.native(&buffer).unwrap().expect("there are bytes").0 as CUdeviceptr;
        // SAFETY: granted bytes, until the fence is waited for; a live stream of the primary context.
        let fence = unsafe {
            for round in (0..=3000_u32).rev() {
                let byte = byte.wrapping_add(round.div_ceil(100) as u8);
                ok(sys::cuMemsetD8Async(address, byte, 64 << 20, stream.cu_stream()));
            }
            rig.cuda().fence_of(NativeHandle(stream.cu_stream().addr()))
        };
        grants.in_flight(fence.unwrap()).wait().unwrap().release().unwrap();
        assert!(buffer.read().unwrap().iter().all(|&found| found == byte));
    }
    // The default stream, its other name, and the one that the calling thread has of its own.
    for stream in [0, 1, 2] {
        // SAFETY: a default stream.
        let fence_of = || unsafe { rig.cuda().fence_of(NativeHandle(stream)) }.unwrap();
        assert_eq!(fence_of().wait(), Ok(0));
        let (says, told) = std::sync::mpsc::channel();
        let (mut fence, waker) = (fence_of(), std::task::Waker::from(Arc::new(Says(says))));
        if fence.poll(&waker).is_pending() {
            told.recv().unwrap();
            assert!(fence.poll(&waker).is_ready());
        }
    }
}

/// Each stream is awaited by itself: what ends on one is told while the other computes.
#[test]
fn streams_of_others_are_asked_and_awaited() {
    let Some(rig) = Rig::find("streams_of_others_are_asked_and_awaited") else { return };
    let memory = [(); 2].map(|()| rig.allocated(&vec![0; 64 << 20]));
    let streams = [(); 2].map(|()| rig.theirs.new_stream().unwrap());
    let enqueue = |index: usize, rounds: u32| {
        for round in 0..rounds {
            let (address, stream) = (memory[index].address, streams[index].cu_stream());
            // SAFETY: memory that lives longer than the fence below.
            ok(unsafe { sys::cuMemsetD8Async(address, round as u8, 64 << 20, stream) });
        }
        // SAFETY: a live stream of the primary context.
        unsafe { rig.cuda().fence_of(NativeHandle(streams[index].cu_stream().addr())) }.unwrap()
    };
    // The long one takes some hundred milliseconds.
    let mut long = enqueue(0, 20_000);
    let (says, told) = std::sync::mpsc::channel();
    let waker = std::task::Waker::from(Arc::new(Says(says)));
    assert!(!long.has_ended() && long.poll(&waker).is_pending());
    let mut short = enqueue(1, 20);
    if short.poll(&waker).is_pending() {
        told.recv().unwrap();
        assert!(short.has_ended() && short.poll(&waker).is_ready());
    }
    assert!(!long.has_ended(), "it takes longer than the short one");
    told.recv().unwrap();
    assert!(long.has_ended());
    assert_eq!(long.wait(), Ok(0));
}

/// Says that it was called.
struct Says(std::sync::mpsc::Sender<()>);

impl std::task::Wake for Says {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// A tensor of a framework in the GPU's memory, which `memory` keeps.
fn tensor(memory: Allocated, device: i32, flags: u64) -> *mut DLManagedTensorVersioned {
    let shape = Box::leak(Box::new([LEN as i64 / 4]));
    let dl_tensor = DLTensor {
        data: std::ptr::without_provenance_mut(memory.address as usize),
        device: DLDevice { device_type: CUDA, device_id: device },
        ndim: 1,
        dtype: u32::TYPE,
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let manager_ctx = Box::into_raw(Box::new(memory)).cast();
    let deleter = Some(delete as unsafe extern "C" fn(*mut DLManagedTensorVersioned));
    Box::into_raw(Box::new(DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx,
        deleter,
        flags,
        dl_tensor,
    }))
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the consumer deletes what `tensor` made, once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.manager_ctx.cast::<Allocated>()) });
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.dl_tensor.shape.cast::<[i64; 1]>()) });
}

fn as_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn a_tensor_on_the_gpu_is_storage_and_is_deleted_once() {
    let Some(rig) = Rig::find("a_tensor_on_the_gpu_is_storage_and_is_deleted_once") else { return };
    let before = words(9);
    let taken = |device, flags| {
        let memory = rig.allocated(&as_bytes(&before));
        let freed = memory.freed.clone();
        // SAFETY: just made, over memory that has no other owner and that no work uses.
        (unsafe { Tensor::from_versioned(tensor(memory, device, flags)) }.unwrap(), freed)
    };
    let (given, freed) = taken(0, 0);
    let buffer = rig.platform.buffer::<u32>(given.len()).build().unwrap();
    buffer.raw().attach_block(rig.home, rig.cuda().external_tensor::<u32>(given).unwrap()).unwrap();
    step(&rig, &buffer);
    assert_eq!(*buffer.read().unwrap(), stepped(&before));
    let given: Tensor = buffer.raw().clone().into_container().unwrap();
    assert_eq!(count(&freed), 0);
    drop(given);
    assert_eq!(count(&freed), 1);
    let causes = [(1, 0, "another device"), (0, FLAG_READ_ONLY, "read-only")];
    for (device, flags, why) in causes {
        let (given, freed) = taken(device, flags);
        let refused = rig.cuda().external_tensor::<u32>(given).unwrap_err();
        let is_it = match &refused.cause {
            ExternalError::Tensor(ImportError::Device { found, .. }) => {
                found.device_id == device && device == 1
            }
            ExternalError::Tensor(cause) => *cause == ImportError::ReadOnly && flags != 0,
            _ => false,
        };
        assert!(is_it && count(&freed) == 0, "{why}: {refused}");
        drop(refused);
        assert_eq!(count(&freed), 1);
    }
    let (given, _freed) = taken(0, 0);
    let refused = rig.cuda().external_tensor::<f32>(given).unwrap_err();
    assert!(matches!(refused.cause, ExternalError::Tensor(ImportError::Type { .. })), "{refused}");
    assert!(matches!(refused.container.as_slice::<u32>(), Err(ImportError::Device { .. })));
}

#[test]
fn granted_bytes_on_the_gpu_are_a_tensor() {
    let Some(rig) = Rig::find("granted_bytes_on_the_gpu_are_a_tensor") else { return };
    let before = words(4);
    let buffer = rig.platform.buffer_from(before.clone()).unwrap();
    let grants = rig.platform.acquire(rig.gpu).read_write(&buffer).wait().unwrap();
    let address = grants.native(&buffer).unwrap().unwrap().0;
    let (half, rows) = (buffer.range(LEN / 8..LEN / 4), LEN / 8 / 16);
    let export = rig.cuda().export::<u32>(grants, &half, &[rows, 16]).unwrap();
    assert_eq!((export.is_read_only(), export.address()), (false, Some(address + LEN as usize / 2)));
    let lent = export.into_versioned();
    // SAFETY: live until it is deleted.
    let managed = unsafe { lent.as_ref() };
    assert_eq!(managed.dl_tensor.device, DLDevice { device_type: CUDA, device_id: 0 });
    // A consumer works in a stream of its own, and deletes the tensor before that has ended.
    let stream = rig.theirs.new_stream().unwrap();
    let bytes = LEN as usize / 2;
    // SAFETY: the tensor's own bytes, which are for writing; the one call of the deleter.
    unsafe {
        for round in 0..20_000 {
            let byte = (round / 200) as u8;
            ok(sys::cuMemsetD8Async(managed.dl_tensor.data.addr() as u64, byte, bytes, stream.cu_stream()));
        }
        (*lent.as_ptr()).deleter.unwrap()(lent.as_ptr());
    }
    let seen = buffer.read().unwrap();
    let middle = LEN as usize / 8;
    assert_eq!(seen[..middle], before[..middle]);
    assert!(seen[middle..].iter().all(|word| *word == 0x6363_6363), "the deleter waits, and commits");
    drop(seen);
    let reading = rig.platform.acquire(rig.gpu).read(&buffer).wait().unwrap();
    let lent = rig.cuda().export::<u32>(reading, &buffer, &[LEN / 4]).unwrap().into_versioned();
    // SAFETY: just made, and no other consumer has it.
    let read_only = unsafe { Tensor::from_versioned(lent.as_ptr()) }.unwrap();
    assert!(read_only.is_read_only());
    let refused = rig.cuda().external_tensor::<u32>(read_only).unwrap_err();
    assert_eq!(refused.cause, ExternalError::Tensor(ImportError::ReadOnly));
    drop(refused);
    let on_the_host =
        buffer.raw().platform().acquire(rig.platform.host().unwrap()).read(&buffer).wait().unwrap();
    let Unexported { cause, kept } = *rig.cuda().export::<u32>(on_the_host, &buffer, &[LEN / 4]).unwrap_err();
    assert!(matches!(cause, ExportError::Elsewhere { .. }), "{cause}");
    kept.release().unwrap();
    // No kernel could load elements that begin anywhere.
    let bytes = rig.platform.buffer_from(vec![3_u8; 64]).unwrap();
    let reading = rig.platform.acquire(rig.gpu).read(&bytes).wait().unwrap();
    let refused = rig.cuda().export::<u32>(reading, &bytes.range(6..14), &[2]).unwrap_err();
    assert!(matches!(refused.cause, ExportError::Alignment { align: 4, .. }), "{refused}");
}

#[test]
fn a_buffer_lends_its_bytes_to_another_by_a_tensor() {
    let Some(rig) = Rig::find("a_buffer_lends_its_bytes_to_another_by_a_tensor") else { return };
    let before = words(5);
    let buffer = rig.platform.buffer_from(before.clone()).unwrap();
    let grants = rig.platform.acquire(rig.gpu).read_write(&buffer).wait().unwrap();
    let lent = rig.cuda().export::<u32>(grants, &buffer, &[LEN / 4]).unwrap().into_legacy().unwrap();
    // SAFETY: just made, and no other consumer has it.
    let tensor = unsafe { Tensor::from_legacy(lent.as_ptr()) }.unwrap();
    let other = rig.platform.buffer::<u32>(LEN / 4).build().unwrap();
    other.raw().attach_block(rig.home, rig.cuda().external_tensor::<u32>(tensor).unwrap()).unwrap();
    step(&rig, &other);
    drop(other);
    assert_eq!(*buffer.read().unwrap(), stepped(&before));
}

#[test]
fn page_locked_memory_is_refused_beyond_its_limit_and_not_at_it() {
    if with_cuda("page_locked_memory_is_refused_beyond_its_limit_and_not_at_it").is_none() {
        return;
    }
    const LIMIT: u64 = 4 << 20;
    let options = DiscoverOptions::default().only(["cuda:0"]).sharing(Sharing::page_locked(LIMIT));
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let pinned = platform.arena(platform.arena_named("cuda_pinned").unwrap());
    for bytes in [0, 1, LIMIT / 2, LIMIT, LIMIT - 1] {
        let block = pinned.alloc(bytes).unwrap_or_else(|error| panic!("{bytes}: {error}"));
        assert_eq!(block.block().len(), bytes);
    }
    let (arena, refused) = (pinned.desc().name.clone(), |bytes| pinned.alloc(bytes).map(drop).unwrap_err());
    for bytes in [LIMIT + 1, u64::MAX] {
        assert_eq!(refused(bytes), AllocError::TooLarge { arena: arena.clone(), bytes, limit_bytes: LIMIT });
    }
    let half = pinned.alloc(LIMIT / 2).unwrap();
    // Half of it is in use, and more than the other half does not go beside it.
    let bytes = LIMIT / 2 + 1;
    assert_eq!(refused(bytes), AllocError::OutOfMemory { arena, bytes });
    let other = pinned.alloc(LIMIT / 2).unwrap();
    drop((half, other));
    assert!(!pinned.is_lost() && pinned.loss().is_none());
}

#[test]
fn page_locked_memory_goes_out_and_in_as_tensors() {
    let Some(rig) = Rig::find("page_locked_memory_goes_out_and_in_as_tensors") else { return };
    drop(rig);
    let options = DiscoverOptions::default().only(["cuda:0"]).sharing(Sharing::page_locked(4 * LEN));
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let pinned = platform.arena(platform.arena_named("cuda_pinned").unwrap()).clone();
    let pinned: &HostArena = (*pinned).downcast_ref().unwrap();
    let host = platform.host().unwrap();
    let buffer = platform.buffer::<u32>(LEN / 4).build().unwrap();
    let mut writing = buffer.write().unwrap();
    writing.copy_from_slice(&words(6));
    writing.release().unwrap();
    let grants = platform.acquire(host).read_write(&buffer).wait().unwrap();
    let lent = pinned.export::<u32>(grants, &buffer, &[LEN / 4]).unwrap().into_versioned();
    // SAFETY: live until it is deleted.
    assert_eq!(unsafe { lent.as_ref() }.dl_tensor.device, DLDevice { device_type: CUDA_HOST, device_id: 0 });
    // SAFETY: just made, and no other consumer has it.
    let tensor = unsafe { Tensor::from_versioned(lent.as_ptr()) }.unwrap();
    assert_eq!(tensor.as_slice::<u32>().unwrap(), words(6));
    let other = platform.buffer_from(tensor.into_foreign::<u32>().unwrap()).unwrap();
    // The GPU transfers it, whose pages its owner has locked.
    let gpu = platform.device("cuda:0").unwrap();
    let mut grants = platform.acquire(gpu).read_write(&other).wait().unwrap();
    grants.write_bytes(&other.range(3..4), &7_u32.to_ne_bytes()).unwrap();
    grants.release().unwrap();
    assert_eq!(other.read().unwrap()[2..5], [words(6)[2], 7, words(6)[4]]);
    // It is not this arena's.
    let grants = platform.acquire(host).read(&other).wait().unwrap();
    let refused = pinned.export::<u32>(grants, &other, &[LEN / 4]).unwrap_err();
    assert!(matches!(refused.cause, ExportError::Elsewhere { .. }), "{refused}");
    refused.kept.release().unwrap();
    other.into_vec().unwrap();
    assert_eq!(buffer.read().unwrap()[3], 7);
    // Ordinary memory is not said to be locked.
    let ordinary = platform.buffer_from(words(7)).unwrap();
    let grants = platform.acquire(host).read(&ordinary).wait().unwrap();
    let refused = pinned.export::<u32>(grants, &ordinary, &[LEN / 4]).unwrap_err();
    assert!(matches!(refused.cause, ExportError::Elsewhere { .. }), "{refused}");
    let lent = dlpack::export::<u32>(refused.kept, &ordinary, &[LEN / 4]).unwrap().into_versioned();
    // SAFETY: just made, and no other consumer has it.
    drop(unsafe { Tensor::from_versioned(lent.as_ptr()) });
}
