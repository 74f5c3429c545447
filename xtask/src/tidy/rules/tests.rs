//! Tests of each rule: the violations that it finds, and valid code that it accepts.

use super::*;

/// Returns the lines that violate `rule` in a file at `path` with this text, each once.
fn broken(rule: &str, path: &str, text: &str) -> Vec<usize> {
    let found = check(&SourceFile::new(path, text));
    let mut lines: Vec<_> = found.into_iter().filter(|it| it.rule == rule).map(|it| it.line).collect();
    lines.dedup();
    lines
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let text = "// unsafe\nlet s = \"unsafe\";\n#![allow(unsafe_code)]\nlet x = unsafe { f() };\n";
    for path in [
        "dml-core/src/buffer.rs",
        "dml-scheduler/src/unit.rs",
        "src/lib.rs",
        "tests/a.rs",
        "dml-core/src/a/host.rs",
    ] {
        assert_eq!(broken("unsafe-place", path, text), [4], "{path}");
    }
    for path in ["dml-arenas/src/cuda/arena.rs", "dml-arenas/tests/a.rs", "dml-core/src/memory/host.rs"] {
        assert!(broken("unsafe-place", path, text).is_empty(), "{path}");
    }
}

#[test]
fn an_unsafe_block_without_its_reason_is_found() {
    let path = "dml-arenas/src/a.rs";
    assert_eq!(broken("safety-comment", path, "let x = unsafe { f() };\n"), [1]);
    assert_eq!(broken("safety-comment", path, "// It is fine.\nunsafe impl Send for A {}\n"), [2]);
    assert_eq!(broken("safety-comment", path, "// SAFETY: of f.\nf();\nunsafe { g() }\n"), [3]);
    assert_eq!(broken("safety-comment", path, "// SAFETY: far away.\n\nunsafe { g() }\n"), [3]);
    assert_eq!(
        broken("safety-comment", path, "// SAFETY: of a.\nA => unsafe { a() },\nB => unsafe { b() },\n"),
        [3]
    );
    assert_eq!(broken("safety-comment", path, "let x = unsafe\n{ f() };\n"), [1]);
}

#[test]
fn a_reason_may_stand_above_the_statement_or_beside_it() {
    let texts = [
        "// SAFETY: I-4.\nunsafe { f() }\n",
        "// SAFETY: I-4 holds,\n// and so does I-1.\n#[allow(clippy::x)]\nunsafe impl Send for A {}\n",
        "// SAFETY: I-4.\nlet x =\n    unsafe { f() };\n",
        "// SAFETY: I-4.\ncall(\n    a,\n    unsafe { f() },\n)\n",
        "let x = unsafe { f() }; // SAFETY: I-4.\n",
        "/* SAFETY: I-4. */ unsafe { f() }\n",
    ];
    for text in texts {
        assert!(broken("safety-comment", "dml-arenas/src/a.rs", text).is_empty(), "{text}");
    }
}

#[test]
fn declaring_something_unsafe_needs_no_reason() {
    let text = "pub unsafe fn f() {}\npub unsafe trait T {}\ntype F = unsafe extern \"C\" fn();\n";
    assert!(broken("safety-comment", "dml-arenas/src/a.rs", text).is_empty());
}

#[test]
fn locks_come_from_one_place() {
    let text = "// loom\nuse parking_lot::Mutex;\n#[cfg(dml_loom)]\nuse loom::thread;\n";
    for path in ["dml-core/src/wait.rs", "dml-arenas/src/a.rs", "src/bin/dml/main.rs", "tests/concurrency.rs"]
    {
        assert_eq!(broken("sync-names", path, text), [2, 4], "{path}");
    }
    for path in ["dml-core/src/base/sync/real.rs", "tests/loom.rs", "tests/loom/queue.rs"] {
        assert!(broken("sync-names", path, text).is_empty(), "{path}");
    }
}

#[test]
fn core_names_no_framework_however_it_is_spelled() {
    for code in [
        "use opencl3::memory::cl_mem;",
        "struct OpenClArena;",
        "const CUDA_KIND: u8 = 0;",
        "fn f(p: CUdeviceptr) {}",
        "kind == \"cuda\"",
        "OpenCL",
        "enum A { Cuda }",
    ] {
        assert_eq!(broken("core-frameworks", "dml-core/src/a.rs", &format!("{code}\n")), [1], "{code}");
        assert!(broken("core-frameworks", "dml-arenas/src/a.rs", &format!("{code}\n")).is_empty());
    }
}

#[test]
fn core_may_speak_of_frameworks_in_comments_and_tests() {
    let text = "/// `cl_mem`, a CUDA pointer.\nlet barracuda = 1;\n#[cfg(test)]\nmod tests {\n    const A: &str = \"opencl:0\";\n}\n";
    assert!(broken("core-frameworks", "dml-core/src/a.rs", text).is_empty());
}

#[test]
fn the_scheduler_names_no_arena() {
    for code in
        ["use dml_arenas::MainMem;", "name == \"main_mem\"", "struct CudaUnit;", "fn opencl_unit() {}"]
    {
        assert_eq!(broken("scheduler-arenas", "dml-scheduler/src/a.rs", &format!("{code}\n")), [1], "{code}");
    }
    let allowed = "let domain_memory = remain_members; // not main_mem\n";
    assert!(broken("scheduler-arenas", "dml-scheduler/src/a.rs", allowed).is_empty());
    assert!(broken("scheduler-arenas", "src/bin/dml/main.rs", "use dml_arenas::MainMem;\n").is_empty());
}

#[test]
fn the_abstract_machine_is_pure() {
    for code in [
        "use std::time::Duration;",
        "use std::{collections::BTreeMap, sync::Arc};",
        "use crate::base::{id::BufferId, sync};",
        "use super::super::base::sync::Arc;",
        "std::thread::yield_now();",
        "fn f(lock: &Mutex<u8>) {}",
        "static N: AtomicU64 = AtomicU64::new(0);",
        "let now = Instant::now();",
        "std::fs::read(\"x\");",
        "use std::io::Write;",
    ] {
        assert_eq!(
            broken("state-purity", "dml-core/src/state/plan.rs", &format!("{code}\n"))[0],
            1,
            "{code}"
        );
        assert!(broken("state-purity", "dml-core/src/buffer/engine.rs", &format!("{code}\n")).is_empty());
    }
}

#[test]
fn no_room_imports_from_one_above_it() {
    let found = |path: &str, code: &str| broken("rooms", path, &format!("{code}\n"));
    for (path, code) in [
        ("dml-core/src/state/plan.rs", "use crate::buffer::lock::Locked;"),
        ("dml-core/src/state/plan.rs", "use crate::{base::id::ArenaId, request::grant::Grants};"),
        ("dml-core/src/state/mod.rs", "use super::buffer::RawBuffer;"),
        ("dml-core/src/base/sync/mod.rs", "use super::super::memory::host::HostMemory;"),
        ("dml-core/src/memory/arena.rs", "fn f() -> crate::platform::Platform;"),
        ("dml-core/src/memory/arena.rs", "use crate::ArenaId;"),
        ("dml-core/src/other/arena.rs", "use std::fmt;"),
        ("dml-scheduler/src/kernel/reduction.rs", "use crate::run::commander::Commander;"),
        ("dml-scheduler/src/policy/replay.rs", "use crate::UnitId;"),
        ("dml-scheduler/src/run/unit/desk.rs", "use super::super::super::metrics::balance;"),
    ] {
        assert_eq!(found(path, code), [1], "{path}: {code}");
    }
    for (path, code) in [
        ("dml-core/src/buffer/lock.rs", "use crate::buffer::wait::Wait; use crate::state::Begin;"),
        ("dml-core/src/state/plan.rs", "use super::users::Users; use super::{Alloc, request::Request};"),
        ("dml-core/src/state/plan.rs", "// as crate::request::grant::Grants"),
        ("dml-core/src/lib.rs", "pub use crate::request::grant::Grants;"),
        ("dml-scheduler/src/plan/select.rs", "use crate::policy::explore::Explorer;"),
        ("dml-scheduler/src/lib.rs", "pub use run::Running;"),
        ("dml-timeline/src/events.rs", "use crate::request::Unit;"),
    ] {
        assert!(found(path, code).is_empty(), "{path}: {code}");
    }
}

#[test]
fn the_abstract_machine_may_use_what_is_pure() {
    let text = "\
use std::collections::{BTreeMap, BTreeSet};
use crate::base::id::ArenaId;
use super::segments::Segments;
// A Mutex would be wrong here.
fn sync(plan: SyncPlan) -> Atomicity { plan.sync() }
#[cfg(test)]
mod tests {
    use std::time::Duration;
}
";
    assert!(broken("state-purity", "dml-core/src/state/mod.rs", text).is_empty());
}

#[test]
fn a_file_may_have_eight_hundred_lines_and_no_more() {
    assert!(broken("file-length", "src/a.rs", &"x;\n".repeat(800)).is_empty());
    assert_eq!(broken("file-length", "src/a.rs", &"x;\n".repeat(801)), [801]);
}

#[test]
fn placeholders_are_found_and_words_are_not() {
    let text =
        "todo!()\n// todo!()\nlet a = todo != 1;\nunimplemented!(\"x\");\nlet s = \"dbg!\";\ndbg!(a);\n";
    assert_eq!(broken("placeholder", "examples/a.rs", text), [1, 4, 6]);
}

#[test]
fn identifiers_are_taken_apart_at_their_words() {
    for (identifier, words) in [
        ("OpenClArena", "open_cl_arena"),
        ("OPENCL_ARENA", "opencl_arena"),
        ("opencl3", "opencl_3"),
        ("MainMem", "main_mem"),
        ("HTTPServer", "http_server"),
        ("a_1", "a_1"),
    ] {
        assert_eq!(snake_words(identifier), words);
    }
}
