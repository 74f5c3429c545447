//! Mistakes in application files, each with its place and what was expected.

use dml_app::{Application, ApplicationError, Changes};
use std::fs;
use tempfile::TempDir;

/// A file without mistakes, from which each case differs in one place.
const RIGHT: &str = r#"name = "smooth"
[parameters]
n = 100
steps = 10
weight = 0.5
[arrays]
from = { type = "float", shape = ["n", 20], from = { random = 1 } }
to = { type = "float", shape = ["n", 20], to = "out.npy" }
count = { type = "int", shape = [1] }
table = { type = "float", shape = ["entries"], from = { file = "table.npy" } }
[kernels.step]
opencl = "step.cl"
items = { x = 20, y = "n" }
arguments = [
  { array = "from", reads = "rows(1)" },
  { array = "to", writes = "rows" },
  { array = "table", reads = "whole" },
  { float = "weight" },
  { uint = "n" },
]
[kernels.change]
opencl = "step.cl"
items = { x = "n" }
group = { x = 64 }
arguments = [{ array = "from", reads = "rows" }, { array = "count", reduces = "sum" }]
[[run]]
repeat = "steps"
until = "count < 5"
run = [{ kernel = "step" }, { swap = ["from", "to"] }, { kernel = "change", every = 5 }]
"#;

/// What is replaced, by what, and the mistakes.
const CASES: &[(&str, &str, &str)] = &[
    // Syntax and keys.
    ("[parameters]", "[parameters", "2:12: unclosed table, expected `]`"),
    ("n = 100", "n = 100 m", "3:5: string values must be quoted, expected literal string"),
    ("n = 100", "n = 100\nn = 200", "4:1: duplicate key"),
    (
        "[arrays]",
        "[array]",
        "6:2: unknown field `array`, expected one of `name`, `parameters`, `arrays`, `kernels`, `run`",
    ),
    (
        "shape = [1]",
        "shap = [1]",
        "9:25: unknown field `shap`, expected one of `type`, `shape`, `from`, `to`",
    ),
    (
        "type = \"int\"",
        "type = \"integer\"",
        "9:18: unknown variant `integer`, expected one of `char`, `uchar`, `short`, `ushort`, `int`, `uint`, `long`, `ulong`, `float`, `double`",
    ),
    ("type = \"int\", shape", "shape", "9:9: missing field `type`"),
    ("items = { x = \"n\" }\n", "", "21:1: missing field `items`"),
    (
        "shape = [1]",
        "shape = 1",
        "9:33: invalid type: integer `1`, expected an array: [...], or [[...]] for one of tables",
    ),
    (
        "n = 100",
        "n = true",
        "3:5: invalid type: boolean `true`, expected a number, or an expression such as \"n / 2\"",
    ),
    ("group = { x = 64 }", "group = { w = 64 }", "24:11: unknown field `w`, expected one of `x`, `y`, `z`"),
    (
        "reduces = \"sum\"",
        "reduces = \"mean\"",
        "25:79: unknown variant `mean`, expected one of `sum`, `product`, `min`, `max`",
    ),
    (
        "{ uint = \"n\" }",
        "{ unsigned = \"n\" }",
        "19:5: unknown field `unsigned`, expected one of `array`, `reads`, `writes`, `updates`, `reduces`, `local`, `char`, `uchar`, `short`, `ushort`, `int`, `uint`, `long`, `ulong`, `float`, `double`",
    ),
    (
        "[[run]]",
        "[[runs]]",
        "26:3: unknown field `runs`, expected one of `name`, `parameters`, `arrays`, `kernels`, `run`",
    ),
    (
        "every = 5",
        "evry = 5",
        "29:77: unknown field `evry`, expected one of `kernel`, `every`, `swap`, `repeat`, `until`, `run`",
    ),
    ("[[run]]", "[run]", "26:1: invalid type: table, expected an array: [...], or [[...]] for one of tables"),
    // Numbers and names.
    ("n = 100", "n = 99999999999999999999", "3:5: the number is too large for 64 bits"),
    ("n = 100", "n = \"m * 2\"", "3:5: there is no parameter `m`: there are none"),
    ("steps = 10", "steps = \"n *\"", "4:9: expected a number or a parameter in \"n *\", found the end"),
    ("steps = 10", "steps = \"n / (n - 100)\"", "4:9: 100 / 0 has no value"),
    (
        "[kernels.change]",
        "[kernels.\"the change\"]",
        "21:10: expected a name of letters, digits and `_`, found `the change`",
    ),
    ("shape = [1]", "shape = [0]", "9:34: 0 is no integer of at least 1"),
    ("shape = [1]", "shape = [1.5]", "9:34: 1.5 is no integer of at least 1"),
    ("shape = [1]", "shape = []", "9:33: expected one to three axes, found 0"),
    ("shape = [1]", "shape = [1, 1, 1, 1]", "9:33: expected one to three axes, found 4"),
    (
        "shape = [1]",
        "shape = [\"1000000000 * 1000000000\"]",
        "9:33: an array of [1000000000000000000] is too large",
    ),
    // Contents.
    ("{ random = 1 }", "{ }", "7:52: expected one of `file`, `random` and `value`"),
    ("{ random = 1 }", "{ random = 1, value = 2 }", "7:52: expected one of `file`, `random` and `value`"),
    ("{ random = 1 }", "{ value = 1, low = 0 }", "7:71: only `random` has `low` and `high`"),
    ("{ random = 1 }", "{ random = 1, low = 2 }", "7:52: there is no number from 2 up to 1"),
    (
        "shape = [1] }",
        "shape = [1], from = { value = 0.5 } }",
        "9:55: 0.5 is no integer of the type int: -2147483648 to 2147483647",
    ),
    (
        "file = \"table.npy\"",
        "file = \"tables.npy\"",
        "10:55: FOLDER/tables.npy: No such file or directory (os error 2)",
    ),
    (
        "file = \"table.npy\"",
        "file = \"step.cl\"",
        "10:55: FOLDER/step.cl: it has no shape; only .npy and .png have one",
    ),
    ("shape = [\"entries\"]", "shape = [8]", "10:47: FOLDER/table.npy: its shape is [7], not [8]"),
    (
        "table = { type = \"float\"",
        "table = { type = \"double\"",
        "10:56: FOLDER/table.npy: its elements are float32, and double is float64: save numpy.astype(\"float64\") of it",
    ),
    (
        "to = \"out.npy\"",
        "to = \"out.png\", from = { file = \"table.npy\" }",
        "8:66: FOLDER/table.npy: its shape is [7], not [100, 20]",
    ),
    (
        "shape = [1] }",
        "shape = [1], to = \"out.png\" }",
        "9:43: a picture has rows and columns, and 2 to 4 channels if there are several",
    ),
    // Kernels.
    (
        "opencl = \"step.cl\"\nitems = { x = 20, y = \"n\" }",
        "items = { x = 20, y = \"n\" }",
        "11:10: kernel step has no source: expected `opencl` or `cuda`",
    ),
    (
        "opencl = \"step.cl\"\nitems = { x = 20",
        "opencl = \"steps.cl\"\nitems = { x = 20",
        "12:10: FOLDER/steps.cl: No such file or directory (os error 2)",
    ),
    (
        "items = { x = 20, y = \"n\" }",
        "items = { x = 20, z = \"n\" }",
        "13:9: expected `x`, or `x` and `y`, or all of `x`, `y` and `z`",
    ),
    (
        "items = { x = 20, y = \"n\" }",
        "items = { x = 20, y = \"n\" }\nsplit = \"z\"",
        "14:9: the items have no axis z: there are x, y",
    ),
    ("group = { x = 64 }", "group = { x = 64, y = 2 }", "24:23: the items have no axis y: there are x"),
    (
        "group = { x = 64 }",
        "group = { x = 64 }\nfunction = \"a b\"",
        "25:12: expected the name of a function, found `a b`",
    ),
    (
        "{ array = \"from\", reads = \"rows\" }, ",
        "{ array = \"form\", reads = \"rows\" }, ",
        "25:24: there is no array `form`: there are from, to, count, table",
    ),
    (
        "{ array = \"to\", writes = \"rows\" }",
        "{ array = \"to\" }",
        "16:3: what items touch of to is not derived: step has 0 parameters, not 5; expected one of `reads`, `writes`, `updates` and `reduces`",
    ),
    (
        "{ array = \"to\", writes = \"rows\" }",
        "{ array = \"to\", writes = \"rows\", reads = \"rows\" }",
        "16:3: expected one of `reads`, `writes`, `updates` and `reduces`",
    ),
    (
        "{ array = \"to\", writes = \"rows\" }",
        "{ array = \"to\", writes = \"whole\" }",
        "16:28: devices cannot all change the whole array: expected a part of it, `reduces`, or `undivided = true`",
    ),
    (
        "{ array = \"to\", writes = \"rows\" }",
        "{ array = \"to\", writes = \"rows(1)\" }",
        "16:28: devices change parts without margins, which do not overlap",
    ),
    (
        "reads = \"rows(1)\"",
        "reads = \"lines(1)\"",
        "15:29: expected `whole` or `rows`, `columns`, such as \"rows(1)\", found \"lines(1)\"",
    ),
    (
        "reads = \"rows(1)\"",
        "reads = \"columns(1)\"",
        "15:29: 100 items along y need 100 columns, and array from has 20",
    ),
    (
        "reads = \"rows(1)\"",
        "reads = \"2 rows\"",
        "15:29: 100 items along y need 200 rows, and array from has 100",
    ),
    ("reads = \"rows(1)\"", "reads = \"rows(n\"", "15:29: a `)` is missing in \"rows(n\""),
    (
        "{ array = \"table\", reads = \"whole\" }",
        "{ array = \"to\", reads = \"rows\" }",
        "17:3: array to is an argument twice, and one of them changes it: expected one argument with `updates`",
    ),
    (
        "{ uint = \"n\" }",
        "{ uint = \"n\", float = 1 }",
        "19:3: expected one of `array`, a type of a scalar such as `uint`, and `local`",
    ),
    (
        "{ uint = \"n\" }",
        "{ uint = \"n\", reads = \"whole\" }",
        "19:3: only an `array` is read, written, updated or reduced",
    ),
    ("{ uint = \"n\" }", "{ uchar = \"3 * n\" }", "19:13: 300 is no integer of the type uchar: 0 to 255"),
    (
        "{ uint = \"n\" }",
        "{ uint = \"weight\" }",
        "19:12: 0.5 is no integer of the type uint: 0 to 4294967295",
    ),
    ("{ uint = \"n\" }", "{ local = 0 }", "19:13: 0 is no integer of at least 1"),
    (
        "until = \"count < 5\"",
        "until = \"count <= 5\"",
        "28:9: expected an array, `<` or `>`, and a number, such as \"change < 1e-3\", found \"count <= 5\"",
    ),
    // What runs.
    (
        "run = [{ kernel = \"step\" },",
        "run = [{ kernel = \"stop\" },",
        "29:19: there is no kernel `stop`: there are step, change",
    ),
    (
        "run = [{ kernel = \"step\" },",
        "run = [{ kernel = \"step\", repeat = 2 },",
        "29:8: expected `kernel`, or `swap`, or `repeat` and `run`; `every` belongs to `kernel`, `until` to `repeat`",
    ),
    ("swap = [\"from\", \"to\"]", "swap = [\"from\"]", "29:38: expected two arrays, found 1"),
    (
        "swap = [\"from\", \"to\"]",
        "swap = [\"from\", \"from\"]",
        "29:38: array from cannot change places with itself",
    ),
    (
        "swap = [\"from\", \"to\"]",
        "swap = [\"from\", \"table\"]",
        "29:38: expected two arrays of the same type and shape: from is [100, 20] of float, table is [7] of float",
    ),
    (
        "until = \"count < 5\"",
        "until = \"count\"",
        "28:9: expected an array, `<` or `>`, and a number, such as \"change < 1e-3\", found \"count\"",
    ),
    (
        "until = \"count < 5\"",
        "until = \"counts < 5\"",
        "28:9: there is no array `counts`: there are from, to, count, table",
    ),
    ("until = \"count < 5\"", "until = \"table < 5\"", "28:9: no repeated kernel changes array table"),
    ("every = 5", "every = 0", "29:85: 0 is no integer of at least 1"),
    ("repeat = \"steps\"", "repeat = -1", "27:10: -1 is no integer of at least 0"),
];

/// A folder with the files that the application names.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("step.cl"), "kernel void step() {}").expect("it can be written");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }";
    let mut table = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    table.extend(format!("{header:<117}\n").bytes());
    table.extend((0..7).flat_map(|number| (number as f32).to_le_bytes()));
    fs::write(folder.path().join("table.npy"), table).expect("it can be written");
    folder
}

fn mistakes(folder: &TempDir, text: &str) -> Vec<String> {
    let path = folder.path().join("app.toml");
    match Application::from_text(&path, text, &Changes::new()) {
        Ok(_) => Vec::new(),
        Err(ApplicationError::Invalid(faults)) => {
            let lines: Vec<String> = faults.as_slice().iter().map(ToString::to_string).collect();
            assert_eq!(faults.to_string(), lines.join("\n"));
            let prefix = format!("{}:", path.display());
            let without =
                |line: &String| line.strip_prefix(&prefix).expect("the file comes first").to_owned();
            let shown = folder.path().display().to_string();
            lines.iter().map(|line| without(line).replace(&shown, "FOLDER")).collect()
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn each_mistake_is_told_with_its_place_and_what_was_expected() {
    let folder = folder();
    assert_eq!(mistakes(&folder, RIGHT), Vec::<String>::new());
    assert!(CASES.len() >= 50);
    let mut wrong = Vec::new();
    for (from, to, expected) in CASES {
        assert!(RIGHT.contains(from), "{from}");
        let found = mistakes(&folder, &RIGHT.replacen(from, to, 1));
        if found.first().map(String::as_str) != Some(*expected) {
            wrong.push(format!(
                "{from} -> {to}\n  expected {expected}\n  found    {}",
                found.join("\n           ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[test]
fn all_mistakes_are_told_at_once() {
    let folder = folder();
    let text = RIGHT
        .replace("reads = \"rows(1)\"", "reads = \"row\"")
        .replace("{ float = \"weight\" }", "{ float = \"w\" }");
    let found = mistakes(&folder, &text);
    let places: Vec<&str> = found.iter().map(|line| line.split(": ").next().unwrap_or_default()).collect();
    assert_eq!(places, ["15:29", "18:13"], "{found:?}");
}

#[test]
fn a_file_that_is_no_text_or_missing_is_named() {
    let folder = folder();
    let missing = folder.path().join("missing.toml");
    let told = Application::from_file(&missing).expect_err("it is missing").to_string();
    assert!(told.starts_with(&format!("cannot read the application {}", missing.display())), "{told}");
    let binary = folder.path().join("table.npy");
    let told = Application::from_file(&binary).expect_err("it is binary").to_string();
    assert!(told.ends_with("it is no text"), "{told}");
}

#[test]
fn changed_values_replace_those_of_the_file_and_are_checked() {
    let folder = folder();
    let with = |changes: Changes| Application::from_text(folder.path().join("app.toml"), RIGHT, &changes);
    let told = |changes: Changes| with(changes).expect_err("it is wrong").to_string();
    let value = |application: &Application, of: &str| {
        let found = application.parameters().find(|(name, _)| *name == of);
        found.map(|(_, value)| value)
    };
    let application = with(Changes::new().parameter("n", "2 * 30")).expect("it is right");
    assert_eq!((value(&application, "n"), value(&application, "entries")), (Some(60.0), Some(7.0)));
    let files: Vec<_> = application.inputs().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(files, ["app.toml", "table.npy", "step.cl", "step.cl"]);
    for (changes, expected) in [
        (
            Changes::new().parameter("m", "1"),
            "application smooth has no parameter m: there are n, steps, weight",
        ),
        (
            Changes::new().parameter("entries", "1"),
            "application smooth has no parameter entries: there are n, steps, weight",
        ),
        (
            Changes::new().input("tabel", "a.npy"),
            "application smooth has no array tabel: there are from, to, count, table",
        ),
        (Changes::new().parameter("n", "many"), "parameter n: there is no parameter `many`: there are none"),
    ] {
        assert_eq!(told(changes), expected);
    }
    assert!(told(Changes::new().parameter("n", "0")).contains("0 is no integer of at least 1"));
    assert!(told(Changes::new().output("table", "table.png")).contains("a picture has rows and columns"));
    assert!(told(Changes::new().input("table", folder.path().join("missing.npy"))).contains("No such file"));
    let bytes = Changes::new().input("table", folder.path().join("step.cl"));
    assert!(told(bytes).ends_with("step.cl: it has no shape; only .npy and .png have one"));
}

/// Texts that differ from a right one in some bytes are read or refused. `fuzz` has the same for any text.
#[test]
fn no_text_makes_the_reader_panic() {
    let folder = folder();
    let mut drawn = 0x5EED_u64;
    let mut below = |limit: usize| {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 33) as usize % limit
    };
    let (mut read, mut refused) = (0, 0);
    for _ in 0..3000 {
        let mut text = RIGHT.as_bytes().to_vec();
        for _ in 0..=below(3) {
            let at = below(text.len());
            const PUT: &[u8] = b"0129-+*/%()<>=[]{},.abnr\"\n";
            match below(3) {
                0 => text[at] = PUT[below(PUT.len())],
                1 => _ = text.remove(at),
                _ => text.insert(at, PUT[below(PUT.len())]),
            }
        }
        let text = String::from_utf8(text).expect("all is ASCII");
        match Application::from_text(folder.path().join("app.toml"), &text, &Changes::new()) {
            Ok(_) => read += 1,
            Err(ApplicationError::Invalid(faults)) => {
                refused += 1;
                let lines = text.matches('\n').count() + 1;
                assert!(faults.as_slice().iter().all(|fault| (1..=lines).contains(&fault.line)), "{faults}");
            }
            Err(other) => panic!("{other}: {text}"),
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}
