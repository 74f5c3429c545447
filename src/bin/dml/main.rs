//! The `dml` command: lists this machine's devices, and measures co-execution on them.

#![deny(unsafe_code)]

mod acquire;
mod analyse;
mod bench;
mod by_hand;
mod cache;
mod chain;
mod chart;
mod cli;
mod devices;
mod energy;
mod failure;
mod figures;
mod json;
mod knowledge;
mod last;
mod machine;
mod never_loses;
mod offload;
mod output;
mod parts;
mod pipeline;
mod plan;
mod profile;
mod progress;
mod replay;
mod reproduce;
mod run;
mod single;
mod slam;
mod speeds;
mod steps;
mod suite;
mod table;
mod timeline;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Does not return in a process that another `dml` started as its worker.
    #[cfg(all(feature = "offload", target_os = "linux"))]
    dml::arenas::offload::hook(dml_workloads::prepare::registry().with(offload::EMPTY, |_| Ok(())));
    let arguments = cli::Arguments::parse();
    let outcome = match &arguments.command {
        cli::Command::Devices(options) => devices::run(options),
        cli::Command::Bench(options) => bench::run(options),
        cli::Command::Run(options) => run::run(options),
        cli::Command::Profile(options) => profile::run(options),
        cli::Command::Analyse(options) => analyse::run(options),
        cli::Command::Report(options) => timeline::run(options),
        cli::Command::Replay(options) => replay::run(options),
        cli::Command::Reproduce(options) => reproduce::run(options),
        cli::Command::Knowledge(options) => knowledge::run(options),
        cli::Command::Completions { shell } => completions(*shell),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("dml: {failure}");
            failure.exit_code()
        }
    }
}

fn completions(shell: Shell) -> Result<(), failure::Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::Arguments::command(), "dml", &mut script);
    failure::print(&String::from_utf8_lossy(&script))
}
