//! Checks that storage of the application is used in place, or declined.

use super::desk::{assert_same, pattern};
use super::{Subject, Support};
use dml_core::{AllocError, ConfigError, HostMemory, OwnBlock, Unstored};

/// Storage of the application is used in place, and comes back with the bytes written to it. An arena that
/// does not offer this declines with an error that names the arena.
///
/// # Panics
/// When the arena breaks this rule.
pub fn external_storage_comes_back(subject: &Subject) {
    for len in [0, 1, 4097, 1_000_003] {
        let memory = HostMemory::holding(pattern(len as u64, len));
        let address = memory.span().as_ptr().addr();
        let unwritten = |bytes: &[u8]| {
            assert_same(bytes, &pattern(len as u64, len), "storage that nobody has written");
        };
        match (subject.external(), OwnBlock::attach(subject.arena(), memory)) {
            (Support::Offered, attached) => {
                let block = attached.expect("the arena offers it");
                assert_eq!(block.block().len(), len as u64, "bytes of attached storage");
                if subject.desc().native == subject.host() {
                    assert_eq!(block.block().native().0, address, "attached storage is used in place");
                }
                unwritten(&block.seen().expect("the storage has an address"));
                block.free();
            }
            (Support::Declined, declined) => {
                let Unstored { cause, storage } = declined.expect_err("the arena does not offer it");
                let ConfigError::Storage(AllocError::Unsupported { arena, .. }) = &cause else {
                    panic!("{cause:?}")
                };
                assert_eq!(arena, &subject.desc().name, "who declines");
                unwritten(storage.bytes());
            }
        }
    }
    if subject.external() == Support::Offered {
        through_core(subject);
    }
}

/// Passes the application's own containers through a buffer.
fn through_core(subject: &Subject) {
    let platform = subject.platform();
    let boxed: Box<[u64]> = (1..1001_u64).map(|i| i * i).collect();
    let address = boxed.as_ptr();
    let buffer = platform.buffer_from(boxed).expect("a host that takes storage");
    {
        let mut view = buffer.read_write().expect("nobody else uses it");
        view[17] = 18;
        view.release().expect("committed");
    }
    // Copies made by the arena itself must reach the same storage.
    let mut grants =
        platform.acquire_in(subject.id()).read_write(&buffer).wait().expect("nobody else uses it");
    grants.write_bytes(&buffer.range(18..19), &400_u64.to_ne_bytes()).expect("granted for writing");
    let seen = grants.read_bytes(&buffer.range(17..19)).expect("granted");
    assert_eq!(seen, [18_u64, 400].map(u64::to_ne_bytes).concat(), "what the arena copies out of storage");
    grants.release().expect("committed");
    let back = buffer.into_vec().expect("nobody else uses it");
    assert_eq!(back.as_ptr(), address, "storage comes back as it was");
    assert_eq!((back[17], back[18], back[999]), (18, 400, 1_000_000), "storage comes back as it was");
}
