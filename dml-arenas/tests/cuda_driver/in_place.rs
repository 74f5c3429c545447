//! GPUs that use page-locked memory in place.

use super::{alloc, arena, cuda, home, nothing_is_left, platform_with};
use crate::driver::{StandIn, stand_in};
use crate::stand_in::discovered;
use dml_arenas::cuda::CudaKernel;
use dml_arenas::dlpack::ExportError;
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::{DiscoverError, DiscoverOptions, Sharing};
use dml_core::{AcquireError, AllocError, Buffer, DeviceId, Pattern, Platform, Scalar, record::Operation};

const LIMIT_BYTES: u64 = 8 << 20;
const HOST: DeviceId = DeviceId(0);
const PROGRAM: &str = "// made by hand\n.version 8.0\n.entry follow\n";

/// Page-locked memory, with this GPU bound to it.
fn bound(gpu: &str) -> DiscoverOptions {
    DiscoverOptions::default().sharing(Sharing::page_locked(LIMIT_BYTES).bind(gpu))
}

/// A platform with a GPU, and a kernel of it that copies words, each plus one.
struct Setup {
    driver: StandIn,
    platform: Platform,
    gpu: DeviceId,
    follow: CudaKernel,
}

impl Setup {
    fn new(options: DiscoverOptions) -> Self {
        let driver = stand_in();
        let platform = platform_with(options, &["cuda:0"]);
        let gpu = platform.device("cuda:0").unwrap();
        let follow = cuda(&arena(&platform, "cuda:0")).kernel(PROGRAM, "follow", "").unwrap();
        Self { driver, platform, gpu, follow }
    }

    fn buffer(&self, words: &[u32], pattern: Option<Pattern>) -> Buffer<u32> {
        let builder = self.platform.buffer::<u32>(words.len() as u64);
        let builder = pattern.into_iter().fold(builder, |builder, pattern| builder.pattern(pattern));
        let buffer = builder.build().unwrap();
        let mut view = buffer.write().unwrap();
        view.copy_from_slice(words);
        view.release().unwrap();
        buffer
    }

    /// Copies from one to the other, each word plus one. Returns the copies and bindings that it took to have
    /// both there.
    fn follow(&self, from: &Buffer<u32>, to: &Buffer<u32>) -> [u64; 2] {
        let counters = self.platform.counters();
        counters.reset();
        let grants = self.platform.acquire(self.gpu).read(from).write(to).wait().unwrap();
        let blocks = [from.raw(), to.raw()].map(|it| grants.block(it).unwrap().unwrap());
        let [from, to] = blocks.map(KernelArg::Block);
        let count = blocks[0].len() / 4;
        let args = [from, to, KernelArg::Scalar(Scalar::U64(count))];
        // SAFETY: both have so many words.
        let fence = unsafe { self.follow.launch(&args, Grid::line(0, count, 1)) }.unwrap();
        grants.in_flight(fence).wait().unwrap().release().unwrap();
        [self.moved(), counters.operation(Operation::Bind)]
    }

    /// The copies since the counters began.
    fn moved(&self) -> u64 {
        let moves = [Operation::Read, Operation::Write, Operation::Copy];
        moves.into_iter().map(|operation| self.platform.counters().operation(operation)).sum()
    }

    fn end<B>(self, buffers: B) {
        let Self { driver, platform, follow, .. } = self;
        drop((buffers, follow, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn a_bound_gpu_uses_buffers_where_they_are() {
    let setup = Setup::new(bound("cuda:0"));
    let [from, to] = [setup.buffer(&[1, 2, 3], None), setup.buffer(&[0; 3], None)];
    assert_eq!(setup.follow(&from, &to), [0, 2]);
    assert_eq!(*to.read().unwrap(), [2, 3, 4]);
    // To and fro, and nothing moves.
    for round in 0..3 {
        let mut view = from.read_write().unwrap();
        view[0] += 10;
        view.release().unwrap();
        assert_eq!(setup.follow(&from, &to), [0, 0]);
        assert_eq!(*to.read().unwrap(), [12 + 10 * round, 3, 4]);
    }
    let (copies, ()) = setup.driver.made_by("cuMemcpyHtoDAsync_v2", || {
        assert_eq!(setup.follow(&to, &from), [0, 0]);
    });
    assert_eq!((copies, setup.driver.made("cuMemcpyDtoHAsync_v2")), (0, 0));
    setup.end((from, to));
}

#[test]
fn a_gpu_that_may_be_bound_is_for_buffers_that_go_to_and_fro() {
    let setup = Setup::new(
        DiscoverOptions::default().sharing(Sharing::page_locked(LIMIT_BYTES).allow_binding("cuda:0")),
    );
    let (to_and_fro, once) = (Some(Pattern::ToAndFro), Some(Pattern::StreamedOnce));
    let from = setup.buffer(&[7; 5], once);
    let plain = setup.buffer(&[0; 5], None);
    let bound = setup.buffer(&[0; 5], to_and_fro);
    // The input is copied there once, and the result stays in storage of the GPU's own.
    assert_eq!(setup.follow(&from, &plain), [1, 0]);
    assert_eq!(setup.follow(&from, &bound), [0, 1]);
    setup.platform.counters().reset();
    assert_eq!(*bound.read().unwrap(), [8; 5]);
    assert_eq!(setup.moved(), 0);
    assert_eq!(*plain.read().unwrap(), [8; 5]);
    assert_eq!(setup.moved(), 1);
    setup.end((from, plain, bound));
}

/// Both have a half of it at once.
#[test]
fn the_processor_uses_other_bytes_meanwhile() {
    let setup = Setup::new(bound("cuda:0"));
    let [from, to] = [setup.buffer(&[1; 4], None), setup.buffer(&[0; 8], None)];
    let there = setup.platform.acquire(setup.gpu).read(&from).write(&to.range(0..4)).wait().unwrap();
    let mut here = setup.platform.acquire(HOST).write(&to.range(4..8)).try_now().unwrap();
    here.write_bytes(&to.range(4..8), &[9; 16]).unwrap();
    let held = setup.driver.hold();
    let blocks = [from.raw(), to.raw()].map(|it| there.block(&it.range(0..16)).unwrap().unwrap());
    let args = [KernelArg::Block(blocks[0]), KernelArg::Block(blocks[1]), KernelArg::Scalar(Scalar::U64(4))];
    // SAFETY: both have so many words.
    let fence = unsafe { setup.follow.launch(&args, Grid::line(0, 4, 1)) }.unwrap();
    here.release().unwrap();
    drop(held);
    there.in_flight(fence).wait().unwrap().release().unwrap();
    let nines = u32::from_ne_bytes([9; 4]);
    assert_eq!(*to.read().unwrap(), [2, 2, 2, 2, nines, nines, nines, nines]);
    setup.end((from, to));
}

/// A vector of the application is in ordinary memory.
#[test]
fn a_vector_that_is_moved_in_is_copied() {
    let setup = Setup::new(bound("cuda:0"));
    let from = setup.platform.buffer_from(vec![5_u32; 3]).unwrap();
    let to = setup.buffer(&[0; 3], None);
    let [copies, _] = setup.follow(&from, &to);
    assert_eq!((copies, to.read().unwrap().to_vec()), (1, vec![6; 3]));
    assert_eq!(from.into_vec().unwrap(), [5; 3]);
    setup.end(to);
}

/// Then it is ordinary memory, which the GPU does not reach.
#[test]
fn memory_that_is_not_locked_is_not_bound() {
    let setup = Setup::new(bound("cuda:0"));
    setup.driver.fail("cuMemHostRegister_v2", 0, 2);
    let buffer = setup.buffer(&[1; 3], None);
    let refused = setup.platform.acquire(setup.gpu).read(&buffer).wait().map(drop).unwrap_err();
    let AcquireError::Alloc { cause: AllocError::Unsupported { .. }, .. } = &refused else {
        panic!("{refused:?}")
    };
    assert!(refused.to_string().contains("not page-locked"), "{refused}");
    // The host has it all the same.
    assert_eq!(*buffer.read().unwrap(), [1; 3]);
    // It is not kept for the next one, which is locked.
    drop(buffer);
    let [from, to] = [setup.buffer(&[1; 3], None), setup.buffer(&[0; 3], None)];
    setup.follow(&from, &to);
    assert_eq!(*to.read().unwrap(), [2; 3]);
    setup.end((from, to));
}

/// What one GPU locks is for all of them.
#[test]
fn a_gpu_is_bound_also_when_another_one_is_lost() {
    let driver = stand_in();
    let platform = platform_with(bound("cuda:1"), &["cuda:0", "cuda:1"]);
    cuda(&arena(&platform, "cuda:0")).declare_lost("the test said so");
    let buffer = platform.buffer::<u32>(3).build().unwrap();
    let gpu = platform.device("cuda:1").unwrap();
    let grants = platform.acquire(gpu).write(&buffer).wait().unwrap();
    assert!(grants.block(&buffer).unwrap().unwrap().backing().is_some());
    grants.release().unwrap();
    drop((buffer, platform));
    nothing_is_left(driver);
}

/// All of it may be in use.
#[test]
fn memory_that_was_not_locked_counts_no_more_when_it_is_gone() {
    let setup = Setup::new(DiscoverOptions::default().sharing(Sharing::page_locked(LIMIT_BYTES)));
    for _ in 0..3 {
        setup.driver.fail("cuMemHostRegister_v2", 0, 2);
        let buffer = setup.platform.buffer::<u8>(LIMIT_BYTES).build().unwrap();
        buffer.write().unwrap().release().unwrap();
    }
    setup.end(());
}

#[test]
fn a_refused_address_and_a_lost_gpu_are_told() {
    let setup = Setup::new(bound("cuda:0"));
    let buffer = setup.buffer(&[1; 3], None);
    setup.driver.fail("cuMemHostGetDevicePointer_v2", 0, 801);
    let refused = setup.platform.acquire(setup.gpu).read(&buffer).wait().map(drop).unwrap_err();
    assert!(refused.to_string().contains("cuMemHostGetDevicePointer"), "{refused}");
    assert!(!setup.platform.arena(home(&setup.platform, "cuda:0")).is_lost());
    drop(setup.platform.acquire(setup.gpu).read(&buffer).wait().unwrap());
    cuda(&arena(&setup.platform, "cuda:0")).declare_lost("the test said so");
    let other = setup.buffer(&[4; 3], None);
    let lost = setup.platform.acquire(setup.gpu).read(&other).wait().map(drop).unwrap_err();
    assert!(lost.to_string().contains("device lost: cuda:0"), "{lost}");
    // What it shared is the host's.
    assert_eq!((buffer.read().unwrap().to_vec(), other.read().unwrap().to_vec()), (vec![1; 3], vec![4; 3]));
    setup.end((buffer, other));
}

#[test]
fn memory_of_the_host_is_no_tensor_of_the_gpu() {
    let setup = Setup::new(bound("cuda:0"));
    let buffer = setup.buffer(&[1; 3], None);
    let gpu = arena(&setup.platform, "cuda:0");
    let grants = setup.platform.acquire(setup.gpu).read(&buffer).wait().unwrap();
    let refused = cuda(&gpu).export::<u32>(grants, &buffer, &[3]).map(drop).unwrap_err();
    assert!(matches!(refused.cause, ExportError::Elsewhere { .. }), "{:?}", refused.cause);
    drop((refused, gpu));
    setup.end(buffer);
}

/// Its own storage is as ever, beside what it shares.
#[test]
fn storage_of_its_own_goes_to_and_from_what_is_shared() {
    let setup = Setup::new(bound("cuda:0"));
    let block = alloc(&arena(&setup.platform, "cuda:0"), 100);
    assert_eq!(super::fill(&block, 7).wait(), Ok(100));
    assert!(block.block().backing().is_none());
    let buffer = setup.buffer(&[1; 3], None);
    let grants = setup.platform.acquire(setup.gpu).read(&buffer).wait().unwrap();
    assert!(grants.block(&buffer).unwrap().unwrap().backing().is_some());
    grants.release().unwrap();
    setup.end((block, buffer));
}

#[test]
fn a_gpu_is_bound_to_page_locked_memory_alone() {
    stand_in();
    let told =
        discovered(DiscoverOptions::default().sharing(Sharing::bound("cuda:0")), &["cuda:0"]).map(drop);
    assert!(matches!(&told, Err(DiscoverError::BadBinding { device, .. }) if device == "cuda:0"), "{told:?}");
    // A device that is not opened is not bound.
    let options = bound("cuda:1");
    let told = discovered(options, &["cuda:0"]).map(drop);
    assert!(told.is_ok(), "{told:?}");
}
