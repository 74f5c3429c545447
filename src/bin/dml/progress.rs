//! A progress bar on a terminal for work that takes longer than a second.

use crate::failure::{self, Failure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Delay before the bar appears, and interval at which its time is updated.
const SECOND: Duration = Duration::from_secs(1);

/// A progress bar that counts steps. It appears after a second, also during a step, and disappears when
/// dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Ends the thread that shows the bar; `None` if standard error is not a terminal.
    _shown: Option<SyncSender<()>>,
}

impl Progress {
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg:28} [{bar:30}] {pos}/{len} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        bar.set_style(style);
        let bar = bar.with_finish(ProgressFinish::AndClear);
        let shown = stderr().is_terminal().then(|| show_later(bar.clone()));
        Self { bar, _shown: shown }
    }

    /// Names the first step while it is under way.
    pub(crate) fn on(self, message: &str) -> Self {
        self.bar.set_message(message.to_owned());
        self
    }

    /// Counts a step. `message` names what it was part of.
    pub(crate) fn step(&mut self, message: &str) {
        self.bar.set_message(message.to_owned());
        self.bar.inc(1);
    }

    /// Prints a part of the result without disturbing the bar.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.bar.suspend(|| failure::print(text))
    }

    /// Counts steps that turned out not to be needed.
    pub(crate) fn skip(&mut self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Ends the bar. Asserts in debug builds that all announced steps were made.
    pub(crate) fn done(self) {
        let (made, announced) = (self.bar.position(), self.bar.length());
        debug_assert_eq!(Some(made), announced, "{made} steps were made, and {announced:?} announced");
    }
}

/// Shows the bar after a second, unless the returned end of a channel has been dropped.
fn show_later(bar: ProgressBar) -> SyncSender<()> {
    let (shown, ended) = sync_channel(0);
    // Without a thread there is no bar.
    let _ = thread::Builder::new().name("progress".to_owned()).spawn(move || {
        if ended.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(SECOND);
        }
    });
    shown
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
