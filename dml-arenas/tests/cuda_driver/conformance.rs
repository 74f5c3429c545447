//! The suite that every arena passes.

use super::{MEMORY_BYTES, arena, cuda, home, platform, platform_with};
use crate::driver::stand_in;
use dml_arenas::{DiscoverOptions, Sharing};
use dml_core::Platform;
use dml_verify::conformance::{self, Subject, Support};

fn gpu(name: &str) -> Subject {
    stand_in();
    let platform = platform(&[name]);
    let (id, arena) = (home(&platform, name), arena(&platform, name));
    Subject::new(platform, id)
        .with_capacity(MEMORY_BYTES)
        .with_loss(move || cuda(&arena).declare_lost("the test said so"))
}

fn with_pools(_: &str) -> Option<Subject> {
    Some(gpu("cuda:1"))
}

fn without_pools(_: &str) -> Option<Subject> {
    Some(gpu("cuda:2"))
}

conformance::checks!(of_a_gpu, with_pools);
conformance::checks!(of_a_gpu_without_pools, without_pools);

const PINNED_BYTES: u64 = 64 << 20;

fn with_pinned() -> Platform {
    stand_in();
    platform_with(
        DiscoverOptions::default().sharing(Sharing::page_locked(PINNED_BYTES)),
        &["cuda:0", "cuda:2"],
    )
}

fn pinned(_: &str) -> Option<Subject> {
    let platform = with_pinned();
    let pinned = platform.arena_named("cuda_pinned").expect("it was asked for");
    Some(Subject::new(platform, pinned).with_capacity(PINNED_BYTES))
}

fn main_memory_that_is_pinned(_: &str) -> Option<Subject> {
    let platform = with_pinned();
    let [main, pinned] = [home(&platform, "cpu"), platform.arena_named("cuda_pinned").unwrap()];
    Some(Subject::new(platform, main).with_external(Support::Offered).with_root(pinned))
}

/// A GPU that uses page-locked memory in place.
fn gpu_in_place(_: &str) -> Option<Subject> {
    stand_in();
    let options = DiscoverOptions::default().sharing(Sharing::page_locked(PINNED_BYTES).bind("cuda:0"));
    let platform = platform_with(options, &["cuda:0", "cuda:2"]);
    let [gpu, pinned] = [home(&platform, "cuda:0"), platform.arena_named("cuda_pinned").unwrap()];
    Some(Subject::new(platform, gpu).with_capacity(MEMORY_BYTES).with_root(pinned))
}

conformance::checks!(of_a_gpu_in_place, gpu_in_place);
conformance::checks!(of_pinned_memory, pinned);
conformance::checks!(of_main_memory_that_is_pinned, main_memory_that_is_pinned);
