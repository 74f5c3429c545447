//! Workers that go: what everybody hears of it.

use crate::common::host;
use crate::rig::{Rig, is_there, kill, wait_until};
use dml_arenas::offload::{Argument, Function, Loss, OffloadError, Signal};
use dml_core::Scalar;
use dml_core::{AllocError, Arena, BlockRef, DeviceLoss, Fill, Span, TransferError};
use std::time::Duration;

/// The error of a transfer, which names the device and says why it is lost.
fn lost(rig: &Rig) -> TransferError {
    let cause = rig.device().loss().expect("it is lost").to_string().into();
    TransferError::DeviceLost { loss: Some(DeviceLoss { device: "offload:0".into(), cause }) }
}

/// What everybody hears of a device that is lost.
fn expect_lost(rig: &Rig, block: &BlockRef) {
    let (lost, mut bytes) = (Err(lost(rig)), host(&[7; 8]));
    assert!(rig.device().is_lost());
    assert_eq!(rig.copy_in(block, 0, &bytes).map(drop), lost.clone());
    assert_eq!(rig.copy_out(block, 0, &mut bytes).map(drop), lost.clone());
    // SAFETY: the block is the test's own, and nothing touches it any more.
    let fill = unsafe { Fill::new(block, Span::new(0, 8), 1) };
    assert_eq!(rig.arena.fill(fill).map(drop), lost);
    assert_eq!(bytes.bytes(), [7; 8]);
    let error = rig.arena.alloc(8).unwrap_err();
    let why = rig.device().loss().unwrap().to_string().into();
    assert_eq!(error, AllocError::DeviceLost { arena: "offload:0".into(), loss: Some(why) });
    assert!(error.is_device_lost());
    assert_eq!(rig.arena.loss().as_deref(), rig.device().loss().map(|loss| loss.to_string()).as_deref());
    assert!(rig.device().function("scale").unwrap_err().is_device_lost());
    assert!(rig.device().load("x.so").unwrap_err().is_device_lost());
    assert!(rig.line().fill((block, Span::new(0, 8)), 1, &[]).unwrap_err().is_device_lost());
    wait_until("the process is gone", || !is_there(rig.device().process().expect("a process")));
}

#[test]
fn a_worker_that_is_killed_is_a_lost_device() {
    let rig = Rig::new();
    let block = rig.block(&[1; 8]);
    let (hang, fail) = (rig.function("hang"), rig.function("fail_silently"));
    let [one, two] = std::array::from_fn(|_| rig.line());
    let running = one.run(&hang, 0..1, &[], &[]).unwrap();
    let sent = one.run(&fail, 0..1, &[], &[]).unwrap();
    let waiting = two.run(&fail, 0..1, &[], std::slice::from_ref(&running)).unwrap();
    let fence = rig.launch(&hang, 0..1, &[]).unwrap();
    kill(rig.device().process().unwrap(), "KILL");
    let lost = running.wait().unwrap_err();
    assert_eq!(lost.to_string(), "offload:0 is lost: its worker ended (signal: 9 (SIGKILL))");
    assert_eq!(sent.wait(), Err(lost));
    assert!(waiting.wait().unwrap_err().is_device_lost());
    assert_eq!(fence.wait(), Err(self::lost(&rig)));
    expect_lost(&rig, &block);
}

#[test]
fn a_worker_that_dies_while_nobody_asks_is_a_lost_device() {
    let rig = Rig::new();
    let block = rig.block(&[1; 8]);
    kill(rig.device().process().unwrap(), "KILL");
    wait_until("the loss is known", || rig.device().is_lost());
    assert!(matches!(rig.device().loss(), Some(Loss::Ended { .. })));
    expect_lost(&rig, &block);
}

#[test]
fn a_worker_that_hangs_is_killed_for_it() {
    let limit = Duration::from_millis(300);
    let rig = Rig::with(|options| options.time_limit = Some(limit));
    let block = rig.block(&[1; 8]);
    let pipeline = rig.line();
    let hung = pipeline.run(&rig.function("hang"), 0..1, &[], &[]).unwrap();
    let behind = pipeline.fill((&block, Span::new(0, 8)), 1, &[]).unwrap();
    match hung.wait().unwrap_err() {
        OffloadError::DeviceLost { loss: Loss::Hung { command, limit: told }, .. } => {
            assert_eq!((&*command, told), ("hang", limit));
        }
        error => panic!("{error}"),
    }
    assert!(behind.wait().unwrap_err().is_device_lost());
    expect_lost(&rig, &block);
}

#[test]
fn a_worker_that_is_stopped_is_killed_for_it() {
    let rig = Rig::with(|options| options.time_limit = Some(Duration::from_millis(300)));
    let block = rig.block(&[1; 8]);
    kill(rig.device().process().unwrap(), "STOP");
    let fence = rig.launch(&rig_function_of_stopped(&rig), 0..1, &[]);
    let ended = fence.map_err(TransferError::from).and_then(dml_core::Fence::wait);
    assert_eq!(ended, Err(lost(&rig)));
    assert!(matches!(rig.device().loss(), Some(Loss::Hung { .. })), "{:?}", rig.device().loss());
    expect_lost(&rig, &block);
}

/// Looked up while it runs, to be called when it is stopped.
fn rig_function_of_stopped(rig: &Rig) -> Function {
    kill(rig.device().process().unwrap(), "CONT");
    let function = rig.function("fail_silently");
    kill(rig.device().process().unwrap(), "STOP");
    function
}

#[test]
fn a_function_that_ends_its_worker_is_a_lost_device() {
    for (function, status) in [("crash", "signal: 6"), ("leave", "exit status: 3")] {
        let rig = Rig::new();
        let block = rig.block(&[1; 8]);
        let three = [Argument::Scalar(Scalar::U32(3))];
        let ended = rig.line().run(&rig.function(function), 0..1, &three, &[]).unwrap().wait();
        assert!(ended.unwrap_err().is_device_lost());
        match rig.device().loss() {
            Some(Loss::Ended { status: told }) => assert!(told.starts_with(status), "{told}"),
            loss => panic!("{loss:?}"),
        }
        expect_lost(&rig, &block);
    }
}

#[test]
fn a_lost_device_has_a_successor() {
    let old = Rig::new();
    kill(old.device().process().unwrap(), "KILL");
    wait_until("the loss is known", || old.device().is_lost());
    let new = Rig::new();
    assert!(!new.text("describe", 0..1, &[]).is_empty());
    assert_ne!(old.device().process(), new.device().process());
}

#[test]
fn what_waits_for_something_else_hears_of_a_loss() {
    let rig = Rig::new();
    let block = rig.block(&[1; 8]);
    let (never, _signaller) = Signal::new();
    let waits = rig.line().fill((&block, Span::new(0, 8)), 2, std::slice::from_ref(&never)).unwrap();
    let run = rig.line().run(&rig.function("fail"), 0..1, &[], &[never]).unwrap();
    kill(rig.device().process().unwrap(), "KILL");
    assert!(waits.wait().unwrap_err().is_device_lost());
    assert!(run.wait().unwrap_err().is_device_lost());
}
