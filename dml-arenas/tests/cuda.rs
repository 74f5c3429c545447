//! CUDA arenas on a real device. Without one the tests say so and pass, unless `DML_EXPECT=cuda`.

#![cfg(all(feature = "cuda", not(dml_loom)))]

mod common;

use common::{copy_in, copy_out, host, pattern, put, take, whole, with_cuda};
use cudarc::driver::sys::{CUdevice_attribute, CUresult, cuDevicePrimaryCtxGetState, cuDriverGetVersion};
use dml_arenas::cuda::CudaKernel;
use dml_arenas::launch::{BuildCause, CompiledKernel, CompiledLauncher, Grid, KernelArg};
use dml_arenas::{CudaArena, Discover, DiscoverOptions, HostArena, Sharing};
use dml_core::internal::sync::Arc;
use dml_core::{
    Access, AllocError, Arena, DeviceId, Fence, HostMemory, ItemShape, LaunchArg, LaunchError, Launcher,
    Misfit, OwnBlock, Platform, Scalar, Span,
};
use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, mpsc};
use std::task::{Poll, Wake, Waker};

/// Locked for reading by every test, and for writing by tests that take all memory of the device or would be
/// held up by other tests' calls.
static SHARED: RwLock<()> = RwLock::new(());

thread_local! {
    static SHARES: Cell<Option<RwLockReadGuard<'static, ()>>> = const { Cell::new(None) };
}

/// Returns the arena of `cuda:0`, as [`with_gpu`] does the device.
fn arena(test: &str) -> Option<Arc<dyn Arena>> {
    home(with_gpu(test)?)
}

/// Calls [`with_cuda`], and keeps other tests from taking the device exclusively during this one.
fn with_gpu(test: &str) -> Option<(Platform, DeviceId)> {
    SHARES.set(None);
    SHARES.set(Some(SHARED.read().unwrap_or_else(PoisonError::into_inner)));
    with_cuda(test)
}

fn home((platform, device): (Platform, DeviceId)) -> Option<Arc<dyn Arena>> {
    platform.home(device).map(|arena| platform.arena(arena).clone())
}

fn cuda(arena: &Arc<dyn Arena>) -> &CudaArena {
    (**arena).downcast_ref().expect("a CUDA device has a CUDA arena")
}

fn alloc(arena: &Arc<dyn Arena>, len: u64) -> OwnBlock {
    OwnBlock::alloc(arena, len).unwrap()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn bytes_come_back_from_odd_offsets() {
    let Some(arena) = arena("bytes_come_back_from_odd_offsets") else { return };
    let block = alloc(&arena, 10_007);
    assert_eq!(block.block().len(), 10_007);
    assert!(block.seen().is_none());
    let mut expected = pattern(10_007, 0);
    put(&block, 0, &expected);
    for (offset, len, seed) in [(1, 3, 0x11), (1021, 2055, 0x5A), (10_006, 1, 0xFF), (10_007, 0, 1)] {
        let bytes = pattern(len, seed);
        put(&block, offset as u64, &bytes);
        expected[offset..offset + len].copy_from_slice(&bytes);
    }
    assert_eq!(block.fill(Span::new(333, 999), 0xC3).unwrap().wait(), Ok(666));
    expected[333..999].fill(0xC3);
    assert_eq!(take(&block, Span::new(0, 10_007)), expected);
    assert_eq!(take(&block, Span::new(997, 5003)), expected[997..5003]);
}

#[test]
#[should_panic(expected = "another arena")]
fn a_block_of_another_arena_is_a_bug_of_core() {
    let Some((platform, device)) = with_gpu("a_block_of_another_arena_is_a_bug_of_core") else {
        panic!("not run: another arena")
    };
    let arena = platform.arena(platform.home(device).unwrap()).clone();
    let block = alloc(&platform.arenas()[0], 8).asked_of(&arena);
    let _ = copy_in(&block, 0, &[1]);
}

/// It marks its place in a picture of `width` columns, and with the place in its block of threads.
const MARK: &str = r#"
    extern "C" __global__ void mark(unsigned* out, unsigned width, unsigned long long end, DmlItems items) {
        unsigned long long x = items.x(), y = items.y();
        if (x < width && y < end)
            out[y * width + x] = (unsigned)(y * 65536 + x * 256 + threadIdx.y * 16 + threadIdx.x);
    }"#;

#[test]
fn a_kernel_covers_its_grid_and_no_others() {
    let Some(arena) = arena("a_kernel_covers_its_grid_and_no_others") else { return };
    let kernel = cuda(&arena).kernel(MARK, "mark", "").unwrap();
    let (width, height) = (37_usize, 50_usize);
    let to = alloc(&arena, (width * height * 4) as u64);
    for (first, rows, local) in [(0, 50, [16, 4]), (17, 20, [4, 16]), (49, 1, [1, 1]), (3, 0, [8, 8])] {
        let before = pattern(width * height * 4, 3);
        put(&to, 0, &before);
        let mut expected = words(&before);
        for y in first..first + rows {
            for x in 0..width {
                let place = (y - first) % local[1] * 16 + x % local[0];
                expected[y * width + x] = (y * 65_536 + x * 256 + place) as u32;
            }
        }
        let args = [
            KernelArg::Block(to.block()),
            KernelArg::Scalar(Scalar::U32(width as u32)),
            KernelArg::Scalar(Scalar::U64((first + rows) as u64)),
        ];
        let [offset, items, local_size] =
            [[0, first], [width, rows], local].map(|of| of.map(|size| size as u64));
        let launch = Grid::new(offset, items, local_size);
        // SAFETY: the kernel ends at column `width` and at row `end`, at most `height`, all of which the
        // block has.
        let fence = unsafe { kernel.launch(&args, launch) }.unwrap();
        assert_eq!(fence.wait(), Ok(0));
        let found = words(&take(&to, Span::new(0, (width * height * 4) as u64)));
        assert_eq!(found, expected, "{first} {rows} {local:?}");
    }
    let endless = Grid::new([0, 1, 0], [1, u64::MAX, 1], [1, 8, 1]);
    let args =
        [KernelArg::Block(to.block()), KernelArg::Scalar(Scalar::U32(1)), KernelArg::Scalar(Scalar::U64(0))];
    // SAFETY: the launch is refused, and with an end of zero the kernel would touch nothing.
    let refused = unsafe { kernel.launch(&args, endless) }.unwrap_err();
    assert!(refused.to_string().contains("mark"), "{refused}");
}

/// It touches no word past the last of its items, which the caller has within both blocks.
const SCALE: &str = r#"
    extern "C" __global__ void scale(const unsigned* in, unsigned* out, unsigned factor, unsigned long long end,
                                     DmlItems items) {
        unsigned long long i = items.x();
        if (i < end) out[i] = in[i] * factor + (unsigned)i;
    }"#;

#[test]
fn a_kernel_covers_its_items_and_no_others() {
    let Some(arena) = arena("a_kernel_covers_its_items_and_no_others") else { return };
    let kernel = cuda(&arena).kernel(SCALE, "scale", "").unwrap();
    assert_eq!(kernel.name(), "scale");
    let input = pattern(4 * 5000, 9);
    let (from, to) = (alloc(&arena, 20_000), alloc(&arena, 20_000));
    put(&from, 0, &input);
    for (offset, items, local) in
        [(0, 5000, 64), (17, 1001, 64), (4999, 1, 128), (3, 7, 0), (100, 900, 1024), (5, 0, 8)]
    {
        put(&to, 0, &pattern(20_000, 3));
        let mut expected = words(&pattern(20_000, 3));
        for (index, word) in expected.iter_mut().enumerate().skip(offset).take(items) {
            *word = words(&input)[index].wrapping_mul(7).wrapping_add(index as u32);
        }
        let (offset, items) = (offset as u64, items as u64);
        let args = [
            KernelArg::Block(from.block()),
            KernelArg::Block(to.block()),
            KernelArg::Scalar(Scalar::U32(7)),
            KernelArg::Scalar(Scalar::U64(offset + items)),
        ];
        // SAFETY: the kernel ends at word `offset + items`, at most 5000, and both blocks have 5000 words.
        let fence = unsafe { kernel.launch(&args, Grid::line(offset, items, local)) }.unwrap();
        assert_eq!(fence.wait(), Ok(0));
        assert_eq!(words(&take(&to, Span::new(0, 20_000))), expected, "{offset} {items} {local}");
    }
}

#[test]
fn a_command_sees_what_ended_before_it_in_another_stream() {
    let Some(arena) = arena("a_command_sees_what_ended_before_it_in_another_stream") else { return };
    let kernel = cuda(&arena).kernel(SCALE, "scale", "").unwrap();
    let len = 4 << 20;
    let (from, to) = (alloc(&arena, len), alloc(&arena, len));
    for factor in 3..9_u32 {
        let (input, mut output) =
            (host(&pattern(len as usize, factor as u8)), HostMemory::zeroed(len).unwrap());
        assert_eq!(from.copy_in(0, &input, whole(&input)).unwrap().wait(), Ok(len));
        let args = [
            KernelArg::Block(from.block()),
            KernelArg::Block(to.block()),
            KernelArg::Scalar(Scalar::U32(factor)),
            KernelArg::Scalar(Scalar::U64(len / 4)),
        ];
        // SAFETY: the kernel ends at word `len / 4`, the last of both blocks.
        let run = unsafe { kernel.launch(&args, Grid::line(0, len / 4, 64)) }.unwrap();
        assert_eq!(run.wait(), Ok(0));
        assert_eq!(copy_out(&to, 0, &mut output).unwrap().wait(), Ok(len));
        let expected = words(input.bytes());
        let expected =
            expected.into_iter().zip(0_u32..).map(|(word, i)| word.wrapping_mul(factor).wrapping_add(i));
        assert!(words(output.bytes()).into_iter().eq(expected));
    }
}

/// Each block of threads reverses its part by way of local memory, as much as it is given; without items of
/// its own.
const REVERSE: &str = r#"
    extern "C" __global__ void reverse(unsigned* data) {
        extern __shared__ unsigned part[];
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        part[threadIdx.x] = data[i];
        __syncthreads();
        data[i] = part[blockDim.x - 1 - threadIdx.x];
    }"#;

/// Has a kernel of [`REVERSE`] reverse four parts with so much local memory, in two arguments.
fn reverses(kernel: &CudaKernel, data: &OwnBlock, local_bytes: u64) {
    let before = pattern(4096, 77);
    put(data, 0, &before);
    let args = [KernelArg::Local(1000), KernelArg::Block(data.block()), KernelArg::Local(local_bytes - 1000)];
    // SAFETY: four blocks of 256 threads, each a word of the 1024 that there are.
    let run = unsafe { kernel.launch(&args, Grid::line(0, 1024, 256)) };
    assert_eq!(run.unwrap().wait(), Ok(0), "{local_bytes}");
    let expected: Vec<u32> = words(&before).chunks(256).flat_map(|part| part.iter().rev().copied()).collect();
    assert_eq!(words(&take(data, Span::new(0, 4096))), expected, "{local_bytes}");
}

/// The driver knows one limit for all kernels of a name in a program.
#[test]
fn a_kernel_made_twice_takes_as_much_local_memory_as_each_needs() {
    let Some(arena) = arena("a_kernel_made_twice") else { return };
    let [one, other] = [(); 2].map(|()| cuda(&arena).kernel(REVERSE, "reverse", "").unwrap());
    let data = alloc(&arena, 4096);
    for (kernel, local_bytes) in [(&one, 100 << 10), (&other, 60 << 10), (&one, 100 << 10)] {
        reverses(kernel, &data, local_bytes);
    }
}

#[test]
fn local_memory_is_no_parameter_and_a_kernel_without_items_begins_at_zero() {
    let Some(arena) = arena("local_memory_is_no_parameter") else { return };
    let kernel = cuda(&arena).kernel(REVERSE, "reverse", "").unwrap();
    let data = alloc(&arena, 4096);
    for local_bytes in [1024, 100 << 10] {
        reverses(&kernel, &data, local_bytes);
    }
    let args = [KernelArg::Block(data.block()), KernelArg::Local(1 << 30)];
    // SAFETY: refused, for that much local memory has no device.
    let refused = unsafe { kernel.launch(&args, Grid::line(0, 1024, 256)) }.unwrap_err();
    assert!(refused.to_string().contains("local memory") && !refused.is_device_lost(), "{refused}");
    let args = [KernelArg::Block(data.block()), KernelArg::Local(1024)];
    // SAFETY: refused, for the kernel would not know its items.
    let refused = unsafe { kernel.launch(&args, Grid::line(1, 256, 256)) }.unwrap_err();
    assert!(refused.to_string().contains("begin at zero"), "{refused}");
}

/// What NVRTC would make of a kernel that sets one word, for any device since 5.0.
const PTX: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry set_word(.param .u64 to, .param .u32 word)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [word];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2], %r1;
    ret;
}
";

#[test]
fn ptx_is_accepted() {
    let Some(arena) = arena("ptx_is_accepted") else { return };
    let kernel = cuda(&arena).kernel(PTX, "set_word", "").unwrap();
    let to = alloc(&arena, 8);
    put(&to, 0, &pattern(8, 1));
    let args = [KernelArg::Block(to.block()), KernelArg::Bytes(&[0x78, 0x56, 0x34, 0x12])];
    // SAFETY: one thread writes the first word of two.
    assert_eq!(unsafe { kernel.launch(&args, Grid::line(0, 1, 1)) }.unwrap().wait(), Ok(0));
    assert_eq!(words(&take(&to, Span::new(0, 8)))[0], 0x1234_5678);
    assert_eq!(take(&to, Span::new(4, 8)), pattern(8, 1)[4..]);
    let damaged = cuda(&arena).kernel(&PTX.replace("st.global", "st.nowhere"), "set_word", "").unwrap_err();
    assert!(matches!(&damaged.cause, BuildCause::Compile(log) if log.contains("nowhere")), "{damaged}");
}

#[test]
fn what_the_compiler_refuses_is_said_with_its_log() {
    let Some(arena) = arena("what_the_compiler_refuses_is_said_with_its_log") else { return };
    let source = "extern \"C\" __global__ void broken(unsigned* out) {\n    out[0] = missing;\n}";
    let error = cuda(&arena).kernel(source, "broken", "").unwrap_err();
    let BuildCause::Compile(log) = &error.cause else { panic!("{error}") };
    assert!(error.kernel == "broken" && log.contains("missing") && log.contains("kernel.cu(2)"), "{log}");
    let error = cuda(&arena).kernel(SCALE, "scala", "").unwrap_err();
    assert!(matches!(error.cause, BuildCause::NoKernel(_)), "{error}");
    let error = cuda(&arena).kernel(SCALE, "scale", "--no-such-option").unwrap_err();
    assert!(error.to_string().contains("no-such-option"), "{error}");
    for (source, name, options) in [("a\0b", "f", ""), (SCALE, "sc\0ale", ""), (SCALE, "scale", "-D\0")] {
        let error = cuda(&arena).kernel(source, name, options).unwrap_err();
        assert!(matches!(error.cause, BuildCause::ZeroCharacter(_)), "{error}");
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let Some(arena) = arena("arguments_that_do_not_fit_are_refused") else { return };
    let kernel = cuda(&arena).kernel(SCALE, "scale", "").unwrap();
    let scalar = |scalar| LaunchArg::Scalar(scalar);
    let few = kernel.fits(&[scalar(Scalar::U64(1))]).unwrap_err();
    assert!(matches!(few, Misfit::Count { takes: 4, given: 1, .. }), "{few}");
    // The last parameter of this one is no items.
    let late = cuda(&arena).kernel(LATE, "late", "").unwrap();
    let few = late.fits(&[scalar(Scalar::U64(1)), scalar(Scalar::U32(1))]).unwrap_err();
    assert!(matches!(few, Misfit::Count { takes: 3, given: 2, .. }), "{few}");
    let wide: Vec<_> = (0..4).map(|_| scalar(Scalar::U64(1))).collect();
    let wide = kernel.fits(&wide).unwrap_err();
    assert!(matches!(wide, Misfit::Argument { index: 2, .. }), "{wide}");
    let block = alloc(&arena, 8);
    // SAFETY: refused.
    let refused = unsafe { kernel.launch(&[KernelArg::Block(block.block())], Grid::line(0, 1, 1)) };
    assert!(refused.unwrap_err().to_string().contains("takes 4 arguments, not 1"));
}

#[test]
fn lack_of_memory_is_an_error_and_the_device_goes_on() {
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let Some(arena) = with_cuda("lack_of_memory_is_an_error_and_the_device_goes_on").and_then(home) else {
        return;
    };
    let capacity = cuda(&arena).capacity_bytes();
    let too_large = arena.alloc(capacity + 1).unwrap_err();
    assert!(matches!(too_large, AllocError::TooLarge { .. }), "{too_large}");
    // The context itself has some of it.
    let full = arena.alloc(capacity).unwrap_err();
    assert!(full.is_out_of_memory(), "{full}");
    assert!(!arena.is_lost());
    let block = alloc(&arena, 4096);
    put(&block, 0, &pattern(4096, 8));
    assert_eq!(take(&block, Span::new(0, 4096)), pattern(4096, 8));
}

#[test]
fn what_was_freed_can_be_had_again_in_other_sizes() {
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let Some(arena) = with_cuda("what_was_freed_can_be_had_again_in_other_sizes").and_then(home) else {
        return;
    };
    let tenth = cuda(&arena).capacity_bytes() / 10;
    for _ in 0..3 {
        let some = [2, 3].map(|tenths| alloc(&arena, tenths * tenth));
        let others = [1, 2].map(|tenths| alloc(&arena, tenths * tenth));
        drop((some, others));
        let large = alloc(&arena, 8 * tenth);
        put(&large, 8 * tenth - 7, &pattern(7, 1));
        assert_eq!(take(&large, Span::new(8 * tenth - 7, 8 * tenth)), pattern(7, 1));
        assert!(arena.alloc(3 * tenth).unwrap_err().is_out_of_memory());
    }
}

/// What small blocks leave behind is kept for others of their size, until there is nothing else.
#[test]
fn idle_memory_is_had_in_other_sizes_where_the_device_is_full() {
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let name = "idle_memory_is_had_in_other_sizes_where_the_device_is_full";
    let Some(arena) = with_cuda(name).and_then(home) else { return };
    let piece = cuda(&arena).capacity_bytes() / 64;
    let blocks: Vec<_> = std::iter::from_fn(|| OwnBlock::alloc(&arena, piece).ok()).collect();
    // Four of them are idle now.
    let count = blocks.len() as u64;
    drop(blocks);
    let large = alloc(&arena, (count - 1) * piece);
    let last = (count - 1) * piece - 1;
    put(&large, last, &pattern(1, 9));
    assert_eq!(take(&large, Span::new(last, last + 1)), pattern(1, 9));
}

#[test]
fn blocks_begin_where_the_arena_says() {
    let Some(arena) = arena("blocks_begin_where_the_arena_says") else { return };
    let blocks: Vec<_> = [0, 1, 77, 4096, 5000, 1 << 20].map(|len| alloc(&arena, len)).into();
    for block in &blocks {
        assert_eq!(block.block().native().0 as u64 % arena.desc().alloc_align, 0, "{:?}", block.block());
    }
}

/// It writes a word after so many nanoseconds.
const LATE: &str = r#"
    __device__ unsigned long long now() {
        unsigned long long now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        return now;
    }
    extern "C" __global__ void late(unsigned* out, unsigned word, unsigned long long nanos) {
        for (unsigned long long begun = now(); now() - begun < nanos; ) {}
        out[0] = word;
    }"#;

/// Has the device write a word in a while.
fn write_late(arena: &Arc<dyn Arena>, to: &OwnBlock, word: u32, millis: u64) -> Fence {
    let kernel = cuda(arena).kernel(LATE, "late", "").unwrap();
    let (word, nanos) = (Scalar::U32(word), Scalar::U64(millis * 1_000_000));
    let args = [KernelArg::Block(to.block()), KernelArg::Scalar(word), KernelArg::Scalar(nanos)];
    // SAFETY: one thread writes the first word.
    unsafe { kernel.launch(&args, Grid::line(0, 1, 1)) }.unwrap()
}

/// Says on a channel that it was woken.
struct Says(mpsc::Sender<()>);

impl Wake for Says {
    fn wake(self: std::sync::Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_future_is_pending_until_its_own_command_ends_and_no_longer() {
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let Some(arena) = with_cuda("a_future_is_pending_until_its_own_command_ends").and_then(home) else {
        return;
    };
    let block = alloc(&arena, 8);
    let (mut one, mut other) = (write_late(&arena, &block, 1, 200), write_late(&arena, &block, 2, 1000));
    let (says, woken) = mpsc::channel();
    let waker = Waker::from(std::sync::Arc::new(Says(says)));
    assert!(other.poll(Waker::noop()).is_pending(), "a poll waits for nothing");
    assert!(one.poll(&waker).is_pending());
    woken.recv().unwrap();
    assert!(other.poll(Waker::noop()).is_pending(), "the first is told when it has ended");
    assert_eq!(one.poll(Waker::noop()), Poll::Ready(Ok(0)));
    assert_eq!(other.wait(), Ok(0));
}

#[test]
fn the_tail_is_the_end_of_all_kernels_so_far() {
    let Some(arena) = arena("the_tail_is_the_end_of_all_kernels_so_far") else { return };
    let block = alloc(&arena, 8);
    let mut late = write_late(&arena, &block, 1, 100);
    arena.tail().unwrap().wait().unwrap();
    assert_eq!(late.poll(Waker::noop()), Poll::Ready(Ok(0)));
}

#[test]
fn the_tail_is_the_end_of_kernels_beside_each_other_too() {
    let name = "the_tail_is_the_end_of_kernels_beside_each_other_too";
    let Some(arena) = arena(name) else { return };
    let block = alloc(&arena, 8);
    let kernel = cuda(&arena).kernel(LATE, "late", "").unwrap();
    let nanos = KernelArg::Scalar(Scalar::U64(100_000_000));
    let args = [KernelArg::Block(block.block()), KernelArg::Scalar(Scalar::U32(1)), nanos];
    for count in 1..6 {
        let one = dml_core::Launch::new(&(0..1), const { &ItemShape::line(1) }, &[]).independent();
        // SAFETY: one thread writes the first word, of all kernels the same one.
        let beside = || unsafe { kernel.launch_part(&args, &one) }.unwrap();
        let mut fences: Vec<_> = std::iter::repeat_with(beside).take(count).collect();
        arena.tail().unwrap().wait().unwrap();
        let polled = fences.iter_mut().map(|fence| fence.poll(Waker::noop()));
        assert!(polled.into_iter().all(|polled| polled == Poll::Ready(Ok(0))), "{count} kernels");
    }
}

/// One kernel waits for the word that the other one writes, for five seconds. Nothing else may use the GPU
/// meanwhile: beside other tests a driver may have no queue for each stream, and then one launch waits for
/// the other.
#[test]
fn independent_launches_run_at_once_and_others_in_their_order() {
    let Some((platform, device)) = with_gpu("independent_launches_run_at_once") else { return };
    let arena = platform.arena(platform.home(device).unwrap()).clone();
    let source = r#"extern "C" __global__ void meets(volatile unsigned* out, unsigned sets, unsigned long long nanos) {
        unsigned long long begun, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
        if (sets) {
            out[0] = 1;
            return;
        }
        do {
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        } while (out[0] == 0 && now - begun < nanos);
        out[1] = out[0];
    }"#;
    let kernel = cuda(&arena).kernel(source, "meets", "").unwrap();
    // SAFETY: it touches the two words that its buffer has.
    let launcher = unsafe { CompiledLauncher::new(cuda(&arena).kernel(source, "meets", "").unwrap()) };
    let buffer = platform.raw_buffer(8).build().unwrap();
    let shape = ItemShape::line(1);
    // The second launch is under grants of another buffer, or of the same one.
    let met = |independent: [bool; 2], is_other: bool, nanos: u64| {
        let mut grants = platform.acquire(platform.host().unwrap()).write(&buffer).wait().unwrap();
        grants.write_bytes(&buffer, &[0; 8]).unwrap();
        grants.release().unwrap();
        let mut grants = platform.acquire(device).read_write(&buffer).wait().unwrap();
        let block = grants.block(&buffer).unwrap().unwrap().clone();
        let fences = [0, 1].map(|sets| {
            let arguments = [
                LaunchArg::Buffer {
                    buffer: buffer.clone(),
                    access: Access::ReadWrite,
                    ranges: (0..8).into(),
                },
                LaunchArg::Scalar(Scalar::U32(sets)),
                LaunchArg::Scalar(Scalar::U64(nanos)),
            ];
            let launch = dml_core::Launch::new(&(0..1), &shape, &arguments);
            let launch = if independent[sets as usize] { launch.independent() } else { launch };
            if is_other && sets == 1 {
                let args = [
                    KernelArg::Block(&block),
                    KernelArg::Scalar(Scalar::U32(1)),
                    KernelArg::Scalar(Scalar::U64(nanos)),
                ];
                let (items, line) = (0..1, ItemShape::line(1));
                let one = dml_core::Launch::new(&items, &line, &[]).independent();
                // SAFETY: as above.
                return unsafe { kernel.launch_part(&args, &one) }.unwrap();
            }
            launcher.launch(&launch, &mut grants).unwrap()
        });
        for fence in fences {
            assert_eq!(fence.wait(), Ok(0));
        }
        grants.release().unwrap();
        let grants = platform.acquire(platform.host().unwrap()).read(&buffer).wait().unwrap();
        words(&grants.read_bytes(&buffer).unwrap())
    };
    // On three streams in turn. Of the same grants no two run at once.
    for _ in 0..4 {
        assert_eq!(met([true, true], true, 5_000_000_000), [1, 1]);
        for independent in [[true, true], [true, false], [false, true], [false, false]] {
            assert_eq!(met(independent, false, 50_000_000), [1, 0], "{independent:?}");
        }
    }
}

#[test]
fn a_kernel_is_told_its_first_item_and_its_end() {
    let Some(arena) = arena("a_kernel_is_told_its_first_item_and_its_end") else { return };
    let source = r#"extern "C" __global__ void told(unsigned long long* out, DmlItems items) {
        for (int axis = 0; axis < 3; ++axis) {
            out[axis] = items.offset[axis];
            out[axis + 3] = items.end[axis];
        }
    }"#;
    let (kernel, out) = (cuda(&arena).kernel(source, "told", "").unwrap(), alloc(&arena, 48));
    let launch = Grid::new([17, 200, 3], [5, 30, 1], [64, 1, 1]);
    // SAFETY: it writes six words, which the block has.
    let run = unsafe { kernel.launch(&[KernelArg::Block(out.block())], launch) };
    assert_eq!(run.unwrap().wait(), Ok(0));
    let told = take(&out, Span::new(0, 48));
    let told = told.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    assert!(told.eq([17, 200, 3, 22, 230, 4]));
}

/// The driver takes 65,535 rows of blocks at a time.
#[test]
fn a_launch_of_more_rows_than_the_driver_takes_covers_all_of_them_once() {
    let Some(arena) = arena("a_launch_of_more_rows_than_the_driver_takes_covers_all_of_them_once") else {
        return;
    };
    let source = r#"extern "C" __global__ void count(unsigned* out, unsigned long long end, DmlItems items) {
        unsigned long long y = items.y();
        if (y < end && threadIdx.x == 0) atomicAdd(&out[y], (unsigned)(y - items.offset[1]) + 1);
    }"#;
    let kernel = cuda(&arena).kernel(source, "count", "").unwrap();
    let (first, rows) = (5_u64, 2 * 65_535 + 7);
    let bytes = (first + rows) * 4;
    let out = alloc(&arena, bytes);
    put(&out, 0, &vec![0; bytes as usize]);
    let args = [KernelArg::Block(out.block()), KernelArg::Scalar(Scalar::U64(first + rows))];
    let launch = Grid::new([0, first, 0], [32, rows, 1], [32, 1, 1]);
    // SAFETY: it writes a word of each of its rows, all of which the block has.
    let run = unsafe { kernel.launch(&args, launch) };
    assert_eq!(run.unwrap().wait(), Ok(0));
    let found = words(&take(&out, Span::new(0, bytes)));
    // Every part counts its rows from its own first one.
    let expected = |row: u64| if row < first { 0 } else { ((row - first) % 65_535 + 1) as u32 };
    for (row, word) in (0..).zip(found) {
        assert_eq!(word, expected(row), "row {row}");
    }
    // Who is not told its items would compute the first part three times.
    let untold = r#"extern "C" __global__ void untold(unsigned* out) { out[0] = 1; }"#;
    let kernel = cuda(&arena).kernel(untold, "untold", "").unwrap();
    let launch = Grid::new([0; 3], [32, rows, 1], [32, 1, 1]);
    // SAFETY: it writes a word, which the block has.
    let error = unsafe { kernel.launch(&args[..1], launch) }.unwrap_err().to_string();
    assert!(error.contains("untold has no DmlItems"), "{error}");
}

#[test]
fn when_all_is_dropped_the_context_is_given_back() {
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let Some(arena) = with_cuda("when_all_is_dropped").and_then(home) else { return };
    let block = alloc(&arena, 8);
    put(&block, 0, &pattern(8, 1));
    let mut late = write_late(&arena, &block, 1, 1);
    while late.poll(Waker::noop()).is_pending() {
        std::thread::yield_now();
    }
    drop((late, block, arena));
    // Scratch memory is kept for a second.
    let is_active = || {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the call writes two numbers.
        let asked = unsafe { cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) };
        assert_eq!(asked, CUresult::CUDA_SUCCESS);
        active != 0
    };
    for _ in 0..300 {
        if !is_active() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("something keeps the device's context");
}

#[test]
fn a_gpu_is_opened_whole_and_only_where_it_is_wanted() {
    let Some((platform, device)) = with_gpu("a_gpu_is_opened_whole") else { return };
    let units = platform.device_desc(device).compute_units;
    drop(platform);
    let found = |options: DiscoverOptions| Platform::builder().discover_with(&options.offload(0));
    let refused = found(DiscoverOptions::default().limit("cuda:0", units - 1)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("cannot be divided"), "{refused}");
    assert!(found(DiscoverOptions::default().limit("cuda:0", units)).is_ok());
    let without = found(DiscoverOptions::default().only(["cpu"])).unwrap().build().unwrap();
    assert!(without.device("cuda:0").is_err());
}

/// The description of a GPU matches what another binding of the driver reports.
#[test]
fn a_gpu_is_described_as_its_driver_does() {
    let Some((platform, device)) = with_gpu("a_gpu_is_described_as_its_driver_does") else { return };
    let theirs = cudarc::driver::CudaContext::new(0).unwrap();
    let arena = home((platform.clone(), device)).unwrap();
    assert_eq!(cuda(&arena).capacity_bytes(), theirs.total_mem().unwrap() as u64);
    let (major, minor) = theirs.compute_capability().unwrap();
    assert_eq!(cuda(&arena).capability(), (major as u32, minor as u32));
    let desc = platform.device_desc(device);
    let mut version = 0;
    // SAFETY: the call writes a number.
    let told = unsafe { cuDriverGetVersion(&raw mut version) };
    assert_eq!(told, CUresult::CUDA_SUCCESS);
    assert_eq!(desc.driver, format!("CUDA {}.{}", version / 1000, version % 1000 / 10));
    assert_eq!(
        desc.compute_units,
        theirs.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).unwrap() as u32
    );
    let bus = theirs.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID).unwrap();
    let hardware = desc.hardware.as_deref().unwrap();
    assert!(
        hardware.starts_with("pci ") && hardware.contains(&format!(":{bus:02x}:")),
        "{hardware}, bus {bus}"
    );
    // A kernel of hardly any registers may have as many threads as the device has.
    let most = theirs.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK).unwrap();
    assert_eq!(cuda(&arena).kernel(LATE, "late", "").unwrap().max_local(), most as u64);
}

#[test]
fn a_launcher_says_what_did_not_begin() {
    let Some((platform, device)) = with_gpu("a_launcher_says_what_did_not_begin") else { return };
    let arena = platform.arena(platform.home(device).unwrap()).clone();
    let kernel = || cuda(&arena).kernel(LATE, "late", "").unwrap();
    // SAFETY: one thread writes the first word.
    let launcher = unsafe { CompiledLauncher::new(kernel()) };
    let buffer = platform.buffer_from(vec![7_u32; 2]).unwrap();
    let launch = |local_bytes| {
        let mut grants = platform.acquire(device).read_write(&buffer).wait().unwrap();
        let (raw, ranges) = (buffer.raw().clone(), (0..8).into());
        let arguments = [
            LaunchArg::Buffer { buffer: raw, access: Access::ReadWrite, ranges },
            LaunchArg::Scalar(Scalar::U32(8)),
            LaunchArg::Scalar(Scalar::U64(0)),
            LaunchArg::Local(local_bytes),
        ];
        let shape = ItemShape::line(1);
        let launched = launcher.launch(&dml_core::Launch::new(&(0..1), &shape, &arguments), &mut grants);
        let ended = launched.map(|fence| fence.wait().unwrap());
        grants.release().unwrap();
        ended
    };
    let refused = launch(1 << 30).unwrap_err();
    assert!(matches!(refused, LaunchError::NotStarted(_)), "{refused}");
    assert_eq!(launch(1 << 10).unwrap(), 0);
    assert_eq!(buffer.read().unwrap()[..], [8, 7]);
}

#[test]
fn page_locked_memory_has_a_limit_and_is_kept_for_later_buffers() {
    if with_gpu("page_locked_memory_has_a_limit_and_is_kept_for_later_buffers").is_none() {
        return;
    }
    const WORDS: u64 = 1 << 20;
    let options = DiscoverOptions::default().only(["cuda:0"]).sharing(Sharing::page_locked(2 * 4 * WORDS));
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let gpu = platform.device("cuda:0").unwrap();
    let pinned = platform.arena(platform.arena_named("cuda_pinned").unwrap());
    assert_eq!(pinned.downcast_ref::<HostArena>().unwrap().capacity_bytes(), 8 * WORDS);
    let filled = |seed: u32| {
        let data = platform.buffer::<u32>(WORDS).label(format!("buffer {seed}")).build().unwrap();
        let mut view = data.write()?;
        view.iter_mut().zip(0_u32..).for_each(|(word, index)| *word = index.wrapping_mul(31) ^ seed);
        let address = view.as_ptr().addr();
        view.release()?;
        // There, and back from there.
        platform.acquire(gpu).read_write(&data).wait()?.release()?;
        assert!(data.read()?.iter().zip(0_u32..).all(|(word, index)| *word == index.wrapping_mul(31) ^ seed));
        Ok::<_, dml_core::AcquireError>((data, address))
    };
    let [one, two] = [1, 2].map(|seed| filled(seed).unwrap());
    let full = filled(3).unwrap_err();
    assert!(full.is_out_of_memory() && full.to_string().contains("cuda_pinned"), "{full}");
    let (data, address) = one;
    drop(data);
    let (again, same) = filled(4).unwrap();
    assert_eq!(same, address, "what was freed is used again");
    drop((again, two));
    // What is idle makes room for what is larger.
    let large = platform.buffer::<u32>(2 * WORDS).build().unwrap();
    large.write().unwrap().release().unwrap();
    drop(large);
    // And for what is smaller, of which there are several.
    let small = [5, 6].map(|seed| filled(seed).unwrap());
    drop(small);
    let large = platform.buffer::<u32>(2 * WORDS).build().unwrap();
    large.write().unwrap().release().unwrap();
    // A vector of the application stays where it is.
    let vector: Vec<u32> = (0..WORDS as u32 / 4).map(|index| index.wrapping_mul(77)).collect();
    let (address, own) = (vector.as_ptr(), platform.buffer_from(vector).unwrap());
    platform.acquire(gpu).read_write(&own).wait().unwrap().release().unwrap();
    let back = own.into_vec().unwrap();
    assert_eq!(back.as_ptr(), address);
    assert!(back.into_iter().eq((0..WORDS as u32 / 4).map(|index| index.wrapping_mul(77))));
}

#[cfg(feature = "calibration")]
#[test]
fn links_of_page_locked_memory_are_measured() {
    let Some(_) = with_gpu("links_of_page_locked_memory_are_measured") else { return };
    let options = DiscoverOptions::default().only(["cuda:0"]).sharing(Sharing::page_locked(64 << 20));
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let names = |end| &*platform.arena(end).desc().name;
    let measured = dml_arenas::calibrate::measure(&platform);
    let mut ends: Vec<_> = measured.iter().map(|link| [names(link.from), names(link.to)]).collect();
    assert!(measured.iter().all(|link| link.table.is_ok()), "{measured:?}");
    ends.sort_unstable();
    let (gpu, main, pinned) = ("cuda:0", "main_mem", "cuda_pinned");
    assert_eq!(ends, [[gpu, pinned], [gpu, main], [pinned, gpu], [main, gpu]]);
}
