//! The published figures of co-execution. They come from the papers' text: the charts have no numbers.

use crate::json::PublishedCoexec;

/// The paper on the runtime over oneAPI.
const ONE_API: &str = "Straightforward Heterogeneous Computing with the oneAPI Coexecutor Runtime \
                       (Electronics 10(19), 2386, 2021), section 6.1";
/// The paper on the same runtime over hybrid technologies.
const HYBRID: &str =
    "CPU-GPU co-execution through the exploitation of hybrid technologies via SYCL (2025), section 4.2";

const DESKTOP: &str = "Core i5-7500 and its HD Graphics 630";
const SERVER: &str = "Xeon E-2176G and its UHD Graphics P630";
const CARD: &str = "Core i7-10700 and GeForce GT 1030";

/// All published figures, starting with the means over the suites.
pub(super) const COEXEC: [PublishedCoexec; 6] = [
    row(ONE_API, DESKTOP, "hguided", "all", [Some(1.65), Some(0.92), None]),
    row(ONE_API, SERVER, "hguided", "all", [Some(1.26), Some(0.89), None]),
    row(HYBRID, CARD, "hguided", "all", [Some(1.31), Some(0.91), Some(0.99)]),
    row(HYBRID, CARD, "static", "all", [Some(1.18), Some(0.82), None]),
    row(HYBRID, CARD, "hguided", "irregular", [None, Some(0.96), None]),
    row(HYBRID, CARD, "hguided", "rap", [Some(2.41), None, None]),
];

/// Notes that do not fit into a column of numbers.
pub(super) const COEXEC_NOTES: [&str; 3] = [
    "The balance of 0.99 is a bound: it was more for every program.",
    "On oneAPI the static split brought a mean speedup of at most 1 on both systems.",
    "On oneAPI, HGuided handed out 42 packages of mandelbrot and 53 of ray on average, the best dynamic split 200.",
];

/// What [`ONE_API`] reports about its two kinds of memory.
pub(super) const MEMORY_NOTE: &str = "Published without numbers: shared memory (USM) is faster than copies (Buffers) on regular programs with dynamic \
     splits, and hardly differs on irregular ones (Straightforward Heterogeneous Computing with the oneAPI Coexecutor \
     Runtime, section 6.1).";

const fn row(
    source: &'static str,
    system: &'static str,
    policy: &'static str,
    over: &'static str,
    [speedup, efficiency, balance]: [Option<f64>; 3],
) -> PublishedCoexec {
    PublishedCoexec { source, system, policy, over, speedup, efficiency, balance }
}
