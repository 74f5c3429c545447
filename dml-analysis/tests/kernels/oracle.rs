//! Oclgrind as an oracle: each access of each work-item in a simulation is within the part of its package.
//!
//! ```text
//!   oracle/accesses.cpp ──g++──▶ a plug-in of Oclgrind (cargo xtask oracle)
//!   kernel, arguments ──oclgrind-kernel──▶ accesses of work-items ──▶ within the parts of their packages?
//! ```
//! `DML_ORACLE` is the path of the plug-in. Without it, the tests are skipped, or fail if `DML_EXPECT` names
//! `oclgrind`.

use super::bodies::{BODIES, kernel_of};
use super::cases::{CASES, Case, launch, text};
use dml_analysis::{Access, Analysis, Language, Launch, ParameterKind, Source};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// An access in a simulation.
struct Simulated {
    is_read: bool,
    /// The position of the buffer among the buffers, from 0.
    buffer: usize,
    offset: u64,
    bytes: u64,
    item: [u64; 3],
}

/// A kernel with its arguments: for each buffer its bytes and how Oclgrind fills it.
struct Run<'a> {
    text: &'a str,
    kernel: &'a str,
    defines: &'a [&'a str],
    launch: Launch,
    buffers: Vec<(u64, &'a str)>,
}

fn plugin() -> Option<PathBuf> {
    let plugin = env::var_os("DML_ORACLE").map(PathBuf::from);
    let expected = env::var("DML_EXPECT").unwrap_or_default();
    assert!(plugin.is_some() || !expected.contains("oclgrind"), "DML_ORACLE is not set");
    if plugin.is_none() {
        eprintln!("skipped: no oracle (cargo xtask oracle)");
    }
    plugin
}

/// Simulates a kernel. Returns its accesses.
fn simulate(plugin: &PathBuf, run: &Run<'_>, analysis: &Analysis) -> Vec<Simulated> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("kernel.cl"), run.text).expect("it can be written");
    let size = |sizes: [u64; 3]| sizes.map(|size| size.to_string()).join(" ");
    let padded = [0, 1, 2].map(|axis| run.launch.sizes[axis].next_multiple_of(run.launch.group[axis]));
    let mut simulation = format!("kernel.cl\n{}\n{}\n{}\n", run.kernel, size(padded), size(run.launch.group));
    let mut buffers = run.buffers.iter();
    for (parameter, integer) in analysis.parameters().iter().zip(&run.launch.integers) {
        let line = match (parameter.kind, &integer[..]) {
            (ParameterKind::Buffer { .. }, _) => {
                let (bytes, filled) = buffers.next().expect("each buffer has a size");
                format!("<size={bytes} {filled}>")
            }
            (ParameterKind::Integer { bytes: 8 }, [value]) => format!("<size=8 long> {value}"),
            (ParameterKind::Integer { .. }, [value]) => format!("<size=4 int> {value}"),
            (ParameterKind::Local, _) => "<size=4096>".to_owned(),
            _ => "<size=4 float> 0.5".to_owned(),
        };
        let _ = writeln!(simulation, "{line}");
    }
    fs::write(folder.path().join("kernel.sim"), simulation).expect("it can be written");
    let mut command = Command::new("oclgrind-kernel");
    let defines: Vec<_> = run.defines.iter().map(|define| format!("-D{define}")).collect();
    command.current_dir(folder.path()).arg("--plugins").arg(plugin).args(["--num-threads", "1"]);
    command.arg("--build-options").arg(format!("-cl-std=CL1.2 {}", defines.join(" "))).arg("kernel.sim");
    let output = command.output().expect("oclgrind-kernel starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("rror"), "{}: {errors}", run.kernel);
    let log = String::from_utf8(output.stdout).expect("text");
    let tables = log.lines().filter(|line| *line == "B").count() - run.buffers.len();
    let mut accesses: Vec<_> = log.lines().filter_map(simulated).collect();
    accesses.retain_mut(|access| {
        access.buffer = access.buffer.wrapping_sub(tables);
        access.buffer < run.buffers.len()
    });
    // A body may do nothing.
    assert!(!accesses.is_empty() || run.kernel == "f", "{}: no accesses: {log}{errors}", run.kernel);
    accesses
}

fn simulated(line: &str) -> Option<Simulated> {
    let (how, numbers) = line.split_at_checked(1)?;
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let [buffer, offset, bytes, x, y, z] = numbers[..] else { return None };
    let buffer = usize::try_from(buffer).ok()?.checked_sub(1)?;
    matches!(how, "R" | "W").then(|| Simulated {
        is_read: how == "R",
        buffer,
        offset,
        bytes,
        item: [x, y, z],
    })
}

/// Compares a simulation with the parts of packages. Returns what differs, and how many buffers are refused.
fn compare(plugin: &PathBuf, run: &Run<'_>) -> (Vec<String>, usize) {
    let defines: Vec<_> = run.defines.iter().map(|define| (*define).to_owned()).collect();
    let source = Source::new(run.text, Language::OpenCl, &defines);
    let Ok(analysis) = source.kernel(run.kernel) else { return (Vec::new(), run.buffers.len()) };
    let accesses = simulate(plugin, run, &analysis);
    let launched = analysis.launch(&run.launch);
    let (axis, mut wrong, mut refused) = (run.launch.axis, Vec::new(), 0);
    let (items, group) = (run.launch.sizes[axis], run.launch.group[axis]);
    let positions = analysis.parameters().iter().enumerate();
    let positions = positions.filter(|(_, of)| matches!(of.kind, ParameterKind::Buffer { .. }));
    for (buffer, (position, parameter)) in positions.enumerate() {
        let (len, _) = run.buffers[buffer];
        for begin in (0..items).step_by(group as usize) {
            let package = begin..(begin + group).min(items);
            let Ok(part) = launched.part(position, package.clone(), len) else {
                refused += 1;
                break;
            };
            let (mut reads, mut writes) = (vec![false; len as usize], vec![false; len as usize]);
            // Groups are whole.
            let is_own = |access: &&Simulated| {
                access.buffer == buffer && (begin..begin + group).contains(&access.item[axis])
            };
            for access in accesses.iter().filter(is_own) {
                let bytes = if access.is_read { &mut reads } else { &mut writes };
                // What is beyond the buffer is a mistake of the kernel.
                let end = (access.offset + access.bytes).min(len);
                (access.offset.min(end)..end).for_each(|byte| bytes[byte as usize] = true);
            }
            let is_within = |byte: usize| part.bytes.iter().any(|range| range.contains(&(byte as u64)));
            let what = |byte: usize, how: &str| {
                format!("{}: {} byte {byte} is {how} by {package:?}: {part:?}", run.kernel, parameter.name)
            };
            for byte in 0..len as usize {
                let (read, written) = (reads[byte], writes[byte]);
                if (read || written) && !is_within(byte) {
                    wrong.push(what(byte, "touched outside"));
                }
                let how = match part.access {
                    Access::None if read || written => "touched",
                    Access::Reads if written => "written",
                    Access::Overwrites if read => "read",
                    Access::Overwrites if is_within(byte) && !written => "left",
                    _ => continue,
                };
                wrong.push(what(byte, how));
            }
        }
    }
    wrong.truncate(4);
    (wrong, refused)
}

fn project(case: &Case) -> Option<(Vec<String>, usize)> {
    if case.path.ends_with(".cu") {
        return None;
    }
    let plugin = plugin()?;
    let text = text(case.path);
    let source = Source::new(&text, Language::OpenCl, &["HAS_DOUBLES".to_owned()]);
    let analysis = source.kernel(case.kernel).expect("it is analysed");
    let launch = launch(case, &analysis, case.sizes[case.axis]);
    let buffers = case.buffers.iter().map(|(_, rows, row, ..)| (rows * row, "float fill=1.5")).collect();
    let run = Run { text: &text, kernel: case.kernel, defines: &["HAS_DOUBLES"], launch, buffers };
    Some(compare(&plugin, &run))
}

fn body(body: &str) -> Option<(Vec<String>, usize)> {
    // A function that is not there cannot be simulated.
    if ["unknown(", "WHO", "goto end"].iter().any(|word| body.contains(word)) {
        return None;
    }
    let plugin = plugin()?;
    let launch = Launch {
        sizes: [64, 1, 1],
        group: [16, 1, 1],
        axis: 0,
        integers: vec![vec![], vec![], vec![], vec![64]],
    };
    let values = "float range=-20:1:43";
    let buffers = vec![(256, values), (256, values), (256, "int range=0:1:63")];
    let text = kernel_of(body);
    let (mut wrong, refused) =
        compare(&plugin, &Run { text: &text, kernel: "f", defines: &[], launch, buffers });
    wrong.iter_mut().for_each(|wrong| *wrong += &format!(" in {body}"));
    Some((wrong, refused))
}

fn check(results: impl Iterator<Item = Option<(Vec<String>, usize)>>) {
    let (mut wrong, mut kernels, mut refused) = (Vec::new(), 0, 0);
    for (of_kernel, of_buffers) in results.flatten() {
        kernels += 1;
        refused += of_buffers;
        wrong.extend(of_kernel);
    }
    eprintln!("{kernels} kernels, {refused} buffers refused");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn five_kernels_are_as_simulated() {
    let names = ["stencil2d", "stencil_local", "matmul_local", "nbody"];
    let first = |name: &&str| CASES.iter().find(|case| case.kernel == *name).expect("a case");
    check(names.iter().map(first).map(project).chain([body(BODIES[0].0)]));
}

#[test]
#[ignore = "long: cargo xtask oracle"]
fn all_kernels_are_as_simulated() {
    check(CASES.iter().map(project).chain(BODIES.iter().map(|(text, _)| body(text))));
}
