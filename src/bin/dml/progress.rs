//! A progress bar for what takes longer than a second, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

/// Counts steps; shows itself once they take long.
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

    /// Everything is done. The steps are as many as were announced.
    pub(crate) fn done(self) {
        debug_assert_eq!(Some(self.bar.position()), self.bar.length(), "steps done, and steps announced");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
