//! The test arenas inside a model: every interleaving of two threads that use them at once.
//!
//! Run with `RUSTFLAGS="--cfg dml_loom" cargo test -p dml-arenas --test loom`.

#![cfg(dml_loom)]

use dml_arenas::faulty::{CallKind, Fault};
use dml_arenas::{Faulty, Null, Script};
use dml_core::sync::Arc;
use dml_core::{Arena, ArenaDesc, ArenaKind, DeviceId, DeviceSet, Span};

#[test]
fn two_threads_keep_the_books_of_a_faulty_null_straight() {
    loom::model(|| {
        let desc =
            ArenaDesc::new("gpu", ArenaKind("test"), DeviceId(1)).with_remotes(DeviceSet::of(DeviceId(0)));
        let script = Script::new().at_kind(CallKind::Fill, 2, Fault::Short(1));
        let arena = Arc::new(Faulty::new(Null::backed(desc), script));
        let work = |arena: &Faulty<Null>| {
            let block = arena.alloc(4).unwrap();
            let done = arena.fill(&block, Span::new(0, 4), 7).unwrap().wait().unwrap();
            arena.free(block);
            done
        };
        let other = arena.clone();
        let thread = loom::thread::spawn(move || work(&other));
        let mine = work(&arena);
        let theirs = thread.join().unwrap();
        // Exactly one of the two fills is the second.
        assert_eq!(mine + theirs, 5);
        assert_eq!(arena.inner().live_blocks(), 0);
        assert_eq!((arena.calls_made(), arena.inner().calls().len()), (6, 6));
    });
}
