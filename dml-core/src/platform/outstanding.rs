//! Grants that have not ended.

use crate::base::access::{Claim, Claims};
use crate::base::id::{KernelId, OwnerId};
use crate::base::names::{ArenaName, BufferName};
use std::fmt;
use std::panic::Location;
use std::thread::ThreadId;

/// A grant that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outstanding {
    /// The held buffer.
    pub buffer: BufferName,
    /// The id of the grant.
    pub grant: OwnerId,
    /// The kernel that holds the grant.
    pub kernel: KernelId,
    /// The arena that the kernel uses.
    pub arena: ArenaName,
    /// The granted bytes and accesses.
    pub claims: Claims,
    /// The source location and the thread of the acquire, if events were [recorded](crate::Platform::record)
    /// at that time.
    pub acquired_at: Option<(&'static Location<'static>, ThreadId)>,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of kernel {} in {} holds {}", self.grant, self.kernel, self.arena, self.buffer)?;
        for Claim { span, access } in &self.claims {
            write!(f, " {} {access:?}", self.buffer.range(span.start(), span.end()))?;
        }
        match self.acquired_at {
            Some((at, thread)) => write!(f, ", acquired at {at} by {thread:?}"),
            None => Ok(()),
        }
    }
}
