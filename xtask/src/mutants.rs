//! `cargo xtask mutants`: does each kind of test notice when a rule is broken?
//!
//! ```text
//! tests/mutants/*.patch --> copy of the repository: apply --> each tool of TOOLS --> killed, hang or survived
//!                                                   undo  <----------------------'
//! ```
//!
//! A mutant is a patch that breaks one rule of the machine. Every tool is first run on the copy as it is, where it has
//! to succeed, then on every mutant; the table shows which tool noticed what. A mutant that nobody kills fails the
//! command, and so does a patch that does not apply any more.
//!
//! What it covers: the rules that someone thought of, and whether the tests of each kind hold them up by themselves.
//! What it cannot: rules without a patch; which of several tests of one tool would have noticed, because a tool ends at
//! its first failure; and a tool that notices only once in a while, because it is run once.
//!
//! `cargo xtask mutants --generated` hands over to cargo-mutants, which makes hundreds of small changes by itself; what
//! it looks at and what it runs stands in `.cargo/mutants.toml`.
//!
//! `cargo xtask mutants --changed` tries those that a change concerns, each under the test that its row names. Without
//! `--patches-only`, cargo-mutants then makes more up of the changed lines.
//!
//! The copy lies in `target/mutants` and stays there, so that the next run builds little.

mod changed;

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand, repository_root};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where the patches lie.
const PATCHES: &str = "tests/mutants";

/// The nextest profile that ends a tool at its first failure and kills a test that hangs.
const PROFILE: &str = "mutants";

/// Something that may notice a mutant.
struct Tool {
    name: &'static str,
    runs: Runs,
}

/// What a tool runs.
enum Runs {
    /// The unit tests of dml-core.
    UnitTests,
    /// All tests of this package.
    Package(&'static str),
    /// Those of these integration tests that there are; a name may end in `*`.
    Tests(&'static [&'static str]),
    /// The unit tests of the command, and these integration tests, which need every feature.
    Binary(&'static [&'static str]),
    /// A command of xtask.
    Command(&'static str),
}

/// The columns of the table.
const TOOLS: &[Tool] = &[
    Tool { name: "unit", runs: Runs::UnitTests },
    Tool { name: "arenas", runs: Runs::Package("dml-arenas") },
    Tool { name: "scheduler", runs: Runs::Package("dml-scheduler") },
    Tool { name: "policies", runs: Runs::Package("dml-verify") },
    Tool { name: "workloads", runs: Runs::Package("dml-workloads") },
    Tool {
        name: "scenarios",
        runs: Runs::Tests(&[
            "coherence",
            "outcomes",
            "sharing",
            "bindings",
            "closing",
            "requests",
            "waiting",
            "overlap",
            "coexecution",
            "pipelines",
            "refusals",
            "started",
            "under_compute",
            "launching",
            "losing",
            "stores",
            "backends",
            "prefetching",
            "accounts",
            "building",
        ]),
    },
    Tool { name: "command", runs: Runs::Binary(&["timeline", "report"]) },
    Tool { name: "hostile", runs: Runs::Tests(&["hostile", "awaiting"]) },
    Tool { name: "faults", runs: Runs::Tests(&["faults", "exhaustive"]) },
    Tool { name: "reference", runs: Runs::Tests(&["reference"]) },
    Tool { name: "machine", runs: Runs::Tests(&["machine", "interleaved"]) },
    Tool { name: "history", runs: Runs::Tests(&["history", "concurrency"]) },
    Tool { name: "simulation", runs: Runs::Tests(&["simulation"]) },
    Tool { name: "model", runs: Runs::Tests(&["model*"]) },
    Tool { name: "loom", runs: Runs::Command("loom") },
];

/// `cargo xtask mutants [--tool NAME]... [FILTER]`, `cargo xtask mutants --changed [BASE]` or
/// `cargo xtask mutants --generated [ARGS]`.
///
/// # Errors
/// [`Failure::Work`] if a patch does not apply or build, if nobody kills it, or if a tool fails without one;
/// [`Failure::Usage`] for arguments it does not know.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    match Options::parse(arguments)? {
        Options::Generated(arguments) => generated(&arguments),
        Options::Patches { filter, tools } => with_nextest(|| by_hand(filter.as_deref(), &tools)),
        Options::Changed { base, generates } => with_nextest(|| changed::run(base.as_deref(), generates)),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Options {
    /// The patches whose names contain the filter, under these tools; under all where none is named.
    Patches { filter: Option<String>, tools: Vec<String> },
    /// The patches that what has changed since a commit concerns, and mutants made up of the changed lines.
    Changed { base: Option<String>, generates: bool },
    /// cargo-mutants with these arguments.
    Generated(Vec<String>),
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let (mut filter, mut tools) = (None, Vec::new());
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--generated" => return Ok(Self::Generated(rest.cloned().collect())),
                "--changed" => {
                    let mut generates = true;
                    let mut base = None;
                    for argument in rest {
                        match argument.as_str() {
                            "--patches-only" => generates = false,
                            word if !word.starts_with('-') && base.is_none() => base = Some(word.to_owned()),
                            other => {
                                return Err(Failure::Usage(format!(
                                    "mutants --changed does not know `{other}`"
                                )));
                            }
                        }
                    }
                    return Ok(Self::Changed { base, generates });
                }
                "--tool" => {
                    let known: Vec<_> = TOOLS.iter().map(|tool| tool.name).collect();
                    match rest.next().filter(|name| known.contains(&name.as_str())) {
                        Some(name) => tools.push(name.clone()),
                        None => return Err(Failure::Usage(format!("--tool takes one of {known:?}"))),
                    }
                }
                word if !word.starts_with('-') && filter.is_none() => filter = Some(word.to_owned()),
                other => return Err(Failure::Usage(format!("mutants does not know `{other}`"))),
            }
        }
        Ok(Self::Patches { filter, tools })
    }
}

fn generated(arguments: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    if has_cargo_subcommand("mutants") {
        let mut command = cargo(["mutants", "--workspace"]);
        command.args(arguments).env("NEXTEST_PROFILE", PROFILE);
        // Cargo does not tell a copy of a workspace from the workspace itself: they must not share what they build.
        command.env("CARGO_TARGET_DIR", folder_of(&repository_root()).join("generated"));
        without_debug_information(&mut command);
        report.command("cargo-mutants", command);
    } else {
        report.step("cargo-mutants", || Outcome::Skipped("cargo-mutants is not installed".to_owned()));
        report.note("cargo-mutants: nothing was mutated (cargo install cargo-mutants)");
    }
    report.finish()
}

/// Fails where there is no nextest.
fn with_nextest(run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if has_cargo_subcommand("nextest") {
        return run();
    }
    let mut report = Report::default();
    let reason = "cargo-nextest is not installed, and nothing else kills a test that hangs";
    report.step("mutants", || Outcome::Failed(reason.to_owned()));
    report.finish()
}

fn broken(error: io::Error) -> Failure {
    eprintln!("mutants: {error}");
    Failure::Work
}

fn by_hand(filter: Option<&str>, named: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    let root = repository_root();
    let copy = Copy::of(&root).map_err(broken)?;
    let patches = patches_of(&root.join(PATCHES), filter).map_err(broken)?;
    if patches.is_empty() {
        return Err(Failure::Usage(format!("no patch in {PATCHES} matches")));
    }
    let mut tools = Vec::new();
    for tool in TOOLS.iter().filter(|tool| named.is_empty() || named.iter().any(|name| name == tool.name)) {
        match copy.command(tool) {
            None => report.note(format!("{}: no such tests yet", tool.name)),
            Some(command) => {
                let mut sound = false;
                report.step(&format!("no mutant: {}", tool.name), || match verdict(command) {
                    Verdict::Survived => {
                        sound = true;
                        Outcome::Passed
                    }
                    other => Outcome::Failed(format!("{other:?}")),
                });
                tools.extend(Some(tool).filter(|_| sound));
            }
        }
    }
    let mut rows = Vec::new();
    for patch in &patches {
        let name = patch.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        report.step(&name, || match copy.with(patch, || trial(&copy, &tools)) {
            Ok(verdicts) => {
                let outcome = judged(&verdicts);
                rows.push((name.clone(), verdicts));
                outcome
            }
            Err(reason) => Outcome::Failed(reason),
        });
    }
    println!("\n{}", table(&tools.iter().map(|tool| tool.name).collect::<Vec<_>>(), &rows));
    report.finish()
}

/// Runs every tool on the copy as it is now.
fn trial(copy: &Copy, tools: &[&Tool]) -> Vec<Verdict> {
    let one = |tool: &&Tool| {
        let verdict = copy.command(tool).map_or(Verdict::Survived, verdict);
        eprintln!("{}: {verdict:?}", tool.name);
        verdict
    };
    tools.iter().map(one).collect()
}

/// What a tool made of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// This test failed, or something before the first test did.
    Killed(String),
    /// This test did not end.
    Hang(String),
    /// Nobody noticed.
    Survived,
    /// It could not be tried.
    Broken(String),
}

fn verdict(mut command: Command) -> Verdict {
    match command.output() {
        Ok(output) => read_verdict(&output),
        Err(error) => Verdict::Broken(format!("could not start: {error}")),
    }
}

/// Reads what nextest, or a command that runs it, wrote.
fn read_verdict(output: &Output) -> Verdict {
    if output.status.success() {
        return Verdict::Survived;
    }
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat();
    if let Some(line) = text.lines().find(|line| line.contains("could not compile")) {
        return Verdict::Broken(line.trim().to_owned());
    }
    let failed = |words: &[&str]| {
        let mut lines = text.lines().map(str::trim);
        let line = lines.find(|line| words.iter().any(|word| line.starts_with(word)))?;
        line.split_whitespace().last().map(str::to_owned)
    };
    match (failed(&["FAIL", "ABORT", "SIG"]), failed(&["TIMEOUT"])) {
        (Some(test), _) => Verdict::Killed(test),
        (None, Some(test)) => Verdict::Hang(test),
        (None, None) => Verdict::Broken(text.lines().last().unwrap_or("no word why").to_owned()),
    }
}

/// Whether a mutant ended as it should.
fn judged(verdicts: &[Verdict]) -> Outcome {
    let broken = verdicts.iter().find_map(|verdict| match verdict {
        Verdict::Broken(reason) => Some(reason.clone()),
        _ => None,
    });
    match broken {
        Some(reason) => Outcome::Failed(reason),
        None if verdicts.iter().all(|verdict| *verdict == Verdict::Survived) => {
            Outcome::Failed("nobody noticed".to_owned())
        }
        None => Outcome::Passed,
    }
}

/// The result in Markdown, and below it who noticed first.
fn table(tools: &[&str], rows: &[(String, Vec<Verdict>)]) -> String {
    let mut text = format!("| mutant | {} |\n|---|{}\n", tools.join(" | "), "---|".repeat(tools.len()));
    for (name, verdicts) in rows {
        let cells = verdicts.iter().map(|verdict| match verdict {
            Verdict::Killed(_) => "killed",
            Verdict::Hang(_) => "hang",
            Verdict::Survived => "-",
            Verdict::Broken(_) => "broken",
        });
        text += &format!("| `{name}` | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    for (name, verdicts) in rows {
        text += &format!("\n{name}");
        for (tool, verdict) in tools.iter().zip(verdicts) {
            if let Verdict::Killed(test) | Verdict::Hang(test) = verdict {
                text += &format!("\n  {tool}: {test}");
            }
        }
    }
    text
}

/// The patches whose names contain `filter`, in order.
fn patches_of(folder: &Path, filter: Option<&str>) -> io::Result<Vec<PathBuf>> {
    let mut patches = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|extension| extension == "patch")
            && filter.is_none_or(|filter| stem.contains(filter))
        {
            patches.push(path);
        }
    }
    patches.sort();
    Ok(patches)
}

/// Where everything lies that mutants need.
fn folder_of(root: &Path) -> PathBuf {
    let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(base).join("mutants")
}

/// A copy of the repository to be broken.
struct Copy {
    tree: PathBuf,
    build: PathBuf,
}

impl Copy {
    /// Brings the copy up to date. Only files that differ are written, so that what is built stays built.
    fn of(root: &Path) -> io::Result<Self> {
        let folder = folder_of(root);
        let copy = Self { tree: folder.join("tree"), build: folder.join("build") };
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let listed = list.output()?;
        if !listed.status.success() {
            return Err(io::Error::other("git does not list the repository's files"));
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names: BTreeSet<_> = names.split_terminator('\0').collect();
        update(root, &copy.tree, &names)?;
        Ok(copy)
    }

    /// Does `work` while the patch is applied.
    fn with<R>(&self, patch: &Path, work: impl FnOnce() -> R) -> Result<R, String> {
        self.apply(patch, &[])?;
        let result = work();
        self.apply(patch, &["--reverse"])?;
        Ok(result)
    }

    fn apply(&self, patch: &Path, how: &[&str]) -> Result<(), String> {
        let mut git = Command::new("git");
        // Inside the repository git would look for the patched files there.
        let ceiling = self.tree.parent().unwrap_or(&self.tree);
        git.arg("apply").args(how).arg(patch).current_dir(&self.tree).env("GIT_CEILING_DIRECTORIES", ceiling);
        match git.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                Err(format!("does not apply: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
            }
            Err(error) => Err(format!("could not start git: {error}")),
        }
    }

    /// What runs a tool here; `None` where there are no such tests.
    fn command(&self, tool: &Tool) -> Option<Command> {
        let mut command = cargo::<&str>([]);
        match tool.runs {
            Runs::UnitTests => {
                command.args(["nextest", "run", "--profile", PROFILE, "--package", "dml-core", "--lib"]);
            }
            Runs::Package(package) => {
                command.args(["nextest", "run", "--profile", PROFILE, "--package", package]);
            }
            Runs::Tests(names) => {
                let targets = targets_of(&self.tree.join("tests"), names);
                if targets.is_empty() {
                    return None;
                }
                // Without the command, which takes long to build.
                command.args([
                    "nextest",
                    "run",
                    "--profile",
                    PROFILE,
                    "--package",
                    "dml",
                    "--no-default-features",
                ]);
                targets.iter().for_each(|target| _ = command.args(["--test", target]));
            }
            Runs::Binary(names) => {
                command.args(["nextest", "run", "--profile", PROFILE, "--package", "dml", "--bin", "dml"]);
                let targets = targets_of(&self.tree.join("tests"), names);
                targets.iter().for_each(|target| _ = command.args(["--test", target]));
            }
            Runs::Command(name) => {
                command.args(["run", "--quiet", "--package", "xtask", "--", name]);
            }
        }
        self.prepare(&mut command);
        Some(command)
    }

    /// Has a command of cargo work on the copy.
    fn prepare(&self, command: &mut Command) {
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.build).env("CARGO_TERM_COLOR", "never");
        command.env("NEXTEST_PROFILE", PROFILE).env("CARGO_INCREMENTAL", "1");
        without_debug_information(command);
    }
}

fn without_debug_information(command: &mut Command) {
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
}

/// The integration tests of these names that there are.
fn targets_of(folder: &Path, names: &[&str]) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut targets: Vec<_> = entries
        .filter(|path| path.join("main.rs").is_file() || path.extension().is_some_and(|kind| kind == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .filter(|target| {
            names.iter().any(|name| match name.strip_suffix('*') {
                Some(start) => target.starts_with(start),
                None => target == name,
            })
        })
        .collect();
    targets.sort();
    targets
}

/// Makes `to` hold these files of `from` and no others.
fn update(from: &Path, to: &Path, names: &BTreeSet<&str>) -> io::Result<()> {
    for name in names {
        let (source, target) = (from.join(name), to.join(name));
        // A file may be listed and gone.
        let Ok(text) = fs::read(&source) else { continue };
        if fs::read(&target).is_ok_and(|old| old == text) {
            continue;
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&target, text)?;
    }
    let mut folders = vec![to.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(to).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            if path.is_dir() {
                folders.push(path);
            } else if !(names.contains(name.as_str()) && from.join(&name).is_file()) {
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(code: i32, stderr: &str) -> Verdict {
        let status = ExitStatus::from_raw(code << 8);
        read_verdict(&Output { status, stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() })
    }

    #[test]
    fn the_first_failed_test_is_named() {
        let text = "\
        PASS [   0.006s] (1/3) dml::coherence i02_a
        FAIL [   0.016s] (2/3) dml::coherence i02_b
     TIMEOUT [   4.016s] (3/3) dml::coherence i02_c
error: test run failed";
        assert_eq!(ended(100, text), Verdict::Killed("i02_b".to_owned()));
        let hang = text.replace("FAIL", "PASS");
        assert_eq!(ended(100, &hang), Verdict::Hang("i02_c".to_owned()));
        assert_eq!(ended(0, text), Verdict::Survived);
        let aborted = "     SIGABRT [   0.2s] (1/3) dml::sharing i10_a";
        assert_eq!(ended(100, aborted), Verdict::Killed("i10_a".to_owned()));
    }

    #[test]
    fn what_does_not_build_kills_nothing() {
        let text = "error: could not compile `dml-core` (lib) due to 1 previous error";
        assert_eq!(ended(101, text), Verdict::Broken(text.to_owned()));
        assert!(matches!(ended(4, "error: no tests to run"), Verdict::Broken(_)));
        assert!(matches!(judged(&[ended(0, ""), ended(101, text)]), Outcome::Failed(_)));
    }

    #[test]
    fn a_mutant_that_nobody_kills_is_a_failure() {
        let killed = Verdict::Killed("i01".to_owned());
        assert_eq!(judged(&[Verdict::Survived, killed.clone()]), Outcome::Passed);
        assert_eq!(judged(&[Verdict::Hang("l04".to_owned())]), Outcome::Passed);
        assert_eq!(judged(&[Verdict::Survived]), Outcome::Failed("nobody noticed".to_owned()));
        assert!(matches!(judged(&[]), Outcome::Failed(_)));
        let rows = [("stale_read".to_owned(), vec![Verdict::Survived, killed])];
        let expected = "\
| mutant | unit | loom |
|---|---|---|
| `stale_read` | - | killed |

stale_read
  loom: i01";
        assert_eq!(table(&["unit", "loom"], &rows), expected);
    }

    #[test]
    fn arguments_are_a_filter_tools_or_those_of_cargo_mutants() {
        let parse =
            |words: &[&str]| Options::parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Ok(Options::Patches { filter: None, tools: Vec::new() }));
        let expected = Options::Patches { filter: Some("poison".to_owned()), tools: vec!["unit".to_owned()] };
        assert_eq!(parse(&["--tool", "unit", "poison"]), Ok(expected));
        let expected = Options::Generated(vec!["--shard".to_owned(), "0/8".to_owned()]);
        assert_eq!(parse(&["--generated", "--shard", "0/8"]), Ok(expected));
        let changed =
            |base: Option<&str>, generates| Options::Changed { base: base.map(str::to_owned), generates };
        assert_eq!(parse(&["--changed"]), Ok(changed(None, true)));
        assert_eq!(parse(&["--changed", "--patches-only", "main"]), Ok(changed(Some("main"), false)));
        for wrong in [&["--changed", "--fast"] as &[_], &["--changed", "a", "b"]] {
            assert!(matches!(parse(wrong), Err(Failure::Usage(_))), "{wrong:?}");
        }
        for wrong in [&["--tool"] as &[_], &["--tool", "luck"], &["--fast"], &["a", "b"]] {
            assert!(matches!(parse(wrong), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_copy_has_the_files_listed_and_no_others() {
        let root = env::temp_dir().join(format!("dml-mutants-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(from.join("tests")).unwrap();
        fs::create_dir_all(to.join("tests")).unwrap();
        for name in ["tests/model.rs", "tests/faults.rs", "unlisted.rs"] {
            fs::write(from.join(name), name).unwrap();
        }
        fs::write(to.join("tests/faults.rs"), "mutated").unwrap();
        fs::write(to.join("tests/model_old.rs"), "stale").unwrap();
        update(&from, &to, &["tests/model.rs", "tests/faults.rs", "tests/gone.rs"].into()).unwrap();
        assert_eq!(fs::read_to_string(to.join("tests/faults.rs")).unwrap(), "tests/faults.rs");
        assert!(!to.join("unlisted.rs").exists());
        assert_eq!(targets_of(&to.join("tests"), &["model*", "gone"]), ["model"]);
        fs::remove_dir_all(&root).unwrap();
    }
}
