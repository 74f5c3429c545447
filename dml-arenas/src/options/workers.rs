//! The workers to start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The workers to start: coprocessors in processes of their own, `offload:0` and on. The default is one.
///
/// # Examples
/// ```
/// use dml_arenas::{DiscoverOptions, Workers};
///
/// let two = DiscoverOptions::default().offload(2);
/// let pinned = Workers::new(2).memory(1 << 30).pin("offload:0", [0]).pin("offload:1", [1]);
/// let options = DiscoverOptions::default().offload(pinned);
/// # let _ = (two, options);
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(
    not(all(feature = "offload", target_os = "linux")),
    allow(dead_code, reason = "a build without workers only checks their names")
)]
#[must_use]
pub struct Workers {
    pub(crate) workers: u32,
    pub(crate) program: Option<PathBuf>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) time_limit: Option<Option<Duration>>,
    pub(crate) pins: BTreeMap<String, Vec<u32>>,
}

impl Workers {
    /// Creates the options of this many workers; with zero, there are none.
    pub fn new(workers: u32) -> Self {
        Self { workers, program: None, memory_bytes: None, time_limit: None, pins: BTreeMap::new() }
    }

    /// Sets the program that workers run. By default it is this program if it calls `offload::hook`.
    /// Otherwise it is `dml-offload-worker`, beside this program or on the `PATH`.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets the size of each worker's memory, in bytes. By default the workers share half of the machine's
    /// memory evenly.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Sets the timeout of a run on a worker, after which the worker counts as hung; `None` for no timeout.
    pub fn time_limit(mut self, limit: Option<Duration>) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Pins the threads of a worker to these cores, by the operating system's numbers.
    pub fn pin(mut self, device: impl Into<String>, cores: impl IntoIterator<Item = u32>) -> Self {
        self.pins.insert(device.into(), cores.into_iter().collect());
        self
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::new(1)
    }
}

impl From<u32> for Workers {
    fn from(workers: u32) -> Self {
        Self::new(workers)
    }
}
