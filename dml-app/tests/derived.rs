//! Parts that a file does not declare are derived from the kernels.

#![allow(clippy::single_range_in_vec_init, reason = "a part is a list of ranges")]

use dml_analysis::{Analysis, Language, Source};
use dml_app::{Application, Basis, Changes, analysed};
use dml_core::Access;
use dml_scheduler::{Argument, Kernel};
use dml_verify::Shape;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/apps")
}

/// Removes the declared parts of a file. Returns them as `array, key, part`, and the text without.
fn without_parts(text: &str) -> (Vec<(String, String, String)>, String) {
    let (mut parts, mut rest) = (Vec::new(), String::new());
    for line in text.lines() {
        let of = |key: &str| {
            let (before, after) = line.split_once(&format!(", {key} = \""))?;
            let (part, after) = after.split_once('"')?;
            let array = before.split_once("array = \"")?.1.trim_end_matches('"');
            Some(((array.to_owned(), key.to_owned(), part.to_owned()), format!("{before}{after}")))
        };
        let found = ["reads", "writes", "updates"].into_iter().find_map(of);
        let line = found.map_or_else(
            || line.to_owned(),
            |(part, line)| {
                parts.push(part);
                line
            },
        );
        rest += &(line + "\n");
    }
    (parts, rest)
}

#[test]
fn examples_need_no_declared_parts() {
    for name in ["stencil2d", "matmul", "nbody"] {
        let path = examples().join(name).join(format!("{name}.toml"));
        let (declared, text) = without_parts(&fs::read_to_string(&path).expect("an example"));
        assert!(declared.len() > 1, "{name}");
        let application = Application::from_text(&path, &text, &Changes::new()).expect(name);
        assert!(application.parts().iter().all(|part| part.basis == Basis::Proven));
        let derived = application.parts().into_iter().map(|part| {
            let access = match part.access {
                Access::ReadOnly => "reads",
                Access::WriteInvalidate => "writes",
                _ => "updates",
            };
            (part.array, access.to_owned(), part.part.expect("a part with a name"))
        });
        assert_eq!(derived.collect::<Vec<_>>(), declared, "{name}");
    }
}

const FILE: &str = r#"
[arrays]
a = { type = "float", shape = [64, 1000], from = { random = 1 } }
b = { type = "float", shape = [64, 1000] }
k = { type = "int", shape = [64000] }
[kernels.f]
opencl = "f.cl"
items = { x = 1000, y = 64 }
group = { x = 8, y = 4 }
arguments = [{ array = "a" }, { array = "b" }, { array = "k" }, { int = 3 }]
[[run]]
kernel = "f"
"#;

/// The derived parts of a kernel with this body, or the mistakes.
fn parts(body: &str, change: impl Fn(&str) -> String) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let source = format!(
        "kernel void f(global float *a, global float *b, global int *k, int n) {{\n\
         int x = get_global_id(0), y = get_global_id(1), i = y * 1000 + x;\n{body}\n}}\n"
    );
    fs::write(folder.path().join("f.cl"), source).expect("it can be written");
    match Application::from_text(folder.path().join("app.toml"), &change(FILE), &Changes::new()) {
        Err(error) => error.to_string().replace(&folder.path().display().to_string(), ""),
        Ok(application) => {
            let one = |part: dml_app::ArrayPart| {
                format!("{} {:?} {}", part.array, part.access, part.part.as_deref().unwrap_or("-"))
            };
            application.parts().into_iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn parts_have_the_names_of_the_file() {
    for (body, expected) in [
        (
            "b[i] = a[i] + a[i - n * 1000] + k[i];",
            "a ReadOnly rows(3, 0), b WriteInvalidate rows, k ReadOnly 1000 elements",
        ),
        ("if (a[i] > 0) b[i] = k[y];", "a ReadOnly rows, b ReadWrite rows, k ReadOnly elements"),
        ("b[i] = a[y] + k[2 * y + 1];", "a ReadOnly -, b WriteInvalidate rows, k ReadOnly -"),
    ] {
        assert_eq!(parts(body, str::to_owned), expected, "{body}");
    }
    let along_x = |text: &str| text.replace("group =", "split = \"x\"\ngroup =");
    let expected = "a ReadOnly columns, b WriteInvalidate columns, k ReadOnly -";
    assert_eq!(parts("b[i] = a[i] + k[0] + k[63999];", along_x), expected);
}

#[test]
fn what_is_not_derived_is_told_with_its_place() {
    for (body, expected) in [
        (
            "b[k[i]] = a[i];",
            "/f.cl:3:2: an index that is not known before the kernel runs: a value from a buffer at 3:4",
        ),
        (
            "b[0] = a[i]; k[i] = 1;",
            "may touch its byte 0: expected a declared part, `reduces`, or `undivided = true`",
        ),
        ("atomic_add(&k[0], 1); b[i] = a[i];", "parameter k is changed atomically: expected `reduces`"),
        ("b[i] = a[i];", "what items touch of k is not derived: the kernel does not touch it"),
        ("goto end; end: return;", "/f.cl:3:1: `goto`, which is not followed"),
    ] {
        let found = parts(body, str::to_owned);
        assert!(found.contains(expected), "{body}: {found}");
    }
    let other =
        |text: &str| text.replace("[kernels.f]", "[kernels.g]").replace("kernel = \"f\"", "kernel = \"g\"");
    assert!(parts("b[i] = a[i];", other).contains("no source defines a kernel g"));
    let without_int = |text: &str| text.replace(", { int = 3 }", ", { int = 3 }, { int = 4 }");
    assert!(parts("b[i] = a[i]; k[i] = 1;", without_int).contains("f has 4 parameters, not 5"));
}

const PROGRAM: &str = "
    kernel void blur(global const float *from, global float *to, uint n, ulong end) {
        uint i = get_global_id(0);
        if (i >= end || i >= n) return;
        to[i] = i > 0 && i + 1 < n ? (from[i - 1] + from[i] + from[i + 1]) / 3 : from[i];
    }
    kernel void look(global const uint *at, global float *table, global float *to, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) to[i] = table[at[i]];
    }
    kernel void put(global const uint *at, global float *table, global float *to, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) table[at[i]] = to[i];
    }
    kernel void count(global const uint *from, global uint *sums, local uint *own) {
        own[get_local_id(0)] = from[get_global_id(0)];
        if (get_local_id(0) == 0) sums[get_group_id(0)] = own[0];
    }
    kernel void shift(global const float *from, global float *to, int2 by, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) to[i] = from[min((int)i + by.x + by.y, 999)];
    }
    kernel void add(global uint *sum) { atomic_inc(sum); }";

fn analysis(kernel: &str) -> Analysis {
    Source::new(PROGRAM, Language::OpenCl, &[]).kernel(kernel).expect("it is analysed")
}

#[test]
fn kernels_of_programs_get_the_parts_of_their_source() {
    let platform = Shape::Pair.build();
    let buffer = |items| platform.buffer::<f32>(items).label("some").build().expect("a buffer");
    let (from, to) = (buffer(1000), buffer(1000));
    let blur = Kernel::new("blur", 64).read_all(&from).read_write_all(&to).scalar(1000_u32).end();
    let mut blur = analysed(blur, 1000, &analysis("blur")).expect("it is analysed");
    let parts = |kernel: &Kernel, items: Range<u64>| {
        let part = |of: &Argument| (of.access(), of.ranges(items.clone()));
        kernel.arguments().iter().map(part).collect::<Vec<_>>()
    };
    let reads = |bytes: Range<u64>| (Access::ReadOnly, Ok(vec![bytes]));
    let writes = |bytes: Range<u64>| (Access::WriteInvalidate, Ok(vec![bytes]));
    assert_eq!(parts(&blur, 64..128), [reads(63 * 4..129 * 4), writes(64 * 4..128 * 4)]);
    assert_eq!(parts(&blur, 960..1000), [reads(959 * 4..4000), writes(960 * 4..4000)]);
    // Parts follow scalars.
    blur.set_scalar(2, 100_u32).expect("it is one");
    assert_eq!(parts(&blur, 64..128), [reads(63 * 4..400), writes(64 * 4..400)]);

    // What is read completely may be read at any place.
    let look = |name: &str| {
        Kernel::new(name, 64).read_all(&buffer(1000)).read_all(&buffer(50)).read_write_all(&to).end()
    };
    let looked = analysed(look("look"), 1000, &analysis("look")).expect("it is analysed");
    assert_eq!(parts(&looked, 64..128), [reads(256..512), reads(0..200), writes(256..512)]);
    let refused =
        |kernel: Kernel, name: &str| analysed(kernel, 1000, &analysis(name)).unwrap_err().to_string();
    let told = refused(look("put"), "put");
    assert!(told.starts_with("kernel put, argument 1 (\"some\" ("), "{told}");
    let expected =
        "an index that is not known before the kernel runs: a value from a buffer at 13:30; expected";
    assert!(told.contains(expected), "{told}");

    let short = Kernel::new("blur", 64).read_all(&from).read_write_all(&buffer(900)).scalar(1000_u32).end();
    let told = refused(short, "blur");
    assert!(
        told.contains("argument 1 (") && told.contains("touch its bytes up to 4000, and it has 3600"),
        "{told}"
    );

    // Work-groups need a size.
    let count = |local| {
        let kernel = Kernel::new("count", local).read_all(&buffer(1024)).read_write_all(&buffer(16));
        kernel.local_memory(256)
    };
    let counted = analysed(count(64), 1024, &analysis("count")).expect("it is analysed");
    assert_eq!(parts(&counted, 64..192), [reads(256..768), writes(4..12)]);
    assert!(refused(count(0), "count").ends_with("expected a local size"));

    // Vectors of integers.
    let shift = Kernel::new("shift", 64).read_all(&from).read_write_all(&to).value(&[-3_i32, 7]).end();
    let shift = analysed(shift, 1000, &analysis("shift")).expect("it is analysed");
    assert_eq!(parts(&shift, 64..128), [reads(68 * 4..132 * 4), writes(64 * 4..128 * 4)]);

    let add = Kernel::new("add", 1).read_write_all(&buffer(1));
    assert!(
        refused(add.clone(), "add").ends_with("changed atomically: expected `reduces` (`Kernel::reduce`)")
    );
    let alone = analysed(add.undivided(), 10, &analysis("add")).expect("it is analysed");
    assert_eq!(alone.arguments()[0].access(), Access::ReadWrite);
    let scalar = Kernel::new("add", 1).scalar(1_u32).read_write_all(&buffer(1));
    assert!(refused(scalar, "add").ends_with("add has 1 parameters, not 2"));
    let swapped = Kernel::new("blur", 64).read_all(&from).scalar(7_u32).read_write_all(&to).end();
    assert!(refused(swapped, "blur").ends_with("parameter n is no buffer"));
}

#[test]
fn a_scalar_that_leaves_elements_unwritten_fails_the_part() {
    let platform = Shape::Pair.build();
    let [by, to] = [(); 2].map(|()| platform.buffer::<f32>(1024).build().expect("a buffer"));
    let source = "kernel void f(global const float *by, global float *to, uint choosing) {
        uint i = get_global_id(0);
        if (choosing > 0 && by[i] > 0) return;
        to[i] = 1;
    }";
    let analysis = Source::new(source, Language::OpenCl, &[]).kernel("f").expect("it is analysed");
    let kernel = Kernel::new("f", 64).read_all(&by).read_write_all(&to).scalar(0_u32);
    let mut kernel = analysed(kernel, 1024, &analysis).expect("it is analysed");
    assert_eq!(kernel.arguments()[1].access(), Access::WriteInvalidate);
    kernel.set_scalar(2, 1_u32).expect("it is one");
    let fault = kernel.arguments()[1].ranges(64..128).expect_err("elements are left");
    assert!(fault.to_string().contains("the kernel leaves elements unwritten"), "{fault}");
}

#[test]
fn declared_parts_that_contradict_the_source_are_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "kernel void f(global float *a, global float *b, global int *k, int n) {
        int x = get_global_id(0), y = get_global_id(1), i = y * 1000 + x;
        if (y > 0 && a[i - 1000] > 0) b[i] = a[i] + k[y];
    }";
    fs::write(folder.path().join("f.cl"), source).expect("it can be written");
    let notes = |parts: [&str; 3]| {
        let [a, b, k] = parts;
        let text = FILE.replace("\"a\" }, ", &format!("\"a\", {a} }}, "));
        let text = text.replace("\"b\" }, ", &format!("\"b\", {b} }}, "));
        let text = text.replace("\"k\" }, ", &format!("\"k\", {k} }}, "));
        let application = Application::from_text(folder.path().join("app.toml"), &text, &Changes::new());
        let notes = application.expect("it is right").contradictions();
        notes
            .into_iter()
            .map(|note| note.message.split_once(": ").expect("a reason").1.to_owned())
            .collect::<Vec<_>>()
    };
    let [a, b, k] = ["reads = \"rows(1, 0)\"", "updates = \"rows\"", "reads = \"elements\""];
    assert_eq!(notes([a, b, k]), [""; 0]);
    let rows = "items 4..8 touch element 3000 outside of it; derived: \"rows(1, 0)\"";
    let unwritten = "the kernel reads it, or leaves elements unwritten: `updates`";
    assert_eq!(notes(["reads = \"rows\"", "writes = \"rows\"", "reads = \"whole\""]), [rows, unwritten]);
    assert_eq!(notes([a, "reads = \"whole\"", "reads = \"elements + 1\""])[..1], ["the kernel changes it"]);
}
