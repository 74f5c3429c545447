//! Subscribers of `tracing`: foreign code that is told of every acquire, transfer, run and package.

use crate::calls::{World, is_sound, use_it_all, world};
use crate::vault::{CPU, Deed, Join, Lie, Plan, platform};
use dml::Kernel;
use dml::core::Fence;
use dml::core::internal::sync::Arc;
use dml::prelude::*;
use dml::scheduler::KernelError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// Where a subscriber does its deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Enabled,
    NewSpan,
    Enter,
    Exit,
    Close,
}

const ALL: [At; 5] = [At::Enabled, At::NewSpan, At::Enter, At::Exit, At::Close];

struct Stranger {
    at: At,
    deed: Deed,
    met: Arc<AtomicU64>,
    ids: AtomicU64,
}

impl Stranger {
    fn meet(&self, at: At) {
        if at != self.at {
            return;
        }
        let is_first = self.met.fetch_add(1, Ordering::SeqCst) == 0;
        match &self.deed {
            Deed::Panic => resume_unwind(Box::new("a stranger's subscriber")),
            Deed::First(act) if is_first => act(),
            _ => {}
        }
    }
}

impl Subscriber for Stranger {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.meet(At::Enabled);
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.meet(At::NewSpan);
        Id::from_u64(1 + self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.meet(At::Enter);
    }

    fn exit(&self, _: &Id) {
        self.meet(At::Exit);
    }

    fn try_close(&self, _: Id) -> bool {
        self.meet(At::Close);
        true
    }
}

/// A run on this thread.
fn run(platform: &Platform) {
    let buffer = platform.buffer::<u32>(64).build().expect("a small buffer");
    let count = |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let mut views = grants.views()?;
        let items = views[0].slice_mut::<u32>()?;
        items.iter_mut().zip(package.range()).for_each(|(item, index)| *item = index as u32 + 3);
        Ok(Fence::done(package.items()))
    };
    let part = Argument::part(&buffer, dml::Access::WriteInvalidate, Footprint::PerItem { bytes: 4 });
    let kernel = Kernel::new("count", 1).argument(part).variant(CPU, count);
    let report = Coexecutor::new(platform).devices([CPU]).run(&kernel, 64).expect("nothing is wrong");
    assert!(report.failures.is_empty(), "{report:?}");
    assert_eq!(*buffer.read().expect("it is there"), (3..67).collect::<Vec<u32>>()[..]);
}

/// Does everything with one deed at one call. Returns how often the call was made.
fn drive(at: At, deed: impl Fn(&World) -> Deed) -> u64 {
    let world = world(platform(Join::Staged, &Plan::none(), Lie::None));
    let met = Arc::new(AtomicU64::new(0));
    let stranger = Stranger { at, deed: deed(&world), met: met.clone(), ids: AtomicU64::new(0) };
    let used = catch_unwind(AssertUnwindSafe(|| {
        tracing::subscriber::with_default(stranger, || {
            use_it_all(&world.platform, &world.buffer);
            run(&world.platform);
        });
    }));
    assert!(used.is_ok(), "{at:?}: a panic of a subscriber reached the application");
    is_sound(&world, &format!("{at:?}"));
    met.load(Ordering::SeqCst)
}

#[test]
fn a_panic_of_a_subscriber_is_nobodys_failure() {
    for at in ALL {
        assert!(drive(at, |_| Deed::Panic) > 0, "{at:?} is never met");
    }
}

/// Debug builds check besides that no call is made under a lock.
#[test]
fn a_subscriber_may_call_back_into_core() {
    for at in ALL {
        let answered = Arc::new(AtomicU64::new(0));
        let met = drive(at, |world| {
            let (World { platform, buffer, other }, answered) = (world.clone(), answered.clone());
            Deed::First(Arc::new(move || {
                let _ = (buffer.snapshot(), platform.leaked_grants(), platform.lost_devices());
                let _ = platform.raw_buffer(3).build();
                drop(platform.acquire(CPU).read(&other).try_now());
                drop(platform.acquire(CPU).read(&buffer).try_now());
                answered.fetch_add(1, Ordering::SeqCst);
            }))
        });
        assert!(met > 1 && answered.load(Ordering::SeqCst) == 1, "{at:?}: {met} calls");
    }
}
