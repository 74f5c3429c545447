//! A mechanism from main memory to another arena, with one thing wrong.

use dml_core::{
    CopyIn, CopyJob, CopyQuery, Cost, CrossArena, Fence, HostMemory, HostStaged, Span, TransferError,
};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Nothing.
    None,
    /// Bytes are taken 4 KiB further on, where there are any.
    Off,
    /// The first page is left out, where there is more.
    FirstPage,
    /// The last byte is left out.
    LastByte,
    /// What is past 4 MiB is left out.
    SecondPiece,
}

const PAGE: u64 = 4096;

/// The mechanism. Whatever it leaves out, it says that it has moved all.
#[derive(Debug)]
pub(crate) struct BrokenLink(pub(crate) Defect);

impl CrossArena for BrokenLink {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        HostStaged::default().can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let len = job.len();
        let moved = match self.0 {
            Defect::Off if len > PAGE => return off(&job),
            Defect::None | Defect::Off => job,
            Defect::FirstPage => job.split_at(if len > PAGE { PAGE } else { 0 }).1,
            Defect::LastByte => job.first(len - 1),
            Defect::SecondPiece => job.first(4 << 20),
        };
        let _ = HostStaged::default().copy(moved)?.wait()?;
        Ok(Fence::done(len))
    }
}

/// Copies what stands a page further on.
fn off(job: &CopyJob) -> Result<Fence, TransferError> {
    let source = job.source_host().expect("main memory has an address");
    // SAFETY: core has lent these bytes of the source, which live and are initialised, until the job is
    // dropped.
    let mut bytes = unsafe { std::slice::from_raw_parts(source.as_ptr(), source.len() as usize) }.to_vec();
    bytes.rotate_left(PAGE as usize);
    let memory = HostMemory::holding(bytes);
    let whole = memory.source(Span::new(0, memory.len()));
    // SAFETY: the destination's bytes are lent until the job is dropped, after the wait.
    let copy = unsafe { CopyIn::new(job.to().block, job.span().start(), whole) };
    let moved = job.to().arena.copy_in(copy)?.wait()?;
    Ok(Fence::done(moved))
}
