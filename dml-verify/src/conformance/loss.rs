//! Checks of an arena whose device goes away for good.

use super::Subject;
use super::desk::{Known, Sheet, assert_same, pattern};
use dml_core::{AcquireError, Buffer, Fence, OwnBlock, Span, TransferError};

/// A device that goes away is reported as lost, by its arena and by every later call. No call waits for it,
/// and no bytes are lost that are valid elsewhere. A subject without a [loss](Subject::with_loss) is never
/// lost.
///
/// This is the last check of a subject, because the arena is of no use afterwards.
///
/// # Panics
/// When the arena breaks this rule.
pub fn a_lost_device_is_told_and_keeps_nobody_waiting(subject: &Subject) {
    let (platform, id) = (subject.platform(), subject.id());
    let name = &subject.desc().name;
    assert!(!subject.arena().is_lost(), "{name} is lost from the start");
    assert_eq!(subject.arena().loss(), None, "{name} names the cause of a loss that has not happened");
    let Some(lose) = subject.loss() else { return };

    let len = if subject.fits_twice(400_012) { 100_003 } else { 13 };
    let kept = platform.buffer_from(pattern(1, len)).expect("a host that takes vectors");
    kept.raw().prefetch_in(id, 0..len as u64).wait().expect("nobody else uses it");
    let gone: Buffer<u8> = platform.buffer(len as u64).build().expect("a buffer of a few bytes");
    let mut grants = platform.acquire_in(id).write(&gone).wait().expect("nobody else uses it");
    grants.write_bytes(&gone, &pattern(2, len)).expect("granted for writing");
    grants.release().expect("committed");
    let block = Known::new(subject, len, 3).block;

    lose();
    // Whatever is done first may meet the loss, or begin before it.
    let (first, any) = (block.clone(), subject.clone());
    subject.or_hangs("the first transfers after a loss", move |_| {
        let _ = (out(&first, len), into(&first, len), any.arena().tail().and_then(Fence::wait));
    });
    assert!(subject.arena().is_lost(), "{name} does not say that it is lost");

    subject.or_hangs("transfers after a loss was told", move |subject| {
        told(out(&block, len), "a copy out");
        told(into(&block, len), "a copy in");
        told(block.fill(Span::new(0, len as u64), 7).and_then(Fence::wait), "a fill");
        let made = OwnBlock::alloc(subject.arena(), 100);
        let is_told = made.as_ref().is_err_and(dml_core::AllocError::is_device_lost);
        assert!(is_told, "an allocation after a loss: {made:?}");
        drop(block);
    });
    let native = subject.desc().native;
    subject.or_hangs("buffers after a loss", move |subject| {
        let platform = subject.platform();
        platform.notice_losses();
        assert!(platform.lost_devices().contains(native), "the platform does not know of the loss");
        let seen = kept.read().expect("these bytes are valid at the host");
        assert_same(&seen, &pattern(1, len), "what was valid elsewhere");
        drop(seen);
        let there = platform.acquire_in(id).read(&kept).wait().map(drop);
        assert!(
            there.as_ref().is_err_and(AcquireError::is_device_lost),
            "an acquire after a loss: {there:?}"
        );
        let lost = gone.read().map(drop);
        assert!(matches!(lost, Err(AcquireError::Poisoned { .. })), "bytes that were only there: {lost:?}");
        assert_same(&kept.into_vec().expect("nobody else uses it"), &pattern(1, len), "what comes back");
    });
    assert!(subject.arena().is_lost(), "{name} is found again");
}

fn out(block: &OwnBlock, len: usize) -> Result<u64, TransferError> {
    Sheet::scrap(len).copy_out_of(block, 0)?.wait()
}

fn into(block: &OwnBlock, len: usize) -> Result<u64, TransferError> {
    Sheet::of(&pattern(4, len)).copy_into(block, 0)?.wait()
}

/// Checks that a call was told of the loss.
fn told(result: Result<u64, TransferError>, what: &str) {
    assert!(result.as_ref().is_err_and(TransferError::is_device_lost), "{what} after a loss: {result:?}");
}
