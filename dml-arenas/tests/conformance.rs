//! The one list of checks, for every arena there is.
//!
//! A new arena is one more function that says how to make it and what it offers, and one more line of
//! `checks!`.

#![cfg(not(dml_loom))]

mod broken;
mod common;

use broken::pool::Pool;
use dml_arenas::{Faulty, MainMem, Null, Script};
use dml_core::{ArenaDesc, ArenaKind, Concurrency, DeviceId, DeviceSet};
use dml_verify::conformance::{self, Subject, Support};
use std::sync::Arc;

fn main_mem(_test: &str) -> Option<Subject> {
    Some(Subject::main(|cpu| Arc::new(MainMem::new(cpu))).with_external(Support::Offered))
}

fn faulty(_test: &str) -> Option<Subject> {
    let subject = Subject::main(|cpu| Arc::new(Faulty::new(MainMem::new(cpu), Script::new())));
    Some(subject.with_external(Support::Offered))
}

fn null(concurrency: Concurrency) -> Option<Subject> {
    let subject = Subject::beside_main(|native, host| {
        let desc = ArenaDesc::new("null", ArenaKind("null"), native)
            .with_remotes(DeviceSet::of(host))
            .with_concurrency(concurrency);
        Arc::new(Null::backed(desc).with_host(host))
    });
    Some(subject.with_binding(Support::Offered))
}

fn null_exclusive(_test: &str) -> Option<Subject> {
    null(Concurrency::Exclusive)
}

fn null_bimapped_for_reading(_test: &str) -> Option<Subject> {
    null(Concurrency::BimapRead)
}

fn null_bimapped(_test: &str) -> Option<Subject> {
    null(Concurrency::BimapFull)
}

/// An arena that only its device reaches.
fn null_apart(_test: &str) -> Option<Subject> {
    Some(Subject::beside_main(|native, _| {
        Arc::new(Null::backed(ArenaDesc::new("null", ArenaKind("null"), native)))
    }))
}

/// The host's own memory.
fn null_main(_test: &str) -> Option<Subject> {
    let make = |cpu: DeviceId| {
        let desc = ArenaDesc::new("null", ArenaKind("null"), cpu)
            .with_remotes(DeviceSet::of(cpu))
            .with_concurrency(Concurrency::BimapFull);
        Arc::new(Null::backed(desc).with_host(cpu)) as Arc<dyn dml_core::Arena>
    };
    Some(Subject::main(make).with_external(Support::Offered))
}

/// A heap of limited size behind a thread that does the copies.
fn pool(_test: &str) -> Option<Subject> {
    let mut power = None;
    let subject = Subject::beside_main(|native, _| {
        let pool = Pool::new(native, Pool::CAPACITY_BYTES);
        power = Some(pool.power());
        Arc::new(pool)
    });
    let power = power.expect("the pool was made");
    let lose = move || power.store(false, std::sync::atomic::Ordering::SeqCst);
    Some(subject.with_capacity(Pool::CAPACITY_BYTES).with_loss(lose))
}

/// A store, which no device calls its own.
fn null_store(_test: &str) -> Option<Subject> {
    Some(Subject::beside_main(|_, _| Arc::new(Null::backed(ArenaDesc::store("null", ArenaKind("null"))))))
}

/// A device that dies, with a memory that the host can map.
fn mortal(_test: &str) -> Option<Subject> {
    let mut mortal = None;
    let subject = Subject::beside_main(|native, host| {
        let desc = ArenaDesc::new("mortal", ArenaKind("null"), native).with_remotes(DeviceSet::of(host));
        let arena = Arc::new(dml_verify::mortal(Null::backed(desc).with_host(host)));
        mortal = Some(arena.clone());
        arena
    });
    let mortal = mortal.expect("the arena was made");
    Some(subject.with_binding(Support::Offered).with_loss(move || mortal.die()))
}

conformance::checks!(of_main_mem, main_mem);
conformance::checks!(of_faulty, faulty);
conformance::checks!(of_null_exclusive, null_exclusive);
conformance::checks!(of_null_bimapped_for_reading, null_bimapped_for_reading);
conformance::checks!(of_null_bimapped, null_bimapped);
conformance::checks!(of_null_apart, null_apart);
conformance::checks!(of_null_main, null_main);
conformance::checks!(of_null_store, null_store);
conformance::checks!(of_mortal, mortal);
conformance::checks!(of_pool, pool);

#[cfg(feature = "opencl")]
mod opencl {
    use crate::common::{with_opencl, with_opencl_offer};
    use dml_arenas::{DiscoverOptions, HostArena, OpenClArena, Sharing};
    use dml_core::{ArenaId, DeviceId, Platform};
    use dml_verify::conformance::{self, Subject, Support};

    fn subject((platform, device): (Platform, DeviceId)) -> Subject {
        let id = platform.home(device).expect("every OpenCL device has an arena");
        let arena = platform.arena(id).downcast_ref::<OpenClArena>().expect("an OpenCL device's own");
        let (capacity, max_alloc) = (arena.capacity_bytes(), arena.max_alloc_bytes());
        let subject = Subject::new(platform, id).with_capacity(capacity).with_max_alloc(max_alloc);
        subject.with_binding(Support::Offered)
    }

    fn whole(test: &str) -> Option<Subject> {
        with_opencl(test).map(subject)
    }

    /// One compute unit of a device that can be divided.
    fn part(test: &str) -> Option<Subject> {
        let (platform, device) = with_opencl(test)?;
        if platform.device_desc(device).compute_units < 2 {
            eprintln!("SKIPPED {test}: opencl:0 has one compute unit");
            return None;
        }
        let options = DiscoverOptions::default().only(["opencl:0"]).limit("opencl:0", 1);
        with_opencl_offer(test, &options).map(subject)
    }

    conformance::checks!(of_a_device, whole);
    conformance::checks!(of_part_of_a_device, part);

    /// A platform on which main memory and a device use shared virtual memory, with the ids of main memory,
    /// the device's memory and that.
    fn fine_grained(test: &str) -> Option<(Platform, [ArenaId; 3])> {
        let options = DiscoverOptions::default()
            .only(["opencl:0"])
            .offload(0)
            .sharing(Sharing::fine_grained("opencl:0"));
        let (platform, device) = with_opencl_offer(test, &options)?;
        let (main, own) = (platform.home(DeviceId(0))?, platform.home(device)?);
        let ids = (0..platform.arenas().len()).map(|id| ArenaId(id as u8));
        let svm = { ids }.find(|&id| platform.arena(id).downcast_ref::<HostArena>().is_some());
        Some((platform, [main, own, svm.expect("it was asked for")]))
    }

    fn virtual_memory(test: &str) -> Option<Subject> {
        let (platform, [_, _, svm]) = fine_grained(test)?;
        Some(Subject::new(platform, svm))
    }

    fn main_memory_that_shares(test: &str) -> Option<Subject> {
        let (platform, [main, _, svm]) = fine_grained(test)?;
        Some(Subject::new(platform, main).with_external(Support::Offered).with_root(svm))
    }

    fn device_that_shares(test: &str) -> Option<Subject> {
        let (platform, [_, own, svm]) = fine_grained(test)?;
        let arena = platform.arena(own).downcast_ref::<OpenClArena>()?;
        let (capacity, max_alloc) = (arena.capacity_bytes(), arena.max_alloc_bytes());
        Some(Subject::new(platform, own).with_capacity(capacity).with_max_alloc(max_alloc).with_root(svm))
    }

    conformance::checks!(of_virtual_memory, virtual_memory);
    conformance::checks!(of_main_memory_that_shares_virtual_memory, main_memory_that_shares);
    conformance::checks!(of_a_device_that_shares_virtual_memory, device_that_shares);
}

#[cfg(feature = "cuda")]
mod cuda {
    use crate::common::with_cuda;
    use dml_arenas::{CudaArena, Discover, DiscoverOptions, Sharing};
    use dml_core::{Arena, ArenaId, Platform};
    use dml_verify::conformance::{self, Subject, Support};

    /// What the checks may take of a GPU: all of it would take them minutes.
    fn gpu(test: &str) -> Option<Subject> {
        let (platform, device) = with_cuda(test)?;
        let id = platform.home(device).expect("every CUDA device has an arena");
        let arena = platform.arena(id).clone();
        let cuda = || (&*arena as &dyn Arena).downcast_ref::<CudaArena>().expect("a CUDA device's own");
        let subject = Subject::new(platform, id).with_max_alloc(cuda().capacity_bytes());
        let arena = arena.clone();
        Some(subject.with_loss(move || {
            let cuda = (&*arena as &dyn Arena).downcast_ref::<CudaArena>();
            cuda.expect("a CUDA device's own").declare_lost("the test said so");
        }))
    }

    conformance::checks!(of_a_gpu, gpu);

    const PINNED_BYTES: u64 = 64 << 20;

    /// A platform whose main memory is bound to page-locked memory, with the ids of both.
    fn with_pinned(test: &str) -> Option<(Platform, [ArenaId; 2])> {
        let options = DiscoverOptions::default().only(["cuda:0"]).sharing(Sharing::page_locked(PINNED_BYTES));
        with_cuda(test)?;
        let builder = Platform::builder().discover_with(&options).expect("there is a GPU");
        let platform = builder.build().expect("what discovery adds fits together");
        let main = platform.home(platform.host()?)?;
        let pinned = platform.arena_named("cuda_pinned").expect("it was asked for");
        Some((platform, [main, pinned]))
    }

    fn pinned(test: &str) -> Option<Subject> {
        let (platform, [_, pinned]) = with_pinned(test)?;
        Some(Subject::new(platform, pinned).with_capacity(PINNED_BYTES))
    }

    fn main_memory_that_is_pinned(test: &str) -> Option<Subject> {
        let (platform, [main, pinned]) = with_pinned(test)?;
        Some(Subject::new(platform, main).with_external(Support::Offered).with_root(pinned))
    }

    /// It uses page-locked memory in place.
    fn gpu_in_place(test: &str) -> Option<Subject> {
        let (platform, _) = with_cuda(test)?;
        drop(platform);
        let options = DiscoverOptions::default()
            .only(["cuda:0"])
            .sharing(Sharing::page_locked(PINNED_BYTES).bind("cuda:0"));
        let builder = Platform::builder().discover_with(&options).expect("there is a GPU");
        let platform = builder.build().expect("what discovery adds fits together");
        let gpu = platform.home(platform.device("cuda:0").ok()?)?;
        let pinned = platform.arena_named("cuda_pinned").expect("it was asked for");
        let capacity = platform.arena(gpu).downcast_ref::<CudaArena>()?.capacity_bytes();
        Some(Subject::new(platform, gpu).with_max_alloc(capacity).with_root(pinned))
    }

    conformance::checks!(of_a_gpu_in_place, gpu_in_place);
    conformance::checks!(of_pinned_memory, pinned);
    conformance::checks!(of_main_memory_that_is_pinned, main_memory_that_is_pinned);
}

#[cfg(all(feature = "offload", target_os = "linux"))]
mod offload {
    use dml_arenas::{Discover, DiscoverOptions, OffloadArena, Sharing, Workers};
    use dml_core::{ArenaId, Platform};
    use dml_verify::conformance::{self, Subject, Support};

    const CAPACITY_BYTES: u64 = 48 << 20;

    fn worker(_test: &str) -> Option<Subject> {
        let options = DiscoverOptions::default().only(["offload:0"]).offload(
            Workers::default().program(env!("CARGO_BIN_EXE_dml-offload-worker")).memory(CAPACITY_BYTES),
        );
        let builder = Platform::builder().discover_with(&options).expect("the worker was built");
        let platform = builder.build().expect("what discovery adds fits together");
        let device = platform.device("offload:0").expect("it was asked for");
        let id = platform.home(device).expect("every worker has an arena");
        let arena = platform.arena(id).downcast_ref::<OffloadArena>().expect("a worker's own");
        let worker = arena.device().clone();
        let subject = Subject::new(platform, id).with_capacity(CAPACITY_BYTES);
        Some(subject.with_loss(move || worker.stop()))
    }

    conformance::checks!(of_a_worker, worker);

    /// A platform whose processor and worker share memory, with the ids of main memory, of the shared memory
    /// and of the worker's own.
    fn sharing() -> (Platform, [ArenaId; 3]) {
        let options = DiscoverOptions::default()
            .only(["offload:0"])
            .offload(
                Workers::default().program(env!("CARGO_BIN_EXE_dml-offload-worker")).memory(CAPACITY_BYTES),
            )
            .sharing(Sharing::memory(["cpu", "offload:0"]).bytes(CAPACITY_BYTES));
        let builder = Platform::builder().discover_with(&options).expect("the worker was built");
        let platform = builder.build().expect("what discovery adds fits together");
        let home = |name| platform.home(platform.device(name).expect("it was asked for"));
        let (main, own) = (home("cpu").expect("main memory"), home("offload:0").expect("a worker's"));
        (platform, [main, ArenaId(1), own])
    }

    fn shared_memory(_test: &str) -> Option<Subject> {
        let (platform, [_, shared, _]) = sharing();
        assert_eq!(&*platform.desc(shared).name, "shared");
        Some(Subject::new(platform, shared).with_capacity(CAPACITY_BYTES))
    }

    fn main_memory_that_shares(_test: &str) -> Option<Subject> {
        let (platform, [main, shared, _]) = sharing();
        Some(Subject::new(platform, main).with_external(Support::Offered).with_root(shared))
    }

    fn worker_that_shares(_test: &str) -> Option<Subject> {
        let (platform, [_, shared, own]) = sharing();
        Some(Subject::new(platform, own).with_capacity(CAPACITY_BYTES).with_root(shared))
    }

    conformance::checks!(of_shared_memory, shared_memory);
    conformance::checks!(of_main_memory_that_shares, main_memory_that_shares);
    conformance::checks!(of_a_worker_that_shares, worker_that_shares);
}
