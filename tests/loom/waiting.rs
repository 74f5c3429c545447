//! Futures: polled, dropped while they are let in, woken once (L-4, I-15).

use crate::rig::{ALL, CPU, GPU, Machine, Shared, explore, explore_all, thread};
use dml::core::AcquireFuture;
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use loom::future::block_on;
use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A waker that can be slept on, and counts.
#[derive(Default)]
struct Bell {
    rung: Mutex<usize>,
    rings: Condvar,
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock();
        while *rung == 0 {
            rung = self.rings.wait(rung);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock() += 1;
        self.rings.notify_all();
    }
}

fn poll(future: &mut AcquireFuture, waker: &Waker) -> Poll<<AcquireFuture as Future>::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// The future of a writer, polled while a kernel holds the bytes.
fn waiting_writer(shared: &Shared, waker: &Waker) -> AcquireFuture {
    let mut future = shared.ask(CPU).read_write(&shared.buffer).into_future();
    assert!(poll(&mut future, waker).is_pending(), "a kernel holds the bytes");
    future
}

/// A release wakes a timed wait and a future that wait for the same bytes. No deadline passes in a model: the
/// timed wait has to be woken.
#[test]
fn l04_every_way_to_wait_is_woken() {
    explore(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let (timed, awaited) = (mine.clone(), mine.clone());
        let timed = thread::spawn(move || {
            let acquire = timed.ask(CPU).write(&timed.buffer);
            let grants = acquire.wait_timeout(Duration::from_secs(3600)).expect("granted in the end");
            grants.release().expect("no device is lost");
        });
        let awaited = thread::spawn(move || {
            let grants = block_on(awaited.ask(CPU).write(&awaited.buffer).into_future());
            grants.expect("granted in the end").release().expect("no device is lost");
        });
        holding.release().expect("no device is lost");
        timed.join().expect("the timed one ends");
        awaited.join().expect("the future ends");
        assert_eq!(mine.buffer.snapshot().commit_seq().0, 3);
        mine.end();
    });
}

/// A future that moved from one task to another is woken through the waker it was last polled with: once, and
/// never through the first one after that.
#[test]
fn l04_a_future_polled_from_two_places_wakes_the_last() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let bells: [Arc<Bell>; 2] = Default::default();
        let mut future = waiting_writer(&mine, &bells[0].clone().into());
        let other = thread::spawn(move || holding.release().expect("no device is lost"));
        let granted = match poll(&mut future, &bells[1].clone().into()) {
            Poll::Ready(granted) => granted,
            Poll::Pending => {
                bells[1].wait();
                match poll(&mut future, Waker::noop()) {
                    Poll::Ready(granted) => granted,
                    Poll::Pending => panic!("woken before the answer was there"),
                }
            }
        };
        drop(granted.expect("granted"));
        other.join().expect("the other one ends");
        assert!(*bells[0].rung.lock() + *bells[1].rung.lock() <= 1, "one answer, one call");
        mine.end();
    });
}

/// Whether or not it has been let in by then, it leaves nothing: the next writer is not kept waiting.
#[test]
fn i15_a_future_dropped_while_it_is_let_in_gives_back() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let future = waiting_writer(&mine, Waker::noop());
        let other = thread::spawn(move || holding.release().expect("no device is lost"));
        drop(future);
        other.join().expect("the other one ends");
        mine.bump(CPU);
        mine.end();
    });
}

/// As before, but what it is let in with is a plan: reserved copies, marks, an entry.
#[test]
fn i15_a_future_dropped_with_a_plan_in_hand_gives_it_up() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).read_write(&mine.buffer).wait().expect("nobody else is there yet");
        let mut future = mine.ask(GPU).read(&mine.buffer).into_future();
        assert!(poll(&mut future, Waker::noop()).is_pending(), "a writer holds the bytes");
        let other = thread::spawn(move || holding.release().expect("no device is lost"));
        drop(future);
        other.join().expect("the other one ends");
        mine.write(CPU, ALL, 1);
        assert_eq!(mine.read(GPU, ALL), 1);
        mine.end();
    });
}

/// The reader waits only because a writer came first: when that writer gives up, it has to admit the reader.
#[test]
fn l03_a_waiter_who_gives_up_lets_in_those_behind() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let future = waiting_writer(&mine, Waker::noop());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(CPU, ALL));
        drop(future);
        assert_eq!(other.join().expect("the reader ends"), 0);
        drop(holding);
        mine.end();
    });
}

/// Wakers are foreign code.
#[test]
fn l04_a_waker_that_panics_keeps_nobody_asleep() {
    struct Broken(AtomicUsize);
    impl Wake for Broken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            // Without the hook's message, which would come once an interleaving.
            std::panic::resume_unwind(Box::new("a waker's own fault"));
        }
    }
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).write(&mine.buffer).wait().expect("nobody else is there yet");
        let broken = Arc::new(Broken(AtomicUsize::new(0)));
        let mut future = mine.ask(CPU).read(&mine.buffer).into_future();
        assert!(poll(&mut future, &broken.clone().into()).is_pending(), "a writer holds the bytes");
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(CPU, ALL));
        let released = catch_unwind(AssertUnwindSafe(|| holding.release()));
        assert!(matches!(released, Ok(Ok(()))), "a waker's panic is its owner's, not that of who lets in");
        assert_eq!(broken.0.load(Ordering::Relaxed), 1);
        other.join().expect("the reader ends");
        drop(future);
        mine.end();
    });
}
