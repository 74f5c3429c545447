//! Kernels that may run beside others: on several queues of a device in turn, and what is in order after them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Whose turn it is among a device's queues of kernels, and for how many kernels the first of these queues has waited. That one has the
/// kernels and copies that are in order.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    turn: AtomicUsize,
    /// How many kernels were launched that may run beside others, and how many of them are awaited.
    launched: AtomicUsize,
    awaited: AtomicUsize,
}

impl Beside {
    /// Launches a kernel that may run beside others, on each of so many queues in turn.
    pub(crate) fn launch<T>(&self, queues: usize, launch: impl FnOnce(usize) -> T) -> T {
        // The counts order no other access.
        let launched = launch(self.turn.fetch_add(1, Ordering::Relaxed) % queues.max(1));
        // Not before: whoever waits for so many is to find them in their queues.
        self.launched.fetch_add(1, Ordering::Release);
        launched
    }

    /// Has the first queue wait for the kernels that were launched so far, unless it has.
    pub(crate) fn settle<E>(&self, wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        // Whoever launched under the same grants did so before. What others launch meanwhile is awaited once more.
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

    /// How often somebody waits who waits now.
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

    /// Whoever waits while it is launched does not find it in its queue.
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
