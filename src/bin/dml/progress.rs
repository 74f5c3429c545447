//! A progress bar for what takes longer than a second, on a terminal.

use crate::failure::{self, Failure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

/// Counts steps; shows itself once they take long, and is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg:28} [{bar:30}] {pos}/{len} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        bar.set_style(style);
        let bar = bar.with_finish(ProgressFinish::AndClear);
        Self { bar, begun: Instant::now(), shown: false }
    }

    /// One step is done, of what `message` names.
    pub(crate) fn step(&mut self, message: &str) {
        if !self.shown && self.begun.elapsed() > QUIET {
            // Draws nothing where standard error is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown = true;
        }
        self.bar.set_message(message.to_owned());
        self.bar.inc(1);
    }

    /// Prints a part of the result, which the bar does not draw over.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.bar.suspend(|| failure::print(text))
    }

    /// So many steps turned out not to be needed.
    pub(crate) fn skip(&mut self, steps: u64) {
        self.bar.inc(steps);
    }

    /// All of it is done: as many steps were made as were announced.
    pub(crate) fn done(self) {
        let (made, announced) = (self.bar.position(), self.bar.length());
        debug_assert_eq!(Some(made), announced, "{made} steps were made, and {announced:?} announced");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn after(announced: u64, made: u64) -> Result<(), String> {
        let done = std::panic::catch_unwind(|| {
            let mut progress = Progress::new(announced);
            (0..made).for_each(|step| progress.step(&format!("step {step}")));
            progress.done();
        });
        done.map_err(|panic| panic.downcast_ref().cloned().unwrap_or_default())
    }

    #[test]
    fn as_many_steps_are_made_as_were_announced() {
        assert_eq!([after(3, 3), after(0, 0)], [Ok(()), Ok(())]);
        for (announced, made) in [(3, 2), (3, 4), (0, 1)] {
            let told = after(announced, made).expect_err("the numbers differ");
            let named = format!("{made} steps were made, and Some({announced}) announced");
            assert!(told.contains(&named), "{told}");
        }
    }
}
