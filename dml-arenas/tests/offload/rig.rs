//! A worker with the library in C, and what tests do with them.

use crate::common::{host, whole as all_of};
use dml_arenas::MainMem;
use dml_arenas::OffloadArena;
use dml_arenas::offload::{Argument, Function, OffloadDevice, OffloadError, Pipeline, Signal, WorkerOptions};
use dml_core::Scalar;
use dml_core::internal::sync::Arc;
use dml_core::{
    Arena, BlockRef, CopyIn, CopyOut, DeviceId, Fence, HostMemory, HostSource, HostTarget, Span,
    TransferError,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const WORKER: &str = env!("CARGO_BIN_EXE_dml-offload-worker");

/// The library, built by the compiler that also links this test.
pub(crate) fn library() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    static BUILT: AtomicU64 = AtomicU64::new(0);
    let number = BUILT.fetch_add(1, Ordering::Relaxed);
    let name = format!("kernels-{}-{number}.so", std::process::id());
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/kernels/kernels.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("the C compiler that links Rust programs");
    assert!(built.success(), "the library does not build");
    library
}

pub(crate) struct Rig {
    pub(crate) arena: OffloadArena,
    pub(crate) main: MainMem,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut WorkerOptions)) -> Self {
        let mut options = WorkerOptions::new(WORKER);
        options.memory_bytes = 64 << 20;
        change(&mut options);
        let device = OffloadDevice::start("offload:0", &options).expect("the worker was built");
        let library = library();
        device.load(&library).expect("the library was built");
        std::fs::remove_file(library).expect("it was there");
        Self { arena: OffloadArena::new(device, DeviceId(1)), main: MainMem::new(DeviceId(0)) }
    }

    pub(crate) fn device(&self) -> &Arc<OffloadDevice> {
        self.arena.device()
    }

    pub(crate) fn line(&self) -> Line {
        Line(self.device().pipeline())
    }

    pub(crate) fn function(&self, name: &str) -> Function {
        self.device().function(name).expect("the library has it")
    }

    /// A block with these bytes.
    pub(crate) fn block(&self, bytes: &[u8]) -> BlockRef {
        let block = self.arena.alloc(bytes.len() as u64).expect("there is memory").into_block();
        self.put(&block, 0, bytes);
        block
    }

    pub(crate) fn copy_in(
        &self,
        block: &BlockRef,
        offset: u64,
        from: &HostMemory,
    ) -> Result<Fence, TransferError> {
        // SAFETY: the block is the test's own, and whatever else it has put in a pipeline for these bytes has
        // ended.
        let copy = unsafe { CopyIn::new(block, offset, from.source(all_of(from))) };
        self.arena.copy_in(copy)
    }

    pub(crate) fn copy_out(
        &self,
        block: &BlockRef,
        offset: u64,
        to: &mut HostMemory,
    ) -> Result<Fence, TransferError> {
        let part = all_of(to);
        // SAFETY: as in `copy_in`.
        let copy = unsafe { CopyOut::new(block, offset, to.target(part)) };
        self.arena.copy_out(copy)
    }

    pub(crate) fn put(&self, block: &BlockRef, offset: u64, bytes: &[u8]) {
        let copied = self.copy_in(block, offset, &host(bytes)).expect("begun").wait();
        assert_eq!(copied, Ok(bytes.len() as u64));
    }

    pub(crate) fn take(&self, block: &BlockRef, span: Span) -> Vec<u8> {
        let mut to = HostMemory::zeroed(span.len()).expect("memory for a test");
        assert_eq!(self.copy_out(block, span.start(), &mut to).expect("begun").wait(), Ok(span.len()));
        to.bytes().to_vec()
    }

    /// A launch by a test that alone uses the blocks, and waits.
    pub(crate) fn launch(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
    ) -> Result<Fence, OffloadError> {
        // SAFETY: so it is.
        unsafe { self.arena.launch(function, items, arguments) }
    }

    pub(crate) fn text(&self, function: &str, items: Range<u64>, scalars: &[Scalar]) -> String {
        let block = self.block(&[0; 600]);
        let mut arguments = vec![Argument::Write(&block, Span::new(100, 600))];
        arguments.extend(scalars.iter().map(|scalar| Argument::Scalar(*scalar)));
        let ran = self.launch(&self.function(function), items, &arguments).expect("it fits");
        assert_eq!(ran.wait(), Ok(0));
        let bytes = self.take(&block, Span::new(100, 600));
        let end = bytes.iter().position(|byte| *byte == 0).expect("the text is shorter");
        String::from_utf8(bytes[..end].to_vec()).expect("text")
    }
}

/// A pipeline of a test, whose blocks are its own: it names bytes that others use only where one waits for
/// the other, or to see what is refused.
pub(crate) struct Line(Pipeline);

impl Line {
    pub(crate) fn run(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.run(function, items, arguments, after) }
    }

    pub(crate) fn copy_in(
        &self,
        to: (&BlockRef, u64),
        from: HostSource,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.copy_in(to, from, after) }
    }

    pub(crate) fn copy_out(
        &self,
        from: (&BlockRef, u64),
        to: HostTarget,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.copy_out(from, to, after) }
    }

    pub(crate) fn fill(
        &self,
        part: (&BlockRef, Span),
        byte: u8,
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.fill(part, byte, after) }
    }
}

pub(crate) fn whole(block: &BlockRef) -> Span {
    Span::new(0, block.len())
}

pub(crate) fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub(crate) fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Waits for what has to come about, however slow the machine.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn kill(process: u32, signal: &str) {
    let sent = Command::new("kill").args([format!("-{signal}"), process.to_string()]).status();
    assert!(sent.expect("the system has kill").success());
}
