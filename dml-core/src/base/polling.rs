//! Waiting without sleeping.

use std::time::{Duration, Instant};

/// Longest time that a thread polls before it sleeps: about as long as a sleeping thread takes to wake.
const POLLING: Duration = Duration::from_micros(20);

/// Polls for a short time until something is so. Returns whether it is. A model does not poll.
pub(crate) fn polled(is_so: impl Fn() -> bool) -> bool {
    if cfg!(dml_loom) {
        return is_so();
    }
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() >= POLLING {
            return false;
        }
        std::hint::spin_loop();
    }
}
