//! Checks of storage that the arena shares with main memory, or with another root.

use super::desk::{assert_same, pattern};
use super::links::same_arenas;
use super::{Subject, Support};
use dml_core::internal::state::Alloc;
use dml_core::{
    AcquireError, AllocError, Allocation, ArenaId, Binding, Buffer, Concurrency, ConfigError, Link, Platform,
};
use std::ops::Range;
use std::sync::Arc;

/// A block over the storage of main memory, or of another root, shows each side what the other wrote,
/// whenever the storage is handed over. No bytes are moved, and the application's storage comes back as it
/// was. An arena that does not offer this declines with an error that names the arena.
///
/// # Panics
/// When the arena breaks this rule.
pub fn bound_storage_is_shared(subject: &Subject) {
    let ((root, concurrency), id) = (subject.root(), subject.id());
    if root == id {
        return;
    }
    match (subject.binding(), bound(subject, root, concurrency)) {
        (Support::Declined, Ok(platform)) => declines(subject, &platform, root),
        // The arena could never take the storage back.
        (Support::Declined, Err(_)) => {}
        (Support::Offered, platform) => {
            let platform = platform.expect("its parts are those of a platform");
            for len in [0, 1, 4_097, 1_000_003] {
                if subject.fits_twice(len as u64) {
                    hand_over(&platform, (root, id), len);
                }
            }
            zeros_are_shared(&platform, (root, id));
            if concurrency == Concurrency::BimapFull {
                parts_are_held_at_once(&platform, (root, id));
            }
        }
    }
}

fn declines(subject: &Subject, platform: &Platform, main: ArenaId) {
    let buffer = platform.buffer_from(pattern(1, 100)).expect("a host that takes vectors");
    match buffer.raw().bind(subject.id(), main) {
        Err(AcquireError::Alloc { cause: AllocError::Unsupported { arena, .. }, .. }) => {
            assert_eq!(arena, subject.desc().name, "who declines");
        }
        other => panic!("storage that the arena does not share is bound: {other:?}"),
    }
    assert_same(
        &buffer.read().expect("nobody has written it"),
        &pattern(1, 100),
        "bytes after a binding declined",
    );
}

/// Returns a platform of the same arenas, in which the arena is bound to the root.
fn bound(subject: &Subject, root: ArenaId, concurrency: Concurrency) -> Result<Platform, ConfigError> {
    let mut builder = same_arenas(subject.platform());
    let link = Link {
        from: root,
        to: subject.id(),
        source_via: subject.platform().desc(root).native,
        target_via: subject.desc().native,
        allocation: Allocation::Bound(concurrency),
    };
    builder.add_link(link, Arc::new(Binding::default()));
    builder.build()
}

fn hand_over(platform: &Platform, (root, id): (ArenaId, ArenaId), len: usize) {
    let mut model = pattern(len as u64, len);
    let is_main = platform.host().and_then(|host| platform.home(host)) == Some(root);
    let (buffer, address) = if is_main {
        let storage = model.clone();
        let address = storage.as_ptr();
        (platform.buffer_from(storage).expect("a host that takes vectors"), Some(address))
    } else {
        let buffer = platform.buffer(len as u64).build().expect("a buffer of a few bytes");
        let mut grants = platform.acquire_in(root).write(&buffer).wait().expect("nobody else uses it");
        grants.write_bytes(&buffer, &model).expect("granted for writing");
        grants.release().expect("committed");
        (buffer, None)
    };
    for round in 0..4 {
        let what = format_args!("{len} bytes as the device sees them, round {round}");
        assert_same(&read(platform, id, &buffer, 0..len), &model, what);
        for (arena, part) in [(id, len / 3..len), (root, len / 2..len - len / 5), (id, 0..len / 7)] {
            write(platform, arena, &buffer, part.clone(), &pattern(round + part.end as u64, part.len()));
            model[part.clone()].copy_from_slice(&pattern(round + part.end as u64, part.len()));
        }
        let seen = read(platform, root, &buffer, 0..len);
        assert_same(&seen, &model, format_args!("{len} bytes as the host sees them, round {round}"));
    }
    if len > 0 {
        let alloc = buffer.raw().snapshot().arena(id).alloc;
        assert!(matches!(alloc, Alloc::Bound { root: of, .. } if of == root), "{alloc:?}");
    }
    let moved: u64 = platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
    assert_eq!(moved, 0, "bytes that were moved between two that share storage");
    if let Some(address) = address {
        let back = buffer.into_vec().expect("nobody else uses it");
        assert!(len == 0 || back.as_ptr() == address, "storage comes back as it was");
        assert_same(&back, &model, "what comes back");
    }
}

/// Both sides hold parts of coherent storage at once, and each sees what the other has committed.
fn parts_are_held_at_once(platform: &Platform, (root, id): (ArenaId, ArenaId)) {
    let len = 9_001;
    let buffer: Buffer<u8> = platform.buffer(len).zeroed().build().expect("a buffer of a few bytes");
    let parts = [(root, 0..3_001), (id, 3_001..6_007), (root, 6_007..len)];
    let held = parts.map(|(arena, part)| {
        let region = buffer.range(part.clone());
        let mut grants = platform.acquire_in(arena).read_write(&region).try_now().expect("no part conflicts");
        let bytes = pattern(part.start + 5, (part.end - part.start) as usize);
        grants.write_bytes(&region, &bytes).expect("granted for writing");
        (grants, part, bytes)
    });
    for (grants, part, bytes) in held {
        grants.release().expect("committed");
        let part = part.start as usize..part.end as usize;
        for arena in [root, id] {
            assert_same(&read(platform, arena, &buffer, part.clone()), &bytes, "a part held beside others");
        }
    }
}

/// Storage that core makes is shared as well, and is readable before anybody has written it.
fn zeros_are_shared(platform: &Platform, (root, id): (ArenaId, ArenaId)) {
    for first in [root, id] {
        let buffer: Buffer<u8> = platform.buffer(5_003).zeroed().build().expect("a buffer of a few bytes");
        for arena in [first, root, id] {
            assert_same(&read(platform, arena, &buffer, 0..5_003), &[0; 5_003], "zeros");
        }
        write(platform, id, &buffer, 11..4_097, &pattern(3, 4_086));
        assert_same(&read(platform, root, &buffer, 11..4_097), &pattern(3, 4_086), "what the device wrote");
        assert_same(&read(platform, root, &buffer, 4_097..5_003), &[0; 906], "zeros behind it");
    }
}

/// Writes a range as a kernel of the arena's device would.
fn write(platform: &Platform, arena: ArenaId, buffer: &Buffer<u8>, range: Range<usize>, bytes: &[u8]) {
    let region = buffer.range(range.start as u64..range.end as u64);
    let mut grants = platform.acquire_in(arena).read_write(&region).wait().expect("nobody else uses it");
    grants.write_bytes(&region, bytes).expect("granted for writing");
    grants.release().expect("committed");
}

fn read(platform: &Platform, arena: ArenaId, buffer: &Buffer<u8>, range: Range<usize>) -> Vec<u8> {
    let region = buffer.range(range.start as u64..range.end as u64);
    let grants = platform.acquire_in(arena).read(&region).wait().expect("nobody else uses it");
    grants.read_bytes(&region).expect("granted")
}
