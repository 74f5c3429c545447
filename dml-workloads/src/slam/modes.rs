//! Table 2 of the paper: the program by hand and on the data layer, on one device, or with the tracking on
//! the host.
//!
//! | mode | on OpenCL | on CUDA |
//! |---|---|---|
//! | hand | buffers of the device, frames are written, sums are read | the same; the sums are read into page-locked memory |
//! | noopt | the layer with one mechanism: the device's memory is mapped, and the processor copies | the layer with ordinary memory |
//! | opt | the layer with the device bound to main memory | the layer with page-locked memory |
//!
//! Each mode makes its buffers within the timed interval, and builds its kernels before it.

use super::{Frames, Hand, Layered, Order, Placement, Run, SlamError};
use crate::operations::Operations;
use crate::table1::{Framework, Mode};
use dml_arenas::{Discover, DiscoverOptions};
use dml_core::Platform;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The way in which the program is written.
    pub mode: Mode,
    /// Whether the host tracks.
    pub tracks_on_host: bool,
}

impl Column {
    /// All columns, in the order of the table.
    pub const ALL: [Self; 5] = [
        Self { mode: Mode::Hand, tracks_on_host: false },
        Self { mode: Mode::Noopt, tracks_on_host: false },
        Self { mode: Mode::Opt, tracks_on_host: false },
        Self { mode: Mode::Noopt, tracks_on_host: true },
        Self { mode: Mode::Opt, tracks_on_host: true },
    ];

    /// Returns the column's name.
    #[must_use]
    pub fn name(self) -> String {
        let host = if self.tracks_on_host { " + cpu" } else { "" };
        format!("{}{host}", self.mode.name())
    }

    /// Returns the number of functions of the host among the kernels of a run. The paper does not count them.
    fn on_host(self, run: &Run) -> u64 {
        if self.tracks_on_host { 2 * u64::from(run.iterations()) } else { 0 }
    }

    /// Returns the number of kernels that a run launches on the device.
    ///
    /// They are those of the preprocessing, two for each iteration unless the host tracks, integrations,
    /// raycasts, and the one that clears the volume.
    ///
    /// # Source
    /// Table 2 has 10,120 kernels without those of the iterations, and 34,252 with 12,066 iterations, for 880
    /// frames of which 442 are integrated.
    #[must_use]
    pub fn expected_kernels(self, run: &Run) -> u64 {
        let frames = run.seen.len() as u64;
        let integrated = run.seen.iter().filter(|seen| seen.is_integrated).count() as u64;
        let iterations = 2 * u64::from(run.iterations()) - self.on_host(run);
        10 * frames + iterations + integrated + frames.saturating_sub(3) + 1
    }

    /// Returns the number of transfers between host and device.
    ///
    /// Every frame goes to the device. The sums of every iteration come back or, if the host tracks, the
    /// vertices and normals of all levels and of the reference.
    #[must_use]
    pub fn expected_transfers(self, run: &Run) -> u64 {
        let tracked = run.seen.iter().filter(|seen| seen.is_tracked.is_some()).count() as u64;
        let results = if self.tracks_on_host { 8 * tracked } else { u64::from(run.iterations()) };
        run.seen.len() as u64 + results
    }

    /// Returns the paper's figures: seconds for 880 frames, and calls.
    #[must_use]
    pub const fn published(self) -> (f64, Operations) {
        let (seconds, [map, unmap, read, write, kernel, alloc, bind, copy]) =
            match (self.mode, self.tracks_on_host) {
                (Mode::Noopt, false) => (109.357, [41_480, 41_479, 0, 0, 34_252, 58_844, 0, 41_480]),
                (Mode::Opt, false) => (105.356, [12_066, 12_065, 0, 28_534, 34_252, 29_429, 29_415, 0]),
                (Mode::Noopt, true) => (112.818, [12_314, 12_308, 0, 0, 10_120, 10_587, 0, 12_314]),
                (Mode::Opt, true) => (108.484, [5_280, 5_274, 1_752, 4_402, 10_120, 5_297, 5_290, 0]),
                _ => (100.447, [0, 0, 12_066, 29_414, 34_252, 0, 0, 0]),
            };
        (seconds, Operations { map, unmap, read, write, kernel, alloc, bind, copy })
    }
}

/// The programs of all columns for one device, ready to run.
#[derive(Debug)]
pub struct Columns {
    description: String,
    hand: Hand,
    noopt: [Layered; 2],
    opt: [Layered; 2],
}

impl Columns {
    /// Opens a device (`opencl:N` or `cuda:N`) for every column, and builds the kernels.
    ///
    /// # Errors
    /// [`SlamError`].
    pub fn open(device: &str) -> Result<Self, SlamError> {
        let framework =
            Framework::of(device).ok_or_else(|| SlamError::NoKernels { device: device.to_owned() })?;
        let [noopt, opt] = framework.options(device);
        let platform = |options: &DiscoverOptions| {
            Ok::<_, SlamError>(Platform::builder().discover_with(options)?.build()?)
        };
        let [noopt, opt] = [platform(&noopt)?, platform(&opt)?];
        let layered = |platform: &Platform| {
            let place = Placement::on(platform.device(device)?);
            let host = platform.host().unwrap_or(place.track);
            Ok::<_, SlamError>([
                Layered::new(platform, place)?,
                Layered::new(platform, Placement { track: host, ..place })?,
            ])
        };
        let id = opt.device(device)?;
        let description = opt.device_desc(id).description.to_string();
        Ok(Self { description, hand: Hand::new(&opt, id)?, noopt: layered(&noopt)?, opt: layered(&opt)? })
    }

    /// Returns the vendor's name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.description
    }

    /// Runs one column over all frames.
    ///
    /// # Errors
    /// [`SlamError`].
    pub fn run(&mut self, column: Column, frames: &Frames) -> Result<Run, SlamError> {
        let place = usize::from(column.tracks_on_host);
        let layered = match column.mode {
            Mode::Noopt => &mut self.noopt[place],
            Mode::Opt => &mut self.opt[place],
            _ => return self.hand.run(frames),
        };
        let (mut run, _) = layered.run(frames, Order::OneByOne)?;
        run.operations.kernel -= column.on_host(&run);
        Ok(run)
    }
}
