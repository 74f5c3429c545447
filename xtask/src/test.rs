//! `cargo xtask test`: all tests that a change must pass, on any machine.
//!
//! ```text
//! OpenCL found? --no--> may install? -----yes--> apt-get --> found now?
//!      | yes                  | no                          yes |  | no
//!      v                      v                                 |  |
//! DML_EXPECT=opencl <---------|---------------------------------'  |
//!      |               listed as missing <-------------------------'
//!      '----------------------'
//!                 v
//!      nextest (or cargo test) --> doc tests --> loom --> instructions --> tidy --> summary
//! ```
//!
//! The browser for the tests of HTML pages is installed in the same way, and expected as `chromium`.
//!
//! With `DML_EXPECT=opencl`, a test that finds no OpenCL device fails. Without it, the test is skipped with a
//! message. So no test silently skips an existing device. Devices that the caller expects are kept.

use crate::Failure;
use crate::checkers;
use crate::instructions;
use crate::oracle;
use crate::shell::{
    self, Outcome, Report, cargo, find_program, has_cargo_subcommand, output_of, succeeds_quietly,
};
use crate::slowest;
use crate::tidy;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// System packages that provide OpenCL.
const PACKAGES: &[&str] = &["pocl-opencl-icd", "ocl-icd-libopencl1"];
/// System packages that provide a browser.
const BROWSER_PACKAGES: &[&str] = &["chromium"];
/// Programs that the tests of HTML pages accept as browser.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// The library that loads the OpenCL drivers.
const LOADER: &str = "libOpenCL.so.1";
/// The folder of the files that list the drivers for the loader.
const VENDORS: &str = "/etc/OpenCL/vendors";
/// Environment variable with the devices that the tests require, separated by commas.
const EXPECT: &str = "DML_EXPECT";

/// Arguments that add features to the defaults in all test builds. Without `tracing`, only the spans are
/// missing. A second build without it would take a tenth of the time of all tests.
pub(crate) const FEATURES: [&str; 2] = ["--features", "dml/tracing"];

/// Runs every test.
///
/// # Errors
/// [`Failure::Work`] if a step fails, [`Failure::Usage`] if the arguments are invalid.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    let mut report = Report::default();
    let mut expected = env::var(EXPECT).ok().filter(|devices| !devices.is_empty());
    match provide_opencl(options.installing) {
        Ok(()) => expected = Some(also_expecting(expected.as_deref(), "opencl")),
        Err(problem) => report.note(format!(
            "OpenCL: {problem}; the tests that need an OpenCL device are skipped, each with a message"
        )),
    }
    match provide_browser(options.installing) {
        Ok(()) => expected = Some(also_expecting(expected.as_deref(), "chromium")),
        Err(problem) => {
            report.note(format!("browser: {problem}; the tests of HTML pages are skipped"));
        }
    }
    let oracle = oracle::plugin(options.installing == Installing::WhereAllowed);
    match &oracle {
        Ok(_) => expected = Some(also_expecting(expected.as_deref(), "oclgrind")),
        Err(problem) => {
            report.note(format!("Oclgrind: {problem}; the tests against its simulations are skipped"))
        }
    }
    let mut tests = if has_cargo_subcommand("nextest") {
        cargo(["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        report.note("cargo-nextest: the tests ran under cargo test (cargo install cargo-nextest --locked)");
        cargo(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
    };
    tests.args(FEATURES).args(&options.for_nextest);
    let mut doc_tests = cargo(["test", "--doc", "--workspace", "--no-fail-fast"]);
    doc_tests.args(FEATURES);
    if let Some(devices) = expected {
        tests.env(EXPECT, &devices).envs(oracle.ok().map(|plugin| (oracle::PLUGIN, plugin)));
        doc_tests.env(EXPECT, &devices);
    }
    // Removes the report of an earlier run, in case this run writes none.
    let _ = fs::remove_file(slowest::report());
    report.command("tests", tests);
    slowest::named().into_iter().for_each(|slowest| report.remark(slowest));
    report.command("doc tests", doc_tests);
    checkers::all_models(&mut report);
    instructions::step(&mut report, options.installing == Installing::WhereAllowed);
    report.step("tidy", || match tidy::print_violations() {
        Ok(0) => Outcome::Passed,
        Ok(count) => Outcome::Failed(format!("{count} violations")),
        Err(error) => Outcome::Failed(error.to_string()),
    });
    report.finish()
}

/// Whether packages may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installing {
    WhereAllowed,
    Never,
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    installing: Installing,
    for_nextest: Vec<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self { installing: Installing::WhereAllowed, for_nextest: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--no-install" => options.installing = Installing::Never,
                "--" => options.for_nextest = rest.by_ref().cloned().collect(),
                other => {
                    let problem =
                        format!("test: unknown argument `{other}`; put arguments for nextest after `--`");
                    return Err(Failure::Usage(problem));
                }
            }
        }
        Ok(options)
    }
}

/// Adds a device to the expected devices.
fn also_expecting(expected: Option<&str>, device: &str) -> String {
    match expected {
        None => device.to_owned(),
        Some(devices) if devices.split(',').any(|known| known.trim() == device) => devices.to_owned(),
        Some(devices) => format!("{devices},{device}"),
    }
}

/// Installs an OpenCL platform if there is none. Returns why there is still none.
fn provide_opencl(installing: Installing) -> Result<(), String> {
    let missing = match missing_opencl() {
        None => return Ok(()),
        Some(missing) => missing,
    };
    let packages = PACKAGES.join(" ");
    if installing == Installing::Never {
        return Err(format!("{missing}; {packages} not installed because of --no-install"));
    }
    eprintln!("OpenCL: {missing}; installing {packages}");
    install(PACKAGES).map_err(|why| format!("{missing}; {packages} could not be installed: {why}"))?;
    match missing_opencl() {
        None => Ok(()),
        Some(missing) => Err(format!("{missing}, although {packages} are installed")),
    }
}

/// Installs a browser if none starts. Returns why there is still none.
fn provide_browser(installing: Installing) -> Result<(), String> {
    let is_there = || BROWSERS.iter().any(|browser| succeeds_quietly(Command::new(browser).arg("--version")));
    if is_there() {
        return Ok(());
    }
    let (missing, packages) = (format!("none of {}", BROWSERS.join(", ")), BROWSER_PACKAGES.join(" "));
    if installing == Installing::Never {
        return Err(format!("{missing}; {packages} not installed because of --no-install"));
    }
    eprintln!("browser: {missing}; installing {packages}");
    install(BROWSER_PACKAGES)
        .map_err(|why| format!("{missing}; {packages} could not be installed: {why}"))?;
    if is_there() { Ok(()) } else { Err(format!("{missing} starts, although {packages} is installed")) }
}

/// Returns why programs on this machine find no OpenCL platform, or `None` if they find one.
fn missing_opencl() -> Option<String> {
    let listing = ["ldconfig", "/sbin/ldconfig"].iter().find_map(|program| {
        let mut command = Command::new(program);
        find_program(program).and_then(|_| output_of(command.arg("-p")))
    });
    let Some(listing) = listing else {
        return Some("no ldconfig, which lists the installed libraries".to_owned());
    };
    let mut drivers: Vec<_> = fs::read_dir(VENDORS)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "icd"))
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    drivers.sort();
    what_is_missing(&listing, &drivers, &|path| path.exists())
}

/// Returns what OpenCL lacks, from the output of `ldconfig -p` and the contents of the driver files.
///
/// A driver file is not enough: containers often have the file without the driver itself.
fn what_is_missing(listing: &str, drivers: &[String], exists: &dyn Fn(&Path) -> bool) -> Option<String> {
    if !listing.lines().any(|line| line.trim_start().starts_with(LOADER)) {
        return Some(format!("no OpenCL loader ({LOADER})"));
    }
    if drivers.is_empty() {
        return Some(format!("no OpenCL driver ({VENDORS}/*.icd)"));
    }
    let folders: BTreeSet<_> =
        listing.lines().filter_map(|line| Path::new(line.split_once("=> ")?.1).parent()).collect();
    let usable = |driver: &String| match Path::new(driver.trim()) {
        library if library.is_absolute() => exists(library),
        library => folders.iter().any(|folder| exists(&folder.join(library))),
    };
    if drivers.iter().any(usable) {
        return None;
    }
    let named = drivers.iter().map(|driver| driver.trim()).collect::<Vec<_>>().join(", ");
    Some(format!("no OpenCL driver: {VENDORS} names {named}, which does not exist"))
}

/// Installs packages without confirmation. Updates the package lists only if the installation fails without.
pub(crate) fn install(packages: &[&str]) -> Result<(), String> {
    if find_program("apt-get").is_none() {
        return Err("this machine has no apt-get".to_owned());
    }
    let prefix: &[&str] = if output_of(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0") {
        &["env"]
    } else if succeeds_quietly(Command::new("sudo").args(["-n", "true"])) {
        &["sudo", "-n", "env"]
    } else {
        return Err("needs root, or sudo without a password".to_owned());
    };
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]);
        // Without a network, the command fails soon. If another package manager holds the lock, it waits.
        command.args([
            "-o",
            "Acquire::Retries=1",
            "-o",
            "Acquire::http::Timeout=20",
            "-o",
            "DPkg::Lock::Timeout=120",
        ]);
        shell::run(command.args(arguments))
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    apt_get(&install)
        .or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&install)))
        .map_err(|reason| format!("apt-get: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "2 libs found in cache `/etc/ld.so.cache'
\tlibpocl.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libpocl.so.2
\tlibOpenCL.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libOpenCL.so.1
";

    fn missing(listing: &str, drivers: &[&str], present: &[&str]) -> Option<String> {
        let drivers: Vec<_> = drivers.iter().map(|&driver| driver.to_owned()).collect();
        what_is_missing(listing, &drivers, &|path| present.iter().any(|&there| Path::new(there) == path))
    }

    #[test]
    fn a_platform_is_a_loader_and_a_driver_whose_library_is_there() {
        let library = "/lib/x86_64-linux-gnu/libpocl.so.2.10.0";
        assert_eq!(missing(LISTING, &["libpocl.so.2.10.0\n"], &[library]), None);
        assert_eq!(missing(LISTING, &["libnvidia-opencl.so.1", library], &[library]), None);
        assert!(missing("", &["libpocl.so.2.10.0"], &[library]).unwrap().contains("loader"));
        assert!(missing(LISTING, &[], &[library]).unwrap().contains("*.icd"));
    }

    #[test]
    fn a_driver_file_without_its_library_is_no_platform() {
        let problem = missing(LISTING, &["libnvidia-opencl.so.1\n"], &[]).unwrap();
        assert!(problem.contains("names libnvidia-opencl.so.1, which does not exist"), "{problem}");
    }

    #[test]
    fn what_the_caller_expects_is_kept() {
        assert_eq!(also_expecting(None, "opencl"), "opencl");
        assert_eq!(also_expecting(Some("cuda"), "opencl"), "cuda,opencl");
        assert_eq!(also_expecting(Some("cuda, opencl"), "opencl"), "cuda, opencl");
    }

    #[test]
    fn everything_after_the_dashes_goes_to_nextest() {
        let parse =
            |words: &[&str]| Options::parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        let options = parse(&["--no-install", "--", "--no-install", "--", "x"]).unwrap();
        assert_eq!(options.installing, Installing::Never);
        assert_eq!(options.for_nextest, ["--no-install", "--", "x"]);
        assert_eq!(parse(&[]).unwrap().installing, Installing::WhereAllowed);
        assert!(matches!(parse(&["state"]), Err(Failure::Usage(_))));
    }
}
