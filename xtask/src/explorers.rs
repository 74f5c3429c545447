//! The long-running checks: `cargo xtask model`, `simulate`, `topologies`, `policies`, `never-loses`, `soak`
//! and `fuzz`.
//!
//! | command | explores | in CI |
//! |---|---|---|
//! | model | every state of the machine in small configurations | without the large ones (tests/model.rs) |
//! | simulate | seeds of the deterministic simulation | 10,000 seeds (tests/simulation.rs) |
//! | topologies | random operations on random platforms | 20,000 seeds (tests/topologies.rs) |
//! | policies | policies in virtual time, on simulated devices | the same tables (dml-verify) |
//! | never-loses | co-execution against the best device alone, on this machine's devices | no |
//! | soak | many runs in one process, on this machine's devices | 500 runs (tests/soak.rs) |
//! | fuzz | inputs that reach new code, from a growing corpus | the corpus is replayed (tests/corpus.rs) |

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, repository_root, run};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All fuzz targets.
const TARGETS: &[&str] = &["application", "machine", "reference", "shipping"];

/// Targets that run no unsafe code. Without AddressSanitizer, they run several times as fast.
const SAFE_TARGETS: &[&str] = &["machine"];

/// Targets that call drivers.
const DRIVEN_TARGETS: &[&str] = &["shipping"];

/// Options of AddressSanitizer for [`DRIVEN_TARGETS`]. Drivers leak memory, and PoCL's threads disable the
/// alternate signal stack that the sanitizer would free when they end.
const DRIVEN_OPTIONS: &str = "detect_leaks=0:use_sigaltstack=0";

/// The only target of the fuzzers.
const FUZZED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Compiler flags that instrument the code for libFuzzer.
const FUZZER_FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Compiler flags that add AddressSanitizer.
const SANITIZER_FLAGS: &str = "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer";

/// Default seeds of `cargo xtask simulate`.
const SEEDS: &str = "0..200000";

/// Default number of platforms of `cargo xtask topologies`.
const TOPOLOGIES: u64 = 1_000_000;

/// Runs `cargo xtask model [FILTER]`: every configuration, including the large ones.
/// Prints the numbers of states.
///
/// It covers every interleaving of the steps of the production transitions, with up to five arenas, three
/// kernels, two segments and three buffers. It does not cover larger configurations, or code outside the pure
/// machine.
///
/// # Errors
/// [`Failure::Work`] if a state contradicts the specification or a number of states differs from the expected
/// one, [`Failure::Usage`] if there is more than one filter.
pub(crate) fn model(arguments: &[String]) -> Result<(), Failure> {
    let filter = match arguments {
        [] => None,
        [filter] if !filter.starts_with('-') => Some(filter),
        _ => return Err(Failure::Usage(format!("at most one filter, not `{}`", arguments.join(" ")))),
    };
    let mut command = cargo(["test", "--release", "--package", "dml", "--test", "model", "--"]);
    // Each model uses one thread, and the test harness runs one model per core at a time.
    command.args(["--include-ignored", "--nocapture"]).args(filter);
    let mut report = Report::default();
    report.command("model", command);
    report.finish()
}

/// Runs `cargo xtask simulate [FIRST..END]`: the simulations of these seeds. A failing seed
/// prints its events.
///
/// It covers the engine, the queue, the futures and the machine together: concurrent arena calls, faults,
/// reordering and lost devices. It does not cover parallel threads or real time.
///
/// # Errors
/// [`Failure::Work`] if a seed fails, [`Failure::Usage`] for anything but one range of seeds.
pub(crate) fn simulate(arguments: &[String]) -> Result<(), Failure> {
    let seeds = seeds(arguments)?;
    // The test profile: debug assertions check every invariant after every change.
    let mut command = cargo(["test", "--package", "dml", "--test", "simulation", "--", "--nocapture"]);
    command.env("DML_SIMULATE_SEEDS", seeds).arg("seed");
    let mut report = Report::default();
    report.command(&format!("simulate {seeds}"), command);
    report.finish()
}

fn seeds(arguments: &[String]) -> Result<&str, Failure> {
    let asked = match arguments {
        [] => return Ok(SEEDS),
        [asked] => asked.as_str(),
        _ => return Err(Failure::Usage("at most one range of seeds: FIRST..END".to_owned())),
    };
    let ends = asked.split_once("..").map(|(from, to)| (from.parse::<u64>(), to.parse::<u64>()));
    match ends {
        Some((Ok(from), Ok(to))) if from < to => Ok(asked),
        _ => Err(Failure::Usage(format!("seeds are FIRST..END, not `{asked}`"))),
    }
}

/// Runs `cargo xtask topologies [N | FIRST..END]`: the pure machine on one random platform per seed, for the
/// first N seeds or a range of seeds. A failing seed prints its platform.
///
/// It covers random links between up to six arenas. Their prices favour long paths and bindings, and there
/// are failures, lost devices and steps in any order. It does not cover the engine, or larger platforms.
///
/// # Errors
/// [`Failure::Work`] if a seed fails, [`Failure::Usage`] for anything but a number or a range of seeds.
pub(crate) fn topologies(arguments: &[String]) -> Result<(), Failure> {
    let seeds = topology_seeds(arguments)?;
    let mut command = cargo(["test", "--package", "dml", "--test", "topologies", "--", "--nocapture"]);
    command.env("DML_TOPOLOGY_SEEDS", &seeds).arg("seed");
    let mut report = Report::default();
    report.command(&format!("topologies {seeds}"), command);
    report.finish()
}

fn topology_seeds(arguments: &[String]) -> Result<String, Failure> {
    match arguments {
        [] => Ok(format!("0..{TOPOLOGIES}")),
        [count] if count.parse::<u64>().is_ok_and(|count| count > 0) => Ok(format!("0..{count}")),
        arguments => seeds(arguments).map(str::to_owned),
    }
}

/// Runs `cargo xtask policies`: compares each policy with the ideal time on four systems and seven cost
/// profiles, and co-execution on the selected devices with the best device alone.
///
/// It covers the production splitter and policies, in virtual time. It does not cover threads, memories, or
/// devices that slow each other down.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built, [`Failure::Usage`] if there are arguments.
pub(crate) fn policies(arguments: &[String]) -> Result<(), Failure> {
    if !arguments.is_empty() {
        return Err(Failure::Usage(format!("policies takes no arguments, not `{}`", arguments.join(" "))));
    }
    let mut report = Report::default();
    report.command("policies", cargo(["run", "--package", "dml-verify", "--bin", "policies"]));
    report.finish()
}

/// Runs `cargo xtask never-loses [WORKLOAD]... [OPTIONS]`: a release build of `dml bench never-loses`.
///
/// It covers the real devices of this machine, and how they slow each other down. It gives no reliable
/// verdict on a machine that is busy with other work.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built, or a run fails or computes a wrong result.
pub(crate) fn never_loses(arguments: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    let mut command = cargo(["run", "--profile", "dist", "--bin", "dml", "--", "bench", "never-loses"]);
    command.args(arguments);
    report.command("never-loses", command);
    report.finish()
}

/// Runs `cargo xtask soak [RUNS]`: small runs in one process, one after the other and on 64 threads at once,
/// in a release build.
///
/// It covers leaks of memory and threads by runs on this machine's devices. It does not cover other devices,
/// or leaks that take more runs to show.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built, a run fails, or memory or threads grow; [`Failure::Usage`] if the
/// arguments are invalid.
pub(crate) fn soak(arguments: &[String]) -> Result<(), Failure> {
    let runs = match arguments {
        [] => 10_000,
        [runs] => runs.parse::<u64>().map_err(|_| Failure::Usage(format!("not a number of runs: {runs}")))?,
        _ => return Err(Failure::Usage("soak takes one number of runs".to_owned())),
    };
    let mut report = Report::default();
    let mut command = cargo(["test", "--release", "--package", "dml", "--test", "soak", "--", "--nocapture"]);
    command.env("DML_SOAK_RUNS", runs.to_string());
    report.command("soak", command);
    let submissions = ["--test", "submitting", "random::", "--", "--nocapture"];
    let mut command = cargo(["test", "--release", "--package", "dml"]);
    command.args(submissions).env("DML_SUBMISSIONS", (100 * runs).to_string());
    report.command("submissions", command);
    report.finish()
}

/// Runs `cargo xtask fuzz SECONDS [TARGET]`: libFuzzer on one target or on each in turn, with
/// AddressSanitizer for targets with unsafe code. Inputs that reach new code join the corpus in fuzz/corpus.
/// A failing input is left in fuzz/artifacts.
///
/// `cargo xtask fuzz --minimise [TARGET]` removes redundant inputs from the corpus: the others reach the same
/// code. It keeps inputs that were named by hand, which failed once.
///
/// It covers long sequences of operations that random generation is unlikely to produce. It does not show how
/// much remains unexplored.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built or an input fails, [`Failure::Usage`] for invalid arguments.
pub(crate) fn fuzz(arguments: &[String]) -> Result<(), Failure> {
    let (seconds, targets) = fuzzing(arguments)?;
    let mut report = Report::default();
    for target in &targets {
        let is_safe = SAFE_TARGETS.contains(target);
        let (folder, flags) = match is_safe {
            true => (target_folder().join("plain"), FUZZER_FLAGS.to_owned()),
            false => (target_folder().join("asan"), format!("{FUZZER_FLAGS} {SANITIZER_FLAGS}")),
        };
        let mut build = cargo(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--bin", target]);
        build.args(["--target", FUZZED_TARGET, "--target-dir"]).arg(&folder);
        build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
        report.command(&format!("build {target}"), build);
        let program = folder.join(FUZZED_TARGET).join("release").join(target);
        match seconds {
            Some(seconds) => {
                let share = (seconds / targets.len() as u64).max(1);
                report.step(&format!("fuzz {target}, {share} s"), || explored(&program, target, share));
            }
            None => report.step(&format!("minimise {target}"), || minimised(&program, target)),
        }
    }
    report.finish()
}

/// Parses the seconds, `None` to minimise, and the targets.
fn fuzzing(arguments: &[String]) -> Result<(Option<u64>, Vec<&'static str>), Failure> {
    let targets = TARGETS.join(", ");
    let usage =
        || Failure::Usage(format!("fuzz SECONDS | --minimise [TARGET], where TARGET is one of {targets}"));
    let seconds = match arguments.first().map(String::as_str) {
        Some("--minimise") => None,
        seconds => Some(seconds.and_then(|seconds| seconds.parse().ok()).ok_or_else(usage)?),
    };
    let targets = match &arguments[1..] {
        [] => TARGETS.to_vec(),
        [one] => TARGETS.iter().copied().filter(|target| target == one).collect(),
        _ => return Err(usage()),
    };
    if targets.is_empty() { Err(usage()) } else { Ok((seconds, targets)) }
}

fn explored(program: &Path, target: &str, seconds: u64) -> Outcome {
    let (kept, grown) = (corpus(target), target_folder().join("corpus").join(target));
    let artifacts = repository_root().join("fuzz/artifacts").join(target);
    for folder in [&kept, &grown, &artifacts] {
        if let Err(error) = fs::create_dir_all(folder) {
            return Outcome::Failed(format!("{}: {error}", folder.display()));
        }
    }
    let artifact = format!("-artifact_prefix={}/", artifacts.display());
    let mut explore = fuzzer(program, target);
    // Long inputs from the start: bugs show after many operations.
    explore.args([&artifact, "-max_len=4096", "-len_control=0", "-print_final_stats=1"]);
    // New inputs go to the first folder; both folders are the initial corpus.
    explore.args([&grown, &kept]);
    explore.arg(format!("-max_total_time={seconds}"));
    let mut merge = fuzzer(program, target);
    merge.args(["-set_cover_merge=1", &artifact]).args([&kept, &grown]);
    match run(&mut explore).and_then(|()| run(&mut merge)) {
        Ok(()) => Outcome::Passed,
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Removes redundant inputs from the corpus: the remaining ones reach the same code.
fn minimised(program: &Path, target: &str) -> Outcome {
    let (kept, least) = (corpus(target), target_folder().join("least").join(target));
    let minimise = || -> Result<String, String> {
        let failed = |error: io::Error| error.to_string();
        let _ = fs::remove_dir_all(&least);
        fs::create_dir_all(&least).map_err(failed)?;
        // Compares covered edges, not hit counts. The second merge adds edges that not every run reaches.
        for merge in ["-set_cover_merge=1", "-merge=1"] {
            run(fuzzer(program, target).args([merge, "-use_counters=0"]).args([&least, &kept]))?;
        }
        let (mut left, mut removed) = (0, 0);
        for entry in fs::read_dir(&kept).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_generated = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_generated && !least.join(&name).exists() {
                fs::remove_file(entry.path()).map_err(failed)?;
                removed += 1;
            } else {
                left += 1;
            }
        }
        run(fuzzer(program, target).args(["-runs=0", "-use_counters=0"]).arg(&kept))?;
        Ok(format!("{left} inputs left, {removed} removed"))
    };
    match minimise() {
        Ok(counts) => {
            eprintln!("{counts}");
            Outcome::Passed
        }
        Err(reason) => Outcome::Failed(reason),
    }
}

fn corpus(target: &str) -> PathBuf {
    repository_root().join("fuzz/corpus").join(target)
}

fn fuzzer(program: &Path, target: &str) -> Command {
    let mut command = Command::new(program);
    if DRIVEN_TARGETS.contains(&target) {
        command.env("ASAN_OPTIONS", DRIVEN_OPTIONS).arg("-detect_leaks=0");
    }
    command
}

fn target_folder() -> PathBuf {
    let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    repository_root().join(base).join("fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn topologies_are_a_number_or_a_range_of_seeds() {
        assert_eq!(topology_seeds(&[]), Ok("0..1000000".to_owned()));
        assert_eq!(topology_seeds(&owned(&["20"])), Ok("0..20".to_owned()));
        assert_eq!(topology_seeds(&owned(&["7..8"])), Ok("7..8".to_owned()));
        for wrong in ["0", "8..8", "many"] {
            assert!(matches!(topology_seeds(&owned(&[wrong])), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(seeds(&[]), Ok(SEEDS));
        assert_eq!(seeds(&owned(&["7..8"])), Ok("7..8"));
        for wrong in ["7", "8..8", "a..b", "..", "-1..3"] {
            assert!(matches!(seeds(&owned(&[wrong])), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn fuzzing_needs_a_time_and_may_name_a_target() {
        assert_eq!(fuzzing(&owned(&["60"])), Ok((Some(60), TARGETS.to_vec())));
        assert_eq!(fuzzing(&owned(&["60", "machine"])), Ok((Some(60), vec!["machine"])));
        assert_eq!(fuzzing(&owned(&["--minimise", "machine"])), Ok((None, vec!["machine"])));
        for wrong in [&[][..], &["soon"], &["60", "nothing"], &["60", "machine", "reference"]] {
            assert!(matches!(fuzzing(&owned(wrong)), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn every_target_has_its_file() {
        for target in TARGETS {
            assert!(repository_root().join(format!("fuzz/fuzz_targets/{target}.rs")).is_file(), "{target}");
        }
    }
}
