//! OpenCL devices bound to main memory: one storage, handed over between host and device.
//!
//! Without a device the tests say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

mod common;

use common::{with_opencl, with_opencl_options};
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, OpenClArena, Sharing};
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, Arena, Buffer, DeviceId, FreeRefusal, Pattern, Platform, Scalar, record::Operation,
};
use std::time::Duration;

/// Adds `add` and the item's index to the words from `start` to `end`.
const ADD: &str = "
    __kernel void add(__global uint* data, uint add, ulong start, ulong end) {
        size_t i = start + get_global_id(0);
        if (i < end) data[i] += add + (uint)i;
    }";

const HOST: DeviceId = DeviceId(0);

struct Bound {
    platform: Platform,
    device: DeviceId,
    kernel: OpenClKernel,
}

impl Bound {
    fn new(test: &str) -> Option<Self> {
        Self::with(test, |options| options.sharing(Sharing::bound("opencl:0")))
    }

    fn with(test: &str, bind: impl FnOnce(DiscoverOptions) -> DiscoverOptions) -> Option<Self> {
        with_opencl(test)?;
        let options = DiscoverOptions::default().only(["opencl:0"]);
        let (platform, device) = with_opencl_options(test, &bind(options))?;
        let arena: &Arc<dyn Arena> = platform.arena(platform.home(device)?);
        let kernel = (**arena).downcast_ref::<OpenClArena>()?.kernel(ADD, "add", "").unwrap();
        Some(Self { platform, device, kernel })
    }

    /// Adds on the device.
    fn add(&self, data: &Buffer<u32>, add: u32, start: u64, end: u64) {
        let words = data.range(start..end);
        let grants = self.platform.acquire(self.device).read_write(&words).wait().unwrap();
        let args = [
            KernelArg::Block(grants.block(&words).unwrap().unwrap()),
            KernelArg::Scalar(Scalar::U32(add)),
            KernelArg::Scalar(Scalar::U64(start)),
            KernelArg::Scalar(Scalar::U64(end)),
        ];
        let launch = Grid::line(0, end - start, 0);
        // SAFETY: the kernel touches the words that the grant names, and those alone; the grant is kept until
        // its end.
        let fence = unsafe { self.kernel.launch(&args, launch) }.unwrap();
        grants.in_flight(fence).wait().unwrap().release().unwrap();
    }

    fn bytes_moved(&self) -> u64 {
        self.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum()
    }

    fn count(&self, operation: Operation) -> u64 {
        self.platform.counters().operation(operation)
    }
}

/// What the words are after the device has added `add` to those from `start` to `end`.
fn added(words: &mut [u32], add: u32, start: u64, end: u64) {
    for (index, word) in words.iter_mut().enumerate().take(end as usize).skip(start as usize) {
        *word = word.wrapping_add(add).wrapping_add(index as u32);
    }
}

#[test]
fn the_applications_vector_is_used_in_place() {
    let Some(bound) = Bound::new("the_applications_vector_is_used_in_place") else { return };
    for len in [1, 3, 1_000, 1_048_577_u64] {
        let data: Vec<u32> = (0..len as u32).map(|word| word.wrapping_mul(2_654_435_761)).collect();
        let (address, mut expected) = (data.as_ptr(), data.clone());
        bound.platform.counters().reset();
        let buffer = bound.platform.buffer_from(data).unwrap();
        for round in 0..5 {
            bound.add(&buffer, round, 0, len);
            added(&mut expected, round, 0, len);
            assert!(*buffer.read().unwrap() == expected[..], "{len} words, round {round}");
            // The host writes, and the device sees it.
            let middle = len as usize / 2;
            let mut words = buffer.read_write().unwrap();
            words[middle] = 77;
            words.release().unwrap();
            expected[middle] = 77;
        }
        assert_eq!(bound.bytes_moved(), 0);
        let moves = [Operation::Read, Operation::Write, Operation::Copy, Operation::Fill, Operation::Alloc];
        assert_eq!(moves.map(|operation| bound.count(operation)), [0; 5]);
        assert_eq!((bound.count(Operation::Bind), bound.count(Operation::Map)), (1, 5));
        assert_eq!(bound.count(Operation::Unmap), 4, "the first use needs none");
        let back = buffer.into_vec().unwrap();
        assert_eq!(back.as_ptr(), address);
        assert!(back == expected);
    }
}

#[test]
fn storage_that_dml_makes_is_shared_as_well() {
    let Some(bound) = Bound::new("storage_that_dml_makes_is_shared_as_well") else { return };
    let zeros = bound.platform.buffer::<u32>(5_000).zeroed().build().unwrap();
    bound.add(&zeros, 9, 100, 4_900);
    let mut expected = vec![0; 5_000];
    added(&mut expected, 9, 100, 4_900);
    assert!(*zeros.read().unwrap() == expected[..]);
    assert_eq!((bound.count(Operation::Alloc), bound.count(Operation::Bind)), (1, 1));
    let main = bound.platform.home(HOST).unwrap();
    let refused = zeros.raw().free(main).unwrap_err();
    assert!(
        matches!(refused, AcquireError::NotFreeable { reason: FreeRefusal::StillBound, .. }),
        "{refused}"
    );
}

#[test]
fn host_and_device_take_turns() {
    let Some(bound) = Bound::new("host_and_device_take_turns") else { return };
    let data = bound.platform.buffer_from(vec![0_u32; 2_000]).unwrap();
    bound.add(&data, 1, 0, 2_000);
    let on_host = bound.platform.acquire(HOST).read(&data.range(0..10)).wait().unwrap();
    // The device would need the storage, which the host uses; not even other words are free.
    let range = data.range(1_000..1_010);
    let busy = bound.platform.acquire(bound.device).read(&range);
    assert!(busy.wait_timeout(Duration::from_millis(20)).is_err());
    drop(on_host);
    bound.add(&data, 1, 1_000, 1_010);
    assert_eq!(data.read().unwrap()[1_001], 1 + 1_001 + 1 + 1_001);
}

#[test]
fn threads_hand_it_over_and_nothing_is_lost() {
    let Some(bound) = Bound::new("threads_hand_it_over_and_nothing_is_lost") else { return };
    let data = bound.platform.buffer_from(vec![0_u32; 4_000]).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (bound, data) = (&bound, &data);
            let (start, end) = (part * 1_000, (part + 1) * 1_000);
            scope.spawn(move || {
                for round in 0..50 {
                    if part % 2 == 0 {
                        bound.add(data, round, start, end);
                    } else {
                        let words = data.range(start..end);
                        let mut grants = bound.platform.acquire(HOST).read_write(&words).wait().unwrap();
                        let words = grants.slice_mut::<u32>(&words).unwrap();
                        words.iter_mut().zip(start as u32..).for_each(|(word, index)| *word += round + index);
                        grants.release().unwrap();
                    }
                }
            });
        }
    });
    let mut expected = vec![0; 4_000];
    (0..50).for_each(|round| added(&mut expected, round, 0, 4_000));
    assert!(*data.read().unwrap() == expected[..]);
    assert_eq!(bound.bytes_moved(), 0);
}

/// What is computed does not depend on the hints, and what is moved does.
#[test]
fn a_binding_on_request_is_for_the_buffers_that_ask() {
    const TEST: &str = "a_binding_on_request_is_for_the_buffers_that_ask";
    let Some(bound) =
        Bound::with(TEST, |options| options.sharing(Sharing::default().allow_binding("opencl:0")))
    else {
        return;
    };
    let both = [HOST, bound.device];
    let make = || bound.platform.buffer::<u32>(1000);
    for (shares, buffer) in [
        (true, make().used_by(both).pattern(Pattern::ToAndFro).build().unwrap()),
        (false, make().build().unwrap()),
        (false, make().used_by(both).pattern(Pattern::StreamedOnce).build().unwrap()),
    ] {
        let (before, bindings) = (bound.bytes_moved(), bound.count(Operation::Bind));
        let mut expected: Vec<u32> = (0..1000).map(|index| index * 7 + 3).collect();
        let mut view = buffer.write().unwrap();
        view.copy_from_slice(&expected);
        view.release().unwrap();
        for turn in 1..=3 {
            bound.add(&buffer, turn, 5, 990);
            added(&mut expected, turn, 5, 990);
            assert_eq!(*buffer.read().unwrap(), expected);
        }
        assert_eq!(bound.bytes_moved() == before, shares, "{shares}");
        assert_eq!(bound.count(Operation::Bind) - bindings, u64::from(shares));
    }
}

#[test]
fn a_buffer_without_bytes_can_be_bound() {
    let Some(bound) = Bound::new("a_buffer_without_bytes_can_be_bound") else { return };
    let empty = bound.platform.buffer_from(Vec::<u32>::new()).unwrap();
    let grants = bound.platform.acquire(bound.device).read_write(&empty).wait().unwrap();
    grants.release().unwrap();
    assert!(empty.into_vec().unwrap().is_empty());
}

#[test]
fn only_opencl_devices_that_there_are_can_be_bound() {
    let discover = |device: &str| {
        let options = DiscoverOptions::default().offload(0);
        let discover = |options| Platform::builder().discover_with(&options).map(drop);
        let allowed = discover(options.clone().sharing(Sharing::default().allow_binding(device)));
        let bound = discover(options.sharing(Sharing::bound(device)));
        assert_eq!(allowed, bound, "{device}");
        bound
    };
    assert!(matches!(discover("cpu"), Err(DiscoverError::BadBinding { device, .. }) if device == "cpu"));
    let unknown = discover("opencl:99");
    assert!(matches!(unknown, Err(DiscoverError::UnknownDevice { name, .. }) if name == "opencl:99"));
    if with_opencl("only_opencl_devices_that_there_are_can_be_bound").is_some() {
        assert_eq!(discover("opencl:0"), Ok(()));
    }
}
