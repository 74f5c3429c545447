//! Links: what moves by which calls, pages that are locked for it, and devices that others lie between.

use super::{home, nothing_is_left, platform_with};
use crate::common::pattern;
use crate::driver::{StandIn, code, stand_in};
use crate::stand_in::reads_by;
use dml_arenas::{DiscoverOptions, Mechanisms, Sharing};
use dml_core::{Allocation, Buffer, LinkId, Platform};

const MIB: usize = 1 << 20;

fn use_on(platform: &Platform, device: &str, data: &Buffer<u8>) {
    let device = platform.device(device).unwrap();
    platform.acquire(device).read_write(data).wait().unwrap().release().unwrap();
}

/// How often each of the calls that move bytes is made meanwhile: write, read, map.
fn moves(driver: StandIn, does: impl FnOnce()) -> [i64; 3] {
    let calls = ["clEnqueueWriteBuffer", "clEnqueueReadBuffer", "clEnqueueMapBuffer"];
    let before = calls.map(|call| driver.made(call));
    does();
    let after = calls.map(|call| driver.made(call));
    [0, 1, 2].map(|index| after[index] - before[index])
}

#[test]
fn a_transfer_reads_no_file() {
    let _driver = stand_in();
    let platform = platform_with(DiscoverOptions::default(), &["opencl:0"]);
    let data = platform.buffer_from(pattern(MIB, 1)).unwrap();
    let transfers = || {
        (0..100).for_each(|_| {
            use_on(&platform, "opencl:0", &data);
            data.write().unwrap().release().unwrap();
        });
    };
    let reads = reads_by(transfers);
    assert!(reads.is_none_or(|reads| reads < 50), "{reads:?} reads in 200 transfers");
}

#[test]
fn bytes_move_by_the_mechanisms_that_are_asked_for() {
    let driver = stand_in();
    // By one write the memory is had.
    let cases = [
        ("opencl:0", Mechanisms::All, [2, 1, 0]),
        ("opencl:0", Mechanisms::Staged, [2, 1, 0]),
        ("opencl:0", Mechanisms::Mapped, [1, 0, 2]),
        // The host reaches the memory, so a map is cheapest.
        ("opencl:1", Mechanisms::All, [1, 0, 2]),
        ("opencl:1", Mechanisms::Staged, [2, 1, 0]),
        ("opencl:1", Mechanisms::Mapped, [1, 0, 2]),
    ];
    for (device, mechanisms, expected) in cases {
        let platform = platform_with(DiscoverOptions::default().mechanisms(mechanisms), &[device]);
        let data = platform.buffer_from(pattern(10_000, 3)).unwrap();
        let moved = moves(driver, || {
            use_on(&platform, device, &data);
            assert!(*data.read().unwrap() == pattern(10_000, 3), "{device} {mechanisms:?}");
        });
        assert_eq!(moved, expected, "{device} {mechanisms:?}");
        drop((data, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn pages_are_locked_where_that_pays_and_only_for_memory_across_a_link() {
    let driver = stand_in();
    // The device's buffer, and one over the host's memory that locks its pages.
    for (device, bytes, blocks) in [
        ("opencl:0", 32 * MIB, 2),
        ("opencl:0", MIB, 1),
        ("opencl:1", 32 * MIB, 1),
        ("opencl:2", 32 * MIB, 2),
    ] {
        let platform = platform_with(DiscoverOptions::default().mechanisms(Mechanisms::Staged), &[device]);
        let data = platform.buffer_from(pattern(bytes, 3)).unwrap();
        use_on(&platform, device, &data);
        assert_eq!(driver.count("blocks"), blocks, "{device}");
        assert!(*data.read().unwrap() == pattern(bytes, 3));
        let back = data.into_vec().unwrap();
        assert_eq!(driver.count("blocks"), 0, "what is the application's again is not locked");
        drop((back, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn what_cannot_be_locked_goes_without() {
    let driver = stand_in();
    let platform = platform_with(DiscoverOptions::default().locked_scratch(0), &["opencl:0"]);
    let data = platform.buffer_from(pattern(32 * MIB, 3)).unwrap();
    // The first is the device's own.
    driver.fail("clCreateBuffer", 1, code::OUT_OF_RESOURCES);
    use_on(&platform, "opencl:0", &data);
    assert_eq!(driver.count("blocks"), 1);
    assert!(*data.read().unwrap() == pattern(32 * MIB, 3));
    drop((data, platform));
    let none = platform_with(DiscoverOptions::default().page_locks(0), &["opencl:0"]);
    let data = none.buffer_from(pattern(32 * MIB, 3)).unwrap();
    use_on(&none, "opencl:0", &data);
    assert_eq!(driver.count("blocks"), 1);
    // A device that is gone is noticed here as well.
    let platform = platform_with(DiscoverOptions::default(), &["opencl:0"]);
    let lost = platform.buffer_from(pattern(32 * MIB, 3)).unwrap();
    driver.fail("clCreateBuffer", 1, code::DEVICE_NOT_AVAILABLE);
    let device = platform.device("opencl:0").unwrap();
    let _ = platform.acquire(device).read(&lost).wait().map(|grants| grants.release());
    assert!(platform.arena(home(&platform, "opencl:0")).is_lost());
    drop((data, none, lost, platform));
    nothing_is_left(driver);
}

#[test]
fn devices_that_do_not_reach_each_other_pass_bytes_through_locked_memory() {
    let driver = stand_in();
    for (mechanisms, is_relayed) in [(Mechanisms::All, true), (Mechanisms::Staged, false)] {
        let devices = ["opencl:0", "opencl:1", "opencl:2", "opencl:3"];
        let platform = platform_with(DiscoverOptions::default().mechanisms(mechanisms), &devices);
        let link = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|device| home(&platform, device));
            let links = (0..).zip(platform.links());
            let between = links.filter(|(_, link)| (link.from, link.to) == (from, to));
            between.map(|(id, _)| platform.cross_arena(LinkId(id)).name()).collect::<Vec<_>>()
        };
        for (index, from) in devices.into_iter().enumerate() {
            for to in devices[..index].iter().copied() {
                let is_far = from != "opencl:1" && to != "opencl:1" && is_relayed;
                let name = if is_far { "relayed" } else { "staged" };
                assert_eq!([link(from, to), link(to, from)], [[name], [name]], "{from} {to}");
            }
        }
        let data = platform.buffer_from(pattern(3 * MIB + 5, 7)).unwrap();
        for device in ["opencl:0", "opencl:3", "opencl:2", "opencl:0"] {
            use_on(&platform, device, &data);
        }
        assert!(*data.read().unwrap() == pattern(3 * MIB + 5, 7));
        drop((data, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn each_device_locks_pages_for_itself() {
    let driver = stand_in();
    let devices = ["opencl:0", "opencl:2", "opencl:3"];
    let platform = platform_with(DiscoverOptions::default(), &devices);
    let data = platform.buffer_from(pattern(32 * MIB, 3)).unwrap();
    for (count, device) in (1..).zip(devices) {
        let device = platform.device(device).unwrap();
        platform.acquire(device).read(&data).wait().unwrap().release().unwrap();
        // The devices' own blocks, and as many that lock the one in main memory.
        assert_eq!((driver.count("blocks"), driver.count("over host memory")), (2 * count, count));
    }
    drop((data, platform));
    nothing_is_left(driver);
}

#[test]
fn a_binding_is_known_by_its_name() {
    stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::bound("opencl:0")), &["opencl:0"]);
    let bound = (0..).zip(platform.links()).find(|(_, link)| matches!(link.allocation, Allocation::Bound(_)));
    let (id, link) = bound.expect("it is bound");
    assert_eq!((link.from, link.to), (home(&platform, "cpu"), home(&platform, "opencl:0")));
    assert_eq!(platform.cross_arena(LinkId(id)).name(), "bound");
}
