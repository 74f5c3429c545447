//! A queue that runs kernels in main memory, whose launches and kernels can be held up.

use dml::arenas::kit::{Signal, Signaller};
use dml::arenas::{Discover, DiscoverOptions};
use dml::core::internal::sync::{Condvar, Mutex};
use dml::core::{
    Buffer, DeviceId, Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform, Submission,
    SubmitError, TransferError,
};
use dml_verify::Audited;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

pub(crate) const WORDS: usize = 16;

/// What a kernel does: `to = 3 * from + number`, word by word; or it fails.
struct Job {
    from: usize,
    to: usize,
    number: u32,
    fails: bool,
    ends: Signaller,
}

/// A gate that the kernels of a queue wait at.
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open() -> Self {
        Self { is_open: Mutex::new(true), changed: Condvar::new() }
    }

    pub(crate) fn set(&self, is_open: bool) {
        *self.is_open.lock() = is_open;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            is_open = self.changed.wait(is_open);
        }
    }
}

/// A queue that runs kernels on main memory, one after the other, on a thread of its own.
pub(crate) struct Queue {
    jobs: Sender<Job>,
    pub(crate) gate: Arc<Gate>,
    /// A gate that the launches wait at that a stream makes.
    pub(crate) launches: Gate,
    is_in_order: bool,
    /// Whether its fences can only be waited for.
    pub(crate) blocks: AtomicBool,
    /// The numbers of the kernels that fail.
    pub(crate) fails: Mutex<Vec<u32>>,
    /// What the next launch does instead.
    pub(crate) refuses: Mutex<Option<Refuses>>,
    /// The launched kernels: the addresses of their buffers, and their numbers.
    pub(crate) launched: Mutex<Vec<(usize, usize, u32)>>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Refuses {
    NotStarted,
    Failed,
    Panics,
}

impl Queue {
    pub(crate) fn new(is_in_order: bool) -> Arc<Self> {
        let (jobs, received): (_, Receiver<Job>) = channel();
        let (gate, launches) = (Arc::new(Gate::open()), Gate::open());
        let passes = gate.clone();
        std::thread::spawn(move || {
            for Job { from, to, number, fails, ends } in received {
                passes.pass();
                if fails {
                    let message = format!("kernel {number} trapped").into();
                    ends.end(Err(TransferError::Framework { call: "queue", code: 7, message }));
                    continue;
                }
                for word in 0..WORDS {
                    let (from, to) = (from as *const u32, to as *mut u32);
                    // SAFETY: until the fence ends, the grants keep both buffers, and no other code touches
                    // them.
                    unsafe { *to.add(word) = (*from.add(word)).wrapping_mul(3).wrapping_add(number) };
                }
                ends.end(Ok(0));
            }
        });
        let (fails, refuses, launched) = (Mutex::default(), Mutex::default(), Mutex::default());
        let blocks = AtomicBool::new(false);
        Arc::new(Self { jobs, gate, launches, is_in_order, blocks, fails, refuses, launched })
    }
}

impl Launcher for Queue {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        match arguments {
            [LaunchArg::Buffer { .. }, LaunchArg::Buffer { .. }, LaunchArg::Scalar(_)] => Ok(()),
            _ => Err(Misfit::Count { kernel: "step".to_owned(), takes: 3, given: arguments.len() }),
        }
    }

    fn label(&self) -> Arc<str> {
        "step".into()
    }

    fn runs_in_order(&self) -> bool {
        self.is_in_order
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [
            LaunchArg::Buffer { buffer: from, .. },
            LaunchArg::Buffer { buffer: to, .. },
            LaunchArg::Scalar(number),
        ] = launch.arguments
        else {
            panic!("they were checked")
        };
        if std::thread::current().name() == Some("dml helper") {
            self.launches.pass();
        }
        let to = grants.slice_mut::<u32>(to).map_err(LaunchError::not_started)?.as_mut_ptr().addr();
        let from = grants.slice::<u32>(from).map_err(LaunchError::not_started)?.as_ptr().addr();
        let refuses = self.refuses.lock().take();
        match refuses {
            None => {}
            Some(Refuses::NotStarted) => return Err(LaunchError::not_started("no room")),
            Some(Refuses::Failed) => return Err(LaunchError::failed("half of it ran")),
            Some(Refuses::Panics) => panic!("a bad launcher"),
        }
        let number = u32::try_from(*number).unwrap();
        let fails = self.fails.lock().contains(&number);
        let (signal, ends) = Signal::new();
        let mut launched = self.launched.lock();
        launched.push((from, to, number));
        self.jobs.send(Job { from, to, number, fails, ends }).unwrap();
        let fence = signal.fence();
        match self.blocks.load(Ordering::Relaxed) {
            true => Ok(Fence::running(move || fence.wait())),
            false => Ok(fence),
        }
    }
}

/// A platform with the processor alone.
pub(crate) fn plain() -> (Platform, DeviceId) {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let cpu = platform.device("cpu").unwrap();
    (platform, cpu)
}

/// The same, with a history that is checked.
pub(crate) fn host() -> (Audited, DeviceId) {
    let (platform, cpu) = plain();
    (Audited::new(platform), cpu)
}

pub(crate) fn words(platform: &Platform, value: u32) -> Buffer<u32> {
    platform.buffer_from(vec![value; WORDS]).unwrap()
}

/// Submits one step.
pub(crate) fn step(
    (platform, cpu, queue): (&Platform, DeviceId, &Arc<Queue>),
    (from, to): (&Buffer<u32>, &Buffer<u32>),
    number: u32,
) -> Result<Submission, SubmitError> {
    platform.submit(cpu, queue).read(from).write(to).scalar(number).items(1)
}
