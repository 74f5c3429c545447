//! The suite that every arena passes.

use super::{LARGEST_BYTES, MEMORY_BYTES, home, platform_with};
use crate::driver::stand_in;
use dml_arenas::{DiscoverOptions, HostArena, Sharing};
use dml_core::{ArenaId, Platform};
use dml_verify::conformance::{self, Subject, Support};

fn device(name: &str, options: DiscoverOptions) -> Option<Subject> {
    stand_in();
    let platform = platform_with(options, &[name]);
    let id = home(&platform, name);
    Some(Subject::new(platform, id).with_capacity(MEMORY_BYTES).with_max_alloc(LARGEST_BYTES))
}

fn with_memory_of_its_own(_: &str) -> Option<Subject> {
    device("opencl:0", DiscoverOptions::default()).map(|subject| subject.with_binding(Support::Offered))
}

fn beside_the_host(_: &str) -> Option<Subject> {
    device("opencl:1", DiscoverOptions::default()).map(|subject| subject.with_binding(Support::Offered))
}

fn of_opencl_1(_: &str) -> Option<Subject> {
    device("opencl:2", DiscoverOptions::default()).map(|subject| subject.with_binding(Support::Offered))
}

fn part(_: &str) -> Option<Subject> {
    let options = DiscoverOptions::default().limit("opencl:1", 3);
    device("opencl:1", options).map(|subject| subject.with_binding(Support::Offered))
}

conformance::checks!(of_a_device_with_memory_of_its_own, with_memory_of_its_own);
conformance::checks!(of_a_device_beside_the_host, beside_the_host);
conformance::checks!(of_a_device_of_opencl_1, of_opencl_1);
conformance::checks!(of_part_of_a_device, part);

/// Main memory, the device's and shared virtual memory.
fn fine_grained() -> (Platform, [ArenaId; 3]) {
    stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::fine_grained("opencl:1")), &["opencl:1"]);
    let mut ids = (0..platform.arenas().len()).map(|id| ArenaId(id as u8));
    let svm = ids.find(|&id| platform.arena(id).downcast_ref::<HostArena>().is_some());
    let ids = [home(&platform, "cpu"), home(&platform, "opencl:1"), svm.expect("it was asked for")];
    (platform, ids)
}

fn virtual_memory(_: &str) -> Option<Subject> {
    let (platform, [_, _, svm]) = fine_grained();
    Some(Subject::new(platform, svm).with_capacity(MEMORY_BYTES).with_larger_blocks())
}

fn main_memory_that_shares(_: &str) -> Option<Subject> {
    let (platform, [main, _, svm]) = fine_grained();
    Some(Subject::new(platform, main).with_external(Support::Offered).with_root(svm))
}

fn device_that_shares(_: &str) -> Option<Subject> {
    let (platform, [_, own, svm]) = fine_grained();
    Some(Subject::new(platform, own).with_capacity(MEMORY_BYTES).with_max_alloc(LARGEST_BYTES).with_root(svm))
}

conformance::checks!(of_virtual_memory, virtual_memory);
conformance::checks!(of_main_memory_that_shares_virtual_memory, main_memory_that_shares);
conformance::checks!(of_a_device_that_shares_virtual_memory, device_that_shares);
