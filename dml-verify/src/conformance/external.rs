//! Storage of the application: taken over and given back, or declined whole.

use super::desk::{assert_same, pattern};
use super::{External, Subject};
use dml_core::host::{HostOwner, Owned};
use dml_core::{AllocError, BlockRef};

/// Storage that was taken over is used in place and comes back with the same address; while someone else holds the block,
/// and where it was never the application's, the block stays. An arena that offers none of this gives the storage back.
///
/// # Panics
/// Where it is otherwise.
pub fn external_storage_comes_back(subject: &Subject) {
    for len in [0, 1, 4097, 1_000_003] {
        let bytes = pattern(len as u64, len);
        match subject.external() {
            External::Offered => offered(subject, bytes),
            External::Declined => declined(subject, bytes),
        }
    }
    let boxed: Box<[u64]> = (1..1001_u64).map(|i| i * i).collect();
    let address = boxed.as_ptr();
    let owner = match subject.arena().attach(Box::new(Owned::new(boxed))) {
        Ok(block) => detached(subject, block),
        Err(error) => error.storage,
    };
    let owned = owner.into_any().downcast::<Owned<u64, Box<[u64]>>>().expect("the storage handed over");
    let boxed = owned.into_inner();
    assert_eq!((boxed.as_ptr(), boxed[999]), (address, 1_000_000), "boxed storage comes back as it was");
    // What the arena has allocated is nobody's to take.
    let internal = subject.alloc(100);
    subject.put(&internal, 0, &pattern(9, 100));
    let internal = subject.arena().detach(internal).expect_err("internal storage is not the application's");
    assert_same(&subject.take(&internal, 0, 100), &pattern(9, 100), "a block that was not given away");
}

fn offered(subject: &Subject, bytes: Vec<u8>) {
    let (arena, len, address) = (subject.arena(), bytes.len(), bytes.as_ptr());
    let mut model = bytes.clone();
    let block = arena.attach(Box::new(Owned::new(bytes))).expect("the arena offers it");
    assert_eq!(block.len(), len as u64, "bytes of attached storage");
    if let Some(span) = block.host() {
        assert_eq!(span.as_ptr().addr(), address.addr(), "attached storage is used in place");
    }
    assert_same(&subject.take(&block, 0, len), &model, "attached storage");
    let (start, end) = (len / 3, len - len / 4);
    model[start..end].copy_from_slice(&pattern(3, end - start));
    subject.put(&block, start, &model[start..end]);
    let other = block.clone();
    let block = arena.detach(block).expect_err("somebody else holds the block");
    assert_same(&subject.take(&block, 0, len), &model, "a block that is still in use");
    drop(other);
    let owner = detached(subject, block);
    let back =
        owner.into_any().downcast::<Owned<u8, Vec<u8>>>().expect("the storage handed over").into_inner();
    assert_eq!(back.as_ptr(), address, "the application's own storage comes back");
    assert_same(&back, &model, "storage that came back");
}

fn detached(subject: &Subject, block: BlockRef) -> Box<dyn HostOwner> {
    subject.arena().detach(block).expect("attached storage that nobody else holds can be detached")
}

fn declined(subject: &Subject, bytes: Vec<u8>) {
    let (address, model) = (bytes.as_ptr(), bytes.clone());
    let error = subject.arena().attach(Box::new(Owned::new(bytes))).expect_err("the arena does not offer it");
    let AllocError::Unsupported { arena, .. } = &error.cause else { panic!("{:?}", error.cause) };
    assert_eq!(arena, &subject.desc().name, "who declines");
    let owner = error.storage.into_any().downcast::<Owned<u8, Vec<u8>>>().expect("the storage handed over");
    let back = owner.into_inner();
    assert_eq!(back.as_ptr(), address, "declined storage comes back");
    assert_same(&back, &model, "declined storage");
}
