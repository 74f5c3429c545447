//! Pools of rayon threads: each launch in flight has its own.
//!
//! A rayon thread that waits for its pool executes other jobs of that pool in the meantime. With two launches
//! in one pool, one would run inside the other, on a thread that holds the outer one's buffers. A thread of
//! another pool must sleep while it waits for a launch, so that it executes no job of its own pool.

use crate::fork::Origin;
use dml_core::internal::Gate;
use dml_core::internal::guard;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::mem::ManuallyDrop;
use std::sync::{OnceLock, Weak};
use thiserror::Error;

/// The error of starting the threads of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot start {threads} threads for kernels: {cause}")]
pub struct HostError {
    /// The number of threads.
    pub threads: u32,
    /// The operating system's error.
    pub cause: String,
}

/// The pools of all kernels of one width: one for each launch in flight, of which one is cached, and one for
/// teams.
#[derive(Debug)]
pub(crate) struct Pools {
    threads: u32,
    origin: Origin,
    idle: ManuallyDrop<Mutex<Option<ThreadPool>>>,
    team: ManuallyDrop<OnceLock<ThreadPool>>,
}

/// The pools of the process, by width.
struct Shared {
    origin: Origin,
    pools: Mutex<Vec<Weak<Pools>>>,
}

impl Pools {
    /// Returns the pools of `threads` threads, at least one. All kernels share them, and dropping the last
    /// reference ends their threads.
    pub(crate) fn shared(threads: u32) -> Arc<Self> {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Shared { origin: Origin::here(), pools: Mutex::default() });
        if !shared.origin.is_here() {
            // In a fork, a missing thread may hold the lock for ever.
            return Arc::new(Self::new(threads));
        }
        let mut pools = shared.pools.lock();
        pools.retain(|pools| pools.strong_count() > 0);
        let found = pools.iter().filter_map(Weak::upgrade).find(|pools| pools.threads == threads);
        found.unwrap_or_else(|| {
            let made = Arc::new(Self::new(threads));
            pools.push(Arc::downgrade(&made));
            made
        })
    }

    fn new(threads: u32) -> Self {
        let (idle, team) = (ManuallyDrop::new(Mutex::new(None)), ManuallyDrop::new(OnceLock::new()));
        Self { threads, origin: Origin::here(), idle, team }
    }

    /// Creates the pool for the next launch, unless one is cached.
    ///
    /// # Errors
    /// [`HostError`] if its threads cannot be started.
    pub(crate) fn for_launches(self: Arc<Self>) -> Result<Arc<Self>, HostError> {
        let mut idle = self.idle.lock();
        if idle.is_none() {
            *idle = Some(pool(self.threads)?);
        }
        drop(idle);
        Ok(self)
    }

    /// Creates the pool of teams, unless there is one.
    ///
    /// # Errors
    /// [`HostError`] if its threads cannot be started.
    pub(super) fn for_teams(self: Arc<Self>) -> Result<Arc<Self>, HostError> {
        if self.team.get().is_none() {
            let made = pool(self.threads)?;
            // Another thread may have set it first.
            _ = self.team.set(made);
        }
        Ok(self)
    }

    /// Runs `help` on a thread of the pool of teams, or of rayon's current pool if there is none.
    pub(super) fn help(&self, help: impl FnOnce() + Send + 'static) {
        match self.of_teams() {
            Some(pool) => pool.spawn(help),
            None => rayon::spawn(help),
        }
    }

    pub(super) fn of_teams(&self) -> Option<&ThreadPool> {
        self.team.get()
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.max(1) as usize
    }

    /// Returns whether the process has the threads: a fork has none of them.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Runs a function on a thread of a pool, and sleeps until it has ended. Returns its result, or the
    /// message of its panic.
    ///
    /// # Errors
    /// [`HostError`] if another pool is needed and cannot be created.
    pub(crate) fn run<R: Send>(
        &self,
        run: impl FnOnce() -> R + Send,
    ) -> Result<Result<R, Arc<str>>, HostError> {
        let kept = self.idle.lock().take();
        let pool = kept.map_or_else(|| pool(self.threads), Ok)?;
        let (task, told, has_ended) = (Mutex::new(Some(run)), Mutex::new(None), Condvar::new());
        let share = || {
            let task = task.lock().take();
            let result = task.map(guard);
            *told.lock() = result;
            has_ended.notify_all();
        };
        let mut result = None;
        Gate::open(&share, |gate| {
            let gate: Arc<Gate> = gate.clone();
            pool.spawn(move || gate.help(|| ()));
            let mut told = told.lock();
            while told.is_none() {
                told = has_ended.wait(told);
            }
            result = told.take();
        });
        let surplus = self.idle.lock().replace(pool);
        drop(surplus);
        Ok(result.expect("waited for above"))
    }
}

fn pool(threads: u32) -> Result<ThreadPool, HostError> {
    let name = |index| format!("dml-cpu-{index}");
    let pool = ThreadPoolBuilder::new().num_threads(threads.max(1) as usize).thread_name(name).build();
    pool.map_err(|cause| HostError { threads, cause: cause.to_string() })
}

impl Drop for Pools {
    fn drop(&mut self) {
        if self.origin.is_here() {
            // SAFETY: the pools are dropped only here, and not used afterwards.
            unsafe {
                ManuallyDrop::drop(&mut self.idle);
                ManuallyDrop::drop(&mut self.team);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::cell::Cell;
    use std::sync::Barrier;

    thread_local! {
        static IS_BUSY: Cell<bool> = const { Cell::new(false) };
    }

    /// Kernels of the same width share threads, and dropping the last kernel ends them.
    #[test]
    fn kernels_share_their_pools() {
        let pools = || Pools::shared(3).for_launches().and_then(Pools::for_teams).unwrap();
        let first = pools();
        assert!(Arc::ptr_eq(&first, &pools()) && !Arc::ptr_eq(&first, &Pools::shared(2)));
        let left = Arc::downgrade(&first);
        drop(first);
        assert!(left.upgrade().is_none());
        assert_eq!(pools().run(rayon::current_num_threads), Ok(Ok(3)));
    }

    /// The launching threads are rayon's own, with more launches in their queues.
    #[test]
    fn a_wait_for_a_pool_does_no_other_job() {
        let pools = [1, 2].map(Pools::new);
        (0..200).into_par_iter().for_each(|index: usize| {
            assert!(!IS_BUSY.replace(true), "another launch runs inside this one's wait");
            let twice = pools[index % 2].run(|| {
                std::thread::yield_now();
                2 * index
            });
            assert_eq!(twice, Ok(Ok(2 * index)));
            IS_BUSY.set(false);
        });
    }

    /// Each launch waits for the one inside it, with one thread in each pool.
    #[test]
    fn launches_in_launches_have_pools_of_their_own() {
        let pools = Pools::new(1);
        assert_eq!(pools.run(|| pools.run(|| pools.run(|| 7))), Ok(Ok(Ok(Ok(Ok(Ok(7)))))));
        let together = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| pools.run(|| _ = together.wait()).unwrap().unwrap());
            }
        });
        assert_eq!(pools.run(rayon::current_num_threads), Ok(Ok(1)));
    }

    /// The launching thread would sleep for ever if it were not notified of the end.
    #[test]
    fn a_panic_ends_the_wait_and_leaves_the_pool() {
        let pools = Pools::new(1);
        for _ in 0..3 {
            let panic = pools.run(|| panic!("a kernel")).map(|ended: Result<(), _>| ended.unwrap_err());
            assert_eq!(panic.as_deref(), Ok("a kernel"));
            assert_eq!(pools.run(|| 5), Ok(Ok(5)));
        }
    }

    /// A job of a launch waits for other jobs of it, and must not execute another launch in the meantime.
    #[test]
    fn iterators_of_a_launch_do_no_job_of_another() {
        let pools = Pools::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let launch = || {
                            assert!(!IS_BUSY.replace(true), "another launch runs inside this one");
                            (0..8).into_par_iter().for_each(|_: u32| std::thread::yield_now());
                            IS_BUSY.set(false);
                        };
                        pools.run(launch).unwrap().unwrap();
                    }
                });
            }
        });
    }
}
