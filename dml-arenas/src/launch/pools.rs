//! Pools of rayon's threads: each launch in flight has one for itself.
//!
//! A thread of rayon that waits for its pool does other jobs of that pool meanwhile. Two launches in one pool would run one inside
//! the other, with what the outer one holds. And a launch from a thread of some other pool must sleep while it waits, so that
//! this thread takes up no job of that pool.

use super::host::HostError;
use crate::fork::Origin;
use dml_core::foreign::guard;
use dml_core::helpers::Gate;
use dml_core::sync::{Arc, Condvar, Mutex};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::mem::ManuallyDrop;

/// The pools of one kernel. More than one are made only for launches at the same time, and one is kept.
pub(super) struct Pools {
    threads: u32,
    origin: Origin,
    idle: ManuallyDrop<Mutex<Option<ThreadPool>>>,
}

impl Pools {
    /// Makes a pool of so many threads, and of one at least.
    pub(super) fn new(threads: u32) -> Result<Self, HostError> {
        let idle = ManuallyDrop::new(Mutex::new(Some(pool(threads)?)));
        Ok(Self { threads, origin: Origin::here(), idle })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.max(1) as usize
    }

    /// Returns whether the process has the threads: a fork has none of them.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Runs something on a thread of a pool, and sleeps until it has ended. Returns what it returned, or the message of its panic.
    ///
    /// # Errors
    /// [`HostError`] if a further pool cannot be made.
    pub(super) fn run<R: Send>(
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
        Ok(result.expect("it was waited for"))
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
            // SAFETY: the pools are dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.idle) }
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

    /// The threads that launch are rayon's own, with more launches waiting in their queues.
    #[test]
    fn a_wait_for_a_pool_does_no_other_job() {
        let pools = [1, 2].map(|threads| Pools::new(threads).unwrap());
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

    /// Inside one that waits for the other, with one thread each.
    #[test]
    fn launches_in_launches_have_pools_of_their_own() {
        let pools = Pools::new(1).unwrap();
        assert_eq!(pools.run(|| pools.run(|| pools.run(|| 7))), Ok(Ok(Ok(Ok(Ok(Ok(7)))))));
        let together = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| pools.run(|| _ = together.wait()).unwrap().unwrap());
            }
        });
        assert_eq!(pools.run(rayon::current_num_threads), Ok(Ok(1)));
    }

    /// The thread that launches would sleep for ever if nothing told it of the end.
    #[test]
    fn a_panic_ends_the_wait_and_leaves_the_pool() {
        let pools = Pools::new(1).unwrap();
        for _ in 0..3 {
            let panic = pools.run(|| panic!("a kernel")).map(|ended: Result<(), _>| ended.unwrap_err());
            assert_eq!(panic.as_deref(), Ok("a kernel"));
            assert_eq!(pools.run(|| 5), Ok(Ok(5)));
        }
    }

    /// One job of a launch waits for its others, and must not take up another launch meanwhile.
    #[test]
    fn iterators_of_a_launch_do_no_job_of_another() {
        let pools = Pools::new(2).unwrap();
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
