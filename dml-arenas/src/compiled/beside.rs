//! Concurrent kernels: they run on a device's queues in turn, and ordered work waits for them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The next of a device's queues to get a kernel, and the number of kernels that the first queue has waited
/// for. The first queue also has the kernels and copies that run in order.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    turn: AtomicUsize,
    /// The number of concurrent kernels that were launched, and how many of them the first queue has waited
    /// for.
    launched: AtomicUsize,
    awaited: AtomicUsize,
}

impl Beside {
    /// Launches a concurrent kernel, on each of `queues` queues in turn.
    pub(crate) fn launch<T>(&self, queues: usize, launch: impl FnOnce(usize) -> T) -> T {
        // The counts order no other access.
        let launched = launch(self.turn.fetch_add(1, Ordering::Relaxed) % queues.max(1));
        // Counted after the launch, so that a waiter finds all counted kernels in their queues.
        self.launched.fetch_add(1, Ordering::Release);
        launched
    }

    /// Makes the first queue wait for the kernels that were launched so far, unless it has.
    pub(crate) fn settle<E>(&self, wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        // Launches under the same grants came before this load. Launches that come later need another wait.
        let launched = self.launched.load(Ordering::Acquire);
        if self.awaited.load(Ordering::Relaxed) == launched {
            return Ok(());
        }
        wait()?;
        self.awaited.store(launched, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    /// Returns the number of waits of a call to `settle`.
    fn waits(beside: &Beside) -> u32 {
        let mut waits = 0;
        let settled: Result<(), ()> = beside.settle(|| {
            waits += 1;
            Ok(())
        });
        settled.unwrap();
        waits
    }

    #[test]
    fn each_queue_has_its_turn_and_what_was_launched_is_awaited_once() {
        let beside = Beside::default();
        assert_eq!(waits(&beside), 0, "there is nothing");
        for (queues, turns) in [(3, [0, 1, 2, 0]), (2, [0, 1, 0, 1]), (1, [0; 4]), (0, [0; 4])] {
            assert_eq!(turns.map(|_| beside.launch(queues, |queue| queue)), turns);
            assert_eq!(beside.settle(|| Err("no")), Err("no"));
            assert_eq!((waits(&beside), waits(&beside)), (1, 0));
        }
    }

    /// A wait during a launch does not cover the launched kernel.
    #[test]
    fn what_is_launched_meanwhile_is_awaited_once_more() {
        let beside = Beside::default();
        assert_eq!((beside.launch(2, |_| waits(&beside)), waits(&beside)), (0, 1));
        beside.launch(2, drop);
        let settled: Result<(), ()> = beside.settle(|| {
            beside.launch(2, drop);
            Ok(())
        });
        assert_eq!((settled, waits(&beside), waits(&beside)), (Ok(()), 1, 0));
    }
}
