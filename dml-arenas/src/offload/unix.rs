//! The transport to a process on this machine: a socket for commands, a window into its memory for payload.
//!
//! ```text
//!   owner                                   worker
//!   SocketChannel ── Unix socket, SEQPACKET ── SocketChannel      messages arrive whole; each side detects the other's end
//!   Window ───────── one sealed memory file ── Window             a transfer is one copy, made by the owner
//!   SharedMemory ─── one for all workers ───── Window             no transfers, if the worker shares one
//! ```

use super::message::{Command, LIMIT_BYTES, Reply, VERSION};
use super::process::Process;
use super::transport::{Channel, ChannelError, Transport};
use crate::fork::Origin;
use crate::shared::SharedMemory;
use crate::shared::window::{Window, above_standard_streams, memory};
use dml_core::internal::sync::Arc;
use dml_core::{HostSpan, Span};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown,
    socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Largest number of descriptors in a message: a worker's own memory and its shared memory.
const DESCRIPTORS: usize = 2;

/// Timeout for starting or stopping a worker, for sending it a message, and for looking up a function.
pub(super) const CONTROL_LIMIT: Duration = Duration::from_secs(10);

/// One end of a socket that preserves message boundaries. Dropping it closes the connection, even if a fork
/// has inherited the descriptor.
#[derive(Debug)]
pub(super) struct SocketChannel {
    socket: OwnedFd,
    origin: Origin,
}

impl SocketChannel {
    /// Makes a channel and the socket of its other end.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (socket, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let socket = Self { socket: above_standard_streams(socket)?, origin: Origin::here() };
        Ok((socket, above_standard_streams(other)?))
    }

    /// Makes a channel over a socket that another process made.
    ///
    /// # Errors
    /// An error if the descriptor is not a SEQPACKET socket.
    pub(super) fn over(socket: OwnedFd) -> io::Result<Self> {
        if rustix::net::sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket of type SEQPACKET"));
        }
        Ok(Self { socket, origin: Origin::here() })
    }

    /// Sends a message with descriptors, at most [`DESCRIPTORS`].
    pub(super) fn send_with(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        loop {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(fits, "the space is for {DESCRIPTORS} descriptors");
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => self.ready(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failure(error)),
            }
        }
    }

    /// Receives a message, and the descriptors that came with it. Only a worker calls this: the worker's own
    /// messages carry no descriptors.
    pub(super) fn receive_with(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut buffer = vec![0; LIMIT_BYTES];
        loop {
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let slice = &mut [IoSliceMut::new(&mut buffer)];
            match recvmsg(&self.socket, slice, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes == 0 => return Err(ChannelError::Closed),
                Ok(received) => {
                    let bytes = received.bytes;
                    let descriptors = ancillary.drain().filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                        _ => None,
                    });
                    let descriptors = descriptors.flatten().collect();
                    buffer.truncate(bytes);
                    return Ok((buffer, descriptors));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failure(error)),
            }
        }
    }

    /// Waits until the socket can be written or read.
    fn ready(&self, what: PollFlags, deadline: Option<Instant>) -> Result<(), ChannelError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.map(|left| Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::new(&self.socket, what)], timeout.as_ref()) {
                Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(ChannelError::TimedOut),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(failure(error)),
            }
        }
    }
}

fn failure(error: Errno) -> ChannelError {
    match error {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ChannelError::Closed,
        error => ChannelError::Failed(error.into()),
    }
}

impl Channel for SocketChannel {
    fn send(&self, message: &[u8], deadline: Option<Instant>) -> Result<(), ChannelError> {
        self.send_with(message, &[], deadline)
    }

    fn receive(&self, deadline: Option<Instant>) -> Result<Vec<u8>, ChannelError> {
        // One byte more than the limit, so that a message over the limit is detected.
        let mut buffer = Vec::with_capacity(LIMIT_BYTES + 1);
        loop {
            if deadline.is_some() {
                self.ready(PollFlags::IN, deadline)?;
            }
            match recv(&self.socket, spare_capacity(&mut buffer), RecvFlags::empty()) {
                Ok((0, _)) => return Err(ChannelError::Closed),
                Ok(_) => return Ok(buffer),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(failure(error)),
            }
        }
    }

    fn close(&self) {
        // The call fails if the other end is gone, which is harmless.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Drop for SocketChannel {
    fn drop(&mut self) {
        // Closing the descriptor does not end the connection while a fork holds a copy. A fork only closes
        // its own copy.
        if self.origin.is_here() {
            self.close();
        }
    }
}

/// A worker process of this machine. The fields are dropped in this order.
#[derive(Debug)]
pub(super) struct UnixTransport {
    control: SocketChannel,
    process: Process,
    window: Window,
}

/// The parameters with which a worker is started.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) device: &'a str,
    pub(super) program: &'a Path,
    pub(super) threads: u32,
    pub(super) pins: &'a [u32],
    pub(super) memory_bytes: u64,
    /// The memory that the worker shares with this process and with other workers.
    pub(super) shared: Option<&'a SharedMemory>,
}

impl UnixTransport {
    /// Starts a worker and waits until it listens.
    ///
    /// # Errors
    /// The step that failed, and its cause.
    pub(super) fn start(start: &Start<'_>) -> Result<Self, String> {
        let no_memory = |error: io::Error| format!("no memory of {} bytes: {error}", start.memory_bytes);
        let file = memory(start.device, start.memory_bytes).map_err(no_memory)?;
        let window = Window::map(file, start.memory_bytes).map_err(no_memory)?;
        let (control, other) = SocketChannel::pair().map_err(|error| format!("no socket: {error}"))?;
        let process = Process::start(start.program, start.device, start.threads, other)
            .map_err(|error| format!("{} does not start: {error}", start.program.display()))?;
        let transport = Self { control, process, window };
        transport.greet(start).map_err(|reason| format!("{} {reason}", start.program.display()))?;
        Ok(transport)
    }

    fn greet(&self, start: &Start<'_>) -> Result<(), String> {
        let deadline = Some(Instant::now() + CONTROL_LIMIT);
        let hello = Command::Hello {
            version: VERSION,
            memory_bytes: start.memory_bytes,
            threads: start.threads,
            pins: start.pins.to_vec(),
            shared_bytes: start.shared.map(SharedMemory::bytes),
        };
        let shared = start.shared.map(SharedMemory::file);
        let files: Vec<_> = std::iter::once(self.window.file()).chain(shared).collect();
        let silent = |error| match error {
            ChannelError::Closed => {
                "ended before it was ready: is it a program that calls `offload::hook` first \
                thing in main, or dml-offload-worker?"
                    .to_owned()
            }
            ChannelError::TimedOut => format!("did not answer within {CONTROL_LIMIT:?}"),
            ChannelError::Failed(error) => format!("cannot be reached: {error}"),
        };
        self.control.send_with(&hello.encode(), &files, deadline).map_err(silent)?;
        welcomed(&self.control.receive(deadline).map_err(silent)?)
    }
}

/// Checks a worker's answer to the greeting.
fn welcomed(answer: &[u8]) -> Result<(), String> {
    match Reply::decode(answer) {
        Ok(Reply::Ready { version: VERSION }) => Ok(()),
        Ok(Reply::Ready { version }) => {
            Err(format!("speaks version {version} of the protocol, not {VERSION}"))
        }
        Ok(Reply::Failed { message }) => Err(format!("refused: {message}")),
        Ok(other) => Err(format!("answered {other:?} to the greeting")),
        Err(what) => Err(format!("answered {what} to the greeting")),
    }
}

impl Transport for UnixTransport {
    fn control(&self) -> &dyn Channel {
        &self.control
    }

    fn open(&self) -> Result<Arc<dyn Channel>, ChannelError> {
        let (channel, other) = SocketChannel::pair().map_err(ChannelError::Failed)?;
        let deadline = Some(Instant::now() + CONTROL_LIMIT);
        self.control.send_with(&Command::Pipeline.encode(), &[other.as_fd()], deadline)?;
        Ok(Arc::new(channel))
    }

    fn memory_bytes(&self) -> u64 {
        self.window.bytes()
    }

    fn reserve(&self, span: Span) -> io::Result<()> {
        self.window.reserve(span)
    }

    fn give_back(&self, span: Span) {
        self.window.give_back(span);
    }

    unsafe fn copy_in(&self, offset: u64, from: &HostSpan) -> io::Result<()> {
        // SAFETY: the caller guarantees the loan of the source. No host memory lies in the window, so the two
        // do not overlap.
        unsafe { self.window.copy_in(offset, from) };
        Ok(())
    }

    unsafe fn copy_out(&self, offset: u64, to: &HostSpan) -> io::Result<()> {
        // SAFETY: as in `copy_in`, with a loan of the target.
        unsafe { self.window.copy_out(offset, to) };
        Ok(())
    }

    fn fill(&self, span: Span, byte: u8) -> io::Result<()> {
        // SAFETY: no host memory lies in the window, so no loan covers the place.
        unsafe { self.window.fill(span, byte) };
        Ok(())
    }

    fn kill(&self) {
        self.process.kill();
    }

    fn watch(&self, on_end: Box<dyn FnOnce(Arc<str>) + Send>) {
        self.process.watch(on_end);
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of a connection.
    fn ends() -> [SocketChannel; 2] {
        let (one, other) = SocketChannel::pair().unwrap();
        [one, SocketChannel::over(other).unwrap()]
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(20))
    }

    #[test]
    fn who_does_not_read_is_waited_for_and_not_for_ever() {
        let [one, other] = ends();
        let message = vec![7; 16 << 10];
        let told = (0..100_000).find_map(|_| one.send(&message, soon()).err());
        assert!(matches!(told, Some(ChannelError::TimedOut)), "{told:?}");
        assert!(matches!(one.receive(soon()), Err(ChannelError::TimedOut)));
        // Then there is room again.
        assert_eq!(other.receive(soon()).unwrap(), message);
        let reads = std::thread::spawn(move || {
            while other.receive(soon()).is_ok() {}
            other
        });
        let late = Some(Instant::now() + Duration::from_secs(60));
        for _ in 0..64 {
            one.send(&message, late).unwrap();
        }
        drop(reads.join().unwrap());
    }

    #[test]
    fn the_longest_message_comes_whole_and_a_longer_one_is_seen_to_be_longer() {
        for bytes in [1, LIMIT_BYTES - 1, LIMIT_BYTES, LIMIT_BYTES + 1, LIMIT_BYTES + 100] {
            let [one, other] = ends();
            let message: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
            one.send(&message, soon()).unwrap();
            let seen = bytes.min(LIMIT_BYTES + 1);
            assert_eq!(other.receive(soon()).unwrap(), message[..seen], "{bytes}");
        }
    }

    #[test]
    fn whoever_is_gone_is_so_at_once() {
        for asks in [
            |channel: &SocketChannel| channel.receive(None).map(drop),
            |channel: &SocketChannel| channel.receive(soon()).map(drop),
            |channel: &SocketChannel| channel.receive_with().map(drop),
            |channel: &SocketChannel| channel.send(&[1], soon()),
        ] {
            let [one, other] = ends();
            drop(one);
            assert!(matches!(asks(&other), Err(ChannelError::Closed)));
        }
    }

    #[test]
    fn descriptors_come_with_their_message() {
        let [one, other] = ends();
        let files = [1 << 12, 1 << 13].map(|bytes| memory("dml-test", bytes).unwrap());
        one.send_with(&[1, 2, 3], &[files[0].as_fd(), files[1].as_fd()], soon()).unwrap();
        let (message, descriptors) = other.receive_with().unwrap();
        assert_eq!(message, [1, 2, 3]);
        let sizes = descriptors.iter().map(|file| rustix::fs::fstat(file).unwrap().st_size);
        assert_eq!(sizes.collect::<Vec<_>>(), [1 << 12, 1 << 13]);
    }

    #[test]
    fn a_worker_of_another_version_is_refused() {
        assert_eq!(welcomed(&Reply::Ready { version: VERSION }.encode()), Ok(()));
        for version in [VERSION - 1, VERSION + 1, 0, u32::MAX] {
            let refused = welcomed(&Reply::Ready { version }.encode()).unwrap_err();
            assert_eq!(refused, format!("speaks version {version} of the protocol, not {VERSION}"));
        }
        let failed = Reply::Failed { message: "no room".to_owned() }.encode();
        assert_eq!(welcomed(&failed), Err("refused: no room".to_owned()));
        assert!(welcomed(&Reply::Loaded.encode()).unwrap_err().contains("Loaded to the greeting"));
        assert!(welcomed(&[1, 2, 3]).unwrap_err().ends_with("to the greeting"));
    }
}
