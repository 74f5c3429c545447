//! Kernels that are submitted: they queue on their device, and everybody else waits for them.

#![cfg(not(dml_loom))]

mod ahead;
mod behind;
mod devices;
mod ordered;
mod queue;
mod random;
mod under_grants;

use dml::arenas::{Discover, DiscoverOptions, launch};
use dml::core::record::EventKind;
use dml::core::{AcquireError, Buffer, DeviceId, Launcher, Platform, SubmitError};
use dml_verify::history::{assert_history, violations};
use dml_verify::random::Random;
use dml_verify::{block_on, poll_once, watched};
use queue::{Queue, Refuses, WORDS, host, plain, step, words};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SOURCE: &str = "
kernel void scale(global const float* from, global float* to, float by, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) to[i] = from[i] * by;
}
kernel void add(global float* a, float what, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) a[i] += what;
}
kernel void turn(global const float* from, global float* to, local float* tile, uint width, uint height) {
    size_t x = get_global_id(0), y = get_global_id(1);
    tile[get_local_id(0)] = x < width && y < height ? from[y * width + x] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (x < width && y < height) to[x * height + y] = tile[get_local_id(0)];
}";

const LEN: u64 = 1000;

struct Scene {
    platform: Platform,
    device: DeviceId,
    scale: Arc<dyn Launcher>,
    add: Arc<dyn Launcher>,
    turn: Arc<dyn Launcher>,
}

impl Scene {
    /// Returns `None` on a machine without OpenCL, unless it is expected there.
    fn new() -> Option<Self> {
        Self::with(&DiscoverOptions::default())
    }

    fn with(options: &DiscoverOptions) -> Option<Self> {
        let platform = Platform::builder().discover_with(options).unwrap().build().unwrap();
        let Ok(device) = platform.device("opencl:0") else {
            assert!(std::env::var_os("DML_EXPECT_OPENCL").is_none(), "there is no OpenCL device");
            return None;
        };
        // SAFETY: the kernels touch only the elements of their items, and nothing past the end.
        let kernel = |name| unsafe { launch::kernel(&platform, device, SOURCE, name) }.unwrap();
        let (scale, add, turn) = (kernel("scale"), kernel("add"), kernel("turn"));
        Some(Self { platform, device, scale, add, turn })
    }

    fn scales(&self, from: &Buffer<f32>, to: &Buffer<f32>, by: f32) {
        let submit = self.platform.submit(self.device, &self.scale);
        submit.read(from).write(to).scalar(by).scalar(LEN).items(LEN).unwrap();
    }

    fn adds(&self, to: &Buffer<f32>, what: f32) -> Result<(), SubmitError> {
        let submit = self.platform.submit(self.device, &self.add);
        submit.read_write(to).scalar(what).scalar(LEN).items(LEN).map(drop)
    }
}

#[test]
fn a_chain_of_kernels_gives_what_one_after_the_other_gives() {
    let Some(scene) = Scene::new() else { return };
    let a = scene.platform.buffer_from(vec![1.0_f32; LEN as usize]).unwrap();
    let b = scene.platform.buffer::<f32>(LEN).build().unwrap();
    let mut expected = 1.0_f32;
    for _ in 0..500 {
        scene.scales(&a, &b, 0.5);
        scene.scales(&b, &a, 2.0);
        scene.adds(&a, 1.0).unwrap();
        expected += 1.0;
    }
    assert!(a.read().unwrap().iter().all(|value| *value == expected));
    scene.platform.settle(scene.device).unwrap();
    assert!(scene.platform.leaked_grants().is_empty());
}

/// An input and an output of a kernel that change places are noticed.
#[test]
fn what_a_kernel_cannot_change_is_not_written() {
    let Some(Scene { platform, device, scale, .. }) = Scene::new() else { return };
    let buffer = || platform.buffer_from(vec![1.0_f32; LEN as usize]).unwrap();
    let swapped =
        platform.submit(device, &scale).write(&buffer()).read(&buffer()).scalar(2.0_f32).scalar(LEN);
    let error = swapped.items(LEN).unwrap_err();
    let text = "argument 0 of kernel scale on opencl:0 is a pointer to constant memory, and was given a buffer to write";
    assert_eq!(error.to_string(), text);
}

/// A history in which a kernel was granted beside another one is allowed only if both were on the stream, and
/// ended in their order.
#[test]
fn i29_the_history_tells_kernels_on_a_stream_from_others() {
    let ((platform, cpu), queue) = (plain(), Queue::new(true));
    let recording = platform.record();
    {
        let (a, b) = (words(&platform, 1), words(&platform, 2));
        queue.gate.set(false);
        step((&platform, cpu, &queue), (&a, &b), 1).unwrap();
        step((&platform, cpu, &queue), (&b, &a), 2).unwrap();
        queue.gate.set(true);
        platform.settle(cpu).unwrap();
        drop((a, b));
    }
    let events = recording.finish();
    assert_history(&platform, &events);
    let launches: Vec<_> =
        (0..events.len()).filter(|at| matches!(events[*at].kind, EventKind::Launched { .. })).collect();
    assert_eq!(launches.len(), 4, "two kernels on two buffers");
    for at in launches {
        let mut without = events.clone();
        without.remove(at);
        assert!(!violations(&platform, &without).is_empty(), "without event {at} of {events:#?}");
    }
    // The ends of the two grants of a buffer change places.
    let ends: Vec<_> = (0..events.len())
        .filter(|at| events[*at].buffer == events[0].buffer)
        .filter(|at| matches!(events[*at].kind, EventKind::Released { .. }))
        .collect();
    let mut swapped = events.clone();
    swapped.swap(ends[0], ends[1]);
    assert!(!violations(&platform, &swapped).is_empty());
}

fn is_busy<T>(result: Result<T, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Busy { .. }))
}

#[test]
fn i29_kernels_follow_each_other_and_everybody_else_waits() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let (a, b, c) = (words(&platform, 1), words(&platform, 0), words(&platform, 9));
    queue.gate.set(false);
    let stream = (&*platform, cpu, &queue);
    let first = step(stream, (&a, &b), 10).unwrap();
    let second = step(stream, (&b, &a), 20).unwrap();
    let third = step(stream, (&a, &b), 30).unwrap();
    assert_eq!([&first, &second, &third].map(|submission| submission.number()), [1, 2, 3]);
    assert!(!first.has_ended());
    // A view of the host, a plain acquire and a kernel of another kind wait; other buffers are free.
    assert!(is_busy(platform.acquire(cpu).read(&b).try_now()));
    assert!(is_busy(platform.acquire(cpu).write(&a).try_now()));
    let other = Queue::new(false);
    let refused = platform.submit(cpu, &other).read(&a).write(&c).scalar(1_u32).try_items(1);
    assert!(matches!(refused, Err(SubmitError::Acquire(AcquireError::Busy { .. }))), "{refused:?}");
    assert_eq!(*c.read().unwrap(), [9; WORDS]);
    let reads = {
        let b = b.clone();
        watched("a view of the host", move || b.read().map(|view| view[0]))
    };
    queue.gate.set(true);
    let a_now = 3 * (3 + 10) + 20;
    assert_eq!(reads.join().unwrap(), 3 * a_now + 30);
    third.wait().unwrap();
    assert!(first.has_ended() && second.wait().is_ok());
    assert_eq!(*a.read().unwrap(), [a_now; WORDS]);
    platform.settle(cpu).unwrap();
    assert!(platform.leaked_grants().is_empty());
}

#[test]
fn i29_what_fails_poisons_what_it_and_those_behind_it_write() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let [a, b, c, d] = [1, 2, 3, 4].map(|value| words(&platform, value));
    queue.gate.set(false);
    queue.fails.lock().push(20);
    let stream = (&*platform, cpu, &queue);
    let before = step(stream, (&a, &b), 10).unwrap();
    let failed = step(stream, (&b, &c), 20).unwrap();
    let behind = step(stream, (&a, &d), 30).unwrap();
    queue.gate.set(true);
    before.wait().unwrap();
    for submission in [&failed, &behind] {
        let error = submission.wait().unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(&error, SubmitError::Failed { number: 2, kernel, device, .. }
                if &**kernel == "step" && &**device == "cpu"),
            "{error:?}"
        );
        assert!(said.starts_with("step, submission 2 of cpu, failed") && said.contains("trapped"), "{said}");
    }
    assert_eq!((a.read().unwrap()[0], b.read().unwrap()[0]), (1, 13));
    for poisoned in [&c, &d] {
        let error = poisoned.read().unwrap_err();
        assert!(matches!(error, AcquireError::Poisoned { .. }));
        let said = error.to_string();
        assert!(
            said.contains("step, submitted to cpu at tests/submitting/") && said.contains(", failed"),
            "{said}"
        );
    }
    let settled = platform.settle(cpu);
    assert!(matches!(settled, Err(SubmitError::Failed { number: 2, .. })), "{settled:?}");
    platform.settle(cpu).expect("it was told");
    // The stream is open again. What is overwritten is whole again.
    step(stream, (&b, &c), 40).unwrap().wait().unwrap();
    assert_eq!(c.read().unwrap()[0], 3 * 13 + 40);
    let refused = step(stream, (&d, &c), 50).unwrap_err();
    assert!(matches!(refused, SubmitError::Acquire(AcquireError::Poisoned { .. })), "{refused:?}");
    assert_eq!(c.read().unwrap()[0], 3 * 13 + 40, "what is refused changes nothing");
}

#[test]
fn i29_a_launch_that_is_refused_changes_nothing_and_one_that_failed_poisons() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let stream = (&*platform, cpu, &queue);
    for (refuses, started, text) in [
        (Refuses::NotStarted, false, "step was not launched on cpu: no room"),
        (Refuses::Failed, true, "step failed at its launch on cpu: half of it ran"),
        (Refuses::Panics, true, "a bad launcher"),
    ] {
        let (a, b) = (words(&platform, 1), words(&platform, 2));
        step(stream, (&b, &a), 5).unwrap();
        *queue.refuses.lock() = Some(refuses);
        let error = step(stream, (&a, &b), 6).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(
            matches!(error, SubmitError::Launch { has_started, .. } if has_started == started),
            "{error:?}"
        );
        assert_eq!(a.read().unwrap()[0], 11);
        assert_eq!(b.read().map(|view| view[0]).is_ok(), !started);
        platform.settle(cpu).expect("the submitter was told");
        assert!(platform.leaked_grants().is_empty());
    }
    let misfit = platform.submit(cpu, &queue).scalar(1_u32).items(1).unwrap_err();
    assert!(matches!(misfit, SubmitError::Misfit(_)), "{misfit:?}");
    let (a, b) = (words(&platform, 1), words(&platform, 2));
    for (items, text) in [([0, 5], "0 x 5"), ([2, 1 << 62], "2 x 4611686018427387904")] {
        let misfit = platform.submit(cpu, &queue).read(&a).write(&b).scalar(1_u32).items(items).unwrap_err();
        assert_eq!(misfit.to_string(), format!("kernel step cannot run with {text} work-items"));
    }
    let foreign = host().0;
    let error = step(stream, (&words(&foreign, 1), &words(&platform, 1)), 1).unwrap_err();
    assert!(matches!(error, SubmitError::Acquire(AcquireError::ForeignBuffer { .. })), "{error:?}");
}

/// A launch that fails after it began has written where a kernel in flight does. The kernel's end commits
/// nothing of that.
#[test]
fn i29_a_failed_launch_is_not_covered_up_by_the_kernel_before_it() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let [a, b, c] = [1, 2, 3].map(|value| words(&platform, value));
    let stream = (&*platform, cpu, &queue);
    queue.gate.set(false);
    let first = step(stream, (&a, &b), 10).unwrap();
    *queue.refuses.lock() = Some(Refuses::Failed);
    let fails = {
        let (platform, queue, a, b) = (Platform::clone(&platform), queue.clone(), a.clone(), b.clone());
        watched("a failed launch", move || step((&platform, cpu, &queue), (&a, &b), 20).unwrap_err())
    };
    // The launch fails while the first kernel is in flight.
    while queue.refuses.lock().is_some() {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    queue.gate.set(true);
    let error = fails.join();
    assert!(matches!(error, SubmitError::Launch { has_started: true, .. }), "{error:?}");
    first.wait().unwrap();
    assert!(matches!(b.read(), Err(AcquireError::Poisoned { .. })));
    step(stream, (&a, &c), 30).unwrap().wait().unwrap();
    assert_eq!(c.read().unwrap()[0], 33, "the stream is open");
}

#[test]
fn a_stream_takes_no_more_than_it_has_room_for() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let (a, b) = (words(&platform, 1), words(&platform, 2));
    queue.gate.set(false);
    let mut submitted = 0;
    let error = loop {
        match platform.submit(cpu, &queue).read(&a).write(&b).scalar(1_u32).try_items(1) {
            Ok(_) => submitted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, SubmitError::Full { device } if &**device == "cpu"), "{error:?}");
    assert_eq!(submitted, 256);
    let mut later = platform.submit(cpu, &queue).read(&a).write(&b).scalar(1_u32).items_async(1);
    assert!(poll_once(&mut later).is_pending());
    let waits = {
        let (platform, queue, a, b) = (Platform::clone(&platform), queue.clone(), a.clone(), b.clone());
        watched("room", move || step((&platform, cpu, &queue), (&a, &b), 2).map(drop))
    };
    queue.gate.set(true);
    waits.join().unwrap();
    block_on(later).unwrap().wait().unwrap();
    platform.settle(cpu).unwrap();
    assert_eq!(queue.launched.lock().len(), 258);
}

#[test]
fn a_future_launches_once_it_is_granted_and_not_at_all_if_it_is_dropped() {
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let (a, b) = (words(&platform, 1), words(&platform, 2));
    let held = platform.acquire(cpu).read(&b).wait().unwrap();
    let asked = || platform.submit(cpu, &queue).read(&a).write(&b).scalar(7_u32).items_async(1);
    let (mut dropped, mut kept) = (asked(), asked());
    assert!(poll_once(&mut dropped).is_pending() && poll_once(&mut kept).is_pending());
    drop(dropped);
    held.release().unwrap();
    let submission = block_on(&mut kept).unwrap();
    let again = poll_once(&mut kept);
    assert!(
        matches!(again, std::task::Poll::Ready(Err(SubmitError::Acquire(AcquireError::Finished)))),
        "{again:?}"
    );
    block_on(submission.clone()).unwrap();
    assert_eq!((submission.number(), b.read().unwrap()[0]), (1, 10));
    assert_eq!(queue.launched.lock().len(), 1);
}

/// Everything is dropped while kernels are in flight: they end, and so does all that they kept.
#[test]
fn what_is_forgotten_ends_by_itself() {
    for blocks in [false, true] {
        let ((platform, cpu), queue) = (plain(), Queue::new(true));
        queue.blocks.store(blocks, Ordering::Relaxed);
        queue.gate.set(false);
        let (a, b) = (words(&platform, 1), words(&platform, 2));
        step((&platform, cpu, &queue), (&a, &b), 1).unwrap();
        step((&platform, cpu, &queue), (&b, &a), 2).unwrap();
        let closed = watched("into_vec", move || b.into_vec());
        drop((a, platform));
        queue.gate.set(true);
        assert_eq!(closed.join().unwrap(), [4; WORDS]);
    }
}

/// No call waits for the kernel: the stream ends it by itself, also after it was idle, and gives its buffer
/// back.
#[test]
fn a_kernel_that_no_call_waits_for_ends() {
    for blocks in [false, true] {
        let ((platform, cpu), queue) = (host(), Queue::new(true));
        queue.blocks.store(blocks, Ordering::Relaxed);
        let (a, b) = (words(&platform, 1), words(&platform, 2));
        for _ in 0..2 {
            let submission = step((&*platform, cpu, &queue), (&a, &b), 1).unwrap();
            let ends = watched("the end", move || {
                while !submission.has_ended() {
                    std::thread::yield_now();
                }
            });
            ends.join();
            assert!(platform.leaked_grants().is_empty());
            std::thread::sleep(std::time::Duration::from_millis(20)); // the stream falls asleep
        }
    }
}

/// Random kernels of several threads over shared buffers equal the same kernels one after the other, in the
/// order of their launches; and each thread's kernels on its own buffers are in its own order.
#[test]
fn i29_random_programs_equal_the_serial_run() {
    for seed in 0..20 {
        let ((platform, cpu), queue) = (host(), Queue::new(true));
        let shared: Vec<_> = (0..4).map(|value| words(&platform, value)).collect();
        let next = AtomicU64::new(1);
        let firsts: Vec<(usize, u32)> = shared
            .iter()
            .map(|buffer| {
                let grants = platform.acquire(cpu).read(buffer).wait().unwrap();
                let slice = grants.slice::<u32>(buffer).unwrap();
                (slice.as_ptr().addr(), slice[0])
            })
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (platform, queue, shared, next) = (&*platform, &queue, &shared, &next);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 3 + thread);
                    for _ in 0..200 {
                        let from = random.below(4) as usize;
                        let to = (from + 1 + random.below(3) as usize) % 4;
                        if random.below(10) == 0 {
                            drop(shared[from].read().unwrap());
                            continue;
                        }
                        let number = next.fetch_add(1, Ordering::Relaxed) as u32;
                        step((platform, cpu, queue), (&shared[from], &shared[to]), number).unwrap();
                    }
                });
            }
        });
        platform.settle(cpu).unwrap();
        let mut expected: std::collections::BTreeMap<usize, u32> = firsts.iter().copied().collect();
        for &(from, to, number) in queue.launched.lock().iter() {
            let value = expected[&from].wrapping_mul(3).wrapping_add(number);
            expected.insert(to, value);
        }
        for (buffer, (address, _)) in shared.iter().zip(&firsts) {
            assert_eq!(*buffer.read().unwrap(), [expected[address]; WORDS], "seed {seed}");
        }
    }
}

/// With failures anywhere, every buffer holds what the serial run without the failed kernels and those
/// behind them gives, or is poisoned.
#[test]
fn i29_random_failures_leave_the_serial_run_or_poison() {
    let poisoned = AtomicBool::new(false);
    for seed in 0..60 {
        let ((platform, cpu), queue) = (host(), Queue::new(true));
        let mut random = Random::new(seed);
        let mut buffers: Vec<_> = (0..4).map(|value| words(&platform, value)).collect();
        let mut values: Vec<Option<u32>> = (0..4).map(Some).collect();
        for round in 0..10_u32 {
            queue.gate.set(false);
            // Kernels of one round are in flight together; the one that fails takes those behind it along.
            // Of many, the last ones are not launched by their submitter.
            let in_flight = if random.below(2) == 0 { 6 } else { 30 };
            let fails = random.below(in_flight + 2) as u32;
            let mut has_failed = false;
            for kernel in 0..in_flight as u32 {
                let from = random.below(4) as usize;
                let to = (from + 1 + random.below(3) as usize) % 4;
                let number = 100 * round + kernel;
                if kernel == fails {
                    queue.fails.lock().push(number);
                }
                let submitted = step((&*platform, cpu, &queue), (&buffers[from], &buffers[to]), number);
                if submitted.is_err() {
                    // What was poisoned before this round cannot be read.
                    assert_eq!(values[from], None, "seed {seed}: {submitted:?}");
                    continue;
                }
                has_failed |= kernel == fails;
                let written = values[from].map(|value| value.wrapping_mul(3).wrapping_add(number));
                values[to] = if has_failed { None } else { written };
                if values[from].is_none() && !has_failed {
                    panic!("seed {seed}: kernel {number} reads what is poisoned");
                }
            }
            queue.gate.set(true);
            let settled = platform.settle(cpu);
            assert_eq!(settled.is_err(), has_failed, "seed {seed}: {settled:?}");
            for (at, buffer) in buffers.iter_mut().enumerate() {
                match (values[at], buffer.read()) {
                    (Some(value), Ok(view)) => assert_eq!(*view, [value; WORDS], "seed {seed}"),
                    (None, Err(AcquireError::Poisoned { .. })) => poisoned.store(true, Ordering::Relaxed),
                    (value, read) => panic!("seed {seed}, buffer {at}: {value:?}, {:?}", read.map(|_| ())),
                }
            }
            for (at, value) in values.iter_mut().enumerate().filter(|(_, value)| value.is_none()) {
                // Half of what is poisoned is written again.
                if random.below(2) == 0 {
                    buffers[at] = words(&platform, 5);
                    *value = Some(5);
                }
            }
        }
    }
    assert!(poisoned.into_inner(), "something failed");
}

/// With `DML_SETTLE=each`, the submission of the kernel that fails says so itself.
#[test]
fn each_kernel_is_waited_for_where_the_environment_says_so() {
    const CHILD: &str = "each_kernel_is_waited_for_where_the_environment_says_so";
    if std::env::var_os("DML_SETTLE").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status = child.args(["--exact", CHILD]).env("DML_SETTLE", "each").status().unwrap();
        assert!(status.success());
        return;
    }
    let ((platform, cpu), queue) = (host(), Queue::new(true));
    let (a, b) = (words(&platform, 1), words(&platform, 2));
    queue.fails.lock().push(2);
    assert!(step((&*platform, cpu, &queue), (&a, &b), 1).unwrap().has_ended());
    let error = step((&*platform, cpu, &queue), (&a, &b), 2).unwrap_err();
    assert!(matches!(error, SubmitError::Failed { number: 2, .. }), "{error:?}");
}
