//! What a sequence is made of, and the strategies that make it.
//!
//! The strategies also have to make sense of a fuzzer's bytes, with which proptest draws its numbers. A union would leave
//! half of the bytes to every alternative that it does not take, and use them up after a few operations. A range whose
//! size is no power of two draws again for as long as it gets zeros, which is for ever once the bytes are used up. So all
//! that is drawn are flat tuples of whole bytes, and each is cut to size afterwards.

use super::shape::Shape;
use dml_core::Access;
use proptest::prelude::*;
use std::ops::Range;

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Now or not at all.
    Try,
    /// By blocking for no time at all: it is queued, and given up.
    Timeout,
    /// As a future, polled once, and again only when the sequence says so.
    Lazy,
    /// As a future, polled once, and again whenever it is woken.
    Eager,
}

/// How a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Released.
    Done,
    /// Dropped: as not started where nothing looked at it, released otherwise.
    Drop,
    /// The kernel failed.
    Failed,
    /// The kernel wrote nothing.
    Clean,
    /// Released after a kernel whose fence was waited for.
    Flown,
    /// The kernel's fence reports an error.
    Crashed,
}

/// A range of bytes, in terms of a buffer whose length is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Some of them, perhaps none: wrapped into the buffer.
    Part {
        /// Where it starts, before it is wrapped.
        start: u8,
        /// How long it is, before it is cut at the end.
        len: u8,
    },
    /// All of them.
    All,
    /// Some that end behind the buffer's end.
    Beyond {
        /// By how many bytes less one.
        by: u8,
    },
    /// A range that ends before it starts.
    Reversed,
}

impl Bytes {
    /// The range for a buffer of `len` bytes.
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
    /// Which buffer, counted around; the greatest number is one of another platform.
    pub buffer: u8,
    /// Which bytes of it.
    pub bytes: Bytes,
    /// For what.
    pub access: Access,
}

/// One operation. Numbers that name things are counted around those there are, so that every sequence can run, the
/// shrunk ones too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Asks for access.
    Acquire {
        /// How.
        way: Way,
        /// Who, of a few named kernels; above them, nobody in particular.
        kernel: u8,
        /// Where; the greatest number is no arena.
        arena: u8,
        /// To what.
        wants: Vec<Want>,
        /// Whether the kernel looks at its bytes as soon as it has them.
        looks: bool,
    },
    /// Polls a waiting future.
    Poll {
        /// Which.
        which: u8,
    },
    /// Drops a waiting future.
    Cancel {
        /// Which.
        which: u8,
    },
    /// Writes through a grant, and ends it.
    Release {
        /// Which.
        which: u8,
        /// How.
        end: End,
        /// How many of the first bytes a kernel with read-write access leaves as they are.
        skip: u8,
    },
    /// Writes through a grant, and goes on as a reader.
    Downgrade {
        /// Which.
        which: u8,
    },
    /// Brings bytes before anybody asks.
    Prefetch {
        /// Of which buffer.
        buffer: u8,
        /// To the device of which arena; the greatest number is no device.
        arena: u8,
        /// Which bytes.
        bytes: Bytes,
    },
    /// Gives poisoned bytes their contents back.
    Restore {
        /// Of which buffer.
        buffer: u8,
        /// Which bytes.
        bytes: Bytes,
    },
    /// Frees an arena's storage.
    Free {
        /// Of which buffer.
        buffer: u8,
        /// Where; the greatest number is no arena.
        arena: u8,
    },
    /// Lets an arena share the storage of another.
    Bind {
        /// Of which buffer.
        buffer: u8,
        /// Which; the greatest number is no arena.
        arena: u8,
        /// Whose; the greatest number is no arena.
        root: u8,
    },
    /// Closes a buffer.
    Close {
        /// Which.
        buffer: u8,
    },
    /// Lets a buffer go and makes a new one in its place.
    Renew {
        /// Which.
        buffer: u8,
        /// The new one.
        make: Make,
    },
    /// Declares a device lost.
    Lose {
        /// The device of which arena.
        arena: u8,
    },
}

/// How a buffer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With nothing.
    Unwritten,
    /// With zeros.
    Zeros,
    /// With storage of the application's and what is in it.
    External,
}

/// A buffer to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// Its size in bytes.
    pub len: u64,
    /// How it begins.
    pub beginning: Beginning,
}

/// What a sequence runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The platform.
    pub shape: Shape,
    /// The buffers.
    pub buffers: Vec<Make>,
}

/// The number of an arena, or of a buffer, that is none of the platform's.
pub const NONE: u8 = 47;
/// How many kernels have names.
pub const KERNELS: u8 = 3;

/// What sequences may be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Everything.
    All,
    /// Everything but lost devices, closed buffers and requests that name nothing there is: for sequences so short
    /// that these would be most of them.
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
        // Short sequences name only what there is, and meet each other more often.
        let (buffer, form) = match mix {
            Mix::All => (buffer % (NONE + 1), form % 80),
            Mix::Short => (buffer % NONE, 36 + form % 42),
        };
        Want { buffer, bytes: bytes(form, start, len), access: access(drawn) }
    })
}

/// Lengths of 32 bytes and less; now and then of none at all.
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

/// How often each sort of operation comes, in the order in which [`op`] names them.
const fn weights(mix: Mix) -> [u16; 15] {
    match mix {
        Mix::All => [92, 8, 32, 28, 100, 28, 12, 12, 28, 20, 16, 16, 7, 3, 1],
        Mix::Short => [90, 8, 40, 60, 90, 30, 8, 10, 30, 10, 10, 10, 0, 0, 0],
    }
}

/// One operation.
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
            let acquire = |way| Op::Acquire { way, kernel: drawn % 4, arena, wants, looks: which % 2 == 1 };
            match kind {
                0 => acquire(Way::Try),
                1 => acquire(Way::Timeout),
                2 => acquire(Way::Lazy),
                3 => acquire(Way::Eager),
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
                _ => Op::Lose { arena },
            }
        })
        .boxed()
}

/// One platform, and at most so many buffers on it, which must be a power of two.
pub fn setup(shapes: &'static [Shape], most_buffers: usize) -> BoxedStrategy<Setup> {
    (any::<u8>(), prop::collection::vec(make(), 1..=most_buffers))
        .prop_map(|(shape, buffers)| Setup { shape: shapes[usize::from(shape) % shapes.len()], buffers })
        .boxed()
}
