//! OpenCL arenas on a real device. Without one the tests say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

mod common;

use common::{copy_in, copy_out, host, pattern, put, take, whole, with_opencl};
use dml_arenas::OpenClArena;
use dml_arenas::launch::{BuildCause, CompiledLauncher, Grid, KernelArg};
use dml_core::MapState;
use dml_core::internal::sync::Arc;
use dml_core::{
    Access, AllocError, Arena, DeviceId, DeviceKind, DeviceSet, HostMemory, ItemShape, LaunchArg, Launcher,
    OwnBlock, Platform, Scalar, Span,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The arena of `opencl:0`, or nothing and a word about it.
fn arena(test: &str) -> Option<Arc<dyn Arena>> {
    let (platform, device) = with_opencl(test)?;
    arena_of(&platform, device)
}

fn arena_of(platform: &Platform, device: DeviceId) -> Option<Arc<dyn Arena>> {
    platform.home(device).map(|arena| platform.arena(arena).clone())
}

fn opencl(arena: &Arc<dyn Arena>) -> &OpenClArena {
    (**arena).downcast_ref().expect("an OpenCL device has an OpenCL arena")
}

fn alloc(arena: &Arc<dyn Arena>, len: u64) -> OwnBlock {
    OwnBlock::alloc(arena, len).unwrap()
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
fn a_mapping_shows_the_block_and_takes_changes_back() {
    let Some(arena) = arena("a_mapping_shows_the_block_and_takes_changes_back") else { return };
    let cpu = DeviceId(0);
    let block = alloc(&arena, 4099);
    let before = pattern(4099, 1);
    put(&block, 0, &before);
    let mapped = MapState::Mapped(DeviceSet::of(cpu));
    assert_eq!(block.map(cpu, mapped), Ok(mapped));
    assert_eq!(block.seen().expect("a mapping for the host shows it the block"), before);
    let after = pattern(4099, 0x77);
    block.overwrite(0, &after);
    assert_eq!(block.unmap(MapState::Unmapped), Ok(MapState::Unmapped));
    assert!(block.seen().is_none());
    assert_eq!(take(&block, Span::new(0, 4099)), after);
    // A block that is still mapped can be given up.
    block.map(cpu, mapped).unwrap();
    block.free();
}

#[test]
#[should_panic(expected = "core bug")]
fn a_copy_into_a_mapped_block_is_a_bug_of_core() {
    let Some(arena) = arena("a_copy_into_a_mapped_block_is_a_bug_of_core") else {
        panic!("core bug: not run")
    };
    let block = alloc(&arena, 8);
    block.map(DeviceId(0), MapState::Mapped(DeviceSet::of(DeviceId(0)))).unwrap();
    let _ = copy_in(&block, 0, &[1]);
}

#[test]
#[should_panic(expected = "another arena")]
fn a_block_of_another_arena_is_a_bug_of_core() {
    let Some((platform, device)) = with_opencl("a_block_of_another_arena_is_a_bug_of_core") else {
        panic!("not run: another arena")
    };
    let block = alloc(&platform.arenas()[0], 8).asked_of(&arena_of(&platform, device).unwrap());
    let _ = copy_in(&block, 0, &[1]);
}

/// It marks its place in a picture of `width` columns, and with the place in its group.
const MARK: &str = "
    __kernel void mark(__global uint* out, uint width, ulong end) {
        size_t x = get_global_id(0), y = get_global_id(1);
        if (x < width && y < end) out[y * width + x] = (uint)(y * 65536 + x * 256 + get_local_id(1) * 16 + get_local_id(0));
    }";

#[test]
fn a_kernel_covers_its_grid_and_no_others() {
    let Some(arena) = arena("a_kernel_covers_its_grid_and_no_others") else { return };
    let kernel = opencl(&arena).kernel(MARK, "mark", "").unwrap();
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
        let end = (first + rows) as u64;
        let args = [
            KernelArg::Block(to.block()),
            KernelArg::Scalar(Scalar::U32(width as u32)),
            KernelArg::Scalar(Scalar::U64(end)),
        ];
        let [offset, items] = [[0, first], [width, rows]].map(|sizes| sizes.map(|size| size as u64));
        let grid = Grid::new(offset, items, local.map(|size| size as u64));
        // SAFETY: the kernel ends at column `width` and at row `end`, at most `height`, all of which the
        // block has.
        let fence = unsafe { kernel.launch(&args, grid) }.unwrap();
        assert_eq!(fence.wait(), Ok(0));
        let found = words(&take(&to, Span::new(0, (width * height * 4) as u64)));
        assert_eq!(found, expected, "{first} {rows} {local:?}");
    }
    let endless = Grid::new([0, 1], [1, u64::MAX], [1, 8]);
    let args =
        [KernelArg::Block(to.block()), KernelArg::Scalar(Scalar::U32(1)), KernelArg::Scalar(Scalar::U64(0))];
    // SAFETY: the launch is refused, and with an end of zero the kernel would touch nothing.
    let refused = unsafe { kernel.launch(&args, endless) }.unwrap_err();
    assert!(refused.to_string().contains("mark"), "{refused}");
}

/// It touches no word past the last of its items, which the caller has within both blocks.
const SCALE: &str = "
    __kernel void scale(__global const uint* in, __global uint* out, uint factor, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) out[i] = in[i] * factor + (uint)i;
    }";

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_kernel_covers_its_items_and_no_others() {
    let Some(arena) = arena("a_kernel_covers_its_items_and_no_others") else { return };
    let kernel = opencl(&arena).kernel(SCALE, "scale", "").unwrap();
    assert_eq!(kernel.name(), "scale");
    let input = pattern(4 * 5000, 9);
    let (from, to) = (alloc(&arena, 20_000), alloc(&arena, 20_000));
    put(&from, 0, &input);
    for (offset, items, local) in
        [(0, 5000, 64), (17, 1001, 64), (4999, 1, 128), (3, 7, 0), (100, 900, 1), (5, 0, 8)]
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
    let args = [from.block(), to.block()].map(KernelArg::Block);
    let args = [args[0], args[1], KernelArg::Scalar(Scalar::U32(7)), KernelArg::Scalar(Scalar::U64(1000))];
    let launch = Grid::line(100, 900, 1 << 40);
    // SAFETY: as above.
    let refused = unsafe { kernel.launch(&args, launch) }.map(drop).unwrap_err().to_string();
    assert!(refused.contains("kernel scale cannot run") && refused.contains("allows"), "{refused}");
}

#[test]
fn a_command_sees_what_ended_before_it_in_another_queue() {
    let Some(arena) = arena("a_command_sees_what_ended_before_it_in_another_queue") else { return };
    let kernel = opencl(&arena).kernel(SCALE, "scale", "").unwrap();
    let len = 4 << 20;
    let (from, to) = (alloc(&arena, len), alloc(&arena, len));
    let (input, mut output) = (host(&pattern(len as usize, 5)), HostMemory::zeroed(len).unwrap());
    assert_eq!(from.copy_in(0, &input, whole(&input)).unwrap().wait(), Ok(len));
    let (words_in, words_out) = (KernelArg::Block(from.block()), KernelArg::Block(to.block()));
    let args =
        [words_in, words_out, KernelArg::Scalar(Scalar::U32(3)), KernelArg::Scalar(Scalar::U64(len / 4))];
    // SAFETY: the kernel ends at word `len / 4`, the last of both blocks.
    let run = unsafe { kernel.launch(&args, Grid::line(0, len / 4, 64)) }.unwrap();
    assert_eq!(run.wait(), Ok(0));
    assert_eq!(copy_out(&to, 0, &mut output).unwrap().wait(), Ok(len));
    let expected =
        words(input.bytes()).into_iter().zip(0_u32..).map(|(word, i)| word.wrapping_mul(3).wrapping_add(i));
    assert!(words(output.bytes()).into_iter().eq(expected));
}

#[test]
fn threads_that_share_a_kernel_keep_their_own_arguments() {
    let Some(arena) = arena("threads_that_share_a_kernel_keep_their_own_arguments") else { return };
    let kernel = opencl(&arena).kernel(SCALE, "scale", "").unwrap();
    let from = alloc(&arena, 4096);
    let input = pattern(4096, 2);
    put(&from, 0, &input);
    std::thread::scope(|scope| {
        for factor in 1..5 {
            let (arena, kernel, from, input) = (&arena, &kernel, &from, &input);
            scope.spawn(move || {
                let to = alloc(arena, 4096);
                for _ in 0..500 {
                    let args = [
                        KernelArg::Block(from.block()),
                        KernelArg::Block(to.block()),
                        KernelArg::Scalar(Scalar::U32(factor)),
                        KernelArg::Scalar(Scalar::U64(1024)),
                    ];
                    // SAFETY: the kernel ends at word 1024, the last of both blocks.
                    let run = unsafe { kernel.launch(&args, Grid::line(0, 1024, 32)) };
                    run.unwrap().wait().unwrap();
                    let got = words(&take(&to, Span::new(0, 4096)));
                    let wanted = words(input)
                        .into_iter()
                        .zip(0..)
                        .map(|(word, i)| word.wrapping_mul(factor).wrapping_add(i));
                    assert!(got.into_iter().eq(wanted), "factor {factor}");
                }
            });
        }
    });
}

#[test]
fn scalars_of_every_type_arrive() {
    let Some(arena) = arena("scalars_of_every_type_arrive") else { return };
    let source = "__kernel void put(__global double* o, int a, uint b, ulong c, float d) {
        if (get_global_id(0) == 0) { o[0] = a; o[1] = b; o[2] = c; o[3] = d; } }";
    let kernel = opencl(&arena).kernel(source, "put", "").unwrap();
    let block = alloc(&arena, 32);
    let args = [
        KernelArg::Block(block.block()),
        KernelArg::Scalar(Scalar::I32(-3)),
        KernelArg::Scalar(Scalar::U32(4_000_000_000)),
        KernelArg::Scalar(Scalar::U64(1 << 40)),
        KernelArg::Scalar(Scalar::F32(0.5)),
    ];
    // SAFETY: the kernel writes four words of eight bytes, which the block has.
    let run = unsafe { kernel.launch(&args, Grid::line(0, 1, 1)) };
    run.unwrap().wait().unwrap();
    let bytes = take(&block, Span::new(0, 32));
    let got: Vec<_> =
        bytes.chunks_exact(8).map(|eight| f64::from_ne_bytes(eight.try_into().unwrap())).collect();
    assert_eq!(got, [-3.0, 4e9, (1_u64 << 40) as f64, 0.5]);
}

#[test]
fn arguments_that_do_not_fit_are_refused_by_index() {
    let Some((platform, device)) = with_opencl("arguments_that_do_not_fit_are_refused_by_index") else {
        return;
    };
    let arena = arena_of(&platform, device).unwrap();
    let kernel = opencl(&arena).kernel(SCALE, "scale", "").unwrap();
    let block = alloc(&arena, 64);
    let foreign = alloc(&platform.arenas()[0], 64);
    let one = Grid::line(0, 1, 1);
    let (b, u, l) = (
        KernelArg::Block(block.block()),
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(1)),
    );
    let launch = |args: &[KernelArg<'_>], launch| {
        // SAFETY: were it launched, the kernel would end at word 1 of the blocks, which have 16.
        unsafe { kernel.launch(args, launch) }
    };
    let refusal = |args: &[KernelArg<'_>]| launch(args, one).unwrap_err().to_string();
    assert!(refusal(&[b, b, u]).contains("kernel scale takes 4 arguments, not 3"));
    assert!(refusal(&[b, l, u, l]).contains("argument 1 of 4 of kernel scale: takes a pointer, not ulong"));
    assert!(
        refusal(&[b, b, KernelArg::Scalar(Scalar::F32(1.0)), l])
            .contains("argument 2 of 4 of kernel scale: takes uint, not float")
    );
    assert!(refusal(&[b, b, u, b]).contains("argument 3 of 4 of kernel scale: takes ulong, not a buffer"));
    assert!(refusal(&[KernelArg::Block(foreign.block()), b, u, l]).contains("argument 0 of 4"));
    let endless = Grid::line(1, u64::MAX, 8);
    let past_the_end = Grid::line(u64::MAX - 15, 17, 8);
    for uncountable in [endless, past_the_end] {
        let error = launch(&[b, b, u, l], uncountable).unwrap_err().to_string();
        assert!(error.contains("exceed what can be counted"), "{uncountable:?}: {error}");
    }
}

#[test]
fn a_source_that_does_not_compile_shows_the_log() {
    let Some(arena) = arena("a_source_that_does_not_compile_shows_the_log") else { return };
    let arena = opencl(&arena);
    let error =
        arena.kernel("__kernel void k(__global int* x) { x[0] = undeclared_name; }", "k", "").unwrap_err();
    let BuildCause::Compile(log) = &error.cause else { panic!("{error}") };
    assert_eq!(error.kernel, "k");
    assert!(log.contains("undeclared_name"), "{log}");
    for (source, name) in [(SCALE, "stretch"), ("", "k")] {
        let missing = arena.kernel(source, name, "").unwrap_err();
        assert!(matches!(missing.cause, BuildCause::NoKernel(_)), "{missing}");
    }
    let zero = arena.kernel("a\0b", "k", "").unwrap_err();
    assert_eq!(zero.cause, BuildCause::ZeroCharacter("the source"));
    assert!(arena.kernel(SCALE, "scale", "-DUNUSED=1").is_ok());
}

/// Programs are compiled once, and those of one source with other options are other programs.
#[test]
fn a_program_is_that_of_its_options() {
    const SOURCE: &str = "__kernel void number(__global uint* out) { out[0] = NUMBER; }";
    let Some(arena) = arena("a_program_is_that_of_its_options") else { return };
    let block = alloc(&arena, 4);
    for number in [7_u32, 8, 7] {
        let kernel = opencl(&arena).kernel(SOURCE, "number", &format!("-DNUMBER={number}")).unwrap();
        let launch = Grid::line(0, 1, 1);
        // SAFETY: one item writes the block's four bytes, and no other work uses them.
        unsafe { kernel.launch(&[KernelArg::Block(block.block())], launch) }.unwrap().wait().unwrap();
        assert_eq!(words(&take(&block, Span::new(0, 4))), [number]);
    }
}

#[test]
fn lack_of_memory_is_an_error_of_alloc() {
    let Some(arena) = arena("lack_of_memory_is_an_error_of_alloc") else { return };
    let limit = opencl(&arena).max_alloc_bytes();
    let error = arena.alloc(limit + 1).unwrap_err();
    assert!(
        matches!(error, AllocError::TooLarge { bytes, limit_bytes, .. } if bytes == limit + 1 && limit_bytes == limit)
    );
    // Largest blocks until the device is full; the standard makes such a block at least a quarter of the
    // memory.
    let mut blocks = Vec::new();
    let error = (0..64).find_map(|_| arena.alloc(limit).map(|block| blocks.push(block)).err());
    let error = error.expect("the device is full at some point");
    assert!(error.is_out_of_memory(), "{error}");
    assert!(!blocks.is_empty());
    drop(blocks);
    assert!(arena.alloc(limit).is_ok(), "the memory is there again");
}

#[test]
fn a_block_without_bytes_is_legal() {
    let Some(arena) = arena("a_block_without_bytes_is_legal") else { return };
    let block = alloc(&arena, 0);
    assert!(block.block().is_empty());
    put(&block, 0, &[]);
    block.map(DeviceId(0), MapState::Mapped(DeviceSet::of(DeviceId(0)))).unwrap();
    assert!(block.seen().expect("a mapping for the host shows it the block").is_empty());
    block.unmap(MapState::Unmapped).unwrap();
}

/// What is freed is not what a kernel uses. A device may compute for long, or hang.
#[test]
fn whoever_frees_a_buffer_does_not_wait_for_kernels() {
    let Some((platform, device)) = with_opencl("whoever_frees_a_buffer_does_not_wait_for_kernels") else {
        return;
    };
    let arena = arena_of(&platform, device).unwrap();
    let source = "__kernel void spin(__global uint* out, uint turns) {
        uint x = 1;
        for (uint i = 0; i < turns; ++i) x = x * 1664525u + (x >> 3) + i;
        out[get_global_id(0)] = x;
    }";
    // SAFETY: its one work-item writes the word that its buffer has.
    let launcher = unsafe { CompiledLauncher::new(opencl(&arena).kernel(source, "spin", "").unwrap()) };
    let of_kernel = platform.raw_buffer(4).build().unwrap();
    let run = |turns: u32| {
        let mut grants = platform.acquire(device).write(&of_kernel).wait().unwrap();
        let arguments = [
            LaunchArg::Buffer {
                buffer: of_kernel.clone(),
                access: Access::WriteInvalidate,
                ranges: (0..4).into(),
            },
            LaunchArg::Scalar(Scalar::U32(turns)),
        ];
        let (items, shape) = (0..1, ItemShape::line(1));
        let launch = dml_core::Launch::new(&items, &shape, &arguments);
        let fence = launcher.launch(&launch, &mut grants).unwrap();
        (fence, grants)
    };
    // It is compiled before.
    let (fence, grants) = run(1);
    fence.wait().unwrap();
    grants.release().unwrap();
    let mapped = alloc(&arena, 4096);
    let cpu = platform.host().unwrap();
    mapped.map(cpu, MapState::Mapped(DeviceSet::of(cpu))).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let (fence, grants) = run(1 << 28);
    let there = ended.clone();
    let waiting = std::thread::spawn(move || {
        fence.wait().unwrap();
        there.store(true, Ordering::SeqCst);
    });
    let begun = Instant::now();
    let is_ended = || ended.load(Ordering::SeqCst);
    let made = alloc(&arena, 4096);
    assert!(!is_ended(), "the kernel takes most of a second, and not {:?}", begun.elapsed());
    drop(made);
    drop(mapped);
    // NVIDIA's driver itself frees memory only when all kernels have ended.
    let is_gpu = platform.device_desc(device).kind == DeviceKind::Gpu;
    assert!(is_gpu || !is_ended(), "the kernel takes most of a second, and not {:?}", begun.elapsed());
    waiting.join().unwrap();
    grants.release().unwrap();
}
