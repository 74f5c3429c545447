//! The operations and buffers of a sequence, and the strategies that generate them.
//!
//! The strategies must also work on a fuzzer's bytes, from which proptest then draws its numbers. A union
//! leaves half of the bytes to every alternative that it does not take, and uses them up after a few
//! operations. A range whose size is no power of two draws again while it gets zeros: for ever once the bytes
//! are used up. So the strategies draw only flat tuples of whole bytes, and each number is cut to size
//! afterwards.

use crate::Shape;
use dml_core::Access;
use proptest::prelude::*;
use std::ops::Range;

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a non-blocking try.
    Try,
    /// By blocking with a timeout of zero: the request is queued and given up.
    Timeout,
    /// As a future, polled once, and again only when an operation polls it.
    Lazy,
    /// As a future, polled once, and again after every wake.
    Eager,
}

/// How a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Released after the kernel wrote.
    Done,
    /// Dropped: counts as not started if no kernel used it, as released otherwise.
    Drop,
    /// The kernel failed.
    Failed,
    /// The kernel wrote nothing.
    Clean,
    /// Released after the fence of a kernel was waited for.
    Flown,
    /// The kernel's fence reports an error.
    Crashed,
}

/// What a submitted kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It computes, and ends well.
    Computes,
    /// Its fence reports an error.
    Fails,
    /// Its launch is refused before it has started.
    IsRefused,
    /// Its launch fails after it has written.
    FailsToLaunch,
}

/// A range of bytes of a buffer whose length is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Some bytes, perhaps none: the start is wrapped into the buffer.
    Part {
        /// The first byte, before it is wrapped.
        start: u8,
        /// The length in bytes, before the end is cut to the buffer.
        len: u8,
    },
    /// All bytes.
    All,
    /// A range that ends beyond the buffer's end.
    Beyond {
        /// The number of bytes beyond the end, less one.
        by: u8,
    },
    /// A range that ends before it starts.
    Reversed,
}

impl Bytes {
    /// Returns the range for a buffer of `len` bytes.
    #[must_use]
    pub fn of(self, len: u64) -> Range<u64> {
        match self {
            Self::Part { start, len: part } => {
                let start = u64::from(start) % (len + 1);
                start..(start + u64::from(part)).min(len)
            }
            Self::All => 0..len,
            Self::Beyond { by } => len / 2..len + 1 + u64::from(by),
            Self::Reversed => Range { start: len / 2 + 1, end: len / 2 },
        }
    }
}

/// One item of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The buffer's number, counted around; [`NONE`] names a buffer of another platform.
    pub buffer: u8,
    /// The bytes of the buffer.
    pub bytes: Bytes,
    /// The access asked for.
    pub access: Access,
}

/// One operation. Numbers that name an object are taken modulo how many objects there are, so that every
/// sequence can run, also a shrunk one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Asks for access.
    Acquire {
        /// How the request is made.
        way: Way,
        /// The kernel: a named one below [`KERNELS`], otherwise a kernel of its own.
        kernel: u8,
        /// The arena; [`NONE`] names no arena.
        arena: u8,
        /// The ranges that the request asks for.
        wants: Vec<Want>,
        /// Whether the kernel reads and checks its bytes as soon as they are granted.
        looks: bool,
    },
    /// Submits a kernel several times. All but the last of them end well.
    Submit {
        /// The arena whose device gets the kernel; [`NONE`] names no device.
        arena: u8,
        /// The ranges that the kernel uses.
        wants: Vec<Want>,
        /// What the last kernel does.
        does: Does,
        /// Whether the kernel runs in order.
        is_in_order: bool,
        /// The number of first bytes that a read-write kernel leaves unchanged.
        skip: u8,
        /// How often the kernel is submitted.
        times: u8,
    },
    /// Waits for all kernels that were submitted to a device.
    Settle {
        /// The arena of the device; [`NONE`] names no device.
        arena: u8,
    },
    /// Waits for a submission, then for the other kernels of its stream.
    Wait {
        /// The number of the submission.
        which: u8,
    },
    /// Polls a waiting future.
    Poll {
        /// The number of the waiting future.
        which: u8,
    },
    /// Drops a waiting future.
    Cancel {
        /// The number of the waiting future.
        which: u8,
    },
    /// Writes through a grant, then ends it.
    Release {
        /// The number of the grant.
        which: u8,
        /// How the grant ends.
        end: End,
        /// The number of first bytes that a read-write kernel leaves unchanged.
        skip: u8,
    },
    /// Writes through a grant, then downgrades it to a reader.
    Downgrade {
        /// The number of the grant.
        which: u8,
    },
    /// Prefetches bytes.
    Prefetch {
        /// The number of the buffer.
        buffer: u8,
        /// The arena whose device gets the bytes; [`NONE`] names no device.
        arena: u8,
        /// The bytes to prefetch.
        bytes: Bytes,
    },
    /// Gives poisoned bytes their contents back.
    Restore {
        /// The number of the buffer.
        buffer: u8,
        /// The bytes to restore.
        bytes: Bytes,
    },
    /// Frees an arena's storage.
    Free {
        /// The number of the buffer.
        buffer: u8,
        /// The arena; [`NONE`] names no arena.
        arena: u8,
    },
    /// Binds an arena to the storage of another.
    Bind {
        /// The number of the buffer.
        buffer: u8,
        /// The arena to bind; [`NONE`] names no arena.
        arena: u8,
        /// The arena whose storage is shared; [`NONE`] names no arena.
        root: u8,
    },
    /// Closes a buffer.
    Close {
        /// The number of the buffer.
        buffer: u8,
    },
    /// Drops a buffer and makes a new one in its place.
    Renew {
        /// The number of the buffer to replace.
        buffer: u8,
        /// The buffer that takes its place.
        make: Make,
    },
    /// Declares a device lost.
    Lose {
        /// The arena whose device is lost.
        arena: u8,
    },
}

/// The contents with which a buffer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Bytes that are unwritten.
    Unwritten,
    /// Bytes that are zero.
    Zeros,
    /// The contents of storage that the application hands over.
    External,
}

/// A buffer to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// Its size in bytes.
    pub len: u64,
    /// Its first contents.
    pub beginning: Beginning,
}

/// The platform and buffers on which a sequence runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The shape of the platform.
    pub shape: Shape,
    /// The buffers that exist at the start.
    pub buffers: Vec<Make>,
}

/// The number of an arena or buffer that does not belong to the platform.
pub const NONE: u8 = 47;
/// The number of named kernels.
pub const KERNELS: u8 = 3;

/// Which operations a sequence may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All operations.
    All,
    /// All operations except lost devices, closed buffers and requests that name unknown objects. In a short
    /// sequence, most operations would otherwise be of these sorts.
    Short,
}

fn access(drawn: u8) -> Access {
    match drawn % 7 {
        0..3 => Access::ReadOnly,
        3..5 => Access::WriteInvalidate,
        _ => Access::ReadWrite,
    }
}

fn bytes(form: u8, start: u8, len: u8) -> Bytes {
    let (start, len) = (start % 40, len % 14);
    match form {
        0..57 => Bytes::Part { start, len },
        57..78 => Bytes::All,
        78 => Bytes::Beyond { by: len },
        _ => Bytes::Reversed,
    }
}

fn want(mix: Mix) -> impl Strategy<Value = Want> {
    any::<(u8, u8, u8, u8, u8)>().prop_map(move |(buffer, drawn, form, start, len)| {
        // Short sequences name only existing objects, and their requests meet more often.
        let (buffer, form) = match mix {
            Mix::All => (buffer % (NONE + 1), form % 80),
            Mix::Short => (buffer % NONE, 36 + form % 42),
        };
        Want { buffer, bytes: bytes(form, start, len), access: access(drawn) }
    })
}

/// Returns a buffer of at most 32 bytes; in one of eight cases, it has none.
fn make_of(len: u8, beginning: u8) -> Make {
    let len = match len % 8 {
        0..4 => 12,
        4..6 => 32,
        6 => 5,
        _ => 0,
    };
    let beginning = match beginning % 5 {
        0..2 => Beginning::Unwritten,
        2..4 => Beginning::Zeros,
        _ => Beginning::External,
    };
    Make { len, beginning }
}

fn make() -> impl Strategy<Value = Make> {
    any::<(u8, u8)>().prop_map(|(len, beginning)| make_of(len, beginning))
}

fn end(drawn: u8) -> End {
    match drawn % 16 {
        0..7 => End::Done,
        7..10 => End::Drop,
        10..12 => End::Failed,
        12..14 => End::Clean,
        14 => End::Flown,
        _ => End::Crashed,
    }
}

fn does(drawn: u8) -> Does {
    match drawn % 16 {
        0..11 => Does::Computes,
        11..14 => Does::Fails,
        14 => Does::IsRefused,
        _ => Does::FailsToLaunch,
    }
}

/// Returns how often a kernel is submitted. Beyond 16 kernels in flight, the stream launches.
fn times(drawn: u8) -> u8 {
    match drawn % 16 {
        0..9 => 1,
        9..15 => 2 + drawn / 16 % 3,
        _ => 18,
    }
}

/// Returns the weight of each sort of operation, in the order in which [`op`] names the sorts.
const fn weights(mix: Mix) -> [u16; 18] {
    match mix {
        Mix::All => [92, 8, 32, 28, 100, 28, 12, 12, 28, 20, 16, 16, 7, 3, 1, 64, 16, 10],
        Mix::Short => [90, 8, 40, 60, 90, 30, 8, 10, 30, 10, 10, 10, 0, 0, 0, 60, 14, 10],
    }
}

/// Returns a strategy for one operation.
pub fn op(mix: Mix) -> BoxedStrategy<Op> {
    let weights = weights(mix);
    let head = any::<(u16, u8, u8, u8, u8, u8)>();
    (head, any::<(u8, u8, u8)>(), prop::collection::vec(want(mix), 1..=4))
        .prop_map(move |((kind, which, arena, buffer, other, drawn), (form, start, len), mut wants)| {
            let mut drawn_kind = kind % weights.iter().sum::<u16>();
            let (arena, buffer, other) = (arena % (NONE + 1), buffer % (NONE + 1), other % (NONE + 1));
            wants.truncate(3);
            let mut kind = 0;
            while drawn_kind >= weights[kind] {
                drawn_kind -= weights[kind];
                kind += 1;
            }
            let bytes = bytes(form % 80, start, len);
            let acquire =
                |way, wants| Op::Acquire { way, kernel: drawn % 4, arena, wants, looks: which % 2 == 1 };
            match kind {
                0 => acquire(Way::Try, wants),
                1 => acquire(Way::Timeout, wants),
                2 => acquire(Way::Lazy, wants),
                3 => acquire(Way::Eager, wants),
                4 => Op::Release { which, end: end(drawn), skip: start },
                5 => Op::Poll { which },
                6 => Op::Cancel { which },
                7 => Op::Downgrade { which },
                8 => Op::Prefetch { buffer, arena, bytes },
                9 => Op::Restore { buffer, bytes },
                10 => Op::Free { buffer, arena },
                11 => Op::Bind { buffer, arena, root: other },
                12 => Op::Renew { buffer, make: make_of(len, drawn) },
                13 => Op::Close { buffer },
                14 => Op::Lose { arena },
                15 => {
                    let (does, is_in_order, times) = (does(drawn), !other.is_multiple_of(8), times(which));
                    Op::Submit { arena, wants, does, is_in_order, skip: start, times }
                }
                16 => Op::Settle { arena },
                _ => Op::Wait { which },
            }
        })
        .boxed()
}

/// Returns a strategy for a platform with at most `most_buffers` buffers, a power of two.
pub fn setup(shapes: &[Shape], most_buffers: usize) -> BoxedStrategy<Setup> {
    let shapes = shapes.to_vec();
    (any::<u8>(), prop::collection::vec(make(), 1..=most_buffers))
        .prop_map(move |(shape, buffers)| Setup { shape: shapes[usize::from(shape) % shapes.len()], buffers })
        .boxed()
}
