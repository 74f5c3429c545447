//! Variants, footprints and hooks of the scheduler.

use crate::vault::{CPU, GPU, Join, Lie, Plan, platform};
use dml::Kernel;
use dml::arenas::MainMem;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    AcquireError, DeviceDesc, DeviceKind, Fence, Launch, LaunchArg, LaunchError, Launcher, Misfit,
};
use dml::prelude::*;
use dml::scheduler::{Hooks, NotStarted, RunError, UnitId};
use dml_verify::watched;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const ITEMS: u64 = 64;

/// Adds one to every item in place.
fn add_one(
    package: &Package,
    grants: &mut Grants,
) -> Result<Fence, Box<dyn std::error::Error + Send + Sync>> {
    let mut views = grants.views()?;
    views[0].slice_mut::<u32>()?.iter_mut().for_each(|value| *value += 1);
    Ok(Fence::done(package.items()))
}

fn buffer(platform: &Platform) -> Buffer<u32> {
    platform.buffer_from((0..ITEMS as u32).collect::<Vec<_>>()).expect("a small buffer")
}

fn in_place(buffer: &Buffer<u32>) -> Kernel {
    Kernel::new("in place", 4).argument(Argument::part(
        buffer,
        Access::ReadWrite,
        Footprint::PerItem { bytes: 4 },
    ))
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let kernel = in_place(&buffer(&platform)).variant(CPU, add_one);
    for device in [DeviceId(2), DeviceId(99), DeviceId(u16::MAX)] {
        let told = Coexecutor::new(&platform).devices([CPU, device]).run(&kernel, ITEMS).unwrap_err();
        assert_eq!(told, RunError::UnknownDevice { kernel: "in place".to_owned(), device, devices: 2 });
    }
}

/// Where nothing could be collected, nothing is computed: the error would be about items that are there.
#[test]
fn a_collecting_device_that_cannot_collect_is_an_error_before_the_run() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let data = buffer(&platform);
    let kernel = in_place(&data).variant(CPU, add_one);
    for (device, items) in [2, 99, u16::MAX].map(DeviceId).into_iter().flat_map(|it| [(it, 0), (it, ITEMS)]) {
        let told = Coexecutor::new(&platform).collect_on(Some(device)).run(&kernel, items).unwrap_err();
        assert_eq!(told, RunError::UnknownDevice { kernel: "in place".to_owned(), device, devices: 2 });
    }
    assert!((0..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value));
    // Nor can one without a memory.
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("bare", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    let platform = builder.build().unwrap();
    let data = buffer(&platform);
    let kernel = in_place(&data).variant(CPU, add_one);
    let told = Coexecutor::new(&platform).collect_on(Some(GPU)).run(&kernel, ITEMS).unwrap_err();
    let expected = RunError::NoArena { kernel: "in place".to_owned(), device: "bare".to_owned() };
    assert_eq!(told, expected);
    assert!((0..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value));
}

/// Variants and footprints of one kernel that panic as they go, and one that is replaced.
#[test]
fn a_kernel_survives_variants_that_panic_as_they_go() {
    struct Dying(Arc<AtomicUsize>);
    impl Drop for Dying {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("a stranger panics as it goes"));
        }
    }
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let data = buffer(&platform);
    let gone = Arc::new(AtomicUsize::new(0));
    let variant = || {
        let dying = Dying(gone.clone());
        move |package: &Package, grants: &mut Grants| {
            let _ = &dying;
            add_one(package, grants)
        }
    };
    let footprint = || {
        let dying = Dying(gone.clone());
        Footprint::Of(std::sync::Arc::new(move |items: std::ops::Range<u64>| {
            let _ = &dying;
            items.start * 4..items.end * 4
        }))
    };
    let used = catch_unwind(AssertUnwindSafe(|| {
        let kernel = Kernel::new("dying", 4)
            .argument(Argument::part(&data, Access::ReadWrite, footprint()))
            .argument(Argument::part(&buffer(&platform), Access::ReadOnly, footprint()))
            .variant(CPU, variant())
            .variant(GPU, variant())
            .variant(CPU, variant());
        Coexecutor::new(&platform).devices([CPU]).run(&kernel, ITEMS).map(drop)
    }));
    assert_eq!(used.expect("no panic reaches the caller"), Ok(()));
    assert_eq!(gone.load(Ordering::SeqCst), 5);
    assert!((1..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value));
}

/// A variant has `&mut Grants`, and may put others in their place. What it puts there is rolled back,
/// whatever it answers.
#[test]
fn a_variant_that_exchanges_its_grants_fails() {
    let ways = ["keeps", "drops", "releases", "gives up"];
    for (how, collect) in ways.into_iter().flat_map(|how| [None, Some(CPU), Some(GPU)].map(|on| (how, on))) {
        let platform = platform(Join::Staged, &Plan::none(), Lie::None);
        let (data, spare) = (buffer(&platform), buffer(&platform));
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (keeper, there, mine) = (kept.clone(), platform.clone(), spare.clone());
        let kernel = in_place(&data).variant(CPU, move |package: &Package, grants: &mut Grants| {
            let done = add_one(package, grants)?;
            let mut other = there.acquire(CPU).read_write(&mine.range(package.range())).wait()?;
            other.slice_mut::<u32>(&mine.range(package.range()))?.fill(77);
            std::mem::swap(grants, &mut other);
            match how {
                "keeps" => keeper.lock().push(other),
                "releases" => other.release()?,
                "gives up" => return Err(NotStarted::new("nothing of note").into()),
                _ => drop(other),
            }
            Ok(done)
        });
        let (asked, ran) = (platform.clone(), kernel.clone());
        let run = watched("a run of exchanged grants", move || {
            let policy = "dynamic:8".parse().unwrap();
            Coexecutor::new(&asked).policy(policy).collect_on(collect).run(&ran, ITEMS)
        });
        let Err(error @ RunError::Unfinished { missing: ITEMS, .. }) = run.join() else {
            panic!("{how}: it answered well")
        };
        let told = error.to_string();
        // People know devices by their names.
        assert!(!told.contains("device d") && told.contains("cpu at items"), "{how}: {told}");
        let RunError::Unfinished { failures, .. } = error else { unreachable!() };
        assert!(failures[0].message.contains("exchanged the grants"), "{how}: {}", failures[0].message);
        // Nothing of the spare is committed: what was written there is poisoned, and the rest is as it was.
        let told = spare.read().map(drop);
        assert!(matches!(told, Err(AcquireError::Poisoned { .. })), "{how}: {told:?}");
        assert!(spare.raw().leaked_grants().is_empty(), "{how}");
        // The package's own grants end where the variant has put them.
        assert_eq!(data.raw().leaked_grants().len(), usize::from(how == "keeps"), "{how}");
        kept.lock().clear();
        assert!(platform.leaked_grants().is_empty(), "{how}");
        data.raw().close_timeout(Duration::from_secs(10)).unwrap();
    }
}

/// A launcher that does what a function does, and panics as it goes.
struct Wild<F>(F, Arc<AtomicUsize>);

impl<F: Fn(&Launch<'_>, &mut Grants) -> Result<Fence, LaunchError> + Send + Sync> Launcher for Wild<F> {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        assert_eq!(arguments.len(), 2);
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        (self.0)(launch, grants)
    }
}

impl<F> Drop for Wild<F> {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        resume_unwind(Box::new("a stranger panics as it goes"));
    }
}

/// Launchers, and values that are computed for each package, are foreign code as variants are.
#[test]
fn a_launcher_may_panic_and_call_back() {
    for panics in ["in its launch", "in a value", "nowhere"] {
        let platform = platform(Join::Staged, &Plan::none(), Lie::None);
        let (data, spare) = (buffer(&platform), buffer(&platform));
        let gone = Arc::new(AtomicUsize::new(0));
        let (there, mine, place) = (platform.clone(), spare.clone(), data.clone());
        let launch = move |launch: &Launch<'_>, grants: &mut Grants| {
            assert_ne!(panics, "in its launch");
            // It uses core, and another co-execution, with the package's buffers in its hands.
            let part = mine.range(launch.items.clone());
            let mut other = there.acquire(CPU).read_write(&part).wait().map_err(LaunchError::not_started)?;
            other.slice_mut::<u32>(&part).map_err(LaunchError::failed)?.fill(77);
            other.release().map_err(LaunchError::failed)?;
            let mut slice = grants.slice_mut::<u32>(&place.range(launch.items.clone()));
            slice.as_mut().expect("granted").iter_mut().for_each(|value| *value += 1);
            Ok(Fence::done(0))
        };
        let value = move |package: &Package| {
            assert_ne!(panics, "in a value");
            package.end()
        };
        let kernel = in_place(&data).scalar_of(value).launchers([(CPU, Wild(launch, gone.clone()))]).unwrap();
        let asked = platform.clone();
        let run = watched("a run by a launcher", move || {
            let told = Coexecutor::new(&asked).run(&kernel, ITEMS);
            let left = catch_unwind(AssertUnwindSafe(|| drop(kernel)));
            (told, left.is_ok())
        });
        let (told, is_quiet) = run.join();
        assert!(is_quiet, "no panic reaches who drops the kernel");
        assert_eq!(gone.load(Ordering::SeqCst), 1);
        match told {
            Ok(_) => assert_eq!(panics, "nowhere"),
            Err(RunError::Unfinished { missing, failures, .. }) => {
                assert_eq!((missing, failures.len()), (ITEMS, 1));
                assert!(failures[0].message.contains("panic"), "{}", failures[0].message);
            }
            Err(other) => panic!("{panics}: {other}"),
        }
        let done = u32::from(panics == "nowhere");
        assert!((done..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value), "{panics}");
        assert_eq!(spare.read().unwrap().iter().all(|value| *value == 77), panics == "nowhere");
        assert!(platform.leaked_grants().is_empty());
    }
}

/// What combines partials runs on the caller's thread, when nothing is held but the partial that is read.
#[test]
fn what_combines_partials_may_panic_and_call_back() {
    for panics in [true, false] {
        let platform = platform(Join::Staged, &Plan::none(), Lie::None);
        let (sum, spare) = (platform.buffer_from(vec![5_u32]).unwrap(), buffer(&platform));
        let there = platform.clone();
        let combine = move |one: u32, other: u32| {
            assert!(!panics, "a stranger does not add");
            there.acquire(CPU).read(&spare).wait().unwrap().release().unwrap();
            one + other
        };
        let count = |package: &Package, grants: &mut Grants| -> Result<Fence, _> {
            grants.views()?[0].slice_mut::<u32>()?[0] += package.items() as u32;
            Ok(Fence::done(0))
        };
        let kernel = Kernel::new("sum", 4).reduce(&sum, 0, combine).variant(CPU, count);
        let asked = platform.clone();
        let told = watched("a reduction", move || Coexecutor::new(&asked).run(&kernel, ITEMS)).join();
        match told {
            Ok(_) => assert!(!panics),
            Err(RunError::Reduction { index: 0, cause, .. }) => {
                assert!(panics && cause.contains("does not add"), "{cause}");
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(sum.read().unwrap()[0], if panics { 5 } else { ITEMS as u32 });
        assert!(platform.leaked_grants().is_empty());
    }
}

/// A launch that fails before it wrote anything leaves its in-place argument to the next unit, though no
/// other copy is left.
#[test]
fn a_launch_that_did_not_start_spoils_nothing() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let only_here = buffer(&platform);
    // The device alone has it, and its launches fail with the storage in hand.
    let mut grants = platform.acquire(GPU).read_write(&only_here).wait().unwrap();
    let bytes = grants.read_bytes(&only_here).unwrap();
    grants.write_bytes(&only_here, &bytes).unwrap();
    grants.release().unwrap();
    let launches = Arc::new(AtomicUsize::new(0));
    let (count, launched, taken) = (launches.clone(), launches.clone(), only_here.clone());
    // The device has had its package before the processor has had them all.
    let after_a_launch = move |package: &Package, grants: &mut Grants| {
        while launched.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        add_one(package, grants)
    };
    let kernel = in_place(&only_here).variant(CPU, after_a_launch).variant(
        GPU,
        move |_: &Package, grants: &mut Grants| {
            let _ = grants.block(&taken)?;
            count.fetch_add(1, Ordering::SeqCst);
            Err(NotStarted::new("no more work-groups").into())
        },
    );
    let report = Coexecutor::new(&platform).policy("dynamic:8".parse().unwrap()).run(&kernel, ITEMS).unwrap();
    assert!(launches.load(Ordering::SeqCst) > 0 && report.failures.len() == 1, "{report:?}");
    assert!(report.failures[0].message.contains("no more work-groups"));
    assert!((1..).zip(&*only_here.read().unwrap()).all(|(expected, value)| expected == *value));
    // One that says nothing of the kind has spoilt what was handed out.
    let taken = only_here.clone();
    let mut grants = platform.acquire(GPU).read_write(&only_here).wait().unwrap();
    grants.write_bytes(&only_here, &bytes).unwrap();
    grants.release().unwrap();
    let alone = in_place(&only_here).variant(GPU, move |_: &Package, grants: &mut Grants| {
        let _ = grants.block(&taken)?;
        Err("half way".into())
    });
    let told = Coexecutor::new(&platform).run(&alone, ITEMS);
    assert!(matches!(told, Err(RunError::Unfinished { .. })), "{told:?}");
    assert!(matches!(only_here.read().map(drop), Err(AcquireError::Poisoned { restorable: false, .. })));
}

/// A footprint is asked before a launch, and once more after a failed one where the argument is to be
/// restored.
#[test]
fn a_footprint_that_panics_or_lies_fails_its_packages_alone() {
    let ways = ["panics", "reaches out", "runs backwards"];
    let accesses = [Access::ReadOnly, Access::ReadWrite];
    for (how, access) in ways.into_iter().flat_map(|how| accesses.map(|access| (how, access))) {
        let platform = platform(Join::Staged, &Plan::none(), Lie::None);
        let (input, output) = (buffer(&platform), buffer(&platform));
        let footprint = move |items: std::ops::Range<u64>| match how {
            "panics" => std::panic::resume_unwind(Box::new("a stranger's footprint")),
            "reaches out" => items.start * 4..ITEMS * 4 + 1,
            _ => items.end * 4..items.start * 4,
        };
        let kernel = Kernel::new("odd", 4)
            .argument(Argument::part(&input, access, Footprint::Of(std::sync::Arc::new(footprint))))
            .argument(Argument::part(&output, Access::ReadWrite, Footprint::PerItem { bytes: 4 }))
            .variant(CPU, add_one);
        let ended = watched("an odd footprint", move || {
            catch_unwind(AssertUnwindSafe(|| Coexecutor::new(&platform).run(&kernel, ITEMS)))
        })
        .join();
        let told = ended.expect("no panic reaches the caller");
        assert!(
            matches!(told, Err(RunError::Unfinished { missing: ITEMS, .. })),
            "{how}, {access:?}: {told:?}"
        );
        assert_eq!(
            *output.read().unwrap(),
            *buffer(&self::platform(Join::Staged, &Plan::none(), Lie::None)).read().unwrap()
        );
    }
}

#[test]
fn a_variant_that_panics_hands_its_work_to_the_others() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let data = buffer(&platform);
    data.raw().prefetch(GPU, 0..ITEMS * 4).wait().unwrap();
    // The processor leaves something for the other.
    let has_panicked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (seen, told) = (has_panicked.clone(), has_panicked);
    let kernel = in_place(&data)
        .variant(CPU, move |package: &Package, grants: &mut Grants| {
            while !seen.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            add_one(package, grants)
        })
        .variant(GPU, move |_: &Package, _: &mut Grants| {
            told.store(true, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("a stranger's kernel"))
        });
    let report = Coexecutor::new(&platform).policy("dynamic:8".parse().unwrap()).run(&kernel, ITEMS).unwrap();
    assert_eq!(report.failures.len(), 1);
    assert!((1..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value));
}

/// Hooks that panic, one at each turn, and hooks that call back.
struct Odd {
    at: &'static str,
    platform: Platform,
    buffer: Buffer<u32>,
    met: AtomicUsize,
}

impl Odd {
    fn turn(&self, at: &str) {
        // Nothing of the scheduler or of core is locked here.
        let _ = self.platform.leaked_grants();
        let _ = self.buffer.raw().snapshot();
        if at == self.at {
            self.met.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new(format!("a stranger's hook at {at}")));
        }
    }
}

impl Hooks for Odd {
    fn director_start(&self) {
        self.turn("director_start");
    }

    fn director_end(&self) {
        self.turn("director_end");
    }

    fn unit_start(&self, _: UnitId, _: DeviceId) {
        self.turn("unit_start");
    }

    fn unit_end(&self, _: UnitId, _: DeviceId) {
        self.turn("unit_end");
    }

    fn package_done(&self, _: &Package, _: DeviceId) {
        self.turn("package_done");
    }
}

#[test]
fn a_hook_that_panics_is_heard_after_the_run() {
    for at in ["director_start", "director_end", "unit_start", "unit_end", "package_done", "never"] {
        let platform = platform(Join::Staged, &Plan::none(), Lie::None);
        let data = buffer(&platform);
        let kernel = in_place(&data).variant(CPU, add_one);
        let hooks = Odd { at, platform: platform.clone(), buffer: data.clone(), met: AtomicUsize::new(0) };
        let ended = watched("hooks that panic", move || {
            let run = || {
                Coexecutor::new(&platform)
                    .policy("dynamic:8".parse().unwrap())
                    .run_with(&kernel, ITEMS, &hooks)
            };
            let ended = catch_unwind(AssertUnwindSafe(run));
            (ended.map(|report| report.map(drop)), hooks.met.load(Ordering::SeqCst))
        })
        .join();
        match ended {
            (Ok(Ok(())), 0) => assert_eq!(at, "never"),
            (Err(panic), met) => {
                assert!(
                    met > 0 && panic.downcast_ref::<String>().is_some_and(|text| text.contains(at)),
                    "{at}"
                );
            }
            other => panic!("{at}: {other:?}"),
        }
        // Every item was computed, once.
        assert!((1..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value), "{at}");
    }
}

/// Kernels call back into core as well.
#[test]
fn a_variant_may_use_core() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let data = buffer(&platform);
    let (there, mine) = (platform.clone(), data.clone());
    let kernel = in_place(&data).variant(CPU, move |package: &Package, grants: &mut Grants| {
        let held = mine.raw().leaked_grants();
        assert!(!held.is_empty());
        let again = there.acquire(CPU).read(&mine).try_now().map(drop);
        assert!(matches!(again, Err(AcquireError::Busy { .. })), "{again:?}");
        add_one(package, grants)
    });
    Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap();
}
