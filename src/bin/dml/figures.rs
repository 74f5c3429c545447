//! Pure functions that compute a benchmark's figures from times.

use crate::json::BenchTransfer;
use dml::scheduler::metrics::{self, Summary};

/// One counted run of all devices together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) seconds: f64,
    pub(crate) balance: f64,
}

/// The figures of the runs of all devices together, relative to each device alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) coexec_s: f64,
    pub(crate) coexec_min_s: f64,
    pub(crate) coexec_max_s: f64,
    pub(crate) speedup: f64,
    pub(crate) s_max: f64,
    pub(crate) efficiency: f64,
    pub(crate) balance: f64,
    /// Index of the run whose time is the median, or the next above it.
    pub(crate) median_run: usize,
}

impl Figures {
    /// Computes the figures from the median time of each device alone and the counted runs together.
    ///
    /// # Panics
    /// If `together` is empty.
    pub(crate) fn of(alone_s: &[f64], together: &[Times]) -> Self {
        let seconds: Vec<f64> = together.iter().map(|run| run.seconds).collect();
        let summary = Summary::of(&seconds).expect("at least one run counts");
        let fastest = alone_s.iter().copied().fold(f64::INFINITY, f64::min);
        let speedup = metrics::speedup(fastest, summary.median);
        // Uses measured powers. Those that a user gave only determine how the work is split.
        let s_max = metrics::s_max(&metrics::powers(alone_s));
        let mut order: Vec<usize> = (0..together.len()).collect();
        order.sort_by(|&a, &b| seconds[a].total_cmp(&seconds[b]));
        Self {
            coexec_s: summary.median,
            coexec_min_s: summary.min,
            coexec_max_s: summary.max,
            speedup,
            s_max,
            efficiency: metrics::efficiency(speedup, s_max),
            balance: median(together.iter().map(|run| run.balance)),
            median_run: order[order.len() / 2],
        }
    }
}

/// Returns the median, or 0 without samples.
pub(crate) fn median(samples: impl Iterator<Item = f64>) -> f64 {
    Summary::of(&samples.collect::<Vec<_>>()).map_or(0.0, |summary| summary.median)
}

/// Returns the power of each device: the given one, otherwise that of its time alone.
pub(crate) fn powers(alone_s: &[f64], given: &[Option<f64>]) -> Vec<f64> {
    metrics::powers(alone_s).into_iter().zip(given).map(|(power, given)| given.unwrap_or(power)).collect()
}

/// Sums the transfers of all links of each directed pair of arenas, in the order of each pair's first link.
pub(crate) fn by_pair(links: impl Iterator<Item = BenchTransfer>) -> Vec<BenchTransfer> {
    let mut pairs: Vec<BenchTransfer> = Vec::new();
    for link in links {
        match pairs.iter_mut().find(|pair| pair.from == link.from && pair.to == link.to) {
            Some(pair) => {
                pair.bytes += link.bytes;
                pair.copies += link.copies;
                pair.seconds += link.seconds;
            }
            None => pairs.push(link),
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best device is neither the first nor the last, and no two figures are equal.
    const ALONE: [f64; 3] = [8.0, 2.0, 16.0];

    fn together() -> Vec<Times> {
        let runs = [(1.5, 0.9), (2.5, 0.3), (1.25, 0.5), (1.6, 0.8), (3.0, 0.7)];
        runs.map(|(seconds, balance)| Times { seconds, balance }).to_vec()
    }

    #[test]
    fn every_figure_is_recomputed_from_its_runs() {
        let expected = Figures {
            coexec_s: 1.6,
            coexec_min_s: 1.25,
            coexec_max_s: 3.0,
            // Relative to the best device alone.
            speedup: 2.0 / 1.6,
            // Powers 0.25, 1 and 0.125.
            s_max: 1.375,
            efficiency: 2.0 / 1.6 / 1.375,
            // The median of the balances, not the balance of the median run.
            balance: 0.7,
            median_run: 3,
        };
        assert_eq!(Figures::of(&ALONE, &together()), expected);
    }

    /// The median of an even number of runs lies between two runs. The slower one is the median run.
    #[test]
    fn of_an_even_number_of_runs_the_slower_one_of_the_middle_is_shown() {
        let figures = Figures::of(&ALONE, &together()[..4]);
        assert_eq!((figures.coexec_s, figures.coexec_max_s), (f64::midpoint(1.5, 1.6), 2.5));
        assert_eq!((figures.balance, figures.median_run), (f64::midpoint(0.5, 0.8), 3));
    }

    #[test]
    fn powers_that_are_given_replace_the_measured_ones_alone() {
        assert_eq!(powers(&ALONE, &[None, None, None]), [0.25, 1.0, 0.125]);
        assert_eq!(powers(&ALONE, &[Some(3.0), None, Some(0.5)]), [3.0, 1.0, 0.5]);
    }

    #[test]
    fn the_links_of_a_pair_are_added_up_by_direction() {
        let link = |from: &str, to: &str, bytes, copies, seconds| BenchTransfer {
            from: from.to_owned(),
            to: to.to_owned(),
            bytes,
            copies,
            seconds,
        };
        let links = [
            link("a", "b", 1, 10, 0.5),
            link("b", "a", 2, 20, 1.0),
            link("a", "b", 4, 40, 2.0),
            link("a", "c", 8, 80, 4.0),
        ];
        let told: Vec<_> = by_pair(links.into_iter())
            .into_iter()
            .map(|pair| (pair.from + &pair.to, pair.bytes, pair.copies, pair.seconds))
            .collect();
        let told: Vec<_> =
            told.iter().map(|(pair, bytes, copies, s)| (&**pair, *bytes, *copies, *s)).collect();
        assert_eq!(told, [("ab", 5, 50, 2.5), ("ba", 2, 20, 1.0), ("ac", 8, 80, 4.0)]);
    }
}
