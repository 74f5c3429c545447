//! A function of a worker, and its arguments.

use super::block::OffloadBlock;
use super::device::OffloadDevice;
use super::error::OffloadError;
use super::message::{self, Call, Command, Memory, Part, Reply, WireScalar};
use super::transfer::Place;
use super::unix::CONTROL_LIMIT;
use dml_core::internal::sync::Arc;
use dml_core::{Access, BlockRef, Scalar, Span};
use std::fmt;
use std::ops::Range;

/// A function that a worker can run, looked up by name.
///
/// # Examples
/// ```no_run
/// # use dml_arenas::{OffloadArena, offload::Argument};
/// # use dml_core::{Access, Buffer, DeviceId, Platform};
/// # fn example(
/// #     (platform, worker, arena): (&Platform, DeviceId, &OffloadArena),
/// #     a: &Buffer<f32>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let scale = arena.device().function("scale")?;
/// let grants = platform.acquire(worker).read_write(a).wait()?;
/// let (block, span) = grants.granted(a, Access::ReadWrite)?;
/// let data = Argument::Write(block.ok_or("no bytes")?, span);
/// // SAFETY: the bytes are granted until the fence has ended.
/// let run = unsafe { arena.launch(&scale, 0..a.len(), &[Argument::Scalar(2.5_f32.into()), data]) }?;
/// grants.in_flight(run).wait()?.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Function {
    device: Arc<OffloadDevice>,
    name: Arc<str>,
    /// The number by which the worker knows the function.
    number: u32,
}

/// One argument of a function. The function finds it by its position.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Argument<'a> {
    /// Part of a block, to be read.
    Read(&'a BlockRef, Span),
    /// Part of a block, to be read and written.
    Write(&'a BlockRef, Span),
    /// Several parts of one buffer, with the block of each. A part without bytes needs no block.
    Parts(Vec<(Option<&'a BlockRef>, Span)>, Access),
    /// A scalar value.
    Scalar(Scalar),
    /// A value of any other type, as its bytes.
    Bytes(&'a [u8]),
    /// An argument without a value, such as local memory.
    Nothing,
}

impl OffloadDevice {
    /// Looks up a function by name: in the worker's registry, then in the loaded libraries, in the order of
    /// loading.
    ///
    /// # Errors
    /// [`OffloadError::UnknownFunction`], [`OffloadError::TooLong`], [`OffloadError::DeviceLost`].
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, OffloadError> {
        let find = Command::Find { name: name.to_owned() };
        let reply = self.ask("a lookup", &find, Some(CONTROL_LIMIT))?;
        match reply {
            Reply::Found { function } => Ok(Function::new(self.clone(), name.into(), function)),
            Reply::NotFound => {
                Err(OffloadError::UnknownFunction { device: self.name().clone(), function: name.into() })
            }
            other => Err(self.unexpected(&other, "a lookup")),
        }
    }
}

impl Function {
    fn new(device: Arc<OffloadDevice>, name: Arc<str>, number: u32) -> Self {
        Self { device, name, number }
    }

    /// Returns the name by which the function was looked up.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the device that the function belongs to.
    #[must_use]
    pub fn device(&self) -> &Arc<OffloadDevice> {
        &self.device
    }

    /// Encodes a call as a message. Returns the message, and the blocks that must live until the call has
    /// ended.
    pub(super) fn message(
        &self,
        ticket: u64,
        items: &Range<u64>,
        arguments: &[Argument<'_>],
    ) -> Result<(Vec<u8>, Vec<BlockRef>), OffloadError> {
        if items.start > items.end {
            return Err(OffloadError::Items {
                device: self.device.name().clone(),
                function: self.name.clone(),
                first: items.start,
                end: items.end,
            });
        }
        let mut call =
            Call { function: self.number, first: items.start, end: items.end, arguments: Vec::new() };
        let (mut placed, mut blocks) = (Vec::<(usize, Part)>::new(), Vec::new());
        for (index, argument) in arguments.iter().enumerate() {
            let (parts, writes) = match argument {
                Argument::Read(block, span) => (&[(Some(*block), *span)][..], false),
                Argument::Write(block, span) => (&[(Some(*block), *span)][..], true),
                Argument::Parts(parts, access) => (&parts[..], access.writes()),
                Argument::Scalar(scalar) => {
                    let unknown = || self.misfit(index, &format!("workers do not support {scalar:?}"));
                    let scalar = WireScalar::of(*scalar).ok_or_else(unknown)?;
                    call.arguments.push(message::Argument::Scalar(scalar));
                    continue;
                }
                Argument::Bytes(bytes) => {
                    call.arguments.push(message::Argument::Bytes(bytes.to_vec()));
                    continue;
                }
                Argument::Nothing => {
                    call.arguments.push(message::Argument::Nothing);
                    continue;
                }
            };
            let mut travelling = Vec::with_capacity(parts.len());
            for &(block, span) in parts {
                let part = self.part(block, span, writes).map_err(|reason| self.misfit(index, &reason))?;
                if let Some((other, _)) = placed.iter().find(|(_, other)| clash(other, &part)) {
                    let reason = format!("shares bytes with argument {other}, and one of them is written");
                    return Err(self.misfit(index, &reason));
                }
                placed.push((index, part));
                travelling.push(part);
                blocks.extend(block.cloned());
            }
            call.arguments.push(message::Argument::Buffer(travelling));
        }
        let what = format!("a call of {}", self.name);
        Ok((self.device.message(&what, &Command::Run { ticket, call })?, blocks))
    }

    /// Returns the part of a block in a memory that the worker maps, or the reason why it has no place there.
    fn part(&self, block: Option<&BlockRef>, span: Span, writes: bool) -> Result<Part, String> {
        let start = span.start();
        let Some(block) = block else {
            if span.is_empty() {
                return Ok(Part { memory: Memory::Own, offset: 0, bytes: 0, start, writes });
            }
            return Err(format!("bytes {span} without a block"));
        };
        let Place { memory, span: place } = OffloadBlock::find(block, &self.device, span)?;
        Ok(Part { memory, offset: place.start(), bytes: place.len(), start, writes })
    }

    /// Returns the error of an invalid argument.
    fn misfit(&self, index: usize, reason: &str) -> OffloadError {
        let (device, function) = (self.device.name().clone(), self.name.clone());
        OffloadError::Argument { device, function, index, reason: reason.into() }
    }
}

/// Returns whether two parts share bytes, and one of the parts is written.
fn clash(a: &Part, b: &Part) -> bool {
    let end = |part: &Part| part.offset + part.bytes;
    (a.writes || b.writes) && a.memory == b.memory && a.offset < end(b) && b.offset < end(a)
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.device.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adjacent parts share no bytes.
    #[test]
    fn parts_clash_from_the_first_byte_that_they_share() {
        let part = |offset, bytes, writes| Part { memory: Memory::Own, offset, bytes, start: 0, writes };
        let written = part(100, 10, true);
        for (offset, bytes, is_so) in [
            (90, 10, false),
            (90, 11, true),
            (110, 10, false),
            (109, 10, true),
            (103, 1, true),
            (0, 200, true),
        ] {
            for writes in [false, true] {
                let other = part(offset, bytes, writes);
                assert_eq!(
                    (clash(&written, &other), clash(&other, &written)),
                    (is_so, is_so),
                    "{offset}, {bytes}"
                );
            }
        }
        assert!(!clash(&part(100, 10, false), &part(100, 10, false)), "both read");
        assert!(!clash(&written, &Part { memory: Memory::Shared, ..written }), "two memories");
    }
}
