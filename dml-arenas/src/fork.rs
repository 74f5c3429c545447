//! Remembers which process made an object, so that forks of that process leave the object alone.
//!
//! ```text
//!   parent ── here() ──▶ origin 1          its page: 1     is origin 1 here? yes
//!     └─ child                             its page: 0                       no
//!          └── here() ──▶ origin 2         its page: 2     is origin 2 here? yes, and origin 1 is not
//!                └─ grandchild             its page: 0     neither is
//! ```
//! A fork inherits the memory, the descriptors and the destructors of its parent, but none of its threads.
//! Some objects share state with others: a worker, its memory, an OpenCL driver. Such an object remembers its
//! [`Origin`], and checks it on each use and in each destructor.
//!
//! 1. A page holds the number of the process that reads it. The kernel shows the page as zeros to every fork,
//!    also to one made by a bare `clone`. A process without a number takes the next number when it makes an
//!    object.
//! 2. No process has the number of one of its ancestors: a fork inherits the count and goes on from it.
//! 3. A check costs two loads. Some kernels have no such pages (Linux before 4.14, other systems). There the
//!    process id identifies a process instead, at the cost of a system call.
//! 4. This module takes no lock, because a fork may happen while another thread runs its code.
//!
//! A child that shares its parent's memory (`vfork`) counts as its parent here. Such a child may only call
//! `exec`.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u64);

impl Origin {
    /// Returns the origin for objects that this process makes.
    pub(crate) fn here() -> Self {
        tell_of_forks();
        Self(MARK.number())
    }

    /// Returns whether this process is the origin, and not a fork of it.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        MARK.is(self.0)
    }
}

/// Registers a fork handler that notifies core in each fork. Core grants valid bytes in shared memory without
/// calling an arena, so no arena could refuse a request of a fork.
fn tell_of_forks() {
    #[cfg(unix)]
    {
        use std::sync::atomic::AtomicBool;
        extern "C" fn in_child() {
            dml_core::internal::forked();
        }
        static IS_TOLD: AtomicBool = AtomicBool::new(false);
        if !IS_TOLD.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler only adds to an atomic number.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            IS_TOLD.store(refused == 0, Ordering::Relaxed);
        }
    }
}

static MARK: Mark = Mark::new();
/// The last number given out in this process or its ancestors.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
/// Stands for the page on systems without such pages.
static NO_PAGE: AtomicU64 = AtomicU64::new(0);

/// The page that identifies the process.
struct Mark {
    /// The page, which is never unmapped. It is `NO_PAGE` where the kernel has no such page, and null before
    /// the first use.
    page: AtomicPtr<AtomicU64>,
}

impl Mark {
    const fn new() -> Self {
        Self { page: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the number of this process, and gives it one if it has none yet.
    fn number(&self) -> u64 {
        let page = match self.page.load(Ordering::Acquire) {
            page if page.is_null() => self.make_page(),
            page => page.cast_const(),
        };
        if std::ptr::eq(page, &raw const NO_PAGE) {
            return process_id();
        }
        // SAFETY: the pointer is neither null nor `NO_PAGE`, so it is a page from `make_page`. Such a page is
        // aligned and never unmapped.
        let page = unsafe { &*page };
        match page.load(Ordering::Relaxed) {
            0 => {
                let next = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
                // If another thread was first, its number counts.
                page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|first| first, |_| next)
            }
            number => number,
        }
    }

    #[inline]
    fn is(&self, number: u64) -> bool {
        let page = self.page.load(Ordering::Relaxed).cast_const();
        if std::ptr::eq(page, &raw const NO_PAGE) {
            return process_id() == number;
        }
        // SAFETY: a number was given out, so this process or an ancestor has mapped the page. A fork inherits
        // the mapping with the pointer to it.
        unsafe { &*page }.load(Ordering::Relaxed) == number
    }

    #[cold]
    fn make_page(&self) -> *const AtomicU64 {
        let made = wiped_page().unwrap_or((&raw const NO_PAGE).cast_mut());
        let placed =
            self.page.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        // If another thread was first, one page is leaked.
        placed.map_or_else(|first| first, |_| made).cast_const()
    }
}

/// Makes a page of zeros that is zero again in every fork.
#[cfg(target_os = "linux")]
fn wiped_page() -> Option<*mut AtomicU64> {
    // The kernel rounds the size up to a page.
    let bytes = size_of::<AtomicU64>();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping just made.
    if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } == 0 {
        return Some(page.cast());
    }
    // SAFETY: the mapping just made, to which no other pointer exists.
    let _ = unsafe { libc::munmap(page, bytes) };
    None
}

#[cfg(not(target_os = "linux"))]
fn wiped_page() -> Option<*mut AtomicU64> {
    None
}

#[cold]
fn process_id() -> u64 {
    std::process::id().into()
}

/// Child processes for tests.
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod testing {
    /// Time limit of a child, in seconds, after which it counts as hung.
    const LIMIT_S: u32 = 10;

    /// Makes a child with `fork`, and returns whether `is_so` holds in the child, which does nothing else.
    pub(crate) fn child_says(fork: impl FnOnce() -> libc::c_long, is_so: impl FnOnce() -> bool) -> bool {
        let child = fork();
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: the alarm is that of the child alone, and ends it if it hangs.
            unsafe { libc::alarm(LIMIT_S) };
            let code = i32::from(!is_so());
            // SAFETY: ends the child, which has used no state of other threads.
            unsafe { libc::_exit(code) }
        }
        let mut status = -1;
        // SAFETY: waits for the child just made, whose number fits.
        assert_eq!(unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) } as libc::c_long, child);
        status == 0
    }

    pub(crate) fn fork() -> libc::c_long {
        // SAFETY: the child runs only code of its test, which takes no lock.
        unsafe { libc::fork() }.into()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::testing::{child_says, fork};
    use super::*;

    fn clone() -> libc::c_long {
        // SAFETY: as `fork`, without the C library. No stack is given, so the child goes on with a copy of
        // this one.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
    }

    #[test]
    fn a_fork_is_another_process() {
        let origin = Origin::here();
        assert!(origin.is_here() && origin == Origin::here());
        for fork in [fork, clone] {
            assert!(child_says(fork, || !origin.is_here() && !origin.is_here()));
            assert!(origin.is_here());
        }
    }

    #[test]
    fn what_a_child_makes_is_its_own_and_not_its_childs() {
        let origin = Origin::here();
        assert!(child_says(fork, || {
            let own = Origin::here();
            own.is_here()
                && !origin.is_here()
                && child_says(fork, || {
                    let third = Origin::here();
                    third.is_here() && !own.is_here() && !origin.is_here()
                })
        }));
    }

    #[test]
    fn threads_that_are_first_at_once_agree() {
        let mark = Mark::new();
        let numbers: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| mark.number())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(numbers.iter().all(|&number| number == numbers[0] && mark.is(number)), "{numbers:?}");
    }

    /// Linux has such pages since 4.14. Without one, every check is a system call.
    #[test]
    fn the_page_is_zero_in_a_fork_and_there_is_one() {
        let page = wiped_page().expect("this system has them");
        // SAFETY: the page just made, to which no other pointer exists.
        let number = || unsafe { &*page }.load(Ordering::Relaxed);
        assert_eq!(number(), 0);
        // SAFETY: as above.
        unsafe { &*page }.store(7, Ordering::Relaxed);
        for fork in [fork, clone] {
            assert!(child_says(fork, || number() == 0));
        }
        assert_eq!(number(), 7);
        assert!(!std::ptr::eq(MARK.page.load(Ordering::Acquire), &raw const NO_PAGE));
        let first = (Origin::here(), MARK.page.load(Ordering::Acquire));
        assert_eq!(first, (Origin::here(), MARK.page.load(Ordering::Acquire)), "it is made once");
    }

    #[test]
    fn without_a_page_the_process_id_tells() {
        let mark = Mark { page: AtomicPtr::new((&raw const NO_PAGE).cast_mut()) };
        let number = mark.number();
        assert!(mark.is(number));
        assert!(child_says(fork, || !mark.is(number) && mark.is(mark.number())));
    }
}
