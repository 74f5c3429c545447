//! Messages between owner and worker. On each channel, replies arrive in the order of their commands.
//!
//! ```text
//!   control    owner ─ Hello + memories ▶ worker ─ Ready ─▶     Find ─▶ Found | NotFound      Load ─▶ Loaded | Failed
//!              owner ─ Pipeline + channel ─▶ worker            (no reply: the channel is served from then on)
//!   pipeline   owner ─ Run ─▶ worker ─ Ended ─▶                several runs may be sent before the first has ended
//! ```
//! Messages carry no contents of buffers: a run names places in memory that both processes map.

use dml_core::Scalar;
use serde::{Deserialize, Serialize};

/// The version of this protocol. Owner and worker must agree on it.
pub(super) const VERSION: u32 = 4;
/// The largest size of a message, in bytes.
pub(super) const LIMIT_BYTES: usize = 64 << 10;
/// The largest size of a text that a worker sends back, in bytes.
const TEXT_LIMIT_BYTES: usize = 4 << 10;

/// A command of the owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Command {
    /// The greeting, which is the first message. It carries the descriptor of the worker's own memory, then
    /// that of its shared memory, if any.
    Hello { version: u32, memory_bytes: u64, threads: u32, pins: Vec<u32>, shared_bytes: Option<u64> },
    /// Carries the descriptor of a new channel, which the worker serves on a separate thread.
    Pipeline,
    /// Looks up a function by name.
    Find { name: String },
    /// Loads a shared library. The path is raw bytes, because it may not be UTF-8.
    Load { path: Vec<u8> },
    /// Runs a function.
    Run { ticket: u64, call: Call },
}

/// One call of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// The function's number, as [`Reply::Found`] returned it.
    pub(super) function: u32,
    /// The first item to compute.
    pub(super) first: u64,
    /// The item after the last one.
    pub(super) end: u64,
    /// The arguments, in their order.
    pub(super) arguments: Vec<Argument>,
}

/// One argument of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Argument {
    /// The parts of a buffer that the function works on.
    Buffer(Vec<Part>),
    Scalar(WireScalar),
    /// A value of any other type.
    Bytes(Vec<u8>),
    /// An argument without a value, such as local memory.
    Nothing,
}

/// One of the memories that a worker maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Memory {
    /// The worker's own memory, which only the worker and its owner map.
    Own,
    /// The memory that the worker shares with its owner and with other workers.
    Shared,
}

/// Part of a buffer in a memory that the worker maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    /// The memory.
    pub(super) memory: Memory,
    /// The offset of its first byte in that memory.
    pub(super) offset: u64,
    /// Its length in bytes.
    pub(super) bytes: u64,
    /// The offset of its first byte in its buffer.
    pub(super) start: u64,
    /// Whether the function may write it.
    pub(super) writes: bool,
}

/// A scalar in a message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum WireScalar {
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    F16(u16),
}

impl WireScalar {
    /// Converts a scalar for a message; `None` for a type that this protocol does not have.
    pub(super) fn of(scalar: Scalar) -> Option<Self> {
        Some(match scalar {
            Scalar::U32(value) => Self::U32(value),
            Scalar::I32(value) => Self::I32(value),
            Scalar::U64(value) => Self::U64(value),
            Scalar::I64(value) => Self::I64(value),
            Scalar::F32(value) => Self::F32(value),
            Scalar::F64(value) => Self::F64(value),
            Scalar::U8(value) => Self::U8(value),
            Scalar::I8(value) => Self::I8(value),
            Scalar::U16(value) => Self::U16(value),
            Scalar::I16(value) => Self::I16(value),
            Scalar::F16(bits) => Self::F16(bits),
            _ => return None,
        })
    }
}

impl From<WireScalar> for Scalar {
    fn from(scalar: WireScalar) -> Self {
        match scalar {
            WireScalar::U32(value) => Self::U32(value),
            WireScalar::I32(value) => Self::I32(value),
            WireScalar::U64(value) => Self::U64(value),
            WireScalar::I64(value) => Self::I64(value),
            WireScalar::F32(value) => Self::F32(value),
            WireScalar::F64(value) => Self::F64(value),
            WireScalar::U8(value) => Self::U8(value),
            WireScalar::I8(value) => Self::I8(value),
            WireScalar::U16(value) => Self::U16(value),
            WireScalar::I16(value) => Self::I16(value),
            WireScalar::F16(bits) => Self::F16(bits),
        }
    }
}

/// A reply of the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The worker has mapped its memory and listens.
    Ready { version: u32 },
    /// The worker cannot do what Hello or Load asked.
    Failed { message: String },
    /// The function's number.
    Found { function: u32 },
    /// The worker has no function of that name.
    NotFound,
    /// The library is loaded.
    Loaded,
    /// The run has ended.
    Ended { ticket: u64, outcome: Outcome },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Done,
    Failed { code: i32, message: String },
}

impl Command {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, String> {
        decode(message)
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a reply. The error says what is wrong with the message.
    pub(super) fn decode(message: &[u8]) -> Result<Self, String> {
        decode(message)
    }
}

/// Truncates a text that exceeds [`TEXT_LIMIT_BYTES`].
pub(super) fn text(mut text: String) -> String {
    if text.len() > TEXT_LIMIT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT_BYTES));
        text.push_str(" ...");
    }
    text
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("encoding cannot fail: all sequences have a known length")
}

fn decode<'a, M: Deserialize<'a>>(message: &'a [u8]) -> Result<M, String> {
    match postcard::take_from_bytes(message) {
        Ok((decoded, [])) => Ok(decoded),
        Ok((_, rest)) => Err(format!("{} bytes too many in a message of {}", rest.len(), message.len())),
        Err(error) => Err(format!("a malformed message of {} bytes: {error}", message.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_it_is_longer_than_may_be_sent() {
        let of = |bytes| text("x".repeat(bytes));
        assert_eq!(of(TEXT_LIMIT_BYTES).len(), TEXT_LIMIT_BYTES);
        assert_eq!(of(TEXT_LIMIT_BYTES + 1), format!("{} ...", of(TEXT_LIMIT_BYTES)));
        // No character is cut in two.
        let cut = text(format!("{}\u{e9}", "x".repeat(TEXT_LIMIT_BYTES - 1)));
        assert_eq!(cut, format!("{} ...", "x".repeat(TEXT_LIMIT_BYTES - 1)));
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let part = |memory| Part { memory, offset: 4096, bytes: 12, start: 4, writes: true };
        let parts = vec![part(Memory::Own), part(Memory::Shared)];
        let scalars = vec![
            Scalar::F32(1.5),
            Scalar::U64(u64::MAX),
            Scalar::I32(-1),
            Scalar::F64(-0.0),
            Scalar::U32(7),
            Scalar::I64(i64::MIN),
            Scalar::U8(200),
            Scalar::I8(-100),
            Scalar::U16(60_000),
            Scalar::I16(-30_000),
            Scalar::F16(0x3C01),
        ];
        let travelling: Vec<_> = scalars.iter().copied().filter_map(WireScalar::of).collect();
        assert!(travelling.iter().map(|scalar| Scalar::from(*scalar)).eq(scalars));
        let scalars = travelling.into_iter().map(Argument::Scalar);
        let others = [Argument::Buffer(parts), Argument::Bytes(vec![1, 2, 3]), Argument::Nothing];
        let arguments = scalars.chain(others).collect();
        let call = Call { function: 3, first: 7, end: u64::MAX, arguments };
        for command in [
            Command::Hello {
                version: VERSION,
                memory_bytes: 1 << 40,
                threads: 2,
                pins: vec![0, 3],
                shared_bytes: Some(1 << 39),
            },
            Command::Pipeline,
            Command::Find { name: "saxpy".to_owned() },
            Command::Load { path: b"/lib/\xFF.so".to_vec() },
            Command::Run { ticket: 1 << 50, call },
        ] {
            assert_eq!(Command::decode(&command.encode()), Ok(command));
        }
        let outcome = Outcome::Failed { code: -3, message: "no".to_owned() };
        for reply in [
            Reply::Ready { version: VERSION },
            Reply::Found { function: 9 },
            Reply::Ended { ticket: 4, outcome },
        ] {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn what_is_no_message_is_said_to_be_none() {
        let reply = Reply::Ended { ticket: 300, outcome: Outcome::Done }.encode();
        assert!(Reply::decode(&[]).is_err() && Reply::decode(&[200]).is_err());
        assert!(Reply::decode(&reply[..reply.len() - 1]).is_err());
        assert!(Reply::decode(&[reply, vec![0]].concat()).unwrap_err().contains("too many"));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let cut = text("ä".repeat(TEXT_LIMIT_BYTES));
        assert!(cut.len() <= TEXT_LIMIT_BYTES + 4 && cut.ends_with("ä ..."));
        assert_eq!(text("short".to_owned()), "short");
    }
}
