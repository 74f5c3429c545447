//! Two simulated FPGA boards. The host reaches the first over its bus, and the second only through the first.

use dml::arenas::kit::{Backend, Heap, HeapBlock, Worker, join_both_ways, join_staged};
use dml::arenas::{DiscoverError, DiscoverOptions};
use dml::core::internal::sync::Mutex;
use dml::core::{
    AllocError, Arena, ArenaDesc, ArenaId, ArenaKind, BlockRef, CopyEnd, CopyIn, CopyJob, CopyOut, CopyQuery,
    Cost, CrossArena, DeviceDesc, DeviceId, DeviceKind, DeviceLoss, Fence, Fill, LinkSpeed, NewBlock,
    PlatformBuilder, Span, TransferError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bus between the host and the first board.
const BUS: LinkSpeed = LinkSpeed { latency_ns: 10_000, bytes_per_s: 3_000_000_000, remap_ns: 0 };
/// The cable between the boards.
const CABLE: LinkSpeed = LinkSpeed { latency_ns: 2_000, bytes_per_s: 1_250_000_000, remap_ns: 0 };

/// The backend: adds `fpga:0` and `fpga:1`, each with `bytes` bytes of memory.
#[derive(Debug)]
pub(crate) struct Boards {
    pub(crate) bytes: u64,
}

impl Backend for Boards {
    fn name(&self) -> &'static str {
        "fpga"
    }

    fn devices(&self) -> Vec<String> {
        vec!["fpga:0".to_owned(), "fpga:1".to_owned()]
    }

    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        // The second board needs the first.
        let wanted: Vec<_> = self.devices().into_iter().take_while(|name| options.wants(name)).collect();
        let mut nearer = None;
        for name in wanted {
            let native = builder.add_device(DeviceDesc::new(&name, DeviceKind::Accelerator));
            let memory = BoardArena::new(&name, native, self.bytes)
                .map_err(|error| DiscoverError::unusable(&name, error.to_string()))?;
            let board = builder.add_arena(Arc::new(memory));
            match nearer {
                None => join_staged(builder, main, board, BUS),
                Some(nearer) => {
                    builder.without_default_links_of(board);
                    join_both_ways(builder, nearer, board, Cable);
                }
            }
            nearer = Some(board);
        }
        Ok(())
    }
}

/// The memory of one board. A thread simulates its engine, which runs transfers and kernels in order.
#[derive(Debug)]
pub(crate) struct BoardArena {
    desc: ArenaDesc,
    heap: Arc<Heap>,
    card: Arc<Card>,
    engine: Arc<Worker>,
}

/// The state that transfers and kernels use.
#[derive(Debug)]
struct Card {
    name: Arc<str>,
    memory: Mutex<Vec<u8>>,
    is_unplugged: AtomicBool,
}

impl Card {
    /// Calls `act` with some bytes of the memory.
    fn with<R>(&self, place: Span, act: impl FnOnce(&mut [u8]) -> R) -> Result<R, TransferError> {
        if self.is_unplugged.load(Ordering::SeqCst) {
            return Err(TransferError::DeviceLost {
                loss: Some(DeviceLoss { device: self.name.clone(), cause: UNPLUGGED.into() }),
            });
        }
        Ok(act(&mut self.memory.lock()[place.start() as usize..place.end() as usize]))
    }
}

const UNPLUGGED: &str = "it was unplugged";

impl BoardArena {
    /// Creates a board with an empty memory.
    pub(crate) fn new(name: &str, native: DeviceId, bytes: u64) -> std::io::Result<Self> {
        let memory = Mutex::new(vec![0; bytes as usize]);
        let card = Card { name: name.into(), memory, is_unplugged: AtomicBool::new(false) };
        Ok(Self {
            desc: ArenaDesc::new(name, ArenaKind("fpga"), native),
            heap: Arc::new(Heap::new(bytes)),
            card: Arc::new(card),
            engine: Arc::new(Worker::start(name)?),
        })
    }

    /// Unplugs the board. It is lost from now on.
    pub(crate) fn unplug(&self) {
        self.card.is_unplugged.store(true, Ordering::SeqCst);
    }

    /// Launches a kernel on all bytes of a granted block. The fence ends with the kernel.
    pub(crate) fn launch(&self, block: &BlockRef, kernel: impl FnOnce(&mut [u8]) + Send + 'static) -> Fence {
        let (place, card) = (self.place(block, Span::new(0, block.len())), self.card.clone());
        // The engine holds the block until the kernel has ended.
        let block = block.clone();
        self.engine.run(move || {
            card.with(place, kernel)?;
            drop(block);
            Ok(0)
        })
    }

    /// Returns the position of a block's bytes in the board's memory.
    fn place(&self, block: &BlockRef, span: Span) -> Span {
        HeapBlock::place(block, &self.heap, span)
            .unwrap_or_else(|reason| panic!("core bug: {}: {reason}", self.desc.name))
    }
}

impl Arena for BoardArena {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let arena = self.desc.name.clone();
        if self.is_lost() {
            return Err(AllocError::DeviceLost { arena, loss: Some(UNPLUGGED.into()) });
        }
        let block = HeapBlock::take(&self.heap, len);
        block.map(|block| NewBlock::new(Arc::new(block))).ok_or(AllocError::OutOfMemory { arena, bytes: len })
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let (place, card) = (self.place(copy.block(), copy.span()), self.card.clone());
        Ok(self.engine.run(move || {
            card.with(place, |bytes| copy.from().read(0, bytes))?;
            Ok(place.len())
        }))
    }

    fn copy_out(&self, mut copy: CopyOut) -> Result<Fence, TransferError> {
        let (place, card) = (self.place(copy.block(), copy.span()), self.card.clone());
        Ok(self.engine.run(move || {
            card.with(place, |bytes| copy.write(0, bytes))?;
            Ok(place.len())
        }))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let (place, card) = (self.place(fill.block(), fill.span()), self.card.clone());
        Ok(self.engine.run(move || {
            card.with(place, |bytes| bytes.fill(fill.byte()))?;
            Ok(place.len())
        }))
    }

    fn tail(&self) -> Result<Fence, TransferError> {
        Ok(self.engine.tail())
    }

    fn is_lost(&self) -> bool {
        self.card.is_unplugged.load(Ordering::SeqCst) || !self.engine.is_here()
    }

    fn loss(&self) -> Option<Arc<str>> {
        self.is_lost().then(|| UNPLUGGED.into())
    }
}

/// The cable between the boards. Copies over it do not pass through the host.
#[derive(Debug)]
struct Cable;

impl CrossArena for Cable {
    fn name(&self) -> &'static str {
        "cable"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        Some(CABLE.cost(query))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let span = job.span();
        let end = |end: CopyEnd<'_>| {
            let board = end.arena.downcast_ref::<BoardArena>().ok_or(TransferError::Infeasible)?;
            Ok::<_, TransferError>((board.card.clone(), board.place(end.block, span), board.engine.clone()))
        };
        let ((from, source, _), (to, target, engine)) = (end(job.from())?, end(job.to())?);
        Ok(engine.run(move || {
            let packets = from.with(source, |bytes| bytes.to_vec())?;
            to.with(target, |bytes| bytes.copy_from_slice(&packets))?;
            // The job must be dropped before the fence ends.
            drop(job);
            Ok(span.len())
        }))
    }
}
