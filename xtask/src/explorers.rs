//! `cargo xtask model`, `simulate`, `topologies`, `policies`, `soak` and `fuzz`: the checks that explore.
//!
//! | command | explores | in CI |
//! |---|---|---|
//! | model | every state of the machine in small configurations | all but the large ones (tests/model.rs) |
//! | simulate | seeds of the deterministic simulation | 10,000 seeds (tests/simulation.rs) |
//! | topologies | platforms made at random, and what happens on them | 20,000 seeds (tests/topologies.rs) |
//! | policies | policies in virtual time, on devices that are made up | the same tables (dml-verify/src/coexecution) |
//! | soak | many runs in one process, on this machine's devices | 500 runs (tests/soak.rs) |
//! | fuzz | inputs that reach new code, from a corpus that grows | the corpus is replayed (tests/corpus.rs) |

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, repository_root, run};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The fuzz targets.
const TARGETS: &[&str] = &["machine", "reference", "shipping"];

/// Those in which no unsafe code runs: AddressSanitizer has nothing to find there, and they are several times as fast
/// without it.
const SAFE_TARGETS: &[&str] = &["machine"];

/// Those that call drivers, and what AddressSanitizer is told there: what drivers leak is not DML's, and PoCL's threads give up
/// the signal stack that it would free as they end.
const DRIVEN_TARGETS: &[&str] = &["shipping"];
const DRIVEN_OPTIONS: &str = "detect_leaks=0:use_sigaltstack=0";

/// The only target the fuzzers are built for.
const FUZZED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// What makes the compiler instrument the code for libFuzzer.
const FUZZER_FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// And AddressSanitizer with it.
const SANITIZER_FLAGS: &str = "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer";

/// The seeds that `cargo xtask simulate` runs when it is not told which.
const SEEDS: &str = "0..200000";

/// How many platforms `cargo xtask topologies` makes when it is not told.
const TOPOLOGIES: u64 = 1_000_000;

/// `cargo xtask model [FILTER]`: every configuration, the large ones too, with the numbers of states.
///
/// What it covers: the production transitions, every interleaving of their steps, in configurations of up to five arenas,
/// three kernels, two segments and three buffers. What it cannot: larger ones, and everything outside the pure machine.
///
/// # Errors
/// [`Failure::Work`] if a state contradicts the specification or a number of states is not the one known,
/// [`Failure::Usage`] if there is more than one filter.
pub(crate) fn model(arguments: &[String]) -> Result<(), Failure> {
    let filter = match arguments {
        [] => None,
        [filter] if !filter.starts_with('-') => Some(filter),
        _ => return Err(Failure::Usage(format!("at most one filter, not `{}`", arguments.join(" ")))),
    };
    let mut command = cargo(["test", "--release", "--package", "dml", "--test", "model", "--"]);
    // Each uses one processor, and as many run beside each other as there are.
    command.args(["--include-ignored", "--nocapture"]).args(filter);
    let mut report = Report::default();
    report.command("model", command);
    report.finish()
}

/// `cargo xtask simulate [FIRST..END]`: the simulations of these seeds. One that fails prints its story.
///
/// What it covers: the engine, the queue, the futures and the machine together, every arena call half way while others go
/// on, faults, reordering, lost devices. What it cannot: two threads at once, and real time.
///
/// # Errors
/// [`Failure::Work`] if a seed fails, [`Failure::Usage`] for anything but one range of seeds.
pub(crate) fn simulate(arguments: &[String]) -> Result<(), Failure> {
    let seeds = seeds(arguments)?;
    // The profile of the tests: its debug assertions check every invariant after every change.
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
        _ => return Err(Failure::Usage("one range of seeds: FIRST..END".to_owned())),
    };
    let ends = asked.split_once("..").map(|(from, to)| (from.parse::<u64>(), to.parse::<u64>()));
    match ends {
        Some((Ok(from), Ok(to))) if from < to => Ok(asked),
        _ => Err(Failure::Usage(format!("seeds are FIRST..END, not `{asked}`"))),
    }
}

/// `cargo xtask topologies [N | FIRST..END]`: the pure machine on platforms made at random, one of each seed, the first N or
/// those of a range. One that fails prints its platform and its seed.
///
/// What it covers: joinings of up to six arenas that nobody thought of, at prices that make long ways and bindings on the
/// way worth while, with failures, lost devices and steps in any order. What it cannot: the engine, and larger platforms.
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

/// `cargo xtask policies`: how near each policy comes to the ideal on four systems and seven shapes of work, and whether
/// the devices that are chosen ever lose against the best of them alone.
///
/// What it covers: the production splitter and policies, in virtual time. What it cannot: threads, memories, and devices that
/// slow each other down.
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

/// `cargo xtask never-loses [WORKLOAD]... [OPTIONS]`: `dml bench never-loses`, built for release.
///
/// What it covers: the real devices of this machine, with what they disturb each other by. What it cannot: a verdict on a
/// machine that does other things meanwhile.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built, or a run fails or computes something wrong.
pub(crate) fn never_loses(arguments: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    let mut command = cargo(["run", "--release", "--bin", "dml", "--", "bench", "never-loses"]);
    command.args(arguments);
    report.command("never-loses", command);
    report.finish()
}

/// `cargo xtask soak [RUNS]`: small runs in one process, one after the other and 64 at once, optimised.
///
/// What it covers: that nothing is left of a run, on the devices of this machine. What it cannot: devices that are not here, and
/// what takes more runs to show.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built, a run fails, or memory or threads grow; [`Failure::Usage`] if the arguments are not
/// understood.
pub(crate) fn soak(arguments: &[String]) -> Result<(), Failure> {
    let runs = match arguments {
        [] => 10_000,
        [runs] => runs.parse::<u64>().map_err(|_| Failure::Usage(format!("{runs} is no number of runs")))?,
        _ => return Err(Failure::Usage("one number of runs".to_owned())),
    };
    let mut report = Report::default();
    let mut command = cargo(["test", "--release", "--package", "dml", "--test", "soak", "--", "--nocapture"]);
    command.env("DML_SOAK_RUNS", runs.to_string());
    report.command("soak", command);
    report.finish()
}

/// `cargo xtask fuzz SECONDS [TARGET]`: libFuzzer on every target in turn, or on one, with AddressSanitizer where there is
/// unsafe code. Inputs that reach new code join the corpus in fuzz/corpus; one that fails is left in fuzz/artifacts.
///
/// `cargo xtask fuzz --minimise [TARGET]` removes inputs from the corpus that reach no code which the others do not. Inputs with names
/// of their own, which once failed, stay.
///
/// What it covers: long sequences of operations that no generator thought of. What it cannot: tell how much is left.
///
/// # Errors
/// [`Failure::Work`] if it cannot be built or an input fails, [`Failure::Usage`] if the arguments are not understood.
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

/// The seconds, or none to minimise, and the targets.
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
    // Long inputs from the start: what is wrong shows after many operations.
    explore.args([&artifact, "-max_len=4096", "-len_control=0", "-print_final_stats=1"]);
    // What is found goes to the first folder; the second is where it starts from as well.
    explore.args([&grown, &kept]);
    explore.arg(format!("-max_total_time={seconds}"));
    let mut merge = fuzzer(program, target);
    merge.args(["-set_cover_merge=1", &artifact]).args([&kept, &grown]);
    match run(&mut explore).and_then(|()| run(&mut merge)) {
        Ok(()) => Outcome::Passed,
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Leaves the inputs of a corpus that together reach as much code as all of them.
fn minimised(program: &Path, target: &str) -> Outcome {
    let (kept, least) = (corpus(target), target_folder().join("least").join(target));
    let minimise = || -> Result<String, String> {
        let failed = |error: io::Error| error.to_string();
        let _ = fs::remove_dir_all(&least);
        fs::create_dir_all(&least).map_err(failed)?;
        // Which edges are reached counts, and not how often. The second merge adds edges that depend on chance.
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
