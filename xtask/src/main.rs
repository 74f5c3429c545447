//! The developer commands of this workspace: `cargo xtask <command>`.
//!
//! ```text
//! main ─┬─ test ───────┬── shell   runs commands, times steps, prints the summary
//!       ├─ lint ───────┤
//!       ├─ checkers ───┤   loom, tsan, asan
//!       ├─ explorers ──┤   model, simulate, topologies, policies, never-loses, soak, fuzz
//!       ├─ mutants ────┤
//!       ├─ oracle ─────┤
//!       ├─ instructions┤
//!       ├─ gpu-check ──┤
//!       ├─ api ────────┘
//!       └─ tidy            the architecture invariants, checked on the source text
//! ```
//!
//! This crate depends only on `std`, so a fresh checkout builds its commands in seconds. A command's summary
//! lists the optional tools that are missing. A check that did not run is never reported as passed.

mod api;
mod checkers;
mod explorers;
mod gpu;
mod instructions;
mod lint;
mod mutants;
mod oracle;
mod shell;
mod slowest;
mod test;
mod tidy;

use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A check failed, and its output was printed. Exit code 1.
    Work,
    /// The arguments are invalid. Exit code 2.
    Usage(String),
}

/// One developer command.
struct Task {
    name: &'static str,
    arguments: &'static str,
    covers: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

const TASKS: &[Task] = &[
    Task {
        name: "test",
        arguments: "[--no-install] [-- ARGS]",
        covers: "every test, doc test and loom model, installing an OpenCL platform first where allowed, then tidy; ARGS go to nextest",
        run: test::run,
    },
    Task {
        name: "lint",
        arguments: "",
        covers: "formatting, clippy and rustdoc with warnings denied, cargo deny where installed",
        run: lint::run,
    },
    Task {
        name: "tidy",
        arguments: "",
        covers: "the architecture invariants that can be read off the source text",
        run: tidy::run,
    },
    Task {
        name: "oracle",
        arguments: "",
        covers: "the access analysis of 99 kernels against Oclgrind's simulations, installing it where allowed",
        run: oracle::run,
    },
    Task {
        name: "loom",
        arguments: "[FILTER]",
        covers: "the models in tests/loom, every interleaving up to LOOM_MAX_PREEMPTIONS (3), one process per model",
        run: checkers::models,
    },
    Task {
        name: "tsan",
        arguments: "[FILTER]",
        covers: "the threaded tests under ThreadSanitizer (x86_64 Linux)",
        run: checkers::thread_sanitizer,
    },
    Task {
        name: "asan",
        arguments: "[FILTER]",
        covers: "unit tests, hostile plug-ins, random topologies and forks under AddressSanitizer (x86_64 Linux)",
        run: checkers::address_sanitizer,
    },
    Task {
        name: "mutants",
        arguments: "[FILTER] | --generated PART [ARGS] | --changed [BASE] [--patches-only]",
        covers: "whether tests kill the patches of tests/mutants, the generated mutants of PART, or those that concern the changes since BASE (HEAD~1)",
        run: mutants::run,
    },
    Task {
        name: "instructions",
        arguments: "[--write]",
        covers: "callgrind's instruction counts of eight operations of the data layer, at most 5 % above those of the tree, which --write replaces",
        run: instructions::run,
    },
    Task {
        name: "model",
        arguments: "[FILTER]",
        covers: "every reachable state of the machine in every configuration, including the large ones",
        run: explorers::model,
    },
    Task {
        name: "simulate",
        arguments: "[FIRST..END]",
        covers: "the deterministic simulation, by default of 200,000 seeds",
        run: explorers::simulate,
    },
    Task {
        name: "topologies",
        arguments: "[N | FIRST..END]",
        covers: "the pure machine on random platforms, by default 1,000,000",
        run: explorers::topologies,
    },
    Task {
        name: "policies",
        arguments: "",
        covers: "each policy's time relative to the ideal, in virtual time, and co-execution against the best device alone",
        run: explorers::policies,
    },
    Task {
        name: "never-loses",
        arguments: "[WORKLOAD]... [OPTIONS]",
        covers: "every workload, size and set of this machine's devices, against the best device alone; takes minutes",
        run: explorers::never_loses,
    },
    Task {
        name: "soak",
        arguments: "[RUNS]",
        covers: "10,000 small runs in one process with changing policies, devices and sizes, and runs on 64 threads at once",
        run: explorers::soak,
    },
    Task {
        name: "fuzz",
        arguments: "SECONDS | --minimise [TARGET]",
        covers: "libFuzzer on sequences of operations (x86_64 Linux); new inputs join fuzz/corpus, and --minimise removes redundant ones",
        run: explorers::fuzz,
    },
    Task {
        name: "gpu-check",
        arguments: "",
        covers: "nothing here: builds the GPU tests and benchmarks into target/carry, with a script that runs them without a toolchain",
        run: gpu::check,
    },
    Task {
        name: "api",
        arguments: "[--write]",
        covers: "the public interface of the crates against the snapshot in `api`, which --write replaces; needs cargo-public-api",
        run: api::run,
    },
    Task { name: "help", arguments: "", covers: "this list", run: help },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Work) => ExitCode::FAILURE,
        Err(Failure::Usage(problem)) => {
            eprintln!("xtask: {problem}\n\n{}", overview());
            ExitCode::from(2)
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<(), Failure> {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(Failure::Usage("no command given".to_owned()));
    };
    let name = if matches!(name.as_str(), "-h" | "--help") { "help" } else { name.as_str() };
    match TASKS.iter().find(|task| task.name == name) {
        Some(task) => (task.run)(rest),
        None => Err(Failure::Usage(format!("unknown command `{name}`"))),
    }
}

fn help(_: &[String]) -> Result<(), Failure> {
    println!("{}", overview());
    Ok(())
}

/// Returns the list of commands, one line each.
fn overview() -> String {
    let call = |task: &Task| format!("{} {}", task.name, task.arguments).trim_end().to_owned();
    let width = TASKS.iter().map(|task| call(task).len()).max().unwrap_or(0);
    let mut text = String::from("cargo xtask COMMAND\n");
    for task in TASKS {
        text += &format!("\n  {:width$}  {}", call(task), task.covers);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_and_unknown_commands_are_usage_errors() {
        assert!(matches!(dispatch(&[]), Err(Failure::Usage(_))));
        let Err(Failure::Usage(problem)) = dispatch(&["tset".to_owned()]) else { panic!("accepted") };
        assert!(problem.contains("`tset`"));
    }

    #[test]
    fn a_command_without_arguments_refuses_some() {
        for name in ["lint", "tidy", "policies"] {
            let call = [name.to_owned(), "--fast".to_owned()];
            assert!(matches!(dispatch(&call), Err(Failure::Usage(_))), "{name} ran");
        }
    }

    #[test]
    fn the_overview_has_one_line_for_each_command() {
        let text = overview();
        for task in TASKS {
            assert_eq!(text.lines().filter(|line| line.trim_start().starts_with(task.name)).count(), 1);
        }
    }
}
