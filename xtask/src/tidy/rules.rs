//! The rules about Rust files, one function each.
//!
//! | rule | where | forbids |
//! |---|---|---|
//! | `unsafe-place` | all but [`UNSAFE_PLACES`] | the keyword `unsafe` |
//! | `safety-comment` | everywhere | an unsafe block or implementation without a `// SAFETY:` comment |
//! | `sync-names` | all but `dml-core/src/base/sync` and the models in `tests` | naming `parking_lot` or `loom` |
//! | `core-frameworks` | `dml-core` | naming a memory framework |
//! | `scheduler-arenas` | `dml-scheduler` | naming an arena |
//! | `rooms` | `dml-core/src`, `dml-scheduler/src` | an import from a room further up, or by way of the crate's root |
//! | `state-purity` | `dml-core/src/state` | clocks, threads, locks, atomics, I/O |
//! | `file-length` | everywhere | more than 800 lines |
//! | `placeholder` | everywhere | `todo!`, `unimplemented!`, `dbg!` |
//!
//! The rules do not read comments. The rules about names and about purity exempt tests. Those about
//! frameworks and arenas read strings too, because comparing with a string also names a framework.

use super::Violation;
use super::paths::{NamedPath, named_paths};
use super::source::{Line, SourceFile, identifiers};

/// Where `unsafe` may stand: the arenas, borrowed data of cached threads, what keeps a buffer alive, host
/// memory, requests that only core makes, and launches of kernels on devices.
const UNSAFE_PLACES: &[&str] = &[
    "dml-app/src/application.rs",
    "dml-app/src/launch.rs",
    "dml-app/src/prepared.rs",
    "dml-arenas/",
    "dml-energy/src/nvml.rs",
    "dml-energy/tests/energy.rs",
    "dml-core/src/base/gate.rs",
    "dml-core/src/buffer/handle.rs",
    "dml-core/src/memory/foreign.rs",
    "dml-core/src/memory/host.rs",
    "dml-core/src/memory/host/",
    "dml-core/src/memory/request.rs",
    "dml-workloads/src/by_hand/",
    "dml-workloads/src/prepare/variants.rs",
    "dml-workloads/src/slam/hand.rs",
    "dml-workloads/src/slam/layered.rs",
    "dml-workloads/src/table1/hand.rs",
    "dml-workloads/src/table1/layered.rs",
    "dml-workloads/tests/by_hand.rs",
    "examples/acquire.rs",
    "examples/bound.rs",
    "examples/coexecute.rs",
    "examples/heat.rs",
    "examples/mini_framework/runtime.rs",
    "examples/offload.rs",
    "examples/policy.rs",
    "examples/saxpy.rs",
    "examples/shared.rs",
    "examples/submit.rs",
    "examples/transfers.rs",
    "src/bin/dml/run.rs",
    "tests/functions.rs",
    "tests/analysing.rs",
    "tests/observing.rs",
    "tests/kernels/",
    "tests/iterating.rs",
    "tests/launching.rs",
    "tests/programs.rs",
    "tests/submitting/",
    "tests/loom/helpers.rs",
];

/// Past this a file wants a second room.
const MOST_LINES: usize = 800;

/// The memory frameworks, in the spelling of [`snake_words`].
const FRAMEWORKS: &[&str] =
    &["opencl", "open_cl", "pocl", "cl_mem", "cuda", "cudarc", "cudeviceptr", "rocm", "sycl", "vulkan"];

/// The arenas by their own names, in the same spelling.
const ARENAS: &[&str] = &["opencl", "open_cl", "cl_mem", "cuda", "cudeviceptr", "main_mem", "dml_arenas"];

/// What the abstract machine must not reach for, as the first two segments of a path.
const IMPURE_PATHS: &[(&str, &str)] = &[
    ("std", "env"),
    ("std", "fs"),
    ("std", "io"),
    ("std", "net"),
    ("std", "process"),
    ("std", "sync"),
    ("std", "thread"),
    ("std", "time"),
    ("core", "sync"),
    ("core", "time"),
    ("alloc", "sync"),
    ("crate", "sync"),
];

/// The rooms of a crate, each of which may import from those before it.
const ROOMS: &[(&str, &[&str])] = &[
    ("dml-core/src/", &["base", "memory", "state", "platform", "buffer", "request"]),
    (
        "dml-scheduler/src/",
        &["base", "policy", "report", "kernel", "check", "model", "plan", "run", "iterate"],
    ),
];

/// What it must not use even when it came in by another name's path.
const IMPURE_NAMES: &[&str] =
    &["Mutex", "RwLock", "Condvar", "Once", "OnceLock", "LazyLock", "Barrier", "Instant", "SystemTime"];

/// A line number and what is wrong there.
type Finding = (usize, String);
/// A name and what finds the places that break it.
type Rule = (&'static str, fn(&SourceFile) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("unsafe-place", unsafe_place),
    ("safety-comment", safety_comment),
    ("sync-names", sync_names),
    ("core-frameworks", core_frameworks),
    ("scheduler-arenas", scheduler_arenas),
    ("rooms", rooms),
    ("state-purity", state_purity),
    ("file-length", file_length),
    ("placeholder", placeholder),
];

/// Applies every rule to a file.
pub(super) fn check(file: &SourceFile) -> Vec<Violation> {
    let violation = |rule, (line, text)| Violation { path: file.path.clone(), line, rule, text };
    RULES
        .iter()
        .flat_map(|&(rule, apply)| apply(file).into_iter().map(move |found| violation(rule, found)))
        .collect()
}

fn unsafe_place(file: &SourceFile) -> Vec<Finding> {
    if UNSAFE_PLACES.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    file.numbered_lines()
        .filter(|(_, line)| identifiers(&line.code).any(|(_, word)| word == "unsafe"))
        .map(|(number, line)| (number, format!("only {} may: {}", UNSAFE_PLACES.join(", "), line.raw.trim())))
        .collect()
}

fn safety_comment(file: &SourceFile) -> Vec<Finding> {
    let opens = |index: usize| {
        let code = &file.lines[index].code;
        identifiers(code).filter(|&(_, word)| word == "unsafe").any(|(start, word)| {
            let here = code[start + word.len()..].trim_start();
            let next = file.lines.get(index + 1).map_or("", |line| line.code.trim_start());
            let after = if here.is_empty() { next } else { here };
            after.starts_with('{') || identifiers(after).next().is_some_and(|word| word == (0, "impl"))
        })
    };
    (0..file.lines.len())
        .filter(|&index| opens(index) && !has_safety_comment(&file.lines, index))
        .map(|index| (index + 1, format!("no `// SAFETY:` above: {}", file.lines[index].raw.trim())))
        .collect()
}

/// Does a `SAFETY:` comment stand on the line, or above the statement that the line belongs to?
fn has_safety_comment(lines: &[Line], index: usize) -> bool {
    let says_so = |line: &Line| line.comment.contains("SAFETY:");
    if says_so(&lines[index]) {
        return true;
    }
    let mut above = lines[..index].iter().rev().peekable();
    // The rest of the statement, and attributes.
    let ends_something = |code: &str| {
        code.is_empty() || code.ends_with([';', '{', '}']) || (code.ends_with(',') && code.contains("=>"))
    };
    while above.next_if(|line| !ends_something(line.code.trim())).is_some() {}
    // The comment that touches it.
    above.take_while(|line| line.code.trim().is_empty() && !line.comment.trim().is_empty()).any(says_so)
}

fn sync_names(file: &SourceFile) -> Vec<Finding> {
    let models = file.path == "tests/loom.rs" || file.path.starts_with("tests/loom/");
    if models || file.path.starts_with("dml-core/src/base/sync/") {
        return Vec::new();
    }
    file.numbered_lines()
        .flat_map(|(number, line)| identifiers(&line.code).map(move |(_, word)| (number, word)))
        .filter(|(_, word)| matches!(*word, "parking_lot" | "loom"))
        .map(|(number, word)| (number, format!("`{word}` is named by dml-core/src/base/sync alone")))
        .collect()
}

fn core_frameworks(file: &SourceFile) -> Vec<Finding> {
    names_in(file, "dml-core/", FRAMEWORKS, "dml-core knows no memory framework")
}

fn scheduler_arenas(file: &SourceFile) -> Vec<Finding> {
    names_in(file, "dml-scheduler/", ARENAS, "dml-scheduler knows no arena")
}

/// The names of `list` in the code and the strings of a crate, outside its tests.
fn names_in(file: &SourceFile, folder: &str, list: &[&str], why: &str) -> Vec<Finding> {
    if !file.path.starts_with(folder) {
        return Vec::new();
    }
    file.production_lines()
        .flat_map(|(number, line)| identifiers(&line.literal).map(move |(_, word)| (number, word)))
        .filter(|(_, word)| is_named(word, list))
        .map(|(number, word)| (number, format!("`{word}`: {why}")))
        .collect()
}

/// Is one of the names in the list, as whole words of the identifier?
fn is_named(identifier: &str, list: &[&str]) -> bool {
    let spellings = [format!("_{}_", snake_words(identifier)), format!("_{}_", identifier.to_lowercase())];
    list.iter().any(|name| spellings.iter().any(|spelling| spelling.contains(&format!("_{name}_"))))
}

/// `OpenClArena`, `OPENCL_ARENA` and `opencl3` as `open_cl_arena`, `opencl_arena` and `opencl_3`.
fn snake_words(identifier: &str) -> String {
    let mut words = String::new();
    let mut before = '_';
    let mut rest = identifier.chars().peekable();
    while let Some(character) = rest.next() {
        let capital_begins = character.is_uppercase()
            && (before.is_lowercase()
                || (before.is_uppercase() && rest.peek().is_some_and(|c| c.is_lowercase())));
        let number_begins =
            character.is_ascii_digit() != before.is_ascii_digit() && character != '_' && before != '_';
        if capital_begins || number_begins {
            words.push('_');
        }
        words.extend(character.to_lowercase());
        before = character;
    }
    words
}

fn state_purity(file: &SourceFile) -> Vec<Finding> {
    if !file.path.starts_with("dml-core/src/state/") {
        return Vec::new();
    }
    let code = file.production_lines().map(|(number, line)| (number, line.code.as_str()));
    named_paths(code)
        .into_iter()
        .filter(|path| is_impure(&path.segments))
        .map(|path| {
            (path.line, format!("the abstract machine is pure, not so `{}`", path.segments.join("::")))
        })
        .collect()
}

/// Imports from a room further up, or by way of the crate's root, in the crates whose rooms have an order.
fn rooms(file: &SourceFile) -> Vec<Finding> {
    let place = ROOMS.iter().find_map(|(folder, rooms)| {
        let (room, inside) = file.path.strip_prefix(folder)?.split_once('/')?;
        Some((*rooms, room, inside))
    });
    let Some((rooms, room, inside)) = place else { return Vec::new() };
    let rank = |name: &str| rooms.iter().position(|room| *room == name);
    let Some(own) = rank(room) else {
        return vec![(1, format!("`{room}` is none of the rooms: {}", rooms.join(", ")))];
    };
    // How many modules up from this file the root of the crate is.
    let depth = 1 + inside.split('/').filter(|part| *part != "mod.rs").count();
    let code = file.production_lines().map(|(number, line)| (number, line.code.as_str()));
    let finding = |path: NamedPath| {
        let segments: Vec<_> = path.segments.iter().map(String::as_str).collect();
        let climbs = segments.iter().take_while(|segment| **segment == "super").count();
        let named = match segments[..] {
            ["crate", named, ..] => named,
            _ if climbs == depth => segments.get(climbs).copied()?,
            _ => return None,
        };
        match rank(named) {
            Some(rank) if rank <= own => None,
            Some(_) => Some((path.line, format!("`{room}` stands below `{named}`"))),
            None => Some((path.line, format!("`{named}` is imported from the room where it is"))),
        }
    };
    named_paths(code).into_iter().filter_map(finding).collect()
}

fn is_impure(segments: &[String]) -> bool {
    let mut segments: Vec<_> = segments.iter().map(String::as_str).collect();
    let climbs = segments.iter().take_while(|segment| matches!(**segment, "self" | "super")).count();
    if climbs > 0 {
        segments.splice(..climbs, ["crate"]);
    }
    let starts_impure = match segments[..] {
        ["crate", "base", third, ..] => IMPURE_PATHS.contains(&("crate", third)),
        [first, second, ..] => IMPURE_PATHS.contains(&(first, second)),
        _ => false,
    };
    let is_atomic = |segment: &&str| {
        segment.strip_prefix("Atomic").is_some_and(|kind| kind.starts_with(char::is_uppercase))
    };
    starts_impure || segments.iter().any(|segment| IMPURE_NAMES.contains(segment) || is_atomic(segment))
}

fn file_length(file: &SourceFile) -> Vec<Finding> {
    let lines = file.lines.len();
    if lines <= MOST_LINES {
        Vec::new()
    } else {
        vec![(lines, format!("{lines} lines, {MOST_LINES} are allowed"))]
    }
}

fn placeholder(file: &SourceFile) -> Vec<Finding> {
    file.numbered_lines()
        .flat_map(|(number, line)| {
            identifiers(&line.code).map(move |(start, word)| (number, start, word, line))
        })
        .filter(|(_, _, word, _)| matches!(*word, "todo" | "unimplemented" | "dbg"))
        .filter(|(_, start, word, line)| {
            let after = &line.code[start + word.len()..];
            after.starts_with('!') && !after.starts_with("!=")
        })
        .map(|(number, _, word, _)| (number, format!("`{word}!` is left")))
        .collect()
}

#[cfg(test)]
mod tests;
