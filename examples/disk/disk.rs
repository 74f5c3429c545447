//! A disk as a memory: buffers are spilled to an unnamed file, and copied back when they are used.

use dml::arenas::kit::{Backend, Heap, HeapBlock, Worker, join_staged};
use dml::arenas::{DiscoverError, DiscoverOptions};
use dml::core::{
    AllocError, Arena, ArenaDesc, ArenaId, ArenaKind, BlockRef, CopyIn, CopyOut, DeviceLoss, Fence, Fill,
    LinkSpeed, NewBlock, PlatformBuilder, Span, TransferError,
};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The name of the backend and of its only arena.
pub(crate) const DISK: &str = "disk";
/// Guessed speed of a solid-state disk, to the order of magnitude.
const SPEED: LinkSpeed = LinkSpeed { latency_ns: 100_000, bytes_per_s: 1_000_000_000, remap_ns: 0 };
/// Maximum size of one read or write call, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The backend: adds the arena `disk`, with a file of `bytes` bytes in a folder.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) folder: PathBuf,
    pub(crate) bytes: u64,
}

impl Backend for Disk {
    fn name(&self) -> &'static str {
        DISK
    }

    fn devices(&self) -> Vec<String> {
        vec![DISK.to_owned()]
    }

    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        if options.wants(DISK) {
            let unusable =
                |error| DiscoverError::unusable(DISK, format!("{}: {error}", self.folder.display()));
            let file = unnamed(&self.folder).map_err(unusable)?;
            let arena = DiskArena::over(file, &self.folder, self.bytes).map_err(unusable)?;
            let disk = builder.add_arena(Arc::new(arena));
            join_staged(builder, main, disk, SPEED);
        }
        Ok(())
    }
}

/// Creates a file without a name. The operating system frees it when the process ends, even by a crash.
fn unnamed(folder: &Path) -> io::Result<File> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("dml-disk-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The arena: blocks are pages of the file, and one thread reads and writes them.
#[derive(Debug)]
pub(crate) struct DiskArena {
    desc: ArenaDesc,
    heap: Arc<Heap>,
    spill: Arc<Spill>,
    worker: Worker,
}

/// The file, and the error that made it unusable.
#[derive(Debug)]
struct Spill {
    file: File,
    folder: PathBuf,
    loss: OnceLock<Arc<str>>,
}

impl DiskArena {
    /// Creates an arena of `bytes` bytes over an empty file.
    pub(crate) fn over(file: File, folder: &Path, bytes: u64) -> io::Result<Self> {
        // The file is sparse: bytes that were never written read as zeros and use no disk space.
        file.set_len(bytes)?;
        let spill = Spill { file, folder: folder.to_owned(), loss: OnceLock::new() };
        let description = format!("a file in {}", folder.display());
        Ok(Self {
            desc: ArenaDesc::store(DISK, ArenaKind(DISK)).with_description(&description),
            heap: Arc::new(Heap::new(bytes)),
            spill: Arc::new(spill),
            worker: Worker::start(DISK)?,
        })
    }

    /// Returns the position of a block's bytes in the file.
    fn place(&self, block: &BlockRef, span: Span) -> Span {
        HeapBlock::place(block, &self.heap, span)
            .unwrap_or_else(|reason| panic!("core bug: {DISK}: {reason}"))
    }

    /// Moves bytes piece by piece on the worker thread. `act` gets the offset of a piece in the file and in
    /// the transfer, and a buffer of its length. It owns the transfer, and is dropped before the fence ends.
    fn each_piece(
        &self,
        call: &'static str,
        place: Span,
        mut act: impl FnMut(&File, u64, u64, &mut [u8]) -> io::Result<()> + Send + 'static,
    ) -> Fence {
        let spill = self.spill.clone();
        self.worker.run(move || {
            let mut piece = vec![0; PIECE_BYTES.min(place.len()) as usize];
            for start in (place.start()..place.end()).step_by(PIECE_BYTES as usize) {
                let bytes = &mut piece[..PIECE_BYTES.min(place.end() - start) as usize];
                spill.used()?;
                act(&spill.file, start, start - place.start(), bytes)
                    .map_err(|error| spill.failed(call, &error))?;
            }
            Ok(place.len())
        })
    }
}

impl Spill {
    /// Checks that the file can still be used.
    fn used(&self) -> Result<(), TransferError> {
        match self.loss.get() {
            Some(cause) => Err(lost(cause.clone())),
            None => Ok(()),
        }
    }

    /// Converts an error of the file into one of a transfer. Any error except a lack of space loses the disk.
    fn failed(&self, call: &'static str, error: &io::Error) -> TransferError {
        let message: Arc<str> = format!("{call} of a file in {}: {error}", self.folder.display()).into();
        let lacks_room = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
        if lacks_room.contains(&error.kind()) {
            return TransferError::Framework {
                call,
                code: error.raw_os_error().unwrap_or(-1).into(),
                message,
            };
        }
        lost(self.loss.get_or_init(|| message).clone())
    }
}

/// Returns the error of a disk that is lost for good.
fn lost(cause: Arc<str>) -> TransferError {
    TransferError::DeviceLost { loss: Some(DeviceLoss { device: DISK.into(), cause }) }
}

impl Arena for DiskArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        if let Some(loss) = self.spill.loss.get() {
            return Err(AllocError::DeviceLost { arena: self.desc.name.clone(), loss: Some(loss.clone()) });
        }
        let full = || AllocError::OutOfMemory { arena: self.desc.name.clone(), bytes: len };
        HeapBlock::take(&self.heap, len).map(|block| NewBlock::new(Arc::new(block))).ok_or_else(full)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let place = self.place(copy.block(), copy.span());
        Ok(self.each_piece("pwrite", place, move |file, at, offset, piece| {
            copy.from().read(offset, piece);
            file.write_all_at(piece, at)
        }))
    }

    fn copy_out(&self, mut copy: CopyOut) -> Result<Fence, TransferError> {
        let place = self.place(copy.block(), copy.span());
        Ok(self.each_piece("pread", place, move |file, at, offset, piece| {
            file.read_exact_at(piece, at)?;
            copy.write(offset, piece);
            Ok(())
        }))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let place = self.place(fill.block(), fill.span());
        Ok(self.each_piece("pwrite", place, move |file, at, _, piece| {
            piece.fill(fill.byte());
            file.write_all_at(piece, at)
        }))
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        Ok(self.worker.tail())
    }

    fn is_lost(&self) -> bool {
        self.spill.loss.get().is_some() || !self.worker.is_here()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.spill.loss.get().cloned()
    }
}
