//! The errors of a coprocessor.

use crate::kit::NoResult;
use dml_core::internal::sync::Arc;
use dml_core::{AllocError, DeviceLoss, TransferError};
use std::time::Duration;
use thiserror::Error;

/// Why a worker is lost for good.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The process has ended: it was killed, it crashed, or a function ended it.
    #[error("its worker ended ({status})")]
    Ended {
        /// The exit code or the signal, as the operating system reports it.
        status: Arc<str>,
    },
    /// The worker did not answer within the time limit, and was killed.
    #[error("its worker did not answer to {command} within {limit:?}")]
    Hung {
        /// The command that was not answered.
        command: Arc<str>,
        /// The time limit of the command.
        limit: Duration,
    },
    /// The worker sent what the protocol does not allow, and was killed.
    #[error("its worker broke the protocol: {what}")]
    Protocol {
        /// What the worker sent, and what was expected.
        what: Arc<str>,
    },
    /// The connection broke while the process was running; the process was killed.
    #[error("the connection to its worker broke: {cause}")]
    Connection {
        /// What the operating system reported.
        cause: Arc<str>,
    },
    /// The owner stopped the worker.
    #[error("its worker was stopped")]
    Stopped,
    /// This process is a fork of the one that started the worker. The worker goes on for that process.
    #[error("this process is a fork of the one that started its worker")]
    Forked,
}

/// The error of an operation on a coprocessor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The worker could not be started.
    #[error("{device} could not be started: {reason}")]
    Start {
        /// The device's name.
        device: Arc<str>,
        /// What failed, and with which program.
        reason: Arc<str>,
    },
    /// The device is lost.
    #[error("{device} is lost: {loss}")]
    DeviceLost {
        /// The device's name.
        device: Arc<str>,
        /// Why the device is lost.
        loss: Loss,
    },
    /// Neither the worker's registry nor a library it has loaded has the function.
    #[error("{device} has no function {function}")]
    UnknownFunction {
        /// The device's name.
        device: Arc<str>,
        /// The name asked for.
        function: Arc<str>,
    },
    /// The worker could not load the library.
    #[error("{device} could not load {path}: {reason}")]
    Library {
        /// The device's name.
        device: Arc<str>,
        /// The library's path.
        path: Arc<str>,
        /// The loader's error message.
        reason: Arc<str>,
    },
    /// An argument is invalid: it belongs to another arena, reaches past its block, has an unsupported type,
    /// or overlaps another argument while either is written.
    #[error("argument {index} of {function} on {device}: {reason}")]
    Argument {
        /// The device's name.
        device: Arc<str>,
        /// The function's name.
        function: Arc<str>,
        /// The index of the argument, from 0.
        index: usize,
        /// What is wrong with the argument.
        reason: Arc<str>,
    },
    /// The range of items begins after its end.
    #[error("bad items for {function} on {device}: {first}..{end} begins after its end")]
    Items {
        /// The device's name.
        device: Arc<str>,
        /// The function's name.
        function: Arc<str>,
        /// The first item asked for.
        first: u64,
        /// The item after the last one asked for.
        end: u64,
    },
    /// A name, a path or a list of arguments is too long for a message.
    #[error("{what} for {device} is too long: {bytes} bytes, at most {limit_bytes}")]
    TooLong {
        /// The device's name.
        device: Arc<str>,
        /// What is too long.
        what: Arc<str>,
        /// Its size as a message, in bytes.
        bytes: usize,
        /// The largest size of a message, in bytes.
        limit_bytes: usize,
    },
    /// The function returned an error, or panicked. The worker goes on.
    #[error("{function} failed on {device}: {message}")]
    Function {
        /// The device's name.
        device: Arc<str>,
        /// The function's name.
        function: Arc<str>,
        /// The code that a C function returned; -1 for other functions.
        code: i32,
        /// The error message of the function, or of its panic.
        message: Arc<str>,
    },
    /// A dependency of the work has failed.
    #[error("not begun on {device}, because a dependency failed: {cause}")]
    Dependency {
        /// The device's name.
        device: Arc<str>,
        /// The error of the dependency.
        cause: Arc<OffloadError>,
    },
    /// The signaller was dropped without a result, most likely by a panic.
    #[error("signaller dropped without a result")]
    GivenUp,
    /// This process is a fork of the one for which the work is done.
    #[error("this process is a fork of the one that the work is done for")]
    Forked,
    /// This process has no thread, descriptor or memory left for the work.
    #[error("{what} for {device} failed: {cause}")]
    Resource {
        /// The device's name.
        device: Arc<str>,
        /// The resource that could not be obtained.
        what: &'static str,
        /// What the operating system reported.
        cause: Arc<str>,
    },
}

impl OffloadError {
    /// Returns whether the error says that the device is lost.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns the loss, if one is the cause.
    fn loss(&self) -> Option<DeviceLoss> {
        let of =
            |device: &Arc<str>, cause: String| DeviceLoss { device: device.clone(), cause: cause.into() };
        match self {
            Self::DeviceLost { device, loss } => Some(of(device, loss.to_string())),
            Self::Forked => Some(of(&"offload".into(), self.to_string())),
            Self::Dependency { cause, .. } => cause.loss(),
            _ => None,
        }
    }
}

impl From<NoResult> for OffloadError {
    fn from(no_result: NoResult) -> Self {
        match no_result {
            NoResult::GivenUp => Self::GivenUp,
            NoResult::Forked => Self::Forked,
        }
    }
}

/// The code of errors that have no code of their own.
pub(super) const NO_CODE: i32 = -1;

impl From<OffloadError> for TransferError {
    fn from(error: OffloadError) -> Self {
        if let Some(loss) = error.loss() {
            return Self::DeviceLost { loss: Some(loss) };
        }
        let code = match &error {
            OffloadError::Function { code, .. } => *code,
            _ => NO_CODE,
        };
        Self::Framework { call: "offload", code: code.into(), message: error.to_string().into() }
    }
}

impl OffloadError {
    /// Turns the error into that of an allocation in `arena`.
    pub(super) fn of_alloc(self, arena: &Arc<str>) -> AllocError {
        if let Some(loss) = self.loss() {
            return AllocError::DeviceLost { arena: arena.clone(), loss: Some(loss.cause) };
        }
        let (arena, code) = (arena.clone(), NO_CODE.into());
        AllocError::Framework { arena, call: "offload", code, message: self.to_string().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loss_says_that_the_device_is_lost() {
        let device = || Arc::<str>::from("offload:0");
        let function = || OffloadError::Function {
            device: device(),
            function: "f".into(),
            code: 3,
            message: "m".into(),
        };
        let after =
            |cause: OffloadError| OffloadError::Dependency { device: device(), cause: Arc::new(cause) };
        for goes_on in [function(), OffloadError::GivenUp, after(function()), after(OffloadError::GivenUp)] {
            assert!(!goes_on.is_device_lost(), "{goes_on}");
        }
        for lost in [OffloadError::Forked, after(OffloadError::Forked), after(after(OffloadError::Forked))] {
            assert!(lost.is_device_lost(), "{lost}");
        }
    }
}
