//! Who still holds what.

use crate::access::{Claim, Claims};
use crate::error::{ArenaName, BufferName};
use crate::id::{GrantId, KernelId};
use std::fmt;
use std::panic::Location;
use std::thread::ThreadId;

/// A grant that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outstanding {
    /// The buffer.
    pub buffer: BufferName,
    /// The grant.
    pub grant: GrantId,
    /// Who asked for it.
    pub kernel: KernelId,
    /// Through which arena.
    pub arena: ArenaName,
    /// Which bytes, for what.
    pub claims: Claims,
    /// Where in the program it was asked for, and by which thread, if events were [recorded](crate::Platform::record) then.
    pub acquired_at: Option<(&'static Location<'static>, ThreadId)>,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of kernel {} in {} holds {}", self.grant, self.kernel, self.arena, self.buffer)?;
        for Claim { span, access } in &self.claims {
            write!(f, " {span} {access:?}")?;
        }
        match self.acquired_at {
            Some((at, thread)) => write!(f, ", acquired at {at} by {thread:?}"),
            None => Ok(()),
        }
    }
}
