//! Signal and wait of an offload device: the end of work done by another thread (L-4).

#![cfg(all(feature = "offload", target_os = "linux"))]

use crate::rig::{explore, explore_all};
use dml::arenas::offload::{OffloadError, Signal};
use dml::core::{Fence, TransferError};
use loom::future::block_on;
use loom::thread::spawn;
use std::future::poll_fn;
use std::task::Waker;

fn awaited(mut fence: Fence) -> Result<u64, TransferError> {
    block_on(poll_fn(|context| fence.poll(context.waker())))
}

#[test]
fn l04_everybody_who_waits_for_a_signal_hears_its_end() {
    explore_all(|| {
        let (signal, signaller) = Signal::new();
        let (one, two) = (signal.clone(), signal.clone());
        let waiters = [spawn(move || one.wait()), spawn(move || two.wait())];
        signaller.end(Ok(7));
        assert!(signal.is_ended());
        assert!(waiters.into_iter().all(|waiter| waiter.join().expect("no panic") == Ok(7)));
    });
}

#[test]
fn l04_whoever_awaits_a_signal_is_woken() {
    // Three threads, each with several critical sections: every interleaving would take minutes.
    explore(|| {
        let (signal, signaller) = Signal::new();
        let (one, two) = (signal.clone(), signal);
        let awaiting = [one, two].map(|signal| spawn(move || awaited(signal.fence())));
        signaller.end(Ok(3));
        assert!(awaiting.into_iter().all(|awaits| awaits.join().expect("no panic") == Ok(3)));
    });
}

#[test]
fn l04_work_that_is_given_up_wakes_as_well() {
    explore_all(|| {
        let (signal, signaller) = Signal::new();
        let waits = signal.clone();
        let waiter = spawn(move || waits.wait());
        let gives_up = spawn(move || drop(signaller));
        assert!(awaited(signal.fence()).is_err());
        assert!(matches!(waiter.join().expect("no panic"), Err(OffloadError::GivenUp)));
        gives_up.join().expect("no panic");
    });
}

#[test]
fn l04_a_waiter_that_goes_keeps_no_other_asleep() {
    explore(|| {
        let (signal, signaller) = Signal::new();
        let (goes, stays) = (signal.clone(), signal);
        let gone = spawn(move || {
            let mut fence = goes.fence();
            fence.poll(Waker::noop()).is_ready()
        });
        let awaiting = spawn(move || awaited(stays.fence()));
        signaller.end(Ok(3));
        assert_eq!(awaiting.join().expect("no panic"), Ok(3));
        gone.join().expect("no panic");
    });
}
