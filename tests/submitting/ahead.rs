//! Submitters that are far ahead of their device, so that the stream launches for them.

use crate::queue::{Queue, Refuses, host, plain, step, words};
use dml::core::{
    Access, AcquireError, Buffer, DeviceId, Fence, Grants, ItemShape, Launch, LaunchArg, LaunchError,
    Launcher, Misfit, Platform, Region, Submission, SubmitError,
};
use dml_verify::{block_on, watched};
use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};

/// Number of kernels that their submitter launches while none ends.
const HERE: u32 = 16;

/// Returns the numbers of the launched kernels.
fn launched(queue: &Queue) -> Vec<u32> {
    queue.launched.lock().iter().map(|(.., number)| *number).collect()
}

/// Submits the kernels of some numbers, each of which reads what the one before it wrote. Returns the last.
fn steps(
    stream: (&Platform, DeviceId, &Arc<Queue>),
    buffers: [&Buffer<u32>; 2],
    numbers: RangeInclusive<u32>,
) -> Submission {
    let submitted = numbers.map(|number| {
        let [from, to] = [number + 1, number].map(|number| buffers[number as usize % 2]);
        let submission = step(stream, (from, to), number).unwrap();
        assert_eq!(submission.number(), u64::from(number));
        submission
    });
    submitted.reduce(|_, last| last).unwrap()
}

/// Returns what the kernels of some numbers write, one after the other.
fn expected(first: u32, numbers: RangeInclusive<u32>) -> u32 {
    numbers.fold(first, |value, number| value.wrapping_mul(3).wrapping_add(number))
}

#[test]
fn i29_launches_that_are_left_to_the_stream_keep_their_order() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let (a, b) = (words(&platform, 1), words(&platform, 2));
    let stream = (&*platform, cpu, &queue);
    queue.gate.set(false);
    queue.launches.set(false);
    let last_here = steps(stream, [&a, &b], 1..=HERE);
    steps(stream, [&a, &b], HERE + 1..=HERE + 3);
    assert_eq!(launched(&queue).len(), HERE as usize, "a submitter launches until it is ahead");
    // When all that are launched have ended, it is not ahead any more. Yet its kernel must not overtake.
    queue.gate.set(true);
    last_here.wait().unwrap();
    let last = steps(stream, [&a, &b], HERE + 4..=HERE + 4);
    assert_eq!(launched(&queue).len(), HERE as usize);
    assert!(!last.has_ended() && platform.acquire(cpu).read(&b).try_now().is_err());
    queue.launches.set(true);
    last.wait().unwrap();
    assert_eq!(launched(&queue), (1..=HERE + 4).collect::<Vec<_>>());
    assert_eq!(a.read().unwrap()[0], expected(1, 1..=HERE + 4));
    // Now it launches again.
    queue.launches.set(false);
    steps(stream, [&a, &b], HERE + 5..=HERE + 5).wait().unwrap();
}

/// A launch that fails on the stream is the failure of its kernel. Those behind it are not launched.
#[test]
fn i29_a_launch_that_fails_on_the_stream_poisons_and_is_reported() {
    for (refuses, text) in [
        (Refuses::NotStarted, "step, submission 17 of cpu, failed: its launch failed: no room"),
        (Refuses::Failed, "half of it ran"),
        (Refuses::Panics, "a bad launcher"),
    ] {
        let ((platform, cpu), queue) = (host(), Queue::new(true));
        let (a, b, c) = (words(&platform, 1), words(&platform, 2), words(&platform, 3));
        let stream = (&*platform, cpu, &queue);
        queue.gate.set(false);
        queue.launches.set(false);
        let before = steps(stream, [&a, &b], 1..=HERE);
        *queue.refuses.lock() = Some(refuses);
        let failed = step(stream, (&a, &c), HERE + 1).unwrap();
        let behind = step(stream, (&c, &a), HERE + 2).unwrap();
        queue.gate.set(true);
        queue.launches.set(true);
        before.wait().unwrap();
        for submission in [&failed, &behind] {
            let error = submission.wait().unwrap_err();
            let number = u64::from(HERE + 1);
            assert!(matches!(&error, SubmitError::Failed { number: of, .. } if *of == number), "{error:?}");
            assert!(error.to_string().contains(text), "{error}");
        }
        for poisoned in [&a, &c] {
            assert!(matches!(poisoned.read(), Err(AcquireError::Poisoned { .. })));
        }
        assert_eq!(b.read().unwrap()[0], expected(1, 1..=HERE - 1));
        assert!(platform.settle(cpu).is_err() && platform.leaked_grants().is_empty());
        step(stream, (&b, &c), 99).unwrap().wait().expect("the stream is open");
        let launches = launched(&queue);
        let has_launched = |number| launches.contains(&number);
        assert!(!has_launched(HERE + 1) && !has_launched(HERE + 2), "{launches:?}");
    }
}

/// Submits a kernel with a launch of one's own.
fn own(
    (platform, cpu, queue): (&Platform, DeviceId, &Arc<Queue>),
    (from, to): (&Buffer<u32>, &Buffer<u32>),
    number: u32,
) -> Result<Submission, SubmitError> {
    platform.submit_with(
        cpu,
        "own",
        |acquire| acquire.read(from).write(to),
        |grants| {
            let buffer = |of: &Buffer<u32>, access| LaunchArg::Buffer {
                buffer: of.raw().clone(),
                access,
                ranges: of.bytes().into(),
            };
            let arguments = [
                buffer(from, Access::ReadOnly),
                buffer(to, Access::WriteInvalidate),
                LaunchArg::Scalar(number.into()),
            ];
            queue.launch(&Launch::new(&(0..1), &ItemShape::line(1), &arguments), grants)
        },
    )
}

#[test]
fn i29_a_launch_of_ones_own_follows_those_that_are_left_to_the_stream() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let (a, b, c) = (words(&platform, 1), words(&platform, 2), words(&platform, 3));
    let stream = (&*platform, cpu, &queue);
    own(stream, (&b, &c), 7).unwrap();
    queue.gate.set(false);
    queue.launches.set(false);
    steps(stream, [&a, &b], 2..=HERE + 4);
    let behind = {
        let (platform, queue) = (Platform::clone(&platform), queue.clone());
        let (a, c) = (a.clone(), c.clone());
        watched("a launch of one's own", move || own((&platform, cpu, &queue), (&a, &c), 99).unwrap().wait())
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!launched(&queue).contains(&99));
    queue.launches.set(true);
    queue.gate.set(true);
    behind.join().unwrap();
    let last = *launched(&queue).last().unwrap();
    assert_eq!((last, c.read().unwrap()[0]), (99, a.read().unwrap()[0].wrapping_mul(3).wrapping_add(99)));
}

/// A launch of the program's own panics, or calls back before that: what it was to write is poisoned.
#[test]
fn i29_a_launch_of_ones_own_that_panics_or_calls_back_holds_up_nothing() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    // The launch holds the first one while it waits for the others.
    let (c, a, b) = (words(&platform, 3), words(&platform, 1), words(&platform, 2));
    let stream = (&*platform, cpu, &queue);
    step(stream, (&a, &b), 5).unwrap();
    let calls_back = {
        let (platform, queue) = (Platform::clone(&platform), queue.clone());
        let (a, b, c) = (a.clone(), b.clone(), c.clone());
        watched("a launch that calls back", move || {
            let submitted = platform.submit_with(
                cpu,
                "own",
                |acquire| acquire.write(&c),
                |_| {
                    assert_eq!(b.read().expect("it is in flight, and ends")[0], 8);
                    step((&platform, cpu, &queue), (&a, &b), 6)
                        .expect("another kernel")
                        .wait()
                        .expect("it ends");
                    platform.settle(cpu).expect("nothing failed");
                    panic!("a bad launch")
                },
            );
            submitted.map(|one| one.number())
        })
    };
    let error = calls_back.join().unwrap_err();
    assert!(matches!(error, SubmitError::Launch { has_started: true, .. }), "{error:?}");
    assert!(error.to_string().contains("a bad launch"), "{error}");
    assert!(matches!(c.read(), Err(AcquireError::Poisoned { .. })));
    step(stream, (&a, &c), 7).unwrap().wait().expect("the stream is open");
    assert_eq!((b.read().unwrap()[0], c.read().unwrap()[0]), (9, 10));
    assert!(platform.leaked_grants().is_empty());
}

/// Everything is dropped while launches are to come: they are made, and what they keep is given back.
#[test]
fn what_is_forgotten_before_its_launch_ends_by_itself() {
    let ((platform, cpu), queue) = (plain(), Queue::new(true));
    queue.gate.set(false);
    queue.launches.set(false);
    let (a, b) = (words(&platform, 1), words(&platform, 2));
    steps((&platform, cpu, &queue), [&a, &b], 1..=HERE + 4);
    let closed = watched("into_vec", move || a.into_vec());
    drop((b, platform));
    queue.gate.set(true);
    queue.launches.set(true);
    assert_eq!(closed.join().unwrap()[0], expected(1, 1..=HERE + 4));
}

/// A launcher that first calls back.
struct CallsBack(Arc<Queue>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Launcher for CallsBack {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.0.check(arguments)
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        self.1.lock().unwrap().take().expect("one launch")();
        self.0.launch(launch, grants)
    }
}

/// A launcher and a waker that a stream calls may submit. What would wait for that stream is refused.
#[test]
fn i29_code_that_a_stream_calls_does_not_wait_for_it() {
    struct Waits(Buffer<u32>, Sender<Result<(), AcquireError>>);

    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            self.1.send(self.0.read().map(drop)).unwrap();
        }
    }

    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let [a, b, c, d, e] = [1, 2, 3, 4, 5].map(|value| words(&platform, value));
    queue.gate.set(false);
    let first = steps((&platform, cpu, &queue), [&a, &b], 1..=HERE);
    let (says, said) = channel();
    let (has_submitted, is_submitted) = channel();
    let calls_back = {
        let (platform, queue) = (Platform::clone(&platform), queue.clone());
        let (first, a, b, c, e) = (first.clone(), a.clone(), b.clone(), c.clone(), e.clone());
        move || {
            let stream = (&platform, cpu, &queue);
            // Before that, its own kernel may still have `c`, which would be another refusal.
            is_submitted.recv().unwrap();
            // Of what its own kernel writes, it would have to wait.
            let submitted = step(stream, (&b, &e), HERE + 2).map(|behind| behind.number());
            let waits = [platform.settle(cpu), first.wait(), own(stream, (&a, &c), 9).map(drop)];
            says.send((submitted, waits, a.read().map(drop))).unwrap();
        }
    };
    let calls_back = Arc::new(CallsBack(queue.clone(), Mutex::new(Some(Box::new(calls_back)))));
    platform.submit(cpu, &calls_back).read(&a).write(&c).scalar(HERE + 1).items(1).unwrap();
    has_submitted.send(()).unwrap();
    let (submitted, waits, read) = said.recv().unwrap();
    assert_eq!(submitted.unwrap(), u64::from(HERE + 2));
    for waited in waits {
        assert!(matches!(waited, Err(SubmitError::OnStream)), "{waited:?}");
    }
    assert!(matches!(read, Err(AcquireError::OnStream { .. })), "{read:?}");
    let held = platform.acquire(cpu).write(&d).wait().unwrap();
    let (says, said) = channel();
    let waker = Arc::new(Waits(d.clone(), says)).into();
    assert!(Pin::new(&mut first.clone()).poll(&mut Context::from_waker(&waker)).is_pending());
    queue.gate.set(true);
    let read = said.recv().unwrap();
    assert!(matches!(read, Err(AcquireError::OnStream { .. })), "{read:?}");
    drop(held);
    platform.settle(cpu).unwrap();
    let last = expected(1, 1..=HERE - 1).wrapping_mul(3).wrapping_add(HERE + 2);
    assert_eq!((c.read().unwrap()[0], e.read().unwrap()[0]), (expected(1, 1..=HERE + 1), last));
}

/// A submission that waits for another one to be launched is granted behind it. Its waker may submit.
#[test]
fn i22_a_waker_that_a_launch_lets_in_is_called_without_the_streams_lock() {
    struct Submits(Platform, DeviceId, Arc<Queue>, [Buffer<u32>; 2], Sender<bool>);

    impl Wake for Submits {
        fn wake(self: Arc<Self>) {
            let Self(platform, cpu, queue, [d, e], told) = &*self;
            told.send(step((platform, *cpu, queue), (d, e), 9).is_ok()).unwrap();
        }
    }

    watched("a submission from a waker", || {
        let ((platform, cpu), queue) = (host(), Queue::new(true));
        let [a, b, c, d, e] = [1, 2, 3, 4, 5].map(|value| words(&platform, value));
        // From then on, the thread that ends kernels dozes.
        step((&platform, cpu, &queue), (&a, &c), 7).unwrap().wait().unwrap();
        let (tells, told) = channel();
        let waker = Arc::new(Submits(Platform::clone(&platform), cpu, queue.clone(), [d, e], tells)).into();
        let behind: &'static Arc<Queue> = Box::leak(Box::new(queue.clone()));
        let mut later =
            Box::pin(platform.submit(cpu, behind).read(&b).write(&c).scalar(2_u32).items_async(1));
        let (gives, given) = channel();
        let calls_back = move || {
            assert!(later.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            gives.send(later).unwrap();
        };
        let calls_back = Arc::new(CallsBack(queue.clone(), Mutex::new(Some(Box::new(calls_back)))));
        platform.submit(cpu, &calls_back).read(&a).write(&b).scalar(1_u32).items(1).unwrap();
        assert!(told.recv().unwrap(), "the waker could not submit");
        block_on(given.recv().unwrap()).unwrap().wait().unwrap();
        platform.settle(cpu).unwrap();
        assert_eq!(c.read().unwrap()[0], expected(1, 1..=2));
    })
    .join();
}
