//! Checks of how transfers end: with fences that are waited for, polled, dropped, moved to other threads, or
//! several at once.
//!
//! These checks behave as the engine does. The block and the host memory of a transfer are held until its
//! fence was waited for, and no dependent operation starts before.

use super::Subject;
use super::desk::{Known, Sheet, assert_same, pattern};
use crate::block_on;
use dml_core::{Fence, Span};
use std::future::poll_fn;
use std::task::{Poll, Waker};

const LENS: [usize; 4] = [0, 1, 4097, (3 << 20) + 1];

/// Polls first with a waker that does nothing, then with one that records its wake, until the work has ended.
fn polled(mut fence: Fence) -> u64 {
    let mut poll = |waker: &Waker| {
        let said = fence.has_ended();
        let polled = fence.poll(waker);
        assert!(!said || polled.is_ready(), "a fence says that it has ended, and is pending");
        polled
    };
    if let Poll::Ready(ended) = poll(Waker::noop()) {
        return ended.expect("the transfer works");
    }
    let ended = block_on(poll_fn(|context| poll(context.waker())));
    ended.expect("the transfer works")
}

/// A polled fence ends. If it is not ready, it wakes the waker of the last poll. One that says that it has
/// ended is ready.
///
/// # Panics
/// When the arena breaks this rule, or moves another number of bytes.
pub fn fences_wake_whoever_polls_last(subject: &Subject) {
    subject.or_hangs("a fence that is polled", |subject| {
        for (seed, len) in (1..).zip(LENS).filter(|&(_, len)| subject.fits_twice(len as u64)) {
            let block = subject.alloc(len as u64);
            let (from, to) = (Sheet::of(&pattern(seed, len)), Sheet::scrap(len));
            let fence = from.copy_into(&block, 0).expect("a copy starts");
            assert_eq!(polled(fence), len as u64, "bytes copied in");
            let fence = to.copy_out_of(&block, 0).expect("a copy starts");
            assert_eq!(polled(fence), len as u64, "bytes copied out");
            assert_same(&to.bytes(), &pattern(seed, len), "bytes of a polled copy");
            let fence = block.fill(Span::new(0, len as u64), 0xB7).expect("a fill starts");
            assert_eq!(polled(fence), len as u64, "bytes filled");
            assert_same(&subject.take(&block, 0, len), &vec![0xB7; len], "bytes of a polled fill");
            // A fence that was polled once may still be waited for.
            let mut fence = from.copy_into(&block, 0).expect("a copy starts");
            let ended = match fence.poll(Waker::noop()) {
                Poll::Ready(ended) => ended,
                Poll::Pending => fence.wait(),
            };
            assert_eq!(ended, Ok(len as u64), "bytes copied in");
            assert_same(&subject.take(&block, 0, len), &pattern(seed, len), "bytes of a copy waited for");
        }
    });
}

/// A fence that is dropped without a wait has done its work by then.
///
/// # Panics
/// When the arena breaks this rule.
pub fn fences_dropped_unwaited_have_done_their_work(subject: &Subject) {
    for (seed, len) in (1..).zip(LENS).filter(|&(_, len)| subject.fits_twice(len as u64)) {
        let mut known = Known::new(subject, len, seed);
        known.model = pattern(seed + 10, len);
        let from = Sheet::of(&known.model);
        drop(from.copy_into(&known.block, 0).expect("a copy starts"));
        drop(from);
        known.check();
        let to = Sheet::scrap(len);
        drop(to.copy_out_of(&known.block, 0).expect("a copy starts"));
        assert_same(&to.bytes(), &known.model, "bytes of a copy whose fence was dropped");
        let end = len / 2;
        drop(known.block.fill(Span::new(0, end as u64), 0x6D).expect("a fill starts"));
        known.model[..end].fill(0x6D);
        known.check();
    }
}

/// A transfer has given its loans back when its fence has ended, whether the fence was waited for, polled or
/// dropped. Core checks that before it accepts the end.
///
/// # Panics
/// When the arena keeps a loan.
pub fn transfers_give_back_what_they_were_lent(subject: &Subject) {
    subject.or_hangs("the end of a transfer", |subject| {
        for len in LENS.into_iter().filter(|&len| subject.fits_twice(len as u64)) {
            let block = subject.alloc(len as u64);
            let waited = |fence: Fence| assert_eq!(fence.wait(), Ok(len as u64), "bytes moved");
            let polled = |fence: Fence| assert_eq!(polled(fence), len as u64, "bytes moved");
            let ends: [(&str, &dyn Fn(Fence)); 3] =
                [("waited for", &waited), ("polled", &polled), ("dropped", &drop::<Fence>)];
            for (how, end) in ends {
                let (from, to) = (Sheet::of(&pattern(len as u64, len)), Sheet::scrap(len));
                end(from.copy_into(&block, 0).expect("a copy starts"));
                assert!(!from.is_lent(), "the source of a copy of {len} bytes is kept after it was {how}");
                end(to.copy_out_of(&block, 0).expect("a copy starts"));
                assert!(!to.is_lent(), "the target of a copy of {len} bytes is kept after it was {how}");
                end(block.fill(Span::new(0, len as u64), 0x3C).expect("a fill starts"));
                // Panics while a transfer is under way.
                let _ = block.address();
            }
        }
    });
}

/// Several transfers at once, on disjoint parts of one block and on several blocks, end correctly in any
/// order of waiting.
///
/// # Panics
/// When bytes are wrong afterwards.
pub fn fences_end_in_any_order(subject: &Subject) {
    const PARTS: usize = 12;
    let part = 8191;
    let mut known = Known::new(subject, PARTS * part, 7);
    known.model = pattern(8, PARTS * part);
    let sheets: Vec<_> = known.model.chunks_exact(part).map(Sheet::of).collect();
    let put = |(at, sheet): (usize, &Sheet)| {
        sheet.copy_into(&known.block, (at * part) as u64).expect("a copy starts")
    };
    let fences: Vec<Fence> = sheets.iter().enumerate().map(put).collect();
    fences.into_iter().rev().for_each(|fence| assert_eq!(fence.wait(), Ok(part as u64)));
    known.check();
    // Copies in both directions and a fill, at once.
    let fill = Span::new((3 * part) as u64, (4 * part) as u64);
    let (from, to) = (Sheet::of(&pattern(9, part)), Sheet::scrap(part));
    let fences = [
        known.block.fill(fill, 0x91).expect("a fill starts"),
        to.copy_out_of(&known.block, (5 * part) as u64).expect("a copy starts"),
        from.copy_into(&known.block, 0).expect("a copy starts"),
    ];
    fences.into_iter().rev().for_each(|fence| assert_eq!(fence.wait(), Ok(part as u64)));
    assert_same(&to.bytes(), &known.model[5 * part..6 * part], "bytes copied out beside others");
    known.model[3 * part..4 * part].fill(0x91);
    known.model[..part].copy_from_slice(&pattern(9, part));
    known.check();
    // Several blocks.
    let blocks: Vec<_> = (0..PARTS).map(|_| subject.alloc(part as u64)).collect();
    let put = |(block, sheet): (_, &Sheet)| sheet.copy_into(block, 0).expect("a copy starts");
    let fences: Vec<Fence> = blocks.iter().zip(&sheets).map(put).collect();
    fences.into_iter().rev().for_each(|fence| assert_eq!(fence.wait(), Ok(part as u64)));
    let targets: Vec<_> = blocks.iter().map(|_| Sheet::scrap(part)).collect();
    let take = |(block, sheet): (_, &Sheet)| sheet.copy_out_of(block, 0).expect("a copy starts");
    let fences: Vec<Fence> = blocks.iter().zip(&targets).map(take).collect();
    fences.into_iter().rev().for_each(|fence| assert_eq!(fence.wait(), Ok(part as u64)));
    for (sheet, target) in sheets.iter().zip(&targets) {
        assert_same(&target.bytes(), &sheet.bytes(), "bytes of one block among several");
    }
}

/// A fence works the same when it is waited for or dropped on another thread, which then has the last
/// reference to the block.
///
/// # Panics
/// When the arena breaks this rule.
pub fn fences_end_on_other_threads(subject: &Subject) {
    for (seed, len) in (1..).zip(LENS).filter(|&(_, len)| subject.fits_twice(len as u64)) {
        let block = subject.alloc(len as u64);
        let from = Sheet::of(&pattern(seed, len));
        let fence = from.copy_into(&block, 0).expect("a copy starts");
        subject.or_hangs("a fence on another thread", move |subject| {
            assert_eq!(fence.wait(), Ok(len as u64), "bytes waited for elsewhere");
            drop(from);
            assert_same(&subject.take(&block, 0, len), &pattern(seed, len), "bytes waited for elsewhere");
            let to = Sheet::scrap(len);
            let fence = to.copy_out_of(&block, 0).expect("a copy starts");
            std::thread::scope(|scope| scope.spawn(move || drop(fence)).join())
                .expect("a drop does not panic");
            assert_same(&to.bytes(), &pattern(seed, len), "bytes of a fence dropped elsewhere");
        });
    }
}
