//! The options of applications that a file describes.

use super::{MachineOptions, PerDevice};
use clap::Args;
use dml::scheduler::policy::PolicySpec;
use std::path::PathBuf;
use std::str::FromStr;

/// An application, and the devices that run it.
#[derive(Debug, Args)]
pub(crate) struct ApplicationOptions {
    /// The application file.
    #[arg(value_name = "APP.toml")]
    pub(crate) file: PathBuf,

    /// Changes a parameter. May be repeated.
    #[arg(long, value_name = "NAME=NUMBER", value_parser = Named::from_str)]
    pub(crate) set: Vec<Named>,

    /// Takes the first contents of an array from a file. May be repeated.
    #[arg(long, value_name = "ARRAY=FILE", value_parser = Named::from_str)]
    pub(crate) input: Vec<Named>,

    /// Ratio of a device's strip; 1 for devices without one. May be repeated.
    ///
    /// dml run does not correct the strips then, and dml profile begins with them.
    #[arg(long, value_name = "DEVICE=R", value_parser = PerDevice::<f64>::from_str)]
    pub(crate) shares: Vec<PerDevice<f64>>,

    #[command(flatten)]
    pub(crate) machine: MachineOptions,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AnalyseOptions {
    /// The source: OpenCL C, or CUDA C if its name ends in .cu.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Prints this kernel alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) kernel: Option<String>,

    /// Defines a macro, as the option -D of compilers. May be repeated.
    #[arg(long, short = 'D', value_name = "NAME[=VALUE]")]
    pub(crate) define: Vec<String>,

    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileOptions {
    #[command(flatten)]
    pub(crate) application: ApplicationOptions,

    /// Writes a picture of the corrections: the ratio and the duration of each device, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) application: ApplicationOptions,

    /// Writes the last contents of an array to a file. May be repeated.
    #[arg(long, value_name = "ARRAY=FILE", value_parser = Named::from_str)]
    pub(crate) output: Vec<Named>,

    /// Checks the file, its sources and its inputs, and compiles the kernels, but does not run them.
    #[arg(long)]
    pub(crate) check: bool,

    /// Also checks, on copies of the arrays, that kernels touch only their parts. Use small arrays.
    #[arg(long, requires = "check")]
    pub(crate) parts: bool,

    /// Does not check declared parts that the sources do not prove before the first run.
    #[arg(long)]
    pub(crate) unchecked: bool,

    /// Load-balancing policy of kernels that are not repeated over strips, as of dml bench.
    ///
    /// Default: static with the ratios of dml profile, or calibrated.
    #[arg(long, value_parser = PolicySpec::from_str)]
    pub(crate) policy: Option<PolicySpec>,

    /// Neither uses what earlier runs taught, nor keeps what this one teaches.
    #[arg(long)]
    pub(crate) no_knowledge: bool,

    /// Number of runs, each from the first contents on. Of several, the first is not measured.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Writes another run as a trace for ui.perfetto.dev and dml report.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Writes another run as a page with a timeline.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// A value for a name, as `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
        let (name, value) = parts.ok_or("expected NAME=VALUE")?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}
