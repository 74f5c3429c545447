//! Children that a test forks: they do their work, and tell by their exit code whether they could.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// At once.
    AtOnce,
    /// With all that a process does at its end: destructors of thread-locals, exit handlers.
    InOrder,
}

/// How long a child may take, in seconds, before it counts as hung.
const LIMIT_S: u32 = 10;
/// The exit code of a child whose work panicked.
const PANICKED: i32 = 101;

/// Which of the two processes this is after a fork.
pub(crate) enum Fork {
    Child,
    Parent(Child),
}

/// A child to be waited for.
#[must_use]
pub(crate) struct Child(libc::pid_t);

/// Forks. The child ends itself where it hangs.
pub(crate) fn fork() -> Fork {
    // SAFETY: the child does what a test has it do, and ends by `leave`. What it may not do of what other
    // threads have begun is what these tests are about; the C library's own locks are usable in a child.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that hangs; nothing else is of this process.
            unsafe { libc::alarm(LIMIT_S) };
            Fork::Child
        }
        child => {
            assert!(child > 0, "no fork: {}", std::io::Error::last_os_error());
            Fork::Parent(Child(child))
        }
    }
}

/// Does a child's work and ends the child.
pub(crate) fn leave(how: Leave, work: impl FnOnce()) -> ! {
    let code = if catch_unwind(AssertUnwindSafe(work)).is_ok() { 0 } else { PANICKED };
    match how {
        // SAFETY: ends the child.
        Leave::AtOnce => unsafe { libc::_exit(code) },
        Leave::InOrder => std::process::exit(code),
    }
}

/// A child that does some work, without taking anything over from its parent.
pub(crate) fn child(work: impl FnOnce()) -> Child {
    match fork() {
        Fork::Child => leave(Leave::AtOnce, work),
        Fork::Parent(child) => child,
    }
}

impl Child {
    /// Waits for its end, and returns what the system says of it.
    fn end(self) -> libc::c_int {
        let mut status = -1;
        // SAFETY: waits for a child of this process that no other code waits for.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        status
    }

    /// Waits for its end, which has to be by a signal.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub(crate) fn ends_by(self, signal: libc::c_int) {
        assert_eq!(self.end() & 0x7F, signal, "the child ended otherwise");
    }

    /// Waits for its end, which has to be a good one.
    pub(crate) fn ends_well(self) {
        let status = self.end();
        assert_ne!(status, libc::SIGALRM, "the child hung");
        assert_ne!(status, PANICKED << 8, "the child panicked: what it says is above");
        assert_eq!(status, 0, "the child ended otherwise");
    }
}

/// A gate that one process opens for the other.
pub(crate) struct Gate([libc::c_int; 2]);

impl Gate {
    pub(crate) fn new() -> Self {
        let mut ends = [-1; 2];
        // SAFETY: the call writes the two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        Self(ends)
    }

    pub(crate) fn open(&self) {
        // SAFETY: writes one byte that lives.
        assert_eq!(unsafe { libc::write(self.0[1], [1_u8].as_ptr().cast(), 1) }, 1);
    }

    pub(crate) fn pass(&self) {
        let mut byte = [0_u8];
        // SAFETY: reads one byte into one that lives.
        assert_eq!(unsafe { libc::read(self.0[0], byte.as_mut_ptr().cast(), 1) }, 1);
    }
}
