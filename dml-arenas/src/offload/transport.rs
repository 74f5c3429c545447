//! Carries commands to a worker, and bytes to and from its memory.
//!
//! The device uses only this trait, so a coprocessor behind another connection needs only another transport.
//! The existing one, `unix.rs`, runs a process on this machine.

use dml_core::internal::sync::Arc;
use dml_core::{HostSpan, Span};
use std::fmt;
use std::io;
use std::time::Instant;

/// An error of a channel.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other side has ended or closed the channel, or this side closed it.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The operating system, or the network, failed.
    Failed(io::Error),
}

/// An ordered two-way stream of messages of at most 64 KiB each.
///
/// Messages arrive whole, in order and once, or the channel is closed. Several threads may send at a time;
/// one thread receives.
pub trait Channel: Send + Sync + fmt::Debug {
    /// Sends a message. Waits at most until `deadline` if the other side is slow.
    ///
    /// # Errors
    /// [`ChannelError`]; the channel is unusable after one.
    fn send(&self, message: &[u8], deadline: Option<Instant>) -> Result<(), ChannelError>;

    /// Waits for the next message, at most until `deadline`.
    ///
    /// # Errors
    /// [`ChannelError`]; after [`TimedOut`](ChannelError::TimedOut) it may be called again.
    fn receive(&self, deadline: Option<Instant>) -> Result<Vec<u8>, ChannelError>;

    /// Closes the channel: waiters on either side return [`ChannelError::Closed`]. Idempotent.
    fn close(&self);
}

/// A connection to one worker and its memory.
///
/// The memory is `memory_bytes` long and addressed from 0. The device checks that every span lies within it,
/// and decides what is copied and when. A transport only moves the bytes.
///
/// In a fork of the process that made it, a transport is only dropped. That must leave the worker and its
/// memory as they are: it must not close a channel or wait for a thread.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Returns the control channel, which the worker serves from the start.
    fn control(&self) -> &dyn Channel;

    /// Opens one more channel, which the worker serves on a separate thread.
    ///
    /// # Errors
    /// [`ChannelError`] if the worker is lost or no channel can be made.
    fn open(&self) -> Result<Arc<dyn Channel>, ChannelError>;

    /// Returns the size of the worker's memory, in bytes.
    fn memory_bytes(&self) -> u64;

    /// Reserves memory for the bytes of a span.
    ///
    /// # Errors
    /// The error of the operating system, if memory runs out.
    fn reserve(&self, span: Span) -> io::Result<()>;

    /// Frees the memory of a span. Its bytes are zero when they are reserved again.
    fn give_back(&self, span: Span);

    /// Copies host memory into the worker's memory, starting at `offset` there.
    ///
    /// # Safety
    /// 1. The host memory is lent to the caller until this returns.
    ///
    /// # Errors
    /// The error of the connection.
    unsafe fn copy_in(&self, offset: u64, from: &HostSpan) -> io::Result<()>;

    /// Copies the worker's memory, starting at `offset`, into host memory.
    ///
    /// # Safety
    /// 1. The host memory is lent to the caller until this returns.
    ///
    /// # Errors
    /// The error of the connection.
    unsafe fn copy_out(&self, offset: u64, to: &HostSpan) -> io::Result<()>;

    /// Sets every byte of a span.
    ///
    /// # Errors
    /// The error of the connection.
    fn fill(&self, span: Span, byte: u8) -> io::Result<()>;

    /// Kills the worker at once. Idempotent, also after the worker has ended.
    fn kill(&self);

    /// Calls `on_end` once with a description of how the worker ended. The call comes from another thread
    /// when the worker ends, or at once if it has already ended.
    fn watch(&self, on_end: Box<dyn FnOnce(Arc<str>) + Send>);

    /// Returns the process id of the worker, if it is a process of this machine.
    fn process(&self) -> Option<u32> {
        None
    }
}
