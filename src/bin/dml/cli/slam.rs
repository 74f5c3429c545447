//! The options of `dml bench slam`.

use super::{MachineOptions, TableSize};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SlamOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Size of frames and volume.
    ///
    /// tiny: 160 x 120 pixels and 64 voxels per edge; small: 320 x 240 and 128; paper: 640 x 480 and 256.
    #[arg(long, default_value = "small", value_enum)]
    pub(crate) size: TableSize,

    /// Number of frames, also of those of a file. Default: 20 for tiny, 50 for small, 100 for paper.
    ///
    /// The first four are not tracked, as there is nothing to track them against.
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=10_000))]
    pub(crate) frames: Option<u32>,

    /// Seed of the noise of generated frames.
    #[arg(long, default_value_t = 1, conflicts_with = "input")]
    pub(crate) seed: u64,

    /// Number of measured rounds, after one warm-up round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Frames to read instead, in the raw format of SLAMBench, as many as --frames says.
    ///
    /// They have their own size; the volume has that of --size.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,

    /// Writes the frames in the raw format of SLAMBench.
    #[arg(long, value_name = "FILE")]
    pub(crate) frames_to: Option<PathBuf>,

    /// Writes where the camera was in each frame, in the format of the TUM benchmark.
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub(crate) way_to: Option<PathBuf>,

    /// PNG picture to write: the model, as the camera sees it last.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// SVG picture to write: the way of the camera.
    #[arg(long, value_name = "FILE")]
    pub(crate) trajectory: Option<PathBuf>,

    /// Writes a run on several devices as a trace for ui.perfetto.dev and dml report.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Writes a run on several devices as a page with a timeline.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}
