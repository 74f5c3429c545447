//! The samples of the unit that begins, and what they say.

/// How many times as many items each sample has as the one before, at most: as many as would take [`SAMPLE_SECONDS`]. A sample that
/// was telling is repeated once, because the first one may have woken the host's threads.
pub(super) const GROWTH: u64 = 16;
const SAMPLE_SECONDS: f64 = 150e-6;
/// A sample of this time says more about the kernel than about the clock and the launch.
const TELLING_SECONDS: f64 = 60e-6;
/// Several threads take tens of microseconds to wake up. A sample shorter than this may be that and little else, or be one thread's
/// because nobody was woken yet. Then the next one has as many items as would take [`WAKING_SAMPLE_SECONDS`].
pub(super) const WAKING_SECONDS: f64 = 80e-6;
pub(super) const WAKING_SAMPLE_SECONDS: f64 = 400e-6;
/// A sample of this time says enough, though it woke the host's threads.
const LONG_SECONDS: f64 = 600e-6;
/// A sample of this time is more than a launch, and up to [`EARLY_SECONDS`] that of few threads.
const SAMPLE_OF_FEW_SECONDS: f64 = 20e-6;
/// A sample of this time is more than a launch, though it may have been one thread's. If the others could help even if all threads
/// together were as many times as fast, they are called up at once.
pub(super) const EARLY_SECONDS: f64 = 40e-6;

/// What part of a sample's time is computing at the least: what a launch takes is a guess.
const LEAST_NET: f64 = 0.125;

/// The last two samples, as items and seconds without the launch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Samples {
    /// How many threads the unit has. All but one of them have to wake up.
    pub(super) threads: u64,
    /// The seconds that a launch takes in another process; 0 where it is a call.
    pub(super) launch: f64,
    pub(super) before: Option<(f64, f64)>,
    pub(super) last: Option<(f64, f64)>,
    /// The seconds of the last sample with its launch.
    pub(super) gross: f64,
}

impl Samples {
    pub(super) fn add(&mut self, items: u64, seconds: f64) {
        self.before = self.last;
        self.last = Some((items as f64, self.net(seconds)));
        self.gross = seconds;
    }

    /// How many items a package has that takes so many seconds with its launch, by the last sample; `None` where a launch takes no time.
    pub(super) fn items_in(&self, seconds: f64) -> Option<f64> {
        let (items, net) = self.last.filter(|(_, net)| self.launch > 0.0 && *net > 0.0)?;
        Some(self.net(seconds) * items / net)
    }

    /// Whether the last sample may have been a first launch in another process and little else. It says nothing of how short the rest is.
    pub(super) fn may_be_launch(&self) -> bool {
        self.launch > 0.0 && self.before.is_none() && self.gross < LONG_SECONDS
    }

    /// The seconds of the next sample without its launch. The first launch in another process may take up to [`LONG_SECONDS`]: the process wakes
    /// up, finds the function and touches its memory.
    pub(super) fn net(&self, seconds: f64) -> f64 {
        let is_first = self.last.is_none() && self.launch > 0.0;
        let launch = if is_first { LONG_SECONDS } else { self.launch };
        (seconds - launch).max(seconds * LEAST_NET)
    }

    /// How many times as many items the next sample has.
    pub(super) fn growth(&self) -> u64 {
        let Some((_, net)) = self.last else { return 1 };
        if self.is_telling() {
            return 1;
        }
        // Or it was no launch, and more of it would take as much longer.
        let seconds = if self.may_be_launch() { self.gross } else { net };
        let wanted = if self.threads > 1 { WAKING_SAMPLE_SECONDS } else { SAMPLE_SECONDS };
        ((wanted / seconds) as u64).clamp(1, GROWTH) // The cast saturates.
    }

    /// Whether the last sample took long enough to say something about the kernel.
    pub(super) fn is_telling(&self) -> bool {
        let least = if self.threads > 1 { WAKING_SECONDS } else { TELLING_SECONDS };
        self.last.is_some_and(|(_, seconds)| seconds >= least)
    }

    /// Whether the last sample may have been one thread's of several, and took longer than a launch does.
    pub(super) fn may_be_one_threads(&self) -> bool {
        self.threads > 1 && self.last.is_some_and(|(_, seconds)| seconds >= EARLY_SECONDS)
    }

    /// Seconds per item as they are likely to be with all threads. The last sample was more than a launch, and too short for several of them
    /// to have woken up. The geometric mean of what it is if the others add nothing, and if all are as fast as this one.
    pub(super) fn likely_per_item(&self) -> Option<f64> {
        let of_few_threads = SAMPLE_OF_FEW_SECONDS..EARLY_SECONDS;
        let (items, seconds) = self.last.filter(|(_, seconds)| of_few_threads.contains(seconds))?;
        let per_item = match self.before {
            // Both have the launch.
            Some((before, took)) if items > 2.0 * before && seconds > 2.0 * took => {
                (seconds - took) / (items - before)
            }
            _ => seconds / items,
        };
        (self.threads > 1).then(|| per_item / (self.threads as f64).sqrt())
    }

    /// Seconds per item without what it takes the threads to wake up, if the last sample was longer than that.
    pub(super) fn awake_per_item(&self) -> Option<f64> {
        let (items, seconds) = self.last.filter(|_| self.is_telling())?;
        Some(if self.threads > 1 { seconds - EARLY_SECONDS } else { seconds } / items)
    }

    /// Whether the last sample took far longer than it takes to wake the host's threads.
    pub(super) fn is_long(&self) -> bool {
        self.last.is_some_and(|(_, seconds)| seconds >= LONG_SECONDS)
    }

    /// Seconds per item: by the last sample with all that it cost, and by what it took longer than the one before.
    pub(super) fn seconds_per_item(&self) -> Option<(f64, f64)> {
        let (items, seconds) = self.last?;
        let gross = seconds / items;
        let net = match self.before {
            Some((before, took)) if items > before && seconds > took => (seconds - took) / (items - before),
            _ => gross,
        };
        Some((gross, net.min(gross)))
    }
}
