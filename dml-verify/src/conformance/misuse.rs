//! Requests that core must never make. Only these checks break the contract, to see that the arena notices.

use super::Subject;
use super::desk::{Known, Sheet, pattern};
use dml_arenas::MainMem;
use dml_core::{Arena, OwnBlock, Span, TransferError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Makes an impossible request.
///
/// # Panics
/// When the arena carries the request out, returns an error, or panics without its name.
pub(super) fn expect_core_bug(
    subject: &Subject,
    what: &str,
    ask: impl FnOnce() -> Result<(), TransferError>,
) {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(Ok(())) => panic!("{what} was carried out"),
        Ok(Err(error)) => panic!("{what} is a bug of core, not an error: {error}"),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let name = &subject.desc().name;
            assert!(text.contains("core bug"), "{what}: the panic does not say whose bug it is: {text}");
            assert!(text.contains(&**name), "{what}: the panic does not name {name}: {text}");
        }
    }
}

/// Asks the subject for a copy in, a copy out and a fill of `span` of a block.
fn touch(subject: &Subject, what: &str, block: &OwnBlock, span: Span) {
    let (block, len) = (block.asked_of(subject.arena()), span.len() as usize);
    expect_core_bug(subject, &format!("a copy into {what}"), || {
        Sheet::scrap(len).copy_into(&block, span.start())?.wait().map(drop)
    });
    expect_core_bug(subject, &format!("a copy out of {what}"), || {
        Sheet::scrap(len).copy_out_of(&block, span.start())?.wait().map(drop)
    });
    expect_core_bug(subject, &format!("a fill of {what}"), || block.fill(span, 0xBD)?.wait().map(drop));
}

/// A transfer past the end of its block panics, names the arena, and leaves all blocks as they were.
///
/// # Panics
/// When the arena breaks this rule.
pub fn bytes_past_the_end_are_bugs_of_core(subject: &Subject) {
    let before = Known::new(subject, 4096, 1);
    let known = Known::new(subject, 4096, 2);
    let after = Known::new(subject, 4096, 3);
    let end = known.block.block().len();
    for span in
        [(0, end + 1), (end - 1, end + 1), (end, end + 1), (end + 64, end + 65), (1 << 40, 1 << 40 | 1)]
    {
        let span = Span::new(span.0, span.1);
        touch(subject, &format!("bytes {span} of {end}"), &known.block, span);
    }
    [before, known, after].iter().for_each(Known::check);
}

/// A transfer of another arena's block panics and names the arena that was asked. The block stays as it was.
///
/// # Panics
/// When the arena breaks this rule.
pub fn blocks_of_other_arenas_are_bugs_of_core(subject: &Subject) {
    let known = Known::new(subject, 512, 4);
    // The foreign block is host memory, so that an arena of host memory could touch it by mistake.
    let another: Arc<dyn Arena> = Arc::new(MainMem::new(subject.host()));
    let foreign = OwnBlock::alloc(&another, 512).expect("memory for a test");
    let bytes = pattern(5, 512);
    foreign.overwrite(0, &bytes);
    touch(subject, "a block of another arena", &foreign, Span::new(0, 512));
    assert!(foreign.seen().expect("host memory") == bytes, "a block of another arena was written");
    // Blocks of the platform's other arenas must be refused too.
    let own = usize::from(subject.id().0);
    for (_, arena) in subject.platform().arenas().iter().enumerate().filter(|(index, _)| *index != own) {
        if let Ok(foreign) = OwnBlock::alloc(arena, 512) {
            let what = format!("a block of {}", arena.desc().name);
            touch(subject, &what, &foreign, Span::new(3, 400));
        }
    }
    known.check();
}
