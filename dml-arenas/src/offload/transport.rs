//! How commands reach a worker and how bytes reach its memory.
//!
//! A device is written against this trait, so that a coprocessor behind another connection needs another transport and
//! nothing else. The one there is, `unix.rs`, is a process on this machine.

use dml_core::sync::Arc;
use dml_core::{HostSpan, Span};
use std::fmt;
use std::io;
use std::time::Instant;

/// What a transport reports of a channel.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other side is gone, or the channel was closed on this one.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The operating system, or the network, failed.
    Failed(io::Error),
}

/// An ordered two-way stream of messages of at most 64 KiB each.
///
/// Messages arrive whole, in order, once, or the channel is closed. Several threads may send, one receives at a time.
pub trait Channel: Send + Sync + fmt::Debug {
    /// Sends a message; waits until `deadline` where the other side does not keep up.
    ///
    /// # Errors
    /// [`ChannelError`]; after one the channel is of no more use.
    fn send(&self, message: &[u8], deadline: Option<Instant>) -> Result<(), ChannelError>;

    /// Waits for the next message, until `deadline` at most.
    ///
    /// # Errors
    /// [`ChannelError`]; after [`TimedOut`](ChannelError::TimedOut) it may be called again.
    fn receive(&self, deadline: Option<Instant>) -> Result<Vec<u8>, ChannelError>;

    /// Ends the channel: whoever waits in it, on either side, hears that it is closed. May be called again.
    fn close(&self);
}

/// A connection to one worker, and the way to its memory.
///
/// The memory is `memory_bytes` long and addressed from 0. Everything a span names lies within it: the device checks.
/// What is copied, and when, is the device's business too; a transport moves the bytes.
///
/// In a fork of the process that made it a transport is only dropped, which must leave the worker and its memory as they
/// are: no channel may be ended there, and no thread waited for.
pub trait Transport: Send + Sync + fmt::Debug {
    /// The channel that a worker serves from the start.
    fn control(&self) -> &dyn Channel;

    /// Opens one more channel, which the worker serves on a thread of its own.
    ///
    /// # Errors
    /// [`ChannelError`] where the worker is gone or no channel is left.
    fn open(&self) -> Result<Arc<dyn Channel>, ChannelError>;

    /// The size of the worker's memory.
    fn memory_bytes(&self) -> u64;

    /// Makes sure that there is memory behind these addresses.
    ///
    /// # Errors
    /// What the operating system says where there is none.
    fn reserve(&self, span: Span) -> io::Result<()>;

    /// Gives the memory behind these addresses back; it is zero when it is reserved again.
    fn give_back(&self, span: Span);

    /// Copies host memory into the worker's from `offset` on.
    ///
    /// # Safety
    /// 1. The host memory is lent to the caller until this returns.
    ///
    /// # Errors
    /// What the connection reports.
    unsafe fn copy_in(&self, offset: u64, from: &HostSpan) -> io::Result<()>;

    /// Copies the worker's memory from `offset` on into the host's.
    ///
    /// # Safety
    /// 1. The host memory is lent to the caller until this returns.
    ///
    /// # Errors
    /// What the connection reports.
    unsafe fn copy_out(&self, offset: u64, to: &HostSpan) -> io::Result<()>;

    /// Sets every byte.
    ///
    /// # Errors
    /// What the connection reports.
    fn fill(&self, span: Span, byte: u8) -> io::Result<()>;

    /// Ends the worker at once, whatever it does. May be called again, and of one that has ended.
    fn kill(&self);

    /// Has `on_end` called once, with how it ended, as soon as the worker has: from another thread, or right now.
    fn watch(&self, on_end: Box<dyn FnOnce(Arc<str>) + Send>);

    /// What the operating system calls the worker, where it is a process of this machine.
    fn process(&self) -> Option<u32> {
        None
    }
}
