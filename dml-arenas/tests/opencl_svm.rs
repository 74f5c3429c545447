//! Fine-grained shared virtual memory: the host and an OpenCL device use one buffer at the same time, in
//! place.
//!
//! Without a device that offers it the tests say so and pass, unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

mod common;

use common::{with_opencl, with_opencl_options};
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, OpenClArena, Sharing};
use dml_core::{Buffer, DeviceId, Grants, InFlight, Platform, Scalar, record::Operation};

/// Adds `add` and the item's index to the words from `start` to `end`.
const ADD: &str = "
    __kernel void add(__global uint* data, uint add, ulong start, ulong end) {
        size_t i = start + get_global_id(0);
        if (i < end) data[i] += add + (uint)i;
    }";

const HOST: DeviceId = DeviceId(0);

fn options() -> DiscoverOptions {
    DiscoverOptions::default().offload(0).only(["opencl:0"]).sharing(Sharing::fine_grained("opencl:0"))
}

struct Fine {
    platform: Platform,
    device: DeviceId,
    kernel: OpenClKernel,
}

impl Fine {
    fn new(test: &str) -> Option<Self> {
        with_opencl(test)?;
        let (platform, device) = with_opencl_options(test, &options())?;
        let arena = platform.arena(platform.home(device)?).downcast_ref::<OpenClArena>()?;
        let kernel = arena.kernel(ADD, "add", "").unwrap();
        Some(Self { platform, device, kernel })
    }

    fn grants(&self, data: &Buffer<u32>, start: u64, end: u64) -> Grants {
        self.platform.acquire(self.device).read_write(&data.range(start..end)).try_now().unwrap()
    }

    /// Begins to add on the device.
    fn begin(&self, data: &Buffer<u32>, add: u32, start: u64, end: u64) -> InFlight {
        let grants = self.grants(data, start, end);
        let block = grants.block(&data.range(start..end)).unwrap().unwrap();
        let [from, to] = [start, end].map(|bound| KernelArg::Scalar(Scalar::U64(bound)));
        let args = [KernelArg::Block(block), KernelArg::Scalar(Scalar::U32(add)), from, to];
        let launch = Grid::line(0, end - start, 0);
        // SAFETY: the kernel touches the words that the grant names, and those alone; the grant is kept until
        // its end.
        let fence = unsafe { self.kernel.launch(&args, launch) }.unwrap();
        grants.in_flight(fence)
    }

    /// Adds on the host, to words that no other kernel uses.
    fn add_here(&self, data: &Buffer<u32>, add: u32, start: u64, end: u64) {
        let range = data.range(start..end);
        let mut grants = self.platform.acquire(HOST).read_write(&range).try_now().unwrap();
        let words = grants.slice_mut::<u32>(&range).unwrap().iter_mut();
        words
            .zip(start as u32..)
            .for_each(|(word, index)| *word = word.wrapping_add(add).wrapping_add(index));
        grants.release().unwrap();
    }

    fn bytes_moved(&self) -> u64 {
        self.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum()
    }

    fn count(&self, operation: Operation) -> u64 {
        self.platform.counters().operation(operation)
    }
}

/// Updates the expected words from `start` to `end` as one addition does.
fn added(words: &mut [u32], add: u32, start: u64, end: u64) {
    let part = words[start as usize..end as usize].iter_mut();
    part.zip(start as u32..).for_each(|(word, index)| *word = word.wrapping_add(add).wrapping_add(index));
}

#[test]
fn host_and_device_use_one_buffer_at_once_and_no_byte_moves() {
    const WORDS: u64 = 10_001;
    let Some(fine) = Fine::new("host_and_device_use_one_buffer_at_once_and_no_byte_moves") else { return };
    for device_first in [true, false] {
        let data: Buffer<u32> = fine.platform.buffer(WORDS).zeroed().build().unwrap();
        let mut expected = vec![0; WORDS as usize];
        for turn in 1..40_u32 {
            // The border lies within a cache line, and wanders.
            let border = u64::from(turn) * 237 + 1;
            let (there, here) = match device_first {
                true => ((0, border), (border, WORDS)),
                false => ((border, WORDS), (0, border)),
            };
            // Neither request waits: each is granted while the other holds its words.
            let flight = fine.begin(&data, turn, there.0, there.1);
            fine.add_here(&data, turn + 7, here.0, here.1);
            flight.wait().unwrap().release().unwrap();
            added(&mut expected, turn, there.0, there.1);
            added(&mut expected, turn + 7, here.0, here.1);
            if turn % 7 == 0 {
                assert!(*data.read().unwrap() == expected, "after turn {turn}");
            }
        }
        assert!(*data.read().unwrap() == expected);
    }
    assert_eq!(fine.bytes_moved(), 0);
    for operation in [Operation::Map, Operation::Unmap, Operation::Read, Operation::Write, Operation::Copy] {
        assert_eq!(fine.count(operation), 0, "{operation:?}");
    }
}

#[test]
fn a_vector_of_the_application_is_copied_and_comes_back() {
    const WORDS: u64 = 5_003;
    let Some(fine) = Fine::new("a_vector_of_the_application_is_copied_and_comes_back") else { return };
    let mut expected: Vec<u32> = (0..WORDS as u32).map(|index| index.wrapping_mul(2_654_435_761)).collect();
    let data = fine.platform.buffer_from(expected.clone()).unwrap();
    for turn in 1..5_u32 {
        fine.platform.acquire(fine.device).read_write(&data).wait().unwrap().release().unwrap();
        fine.begin(&data, turn, 3, WORDS - 5).wait().unwrap().release().unwrap();
        added(&mut expected, turn, 3, WORDS - 5);
        assert!(*data.read().unwrap() == expected);
        fine.add_here(&data, turn, 1, WORDS / 2);
        added(&mut expected, turn, 1, WORDS / 2);
    }
    assert!(fine.bytes_moved() > 0);
    assert!(data.into_vec().unwrap() == expected);
}

#[test]
fn what_cannot_be_fine_grained_is_an_error_that_names_it() {
    if with_opencl("what_cannot_be_fine_grained_is_an_error_that_names_it").is_none() {
        return;
    }
    let refused = |options: DiscoverOptions| match Platform::builder().discover_with(&options.offload(0)) {
        Err(DiscoverError::BadSharing { device, reason }) => (device, reason),
        other => panic!("{other:?}"),
    };
    let (device, reason) = refused(DiscoverOptions::default().sharing(Sharing::fine_grained("cpu")));
    assert!(device == "cpu" && reason.contains("opencl"), "{device}: {reason}");
    let fine_grained = || Sharing::fine_grained("opencl:0");
    for sharing in [fine_grained().bind("opencl:0"), fine_grained().allow_binding("opencl:0")] {
        let (device, reason) = refused(options().sharing(sharing));
        assert!(device == "opencl:0" && reason.contains("main memory"), "{device}: {reason}");
    }
    let unknown = Platform::builder()
        .discover_with(&DiscoverOptions::default().offload(0).sharing(Sharing::fine_grained("opencl:99")));
    assert!(matches!(unknown, Err(DiscoverError::UnknownDevice { name, .. }) if name == "opencl:99"));
}
