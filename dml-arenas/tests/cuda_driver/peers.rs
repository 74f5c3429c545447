//! Copies between GPUs: by peers where both reach each other, else relayed.

use super::{MIB, alloc, arena, home, nothing_is_left, platform};
use crate::common::pattern;
use crate::driver::stand_in;
use dml_core::internal::sync::Arc;
use dml_core::{CopyQuery, CrossArena, LinkId, NativeHandle, Platform};

fn link(platform: &Platform, from: &str, to: &str) -> Arc<dyn CrossArena> {
    let (from, to) = (home(platform, from), home(platform, to));
    let mut found = (0..).zip(platform.links()).filter(|(_, link)| (link.from, link.to) == (from, to));
    let (index, _) = found.next().expect("the two are linked");
    assert!(found.next().is_none(), "once");
    platform.cross_arena(LinkId(index)).clone()
}

/// What it says of a copy of so many bytes, in nanoseconds.
fn cost(link: &Arc<dyn CrossArena>, bytes: u64) -> u64 {
    let query = CopyQuery { bytes, remap_source: false, remap_target: false, allocates: false };
    link.can_copy(&query).expect("it can copy").as_ns().expect("it is feasible")
}

/// Writes a buffer on one GPU, and reads it on another. Returns what is there.
fn across(platform: &Platform, from: &str, to: &str, bytes: &[u8]) -> Vec<u8> {
    let buffer = platform.buffer::<u8>(bytes.len() as u64).build().unwrap();
    let [from, to] = [from, to].map(|device| platform.device(device).unwrap());
    let mut grants = platform.acquire(from).write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, bytes).unwrap();
    grants.release().unwrap();
    let grants = platform.acquire(to).read_write(&buffer).wait().unwrap();
    grants.release().unwrap();
    buffer.read().unwrap().to_vec()
}

#[test]
fn gpus_that_reach_each_other_copy_as_peers_and_others_through_locked_memory() {
    let driver = stand_in();
    let platform = platform(&["cuda:0", "cuda:1", "cuda:2"]);
    let gpus = ["cuda:0", "cuda:1", "cuda:2"];
    for gpu in gpus {
        assert_eq!(link(&platform, "cpu", gpu).name(), "staged");
        assert_eq!(link(&platform, gpu, "cpu").name(), "staged");
    }
    let bytes = pattern(5 << 20, 9);
    for from in gpus {
        for to in gpus.into_iter().filter(|to| *to != from) {
            let are_peers = from != "cuda:2" && to != "cuda:2";
            assert_eq!(link(&platform, from, to).name(), if are_peers { "peer" } else { "relayed" });
            let (peer_copies, found) =
                driver.made_by("cuMemcpyPeerAsync", || across(&platform, from, to, &bytes));
            assert_eq!(found, bytes, "from {from} to {to}");
            assert_eq!(peer_copies, i64::from(are_peers), "from {from} to {to}");
        }
    }
    drop(platform);
    nothing_is_left(driver);
}

#[test]
fn a_copy_of_peers_costs_what_their_connection_takes() {
    let driver = stand_in();
    let nvlink = cost(&link(&platform(&["cuda:0", "cuda:1"]), "cuda:1", "cuda:0"), 3_000_000_000);
    driver.nvlink(false);
    let platform = platform(&["cuda:0", "cuda:1", "cuda:2"]);
    let pci = cost(&link(&platform, "cuda:0", "cuda:1"), 3_000_000_000);
    let relayed = cost(&link(&platform, "cuda:0", "cuda:2"), 3_000_000_000);
    assert!((10_000_000..20_000_000).contains(&nvlink), "{nvlink} ns of 3 GB by NVLink");
    assert!((100_000_000..200_000_000).contains(&pci), "{pci} ns by PCI Express");
    assert!((50_000_000..200_000_000).contains(&relayed), "{relayed} ns through the host");
}

#[test]
fn where_access_is_refused_the_way_leads_through_the_host() {
    let driver = stand_in();
    let bytes = pattern(100_000, 4);
    for (call, after) in [
        ("cuCtxEnablePeerAccess", 0),
        ("cuCtxEnablePeerAccess", 1),
        ("cuMemPoolSetAccess", 0),
        ("cuMemPoolSetAccess", 1),
        ("cuDeviceCanAccessPeer", 0),
        ("cuDeviceCanAccessPeer", 1),
    ] {
        driver.fail(call, after, 1);
        let platform = platform(&["cuda:0", "cuda:1"]);
        assert_eq!(link(&platform, "cuda:0", "cuda:1").name(), "relayed", "{call} {after}");
        assert_eq!(link(&platform, "cuda:1", "cuda:0").name(), "relayed", "{call} {after}");
        assert_eq!(across(&platform, "cuda:0", "cuda:1", &bytes), bytes);
        drop(platform);
        nothing_is_left(driver);
    }
}

#[test]
fn access_that_is_there_already_serves() {
    let driver = stand_in();
    let first = platform(&["cuda:0", "cuda:1"]);
    let second = platform(&["cuda:0", "cuda:1"]);
    let bytes = pattern(1000, 4);
    for platform in [&first, &second] {
        let (peer_copies, found) =
            driver.made_by("cuMemcpyPeerAsync", || across(platform, "cuda:1", "cuda:0", &bytes));
        assert_eq!((peer_copies, found), (1, bytes.clone()));
    }
}

#[test]
fn memory_that_others_allocated_goes_through_the_host() {
    let driver = stand_in();
    let platform = platform(&["cuda:0", "cuda:1"]);
    let gpu = arena(&platform, "cuda:0");
    let address = driver.pieces(0, 1, 4096, true);
    // SAFETY: memory of the stand-in, which is never freed.
    let block = unsafe { super::cuda(&gpu).external(NativeHandle(address), 4096, ()) }.unwrap();
    let buffer = platform.buffer::<u8>(4096).build().unwrap();
    buffer.raw().attach_block(home(&platform, "cuda:0"), block).unwrap();
    let bytes = pattern(4096, 77);
    let [zero, one] = ["cuda:0", "cuda:1"].map(|gpu| platform.device(gpu).unwrap());
    // There, back into the memory of others, and there again.
    let mut grants = platform.acquire(one).write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, &bytes).unwrap();
    grants.release().unwrap();
    let (peer_copies, ()) = driver.made_by("cuMemcpyPeerAsync", || {
        platform.acquire(zero).read_write(&buffer).wait().unwrap().release().unwrap();
        platform.acquire(one).read_write(&buffer).wait().unwrap().release().unwrap();
    });
    assert_eq!(peer_copies, 0);
    assert_eq!(*buffer.read().unwrap(), bytes);
}

#[test]
fn a_copy_to_a_lost_peer_is_refused() {
    let driver = stand_in();
    let platform = platform(&["cuda:0", "cuda:1"]);
    let [zero, one] = ["cuda:0", "cuda:1"].map(|gpu| platform.device(gpu).unwrap());
    let buffer = platform.buffer::<u8>(MIB).build().unwrap();
    platform.acquire(zero).write(&buffer).wait().unwrap().release().unwrap();
    super::cuda(&arena(&platform, "cuda:1")).declare_lost("the test said so");
    let (peer_copies, refused) =
        driver.made_by("cuMemcpyPeerAsync", || platform.acquire(one).read(&buffer).wait().map(drop));
    let refused = refused.unwrap_err();
    assert!(refused.is_device_lost() && peer_copies == 0, "{refused}");
    platform.acquire(zero).read(&buffer).wait().unwrap().release().unwrap();
    let _ = alloc(&arena(&platform, "cuda:0"), 10);
}
