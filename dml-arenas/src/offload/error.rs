//! What can go wrong with a coprocessor.

use dml_core::sync::Arc;
use dml_core::{AllocError, TransferError};
use std::time::Duration;
use thiserror::Error;

/// Why a worker is gone for good.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The process has ended: it was killed, it crashed, or a function ended it.
    #[error("its worker ended ({status})")]
    Ended {
        /// The exit code or the signal, as the operating system tells it.
        status: Arc<str>,
    },
    /// It did not answer within the time limit, and was killed for it.
    #[error("its worker did not answer to {command} within {limit:?}")]
    Hung {
        /// What it was to do.
        command: Arc<str>,
        /// The time it had.
        limit: Duration,
    },
    /// It sent what the protocol does not allow, and was killed for it.
    #[error("its worker broke the protocol: {what}")]
    Protocol {
        /// What it sent, and what was expected.
        what: Arc<str>,
    },
    /// The connection broke while the process was there; it was killed.
    #[error("the connection to its worker broke: {cause}")]
    Connection {
        /// What the operating system reported.
        cause: Arc<str>,
    },
    /// Its owner stopped it.
    #[error("its worker was stopped")]
    Stopped,
    /// This process is a fork of the one that started the worker, which goes on there.
    #[error("this process is a fork of the one that started its worker")]
    Forked,
}

/// Why something asked of a coprocessor was not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The worker could not be started.
    #[error("{device} could not be started: {reason}")]
    Start {
        /// The device.
        device: Arc<str>,
        /// What failed, of which program.
        reason: Arc<str>,
    },
    /// The device is gone.
    #[error("{device} is lost: {loss}")]
    Lost {
        /// The device.
        device: Arc<str>,
        /// Why.
        loss: Loss,
    },
    /// Neither the worker's registry nor a library it has loaded has the function.
    #[error("{device} has no function {function}")]
    UnknownFunction {
        /// The device.
        device: Arc<str>,
        /// The name asked for.
        function: Arc<str>,
    },
    /// The worker could not load the library.
    #[error("{device} could not load {path}: {reason}")]
    Library {
        /// The device.
        device: Arc<str>,
        /// The library.
        path: Arc<str>,
        /// What the loader said.
        reason: Arc<str>,
    },
    /// An argument does not fit: it is of another arena, reaches past its block, or overlaps another that is written.
    #[error("argument {index} of {function} on {device}: {reason}")]
    Argument {
        /// The device.
        device: Arc<str>,
        /// The function.
        function: Arc<str>,
        /// Which argument, counted from 0.
        index: usize,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// The items begin after their end.
    #[error("{function} on {device} was asked for items {first}..{end}")]
    Items {
        /// The device.
        device: Arc<str>,
        /// The function.
        function: Arc<str>,
        /// The first item asked for.
        first: u64,
        /// The item after the last one asked for.
        end: u64,
    },
    /// The call cannot be expressed: a name, a path or a list of arguments is too long.
    #[error("{what} for {device} is too long: {bytes} bytes, at most {limit_bytes}")]
    TooLong {
        /// The device.
        device: Arc<str>,
        /// What is too long.
        what: Arc<str>,
        /// Its size as a message.
        bytes: usize,
        /// The most a message can have.
        limit_bytes: usize,
    },
    /// The function returned an error, or panicked. The worker goes on.
    #[error("{function} failed on {device}: {message}")]
    Function {
        /// The device.
        device: Arc<str>,
        /// The function.
        function: Arc<str>,
        /// The code that a C function returned; -1 of others.
        code: i32,
        /// What it said.
        message: Arc<str>,
    },
    /// Something that was to end well before did not.
    #[error("not begun on {device}, for what it was to wait for failed: {cause}")]
    Dependency {
        /// The device.
        device: Arc<str>,
        /// What failed.
        cause: Arc<OffloadError>,
    },
    /// Whoever was to do it, and to say how it ended, gave it up without a word: it panicked, most likely.
    #[error("the work was given up by whoever was to do it")]
    GivenUp,
    /// This process is a fork of the one that the work is done for.
    #[error("this process is a fork of the one that the work is done for")]
    Forked,
    /// No thread, descriptor or memory is left in this process to do it with.
    #[error("{what} for {device} failed: {cause}")]
    Resource {
        /// The device.
        device: Arc<str>,
        /// What was to be had.
        what: &'static str,
        /// What the operating system reported.
        cause: Arc<str>,
    },
}

impl OffloadError {
    /// Whether the device is gone.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// The device that is gone, and why, if that is what is wrong.
    fn loss(&self) -> Option<(Arc<str>, Arc<str>)> {
        match self {
            Self::Lost { device, loss } => Some((device.clone(), loss.to_string().into())),
            Self::Forked => Some(("offload".into(), self.to_string().into())),
            Self::Dependency { cause, .. } => cause.loss(),
            _ => None,
        }
    }
}

/// The code of errors that have none of their own.
pub(super) const NO_CODE: i32 = -1;

impl From<OffloadError> for TransferError {
    fn from(error: OffloadError) -> Self {
        if let Some((device, loss)) = error.loss() {
            return Self::Lost { device, loss };
        }
        let code = match &error {
            OffloadError::Function { code, .. } => *code,
            _ => NO_CODE,
        };
        Self::Framework { call: "offload", code: code.into(), message: error.to_string().into() }
    }
}

impl OffloadError {
    /// The error as one of an allocation in `arena`.
    pub(super) fn of_alloc(self, arena: &Arc<str>) -> AllocError {
        if let Some((_, loss)) = self.loss() {
            return AllocError::Lost { arena: arena.clone(), loss };
        }
        let (arena, code) = (arena.clone(), NO_CODE.into());
        AllocError::Framework { arena, call: "offload", code, message: self.to_string().into() }
    }
}
