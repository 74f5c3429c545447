//! What discovery adds, and what it says of devices that it cannot.

use super::{arena, cuda, home, nothing_is_left, platform};
use crate::driver::stand_in;
use crate::forks;
use crate::stand_in::{again, is_child};
use dml_arenas::{Discover, DiscoverOptions, Sharing};
use dml_core::{Platform, TransferError};

/// What is said of CUDA where it has no device.
fn said() -> String {
    let builder = Platform::builder().discover_with(&DiscoverOptions::default().offload(0)).unwrap();
    let platform = builder.build().unwrap();
    assert!(platform.device("cuda:0").is_err());
    let said: Vec<_> = platform.unavailable().iter().filter(|said| said.backend == "cuda").collect();
    assert_eq!(said.len(), 1, "{said:?}");
    said[0].to_string()
}

#[test]
fn a_gpu_is_described_as_its_driver_does() {
    stand_in();
    let platform = platform(&["cuda:0", "cuda:1", "cuda:2"]);
    for (index, gpu) in ["cuda:0", "cuda:1", "cuda:2"].into_iter().enumerate() {
        let desc = &platform.devices()[usize::from(platform.device(gpu).unwrap().0)];
        assert_eq!(desc.driver, "CUDA 13.0");
        assert_eq!(desc.compute_units, 100 + index as u32);
        assert_eq!(desc.model.as_deref(), Some(format!("Stand-in {index}").as_str()));
        assert_eq!(desc.hardware.as_deref(), Some(format!("pci 0000:{:02x}:00.0", 0x1a + index).as_str()));
        let digit = ["a0", "a1", "a2"][index];
        let uuid = format!("GPU-{0}-{1}-{1}-{1}-{2}", digit.repeat(4), digit.repeat(2), digit.repeat(6));
        assert_eq!(desc.description, format!("Stand-in {index} ({uuid}, 0000:{:02x}:00.0)", 0x1a + index));
        assert_eq!(cuda(&arena(&platform, gpu)).capability(), (9, index as u32));
    }
}

#[test]
fn a_driver_too_old_or_without_devices_is_told() {
    if is_child() {
        stand_in();
        let said = said();
        let expected = std::env::var("DML_TEST_SAYS").unwrap();
        assert!(said.contains(&expected), "{said}");
        return;
    }
    let test = "discovery::a_driver_too_old_or_without_devices_is_told";
    let old = "the driver offers CUDA 12.3, and 12.4 is needed";
    again(test, &[("STAND_IN_VERSION", "12039"), ("DML_TEST_SAYS", old)]);
    again(test, &[("STAND_IN_DEVICES", "0"), ("DML_TEST_SAYS", "lists no device")]);
    again(test, &[("STAND_IN_FAILS", "cuInit"), ("DML_TEST_SAYS", "cuInit failed: CUDA error 100")]);
    let lists = "cuDeviceGetUuid failed";
    again(test, &[("STAND_IN_FAILS", "cuDeviceGetUuid_v2"), ("DML_TEST_SAYS", lists)]);
}

#[test]
fn the_oldest_driver_that_serves_does() {
    if is_child() {
        stand_in();
        let platform = platform(&["cuda:0"]);
        assert_eq!(platform.devices()[1].driver, "CUDA 12.4");
        assert!(platform.device("cuda:1").is_err());
        return;
    }
    let test = "discovery::the_oldest_driver_that_serves_does";
    again(test, &[("STAND_IN_VERSION", "12040"), ("STAND_IN_DEVICES", "1")]);
}

#[test]
fn a_gpu_that_cannot_be_opened_is_noted_unless_it_is_named() {
    let driver = stand_in();
    let find = |options: DiscoverOptions| Platform::builder().discover_with(&options.offload(0));
    // The second stream of the first GPU, its context, and the second GPU's.
    for (call, after, gpu) in [
        ("cuStreamCreate", 1, "cuda:0"),
        ("cuDevicePrimaryCtxRetain", 0, "cuda:0"),
        ("cuCtxPushCurrent_v2", 0, "cuda:0"),
        ("cuDevicePrimaryCtxRetain", 1, "cuda:1"),
    ] {
        driver.fail(call, after, 2);
        let platform = find(DiscoverOptions::default()).unwrap().build().unwrap();
        assert!(platform.device(gpu).is_err());
        let others = ["cuda:0", "cuda:1", "cuda:2"].into_iter().filter(|other| *other != gpu);
        assert!(others.into_iter().all(|other| platform.device(other).is_ok()));
        let notes: Vec<_> = platform.unavailable().iter().filter(|note| note.backend == "cuda").collect();
        let [note] = notes[..] else { panic!("{notes:?}") };
        let call = call.trim_end_matches("_v2");
        assert!(note.reason.contains(gpu) && note.reason.contains("Stand-in"), "{note}");
        assert!(note.reason.contains(call) && note.reason.contains("out of memory"), "{note}");
        drop(platform);
        nothing_is_left(driver);
    }
    driver.fail("cuDevicePrimaryCtxRetain", 0, 2);
    let refused = find(DiscoverOptions::default().only(["cpu", "cuda:0"])).map(drop).unwrap_err();
    assert!(refused.to_string().contains("cuda:0"), "{refused}");
    // Without a pool the device works, as one that has none.
    driver.fail("cuMemPoolCreate", 0, 2);
    let platform =
        find(DiscoverOptions::default().only(["cpu", "cuda:2", "cuda:0"])).unwrap().build().unwrap();
    assert!(platform.device("cuda:0").is_ok());
    assert_eq!(driver.count("pools"), 0);
    drop(platform);
    nothing_is_left(driver);
}

#[test]
fn in_a_fork_the_devices_are_lost_and_the_driver_is_left_alone() {
    let driver = stand_in();
    let options = DiscoverOptions::default().sharing(Sharing::page_locked(1 << 20));
    let platform = super::platform_with(options, &["cuda:0", "cuda:2"]);
    let gpu = arena(&platform, "cuda:0");
    let pinned = platform.arena(platform.arena_named("cuda_pinned").unwrap()).clone();
    let blocks = [&gpu, &pinned].map(|arena| super::alloc(arena, 1000));
    assert_eq!(home(&platform, "cuda:0"), platform.arena_named("cuda:0").unwrap());
    let calls = [
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuMemFreeAsync",
        "cuEventQuery",
        "cuMemsetD8Async",
        "cuMemHostUnregister",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxRetain",
        "cuStreamDestroy_v2",
        "cuDriverGetVersion",
    ];
    let before = calls.map(|call| driver.made(call));
    let mut work = Some((platform, blocks, gpu.clone(), pinned.clone()));
    forks::child(|| {
        let (platform, blocks, gpu, pinned) = work.take().unwrap();
        for (arena, block) in [&gpu, &pinned].into_iter().zip(&blocks) {
            assert!(arena.is_lost());
            let loss = arena.loss().unwrap();
            assert!(loss.contains("a fork"), "{loss}");
            assert_eq!(
                block.fill(dml_core::Span::new(0, 10), 1).map(drop),
                Err(TransferError::DeviceLost { loss: None })
            );
            let refused = dml_core::OwnBlock::alloc(arena, 10).map(drop).unwrap_err();
            assert!(refused.is_device_lost(), "{refused}");
        }
        assert!(said().contains("a fork"));
        drop((platform, blocks, gpu, pinned));
        assert_eq!(calls.map(|call| driver.made(call)), before);
    })
    .ends_well();
    assert!(!gpu.is_lost() && !pinned.is_lost() && pinned.loss().is_none());
    drop((work, gpu, pinned));
    nothing_is_left(driver);
}

/// A fork is made while other threads of the stand-in work.
#[test]
fn in_a_fork_the_stand_in_still_says_what_was_called() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let block = super::alloc(&arena(&platform, "cuda:0"), 1000);
    for _ in 0..200 {
        let fence = crate::stand_in::fill(&block, 1);
        forks::child(|| assert!(driver.made("cuMemsetD8Async") > 0)).ends_well();
        assert_eq!(fence.wait(), Ok(1000));
    }
}
