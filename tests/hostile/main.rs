//! Plug-ins of strangers: arenas, mechanisms, wakers, kernels and hooks that lie, panic, call back, hang, and
//! keep what they were lent. All of it is safe code, so nothing here may make for undefined behaviour.
//!
//! | room | what is in it |
//! |---|---|
//! | `vault.rs` | an arena and a mechanism that do as they should, but for one *deed* at one *call* |
//! | `calls.rs` | every call of core into foreign code: each panics once, and calls back once |
//! | `lies.rs` | one lie each, and what comes of it |
//! | `spans.rs` | subscribers of `tracing` that panic and call back |
//! | `wakers.rs` | wakers that panic, call back, and are dropped badly |
//! | `transactions.rs` | grants and kernels in flight that are dropped, forgotten, handed over |
//! | `kernels.rs` | variants, footprints and hooks of the scheduler |
//! | `escapes.rs` | safe code around an honest arena that tries to come by an access of its own |
//! | `storage.rs` | blocks over the application's storage that turn up elsewhere, or are kept |
//! | `mappings.rs` | the memory of a block in the hands of plug-ins that wrap its arena |
//! | `ends.rs` | ends that two callers race for, and ways out |
//! | `limits.rs` | sizes, counts and places at the edge |
//!
//! A new way is a line in a table: a [`Deed`](vault::Deed) at a [`Call`](vault::Call), or a lie with what it
//! leads to.

#![cfg(not(dml_loom))]
#![forbid(unsafe_code)]

/// The calls that an arena passes on to the one inside it, as they are.
macro_rules! passes_on {
    ($($call:ident),+) => { $(passes_on!(@ $call);)+ };
    (@ desc) => { fn desc(&self) -> &dml::core::ArenaDesc { self.inner.desc() } };
    (@ alloc) => {
        fn alloc(&self, len: u64) -> Result<dml::core::NewBlock, dml::core::AllocError> { self.inner.alloc(len) }
    };
    (@ map) => {
        fn map(
            &self,
            request: dml::core::MapRequest<'_>,
        ) -> Result<dml::core::MapReport, dml::core::TransferError> {
            self.inner.map(request)
        }
    };
    (@ unmap) => {
        fn unmap(
            &self,
            request: dml::core::UnmapRequest<'_>,
        ) -> Result<dml::core::MapReport, dml::core::TransferError> {
            self.inner.unmap(request)
        }
    };
    (@ copy_in) => {
        fn copy_in(&self, copy: dml::core::CopyIn) -> Result<dml::core::Fence, dml::core::TransferError> {
            self.inner.copy_in(copy)
        }
    };
    (@ copy_out) => {
        fn copy_out(&self, copy: dml::core::CopyOut) -> Result<dml::core::Fence, dml::core::TransferError> {
            self.inner.copy_out(copy)
        }
    };
    (@ fill) => {
        fn fill(&self, fill: dml::core::Fill) -> Result<dml::core::Fence, dml::core::TransferError> {
            self.inner.fill(fill)
        }
    };
}

mod calls;
mod ends;
mod escapes;
mod kernels;
mod lies;
mod limits;
mod mappings;
#[cfg(feature = "tracing")]
mod spans;
mod storage;
mod transactions;
mod vault;
mod wakers;
