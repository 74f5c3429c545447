//! Tests of the order of events on the owner's side: ends, pages and wake-ups.

use super::super::arena::OffloadArena;
use super::*;
use std::sync::mpsc;
use std::task::{Wake, Waker};

#[test]
fn the_last_reference_ends_the_worker() {
    let (device, watch) = runs(|ticket| vec![done(ticket)]);
    let function = device.function("any").unwrap();
    drop(device);
    assert_eq!(watch.kills.load(Ordering::Relaxed), 0, "the function keeps the device");
    drop(function);
    assert_eq!(watch.kills.load(Ordering::Relaxed), 1);
}

/// In the other order, a new block could take the addresses and then lose its pages.
#[test]
fn pages_are_given_back_before_their_addresses() {
    let (device, watch) = device(false, |command| panic!("{command:?}"));
    let arena = OffloadArena::new(device.clone(), DeviceId(1));
    let half = MEMORY_BYTES / 2;
    let (first, second) = (arena.alloc(half).unwrap(), arena.alloc(half).unwrap());
    let (asked, found) = mpsc::channel();
    let owner = Arc::downgrade(&device);
    *watch.on_give_back.lock() = Some(Box::new(move || {
        let taken = owner.upgrade().and_then(|device| device.heap().take(half));
        let _ = asked.send(taken);
    }));
    drop(first);
    assert_eq!(found.recv().unwrap(), None, "the addresses are free while the pages go");
    *watch.on_give_back.lock() = None;
    assert!(arena.alloc(half).is_ok(), "and afterwards they are free");
    drop(second);
}

/// The worker may have ended during the transfer.
#[test]
fn a_transfer_that_ends_after_the_loss_has_failed() {
    let (device, watch) = device(false, |command| panic!("{command:?}"));
    let arena = OffloadArena::new(device.clone(), DeviceId(1));
    let block = arena.alloc(16).unwrap().into_block();
    let ends = watch.clone();
    *watch.on_transfer.lock() = Some(Box::new(move || ends.end()));
    let (bytes, whole) = (HostMemory::zeroed(16).unwrap(), Span::new(0, 16));
    // SAFETY: block and memory are this test's own.
    let copy = unsafe { CopyIn::new(&block, 0, bytes.source(whole)) };
    let ended = arena.copy_in(copy).and_then(dml_core::Fence::wait);
    assert!(matches!(ended, Err(ref error) if error.is_device_lost()), "{ended:?}");
    assert_eq!(watch.transfers.load(Ordering::Relaxed), 1);
}

/// A waker that calls its pipeline and its device, as a future of the application may.
struct Asks {
    pipeline: Pipeline,
    told: Mutex<mpsc::Sender<(String, bool)>>,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        let device = self.pipeline.device();
        let is_lost = device.loss().is_some() || device.function("any").is_err();
        let _ = self.told.lock().send((format!("{:?}", self.pipeline), is_lost));
    }
}

/// Covers the end of a run, of a transfer, and of a run by a loss.
#[test]
fn no_waker_is_called_under_a_lock() {
    let (device, watch) = device(false, |command| match command {
        Command::Find { .. } => vec![Answer::Reply(Reply::Found { function: 3 })],
        Command::Run { ticket, call } if call.end == 1 => vec![done(ticket)],
        _ => Vec::new(),
    });
    let function = device.function("any").unwrap();
    let arena = OffloadArena::new(device.clone(), DeviceId(1));
    let block = arena.alloc(16).unwrap().into_block();
    let (told, wakes) = mpsc::channel();
    for case in 0..3 {
        let asks = Arc::new(Asks { pipeline: device.pipeline(), told: Mutex::new(told.clone()) });
        let (first, opens) = Signal::new();
        let signal = match case {
            0 => asks.pipeline.begin(&function, 0..1, &[], &[first]).unwrap(),
            // SAFETY: the block is this test's own.
            1 => unsafe { asks.pipeline.fill((&block, Span::new(0, 16)), 7, &[first]) }.unwrap(),
            // A run that is never answered.
            _ => asks.pipeline.begin(&function, 0..2, &[], &[first]).unwrap(),
        };
        let mut awaited = signal.awaited();
        assert!(awaited.poll_end(&Waker::from(asks.clone())).is_pending());
        opens.end(Ok(0));
        if case == 2 {
            watch.end();
        }
        let (_, is_lost) = wakes.recv_timeout(Duration::from_secs(20)).expect("the waker returns");
        assert_eq!(is_lost, case == 2, "case {case}");
    }
}
