//! Which requests wait for which, in which order they are admitted, and what a waiter that gives up leaves.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::{
    AcquireError, AcquireFuture, BusyReason, Concurrency, DeviceId, Grants, Platform, RawBuffer,
};
use dml_verify::history::assert_history;
use dml_verify::{
    CPU, GPU, GPU_ARENA, GPU2, MAIN_ARENA, Rig, block_on, bytes, check, get, mapped_pair, pair, poll_once,
    put, raw, read, star, watched, write,
};
use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

fn written(platform: &Platform) -> RawBuffer {
    let buffer = raw(platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    buffer
}

fn reader(buffer: &RawBuffer, device: DeviceId) -> AcquireFuture {
    buffer.platform().acquire(device).read(buffer).into_future()
}

fn writer(buffer: &RawBuffer, device: DeviceId) -> AcquireFuture {
    buffer.platform().acquire(device).read_write(buffer).into_future()
}

fn granted(future: &mut AcquireFuture) -> Grants {
    match poll_once(future) {
        Poll::Ready(result) => result.expect("nothing fails here"),
        Poll::Pending => panic!("still waiting"),
    }
}

fn waits(future: &mut AcquireFuture) -> bool {
    poll_once(future).is_pending()
}

/// Returns whether no request holds or waits for anything.
fn is_quiet(buffer: &RawBuffer) -> bool {
    let state = check(buffer);
    state.is_idle() && state.queue().len() == 0
}

#[test]
fn l03_readers_do_not_pass_a_writer_who_waits() {
    let platform = star();
    let recording = platform.record();
    let buffer = written(&platform);
    let first = platform.acquire(CPU).read(&buffer).try_now().unwrap();
    let mut writer = writer(&buffer, GPU);
    assert!(waits(&mut writer));
    let mut late = reader(&buffer, CPU);
    assert!(waits(&mut late), "a newcomer would pass the writer");
    let tried = platform.acquire(CPU).read(&buffer.range(0..1)).try_now();
    assert!(matches!(tried, Err(AcquireError::Busy { reason: BusyReason::Queue, .. })), "{tried:?}");
    drop(first);
    assert!(waits(&mut late));
    let mut held = granted(&mut writer);
    put(&mut held, &buffer, 0, &bytes(2, 0..100));
    assert!(waits(&mut late));
    held.release().unwrap();
    assert_eq!(get(&granted(&mut late), &buffer, 0..100), bytes(2, 0..100));
    drop((writer, late, buffer));
    assert_history(&platform, &recording.finish());
}

/// The order of requests holds per buffer, not over several.
#[test]
fn a_request_that_waits_for_its_first_buffer_is_not_yet_in_the_queue_of_its_second() {
    let platform = star();
    let (first, second) = (written(&platform), written(&platform));
    let holder = platform.acquire(CPU).read_write(&first).try_now().unwrap();
    let mut both = platform.acquire(CPU).read_write(&first).read_write(&second).into_future();
    assert!(waits(&mut both));
    let later = platform.acquire(CPU).read_write(&second).try_now().expect("no request stands before it");
    holder.release().unwrap();
    // Now it does stand there, behind the later request.
    assert!(waits(&mut both));
    assert!(waits(&mut reader(&second, CPU)), "behind a writer that waits");
    later.release().unwrap();
    granted(&mut both).release().unwrap();
    assert!(is_quiet(&first) && is_quiet(&second));
}

#[test]
fn l03_a_stream_of_readers_does_not_starve_a_writer() {
    let platform = star();
    let buffer = written(&platform);
    let written = Arc::new(AtomicBool::new(false));
    let (tell, reading) = channel();
    let readers: Vec<_> = [CPU, GPU, GPU2]
        .map(|device| {
            let (buffer, written, tell) = (buffer.clone(), written.clone(), tell.clone());
            watched("a reader", move || {
                // Before it lets one grant go, it holds the next: without the writer there is never a gap.
                let mut held = buffer.platform().acquire(device).read(&buffer).wait().unwrap();
                tell.send(()).unwrap();
                while !written.load(Ordering::Acquire) {
                    if let Ok(next) = buffer.platform().acquire(device).read(&buffer).try_now() {
                        held = next;
                    } else {
                        drop(held);
                        held = buffer.platform().acquire(device).read(&buffer).wait().unwrap();
                    }
                }
                drop(held);
            })
        })
        .into();
    (0..3).for_each(|_| reading.recv().unwrap());
    let writing = buffer.clone();
    let writer = watched("the writer", move || {
        let mut held = writing.platform().acquire(CPU).read_write(&writing).wait().unwrap();
        put(&mut held, &writing, 0, &bytes(2, 0..100));
        written.store(true, Ordering::Release);
        held.release().unwrap();
    });
    writer.join();
    readers.into_iter().for_each(dml_verify::Watched::join);
    assert_eq!(read(&buffer, MAIN_ARENA, 0..100), bytes(2, 0..100));
    assert!(is_quiet(&buffer));
}

#[test]
fn l03_writers_come_in_as_they_came() {
    let platform = star();
    let buffer = written(&platform);
    let mut held = platform.acquire(GPU).read(&buffer).try_now().unwrap();
    let mut queue: Vec<_> = (0..7).map(|index| writer(&buffer, DeviceId(index % 3))).collect();
    assert!(queue.iter_mut().all(waits));
    for index in 0..queue.len() {
        drop(held);
        held = granted(&mut queue[index]);
        assert!(queue[index + 1..].iter_mut().all(waits), "{index}");
    }
    drop(held);
    assert!(is_quiet(&buffer));
}

#[test]
fn l03_readers_come_in_together_and_writers_between_them() {
    let platform = star();
    let buffer = written(&platform);
    let first = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    let mut batch = [reader(&buffer, CPU), reader(&buffer, GPU), reader(&buffer, GPU2)];
    let mut between = writer(&buffer, CPU);
    let mut after = [reader(&buffer, CPU), reader(&buffer, GPU)];
    assert!(batch.iter_mut().chain([&mut between]).chain(&mut after).all(waits));
    drop(first);
    let held = batch.each_mut().map(granted);
    assert!(waits(&mut between) && after.iter_mut().all(waits));
    drop(held);
    let held = granted(&mut between);
    assert!(after.iter_mut().all(waits));
    drop(held);
    assert_eq!(after.each_mut().map(granted).len(), 2);
    assert!(is_quiet(&buffer));
}

#[test]
fn l03_who_disturbs_nobody_need_not_wait() {
    let platform = star();
    let buffer = written(&platform);
    let held = platform.acquire(CPU).read(&buffer.range(0..50)).try_now().unwrap();
    let region = buffer.range(20..60);
    let mut waiting = platform.acquire(GPU).read_write(&region).into_future();
    assert!(waits(&mut waiting));
    let beside = platform.acquire(GPU2).read_write(&buffer.range(60..100)).try_now().unwrap();
    let also = platform.acquire(GPU).read(&buffer.range(0..20)).try_now().unwrap();
    drop((beside, also, held));
    drop(granted(&mut waiting));
}

#[test]
fn l01_opposite_orders_come_to_an_end_and_never_overlap() {
    const THREADS: usize = 6;
    let platform = star();
    let buffers: Arc<Vec<RawBuffer>> = Arc::new((0..3).map(|_| written(&platform)).collect());
    let inside: Arc<Vec<AtomicUsize>> = Arc::new((0..3).map(|_| AtomicUsize::new(0)).collect());
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (buffers, inside, start) = (buffers.clone(), inside.clone(), start.clone());
            watched("a thread with an order of its own", move || {
                start.wait();
                for round in 0..60 {
                    let first = (thread + round) % 3;
                    let order =
                        if thread % 2 == 0 { [first, (first + 1) % 3] } else { [(first + 1) % 3, first] };
                    let asked = buffers[0].platform().acquire(DeviceId(((thread + round) % 3) as u16));
                    let asked = order.iter().fold(asked, |asked, &index| asked.read_write(&buffers[index]));
                    let held = if round % 3 == 0 { block_on(asked.into_future()) } else { asked.wait() };
                    let held = held.unwrap();
                    for index in order {
                        assert_eq!(inside[index].fetch_add(1, Ordering::SeqCst), 0, "two writers of {index}");
                    }
                    std::thread::yield_now();
                    for index in order {
                        inside[index].fetch_sub(1, Ordering::SeqCst);
                    }
                    held.release().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(dml_verify::Watched::join);
    assert!(buffers.iter().all(is_quiet));
}

#[test]
fn i15_a_timeout_leaves_nothing_held_or_waiting() {
    let platform = star();
    let (a, b, c) = (written(&platform), written(&platform), written(&platform));
    let holder = platform.acquire(CPU).write(&b).try_now().unwrap();
    let asking = [a.clone(), b.clone(), c.clone()];
    let asked = watched("wait_timeout()", move || {
        let [a, b, c] = &asking;
        a.platform()
            .acquire(GPU)
            .read(c)
            .read(b)
            .read_write(a)
            .wait_timeout(Duration::from_millis(1))
            .map(drop)
    });
    let told = asked.join();
    let waited = Duration::from_millis(1);
    assert_eq!(told, Err(AcquireError::Timeout { buffer: b.name(), waited }));
    assert!(is_quiet(&a) && is_quiet(&c) && check(&b).queue().len() == 0);
    drop(holder);
    // What needs no waiting needs no time.
    drop(platform.acquire(GPU).read(&a).read(&b).wait_timeout(Duration::ZERO).unwrap());
}

#[test]
fn i15_a_future_dropped_while_it_waits_lets_those_behind_it_in() {
    let platform = star();
    let (a, b) = (written(&platform), written(&platform));
    let holder = platform.acquire(CPU).read(&b).try_now().unwrap();
    let mut gives_up = platform.acquire(GPU).read_write(&a).read_write(&b).into_future();
    assert!(waits(&mut gives_up));
    let (mut of_a, mut of_b) = (writer(&a, CPU), reader(&b, CPU));
    assert!(waits(&mut of_a) && waits(&mut of_b));
    drop(gives_up);
    drop((granted(&mut of_a), granted(&mut of_b)));
    drop(holder);
    assert!(is_quiet(&a) && is_quiet(&b));
}

#[test]
fn i15_a_future_granted_and_never_polled_again_gives_back() {
    // Once without a plan (the bytes are there), once with copies planned.
    for device in [CPU, GPU] {
        let platform = star();
        let recording = platform.record();
        let buffer = written(&platform);
        let holder = platform.acquire(CPU).write(&buffer).try_now().unwrap();
        let mut forgets = writer(&buffer, device);
        let mut next = reader(&buffer, GPU2);
        assert!(waits(&mut forgets) && waits(&mut next));
        drop(holder);
        assert_eq!(check(&buffer).requestors().len(), 1, "it was let in");
        assert!(waits(&mut next));
        drop(forgets);
        assert_eq!(get(&granted(&mut next), &buffer, 0..100), bytes(1, 0..100));
        assert!(is_quiet(&buffer));
        drop((next, buffer));
        assert_history(&platform, &recording.finish());
    }
}

#[test]
fn l04_a_sleeping_future_is_woken() {
    let platform = star();
    let buffer = written(&platform);
    let mut holder = platform.acquire(GPU).read_write(&buffer).try_now().unwrap();
    put(&mut holder, &buffer, 0, &bytes(2, 0..100));
    let waiting = buffer.clone();
    let sleeper = watched("block_on()", move || {
        let held = block_on(reader(&waiting, CPU)).unwrap();
        get(&held, &waiting, 0..100)
    });
    while buffer.snapshot().queue().len() == 0 {
        std::thread::yield_now();
    }
    holder.release().unwrap();
    assert_eq!(sleeper.join(), bytes(2, 0..100));
}

#[test]
fn l04_every_sleeping_thread_of_a_batch_is_woken() {
    let platform = star();
    let buffer = written(&platform);
    let holder = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    let sleepers: Vec<_> = (0..6)
        .map(|index| {
            let buffer = buffer.clone();
            watched("a reader of the batch", move || {
                let held = buffer.platform().acquire(DeviceId(index % 3)).read(&buffer).wait().unwrap();
                get(&held, &buffer, 0..100)
            })
        })
        .collect();
    while buffer.snapshot().queue().len() < 6 {
        std::thread::yield_now();
    }
    drop(holder);
    for sleeper in sleepers {
        assert_eq!(sleeper.join(), bytes(1, 0..100));
    }
}

/// A waker that counts, and panics if it is told to.
#[derive(Default)]
struct Bell {
    rung: AtomicUsize,
    breaks: bool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        assert!(!self.breaks, "a broken waker");
    }
}

fn poll_with(future: &mut AcquireFuture, bell: &Arc<Bell>) -> Poll<Result<Grants, AcquireError>> {
    let waker = Waker::from(bell.clone());
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

#[test]
fn l04_the_waker_of_the_last_poll_is_woken_once() {
    let platform = pair();
    let buffer = written(&platform);
    let holder = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    let (old, new) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let mut future = reader(&buffer, CPU);
    assert!(poll_with(&mut future, &old).is_pending() && poll_with(&mut future, &new).is_pending());
    drop(holder);
    let rung = [&old, &new].map(|bell| bell.rung.load(Ordering::SeqCst));
    assert_eq!(rung, [0, 1]);
    drop(granted(&mut future));
}

#[test]
fn l04_a_waker_that_panics_keeps_nobody_asleep() {
    let platform = pair();
    let buffer = written(&platform);
    let holder = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    let (broken, sound) = (Arc::new(Bell { breaks: true, ..Bell::default() }), Arc::new(Bell::default()));
    let (mut first, mut second) = (reader(&buffer, CPU), reader(&buffer, CPU));
    assert!(poll_with(&mut first, &broken).is_pending() && poll_with(&mut second, &sound).is_pending());
    let released = catch_unwind(AssertUnwindSafe(|| holder.release()));
    assert!(matches!(released, Ok(Ok(()))), "the panic is that of the waker's owner");
    assert_eq!(sound.rung.load(Ordering::SeqCst), 1);
    drop((granted(&mut second), granted(&mut first)));
    assert!(is_quiet(&buffer));
}

#[test]
fn i15_a_waiter_is_told_of_its_failed_copy_and_the_others_go_on() {
    let script = Script::new().at_kind(CallKind::CopyIn, 1, Fault::fail());
    let platform = Rig::new().gpu_with(Concurrency::Exclusive, script).staged(MAIN_ARENA, GPU_ARENA).build();
    let recording = platform.record();
    let buffer = written(&platform);
    let holder = platform.acquire(CPU).write(&buffer).try_now().unwrap();
    let (mut fails, mut host, mut again) = (reader(&buffer, GPU), reader(&buffer, CPU), reader(&buffer, GPU));
    assert!(waits(&mut fails) && waits(&mut host) && waits(&mut again));
    drop(holder);
    // The third reader cannot fill what the first one is filling.
    assert!(waits(&mut again));
    let Poll::Ready(Err(error)) = poll_once(&mut fails) else { panic!("its copy fails") };
    assert!(matches!(error, AcquireError::CopyFailed { .. }), "{error}");
    drop(granted(&mut host));
    assert_eq!(get(&granted(&mut again), &buffer, 0..100), bytes(1, 0..100));
    assert!(is_quiet(&buffer));
    drop((fails, host, again, buffer));
    assert_history(&platform, &recording.finish());
}

#[test]
fn l03_a_change_of_map_state_gets_its_turn() {
    let platform = mapped_pair(Concurrency::Exclusive);
    let recording = platform.record();
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let kernel = platform.acquire(GPU).read(&buffer.range(50..100)).try_now().unwrap();
    // The gpu's memory has to be mapped for the host, and a kernel of the gpu is at work in it.
    let (left, right) = (buffer.range(0..50), buffer.range(50..100));
    let mut host = platform.acquire(CPU).read(&left).into_future();
    assert!(waits(&mut host));
    let tried = platform.acquire(CPU).read(&left).try_now();
    assert!(matches!(tried, Err(AcquireError::Busy { .. })), "{tried:?}");
    // Later kernels of the gpu would keep it at work for ever, though they conflict with no bytes.
    let mut late = platform.acquire(GPU).read(&right).into_future();
    assert!(waits(&mut late));
    drop(kernel);
    let held = granted(&mut host);
    assert_eq!(get(&held, &buffer, 0..50), bytes(1, 0..50));
    assert_eq!(get(&granted(&mut late), &buffer, 50..100), bytes(1, 50..100));
    drop(held);
    drop((host, late, left, right, buffer));
    assert_history(&platform, &recording.finish());
}

#[test]
fn l03_a_stream_of_kernels_does_not_starve_the_host() {
    let platform = mapped_pair(Concurrency::Exclusive);
    let buffer = raw(&platform, 100);
    write(&buffer, GPU_ARENA, 0..100, 1);
    let done = Arc::new(AtomicBool::new(false));
    let (tell, running) = channel();
    let kernels: Vec<_> = (0..2)
        .map(|_| {
            let (buffer, done, tell) = (buffer.clone(), done.clone(), tell.clone());
            watched("a stream of kernels", move || {
                while !done.load(Ordering::Acquire) {
                    let held = buffer.platform().acquire(GPU).read(&buffer).wait().unwrap();
                    let _ = tell.send(());
                    std::thread::yield_now();
                    drop(held);
                }
            })
        })
        .collect();
    running.recv().unwrap();
    let host = buffer.clone();
    let host = watched("the host", move || {
        for round in 2..12 {
            // Its own copy is out of date again each time.
            let mut kernel = host.platform().acquire(GPU).read_write(&host).wait().unwrap();
            put(&mut kernel, &host, 0, &bytes(round, 0..100));
            kernel.release().unwrap();
            let held = host.platform().acquire(CPU).read(&host).wait().unwrap();
            assert_eq!(get(&held, &host, 0..100), bytes(round, 0..100));
        }
        done.store(true, Ordering::Release);
    });
    host.join();
    kernels.into_iter().for_each(dml_verify::Watched::join);
    assert!(is_quiet(&buffer));
}
